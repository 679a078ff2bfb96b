/*
 * tls_record.h: the records of TLS 1.3 (RFC 8446, section 5) after the handshake, with AES-128-GCM.
 *
 * OpenSSL runs the handshake. The records after it are handled here, because OpenSSL copies every byte
 * twice when sending and once when receiving, which costs more than the encryption. A record is encrypted
 * from the caller's pieces of memory directly into the socket's buffer, and decrypted from there directly
 * into the caller's pieces.
 *
 *    0      1      3                   5                                n+5    n+6    n+22
 *   +------+------+-------------------+--------------------------------+------+------+
 *   | 23   | 3  3 | bytes that follow | content (n)                    | type | tag  |
 *   +------+------+-------------------+--------------------------------+------+------+
 *    header, authenticated             encrypted and authenticated             of both
 *
 * `type` is a tdm__tls_content. A peer may add zeros after it; this side does not.
 */
#ifndef TANDEM_NET_TLS_RECORD_H
#define TANDEM_NET_TLS_RECORD_H

#include "net/aead.h"

#include <sys/uio.h>

enum {
    TDM__TLS_SECRET = 32,            /* bytes of a traffic secret (SHA-256) */
    TDM__TLS_RECORD_CONTENT = 16384, /* maximum bytes of content */
    TDM__TLS_RECORD_HEADER = 5,
    TDM__TLS_RECORD_OVERHEAD = TDM__TLS_RECORD_HEADER + 1 + TDM__AEAD_TAG,
    /* The largest record of a peer: padding and content together have at most 2^14 + 256 bytes. */
    TDM__TLS_RECORD_MAX = TDM__TLS_RECORD_HEADER + 16384 + 256
};

typedef enum tdm__tls_content {
    TDM__TLS_ALERT = 21,
    TDM__TLS_HANDSHAKE = 22,
    TDM__TLS_DATA = 23
} tdm__tls_content;

/* The keys of one direction. */
typedef struct tdm__tls_keys {
    tdm__aead *aead;
    uint8_t secret[TDM__TLS_SECRET];
    uint8_t iv[TDM__AEAD_NONCE];
    uint64_t sequence; /* of the next record */
} tdm__tls_keys;

/* Derives key and IV from a traffic secret. False if out of memory or the library failed. */
bool tdm__tls_keys_init(tdm__tls_keys *keys, bool encrypts, const uint8_t secret[TDM__TLS_SECRET]);
/* The next generation of keys (section 7.2 of the RFC), used by both sides after a KeyUpdate. */
bool tdm__tls_keys_update(tdm__tls_keys *keys);
void tdm__tls_keys_release(tdm__tls_keys *keys); /* accepts a zeroed struct */

/* A position in pieces of memory. */
typedef struct tdm__tls_cursor {
    const struct iovec *parts;
    int count, index;
    size_t offset; /* in parts[index] */
} tdm__tls_cursor;

size_t tdm__tls_cursor_left(const tdm__tls_cursor *cursor);

/* Encrypts the next `bytes` of the pieces into `out`, which needs TDM__TLS_RECORD_OVERHEAD more bytes. */
bool tdm__tls_record_seal(tdm__tls_keys *keys, tdm__tls_content type, tdm__tls_cursor *from,
                          size_t bytes, uint8_t *out);

typedef enum tdm__tls_opened {
    TDM__TLS_RECORD_OPENED,
    TDM__TLS_RECORD_PARTIAL, /* the record is not complete yet */
    TDM__TLS_RECORD_INVALID, /* its header or length is not valid in TLS 1.3 */
    TDM__TLS_RECORD_FORGED   /* not encrypted with this key, or out of order */
} tdm__tls_opened;

/* The total size of the record at `record`, of which `available` bytes have arrived, and the size of its
 * decrypted content without the type. */
tdm__tls_opened tdm__tls_record_measure(const uint8_t *record, size_t available,
                                        size_t *out_record_bytes, size_t *out_content_bytes);
/* Decrypts a complete record into the pieces, which must have space for its content. `out_bytes`: bytes of
 * content without padding; the cursor advances by them. A forged record has overwritten the pieces as
 * well: the caller must not use them. */
tdm__tls_opened tdm__tls_record_open(tdm__tls_keys *keys, const uint8_t *record,
                                     size_t record_bytes, tdm__tls_cursor *into,
                                     tdm__tls_content *out_type, size_t *out_bytes);

#endif
