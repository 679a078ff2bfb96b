/*
 * predict.c: the size of a table with a given number of rows, before it exists.
 *
 * Keys are distributed over shards and segments by their hashes, so the number of keys with a given prefix of
 * bits follows a Poisson distribution. A prefix is split if more than SPLIT_ENTRIES keys have it; every split adds
 * one segment. The sums below are the expected numbers of splits, of directory entries and of blocks of rows. The
 * formulas are for planning and limits only: no number of a row depends on them.
 */
#include "table/internal.h"

#include <math.h>

enum { SIGMAS = 6, FEW_BLOCKS = 8 };

size_t tdm__table_row_bytes(int64_t width, int state_count)
{
    size_t bytes = (size_t)width * (size_t)(1 + state_count) * sizeof(float);
    if (bytes >= TDM__TABLE_LINE_BYTES) return tdm_align_up(bytes, 16);
    size_t rounded = sizeof(float); /* small rows do not cross a line */
    while (rounded < bytes) rounded *= 2;
    return rounded;
}

uint32_t tdm__table_block_rows(size_t row_bytes)
{
    uint32_t rows = 4;
    while (rows * 2 * row_bytes <= TDM__TABLE_BLOCK_BYTES) rows *= 2;
    return rows;
}

/* The probability that a Poisson variable with this mean is at least `count` (> 0), by the normal distribution. */
static double tail_of(double mean, double count)
{
    if (mean <= 0) return 0;
    if (count <= 1) return -expm1(-mean);
    return 0.5 * erfc((count - 0.5 - mean) / sqrt(2 * mean));
}

/* The expected number of blocks: of each shard, the rows divided by those of a block, rounded up. */
static double blocks_of(uint64_t row_count, double block_rows)
{
    double mean = (double)row_count / TDM__TABLE_SHARDS;
    double blocks = 0;
    if (mean > FEW_BLOCKS * block_rows) {
        blocks = mean / block_rows + (block_rows - 1) / (2 * block_rows);
    } else {
        for (int k = 0; k < 4 * FEW_BLOCKS; k++) blocks += tail_of(mean, k * block_rows + 1);
    }
    return blocks * TDM__TABLE_SHARDS;
}

typedef struct index_size {
    double segments, deviation; /* expected number and standard deviation */
    double directory;           /* entries */
} index_size;

static index_size index_size_of(uint64_t entry_count)
{
    index_size size = {.segments = TDM__TABLE_SHARDS, .directory = TDM__TABLE_SHARDS};
    double variance = 0, nodes = 1; /* prefixes of one depth in a shard */
    double mean = (double)entry_count / TDM__TABLE_SHARDS;
    for (int depth = 0; depth < TDM__TABLE_MAX_DEPTH; depth++, nodes *= 2) {
        double splits = tail_of(mean / nodes, TDM__TABLE_SPLIT_ENTRIES + 1);
        size.segments += TDM__TABLE_SHARDS * nodes * splits;
        variance += TDM__TABLE_SHARDS * nodes * splits * (1 - splits);
        double any = -expm1(nodes * log1p(-fmin(splits, 1 - 1e-12)));
        size.directory += TDM__TABLE_SHARDS * nodes * any;
    }
    size.deviation = sqrt(variance);
    return size;
}

static double bytes_of(const tdm_table_options *o, double blocks, double segments, double directory)
{
    size_t row_bytes = tdm__table_row_bytes(o->width, tdm_table_state_count(o->optim));
    size_t use_bytes = tdm__table_keeps_use(o) ? sizeof(tdm__table_use) : 0;
    return (double)sizeof(tdm_table) +
           blocks * tdm__table_block_rows(row_bytes) * (double)(row_bytes + use_bytes) +
           segments * TDM__TABLE_GROUPS * TDM__TABLE_LINE_BYTES + directory * sizeof(uint32_t);
}

static double block_rows_of(const tdm_table_options *o)
{
    return tdm__table_block_rows(tdm__table_row_bytes(o->width, tdm_table_state_count(o->optim)));
}

uint64_t tdm_table_predict(const tdm_table_options *options, uint64_t row_count,
                           uint64_t pending_count)
{
    index_size index = index_size_of(row_count + pending_count);
    double blocks = blocks_of(row_count, block_rows_of(options));
    return (uint64_t)bytes_of(options, blocks, index.segments, index.directory);
}

uint64_t tdm__table_bytes_max(const tdm_table_options *options, uint64_t row_count,
                              uint64_t pending_count)
{
    index_size index = index_size_of(row_count + pending_count);
    /* Each shard has at most one block that is not full. */
    double blocks = (double)row_count / block_rows_of(options);
    double unfilled = (double)(row_count < TDM__TABLE_SHARDS ? row_count : TDM__TABLE_SHARDS);
    return (uint64_t)bytes_of(options, blocks + unfilled,
                              index.segments + SIGMAS * index.deviation + 1, 2 * index.directory);
}

uint64_t tdm__table_row_limit(const tdm_table_options *options)
{
    uint64_t low = 0,
             high = TDM__TABLE_MAX_ROWS - TDM__TABLE_SHARDS * (uint64_t)block_rows_of(options);
    while (low < high) {
        uint64_t middle = low + (high - low + 1) / 2;
        if (tdm__table_bytes_max(options, middle, 0) <= options->limit_bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}
