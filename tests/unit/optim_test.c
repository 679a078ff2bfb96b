/*
 * optim_test.c: the methods against their definitions in double precision, and the property that parallel
 * updates need: a range updated in pieces has the same bits as one updated whole.
 *
 * The optimiser around a method (optim_optimiser_cases.c) and the schedules (optim_schedule_cases.c) have
 * separate files.
 */
#include <tandem/optim.h>

#include "base/base.h"
#include "check.h"
#include "optim/internal.h"
#include "tensor/kernel.h"
#include "unit/optim_cases.h"
#include "unit/optim_reference.h"

enum { COUNT = 97, STEPS = 20, KINDS = TDM_JOB_OPTIM_LION + 1 };

typedef struct model {
    float param[COUNT], grad[COUNT], state[TDM_OPTIM_MAX_STATES][COUNT];
} model;

static bool same_bits(const void *a, const void *b, size_t bytes)
{
    return memcmp(a, b, bytes) == 0;
}

static tdm_rng rng_at(uint32_t what, uint64_t step)
{
    return tdm_rng_at((tdm_rng_address){
        .seed = 5, .stream = TDM_RNG_STREAM_USER, .sub_stream = what, .step = step});
}

static void begin(model *m)
{
    *m = (model){0};
    tdm_rng rng = rng_at(1, 0);
    for (int i = 0; i < COUNT; i++) m->param[i] = (float)tdm_rng_normal(&rng);
}

/* Gradients of very different magnitudes, including zero. */
static void draw_gradient(model *m, uint64_t step)
{
    tdm_rng rng = rng_at(2, step);
    for (int i = 0; i < COUNT; i++)
        m->grad[i] = i % 10 == 0 ? 0.0f : (float)(tdm_rng_normal(&rng) * pow(10, i % 7 - 4));
}

static tdm_optim_range range_of(model *m, size_t from, size_t to)
{
    tdm_optim_range range = {.count = to - from,
                             .grad = m->grad + from,
                             .param = m->param + from,
                             .direction = m->grad + from};
    for (int i = 0; i < TDM_OPTIM_MAX_STATES; i++) range.state[i] = m->state[i] + from;
    return range;
}

/* One step over the whole model, in `piece_count` pieces; the last pieces first. */
static void update(const tdm_optim_ops *ops, const tdm_optim_settings *s, uint64_t step, model *m,
                   const size_t *cuts, size_t piece_count)
{
    double sums[8][TDM_OPTIM_SUMS] = {{0}}, all[TDM_OPTIM_SUMS] = {0};
    for (size_t i = piece_count; i-- > 0;) {
        tdm_optim_range range = range_of(m, cuts[i], cuts[i + 1]);
        if (ops->update)
            ops->update(s, step, &range);
        else
            ops->prepare(s, step, &range, sums[i]);
    }
    if (ops->update) return;
    for (size_t i = 0; i < piece_count; i++)
        for (int k = 0; k < TDM_OPTIM_SUMS; k++) all[k] += sums[i][k];
    for (size_t i = piece_count; i-- > 0;) {
        tdm_optim_range range = range_of(m, cuts[i], cuts[i + 1]);
        ops->apply(s, &range, all);
    }
}

static const size_t whole_cut[] = {0, COUNT};

/* ---- definitions ----------------------------------------------------------------------------- */

typedef struct case_of_kind {
    int kind;
    tdm_optim_settings settings;
} case_of_kind;

#define ADAM .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8
static const case_of_kind cases[] = {
    {TDM_JOB_OPTIM_SGD, {.lr = 0.1}},
    {TDM_JOB_OPTIM_SGD, {.lr = 0.01, .weight_decay = 0.05}},
    {TDM_JOB_OPTIM_SGD, {.lr = 0.05, .momentum = 0.9}},
    {TDM_JOB_OPTIM_SGD, {.lr = 0.05, .momentum = 0.9, .weight_decay = 0.1}},
    {TDM_JOB_OPTIM_SGD, {.lr = 0.05, .momentum = 0.9, .nesterov = true}},
    {TDM_JOB_OPTIM_SGD, {.lr = 0.02, .momentum = 0.5, .nesterov = true, .weight_decay = 0.01}},
    {TDM_JOB_OPTIM_ADAGRAD, {.lr = 0.05, .eps = 1e-10}},
    {TDM_JOB_OPTIM_ADAGRAD, {.lr = 0.01, .eps = 1e-3, .weight_decay = 0.1}},
    {TDM_JOB_OPTIM_RMSPROP, {.lr = 0.01, .alpha = 0.99, .eps = 1e-8}},
    {TDM_JOB_OPTIM_RMSPROP, {.lr = 0.01, .alpha = 0.9, .eps = 1e-8, .momentum = 0.9}},
    {TDM_JOB_OPTIM_RMSPROP, {.lr = 0.01, .alpha = 0.99, .eps = 1e-8, .centred = true}},
    {TDM_JOB_OPTIM_RMSPROP,
     {.lr = 0.01,
      .alpha = 0.8,
      .eps = 1e-4,
      .centred = true,
      .momentum = 0.5,
      .weight_decay = 0.1}},
    {TDM_JOB_OPTIM_ADAM, {.lr = 1e-3, ADAM}},
    {TDM_JOB_OPTIM_ADAM, {.lr = 1e-2, ADAM, .weight_decay = 0.1}},
    {TDM_JOB_OPTIM_ADAMW, {.lr = 1e-3, ADAM}},
    {TDM_JOB_OPTIM_ADAMW, {.lr = 1e-3, ADAM, .weight_decay = 0.01}},
    {TDM_JOB_OPTIM_ADAMW,
     {.lr = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.5}},
    {TDM_JOB_OPTIM_ADAMW, {.lr = 1e-2, .beta1 = 0, .beta2 = 0.9, .eps = 1e-8}},
    {TDM_JOB_OPTIM_LAMB, {.lr = 1e-2, ADAM}},
    {TDM_JOB_OPTIM_LAMB,
     {.lr = 1e-2, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6, .weight_decay = 0.5}},
    {TDM_JOB_OPTIM_LION, {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.99}},
    {TDM_JOB_OPTIM_LION, {.lr = 1e-2, .beta1 = 0.5, .beta2 = 0.9, .weight_decay = 0.5}},
};
enum { CASES = sizeof(cases) / sizeof(cases[0]) };

/* Each step adds a few rounding errors of numbers that are at most as large as the largest so far. */
static void compare(const case_of_kind *c, const tdm_optim_ops *ops, uint64_t step, const model *m,
                    const exact_number *exact, exact_number *largest)
{
    double units = 4e-7 * (double)(step + 1);
    for (int i = 0; i < COUNT; i++) {
        largest[i].param = fmax(largest[i].param, fabs(exact[i].param));
        CHECK_NEAR(m->param[i], exact[i].param, units * largest[i].param);
        double decay = c->settings.weight_decay * largest[i].param;
        for (int k = 0; k < ops->state_count; k++) {
            if (!tdm_optim_uses_state(ops, &c->settings, k)) continue;
            largest[i].state[k] = fmax(largest[i].state[k], fabs(exact[i].state[k]));
            CHECK_NEAR(m->state[k][i], exact[i].state[k], units * (largest[i].state[k] + decay));
        }
    }
}

static void each_follows_its_definition(void)
{
    for (size_t n = 0; n < CASES; n++) {
        const case_of_kind *c = &cases[n];
        const tdm_optim_ops *ops = tdm_optim_find(c->kind);
        model m, at_first;
        exact_number exact[COUNT] = {{0}}, largest[COUNT] = {{0}};
        begin(&m);
        begin(&at_first);
        for (int i = 0; i < COUNT; i++) exact[i].param = (double)m.param[i];
        for (int i = 0; i < COUNT; i++) largest[i].param = fabs(exact[i].param);
        for (uint64_t step = 1; step <= STEPS; step++) {
            draw_gradient(&m, step);
            exact_step(c->kind, &c->settings, step, m.grad, exact, COUNT);
            update(ops, &c->settings, step, &m, whole_cut, 1);
            compare(c, ops, step, &m, exact, largest);
        }
        double moved = 0;
        for (int i = 0; i < COUNT; i++)
            moved += fabs((double)m.param[i] - (double)at_first.param[i]);
        CHECK(moved > 0.01);
    }
}

/* A few steps, computed by hand. */
static void by_hand(void)
{
    const float grads[2] = {1, -2};
    float param = 10, velocity = 0;
    tdm_optim_settings s = {.lr = 0.5, .momentum = 0.5, .weight_decay = 0.25};
    for (uint64_t step = 1; step <= 2; step++) {
        tdm_optim_range r = {
            .count = 1, .grad = &grads[step - 1], .param = &param, .state = {&velocity}};
        tdm_optim_find(TDM_JOB_OPTIM_SGD)->update(&s, step, &r);
    }
    /* g 3.5, v 3.5, p 8.25; g 0.0625, v 1.8125, p 7.34375 */
    CHECK(velocity == 1.8125f && param == 7.34375f);

    param = 1;
    float m = 0, v = 0;
    s = (tdm_optim_settings){.lr = 0.125, .beta1 = 0.5, .beta2 = 0.5, .eps = 0, .weight_decay = 2};
    tdm_optim_range r = {.count = 1, .grad = &grads[1], .param = &param, .state = {&m, &v}};
    tdm_optim_find(TDM_JOB_OPTIM_ADAMW)->update(&s, 1, &r);
    /* m -1, v 2; corrected -2 and 4: the step is lr times +1; decay leaves 0.75. */
    CHECK(m == -1 && v == 2);
    CHECK_NEAR(param, 0.875, 1e-7);

    param = 4;
    m = 0;
    s = (tdm_optim_settings){.lr = 0.5, .beta1 = 0.5, .beta2 = 0.75, .weight_decay = 0.5};
    tdm_optim_find(TDM_JOB_OPTIM_LION)->update(&s, 1, &r);
    CHECK(m == -0.5f && param == 3.5f); /* 4 * 0.75 + 0.5 */
}

/* LAMB's step is proportional to the norm of the tensor, and a tensor of zeros starts to change. */
static void lamb_by_hand(void)
{
    const tdm_optim_ops *lamb = tdm_optim_find(TDM_JOB_OPTIM_LAMB);
    tdm_optim_settings s = {.lr = 0.25, .beta1 = 0.5, .beta2 = 0.5, .eps = 0};
    for (int zeros = 0; zeros < 2; zeros++) {
        float grad[2] = {5, -7}, param[2] = {zeros ? 0.0f : 3.0f, zeros ? 0.0f : 4.0f};
        float m[2] = {0, 0}, v[2] = {0, 0};
        double sums[TDM_OPTIM_SUMS];
        tdm_optim_range r = {
            .count = 2, .grad = grad, .param = param, .state = {m, v}, .direction = grad};
        lamb->prepare(&s, 1, &r, sums);
        /* The direction is (1, -1); the norms are 5 and sqrt(2). */
        CHECK_NEAR(sums[0], zeros ? 0 : 25, 1e-9);
        CHECK_NEAR(sums[1], 2, 1e-6);
        lamb->apply(&s, &r, sums);
        double length = zeros ? 0.25 : 0.25 * 5 / sqrt(2);
        CHECK_NEAR(param[0], (zeros ? 0 : 3) - length, 1e-6);
        CHECK_NEAR(param[1], (zeros ? 0 : 4) + length, 1e-6);
    }
}

/* ---- bits ------------------------------------------------------------------------------------ */

static void train(const tdm_optim_ops *ops, const tdm_optim_settings *s, const size_t *cuts,
                  size_t piece_count, model *m)
{
    begin(m);
    for (uint64_t step = 1; step <= STEPS; step++) {
        draw_gradient(m, step);
        update(ops, s, step, m, cuts, piece_count);
    }
}

static void pieces_give_the_same_bits(void)
{
    static const size_t cuts[][6] = {{0, 1, 2, 3, 50, COUNT},
                                     {0, 16, 32, 48, 64, COUNT},
                                     {0, 7, 7, 20, 96, COUNT}, /* an empty piece too */
                                     {0, 33, 34, 41, 90, COUNT}};
    for (size_t n = 0; n < CASES; n++) {
        const tdm_optim_ops *ops = tdm_optim_find(cases[n].kind);
        /* sums depend on the division: see the tests of the optimiser */
        if (!ops->update) continue;
        model whole, pieces;
        train(ops, &cases[n].settings, whole_cut, 1, &whole);
        for (size_t c = 0; c < sizeof(cuts) / sizeof(cuts[0]); c++) {
            train(ops, &cases[n].settings, cuts[c], 5, &pieces);
            CHECK(same_bits(&whole, &pieces, sizeof(whole)));
        }
    }
}

static void all_levels_give_the_same_bits(void)
{
    int here = tdm_kernel_level();
    for (size_t n = 0; n < CASES; n++) {
        model first, other;
        train(tdm_optim_find(cases[n].kind), &cases[n].settings, whole_cut, 1, &first);
        for (int level = 2; level <= here; level++) {
            const tdm__optim_list *list = tdm__optims_at(level);
            CHECK_INT(list->level, level);
            train(list->by_kind[cases[n].kind], &cases[n].settings, whole_cut, 1, &other);
            CHECK(same_bits(&first, &other, sizeof(first)));
        }
    }
}

static void loops_follow_their_definition_at_all_levels(void)
{
    model m;
    begin(&m);
    draw_gradient(&m, 1);
    for (int level = 2; level <= tdm_kernel_level(); level++) {
        const tdm__optim_loops *loops = tdm__optims_at(level)->loops;
        for (size_t count = 0; count < 40; count++) {
            float copy[COUNT], average[COUNT];
            double sum = 0;
            for (size_t i = 0; i < count; i++) sum += (double)m.grad[i] * (double)m.grad[i];
            CHECK_NEAR(loops->sum_squares(m.grad, count), sum, 1e-15 * sum);
            CHECK(loops->sum_squares(m.grad, count) ==
                  tdm__optims_here()->loops->sum_squares(m.grad, count));
            memcpy(copy, m.grad, sizeof(copy));
            memcpy(average, m.param, sizeof(average));
            loops->clamp(copy, count, 0.01f);
            loops->average(average, m.grad, count, 0.75);
            for (size_t i = 0; i < COUNT; i++) {
                float cut = fminf(fmaxf(m.grad[i], -0.01f), 0.01f);
                CHECK(copy[i] == (i < count ? cut : m.grad[i]));
                CHECK(average[i] ==
                      (i < count ? 0.75f * m.param[i] + 0.25f * m.grad[i] : m.param[i]));
            }
            loops->scale(copy, count, 3.0f);
            for (size_t i = 0; i < count; i++)
                CHECK(copy[i] == 3.0f * fminf(fmaxf(m.grad[i], -0.01f), 0.01f));
        }
        float odd[2] = {NAN, INFINITY};
        loops->clamp(odd, 2, 1);
        CHECK(isnan(odd[0]) && odd[1] == 1);
    }
}

static void nothing_outside_the_range_is_touched(void)
{
    static const tdm_optim_settings s = {
        .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .alpha = 0.9, .momentum = 0.9, .eps = 1e-8};
    for (int kind = 0; kind < KINDS; kind++) {
        const tdm_optim_ops *ops = tdm_optim_find(kind);
        model before, after;
        begin(&before);
        draw_gradient(&before, 1);
        after = before;
        tdm_optim_range range = range_of(&after, 11, 14);
        double sums[TDM_OPTIM_SUMS];
        if (ops->update) {
            ops->update(&s, 1, &range);
            CHECK(same_bits(before.grad, after.grad, sizeof(before.grad)));
        } else {
            ops->prepare(&s, 1, &range, sums);
            ops->apply(&s, &range, sums);
        }
        for (int i = 0; i < COUNT; i++) {
            bool inside = i >= 11 && i < 14;
            CHECK_INT(before.param[i] != after.param[i], inside);
            CHECK_INT(after.state[0][i] != 0, inside);
            CHECK(inside || before.grad[i] == after.grad[i]);
        }
    }
}

/* A state that is not used is optional. */
static void states_are_there_when_they_are_used(void)
{
    float grad = 1, param = 1, state = 0;
    tdm_optim_range r = {.count = 1, .grad = &grad, .param = &param};
    tdm_optim_settings s = {.lr = 0.5, .alpha = 0.5, .eps = 0};
    const tdm_optim_ops *sgd = tdm_optim_find(TDM_JOB_OPTIM_SGD);
    const tdm_optim_ops *rmsprop = tdm_optim_find(TDM_JOB_OPTIM_RMSPROP);
    CHECK(!tdm_optim_uses_state(sgd, &s, 0));
    sgd->update(&s, 1, &r);
    CHECK(param == 0.5f);
    CHECK(tdm_optim_uses_state(rmsprop, &s, 0) && !tdm_optim_uses_state(rmsprop, &s, 1) &&
          !tdm_optim_uses_state(rmsprop, &s, 2) && !tdm_optim_uses_state(rmsprop, &s, 3));
    r.state[0] = &state;
    rmsprop->update(&s, 1, &r);
    CHECK(state == 0.5f);
    s.centred = true;
    s.momentum = 0.5;
    CHECK(tdm_optim_uses_state(rmsprop, &s, 1) && tdm_optim_uses_state(rmsprop, &s, 2));
    CHECK(tdm_optim_uses_state(sgd, &s, 0) && !tdm_optim_uses_state(sgd, &s, 1));
}

/* ---- the table ------------------------------------------------------------------------------- */

static void table_and_settings(void)
{
    static const struct {
        const char *name;
        int state_count;
        const char *states[TDM_OPTIM_MAX_STATES];
    } expected[KINDS] = {
        [TDM_JOB_OPTIM_SGD] = {"sgd", 1, {"velocity"}},
        [TDM_JOB_OPTIM_ADAGRAD] = {"adagrad", 1, {"sum"}},
        [TDM_JOB_OPTIM_RMSPROP] = {"rmsprop", 3, {"square", "mean", "velocity"}},
        [TDM_JOB_OPTIM_ADAM] = {"adam", 2, {"m", "v"}},
        [TDM_JOB_OPTIM_ADAMW] = {"adamw", 2, {"m", "v"}},
        [TDM_JOB_OPTIM_LAMB] = {"lamb", 2, {"m", "v"}},
        [TDM_JOB_OPTIM_LION] = {"lion", 1, {"m"}},
    };
    for (int kind = 0; kind < KINDS; kind++) {
        const tdm_optim_ops *ops = tdm_optim_find(kind);
        CHECK_TEXT(ops->name, expected[kind].name);
        CHECK_INT(ops->state_count, expected[kind].state_count);
        for (int k = 0; k < ops->state_count; k++)
            CHECK_TEXT(ops->state_names[k], expected[kind].states[k]);
        CHECK((ops->update != NULL) != (ops->prepare != NULL && ops->apply != NULL));
    }
    CHECK(!tdm_optim_find(-1));
    CHECK(!tdm_optim_find(KINDS));

    tdm_job job = {.optim = {.lr = 1,
                             .momentum = 2,
                             .nesterov = true,
                             .beta1 = 3,
                             .beta2 = 4,
                             .alpha = 7,
                             .centred = true,
                             .eps = 5,
                             .weight_decay = 6}};
    tdm_optim_settings s = tdm_optim_settings_of(&job);
    CHECK(s.lr == 1 && s.momentum == 2 && s.nesterov && s.beta1 == 3 && s.beta2 == 4 &&
          s.eps == 5 && s.weight_decay == 6 && s.alpha == 7 && s.centred);
}

static const check_test tests[] = {
    CHECK_TEST(by_hand),
    CHECK_TEST(lamb_by_hand),
    CHECK_TEST(each_follows_its_definition),
    CHECK_TEST(pieces_give_the_same_bits),
    CHECK_TEST(all_levels_give_the_same_bits),
    CHECK_TEST(loops_follow_their_definition_at_all_levels),
    CHECK_TEST(nothing_outside_the_range_is_touched),
    CHECK_TEST(states_are_there_when_they_are_used),
    CHECK_TEST(table_and_settings),
    /* optim_optimiser_cases.c */
    /* optim_schedule_cases.h */
};
static CHECK_SUITE(optim_kinds, tests);

CHECK_MAIN_SUITES(&optim_kinds, &optim_optimiser, &optim_schedule)
