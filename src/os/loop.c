/*
 * loop.c: an event loop on epoll and a signalfd. See the header for the contract.
 *
 *     turn:  epoll_wait +- signalfd ----> on_signal for each signal
 *                       |       +-------> SIGCHLD: waitid for each child, on_exit if it has exited
 *                       +- descriptors -> on_ready
 *                       +- timeout -----> on_time for each timer that is due
 *
 * Timers are a list in the order of their times; the first one limits the wait. Children are found
 * by SIGCHLD. The kernel merges signals of the same number, so each SIGCHLD leads to a check of
 * every child; and it may deliver SIGCHLD to another thread that does not block it, so children are
 * also checked at regular intervals. A pidfd for each child would avoid both, but costs a
 * descriptor for each of up to thousands of processes.
 *
 * Invariant: a watch, timer or child that was removed is in no list and in no event that is still
 * to be delivered.
 */
#include "os/loop.h"
#include "base/base.h"
#include "base/timing.h"
#include "os/internal.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_EVENTS = 64, MAX_WAIT_MS = 60 * 1000 };

struct tdm__loop {
    int epoll;
    /* Events of the current turn; the pointer of an event that must not be delivered is NULL. */
    struct epoll_event events[MAX_EVENTS];
    int event_count;

    tdm__loop_watch *always_ready;
    tdm__loop_watch *next_always_ready; /* cursors: the removal of a list entry advances them */
    tdm__loop_timer *first_timer, *last_timer;

    tdm__loop_child *children, *next_child;
    bool must_check_children;
    double check_children_at_s;

    int signals; /* a signalfd; -1: none */
    sigset_t before;
    tdm__loop_signal_fn on_signal;
    void *signal_user;
};

tdm_status tdm__loop_create(tdm__loop **out, tdm_error *err)
{
    tdm__loop *loop = calloc(1, sizeof(*loop));
    if (!loop) return tdm_fail_oom(err, "for an event loop");
    loop->signals = -1;
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll < 0) {
        free(loop);
        return tdm_os_fail(err, "cannot create", "an epoll descriptor");
    }
    *out = loop;
    return TDM_OK;
}

void tdm__loop_destroy(tdm__loop *loop)
{
    struct signalfd_siginfo info;
    if (!loop) return;
    if (loop->signals >= 0) {
        while (read(loop->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) continue;
        close(loop->signals);
        pthread_sigmask(SIG_SETMASK, &loop->before, NULL);
    }
    close(loop->epoll);
    free(loop);
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static void watch_unlink(tdm__loop *loop, tdm__loop_watch *watch)
{
    if (loop->next_always_ready == watch) loop->next_always_ready = watch->next;
    if (watch->next) watch->next->prev = watch->prev;
    if (watch->prev)
        watch->prev->next = watch->next;
    else
        loop->always_ready = watch->next;
    watch->prev = watch->next = NULL;
    watch->is_always_ready = false;
}

tdm_status tdm__loop_watch_set(tdm__loop *loop, tdm__loop_watch *watch, unsigned events,
                               tdm_error *err)
{
    if (watch->is_in_epoll && watch->events == events) return TDM_OK;
    watch->events = events;
    if (watch->is_always_ready) {
        if (events == 0) watch_unlink(loop, watch);
        return TDM_OK;
    }
    if (events == 0) {
        if (watch->is_in_epoll) (void)epoll_ctl(loop->epoll, EPOLL_CTL_DEL, watch->fd, NULL);
        watch->is_in_epoll = false;
        for (int i = 0; i < loop->event_count; i++)
            if (loop->events[i].data.ptr == watch) loop->events[i].data.ptr = NULL;
        return TDM_OK;
    }

    struct epoll_event event = {.events = (events & TDM__LOOP_READ ? (unsigned)EPOLLIN : 0) |
                                          (events & TDM__LOOP_WRITE ? (unsigned)EPOLLOUT : 0),
                                .data.ptr = watch};
    int operation = watch->is_in_epoll ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(loop->epoll, operation, watch->fd, &event) == 0) {
        watch->is_in_epoll = true;
        return TDM_OK;
    }
    if (errno != EPERM) {
        watch->events = 0;
        return tdm_os_fail(err, "cannot watch", "a descriptor");
    }

    watch->is_always_ready = true;
    watch->prev = NULL;
    watch->next = loop->always_ready;
    if (watch->next) watch->next->prev = watch;
    loop->always_ready = watch;
    return TDM_OK;
}

static void loop_deliver_ready(tdm__loop *loop)
{
    for (int i = 0; i < loop->event_count; i++) {
        tdm__loop_watch *watch = loop->events[i].data.ptr;
        if (!watch) continue;
        const unsigned events = loop->events[i].events;
        const bool has_ended = (events & (EPOLLHUP | EPOLLERR)) != 0;
        unsigned ready = (has_ended || (events & EPOLLIN) ? (unsigned)TDM__LOOP_READ : 0) |
                         (has_ended || (events & EPOLLOUT) ? (unsigned)TDM__LOOP_WRITE : 0);
        ready &= watch->events;
        if (ready) watch->on_ready(watch, ready);
    }
    loop->event_count = 0;

    for (tdm__loop_watch *watch = loop->always_ready; watch; watch = loop->next_always_ready) {
        loop->next_always_ready = watch->next;
        watch->on_ready(watch, watch->events);
    }
}

/* ---- timers ---------------------------------------------------------------------------------- */

void tdm__loop_timer_set(tdm__loop *loop, tdm__loop_timer *timer, double at_s)
{
    if (timer->is_set) {
        if (timer->prev)
            timer->prev->next = timer->next;
        else
            loop->first_timer = timer->next;
        if (timer->next)
            timer->next->prev = timer->prev;
        else
            loop->last_timer = timer->prev;
        timer->prev = timer->next = NULL;
    }
    timer->at_s = at_s;
    timer->is_set = isfinite(at_s) != 0;
    if (!timer->is_set) return;

    tdm__loop_timer *before = loop->last_timer;
    while (before && before->at_s > at_s) before = before->prev;
    timer->prev = before;
    timer->next = before ? before->next : loop->first_timer;
    if (timer->prev)
        timer->prev->next = timer;
    else
        loop->first_timer = timer;
    if (timer->next)
        timer->next->prev = timer;
    else
        loop->last_timer = timer;
}

/* A timer that a callback sets to a time that has passed is called in the next turn, so a turn
 * ends. */
static void loop_deliver_timers(tdm__loop *loop)
{
    const double now_s = tdm_clock_s();
    while (loop->first_timer && loop->first_timer->at_s <= now_s) {
        tdm__loop_timer *timer = loop->first_timer;
        tdm__loop_timer_set(loop, timer, INFINITY);
        timer->on_time(timer);
        if (timer->is_set && timer->at_s <= now_s) return;
    }
}

/* ---- signals and children -------------------------------------------------------------------- */

tdm_status tdm__loop_signals(tdm__loop *loop, const int *signals, size_t count,
                             tdm__loop_signal_fn on_signal, void *user, tdm_error *err)
{
    sigset_t taken;
    sigemptyset(&taken);
    sigaddset(&taken, SIGCHLD);
    for (size_t i = 0; i < count; i++) {
        struct sigaction action;
        if (sigaction(signals[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&taken, signals[i]);
    }
    pthread_sigmask(SIG_BLOCK, &taken, &loop->before);
    loop->on_signal = on_signal;
    loop->signal_user = user;
    loop->signals = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);

    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &loop->signals};
    if (loop->signals >= 0 && epoll_ctl(loop->epoll, EPOLL_CTL_ADD, loop->signals, &event) == 0)
        return TDM_OK;
    tdm_status status = tdm_os_fail(err, "cannot create", "a signalfd");
    if (loop->signals >= 0) close(loop->signals);
    loop->signals = -1;
    pthread_sigmask(SIG_SETMASK, &loop->before, NULL);
    return status;
}

const sigset_t *tdm__loop_mask_before(const tdm__loop *loop)
{
    return &loop->before;
}

void tdm__loop_child_add(tdm__loop *loop, tdm__loop_child *child)
{
    child->prev = NULL;
    child->next = loop->children;
    if (child->next) child->next->prev = child;
    loop->children = child;
    loop->must_check_children = true; /* its SIGCHLD may have been received already */
}

void tdm__loop_child_remove(tdm__loop *loop, tdm__loop_child *child)
{
    if (loop->next_child == child) loop->next_child = child->next;
    if (child->next) child->next->prev = child->prev;
    if (child->prev)
        child->prev->next = child->next;
    else
        loop->children = child->next;
    child->prev = child->next = NULL;
}

static void loop_deliver_signals(tdm__loop *loop)
{
    struct signalfd_siginfo info;
    while (read(loop->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGCHLD)
            loop->must_check_children = true;
        else
            loop->on_signal((int)info.ssi_signo, loop->signal_user);
    }
}

/* The process id of a child, and so the id of its group, stays reserved until waitpid: a signal to
 * the group before that cannot reach other processes. A child does not exist any more if another
 * part of the program has waited for it, or if SIGCHLD is ignored: then the kernel discards its exit
 * status. */
static void loop_deliver_exits(tdm__loop *loop)
{
    const double now_s = tdm_clock_s();
    if (!loop->must_check_children && now_s < loop->check_children_at_s) return;
    loop->must_check_children = false;
    loop->check_children_at_s = now_s + TDM__TIMING_OS_CHILD_CHECK_S;

    for (tdm__loop_child *child = loop->children; child; child = loop->next_child) {
        siginfo_t info = {.si_pid = 0};
        int wait_status = 0;
        loop->next_child = child->next;
        bool is_gone = waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 &&
                       errno == ECHILD;
        if (!is_gone && info.si_pid != child->pid) continue;

        if (is_gone) {
            wait_status = W_EXITCODE(TDM__LOOP_UNKNOWN_EXIT, 0);
        } else {
            if (child->leads_group && (info.si_code != CLD_EXITED || info.si_status != 0))
                kill(-child->pid, SIGKILL);
            while (waitpid(child->pid, &wait_status, 0) < 0 && errno == EINTR) continue;
        }
        tdm__loop_child_remove(loop, child);
        child->on_exit(child, wait_status);
    }
}

/* ---- turn ------------------------------------------------------------------------------------ */

static int loop_timeout_ms(const tdm__loop *loop, double max_wait_s)
{
    const double now_s = tdm_clock_s();
    double until_s = now_s + max_wait_s;
    if (loop->always_ready || (loop->children && loop->must_check_children)) return 0;
    if (loop->first_timer) until_s = fmin(until_s, loop->first_timer->at_s);
    if (loop->children) until_s = fmin(until_s, loop->check_children_at_s);
    const double wait_ms = ceil((until_s - now_s) * 1e3);
    return wait_ms > MAX_WAIT_MS ? MAX_WAIT_MS : wait_ms > 0 ? (int)wait_ms : 0;
}

tdm_status tdm__loop_turn(tdm__loop *loop, double max_wait_s, tdm_error *err)
{
    int count = epoll_wait(loop->epoll, loop->events, MAX_EVENTS,
                           loop_timeout_ms(loop, max_wait_s));
    if (count < 0 && errno != EINTR) return tdm_os_fail(err, "cannot wait for", "events");
    loop->event_count = count > 0 ? count : 0;

    for (int i = 0; i < loop->event_count; i++)
        if (loop->events[i].data.ptr == &loop->signals) {
            loop->events[i].data.ptr = NULL;
            loop_deliver_signals(loop);
        }
    loop_deliver_exits(loop);
    loop_deliver_ready(loop);
    loop_deliver_timers(loop);
    return TDM_OK;
}
