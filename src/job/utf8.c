/*
 * utf8.c: which characters a job may contain.
 *
 * These are the characters of YAML 1.1: all of Unicode except control characters, surrogates and the
 * byte order mark. Text that passes the check is safe for libyaml, messages and JSON.
 */
#include <string.h>

#include "base/base.h"
#include "job/internal.h"

static bool character_is_allowed(uint32_t c)
{
    if (c < 0x20) return c == '\t' || c == '\n' || c == '\r';
    if (c < 0xa0) return c < 0x7f || c == 0x85;
    return c != 0xfeff && c != 0xfffe && c != 0xffff;
}

bool tdm__yaml_is_printable(uint32_t character)
{
    return character_is_allowed(character) && character >= 0x20 && character != 0x85 &&
           character != 0x2028 && character != 0x2029;
}

size_t tdm__utf8_check(const char *bytes, size_t count)
{
    size_t at = 0;
    while (at < count) {
        uint32_t character;
        size_t length = tdm_text_utf8(bytes + at, count - at, &character);
        if (length == 0 || !character_is_allowed(character)) break;
        at += length;
    }
    return at;
}

bool tdm__utf8_is_valid(const char *text)
{
    size_t count = strlen(text);
    for (size_t at = 0; at < count;) {
        uint32_t character;
        size_t length = tdm_text_utf8(text + at, count - at, &character);
        if (length == 0) return false;
        at += length;
    }
    return true;
}

size_t tdm__utf8_next(const char *bytes, uint32_t *out)
{
    /* The text is valid, so the first byte gives the length, and no byte after the character is
     * read. An invalid byte is skipped nevertheless. */
    size_t length = tdm_text_utf8(bytes, 4, out);
    if (length > 0) return length;
    *out = (unsigned char)bytes[0];
    return 1;
}
