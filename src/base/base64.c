/*
 * base64.c: base64 (RFC 4648, with padding) by OpenSSL's libcrypto.
 */
#include "base/base.h"

#include <limits.h>
#include <openssl/evp.h>
#include <string.h>

enum { BLOCK_BYTES = 3 * 1024 };

void tdm_str_add_base64(tdm_str *str, const void *bytes, size_t count)
{
    unsigned char text[BLOCK_BYTES / 3 * 4 + 1];
    const unsigned char *in = bytes;
    while (count > 0) {
        int block = count < BLOCK_BYTES ? (int)count : BLOCK_BYTES;
        tdm_str_add_bytes(str, text, (size_t)EVP_EncodeBlock(text, in, block));
        in += block;
        count -= (size_t)block;
    }
}

bool tdm_base64_decode(const char *text, size_t length, void *out, size_t *out_count)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    /* EVP_DecodeBlock accepts spaces around the text and padding inside of it, and decodes padding
     * to zeros. */
    size_t padding = 0;
    while (padding < 2 && padding < length && text[length - 1 - padding] == '=') padding++;
    for (size_t i = 0; i < length - padding; i++)
        if (!memchr(digits, text[i], sizeof(digits) - 1)) return false;
    if (length % 4 != 0 || length > INT_MAX) return false;
    int count = EVP_DecodeBlock(out, (const unsigned char *)text, (int)length);
    if (count < 0) return false;
    *out_count = (size_t)count - padding;
    return true;
}
