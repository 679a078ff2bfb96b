/*
 * ledger.h: a run's ledger: which samples each committed step has trained.
 *
 * RUN/ledger.jsonl has one line for each step: its number (from 1), the epoch and the place in it, how
 * many samples, and a digest of those that lanes really read: the sum, modulo 2^64, of tdm__ledger_mix
 * over them. Sums of ranks add up in any order, so whoever executed which lanes does not show.
 *
 * Rank 0 writes it. When another takes over, it opens the ledger anew, which puts a new file in place:
 * what somebody of an old epoch may still write goes into the old one, which nobody sees. A step counts
 * once it is committed, and its line comes after that; so whoever takes over must be able to write the
 * line that the one before did not get to, and keeps the digest of the committed step with the state.
 *
 * Lines that a full disk has refused are in the memory of rank 0 alone. Every rank therefore remembers the
 * lines of the last steps (tdm__ledger_recent), and the next rank 0 writes those that the file lacks.
 */
#ifndef TANDEM_TRAIN_LEDGER_H
#define TANDEM_TRAIN_LEDGER_H

#include <tandem/text.h>
#include <tandem/train.h>

#include <sys/types.h>

#define TDM__LEDGER_NAME "ledger.jsonl"

typedef struct tdm__ledger_line {
    uint64_t step;     /* from 1 */
    uint64_t epoch;    /* from 0 */
    uint64_t position; /* in the epoch, of its first sample */
    uint64_t count;    /* of samples */
    uint64_t digest;
} tdm__ledger_line;

typedef struct tdm__ledger {
    int fd; /* -1: not open */
    uint64_t last_step;
    bool complete;             /* as far as this process has to do with it: no line was lost */
    tdm__ledger_line *waiting; /* lines that are not known to be on the disk, in order */
    size_t waiting_count, waiting_room;
    size_t written_count; /* of them: the first ones, which are in the file */
    off_t synced_bytes;   /* of the file, on the disk */
    bool must_rewind;     /* what comes after these may be damaged */
    bool sync_failed;     /* the last one */
    bool is_behind;       /* some line could not be written or synced, and that was said */
    char path[TDM_PATH_BYTES];
} tdm__ledger;

/* The lines of the last steps, each at its step modulo TDM__LEDGER_RECENT. NULL: none are remembered. */
#define TDM__LEDGER_RECENT 65536
typedef tdm__ledger_line tdm__ledger_recent;

/* What a sample adds to the digest of its step. */
uint64_t tdm__ledger_mix(uint64_t epoch, uint64_t index);

/* Opens a run's ledger to go on after `step` steps, and makes one where there is none. Lines of later
 * steps, a line cut short by a kill, and lines that are none are dropped. `out->last_step` is the last
 * step that it holds, which may be before `step`. Costs reading and writing all of it. */
tdm_status tdm__ledger_open(const char *run, uint64_t step, tdm__ledger *out, tdm_error *err);
/* Appends a line, whole or not at all. A step that is there already is passed over. A line that the disk
 * refuses waits in memory, with those after it, and is tried again with every later one and with every
 * sync; training goes on. Lines whose sync fails are written once more. */
void tdm__ledger_put(tdm__ledger *ledger, const tdm__ledger_line *line);
/* Appends the lines up to `step` that the ledger lacks, as far as `recent` has them. */
void tdm__ledger_fill(tdm__ledger *ledger, const tdm__ledger_recent *recent, uint64_t step);
/* To the disk: before a checkpoint that stands on these steps. */
void tdm__ledger_sync(tdm__ledger *ledger);
void tdm__ledger_close(tdm__ledger *ledger);

/* One line, without its newline; false when it is none. `arena` is for reading and may be reset after. */
bool tdm__ledger_read(const char *text, size_t length, tdm_arena *arena, tdm__ledger_line *out);

#endif
