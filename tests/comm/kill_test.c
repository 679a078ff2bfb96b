/*
 * kill_test.c: real processes, really killed and really stopped, in the middle of traffic.
 *
 *   kill_test TRANSPORT TRIALS [SEED]     and, for itself: kill_test --rank PIPE
 *
 * In each trial a few ranks run random collectives without an end; one of them, drawn, gets SIGKILL or
 * SIGSTOP at a moment, drawn. Every survivor must come back with an error of the peer group that names
 * the victim: within 1 s of a kill, and within its calls' deadline (and a moment to ask around) of a
 * stop. Afterwards nothing may be left: no process, no socket with a name, no file.
 */
#include <tandem/comm.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MOST = 6, DEADLINE_MS = 600, WORKERS = 3 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLACK_S 4.0 /* sanitized processes are slow to do anything */
#else
#define SLACK_S 0.0
#endif
#define KILL_S (1.0 + SLACK_S)
/* The deadline counts from the start of the call, which may have begun just after the stop. */
#define STOP_S (DEADLINE_MS / 1e3 + 1.0 + SLACK_S)

/* What a rank has to say, through the pipe. */
typedef struct word {
    int rank;
    int status;
    bool ready; /* it is in the world, and traffic begins */
    double time_s;
    char text[400];
} word;

/* ---- a rank ------------------------------------------------------------------------------------- */

static void say(int pipe_fd, const word *w)
{
    if (write(pipe_fd, w, sizeof *w) != (ssize_t)sizeof *w) _exit(9);
}

static tdm_status one_call(tdm_comm *comm, tdm_rng *rng, float *a, float *b, tdm_error *err)
{
    static const tdm_call_kind kinds[] = {
        TDM_CALL_BARRIER,        TDM_CALL_BROADCAST,  TDM_CALL_REDUCE,    TDM_CALL_ALL_REDUCE,
        TDM_CALL_REDUCE_SCATTER, TDM_CALL_ALL_GATHER, TDM_CALL_ALL_TO_ALL};
    static const size_t counts[] = {1, 100, 5000, 100000, 1000000};
    int size = tdm_comm_size(comm);
    tdm_call call = {.kind = kinds[tdm_rng_below(rng, 7)],
                     .dtype = TDM_DTYPE_F32,
                     .count = counts[tdm_rng_below(rng, 5)],
                     .in = a,
                     .out = b,
                     .root = (int)tdm_rng_below(rng, (uint64_t)size),
                     .deadline_s = DEADLINE_MS / 1e3};
    if (tdm_rng_below(rng, 3) > 0) return tdm_call_run(tdm_comm_world(comm), &call, err);
    tdm_request *request = NULL;
    tdm_status status = tdm_call_start(tdm_comm_world(comm), &call, &request, err);
    return status == TDM_OK ? tdm_request_wait(request, err) : status;
}

static int be_a_rank(int pipe_fd)
{
    tdm_error err = {0};
    tdm_comm *comm = NULL;
    word w = {.rank = -1};
    w.status = tdm_comm_open(NULL, &comm, &err);
    if (w.status == TDM_OK) {
        w.rank = tdm_comm_rank(comm);
        w.status = tdm_group_barrier(tdm_comm_world(comm), &err);
    }
    snprintf(w.text, sizeof w.text, "%.399s", w.status == TDM_OK ? "" : err.message);
    w.ready = w.status == TDM_OK;
    say(pipe_fd, &w);
    if (w.status != TDM_OK) return 1;
    float *a = calloc(1100000, sizeof *a), *b = calloc(1100000, sizeof *b);
    if (!a || !b) return 1;
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = strtoull(getenv("KILL_SEED"), NULL, 10),
                                               .stream = TDM_RNG_STREAM_USER});
    tdm_status status = TDM_OK;
    while (status == TDM_OK) status = one_call(comm, &rng, a, b, &err);
    w.time_s = tdm_clock_s();
    w.status = (int)status;
    w.ready = false;
    snprintf(w.text, sizeof w.text, "%.399s", err.message);
    say(pipe_fd, &w);
    free(a);
    free(b);
    tdm_comm_close(comm);
    return 0;
}

/* ---- a trial ------------------------------------------------------------------------------------ */

typedef struct trial {
    const char *transport;
    uint64_t seed;
    int size, victim;
    bool stop;
    useconds_t delay_us;
    pid_t pids[RANKS_MOST];
    int pipe_fd;
    double slowest_s;
} trial;

static pid_t start_rank(const trial *t, int rank, int write_fd)
{
    pid_t pid = fork();
    if (pid != 0) return pid;
    char text[64];
    snprintf(text, sizeof text, "unix:tandem-kill-%d-%llu", (int)getppid(),
             (unsigned long long)t->seed);
    setenv("TANDEM_RENDEZVOUS", text, 1);
    setenv("TANDEM_SECRET", "kill", 1);
    setenv("TANDEM_TRANSPORT", t->transport, 1);
    snprintf(text, sizeof text, "%d", rank);
    setenv("TANDEM_RANK", text, 1);
    snprintf(text, sizeof text, "%d", t->size);
    setenv("TANDEM_SIZE", text, 1);
    snprintf(text, sizeof text, "%llu", (unsigned long long)t->seed);
    setenv("KILL_SEED", text, 1);
    snprintf(text, sizeof text, "%d", write_fd);
    execl("/proc/self/exe", "kill_test", "--rank", text, (char *)NULL);
    _exit(127);
}

/* Reads one word; false when none comes in time. */
static bool hear(const trial *t, word *out, double until_s)
{
    for (;;) {
        double left = until_s - tdm_clock_s();
        struct pollfd fd = {.fd = t->pipe_fd, .events = POLLIN};
        int got = poll(&fd, 1, left > 0 ? (int)(left * 1e3) + 1 : 0);
        if (got > 0) return read(t->pipe_fd, out, sizeof *out) == (ssize_t)sizeof *out;
        if (got == 0 || errno != EINTR) return false;
    }
}

static bool complain(const trial *t, const char *what, const word *w)
{
    fprintf(
        stderr,
        "FAIL: %s\n  rank %d: status %s: %s\n  %s, seed %llu: %d ranks, %s of rank %d after %u us\n",
        what, w->rank, tdm_status_name((tdm_status)w->status), w->text, t->transport,
        (unsigned long long)t->seed, t->size, t->stop ? "SIGSTOP" : "SIGKILL", t->victim,
        (unsigned)t->delay_us);
    return false;
}

static bool names_victim(const trial *t, const char *text)
{
    char plain[16], listed[16];
    snprintf(plain, sizeof plain, "rank %d", t->victim);
    snprintf(listed, sizeof listed, " %d", t->victim);
    const char *list = strstr(text, "ranks ");
    return strstr(text, plain) != NULL || (list && strstr(list, listed));
}

static bool watch(trial *t)
{
    word w = {.rank = -1};
    for (int i = 0; i < t->size; i++)
        if (!hear(t, &w, tdm_clock_s() + 30) || !w.ready)
            return complain(t, "the world was not made", &w);
    usleep(t->delay_us);
    double struck_s = tdm_clock_s();
    kill(t->pids[t->victim], t->stop ? SIGSTOP : SIGKILL);
    double limit_s = t->stop ? STOP_S : KILL_S;
    for (int i = 0; i < t->size - 1; i++) {
        w = (word){.rank = -1};
        if (!hear(t, &w, struck_s + limit_s + 10))
            return complain(t, "a survivor waits for ever", &w);
        double took_s = w.time_s - struck_s;
        if (took_s > t->slowest_s) t->slowest_s = took_s;
        if (tdm_status_group_of((tdm_status)w.status) != TDM_STATUS_GROUP_PEER)
            return complain(t, "the error is not of the peer group", &w);
        if (!names_victim(t, w.text)) return complain(t, "the error does not name the victim", &w);
        if (took_s > limit_s) {
            fprintf(stderr, "  it took %.3f s\n", took_s);
            return complain(t, "the error came too late", &w);
        }
    }
    return true;
}

/* Everybody must have ended, or end now. */
static bool reap(trial *t, bool well)
{
    bool clean = true;
    kill(t->pids[t->victim], SIGKILL);
    for (int i = 0; i < t->size; i++) {
        double until_s = tdm_clock_s() + 10 + SLACK_S;
        int state = 0;
        pid_t got = 0;
        while ((got = waitpid(t->pids[i], &state, well ? WNOHANG : 0)) == 0 &&
               tdm_clock_s() < until_s)
            usleep(500);
        if (got == 0) {
            fprintf(stderr, "FAIL: rank %d did not end\n", i);
            kill(t->pids[i], SIGKILL);
            waitpid(t->pids[i], &state, 0);
            clean = false;
        } else if (i != t->victim && well && (!WIFEXITED(state) || WEXITSTATUS(state) != 0)) {
            fprintf(stderr, "FAIL: rank %d ended with %x\n", i, state);
            clean = false;
        }
    }
    return clean;
}

static bool run_trial(trial *t)
{
    int ends[2];
    if (pipe(ends) != 0) return false;
    t->pipe_fd = ends[0];
    for (int i = 0; i < t->size; i++) t->pids[i] = start_rank(t, i, ends[1]);
    close(ends[1]);
    bool well = watch(t);
    if (!well)
        for (int i = 0; i < t->size; i++) kill(t->pids[i], SIGKILL);
    well = reap(t, well) && well;
    close(ends[0]);
    return well;
}

/* ---- what is left -------------------------------------------------------------------------------- */

/* Names that ranks of this test have given to sockets. */
static int sockets_left(void)
{
    char line[512], name[32];
    int count = 0;
    snprintf(name, sizeof name, "tandem-kill-%d-", (int)getpid());
    FILE *file = fopen("/proc/net/unix", "r");
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) count += strstr(line, name) != NULL;
    fclose(file);
    return count;
}

/* Every WORKERS-th trial, from number `worker` on. */
static int run_trials(const char *transport, int trials, uint64_t first, int worker)
{
    double slowest_kill_s = 0, slowest_stop_s = 0;
    int count = 0;
    for (int i = worker; i < trials; i += WORKERS, count++) {
        trial t = {.transport = transport, .seed = first + (uint64_t)i};
        tdm_rng rng = tdm_rng_at(
            (tdm_rng_address){.seed = t.seed, .stream = TDM_RNG_STREAM_USER + 1});
        t.size = 2 + (int)tdm_rng_below(&rng, RANKS_MOST - 1);
        t.victim = (int)tdm_rng_below(&rng, (uint64_t)t.size);
        t.stop = tdm_rng_below(&rng, 5) == 0;
        t.delay_us = (useconds_t)tdm_rng_below(&rng, 60000);
        if (!run_trial(&t)) return 1;
        double *slowest = t.stop ? &slowest_stop_s : &slowest_kill_s;
        if (t.slowest_s > *slowest) *slowest = t.slowest_s;
    }
    if (sockets_left()) {
        fprintf(stderr, "FAIL: %d sockets are left\n", sockets_left());
        return 1;
    }
    printf(
        "%s: %d trials; the slowest survivor had its error %.0f ms after a kill, %.0f ms after a "
        "stop\n",
        transport, count, slowest_kill_s * 1e3, slowest_stop_s * 1e3);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--rank") == 0) return be_a_rank(atoi(argv[2]));
    if (argc < 3) return 2;
    signal(SIGPIPE, SIG_IGN);
    tdm_transport_info info;
    for (size_t i = 0; tdm_transport_at(i, &info); i++)
        if (strcmp(info.name, argv[1]) == 0 && !info.usable) {
            printf("SKIPPED: %s cannot be used here: %s\n", argv[1], info.why);
            return 77;
        }
    int trials = atoi(argv[2]);
    uint64_t first = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    /* Most of a trial is waiting: some run side by side. */
    pid_t workers[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = fork();
        if (workers[i] == 0) _exit(run_trials(argv[1], trials, first, i));
    }
    int failed = 0;
    for (int i = 0; i < WORKERS; i++) {
        int state = 0;
        failed |= waitpid(workers[i], &state, 0) != workers[i] || state != 0;
    }
    return failed;
}
