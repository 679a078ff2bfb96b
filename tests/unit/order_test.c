/*
 * order_test.c: the order of asynchronous updates is a function of the job, bounds staleness as the job asks, and
 * follows the speeds of the workers.
 */
#include "check.h"
#include "job/job.h"
#include "parallel/parallel.h"

#include <stdlib.h>
#include <string.h>

enum { UPDATES = 5000 };

static tdm_job_document *job_make(const char *sync)
{
    char text[512];
    tdm_job_document *document = NULL;
    tdm_error err = {0};
    snprintf(text, sizeof(text),
             "name: o\nseed: 7\ndata: {train: x.csv}\nsync: {kind: server, %s}\n", sync);
    tdm_job_options options = {.no_file_checks = true};
    CHECK_INT(tdm_job_parse(text, strlen(text), "job.yaml", "/", &options, &document, &err),
              TDM_OK);
    return document;
}

static tdm_order *order_make(const tdm_job_document *document)
{
    tdm_order *order = NULL;
    tdm_error err = {0};
    CHECK_INT(tdm_order_create(tdm_job_document_job(document), &order, &err), TDM_OK);
    return order;
}

/* Counts the updates of each worker, and checks each staleness against the readers of earlier updates. */
static void order_check(tdm_order *order, int workers, uint64_t counts[64])
{
    uint64_t read_at[64] = {0};
    memset(counts, 0, 64 * sizeof(*counts));
    for (uint64_t u = 0; u < UPDATES; u++) {
        tdm_order_entry e = tdm_order_at(order, u);
        CHECK(e.worker < (uint32_t)workers);
        CHECK_INT(e.staleness, u - read_at[e.worker]);
        counts[e.worker]++;
        for (int w = 0; w < workers; w++)
            if (e.readers >> w & 1) read_at[w] = u + 1;
    }
}

static void every_order_is_consistent(void)
{
    static const char *const jobs[] = {
        "mode: async, replicas: 1", "mode: async, replicas: 4", "mode: async, replicas: 64",
        "mode: stale, staleness: 0, replicas: 8",
        "mode: stale, staleness: 3, replicas: 4, speeds: [100, 100, 100, 25]"};
    static const int workers[] = {1, 4, 64, 8, 4};
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        uint64_t counts[64];
        tdm_job_document *document = job_make(jobs[i]);
        tdm_order *order = order_make(document);
        order_check(order, workers[i], counts);
        for (int w = 0; w < workers[i]; w++) CHECK(counts[w] > 0);
        tdm_order_destroy(order);
        tdm_job_document_destroy(document);
    }
}

static void an_order_can_be_read_from_any_update(void)
{
    tdm_job_document *document = job_make("mode: async, replicas: 8, jitter: 0.5");
    tdm_order *order = order_make(document), *other = order_make(document);
    static const uint64_t updates[] = {4000, 3, 3999, 0, 4100, 100, 100};
    for (size_t i = 0; i < sizeof(updates) / sizeof(updates[0]); i++) {
        tdm_order_entry a = tdm_order_at(order, updates[i]), b = {0};
        for (uint64_t u = 0; u <= updates[i]; u++) b = tdm_order_at(other, u);
        CHECK_INT(a.worker, b.worker);
        CHECK_INT(a.staleness, b.staleness);
        CHECK(a.readers == b.readers);
        tdm_order_destroy(other);
        other = order_make(document);
    }
    tdm_order_destroy(other);
    tdm_order_destroy(order);
    tdm_job_document_destroy(document);
}

static void fast_workers_make_more_updates(void)
{
    uint64_t counts[64];
    tdm_job_document *document = job_make("mode: async, replicas: 4, speeds: [100, 100, 100, 25]");
    tdm_order *order = order_make(document);
    order_check(order, 4, counts);
    CHECK_NEAR((double)counts[3] / (double)counts[0], 0.25, 0.01);
    tdm_order_destroy(order);
    tdm_job_document_destroy(document);
}

/* No worker begins a gradient while it is more than the bound ahead of the slowest one. */
static void the_bound_holds(void)
{
    tdm_job_document *document = job_make(
        "mode: stale, staleness: 2, replicas: 4, speeds: [100, 100, 100, 10]");
    tdm_order *order = order_make(document);
    uint64_t counts[64] = {0};
    for (uint64_t u = 0; u < UPDATES; u++) {
        tdm_order_entry e = tdm_order_at(order, u);
        counts[e.worker]++;
        uint64_t min = counts[0];
        for (int w = 1; w < 4; w++)
            if (counts[w] < min) min = counts[w];
        for (int w = 0; w < 4; w++) {
            CHECK(counts[w] <= min + 3); /* the last one was begun at the bound */
            if (e.readers >> w & 1) CHECK(counts[w] <= min + 2);
        }
    }
    tdm_order_destroy(order);
    tdm_job_document_destroy(document);
}

/* The gradients of a round can be computed side by side: all models were read before it. */
static void rounds_need_no_later_model(void)
{
    tdm_job_document *document = job_make("mode: async, replicas: 8");
    tdm_order *order = order_make(document);
    uint64_t rounds = 0;
    for (uint64_t u = 0; u < UPDATES; rounds++) {
        uint64_t count = tdm_order_round(order, u, 64), workers = 0;
        CHECK(count >= 1 && count <= 8);
        for (uint64_t i = 0; i < count; i++) {
            tdm_order_entry e = tdm_order_at(order, u + i);
            CHECK(e.staleness >= i);
            CHECK(!(workers >> e.worker & 1));
            workers |= UINT64_C(1) << e.worker;
        }
        CHECK_INT(tdm_order_round(order, u, 1), 1);
        u += count;
    }
    CHECK(UPDATES / rounds >= 5); /* most of the 8 workers at a time */
    tdm_order_destroy(order);
    tdm_job_document_destroy(document);
}

static const check_test tests[] = {
    CHECK_TEST(every_order_is_consistent), CHECK_TEST(an_order_can_be_read_from_any_update),
    CHECK_TEST(fast_workers_make_more_updates), CHECK_TEST(the_bound_holds),
    CHECK_TEST(rounds_need_no_later_model)};
CHECK_MAIN(tests)
