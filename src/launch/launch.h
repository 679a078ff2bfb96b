/*
 * launch.h: declarations shared by the files of the launcher: the process of a rank, its start and
 * its output.
 */
#ifndef TANDEM_LAUNCH_LAUNCH_H
#define TANDEM_LAUNCH_LAUNCH_H

#include "os/os.h"

#include <tandem/cluster.h>

#include <signal.h>
#include <sys/types.h>

/* ---- output (launch_output.c) ---------------------------------------------------------------- */

/* Output of a rank on one of its two streams that is not forwarded yet. */
typedef struct tdm__launch_stream {
    int fd; /* read end of the pipe; -1: closed, or not labelled */
    int rank;
    int to;       /* STDOUT_FILENO or STDERR_FILENO */
    tdm_str line; /* incomplete line */
} tdm__launch_stream;

/* Complete lines for one of the launcher's streams; bounded, see tdm__launch_read. */
typedef struct tdm__launch_queue {
    int fd;
    tdm_str text;
    size_t done;
    bool broken; /* the stream cannot be written any more */
    int why;     /* errno if it is broken for another reason than a closed pipe */
} tdm__launch_queue;

/* Reads available output and queues complete lines, at the end of the stream also the rest. Does
 * nothing while the queue is full, so that a rank that writes too fast blocks on its pipe. */
void tdm__launch_read(tdm__launch_stream *stream, tdm__launch_queue *queue);
bool tdm__launch_full(const tdm__launch_queue *queue);
/* Writes as much as possible without blocking. */
void tdm__launch_write(tdm__launch_queue *queue);
void tdm__launch_stream_close(tdm__launch_stream *stream);

/* ---- processes (launch_spawn.c) -------------------------------------------------------------- */

typedef struct tdm__launch_rank {
    int rank;
    pid_t pid; /* also its process group; 0: not started, or exited and waited for */
    int status;
    bool ended;
    tdm__launch_stream streams[2];
} tdm__launch_rank;

/* Settings common to all ranks; prepared before the first one is started. */
typedef struct tdm__launch_plan {
    const tdm_launch_options *options;
    int count, first_rank, size;
    char **environment; /* the last entries are for the variables of a rank */
    size_t common_count;
    tdm_cpu_set *places; /* one for each rank; NULL: not pinned */
    pid_t launcher;
    sigset_t mask; /* initial signal mask */
} tdm__launch_plan;

tdm_status tdm__launch_plan_init(tdm__launch_plan *plan, const char *rendezvous, const char *secret,
                                 const char *run, tdm_error *err);
void tdm__launch_plan_release(tdm__launch_plan *plan);
/* Starts rank `index` of this host; returns when its program runs or could not be executed. */
tdm_status tdm__launch_spawn(const tdm__launch_plan *plan, int index, tdm__launch_rank *out,
                             tdm_error *err);

#endif
