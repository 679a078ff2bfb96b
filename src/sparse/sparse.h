/*
 * sparse.h: the sparse table of a model, divided among the ranks of a world.
 *
 * Keys of features are hashed, and each rank owns a range of the hashed keys: rank i of n those from i/n to (i + 1)/n of
 * the space of keys. It stores their rows in a separate table (table/table.h), in private memory. So the ranks of any
 * number of hosts have one table together, in equal parts, and all of them in order are the table in the order of its
 * keys.
 *
 * A step: tdm_sparse_pull gets the rows of all features of this rank's samples from their owners. tdm_sparse_fill
 * computes the input of the model from them (tdm_job_columns in job/job.h), lane by lane, and tdm_sparse_take the
 * gradients of rows from the gradient of that input. tdm_sparse_push sends them to the owners, which update their rows.
 *
 * Bits. The gradient of a row is summed over the entries of a lane in the order of its samples, and then over the lanes in
 * their order. So no bit depends on the number of ranks, on the placement of lanes, or on threads.
 *
 * Threads: one thread at a time, except tdm_sparse_read. This module has no public header.
 */
#ifndef TANDEM_SPARSE_SPARSE_H
#define TANDEM_SPARSE_SPARSE_H

#include <tandem/comm.h>
#include <tandem/data.h>
#include <tandem/job.h>

typedef struct tdm_sparse tdm_sparse;

/* An empty table. `comm` NULL: a single process. Not collective. */
tdm_status tdm_sparse_create(const tdm_job *job, tdm_comm *comm, tdm_sparse **out, tdm_error *err);
void tdm_sparse_destroy(tdm_sparse *sparse); /* before the comm is closed; NULL is allowed */
/* The number of threads for pulls and pushes; 1 at the beginning. */
void tdm_sparse_set_threads(tdm_sparse *sparse, int thread_count);

/* ---- steps ------------------------------------------------------------------------------------ */

/* Gets the rows of the features of these samples, which are rows [first_row, first_row + count) of the batch. Collective;
 * a rank may have no sample. */
tdm_status tdm_sparse_pull(tdm_sparse *sparse, const tdm_dataset *dataset, const int64_t *indices,
                           int64_t count, int64_t first_row, tdm_error *err);
/* Writes the input for rows [first, first + count) of the batch, which the last pull contained, and their classes (NULL:
 * not wanted). Allocates nothing. */
void tdm_sparse_fill(tdm_sparse *sparse, int64_t first, int64_t count, float *x, int32_t *classes);
/* Adds the gradients of a lane with rows [first, first + count), from that of its input. Lanes of a rank come in their
 * order. False: a sum is not in the safe range of tensor/kernel.h; then nothing should be pushed. */
bool tdm_sparse_take(tdm_sparse *sparse, int64_t first, int64_t count, const float *d_x);
/* Updates all rows that lanes of any rank have taken gradients for since the pull. `lr_factor` is that of the schedule.
 * TDM_ERR_RANGE on all ranks if the table of one of them is full; the rows of others may be updated then. Collective. */
tdm_status tdm_sparse_push(tdm_sparse *sparse, double lr_factor, uint64_t step, tdm_error *err);

/* For a single process: the input of any samples, from the rows as they are. Allocates nothing; many threads may
 * call it. */
void tdm_sparse_read(const tdm_sparse *sparse, const tdm_dataset *dataset, const int64_t *indices,
                     int64_t count, float *x, int32_t *classes);

/* Over all ranks, at the last pull, push or save. Local. */
typedef struct tdm_sparse_info {
    uint64_t row_count; /* of this rank, like the next two */
    uint64_t bytes;
    uint64_t scratch_bytes;
} tdm_sparse_info;
tdm_sparse_info tdm_sparse_info_of(const tdm_sparse *sparse);

/* ---- checkpoints ------------------------------------------------------------------------------ */

/* A tensor of the table. The names are sorted: "table.keys", "table.params", ... */
enum { TDM_SPARSE_MAX_PARTS = 7 };
typedef struct tdm_sparse_part {
    const char *name;
    tdm_tensor
        view; /* without data; the first dimension is the number of rows, or of pending keys */
} tdm_sparse_part;
/* The tensors that a job's table has, with the number of rows of the last tdm_sparse_sort; returns their number. */
int tdm_sparse_parts_of(const tdm_sparse *sparse, tdm_sparse_part out[TDM_SPARSE_MAX_PARTS]);

/* Sorts the rows, and counts those of all ranks. Collective. Until tdm_sparse_unsort the table must not change. */
tdm_status tdm_sparse_sort(tdm_sparse *sparse, tdm_error *err);
/* Sends a tensor to rank 0 in the order of its bytes: there `put` is called with the next ones. Collective. */
typedef void (*tdm_sparse_put_fn)(void *user, const void *bytes, size_t count);
tdm_status tdm_sparse_send(tdm_sparse *sparse, int part, tdm_sparse_put_fn put, void *user,
                           tdm_error *err);
void tdm_sparse_unsort(tdm_sparse *sparse);

/* Fills an empty table from tensors that rank 0 has, in the order of tdm_sparse_parts_of; other ranks pass NULL.
 * TDM_ERR_FORMAT if they are not what a table can be. Collective. */
tdm_status tdm_sparse_load(tdm_sparse *sparse, const tdm_tensor *parts, tdm_error *err);

/* ---- predictions ------------------------------------------------------------------------------ */

/* The number of different features of a data set, after hashing: an estimate whose standard error is 0.4 %. */
uint64_t tdm_sparse_count_keys(const tdm_job *job, const tdm_dataset *dataset);
typedef struct tdm_sparse_memory {
    uint64_t row_count;   /* expected, over all ranks */
    uint64_t table_bytes; /* of each rank, like the next one */
    uint64_t
        work_bytes; /* rows and gradients of a batch; the order of the rows while they are saved */
} tdm_sparse_memory;
/* The memory of each of `rank_count` ranks when all samples have been trained. */
tdm_sparse_memory tdm_sparse_predict(const tdm_job *job, const tdm_dataset *dataset,
                                     int rank_count);

#endif
