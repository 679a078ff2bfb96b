/*
 * spawn.h: starts one process, for the launcher of ranks, the launcher of agents, and agents.
 */
#ifndef TANDEM_LAUNCH_SPAWN_H
#define TANDEM_LAUNCH_SPAWN_H

#include "os/os.h"

#include <signal.h>
#include <sys/types.h>

/* ---- environment ----------------------------------------------------------------------------- */

/* An array of allocated strings, terminated by NULL. */
typedef struct tdm__environment {
    char **items;
    size_t count, room;
    bool failed; /* no memory; further calls do nothing */
} tdm__environment;

/* The environment of this process without the variables in `without` (terminated by NULL). */
void tdm__environment_init(tdm__environment *env, const char *const *without);
void tdm__environment_add(tdm__environment *env, const char *name, const char *fmt, ...)
    TDM_PRINTF(3, 4);
void tdm__environment_release(tdm__environment *env);

/* ---- process --------------------------------------------------------------------------------- */

typedef struct tdm__spawn_options {
    const char *const *program; /* ends with NULL */
    char *const *environment;
    const char *dir;          /* NULL: current directory */
    const tdm_cpu_set *place; /* NULL: not pinned */
    const sigset_t *mask;     /* initial signal mask; see tdm__process_start */
    pid_t dies_with;          /* dies with this process; 0: independent */
    bool own_session; /* otherwise a new process group, which does not outlive its failure */
    bool keeps_input; /* otherwise `input` is used */
    int input;        /* -1: empty */
    int output[2];    /* -1: inherited */
    const int *kept;  /* file descriptors to inherit */
    int kept_count;
} tdm__spawn_options;

/* Returns when the program runs or could not be executed. */
tdm_status tdm__spawn(const tdm__spawn_options *options, pid_t *out, tdm_error *err);

#endif
