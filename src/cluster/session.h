/*
 * session.h: declarations shared by the launcher of a session, its agents and its workers.
 */
#ifndef TANDEM_CLUSTER_SESSION_H
#define TANDEM_CLUSTER_SESSION_H

#include <tandem/cluster.h>
#include <tandem/text.h>

#include <stdatomic.h>

/* ---- keys and values (session_view.c) -------------------------------------------------------- */

/* Formats "tandem/SESSION/KEY". Truncates if necessary, which no key of ours needs. */
const char *tdm__session_key(char buffer[TDM_KV_KEY_BYTES], const char *session, const char *fmt,
                             ...) TDM_PRINTF(3, 4);
/* Removes the keys of an earlier session of this name. */
void tdm__session_begin(tdm_kv *kv, const char *session);
/* Removes a session from the store. Its result is kept next to it for a day, on a lease, for
 * processes that were cut off from the store when it ended. */
void tdm__session_forget(tdm_kv *kv, const char *session);
/* The result of a session that was removed. TDM_ERR_NOT_FOUND: none. */
tdm_status tdm__session_ended(tdm_kv *kv, const char *session, tdm_status *status,
                              char message[1000], tdm_error *err);
/* Whether this name is valid in keys and file names: letters, digits, '.', '_', '-', shorter than
 * `bytes`. */
bool tdm__session_name_is_good(const char *name, size_t bytes);
/* "alpha" is the host of the agents "alpha" and "alpha+4711". */
bool tdm__session_is_of_host(const char *agent, const char *host);

/* ---- exit codes (restart_policy.c) ----------------------------------------------------------- */

/* Replaces the exit code that best explains the end by another one, if that explains it better: an
 * error of the job, the user or the host has priority, then a requested stop. */
void tdm__exit_code_take(int *best, int code);

/* ---- files (session.c) ----------------------------------------------------------------------- */

/* Writes a file atomically, readable only by this user. */
tdm_status tdm__session_put_file(const char *path, const char *text, tdm_error *err);

/* ---- secret (session_secret.c) --------------------------------------------------------------- */

/* For the launcher: takes the secret from the environment or creates a random one, and writes it to
 * the session's file. */
tdm_status tdm__session_secret_begin(const tdm_session_hold *hold, char out[TDM_SECRET_BYTES],
                                     tdm_error *err);
/* Publishes the hash of the secret, for tdm_session_secret_check. */
tdm_status tdm__session_secret_publish(tdm_kv *kv, const char *session, const char *secret,
                                       tdm_error *err);
/* Writes the secret as a line that precedes a job: see tdm_session_secret_line. */
void tdm__session_secret_write(const char *secret, tdm_str *out);

/* ---- slots (worker.c) ------------------------------------------------------------------------ */

/* A table in the shared memory segment: the process in each slot of the host, and its step. */
typedef struct tdm__session_slot {
    _Atomic int64_t pid;   /* of the worker, or of the agent that is starting it; 0: free */
    _Atomic uint64_t step; /* completed steps */
    uint64_t unused[6];    /* pads to a cache line */
} tdm__session_slot;
#define TDM__SLOTS_NAME "slots"
tdm_status tdm__slots_take(tdm_shm *shm, tdm__session_slot **out, tdm_error *err);
/* Claims a slot that no running process has; -1: none is free. */
int tdm__slots_claim(tdm__session_slot *slots, int64_t pid);

#endif
