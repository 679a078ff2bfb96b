/*
 * kv_test.c: the local store, against real processes that are really killed.
 *
 * The exercise that all stores must pass; then what only a file that processes share can suffer:
 * SIGKILL at any instruction (hundreds of them, while others continue), SIGSTOP inside of the lock, a full
 * file, a file from before the system was started, of somebody else, damaged, or removed. Some of it
 * reaches into the file (kv_local.h) to bring about what would take years.
 */
#include "kv/kv_local.h"

#include "cluster/kv_exercise.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { KILLS = 60, MIN_KILLS = 20, STEPS = 6, ROUNDS = 100, RACES = 100 };
#else
enum { KILLS = 300, MIN_KILLS = 60, STEPS = 24, ROUNDS = 500, RACES = 300 };
#endif

static char directory[64], path[128], url[160];
static tdm_kv_options options;

static void begin(void)
{
    snprintf(directory, sizeof(directory), "/tmp/tandem-kv-XXXXXX");
    CHECK(mkdtemp(directory) != NULL);
    snprintf(path, sizeof(path), "%s/test.store", directory);
    snprintf(url, sizeof(url), "local:%s", path);
    options = (tdm_kv_options){.url = url};
}

static void end(void)
{
    unlink(path);
    CHECK_INT(rmdir(directory), 0);
}

static void the_exercise(void)
{
    begin();
    exercise_keys(&options);
    exercise_limits(&options);
    exercise_leases(&options);
    exercise_waits(&options, ROUNDS);
    exercise_race(&options, 4, RACES);
    end();
}

static void what_there_is(void)
{
    tdm_kv_info info;
    tdm_kv *kv = NULL;
    CHECK(tdm_kv_at(0, &info));
    CHECK_TEXT(info.name, "local");
    CHECK(info.usable && info.about[0]);
    CHECK(!tdm_kv_at(100, &info));
    const char *const wrong[] = {"", "local", "local:", "locals:/tmp/x", "redis:localhost"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        tdm_kv_options o = {.url = wrong[i]};
        FAILS(tdm_kv_open(&o, &kv, &err), TDM_ERR_INVALID);
    }
    tdm_kv_options none = {.url = NULL}, nowhere = {.url = "local:/nowhere/at/all"};
    FAILS(tdm_kv_open(&none, &kv, &err), TDM_ERR_INVALID);
    FAILS(tdm_kv_open(&nowhere, &kv, &err), TDM_ERR_NOT_FOUND);
}

/* ---- the file --------------------------------------------------------------------------------- */

static void whose_file(void)
{
    begin();
    tdm_kv *kv = exercise_open(&options);
    struct stat about;
    CHECK_INT(stat(path, &about), 0);
    CHECK_INT(about.st_mode & 0777, 0600);
    CHECK_INT(chmod(path, 0640), 0);
    tdm_kv *other = NULL;
    FAILS(tdm_kv_open(&options, &other, &err), TDM_ERR_INVALID);
    CHECK_INT(chmod(path, 0600), 0);
    if (geteuid() == 0) {
        CHECK_INT(chown(path, 12345, 12345), 0);
        FAILS(tdm_kv_open(&options, &other, &err), TDM_ERR_INVALID);
        CHECK_INT(chown(path, 0, 0), 0);
    }
    /* Removed while in use: its users must not continue beside those that create it again. */
    WORKS(tdm_kv_put(kv, "a", "1", 0, &err));
    CHECK_INT(unlink(path), 0);
    FAILS(tdm_kv_put(kv, "a", "2", 0, &err), TDM_ERR_IO);
    other = exercise_open(&options);
    FAILS(tdm_kv_keep(kv, 1, &err), TDM_ERR_IO);
    tdm_kv_close(other);
    tdm_kv_close(kv);
    CHECK_INT(unlink(path), 0);
    CHECK_INT(symlink("elsewhere", path), 0);
    CHECK(tdm_kv_open(&options, &other, NULL) != TDM_OK);
    CHECK_INT(unlink(path), 0);
    FILE *file = fopen(path, "we");
    CHECK(file && fputs("no store", file) >= 0 && fclose(file) == 0);
    CHECK_INT(chmod(path, 0600), 0);
    FAILS(tdm_kv_open(&options, &other, &err), TDM_ERR_FORMAT);
    end();
}

/* A store that must exist is opened, and never made. */
static void no_file_is_made(void)
{
    begin();
    tdm_kv *kv = NULL, *other = NULL;
    tdm_kv_options reader = {.url = url, .must_exist = true};
    struct stat about;
    FAILS(tdm_kv_open(&reader, &kv, &err), TDM_ERR_NOT_FOUND);
    CHECK(stat(path, &about) != 0);
    other = exercise_open(&options);
    kv = exercise_open(&reader);
    WORKS(tdm_kv_put(kv, "a", "1", 0, &err));
    tdm_kv_close(kv);
    tdm_kv_close(other);
    end();
}

static tdm__local *inside(tdm_kv *kv)
{
    return (tdm__local *)(void *)kv;
}

static void old_or_foreign_files(void)
{
    begin();
    tdm_arena *arena = tdm_arena_create("test");
    tdm_kv_item item;
    tdm_kv *kv = exercise_open(&options), *other = NULL;
    WORKS(tdm_kv_put(kv, "a", "1", 0, &err));
    inside(kv)->head->version++;
    FAILS(tdm_kv_open(&options, &other, &err), TDM_ERR_UNSUPPORTED);
    inside(kv)->head->version--;
    /* As after a system start: its lock is held by a process that no longer exists. */
    memcpy(inside(kv)->head->boot, "another", 8);
    memset(&inside(kv)->head->lock, 0x5a, sizeof(inside(kv)->head->lock));
    other = exercise_open(&options);
    FAILS(tdm_kv_get(other, "a", arena, &item, &err), TDM_ERR_NOT_FOUND);
    WORKS(tdm_kv_put(other, "a", "2", 0, &err));
    tdm_kv_close(kv);
    /* Made only by half. */
    atomic_store(&inside(other)->head->magic, 0);
    tdm_kv_close(other);
    other = exercise_open(&options);
    FAILS(tdm_kv_get(other, "a", arena, &item, &err), TDM_ERR_NOT_FOUND);
    atomic_store(&inside(other)->head->magic, 77);
    FAILS(tdm_kv_open(&options, &kv, &err), TDM_ERR_FORMAT);
    tdm_kv_close(other);
    tdm_arena_destroy(arena);
    end();
}

static void damaged_logs(void)
{
    begin();
    tdm_arena *arena = tdm_arena_create("test");
    tdm_kv_item item;
    tdm_kv *kv = exercise_open(&options);
    WORKS(tdm_kv_put(kv, "a", "1", 0, &err));
    WORKS(tdm_kv_put(kv, "b", "2", 0, &err));
    tdm__local_record *first = (tdm__local_record *)(void *)inside(kv)->areas[0], good = *first;
    tdm__local_record bad[6] = {good, good, good, good, good, good};
    bad[0].bytes = 0;
    bad[1].bytes = UINT32_MAX;
    bad[2].key_length = 0;
    bad[3].key_length = TDM_KV_KEY_BYTES;
    bad[4].value_length = UINT32_MAX;
    bad[5].value_length = 0;
    for (size_t i = 0; i < 6; i++) {
        *first = bad[i];
        tdm_kv *reader = exercise_open(&options);
        FAILS(tdm_kv_get(reader, "b", arena, &item, &err), TDM_ERR_FORMAT);
        FAILS(tdm_kv_put(reader, "b", "3", 0, &err), TDM_ERR_FORMAT);
        tdm_kv_close(reader);
    }
    *first = good;
    WORKS(tdm_kv_get(kv, "b", arena, &item, &err));
    CHECK_TEXT(item.value, "2");
    tdm_kv_close(kv);
    tdm_arena_destroy(arena);
    end();
}

/* Puts one key again and again until the area has not a byte left; what counts of it is small. */
static void fill_area(tdm_kv *kv)
{
    enum {
        SMALL = 40,
        REST = 38
    }; /* the record of an empty "fill", whole, and without its zeros */
    char *value = calloc(1, TDM_KV_VALUE_BYTES);
    if (!value) exit(1);
    for (int i = 0; i < 1000 && inside(kv)->seen.used < TDM__LOCAL_AREA_BYTES - SMALL; i++) {
        uint32_t left = TDM__LOCAL_AREA_BYTES - inside(kv)->seen.used;
        size_t length = left - SMALL - REST; /* after which there is room for the empty one alone */
        if (left > 60000) length = left > 120000 ? 60000 : 30000;
        if (left < 1000) length = 1000; /* no telling how that comes out: on to the other area */
        memset(value, 'f', length);
        value[length] = '\0';
        WORKS(tdm_kv_put(kv, "fill", value, 0, &err));
    }
    free(value);
    WORKS(tdm_kv_put(kv, "fill", "", 0, &err));
}

/* What changes beside wakes nobody, and neither does nothing. */
static void quiet_waits(void)
{
    begin();
    tdm_kv *kv = exercise_open(&options);
    uint64_t revision = exercise_revision(kv), now = 0;
    for (int i = 0; i < 2; i++) {
        double began = tdm_kv_now(kv);
        WORKS(tdm_kv_wait(kv, "key", revision, 0.3, &now, &err));
        CHECK(tdm_kv_now(kv) - began > 0.2);
        WORKS(tdm_kv_put(kv, "beside", "1", 0, &err));
    }
    WORKS(tdm_kv_put(kv, "key", "1", 0, &err));
    WORKS(tdm_kv_wait(kv, "key", revision, 30, &now, &err));
    CHECK_INT(now, revision + 3);
    tdm_kv_close(kv);
    end();
}

/* A key is removed, and the log with the removal is gone: waiters must be notified. */
static void forgotten_removals(void)
{
    begin();
    tdm_kv *kv = exercise_open(&options), *other = exercise_open(&options);
    uint64_t now = 0;
    WORKS(tdm_kv_put(kv, "key", "1", 0, &err));
    uint64_t revision = exercise_revision(other);
    WORKS(tdm_kv_remove(kv, "key", &err));
    unsigned area = inside(kv)->seen.area;
    while (inside(kv)->seen.area == area) {
        fill_area(kv);
        WORKS(tdm_kv_put(kv, "fill", "more", 0, &err));
    }
    double began = tdm_kv_now(kv);
    WORKS(tdm_kv_wait(other, "key", revision, 30, &now, &err));
    CHECK(tdm_kv_now(kv) - began < 20);
    CHECK(now == exercise_revision(kv));
    tdm_kv_close(other);
    tdm_kv_close(kv);
    end();
}

static void full_stores(void)
{
    begin();
    tdm_kv *kv = exercise_open(&options), *other = exercise_open(&options);
    tdm_arena *arena = tdm_arena_create("test");
    char *value = calloc(1, TDM_KV_VALUE_BYTES), key[32];
    if (!value) exit(1);
    memset(value, 'v', TDM_KV_VALUE_BYTES - 1);
    int count = 0;
    tdm_status status = TDM_OK;
    tdm_error full = {0};
    while (status == TDM_OK && count < 1000) {
        snprintf(key, sizeof(key), "full/%04d", count);
        status = tdm_kv_put(kv, key, value, 0, &full);
        if (status == TDM_OK) count++;
    }
    CHECK_INT(status, TDM_ERR_NO_SPACE);
    CHECK_HAS(full.message, "full");
    CHECK_INT(count, (TDM__LOCAL_AREA_BYTES) / (TDM_KV_VALUE_BYTES + 48));
    /* What is there can be changed and removed all the same, and all is found again. */
    uint64_t revision = exercise_revision(kv), now = 0;
    for (int i = 0; i < 3 * count; i++) {
        snprintf(key, sizeof(key), "full/%04d", i % count);
        WORKS(tdm_kv_put(i % 2 ? kv : other, key, value, 0, &err));
    }
    tdm_kv_item *items = NULL;
    size_t found = 0;
    WORKS(tdm_kv_list(other, "full/", arena, &items, &found, NULL, &err));
    CHECK_INT(found, count);
    WORKS(tdm_kv_wait(other, "full/", revision, 30, &now, &err)); /* although its log is gone */
    CHECK_INT(now, revision + 3 * (uint64_t)count);
    WORKS(tdm_kv_remove(other, "full/0000", &err));
    WORKS(tdm_kv_put(kv, "full/new", value, 0, &err));
    WORKS(tdm_kv_remove(kv, "full/", &err));
    WORKS(tdm_kv_list(other, "", arena, &items, &found, NULL, &err));
    CHECK_INT(found, 0);
    uint64_t lease = 0;
    for (count = 0; tdm_kv_lease(kv, 3600, &lease, NULL) == TDM_OK; count++) {
    }
    CHECK_INT(count, TDM__LOCAL_LEASES);
    FAILS(tdm_kv_lease(kv, 1, &lease, &err), TDM_ERR_NO_SPACE);
    WORKS(tdm_kv_release(other, lease, &err));
    WORKS(tdm_kv_lease(kv, 1, &lease, &err));
    free(value);
    tdm_arena_destroy(arena);
    tdm_kv_close(other);
    tdm_kv_close(kv);
    end();
}

/* ---- processes that stop in the worst place --------------------------------------------------- */

static pid_t start_holder(bool stop)
{
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) exit(1);
    if (child > 0) return child;
    tdm_kv *kv = exercise_open(&options);
    if (tdm__local_lock(inside(kv), NULL) != TDM_OK) _exit(1);
    memset(inside(kv)->areas[0] + 4096, 0xff, 4096); /* behind the end, and never committed */
    raise(stop ? SIGSTOP : SIGKILL);
    _exit(2);
}

/* A process with a lease of 0.2 s, which it never keeps: it computes, or sleeps. */
static pid_t start_owner(bool computes, double idle_s)
{
    fflush(NULL);
    pid_t child = fork();
    if (child != 0) return child;
    tdm_kv_options own = options;
    own.idle_s = idle_s;
    tdm_kv *kv = exercise_open(&own);
    uint64_t lease = 0;
    if (tdm_kv_lease(kv, 0.2, &lease, NULL) != TDM_OK ||
        tdm_kv_put(kv, "owner", "1", lease, NULL) != TDM_OK)
        _exit(1);
    for (volatile uint64_t turns = 0;; turns++)
        if (!computes) pause();
}

/* Whether its key is there at the end of that time, or goes before. */
static bool stays_for(tdm_kv *kv, double seconds)
{
    tdm_arena *arena = tdm_arena_create("owner");
    double until_s = tdm_clock_s() + seconds;
    tdm_kv_item item;
    bool is_there = true;
    while (is_there && tdm_clock_s() < until_s) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        is_there = tdm_kv_get(kv, "owner", arena, &item, NULL) == TDM_OK;
        tdm_arena_reset(arena);
    }
    tdm_arena_destroy(arena);
    return is_there;
}

static void await_owner(tdm_kv *kv)
{
    for (int i = 0; i < 3000 && !stays_for(kv, 0.001); i++) {
    }
}

/* The kernel says of an owner that does not keep its lease whether it is only slow. */
static void leases_of_slow_processes(void)
{
    begin();
    tdm_kv *kv = exercise_open(&options);
    int status = 0;
    pid_t child = start_owner(true, 30); /* no machine is so busy */
    await_owner(kv);
    CHECK(stays_for(kv, 1.5));
    CHECK_INT(kill(child, SIGSTOP), 0);
    CHECK(!stays_for(kv, 20));
    CHECK_INT(kill(child, SIGKILL), 0);
    CHECK_INT(waitpid(child, &status, 0), child);

    child = start_owner(true, 30);
    await_owner(kv);
    CHECK_INT(kill(child, SIGKILL), 0); /* and it is not waited for: it is dead all the same */
    CHECK(!stays_for(kv, 20));
    CHECK_INT(waitpid(child, &status, 0), child);

    child = start_owner(false, 1); /* it lives, and does nothing: it gets its time, and no more */
    await_owner(kv);
    CHECK(stays_for(kv, 0.5));
    CHECK(!stays_for(kv, 20));
    CHECK_INT(kill(child, SIGKILL), 0);
    CHECK_INT(waitpid(child, &status, 0), child);

    child = start_owner(true, 0); /* without idle_s a lease ends by its time alone */
    await_owner(kv);
    CHECK(!stays_for(kv, 20));
    CHECK_INT(kill(child, SIGKILL), 0);
    CHECK_INT(waitpid(child, &status, 0), child);

    /* One that is given back is gone at once, though its owner lives. */
    tdm_kv_options own = options;
    own.idle_s = 30;
    tdm_kv *other = exercise_open(&own);
    uint64_t lease = 0;
    WORKS(tdm_kv_lease(other, 30, &lease, &err));
    WORKS(tdm_kv_put(other, "owner", "1", lease, &err));
    WORKS(tdm_kv_release(other, lease, &err));
    CHECK(!stays_for(kv, 0.02));
    tdm_kv_close(other);
    tdm_kv_close(kv);
    end();
}

static void dead_and_stopped_holders(void)
{
    begin();
    tdm_kv *kv = exercise_open(&options);
    WORKS(tdm_kv_put(kv, "a", "1", 0, &err));
    for (int stop = 0; stop < 2; stop++) {
        pid_t child = start_holder(stop);
        siginfo_t info;
        CHECK_INT(waitid(P_PID, (id_t)child, &info, WSTOPPED | WEXITED | WNOWAIT), 0);
        CHECK_INT(info.si_code, stop ? CLD_STOPPED : CLD_KILLED);
        WORKS(tdm_kv_put(kv, "a", "2", 0, &err));
        int status = 0;
        CHECK_INT(waitpid(child, &status, 0), child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    CHECK_INT(exercise_revision(kv), 4);
    /* One that runs keeps its lock; who waits for it gives up in time. */
    CHECK_INT(tdm__local_lock(inside(kv), NULL), TDM_OK);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        tdm_kv_options hasty = options;
        hasty.timeout_s = 0.2;
        tdm_kv *own = exercise_open(&hasty);
        _exit(tdm_kv_put(own, "a", "3", 0, NULL) == TDM_ERR_TIMEOUT ? 0 : 1);
    }
    int status = 0;
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    tdm__local_unlock(inside(kv));
    WORKS(tdm_kv_put(kv, "a", "4", 0, &err));
    tdm_kv_close(kv);
    end();
}

/* ---- a kill at each instruction --------------------------------------------------------------- */

typedef enum decision { RELEASE, REMOVE, PUT, PUT_ANEW, DEED_COUNT } decision;

static void do_it(tdm_kv *kv, decision d, uint64_t lease)
{
    if (d == RELEASE)
        (void)tdm_kv_release(kv, lease, NULL);
    else if (d == REMOVE)
        (void)tdm_kv_remove(kv, "pair/", NULL);
    else
        (void)tdm_kv_put(kv, "a", "new and longer", 0, NULL);
}

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
/* The processor itself can stop a program behind each instruction; the program counts, and kills itself. */
static volatile long stepped, max_step;

static void count_step(int signal)
{
    (void)signal;
    if (++stepped >= max_step) kill(getpid(), SIGKILL);
}

static void begin_steps(void)
{
    signal(SIGTRAP, count_step);
    __asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "cc", "memory");
}

static void end_steps(void)
{
    __asm__ volatile("pushfq; andq $~0x100, (%%rsp); popfq" ::: "cc", "memory");
}
#else
static long stepped, max_step;
static void begin_steps(void)
{
}
static void end_steps(void)
{
}
#endif

/* Lets a process execute that many instructions, and kills it there. `shared` has how many it executed. */
static void step(decision d, uint64_t lease, long max, _Atomic long *shared)
{
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) exit(1);
    if (child == 0) {
        tdm_kv *kv = exercise_open(&options);
        (void)exercise_revision(kv); /* up to date, and all of the code in memory */
        max_step = max;
        begin_steps();
        do_it(kv, d, lease);
        end_steps();
        atomic_store(shared, stepped);
        _exit(0);
    }
    int status = 0;
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL);
}

/* The state is that before or after the call, never in between; and the store continues to work. */
static void check_deed(tdm_kv *kv, decision d, uint64_t lease, tdm_arena *arena)
{
    tdm_kv_item item = {.value = ""}, *items = NULL;
    size_t count = 9;
    tdm_arena_reset(arena);
    WORKS(tdm_kv_list(kv, "pair/", arena, &items, &count, NULL, &err));
    CHECK(count == 2 || (count == 0 && d <= REMOVE));
    WORKS(tdm_kv_get(kv, "a", arena, &item, &err));
    CHECK(strcmp(item.value, "old") == 0 ||
          (d >= PUT && strcmp(item.value, "new and longer") == 0));
    WORKS(tdm_kv_get(kv, "b", arena, &item, &err));
    CHECK_TEXT(item.value, "beside");
    WORKS(tdm_kv_release(kv, lease, &err)); /* what is left of it, if anything */
    WORKS(tdm_kv_list(kv, "pair/", arena, &items, &count, NULL, &err));
    CHECK_INT(count, 0);
}

static void kills_by_instruction(void)
{
    begin();
    tdm_kv *kv = exercise_open(&options);
    tdm_arena *arena = tdm_arena_create("test");
    _Atomic long *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) exit(1);
    for (int d = 0; d < DEED_COUNT; d++) {
        long all = LONG_MAX;
        for (int i = 0; i <= STEPS && all > 0; i++) {
            uint64_t lease = 0;
            WORKS(tdm_kv_put(kv, "a", "old", 0, &err));
            WORKS(tdm_kv_put(kv, "b", "beside", 0, &err));
            WORKS(tdm_kv_lease(kv, 600, &lease, &err));
            WORKS(tdm_kv_put(kv, "pair/1", "1", lease, &err));
            WORKS(tdm_kv_put(kv, "pair/2", "2", lease, &err));
            if (d == PUT_ANEW) fill_area(kv);
            /* First all of it, to see how long it is; then parts. */
            step((decision)d, lease, i == 0 ? LONG_MAX : all * (2 * i - 1) / (2 * STEPS), shared);
            if (i == 0) all = atomic_load(shared);
            check_deed(kv, (decision)d, lease, arena);
        }
        if (all == 0)
            printf("     SKIPPED: no way to stop at each instruction here\n");
        else
            printf("     deed %d: %d kills in %ld instructions\n", d, STEPS, all);
        CHECK(all == 0 || all > 100);
    }
    munmap((void *)shared, sizeof(*shared));
    tdm_arena_destroy(arena);
    tdm_kv_close(kv);
    end();
}

/* ---- kills ------------------------------------------------------------------------------------ */

enum { WORKERS = 3 };

/* What workers know that they have done, where a kill does not reach. */
typedef struct known {
    _Atomic uint64_t tried[WORKERS], done[WORKERS];             /* puts of a worker's own key */
    _Atomic uint64_t count_tried[WORKERS], count_done[WORKERS]; /* swaps of a common one */
} known;

/* A text of which one sees whether it is whole: a number, and a tail that follows from it. */
static void make_value(uint64_t number, char *out)
{
    size_t tail = number * 7919 % 50000;
    int head = sprintf(out, "%llu ", (unsigned long long)number);
    memset(out + head, 'a' + (int)(number % 26), tail);
    out[(size_t)head + tail] = '\0';
}

static bool is_whole(const char *value, uint64_t *number)
{
    char *want = malloc(TDM_KV_VALUE_BYTES);
    *number = strtoull(value, NULL, 10);
    if (!want) exit(1);
    make_value(*number, want);
    bool same = strcmp(want, value) == 0;
    free(want);
    return same;
}

/* On a busy machine the lease may have ended meanwhile: nobody promised otherwise. */
static bool put_leased(tdm_kv *kv, const char *key, uint64_t lease)
{
    tdm_status status = tdm_kv_put(kv, key, "1", lease, NULL);
    return status == TDM_OK || status == TDM_ERR_NOT_FOUND;
}

/* Works until it is killed. */
static void work(known *k, int worker, uint32_t seed)
{
    tdm_kv *kv = exercise_open(&options);
    tdm_arena *arena = tdm_arena_create("test");
    char own[32], first[32], second[32], *value = malloc(TDM_KV_VALUE_BYTES);
    uint64_t lease = 0;
    snprintf(own, sizeof(own), "own/%d", worker);
    snprintf(first, sizeof(first), "pair/%d/1", worker);
    snprintf(second, sizeof(second), "pair/%d/2", worker);
    for (bool fine = value != NULL; fine;) {
        tdm_arena_reset(arena);
        uint64_t number = atomic_load(&k->tried[worker]) + 1;
        make_value(number, value);
        atomic_store(&k->tried[worker], number);
        fine = tdm_kv_put(kv, own, value, 0, NULL) == TDM_OK;
        atomic_store(&k->done[worker], number);

        tdm_kv_item item = {.value = "0"};
        (void)tdm_kv_get(kv, "count", arena, &item, NULL);
        make_value(strtoull(item.value, NULL, 10) + 1, value);
        atomic_fetch_add(&k->count_tried[worker], 1);
        if (tdm_kv_swap(kv, "count", item.revision, value, 0, NULL, NULL) == TDM_OK)
            atomic_fetch_add(&k->count_done[worker], 1);
        else
            atomic_fetch_sub(&k->count_tried[worker], 1);

        seed = seed * 1664525 + 1013904223;
        fine = fine && tdm_kv_lease(kv, 0.5, &lease, NULL) == TDM_OK &&
               put_leased(kv, first, lease) && put_leased(kv, second, lease);
        if (seed >> 30 > 0) fine = fine && tdm_kv_release(kv, lease, NULL) == TDM_OK;
    }
    _exit(1);
}

static pid_t start_worker(known *k, int worker, uint32_t seed)
{
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) exit(1);
    if (child == 0) work(k, worker, seed);
    return child;
}

static const char *find_value(const tdm_kv_item *items, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(items[i].key, key) == 0) return items[i].value;
    return NULL;
}

/* All that was acknowledged is there, and nothing is there by half. */
static void check_whole(tdm_kv *kv, known *k, tdm_arena *arena)
{
    tdm_kv_item *items = NULL;
    size_t count = 0;
    uint64_t min = 0, max = 0, number = 0;
    tdm_arena_reset(arena);
    for (int i = 0; i < WORKERS; i++) min += atomic_load(&k->count_done[i]);
    uint64_t done[WORKERS];
    for (int i = 0; i < WORKERS; i++) done[i] = atomic_load(&k->done[i]);
    WORKS(tdm_kv_list(kv, "", arena, &items, &count, NULL, &err));
    for (int i = 0; i < WORKERS; i++) max += atomic_load(&k->count_tried[i]);
    const char *counted = find_value(items, count, "count");
    CHECK(counted ? is_whole(counted, &number) : min == 0);
    /* A swap that is on its way may be counted back below, so one for each worker is in doubt. */
    CHECK(number >= min && number <= max + WORKERS);
    for (int i = 0; i < WORKERS; i++) {
        char key[32];
        number = 0;
        snprintf(key, sizeof(key), "own/%d", i);
        const char *own = find_value(items, count, key);
        CHECK(own ? is_whole(own, &number) : done[i] == 0);
        CHECK(number >= done[i] && number <= atomic_load(&k->tried[i]));
        snprintf(key, sizeof(key), "pair/%d/2", i);
        bool second = find_value(items, count, key) != NULL;
        snprintf(key, sizeof(key), "pair/%d/1", i);
        CHECK(!second || find_value(items, count, key)); /* they go together */
    }
}

static uint64_t swaps_of(known *k)
{
    uint64_t swaps = 0;
    for (int i = 0; i < WORKERS; i++) swaps += atomic_load(&k->count_done[i]);
    return swaps;
}

/* Until the workers have done more than there were kills: else there is nothing to tear. */
static void await_work(known *k, int killed)
{
    for (int i = 0; i < 200000 && swaps_of(k) <= (uint64_t)killed; i++)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static void kills(void)
{
    begin();
    known *k = mmap(NULL, sizeof(*k), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (k == MAP_FAILED) exit(1);
    tdm_kv *kv = exercise_open(&options);
    tdm_arena *arena = tdm_arena_create("test");
    pid_t workers[WORKERS];
    uint32_t seed = 1;
    for (int i = 0; i < WORKERS; i++) workers[i] = start_worker(k, i, (uint32_t)i);
    int killed = 0;
    double began = tdm_kv_now(kv);
    /* On a machine that has better things to do, fewer. */
    for (; killed < KILLS && (killed < MIN_KILLS || tdm_kv_now(kv) - began < 8); killed++) {
        seed = seed * 1664525 + 1013904223;
        await_work(k, killed);
        nanosleep(&(struct timespec){.tv_nsec = (long)(seed >> 10)}, NULL); /* up to 4 ms */
        int victim = (int)(seed >> 8) % WORKERS, status = 0;
        kill(workers[victim], SIGKILL);
        CHECK_INT(waitpid(workers[victim], &status, 0), workers[victim]);
        CHECK(WIFSIGNALED(status));
        check_whole(kv, k, arena);
        workers[victim] = start_worker(k, victim, seed);
    }
    for (int i = 0; i < WORKERS; i++) {
        int status = 0;
        kill(workers[i], SIGKILL);
        CHECK_INT(waitpid(workers[i], &status, 0), workers[i]);
        CHECK(WIFSIGNALED(status));
    }
    tdm_kv *fresh = exercise_open(&options);
    check_whole(fresh, k, arena);
    check_whole(kv, k, arena);
    /* The leases of the dead end, and wake who waits. */
    uint64_t revision = exercise_revision(kv);
    tdm_kv_item *items = NULL;
    size_t count = 1;
    for (int i = 0; i < 100 && count > 0; i++) {
        WORKS(tdm_kv_list(fresh, "pair/", arena, &items, &count, NULL, &err));
        if (count > 0) WORKS(tdm_kv_wait(fresh, "pair/", revision, 0.2, &revision, &err));
    }
    CHECK_INT(count, 0);
    printf("     %d kills, %llu swaps, revision %llu\n", killed, (unsigned long long)swaps_of(k),
           (unsigned long long)revision);
    CHECK(swaps_of(k) >= (uint64_t)killed);
    tdm_kv_close(fresh);
    tdm_kv_close(kv);
    tdm_arena_destroy(arena);
    munmap(k, sizeof(*k));
    end();
}

static const check_test tests[] = {
    CHECK_TEST(the_exercise),
    CHECK_TEST(what_there_is),
    CHECK_TEST(whose_file),
    CHECK_TEST(no_file_is_made),
    CHECK_TEST(old_or_foreign_files),
    CHECK_TEST(damaged_logs),
    CHECK_TEST(full_stores),
    CHECK_TEST(leases_of_slow_processes),
    CHECK_TEST(dead_and_stopped_holders),
    CHECK_TEST(kills),
    CHECK_TEST(quiet_waits),
    CHECK_TEST(forgotten_removals),
    CHECK_TEST(kills_by_instruction),
};
CHECK_MAIN(tests)
