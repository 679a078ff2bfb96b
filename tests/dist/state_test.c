/*
 * state_test.c: how a training run starts, is saved and resumes, in worlds of several ranks and hosts.
 *
 * The checkpoints are those of a single process, byte for byte, for any distribution of the state; a run
 * resumes in a world of another shape; and when rank 0's disk fails, all ranks continue.
 *
 *     state_test                 all tests
 *     state_test --rank MODE     is a rank of a world, started by the test
 *
 * All runs are of one job and in one directory, because the job is part of a checkpoint. The model has more
 * numbers than pass through rank 0's window at once, statistics (batch norm), an average of the weights, and
 * small tensors besides the blocks.
 */
#include "base/base.h"
#include "dist/world.h"
#include "os/os.h"

#include <tandem/train.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOW = 1, WIDTH_1 = 40, WIDTH_2 = 30 };
#else
enum { SLOW = 0, WIDTH_1 = 600, WIDTH_2 = 500 };
#endif

enum { MIDDLE = 3, LAST = 6, MAX_PATH = 300, ROWS = 60, COLUMNS = 5 };

static const char job_text[] =
    "name: s\n"
    "seed: 5\n"
    "data: {train: %s/data.csv, test_fraction: 0.2, normalise: standard}\n"
    "layers:\n"
    "  - linear: %d\n"
    "  - batch_norm\n"
    "  - relu\n"
    "  - linear: %d\n"
    "  - relu\n"
    "train: {batch: 24, steps: 6, bad_numbers: skip}\n"
    "optim: {kind: adamw, ema: 0.9}\n"
    "schedule: {kind: reduce_on_plateau, patience: 0}\n"
    "eval: {every_steps: 2}\n"
    "checkpoint: {every_steps: 3, keep: all}\n"
    "run: {dir: %s/zero%d}\n"
    "parallel: {lanes: 4, zero: %d, bucket: 64KiB}\n";

/* ---- ranks ----------------------------------------------------------------------------------- */

/* From the environment, which the test sets for ranks. */
static int number_of(const char *name)
{
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

/* A disk that is full from the `faults`-th write of the middle checkpoint on, until the next step. */
static void on_event(const tdm_train_status *status, void *user)
{
    int faults = number_of("STATE_FAULTS");
    (void)user;
    if (faults == 0 || status->event != TDM_TRAIN_EVENT_STEP || status->rank != 0) return;
    bool middle = status->step == MIDDLE;
    tdm_os_test_fail_files(middle ? TDM_FAULT_WRITE : 0, middle ? faults : 0, ENOSPC);
}

static void train(tdm_comm *comm, const char *resume)
{
    char text[2048];
    const char *directory = getenv("STATE_DIRECTORY");
    int zero = number_of("STATE_ZERO");
    int length = snprintf(text, sizeof(text), job_text, directory, WIDTH_1, WIDTH_2, directory,
                          zero, zero);
    tdm_job_document *document = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_job_parse(text, (size_t)length, "job", NULL, NULL, &document, &err);
    CHECK_INT(status, TDM_OK);
    if (status != TDM_OK) fprintf(stderr, "%s\n", err.message);
    if (status != TDM_OK) return;
    tdm_train_options options = {.comm = comm, .resume = resume, .on_event = on_event};
    tdm_train_result result = {.steps = 0};
    status = tdm_train(tdm_job_document_job(document), &options, &result, &err);
    CHECK_INT(status, TDM_OK);
    if (status != TDM_OK) fprintf(stderr, "%s\n", err.message);
    CHECK_INT(result.steps, LAST);
    CHECK_INT(strlen(result.state_hash), TDM_SHA256_HEX - 1);
    tdm_job_document_destroy(document);
}

static void rank_task(tdm_comm *comm, const char *what)
{
    train(comm, strcmp(what, "resume") == 0 ? getenv("STATE_RESUME") : NULL);
}

/* ---- the test -------------------------------------------------------------------------------- */

static const char *directory;

static void make_directory(void)
{
    char path[MAX_PATH];
    directory = check_dir();
    setenv("STATE_DIRECTORY", directory, 1);
    snprintf(path, sizeof(path), "%s/data.csv", directory);
    FILE *file = fopen(path, "we");
    CHECK(file != NULL);
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 3, .stream = TDM_RNG_STREAM_USER});
    for (int i = 0; file && i < ROWS; i++) {
        for (int k = 0; k < COLUMNS; k++)
            fprintf(file, "%.4f,", (double)tdm_rng_uniform(&rng) + (k == i % 3));
        fprintf(file, "%d\n", i % 3);
    }
    if (file) CHECK_INT(fclose(file), 0);
}

static const char *run_path(int zero, int run)
{
    static char path[MAX_PATH];
    snprintf(path, sizeof(path), "%s/zero%d/s-%d", directory, zero, run);
    return path;
}

static const char *checkpoint_path(int zero, int run, int step)
{
    static char path[2][MAX_PATH + 64];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof(path[turn]), "%s/checkpoints/step-%012d.safetensors",
             run_path(zero, run), step);
    return path[turn];
}

/* A checkpoint of run `run` equals that of run 1, which a single process has made. */
static void check_same(int zero, int run, int step)
{
    tdm_file_bytes one = {0}, other = {0};
    CHECK_INT(tdm_file_read(checkpoint_path(zero, 1, step), 0, &one, NULL), TDM_OK);
    CHECK_INT(tdm_file_read(checkpoint_path(zero, run, step), 0, &other, NULL), TDM_OK);
    bool same = one.count > 0 && one.count == other.count &&
                memcmp(one.data, other.data, one.count) == 0;
    CHECK(same);
    if (!same) fprintf(stderr, "zero %d, run %d, step %d differs\n", zero, run, step);
    tdm_file_bytes_release(&one);
    tdm_file_bytes_release(&other);
}

static void in_world(const char *mode, const char *hosts, int zero)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", zero);
    setenv("STATE_ZERO", text, 1);
    world_run(&(world){.what = mode, .hosts = hosts});
}

/* The world is tested only if a transport between its hosts is available. */
static bool can_have(const char *hosts)
{
    return strspn(hosts, "a") == strlen(hosts) || world_has("tcp");
}

/* With each rank holding a share of everything: all events of a run. */
static void test_shared_out_state(void)
{
    const char *three = can_have("aab") ? "aab" : "aaa";
    const int zero = 3;
    in_world("begin", "a", zero);
    in_world("begin", three, zero);
    check_same(zero, 2, MIDDLE);
    check_same(zero, 2, LAST);

    CHECK_INT(unlink(checkpoint_path(zero, 2, LAST)), 0);
    setenv("STATE_RESUME", run_path(zero, 2), 1);
    in_world("resume", can_have("ab") && !SLOW ? "ab" : "aa", zero);
    check_same(zero, 2, LAST);

    setenv("STATE_FAULTS", "7", 1); /* some tensors were written before the disk was full */
    in_world("begin", three, zero);
    setenv("STATE_FAULTS", "0", 1);
    CHECK(!tdm_path_exists(checkpoint_path(zero, 3, MIDDLE)));
    check_same(zero, 3, LAST);
}

static void test_states_shared_out_alone(void)
{
    if (SLOW || !can_have("ab")) return;
    in_world("begin", "a", 1);
    in_world("begin", "ab", 1);
    check_same(1, 2, MIDDLE);
    check_same(1, 2, LAST);
}

static void test_common_memory(void)
{
    in_world("begin", "a", 0);
    in_world("begin", "aa", 0);
    check_same(0, 2, MIDDLE);
    check_same(0, 2, LAST);
}

static const check_test tests[] = {
    CHECK_TEST(test_shared_out_state),
    CHECK_TEST(test_states_shared_out_alone),
    CHECK_TEST(test_common_memory),
};

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--rank") == 0) return world_be_a_rank(rank_task, argv[2]);
    make_directory();
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
