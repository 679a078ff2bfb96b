/*
 * text.h: growing strings, and reading and writing of JSON.
 *
 * A tdm_str collects text and grows as needed. If memory runs out it ignores further text, and
 * tdm_str_ok() returns false, so one check at the end is enough. The JSON writer adds commas and quotes;
 * the JSON reader treats its input as hostile: bounded depth, strict grammar, valid UTF-8 only, and
 * errors with the position of the byte.
 */
#ifndef TANDEM_TEXT_H
#define TANDEM_TEXT_H

#include <tandem/base.h>

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- growing strings ------------------------------------------------------------------------- */

typedef struct tdm_str {
    char *data; /* always terminated once anything was added; NULL before */
    size_t length;
    size_t capacity;
    bool failed;
} tdm_str;

/* clang-format off */
#define TDM_STR_INIT {0}
/* clang-format on */

TDM_API void tdm_str_release(tdm_str *str);
TDM_API void tdm_str_wipe(tdm_str *str);  /* overwrites the text, then releases it: for secrets */
TDM_API void tdm_str_clear(tdm_str *str); /* length 0, memory kept */
TDM_API void tdm_str_add_bytes(tdm_str *str, const void *bytes, size_t count);
static inline void tdm_str_add(tdm_str *str, const char *text)
{
    tdm_str_add_bytes(str, text, strlen(text));
}
static inline void tdm_str_add_char(tdm_str *str, char c)
{
    tdm_str_add_bytes(str, &c, 1);
}
TDM_API void tdm_str_addf(tdm_str *str, const char *fmt, ...) TDM_PRINTF(2, 3);
TDM_API void tdm_str_addv(tdm_str *str, const char *fmt, va_list args);

/* The text; "" if it is empty, never NULL. */
static inline const char *tdm_str_text(const tdm_str *str)
{
    return str->data ? str->data : "";
}
/* False if memory ran out on the way: the text is not complete. */
static inline bool tdm_str_ok(const tdm_str *str)
{
    return !str->failed;
}

/* "1.5 GB", "312 KB": decimal units. "1,234,567". "2 min 03 s". Each returns `buffer`. */
TDM_API const char *tdm_text_bytes(uint64_t bytes, char buffer[32]);
TDM_API const char *tdm_text_count(uint64_t count, char buffer[32]);
TDM_API const char *tdm_text_duration(double seconds, char buffer[32]);

/*
 * The candidate nearest to `word` by edit distance if it is close enough to be a probable typing error;
 * NULL otherwise. `candidate(i, user)` returns the i-th of `count`.
 */
typedef const char *(*tdm_text_candidate_fn)(size_t index, const void *user);
TDM_API const char *tdm_text_nearest(const char *word, size_t count,
                                     tdm_text_candidate_fn candidate, const void *user);

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

/*
 * The length in bytes (1 to 4) of the well-formed UTF-8 character at `bytes`, and the character in
 * *out (may be NULL); 0 if there is none: an unexpected continuation byte, an overlong form, a
 * surrogate, a value above U+10FFFF, or too few bytes.
 */
TDM_API size_t tdm_text_utf8(const void *bytes, size_t left, uint32_t *out);

/* ---- JSON out -------------------------------------------------------------------------------- */

typedef struct tdm_json_writer {
    tdm_str *out; /* borrowed */
    bool need_comma;
    bool after_key;
    int indent; /* spaces per level; 0 writes one line */
    int depth;
} tdm_json_writer;

/* `indent` 0 for one line. The text is appended to `out`. */
static inline tdm_json_writer tdm_json_writer_init(tdm_str *out, int indent)
{
    tdm_json_writer w = {out, false, false, indent, 0};
    return w;
}
TDM_API void tdm_json_object_begin(tdm_json_writer *w);
TDM_API void tdm_json_object_end(tdm_json_writer *w);
TDM_API void tdm_json_array_begin(tdm_json_writer *w);
TDM_API void tdm_json_array_end(tdm_json_writer *w);
TDM_API void tdm_json_key(tdm_json_writer *w, const char *key);
TDM_API void tdm_json_string(tdm_json_writer *w, const char *value); /* NULL writes null */
TDM_API void tdm_json_int(tdm_json_writer *w, int64_t value);
TDM_API void tdm_json_uint(tdm_json_writer *w, uint64_t value);
TDM_API void tdm_json_double(tdm_json_writer *w, double value); /* NaN and infinity write null */
TDM_API void tdm_json_bool(tdm_json_writer *w, bool value);

/* A key and its value in one call. */
static inline void tdm_json_put_string(tdm_json_writer *w, const char *key, const char *value)
{
    tdm_json_key(w, key);
    tdm_json_string(w, value);
}
static inline void tdm_json_put_int(tdm_json_writer *w, const char *key, int64_t value)
{
    tdm_json_key(w, key);
    tdm_json_int(w, value);
}
static inline void tdm_json_put_uint(tdm_json_writer *w, const char *key, uint64_t value)
{
    tdm_json_key(w, key);
    tdm_json_uint(w, value);
}
static inline void tdm_json_put_double(tdm_json_writer *w, const char *key, double value)
{
    tdm_json_key(w, key);
    tdm_json_double(w, value);
}
static inline void tdm_json_put_bool(tdm_json_writer *w, const char *key, bool value)
{
    tdm_json_key(w, key);
    tdm_json_bool(w, value);
}

/* ---- JSON in --------------------------------------------------------------------------------- */

typedef enum tdm_json_type {
    TDM_JSON_NULL,
    TDM_JSON_BOOL,
    TDM_JSON_NUMBER,
    TDM_JSON_STRING,
    TDM_JSON_ARRAY,
    TDM_JSON_OBJECT
} tdm_json_type;

typedef struct tdm_json tdm_json;
struct tdm_json {
    tdm_json_type type;
    bool boolean;
    bool is_integer;    /* the number was written without fraction or exponent and fits */
    bool is_negative;   /* for integers */
    uint64_t magnitude; /* for integers: the absolute value, exact */
    double number;
    const char *string; /* terminated; may contain zero bytes: see string_length */
    size_t string_length;
    const char *key; /* of a member of an object */
    size_t key_length;
    size_t offset;         /* of its first byte, for error messages */
    const tdm_json *first; /* children of arrays and objects, in order */
    const tdm_json *next;
    size_t count;
};

/*
 * Parses one JSON value that fills `bytes` (except white space). All memory comes from `arena`.
 * Duplicate keys in an object are an error, as is depth beyond 64.
 */
TDM_API tdm_status tdm_json_parse(const char *bytes, size_t count, tdm_arena *arena,
                                  const tdm_json **out, tdm_error *err);
/* The member `key` of an object; NULL if it is absent or `object` is not an object. */
TDM_API const tdm_json *tdm_json_get(const tdm_json *object, const char *key);
/* The value as an integer; false if it is not one, or negative for u64. */
TDM_API bool tdm_json_as_u64(const tdm_json *value, uint64_t *out);
TDM_API bool tdm_json_as_i64(const tdm_json *value, int64_t *out);
/* The string; NULL if the value is not a string or contains zero bytes. */
TDM_API const char *tdm_json_as_string(const tdm_json *value);

#ifdef __cplusplus
}
#endif
#endif
