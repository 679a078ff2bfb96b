/*
 * agent_test.c: parts of an agent: the probe of a disk that hangs, and log lines after a call to
 * the store that may or may not have taken effect.
 *
 * Disk and store are simulated. A disk that hangs is released before the test ends, so that its
 * thread ends as well.
 */
#include "check.h"
#include "cluster/disk_probe.h"
#include "cluster/log_forward.h"
#include "kv/kv.h"

#include <stdatomic.h>
#include <time.h>

enum { WAIT_S = 60 };

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* ---- a disk ---------------------------------------------------------------------------------- */

static atomic_int questions, answers;
static atomic_bool hangs;

static int made_up_disk(const char *path, struct statvfs *out)
{
    questions++;
    while (hangs) nap();
    *out = (struct statvfs){.f_frsize = 1000, .f_blocks = 50, .f_bavail = 20};
    answers++;
    return strcmp(path, "there") == 0 ? 0 : -1;
}

static bool await_count(atomic_int *count, int min)
{
    double until_s = tdm_clock_s() + WAIT_S;
    while (*count < min && tdm_clock_s() < until_s) nap();
    return *count >= min;
}

/* Reads until the result is known: on a busy machine it may arrive after several reads. */
static bool await_bytes(tdm__disk_probe *disk_probe, const char *path, uint64_t bytes)
{
    double until_s = tdm_clock_s() + WAIT_S;
    tdm__disk_space room = {.bytes = bytes + 1};
    while (room.bytes != bytes && tdm_clock_s() < until_s) {
        tdm__disk_probe_read(disk_probe, path, 0, &room);
        CHECK(!room.is_silent);
    }
    return room.bytes == bytes && room.free_bytes == bytes / 5 * 2;
}

/* From now on the disk hangs, and one query runs since time 0. */
static int hang(tdm__disk_probe *disk_probe)
{
    tdm__disk_space room;
    CHECK(await_count(&answers, questions));
    hangs = true;
    int before = questions;
    double until_s = tdm_clock_s() + WAIT_S;
    while (questions == before && tdm_clock_s() < until_s)
        tdm__disk_probe_read(disk_probe, "there", 0, &room);
    CHECK_INT(questions, before + 1);
    return before;
}

static void a_disk_that_hangs_does_not_block_ranks(void)
{
    tdm__disk_space room;
    tdm__disk_probe *disk_probe = tdm__disk_probe_create(made_up_disk);
    CHECK(disk_probe != NULL);
    CHECK(await_bytes(disk_probe, "there", 50000));
    CHECK(await_bytes(disk_probe, "elsewhere", 0));
    CHECK(await_bytes(disk_probe, "there", 50000));
    int before = hang(disk_probe);
    tdm__disk_probe_read(disk_probe, "there", 9, &room);
    CHECK(!room.is_silent);
    CHECK_INT(room.bytes, 50000); /* the last result */
    for (int i = 0; i < 20; i++) tdm__disk_probe_read(disk_probe, "there", 11 + i, &room);
    CHECK(room.is_silent);
    CHECK_INT(room.bytes, 0);
    CHECK_INT(questions, before + 1); /* one query at a time */
    hangs = false;
    CHECK(await_bytes(disk_probe, "there", 50000));
    before = hang(disk_probe);
    tdm__disk_probe_release(disk_probe); /* the agent ends during a query */
    hangs = false;
    CHECK(await_count(&answers, before + 1));
    tdm__disk_probe_release(NULL);
}

/* ---- a store --------------------------------------------------------------------------------- */

/* With is_in_doubt it stores the value and reports a timeout. */
typedef struct made_up_store {
    tdm_kv kv; /* first */
    char keys[8][TDM_KV_KEY_BYTES];
    char values[8][200];
    int count;
    bool is_away, is_in_doubt;
} made_up_store;

static tdm_status swap(tdm_kv *kv, const char *key, uint64_t expected, const char *value,
                       uint64_t lease, uint64_t *out_revision, tdm_error *err)
{
    made_up_store *store = (made_up_store *)kv;
    CHECK(expected == 0 && lease == 0);
    *out_revision = 1;
    if (store->is_away) return tdm_fail(err, TDM_ERR_PEER_TIMEOUT, "no answer");
    for (int i = 0; i < store->count; i++)
        if (strcmp(store->keys[i], key) == 0) return tdm_fail(err, TDM_ERR_EXISTS, "it is there");
    CHECK(store->count < 8);
    snprintf(store->keys[store->count], sizeof(store->keys[0]), "%s", key);
    snprintf(store->values[store->count++], sizeof(store->values[0]), "%s", value);
    return store->is_in_doubt ? tdm_fail(err, TDM_ERR_PEER_TIMEOUT, "no answer") : TDM_OK;
}

/* Every batch has been collected. */
static tdm_status get(tdm_kv *kv, const char *key, tdm_arena *arena, tdm_kv_item *out,
                      tdm_error *err)
{
    (void)kv, (void)arena, (void)out;
    return tdm_fail(err, TDM_ERR_NOT_FOUND, "there is no %s", key);
}

static const tdm__kv_ops store_ops = {.name = "made-up", .get = get, .swap = swap};

static void add(tdm__log_forward *lines, const char *text)
{
    tdm__log_forward_add(lines, text, strlen(text));
}

static void no_line_is_lost_after_an_uncertain_put(void)
{
    made_up_store store = {.kv = {.ops = &store_ops}, .is_in_doubt = true};
    tdm__log_forward lines;
    tdm__log_forward_init(&lines, NULL);
    add(&lines, "one");
    tdm__log_forward_send(&lines, &store.kv, "s", "a");
    CHECK_INT(store.count, 1);
    add(&lines, "two");
    store.is_in_doubt = false;
    tdm__log_forward_send(&lines, &store.kv, "s", "a");
    CHECK_INT(store.count, 2);
    CHECK_TEXT(store.values[0], "one\n");
    CHECK_TEXT(store.values[1], "two\n");
    CHECK_INT(lines.whole.length, 0);
    /* A batch that had no effect is sent again unchanged, and later lines follow it. */
    store.is_away = true;
    add(&lines, "three");
    tdm__log_forward_send(&lines, &store.kv, "s", "a");
    add(&lines, "four");
    store.is_away = false;
    tdm__log_forward_send(&lines, &store.kv, "s", "a");
    CHECK_INT(store.count, 4);
    CHECK_TEXT(store.values[2], "three\n");
    CHECK_TEXT(store.values[3], "four\n");
    tdm__log_forward_release(&lines);
}

/* Meanwhile rank 0 was on this host for some time. */
static void lines_written_here_are_not_sent_to_the_store(void)
{
    made_up_store store = {.kv = {.ops = &store_ops}, .is_in_doubt = true};
    tdm__log_forward lines;
    tdm__log_forward_init(&lines, NULL);
    add(&lines, "a long one");
    tdm__log_forward_send(&lines, &store.kv, "s", "a");
    tdm__log_forward_write(&lines, "/nowhere");
    CHECK_INT(lines.whole.length, 0);
    add(&lines, "two");
    store.is_in_doubt = false;
    tdm__log_forward_send(&lines, &store.kv, "s", "a");
    CHECK_INT(store.count, 2);
    CHECK_TEXT(store.values[1], "two\n");
    CHECK_INT(lines.whole.length, 0);
    tdm__log_forward_release(&lines);
}

static const check_test tests[] = {CHECK_TEST(a_disk_that_hangs_does_not_block_ranks),
                                   CHECK_TEST(no_line_is_lost_after_an_uncertain_put),
                                   CHECK_TEST(lines_written_here_are_not_sent_to_the_store)};

CHECK_MAIN(tests)
