/*
 * aead.h: AES-128-GCM, which encrypts and authenticates the records of TLS.
 *
 * Two libraries implement it. OpenSSL is always available. Intel's IPSec MB library (Debian:
 * libipsec-mb1) is opened at run time and used on CPUs with VAES and AVX-512, where it is twice as fast
 * as OpenSSL 3.0. Both produce the same bytes.
 *
 * A message is processed in pieces, so that it can be gathered from or scattered to several buffers:
 *
 *   tdm__aead_begin, tdm__aead_update for each piece, tdm__aead_seal (writes the tag) or
 *   tdm__aead_open (compares it)
 *
 * After a failure the object is unusable; the caller closes the connection.
 */
#ifndef TANDEM_NET_AEAD_H
#define TANDEM_NET_AEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TDM__AEAD_KEY = 16, TDM__AEAD_NONCE = 12, TDM__AEAD_TAG = 16 };

typedef struct tdm__aead tdm__aead;

/* For one direction of a connection. `only_openssl`: do not use IPSec MB. NULL: out of memory. */
tdm__aead *tdm__aead_create(bool encrypts, bool only_openssl);
void tdm__aead_destroy(tdm__aead *aead); /* accepts NULL; wipes the key */
bool tdm__aead_set_key(tdm__aead *aead, const uint8_t key[TDM__AEAD_KEY]);

/* Begins a message. `header` is authenticated but not encrypted. A nonce must never be used twice with
 * one key. */
bool tdm__aead_begin(tdm__aead *aead, const uint8_t nonce[TDM__AEAD_NONCE], const uint8_t *header,
                     size_t header_bytes);
/* Processes the next `bytes` of the message; `in` and `out` may be equal but must not overlap otherwise. */
bool tdm__aead_update(tdm__aead *aead, const uint8_t *in, uint8_t *out, size_t bytes);
bool tdm__aead_seal(tdm__aead *aead, uint8_t tag[TDM__AEAD_TAG]);
/* False: the message was not encrypted by the peer with this key, or is out of order. */
bool tdm__aead_open(tdm__aead *aead, const uint8_t tag[TDM__AEAD_TAG]);

/* The library in use: "OpenSSL" or "IPSec MB 1.3.0". */
const char *tdm__aead_library(void);

#endif
