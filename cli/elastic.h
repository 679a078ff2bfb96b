/*
 * elastic.h: sessions of `tandem train`, whose membership may change: the launcher and a worker.
 */
#ifndef TANDEM_CLI_ELASTIC_H
#define TANDEM_CLI_ELASTIC_H

#include "cli.h"

#include <tandem/cluster.h>
#include <tandem/elastic.h>

/* Whether this command starts `count` workers as a session, instead of training alone. */
bool elastic_is_wanted(const cli_args *args, int64_t count);
/* Whether workers that die end the run (TANDEM_ELASTIC=0, without an option that says otherwise),
 * for comparison. */
bool elastic_is_fixed(const cli_args *args);
/* Adds the value of --store to the overrides of `args`. False after an error message. */
bool elastic_use_store(cli_args *args, tdm_arena *arena);
typedef struct elastic_plan {
    int64_t count;       /* workers on this host, or on each host of --hosts without a number */
    int64_t coming;      /* workers of agents that other tasks start on other hosts */
    const char *session; /* its name; NULL: generated */
    const char *host;    /* the name of this host in the session; NULL: the host name */
} elastic_plan;
/* Blocks SIGINT, SIGTERM and SIGUSR1, so that they stay pending until a launcher or an agent in
 * this process handles them. */
void elastic_hold_signals(void);
/* Starts a session, waits for its end, and returns its exit code. */
int elastic_launch(const cli_args *args, const tdm_job *job, const elastic_plan *plan);

/* The transport, such as "auto" or "shm+ucx"; from the job, or from the environment if that is
 * auto. */
const char *elastic_transport(const tdm_job *job);

/* This process as a worker of a session. */
typedef struct elastic_worker {
    tdm_worker *worker;
    tdm_shm *shm;     /* the segment with the state: the host's, or own_shm */
    tdm_shm *own_shm; /* NULL: none */
    tdm_member *member;
    tdm_member_options membership; /* the options of `member` */
    tdm_kv_options kv;
    tdm_arena *arena;
} elastic_worker;

/* Whether an agent has started this process. */
bool elastic_is_worker(void);
/* Joins the session and returns an exit code; prints a message on failure. */
int elastic_join(const tdm_job *job, elastic_worker *out);
void elastic_leave(elastic_worker *worker);
/* Returns the exit code for this error, and reports it to the session if it concerns all
 * workers. */
int elastic_fail(elastic_worker *worker, const tdm_error *err);

#endif
