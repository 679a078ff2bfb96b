/*
 * model.c: warnings on the terminal, checks of paths on the command line, and loading of data for a model.
 */
#include "model.h"

#include <string.h>

static void print_warning(const tdm_log_record *record, void *user)
{
    (void)user;
    cli_warn("%s", record->message);
}

void cli_show_warnings(void)
{
    /* This fails if there are too many sinks; the command then runs without warnings. */
    (void)tdm_log_add_sink(print_warning, NULL, TDM_LOG_WARN);
}

int cli_check_model(const char *path)
{
    tdm_error err;
    tdm_status status = tdm_run_check(path, &err);
    if (status == TDM_OK) return CLI_OK;
    int code = cli_fail(&err);
    return status == TDM_ERR_NOT_FOUND || status == TDM_ERR_INVALID ? CLI_USAGE : code;
}

int cli_check_run(const char *command, const char *path)
{
    tdm_arena *arena = tdm_arena_create("check");
    char *job = arena ? tdm_path_join(arena, path, "job.yaml") : NULL;
    bool is_run = *path && job && tdm_path_is_file(job);
    tdm_arena_destroy(arena);
    if (is_run) return CLI_OK;
    if (tdm_path_is_dir(path))
        cli_error("%s: '%s' is not a run: it has no job.yaml", command, path);
    else if (tdm_path_exists(path))
        cli_error("%s: '%s' is a file, not a run directory (example: runs/digits-1)", command,
                  path);
    else
        cli_error("%s: run directory '%s' does not exist (example: runs/digits-1)", command, path);
    return CLI_USAGE;
}

int cli_check_data(const char *command, const char *path)
{
    if (tdm_path_exists(path) && !tdm_path_is_dir(path)) return CLI_OK;
    if (tdm_path_is_dir(path))
        cli_error("%s: '%s' is a directory; give a data file", command, path);
    else
        cli_error("%s: file '%s' does not exist", command, path);
    return CLI_USAGE;
}

tdm_status cli_load_samples(const tdm_model *model, const char *path, const char *labels,
                            tdm_dataset **out, tdm_error *err)
{
    int64_t features = tdm_shape_elements(&tdm_model_content(model)->sample_shape);
    tdm_data_options options = tdm_model_data_options(model);
    options.labels_path = labels;
    options.feature_count = features; /* only tables use it */
    tdm_dataset *dataset;
    TDM_TRY(tdm_dataset_load(path, &options, &dataset, err));
    int64_t found = tdm_dataset_info_of(dataset)->feature_count;
    bool is_sparse = tdm_dataset_info_of(dataset)->kind == TDM_DATA_KIND_SPARSE;
    if (found != features && !is_sparse) {
        tdm_dataset_destroy(dataset);
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s: the file has %lld numbers per sample, but the model expects %lld",
                        path, (long long)found, (long long)features);
    }
    *out = dataset;
    return TDM_OK;
}

bool cli_is_checkpoint(const tdm_safetensors *file)
{
    const char *format = tdm_safetensors_metadata(file, "format");
    return format && strncmp(format, "tandem-checkpoint-", strlen("tandem-checkpoint-")) == 0;
}
