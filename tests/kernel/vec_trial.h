/*
 * vec_trial.h: one op with one set of shapes and numbers, run on any backend.
 *
 * The inputs of a trial are a function of its seed. All operands are between guards: a write outside an operand
 * is detected, a read outside makes the result wrong. Outputs contain NaN at first, inputs must be unchanged,
 * scratch is exactly as large as prepare() requested, and data pointers are set after it, as a plan does.
 */
#ifndef TANDEM_TESTS_KERNEL_VEC_TRIAL_H
#define TANDEM_TESTS_KERNEL_VEC_TRIAL_H

#include "base/base.h"
#include "check.h"
#include "tensor/kernels/backends.h"

#include <float.h>
#include <stdlib.h>

enum { TRIAL_GUARD_BYTES = 128, TRIAL_MAX_INPUTS = TDM_OP_MAX_INPUTS };
/* The position of the trials in a run, which determines dropout. */
enum { TRIAL_SEED = 77, TRIAL_STEP = 9, TRIAL_FIRST_ROW = 5, TRIAL_SUB_STREAM = 4 };

typedef struct trial {
    tdm_op_kind op;
    tdm_op_attrs attrs;
    tdm_shape in[TRIAL_MAX_INPUTS], out[TDM_OP_MAX_OUTPUTS];
    int in_count, out_count;
    int32_t class_count;       /* in[1] is i32, in [0, class_count) */
    double spread;             /* of random inputs, around 0; 0: 3 */
    bool extremes;             /* huge, tiny and special numbers among those of the last input */
    bool infinities;           /* and infinite ones */
    double relative, absolute; /* allowed difference from ref; both 0: the same bits */
    bool over_first;           /* the last output overwrites in[0] */
} trial;

typedef struct trial_result {
    float *out[TDM_OP_MAX_OUTPUTS];
    size_t count[TDM_OP_MAX_OUTPUTS];
} trial_result;

static const float trial_extremes[] = {
    0.0f,   -0.0f,  FLT_MIN, -FLT_MIN, 1e-45f,  -1e-41f, FLT_MAX, -FLT_MAX, 88.7f,
    -88.7f, 104.5f, -87.5f,  -103.5f,  1e-20f,  -1e-20f, 1e10f,   -1e10f,   16.5f,
    -16.5f, 9.5f,   -9.5f,   0.625f,   -0.625f, 1.0f,    -1.0f,   NAN};

void vec_trial_fill(const trial *t, int index, void *data, size_t count);

trial_result vec_trial_run(const tdm_kernel_backend_ops *backend, const trial *t);

void vec_trial_free(trial_result *result);

bool vec_trial_same_bits(const float *a, const float *b, size_t count);

/* Compares two results of one trial; reports the first difference. */
void vec_trial_compare(const trial *t, int level, const trial_result *got,
                       const trial_result *expected);

#endif
