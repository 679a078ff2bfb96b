/*
 * kv_test.c: the local store, used by processes that are killed with signals.
 *
 * First the exercise that all stores must pass. Then the failures of a file that processes share:
 * SIGKILL at any instruction (hundreds of times, while other processes use the store), SIGSTOP
 * while holding the lock, and a file that is full, damaged, removed, from before a reboot, or of
 * another user. Some tests change the file directly (kv_local.h), to create states that would take
 * years.
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

static char path[128], url[160];
static tdm_kv_options options;

static void name_store(void)
{
    snprintf(path, sizeof(path), "%s", check_path("test.store"));
    snprintf(url, sizeof(url), "local:%s", path);
    options = (tdm_kv_options){.url = url};
}

static void exercise_passes(void)
{
    name_store();
    exercise_keys(&options);
    exercise_limits(&options);
    exercise_leases(&options);
    exercise_waits(&options, ROUNDS);
    exercise_race(&options, 4, RACES);
}

static void stores_are_listed(void)
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

/* ---- the file -------------------------------------------------------------------------------- */

static void file_must_be_private(void)
{
    name_store();
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
    /* The file is removed while a handle is open: the handle must fail, because other processes
     * create a new file. */
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
    CHECK(file && fputs("not a store", file) >= 0 && fclose(file) == 0);
    CHECK_INT(chmod(path, 0600), 0);
    FAILS(tdm_kv_open(&options, &other, &err), TDM_ERR_FORMAT);
}

/* With must_exist, a store is opened but never created. */
static void must_exist_creates_no_file(void)
{
    name_store();
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
}

static tdm__local *inside(tdm_kv *kv)
{
    return (tdm__local *)(void *)kv;
}

static void old_or_foreign_files_are_rejected(void)
{
    name_store();
    tdm_arena *arena = tdm_arena_create("test");
    tdm_kv_item item;
    tdm_kv *kv = exercise_open(&options), *other = NULL;
    WORKS(tdm_kv_put(kv, "a", "1", 0, &err));
    inside(kv)->head->version++;
    FAILS(tdm_kv_open(&options, &other, &err), TDM_ERR_UNSUPPORTED);
    inside(kv)->head->version--;
    /* As after a reboot: the lock is still held by a process that does not exist any more. */
    memcpy(inside(kv)->head->boot, "another", 8);
    memset(&inside(kv)->head->lock, 0x5a, sizeof(inside(kv)->head->lock));
    other = exercise_open(&options);
    FAILS(tdm_kv_get(other, "a", arena, &item, &err), TDM_ERR_NOT_FOUND);
    WORKS(tdm_kv_put(other, "a", "2", 0, &err));
    tdm_kv_close(kv);
    /* Its creator was killed before it finished. */
    atomic_store(&inside(other)->head->magic, 0);
    tdm_kv_close(other);
    other = exercise_open(&options);
    FAILS(tdm_kv_get(other, "a", arena, &item, &err), TDM_ERR_NOT_FOUND);
    atomic_store(&inside(other)->head->magic, 77);
    FAILS(tdm_kv_open(&options, &kv, &err), TDM_ERR_FORMAT);
    tdm_kv_close(other);
    tdm_arena_destroy(arena);
}

static void damaged_logs_are_detected(void)
{
    name_store();
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
}

/* Writes one key repeatedly until the area is full. Only the last record, a small one, is live. */
static void fill_area(tdm_kv *kv)
{
    enum {
        SMALL = 40, /* the record of an empty "fill", */
        REST = 38   /* and the same without the zeros at its end */
    };
    char *value = calloc(1, TDM_KV_VALUE_BYTES);
    if (!value) exit(1);
    for (int i = 0; i < 1000 && inside(kv)->seen.used < TDM__LOCAL_AREA_BYTES - SMALL; i++) {
        uint32_t left = TDM__LOCAL_AREA_BYTES - inside(kv)->seen.used;
        size_t length = left - SMALL - REST; /* leaves space for the empty one only */
        if (left > 60000) length = left > 120000 ? 60000 : 30000;
        if (left < 1000) length = 1000; /* too little to be exact: continue in the other area */
        memset(value, 'f', length);
        value[length] = '\0';
        WORKS(tdm_kv_put(kv, "fill", value, 0, &err));
    }
    free(value);
    WORKS(tdm_kv_put(kv, "fill", "", 0, &err));
}

/* A wait is not ended by a change of another key, nor without a change. */
static void waits_ignore_other_keys(void)
{
    name_store();
    tdm_kv *kv = exercise_open(&options);
    uint64_t revision = exercise_revision(kv), now = 0;
    for (int i = 0; i < 2; i++) {
        double began = tdm_kv_now(kv);
        WORKS(tdm_kv_wait(kv, "key", revision, 0.3, &now, &err));
        CHECK(tdm_kv_now(kv) - began > 0.2);
        WORKS(tdm_kv_put(kv, "another", "1", 0, &err));
    }
    WORKS(tdm_kv_put(kv, "key", "1", 0, &err));
    WORKS(tdm_kv_wait(kv, "key", revision, 30, &now, &err));
    CHECK_INT(now, revision + 3);
    tdm_kv_close(kv);
}

/* A process that waits for the removal of a key is woken even if the log with the removal is
 * gone. */
static void forgotten_removals_end_waits(void)
{
    name_store();
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
}

static void full_stores_fail_and_recover(void)
{
    name_store();
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
    /* Existing keys can still be changed and removed, and all keys are found. */
    uint64_t revision = exercise_revision(kv), now = 0;
    for (int i = 0; i < 3 * count; i++) {
        snprintf(key, sizeof(key), "full/%04d", i % count);
        WORKS(tdm_kv_put(i % 2 ? kv : other, key, value, 0, &err));
    }
    tdm_kv_item *items = NULL;
    size_t found = 0;
    WORKS(tdm_kv_list(other, "full/", arena, &items, &found, NULL, &err));
    CHECK_INT(found, count);
    WORKS(tdm_kv_wait(other, "full/", revision, 30, &now,
                      &err)); /* its log is gone, but a change is reported */
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
}

/* ---- processes that stop while they hold the lock -------------------------------------------- */

static pid_t start_holder(bool stop)
{
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) exit(1);
    if (child > 0) return child;
    tdm_kv *kv = exercise_open(&options);
    if (tdm__local_lock(inside(kv), NULL) != TDM_OK) _exit(1);
    memset(inside(kv)->areas[0] + 4096, 0xff, 4096); /* after the end of the log, not committed */
    raise(stop ? SIGSTOP : SIGKILL);
    _exit(2);
}

/* A process with a lease of 0.2 s that it never renews. It computes or sleeps. */
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

/* Whether the key of the owner exists for all of this time. */
static bool owner_key_stays(tdm_kv *kv, double seconds)
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
    for (int i = 0; i < 3000 && !owner_key_stays(kv, 0.001); i++) {
    }
}

/* An owner that does not renew its lease keeps it while the kernel shows that it is only slow. */
static void slow_processes_keep_leases(void)
{
    name_store();
    tdm_kv *kv = exercise_open(&options);
    int status = 0;
    pid_t child = start_owner(true, 30); /* longer than any host is busy */
    await_owner(kv);
    CHECK(owner_key_stays(kv, 1.5));
    CHECK_INT(kill(child, SIGSTOP), 0);
    CHECK(!owner_key_stays(kv, 20));
    CHECK_INT(kill(child, SIGKILL), 0);
    CHECK_INT(waitpid(child, &status, 0), child);

    child = start_owner(true, 30);
    await_owner(kv);
    CHECK_INT(kill(child, SIGKILL), 0); /* dead, although nobody has waited for it yet */
    CHECK(!owner_key_stays(kv, 20));
    CHECK_INT(waitpid(child, &status, 0), child);

    child = start_owner(false, 1); /* it is alive but idle: its lease ends after idle_s */
    await_owner(kv);
    CHECK(owner_key_stays(kv, 0.5));
    CHECK(!owner_key_stays(kv, 20));
    CHECK_INT(kill(child, SIGKILL), 0);
    CHECK_INT(waitpid(child, &status, 0), child);

    child = start_owner(true, 0); /* without idle_s, only the time counts */
    await_owner(kv);
    CHECK(!owner_key_stays(kv, 20));
    CHECK_INT(kill(child, SIGKILL), 0);
    CHECK_INT(waitpid(child, &status, 0), child);

    /* A released lease ends at once, although its owner is alive. */
    tdm_kv_options own = options;
    own.idle_s = 30;
    tdm_kv *other = exercise_open(&own);
    uint64_t lease = 0;
    WORKS(tdm_kv_lease(other, 30, &lease, &err));
    WORKS(tdm_kv_put(other, "owner", "1", lease, &err));
    WORKS(tdm_kv_release(other, lease, &err));
    CHECK(!owner_key_stays(kv, 0.02));
    tdm_kv_close(other);
    tdm_kv_close(kv);
}

static void dead_and_stopped_holders_are_replaced(void)
{
    name_store();
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
    /* A running holder keeps its lock; a waiting process gives up after its timeout. */
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
}

/* ---- kills at given instructions ------------------------------------------------------------- */

/* The change during which a process is killed. PUT_REWRITE moves the log to the other area. */
typedef enum change { RELEASE, REMOVE, PUT, PUT_REWRITE, CHANGE_COUNT } change;

static void change_execute(tdm_kv *kv, change c, uint64_t lease)
{
    if (c == RELEASE)
        (void)tdm_kv_release(kv, lease, NULL);
    else if (c == REMOVE)
        (void)tdm_kv_remove(kv, "pair/", NULL);
    else
        (void)tdm_kv_put(kv, "a", "new and longer", 0, NULL);
}

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
/* With the trap flag, the CPU raises SIGTRAP after each instruction. The process counts them and
 * kills itself. */
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

/* Executes a change in a process that is killed after `max` instructions. A process that completes
 * the change stores the number of its instructions in *shared. */
static void run_steps(change c, uint64_t lease, long max, _Atomic long *shared)
{
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) exit(1);
    if (child == 0) {
        tdm_kv *kv = exercise_open(&options);
        (void)exercise_revision(kv); /* updates the index, and loads the code into memory */
        max_step = max;
        begin_steps();
        change_execute(kv, c, lease);
        end_steps();
        atomic_store(shared, stepped);
        _exit(0);
    }
    int status = 0;
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL);
}

/* The change is complete or has no effect, and the store can be used. */
static void check_change(tdm_kv *kv, change c, uint64_t lease, tdm_arena *arena)
{
    tdm_kv_item item = {.value = ""}, *items = NULL;
    size_t count = 9;
    tdm_arena_reset(arena);
    WORKS(tdm_kv_list(kv, "pair/", arena, &items, &count, NULL, &err));
    CHECK(count == 2 || (count == 0 && c <= REMOVE));
    WORKS(tdm_kv_get(kv, "a", arena, &item, &err));
    CHECK(strcmp(item.value, "old") == 0 ||
          (c >= PUT && strcmp(item.value, "new and longer") == 0));
    WORKS(tdm_kv_get(kv, "b", arena, &item, &err));
    CHECK_TEXT(item.value, "another");
    WORKS(tdm_kv_release(kv, lease, &err)); /* if it still exists */
    WORKS(tdm_kv_list(kv, "pair/", arena, &items, &count, NULL, &err));
    CHECK_INT(count, 0);
}

static void kills_at_instructions(void)
{
    name_store();
    tdm_kv *kv = exercise_open(&options);
    tdm_arena *arena = tdm_arena_create("test");
    _Atomic long *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) exit(1);
    for (int c = 0; c < CHANGE_COUNT; c++) {
        long all = LONG_MAX;
        for (int i = 0; i <= STEPS && all > 0; i++) {
            uint64_t lease = 0;
            WORKS(tdm_kv_put(kv, "a", "old", 0, &err));
            WORKS(tdm_kv_put(kv, "b", "another", 0, &err));
            WORKS(tdm_kv_lease(kv, 600, &lease, &err));
            WORKS(tdm_kv_put(kv, "pair/1", "1", lease, &err));
            WORKS(tdm_kv_put(kv, "pair/2", "2", lease, &err));
            if (c == PUT_REWRITE) fill_area(kv);
            /* The first process completes the change, to count its instructions. */
            long max = i == 0 ? LONG_MAX : all * (2 * i - 1) / (2 * STEPS);
            run_steps((change)c, lease, max, shared);
            if (i == 0) all = atomic_load(shared);
            check_change(kv, (change)c, lease, arena);
        }
        if (all == 0)
            printf("     SKIPPED: this build cannot stop after each instruction\n");
        else
            printf("     change %d: %d kills in %ld instructions\n", c, STEPS, all);
        CHECK(all == 0 || all > 100);
    }
    munmap((void *)shared, sizeof(*shared));
    tdm_arena_destroy(arena);
    tdm_kv_close(kv);
}

/* ---- kills at random times ------------------------------------------------------------------- */

enum { WORKERS = 3 };

/* What the workers have done, in memory that survives them. */
typedef struct known {
    _Atomic uint64_t tried[WORKERS], done[WORKERS];             /* puts of the worker's key */
    _Atomic uint64_t count_tried[WORKERS], count_done[WORKERS]; /* swaps of a shared key */
} known;

/* A text that shows whether it is complete: a number, and a tail that is computed from it. */
static void make_value(uint64_t number, char *out)
{
    size_t tail = number * 7919 % 50000;
    int head = sprintf(out, "%llu ", (unsigned long long)number);
    memset(out + head, 'a' + (int)(number % 26), tail);
    out[(size_t)head + tail] = '\0';
}

static bool value_is_complete(const char *value, uint64_t *number)
{
    char *want = malloc(TDM_KV_VALUE_BYTES);
    *number = strtoull(value, NULL, 10);
    if (!want) exit(1);
    make_value(*number, want);
    bool same = strcmp(want, value) == 0;
    free(want);
    return same;
}

/* On a busy host the lease may have expired before the put. */
static bool put_leased(tdm_kv *kv, const char *key, uint64_t lease)
{
    tdm_status status = tdm_kv_put(kv, key, "1", lease, NULL);
    return status == TDM_OK || status == TDM_ERR_NOT_FOUND;
}

/* Works until it is killed. */
static void worker_main(known *k, int worker, uint32_t seed)
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
    if (child == 0) worker_main(k, worker, seed);
    return child;
}

static const char *find_value(const tdm_kv_item *items, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(items[i].key, key) == 0) return items[i].value;
    return NULL;
}

/* Every acknowledged change is in the store, and every change is complete. */
static void check_store(tdm_kv *kv, known *k, tdm_arena *arena)
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
    CHECK(counted ? value_is_complete(counted, &number) : min == 0);
    /* A swap in progress may be subtracted later, so one for each worker is uncertain. */
    CHECK(number >= min && number <= max + WORKERS);
    for (int i = 0; i < WORKERS; i++) {
        char key[32];
        number = 0;
        snprintf(key, sizeof(key), "own/%d", i);
        const char *own = find_value(items, count, key);
        CHECK(own ? value_is_complete(own, &number) : done[i] == 0);
        CHECK(number >= done[i] && number <= atomic_load(&k->tried[i]));
        snprintf(key, sizeof(key), "pair/%d/2", i);
        bool second = find_value(items, count, key) != NULL;
        snprintf(key, sizeof(key), "pair/%d/1", i);
        CHECK(!second ||
              find_value(items, count, key)); /* the keys of a lease are removed together */
    }
}

static uint64_t swaps_of(known *k)
{
    uint64_t swaps = 0;
    for (int i = 0; i < WORKERS; i++) swaps += atomic_load(&k->count_done[i]);
    return swaps;
}

/* Waits until the workers have completed more swaps than there were kills, so that a kill can
 * interrupt a change. */
static void await_work(known *k, int killed)
{
    for (int i = 0; i < 200000 && swaps_of(k) <= (uint64_t)killed; i++)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static void kills_at_random_times(void)
{
    name_store();
    known *k = mmap(NULL, sizeof(*k), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (k == MAP_FAILED) exit(1);
    tdm_kv *kv = exercise_open(&options);
    tdm_arena *arena = tdm_arena_create("test");
    pid_t workers[WORKERS];
    uint32_t seed = 1;
    for (int i = 0; i < WORKERS; i++) workers[i] = start_worker(k, i, (uint32_t)i);
    int killed = 0;
    double began = tdm_kv_now(kv);
    /* On a busy host, fewer. */
    for (; killed < KILLS && (killed < MIN_KILLS || tdm_kv_now(kv) - began < 8); killed++) {
        seed = seed * 1664525 + 1013904223;
        await_work(k, killed);
        nanosleep(&(struct timespec){.tv_nsec = (long)(seed >> 10)}, NULL); /* up to 4 ms */
        int victim = (int)(seed >> 8) % WORKERS, status = 0;
        kill(workers[victim], SIGKILL);
        CHECK_INT(waitpid(workers[victim], &status, 0), workers[victim]);
        CHECK(WIFSIGNALED(status));
        check_store(kv, k, arena);
        workers[victim] = start_worker(k, victim, seed);
    }
    for (int i = 0; i < WORKERS; i++) {
        int status = 0;
        kill(workers[i], SIGKILL);
        CHECK_INT(waitpid(workers[i], &status, 0), workers[i]);
        CHECK(WIFSIGNALED(status));
    }
    tdm_kv *fresh = exercise_open(&options);
    check_store(fresh, k, arena);
    check_store(kv, k, arena);
    /* The leases of dead processes expire, and that ends waits. */
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
}

static const check_test tests[] = {
    CHECK_TEST(exercise_passes),
    CHECK_TEST(stores_are_listed),
    CHECK_TEST(file_must_be_private),
    CHECK_TEST(must_exist_creates_no_file),
    CHECK_TEST(old_or_foreign_files_are_rejected),
    CHECK_TEST(damaged_logs_are_detected),
    CHECK_TEST(full_stores_fail_and_recover),
    CHECK_TEST(slow_processes_keep_leases),
    CHECK_TEST(dead_and_stopped_holders_are_replaced),
    CHECK_TEST(kills_at_random_times),
    CHECK_TEST(waits_ignore_other_keys),
    CHECK_TEST(forgotten_removals_end_waits),
    CHECK_TEST(kills_at_instructions),
};
CHECK_MAIN(tests)
