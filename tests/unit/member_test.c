/*
 * member_test.c: single rules of members and epochs, invalid values in the store, and processes
 * that are killed or stopped while they use the local store.
 *
 * The simulator (tests/sim) covers combinations of failures. This test also covers the thread and
 * the clock, which the simulator replaces.
 */
#include "check.h"
#include "membership/member.h"
#include "world.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void sleep_1ms(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static char store_url[128];

static void name_store(void)
{
    snprintf(store_url, sizeof(store_url), "local:%s", check_path("store"));
}

static tdm_kv *open_store(void)
{
    tdm_kv *kv = NULL;
    tdm_error err = {0};
    CHECK_INT(tdm_kv_open(&(tdm_kv_options){.url = store_url}, &kv, &err), TDM_OK);
    if (!kv) fprintf(stderr, "%s\n", err.message);
    return kv;
}

/* ---- heartbeats ------------------------------------------------------------------------------ */

static void the_lease_follows_the_heartbeats(void)
{
    tdm__heartbeat_stats heartbeats;
    tdm__heartbeat_init(&heartbeats, 0);
    CHECK_NEAR(tdm__heartbeat_lease_s(&heartbeats), 3, 1e-9);
    double now_s = 0;
    for (int i = 0; i < 200; i++) tdm__heartbeat_add(&heartbeats, now_s += 0.25);
    CHECK_NEAR(tdm__heartbeat_lease_s(&heartbeats), 1.5, 0.01);
    for (int i = 0; i < 200; i++) /* a busy host */
        tdm__heartbeat_add(&heartbeats, now_s += i % 2 ? 0.25 : 1.25);
    CHECK(tdm__heartbeat_lease_s(&heartbeats) > 5);
    for (int i = 0; i < 200; i++) tdm__heartbeat_add(&heartbeats, now_s += 60);
    CHECK_NEAR(tdm__heartbeat_lease_s(&heartbeats), 30, 1e-9);
    for (int i = 0; i < 500; i++) tdm__heartbeat_add(&heartbeats, now_s += 0.01);
    CHECK_NEAR(tdm__heartbeat_lease_s(&heartbeats), 1, 0.01);
    tdm__heartbeat_init(&heartbeats, 7);
    tdm__heartbeat_add(&heartbeats, 1);
    tdm__heartbeat_add(&heartbeats, 100);
    CHECK_NEAR(tdm__heartbeat_lease_s(&heartbeats), 7, 0);
}

/* ---- members that reach each other ---------------------------------------------------- */

enum { MAX_MEMBERS = 64 };
static char names[MAX_MEMBERS][8];
static tdm__view_member group[MAX_MEMBERS];
static tdm__view_member *group_list[MAX_MEMBERS];
static const char *lost_lists[MAX_MEMBERS][MAX_MEMBERS];

static void group_create(int count)
{
    for (int i = 0; i < count; i++) {
        snprintf(names[i], sizeof(names[i]), "m%d", i);
        group[i] = (tdm__view_member){
            .id = names[i], .host = "h", .has_state = true, .lost = lost_lists[i]};
        group_list[i] = &group[i];
    }
}

static void member_lose(int a, int b)
{
    group[a].lost[group[a].lost_count++] = names[b];
}

static uint64_t members_kept(int count)
{
    bool keep[MAX_MEMBERS];
    uint64_t kept = 0;
    tdm__epoch_reach(group_list, count, keep);
    for (int i = 0; i < count; i++) kept |= (uint64_t)keep[i] << i;
    return kept;
}

static void the_larger_side_stays(void)
{
    group_create(5);
    CHECK_INT(members_kept(5), 0x1f);
    for (int i = 0; i < 2; i++) /* {0, 1} and {2, 3, 4}; the reports of one side are enough */
        for (int j = 2; j < 5; j++) member_lose(i, j);
    CHECK_INT(members_kept(5), 0x1c);
    group_create(4);
    for (int i = 0; i < 4; i++) /* {0, 3} and {1, 2}: equal, so the side with rank 0 */
        for (int j = 0; j < 4; j++)
            if ((i == 0 || i == 3) != (j == 0 || j == 3)) member_lose(i, j);
    CHECK_INT(members_kept(4), 0x9);
    group_create(3);
    member_lose(2, 0); /* both reach rank 1 */
    CHECK_INT(members_kept(3), 0x3);
    group_create(4);
    member_lose(3, 0); /* the only member with the state stays, although all others have lost it */
    member_lose(2, 0);
    member_lose(1, 0);
    group[1].has_state = group[2].has_state = group[3].has_state = false;
    CHECK_INT(members_kept(4), 0x1);
    group_create(MAX_MEMBERS);
    for (int i = 0; i < 20; i++)
        for (int j = 20; j < MAX_MEMBERS; j++) member_lose(i, j);
    CHECK(members_kept(MAX_MEMBERS) == UINT64_MAX << 20);
}

/* Rank 1 refuses rank 2 and closes its connections. The others lose rank 1; that is not a
 * partition. */
static void a_refusal_is_not_a_partition(void)
{
    group_create(4);
    group[2].has_state = group[3].has_state = false;
    member_lose(1, 2);
    group[1].refused = group[1].lost;
    group[1].refused_count = 1;
    member_lose(0, 1);
    member_lose(3, 1);
    CHECK_INT(members_kept(4), 0xb);
    member_lose(2, 1);
    CHECK_INT(members_kept(4), 0xb);
    group_create(2); /* both have the state, and refuse each other */
    for (int i = 0; i < 2; i++) {
        member_lose(i, 1 - i);
        group[i].refused = group[i].lost;
        group[i].refused_count = 1;
    }
    CHECK_INT(members_kept(2), 0x1);
}

static void many_conflicts_end_soon(void)
{
    group_create(MAX_MEMBERS);
    uint64_t draw = 1;
    for (int i = 0; i < MAX_MEMBERS; i++)
        for (int j = i + 1; j < MAX_MEMBERS; j++)
            if ((draw = draw * 6364136223846793005u + 1442695040888963407u) >> 62 == 0)
                member_lose(i, j);
    uint64_t kept = members_kept(MAX_MEMBERS);
    CHECK(kept != 0);
    for (int i = 0; i < MAX_MEMBERS; i++)
        for (int k = 0; k < group[i].lost_count; k++) {
            int j = (int)strtol(group[i].lost[k] + 1, NULL, 10);
            CHECK(!(kept >> i & 1) || !(kept >> j & 1));
        }
}

/* ---- values in the store --------------------------------------------------------------------- */

#define SESSION "tandem/s/"

static tdm_status view_read(tdm_kv *kv, tdm_arena *arena, tdm__view *view, tdm_error *err)
{
    tdm_arena_reset(arena);
    return tdm__view_read(kv, SESSION, arena, view, err);
}

static void store_put(tdm_kv *kv, const char *key, const char *value)
{
    CHECK_INT(tdm_kv_put(kv, key, value, 0, NULL), TDM_OK);
}

static void invalid_records_are_ignored(void)
{
    name_store();
    tdm_kv *kv = open_store();
    tdm_arena *arena = tdm_arena_create("test");
    tdm__view view = {0};
    tdm_error err = {0};
    store_put(kv, SESSION "members/a", "{\"host\":\"h\",\"ready\":true,\"slot\":99999999999}");
    store_put(kv, SESSION "members/b", "[1, 2");
    store_put(kv, SESSION "members/", "{}");
    store_put(kv, SESSION "members/c/d", "{\"host\":\"h\"}");
    store_put(kv, SESSION "reports/x/a", "{}");
    store_put(kv, SESSION "dead/nobody", "{}");
    store_put(kv, SESSION "wishes/leave/a", "");
    store_put(kv, SESSION "about", "{\"expected\":-3}");
    store_put(kv, SESSION "verdict", "{\"status\":4711}");
    CHECK_INT(view_read(kv, arena, &view, &err), TDM_OK);
    CHECK_INT(view.count, 1);
    CHECK_INT(view.expected, 0);
    CHECK(view.has_verdict && view.verdict == TDM_ERR_INTERNAL);
    CHECK(tdm__view_find(&view, "a")->should_leave);
    static const char *const epochs[] = {
        "",
        "{}",
        "{\"number\":1}",
        "{\"number\":1,\"members\":[]}",
        "{\"number\":0,\"members\":[{\"id\":\"a\",\"host\":\"h\"}]}",
        "{\"number\":5000000000,\"members\":[{\"id\":\"a\",\"host\":\"h\"}]}",
        "{\"number\":1,\"members\":[{\"id\":\"a\"},{\"id\":\"a\"}]}",
        "{\"number\":1,\"members\":[{\"host\":\"h\"}]}",
        "{\"number\":1,\"members\":[7]}"};
    for (size_t i = 0; i < sizeof(epochs) / sizeof(epochs[0]); i++) {
        store_put(kv, SESSION "epoch", epochs[i]);
        CHECK_INT(view_read(kv, arena, &view, &err), TDM_ERR_FORMAT);
        CHECK_HAS(err.message, SESSION "epoch");
    }
    tdm_arena_destroy(arena);
    tdm_kv_close(kv);
}

/* ---- decisions ------------------------------------------------------------------------------- */

static tdm__decision member_decide(tdm_kv *kv, tdm_arena *arena, const char *id,
                                   tdm__epoch_history *history, double now_s, tdm__view *view,
                                   tdm__epoch_plan *plan)
{
    tdm__epoch_rules rules = {
        .id = id, .min = 2, .max = 3, .wait_s = 100, .report_s = 2, .settle_s = 5, .silence_s = 12};
    CHECK_INT(view_read(kv, arena, view, NULL), TDM_OK);
    return tdm__epoch_decide(view, &rules, history, now_s, plan);
}

static void put_record(tdm_kv *kv, const char *id, const char *host, int slot)
{
    char key[64], value[128];
    snprintf(key, sizeof(key), SESSION "members/%s", id);
    snprintf(value, sizeof(value), "{\"host\":\"%s\",\"slot\":%d,\"pid\":%d,\"ready\":true}", host,
             slot, slot + 2);
    store_put(kv, key, value);
}

static void epoch_put(tdm_kv *kv, const tdm__view *view, const tdm__epoch_plan *plan)
{
    tdm_str text = TDM_STR_INIT;
    tdm__epoch_text(view, plan, "x", &text);
    CHECK_INT(
        tdm_kv_swap(kv, SESSION "epoch", view->epoch_revision, tdm_str_text(&text), 0, NULL, NULL),
        TDM_OK);
    tdm_str_release(&text);
}

/* The maximum number of members, with the longest names, replaces as many others. */
static void the_largest_epoch_fits(void)
{
    enum { COUNT = 2 * TDM__MAX_EPOCH };
    static char ids[COUNT][TDM_MEMBER_ID_BYTES];
    static tdm__view_member members[COUNT];
    static tdm__epoch_plan plan;
    char host[TDM_HOST_BYTES] = "";
    memset(host, 'h', sizeof(host) - 1);
    name_store();
    tdm_kv *kv = open_store();
    tdm_arena *arena = tdm_arena_create("test");
    tdm__view view = {.number = 7, .members = members, .count = COUNT, .size = TDM__MAX_EPOCH};
    for (int i = 0; i < COUNT; i++) {
        snprintf(ids[i], sizeof(ids[i]), "%.55s.%07d", host, i);
        members[i] = (tdm__view_member){.id = ids[i],
                                        .host = host,
                                        .pid = INT32_MAX - 1,
                                        .rank = i < TDM__MAX_EPOCH ? i : -1,
                                        .left_why = "killed by signal 6 (Aborted), as all others"};
        if (i >= TDM__MAX_EPOCH) plan.next[plan.next_count++] = &members[i];
    }
    epoch_put(kv, &view, &plan);
    tdm__view seen = {0};
    CHECK_INT(tdm__view_read(kv, SESSION, arena, &seen, NULL), TDM_OK);
    CHECK_INT(seen.number, 8);
    CHECK_INT(seen.size, TDM__MAX_EPOCH);
    tdm_arena_destroy(arena);
    tdm_kv_close(kv);
}

static void first_and_next_epoch(void)
{
    name_store();
    tdm_kv *kv = open_store();
    tdm_arena *arena = tdm_arena_create("test");
    tdm__view view = {0};
    static tdm__epoch_plan plan;
    tdm__epoch_history a, c, d;
    tdm__epoch_history_init(&a);
    tdm__epoch_history_init(&c);
    tdm__epoch_history_init(&d);
    store_put(kv, SESSION "about", "{\"expected\":3}");
    put_record(kv, "a", "h1", 1);
    CHECK_INT(member_decide(kv, arena, "a", &a, 0, &view, &plan), TDM__DECISION_WAIT); /* too few */
    CHECK_INT(member_decide(kv, arena, "a", &a, 100, &view, &plan), TDM__DECISION_GIVE_UP);
    put_record(kv, "b", "h2", 0);
    CHECK_INT(member_decide(kv, arena, "a", &a, 100, &view, &plan),
              TDM__DECISION_WAIT); /* for the third */
    CHECK_NEAR(plan.until_s, 105, 1e-9);
    put_record(kv, "c", "h1", 0);
    put_record(kv, "d", "h1", 2);
    CHECK_INT(member_decide(kv, arena, "c", &c, 101, &view, &plan),
              TDM__DECISION_WAIT); /* not its turn */
    CHECK_INT(member_decide(kv, arena, "a", &a, 101, &view, &plan), TDM__DECISION_PROPOSE);
    CHECK_INT(plan.next_count, 3); /* d stays in reserve */
    CHECK_TEXT(plan.next[0]->id, "c");
    CHECK_TEXT(plan.next[1]->id, "a"); /* next to the other member of its host, by slot */
    CHECK_TEXT(plan.next[2]->id, "b");
    epoch_put(kv, &view, &plan);
    CHECK_INT(member_decide(kv, arena, "a", &a, 101, &view, &plan), TDM__DECISION_ENTER);
    CHECK_INT(member_decide(kv, arena, "d", &d, 101, &view, &plan), TDM__DECISION_WAIT);
    a.left = c.left = 1;
    a.took_part = c.took_part = true;
    store_put(kv, SESSION "reports/1/a", "{\"whole\":true}");
    CHECK_INT(member_decide(kv, arena, "a", &a, 102, &view, &plan),
              TDM__DECISION_WAIT); /* for b and c */
    CHECK_NEAR(plan.until_s, 104, 1e-9);
    store_put(kv, SESSION "dead/b", "{\"why\":\"killed by signal 9\"}");
    store_put(kv, SESSION "reports/1/c", "{\"whole\":true}");
    CHECK_INT(member_decide(kv, arena, "a", &a, 102, &view, &plan),
              TDM__DECISION_WAIT); /* c's turn */
    CHECK_INT(member_decide(kv, arena, "c", &c, 102, &view, &plan), TDM__DECISION_PROPOSE);
    CHECK_INT(plan.next_count, 3);
    CHECK_TEXT(plan.next[2]->id, "d"); /* replaces the dead member */
    CHECK_INT(member_decide(kv, arena, "a", &a, 103, &view, &plan),
              TDM__DECISION_PROPOSE); /* c has not proposed in time */
    epoch_put(kv, &view, &plan);
    CHECK_INT(member_decide(kv, arena, "d", &d, 103, &view, &plan), TDM__DECISION_ENTER);
    CHECK_INT(tdm_kv_remove(kv, SESSION "members/d", NULL), TDM_OK);
    CHECK_INT(member_decide(kv, arena, "a", &a, 103, &view, &plan), TDM__DECISION_SKIP);
    char name[256];
    CHECK_TEXT(tdm__epoch_name(&view.members[2], name), "rank 2 (member d, host h1, process 4)");
    tdm__epoch_history late = {.left = 1, .took_part = true};
    CHECK_INT(member_decide(kv, arena, "b", &late, 103, &view, &plan), TDM__DECISION_FENCED);
    tdm_arena_destroy(arena);
    tdm_kv_close(kv);
}

/* Ranks 2 and 3 are new and on one host, whose certificate rank 1 refuses. They are excluded
 * permanently, even if the others are fewer than the minimum without them. */
static void a_refused_member_is_excluded(void)
{
    static const char *const ids[] = {"a", "b", "c", "d"};
    name_store();
    tdm_kv *kv = open_store();
    tdm_arena *arena = tdm_arena_create("test");
    tdm__view view = {0};
    static tdm__epoch_plan plan;
    tdm__epoch_history snapshots[4];
    store_put(kv, SESSION "state", "{\"epoch\":1,\"holders\":[]}");
    for (int i = 0; i < 4; i++) {
        put_record(kv, ids[i], i < 2 ? ids[i] : "h3", i);
        snapshots[i] = (tdm__epoch_history){.left = 2, .took_part = true, .number = 2};
    }
    store_put(
        kv, SESSION "epoch",
        "{\"number\":2,\"members\":[{\"id\":\"a\",\"host\":\"a\"},{\"id\":\"b\",\"host\":\"b\"},"
        "{\"id\":\"c\",\"host\":\"h3\"},{\"id\":\"d\",\"host\":\"h3\"}]}");
    store_put(kv, SESSION "reports/2/a", "{\"whole\":true,\"lost\":[\"b\"],\"closed\":[\"b\"]}");
    store_put(
        kv, SESSION "reports/2/b",
        "{\"whole\":true,\"lost\":[\"c\"],\"refused\":[\"c\"],\"refusal\":\"its certificate\"}");
    store_put(kv, SESSION "reports/2/c", "{\"lost\":[\"b\"]}");
    store_put(kv, SESSION "reports/2/d", "{\"lost\":[\"b\"]}");
    tdm__epoch_rules three = {.id = "a", .min = 3, .wait_s = 100, .report_s = 2, .silence_s = 12};
    tdm__epoch_history history = snapshots[0];
    for (int now_s = 0; now_s < 50; now_s += 10) {
        CHECK_INT(view_read(kv, arena, &view, NULL), TDM_OK);
        CHECK_INT(tdm__epoch_decide(&view, &three, &history, now_s, &plan), TDM__DECISION_WAIT);
    }
    put_record(kv, "e", "h3", 4); /* a member that started later */
    CHECK_INT(member_decide(kv, arena, "a", &snapshots[0], 0, &view, &plan), TDM__DECISION_PROPOSE);
    CHECK_INT(plan.next_count, 2);
    CHECK_TEXT(plan.next[0]->id, "a");
    CHECK_TEXT(plan.next[1]->id, "b");
    epoch_put(kv, &view, &plan);
    CHECK_INT(member_decide(kv, arena, "b", &snapshots[1], 0, &view, &plan), TDM__DECISION_ENTER);
    CHECK_INT(member_decide(kv, arena, "c", &snapshots[2], 0, &view, &plan), TDM__DECISION_REFUSED);
    CHECK_TEXT(tdm__view_find(&view, "c")->left_why, "its certificate");
    CHECK_INT(member_decide(kv, arena, "d", &snapshots[3], 0, &view, &plan), TDM__DECISION_REFUSED);
    tdm_arena_destroy(arena);
    tdm_kv_close(kv);
}

/* Rank 1 has died, and rank 2 has not reported. The others wait for it as long as it makes
 * progress. */
static void a_busy_member_gets_more_time(void)
{
    static const char *const ids[] = {"a", "b", "c"};
    name_store();
    tdm_kv *kv = open_store();
    tdm_arena *arena = tdm_arena_create("test");
    tdm__view view = {0};
    static tdm__epoch_plan plan;
    const tdm__epoch_rules rules = {.id = "a",
                                    .min = 1,
                                    .max = 3,
                                    .wait_s = 100,
                                    .report_s = 2,
                                    .settle_s = 5,
                                    .silence_s = 12};
    for (int i = 0; i < 3; i++) put_record(kv, ids[i], "h", i);
    store_put(
        kv, SESSION "epoch",
        "{\"number\":1,\"members\":[{\"id\":\"a\",\"host\":\"h\"},{\"id\":\"b\",\"host\":\"h\"},"
        "{\"id\":\"c\",\"host\":\"h\"}]}");
    store_put(kv, SESSION "dead/b", "{\"why\":\"killed by signal 9\"}");
    store_put(kv, SESSION "reports/1/a", "{\"whole\":true,\"closed\":[\"b\"]}");
    tdm__epoch_history history;
    tdm__epoch_history_init(&history);
    history.left = history.number = 1;
    history.took_part = true;
    const double views_s[] = {100, 101, 103, 130, 159};
    for (size_t i = 0; i < sizeof(views_s) / sizeof(views_s[0]); i++) {
        CHECK_INT(view_read(kv, arena, &view, NULL), TDM_OK);
        view.members[2].is_busy = true;
        CHECK_INT(tdm__epoch_decide(&view, &rules, &history, views_s[i], &plan),
                  TDM__DECISION_WAIT);
        CHECK(plan.until_s > views_s[i]);
    }
    CHECK(plan.until_s < 159.3); /* to check its progress again soon */
    /* The wait ends if the member makes no progress, */
    tdm__epoch_history other = history;
    CHECK_INT(view_read(kv, arena, &view, NULL), TDM_OK);
    CHECK_INT(tdm__epoch_decide(&view, &rules, &other, 103, &plan), TDM__DECISION_PROPOSE);
    CHECK_INT(plan.next_count, 1);
    /* if a reporter could not reach it, */
    store_put(kv, SESSION "reports/1/a", "{\"whole\":true,\"lost\":[\"c\"],\"closed\":[\"b\"]}");
    other = history;
    CHECK_INT(view_read(kv, arena, &view, NULL), TDM_OK);
    view.members[2].is_busy = true;
    CHECK_INT(tdm__epoch_decide(&view, &rules, &other, 103, &plan), TDM__DECISION_PROPOSE);
    /* and after a minute in any case. */
    store_put(kv, SESSION "reports/1/a", "{\"whole\":true,\"closed\":[\"b\"]}");
    CHECK_INT(view_read(kv, arena, &view, NULL), TDM_OK);
    view.members[2].is_busy = true;
    CHECK_INT(tdm__epoch_decide(&view, &rules, &history, 161, &plan), TDM__DECISION_PROPOSE);
    tdm_arena_destroy(arena);
    tdm_kv_close(kv);
}

/* All processes of a host end at once, as when it is switched off: a connection is closed, and no
 * member or agent there reports anything. */
static void the_wait_for_an_ended_host_is_short(void)
{
    static const char *const ids[] = {"a", "b", "c", "d"}; /* ranks 0 and 1 on h1, 2 and 3 on h2 */
    name_store();
    tdm_kv *kv = open_store();
    tdm_arena *arena = tdm_arena_create("test");
    tdm__view view = {0};
    static tdm__epoch_plan plan;
    for (int i = 0; i < 4; i++) put_record(kv, ids[i], i < 2 ? "h1" : "h2", i % 2);
    store_put(
        kv, SESSION "epoch",
        "{\"number\":1,\"members\":[{\"id\":\"a\",\"host\":\"h1\"},{\"id\":\"b\",\"host\":\"h1\"},"
        "{\"id\":\"c\",\"host\":\"h2\"},{\"id\":\"d\",\"host\":\"h2\"}]}");
    tdm__epoch_history c, fresh;
    tdm__epoch_history_init(&fresh);
    fresh.left = 1;
    fresh.took_part = true;
    fresh.number = 1;
    /* Unreachable: it may be a partition, in which the side with the lowest rank continues. */
    store_put(kv, SESSION "reports/1/c", "{\"whole\":true,\"lost\":[\"a\",\"b\"],\"closed\":[]}");
    store_put(kv, SESSION "reports/1/d", "{\"whole\":true,\"lost\":[\"a\",\"b\"],\"closed\":7}");
    c = fresh;
    CHECK_INT(member_decide(kv, arena, "c", &c, 100, &view, &plan), TDM__DECISION_WAIT);
    CHECK_NEAR(plan.until_s, 102, 1e-9);
    /* The connection of one was closed: the other one may be alive, and gets more time to
     * report. */
    store_put(kv, SESSION "reports/1/d", "{\"whole\":true,\"lost\":[\"a\"],\"closed\":[\"a\"]}");
    store_put(kv, SESSION "reports/1/c", "{\"whole\":true}");
    c = fresh;
    CHECK_INT(member_decide(kv, arena, "c", &c, 100, &view, &plan), TDM__DECISION_WAIT);
    CHECK_NEAR(plan.until_s, 101, 1e-9);
    CHECK_INT(member_decide(kv, arena, "c", &c, 100.9, &view, &plan), TDM__DECISION_WAIT);
    /* Both are lost by a reporter: the host has ended. */
    store_put(kv, SESSION "reports/1/c", "{\"whole\":true,\"lost\":[\"b\"]}");
    c = fresh;
    CHECK_INT(member_decide(kv, arena, "c", &c, 100, &view, &plan), TDM__DECISION_WAIT);
    CHECK_NEAR(plan.until_s, 100.4, 1e-9);
    CHECK_INT(member_decide(kv, arena, "c", &c, 100.5, &view, &plan), TDM__DECISION_PROPOSE);
    CHECK_INT(plan.next_count, 2);
    CHECK_TEXT(plan.next[0]->id, "c");
    /* The wait is not short if the missing members outnumber the reporters, */
    CHECK_INT(tdm_kv_remove(kv, SESSION "reports/1/c", NULL), TDM_OK);
    CHECK_INT(tdm_kv_remove(kv, SESSION "members/c", NULL), TDM_OK);
    c = fresh;
    CHECK_INT(member_decide(kv, arena, "d", &c, 100, &view, &plan), TDM__DECISION_WAIT);
    CHECK_NEAR(plan.until_s, 102, 1e-9);
    put_record(kv, "c", "h2", 0);
    store_put(kv, SESSION "reports/1/c", "{\"whole\":true}");
    /* or if the agent of the host reports, */
    store_put(kv, SESSION "dead/a", "{\"why\":\"killed by signal 9\"}");
    c = fresh;
    CHECK_INT(member_decide(kv, arena, "c", &c, 100, &view, &plan), TDM__DECISION_WAIT);
    CHECK_NEAR(plan.until_s, 102, 1e-9);
    CHECK_INT(tdm_kv_remove(kv, SESSION "dead/a", NULL), TDM_OK);
    /* or if the other member of the host reports. */
    store_put(kv, SESSION "reports/1/b", "{\"whole\":true}");
    c = fresh;
    CHECK_INT(member_decide(kv, arena, "b", &c, 100, &view, &plan), TDM__DECISION_WAIT);
    CHECK_NEAR(plan.until_s, 102, 1e-9);
    tdm_arena_destroy(arena);
    tdm_kv_close(kv);
}

/* ---- real processes -------------------------------------------------------------------------- */

enum { RANKS = 3, EPOCHS = 32, STEPS = 12 };

/* Memory that the processes share; it replaces a network. */
typedef struct shared_run {
    atomic_int arrived[EPOCHS][STEPS + 1];
    atomic_int step;   /* the last one that all have completed */
    atomic_int victim; /* a process that waits to be killed or stopped */
    atomic_int epochs;
    atomic_uint fence; /* the newest epoch; ranks of older ones change nothing */
    int victim_step, victim_signal;
} shared_run;

typedef struct worker {
    shared_run *y;
    tdm_member *member;
    uint32_t epoch;
    int size, step, first_step;
    bool is_victim;
    atomic_bool is_interrupted;
} worker;

static tdm_status barrier_pass(worker *w, int meeting, tdm_error *err)
{
    if (w->epoch >= EPOCHS) return tdm_fail(err, TDM_ERR_INTERNAL, "too many epochs");
    atomic_int *arrived = &w->y->arrived[w->epoch][meeting];
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < w->size) {
        if (atomic_load(&w->is_interrupted) || !tdm_member_epoch_holds(w->member, w->epoch))
            return tdm_fail(err, TDM_ERR_PEER_FAILED, "a member is gone");
        sleep_1ms();
    }
    return TDM_OK;
}

static tdm_status worker_enter(void *user, const tdm_epoch *epoch, tdm_error *err)
{
    worker *w = user;
    char endpoint[TDM_ENDPOINT_BYTES] = "";
    atomic_store(&w->is_interrupted, false);
    w->epoch = epoch->number;
    atomic_store(&w->y->fence, epoch->number);
    w->size = epoch->size;
    atomic_fetch_add(&w->y->epochs, epoch->rank == 0);
    if (epoch->rank == 0)
        TDM_TRY(tdm_member_publish_endpoint(w->member, epoch->number, "the endpoint", err));
    else
        TDM_TRY(tdm_member_lookup_endpoint(w->member, epoch->number, 30, endpoint, err));
    CHECK_TEXT(epoch->rank == 0 ? "the endpoint" : endpoint, "the endpoint");
    TDM_TRY(barrier_pass(w, 0, err));
    w->first_step = w->step = atomic_load(&w->y->step);
    return tdm_member_confirm(w->member, epoch->number, err);
}

static tdm_status worker_step(void *user, unsigned request, unsigned *requests, bool *done,
                              tdm_error *err)
{
    worker *w = user;
    *requests = request;
    tdm_member_tell(w->member,
                    &(tdm_member_status){.step = (uint64_t)w->step, .phase = "training"});
    if (w->is_victim && w->step == w->y->victim_step) {
        atomic_store(&w->y->victim, getpid());
        w->is_victim = false;
        while (atomic_load(&w->y->victim) != 0 && !atomic_load(&w->is_interrupted)) sleep_1ms();
    }
    TDM_TRY(barrier_pass(w, 1 + w->step - w->first_step, err));
    if (atomic_load(&w->y->fence) != w->epoch)
        return tdm_fail(err, TDM_ERR_PEER_FENCED, "another epoch is current");
    w->step++;
    atomic_store(&w->y->step, w->step);
    sleep_1ms();
    *requests = 0; /* no member joins in this test */
    *done = w->step >= STEPS;
    return TDM_OK;
}

static void worker_leave(void *user)
{
    (void)user;
}

static void worker_interrupt(void *user, const char *why)
{
    worker *w = user;
    (void)why;
    CHECK(!tdm_member_epoch_holds(w->member, w->epoch)); /* no lock of the member is held here */
    atomic_store(&w->is_interrupted, true);
}

static int run_worker(shared_run *y, int slot)
{
    char id[32];
    snprintf(id, sizeof(id), "h.%d.%d", slot, (int)getpid());
    worker w = {.y = y, .is_victim = slot == 1};
    tdm_member_options options = {.kv.url = store_url,
                                  .session = "real",
                                  .id = id,
                                  .host = "h",
                                  .slot = slot,
                                  .max = RANKS,
                                  .report_s = 20,
                                  .lease_s = y->victim_signal == SIGSTOP ? 4 : 60};
    tdm_elastic_ops ops = {.enter = worker_enter,
                           .step = worker_step,
                           .leave = worker_leave,
                           .interrupt = worker_interrupt};
    tdm_elastic_result result = {0};
    tdm_error err = {0};
    if (tdm_member_create(&options, &w.member, &err) != TDM_OK) return 3;
    tdm_status status = tdm_elastic_run(w.member, &ops, &w, &result, &err);
    tdm_member_destroy(w.member);
    if (status != TDM_OK) fprintf(stderr, "worker %d: %s\n", slot, err.message);
    return status == TDM_OK && check_failures == 0 ? 0 : 4;
}

/* Reports the death of a process, as its agent does. */
static void report_dead(pid_t pid)
{
    char key[96];
    tdm_kv *kv = open_store();
    snprintf(key, sizeof(key), "tandem/real/dead/h.1.%d", (int)pid);
    store_put(kv, key, "{\"why\":\"killed by signal 9\"}");
    tdm_kv_close(kv);
}

static void run_and_signal(shared_run *y, int signal_number)
{
    name_store();
    tdm_kv *kv = open_store();
    store_put(kv, "tandem/real/about", "{\"expected\":3}");
    tdm_kv_close(kv);
    y->victim_step = 5;
    y->victim_signal = signal_number;
    pid_t pids[RANKS];
    for (int i = 0; i < RANKS; i++) {
        pids[i] = world_fork(0);
        if (pids[i] == 0) _exit(run_worker(y, i));
    }
    while (atomic_load(&y->victim) == 0) sleep_1ms();
    CHECK_INT(atomic_load(&y->victim), pids[1]);
    int status = 0;
    kill(pids[1], signal_number);
    if (signal_number == SIGKILL) {
        waitpid(pids[1], &status, 0);
        report_dead(pids[1]);
    }
    atomic_store(&y->victim, 0);
    for (int i = 0; i < RANKS; i += 2) {
        waitpid(pids[i], &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    CHECK_INT(atomic_load(&y->step), STEPS);
    CHECK_INT(atomic_load(&y->epochs), 2);
    if (signal_number == SIGSTOP) {
        kill(pids[1], SIGCONT);
        waitpid(pids[1], &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    CHECK_INT(atomic_load(&y->step), STEPS);
}

static shared_run *shared_run_create(void)
{
    return mmap(NULL, sizeof(shared_run), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                0);
}

static void a_killed_member_is_excluded(void)
{
    shared_run *y = shared_run_create();
    run_and_signal(y, SIGKILL);
    munmap(y, sizeof(*y));
}

static void a_stopped_member_is_fenced(void)
{
    shared_run *y = shared_run_create();
    run_and_signal(y, SIGSTOP);
    munmap(y, sizeof(*y));
}

/* ---- options --------------------------------------------------------------------------------- */

static tdm_status entered_enter(void *user, const tdm_epoch *epoch, tdm_error *err)
{
    (void)epoch;
    *(bool *)user = true;
    return tdm_fail(err, TDM_ERR_INTERNAL, "an epoch has begun");
}

static void entered_leave(void *user)
{
    (void)user;
}

/* If the session of a launcher was removed from the store, a member does not start an epoch. */
static void a_removed_session_ends_members(void)
{
    static const tdm_elastic_ops ops = {.enter = entered_enter, .leave = entered_leave};
    name_store();
    for (int i = 0; i < 2; i++) {
        tdm_member_options o = {.kv = {.url = store_url},
                                .session = "gone",
                                .id = i == 0 ? "a" : "b",
                                .host = "h",
                                .is_begun = i == 0};
        tdm_member *member = NULL;
        tdm_elastic_result result = {0};
        tdm_error err = {0};
        bool has_entered = false;
        CHECK_INT(tdm_member_create(&o, &member, &err), TDM_OK);
        tdm_status status = tdm_elastic_run(member, &ops, &has_entered, &result, &err);
        tdm_member_destroy(member);
        CHECK_INT(status, i == 0 ? TDM_OK : TDM_ERR_INTERNAL);
        CHECK(result.fenced == (i == 0));
        CHECK(has_entered == (i == 1)); /* without a launcher, members start by themselves */
    }
}

static void environment_is_read(void)
{
    tdm_member_options o = {0};
    unsetenv("TANDEM_MEMBER");
    CHECK_INT(tdm_member_environment(&o, NULL), TDM_ERR_NOT_FOUND);
    setenv("TANDEM_MEMBER", "a.2.7f31", 1);
    setenv("TANDEM_SESSION", "s", 1);
    setenv("TANDEM_HOST", "a", 1);
    CHECK_INT(tdm_member_environment(&o, NULL), TDM_ERR_INVALID);
    setenv("TANDEM_STORE", "local:x", 1);
    setenv("TANDEM_SLOT", "2x", 1);
    CHECK_INT(tdm_member_environment(&o, NULL), TDM_ERR_INVALID);
    setenv("TANDEM_SLOT", "2", 1);
    CHECK_INT(tdm_member_environment(&o, NULL), TDM_OK);
    CHECK_INT(o.slot, 2);
    CHECK_TEXT(o.id, "a.2.7f31");
    CHECK_TEXT(o.kv.url, "local:x");
    unsetenv("TANDEM_MEMBER");
}

static void invalid_options_are_rejected(void)
{
    name_store();
    tdm_member *member = NULL;
    tdm_member_options good = {.kv.url = store_url, .session = "s", .id = "a", .host = "h"};
    tdm_member_options bad = good;
    bad.id = "a/b";
    CHECK_INT(tdm_member_create(&bad, &member, NULL), TDM_ERR_INVALID);
    bad = good;
    bad.session = NULL;
    CHECK_INT(tdm_member_create(&bad, &member, NULL), TDM_ERR_INVALID);
    bad = good;
    bad.min = 3;
    bad.max = 2;
    CHECK_INT(tdm_member_create(&bad, &member, NULL), TDM_ERR_RANGE);
    bad = good;
    bad.kv.url = "nonsense";
    CHECK_INT(tdm_member_create(&bad, &member, NULL), TDM_ERR_INVALID);
    CHECK_INT(tdm_member_create(&good, &member, NULL), TDM_OK);
    CHECK_TEXT(tdm_member_id(member), "a");
    CHECK(!tdm_member_epoch_holds(member, 1));
    CHECK_INT(tdm_member_confirm(member, 1, NULL), TDM_ERR_PEER_FENCED);
    tdm_member_destroy(member);
    tdm_kv *kv = open_store();
    tdm_arena *arena = tdm_arena_create("test");
    tdm__view view = {0};
    CHECK_INT(view_read(kv, arena, &view, NULL), TDM_OK);
    CHECK_INT(view.count, 0); /* destroy has removed its record */
    tdm_arena_destroy(arena);
    tdm_kv_close(kv);
}

static const check_test tests[] = {CHECK_TEST(the_lease_follows_the_heartbeats),
                                   CHECK_TEST(the_larger_side_stays),
                                   CHECK_TEST(a_refusal_is_not_a_partition),
                                   CHECK_TEST(many_conflicts_end_soon),
                                   CHECK_TEST(invalid_records_are_ignored),
                                   CHECK_TEST(the_largest_epoch_fits),
                                   CHECK_TEST(first_and_next_epoch),
                                   CHECK_TEST(a_refused_member_is_excluded),
                                   CHECK_TEST(a_busy_member_gets_more_time),
                                   CHECK_TEST(the_wait_for_an_ended_host_is_short),
                                   CHECK_TEST(a_killed_member_is_excluded),
                                   CHECK_TEST(a_stopped_member_is_fenced),
                                   CHECK_TEST(a_removed_session_ends_members),
                                   CHECK_TEST(environment_is_read),
                                   CHECK_TEST(invalid_options_are_rejected)};
CHECK_MAIN(tests)
