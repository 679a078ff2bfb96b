/*
 * table.c: creates and destroys a table, checks its options and its limit, and reads rows.
 */
#include "table/internal.h"
#include "tensor/kernel.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define DEFAULT_LIMIT_BYTES (UINT64_C(64) << 30)
#define SMALL_BYTES ((size_t)2 << 20) /* the beginning of a block, without huge pages */
enum { PULL_TILE = 64, KEY_LOW_BITS = 48 };

/* ---- methods ------------------------------------------------------------------------------------ */

static const struct {
    int state_count;
    const char *state_names[TDM_TABLE_MAX_STATES];
    bool needs_updates;
} methods[TDM_TABLE_OPTIM_COUNT] = {
    [TDM_TABLE_OPTIM_SGD] = {0, {NULL, NULL}, false},
    [TDM_TABLE_OPTIM_ADAGRAD] = {1, {"sum", NULL}, false},
    [TDM_TABLE_OPTIM_FTRL] = {2, {"z", "n"}, false},
    [TDM_TABLE_OPTIM_ADAM] = {2, {"m", "v"}, true},
};

int tdm_table_state_count(int optim)
{
    return methods[optim].state_count;
}

const char *tdm_table_state_name(int optim, int state)
{
    return methods[optim].state_names[state];
}

bool tdm__table_keeps_use(const tdm_table_options *options)
{
    return options->keep_use || methods[options->optim].needs_updates;
}

const tdm__table_methods *tdm__table_methods_at(int level)
{
#if defined(__x86_64__)
    return level >= 4   ? &tdm__table_methods_4
           : level == 3 ? &tdm__table_methods_3
                        : &tdm__table_methods_2;
#else
    (void)level;
    return &tdm__table_methods_0;
#endif
}

/* ---- options ------------------------------------------------------------------------------------ */

static bool is_negative_or_not_finite(double number)
{
    return !(number >= 0) || isinf(number);
}

static tdm_status check_numbers(const tdm_table_options *o, tdm_error *err)
{
    const struct {
        const char *name;
        double number;
    } rows[] = {
        {"init_scale", o->init_scale},
        {"weight_decay", o->weight_decay},
        {"eps", o->eps},
        {"l1", o->l1},
        {"l2", o->l2},
        {"beta", o->beta},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (is_negative_or_not_finite(rows[i].number))
            return tdm_fail(err, TDM_ERR_INVALID,
                            "table '%s': %s is %g; it must be a finite number of at least 0",
                            o->name, rows[i].name, rows[i].number);
    if (!(o->beta1 >= 0 && o->beta1 < 1) || !(o->beta2 >= 0 && o->beta2 < 1))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "table '%s': beta1 is %g and beta2 is %g; both must be at least 0 and less "
                        "than 1",
                        o->name, o->beta1, o->beta2);
    bool is_ftrl = o->optim == TDM_TABLE_OPTIM_FTRL;
    if (is_ftrl && o->weight_decay != 0)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "table '%s': weight_decay is not used by FTRL; set l2 instead", o->name);
    if (!is_ftrl && (o->l1 != 0 || o->l2 != 0))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "table '%s': l1 and l2 are for FTRL; set weight_decay instead of l2, or "
                        "choose FTRL",
                        o->name);
    return TDM_OK;
}

tdm_status tdm__table_options_check(const tdm_table_options *options, tdm_table_options *out,
                                    tdm_error *err)
{
    tdm_table_options o = *options;
    if (!o.name) o.name = "table";
    if (o.width < 1 || o.width > TDM_TABLE_MAX_WIDTH)
        return tdm_fail(err, TDM_ERR_INVALID, "table '%s': width is %lld; it must be 1 to %d",
                        o.name, (long long)o.width, TDM_TABLE_MAX_WIDTH);
    if (o.optim < 0 || o.optim >= TDM_TABLE_OPTIM_COUNT)
        return tdm_fail(err, TDM_ERR_INVALID, "table '%s': unknown optimiser %d", o.name, o.optim);
    if (o.init < TDM_TABLE_INIT_ZERO || o.init > TDM_TABLE_INIT_NORMAL)
        return tdm_fail(err, TDM_ERR_INVALID, "table '%s': unknown kind of initial values %d",
                        o.name, o.init);
    if (o.admission > TDM_TABLE_MAX_ADMISSION)
        return tdm_fail(err, TDM_ERR_INVALID, "table '%s': admission is %u; it must be at most %u",
                        o.name, o.admission, TDM_TABLE_MAX_ADMISSION);
    if (o.admission == 0) o.admission = 1;
    if (o.eps == 0) o.eps = o.optim == TDM_TABLE_OPTIM_ADAGRAD ? 1e-10 : 1e-8;
    if (o.beta1 == 0) o.beta1 = 0.9;
    if (o.beta2 == 0) o.beta2 = 0.999;
    if (o.beta == 0) o.beta = 1;
    if (o.limit_bytes == 0) o.limit_bytes = DEFAULT_LIMIT_BYTES;
    TDM_TRY(check_numbers(&o, err));
    uint64_t least = tdm__table_bytes_max(&o, 1, 0);
    if (o.limit_bytes < least)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "table '%s': a limit of %llu bytes is too low for one row; set it to at "
                        "least %llu",
                        o.name, (unsigned long long)o.limit_bytes, (unsigned long long)least);
    *out = o;
    return TDM_OK;
}

/* ---- life-time ---------------------------------------------------------------------------------- */

static tdm_status table_reserve(tdm_table *table, tdm_error *err)
{
    const tdm_table_options *o = &table->options;
    uint64_t segments = o->limit_bytes / sizeof(tdm__table_group) >> TDM__TABLE_GROUP_BITS;
    uint64_t rows = o->limit_bytes / table->row_bytes;
    table->segment_capacity = segments < UINT32_MAX ? (uint32_t)segments : UINT32_MAX;
    table->row_capacity = rows < TDM__TABLE_MAX_ROWS ? rows : TDM__TABLE_MAX_ROWS;
    size_t index_bytes = (size_t)table->segment_capacity * TDM__TABLE_GROUPS *
                         sizeof(tdm__table_group);
    size_t directory_bytes = sizeof(uint32_t) * TDM__TABLE_SHARDS << TDM__TABLE_MAX_DEPTH;
    TDM_TRY(tdm_pages_reserve((size_t)table->row_capacity * table->row_bytes, &table->rows, err));
    TDM_TRY(tdm_pages_reserve(index_bytes, &table->index, err));
    TDM_TRY(tdm_pages_reserve(directory_bytes, &table->directory, err));
    if (table->has_use)
        TDM_TRY(tdm_pages_reserve((size_t)table->row_capacity * sizeof(tdm__table_use), &table->use,
                                  err));
    tdm_pages_prefer_huge(&table->rows, SMALL_BYTES);
    tdm_pages_prefer_huge(&table->index, SMALL_BYTES);
    tdm_pages_prefer_huge(&table->use, SMALL_BYTES);
    for (unsigned shard = 0; shard < TDM__TABLE_SHARDS; shard++)
        if (!tdm__table_shard_init(table, shard)) return tdm__table_fail_full(table, err);
    return TDM_OK;
}

tdm_status tdm_table_create(const tdm_table_options *options, tdm_table **out, tdm_error *err)
{
    tdm_table_options o;
    TDM_TRY(tdm__table_options_check(options, &o, err));
    size_t bytes = tdm_align_up(sizeof(tdm_table), TDM__TABLE_LINE_BYTES);
    tdm_table *table = aligned_alloc(TDM__TABLE_LINE_BYTES, bytes);
    if (!table) return tdm_fail_oom(err, "for the table '%s'", o.name);
    memset(table, 0, bytes);
    snprintf(table->name, sizeof(table->name), "%s", o.name);
    table->options = o;
    table->options.name = table->name;
    table->state_count = tdm_table_state_count(o.optim);
    table->row_bytes = tdm__table_row_bytes(o.width, table->state_count);
    table->block_rows = tdm__table_block_rows(table->row_bytes);
    table->has_use = tdm__table_keeps_use(&o);
    table->salt = tdm_mix64(o.seed + UINT64_C(0x9e3779b97f4a7c15));
    table->row_limit = tdm__table_row_limit(&o);
    table->methods = tdm__table_methods_at(tdm_kernel_level());
    for (int t = 1; t < TDM__TABLE_CORRECTIONS; t++) {
        table->correction1[t] = 1.0 - tdm_math_power(o.beta1, (uint64_t)t);
        table->root_correction[t] = (float)(1.0 / sqrt(1.0 - tdm_math_power(o.beta2, (uint64_t)t)));
    }
    tdm_status status = table_reserve(table, err);
    if (status != TDM_OK) {
        tdm_error_context(err, status, "table '%s', with a limit of %llu bytes", o.name,
                          (unsigned long long)o.limit_bytes);
        tdm_table_destroy(table);
        return status;
    }
    *out = table;
    return TDM_OK;
}

static void scratch_release(tdm__table_scratch *scratch)
{
    free(scratch->hashes);
    free(scratch->order);
    free(scratch->next);
    free(scratch->slots);
    free(scratch->uniques);
    free(scratch->sums);
    *scratch = (tdm__table_scratch){0};
}

void tdm_table_destroy(tdm_table *table)
{
    if (!table) return;
    scratch_release(&table->scratch);
    tdm_pages_unmap(&table->rows);
    tdm_pages_unmap(&table->use);
    tdm_pages_unmap(&table->index);
    tdm_pages_unmap(&table->directory);
    free(table);
}

/* ---- queries ------------------------------------------------------------------------------------ */

const tdm_table_options *tdm_table_options_of(const tdm_table *table)
{
    return &table->options;
}

uint64_t tdm__table_count(const tdm_table *table, uint64_t *out_pending)
{
    uint64_t rows = 0, pending = 0;
    for (unsigned shard = 0; shard < TDM__TABLE_SHARDS; shard++) {
        rows += table->shards[shard].row_count;
        pending += table->shards[shard].pending_count;
    }
    *out_pending = pending;
    return rows;
}

tdm_table_stats tdm_table_stats_of(const tdm_table *table)
{
    tdm_table_stats stats = {.limit_bytes = table->options.limit_bytes,
                             .row_bytes = table->row_bytes};
    stats.row_count = tdm__table_count(table, &stats.pending_count);
    uint64_t directory_bytes = 0;
    for (unsigned shard = 0; shard < TDM__TABLE_SHARDS; shard++) {
        stats.segment_count += table->shards[shard].segment_count;
        stats.split_count += table->shards[shard].split_count;
        directory_bytes += sizeof(uint32_t) << table->shards[shard].depth;
    }
    uint64_t use_bytes = table->has_use ? sizeof(tdm__table_use) : 0;
    stats.bytes = sizeof(*table) + directory_bytes +
                  table->used_segments * (uint64_t)TDM__TABLE_GROUPS * TDM__TABLE_LINE_BYTES +
                  table->used_rows * (table->row_bytes + use_bytes);
    stats.load = (double)(stats.row_count + stats.pending_count) /
                 (double)(stats.segment_count * TDM__TABLE_SEGMENT_ENTRIES);
    return stats;
}

tdm_status tdm__table_fail_full(const tdm_table *table, tdm_error *err)
{
    uint64_t pending, rows = tdm__table_count(table, &pending);
    char limit[32];
    return tdm_fail(err, TDM_ERR_RANGE,
                    "table '%s' is full: it has %llu rows of %zu bytes and %llu pending keys, and "
                    "its limit is %s; raise the limit, evict rows, or divide the keys among more "
                    "servers",
                    table->name, (unsigned long long)rows, table->row_bytes,
                    (unsigned long long)pending, tdm_text_bytes(table->options.limit_bytes, limit));
}

tdm_status tdm__table_fail_insert(const tdm_table *table, tdm_error *err)
{
    if (table->used_segments >= table->segment_capacity ||
        table->used_rows + table->block_rows > table->row_capacity)
        return tdm__table_fail_full(table, err);
    return tdm_fail(err, TDM_ERR_RANGE,
                    "table '%s': more than %d keys have the same upper bits of their hashes, which "
                    "chance does not cause; choose another seed, or check where the keys come from",
                    table->name, TDM__TABLE_SEGMENT_ENTRIES);
}

tdm_status tdm__table_check_limit(const tdm_table *table, uint64_t new_rows, int64_t new_pending,
                                  tdm_error *err)
{
    uint64_t pending, rows = tdm__table_count(table, &pending);
    rows += new_rows;
    pending += (uint64_t)new_pending; /* may be negative: the result is not */
    if (rows + pending <= table->row_limit) return TDM_OK;
    if (rows <= TDM__TABLE_MAX_ROWS - TDM__TABLE_SHARDS * (uint64_t)table->block_rows &&
        tdm__table_bytes_max(&table->options, rows, pending) <= table->options.limit_bytes)
        return TDM_OK;
    return tdm__table_fail_full(table, err);
}

bool tdm_table_has(const tdm_table *table, uint64_t key)
{
    const uint32_t *value = tdm__table_find(table, key, tdm__table_hash_of(table, key));
    return value && !(*value & TDM__TABLE_PENDING);
}

/* ---- reading rows ------------------------------------------------------------------------------- */

void tdm__table_initial(const tdm_table *table, uint64_t key, float *out)
{
    const tdm_table_options *o = &table->options;
    const tdm_rng_address address = {.seed = o->seed,
                                     .stream = TDM_RNG_STREAM_TABLE,
                                     .sub_stream = o->number,
                                     .step = key >> KEY_LOW_BITS,
                                     .sample = key & ((UINT64_C(1) << KEY_LOW_BITS) - 1)};
    if (o->init == TDM_TABLE_INIT_ZERO)
        memset(out, 0, (size_t)o->width * sizeof(*out));
    else if (o->init == TDM_TABLE_INIT_UNIFORM)
        tdm_kernel_uniform(address, o->init_scale, 0, out, (size_t)o->width);
    else
        tdm_kernel_normal(address, o->init_scale, 0, out, (size_t)o->width);
}

typedef struct pull_work {
    const tdm_table *table;
    const uint64_t *keys;
    float *out;
} pull_work;

/* The keys of a tile: first the lines of the index are requested, then those of the rows, then all are read. */
static void pull_tile(const pull_work *work, int64_t begin, int64_t count)
{
    const tdm_table *table = work->table;
    size_t width = (size_t)table->options.width, row_bytes = width * sizeof(float);
    uint64_t hashes[PULL_TILE];
    uint32_t rows[PULL_TILE];
    for (int64_t i = 0; i < count; i++) {
        hashes[i] = tdm__table_hash_of(table, work->keys[begin + i]);
        tdm__table_prefetch_group(table, hashes[i]);
    }
    for (int64_t i = 0; i < count; i++) {
        const uint32_t *value = tdm__table_find(table, work->keys[begin + i], hashes[i]);
        rows[i] = value && !(*value & TDM__TABLE_PENDING) ? *value : TDM__TABLE_NO_ROW;
        if (rows[i] == TDM__TABLE_NO_ROW) continue;
        const char *row = (const char *)tdm__table_row(table, rows[i]);
        for (size_t at = 0; at < row_bytes && at < 512; at += TDM__TABLE_LINE_BYTES)
            __builtin_prefetch(row + at);
    }
    for (int64_t i = 0; i < count; i++) {
        float *out = work->out + (size_t)(begin + i) * width;
        if (rows[i] == TDM__TABLE_NO_ROW)
            tdm__table_initial(table, work->keys[begin + i], out);
        else
            memcpy(out, tdm__table_row(table, rows[i]), row_bytes);
    }
}

static void pull_range(const void *args, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i += PULL_TILE)
        pull_tile(args, i, end - i < PULL_TILE ? end - i : PULL_TILE);
}

void tdm_table_pull(const tdm_table *table, const uint64_t *keys, int64_t count, float *out)
{
    pull_work work = {.table = table, .keys = keys, .out = out};
    uint64_t control = tdm_kernel_flush_enter();
    tdm_kernel_spread(count, 64 + table->options.width, pull_range, &work);
    tdm_kernel_flush_leave(control);
}

/* ---- hashed features ---------------------------------------------------------------------------- */

uint64_t tdm_table_fold(uint64_t key, uint64_t space)
{
    uint64_t mixed = tdm_mix64(key + UINT64_C(0x9e3779b97f4a7c15));
    return (uint64_t)((unsigned __int128)mixed * space >> 64);
}

uint64_t tdm_table_text_key(uint32_t field, const void *text, size_t length)
{
    return tdm_mix64(tdm_hash64(text, length)) + tdm_mix64(field);
}
