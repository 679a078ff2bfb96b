/*
 * graph_test.c: building, checking, differentiating and planning graphs, through graph.h. tests/kernel tests
 * the numbers that kernels compute; this test checks names, shapes, layouts, messages, and the memory that a
 * plan uses.
 */
#include "graph/graph.h"
#include "graph_bench.h"
#include "tensor/tensor.h"
#include "unit/graph_cases.h"

/* ---- parameters ------------------------------------------------------------------------------ */

static void parameter_layout(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_graph_buffer(g, "b1", tdm_shape_1(3), (tdm_init){TDM_INIT_ONE, 0});
    param(g, "w1", tdm_shape_2(5, 5));
    tdm_graph_buffer(g, "b2", tdm_shape_1(16), zero_init);
    tdm_graph_param(g, "w2", tdm_shape_0(), (tdm_init){TDM_INIT_NORMAL, 0.5});
    param(g, "w3", tdm_shape_1(32));
    static const struct {
        const char *name;
        bool trained;
        size_t offset, elements;
    } rows[] = {{"b1", false, 80, 3},
                {"w1", true, 0, 25},
                {"b2", false, 96, 16},
                {"w2", true, 32, 1},
                {"w3", true, 48, 32}};
    CHECK_INT(tdm_graph_param_count(g), 5);
    for (size_t i = 0; i < 5; i++) {
        const tdm_param_info *p = tdm_graph_param_at(g, i);
        CHECK_TEXT(p->name, rows[i].name);
        CHECK_INT(p->trained, rows[i].trained);
        CHECK_INT(p->offset, rows[i].offset);
        CHECK_INT(p->elements, rows[i].elements);
        CHECK_INT(p->offset * sizeof(float) % 64, 0);
    }
    CHECK_INT(tdm_graph_trained_extent(g), 80);
    CHECK_INT(tdm_graph_param_extent(g), 112);
    CHECK_INT(tdm_graph_trained_elements(g), 25 + 1 + 32);
    CHECK_INT(tdm_graph_param_at(g, 0)->init.kind, TDM_INIT_ONE);
    CHECK_INT(tdm_graph_param_at(g, 3)->init.kind, TDM_INIT_NORMAL);
    CHECK(tdm_graph_param_at(g, 3)->init.scale == 0.5);
    tdm_graph_destroy(g);
}

/* More of everything than the initial capacity of the arrays. */
static void graphs_grow(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value x = input(g, "x", tdm_shape_1(4));
    for (int i = 0; i < 300; i++) {
        char name[16];
        snprintf(name, sizeof(name), "w%d", i);
        x = tdm_graph_add(g, x, param(g, name, tdm_shape_1(4)));
    }
    tdm_graph_output(g, "y", x);
    CHECK_INT(tdm_graph_param_count(g), 300);
    CHECK_INT(tdm_graph_trained_extent(g), 300 * 16);
    bench b;
    if (bench_open(&b, g, NULL)) {
        for (size_t i = 0; i < tdm_graph_param_extent(g); i++) b.params[i] = 1;
        memset(tdm_plan_input(b.plan, "x").data, 0, 16);
        bench_run(&b);
        for (int i = 0; i < 4; i++) CHECK(((float *)tdm_plan_output(b.plan, "y").data)[i] == 300);
        bench_close(&b);
    }
    tdm_graph_destroy(g);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static tdm_value sum_of(tdm_graph *g, tdm_value x)
{
    tdm_shape s = tdm_graph_shape(g, x);
    tdm_value column = tdm_graph_reshape(g, x, tdm_shape_2(tdm_shape_elements(&s), 1));
    return tdm_graph_reshape(g, tdm_graph_sum_rows(g, column), tdm_shape_0());
}

static void backward_mistakes(void)
{
    tdm_error err = {0};
    tdm_graph *g = tdm_graph_create();
    tdm_value w = param(g, "w", tdm_shape_2(1, 1)), y = tdm_graph_relu(g, w);
    const char *message = "graph: the loss must be a scalar f32 value";
    CHECK_INT(tdm_graph_backward(g, y, &err), TDM_ERR_INVALID);
    CHECK_TEXT(err.message, message);
    CHECK_INT(tdm_graph_backward(g, TDM_VALUE_NONE, &err), TDM_ERR_INVALID);
    CHECK_INT(tdm_graph_backward(g, (tdm_value){-3}, &err), TDM_ERR_INVALID);
    CHECK_INT(tdm_graph_backward(g, (tdm_value){77}, &err), TDM_ERR_INVALID);
    tdm_value classes = tdm_graph_input(g, "c", TDM_DTYPE_I32, tdm_shape_0());
    CHECK_INT(tdm_graph_backward(g, classes, &err), TDM_ERR_INVALID);
    CHECK_TEXT(err.message, message);
    size_t nodes = tdm_graph_node_count(g);
    CHECK_INT(nodes, 1); /* an error adds nothing */

    tdm_value loss = sum_of(g, y);
    CHECK_INT(tdm_graph_backward(g, loss, &err), TDM_OK);
    nodes = tdm_graph_node_count(g);
    CHECK_INT(tdm_graph_backward(g, loss, &err), TDM_ERR_EXISTS);
    CHECK_TEXT(err.message, "graph: it already has gradients");
    CHECK_INT(tdm_graph_node_count(g), nodes);
    CHECK_INT(tdm_graph_check(g, &err), TDM_OK);
    tdm_graph_destroy(g);
}

/* Runs the graph once with random inputs and parameters; all gradients are NaN before. */
static bool run_once(bench *b, const tdm_graph *g)
{
    if (!bench_open(b, g, NULL)) return false;
    memset(b->grads, 0xff, b->grad_bytes);
    bench_fill(b, 4, 2);
    bench_run(b);
    return true;
}

static float *grad_of(const bench *b, size_t param_index)
{
    return b->grads + tdm_graph_param_at(b->graph, param_index)->offset;
}

static float *param_of(const bench *b, size_t param_index)
{
    return b->params + tdm_graph_param_at(b->graph, param_index)->offset;
}

static void a_parameter_without_influence_has_no_gradient(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value used = param(g, "used", tdm_shape_2(2, 2));
    param(g, "unused", tdm_shape_1(20));
    /* used in the computation, but not for the loss */
    tdm_value side = param(g, "beside", tdm_shape_1(3));
    tdm_graph_output(g, "y", tdm_graph_relu(g, side));
    CHECK_INT(tdm_graph_backward(g, sum_of(g, used), NULL), TDM_OK);
    bench b;
    if (run_once(&b, g)) {
        for (int i = 0; i < 4; i++) CHECK(grad_of(&b, 0)[i] == 1);
        for (int i = 0; i < 20; i++) CHECK(grad_of(&b, 1)[i] == 0);
        for (int i = 0; i < 3; i++) CHECK(grad_of(&b, 2)[i] == 0);
        bench_close(&b);
    }
    tdm_graph_destroy(g);
}

static void a_parameter_used_twice_adds_up(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value w = param(g, "w", tdm_shape_2(1, 3));
    tdm_value dot = tdm_graph_matmul(g, w, w, &(tdm_matmul_options){.trans_b = true});
    tdm_value both = tdm_graph_add(g, sum_of(g, dot), sum_of(g, w)); /* |w|^2 + sum w */
    CHECK_INT(tdm_graph_backward(g, both, NULL), TDM_OK);
    bench b;
    if (run_once(&b, g)) {
        for (int i = 0; i < 3; i++)
            CHECK_NEAR(grad_of(&b, 0)[i], 2 * (double)param_of(&b, 0)[i] + 1, 1e-6);
        bench_close(&b);
    }
    tdm_graph_destroy(g);
}

static void a_parameter_used_only_through_a_view(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value w = param(g, "w", tdm_shape_2(2, 3)), v = param(g, "v", tdm_shape_1(6));
    tdm_value flat = tdm_graph_reshape(g, w, tdm_shape_2(1, 6));
    tdm_value column = tdm_graph_reshape(g, v, tdm_shape_2(6, 1));
    tdm_value dot = tdm_graph_reshape(g, tdm_graph_matmul(g, flat, column, NULL), tdm_shape_0());
    CHECK_INT(tdm_graph_backward(g, dot, NULL), TDM_OK);
    bench b;
    if (run_once(&b, g)) {
        for (int i = 0; i < 6; i++) {
            CHECK(grad_of(&b, 0)[i] == param_of(&b, 1)[i]);
            CHECK(grad_of(&b, 1)[i] == param_of(&b, 0)[i]);
        }
        bench_close(&b);
    }
    tdm_graph_destroy(g);
}

/* The smallest case: the loss is the parameter. */
static void a_parameter_that_is_the_loss(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value w = param(g, "w", tdm_shape_0());
    CHECK_INT(tdm_graph_backward(g, w, NULL), TDM_OK);
    bench b;
    if (run_once(&b, g)) {
        CHECK(grad_of(&b, 0)[0] == 1);
        bench_close(&b);
    }
    tdm_graph_destroy(g);
}

/* Two parameters with one gradient: each has a separate copy at its offset. */
static void parameters_that_share_a_gradient(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value u = param(g, "u", tdm_shape_1(3)), v = param(g, "v", tdm_shape_1(3));
    tdm_value t = tdm_graph_tanh(g, tdm_graph_add(g, u, v));
    CHECK_INT(tdm_graph_backward(g, sum_of(g, t), NULL), TDM_OK);
    bench b;
    if (run_once(&b, g)) {
        for (int i = 0; i < 3; i++) {
            double y = tanh((double)param_of(&b, 0)[i] + (double)param_of(&b, 1)[i]);
            CHECK_NEAR(grad_of(&b, 0)[i], 1 - y * y, 1e-6);
            CHECK(grad_of(&b, 1)[i] == grad_of(&b, 0)[i]);
        }
        bench_close(&b);
    }
    tdm_graph_destroy(g);
}

/* ---- what is in a graph ---------------------------------------------------------------------- */

typedef struct mlp {
    tdm_graph *graph;
    tdm_value logits, loss;
} mlp;

/* B 4, features 6, hidden 5, classes 3. */
static mlp make_mlp(void)
{
    mlp m = {.graph = tdm_graph_create()};
    tdm_graph *g = m.graph;
    tdm_value x = input(g, "x", tdm_shape_2(4, 6));
    tdm_value classes = tdm_graph_input(g, "classes", TDM_DTYPE_I32, tdm_shape_1(4));
    tdm_graph_scope(g, "fc1");
    tdm_value w1 = param(g, "w1", tdm_shape_2(5, 6)), b1 = param(g, "b1", tdm_shape_1(5));
    x = tdm_graph_matmul(g, x, w1, &(tdm_matmul_options){.trans_b = true, .bias = b1});
    x = tdm_graph_relu(g, x);
    tdm_graph_scope(g, "fc2");
    tdm_value w2 = param(g, "w2", tdm_shape_2(3, 5)), b2 = param(g, "b2", tdm_shape_1(3));
    m.logits = tdm_graph_matmul(g, x, w2, &(tdm_matmul_options){.trans_b = true, .bias = b2});
    tdm_graph_scope(g, NULL);
    tdm_graph_output(g, "logits", m.logits);
    m.loss = tdm_graph_cross_entropy(g, m.logits, classes, 0.25);
    tdm_graph_output(g, "loss", m.loss);
    return m;
}

static void nodes_of_an_mlp(void)
{
    static const struct {
        const char *op, *name;
        bool backward;
        int rank;
        int64_t dim[2];
        uint64_t flops;
    } rows[] = {
        {"matmul", "fc1.matmul", false, 2, {4, 5}, 2 * 4 * 5 * 6 + 4 * 5},
        {"relu", "fc1.relu", false, 2, {4, 5}, 20},
        {"matmul", "fc2.matmul", false, 2, {4, 3}, 2 * 4 * 3 * 5 + 4 * 3},
        {"cross_entropy", "cross_entropy", false, 0, {0}, 8 * 12},
        {"fill", "loss.fill", true, 0, {0}, 0},
        {"cross_entropy_grad", "cross_entropy.cross_entropy_grad", true, 2, {4, 3}, 12},
        {"matmul", "fc2.matmul.matmul.d_x", true, 2, {4, 5}, 2 * 4 * 5 * 3},
        {"matmul", "fc2.matmul.matmul.d_w", true, 2, {3, 5}, 2 * 3 * 5 * 4},
        {"sum_rows", "fc2.matmul.sum_rows", true, 1, {3}, 12},
        {"relu_grad", "fc1.relu.relu_grad", true, 2, {4, 5}, 20},
        {"matmul", "fc1.matmul.matmul.d_w", true, 2, {5, 6}, 2 * 5 * 6 * 4}, /* x needs none */
        {"sum_rows", "fc1.matmul.sum_rows", true, 1, {5}, 20},
    };
    enum { ROWS = sizeof(rows) / sizeof(rows[0]) };
    mlp m = make_mlp();
    CHECK_INT(tdm_graph_node_count(m.graph), 4);
    CHECK_INT(tdm_graph_backward(m.graph, m.loss, NULL), TDM_OK);
    CHECK_INT(tdm_graph_node_count(m.graph), ROWS);
    for (size_t i = 0; i < ROWS && i < tdm_graph_node_count(m.graph); i++) {
        tdm_node_info info = tdm_graph_node_at(m.graph, i);
        CHECK_TEXT(info.op, rows[i].op);
        CHECK_TEXT(info.name, rows[i].name);
        CHECK_INT(info.backward, rows[i].backward);
        CHECK_INT(info.dtype, TDM_DTYPE_F32);
        CHECK_INT(info.shape.rank, rows[i].rank);
        for (int d = 0; d < rows[i].rank; d++) CHECK_INT(info.shape.dim[d], rows[i].dim[d]);
        CHECK_INT(info.flops, rows[i].flops);
    }
    tdm_graph_destroy(m.graph);
}

static void shapes_of_values(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value x = input(g, "x", tdm_shape_2(4, 6));
    tdm_shape s = tdm_graph_shape(g, tdm_graph_sum_rows(g, x));
    CHECK(s.rank == 1 && s.dim[0] == 6);
    s = tdm_graph_shape(g, tdm_graph_matmul(g, x, x, &(tdm_matmul_options){.trans_a = true}));
    CHECK(s.rank == 2 && s.dim[0] == 6 && s.dim[1] == 6);
    s = tdm_graph_shape(g, tdm_graph_matmul(g, x, x, &(tdm_matmul_options){.trans_b = true}));
    CHECK(s.rank == 2 && s.dim[0] == 4 && s.dim[1] == 4);
    tdm_graph_scope(g, "");
    tdm_graph_relu(g, x);
    CHECK_TEXT(tdm_graph_node_at(g, tdm_graph_node_count(g) - 1).name, "relu");
    tdm_graph_destroy(g);
}

/* ---- plans ----------------------------------------------------------------------------------- */

static void inputs_and_outputs_by_name(void)
{
    mlp m = make_mlp();
    CHECK_INT(tdm_graph_backward(m.graph, m.loss, NULL), TDM_OK);
    bench b;
    if (bench_open(&b, m.graph, NULL)) {
        tdm_tensor x = tdm_plan_input(b.plan, "x"), classes = tdm_plan_input(b.plan, "classes");
        tdm_tensor logits = tdm_plan_output(b.plan, "logits"),
                   loss = tdm_plan_output(b.plan, "loss");
        CHECK(x.dtype == TDM_DTYPE_F32 && tdm_tensor_bytes(&x) == 96);
        CHECK(classes.dtype == TDM_DTYPE_I32 && tdm_tensor_bytes(&classes) == 16);
        CHECK(logits.dtype == TDM_DTYPE_F32 && tdm_tensor_bytes(&logits) == 48);
        CHECK(loss.dtype == TDM_DTYPE_F32 && loss.shape.rank == 0);
        CHECK_INT(tdm_plan_input(b.plan, "logits").dtype, TDM_DTYPE_NONE);
        CHECK_INT(tdm_plan_output(b.plan, "x").dtype, TDM_DTYPE_NONE);
        CHECK_INT(tdm_plan_input(b.plan, "w1").dtype, TDM_DTYPE_NONE);
        CHECK_INT(tdm_plan_output(b.plan, "").dtype, TDM_DTYPE_NONE);

        /* Binding the arena again moves them all, and nothing else. */
        size_t offset = (size_t)((char *)logits.data - (char *)b.arena);
        CHECK(offset + 48 <= b.arena_bytes);
        char *other = bench_alloc(b.arena_bytes);
        tdm_plan_bind(b.plan, TDM_SPACE_ARENA, other);
        CHECK((char *)tdm_plan_output(b.plan, "logits").data == other + offset);
        free(b.arena);
        b.arena = (float *)other;
        bench_fill(&b, 1, 3);
        bench_run(&b);
        CHECK(isfinite(*(float *)tdm_plan_output(b.plan, "loss").data));
        bench_close(&b);
    }
    tdm_graph_destroy(m.graph);
}

/* The same results with less memory: no gradient nodes, no block of gradients. */
static void forward_only_plans(void)
{
    mlp m = make_mlp();
    CHECK_INT(tdm_graph_backward(m.graph, m.loss, NULL), TDM_OK);
    bench whole, forward;
    if (bench_open(&whole, m.graph, NULL) &&
        bench_open(&forward, m.graph, &(tdm_plan_options){.forward_only = true})) {
        CHECK_INT(tdm_plan_node_count(whole.plan), 12);
        CHECK_INT(tdm_plan_node_count(forward.plan), 4);
        for (size_t i = 0; i < tdm_plan_node_count(forward.plan); i++)
            CHECK(!tdm_graph_node_at(m.graph, tdm_plan_node_at(forward.plan, i).node).backward);
        CHECK(tdm_plan_arena_bytes(forward.plan) <= tdm_plan_arena_bytes(whole.plan));
        tdm_plan_bind(forward.plan, TDM_SPACE_GRADS, NULL); /* never touched */
        bench_fill(&whole, 1, 3);
        bench_fill(&forward, 1, 3);
        bench_run(&whole);
        bench_run(&forward);
        CHECK(memcmp(tdm_plan_output(whole.plan, "logits").data,
                     tdm_plan_output(forward.plan, "logits").data, 48) == 0);
        CHECK(memcmp(tdm_plan_output(whole.plan, "loss").data,
                     tdm_plan_output(forward.plan, "loss").data, 4) == 0);
        bench_close(&forward);
        bench_close(&whole);
    }
    tdm_graph_destroy(m.graph);
}

/* Only the ops that an output or a gradient needs are run. */
static void unused_ops_are_left_out(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value x = input(g, "x", tdm_shape_2(2, 2));
    tdm_graph_softmax(g, tdm_graph_gelu(g, x));
    tdm_graph_output(g, "y", tdm_graph_relu(g, x));
    tdm_graph_tanh(g, x);
    bench b;
    if (bench_open(&b, g, NULL)) {
        CHECK_INT(tdm_plan_node_count(b.plan), 1);
        CHECK_INT(tdm_plan_node_at(b.plan, 0).node, 2);
        bench_close(&b);
    }
    tdm_graph_destroy(g);
    g = tdm_graph_create(); /* and a graph without ops gives a plan without steps */
    if (bench_open(&b, g, NULL)) {
        CHECK_INT(tdm_plan_node_count(b.plan), 0);
        CHECK_INT(tdm_plan_arena_bytes(b.plan), 0);
        bench_run(&b);
        bench_close(&b);
    }
    tdm_graph_destroy(g);
}

typedef struct watcher {
    size_t seen;
    size_t nodes[8];
    size_t end_after;
    bool in_order;
} watcher;

static bool watch(void *user, const tdm_plan_event *event)
{
    watcher *w = user;
    w->in_order = w->in_order && event->end_ns >= event->begin_ns && event->out_count >= 1 &&
                  event->out[0].dtype == TDM_DTYPE_F32 && event->out[0].data;
    w->nodes[w->seen++ % 8] = event->node;
    return w->seen < w->end_after;
}

/* A watcher is called once for every node, and can end the run at any of them; the results are the same. */
static void runs_in_front_of_a_watcher(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value x = input(g, "x", tdm_shape_2(2, 2));
    tdm_value y = tdm_graph_tanh(g, tdm_graph_relu(g, x));
    tdm_graph_output(g, "y", tdm_graph_reshape(g, y, tdm_shape_1(4)));
    bench b;
    if (bench_open(&b, g, NULL)) {
        float values[2][4];
        tdm_step_key key = {0};
        for (int run = 0; run < 2; run++) {
            float *in = tdm_plan_input(b.plan, "x").data;
            for (int i = 0; i < 4; i++) in[i] = (float)i - 1.5f;
            watcher w = {.end_after = 100, .in_order = true};
            if (run == 0) bench_run(&b);
            if (run == 1) tdm_plan_run_watched(b.plan, &key, watch, &w);
            memcpy(values[run], tdm_plan_output(b.plan, "y").data, sizeof(values[run]));
            if (run == 0) continue;
            CHECK_INT(w.seen, 2); /* the view does not run */
            CHECK_INT(w.nodes[0], 0);
            CHECK_INT(w.nodes[1], 1);
            CHECK(w.in_order);
        }
        CHECK(memcmp(values[0], values[1], sizeof(values[0])) == 0);
        watcher w = {.end_after = 1, .in_order = true};
        tdm_plan_run_watched(b.plan, &key, watch, &w);
        CHECK_INT(w.seen, 1);
        /* Only ops of one kind, on any data; here all share one address. */
        float *in = tdm_plan_input(b.plan, "x").data;
        for (int i = 0; i < 4; i++) in[i] = 0.5f;
        tdm_plan_run_only(b.plan, &key, "relu");
        tdm_plan_run_only(b.plan, &key, "no such op");
        CHECK(*(float *)tdm_plan_output(b.plan, "y").data == 0.5f);
        tdm_plan_run_only(b.plan, &key, "tanh");
        CHECK(fabsf(*(float *)tdm_plan_output(b.plan, "y").data - tanhf(0.5f)) < 1e-6f);
        bench_close(&b);
    }
    tdm_graph_destroy(g);
}

static void backends_by_name(void)
{
    tdm_error err = {0};
    tdm_plan *plan = NULL;
    mlp m = make_mlp();
    CHECK_INT(tdm_graph_backward(m.graph, m.loss, NULL), TDM_OK);
    bench b;
    if (bench_open(&b, m.graph, &(tdm_plan_options){.backend = "ref"})) {
        for (size_t i = 0; i < tdm_plan_node_count(b.plan); i++)
            CHECK_TEXT(tdm_plan_node_at(b.plan, i).backend, "ref");
        bench_close(&b);
    }
    for (int vendor = 0; vendor < 2; vendor++) {
        tdm_plan_options options = {.numerics = vendor ? TDM_NUMERICS_VENDOR
                                                       : TDM_NUMERICS_PORTABLE};
        char library[TDM_LIBRARY_BYTES];
        if (vendor && !tdm_tensor_library(library)) {
            CHECK_INT(tdm_plan_create(m.graph, &options, &plan, &err), TDM_ERR_UNSUPPORTED);
            CHECK_HAS(err.message, "libdnnl-dev");
            continue;
        }
        if (!bench_open(&b, m.graph, &options)) continue;
        for (size_t i = 0; i < tdm_plan_node_count(b.plan); i++) {
            tdm_plan_node_info info = tdm_plan_node_at(b.plan, i);
            const tdm_node_info node = tdm_graph_node_at(m.graph, info.node);
            bool product = strcmp(node.op, "matmul") == 0;
            if (product && vendor)
                CHECK_TEXT(info.backend, "onednn");
            else if (product)
                CHECK(strcmp(info.backend, "ref") != 0);
            else
                CHECK_TEXT(info.backend, "cpu");
            bool gradient = node.backward && (node.shape.rank == 1 || node.shape.dim[0] != 4) &&
                            node.shape.rank > 0;
            CHECK_INT(info.arena_offset == SIZE_MAX, gradient);
        }
        bench_close(&b);
    }
    CHECK_INT(tdm_plan_create(m.graph, &(tdm_plan_options){.backend = "cuda"}, &plan, &err),
              TDM_ERR_UNSUPPORTED);
    CHECK_TEXT(err.message, "fc1.matmul: no kernel computes this op in backend cuda");
    CHECK(!plan);
    tdm_graph_destroy(m.graph);
}

/* A batch without rows: nothing is computed, and sums are zero. */
static void empty_batches(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value x = input(g, "x", tdm_shape_2(0, 3)), w = param(g, "w", tdm_shape_2(3, 2));
    tdm_value classes = tdm_graph_input(g, "classes", TDM_DTYPE_I32, tdm_shape_1(0));
    tdm_value y = tdm_graph_dropout(g, tdm_graph_matmul(g, x, w, NULL), 0.5);
    tdm_value loss = tdm_graph_cross_entropy(g, y, classes, 1);
    tdm_graph_output(g, "loss", loss);
    CHECK_INT(tdm_graph_backward(g, loss, NULL), TDM_OK);
    bench b;
    if (run_once(&b, g)) {
        CHECK(*(float *)tdm_plan_output(b.plan, "loss").data == 0);
        for (int i = 0; i < 6; i++) CHECK(grad_of(&b, 0)[i] == 0);
        bench_close(&b);
    }
    tdm_graph_destroy(g);
}

static const check_test tests[] = {
    CHECK_TEST(parameter_layout),
    CHECK_TEST(graphs_grow),
    CHECK_TEST(backward_mistakes),
    CHECK_TEST(a_parameter_without_influence_has_no_gradient),
    CHECK_TEST(a_parameter_used_twice_adds_up),
    CHECK_TEST(a_parameter_used_only_through_a_view),
    CHECK_TEST(a_parameter_that_is_the_loss),
    CHECK_TEST(parameters_that_share_a_gradient),
    CHECK_TEST(nodes_of_an_mlp),
    CHECK_TEST(shapes_of_values),
    CHECK_TEST(inputs_and_outputs_by_name),
    CHECK_TEST(forward_only_plans),
    CHECK_TEST(unused_ops_are_left_out),
    CHECK_TEST(runs_in_front_of_a_watcher),
    CHECK_TEST(backends_by_name),
    CHECK_TEST(empty_batches),
};
static CHECK_SUITE(graph_rules, tests);

CHECK_MAIN_SUITES(&graph_rules, &graph_mistakes)
