/*
 * features.c: how the features of a sample become keys and values, and how the rows of its features become the input of
 * the model. All arithmetic is in f32, each operation rounded separately, in the order of the entries.
 */
#include "base/base.h"
#include "sparse/internal.h"

#include <assert.h>

tdm__sparse_features tdm__sparse_features_of(const tdm_job *job)
{
    return (tdm__sparse_features){.columns = tdm_job_columns_of(job),
                                  .hash_bits = (int)job->table.hash_bits,
                                  .is_criteo = job->data.format == TDM_JOB_FORMAT_CRITEO};
}

tdm_table_options tdm__sparse_table_options(const tdm_job *job, int rank_count)
{
    static const int methods[] = {[TDM_JOB_TABLE_SGD] = TDM_TABLE_OPTIM_SGD,
                                  [TDM_JOB_TABLE_ADAGRAD] = TDM_TABLE_OPTIM_ADAGRAD,
                                  [TDM_JOB_TABLE_FTRL] = TDM_TABLE_OPTIM_FTRL,
                                  [TDM_JOB_TABLE_ADAM] = TDM_TABLE_OPTIM_ADAM};
    bool is_ftrl = job->table.optim == TDM_JOB_TABLE_FTRL;
    bool is_random = tdm_job_columns_of(job).dim > 0 && job->table.init_scale > 0;
    return (tdm_table_options){.name = "table",
                               .seed = (uint64_t)job->seed,
                               .width = tdm_job_columns_of(job).row_width,
                               .optim = methods[job->table.optim],
                               .init = is_random ? TDM_TABLE_INIT_UNIFORM : TDM_TABLE_INIT_ZERO,
                               .init_scale = is_random ? job->table.init_scale : 0,
                               .weight_decay = is_ftrl ? 0 : job->table.weight_decay,
                               .l1 = is_ftrl ? job->table.l1 : 0,
                               .l2 = is_ftrl ? job->table.l2 : 0,
                               .beta = is_ftrl ? job->table.beta : 0,
                               .admission = (uint32_t)job->table.admission,
                               .limit_bytes = (uint64_t)job->table.limit / (unsigned)rank_count};
}

float tdm__sparse_feature_value(const tdm__sparse_features *f, uint64_t key, float value)
{
    enum { FIRST_CATEGORY = 14 };
    if (!f->is_criteo || key >> 32 >= FIRST_CATEGORY) return value;
    double number = (double)value;
    return number < 0 ? (float)-tdm_math_log(1 - number) : (float)tdm_math_log(1 + number);
}

void tdm__sparse_entry_add(const tdm_job_columns *c, int64_t field, float value, const float *row,
                           float *restrict x)
{
    const float *vector = row + c->weight;
    if (c->weight) x[c->wide] += value * row[0];
    if (c->sums >= 0) {
        float *restrict sums = x + c->sums, *restrict squares = x + c->squares;
        for (int64_t d = 0; d < c->dim; d++) {
            float product = value * vector[d];
            sums[d] += product;
            squares[d] += product * product;
        }
    }
    if (c->fields >= 0) {
        float *restrict sums = x + c->fields + (field - c->first_field) * c->dim;
        for (int64_t d = 0; d < c->dim; d++) sums[d] += value * vector[d];
    }
}

void tdm__sparse_entry_gradient(const tdm_job_columns *c, int64_t field, float value,
                                const float *row, const float *d_x, float *restrict d_row)
{
    const float *vector = row + c->weight;
    float *restrict d_vector = d_row + c->weight;
    if (c->weight) d_row[0] += value * d_x[c->wide];
    if (c->sums >= 0) {
        const float *d_sums = d_x + c->sums, *d_squares = d_x + c->squares;
        for (int64_t d = 0; d < c->dim; d++) {
            float product = value * vector[d];
            d_vector[d] += value * (d_sums[d] + 2.0f * product * d_squares[d]);
        }
    }
    if (c->fields >= 0) {
        const float *d_sums = d_x + c->fields + (field - c->first_field) * c->dim;
        for (int64_t d = 0; d < c->dim; d++) d_vector[d] += value * d_sums[d];
    }
}

/* ---- inference in a single process ---------------------------------------------------------------- */

void tdm_sparse_read(const tdm_sparse *sparse, const tdm_dataset *dataset, const int64_t *indices,
                     int64_t count, float *x, int32_t *classes)
{
    const tdm__sparse_features *f = &sparse->features;
    const tdm_job_columns *c = &f->columns;
    float row[TDM_TABLE_MAX_WIDTH];
    assert(sparse->size == 1 && c->row_width <= TDM_TABLE_MAX_WIDTH);
    for (int64_t i = 0; i < count; i++, x += c->columns) {
        const uint64_t *keys;
        const float *values;
        int64_t entries = tdm_dataset_entries(dataset, indices[i], &keys, &values);
        for (int64_t k = 0; k < c->columns; k++) x[k] = 0;
        for (int64_t e = 0; e < entries; e++) {
            int64_t field = (int64_t)(keys[e] >> 32);
            float value = tdm__sparse_feature_value(f, keys[e], values[e]);
            if (!tdm__sparse_feature_is_key(f, keys[e])) {
                x[c->numbers + field - 1] = value;
                continue;
            }
            uint64_t key = tdm__sparse_feature_key(f, keys[e]);
            tdm_table_pull(sparse->table, &key, 1, row);
            tdm__sparse_entry_add(c, field, value, row, x);
        }
        if (classes) classes[i] = tdm_dataset_class(dataset, indices[i]);
    }
}
