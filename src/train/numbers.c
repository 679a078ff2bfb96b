/*
 * numbers.c: messages about the origin of non-finite values.
 *
 * The text depends on the job, the data and the step only, not on the number of workers, so that the
 * messages of two runs can be compared.
 */
#include "data/data.h"
#include "train/internal.h"

#include <stdio.h>

/* Appends "sample 17 of data.csv", numbered as in the file. */
static void add_sample(tdm_str *out, const tdm_dataset *train, int64_t index)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(train);
    tdm_str_addf(out, "%s %lld of %s", info->kind == TDM_DATA_KIND_TOKENS ? "window" : "sample",
                 (long long)tdm_dataset_number(train, index), info->path);
}

static void add_rows(tdm_str *out, const tdm_bad_number *bad, const tdm_dataset *train,
                     int64_t index)
{
    tdm_str_addf(out, " in lane %lld", (long long)bad->lane);
    if (bad->bad_rows == 0) return;
    if (bad->bad_rows == 1) {
        tdm_str_add(out, ", for ");
    } else if (bad->bad_rows == bad->rows.count) {
        tdm_str_addf(out, ", for all of its %lld samples, the first being ",
                     (long long)bad->rows.count);
    } else {
        tdm_str_addf(out, ", for %lld of its %lld samples, the first being ",
                     (long long)bad->bad_rows, (long long)bad->rows.count);
    }
    add_sample(out, train, index);
}

void tdm__bad_number_text(const tdm_bad_number *bad, const tdm_dataset *train, int64_t index,
                          tdm_str *out)
{
    const char *what = bad->is_nan ? "a NaN" : "an infinity";
    switch (bad->kind) {
    case TDM_BAD_NOWHERE:
        tdm_str_add(out, "the same step gives finite values when run again, so this machine "
                         "computed something else before");
        break;
    case TDM_BAD_PARAM:
        tdm_str_addf(out, "'%s' contained %s before this step", bad->name, what);
        break;
    case TDM_BAD_DATA:
        tdm_str_addf(out, "the data contains %s", what);
        add_rows(out, bad, train, index);
        break;
    case TDM_BAD_OP:
        tdm_str_addf(out, "%s was first produced by %s (%s, %s)", what, bad->name, bad->op,
                     bad->backward ? "backward" : "forward");
        add_rows(out, bad, train, index);
        break;
    case TDM_BAD_SUM:
        tdm_str_addf(out, "the gradient of '%s' overflows when the lanes are summed", bad->name);
        break;
    case TDM_BAD_LARGE: tdm_str_addf(out, "that of '%s' reaches 9.2e18 (2^63)", bad->name); break;
    }
}

const char *tdm__bad_number_advice(const tdm_bad_number *bad, const tdm_job *job)
{
    switch (bad->kind) {
    case TDM_BAD_NOWHERE: return "check its memory and cooling, then resume";
    case TDM_BAD_PARAM: return "try a smaller optim.lr";
    case TDM_BAD_DATA: return "check that sample";
    case TDM_BAD_OP:
    case TDM_BAD_SUM:
    case TDM_BAD_LARGE: break;
    }
    if (job->train.bad_numbers == TDM_JOB_BAD_NUMBERS_SKIP)
        return "try a smaller optim.lr, a schedule with a warm-up, data.normalise: standard, or a "
               "higher train.bad_numbers_most, the maximum number of steps skipped in a row";
    return "try a smaller optim.lr, a schedule with a warm-up, data.normalise: standard, or "
           "train.bad_numbers: skip";
}
