/*
 * control_wire.h: the frames of the control connection as bytes.
 *
 * A frame is a head of 12 bytes and a body. All numbers are little-endian:
 *
 *      0        4      5         8            12
 *     +--------+------+---------+------------+----------------------+
 *     | "TdmC" | type | 0  0  0 | body bytes | body                 |
 *     +--------+------+---------+------------+----------------------+
 *
 * The frames by which both sides prove that they know the secret, before anything else is read:
 *
 *      hub -> rank   HELLO    | protocol 4 | nonce 32 | protection 4 |
 *      rank -> hub   PROVE    | protocol 4 | nonce 32 | protection 4 | mac 32 |
 *      hub -> rank   ACCEPT   | mac 32 |
 *
 * The mac of PROVE is HMAC-SHA256 of a label, the nonce of HELLO and the other fields of PROVE, with the
 * secret as the key; that of ACCEPT is the same with another label. The records of TLS, if `protection`
 * requires it, begin after ACCEPT. Then the rank sends JOIN and gets WELCOME or REFUSED, and START when all
 * ranks have joined.
 *
 * One table (control_wire.c) defines the fields of each type and their order; writing and reading both use
 * it. A text is its length (2 bytes) and its bytes. Reading is strict: a body that is truncated, has extra
 * bytes or a text above its limit is invalid. In received texts, control characters and invalid UTF-8 are
 * replaced by '?', so that they can be shown and logged.
 */
#ifndef TANDEM_BOOT_CONTROL_WIRE_H
#define TANDEM_BOOT_CONTROL_WIRE_H

#include "base/base.h"

#define TDM__WIRE_MAGIC 0x436d6454u /* "TdmC" */

enum {
    TDM__WIRE_PROTOCOL = 4,
    TDM__WIRE_HEAD = 12,
    TDM__WIRE_NONCE = 32,
    TDM__WIRE_TEXT = 1000,
    TDM__WIRE_WHAT = 160,
    TDM__MAX_WIRE_PROVE = 128,          /* limit of a body before the proof, */
    TDM__MAX_WIRE_JOIN = 4096,          /* and between the proof and the JOIN */
    TDM__MAX_WIRE_BLOCK = 64 << 20,     /* bytes of one rank in an exchange */
    TDM__MAX_WIRE_GATHERED = 1024 << 20 /* of all ranks */
};

typedef enum tdm__frame_type {
    TDM__FRAME_HELLO = 1, /* hub: protection of this connection, and its challenge */
    TDM__FRAME_PROVE,     /* rank: its challenge, and its response to the hub's */
    TDM__FRAME_ACCEPT,    /* hub: its response; from here on the connection may be encrypted */
    TDM__FRAME_JOIN,      /* rank: its facts (tdm__facts) */
    TDM__FRAME_WELCOME,   /* hub: number of the world, and the nonce of its key */
    TDM__FRAME_REFUSED,   /* hub: why the rank cannot join */
    TDM__FRAME_START,     /* hub: all ranks have joined; their entries in `bytes` */
    TDM__FRAME_PING,      /* hub: heartbeat; missing ranks, later the last action of rank 0 */
    TDM__FRAME_BEAT,      /* rank: heartbeat; its last action */
    TDM__FRAME_EXCHANGE,  /* rank: its bytes for exchange `number` */
    TDM__FRAME_GATHERED,  /* hub: all blocks: `count` sizes (u64), then the blocks */
    TDM__FRAME_NEWS,      /* hub: about `rank`; of a loss a tdm_peer_sign in `id`, ms of silence in
                             `number`, and `what` it did last; rank: it broke `group` */
    TDM__FRAME_ASK,    /* rank: about `count` ranks (u32 each), or missing blocks of `number`; or it
                             has lost its connection to rank `number` */
    TDM__FRAME_ANSWER, /* hub: answer to the question `id`; to SUSPECT it answers with NEWS */
    TDM__FRAME_BYE,    /* rank: it leaves; hub: it ends */
    TDM__FRAME_DATA,   /* bytes of another protocol (src/server) */
    TDM__FRAME_TYPES
} tdm__frame_type;

/* Kinds of questions in ASK. */
enum { TDM__ASK_REPORT = 0, TDM__ASK_LACKING = 1, TDM__ASK_SUSPECT = 2 };

/* The fields of all types; each type uses some of them. */
typedef struct tdm__frame {
    uint8_t type;
    uint32_t protocol, rank, size, epoch, world, group, status, id, number, count, kind;
    uint32_t protection; /* a tdm__protection (stream.h) */
    uint64_t pid;
    uint8_t nonce[TDM__WIRE_NONCE];
    uint8_t host[TDM_SHA256_BYTES]; /* identity of the machine */
    uint8_t mac[TDM_SHA256_BYTES];
    char version[32], host_name[64], job[512], text[TDM__WIRE_TEXT], what[TDM__WIRE_WHAT];
    const uint8_t *bytes; /* the rest of the body, borrowed from it */
    size_t byte_count;
} tdm__frame;

/* Appends the frame (head and body) to `out`; tdm_str_ok(out) fails if memory ran out. */
void tdm__wire_write(const tdm__frame *frame, tdm_str *out);
/* The same without `bytes`: the caller sends `rest_bytes` more bytes after it. */
void tdm__wire_write_before(const tdm__frame *frame, size_t rest_bytes, tdm_str *out);

/* Writes the head of a DATA frame with this body, TDM__WIRE_HEAD bytes. */
void tdm__wire_data_head(size_t body_bytes, uint8_t *out);

/* Parses the head at `bytes`, at least TDM__WIRE_HEAD of them. False: it is invalid. */
bool tdm__wire_head(const uint8_t *bytes, uint8_t *out_type, size_t *out_body_bytes);
/* The protocol version of a HELLO or PROVE, also of another version, from the start of its frame. False: it is
 * another frame, or incomplete. */
bool tdm__wire_protocol(const uint8_t *bytes, size_t count, uint32_t *out);
/* Parses a body. False: it does not have the layout of its type. */
bool tdm__wire_read(uint8_t type, const uint8_t *body, size_t body_bytes, tdm__frame *out);

/* The signed bytes: the hub's challenge and all fields of a PROVE except the response. */
void tdm__wire_opening(const tdm__frame *prove, const uint8_t hub_nonce[TDM__WIRE_NONCE],
                       tdm_str *out);

/* One rank in a START. */
typedef struct tdm__entry {
    uint32_t host; /* number of its host */
    uint64_t pid;
    char name[64]; /* of the host */
} tdm__entry;
void tdm__wire_entry_write(const tdm__entry *entry, tdm_str *out);
/* Reads exactly `count` entries that fill `bytes`. False: they do not, or a host number is neither known nor
 * the next one. */
bool tdm__wire_entries(const uint8_t *bytes, size_t byte_count, uint32_t count, tdm__entry *out);

/* The blocks of a GATHERED: their sizes, and the start of the first one. False: they do not fill the frame
 * exactly. */
bool tdm__wire_blocks(const tdm__frame *frame, size_t *out_sizes, const uint8_t **out_first);

uint32_t tdm__wire_u32(const uint8_t *bytes);
void tdm__wire_put_u32(uint32_t value, tdm_str *out);
void tdm__wire_put_u64(uint64_t value, tdm_str *out);
/* Replaces control characters and invalid UTF-8 by '?'. `out` has at least count + 1 bytes. */
void tdm__wire_clean(const uint8_t *bytes, size_t count, char *out);

#endif
