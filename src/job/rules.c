/*
 * rules.c: what keys must hold side by side.
 *
 * Each rule is a row: the keys it looks at, where its problem stands, a test on the job, and the
 * words. A rule is asked only when all its keys hold checked values, so that one mistake is not
 * reported twice. Pairs that exclude or need each other are columns of the table of keys instead.
 */
#include <stddef.h>

#include "job/internal.h"

typedef struct rule {
    const char *keys[4]; /* looked at; the problem stands at the first that was given */
    bool (*is_broken)(const tdm_job *job);
    const char *message;
} rule;

static bool train_labels_of_csv(const tdm_job *job)
{
    return job->data.format == TDM_JOB_FORMAT_CSV && job->data.train_labels;
}

static bool test_labels_of_csv(const tdm_job *job)
{
    return job->data.format == TDM_JOB_FORMAT_CSV && job->data.test_labels;
}

static bool idx_without_labels(const tdm_job *job)
{
    return job->data.format == TDM_JOB_FORMAT_IDX && !job->data.train_labels;
}

static bool only_train_has_labels(const tdm_job *job)
{
    if (job->data.format == TDM_JOB_FORMAT_CSV) return false; /* another rule's business */
    return job->data.train_labels && job->data.test && !job->data.test_labels;
}

static bool only_test_has_labels(const tdm_job *job)
{
    if (job->data.format == TDM_JOB_FORMAT_CSV) return false;
    return job->data.test && job->data.test_labels && !job->data.train_labels;
}

static bool nesterov_of_adamw(const tdm_job *job)
{
    return job->optim.nesterov && job->optim.kind != TDM_JOB_OPTIM_SGD;
}

static bool nesterov_without_momentum(const tdm_job *job)
{
    return job->optim.nesterov && job->optim.kind == TDM_JOB_OPTIM_SGD && job->optim.momentum == 0;
}

static bool more_lanes_than_samples(const tdm_job *job)
{
    return job->parallel.lanes > job->train.batch;
}

static const rule rules[] = {
    {
        .keys = {"data.train_labels", "data.format"},
        .is_broken = train_labels_of_csv,
        .message = "'data.train_labels' is for IDX files; a CSV file has its labels in the column "
                   "that 'data.label' names: leave this out, or set 'data.format' to idx",
    },
    {
        .keys = {"data.test_labels", "data.format"},
        .is_broken = test_labels_of_csv,
        .message = "'data.test_labels' is for IDX files; a CSV file has its labels in the column "
                   "that 'data.label' names: leave this out, or set 'data.format' to idx",
    },
    {
        .keys = {"data.format", "data.train_labels"},
        .is_broken = idx_without_labels,
        .message = "IDX images come without labels; name the file of labels in "
                   "'data.train_labels'",
    },
    {
        .keys = {"data.test", "data.test_labels", "data.train_labels", "data.format"},
        .is_broken = only_train_has_labels,
        .message = "'data.train' has a file of labels, so 'data.test' needs one too: name it in "
                   "'data.test_labels'",
    },
    {
        .keys = {"data.test_labels", "data.train_labels", "data.test", "data.format"},
        .is_broken = only_test_has_labels,
        .message = "'data.test' has a file of labels, so 'data.train' needs one too: name it in "
                   "'data.train_labels'",
    },
    {
        .keys = {"optim.nesterov", "optim.kind"},
        .is_broken = nesterov_of_adamw,
        .message = "'optim.nesterov' is for sgd; set 'optim.kind' to sgd, or leave this out",
    },
    {
        .keys = {"optim.nesterov", "optim.momentum", "optim.kind"},
        .is_broken = nesterov_without_momentum,
        .message = "'optim.nesterov' needs momentum; give 'optim.momentum' a value above 0",
    },
    {
        .keys = {"parallel.lanes", "train.batch"},
        .is_broken = more_lanes_than_samples,
        .message = "'parallel.lanes' is more than 'train.batch', so that some lanes would never "
                   "get a sample; lower it, or raise 'train.batch'",
    },
};

void tdm__rules_check(tdm__loader *loader)
{
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        bool can_ask = true;
        tdm__place place = {.file = loader->file};
        bool is_placed = false;
        for (size_t k = 0; k < 4 && rules[i].keys[k]; k++) {
            const tdm__slot *slot = &loader->slots[tdm__key_find(rules[i].keys[k])];
            can_ask = can_ask && slot->ok;
            if (slot->node && !is_placed) {
                place = slot->place;
                is_placed = true;
            }
        }
        if (can_ask && rules[i].is_broken(loader->job))
            tdm__problem_add(&loader->problems, place, "%s", rules[i].message);
    }
}
