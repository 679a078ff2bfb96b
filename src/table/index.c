/*
 * index.c: the index of a table: keys in groups of a cache line, groups in segments, and the split of a segment.
 * internal.h has the layout and its invariants.
 */
#include "table/internal.h"

/* ---- search ------------------------------------------------------------------------------------- */

static inline tdm__table_group *group_next(tdm__table_group *segment, const tdm__table_group *group)
{
    return segment + (((size_t)(group - segment) + 1) & (TDM__TABLE_GROUPS - 1));
}

uint32_t *tdm__table_find(const tdm_table *table, uint64_t key, uint64_t hash)
{
    tdm__table_group *segment;
    tdm__table_group *group = tdm__table_group_of(table, hash, &segment);
    for (int i = 0; i < TDM__TABLE_GROUPS; i++) {
        /* All five are compared without a branch: where a key is in its group is not predictable. */
        unsigned equal = 0;
        for (unsigned k = 0; k < TDM__TABLE_GROUP_ENTRIES; k++)
            equal |= (unsigned)(group->keys[k] == key) << k;
        equal &= (1u << group->used) - 1;
        if (equal) return &group->values[__builtin_ctz(equal)];
        if (group->used < TDM__TABLE_GROUP_ENTRIES) return NULL;
        group = group_next(segment, group);
    }
    return NULL;
}

/* ---- segments ----------------------------------------------------------------------------------- */

/* UINT32_MAX if the limit is reached. The memory is zero: segments are never returned. */
static uint32_t segment_take(tdm_table *table)
{
    uint32_t number = atomic_fetch_add_explicit(&table->used_segments, 1, memory_order_relaxed);
    if (number < table->segment_capacity) return number;
    atomic_fetch_sub_explicit(&table->used_segments, 1, memory_order_relaxed);
    return UINT32_MAX;
}

void tdm__table_segment_add(tdm__table_group *segment, uint64_t key, uint64_t hash, uint32_t value)
{
    tdm__table_group *group = segment + (hash & (TDM__TABLE_GROUPS - 1));
    while (group->used == TDM__TABLE_GROUP_ENTRIES) group = group_next(segment, group);
    group->keys[group->used] = key;
    group->values[group->used] = value;
    group->used++;
    segment->entries++;
}

bool tdm__table_shard_init(tdm_table *table, unsigned shard)
{
    uint32_t number = segment_take(table);
    if (number == UINT32_MAX) return false;
    table->shards[shard] = (tdm__table_shard){.free_row = TDM__TABLE_NO_ROW, .segment_count = 1};
    tdm__table_directory(table, shard)[0] = number;
    return true;
}

/* Doubles the directory: entry i becomes the entries 2i and 2i + 1. */
static void directory_double(tdm_table *table, unsigned shard)
{
    uint32_t *directory = tdm__table_directory(table, shard);
    for (uint32_t i = UINT32_C(1) << table->shards[shard].depth; i-- > 0;)
        directory[2 * i] = directory[2 * i + 1] = directory[i];
    table->shards[shard].depth++;
}

/* Moves the entries of a full segment to two segments, by one more bit of their hashes. */
static bool segment_split(tdm_table *table, unsigned shard, uint64_t hash)
{
    tdm__table_shard *s = &table->shards[shard];
    uint32_t *directory = tdm__table_directory(table, shard);
    uint32_t slot = tdm__table_slot(hash, s->depth), old_number = directory[slot];
    tdm__table_group *old = tdm__table_segment(table, old_number);
    uint32_t depth = old[0].depth;
    if (depth == TDM__TABLE_MAX_DEPTH) return false;
    uint32_t new_number = segment_take(table);
    if (new_number == UINT32_MAX) return false;
    if (depth == s->depth) {
        directory_double(table, shard);
        slot *= 2;
    }

    /* The entries with the bits of this segment are neighbours; the upper half gets the new one. */
    uint32_t span = UINT32_C(1) << (s->depth - depth), first = slot & ~(span - 1);
    for (uint32_t i = first + span / 2; i < first + span; i++) directory[i] = new_number;

    tdm__table_group copy[TDM__TABLE_GROUPS];
    memcpy(copy, old, sizeof(copy));
    memset(old, 0, sizeof(copy));
    tdm__table_group *halves[2] = {old, tdm__table_segment(table, new_number)};
    halves[0]->depth = halves[1]->depth = (uint8_t)(depth + 1);
    for (int g = 0; g < TDM__TABLE_GROUPS; g++) {
        for (unsigned k = 0; k < copy[g].used; k++) {
            uint64_t key_hash = tdm__table_hash_of(table, copy[g].keys[k]);
            tdm__table_segment_add(halves[tdm__table_slot(key_hash, depth + 1) & 1],
                                   copy[g].keys[k], key_hash, copy[g].values[k]);
        }
    }
    s->segment_count++;
    s->split_count++;
    return true;
}

bool tdm__table_insert(tdm_table *table, uint64_t key, uint64_t hash, uint32_t value)
{
    unsigned shard = tdm__table_shard_of(hash);
    tdm__table_group *segment;
    (void)tdm__table_group_of(table, hash, &segment);
    while (segment->entries >= TDM__TABLE_SPLIT_ENTRIES) {
        if (!segment_split(table, shard, hash)) break;
        (void)tdm__table_group_of(table, hash, &segment);
    }
    if (segment->entries == TDM__TABLE_SEGMENT_ENTRIES) return false;
    tdm__table_segment_add(segment, key, hash, value);
    return true;
}

void tdm__table_visit(const tdm_table *table, unsigned shard, tdm__table_visit_fn visit, void *user)
{
    const tdm__table_shard *s = &table->shards[shard];
    const uint32_t *directory = tdm__table_directory(table, shard);
    for (uint32_t slot = 0; slot < UINT32_C(1) << s->depth;) {
        const tdm__table_group *segment = tdm__table_segment(table, directory[slot]);
        for (int g = 0; g < TDM__TABLE_GROUPS; g++)
            for (unsigned k = 0; k < segment[g].used; k++)
                visit(segment[g].keys[k], segment[g].values[k], user);
        slot += UINT32_C(1) << (s->depth - segment->depth);
    }
}

/* ---- rows --------------------------------------------------------------------------------------- */

/* Takes memory for a row: one that was evicted, or the next one of the shard's block. */
static uint32_t row_memory_take(tdm_table *table, tdm__table_shard *s)
{
    if (s->free_row != TDM__TABLE_NO_ROW) {
        uint32_t row = s->free_row;
        memcpy(&s->free_row, tdm__table_row(table, row), sizeof(s->free_row));
        return row;
    }
    if (s->block_next == s->block_end) {
        uint64_t first = atomic_fetch_add_explicit(&table->used_rows, table->block_rows,
                                                   memory_order_relaxed);
        if (first + table->block_rows > table->row_capacity) {
            atomic_fetch_sub_explicit(&table->used_rows, table->block_rows, memory_order_relaxed);
            return TDM__TABLE_NO_ROW;
        }
        s->block_next = (uint32_t)first;
        s->block_end = s->block_next + table->block_rows;
    }
    return s->block_next++;
}

/* FTRL computes its parameters from z and n: this z gives `w` for n = 0. */
static float ftrl_initial_z(const tdm_table_options *o, float w, double lr)
{
    if (w == 0) return 0;
    double z = -(double)w * (o->beta / lr + o->l2) - (w > 0 ? o->l1 : -o->l1);
    return (float)z;
}

uint32_t tdm__table_row_take(tdm_table *table, unsigned shard, uint64_t key, double lr)
{
    uint32_t row = row_memory_take(table, &table->shards[shard]);
    if (row == TDM__TABLE_NO_ROW) return row;
    size_t width = (size_t)table->options.width;
    float *numbers = tdm__table_row(table, row);
    memset(numbers, 0, table->row_bytes);
    tdm__table_initial(table, key, numbers);
    if (table->options.optim == TDM_TABLE_OPTIM_FTRL && table->options.init != TDM_TABLE_INIT_ZERO)
        for (size_t i = 0; i < width; i++)
            numbers[width + i] = ftrl_initial_z(&table->options, numbers[i], lr);
    if (table->has_use) *tdm__table_use_of(table, row) = (tdm__table_use){0};
    table->shards[shard].row_count++;
    return row;
}

void tdm__table_row_free(tdm_table *table, unsigned shard, uint32_t row)
{
    tdm__table_shard *s = &table->shards[shard];
    memcpy(tdm__table_row(table, row), &s->free_row, sizeof(s->free_row));
    s->free_row = row;
    s->row_count--;
}
