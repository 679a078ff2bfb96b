/*
 * table.c: the rate of row updates of a sparse table.
 *
 * A batch of keys is pulled, then a gradient for each is pushed, as a worker of a sparse model does. Keys are
 * drawn from a Zipf distribution over `--keys` possible ones, and mapped by a bijection so that frequent keys are not neighbours. They are drawn before the time is
 * taken. A row update is one key of a batch that was pulled and pushed. The table grows while it is measured, as
 * in training; `--warm` updates come before.
 *
 *     table [--json] [--quick] [--seconds S] [--threads N] [--keys N] [--batch N] [--width N] [--zipf S]
 *           [--optim sgd|adagrad|ftrl|adam] [--warm N]
 */
#include "table/table.h"
#include "tensor/kernel.h"
#include "zipf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 512 };

typedef struct settings {
    bool json;
    double seconds, zipf;
    int threads;
    uint64_t keys, warm;
    int64_t batch, width;
    int optim;
} settings;

static const char *const optim_names[TDM_TABLE_OPTIM_COUNT] = {"sgd", "adagrad", "ftrl", "adam"};

static void die(const char *what, const char *why)
{
    fprintf(stderr, "table: %s: %s\n", what, why);
    exit(1);
}

static void *take(size_t bytes)
{
    void *block = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!block) die("memory", "there is not enough");
    return block;
}

/* ---- keys --------------------------------------------------------------------------------------- */

static uint64_t word_next(void *user)
{
    return tdm_rng_u64(user);
}

static void keys_draw(const settings *s, uint64_t round, uint64_t *keys)
{
    zipf z = zipf_of(s->keys, s->zipf);
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.stream = TDM_RNG_STREAM_USER, .step = round});
    for (int64_t i = 0; i < BATCHES * s->batch; i++)
        keys[i] = zipf_draw(&z, word_next, &rng) * UINT64_C(0x9e3779b97f4a7c15);
}

/* ---- measurement -------------------------------------------------------------------------------- */

typedef struct bench {
    settings s;
    tdm_table *table;
    uint64_t *keys; /* of BATCHES batches */
    float *rows, *grads;
    uint64_t updates, rounds;
    double pull_s, push_s;
} bench;

static void bench_round(bench *b)
{
    tdm_error err;
    const tdm_table_step step = {.lr = 0.01, .step = (uint32_t)b->rounds};
    keys_draw(&b->s, b->rounds++, b->keys);
    for (int i = 0; i < BATCHES; i++) {
        const uint64_t *keys = b->keys + i * b->s.batch;
        double begin_s = tdm_clock_s();
        tdm_table_pull(b->table, keys, b->s.batch, b->rows);
        double middle_s = tdm_clock_s();
        if (tdm_table_push(b->table, &step, keys, b->grads, b->s.batch, &err) != TDM_OK)
            die("push", err.message);
        b->pull_s += middle_s - begin_s;
        b->push_s += tdm_clock_s() - middle_s;
    }
    b->updates += (uint64_t)(BATCHES * b->s.batch);
}

static void bench_run(bench *b)
{
    const settings *s = &b->s;
    size_t numbers = (size_t)(s->batch * s->width);
    tdm_error err;
    tdm_table_options options = {.name = "bench",
                                 .seed = 1,
                                 .width = s->width,
                                 .optim = s->optim,
                                 .init = TDM_TABLE_INIT_UNIFORM,
                                 .init_scale = 0.01,
                                 .limit_bytes = UINT64_C(16) << 30};
    if (tdm_table_create(&options, &b->table, &err) != TDM_OK) die("create", err.message);
    b->keys = take((size_t)(BATCHES * s->batch) * sizeof(*b->keys));
    b->rows = take(numbers * sizeof(float));
    b->grads = take(numbers * sizeof(float));
    tdm_kernel_uniform((tdm_rng_address){.stream = TDM_RNG_STREAM_USER}, 1, 0, b->grads, numbers);
    while (b->updates < s->warm) bench_round(b);
    b->updates = 0;
    b->pull_s = b->push_s = 0;
    do bench_round(b);
    while (b->pull_s + b->push_s < s->seconds);
}

static void bench_print(const bench *b)
{
    tdm_table_stats stats = tdm_table_stats_of(b->table);
    double rate = (double)b->updates / (b->pull_s + b->push_s);
    uint64_t predicted = tdm_table_predict(tdm_table_options_of(b->table), stats.row_count,
                                           stats.pending_count);
    if (b->s.json)
        printf("{\"level\":%d,\"optim\":\"%s\",\"threads\":%d,\"width\":%lld,\"batch\":%lld,"
               "\"keys\":%llu,\"zipf\":%.3f,\"updates_per_s\":%.0f,\"pulls_per_s\":%.0f,"
               "\"pushes_per_s\":%.0f,\"rows\":%llu,\"bytes\":%llu,\"predicted\":%llu,"
               "\"load\":%.3f}\n",
               tdm_kernel_level(), optim_names[b->s.optim], b->s.threads, (long long)b->s.width,
               (long long)b->s.batch, (unsigned long long)b->s.keys, b->s.zipf, rate,
               (double)b->updates / b->pull_s, (double)b->updates / b->push_s,
               (unsigned long long)stats.row_count, (unsigned long long)stats.bytes,
               (unsigned long long)predicted, stats.load);
    else
        printf("%s, width %lld, %d threads, level %d: %.2f million row updates/s (pull %.2f, push "
               "%.2f); %llu rows, %llu bytes (predicted %llu), load %.2f\n",
               optim_names[b->s.optim], (long long)b->s.width, b->s.threads, tdm_kernel_level(),
               rate / 1e6, (double)b->updates / b->pull_s / 1e6,
               (double)b->updates / b->push_s / 1e6, (unsigned long long)stats.row_count,
               (unsigned long long)stats.bytes, (unsigned long long)predicted, stats.load);
}

/* ---- command line ------------------------------------------------------------------------------- */

static int optim_of(const char *name)
{
    for (int i = 0; i < TDM_TABLE_OPTIM_COUNT; i++)
        if (strcmp(name, optim_names[i]) == 0) return i;
    die(name, "expected sgd, adagrad, ftrl or adam");
    return 0;
}

static bool read_value(settings *s, const char *name, const char *value)
{
    if (strcmp(name, "--seconds") == 0)
        s->seconds = strtod(value, NULL);
    else if (strcmp(name, "--threads") == 0)
        s->threads = (int)strtol(value, NULL, 10);
    else if (strcmp(name, "--keys") == 0)
        s->keys = strtoull(value, NULL, 10);
    else if (strcmp(name, "--batch") == 0)
        s->batch = strtoll(value, NULL, 10);
    else if (strcmp(name, "--width") == 0)
        s->width = strtoll(value, NULL, 10);
    else if (strcmp(name, "--zipf") == 0)
        s->zipf = strtod(value, NULL);
    else if (strcmp(name, "--warm") == 0)
        s->warm = strtoull(value, NULL, 10);
    else if (strcmp(name, "--optim") == 0)
        s->optim = optim_of(value);
    else
        return false;
    return true;
}

static settings read_settings(int argc, char **argv)
{
    settings s = {.seconds = 3,
                  .zipf = 1.05,
                  .threads = 2,
                  .keys = 100000000,
                  .warm = 20000000,
                  .batch = 4096,
                  .width = 16,
                  .optim = TDM_TABLE_OPTIM_ADAGRAD};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            s.json = true;
        else if (strcmp(argv[i], "--quick") == 0)
            s.seconds = 0, s.warm = 0;
        else if (i + 1 < argc && read_value(&s, argv[i], argv[i + 1]))
            i++;
        else
            die(argv[i], "unknown option or missing value; bench/table.c lists the options");
    }
    if (s.batch < 1 || s.width < 1 || s.keys < 2 || s.threads < 1 || !(s.zipf > 0))
        die("options", "--batch, --width, --keys, --threads and --zipf must be positive");
    return s;
}

int main(int argc, char **argv)
{
    bench b = {.s = read_settings(argc, argv)};
    tdm_kernel_mode before = tdm_kernel_enter(b.s.threads);
    bench_run(&b);
    tdm_kernel_leave(&before);
    bench_print(&b);
    tdm_table_destroy(b.table);
    free(b.keys);
    free(b.rows);
    free(b.grads);
    return 0;
}
