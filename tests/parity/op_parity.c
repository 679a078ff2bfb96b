/*
 * op_parity.c: single ops, forward and backward, which op_parity.py computes with PyTorch as well.
 *
 * The inputs of an op are parameters here, so that they get gradients; an op that returns a tensor y is
 * followed by sum(y * r) with a random r. Each case runs twice: with the fastest kernels and with the plain
 * ones. The output has settings, parameters, inputs, and for each run the output and the gradients (for running
 * statistics, the observed values).
 */
#include "base/base.h"
#include "parity/exchange.h"

/* How the inputs of a case are filled, if not with normal numbers. */
typedef struct filling {
    int32_t min, below; /* integers: from `least` to `below` - 1 */
    bool has_ignore;    /* every third of them is `ignore` instead */
    int32_t ignore;
    bool probabilities; /* "target" is in [0, 1), and 0 at first */
} filling;

static const char *const input_names[] = {"r", "target", "classes", "lengths", "ids"};

static const tdm_init from_outside = {.kind = TDM_INIT_ZERO};

static tdm_value param(tdm_graph *g, const char *name, tdm_shape shape)
{
    return tdm_graph_param(g, name, shape, from_outside);
}

static void fill_inputs(const lab *l, const filling *f)
{
    for (size_t n = 0; n < COUNT_OF(input_names); n++) {
        tdm_tensor in = tdm_plan_input(l->plan, input_names[n]);
        if (in.dtype == TDM_DTYPE_NONE) continue;
        tdm_rng rng = tdm_rng_at((tdm_rng_address){
            .seed = 7, .stream = TDM_RNG_STREAM_USER, .sub_stream = 100 + (uint32_t)n});
        for (int64_t i = 0; i < tdm_tensor_elements(&in); i++) {
            if (in.dtype == TDM_DTYPE_I32)
                ((int32_t *)in.data)[i] = f->has_ignore && i % 3 == 0
                                              ? f->ignore
                                              : f->min + (int32_t)tdm_rng_below(
                                                             &rng, (uint64_t)(f->below - f->min));
            else if (f->probabilities)
                ((float *)in.data)[i] = i == 0 ? 0.0f : tdm_rng_uniform(&rng);
            else
                ((float *)in.data)[i] = (float)tdm_rng_normal(&rng);
        }
    }
}

/* Normal numbers; a variance is at least a half. */
static void fill_params(const lab *l)
{
    for (size_t i = 0; i < tdm_graph_param_count(l->graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(l->graph, i);
        tdm_rng rng = tdm_rng_at(
            (tdm_rng_address){.seed = 7, .stream = TDM_RNG_STREAM_USER, .sub_stream = (uint32_t)i});
        bool variance = strcmp(p->name, "fixed_var") == 0;
        for (size_t k = 0; k < p->elements; k++) {
            float value = (float)tdm_rng_normal(&rng);
            l->params[p->offset + k] = variance ? 0.5f + value * value : value;
        }
    }
}

static void print_run(exchange *x, const lab *l)
{
    tdm_plan_run(l->plan, &(tdm_step_key){.seed = 1});
    begin_group(x, "out");
    tdm_tensor out = tdm_plan_output(l->plan, "out");
    put_tensor(x, "out", &out);
    end_group(x);
    put_block(x, "grads", l, l->grads);
}

/* The rest of a case whose settings have been printed. Takes the graph. */
static void finish(exchange *x, tdm_graph *g, tdm_value y, const filling *f)
{
    static const char *const backends[] = {NULL, "ref"};
    tdm_error err = {0};
    tdm_value loss = y;
    tdm_graph_output(g, "out", y);
    tdm_shape shape = tdm_graph_shape(g, y);
    if (shape.rank > 0) {
        tdm_value r = tdm_graph_input(g, "r", TDM_DTYPE_F32, shape);
        loss = tdm_graph_sum(g, tdm_graph_mul(g, y, r), -1);
    }
    require(tdm_graph_backward(g, loss, &err), &err);
    printf(",\"runs\":[");
    for (int b = 0; b < 2; b++) {
        lab l = lab_open(g, backends[b]);
        fill_params(&l);
        fill_inputs(&l, f);
        printf("%s{\"backend\":\"%s\"", b > 0 ? "," : "", b > 0 ? "ref" : "best");
        put_block(x, "params", &l, l.params);
        begin_group(x, "inputs");
        for (size_t n = 0; n < COUNT_OF(input_names); n++) {
            tdm_tensor in = tdm_plan_input(l.plan, input_names[n]);
            if (in.dtype != TDM_DTYPE_NONE) put_tensor(x, input_names[n], &in);
        }
        end_group(x);
        print_run(x, &l);
        printf("}");
        lab_close(&l);
    }
    printf("]}\n");
    tdm_graph_destroy(g);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void activations(exchange *x)
{
    static tdm_value (*const ops[])(tdm_graph *, tdm_value) = {
        tdm_graph_relu, tdm_graph_gelu,    tdm_graph_gelu_tanh, tdm_graph_silu,
        tdm_graph_tanh, tdm_graph_sigmoid, tdm_graph_softmax};
    static const char *const names[] = {"relu", "gelu",    "gelu_tanh", "silu",
                                        "tanh", "sigmoid", "softmax"};
    for (size_t i = 0; i < COUNT_OF(ops); i++) {
        tdm_graph *g = tdm_graph_create();
        printf("{\"op\":\"%s\"", names[i]);
        finish(x, g, ops[i](g, param(g, "x", tdm_shape_2(9, 37))), &(filling){0});
    }
}

static void products(exchange *x)
{
    static const tdm_activation activations_of[] = {
        TDM_ACTIVATION_NONE, TDM_ACTIVATION_RELU, TDM_ACTIVATION_GELU,   TDM_ACTIVATION_GELU_TANH,
        TDM_ACTIVATION_SILU, TDM_ACTIVATION_TANH, TDM_ACTIVATION_SIGMOID};
    enum { M = 13, N = 21, K = 17, COUNT = 14 };
    for (int i = 0; i < COUNT; i++) {
        tdm_graph *g = tdm_graph_create();
        bool ta = i & 1, tb = i & 2, batched = i & 4, with_bias = i >= 4;
        int activation = i % (int)COUNT_OF(activations_of);
        tdm_matmul_options o = {
            .trans_a = ta, .trans_b = tb, .activation = activations_of[activation]};
        tdm_shape a = ta ? tdm_shape_2(K, M) : tdm_shape_2(M, K);
        tdm_shape b = tb ? tdm_shape_2(N, K) : tdm_shape_2(K, N);
        if (batched) {
            a = tdm_shape_3(3, a.dim[0], a.dim[1]);
            b = tdm_shape_3(3, b.dim[0], b.dim[1]);
        }
        if (with_bias) o.bias = param(g, "bias", tdm_shape_1(N));
        tdm_value y = tdm_graph_matmul(g, param(g, "x", a), param(g, "w", b), &o);
        printf("{\"op\":\"matmul\",\"trans\":[%s,%s],\"activation\":%d", ta ? "true" : "false",
               tb ? "true" : "false", activation);
        finish(x, g, y, &(filling){0});
    }
    tdm_graph *g = tdm_graph_create();
    tdm_value in = param(g, "x", tdm_shape_3(3, 5, K)), w = param(g, "w", tdm_shape_2(N, K));
    printf("{\"op\":\"linear\"");
    finish(x, g, tdm_graph_linear(g, in, w, param(g, "bias", tdm_shape_1(N)), TDM_ACTIVATION_GELU),
           &(filling){0});
}

/* y = x + w and x * w, with a w of x's shape and of its suffixes; and x * 0.7. */
static void sums_and_products(exchange *x)
{
    static const tdm_shape shapes[] = {
        {.rank = 3, .dim = {4, 5, 19}}, {.rank = 2, .dim = {5, 19}}, {.rank = 1, .dim = {19}}};
    for (size_t i = 0; i < COUNT_OF(shapes) * 2; i++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value in = param(g, "x", shapes[0]), w = param(g, "w", shapes[i / 2]);
        printf("{\"op\":\"%s\"", i % 2 > 0 ? "mul" : "add");
        finish(x, g, i % 2 > 0 ? tdm_graph_mul(g, in, w) : tdm_graph_add(g, in, w), &(filling){0});
    }
    tdm_graph *g = tdm_graph_create();
    printf("{\"op\":\"scale\",\"factor\":0.7");
    finish(x, g, tdm_graph_scale(g, param(g, "x", shapes[0]), 0.7), &(filling){0});
}

static void reductions(exchange *x)
{
    for (int i = 0; i < 8; i++) {
        int axis = i / 2 - 1;
        tdm_graph *g = tdm_graph_create();
        tdm_value in = param(g, "x", tdm_shape_3(4, 5, 19));
        printf("{\"op\":\"%s\",\"axis\":%d", i % 2 > 0 ? "mean" : "sum", axis);
        finish(x, g, i % 2 > 0 ? tdm_graph_mean(g, in, axis) : tdm_graph_sum(g, in, axis),
               &(filling){0});
    }
    tdm_graph *g = tdm_graph_create();
    printf("{\"op\":\"sum\",\"axis\":0");
    finish(x, g, tdm_graph_sum_rows(g, param(g, "x", tdm_shape_2(23, 19))), &(filling){0});
}

static void transpositions(exchange *x)
{
    static const int perms[][4] = {{1, 0, 2, 3}, {0, 2, 1, 3}, {3, 1, 0, 2}, {2, 3, 1, 0}};
    for (size_t i = 0; i < COUNT_OF(perms); i++) {
        const int *perm = perms[i];
        tdm_graph *g = tdm_graph_create();
        printf("{\"op\":\"transpose\",\"perm\":[%d,%d,%d,%d]", perm[0], perm[1], perm[2], perm[3]);
        finish(x, g, tdm_graph_transpose(g, param(g, "x", tdm_shape_4(3, 4, 5, 7)), perm),
               &(filling){0});
    }
}

/* Along each axis: three tensors joined; a slice; thirds, added with weights 1, 2 and 3. */
static void joints_and_cuts(exchange *x)
{
    for (int axis = 0; axis < 3; axis++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value in[3];
        static const char *const names[] = {"x", "x1", "x2"};
        for (int k = 0; k < 3; k++) {
            tdm_shape shape = tdm_shape_3(4, 5, 7);
            shape.dim[axis] = 1 + 2 * k;
            in[k] = param(g, names[k], shape);
        }
        printf("{\"op\":\"concat\",\"axis\":%d", axis);
        finish(x, g, tdm_graph_concat(g, in, 3, axis), &(filling){0});

        g = tdm_graph_create();
        printf("{\"op\":\"slice\",\"axis\":%d,\"begin\":1,\"end\":%d", axis, 3 + axis);
        finish(x, g, tdm_graph_slice(g, param(g, "x", tdm_shape_3(4, 5, 7)), axis, 1, 3 + axis),
               &(filling){0});

        g = tdm_graph_create();
        tdm_value part[3];
        tdm_graph_split(g, param(g, "x", tdm_shape_3(6, 9, 12)), axis, 3, part);
        tdm_value y = tdm_graph_add(g, part[0], tdm_graph_scale(g, part[1], 2));
        printf("{\"op\":\"split\",\"axis\":%d", axis);
        finish(x, g, tdm_graph_add(g, y, tdm_graph_scale(g, part[2], 3)), &(filling){0});
    }
}

static void rms_norms(exchange *x)
{
    static const double eps[] = {1e-5, 1e-2};
    for (size_t i = 0; i < COUNT_OF(eps); i++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value in = param(g, "x", tdm_shape_3(3, 5, 37));
        printf("{\"op\":\"rms_norm\",\"eps\":%.17g", eps[i]);
        finish(x, g, tdm_graph_rms_norm(g, in, param(g, "gamma", tdm_shape_1(37)), eps[i]),
               &(filling){0});
    }
}

static void layer_norms(exchange *x)
{
    static const double eps[] = {1e-5, 1e-2};
    for (size_t i = 0; i < COUNT_OF(eps); i++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value in = param(g, "x", tdm_shape_3(3, 5, 37));
        tdm_value gamma = param(g, "gamma", tdm_shape_1(37));
        tdm_value beta = param(g, "beta", tdm_shape_1(37));
        printf("{\"op\":\"layer_norm\",\"eps\":%.17g", eps[i]);
        finish(x, g, tdm_graph_layer_norm(g, in, gamma, beta, eps[i]), &(filling){0});
    }
}

static void batch_norms(exchange *x)
{
    static const tdm_shape shapes[] = {{.rank = 2, .dim = {11, 19}},
                                       {.rank = 4, .dim = {3, 5, 4, 19}}};
    const double momentum = 0.1;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        tdm_graph *g = tdm_graph_create();
        tdm_shape channels = tdm_shape_1(19);
        tdm_value in = param(g, "x", shapes[i]), mean, variance;
        tdm_value stats[2] = {
            tdm_graph_statistic(g, "running_mean", channels, from_outside, momentum),
            tdm_graph_statistic(g, "running_var", channels, from_outside, momentum)};
        tdm_batch_norm_options o = {.gamma = param(g, "gamma", channels),
                                    .beta = param(g, "beta", channels),
                                    .mean = stats[0],
                                    .variance = stats[1],
                                    .observed_mean = &mean,
                                    .observed_variance = &variance};
        tdm_value y = tdm_graph_batch_norm(g, in, &o);
        tdm_graph_follow(g, stats[0], mean);
        tdm_graph_follow(g, stats[1], variance);
        printf("{\"op\":\"batch_norm\",\"momentum\":%.17g", momentum);
        finish(x, g, y, &(filling){0});
    }
}

/* As in inference, and in frozen layers: gradients flow to x, gamma and beta. */
static void fixed_batch_norms(exchange *x)
{
    static const tdm_shape shapes[] = {{.rank = 2, .dim = {11, 19}},
                                       {.rank = 4, .dim = {3, 5, 4, 19}}};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        tdm_graph *g = tdm_graph_create();
        tdm_shape channels = tdm_shape_1(19);
        tdm_value in = param(g, "x", shapes[i]);
        tdm_batch_norm_options o = {
            .mode = TDM_BATCH_NORM_FIXED,
            .eps = 1e-3,
            .gamma = param(g, "gamma", channels),
            .beta = param(g, "beta", channels),
            .mean = tdm_graph_buffer(g, "fixed_mean", channels, from_outside),
            .variance = tdm_graph_buffer(g, "fixed_var", channels, from_outside)};
        printf("{\"op\":\"batch_norm_fixed\",\"eps\":%.17g", o.eps);
        finish(x, g, tdm_graph_batch_norm(g, in, &o), &(filling){0});
    }
}

static void attentions(exchange *x)
{
    enum { B = 3, T = 19, C = 24 };
    for (int i = 0; i < 4; i++) {
        tdm_graph *g = tdm_graph_create();
        tdm_attention_options o = {.heads = i == 3 ? 2 : 4, .causal = i % 2 == 1};
        if (i >= 2) o.lengths = tdm_graph_input(g, "lengths", TDM_DTYPE_I32, tdm_shape_1(B));
        tdm_value y = tdm_graph_attention(g, param(g, "x", tdm_shape_3(B, T, 3 * C)), &o);
        printf("{\"op\":\"attention\",\"heads\":%d,\"causal\":%s,\"lengths\":%s", o.heads,
               o.causal ? "true" : "false", i >= 2 ? "true" : "false");
        finish(x, g, y, &(filling){.min = 1, .below = T});
    }
}

static void convolutions(exchange *x)
{
    static const struct {
        int64_t C, O, KH, KW;
        tdm_conv_options o;
    } rows[] = {
        {3, 5, 3, 3, {.stride = {1, 1}, .padding = {0, 0}, .dilation = {1, 1}, .groups = 1}},
        {3, 5, 3, 2, {.stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 1}, .groups = 1}},
        {4, 6, 3, 3, {.stride = {1, 2}, .padding = {2, 3}, .dilation = {2, 3}, .groups = 1}},
        {4, 6, 3, 3, {.stride = {2, 2}, .padding = {1, 1}, .dilation = {1, 1}, .groups = 2}},
        {6, 6, 3, 3, {.stride = {1, 1}, .padding = {1, 1}, .dilation = {1, 1}, .groups = 6}},
        {16, 32, 1, 1, {.stride = {2, 2}, .padding = {0, 0}, .dilation = {1, 1}, .groups = 1}},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        tdm_graph *g = tdm_graph_create();
        tdm_conv_options o = rows[i].o;
        tdm_value in = param(g, "x", tdm_shape_4(2, 11, 10, rows[i].C));
        tdm_value w = param(g, "w",
                            tdm_shape_4(rows[i].O, rows[i].KH, rows[i].KW, rows[i].C / o.groups));
        o.bias = param(g, "bias", tdm_shape_1(rows[i].O));
        printf("{\"op\":\"conv2d\",\"stride\":[%d,%d],\"padding\":[%d,%d],\"dilation\":[%d,%d],"
               "\"groups\":%d",
               o.stride[0], o.stride[1], o.padding[0], o.padding[1], o.dilation[0], o.dilation[1],
               o.groups);
        finish(x, g, tdm_graph_conv2d(g, in, w, &o), &(filling){0});
    }
}

static void convolutions_1d(exchange *x)
{
    static const struct {
        int64_t C, O, K;
        int stride, padding, dilation, groups;
    } rows[] = {
        {3, 5, 3, 1, 0, 1, 1}, {3, 5, 4, 2, 1, 1, 1}, {4, 6, 3, 1, 4, 2, 1},
        {4, 6, 5, 3, 2, 1, 2}, {6, 6, 3, 1, 1, 1, 6}, {6, 12, 3, 2, 3, 3, 6},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        tdm_graph *g = tdm_graph_create();
        tdm_conv_options o = {.stride = {1, rows[i].stride},
                              .padding = {0, rows[i].padding},
                              .dilation = {1, rows[i].dilation},
                              .groups = rows[i].groups};
        tdm_value in = param(g, "x", tdm_shape_3(2, 23, rows[i].C));
        tdm_value w = param(g, "w", tdm_shape_3(rows[i].O, rows[i].K, rows[i].C / rows[i].groups));
        o.bias = param(g, "bias", tdm_shape_1(rows[i].O));
        printf("{\"op\":\"conv1d\",\"stride\":%d,\"padding\":%d,\"dilation\":%d,\"groups\":%d",
               rows[i].stride, rows[i].padding, rows[i].dilation, rows[i].groups);
        finish(x, g, tdm_graph_conv1d(g, in, w, &o), &(filling){0});
    }
}

static void pools(exchange *x)
{
    static const tdm_pool_options rows[] = {
        {.kernel = {2, 2}, .stride = {2, 2}},
        {.kernel = {3, 3}, .stride = {2, 1}, .padding = {1, 0}},
        {.kernel = {3, 2}, .stride = {1, 2}, .padding = {1, 1}},
    };
    for (size_t i = 0; i < COUNT_OF(rows) * 2; i++) {
        const tdm_pool_options *o = &rows[i / 2];
        tdm_graph *g = tdm_graph_create();
        tdm_value in = param(g, "x", tdm_shape_4(2, 9, 8, 5));
        printf("{\"op\":\"%s\",\"kernel\":[%d,%d],\"stride\":[%d,%d],\"padding\":[%d,%d]",
               i % 2 > 0 ? "max_pool" : "average_pool", o->kernel[0], o->kernel[1], o->stride[0],
               o->stride[1], o->padding[0], o->padding[1]);
        finish(x, g, i % 2 > 0 ? tdm_graph_max_pool(g, in, o) : tdm_graph_average_pool(g, in, o),
               &(filling){0});
    }
}

static void global_pools(exchange *x)
{
    tdm_graph *g = tdm_graph_create();
    printf("{\"op\":\"global_pool\"");
    finish(x, g, tdm_graph_global_pool(g, param(g, "x", tdm_shape_4(3, 7, 5, 19))), &(filling){0});
}

static void embeddings(exchange *x)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value table = param(g, "x", tdm_shape_2(7, 19)); /* rows are selected many times */
    tdm_value ids = tdm_graph_input(g, "ids", TDM_DTYPE_I32, tdm_shape_2(5, 6));
    printf("{\"op\":\"embedding\"");
    finish(x, g, tdm_graph_embedding(g, table, ids), &(filling){.below = 7});
}

static void cross_entropies(exchange *x)
{
    static const tdm_cross_entropy_options rows[] = {
        {.scale = 0.05},
        {.scale = 0.05, .label_smoothing = 0.1},
        {.scale = 0.05, .has_ignore = true, .ignore = 3},
        {.scale = 0.05, .label_smoothing = 0.3, .has_ignore = true, .ignore = -100},
    };
    enum { B = 20, V = 13 };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const tdm_cross_entropy_options *o = &rows[i];
        tdm_graph *g = tdm_graph_create();
        tdm_value classes = tdm_graph_input(g, "classes", TDM_DTYPE_I32, tdm_shape_1(B));
        tdm_value loss = tdm_graph_cross_entropy_with(g, param(g, "x", tdm_shape_2(B, V)), classes,
                                                      o);
        printf("{\"op\":\"cross_entropy\",\"scale\":%.17g,\"label_smoothing\":%.17g,\"ignore\":%d",
               o->scale, o->label_smoothing, o->has_ignore ? o->ignore : -1);
        finish(x, g, loss,
               &(filling){.below = V, .has_ignore = o->has_ignore, .ignore = o->ignore});
    }
}

static void other_losses(exchange *x)
{
    static const char *const names[] = {"mse", "l1", "huber", "bce", "kl"};
    const double scale = 0.03, delta = 0.7;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        tdm_graph *g = tdm_graph_create();
        tdm_shape shape = tdm_shape_2(9, 13);
        tdm_value in = param(g, "x", shape);
        tdm_value target = tdm_graph_input(g, "target", TDM_DTYPE_F32, shape);
        tdm_value loss = i == 0   ? tdm_graph_mse(g, in, target, scale)
                         : i == 1 ? tdm_graph_l1(g, in, target, scale)
                         : i == 2 ? tdm_graph_huber(g, in, target, delta, scale)
                         : i == 3 ? tdm_graph_bce_logits(g, in, target, scale)
                                  : tdm_graph_kl(g, in, target, scale);
        printf("{\"op\":\"%s\",\"scale\":%.17g,\"delta\":%.17g", names[i], scale, delta);
        finish(x, g, loss, &(filling){.probabilities = i >= 3});
    }
}

static void penalties(exchange *x)
{
    for (int power = 1; power <= 2; power++) {
        tdm_graph *g = tdm_graph_create();
        printf("{\"op\":\"penalty\",\"power\":%d,\"scale\":0.03", power);
        finish(x, g, tdm_graph_penalty(g, param(g, "x", tdm_shape_2(9, 13)), power, 0.03),
               &(filling){0});
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) give_up("usage: parity_op FILE");
    exchange x = {.file = fopen(argv[1], "wb")};
    if (!x.file) give_up("cannot open the file");
    activations(&x);
    products(&x);
    sums_and_products(&x);
    reductions(&x);
    transpositions(&x);
    joints_and_cuts(&x);
    rms_norms(&x);
    layer_norms(&x);
    batch_norms(&x);
    fixed_batch_norms(&x);
    attentions(&x);
    convolutions(&x);
    convolutions_1d(&x);
    pools(&x);
    global_pools(&x);
    embeddings(&x);
    cross_entropies(&x);
    other_losses(&x);
    penalties(&x);
    if (fclose(x.file) != 0) give_up("cannot write the tensors");
    return 0;
}
