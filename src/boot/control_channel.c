/*
 * control_channel.c: buffers around a non-blocking socket. See the header.
 *
 * Incoming bytes are in one buffer, and frames are parsed in place. The buffer grows by doubling, and only
 * while it is full of received bytes; when it is empty and large, it is freed.
 */
#include "boot/control_channel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { IN_LEAST = 8192, IN_KEPT = 64 << 10, MAX_READ = 256 << 10 };

tdm__blob *tdm__blob_of(const tdm_str *str)
{
    if (!tdm_str_ok(str)) return NULL;
    tdm__blob *blob = malloc(sizeof(*blob) + str->length);
    if (!blob) return NULL;
    blob->users = 1;
    blob->bytes = str->length;
    if (str->length > 0) memcpy(blob->data, str->data, str->length);
    return blob;
}

tdm__blob *tdm__blob_frame(const tdm__frame *frame)
{
    tdm_str text = TDM_STR_INIT;
    tdm__wire_write(frame, &text);
    tdm__blob *blob = tdm__blob_of(&text);
    tdm_str_release(&text);
    return blob;
}

void tdm__blob_release(tdm__blob *blob)
{
    if (blob && --blob->users == 0) free(blob);
}

void tdm__channel_init(tdm__channel *channel, int fd, size_t limit)
{
    *channel = (tdm__channel){.stream = tdm__stream_of(fd), .limit = limit};
}

static void channel_drop_first(tdm__channel *channel)
{
    tdm__outgoing *first = channel->out_first;
    channel->out_first = first->next;
    if (!first->next) channel->out_last = NULL;
    channel->out_offset = 0;
    tdm__blob_release(first->blob);
    free(first);
}

void tdm__channel_release(tdm__channel *channel)
{
    while (channel->out_first) channel_drop_first(channel);
    free(channel->in);
    tdm__stream_close(&channel->stream, false);
    tdm__channel_init(channel, -1, 0);
}

/* Makes room for at least one more byte. */
static bool channel_make_room(tdm__channel *channel)
{
    if (channel->in_first > 0) {
        memmove(channel->in, channel->in + channel->in_first, channel->in_count);
        channel->in_first = 0;
    }
    if (channel->in_count < channel->in_capacity) return true;
    size_t capacity = channel->in_capacity ? channel->in_capacity * 2 : IN_LEAST;
    size_t max = channel->limit + TDM__WIRE_HEAD;
    if (capacity > max && max > channel->in_count) capacity = max;
    uint8_t *grown = realloc(channel->in, capacity);
    if (!grown) {
        errno = ENOMEM;
        return false;
    }
    channel->in = grown;
    channel->in_capacity = capacity;
    return true;
}

tdm__channel_state tdm__channel_read(tdm__channel *channel)
{
    channel->has_more = channel->stream.tls !=
                        NULL; /* unless the stream reports that nothing is left */
    for (size_t total = 0; total < MAX_READ;) {
        /* A complete frame must be taken first, so the buffer never exceeds one frame. */
        if (channel->in_count >= channel->limit + TDM__WIRE_HEAD) return TDM__CHANNEL_OK;
        if (channel->in_first + channel->in_count == channel->in_capacity &&
            !channel_make_room(channel))
            return TDM__CHANNEL_ERROR;
        size_t end = channel->in_first + channel->in_count;
        struct iovec part = {channel->in + end, channel->in_capacity - end};
        ssize_t got = tdm__stream_recv(&channel->stream, &part, 1);
        if (got <= 0) channel->has_more = false;
        if (got == 0) return TDM__CHANNEL_END;
        if (got < 0) {
            return errno == EAGAIN || errno == EWOULDBLOCK ? TDM__CHANNEL_OK : TDM__CHANNEL_ERROR;
        }
        channel->in_count += (size_t)got;
        total += (size_t)got;
    }
    return TDM__CHANNEL_OK;
}

int tdm__channel_next(tdm__channel *channel, tdm__frame *out)
{
    if (channel->in_count == 0 && channel->in_capacity > IN_KEPT) {
        free(channel->in);
        channel->in = NULL;
        channel->in_first = channel->in_capacity = 0;
    }
    if (channel->in_count == 0) return 0;
    /* Check the first bytes as they arrive: other protocols may send fewer bytes than a frame head. */
    static const uint8_t magic[4] = {'T', 'd', 'm', 'C'};
    const uint8_t *at = channel->in + channel->in_first;
    size_t seen = channel->in_count < sizeof(magic) ? channel->in_count : sizeof(magic);
    if (memcmp(at, magic, seen) != 0) return -1;
    if (channel->in_count < TDM__WIRE_HEAD) return 0;
    uint8_t type = 0;
    size_t body_bytes = 0;
    if (!tdm__wire_head(at, &type, &body_bytes) || body_bytes > channel->limit) return -1;
    if (channel->in_count - TDM__WIRE_HEAD < body_bytes) return 0;
    if (!tdm__wire_read(type, at + TDM__WIRE_HEAD, body_bytes, out)) return -1;
    channel->in_first += TDM__WIRE_HEAD + body_bytes;
    channel->in_count -= TDM__WIRE_HEAD + body_bytes;
    return 1;
}

bool tdm__channel_put(tdm__channel *channel, tdm__blob *blob)
{
    if (!blob || channel->out_bytes + blob->bytes > TDM__MAX_CHANNEL_QUEUE) return false;
    tdm__outgoing *outgoing = malloc(sizeof(*outgoing));
    if (!outgoing) return false;
    blob->users++;
    *outgoing = (tdm__outgoing){.blob = blob};
    if (channel->out_last) {
        channel->out_last->next = outgoing;
    } else {
        channel->out_first = outgoing;
    }
    channel->out_last = outgoing;
    channel->out_bytes += blob->bytes;
    return true;
}

bool tdm__channel_put_frame(tdm__channel *channel, const tdm__frame *frame)
{
    tdm__blob *blob = tdm__blob_frame(frame);
    bool ok = tdm__channel_put(channel, blob);
    tdm__blob_release(blob);
    return ok;
}

tdm__channel_state tdm__channel_flush(tdm__channel *channel)
{
    while (channel->out_first) {
        const tdm__blob *blob = channel->out_first->blob;
        if (channel->out_offset == blob->bytes) {
            channel_drop_first(channel);
            continue;
        }
        struct iovec part = {(uint8_t *)blob->data + channel->out_offset,
                             blob->bytes - channel->out_offset};
        ssize_t gone = tdm__stream_send(&channel->stream, &part, 1);
        if (gone < 0) {
            return errno == EAGAIN || errno == EWOULDBLOCK ? TDM__CHANNEL_OK : TDM__CHANNEL_ERROR;
        }
        channel->out_offset += (size_t)gone;
        channel->out_bytes -= (size_t)gone;
    }
    return tdm__stream_flush(&channel->stream) < 0 ? TDM__CHANNEL_ERROR : TDM__CHANNEL_OK;
}
