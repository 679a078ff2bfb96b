/*
 * program.h: the program of one segment of a call, and the functions by which algorithms write it.
 *
 * A program is a list of instructions for this rank. The engine executes them in order. SEND and
 * RECV start a transfer and do not block the program; JOIN blocks it until all started transfers
 * have ended; AWAIT blocks it until a counter in shared memory is reached. The same program runs on
 * all transports, for synchronous and asynchronous calls.
 *
 * The writing functions return no error. If memory runs out they set no_memory in the program; the
 * rest of the program is then invalid, and the engine ends the call.
 */
#ifndef TANDEM_COMM_PROGRAM_H
#define TANDEM_COMM_PROGRAM_H

#include "comm/reduce.h"

#include <tandem/base.h>

typedef enum tdm__op {
    TDM__OP_SEND = 1, /* send `bytes` at `from` to group rank `peer`, as `step` */
    TDM__OP_RECV,     /* receive `bytes` from group rank `peer`, as `step`, into `to` */
    TDM__OP_JOIN,     /* wait until all started transfers have ended */
    TDM__OP_COPY,     /* copy `bytes` from `from` to `to` */
    TDM__OP_PAIR,     /* `to` = `from` (+) `other`, `bytes` */
    TDM__OP_TREE,     /* run trees[tree], see tdm__program_tree */
    TDM__OP_POST,     /* set this rank's counter in the call's window slot to `value`; notify the
                       * other members */
    TDM__OP_AWAIT,    /* wait until the counter of local member `peer` (-1: of all) is at least
                       * `value` */
    TDM__OP_CALL      /* run `function(request, segment)` */
} tdm__op;

typedef struct tdm__instruction {
    uint8_t op;
    int stream; /* COPY: bypass the cache; TREE: number of destinations that bypass it */
    int peer;
    uint32_t step;
    uint32_t value;
    const void *from, *other;
    void *to;
    size_t bytes;
    int tree;
    void (*function)(tdm_request *request, int segment);
} tdm__instruction;

/* One evaluation of a tree plan: sources and destinations are in the program's arena. */
typedef struct tdm__tree_call {
    const tdm__tree_plan *plan;
    const void **sources;
    void **destinations;
    int destination_count;
    size_t count;
} tdm__tree_call;

typedef struct tdm__program {
    tdm_request *request;
    int segment;
    tdm_arena *arena;          /* instructions, trees and small scratch buffers; reset for the next
                                * segment */
    struct tdm__block *blocks; /* large scratch buffers (scratch.h); returned before the next
                                * segment */
    tdm__instruction *list;
    int count, capacity;
    tdm__tree_call *trees;
    int tree_count, tree_capacity;
    int at;      /* the next instruction */
    int pending; /* unfinished sends and receives */
    bool active; /* it belongs to a segment that has not ended */
    bool no_memory;
} tdm__program;

/* Messages of 0 bytes are sent (a barrier consists of them); copies of 0 bytes and sums of 0
 * elements are omitted. A sender uses a step once in a call. */
void tdm__program_send(tdm__program *p, int peer, uint32_t step, const void *from, size_t bytes);
void tdm__program_recv(tdm__program *p, int peer, uint32_t step, void *to, size_t bytes);
void tdm__program_join(tdm__program *p);
void tdm__program_copy(tdm__program *p, void *to, const void *from, size_t bytes, bool stream);
void tdm__program_pair(tdm__program *p, void *to, const void *left, const void *right,
                       size_t bytes);
void tdm__program_tree(tdm__program *p, const tdm__tree_plan *plan, const void *const *sources,
                       void *const *destinations, int destination_count, size_t count, int stream);
void tdm__program_post(tdm__program *p, uint32_t value);
void tdm__program_await(tdm__program *p, int local_member, uint32_t value);
void tdm__program_call(tdm__program *p, void (*function)(tdm_request *, int));

/* Memory that lives as long as the segment's program, not zeroed; NULL (and no_memory): out of
 * memory. */
void *tdm__program_scratch(tdm__program *p, size_t bytes);
/* Empties the program. Called from the CALL that is the last instruction, with no transfer pending;
 * the instructions written afterwards are run next. Used where a program would be long. */
void tdm__program_restart(tdm__program *p);

#endif
