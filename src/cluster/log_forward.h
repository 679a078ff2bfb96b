/*
 * log_forward.h: forwards JSON log lines of workers and agents to the run's log.
 */
#ifndef TANDEM_CLUSTER_LINES_H
#define TANDEM_CLUSTER_LINES_H

#include "cluster/session.h"

/* The state of one agent. */
typedef struct tdm__log_forward {
    int pipe;             /* workers write their lines here; -1: none */
    tdm_str part;         /* beginning of an incomplete line from the pipe */
    tdm_str whole;        /* waiting lines, each with a newline */
    uint64_t dropped;     /* lines dropped since the last report */
    uint64_t first, next; /* batches of this agent in the store: first to next - 1 */
    size_t tried;         /* bytes of `whole` that may be in the store as batch `next`; 0: none */
} tdm__log_forward;

/* Opens the pipe for workers and creates it if necessary. Returns a non-blocking file descriptor,
 * or -1. */
int tdm__log_forward_open(const char *path);
/* Initialises with this pipe; continues without one if it cannot be opened. */
void tdm__log_forward_init(tdm__log_forward *lines, const char *path);
void tdm__log_forward_release(tdm__log_forward *lines);

/* Adds one line without its newline. Counts it as dropped if the buffer is full. */
void tdm__log_forward_add(tdm__log_forward *lines, const char *text, size_t length);
/* Adds a record of this process's log as one line. */
void tdm__log_forward_add_record(tdm__log_forward *lines, const tdm_log_record *record,
                                 const char *host);
/* Reads the lines that workers have written. */
void tdm__log_forward_drain(tdm__log_forward *lines);
/* Adds a line with the number of dropped lines, if any. */
void tdm__log_forward_report_dropped(tdm__log_forward *lines, const char *host);

/* Appends the waiting lines to the run's log on this host. */
void tdm__log_forward_write(tdm__log_forward *lines, const char *run);
/* Puts waiting lines into the store, up to the limit, for the agent on rank 0's host. */
void tdm__log_forward_send(tdm__log_forward *lines, tdm_kv *kv, const char *session,
                           const char *agent);
/* Moves the lines of other hosts from the store to the run's log on this host. */
void tdm__log_forward_collect(tdm_kv *kv, const char *session, const char *run);
/* Removes all lines of the session from the store. */
void tdm__log_forward_forget(tdm_kv *kv, const char *session);

#endif
