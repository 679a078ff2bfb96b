/*
 * pump.c: a thread that drives UCX while the engine does other work.
 *
 * UCX makes progress only when it is called. It reports a send as complete once it has copied the
 * bytes, and may then hold the end of a message, or the answer to a peer's rendezvous, until the
 * next call; after the last message of a collective, that is after the program has computed its
 * next step. So a thread calls UCX when it was not called for a moment. The thread makes no
 * callbacks: it queues what arrives and ends the engine's wait.
 *
 * While the engine is active, the thread only checks every few milliseconds; while nothing happens,
 * it sleeps in the kernel. It runs with all signals blocked.
 */
#include "base/timing.h"
#include "transport/plugins/ucx/ucx.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { MAX_TURNS = 16 };

/* Sleeps until UCX has work (with `events`), or for `ms`. True: the thread must end. */
static bool pump_sleep(tdm__ucx *u, bool events, int ms)
{
    struct pollfd fds[] = {{.fd = u->stop_fd, .events = POLLIN},
                           {.fd = u->event_fd, .events = POLLIN}};
    return poll(fds, events ? 2 : 1, ms) > 0 && (fds[0].revents & POLLIN);
}

static bool pump_engine_is_active(tdm__ucx *u)
{
    uint64_t called_ns = atomic_load_explicit(&u->called_ns, memory_order_relaxed);
    return atomic_load_explicit(&u->waiting, memory_order_relaxed) > 0 ||
           tdm_clock_ns() - called_ns < TDM__TIMING_UCX_AWAY_NS;
}

/* Makes progress a few times. True: nothing is left to do, and UCX will signal new work. */
static bool pump_progress(tdm__ucx *u)
{
    pthread_mutex_lock(&u->lock);
    unsigned did = 0;
    for (int i = 0; i < MAX_TURNS && (did = tdm__ucx_turn(u)) > 0;) i++;
    bool queued = u->ended_first || u->unheard || u->lost;
    bool quiet = did == 0 && ucp_worker_arm(u->worker) == UCS_OK;
    pthread_mutex_unlock(&u->lock);
    uint64_t one = 1;
    if (queued && write(u->wake_fd, &one, sizeof(one)) < 0)
        return quiet; /* full: already signalled */
    return quiet;
}

static void *pump_run(void *argument)
{
    tdm__ucx *u = argument;
    for (bool end = false; !end;) {
        if (pump_engine_is_active(u))
            end = pump_sleep(u, false, TDM__TIMING_UCX_NAP_MS);
        else if (pump_progress(u))
            end = pump_sleep(u, true, TDM__TIMING_UCX_SLEEP_MS);
        else
            end = pump_sleep(u, false, 0);
    }
    return NULL;
}

bool tdm__ucx_pump_start(tdm__ucx *u)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    u->has_pump = pthread_create(&u->pump, NULL, pump_run, u) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (u->has_pump) pthread_setname_np(u->pump, "tandem-ucx");
    return u->has_pump;
}

void tdm__ucx_pump_stop(tdm__ucx *u)
{
    uint64_t one = 1;
    if (!u->has_pump || write(u->stop_fd, &one, sizeof(one)) < 0) return;
    pthread_join(u->pump, NULL);
    u->has_pump = false;
}
