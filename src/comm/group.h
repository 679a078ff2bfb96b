/*
 * group.h: a group of ranks: its members and hosts, its numbering of calls, and its error.
 *
 * The members agree on the group's ID and on the number of each call without communication, since
 * all make the same calls in the same order (group.c). The last TDM__HISTORY calls are kept, so that
 * late messages can be compared with them. The comm's lock protects everything that changes after
 * the group's creation, except is_broken.
 *
 * The life of a group: it is open until the first error, and never repaired.
 *
 *            created               an error               destroyed
 *    (none) ---------> OPEN ---------------------> BROKEN ---------> (none; its error is kept)
 *       |               |                            ^
 *       |               `------- destroyed ------>   |
 *       `----- created after the world was revoked, -'
 *              a member was lost, or another member broke it
 *
 *   transition          function
 *   created             tdm_group_create; the world's: tdm__comm_assemble
 *   OPEN -> BROKEN      tdm__group_break (fail.c): pending calls end with the error, later calls
 *                       fail with it immediately, messages of the group are dropped
 *   destroyed           tdm_group_destroy, tdm_comm_close; the error of a broken group is kept for
 *                       its late messages (tdm__early_keep)
 */
#ifndef TANDEM_COMM_GROUP_H
#define TANDEM_COMM_GROUP_H

#include "comm/lanes.h"
#include "comm/reduce.h"
#include "transport/transport.h"

#include <stdatomic.h>

enum { TDM__HISTORY = 64 }; /* ended calls of a group that are kept */

struct tdm_group {
    tdm_comm *comm;
    uint32_t id; /* 0: the world */
    int rank, size;
    int *ranks;   /* by member: rank in the world */
    int *host_of; /* by member: index of its host within the group, by first appearance */
    int host_count;
    int *local_of;              /* by member: its index among the members of its host */
    int *host_size;             /* by host within the group */
    struct tdm__window *window; /* NULL: no neighbour on this host, or no shared memory */
    uint32_t next_sequence;
    bool has_plan; /* `leaves` and `plan`, for one lane for each member, are set */
    tdm__leaves leaves;
    tdm__tree_plan plan;
    struct tdm__pair_count *pair_counts; /* hash table: messages sent to and received from each
                                          * peer, by tag */
    size_t pair_count, pair_capacity;    /* capacity is a power of two */
    tdm__head history[TDM__HISTORY];     /* of sequence s at s modulo TDM__HISTORY; magic 0: none
                                          * yet */
    tdm_error broken;                    /* status TDM_OK: the group is not broken */
    atomic_bool is_broken;               /* the same, readable without the lock */
    tdm_group *next;                     /* in the comm's list */
};

/* Creates a group without a window. `id` 0: the world. */
tdm_status tdm__group_make(tdm_comm *comm, const int *ranks, int count, uint32_t id,
                           tdm_group **out, tdm_error *err);
void tdm__group_free(tdm_group *group);
/* Creates the window of the members on this host: collective among them. Without the lock. */
tdm_status tdm__group_window(tdm_group *group, tdm_error *err);
/* The sequence number of this group's next message to or from `peer` with this tag. False: out of
 * memory. */
bool tdm__group_pair_next(tdm_group *group, int peer, uint32_t tag, bool receive, uint32_t *out);

/* The comm's group with this ID, or NULL. */
tdm_group *tdm__comm_group(const tdm_comm *comm, uint32_t id);
/* Frees the numbers of groups created from each list of ranks. */
void tdm__list_counts_free(tdm_comm *comm);

#endif
