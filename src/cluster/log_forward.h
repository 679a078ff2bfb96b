/*
 * log_forward.h: lines of JSON on their way from workers and agents into the run's one log.
 */
#ifndef TANDEM_CLUSTER_LINES_H
#define TANDEM_CLUSTER_LINES_H

#include "cluster/session.h"

/* An agent's part. */
typedef struct tdm__log_forward {
    int pipe;             /* in which workers put theirs; -1: there is none */
    tdm_str part;         /* of one whose end has not come out of the pipe yet */
    tdm_str whole;        /* that wait, a newline behind each */
    uint64_t dropped;     /* for which there was no room, since that was last said */
    uint64_t first, next; /* batches of ours in the store: from first to before next */
    size_t tried;         /* bytes of `whole` that may be in the store as the next one; 0: none */
} tdm__log_forward;

/* Workers write to this pipe; made where there is none. A descriptor that never waits, or -1. */
int tdm__log_forward_open(const char *path);
/* With this pipe; without one where it cannot be. */
void tdm__log_forward_init(tdm__log_forward *lines, const char *path);
void tdm__log_forward_release(tdm__log_forward *lines);

/* One line, without its end; counted when there is no room for it. */
void tdm__log_forward_add(tdm__log_forward *lines, const char *text, size_t length);
/* What workers have written so far. */
void tdm__log_forward_drain(tdm__log_forward *lines);
/* A line that says how many there was no room for, if so. */
void tdm__log_forward_report_dropped(tdm__log_forward *lines, const char *host);

/* Into the log of the run on this host. */
void tdm__log_forward_write(tdm__log_forward *lines, const char *run);
/* Into the store, as many as may wait there, for the agent where rank 0 is. */
void tdm__log_forward_send(tdm__log_forward *lines, tdm_kv *kv, const char *session,
                           const char *agent);
/* What others have sent, from the store into the log of the run on this host. */
void tdm__log_forward_collect(tdm_kv *kv, const char *session, const char *run);
/* All that is left in the store. */
void tdm__log_forward_forget(tdm_kv *kv, const char *session);

#endif
