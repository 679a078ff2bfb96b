/* internal.h: shared by the files of the module sparse. */
#ifndef TANDEM_SPARSE_INTERNAL_H
#define TANDEM_SPARSE_INTERNAL_H

#include "data/data.h"
#include "job/job.h"
#include "sparse/sparse.h"
#include "table/table.h"

/* A block that grows. */
typedef struct tdm__sparse_block {
    void *data;
    size_t bytes;
} tdm__sparse_block;

/* How features of a data set become entries of a table. */
typedef struct tdm__sparse_features {
    tdm_job_columns columns;
    int hash_bits;
    bool is_criteo;
} tdm__sparse_features;

struct tdm_sparse {
    tdm__sparse_features features;
    tdm_table *table; /* the rows of the keys that this rank owns */
    tdm_comm *comm;   /* NULL: a single process */
    int rank, size, thread_count;
    double lr;
    int optim;

    /* The batch: samples of this rank, whose entries refer to different keys by their number. */
    int64_t first_row, row_count, entry_count, key_count;
    tdm__sparse_block offsets; /* int64_t [row_count + 1] */
    tdm__sparse_block entries; /* tdm__sparse_entry [entry_count] */
    tdm__sparse_block numbers; /* float [row_count, number_count] */
    tdm__sparse_block classes; /* int32_t [row_count] */
    tdm__sparse_block keys;    /* uint64_t [key_count], by owner */
    tdm__sparse_block rows;    /* float [key_count, row_width] */
    tdm__sparse_block slots;   /* of the search for equal keys: uint32_t [slot_count] */
    uint64_t slot_count;
    tdm__sparse_block found; /* uint64_t [key_count], in order of occurrence */
    tdm__sparse_block
        places;         /* uint32_t [key_count]: from order of occurrence to order of owners */
    int64_t *own_first; /* [size + 1]: keys of owner i are own_first[i] ... own_first[i + 1] */

    /* Gradients: an item is a lane's sum for a key. */
    int64_t item_count;
    tdm__sparse_block items;     /* uint32_t [item_count]: numbers of keys */
    tdm__sparse_block gradients; /* float [item_count, row_width] */
    tdm__sparse_block newest; /* uint32_t [key_count]: the newest item of a key; UINT32_MAX: none */

    /* Messages. */
    int64_t *sent, *received, *counts; /* [size]; counts has 4 for each rank */
    int *order;                        /* [size]: ranks in the order of their lanes */
    tdm__sparse_block out_keys, out_rows, in_keys, in_rows;
    uint32_t exchange_count;

    /* A save. */
    tdm_table_order *sorted; /* NULL: none */
    uint64_t *shares;        /* [size, 2]: rows and pending keys of each rank */
    uint64_t total_rows, total_pending;
};

typedef struct tdm__sparse_entry {
    uint32_t key; /* number of the key in the batch */
    uint32_t field;
    float value;
} tdm__sparse_entry;

/* ---- features.c ------------------------------------------------------------------------------- */

tdm__sparse_features tdm__sparse_features_of(const tdm_job *job);
tdm_table_options tdm__sparse_table_options(const tdm_job *job, int rank_count);

/* An entry of a data set as an entry of the table; false: a number, *value, of the input instead, at *field. */
static inline bool tdm__sparse_feature_is_key(const tdm__sparse_features *f, uint64_t key)
{
    return f->columns.number_count == 0 || (int64_t)(key >> 32) >= f->columns.first_field;
}
/* The key in the table. */
static inline uint64_t tdm__sparse_feature_key(const tdm__sparse_features *f, uint64_t key)
{
    return tdm_table_fold(key, UINT64_C(1) << f->hash_bits);
}
/* The value of an entry, where integers of Criteo become log(1 + n), with the sign of n. */
float tdm__sparse_feature_value(const tdm__sparse_features *f, uint64_t key, float value);

/* The rank that owns a key. */
static inline int tdm__sparse_key_owner(const tdm__sparse_features *f, uint64_t key, int size)
{
    return (int)(((unsigned __int128)key * (unsigned)size) >> f->hash_bits);
}
/* The first key of a rank. */
static inline uint64_t tdm__sparse_first_key(const tdm__sparse_features *f, int rank, int size)
{
    unsigned __int128 space = (unsigned __int128)1 << f->hash_bits;
    return (uint64_t)((space * (unsigned)rank + (unsigned)size - 1) / (unsigned)size);
}

/* Adds an entry of a sample to its input x [columns], and the gradient of a row from that of the input. */
void tdm__sparse_entry_add(const tdm_job_columns *c, int64_t field, float value, const float *row,
                           float *x);
void tdm__sparse_entry_gradient(const tdm_job_columns *c, int64_t field, float value,
                                const float *row, const float *d_x, float *d_row);

/* ---- exchange.c ------------------------------------------------------------------------------- */

/* Room for `bytes`; the content is lost. */
tdm_status tdm__sparse_block_reserve(tdm__sparse_block *block, size_t bytes, tdm_error *err);
void tdm__sparse_block_release(tdm__sparse_block *block);

/* Sends out[p] bytes of `out` to each rank p, in order of p, and receives in[p] bytes from each, in this order into `in`.
 * Counts are in units of `unit` bytes. Collective. */
tdm_status tdm__sparse_exchange(tdm_sparse *s, const void *out, const int64_t *out_counts, void *in,
                                const int64_t *in_counts, size_t unit, tdm_error *err);

#endif
