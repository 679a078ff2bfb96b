/*
 * model.c: warnings on the terminal, and data that fits a model.
 */
#include "model.h"

#include <string.h>

static void warn(const tdm_log_record *record, void *user)
{
    (void)user;
    cli_warn("%s", record->message);
}

void cli_show_warnings(void)
{
    /* When there is no room for one more listener, a warning is not worth failing for. */
    (void)tdm_log_add_sink(warn, NULL, TDM_LOG_WARN);
}

tdm_status cli_load_samples(const tdm_model *model, const char *path, const char *labels,
                            tdm_dataset **out, tdm_error *err)
{
    int64_t features = tdm_shape_elements(&tdm_model_content(model)->sample_shape);
    tdm_data_options options = tdm_model_data_options(model);
    options.labels_path = labels;
    options.feature_count = features;
    tdm_dataset *dataset;
    TDM_TRY(tdm_dataset_load(path, &options, &dataset, err));
    int64_t found = tdm_dataset_info_of(dataset)->feature_count;
    if (found != features) {
        tdm_dataset_destroy(dataset);
        return tdm_fail(err, TDM_ERR_INVALID, "%s: %lld numbers a sample, but the model takes %lld",
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
