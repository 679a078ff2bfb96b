/*
 * utf8.c: which characters a job may hold.
 *
 * These are the characters of YAML 1.1: all of Unicode but control characters, surrogates and the
 * byte order mark. Whatever passes the check here is safe for libyaml, for messages and for JSON.
 */
#include <string.h>

#include "job/internal.h"

/* Length of the character at `bytes`, decoded into *out; 0 when it is malformed or cut off. */
static size_t decode(const unsigned char *bytes, size_t count, uint32_t *out)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char first = bytes[0];
    size_t length = first < 0x80             ? 1
                    : (first & 0xe0) == 0xc0 ? 2
                    : (first & 0xf0) == 0xe0 ? 3
                    : (first & 0xf8) == 0xf0 ? 4
                                             : 0;
    if (length == 0 || length > count) return 0;
    uint32_t value = length == 1 ? first : first & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((bytes[i] & 0xc0) != 0x80) return 0;
        value = value << 6 | (bytes[i] & 0x3fu);
    }
    if (value < least[length] || value > 0x10ffff) return 0;
    if (value >= 0xd800 && value < 0xe000) return 0; /* a surrogate */
    *out = value;
    return length;
}

static bool is_allowed(uint32_t c)
{
    if (c < 0x20) return c == '\t' || c == '\n' || c == '\r';
    if (c < 0xa0) return c < 0x7f || c == 0x85;
    return c != 0xfeff && c != 0xfffe && c != 0xffff;
}

bool tdm__yaml_is_printable(uint32_t character)
{
    return is_allowed(character) && character >= 0x20 && character != 0x85 && character != 0x2028 &&
           character != 0x2029;
}

size_t tdm__utf8_check(const char *bytes, size_t count)
{
    size_t at = 0;
    while (at < count) {
        uint32_t character;
        size_t length = decode((const unsigned char *)bytes + at, count - at, &character);
        if (length == 0 || !is_allowed(character)) break;
        at += length;
    }
    return at;
}

bool tdm__utf8_is_valid(const char *text)
{
    size_t count = strlen(text);
    for (size_t at = 0; at < count;) {
        uint32_t character;
        size_t length = decode((const unsigned char *)text + at, count - at, &character);
        if (length == 0) return false;
        at += length;
    }
    return true;
}

size_t tdm__utf8_next(const char *bytes, uint32_t *out)
{
    /* The text is valid, so a character is never cut off; step over a stray byte all the same. */
    size_t length = decode((const unsigned char *)bytes, 4, out);
    if (length > 0) return length;
    *out = (unsigned char)bytes[0];
    return 1;
}
