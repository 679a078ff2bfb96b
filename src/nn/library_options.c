/*
 * library_options.c: validates a job's options for a library's model against the library's table.
 *
 * Everything is checked before the model is built: unknown names, values of the wrong type or out
 * of range, missing values. So the model can read an option without checks.
 */
#include "nn/internal.h"

#include <string.h>

#include <tandem/text.h>

static const tdm_library_option *find_row(const tdm_model_library *model, const char *name)
{
    for (size_t i = 0; i < model->option_count; i++)
        if (strcmp(model->options[i].name, name) == 0) return &model->options[i];
    return NULL;
}

static const char *given_value(const tdm_job *job, const char *name)
{
    for (size_t i = 0; i < job->model.options.count; i++)
        if (strcmp(job->model.options.items[i].name, name) == 0)
            return job->model.options.items[i].value;
    return NULL;
}

/* ---- values ----------------------------------------------------------------------------------- */

typedef struct value {
    int64_t whole;
    double real;
    bool truth;
} value;

static bool in_range(const tdm_library_option *row, double number)
{
    bool is_any = row->min == 0 && row->max == 0;
    return is_any || (number >= row->min && number <= row->max);
}

/* Numbers are written as in JSON, independent of the locale. */
static bool read_number(const tdm_library_option *row, const char *text, value *out)
{
    tdm_arena *arena = tdm_arena_create("an option");
    const tdm_json *json;
    bool ok = arena && tdm_json_parse(text, strlen(text), arena, &json, NULL) == TDM_OK &&
              json->type == TDM_JSON_NUMBER;
    if (ok && row->type == TDM_LIBRARY_TYPE_INT) ok = tdm_json_as_i64(json, &out->whole);
    if (ok) out->real = json->number;
    tdm_arena_destroy(arena);
    return ok && in_range(row, out->real);
}

static bool read_value(const tdm_library_option *row, const char *text, value *out)
{
    switch (row->type) {
    case TDM_LIBRARY_TYPE_INT:
    case TDM_LIBRARY_TYPE_REAL: return read_number(row, text, out);
    case TDM_LIBRARY_TYPE_BOOL:
        out->truth = strcmp(text, "true") == 0;
        return out->truth || strcmp(text, "false") == 0;
    case TDM_LIBRARY_TYPE_TEXT: return true;
    }
    return false;
}

static void add_wanted(const tdm_library_option *row, tdm_str *out)
{
    static const char *const words[] = {
        [TDM_LIBRARY_TYPE_INT] = "a whole number",
        [TDM_LIBRARY_TYPE_REAL] = "a number",
        [TDM_LIBRARY_TYPE_BOOL] = "true or false",
        [TDM_LIBRARY_TYPE_TEXT] = "a text",
    };
    bool is_number = row->type == TDM_LIBRARY_TYPE_INT || row->type == TDM_LIBRARY_TYPE_REAL;
    tdm_str_add(out, words[row->type]);
    if (is_number && (row->min != 0 || row->max != 0))
        tdm_str_addf(out, " from %g to %g", row->min, row->max);
}

/* ---- checks ----------------------------------------------------------------------------------- */

static const char *row_name(size_t index, const void *user)
{
    return ((const tdm_model_library *)user)->options[index].name;
}

static tdm_status fail_unknown(const tdm_model_library *model, const char *name, tdm_error *err)
{
    if (model->option_count == 0)
        return tdm_fail(err, TDM_ERR_JOB_INVALID,
                        "model.options: the model %s takes no options; leave out '%s'", model->name,
                        name);
    const char *near = tdm_text_nearest(name, model->option_count, row_name, model);
    tdm_str text = TDM_STR_INIT;
    if (near) tdm_str_addf(&text, "did you mean '%s'? ", near);
    tdm_str_addf(&text, "the model %s takes ", model->name);
    for (size_t i = 0; i < model->option_count; i++)
        tdm_str_addf(&text, "%s%s", i > 0 ? ", " : "", model->options[i].name);
    tdm_status status = tdm_fail(err, TDM_ERR_JOB_INVALID, "model.options: unknown option '%s'; %s",
                                 name, tdm_str_text(&text));
    tdm_str_release(&text);
    return status;
}

static tdm_status check_row(const tdm_job *job, const tdm_model_library *model,
                            const tdm_library_option *row, tdm_error *err)
{
    const char *given = given_value(job, row->name);
    const char *text = given ? given : row->fallback;
    value v;
    if (text && read_value(row, text, &v)) return TDM_OK;
    tdm_str wanted = TDM_STR_INIT;
    add_wanted(row, &wanted);
    tdm_status status;
    if (!text)
        status = tdm_fail(err, TDM_ERR_JOB_INVALID,
                          "model.options: the model %s needs '%s', %s; set it", model->name,
                          row->name, tdm_str_text(&wanted));
    else if (given)
        status = tdm_fail(err, TDM_ERR_JOB_INVALID, "model.options: '%s' expects %s, got '%s'",
                          row->name, tdm_str_text(&wanted), given);
    else
        status = tdm_fail(err, TDM_ERR_FORMAT,
                          "the model's table has the default '%s' for '%s', which expects %s", text,
                          row->name, tdm_str_text(&wanted));
    tdm_str_release(&wanted);
    return status;
}

tdm_status tdm__library_check_options(const tdm_job *job, const tdm_model_library *model,
                                      tdm_error *err)
{
    for (size_t i = 0; i < job->model.options.count; i++) {
        const char *name = job->model.options.items[i].name;
        if (!find_row(model, name)) return fail_unknown(model, name, err);
    }
    for (size_t i = 0; i < model->option_count; i++)
        TDM_TRY(check_row(job, model, &model->options[i], err));
    return TDM_OK;
}

/* ---- functions for the model ------------------------------------------------------------------ */

/* The text of an option, parsed into `out`; NULL after an error. */
static const char *option_read(tdm_graph *graph, const tdm_model_options *o, const char *name,
                               tdm_library_type type, value *out)
{
    const tdm_library_option *row = o->library ? find_row(o->library, name) : NULL;
    *out = (value){0};
    if (!row || row->type != type) {
        tdm_graph_refuse(graph, "it reads an option '%s' that its table does not have%s", name,
                         row ? " with this type" : "");
        return NULL;
    }
    const char *given = given_value(o->job, name);
    const char *text = given ? given : row->fallback;
    if (text && read_value(row, text, out)) return text;
    tdm_graph_refuse(graph, "its option '%s' cannot be read", name);
    *out = (value){0};
    return NULL;
}

int64_t tdm_library_int(tdm_graph *graph, const tdm_model_options *options, const char *name)
{
    value v;
    option_read(graph, options, name, TDM_LIBRARY_TYPE_INT, &v);
    return v.whole;
}

double tdm_library_real(tdm_graph *graph, const tdm_model_options *options, const char *name)
{
    value v;
    option_read(graph, options, name, TDM_LIBRARY_TYPE_REAL, &v);
    return v.real;
}

bool tdm_library_bool(tdm_graph *graph, const tdm_model_options *options, const char *name)
{
    value v;
    option_read(graph, options, name, TDM_LIBRARY_TYPE_BOOL, &v);
    return v.truth;
}

const char *tdm_library_text(tdm_graph *graph, const tdm_model_options *options, const char *name)
{
    value v;
    const char *text = option_read(graph, options, name, TDM_LIBRARY_TYPE_TEXT, &v);
    return text ? text : "";
}
