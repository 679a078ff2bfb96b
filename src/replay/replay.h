/* replay.h: tensors of a replayed step to be written to a file (replay_dump.c). */
#ifndef TANDEM_REPLAY_REPLAY_H
#define TANDEM_REPLAY_REPLAY_H

#include "train/internal.h"

typedef enum tdm__dump_kind { TDM__DUMP_STATE, TDM__DUMP_GRAD, TDM__DUMP_OP } tdm__dump_kind;

typedef struct tdm__dump {
    tdm_named_tensor named; /* without data until it was computed */
    tdm__dump_kind kind;
    int64_t lane;   /* -1: the sum over lanes */
    size_t index;   /* in the state's items, or of the parameter */
    const char *op; /* OP: name of the op */
    int output;     /* OP: index of the output */
} tdm__dump;

typedef struct tdm__dumps {
    tdm_arena *arena; /* borrowed */
    tdm__dump *items;
    size_t count;
    bool failed; /* no memory for a tensor */
} tdm__dumps;

/* Resolves the names for the step at position `at`. TDM_ERR_NOT_FOUND, with similar names, for an unknown
 * one. */
tdm_status tdm__dumps_init(const tdm_replay_options *options, const tdm__train_schedule *schedule,
                           const tdm__state *state, const tdm_position *at, tdm_arena *arena,
                           tdm__dumps *out, tdm_error *err);
/* Copies the requested tensors: state before the step, gradient of a lane (-1: the sum), outputs of an op. */
void tdm__dumps_take_state(tdm__dumps *dumps, const tdm__state *state);
void tdm__dumps_take_grads(tdm__dumps *dumps, const tdm__state *state, int64_t lane,
                           const float *grads);
void tdm__dumps_take_op(tdm__dumps *dumps, int64_t lane, const char *op, const tdm_tensor *outputs,
                        int output_count);
bool tdm__dumps_want_ops(const tdm__dumps *dumps);
/* Writes all of them; TDM_ERR_NOT_FOUND if one was not computed. */
tdm_status tdm__dumps_write(const tdm__dumps *dumps, const tdm_replay_options *options,
                            tdm_error *err);

#endif
