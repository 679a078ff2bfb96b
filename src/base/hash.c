/*
 * hash.c: the 64-bit hash, and SHA-256 and HMAC by OpenSSL's libcrypto, which uses the SHA instructions of the CPU.
 *
 * create() is the only call that can fail: it fetches the context and the algorithm, and updating a
 * context needs no memory.
 */
#include "base/base.h"

#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t tdm_hash64(const void *bytes, size_t count)
{
    const uint8_t *at = bytes;
    uint64_t hash = TDM_HASH64_INIT;
    for (size_t i = 0; i < count; i++) hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

struct tdm_sha256 {
    EVP_MD_CTX *context;
};

const char *tdm_base_library(char buffer[TDM_LIBRARY_BYTES])
{
    snprintf(buffer, TDM_LIBRARY_BYTES, "OpenSSL %s", OpenSSL_version(OPENSSL_VERSION_STRING));
    return buffer;
}

tdm_sha256 *tdm_sha256_create(void)
{
    tdm_sha256 *hash = calloc(1, sizeof(*hash));
    if (!hash) return NULL;
    hash->context = EVP_MD_CTX_new();
    if (!hash->context || EVP_DigestInit_ex(hash->context, EVP_sha256(), NULL) != 1) {
        tdm_sha256_destroy(hash);
        return NULL;
    }
    return hash;
}

void tdm_sha256_destroy(tdm_sha256 *hash)
{
    if (!hash) return;
    EVP_MD_CTX_free(hash->context);
    free(hash);
}

void tdm_sha256_update(tdm_sha256 *hash, const void *bytes, size_t count)
{
    EVP_DigestUpdate(hash->context, bytes, count);
}

void tdm_sha256_u64(tdm_sha256 *hash, uint64_t value)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(value >> (8 * i));
    tdm_sha256_update(hash, bytes, sizeof(bytes));
}

void tdm_sha256_text(tdm_sha256 *hash, const char *text)
{
    size_t length = strlen(text);
    tdm_sha256_u64(hash, length);
    tdm_sha256_update(hash, text, length);
}

void tdm_hex(const void *bytes, size_t count, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *from = bytes;
    for (size_t i = 0; i < count; i++) {
        out[2 * i] = digits[from[i] >> 4];
        out[2 * i + 1] = digits[from[i] & 15];
    }
    out[2 * count] = '\0';
}

void tdm_sha256_finish(tdm_sha256 *hash, char hex[TDM_SHA256_HEX])
{
    unsigned char digest[TDM_SHA256_BYTES] = {0};
    EVP_DigestFinal_ex(hash->context, digest, NULL);
    tdm_hex(digest, sizeof(digest), hex);
}

tdm_status tdm_sha256_of(const void *bytes, size_t count, char hex[TDM_SHA256_HEX])
{
    tdm_sha256 *hash = tdm_sha256_create();
    if (!hash) return TDM_ERR_NO_MEMORY;
    tdm_sha256_update(hash, bytes, count);
    tdm_sha256_finish(hash, hex);
    tdm_sha256_destroy(hash);
    return TDM_OK;
}

tdm_status tdm_hmac_sha256(const void *key, size_t key_bytes, const void *bytes, size_t count,
                           uint8_t out[TDM_SHA256_BYTES])
{
    if (key_bytes > INT_MAX) return TDM_ERR_RANGE;
    unsigned length = 0;
    /* Without a pointer OpenSSL would take the key of the last call. */
    const void *given = key_bytes > 0 ? key : "";
    if (!HMAC(EVP_sha256(), given, (int)key_bytes, bytes, count, out, &length))
        return TDM_ERR_NO_MEMORY;
    return length == TDM_SHA256_BYTES ? TDM_OK : TDM_ERR_INTERNAL;
}
