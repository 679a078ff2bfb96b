/*
 * library.c: models from shared objects: opening and validating them.
 *
 * A library may be of any origin and version, so everything is checked: the file's hash against the
 * job's, the table against the supported version, the logits against the loss, and the parameters
 * against those of the same model in inference. The last check protects memory: all graphs of a
 * model use one block of parameters, and one with more parameters than the others would write past
 * its end.
 */
#include "nn/internal.h"

#include <string.h>

#include <tandem/os.h>

typedef const tdm_model_library *(*entry_fn)(void);

/* ---- opening ---------------------------------------------------------------------------------- */

static tdm_status check_hash(const tdm_job *job, tdm_error *err)
{
    const char *path = job->model.library;
    char hex[TDM_SHA256_HEX];
    tdm_file_bytes bytes;
    if (!job->model.library_sha256) return TDM_OK;
    TDM_TRY(tdm_file_read(path, 0, &bytes, err));
    tdm_status status = tdm_sha256_of(bytes.data, bytes.count, hex);
    tdm_file_bytes_release(&bytes);
    if (status != TDM_OK) return tdm_fail(err, status, "%s: no memory to hash it", path);
    if (strcmp(hex, job->model.library_sha256) == 0) return TDM_OK;
    return tdm_fail(err, TDM_ERR_JOB_MISMATCH,
                    "%s: this is not the file that the model was trained with: its SHA-256 is %s, "
                    "that of the job is %s; restore that file, or train again with this one",
                    path, hex, job->model.library_sha256);
}

static tdm_status check_table(const tdm_model_library *model, const char *path, tdm_error *err)
{
    if (!model)
        return tdm_fail(err, TDM_ERR_FORMAT, "%s: its %s() returns no table", path,
                        TDM_LIBRARY_ENTRY);
    if (model->abi != TDM_LIBRARY_ABI)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "%s: it was compiled for version %d of the interface, but tandem %s has "
                        "version %d; compile it again with the headers of this tandem",
                        path, model->abi, tdm_version(), TDM_LIBRARY_ABI);
    bool is_whole = model->name && model->name[0] && model->build &&
                    (model->options || model->option_count == 0);
    for (size_t i = 0; is_whole && i < model->option_count; i++)
        is_whole = model->options[i].name && model->options[i].type >= TDM_LIBRARY_TYPE_INT &&
                   model->options[i].type <= TDM_LIBRARY_TYPE_TEXT;
    if (!is_whole)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: the table of its model is incomplete: it needs a name, build, and "
                        "for each option a name and a type",
                        path);
    return TDM_OK;
}

/* Opens the file and finds its table. */
static tdm_status open_table(const char *path, tdm__library *out, tdm_error *err)
{
    tdm__library library = {0};
    TDM_TRY(tdm_shared_object_open(path, &library.object, err));
    void *symbol = tdm_shared_object_find(&library.object, TDM_LIBRARY_ENTRY);
    tdm_status status = TDM_OK;
    if (!symbol) {
        status = tdm_fail(err, TDM_ERR_FORMAT,
                          "%s: it exports no function %s, so it has no model for tandem; see "
                          "<tandem/library.h>",
                          path, TDM_LIBRARY_ENTRY);
    } else {
        entry_fn entry;
        memcpy(&entry, &symbol, sizeof(entry)); /* C does not convert data pointers to function
                                                 * pointers */
        library.model = entry();
        status = check_table(library.model, path, err);
    }
    if (status != TDM_OK) {
        tdm_shared_object_close(&library.object);
        return status;
    }
    *out = library;
    return TDM_OK;
}

tdm_status tdm__library_open(const tdm_job *job, tdm__library *out, tdm_error *err)
{
    const char *path = job->model.library;
    if (!path)
        return tdm_fail(err, TDM_ERR_JOB_INVALID,
                        "model.kind is library, but model.library is not set");
    if (!tdm_path_is_file(path))
        return tdm_fail(err, TDM_ERR_NOT_FOUND,
                        "%s: the model's shared object is missing; restore it, or set "
                        "model.library",
                        path);
    TDM_TRY(check_hash(job, err));
    tdm__library library;
    TDM_TRY(open_table(path, &library, err));
    tdm_status status = tdm__library_check_options(job, library.model, err);
    if (status != TDM_OK) {
        tdm_shared_object_close(&library.object);
        return tdm_error_context(err, status, "%s", path);
    }
    *out = library;
    return TDM_OK;
}

bool tdm__library_takes_tokens(const tdm_job *job)
{
    tdm__library library;
    if (!job->model.library || open_table(job->model.library, &library, NULL) != TDM_OK)
        return false; /* tdm_model_check reports the reason */
    bool takes_tokens = library.model->takes_tokens;
    tdm_shared_object_close(&library.object);
    return takes_tokens;
}

/* ---- validation of the graph ------------------------------------------------------------------ */

void tdm__library_check_logits(tdm_graph *graph, const tdm_model_options *o, tdm_value logits)
{
    char got[128], wanted[128];
    if (tdm_graph_check(graph, NULL) != TDM_OK) return;
    if (logits.id == 0) {
        tdm_graph_refuse(graph, "its build() returned no value; it must return the logits");
        return;
    }
    tdm_shape shape = tdm_graph_shape(graph, logits);
    tdm_shape wants = tdm_shape_2(o->batch, o->class_count);
    if (o->library->takes_tokens)
        wants = tdm_shape_3(o->batch, o->sample_shape.dim[0], o->class_count);
    tdm_shape compared = shape;
    bool may_be_wider = o->library->takes_tokens && shape.rank == 3;
    if (may_be_wider && shape.dim[2] > wants.dim[2]) compared.dim[2] = wants.dim[2];
    if (tdm_graph_dtype(graph, logits) == TDM_DTYPE_F32 && tdm_shape_equal(&compared, &wants))
        return;
    tdm_graph_refuse(graph, "its build() returned %s %s; the logits must be f32 %s",
                     tdm_dtype_name(tdm_graph_dtype(graph, logits)), tdm_shape_text(&shape, got),
                     tdm_shape_text(&wants, wanted));
}

static bool same_param(const tdm_param_info *a, const tdm_param_info *b)
{
    return strcmp(a->name, b->name) == 0 && tdm_shape_equal(&a->shape, &b->shape) &&
           a->trained == b->trained && a->statistic == b->statistic && a->momentum == b->momentum &&
           a->init.kind == b->init.kind && a->init.scale == b->init.scale;
}

tdm_status tdm__library_compare(const tdm_graph *graph, const tdm_graph *reference,
                                const tdm_model_options *o, tdm_error *err)
{
    size_t count = tdm_graph_param_count(graph), wanted = tdm_graph_param_count(reference);
    size_t same = 0;
    while (same < count && same < wanted &&
           same_param(tdm_graph_param_at(graph, same), tdm_graph_param_at(reference, same)))
        same++;
    if (same == count && same == wanted) return TDM_OK;
    const tdm_param_info *first = same < count ? tdm_graph_param_at(graph, same)
                                               : tdm_graph_param_at(reference, same);
    return tdm_fail(err, TDM_ERR_INVALID,
                    "%s with %lld rows it creates different parameters than in inference with one "
                    "row, from '%s' on; they must not depend on options->batch or "
                    "options->training",
                    o->training ? "in training" : "in inference", (long long)o->batch, first->name);
}
