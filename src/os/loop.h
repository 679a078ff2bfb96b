/*
 * loop.h: an event loop: one thread waits for descriptors, signals, exits of child processes and
 * times.
 *
 *     tdm__loop *loop;
 *     tdm__loop_create(&loop, err);
 *     tdm__loop_signals(loop, signals, count, on_signal, user, err);
 *     tdm__loop_timer_set(loop, &timer, tdm_clock_s() + 5);
 *     while (!is_done) tdm__loop_turn(loop, INFINITY, err);
 *     tdm__loop_destroy(loop);
 *
 * A loop belongs to the thread that created it; no function may be called from another thread.
 * Callbacks run inside tdm__loop_turn, one after the other. A callback may add, change and remove
 * any watch, timer or child of its loop, itself included: after the removal its callback is not
 * called again, not even for an event that has already happened. It must not call tdm__loop_turn or
 * tdm__loop_destroy.
 *
 * Watches, timers and children are structs of the caller, initialised by it with a callback and
 * `user`, otherwise zero. The loop links them but does not copy or free them: they stay at their
 * address until they are removed.
 */
#ifndef TANDEM_OS_LOOP_H
#define TANDEM_OS_LOOP_H

#include <tandem/os.h>

#include <signal.h>
#include <sys/types.h>

typedef struct tdm__loop tdm__loop;

tdm_status tdm__loop_create(tdm__loop **out, tdm_error *err);
/* Drops signals that are pending, and restores the signal mask. Watches, timers and children that
 * are left are forgotten; their descriptors and processes are not touched. NULL is fine. */
void tdm__loop_destroy(tdm__loop *loop);
/* Waits for the next event, at most `max_wait_s` (0: does not wait; INFINITY: no limit), and calls
 * the callbacks of all events that have happened: signals, then children, then descriptors, then
 * timers. May return without an event. */
tdm_status tdm__loop_turn(tdm__loop *loop, double max_wait_s, tdm_error *err);

/* ---- descriptors ----------------------------------------------------------------------------- */

enum { TDM__LOOP_READ = 1, TDM__LOOP_WRITE = 2 };
/* `ready` has the events of interest that will not block. A closed peer or an error counts as each
 * of them: the next read or write reports it. */
typedef struct tdm__loop_watch tdm__loop_watch;
typedef void (*tdm__loop_watch_fn)(tdm__loop_watch *watch, unsigned ready);
struct tdm__loop_watch {
    int fd;
    tdm__loop_watch_fn on_ready;
    void *user;
    /* Of the loop. */
    unsigned events;
    bool is_in_epoll;
    bool is_always_ready; /* a regular file, which never blocks and which epoll does not accept */
    tdm__loop_watch *prev, *next;
};
/* Sets the events of interest; 0 removes the watch, which must happen before the descriptor is
 * closed. Events are level-triggered: the callback is called in every turn until it has read or
 * written enough. */
tdm_status tdm__loop_watch_set(tdm__loop *loop, tdm__loop_watch *watch, unsigned events,
                               tdm_error *err);

/* ---- timers ---------------------------------------------------------------------------------- */

typedef struct tdm__loop_timer tdm__loop_timer;
typedef void (*tdm__loop_timer_fn)(tdm__loop_timer *timer);
struct tdm__loop_timer {
    tdm__loop_timer_fn on_time;
    void *user;
    double at_s; /* when it is due, if it is linked */
    /* Of the loop. */
    bool is_set;
    tdm__loop_timer *prev, *next;
};
/* Sets or moves the time (tdm_clock_s) of the one call; INFINITY removes the timer. Constant cost
 * if times are mostly set in ascending order, otherwise linear in the number of later timers. */
void tdm__loop_timer_set(tdm__loop *loop, tdm__loop_timer *timer, double at_s);

/* ---- signals and children -------------------------------------------------------------------- */

typedef void (*tdm__loop_signal_fn)(int signal_number, void *user);
/* Blocks SIGCHLD and those of the given signals that are not ignored in this thread, and receives
 * them. At most once for a loop, and before the first child is added. Other threads of the process
 * should block them as well. */
tdm_status tdm__loop_signals(tdm__loop *loop, const int *signals, size_t count,
                             tdm__loop_signal_fn on_signal, void *user, tdm_error *err);
/* The signal mask of this thread before tdm__loop_signals: for child processes. */
const sigset_t *tdm__loop_mask_before(const tdm__loop *loop);

/* The exit code in `wait_status` of a child that does not exist any more: its status is unknown. */
enum { TDM__LOOP_UNKNOWN_EXIT = 255 };
/* `wait_status` is that of waitpid: the child has been waited for, and is removed from the loop. */
typedef struct tdm__loop_child tdm__loop_child;
typedef void (*tdm__loop_child_fn)(tdm__loop_child *child, int wait_status);
struct tdm__loop_child {
    pid_t pid;
    bool leads_group; /* what is left of its process group is killed, unless it exits with code 0 */
    tdm__loop_child_fn on_exit;
    void *user;
    /* Of the loop. */
    tdm__loop_child *prev, *next;
};
/* Waits for this child only: the program may have other children. */
void tdm__loop_child_add(tdm__loop *loop, tdm__loop_child *child);
void tdm__loop_child_remove(tdm__loop *loop, tdm__loop_child *child);

#endif
