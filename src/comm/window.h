/*
 * window.h: the shared memory through which the members of a group on one host run collectives.
 *
 * The block of a window is a part of the host's shared memory. With P members on this host:
 *
 *   |<- one cache line each ->|                        |<- at a page boundary
 *   +-------+---------+-------+------------------------+-----------------------------------+
 *   | users | waiting | done  | cells                  | staging                           |
 *   |       |         | [P]   | [WINDOW_SLOTS][P]      | [WINDOW_STAGES][WINDOW_FLIGHT][P] |
 *   +-------+---------+-------+------------------------+-----------------------------------+
 *    64 B    64 B      64 B*P  4,224 B each             4 MB of address space each
 *
 * Call number s of the group uses the cells of slot s modulo WINDOW_SLOTS and the staging memory of
 * stage s modulo WINDOW_STAGES. In its cell a member describes its call and its progress:
 *
 *   0         8        16          24           32      64            128                      4224
 *   +---------+--------+-----------+------------+-------+-------------+------------------------+
 *   | counter | agreed | in_offset | out_offset |       | head        | data of a small call   |
 *   +---------+--------+-----------+------------+-------+-------------+------------------------+
 *
 * A member writes only to its own cells and staging; all members read all of them. Invariants:
 *  1. A member writes to its cell of a slot only when all members have ended the previous call of
 *     that slot, and to a stage only when all have ended the previous call of that stage: so a slow
 *     neighbour never reads data of a later call. `done` of a member: it has ended all calls before
 *     that number.
 *  2. The content of a cell is complete before its counter is raised (release), and is read after
 *     the counter was seen (acquire).
 *  3. A program compares headers when it first sees that a neighbour has posted.
 *
 * window.c has the block and the descriptions in it, window_small.c the calls whose data fit in a
 * cell, algorithms/window.c the larger ones, algorithms/hierarchy.c those of several hosts. All
 * functions are called with the comm's lock held.
 */
#ifndef TANDEM_COMM_WINDOW_H
#define TANDEM_COMM_WINDOW_H

#include "comm/program.h"
#include "shm/host.h"
#include "transport/transport.h"

#include <stdatomic.h>

enum {
    TDM__WINDOW_SLOTS = 16,    /* calls of a group that may use its window concurrently */
    TDM__WINDOW_FLIGHT = 2,    /* pieces of one call that have staging memory at once */
    TDM__WINDOW_STAGES = 2,    /* calls that have staging memory at once */
    TDM__WINDOW_INLINE = 4096, /* maximum bytes of a call's data in its cell */
};

/* A local member's description of one call, in shared memory. */
typedef struct tdm__cell {
    /* (sequence << 32) + value of the last POST. Compared by difference, since it may wrap
     * around. */
    _Alignas(64) _Atomic uint64_t counter;
    uint64_t agreed; /* hash of the fields of `head` that must agree */
    /* Offsets of buffers that are in the host's shared memory; else UINT64_MAX. */
    uint64_t in_offset, out_offset;
    _Alignas(64) tdm__head head; /* the member's call: compared if the hashes differ */
    /* Of a small call: its data. Of a large reduction with lanes: the offsets of its parts. */
    _Alignas(64) uint8_t data[TDM__WINDOW_INLINE];
} tdm__cell;
_Static_assert(sizeof(tdm__cell) == 2 * 64 + TDM__WINDOW_INLINE, "as in the picture above");

/* A counter that has a cache line for itself. */
typedef struct tdm__line {
    _Alignas(64) _Atomic uint64_t value;
} tdm__line;

typedef struct tdm__window {
    tdm__host *host;
    int local_count;    /* members on this host */
    int local_index;    /* this rank among them */
    int *local_members; /* by local index: rank in the group */
    int *host_places;   /* by local index: index in the host */
    uint64_t offset;    /* of the shared block */
    tdm__cell *cells;   /* [slot][local_index] */
    tdm__line *users;   /* number of members that have not left the block */
    tdm__line *waiting; /* number of members that wait for a slot or for staging */
    tdm__line *done;    /* by local index: calls [0, value) have ended there, modulo 2^32 */
    uint8_t *staging;   /* [stage][flight][local_index][stage_bytes] */
    size_t stage_bytes;
    uint32_t all_done; /* the minimum of `done` when it was last read */
    bool is_waiting;   /* this rank is counted in `waiting` */
    uint64_t *ended;   /* bit i: call done + i has ended here, out of order */
    size_t ended_words;
    tdm__tree_plan plan; /* of one part for each member, if all are on this host */
    bool crowded;        /* more ranks on the host than CPUs */
} tdm__window;

/* ---- life (window.c) -------------------------------------------------------------------------- */

/*
 * The lowest local member creates the block; all members, including that one, enter it by its
 * offset; each leaves it when its group is destroyed; the last one frees the memory. enter() sets
 * group->window.
 */
tdm_status tdm__window_make(tdm__host *host, int local_count, uint64_t *out_offset, tdm_error *err);
tdm_status tdm__window_enter(tdm_group *group, uint64_t offset, tdm_error *err);
void tdm__window_leave(tdm_group *group);

/* ---- calls (window.c) ------------------------------------------------------------------------- */

tdm__cell *tdm__window_cell(const tdm__window *w, uint32_t sequence, int local_index);
uint8_t *tdm__window_staging(const tdm__window *w, uint32_t sequence, int flight, int local_index);

/*
 * POST and AWAIT of a program. The value 0 is never posted; awaiting 0 waits until the call's slot
 * and staging are free. If a neighbour's header differs from ours, the group is broken
 * (tdm__group_mismatch) and the result is false. `local_member` -1: all.
 */
void tdm__window_post(tdm__program *program, uint32_t value);
bool tdm__window_reached(tdm__program *program, int local_member, uint32_t value);
/* Whether this call should begin: its slot and staging are free, or will be soon. */
bool tdm__window_is_near(const tdm_request *request);
/* Must be called once for every numbered call of a group with a window when it has ended, for every
 * algorithm and status: it frees the call's slot and staging. */
void tdm__window_ended(tdm_group *group, uint32_t sequence);

/* Whether all members have ended call `before`; if not, they will notify this rank. */
bool tdm__window_is_free(tdm__window *w, uint32_t before);
/* Writes the description of this rank's call to its cell of the call's slot. */
void tdm__window_describe(const tdm_group *group, const tdm__head *head);
/* Whether a neighbour that has posted makes the same call. If not, the group is broken. */
bool tdm__window_agrees(tdm_group *group, const tdm__head *head, int local_index);
/* Whether a neighbour's counter of a call is at least `value`. */
bool tdm__window_has_posted(const tdm__window *w, uint32_t sequence, int local_index,
                            uint32_t value);
/* Raises this rank's counter of a call, and notifies the others. */
void tdm__window_raise(const tdm__window *w, uint32_t sequence, uint32_t value);

/* ---- small calls (window_small.c) ------------------------------------------------------------- */

/* Whether the input of each member fits in its cell: the same on all members. */
bool tdm__window_is_small(const tdm_group *group, const tdm_call *call);
void tdm__window_build_small(tdm__program *program);
/* The maximum number of parts that any rank has in a reduction; 1 without lanes. */
int tdm__window_max_parts(const tdm_group *group, const tdm_call *call);

/* The address of part `part` of this rank's input. */
static inline const uint8_t *tdm__call_part(const tdm_call *call, int part)
{
    return call->lanes ? call->parts[part] : call->in;
}

/*
 * Runs a small synchronous call without a request. False: not possible, and nothing has changed.
 * The caller has found no other pending call of the group; head->sequence is assigned,
 * head->algorithm is TDM_ALGORITHM_WINDOW, and in-place buffers are resolved. Releases the lock
 * while it sleeps. It writes the same data to its cell as the program of the same call, so ranks
 * may use different paths for one call. If true, the call has ended (tdm__window_ended was called)
 * with *status.
 */
bool tdm__window_run_fast(tdm_group *group, const tdm__head *head, const tdm_call *call,
                          double deadline_s, tdm_status *status, tdm_error *err);

#endif
