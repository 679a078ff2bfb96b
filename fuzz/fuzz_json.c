/*
 * fuzz_json.c: any bytes as JSON.
 *
 * Nothing may crash, leak or read past the end. An accepted value is checked completely, printed
 * by the writer, and read again: the two trees must be equal, except for numbers too large for a double,
 * which the writer prints as null.
 */
#include <tandem/text.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

__attribute__((noreturn)) static void broken(const char *what)
{
    fprintf(stderr, "fuzz_json: %s\n", what);
    abort();
}

#define NEED(condition, what)                                                                      \
    do {                                                                                           \
        if (!(condition)) broken(what);                                                            \
    } while (0)

/* Checks `value`; false if it contains a string with a zero byte or a number that is not finite. */
static bool check_value(const tdm_json *value, size_t input_bytes, int depth)
{
    NEED(depth <= 64, "deeper than promised");
    NEED(value->offset < input_bytes, "an offset past the end");
    bool plain = true;
    if (value->type == TDM_JSON_STRING) {
        NEED(value->string && value->string[value->string_length] == '\0', "no terminator");
        plain = strlen(value->string) == value->string_length;
        NEED((tdm_json_as_string(value) != NULL) == plain, "inner zeros are told wrongly");
    }
    if (value->type == TDM_JSON_NUMBER) {
        uint64_t magnitude = 0;
        plain = isfinite(value->number);
        if (tdm_json_as_u64(value, &magnitude)) {
            NEED(value->is_integer && magnitude == value->magnitude, "as_u64 differs");
        }
    }
    size_t children = 0;
    for (const tdm_json *child = value->first; child; child = child->next, children++) {
        if (value->type == TDM_JSON_OBJECT) {
            NEED(child->key && child->key[child->key_length] == '\0', "a key has no terminator");
            if (strlen(child->key) != child->key_length) {
                plain = false;
            } else {
                NEED(tdm_json_get(value, child->key) == child, "a member is not found");
            }
        }
        if (!check_value(child, input_bytes, depth + 1)) plain = false;
    }
    NEED(children == value->count, "a wrong count of children");
    return plain;
}

static void print_value(tdm_json_writer *w, const tdm_json *value)
{
    switch (value->type) {
    case TDM_JSON_NULL: tdm_json_string(w, NULL); break;
    case TDM_JSON_BOOL: tdm_json_bool(w, value->boolean); break;
    case TDM_JSON_STRING: tdm_json_string(w, value->string); break;
    case TDM_JSON_NUMBER:
        if (value->is_integer && !value->is_negative) {
            tdm_json_uint(w, value->magnitude);
        } else {
            int64_t number = 0;
            if (tdm_json_as_i64(value, &number) && number != 0) {
                tdm_json_int(w, number);
            } else {
                tdm_json_double(w, value->number);
            }
        }
        break;
    case TDM_JSON_ARRAY:
        tdm_json_array_begin(w);
        for (const tdm_json *child = value->first; child; child = child->next) {
            print_value(w, child);
        }
        tdm_json_array_end(w);
        break;
    case TDM_JSON_OBJECT:
        tdm_json_object_begin(w);
        for (const tdm_json *child = value->first; child; child = child->next) {
            tdm_json_key(w, child->key);
            print_value(w, child);
        }
        tdm_json_object_end(w);
        break;
    }
}

static void check_same(const tdm_json *a, const tdm_json *b)
{
    NEED(a->type == b->type && a->count == b->count, "another type or count came back");
    NEED(a->boolean == b->boolean, "another truth came back");
    if (a->type == TDM_JSON_NUMBER) NEED(a->number == b->number, "another number came back");
    if (a->type == TDM_JSON_STRING) NEED(!strcmp(a->string, b->string), "another text came back");
    if (a->key) NEED(b->key && strcmp(a->key, b->key) == 0, "another key came back");
    const tdm_json *y = b->first;
    for (const tdm_json *x = a->first; x; x = x->next, y = y->next) check_same(x, y);
}

static void check_round_trip(const tdm_json *root, int indent, tdm_arena *arena)
{
    tdm_str text = TDM_STR_INIT;
    tdm_json_writer w = tdm_json_writer_init(&text, indent);
    print_value(&w, root);
    NEED(tdm_str_ok(&text), "out of memory");
    tdm_error err = {0};
    const tdm_json *back = NULL;
    tdm_status status = tdm_json_parse(text.data, text.length, arena, &back, &err);
    NEED(status == TDM_OK, err.message);
    check_same(root, back);
    tdm_str_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    tdm_arena *arena = tdm_arena_create("fuzz");
    if (!arena) return 0;
    tdm_error err = {0};
    const tdm_json *root = NULL;
    tdm_status status = tdm_json_parse((const char *)bytes, count, arena, &root, &err);
    if (status != TDM_OK) {
        NEED(root == NULL && err.status == status && err.message[0], "a failure without a message");
    } else if (check_value(root, count, 0)) {
        check_round_trip(root, 0, arena);
        check_round_trip(root, 2, arena);
    }
    tdm_arena_destroy(arena);
    return 0;
}
