/*
 * store_test.c: parameter stores and prefetches in real worlds and in simulated ones.
 *
 *     store_test                 all tests
 *     store_test --rank CASE     is a rank of one, started by the test
 *
 * A world consists of processes of this program, on one host or on several simulated ones (TANDEM_HOST), whose
 * ranks communicate through shared memory within a host and by UCX between hosts. Without UCX, worlds of
 * several hosts are tested by the simulator only, in which every rank is a separate host.
 */
#include "dist/world.h"
#include "os/os.h"
#include "parallel/undo_log.h"
#include "sim/simulator.h"
#include "store_exercise.h"

#include <sys/stat.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOW = 1 };
#else
enum { SLOW = 0 };
#endif

/* A block of a model of HUGE_WIDTH takes almost 8 MiB: pages are counted, and they may be of 2 MiB. */
enum { DEADLINE_S = 60, VICTIM = 1, HUGE_WIDTH = 646 };

/* ---- ranks ----------------------------------------------------------------------------------- */

static void rank_exercise(tdm_comm *comm)
{
    for (int zero = 0; zero <= 3; zero++) exercise(comm, zero, NULL);
}

static void rank_offload(tdm_comm *comm)
{
    for (int zero = 0; zero <= 1; zero++) exercise(comm, zero, getenv("STORE_DIRECTORY"));
}

static uint64_t sum_over_ranks(tdm_comm *comm, uint64_t mine)
{
    int64_t sum = (int64_t)mine;
    CHECK_INT(tdm_group_all_reduce(tdm_comm_world(comm), &sum, &sum, 1, TDM_DTYPE_I64,
                                   TDM_REDUCE_SUM, NULL),
              TDM_OK);
    return (uint64_t)sum;
}

/* The bytes that this process has written, divided equally among the processes that share them: without the
 * pages of files, whose shares change with whatever else runs on the machine. */
static uint64_t written_bytes(void)
{
    uint64_t sum = 0;
    char line[256];
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    while (file && fgets(line, sizeof(line), file))
        if (strncmp(line, "Pss_Anon:", 9) == 0 || strncmp(line, "Pss_Shmem:", 10) == 0)
            sum += strtoull(strchr(line, ':') + 1, NULL, 10) * 1024;
    if (file) fclose(file);
    return sum > 0 ? sum : tdm_os_proportional_bytes();
}

static bool write_zeros(bench *b)
{
    enum { PIECE = 262144 };
    tdm_error err = {0};
    for (int block = 0; block < BLOCKS; block++)
        for (size_t at = 0; at < b->elements; at += PIECE) {
            size_t count = b->elements - at < PIECE ? b->elements - at : PIECE;
            const float *in = b->rank == 0 ? b->copy : NULL;
            if (!fine(b, tdm_params_write(b->store, block, at, count, in, &err), &err, "write"))
                return false;
            if (!meet(b)) return false; /* so that messages do not accumulate */
        }
    return fine(b, tdm_params_settle(b->store, &err), &err, "settle");
}

/* All ranks together use the memory that their stores report. The first store pays for everything that is
 * needed once; the second one is measured. */
static void rank_memory(tdm_comm *comm)
{
    for (int zero = 0; zero <= 3; zero += 1 + (zero == 1)) {
        bench b = {.comm = comm, .zero = zero}; /* 2 is like 1 */
        bool well = bench_open(&b, HUGE_WIDTH, 5, 0) && write_zeros(&b) && meet(&b);
        tdm_params_destroy(b.store);
        b.store = NULL;
        CHECK(meet(&b)); /* all have released it */
        uint64_t before = sum_over_ranks(comm, written_bytes());
        well = well && bench_store(&b, 0) && write_zeros(&b);
        if (!well) return;
        tdm_params_info info = tdm_params_info_of(b.store);
        uint64_t after = sum_over_ranks(comm, written_bytes());
        uint64_t common = info.common_bytes / (uint64_t)info.node_size;
        uint64_t want = sum_over_ranks(comm, info.private_bytes + common);
        double ratio = ((double)after - (double)before) / (double)want;
        bool close = ratio > 0.95 && ratio < 1.05;
        CHECK(close);
        if (b.rank == 0 && !close)
            fprintf(stderr, "zero %d: %.3f of the %llu bytes told\n", zero, ratio,
                    (unsigned long long)want);
        (void)meet(&b);
        bench_close(&b);
    }
}

/* One rank dies during the operations; all others get an error, and none waits. */
static void rank_death(tdm_comm *comm)
{
    bench b = {.comm = comm, .zero = atoi(getenv("STORE_ZERO"))};
    if (!bench_open(&b, WIDTH, LAYERS, BUCKET_BYTES)) return;
    tdm_error err = {0};
    tdm_status status = tdm_prefetch_create(b.store, TDM_BLOCK_PARAMS, &b.net.train, 1, &b.feed,
                                            &err);
    double began_s = tdm_clock_s(); /* of a step */
    for (int step = 0; status == TDM_OK; step++) {
        if (step == 3 && b.rank == VICTIM) raise(SIGKILL);
        began_s = tdm_clock_s();
        status = tdm__params_publish(b.store, NULL, true, &err);
        if (status == TDM_OK) status = tdm_prefetch_run(b.feed, 0, &(tdm_step_key){0}, &err);
    }
    CHECK_INT(tdm_status_group_of(status), TDM_STATUS_GROUP_PEER);
    CHECK(tdm_clock_s() - began_s < DEADLINE_S);
    bench_close(&b);
}

/* ---- what a segment contains ----------------------------------------------------------------- */

enum { LANES = 4 };

/* A store that is alone with a segment, in a new epoch, and the state that it finds there. */
static bool enter_alone(bench *b, tdm_shm *shm, int slot, uint32_t epoch, tdm_recovery *found)
{
    tdm_error err = {0};
    *b = (bench){.shm = shm, .slot = slot, .epoch = epoch};
    return bench_open(b, WIDTH, LAYERS, BUCKET_BYTES) &&
           fine(b, tdm_params_recover(b->store, LANES, 0, found, &err), &err, "recover");
}

/* Its blocks get the values after `step` steps. */
static bool set_state(bench *b, int step)
{
    tdm_error err = {0};
    for (int block = 0; block < BLOCKS; block++)
        if (!write_block(b, block, step)) return false;
    return fine(b, tdm_params_settle(b->store, &err), &err, "settle") &&
           fine(b, tdm_params_set(b->store, (uint64_t)step, &err), &err, "set");
}

/* Rank 1 returns with an old state. While it receives the new one, rank 0 dies, and its memory with it. What
 * rank 1 then has is not a valid state: half of it is old and half is new. */
static void rank_carry(tdm_comm *comm)
{
    enum { OLD = 5, NEW = 10 };
    bool is_source = tdm_comm_rank(comm) == 0;
    tdm_shm *shm = NULL;
    tdm_recovery found;
    tdm_error err = {0};
    bench b;
    CHECK_INT(tdm_shm_create(&shm, &err), TDM_OK);
    bool well = enter_alone(&b, shm, 0, 1, &found) && set_state(&b, is_source ? NEW : OLD);
    bench_close(&b);
    if (is_source) setenv("TANDEM_TEST_KILL", "carry:part=1", 1);
    b = (bench){.comm = comm, .shm = shm, .epoch = 2};
    well = well && bench_open(&b, WIDTH, LAYERS, BUCKET_BYTES);
    if (!well) return;
    tdm_status status = tdm_params_recover(b.store, LANES, 0, &found, &err);
    CHECK_INT(tdm_status_group_of(status), TDM_STATUS_GROUP_PEER);
    bench_close(&b);
    if (enter_alone(&b, shm, 0, 3, &found) && found.found) {
        CHECK_INT(found.step, OLD); /* nothing had arrived yet */
        for (int block = 0; block < BLOCKS; block++) CHECK(sees(&b, block, OLD));
    }
    bench_close(&b);
    tdm_shm_close(shm);
}

typedef struct rank_case {
    const char *name;
    void (*run)(tdm_comm *comm);
} rank_case;

static const rank_case cases[] = {{"exercise", rank_exercise},
                                  {"offload", rank_offload},
                                  {"memory", rank_memory},
                                  {"death", rank_death},
                                  {"carry", rank_carry}};

static void task(tdm_comm *comm, const char *what)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (strcmp(cases[i].name, what) == 0) cases[i].run(comm);
}

/* ---- worlds ---------------------------------------------------------------------------------- */

static void test_one_host(void)
{
    world_run(&(world){.what = "exercise", .hosts = "a", .deadline_s = DEADLINE_S});
    world_run(&(world){.what = "exercise", .hosts = "aa", .deadline_s = DEADLINE_S});
    if (!SLOW) world_run(&(world){.what = "exercise", .hosts = "aaaaa", .deadline_s = DEADLINE_S});
}

static void test_several_hosts(void)
{
    world_run(&(world){.what = "exercise", .hosts = "aab", .deadline_s = DEADLINE_S});
    world_run(&(world){.what = "exercise", .hosts = "abacb", .deadline_s = DEADLINE_S});
}

static void test_offload(void)
{
    const char *directory = check_path("offload");
    CHECK_INT(mkdir(directory, 0700), 0);
    setenv("STORE_DIRECTORY", directory, 1);
    world_run(&(world){.what = "offload", .hosts = "aa", .deadline_s = DEADLINE_S});
    world_run(&(world){.what = "offload", .hosts = "aab", .deadline_s = DEADLINE_S});
    CHECK_INT(rmdir(directory), 0); /* nothing is left behind */
}

static void test_memory(void)
{
    if (SLOW) return; /* sanitizers use additional memory for each page */
    world_run(&(world){.what = "memory", .hosts = "aab", .deadline_s = DEADLINE_S});
}

static void test_death(void)
{
    for (int zero = 0; zero <= 3; zero += 1 + (zero == 1)) {
        setenv("STORE_ZERO", (char[]){(char)('0' + zero), 0}, 1);
        world_run(&(world){.what = "death",
                           .hosts = zero == 0 ? "aa" : "aabb",
                           .deadline_s = DEADLINE_S,
                           .victim = VICTIM + 1});
    }
}

static void test_host_lost_in_a_carry(void)
{
    world_run(&(world){.what = "carry", .hosts = "ab", .deadline_s = DEADLINE_S, .victim = 1});
}

/* A process that dies while it invalidates a state leaves no valid state, although the numbers were valid
 * before. */
static void test_death_while_giving_up(void)
{
    tdm_shm *shm = NULL;
    tdm_recovery found;
    tdm_error err = {0};
    bench b;
    int state = 0;
    CHECK_INT(tdm_shm_create(&shm, &err), TDM_OK);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        bool well = enter_alone(&b, shm, 0, 1, &found) && set_state(&b, 5);
        bench_close(&b);
        setenv("TANDEM_TEST_KILL", "unset", 1);
        if (well && enter_alone(&b, shm, 0, 2, &found) && found.found)
            (void)tdm_params_unset(b.store, &err);
        _exit(1);
    }
    while (waitpid(pid, &state, 0) < 0 && errno == EINTR) continue;
    CHECK(WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL);
    if (enter_alone(&b, shm, 1, 3, &found)) CHECK(!found.found);
    bench_close(&b);
    tdm_shm_close(shm);
}

/* The progress of a state is two numbers. A process that dies between the two stores leaves the progress valid. */
static void test_death_while_telling(void)
{
    tdm_shm *shm = NULL;
    tdm_recovery found;
    tdm_error err = {0};
    bench b;
    CHECK_INT(tdm_shm_create(&shm, &err), TDM_OK);
    if (enter_alone(&b, shm, 0, 1, &found) && set_state(&b, 6))
        atomic_store(&tdm__params_undo_log(b.store)->undo_header->state, 5 + 1);
    bench_close(&b);
    if (enter_alone(&b, shm, 0, 2, &found)) {
        CHECK(found.found);
        CHECK_INT(found.step, 6);
    }
    bench_close(&b);
    tdm_shm_close(shm);
}

/* The snapshot of a rank of an earlier epoch is not used any more, and data sent to it is not written. */
static void test_fenced(void)
{
    tdm_shm *shm = NULL;
    tdm_recovery found;
    tdm_error err = {0};
    bench old, b;
    CHECK_INT(tdm_shm_create(&shm, &err), TDM_OK);
    if (enter_alone(&old, shm, 0, 1, &found) && set_state(&old, 5))
        tdm_params_snapshot_save(old.store, "five", 5, 11);
    if (enter_alone(&b, shm, 1, 2, &found)) {
        CHECK_INT(found.snapshot_order, 11);
        CHECK_TEXT((const char *)found.snapshot, "five");
        tdm_params_snapshot_save(old.store, "late", 5, 99);
        tdm__undo_log *undo_log = tdm__params_undo_log(old.store);
        CHECK_INT(tdm__undo_gather_begin(undo_log, &err), TDM_ERR_PEER_FENCED);
        CHECK_INT(atomic_load(&undo_log->undo_header->slots[0].gathering), 0);
        tdm_params_snapshot_save(b.store, "six", 4, 13);
    }
    bench_close(&b);
    bench_close(&old);
    if (enter_alone(&b, shm, 1, 3, &found)) {
        CHECK_INT(found.snapshot_order, 13);
        CHECK_TEXT((const char *)found.snapshot, "six");
    }
    bench_close(&b);
    tdm_shm_close(shm);
}

static void sim_rank(tdm_comm *comm, void *user)
{
    exercise(comm, *(int *)user, NULL);
}

static void test_simulated(void)
{
    static const int sizes[] = {1, 2, 3, 5, 24};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int zero = 0; zero <= 3; zero++) {
            if (sizes[i] > 5 && (SLOW || zero < 2)) continue;
            tdm_sim_options options = {.seed = i, .size = sizes[i]};
            tdm_sim_result result = {0};
            tdm_error err = {0};
            CHECK_INT(tdm_sim_run(&options, sim_rank, &zero, &result, &err), TDM_OK);
            CHECK_INT(result.finished_count, sizes[i]);
        }
}

static const check_test tests[] = {
    CHECK_TEST(test_one_host),
    CHECK_TEST(test_several_hosts),
    CHECK_TEST(test_offload),
    CHECK_TEST(test_memory),
    CHECK_TEST(test_death),
    CHECK_TEST(test_simulated),
    CHECK_TEST(test_host_lost_in_a_carry),
    CHECK_TEST(test_death_while_giving_up),
    CHECK_TEST(test_death_while_telling),
    CHECK_TEST(test_fenced),
};

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--rank") == 0) return world_be_a_rank(task, argv[2]);
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
