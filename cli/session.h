/*
 * session.h: running sessions, as the commands about them find them.
 *
 * A session is one life of a run whose workers may come and go (tandem/cluster.h). Those of this host are
 * found in the user's runtime folder, others in the store that the command line names.
 */
#ifndef TANDEM_CLI_SESSION_H
#define TANDEM_CLI_SESSION_H

#include "cli.h"

#include <tandem/cluster.h>

typedef struct session_ref {
    tdm_session_view view;
    tdm_kv_options kv; /* to ask its store again */
    const char *job;   /* a file with its job; NULL: the store has it */
    const char *
        why_unknown; /* the store does not answer, and the view has the names alone; NULL: it does */
} session_ref;

/* How to reach the store that a job names; its URL stays NULL where that is a local one. An exit code
 * after a complaint. */
int session_store_of(const tdm_job *job, tdm_arena *arena, tdm_kv_options *out);
/* The session's store, whatever kind it is; `job` is a file with its job. */
int session_store_at(const char *url, const char *job, tdm_arena *arena, tdm_kv_options *out);

/* All sessions of this host, or those in the store that --store or --job name. */
int session_scan(const cli_args *args, tdm_arena *arena, session_ref **out, size_t *out_count);
/* Whether `word` means this session: the run's name, its folder, the job's name, the session, or the number
 * of the process that began it. */
bool session_is_meant(const tdm_session_view *view, const char *word);
/* The one that `word` means. CLI_USAGE after a complaint when there is none, or more than one. */
int session_find(const cli_args *args, const char *word, tdm_arena *arena, session_ref *out);
/* Asks the session for something; an exit code. */
int session_ask(const session_ref *ref, const char *request);
/* What people call it: the run's name, or the session's where there is no run yet. */
const char *session_title(const tdm_session_view *view);
/* The path of this program; NULL after a complaint by the command. */
const char *session_self(const char *command, tdm_arena *arena);

/* An agent of a session, in this process (cmd_agent.c). */
typedef struct session_agent {
    const char *session, *store; /* and its URL */
    const char *host;            /* what the others call this host */
    const char *dir;             /* in which workers run; NULL: here */
    const char *job_text;        /* the session's job */
    const char *secret;          /* NULL or empty: see tdm_session_secret */
    const char *const *words;    /* of a worker's command line; NULL at the end */
    int workers;
    bool guest; /* a signal makes its workers leave, and the others go on */
} session_agent;
/* Until the session's end; an exit code. */
int session_agent_run(const session_agent *agent);

/* Rows of options that several commands have. */
#define SESSION_OPTION_STORE                                                                       \
    {                                                                                              \
        .name = "store", .value = "URL",                                                           \
        .help = "The store in which the run's processes find each other, where it is not on this " \
                "host: etcd:http://HOST:2379, with commas between several."                        \
    }
#define SESSION_OPTION_JOB                                                                         \
    {                                                                                              \
        .name = "job", .value = "JOB",                                                             \
        .help =                                                                                    \
            "A job file that says how to reach the store: 'store' and 'etcd.*', with user and "    \
            "certificates."                                                                        \
    }

#endif
