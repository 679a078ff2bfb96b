/*
 * sparse.c: the features of a batch: the rows that they need, the input of the model, and the gradients of rows.
 *
 * Different keys of a batch are numbered. With several ranks the numbers are in the order of the owners, so that the
 * keys of an owner are one range: what is sent to it and received from it needs no further index.
 */
#include "sparse/sparse.h"
#include "base/base.h"
#include "comm/comm.h"
#include "sparse/internal.h"
#include "tensor/kernel.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBERS_OF_A_RANK = 2 }; /* in an exchange of counts */
#define NO_ITEM UINT32_MAX

/* ---- creation ----------------------------------------------------------------------------------- */

static tdm_status sparse_prepare(tdm_sparse *s, const tdm_job *job, tdm_error *err)
{
    tdm_table_options options = tdm__sparse_table_options(job, s->size);
    size_t size = (size_t)s->size;
    s->own_first = calloc(size + 1, sizeof(*s->own_first));
    s->sent = calloc(size, sizeof(*s->sent));
    s->received = calloc(size, sizeof(*s->received));
    s->counts = calloc(2 * NUMBERS_OF_A_RANK * size, sizeof(*s->counts));
    s->order = calloc(size, sizeof(*s->order));
    s->shares = calloc(2 * size, sizeof(*s->shares));
    if (!s->own_first || !s->sent || !s->received || !s->counts || !s->order || !s->shares)
        return tdm_fail_oom(err, "for a sparse table");
    return tdm_table_create(&options, &s->table, err);
}

tdm_status tdm_sparse_create(const tdm_job *job, tdm_comm *comm, tdm_sparse **out, tdm_error *err)
{
    tdm_sparse *s = calloc(1, sizeof(*s));
    if (!s) return tdm_fail_oom(err, "for a sparse table");
    s->features = tdm__sparse_features_of(job);
    s->size = comm ? tdm_comm_size(comm) : 1;
    s->rank = comm ? tdm_comm_rank(comm) : 0;
    s->comm = s->size > 1 ? comm : NULL;
    s->thread_count = 1;
    s->lr = job->table.lr;
    s->optim = job->table.optim;
    tdm_status status = sparse_prepare(s, job, err);
    if (status != TDM_OK) {
        tdm_sparse_destroy(s);
        return status;
    }
    *out = s;
    return TDM_OK;
}

void tdm_sparse_destroy(tdm_sparse *sparse)
{
    if (!sparse) return;
    tdm__sparse_block *blocks[] = {
        &sparse->offsets,  &sparse->entries,  &sparse->numbers,   &sparse->classes,
        &sparse->keys,     &sparse->rows,     &sparse->slots,     &sparse->found,
        &sparse->places,   &sparse->items,    &sparse->gradients, &sparse->newest,
        &sparse->out_keys, &sparse->out_rows, &sparse->in_keys,   &sparse->in_rows};
    for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++)
        tdm__sparse_block_release(blocks[i]);
    tdm_sparse_unsort(sparse);
    tdm_table_destroy(sparse->table);
    free(sparse->own_first);
    free(sparse->sent);
    free(sparse->received);
    free(sparse->counts);
    free(sparse->order);
    free(sparse->shares);
    free(sparse);
}

void tdm_sparse_set_threads(tdm_sparse *sparse, int thread_count)
{
    sparse->thread_count = thread_count;
}

tdm_sparse_info tdm_sparse_info_of(const tdm_sparse *sparse)
{
    const tdm_sparse *s = sparse;
    tdm_table_stats stats = tdm_table_stats_of(s->table);
    const tdm__sparse_block *blocks[] = {&s->offsets,  &s->entries,  &s->numbers,   &s->classes,
                                         &s->keys,     &s->rows,     &s->slots,     &s->found,
                                         &s->places,   &s->items,    &s->gradients, &s->newest,
                                         &s->out_keys, &s->out_rows, &s->in_keys,   &s->in_rows};
    tdm_sparse_info info = {.row_count = stats.row_count, .bytes = stats.bytes};
    for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++)
        info.scratch_bytes += blocks[i]->bytes;
    return info;
}

/* ---- the features of a batch -------------------------------------------------------------------- */

static tdm_status batch_reserve(tdm_sparse *s, const tdm_dataset *dataset, const int64_t *indices,
                                tdm_error *err)
{
    const uint64_t *keys;
    const float *values;
    int64_t entries = 0, slots = 16;
    for (int64_t i = 0; i < s->row_count; i++)
        entries += tdm_dataset_entries(dataset, indices[i], &keys, &values);
    if (entries >= INT64_C(1) << 30)
        return tdm_fail(err, TDM_ERR_RANGE,
                        "a batch of %lld samples has %lld features, more than are possible; lower "
                        "train.batch",
                        (long long)s->row_count, (long long)entries);
    while (slots < 2 * entries) slots *= 2;
    size_t rows = (size_t)s->row_count, count = (size_t)entries;
    size_t width = (size_t)s->features.columns.row_width;
    TDM_TRY(tdm__sparse_block_reserve(&s->offsets, (rows + 1) * sizeof(int64_t), err));
    TDM_TRY(tdm__sparse_block_reserve(&s->entries, count * sizeof(tdm__sparse_entry), err));
    TDM_TRY(tdm__sparse_block_reserve(
        &s->numbers, rows * (size_t)s->features.columns.number_count * sizeof(float), err));
    TDM_TRY(tdm__sparse_block_reserve(&s->classes, rows * sizeof(int32_t), err));
    TDM_TRY(tdm__sparse_block_reserve(&s->slots, (size_t)slots * sizeof(uint32_t), err));
    TDM_TRY(tdm__sparse_block_reserve(&s->found, count * sizeof(uint64_t), err));
    TDM_TRY(tdm__sparse_block_reserve(&s->places, count * sizeof(uint32_t), err));
    TDM_TRY(tdm__sparse_block_reserve(&s->keys, count * sizeof(uint64_t), err));
    TDM_TRY(tdm__sparse_block_reserve(&s->newest, count * sizeof(uint32_t), err));
    TDM_TRY(tdm__sparse_block_reserve(&s->items, count * sizeof(uint32_t), err));
    TDM_TRY(tdm__sparse_block_reserve(&s->gradients, count * width * sizeof(float), err));
    memset(s->slots.data, 0, (size_t)slots * sizeof(uint32_t));
    s->entry_count = entries;
    s->slot_count = (uint64_t)slots;
    return TDM_OK;
}

/* The number of a key, in order of occurrence. */
static uint32_t batch_find_key(tdm_sparse *s, uint64_t key)
{
    uint32_t *slots = s->slots.data;
    uint64_t *found = s->found.data, slot = tdm_mix64(key) & (s->slot_count - 1);
    while (slots[slot] != 0 && found[slots[slot] - 1] != key)
        slot = (slot + 1) & (s->slot_count - 1);
    if (slots[slot] == 0) {
        found[s->key_count++] = key;
        slots[slot] = (uint32_t)s->key_count;
    }
    return slots[slot] - 1;
}

/* Lists the entries of all samples. */
static void batch_list(tdm_sparse *s, const tdm_dataset *dataset, const int64_t *indices)
{
    const tdm__sparse_features *f = &s->features;
    int64_t *offsets = s->offsets.data, number_count = f->columns.number_count, used = 0;
    tdm__sparse_entry *entries = s->entries.data;
    float *numbers = s->numbers.data;
    int32_t *classes = s->classes.data;
    s->key_count = 0;
    for (int64_t i = 0; i < s->row_count; i++) {
        const uint64_t *keys;
        const float *values;
        int64_t count = tdm_dataset_entries(dataset, indices[i], &keys, &values);
        offsets[i] = used;
        classes[i] = tdm_dataset_class(dataset, indices[i]);
        for (int64_t k = 0; k < number_count; k++) numbers[i * number_count + k] = 0;
        for (int64_t e = 0; e < count; e++) {
            uint32_t field = (uint32_t)(keys[e] >> 32);
            float value = tdm__sparse_feature_value(f, keys[e], values[e]);
            if (tdm__sparse_feature_is_key(f, keys[e]))
                entries[used++] = (tdm__sparse_entry){
                    .key = batch_find_key(s, tdm__sparse_feature_key(f, keys[e])),
                    .field = field,
                    .value = value};
            else
                numbers[i * number_count + field - 1] = value;
        }
    }
    offsets[s->row_count] = used;
    s->entry_count = used;
}

/* Numbers the keys in the order of their owners. */
static void batch_order_keys(tdm_sparse *s)
{
    const uint64_t *found = s->found.data;
    uint64_t *keys = s->keys.data;
    uint32_t *places = s->places.data, *newest = s->newest.data;
    tdm__sparse_entry *entries = s->entries.data;
    memset(s->own_first, 0, ((size_t)s->size + 1) * sizeof(*s->own_first));
    for (int64_t i = 0; i < s->key_count; i++)
        s->own_first[tdm__sparse_key_owner(&s->features, found[i], s->size) + 1]++;
    for (int p = 0; p < s->size; p++) {
        s->own_first[p + 1] += s->own_first[p];
        s->sent[p] = s->own_first[p]; /* the next free place */
    }
    for (int64_t i = 0; i < s->key_count; i++) {
        places[i] = (uint32_t)s->sent[tdm__sparse_key_owner(&s->features, found[i], s->size)]++;
        keys[places[i]] = found[i];
        newest[i] = NO_ITEM;
    }
    for (int64_t i = 0; i < s->entry_count; i++) entries[i].key = places[entries[i].key];
    for (int p = 0; p < s->size; p++) s->sent[p] = s->own_first[p + 1] - s->own_first[p];
}

/* Tells each rank how many keys it gets, and the first row of this rank's lanes. Fills `received`, and `order` with the
 * ranks in the order of their lanes. */
static tdm_status counts_exchange(tdm_sparse *s, tdm_error *err)
{
    int64_t *out = s->counts, *in = s->counts + (ptrdiff_t)NUMBERS_OF_A_RANK * s->size;
    for (int p = 0; p < s->size; p++) {
        out[NUMBERS_OF_A_RANK * p] = s->sent[p];
        out[NUMBERS_OF_A_RANK * p + 1] = s->first_row;
    }
    TDM_TRY(tdm_group_all_to_all(tdm_comm_world(s->comm), out, in,
                                 (size_t)NUMBERS_OF_A_RANK * (size_t)s->size, TDM_DTYPE_I64, err));
    for (int p = 0; p < s->size; p++) {
        s->received[p] = in[NUMBERS_OF_A_RANK * p];
        int at = p;
        for (;
             at > 0 && in[NUMBERS_OF_A_RANK * s->order[at - 1] + 1] > in[NUMBERS_OF_A_RANK * p + 1];
             at--)
            s->order[at] = s->order[at - 1];
        s->order[at] = p;
    }
    return TDM_OK;
}

static int64_t sum_of(const int64_t *counts, int size)
{
    int64_t sum = 0;
    for (int p = 0; p < size; p++) sum += counts[p];
    return sum;
}

/* Gets the rows of all keys of the batch from their owners. */
static tdm_status rows_fetch(tdm_sparse *s, tdm_error *err)
{
    size_t row_bytes = (size_t)s->features.columns.row_width * sizeof(float);
    TDM_TRY(counts_exchange(s, err));
    int64_t wanted = sum_of(s->received, s->size);
    tdm_status status = tdm__sparse_block_reserve(&s->in_keys, (size_t)wanted * sizeof(uint64_t),
                                                  err);
    if (status == TDM_OK)
        status = tdm__sparse_block_reserve(&s->out_rows, (size_t)wanted * row_bytes, err);
    TDM_TRY(tdm_comm_agree(s->comm, status, NULL, err));
    TDM_TRY(tdm__sparse_exchange(s, s->keys.data, s->sent, s->in_keys.data, s->received,
                                 sizeof(uint64_t), err));
    tdm_kernel_mode before = tdm_kernel_enter(s->thread_count);
    tdm_table_pull(s->table, s->in_keys.data, wanted, s->out_rows.data);
    tdm_kernel_leave(&before);
    return tdm__sparse_exchange(s, s->out_rows.data, s->received, s->rows.data, s->sent, row_bytes,
                                err);
}

/* The part without communication. */
static tdm_status batch_begin(tdm_sparse *s, const tdm_dataset *dataset, const int64_t *indices,
                              tdm_error *err)
{
    size_t row_bytes = (size_t)s->features.columns.row_width * sizeof(float);
    TDM_TRY(batch_reserve(s, dataset, indices, err));
    batch_list(s, dataset, indices);
    batch_order_keys(s);
    return tdm__sparse_block_reserve(&s->rows, (size_t)s->key_count * row_bytes, err);
}

tdm_status tdm_sparse_pull(tdm_sparse *sparse, const tdm_dataset *dataset, const int64_t *indices,
                           int64_t count, int64_t first_row, tdm_error *err)
{
    tdm_sparse *s = sparse;
    assert(!s->sorted);
    s->first_row = first_row;
    s->row_count = count;
    s->item_count = 0;
    tdm_status status = batch_begin(s, dataset, indices, err);
    TDM_TRY(tdm_comm_agree(s->comm, status, NULL, err));
    if (s->comm) return rows_fetch(s, err);
    tdm_kernel_mode before = tdm_kernel_enter(s->thread_count);
    tdm_table_pull(s->table, s->keys.data, s->key_count, s->rows.data);
    tdm_kernel_leave(&before);
    return TDM_OK;
}

/* ---- the input of the model --------------------------------------------------------------------- */

typedef struct fill_work {
    const tdm_sparse *sparse;
    int64_t first; /* in the batch of this rank */
    float *x;
    int32_t *classes;
} fill_work;

static void fill_rows(const void *args, int64_t begin, int64_t end)
{
    const fill_work *work = args;
    const tdm_sparse *s = work->sparse;
    const tdm_job_columns *c = &s->features.columns;
    const int64_t *offsets = s->offsets.data;
    const tdm__sparse_entry *entries = s->entries.data;
    const float *rows = s->rows.data, *numbers = s->numbers.data;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = work->first + i;
        float *x = work->x + i * c->columns;
        memset(x, 0, (size_t)c->columns * sizeof(*x));
        if (c->numbers >= 0)
            memcpy(x + c->numbers, numbers + row * c->number_count,
                   (size_t)c->number_count * sizeof(*x));
        for (int64_t e = offsets[row]; e < offsets[row + 1]; e++)
            tdm__sparse_entry_add(c, entries[e].field, entries[e].value,
                                  rows + (int64_t)entries[e].key * c->row_width, x);
        if (work->classes) work->classes[i] = ((const int32_t *)s->classes.data)[row];
    }
}

void tdm_sparse_fill(tdm_sparse *sparse, int64_t first, int64_t count, float *x, int32_t *classes)
{
    const tdm_job_columns *c = &sparse->features.columns;
    int64_t entries = sparse->row_count > 0 ? sparse->entry_count / sparse->row_count + 1 : 1;
    assert(first >= sparse->first_row && first + count <= sparse->first_row + sparse->row_count);
    uint64_t control = tdm_kernel_flush_enter();
    tdm_kernel_spread(count, entries * c->row_width, fill_rows,
                      &(fill_work){sparse, first - sparse->first_row, x, classes});
    tdm_kernel_flush_leave(control);
}

/* ---- gradients ---------------------------------------------------------------------------------- */

bool tdm_sparse_take(tdm_sparse *sparse, int64_t first, int64_t count, const float *d_x)
{
    tdm_sparse *s = sparse;
    const tdm_job_columns *c = &s->features.columns;
    const int64_t *offsets = s->offsets.data;
    const tdm__sparse_entry *entries = s->entries.data;
    const float *rows = s->rows.data;
    float *gradients = s->gradients.data;
    uint32_t *newest = s->newest.data, *items = s->items.data;
    int64_t width = c->row_width, lane_begin = s->item_count;
    uint64_t control = tdm_kernel_flush_enter();
    for (int64_t i = 0; i < count; i++, d_x += c->columns) {
        int64_t row = first - s->first_row + i;
        for (int64_t e = offsets[row]; e < offsets[row + 1]; e++) {
            uint32_t key = entries[e].key, item = newest[key];
            if (item == NO_ITEM || item < lane_begin) { /* its first entry in this lane */
                item = newest[key] = (uint32_t)s->item_count;
                items[s->item_count] = key;
                memset(gradients + s->item_count++ * width, 0, (size_t)width * sizeof(float));
            }
            tdm__sparse_entry_gradient(c, entries[e].field, entries[e].value,
                                       rows + (int64_t)key * width, d_x,
                                       gradients + (int64_t)item * width);
        }
    }
    bool in_safe_range = tdm_kernel_in_safe_range(gradients + lane_begin * width,
                                                  (size_t)((s->item_count - lane_begin) * width));
    tdm_kernel_flush_leave(control);
    return in_safe_range;
}

/* Sorts the items by the owner of their keys; those of an owner keep their order. */
static tdm_status items_pack(tdm_sparse *s, tdm_error *err)
{
    const uint32_t *items = s->items.data;
    const uint64_t *keys = s->keys.data;
    size_t row_bytes = (size_t)s->features.columns.row_width * sizeof(float);
    TDM_TRY(tdm__sparse_block_reserve(&s->out_keys, (size_t)s->item_count * sizeof(uint64_t), err));
    TDM_TRY(tdm__sparse_block_reserve(&s->out_rows, (size_t)s->item_count * row_bytes, err));
    memset(s->sent, 0, (size_t)s->size * sizeof(*s->sent));
    for (int64_t i = 0; i < s->item_count; i++)
        s->sent[tdm__sparse_key_owner(&s->features, keys[items[i]], s->size)]++;
    int64_t begin = 0;
    for (int p = 0; p < s->size; p++) { /* received: the next free place */
        s->received[p] = begin;
        begin += s->sent[p];
    }
    uint64_t *out_keys = s->out_keys.data;
    for (int64_t i = 0; i < s->item_count; i++) {
        uint64_t key = keys[items[i]];
        int64_t at = s->received[tdm__sparse_key_owner(&s->features, key, s->size)]++;
        out_keys[at] = key;
        memcpy((char *)s->out_rows.data + (size_t)at * row_bytes,
               (const char *)s->gradients.data + (size_t)i * row_bytes, row_bytes);
    }
    return TDM_OK;
}

/* Sorts what was received, which is in the order of ranks, by the lanes of the senders. */
static void items_order(const tdm_sparse *s, uint64_t *keys, float *rows)
{
    const uint64_t *in_keys = s->in_keys.data;
    const float *in_rows = s->in_rows.data;
    int64_t width = s->features.columns.row_width, used = 0;
    for (int i = 0; i < s->size; i++) {
        int p = s->order[i];
        int64_t from = sum_of(s->received, p), count = s->received[p];
        memcpy(keys + used, in_keys + from, (size_t)count * sizeof(*keys));
        memcpy(rows + used * width, in_rows + from * width,
               (size_t)(count * width) * sizeof(*rows));
        used += count;
    }
}

static bool is_in_order(const tdm_sparse *s)
{
    for (int i = 0; i < s->size; i++)
        if (s->order[i] != i) return false;
    return true;
}

/* Sends all items to their owners; *keys and *rows are those that this rank got, in the order of lanes. */
static tdm_status items_exchange(tdm_sparse *s, const uint64_t **keys, const float **rows,
                                 int64_t *count, tdm_error *err)
{
    size_t row_bytes = (size_t)s->features.columns.row_width * sizeof(float);
    TDM_TRY(tdm_comm_agree(s->comm, items_pack(s, err), NULL, err));
    TDM_TRY(counts_exchange(s, err));
    *count = sum_of(s->received, s->size);
    tdm_status status = tdm__sparse_block_reserve(&s->in_keys, (size_t)*count * sizeof(uint64_t),
                                                  err);
    if (status == TDM_OK)
        status = tdm__sparse_block_reserve(&s->in_rows, (size_t)*count * row_bytes, err);
    TDM_TRY(tdm_comm_agree(s->comm, status, NULL, err));
    TDM_TRY(tdm__sparse_exchange(s, s->out_keys.data, s->sent, s->in_keys.data, s->received,
                                 sizeof(uint64_t), err));
    TDM_TRY(tdm__sparse_exchange(s, s->out_rows.data, s->sent, s->in_rows.data, s->received,
                                 row_bytes, err));
    *keys = s->in_keys.data;
    *rows = s->in_rows.data;
    if (is_in_order(s)) return TDM_OK;
    status = tdm__sparse_block_reserve(&s->out_keys, (size_t)*count * sizeof(uint64_t), err);
    if (status == TDM_OK)
        status = tdm__sparse_block_reserve(&s->out_rows, (size_t)*count * row_bytes, err);
    if (status != TDM_OK) return status; /* the push reports it to all ranks */
    items_order(s, s->out_keys.data, s->out_rows.data);
    *keys = s->out_keys.data;
    *rows = s->out_rows.data;
    return TDM_OK;
}

/* The items of a single process: keys in the order of items. */
static tdm_status items_own(tdm_sparse *s, const uint64_t **keys, const float **rows,
                            int64_t *count, tdm_error *err)
{
    const uint32_t *items = s->items.data;
    TDM_TRY(tdm__sparse_block_reserve(&s->out_keys, (size_t)s->item_count * sizeof(uint64_t), err));
    uint64_t *out = s->out_keys.data;
    for (int64_t i = 0; i < s->item_count; i++) out[i] = ((uint64_t *)s->keys.data)[items[i]];
    *keys = out;
    *rows = s->gradients.data;
    *count = s->item_count;
    return TDM_OK;
}

tdm_status tdm_sparse_push(tdm_sparse *sparse, double lr_factor, uint64_t step, tdm_error *err)
{
    tdm_sparse *s = sparse;
    const uint64_t *keys = NULL;
    const float *rows = NULL;
    int64_t count = 0;
    assert(!s->sorted);
    tdm_status status = s->comm ? items_exchange(s, &keys, &rows, &count, err)
                                : items_own(s, &keys, &rows, &count, err);
    if (status == TDM_OK) {
        double lr = s->optim == TDM_JOB_TABLE_FTRL ? s->lr : s->lr * lr_factor;
        tdm_table_step settings = {.lr = lr,
                                   .step = step < UINT32_MAX ? (uint32_t)step : UINT32_MAX};
        tdm_kernel_mode before = tdm_kernel_enter(s->thread_count);
        status = tdm_table_push(s->table, &settings, keys, rows, count, err);
        tdm_kernel_leave(&before);
    }
    s->item_count = 0;
    return tdm_comm_agree(s->comm, status, NULL, err);
}
