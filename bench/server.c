/*
 * server.c: the rate of row updates of a group of parameter servers.
 *
 * Starts servers, and workers as threads. A worker pulls the rows of a batch of keys, then pushes a gradient for each,
 * as a worker of a sparse model does; pushes of several batches are on the way. Keys are those of bench/table: drawn
 * from a Zipf distribution, before the time is taken. A row update is one key of a batch that was pulled and pushed.
 *
 *     server TANDEM [--json] [--quick] [--seconds S] [--servers N] [--replication R] [--workers N] [--keys N]
 *            [--batch N] [--width N] [--zipf S] [--optim METHOD] [--unix]
 */
#include "zipf.h"

#include <tandem/server.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BATCHES = 2048, MAX_SERVERS = 8, MAX_WORKERS = 16 };

typedef struct settings {
    const char *tandem, *optim;
    bool json, uses_unix;
    double seconds, zipf;
    long servers, replication, workers;
    uint64_t keys;
    int64_t batch, width;
} settings;

static struct {
    settings s;
    char store[256];
    pid_t servers[MAX_SERVERS];
    atomic_bool ends, begins;
    atomic_int ready_count;
} bench;

typedef struct worker {
    int number;
    uint64_t batches;
    double seconds;
} worker;

static void servers_end(void)
{
    for (int i = 0; i < MAX_SERVERS; i++) {
        if (bench.servers[i] <= 0) continue;
        kill(bench.servers[i], SIGKILL);
        waitpid(bench.servers[i], NULL, 0);
        bench.servers[i] = 0;
    }
}

static void die(const char *what, const char *why)
{
    fprintf(stderr, "server: %s: %s\n", what, why);
    servers_end();
    exit(1);
}

static pid_t server_start(void)
{
    const settings *s = &bench.s;
    char width[32], replication[32];
    snprintf(width, sizeof(width), "%lld", (long long)s->width);
    snprintf(replication, sizeof(replication), "%ld", s->replication);
    pid_t pid = fork();
    if (pid != 0) return pid;
    int out = open("/dev/null", O_WRONLY);
    if (out >= 0) dup2(out, 1);
    const char *words[] = {"tandem",    "server",        "bench",       "--width",
                           width,       "--replication", replication,   "--optim",
                           s->optim,    "--init-scale",  "0.01",        "--store",
                           bench.store, "--listen",      "127.0.0.1:0", NULL};
    if (s->uses_unix) words[13] = NULL;
    execv(s->tandem, (char *const *)(uintptr_t)words);
    _exit(127);
}

static uint64_t word_next(void *user)
{
    uint64_t *state = user, word = *state += UINT64_C(0x9e3779b97f4a7c15);
    word = (word ^ word >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    word = (word ^ word >> 27) * UINT64_C(0x94d049bb133111eb);
    return word ^ word >> 31;
}

static void *take(size_t bytes)
{
    void *block = malloc(bytes);
    if (!block) die("memory", "there is not enough");
    return block;
}

static void *worker_run(void *user)
{
    worker *w = user;
    const settings *s = &bench.s;
    size_t numbers = (size_t)(s->batch * s->width);
    uint64_t *keys = take((size_t)(BATCHES * s->batch) * sizeof(*keys)),
             state = (uint64_t)w->number;
    float *rows = take(numbers * sizeof(float)), *grads = take(numbers * sizeof(float));
    zipf z = zipf_of(s->keys, s->zipf);
    tdm_server_client *client = NULL;
    tdm_error err;
    const tdm_server_client_options options = {.place = {.name = "bench", .store = bench.store},
                                               .worker = w->number};
    for (int64_t i = 0; i < BATCHES * s->batch; i++)
        keys[i] = zipf_draw(&z, word_next, &state) * UINT64_C(0x9e3779b97f4a7c15);
    for (size_t i = 0; i < numbers; i++)
        grads[i] = (float)(word_next(&state) >> 40) * 0x1p-23f - 1.0f;
    if (tdm_server_client_open(&options, &client, &err) != TDM_OK) die("open", err.message);
    atomic_fetch_add(&bench.ready_count, 1);
    while (!atomic_load(&bench.begins)) usleep(1000);
    double began_s = tdm_clock_s();
    for (; !atomic_load(&bench.ends); w->batches++) {
        const uint64_t *batch = keys + (int64_t)(w->batches % BATCHES) * s->batch;
        if (tdm_server_client_pull(client, batch, s->batch, rows, NULL, &err) != TDM_OK ||
            tdm_server_client_push(client, batch, grads, s->batch, 0.01, &err) != TDM_OK)
            die("worker", err.message);
    }
    if (tdm_server_client_flush(client, &err) != TDM_OK) die("flush", err.message);
    w->seconds = tdm_clock_s() - began_s;
    (void)tdm_server_client_close(client, NULL);
    free(keys);
    free(rows);
    free(grads);
    return NULL;
}

static void bench_run(void)
{
    const settings *s = &bench.s;
    worker workers[MAX_WORKERS] = {{0}};
    pthread_t threads[MAX_WORKERS] = {0};
    char dir[] = "/tmp/tandem-bench-XXXXXX", run[64];
    if (!mkdtemp(dir)) die("directory", "cannot create it");
    snprintf(run, sizeof(run), "%s/run", dir);
    setenv("TANDEM_RUNTIME", run, 1);
    snprintf(bench.store, sizeof(bench.store), "local:%s/store", dir);
    for (int i = 0; i < s->servers; i++) bench.servers[i] = server_start();
    for (int i = 0; i < s->workers; i++) {
        workers[i].number = i;
        if (pthread_create(&threads[i], NULL, worker_run, &workers[i]) != 0)
            die("thread", "cannot start it");
    }
    while (atomic_load(&bench.ready_count) < s->workers) usleep(1000);
    atomic_store(&bench.begins, true);
    usleep((useconds_t)(s->seconds * 1e6));
    atomic_store(&bench.ends, true);
    double rate = 0;
    for (int i = 0; i < s->workers; i++) {
        pthread_join(threads[i], NULL);
        rate += (double)workers[i].batches * (double)s->batch / workers[i].seconds;
    }
    servers_end();
    if (s->json)
        printf("{\"servers\":%ld,\"replication\":%ld,\"workers\":%ld,\"width\":%lld,\"batch\":%lld,"
               "\"optim\":\"%s\",\"updates_per_s\":%.0f}\n",
               s->servers, s->replication, s->workers, (long long)s->width, (long long)s->batch,
               s->optim, rate);
    else
        printf("%ld servers, replication %ld, %ld workers, width %lld, %s, %s: %.2f million row "
               "updates/s\n",
               s->servers, s->replication, s->workers, (long long)s->width, s->optim,
               s->uses_unix ? "UNIX sockets" : "TCP", rate / 1e6);
    char command[96];
    snprintf(command, sizeof(command), "%s/store", dir);
    (void)unlink(command);
    snprintf(command, sizeof(command), "%s/bench.servers.secret", run);
    (void)unlink(command);
    (void)rmdir(run);
    (void)rmdir(dir);
}

static bool read_value(settings *s, const char *name, const char *value)
{
    const struct {
        const char *name;
        long *value;
    } counts[] = {
        {"--servers", &s->servers}, {"--replication", &s->replication}, {"--workers", &s->workers}};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        if (strcmp(name, counts[i].name) == 0) {
            *counts[i].value = strtol(value, NULL, 10);
            return true;
        }
    if (strcmp(name, "--seconds") == 0)
        s->seconds = strtod(value, NULL);
    else if (strcmp(name, "--zipf") == 0)
        s->zipf = strtod(value, NULL);
    else if (strcmp(name, "--keys") == 0)
        s->keys = strtoull(value, NULL, 10);
    else if (strcmp(name, "--batch") == 0)
        s->batch = strtoll(value, NULL, 10);
    else if (strcmp(name, "--width") == 0)
        s->width = strtoll(value, NULL, 10);
    else if (strcmp(name, "--optim") == 0)
        s->optim = value;
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    settings s = {.optim = "adagrad",
                  .seconds = 5,
                  .zipf = 1.05,
                  .servers = 1,
                  .replication = 1,
                  .workers = 1,
                  .keys = 100000000,
                  .batch = 4096,
                  .width = 16};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            s.json = true;
        else if (strcmp(argv[i], "--unix") == 0)
            s.uses_unix = true;
        else if (strcmp(argv[i], "--quick") == 0)
            s.seconds = 0.3;
        else if (i + 1 < argc && read_value(&s, argv[i], argv[i + 1]))
            i++;
        else if (!s.tandem && argv[i][0] != '-')
            s.tandem = argv[i];
        else
            die(argv[i], "unknown option or missing value; bench/server.c lists the options");
    }
    if (!s.tandem || s.batch < 1 || s.width < 1 || s.keys < 2 || !(s.zipf > 0) || s.servers < 1 ||
        s.servers > MAX_SERVERS || s.workers < 1 || s.workers > MAX_WORKERS)
        die("options", "give the program tandem, 1 to 8 --servers and 1 to 16 --workers");
    bench.s = s;
    bench_run();
    return 0;
}
