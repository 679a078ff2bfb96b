/*
 * checkpoint_fixture.h: shared by the tests of the module checkpoint: generated files, and a small training
 * state.
 */
#ifndef TANDEM_TESTS_CHECKPOINT_FIXTURE_H
#define TANDEM_TESTS_CHECKPOINT_FIXTURE_H

#include "check.h"

#include <tandem/checkpoint.h>
#include <tandem/os.h>

#include <stdio.h>
#include <stdlib.h>

bool same_bytes(const void *a, const void *b, size_t count);

/* The number of files in the directory of the case. */
int directory_entries(void);

/* Builds a file from a header and a number of data bytes, 0, 1, 2, ...; on the heap, so that the sanitizer
 * detects every read past its end. Freed by the caller. */
uint8_t *build(const char *header, size_t data_bytes, size_t *out_count);

typedef struct sample_state {
    float weight[2][300];
    float bias[7];
    int64_t count[1];
    tdm_named_tensor tensors[4];
    const char *classes[3];
    tdm_checkpoint_content content;
} sample_state;

void fill_state(sample_state *s, uint64_t step);

#endif
