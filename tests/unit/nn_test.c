/*
 * nn_test.c: the parameters of models and their initial values. A model is built for many batch sizes and for
 * training and inference; its parameters must be the same, at the same offsets, each time.
 */
#include <tandem/nn.h>

#include "graph_bench.h"
#include "nn/nn.h"
#include "unit/nn_cases.h"

static const int64_t hidden_sizes[] = {7, 5};

static tdm_job job_of(size_t hidden_count, int activation)
{
    return (tdm_job){.model = {.kind = TDM_JOB_MODEL_MLP,
                               .hidden = {hidden_sizes, hidden_count},
                               .activation = activation}};
}

static tdm_model_options options_of(const tdm_job *job, int64_t batch, bool training)
{
    return (tdm_model_options){.job = job,
                               .sample_shape = tdm_shape_2(2, 3),
                               .class_count = 4,
                               .batch = batch,
                               .training = training,
                               .loss_scale = 1.0 / (double)batch};
}

static tdm_graph *build(const tdm_model_options *options)
{
    tdm_error err = {0};
    tdm_graph *graph = NULL;
    CHECK_INT(tdm_model_build(options, &graph, &err), TDM_OK);
    CHECK_TEXT(err.message, "");
    return graph;
}

static float *first_values(const tdm_graph *graph, uint64_t seed)
{
    float *params = calloc(tdm_graph_param_extent(graph) + 1, sizeof(float));
    tdm_model_init(graph, seed, params);
    return params;
}

static void mlp_has_these_parameters(void)
{
    static const struct {
        const char *name;
        int rank;
        int64_t dim[2];
        bool trained;
        tdm_init_kind init;
        double scale;
    } rows[] = {
        {"input.shift", 1, {6}, false, TDM_INIT_ZERO, 0},
        {"input.scale", 1, {6}, false, TDM_INIT_ONE, 0},
        {"fc1.weight", 2, {7, 6}, true, TDM_INIT_UNIFORM, 1.0},
        {"fc1.bias", 1, {7}, true, TDM_INIT_ZERO, 0},
        {"fc2.weight", 2, {5, 7}, true, TDM_INIT_UNIFORM, 0.92582009977255142},
        {"fc2.bias", 1, {5}, true, TDM_INIT_ZERO, 0},
        {"fc3.weight", 2, {4, 5}, true, TDM_INIT_UNIFORM, 0.81649658092772603},
        {"fc3.bias", 1, {4}, true, TDM_INIT_ZERO, 0},
    };
    enum { ROWS = sizeof(rows) / sizeof(rows[0]) };
    tdm_job job = job_of(2, TDM_JOB_ACTIVATION_RELU);
    tdm_model_options options = options_of(&job, 8, true);
    tdm_graph *g = build(&options);
    CHECK_INT(tdm_graph_param_count(g), ROWS);
    for (size_t i = 0; i < ROWS && i < tdm_graph_param_count(g); i++) {
        const tdm_param_info *p = tdm_graph_param_at(g, i);
        CHECK_TEXT(p->name, rows[i].name);
        CHECK_INT(p->shape.rank, rows[i].rank);
        for (int d = 0; d < rows[i].rank; d++) CHECK_INT(p->shape.dim[d], rows[i].dim[d]);
        CHECK_INT(p->trained, rows[i].trained);
        CHECK_INT(p->init.kind, rows[i].init);
        if (rows[i].scale > 0) CHECK_NEAR(p->init.scale, rows[i].scale, 1e-15);
    }
    CHECK_INT(tdm_graph_trained_elements(g), 7 * 6 + 7 + 5 * 7 + 5 + 4 * 5 + 4);
    tdm_graph_destroy(g);
}

static void parameters_are_the_same_for_every_build(void)
{
    tdm_job job = job_of(2, TDM_JOB_ACTIVATION_GELU);
    job.model.dropout = 0.5;
    tdm_model_options options = options_of(&job, 1, true);
    tdm_graph *one = build(&options);
    float *first = first_values(one, 42);
    static const int64_t batches[] = {1, 2, 33, 128};
    for (size_t b = 0; b < 4; b++)
        for (int training = 0; training < 2; training++) {
            options = options_of(&job, batches[b], training);
            tdm_graph *other = build(&options);
            float *params = first_values(other, 42);
            CHECK_INT(tdm_graph_param_count(other), tdm_graph_param_count(one));
            CHECK_INT(tdm_graph_param_extent(other), tdm_graph_param_extent(one));
            CHECK_INT(tdm_graph_trained_extent(other), tdm_graph_trained_extent(one));
            for (size_t i = 0; i < tdm_graph_param_count(one); i++) {
                const tdm_param_info *p = tdm_graph_param_at(one, i),
                                     *q = tdm_graph_param_at(other, i);
                CHECK_TEXT(q->name, p->name);
                CHECK_INT(q->offset, p->offset);
                CHECK(tdm_shape_equal(&q->shape, &p->shape));
            }
            CHECK(memcmp(first, params, tdm_graph_param_extent(one) * sizeof(float)) == 0);
            free(params);
            tdm_graph_destroy(other);
        }
    free(first);
    tdm_graph_destroy(one);
}

static void first_values_depend_on_the_seed_alone(void)
{
    tdm_job job = job_of(2, TDM_JOB_ACTIVATION_RELU);
    tdm_model_options options = options_of(&job, 4, true);
    tdm_graph *g = build(&options);
    float *a = first_values(g, 1), *b = first_values(g, 2);
    size_t bytes = tdm_graph_param_extent(g) * sizeof(float);
    CHECK(memcmp(a, b, bytes) != 0);
    memset(b, 0x55, bytes);
    tdm_model_init(g, 1, b); /* the previous bytes; gaps belong to no parameter */
    for (size_t i = 0; i < tdm_graph_param_count(g); i++) {
        const tdm_param_info *p = tdm_graph_param_at(g, i);
        CHECK(memcmp(a + p->offset, b + p->offset, p->elements * sizeof(float)) == 0);
        double min = INFINITY, max = -INFINITY;
        for (size_t k = 0; k < p->elements; k++) {
            min = fmin(min, (double)a[p->offset + k]);
            max = fmax(max, (double)a[p->offset + k]);
        }
        if (p->init.kind == TDM_INIT_ZERO) CHECK(min == 0 && max == 0);
        if (p->init.kind == TDM_INIT_ONE) CHECK(min == 1 && max == 1);
        if (p->init.kind != TDM_INIT_UNIFORM) continue;
        CHECK(min >= -p->init.scale && max < p->init.scale);
        CHECK(min < -p->init.scale / 2 && max > p->init.scale / 2);
    }
    /* Different layers draw different numbers. */
    const float *fc1 = tdm_model_param(g, "fc1.weight", a).data;
    const float *fc2 = tdm_model_param(g, "fc2.weight", a).data;
    double s1 = tdm_graph_param_at(g, 2)->init.scale, s2 = tdm_graph_param_at(g, 4)->init.scale;
    CHECK(fabs((double)fc1[0] / s1 - (double)fc2[0] / s2) > 1e-6);
    free(a);
    free(b);
    tdm_graph_destroy(g);
}

/* Over many numbers, mean and standard deviation are the requested ones. */
/* Any part of a tensor equals that part of its initial values. */
static void initial_values_can_be_computed_in_parts(void)
{
    tdm_job job = job_of(2, TDM_JOB_ACTIVATION_RELU);
    tdm_model_options options = options_of(&job, 4, true);
    tdm_graph *g = build(&options);
    float *all = first_values(g, 7), *part = calloc(tdm_graph_param_extent(g), sizeof(float));
    for (size_t i = 0; i < tdm_graph_param_count(g); i++) {
        const tdm_param_info *p = tdm_graph_param_at(g, i);
        for (size_t first = 0; first < p->elements; first += first / 3 + 1)
            for (size_t count = 0; first + count <= p->elements; count += count / 2 + 1) {
                memset(part, 0, p->elements * sizeof(float));
                tdm_model_init_part(g, 7, i, first, count, part);
                CHECK(memcmp(part, all + p->offset + first, count * sizeof(float)) == 0);
            }
    }
    free(all);
    free(part);
    tdm_graph_destroy(g);
}

static void normal_init_has_its_deviation(void)
{
    enum { N = 40000 };
    tdm_graph *g = tdm_graph_create();
    tdm_graph_param(g, "w", tdm_shape_1(N), (tdm_init){.kind = TDM_INIT_NORMAL, .scale = 0.5});
    float *params = first_values(g, 3);
    double sum = 0, squares = 0;
    for (int i = 0; i < N; i++) {
        sum += (double)params[i];
        squares += (double)params[i] * (double)params[i];
    }
    CHECK_NEAR(sum / N, 0, 0.01); /* four standard errors */
    CHECK_NEAR(sqrt(squares / N), 0.5, 0.0075);
    free(params);
    tdm_graph_destroy(g);
}

static void glorot_elsewhere(void)
{
    static const int activations[] = {TDM_JOB_ACTIVATION_RELU, TDM_JOB_ACTIVATION_GELU,
                                      TDM_JOB_ACTIVATION_TANH, TDM_JOB_ACTIVATION_SIGMOID};
    for (int i = 0; i < 4; i++) {
        tdm_job job = job_of(1, activations[i]);
        tdm_model_options options = options_of(&job, 4, false);
        tdm_graph *g = build(&options);
        CHECK_NEAR(tdm_graph_param_at(g, 2)->init.scale, sqrt(6.0 / (i < 2 ? 6 : 6 + 7)), 1e-15);
        CHECK_NEAR(tdm_graph_param_at(g, 4)->init.scale, sqrt(6.0 / (7 + 4)), 1e-15);
        CHECK_TEXT(tdm_graph_node_at(g, i == 1 ? 2 : 1).name,
                   ((const char *[]){"fc1.matmul+relu", "fc1.gelu", "fc1.matmul+tanh",
                                     "fc1.matmul+sigmoid"})[i]);
        tdm_graph_destroy(g);
    }
}

static void no_hidden_layer_is_logistic_regression(void)
{
    tdm_job job = job_of(0, TDM_JOB_ACTIVATION_RELU);
    tdm_model_options options = options_of(&job, 3, false);
    tdm_graph *g = build(&options);
    CHECK_INT(tdm_graph_param_count(g), 4);
    CHECK_TEXT(tdm_graph_param_at(g, 2)->name, "fc1.weight");
    CHECK_TEXT(tdm_graph_param_at(g, 3)->name, "fc1.bias");
    CHECK_INT(tdm_graph_node_count(g), 3); /* normalise, matmul, softmax */
    bench b;
    if (bench_open(&b, g, &(tdm_plan_options){.forward_only = true})) {
        memset(b.arena, 0xff, b.arena_bytes);
        memset(b.params, 0, b.param_bytes);
        float *bias = tdm_model_param(g, "fc1.bias", b.params).data;
        bias[2] = 1.0f;
        memset(tdm_plan_input(b.plan, TDM_MODEL_INPUT).data, 0, 3 * 6 * sizeof(float));
        bench_run(&b);
        const float *logits = tdm_plan_output(b.plan, TDM_MODEL_LOGITS).data;
        const float *p = tdm_plan_output(b.plan, TDM_MODEL_PROBABILITIES).data;
        for (int i = 0; i < 12; i++) {
            CHECK(logits[i] == (i % 4 == 2 ? 1.0f : 0.0f));
            CHECK_NEAR(p[i], (i % 4 == 2 ? exp(1) : 1) / (3 + exp(1)), 1e-7);
        }
        CHECK_INT(tdm_plan_output(b.plan, TDM_MODEL_LOSS).dtype, TDM_DTYPE_NONE);
        CHECK_INT(tdm_plan_input(b.plan, TDM_MODEL_CLASSES).dtype, TDM_DTYPE_NONE);
        bench_close(&b);
    }
    tdm_graph_destroy(g);
}

/* The same forward pass by plain loops, from the parameters' names: layers, order, transposition. */
static void mlp_matches_its_parameter_names(void)
{
    enum { B = 3, F = 6, H = 7, V = 4 };
    tdm_job job = job_of(1, TDM_JOB_ACTIVATION_TANH);
    tdm_model_options options = options_of(&job, B, true);
    options.loss_scale = 0.5;
    tdm_graph *g = build(&options);
    bench b;
    if (bench_open(&b, g, NULL)) {
        float x[B * F];
        int32_t classes[B];
        bench_fill(&b, 9, V);
        memcpy(x, tdm_plan_input(b.plan, TDM_MODEL_INPUT).data, sizeof(x));
        memcpy(classes, tdm_plan_input(b.plan, TDM_MODEL_CLASSES).data, sizeof(classes));
        bench_run(&b);
        const float *shift = tdm_model_param(g, TDM_MODEL_SHIFT, b.params).data;
        const float *scale = tdm_model_param(g, TDM_MODEL_SCALE, b.params).data;
        const float *w1 = tdm_model_param(g, "fc1.weight", b.params).data;
        const float *b1 = tdm_model_param(g, "fc1.bias", b.params).data;
        const float *w2 = tdm_model_param(g, "fc2.weight", b.params).data;
        const float *b2 = tdm_model_param(g, "fc2.bias", b.params).data;
        const float *logits = tdm_plan_output(b.plan, TDM_MODEL_LOGITS).data;
        double loss = 0;
        for (int r = 0; r < B; r++) {
            double hidden[H], z[V], sum = 0;
            for (int h = 0; h < H; h++) {
                hidden[h] = (double)b1[h];
                for (int f = 0; f < F; f++)
                    hidden[h] += ((double)x[r * F + f] - (double)shift[f]) * (double)scale[f] *
                                 (double)w1[h * F + f];
                hidden[h] = tanh(hidden[h]);
            }
            for (int v = 0; v < V; v++) {
                z[v] = (double)b2[v];
                for (int h = 0; h < H; h++) z[v] += hidden[h] * (double)w2[v * H + h];
                CHECK_NEAR(logits[r * V + v], z[v], 2e-6);
                sum += exp(z[v]);
            }
            loss += log(sum) - z[classes[r]];
        }
        CHECK_NEAR(*(float *)tdm_plan_output(b.plan, TDM_MODEL_LOSS).data, 0.5 * loss, 5e-6);
        bench_close(&b);
    }
    tdm_graph_destroy(g);
}

/* Runs the training graph of `job` once and returns its loss; *expected gets the loss computed by plain loops
 * from its logits and weights. The lane has B of 2B rows. */
static double loss_of(const tdm_job *job, double *expected)
{
    enum { B = 3, V = 4 };
    static const char *const weights[] = {"fc1.weight", "fc2.weight"};
    tdm_model_options options = options_of(job, B, true);
    options.loss_scale = 1.0 / (2 * B);
    tdm_graph *g = build(&options);
    bench b;
    double got = NAN, loss = 0, smooth = job->train.label_smoothing;
    if (bench_open(&b, g, NULL)) {
        int32_t classes[B];
        bench_fill(&b, 9, V);
        memcpy(classes, tdm_plan_input(b.plan, TDM_MODEL_CLASSES).data, sizeof(classes));
        bench_run(&b);
        const float *z = tdm_plan_output(b.plan, TDM_MODEL_LOGITS).data;
        for (int r = 0; r < B; r++, z += V) {
            double sum = 0, mean = 0;
            for (int v = 0; v < V; v++) {
                sum += exp((double)z[v]);
                mean += (double)z[v] / V;
            }
            loss += (log(sum) - (1 - smooth) * (double)z[classes[r]] - smooth * mean) / (2 * B);
        }
        for (int k = 0; k < 2; k++) {
            tdm_tensor w = tdm_model_param(g, weights[k], b.params);
            for (int64_t i = 0; i < tdm_shape_elements(&w.shape); i++) {
                double x = (double)((const float *)w.data)[i];
                loss += 0.5 * (job->train.l1 * fabs(x) + job->train.l2 * x * x);
            }
        }
        got = (double)*(float *)tdm_plan_output(b.plan, TDM_MODEL_LOSS).data;
        bench_close(&b);
    }
    tdm_graph_destroy(g);
    *expected = loss;
    return got;
}

static void losses_are_smoothed_and_penalised(void)
{
    double plain, expected;
    tdm_job job = job_of(1, TDM_JOB_ACTIVATION_TANH);
    CHECK_NEAR(loss_of(&job, &plain), plain, 5e-6);
    for (int form = 1; form < 8; form++) {
        job.train.label_smoothing = form & 1 ? 0.3 : 0;
        job.train.l1 = form & 2 ? 0.07 : 0;
        job.train.l2 = form & 4 ? 0.04 : 0;
        CHECK_NEAR(loss_of(&job, &expected), expected, 5e-6);
        CHECK(fabs(expected - plain) > 1e-3);
    }
    /* the option does not exist in inference */
    tdm_model_options options = options_of(&job, 3, false);
    tdm_graph *g = build(&options);
    for (size_t i = 0; i < tdm_graph_node_count(g); i++)
        CHECK(strcmp(tdm_graph_node_at(g, i).op, "penalty") != 0);
    tdm_graph_destroy(g);
}

/* Dropout is applied in training; it is omitted in inference, and in a job without dropout. */
static void dropout_only_in_training(void)
{
    for (int form = 0; form < 4; form++) {
        tdm_job job = job_of(2, TDM_JOB_ACTIVATION_RELU);
        job.model.dropout = form & 1 ? 0.3 : 0;
        tdm_model_options options = options_of(&job, 4, form & 2);
        tdm_graph *g = build(&options);
        int forward = 0;
        for (size_t i = 0; i < tdm_graph_node_count(g); i++) {
            tdm_node_info info = tdm_graph_node_at(g, i);
            forward += !info.backward && strcmp(info.op, "dropout") == 0;
        }
        CHECK_INT(forward, form == 3 ? 2 : 0);
        tdm_graph_destroy(g);
    }
}

static void refuse(const tdm_model_options *options, tdm_status status, const char *message)
{
    tdm_error err = {0};
    tdm_graph *graph = NULL;
    CHECK_INT(tdm_model_build(options, &graph, &err), status);
    CHECK_TEXT(err.message, message);
    CHECK(!graph);
}

static void wrong_models_are_refused(void)
{
    tdm_job job = job_of(1, TDM_JOB_ACTIVATION_RELU);
    tdm_model_options o = options_of(&job, 4, true);
    o.class_count = 1;
    refuse(&o, TDM_ERR_INVALID, "model: the data has 1 classes; at least 2 are needed");
    o.class_count = 0;
    refuse(&o, TDM_ERR_INVALID, "model: the data has 0 classes; at least 2 are needed");
    o.class_count = -5;
    refuse(&o, TDM_ERR_INVALID, "model: the data has -5 classes; at least 2 are needed");
    o = options_of(&job, -1, true);
    refuse(&o, TDM_ERR_RANGE, "input 'x': the shape is negative or too large");
    o = options_of(&job, 4, true);
    o.sample_shape = tdm_shape_2(3, 0);
    refuse(&o, TDM_ERR_RANGE, "parameter 'input.shift': the shape is empty or too large");
    o.sample_shape = tdm_shape_2(INT64_MAX, 2);
    refuse(&o, TDM_ERR_RANGE, "input 'x': the shape is negative or too large");
    o.sample_shape = tdm_shape_1(INT64_MAX / 64);
    refuse(&o, TDM_ERR_RANGE, "parameter 'fc1.weight': the shape is empty or too large");
    job.model.kind = 99;
    o = options_of(&job, 4, true);
    refuse(&o, TDM_ERR_UNSUPPORTED, "model: unknown kind");
}

static void parameters_by_name(void)
{
    tdm_job job = job_of(1, TDM_JOB_ACTIVATION_RELU);
    tdm_model_options options = options_of(&job, 4, false);
    tdm_graph *g = build(&options);
    float *params = first_values(g, 1);
    tdm_tensor w = tdm_model_param(g, "fc2.weight", params);
    CHECK_INT(w.dtype, TDM_DTYPE_F32);
    CHECK_INT(w.shape.dim[0], 4);
    CHECK_INT(w.shape.dim[1], 7);
    CHECK(w.data == params + tdm_graph_param_at(g, 4)->offset);
    CHECK_INT(tdm_model_param(g, "fc3.weight", params).dtype, TDM_DTYPE_NONE);
    CHECK_INT(tdm_model_param(g, "", params).dtype, TDM_DTYPE_NONE);
    free(params);
    tdm_graph_destroy(g);
}

/* The values of torchvision's models with these names, for 1000 classes. */
static void resnets_have_the_published_sizes(void)
{
    static const struct {
        int depth;
        uint64_t parameters;
    } published[] = {
        {TDM_JOB_DEPTH_18, 11689512}, {TDM_JOB_DEPTH_34, 21797672}, {TDM_JOB_DEPTH_50, 25557032}};
    for (size_t i = 0; i < 3; i++) {
        tdm_job job = {.model = {.kind = TDM_JOB_MODEL_RESNET,
                                 .depth = published[i].depth,
                                 .stem = TDM_JOB_STEM_IMAGENET}};
        tdm_model_options o = {
            .job = &job, .sample_shape = tdm_shape_3(64, 64, 3), .class_count = 1000, .batch = 1};
        tdm_graph *g = NULL;
        tdm_error err = {0};
        CHECK_INT(tdm_model_build(&o, &g, &err), TDM_OK);
        if (!g) continue;
        CHECK_INT(tdm_graph_trained_elements(g), published[i].parameters);
        tdm_graph_destroy(g);
    }
}

/* Two convolutions, two pools, two layers: computed by hand for 8 x 8 grey images. */
static void cnn_has_these_parameters(void)
{
    static const int64_t channels[] = {4, 6}, hidden[] = {10};
    tdm_job job = {
        .model = {.kind = TDM_JOB_MODEL_CNN, .channels = {channels, 2}, .hidden = {hidden, 1}}};
    tdm_model_options o = {
        .job = &job, .sample_shape = tdm_shape_2(8, 8), .class_count = 3, .batch = 2};
    tdm_graph *g = NULL;
    tdm_error err = {0};
    CHECK_INT(tdm_model_build(&o, &g, &err), TDM_OK);
    CHECK_INT(tdm_graph_trained_elements(g),
              (4 * 9 + 4) + (6 * 9 * 4 + 6) + (10 * 2 * 2 * 6 + 10) + (3 * 10 + 3));
    CHECK_TEXT(tdm_graph_param_at(g, 2)->name, "conv1.weight");
    tdm_graph_destroy(g);
    o.sample_shape = tdm_shape_1(64); /* a row of a table is not an image */
    CHECK_INT(tdm_model_build(&o, &g, &err), TDM_ERR_JOB_INVALID);
    CHECK_HAS(err.message, "data.shape");
}

static const check_test tests[] = {
    CHECK_TEST(mlp_has_these_parameters),
    CHECK_TEST(parameters_are_the_same_for_every_build),
    CHECK_TEST(first_values_depend_on_the_seed_alone),
    CHECK_TEST(initial_values_can_be_computed_in_parts),
    CHECK_TEST(normal_init_has_its_deviation),
    CHECK_TEST(glorot_elsewhere),
    CHECK_TEST(no_hidden_layer_is_logistic_regression),
    CHECK_TEST(mlp_matches_its_parameter_names),
    CHECK_TEST(losses_are_smoothed_and_penalised),
    CHECK_TEST(dropout_only_in_training),
    CHECK_TEST(wrong_models_are_refused),
    CHECK_TEST(parameters_by_name),
    CHECK_TEST(resnets_have_the_published_sizes),
    CHECK_TEST(cnn_has_these_parameters),
};
static CHECK_SUITE(nn_models, tests);

CHECK_MAIN_SUITES(&nn_models, &nn_gpt, &nn_layers)
