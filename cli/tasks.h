/*
 * tasks.h: `tandem train` as one of the tasks that mpirun or srun has placed.
 */
#ifndef TANDEM_CLI_TASKS_H
#define TANDEM_CLI_TASKS_H

#include "cli.h"

#include <tandem/cluster.h>
#include <tandem/comm.h>
#include <tandem/elastic.h>

/* What all tasks of a start know without talking to each other. */
typedef struct tasks_plan {
    char session[TDM_SESSION_BYTES];
    char meeting[TDM_LAUNCH_NAME_BYTES + TDM_HOST_BYTES]; /* of this host's tasks */
    char host[TDM_HOST_BYTES];
} tasks_plan;

/* Whether these tasks become a session, in which the others go on when a worker dies. Otherwise they are
 * ranks of a fixed world; the first one says why when the user could change that. */
bool tasks_are_session(const cli_args *args, const tdm_job *job, const tdm_comm_place *place,
                       tasks_plan *out);
/* This task's part in the session, until its end; an exit code. Signals reach `should_stop` until somebody
 * of the session takes them. */
int tasks_train(const cli_args *args, const tdm_job *job, const tdm_comm_place *place,
                const tasks_plan *plan, bool (*should_stop)(void *user));

#endif
