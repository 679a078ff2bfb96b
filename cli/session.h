/*
 * session.h: how commands find running sessions.
 *
 * A session is one execution of a run, whose membership may change (tandem/cluster.h). Sessions of
 * this host are found in the user's runtime directory, others in the store that the command line
 * names.
 */
#ifndef TANDEM_CLI_SESSION_H
#define TANDEM_CLI_SESSION_H

#include "cli.h"

#include <tandem/cluster.h>

typedef struct session_ref {
    tdm_session_view view;
    tdm_kv_options kv; /* of its store */
    const char *job;   /* a file with its job; NULL: the job is in the store */
    /* Why the store does not respond; the view then has only the names. NULL: it does. */
    const char *why_unknown;
} session_ref;

/* The options of the store of a job; the URL is NULL for a local store. Returns an exit code, and
 * prints a message on failure. */
int session_store_of(const tdm_job *job, tdm_arena *arena, tdm_kv_options *out);
/* The options of the store of a session with this URL; `job` is a file with its job. */
int session_store_at(const char *url, const char *job, tdm_arena *arena, tdm_kv_options *out);

/* All sessions of this host, or of the store that --store or --job selects. */
int session_scan(const cli_args *args, tdm_arena *arena, session_ref **out, size_t *out_count);
/* Whether `word` is the name or the directory of the run, the name of the job or of the session, or
 * the process id of the launcher. */
bool session_is_meant(const tdm_session_view *view, const char *word);
/* Finds the session that `word` identifies. CLI_USAGE, after an error message, if there is none or
 * more than one. */
int session_find(const cli_args *args, const char *word, tdm_arena *arena, session_ref *out);
/* Sends a request to the session; returns an exit code. */
int session_ask(const session_ref *ref, const char *request);
/* The name of the run, or of the session before it has a run. */
const char *session_title(const tdm_session_view *view);
/* Whether the text is valid in keys of the store and in file names, and shorter than `bytes`. */
bool session_name_is_valid(const char *text, size_t bytes);
/* The path of this program; NULL after an error message of the command. */
const char *session_self(const char *command, tdm_arena *arena);

/* An agent of a session, in this process (cmd_agent.c). */
typedef struct session_agent {
    const char *session;      /* its name */
    const char *store;        /* URL */
    const char *host;         /* the name of this host in the session */
    const char *dir;          /* working directory of the workers; NULL: the current one */
    const char *job_text;     /* the session's job */
    const char *secret;       /* NULL or empty: see tdm_session_secret */
    const char *const *words; /* of a worker's command line; NULL-terminated */
    int workers;
    bool guest; /* after a signal its workers leave, and the session continues */
} session_agent;
/* Runs the agent until the end of the session; returns an exit code. */
int session_agent_run(const session_agent *agent);

/* Rows of options that several commands have. */
#define SESSION_OPTION_STORE                                                                       \
    {                                                                                              \
        .name = "store", .value = "URL",                                                           \
        .help =                                                                                    \
            "The store of the run, if it is not on this host: etcd:http://HOST:2379; separate "    \
            "several URLs by commas."                                                              \
    }
#define SESSION_OPTION_JOB                                                                         \
    {                                                                                              \
        .name = "job", .value = "JOB",                                                             \
        .help =                                                                                    \
            "A job file with the settings of the store: 'store' and 'etcd.*', such as user and "   \
            "certificates."                                                                        \
    }

#endif
