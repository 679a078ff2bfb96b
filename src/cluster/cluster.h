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

#endif
