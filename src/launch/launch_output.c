/*
 * launch_output.c: merges the output lines of many ranks into one stream, with the rank as prefix.
 *
 * Every rank writes to its own pipes. The output is split at newlines, and a line is added to the
 * queue of the output stream as a whole, so lines never mix. Bytes are not changed, including
 * zeros. A line longer than MAX_LINE bytes is split, which bounds the memory. The queue is bounded
 * as well: when it is full, the pipes are not read until it is empty, so a rank that writes too
 * fast blocks. When the reader of the output stream is gone, the pipes of the ranks are closed, and
 * the ranks get the same error as without labels.
 */
#include "base/base.h"
#include "launch/launch.h"
#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_LINE = 1 << 20,
    MAX_QUEUE = 4 << 20,
    READ_BYTES = 65536,
    WRITE_BYTES = 4096 /* a pipe that is ready accepts this much without blocking */
};

/* ---- streams of the ranks -------------------------------------------------------------------- */

static void queue_add_line(tdm__output_queue *queue, tdm__output_stream *stream, const char *bytes,
                           size_t count)
{
    if (!queue->is_broken) {
        tdm_str_addf(&queue->text, "[%d] ", stream->rank);
        tdm_str_add_bytes(&queue->text, stream->line.data ? stream->line.data : "",
                          stream->line.length);
        tdm_str_add_bytes(&queue->text, bytes, count);
        tdm_str_add_char(&queue->text, '\n');
    }
    tdm_str_clear(&stream->line);
    if (queue->is_broken ||
        tdm__loop_watch_set(queue->output->loop, &queue->watch, TDM__LOOP_WRITE, NULL) == TDM_OK)
        return;
    queue->is_broken = true; /* the launcher was started without this stream */
    queue->why = EBADF;
    tdm_str_clear(&queue->text);
}

static void stream_take(tdm__output_stream *stream, tdm__output_queue *queue, const char *bytes,
                        size_t count)
{
    while (count > 0) {
        const char *end = memchr(bytes, '\n', count);
        size_t length = end ? (size_t)(end - bytes) : count;
        size_t room = MAX_LINE - stream->line.length;

        if (length > room) { /* split: the rest is another line */
            queue_add_line(queue, stream, bytes, room);
            bytes += room;
            count -= room;
            continue;
        }
        if (!end) {
            tdm_str_add_bytes(&stream->line, bytes, length);
            return;
        }
        queue_add_line(queue, stream, bytes, length);
        bytes += length + 1;
        count -= length + 1;
    }
}

static void stream_close(tdm__output_stream *stream)
{
    if (stream->watch.fd < 0) return;
    (void)tdm__loop_watch_set(stream->output->loop, &stream->watch, 0, NULL);
    close(stream->watch.fd);
    stream->watch.fd = -1;
    stream->output->open_count--;
}

/* Starts or stops reading the pipes that lead to this queue. */
static void queue_pause(tdm__output_queue *queue, bool is_paused)
{
    tdm__output *output = queue->output;
    queue->is_paused = is_paused;
    for (int i = 0; i < output->stream_count; i++) {
        tdm__output_stream *stream = &output->streams[i];
        if (stream->watch.fd >= 0 && &output->queues[stream->to] == queue)
            (void)tdm__loop_watch_set(output->loop, &stream->watch, is_paused ? 0 : TDM__LOOP_READ,
                                      NULL);
    }
}

static void stream_on_readable(tdm__loop_watch *watch, unsigned ready)
{
    tdm__output_stream *stream = watch->user;
    tdm__output_queue *queue = &stream->output->queues[stream->to];
    char bytes[READ_BYTES];
    (void)ready;
    ssize_t got = read(watch->fd, bytes, sizeof(bytes));
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;

    if (got > 0 && !queue->is_broken) {
        stream_take(stream, queue, bytes, (size_t)got);
        if (queue->text.length - queue->done >= MAX_QUEUE) queue_pause(queue, true);
        return;
    }
    if (stream->line.length > 0) queue_add_line(queue, stream, "", 0);
    stream_close(stream);
}

/* ---- the launcher's streams ------------------------------------------------------------------ */

static void queue_on_writable(tdm__loop_watch *watch, unsigned ready)
{
    tdm__output_queue *queue = watch->user;
    size_t left = queue->text.length - queue->done;
    (void)ready;
    ssize_t put = write(watch->fd, queue->text.data + queue->done,
                        left < WRITE_BYTES ? left : WRITE_BYTES);
    if (put < 0 && (errno == EINTR || errno == EAGAIN)) return;

    if (put >= 0) {
        queue->done += (size_t)put;
    } else {
        queue->is_broken = true;
        queue->why = errno == EPIPE ? 0 : errno;
    }
    if (queue->done < queue->text.length && !queue->is_broken) return;
    tdm_str_clear(&queue->text);
    queue->done = 0;
    (void)tdm__loop_watch_set(queue->output->loop, watch, 0, NULL);
    if (queue->is_paused) queue_pause(queue, false);
}

/* ---- all ------------------------------------------------------------------------------------- */

tdm_status tdm__output_init(tdm__output *output, tdm__loop *loop, int rank_count, tdm_error *err)
{
    *output = (tdm__output){.loop = loop, .stream_count = 2 * rank_count};
    output->streams = calloc((size_t)output->stream_count, sizeof(*output->streams));
    if (!output->streams) {
        output->stream_count = 0;
        return tdm_fail_oom(err, "for the output of %d ranks", rank_count);
    }
    for (int i = 0; i < output->stream_count; i++) output->streams[i].watch.fd = -1;
    for (int q = 0; q < 2; q++) {
        output->queues[q].output = output;
        output->queues[q].watch = (tdm__loop_watch){
            .fd = STDOUT_FILENO + q, .on_ready = queue_on_writable, .user = &output->queues[q]};
    }
    return TDM_OK;
}

void tdm__output_release(tdm__output *output)
{
    for (int i = 0; i < output->stream_count; i++) {
        stream_close(&output->streams[i]);
        tdm_str_release(&output->streams[i].line);
    }
    for (int q = 0; q < 2; q++) tdm_str_release(&output->queues[q].text);
    free(output->streams);
    *output = (tdm__output){.loop = NULL};
}

tdm_status tdm__output_open(tdm__output *output, int index, int rank, int out_write_ends[2],
                            tdm_error *err)
{
    for (int q = 0; q < 2; q++) {
        tdm__output_stream *stream = &output->streams[2 * index + q];
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0) return tdm_os_fail(err, "cannot create", "a pipe");
        out_write_ends[q] = ends[1];
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        *stream = (tdm__output_stream){
            .output = output,
            .watch = {.fd = ends[0], .on_ready = stream_on_readable, .user = stream},
            .rank = rank,
            .to = q};
        output->open_count++;
        TDM_TRY(tdm__loop_watch_set(output->loop, &stream->watch,
                                    output->queues[q].is_paused ? 0 : TDM__LOOP_READ, err));
    }
    return TDM_OK;
}

bool tdm__output_is_pending(const tdm__output *output, bool streams_too)
{
    if (streams_too && output->open_count > 0) return true;
    return output->queues[0].text.length > 0 || output->queues[1].text.length > 0;
}
