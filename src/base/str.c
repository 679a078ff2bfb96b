/*
 * str.c: growing strings, and formatting: sizes, counts, durations, suggestions.
 *
 * A tdm_str doubles its memory as needed. Once memory runs out it is `failed`: later additions are
 * ignored and the collected text stays valid, so one check at the end is enough.
 */
#include "base/base.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tdm_str_release(tdm_str *str)
{
    free(str->data);
    *str = (tdm_str)TDM_STR_INIT;
}

void tdm_str_wipe(tdm_str *str)
{
    if (str->data) explicit_bzero(str->data, str->capacity);
    tdm_str_release(str);
}

void tdm_str_clear(tdm_str *str)
{
    str->length = 0;
    str->failed = false;
    if (str->data) str->data[0] = '\0';
}

/* Makes room for `more` bytes and the terminator. */
static bool str_reserve(tdm_str *str, size_t more)
{
    if (str->failed) return false;
    if (more > SIZE_MAX / 4 || str->length > SIZE_MAX / 4) goto fail;
    size_t needed = str->length + more + 1;
    if (needed <= str->capacity) return true;
    size_t capacity = str->capacity ? str->capacity : 64;
    while (capacity < needed) capacity *= 2;
    char *data = realloc(str->data, capacity);
    if (!data) goto fail;
    str->data = data;
    str->capacity = capacity;
    return true;
fail:
    str->failed = true;
    return false;
}

void tdm_str_add_bytes(tdm_str *str, const void *bytes, size_t count)
{
    if (!str_reserve(str, count)) return;
    if (count > 0) memcpy(str->data + str->length, bytes, count);
    str->length += count;
    str->data[str->length] = '\0';
}

void tdm_str_addv(tdm_str *str, const char *fmt, va_list args)
{
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, fmt, args);
    if (length >= 0 && str_reserve(str, (size_t)length)) {
        vsnprintf(str->data + str->length, (size_t)length + 1, fmt, again);
        str->length += (size_t)length;
    }
    va_end(again);
}

void tdm_str_addf(tdm_str *str, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    tdm_str_addv(str, fmt, args);
    va_end(args);
}

void tdm_str_pad_to(tdm_str *str, size_t column)
{
    size_t line_start = str->length;
    while (line_start > 0 && str->data[line_start - 1] != '\n') line_start--;
    while (!str->failed && str->length - line_start < column) tdm_str_add_char(str, ' ');
}

const char *tdm_text_bytes(uint64_t bytes, char buffer[32])
{
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB", "PB", "EB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 999.5 && unit < 6) {
        value /= 1000.0;
        unit++;
    }
    int digits = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(buffer, 32, "%.*f %s", digits, value, units[unit]);
    return buffer;
}

const char *tdm_text_count(uint64_t count, char buffer[32])
{
    char plain[24];
    int length = snprintf(plain, sizeof(plain), "%llu", (unsigned long long)count);
    int out = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) buffer[out++] = ',';
        buffer[out++] = plain[i];
    }
    buffer[out] = '\0';
    return buffer;
}

const char *tdm_text_duration(double seconds, char buffer[32])
{
    if (!(seconds >= 0)) seconds = 0;
    if (seconds > 1e9) seconds = 1e9;
    if (seconds < 0.9995) {
        snprintf(buffer, 32, "%.0f ms", seconds * 1e3);
    } else if (seconds < 59.95) {
        snprintf(buffer, 32, "%.1f s", seconds);
    } else {
        long whole = lround(seconds);
        if (whole < 3600)
            snprintf(buffer, 32, "%ld min %02ld s", whole / 60, whole % 60);
        else if (whole < 48 * 3600)
            snprintf(buffer, 32, "%ld h %02ld min", whole / 3600, whole / 60 % 60);
        else
            snprintf(buffer, 32, "%ld d %02ld h", whole / 86400, whole / 3600 % 24);
    }
    return buffer;
}

enum { NEAREST_LONGEST = 63 };

/* Edit distance with transpositions; words longer than the buffers count as far away. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t la = strlen(a), lb = strlen(b);
    if (la > NEAREST_LONGEST || lb > NEAREST_LONGEST) return SIZE_MAX;
    size_t rows[3][NEAREST_LONGEST + 1];
    for (size_t j = 0; j <= lb; j++) rows[0][j] = j;
    for (size_t i = 1; i <= la; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            int ca = tolower((unsigned char)a[i - 1]), cb = tolower((unsigned char)b[j - 1]);
            size_t best = above[j - 1] + (ca != cb);
            if (above[j] + 1 < best) best = above[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            if (i > 1 && j > 1 && ca == tolower((unsigned char)b[j - 2]) &&
                cb == tolower((unsigned char)a[i - 2]) && two_above[j - 2] + 1 < best)
                best = two_above[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[la % 3][lb];
}

const char *tdm_text_nearest(const char *word, size_t count, tdm_text_candidate_fn candidate,
                             const void *user)
{
    const char *best = NULL;
    size_t best_distance = SIZE_MAX;
    for (size_t i = 0; i < count; i++) {
        const char *text = candidate(i, user);
        size_t distance = text ? edit_distance(word, text) : SIZE_MAX;
        if (distance < best_distance) {
            best_distance = distance;
            best = text;
        }
    }
    /* Up to a third of the letters may be wrong, and at least one. */
    size_t allowed = strlen(word) / 3 > 1 ? strlen(word) / 3 : 1;
    return best_distance <= allowed ? best : NULL;
}

const char *tdm_text_double(double value, char buffer[32])
{
    if (value == floor(value) && fabs(value) < 1e15) {
        snprintf(buffer, 32, "%.0f", value);
        return buffer;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(buffer, 32, "%.*g", digits, value);
        if (strtod(buffer, NULL) == value) break;
    }
    /* The locale of the process may use another character as decimal point. */
    size_t sign_and_digits = strspn(buffer, "+-0123456789");
    size_t point = strcspn(buffer + sign_and_digits, "+-0123456789e");
    if (point > 0 && isfinite(value)) {
        buffer[sign_and_digits] = '.';
        memmove(buffer + sign_and_digits + 1, buffer + sign_and_digits + point,
                strlen(buffer + sign_and_digits + point) + 1);
    }
    return buffer;
}
