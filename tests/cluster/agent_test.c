/*
 * agent_test.c: agents with real workers, which are killed.
 *
 *     agent_test [PART]     the tests; it starts agent_test --worker MODE as workers
 *
 * An agent runs in a separate process, with a local store in a temporary directory. The tests check what other
 * processes can observe: the store, and which processes are alive. Every wait has a deadline of many seconds;
 * speed is not tested.
 */
#include "check.h"
#include "kv/kv.h"
#include "os/os.h"

#include <tandem/cluster.h>
#include <tandem/elastic.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WAIT_S = 30, MAX_WORKERS = 16 };
#define SESSION "trial"

static char self[4096];
static const char *directory;

/* ---- a worker -------------------------------------------------------------------------------- */

static volatile sig_atomic_t asked;

static void on_signal(int number)
{
    asked = number;
}

static void put_own(const char *what, const char *value)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_kv_options options = {.url = getenv("TANDEM_STORE")};
    tdm_kv *kv = NULL;
    snprintf(key, sizeof(key), "tandem/%s/%s/%s", getenv("TANDEM_SESSION"), what,
             getenv("TANDEM_MEMBER"));
    if (tdm_kv_open(&options, &kv, NULL) != TDM_OK || tdm_kv_put(kv, key, value, 0, NULL) != TDM_OK)
        exit(99);
    tdm_kv_close(kv);
}

/* The record has the fields that `tandem ps` shows. */
static void put_record(void)
{
    char value[200];
    snprintf(value, sizeof(value),
             "{\"host\":\"%s\",\"slot\":%s,\"pid\":%d,\"phase\":\"training\"}",
             getenv("TANDEM_HOST"), getenv("TANDEM_SLOT"), (int)getpid());
    put_own("members", value);
}

/* Writes more lines than its agent can buffer. */
static void talk(const tdm_worker *worker)
{
    char line[1200];
    int fd = tdm_worker_log_forward_fd(worker);
    for (int said = 1; said <= 2000 && !asked; said++) {
        int length = snprintf(line, sizeof(line), "{\"message\":\"said %d\",\"long\":\"%0900d\"}\n",
                              said, 0);
        while (!asked && write(fd, line, (size_t)length) != length) usleep(1000);
    }
}

static int be_worker(const char *mode)
{
    tdm_worker *worker = NULL;
    tdm_error err = {0};
    if (tdm_worker_open(&worker, &err) != TDM_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 98;
    }
    signal(SIGTERM, strcmp(mode, "stubborn") == 0 ? SIG_IGN : on_signal);
    put_record();
    tdm_worker_tell(worker, 41);
    if (strcmp(mode, "die") == 0) raise(SIGKILL);
    if (strcmp(mode, "talk") == 0) talk(worker);
    if (strcmp(mode, "crash") == 0) {
        fprintf(stderr, "something is broken\n");
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    if (strcmp(mode, "fail") == 0) {
        fprintf(stderr, "tandem: the data is bad\n");
        tdm_worker_close(worker);
        return 4;
    }
    for (double until_s = tdm_clock_s() + 4 * WAIT_S; !asked && tdm_clock_s() < until_s;)
        usleep(5000);
    tdm_worker_close(worker);
    return asked ? TDM_WORKER_STOPPED : 97;
}

/* ---- the store, as other processes see it ---------------------------------------------------- */

static tdm_kv *store;
static char url[128];

static void open_store(void)
{
    static int number;
    tdm_kv_options options = {.url = url};
    tdm_error err = {0};
    snprintf(url, sizeof(url), "local:%s/%d.store", directory, number++);
    CHECK_INT(tdm_kv_open(&options, &store, &err), TDM_OK);
    CHECK_INT(tdm_kv_put(store, "tandem/" SESSION "/about",
                         "{\"name\":\"trial\",\"expected\":2,\"min\":1,\"max\":4}", 0, &err),
              TDM_OK);
}

static void close_store(void)
{
    tdm_kv_close(store);
    store = NULL;
}

/* Lists the keys below this prefix; the strings are allocated from the arena. */
static size_t list(const char *below, tdm_arena *arena, tdm_kv_item **items)
{
    char prefix[TDM_KV_KEY_BYTES];
    size_t count = 0;
    snprintf(prefix, sizeof(prefix), "tandem/" SESSION "/%s", below);
    CHECK_INT(tdm_kv_list(store, prefix, arena, items, &count, NULL, NULL), TDM_OK);
    return count;
}

/* Waits until there are `count` keys. */
static bool await(const char *below, size_t count)
{
    double until_s = tdm_clock_s() + WAIT_S;
    size_t found = 0;
    do {
        tdm_kv_item *items;
        tdm_arena *arena = tdm_arena_create("list");
        found = list(below, arena, &items);
        tdm_arena_destroy(arena);
        if (found >= count) return true;
        usleep(2000);
    } while (tdm_clock_s() < until_s);
    fprintf(stderr, "waited in vain for %zu of %s: there are %zu\n", count, below, found);
    return false;
}

static bool look(tdm_arena *arena, tdm_session_view *view)
{
    tdm_error err = {0};
    bool good = tdm_session_look(store, SESSION, arena, view, &err) == TDM_OK;
    CHECK(good);
    return good;
}

/* The process of the member at this index of the list; 0: none. */
static pid_t worker_pid(size_t index)
{
    tdm_session_view view;
    tdm_arena *arena = tdm_arena_create("view");
    pid_t pid = look(arena, &view) && index < view.member_count ? (pid_t)view.members[index].pid
                                                                : 0;
    tdm_arena_destroy(arena);
    return pid;
}

static bool lives(pid_t pid)
{
    return pid > 0 && kill(pid, 0) == 0;
}

static bool await_death(pid_t pid)
{
    double until_s = tdm_clock_s() + WAIT_S;
    while (lives(pid) && tdm_clock_s() < until_s) {
        /* its parent is now this process, because its agent has ended */
        waitpid(pid, NULL, WNOHANG);
        usleep(2000);
    }
    return !lives(pid);
}

/* ---- the agent ------------------------------------------------------------------------------- */

typedef struct outcome {
    tdm_status status;
    tdm_agent_result result;
} outcome;

typedef struct agent {
    pid_t pid;
    int pipe;
} agent;

static agent start_agent(const char *mode, tdm_agent_options options)
{
    char logs[64];
    const char *const program[] = {self, "--worker", mode, NULL};
    int ends[2] = {-1, -1};
    snprintf(logs, sizeof(logs), "%s/logs", directory);
    CHECK_INT(pipe2(ends, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        outcome out = {0};
        tdm_error err = {0};
        options.kv.url = url;
        options.session = SESSION;
        options.host = options.host ? options.host : "here";
        options.program = program;
        options.logs = logs;
        if (options.backoff_s == 0) options.backoff_s = 0.01;
        out.status = tdm_agent_run(&options, &out.result, &err);
        if (out.status != TDM_OK) fprintf(stderr, "agent: %s\n", err.message);
        _exit(write(ends[1], &out, sizeof(out)) == sizeof(out) ? 0 : 1);
    }
    close(ends[1]);
    return (agent){.pid = pid, .pipe = ends[0]};
}

/* Waits for its exit. An agent that does not exit is killed, and the checks fail. */
static outcome finish(agent a)
{
    outcome out = {.status = TDM_ERR_TIMEOUT};
    double until_s = tdm_clock_s() + WAIT_S;
    while (waitpid(a.pid, NULL, WNOHANG) == 0) {
        if (tdm_clock_s() > until_s) {
            kill(a.pid, SIGKILL);
            waitpid(a.pid, NULL, 0);
            break;
        }
        usleep(2000);
    }
    ssize_t got = read(a.pipe, &out, sizeof(out));
    if (got != sizeof(out)) out.status = TDM_ERR_TIMEOUT;
    close(a.pipe);
    return out;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void a_killed_worker_is_reported_and_replaced(void)
{
    open_store();
    agent a = start_agent("sleep", (tdm_agent_options){.count = 2});
    CHECK(await("members/", 2));
    CHECK(await("hosts/here", 1));
    pid_t first = worker_pid(0), other = worker_pid(1);
    CHECK(lives(first) && lives(other));
    CHECK_INT(kill(first, SIGKILL), 0);
    CHECK(await("dead/", 1));
    CHECK(await("members/", 3)); /* the records of this test have no lease */
    tdm_kv_item *items;
    tdm_arena *arena = tdm_arena_create("list");
    if (list("dead/", arena, &items) == 1) {
        CHECK_HAS(items[0].value, "killed by signal 9");
        CHECK_HAS(items[0].value, "\"at\":");
        CHECK_HAS(items[0].key, "here.");
    }
    tdm_arena_destroy(arena);
    CHECK(lives(other));
    CHECK_INT(kill(a.pid, SIGTERM), 0); /* they end, and are not replaced */
    outcome out = finish(a);
    CHECK_INT(out.status, TDM_OK);
    CHECK_INT(out.result.restarts, 1);
    CHECK_INT(out.result.exit_code, TDM_WORKER_STOPPED);
    CHECK(!lives(other));
    CHECK(await("wishes/stop", 1));
    close_store();
}

static void too_many_deaths_end_it(void)
{
    open_store();
    outcome out = finish(start_agent("die", (tdm_agent_options){.count = 1, .restarts = 3}));
    CHECK_INT(out.status, TDM_OK);
    CHECK_INT(out.result.restarts, 3);
    CHECK(await("dead/", 4));
    tdm_session_view view;
    tdm_arena *arena = tdm_arena_create("view");
    if (look(arena, &view)) {
        CHECK(view.ended);
        CHECK_INT(view.status, TDM_ERR_PEER_FAILED);
        CHECK_HAS(view.message, "elastic.restarts");
    }
    tdm_arena_destroy(arena);
    close_store();
}

static void a_crash_that_repeats_is_a_bug(void)
{
    open_store();
    outcome out = finish(start_agent("crash", (tdm_agent_options){.count = 1, .restarts = 100}));
    CHECK_INT(out.status, TDM_OK);
    CHECK_INT(out.result.restarts, 2);
    tdm_session_view view;
    tdm_kv_item *items;
    tdm_arena *arena = tdm_arena_create("view");
    CHECK_INT(list("dead/", arena, &items), 3);
    if (look(arena, &view)) {
        CHECK_INT(view.status, TDM_ERR_INTERNAL);
        CHECK_HAS(view.message, "in step 42");
        CHECK_HAS(view.message, "signal 11");
        CHECK_HAS(view.message, "something is broken");
    }
    tdm_arena_destroy(arena);
    close_store();
}

static void an_error_of_the_job_ends_it_for_all(void)
{
    open_store();
    outcome out = finish(start_agent("fail", (tdm_agent_options){.count = 2}));
    CHECK_INT(out.status, TDM_OK);
    CHECK_INT(out.result.restarts, 0);
    CHECK_INT(out.result.exit_code, 4);
    tdm_session_view view;
    tdm_arena *arena = tdm_arena_create("view");
    if (look(arena, &view)) {
        CHECK_INT(view.status, TDM_ERR_JOB_MISMATCH);
        CHECK_TEXT(view.message, "the data is bad");
    }
    tdm_arena_destroy(arena);
    close_store();
}

/* The workers continue; the next agent finds their shared memory, and assigns no slot twice. */
static void workers_outlive_their_agent(void)
{
    open_store();
    agent a = start_agent("sleep", (tdm_agent_options){.count = 2});
    CHECK(await("members/", 2));
    pid_t pids[2] = {worker_pid(0), worker_pid(1)};
    CHECK_INT(kill(a.pid, SIGKILL), 0);
    CHECK_INT(finish(a).status, TDM_ERR_TIMEOUT);
    usleep(50000);
    CHECK(lives(pids[0]) && lives(pids[1]));
    agent next = start_agent("sleep", (tdm_agent_options){.count = 1, .guest = true});
    CHECK(await("members/", 3));
    tdm_session_view view;
    tdm_arena *arena = tdm_arena_create("view");
    bool seen[3] = {false};
    if (look(arena, &view))
        for (size_t i = 0; i < view.member_count; i++)
            if (view.members[i].slot >= 0 && view.members[i].slot < 3)
                seen[view.members[i].slot] = true;
    CHECK(seen[0] && seen[1] && seen[2]);
    tdm_arena_destroy(arena);
    /* requests through the store that the workers of a guest leave */
    CHECK_INT(kill(next.pid, SIGTERM), 0);
    CHECK(await("wishes/leave/", 1));
    usleep(1200000);                       /* two signals within a second count as one */
    CHECK_INT(kill(next.pid, SIGTERM), 0); /* the second signal kills it */
    CHECK_INT(finish(next).status, TDM_OK);
    CHECK(lives(pids[0]) && lives(pids[1]));
    for (int i = 0; i < 2; i++) {
        kill(pids[i], SIGKILL);
        CHECK(await_death(pids[i]));
    }
    close_store();
}

static void a_worker_that_does_not_end_is_killed(void)
{
    open_store();
    agent a = start_agent("stubborn", (tdm_agent_options){.count = 2, .grace_s = 0.3});
    CHECK(await("members/", 2));
    pid_t pid = worker_pid(0);
    CHECK_INT(tdm_session_request(store, SESSION, "stop", "a test", NULL), TDM_OK);
    CHECK_INT(finish(a).status, TDM_OK);
    CHECK(!lives(pid));
    tdm_session_view view;
    tdm_arena *arena = tdm_arena_create("view");
    if (look(arena, &view)) {
        CHECK(view.ended && view.stopping);
        CHECK_INT(view.status, TDM_ERR_INTERRUPTED);
    }
    tdm_arena_destroy(arena);
    close_store();
}

/* A stop request ends the agent's pause before a restart. */
static void a_planned_restart_does_not_delay_a_stop(void)
{
    open_store();
    agent a = start_agent("die", (tdm_agent_options){.count = 1, .backoff_s = 20, .grace_s = 60});
    CHECK(await("dead/", 2)); /* the first restart has no delay */
    usleep(200 * 1000);
    double asked_s = tdm_clock_s();
    CHECK_INT(kill(a.pid, SIGTERM), 0);
    CHECK_INT(finish(a).status, TDM_OK);
    CHECK(tdm_clock_s() - asked_s < 10);
    close_store();
}

static void put_epoch_of(const char *host, int number, const char *const *ids, size_t count)
{
    tdm_str text = TDM_STR_INIT;
    tdm_str_addf(&text, "{\"number\":%d,\"members\":[", number);
    for (size_t i = 0; i < count; i++)
        tdm_str_addf(&text, "%s{\"id\":\"%s\",\"host\":\"%s\"}", i ? "," : "", ids[i], host);
    tdm_str_add(&text, "]}");
    CHECK_INT(tdm_kv_put(store, "tandem/" SESSION "/epoch", tdm_str_text(&text), 0, NULL), TDM_OK);
    tdm_str_release(&text);
}

static void put_epoch(int number, const char *const *ids, size_t count)
{
    put_epoch_of("here", number, ids, count);
}

/* The others continue without a stopped worker, and a replacement in another slot takes its place. The agent
 * does not kill the stopped worker before the end. Then it cannot handle SIGTERM, and is killed after the grace
 * period. */
static void a_fenced_worker_is_replaced(void)
{
    open_store();
    agent a = start_agent("sleep", (tdm_agent_options){.count = 2, .grace_s = 1});
    CHECK(await("members/", 2));
    tdm_session_view view;
    tdm_arena *arena = tdm_arena_create("view");
    pid_t stopped = 0;
    if (look(arena, &view)) {
        const char *ids[2] = {view.members[0].id, view.members[1].id};
        stopped = (pid_t)view.members[1].pid;
        CHECK_INT(kill(stopped, SIGSTOP), 0);
        /* The agent must have observed it in an epoch before the epoch without it. */
        size_t count = 2;
        for (unsigned pause_ms = 300; count < 3 && pause_ms < 3000; pause_ms *= 2) {
            tdm_kv_item *items;
            put_epoch(1, ids, 2);
            usleep(1000 * pause_ms);
            put_epoch(2, ids, 1);
            usleep(1000 * pause_ms);
            count = list("members/", arena, &items);
        }
    }
    CHECK(await("members/", 3));
    CHECK(lives(stopped));
    tdm_arena_reset(arena);
    if (look(arena, &view) && view.member_count == 3) {
        CHECK_INT(view.rank_count, 1);
        CHECK_INT(view.members[0].rank, 0);
        CHECK(view.members[1].slot != view.members[2].slot);
    }
    tdm_arena_destroy(arena);
    CHECK_INT(tdm_session_end(store, SESSION, TDM_OK, "the run has ended", "a test", NULL), TDM_OK);
    CHECK_INT(kill(a.pid, SIGTERM), 0);
    CHECK_INT(finish(a).status, TDM_OK);
    CHECK(!lives(stopped));
    close_store();
}

/* ---- one log for all hosts ------------------------------------------------------------------- */

/* The text of the run's log, from the arena; empty if it does not exist. */
static const char *read_log(tdm_arena *arena)
{
    char path[64];
    tdm_file_bytes bytes;
    snprintf(path, sizeof(path), "%s/log.jsonl", directory);
    if (tdm_file_read(path, 1 << 24, &bytes, NULL) != TDM_OK) return "";
    const char *text = tdm_arena_strndup(arena, (const char *)bytes.data, bytes.count);
    tdm_file_bytes_release(&bytes);
    return text ? text : "";
}

static bool await_log(const char *word)
{
    double until_s = tdm_clock_s() + WAIT_S;
    bool found = false;
    while (!found && tdm_clock_s() < until_s) {
        tdm_arena *arena = tdm_arena_create("log");
        found = strstr(read_log(arena), word) != NULL;
        tdm_arena_destroy(arena);
        if (!found) usleep(5000);
    }
    if (!found) fprintf(stderr, "waited in vain for %s in the log\n", word);
    return found;
}

static void put(const char *key, const char *value)
{
    char whole[TDM_KV_KEY_BYTES];
    snprintf(whole, sizeof(whole), "tandem/" SESSION "%s", key);
    CHECK_INT(tdm_kv_put(store, whole, value, 0, NULL), TDM_OK);
}

/* Agents of two hosts, whose workers write many lines; rank 0 is on the first host. The lines of the
 * other host arrive in the log there, dropped lines are counted, and invalid lines are left out. */
static void lines_of_all_hosts_are_in_one_log(void)
{
    char path[64], worker_id[TDM_MEMBER_ID_BYTES] = "here.0.1";
    const char *const ids[] = {worker_id};
    open_store();
    snprintf(path, sizeof(path), "%s/log.jsonl", directory);
    CHECK_INT(tdm_file_replace(path, "", 0, NULL), TDM_OK);
    put("/run", directory);
    put("+lines/cheat/00000000000000000001", "no line\n{\"message\":\"whole\"}\n{\"torn\":");
    put_epoch_of("here", 1, ids, 1);
    agent here = start_agent("sleep", (tdm_agent_options){.count = 1});
    agent there = start_agent("talk", (tdm_agent_options){.count = 1, .host = "there"});
    CHECK(await_log("{\"message\":\"whole\"}"));
    CHECK(await_log("worker there.0."));
    CHECK(await_log("\"said 1\""));
    CHECK(await_log("log lines of host there were dropped"));
    CHECK_INT(tdm_session_end(store, SESSION, TDM_OK, "the run has ended", "a test", NULL), TDM_OK);
    CHECK_INT(kill(there.pid, SIGTERM), 0);
    CHECK_INT(kill(here.pid, SIGTERM), 0);
    CHECK_INT(finish(there).status, TDM_OK);
    CHECK_INT(finish(here).status, TDM_OK);
    tdm_arena *arena = tdm_arena_create("log");
    const char *log = read_log(arena);
    CHECK(strstr(log, "worker here.0.") && strstr(log, "ended after step 41"));
    CHECK(!strstr(log, "no line") && !strstr(log, "torn"));
    for (const char *line = log, *end; (end = strchr(line, '\n')); line = end + 1)
        CHECK(line[0] == '{' && end[-1] == '}');
    tdm_arena_destroy(arena);
    close_store();
}

/* ---- the host -------------------------------------------------------------------------------- */

/* Waits until the host's record contains this word, or does not contain it. */
static bool await_record(const char *word, bool wanted)
{
    double until_s = tdm_clock_s() + WAIT_S;
    bool found = !wanted;
    while (found != wanted && tdm_clock_s() < until_s) {
        tdm_kv_item *items;
        tdm_arena *arena = tdm_arena_create("record");
        found = list("hosts/here", arena, &items) == 1 && strstr(items[0].value, word);
        tdm_arena_destroy(arena);
        usleep(5000);
    }
    return found == wanted;
}

/* A disk of 1 MB that is full at first. */
static void a_full_disk_is_named(void)
{
    char disk[64], path[80];
    static const char bytes[1000000];
    snprintf(disk, sizeof(disk), "%s/disk", directory);
    snprintf(path, sizeof(path), "%s/much", disk);
    CHECK_INT(mkdir(disk, 0700), 0);
    if (mount("none", disk, "tmpfs", 0, "size=1048576") != 0) {
        fprintf(stderr, "SKIPPED: a small disk cannot be mounted here: %s\n", strerror(errno));
        return;
    }
    CHECK_INT(tdm_file_replace(path, bytes, sizeof(bytes), NULL), TDM_OK);
    open_store();
    put("/run", disk);
    agent a = start_agent("sleep", (tdm_agent_options){.count = 1});
    CHECK(await_record("disk nearly full", true));
    CHECK_INT(unlink(path), 0);
    CHECK(await_record("disk nearly full", false));
    CHECK(await_record("\"disk\":1048576", true));
    CHECK_INT(kill(a.pid, SIGTERM), 0);
    CHECK_INT(finish(a).status, TDM_OK);
    CHECK_INT(umount2(disk, MNT_DETACH), 0);
    close_store();
}

/* ---- the runtime directory ------------------------------------------------------------------- */

static void sessions_are_locked_and_removed(void)
{
    char path[128];
    tdm_error err = {0};
    tdm_session_hold one, two;
    tdm_session_place *places;
    size_t count = 99;
    snprintf(path, sizeof(path), "%s/runtime", directory);
    setenv("TANDEM_RUNTIME", path, 1);
    CHECK_INT(tdm_session_hold_init("a b", NULL, "x", &one, &err), TDM_ERR_INVALID);
    CHECK_INT(tdm_session_hold_init("one", NULL, "name: x\n", &one, &err), TDM_OK);
    CHECK_INT(tdm_session_hold_init("one", "local:other", "name: y\n", &two, &err), TDM_OK);
    tdm_arena *arena = tdm_arena_create("list");
    CHECK_INT(tdm_session_list(arena, &places, &count, &err), TDM_OK);
    CHECK_INT(count, 1);
    CHECK_TEXT(count == 1 ? places[0].session : "", "one");
    /* the first error reported is the result */
    CHECK_HAS(count == 1 ? places[0].store : "", "/runtime/one.store");
    tdm_session_hold_release(&one);
    CHECK_INT(tdm_session_list(arena, &places, &count, &err), TDM_OK);
    CHECK_INT(count, 1);
    /* A process that holds the lock, and is killed. */
    pid_t pid = fork();
    if (pid == 0) {
        tdm_session_hold dead;
        if (tdm_session_hold_init("dead", NULL, "name: z\n", &dead, NULL) != TDM_OK) _exit(1);
        kill(getpid(), SIGKILL);
    }
    int wait_status = 0;
    waitpid(pid, &wait_status, 0);
    CHECK(WIFSIGNALED(wait_status));
    snprintf(path, sizeof(path), "%s/runtime/dead.yaml", directory);
    CHECK(tdm_path_exists(path));
    CHECK_INT(tdm_session_list(arena, &places, &count, &err), TDM_OK);
    CHECK_INT(count, 1);
    CHECK(!tdm_path_exists(path));
    /* A store without a lock file was left over by a session that has ended; a locked one stays. */
    tdm_kv *kv = NULL;
    tdm_kv_options held = {.url = places[0].store};
    CHECK_INT(tdm_kv_open(&held, &kv, &err), TDM_OK);
    tdm_kv_close(kv);
    char leaked_url[160];
    snprintf(leaked_url, sizeof(leaked_url), "local:%s/runtime/ended-1.store", directory);
    CHECK_INT(tdm_kv_open(&(tdm_kv_options){.url = leaked_url}, &kv, &err), TDM_OK);
    tdm_kv_close(kv);
    CHECK(tdm_path_exists(leaked_url + 6));
    CHECK_INT(tdm_session_list(arena, &places, &count, &err), TDM_OK);
    CHECK_INT(count, 1);
    CHECK(!tdm_path_exists(leaked_url + 6));
    CHECK(tdm_path_exists(places[0].store + 6));
    tdm_session_hold_release(&two);
    snprintf(path, sizeof(path), "%s/runtime", directory);
    const char *const *names;
    CHECK_INT(tdm_dir_list(path, arena, &names, &count, &err), TDM_OK);
    CHECK_INT(count, 0);
    /* Other users could read it. */
    CHECK_INT(chmod(path, 0755), 0);
    CHECK_INT(tdm_session_list(arena, &places, &count, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "chmod 700");
    tdm_arena_destroy(arena);
}

/* ---- tasks ----------------------------------------------------------------------------------- */

/* The CPU with this index, modulo their number, of those that this process may use. */
static tdm_cpu_set one_processor(int number)
{
    tdm_cpu_set here, one = {.memory_node = -1};
    int count = 0;
    if (!tdm_os_cpu_set_here(&here)) exit(90);
    for (int i = 0; i < TDM_PLACE_MAX_CPUS; i++) count += here.processors[i / 64] >> (i % 64) & 1;
    number = count > 0 ? number % count : 0;
    for (int i = 0; i < TDM_PLACE_MAX_CPUS; i++) {
        if (!(here.processors[i / 64] >> (i % 64) & 1) || number-- != 0) continue;
        one.processors[i / 64] = UINT64_C(1) << (i % 64);
    }
    return one;
}

static bool has_signal(void *user)
{
    (void)user;
    return asked != 0;
}

/* Exit codes: 42 is the leader's; 51 to 53 are errors of the other tasks. */
static pid_t start_task(const char *name, int number, int count, bool dies)
{
    pid_t pid = fork();
    if (pid != 0) return pid;
    tdm_cpu_set own = one_processor(number), all = one_processor(0), here;
    for (int i = 1; i < count; i++) {
        tdm_cpu_set other = one_processor(i);
        for (size_t k = 0; k < sizeof(all.processors) / sizeof(all.processors[0]); k++)
            all.processors[k] |= other.processors[k];
    }
    const tdm_tasks_options options = {.name = name, .count = count, .should_stop = has_signal};
    if (!tdm_os_cpu_set_apply(&own)) _exit(91);
    if (number > 0) {
        int code = 0;
        tdm_status status = tdm_tasks_follow(&options, &code, NULL);
        if (status == TDM_OK) _exit(code);
        _exit(status == TDM_ERR_PEER_FAILED ? 51 : status == TDM_ERR_INTERRUPTED ? 52 : 53);
    }
    tdm_tasks *tasks = NULL;
    if (tdm_tasks_lead(&options, &tasks, NULL) != TDM_OK) _exit(92);
    if (tdm_tasks_missing(tasks) != 0 || !tdm_os_cpu_set_here(&here)) _exit(93);
    if (memcmp(here.processors, all.processors, sizeof(all.processors)) != 0) _exit(94);
    if (dies) raise(SIGKILL);
    tdm_tasks_end(tasks, 42);
    _exit(42);
}

static int end_of(pid_t pid)
{
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void tasks_follow_their_first(void)
{
    char name[64];
    snprintf(name, sizeof(name), "test-%ld", (long)getpid());
    pid_t two = start_task(name, 1, 3, false), three = start_task(name, 2, 3, false);
    pid_t one = start_task(name, 0, 3, false);
    CHECK_INT(end_of(one), 42);
    CHECK_INT(end_of(two), 42);
    CHECK_INT(end_of(three), 42);
    /* The leader is killed; without a leader, a signal ends the search. */
    two = start_task(name, 1, 2, false);
    CHECK_INT(end_of(start_task(name, 0, 2, true)), 128 + SIGKILL);
    CHECK_INT(end_of(two), 51);
    struct sigaction action = {.sa_handler = on_signal}, before;
    sigaction(SIGTERM, &action, &before); /* blocked from the start of the process */
    two = start_task(name, 1, 2, false);
    sigaction(SIGTERM, &before, NULL);
    kill(two, SIGTERM);
    CHECK_INT(end_of(two), 52);
}

static const check_test tests[] = {
    CHECK_TEST(a_killed_worker_is_reported_and_replaced),
    CHECK_TEST(too_many_deaths_end_it),
    CHECK_TEST(a_crash_that_repeats_is_a_bug),
    CHECK_TEST(an_error_of_the_job_ends_it_for_all),
    CHECK_TEST(workers_outlive_their_agent),
    CHECK_TEST(a_planned_restart_does_not_delay_a_stop),
    CHECK_TEST(a_worker_that_does_not_end_is_killed),
    CHECK_TEST(a_fenced_worker_is_replaced),
    CHECK_TEST(lines_of_all_hosts_are_in_one_log),
    CHECK_TEST(a_full_disk_is_named),
    CHECK_TEST(sessions_are_locked_and_removed),
    CHECK_TEST(tasks_follow_their_first),
};

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--worker") == 0) return be_worker(argv[2]);
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (length <= 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return 1;
    directory = check_dir();
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
