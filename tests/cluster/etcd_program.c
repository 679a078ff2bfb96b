/*
 * etcd_program.c: the etcd store with real etcd servers, which etcd_test.sh starts and kills.
 *
 *     etcd_program exercise URLS          the tests that every store must pass
 *     etcd_program survive URLS PID       uses the store while the server PID is killed
 *     etcd_program silence URLS           no server can respond: every call must fail in time
 *     etcd_program users URLS PID         users, and their tokens after the only server has restarted
 *     etcd_program refused URLS TEXT      opening or using the store must fail with this text
 *
 * The environment variables STORE_USER, STORE_PASSWORD, STORE_CA, STORE_CERTIFICATE and STORE_KEY
 * have the values of etcd.user and the related job keys.
 */
#include "cluster/kv_exercise.h"

#include <signal.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { ROUNDS = 5, PROCESSES = 2, RACES = 5, SWAPS = 10 };
#else
enum { ROUNDS = 10, PROCESSES = 3, RACES = 10, SWAPS = 30 };
#endif

static void nap(double seconds)
{
    nanosleep(&(struct timespec){.tv_sec = (time_t)seconds,
                                 .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)},
              NULL);
}

static void exercise(const tdm_kv_options *options)
{
    exercise_keys(options);
    exercise_limits(options);
    exercise_leases(options);
    exercise_waits(options, ROUNDS);
    exercise_race(options, PROCESSES, RACES);
}

/* ---- a leader dies --------------------------------------------------------------------------- */

typedef struct tally {
    long done, unsure; /* swaps */
    double worst_s;    /* longest time between two calls that succeeded */
} tally;

/* Adds one to the number in "count". False: it is unknown whether the swap was executed. */
static bool add_one(tdm_kv *kv, tdm_arena *arena)
{
    tdm_kv_item item = {.value = "0"};
    char text[32];
    tdm_arena_reset(arena);
    tdm_error err = {0};
    tdm_status status = tdm_kv_get(kv, BELOW "count", arena, &item, &err);
    if (status != TDM_OK && status != TDM_ERR_NOT_FOUND) {
        fprintf(stderr, "get: %s\n", err.message);
        CHECK_INT(status, TDM_OK);
        return false;
    }
    snprintf(text, sizeof(text), "%ld", strtol(item.value, NULL, 10) + 1);
    status = tdm_kv_swap(kv, BELOW "count", item.revision, text, 0, NULL, &err);
    if (status != TDM_OK) {
        printf("     an uncertain swap: %s\n", err.message);
        CHECK_INT(status, TDM_ERR_TIMEOUT); /* no other process swaps */
    }
    return status == TDM_OK;
}

static void survive(const tdm_kv_options *options, pid_t victim)
{
    tdm_kv *kv = exercise_open(options);
    tdm_arena *arena = tdm_arena_create("test");
    uint64_t lease = 0;
    WORKS(tdm_kv_remove(kv, BELOW, &err));
    WORKS(tdm_kv_lease(kv, 100, &lease, &err));
    WORKS(tdm_kv_put(kv, BELOW "alive", "1", lease, &err));
    tally t = {0};
    double began = tdm_kv_now(kv), last = began;
    bool killed = false;
    while (t.done < 2 * SWAPS && tdm_kv_now(kv) - began < 90) {
        if (!killed && t.done >= SWAPS) {
            printf("     %ld swaps; the leader is killed now\n", t.done);
            CHECK_INT(kill(victim, SIGKILL), 0);
            killed = true;
        }
        if (add_one(kv, arena)) {
            double now = tdm_kv_now(kv);
            if (now - last > t.worst_s) t.worst_s = now - last;
            last = now;
            t.done++;
        } else {
            t.unsure++;
        }
        WORKS(tdm_kv_keep(kv, lease, &err));
        nap(0.02);
    }
    printf("     %ld swaps, %ld uncertain, at most %.2f s between two\n", t.done, t.unsure,
           t.worst_s);
    CHECK(t.done >= 2 * SWAPS);
    tdm_kv_item item = {.value = "0"};
    WORKS(tdm_kv_get(kv, BELOW "count", arena, &item, &err));
    long count = strtol(item.value, NULL, 10);
    CHECK(count >= t.done && count <= t.done + t.unsure);
    WORKS(tdm_kv_get(kv, BELOW "alive", arena, &item, &err));
    WORKS(tdm_kv_release(kv, lease, &err));
    FAILS(tdm_kv_get(kv, BELOW "alive", arena, &item, &err), TDM_ERR_NOT_FOUND);
    exercise_waits(options, 5);
    tdm_arena_destroy(arena);
    tdm_kv_close(kv);
}

/* ---- no server responds ---------------------------------------------------------------------- */

static void silence(const tdm_kv_options *given)
{
    tdm_kv_options options = *given;
    options.timeout_s = 1;
    tdm_kv *kv = exercise_open(&options);
    tdm_arena *arena = tdm_arena_create("test");
    tdm_kv_item item;
    uint64_t now = 0;
    double began = tdm_kv_now(kv);
    FAILS(tdm_kv_get(kv, BELOW "x", arena, &item, &err), TDM_ERR_TIMEOUT);
    FAILS(tdm_kv_put(kv, BELOW "x", "1", 0, &err), TDM_ERR_TIMEOUT);
    FAILS(tdm_kv_swap(kv, BELOW "x", 0, "1", 0, NULL, &err), TDM_ERR_TIMEOUT);
    FAILS(tdm_kv_keep(kv, 1, &err), TDM_ERR_TIMEOUT);
    FAILS(tdm_kv_wait(kv, BELOW, 1000000, 0.5, &now, &err), TDM_ERR_TIMEOUT);
    CHECK(tdm_kv_now(kv) - began < 30);
    tdm_arena_destroy(arena);
    tdm_kv_close(kv);
}

/* ---- users ----------------------------------------------------------------------------------- */

/* etcd_test.sh restarts the server when it is killed; the server has lost its tokens then. */
static void users(const tdm_kv_options *given, pid_t server)
{
    tdm_kv_options options = *given;
    options.timeout_s = 60;
    tdm_kv *kv = exercise_open(&options);
    tdm_arena *arena = tdm_arena_create("test");
    tdm_kv_item item;
    uint64_t revision = 0;
    WORKS(tdm_kv_put(kv, BELOW "x", "1", 0, &err));
    tdm_error denied = {0};
    CHECK_INT(tdm_kv_put(kv, "elsewhere", "1", 0, &denied), TDM_ERR_INVALID);
    CHECK_HAS(denied.message, "permission denied");
    CHECK_INT(kill(server, SIGKILL), 0);
    WORKS(tdm_kv_put(kv, BELOW "x", "2", 0, &err));
    WORKS(tdm_kv_get(kv, BELOW "x", arena, &item, &err));
    CHECK_TEXT(item.value, "2");
    revision = exercise_revision(kv);
    WORKS(tdm_kv_wait(kv, BELOW, revision - 1, 10, &revision, &err));
    tdm_kv_options wrong = options;
    wrong.password = "guessed";
    tdm_kv *other = exercise_open(&wrong);
    CHECK_INT(tdm_kv_get(other, BELOW "x", arena, &item, &denied), TDM_ERR_INVALID);
    CHECK_HAS(denied.message, "password");
    tdm_kv_close(other);
    wrong.user = NULL;
    other = exercise_open(&wrong);
    CHECK_INT(tdm_kv_get(other, BELOW "x", arena, &item, &denied), TDM_ERR_INVALID);
    CHECK_HAS(denied.message, "etcd.user");
    tdm_kv_close(other);
    tdm_arena_destroy(arena);
    tdm_kv_close(kv);
}

static void refused(const tdm_kv_options *given, const char *text)
{
    tdm_kv_options options = *given;
    tdm_kv *kv = NULL;
    tdm_error err = {0};
    options.timeout_s = strcmp(text, "no libcurl") == 0 ? 0.2 : 6;
    tdm_status status = tdm_kv_open(&options, &kv, &err);
    if (status == TDM_OK) status = tdm_kv_put(kv, BELOW "x", "1", 0, &err);
    CHECK(status != TDM_OK);
    CHECK_HAS(err.message, text);
    tdm_kv_close(kv);
}

int main(int argc, char **argv)
{
    const char *what = argc > 2 ? argv[1] : "", *more = argc > 3 ? argv[3] : "0";
    tdm_kv_options options = {.timeout_s = 30, /* enough for an election and for slow disks */
                              .user = getenv("STORE_USER"),
                              .password = getenv("STORE_PASSWORD"),
                              .ca = getenv("STORE_CA"),
                              .certificate = getenv("STORE_CERTIFICATE"),
                              .key = getenv("STORE_KEY")};
    char url[2000];
    snprintf(url, sizeof(url), "etcd:%s", argc > 2 ? argv[2] : "");
    options.url = url;
    pid_t process = (pid_t)strtol(more, NULL, 10);
    if (strcmp(what, "exercise") == 0)
        exercise(&options);
    else if (strcmp(what, "survive") == 0 && process > 1)
        survive(&options, process);
    else if (strcmp(what, "silence") == 0)
        silence(&options);
    else if (strcmp(what, "users") == 0 && process > 1)
        users(&options, process);
    else if (strcmp(what, "refused") == 0)
        refused(&options, more);
    else
        return 2;
    printf("%s %s: %d checks, %d failed\n", check_failures ? "FAIL" : "ok  ", what, check_count,
           check_failures);
    return check_failures > 0;
}
