/*
 * keys_optim.c: rows of the table of keys for the optimiser and its schedule, and the keys of the
 * mappings 'optim.groups' and 'train.early_stop'. keys.c describes the table.
 */
#include <math.h>

#include "job/keys.h"

bool tdm__schedule_is_as_long(const tdm_job *job)
{
    int kind = job->schedule.kind;
    return job->schedule.steps == 0 &&
           (kind == TDM_JOB_SCHEDULE_COSINE || kind == TDM_JOB_SCHEDULE_LINEAR ||
            kind == TDM_JOB_SCHEDULE_ONE_CYCLE);
}

bool tdm__schedule_evaluates(const tdm_job *job)
{
    return job->schedule.kind == TDM_JOB_SCHEDULE_REDUCE_ON_PLATEAU;
}

static const tdm_job_key group_keys[] = {
    {
        KEY_IN(tdm_job_param_group, "optim.groups.match", STRING, match),
        .required = true,
        .also_called = "params pattern name",
        .help = "A shell pattern for names of parameters: * matches any characters, ? one "
                "character, [ab] a or b. In a job file it must be quoted.",
    },
    {
        KEY_IN(tdm_job_param_group, "optim.groups.lr_scale", REAL, lr_scale),
        .fallback = "1",
        RANGE(0, INFINITY),
        .also_called = "lr lr_mult",
        .help = "The factor for the learning rate of these parameters. 0 freezes them.",
    },
    {
        KEY_IN(tdm_job_param_group, "optim.groups.weight_decay", REAL, weight_decay),
        .fallback_note = "'optim.weight_decay'",
        RANGE(0, INFINITY),
        .also_called = "wd l2",
        .help = "The weight decay of these parameters, instead of 'optim.weight_decay'.",
    },
};

const tdm_job_key tdm__early_stop_keys[TDM__EARLY_STOP_KEYS] = {
    {
        KEY_IN(tdm_job_early_stop, "train.early_stop.metric", CHOICE, metric),
        .fallback = "test_loss",
        .choices = "test_loss | test_accuracy",
        .also_called = "monitor",
        .help = "The metric that must improve.",
    },
    {
        KEY_IN(tdm_job_early_stop, "train.early_stop.patience", INT, patience),
        .required = true,
        RANGE(1, TDM__MAX_JOB_INT),
        .help = "The number of consecutive evaluations without improvement after which the run "
                "ends.",
    },
    {
        KEY_IN(tdm_job_early_stop, "train.early_stop.min_delta", REAL, min_delta),
        .fallback = "0",
        RANGE(0, INFINITY),
        .also_called = "delta threshold",
        .help = "The minimum difference from the best value that counts as an improvement.",
    },
};

const tdm_job_key tdm__optim_keys[] = {
    {
        KEY("optim.kind", CHOICE, optim.kind),
        .fallback = "adamw",
        .decides_bits = true,
        .choices = "sgd | adagrad | rmsprop | adam | adamw | lamb | lion",
        .also_called = "optimizer optimiser type",
        .help = "The optimiser. sgd is stochastic gradient descent with momentum; adamw is Adam "
                "with decoupled weight decay; lamb is for very large batches. docs/optimisers.md "
                "defines each of them.",
    },
    {
        KEY("optim.lr", REAL, optim.lr),
        .fallback = "0.001",
        .decides_bits = true,
        .min = 0,
        .min_open = true,
        .max = INFINITY,
        .also_called = "learning_rate rate",
        .help = "The learning rate.",
    },
    {
        KEY("optim.momentum", REAL, optim.momentum),
        .fallback = "0.9",
        .decides_bits = true,
        RANGE(0, 1),
        .max_open = true,
        .help = "For sgd and rmsprop: the momentum factor.",
    },
    {
        KEY("optim.nesterov", BOOL, optim.nesterov),
        .fallback = "false",
        .decides_bits = true,
        .help = "For sgd: whether to use Nesterov momentum.",
    },
    {
        KEY("optim.beta1", REAL, optim.beta1),
        .fallback = "0.9",
        .decides_bits = true,
        RANGE(0, 1),
        .max_open = true,
        .help = "For adam, adamw, lamb and lion: the decay of the running mean of gradients. In "
                "lion it is the weight of that mean in a step.",
    },
    {
        KEY("optim.beta2", REAL, optim.beta2),
        .fallback = "0.999",
        .decides_bits = true,
        RANGE(0, 1),
        .max_open = true,
        .help = "For adam, adamw and lamb: the decay of the running mean of squared gradients. "
                "In lion it is the decay of the running mean of gradients, where 0.99 is usual.",
    },
    {
        KEY("optim.alpha", REAL, optim.alpha),
        .fallback = "0.99",
        .decides_bits = true,
        RANGE(0, 1),
        .max_open = true,
        .also_called = "rho smoothing",
        .help = "For rmsprop: the decay of the running mean of squared gradients.",
    },
    {
        KEY("optim.centred", BOOL, optim.centred),
        .fallback = "false",
        .decides_bits = true,
        .also_called = "centered",
        .help = "For rmsprop: whether gradients are divided by their standard deviation instead "
                "of their root mean square.",
    },
    {
        KEY("optim.eps", REAL, optim.eps),
        .fallback = "1e-08",
        .decides_bits = true,
        .min = 0,
        .min_open = true,
        .max = INFINITY,
        .also_called = "epsilon",
        .help = "For all methods except sgd and lion: the number that is added to the divisor to "
                "avoid a division by zero.",
    },
    {
        KEY("optim.weight_decay", REAL, optim.weight_decay),
        .fallback = "0.01",
        .decides_bits = true,
        RANGE(0, INFINITY),
        .also_called = "wd l2",
        .help = "The weight decay. adamw, lamb and lion apply it separately from the gradient; "
                "the other methods add it to the gradient. 'optim.groups' can exempt parameters.",
    },
    {
        KEY("optim.groups", MAP_LIST, optim.groups),
        .fallback = "[]",
        .decides_bits = true,
        .max_count = 64,
        .fields = group_keys,
        .field_count = COUNT(group_keys),
        .struct_bytes = sizeof(tdm_job_param_group),
        .also_called = "param_groups parameter_groups",
        .help = "Settings for groups of parameters, selected by name. The first entry that "
                "matches the name of a parameter applies.",
    },
    {
        KEY("optim.clip_norm", REAL, optim.clip_norm),
        .fallback = "0",
        .decides_bits = true,
        RANGE(0, INFINITY),
        .also_called = "grad_clip gradient_clip clip max_norm max_grad_norm",
        .help = "The maximum norm of the gradient over all parameters. A gradient with a larger "
                "norm is scaled down to it. 0 disables clipping.",
    },
    {
        KEY("optim.clip_value", REAL, optim.clip_value),
        .fallback = "0",
        .decides_bits = true,
        RANGE(0, INFINITY),
        .help = "The maximum absolute value of a number in the gradient. Larger ones are "
                "clipped, before 'optim.clip_norm' is applied. 0 disables clipping.",
    },
    {
        KEY("optim.ema", REAL, optim.ema),
        .fallback = "0",
        .decides_bits = true,
        RANGE(0, 1),
        .max_open = true,
        .also_called = "ema_decay moving_average",
        .help = "The decay of an exponential moving average of the weights, such as 0.999. The "
                "average is often the better model: see 'eval.weights'. 0 disables it.",
    },
    {
        KEY("schedule.kind", CHOICE, schedule.kind),
        .fallback = "constant",
        .decides_bits = true,
        .choices = "constant | step | multi_step | exponential | cosine | linear | one_cycle | "
                   "inverse_sqrt | reduce_on_plateau",
        .also_called = "lr_scheduler scheduler lr_schedule",
        .help = "How the learning rate changes, starting from 'optim.lr'. step, multi_step and "
                "exponential multiply it repeatedly by 'schedule.gamma'; cosine and linear "
                "decrease it to 'schedule.floor'; one_cycle increases it and then decreases it; "
                "inverse_sqrt decreases it with the square root of the step; reduce_on_plateau "
                "decreases it when the test metric stops improving. docs/optimisers.md has the "
                "formulas.",
    },
    {
        KEY("schedule.warmup", INT, schedule.warmup),
        .fallback = "0",
        .decides_bits = true,
        RANGE(0, TDM__MAX_JOB_INT),
        .also_called = "warmup_steps",
        .help = "The number of warm-up steps, in which the learning rate rises to its first "
                "scheduled value. Every schedule can have a warm-up.",
    },
    {
        KEY("schedule.steps", INT, schedule.steps),
        .fallback = "auto",
        .decides_bits = true,
        RANGE(1, TDM__MAX_JOB_INT),
        .word = "auto",
        .also_called = "total_steps t_max",
        .help = "For cosine, linear and one_cycle: the length of the schedule in steps, "
                "including the warm-up; after it the learning rate stays constant. auto uses the "
                "length of the run, which then affects the trained bits: such a run cannot be "
                "extended later.",
    },
    {
        KEY("schedule.floor", REAL, schedule.floor),
        .fallback = "0",
        .decides_bits = true,
        RANGE(0, INFINITY),
        .also_called = "min_lr eta_min",
        .help = "For cosine, linear, inverse_sqrt and reduce_on_plateau: the minimum learning "
                "rate.",
    },
    {
        KEY("schedule.gamma", REAL, schedule.gamma),
        .fallback = "0.1",
        .decides_bits = true,
        .min = 0,
        .min_open = true,
        .max = INFINITY,
        .also_called = "factor decay",
        .help = "For step, multi_step, exponential and reduce_on_plateau: the factor of each "
                "change of the learning rate. exponential applies it at every step, so it should "
                "be slightly below 1.",
    },
    {
        KEY("schedule.every_steps", INT, schedule.every_steps),
        .decides_bits = true,
        RANGE(1, TDM__MAX_JOB_INT),
        .also_called = "step_size",
        .help = "For step: the number of steps between multiplications of the learning rate by "
                "'schedule.gamma'.",
    },
    {
        KEY("schedule.milestones", INT_LIST, schedule.milestones),
        .fallback = "[]",
        .decides_bits = true,
        RANGE(1, TDM__MAX_JOB_INT),
        .max_count = 64,
        .help = "For multi_step: the steps at which the learning rate is multiplied by "
                "'schedule.gamma', in increasing order.",
    },
    {
        KEY("schedule.peak_at", REAL, schedule.peak_at),
        .fallback = "0.3",
        .decides_bits = true,
        RANGE(0, 1),
        .also_called = "pct_start",
        .help = "For one_cycle: the fraction of the steps in which the learning rate rises.",
    },
    {
        KEY("schedule.start_divisor", REAL, schedule.start_divisor),
        .fallback = "25",
        .decides_bits = true,
        RANGE(1, INFINITY),
        .also_called = "div_factor",
        .help = "For one_cycle: the initial learning rate is 'optim.lr', which is the highest, "
                "divided by this.",
    },
    {
        KEY("schedule.end_divisor", REAL, schedule.end_divisor),
        .fallback = "10000",
        .decides_bits = true,
        RANGE(1, INFINITY),
        .also_called = "final_div_factor",
        .help = "For one_cycle: the final learning rate is the initial one divided by this.",
    },
    {
        KEY("schedule.anneal", CHOICE, schedule.anneal),
        .fallback = "cosine",
        .decides_bits = true,
        .choices = "cosine | linear",
        .also_called = "anneal_strategy",
        .help = "For one_cycle: the shape of the increase and the decrease.",
    },
    {
        KEY("schedule.metric", CHOICE, schedule.metric),
        .fallback = "test_loss",
        .decides_bits = true,
        .choices = "test_loss | test_accuracy",
        .help = "For reduce_on_plateau: the metric that must improve.",
    },
    {
        KEY("schedule.patience", INT, schedule.patience),
        .fallback = "10",
        .decides_bits = true,
        RANGE(0, TDM__MAX_JOB_INT),
        .help = "For reduce_on_plateau: the number of evaluations without improvement that are "
                "tolerated.",
    },
    {
        KEY("schedule.threshold", REAL, schedule.threshold),
        .fallback = "0.0001",
        .decides_bits = true,
        RANGE(0, 1),
        .max_open = true,
        .help = "For reduce_on_plateau: the minimum relative difference from the best value that "
                "counts as an improvement.",
    },
    {
        KEY("schedule.cooldown", INT, schedule.cooldown),
        .fallback = "0",
        .decides_bits = true,
        RANGE(0, TDM__MAX_JOB_INT),
        .help = "For reduce_on_plateau: the number of evaluations after a reduction that are "
                "ignored.",
    },
};

const size_t tdm__optim_key_count = COUNT(tdm__optim_keys);
