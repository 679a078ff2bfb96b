/*
 * evict.c: removes rows that are seldom or no longer used.
 *
 * Each segment is built again from the entries that remain, so the index needs no marks for removed entries.
 * Removed rows form a list in their shard, from which later rows are taken. Segments are not merged.
 */
#include "table/internal.h"
#include "tensor/kernel.h"

enum { SEGMENT_COST = 16384 };

static void segment_filter(tdm_table *table, unsigned number, tdm__table_group *segment,
                           tdm__table_keep_fn keep, const void *user)
{
    tdm__table_shard *shard = &table->shards[number];
    tdm__table_group copy[TDM__TABLE_GROUPS];
    memcpy(copy, segment, sizeof(copy));
    memset(segment, 0, sizeof(copy));
    segment->depth = copy[0].depth;
    for (int g = 0; g < TDM__TABLE_GROUPS; g++) {
        for (unsigned k = 0; k < copy[g].used; k++) {
            uint64_t key = copy[g].keys[k];
            uint32_t value = copy[g].values[k];
            if (keep(table, key, value, user))
                tdm__table_segment_add(segment, key, tdm__table_hash_of(table, key), value);
            else if (value & TDM__TABLE_PENDING)
                shard->pending_count--;
            else
                tdm__table_row_free(table, number, value);
        }
    }
}

typedef struct filter_work {
    tdm_table *table;
    tdm__table_keep_fn keep;
    const void *user;
} filter_work;

static void filter_range(const void *args, int64_t begin, int64_t end)
{
    const filter_work *work = args;
    for (int64_t shard = begin; shard < end; shard++) {
        const tdm__table_shard *s = &work->table->shards[shard];
        const uint32_t *directory = tdm__table_directory(work->table, (unsigned)shard);
        for (uint32_t slot = 0; slot < UINT32_C(1) << s->depth;) {
            tdm__table_group *segment = tdm__table_segment(work->table, directory[slot]);
            segment_filter(work->table, (unsigned)shard, segment, work->keep, work->user);
            slot += UINT32_C(1) << (s->depth - segment->depth);
        }
    }
}

void tdm__table_filter(tdm_table *table, tdm__table_keep_fn keep, const void *user)
{
    filter_work work = {.table = table, .keep = keep, .user = user};
    int64_t cost = (int64_t)(table->used_segments / TDM__TABLE_SHARDS + 1) * SEGMENT_COST;
    tdm_kernel_spread(TDM__TABLE_SHARDS, cost, filter_range, &work);
}

/* ---- by use ------------------------------------------------------------------------------------- */

static bool rule_keeps(const tdm_table *table, uint64_t key, uint32_t value, const void *user)
{
    (void)key;
    const tdm_table_evict_rule *rule = user;
    if (value & TDM__TABLE_PENDING) return !rule->drop_pending;
    if (rule->below_updates == 0 && rule->before_step == 0) return true;
    const tdm__table_use *use = tdm__table_use_of(table, value);
    bool is_rare = rule->below_updates == 0 || use->updates < rule->below_updates;
    bool is_old = rule->before_step == 0 || use->last_step < rule->before_step;
    return !(is_rare && is_old);
}

tdm_status tdm_table_evict(tdm_table *table, const tdm_table_evict_rule *rule, uint64_t *out_count,
                           tdm_error *err)
{
    if (!table->has_use && (rule->below_updates > 0 || rule->before_step > 0))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "table '%s': it does not keep the use of its rows, so they cannot be "
                        "evicted by it; create it with keep_use",
                        table->name);
    uint64_t pending, before = tdm__table_count(table, &pending);
    tdm__table_filter(table, rule_keeps, rule);
    if (out_count) *out_count = before - tdm__table_count(table, &pending);
    return TDM_OK;
}
