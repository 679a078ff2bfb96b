/*
 * launch.h: what the launcher's files share: a rank's process, how it is started, and its output.
 */
#ifndef TANDEM_LAUNCH_LAUNCH_H
#define TANDEM_LAUNCH_LAUNCH_H

#include <tandem/cluster.h>
#include <tandem/os.h>

#include <signal.h>
#include <sys/types.h>

/* ---- output (launch_output.c) ---------------------------------------------------------------- */

/* What a rank has written to one of its two streams and is not passed on yet. */
typedef struct tdm__launch_stream {
    int fd; /* our end of the pipe; -1: closed, or not labelled */
    int rank;
    int to;       /* STDOUT_FILENO or STDERR_FILENO */
    tdm_str line; /* not ended yet */
} tdm__launch_stream;

/* Whole lines on their way to one of our own streams; bounded, see tdm__launch_read. */
typedef struct tdm__launch_queue {
    int fd;
    tdm_str text;
    size_t done;
    bool broken; /* it cannot be written any more */
    int why;     /* broken, and not because nobody reads it: the errno */
} tdm__launch_queue;

/* Reads what is there and queues whole lines; at the end the rest. Does nothing while the queue is
 * full, so that a rank that writes faster than we can waits in its pipe. */
void tdm__launch_read(tdm__launch_stream *stream, tdm__launch_queue *queue);
bool tdm__launch_full(const tdm__launch_queue *queue);
/* Writes as much as can be written without waiting. */
void tdm__launch_write(tdm__launch_queue *queue);
void tdm__launch_stream_close(tdm__launch_stream *stream);

/* ---- processes (launch_spawn.c) -------------------------------------------------------------- */

typedef struct tdm__launch_rank {
    int rank;
    pid_t pid; /* and its process group; 0: not started, or ended and reaped */
    int status;
    bool ended;
    tdm__launch_stream streams[2];
} tdm__launch_rank;

/* What all ranks have in common; made before the first is started. */
typedef struct tdm__launch_plan {
    const tdm_launch_options *options;
    int count, first_rank, size;
    char **environment; /* its last places are for the rank's own variables */
    size_t common_count;
    tdm_cpu_set *places; /* one for each rank; NULL: they are not pinned */
    pid_t launcher;
    sigset_t mask; /* the signal mask to start with */
} tdm__launch_plan;

tdm_status tdm__launch_plan_init(tdm__launch_plan *plan, const char *rendezvous, const char *secret,
                                 const char *run, tdm_error *err);
void tdm__launch_plan_release(tdm__launch_plan *plan);
/* Starts rank number `index` of this host; returns when its program runs, or could not be run. */
tdm_status tdm__launch_spawn(const tdm__launch_plan *plan, int index, tdm__launch_rank *out,
                             tdm_error *err);

#endif
