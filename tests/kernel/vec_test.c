/*
 * vec_test.c: the vector kernels at every level that this machine can run: against `ref`, against themselves at
 * other offsets and with other numbers of threads, and their functions against libm.
 */
#include "kernel/vec_math_level.h"
#include "kernel/vec_trial.h"
#include "optim/internal.h"

typedef struct level {
    int number;
    const tdm_kernel_backend_ops *backend;
    const vec_math *math;
} level;

static const level levels[] = {
#if defined(__x86_64__)
    {2, &tdm__kernels_cpu_2, &vec_math_2},
    {3, &tdm__kernels_cpu_3, &vec_math_3},
    {4, &tdm__kernels_cpu_4, &vec_math_4},
#else
    {0, &tdm__kernels_cpu_0, &vec_math_0},
#endif
};
enum { LEVEL_COUNT = sizeof(levels) / sizeof(levels[0]) };

static int levels_here(void)
{
    int count = 0;
    while (count < LEVEL_COUNT && levels[count].number <= tdm_kernel_level()) count++;
    return count;
}

static const int64_t sizes[] = {1, 2, 3, 7, 15, 16, 17, 31, 33, 64, 100, 257};
enum { SIZE_COUNT = sizeof(sizes) / sizeof(sizes[0]) };

/* At all levels against ref, and over the first input where `in_place`. */
static void compare(trial t, bool in_place)
{
    trial_result expected = vec_trial_run(&tdm__kernels_ref, &t);
    for (int l = 0; l < levels_here(); l++) {
        t.over_first = false;
        trial_result got = vec_trial_run(levels[l].backend, &t);
        vec_trial_compare(&t, levels[l].number, &got, &expected);
        t.over_first = in_place;
        trial_result over = in_place ? vec_trial_run(levels[l].backend, &t) : (trial_result){0};
        for (int o = 0; in_place && o < t.out_count; o++)
            CHECK(vec_trial_same_bits(over.out[o], got.out[o], got.count[o]));
        vec_trial_free(&got);
        vec_trial_free(&over);
    }
    vec_trial_free(&expected);
}

/* ---- element-wise ---------------------------------------------------------------------------- */

typedef struct elementwise {
    tdm_op_kind op;
    int in_count;
    bool infinities;
    double relative, absolute;
} elementwise;

/* Absolute errors: one rounding of 1 + erf, or of the sum in a slope, times an input near 10. */
static const elementwise elementwise_ops[] = {
    {TDM_OP_ADD, 2, true, 0, 0},
    {TDM_OP_MUL, 2, true, 0, 0},
    {TDM_OP_SCALE, 1, true, 2e-7, 1e-44},
    {TDM_OP_COPY, 1, true, 0, 0},
    {TDM_OP_LANE_SUM, 1, true, 0, 0},
    {TDM_OP_RELU, 1, true, 0, 0},
    {TDM_OP_RELU_GRAD, 2, true, 0, 0},
    {TDM_OP_GELU, 1, true, 4e-7, 6e-7},
    {TDM_OP_GELU_GRAD, 2, true, 4e-7, 2e-6},
    {TDM_OP_GELU_TANH, 1, true, 1e-6, 1e-7},
    {TDM_OP_GELU_TANH_GRAD, 2, false, 4e-7, 4e-6},
    {TDM_OP_SILU, 1, true, 4e-7, 2e-43},
    {TDM_OP_SILU_GRAD, 2, true, 4e-7, 2e-6},
    {TDM_OP_TANH, 1, true, 4e-7, 1e-44},
    {TDM_OP_TANH_GRAD, 2, true, 4e-7, 1e-6},
    {TDM_OP_SIGMOID, 1, true, 4e-7, 3e-45},
    {TDM_OP_SIGMOID_GRAD, 2, true, 4e-7, 1e-6},
};
enum { ELEMENTWISE_COUNT = sizeof(elementwise_ops) / sizeof(elementwise_ops[0]) };

static trial elementwise_trial(const elementwise *e, int64_t count)
{
    return (trial){.op = e->op,
                   .attrs = {.scale = 0.3},
                   .in = {tdm_shape_1(count), tdm_shape_1(count)},
                   .in_count = e->in_count,
                   .out = {tdm_shape_1(count)},
                   .out_count = 1,
                   .extremes = true,
                   .infinities = e->infinities,
                   .relative = e->relative,
                   .absolute = e->absolute};
}

static void elementwise_ops_agree_with_ref(void)
{
    for (int e = 0; e < ELEMENTWISE_COUNT; e++)
        for (int s = 0; s < SIZE_COUNT; s++)
            compare(elementwise_trial(&elementwise_ops[e], sizes[s]), true);
}

static void a_shorter_b_repeats(void)
{
    static const tdm_op_kind ops[] = {TDM_OP_ADD, TDM_OP_MUL};
    for (int o = 0; o < 2; o++) {
        for (int s = 0; s < SIZE_COUNT; s++) {
            trial t = {.op = ops[o], .in_count = 2, .out_count = 1};
            t.in[0] = t.out[0] = tdm_shape_3(3, 5, sizes[s]);
            t.in[1] = tdm_shape_1(sizes[s]);
            compare(t, true);
            t.in[1] = tdm_shape_2(5, sizes[s]);
            compare(t, true);
            t.in[1] = tdm_shape_0();
            compare(t, true);
        }
    }
}

static void fill_and_normalise(void)
{
    for (int s = 0; s < SIZE_COUNT; s++) {
        trial fill = {.op = TDM_OP_FILL, .attrs = {.scale = -1.7}, .out_count = 1};
        fill.out[0] = tdm_shape_1(sizes[s]);
        compare(fill, false);
        trial normalise = {.op = TDM_OP_NORMALISE, .in_count = 3, .out_count = 1};
        normalise.in[0] = normalise.out[0] = tdm_shape_2(4, sizes[s]);
        normalise.in[1] = normalise.in[2] = tdm_shape_1(sizes[s]);
        compare(normalise, true);
    }
}

/* ---- rows, sums, tables ---------------------------------------------------------------------- */

static trial softmax_trial(tdm_op_kind op, int64_t rows, int64_t V)
{
    trial t = {.op = op, .in_count = op == TDM_OP_SOFTMAX ? 1 : 2, .out_count = 1};
    t.in[0] = t.in[1] = t.out[0] = tdm_shape_3(1, rows, V);
    t.relative = op == TDM_OP_SOFTMAX ? 1e-5 : 1e-6; /* the rounding of x - largest, to e^ */
    t.absolute = op == TDM_OP_SOFTMAX ? 1e-9 : 1e-4; /* of dy - dot, times y */
    t.spread = 4;
    return t;
}

static trial cross_entropy_trial(tdm_op_kind op, int64_t rows, int64_t V)
{
    trial t = {.op = op, .class_count = (int32_t)V, .spread = 4, .in_count = 2, .out_count = 2};
    t.attrs.scale = 0.25;
    t.in[0] = t.out[0] = t.out[1] = tdm_shape_3(1, rows, V);
    t.in[1] = tdm_shape_2(1, rows);
    t.relative = 1e-5;
    t.absolute = 1e-6;
    if (op == TDM_OP_CROSS_ENTROPY) {
        t.out[0] = tdm_shape_0();
        return t;
    }
    t.in_count = 3;
    t.out_count = 1;
    t.in[2] = tdm_shape_0();
    t.relative = t.absolute = 0;
    return t;
}

static void softmax_and_cross_entropy(void)
{
    static const tdm_op_kind softmaxes[] = {TDM_OP_SOFTMAX, TDM_OP_SOFTMAX_GRAD};
    static const tdm_op_kind entropies[] = {TDM_OP_CROSS_ENTROPY, TDM_OP_CROSS_ENTROPY_GRAD};
    for (int s = 0; s < SIZE_COUNT; s++) {
        for (int o = 0; o < 2; o++) {
            compare(softmax_trial(softmaxes[o], 3, sizes[s]), true);
            trial t = cross_entropy_trial(entropies[o], 9, sizes[s]);
            compare(t, true);
            t.attrs.label_smoothing = 0.1f;
            compare(t, true);
            t.attrs.has_ignore = true;
            t.attrs.ignore = sizes[s] / 2;
            compare(t, true);
        }
    }
}

/* Large and infinite logits: no overflow, and NaN where ref has it. */
static void softmax_of_extremes(void)
{
    for (int s = 0; s < SIZE_COUNT; s++) {
        trial t = softmax_trial(TDM_OP_SOFTMAX, 1, sizes[s]);
        t.spread = 200;
        t.relative = 2e-4; /* x - largest is near 1000: its last place is 6e-5 */
        compare(t, true);
        t.extremes = true;
        compare(t, true);
    }
}

static trial reduce_trial(tdm_op_kind op, int axis, int64_t a, int64_t b, int64_t c)
{
    tdm_shape whole = tdm_shape_3(a, b, c), rest = tdm_shape_0();
    for (int i = 0; i < 3 && axis >= 0; i++)
        if (i != axis) rest.dim[rest.rank++] = whole.dim[i];
    trial t = {.op = op, .in_count = 1, .out_count = 1};
    t.attrs = (tdm_op_attrs){.axis = axis, .scale = 0.37, .shape = whole};
    t.in[0] = op == TDM_OP_REDUCE ? whole : rest;
    t.out[0] = op == TDM_OP_REDUCE ? rest : whole;
    t.relative = 4e-7;
    t.absolute = op == TDM_OP_REDUCE ? 1e-5 : 0; /* sums near 0 of numbers near 3 */
    return t;
}

static void sums(void)
{
    static const tdm_op_kind ops[] = {TDM_OP_REDUCE, TDM_OP_REDUCE_GRAD};
    for (int s = 0; s < SIZE_COUNT; s++) {
        for (int r = 0; r < SIZE_COUNT; r++) {
            trial t = {.op = TDM_OP_SUM_ROWS, .in_count = 1, .out_count = 1};
            t.in[0] = tdm_shape_2(sizes[r], sizes[s]);
            t.out[0] = tdm_shape_1(sizes[s]);
            t.relative = 4e-7;
            t.absolute = 4e-5;
            compare(t, false);
        }
        for (int axis = -1; axis < 3; axis++)
            for (int o = 0; o < 2; o++) {
                compare(reduce_trial(ops[o], axis, 3, 6, sizes[s]), false);
                compare(reduce_trial(ops[o], axis, 2, sizes[s], 5), false);
                compare(reduce_trial(ops[o], axis, sizes[s], 2, 1), false);
            }
    }
}

static trial embedding_trial(tdm_op_kind op, int64_t V, int64_t C, int64_t places)
{
    trial t = {.op = op, .class_count = (int32_t)V, .in_count = 2, .out_count = 1};
    tdm_shape table = tdm_shape_2(V, C), rows = tdm_shape_3(1, places, C);
    bool forward = op == TDM_OP_EMBEDDING;
    t.attrs.shape = table;
    t.in[0] = forward ? table : rows;
    t.in[1] = tdm_shape_2(1, places);
    t.out[0] = forward ? rows : table;
    t.relative = forward ? 0 : 4e-7;
    t.absolute = forward ? 0 : 1e-5;
    return t;
}

static void embeddings(void)
{
    for (int s = 0; s < SIZE_COUNT; s++) {
        for (int64_t places = 1; places < 60; places += 13) {
            compare(embedding_trial(TDM_OP_EMBEDDING, 11, sizes[s], places), false);
            trial grad = embedding_trial(TDM_OP_EMBEDDING_GRAD, 11, sizes[s], places);
            compare(grad, false);
            grad.in[2] = grad.out[0]; /* added to the existing numbers */
            grad.in_count = 3;
            compare(grad, false);
        }
    }
}

/* ---- dropout --------------------------------------------------------------------------------- */

static trial dropout_trial(int64_t rows, int64_t columns, float p)
{
    trial t = {
        .op = TDM_OP_DROPOUT, .attrs = {.p = p, .sub_stream = TRIAL_SUB_STREAM}, .in_count = 1};
    t.out_count = 1;
    t.in[0] = t.out[0] = tdm_shape_2(rows, columns);
    t.extremes = t.infinities = true;
    return t;
}

static void dropout_has_the_bits_of_ref(void)
{
    static const float probabilities[] = {0, 0x1p-24f, 0.1f, 0.5f, 0.9999f};
    for (int p = 0; p < 5; p++)
        for (int s = 0; s < SIZE_COUNT; s++)
            compare(dropout_trial(3, sizes[s], probabilities[p]), true);
    compare(dropout_trial(2, 5000, 0.25f), true);
    /* A probability that is exactly the random number of element 7 of the first row, and the next larger one.
     * */
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = TRIAL_SEED,
                                               .stream = TDM_RNG_STREAM_DROPOUT,
                                               .sub_stream = TRIAL_SUB_STREAM,
                                               .step = TRIAL_STEP,
                                               .sample = TRIAL_FIRST_ROW});
    float drawn = 0;
    for (int i = 0; i <= 7; i++) drawn = tdm_rng_uniform(&rng);
    compare(dropout_trial(1, 40, drawn), true);
    compare(dropout_trial(1, 40, nextafterf(drawn, 1)), true);
}

/* ---- copies ---------------------------------------------------------------------------------- */

static void transpose_with(tdm_shape from, const int perm[TDM_MAX_DIMS])
{
    trial t = {.op = TDM_OP_TRANSPOSE, .in_count = 1, .out_count = 1};
    t.in[0] = t.out[0] = from;
    memcpy(t.attrs.perm, perm, sizeof(t.attrs.perm));
    for (int i = 0; i < from.rank; i++) t.out[0].dim[i] = from.dim[perm[i]];
    compare(t, false);
}

/* All orders of four dimensions, with three sets of sizes; and matrices of many sizes. */
static void transposes(void)
{
    static const tdm_shape shapes[] = {
        {4, {3, 17, 5, 33}}, {4, {1, 20, 1, 37}}, {4, {16, 4, 32, 2}}};
    for (int s = 0; s < 3; s++)
        for (int code = 0; code < 256; code++) {
            int perm[TDM_MAX_DIMS] = {code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6 & 3};
            int seen = 1 << perm[0] | 1 << perm[1] | 1 << perm[2] | 1 << perm[3];
            if (seen == 15) transpose_with(shapes[s], perm);
        }
    for (int a = 0; a < SIZE_COUNT; a++)
        for (int b = 0; b < SIZE_COUNT; b++)
            transpose_with(tdm_shape_2(sizes[a], sizes[b]), (const int[TDM_MAX_DIMS]){1, 0});
    transpose_with(tdm_shape_0(), (const int[TDM_MAX_DIMS]){0});
}

static void concat_and_slice(void)
{
    for (int axis = 0; axis < 3; axis++) {
        for (int s = 0; s < SIZE_COUNT; s++) {
            tdm_shape shape = tdm_shape_3(3, 2, 5);
            trial joined = {.op = TDM_OP_CONCAT, .attrs = {.axis = axis}, .out_count = 1};
            joined.out[0] = shape;
            joined.out[0].dim[axis] = 0;
            for (int i = 0; i < 3; i++) {
                shape.dim[axis] = i == 1 ? sizes[s] : i + 2;
                joined.in[joined.in_count++] = shape;
                joined.out[0].dim[axis] += shape.dim[axis];
            }
            compare(joined, false);
            trial cut = {.op = TDM_OP_SLICE, .in_count = 1, .out_count = 1};
            cut.attrs = (tdm_op_attrs){.axis = axis, .begin = s % 3, .end = s % 3 + sizes[s]};
            cut.in[0] = cut.out[0] = joined.out[0];
            cut.out[0].dim[axis] = sizes[s];
            compare(cut, false);
            cut.op = TDM_OP_SLICE_GRAD;
            cut.attrs.shape = cut.in[0];
            cut.out[0] = cut.in[0];
            cut.in[0].dim[axis] = sizes[s];
            compare(cut, false);
        }
    }
}

/* ---- bits ------------------------------------------------------------------------------------ */

/* Runs one op on `count` elements at `data`. */
static void run_on(const level *l, tdm_op_kind op, int in_count, const float *data, int64_t count,
                   float *out)
{
    const tdm_kernel *kernel = tdm_kernel_find(l->backend, op, TDM_DTYPE_F32);
    tdm_kernel_call call = {.attrs = {.scale = 0.3}};
    for (int i = 0; i < in_count; i++)
        call.in[i] = (tdm_tensor){TDM_DTYPE_F32, tdm_shape_1(count), (void *)(uintptr_t)data};
    call.out[0] = (tdm_tensor){TDM_DTYPE_F32, tdm_shape_1(count), out};
    kernel->run(NULL, &call, &(tdm_step_key){0});
}

/* Every range of a tensor gives the same bits alone as within the whole. */
static void elements_do_not_depend_on_position(void)
{
    enum { COUNT = 150 };
    float x[COUNT], whole[COUNT], part[COUNT];
    trial t = {.in_count = 1, .extremes = true};
    vec_trial_fill(&t, 0, x, COUNT);
    for (int l = 0; l < levels_here(); l++)
        for (int e = 0; e < ELEMENTWISE_COUNT; e++) {
            const elementwise *op = &elementwise_ops[e];
            run_on(&levels[l], op->op, op->in_count, x, COUNT, whole);
            for (int64_t first = 0; first < 18; first++)
                for (int64_t count = 1; count < 40; count++) {
                    run_on(&levels[l], op->op, op->in_count, x + first, count, part);
                    CHECK(vec_trial_same_bits(part, whole + first, (size_t)count));
                }
        }
}

/* The columns of a sum over rows, one at a time. */
static void columns_do_not_depend_on_each_other(void)
{
    enum { ROWS = 300, COLUMNS = 37 };
    static float x[ROWS * COLUMNS], column[ROWS];
    float whole[COLUMNS], alone;
    trial t = {.in_count = 1};
    vec_trial_fill(&t, 0, x, ROWS * COLUMNS);
    for (int l = 0; l < levels_here(); l++) {
        const tdm_kernel *kernel = tdm_kernel_find(levels[l].backend, TDM_OP_SUM_ROWS,
                                                   TDM_DTYPE_F32);
        tdm_kernel_call call = {0};
        call.in[0] = (tdm_tensor){TDM_DTYPE_F32, tdm_shape_2(ROWS, COLUMNS), x};
        call.out[0] = (tdm_tensor){TDM_DTYPE_F32, tdm_shape_1(COLUMNS), whole};
        kernel->run(NULL, &call, &(tdm_step_key){0});
        call.in[0] = (tdm_tensor){TDM_DTYPE_F32, tdm_shape_2(ROWS, 1), column};
        call.out[0] = (tdm_tensor){TDM_DTYPE_F32, tdm_shape_1(1), &alone};
        for (int c = 0; c < COLUMNS; c++) {
            for (int r = 0; r < ROWS; r++) column[r] = x[r * COLUMNS + c];
            kernel->run(NULL, &call, &(tdm_step_key){0});
            CHECK(vec_trial_same_bits(&alone, &whole[c], 1));
        }
    }
}

static void same_on_two_threads(const trial *t)
{
    for (int l = 0; l < levels_here(); l++) {
        int before = tdm_kernel_threads_set(1);
        trial_result one = vec_trial_run(levels[l].backend, t);
        tdm_kernel_threads_set(2);
        trial_result two = vec_trial_run(levels[l].backend, t);
        tdm_kernel_threads_set(3);
        trial_result three = vec_trial_run(levels[l].backend, t);
        tdm_kernel_threads_set(before);
        for (int o = 0; o < t->out_count; o++) {
            CHECK(vec_trial_same_bits(one.out[o], two.out[o], one.count[o]));
            CHECK(vec_trial_same_bits(one.out[o], three.out[o], one.count[o]));
        }
        vec_trial_free(&one);
        vec_trial_free(&two);
        vec_trial_free(&three);
    }
}

static void threads_do_not_change_bits(void)
{
    for (int e = 0; e < ELEMENTWISE_COUNT; e++) {
        trial t = elementwise_trial(&elementwise_ops[e], 200003);
        same_on_two_threads(&t);
    }
    static const int perm[TDM_MAX_DIMS] = {0, 2, 1};
    trial turned = {.op = TDM_OP_TRANSPOSE, .in_count = 1, .out_count = 1};
    memcpy(turned.attrs.perm, perm, sizeof(perm));
    turned.in[0] = tdm_shape_3(3, 301, 257);
    turned.out[0] = tdm_shape_3(3, 257, 301);
    trial columns = {.op = TDM_OP_SUM_ROWS, .in_count = 1, .out_count = 1};
    columns.in[0] = tdm_shape_2(777, 1001);
    columns.out[0] = tdm_shape_1(1001);
    const trial trials[] = {
        turned,
        columns,
        softmax_trial(TDM_OP_SOFTMAX, 301, 401),
        softmax_trial(TDM_OP_SOFTMAX_GRAD, 301, 401),
        cross_entropy_trial(TDM_OP_CROSS_ENTROPY, 301, 401),
        cross_entropy_trial(TDM_OP_CROSS_ENTROPY_GRAD, 301, 401),
        reduce_trial(TDM_OP_REDUCE, -1, 3, 301, 207),
        reduce_trial(TDM_OP_REDUCE, 1, 3, 301, 207),
        reduce_trial(TDM_OP_REDUCE_GRAD, 0, 3, 301, 207),
        embedding_trial(TDM_OP_EMBEDDING, 2001, 101, 1003),
        embedding_trial(TDM_OP_EMBEDDING_GRAD, 2001, 101, 1003),
        dropout_trial(31, 5003, 0.3f),
    };
    for (size_t i = 0; i < sizeof(trials) / sizeof(trials[0]); i++) same_on_two_threads(&trials[i]);
}

/* ---- functions ------------------------------------------------------------------------------- */

/* The error in units of the last place of the exact value; 1e9 if only one is NaN or infinite. */
static double ulp_error(float got, double exact)
{
    if (isnan(exact) || isnan(got)) return isnan(exact) && isnan(got) ? 0 : 1e9;
    if (isinf((float)exact) || isinf(got)) return (float)exact == got ? 0 : 1e9;
    int exponent;
    frexp(exact, &exponent);
    return fabs((double)got - exact) / ldexp(1, (exponent < -125 ? -125 : exponent) - 24);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Every 4001st of all 2^32 bit patterns: about two thousand of each sign and exponent. */
static double worst_ulp(vec_math_fn f, double (*exact)(double))
{
    enum { STRIDE = 4001, BATCH = 48 };
    double worst = 0;
    for (uint64_t first = 0; first < 1ull << 32; first += STRIDE * BATCH) {
        float x[BATCH], y[BATCH];
        for (uint64_t i = 0; i < BATCH; i++) {
            uint32_t bits = (uint32_t)(first + i * STRIDE);
            memcpy(&x[i], &bits, sizeof(bits));
        }
        f(x, y, BATCH);
        for (int i = 0; i < BATCH; i++) worst = fmax(worst, ulp_error(y[i], exact((double)x[i])));
    }
    size_t extreme_count = sizeof(trial_extremes) / sizeof(float);
    float y[sizeof(trial_extremes) / sizeof(float)], infinite[2] = {INFINITY, -INFINITY};
    f(trial_extremes, y, (int64_t)extreme_count);
    for (size_t i = 0; i < extreme_count; i++)
        worst = fmax(worst, ulp_error(y[i], exact((double)trial_extremes[i])));
    f(infinite, y, 2);
    for (int i = 0; i < 2; i++) worst = fmax(worst, ulp_error(y[i], exact((double)infinite[i])));
    return worst;
}

static void functions_are_within_their_errors(void)
{
    for (int l = 0; l < levels_here(); l++) {
        const vec_math *m = levels[l].math;
        const struct {
            const char *name;
            vec_math_fn f;
            double (*exact)(double);
            double max;
        } functions[] = {{"exp", m->exp, exp, 1.1},
                         {"log", m->log, log, 1.0},
                         {"tanh", m->tanh, tanh, 1.5},
                         {"erf", m->erf, erf, 1.3},
                         {"sigmoid", m->sigmoid, sigmoid, 2.5}};
        for (int i = 0; i < 5; i++) {
            double worst = worst_ulp(functions[i].f, functions[i].exact);
            printf("     level %d: %s within %.2f ulp\n", levels[l].number, functions[i].name,
                   worst);
            CHECK(worst <= functions[i].max);
        }
    }
}

/* ---- optimisers and sums of gradients -------------------------------------------------------- */

enum { OPTIM_COUNT = 203, OPTIM_ARRAYS = 2 + TDM_OPTIM_MAX_STATES };

typedef struct optim_numbers {
    float array[OPTIM_ARRAYS][OPTIM_COUNT]; /* gradient, parameters, states */
} optim_numbers;

/* The first `cut` numbers in one call, the others in another. */
static void update_in_two(const tdm_optim_ops *ops, size_t cut, optim_numbers *n)
{
    const tdm_optim_settings settings = {.lr = 0.01,
                                         .momentum = 0.9,
                                         .nesterov = true,
                                         .beta1 = 0.9,
                                         .beta2 = 0.99,
                                         .alpha = 0.95,
                                         .eps = 1e-8,
                                         .weight_decay = 0.1};
    for (int half = 0; half < 2; half++) {
        size_t at = half ? cut : 0;
        tdm_optim_range range = {.count = half ? OPTIM_COUNT - cut : cut,
                                 .grad = n->array[0] + at,
                                 .param = n->array[1] + at};
        for (int s = 0; s < ops->state_count; s++) range.state[s] = n->array[2 + s] + at;
        ops->update(&settings, 3, &range);
    }
}

/* Optimisers round every product and sum separately: all levels, and all divisions, give the same bits. */
static void optimisers_have_one_set_of_bits(void)
{
    static optim_numbers start, first, now;
    for (int i = 0; i < OPTIM_ARRAYS; i++) {
        trial t = {.op = (tdm_op_kind)i, .in_count = 1};
        vec_trial_fill(&t, 0, start.array[i], OPTIM_COUNT);
        for (int k = 0; i >= 2 && k < OPTIM_COUNT; k++)
            start.array[i][k] = fabsf(start.array[i][k]);
    }
    for (size_t kind = 0; kind < tdm__optims_at(0)->count; kind++)
        for (int l = 0; l < levels_here(); l++)
            for (size_t cut = 0; cut < OPTIM_COUNT; cut += 29) {
                const tdm_optim_ops *ops = tdm__optims_at(levels[l].number)->by_kind[kind];
                if (!ops->update) continue; /* works on whole tensors */
                now = start;
                update_in_two(ops, cut, &now);
                if (l == 0 && cut == 0) first = now;
                CHECK(memcmp(&now, &first, sizeof(now)) == 0);
                CHECK(!vec_trial_same_bits(now.array[1], start.array[1], OPTIM_COUNT));
            }
}

static void sums_of_gradients(void)
{
    enum { COUNT = 150 };
    float x[COUNT], y[COUNT], sum[COUNT];
    trial t = {.in_count = 1, .extremes = true};
    vec_trial_fill(&t, 0, x, COUNT);
    vec_trial_fill(&t, 1, y, COUNT);
    for (size_t first = 0; first < 18; first++)
        for (size_t count = 0; count < 100; count += 7) {
            memcpy(sum, x, sizeof(sum));
            tdm_kernel_add_into(sum + first, y, count);
            for (size_t i = 0; i < COUNT; i++) {
                bool within = i >= first && i < first + count;
                float expected = within ? x[i] + y[i - first] : x[i];
                CHECK(isnan(expected) ? isnan(sum[i]) : vec_trial_same_bits(&sum[i], &expected, 1));
            }
        }
}

/* Neither the position nor the size of a number beyond the safe range matters. */
static void moderate_numbers(void)
{
    enum { COUNT = 70 };
    static const float in_safe_range[] = {0.0f, -0.0f,          1e-45f,
                                          1.0f, 0x1.fffffep46f, -0x1.fffffep46f};
    static const float others[] = {0x1p47f, -0x1p47f, 3e38f, INFINITY, -INFINITY, NAN, -NAN};
    float x[COUNT], y[COUNT], zeros[COUNT] = {0};
    for (size_t m = 0; m < sizeof(in_safe_range) / sizeof(in_safe_range[0]); m++)
        for (size_t count = 0; count <= COUNT; count++) {
            for (size_t i = 0; i < COUNT; i++) x[i] = i < count ? in_safe_range[m] : NAN;
            CHECK(tdm_kernel_in_safe_range(x, count));
            CHECK(tdm_kernel_add_into(x, zeros, count));
            for (size_t o = 0; o < sizeof(others) / sizeof(others[0]) && count > 0; o++) {
                size_t at = (o + 11 * m) % count;
                memcpy(y, x, sizeof(y));
                y[at] = others[o];
                CHECK(!tdm_kernel_in_safe_range(y, count));
                CHECK(!tdm_kernel_add_into(y, zeros, count));
            }
        }
    float a = 0x1p46f, b = 0x1p46f; /* the sum counts */
    CHECK(!tdm_kernel_add_into(&a, &b, 1));
}

static const check_test tests[] = {
    CHECK_TEST(elementwise_ops_agree_with_ref),
    CHECK_TEST(a_shorter_b_repeats),
    CHECK_TEST(fill_and_normalise),
    CHECK_TEST(softmax_and_cross_entropy),
    CHECK_TEST(softmax_of_extremes),
    CHECK_TEST(sums),
    CHECK_TEST(embeddings),
    CHECK_TEST(dropout_has_the_bits_of_ref),
    CHECK_TEST(transposes),
    CHECK_TEST(concat_and_slice),
    CHECK_TEST(elements_do_not_depend_on_position),
    CHECK_TEST(columns_do_not_depend_on_each_other),
    CHECK_TEST(threads_do_not_change_bits),
    CHECK_TEST(functions_are_within_their_errors),
    CHECK_TEST(optimisers_have_one_set_of_bits),
    CHECK_TEST(sums_of_gradients),
    CHECK_TEST(moderate_numbers),
};

CHECK_MAIN(tests)
