/*
 * processes.h: the processes that a launcher or an agent starts on its host, watches and ends.
 *
 * A set has an event loop and a callback for exits. tdm_launch has one set (the ranks), an agent
 * has two (its workers, and its orphans), the launcher of a session one (the agents). A process is
 * a struct of the caller that stays at its address while the process runs.
 */
#ifndef TANDEM_LAUNCH_PROCESSES_H
#define TANDEM_LAUNCH_PROCESSES_H

#include "launch/spawn.h"
#include "os/loop.h"

/* The end of a set. processes.c has the transitions. */
typedef enum tdm__end_stage {
    TDM__END_NONE,
    TDM__END_ASKED,     /* SIGKILL follows when the grace period is over */
    TDM__END_KILLED,    /* SIGKILL was sent */
    TDM__END_ABANDONED, /* the kernel cannot kill a process that is left */
} tdm__end_stage;

typedef struct tdm__process tdm__process;
typedef struct tdm__processes tdm__processes;

struct tdm__process {
    tdm__loop_child child; /* child.pid 0: not running */
    tdm__processes *set;
    tdm__process *prev, *next; /* running processes of the set */
};

/* The process is not in the set any more and its pid is 0; `pid` is what it was. */
typedef void (*tdm__process_exit_fn)(tdm__process *process, pid_t pid, int wait_status, void *user);

struct tdm__processes {
    tdm__loop *loop;
    tdm__process_exit_fn on_exit;
    /* Called before SIGKILL if the grace period is over; may be NULL. */
    void (*on_late)(void *user);
    void *user;
    double grace_s; /* from the request to end to SIGKILL */
    /* Of processes.c. */
    tdm__process *first;
    int count; /* running processes */
    tdm__end_stage stage;
    tdm__loop_timer timer;
};

/* Starts a process and adds it to the set. It gets the signal mask that the thread had before its
 * loop took signals, unless the options have one. */
tdm_status tdm__process_start(tdm__processes *set, tdm__process *process,
                              const tdm__spawn_options *options, tdm_error *err);
/* Moves a running process to another set with the same loop. */
void tdm__process_move(tdm__process *process, tdm__processes *to);

/* Sends the signal to the group of every process. */
void tdm__processes_signal(const tdm__processes *set, int signal_number);
/* Sends SIGTERM, and SIGKILL after the grace period. Once. */
void tdm__processes_ask(tdm__processes *set);
/* SIGKILL follows after the grace period, for processes that were asked to end in another way. */
void tdm__processes_limit(tdm__processes *set);
/* Sends SIGKILL, once. */
void tdm__processes_kill(tdm__processes *set);

enum { TDM__EXIT_TEXT_BYTES = 96 };
/* "killed by signal 9 (Killed)", "exit code 3". */
const char *tdm__exit_text(int wait_status, char out[TDM__EXIT_TEXT_BYTES]);

/* CPUs for `count` processes, an equal share for each; allocated. NULL without an error if there
 * are fewer CPUs than processes: then the kernel schedules them. */
tdm_status tdm__process_places(int count, tdm_cpu_set **out, tdm_error *err);

#endif
