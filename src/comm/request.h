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

/*
 * The life of a request:
 *
 *           start             all segments have ended
 *    NEW ---------> RUNNING -----------------------------------> DONE
 *                    |   |                                       ^  ^
 *       a transfer   |   | its deadline has passed, or it        |  |
 *       has failed   v   | waits for a rank that has left        |  |
 *                SUSPECT |                                       |  |
 *                        v    all segments have ended            |  |
 *                      LATE -------------------------------------+  |
 *                                                                   |
 *                       its group breaks,             the transport |
 *                       or its comm is closed         has no buffer |
 *    RUNNING, SUSPECT, LATE ---------------> ENDING ----------------+
 *
 *   transition                   function
 *   NEW -> RUNNING               tdm__request_start
 *   RUNNING -> SUSPECT           tdm__request_suspect, called by transfer.c
 *   RUNNING -> LATE              request_on_deadline (fail.c)
 *   RUNNING, ... -> ENDING       tdm__request_end, called by tdm__group_break and tdm_comm_close
 *   RUNNING, LATE, ENDING
 *                 -> DONE        tdm__request_run
 *
 * Programs run in RUNNING, and in LATE unless a transfer has failed. `error` is set from the first
 * failed transfer on; tdm__request_end replaces it by the error of the group.
 */
typedef enum tdm__request_state {
    TDM__REQUEST_NEW = 0, /* not in the comm's pending list yet */
    TDM__REQUEST_RUNNING,
    TDM__REQUEST_SUSPECT, /* a transfer with failed_peer has failed: waits for the decision of the hub */
    TDM__REQUEST_LATE,   /* the control connection is asked for the reason */
    TDM__REQUEST_ENDING, /* waits for the transport to return its buffers */
    TDM__REQUEST_DONE    /* in the comm's list of ended requests */
} tdm__request_state;

enum { TDM__MAX_FLIGHT = 8 }; /* maximum number of concurrent segments of a call */

struct tdm_request {
    tdm_group *group;
    tdm__request_state state;
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
    void *algorithm_data;       /* of this call; freed with free() */
    double begin_s, deadline_s; /* on the transport's clock */
    double notice_s;            /* when to send the next notice */
    double left_s;   /* a member has left; its messages may arrive until then; 0: none has left */
    double ending_s; /* ENDING: when its end began */
    bool background; /* the progress thread advances it */
    int waits_for;   /* rank of the world in the trace's last WAIT event of this call; -1: none */
    int failed_peer; /* SUSPECT: of the failed transfer */
    int outstanding; /* transfers that the transport has */
    void *copy;      /* a second buffer of the algorithm for this call; freed with free() */
    tdm_error error;
    tdm_request *next; /* in the comm's pending list, by priority, then by age */
};

tdm_request *tdm__request_create(tdm_group *group); /* NULL: out of memory */
/* Adds it to the comm's pending requests; call, head, algorithm and times must be set. */
void tdm__request_start(tdm_request *request);
/* Advances its programs, and finishes it if nothing is left to do. */
void tdm__request_run(tdm_request *request, bool *changed);
/* A transfer with `peer` has failed with this error; ignored if it is not the first one. That is rarely
 * the root cause, so the call stops until the hub has decided about the peer (fail.c). */
void tdm__request_suspect(tdm_request *request, int peer, const tdm_error *error);
/* Ends a pending request with this error, as soon as the transport has returned its buffers. */
void tdm__request_end(tdm_request *request, const tdm_error *error);
/* Returns its memory to the comm. Not while it is pending. */
void tdm__request_release(tdm_request *request);

/* Whether it is pending and not ending. */
static inline bool tdm__request_is_open(const tdm_request *request)
{
    return request->state >= TDM__REQUEST_RUNNING && request->state < TDM__REQUEST_ENDING;
}

/* The pending request that the call of this head belongs to; NULL: none. */
tdm_request *tdm__request_find(tdm_group *group, const tdm__head *head);
/* The ranks of the world that a request waits for, at most `max`; returns their number. */
int tdm__request_missing(tdm_request *request, int *out, int max);

#endif
