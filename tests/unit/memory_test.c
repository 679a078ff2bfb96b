/*
 * memory_test.c: compares the estimate of a job's memory with the memory of a real training run.
 *
 * The run is a separate process, which reports how far its resident memory rose between the loading of the data
 * and the end. The parts of an estimate are compared with sizes computed here.
 */
#include "base/base.h"
#include "check.h"
#include "os/os.h"

#include <tandem/parallel.h>
#include <tandem/train.h>

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

enum { SAMPLES = 1024, FEATURES = 64, CLASSES = 4, MAX_SETS = 8 };
#define MB 1000000.0

static const char *directory;

static const char job_text[] = "name: unit\nseed: 3\n"
                               "data: {train: data.csv, test_fraction: 0.25}\n"
                               "model: {hidden: [512, 512]}\n"
                               "train: {batch: 256, steps: 2}\n"
                               "parallel: {lanes: 4}\n"
                               "eval: {batch: 64}\n"
                               "checkpoint: {every_epochs: never}\n";

static tdm_job_document *load(const char *const sets[])
{
    char dir[64];
    snprintf(dir, sizeof(dir), "run.dir=%s/runs", directory);
    const char *all[MAX_SETS + 1] = {dir};
    size_t count = 1;
    while (sets && sets[count - 1] && count < MAX_SETS) {
        all[count] = sets[count - 1];
        count++;
    }
    tdm_job_options options = {.overrides = all, .override_count = count};
    tdm_job_document *document = NULL;
    tdm_error err = {0};
    CHECK_INT(
        tdm_job_parse(job_text, strlen(job_text), "job.yaml", directory, &options, &document, &err),
        TDM_OK);
    if (err.message[0]) fprintf(stderr, "  %s\n", err.message);
    return document;
}

static tdm_memory_estimate estimate(const tdm_job *job, int workers)
{
    tdm_error err = {0};
    tdm_job_data data = {0};
    tdm_memory_estimate e = {0};
    CHECK_INT(tdm_job_data_load(job, &data, &err), TDM_OK);
    tdm_memory_world world = {.rank_count = workers};
    CHECK_INT(tdm_memory_estimate_of(job, &data, &world, &e, &err), TDM_OK);
    tdm_job_data_release(&data);
    return e;
}

/* The bytes by which a training run increases the memory of a new process. */
static uint64_t measure(const tdm_job *job)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        tdm_error err = {0};
        tdm_train_result result;
        uint64_t before = tdm_os_resident_bytes();
        tdm_status status = tdm_train(job, NULL, &result, &err);
        if (status != TDM_OK) fprintf(stderr, "  %s\n", err.message);
        uint64_t grown = status == TDM_OK ? tdm_os_peak_resident_bytes() - before : 0;
        _exit(write(ends[1], &grown, sizeof(grown)) != sizeof(grown));
    }
    uint64_t grown = 0;
    int code = -1;
    close(ends[1]);
    CHECK(read(ends[0], &grown, sizeof(grown)) == sizeof(grown));
    close(ends[0]);
    CHECK(waitpid(child, &code, 0) == child && code == 0);
    return grown;
}

/* Within 25 %, and 24 MB for the program: code, stacks of threads, oneDNN's compiled kernels. */
static void check_honest(const char *const sets[], double min_mb)
{
    tdm_job_document *document = load(sets);
    const tdm_job *job = tdm_job_document_job(document);
    tdm_memory_estimate e = estimate(job, 1);
    double wanted = (double)e.total_bytes, got = (double)measure(job);
    CHECK(wanted > min_mb * MB); /* so that the constant is not the largest part */
    bool honest = got < 1.25 * wanted + 24 * MB && got > 0.75 * wanted - 24 * MB;
    CHECK(honest || SANITIZED);
    if (!honest)
        fprintf(stderr, "  %s: estimated %.1f MB, measured %.1f MB\n", sets[0], wanted / MB,
                got / MB);
    tdm_job_document_destroy(document);
}

/* Parameters, gradients and state take most; then what replicas keep; then activations; then recomputed activations. */
static void test_estimates_match_a_run(void)
{
    static const char *const wide[] = {"model.hidden=[2048, 2048]", NULL};
    static const char *const many[] = {"model.kind=cnn",
                                       "model.channels=[128, 128]",
                                       "data.shape=[8, 8]",
                                       "model.hidden=[32]",
                                       "train.batch=768",
                                       "parallel.lanes=1",
                                       NULL};
    static const char *const deep[] = {"model.hidden=[2048, 2048, 2048, 2048]",
                                       "train.batch=768",
                                       "parallel.lanes=1",
                                       "model.dropout=0.1",
                                       "memory.recompute=full",
                                       NULL};
    static const char *const local[] = {
        "model.hidden=[2048, 2048]", "sync.kind=local", "sync.replicas=4",
        "sync.outer=nesterov",       "sync.period=1",   NULL};
    static const char *const sent[] = {"model.hidden=[2048, 2048]", "sync.replicas=4",
                                       "compress.quantise=int8", NULL};
    check_honest(wide, 100);
    check_honest(local, 400);
    check_honest(sent, 200);
    check_honest(many, 60); /* activations: scratch of kernels differs between instruction sets */
    check_honest(deep, 200);
}

static tdm_memory_estimate estimate_on(const tdm_job *job, int ranks, int hosts)
{
    tdm_error err = {0};
    tdm_job_data data = {0};
    tdm_memory_estimate e = {0};
    tdm_memory_world world = {.rank_count = ranks, .host_count = hosts};
    CHECK_INT(tdm_job_data_load(job, &data, &err), TDM_OK);
    CHECK_INT(tdm_memory_estimate_of(job, &data, &world, &e, &err), TDM_OK);
    tdm_job_data_release(&data);
    return e;
}

/* The published formulae, and how the mapped memory of ranks follows them. */
static void test_stages(void)
{
    static const char *const sets[] = {"optim.kind=adamw", "parallel.lanes=8",
                                       "model.hidden=[256, 256, 256, 256, 256, 256, 256]",
                                       "parallel.bucket=65536", NULL};
    tdm_job_document *document = load(sets);
    const tdm_job *job = tdm_job_document_job(document);
    const uint64_t numbers = 256 * FEATURES + 256 + 6 * (256 * 256 + 256) + CLASSES * 256;
    const uint64_t model = 4 * (numbers + CLASSES), block = 4 * (numbers + 16); /* with gaps */
    tdm_memory_estimate one = estimate_on(job, 1, 1), here = estimate_on(job, 4, 1),
                        apart = estimate_on(job, 4, 4), pairs = estimate_on(job, 4, 2),
                        odd = estimate_on(job, 5, 2);
    for (int zero = 0; zero < TDM_ZERO_STAGES; zero++) {
        CHECK_INT(one.stages[zero].formula_bytes, 4 * model);
        CHECK_INT(one.stages[zero].total_bytes, one.total_bytes);
    }
    /* Parameters, gradients and twice as much state, of which 0, 2, 3 or all 4 are sharded. */
    CHECK_INT(apart.stages[0].formula_bytes, 4 * model);
    CHECK_INT(apart.stages[1].formula_bytes, 2 * model + 2 * model / 4);
    CHECK_INT(apart.stages[2].formula_bytes, model + 3 * model / 4);
    CHECK_INT(apart.stages[3].formula_bytes, model);
    /* On one host there is one copy of parameters and state, with any stage. */
    uint64_t buffers = 4 * 2 * FEATURES;
    for (int zero = 0; zero < TDM_ZERO_STAGES; zero++) {
        CHECK_INT(here.stages[zero].parameter_bytes, (block + buffers) / 4);
        CHECK_INT(here.stages[zero].optimiser_bytes, 2 * block / 4);
    }
    CHECK_INT(here.stages[0].gradient_bytes, 2 * block); /* of each of its two lanes */
    CHECK_INT(here.host_workers, 4);
    CHECK_INT(here.total_bytes, 4 * here.stages[0].total_bytes);
    /* On separate hosts each stage takes less than the previous one. */
    CHECK_INT(apart.stages[0].parameter_bytes, block + buffers);
    CHECK_INT(apart.stages[0].optimiser_bytes, 2 * block);
    CHECK_INT(apart.stages[1].optimiser_bytes, 2 * ((block + 3) / 4));
    CHECK_INT(apart.host_workers, 1);
    for (int zero = 1; zero < TDM_ZERO_STAGES; zero++)
        CHECK(apart.stages[zero].total_bytes < apart.stages[zero - 1].total_bytes);
    CHECK(apart.stages[2].gradient_bytes < apart.stages[1].gradient_bytes);
    CHECK(apart.stages[3].parameter_bytes < apart.stages[2].parameter_bytes);
    CHECK_INT(pairs.stages[0].parameter_bytes, (block + buffers) / 2);
    CHECK_INT(odd.host_workers, 3);
    CHECK_INT(odd.host_count, 2);
    tdm_job_document_destroy(document);
}

/* Of three ranks with four replicas on two hosts, those of the first host have three replicas. A rank decodes all of a
 * tensor of which it updates a part. */
static void test_replicas_of_a_host(void)
{
    static const char *const sets[] = {"sync.replicas=4", "compress.sparsify=topk",
                                       "model.hidden=[2048, 2048]", NULL};
    static const char *const sharded[] = {"sync.replicas=4", "compress.sparsify=topk",
                                          "parallel.zero=1", "model.hidden=[2048, 2048]", NULL};
    const uint64_t large = 4 * UINT64_C(2048) * 2048;
    tdm_job_document *document = load(sets), *other = load(sharded);
    const tdm_job *job = tdm_job_document_job(document);
    tdm_memory_estimate one = estimate_on(job, 1, 1), even = estimate_on(job, 2, 2),
                        odd = estimate_on(job, 3, 2),
                        shares = estimate_on(tdm_job_document_job(other), 2, 2);
    uint64_t model = one.parameter_bytes, state = one.optimiser_bytes - 2 * 4 * model;
    CHECK_NEAR((double)(even.optimiser_bytes - state), 2.0 * 2 * (double)model,
               0.01 * (double)model);
    CHECK_NEAR((double)(odd.optimiser_bytes - state), 2.0 * 3 * (double)model,
               0.01 * (double)model);
    CHECK(odd.gradient_bytes > even.gradient_bytes + 4 * large);
    CHECK(shares.gradient_bytes > 4 * large);
    tdm_job_document_destroy(document);
    tdm_job_document_destroy(other);
}

static void test_too_many_ranks(void)
{
    tdm_job_document *document = load(NULL); /* 4 lanes */
    const tdm_job *job = tdm_job_document_job(document);
    tdm_error err = {0};
    tdm_job_data data = {0};
    tdm_memory_estimate e = {.worker_count = 77};
    CHECK_INT(tdm_job_data_load(job, &data, &err), TDM_OK);
    CHECK_INT(tdm_memory_estimate_of(job, &data, &(tdm_memory_world){5, 1, 0}, &e, &err),
              TDM_ERR_JOB_INVALID);
    CHECK_HAS(err.message, "5 ranks cannot share 4 lanes");
    CHECK_INT(tdm_memory_estimate_of(job, &data, &(tdm_memory_world){2, 3, 0}, &e, &err),
              TDM_ERR_JOB_INVALID);
    CHECK_HAS(err.message, "2 ranks cannot be spread over 3 hosts: use 1 to 2 hosts");
    CHECK_INT(e.worker_count, 77);
    tdm_job_data_release(&data);
    tdm_job_document_destroy(document);
}

static void test_offloaded_state_does_not_count(void)
{
    char offload[128];
    snprintf(offload, sizeof(offload), "parallel.offload=%s", directory);
    const char *const sets[] = {"optim.kind=adamw", offload, NULL};
    tdm_job_document *with = load(sets), *without = load(sets + 2);
    tdm_memory_estimate file = estimate(tdm_job_document_job(with), 2);
    tdm_memory_estimate memory = estimate(tdm_job_document_job(without), 2);
    CHECK(file.file_bytes > 0);
    CHECK_INT(file.file_bytes, file.optimiser_bytes);
    CHECK_INT(file.total_bytes + file.file_bytes, memory.total_bytes);
    CHECK_INT(file.stages[0].optimiser_bytes, 0);
    tdm_job_document_destroy(with);
    tdm_job_document_destroy(without);
}

static void test_parts(void)
{
    static const char *const sets[] = {"optim.kind=adamw", "optim.ema=0.9",
                                       "compute.threads=1", /* each thread has scratch memory */
                                       NULL};
    tdm_job_document *document = load(sets);
    const tdm_job *job = tdm_job_document_job(document);
    tdm_memory_estimate one = estimate(job, 1), two = estimate(job, 2);
    uint64_t params = 4 * (512 * FEATURES + 512 + 512 * 512 + 512 + CLASSES * 512 + 16);
    CHECK_INT(one.parameter_bytes, params);
    CHECK_INT(one.buffer_bytes, 4 * 2 * FEATURES);
    CHECK_INT(one.optimiser_numbers, 3);
    CHECK_INT(one.optimiser_bytes, 3 * params + one.buffer_bytes);
    CHECK_INT(one.gradient_buffers, 3); /* a pair, a lane, and the next */
    CHECK_INT(two.gradient_buffers, 4);
    CHECK_INT(two.gradient_bytes, 4 * params);
    CHECK_INT(two.activation_bytes, 2 * one.activation_bytes);
    CHECK_INT(one.data_bytes, SAMPLES * (FEATURES + 1) * 4);
    CHECK(one.evaluation_bytes > 0);
    CHECK_INT(two.total_bytes, two.parameter_bytes + two.buffer_bytes + two.gradient_bytes +
                                   two.optimiser_bytes + two.activation_bytes +
                                   2 * (two.evaluation_bytes + two.data_bytes));
    CHECK_INT(one.lane_rows, 64);
    CHECK_INT(one.recomputed_flops, 0);
    CHECK_INT(estimate(job, 0).worker_count <= 4, 1);
    tdm_job_document_destroy(document);
}

static void test_budget(void)
{
    static const char *const sets[] = {"memory.limit=3MiB", NULL};
    tdm_job_document *document = load(sets);
    CHECK_INT(tdm_memory_budget(tdm_job_document_job(document)), 3 << 20);
    tdm_job_document_destroy(document);
    document = load(NULL);
    tdm_memory_info info;
    tdm_os_memory_info(&info);
    uint64_t budget = tdm_memory_budget(tdm_job_document_job(document));
    CHECK(budget > 0);
    if (info.limit_bytes > 0) CHECK(budget <= info.limit_bytes);
    if (info.total_bytes > 0) CHECK(budget < info.total_bytes);
    tdm_job_document_destroy(document);
}

static void test_refusal(void)
{
    static const char *const sets[] = {"memory.limit=6MB", NULL};
    tdm_job_document *document = load(sets);
    tdm_error err = {0};
    tdm_train_result result;
    CHECK_INT(tdm_train(tdm_job_document_job(document), NULL, &result, &err), TDM_ERR_NO_MEMORY);
    CHECK_HAS(err.message, "memory.limit allows 6.00 MB: parameters 1.19 MB, gradients 3.5");
    CHECK_HAS(err.message, "optimiser 2.38 MB, activations ");
    tdm_job_document_destroy(document);
}

static bool write_data(void)
{
    char path[64];
    snprintf(path, sizeof(path), "%s/data.csv", directory);
    FILE *f = fopen(path, "w");
    if (!f) return false;
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 1, .stream = TDM_RNG_STREAM_USER});
    for (int i = 0; i < SAMPLES; i++) {
        for (int k = 0; k < FEATURES; k++) fprintf(f, "%.3f,", (double)tdm_rng_uniform(&rng));
        fprintf(f, "%d\n", i % CLASSES);
    }
    return fclose(f) == 0;
}

static const check_test tests[] = {
    CHECK_TEST(test_estimates_match_a_run),
    CHECK_TEST(test_parts),
    CHECK_TEST(test_stages),
    CHECK_TEST(test_replicas_of_a_host),
    CHECK_TEST(test_too_many_ranks),
    CHECK_TEST(test_offloaded_state_does_not_count),
    CHECK_TEST(test_budget),
    CHECK_TEST(test_refusal),
};

int main(int argc, char **argv)
{
    directory = check_dir();
    if (!write_data()) return 2;
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
