/* kill_world.c: random collectives in a world in which a rank is killed or stopped: see kill_world.h. */
#include "kill_world.h"
#include "base/base.h"
#include "world.h"

#include <tandem/comm.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANK_S = 300 };

/* Seconds after the signal within which a survivor returns. */
static const double late_s = 25;

/* The record that a rank writes to the pipe. */
typedef struct word {
    int rank;
    int status;
    bool ready; /* it has joined the world, and traffic begins */
    double time_s;
    char text[1000];
} word;

/* ---- a rank ------------------------------------------------------------------------------------- */

static void say(int pipe_fd, const word *w)
{
    if (write(pipe_fd, w, sizeof(*w)) != (ssize_t)sizeof(*w)) _exit(9);
}

static double number_of(const char *variable)
{
    const char *text = getenv(variable);
    return text ? strtod(text, NULL) : 0;
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
                     .deadline_s = number_of("KILL_DEADLINE_S")};
    if (tdm_rng_below(rng, 3) > 0) return tdm_call_run(tdm_comm_world(comm), &call, err);
    tdm_request *request = NULL;
    tdm_status status = tdm_call_start(tdm_comm_world(comm), &call, &request, err);
    return status == TDM_OK ? tdm_request_wait(request, err) : status;
}

int be_a_rank(int pipe_fd)
{
    tdm_error err = {0};
    tdm_comm *comm = NULL;
    word w = {.rank = -1};
    w.status = tdm_comm_open(NULL, &comm, &err);
    if (w.status == TDM_OK) {
        w.rank = tdm_comm_rank(comm);
        w.status = tdm_group_barrier(tdm_comm_world(comm), &err);
    }
    snprintf(w.text, sizeof(w.text), "%.999s", w.status == TDM_OK ? "" : err.message);
    w.ready = w.status == TDM_OK;
    say(pipe_fd, &w);
    if (w.status != TDM_OK) return 1;
    float *a = calloc(1100000, sizeof(*a)), *b = calloc(1100000, sizeof(*b));
    if (!a || !b) return 1;
    tdm_rng rng = tdm_rng_at(
        (tdm_rng_address){.seed = (uint64_t)number_of("KILL_SEED"), .stream = TDM_RNG_STREAM_USER});
    tdm_status status = TDM_OK;
    while (status == TDM_OK) status = one_call(comm, &rng, a, b, &err);
    w.time_s = tdm_clock_s();
    w.status = (int)status;
    w.ready = false;
    snprintf(w.text, sizeof(w.text), "%.999s", err.message);
    say(pipe_fd, &w);
    free(a);
    free(b);
    tdm_comm_close(comm);
    return 0;
}

/* ---- a trial ------------------------------------------------------------------------------------ */

static void set_number(const char *variable, double value)
{
    char text[32];
    snprintf(text, sizeof(text), "%.17g", value);
    setenv(variable, text, 1);
}

static int host_of(const trial *t, int rank)
{
    return t->spaces ? rank / t->ranks_per_host : 0;
}

static pid_t start_rank(const trial *t, int rank, int write_fd)
{
    pid_t pid = world_fork(RANK_S);
    if (pid != 0) return pid;
    setenv("TANDEM_RENDEZVOUS", t->rendezvous, 1);
    setenv("TANDEM_SECRET", "kill", 1);
    if (t->transport) setenv("TANDEM_TRANSPORT", t->transport, 1);
    set_number("TANDEM_RANK", rank);
    set_number("TANDEM_SIZE", t->size);
    set_number("KILL_SEED", (double)t->seed);
    set_number("KILL_DEADLINE_S", t->deadline_s);
    char text[16], self[4096];
    snprintf(text, sizeof(text), "%d", write_fd);
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (length < 0) _exit(127);
    self[length] = '\0';
    if (t->spaces) /* which becomes the rank: the process stays the same */
        execlp("ip", "ip", "netns", "exec", t->spaces[host_of(t, rank)], self, "--rank", text,
               (char *)NULL);
    else
        execl(self, self, "--rank", text, (char *)NULL);
    _exit(127);
}

/* Reads one record; false if none arrives in time. */
static bool hear(const trial *t, word *out, double until_s)
{
    for (;;) {
        double left = until_s - tdm_clock_s();
        struct pollfd fd = {.fd = t->pipe_fd, .events = POLLIN};
        int got = poll(&fd, 1, left > 0 ? (int)(left * 1e3) + 1 : 0);
        if (got > 0) return read(t->pipe_fd, out, sizeof(*out)) == (ssize_t)sizeof(*out);
        if (got == 0 || errno != EINTR) return false;
    }
}

static bool complain(const trial *t, const char *what, const word *w)
{
    fprintf(
        stderr,
        "FAIL: %s\n  rank %d: status %s: %s\n  %s, seed %llu: %d ranks, %s of rank %d after %u us\n",
        what, w->rank, tdm_status_name((tdm_status)w->status), w->text,
        t->transport ? t->transport : "auto", (unsigned long long)t->seed, t->size,
        t->stop ? "SIGSTOP" : "SIGKILL", t->victim, (unsigned)t->delay_us);
    return false;
}

static bool names_victim(const trial *t, const char *text)
{
    char plain[16], listed[16];
    snprintf(plain, sizeof(plain), "rank %d", t->victim);
    snprintf(listed, sizeof(listed), " %d", t->victim);
    const char *list = strstr(text, "ranks ");
    return strstr(text, plain) != NULL || (list && strstr(list, listed));
}

/* With messages, a rank that is notified of a death very late may find that a neighbour has left because of
 * it. It asks the hub before it reports that neighbour. Nevertheless this was observed, once in 660 trials with
 * thirty times as many processes as CPUs. */
static bool is_second_hand(const trial *t, const char *text)
{
    if (t->transport && strcmp(t->transport, "shm") == 0) return false;
    return strstr(text, "sending to rank") || strstr(text, "receiving from rank");
}

int second_most(int trials)
{
    return 1 + trials / 50;
}

/* Checks the record of one survivor: an error of the peer group that names the victim, in time. */
static bool judge(trial *t, double struck_s)
{
    word w = {.rank = -1};
    if (!hear(t, &w, struck_s + late_s + 10)) return complain(t, "a survivor waits forever", &w);
    bool same_host = host_of(t, w.rank) == host_of(t, t->victim);
    double took_s = w.time_s - struck_s;
    if (took_s > t->slowest_s[!same_host]) t->slowest_s[!same_host] = took_s;
    if (tdm_status_group_of((tdm_status)w.status) != TDM_STATUS_GROUP_PEER)
        return complain(t, "the error is not of the peer group", &w);
    bool named = names_victim(t, w.text);
    t->named_count += named;
    t->second_count += !named;
    if (!named && !is_second_hand(t, w.text))
        return complain(t, "the error does not name the victim", &w);
    if (!named) fprintf(stderr, "rank %d, after %.3f s, says: %s\n", w.rank, took_s, w.text);
    if (took_s <= late_s) return true;
    fprintf(stderr, "  it took %.3f s\n", took_s);
    return complain(t, "the error came too late", &w);
}

static bool watch(trial *t)
{
    word w = {.rank = -1};
    for (int i = 0; i < t->size; i++)
        if (!hear(t, &w, tdm_clock_s() + 60) || !w.ready)
            return complain(t, "the world was not made", &w);
    usleep(t->delay_us);
    double struck_s = tdm_clock_s();
    kill(t->pids[t->victim], t->stop ? SIGSTOP : SIGKILL);
    for (int i = 0; i < t->size - 1; i++)
        if (!judge(t, struck_s)) return false;
    return t->named_count > 0 || complain(t, "no survivor's error names the victim", &w);
}

/* All ranks must have ended, or end now. */
static bool reap(trial *t, bool well)
{
    bool clean = true;
    kill(t->pids[t->victim], SIGKILL);
    for (int i = 0; i < t->size; i++) {
        int end = world_end_within(t->pids[i], 30);
        if (end == WORLD_LATE || (i != t->victim && well && end != 0)) {
            fprintf(stderr, "FAIL: rank %d %s %d\n", i,
                    end == WORLD_LATE ? "did not end:" : "ended with", end);
            clean = false;
        }
    }
    return clean;
}

bool run_trial(trial *t)
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
