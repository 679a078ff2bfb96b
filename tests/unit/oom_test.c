/*
 * oom_test.c: out of memory.
 *
 * A function is called repeatedly while the first allocation fails, then the second, and so on, until it
 * succeeds: each time it must return an error, write no output, not crash, and free everything it allocated. In
 * one pass only that allocation fails, in another one all from it on.
 *
 * The allocator is replaced in this executable. Without a sanitizer that is malloc itself, so that allocations
 * inside libyaml, zlib and libc fail as well. A sanitizer has its own malloc; there the linker wraps the calls
 * of Tandem's modules (see tests/CMakeLists.txt), and the sanitizer checks the rest. mmap is not replaced.
 */
#include "check.h"
#include "checkpoint/checkpoint.h"

#include <tandem/checkpoint.h>
#include <tandem/data.h>
#include <tandem/inference.h>
#include <tandem/job.h>
#include <tandem/nn.h>
#include <tandem/os.h>
#include <tandem/train.h>

#include <errno.h>
#include <openssl/err.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WRAPPED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define WRAPPED 1
#endif
#endif

/* ---- the allocator --------------------------------------------------------------------------- */

static _Atomic int64_t countdown; /* the allocation that fails; 0: none */
static atomic_bool all_after;     /* and all after it */
static _Atomic int64_t live;      /* allocations less frees */

static bool refuse(void)
{
    int64_t now = atomic_load(&countdown);
    if (now == 0) return false;
    if (now < 0) return true;
    if (atomic_fetch_sub(&countdown, 1) != 1) return false;
    if (all_after) atomic_store(&countdown, -1);
    return true;
}

static void *counted(void *pointer)
{
    if (pointer) atomic_fetch_add(&live, 1);
    return pointer;
}

#ifdef WRAPPED
#define NAME(function) __wrap_##function
#define REAL(function) __real_##function
#define ALIGNED __real_aligned_alloc
#define EXPORTED
#define COUNTS_ALL false /* memory that a library allocates and Tandem frees is counted only once */
#else
#define NAME(function) function
#define REAL(function) __libc_##function
#define ALIGNED __libc_memalign
#define EXPORTED __attribute__((visibility("default")))
#define COUNTS_ALL true
#endif

void *REAL(malloc)(size_t bytes);
void *REAL(calloc)(size_t count, size_t size);
void *REAL(realloc)(void *pointer, size_t bytes);
void *ALIGNED(size_t align, size_t bytes);
void REAL(free)(void *pointer);

EXPORTED void *NAME(malloc)(size_t bytes);
EXPORTED void *NAME(calloc)(size_t count, size_t size);
EXPORTED void *NAME(realloc)(void *pointer, size_t bytes);
EXPORTED void *NAME(aligned_alloc)(size_t align, size_t bytes);
EXPORTED void NAME(free)(void *pointer);

static void *no_memory(void)
{
    errno = ENOMEM;
    return NULL;
}

void *NAME(malloc)(size_t bytes)
{
    return refuse() ? no_memory() : counted(REAL(malloc)(bytes));
}

void *NAME(calloc)(size_t count, size_t size)
{
    return refuse() ? no_memory() : counted(REAL(calloc)(count, size));
}

void *NAME(realloc)(void *pointer, size_t bytes)
{
    if (refuse()) return no_memory();
    void *moved = REAL(realloc)(pointer, bytes);
    return pointer ? moved : counted(moved);
}

void *NAME(aligned_alloc)(size_t align, size_t bytes)
{
    return refuse() ? no_memory() : counted(ALIGNED(align, bytes));
}

void NAME(free)(void *pointer)
{
    if (pointer) atomic_fetch_sub(&live, 1);
    REAL(free)(pointer);
}

/* ---- the countdown --------------------------------------------------------------------------- */

/* libcrypto keeps a list of errors in each thread, with copies of names. Not a leak. */
static void forget_crypto_errors(void)
{
    for (int i = 0; i < 16; i++) { /* the list is a ring of 16, and old entries keep their copies */
        ERR_new();
        ERR_set_error(ERR_LIB_USER, 1, NULL);
    }
    ERR_clear_error();
}

/* Executes it once and undoes it; an output that is written on failure is an error of the function. */
typedef tdm_status (*attempt_fn)(tdm_error *err, bool *handed_out);

/* Returns the number of allocations. */
static int64_t exhaust(const char *what, attempt_fn attempt)
{
    tdm_error err = {0};
    bool handed_out = false;
    CHECK_INT(attempt(&err, &handed_out), TDM_OK); /* allocates memory that is kept until the end */
    int64_t n = 0;
    for (int mode = 0; mode < 2; mode++) {
        all_after = mode == 1;
        tdm_status status = TDM_ERR_NO_MEMORY;
        for (n = 1; n < 100000; n++) {
            forget_crypto_errors();
            int64_t before = live;
            err = (tdm_error){0};
            handed_out = false;
            countdown = n;
            status = attempt(&err, &handed_out);
            bool came_through = countdown > 0; /* fails before the allocation in question */
            countdown = 0;
            forget_crypto_errors();
            int64_t kept = COUNTS_ALL ? live - before : 0;
            CHECK_INT(kept, 0);
            if (kept != 0) fprintf(stderr, "  %s: allocation %lld, kept\n", what, (long long)n);
            if (status == TDM_OK && came_through) break;
            if (status == TDM_OK) continue; /* it succeeded without this allocation */
            CHECK(!handed_out);
            CHECK(err.message[0] != '\0');
            CHECK_INT(err.status, status);
            if (status != TDM_ERR_NO_MEMORY && all_after)
                fprintf(stderr, "  note: %s: allocation %lld: '%s'\n", what, (long long)n,
                        err.message);
        }
        CHECK_INT(status, TDM_OK);
    }
    printf("     %s: %lld allocations\n", what, (long long)n - 1);
    return n - 1;
}

/* ---- what is exhausted ----------------------------------------------------------------------- */

static const char job_text[] = "name: oom\n"
                               "data: {train: data.csv, label: last, delimiter: \",\"}\n"
                               "model: {hidden: [6, 5], activation: gelu, dropout: 0.1}\n"
                               "train: {batch: 4, steps: 2}\n"
                               "compute: {backend: ref}\n"
                               "parallel: {lanes: 2}\n";
static const char *directory;
static tdm_job_document *document; /* of job_text, loaded before memory runs out */

static tdm_status parse_job(tdm_error *err, bool *handed_out)
{
    static const char *const sets[] = {"train.batch=6", "model.hidden=[4, 4, 4]"};
    tdm_job_options options = {.overrides = sets, .override_count = 2, .no_file_checks = true};
    tdm_job_document *d = NULL;
    tdm_status status = tdm_job_parse(job_text, strlen(job_text), "job.yaml", directory, &options,
                                      &d, err);
    *handed_out = d && tdm_job_document_job(d); /* a document with problems is not a job */
    tdm_job_document_destroy(d);
    return status;
}

/* A job with many mistakes: the result must be a list of them, or out of memory, and never success. */
static tdm_status parse_bad_job(tdm_error *err, bool *handed_out)
{
    static const char text[] =
        "nam: x\ndata: {train: no.csv, lable: 3}\nseed: [1]\noptim: {lr: -1}\n";
    tdm_job_document *d = NULL;
    tdm_status status = tdm_job_parse(text, strlen(text), "bad.yaml", directory, NULL, &d, err);
    *handed_out = d && tdm_job_document_job(d);
    bool all = d && tdm_job_document_problems(d).count == 5;
    tdm_job_document_destroy(d);
    return status == TDM_ERR_JOB_INVALID && all ? TDM_OK : status;
}

static tdm_model_options model_options(void)
{
    return (tdm_model_options){.job = tdm_job_document_job(document),
                               .sample_shape = tdm_shape_1(4),
                               .class_count = 3,
                               .batch = 5,
                               .training = true,
                               .loss_scale = 0.2};
}

static tdm_status build_model(tdm_error *err, bool *handed_out)
{
    tdm_model_options options = model_options();
    tdm_graph *graph = NULL;
    tdm_status status = tdm_model_build(&options, &graph, err);
    *handed_out = graph != NULL;
    tdm_graph_destroy(graph);
    return status;
}

static tdm_graph *graph_for_plans;

static tdm_status create_plan(tdm_error *err, bool *handed_out)
{
    tdm_plan *plan = NULL;
    tdm_status status = tdm_plan_create(graph_for_plans, &(tdm_plan_options){.backend = "ref"},
                                        &plan, err);
    *handed_out = plan != NULL;
    tdm_plan_destroy(plan);
    return status;
}

static tdm_status parse_csv(tdm_error *err, bool *handed_out)
{
    static const char csv[] =
        "height,\"wi\"\"dth\",kind\n1,2,\"a b\"\n3,4.5,c\n5,6e-3,\"d\"\n7,8,c\n";
    tdm_dataset *set = NULL;
    tdm_data_options options = {.label = "kind"};
    tdm_status status = tdm_dataset_parse(csv, strlen(csv), NULL, 0, "data.csv", &options, &set,
                                          err);
    *handed_out = set != NULL;
    tdm_dataset_destroy(set);
    return status;
}

static tdm_status parse_idx(tdm_error *err, bool *handed_out)
{
    static const uint8_t images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 9, 8, 7, 6};
    static const uint8_t labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 1, 0};
    tdm_dataset *set = NULL;
    tdm_status status = tdm_dataset_parse(images, sizeof(images), labels, sizeof(labels), "images",
                                          &(tdm_data_options){0}, &set, err);
    *handed_out = set != NULL;
    tdm_dataset_destroy(set);
    return status;
}

static tdm_file_bytes tensors; /* a small safetensors file */

static tdm_status parse_safetensors(tdm_error *err, bool *handed_out)
{
    tdm_safetensors *file = NULL;
    tdm_status status = tdm_safetensors_parse(tensors.data, tensors.count, "model.safetensors",
                                              &file, err);
    *handed_out = file != NULL;
    tdm_safetensors_destroy(file);
    return status;
}

/* A complete run: the data, the team, the run directory, steps, checkpoints. */
static tdm_status train(tdm_error *err, bool *handed_out)
{
    tdm_train_result result = {.steps = 77};
    tdm_status status = tdm_train(tdm_job_document_job(document), NULL, &result, err);
    *handed_out = result.steps != 77;
    return status;
}

static char run_path[TDM_PATH_BYTES];

static tdm_status open_model(tdm_error *err, bool *handed_out)
{
    tdm_model *model = NULL;
    tdm_status status = tdm_model_open(run_path, NULL, &model, err);
    *handed_out = model != NULL;
    tdm_model_close(model);
    return status;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void jobs(void)
{
    CHECK(exhaust("tdm_job_parse", parse_job) > 3);
    CHECK(exhaust("tdm_job_parse of a bad job", parse_bad_job) > 3);
}

static void models_and_plans(void)
{
    CHECK(exhaust("tdm_model_build", build_model) > 3);
    tdm_model_options options = model_options();
    CHECK_INT(tdm_model_build(&options, &graph_for_plans, NULL), TDM_OK);
    if (graph_for_plans) CHECK(exhaust("tdm_plan_create", create_plan) > 3);
    tdm_graph_destroy(graph_for_plans);
}

static void data_sets(void)
{
    CHECK(exhaust("tdm_dataset_parse of CSV", parse_csv) > 3);
    CHECK(exhaust("tdm_dataset_parse of IDX", parse_idx) > 1);
}

static void safetensors(void)
{
    char path[64];
    snprintf(path, sizeof(path), "%s/t.safetensors", directory);
    float numbers[6] = {1, 2, 3, 4, 5, 6};
    tdm_named_tensor items[] = {{"a", {TDM_DTYPE_F32, tdm_shape_2(2, 2), numbers}},
                                {"b.\"quoted\"", {TDM_DTYPE_F32, tdm_shape_1(2), numbers + 4}}};
    tdm_named_text words[] = {{"format", "pt"}, {"note", "\u00e9"}};
    CHECK_INT(tdm_safetensors_write(path, items, 2, words, 2, NULL), TDM_OK);
    CHECK_INT(tdm_file_read(path, 0, &tensors, NULL), TDM_OK);
    CHECK(exhaust("tdm_safetensors_parse", parse_safetensors) > 3);
    tdm_file_bytes_release(&tensors);
}

static void training(void)
{
    exhaust("tdm_train", train);
    tdm_train_result result;
    CHECK_INT(tdm_train(tdm_job_document_job(document), NULL, &result, NULL), TDM_OK);
    snprintf(run_path, sizeof(run_path), "%s", result.run_path);
    exhaust("tdm_model_open", open_model);
}

/* The allocator itself: it fails as requested, and counts. */
static void the_allocator_refuses(void)
{
    int64_t before = live;
    all_after = false;
    countdown = 2;
    void *volatile a = malloc(3), *volatile b = malloc(3), *volatile c = calloc(1, 3);
    CHECK(a && !b && c);
    CHECK_INT(live - before, 2);
    all_after = true;
    countdown = 1;
    void *volatile d = realloc(NULL, 9), *volatile e = aligned_alloc(64, 64);
    countdown = 0;
    CHECK(!d && !e);
    free(a);
    free(c);
    CHECK_INT(live - before, 0);
}

static const check_test tests[] = {
    CHECK_TEST(the_allocator_refuses), CHECK_TEST(jobs),
    CHECK_TEST(models_and_plans),      CHECK_TEST(data_sets),
    CHECK_TEST(safetensors),           CHECK_TEST(training),
};

static bool prepare(void)
{
    char path[64], dir[64];
    snprintf(path, sizeof(path), "%s/data.csv", directory);
    snprintf(dir, sizeof(dir), "run.dir=%s/runs", directory);
    const char csv[] = "1,2,3,4,a\n5,6,7,8,b\n4,3,2,1,c\n8,7,6,5,a\n1,3,5,7,b\n2,4,6,8,c\n";
    if (tdm_file_replace(path, csv, strlen(csv), NULL) != TDM_OK) return false;
    const char *sets[] = {dir};
    tdm_job_options options = {.overrides = sets, .override_count = 1};
    return tdm_job_parse(job_text, strlen(job_text), "job.yaml", directory, &options, &document,
                         NULL) == TDM_OK;
}

int main(int argc, char **argv)
{
    directory = check_dir();
    if (!prepare()) {
        perror(directory);
        return 1;
    }
    int code = check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
    tdm_job_document_destroy(document);
    return code;
}
