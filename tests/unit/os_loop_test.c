/*
 * os_loop_test.c: the event loop: descriptors, timers, signals, exits of children, and the removal
 * of any of these by a callback.
 */
#include "check.h"
#include "os/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static const double deadline_s = 20; /* limit for events that must happen, on a busy machine */

static tdm__loop *make_loop(void)
{
    tdm__loop *loop = NULL;
    REQUIRE(tdm__loop_create(&loop, NULL) == TDM_OK);
    return loop;
}

/* Turns until the counter has this value. */
static void turn_until(tdm__loop *loop, const int *counter, int value)
{
    double until_s = tdm_clock_s() + deadline_s;
    while (*counter < value && tdm_clock_s() < until_s)
        CHECK_INT(tdm__loop_turn(loop, 0.5, NULL), TDM_OK);
    CHECK_INT(*counter, value);
}

/* ---- descriptors ----------------------------------------------------------------------------- */

typedef struct pipe_watch {
    tdm__loop *loop;
    tdm__loop_watch watch, *other;
    int calls, bytes;
} pipe_watch;

static void on_readable(tdm__loop_watch *watch, unsigned ready)
{
    pipe_watch *p = watch->user;
    char byte;
    CHECK_INT(ready, TDM__LOOP_READ);
    p->calls++;
    ssize_t got = read(watch->fd, &byte, 1); /* one byte: the rest is reported again */
    if (got == 1) p->bytes++;
    if (got == 0) CHECK_INT(tdm__loop_watch_set(p->loop, watch, 0, NULL), TDM_OK);
}

static void test_a_descriptor_is_reported_until_it_is_read(void)
{
    tdm__loop *loop = make_loop();
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
    pipe_watch p = {.loop = loop, .watch = {.fd = ends[0], .on_ready = on_readable, .user = &p}};
    CHECK_INT(tdm__loop_watch_set(loop, &p.watch, TDM__LOOP_READ, NULL), TDM_OK);

    CHECK_INT(tdm__loop_turn(loop, 0, NULL), TDM_OK);
    CHECK_INT(p.calls, 0);
    CHECK_INT(write(ends[1], "abc", 3), 3);
    turn_until(loop, &p.bytes, 3);
    CHECK_INT(p.calls, 3);

    close(ends[1]); /* the end of the pipe is an event as well; the callback removes the watch */
    turn_until(loop, &p.calls, 4);
    CHECK_INT(tdm__loop_turn(loop, 0, NULL), TDM_OK);
    CHECK_INT(p.calls, 4);
    close(ends[0]);
    tdm__loop_destroy(loop);
}

static void on_readable_remove_other(tdm__loop_watch *watch, unsigned ready)
{
    pipe_watch *p = watch->user;
    (void)ready;
    p->calls++;
    CHECK_INT(tdm__loop_watch_set(p->loop, p->other, 0, NULL), TDM_OK);
    CHECK_INT(tdm__loop_watch_set(p->loop, watch, 0, NULL), TDM_OK);
}

/* Both pipes have data in the same turn; the first callback removes the other watch. */
static void test_a_removed_watch_is_not_called(void)
{
    tdm__loop *loop = make_loop();
    int a[2], b[2];
    REQUIRE(pipe2(a, O_CLOEXEC) == 0 && pipe2(b, O_CLOEXEC) == 0);
    pipe_watch first = {
        .loop = loop, .watch = {.fd = a[0], .on_ready = on_readable_remove_other, .user = &first}};
    pipe_watch second = {
        .loop = loop, .watch = {.fd = b[0], .on_ready = on_readable_remove_other, .user = &second}};
    first.other = &second.watch;
    second.other = &first.watch;
    CHECK_INT(tdm__loop_watch_set(loop, &first.watch, TDM__LOOP_READ, NULL), TDM_OK);
    CHECK_INT(tdm__loop_watch_set(loop, &second.watch, TDM__LOOP_READ, NULL), TDM_OK);
    CHECK_INT(write(a[1], "x", 1), 1);
    CHECK_INT(write(b[1], "x", 1), 1);
    for (int i = 0; i < 3; i++) CHECK_INT(tdm__loop_turn(loop, 0, NULL), TDM_OK);
    CHECK_INT(first.calls + second.calls, 1);
    for (int i = 0; i < 2; i++) {
        close(a[i]);
        close(b[i]);
    }
    tdm__loop_destroy(loop);
}

static void on_writable(tdm__loop_watch *watch, unsigned ready)
{
    pipe_watch *p = watch->user;
    CHECK_INT(ready, TDM__LOOP_WRITE);
    if (++p->calls == 3) CHECK_INT(tdm__loop_watch_set(p->loop, watch, 0, NULL), TDM_OK);
}

/* epoll rejects regular files and /dev/null; output may be redirected to them. */
static void test_a_file_is_always_ready(void)
{
    tdm__loop *loop = make_loop();
    FILE *file = tmpfile();
    REQUIRE(file != NULL);
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    REQUIRE(null >= 0);
    const int fds[2] = {fileno(file), null};
    for (int i = 0; i < 2; i++) {
        pipe_watch p = {.loop = loop, .watch = {.fd = fds[i], .on_ready = on_writable, .user = &p}};
        CHECK_INT(tdm__loop_watch_set(loop, &p.watch, TDM__LOOP_WRITE, NULL), TDM_OK);
        turn_until(loop, &p.calls, 3);
        CHECK_INT(tdm__loop_turn(loop, 0, NULL), TDM_OK);
        CHECK_INT(p.calls, 3);
    }
    tdm__loop_watch bad = {.fd = 1 << 20, .on_ready = on_writable};
    tdm_error err;
    CHECK(tdm__loop_watch_set(loop, &bad, TDM__LOOP_READ, &err) != TDM_OK);
    close(null);
    fclose(file);
    tdm__loop_destroy(loop);
}

/* ---- timers ---------------------------------------------------------------------------------- */

typedef struct timers {
    tdm__loop *loop;
    tdm__loop_timer timer[4];
    char order[16];
    int calls;
} timers;

static void on_time(tdm__loop_timer *timer)
{
    timers *t = timer->user;
    CHECK(tdm_clock_s() >= timer->at_s || !timer->is_set);
    t->order[t->calls++] = (char)('0' + (timer - t->timer));
    if (timer == &t->timer[0]) {
        tdm__loop_timer_set(t->loop, &t->timer[3], INFINITY);
        tdm__loop_timer_set(t->loop, timer, tdm_clock_s()); /* due again, in a later turn */
        if (t->calls > 3) tdm__loop_timer_set(t->loop, timer, INFINITY);
    }
}

static void test_timers_are_called_in_order(void)
{
    timers t = {.loop = make_loop()};
    double now_s = tdm_clock_s();
    for (int i = 0; i < 4; i++) t.timer[i] = (tdm__loop_timer){.on_time = on_time, .user = &t};
    tdm__loop_timer_set(t.loop, &t.timer[3], now_s + 0.03); /* removed by the callback of timer 0 */
    tdm__loop_timer_set(t.loop, &t.timer[2], now_s + 60);
    tdm__loop_timer_set(t.loop, &t.timer[1], now_s + 0.01);
    tdm__loop_timer_set(t.loop, &t.timer[0], now_s + 0.02);
    tdm__loop_timer_set(t.loop, &t.timer[2], now_s); /* moved */
    CHECK_INT(t.calls, 0);
    turn_until(t.loop, &t.calls, 4);
    t.order[t.calls] = '\0';
    CHECK_TEXT(t.order, "2100");
    CHECK(!t.timer[3].is_set);
    tdm__loop_destroy(t.loop);
}

static void test_a_wait_ends_at_its_limit(void)
{
    timers t = {.loop = make_loop()};
    t.timer[0] = (tdm__loop_timer){.on_time = on_time, .user = &t};
    tdm__loop_timer_set(t.loop, &t.timer[0], tdm_clock_s() + 600);
    double before_s = tdm_clock_s();
    CHECK_INT(tdm__loop_turn(t.loop, 0.05, NULL), TDM_OK);
    CHECK(tdm_clock_s() - before_s >= 0.045);
    CHECK(tdm_clock_s() - before_s < deadline_s);
    CHECK_INT(t.calls, 0);
    tdm__loop_destroy(t.loop);
}

/* ---- signals and children -------------------------------------------------------------------- */

typedef struct process {
    tdm__loop *loop;
    tdm__loop_child child;
    int *exits;
    int status;
    tdm__loop_child *forgets; /* removed by the callback; NULL: none */
} process;

static int signal_calls, last_signal;

static void on_signal(int number, void *user)
{
    CHECK(user == &signal_calls);
    last_signal = number;
    signal_calls++;
}

static void on_exit_count(tdm__loop_child *child, int wait_status)
{
    process *p = child->user;
    p->status = wait_status;
    ++*p->exits;
    if (p->forgets) tdm__loop_child_remove(p->loop, p->forgets);
}

static void test_signals_are_received_and_restored(void)
{
    static const int wanted[] = {SIGUSR1, SIGUSR2, SIGHUP};
    sigset_t mask;
    tdm__loop *loop = make_loop();
    signal(SIGHUP, SIG_IGN);
    CHECK_INT(tdm__loop_signals(loop, wanted, 3, on_signal, &signal_calls, NULL), TDM_OK);
    CHECK_INT(sigismember(tdm__loop_mask_before(loop), SIGUSR1), 0);
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    CHECK_INT(sigismember(&mask, SIGUSR1), 1);
    CHECK_INT(sigismember(&mask, SIGHUP), 0); /* it is ignored, and stays ignored */

    kill(getpid(), SIGHUP);
    kill(getpid(), SIGUSR1);
    turn_until(loop, &signal_calls, 1);
    CHECK_INT(last_signal, SIGUSR1);
    kill(getpid(), SIGUSR2);
    turn_until(loop, &signal_calls, 2);
    CHECK_INT(last_signal, SIGUSR2);

    kill(getpid(), SIGUSR2); /* would end this program if it were still pending afterwards */
    tdm__loop_destroy(loop);
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    CHECK_INT(sigismember(&mask, SIGUSR2), 0);
    signal(SIGHUP, SIG_DFL);
}

/* Starts a child that exits with the code as soon as `gate` is closed. */
static pid_t start_child(const int gate[2], int code)
{
    fflush(NULL);
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid > 0) return pid;
    char byte;
    close(gate[1]);
    (void)!read(gate[0], &byte, 1);
    _exit(code);
}

static void test_exits_are_reported(void)
{
    enum { COUNT = 8 };
    int exits = 0, gate[2];
    process processes[COUNT] = {{.loop = NULL}};
    tdm__loop *loop = make_loop();
    CHECK_INT(tdm__loop_signals(loop, NULL, 0, on_signal, &signal_calls, NULL), TDM_OK);
    REQUIRE(pipe2(gate, O_CLOEXEC) == 0);
    pid_t stranger = start_child(gate, 3);
    for (int i = 0; i < COUNT; i++) {
        processes[i] = (process){.loop = loop, .exits = &exits};
        processes[i].child = (tdm__loop_child){
            .pid = start_child(gate, i), .on_exit = on_exit_count, .user = &processes[i]};
        tdm__loop_child_add(loop, &processes[i].child);
    }
    CHECK_INT(tdm__loop_turn(loop, 0, NULL), TDM_OK);
    CHECK_INT(exits, 0);

    close(gate[1]); /* all at once: their signals are merged */
    turn_until(loop, &exits, COUNT);
    for (int i = 0; i < COUNT; i++) {
        CHECK(WIFEXITED(processes[i].status));
        CHECK_INT(WEXITSTATUS(processes[i].status), i);
        CHECK_INT(waitpid(processes[i].child.pid, NULL, WNOHANG), -1); /* waited for */
    }
    int status = 0;
    CHECK_INT(waitpid(stranger, &status, 0), stranger); /* not the loop's child: left alone */
    CHECK_INT(WEXITSTATUS(status), 3);
    close(gate[0]);
    tdm__loop_destroy(loop);
}

/* The kernel discards the exit status of children while SIGCHLD is ignored. */
static void test_an_exit_without_status_is_reported(void)
{
    int exits = 0, gate[2];
    process p = {.exits = &exits};
    signal(SIGCHLD, SIG_IGN);
    p.loop = make_loop();
    CHECK_INT(tdm__loop_signals(p.loop, NULL, 0, on_signal, &signal_calls, NULL), TDM_OK);
    REQUIRE(pipe2(gate, O_CLOEXEC) == 0);
    p.child = (tdm__loop_child){.pid = start_child(gate, 0), .on_exit = on_exit_count, .user = &p};
    tdm__loop_child_add(p.loop, &p.child);
    CHECK_INT(tdm__loop_turn(p.loop, 0, NULL), TDM_OK);
    CHECK_INT(exits, 0);

    close(gate[1]);
    turn_until(p.loop, &exits, 1);
    CHECK_INT(exits, 1);
    CHECK(WIFEXITED(p.status));
    CHECK_INT(WEXITSTATUS(p.status), TDM__LOOP_UNKNOWN_EXIT);
    close(gate[0]);
    tdm__loop_destroy(p.loop);
    signal(SIGCHLD, SIG_DFL);
}

/* Of two children that have both exited, the callback of one removes the other. */
static void test_a_removed_child_is_not_reported(void)
{
    int exits = 0, gate[2];
    process processes[2];
    tdm__loop *loop = make_loop();
    CHECK_INT(tdm__loop_signals(loop, NULL, 0, on_signal, &signal_calls, NULL), TDM_OK);
    REQUIRE(pipe2(gate, O_CLOEXEC) == 0);
    for (int i = 0; i < 2; i++) {
        processes[i] = (process){.loop = loop, .exits = &exits, .forgets = &processes[1 - i].child};
        processes[i].child = (tdm__loop_child){
            .pid = start_child(gate, 0), .on_exit = on_exit_count, .user = &processes[i]};
    }
    close(gate[1]);
    for (int i = 0; i < 2; i++) {
        siginfo_t info;
        CHECK_INT(waitid(P_PID, (id_t)processes[i].child.pid, &info, WEXITED | WNOWAIT), 0);
        tdm__loop_child_add(loop, &processes[i].child); /* after its exit: detected nevertheless */
    }
    turn_until(loop, &exits, 1);
    for (int i = 0; i < 3; i++) CHECK_INT(tdm__loop_turn(loop, 0, NULL), TDM_OK);
    CHECK_INT(exits, 1);
    int left = 0;
    for (int i = 0; i < 2; i++) left += waitpid(processes[i].child.pid, NULL, WNOHANG) > 0;
    CHECK_INT(left, 1);
    close(gate[0]);
    tdm__loop_destroy(loop);
}

/* A group leader that starts a process and then exits with this code; the process keeps the pipe
 * open. */
static bool group_survives(int code)
{
    int exits = 0, ends[2];
    tdm__loop *loop = make_loop();
    CHECK_INT(tdm__loop_signals(loop, NULL, 0, on_signal, &signal_calls, NULL), TDM_OK);
    REQUIRE(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
    fflush(NULL);
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        setpgid(0, 0);
        if (fork() == 0) {
            (void)!write(ends[1], "x", 1);
            for (;;) pause();
        }
        char byte;
        while (read(ends[0], &byte, 1) != 1) usleep(1000);
        _exit(code);
    }
    setpgid(pid, pid);
    close(ends[1]);
    process p = {.loop = loop, .exits = &exits};
    p.child = (tdm__loop_child){
        .pid = pid, .leads_group = true, .on_exit = on_exit_count, .user = &p};
    tdm__loop_child_add(loop, &p.child);
    turn_until(loop, &exits, 1);
    CHECK_INT(WEXITSTATUS(p.status), code);

    bool survives = true; /* until all its members are gone and so the pipe is closed */
    for (double until_s = tdm_clock_s() + (code ? deadline_s : 0.2);
         survives && tdm_clock_s() < until_s; usleep(10000)) {
        char byte;
        survives = read(ends[0], &byte, 1) != 0;
    }
    kill(-pid, SIGKILL);
    close(ends[0]);
    tdm__loop_destroy(loop);
    return survives;
}

static void test_what_a_failed_process_started_is_killed(void)
{
    CHECK(!group_survives(1));
    CHECK(group_survives(0));
}

static const check_test tests[] = {
    CHECK_TEST(test_a_descriptor_is_reported_until_it_is_read),
    CHECK_TEST(test_a_removed_watch_is_not_called),
    CHECK_TEST(test_a_file_is_always_ready),
    CHECK_TEST(test_timers_are_called_in_order),
    CHECK_TEST(test_a_wait_ends_at_its_limit),
    CHECK_TEST(test_signals_are_received_and_restored),
    CHECK_TEST(test_exits_are_reported),
    CHECK_TEST(test_an_exit_without_status_is_reported),
    CHECK_TEST(test_a_removed_child_is_not_reported),
    CHECK_TEST(test_what_a_failed_process_started_is_killed),
};

CHECK_MAIN(tests)
