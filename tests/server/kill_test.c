/*
 * kill_test.c: real servers and workers, and real SIGKILLs.
 *
 *     TANDEM=PROGRAM TANDEM_KILLS=200 kill_test       # 6 kills if the number is not set
 *     TANDEM_STORE=etcd:http://127.0.0.1:2379 ...     # with TANDEM_SECRET; a local store if it is not set
 *
 * Two workers (threads) push to a group of servers with replication 2, and pull all the time. A push adds 1 to a counter
 * (a row of width 1, SGD with lr 1 and gradient -1), and is flushed; so each counter must be the number of flushed
 * pushes, whatever was killed. A server is killed, another one is started, and when all chains are complete again, the
 * next one is killed. The longest time of a flush is the time of a failover. A third worker is a process that is killed
 * with each server; the next one finds what its predecessor had flushed, and at most one push more.
 */
#include "check.h"

#include <tandem/server.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKERS = 2, KEYS = 64, SERVERS = 3, SHARDS = 4 };

static struct {
    const char *tandem, *name;
    const char *shards, *replication, *mode, *workers, *limit; /* options of the servers */
    char store[256];
    pid_t servers[SERVERS];
    char outputs[SERVERS][256]; /* files; their line has the address */
} lab;

typedef struct worker {
    int number;
    atomic_bool ends;
    _Atomic uint64_t pushes;
    double longest_s;
    uint64_t counts[KEYS];
    char problem[400];
} worker;

static void server_start(int number)
{
    snprintf(lab.outputs[number], sizeof(lab.outputs[number]), "%s",
             check_write(number == 0   ? "a"
                         : number == 1 ? "b"
                                       : "c",
                         ""));
    pid_t pid = fork();
    lab.servers[number] = pid;
    if (pid != 0) return;
    int out = open(lab.outputs[number], O_WRONLY | O_TRUNC);
    if (out >= 0) dup2(out, 1);
    const char *words[20] = {"tandem",   "server",   lab.name,        "--width",       "1",
                             "--shards", lab.shards, "--replication", lab.replication, "--mode",
                             lab.mode,   "--store",  lab.store,       "--limit",       lab.limit};
    int count = 15;
    if (lab.workers) {
        words[count++] = "--workers";
        words[count++] = lab.workers;
    }
    if (strncmp(lab.store, "etcd:", 5) == 0) { /* the others need an address */
        words[count++] = "--listen";
        words[count++] = "127.0.0.1:0";
    }
    execv(lab.tandem, (char *const *)(uintptr_t)words);
    _exit(127);
}

static uint64_t key_of(const worker *w, uint64_t i)
{
    return (uint64_t)w->number * KEYS + i;
}

/* What the counters must be; the worker's own keys, so nobody else changes them. */
static bool worker_check(worker *w, tdm_server_client *client, tdm_error *err)
{
    uint64_t keys[KEYS];
    float rows[KEYS];
    for (uint64_t i = 0; i < KEYS; i++) keys[i] = key_of(w, i);
    if (tdm_server_client_pull(client, keys, KEYS, rows, NULL, err) != TDM_OK) return false;
    for (int i = 0; i < KEYS; i++) {
        if ((uint64_t)rows[i] == w->counts[i]) continue;
        tdm_fail(err, TDM_ERR_INTERNAL, "counter %d of worker %d is %g, not %llu", i, w->number,
                 (double)rows[i], (unsigned long long)w->counts[i]);
        return false;
    }
    return true;
}

static void *worker_run(void *user)
{
    worker *w = user;
    tdm_error err = {.status = TDM_OK};
    tdm_server_client *client = NULL;
    const tdm_server_client_options options = {
        .place = {.name = lab.name, .store = lab.store}, .worker = w->number, .timeout_s = 30};
    bool is_good = tdm_server_client_open(&options, &client, &err) == TDM_OK;
    while (is_good && !atomic_load(&w->ends)) {
        uint64_t push = atomic_load(&w->pushes);
        uint64_t keys[2] = {key_of(w, push % KEYS), key_of(w, (push * 7 + 3) % KEYS)};
        const float grads[2] = {-1, -1};
        double began_s = tdm_clock_s();
        is_good = tdm_server_client_push(client, keys, grads, 2, 1.0, &err) == TDM_OK &&
                  tdm_server_client_flush(client, &err) == TDM_OK;
        double took_s = tdm_clock_s() - began_s;
        if (took_s > w->longest_s) w->longest_s = took_s;
        w->counts[push % KEYS]++;
        w->counts[(push * 7 + 3) % KEYS]++;
        atomic_store(&w->pushes, push + 1);
        if (is_good && push % 16 == 0) is_good = worker_check(w, client, &err);
    }
    if (is_good) is_good = worker_check(w, client, &err);
    tdm_error closing = {.status = TDM_OK};
    if (tdm_server_client_close(client, &closing) != TDM_OK && is_good) {
        is_good = false;
        err = closing;
    }
    if (!is_good) snprintf(w->problem, sizeof(w->problem), "%.390s", err.message);
    return NULL;
}

/* ---- a worker that is killed ---------------------------------------------------------------------- */

/* In a file that all its processes map. */
typedef struct mortal {
    _Atomic uint64_t flushed, lives;
    char problem[400];
} mortal;

enum { MORTAL = 2 };

static mortal *mortal_map(const char *path)
{
    int fd = open(path, O_RDWR);
    void *memory = fd >= 0 ? mmap(NULL, sizeof(mortal), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                           : MAP_FAILED;
    if (fd >= 0) close(fd);
    return memory == MAP_FAILED ? NULL : memory;
}

static tdm_status mortal_begin(mortal *m, tdm_server_client *client, tdm_error *err)
{
    const worker self = {.number = MORTAL};
    uint64_t keys[KEYS], sum = 0, flushed = atomic_load(&m->flushed);
    float rows[KEYS];
    for (uint64_t i = 0; i < KEYS; i++) keys[i] = key_of(&self, i);
    TDM_TRY(tdm_server_client_pull(client, keys, KEYS, rows, NULL, err));
    for (int i = 0; i < KEYS; i++) sum += (uint64_t)rows[i];
    if (sum < flushed || sum > flushed + 1)
        return tdm_fail(err, TDM_ERR_INTERNAL, "%llu pushes are stored, %llu were flushed",
                        (unsigned long long)sum, (unsigned long long)flushed);
    atomic_store(&m->flushed, sum);
    atomic_fetch_add(&m->lives, 1);
    return TDM_OK;
}

/* A process of this program; it ends by a signal, or with a problem. */
static int mortal_main(const char *path)
{
    const worker self = {.number = MORTAL};
    const float grad = -1;
    tdm_error err = {.status = TDM_OK};
    tdm_server_client *client = NULL;
    mortal *m = mortal_map(path);
    if (!m) return 1;
    const tdm_server_client_options options = {
        .place = {.name = "lab", .store = getenv("TANDEM_LAB")}, .worker = MORTAL};
    tdm_status status = tdm_server_client_open(&options, &client, &err);
    if (status == TDM_OK) status = mortal_begin(m, client, &err);
    while (status == TDM_OK) {
        uint64_t key = key_of(&self, atomic_load(&m->flushed) % KEYS);
        status = tdm_server_client_push(client, &key, &grad, 1, 1.0, &err);
        if (status == TDM_OK) status = tdm_server_client_flush(client, &err);
        if (status == TDM_OK) atomic_fetch_add(&m->flushed, 1);
    }
    snprintf(m->problem, sizeof(m->problem), "%.390s", err.message);
    return 1;
}

static pid_t mortal_start(const char *path)
{
    pid_t pid = fork();
    if (pid != 0) return pid;
    setenv("TANDEM_MORTAL", path, 1);
    setenv("TANDEM_LAB", lab.store, 1);
    execl("/proc/self/exe", "kill_test", (char *)NULL);
    _exit(127);
}

/* ---- the group -------------------------------------------------------------------------------------- */

static bool chains_are_complete(void)
{
    tdm_str text = TDM_STR_INIT;
    tdm_error err;
    const tdm_server_place place = {.name = lab.name, .store = lab.store};
    bool is_good = tdm_server_describe(&place, &text, &err) == TDM_OK;
    int complete = 0;
    for (const char *at = tdm_str_text(&text); (at = strstr(at, "\nshard ")); at++) {
        char line[128];
        snprintf(line, sizeof(line), "%.*s", (int)strcspn(at + 1, "\n"), at + 1);
        const char *members = strstr(line, ": servers");
        int count = 0;
        for (const char *c = members ? members + 9 : ""; *c; c++) count += *c == ' ';
        complete += count == 2 && !strstr(line, "joining");
    }
    tdm_str_release(&text);
    return is_good && complete == SHARDS;
}

/* Reads the address of a server, once it is in force. False: not yet. */
static bool server_address(int number, char out[128])
{
    char text[256] = "";
    FILE *file = fopen(lab.outputs[number], "r");
    if (!file) return false;
    bool has_line = fgets(text, sizeof(text), file) && strchr(text, '\n');
    fclose(file);
    const char *at = strstr(text, " at ");
    if (!has_line || !at) return false;
    snprintf(out, 128, "%.*s", (int)strcspn(at + 4, "\n"), at + 4);
    return true;
}

static bool group_names(const char *address)
{
    tdm_str text = TDM_STR_INIT;
    tdm_error err;
    const tdm_server_place place = {.name = lab.name, .store = lab.store};
    bool is_named = tdm_server_describe(&place, &text, &err) != TDM_OK ||
                    strstr(tdm_str_text(&text), address);
    tdm_str_release(&text);
    return is_named;
}

static void print_group(void)
{
    tdm_str text = TDM_STR_INIT;
    tdm_error err = {.status = TDM_OK};
    const tdm_server_place place = {.name = lab.name, .store = lab.store};
    if (tdm_server_describe(&place, &text, &err) != TDM_OK) printf("%s\n", err.message);
    printf("%s", tdm_str_text(&text));
    tdm_str_release(&text);
}

static bool await_chains(double seconds)
{
    double until_s = tdm_clock_s() + seconds;
    while (!chains_are_complete()) {
        if (tdm_clock_s() > until_s) return false;
        check_sleep_s(0.02);
    }
    return true;
}

/* The options of the servers, and a store. */
static void lab_init(const char *name)
{
    const char *store = getenv("TANDEM_STORE");
    lab.tandem = getenv("TANDEM");
    REQUIRE(lab.tandem != NULL);
    setenv("TANDEM_RUNTIME", check_path("run"), 1);
    snprintf(lab.store, sizeof(lab.store), "%s%s",
             store ? store : "local:", store ? "" : check_path("store"));
    lab.name = name;
    lab.shards = "4";
    lab.replication = "2";
    lab.mode = "async";
    lab.workers = NULL;
    lab.limit = "4096";
    memset(lab.servers, 0, sizeof(lab.servers));
}

static void lab_end(void)
{
    for (int i = 0; i < SERVERS; i++) {
        if (lab.servers[i] <= 0) continue;
        kill(lab.servers[i], SIGKILL);
        waitpid(lab.servers[i], NULL, 0);
        lab.servers[i] = 0;
    }
}

static void nothing_is_lost(void)
{
    const char *asked = getenv("TANDEM_KILLS");
    int kills = asked && *asked ? (int)strtol(asked, NULL, 10) : 6;
    static worker workers[WORKERS];
    pthread_t threads[WORKERS];
    char mortal_path[256];
    const mortal zero = {.flushed = 0};
    lab_init("lab");
    snprintf(mortal_path, sizeof(mortal_path), "%s", check_path("mortal"));
    FILE *file = fopen(mortal_path, "wb");
    REQUIRE(file && fwrite(&zero, sizeof(zero), 1, file) == 1 && fclose(file) == 0);
    const mortal *victim_worker = mortal_map(mortal_path);
    REQUIRE(victim_worker != NULL);
    for (int i = 0; i < SERVERS; i++) server_start(i);
    for (int i = 0; i < WORKERS; i++) {
        workers[i].number = i;
        REQUIRE(pthread_create(&threads[i], NULL, worker_run, &workers[i]) == 0);
    }
    pid_t mortal_pid = mortal_start(mortal_path);
    uint64_t drawn = 1;
    int done = 0;
    for (; done < kills; done++) {
        char address[128] = "";
        drawn = drawn * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        int victim = (int)((drawn >> 33) % SERVERS);
        double until_s = tdm_clock_s() + 30;
        while (!server_address(victim, address) && tdm_clock_s() < until_s) check_sleep_s(0.02);
        if (!*address || !await_chains(30)) break;
        check_sleep_s((double)(drawn >> 40 & 127) * 1e-3);
        kill(lab.servers[victim], SIGKILL);
        waitpid(lab.servers[victim], NULL, 0);
        kill(mortal_pid, SIGKILL);
        waitpid(mortal_pid, NULL, 0);
        mortal_pid = mortal_start(mortal_path);
        /* Before the next kill the others have to notice this one. */
        while (group_names(address) && tdm_clock_s() < until_s) check_sleep_s(0.02);
        server_start(victim);
    }
    if (done < kills) print_group();
    CHECK_INT(done, kills);
    CHECK(await_chains(30));
    double longest_s = 0;
    for (int i = 0; i < WORKERS; i++) {
        atomic_store(&workers[i].ends, true);
        pthread_join(threads[i], NULL);
        CHECK_TEXT(workers[i].problem, "");
        CHECK(workers[i].pushes > (uint64_t)kills);
        if (workers[i].longest_s > longest_s) longest_s = workers[i].longest_s;
    }
    printf("%d kills, %llu flushed pushes, the longest took %.3f s\n", done,
           (unsigned long long)workers[0].pushes + workers[1].pushes, longest_s);
    kill(mortal_pid, SIGKILL);
    waitpid(mortal_pid, NULL, 0);
    CHECK_TEXT(victim_worker->problem, "");
    CHECK(victim_worker->flushed > 0);
    printf("the worker that was killed had %llu lives and flushed %llu pushes\n",
           (unsigned long long)victim_worker->lives, (unsigned long long)victim_worker->flushed);
    lab_end();
}

/* ---- rounds ------------------------------------------------------------------------------------------ */

enum { ROUNDS = 500 };

static void *rounds_run(void *user)
{
    worker *w = user;
    tdm_error err = {.status = TDM_OK};
    tdm_server_client *client = NULL;
    const tdm_server_client_options options = {
        .place = {.name = lab.name, .store = lab.store}, .worker = w->number, .timeout_s = 30};
    tdm_status status = tdm_server_client_open(&options, &client, &err);
    for (uint64_t round = 1; status == TDM_OK && round <= ROUNDS; round++) {
        uint64_t keys[KEYS];
        float rows[KEYS], grads[KEYS];
        for (uint64_t i = 0; i < KEYS; i++) keys[i] = i * (round % 5 + 1);
        status = tdm_server_client_pull(client, keys, KEYS, rows, NULL, &err);
        for (int i = 0; i < KEYS; i++)
            grads[i] = 0.3f * rows[i] - (float)(w->number + 1) / (float)(round + (uint64_t)i);
        if (status == TDM_OK) status = tdm_server_client_push(client, keys, grads, KEYS, 0.1, &err);
        atomic_store(&w->pushes, round);
    }
    tdm_status closing = tdm_server_client_close(client, status == TDM_OK ? &err : NULL);
    if (status != TDM_OK || closing != TDM_OK)
        snprintf(w->problem, sizeof(w->problem), "%.390s", err.message);
    return NULL;
}

static void rounds_take(int servers, bool kills, float out[6 * KEYS])
{
    worker workers[WORKERS] = {{.number = 0}, {.number = 1}};
    pthread_t threads[WORKERS];
    uint64_t keys[6 * KEYS];
    tdm_error err;
    tdm_server_client *client = NULL;
    for (int i = 0; i < servers; i++) server_start(i);
    for (int i = 0; i < WORKERS; i++)
        REQUIRE(pthread_create(&threads[i], NULL, rounds_run, &workers[i]) == 0);
    double until_s = check_now_s() + 30;
    while (kills && atomic_load(&workers[0].pushes) < ROUNDS / 10 && check_now_s() < until_s)
        check_sleep_s(0.001);
    if (kills) {
        kill(lab.servers[0], SIGKILL);
        CHECK(workers[0].pushes < ROUNDS);
    }
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(threads[i], NULL);
        CHECK_TEXT(workers[i].problem, "");
    }
    const tdm_server_client_options options = {.place = {.name = lab.name, .store = lab.store},
                                               .worker = -1};
    for (uint64_t i = 0; i < 6 * KEYS; i++) keys[i] = i;
    CHECK_INT(tdm_server_client_open(&options, &client, &err), TDM_OK);
    CHECK_INT(tdm_server_client_pull(client, keys, 6 * KEYS, out, NULL, &err), TDM_OK);
    CHECK_INT(tdm_server_client_close(client, &err), TDM_OK);
    lab_end();
}

/* Sync: neither shards nor replication nor the death of a server change a bit. */
static void rounds_have_one_result(void)
{
    static float one[6 * KEYS], other[6 * KEYS];
    float sum = 0;
    lab_init("rounds-a");
    lab.mode = "sync";
    lab.workers = "2";
    lab.shards = lab.replication = "1";
    rounds_take(1, false, one);
    lab_init("rounds-b");
    lab.mode = "sync";
    lab.workers = "2";
    rounds_take(2, true, other);
    for (int i = 0; i < 6 * KEYS; i++) sum += one[i] > 0;
    CHECK(sum > KEYS);
    CHECK(memcmp(one, other, sizeof(one)) == 0);
}

/* ---- errors ------------------------------------------------------------------------------------------ */

static tdm_status client_open(double timeout_s, tdm_server_client **out, tdm_error *err)
{
    const tdm_server_client_options options = {
        .place = {.name = lab.name, .store = lab.store}, .worker = 0, .timeout_s = timeout_s};
    return tdm_server_client_open(&options, out, err);
}

/* A server that is stopped, continues, is full, or dies: nothing waits longer than its deadline, and the error says
 * which server it is. */
static void errors_name_the_server(void)
{
    static uint64_t keys[100000];
    static float grads[100000];
    char address[128] = "";
    tdm_error err;
    tdm_server_client *client = NULL;
    lab_init("errors");
    lab.shards = lab.replication = lab.limit = "1";
    CHECK_INT(client_open(0.3, &client, &err), TDM_ERR_NOT_FOUND);
    CHECK_HAS(err.message, "the group of servers 'errors' does not exist");
    server_start(0);
    REQUIRE(client_open(10, &client, &err) == TDM_OK);
    CHECK_INT(tdm_server_client_close(client, &err), TDM_OK);
    REQUIRE(server_address(0, address));
    REQUIRE(client_open(1.5, &client, &err) == TDM_OK);
    CHECK_INT(tdm_server_client_push(client, keys, grads, 1, 0.1, &err), TDM_OK);
    CHECK_INT(tdm_server_client_flush(client, &err), TDM_OK);

    kill(lab.servers[0], SIGSTOP);
    double began_s = check_now_s();
    CHECK_INT(tdm_server_client_push(client, keys, grads, 1, 0.1, &err), TDM_OK);
    CHECK_INT(tdm_server_client_flush(client, &err), TDM_ERR_TIMEOUT);
    CHECK(check_now_s() - began_s < 10);
    CHECK_HAS(err.message, address);
    CHECK_HAS(err.message, "did not answer a push of shard 0 within 1.5 s");
    CHECK_HAS(err.message, "slow or stopped");
    kill(lab.servers[0], SIGCONT);
    check_sleep_s(0.5);
    CHECK_INT(tdm_server_client_flush(client, &err), TDM_OK); /* the same push */

    setenv("TANDEM_SECRET", "another", 1);
    tdm_server_client *stranger = NULL;
    CHECK_INT(client_open(5, &stranger, &err), TDM_ERR_PEER_REFUSED);
    CHECK_HAS(err.message, "the secret of this process differs");
    unsetenv("TANDEM_SECRET");

    grads[0] = NAN;
    CHECK_INT(tdm_server_client_push(client, keys, grads, 1, 0.1, &err), TDM_OK);
    CHECK_INT(tdm_server_client_flush(client, &err), TDM_ERR_DIVERGED);
    CHECK_HAS(err.message, "the gradient of key 0 is not finite");
    grads[0] = 0;
    for (uint64_t i = 0; i < 100000; i++) keys[i] = i;
    CHECK_INT(tdm_server_client_push(client, keys, grads, 100000, 0.1, &err), TDM_OK);
    CHECK_INT(tdm_server_client_flush(client, &err), TDM_ERR_NO_SPACE);
    CHECK_HAS(err.message, "shard 0 is full");

    kill(lab.servers[0], SIGKILL);
    float row;
    CHECK_INT(tdm_server_client_pull(client, keys, 1, &row, NULL, &err), TDM_ERR_TIMEOUT);
    CHECK_HAS(err.message, address);
    CHECK_HAS(err.message, "did not answer a pull of shard 0");
    CHECK_HAS(err.message, "Connection refused");
    CHECK_INT(tdm_server_client_close(client, &err), TDM_ERR_TIMEOUT); /* it cannot leave */
    lab_end();
}

static const check_test tests[] = {CHECK_TEST(nothing_is_lost), CHECK_TEST(rounds_have_one_result),
                                   CHECK_TEST(errors_name_the_server)};

int main(int argc, char **argv)
{
    const char *mortal_path = getenv("TANDEM_MORTAL");
    if (mortal_path) return mortal_main(mortal_path);
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
