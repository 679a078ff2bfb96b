/*
 * control_wire.h: what ranks and the hub say to each other, as bytes.
 *
 * A frame is a head of 12 bytes (magic, type, three zeros, length of the body) and a body. One table
 * (control_wire.c) says for each type which fields its body has, in which order; writing and reading
 * both walk it. All numbers are little-endian. Reading is strict: a body that is too short, too long,
 * or has a text beyond its bound is no frame at all. Texts that come in hold no control characters
 * and are well-formed UTF-8: what is not is replaced by '?', so that they can be shown and logged.
 */
#ifndef TANDEM_BOOT_CONTROL_WIRE_H
#define TANDEM_BOOT_CONTROL_WIRE_H

#include "base/base.h"

#define TDM__WIRE_MAGIC 0x436d6454u /* "TdmC" */

enum {
    TDM__WIRE_PROTOCOL = 3,
    TDM__WIRE_HEAD = 12,
    TDM__WIRE_NONCE = 32,
    TDM__WIRE_TEXT = 1000,
    TDM__WIRE_WHAT = 160,
    TDM__MAX_WIRE_PROVE = 128,          /* body of a frame while a connection is a stranger's, */
    TDM__MAX_WIRE_JOIN = 4096,          /* and of one that has proved to know the secret */
    TDM__MAX_WIRE_BLOCK = 64 << 20,     /* one rank's bytes in an exchange */
    TDM__MAX_WIRE_GATHERED = 1024 << 20 /* everybody's */
};

typedef enum tdm__frame_type {
    TDM__FRAME_HELLO = 1, /* hub: how I protect this connection, and my challenge */
    TDM__FRAME_PROVE,     /* rank: my challenge, and my answer; from here on only ranks are heard */
    TDM__FRAME_ACCEPT,    /* hub: my answer. The connection is encrypted from here on, if at all */
    TDM__FRAME_JOIN,      /* rank: my facts */
    TDM__FRAME_WELCOME,   /* hub: the world's number, and what its key is derived from */
    TDM__FRAME_REFUSED,   /* hub: no, because */
    TDM__FRAME_START,     /* hub: all have come; who they are (entries in `bytes`) */
    TDM__FRAME_PING,      /* hub: I am here; which ranks are missing, later what rank 0 did last */
    TDM__FRAME_BEAT,      /* rank: I am here, and what I did last */
    TDM__FRAME_EXCHANGE,  /* rank: my bytes for exchange `number` */
    TDM__FRAME_GATHERED,  /* hub: everybody's: `count` sizes (u64), then the blocks */
    TDM__FRAME_NEWS,   /* hub: of `rank`, and how a loss was noticed (a tdm_peer_sign in `id`, ms of
                             silence in `number`, `what` it did last); rank: I broke `group` */
    TDM__FRAME_ASK,    /* rank: about `count` ranks (u32 each), or who lacks in `number` */
    TDM__FRAME_ANSWER, /* hub: to the question `id` */
    TDM__FRAME_BYE,    /* rank: I leave; hub: I end */
    TDM__FRAME_TYPES
} tdm__frame_type;

/* What an ASK asks. */
enum { TDM__ASK_REPORT = 0, TDM__ASK_LACKING = 1 };

/* All fields that any type has; a type uses its own. */
typedef struct tdm__frame {
    uint8_t type;
    uint32_t protocol, rank, size, epoch, world, group, status, id, number, count, kind;
    uint32_t protection; /* a tdm__protection (stream.h) */
    uint64_t pid;
    uint8_t nonce[TDM__WIRE_NONCE];
    uint8_t host[TDM_SHA256_BYTES]; /* identity of the machine */
    uint8_t mac[TDM_SHA256_BYTES];
    char version[32], host_name[64], job[512], text[TDM__WIRE_TEXT], what[TDM__WIRE_WHAT];
    const uint8_t *bytes; /* the rest of the body; borrowed from it */
    size_t byte_count;
} tdm__frame;

/* Appends the whole frame (head and body) to `out`; a lack of memory is noted there. */
void tdm__wire_write(const tdm__frame *frame, tdm_str *out);
/* The same without the rest: the caller sends `rest_bytes` more bytes after it. */
void tdm__wire_write_before(const tdm__frame *frame, size_t rest_bytes, tdm_str *out);

/* The head at `bytes`, of which there are at least TDM__WIRE_HEAD: false when it is none. */
bool tdm__wire_head(const uint8_t *bytes, uint8_t *out_type, size_t *out_body_bytes);
/* The protocol that a HELLO, PROVE or JOIN of another version speaks, from the beginning of its frame: false
 * when it is neither, or not yet there. */
bool tdm__wire_protocol(const uint8_t *bytes, size_t count, uint32_t *out);
/* A body: false when it does not follow its type's layout. */
bool tdm__wire_read(uint8_t type, const uint8_t *body, size_t body_bytes, tdm__frame *out);

/* What is signed: all fields of a PROVE but the answer itself, and the hub's challenge. */
void tdm__wire_opening(const tdm__frame *prove, const uint8_t hub_nonce[TDM__WIRE_NONCE],
                       tdm_str *out);

/* One rank in a START. */
typedef struct tdm__entry {
    uint32_t host; /* number of its host */
    uint64_t pid;
    char name[64]; /* of the host */
} tdm__entry;
void tdm__wire_entry_write(const tdm__entry *entry, tdm_str *out);
/* Reads exactly `count` entries that fill `bytes`; false when they do not, or a host's number is
 * neither known already nor the next. */
bool tdm__wire_entries(const uint8_t *bytes, size_t byte_count, uint32_t count, tdm__entry *out);

/* The blocks of a GATHERED: their sizes, and where the first begins. False when they do not fill the
 * frame exactly. */
bool tdm__wire_blocks(const tdm__frame *frame, size_t *out_sizes, const uint8_t **out_first);

uint32_t tdm__wire_u32(const uint8_t *bytes);
void tdm__wire_put_u32(uint32_t value, tdm_str *out);
void tdm__wire_put_u64(uint64_t value, tdm_str *out);
/* Makes any bytes showable: see above. `out` has at least count + 1 bytes. */
void tdm__wire_clean(const uint8_t *bytes, size_t count, char *out);

#endif
