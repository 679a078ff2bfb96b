/*
 * tls_record.c: records of TLS 1.3. See the header.
 */
#include "net/tls_record.h"
#include "base/base.h"

#include <openssl/crypto.h>
#include <string.h>

/* ---- keys --------------------------------------------------------------------------------------------- */

/* HKDF-Expand-Label with an empty context (section 7.1 of the RFC). One HMAC block is enough for all
 * lengths used here. */
static bool keys_expand(const uint8_t secret[TDM__TLS_SECRET], const char *label, uint8_t *out,
                        size_t bytes)
{
    static const char prefix[] = "tls13 ";
    uint8_t info[64], block[TDM__TLS_SECRET];
    size_t label_bytes = sizeof(prefix) - 1 + strlen(label), at = 0;
    info[at++] = 0;
    info[at++] = (uint8_t)bytes;
    info[at++] = (uint8_t)label_bytes;
    memcpy(info + at, prefix, sizeof(prefix) - 1);
    memcpy(info + at + sizeof(prefix) - 1, label, strlen(label));
    at += label_bytes;
    info[at++] = 0; /* bytes of context */
    info[at++] = 1; /* the number of the block */
    bool ok = tdm_hmac_sha256(secret, TDM__TLS_SECRET, info, at, block) == TDM_OK;
    if (ok) memcpy(out, block, bytes);
    OPENSSL_cleanse(block, sizeof(block));
    return ok;
}

/* Derives key and IV from keys->secret. */
static bool keys_derive(tdm__tls_keys *keys)
{
    uint8_t key[TDM__AEAD_KEY];
    bool ok = keys_expand(keys->secret, "key", key, sizeof(key)) &&
              keys_expand(keys->secret, "iv", keys->iv, sizeof(keys->iv)) &&
              tdm__aead_set_key(keys->aead, key);
    keys->sequence = 0;
    OPENSSL_cleanse(key, sizeof(key));
    return ok;
}

bool tdm__tls_keys_init(tdm__tls_keys *keys, bool encrypts, const uint8_t secret[TDM__TLS_SECRET])
{
    memcpy(keys->secret, secret, sizeof(keys->secret));
    keys->aead = tdm__aead_create(encrypts, false);
    return keys->aead && keys_derive(keys);
}

bool tdm__tls_keys_update(tdm__tls_keys *keys)
{
    uint8_t next[TDM__TLS_SECRET];
    bool ok = keys_expand(keys->secret, "traffic upd", next, sizeof(next));
    if (ok) memcpy(keys->secret, next, sizeof(next));
    OPENSSL_cleanse(next, sizeof(next));
    return ok && keys_derive(keys);
}

void tdm__tls_keys_release(tdm__tls_keys *keys)
{
    tdm__aead_destroy(keys->aead);
    OPENSSL_cleanse(keys, sizeof(*keys));
}

/* Begins encrypting or decrypting the next record. */
static bool keys_begin(tdm__tls_keys *keys, const uint8_t header[TDM__TLS_RECORD_HEADER])
{
    uint8_t nonce[TDM__AEAD_NONCE];
    memcpy(nonce, keys->iv, sizeof(nonce));
    for (int i = 0; i < 8; i++) nonce[sizeof(nonce) - 1 - i] ^= (uint8_t)(keys->sequence >> 8 * i);
    keys->sequence++;
    return tdm__aead_begin(keys->aead, nonce, header, TDM__TLS_RECORD_HEADER);
}

/* ---- pieces of memory --------------------------------------------------------------------------------- */

size_t tdm__tls_cursor_left(const tdm__tls_cursor *cursor)
{
    size_t left = 0;
    for (int i = cursor->index; i < cursor->count; i++) left += cursor->parts[i].iov_len;
    return left - (cursor->index < cursor->count ? cursor->offset : 0);
}

/* Takes at most `bytes` contiguous bytes and advances the cursor. */
static uint8_t *cursor_take(tdm__tls_cursor *cursor, size_t bytes, size_t *out_bytes)
{
    while (cursor->offset == cursor->parts[cursor->index].iov_len) {
        cursor->index++;
        cursor->offset = 0;
    }
    const struct iovec *part = &cursor->parts[cursor->index];
    uint8_t *at = (uint8_t *)part->iov_base + cursor->offset;
    if (bytes > part->iov_len - cursor->offset) bytes = part->iov_len - cursor->offset;
    cursor->offset += bytes;
    *out_bytes = bytes;
    return at;
}

/* ---- sealing ------------------------------------------------------------------------------------------ */

bool tdm__tls_record_seal(tdm__tls_keys *keys, tdm__tls_content type, tdm__tls_cursor *from,
                          size_t bytes, uint8_t *out)
{
    const uint8_t type_byte = (uint8_t)type;
    size_t follows = bytes + 1 + TDM__AEAD_TAG;
    out[0] = TDM__TLS_DATA;
    out[1] = out[2] = 3;
    out[3] = (uint8_t)(follows >> 8);
    out[4] = (uint8_t)follows;
    bool ok = keys_begin(keys, out);
    out += TDM__TLS_RECORD_HEADER;
    while (ok && bytes > 0) {
        size_t some = 0;
        const uint8_t *in = cursor_take(from, bytes, &some);
        ok = tdm__aead_update(keys->aead, in, out, some);
        out += some;
        bytes -= some;
    }
    return ok && tdm__aead_update(keys->aead, &type_byte, out, 1) &&
           tdm__aead_seal(keys->aead, out + 1);
}

/* ---- opening ------------------------------------------------------------------------------------------ */

tdm__tls_opened tdm__tls_record_measure(const uint8_t *record, size_t available,
                                        size_t *out_record_bytes, size_t *out_content_bytes)
{
    if (available < TDM__TLS_RECORD_HEADER) return TDM__TLS_RECORD_PARTIAL;
    size_t bytes = TDM__TLS_RECORD_HEADER + ((size_t)record[3] << 8 | record[4]);
    if (record[0] != TDM__TLS_DATA || record[1] != 3 || record[2] != 3 ||
        bytes < TDM__TLS_RECORD_OVERHEAD || bytes > TDM__TLS_RECORD_MAX)
        return TDM__TLS_RECORD_INVALID;
    *out_record_bytes = bytes;
    *out_content_bytes = bytes - TDM__TLS_RECORD_OVERHEAD;
    return available < bytes ? TDM__TLS_RECORD_PARTIAL : TDM__TLS_RECORD_OPENED;
}

/* Moves the cursor back by one byte and returns that byte. */
static uint8_t cursor_step_back(tdm__tls_cursor *cursor)
{
    while (cursor->offset == 0) {
        cursor->index--;
        cursor->offset = cursor->parts[cursor->index].iov_len;
    }
    cursor->offset--;
    return ((const uint8_t *)cursor->parts[cursor->index].iov_base)[cursor->offset];
}

tdm__tls_opened tdm__tls_record_open(tdm__tls_keys *keys, const uint8_t *record,
                                     size_t record_bytes, tdm__tls_cursor *into,
                                     tdm__tls_content *out_type, size_t *out_bytes)
{
    size_t content = record_bytes - TDM__TLS_RECORD_OVERHEAD;
    const uint8_t *in = record + TDM__TLS_RECORD_HEADER;
    uint8_t type = 0;
    bool ok = keys_begin(keys, record);
    for (size_t left = content; ok && left > 0;) {
        size_t some = 0;
        uint8_t *out = cursor_take(into, left, &some);
        ok = tdm__aead_update(keys->aead, in, out, some);
        in += some;
        left -= some;
    }
    if (!ok || !tdm__aead_update(keys->aead, in, &type, 1) || !tdm__aead_open(keys->aead, in + 1))
        return TDM__TLS_RECORD_FORGED;

    /* A record may be padded with zeros; the last byte before them is the type. */
    while (type == 0 && content > 0) {
        type = cursor_step_back(into);
        content--;
    }
    if (type == 0 || content > TDM__TLS_RECORD_CONTENT) return TDM__TLS_RECORD_INVALID;
    *out_type = (tdm__tls_content)type;
    *out_bytes = content;
    return TDM__TLS_RECORD_OPENED;
}
