/* utf8.c: the UTF-8 decoder: accepts the well-formed characters of Unicode's table 3-7. */
#include "base/base.h"

size_t tdm_text_utf8(const void *bytes, size_t left, uint32_t *out)
{
    static const uint32_t min[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *p = bytes;
    if (left == 0) return 0;
    unsigned char first = p[0];
    size_t length = first < 0x80             ? 1
                    : (first & 0xe0) == 0xc0 ? 2
                    : (first & 0xf0) == 0xe0 ? 3
                    : (first & 0xf8) == 0xf0 ? 4
                                             : 0;
    if (length == 0 || length > left) return 0;
    uint32_t value = length == 1 ? first : first & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        value = value << 6 | (p[i] & 0x3fu);
    }
    if (value < min[length] || value > 0x10ffff) return 0; /* overlong, or past the end */
    if (value >= 0xd800 && value < 0xe000) return 0;       /* half of a surrogate pair */
    if (out) *out = value;
    return length;
}
