/*
 * launch_output.c: merges the output lines of many ranks into one stream, with the rank as prefix.
 *
 * Every rank writes to its own pipes. The output is split at newlines, and a line is added to the
 * queue of the output stream as a whole, so lines never mix. Bytes are not changed, including
 * zeros. A line longer than MAX_LINE bytes is split, which bounds the memory. The queue is bounded
 * as well: while it is full nothing is read. When the reader of the output stream is gone, the
 * pipes of the ranks are closed, and the ranks get the same error as without labels.
 */
#include "launch/launch.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_LINE = 1 << 20,
    MAX_QUEUE = 4 << 20,
    READ_BYTES = 65536,
    WRITE_BYTES = 4096 /* poll() guarantees that a pipe accepts this much without blocking */
};

static void queue_add_line(tdm__launch_stream *stream, tdm__launch_queue *queue, const char *bytes,
                           size_t count)
{
    if (!queue->broken) {
        tdm_str_addf(&queue->text, "[%d] ", stream->rank);
        tdm_str_add_bytes(&queue->text, stream->line.data ? stream->line.data : "",
                          stream->line.length);
        tdm_str_add_bytes(&queue->text, bytes, count);
        tdm_str_add_char(&queue->text, '\n');
    }
    tdm_str_clear(&stream->line);
}

static void stream_take(tdm__launch_stream *stream, tdm__launch_queue *queue, const char *bytes,
                        size_t count)
{
    while (count > 0) {
        const char *end = memchr(bytes, '\n', count);
        size_t length = end ? (size_t)(end - bytes) : count;
        size_t room = MAX_LINE - stream->line.length;
        if (length > room) { /* split: the rest is another line */
            queue_add_line(stream, queue, bytes, room);
            bytes += room;
            count -= room;
            continue;
        }
        if (!end) {
            tdm_str_add_bytes(&stream->line, bytes, length);
            return;
        }
        queue_add_line(stream, queue, bytes, length);
        bytes += length + 1;
        count -= length + 1;
    }
}

bool tdm__launch_full(const tdm__launch_queue *queue)
{
    return queue->text.length - queue->done >= MAX_QUEUE;
}

void tdm__launch_stream_close(tdm__launch_stream *stream)
{
    if (stream->fd >= 0) close(stream->fd);
    stream->fd = -1;
    tdm_str_release(&stream->line);
}

void tdm__launch_read(tdm__launch_stream *stream, tdm__launch_queue *queue)
{
    char bytes[READ_BYTES];
    while (stream->fd >= 0 && !tdm__launch_full(queue)) {
        ssize_t got = read(stream->fd, bytes, sizeof(bytes));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return;
        if (got > 0 && !queue->broken) {
            stream_take(stream, queue, bytes, (size_t)got);
            continue;
        }
        if (stream->line.length > 0) queue_add_line(stream, queue, "", 0);
        tdm__launch_stream_close(stream);
    }
}

void tdm__launch_write(tdm__launch_queue *queue)
{
    while (queue->done < queue->text.length && !queue->broken) {
        struct pollfd ready = {.fd = queue->fd, .events = POLLOUT};
        if (poll(&ready, 1, 0) <= 0) return;
        size_t left = queue->text.length - queue->done;
        ssize_t put = write(queue->fd, queue->text.data + queue->done,
                            left < WRITE_BYTES ? left : WRITE_BYTES);
        if (put < 0 && (errno == EINTR || errno == EAGAIN)) return;
        if (put < 0) {
            queue->broken = true;
            queue->why = errno == EPIPE ? 0 : errno;
        } else {
            queue->done += (size_t)put;
        }
    }
    tdm_str_clear(&queue->text);
    queue->done = 0;
}
