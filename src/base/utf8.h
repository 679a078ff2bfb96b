/* utf8.h: one question about UTF-8, asked by both directions of JSON. */
#ifndef TANDEM_BASE_UTF8_H
#define TANDEM_BASE_UTF8_H

#include <stddef.h>

/*
 * The length in bytes of the well-formed UTF-8 character at `p` (1 to 4), or 0 when there is none:
 * a stray continuation, an overlong form, a surrogate, a value past U+10FFFF, or too few bytes.
 */
size_t tdm__utf8_length(const unsigned char *p, size_t left);

#endif
