/*
 * choices.c: tables of choices: read from a file, and serialised for the other ranks.
 *
 * Files (choices.h defines their format; tune.c writes them) and bytes are untrusted input: every
 * field of a row is validated. An invalid row makes the whole table invalid, and the error names
 * its byte offset. A row whose algorithm does not support a call is harmless: choose.c asks the
 * algorithm.
 */
#include <tandem/os.h>

#include "base/base.h"
#include "comm/choices.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_FILE_BYTES = 1024 * 1024,
    MIN_SEGMENT_BYTES = 1024,
    MAX_SEGMENT_BYTES = 1024 * 1024 * 1024,
    FORMAT = 1,
    MAX_ROWS = 4096, /* maximum in a file */
    PACKED_HEAD = 8,
    PACKED_ROW = 20,
    PACKED_MAGIC = 0x31636474 /* "tdc1" */
};

/* Why a row is invalid, or NULL. */
static const char *choice_problem(const tdm__choice *row)
{
    if (row->kind < TDM_CALL_BARRIER || row->kind > TDM_CALL_RECV)
        return "\"kind\" must name a kind of call, such as \"all_reduce\"";
    if (row->place > TDM__GROUP_PLACE_CROWDED) return "\"one_host\" must be true or false";
    if (row->size == 0) return "\"size\" must be from 1 to 65535";
    if (row->algorithm == TDM_ALGORITHM_AUTO || row->algorithm > TDM_ALGORITHM_WINDOW)
        return "\"algorithm\" must name an algorithm, such as \"ring\"";
    if (row->bytes > INT64_MAX) return "\"bytes\" must be an integer below 2^63";
    if (row->segment_bytes != 0 &&
        (row->segment_bytes < MIN_SEGMENT_BYTES || row->segment_bytes > MAX_SEGMENT_BYTES))
        return "\"segment_bytes\" must be 0, or from 1024 to 2^30";
    return NULL;
}

void tdm__choices_release(tdm__choices *choices)
{
    free(choices->rows);
    *choices = (tdm__choices){0};
}

static tdm_status choices_allocate(tdm__choices *out, int count, tdm_error *err)
{
    tdm__choice *rows = calloc((size_t)count + 1, sizeof(*rows));
    if (!rows) return tdm_fail_oom(err, "for a table of %d choices", count);
    *out = (tdm__choices){.rows = rows};
    return TDM_OK;
}

/* ---- files ------------------------------------------------------------------------------------ */

static uint8_t kind_find(const char *name)
{
    for (int i = TDM_CALL_BARRIER; name && i <= TDM_CALL_RECV; i++)
        if (strcmp(tdm_call_kind_name((tdm_call_kind)i), name) == 0) return (uint8_t)i;
    return 0;
}

static uint8_t algorithm_find(const char *name)
{
    tdm_algorithm algorithm = TDM_ALGORITHM_AUTO;
    if (!name || tdm_algorithm_find(name, &algorithm, NULL) != TDM_OK) return TDM_ALGORITHM_AUTO;
    return (uint8_t)algorithm;
}

/* A member that is a non-negative integer; UINT64_MAX, which no field allows, if it is missing or
 * of another type. */
static uint64_t json_number(const tdm_json *object, const char *key)
{
    const tdm_json *value = tdm_json_get(object, key);
    uint64_t number = 0;
    return value && tdm_json_as_u64(value, &number) ? number : UINT64_MAX;
}

static const char *json_text(const tdm_json *object, const char *key)
{
    const tdm_json *value = tdm_json_get(object, key);
    return value ? tdm_json_as_string(value) : NULL;
}

static tdm_status choice_parse(const tdm_json *json, tdm__choice *out, tdm_error *err)
{
    uint64_t size = json_number(json, "size");
    uint64_t segment = json_number(json, "segment_bytes");
    const tdm_json *one_host = tdm_json_get(json, "one_host");
    uint8_t place = UINT8_MAX;
    if (one_host && one_host->type == TDM_JSON_BOOL)
        place = one_host->boolean ? TDM__GROUP_PLACE_HOST : TDM__GROUP_PLACE_HOSTS;
    tdm__choice row = {.kind = kind_find(json_text(json, "kind")),
                       .place = place,
                       .size = size <= UINT16_MAX ? (uint16_t)size : 0,
                       .bytes = json_number(json, "bytes"),
                       .algorithm = algorithm_find(json_text(json, "algorithm")),
                       .segment_bytes = segment <= UINT32_MAX ? (uint32_t)segment : UINT32_MAX};
    const char *problem = choice_problem(&row);
    if (problem)
        return tdm_fail(err, TDM_ERR_FORMAT, "invalid row at byte %zu: %s", json->offset, problem);
    *out = row;
    return TDM_OK;
}

static tdm_status choices_parse(const tdm_json *rows, tdm__choices *out, tdm_error *err)
{
    TDM_TRY(choices_allocate(out, (int)rows->count, err));
    for (const tdm_json *json = rows->first; json; json = json->next) {
        tdm_status status = choice_parse(json, &out->rows[out->count], err);
        if (status != TDM_OK) {
            tdm__choices_release(out);
            return status;
        }
        out->count++;
    }
    return TDM_OK;
}

static tdm_status choices_parse_file(const tdm_file_bytes *bytes, tdm_arena *arena,
                                     tdm__choices *out, tdm_error *err)
{
    const tdm_json *root = NULL;
    TDM_TRY(tdm_json_parse((const char *)bytes->data, bytes->count, arena, &root, err));
    if (json_number(root, "tandem_tune") != FORMAT)
        return tdm_fail(
            err, TDM_ERR_FORMAT,
            "\"tandem_tune\" is not %d; measure again with `tandem bench allreduce --tune`",
            FORMAT);
    const tdm_json *rows = tdm_json_get(root, "choices");
    if (!rows || rows->type != TDM_JSON_ARRAY || rows->count > MAX_ROWS)
        return tdm_fail(err, TDM_ERR_FORMAT, "\"choices\" must be an array of at most %d rows",
                        MAX_ROWS);
    return choices_parse(rows, out, err);
}

tdm_status tdm__choices_read(const char *path, tdm__choices *out, tdm_error *err)
{
    tdm__choices choices = {0};
    tdm_file_bytes bytes;
    TDM_TRY(tdm_file_read(path, MAX_FILE_BYTES, &bytes, err));
    tdm_arena *arena = tdm_arena_create("table of choices");
    tdm_status status = arena ? choices_parse_file(&bytes, arena, &choices, err)
                              : tdm_fail_oom(err, "for a table of choices");
    tdm_arena_destroy(arena);
    tdm_file_bytes_release(&bytes);
    if (status != TDM_OK) return tdm_error_context(err, status, "measured choices in %s", path);
    *out = choices;
    return TDM_OK;
}

/* Whether measured rows cover the groups of a built-in one: same kind and place, and a size that
 * does not exceed the measured ones. */
static bool choice_is_replaced(const tdm__choice *builtin, const tdm__choices *measured)
{
    uint16_t min = UINT16_MAX, max = 0;
    for (int i = 0; i < measured->count; i++) {
        const tdm__choice *row = &measured->rows[i];
        if (row->kind != builtin->kind || row->place != builtin->place) continue;
        if (row->size < min) min = row->size;
        if (row->size > max) max = row->size;
    }
    return builtin->size >= min && builtin->size <= max;
}

/* Small calls use the window directly if the table allows no other algorithm: see calls.c. */
static void choices_find_mixed(tdm__choices *choices)
{
    for (int i = 0; i < choices->count; i++)
        if (choices->rows[i].place == TDM__GROUP_PLACE_HOST &&
            choices->rows[i].algorithm != TDM_ALGORITHM_WINDOW)
            choices->mixed_host = true;
}

tdm_status tdm__choices_load(const char *path, tdm__choices *out, tdm_error *err)
{
    tdm__choices measured = {0}, choices = {0};
    if (path) TDM_TRY(tdm__choices_read(path, &measured, err));
    tdm_status status = choices_allocate(&choices, 2 * measured.count + tdm__choices_builtin_count,
                                         err);
    for (int i = 0; status == TDM_OK && i < measured.count; i++) {
        tdm__choice row = measured.rows[i];
        choices.rows[choices.count++] = row;
        /* Files do not distinguish TDM__GROUP_PLACE_CROWDED: their rows for several hosts apply to
         * both places. */
        if (row.place == TDM__GROUP_PLACE_HOST) continue;
        row.place = TDM__GROUP_PLACE_CROWDED;
        choices.rows[choices.count++] = row;
    }
    tdm__choices_release(&measured);
    if (status != TDM_OK) return status;
    measured = choices; /* the rows so far; the built-in ones follow */
    for (int i = 0; i < tdm__choices_builtin_count; i++)
        if (!choice_is_replaced(&tdm__choices_builtin[i], &measured))
            choices.rows[choices.count++] = tdm__choices_builtin[i];
    choices_find_mixed(&choices);
    *out = choices;
    return TDM_OK;
}

/* ---- serialised tables ------------------------------------------------------------------------ */

static void bytes_put(uint8_t *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) out[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t bytes_get(const uint8_t *in, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)in[i] << (8 * i);
    return value;
}

size_t tdm__choices_pack(const tdm__choices *choices, uint8_t *out)
{
    if (out) {
        bytes_put(out, PACKED_MAGIC, 4);
        bytes_put(out + 4, (uint64_t)choices->count, 4);
    }
    for (int i = 0; out && i < choices->count; i++) {
        const tdm__choice *row = &choices->rows[i];
        uint8_t *to = out + PACKED_HEAD + (size_t)i * PACKED_ROW;
        bytes_put(to, row->kind, 1);
        bytes_put(to + 1, row->place, 1);
        bytes_put(to + 2, row->size, 2);
        bytes_put(to + 4, row->algorithm, 4);
        bytes_put(to + 8, row->segment_bytes, 4);
        bytes_put(to + 12, row->bytes, 8);
    }
    return PACKED_HEAD + (size_t)choices->count * PACKED_ROW;
}

tdm_status tdm__choices_unpack(const uint8_t *bytes, size_t count, tdm__choices *out,
                               tdm_error *err)
{
    uint64_t row_count = count >= PACKED_HEAD ? bytes_get(bytes + 4, 4) : 0;
    if (count < PACKED_HEAD || bytes_get(bytes, 4) != PACKED_MAGIC ||
        row_count > 2 * MAX_ROWS + (uint64_t)tdm__choices_builtin_count ||
        count != PACKED_HEAD + row_count * PACKED_ROW)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "rank 0 sent %zu bytes that are not a table of choices", count);

    tdm__choices choices = {0};
    TDM_TRY(choices_allocate(&choices, (int)row_count, err));

    for (; choices.count < (int)row_count; choices.count++) {
        const uint8_t *from = bytes + PACKED_HEAD + (size_t)choices.count * PACKED_ROW;
        tdm__choice row = {.kind = (uint8_t)bytes_get(from, 1),
                           .place = (uint8_t)bytes_get(from + 1, 1),
                           .size = (uint16_t)bytes_get(from + 2, 2),
                           .algorithm = (uint8_t)bytes_get(from + 4, 1),
                           .segment_bytes = (uint32_t)bytes_get(from + 8, 4),
                           .bytes = bytes_get(from + 12, 8)};
        const char *problem = choice_problem(&row);
        if (problem) {
            int at = choices.count;
            tdm__choices_release(&choices);
            return tdm_fail(err, TDM_ERR_FORMAT, "invalid row %d in rank 0's table of choices: %s",
                            at, problem);
        }
        choices.rows[choices.count] = row;
    }

    choices_find_mixed(&choices);
    *out = choices;
    return TDM_OK;
}
