/*
 * table_reference.h: a sparse table as a plain map, for comparison: a linear search structure without segments,
 * threads or batches. SGD, Adagrad and Adam use the optimisers of dense tensors; FTRL is written from the paper.
 */
#ifndef TANDEM_TESTS_TABLE_REFERENCE_H
#define TANDEM_TESTS_TABLE_REFERENCE_H

#include "table/table.h"

enum { REFERENCE_MAX_WIDTH = 40, REFERENCE_SLOTS = 1 << 17 };

typedef struct reference_row {
    uint64_t key;
    uint32_t occurrences, updates, last_step;
    bool is_used, has_row;
    float numbers[3 * REFERENCE_MAX_WIDTH]; /* parameters, then states */
} reference_row;

typedef struct reference {
    tdm_table_options options;
    reference_row *rows; /* [REFERENCE_SLOTS] */
    uint64_t used;
} reference;

reference *reference_create(const tdm_table_options *options);
void reference_destroy(reference *map);
/* The entry of a key; NULL if it has never occurred. */
reference_row *reference_find(const reference *map, uint64_t key);
void reference_push(reference *map, const tdm_table_step *step, const uint64_t *keys,
                    const float *grads, int64_t count);
void reference_pull(const reference *map, uint64_t key, float *out);
void reference_evict(reference *map, const tdm_table_evict_rule *rule);

#endif
