/*
 * schedule.c: the learning rate of each step.
 *
 * A schedule is a pure function of the step, so a resumed run needs no state of it. Only
 * reduce_on_plateau has a state, the history of the evaluations, in a plain struct that the trainer
 * stores in its checkpoints. Definitions and their order of arithmetic are those of PyTorch's
 * lr_scheduler, with one training step for one step of the scheduler.
 *
 * A warm-up may precede any of them: the rate rises in equal increments, and then the schedule
 * begins, with the remaining steps.
 */
#include "base/base.h"
#include "optim/optim.h"

#include <math.h>

#define MIN_CHANGE 1e-8 /* as in PyTorch: a smaller change of the rate is not made */

tdm_schedule tdm_schedule_of(const tdm_job *job, uint64_t step_count)
{
    return (tdm_schedule){
        .kind = job->schedule.kind,
        .lr = job->optim.lr,
        .floor = job->schedule.floor,
        .gamma = job->schedule.gamma,
        .steps = job->schedule.steps > 0 ? (uint64_t)job->schedule.steps : step_count,
        .warmup = (uint64_t)job->schedule.warmup,
        .every_steps = (uint64_t)job->schedule.every_steps,
        .milestones = job->schedule.milestones,
        .peak_at = job->schedule.peak_at,
        .start_divisor = job->schedule.start_divisor,
        .end_divisor = job->schedule.end_divisor,
        .linear_anneal = job->schedule.anneal == TDM_JOB_ANNEAL_LINEAR,
        .higher_is_better = job->schedule.metric == TDM_JOB_METRIC_TEST_ACCURACY,
        .patience = (double)job->schedule.patience,
        .threshold = job->schedule.threshold,
        .cooldown = (double)job->schedule.cooldown,
    };
}

/* ---- kinds of schedules ----------------------------------------------------------------------- */

static double multi_step(const tdm_schedule *s, uint64_t t)
{
    uint64_t passed = 0;
    for (size_t i = 0; i < s->milestones.count; i++)
        passed += (uint64_t)s->milestones.values[i] <= t;
    return s->lr * tdm_math_power(s->gamma, passed);
}

/* Interpolates from `from` to `to` as `share` goes from 0 to 1. */
static double schedule_anneal(const tdm_schedule *s, double from, double to, double share)
{
    if (s->linear_anneal) return (to - from) * share + from;
    return to + (from - to) / 2.0 * (1.0 + tdm_math_cos(M_PI * share));
}

static double one_cycle(const tdm_schedule *s, double t, double steps)
{
    double begin = s->lr / s->start_divisor, end = begin / s->end_divisor;
    double peak = s->peak_at * steps - 1.0, last = steps - 1.0;
    if (peak > 0 && t <= peak) return schedule_anneal(s, begin, s->lr, t / peak);
    return last > peak ? schedule_anneal(s, s->lr, end, fmin((t - peak) / (last - peak), 1.0))
                       : end;
}

/* Step `t` after the warm-up. */
static double after_warmup(const tdm_schedule *s, uint64_t t, const tdm_plateau *plateau)
{
    double steps = s->steps > s->warmup ? (double)(s->steps - s->warmup) : 1.0;
    double share = fmin((double)t / steps, 1.0);
    double warmup = s->warmup > 0 ? (double)s->warmup : 1.0;
    switch ((tdm_job_schedule)s->kind) {
    case TDM_JOB_SCHEDULE_CONSTANT: break;
    case TDM_JOB_SCHEDULE_STEP: {
        uint64_t times = t / s->every_steps; /* whole ones */
        return s->lr * tdm_math_power(s->gamma, times);
    }
    case TDM_JOB_SCHEDULE_MULTI_STEP: return multi_step(s, t);
    case TDM_JOB_SCHEDULE_EXPONENTIAL: return s->lr * tdm_math_power(s->gamma, t);
    case TDM_JOB_SCHEDULE_COSINE:
        return s->floor + (s->lr - s->floor) * (1.0 + tdm_math_cos(M_PI * share)) / 2.0;
    case TDM_JOB_SCHEDULE_LINEAR: return s->lr + (s->floor - s->lr) * share;
    case TDM_JOB_SCHEDULE_ONE_CYCLE: return one_cycle(s, (double)t, steps);
    case TDM_JOB_SCHEDULE_INVERSE_SQRT: {
        double n = (double)(t + s->warmup) + 1.0;
        return fmax(s->lr * sqrt(warmup / n), s->floor);
    }
    case TDM_JOB_SCHEDULE_REDUCE_ON_PLATEAU:
        return plateau && plateau->lr > 0 ? plateau->lr : s->lr;
    }
    return s->lr;
}

double tdm_schedule_lr(const tdm_schedule *schedule, uint64_t step, const tdm_plateau *plateau)
{
    const tdm_schedule *s = schedule;
    if (step >= s->warmup) return after_warmup(s, step - s->warmup, plateau);
    /* The warm-up ends at the schedule's first value. (inverse_sqrt is then one step past its
     * maximum.) */
    double top = s->kind == TDM_JOB_SCHEDULE_INVERSE_SQRT ? s->lr : after_warmup(s, 0, plateau);
    return top * ((double)(step + 1) / (double)s->warmup);
}

/* ---- evaluations ------------------------------------------------------------------------------ */

static void plateau_record(tdm_plateau *plateau, double value, bool is_better)
{
    if (plateau->has_best == 0) is_better = isfinite(value);
    plateau->bad = is_better ? 0 : plateau->bad + 1;
    if (!is_better) return;
    plateau->best = value;
    plateau->has_best = 1;
}

bool tdm_schedule_observe(const tdm_schedule *schedule, double value, tdm_plateau *plateau)
{
    const tdm_schedule *s = schedule;
    plateau_record(plateau, value,
                   s->higher_is_better ? value > plateau->best * (1.0 + s->threshold)
                                       : value < plateau->best * (1.0 - s->threshold));
    if (plateau->cooldown > 0) {
        plateau->cooldown--;
        plateau->bad = 0;
    }
    if (plateau->bad <= s->patience) return false;
    plateau->bad = 0;
    plateau->cooldown = s->cooldown;
    double before = plateau->lr > 0 ? plateau->lr : s->lr;
    double after = fmax(before * s->gamma, s->floor);
    if (before - after <= MIN_CHANGE) return false;
    plateau->lr = after;
    return true;
}

bool tdm_early_stop_is_due(const tdm_job_early_stop *rule, const tdm_plateau *state)
{
    return state->bad >= (double)rule->patience;
}

bool tdm_early_stop_observe(const tdm_job_early_stop *rule, double value, tdm_plateau *state)
{
    bool higher = rule->metric == TDM_JOB_METRIC_TEST_ACCURACY;
    plateau_record(state, value,
                   higher ? value > state->best + rule->min_delta
                          : value < state->best - rule->min_delta);
    return tdm_early_stop_is_due(rule, state);
}
