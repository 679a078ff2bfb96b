/*
 * bad_numbers_test.c: NaN and infinity in a step: it must change nothing, for any number of ranks, and the
 * replay must name the op that produced them.
 *
 * The numbers are really non-finite: data that overflows in a product, gradients that overflow although the
 * loss is finite, gradients that overflow only when lanes are added, finite gradients whose square is not
 * finite, an op of the test that produces a NaN. A gradient that is huge and has a finite square is valid, and
 * must be trained.
 */
#include "parallel/internal.h"
#include "team_bench.h"

enum { BATCH = 21, LANES = 4 };

/* The first feature has weight 0, so that it affects only the gradient and not the loss; and the second layer
 * has large weights, so that this gradient is large. */
static void hide_first_feature(team_bench *b)
{
    tdm_tensor first = tdm_model_param(b->graph, "fc1.weight", b->params);
    tdm_tensor second = tdm_model_param(b->graph, "fc2.weight", b->params);
    float *w = first.data, *v = second.data;
    for (int64_t i = 0; i < first.shape.dim[0]; i++) w[i * TEAM_BENCH_FEATURES] = 0;
    for (int64_t i = 0; i < tdm_tensor_elements(&second); i++) v[i] *= 100;
}

typedef struct trial {
    team_shape shape;
    void (*change)(team_bench *b);
    tdm_step_result result;
    tdm_bad_number bad;
    char name[64], op[64];
    int done;
} trial;

/* One step of a team on a new bench; what the replay reports if it is not finite. All ranks report the same.
 * */
static void try_on_rank(tdm_comm *comm, void *user)
{
    trial *t = user;
    team_bench b, untouched;
    tdm_step_result r = {.loss = NAN};
    tdm_bad_number bad = {.kind = TDM_BAD_NOWHERE};
    team_shape shape = t->shape;
    shape.comm = comm;
    if (!team_bench_open(&b, &shape) || !team_bench_prepare(&untouched, &shape)) return;
    if (t->change) {
        t->change(&b);
        t->change(&untouched);
    }
    r = team_bench_step(&b, 0, BATCH);
    CHECK_INT(team_bench_same(&b, &untouched), !r.finite);
    if (!r.finite) {
        CHECK_INT(tdm_team_replay(b.team, &bad, NULL), TDM_OK);
        CHECK(team_bench_same(&b, &untouched));
        b.shape.huge = 0; /* the team is not affected */
        b.shape.poison = false;
        b.shape.huge_rows = false;
        if (bad.kind != TDM_BAD_PARAM) CHECK(team_bench_step(&b, 1, BATCH).finite);
    }
    if (t->done++ == 0) {
        t->result = r;
        t->bad = bad;
        snprintf(t->name, sizeof(t->name), "%s", bad.name ? bad.name : "");
        snprintf(t->op, sizeof(t->op), "%s", bad.op ? bad.op : "");
    }
    CHECK_INT(bad.kind, t->bad.kind);
    CHECK_INT(bad.lane, t->bad.lane);
    CHECK_TEXT(bad.name ? bad.name : "", t->name);
    team_bench_close(&b);
    team_bench_close(&untouched);
}

static tdm_step_result step_of(team_shape shape, int ranks, void (*change)(team_bench *b),
                               tdm_bad_number *bad)
{
    static trial t; /* names are valid until the next team */
    shape.batches[0] = BATCH;
    t = (trial){.shape = shape, .change = change};
    team_bench_on_ranks(ranks, try_on_rank, &t);
    CHECK_INT(t.done, ranks);
    *bad = t.bad;
    bad->name = t.name;
    bad->op = t.op;
    return t.result;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void data_that_is_bad_itself(void)
{
    for (int ranks = 1; ranks <= LANES; ranks++) {
        tdm_bad_number bad;
        team_shape shape = {.lanes = LANES, .poison = true};
        CHECK(!step_of(shape, ranks, NULL, &bad).finite);
        CHECK_INT(bad.kind, TDM_BAD_DATA);
        CHECK(bad.is_nan);
        CHECK_INT(bad.lane, LANES - 1);
        CHECK_INT(bad.bad_rows, 1);
        CHECK_INT(bad.first_row, BATCH - 1);
    }
}

static void widen(team_bench *b)
{
    tdm_tensor first = tdm_model_param(b->graph, "fc1.weight", b->params);
    float *w = first.data;
    for (int64_t i = 0; i < tdm_tensor_elements(&first); i++) w[i] *= 100;
}

static void the_op_and_the_row_are_named(void)
{
    for (int backend = TDM_JOB_BACKEND_AUTO; backend <= TDM_JOB_BACKEND_REF; backend++)
        for (int ranks = 1; ranks <= LANES; ranks++) {
            tdm_bad_number bad;
            team_shape shape = {.lanes = LANES, .huge = 3e38f, .backend = backend};
            tdm_step_result r = step_of(shape, ranks, widen, &bad);
            CHECK(!r.finite && !isfinite(r.loss));
            CHECK_INT(bad.kind, TDM_BAD_OP);
            CHECK_TEXT(bad.name, "fc1.matmul+relu");
            CHECK_TEXT(bad.op, "matmul");
            CHECK(!bad.backward);
            CHECK(!bad.is_nan); /* first an infinity, then a NaN computed from it */
            CHECK_INT(bad.lane, LANES - 1);
            CHECK_INT(bad.rows.first + bad.rows.count, BATCH);
            CHECK_INT(bad.bad_rows, 1);
            CHECK_INT(bad.first_row, BATCH - 1);
            shape.huge_rows = true;
            step_of(shape, ranks, widen, &bad);
            CHECK_INT(bad.lane, 0);
            CHECK_INT(bad.bad_rows, bad.rows.count);
            CHECK_INT(bad.first_row, 0);
        }
}

/* Without clip_norm the norm of the gradient is not used; the gradient is checked nevertheless. And
 * clip_value does not turn an infinity into a number. */
static void a_gradient_that_overflows_while_the_loss_is_fine(void)
{
    static const team_shape shapes[] = {{.optim = TDM_JOB_OPTIM_SGD},
                                        {.optim = TDM_JOB_OPTIM_ADAMW, .ema = 0.9},
                                        {.optim = TDM_JOB_OPTIM_LAMB},
                                        {.optim = TDM_JOB_OPTIM_ADAMW, .clip_norm = 1},
                                        {.optim = TDM_JOB_OPTIM_LION, .clip_value = 1}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int lanes = 1; lanes <= LANES; lanes *= 2)
            for (int ranks = 1; ranks <= lanes; ranks++) {
                tdm_bad_number bad;
                team_shape shape = shapes[i];
                shape.lanes = lanes;
                shape.huge = 3.4e38f;
                tdm_step_result r = step_of(shape, ranks, hide_first_feature, &bad);
                CHECK(!r.finite && isfinite(r.loss));
                CHECK_INT(bad.kind, TDM_BAD_OP);
                CHECK(bad.backward);
                CHECK_TEXT(bad.name, "fc1.matmul+relu.matmul.d_w");
                CHECK_INT(bad.lane, lanes - 1);
                CHECK_INT(bad.bad_rows, 0); /* a matrix of weights has no rows of samples */
            }
}

/* Each lane's gradient is finite. The required magnitude is found by trial. */
static void a_sum_that_overflows(void)
{
    int found = 0;
    for (float huge = 1e36f; huge < 3.3e38f && found == 0; huge *= 1.1f)
        for (int ranks = 1; ranks <= LANES; ranks++) {
            tdm_bad_number bad;
            team_shape shape = {.lanes = LANES, .huge = huge, .huge_rows = true};
            CHECK(!step_of(shape, ranks, hide_first_feature, &bad).finite);
            CHECK_TEXT(bad.name, "fc1.weight");
            if (bad.kind == TDM_BAD_LARGE) {
                CHECK_INT(found, 0); /* for all numbers of ranks, or for none */
                break;
            }
            found++;
            CHECK_INT(bad.kind, TDM_BAD_SUM);
        }
    CHECK_INT(found, LANES);
}

/* Adam would store its square, a permanent infinity. It is an error for all optimisers, with any clipping. */
static void a_gradient_whose_square_overflows(void)
{
    for (int optim = TDM_JOB_OPTIM_SGD; optim <= TDM_JOB_OPTIM_LION; optim++)
        for (int ranks = 1; ranks <= LANES; ranks++) {
            tdm_bad_number bad;
            team_shape shape = {.lanes = LANES,
                                .optim = optim,
                                .huge = 1e20f,
                                .huge_rows = true,
                                .clip_value = ranks % 2 ? 1 : 0};
            tdm_step_result r = step_of(shape, ranks, hide_first_feature, &bad);
            CHECK(!r.finite && isfinite(r.loss));
            CHECK_INT(bad.kind, TDM_BAD_LARGE);
            CHECK_TEXT(bad.name, "fc1.weight");
        }
}

/* The largest gradient that is trained leaves finite states. */
static void squares_of_good_gradients_are_finite(void)
{
    for (int optim = TDM_JOB_OPTIM_SGD; optim <= TDM_JOB_OPTIM_LION; optim++) {
        float largest = 0;
        for (float huge = 1e17f; huge < 1e21f; huge *= 1.5f) {
            team_bench b;
            team_shape shape = {.lanes = LANES,
                                .batches = {BATCH},
                                .optim = optim,
                                .huge = huge,
                                .huge_rows = true};
            if (!team_bench_open(&b, &shape)) return;
            hide_first_feature(&b);
            if (team_bench_step(&b, 0, BATCH).finite) largest = huge;
            for (int s = 0; s < TDM_OPTIM_MAX_STATES; s++)
                for (size_t i = 0; b.states[s] && i < b.trained_extent; i++)
                    CHECK(isfinite(b.states[s][i]));
            team_bench_close(&b);
        }
        CHECK(largest >= 1e17f && largest < 1e20f);
    }
}

/* Huge numbers are checked exactly, and then trained: the same bits for all numbers of ranks. */
static void train_on_huge(tdm_comm *comm, void *user)
{
    team_bench b, *first = user;
    team_shape shape = {.lanes = LANES, .comm = comm, .batches = {BATCH}, .huge = 1e17f};
    if (!team_bench_open(&b, &shape)) return;
    hide_first_feature(&b);
    CHECK(team_bench_step(&b, 0, BATCH).finite);
    if (!comm) {
        *first = b;
        float *w = tdm_model_param(b.graph, "fc1.weight", b.params).data;
        CHECK(fabsf(w[0]) > 0x1p47f || fabsf(w[TEAM_BENCH_FEATURES]) > 0x1p47f);
        return;
    }
    CHECK(team_bench_same(&b, first));
    team_bench_close(&b);
}

static void huge_gradients_are_not_bad_numbers(void)
{
    team_bench first;
    for (int ranks = 1; ranks <= LANES; ranks++) team_bench_on_ranks(ranks, train_on_huge, &first);
    team_bench_close(&first);
}

static void break_param(team_bench *b)
{
    float *w = tdm_model_param(b->graph, "fc2.bias", b->params).data;
    w[1] = INFINITY;
}

static void a_parameter_that_was_bad_before(void)
{
    tdm_bad_number bad;
    CHECK(!step_of((team_shape){.lanes = LANES}, 2, break_param, &bad).finite);
    CHECK_INT(bad.kind, TDM_BAD_PARAM);
    CHECK_TEXT(bad.name, "fc2.bias");
    CHECK(!bad.is_nan);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

typedef enum spoil { SPOIL_NOT, SPOIL_NAN, SPOIL_INFINITY } spoil;

static tdm_status spoil_infer(const tdm_shape in[], const void *attrs, tdm_shape *out,
                              tdm_error *err)
{
    (void)attrs;
    (void)err;
    *out = in[0];
    return TDM_OK;
}

static void spoil_run(const tdm_tensor in[], const void *attrs, tdm_tensor out)
{
    const spoil *how = attrs;
    float *to = out.data;
    memcpy(to, in[0].data, tdm_tensor_bytes(&out));
    if (*how == SPOIL_NAN) to[tdm_tensor_elements(&out) - 1] = NAN;
    if (*how == SPOIL_INFINITY) to[tdm_tensor_elements(&out) - 1] = INFINITY;
}

static void spoil_backward(tdm_graph *graph, const tdm_value in[], tdm_value out, tdm_value d_out,
                           const void *attrs, tdm_value d_in[])
{
    (void)graph;
    (void)in;
    (void)out;
    (void)attrs;
    d_in[0] = d_out;
}

static const tdm_custom_op spoil_op = {.name = "spoil",
                                       .in_count = 1,
                                       .infer = spoil_infer,
                                       .run = spoil_run,
                                       .backward = spoil_backward};

/* x [rows, 2] -> x w -> spoil -> sigmoid -> sum: the sigmoid of an infinity is finite. Or the weights are
 * spoiled, which have the shape of six rows. */
static tdm_graph *spoiled_graph(const spoil *how, int64_t rows, bool of_params)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value x = tdm_graph_input(g, TDM_MODEL_INPUT, TDM_DTYPE_F32, tdm_shape_2(rows, 2));
    tdm_value w = tdm_graph_param(g, "w", tdm_shape_2(6, 2), (tdm_init){0});
    tdm_graph_scope(g, "body");
    if (of_params) w = tdm_graph_custom(g, &spoil_op, &w, how);
    tdm_value y = tdm_graph_linear(g, x, w, TDM_VALUE_NONE, TDM_ACTIVATION_NONE);
    if (!of_params) y = tdm_graph_custom(g, &spoil_op, &y, how);
    y = tdm_graph_sigmoid(g, y);
    tdm_value loss = tdm_graph_sum(g, y, -1);
    tdm_graph_output(g, TDM_MODEL_LOSS, loss);
    CHECK_INT(tdm_graph_backward(g, loss, NULL), TDM_OK);
    return g;
}

static bool blame(spoil how, int64_t rows, bool of_params, tdm_bad_number *bad)
{
    _Alignas(64) float params[64] = {0.5f, 1, 2, 3}, grads[64] = {0};
    tdm_graph *g = spoiled_graph(&how, rows, of_params);
    tdm_plan *plan = NULL;
    tdm_pages arena;
    bool found = false;
    CHECK_INT(tdm_plan_create(g, &(tdm_plan_options){.backend = "ref"}, &plan, NULL), TDM_OK);
    CHECK_INT(tdm_pages_map(tdm_plan_arena_bytes(plan), false, &arena, NULL), TDM_OK);
    if (plan && arena.data) {
        tdm_plan_bind(plan, TDM_SPACE_ARENA, arena.data);
        tdm_plan_bind(plan, TDM_SPACE_PARAMS, params);
        tdm_plan_bind(plan, TDM_SPACE_GRADS, grads);
        float *x = tdm_plan_input(plan, TDM_MODEL_INPUT).data;
        for (int64_t i = 0; i < 2 * rows; i++) x[i] = (float)i;
        tdm__lane_run lane = {.plan = plan, .grads = grads, .lane = 7, .rows = {30, rows}};
        tdm__watcher w;
        tdm__watcher_begin(&w, g, &lane);
        tdm__watcher_run(&w, 0, tdm_plan_step_count(plan));
        found = tdm__watcher_has_found(&w);
        if (found) *bad = w.found;
        if (found) CHECK(strstr(bad->name, "spoil") != NULL);
        if (found) CHECK_TEXT(bad->op, "spoil");
    }
    tdm_plan_destroy(plan);
    tdm_graph_destroy(g);
    tdm_pages_unmap(&arena);
    return found;
}

static void a_custom_op(void)
{
    tdm_bad_number bad = {0};
    CHECK(!blame(SPOIL_NOT, 3, false, &bad));
    CHECK(blame(SPOIL_NAN, 3, false, &bad));
    CHECK_INT(bad.kind, TDM_BAD_OP);
    CHECK(bad.is_nan && !bad.backward);
    CHECK_INT(bad.lane, 7);
    CHECK_INT(bad.bad_rows, 1);
    CHECK_INT(bad.first_row, 32);
    CHECK(blame(SPOIL_NAN, 1, false, &bad));
    CHECK_INT(bad.bad_rows, 1);
    CHECK_INT(bad.first_row, 30);
}

/* No sample is named, whatever the shape is. */
static void a_number_made_of_parameters_alone(void)
{
    static const int64_t rows[] = {1, 2, 3, 6};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tdm_bad_number bad = {0};
        CHECK(blame(SPOIL_NAN, rows[i], true, &bad));
        CHECK_INT(bad.kind, TDM_BAD_OP);
        CHECK_INT(bad.rows.count, rows[i]);
        CHECK_INT(bad.bad_rows, 0);
    }
}

/* An intermediate infinity with a finite result is not an error. */
static void an_infinity_without_effect_is_not_reported(void)
{
    tdm_bad_number bad = {0};
    CHECK(!blame(SPOIL_INFINITY, 3, false, &bad));
}

/* Lanes that are summed in the middle of a pass: a NaN in one is soon in all, and is reported for the lane
 * where it began; an overflow of the sum over lanes is reported for the sum. */
static void lanes_that_meet(void)
{
    for (int ranks = 1; ranks <= LANES; ranks++) {
        tdm_bad_number bad;
        team_shape shape = {.lanes = LANES, .synced = true, .poison = true};
        CHECK(!step_of(shape, ranks, NULL, &bad).finite);
        CHECK_INT(bad.kind, TDM_BAD_DATA);
        CHECK_INT(bad.lane, LANES - 1);
        CHECK_INT(bad.first_row, BATCH - 1);
        shape = (team_shape){.lanes = LANES, .synced = true, .huge = 2.5e19f, .huge_rows = true};
        CHECK(!step_of(shape, ranks, NULL, &bad).finite);
        CHECK_INT(bad.kind, TDM_BAD_OP);
        CHECK_TEXT(bad.op, "lane_sum");
        CHECK(!bad.is_nan);
        CHECK_INT(bad.lane, 0);
    }
}

static const check_test tests[] = {
    CHECK_TEST(data_that_is_bad_itself),
    CHECK_TEST(lanes_that_meet),
    CHECK_TEST(the_op_and_the_row_are_named),
    CHECK_TEST(a_gradient_that_overflows_while_the_loss_is_fine),
    CHECK_TEST(a_sum_that_overflows),
    CHECK_TEST(a_gradient_whose_square_overflows),
    CHECK_TEST(squares_of_good_gradients_are_finite),
    CHECK_TEST(huge_gradients_are_not_bad_numbers),
    CHECK_TEST(a_parameter_that_was_bad_before),
    CHECK_TEST(a_custom_op),
    CHECK_TEST(a_number_made_of_parameters_alone),
    CHECK_TEST(an_infinity_without_effect_is_not_reported),
};

int main(int argc, char **argv)
{
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
