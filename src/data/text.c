/*
 * text.c: parses numbers of data files, and prepares their texts for messages.
 *
 * A number is an optional sign, decimal digits with an optional point, and an optional exponent; no
 * hexadecimal, no thousands separators. Most decimals are short and are read exactly by one
 * multiplication or division: if the digits are below 2^53 and the power of ten is at most 10^22,
 * both are exact doubles and the result is correctly rounded. The others are read by strtod in the
 * "C" locale, so a decimal comma in the locale of the process has no effect.
 */
#include "base/base.h"
#include "data/internal.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define NUMBER_BYTES 256

static const double power_of_ten[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                      1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                      1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

typedef struct decimal {
    bool negative;
    bool exact;       /* `digits` contains all digits and is at most 2^53 */
    uint64_t digits;  /* without the point */
    int64_t exponent; /* of ten, for `digits` */
} decimal;

static inline bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static inline void add_digit(decimal *number, char c)
{
    if (number->digits > (UINT64_C(1) << 53) / 10) {
        number->exact = false;
        return;
    }
    number->digits = number->digits * 10 + (uint64_t)(c - '0');
}

/* Checks the grammar to the last character, and collects the values for the fast path. */
static bool scan_decimal(const char *p, const char *end, decimal *out)
{
    decimal number = {.exact = true};
    if (p < end && (*p == '-' || *p == '+')) number.negative = *p++ == '-';
    int64_t digit_count = 0;
    for (; p < end && is_digit(*p); p++, digit_count++) add_digit(&number, *p);
    if (p < end && *p == '.') {
        p++;
        for (; p < end && is_digit(*p); p++, digit_count++) {
            add_digit(&number, *p);
            number.exponent--;
        }
    }
    if (digit_count == 0) return false;
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        bool negative = false;
        if (p < end && (*p == '-' || *p == '+')) negative = *p++ == '-';
        if (p == end) return false;
        int64_t exponent = 0;
        for (; p < end && is_digit(*p); p++)
            if (exponent < 100000) exponent = exponent * 10 + (*p - '0');
        number.exponent += negative ? -exponent : exponent;
    }
    if (p != end) return false;
    *out = number;
    return true;
}

static bool is_not_finite(const char *text, size_t length)
{
    if (length > 0 && (*text == '-' || *text == '+')) text++, length--;
    return (length == 3 && (!strncasecmp(text, "nan", 3) || !strncasecmp(text, "inf", 3))) ||
           (length == 8 && !strncasecmp(text, "infinity", 8));
}

/* The slow path, always correct; the text has passed scan_decimal(). */
static double parse_in_c_locale(const char *text, size_t length)
{
    char buffer[NUMBER_BYTES];
    memcpy(buffer, text, length);
    buffer[length] = 0;
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c_locale)
        return strtod(buffer, NULL); /* glibc has "C" built in: this cannot run out of memory */
    double value = strtod_l(buffer, NULL, c_locale);
    freelocale(c_locale);
    return value;
}

tdm__number_result tdm__number_parse(const char *text, size_t length, double *out)
{
    if (length == 0) return TDM__NUMBER_EMPTY;
    decimal number;
    if (!scan_decimal(text, text + length, &number))
        return is_not_finite(text, length) ? TDM__NUMBER_NOT_FINITE : TDM__NUMBER_NOT_A_NUMBER;
    double value;
    if (number.exact && number.exponent >= -22 && number.exponent <= 22) {
        value = (double)number.digits;
        if (number.exponent < 0)
            value /= power_of_ten[-number.exponent];
        else
            value *= power_of_ten[number.exponent];
        if (number.negative) value = -value;
    } else {
        if (length >= NUMBER_BYTES) return TDM__NUMBER_TOO_LONG;
        value = parse_in_c_locale(text, length);
    }
    if (!isfinite((float)value)) return TDM__NUMBER_TOO_LARGE;
    *out = value;
    return TDM__NUMBER_OK;
}

bool tdm__utf8_ok(const char *text, size_t length)
{
    const uint8_t *p = (const uint8_t *)text;
    const uint8_t *end = p + length;
    while (p < end) {
        size_t step = tdm_text_utf8(p, (size_t)(end - p), NULL);
        if (step == 0) return false;
        p += step;
    }
    return true;
}

const char *tdm__text_show(const char *text, size_t length, char buffer[TDM__SHOW_BYTES])
{
    const uint8_t *p = (const uint8_t *)text;
    const uint8_t *end = p + length;
    size_t used = 0;
    while (p < end) {
        size_t step = tdm_text_utf8(p, (size_t)(end - p), NULL);
        bool plain = step > 1 || (step == 1 && *p >= 0x20 && *p != 0x7f);
        size_t bytes = plain ? step : 1;
        if (used + bytes + 4 > TDM__SHOW_BYTES) { /* space for "..." and the terminator */
            memcpy(buffer + used, "...", 3);
            used += 3;
            break;
        }
        if (plain)
            memcpy(buffer + used, p, step);
        else
            buffer[used] = '?';
        used += bytes;
        p += bytes;
    }
    buffer[used] = 0;
    return buffer;
}
