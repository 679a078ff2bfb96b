/*
 * hierarchy_test.c: collectives that use windows within hosts and messages between hosts, tested at the level
 * of programs: hosts of equal and of different sizes, ranks of a host in order and scattered, lanes that do not
 * follow the hosts; every kind that the algorithm supports, odd sizes, in place and not in place, bit for bit.
 * Bytes between hosts are compared with the numbers in the header of the algorithm.
 */
#include "comm/algorithms/host_sums.h"
#include "window_world.h"

/* The host of each rank. Each host has at least two ranks. */
typedef struct placement {
    int size;
    int host_of[MAX_MEMBERS];
} placement;

static const placement placements[] = {
    {4, {0, 0, 1, 1}}, /* two complete sub-trees */
    {4, {0, 1, 0, 1}}, /* scattered: two sums for each host */
    /* one rail less than the number of ranks of the larger host */
    {5, {0, 0, 1, 1, 1}},
    {6, {0, 0, 1, 1, 2, 2}},                    /* three hosts: two steps */
    {7, {0, 1, 1, 0, 2, 2, 2}},                 /* neither equal nor in order */
    {8, {0, 0, 0, 0, 1, 1, 1, 1}},              /* four rails */
    {9, {0, 0, 0, 1, 1, 1, 2, 2, 2}},           /* sub-trees across hosts */
    {12, {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5}}, /* many hosts */
};
enum { PLACEMENTS = sizeof(placements) / sizeof(placements[0]) };

static const tdm_call_kind kinds[] = {TDM_CALL_BARRIER,        TDM_CALL_BROADCAST,
                                      TDM_CALL_REDUCE,         TDM_CALL_ALL_REDUCE,
                                      TDM_CALL_REDUCE_SCATTER, TDM_CALL_ALL_GATHER};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static void all_kinds(member *m)
{
    static const size_t counts[] = {0, 1, 7, 1000, 30011, 400009};
    static const tdm_dtype dtypes[] = {TDM_DTYPE_F32, TDM_DTYPE_BF16, TDM_DTYPE_I64};
    int index = 0;
    for (int k = 0; k < KINDS; k++)
        for (int c = 0; c < SCALED(6, 4); c++)
            for (int d = 0; d < 3; d++)
                for (int in_place = 0; in_place < 2; in_place++) {
                    index++;
                    if (counts[c] > 30011 && d > 0) continue;
                    run_trial(m, (trial){.call = {.kind = kinds[k],
                                                  .dtype = dtypes[d],
                                                  .count = counts[c],
                                                  .root = index % m->size},
                                         .in_place = in_place == 1});
                }
    tdm_call scatter = {.kind = TDM_CALL_SCATTER, .dtype = TDM_DTYPE_F32, .count = 1000};
    MEMBER_CHECK(m, !tdm__algorithm_hierarchy.fits(&m->group, &scatter));
}

static void kinds_of_calls(void)
{
    for (int i = 0; i < SCALED(PLACEMENTS, 5); i++)
        run_world_on(placements[i].size, placements[i].host_of, &tdm__algorithm_hierarchy,
                     all_kinds);
}

static void all_lanes(member *m)
{
    static const size_t counts[] = {1, 1000, 70001};
    int64_t first[MAX_MEMBERS + 1];
    uint8_t absent[MAX_LANES] = {0};
    absent[0] = absent[6] = absent[7] = absent[17] = 1;
    for (int shape = 0; shape < 3; shape++) {
        for (int i = 0; i <= m->size; i++) {
            first[i] = 32 * i / m->size;
            if (shape == 1 && i > 0 && i < m->size) first[i] |= 1;
            if (shape == 2 && i > 0 && i < m->size) first[i] = i < m->size / 2 + 1 ? 5 : 27;
        }
        tdm_lanes lanes = {.lane_count = 32, .first = first, .absent = shape > 0 ? absent : NULL};
        for (int c = 0; c < SCALED(3, 2); c++)
            for (int kind = TDM_CALL_REDUCE; kind <= TDM_CALL_REDUCE_SCATTER; kind++)
                run_trial(m, (trial){.call = {.kind = (tdm_call_kind)kind,
                                              .dtype = TDM_DTYPE_F32,
                                              .count = counts[c],
                                              .root = m->size - 1},
                                     .lanes = &lanes});
    }
}

static void all_cuts(member *m)
{
    run_cuts(m, TDM_CALL_ALL_GATHER, 1);
}

static void lanes_of_calls(void)
{
    for (int i = 0; i < SCALED(PLACEMENTS, 5); i++)
        run_world_on(placements[i].size, placements[i].host_of, &tdm__algorithm_hierarchy,
                     all_lanes);
}

static void cuts_of_calls(void)
{
    for (int i = 0; i < SCALED(PLACEMENTS, 5); i++)
        run_world_on(placements[i].size, placements[i].host_of, &tdm__algorithm_hierarchy,
                     all_cuts);
}

/* Many calls in sequence, with a slow member: slots and stages are reused. */
static void many_calls(member *m)
{
    uint32_t drawn = 99;
    for (int k = 0; k < SCALED(1000, 100); k++) {
        drawn = scramble(drawn + (uint32_t)k);
        if (m->rank == (int)(drawn >> 8) % m->size && drawn % 16 == 0) usleep(drawn % 500);
        run_trial(m, (trial){.call = {.kind = kinds[(drawn >> 4) % KINDS],
                                      .dtype = TDM_DTYPE_I32,
                                      .count = drawn % 3000,
                                      .root = (int)(drawn >> 16) % m->size}});
    }
}

static void slots_are_used_again(void)
{
    run_world_on(7, placements[4].host_of, &tdm__algorithm_hierarchy, many_calls);
}

enum { COUNT = 60000 };

/* Bytes sent by all hosts together, according to the header: 2 hosts, 3 hosts, and scattered ranks. */
static void one_all_reduce(member *m)
{
    world *w = m->world;
    run_trial(
        m, (trial){.call = {.kind = TDM_CALL_ALL_REDUCE, .dtype = TDM_DTYPE_F32, .count = COUNT}});
    run_trial(m, (trial){.call = {.kind = TDM_CALL_BARRIER}}); /* all have sent everything */
    pthread_mutex_lock(&w->mail_lock);
    uint64_t bytes = w->bytes_between_hosts;
    pthread_mutex_unlock(&w->mail_lock);
    uint64_t n = COUNT * sizeof(float), hosts = (uint64_t)m->group.host_count;
    uint64_t sums = w->host_of[1] == 0 ? 1 : 2; /* of each host */
    MEMBER_CHECK(m, bytes == (hosts == 2 ? sums * n * hosts : 2 * n * (hosts - 1)));
}

static void bytes_between_hosts(void)
{
    for (int i = 0; i < 4; i++)
        if (i != 2)
            run_world_on(placements[i].size, placements[i].host_of, &tdm__algorithm_hierarchy,
                         one_all_reduce);
}

/* The sums that each host can compute: all leaves once, none across hosts, and the same bits at the end. */
static void sums_of_hosts(void)
{
    static const int expected[PLACEMENTS] = {2, 4, 3, 3, 5, 2, 6, 6};
    for (int i = 0; i < PLACEMENTS; i++) {
        tdm__leaves leaves = {0};
        tdm__tree_plan plan = {0};
        tdm__host_sums sums = {0};
        int host_of[MAX_MEMBERS];
        memcpy(host_of, placements[i].host_of, sizeof(host_of));
        tdm_group group = {.size = placements[i].size, .host_of = host_of};
        CHECK_INT(tdm__leaves_init(&leaves, NULL, group.size, NULL), TDM_OK);
        CHECK_INT(tdm__tree_plan_init(&plan, leaves.nodes, leaves.count, 1, NULL), TDM_OK);
        void *memory = malloc(tdm__host_sums_bytes(leaves.count));
        CHECK_INT(tdm__host_sums_init(&sums, &group, &leaves, &plan, memory, NULL), TDM_OK);
        CHECK_INT(sums.count, expected[i]);
        int next = 0;
        for (int k = 0; k < sums.count; k++) {
            CHECK_INT(sums.list[k].first, next);
            for (int leaf = next; leaf < sums.list[k].last; leaf++)
                CHECK_INT(host_of[leaf], sums.list[k].host);
            next = sums.list[k].last;
        }
        CHECK_INT(next, leaves.count);
        free(memory);
        tdm__tree_plan_release(&plan);
        tdm__leaves_release(&leaves);
    }
}

static const check_test tests[] = {
    CHECK_TEST(sums_of_hosts), CHECK_TEST(kinds_of_calls),       CHECK_TEST(lanes_of_calls),
    CHECK_TEST(cuts_of_calls), CHECK_TEST(slots_are_used_again), CHECK_TEST(bytes_between_hosts),
};

CHECK_MAIN(tests)
