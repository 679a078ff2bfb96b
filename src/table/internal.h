/*
 * internal.h: the memory of a table, and the functions that its files share.
 *
 * All memory is in four reserved blocks of address space that are filled from their beginning:
 *
 *   rows       row number * row_bytes:   [parameters][state 0][state 1]   in blocks of 2^k rows
 *   use        row number * 8:           [updates][last step]             only with has_use
 *   index      segment number * 8 KiB:   128 groups of 64 bytes: five keys, their values, a count
 *   directory  shard * 2^18:             segment numbers
 *
 * The hash of a key selects everything, from its upper bits down: 6 bits select the shard, the next ones (the
 * depth of the shard) an entry of the shard's directory, which names a segment; the lowest 7 bits select the first
 * group in the segment. A key is in this group or, if it is full, in the next one that was not. A segment that has
 * SPLIT_ENTRIES is split by one more bit (extendible hashing), so growth moves a few hundred entries at a time, and
 * never a row.
 *
 * Invariants: a shard changes only its entries, segments and rows, so shards can be changed by different threads;
 * they share the two counters of used blocks only, which are atomic. Entries are removed only by building all
 * segments of a shard again (evict.c), so a group that is not full ends a search.
 */
#ifndef TANDEM_TABLE_INTERNAL_H
#define TANDEM_TABLE_INTERNAL_H

#include "base/base.h"
#include "os/os.h"
#include "table/table.h"

#include <stdatomic.h>

enum {
    TDM__TABLE_SHARD_BITS = 6,
    TDM__TABLE_SHARDS = 1 << TDM__TABLE_SHARD_BITS,
    TDM__TABLE_GROUP_ENTRIES = 5,
    TDM__TABLE_GROUP_BITS = 7,
    TDM__TABLE_GROUPS = 1 << TDM__TABLE_GROUP_BITS,
    TDM__TABLE_SEGMENT_ENTRIES = TDM__TABLE_GROUPS * TDM__TABLE_GROUP_ENTRIES,
    TDM__TABLE_SPLIT_ENTRIES = 512, /* four fifths of them */
    TDM__TABLE_MAX_DEPTH = 18,
    TDM__TABLE_BLOCK_BYTES = 4096, /* of rows: as many as fit, a power of two */
    TDM__TABLE_LINE_BYTES = 64,
    TDM__TABLE_AHEAD = 8 /* keys between a prefetch and the use of its lines */
};
#define TDM__TABLE_NO_ROW UINT32_MAX
#define TDM__TABLE_PENDING 0x80000000u /* in a value: the rest is a number of occurrences */
#define TDM__TABLE_MAX_ROWS UINT64_C(0x7fffff00)

/* ---- the update of a row, compiled for each level (vec/) ---------------------------------------- */

/* What a method needs, as the numbers that it computes with. */
typedef struct tdm__table_rule {
    float lr, eps, decay;
    float beta1, beta2, fresh1, fresh2;
    float l1, l2, beta;
    double lr_f64, beta1_f64, beta2_f64;
    /* Adam: 1 - beta1^t and 1 / sqrt(1 - beta2^t) for t below TDM__TABLE_CORRECTIONS. */
    const double *correction1;
    const float *root_correction;
} tdm__table_rule;
enum { TDM__TABLE_CORRECTIONS = 512 };

/* A key of a push, once. */
typedef struct tdm__table_unique {
    uint64_t key, hash;
    uint32_t first, last; /* its positions in the call: a list through `next` */
    uint32_t count;
    uint32_t row; /* TDM__TABLE_NO_ROW: it is not admitted yet */
} tdm__table_unique;

typedef struct tdm__table_use {
    uint32_t updates, last_step;
} tdm__table_use;

typedef struct tdm__table_work {
    const tdm__table_rule *rule;
    const tdm__table_unique *uniques;
    size_t count;
    const uint32_t *next;
    const float *grads;
    float *sum; /* [width], for keys that occur several times */
    uint8_t *rows;
    tdm__table_use *use; /* NULL: not kept */
    size_t row_bytes, width;
    uint32_t step;
} tdm__table_work;

typedef void (*tdm__table_update_fn)(const tdm__table_work *work);

typedef struct tdm__table_methods {
    int level;
    tdm__table_update_fn update[TDM_TABLE_OPTIM_COUNT];
} tdm__table_methods;

extern const tdm__table_methods tdm__table_methods_0, tdm__table_methods_2, tdm__table_methods_3,
    tdm__table_methods_4;
/* Those for CPUs of `level`; the tests run all of them. */
const tdm__table_methods *tdm__table_methods_at(int level);

/* ---- the table ---------------------------------------------------------------------------------- */

typedef struct tdm__table_group {
    uint64_t keys[TDM__TABLE_GROUP_ENTRIES];
    uint32_t values[TDM__TABLE_GROUP_ENTRIES]; /* row numbers, or pending occurrences */
    uint8_t used;
    uint8_t depth;    /* of the segment, in its first group only */
    uint16_t entries; /* the same */
} tdm__table_group;
_Static_assert(sizeof(tdm__table_group) == TDM__TABLE_LINE_BYTES, "a group is a cache line");

typedef struct tdm__table_shard {
    _Alignas(TDM__TABLE_LINE_BYTES) uint32_t depth; /* of its directory */
    uint32_t block_next, block_end;                 /* unused rows of its newest block */
    uint32_t free_row; /* evicted rows, a list through their first bytes; NO_ROW ends it */
    uint64_t row_count, pending_count;
    uint64_t segment_count, split_count;
} tdm__table_shard;

/* Where the keys of a call are prepared. It grows with the largest call. */
typedef struct tdm__table_scratch {
    int64_t capacity;
    uint64_t *hashes; /* by position */
    uint32_t *order;  /* positions, by shard; within a shard in the order of the call */
    uint32_t *next;   /* by position: the next one with the same key */
    uint32_t *slots;  /* hash tables of uniques: numbers + 1 */
    tdm__table_unique *uniques;
    float *sums; /* [TDM__TABLE_SHARDS, width] */
} tdm__table_scratch;

struct tdm_table {
    tdm_table_options options;
    char name[64];
    int state_count;
    size_t row_bytes;
    uint32_t block_rows;
    bool has_use;
    uint64_t salt;
    uint64_t row_limit; /* as many rows without pending keys are always within the limit */
    const tdm__table_methods *methods;
    double correction1[TDM__TABLE_CORRECTIONS];
    float root_correction[TDM__TABLE_CORRECTIONS];
    tdm_pages rows, use, index, directory;
    uint32_t segment_capacity;
    uint64_t row_capacity;
    _Atomic uint64_t used_rows; /* in blocks that shards have taken */
    _Atomic uint32_t used_segments;
    tdm__table_shard shards[TDM__TABLE_SHARDS];
    tdm__table_scratch scratch;
};

static inline uint64_t tdm__table_hash_of(const tdm_table *table, uint64_t key)
{
    return tdm_mix64(key ^ table->salt);
}

static inline unsigned tdm__table_shard_of(uint64_t hash)
{
    return (unsigned)(hash >> (64 - TDM__TABLE_SHARD_BITS));
}

static inline float *tdm__table_row(const tdm_table *table, uint32_t row)
{
    return (float *)(void *)((uint8_t *)table->rows.data + row * table->row_bytes);
}

static inline tdm__table_use *tdm__table_use_of(const tdm_table *table, uint32_t row)
{
    return (tdm__table_use *)table->use.data + row;
}

static inline uint32_t *tdm__table_directory(const tdm_table *table, unsigned shard)
{
    return (uint32_t *)table->directory.data + ((size_t)shard << TDM__TABLE_MAX_DEPTH);
}

static inline tdm__table_group *tdm__table_segment(const tdm_table *table, uint32_t segment)
{
    return (tdm__table_group *)table->index.data + ((size_t)segment << TDM__TABLE_GROUP_BITS);
}

/* The bits below those of the shard: the upper `depth` of them select an entry of the directory. */
static inline uint32_t tdm__table_slot(uint64_t hash, uint32_t depth)
{
    return (uint32_t)((hash << TDM__TABLE_SHARD_BITS) >> 1 >> (63 - depth));
}

/* The first group where the key can be. */
static inline tdm__table_group *tdm__table_group_of(const tdm_table *table, uint64_t hash,
                                                    tdm__table_group **out_segment)
{
    unsigned shard = tdm__table_shard_of(hash);
    uint32_t slot = tdm__table_slot(hash, table->shards[shard].depth);
    *out_segment = tdm__table_segment(table, tdm__table_directory(table, shard)[slot]);
    return *out_segment + (hash & (TDM__TABLE_GROUPS - 1));
}

static inline void tdm__table_prefetch_group(const tdm_table *table, uint64_t hash)
{
    tdm__table_group *segment;
    __builtin_prefetch(tdm__table_group_of(table, hash, &segment));
}

/* ---- index.c ------------------------------------------------------------------------------------ */

/* The value of a key; NULL if it is not in the index. */
uint32_t *tdm__table_find(const tdm_table *table, uint64_t key, uint64_t hash);
/* Adds a key that is not in the index. False: the limit is reached, or too many keys have the
 * same upper bits of their hashes. */
bool tdm__table_insert(tdm_table *table, uint64_t key, uint64_t hash, uint32_t value);
/* Gives a shard its first segment, which is empty. */
bool tdm__table_shard_init(tdm_table *table, unsigned shard);
/* A row with initial values; TDM__TABLE_NO_ROW if the limit is reached. `lr` is used by FTRL only:
 * its state is such that it gives the initial parameters. */
uint32_t tdm__table_row_take(tdm_table *table, unsigned shard, uint64_t key, double lr);

/* Adds a row to the list of free ones of its shard. */
void tdm__table_row_free(tdm_table *table, unsigned shard, uint32_t row);
/* Adds an entry to a segment, which has a free one. */
void tdm__table_segment_add(tdm__table_group *segment, uint64_t key, uint64_t hash, uint32_t value);

/* Calls `visit` for all entries of a shard. */
typedef void (*tdm__table_visit_fn)(uint64_t key, uint32_t value, void *user);
void tdm__table_visit(const tdm_table *table, unsigned shard, tdm__table_visit_fn visit,
                      void *user);

/* ---- evict.c ------------------------------------------------------------------------------------ */

/* Removes the entries for which `keep` returns false, with their rows. */
typedef bool (*tdm__table_keep_fn)(const tdm_table *table, uint64_t key, uint32_t value,
                                   const void *user);
void tdm__table_filter(tdm_table *table, tdm__table_keep_fn keep, const void *user);

/* ---- table.c ------------------------------------------------------------------------------------ */

/* Checks options and writes them with defaults. */
tdm_status tdm__table_options_check(const tdm_table_options *options, tdm_table_options *out,
                                    tdm_error *err);
/* The parameters of a key that has no row. */
void tdm__table_initial(const tdm_table *table, uint64_t key, float *out);
/* Whether `new_rows` and `new_pending` more fit; the error says what to do. */
tdm_status tdm__table_check_limit(const tdm_table *table, uint64_t new_rows, int64_t new_pending,
                                  tdm_error *err);
tdm_status tdm__table_fail_full(const tdm_table *table, tdm_error *err);
/* The error of a key that could not be added although the limit allows it. */
tdm_status tdm__table_fail_insert(const tdm_table *table, tdm_error *err);
uint64_t tdm__table_count(const tdm_table *table, uint64_t *out_pending);

/* ---- predict.c ---------------------------------------------------------------------------------- */

/* The layout of a row. */
size_t tdm__table_row_bytes(int64_t width, int state_count);
uint32_t tdm__table_block_rows(size_t row_bytes);
bool tdm__table_keeps_use(const tdm_table_options *options);
/* An upper bound of the size: the expected size and six standard deviations. */
uint64_t tdm__table_bytes_max(const tdm_table_options *options, uint64_t row_count,
                              uint64_t pending_count);
/* The most rows with tdm__table_bytes_max within the limit. */
uint64_t tdm__table_row_limit(const tdm_table_options *options);

#endif
