/*
 * table_test.c: sparse tables compared with a plain map (table_reference.c) under random operations, and what must
 * not change a bit: threads, levels, batches, growth and the way through a checkpoint.
 */
#include "check.h"
#include "table/internal.h"
#include "tensor/kernel.h"
#include "unit/table_reference.h"

enum { MAX_BATCH = 4096 };

static tdm_table *table_of(const tdm_table_options *options)
{
    tdm_table *table = NULL;
    tdm_error err = {0};
    if (tdm_table_create(options, &table, &err) != TDM_OK) fprintf(stderr, "  (%s)\n", err.message);
    REQUIRE(table != NULL);
    return table;
}

static void hash_of(const tdm_table *table, char hex[TDM_SHA256_HEX])
{
    REQUIRE(tdm_table_hash(table, hex, NULL) == TDM_OK);
}

static float random_float(tdm_rng *rng)
{
    return tdm_rng_uniform(rng) * 2 - 1;
}

/* Keys and gradients of a batch; keys are from a small set, spread over all 64 bits. */
typedef struct batch {
    uint64_t keys[MAX_BATCH];
    float grads[MAX_BATCH * REFERENCE_MAX_WIDTH];
    int64_t count;
} batch;

static void batch_fill(batch *b, tdm_rng *rng, int64_t count, uint64_t key_count, int64_t width)
{
    b->count = count;
    for (int64_t i = 0; i < count; i++) {
        uint64_t rank = tdm_rng_below(rng, tdm_rng_below(rng, key_count) + 1);
        b->keys[i] = rank * UINT64_C(0x9e3779b97f4a7c15);
        for (int64_t j = 0; j < width; j++) b->grads[i * width + j] = random_float(rng);
    }
}

static void push(tdm_table *table, double lr, uint32_t step, const uint64_t *keys,
                 const float *grads, int64_t count)
{
    tdm_error err = {0};
    tdm_table_step settings = {.lr = lr, .step = step};
    tdm_status status = tdm_table_push(table, &settings, keys, grads, count, &err);
    if (status != TDM_OK) fprintf(stderr, "  (%s)\n", err.message);
    REQUIRE(status == TDM_OK);
}

/* ---- random operations -------------------------------------------------------------------------- */

/* Whether each row of the table is that of the map, with its states. */
static void compare_all(const tdm_table *table, const reference *map)
{
    size_t width = (size_t)map->options.width;
    size_t state_width = width * (size_t)tdm_table_state_count(map->options.optim);
    uint64_t rows = 0, pending = 0;
    for (size_t i = 0; i < REFERENCE_SLOTS; i++) {
        const reference_row *row = &map->rows[i];
        rows += row->is_used && row->has_row;
        pending += row->is_used && !row->has_row && row->occurrences > 0;
    }
    tdm_table_stats stats = tdm_table_stats_of(table);
    CHECK_INT(stats.row_count, rows);
    CHECK_INT(stats.pending_count, pending);
    tdm_table_order *order = NULL;
    REQUIRE(tdm_table_order_create(table, &order, NULL) == TDM_OK);
    uint64_t previous = 0;
    float params[REFERENCE_MAX_WIDTH], states[2 * REFERENCE_MAX_WIDTH];
    bool is_equal = true;
    for (uint64_t i = 0; i < rows; i++) {
        uint64_t key;
        uint32_t updates, last_step;
        tdm_table_rows out = {&key, params, states, &updates, &last_step};
        tdm_table_export(order, i, 1, &out);
        is_equal = is_equal && (i == 0 || key > previous);
        previous = key;
        const reference_row *row = reference_find(map, key);
        REQUIRE(row && row->has_row);
        is_equal = is_equal && memcmp(params, row->numbers, width * sizeof(float)) == 0 &&
                   memcmp(states, row->numbers + width, state_width * sizeof(float)) == 0;
        if (table->has_use)
            is_equal = is_equal && updates == row->updates && last_step == row->last_step;
    }
    for (uint64_t i = 0; i < pending; i++) {
        uint64_t key;
        uint32_t occurrences;
        tdm_table_export_pending(order, i, 1, &key, &occurrences);
        const reference_row *row = reference_find(map, key);
        is_equal = is_equal && row && row->occurrences == occurrences;
    }
    CHECK(is_equal);
    tdm_table_order_destroy(order);
}

/* Exports everything and imports it into a new table, which replaces the old one. */
static tdm_table *through_checkpoint(tdm_table *table)
{
    tdm_table_stats stats = tdm_table_stats_of(table);
    size_t width = (size_t)tdm_table_options_of(table)->width, count = stats.row_count + 1;
    tdm_table_rows rows = {.keys = calloc(count, sizeof(uint64_t)),
                           .params = calloc(count * width, sizeof(float)),
                           .states = calloc(count * width * 2, sizeof(float)),
                           .updates = calloc(count, sizeof(uint32_t)),
                           .last_steps = calloc(count, sizeof(uint32_t))};
    uint64_t *pending = calloc(stats.pending_count + 1, sizeof(*pending));
    uint32_t *occurrences = calloc(stats.pending_count + 1, sizeof(*occurrences));
    tdm_table_order *order = NULL;
    REQUIRE(tdm_table_order_create(table, &order, NULL) == TDM_OK);
    tdm_table_export(order, 0, stats.row_count, &rows);
    tdm_table_export_pending(order, 0, stats.pending_count, pending, occurrences);
    tdm_table_order_destroy(order);

    char before[TDM_SHA256_HEX], after[TDM_SHA256_HEX];
    tdm_table *copy = table_of(tdm_table_options_of(table));
    CHECK_INT(tdm_table_import(copy, &rows, stats.row_count, NULL), TDM_OK);
    CHECK_INT(tdm_table_import_pending(copy, pending, occurrences, stats.pending_count, NULL),
              TDM_OK);
    hash_of(table, before);
    hash_of(copy, after);
    CHECK_TEXT(after, before);
    free(rows.keys);
    free(rows.params);
    free(rows.states);
    free(rows.updates);
    free(rows.last_steps);
    free(pending);
    free(occurrences);
    tdm_table_destroy(table);
    return copy;
}

static void compare_pull(const tdm_table *table, const reference *map, const batch *b)
{
    size_t width = (size_t)map->options.width;
    float out[64 * REFERENCE_MAX_WIDTH], expected[REFERENCE_MAX_WIDTH];
    int64_t count = b->count < 64 ? b->count : 64;
    tdm_table_pull(table, b->keys, count, out);
    bool is_equal = true;
    for (int64_t i = 0; i < count; i++) {
        reference_pull(map, b->keys[i], expected);
        is_equal = is_equal &&
                   memcmp(out + (size_t)i * width, expected, width * sizeof(float)) == 0;
        const reference_row *row = reference_find(map, b->keys[i]);
        is_equal = is_equal && tdm_table_has(table, b->keys[i]) == (row && row->has_row);
    }
    CHECK(is_equal);
}

static void random_operations(const tdm_table_options *options, uint64_t seed, int operations)
{
    tdm_table *table = table_of(options);
    reference *map = reference_create(tdm_table_options_of(table));
    map->options.name = NULL;
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = seed, .stream = TDM_RNG_STREAM_USER});
    batch *b = malloc(sizeof(*b));
    for (int i = 0; i < operations; i++) {
        uint64_t choice = tdm_rng_below(&rng, 10000);
        uint32_t step = (uint32_t)i + 1;
        batch_fill(b, &rng, 1 + (int64_t)tdm_rng_below(&rng, 8), 30000, options->width);
        if (choice < 6000) {
            double lr = 0.01 + 0.1 * (double)tdm_rng_uniform(&rng);
            push(table, lr, step, b->keys, b->grads, b->count);
            reference_push(map, &(tdm_table_step){.lr = lr, .step = step}, b->keys, b->grads,
                           b->count);
        } else if (choice < 9998) {
            compare_pull(table, map, b);
        } else if (choice == 9998 && table->has_use) {
            tdm_table_evict_rule rule = {.below_updates = 3, .before_step = step - step / 3};
            rule.drop_pending = i % 2;
            CHECK_INT(tdm_table_evict(table, &rule, NULL, NULL), TDM_OK);
            reference_evict(map, &rule);
        } else {
            table = through_checkpoint(table);
        }
    }
    compare_all(table, map);
    table = through_checkpoint(table);
    compare_all(table, map);
    free(b);
    reference_destroy(map);
    tdm_table_destroy(table);
}

static void random_operations_equal_a_plain_map(void)
{
    static const tdm_table_options rows[] = {
        {.width = 1, .optim = TDM_TABLE_OPTIM_FTRL, .l1 = 0.1, .l2 = 0.5},
        {.width = 16,
         .optim = TDM_TABLE_OPTIM_ADAGRAD,
         .init = TDM_TABLE_INIT_UNIFORM,
         .init_scale = 0.1,
         .weight_decay = 0.01},
        {.width = 7,
         .optim = TDM_TABLE_OPTIM_ADAM,
         .init = TDM_TABLE_INIT_NORMAL,
         .init_scale = 0.1,
         .admission = 3},
        {.width = 33,
         .optim = TDM_TABLE_OPTIM_SGD,
         .init = TDM_TABLE_INIT_UNIFORM,
         .init_scale = 1,
         .weight_decay = 0.1,
         .keep_use = true,
         .admission = 2},
        {.width = 20,
         .optim = TDM_TABLE_OPTIM_FTRL,
         .init = TDM_TABLE_INIT_NORMAL,
         .init_scale = 0.1,
         .beta = 0.5,
         .l1 = 0.01,
         .keep_use = true},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tdm_table_options options = rows[i];
        options.seed = i;
        random_operations(&options, i, 20000);
    }
    for (uint64_t seed = 10; seed < 13; seed++) {
        tdm_table_options options = rows[2];
        options.seed = seed;
        random_operations(&options, seed, 100000);
    }
}

/* ---- what must not change a bit ----------------------------------------------------------------- */

static const tdm_table_options plain = {.name = "items",
                                        .seed = 5,
                                        .width = 16,
                                        .optim = TDM_TABLE_OPTIM_ADAM,
                                        .init = TDM_TABLE_INIT_NORMAL,
                                        .init_scale = 0.05};

/* The hash after a fixed sequence of pushes with duplicates, many new keys and growth. */
static void train(const tdm_table_options *options, int threads, int level,
                  char hex[TDM_SHA256_HEX])
{
    tdm_table *table = table_of(options);
    table->methods = tdm__table_methods_at(level);
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 3, .stream = TDM_RNG_STREAM_USER});
    batch *b = malloc(sizeof(*b));
    float *out = malloc(sizeof(float) * MAX_BATCH * REFERENCE_MAX_WIDTH);
    tdm_kernel_mode before = tdm_kernel_enter(threads);
    for (uint32_t step = 1; step <= 40; step++) {
        batch_fill(b, &rng, MAX_BATCH, 200000, options->width);
        push(table, 0.01, step, b->keys, b->grads, b->count);
        tdm_table_pull(table, b->keys, b->count, out);
        tdm_table_pull(table, b->keys, 1, b->grads);
        if (memcmp(out, b->grads, sizeof(float) * (size_t)options->width) != 0) CHECK(false);
    }
    tdm_kernel_leave(&before);
    CHECK(tdm_table_stats_of(table).split_count > 20);
    hash_of(table, hex);
    free(out);
    free(b);
    tdm_table_destroy(table);
}

static void threads_and_levels_give_the_same_bits(void)
{
    for (int optim = 0; optim < TDM_TABLE_OPTIM_COUNT; optim++) {
        for (int64_t width = 1; width <= 40; width += 13) {
            tdm_table_options options = plain;
            options.optim = optim;
            options.width = width;
            char first[TDM_SHA256_HEX], hex[TDM_SHA256_HEX];
            train(&options, 1, tdm_kernel_level(), first);
            for (int threads = 2; threads <= 4; threads++) {
                train(&options, threads, tdm_kernel_level(), hex);
                CHECK_TEXT(hex, first);
            }
            for (int level = 2; level < tdm_kernel_level(); level++) {
                train(&options, 1, level, hex);
                CHECK_TEXT(hex, first);
            }
        }
    }
}

/* Rows of different keys do not affect each other, so their order in the calls does not matter. */
static void order_of_keys_does_not_matter(void)
{
    enum { KEYS = 3000, WIDTH = 16 };
    char first[TDM_SHA256_HEX] = "", hex[TDM_SHA256_HEX];
    float *grads = malloc(sizeof(float) * KEYS * WIDTH);
    uint64_t *keys = malloc(sizeof(*keys) * KEYS);
    for (int way = 0; way < 4; way++) {
        tdm_table *table = table_of(&plain);
        for (uint32_t step = 1; step <= 3; step++) {
            for (int i = 0; i < KEYS; i++) {
                int key = way & 1 ? KEYS - 1 - i : i;
                keys[i] = (uint64_t)key;
                for (int j = 0; j < WIDTH; j++)
                    grads[i * WIDTH + j] = (float)((key * 31 + j * 7 + (int)step) % 101) - 50;
            }
            int part = way & 2 ? 7 : KEYS;
            for (int i = 0; i < KEYS; i += part)
                push(table, 0.1, step, keys + i, grads + i * WIDTH,
                     i + part < KEYS ? part : KEYS - i);
        }
        hash_of(table, way == 0 ? first : hex);
        if (way > 0) CHECK_TEXT(hex, first);
        tdm_table_destroy(table);
    }
    free(keys);
    free(grads);
}

static void duplicates_are_summed_in_order_before_one_update(void)
{
    tdm_table_options options = {.width = 1, .optim = TDM_TABLE_OPTIM_ADAGRAD};
    tdm_table *table = table_of(&options), *once = table_of(&options);
    const uint64_t keys[] = {9, 4, 9, 9};
    const float grads[] = {1e8f, 5, 1,
                           -1e8f}; /* (1e8 + 1) - 1e8 = 0 in f32; another order gives 1 */
    float sum = 0, out[2], expected[2];
    push(table, 0.5, 1, keys, grads, 4);
    push(once, 0.5, 1, (const uint64_t[]){9, 4}, (const float[]){sum, 5}, 2);
    tdm_table_pull(table, keys, 2, out);
    tdm_table_pull(once, keys, 2, expected);
    CHECK(memcmp(out, expected, sizeof(out)) == 0);
    CHECK(out[0] == 0 && out[1] == -0.5f);
    tdm_table_destroy(table);
    tdm_table_destroy(once);
}

/* Also if the caller is not in the mode of kernels. */
static void subnormal_numbers_count_as_zero(void)
{
    tdm_table_options options = {.width = 1, .optim = TDM_TABLE_OPTIM_SGD};
    tdm_table *table = table_of(&options);
    const uint64_t key = 1;
    const float grad = 1e-39f;
    float out = 1;
    push(table, 1, 1, &key, &grad, 1);
    tdm_table_pull(table, &key, 1, &out);
    CHECK(out == 0);
    volatile float half = 0.5f, small = 1.5e-38f;
    CHECK(half * small > 0); /* the mode of the caller is unchanged */
    tdm_table_destroy(table);
}

/* These bits are part of trained models. */
static void recorded_bits(void)
{
    char hex[TDM_SHA256_HEX];
    tdm_table_options options = plain;
    static const char *const expected[TDM_TABLE_OPTIM_COUNT] = {
        "1a1cca6f4dcaf95bac81f26d66006c1d5d8a9759e7c1f75c6985242e23a589c0",
        "ac2cd32cbddc98eb2950de14c040e4961bfd9c100e52d1c53aefed511542c797",
        "2aaa15c7ef3c7bd297cad36d259cac8ab25b27dbd706e6f8a3a77bba8fa41b4a",
        "2527886afab10c56f92318e6471ad4c3f7755b4161bf3671aefd8e24b6c6e46d",
    };
    for (int optim = 0; optim < TDM_TABLE_OPTIM_COUNT; optim++) {
        options.optim = optim;
        train(&options, 2, tdm_kernel_level(), hex);
        CHECK_TEXT(hex, expected[optim]);
    }
    CHECK_INT(tdm_table_fold(0, 1000), 883);
    CHECK_INT(tdm_table_fold(1, 1000), 566);
    CHECK(tdm_table_fold(UINT64_MAX, UINT64_MAX) == UINT64_C(0xe4d971771b652c1f));
    CHECK_INT(tdm_table_fold(77, 1), 0);
    CHECK_INT(tdm_table_text_key(3, "abc", 3), 3181774680912092664);
}

static void initial_values_are_a_function_of_the_key(void)
{
    const uint64_t keys[] = {0, UINT64_MAX, UINT64_C(1) << 48, 12345};
    float first[4 * 16], out[4 * 16];
    tdm_table *table = table_of(&plain);
    tdm_table_pull(table, keys, 4, first);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < i; k++) CHECK(memcmp(first + i * 16, first + k * 16, 64) != 0);
    CHECK_INT(tdm_table_stats_of(table).row_count, 0); /* reading stores nothing */
    float zeros[16] = {0};
    for (int i = 3; i >= 0; i--) { /* a zero gradient of Adam without decay changes nothing */
        push(table, 0.1, 1, &keys[i], zeros, 1);
        tdm_table_pull(table, keys, 4, out);
        CHECK(memcmp(out, first, sizeof(out)) == 0);
    }
    CHECK_INT(tdm_table_stats_of(table).row_count, 4);
    tdm_table_destroy(table);

    tdm_table_options other = plain;
    other.number = 1;
    table = table_of(&other);
    tdm_table_pull(table, keys, 4, out);
    CHECK(memcmp(out, first, 64) != 0);
    tdm_table_destroy(table);
}

static void fold_is_even(void)
{
    enum { SPACE = 1000, KEYS = 1000000 };
    int *counts = calloc(SPACE, sizeof(*counts)), least = KEYS, most = 0;
    for (uint64_t key = 0; key < KEYS; key++) {
        uint64_t at = tdm_table_fold(key, SPACE);
        REQUIRE(at < SPACE);
        counts[at]++;
    }
    for (int i = 0; i < SPACE; i++) {
        least = counts[i] < least ? counts[i] : least;
        most = counts[i] > most ? counts[i] : most;
    }
    CHECK(least > 830 && most < 1170); /* 1000 and more than 5 standard deviations */
    free(counts);
    CHECK(tdm_table_text_key(1, "x", 1) != tdm_table_text_key(2, "x", 1));
}

/* ---- limits and memory -------------------------------------------------------------------------- */

static void full_table_is_refused_without_a_change(void)
{
    tdm_table_options options = plain;
    options.limit_bytes = 4 << 20;
    tdm_table *table = table_of(&options);
    enum { PART = 512 };
    uint64_t keys[PART], next = 0;
    static float grads[PART * 16];
    tdm_error err = {0};
    tdm_status status = TDM_OK;
    char before[TDM_SHA256_HEX] = "", after[TDM_SHA256_HEX];
    while (status == TDM_OK && next < 1000000) {
        hash_of(table, before);
        for (int i = 0; i < PART; i++) keys[i] = next++;
        status = tdm_table_push(table, &(tdm_table_step){.lr = 1, .step = 1}, keys, grads, PART,
                                &err);
    }
    CHECK_INT(status, TDM_ERR_RANGE);
    CHECK_HAS(err.message, "table 'items' is full: it has ");
    CHECK_HAS(err.message, "rows of 192 bytes and 0 pending keys, and its limit is 4");
    CHECK_HAS(err.message, "raise the limit, evict rows");
    hash_of(table, after);
    CHECK_TEXT(after, before);
    tdm_table_stats stats = tdm_table_stats_of(table);
    CHECK(stats.bytes <= options.limit_bytes);
    CHECK(stats.bytes > options.limit_bytes * 8 / 10);
    /* Rows that exist can still be updated, and single rows fit until the limit. */
    for (int i = 0; i < PART; i++) keys[i] = (uint64_t)i;
    push(table, 1, 2, keys, grads, PART);
    for (status = TDM_OK; status == TDM_OK; next++)
        status = tdm_table_push(table, &(tdm_table_step){.lr = 1}, &next, grads, 1, NULL);
    CHECK(next < 1000000);
    CHECK(tdm_table_stats_of(table).bytes <= options.limit_bytes);

    /* Eviction makes room again. */
    uint64_t evicted = 0;
    CHECK_INT(tdm_table_evict(table, &(tdm_table_evict_rule){.below_updates = 2}, &evicted, NULL),
              TDM_OK);
    CHECK(evicted > 5000);
    CHECK_INT(tdm_table_stats_of(table).row_count, PART);
    for (int i = 0; i < PART; i++) keys[i] = (uint64_t)i + 2000000;
    push(table, 1, 3, keys, grads, PART);
    CHECK(tdm_table_stats_of(table).bytes <= options.limit_bytes);
    tdm_table_destroy(table);
}

static void predicted_memory_is_used(void)
{
    static const tdm_table_options rows[] = {
        {.width = 1, .optim = TDM_TABLE_OPTIM_FTRL},
        {.width = 16, .optim = TDM_TABLE_OPTIM_ADAGRAD},
        {.width = 10, .optim = TDM_TABLE_OPTIM_ADAM},
        {.width = 64, .optim = TDM_TABLE_OPTIM_SGD, .keep_use = true},
    };
    enum { PART = 4096 };
    uint64_t keys[PART];
    float *grads = calloc(PART * 64, sizeof(*grads));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tdm_table *table = table_of(&rows[i]);
        double worst = 0;
        for (uint64_t count = 0; count < 600000; count += PART) {
            for (int k = 0; k < PART; k++) keys[k] = (count + (uint64_t)k) * (i + 1);
            push(table, 1, 1, keys, grads, PART);
            double actual = (double)tdm_table_stats_of(table).bytes;
            double predicted = (double)tdm_table_predict(tdm_table_options_of(table), count + PART,
                                                         0);
            double off = fabs(predicted / actual - 1);
            worst = off > worst ? off : worst;
        }
        CHECK(worst < 0.05);
        if (worst >= 0.05) fprintf(stderr, "  (case %zu: %.3f)\n", i, worst);
        tdm_table_destroy(table);
    }
    free(grads);
}

static void growth_keeps_all_rows(void)
{
    enum { PART = 4096, KEYS = 400000 };
    tdm_table_options options = {.width = 2, .optim = TDM_TABLE_OPTIM_SGD};
    tdm_table *table = table_of(&options);
    uint64_t keys[PART];
    float grads[PART * 2], out[2];
    for (uint64_t first = 0; first < KEYS; first += PART) {
        for (uint64_t i = 0; i < PART; i++) {
            keys[i] = first + i;
            grads[2 * i] = -(float)(first + i);
            grads[2 * i + 1] = 1;
        }
        push(table, 1, 1, keys, grads, PART);
    }
    bool is_equal = true;
    for (uint64_t key = 0; key < KEYS; key++) {
        tdm_table_pull(table, &key, 1, out);
        is_equal = is_equal && out[0] == (float)key && out[1] == -1;
    }
    CHECK(is_equal);
    tdm_table_stats stats = tdm_table_stats_of(table);
    CHECK(stats.load > 0.35 && stats.load < 0.85);
    CHECK_INT(stats.segment_count, 64 + stats.split_count);
    tdm_table_destroy(table);
}

/* ---- refusals ----------------------------------------------------------------------------------- */

static void bad_options_are_refused(void)
{
    const struct {
        tdm_table_options options;
        const char *part;
    } rows[] = {
        {{.width = 0}, "table 'table': width is 0; it must be 1 to 16384"},
        {{.width = 16385}, "width is 16385"},
        {{.width = 1, .optim = 4}, "unknown optimiser 4"},
        {{.width = 1, .init = 3}, "unknown kind of initial values 3"},
        {{.width = 1, .admission = 0x80000000u}, "admission is 2147483648"},
        {{.width = 1, .eps = NAN}, "eps is nan; it must be a finite number of at least 0"},
        {{.width = 1, .init_scale = -1}, "init_scale is -1"},
        {{.width = 1, .beta2 = 1}, "beta2 is 1; both must be"},
        {{.width = 1, .l1 = 1}, "l1 and l2 are for FTRL"},
        {{.width = 1, .optim = TDM_TABLE_OPTIM_FTRL, .weight_decay = 1}, "set l2 instead"},
        {{.width = 1, .limit_bytes = 1000}, "a limit of 1000 bytes is too low for one row"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tdm_table *table = NULL;
        tdm_error err = {0};
        CHECK(tdm_table_create(&rows[i].options, &table, &err) != TDM_OK);
        CHECK(table == NULL);
        CHECK_HAS(err.message, rows[i].part);
    }
}

static void bad_calls_are_refused(void)
{
    tdm_error err = {0};
    tdm_table_options options = {
        .name = "t", .width = 1, .optim = TDM_TABLE_OPTIM_FTRL, .admission = 5};
    tdm_table *table = table_of(&options);
    uint64_t keys[] = {3, 3};
    float numbers[] = {1, 2, 3, 4};
    uint32_t occurrences[] = {2, 5};
    CHECK_INT(tdm_table_push(table, &(tdm_table_step){.lr = 0}, keys, numbers, 1, &err),
              TDM_ERR_INVALID);
    CHECK_HAS(err.message, "lr is 0; it must be finite and greater than 0 for FTRL");
    CHECK_INT(tdm_table_push(table, &(tdm_table_step){.lr = INFINITY}, keys, numbers, 1, &err),
              TDM_ERR_INVALID);
    CHECK_INT(tdm_table_push(table, &(tdm_table_step){.lr = 1}, keys, numbers, -1, &err),
              TDM_ERR_INVALID);
    CHECK_INT(tdm_table_push(table, &(tdm_table_step){.lr = 1}, keys, numbers,
                             TDM_TABLE_MAX_BATCH + 1, &err),
              TDM_ERR_INVALID);
    CHECK_INT(tdm_table_evict(table, &(tdm_table_evict_rule){.below_updates = 1}, NULL, &err),
              TDM_ERR_INVALID);
    CHECK_HAS(err.message, "create it with keep_use");
    tdm_table_rows rows = {.keys = keys, .params = numbers, .states = numbers};
    CHECK_INT(tdm_table_import(table, &rows, 2, &err), TDM_ERR_FORMAT);
    CHECK_HAS(err.message, "key 3 at position 1 follows key 3; keys must increase");
    CHECK_INT(tdm_table_import(table, &rows, 1, &err), TDM_OK);
    CHECK_INT(tdm_table_import(table, &rows, 1, &err), TDM_ERR_FORMAT);
    CHECK_HAS(err.message, "key 3 at position 0 is in the table already");
    keys[0] = 1, keys[1] = 2;
    CHECK_INT(tdm_table_import_pending(table, keys, occurrences, 2, &err), TDM_ERR_FORMAT);
    CHECK_HAS(err.message, "key 2 has 5 occurrences, but keys with 5 have a row");
    CHECK_INT(tdm_table_stats_of(table).pending_count, 0);
    push(table, 1, 1, keys, numbers, 0); /* an empty call is allowed */
    tdm_table_pull(table, keys, 0, numbers);
    tdm_table_destroy(table);
    tdm_table_destroy(NULL);
}

/* Keys made for it have the same upper bits of their hashes, so their segment cannot be split. */
static uint64_t key_with_hash(const tdm_table *table, uint64_t hash)
{
    uint64_t x = hash ^ hash >> 31 ^ hash >> 62; /* the inverse of tdm_mix64 */
    x *= UINT64_C(0x319642b2d24d8ec3);
    x = x ^ x >> 27 ^ x >> 54;
    x *= UINT64_C(0x96de1b173f119089);
    x = x ^ x >> 30 ^ x >> 60;
    return x ^ table->salt;
}

static void keys_with_equal_hash_bits_are_refused(void)
{
    tdm_table_options options = {.name = "t", .width = 1, .optim = TDM_TABLE_OPTIM_SGD};
    tdm_table *table = table_of(&options);
    uint64_t hash = UINT64_C(0xabcdef0123000000);
    CHECK_INT(tdm__table_hash_of(table, key_with_hash(table, hash)), hash);
    tdm_status status = TDM_OK;
    tdm_error err = {0};
    float grad = 1, out;
    uint64_t count = 0;
    while (status == TDM_OK && count < 10000) {
        uint64_t key = key_with_hash(table, hash + count * 128);
        status = tdm_table_push(table, &(tdm_table_step){.lr = 1}, &key, &grad, 1, &err);
        if (status == TDM_OK) count++;
    }
    CHECK_INT(status, TDM_ERR_RANGE);
    CHECK_INT(count, TDM__TABLE_SEGMENT_ENTRIES);
    CHECK_INT(tdm_table_stats_of(table).row_count, count);
    CHECK_HAS(err.message, "same upper bits");
    for (uint64_t i = 0; i < count; i++) {
        uint64_t key = key_with_hash(table, hash + i * 128);
        tdm_table_pull(table, &key, 1, &out);
        if (out != -1) CHECK(false);
    }
    tdm_table_destroy(table);
}

static const check_test tests[] = {
    CHECK_TEST(random_operations_equal_a_plain_map),
    CHECK_TEST(threads_and_levels_give_the_same_bits),
    CHECK_TEST(order_of_keys_does_not_matter),
    CHECK_TEST(duplicates_are_summed_in_order_before_one_update),
    CHECK_TEST(subnormal_numbers_count_as_zero),
    CHECK_TEST(recorded_bits),
    CHECK_TEST(initial_values_are_a_function_of_the_key),
    CHECK_TEST(fold_is_even),
    CHECK_TEST(full_table_is_refused_without_a_change),
    CHECK_TEST(predicted_memory_is_used),
    CHECK_TEST(growth_keeps_all_rows),
    CHECK_TEST(bad_options_are_refused),
    CHECK_TEST(bad_calls_are_refused),
    CHECK_TEST(keys_with_equal_hash_bits_are_refused),
};
CHECK_MAIN(tests)
