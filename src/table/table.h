/*
 * table.h: sparse tables: rows of numbers by 64-bit keys, with an optimiser for each row.
 *
 * A table maps a key to a row: `width` parameters and the state of an optimiser. A row that is not stored has its
 * initial values, which are a function of (seed, number of the table, key); the first push that contains the key
 * stores it. So reading an unknown key never changes the table. This module has no public header: libtandem.so does
 * not export it. docs/sparse.md describes the methods and the layout in memory.
 *
 * Bits. The numbers of a row are a function of the options, its key and the sequence of pushes that contain the
 * key. They depend neither on threads, nor on other keys, nor on the growth of the table or its layout, nor on the
 * instruction-set level. Numbers below the normal range count as zero.
 *
 * Threads. Pull, export, hash and the queries only read: many threads may call them at once. All other functions
 * need the table exclusively. A call spreads its work over the threads that kernels may use in the calling
 * thread (tdm_kernel_enter).
 */
#ifndef TANDEM_TABLE_TABLE_H
#define TANDEM_TABLE_TABLE_H

#include <tandem/base.h>

typedef struct tdm_table tdm_table;

/* The values are part of checkpoints: never renumber them. */
typedef enum tdm_table_optim {
    TDM_TABLE_OPTIM_SGD = 0,
    TDM_TABLE_OPTIM_ADAGRAD = 1,
    TDM_TABLE_OPTIM_FTRL = 2,
    TDM_TABLE_OPTIM_ADAM = 3
} tdm_table_optim;

typedef enum tdm_table_init {
    TDM_TABLE_INIT_ZERO = 0,
    TDM_TABLE_INIT_UNIFORM = 1, /* in [-init_scale, init_scale) */
    TDM_TABLE_INIT_NORMAL = 2   /* mean 0, standard deviation init_scale */
} tdm_table_init;

enum { TDM_TABLE_MAX_WIDTH = 16384, TDM_TABLE_MAX_STATES = 2, TDM_TABLE_OPTIM_COUNT = 4 };
#define TDM_TABLE_MAX_ADMISSION 0x7fffffffu
#define TDM_TABLE_MAX_BATCH (INT64_C(1) << 28) /* keys of one call */

/* Zero means the default, if one is given. */
typedef struct tdm_table_options {
    const char *name; /* in messages; copied. NULL: "table" */
    uint64_t seed;
    uint32_t number; /* distinguishes the tables of one seed */
    int64_t width;   /* 1 to TDM_TABLE_MAX_WIDTH */
    int optim;       /* tdm_table_optim */
    int init;        /* tdm_table_init */
    double init_scale;
    double weight_decay; /* SGD, Adagrad, Adam: this times a parameter is added to its gradient */
    double eps;          /* Adagrad: 1e-10; Adam: 1e-8 */
    double beta1, beta2; /* Adam: 0.9 and 0.999 */
    double l1, l2, beta; /* FTRL: 0, 0 and 1 */
    /* A key gets a row when it has occurred this often in pushes; gradients before that are dropped. 0 and 1: at
     * once. */
    uint32_t admission;
    /* Keeps for each row the number of its updates and the step of the last one, for tdm_table_evict. Adam always
     * does. */
    bool keep_use;
    uint64_t limit_bytes; /* for everything; 0: 64 GiB */
} tdm_table_options;

/* Settings of one push. */
typedef struct tdm_table_step {
    double lr;     /* FTRL's alpha; positive for FTRL */
    uint32_t step; /* kept with the row (keep_use) */
} tdm_table_step;

typedef struct tdm_table_stats {
    uint64_t row_count;
    uint64_t pending_count; /* keys that occurred less often than `admission` */
    uint64_t bytes;         /* used, in whole blocks */
    uint64_t limit_bytes;
    uint64_t row_bytes; /* of one row with its state */
    uint64_t segment_count, split_count;
    double load; /* used share of the index */
} tdm_table_stats;

/* TDM_ERR_INVALID with the option that is wrong; TDM_ERR_NO_MEMORY if the address space cannot be reserved. */
tdm_status tdm_table_create(const tdm_table_options *options, tdm_table **out, tdm_error *err);
void tdm_table_destroy(tdm_table *table); /* NULL is allowed */

/* The options with defaults filled in; borrowed. */
const tdm_table_options *tdm_table_options_of(const tdm_table *table);
tdm_table_stats tdm_table_stats_of(const tdm_table *table);
/* The number of states of a method (each has `width` numbers), and their names: "sum", "z", ... */
int tdm_table_state_count(int optim);
const char *tdm_table_state_name(int optim, int state);

/*
 * The expected size of a table with these numbers of rows and pending keys, in bytes as in tdm_table_stats. The options
 * must be valid. Pure arithmetic: nothing is allocated.
 */
uint64_t tdm_table_predict(const tdm_table_options *options, uint64_t row_count,
                           uint64_t pending_count);

/* ---- rows by key ------------------------------------------------------------------------------ */

/* Copies the rows of `keys` to `out` [count, width]; initial values for keys without a row. Allocates nothing. */
void tdm_table_pull(const tdm_table *table, const uint64_t *keys, int64_t count, float *out);
bool tdm_table_has(const tdm_table *table, uint64_t key);

/*
 * Updates the row of each key with its gradient from `grads` [count, width]. Gradients are not checked: one that is
 * not finite spoils its row. The gradients of a key that occurs
 * several times are summed in the order of the call; the row gets one update with the sum. TDM_ERR_RANGE if the
 * table would exceed its limit: then nothing has changed. TDM_ERR_RANGE as well if more than 640 keys have the same
 * upper 24 bits of their hashes, which chance does not cause: then no row has been updated, but rows with initial
 * values may have been added. Allocates only if `count` is larger than in all calls
 * before.
 */
tdm_status tdm_table_push(tdm_table *table, const tdm_table_step *step, const uint64_t *keys,
                          const float *grads, int64_t count, tdm_error *err);

/* ---- eviction --------------------------------------------------------------------------------- */

/* A row is removed if both conditions hold; one of them can be disabled by a zero. Both zero: no row. */
typedef struct tdm_table_evict_rule {
    uint32_t below_updates; /* it had fewer updates */
    uint32_t before_step;   /* its last update was in an earlier step */
    bool drop_pending;      /* forgets the occurrences of pending keys */
} tdm_table_evict_rule;

/* Returns the number of removed rows in *out_count (may be NULL). Their memory is used again by later rows. A key
 * that comes back begins with its initial values. TDM_ERR_INVALID without `keep_use`. */
tdm_status tdm_table_evict(tdm_table *table, const tdm_table_evict_rule *rule, uint64_t *out_count,
                           tdm_error *err);

/* ---- checkpoints ------------------------------------------------------------------------------ */

/* The keys of a table in increasing order: first those with rows, then pending ones. Valid until the table
 * changes. */
typedef struct tdm_table_order tdm_table_order;

tdm_status tdm_table_order_create(const tdm_table *table, tdm_table_order **out, tdm_error *err);
void tdm_table_order_destroy(tdm_table_order *order);

/* Arrays of one range of rows. Those that are NULL are not written by export; import needs `keys`, `params`, and
 * `states` if the method has any. Without `updates` or `last_steps`, import uses 0. */
typedef struct tdm_table_rows {
    uint64_t *keys;
    float *params;        /* [count, width] */
    float *states;        /* [count, state_count, width] */
    uint32_t *updates;    /* how many the row had (keep_use), else 0 */
    uint32_t *last_steps; /* of its last update (keep_use), else 0 */
} tdm_table_rows;

/* Copies the rows at [first, first + count) of the order. */
void tdm_table_export(const tdm_table_order *order, uint64_t first, uint64_t count,
                      const tdm_table_rows *out);
/* The same for pending keys, with the number of their occurrences. One of the arrays may be NULL. */
void tdm_table_export_pending(const tdm_table_order *order, uint64_t first, uint64_t count,
                              uint64_t *keys, uint32_t *occurrences);

/* Adds rows whose keys increase and are not in the table yet; otherwise TDM_ERR_FORMAT. TDM_ERR_RANGE beyond the
 * limit. After a failure the table is unchanged. */
tdm_status tdm_table_import(tdm_table *table, const tdm_table_rows *rows, uint64_t count,
                            tdm_error *err);
tdm_status tdm_table_import_pending(tdm_table *table, const uint64_t *keys,
                                    const uint32_t *occurrences, uint64_t count, tdm_error *err);

/* SHA-256 over width, method and all rows, states and pending keys in increasing order: tables with equal content
 * have equal hashes, however they were filled. */
tdm_status tdm_table_hash(const tdm_table *table, char hex[TDM_SHA256_HEX], tdm_error *err);

/* ---- hashed features -------------------------------------------------------------------------- */

/*
 * Maps any key to [0, space), evenly (space > 0): the upper 64 bits of tdm_mix64(key + 0x9e3779b97f4a7c15) * space,
 * in 128 bits. Part of trained models: it must not change.
 */
uint64_t tdm_table_fold(uint64_t key, uint64_t space);
/* The key of a text in a field: tdm_mix64(FNV-1a of its bytes) + tdm_mix64(field), modulo 2^64. It must not
 * change. */
uint64_t tdm_table_text_key(uint32_t field, const void *text, size_t length);

#endif
