/*
 * saver.h: checkpoints that are written while training continues.
 *
 * At the end of a step all ranks begin a save together: the ranks of rank 0's node (those that share its
 * memory) copy the state, each rank a part. Then training continues, and a thread of each of them hashes its
 * part and writes it to its position in one file. Rank 0's thread waits for the others, asks the gate for
 * permission, and renames the file into place; then it removes old checkpoints. Training waits for the copy only;
 * with `lazy` the copy is made during the next forward and backward passes as well.
 *
 * If memory is too short for a copy, with states in files (parallel.offload), or with checkpoint.background:
 * false, the same ranks write directly from the state, and training waits. If ranks of other hosts have
 * parts of the state, it is sent through rank 0 in windows (tdm__state_save), and training waits as well. The file
 * is the same, byte for byte, in every case.
 *
 * A failed save does not affect the last valid checkpoint. If the disk is full, rank 0 removes old
 * checkpoints, as far as the retention rules allow it, so that the next save may succeed.
 *
 * A saver belongs to one world (a membership epoch) and its state, and is destroyed before both. One save is in
 * progress at a time. Threading: called by one thread.
 */
#ifndef TANDEM_TRAIN_SAVER_H
#define TANDEM_TRAIN_SAVER_H

#include "train/internal.h"
#include "train/snapshot_pool.h"

typedef struct tdm__saver tdm__saver;

typedef struct tdm__saver_options {
    tdm__state *state; /* borrowed */
    bool background;   /* else begin waits until the file is in place */
    /* Make the copy during training as well. Requires a call of tdm__saver_hold before every change of
     * the state (tdm_step_input.before_update). Else begin waits for the copy. */
    bool lazy;
    /* there will be saves during the run: memory for the copy is allocated in advance */
    bool expected;
    tdm__snapshot_pool *pool; /* keeps that memory; NULL: private to the saver. Borrowed */
    /* Called on rank 0, by the saver's thread, right before a file is renamed; never after
     * tdm__saver_abandon has returned. Zero: no gate. */
    tdm_commit_gate gate;
    tdm_checkpoint_retention retention; /* all zero: only leftovers are removed */
} tdm__saver_options;

/* Collective. */
tdm_status tdm__saver_create(const tdm__saver_options *options, tdm__saver **out, tdm_error *err);
/* Local; abandons the save in progress. May be NULL. */
void tdm__saver_destroy(tdm__saver *saver);

/* Fields matter on rank 0 only, unless they say otherwise; other ranks may pass zeros. */
typedef struct tdm__save {
    const char *path;                      /* ends in ".zst": compressed */
    const tdm_checkpoint_content *content; /* everything except the tensors; copied */
    tdm_checkpoint_metrics metrics;        /* of the test set at this step; NaN: not measured */
    bool waits; /* training waits anyway, so no copy is made; matters on every rank */
} tdm__save;

/*
 * Begins a save of the current state, between two steps. Waits first for a save in progress; its
 * result is kept for poll. *bad becomes NULL, or the name of a tensor with a non-finite value: then nothing
 * is saved (with `lazy` that is a result, TDM_ERR_DIVERGED). Collective: all ranks get the same status and *bad.
 * A failure of rank 0's directory or of a disk is reported as a result, not as an error of begin.
 */
tdm_status tdm__saver_begin(tdm__saver *saver, const tdm__save *what, const char **bad,
                            tdm_error *err);

/* Result of a save. */
typedef struct tdm__saved {
    tdm_status status; /* TDM_OK: the file is in place, on the disk */
    char message
        [1024]; /* the error; with TDM_OK, why old checkpoints were not removed; else empty */
    uint64_t step;
    char path[TDM_PATH_BYTES];
    char state_hash[TDM_SHA256_HEX];
    double seconds; /* from begin to end */
    double stall_s; /* the part for which training waited, on rank 0 */
    /* old checkpoints removed for the next attempt: the disk was full */
    tdm_checkpoint_removed removed;
} tdm__saved;

/* Returns the result of a save that ended since the last call, if any. Local, cheap; never waits. Rank 0 gets all
 * results, other ranks only those of saves that training waited for. */
bool tdm__saver_poll(tdm__saver *saver, tdm__saved *out);
/* With `lazy`: call before the state changes after a begin. Waits until all ranks of the node have their copies;
 * a save whose copy would be inconsistent fails. Local; returns at once if there is no copy to wait for. */
void tdm__saver_hold(tdm__saver *saver);
/* Whether a save is in progress. Local. */
bool tdm__saver_busy(const tdm__saver *saver);
/* Waits for the save in progress. *has: there is a result that poll has not returned: the newest, the same on
 * all ranks. Collective. */
tdm_status tdm__saver_finish(tdm__saver *saver, bool *has, tdm__saved *out, tdm_error *err);
/* After the world failed: the file of the save in progress is not renamed any more. Local; does not wait for
 * the disk. */
void tdm__saver_abandon(tdm__saver *saver);

#endif
