/*
 * json_read.c: parses untrusted JSON.
 *
 * A strict recursive-descent parser of RFC 8259: no comments, no trailing commas, no bare words, UTF-8
 * checked, lone surrogates and duplicate keys rejected, depth at most 64. All memory comes from the
 * caller's arena. It never reads past `end`; every error contains the offset of the byte.
 */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64, LONGEST_NUMBER = 400 };

typedef struct reader {
    const char *start;
    const char *at;
    const char *end;
    tdm_arena *arena;
    tdm_error *err;
    int depth;
} reader;

static tdm_status read_value(reader *r, tdm_json *out);

static size_t offset_of(const reader *r)
{
    return (size_t)(r->at - r->start);
}

static tdm_status fail_bad(reader *r, const char *what)
{
    return tdm_fail(r->err, TDM_ERR_FORMAT, "JSON, byte %zu: %s", offset_of(r), what);
}

static tdm_status no_memory(reader *r)
{
    return tdm_fail_oom(r->err, "in JSON");
}

static void skip_space(reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r'))
        r->at++;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static tdm_status expect_word(reader *r, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(r->end - r->at) < length || memcmp(r->at, word, length) != 0)
        return fail_bad(r, "expected a value");
    r->at += length;
    return TDM_OK;
}

static tdm_status read_digits(reader *r)
{
    if (r->at == r->end || !is_digit(*r->at)) return fail_bad(r, "expected a digit");
    while (r->at < r->end && is_digit(*r->at)) r->at++;
    return TDM_OK;
}

static tdm_status read_number(reader *r, tdm_json *out)
{
    const char *first = r->at;
    bool plain = true;
    out->type = TDM_JSON_NUMBER;
    if (*r->at == '-') r->at++;
    if (r->at < r->end && *r->at == '0')
        r->at++;
    else
        TDM_TRY(read_digits(r));
    if (r->at < r->end && *r->at == '.') {
        plain = false;
        r->at++;
        TDM_TRY(read_digits(r));
    }
    if (r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
        plain = false;
        r->at++;
        if (r->at < r->end && (*r->at == '+' || *r->at == '-')) r->at++;
        TDM_TRY(read_digits(r));
    }
    size_t length = (size_t)(r->at - first);
    if (length > LONGEST_NUMBER) return fail_bad(r, "a number of more than 400 characters");
    char text[LONGEST_NUMBER + 1];
    memcpy(text, first, length);
    text[length] = '\0';
    out->number = strtod(text, NULL);
    if (!plain) return TDM_OK;
    uint64_t magnitude = 0;
    for (const char *p = text + (*text == '-'); *p; p++) {
        unsigned digit = (unsigned)(*p - '0');
        if (magnitude > (UINT64_MAX - digit) / 10) return TDM_OK; /* stays a real number */
        magnitude = magnitude * 10 + digit;
    }
    out->is_integer = true;
    out->is_negative = *text == '-';
    out->magnitude = magnitude;
    return TDM_OK;
}

static tdm_status read_hex4(reader *r, uint32_t *out)
{
    if (r->end - r->at < 4) return fail_bad(r, "\\u requires four hexadecimal digits");
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        char c = r->at[i];
        int digit = is_digit(c)            ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return fail_bad(r, "\\u requires four hexadecimal digits");
        value = value << 4 | (uint32_t)digit;
    }
    r->at += 4;
    *out = value;
    return TDM_OK;
}

static size_t encode_utf8(uint32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

/* Reads the part of an escape after the backslash. Its result is never longer than the escape. */
static tdm_status read_escape(reader *r, char *out, size_t *out_length)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (r->at == r->end) return fail_bad(r, "the text ends inside a string");
    const char *known = *r->at ? strchr(from, *r->at) : NULL;
    if (known) {
        r->at++;
        out[0] = to[known - from];
        *out_length = 1;
        return TDM_OK;
    }
    if (*r->at != 'u') return fail_bad(r, "an unknown escape");
    r->at++;
    uint32_t c, low;
    TDM_TRY(read_hex4(r, &c));
    if (c >= 0xdc00 && c <= 0xdfff) return fail_bad(r, "unpaired surrogate");
    if (c >= 0xd800 && c <= 0xdbff) {
        if (r->end - r->at < 2 || r->at[0] != '\\' || r->at[1] != 'u')
            return fail_bad(r, "unpaired surrogate");
        r->at += 2;
        TDM_TRY(read_hex4(r, &low));
        if (low < 0xdc00 || low > 0xdfff) return fail_bad(r, "unpaired surrogate");
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    *out_length = encode_utf8(c, out);
    return TDM_OK;
}

static tdm_status read_string(reader *r, const char **out, size_t *out_length)
{
    if (r->at == r->end || *r->at != '"') return fail_bad(r, "expected a string");
    r->at++;
    const char *scan = r->at;
    while (scan < r->end && *scan != '"') scan += *scan == '\\' && scan + 1 < r->end ? 2 : 1;
    if (scan >= r->end) {
        r->at = r->end;
        return fail_bad(r, "the text ends inside a string");
    }
    char *text = tdm_arena_alloc(r->arena, (size_t)(scan - r->at) + 1, 1);
    if (!text) return no_memory(r);
    size_t length = 0;
    while (*r->at != '"') {
        unsigned char c = (unsigned char)*r->at;
        if (c < 0x20) return fail_bad(r, "a control character inside a string");
        if (c == '\\') {
            size_t added = 0;
            r->at++;
            TDM_TRY(read_escape(r, text + length, &added));
            length += added;
            continue;
        }
        size_t bytes = tdm_text_utf8(r->at, (size_t)(r->end - r->at), NULL);
        if (bytes == 0) return fail_bad(r, "not UTF-8");
        memcpy(text + length, r->at, bytes);
        length += bytes;
        r->at += bytes;
    }
    r->at++;
    *out = text;
    *out_length = length;
    return TDM_OK;
}

static int compare_keys(const void *a, const void *b)
{
    const tdm_json *x = *(const tdm_json *const *)a, *y = *(const tdm_json *const *)b;
    size_t shorter = x->key_length < y->key_length ? x->key_length : y->key_length;
    int order = shorter > 0 ? memcmp(x->key, y->key, shorter) : 0;
    if (order != 0) return order;
    return (x->key_length > y->key_length) - (x->key_length < y->key_length);
}

/* Sorting keeps this O(n log n) even for an object with a million members. */
static tdm_status refuse_duplicates(reader *r, const tdm_json *object)
{
    if (object->count < 2) return TDM_OK;
    const tdm_json **sorted = malloc(object->count * sizeof(*sorted));
    if (!sorted) return no_memory(r);
    size_t n = 0;
    for (const tdm_json *child = object->first; child; child = child->next) sorted[n++] = child;
    qsort(sorted, n, sizeof(*sorted), compare_keys);
    tdm_status status = TDM_OK;
    for (size_t i = 1; i < n && status == TDM_OK; i++)
        if (compare_keys(&sorted[i - 1], &sorted[i]) == 0)
            status = tdm_fail(r->err, TDM_ERR_FORMAT, "JSON, byte %zu: duplicate key '%.80s'",
                              sorted[i]->offset, sorted[i]->key);
    free(sorted);
    return status;
}

/* One member of an array or object, appended to the list whose end is *tail. */
static tdm_status read_member(reader *r, tdm_json *parent, const tdm_json ***tail)
{
    tdm_json *child = tdm_arena_alloc(r->arena, sizeof(*child), 0);
    if (!child) return no_memory(r);
    skip_space(r);
    if (parent->type == TDM_JSON_OBJECT) {
        TDM_TRY(read_string(r, &child->key, &child->key_length));
        skip_space(r);
        if (r->at == r->end || *r->at != ':') return fail_bad(r, "expected ':'");
        r->at++;
    }
    TDM_TRY(read_value(r, child));
    **tail = child;
    *tail = &child->next;
    parent->count++;
    return TDM_OK;
}

static tdm_status read_container(reader *r, tdm_json *out)
{
    char close = *r->at == '{' ? '}' : ']';
    out->type = *r->at == '{' ? TDM_JSON_OBJECT : TDM_JSON_ARRAY;
    r->at++;
    if (++r->depth > MAX_DEPTH) return fail_bad(r, "nested more than 64 deep");
    const tdm_json **tail = &out->first;
    skip_space(r);
    if (r->at < r->end && *r->at == close) {
        r->at++;
    } else {
        for (;;) {
            TDM_TRY(read_member(r, out, &tail));
            skip_space(r);
            if (r->at == r->end) return fail_bad(r, "unexpected end of the text");
            char c = *r->at;
            if (c != ',' && c != close)
                return fail_bad(r, close == '}' ? "expected ',' or '}'" : "expected ',' or ']'");
            r->at++;
            if (c == close) break;
        }
    }
    r->depth--;
    return out->type == TDM_JSON_OBJECT ? refuse_duplicates(r, out) : TDM_OK;
}

static tdm_status read_value(reader *r, tdm_json *out)
{
    skip_space(r);
    out->offset = offset_of(r);
    if (r->at == r->end) return fail_bad(r, "unexpected end of the text");
    switch (*r->at) {
    case '{':
    case '[': return read_container(r, out);
    case '"': out->type = TDM_JSON_STRING; return read_string(r, &out->string, &out->string_length);
    case 't':
        out->type = TDM_JSON_BOOL;
        out->boolean = true;
        return expect_word(r, "true");
    case 'f': out->type = TDM_JSON_BOOL; return expect_word(r, "false");
    case 'n': out->type = TDM_JSON_NULL; return expect_word(r, "null");
    default:
        if (*r->at != '-' && !is_digit(*r->at)) return fail_bad(r, "expected a value");
        return read_number(r, out);
    }
}

tdm_status tdm_json_parse(const char *bytes, size_t count, tdm_arena *arena, const tdm_json **out,
                          tdm_error *err)
{
    reader r = {.start = bytes, .at = bytes, .end = bytes + count, .arena = arena, .err = err};
    tdm_json *value = tdm_arena_alloc(arena, sizeof(*value), 0);
    if (!value) return no_memory(&r);
    TDM_TRY(read_value(&r, value));
    skip_space(&r);
    if (r.at != r.end) return fail_bad(&r, "unexpected text after the value");
    *out = value;
    return TDM_OK;
}

const tdm_json *tdm_json_get(const tdm_json *object, const char *key)
{
    if (!object || object->type != TDM_JSON_OBJECT) return NULL;
    size_t length = strlen(key);
    for (const tdm_json *child = object->first; child; child = child->next)
        if (child->key_length == length && memcmp(child->key, key, length) == 0) return child;
    return NULL;
}

bool tdm_json_as_u64(const tdm_json *value, uint64_t *out)
{
    if (!value || value->type != TDM_JSON_NUMBER || !value->is_integer) return false;
    if (value->is_negative && value->magnitude != 0) return false;
    *out = value->magnitude;
    return true;
}

bool tdm_json_as_i64(const tdm_json *value, int64_t *out)
{
    if (!value || value->type != TDM_JSON_NUMBER || !value->is_integer) return false;
    if (value->magnitude > (uint64_t)INT64_MAX) return false;
    *out = value->is_negative ? -(int64_t)value->magnitude : (int64_t)value->magnitude;
    return true;
}

const char *tdm_json_as_string(const tdm_json *value)
{
    if (!value || value->type != TDM_JSON_STRING) return NULL;
    return strlen(value->string) == value->string_length ? value->string : NULL;
}
