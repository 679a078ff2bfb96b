/*
 * random_graph.c: see random_graph.h.
 */
#include "kernel/random_graph.h"

static uint64_t random_graph_below(random_graph *r, uint64_t bound)
{
    return tdm_rng_below(&r->rng, bound);
}

static void random_graph_keep(random_graph *r, tdm_value v)
{
    if (r->pool_count < RANDOM_GRAPH_POOL) r->pool[r->pool_count++] = v;
}

/* Selects a recent value in most cases, and sometimes an older one. */
static tdm_value random_graph_pick(random_graph *r)
{
    uint64_t back = random_graph_below(r, 1 + random_graph_below(r, r->pool_count));
    return r->pool[r->pool_count - 1 - back];
}

/* A new input, parameter or buffer. */
static tdm_value random_graph_leaf(random_graph *r, tdm_shape shape, bool may_train)
{
    char name[16];
    snprintf(name, sizeof(name), "leaf%d", r->name_count++);
    uint64_t kind = random_graph_below(r, 4);
    if (may_train && kind < 2) return tdm_graph_param(r->graph, name, shape, (tdm_init){0});
    if (kind == 2) return tdm_graph_buffer(r->graph, name, shape, (tdm_init){0});
    return tdm_graph_input(r->graph, name, TDM_DTYPE_F32, shape);
}

/* A matrix of this shape: an existing one, if the first few attempts find one, or a new leaf. */
static tdm_value random_graph_matrix(random_graph *r, int64_t rows, int64_t cols)
{
    for (int i = 0; i < 6; i++) {
        tdm_value v = random_graph_pick(r);
        tdm_shape shape = tdm_graph_shape(r->graph, v);
        if (shape.dim[0] == rows && shape.dim[1] == cols) return v;
    }
    tdm_value leaf = random_graph_leaf(r, tdm_shape_2(rows, cols), true);
    random_graph_keep(r, leaf);
    return leaf;
}

static tdm_value random_graph_matmul(random_graph *r, tdm_value x)
{
    static const int64_t sizes[] = {1, 2, 3, 5, 8, 17};
    tdm_graph *g = r->graph;
    tdm_shape shape = tdm_graph_shape(g, x);
    tdm_matmul_options o = {.trans_a = random_graph_below(r, 2),
                            .trans_b = random_graph_below(r, 2)};
    int64_t K = shape.dim[!o.trans_a], N = sizes[random_graph_below(r, 6)];
    tdm_value b = o.trans_b ? random_graph_matrix(r, N, K) : random_graph_matrix(r, K, N);
    if (random_graph_below(r, 2)) o.bias = random_graph_leaf(r, tdm_shape_1(N), true);
    /* Limited, so that long chains of products neither grow nor vanish. */
    return tdm_graph_tanh(g, tdm_graph_matmul(g, x, b, &o));
}

static tdm_value random_graph_reshape(random_graph *r, tdm_value x)
{
    tdm_graph *g = r->graph;
    tdm_shape s = tdm_graph_shape(g, x);
    switch (random_graph_below(r, 3)) {
    case 0: return tdm_graph_reshape(g, x, tdm_shape_2(s.dim[1], s.dim[0]));
    case 1: return tdm_graph_reshape(g, x, tdm_shape_2(1, s.dim[0] * s.dim[1]));
    default:
        x = tdm_graph_reshape(g, x, tdm_shape_3(s.dim[1], 1, s.dim[0]));
        return tdm_graph_reshape(g, tdm_graph_sigmoid(g, x), s);
    }
}

/* Ops that move numbers, and sums and products with a shorter or an equal operand. */
static tdm_value random_graph_moved(random_graph *r, tdm_value x)
{
    tdm_graph *g = r->graph;
    tdm_shape s = tdm_graph_shape(g, x);
    tdm_value other = random_graph_matrix(r, s.dim[0], s.dim[1]);
    tdm_value row = random_graph_leaf(r, tdm_shape_1(s.dim[1]), true);
    switch (random_graph_below(r, 8)) {
    case 0: return tdm_graph_transpose(g, x, (int[]){1, 0});
    case 1: return tdm_graph_slice(g, x, 1, s.dim[1] / 2, s.dim[1]);
    case 2: return tdm_graph_concat(g, (tdm_value[]){x, other, x}, 3, 0);
    case 3: return tdm_graph_add(g, x, row);
    case 4: return tdm_graph_tanh(g, tdm_graph_mul(g, x, row));
    case 5: return tdm_graph_tanh(g, tdm_graph_mul(g, x, other));
    case 6: return tdm_graph_reshape(g, tdm_graph_mean(g, x, 0), tdm_shape_2(1, s.dim[1]));
    default: return tdm_graph_scale(g, tdm_graph_silu(g, x), -0.5);
    }
}

static void random_graph_op(random_graph *r)
{
    tdm_graph *g = r->graph;
    tdm_value x = random_graph_pick(r), y;
    tdm_shape s = tdm_graph_shape(g, x);
    switch (random_graph_below(r, 14)) {
    case 0:
    case 1: y = random_graph_matmul(r, x); break;
    case 2:
    case 3: y = tdm_graph_add(g, x, random_graph_matrix(r, s.dim[0], s.dim[1])); break;
    case 4: y = random_graph_reshape(r, x); break;
    case 5: y = tdm_graph_reshape(g, tdm_graph_sum_rows(g, x), tdm_shape_2(1, s.dim[1])); break;
    case 6: y = tdm_graph_relu(g, x); break;
    case 7: y = tdm_graph_gelu(g, x); break;
    case 8: y = tdm_graph_sigmoid(g, x); break;
    case 9: y = tdm_graph_dropout(g, x, 0.5); break;
    case 10: {
        tdm_value shift = random_graph_leaf(r, tdm_shape_1(s.dim[1]), false);
        y = tdm_graph_normalise(g, x, shift, random_graph_leaf(r, tdm_shape_1(s.dim[1]), false));
        break;
    }
    case 11: y = tdm_graph_softmax(g, x); break;
    default: y = random_graph_moved(r, x); break;
    }
    random_graph_keep(r, y);
}

/* The sum of a cross entropy, and sometimes of the squares of another value. */
static tdm_value random_graph_loss(random_graph *r)
{
    tdm_graph *g = r->graph;
    tdm_value x = random_graph_pick(r);
    tdm_shape s = tdm_graph_shape(g, x);
    if (s.dim[1] != RANDOM_GRAPH_CLASSES) {
        tdm_value head = tdm_graph_param(g, "head", tdm_shape_2(s.dim[1], RANDOM_GRAPH_CLASSES),
                                         (tdm_init){0});
        x = tdm_graph_matmul(g, x, head, NULL);
    }
    tdm_value classes = tdm_graph_input(g, "classes", TDM_DTYPE_I32, tdm_shape_1(s.dim[0]));
    tdm_value loss = tdm_graph_cross_entropy(g, x, classes, 0.5);
    if (random_graph_below(r, 2)) return loss;
    tdm_value other = random_graph_pick(r);
    tdm_shape o = tdm_graph_shape(g, other);
    tdm_value row = tdm_graph_reshape(g, other, tdm_shape_2(1, o.dim[0] * o.dim[1]));
    tdm_value square = tdm_graph_matmul(g, row, row, &(tdm_matmul_options){.trans_b = true});
    return tdm_graph_add(g, loss, tdm_graph_reshape(g, square, tdm_shape_0()));
}

tdm_graph *random_graph_make(uint64_t seed, tdm_error *err)
{
    random_graph r = {.graph = tdm_graph_create()};
    r.rng = tdm_rng_at((tdm_rng_address){.seed = seed, .stream = TDM_RNG_STREAM_USER});
    random_graph_keep(&r, tdm_graph_input(r.graph, "x", TDM_DTYPE_F32, tdm_shape_2(6, 5)));
    random_graph_keep(&r, tdm_graph_param(r.graph, "p", tdm_shape_2(6, 5), (tdm_init){0}));
    uint64_t op_count = 4 + random_graph_below(&r, 36);
    for (uint64_t i = 0; i < op_count; i++) random_graph_op(&r);
    tdm_value loss = random_graph_loss(&r);
    tdm_graph_output(r.graph, "loss", loss);
    for (uint64_t i = random_graph_below(&r, 3); i > 0; i--) {
        tdm_value v = random_graph_pick(&r);
        char name[16];
        snprintf(name, sizeof(name), "out%d", r.name_count++);
        const tdm__value *inside = v.id > 0 ? &r.graph->values[v.id] : NULL;
        if (inside && inside->role == TDM__ROLE_COMPUTED && !inside->is_output)
            tdm_graph_output(r.graph, name, v);
    }
    if (tdm_graph_backward(r.graph, loss, err) == TDM_OK) return r.graph;
    tdm_graph_destroy(r.graph);
    return NULL;
}
