/*
 * spawn.h: starting one process, for the launcher of ranks, the launcher of agents, and agents.
 */
#ifndef TANDEM_LAUNCH_SPAWN_H
#define TANDEM_LAUNCH_SPAWN_H

#include <tandem/os.h>

#include <signal.h>
#include <sys/types.h>

/* ---- an environment -------------------------------------------------------------------------- */

/* Texts of its own, with NULL at the end. */
typedef struct tdm__environment {
    char **items;
    size_t count, room;
    bool failed; /* there was no memory; all that follows does nothing */
} tdm__environment;

/* What this process has, but for what begins with one of these names and '='; NULL ends them. */
void tdm__environment_init(tdm__environment *env, const char *const *without);
void tdm__environment_add(tdm__environment *env, const char *name, const char *fmt, ...)
    TDM_PRINTF(3, 4);
void tdm__environment_release(tdm__environment *env);

/* ---- a process ------------------------------------------------------------------------------- */

typedef struct tdm__spawn_options {
    const char *const *program; /* NULL at the end */
    char *const *environment;
    const char *dir;          /* NULL: here */
    const tdm_cpu_set *place; /* NULL: anywhere */
    const sigset_t *mask;     /* the signal mask to start with */
    pid_t dies_with;          /* this process; 0: with nobody */
    bool own_session;         /* else a process group of its own */
    bool keeps_input;         /* else `input` is it */
    int input;                /* -1: empty */
    int output[2];            /* -1: as ours */
    const int *kept;          /* descriptors that it gets under the same numbers */
    int kept_count;
} tdm__spawn_options;

/* Returns when its program runs, or could not be run. */
tdm_status tdm__spawn(const tdm__spawn_options *options, pid_t *out, tdm_error *err);

#endif
