/*
 * elastic_test.c: training that continues when its processes are killed, through the library alone.
 *
 * The parent takes the role of the agent: it creates the shared memory segment, starts workers, writes to the
 * store when one has died, and starts another one in its place. Workers are killed by SIGKILL: by themselves at
 * points in every phase of a step (os/test_control.h), and by the parent at random times; some are stopped and
 * continued. In each case the run must end with the state of an undisturbed one, with an exact ledger and
 * complete metrics.
 *
 *     dist_elastic [--seed S] [--runs N] [--keep] [--live]     --live: only runs with a live order
 */
#include "check.h"
#include "kv/kv.h"
#include "train/order_file.h"

#include <tandem/elastic.h>
#include <tandem/os.h>
#include <tandem/train.h>

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { SAMPLES = 200, MAX_WORKERS = 6, MAX_LIVES = 40 };
enum { CODE_FENCED = 7 };

static const char *directory;
static unsigned run_count;

typedef struct model {
    const char *name, *text;
    int max_zero;
    int round; /* steps between two lines of metrics; 0: 1 */
} model;

static const model models[] = {
    {"mlp",
     "name: mlp\nseed: 3\ndata: {train: data.csv, test_fraction: 0.2}\n"
     "model: {hidden: [96, 64], dropout: 0.1}\ntrain: {batch: 30, epochs: 4}\n"
     "optim: {kind: adamw, clip_norm: 1, ema: 0.9}\nparallel: {lanes: 8}\n",
     .max_zero = 3},
    {"lamb",
     "name: lamb\nseed: 5\ndata: {train: data.csv, test_fraction: 0.2}\n"
     "model: {hidden: [96]}\ntrain: {batch: 30, epochs: 4}\n"
     "optim: {kind: lamb}\nparallel: {lanes: 8}\n",
     .max_zero = 3},
    {"local",
     "name: local\nseed: 6\ndata: {train: data.csv, test_fraction: 0.2}\n"
     "model: {hidden: [96], dropout: 0.1}\ntrain: {batch: 30, epochs: 4}\n"
     "optim: {kind: adamw, clip_norm: 1}\nparallel: {lanes: 8}\n"
     "sync: {kind: local, replicas: 8, period: 2, outer: nesterov}\n",
     .max_zero = 1, .round = 2},
    {"gossip",
     "name: gossip\nseed: 9\ndata: {train: data.csv, test_fraction: 0.2, shape: [1, 8, 8]}\n"
     "layers: [conv: {channels: 4}, batch_norm: {}, relu: {}, flatten: {}, linear: 64, dropout: 0.1, "
     "linear: 10]\n"
     "model: {kind: layers}\ntrain: {batch: 30, epochs: 4}\n"
     "optim: {kind: adamw, clip_norm: 1}\nparallel: {lanes: 8, balance: feedback}\n"
     "sync: {kind: gossip, replicas: 8, period: 2, graph: random, degree: 2}\n",
     .max_zero = 0, .round = 2},
    {"compressed",
     "name: compressed\nseed: 7\ndata: {train: data.csv, test_fraction: 0.2}\n"
     "model: {hidden: [96], dropout: 0.1}\ntrain: {batch: 30, epochs: 4}\n"
     "optim: {kind: sgd, momentum: 0}\nparallel: {lanes: 8}\nsync: {replicas: 8}\n"
     "compress: {sparsify: topk, ratio: 0.05, momentum: 0.9, quantise: int8}\n",
     .max_zero = 1},
    {"power",
     "name: power\nseed: 9\ndata: {train: data.csv, test_fraction: 0.2, shape: [1, 8, 8]}\n"
     "layers: [conv: {channels: 8}, batch_norm: {}, relu: {}, flatten: {}, dropout: 0.1, "
     "linear: 32, relu, linear: 10]\n"
     "model: {kind: layers}\ntrain: {batch: 30, epochs: 4}\n"
     "optim: {kind: sgd, momentum: 0.9}\nparallel: {lanes: 8}\nsync: {replicas: 8}\n"
     "compress: {rank: 2, start_step: 3, min_elements: 100}\n",
     .max_zero = 1},
    {"auto",
     "name: auto\nseed: 10\ndata: {train: data.csv, test_fraction: 0.2}\n"
     "model: {hidden: [96]}\ntrain: {batch: 30, epochs: 4}\nparallel: {lanes: 8}\n"
     "sync: {replicas: 8}\ncompress: {auto: true}\n",
     .max_zero = 1},
    {"async",
     "name: async\nseed: 8\ndata: {train: data.csv, test_fraction: 0.2}\n"
     "model: {hidden: [96], dropout: 0.1}\ntrain: {batch: 30, epochs: 4}\n"
     "optim: {kind: adamw, clip_norm: 1}\nparallel: {lanes: 2, balance: feedback}\n"
     "sync: {kind: server, mode: async, replicas: 8, compensation: 0.04}\n",
     .max_zero = 1, .round = 4}, /* the updates of a round end where a line is due */
    {"cnn",
     "name: cnn\nseed: 4\ndata: {train: data.csv, test_fraction: 0.2, shape: [1, 8, 8]}\n"
     "layers: [conv: {channels: 8}, batch_norm: {}, relu: {}, flatten: {}, dropout: 0.1, "
     "linear: 10]\n"
     "model: {kind: layers}\ntrain: {batch: 30, epochs: 3}\n"
     "optim: {kind: sgd, momentum: 0.9}\nparallel: {lanes: 8}\n",
     .max_zero = 3},
};

/* The order of the updates follows real time, so every run has other bits, which its recorded order gives again. */
static const model live = {
    "live",
    "name: live\nseed: 8\ndata: {train: data.csv, test_fraction: 0.2}\n"
    "model: {hidden: [96], dropout: 0.1}\ntrain: {batch: 30, epochs: 8}\n"
    "optim: {kind: adamw, clip_norm: 1}\nparallel: {lanes: 2}\n"
    "sync: {kind: server, mode: stale, staleness: 6, replicas: 8, order: live, staleness_lr: true}\n",
    .max_zero = 1, .round = 4};

/* ---- jobs ------------------------------------------------------------------------------------ */

static void write_data(void)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/data.csv", directory);
    FILE *file = fopen(path, "w");
    unsigned state = 12345;
    for (int i = 0; file && i < SAMPLES; i++) {
        for (int k = 0; k < 64; k++) {
            state = state * 1103515245u + 12345u;
            fprintf(file, "%u,", (state >> 16) % 17);
        }
        fprintf(file, "%d\n", i % 10);
    }
    if (file) fclose(file);
}

static tdm_job_document *load(const model *m, int zero, const char *every, const char *order_from)
{
    char runs[96], zeros[48], steps[64], lines[64];
    snprintf(lines, sizeof(lines), "run.log_every_steps=%d", m->round > 0 ? m->round : 1);
    snprintf(runs, sizeof(runs), "run.dir=%s/runs", directory);
    snprintf(zeros, sizeof(zeros), "parallel.zero=%d", zero);
    snprintf(steps, sizeof(steps), "checkpoint.every_steps=%s", every);
    char from[600];
    snprintf(from, sizeof(from), "sync.order_from=%s", order_from ? order_from : "");
    const char *sets[] = {runs,
                          zeros,
                          steps,
                          m == &live ? "checkpoint.ledger=false" : "checkpoint.ledger=true",
                          lines,
                          "elastic.heartbeat=1",
                          "sync.order=recorded",
                          from};
    tdm_job_options options = {.overrides = sets,
                               .override_count = order_from ? COUNT(sets) : COUNT(sets) - 2};
    tdm_job_document *document = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_job_parse(m->text, strlen(m->text), "job.yaml", directory, &options,
                                      &document, &err);
    if (status != TDM_OK || !tdm_job_document_job(document)) {
        fprintf(stderr, "%s: %s\n", m->name, err.message);
        exit(1);
    }
    return document;
}

/* ---- workers --------------------------------------------------------------------------------- */

typedef struct world {
    const model *model;
    int zero;
    char session[32], store[160];
    tdm_shm *shm;
    int size;
    const char *request; /* for TANDEM_TEST_KILL; NULL: none */
    const char *every;
    const char *order_from; /* a run; NULL: the order of the job */
    bool apart;             /* each worker is a separate host, whose memory ends with it */
    const char *stopped;    /* the file that names a process that stopped itself; NULL: none will */
} world;

static void print_log(const tdm_log_record *record, void *user)
{
    (void)user;
    fprintf(stderr, "[%d] %s: %s\n", (int)getpid(), tdm_log_level_name(record->level),
            record->message);
}

static int work(const world *w, int slot, int life)
{
    char id[64], url[200], host[32] = "a";
    tdm_shm *shm = w->shm;
    if (w->apart) snprintf(host, sizeof(host), "a%d", life);
    if (w->apart && tdm_shm_create(&shm, NULL) != TDM_OK) return 1;
    if (w->request) setenv("TANDEM_TEST_KILL", w->request, 1);
    if (getenv("TANDEM_TEST_LOG")) tdm_log_add_sink(print_log, NULL, TDM_LOG_INFO);
    snprintf(id, sizeof(id), "a.%d.%d", slot, life);
    snprintf(url, sizeof(url), "local:%s", w->store);
    tdm_member_options mo = {.kv = {.url = url},
                             .session = w->session,
                             .id = id,
                             .host = host,
                             .slot = slot,
                             .min = 1,
                             .max = w->size,
                             .lease_s = 1};
    tdm_error err = {0};
    tdm_member *member = NULL;
    tdm_job_document *document = load(w->model, w->zero, w->every, w->order_from);
    tdm_status status = tdm_member_create(&mo, &member, &err);
    tdm_train_result result;
    tdm_train_options options = {.member = member, .membership = &mo, .shm = shm};
    if (status == TDM_OK)
        status = tdm_train(tdm_job_document_job(document), &options, &result, &err);
    tdm_member_destroy(member);
    tdm_job_document_destroy(document);
    if (w->apart) tdm_shm_close(shm);
    if (status == TDM_ERR_PEER_FENCED) return CODE_FENCED;
    if (status == TDM_ERR_PEER_LEFT) return 0;
    if (status != TDM_OK) {
        fprintf(stderr, "worker %s: %s: %s\n", id, tdm_status_name(status), err.message);
        return 1;
    }
    return 0;
}

static pid_t start(const world *w, int slot, int life)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) _exit(work(w, slot, life));
    return pid;
}

/* ---- the parent ------------------------------------------------------------------------------ */

typedef struct plan {
    int kills;       /* by the parent, at random times */
    bool stops;      /* some of them are stops */
    uint64_t random; /* state */
} plan;

static uint64_t draw(plan *p, uint64_t below)
{
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return (p->random >> 33) % below;
}

static double now(void)
{
    return tdm_clock_s();
}

static void tell_dead(const world *w, int slot, int life, int how)
{
    char key[256], value[128], url[200];
    snprintf(url, sizeof(url), "local:%s", w->store);
    tdm_kv *kv = NULL;
    tdm_error err = {0};
    tdm_kv_options o = {.url = url};
    if (tdm_kv_open(&o, &kv, &err) != TDM_OK) return;
    snprintf(key, sizeof(key), "tandem/%s/dead/a.%d.%d", w->session, slot, life);
    snprintf(value, sizeof(value), "{\"why\":\"killed by signal %d\",\"at\":%.6f}",
             WIFSIGNALED(how) ? WTERMSIG(how) : 0, tdm_kv_now(kv));
    CHECK_INT(tdm_kv_put(kv, key, value, 0, &err), TDM_OK);
    tdm_kv_close(kv);
}

static void put_about(const world *w)
{
    char key[256], value[64], url[200];
    snprintf(url, sizeof(url), "local:%s", w->store);
    tdm_kv *kv = NULL;
    tdm_error err = {0};
    tdm_kv_options o = {.url = url};
    CHECK_INT(tdm_kv_open(&o, &kv, &err), TDM_OK);
    if (!kv) return;
    snprintf(key, sizeof(key), "tandem/%s/about", w->session);
    snprintf(value, sizeof(value), "{\"expected\":%d}", w->size);
    CHECK_INT(tdm_kv_put(kv, key, value, 0, &err), TDM_OK);
    tdm_kv_close(kv);
}

/* The result on disk: no worker may be alive to report it. */
static bool find_result(const world *w, char hash[TDM_SHA256_HEX], char run[512])
{
    char key[256], url[200];
    snprintf(url, sizeof(url), "local:%s", w->store);
    tdm_arena *arena = tdm_arena_create("test");
    tdm_kv *kv = NULL;
    tdm_kv_item item;
    tdm_checkpoint *checkpoint = NULL;
    tdm_error err = {0};
    char *path;
    snprintf(key, sizeof(key), "tandem/%s/run", w->session);
    tdm_kv_options o = {.url = url};
    tdm_status status = tdm_kv_open(&o, &kv, &err);
    if (status == TDM_OK) status = tdm_kv_get(kv, key, arena, &item, &err);
    if (status == TDM_OK) status = tdm_run_checkpoint(item.value, arena, &path, &err);
    if (status == TDM_OK) status = tdm_checkpoint_open(path, &checkpoint, &err);
    if (status == TDM_OK) {
        const tdm_checkpoint_content *c = tdm_checkpoint_content_of(checkpoint);
        snprintf(run, 512, "%s", item.value);
        status = tdm_state_hash(&c->position, c->tensors, c->tensor_count, hash, &err);
    }
    if (status != TDM_OK) fprintf(stderr, "  %s\n", err.message);
    tdm_checkpoint_destroy(checkpoint);
    tdm_kv_close(kv);
    tdm_arena_destroy(arena);
    return status == TDM_OK;
}

/* The index in `pids` of the process that stopped itself; -1: none has yet. */
static int find_stopped(const world *w, const pid_t *pids, int count)
{
    FILE *file = w->stopped ? fopen(w->stopped, "r") : NULL;
    int process = 0, k = 0;
    bool known = file && fscanf(file, "%d\n", &process) == 1;
    if (file) fclose(file);
    while (k < count && pids[k] != process) k++;
    return known && k < count ? k : -1;
}

/* Runs a training; true if it succeeded. `hash` gets the hash of its state. */
static bool train(world *w, plan *p, char hash[TDM_SHA256_HEX], char run[512], int *hits)
{
    pid_t pids[MAX_LIVES];
    int slots[MAX_LIVES], lives = 0, alive = 0;
    bool good = true, over = false, stopped[MAX_LIVES] = {false};
    double until = now() + 60, next = now() + 0.05 + 0.001 * (double)draw(p, 300), resume = 0;
    unsigned number = ++run_count;
    snprintf(w->session, sizeof(w->session), "s%u", number);
    snprintf(w->store, sizeof(w->store), "%s/s%u.store", directory, number);
    tdm_error err = {0};
    CHECK_INT(tdm_shm_create(&w->shm, &err), TDM_OK);
    put_about(w);
    *hits = 0;
    for (int i = 0; i < w->size; i++) {
        slots[lives] = i;
        pids[lives] = start(w, i, lives);
        lives++;
        alive++;
    }
    while (alive > 0) {
        int how;
        pid_t pid = waitpid(-1, &how, WNOHANG);
        if (pid > 0) {
            int k = 0;
            while (k < lives && pids[k] != pid) k++;
            pids[k] = 0;
            alive--;
            bool fenced = WIFEXITED(how) && WEXITSTATUS(how) == CODE_FENCED;
            if (WIFEXITED(how) && WEXITSTATUS(how) == 0) over = true;
            if (!fenced && !(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL) && how != 0)
                fprintf(stderr, "  worker %d in slot %d ended with %s %d\n", k, slots[k],
                        WIFSIGNALED(how) ? "signal" : "code",
                        WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
            if (WIFEXITED(how) && WEXITSTATUS(how) == 1) good = false;
            if (WIFSIGNALED(how)) {
                (*hits)++;
                tell_dead(w, slots[k], k, how);
                if (WTERMSIG(how) != SIGKILL) good = false;
            }
            if ((WIFSIGNALED(how) || fenced) && !over && good && lives < MAX_LIVES) {
                slots[lives] = fenced ? lives + 16 : slots[k];
                pids[lives] = start(w, slots[lives], lives);
                lives++;
                alive++;
            }
            continue;
        }
        if (now() > until) {
            fprintf(stderr, "  the run does not end\n");
            for (int i = 0; i < lives; i++)
                if (pids[i] > 0) kill(pids[i], SIGKILL);
            until = now() + 60;
            good = false;
        }
        int silent = find_stopped(w, pids, lives);
        if (silent >= 0 && !stopped[silent]) { /* as when its lease expires, only sooner */
            stopped[silent] = true;
            tell_dead(w, slots[silent], silent, 0);
        }
        if (resume > 0 && now() > resume) {
            for (int i = 0; i < lives; i++)
                if (stopped[i] && pids[i] > 0) kill(pids[i], SIGCONT);
            resume = 0;
        }
        if (p->kills > 0 && !over && now() > next) {
            int k = (int)draw(p, (uint64_t)lives);
            if (pids[k] > 0) {
                bool stop = p->stops && resume <= 0 && draw(p, 2) == 0;
                kill(pids[k], stop ? SIGSTOP : SIGKILL);
                if (stop) {
                    stopped[k] = true;
                    resume = now() + 3;
                    (*hits)++;
                }
                p->kills--;
                next = now() + 0.02 + 0.001 * (double)draw(p, 250);
            }
        }
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
    tdm_shm_close(w->shm);
    return good && find_result(w, hash, run);
}

/* Every step of a run, or round of steps, occurs once, in order. */
static void check_metrics(const char *run, int round)
{
    char path[600], line[4096];
    snprintf(path, sizeof(path), "%s/metrics.jsonl", run);
    FILE *file = fopen(path, "r");
    unsigned long long last = 0, step;
    CHECK(file != NULL);
    while (file && fgets(line, sizeof(line), file)) {
        if (!strstr(line, "\"lr\"") || sscanf(line, "{\"step\":%llu", &step) != 1) continue;
        CHECK_INT(step, last + (unsigned)(round > 0 ? round : 1));
        last = step;
    }
    CHECK(last > 10);
    if (file) fclose(file);
}

static tdm_status order_entry_follow(void *user, const tdm_order_entry *entry, tdm_error *err)
{
    return tdm_order_follow(user, entry, err);
}

/* The order of all updates is recorded, without a gap. */
static void check_order(const tdm_job *job, const char *run, uint64_t steps)
{
    char path[600];
    uint64_t count = 0;
    tdm_order_state state;
    tdm_error err = {0};
    snprintf(path, sizeof(path), "%s/%s", run, TDM__ORDER_NAME);
    CHECK_INT(tdm_order_state_init(job, &state, &err), TDM_OK);
    CHECK_INT(tdm__order_read(path, state.worker_count, UINT64_MAX, order_entry_follow, &state,
                              &count, &err),
              TDM_OK);
    CHECK_TEXT(err.message, "");
    CHECK_INT(count, steps);
}

static void check_run(const world *w, const char *run)
{
    tdm_job_document *document = load(w->model, w->zero, w->every, w->order_from);
    tdm_ledger_report report;
    tdm_error err = {0};
    if (w->model == &live) { /* 160 samples in batches of 30 */
        report = (tdm_ledger_report){.last_step = 8 * 6};
    } else {
        CHECK_INT(tdm_ledger_check(tdm_job_document_job(document), run, &report, &err), TDM_OK);
    }
    CHECK_INT(report.problem_count, 0);
    check_metrics(run, w->model->round);
    if (tdm_job_document_job(document)->sync.kind == TDM_JOB_SYNC_SERVER)
        check_order(tdm_job_document_job(document), run, report.last_step);
    tdm_job_document_destroy(document);
}

static bool compare(world *w, plan *p, const char *expected, const char *what)
{
    char hash[TDM_SHA256_HEX] = "", run[512] = "";
    int hits;
    double begin = now();
    bool good = train(w, p, hash, run, &hits);
    CHECK(good);
    if (good && expected) CHECK_TEXT(hash, expected);
    if (good) check_run(w, run);
    good = good && (!expected || strcmp(hash, expected) == 0);
    fprintf(stderr, "%s: %s, zero %d, %d workers, %s: %d hits, %.1f s\n", good ? "ok" : "NOT OK",
            w->model->name, w->zero, w->size, what, hits, now() - begin);
    return good;
}

static void undisturbed(const model *m, int zero, char hash[TDM_SHA256_HEX])
{
    world w = {.model = m, .zero = zero, .size = 1, .every = "7"};
    plan none = {0};
    char run[512] = "";
    int hits;
    CHECK(train(&w, &none, hash, run, &hits));
    check_run(&w, run);
}

static const char *const phases[] = {"forward", "backward", "replica", "reduce",
                                     "factor",  "update",   "publish", "checkpoint"};

/* All die in the middle of an update, and the worker that completes it is stopped permanently meanwhile: it
 * must be killed, or it could continue later and overwrite what the others wrote. */
static void stop_worker_that_finishes(const model *m, const char *hash, const char *phase)
{
    char request[400], stopped[100];
    plan none = {0};
    world w = {.model = m, .size = 2, .every = "7", .request = request, .stopped = stopped};
    snprintf(stopped, sizeof(stopped), "%s/%s-stop", directory, phase);
    snprintf(request, sizeof(request),
             "torn:step=9:rank=0:file=%s/%s-0,torn:step=9:rank=1:file=%s/%s-1,"
             "%s:step=9:signal=STOP:file=%s",
             directory, phase, directory, phase, phase, stopped);
    compare(&w, &none, hash,
            strcmp(phase, "mend") == 0 ? "stopped while it mends"
                                       : "stopped while it finishes an update");
    CHECK(access(stopped, F_OK) == 0);
}

/* A host dies with its part of the state before the first checkpoint: all ranks start again from the initial
 * state. */
static void begin_again(const model *m, const char *hash)
{
    char request[200];
    plan none = {0};
    world w = {.model = m, .zero = 1, .size = 2, .every = "7", .request = request, .apart = true};
    snprintf(request, sizeof(request), "forward:step=6:rank=1:file=%s/anew", directory);
    compare(&w, &none, hash, "a host dies before the first checkpoint");
}

/* Whether the log of a run has a text. */
static bool log_has(const char *run, const char *text)
{
    char path[600], line[4096];
    bool found = false;
    snprintf(path, sizeof(path), "%s/log.jsonl", run);
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    while (file && fgets(line, sizeof(line), file)) found = found || strstr(line, text);
    if (file) fclose(file);
    return found;
}

/* Every worker is a separate host, whose memory ends with it. All updates are on all hosts, so the loss of any host but
 * one loses none of them: training never goes back. */
static void hosts_die(const model *m, const char *hash, uint64_t seed, int runs)
{
    char request[300], got[TDM_SHA256_HEX] = "", run[512] = "";
    plan none = {0};
    int hits;
    world w = {.model = m, .size = 3, .every = "1000", .apart = true};
    compare(&w, &none, hash, "on three hosts");
    w.request = request;
    for (size_t i = 0; i + 1 < sizeof(phases) / sizeof(phases[0]); i++) {
        snprintf(request, sizeof(request),
                 "%s:step=%d:rank=0:file=%s/host0-%zu,%s:step=%d:rank=1:file=%s/host1-%zu",
                 phases[i], strcmp(phases[i], "update") == 0 ? 10 : 9, directory, i, phases[i],
                 strcmp(phases[i], "update") == 0 ? 10 : 9, directory, i);
        bool good = train(&w, &none, got, run, &hits);
        bool all_reach = strcmp(phases[i], "reduce") == 0 || strcmp(phases[i], "update") == 0 ||
                         strcmp(phases[i], "publish") == 0; /* not only ranks with an update */
        CHECK(good && (hits == 2 || !all_reach));
        CHECK_TEXT(got, hash);
        if (good) check_run(&w, run);
        if (good) CHECK(!log_has(run, "training goes back"));
        fprintf(stderr, "%s: %s, two of three hosts die in %s: %d hits\n",
                good && strcmp(got, hash) == 0 ? "ok" : "NOT OK", m->name, phases[i], hits);
    }
    w.request = NULL;
    for (int r = 0; r < runs; r++) {
        plan p = {.kills = 1 + r % 3, .random = seed * 7000 + (uint64_t)r};
        compare(&w, &p, hash, "hosts die at random");
    }
}

/* A live run, disturbed as planned, and its recorded order on another number of ranks. */
static void live_and_recorded(world *w, plan *p, const char *what)
{
    char hash[TDM_SHA256_HEX] = "", again[TDM_SHA256_HEX] = "", run[512] = "", replayed[512] = "";
    plan none = {0};
    int hits, no_hits;
    bool good = train(w, p, hash, run, &hits);
    CHECK(good);
    if (good) check_run(w, run);
    world replay = {.model = &live, .size = 1 + w->size % 3, .every = "1000", .order_from = run};
    good = good && train(&replay, &none, again, replayed, &no_hits);
    CHECK(good);
    CHECK_TEXT(again, hash);
    fprintf(stderr, "%s: live, zero %d, %d workers%s, %s, and recorded on %d: %d hits\n",
            good && strcmp(hash, again) == 0 ? "ok" : "NOT OK", w->zero, w->size,
            w->apart ? " on as many hosts" : "", what, replay.size, hits);
}

static void live_runs(uint64_t seed, int runs)
{
    plan none = {0};
    world w = {.model = &live, .size = 3, .every = "7"};
    for (int apart = 0; apart < 2; apart++) {
        w.apart = apart;
        w.size = 3;
        live_and_recorded(&w, &none, "undisturbed");
        for (size_t i = 0; i < COUNT(phases); i++) {
            char request[200]; /* no step: rounds are not known beforehand */
            snprintf(request, sizeof(request), "%s:rank=%d:file=%s/live-%d-%zu", phases[i],
                     (int)(i % 3), directory, apart, i);
            w.request = request;
            live_and_recorded(&w, &none, phases[i]);
            w.request = NULL;
        }
        for (int r = 0; r < runs; r++) {
            plan p = {.kills = 1 + r % 4, .stops = r % 4 == 3, .random = seed * 3000 + (uint64_t)r};
            w.size = 2 + (int)draw(&p, 4);
            w.zero = apart ? 0 : (int)draw(&p, 2);
            live_and_recorded(&w, &p, "random kills");
        }
        w.zero = 0;
    }
}

int main(int argc, char **argv)
{
    uint64_t seed = 1;
    int runs = 4;
    bool keep = false, only_live = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--runs") == 0 && i + 1 < argc)
            runs = atoi(argv[++i]);
        else if (strcmp(argv[i], "--keep") == 0)
            keep = true;
        else if (strcmp(argv[i], "--live") == 0)
            only_live = true;
    }
    directory = check_dir();
    write_data();
    plan none = {0};
    for (size_t m = 0; m < COUNT(models) && !only_live; m++) {
        char hash[TDM_SHA256_HEX] = "";
        undisturbed(&models[m], 0, hash);
        if (m == 0) stop_worker_that_finishes(&models[m], hash, "torn");
        if (m == 0) stop_worker_that_finishes(&models[m], hash, "mend");
        if (m == 0) begin_again(&models[m], hash);
        if (strcmp(models[m].name, "async") == 0) hosts_die(&models[m], hash, seed, runs);
        const int zeros[] = {0, models[m].max_zero < 2 ? models[m].max_zero : 2};
        for (int z = 0; z < (models[m].max_zero > 0 ? 2 : 1); z++) {
            int zero = zeros[z];
            world w = {.model = &models[m], .zero = zero, .size = 3, .every = "7"};
            compare(&w, &none, hash, "undisturbed");
            for (size_t i = 0; i < sizeof(phases) / sizeof(phases[0]); i++) {
                char request[200];
                snprintf(request, sizeof(request), "%s:step=%d:rank=%d:file=%s/hit-%zu-%d-%zu",
                         phases[i], 9, (int)(i % 3), directory, m, zero, i);
                w.request = request;
                compare(&w, &none, hash, phases[i]);
            }
            w.request = NULL;
            for (int r = 0; r < runs; r++) {
                plan p = {.kills = 1 + (int)((seed + (uint64_t)r) % 5),
                          .stops = r % 4 == 3,
                          .random = seed * 1000 + (uint64_t)r};
                w.size = 2 + (int)draw(&p, 4);
                w.zero = (int)draw(&p, (unsigned)models[m].max_zero + 1);
                char what[64];
                snprintf(what, sizeof(what), "random kills, seed %llu run %d",
                         (unsigned long long)seed, r);
                compare(&w, &p, hash, what);
            }
            w.size = 3;
        }
    }
    live_runs(seed, runs);
    if (!keep) check_dir_reset();
    printf("%d checks, %d failed\n", check_count, check_failures);
    return check_failures != 0;
}
