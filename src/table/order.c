/*
 * order.c: the content of a table in increasing order of keys: export, import and hash.
 *
 * The order does not depend on the layout of the table, so equal contents give equal bytes. Keys are sorted by
 * radix, eight bits at a time, together with their values.
 */
#include "table/internal.h"

#include <stdlib.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the hash reads numbers as they are in memory");

enum { RADIX_BITS = 8, RADIX = 1 << RADIX_BITS, HASH_ROWS = 256 };

typedef struct entry {
    uint64_t key;
    uint32_t value;
} entry;

struct tdm_table_order {
    const tdm_table *table;
    uint64_t row_count, pending_count;
    entry *rows, *pending; /* sorted by key */
};

/* ---- sorting ------------------------------------------------------------------------------------ */

/* Sorts by one digit of the key, stably. False, with nothing done, if all keys have the same digit. */
static bool entries_sort_digit(const entry *from, entry *to, uint64_t count, int shift)
{
    uint64_t counts[RADIX] = {0}, begin = 0;
    for (uint64_t i = 0; i < count; i++) counts[from[i].key >> shift & (RADIX - 1)]++;
    if (counts[from[0].key >> shift & (RADIX - 1)] == count) return false;
    for (int digit = 0; digit < RADIX; digit++) {
        uint64_t here = counts[digit];
        counts[digit] = begin;
        begin += here;
    }
    for (uint64_t i = 0; i < count; i++) to[counts[from[i].key >> shift & (RADIX - 1)]++] = from[i];
    return true;
}

/* Sorts *entries; its block can be replaced by another one. */
static tdm_status entries_sort(entry **entries, uint64_t count, tdm_error *err)
{
    if (count < 2) return TDM_OK;
    entry *from = *entries, *to = malloc(count * sizeof(*to));
    if (!to) return tdm_fail_oom(err, "to sort %llu keys", (unsigned long long)count);
    for (int shift = 0; shift < 64; shift += RADIX_BITS) {
        if (!entries_sort_digit(from, to, count, shift)) continue;
        entry *swap = from;
        from = to;
        to = swap;
    }
    *entries = from;
    free(to);
    return TDM_OK;
}

typedef struct collector {
    entry *rows, *pending;
} collector;

static void collector_visit(uint64_t key, uint32_t value, void *user)
{
    collector *c = user;
    if (value & TDM__TABLE_PENDING)
        *c->pending++ = (entry){key, value & ~TDM__TABLE_PENDING};
    else
        *c->rows++ = (entry){key, value};
}

tdm_status tdm_table_order_create(const tdm_table *table, tdm_table_order **out, tdm_error *err)
{
    tdm_table_order *order = calloc(1, sizeof(*order));
    if (!order) return tdm_fail_oom(err, "for the keys of the table '%s'", table->name);
    order->table = table;
    order->row_count = tdm__table_count(table, &order->pending_count);
    order->rows = malloc((order->row_count + 1) * sizeof(*order->rows));
    order->pending = malloc((order->pending_count + 1) * sizeof(*order->pending));
    tdm_status status = TDM_OK;
    if (!order->rows || !order->pending)
        status = tdm_fail_oom(err, "for the keys of the table '%s'", table->name);
    if (status == TDM_OK) {
        collector c = {.rows = order->rows, .pending = order->pending};
        for (unsigned shard = 0; shard < TDM__TABLE_SHARDS; shard++)
            tdm__table_visit(table, shard, collector_visit, &c);
        status = entries_sort(&order->rows, order->row_count, err);
    }
    if (status == TDM_OK) status = entries_sort(&order->pending, order->pending_count, err);
    if (status != TDM_OK) {
        tdm_table_order_destroy(order);
        return status;
    }
    *out = order;
    return TDM_OK;
}

void tdm_table_order_destroy(tdm_table_order *order)
{
    if (!order) return;
    free(order->rows);
    free(order->pending);
    free(order);
}

/* ---- export ------------------------------------------------------------------------------------- */

void tdm_table_export(const tdm_table_order *order, uint64_t first, uint64_t count,
                      const tdm_table_rows *out)
{
    const tdm_table *table = order->table;
    size_t width = (size_t)table->options.width, state_width = width * (size_t)table->state_count;
    for (uint64_t i = 0; i < count; i++) {
        const entry *e = &order->rows[first + i];
        const float *row = tdm__table_row(table, e->value);
        tdm__table_use use = {0};
        if (table->has_use) use = *tdm__table_use_of(table, e->value);
        if (out->keys) out->keys[i] = e->key;
        if (out->params) memcpy(out->params + i * width, row, width * sizeof(*row));
        if (out->states && state_width > 0)
            memcpy(out->states + i * state_width, row + width, state_width * sizeof(*row));
        if (out->updates) out->updates[i] = use.updates;
        if (out->last_steps) out->last_steps[i] = use.last_step;
    }
}

void tdm_table_export_pending(const tdm_table_order *order, uint64_t first, uint64_t count,
                              uint64_t *keys, uint32_t *occurrences)
{
    for (uint64_t i = 0; i < count; i++) {
        if (keys) keys[i] = order->pending[first + i].key;
        if (occurrences) occurrences[i] = order->pending[first + i].value;
    }
}

/* ---- import ------------------------------------------------------------------------------------- */

static tdm_status import_check_keys(const tdm_table *table, const uint64_t *keys, uint64_t count,
                                    tdm_error *err)
{
    for (uint64_t i = 0; i < count; i++) {
        if (i > 0 && keys[i] <= keys[i - 1])
            return tdm_fail(err, TDM_ERR_FORMAT,
                            "table '%s': key %llu at position %llu follows key %llu; keys must "
                            "increase: the checkpoint is damaged",
                            table->name, (unsigned long long)keys[i], (unsigned long long)i,
                            (unsigned long long)keys[i - 1]);
        if (tdm__table_find(table, keys[i], tdm__table_hash_of(table, keys[i])))
            return tdm_fail(err, TDM_ERR_FORMAT,
                            "table '%s': key %llu at position %llu is in the table already; import "
                            "each key once, into an empty table",
                            table->name, (unsigned long long)keys[i], (unsigned long long)i);
    }
    return TDM_OK;
}

typedef struct key_list {
    const uint64_t *keys; /* sorted */
    uint64_t count;
} key_list;

static int compare_keys(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

static bool is_not_listed(const tdm_table *table, uint64_t key, uint32_t value, const void *user)
{
    (void)table;
    (void)value;
    const key_list *list = user;
    return !bsearch(&key, list->keys, list->count, sizeof(key), compare_keys);
}

/* Removes the keys that were added before the import failed. */
static tdm_status import_undo(tdm_table *table, const uint64_t *keys, uint64_t count,
                              tdm_error *err)
{
    key_list added = {.keys = keys, .count = count};
    if (count > 0) tdm__table_filter(table, is_not_listed, &added);
    return tdm__table_fail_insert(table, err);
}

/* Adds a key with an empty row; NULL: the limit is reached. */
static float *import_row(tdm_table *table, uint64_t key, uint32_t *out_row)
{
    uint64_t hash = tdm__table_hash_of(table, key);
    unsigned number = tdm__table_shard_of(hash);
    uint32_t row = tdm__table_row_take(table, number, key, 1);
    if (row == TDM__TABLE_NO_ROW) return NULL;
    if (!tdm__table_insert(table, key, hash, row)) {
        tdm__table_row_free(table, number, row);
        return NULL;
    }
    *out_row = row;
    return tdm__table_row(table, row);
}

tdm_status tdm_table_import(tdm_table *table, const tdm_table_rows *rows, uint64_t count,
                            tdm_error *err)
{
    size_t width = (size_t)table->options.width, state_width = width * (size_t)table->state_count;
    TDM_TRY(import_check_keys(table, rows->keys, count, err));
    TDM_TRY(tdm__table_check_limit(table, count, 0, err));
    for (uint64_t i = 0; i < count; i++) {
        uint32_t number = 0;
        float *row = import_row(table, rows->keys[i], &number);
        if (!row) return import_undo(table, rows->keys, i, err);
        memcpy(row, rows->params + i * width, width * sizeof(*row));
        if (state_width > 0)
            memcpy(row + width, rows->states + i * state_width, state_width * sizeof(*row));
        if (table->has_use)
            *tdm__table_use_of(table, number) = (tdm__table_use){
                .updates = rows->updates ? rows->updates[i] : 0,
                .last_step = rows->last_steps ? rows->last_steps[i] : 0};
    }
    return TDM_OK;
}

tdm_status tdm_table_import_pending(tdm_table *table, const uint64_t *keys,
                                    const uint32_t *occurrences, uint64_t count, tdm_error *err)
{
    TDM_TRY(import_check_keys(table, keys, count, err));
    for (uint64_t i = 0; i < count; i++)
        if (occurrences[i] == 0 || occurrences[i] >= table->options.admission)
            return tdm_fail(err, TDM_ERR_FORMAT,
                            "table '%s': key %llu has %u occurrences, but keys with %u have a row; "
                            "use the same admission as when the checkpoint was written",
                            table->name, (unsigned long long)keys[i], occurrences[i],
                            table->options.admission);
    TDM_TRY(tdm__table_check_limit(table, 0, (int64_t)count, err));
    for (uint64_t i = 0; i < count; i++) {
        uint64_t hash = tdm__table_hash_of(table, keys[i]);
        if (!tdm__table_insert(table, keys[i], hash, TDM__TABLE_PENDING | occurrences[i]))
            return import_undo(table, keys, i, err);
        table->shards[tdm__table_shard_of(hash)].pending_count++;
    }
    return TDM_OK;
}

/* ---- hash --------------------------------------------------------------------------------------- */

static void hash_rows(const tdm_table_order *order, tdm_sha256 *hash, const tdm_table_rows *buffer)
{
    const tdm_table *table = order->table;
    size_t row_numbers = (size_t)table->options.width;
    size_t state_numbers = row_numbers * (size_t)table->state_count;
    for (uint64_t first = 0; first < order->row_count; first += HASH_ROWS) {
        uint64_t left = order->row_count - first;
        size_t count = left < HASH_ROWS ? (size_t)left : HASH_ROWS;
        tdm_table_export(order, first, count, buffer);
        tdm_sha256_update(hash, buffer->keys, count * sizeof(*buffer->keys));
        tdm_sha256_update(hash, buffer->params, count * row_numbers * sizeof(float));
        tdm_sha256_update(hash, buffer->states, count * state_numbers * sizeof(float));
        tdm_sha256_update(hash, buffer->updates, count * sizeof(*buffer->updates));
        tdm_sha256_update(hash, buffer->last_steps, count * sizeof(*buffer->last_steps));
    }
}

static void hash_pending(const tdm_table_order *order, tdm_sha256 *hash)
{
    for (uint64_t i = 0; i < order->pending_count; i++) {
        tdm_sha256_u64(hash, order->pending[i].key);
        tdm_sha256_u64(hash, order->pending[i].value);
    }
}

static void hash_content(const tdm_table_order *order, tdm_sha256 *hash,
                         const tdm_table_rows *buffer, char hex[TDM_SHA256_HEX])
{
    const tdm_table *table = order->table;
    tdm_sha256_text(hash, "tandem table 1");
    tdm_sha256_u64(hash, (uint64_t)table->options.width);
    tdm_sha256_u64(hash, (uint64_t)table->options.optim);
    tdm_sha256_u64(hash, table->has_use);
    tdm_sha256_u64(hash, order->row_count);
    tdm_sha256_u64(hash, order->pending_count);
    hash_rows(order, hash, buffer);
    hash_pending(order, hash);
    tdm_sha256_finish(hash, hex);
}

tdm_status tdm_table_hash(const tdm_table *table, char hex[TDM_SHA256_HEX], tdm_error *err)
{
    tdm_table_order *order;
    TDM_TRY(tdm_table_order_create(table, &order, err));
    size_t numbers = (size_t)table->options.width * HASH_ROWS;
    tdm_arena *arena = tdm_arena_create("hash of a table");
    tdm_sha256 *hash = tdm_sha256_create();
    tdm_table_rows buffer = {0};
    if (arena && hash) {
        buffer.keys = tdm_arena_array(arena, HASH_ROWS, sizeof(*buffer.keys));
        buffer.params = tdm_arena_array(arena, numbers, sizeof(float));
        buffer.states = tdm_arena_array(arena, numbers * TDM_TABLE_MAX_STATES, sizeof(float));
        buffer.updates = tdm_arena_array(arena, HASH_ROWS, sizeof(*buffer.updates));
        buffer.last_steps = tdm_arena_array(arena, HASH_ROWS, sizeof(*buffer.last_steps));
    }
    bool has_memory = buffer.keys && buffer.params && buffer.states && buffer.updates &&
                      buffer.last_steps;
    if (has_memory) hash_content(order, hash, &buffer, hex);
    tdm_sha256_destroy(hash);
    tdm_arena_destroy(arena);
    tdm_table_order_destroy(order);
    return has_memory ? TDM_OK : tdm_fail_oom(err, "to hash the table '%s'", table->name);
}
