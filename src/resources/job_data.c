/*
 * job_data.c: loads the data sets of a job and checks that they match.
 */
#include "job/job.h"
#include "nn/nn.h"
#include "resources/resources.h"

tdm_data_options tdm__job_data_options(const tdm_job *job, const char *labels_path)
{
    const char *delimiter = job->data.delimiter;
    return (tdm_data_options){
        .labels_path = labels_path,
        .format = job->data.format,
        .header = job->data.header,
        .label = job->data.label,
        .delimiter = delimiter && delimiter[0] && !delimiter[1] ? delimiter[0] : '\t',
        .kind = tdm_job_takes_sparse(job)     ? TDM_DATA_KIND_SPARSE
                : tdm_model_takes_tokens(job) ? TDM_DATA_KIND_TOKENS
                                              : TDM_DATA_KIND_TABLE,
        .context = job->model.context,
    };
}

static tdm_status train_data_check(const tdm_job *job, const tdm_dataset *set, tdm_error *err)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(set);
    if ((info->kind == TDM_DATA_KIND_TOKENS) != tdm_model_takes_tokens(job))
        return tdm_fail(err, TDM_ERR_JOB_INVALID,
                        "%s: %s; choose another model.kind or data.format", info->path,
                        info->kind == TDM_DATA_KIND_TOKENS
                            ? "it is read as text, but the model takes samples of numbers"
                            : "it is read as a table of numbers, but the model takes text");
    if (info->kind == TDM_DATA_KIND_TOKENS && info->class_count == 1)
        return tdm_fail(err, TDM_ERR_JOB_INVALID,
                        "%s: the text repeats a single character; there is nothing to learn",
                        info->path);
    if (info->class_count == 0)
        return tdm_fail(err, TDM_ERR_JOB_INVALID,
                        "%s: the training data has no labels; name their file in data.train_labels "
                        "(IDX) or their column in data.label (CSV)",
                        info->path);
    if (info->class_count == 1)
        return tdm_fail(
            err, TDM_ERR_JOB_INVALID,
            "%s: all samples have the same label, '%s'; is data.label the right column?",
            info->path, info->class_names[0]);
    return TDM_OK;
}

static tdm_status test_data_check(const tdm_dataset *train, const tdm_dataset *test, tdm_error *err)
{
    const tdm_dataset_info *a = tdm_dataset_info_of(train), *b = tdm_dataset_info_of(test);
    if (b->feature_count != a->feature_count && a->kind != TDM_DATA_KIND_SPARSE)
        return tdm_fail(err, TDM_ERR_JOB_INVALID,
                        "%s: %lld numbers per sample, but the training data has %lld", b->path,
                        (long long)b->feature_count, (long long)a->feature_count);
    if (b->class_count == 0)
        return tdm_fail(err, TDM_ERR_JOB_INVALID,
                        "%s: the test data has no labels; name their file in "
                        "data.test_labels",
                        b->path);
    if (b->class_count > a->class_count)
        return tdm_fail(err, TDM_ERR_JOB_INVALID,
                        "%s: %lld classes, but the training data has %lld", b->path,
                        (long long)b->class_count, (long long)a->class_count);
    return TDM_OK;
}

static tdm_status test_data_load(const tdm_job *job, tdm_job_data *data, tdm_error *err)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(data->train);
    tdm_data_options options = tdm__job_data_options(job, job->data.test_labels);
    options.class_names = info->class_names;
    options.class_count = info->class_count;
    options.stride = options.context; /* each token counts once */
    TDM_TRY(tdm_dataset_load(job->data.test, &options, &data->test, err));
    return test_data_check(data->train, data->test, err);
}

tdm_status tdm_job_data_load(const tdm_job *job, tdm_job_data *out, tdm_error *err)
{
    tdm_job_data data = {0};
    TDM_TRY(tdm_model_check(job, err)); /* determines how the data is read */
    tdm_data_options options = tdm__job_data_options(job, job->data.train_labels);
    tdm_status status = tdm_dataset_load(job->data.train, &options, &data.train, err);
    if (status == TDM_OK) status = train_data_check(job, data.train, err);
    if (status == TDM_OK && job->data.test_fraction > 0) {
        data.whole = data.train;
        data.train = NULL;
        status = tdm_dataset_split(data.whole, job->data.test_fraction, (uint64_t)job->seed,
                                   &data.train, &data.test, err);
    } else if (status == TDM_OK && job->data.test) {
        status = test_data_load(job, &data, err);
    }
    if (status != TDM_OK) {
        tdm_job_data_release(&data);
        return status;
    }
    *out = data;
    return TDM_OK;
}

void tdm_job_data_release(tdm_job_data *data)
{
    tdm_dataset_destroy(data->train);
    tdm_dataset_destroy(data->test);
    tdm_dataset_destroy(data->whole);
    *data = (tdm_job_data){0};
}

tdm_status tdm_job_sample_shape(const tdm_job *job, const tdm_dataset *dataset, tdm_shape *out,
                                tdm_error *err)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(dataset);
    tdm_shape shape = info->sample_shape;
    char text[128];
    if (tdm_job_takes_sparse(job)) {
        *out = tdm_shape_1(tdm_job_columns_of(job).columns);
        return TDM_OK;
    }
    if (job->data.shape.count > 0) {
        shape.rank = (int)job->data.shape.count;
        for (int i = 0; i < shape.rank; i++) shape.dim[i] = job->data.shape.values[i];
    }
    if (tdm_shape_elements(&shape) != info->feature_count)
        return tdm_fail(err, TDM_ERR_JOB_INVALID,
                        "data.shape: %s does not match the samples of %s, which have %lld values",
                        tdm_shape_text(&shape, text), info->path, (long long)info->feature_count);
    *out = shape;
    return TDM_OK;
}
