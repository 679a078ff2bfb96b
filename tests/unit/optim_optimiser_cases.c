/*
 * optim_optimiser_cases.c: tests of an optimiser as a job configures it: its pieces and passes, groups of
 * parameters, clipping, the average of the weights.
 */

#include <stdlib.h>

#include "base/base.h"
#include "check.h"
#include "optim/optim.h"
#include "unit/optim_cases.h"

enum { BENCH_PARAMS = 4, BENCH_EXTENT = 3 * 4096 + 128 };

/* A layout with a gap after each tensor, as in a graph; the second tensor has four pieces. */
static const tdm_optim_param bench_params[BENCH_PARAMS] = {
    {.name = "fc1.bias", .offset = 0, .elements = 5},
    {.name = "fc1.weight", .offset = 16, .elements = 3 * 4096 + 1},
    {.name = "fc2.bias", .offset = 12320, .elements = 7},
    {.name = "fc2.weight", .offset = 12336, .elements = 40},
};

typedef struct optim_bench {
    tdm_optimiser *optimiser;
    float *params, *grads, *ema;
    float *states[TDM_OPTIM_MAX_STATES];
} optim_bench;

static float *bench_block(void)
{
    return calloc(BENCH_EXTENT, sizeof(float));
}

static void bench_draw(uint32_t what, uint64_t step, double size, float *block)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){
        .seed = 9, .stream = TDM_RNG_STREAM_USER, .sub_stream = what, .step = step});
    for (size_t p = 0; p < BENCH_PARAMS; p++)
        for (size_t i = 0; i < bench_params[p].elements; i++)
            block[bench_params[p].offset + i] = (float)(size * tdm_rng_normal(&rng));
}

static void optim_bench_open(optim_bench *b, const tdm_job *job)
{
    *b = (optim_bench){.params = bench_block(), .grads = bench_block(), .ema = bench_block()};
    CHECK_INT(tdm_optimiser_create(job, bench_params, BENCH_PARAMS, &b->optimiser, NULL), TDM_OK);
    tdm_optim_blocks blocks = {.params = b->params, .ema = job->optim.ema > 0 ? b->ema : NULL};
    for (int k = 0; k < TDM_OPTIM_MAX_STATES; k++) {
        b->states[k] = bench_block();
        if (tdm_optimiser_uses_state(b->optimiser, k)) blocks.states[k] = b->states[k];
    }
    tdm_optimiser_bind(b->optimiser, &blocks);
    bench_draw(1, 0, 1, b->params);
    memcpy(b->ema, b->params, BENCH_EXTENT * sizeof(float));
}

static void optim_bench_close(optim_bench *b)
{
    tdm_optimiser_destroy(b->optimiser);
    free(b->params);
    free(b->grads);
    free(b->ema);
    for (int k = 0; k < TDM_OPTIM_MAX_STATES; k++) free(b->states[k]);
}

/* The i-th piece of a pass: in order, or in a scattered order. */
static size_t bench_nth(size_t i, size_t count, bool scrambled)
{
    return scrambled ? (i * 5 + 3) % count : i;
}

/* One step with the gradient in `grads`, all passes; returns the norm. */
static double bench_step(optim_bench *b, uint64_t step, double lr, bool scrambled)
{
    tdm_optimiser *o = b->optimiser;
    size_t count = tdm_optimiser_piece_count(o);
    double norm = 0, sums[TDM_OPTIM_SUMS];
    tdm_optimiser_begin(o, step, lr);
    for (int pass = 0; pass < 3; pass++) {
        if (pass == 0 && !tdm_optimiser_must_measure(o)) continue;
        if (pass == 2 && !tdm_optimiser_must_apply(o)) continue;
        for (size_t i = 0; i < count; i++) {
            size_t index = bench_nth(i, count, scrambled);
            const tdm_optim_piece *piece = tdm_optimiser_piece_at(o, index);
            float *grad = b->grads + piece->begin;
            if (pass == 0) tdm_optimiser_measure(o, index, grad);
            if (pass == 1) tdm_optimiser_update(o, index, grad, norm);
            if (pass == 2) {
                tdm_optimiser_sums(o, piece->param_index, sums);
                tdm_optimiser_apply(o, index, grad, sums);
            }
        }
        if (pass == 0) norm = tdm_optimiser_grad_norm(o);
    }
    return norm;
}

static tdm_job bench_job(int kind)
{
    return (tdm_job){.optim = {.kind = kind,
                               .lr = 0.01,
                               .momentum = 0.9,
                               .beta1 = 0.9,
                               .beta2 = 0.99,
                               .alpha = 0.9,
                               .eps = 1e-8,
                               .weight_decay = 0.1}};
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static void pieces_are_within_tensors(void)
{
    tdm_job job = bench_job(TDM_JOB_OPTIM_ADAMW);
    optim_bench b;
    optim_bench_open(&b, &job);
    size_t covered[BENCH_PARAMS] = {0}, count = tdm_optimiser_piece_count(b.optimiser);
    CHECK_INT(count, 7);
    for (size_t i = 0; i < count; i++) {
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(b.optimiser, i);
        const tdm_optim_param *param = &bench_params[piece->param_index];
        CHECK_INT(piece->begin, param->offset + covered[piece->param_index]);
        CHECK(piece->count > 0 && piece->count <= TDM_OPTIM_PIECE_ELEMENTS);
        covered[piece->param_index] += piece->count;
    }
    for (size_t p = 0; p < BENCH_PARAMS; p++) CHECK_INT(covered[p], bench_params[p].elements);
    optim_bench_close(&b);
}

static void any_order_of_pieces_gives_the_same_bits(void)
{
    for (int kind = 0; kind <= TDM_JOB_OPTIM_LION; kind++) {
        tdm_job job = bench_job(kind);
        job.optim.clip_norm = 0.5;
        job.optim.ema = 0.75;
        optim_bench a, b;
        optim_bench_open(&a, &job);
        optim_bench_open(&b, &job);
        for (uint64_t step = 0; step < 5; step++) {
            bench_draw(2, step, 1, a.grads);
            bench_draw(2, step, 1, b.grads);
            double norm = bench_step(&a, step, 0.01, false);
            CHECK(norm > 0.5 && norm == bench_step(&b, step, 0.01, true));
        }
        CHECK(memcmp(a.params, b.params, BENCH_EXTENT * sizeof(float)) == 0);
        CHECK(memcmp(a.ema, b.ema, BENCH_EXTENT * sizeof(float)) == 0);
        for (int k = 0; k < TDM_OPTIM_MAX_STATES; k++)
            CHECK(memcmp(a.states[k], b.states[k], BENCH_EXTENT * sizeof(float)) == 0);
        optim_bench_close(&a);
        optim_bench_close(&b);
    }
}

/* ---- clipping -------------------------------------------------------------------------------- */

/* sgd without momentum and decay takes a step of exactly lr times the gradient. */
static void clipping_by_norm(void)
{
    for (int is_small = 0; is_small < 2; is_small++) {
        tdm_job job = {.optim = {.kind = TDM_JOB_OPTIM_SGD, .clip_norm = 3}};
        optim_bench b;
        optim_bench_open(&b, &job);
        CHECK(tdm_optimiser_must_measure(b.optimiser) && !tdm_optimiser_must_apply(b.optimiser));
        float *before = bench_block(), *grad = bench_block();
        memcpy(before, b.params, BENCH_EXTENT * sizeof(float));
        bench_draw(2, 0, is_small ? 0.001 : 1, b.grads);
        memcpy(grad, b.grads, BENCH_EXTENT * sizeof(float));
        double sum = 0;
        for (size_t i = 0; i < BENCH_EXTENT; i++) sum += (double)grad[i] * (double)grad[i];
        CHECK_NEAR(bench_step(&b, 0, 0.5, false), sqrt(sum), 1e-9 * sqrt(sum));
        double factor = is_small ? 1 : 3 / (sqrt(sum) + 1e-6);
        for (size_t i = 0; i < BENCH_EXTENT; i++)
            CHECK_NEAR(b.params[i], (double)before[i] - 0.5 * factor * (double)grad[i], 1e-6);
        free(before);
        free(grad);
        optim_bench_close(&b);
    }
}

/* Alone, and before the norm is computed. */
static void clipping_by_value(void)
{
    for (int with_norm = 0; with_norm < 2; with_norm++) {
        tdm_job job = {.optim = {.kind = TDM_JOB_OPTIM_SGD, .clip_value = 0.5}};
        if (with_norm) job.optim.clip_norm = 1;
        optim_bench b;
        optim_bench_open(&b, &job);
        CHECK_INT(tdm_optimiser_must_measure(b.optimiser), with_norm);
        float *before = bench_block(), *grad = bench_block();
        memcpy(before, b.params, BENCH_EXTENT * sizeof(float));
        bench_draw(2, 0, 1, b.grads);
        double sum = 0;
        for (size_t i = 0; i < BENCH_EXTENT; i++) {
            grad[i] = fminf(fmaxf(b.grads[i], -0.5f), 0.5f);
            sum += (double)grad[i] * (double)grad[i];
        }
        double norm = bench_step(&b, 0, 0.25, false);
        double factor = with_norm ? 1 / (sqrt(sum) + 1e-6) : 1;
        if (with_norm) CHECK_NEAR(norm, sqrt(sum), 1e-9 * norm);
        for (size_t i = 0; i < BENCH_EXTENT; i++)
            CHECK_NEAR(b.params[i], (double)before[i] - 0.25 * factor * (double)grad[i], 1e-6);
        free(before);
        free(grad);
        optim_bench_close(&b);
    }
}

static void norms_that_are_not_finite_are_seen(void)
{
    tdm_job job = {.optim = {.kind = TDM_JOB_OPTIM_SGD, .clip_norm = 1}};
    optim_bench b;
    optim_bench_open(&b, &job);
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    for (size_t n = 0; n < 3; n++) {
        bench_draw(2, 0, 1, b.grads);
        b.grads[5000] = odd[n];
        size_t count = tdm_optimiser_piece_count(b.optimiser);
        tdm_optimiser_begin(b.optimiser, 0, 1);
        for (size_t i = 0; i < count; i++)
            tdm_optimiser_measure(b.optimiser, i,
                                  b.grads + tdm_optimiser_piece_at(b.optimiser, i)->begin);
        CHECK(!isfinite(tdm_optimiser_grad_norm(b.optimiser)));
    }
    optim_bench_close(&b);
}

/* ---- the average ----------------------------------------------------------------------------- */

static void the_average_follows(void)
{
    static const int kinds[] = {TDM_JOB_OPTIM_ADAMW, TDM_JOB_OPTIM_LAMB};
    for (size_t n = 0; n < 2; n++) {
        tdm_job job = bench_job(kinds[n]);
        job.optim.ema = 0.9;
        optim_bench b;
        optim_bench_open(&b, &job);
        double *exact = calloc(BENCH_EXTENT, sizeof(double));
        for (size_t i = 0; i < BENCH_EXTENT; i++) exact[i] = (double)b.params[i];
        for (uint64_t step = 0; step < 20; step++) {
            bench_draw(2, step, 1, b.grads);
            bench_step(&b, step, 0.05, false);
            for (size_t i = 0; i < BENCH_EXTENT; i++)
                exact[i] = 0.9 * exact[i] + 0.1 * (double)b.params[i];
        }
        double apart = 0;
        for (size_t i = 0; i < BENCH_EXTENT; i++) {
            CHECK_NEAR(b.ema[i], exact[i], 3e-6 * (1 + fabs(exact[i])));
            apart += fabs(exact[i] - (double)b.params[i]);
        }
        CHECK(apart > 1);
        free(exact);
        optim_bench_close(&b);
    }
}

/* ---- groups ---------------------------------------------------------------------------------- */

static void groups_change_settings(void)
{
    static const tdm_job_param_group groups[] = {
        {.match = "fc1.*", .lr_scale = 0, .weight_decay = NAN},
        {.match = "*.bias", .lr_scale = 2, .weight_decay = 0},
    };
    tdm_job job = {
        .optim = {
            .kind = TDM_JOB_OPTIM_SGD, .lr = 0.5, .weight_decay = 0.25, .groups = {groups, 2}}};
    optim_bench b;
    optim_bench_open(&b, &job);
    static const double lr[] = {0, 0, 1, 0.5}, decay[] = {0.25, 0.25, 0, 0.25};
    for (size_t p = 0; p < BENCH_PARAMS; p++) {
        tdm_optim_settings s = tdm_optimiser_settings_at(b.optimiser, p);
        CHECK(s.lr == lr[p] && s.weight_decay == decay[p]);
    }
    float *before = bench_block();
    memcpy(before, b.params, BENCH_EXTENT * sizeof(float));
    for (size_t i = 0; i < BENCH_EXTENT; i++) b.grads[i] = 1;
    bench_step(&b, 0, 0.125, false); /* the schedule gives an eighth */
    for (size_t p = 0; p < BENCH_PARAMS; p++)
        for (size_t i = 0; i < bench_params[p].elements; i++) {
            double x = (double)before[bench_params[p].offset + i];
            double y = x - 0.125 * (lr[p] / 0.5) * (1 + decay[p] * x);
            CHECK_NEAR(b.params[bench_params[p].offset + i], y, 1e-6);
        }
    free(before);
    optim_bench_close(&b);
}

static void groups_that_catch_nothing_are_refused(void)
{
    static const struct {
        tdm_job_param_group groups[2];
        const char *message;
    } bad[] = {
        {{{.match = "*", .lr_scale = 1}, {.match = "fc3.*", .lr_scale = 1}},
         "optim.groups: entry 2 ('fc3.*') matches no parameter of this model; its parameters are "
         "fc1.bias, fc1.weight, fc2.bias, fc2.weight"},
        {{{.match = "weight", .lr_scale = 1}, {.match = "*", .lr_scale = 1}},
         "optim.groups: entry 1 ('weight') matches no parameter of this model; its parameters are "
         "fc1.bias, fc1.weight, fc2.bias, fc2.weight"},
        {{{.match = "*s", .lr_scale = 1}, {.match = "fc2.b*", .lr_scale = 1}},
         "optim.groups: all parameters that entry 2 ('fc2.b*') matches, such as 'fc2.bias', are "
         "matched by entries before it; move it before them"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tdm_job job = bench_job(TDM_JOB_OPTIM_SGD);
        job.optim.groups = (tdm_job_group_list){bad[i].groups, 2};
        tdm_optimiser *optimiser = NULL;
        tdm_error err = {0};
        CHECK_INT(tdm_optimiser_create(&job, bench_params, BENCH_PARAMS, &optimiser, &err),
                  TDM_ERR_JOB_INVALID);
        CHECK_TEXT(err.message, bad[i].message);
        CHECK(optimiser == NULL);
    }
}

/* A step of a tensor has the length lr times the norm of the tensor, for any magnitude of its gradient. */
static void lamb_works_per_tensor(void)
{
    tdm_job job = bench_job(TDM_JOB_OPTIM_LAMB);
    optim_bench b;
    optim_bench_open(&b, &job);
    CHECK(tdm_optimiser_must_apply(b.optimiser));
    float *before = bench_block();
    memcpy(before, b.params, BENCH_EXTENT * sizeof(float));
    bench_draw(2, 0, 1, b.grads);
    for (size_t i = 0; i < bench_params[1].elements; i++)
        b.grads[bench_params[1].offset + i] *= 1e3f;
    bench_step(&b, 0, 0.01, true);
    for (size_t p = 0; p < BENCH_PARAMS; p++) {
        double norm = 0, length = 0;
        for (size_t i = 0; i < bench_params[p].elements; i++) {
            size_t at = bench_params[p].offset + i;
            double moved = (double)b.params[at] - (double)before[at];
            norm += (double)before[at] * (double)before[at];
            length += moved * moved;
        }
        CHECK_NEAR(sqrt(length), 0.01 * sqrt(norm), 1e-5 * sqrt(norm));
    }
    free(before);
    optim_bench_close(&b);
}

static const check_test optim_optimiser_tests[] = {
    CHECK_TEST(pieces_are_within_tensors),
    CHECK_TEST(any_order_of_pieces_gives_the_same_bits),
    CHECK_TEST(clipping_by_norm),
    CHECK_TEST(clipping_by_value),
    CHECK_TEST(norms_that_are_not_finite_are_seen),
    CHECK_TEST(the_average_follows),
    CHECK_TEST(groups_change_settings),
    CHECK_TEST(groups_that_catch_nothing_are_refused),
    CHECK_TEST(lamb_works_per_tensor),
};
CHECK_SUITE(optim_optimiser, optim_optimiser_tests);
