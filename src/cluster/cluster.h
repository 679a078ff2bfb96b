/*
 * cluster.h: the part of module cluster that only other modules use.
 *
 * <tandem/cluster.h> declares sessions, agents and launchers. libtandem.so does not export what is
 * declared here.
 */
#ifndef TANDEM_CLUSTER_CLUSTER_H
#define TANDEM_CLUSTER_CLUSTER_H

#include <tandem/cluster.h>

/* ---- sessions -------------------------------------------------------------------------------- */

tdm_status tdm_session_answer_save(tdm_kv *kv, const char *session, uint64_t revision,
                                   const tdm_session_saved *saved, tdm_error *err);

/* ---- secrets --------------------------------------------------------------------------------- */

/* A secret from the environment (TANDEM_SECRET, TANDEM_SECRET_FILE), or else from the file at `path` (NULL: none),
 * which only this user may read. `creates`: a missing file is created with a random secret. TDM_ERR_NOT_FOUND: there
 * is none. */
tdm_status tdm_secret_find(const char *path, bool creates, char out[TDM_SECRET_BYTES],
                           tdm_error *err);

#endif
