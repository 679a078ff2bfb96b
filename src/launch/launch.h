/*
 * launch.h: declarations shared by the files of tdm_launch: the labelled output of the ranks.
 */
#ifndef TANDEM_LAUNCH_LAUNCH_H
#define TANDEM_LAUNCH_LAUNCH_H

#include "os/loop.h"

#include <tandem/cluster.h>
#include <tandem/text.h>

typedef struct tdm__output tdm__output;

/* Output of a rank on one of its two streams that is not forwarded yet. */
typedef struct tdm__output_stream {
    tdm__output *output;
    tdm__loop_watch watch; /* watch.fd: read end of the pipe; -1: closed */
    int rank;
    int to;       /* index of its queue: 0 standard output, 1 standard error */
    tdm_str line; /* incomplete line */
} tdm__output_stream;

/* Complete lines for one of the launcher's streams. */
typedef struct tdm__output_queue {
    tdm__output *output;
    tdm__loop_watch watch; /* of STDOUT_FILENO or STDERR_FILENO */
    tdm_str text;
    size_t done;    /* bytes of `text` that are written */
    bool is_paused; /* it is full: its streams are not read until it is empty */
    bool is_broken; /* the stream cannot be written any more */
    int why;        /* errno if it is broken for another reason than a closed pipe */
} tdm__output_queue;

/* All ranks; zero: without labels, the ranks write to the launcher's streams themselves. */
struct tdm__output {
    tdm__loop *loop;
    tdm__output_queue queues[2];
    tdm__output_stream *streams; /* two for each rank */
    int stream_count;
    int open_count;
};

tdm_status tdm__output_init(tdm__output *output, tdm__loop *loop, int rank_count, tdm_error *err);
void tdm__output_release(tdm__output *output);
/* Creates the pipes of a rank; the caller passes the write ends to it, and closes them. `index` is
 * the number of the rank on this host. */
tdm_status tdm__output_open(tdm__output *output, int index, int rank, int out_write_ends[2],
                            tdm_error *err);
/* Whether lines wait to be written or, with `streams_too`, ranks can still write some. */
bool tdm__output_is_pending(const tdm__output *output, bool streams_too);

#endif
