/*
 * saver.h: checkpoints that are written while training goes on.
 *
 * At a step's boundary all ranks begin a save together: the ranks of rank 0's node (those that see its
 * memory) copy the state, each a part; then training goes on, and a thread of each of them hashes its
 * part and writes it to its place in one file. Rank 0's thread waits for the others', asks whether it
 * may, and puts the file in place; then it removes old checkpoints. What it costs training is the copy;
 * with `lazy` that is made behind the next step's forward and backward passes, too.
 *
 * Where memory is short for a copy, with states in files (parallel.offload), or when the job wants it so
 * (checkpoint.background), the same ranks write from where the state lies, and training waits. Where
 * ranks of other hosts have parts of the state, it goes through rank 0 window by window, as
 * tdm__state_save does, and training waits, too. The file is the same, byte for byte, in every case.
 *
 * A save that fails leaves the last good checkpoint as it was. Where the disk is full, rank 0 removes old
 * checkpoints, as far as the rules of retention allow it, so that the next save may have room.
 *
 * A saver belongs to one world (an epoch) and its state, and is destroyed before both. One save is in
 * work at a time. Threading: one thread calls.
 */
#ifndef TANDEM_TRAIN_SAVER_H
#define TANDEM_TRAIN_SAVER_H

#include "train/internal.h"
#include "train/snapshot_pool.h"

typedef struct tdm__saver tdm__saver;

typedef struct tdm__saver_options {
    tdm__state *state; /* borrowed */
    bool background;   /* else begin waits until the file is in place */
    /* Whether the copy itself is made behind training, too: only where tdm__saver_hold is called before
     * every change of the state (tdm_step_input.before_update). Else begin waits for the copy. */
    bool lazy;
    bool expected; /* saves along the way will come: memory for the copy is taken beforehand */
    tdm__snapshot_pool *room; /* where that is kept; NULL: as long as the saver lasts. Borrowed */
    /* Asked at rank 0, by the saver's thread, right before a file gets its name; never after
     * tdm__saver_abandon has returned. NULL: nobody is. */
    tdm_commit_gate gate;
    tdm_checkpoint_retention retention; /* all zero: nothing is removed but leftovers */
} tdm__saver_options;

/* Collective. */
tdm_status tdm__saver_create(const tdm__saver_options *options, tdm__saver **out, tdm_error *err);
/* Local; abandons what is in work. NULL is fine. */
void tdm__saver_destroy(tdm__saver *saver);

/* What matters at rank 0 only; others may give zeros. */
typedef struct tdm__save {
    const char *path;                      /* ends in ".zst": packed */
    const tdm_checkpoint_content *content; /* all but the tensors; copied */
    tdm_checkpoint_metrics metrics;        /* of the test set at this step; NaN: not measured */
    bool waits; /* training waits for it anyway, so no copy is made; matters at every rank */
} tdm__save;

/*
 * Begins a save of the state as it is now, between two steps. Waits first for one that is in work; its
 * result is kept for poll. *bad becomes NULL, or the name of a tensor that holds a number that is not
 * finite: then nothing is saved (with `lazy` that is a result, TDM_ERR_DIVERGED). Collective: all ranks get the same status and *bad. What goes wrong
 * with rank 0's folder or anybody's disk is no error of begin: it is a result.
 */
tdm_status tdm__saver_begin(tdm__saver *saver, const tdm__save *what, const char **bad,
                            tdm_error *err);

/* How a save ended. */
typedef struct tdm__saved {
    tdm_status status;  /* TDM_OK: the file is in place, on the disk */
    char message[1024]; /* why not; or, with TDM_OK, why old checkpoints stay; else empty */
    uint64_t step;
    char path[TDM_PATH_BYTES];
    char state_hash[TDM_SHA256_HEX];
    double seconds; /* from its beginning to its end */
    double stall_s; /* of them, those for which training waited, at rank 0 */
    tdm_checkpoint_removed
        removed; /* the disk was full: old checkpoints that went for the next try */
} tdm__saved;

/* Whether a save has ended since the last call, and how. Local, cheap; never waits. Rank 0 gets all
 * results, others only those of saves that training waited for. */
bool tdm__saver_poll(tdm__saver *saver, tdm__saved *out);
/* With `lazy`: before the state changes after a begin. Waits until all ranks of the node have their copies;
 * a save whose copy would be torn fails. Local; nothing when there is no copy to wait for. */
void tdm__saver_hold(tdm__saver *saver);
/* Whether one is in work. Local. */
bool tdm__saver_busy(const tdm__saver *saver);
/* Waits for the save in work. *has: there is a result that poll has not given: the newest, the same on
 * all ranks. Collective. */
tdm_status tdm__saver_finish(tdm__saver *saver, bool *has, tdm__saved *out, tdm_error *err);
/* The world has broken: no file of the save in work gets its name any more. Local; does not wait for
 * the disk. */
void tdm__saver_abandon(tdm__saver *saver);

#endif
