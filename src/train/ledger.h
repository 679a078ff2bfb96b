/*
 * ledger.h: a run's ledger: the samples that each committed step trained.
 *
 * RUN/ledger.jsonl has one line per step, or per round of steps with sync.kind local: its number (from 1), the data epoch and the position in it, the
 * number of samples, and a digest of the samples that the lanes actually read: the sum, modulo 2^64, of
 * tdm__ledger_mix over them. Sums are independent of order, so the digest does not depend on the placement of
 * lanes.
 *
 * The line of a step is written after the step is committed. The next rank 0 must be able to write the line that its
 * predecessor did not write, so the digest of the committed step is kept with the state. lines.h describes the file.
 */
#ifndef TANDEM_TRAIN_LEDGER_H
#define TANDEM_TRAIN_LEDGER_H

#include "train/lines.h"

#define TDM__LEDGER_NAME "ledger.jsonl"

typedef struct tdm__ledger_line {
    uint64_t step;     /* from 1; of a round, its last one */
    uint64_t epoch;    /* from 0, like the position that of the first sample */
    uint64_t position; /* in the data epoch */
    uint64_t count;    /* number of samples */
    uint64_t digest;
    uint64_t steps; /* number of steps of the round; 1 unless sync.kind is local */
} tdm__ledger_line;

extern const tdm__lines_format tdm__ledger_format;

/* The contribution of a sample to the digest of its step. */
uint64_t tdm__ledger_mix(uint64_t epoch, uint64_t index);

/* Parses one line without its newline; false if it is invalid. `arena` is for parsing and may be reset afterwards. */
bool tdm__ledger_read(const char *text, size_t length, tdm_arena *arena, tdm__ledger_line *out);

#endif
