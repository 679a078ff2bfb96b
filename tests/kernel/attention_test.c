/*
 * attention_test.c: attention: gradients by differences, every kernel against ref on odd shapes, dropout word
 * by word, extreme numbers, memory that grows with T and not with its square, and errors of the builder.
 */
#include "graph/graph.h"
#include "kernel/double_eval_sequence.h"
#include "kernel/gradient_bench.h"
#include "kernel/kernel_bench.h"

typedef struct problem {
    int64_t B, T, D;
    int heads;
    bool causal, with_lengths;
    float p;
} problem;

/* ---- gradients ------------------------------------------------------------------------------- */

static void compare_attention(problem p)
{
    tdm_graph *g = tdm_graph_create();
    tdm_shape shape = tdm_shape_3(p.B, p.T, 3 * p.heads * p.D);
    tdm_attention_options o = {.heads = p.heads, .causal = p.causal, .dropout = (double)p.p};
    if (p.with_lengths) o.lengths = tdm_graph_input(g, "lengths", TDM_DTYPE_I32, tdm_shape_1(p.B));
    /* Doubled, so that the weights are far from equal. */
    tdm_value x = tdm_graph_param(g, "qkv", shape, unused_init);
    tdm_value y = tdm_graph_attention(g, tdm_graph_add(g, x, x), &o);
    compare_with(g, weighted_sum(g, "w", tdm_graph_tanh(g, y)), double_eval_sequence);
}

static void gradients_by_differences(void)
{
    for (int form = 0; form < 8; form++) {
        problem p = {.B = 3, .T = 5, .D = 3, .heads = 2};
        p.causal = form & 1, p.with_lengths = form & 2, p.p = form & 4 ? 0.3f : 0;
        compare_attention(p);
    }
    compare_attention((problem){.B = 1, .T = 6, .D = 1, .heads = 1, .causal = true});
    compare_attention((problem){.B = 2, .T = 2, .D = 5, .heads = 3});
}

/* ---- kernels against ref --------------------------------------------------------------------- */

/* Fills lengths so that every kind occurs: none, one, some, all. */
static void fill_lengths(tdm_tensor *t, int64_t T)
{
    for (int64_t b = 0; b < t->shape.dim[0]; b++) {
        const int64_t kinds[4] = {(T + 1) / 2, T, 1, 0};
        ((int32_t *)t->data)[b] = (int32_t)kinds[b % 4];
    }
}

static kernel_bench forward_of(problem p)
{
    int64_t C = p.D * p.heads;
    kernel_bench b = {
        .op = TDM_OP_ATTENTION,
        .call = {.in = {{TDM_DTYPE_F32, tdm_shape_3(p.B, p.T, 3 * C), NULL}},
                 .out = {{TDM_DTYPE_F32, tdm_shape_3(p.B, p.T, C), NULL},
                         {TDM_DTYPE_F32, tdm_shape_3(p.B, p.heads, p.T), NULL}},
                 .attrs = {.heads = p.heads, .causal = p.causal, .p = p.p, .sub_stream = 3}},
        .key = {.seed = 5, .step = 6, .first_row = 7}};
    if (p.with_lengths) b.call.in[1] = (tdm_tensor){TDM_DTYPE_I32, tdm_shape_1(p.B), NULL};
    kernel_bench_open(&b);
    if (p.with_lengths) fill_lengths(&b.call.in[1], p.T);
    float *qkv = b.call.in[0].data; /* scores of a few units: the weights differ strongly */
    for (int64_t i = 0; i < p.B * p.T * 3 * C; i++) qkv[i] *= 2;
    return b;
}

/* dy is random; qkv, y and lse are those of a forward run by ref. */
static kernel_bench backward_of(problem p, const kernel_bench *forward)
{
    const tdm_kernel_call *f = &forward->call;
    kernel_bench b = {.op = TDM_OP_ATTENTION_GRAD, .key = forward->key};
    b.call.attrs = f->attrs;
    const tdm_tensor in[5] = {f->out[0], f->in[0], f->out[0], f->out[1], f->in[1]};
    for (int i = 0; i < 5; i++) {
        b.call.in[i].dtype = in[i].dtype;
        b.call.in[i].shape = in[i].shape;
    }
    b.call.out[0] = (tdm_tensor){TDM_DTYPE_F32, f->in[0].shape, NULL};
    kernel_bench_open(&b);
    for (int i = 1; i < (p.with_lengths ? 5 : 4); i++)
        memcpy(b.call.in[i].data, in[i].data, tdm_tensor_bytes(&in[i]));
    return b;
}

static void compare_outputs(const kernel_bench *ref, const kernel_bench *b, int level, problem p)
{
    for (int o = 0; o < TDM_OP_MAX_OUTPUTS; o++) {
        if (!b->call.out[o].dtype) continue;
        int64_t count = tdm_tensor_elements(&b->call.out[o]);
        double largest = kernel_bench_largest(ref->call.out[o].data, count);
        double apart = kernel_bench_apart(b->call.out[o].data, ref->call.out[o].data, count);
        double allowed = 3e-6 * (largest + 0.1);
        if (!(apart <= allowed))
            fprintf(stderr,
                    "  %s B %d T %d D %d heads %d%s%s p %g, level %d, output %d: %g apart\n",
                    b->op == TDM_OP_ATTENTION ? "forward" : "backward", (int)p.B, (int)p.T,
                    (int)p.D, p.heads, p.causal ? ", causal" : "",
                    p.with_lengths ? ", lengths" : "", (double)p.p, level, o, apart);
        CHECK(apart <= allowed);
    }
}

static void compare_to_ref(problem p)
{
    kernel_bench ref = forward_of(p), b = forward_of(p);
    kernel_bench_run(&ref, kernel_bench_ref());
    kernel_bench ref_back = backward_of(p, &ref), back = backward_of(p, &ref);
    kernel_bench_run(&ref_back, kernel_bench_ref());
    for (size_t i = 0; kernel_bench_cpu(i); i++) {
        kernel_bench_run(&b, kernel_bench_cpu(i));
        compare_outputs(&ref, &b, kernel_bench_cpu(i)->level, p);
        kernel_bench_run(&back, kernel_bench_cpu(i));
        compare_outputs(&ref_back, &back, kernel_bench_cpu(i)->level, p);
    }
    kernel_bench_close(&ref);
    kernel_bench_close(&b);
    kernel_bench_close(&ref_back);
    kernel_bench_close(&back);
}

static void every_kernel_agrees_with_ref(void)
{
    static const int64_t times[] = {1, 2, 3, 17, 63, 64, 65, 130},
                         widths[] = {1, 5, 16, 32, 64, 80};
    for (size_t t = 0; t < sizeof(times) / sizeof(times[0]); t++)
        for (size_t d = 0; d < sizeof(widths) / sizeof(widths[0]); d++)
            for (int form = 0; form < 8; form++)
                compare_to_ref((problem){.B = form & 2 ? 4 : 1,
                                         .T = times[t],
                                         .D = widths[d],
                                         .heads = 2,
                                         .causal = form & 1,
                                         .with_lengths = form & 2,
                                         .p = form & 4 ? 0.25f : 0});
}

/* Every length of the keys near the boundaries of blocks and vectors. */
static void every_length_agrees_with_ref(void)
{
    enum { T = 70 };
    for (int causal = 0; causal < 2; causal++) {
        problem p = {.B = 1, .T = T, .D = 8, .heads = 1, .causal = causal, .with_lengths = true};
        for (int length = 0; length <= T; length++) {
            kernel_bench ref = forward_of(p), b = forward_of(p);
            *(int32_t *)ref.call.in[1].data = *(int32_t *)b.call.in[1].data = length;
            kernel_bench_run(&ref, kernel_bench_ref());
            kernel_bench back = backward_of(p, &ref), ref_back = backward_of(p, &ref);
            kernel_bench_run(&ref_back, kernel_bench_ref());
            for (size_t i = 0; kernel_bench_cpu(i); i++) {
                kernel_bench_run(&b, kernel_bench_cpu(i));
                compare_outputs(&ref, &b, kernel_bench_cpu(i)->level, p);
                kernel_bench_run(&back, kernel_bench_cpu(i));
                compare_outputs(&ref_back, &back, kernel_bench_cpu(i)->level, p);
            }
            kernel_bench_close(&ref);
            kernel_bench_close(&b);
            kernel_bench_close(&back);
            kernel_bench_close(&ref_back);
        }
    }
}

static void threads_do_not_change_the_bits(void)
{
    problem p = {.B = 3, .T = 90, .D = 32, .heads = 5, .causal = true, .p = 0.1f};
    for (size_t i = 0; kernel_bench_cpu(i); i++) {
        kernel_bench forward = forward_of(p);
        kernel_bench_run(&forward, kernel_bench_cpu(i));
        kernel_bench back = backward_of(p, &forward);
        uint64_t hashes[2][3];
        for (int threads = 1; threads <= 3; threads++) {
            forward.threads = back.threads = threads;
            kernel_bench_run(&forward, kernel_bench_cpu(i));
            kernel_bench_run(&back, kernel_bench_cpu(i));
            hashes[0][threads - 1] = kernel_bench_hash(forward.call.out, TDM_OP_MAX_OUTPUTS);
            hashes[1][threads - 1] = kernel_bench_hash(back.call.out, TDM_OP_MAX_OUTPUTS);
        }
        for (int k = 0; k < 2; k++)
            CHECK(hashes[k][0] == hashes[k][1] && hashes[k][0] == hashes[k][2]);
        kernel_bench_close(&forward);
        kernel_bench_close(&back);
    }
}

/* ---- dropout --------------------------------------------------------------------------------- */

/* Equal weights, and values that are unit vectors: the result is the mask itself. */
static void dropout_is_drawn_by_place(void)
{
    enum { T = 40, HEADS = 2, C = T * HEADS };
    problem p = {.B = 2, .T = T, .D = T, .heads = HEADS, .p = 0.25f};
    for (size_t i = 0;; i++) {
        const tdm_kernel_backend_ops *ops = kernel_bench_cpu(i);
        kernel_bench b = forward_of(p);
        float *qkv = b.call.in[0].data, *y = b.call.out[0].data;
        memset(qkv, 0, tdm_tensor_bytes(&b.call.in[0]));
        for (int64_t bt = 0; bt < 2 * T; bt++)
            for (int64_t h = 0; h < HEADS; h++) qkv[bt * 3 * C + 2 * C + h * T + bt % T] = 1;
        kernel_bench_run(&b, ops ? ops : kernel_bench_ref());
        for (int64_t k = 0; k < 2 * T * C; k++) {
            int64_t row = k / (T * C), t = k / C % T, h = k % C / T, j = k % T;
            tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 5,
                                                       .stream = TDM_RNG_STREAM_DROPOUT,
                                                       .sub_stream = 3,
                                                       .step = 6,
                                                       .sample = 7 + (uint64_t)row});
            tdm_rng_seek(&rng, (uint64_t)((h * T + t) * 64 + j));
            float expected = tdm_rng_uniform(&rng) < 0.25f ? 0 : 1 / 0.75f / T;
            CHECK_NEAR(y[k], expected, 1e-7);
        }
        kernel_bench_close(&b);
        if (!ops) break;
    }
}

/* A row has the same result in any batch. */
static void rows_do_not_depend_on_the_batch(void)
{
    problem p = {.B = 3, .T = 21, .D = 8, .heads = 2, .causal = true, .p = 0.5f};
    problem one = p;
    one.B = 1;
    kernel_bench whole = forward_of(p), part = forward_of(one);
    size_t row_bytes = tdm_tensor_bytes(&part.call.in[0]);
    memcpy(part.call.in[0].data, (char *)whole.call.in[0].data + 2 * row_bytes, row_bytes);
    part.key.first_row = whole.key.first_row + 2;
    kernel_bench_run(&whole, kernel_bench_cpu(0));
    kernel_bench_run(&part, kernel_bench_cpu(0));
    size_t bytes = tdm_tensor_bytes(&part.call.out[0]);
    const char *expected = (const char *)whole.call.out[0].data + 2 * bytes;
    CHECK(memcmp(part.call.out[0].data, expected, bytes) == 0);
    part.key.first_row++;
    kernel_bench_run(&part, kernel_bench_cpu(0));
    CHECK(memcmp(part.call.out[0].data, expected, bytes) != 0);
    kernel_bench_close(&whole);
    kernel_bench_close(&part);
}

/* ---- the extremes ---------------------------------------------------------------------------- */

/* Scores of thousands, increasing and decreasing along the keys: a naive exp() would overflow or give 0/0. */
static void large_scores_stay_finite(void)
{
    problem p = {.B = 2, .T = 150, .D = 16, .heads = 1, .causal = true};
    kernel_bench ref = forward_of(p), b = forward_of(p);
    for (int k = 0; k < 2; k++) {
        float *qkv = k ? b.call.in[0].data : ref.call.in[0].data;
        for (int64_t i = 0; i < 2 * 150 * 48; i++)
            if (i % 48 < 32) qkv[i] *= 100;
    }
    kernel_bench_run(&ref, kernel_bench_ref());
    for (size_t i = 0; kernel_bench_cpu(i); i++) {
        kernel_bench_run(&b, kernel_bench_cpu(i));
        int64_t count = tdm_tensor_elements(&b.call.out[0]);
        /* The scores themselves are rounded at 1e-3 here, and the weights by as much. */
        CHECK(kernel_bench_apart(ref.call.out[0].data, b.call.out[0].data, count) < 2e-2);
        CHECK(isfinite(kernel_bench_largest(b.call.out[0].data, count)));
    }
    kernel_bench_close(&ref);
    kernel_bench_close(&b);
}

/* NaN in a key appears in every query that uses it, and in no other. */
static void nan_shows_where_it_is_seen(void)
{
    enum { T = 80, D = 16, BAD = 50 };
    for (size_t i = 0;; i++) {
        const tdm_kernel_backend_ops *ops = kernel_bench_cpu(i);
        kernel_bench b = forward_of((problem){.B = 1, .T = T, .D = D, .heads = 1, .causal = true});
        ((float *)b.call.in[0].data)[BAD * 3 * D + D + 3] = NAN;
        kernel_bench_run(&b, ops ? ops : kernel_bench_ref());
        for (int64_t k = 0; k < T * D; k++)
            CHECK_INT(isnan(((float *)b.call.out[0].data)[k]) != 0, k / D >= BAD);
        kernel_bench_close(&b);
        if (!ops) break;
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t scratch_of(tdm_op_kind op, int64_t T)
{
    tdm_error err = {0};
    tdm_tensor qkv = {TDM_DTYPE_F32, tdm_shape_3(1, T, 3 * 64), NULL};
    tdm_tensor y = {TDM_DTYPE_F32, tdm_shape_3(1, T, 64), NULL};
    tdm_tensor lse = {TDM_DTYPE_F32, tdm_shape_3(1, 1, T), NULL};
    tdm_kernel_call call = {.attrs.heads = 1};
    if (op == TDM_OP_ATTENTION)
        call.in[0] = qkv, call.out[0] = y, call.out[1] = lse;
    else
        call.in[0] = y, call.in[1] = qkv, call.in[2] = y, call.in[3] = lse, call.out[0] = qkv;
    int before = tdm_kernel_threads_set(1);
    CHECK_INT(tdm_kernel_find(kernel_bench_cpu(0), op, TDM_DTYPE_F32)->prepare(NULL, &call, &err),
              TDM_OK);
    tdm_kernel_threads_set(before);
    return call.scratch_bytes;
}

static void scratch_grows_with_time_not_its_square(void)
{
    static const tdm_op_kind ops[] = {TDM_OP_ATTENTION, TDM_OP_ATTENTION_GRAD};
    for (int i = 0; i < 2; i++) {
        CHECK(scratch_of(ops[i], 8192) <= 2 * scratch_of(ops[i], 4096));
        CHECK(scratch_of(ops[i], 16384) < (size_t)16384 * 16384 * sizeof(float) / 32);
    }
}

/* A whole step, forward and backward, needs less memory than one matrix of weights of one head. */
static void a_plan_has_no_matrix_of_weights(void)
{
    enum { T = 2048, C = 64 };
    tdm_error err = {0};
    tdm_graph *g = tdm_graph_create();
    tdm_value qkv = tdm_graph_param(g, "qkv", tdm_shape_3(1, T, 3 * C), unused_init);
    tdm_value y = tdm_graph_attention(g, qkv, &(tdm_attention_options){.heads = 4, .causal = true});
    CHECK_INT(tdm_graph_backward(g, weighted_sum(g, "w", y), &err), TDM_OK);
    tdm_plan *plan = NULL;
    CHECK_INT(tdm_plan_create(g, NULL, &plan, &err), TDM_OK);
    CHECK(tdm_plan_unshared_bytes(plan) < (size_t)T * T * sizeof(float));
    tdm_plan_destroy(plan);
    tdm_graph_destroy(g);
}

/* ---- mistakes -------------------------------------------------------------------------------- */

static void expect_mistake(tdm_shape shape, tdm_attention_options o, tdm_dtype lengths_dtype,
                           int64_t lengths, const char *part)
{
    tdm_error err = {0};
    tdm_graph *g = tdm_graph_create();
    if (lengths > 0) o.lengths = tdm_graph_input(g, "lengths", lengths_dtype, tdm_shape_1(lengths));
    tdm_graph_attention(g, tdm_graph_input(g, "x", TDM_DTYPE_F32, shape), &o);
    CHECK(tdm_graph_check(g, &err) != TDM_OK);
    CHECK_HAS(err.message, part);
    tdm_graph_destroy(g);
}

static void mistakes_are_named(void)
{
    tdm_shape good = tdm_shape_3(2, 4, 24);
    expect_mistake(tdm_shape_2(4, 24), (tdm_attention_options){.heads = 2}, 0, 0,
                   "qkv must have 3 dimensions, not shape [4, 24]");
    expect_mistake(tdm_shape_3(2, 4, 25), (tdm_attention_options){.heads = 2}, 0, 0,
                   "qkv has shape [2, 4, 25]; its last size must be three times a multiple");
    expect_mistake(good, (tdm_attention_options){.heads = 3}, 0, 0, "number of heads, which is 3");
    expect_mistake(good, (tdm_attention_options){.heads = -1}, 0, 0, "heads is -1");
    expect_mistake(good, (tdm_attention_options){.heads = 2, .dropout = 1}, 0, 0,
                   "attention: dropout is 1; it must be at least 0 and below 1");
    expect_mistake(good, (tdm_attention_options){.heads = 2}, TDM_DTYPE_F32, 2,
                   "lengths must be i32, not f32");
    expect_mistake(good, (tdm_attention_options){.heads = 2}, TDM_DTYPE_I32, 3,
                   "lengths must have shape [2], one for each row, not [3]");
    expect_mistake(tdm_shape_3(1, 100000, 24), (tdm_attention_options){.heads = 8, .dropout = 0.1},
                   0, 0, "8 heads over 100000 positions");
}

static const check_test tests[] = {
    CHECK_TEST(gradients_by_differences),
    CHECK_TEST(every_kernel_agrees_with_ref),
    CHECK_TEST(every_length_agrees_with_ref),
    CHECK_TEST(threads_do_not_change_the_bits),
    CHECK_TEST(dropout_is_drawn_by_place),
    CHECK_TEST(rows_do_not_depend_on_the_batch),
    CHECK_TEST(large_scores_stay_finite),
    CHECK_TEST(nan_shows_where_it_is_seen),
    CHECK_TEST(scratch_grows_with_time_not_its_square),
    CHECK_TEST(a_plan_has_no_matrix_of_weights),
    CHECK_TEST(mistakes_are_named),
};
CHECK_MAIN(tests)
