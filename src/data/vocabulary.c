/*
 * vocabulary.c: maps characters to tokens.
 *
 * A character is a UTF-8 code point; its token is its index in the vocabulary, found by one access
 * to a table over the code points. Texts are untrusted: each byte is checked, and an error contains
 * the position of the first invalid one. A byte order mark at the beginning is skipped. NUL is not
 * allowed, so every character can be a C string.
 */
#include "base/base.h"
#include "data/data.h"
#include "data/internal.h"

#include <stdlib.h>
#include <string.h>

struct tdm_vocabulary {
    int32_t *token_of; /* [code_count]: the token of a code point; -1: none */
    uint32_t code_count;
    int64_t count;
};

/* Iterates over a text; `byte` and `line` are the position for messages. */
typedef struct walk {
    const tdm__data_source *source;
    size_t byte;   /* of the next character, from 0 */
    uint64_t line; /* of the last character, from 1 */
    bool line_ended;
} walk;

static walk walk_init(const tdm__data_source *source)
{
    bool has_mark = source->count >= 3 && memcmp(source->bytes, "\xef\xbb\xbf", 3) == 0;
    return (walk){.source = source, .byte = has_mark ? 3 : 0, .line = 1};
}

static tdm_status bad_byte(const walk *w, tdm_error *err)
{
    uint8_t byte = w->source->bytes[w->byte];
    if (byte == 0)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: line %llu, byte %zu (from 0): a NUL byte, so this is not a text",
                        w->source->name, (unsigned long long)w->line, w->byte);
    return tdm_fail(err, TDM_ERR_FORMAT,
                    "%s: line %llu, byte %zu (from 0): 0x%02x is not UTF-8 here; if the text is "
                    "in another encoding, convert it first (iconv -t UTF-8)",
                    w->source->name, (unsigned long long)w->line, w->byte, byte);
}

/* Reads the next character; *out_length is 0 at the end. */
static tdm_status walk_next(walk *w, uint32_t *out_code, size_t *out_length, tdm_error *err)
{
    const uint8_t *bytes = w->source->bytes;
    *out_length = 0;
    if (w->byte >= w->source->count) return TDM_OK;
    if (w->line_ended) w->line++;
    size_t length = tdm_text_utf8(bytes + w->byte, w->source->count - w->byte, out_code);
    w->line_ended = *out_code == '\n';
    if (length == 0 || *out_code == 0) return bad_byte(w, err);
    w->byte += length;
    *out_length = length;
    return TDM_OK;
}

/* ---- what characters there are --------------------------------------------------------------- */

static size_t text_encode(uint32_t code, char out[5])
{
    size_t count = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = count - 1; i > 0; i--, code >>= 6) out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)(lead[count] | code);
    out[count] = 0;
    return count;
}

/* The set of characters of a text, and its length in characters. */
typedef struct census {
    uint8_t *seen;       /* [TDM__MAX_CODES] */
    uint32_t code_count; /* all codes found are below this one */
    int64_t count;
} census;

static tdm_status take_census(const tdm__data_source *source, census *out, tdm_error *err)
{
    walk w = walk_init(source);
    uint32_t code;
    size_t length;
    for (;; out->count++) {
        TDM_TRY(walk_next(&w, &code, &length, err));
        if (length == 0) return TDM_OK;
        out->seen[code] = 1;
        if (code >= out->code_count) out->code_count = code + 1;
    }
}

static tdm_status name_all(const tdm__data_source *source, const census *c, tdm_arena *arena,
                           const char *const **out_names, int64_t *out_count, tdm_error *err)
{
    int64_t count = 0, used = 0;
    for (uint32_t code = 0; code < c->code_count; code++) count += c->seen[code];
    if (count > TDM__MAX_CLASSES)
        return tdm_fail(err, TDM_ERR_RANGE,
                        "%s: it has %lld different characters; a vocabulary has at most %d",
                        source->name, (long long)count, TDM__MAX_CLASSES);
    const char **names = tdm_arena_array(arena, (size_t)count + 1, sizeof(*names));
    for (uint32_t code = 0; names && code < c->code_count; code++) {
        char text[5];
        if (!c->seen[code]) continue;
        names[used] = tdm_arena_strndup(arena, text, text_encode(code, text));
        if (!names[used++]) names = NULL;
    }
    if (!names) return tdm_fail_oom(err, "for %s", source->name);
    *out_names = names;
    *out_count = count;
    return TDM_OK;
}

tdm_status tdm__characters_find(const tdm__data_source *source, tdm_arena *arena,
                                const char *const **out_names, int64_t *out_name_count,
                                int64_t *out_count, tdm_error *err)
{
    census c = {.seen = calloc(TDM__MAX_CODES, 1)};
    if (!c.seen) return tdm_fail_oom(err, "for %s", source->name);
    tdm_status status = take_census(source, &c, err);
    if (status == TDM_OK) status = name_all(source, &c, arena, out_names, out_name_count, err);
    if (status == TDM_OK) *out_count = c.count;
    free(c.seen);
    return status;
}

/* ---- which token each is --------------------------------------------------------------------- */

static tdm_status code_of(const char *character, int64_t index, uint32_t *out, tdm_error *err)
{
    size_t length = character ? strlen(character) : 0;
    const uint8_t *p = (const uint8_t *)character;
    if (length > 0 && tdm_text_utf8(p, length, out) == length) return TDM_OK;
    char shown[TDM__SHOW_BYTES];
    return tdm_fail(err, TDM_ERR_INVALID,
                    "the name of token %lld, '%s', is not one character: these are not the classes "
                    "of a text",
                    (long long)index, tdm__text_show(character ? character : "", length, shown));
}

static tdm_status table_fill(tdm_vocabulary *v, const char *const *characters, tdm_error *err)
{
    uint32_t code;
    for (int64_t i = 0; i < v->count; i++) {
        TDM_TRY(code_of(characters[i], i, &code, err));
        if (code >= v->code_count) v->code_count = code + 1;
    }
    v->token_of = malloc(v->code_count * sizeof(*v->token_of));
    if (!v->token_of) return tdm_fail_oom(err, "for the vocabulary");
    for (uint32_t c = 0; c < v->code_count; c++) v->token_of[c] = -1;
    for (int64_t i = 0; i < v->count; i++) {
        TDM_TRY(code_of(characters[i], i, &code, err));
        if (v->token_of[code] >= 0)
            return tdm_fail(err, TDM_ERR_INVALID,
                            "the vocabulary contains the character U+%04X twice", (unsigned)code);
        v->token_of[code] = (int32_t)i;
    }
    return TDM_OK;
}

tdm_status tdm_vocabulary_create(const char *const *characters, int64_t count, tdm_vocabulary **out,
                                 tdm_error *err)
{
    if (count < 1 || count > TDM__MAX_CLASSES)
        return tdm_fail(err, TDM_ERR_INVALID, "a vocabulary has 1 to %d characters, not %lld",
                        TDM__MAX_CLASSES, (long long)count);
    tdm_vocabulary *v = calloc(1, sizeof(*v));
    if (!v) return tdm_fail_oom(err, "for the vocabulary");
    v->count = count;
    tdm_status status = table_fill(v, characters, err);
    if (status != TDM_OK) {
        tdm_vocabulary_destroy(v);
        return status;
    }
    *out = v;
    return TDM_OK;
}

void tdm_vocabulary_destroy(tdm_vocabulary *vocabulary)
{
    if (!vocabulary) return;
    free(vocabulary->token_of);
    free(vocabulary);
}

int64_t tdm_vocabulary_count(const tdm_vocabulary *vocabulary)
{
    return vocabulary->count;
}

/* ---- texts ----------------------------------------------------------------------------------- */

static tdm_status fail_unknown(const tdm_vocabulary *v, const walk *w, uint32_t code,
                               tdm_error *err)
{
    char text[5], shown[TDM__SHOW_BYTES];
    size_t length = text_encode(code, text);
    return tdm_fail(err, TDM_ERR_FORMAT,
                    "%s: line %llu: the character '%s' (U+%04X) is not one of the %lld in the "
                    "vocabulary of the training data",
                    w->source->name, (unsigned long long)w->line,
                    tdm__text_show(text, length, shown), (unsigned)code, (long long)v->count);
}

tdm_status tdm__vocabulary_encode(const tdm_vocabulary *vocabulary, const tdm__data_source *source,
                                  tdm_dtype dtype, void *out, int64_t *out_count, tdm_error *err)
{
    walk w = walk_init(source);
    uint32_t code;
    size_t length;
    for (int64_t i = 0;; i++) {
        TDM_TRY(walk_next(&w, &code, &length, err));
        if (length == 0) {
            *out_count = i;
            return TDM_OK;
        }
        int32_t token = code < vocabulary->code_count ? vocabulary->token_of[code] : -1;
        if (token < 0) return fail_unknown(vocabulary, &w, code, err);
        if (dtype == TDM_DTYPE_U8)
            ((uint8_t *)out)[i] = (uint8_t)token;
        else if (dtype == TDM_DTYPE_U16)
            ((uint16_t *)out)[i] = (uint16_t)token;
        else
            ((int32_t *)out)[i] = token;
    }
}

tdm_status tdm_vocabulary_encode(const tdm_vocabulary *vocabulary, const char *name,
                                 const char *text, size_t length, int32_t *out, int64_t *out_count,
                                 tdm_error *err)
{
    tdm__data_source source = {.name = name, .bytes = (const uint8_t *)text, .count = length};
    return tdm__vocabulary_encode(vocabulary, &source, TDM_DTYPE_I32, out, out_count, err);
}
