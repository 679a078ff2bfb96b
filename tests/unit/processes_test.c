/*
 * processes_test.c: sets of processes: exits, the stages of the end, and moves between sets.
 *
 * The processes are shells. A shell that must be ready before the test continues creates a file.
 */
#include "check.h"
#include "launch/processes.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const double deadline_s = 30; /* limit for events that must happen, on a busy machine */

typedef struct fixture {
    tdm__loop *loop;
    tdm__processes set;
    int exits, late;
    int last_status;
    pid_t last_pid;
} fixture;

static void on_signal(int number, void *user)
{
    (void)number, (void)user;
}

static void on_exit_note(tdm__process *process, pid_t pid, int wait_status, void *user)
{
    fixture *f = user;
    CHECK_INT(process->child.pid, 0);
    f->exits++;
    f->last_pid = pid;
    f->last_status = wait_status;
}

static void on_late_note(void *user)
{
    fixture *f = user;
    f->late++;
}

static void fixture_init(fixture *f, double grace_s)
{
    *f = (fixture){.loop = NULL};
    REQUIRE(tdm__loop_create(&f->loop, NULL) == TDM_OK);
    REQUIRE(tdm__loop_signals(f->loop, NULL, 0, on_signal, NULL, NULL) == TDM_OK);
    f->set = (tdm__processes){.loop = f->loop,
                              .on_exit = on_exit_note,
                              .on_late = on_late_note,
                              .user = f,
                              .grace_s = grace_s};
}

static void turn_until(fixture *f, int exits)
{
    double until_s = tdm_clock_s() + deadline_s;
    while (f->exits < exits && tdm_clock_s() < until_s)
        CHECK_INT(tdm__loop_turn(f->loop, 0.5, NULL), TDM_OK);
    CHECK_INT(f->exits, exits);
}

/* Starts a shell with this command. */
static tdm_status start(fixture *f, tdm__process *process, const char *command)
{
    const char *const program[] = {"/bin/sh", "-c", command, NULL};
    tdm__environment env;
    tdm__environment_init(&env, NULL);
    tdm__spawn_options options = {
        .program = program, .environment = env.items, .input = -1, .output = {-1, -1}};
    tdm_status status = tdm__process_start(&f->set, process, &options, NULL);
    tdm__environment_release(&env);
    return status;
}

/* Starts a shell that ignores SIGTERM, and waits until it does. */
static void start_stubborn(fixture *f, tdm__process *process)
{
    char path[] = "/tmp/tandem-processes-XXXXXX", command[200];
    struct stat info;
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    close(fd);
    snprintf(command, sizeof(command), "trap '' TERM; rm %s; while :; do sleep 1; done", path);
    CHECK_INT(start(f, process, command), TDM_OK);
    double until_s = tdm_clock_s() + deadline_s;
    while (stat(path, &info) == 0 && tdm_clock_s() < until_s) usleep(5000);
    CHECK(stat(path, &info) != 0);
}

static void test_exits_are_reported(void)
{
    fixture f;
    tdm__process a = {.set = NULL}, b = {.set = NULL}, missing = {.set = NULL};
    char text[TDM__EXIT_TEXT_BYTES];
    fixture_init(&f, 1);
    CHECK_INT(start(&f, &a, "exit 3"), TDM_OK);
    pid_t pid = a.child.pid;
    turn_until(&f, 1);
    CHECK_INT(f.last_pid, pid);
    CHECK_TEXT(tdm__exit_text(f.last_status, text), "exit code 3");

    CHECK_INT(start(&f, &b, "kill -9 $$"), TDM_OK);
    CHECK_INT(f.set.count, 1);
    turn_until(&f, 2);
    CHECK_TEXT(tdm__exit_text(f.last_status, text), "killed by signal 9 (Killed)");
    CHECK_INT(f.set.count, 0);

    const char *const program[] = {"/nowhere/at/all", NULL};
    char *const environment[] = {NULL};
    tdm__spawn_options options = {
        .program = program, .environment = environment, .input = -1, .output = {-1, -1}};
    tdm_error err;
    CHECK_INT(tdm__process_start(&f.set, &missing, &options, &err), TDM_ERR_NOT_FOUND);
    CHECK_HAS(err.message, "cannot run /nowhere/at/all");
    CHECK_INT(f.set.count, 0);
    tdm__loop_destroy(f.loop);
}

/* One process ends at SIGTERM; the other one is killed when the grace period is over. */
static void test_the_end_has_stages(void)
{
    fixture f;
    tdm__process willing = {.set = NULL}, stubborn = {.set = NULL};
    fixture_init(&f, 1);
    CHECK_INT(start(&f, &willing, "sleep 600"), TDM_OK);
    start_stubborn(&f, &stubborn);
    CHECK_INT(f.set.stage, TDM__END_NONE);
    double before_s = tdm_clock_s();
    tdm__processes_ask(&f.set);
    CHECK_INT(f.set.stage, TDM__END_ASKED);

    turn_until(&f, 1);
    CHECK_INT(WTERMSIG(f.last_status), SIGTERM);
    CHECK_INT(f.late, 0);
    turn_until(&f, 2);
    CHECK_INT(WTERMSIG(f.last_status), SIGKILL);
    CHECK_INT(f.late, 1);
    CHECK(tdm_clock_s() - before_s >= 1);
    CHECK_INT(f.set.stage, TDM__END_KILLED);
    tdm__loop_destroy(f.loop);
}

static void test_a_limit_sends_nothing_before_it_is_over(void)
{
    fixture f;
    tdm__process process = {.set = NULL};
    fixture_init(&f, 0.3);
    CHECK_INT(start(&f, &process, "sleep 600"), TDM_OK);
    tdm__processes_limit(&f.set);
    tdm__processes_limit(&f.set); /* a second request does not extend it */
    turn_until(&f, 1);
    CHECK_INT(WTERMSIG(f.last_status), SIGKILL);
    CHECK_INT(f.late, 1);
    tdm__loop_destroy(f.loop);
}

/* Without processes the end is immediate. */
static void test_a_set_that_is_empty_is_not_late(void)
{
    fixture f;
    tdm__process process = {.set = NULL};
    fixture_init(&f, 0.1);
    CHECK_INT(start(&f, &process, "exit 0"), TDM_OK);
    tdm__processes_limit(&f.set);
    turn_until(&f, 1);
    double until_s = tdm_clock_s() + 0.3;
    while (tdm_clock_s() < until_s) CHECK_INT(tdm__loop_turn(f.loop, 0.05, NULL), TDM_OK);
    CHECK_INT(f.late, 0);
    CHECK_INT(f.set.stage, TDM__END_ASKED);
    tdm__loop_destroy(f.loop);
}

static void test_a_moved_process_belongs_to_the_other_set(void)
{
    fixture f;
    tdm__process stays = {.set = NULL}, moves = {.set = NULL}, comes = {.set = NULL};
    fixture_init(&f, 1);
    tdm__processes other = f.set;
    CHECK_INT(start(&f, &stays, "sleep 600"), TDM_OK);
    CHECK_INT(start(&f, &moves, "sleep 600"), TDM_OK);
    tdm__process_move(&moves, &other);
    CHECK_INT(f.set.count, 1);
    CHECK_INT(other.count, 1);

    pid_t pid = moves.child.pid;
    tdm__processes_kill(&other);
    turn_until(&f, 1);
    CHECK_INT(f.last_pid, pid);
    CHECK_INT(f.set.count, 1);

    tdm__process_move(&stays, &other); /* into a set that was killed */
    turn_until(&f, 2);
    CHECK_INT(WTERMSIG(f.last_status), SIGKILL);
    tdm__processes_kill(&f.set);
    CHECK_INT(start(&f, &comes, "sleep 600"), TDM_OK);
    turn_until(&f, 3);
    CHECK_INT(WTERMSIG(f.last_status), SIGKILL);
    tdm__loop_destroy(f.loop);
}

static void test_places_need_a_cpu_each(void)
{
    tdm_cpu_info cpu;
    tdm_cpu_set *places = NULL;
    tdm_os_cpu_info(&cpu);
    CHECK_INT(tdm__process_places(1, &places, NULL), TDM_OK);
    free(places);
    places = (tdm_cpu_set *)&cpu;
    CHECK_INT(tdm__process_places(cpu.usable_count + 1, &places, NULL), TDM_OK);
    CHECK(places == NULL);
}

static const check_test tests[] = {
    CHECK_TEST(test_exits_are_reported),
    CHECK_TEST(test_the_end_has_stages),
    CHECK_TEST(test_a_limit_sends_nothing_before_it_is_over),
    CHECK_TEST(test_a_set_that_is_empty_is_not_late),
    CHECK_TEST(test_a_moved_process_belongs_to_the_other_set),
    CHECK_TEST(test_places_need_a_cpu_each),
};

CHECK_MAIN(tests)
