/*
 * gradient_bench.c: see gradient_bench.h.
 */
#include "kernel/gradient_bench.h"

tdm_value param(tdm_graph *g, const char *name, int64_t rows, int64_t cols)
{
    return tdm_graph_param(g, name, tdm_shape_2(rows, cols), unused_init);
}

tdm_value weighted_sum(tdm_graph *g, const char *weights_name, tdm_value x)
{
    tdm_shape shape = tdm_graph_shape(g, x);
    int64_t count = tdm_shape_elements(&shape);
    tdm_value weights = tdm_graph_input(g, weights_name, TDM_DTYPE_F32, tdm_shape_2(count, 1));
    tdm_value row = tdm_graph_reshape(g, x, tdm_shape_2(1, count));
    return tdm_graph_reshape(g, tdm_graph_matmul(g, row, weights, NULL), tdm_shape_0());
}

/* Copies the inputs of the plan. */
static double_eval eval_of(const bench *b, const tdm_step_key *key)
{
    double_eval e = double_eval_create(b->graph, key);
    for (size_t id = 1; id < b->graph->value_count; id++) {
        const tdm__value *v = &b->graph->values[id];
        const float *from = NULL;
        if (v->role == TDM__ROLE_PARAM) from = b->params + b->graph->params[v->param].offset;
        if (v->role == TDM__ROLE_INPUT && v->dtype == TDM_DTYPE_F32)
            from = tdm_plan_input(b->plan, v->name).data;
        for (size_t i = 0; from && i < double_eval_count(&e, (int32_t)id); i++)
            e.values[id][i] = (double)from[i];
        if (v->role != TDM__ROLE_INPUT || v->dtype != TDM_DTYPE_I32) continue;
        tdm_tensor chosen = tdm_plan_input(b->plan, v->name);
        memcpy(e.classes[id], chosen.data, tdm_tensor_bytes(&chosen));
    }
    return e;
}

static void compare_one(double_eval *e, int32_t loss, double *x, double gradient, double largest,
                        const char *what, size_t index)
{
    const double step = 1e-5;
    double at = *x;
    *x = at + step;
    double above = double_eval_run(e, loss);
    CHECK(e->kink > 10 * step || e->kink == INFINITY);
    *x = at - step;
    double below = double_eval_run(e, loss);
    *x = at;
    double expected = (above - below) / (2 * step);
    /* A few units in the last place of the largest gradient, because sums of such numbers are rounded. */
    double allowed = 4e-6 * largest + 1e-7;
    if (!(fabs(gradient - expected) <= allowed))
        fprintf(stderr, "  %s[%zu]: %.9g, by differences %.9g\n", what, index, gradient, expected);
    CHECK(fabs(gradient - expected) <= allowed);
}

static void compare_params(const bench *b, double_eval *e, int32_t loss)
{
    for (size_t p = 0; p < tdm_graph_param_count(b->graph); p++) {
        const tdm_param_info *info = tdm_graph_param_at(b->graph, p);
        if (!info->trained) continue;
        const float *grad = b->grads + info->offset;
        double largest = 0;
        for (size_t i = 0; i < info->elements; i++) largest = fmax(largest, fabs((double)grad[i]));
        CHECK(largest > 0); /* a case with zero gradients proves nothing */
        for (size_t i = 0; i < info->elements; i++)
            compare_one(e, loss, &e->values[b->graph->param_values[p]][i], (double)grad[i], largest,
                        info->name, i);
    }
}

static void compare_backend(const tdm_graph *g, tdm_value loss, const char *backend,
                            double_eval_more_fn more)
{
    const tdm_step_key key = {.seed = 7, .step = 3, .first_row = 5};
    bench b;
    if (!bench_open(&b, g, &(tdm_plan_options){.backend = backend})) return;
    memset(b.grads, 0xff, b.grad_bytes);
    bench_fill(&b, 2, CLASS_COUNT);
    double_eval e = eval_of(&b, &key);
    e.more = more;
    tdm_plan_run(b.plan, &key);
    double expected = double_eval_run(&e, loss.id);
    CHECK_NEAR(*(float *)tdm_plan_output(b.plan, "loss").data, expected,
               4e-6 * (fabs(expected) + 1));
    compare_params(&b, &e, loss.id);
    double_eval_release(&e);
    bench_close(&b);
}

void compare_with(tdm_graph *g, tdm_value loss, double_eval_more_fn more)
{
    tdm_error err = {0};
    tdm_graph_output(g, "loss", loss);
    CHECK_INT(tdm_graph_backward(g, loss, &err), TDM_OK);
    CHECK_TEXT(err.message, "");
    if (err.status == TDM_OK) {
        compare_backend(g, loss, "ref", more);
        compare_backend(g, loss, NULL, more);
    }
    tdm_graph_destroy(g);
}

void compare(tdm_graph *g, tdm_value loss)
{
    compare_with(g, loss, NULL);
}
