/*
 * control_channel.h: one control connection: frames in, frames out, never blocking.
 *
 * A channel owns a stream (stream.h), what has come in and is not yet a whole frame, and a queue of
 * what is still to go out. What goes to many (an exchange's result, news) is one blob that all their
 * queues refer to. Both directions are bounded: a frame beyond `limit` bytes is refused before memory
 * is taken for it, and memory grows only with bytes that did arrive; a queue beyond
 * TDM__MAX_CHANNEL_QUEUE is an error. Not thread-safe: its owner serialises the calls.
 */
#ifndef TANDEM_BOOT_CONTROL_CHANNEL_H
#define TANDEM_BOOT_CONTROL_CHANNEL_H

#include "boot/control_wire.h"
#include "net/stream.h"

#define TDM__MAX_CHANNEL_QUEUE ((size_t)2048 << 20)

/* Bytes that several channels send. Counted; not thread-safe. */
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
    size_t out_offset; /* of out_first that has gone */
    size_t out_bytes;  /* that wait */
    bool has_more;     /* read() stopped although bytes were left that no poll() speaks of */
} tdm__channel;

typedef enum tdm__channel_state {
    TDM__CHANNEL_OK = 0,
    TDM__CHANNEL_END,    /* the other side has closed it */
    TDM__CHANNEL_ERROR,  /* errno says why */
    TDM__CHANNEL_GARBAGE /* what came is no frame, or too large a one */
} tdm__channel_state;

/* Takes `fd`, which must be non-blocking. */
void tdm__channel_init(tdm__channel *channel, int fd, size_t limit);
void tdm__channel_release(tdm__channel *channel); /* closes it */

/* Reads what is there, up to some 256 KB, so that one talkative peer does not hold up the others. */
tdm__channel_state tdm__channel_read(tdm__channel *channel);
/* The next whole frame: 1, or 0 when there is none yet, or -1 for garbage. `out->bytes` is valid until
 * the next call of read or next. */
int tdm__channel_next(tdm__channel *channel, tdm__frame *out);

/* Queues a blob (one user more) or a frame. False when the queue is full or memory has run out. */
bool tdm__channel_put(tdm__channel *channel, tdm__blob *blob);
bool tdm__channel_put_frame(tdm__channel *channel, const tdm__frame *frame);
/* Sends what can be sent now. */
tdm__channel_state tdm__channel_flush(tdm__channel *channel);
/* Whether something has not gone; and whether room in the socket is what it waits for. */
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
