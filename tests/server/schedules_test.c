/*
 * schedules_test.c: random schedules of failures of a group of servers, by seed; and schedules with a defect, which the
 * checker must notice.
 *
 *     schedules_test                          # TANDEM_SCHEDULES schedules (2,000; 20,000 under ctest), and the defects
 *     TANDEM_SEED=17 schedules_test schedules # one schedule, with its result
 */
#include "check.h"
#include "server/sim_world.h"

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void schedules(void)
{
    uint64_t first = number_of("TANDEM_SEED", 1);
    uint64_t count = getenv("TANDEM_SEED") ? 1 : number_of("TANDEM_SCHEDULES", 2000);
    sim_result total = {0};
    int failures = 0;
    for (uint64_t seed = first; seed < first + count && failures < 10; seed++) {
        sim_result result;
        sim_run(seed, TDM__SERVER_MUTATION_NONE, &result);
        if (result.problem[0])
            printf("seed %llu, at %.3f s: %s\n", (unsigned long long)seed, result.virtual_s,
                   result.problem);
        failures += result.problem[0] != '\0';
        total.acked += result.acked;
        total.pulled += result.pulled;
        total.kills += result.kills;
        total.configs += result.configs;
        total.copies += result.copies;
        total.events += result.events;
        if (result.virtual_s > total.virtual_s) total.virtual_s = result.virtual_s;
    }
    printf("%llu schedules: %llu acknowledged, %llu pulled, %llu kills, %llu configurations, "
           "%llu copies, %llu events, longest %.1f s\n",
           (unsigned long long)count, (unsigned long long)total.acked,
           (unsigned long long)total.pulled, (unsigned long long)total.kills,
           (unsigned long long)total.configs, (unsigned long long)total.copies,
           (unsigned long long)total.events, total.virtual_s);
    CHECK_INT(failures, 0);
    if (count >= 100)
        CHECK(total.kills > count && total.copies > count && total.acked > 20 * count);
}

/* One seed gives one schedule. */
static void a_seed_repeats(void)
{
    sim_result a, b;
    sim_run(7, TDM__SERVER_MUTATION_NONE, &a);
    sim_run(7, TDM__SERVER_MUTATION_NONE, &b);
    CHECK_INT(a.events, b.events);
    CHECK_INT(a.acked, b.acked);
    CHECK_INT(a.configs, b.configs);
}

/* Every defect is noticed in some schedules, by a message that fits. */
static void defects_are_noticed(void)
{
    static const char *const names[TDM__SERVER_MUTATION_COUNT] = {
        [TDM__SERVER_MUTATION_ACK_EARLY] = "acknowledges early",
        [TDM__SERVER_MUTATION_NO_DEDUP] = "applies repeated operations",
        [TDM__SERVER_MUTATION_NO_LEASE] = "answers without a lease",
        [TDM__SERVER_MUTATION_NO_RESEND] = "does not repeat updates",
        [TDM__SERVER_MUTATION_SKIP_COPY] = "admits a server before it has everything"};
    for (int m = 1; m < TDM__SERVER_MUTATION_COUNT; m++) {
        uint64_t limit = number_of("TANDEM_DEFECT_SCHEDULES", 3000), seed = 1;
        sim_result result = {0};
        for (; seed <= limit && !result.problem[0]; seed++)
            sim_run(seed, (tdm__server_mutation)m, &result);
        printf("%s: %s after %llu schedules\n", names[m],
               result.problem[0] ? result.problem : "NOT NOTICED", (unsigned long long)seed - 1);
        CHECK(result.problem[0] != '\0');
    }
}

static const check_test tests[] = {CHECK_TEST(schedules), CHECK_TEST(a_seed_repeats),
                                   CHECK_TEST(defects_are_noticed)};
CHECK_MAIN(tests)
