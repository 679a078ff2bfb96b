/*
 * tune.c: the file of measured choices: its path, when it is used, and how it is written (choices.c
 * reads it).
 *
 * A measurement covers groups of one size on one host or on several; rows of the file for other
 * groups are kept. A file that cannot be read is replaced, with a warning in the log: it could not
 * be used either.
 */

#include "base/base.h"
#include "comm/choices.h"
#include "os/os.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

bool tdm_tune_path(char *out, size_t out_bytes)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = -1;
    if (cache && cache[0] == '/') /* the standard says that other values are to be ignored */
        length = snprintf(out, out_bytes, "%s/tandem/tune.json", cache);
    else if (home && home[0] == '/')
        length = snprintf(out, out_bytes, "%s/.cache/tandem/tune.json", home);
    return length > 0 && (size_t)length < out_bytes;
}

tdm_status tdm__choices_find(const char *path, tdm__choices *out, tdm_error *err)
{
    char usual[PATH_MAX];
    tdm_error why;
    if (path) return tdm__choices_load(path, out, err);
    if (tdm_tune_path(usual, sizeof(usual)) && tdm_path_exists(usual)) {
        if (tdm__choices_load(usual, out, &why) == TDM_OK) return TDM_OK;
        tdm_log(TDM_LOG_WARN, "comm", "ignoring the measured choices: %s", why.message);
    }
    return tdm__choices_load(NULL, out, err);
}

static tdm_tune_row tune_row_of(const tdm__choice *choice)
{
    return (tdm_tune_row){.kind = (tdm_call_kind)choice->kind,
                          .one_host = choice->place == TDM__GROUP_PLACE_HOST,
                          .size = choice->size,
                          .bytes = choice->bytes,
                          .algorithm = (tdm_algorithm)choice->algorithm,
                          .segment_bytes = choice->segment_bytes};
}

static void tune_put_row(tdm_json_writer *w, const tdm_tune_row *row)
{
    tdm_json_object_begin(w);
    tdm_json_put_string(w, "kind", tdm_call_kind_name(row->kind));
    tdm_json_put_bool(w, "one_host", row->one_host);
    tdm_json_put_int(w, "size", row->size);
    tdm_json_put_uint(w, "bytes", row->bytes);
    tdm_json_put_string(w, "algorithm", tdm_algorithm_name(row->algorithm));
    tdm_json_put_uint(w, "segment_bytes", row->segment_bytes);
    tdm_json_object_end(w);
}

static bool tune_row_is_replaced(const tdm_tune_row *old, const tdm_tune_row *rows, int count)
{
    for (int i = 0; i < count; i++)
        if (rows[i].kind == old->kind && rows[i].one_host == old->one_host &&
            rows[i].size == old->size)
            return true;
    return false;
}

static tdm_status tune_check_rows(const tdm_tune_row *rows, int count, tdm_error *err)
{
    for (int i = 0; i < count; i++)
        if (rows[i].kind < TDM_CALL_BARRIER || rows[i].kind > TDM_CALL_RECV || rows[i].size < 1 ||
            rows[i].size > UINT16_MAX || rows[i].algorithm <= TDM_ALGORITHM_AUTO ||
            rows[i].algorithm > TDM_ALGORITHM_WINDOW)
            return tdm_fail(err, TDM_ERR_INVALID,
                            "row %d of the measured choices has an invalid kind, size or algorithm",
                            i);
    return TDM_OK;
}

/* The existing rows of the file; none if it is missing or invalid. */
static void tune_read_existing(const char *path, tdm__choices *out)
{
    tdm_error err;
    *out = (tdm__choices){0};
    if (!tdm_path_exists(path) || tdm__choices_read(path, out, &err) == TDM_OK) return;
    tdm_log(TDM_LOG_WARN, "comm", "replacing the file of measured choices: %s", err.message);
    *out = (tdm__choices){0};
}

static tdm_status tune_replace(const char *path, const tdm_str *text, tdm_error *err)
{
    if (!tdm_str_ok(text)) return tdm_fail_oom(err, "for the file of measured choices");
    tdm_arena *arena = tdm_arena_create("path");
    char *directory = arena ? tdm_path_dirname(arena, path) : NULL;
    tdm_status status = directory ? tdm_dir_make(directory, err) : tdm_fail_oom(err, "for a path");
    if (status == TDM_OK) status = tdm_file_replace(path, tdm_str_text(text), text->length, err);
    tdm_arena_destroy(arena);
    return status;
}

tdm_status tdm_tune_write(const char *path, const tdm_tune_row *rows, int count, tdm_error *err)
{
    TDM_TRY(tune_check_rows(rows, count, err));
    tdm__choices before;
    tune_read_existing(path, &before);
    tdm_str text = TDM_STR_INIT;
    tdm_json_writer w = tdm_json_writer_init(&text, 1);
    tdm_json_object_begin(&w);
    tdm_json_put_int(&w, "tandem_tune", 1);
    tdm_json_key(&w, "choices");
    tdm_json_array_begin(&w);
    for (int i = 0; i < before.count; i++) {
        tdm_tune_row old = tune_row_of(&before.rows[i]);
        if (!tune_row_is_replaced(&old, rows, count)) tune_put_row(&w, &old);
    }
    for (int i = 0; i < count; i++) tune_put_row(&w, &rows[i]);
    tdm_json_array_end(&w);
    tdm_json_object_end(&w);
    tdm_str_add_char(&text, '\n');
    tdm__choices_release(&before);
    tdm_status status = tune_replace(path, &text, err);
    tdm_str_release(&text);
    return status;
}
