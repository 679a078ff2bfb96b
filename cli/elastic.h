/*
 * elastic.h: `tandem train` with workers that may come and go: its launcher, and a worker's surroundings.
 */
#ifndef TANDEM_CLI_ELASTIC_H
#define TANDEM_CLI_ELASTIC_H

#include "cli.h"

#include <tandem/cluster.h>
#include <tandem/elastic.h>

/* Whether so many workers are a session's: agents start them, and the others go on when one dies. */
bool elastic_is_wanted(const cli_args *args, int64_t count);
/* Puts what --store says in front of the overrides of `args`. False after a complaint. */
bool elastic_use_store(cli_args *args, tdm_arena *arena);
typedef struct elastic_plan {
    int64_t count;       /* workers here, or on each host of --hosts that does not say it */
    int64_t coming;      /* workers of agents on other hosts that come by themselves */
    const char *session; /* its name; NULL: one is drawn */
    const char *host;    /* what this host is called; NULL: its name */
} elastic_plan;
/* From now on SIGINT, SIGTERM and SIGUSR1 wait for a launcher or an agent in this process, which takes them. */
void elastic_hold_signals(void);
/* Starts a session, waits for its end, and gives its exit code. */
int elastic_launch(const cli_args *args, const tdm_job *job, const elastic_plan *plan);

/* What carries bytes between ranks: "auto", "shm+ucx"; from the job, or else the environment. */
const char *elastic_transport(const tdm_job *job);

/* This process as a worker of a session. */
typedef struct elastic_worker {
    tdm_worker *worker;
    tdm_shm *shm;       /* where the state lies: the host's, or its own */
    tdm_shm *own_vault; /* NULL: none */
    tdm_member *member;
    tdm_member_options membership; /* that it was made with */
    tdm_kv_options kv;
    tdm_arena *arena;
} elastic_worker;

/* Whether an agent has started this process. */
bool elastic_is_worker(void);
/* Joins the session; an exit code after a complaint. */
int elastic_join(const tdm_job *job, elastic_worker *out);
void elastic_leave(elastic_worker *worker);
/* The exit code for this error, which is told to the session when it is one for all. */
int elastic_fail(elastic_worker *worker, const tdm_error *err);

#endif
