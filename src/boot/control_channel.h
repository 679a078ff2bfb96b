/*
 * control_channel.h: one control connection: sends and receives frames without blocking.
 *
 * A channel owns a stream (stream.h), the received bytes that are not yet a complete frame, and a queue of
 * output. Output to many channels (the result of an exchange, news) is one blob that all their queues
 * reference. Both directions are limited: a frame above `limit` bytes is rejected before memory is allocated
 * for it, memory grows only with bytes that have arrived, and a queue above TDM__MAX_CHANNEL_QUEUE is an
 * error. Not thread-safe: its owner serialises the calls.
 */
#ifndef TANDEM_BOOT_CONTROL_CHANNEL_H
#define TANDEM_BOOT_CONTROL_CHANNEL_H

#include "boot/control_wire.h"
#include "net/stream.h"

#define TDM__MAX_CHANNEL_QUEUE ((size_t)2048 << 20)

/* Bytes that several channels send. Reference-counted; not thread-safe. */
typedef struct tdm__blob {
    int users;
    size_t bytes;
    uint8_t data[];
} tdm__blob;

/* A frame as a blob with one user; NULL when out of memory. */
tdm__blob *tdm__blob_frame(const tdm__frame *frame);
tdm__blob *tdm__blob_of(const tdm_str *str);
void tdm__blob_release(tdm__blob *blob); /* NULL is fine */

typedef struct tdm__outgoing {
    tdm__blob *blob;
    struct tdm__outgoing *next;
} tdm__outgoing;

typedef struct tdm__channel {
    tdm__stream stream;
    size_t limit; /* largest body that is read */
    uint8_t *in;
    size_t in_first, in_count, in_capacity;
    tdm__outgoing *out_first, *out_last;
    size_t out_offset; /* bytes of out_first that are sent */
    size_t out_bytes;  /* bytes that are queued */
    bool
        has_more; /* tdm__channel_read stopped although TLS has more bytes, which poll() does not report */
} tdm__channel;

typedef enum tdm__channel_state {
    TDM__CHANNEL_OK = 0,
    TDM__CHANNEL_END,    /* the other side has closed it */
    TDM__CHANNEL_ERROR,  /* errno says why */
    TDM__CHANNEL_GARBAGE /* the input is not a valid frame, or too large */
} tdm__channel_state;

/* Takes `fd`, which must be non-blocking. */
void tdm__channel_init(tdm__channel *channel, int fd, size_t limit);
void tdm__channel_release(tdm__channel *channel); /* closes it */

/* Reads what is available, up to about 256 KB, so that one peer does not delay the others. */
tdm__channel_state tdm__channel_read(tdm__channel *channel);
/* The next complete frame: 1, or 0 if it is incomplete, or -1 if it is invalid. `out->bytes` is valid until the
 * next call of read or next. */
int tdm__channel_next(tdm__channel *channel, tdm__frame *out);

/* Queues a blob (and adds a reference) or a frame. False: the queue is full, or memory has run out. */
bool tdm__channel_put(tdm__channel *channel, tdm__blob *blob);
bool tdm__channel_put_frame(tdm__channel *channel, const tdm__frame *frame);
/* Sends what can be sent now. */
tdm__channel_state tdm__channel_flush(tdm__channel *channel);
/* Whether output is queued; and whether it waits for room in the socket. */
static inline bool tdm__channel_has_output(const tdm__channel *channel)
{
    return channel->out_first || tdm__stream_has_output(&channel->stream);
}
static inline bool tdm__channel_wants_room(const tdm__channel *channel)
{
    return tdm__stream_has_output(&channel->stream) ||
           (channel->out_first && tdm__stream_can_send(&channel->stream));
}

#endif
