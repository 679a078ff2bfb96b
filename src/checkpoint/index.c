/*
 * index.c: the test metrics of the checkpoints of a directory.
 *
 * They are not part of a state, so they are stored next to the checkpoints, in index.json:
 *   {"format":"tandem-checkpoints-1","steps":[{"step":120,"test_loss":0.3,"test_accuracy":0.9},...]}
 * No state is restored from this file. If it is missing or unreadable it is rebuilt from the run's
 * metrics.jsonl, as far as possible. A checkpoint without an entry counts as not evaluated. The file is
 * replaced atomically.
 */
#include "base/base.h"
#include "checkpoint/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define INDEX_FORMAT "tandem-checkpoints-1"
#define INDEX_LIMIT_BYTES (UINT64_C(64) << 20)
#define METRICS_LIMIT_BYTES (UINT64_C(1) << 30)

static double number_of(const tdm_json *object, const char *name)
{
    const tdm_json *value = tdm_json_get(object, name);
    return value && value->type == TDM_JSON_NUMBER ? value->number : (double)NAN;
}

static bool index_add(tdm__index *index, const tdm_json *object)
{
    uint64_t step = 0;
    if (!tdm_json_as_u64(tdm_json_get(object, "step"), &step))
        return true; /* another program wrote it */
    tdm_checkpoint_metrics metrics = {.loss = number_of(object, "test_loss"),
                                      .accuracy = number_of(object, "test_accuracy")};
    if (isnan(metrics.loss) && isnan(metrics.accuracy)) return true;
    return tdm__index_put(index, step, &metrics);
}

bool tdm__index_put(tdm__index *index, uint64_t step, const tdm_checkpoint_metrics *metrics)
{
    for (size_t i = 0; i < index->count; i++) {
        if (index->lines[i].step != step) continue;
        index->lines[i].metrics = *metrics;
        return true;
    }
    if (index->count == index->room) {
        size_t room = 2 * index->room + 16;
        tdm__index_line *more = realloc(index->lines, room * sizeof(*more));
        if (!more) return false;
        index->lines = more;
        index->room = room;
    }
    index->lines[index->count++] = (tdm__index_line){.step = step, .metrics = *metrics};
    return true;
}

tdm_checkpoint_metrics tdm__index_get(const tdm__index *index, uint64_t step)
{
    for (size_t i = 0; i < index->count; i++) {
        if (index->lines[i].step == step) return index->lines[i].metrics;
    }
    return (tdm_checkpoint_metrics){.loss = NAN, .accuracy = NAN};
}

void tdm__index_release(tdm__index *index)
{
    free(index->lines);
    *index = (tdm__index){0};
}

/* ---- reading ----------------------------------------------------------------------------------- */

/* Returns false if the file could not be read. That is not an error: the file can be rebuilt. */
static bool read_index(const char *path, tdm_arena *arena, tdm__index *out)
{
    tdm_file_bytes bytes = {0};
    const tdm_json *root = NULL;
    if (tdm_file_read(path, INDEX_LIMIT_BYTES, &bytes, NULL) != TDM_OK) return false;
    bool good = tdm_json_parse((const char *)bytes.data, bytes.count, arena, &root, NULL) == TDM_OK;
    const char *format = good ? tdm_json_as_string(tdm_json_get(root, "format")) : NULL;
    const tdm_json *steps = good ? tdm_json_get(root, "steps") : NULL;
    good = format && strcmp(format, INDEX_FORMAT) == 0 && steps && steps->type == TDM_JSON_ARRAY;
    for (const tdm_json *line = good ? steps->first : NULL; line; line = line->next) {
        if (!index_add(out, line)) good = false;
    }
    tdm_file_bytes_release(&bytes);
    return good;
}

/* Reads the evaluations from the metrics of a run. */
static void read_metrics(const char *path, tdm__index *out)
{
    tdm_file_bytes bytes = {0};
    if (!tdm_path_is_file(path)) return;
    if (tdm_file_read(path, METRICS_LIMIT_BYTES, &bytes, NULL) != TDM_OK) return;
    const char *at = (const char *)bytes.data, *end = at + bytes.count;
    tdm_arena *arena = tdm_arena_create("line");
    while (arena && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t length = newline ? (size_t)(newline - at) : 0;
        const tdm_json *object = NULL;
        if (length > 0 && memmem(at, length, "\"test_", 6) &&
            tdm_json_parse(at, length, arena, &object, NULL) == TDM_OK && !index_add(out, object)) {
            break;
        }
        if (!newline) break; /* truncated because the writer was killed */
        tdm_arena_reset(arena);
        at = newline + 1;
    }
    tdm_arena_destroy(arena);
    tdm_file_bytes_release(&bytes);
}

tdm_status tdm__index_read(const char *dir, tdm_arena *arena, tdm__index *out, tdm_error *err)
{
    *out = (tdm__index){0};
    const char *path = tdm_path_join(arena, dir, TDM__INDEX_NAME);
    const char *metrics = tdm_arena_printf(arena, "%s/../metrics.jsonl", dir);
    if (!path || !metrics) return tdm_fail_oom(err, "for %s", dir);
    if (read_index(path, arena, out)) return TDM_OK;
    out->count = 0;
    read_metrics(metrics, out);
    return TDM_OK;
}

/* ---- writing ----------------------------------------------------------------------------------- */

static bool has_file(const tdm_checkpoint_entry *entries, size_t count, uint64_t step)
{
    for (size_t i = 0; i < count; i++) {
        if (entries[i].step == step) return true;
    }
    return false;
}

/* Omits the lines of checkpoints that no longer exist. */
static tdm_status write_index(const char *dir, tdm_arena *arena, const tdm__index *index,
                              tdm_error *err)
{
    tdm_checkpoint_entry *entries = NULL;
    size_t count = 0;
    TDM_TRY(tdm_checkpoint_list(dir, arena, &entries, &count, err));
    const char *path = tdm_path_join(arena, dir, TDM__INDEX_NAME);
    tdm_str text = TDM_STR_INIT;
    tdm_json_writer w = tdm_json_writer_init(&text, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_string(&w, "format", INDEX_FORMAT);
    tdm_json_key(&w, "steps");
    tdm_json_array_begin(&w);
    for (size_t i = 0; i < index->count; i++) {
        const tdm__index_line *line = &index->lines[i];
        if (!has_file(entries, count, line->step)) continue;
        tdm_json_object_begin(&w);
        tdm_json_put_uint(&w, "step", line->step);
        tdm_json_put_double(&w, "test_loss", line->metrics.loss); /* null is NaN */
        tdm_json_put_double(&w, "test_accuracy", line->metrics.accuracy);
        tdm_json_object_end(&w);
    }
    tdm_json_array_end(&w);
    tdm_json_object_end(&w);
    tdm_str_add_char(&text, '\n');
    tdm_status status = path && tdm_str_ok(&text)
                            ? tdm_file_replace(path, text.data, text.length, err)
                            : tdm_fail_oom(err, "for %s", dir);
    tdm_str_release(&text);
    return status;
}

tdm_status tdm_checkpoint_note(const char *dir, uint64_t step,
                               const tdm_checkpoint_metrics *metrics, tdm_error *err)
{
    if (isnan(metrics->loss) && isnan(metrics->accuracy)) return TDM_OK;
    tdm_arena *arena = tdm_arena_create("index");
    if (!arena) return tdm_fail_oom(err, "for %s", dir);
    tdm__index index = {0};
    tdm_status status = tdm__index_read(dir, arena, &index, err);
    if (status == TDM_OK && !tdm__index_put(&index, step, metrics)) {
        status = tdm_fail_oom(err, "for %s", dir);
    }
    if (status == TDM_OK) status = write_index(dir, arena, &index, err);
    tdm__index_release(&index);
    tdm_arena_destroy(arena);
    return status;
}
