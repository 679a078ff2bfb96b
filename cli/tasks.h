/*
 * tasks.h: `tandem train` as a task of mpirun or srun.
 */
#ifndef TANDEM_CLI_TASKS_H
#define TANDEM_CLI_TASKS_H

#include "cli.h"

#include <tandem/cluster.h>
#include <tandem/comm.h>
#include <tandem/elastic.h>

/* Names that all tasks compute without communication. */
typedef struct tasks_plan {
    char session[TDM_SESSION_BYTES];
    char meeting[TDM_LAUNCH_NAME_BYTES + TDM_HOST_BYTES]; /* rendezvous of this host's tasks */
    char host[TDM_HOST_BYTES];
} tasks_plan;

/* Whether these tasks become a session, which survives the death of a worker. Otherwise they are
 * ranks of a fixed world; the first task prints the reason if the user can change it. */
bool tasks_are_session(const cli_args *args, const tdm_job *job, const tdm_comm_place *place,
                       tasks_plan *out);
/* Runs this task's part of the session until its end; returns an exit code. `should_stop` reports
 * signals until the session handles them. */
int tasks_train(const cli_args *args, const tdm_job *job, const tdm_comm_place *place,
                const tasks_plan *plan, bool (*should_stop)(void *user));

#endif
