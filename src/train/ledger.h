/*
 * ledger.h: a run's ledger: the samples that each committed step trained.
 *
 * RUN/ledger.jsonl has one line per step, or per round of steps with sync.kind local: its number (from 1), the data epoch and the position in it, the
 * number of samples, and a digest of the samples that the lanes actually read: the sum, modulo 2^64, of
 * tdm__ledger_mix over them. Sums are independent of order, so the digest does not depend on the placement of
 * lanes.
 *
 * Rank 0 writes it. A new rank 0 opens the ledger again, which replaces the file: a fenced process of an
 * old epoch writes to the old, unlinked file. The line of a step is written after the step is committed. The
 * next rank 0 must be able to write the line that its predecessor did not write, so the digest of the
 * committed step is kept with the state.
 *
 * Lines that a full disk rejected are only in the memory of rank 0. Every rank therefore keeps the
 * lines of the last steps (tdm__ledger_recent), and the next rank 0 writes those that are missing in the file.
 */
#ifndef TANDEM_TRAIN_LEDGER_H
#define TANDEM_TRAIN_LEDGER_H

#include <tandem/text.h>
#include <tandem/train.h>

#include <sys/types.h>

#define TDM__LEDGER_NAME "ledger.jsonl"

typedef struct tdm__ledger_line {
    uint64_t step;     /* from 1; of a round, its last one */
    uint64_t epoch;    /* from 0, like the position that of the first sample */
    uint64_t position; /* in the data epoch */
    uint64_t count;    /* number of samples */
    uint64_t digest;
    uint64_t steps; /* number of steps of the round; 1 unless sync.kind is local */
} tdm__ledger_line;

typedef struct tdm__ledger {
    int fd; /* -1: not open */
    uint64_t last_step;
    bool complete;             /* this process has lost no line */
    tdm__ledger_line *waiting; /* lines not known to be on the disk, in order */
    size_t waiting_count, waiting_room;
    size_t written_count; /* the first of these, which are in the file */
    off_t synced_bytes;   /* size of the synced part of the file */
    bool must_rewind;     /* the file after synced_bytes may be damaged */
    bool sync_failed;     /* of the last sync */
    bool is_behind;       /* a line could not be written or synced, and this was logged */
    char path[TDM_PATH_BYTES];
} tdm__ledger;

/* The lines of the last steps, each at index step modulo TDM__LEDGER_RECENT. May be NULL. */
#define TDM__LEDGER_RECENT 65536
typedef tdm__ledger_line tdm__ledger_recent;

/* The contribution of a sample to the digest of its step. */
uint64_t tdm__ledger_mix(uint64_t epoch, uint64_t index);

/* Opens a run's ledger to continue after `step` steps, or creates it. Lines of later steps, a truncated line and
 * invalid lines are removed. `out->last_step` is the last step in the file, which may be before `step`. Reads and
 * rewrites the whole file. */
tdm_status tdm__ledger_open(const char *run, uint64_t step, tdm__ledger *out, tdm_error *err);
/* Appends a complete line or nothing. A step that is already there is ignored. A line that the disk
 * rejects is kept in memory with those after it, and retried with every later line and every sync; training
 * continues. Lines whose sync fails are written again. */
void tdm__ledger_put(tdm__ledger *ledger, const tdm__ledger_line *line);
/* Appends the missing lines up to `step`, as far as `recent` has them. */
void tdm__ledger_fill(tdm__ledger *ledger, const tdm__ledger_recent *recent, uint64_t step);
/* Syncs the file; called before a checkpoint of these steps. */
void tdm__ledger_sync(tdm__ledger *ledger);
void tdm__ledger_close(tdm__ledger *ledger);

/* Parses one line without its newline; false if it is invalid. `arena` is for parsing and may be reset afterwards. */
bool tdm__ledger_read(const char *text, size_t length, tdm_arena *arena, tdm__ledger_line *out);

#endif
