/*
 * request.h: a call in progress: its programs, its timers and its end.
 *
 * A request is divided into segments, up to `cut.flight` of which have a program at a time. All
 * functions are called with the comm's lock held.
 */
#ifndef TANDEM_COMM_REQUEST_H
#define TANDEM_COMM_REQUEST_H

#include "comm/algorithm.h"
#include "comm/lanes.h"
#include "transport/transport.h"

enum { TDM__MAX_FLIGHT = 8 }; /* maximum number of concurrent segments of a call */

struct tdm_request {
    tdm_group *group;
    tdm_call call; /* with in-place buffers resolved */
    tdm__head head;
    const tdm__algorithm_ops *algorithm;
    tdm__cut cut;
    size_t segment_count, next_segment, ended_segments;
    size_t segment_bytes; /* bytes of data in a segment */
    uint64_t age;         /* number of requests started before it */
    tdm__program programs[TDM__MAX_FLIGHT];
    bool owns_plan;             /* leaves and plan belong to the request, not to the group */
    tdm__leaves leaves;         /* of a reduction: the operands of each rank */
    tdm__tree_plan plan;        /* of a reduction over all ranks' parts */
    void *state;                /* the algorithm's state; freed with free() */
    double begin_s, deadline_s; /* on the transport's clock */
    double notice_s;            /* when to send the next notice */
    double left_s; /* a member has left; its messages may arrive until then; 0: none has left */
    bool done, ending;
    bool background;  /* the progress thread advances it */
    bool waits;       /* the trace has a WAIT event of it */
    int waits_for;    /* for this rank of the world; -1: for no particular one */
    bool late;        /* its deadline has passed, and the control connection is asked for the
                       * reason */
    double suspect_s; /* until then, wait for the reason of a failed transfer; 0: none has failed */
    int outstanding;  /* transfers that the transport has */
    double ending_s;  /* when its end began */
    void *copy;       /* of the input, if needed; owned */
    tdm_error error;
    tdm_request *next; /* in the comm's pending list, by priority, then by age */
};

tdm_request *tdm__request_create(tdm_group *group); /* NULL: out of memory */
void tdm__request_start(tdm_request *request);      /* call, head and algorithm must be set */
void tdm__request_run(tdm_request *request, bool *changed);
void tdm__request_end(tdm_request *request, const tdm_error *error);
void tdm__request_release(tdm_request *request); /* only after its end */
/* The pending request that the call of this head belongs to; NULL: none. */
tdm_request *tdm__request_find(tdm_group *group, const tdm__head *head);
/* The ranks of the world that a request waits for, at most `max`; returns their number. */
int tdm__request_missing(tdm_request *request, int *out, int max);

#endif
