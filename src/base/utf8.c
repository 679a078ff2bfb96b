/* utf8.c: well-formedness as the Unicode standard's table 3-7 gives it. */
#include "base/utf8.h"

#include <stdbool.h>

static bool continues(unsigned char c)
{
    return (c & 0xc0) == 0x80;
}

size_t tdm__utf8_length(const unsigned char *p, size_t left)
{
    if (left == 0) return 0;
    unsigned char a = p[0];
    if (a < 0x80) return 1;
    if (a < 0xc2) return 0;
    if (a < 0xe0) return left >= 2 && continues(p[1]) ? 2 : 0;
    if (a < 0xf0) {
        if (left < 3 || !continues(p[1]) || !continues(p[2])) return 0;
        if (a == 0xe0 && p[1] < 0xa0) return 0; /* overlong */
        if (a == 0xed && p[1] > 0x9f) return 0; /* surrogate */
        return 3;
    }
    if (a > 0xf4 || left < 4 || !continues(p[1]) || !continues(p[2]) || !continues(p[3])) return 0;
    if (a == 0xf0 && p[1] < 0x90) return 0; /* overlong */
    if (a == 0xf4 && p[1] > 0x8f) return 0; /* past U+10FFFF */
    return 4;
}
