/*
 * aead.h: AES-128-GCM, which encrypts and authenticates the records of TLS.
 *
 * Two libraries compute it. OpenSSL is always there. Intel's IPSec MB library (Debian: libipsec-mb1) is
 * opened at run time and used on CPUs with VAES and AVX-512, where it is twice as fast as OpenSSL 3.0. The bytes
 * are the same.
 *
 * A message is computed in pieces, so that it can be gathered from several buffers, or scattered to them:
 *
 *   tdm__aead_begin, tdm__aead_update for each piece, tdm__aead_seal (writes the tag) or
 *   tdm__aead_open (compares it)
 *
 * A function that fails leaves the object unusable; the caller closes the connection.
 */
#ifndef TANDEM_NET_AEAD_H
#define TANDEM_NET_AEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TDM__AEAD_KEY = 16, TDM__AEAD_NONCE = 12, TDM__AEAD_TAG = 16 };

typedef struct tdm__aead tdm__aead;

/* One direction of a connection. `only_openssl`: even where IPSec MB is there. NULL: out of memory. */
tdm__aead *tdm__aead_create(bool encrypts, bool only_openssl);
void tdm__aead_destroy(tdm__aead *aead); /* NULL is fine; wipes the key */
bool tdm__aead_set_key(tdm__aead *aead, const uint8_t key[TDM__AEAD_KEY]);

/* Begins a message. `header` is authenticated and not encrypted. A nonce must never be used twice under one
 * key. */
bool tdm__aead_begin(tdm__aead *aead, const uint8_t nonce[TDM__AEAD_NONCE], const uint8_t *header,
                     size_t header_bytes);
/* The next `bytes` of the message; `in` and `out` may be the same, and must not overlap otherwise. */
bool tdm__aead_update(tdm__aead *aead, const uint8_t *in, uint8_t *out, size_t bytes);
bool tdm__aead_seal(tdm__aead *aead, uint8_t tag[TDM__AEAD_TAG]);
/* False: the message is not what the peer encrypted under this key, or its place in the order is wrong. */
bool tdm__aead_open(tdm__aead *aead, const uint8_t tag[TDM__AEAD_TAG]);

/* The library in use: "OpenSSL" or "IPSec MB 1.3.0". */
const char *tdm__aead_library(void);

#endif
