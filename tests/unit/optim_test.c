/*
 * optim_test.c: the optimisers against their definitions in double precision, and the property on
 * which parallel updates stand: a range updated in pieces has the same bits as one updated whole.
 */
#include <tandem/optim.h>

#include "check.h"

enum { COUNT = 97, STEPS = 20 };

typedef struct model {
    float param[COUNT], grad[COUNT], state[TDM_OPTIM_MAX_STATES][COUNT];
} model;

/* The same things in double precision, and the largest that each of them ever was. */
typedef struct exact {
    double param[COUNT], state[TDM_OPTIM_MAX_STATES][COUNT];
    double largest_param[COUNT], largest_state[TDM_OPTIM_MAX_STATES][COUNT];
} exact;

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

/* Gradients of very different sizes, zero among them. */
static void draw_gradient(model *m, uint64_t step)
{
    tdm_rng rng = rng_at(2, step);
    for (int i = 0; i < COUNT; i++)
        m->grad[i] = i % 10 == 0 ? 0.0f : (float)(tdm_rng_normal(&rng) * pow(10, i % 7 - 4));
}

static void update(const tdm_optim_ops *ops, const tdm_optim_settings *s, uint64_t step, model *m,
                   size_t from, size_t to)
{
    tdm_optim_range range = {.count = to - from, .grad = m->grad + from, .param = m->param + from};
    for (int i = 0; i < ops->state_count; i++) range.state[i] = m->state[i] + from;
    ops->update(s, step, &range);
}

/* PyTorch's definition (torch.optim.SGD, dampening 0). */
static void exact_sgd(const tdm_optim_settings *s, const model *m, exact *e)
{
    for (int i = 0; i < COUNT; i++) {
        double g = (double)m->grad[i] + s->weight_decay * e->param[i];
        double velocity = s->momentum * e->state[0][i] + g;
        e->state[0][i] = velocity;
        if (s->nesterov)
            e->param[i] -= s->lr * (g + s->momentum * velocity);
        else
            e->param[i] -= s->lr * velocity;
    }
}

/* Loshchilov and Hutter, algorithm 2, with a schedule of 1. */
static void exact_adamw(const tdm_optim_settings *s, uint64_t step, const model *m, exact *e)
{
    for (int i = 0; i < COUNT; i++) {
        double g = (double)m->grad[i];
        e->param[i] -= s->lr * s->weight_decay * e->param[i];
        e->state[0][i] = s->beta1 * e->state[0][i] + (1 - s->beta1) * g;
        e->state[1][i] = s->beta2 * e->state[1][i] + (1 - s->beta2) * g * g;
        double m_hat = e->state[0][i] / (1 - pow(s->beta1, (double)step));
        double v_hat = e->state[1][i] / (1 - pow(s->beta2, (double)step));
        e->param[i] -= s->lr * m_hat / (sqrt(v_hat) + s->eps);
    }
}

/* Each step adds a few roundings of numbers no larger than the largest there ever were. */
static void compare_numbers(const tdm_optim_ops *ops, const tdm_optim_settings *s, uint64_t step,
                            const model *m, exact *e)
{
    double units = 2e-7 * (double)(step + 1);
    for (int i = 0; i < COUNT; i++) {
        e->largest_param[i] = fmax(e->largest_param[i], fabs(e->param[i]));
        CHECK_NEAR(m->param[i], e->param[i], units * e->largest_param[i]);
        double decay = s->weight_decay * e->largest_param[i];
        for (int k = 0; k < ops->state_count; k++) {
            e->largest_state[k][i] = fmax(e->largest_state[k][i], fabs(e->state[k][i]));
            CHECK_NEAR(m->state[k][i], e->state[k][i], units * (e->largest_state[k][i] + decay));
        }
    }
}

static void compare_with_definition(int kind, const tdm_optim_settings *s)
{
    const tdm_optim_ops *ops = tdm_optim_find(kind);
    model m, at_first;
    exact e = {0};
    begin(&m);
    begin(&at_first);
    for (int i = 0; i < COUNT; i++) {
        e.param[i] = (double)m.param[i];
        e.largest_param[i] = fabs(e.param[i]);
    }
    for (uint64_t step = 1; step <= STEPS; step++) {
        draw_gradient(&m, step);
        update(ops, s, step, &m, 0, COUNT);
        if (kind == TDM_JOB_OPTIM_SGD)
            exact_sgd(s, &m, &e);
        else
            exact_adamw(s, step, &m, &e);
        compare_numbers(ops, s, step, &m, &e);
    }
    double moved = 0;
    for (int i = 0; i < COUNT; i++) moved += fabs((double)m.param[i] - (double)at_first.param[i]);
    CHECK(moved > 0.01);
}

static void sgd_follows_its_definition(void)
{
    static const tdm_optim_settings settings[] = {
        {.lr = 0.1},
        {.lr = 0.01, .weight_decay = 0.05},
        {.lr = 0.05, .momentum = 0.9},
        {.lr = 0.05, .momentum = 0.9, .weight_decay = 0.1},
        {.lr = 0.05, .momentum = 0.9, .nesterov = true},
        {.lr = 0.02, .momentum = 0.5, .nesterov = true, .weight_decay = 0.01},
    };
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        compare_with_definition(TDM_JOB_OPTIM_SGD, &settings[i]);
}

static void adamw_follows_its_definition(void)
{
    static const tdm_optim_settings settings[] = {
        {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
        {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01},
        {.lr = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.5},
        {.lr = 1e-2, .beta1 = 0, .beta2 = 0.9, .eps = 1e-8},
    };
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        compare_with_definition(TDM_JOB_OPTIM_ADAMW, &settings[i]);
}

/* Two steps of each, worked out on paper. */
static void by_hand(void)
{
    const float grads[2] = {1, -2};
    float param = 10, velocity = 0;
    tdm_optim_settings s = {.lr = 0.5, .momentum = 0.5, .weight_decay = 0.25};
    for (uint64_t step = 1; step <= 2; step++) {
        tdm_optim_range r = {1, &grads[step - 1], &param, {&velocity, NULL}};
        tdm_optim_find(TDM_JOB_OPTIM_SGD)->update(&s, step, &r);
    }
    /* g 3.5, v 3.5, p 8.25; g 0.0625, v 1.8125, p 7.34375 */
    CHECK(velocity == 1.8125f && param == 7.34375f);

    param = 1;
    float m = 0, v = 0;
    s = (tdm_optim_settings){.lr = 0.125, .beta1 = 0.5, .beta2 = 0.5, .eps = 0, .weight_decay = 2};
    tdm_optim_range r = {1, &grads[1], &param, {&m, &v}};
    tdm_optim_find(TDM_JOB_OPTIM_ADAMW)->update(&s, 1, &r);
    /* m -1, v 2; corrected -2 and 4: the step is lr times +1; decay leaves 0.75. */
    CHECK(m == -1 && v == 2);
    CHECK_NEAR(param, 0.875, 1e-7);
}

static void pieces_give_the_same_bits(void)
{
    static const tdm_optim_settings s = {.lr = 0.01,
                                         .momentum = 0.9,
                                         .nesterov = true,
                                         .beta1 = 0.9,
                                         .beta2 = 0.999,
                                         .eps = 1e-8,
                                         .weight_decay = 0.01};
    static const size_t cuts[][6] = {{0, 1, 2, 3, 50, COUNT},
                                     {0, 16, 32, 48, 64, COUNT},
                                     {0, 7, 7, 20, 96, COUNT}, /* an empty piece too */
                                     {0, 33, 34, 41, 90, COUNT}};
    for (int kind = TDM_JOB_OPTIM_SGD; kind <= TDM_JOB_OPTIM_ADAMW; kind++)
        for (size_t c = 0; c < sizeof(cuts) / sizeof(cuts[0]); c++) {
            model whole, pieces;
            begin(&whole);
            begin(&pieces);
            for (uint64_t step = 1; step <= STEPS; step++) {
                draw_gradient(&whole, step);
                draw_gradient(&pieces, step);
                update(tdm_optim_find(kind), &s, step, &whole, 0, COUNT);
                for (int i = 5; i-- > 0;) /* and in another order */
                    update(tdm_optim_find(kind), &s, step, &pieces, cuts[c][i], cuts[c][i + 1]);
            }
            CHECK(same_bits(&whole, &pieces, sizeof(whole)));
        }
}

static void nothing_outside_the_range_is_touched(void)
{
    static const tdm_optim_settings s = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
    for (int kind = TDM_JOB_OPTIM_SGD; kind <= TDM_JOB_OPTIM_ADAMW; kind++) {
        model before, after;
        begin(&before);
        draw_gradient(&before, 1);
        after = before;
        update(tdm_optim_find(kind), &s, 1, &after, 11, 14);
        CHECK(same_bits(before.grad, after.grad, sizeof(before.grad)));
        for (int i = 0; i < COUNT; i++) {
            bool inside = i >= 11 && i < 14;
            CHECK_INT(before.param[i] != after.param[i], inside);
            CHECK_INT(after.state[0][i] != 0, inside);
        }
    }
}

static void table_and_settings(void)
{
    const tdm_optim_ops *sgd = tdm_optim_find(TDM_JOB_OPTIM_SGD);
    const tdm_optim_ops *adamw = tdm_optim_find(TDM_JOB_OPTIM_ADAMW);
    CHECK_TEXT(sgd->name, "sgd");
    CHECK_INT(sgd->state_count, 1);
    CHECK_TEXT(sgd->state_names[0], "velocity");
    CHECK_TEXT(adamw->name, "adamw");
    CHECK_INT(adamw->state_count, 2);
    CHECK_TEXT(adamw->state_names[0], "m");
    CHECK_TEXT(adamw->state_names[1], "v");
    CHECK(!tdm_optim_find(-1));
    CHECK(!tdm_optim_find(TDM_JOB_OPTIM_ADAMW + 1));

    tdm_job job = {.optim = {.lr = 1,
                             .momentum = 2,
                             .nesterov = true,
                             .beta1 = 3,
                             .beta2 = 4,
                             .eps = 5,
                             .weight_decay = 6}};
    tdm_optim_settings s = tdm_optim_settings_of(&job);
    CHECK(s.lr == 1 && s.momentum == 2 && s.nesterov && s.beta1 == 3 && s.beta2 == 4 &&
          s.eps == 5 && s.weight_decay == 6);
}

static const check_test tests[] = {
    CHECK_TEST(by_hand),
    CHECK_TEST(sgd_follows_its_definition),
    CHECK_TEST(adamw_follows_its_definition),
    CHECK_TEST(pieces_give_the_same_bits),
    CHECK_TEST(nothing_outside_the_range_is_touched),
    CHECK_TEST(table_and_settings),
};
CHECK_MAIN(tests)
