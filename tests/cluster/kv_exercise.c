/*
 * kv_exercise.c: see kv_exercise.h.
 */
#include "cluster/kv_exercise.h"

tdm_kv *exercise_open(const tdm_kv_options *options)
{
    tdm_kv *kv = NULL;
    tdm_error err = {0};
    if (tdm_kv_open(options, &kv, &err) != TDM_OK) {
        fprintf(stderr, "cannot open %s: %s\n", options->url, err.message);
        exit(1);
    }
    return kv;
}

/* ---- one process ----------------------------------------------------------------------------- */

void exercise_keys(const tdm_kv_options *options)
{
    tdm_kv *kv = exercise_open(options);
    tdm_arena *arena = tdm_arena_create("test");
    tdm_kv_item item, *items = NULL;
    size_t count = 9;
    uint64_t first = 0, second = 0, revision = 0;
    WORKS(tdm_kv_remove(kv, BELOW, &err));
    FAILS(tdm_kv_get(kv, BELOW "a", arena, &item, &err), TDM_ERR_NOT_FOUND);
    WORKS(tdm_kv_list(kv, BELOW, arena, &items, &count, &first, &err));
    CHECK_INT(count, 0);
    CHECK(first > 0);

    WORKS(tdm_kv_put(kv, BELOW "b", "two \"quoted\" \\ \n and ünïcode", 0, &err));
    WORKS(tdm_kv_put(kv, BELOW "a", "", 0, &err));
    WORKS(tdm_kv_put(kv, BELOW "ab", "three", 0, &err));
    WORKS(tdm_kv_put(kv, "tandem-test-other", "no", 0, &err));
    WORKS(tdm_kv_get(kv, BELOW "b", arena, &item, &err));
    CHECK_TEXT(item.key, BELOW "b");
    CHECK_TEXT(item.value, "two \"quoted\" \\ \n and ünïcode");
    CHECK(item.revision > first);
    CHECK_INT(item.lease, 0);
    WORKS(tdm_kv_list(kv, BELOW, arena, &items, &count, &second, &err));
    CHECK_INT(count, 3);
    if (count == 3) {
        CHECK_TEXT(items[0].key, BELOW "a");
        CHECK_TEXT(items[0].value, "");
        CHECK_TEXT(items[1].key, BELOW "ab");
        CHECK_TEXT(items[2].key, BELOW "b");
        CHECK(items[2].revision == item.revision && items[0].revision > item.revision);
    }
    CHECK(second > first);

    WORKS(tdm_kv_swap(kv, BELOW "c", 0, "new", 0, &revision, &err));
    CHECK(revision > second);
    FAILS(tdm_kv_swap(kv, BELOW "c", 0, "again", 0, NULL, &err), TDM_ERR_EXISTS);
    FAILS(tdm_kv_swap(kv, BELOW "c", revision - 1, "old", 0, NULL, &err), TDM_ERR_EXISTS);
    FAILS(tdm_kv_swap(kv, BELOW "none", revision, "old", 0, NULL, &err), TDM_ERR_EXISTS);
    WORKS(tdm_kv_swap(kv, BELOW "c", revision, "newer", 0, &second, &err));
    WORKS(tdm_kv_get(kv, BELOW "c", arena, &item, &err));
    CHECK_TEXT(item.value, "newer");
    CHECK(item.revision == second && second > revision);

    WORKS(tdm_kv_remove(kv, BELOW "a", &err));
    WORKS(tdm_kv_remove(kv, BELOW "a", &err));
    WORKS(tdm_kv_list(kv, BELOW, arena, &items, &count, NULL, &err));
    CHECK_INT(count, 2);
    WORKS(tdm_kv_get(kv, "tandem-test-other", arena, &item, &err));
    WORKS(tdm_kv_remove(kv, "tandem-test", &err));
    WORKS(tdm_kv_list(kv, "tandem-test", arena, &items, &count, NULL, &err));
    CHECK_INT(count, 0);
    tdm_arena_destroy(arena);
    tdm_kv_close(kv);
}

void exercise_limits(const tdm_kv_options *options)
{
    tdm_kv *kv = exercise_open(options);
    tdm_arena *arena = tdm_arena_create("test");
    tdm_kv_item item;
    char *long_value = calloc(1, TDM_KV_VALUE_BYTES + 1), long_key[TDM_KV_KEY_BYTES + 1] = "";
    if (!arena || !long_value) exit(1);
    memset(long_value, 'v', TDM_KV_VALUE_BYTES);
    memset(long_key, 'k', TDM_KV_KEY_BYTES);
    memcpy(long_key, BELOW, strlen(BELOW));
    FAILS(tdm_kv_put(kv, long_key, "", 0, &err), TDM_ERR_INVALID);
    FAILS(tdm_kv_put(kv, BELOW "long", long_value, 0, &err), TDM_ERR_INVALID);
    long_key[TDM_KV_KEY_BYTES - 1] = '\0';
    long_value[TDM_KV_VALUE_BYTES - 1] = '\0';
    WORKS(tdm_kv_put(kv, long_key, long_value, 0, &err));
    WORKS(tdm_kv_get(kv, long_key, arena, &item, &err));
    CHECK_TEXT(item.value, long_value);
    FAILS(tdm_kv_put(kv, "", "", 0, &err), TDM_ERR_INVALID);
    FAILS(tdm_kv_put(kv, BELOW "\n", "", 0, &err), TDM_ERR_INVALID);
    FAILS(tdm_kv_put(kv, BELOW "\xff", "", 0, &err), TDM_ERR_INVALID);
    FAILS(tdm_kv_put(kv, BELOW "x", "\xc3", 0, &err), TDM_ERR_INVALID);
    FAILS(tdm_kv_remove(kv, "", &err), TDM_ERR_INVALID);
    WORKS(tdm_kv_remove(kv, BELOW, &err));
    free(long_value);
    tdm_arena_destroy(arena);
    tdm_kv_close(kv);
}

/* ---- leases and waiting ---------------------------------------------------------------------- */

uint64_t exercise_revision(tdm_kv *kv)
{
    tdm_arena *arena = tdm_arena_create("test");
    tdm_kv_item *items = NULL;
    size_t count = 0;
    uint64_t revision = 0;
    WORKS(tdm_kv_list(kv, BELOW, arena, &items, &count, &revision, &err));
    tdm_arena_destroy(arena);
    return revision;
}

/* Waits until `key` is removed; false if it still exists after `seconds`. */
static bool exercise_removed(tdm_kv *kv, const char *key, double seconds)
{
    tdm_arena *arena = tdm_arena_create("test");
    uint64_t revision = exercise_revision(kv);
    double deadline = tdm_kv_now(kv) + seconds;
    tdm_kv_item item;
    bool gone = false;
    /* The wait is longer than `seconds`, so only the change itself can end it in time. */
    while (!gone && tdm_kv_now(kv) < deadline) {
        gone = tdm_kv_get(kv, key, arena, &item, NULL) == TDM_ERR_NOT_FOUND;
        if (!gone) WORKS(tdm_kv_wait(kv, BELOW, revision, seconds + 1, &revision, &err));
    }
    tdm_arena_destroy(arena);
    return gone;
}

void exercise_leases(const tdm_kv_options *options)
{
    tdm_kv *kv = exercise_open(options), *other = exercise_open(options);
    tdm_arena *arena = tdm_arena_create("test");
    tdm_kv_item item;
    uint64_t kept = 0, left = 0, given = 0;
    WORKS(tdm_kv_remove(kv, BELOW, &err));
    FAILS(tdm_kv_lease(kv, 0, &kept, &err), TDM_ERR_RANGE);
    WORKS(tdm_kv_lease(kv, 100, &kept, &err));
    WORKS(tdm_kv_lease(kv, 100, &given, &err));
    WORKS(tdm_kv_put(kv, BELOW "kept", "k", kept, &err));
    WORKS(tdm_kv_put(kv, BELOW "given", "g", given, &err));
    WORKS(tdm_kv_lease(kv, 3, &left, &err)); /* the next four calls take less than that */
    WORKS(tdm_kv_put(kv, BELOW "left/1", "l", left, &err));
    WORKS(tdm_kv_swap(kv, BELOW "left/2", 0, "l", left, NULL, &err));
    WORKS(tdm_kv_put(kv, BELOW "moved", "m", left, &err));
    WORKS(tdm_kv_put(kv, BELOW "moved", "m", 0, &err));
    CHECK(kept != 0 && left != 0 && given != 0 && kept != left && left != given);
    WORKS(tdm_kv_get(kv, BELOW "kept", arena, &item, &err));
    CHECK(item.lease == kept);
    WORKS(tdm_kv_keep(kv, kept, &err));
    WORKS(tdm_kv_release(kv, given, &err));
    FAILS(tdm_kv_get(other, BELOW "given", arena, &item, &err), TDM_ERR_NOT_FOUND);
    WORKS(tdm_kv_release(kv, given, &err));
    FAILS(tdm_kv_keep(kv, given, &err), TDM_ERR_NOT_FOUND);
    FAILS(tdm_kv_put(kv, BELOW "late", "g", given, &err), TDM_ERR_NOT_FOUND);
    CHECK(exercise_removed(other, BELOW "left/1", 60));
    FAILS(tdm_kv_get(other, BELOW "left/2", arena, &item, &err), TDM_ERR_NOT_FOUND);
    FAILS(tdm_kv_keep(kv, left, &err), TDM_ERR_NOT_FOUND);
    WORKS(tdm_kv_get(other, BELOW "moved", arena, &item, &err));
    WORKS(tdm_kv_keep(kv, kept, &err));
    WORKS(tdm_kv_get(other, BELOW "kept", arena, &item, &err));
    WORKS(tdm_kv_release(kv, kept, &err));
    WORKS(tdm_kv_remove(kv, BELOW, &err));
    tdm_arena_destroy(arena);
    tdm_kv_close(other);
    tdm_kv_close(kv);
}

/* Responds to each change of "ping" by a change of "pong". */
static void *exercise_respond(void *user)
{
    exercise_writer *w = user;
    tdm_kv *kv = exercise_open(w->options);
    tdm_arena *arena = tdm_arena_create("test");
    uint64_t revision = 1, answered = 0;
    double deadline = tdm_kv_now(kv) + EXERCISE_S;
    for (int round = 0; round < w->rounds && tdm_kv_now(kv) < deadline;) {
        tdm_kv_item item;
        tdm_arena_reset(arena);
        if (tdm_kv_get(kv, BELOW "ping", arena, &item, NULL) == TDM_OK &&
            item.revision != answered) {
            answered = item.revision;
            round++;
            if (tdm_kv_put(kv, BELOW "pong", item.value, 0, NULL) != TDM_OK) w->failures++;
        } else if (tdm_kv_wait(kv, BELOW "ping", revision, 5, &revision, NULL) != TDM_OK) {
            w->failures++;
        }
    }
    tdm_arena_destroy(arena);
    tdm_kv_close(kv);
    return NULL;
}

void exercise_waits(const tdm_kv_options *options, int rounds)
{
    tdm_kv *kv = exercise_open(options);
    tdm_arena *arena = tdm_arena_create("test");
    WORKS(tdm_kv_remove(kv, BELOW, &err));
    uint64_t revision = exercise_revision(kv), before = revision, now = 0;
    WORKS(tdm_kv_wait(kv, BELOW, revision, 0.05, &now, &err));
    CHECK(now >= revision);
    WORKS(tdm_kv_put(kv, BELOW "x", "1", 0, &err));
    WORKS(tdm_kv_remove(kv, BELOW, &err));
    revision = exercise_revision(kv);
    double began = tdm_kv_now(kv);
    WORKS(tdm_kv_wait(kv, BELOW, revision - 1, 30, &now, &err)); /* a removal is a change */
    WORKS(tdm_kv_wait(kv, BELOW, before, 30, &now, &err));
    CHECK(tdm_kv_now(kv) - began < 25 && now >= revision);

    exercise_writer writer = {.options = options, .rounds = rounds};
    pthread_t thread;
    if (pthread_create(&thread, NULL, exercise_respond, &writer) != 0) exit(1);
    double deadline = tdm_kv_now(kv) + EXERCISE_S;
    for (int round = 0; round < rounds; round++) {
        char text[32];
        tdm_kv_item item;
        bool answered = false;
        snprintf(text, sizeof(text), "%d", round);
        WORKS(tdm_kv_put(kv, BELOW "ping", text, 0, &err));
        while (!answered && tdm_kv_now(kv) < deadline) {
            tdm_arena_reset(arena);
            answered = tdm_kv_get(kv, BELOW "pong", arena, &item, NULL) == TDM_OK &&
                       strcmp(item.value, text) == 0;
            if (!answered) WORKS(tdm_kv_wait(kv, BELOW "pong", revision, 5, &revision, &err));
        }
        CHECK(answered);
    }
    pthread_join(thread, NULL);
    CHECK_INT(writer.failures, 0);
    printf("     %d changes answered in %.3f s\n", rounds,
           tdm_kv_now(kv) - (deadline - EXERCISE_S));
    WORKS(tdm_kv_remove(kv, BELOW, &err));
    tdm_arena_destroy(arena);
    tdm_kv_close(kv);
}

/* ---- several processes ----------------------------------------------------------------------- */

/* Adds one to a number by compare-and-swap, until that has succeeded `times` times. */
static int exercise_count_up(const tdm_kv_options *options, int times)
{
    tdm_kv *kv = exercise_open(options);
    tdm_arena *arena = tdm_arena_create("test");
    double deadline = tdm_kv_now(kv) + EXERCISE_S;
    while (times > 0 && tdm_kv_now(kv) < deadline) {
        tdm_kv_item item = {.value = "0"};
        char text[32];
        tdm_arena_reset(arena);
        tdm_status status = tdm_kv_get(kv, BELOW "count", arena, &item, NULL);
        if (status != TDM_OK && status != TDM_ERR_NOT_FOUND) break;
        snprintf(text, sizeof(text), "%ld", strtol(item.value, NULL, 10) + 1);
        status = tdm_kv_swap(kv, BELOW "count", item.revision, text, 0, NULL, NULL);
        if (status == TDM_OK)
            times--;
        else if (status != TDM_ERR_EXISTS)
            break;
    }
    tdm_arena_destroy(arena);
    tdm_kv_close(kv);
    return times > 0;
}

void exercise_race(const tdm_kv_options *options, int processes, int times)
{
    tdm_kv *kv = exercise_open(options);
    WORKS(tdm_kv_remove(kv, BELOW, &err));
    fflush(NULL);
    for (int i = 0; i < processes; i++) {
        pid_t child = fork();
        if (child < 0) exit(1);
        if (child == 0) _exit(exercise_count_up(options, times));
    }
    for (int i = 0; i < processes; i++) {
        int status = 0;
        CHECK(wait(&status) > 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    tdm_arena *arena = tdm_arena_create("test");
    tdm_kv_item item = {.value = ""};
    WORKS(tdm_kv_get(kv, BELOW "count", arena, &item, &err));
    CHECK_INT(strtol(item.value, NULL, 10), processes * times);
    WORKS(tdm_kv_remove(kv, BELOW, &err));
    tdm_arena_destroy(arena);
    tdm_kv_close(kv);
}
