/*
 * push.c: updates rows by the gradients of a batch of keys.
 *
 * 1. The positions of the call are sorted by shard; within a shard they keep the order of the call.
 * 2. Each shard finds the different keys among its positions, and their rows; a key without a row gets one.
 * 3. Each shard sums the gradients of each key in the order of the call and updates the row.
 *
 * A shard is processed by one thread in each phase, and phases are separated, so no locks are needed and no bit
 * depends on threads. If the table is so full that the new rows of the call might exceed its limit, phase 2 is
 * divided: new rows are counted first, and created only if all of them fit.
 */
#include "table/internal.h"
#include "tensor/kernel.h"

#include <math.h>
#include <stdlib.h>

enum { KEY_COST = 64 }; /* of finding a row, in numbers of a kernel */

typedef struct push_shard {
    int64_t begin, count; /* positions in scratch.order */
    size_t unique_count;
    uint64_t new_rows;
    int64_t new_pending; /* negative if pending keys get rows */
    bool has_failed;
} push_shard;

typedef struct push_work {
    tdm_table *table;
    const tdm_table_step *step;
    const uint64_t *keys;
    const float *grads;
    tdm__table_rule rule;
    bool creates; /* in the phase that finds rows */
    push_shard shards[TDM__TABLE_SHARDS];
} push_work;

/* ---- scratch memory ----------------------------------------------------------------------------- */

static bool array_grow(void *array, size_t count, size_t size)
{
    void **pointer = array;
    void *block = aligned_alloc(TDM__TABLE_LINE_BYTES,
                                tdm_align_up(count * size, TDM__TABLE_LINE_BYTES));
    if (!block) return false;
    free(*pointer);
    *pointer = block;
    return true;
}

static tdm_status scratch_reserve(tdm_table *table, int64_t count, tdm_error *err)
{
    tdm__table_scratch *s = &table->scratch;
    if (count <= s->capacity) return TDM_OK;
    size_t capacity = 1024;
    while (capacity < (size_t)count) capacity *= 2;
    size_t width = tdm_align_up((size_t)table->options.width, 16);
    s->capacity = 0;
    if (!array_grow(&s->hashes, capacity, sizeof(*s->hashes)) ||
        !array_grow(&s->order, capacity, sizeof(*s->order)) ||
        !array_grow(&s->next, capacity, sizeof(*s->next)) ||
        !array_grow(&s->slots, capacity * 4, sizeof(*s->slots)) ||
        !array_grow(&s->uniques, capacity, sizeof(*s->uniques)) ||
        !array_grow(&s->sums, TDM__TABLE_SHARDS * width, sizeof(*s->sums)))
        return tdm_fail_oom(err, "for a push of %lld keys to the table '%s'", (long long)count,
                            table->name);
    s->capacity = (int64_t)capacity;
    return TDM_OK;
}

/* ---- 1: positions by shard ---------------------------------------------------------------------- */

static void push_partition(push_work *work, int64_t count)
{
    tdm__table_scratch *s = &work->table->scratch;
    for (int64_t i = 0; i < count; i++) {
        uint64_t hash = tdm__table_hash_of(work->table, work->keys[i]);
        s->hashes[i] = hash;
        work->shards[tdm__table_shard_of(hash)].count++;
    }
    int64_t ends[TDM__TABLE_SHARDS], begin = 0;
    for (unsigned shard = 0; shard < TDM__TABLE_SHARDS; shard++) {
        work->shards[shard].begin = ends[shard] = begin;
        begin += work->shards[shard].count;
    }
    for (int64_t i = 0; i < count; i++)
        s->order[ends[tdm__table_shard_of(s->hashes[i])]++] = (uint32_t)i;
}

/* ---- 2: different keys and their rows ----------------------------------------------------------- */

/* Lists the different keys of a shard, each with its positions in the order of the call. */
static void shard_unite(const push_work *work, push_shard *shard)
{
    if (shard->count == 0) return;
    tdm__table_scratch *s = &work->table->scratch;
    tdm__table_unique *uniques = s->uniques + shard->begin;
    uint32_t *slots = s->slots + 4 * shard->begin;
    size_t slot_count = 1, used = 0;
    while (slot_count < 2 * (size_t)shard->count) slot_count *= 2;
    memset(slots, 0, slot_count * sizeof(*slots));
    for (int64_t i = shard->begin; i < shard->begin + shard->count; i++) {
        uint32_t position = s->order[i];
        uint64_t key = work->keys[position], hash = s->hashes[position];
        size_t slot = (size_t)(hash >> 16) & (slot_count - 1);
        while (slots[slot] != 0 && uniques[slots[slot] - 1].key != key)
            slot = (slot + 1) & (slot_count - 1);
        if (slots[slot] == 0) {
            uniques[used] = (tdm__table_unique){.key = key,
                                                .hash = hash,
                                                .first = position,
                                                .last = position,
                                                .count = 1,
                                                .row = TDM__TABLE_NO_ROW};
            slots[slot] = (uint32_t)++used;
            continue;
        }
        tdm__table_unique *unique = &uniques[slots[slot] - 1];
        s->next[unique->last] = position;
        unique->last = position;
        unique->count++;
    }
    shard->unique_count = used;
}

static void row_prefetch(const tdm_table *table, uint32_t row)
{
    const char *bytes = (const char *)tdm__table_row(table, row);
    for (size_t at = 0; at < table->row_bytes && at < 512; at += TDM__TABLE_LINE_BYTES)
        __builtin_prefetch(bytes + at, 1);
    if (table->has_use) __builtin_prefetch(tdm__table_use_of(table, row), 1);
}

static uint32_t occurrences_of(const uint32_t *value)
{
    return value ? *value & ~TDM__TABLE_PENDING : 0;
}

/* Counts what the creation of a row for this key would add. */
static void unique_count_new(const push_work *work, push_shard *shard,
                             const tdm__table_unique *unique, const uint32_t *value)
{
    uint64_t occurrences = (uint64_t)occurrences_of(value) + unique->count;
    bool is_admitted = occurrences >= work->table->options.admission;
    if (is_admitted) shard->new_rows++;
    if (is_admitted && value) shard->new_pending--;
    if (!is_admitted && !value) shard->new_pending++;
}

/* Creates the row of a key, or counts its occurrences. False: memory or the limit is exhausted. */
static bool unique_create(const push_work *work, unsigned number, tdm__table_unique *unique,
                          uint32_t *value)
{
    tdm_table *table = work->table;
    tdm__table_shard *shard = &table->shards[number];
    uint64_t occurrences = (uint64_t)occurrences_of(value) + unique->count;
    if (occurrences < table->options.admission) {
        uint32_t pending = TDM__TABLE_PENDING | (uint32_t)occurrences;
        if (value) {
            *value = pending;
            return true;
        }
        if (!tdm__table_insert(table, unique->key, unique->hash, pending)) return false;
        shard->pending_count++;
        return true;
    }
    uint32_t row = tdm__table_row_take(table, number, unique->key, work->step->lr);
    if (row == TDM__TABLE_NO_ROW) return false;
    if (value) {
        *value = row;
        shard->pending_count--;
    } else if (!tdm__table_insert(table, unique->key, unique->hash, row)) {
        tdm__table_row_free(table, number, row);
        return false;
    }
    unique->row = row;
    return true;
}

static void shard_find(push_work *work, unsigned number)
{
    tdm_table *table = work->table;
    push_shard *shard = &work->shards[number];
    tdm__table_unique *uniques = table->scratch.uniques + shard->begin;
    size_t count = shard->unique_count;
    for (size_t i = 0; i < count && i < TDM__TABLE_AHEAD; i++)
        tdm__table_prefetch_group(table, uniques[i].hash);
    for (size_t i = 0; i < count; i++) {
        if (i + TDM__TABLE_AHEAD < count)
            tdm__table_prefetch_group(table, uniques[i + TDM__TABLE_AHEAD].hash);
        uint32_t *value = tdm__table_find(table, uniques[i].key, uniques[i].hash);
        if (value && !(*value & TDM__TABLE_PENDING))
            uniques[i].row = *value;
        else if (!work->creates)
            unique_count_new(work, shard, &uniques[i], value);
        else if (!unique_create(work, number, &uniques[i], value))
            shard->has_failed = true;
        if (uniques[i].row != TDM__TABLE_NO_ROW) row_prefetch(table, uniques[i].row);
    }
}

static void find_range(const void *args, int64_t begin, int64_t end)
{
    push_work *work = *(push_work *const *)args;
    for (int64_t shard = begin; shard < end; shard++) {
        shard_unite(work, &work->shards[shard]);
        shard_find(work, (unsigned)shard);
    }
}

static void create_range(const void *args, int64_t begin, int64_t end)
{
    push_work *work = *(push_work *const *)args;
    for (int64_t number = begin; number < end; number++) {
        push_shard *shard = &work->shards[number];
        tdm__table_unique *uniques = work->table->scratch.uniques + shard->begin;
        for (size_t i = 0; i < shard->unique_count; i++) {
            if (uniques[i].row != TDM__TABLE_NO_ROW) continue;
            uint32_t *value = tdm__table_find(work->table, uniques[i].key, uniques[i].hash);
            if (!unique_create(work, (unsigned)number, &uniques[i], value))
                shard->has_failed = true;
        }
    }
}

/* ---- 3: updates --------------------------------------------------------------------------------- */

static void update_range(const void *args, int64_t begin, int64_t end)
{
    const push_work *work = *(push_work *const *)args;
    const tdm_table *table = work->table;
    size_t width = (size_t)table->options.width;
    for (int64_t number = begin; number < end; number++) {
        const push_shard *shard = &work->shards[number];
        const tdm__table_work updates = {.rule = &work->rule,
                                         .uniques = table->scratch.uniques + shard->begin,
                                         .count = shard->unique_count,
                                         .next = table->scratch.next,
                                         .grads = work->grads,
                                         .sum = table->scratch.sums +
                                                (size_t)number * tdm_align_up(width, 16),
                                         .rows = table->rows.data,
                                         .use = table->has_use ? table->use.data : NULL,
                                         .row_bytes = table->row_bytes,
                                         .width = width,
                                         .step = work->step->step};
        table->methods->update[table->options.optim](&updates);
    }
}

static tdm__table_rule rule_of(const tdm_table *table, double lr)
{
    const tdm_table_options *o = &table->options;
    return (tdm__table_rule){.lr = (float)lr,
                             .eps = (float)o->eps,
                             .decay = (float)o->weight_decay,
                             .beta1 = (float)o->beta1,
                             .beta2 = (float)o->beta2,
                             .fresh1 = (float)(1.0 - o->beta1),
                             .fresh2 = (float)(1.0 - o->beta2),
                             .l1 = (float)o->l1,
                             .l2 = (float)o->l2,
                             .beta = (float)o->beta,
                             .lr_f64 = lr,
                             .beta1_f64 = o->beta1,
                             .beta2_f64 = o->beta2,
                             .correction1 = table->correction1,
                             .root_correction = table->root_correction};
}

/* ---- all of it ---------------------------------------------------------------------------------- */

static tdm_status push_check(const tdm_table *table, const tdm_table_step *step, int64_t count,
                             tdm_error *err)
{
    bool is_ftrl = table->options.optim == TDM_TABLE_OPTIM_FTRL;
    if (!(step->lr >= 0) || isinf(step->lr) || (is_ftrl && step->lr == 0))
        return tdm_fail(err, TDM_ERR_INVALID, "table '%s': lr is %g; it must be finite and %s",
                        table->name, step->lr, is_ftrl ? "greater than 0 for FTRL" : "at least 0");
    if (count < 0 || count > TDM_TABLE_MAX_BATCH)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "table '%s': a push of %lld keys; use several calls with at most %lld each",
                        table->name, (long long)count, (long long)TDM_TABLE_MAX_BATCH);
    return TDM_OK;
}

static bool push_has_failed(const push_work *work)
{
    for (unsigned shard = 0; shard < TDM__TABLE_SHARDS; shard++)
        if (work->shards[shard].has_failed) return true;
    return false;
}

/* Finds and creates all rows of the call. */
static tdm_status push_find(push_work *work, int64_t count, int64_t cost, tdm_error *err)
{
    tdm_table *table = work->table;
    uint64_t pending, rows = tdm__table_count(table, &pending);
    work->creates = rows + pending + (uint64_t)count <= table->row_limit;
    tdm_kernel_spread(TDM__TABLE_SHARDS, cost, find_range, &work);
    if (!work->creates) {
        uint64_t new_rows = 0;
        int64_t new_pending = 0;
        for (unsigned shard = 0; shard < TDM__TABLE_SHARDS; shard++) {
            new_rows += work->shards[shard].new_rows;
            new_pending += work->shards[shard].new_pending;
        }
        if (new_rows > 0 || new_pending > 0)
            TDM_TRY(tdm__table_check_limit(table, new_rows, new_pending, err));
        tdm_kernel_spread(TDM__TABLE_SHARDS, cost, create_range, &work);
    }
    return push_has_failed(work) ? tdm__table_fail_insert(table, err) : TDM_OK;
}

tdm_status tdm_table_push(tdm_table *table, const tdm_table_step *step, const uint64_t *keys,
                          const float *grads, int64_t count, tdm_error *err)
{
    TDM_TRY(push_check(table, step, count, err));
    TDM_TRY(scratch_reserve(table, count, err));
    push_work work = {.table = table,
                      .step = step,
                      .keys = keys,
                      .grads = grads,
                      .rule = rule_of(table, step->lr)};
    push_work *shared = &work;
    int64_t cost = 1 + count * (KEY_COST + table->options.width) / TDM__TABLE_SHARDS;
    uint64_t control = tdm_kernel_flush_enter();
    push_partition(&work, count);
    tdm_status status = push_find(&work, count, cost, err);
    if (status == TDM_OK) tdm_kernel_spread(TDM__TABLE_SHARDS, cost, update_range, &shared);
    tdm_kernel_flush_leave(control);
    return status;
}
