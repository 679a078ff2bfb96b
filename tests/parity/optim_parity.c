/*
 * optim_parity.c: the results of optimisers and schedules, printed for a comparison with PyTorch's in
 * optim_parity.py.
 *
 * One JSON object per line: the settings of a case; for an optimiser the initial parameters, and for each step
 * the gradients, the new parameters and their average (two tensors each, "a" and "b"); for a schedule the
 * learning rate of each step. Floats are printed so that they are read back exactly.
 */
#include "base/base.h"
#include "optim/optim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { A = 48, B = 17, B_AT = 64, EXTENT = 96, STEPS = 20, RATES = 60 };

static const tdm_optim_param params[] = {
    {.name = "a", .offset = 0, .elements = A},
    {.name = "b", .offset = B_AT, .elements = B},
};

static void put_floats(const char *key, const float *block)
{
    printf("\"%s\":{\"a\":[", key);
    for (int i = 0; i < A; i++) printf("%s%.9g", i > 0 ? "," : "", (double)block[i]);
    printf("],\"b\":[");
    for (int i = 0; i < B; i++) printf("%s%.9g", i > 0 ? "," : "", (double)block[B_AT + i]);
    printf("]}");
}

static void draw(uint32_t what, uint64_t step, float *block)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){
        .seed = 3, .stream = TDM_RNG_STREAM_USER, .sub_stream = what, .step = step});
    memset(block, 0, EXTENT * sizeof(float));
    for (size_t p = 0; p < 2; p++)
        for (size_t i = 0; i < params[p].elements; i++)
            block[params[p].offset + i] = (float)tdm_rng_normal(&rng);
}

static void step(tdm_optimiser *o, uint64_t number, double lr, float *grads)
{
    double norm = 0, sums[TDM_OPTIM_SUMS];
    size_t count = tdm_optimiser_piece_count(o);
    tdm_optimiser_begin(o, number, lr);
    for (size_t i = 0; i < count && tdm_optimiser_must_measure(o); i++)
        tdm_optimiser_measure(o, i, grads + tdm_optimiser_piece_at(o, i)->begin);
    if (tdm_optimiser_must_measure(o)) norm = tdm_optimiser_grad_norm(o);
    for (size_t i = 0; i < count; i++)
        tdm_optimiser_update(o, i, grads + tdm_optimiser_piece_at(o, i)->begin, norm);
    for (size_t i = 0; i < count && tdm_optimiser_must_apply(o); i++) {
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(o, i);
        tdm_optimiser_sums(o, piece->param_index, sums);
        tdm_optimiser_apply(o, i, grads + piece->begin, sums);
    }
}

static void print_optimiser(const tdm_job *job)
{
    static float block[3 + TDM_OPTIM_MAX_STATES][EXTENT];
    memset(block, 0, sizeof(block));
    float *values = block[0], *grads = block[1], *ema = block[2];
    tdm_optimiser *o = NULL;
    if (tdm_optimiser_create(job, params, 2, &o, NULL) != TDM_OK) exit(1);
    tdm_optim_blocks blocks = {.params = values, .states = {block[3], block[4], block[5]}};
    if (job->optim.ema > 0) blocks.ema = ema;
    tdm_optimiser_bind(o, &blocks);
    printf("{\"optimiser\":\"%s\",\"lr\":%.17g,\"momentum\":%.17g,\"nesterov\":%s,\"beta1\":%.17g,"
           "\"beta2\":%.17g,\"alpha\":%.17g,\"centred\":%s,\"eps\":%.17g,\"weight_decay\":%.17g,"
           "\"clip_norm\":%.17g,\"clip_value\":%.17g,\"ema\":%.17g,\"groups\":%s,",
           tdm_optimiser_ops(o)->name, job->optim.lr, job->optim.momentum,
           job->optim.nesterov ? "true" : "false", job->optim.beta1, job->optim.beta2,
           job->optim.alpha, job->optim.centred ? "true" : "false", job->optim.eps,
           job->optim.weight_decay, job->optim.clip_norm, job->optim.clip_value, job->optim.ema,
           job->optim.groups.count > 0 ? "true" : "false");
    draw(1, 0, values);
    memcpy(ema, values, sizeof(block[0])); /* an average starts at the initial parameters */
    put_floats("first", values);
    printf(",\"steps\":[");
    for (uint64_t i = 0; i < STEPS; i++) {
        draw(2, i, grads);
        printf("%s{", i > 0 ? "," : "");
        put_floats("grads", grads);
        step(o, i, job->optim.lr, grads);
        printf(",");
        put_floats("params", values);
        printf(",");
        put_floats("ema", ema);
        printf("}");
    }
    printf("]}\n");
    tdm_optimiser_destroy(o);
}

#define ADAM .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8
static void print_optimisers(void)
{
    static const tdm_job_param_group groups[] = {
        {.match = "b*", .lr_scale = 0.25, .weight_decay = 0}};
    static const tdm_job jobs[] = {
        {.optim = {.kind = TDM_JOB_OPTIM_SGD, .lr = 0.1}},
        {.optim = {.kind = TDM_JOB_OPTIM_SGD, .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01}},
        {.optim = {.kind = TDM_JOB_OPTIM_SGD, .lr = 0.1, .momentum = 0.9, .nesterov = true}},
        {.optim = {.kind = TDM_JOB_OPTIM_SGD, .lr = 0.1, .momentum = 0.5, .clip_norm = 2}},
        {.optim = {.kind = TDM_JOB_OPTIM_SGD, .lr = 0.1, .momentum = 0.5, .clip_value = 0.3}},
        {.optim = {.kind = TDM_JOB_OPTIM_ADAGRAD, .lr = 0.05, .eps = 1e-10}},
        {.optim = {.kind = TDM_JOB_OPTIM_ADAGRAD, .lr = 0.05, .eps = 1e-6, .weight_decay = 0.1}},
        {.optim = {.kind = TDM_JOB_OPTIM_RMSPROP, .lr = 0.01, .alpha = 0.99, .eps = 1e-8}},
        {.optim = {.kind = TDM_JOB_OPTIM_RMSPROP,
                   .lr = 0.01,
                   .alpha = 0.9,
                   .eps = 1e-8,
                   .momentum = 0.9,
                   .weight_decay = 0.01}},
        {.optim = {.kind = TDM_JOB_OPTIM_RMSPROP,
                   .lr = 0.01,
                   .alpha = 0.95,
                   .eps = 1e-6,
                   .momentum = 0.5,
                   .centred = true}},
        {.optim = {.kind = TDM_JOB_OPTIM_ADAM, .lr = 0.01, ADAM}},
        {.optim = {.kind = TDM_JOB_OPTIM_ADAM, .lr = 0.01, ADAM, .weight_decay = 0.1}},
        {.optim = {.kind = TDM_JOB_OPTIM_ADAMW, .lr = 0.01, ADAM, .weight_decay = 0.1}},
        {.optim = {.kind = TDM_JOB_OPTIM_ADAMW,
                   .lr = 0.05,
                   .beta1 = 0.8,
                   .beta2 = 0.9,
                   .eps = 1e-4,
                   .weight_decay = 0.5,
                   .groups = {groups, 1},
                   .clip_norm = 1}},
        {.optim = {.kind = TDM_JOB_OPTIM_SGD,
                   .lr = 0.1,
                   .momentum = 0.9,
                   .weight_decay = 0.05,
                   .groups = {groups, 1},
                   .clip_value = 0.8,
                   .clip_norm = 3,
                   .ema = 0.9}},
        {.optim = {.kind = TDM_JOB_OPTIM_ADAMW, .lr = 0.01, ADAM, .ema = 0.99}},
    };
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) print_optimiser(&jobs[i]);
}

/* Evaluations that decrease, stay constant and increase, for reduce_on_plateau. */
static double evaluation(uint64_t number)
{
    return number < 8         ? 2.0 / (double)(number + 1)
           : number % 11 == 0 ? 0.2 - 0.001 * (double)number
                              : 0.26;
}

static void print_schedule(const tdm_job *job, const char *kind)
{
    tdm_schedule s = tdm_schedule_of(job, RATES);
    tdm_plateau plateau = {0};
    printf("{\"schedule\":\"%s\",\"lr\":%.17g,\"steps\":%d,\"warmup\":%lld,\"floor\":%.17g,"
           "\"gamma\":%.17g,\"every_steps\":%lld,\"peak_at\":%.17g,\"start_divisor\":%.17g,"
           "\"end_divisor\":%.17g,\"anneal\":\"%s\",\"patience\":%lld,\"threshold\":%.17g,"
           "\"cooldown\":%lld,\"milestones\":[",
           kind, job->optim.lr, RATES, (long long)job->schedule.warmup, job->schedule.floor,
           job->schedule.gamma, (long long)job->schedule.every_steps, job->schedule.peak_at,
           job->schedule.start_divisor, job->schedule.end_divisor,
           job->schedule.anneal == TDM_JOB_ANNEAL_LINEAR ? "linear" : "cos",
           (long long)job->schedule.patience, job->schedule.threshold,
           (long long)job->schedule.cooldown);
    for (size_t i = 0; i < job->schedule.milestones.count; i++)
        printf("%s%lld", i > 0 ? "," : "", (long long)job->schedule.milestones.values[i]);
    printf("],\"rates\":[");
    for (uint64_t i = 0; i < RATES; i++) {
        printf("%s%.17g", i > 0 ? "," : "", tdm_schedule_lr(&s, i, &plateau));
        if (s.kind == TDM_JOB_SCHEDULE_REDUCE_ON_PLATEAU)
            tdm_schedule_observe(&s, evaluation(i), &plateau);
    }
    printf("],\"evaluations\":[");
    for (uint64_t i = 0; i < RATES; i++) printf("%s%.17g", i > 0 ? "," : "", evaluation(i));
    printf("]}\n");
}

static void print_schedules(void)
{
    static const char *const names[] = {"constant",    "step",         "multi_step",
                                        "exponential", "cosine",       "linear",
                                        "one_cycle",   "inverse_sqrt", "reduce_on_plateau"};
    static const int64_t milestones[] = {10, 30, 31};
    for (int kind = 0; kind <= TDM_JOB_SCHEDULE_REDUCE_ON_PLATEAU; kind++)
        for (int variant = 0; variant < 3; variant++) {
            /* Evaluations during a warm-up count; PyTorch has no equivalent. */
            if (kind == TDM_JOB_SCHEDULE_REDUCE_ON_PLATEAU && variant == 2) continue;
            tdm_job job = {.optim = {.lr = 0.3}};
            job.schedule.kind = kind;
            job.schedule.warmup = variant == 2 ? 8 : 0;
            job.schedule.floor = variant == 1 ? 0.01 : 0;
            job.schedule.gamma = variant == 0 ? 0.1 : 0.7;
            job.schedule.every_steps = variant == 0 ? 7 : 20;
            job.schedule.milestones = (tdm_job_int_list){milestones, 3};
            job.schedule.peak_at = variant == 0 ? 0.3 : 0.5;
            job.schedule.start_divisor = variant == 0 ? 25 : 10;
            job.schedule.end_divisor = variant == 0 ? 1e4 : 100;
            job.schedule.anneal = variant == 1 ? TDM_JOB_ANNEAL_LINEAR : TDM_JOB_ANNEAL_COSINE;
            job.schedule.patience = variant == 0 ? 10 : 2;
            job.schedule.threshold = 1e-4;
            job.schedule.cooldown = variant == 1 ? 3 : 0;
            print_schedule(&job, names[kind]);
        }
}

int main(void)
{
    print_optimisers();
    print_schedules();
    return 0;
}
