/*
 * session.h: what the launcher of a session, its agents and its workers share.
 */
#ifndef TANDEM_CLUSTER_SESSION_H
#define TANDEM_CLUSTER_SESSION_H

#include <tandem/cluster.h>
#include <tandem/text.h>

#include <stdatomic.h>

/* ---- keys and values (session_view.c) -------------------------------------------------------- */

/* "tandem/SESSION/KEY"; what does not fit is cut, which no key of ours needs. */
const char *tdm__session_key(char buffer[TDM_KV_KEY_BYTES], const char *session, const char *fmt,
                             ...) TDM_PRINTF(3, 4);
/* Removes what an earlier session of this name has left. */
void tdm__session_begin(tdm_kv *kv, const char *session);
/* Removes a session from the store. Its verdict stays beside it for a day, on a lease, for processes that were
 * cut off from the store when it ended. */
void tdm__session_forget(tdm_kv *kv, const char *session);
/* The verdict of a session that was removed: TDM_ERR_NOT_FOUND when there is none. */
tdm_status tdm__session_ended(tdm_kv *kv, const char *session, tdm_status *status,
                              char message[1000], tdm_error *err);
/* Whether this name can stand in keys and file names: letters, digits, '.', '_', '-', at most so long. */
bool tdm__session_name_is_good(const char *name, size_t bytes);
/* "alpha" is the host of the agents "alpha" and "alpha+4711". */
bool tdm__session_is_of_host(const char *agent, const char *host);

/* ---- files (session.c) ----------------------------------------------------------------------- */

/* Whole or not at all, readable by this user alone. */
tdm_status tdm__session_put_file(const char *path, const char *text, tdm_error *err);

/* ---- the secret (session_secret.c) ----------------------------------------------------------- */

/* The launcher: from the environment, or drawn; and kept in the session's file. */
tdm_status tdm__session_secret_begin(const tdm_session_hold *hold, char out[TDM_SECRET_BYTES],
                                     tdm_error *err);
/* Its hash, for tdm_session_secret_check. */
tdm_status tdm__session_secret_publish(tdm_kv *kv, const char *session, const char *secret,
                                       tdm_error *err);
/* As a line in front of a job: see tdm_session_secret_line. */
void tdm__session_secret_write(const char *secret, tdm_str *out);

/* ---- slots (worker.c) ------------------------------------------------------------------------ */

/* A table in the vault: which process has which slot of the host, and where it is. */
typedef struct tdm__session_slot {
    _Atomic int64_t pid;   /* of the worker, or of the agent that is about to start it; 0: free */
    _Atomic uint64_t step; /* finished */
    uint64_t unused[6];    /* a cache line each */
} tdm__session_slot;
#define TDM__SLOTS_NAME "slots"
tdm_status tdm__slots_take(tdm_shm *shm, tdm__session_slot **out, tdm_error *err);
/* A slot that no living process has, for this one; -1: there is none. */
int tdm__slots_claim(tdm__session_slot *slots, int64_t pid);

#endif
