/*
 * parallel_test.c: slices, the tree over lanes, and teams.
 *
 * The property tested is that a trained bit depends on the lanes and never on the ranks. Results are compared
 * with a definition of a step that is implemented here again, in the simplest way: each lane alone, the tree by
 * recursion, one update over everything.
 */
#include "parallel/internal.h"
#include "team_bench.h"

/* ---- slices ---------------------------------------------------------------------------------- */

static void slices_cover_all_rows_once(void)
{
    for (int64_t rows = 0; rows <= 70; rows++) {
        for (int64_t lanes = 1; lanes <= 33; lanes++) {
            int64_t next = 0, max = 0, min = INT64_MAX;
            for (int64_t lane = 0; lane < lanes; lane++) {
                tdm_slice s = tdm_lane_slice(rows, lanes, lane);
                CHECK_INT(s.first, next);
                next += s.count;
                if (s.count > max) max = s.count;
                if (s.count < min) min = s.count;
            }
            CHECK_INT(next, rows);
            CHECK(max - min <= 1);
        }
    }
    tdm_slice last = tdm_lane_slice(INT64_C(1) << 40, 65536, 65535);
    CHECK_INT(last.first + last.count, INT64_C(1) << 40);
}

/* From the job alone: its batch, and the cost of a row. */
static void lanes_are_chosen_by_the_job_alone(void)
{
    static const tdm_job_layer convolution = {.kind = TDM_JOB_LAYER_CONV};
    static const tdm_job_layer dense[2] = {{.kind = TDM_JOB_LAYER_LINEAR},
                                           {.kind = TDM_JOB_LAYER_RELU}};
    static const tdm_job_layer inside = {.kind = TDM_JOB_LAYER_RESIDUAL,
                                         .layers = {.items = &convolution, .count = 1}};
    static const struct {
        int kind;
        tdm_job_layer_list layers;
        int64_t context, batch, lanes;
    } cases[] = {
        {.kind = TDM_JOB_MODEL_MLP, .batch = 1, .lanes = 1},
        {.kind = TDM_JOB_MODEL_MLP, .batch = 31, .lanes = 1},
        {.kind = TDM_JOB_MODEL_MLP, .batch = 32, .lanes = 2},
        {.kind = TDM_JOB_MODEL_MLP, .batch = 255, .lanes = 2},
        {.kind = TDM_JOB_MODEL_MLP, .batch = 256, .lanes = 4},
        {.kind = TDM_JOB_MODEL_MLP, .batch = 512, .lanes = 8},
        {.kind = TDM_JOB_MODEL_MLP, .batch = INT64_C(1) << 31, .lanes = 8},
        {.kind = TDM_JOB_MODEL_CNN, .batch = 15, .lanes = 1},
        {.kind = TDM_JOB_MODEL_CNN, .batch = 16, .lanes = 2},
        {.kind = TDM_JOB_MODEL_CNN, .batch = 128, .lanes = 4},
        {.kind = TDM_JOB_MODEL_RESNET, .batch = 127, .lanes = 1},
        {.kind = TDM_JOB_MODEL_RESNET, .batch = 128, .lanes = 2},
        {.kind = TDM_JOB_MODEL_RESNET, .batch = 256, .lanes = 4},
        {.kind = TDM_JOB_MODEL_GPT, .context = 256, .batch = 1, .lanes = 1},
        {.kind = TDM_JOB_MODEL_GPT, .context = 256, .batch = 2, .lanes = 2},
        {.kind = TDM_JOB_MODEL_GPT, .context = 256, .batch = 12, .lanes = 8},
        {.kind = TDM_JOB_MODEL_GPT, .context = 64, .batch = 4, .lanes = 2},
        {.kind = TDM_JOB_MODEL_GPT, .context = 64, .batch = 16, .lanes = 4},
        {.kind = TDM_JOB_MODEL_GPT, .context = 1 << 20, .batch = 8, .lanes = 8},
        {.kind = TDM_JOB_MODEL_LAYERS, .layers = {dense, 2}, .batch = 128, .lanes = 2},
        {.kind = TDM_JOB_MODEL_LAYERS, .layers = {&convolution, 1}, .batch = 128, .lanes = 4},
        {.kind = TDM_JOB_MODEL_LAYERS, .layers = {&inside, 1}, .batch = 128, .lanes = 4},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tdm_job job = {.layers = cases[i].layers};
        job.model.kind = cases[i].kind;
        job.model.context = cases[i].context;
        job.train.batch = cases[i].batch;
        CHECK_INT(tdm_lanes_of(&job), cases[i].lanes);
        job.parallel.lanes = 32;
        CHECK_INT(tdm_lanes_of(&job), 32);
    }
}

/* Ranks with equal numbers of lanes get nearly equal numbers of rows. */
static void large_slices_are_spread(void)
{
    for (int64_t rows = 1; rows <= 100; rows++) {
        for (int ranks = 1; ranks <= 16; ranks *= 2) {
            int64_t max = 0, min = INT64_MAX;
            for (int64_t r = 0; r < ranks; r++) {
                int64_t sum = 0, lanes = 16 / ranks;
                for (int64_t i = 0; i < lanes; i++)
                    sum += tdm_lane_slice(rows, 16, r * lanes + i).count;
                if (sum > max) max = sum;
                if (sum < min) min = sum;
            }
            CHECK(max - min <= 1);
        }
        CHECK_INT(tdm_lane_slice(rows, 16, 0).count, (rows + 15) / 16);
    }
}

static void few_buffers_are_enough(void)
{
    for (int k = 0; k <= 10; k++) { /* aligned blocks of 2^k lanes: k + 1 */
        int64_t width = INT64_C(1) << k;
        for (int64_t first = 0; first < 1024; first += width)
            CHECK_INT(tdm_lane_buffers(1024, (tdm_slice){first, width}), k + 1);
    }
    CHECK_INT(tdm_lane_buffers(8, (tdm_slice){1, 2}), 2); /* 1 | 2: not siblings */
    CHECK_INT(tdm_lane_buffers(8, (tdm_slice){3, 5}), 4); /* 3 | 4 5 6 7 */
}

/* ---- the tree -------------------------------------------------------------------------------- */

enum { MAX_TREE_LANES = 32, TREE_ELEMENTS = 37 };

typedef struct tree_case {
    tdm__tree tree;
    float numbers[2 * MAX_TREE_LANES][TREE_ELEMENTS];
    float *held[2 * MAX_TREE_LANES];
} tree_case;

/* Very different magnitudes, so that another order of additions gives other bits. */
static float wild(tdm_rng *rng)
{
    return ldexpf(2.0f * tdm_rng_uniform(rng) - 1.0f, (int)tdm_rng_below(rng, 24) - 12);
}

static void tree_fill(tree_case *c, int64_t lanes, double empty, uint64_t seed)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = seed, .stream = TDM_RNG_STREAM_USER});
    c->tree = (tdm__tree){.lane_count = lanes, .held = c->held};
    memset(c->held, 0, sizeof(c->held));
    for (int64_t node = lanes; node < 2 * lanes; node++) {
        for (int i = 0; i < TREE_ELEMENTS; i++) c->numbers[node][i] = wild(&rng);
        if ((double)tdm_rng_uniform(&rng) >= empty) c->held[node] = c->numbers[node];
    }
    /* In some cases a worker has already added a whole sub-tree. */
    for (int64_t node = lanes - 1; node >= 1; node--) {
        float *left = c->held[2 * node], *right = c->held[2 * node + 1];
        if (tdm_rng_below(&rng, 3) != 0 || (!left && !right)) continue;
        for (int i = 0; i < TREE_ELEMENTS; i++)
            c->numbers[node][i] = left && right ? left[i] + right[i] : left ? left[i] : right[i];
        c->held[node] = c->numbers[node];
        c->held[2 * node] = c->held[2 * node + 1] = NULL;
    }
}

static bool plain_sum(const tree_case *c, int64_t node, int element, float *out)
{
    if (c->held[node]) {
        *out = c->held[node][element];
        return true;
    }
    if (node >= c->tree.lane_count) return false;
    float left = 0, right = 0;
    bool has_left = plain_sum(c, 2 * node, element, &left);
    bool has_right = plain_sum(c, 2 * node + 1, element, &right);
    *out = has_left && has_right ? left + right : has_left ? left : right;
    return has_left || has_right;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static void check_tree(const tree_case *c, size_t begin, size_t count)
{
    float out[TREE_ELEMENTS], scratch[8 * TREE_ELEMENTS];
    for (int i = 0; i < TREE_ELEMENTS; i++) out[i] = -77;
    float expected = 0;
    bool any = plain_sum(c, 1, 0, &expected);
    CHECK_INT(tdm__tree_sum(&c->tree, 1, begin, count, out, scratch), any);
    for (size_t i = 0; i < TREE_ELEMENTS; i++) {
        expected = -77;
        if (any && i < count) plain_sum(c, 1, (int)(begin + i), &expected);
        CHECK(bits_of(out[i]) == bits_of(expected));
    }
}

static void the_tree_is_added_as_defined(void)
{
    static tree_case c;
    static const double empties[] = {0, 0.3, 0.9, 1.0};
    for (int64_t lanes = 1; lanes <= MAX_TREE_LANES; lanes *= 2)
        for (size_t e = 0; e < 4; e++)
            for (uint64_t seed = 0; seed < 30; seed++) {
                tree_fill(&c, lanes, empties[e], seed);
                check_tree(&c, 0, TREE_ELEMENTS);
                check_tree(&c, 5, 17);
                check_tree(&c, 36, 1);
            }
}

/* ---- teams ----------------------------------------------------------------------------------- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif
enum { STEPS = 6, FULL_BATCH = 21, LAST_BATCH = 5 };

static int64_t batch_of(uint64_t step)
{
    return step % 3 == 2 ? LAST_BATCH : FULL_BATCH;
}

/* The gradient and loss of one lane, by a separate plan. */
static double lane_alone(const team_bench *b, int64_t batch, tdm_slice rows, float *grads)
{
    tdm_model_options m = team_bench_model(b);
    m.batch = rows.count;
    m.training = true;
    m.loss_scale = 1.0 / (double)batch;
    tdm_graph *graph = NULL;
    tdm_plan *plan = NULL;
    tdm_pages arena = {0};
    tdm_plan_options o = {.backend = b->shape.backend == TDM_JOB_BACKEND_REF ? "ref" : NULL,
                          .threads = 1};
    double loss = NAN;
    if (tdm_model_build(&m, &graph, NULL) == TDM_OK &&
        tdm_plan_create(graph, &o, &plan, NULL) == TDM_OK &&
        tdm_pages_map(tdm_plan_arena_bytes(plan), false, &arena, NULL) == TDM_OK) {
        tdm_plan_bind(plan, TDM_SPACE_ARENA, arena.data);
        tdm_plan_bind(plan, TDM_SPACE_PARAMS, b->params);
        tdm_plan_bind(plan, TDM_SPACE_GRADS, grads);
        team_bench_fill((void *)b, rows.first, rows.count,
                        tdm_plan_input(plan, TDM_MODEL_INPUT).data,
                        tdm_plan_input(plan, TDM_MODEL_CLASSES).data);
        tdm_plan_run(
            plan, &(tdm_step_key){.seed = 5, .step = b->step, .first_row = (uint64_t)rows.first});
        loss = (double)*(float *)tdm_plan_output(plan, TDM_MODEL_LOSS).data;
    }
    tdm_plan_destroy(plan);
    tdm_graph_destroy(graph);
    tdm_pages_unmap(&arena);
    return loss;
}

/* Lanes [first, first + width): their sum in `grads`, or false if none of them has rows. */
static bool tree_alone(const team_bench *b, int64_t first, int64_t width, float *grads,
                       double *loss)
{
    if (width == 1) {
        tdm_slice rows = tdm_lane_slice(b->batch, b->shape.lanes, first);
        if (rows.count == 0) return false;
        *loss = lane_alone(b, b->batch, rows, grads);
        return true;
    }
    float *other = aligned_alloc(64, (b->trained_extent * sizeof(float) + 63) / 64 * 64);
    if (!other) return false;
    memset(other, 0, b->trained_extent * sizeof(float));
    double left_loss = 0, right_loss = 0;
    bool left = tree_alone(b, first, width / 2, grads, &left_loss);
    bool right = tree_alone(b, first + width / 2, width / 2, left ? other : grads, &right_loss);
    if (left && right)
        for (size_t i = 0; i < b->trained_extent; i++) grads[i] += other[i];
    *loss = left && right ? left_loss + right_loss : left ? left_loss : right_loss;
    free(other);
    return left || right;
}

/* If the method treats each number alone: one update over everything. Otherwise the optimiser's passes, by
 * one thread over one block of gradients. */
static void update_by_definition(team_bench *b, uint64_t step, float *grads)
{
    tdm_optimiser *o = b->optimiser;
    const tdm_optim_ops *ops = tdm_optimiser_ops(o);
    if (ops->update && b->shape.clip_norm == 0 && b->shape.ema == 0) {
        tdm_optim_settings settings = tdm_optim_settings_of(&b->job);
        tdm_optim_range range = {.count = b->trained_extent,
                                 .grad = grads,
                                 .param = b->params,
                                 .state = {b->states[0], b->states[1], b->states[2]}};
        ops->update(&settings, step + 1, &range);
        return;
    }
    double norm = 0, sums[TDM_OPTIM_SUMS];
    size_t count = tdm_optimiser_piece_count(o);
    tdm_optimiser_begin(o, step, b->job.optim.lr);
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

static double step_by_definition(team_bench *b, uint64_t step, int64_t batch)
{
    b->step = step;
    b->batch = batch;
    size_t bytes = (b->trained_extent * sizeof(float) + 63) / 64 * 64;
    float *grads = aligned_alloc(64, bytes);
    if (!grads) return NAN;
    memset(grads, 0, bytes);
    double loss = NAN;
    tree_alone(b, 0, b->shape.lanes, grads, &loss);
    update_by_definition(b, step, grads);
    free(grads);
    return loss;
}

typedef struct trial {
    team_shape shape;
    team_bench *defined;
    const double *losses;
    int done;
} trial;

/* At rank 0: compares a block, wherever its numbers are stored, with that of the definition. */
static void check_block(const team_bench *b, int block, const float *expected)
{
    if (!expected) return;
    bool root = !b->shape.comm || tdm_comm_rank(b->shape.comm) == 0;
    float *found = calloc(b->trained_extent + 1, sizeof(float));
    if (!found) return;
    CHECK_INT(tdm_params_read(b->store, block, 0, b->trained_extent, root ? found : NULL, NULL),
              TDM_OK);
    if (root) CHECK(memcmp(found, expected, b->trained_extent * sizeof(float)) == 0);
    free(found);
}

static void train_on_rank(tdm_comm *comm, void *user)
{
    trial *t = user;
    team_bench b;
    team_shape shape = t->shape;
    shape.comm = comm;
    if (!team_bench_open(&b, &shape)) return;
    for (uint64_t step = 0; step < STEPS; step++) {
        tdm_step_result r = team_bench_step(&b, step, batch_of(step));
        CHECK(r.finite);
        CHECK(r.loss == t->losses[step]);
    }
    check_block(&b, TDM_BLOCK_PARAMS, t->defined->params);
    check_block(&b, TDM_BLOCK_EMA, t->defined->ema);
    for (int i = 0; i < TDM_OPTIM_MAX_STATES; i++)
        check_block(&b, TDM_BLOCK_STATE + i, t->defined->states[i]);
    t->done++;
    team_bench_close(&b);
}

/* Every number of ranks gives the result of the definition, with every distribution of the state. */
static void check_ranks(team_shape shape)
{
    double losses[STEPS];
    team_bench defined;
    if (!team_bench_prepare(&defined, &shape)) return;
    for (uint64_t step = 0; step < STEPS; step++)
        losses[step] = step_by_definition(&defined, step, batch_of(step));
    for (int ranks = 1; ranks <= shape.lanes && ranks <= 5; ranks += 1 + SANITIZED)
        for (shape.zero = 0; shape.zero <= 3; shape.zero += 1 + 2 * SANITIZED) {
            shape.no_overlap = (ranks + shape.zero) % 3 == 0;
            shape.bucket_bytes = shape.zero % 2 ? 16384 : 0;
            trial t = {.shape = shape, .defined = &defined, .losses = losses};
            team_bench_on_ranks(ranks, train_on_rank, &t);
            CHECK_INT(t.done, ranks);
        }
    team_bench_close(&defined);
}

static void any_number_of_ranks_trains_the_same_bits(void)
{
    team_shape shape = {.batches = {FULL_BATCH, LAST_BATCH}, .dropout = 0.3};
    for (shape.lanes = 1; shape.lanes <= 16; shape.lanes *= 2) {
        shape.optim = shape.lanes % 3 == 1 ? TDM_JOB_OPTIM_SGD : TDM_JOB_OPTIM_ADAMW;
        shape.backend = TDM_JOB_BACKEND_REF;
        check_ranks(shape);
        shape.backend = TDM_JOB_BACKEND_AUTO;
        check_ranks(shape);
    }
}

/* More than one piece of parameters for each worker, and a last piece that is not full. */
static void many_parameters(void)
{
    check_ranks((team_shape){.lanes = 4,
                             .batches = {FULL_BATCH, LAST_BATCH},
                             .optim = TDM_JOB_OPTIM_ADAMW,
                             .width = 2300});
}

/* Updates that need sums over all pieces, and so further passes with barriers between them. */
static void updates_of_several_passes(void)
{
    for (int kind = TDM_JOB_OPTIM_SGD; kind <= TDM_JOB_OPTIM_LION; kind++)
        for (int clipped = 0; clipped < 2; clipped++)
            check_ranks((team_shape){.lanes = 4,
                                     .batches = {FULL_BATCH, LAST_BATCH},
                                     .optim = kind,
                                     .backend = TDM_JOB_BACKEND_REF,
                                     .clip_norm = clipped ? 0.05 : 0,
                                     .ema = clipped ? 0.9 : 0,
                                     .width = 1300});
}

static void tell_norm(tdm_comm *comm, void *user)
{
    double *norm = user;
    team_shape shape = {.lanes = 4, .comm = comm, .batches = {FULL_BATCH}, .clip_norm = 0.5};
    team_bench b;
    if (!team_bench_open(&b, &shape)) return;
    tdm_step_result r = team_bench_step(&b, 0, FULL_BATCH);
    if (*norm == 0) *norm = r.grad_norm;
    CHECK(r.finite && r.grad_norm > 0 && r.grad_norm == *norm);
    team_bench_close(&b);
}

static void the_norm_is_that_before_clipping(void)
{
    double norm = 0;
    for (int ranks = 1; ranks <= 4; ranks++) team_bench_on_ranks(ranks, tell_norm, &norm);
    CHECK(norm > 0);
}

/* Otherwise the tests above would prove nothing. */
static void lanes_and_dropout_do_change_bits(void)
{
    team_shape shapes[3] = {{.lanes = 4, .batches = {FULL_BATCH}},
                            {.lanes = 8, .batches = {FULL_BATCH}},
                            {.lanes = 4, .batches = {FULL_BATCH}, .dropout = 0.3}};
    team_bench b[3];
    for (int i = 0; i < 3; i++) {
        if (!team_bench_open(&b[i], &shapes[i])) return;
        for (uint64_t step = 0; step < 3; step++) team_bench_step(&b[i], step, FULL_BATCH);
    }
    CHECK(!team_bench_same(&b[0], &b[1]));
    CHECK(!team_bench_same(&b[0], &b[2]));
    for (int i = 0; i < 3; i++) team_bench_close(&b[i]);
}

static void tell(tdm_comm *comm, void *user)
{
    uint64_t *all = user;
    team_shape shape = {.lanes = 8, .comm = comm, .batches = {FULL_BATCH, LAST_BATCH}};
    team_bench b;
    if (!team_bench_open(&b, &shape)) return;
    team_bench_step(&b, 0, FULL_BATCH);
    team_bench_step(&b, 1, LAST_BATCH); /* of 8 lanes 5 have rows */
    *all = 0;
    uint64_t rows = 0;
    for (int i = 0; i < 3; i++) {
        tdm_team_rank rank;
        tdm_team_rank_of(b.team, i, &rank);
        CHECK(rank.lane_seconds >= 0 && rank.wait_seconds >= 0);
        CHECK(rank.lanes == 2 || rank.lanes == 3);
        *all += rank.lanes_done;
        rows += rank.rows_done;
    }
    CHECK_INT(rows, FULL_BATCH + LAST_BATCH);
    tdm_team_info info = tdm_team_info_of(b.team);
    CHECK_INT(info.rank_count, 3);
    CHECK_INT(info.lane_count, 8);
    CHECK(info.arena_bytes > 0);
    CHECK(info.grad_bytes >= 2 * b.trained_extent * sizeof(float));
    /* Three products for each dense layer, except the first one, which needs no d_x; 2 FLOPs each. */
    uint64_t products = 2 *
                        (2 * TEAM_BENCH_FEATURES * 19 + 3 * 19 * 5 + 3 * 5 * TEAM_BENCH_CLASSES);
    CHECK(info.flops_per_row >= products && info.flops_per_row < 2 * products);
    team_bench_close(&b);
}

static void information_of_a_team(void)
{
    uint64_t all = 0;
    team_bench_on_ranks(3, tell, &all);
    CHECK_INT(all, 8 + 5);
}

static tdm_status create(const team_shape *shape, tdm_error *err)
{
    team_bench b;
    if (!team_bench_prepare(&b, shape)) return TDM_ERR_INTERNAL;
    tdm_team_options o = team_bench_options(&b);
    tdm_team *const before = (tdm_team *)(void *)&b;
    tdm_team *team = before;
    tdm_status status = tdm_team_create(&o, &team, err);
    if (status == TDM_OK)
        tdm_team_destroy(team);
    else
        CHECK(team == before); /* outputs are written only on success */
    team_bench_close(&b);
    return status;
}

static void what_a_team_refuses(void)
{
    tdm_error err = {0};
    team_shape good = {.lanes = 4, .batches = {8}};
    CHECK_INT(create(&good, &err), TDM_OK);
    static const int64_t bad_lanes[] = {0, -1, 3, 6, 2 * TDM_MAX_LANES};
    for (size_t i = 0; i < sizeof(bad_lanes) / sizeof(bad_lanes[0]); i++) {
        team_shape shape = good;
        shape.lanes = bad_lanes[i];
        CHECK_INT(create(&shape, &err), TDM_ERR_INVALID);
        CHECK_HAS(err.message, "power of two");
    }
    team_shape none = good;
    none.batches[0] = 0;
    CHECK_INT(create(&none, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "no batch size");
    tdm_team_destroy(NULL);
}

/* Plans are created in advance, for the given batches. */
static void a_batch_of_another_size(void)
{
    team_bench b;
    team_shape shape = {.lanes = 4, .batches = {8, 3}};
    if (!team_bench_open(&b, &shape)) return;
    static const int64_t sizes[] = {-1, 0, 4, 9, INT64_MAX};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        tdm_step_result r;
        tdm_error err = {0};
        CHECK_INT(tdm_team_step(b.team, &(tdm_step_input){.batch = sizes[i]}, &r, &err),
                  TDM_ERR_INVALID);
        CHECK_HAS(err.message, "is not one of the configured");
    }
    CHECK(team_bench_step(&b, 0, 3).finite);
    team_bench_close(&b);
}

static void be_too_many(tdm_comm *comm, void *user)
{
    int *refused = user;
    tdm_error err = {0};
    CHECK_INT(create(&(team_shape){.lanes = 4, .comm = comm, .batches = {8}}, &err),
              TDM_ERR_JOB_INVALID);
    CHECK_HAS(err.message, "use between 1 and 4 ranks");
    (*refused)++;
}

static void more_ranks_than_lanes(void)
{
    int refused = 0;
    team_bench_on_ranks(5, be_too_many, &refused);
    CHECK_INT(refused, 5);
}

/* How many times as long as rank 0 rank 1 took for its lanes since the last call. */
static double ratio_since(const tdm_team *team, double before[2])
{
    double taken[2];
    for (int i = 0; i < 2; i++) {
        tdm_team_rank r;
        tdm_team_rank_of(team, i, &r);
        taken[i] = r.lane_seconds - before[i];
        before[i] = r.lane_seconds;
    }
    return taken[1] / taken[0];
}

/* Rank 1 is slow, and lanes are not moved: it is reported, with the factor by which it is really slower, for any
 * number of steps. The machine may be busy, so the test takes the time of each rank from the team. */
static void be_slow(tdm_comm *comm, void *user)
{
    enum { SLOW_STEPS = 40, LOOKED_AT = 12 };
    int *named = user;
    team_shape shape = {.lanes = 8, .comm = comm, .batches = {64}, .width = 1300};
    team_bench b;
    if (!team_bench_open(&b, &shape)) return;
    double min = 1e300, max = 0, before[2] = {0, 0};
    tdm_step_result r = {.straggler = -1};
    for (uint64_t step = 0; step < SLOW_STEPS; step++) {
        r = team_bench_step(&b, step, 64);
        double ratio = ratio_since(b.team, before);
        CHECK(!r.moved);
        if (step + LOOKED_AT < SLOW_STEPS) continue;
        min = fmin(min, ratio);
        max = fmax(max, ratio);
    }
    if (min > 2) CHECK_INT(r.straggler, 1);
    if (r.straggler == 1) CHECK(r.slow_factor > 0.99 * min && r.slow_factor < 1.01 * max);
    (*named)++;
    team_bench_close(&b);
}

static void a_slow_rank_where_lanes_stay(void)
{
    int named = 0;
    setenv("TANDEM_TEST_SLOW", "1:4", 1);
    team_bench_on_ranks(2, be_slow, &named);
    unsetenv("TANDEM_TEST_SLOW");
    CHECK_INT(named, 2);
}

static const check_test tests[] = {
    CHECK_TEST(slices_cover_all_rows_once),
    CHECK_TEST(lanes_are_chosen_by_the_job_alone),
    CHECK_TEST(large_slices_are_spread),
    CHECK_TEST(few_buffers_are_enough),
    CHECK_TEST(the_tree_is_added_as_defined),
    CHECK_TEST(any_number_of_ranks_trains_the_same_bits),
    CHECK_TEST(many_parameters),
    CHECK_TEST(updates_of_several_passes),
    CHECK_TEST(the_norm_is_that_before_clipping),
    CHECK_TEST(lanes_and_dropout_do_change_bits),
    CHECK_TEST(information_of_a_team),
    CHECK_TEST(what_a_team_refuses),
    CHECK_TEST(a_batch_of_another_size),
    CHECK_TEST(more_ranks_than_lanes),
    CHECK_TEST(a_slow_rank_where_lanes_stay),
};

CHECK_MAIN(tests)
