/*
 * comm.h: the part of module comm that only other modules use.
 *
 * <tandem/comm.h> declares the collectives that programs may call. This header adds epochs, shared memory
 * between the ranks of a host, and the cause of a lost peer; libtandem.so does not export it.
 */
#ifndef TANDEM_COMM_COMM_H
#define TANDEM_COMM_COMM_H

#include "boot/peer_loss.h"
#include "os/os.h"

#include <tandem/comm.h>

/* ---- world ------------------------------------------------------------------------------------ */

uint32_t tdm_comm_epoch(const tdm_comm *comm);
/* The host of a rank, as in tdm_comm_info. */
int tdm_comm_host_of(const tdm_comm *comm, int rank);
/* The deadline of calls that set none, in seconds. */
double tdm_comm_deadline_s(const tdm_comm *comm);

/* Describes the loss of a rank that is TDM_PEER_LOST; returns false for other ranks. */
bool tdm_comm_peer_loss(tdm_comm *comm, int rank, tdm_peer_loss *out);

/* The segment with the named regions (os/os.h) of the ranks of this node; private if the node has one rank. It is
 * closed with the comm. NULL, with an error: no memory. */
tdm_shm *tdm_comm_shm(tdm_comm *comm, tdm_error *err);
/* A number for the names of regions, which no earlier use of the segment has. Collective: all ranks get the same. */
uint32_t tdm_comm_shm_scope(tdm_comm *comm);

/* Ends a phase that each rank executed alone: all ranks get TDM_OK, or the error of the lowest rank that failed.
 * `flags` (may be NULL), up to eight bits, are or-ed over the ranks. A status of the peer group is returned
 * unchanged, because it comes from the world itself: all ranks have it or will get it. NULL: one rank, which agrees
 * with itself. Collective. */
tdm_status tdm_comm_agree(tdm_comm *comm, tdm_status status, unsigned *flags, tdm_error *err);

/* ---- groups ----------------------------------------------------------------------------------- */

int tdm_group_world_rank(const tdm_group *group, int rank); /* of a member */
/* TDM_OK, or the error with which every call on this group fails. */
tdm_status tdm_group_check(const tdm_group *group, tdm_error *err);

/* ---- calls ------------------------------------------------------------------------------------ */

/* The largest complete subtrees of lanes [first, last), from left to right, as heap indices (root
 * 1, children 2n and 2n + 1, lane l is lane_count + l), without those whose lanes are all absent.
 * Returns their number, at most TDM_MAX_LANE_PARTS. */
int tdm_lane_nodes(const tdm_lanes *lanes, int64_t first, int64_t last, int64_t *out);

#endif
