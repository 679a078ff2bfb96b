/*
 * world.c: see world.h.
 */
#include "world.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_ARGUMENTS = 8 };

static void world_set_number(const char *variable, int value)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", value);
    setenv(variable, text, 1);
}

void world_place_set(const world_place *place)
{
    char text[96];
    snprintf(text, sizeof(text), "unix:tandem-%s", place->meeting);
    setenv("TANDEM_RENDEZVOUS", text, 1);
    setenv("TANDEM_SECRET", "a secret of the tests", 1);
    if (place->transport) setenv("TANDEM_TRANSPORT", place->transport, 1);
    if (place->host) setenv("TANDEM_HOST", place->host, 1);
    world_set_number("TANDEM_RANK", place->rank);
    world_set_number("TANDEM_SIZE", place->size);
    if (place->deadline_s > 0) world_set_number("TANDEM_DEADLINE", place->deadline_s);
}

pid_t world_fork(int lifetime_s)
{
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127); /* it ended before the line above */
    alarm((unsigned)(lifetime_s > 0 ? lifetime_s : WORLD_LIFETIME_S));
    check_failures = 0;
    return 0;
}

void world_exec(const char *argument, ...)
{
    const char *list[MAX_ARGUMENTS + 2] = {"rank", argument};
    va_list more;
    va_start(more, argument);
    for (int i = 2; i < MAX_ARGUMENTS + 1 && list[i - 1]; i++) list[i] = va_arg(more, const char *);
    va_end(more);
    execv("/proc/self/exe", (char *const *)(uintptr_t)list);
    _exit(127);
}

void world_exit(int status)
{
    fflush(NULL);
    _exit(status == 0 && check_failures > 0 ? WORLD_CHECKS_FAILED : status);
}

static int world_end_of(int state)
{
    return WIFSIGNALED(state) ? WORLD_SIGNALLED + WTERMSIG(state) : WEXITSTATUS(state);
}

int world_end(pid_t pid)
{
    int state = 0;
    while (waitpid(pid, &state, 0) < 0)
        if (errno != EINTR) return -1;
    return world_end_of(state);
}

int world_end_within(pid_t pid, double seconds)
{
    double until_s = check_now_s() + seconds;
    int state = 0;
    pid_t got;
    while ((got = waitpid(pid, &state, WNOHANG)) == 0 && check_now_s() < until_s)
        check_sleep_s(0.001);
    if (got == pid) return world_end_of(state);
    kill(pid, SIGKILL);
    world_end(pid);
    return WORLD_LATE;
}

void world_ranks_start(world_ranks *w, int size, int lifetime_s, world_rank_fn run, void *user)
{
    REQUIRE(size > 0 && size <= WORLD_MAX_RANKS);
    w->size = size;
    for (int i = 0; i < size; i++) {
        w->pids[i] = world_fork(lifetime_s);
        if (w->pids[i] == 0) world_exit(run(user, i));
    }
}

void world_kill(const world_ranks *w, int rank, int signal_number)
{
    CHECK_INT(kill(w->pids[rank], signal_number), 0);
}

void world_ranks_finish(const world_ranks *w, int victim)
{
    for (int i = 0; i < w->size; i++) {
        int end = world_end(w->pids[i]), expected = i == victim ? WORLD_SIGNALLED + SIGKILL : 0;
        if (end != expected) fprintf(stderr, "rank %d of %d ended with %d\n", i, w->size, end);
        CHECK_INT(end, expected);
    }
}
