/*
 * sim_test.c: the simulator through its public interface: the same seed gives the same run, a thousand ranks
 * compute the correct result, and each kind of fault has the outcome that comm.h describes.
 *
 * In the tests of faults every rank repeats one round: compute for 10 ms, then sum one number over the world;
 * it stops at the first error. The tests check which ranks got which error, which rank it names, and when, in
 * virtual time.
 */
#include "check.h"
#include "comm/comm.h"
#include "sim/simulator.h"

#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MANY = 100 };
#else
enum { MANY = 1024 };
#endif

enum { SIZE = 4, ROUNDS = 300 };
#define ROUND_S 0.01
#define DETECT_S 0.05
#define DEADLINE_S 5.0
#define GRACE_S 0.3 /* the time that a failed call may need to get its buffers back */

/* ---- rounds under faults ----------------------------------------------------------------------- */

typedef struct side {
    int round_count; /* that succeeded */
    bool wrong, returned;
    tdm_status status;
    double begin_s, end_s; /* of the last call */
    tdm_peer_state states[SIZE];
    char message[1000];
} side;

static void run_rounds(tdm_comm *comm, void *user)
{
    int rank = tdm_comm_rank(comm);
    side *mine = &((side *)user)[rank];
    for (int round = 0; round < ROUNDS && mine->status == TDM_OK; round++) {
        tdm_error err = {0};
        int64_t number = 1000 * round + rank;
        tdm_sim_compute(comm, ROUND_S);
        mine->begin_s = tdm_sim_now_s(comm);
        mine->status = tdm_group_all_reduce(tdm_comm_world(comm), &number, &number, 1,
                                            TDM_DTYPE_I64, TDM_REDUCE_SUM, &err);
        mine->end_s = tdm_sim_now_s(comm);
        if (mine->status == TDM_OK) {
            mine->round_count++;
            mine->wrong = mine->wrong || number != SIZE * 1000 * round + 6;
        } else {
            memcpy(mine->message, err.message, sizeof(mine->message));
        }
    }
    for (int i = 0; i < SIZE; i++) mine->states[i] = tdm_comm_peer_state(comm, i);
    mine->returned = true;
}

static tdm_sim_result play(const tdm_sim_fault *faults, int count, side sides[SIZE])
{
    tdm_sim_options options = {.seed = 5,
                               .size = SIZE,
                               .detect_s = DETECT_S,
                               .deadline_s = DEADLINE_S,
                               .faults = faults,
                               .fault_count = count};
    tdm_sim_result result = {0};
    tdm_error err = {0};
    memset(sides, 0, SIZE * sizeof(*sides));
    CHECK_INT(tdm_sim_run(&options, run_rounds, sides, &result, &err), TDM_OK);
    CHECK_TEXT(err.message, "");
    CHECK_INT(result.hung_count, 0);
    for (int i = 0; i < SIZE; i++) CHECK(!sides[i].wrong);
    return result;
}

/* Every rank completes all its rounds; returns the duration of the run. */
static double check_unharmed(tdm_sim_fault fault)
{
    side sides[SIZE];
    tdm_sim_result result = play(&fault, fault.kind != 0, sides);
    CHECK_INT(result.finished_count, SIZE);
    for (int i = 0; i < SIZE; i++) {
        CHECK_INT(sides[i].round_count, ROUNDS);
        CHECK_TEXT(sides[i].message, "");
    }
    return result.virtual_s;
}

static void test_no_fault(void)
{
    double took_s = check_unharmed((tdm_sim_fault){0});
    CHECK(took_s > ROUNDS * ROUND_S && took_s < ROUNDS * (ROUND_S + 0.001));
}

static void test_crash(void)
{
    tdm_sim_fault fault = {.kind = TDM_SIM_CRASH, .rank = 2, .at_s = 1.0};
    side sides[SIZE];
    tdm_sim_result result = play(&fault, 1, sides);
    CHECK_INT(result.finished_count, SIZE - 1);
    CHECK_INT(result.crashed_count, 1);
    CHECK(!sides[2].returned);
    for (int i = 0; i < SIZE; i++) {
        if (i == 2) continue;
        CHECK_INT(sides[i].status, TDM_ERR_PEER_FAILED);
        CHECK_HAS(sides[i].message, "rank 2 has failed");
        CHECK(sides[i].end_s >= 1.0 + DETECT_S - 1e-9 && sides[i].end_s < 1.0 + 2.1 * DETECT_S);
        CHECK_INT(sides[i].states[2], TDM_PEER_LOST);
    }
}

/* All three others, or all four, fail because of a deadline, soon after it. */
static void check_timeouts(const side *sides, int but, double at_s, const char *named)
{
    bool is_named = false;
    for (int i = 0; i < SIZE; i++) {
        if (i == but) continue;
        CHECK(sides[i].returned);
        CHECK_INT(sides[i].status, TDM_ERR_PEER_TIMEOUT);
        CHECK_HAS(sides[i].message, "all_reduce");
        CHECK(sides[i].end_s > at_s);
        CHECK(sides[i].end_s < sides[i].begin_s + DEADLINE_S + GRACE_S);
        is_named = is_named || strstr(sides[i].message, named) != NULL;
    }
    CHECK(is_named);
}

static void test_stall(void)
{
    tdm_sim_fault fault = {.kind = TDM_SIM_STALL, .rank = 1, .at_s = 1.0, .until_s = 4.0};
    CHECK(check_unharmed(fault) > ROUNDS * ROUND_S + 2.9);
    /* For longer than the deadline: when it continues, the world has given up. */
    fault.until_s = 20.0;
    side sides[SIZE];
    tdm_sim_result result = play(&fault, 1, sides);
    CHECK_INT(result.finished_count, SIZE);
    check_timeouts(sides, 1, 1.0 + DEADLINE_S - ROUND_S, "waits for rank 1");
    CHECK(sides[0].end_s < 1.0 + DEADLINE_S + GRACE_S + ROUND_S);
    CHECK_HAS(sides[0].message, "stalled");
    CHECK_INT(tdm_status_group_of(sides[1].status), TDM_STATUS_GROUP_PEER);
    CHECK_NEAR(sides[1].end_s, 20.0, 0.5);
    /* For ever. */
    fault.until_s = 0.0;
    result = play(&fault, 1, sides);
    CHECK_INT(result.finished_count, SIZE - 1);
    CHECK_INT(result.crashed_count, 1);
    check_timeouts(sides, 1, 1.0 + DEADLINE_S - ROUND_S, "waits for rank 1");
}

static void test_slow(void)
{
    tdm_sim_fault fault = {.kind = TDM_SIM_SLOW, .rank = 3, .at_s = 1.0, .factor = 10.0};
    double took_s = check_unharmed(fault);
    CHECK(took_s > 1.0 + 10 * (ROUNDS * ROUND_S - 1.1) && took_s < 1.0 + 11 * ROUNDS * ROUND_S);
}

static void test_partition(void)
{
    tdm_sim_fault fault = {.kind = TDM_SIM_PARTITION, .rank = 2, .at_s = 1.0, .until_s = 4.0};
    CHECK(check_unharmed(fault) > ROUNDS * ROUND_S + 2.9);
    fault.until_s = 0.0;
    side sides[SIZE];
    CHECK_INT(play(&fault, 1, sides).finished_count, SIZE);
    check_timeouts(sides, -1, 1.0, "the network between is cut");
}

static void test_cut(void)
{
    tdm_sim_fault fault = {.kind = TDM_SIM_CUT, .rank = 0, .other = 1, .at_s = 1.0, .until_s = 4.0};
    CHECK(check_unharmed(fault) > ROUNDS * ROUND_S + 2.9);
    fault.until_s = 0.0;
    side sides[SIZE];
    CHECK_INT(play(&fault, 1, sides).finished_count, SIZE);
    check_timeouts(sides, -1, 1.0, "waits for rank 1");
}

static void test_delay(void)
{
    tdm_sim_fault fault = {.kind = TDM_SIM_DELAY, .rank = 1, .at_s = 1.0, .factor = 0.1};
    double took_s = check_unharmed(fault);
    CHECK(took_s > 1.0 + 190 * (ROUND_S + 0.1));
}

static void test_vanish(void)
{
    tdm_sim_fault faults[SIZE];
    for (int i = 0; i < SIZE; i++) /* whichever rank it sends to */
        faults[i] = (tdm_sim_fault){.kind = TDM_SIM_VANISH, .rank = 1, .other = i, .at_s = 1.0};
    side sides[SIZE];
    CHECK_INT(play(faults, SIZE, sides).finished_count, SIZE);
    check_timeouts(sides, -1, 1.0, "waits for rank 1");
}

/* Faults of one group do not affect another one. */
static void run_apart(tdm_comm *comm, void *user)
{
    tdm_status *statuses = user;
    int rank = tdm_comm_rank(comm);
    int ranks[2][3] = {{0, 1, 3}, {3, 2, 1}};
    tdm_error err = {0};
    tdm_group *well = NULL, *ill = NULL;
    if (rank != 2) CHECK_INT(tdm_group_create(comm, ranks[0], 3, &well, &err), TDM_OK);
    if (rank != 0) CHECK_INT(tdm_group_create(comm, ranks[1], 3, &ill, &err), TDM_OK);
    tdm_sim_compute(comm, 2.0); /* meanwhile rank 2 dies, and no rank communicates with it */
    statuses[rank] = ill ? tdm_group_barrier(ill, &err) : TDM_OK;
    CHECK_INT(well ? tdm_group_barrier(well, &err) : TDM_OK, TDM_OK);
    if (ill) CHECK_INT(tdm_group_check(ill, &err), TDM_ERR_PEER_FAILED);
    CHECK_NEAR(tdm_sim_now_s(comm), 2.0, 0.01);
    tdm_group_destroy(well);
    tdm_group_destroy(ill);
}

static void test_groups(void)
{
    tdm_sim_fault fault = {.kind = TDM_SIM_CRASH, .rank = 2, .at_s = 1.0};
    tdm_sim_options options = {.size = SIZE, .faults = &fault, .fault_count = 1};
    tdm_sim_result result = {0};
    tdm_status statuses[SIZE] = {0};
    CHECK_INT(tdm_sim_run(&options, run_apart, statuses, &result, NULL), TDM_OK);
    CHECK_INT(result.finished_count, 3);
    CHECK_INT(statuses[1], TDM_ERR_PEER_FAILED);
    CHECK_INT(statuses[3], TDM_ERR_PEER_FAILED);
}

/* ---- agreement ---------------------------------------------------------------------------------- */

/* Ranks 1 and 2 have failed for their own reasons. */
static void run_agree(tdm_comm *comm, void *user)
{
    tdm_error *errors = user, err = {0};
    int rank = tdm_comm_rank(comm);
    tdm_status status = rank == 1 || rank == 2 ? tdm_fail(&err, TDM_ERR_NO_SPACE, "disk %d", rank)
                                               : TDM_OK;
    status = tdm_comm_agree(comm, status, NULL, &err);
    errors[rank] = err;
    CHECK_INT(err.status, status);
}

/* At whatever time rank 3 dies, no rank hangs or succeeds, and one that failed keeps an error of that kind.
 * */
static void test_agree(void)
{
    int told = 0, broken = 0;
    for (double at_s = 0; at_s < 400e-6; at_s += 4e-6) {
        tdm_sim_fault fault = {.kind = TDM_SIM_CRASH, .rank = 3, .at_s = at_s};
        tdm_sim_options options = {.size = SIZE, .faults = &fault, .fault_count = 1};
        tdm_sim_result result = {0};
        tdm_error errors[SIZE] = {{0}};
        CHECK_INT(tdm_sim_run(&options, run_agree, errors, &result, NULL), TDM_OK);
        CHECK_INT(result.hung_count, 0);
        CHECK_INT(errors[1].status, TDM_ERR_NO_SPACE);
        CHECK_INT(errors[2].status, TDM_ERR_NO_SPACE);
        CHECK_HAS(errors[1].message, "disk 1");
        CHECK(errors[0].status == TDM_ERR_NO_SPACE || errors[0].status == TDM_ERR_PEER_FAILED);
        told += errors[0].status == TDM_ERR_NO_SPACE;
        broken += errors[0].status == TDM_ERR_PEER_FAILED;
    }
    CHECK(told > 0 && broken > 0);
}

/* ---- leaving ----------------------------------------------------------------------------------- */

/* Rank 0 contributes its part and leaves; rank 1 makes the call long after that, and rank 2 waits for rank 1
 * only. */
static void run_leave(tdm_comm *comm, void *user)
{
    (void)user;
    int rank = tdm_comm_rank(comm);
    float in = (float)(rank + 1), out = 0;
    tdm_error err = {0};
    if (rank == 1) tdm_sim_compute(comm, 8.0);
    tdm_call call = {.kind = TDM_CALL_REDUCE,
                     .dtype = TDM_DTYPE_F32,
                     .count = 1,
                     .in = &in,
                     .out = &out,
                     .root = 2,
                     .algorithm = TDM_ALGORITHM_DIRECT};
    CHECK_INT(tdm_call_run(tdm_comm_world(comm), &call, &err), TDM_OK);
    CHECK_TEXT(err.message, "");
    if (rank == 2) CHECK_NEAR(out, 6.0, 0.0);
    /* Another call, without rank 0: ranks notice at once, not after 30 s, that it has left. */
    if (rank == 0) return;
    double begin_s = tdm_sim_now_s(comm);
    CHECK_INT(tdm_group_barrier(tdm_comm_world(comm), &err), TDM_ERR_PEER_LEFT);
    CHECK_HAS(err.message, "rank 0");
    CHECK(tdm_sim_now_s(comm) < begin_s + 10.5);
}

static void test_leave(void)
{
    tdm_sim_result result = {0};
    CHECK_INT(tdm_sim_run(&(tdm_sim_options){.size = 3}, run_leave, NULL, &result, NULL), TDM_OK);
    CHECK_INT(result.finished_count, 3);
}

/* ---- asking again and again -------------------------------------------------------------------- */

/* A program that only polls whether its call has ended; also after a peer has died. */
static void run_ask(tdm_comm *comm, void *user)
{
    double *end_s = user;
    int rank = tdm_comm_rank(comm);
    for (int round = 0; round < 2; round++) {
        tdm_error err = {0};
        tdm_request *request = NULL;
        tdm_call call = {.kind = TDM_CALL_BARRIER};
        if (rank == 1) tdm_sim_compute(comm, 1.0);
        CHECK_INT(tdm_call_start(tdm_comm_world(comm), &call, &request, &err), TDM_OK);
        while (!tdm_request_test(request))
            ;
        CHECK_INT(tdm_request_wait(request, &err), round ? TDM_ERR_PEER_FAILED : TDM_OK);
        end_s[round] = tdm_sim_now_s(comm);
    }
}

static void test_asking(void)
{
    tdm_sim_fault fault = {.kind = TDM_SIM_CRASH, .rank = 1, .at_s = 1.5};
    tdm_sim_options options = {.size = 2, .faults = &fault, .fault_count = 1};
    tdm_sim_result result = {0};
    double end_s[2] = {0};
    CHECK_INT(tdm_sim_run(&options, run_ask, end_s, &result, NULL), TDM_OK);
    CHECK_INT(result.finished_count, 1);
    CHECK_NEAR(end_s[0], 1.0, 0.01);
    CHECK_NEAR(end_s[1], 1.51, 0.02);
}

/* A call makes progress while its rank computes. */
static void run_overlap(tdm_comm *comm, void *user)
{
    (void)user;
    size_t count = 1 << 20;
    float *numbers = calloc(count, sizeof(*numbers));
    tdm_error err = {0};
    tdm_request *request = NULL;
    tdm_call call = {
        .kind = TDM_CALL_ALL_REDUCE, .dtype = TDM_DTYPE_F32, .count = count, .out = numbers};
    CHECK_INT(tdm_call_start(tdm_comm_world(comm), &call, &request, &err), TDM_OK);
    tdm_sim_compute(comm, 1.0);
    double before_s = tdm_sim_now_s(comm);
    CHECK_INT(tdm_request_wait(request, &err), TDM_OK);
    CHECK_NEAR(tdm_sim_now_s(comm), before_s, 1e-9);
    free(numbers);
}

static void test_overlap(void)
{
    /* 4 MB at 10 MB/s: some tenths of a second. */
    tdm_sim_options options = {.size = 2, .bandwidth = 10e6};
    tdm_sim_result result = {0};
    CHECK_INT(tdm_sim_run(&options, run_overlap, NULL, &result, NULL), TDM_OK);
    CHECK_INT(result.finished_count, 2);
    CHECK_NEAR(result.virtual_s, 1.0, 0.01);
}

/* ---- many, and again --------------------------------------------------------------------------- */

static void run_many(tdm_comm *comm, void *user)
{
    int *right_count = user;
    tdm_group *world = tdm_comm_world(comm);
    int rank = tdm_comm_rank(comm), size = tdm_comm_size(comm);
    tdm_error err = {0};
    int64_t numbers[3] = {rank, 1, -rank}, root[2] = {rank, 7 * rank};
    bool ok = tdm_group_barrier(world, &err) == TDM_OK &&
              tdm_group_all_reduce(world, numbers, numbers, 3, TDM_DTYPE_I64, TDM_REDUCE_SUM,
                                   &err) == TDM_OK &&
              tdm_group_broadcast(world, root, 2, TDM_DTYPE_I64, size / 3, &err) == TDM_OK;
    CHECK_TEXT(err.message, "");
    int64_t sum = (int64_t)size * (size - 1) / 2;
    *right_count += ok && numbers[0] == sum && numbers[1] == size && numbers[2] == -sum &&
                    root[0] == size / 3 && root[1] == 7 * (size / 3);
}

static tdm_sim_result play_many(uint64_t seed, int size)
{
    tdm_sim_options options = {
        .seed = seed, .size = size, .ranks_per_host = 8, .jitter_s = 10e-6, .loss = 0.001};
    tdm_sim_result result = {0};
    tdm_error err = {0};
    int right_count = 0;
    CHECK_INT(tdm_sim_run(&options, run_many, &right_count, &result, &err), TDM_OK);
    CHECK_TEXT(err.message, "");
    CHECK_INT(right_count, size);
    CHECK_INT(result.finished_count, size);
    return result;
}

static void test_many(void)
{
    tdm_sim_result result = play_many(1, MANY);
    printf("%d ranks: %.3f s, %llu messages, %llu events\n", MANY, result.virtual_s,
           (unsigned long long)result.message_count, (unsigned long long)result.event_count);
}

static void test_again(void)
{
    tdm_sim_result first = play_many(7, 20), again = play_many(7, 20), other = play_many(8, 20);
    CHECK(first.hash == again.hash);
    CHECK(first.virtual_s == again.virtual_s);
    CHECK(first.event_count == again.event_count);
    CHECK(first.hash != other.hash);
    side sides[SIZE];
    tdm_sim_fault fault = {.kind = TDM_SIM_CRASH, .rank = 0, .at_s = 1.0};
    uint64_t hash = play(&fault, 1, sides).hash;
    CHECK(play(&fault, 1, sides).hash == hash);
    fault.at_s = 1.001;
    CHECK(play(&fault, 1, sides).hash != hash);
}

static void test_refused(void)
{
    tdm_sim_result result = {.finished_count = 77};
    tdm_error err = {0};
    CHECK_INT(tdm_sim_run(&(tdm_sim_options){.size = 0}, run_many, NULL, &result, &err),
              TDM_ERR_RANGE);
    CHECK_HAS(err.message, "0 ranks");
    CHECK_INT(result.finished_count, 77);
}

static const check_test tests[] = {
    CHECK_TEST(test_no_fault), CHECK_TEST(test_crash),     CHECK_TEST(test_stall),
    CHECK_TEST(test_slow),     CHECK_TEST(test_partition), CHECK_TEST(test_cut),
    CHECK_TEST(test_delay),    CHECK_TEST(test_vanish),    CHECK_TEST(test_groups),
    CHECK_TEST(test_agree),    CHECK_TEST(test_leave),     CHECK_TEST(test_asking),
    CHECK_TEST(test_overlap),  CHECK_TEST(test_many),      CHECK_TEST(test_again),
    CHECK_TEST(test_refused),
};
CHECK_MAIN(tests)
