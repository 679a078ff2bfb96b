/*
 * balance_test.c: placements are compared with all possible ones, and the feedback is tested on simulated
 * machines: ranks of given speeds, whose times have random noise.
 *
 * Three properties are tested: a slow rank gives lanes away within 20 steps, so that the step is nearly as fast
 * as whole lanes allow; it gets them back when it has recovered; and noise alone moves no lane, for any number
 * of steps.
 */
#include "check.h"
#include "parallel/parallel.h"

#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LONG_STEPS = 2000, MACHINES = 5, TRIES = 60 };
#else
enum { LONG_STEPS = 10000, MACHINES = 30, TRIES = 300 };
#endif
enum { MAX_RANKS = 64, SOON = 20 };

/* ---- placement ------------------------------------------------------------------------------- */

static double time_of(const int64_t *first, int ranks, const double *weights)
{
    double max = 0;
    for (int i = 0; i < ranks; i++) {
        double time = (double)(first[i + 1] - first[i]) / (weights ? weights[i] : 1);
        if (time > max) max = time;
    }
    return max;
}

/* The least time of all placements of `lanes` on the ranks from `rank` on. */
static double best_time(int64_t lanes, int rank, int ranks, const double *weights)
{
    double best = INFINITY;
    if (rank == ranks - 1) return (double)lanes / weights[rank];
    for (int64_t n = 1; n <= lanes - (ranks - 1 - rank); n++) {
        double here = (double)n / weights[rank];
        double rest = best_time(lanes - n, rank + 1, ranks, weights);
        double max = here > rest ? here : rest;
        if (max < best) best = max;
    }
    return best;
}

static void check_cover(const int64_t *first, int ranks, int64_t lanes)
{
    CHECK_INT(first[0], 0);
    CHECK_INT(first[ranks], lanes);
    for (int i = 0; i < ranks; i++) CHECK(first[i + 1] > first[i]);
}

static void equal_ranks_differ_by_one(void)
{
    int64_t first[MAX_RANKS + 1];
    for (int64_t lanes = 1; lanes <= 130; lanes++) {
        for (int ranks = 1; ranks <= MAX_RANKS && ranks <= lanes; ranks++) {
            tdm_place_lanes(lanes, ranks, NULL, first);
            check_cover(first, ranks, lanes);
            for (int i = 0; i < ranks; i++)
                CHECK_INT(first[i + 1] - first[i], lanes / ranks + (i < lanes % ranks));
        }
    }
}

static void no_placement_is_faster(void)
{
    int64_t first[MAX_RANKS + 1];
    double weights[MAX_RANKS];
    srand48(1);
    for (int i = 0; i < TRIES; i++) {
        int ranks = 1 + (int)(drand48() * 5);
        int64_t lanes = ranks + (int64_t)(drand48() * 14);
        for (int r = 0; r < ranks; r++)
            weights[r] = i % 3 == 0 ? 1 + (double)(int)(drand48() * 4) : pow(10, 4 * drand48());
        tdm_place_lanes(lanes, ranks, weights, first);
        check_cover(first, ranks, lanes);
        double best = best_time(lanes, 0, ranks, weights);
        CHECK_NEAR(time_of(first, ranks, weights) / best, 1, 1e-9);
    }
}

static void weights_may_be_odd(void)
{
    static const double odd[][4] = {
        {0, 0, 0, 0},        {1, 0, 1, 1},          {NAN, 1, 1, 1},
        {INFINITY, 1, 1, 1}, {-1, 2, 1, 1},         {1e-310, 1e300, 1, 1},
        {1, 1e30, 1, 1},     {1e-5, 1e-5, 1e-5, 1}, {1e300, 1e300, 1, 1}};
    int64_t first[MAX_RANKS + 1];
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        for (int64_t lanes = 4; lanes <= 65536; lanes *= 2) {
            tdm_place_lanes(lanes, 4, odd[i], first);
            check_cover(first, 4, lanes);
        }
    }
    const double half[2] = {1, 0.5};
    tdm_place_lanes(12, 2, half, first);
    CHECK_INT(first[1], 8);
    const double cores[3] = {8, 4, 4};
    tdm_place_lanes(16, 3, cores, first);
    CHECK_INT(first[1], 8);
    CHECK_INT(first[2], 12);
}

static void a_large_world_is_placed(void)
{
    enum { RANKS = 4096, LANES = 65536 };
    int64_t *first = malloc((RANKS + 1) * sizeof(*first));
    double *weights = malloc(RANKS * sizeof(*weights));
    CHECK(first && weights);
    for (int i = 0; i < RANKS; i++) weights[i] = 1 + i % 7;
    tdm_place_lanes(LANES, RANKS, weights, first);
    check_cover(first, RANKS, LANES);
    CHECK(time_of(first, RANKS, weights) <= 5); /* 16 lanes for a weight of 4: 4, and whole lanes */
    free(weights);
    free(first);
}

/* ---- machines -------------------------------------------------------------------------------- */

typedef struct machine {
    int64_t lanes;
    int ranks;
    double per_lane[MAX_RANKS]; /* seconds */
    double fixed_s;             /* of a rank, independent of its lanes */
    double noise;
    double hiccups; /* the fraction of times that are three times as long */
    int64_t first[MAX_RANKS + 1];
    tdm_balance *balance;
    int moves;
} machine;

static double normal(void)
{
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += drand48();
    return sum;
}

static void machine_init(machine *m, int64_t lanes, int ranks, double noise)
{
    *m = (machine){.lanes = lanes, .ranks = ranks, .noise = noise};
    for (int r = 0; r < ranks; r++) m->per_lane[r] = 0.01;
    tdm_place_lanes(lanes, ranks, NULL, m->first);
    m->balance = tdm_balance_create(lanes, ranks);
    CHECK(m->balance != NULL);
}

static void machine_run(machine *m, int steps)
{
    for (int s = 0; s < steps; s++) {
        double seconds[MAX_RANKS];
        for (int r = 0; r < m->ranks; r++) {
            double factor = 1 + m->noise * normal();
            if (factor < 0.2) factor = 0.2;
            if (drand48() < m->hiccups) factor *= 3;
            double time = m->fixed_s + (double)(m->first[r + 1] - m->first[r]) * m->per_lane[r];
            seconds[r] = time * factor;
        }
        m->moves += tdm_balance_observe(m->balance, seconds, m->first);
        check_cover(m->first, m->ranks, m->lanes);
    }
}

/* Lanes per second without noise, and the maximum of any placement of whole lanes. */
static double throughput(const machine *m)
{
    double speeds[MAX_RANKS];
    for (int r = 0; r < m->ranks; r++) speeds[r] = 1 / m->per_lane[r];
    return (double)m->lanes / time_of(m->first, m->ranks, speeds);
}

static double best_throughput(const machine *m)
{
    double speeds[MAX_RANKS];
    int64_t first[MAX_RANKS + 1];
    for (int r = 0; r < m->ranks; r++) speeds[r] = 1 / m->per_lane[r];
    tdm_place_lanes(m->lanes, m->ranks, speeds, first);
    return (double)m->lanes / time_of(first, m->ranks, speeds);
}

static void a_slow_rank_gives_lanes_away(void)
{
    static const struct {
        int64_t lanes;
        int ranks;
    } worlds[] = {{4, 2}, {8, 2}, {16, 2}, {64, 2}, {8, 3}, {8, 4}, {32, 4}, {64, 7}, {256, 16}};
    srand48(2);
    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        for (int try = 0; try < MACHINES; try++) {
            machine m;
            machine_init(&m, worlds[i].lanes, worlds[i].ranks, try % 3 * 0.05);
            m.per_lane[try % m.ranks] *= 2;
            bool can_gain = throughput(&m) < 0.99 * best_throughput(&m);
            machine_run(&m, SOON);
            CHECK(m.moves >= can_gain);
            CHECK(throughput(&m) >= 0.9 * best_throughput(&m));
            /* With enough lanes, that is the speed of all ranks together. */
            double all = ((double)m.ranks - 0.5) / 0.01;
            if (m.lanes >= 8 * m.ranks) CHECK(throughput(&m) >= 0.9 * all);
            double factor;
            CHECK_INT(tdm_balance_straggler(m.balance, &factor), try % m.ranks);
            CHECK_NEAR(factor, 2, 0.5);
            tdm_balance_destroy(m.balance);
        }
    }
}

static void a_rank_that_recovers_gets_them_back(void)
{
    srand48(3);
    for (int try = 0; try < MACHINES; try++) {
        machine m;
        machine_init(&m, 16, 2, 0.05);
        for (int turn = 0; turn < 4; turn++) {
            m.per_lane[1] = 0.02;
            machine_run(&m, 60);
            CHECK_INT(tdm_balance_straggler(m.balance, NULL), 1);
            CHECK(throughput(&m) >= 0.9 * best_throughput(&m));
            m.per_lane[1] = 0.01;
            machine_run(&m, 60);
            CHECK_INT(tdm_balance_straggler(m.balance, NULL), -1);
            CHECK(throughput(&m) >= 0.9 * best_throughput(&m));
        }
        CHECK(m.moves >= 8 && m.moves <= 24);
        tdm_balance_destroy(m.balance);
    }
}

static void noise_moves_nothing(void)
{
    static const int ranks[] = {2, 3, 4, 8, 16};
    srand48(4);
    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
        machine m;
        machine_init(&m, 128, ranks[i], 0.1);
        m.hiccups = i % 2 == 0 ? 0 : 0.03;
        machine_run(&m, LONG_STEPS);
        CHECK_INT(m.moves, 0);
        CHECK_INT(tdm_balance_straggler(m.balance, NULL), -1);
        tdm_balance_destroy(m.balance);
    }
}

/* The time that a rank needs besides its lanes makes a lane look expensive if there are few lanes. */
static void fixed_costs_do_not_swing(void)
{
    srand48(5);
    for (int try = 0; try < MACHINES; try++) {
        machine m;
        machine_init(&m, 16, 2, 0.03);
        m.fixed_s = 0.02;
        m.per_lane[0] *= 1 + try % 4;
        machine_run(&m, 100);
        int before = m.moves;
        machine_run(&m, 400);
        CHECK(m.moves - before <= 1);
        tdm_balance_destroy(m.balance);
    }
}

static void small_differences_take_longer(void)
{
    machine m;
    machine_init(&m, 128, 2, 0.02);
    m.per_lane[1] *= 1.2;
    machine_run(&m, 100);
    CHECK(m.moves >= 1 && m.moves <= 2);
    CHECK(throughput(&m) >= 0.95 * best_throughput(&m));
    CHECK_INT(tdm_balance_straggler(m.balance, NULL), -1);
    tdm_balance_destroy(m.balance);
}

static void strange_times_are_passed_over(void)
{
    static const double strange[][2] = {{0, 1}, {NAN, 1}, {1, INFINITY}, {-1, 1}, {1, 0}};
    machine m;
    machine_init(&m, 8, 2, 0);
    for (int s = 0; s < 100; s++) {
        double seconds[2] = {strange[s % 5][0], strange[s % 5][1]};
        CHECK(!tdm_balance_observe(m.balance, seconds, m.first));
    }
    CHECK_INT(tdm_balance_straggler(m.balance, NULL), -1);
    machine_run(&m, 50);
    CHECK_INT(m.moves, 0);
    tdm_balance_destroy(m.balance);
    machine_init(&m, 8, 1, 0);
    machine_run(&m, 50);
    CHECK_INT(m.moves, 0);
    CHECK_INT(tdm_balance_straggler(m.balance, NULL), -1);
    tdm_balance_destroy(m.balance);
    tdm_balance_destroy(NULL);
}

static const check_test tests[] = {
    {"equal_ranks_differ_by_one", equal_ranks_differ_by_one},
    {"no_placement_is_faster", no_placement_is_faster},
    {"weights_may_be_odd", weights_may_be_odd},
    {"a_large_world_is_placed", a_large_world_is_placed},
    {"a_slow_rank_gives_lanes_away", a_slow_rank_gives_lanes_away},
    {"a_rank_that_recovers_gets_them_back", a_rank_that_recovers_gets_them_back},
    {"noise_moves_nothing", noise_moves_nothing},
    {"fixed_costs_do_not_swing", fixed_costs_do_not_swing},
    {"small_differences_take_longer", small_differences_take_longer},
    {"strange_times_are_passed_over", strange_times_are_passed_over},
};

CHECK_MAIN(tests)
