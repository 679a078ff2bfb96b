/*
 * order_file_test.c: an order of updates is written, read back and followed; files that are damaged, incomplete or of
 * another job are rejected with the line and the reason.
 */
#include "base/base.h"
#include "check.h"
#include "job/job.h"
#include "train/order_file.h"

#include <stdlib.h>
#include <string.h>

enum { WORKERS = 4, UPDATES = 60 };

static tdm_job_document *job_make(const char *sync)
{
    char text[512];
    tdm_job_document *document = NULL;
    tdm_error err = {0};
    snprintf(text, sizeof(text),
             "name: o\nseed: 7\ndata: {train: x.csv}\nsync: {kind: server, replicas: %d, %s}\n",
             WORKERS, sync);
    tdm_job_options options = {.no_file_checks = true};
    CHECK_INT(tdm_job_parse(text, strlen(text), "job.yaml", "/", &options, &document, &err),
              TDM_OK);
    return document;
}

static tdm_order *order_make(const char *sync)
{
    tdm_job_document *document = job_make(sync);
    tdm_order *order = NULL;
    CHECK_INT(tdm_order_create(tdm_job_document_job(document), &order, NULL), TDM_OK);
    tdm_job_document_destroy(document);
    return order;
}

/* The lines of the virtual order of a job. */
static char *lines_make(const char *sync)
{
    static char text[UPDATES * TDM__LINE_BYTES];
    tdm_order *order = order_make(sync);
    size_t length = 0;
    for (uint64_t u = 0; u < UPDATES; u++) {
        tdm__order_line line = {.update = u + 1, .of = WORKERS, .entry = tdm_order_at(order, u)};
        char one[TDM__LINE_BYTES];
        int bytes = tdm__order_format.show(&line, one);
        memcpy(text + length, one, (size_t)bytes);
        length += (size_t)bytes;
    }
    text[length] = '\0';
    tdm_order_destroy(order);
    return text;
}

/* Loads a text as the recorded order of a job with this number of updates. */
static tdm_status load(const char *text, const char *sync, uint64_t updates, tdm_order **order,
                       tdm_error *err)
{
    char hash[TDM_SHA256_HEX];
    char recorded[128];
    snprintf(recorded, sizeof(recorded), "%s, order: recorded, order_from: order.jsonl", sync);
    *order = order_make(recorded);
    return tdm__order_load(check_write("order.jsonl", text), WORKERS, updates, *order, hash, err);
}

static void a_recorded_order_is_the_same_order(void)
{
    static const char *const jobs[] = {"mode: async, speeds: [9, 9, 9, 2]",
                                       "mode: stale, staleness: 1, speeds: [9, 9, 9, 2]"};
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        tdm_order *recorded, *drawn = order_make(jobs[i]);
        tdm_error err = {0};
        CHECK_INT(load(lines_make(jobs[i]), jobs[i], UPDATES, &recorded, &err), TDM_OK);
        CHECK_TEXT(err.message, "");
        for (uint64_t u = 0; u < UPDATES && err.status == TDM_OK; u++) {
            tdm_order_entry a = tdm_order_at(drawn, u), b = tdm_order_at(recorded, u);
            CHECK_INT(a.worker, b.worker);
            CHECK_INT(a.staleness, b.staleness);
            CHECK(a.readers == b.readers);
            CHECK_INT(tdm_order_round(drawn, u, UPDATES - u),
                      tdm_order_round(recorded, u, UPDATES - u));
        }
        tdm_order_destroy(recorded);
        tdm_order_destroy(drawn);
    }
}

static void rejects(const char *text, const char *sync, const char *why)
{
    tdm_order *order;
    tdm_error err = {0};
    CHECK_INT(load(text, sync, UPDATES, &order, &err), TDM_ERR_FORMAT);
    CHECK_HAS(err.message, why);
    tdm_order_destroy(order);
}

/* The text with line `number` (from 1) replaced by `line`; NULL: removed. */
static char *with_line(const char *text, int number, const char *line)
{
    static char out[UPDATES * TDM__LINE_BYTES];
    const char *at = text;
    for (int i = 1; i < number; i++) at = strchr(at, '\n') + 1;
    snprintf(out, sizeof(out), "%.*s%s%s", (int)(at - text), text, line ? line : "",
             strchr(at, '\n') + 1);
    return out;
}

static void damaged_orders_are_rejected(void)
{
    const char *async = "mode: async", *text = lines_make(async);
    rejects("", async, "the order ends after update 0, but the job makes 60 updates");
    rejects(with_line(text, 20, NULL), async, "line 20 has update 21, but update 20 is next");
    rejects(with_line(text, 20, "{}\n"), async, "line 20 is not an update of an order");
    rejects(
        with_line(
            text, 1,
            "{\"update\":1,\"worker\":0,\"of\":8,\"batch\":1,\"staleness\":0,\"readers\":[0]}\n"),
        async, "line 1: the order is that of 8 replicas, but the job has 4");
    rejects(
        with_line(
            text, 1,
            "{\"update\":1,\"worker\":0,\"of\":4,\"batch\":1,\"staleness\":0,\"readers\":[1]}\n"),
        async, "worker 1 reads the model, but it is computing a gradient");
    rejects("{\"update\":1,\"worker\":0,\"of\":4,\"batch\":1,\"staleness\":0,\"readers\":[]}\n"
            "{\"update\":2,\"worker\":0,\"of\":4,\"batch\":2,\"staleness\":1,\"readers\":[]}\n",
            async, "line 2: worker 0 has read no model since its last update");
    rejects("{\"update\":1,\"worker\":0,\"of\":4,\"batch\":1,\"staleness\":0,\"readers\":[0]}\n"
            "{\"update\":2,\"worker\":0,\"of\":4,\"batch\":2,\"staleness\":1,\"readers\":[0]}\n",
            async, "worker 0 has staleness 1, but it has read the model 0 updates before");
    rejects(
        with_line(
            text, 1,
            "{\"update\":1,\"worker\":0,\"of\":4,\"batch\":9,\"staleness\":0,\"readers\":[]}\n"),
        async, "worker 0 has the gradient of batch 9, which another worker has or will have");
    rejects("{\"update\":1,\"worker\":1,\"of\":4,\"batch\":2,\"staleness\":0,\"readers\":[]}\n"
            "{\"update\":2,\"worker\":0,\"of\":4,\"batch\":2,\"staleness\":1,\"readers\":[]}\n",
            async, "line 2: worker 0 has the gradient of batch 2");
    char cut[sizeof("x") + UPDATES * TDM__LINE_BYTES];
    snprintf(cut, sizeof(cut), "%.*s", (int)strlen(text) - 3, text);
    rejects(cut, async, "the order ends after update 59");
    rejects(lines_make("mode: async, speeds: [9, 9, 9, 1]"), "mode: stale, staleness: 1",
            "further ahead of the slowest one than sync.staleness allows");
}

static void no_worker_is_left(void)
{
    char text[4 * TDM__LINE_BYTES] = "";
    for (int i = 0; i < WORKERS; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text),
                 "{\"update\":%d,\"worker\":%d,\"of\":4,\"batch\":%d,\"staleness\":%d,"
                 "\"readers\":[]}\n",
                 i + 1, i, i + 1, i);
    rejects(text, "mode: async", "line 4: no worker has read the model for a later update");
}

static void lines_are_checked(void)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{\"update\":0,\"worker\":0,\"of\":4,\"batch\":1,\"staleness\":0,\"readers\":[]}",
        "{\"update\":1,\"worker\":4,\"of\":4,\"batch\":1,\"staleness\":0,\"readers\":[]}",
        "{\"update\":1,\"worker\":0,\"of\":65,\"batch\":1,\"staleness\":0,\"readers\":[]}",
        "{\"update\":1,\"worker\":0,\"of\":0,\"batch\":1,\"staleness\":0,\"readers\":[]}",
        "{\"update\":1,\"worker\":0,\"of\":4,\"batch\":1,\"staleness\":1,\"readers\":[]}",
        "{\"update\":1,\"worker\":0,\"of\":4,\"batch\":1,\"staleness\":-1,\"readers\":[]}",
        "{\"update\":1,\"worker\":0,\"of\":4,\"batch\":1,\"staleness\":0,\"readers\":[4]}",
        "{\"update\":1,\"worker\":0,\"of\":4,\"batch\":1,\"staleness\":0,\"readers\":[2,1]}",
        "{\"update\":1,\"worker\":0,\"of\":4,\"batch\":1,\"staleness\":0,\"readers\":[1,1]}",
        "{\"update\":1,\"worker\":0,\"of\":4,\"batch\":1,\"staleness\":0,\"readers\":1}",
        "{\"update\":1,\"worker\":0,\"of\":4,\"batch\":1,\"staleness\":0}",
        "{\"update\":1,\"worker\":0,\"of\":4,\"batch\":0,\"staleness\":0,\"readers\":[]}",
        "{\"update\":1,\"worker\":0,\"of\":4,\"staleness\":0,\"readers\":[]}",
    };
    tdm_arena *arena = tdm_arena_create("test");
    tdm__order_line line;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CHECK(!tdm__order_line_read(bad[i], strlen(bad[i]), arena, &line));
    for (int w = 0; w < TDM_ORDER_MAX_WORKERS; w++) { /* the longest line */
        char text[TDM__LINE_BYTES];
        tdm__order_line last = {.update = UINT64_MAX,
                                .of = TDM_ORDER_MAX_WORKERS,
                                .entry = {.worker = 63,
                                          .staleness = UINT32_MAX,
                                          .readers = UINT64_MAX >> w,
                                          .batch = UINT64_MAX - 1}};
        int length = tdm__order_format.show(&last, text);
        CHECK(length < TDM__LINE_BYTES && text[length - 1] == '\n');
        CHECK(tdm__order_line_read(text, (size_t)length - 1, arena, &line));
        CHECK(memcmp(&line, &last, sizeof(line)) == 0);
    }
    tdm_arena_destroy(arena);
}

static const check_test tests[] = {CHECK_TEST(a_recorded_order_is_the_same_order),
                                   CHECK_TEST(damaged_orders_are_rejected),
                                   CHECK_TEST(no_worker_is_left), CHECK_TEST(lines_are_checked)};
CHECK_MAIN(tests)
