/*
 * checkpoint_diff.c: `tandem checkpoint diff`: compares two states, tensor by tensor.
 *
 * Numbers are compared by their bits: two NaNs with the same bits are equal, and 0 and -0 are not. The
 * size of a difference is printed for floating types only. Checkpoints are verified first; of a
 * safetensors file from another program only the tensors are compared.
 */
#include "checkpoint.h"
#include "model.h"
#include "table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LINES_SHOWN = 40 };

typedef struct side {
    char *path;
    tdm_safetensors *file;
    tdm_checkpoint *checkpoint;            /* NULL: not a checkpoint of Tandem */
    const tdm_checkpoint_content *content; /* of it */
    char hash[TDM_SHA256_HEX];
} side;

static void side_release(side *s)
{
    tdm_safetensors_destroy(s->file);
    tdm_checkpoint_destroy(s->checkpoint);
}

typedef struct side_reader {
    tdm_arena *arena;
    side *side;
} side_reader;

static tdm_status side_read(const char *path, void *user, tdm_error *err)
{
    const side_reader *reader = user;
    side *s = reader->side;
    tdm_position position = {0};
    side_release(s); /* a retry after a file was pruned */
    *s = (side){.path = tdm_arena_strdup(reader->arena, path)};
    if (!s->path) return tdm_fail(err, TDM_ERR_NO_MEMORY, "checkpoint diff: out of memory");
    TDM_TRY(tdm_safetensors_open(path, &s->file, err));
    if (cli_is_checkpoint(s->file)) {
        TDM_TRY(tdm_checkpoint_open(path, &s->checkpoint, err));
        s->content = tdm_checkpoint_content_of(s->checkpoint);
        position = s->content->position;
    }
    return tdm_state_hash(&position, tdm_safetensors_at(s->file, 0), tdm_safetensors_count(s->file),
                          s->hash, err);
}

static int side_open(const char *name, tdm_arena *arena, side *s)
{
    side_reader reader = {.arena = arena, .side = s};
    return cli_checkpoint_read(name, arena, side_read, &reader);
}

/* ---- one tensor --------------------------------------------------------------------------------- */

typedef struct difference {
    const char *name;
    const char *what; /* a description if numbers cannot be compared; NULL otherwise */
    uint64_t count, of;
    bool has_largest; /* floating types */
    double largest;   /* of the finite differences */
    uint64_t not_finite;
} difference;

static double number_at(const tdm_tensor *tensor, size_t index)
{
    const char *at = (const char *)tensor->data + index * tdm_dtype_bytes(tensor->dtype);
    if (tensor->dtype == TDM_DTYPE_F64) {
        double value;
        memcpy(&value, at, sizeof(value));
        return value;
    }
    float value = 0;
    return tdm_tensor_to_f32(tensor->dtype, at, 1, &value) ? (double)value : (double)NAN;
}

/* Compares two tensors, fills `d`, whose name is already set, and returns whether they differ. */
static bool tensor_compare(const tdm_tensor *a, const tdm_tensor *b, difference *d)
{
    if (a->dtype != b->dtype) d->what = "different types";
    if (!tdm_shape_equal(&a->shape, &b->shape)) d->what = "different shapes";
    if (d->what) return true;
    size_t bytes = tdm_dtype_bytes(a->dtype), count = tdm_tensor_bytes(a) / bytes;
    if (count == 0 || memcmp(a->data, b->data, count * bytes) == 0) return false;
    float probe[1] = {0};
    bool floating = a->dtype == TDM_DTYPE_F64 || tdm_tensor_to_f32(a->dtype, probe, 0, probe);
    d->of = count;
    d->has_largest = floating;
    const char *x = a->data, *y = b->data;
    for (size_t i = 0; i < count; i++) {
        if (memcmp(x + i * bytes, y + i * bytes, bytes) == 0) continue;
        d->count++;
        if (!floating) continue;
        double apart = fabs(number_at(a, i) - number_at(b, i));
        if (!isfinite(apart))
            d->not_finite++;
        else if (apart > d->largest)
            d->largest = apart;
    }
    return true;
}

/* ---- all of them -------------------------------------------------------------------------------- */

/* Compares the tensors of both in order of name; `out` has room for all. */
static size_t compare_all(const side *a, const side *b, difference *out)
{
    size_t n = 0, i = 0, k = 0;
    while (i < tdm_safetensors_count(a->file) || k < tdm_safetensors_count(b->file)) {
        const tdm_named_tensor *x = tdm_safetensors_at(a->file, i);
        const tdm_named_tensor *y = tdm_safetensors_at(b->file, k);
        int order = !x ? 1 : !y ? -1 : strcmp(x->name, y->name);
        difference d = {.name = order <= 0 ? x->name : y->name};
        if (order != 0) {
            d.what = order < 0 ? "only in the first" : "only in the second";
            out[n++] = d;
        } else if (tensor_compare(&x->tensor, &y->tensor, &d)) {
            out[n++] = d;
        }
        i += order <= 0;
        k += order >= 0;
    }
    return n;
}

static const struct {
    const char *name;
    size_t offset;
} fields[] = {{"step", offsetof(tdm_position, step)},
              {"epoch", offsetof(tdm_position, epoch)},
              {"position", offsetof(tdm_position, position)},
              {"samples", offsetof(tdm_position, samples)},
              {"seed", offsetof(tdm_position, seed)}};

static uint64_t field_of(const side *s, size_t field)
{
    uint64_t value = 0;
    if (s->content)
        memcpy(&value, (const char *)&s->content->position + fields[field].offset, sizeof(value));
    return value;
}

static bool has_line(const char *text, const char *line, size_t length)
{
    for (const char *at = text; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL) {
        size_t its = strcspn(at, "\n");
        if (its == length && strncmp(at, line, length) == 0) return true;
    }
    return false;
}

/* Adds the lines of one job that are not in the other. */
static void add_lines(const char *text, const char *other, char mark, tdm_str *out)
{
    int shown = 0;
    for (const char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        size_t length = strcspn(at, "\n");
        if (has_line(other, at, length) || ++shown > LINES_SHOWN) continue;
        tdm_str line = TDM_STR_INIT;
        tdm_str_add_bytes(&line, at, length);
        tdm_str_addf(out, "    %c ", mark);
        cli_add_shown(out, tdm_str_text(&line), 0);
        tdm_str_add_char(out, '\n');
        tdm_str_release(&line);
    }
}

static bool jobs_differ(const side *a, const side *b)
{
    return a->content && b->content && strcmp(a->content->job_hash, b->content->job_hash) != 0;
}

static bool data_differ(const side *a, const side *b)
{
    const char *x = a->content ? a->content->data_hash : NULL;
    const char *y = b->content ? b->content->data_hash : NULL;
    return x && y && strcmp(x, y) != 0;
}

static void add_table(const difference *all, size_t count, tdm_str *out)
{
    static const cli_column columns[] = {{.title = "tensor", .max = 60},
                                         {.title = "differ", .right = true},
                                         {.title = "of", .right = true},
                                         {.title = "by at most", .right = true},
                                         {.title = ""}};
    cli_table table;
    cli_table_init(&table, columns, 5);
    for (size_t i = 0; i < count; i++) {
        const difference *d = &all[i];
        cli_table_cell(&table, "%s", d->name);
        char count_text[32] = "", of_text[32] = "", largest_text[32] = "";
        if (!d->what) {
            snprintf(count_text, sizeof(count_text), "%llu", (unsigned long long)d->count);
            snprintf(of_text, sizeof(of_text), "%llu", (unsigned long long)d->of);
        }
        if (d->has_largest) snprintf(largest_text, sizeof(largest_text), "%.6g", d->largest);
        cli_table_cell(&table, "%s", count_text);
        cli_table_cell(&table, "%s", of_text);
        cli_table_cell(&table, "%s", largest_text);
        cli_table_cell(&table, "%s", d->what ? d->what : d->not_finite ? "non-finite" : "");
    }
    cli_table_print(&table, 2, out);
}

static void add_text(const side *a, const side *b, const difference *all, size_t count,
                     tdm_str *out)
{
    bool same = strcmp(a->hash, b->hash) == 0;
    tdm_str_addf(out, "first   %s  %s\nsecond  %s  %s\n", a->hash, a->path, b->hash, b->path);
    if (same && !jobs_differ(a, b) && !data_differ(a, b)) {
        tdm_str_add(out, "the states are bit-identical\n");
        return;
    }
    if (same) tdm_str_add(out, "the states are bit-identical, but their jobs or data differ\n");
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (field_of(a, i) != field_of(b, i))
            tdm_str_addf(out, "%-9s %llu, %llu\n", fields[i].name,
                         (unsigned long long)field_of(a, i), (unsigned long long)field_of(b, i));
    if (data_differ(a, b)) tdm_str_add(out, "they were trained on different data\n");
    if (jobs_differ(a, b)) {
        tdm_str_add(out, "their jobs differ:\n");
        add_lines(a->content->job_yaml, b->content->job_yaml, '-', out);
        add_lines(b->content->job_yaml, a->content->job_yaml, '+', out);
    }
    if (count > 0) tdm_str_addf(out, "%zu tensors differ:\n", count);
    add_table(all, count, out);
}

static void add_json(const side *a, const side *b, const difference *all, size_t count, bool same,
                     tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_string(&w, "first", a->path);
    tdm_json_put_string(&w, "second", b->path);
    tdm_json_put_bool(&w, "same", same);
    tdm_json_put_bool(&w, "same_state", strcmp(a->hash, b->hash) == 0);
    tdm_json_put_bool(&w, "same_job", !jobs_differ(a, b));
    tdm_json_put_bool(&w, "same_data", !data_differ(a, b));
    tdm_json_key(&w, "position");
    tdm_json_object_begin(&w);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (field_of(a, i) == field_of(b, i)) continue;
        tdm_json_key(&w, fields[i].name);
        tdm_json_array_begin(&w);
        tdm_json_uint(&w, field_of(a, i));
        tdm_json_uint(&w, field_of(b, i));
        tdm_json_array_end(&w);
    }
    tdm_json_object_end(&w);
    tdm_json_key(&w, "tensors");
    tdm_json_array_begin(&w);
    for (size_t i = 0; i < count; i++) {
        tdm_json_object_begin(&w);
        tdm_json_put_string(&w, "name", all[i].name);
        if (all[i].what) tdm_json_put_string(&w, "what", all[i].what);
        if (!all[i].what) tdm_json_put_uint(&w, "differ", all[i].count);
        if (!all[i].what) tdm_json_put_uint(&w, "of", all[i].of);
        if (all[i].has_largest) tdm_json_put_double(&w, "largest", all[i].largest);
        if (all[i].not_finite) tdm_json_put_uint(&w, "not_finite", all[i].not_finite);
        tdm_json_object_end(&w);
    }
    tdm_json_array_end(&w);
    tdm_json_object_end(&w);
    tdm_str_add_char(out, '\n');
}

int cli_checkpoint_diff(const cli_args *args, tdm_arena *arena)
{
    if (args->argument_count != 3) {
        cli_error("checkpoint diff: expected two checkpoints; usage: tandem checkpoint diff A B");
        return CLI_USAGE;
    }
    side a = {.path = NULL}, b = {.path = NULL};
    bool same = false;
    int code = side_open(args->arguments[1], arena, &a);
    if (code == CLI_OK) code = side_open(args->arguments[2], arena, &b);
    if (code == CLI_OK) {
        size_t max = tdm_safetensors_count(a.file) + tdm_safetensors_count(b.file);
        difference *all = tdm_arena_array(arena, max + 1, sizeof(*all));
        size_t count = all ? compare_all(&a, &b, all) : 0;
        same = all && strcmp(a.hash, b.hash) == 0 && !jobs_differ(&a, &b) && !data_differ(&a, &b);
        tdm_str out = TDM_STR_INIT;
        if (cli_json(args))
            add_json(&a, &b, all, count, same, &out);
        else
            add_text(&a, &b, all, count, &out);
        code = cli_print(&out);
    }
    side_release(&a);
    side_release(&b);
    return code == CLI_OK && !same ? CLI_FAILED : code;
}
