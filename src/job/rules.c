/*
 * rules.c: what keys must hold side by side.
 *
 * Each rule is a row: the keys it looks at, where its problem stands, a test on the job, and the
 * words. A rule is asked only when all its keys hold checked values, so that one mistake is not
 * reported twice. Pairs that exclude or need each other are columns of the table of keys instead.
 *
 * Sizes of a model that the job does not have are no mistake, since a shown job has all of them; but
 * one that somebody has set to something is worth a warning.
 */
#include <stddef.h>
#include <string.h>

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

static bool centred_of_another(const tdm_job *job)
{
    return job->optim.centred && job->optim.kind != TDM_JOB_OPTIM_RMSPROP;
}

static bool step_without_every_steps(const tdm_job *job)
{
    return job->schedule.kind == TDM_JOB_SCHEDULE_STEP && job->schedule.every_steps == 0;
}

static bool multi_step_without_milestones(const tdm_job *job)
{
    return job->schedule.kind == TDM_JOB_SCHEDULE_MULTI_STEP && job->schedule.milestones.count == 0;
}

static bool milestones_do_not_rise(const tdm_job *job)
{
    const tdm_job_int_list *list = &job->schedule.milestones;
    for (size_t i = 1; i < list->count; i++)
        if (list->values[i] <= list->values[i - 1]) return true;
    return false;
}

static bool plateau_that_never_lowers(const tdm_job *job)
{
    return tdm__schedule_evaluates(job) && job->schedule.gamma >= 1;
}

static bool is_never_measured(const tdm_job *job)
{
    bool is_due = job->eval.every_epochs > 0 || job->eval.every_steps > 0;
    return !is_due || (!job->data.test && job->data.test_fraction == 0);
}

static bool plateau_without_measure(const tdm_job *job)
{
    return tdm__schedule_evaluates(job) && is_never_measured(job);
}

static bool early_stop_without_measure(const tdm_job *job)
{
    return job->train.early_stop && is_never_measured(job);
}

static bool ema_that_is_not_kept(const tdm_job *job)
{
    return job->eval.weights == TDM_JOB_WEIGHTS_EMA && job->optim.ema == 0;
}

static bool layers_without_list(const tdm_job *job)
{
    return job->model.kind == TDM_JOB_MODEL_LAYERS && !job->layers.items;
}

static bool list_for_another(const tdm_job *job)
{
    return job->model.kind != TDM_JOB_MODEL_LAYERS && job->layers.items;
}

static bool text_for_another(const tdm_job *job)
{
    return job->data.format == TDM_JOB_FORMAT_TEXT && !tdm_job_takes_tokens(job) &&
           job->model.kind != TDM_JOB_MODEL_LIBRARY; /* of which only the library knows */
}

static bool tokens_without_text(const tdm_job *job)
{
    return tdm_job_takes_tokens(job) &&
           (job->data.format == TDM_JOB_FORMAT_CSV || job->data.format == TDM_JOB_FORMAT_IDX);
}

static bool labels_of_text(const tdm_job *job)
{
    return tdm_job_takes_tokens(job) && (job->data.train_labels || job->data.test_labels);
}

static bool width_is_no_multiple(const tdm_job *job)
{
    return job->model.kind == TDM_JOB_MODEL_GPT && job->model.width % job->model.heads != 0;
}

static bool preset_of_another(const tdm_job *job)
{
    return job->model.preset != TDM_JOB_PRESET_NONE && job->model.kind != TDM_JOB_MODEL_GPT;
}

static bool library_without_file(const tdm_job *job)
{
    return job->model.kind == TDM_JOB_MODEL_LIBRARY && !job->model.library;
}

static bool library_of_another(const tdm_job *job)
{
    return job->model.kind != TDM_JOB_MODEL_LIBRARY && job->model.library;
}

static bool options_of_another(const tdm_job *job)
{
    return job->model.kind != TDM_JOB_MODEL_LIBRARY && job->model.options.count > 0;
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
        .keys = {"optim.centred", "optim.kind"},
        .is_broken = centred_of_another,
        .message = "'optim.centred' is for rmsprop; set 'optim.kind' to rmsprop, or leave this out",
    },
    {
        .keys = {"schedule.kind", "schedule.every_steps"},
        .is_broken = step_without_every_steps,
        .message = "the schedule step needs 'schedule.every_steps': after how many steps the "
                   "learning rate changes",
    },
    {
        .keys = {"schedule.kind", "schedule.milestones"},
        .is_broken = multi_step_without_milestones,
        .message = "the schedule multi_step needs 'schedule.milestones': a list of the steps at "
                   "which the learning rate changes",
    },
    {
        .keys = {"schedule.milestones"},
        .is_broken = milestones_do_not_rise,
        .message = "'schedule.milestones' must rise from entry to entry",
    },
    {
        .keys = {"schedule.gamma", "schedule.kind"},
        .is_broken = plateau_that_never_lowers,
        .message = "the schedule reduce_on_plateau lowers the learning rate; give 'schedule.gamma' "
                   "a value below 1",
    },
    {
        .keys = {"schedule.kind", "data.test", "data.test_fraction", "eval.every_epochs"},
        .is_broken = plateau_without_measure,
        .message =
            "the schedule reduce_on_plateau looks at the test set after each evaluation; "
            "give 'data.test' or 'data.test_fraction', and a number for 'eval.every_epochs' or "
            "'eval.every_steps'",
    },
    {
        .keys = {"train.early_stop", "data.test", "data.test_fraction", "eval.every_epochs"},
        .is_broken = early_stop_without_measure,
        .message = "'train.early_stop' looks at the test set after each evaluation; give "
                   "'data.test' or 'data.test_fraction', and a number for 'eval.every_epochs' or "
                   "'eval.every_steps'",
    },
    {
        .keys = {"eval.weights", "optim.ema"},
        .is_broken = ema_that_is_not_kept,
        .message = "'eval.weights' is ema, but no average is kept; give 'optim.ema' a value above "
                   "0, such as 0.999",
    },
    {
        .keys = {"model.kind", "layers"},
        .is_broken = layers_without_list,
        .message = "the model layers is what a list says: give 'layers:' at the top level of the "
                   "job, beside 'model:'",
    },
    {
        .keys = {"layers", "model.kind"},
        .is_broken = list_for_another,
        .message = "'layers' is for the model of that name: set 'model.kind' to layers or leave it "
                   "out, or leave this out",
    },
    {
        .keys = {"data.format", "model.kind", "layers"},
        .is_broken = text_for_another,
        .message = "a text is for models that predict the next token: set 'model.kind' to gpt or "
                   "begin 'layers' with embedding, or set 'data.format' to csv or idx",
    },
    {
        .keys = {"data.format", "model.kind", "layers"},
        .is_broken = tokens_without_text,
        .message =
            "a model of tokens (gpt, or layers that begin with embedding) learns from a text: "
            "set 'data.format' to text, or leave it out",
    },
    {
        .keys = {"data.train_labels", "data.test_labels", "model.kind", "layers"},
        .is_broken = labels_of_text,
        .message = "a model of tokens needs no labels: each character is the label of those before "
                   "it; leave this out",
    },
    {
        .keys = {"model.width", "model.heads", "model.kind"},
        .is_broken = width_is_no_multiple,
        .message = "'model.width' must be a multiple of 'model.heads', so that each head gets an "
                   "equal part",
    },
    {
        .keys = {"model.preset", "model.kind"},
        .is_broken = preset_of_another,
        .message = "'model.preset' is for gpt; set 'model.kind' to gpt, or leave this out",
    },
    {
        .keys = {"model.kind", "model.library"},
        .is_broken = library_without_file,
        .message = "the model library needs 'model.library': the shared object that has the model",
    },
    {
        .keys = {"model.library", "model.kind"},
        .is_broken = library_of_another,
        .message = "'model.library' is for a model of your own: set 'model.kind' to library, or "
                   "leave this out",
    },
    {
        .keys = {"model.options", "model.kind"},
        .is_broken = options_of_another,
        .message = "'model.options' is for a model of your own: set 'model.kind' to library, or "
                   "leave this out",
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
        tdm__job_position place = {.file = loader->file};
        bool is_placed = false;
        for (size_t k = 0; k < 4 && rules[i].keys[k]; k++) {
            const tdm__job_slot *slot = &loader->slots[tdm__key_find(rules[i].keys[k])];
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

/* ---- keys without effect --------------------------------------------------------------------- */

static const struct {
    const char *key;
    const char *kinds; /* of models that use it */
} uses[] = {
    {"model.hidden", "mlp cnn"},
    {"model.channels", "cnn"},
    {"model.depth", "resnet"},
    {"model.stem", "resnet"},
    {"model.activation", "mlp cnn"},
    {"model.dropout", "mlp cnn gpt"},
    {"model.layers", "gpt"},
    {"model.width", "gpt"},
    {"model.heads", "gpt"},
    {"model.context", "gpt layers library"},
    {"model.vocabulary", "gpt layers library"},
};

/* Did somebody mean this key for this model? Not: a default in a job that was shown, nor what stands
 * in a file whose model the command line has changed. */
static bool is_meant(tdm__loader *loader, size_t index, bool other_model)
{
    const tdm_job_key *key = tdm_job_key_at(index);
    const tdm__job_slot *slot = &loader->slots[index];
    if (!slot->node || !slot->ok) return false;
    if (slot->from_override) return true;
    if (other_model) return false;
    tdm_str shown = TDM_STR_INIT;
    tdm__value_show(key, loader->job, &shown);
    if (!tdm_str_ok(&shown)) loader->problems.no_memory = true;
    bool is_default = strcmp(tdm_str_text(&shown), key->fallback) == 0;
    tdm_str_release(&shown);
    return !is_default;
}

static void warn_of_weights(tdm__loader *loader)
{
    size_t index = tdm__key_find("parallel.weights");
    if (loader->job->parallel.balance == TDM_JOB_BALANCE_WEIGHTS ||
        loader->job->parallel.weights.count == 0 || !is_meant(loader, index, false))
        return;
    tdm__problem_add(&loader->warnings, loader->slots[index].place,
                     "'parallel.weights' has no effect: ranks go by it with 'parallel.balance: "
                     "weights'");
}

void tdm__rules_warn(tdm__loader *loader)
{
    warn_of_weights(loader);
    size_t kind_index = tdm__key_find("model.kind");
    const tdm__job_slot *kind_slot = &loader->slots[kind_index];
    char kind[32];
    if (!kind_slot->ok ||
        !tdm__choice_at(tdm_job_key_at(kind_index)->choices, (size_t)loader->job->model.kind, kind))
        return;
    bool other_model = kind_slot->from_override ||
                       loader->slots[tdm__key_find("layers")].from_override;
    for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); i++) {
        size_t index = tdm__key_find(uses[i].key);
        if (tdm__has_word(uses[i].kinds, kind) || !is_meant(loader, index, other_model)) continue;
        tdm__problem_add(&loader->warnings, loader->slots[index].place,
                         "'%s' has no effect: the model %s does not use it (%s would)", uses[i].key,
                         kind, uses[i].kinds);
    }
}
