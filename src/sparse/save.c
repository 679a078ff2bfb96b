/*
 * save.c: the table of all ranks as tensors of a checkpoint, and back.
 *
 * The tensors are in the order of keys. As each rank owns a range of keys, a tensor is that of rank 0, then that of rank
 * 1, and so on: it depends neither on the number of ranks nor on the order in which rows were created. Rows pass through
 * windows, so rank 0 needs memory for one of them only.
 */
#include "base/base.h"
#include "comm/comm.h"
#include "sparse/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW_BYTES = 1 << 20, MIN_WINDOW_ROWS = 16 };

typedef enum part_kind {
    PART_KEYS,
    PART_LAST_STEPS,
    PART_PARAMS,
    PART_PENDING_COUNTS,
    PART_PENDING_KEYS,
    PART_STATES,
    PART_UPDATES,
    PART_KIND_COUNT
} part_kind;
_Static_assert((int)PART_KIND_COUNT == (int)TDM_SPARSE_MAX_PARTS, "each kind is a part");

/* Sorted by name. */
static const struct {
    const char *name;
    tdm_dtype dtype;
} part_rows[PART_KIND_COUNT] = {
    [PART_KEYS] = {"table.keys", TDM_DTYPE_U64},
    [PART_LAST_STEPS] = {"table.last_steps", TDM_DTYPE_U32},
    [PART_PARAMS] = {"table.params", TDM_DTYPE_F32},
    [PART_PENDING_COUNTS] = {"table.pending_counts", TDM_DTYPE_U32},
    [PART_PENDING_KEYS] = {"table.pending_keys", TDM_DTYPE_U64},
    [PART_STATES] = {"table.states", TDM_DTYPE_F32},
    [PART_UPDATES] = {"table.updates", TDM_DTYPE_U32},
};

static bool part_exists(const tdm_sparse *s, int kind)
{
    const tdm_table_options *o = tdm_table_options_of(s->table);
    switch (kind) {
    case PART_STATES: return tdm_table_state_count(o->optim) > 0;
    case PART_LAST_STEPS:
    case PART_UPDATES: return o->keep_use || o->optim == TDM_TABLE_OPTIM_ADAM;
    case PART_PENDING_COUNTS:
    case PART_PENDING_KEYS: return o->admission > 1;
    default: return true;
    }
}

static bool part_is_pending(int kind)
{
    return kind == PART_PENDING_COUNTS || kind == PART_PENDING_KEYS;
}

static tdm_shape part_shape(const tdm_sparse *s, int kind, uint64_t rows)
{
    const tdm_table_options *o = tdm_table_options_of(s->table);
    if (kind == PART_PARAMS) return tdm_shape_2((int64_t)rows, o->width);
    if (kind == PART_STATES)
        return tdm_shape_3((int64_t)rows, tdm_table_state_count(o->optim), o->width);
    return tdm_shape_1((int64_t)rows);
}

/* The kind of a part of this table. */
static int part_kind_of(const tdm_sparse *s, int part)
{
    int kind = 0;
    for (int at = -1; kind < PART_KIND_COUNT; kind++) {
        if (part_exists(s, kind)) at++;
        if (at == part) break;
    }
    assert(kind < PART_KIND_COUNT);
    return kind;
}

int tdm_sparse_parts_of(const tdm_sparse *sparse, tdm_sparse_part out[TDM_SPARSE_MAX_PARTS])
{
    int count = 0;
    for (int kind = 0; kind < PART_KIND_COUNT; kind++) {
        if (!part_exists(sparse, kind)) continue;
        uint64_t rows = part_is_pending(kind) ? sparse->total_pending : sparse->total_rows;
        out[count++] = (tdm_sparse_part){
            part_rows[kind].name,
            {.dtype = part_rows[kind].dtype, .shape = part_shape(sparse, kind, rows)}};
    }
    return count;
}

/* ---- saving ------------------------------------------------------------------------------------- */

tdm_status tdm_sparse_sort(tdm_sparse *sparse, tdm_error *err)
{
    tdm_sparse *s = sparse;
    assert(!s->sorted);
    tdm_table_stats stats = tdm_table_stats_of(s->table);
    tdm_status status = tdm_table_order_create(s->table, &s->sorted, err);
    TDM_TRY(tdm_comm_agree(s->comm, status, NULL, err));
    s->shares[2 * s->rank] = stats.row_count;
    s->shares[2 * s->rank + 1] = stats.pending_count;
    if (s->comm)
        TDM_TRY(tdm_group_all_gather(tdm_comm_world(s->comm), NULL, s->shares, 2 * (size_t)s->size,
                                     TDM_DTYPE_I64, err));
    s->total_rows = s->total_pending = 0;
    for (int p = 0; p < s->size; p++) {
        s->total_rows += s->shares[2 * p];
        s->total_pending += s->shares[2 * p + 1];
    }
    return TDM_OK;
}

void tdm_sparse_unsort(tdm_sparse *sparse)
{
    tdm_table_order_destroy(sparse->sorted);
    sparse->sorted = NULL;
}

static void part_export(const tdm_sparse *s, int kind, uint64_t first, uint64_t count, void *out)
{
    tdm_table_rows rows = {0};
    switch (kind) {
    case PART_KEYS: rows.keys = out; break;
    case PART_PARAMS: rows.params = out; break;
    case PART_STATES: rows.states = out; break;
    case PART_UPDATES: rows.updates = out; break;
    case PART_LAST_STEPS: rows.last_steps = out; break;
    case PART_PENDING_KEYS: tdm_table_export_pending(s->sorted, first, count, out, NULL); return;
    default: tdm_table_export_pending(s->sorted, first, count, NULL, out); return;
    }
    tdm_table_export(s->sorted, first, count, &rows);
}

/* The bytes of a row of a part. */
static size_t part_row_bytes(const tdm_sparse *s, int kind)
{
    tdm_tensor one = {.dtype = part_rows[kind].dtype, .shape = part_shape(s, kind, 1)};
    return tdm_tensor_bytes(&one);
}

static uint64_t window_rows(size_t row_bytes)
{
    uint64_t rows = row_bytes > 0 ? WINDOW_BYTES / row_bytes : WINDOW_BYTES;
    return rows > MIN_WINDOW_ROWS ? rows : MIN_WINDOW_ROWS;
}

tdm_status tdm_sparse_send(tdm_sparse *sparse, int part, tdm_sparse_put_fn put, void *user,
                           tdm_error *err)
{
    tdm_sparse *s = sparse;
    int kind = part_kind_of(s, part);
    size_t row_bytes = part_row_bytes(s, kind);
    uint64_t window = window_rows(row_bytes);
    tdm_status status = tdm__sparse_block_reserve(&s->out_rows, (size_t)window * row_bytes, err);
    TDM_TRY(tdm_comm_agree(s->comm, status, NULL, err));
    tdm_group *group = s->comm ? tdm_comm_world(s->comm) : NULL;
    for (int p = 0; p < s->size; p++) {
        uint64_t rows = s->shares[2 * p + part_is_pending(kind)];
        for (uint64_t first = 0; first < rows && (p == s->rank || s->rank == 0); first += window) {
            uint64_t count = rows - first < window ? rows - first : window;
            size_t bytes = (size_t)count * row_bytes;
            if (p == s->rank) part_export(s, kind, first, count, s->out_rows.data);
            if (p == s->rank && s->rank != 0)
                TDM_TRY(tdm_group_send(group, 0, (uint32_t)part, s->out_rows.data, bytes, err));
            if (p != s->rank)
                TDM_TRY(tdm_group_recv(group, p, (uint32_t)part, s->out_rows.data, bytes, err));
            if (s->rank == 0) put(user, s->out_rows.data, bytes);
        }
    }
    return TDM_OK;
}

/* ---- loading ------------------------------------------------------------------------------------ */

typedef struct loading {
    const tdm_tensor *parts[PART_KIND_COUNT]; /* on rank 0 */
    uint64_t rows, pending;
    uint64_t *bounds; /* [2, size + 1]: the first row, and pending key, of each rank */
} loading;

/* The first position of a key that is at least `key`. */
static uint64_t keys_bound(const tdm_tensor *tensor, uint64_t count, uint64_t key)
{
    const uint64_t *keys = tensor->data;
    uint64_t low = 0, high = count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (keys[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static tdm_status keys_check(const tdm_sparse *s, const tdm_tensor *tensor, uint64_t count,
                             const char *name, tdm_error *err)
{
    const uint64_t *keys = tensor->data;
    for (uint64_t i = 0; i < count; i++)
        if (keys[i] >> s->features.hash_bits != 0 || (i > 0 && keys[i] <= keys[i - 1]))
            return tdm_fail(err, TDM_ERR_FORMAT,
                            "the checkpoint: tensor '%s': number %llu is not a key that follows "
                            "the one before it",
                            name, (unsigned long long)i);
    return TDM_OK;
}

/* Rank 0: checks the tensors, and finds the ranges of the ranks. */
static tdm_status loading_prepare(const tdm_sparse *s, const tdm_tensor *parts, loading *l,
                                  tdm_error *err)
{
    int count = 0;
    for (int kind = 0; kind < PART_KIND_COUNT; kind++)
        if (part_exists(s, kind)) l->parts[kind] = &parts[count++];
    const tdm_tensor *keys = l->parts[PART_KEYS], *pending = l->parts[PART_PENDING_KEYS];
    l->rows = keys->shape.rank == 1 ? (uint64_t)keys->shape.dim[0] : 0;
    l->pending = pending && pending->shape.rank == 1 ? (uint64_t)pending->shape.dim[0] : 0;
    for (int kind = 0; kind < PART_KIND_COUNT; kind++) {
        if (!l->parts[kind]) continue;
        char have[128], want[128];
        tdm_shape shape = part_shape(s, kind, part_is_pending(kind) ? l->pending : l->rows);
        if (l->parts[kind]->dtype == part_rows[kind].dtype &&
            tdm_shape_equal(&shape, &l->parts[kind]->shape))
            continue;
        return tdm_fail(err, TDM_ERR_JOB_MISMATCH,
                        "the checkpoint: tensor '%s' is %s %s, but this job needs %s %s",
                        part_rows[kind].name, tdm_dtype_name(l->parts[kind]->dtype),
                        tdm_shape_text(&l->parts[kind]->shape, have),
                        tdm_dtype_name(part_rows[kind].dtype), tdm_shape_text(&shape, want));
    }
    TDM_TRY(keys_check(s, keys, l->rows, "table.keys", err));
    if (pending) TDM_TRY(keys_check(s, pending, l->pending, "table.pending_keys", err));
    for (int p = 0; p <= s->size; p++) {
        uint64_t first = tdm__sparse_first_key(&s->features, p, s->size);
        l->bounds[p] = keys_bound(keys, l->rows, first);
        l->bounds[s->size + 1 + p] = pending ? keys_bound(pending, l->pending, first) : 0;
    }
    return TDM_OK;
}

/* The bytes of the row-wise parts of a window, one after the other, at addresses that are multiples of 64. */
static size_t window_place(const tdm_sparse *s, uint64_t rows, bool pending,
                           size_t at[PART_KIND_COUNT])
{
    size_t bytes = 0;
    for (int kind = 0; kind < PART_KIND_COUNT; kind++) {
        at[kind] = bytes;
        if (part_exists(s, kind) && part_is_pending(kind) == pending)
            bytes = tdm_align_up(bytes + (size_t)rows * part_row_bytes(s, kind), 64);
    }
    return bytes;
}

static void window_fill(const tdm_sparse *s, const loading *l, uint64_t first, uint64_t count,
                        bool pending, const size_t at[PART_KIND_COUNT], char *out)
{
    for (int kind = 0; kind < PART_KIND_COUNT; kind++) {
        if (!l->parts[kind] || part_is_pending(kind) != pending) continue;
        size_t row_bytes = part_row_bytes(s, kind);
        memcpy(out + at[kind], (const char *)l->parts[kind]->data + first * row_bytes,
               (size_t)count * row_bytes);
    }
}

static tdm_status window_import(tdm_sparse *s, uint64_t count, bool pending,
                                const size_t at[PART_KIND_COUNT], void *data, tdm_error *err)
{
    char *in = data;
    void *part[PART_KIND_COUNT];
    for (int kind = 0; kind < PART_KIND_COUNT; kind++)
        part[kind] = part_exists(s, kind) ? in + at[kind] : NULL;
    if (pending)
        return tdm_table_import_pending(s->table, part[PART_PENDING_KEYS],
                                        part[PART_PENDING_COUNTS], count, err);
    tdm_table_rows rows = {.keys = part[PART_KEYS],
                           .params = part[PART_PARAMS],
                           .states = part[PART_STATES],
                           .updates = part[PART_UPDATES],
                           .last_steps = part[PART_LAST_STEPS]};
    return tdm_table_import(s->table, &rows, count, err);
}

/* Moves the rows, or pending keys, of a rank from rank 0 to it. A rank whose import fails receives the rest as well; the
 * failure is agreed on at the end. */
static tdm_status loading_move(tdm_sparse *s, const loading *l, int to, bool pending,
                               uint64_t window, tdm_status *imported, tdm_error *err)
{
    const uint64_t *bounds = l->bounds + (pending ? s->size + 1 : 0);
    tdm_group *group = s->comm ? tdm_comm_world(s->comm) : NULL;
    size_t at[PART_KIND_COUNT];
    for (uint64_t first = bounds[to]; first < bounds[to + 1]; first += window) {
        uint64_t left = bounds[to + 1] - first, count = left < window ? left : window;
        size_t bytes = window_place(s, count, pending, at);
        if (s->rank == 0) window_fill(s, l, first, count, pending, at, s->out_rows.data);
        if (s->rank == 0 && to != 0)
            TDM_TRY(tdm_group_send(group, to, pending, s->out_rows.data, bytes, err));
        if (s->rank != 0) TDM_TRY(tdm_group_recv(group, 0, pending, s->out_rows.data, bytes, err));
        if (s->rank == to && *imported == TDM_OK)
            *imported = window_import(s, count, pending, at, s->out_rows.data, err);
    }
    return TDM_OK;
}

static tdm_status loading_run(tdm_sparse *s, const tdm_tensor *parts, loading *l, tdm_error *err)
{
    size_t at[PART_KIND_COUNT], bounds = 2 * ((size_t)s->size + 1);
    uint64_t window = window_rows(window_place(s, 1, false, at));
    size_t bytes = window_place(s, window, false, at), pending = window_place(s, window, true, at);
    tdm_status status = tdm__sparse_block_reserve(&s->out_rows, bytes > pending ? bytes : pending,
                                                  err);
    if (status == TDM_OK && s->rank == 0) status = loading_prepare(s, parts, l, err);
    TDM_TRY(tdm_comm_agree(s->comm, status, NULL, err));
    if (s->comm)
        TDM_TRY(
            tdm_group_broadcast(tdm_comm_world(s->comm), l->bounds, bounds, TDM_DTYPE_I64, 0, err));
    tdm_status imported = TDM_OK;
    for (int p = 0; p < s->size; p++) {
        if (p != s->rank && s->rank != 0) continue;
        TDM_TRY(loading_move(s, l, p, false, window, &imported, err));
        TDM_TRY(loading_move(s, l, p, true, window, &imported, err));
    }
    return tdm_comm_agree(s->comm, imported, NULL, err);
}

tdm_status tdm_sparse_load(tdm_sparse *sparse, const tdm_tensor *parts, tdm_error *err)
{
    loading l = {.bounds = calloc(2 * ((size_t)sparse->size + 1), sizeof(*l.bounds))};
    tdm_status status = l.bounds ? TDM_OK : tdm_fail_oom(err, "to load a sparse table");
    status = tdm_comm_agree(sparse->comm, status, NULL, err);
    if (status == TDM_OK && l.bounds) status = loading_run(sparse, parts, &l, err);
    free(l.bounds);
    return status;
}
