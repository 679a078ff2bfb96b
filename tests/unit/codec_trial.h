/*
 * codec_trial.h: one replica with its arrays, for the tests of module codec; and the suites of codec_test.c.
 */
#ifndef TANDEM_TESTS_UNIT_CODEC_TRIAL_H
#define TANDEM_TESTS_UNIT_CODEC_TRIAL_H

#include "check.h"
#include "codec/internal.h"

extern const check_suite codec_values;
extern const check_suite codec_selection;
extern const check_suite codec_payload;
extern const check_suite codec_lowrank;
extern const check_suite codec_guards;

enum { CODEC_TRIAL_GAP = 5 }; /* unused numbers after each tensor */

/* Arrays of the block's extent; those of a gap hold CODEC_TRIAL_GUARD. */
#define CODEC_TRIAL_GUARD 12345.0f
typedef struct codec_trial {
    tdm_codec *codec;
    tdm_codec_tensor tensors[16];
    size_t count, extent;
    float *source; /* the gradient; encode gets a copy */
    float *grad, *out;
    float *before[TDM_CODEC_MAX_STATES], *after[TDM_CODEC_MAX_STATES];
    uint8_t *payload;
    size_t bytes;
    tdm_codec_key key;
} codec_trial;

/* Tensors of these sizes, up to 16; ends with SIZE_MAX. The gradient and the states are random. */
void codec_trial_init(codec_trial *t, const tdm_codec_options *options, const size_t *sizes);
void codec_trial_release(codec_trial *t);
/* Encodes `source`; `after` are separate arrays. */
tdm_status codec_trial_encode(codec_trial *t, tdm_error *err);
/* Encodes and decodes; both must succeed. */
void codec_trial_pass(codec_trial *t);
/* A hash of the payload and the states after the step. */
uint64_t codec_trial_hash(const codec_trial *t);
void codec_trial_random(float *x, size_t count, uint32_t sequence);
/* The bits of a number without sign. */
uint32_t codec_trial_magnitude(float x);

/* Every stage and combination that the tests go through. */
typedef struct codec_combination {
    const char *name;
    tdm_codec_options options;
} codec_combination;
extern const codec_combination codec_combinations[];
extern const size_t codec_combination_count;

#endif
