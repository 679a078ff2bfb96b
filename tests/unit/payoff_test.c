/* payoff_test.c: the model of the time of an exchange, and the choice of a method by it (parallel/payoff.h). */
#include "check.h"
#include "parallel/payoff.h"

#include <math.h>

#define MBIT (1e6 / 8)

/* Three hosts with one rank each; a codec of 1 GB/s of f32 for each direction. */
static tdm_payoff three_hosts(double link)
{
    const double cost = 4e-9;
    return (tdm_payoff){.hosts = 3,
                        .ranks = 3,
                        .replicas = 4,
                        .link = link,
                        .rates = {[TDM_PAYOFF_BF16] = {2, cost, cost, false},
                                  [TDM_PAYOFF_INT8] = {1, cost, cost, false},
                                  [TDM_PAYOFF_TOPK] = {0.06, cost, cost / 8, false},
                                  [TDM_PAYOFF_OWN] = {0.05, cost, cost, true}}};
}

static void times_are_those_of_the_bytes(void)
{
    tdm_payoff p = three_hosts(100 * MBIT);
    /* 12.5 MB/s; two thirds of the bytes cross a link, twice in a reduction. */
    CHECK_NEAR(tdm_payoff_dense_seconds(&p, 1000000), 2.0 * 2 / 3 * 2e6 / 12.5e6, 1e-9);
    CHECK_NEAR(tdm_payoff_seconds(&p, TDM_PAYOFF_NONE, 1000000), 2.0 * 2 / 3 * 4e6 / 12.5e6, 1e-9);
    /* Four payloads of 1 byte for each number; a rank encodes 4/3 of them and decodes a third of four. */
    CHECK_NEAR(tdm_payoff_seconds(&p, TDM_PAYOFF_INT8, 1000000),
               2.0 / 3 * 4e6 / 12.5e6 + 1e6 * 4e-9 * (4.0 / 3 + 4.0), 1e-9);
    /* Factors are added, so their bytes do not depend on the replicas. */
    CHECK_NEAR(tdm_payoff_seconds(&p, TDM_PAYOFF_OWN, 1000000),
               2.0 * 2 / 3 * 5e4 / 12.5e6 + 1e6 * 4e-9 * (4.0 / 3 + 1), 1e-9);
}

static void nothing_is_sent_on_one_host(void)
{
    tdm_payoff p = three_hosts(0);
    p.hosts = 1;
    CHECK(tdm_payoff_dense_seconds(&p, 1000) == 0);
    CHECK(tdm_payoff_seconds(&p, TDM_PAYOFF_NONE, 1000) == 0);
    CHECK(tdm_payoff_seconds(&p, TDM_PAYOFF_TOPK, 1000) > 0);
    CHECK(tdm_payoff_break_even(&p, TDM_PAYOFF_TOPK) == 0);
    CHECK_INT(tdm_payoff_choose(&p, &(tdm_payoff_classes){1000000, 1000}), TDM_PAYOFF_NONE);
}

/* At the break-even bandwidth both take the same time; below it the method takes less. */
static void methods_pay_below_the_break_even(void)
{
    tdm_payoff p = three_hosts(1);
    CHECK(tdm_payoff_break_even(&p, TDM_PAYOFF_BF16) ==
          0); /* 4 payloads are more than a reduction */
    CHECK(tdm_payoff_break_even(&p, TDM_PAYOFF_INT8) == 0);
    static const tdm_payoff_method paying[] = {TDM_PAYOFF_TOPK, TDM_PAYOFF_OWN};
    for (int i = 0; i < 2; i++) {
        p.link = tdm_payoff_break_even(&p, paying[i]);
        CHECK(p.link > 0);
        double dense = tdm_payoff_dense_seconds(&p, 1000000);
        CHECK_NEAR(tdm_payoff_seconds(&p, paying[i], 1000000) / dense, 1, 1e-9);
        p.link /= 2;
        CHECK(tdm_payoff_seconds(&p, paying[i], 1000000) < tdm_payoff_dense_seconds(&p, 1000000));
        p.link *= 4;
        CHECK(tdm_payoff_seconds(&p, paying[i], 1000000) > tdm_payoff_dense_seconds(&p, 1000000));
    }
    p.rates[TDM_PAYOFF_TOPK].encode_s = p.rates[TDM_PAYOFF_TOPK].decode_s = 0;
    CHECK(tdm_payoff_break_even(&p, TDM_PAYOFF_TOPK) > 1e15); /* free of cost: on any link */
}

typedef struct row {
    double link;
    int64_t replicas;
    double cost; /* of the codec, relative to three_hosts */
    uint64_t large, small;
    tdm_payoff_method want;
} row;

static const row table[] = {
    /* A slow link: as few bytes as possible. */
    {100 * MBIT, 4, 1, 10000000, 20000, TDM_PAYOFF_TOPK},
    {1000 * MBIT, 4, 1, 10000000, 20000, TDM_PAYOFF_TOPK},
    /* A fast link: none. */
    {100000 * MBIT, 4, 1, 10000000, 20000, TDM_PAYOFF_NONE},
    /* A slow codec: none. */
    {1000 * MBIT, 4, 50, 10000000, 20000, TDM_PAYOFF_NONE},
    /* Nothing but small tensors, which are not compressed. */
    {100 * MBIT, 4, 1, 0, 20000, TDM_PAYOFF_NONE},
    /* Small tensors of many replicas outweigh what is saved, unless they are few. */
    {100 * MBIT, 64, 1, 10000000, 1000000, TDM_PAYOFF_NONE},
    {100 * MBIT, 64, 1, 10000000, 1000, TDM_PAYOFF_TOPK},
    /* Very many replicas: all payloads together are more than a reduction. */
    {100 * MBIT, 512, 1, 10000000, 1000, TDM_PAYOFF_NONE},
};

static void choices_are_those_of_the_table(void)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const row *r = &table[i];
        tdm_payoff p = three_hosts(r->link);
        p.replicas = r->replicas;
        for (int m = 0; m < TDM_PAYOFF_METHODS; m++) {
            p.rates[m].encode_s *= r->cost;
            p.rates[m].decode_s *= r->cost;
        }
        tdm_payoff_method method = tdm_payoff_choose(&p, &(tdm_payoff_classes){r->large, r->small});
        char got[64], want[64];
        snprintf(got, sizeof(got), "%zu: %s", i, tdm_payoff_method_name(method));
        snprintf(want, sizeof(want), "%zu: %s", i, tdm_payoff_method_name(r->want));
        CHECK_TEXT(got, want);
    }
}

/* Methods that were not measured are not chosen. */
static void unknown_methods_are_not_chosen(void)
{
    tdm_payoff p = three_hosts(100 * MBIT);
    p.replicas = 2;
    p.rates[TDM_PAYOFF_TOPK] = (tdm_payoff_rate){0};
    const tdm_payoff_classes classes = {1000000, 1000};
    CHECK_INT(tdm_payoff_choose(&p, &classes), TDM_PAYOFF_INT8);
    p.rates[TDM_PAYOFF_INT8] = (tdm_payoff_rate){0};
    CHECK_INT(tdm_payoff_choose(&p, &classes), TDM_PAYOFF_BF16);
    CHECK_TEXT(tdm_payoff_method_name((tdm_payoff_method)99), "?");
}

static const check_test tests[] = {
    CHECK_TEST(times_are_those_of_the_bytes),     CHECK_TEST(nothing_is_sent_on_one_host),
    CHECK_TEST(methods_pay_below_the_break_even), CHECK_TEST(choices_are_those_of_the_table),
    CHECK_TEST(unknown_methods_are_not_chosen),
};
CHECK_MAIN(tests)
