/*
 * fail.h: errors of calls: what breaks a group, and how all members learn of it.
 *
 * All functions are called with the comm's lock held, unless noted otherwise.
 */
#ifndef TANDEM_COMM_FAIL_H
#define TANDEM_COMM_FAIL_H

#include "boot/control.h"
#include "transport/transport.h"

/* Breaks a group here and, with `tell`, on all its members. The first error is kept. */
void tdm__group_break(tdm_group *group, bool tell, tdm_status status, const char *fmt, ...)
    TDM_PRINTF(4, 5);
/* Reports that two ranks disagree, and breaks the group on all members. */
void tdm__group_mismatch(tdm_group *group, int their_world_rank, const tdm__head *mine,
                         const tdm__head *theirs);
/* Whether two headers describe the same call. */
bool tdm__heads_agree(const tdm__head *mine, const tdm__head *theirs);
/* "all_reduce of 1024 f32 by sum": describes a header, for messages. */
const char *tdm__head_text(const tdm__head *head, char *out, size_t bytes);
/* "all_reduce #17 of world": identifies a call. */
const char *tdm__call_name(const tdm_group *group, const tdm__head *head, char *out, size_t bytes);

/* Handles the death of a peer: drops its transfers and breaks its groups. */
void tdm__peer_lost(tdm_comm *comm, int peer, bool tell, tdm_peer_loss loss, const char *how);
/* The transport has lost the connection to a peer, or a transfer with it has failed. The hub decides
 * whether the peer is lost, or whether another rank is the cause. */
void tdm__peer_suspect(tdm_comm *comm, int peer, const char *how);
/* Calls the transport until it has nothing more to do, so that arrived messages and closed connections are noticed. */
void tdm__engine_drain(tdm_comm *comm);
/* Handles the suspected peers of a world without a hub. */
void tdm__engine_confirm_losses(tdm_comm *comm);
/* Handles a notification of the control connection. Without the lock. */
void tdm__engine_news(void *comm, const tdm__news *news);

/* Records that a group which does not exist here is broken: other ranks created it and failed
 * before this rank creates it, or it was broken and destroyed. Messages for it are dropped. */
void tdm__early_keep(tdm_comm *comm, uint32_t group, tdm_status status, const char *text);
/* The error of a group that was broken before it was created here; NULL: none. */
const tdm_error *tdm__early_word(const tdm_comm *comm, uint32_t group);
void tdm__early_free(tdm_comm *comm);

/* Handles deadlines, notices and requests that end slowly. Returns the time of the next such event.
 * May release the lock temporarily. */
double tdm__engine_timers(tdm_comm *comm);

#endif
