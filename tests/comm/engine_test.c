/*
 * engine_test.c: what the engine guarantees besides correct results: errors that name the ranks and both calls,
 * deadlines that name the missing ranks, groups that break for all members, calls in the background, and worlds
 * that some ranks leave.
 *
 * Everything runs in the simulator, so a deadline of 30 s takes no time and every run is the same.
 */
#include "check.h"
#include "comm/comm.h"
#include "sim/simulator.h"

#include <stdlib.h>
#include <string.h>

enum { MAX = 16 };

typedef struct story {
    void (*tell)(struct story *story, tdm_comm *comm, int rank);
    tdm_status status[MAX];
    char text[MAX][1000];
    double seconds[MAX];
    int value;
} story;

static void each_rank(tdm_comm *comm, void *user)
{
    story *s = user;
    s->tell(s, comm, tdm_comm_rank(comm));
}

static void note(story *s, int rank, tdm_status status, const tdm_error *err)
{
    s->status[rank] = status;
    snprintf(s->text[rank], sizeof(s->text[rank]), "%s", status == TDM_OK ? "" : err->message);
}

static tdm_sim_result run(story *s, int size, const tdm_sim_fault *faults, int fault_count)
{
    tdm_sim_options options = {
        .seed = 7, .size = size, .deadline_s = 5, .faults = faults, .fault_count = fault_count};
    tdm_sim_result result = {0};
    tdm_error err = {0};
    CHECK_INT(tdm_sim_run(&options, each_rank, s, &result, &err), TDM_OK);
    CHECK_INT(result.hung_count, 0);
    return result;
}

static bool has(const char *text, const char *part)
{
    if (strstr(text, part)) return true;
    fprintf(stderr, "  \"%s\"\n  does not say \"%s\"\n", text, part);
    return false;
}

/* ---- disagreement ------------------------------------------------------------------------------- */

static void call_different_things(story *s, tdm_comm *comm, int rank)
{
    tdm_error err = {0};
    float x[8] = {0};
    tdm_group *world = tdm_comm_world(comm);
    CHECK_INT(tdm_group_barrier(world, &err), TDM_OK);
    tdm_status status = rank == 2 ? tdm_group_broadcast(world, x, 5, TDM_DTYPE_F32, 1, &err)
                                  : tdm_group_all_reduce(world, x, x, 8, TDM_DTYPE_F32,
                                                         TDM_REDUCE_SUM, &err);
    note(s, rank, status, &err);
    CHECK_INT(tdm_group_barrier(world, &err), TDM_ERR_PEER_MISMATCH);
}

static void mismatch_names_ranks_and_calls(void)
{
    story s = {.tell = call_different_things};
    run(&s, 4, NULL, 0);
    for (int i = 0; i < 4; i++) {
        CHECK_INT(s.status[i], TDM_ERR_PEER_MISMATCH);
        CHECK(has(s.text[i], "rank 2"));
        CHECK(has(s.text[i], "call #1 of the world"));
        CHECK(has(s.text[i], "all_reduce of 8 f32 by sum"));
        CHECK(has(s.text[i], "broadcast of 5 f32, root 1"));
    }
}

/* Each waits for the other to send: no message is sent, so only notifications reveal it. */
static void root_disagrees(story *s, tdm_comm *comm, int rank)
{
    tdm_error err = {0};
    float x[4] = {0};
    note(s, rank, tdm_group_broadcast(tdm_comm_world(comm), x, 4, TDM_DTYPE_F32, 1 - rank, &err),
         &err);
    s->seconds[rank] = tdm_sim_now_s(comm);
}

static void mismatch_is_found_although_no_rank_sends(void)
{
    story s = {.tell = root_disagrees};
    run(&s, 2, NULL, 0);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(s.status[i], TDM_ERR_PEER_MISMATCH);
        CHECK(has(s.text[i], "root 0"));
        CHECK(has(s.text[i], "root 1"));
        CHECK(s.seconds[i] < 1);
    }
}

/* ---- deadlines ---------------------------------------------------------------------------------- */

static void one_never_calls(story *s, tdm_comm *comm, int rank)
{
    tdm_error err = {0};
    int32_t x = rank;
    tdm_group *world = tdm_comm_world(comm);
    CHECK_INT(tdm_group_barrier(world, &err), TDM_OK);
    if (rank == 1) {
        tdm_sim_compute(comm, 100);
        note(s, rank, tdm_group_check(world, &err), &err);
        return;
    }
    note(s, rank, tdm_group_all_reduce(world, &x, &x, 1, TDM_DTYPE_I32, TDM_REDUCE_SUM, &err),
         &err);
    s->seconds[rank] = tdm_sim_now_s(comm);
}

static void deadline_names_the_missing_rank(void)
{
    story s = {.tell = one_never_calls};
    run(&s, 3, NULL, 0);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(s.status[i], TDM_ERR_PEER_TIMEOUT);
        CHECK(has(s.text[i], "all_reduce #1 of world"));
        CHECK(has(s.text[i], "rank 1"));
        CHECK(has(s.text[i], "barrier")); /* what it did last */
        CHECK(s.seconds[i] < 6);
    }
}

/* ---- death -------------------------------------------------------------------------------------- */

static void talk_for_long(story *s, tdm_comm *comm, int rank)
{
    tdm_error err = {0};
    static int64_t x[MAX][1000];
    tdm_status status = TDM_OK;
    for (int i = 0; i < 100000 && status == TDM_OK; i++)
        status = tdm_group_all_reduce(tdm_comm_world(comm), x[rank], x[rank], 1000, TDM_DTYPE_I64,
                                      TDM_REDUCE_MAX, &err);
    note(s, rank, status, &err);
    s->seconds[rank] = tdm_sim_now_s(comm);
    CHECK_INT(tdm_comm_peer_state(comm, 2), TDM_PEER_LOST);
}

static void death_ends_calls_everywhere(void)
{
    tdm_sim_fault crash = {.kind = TDM_SIM_CRASH, .at_s = 0.05, .rank = 2};
    story s = {.tell = talk_for_long};
    run(&s, 5, &crash, 1);
    for (int i = 0; i < 5; i++) {
        if (i == 2) continue;
        CHECK_INT(s.status[i], TDM_ERR_PEER_FAILED);
        CHECK(has(s.text[i], "rank 2 has failed"));
        CHECK(s.seconds[i] < 0.2);
    }
}

/* ---- groups ------------------------------------------------------------------------------------- */

static void odd_and_even(story *s, tdm_comm *comm, int rank)
{
    tdm_error err = {0};
    int mine[3], count = 0;
    for (int i = rank % 2; i < 6; i += 2) mine[count++] = i;
    tdm_group *group = NULL;
    CHECK_INT(tdm_group_create(comm, mine, count, &group, &err), TDM_OK);
    CHECK_INT(tdm_group_rank(group), rank / 2);
    int32_t sum = rank;
    CHECK_INT(tdm_group_all_reduce(group, &sum, &sum, 1, TDM_DTYPE_I32, TDM_REDUCE_SUM, &err),
              TDM_OK);
    CHECK_INT(sum, rank % 2 ? 9 : 6);
    /* A mistake in one group does not affect the other one. */
    if (rank % 2) {
        tdm_status status = rank == 1 ? tdm_group_barrier(group, &err)
                                      : tdm_group_broadcast(group, &sum, 1, TDM_DTYPE_I32, 1, &err);
        /* A root that has sent everything may have returned successfully; its next call gets the error. */
        if (status == TDM_OK) status = tdm_group_barrier(group, &err);
        note(s, rank, status, &err);
    } else {
        note(s, rank, tdm_group_barrier(group, &err), &err);
    }
    CHECK_INT(tdm_group_barrier(tdm_comm_world(comm), &err), TDM_OK);
    tdm_group_destroy(group);
    int twice[] = {rank, rank}, alone[] = {rank}, outside[] = {(rank + 1) % 6};
    CHECK_INT(tdm_group_create(comm, twice, 2, &group, &err), TDM_ERR_INVALID);
    CHECK_INT(tdm_group_create(comm, outside, 1, &group, &err), TDM_ERR_INVALID);
    CHECK_INT(tdm_group_create(comm, alone, 1, &group, &err), TDM_OK);
    CHECK_INT(tdm_group_barrier(group, &err), TDM_OK);
    tdm_group_destroy(group);
}

static void groups_live_and_break_apart(void)
{
    story s = {.tell = odd_and_even};
    run(&s, 6, NULL, 0);
    for (int i = 0; i < 6; i++) CHECK_INT(s.status[i], i % 2 ? TDM_ERR_PEER_MISMATCH : TDM_OK);
}

/* ---- in the background -------------------------------------------------------------------------- */

static void start_many(story *s, tdm_comm *comm, int rank)
{
    enum { CALLS = 20, COUNT = 3000 };
    static float x[MAX][CALLS][COUNT];
    tdm_error err = {0};
    tdm_request *requests[CALLS];
    for (int i = 0; i < CALLS; i++) {
        for (int k = 0; k < COUNT; k++) x[rank][i][k] = (float)(rank + i);
        tdm_call call = {.kind = TDM_CALL_ALL_REDUCE,
                         .dtype = TDM_DTYPE_F32,
                         .count = COUNT,
                         .out = x[rank][i],
                         .priority = CALLS - i};
        CHECK_INT(tdm_call_start(tdm_comm_world(comm), &call, &requests[i], &err), TDM_OK);
    }
    CHECK_INT(tdm_group_barrier(tdm_comm_world(comm), &err), TDM_OK);
    for (int i = CALLS - 1; i >= 0; i--) {
        if (i % 3 == 0) tdm_request_test(requests[i]);
        CHECK_INT(tdm_request_wait(requests[i], &err), TDM_OK);
        CHECK(x[rank][i][0] == (float)(6 + 4 * i) && x[rank][i][COUNT - 1] == (float)(6 + 4 * i));
    }
    note(s, rank, TDM_OK, &err);
}

static void calls_run_side_by_side(void)
{
    story s = {.tell = start_many};
    run(&s, 4, NULL, 0);
}

/* Much data with low priority is in flight on a slow network when an urgent call starts. */
static void urgent_last(story *s, tdm_comm *comm, int rank)
{
    enum { CALLS = 12, COUNT = 1 << 20, FEW = 1 << 14 };
    tdm_error err = {0};
    float *much = calloc((size_t)CALLS * COUNT, sizeof(*much)), few[FEW] = {0};
    tdm_request *requests[CALLS];
    for (int i = 0; i < CALLS; i++) {
        tdm_call call = {.kind = TDM_CALL_ALL_REDUCE,
                         .dtype = TDM_DTYPE_F32,
                         .count = COUNT,
                         .out = much + (size_t)i * COUNT,
                         .priority = 10};
        CHECK_INT(tdm_call_start(tdm_comm_world(comm), &call, &requests[i], &err), TDM_OK);
    }
    tdm_call urgent = {.kind = TDM_CALL_ALL_REDUCE,
                       .dtype = TDM_DTYPE_F32,
                       .count = FEW,
                       .out = few,
                       .priority = s->value};
    CHECK_INT(tdm_call_run(tdm_comm_world(comm), &urgent, &err), TDM_OK);
    s->seconds[rank] = tdm_sim_now_s(comm);
    for (int i = 0; i < CALLS; i++) CHECK_INT(tdm_request_wait(requests[i], &err), TDM_OK);
    free(much);
}

static void what_is_urgent_goes_first(void)
{
    double took[2];
    for (int i = 0; i < 2; i++) {
        story s = {.tell = urgent_last, .value = i == 0 ? 10 : 0};
        tdm_sim_options options = {.seed = 7, .size = 2, .bandwidth = 1e8};
        tdm_sim_result result = {0};
        CHECK_INT(tdm_sim_run(&options, each_rank, &s, &result, NULL), TDM_OK);
        took[i] = s.seconds[0];
    }
    CHECK(took[1] < took[0] / 5);
}

static void pass_messages(story *s, tdm_comm *comm, int rank)
{
    static uint8_t data[MAX][100000];
    tdm_error err = {0};
    tdm_group *world = tdm_comm_world(comm);
    int size = tdm_comm_size(comm);
    memset(data[rank], rank + 1, sizeof(data[rank]));
    tdm_request *request = NULL;
    tdm_call call = {.kind = TDM_CALL_SEND,
                     .dtype = TDM_DTYPE_U8,
                     .count = sizeof(data[rank]),
                     .in = data[rank],
                     .root = (rank + 1) % size,
                     .tag = 5};
    CHECK_INT(tdm_call_start(world, &call, &request, &err), TDM_OK);
    uint8_t got[100000], small[3] = {1, 2, 3};
    int left = (rank + size - 1) % size;
    CHECK_INT(tdm_group_recv(world, left, 5, got, sizeof(got), &err), TDM_OK);
    CHECK_INT(got[0], left + 1);
    CHECK_INT(got[99999], left + 1);
    CHECK_INT(tdm_request_wait(request, &err), TDM_OK);
    CHECK_INT(tdm_group_send(world, rank, 1, small, 3, &err), TDM_ERR_INVALID);
    /* Sizes that differ are a mismatch as well. */
    if (rank == 0) note(s, 0, tdm_group_send(world, 1, 9, small, 3, &err), &err);
    if (rank == 1) note(s, 1, tdm_group_recv(world, 0, 9, got, 4, &err), &err);
}

static void messages_are_matched_by_tag(void)
{
    story s = {.tell = pass_messages};
    run(&s, 3, NULL, 0);
    CHECK_INT(s.status[1], TDM_ERR_PEER_MISMATCH);
}

/* ---- leaving ------------------------------------------------------------------------------------ */

static void one_leaves(story *s, tdm_comm *comm, int rank)
{
    tdm_error err = {0};
    int32_t x = 1;
    tdm_group *world = tdm_comm_world(comm);
    CHECK_INT(tdm_group_barrier(world, &err), TDM_OK);
    if (rank == 0) return; /* the simulator closes its comm */
    note(s, rank, tdm_group_all_reduce(world, &x, &x, 1, TDM_DTYPE_I32, TDM_REDUCE_SUM, &err),
         &err);
    s->seconds[rank] = tdm_sim_now_s(comm);
}

static void a_rank_that_left_is_not_awaited(void)
{
    story s = {.tell = one_leaves};
    run(&s, 3, NULL, 0);
    for (int i = 1; i < 3; i++) {
        CHECK_INT(s.status[i], TDM_ERR_PEER_LEFT);
        CHECK(has(s.text[i], "rank"));
        CHECK(s.seconds[i] < 3);
    }
}

static void one_revokes(story *s, tdm_comm *comm, int rank)
{
    tdm_error err = {0};
    tdm_group *world = tdm_comm_world(comm);
    CHECK_INT(tdm_group_barrier(world, &err), TDM_OK);
    if (rank == 1) tdm_comm_revoke(comm, "the disk is full");
    note(s, rank, tdm_group_barrier(world, &err), &err);
    tdm_group *group = NULL;
    int all[] = {0, 1, 2};
    if (tdm_group_create(comm, all, 3, &group, &err) == TDM_OK) {
        CHECK_INT(tdm_group_barrier(group, &err), TDM_ERR_PEER_FAILED);
        tdm_group_destroy(group);
    }
}

static void revoking_ends_everything(void)
{
    story s = {.tell = one_revokes};
    run(&s, 3, NULL, 0);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(s.status[i], TDM_ERR_PEER_FAILED);
        CHECK(has(s.text[i], "the disk is full"));
    }
}

/* ---- mistakes ----------------------------------------------------------------------------------- */

static void make_mistakes(story *s, tdm_comm *comm, int rank)
{
    tdm_error err = {0};
    float x[4] = {1, 2, 3, 4};
    tdm_group *world = tdm_comm_world(comm);
    CHECK_INT(tdm_group_broadcast(world, x, 4, TDM_DTYPE_F32, 2, &err), TDM_ERR_RANGE);
    CHECK(has(err.message, "root is 2 in a group of 2 ranks"));
    CHECK_INT(tdm_group_broadcast(world, x, 4, TDM_DTYPE_NONE, 0, &err), TDM_ERR_INVALID);
    CHECK_INT(tdm_group_all_reduce(world, x, NULL, 4, TDM_DTYPE_F32, TDM_REDUCE_SUM, &err),
              TDM_ERR_INVALID);
    CHECK_INT(tdm_group_all_reduce(world, x, x, 4, TDM_DTYPE_BOOL, TDM_REDUCE_SUM, &err),
              TDM_ERR_UNSUPPORTED);
    CHECK_INT(tdm_group_all_reduce(world, x, x, SIZE_MAX / 2, TDM_DTYPE_F32, TDM_REDUCE_SUM, &err),
              TDM_ERR_RANGE);
    CHECK_INT(tdm_call_run(world, &(tdm_call){.kind = (tdm_call_kind)99}, &err), TDM_ERR_INVALID);
    static const double bad[] = {-1, NAN, INFINITY, 1e300};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CHECK_INT(
            tdm_call_run(world, &(tdm_call){.kind = TDM_CALL_BARRIER, .deadline_s = bad[i]}, &err),
            TDM_ERR_RANGE);
    /* None of them has broken the group. */
    note(s, rank, tdm_group_all_reduce(world, x, x, 4, TDM_DTYPE_F32, TDM_REDUCE_SUM, &err), &err);
    CHECK(x[3] == 8);
}

static void mistakes_are_this_ranks_alone(void)
{
    story s = {.tell = make_mistakes};
    run(&s, 2, NULL, 0);
    CHECK_INT(s.status[0], TDM_OK);
    CHECK_INT(s.status[1], TDM_OK);
}

static const check_test tests[] = {
    CHECK_TEST(mismatch_names_ranks_and_calls),
    CHECK_TEST(mismatch_is_found_although_no_rank_sends),
    CHECK_TEST(deadline_names_the_missing_rank),
    CHECK_TEST(death_ends_calls_everywhere),
    CHECK_TEST(groups_live_and_break_apart),
    CHECK_TEST(calls_run_side_by_side),
    CHECK_TEST(what_is_urgent_goes_first),
    CHECK_TEST(messages_are_matched_by_tag),
    CHECK_TEST(a_rank_that_left_is_not_awaited),
    CHECK_TEST(revoking_ends_everything),
    CHECK_TEST(mistakes_are_this_ranks_alone),
};
CHECK_MAIN(tests)
