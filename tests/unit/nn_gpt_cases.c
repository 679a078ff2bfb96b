/*
 * nn_gpt_cases.c: GPT-2: its parameters and their numbers as published, its forward pass against
 * plain loops in double precision, the decoder against the graph, and the choice of tokens.
 */

#include "graph_bench.h"
#include "job/job.h"
#include "nn/decode.h"
#include "nn/nn.h"
#include "tensor/kernel.h"
#include "unit/nn_cases.h"

enum { GPT_B = 3, GPT_T = 7, GPT_C = 20, GPT_L = 2, GPT_H = 4, GPT_V = 11 };

static tdm_job gpt_job(void)
{
    return (tdm_job){.model = {.kind = TDM_JOB_MODEL_GPT,
                               .layers = GPT_L,
                               .width = GPT_C,
                               .heads = GPT_H,
                               .context = GPT_T}};
}

static tdm_model_options gpt_options(const tdm_job *job, int64_t batch, bool training)
{
    return (tdm_model_options){.job = job,
                               .sample_shape = tdm_shape_1(job->model.context),
                               .class_count = GPT_V,
                               .batch = batch,
                               .training = training,
                               .loss_scale = 1.0 / (double)batch};
}

static void gpt_has_these_parameters(void)
{
    static const char *const names[] = {"wte.weight",
                                        "wpe.weight",
                                        "h.0.ln_1.weight",
                                        "h.0.ln_1.bias",
                                        "h.0.attn.c_attn.weight",
                                        "h.0.attn.c_attn.bias",
                                        "h.0.attn.c_proj.weight",
                                        "h.0.attn.c_proj.bias",
                                        "h.0.ln_2.weight",
                                        "h.0.ln_2.bias",
                                        "h.0.mlp.c_fc.weight",
                                        "h.0.mlp.c_fc.bias",
                                        "h.0.mlp.c_proj.weight",
                                        "h.0.mlp.c_proj.bias",
                                        "h.1.ln_1.weight"};
    tdm_job job = gpt_job();
    tdm_model_options options = gpt_options(&job, 2, true);
    tdm_graph *g = NULL;
    CHECK_INT(tdm_model_build(&options, &g, NULL), TDM_OK);
    CHECK_INT(tdm_graph_param_count(g), 2 + 12 * GPT_L + 2);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        CHECK_TEXT(tdm_graph_param_at(g, i)->name, names[i]);
    const tdm_param_info *attn = tdm_graph_param_at(g, 4), *last = tdm_graph_param_at(g, 6);
    CHECK_INT(attn->shape.dim[0], 3 * GPT_C);
    CHECK_INT(attn->shape.dim[1], GPT_C);
    CHECK_NEAR(attn->init.scale, 0.02, 1e-15);
    CHECK_NEAR(last->init.scale, 0.02 / sqrt(2.0 * GPT_L), 1e-15);
    CHECK_NEAR(tdm_graph_param_at(g, 12)->init.scale, 0.02 / sqrt(2.0 * GPT_L), 1e-15);
    CHECK_INT(tdm_graph_param_at(g, 2)->init.kind, TDM_INIT_ONE);
    CHECK_INT(tdm_graph_param_at(g, 5)->init.kind, TDM_INIT_ZERO);
    CHECK_TEXT(tdm_graph_param_at(g, 27)->name, "ln_f.bias");
    tdm_graph_destroy(g);
}

/* The numbers of parameters of OpenAI's and Hugging Face's models. */
static void gpt_presets_have_the_published_sizes(void)
{
    static const struct {
        const char *preset;
        uint64_t count;
    } rows[] = {{"gpt2", 124439808},
                {"gpt2-medium", 354823168},
                {"gpt2-large", 774030080},
                {"gpt2-xl", 1557611200}};
    for (int i = 0; i < 4; i++) {
        char yaml[128];
        snprintf(yaml, sizeof(yaml), "data: {train: t}\nmodel: {kind: gpt, preset: %s}\n",
                 rows[i].preset);
        tdm_job_document *document = NULL;
        CHECK_INT(tdm_job_parse(yaml, strlen(yaml), "job.yaml", NULL,
                                &(tdm_job_options){.no_file_checks = true}, &document, NULL),
                  TDM_OK);
        tdm_model_options options = gpt_options(tdm_job_document_job(document), 1, false);
        tdm_graph *g = NULL;
        CHECK_INT(tdm_model_build(&options, &g, NULL), TDM_OK);
        CHECK_INT(tdm_graph_trained_elements(g), rows[i].count);
        tdm_graph_destroy(g);
        tdm_job_document_destroy(document);
    }
}

/* A preset sets the keys that were not given; shown and read again, the job is the same. */
static void gpt_presets_are_defaults(void)
{
    const char *yaml = "data: {train: t}\nmodel: {kind: gpt, preset: gpt2-medium, context: 64}\n";
    const tdm_job_options options = {.no_file_checks = true};
    tdm_job_document *first = NULL, *second = NULL;
    CHECK_INT(tdm_job_parse(yaml, strlen(yaml), "job.yaml", NULL, &options, &first, NULL), TDM_OK);
    const tdm_job *job = tdm_job_document_job(first);
    CHECK_INT(job->model.layers, 24);
    CHECK_INT(job->model.width, 1024);
    CHECK_INT(job->model.heads, 16);
    CHECK_INT(job->model.context, 64);
    CHECK_INT(job->model.vocabulary, 50257);
    tdm_str shown = TDM_STR_INIT;
    tdm_job_show(job, &shown);
    CHECK_INT(tdm_job_parse(tdm_str_text(&shown), shown.length, "job.yaml", NULL, &options, &second,
                            NULL),
              TDM_OK);
    tdm_str diff = TDM_STR_INIT;
    CHECK_INT(tdm_job_diff(job, tdm_job_document_job(second), &diff), 0);
    tdm_str_release(&diff);
    tdm_str_release(&shown);
    tdm_job_document_destroy(first);
    tdm_job_document_destroy(second);
}

/* ---- the forward pass by plain loops --------------------------------------------------------- */

typedef struct plain_gpt {
    const tdm_graph *graph;
    float *params;
    double x[GPT_T][GPT_C];
    double y[GPT_T][4 * GPT_C];
} plain_gpt;

static const float *plain_find(const plain_gpt *p, int layer, const char *what)
{
    char name[64];
    snprintf(name, sizeof(name), layer < 0 ? "%s" : "h.%2$d.%1$s", what, layer);
    tdm_tensor t = tdm_model_param(p->graph, name, p->params);
    CHECK_INT(t.dtype, TDM_DTYPE_F32);
    return t.data;
}

static void plain_norm(plain_gpt *p, int layer, const char *weight, const char *bias)
{
    const float *gain = plain_find(p, layer, weight), *shift = plain_find(p, layer, bias);
    for (int t = 0; t < GPT_T; t++) {
        double mean = 0, variance = 0;
        for (int c = 0; c < GPT_C; c++) mean += p->x[t][c] / GPT_C;
        for (int c = 0; c < GPT_C; c++) variance += pow(p->x[t][c] - mean, 2) / GPT_C;
        for (int c = 0; c < GPT_C; c++)
            p->y[t][c] = (p->x[t][c] - mean) / sqrt(variance + 1e-5) * (double)gain[c] +
                         (double)shift[c];
    }
}

/* y [T, K] becomes y W^T + b, [T, N]. */
static void plain_linear(plain_gpt *p, int layer, const char *weight, const char *bias, int N,
                         int K)
{
    const float *w = plain_find(p, layer, weight), *b = plain_find(p, layer, bias);
    for (int t = 0; t < GPT_T; t++) {
        double row[4 * GPT_C];
        memcpy(row, p->y[t], sizeof(row));
        for (int n = 0; n < N; n++) {
            p->y[t][n] = (double)b[n];
            for (int k = 0; k < K; k++) p->y[t][n] += row[k] * (double)w[n * K + k];
        }
    }
}

static void plain_attention(plain_gpt *p)
{
    enum { D = GPT_C / GPT_H };
    double out[GPT_T][GPT_C] = {{0}};
    for (int h = 0; h < GPT_H; h++)
        for (int t = 0; t < GPT_T; t++) {
            double weight[GPT_T], sum = 0;
            for (int s = 0; s <= t; s++) {
                weight[s] = 0;
                for (int d = 0; d < D; d++)
                    weight[s] += p->y[t][h * D + d] * p->y[s][GPT_C + h * D + d];
                weight[s] = exp(weight[s] / sqrt(D));
                sum += weight[s];
            }
            for (int s = 0; s <= t; s++)
                for (int d = 0; d < D; d++)
                    out[t][h * D + d] += weight[s] / sum * p->y[s][2 * GPT_C + h * D + d];
        }
    for (int t = 0; t < GPT_T; t++) memcpy(p->y[t], out[t], sizeof(out[t]));
}

static void plain_add(plain_gpt *p)
{
    for (int t = 0; t < GPT_T; t++)
        for (int c = 0; c < GPT_C; c++) p->x[t][c] += p->y[t][c];
}

static void plain_run(plain_gpt *p, const int32_t *tokens, double logits[GPT_T][GPT_V])
{
    const float *wte = plain_find(p, -1, "wte.weight"), *wpe = plain_find(p, -1, "wpe.weight");
    for (int t = 0; t < GPT_T; t++)
        for (int c = 0; c < GPT_C; c++)
            p->x[t][c] = (double)wte[tokens[t] * GPT_C + c] + (double)wpe[t * GPT_C + c];
    for (int i = 0; i < GPT_L; i++) {
        plain_norm(p, i, "ln_1.weight", "ln_1.bias");
        plain_linear(p, i, "attn.c_attn.weight", "attn.c_attn.bias", 3 * GPT_C, GPT_C);
        plain_attention(p);
        plain_linear(p, i, "attn.c_proj.weight", "attn.c_proj.bias", GPT_C, GPT_C);
        plain_add(p);
        plain_norm(p, i, "ln_2.weight", "ln_2.bias");
        plain_linear(p, i, "mlp.c_fc.weight", "mlp.c_fc.bias", 4 * GPT_C, GPT_C);
        for (int t = 0; t < GPT_T; t++)
            for (int c = 0; c < 4 * GPT_C; c++) {
                double v = p->y[t][c];
                p->y[t][c] = 0.5 * v * (1 + tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
            }
        plain_linear(p, i, "mlp.c_proj.weight", "mlp.c_proj.bias", GPT_C, 4 * GPT_C);
        plain_add(p);
    }
    plain_norm(p, -1, "ln_f.weight", "ln_f.bias");
    for (int t = 0; t < GPT_T; t++)
        for (int v = 0; v < GPT_V; v++) {
            logits[t][v] = 0;
            for (int c = 0; c < GPT_C; c++) logits[t][v] += p->y[t][c] * (double)wte[v * GPT_C + c];
        }
}

static void gpt_matches_its_parameter_names(void)
{
    tdm_job job = gpt_job();
    tdm_model_options options = gpt_options(&job, GPT_B, true);
    tdm_graph *g = NULL;
    CHECK_INT(tdm_model_build(&options, &g, NULL), TDM_OK);
    bench b;
    if (!g || !bench_open(&b, g, NULL)) return;
    int32_t x[GPT_B * GPT_T], next[GPT_B * GPT_T];
    bench_fill(&b, 5, GPT_V);
    memcpy(x, tdm_plan_input(b.plan, TDM_MODEL_INPUT).data, sizeof(x));
    memcpy(next, tdm_plan_input(b.plan, TDM_MODEL_CLASSES).data, sizeof(next));
    bench_run(&b);
    const float *found = tdm_plan_output(b.plan, TDM_MODEL_LOGITS).data;
    static plain_gpt plain;
    plain = (plain_gpt){.graph = g, .params = b.params};
    double loss = 0;
    for (int r = 0; r < GPT_B; r++) {
        double logits[GPT_T][GPT_V];
        plain_run(&plain, x + r * GPT_T, logits);
        for (int t = 0; t < GPT_T; t++) {
            double sum = 0;
            for (int v = 0; v < GPT_V; v++) {
                CHECK_NEAR(found[(r * GPT_T + t) * GPT_V + v], logits[t][v], 2e-5);
                sum += exp(logits[t][v]);
            }
            loss += log(sum) - logits[t][next[r * GPT_T + t]];
        }
    }
    /* The mean over all tokens of the batch. */
    CHECK_NEAR(*(float *)tdm_plan_output(b.plan, TDM_MODEL_LOSS).data, loss / (GPT_B * GPT_T),
               1e-5);
    bench_close(&b);
    tdm_graph_destroy(g);
}

static double gpt_loss(bench *b, const int32_t *x, const int32_t *next)
{
    memset(b->arena, 0xff, b->arena_bytes);
    memcpy(tdm_plan_input(b->plan, TDM_MODEL_INPUT).data, x, GPT_B * GPT_T * sizeof(*x));
    memcpy(tdm_plan_input(b->plan, TDM_MODEL_CLASSES).data, next, GPT_B * GPT_T * sizeof(*next));
    bench_run(b);
    return (double)*(float *)tdm_plan_output(b->plan, TDM_MODEL_LOSS).data;
}

/* Along its gradient, the loss changes by the length of the gradient. Checked parameter by parameter, so that
 * the embedding, which is used twice, must have both of its gradients. */
static void gpt_has_the_gradient_of_its_loss(void)
{
    tdm_job job = gpt_job();
    tdm_model_options options = gpt_options(&job, GPT_B, true);
    tdm_graph *g = NULL;
    CHECK_INT(tdm_model_build(&options, &g, NULL), TDM_OK);
    bench b;
    if (!g || !bench_open(&b, g, NULL)) return;
    int32_t x[GPT_B * GPT_T], next[GPT_B * GPT_T];
    tdm_rng rng = bench_rng(4, 4);
    for (int i = 0; i < GPT_B * GPT_T; i++) {
        x[i] = (int32_t)tdm_rng_below(&rng, GPT_V);
        next[i] = (int32_t)tdm_rng_below(&rng, GPT_V);
    }
    tdm_model_init(g, 6, b.params);
    gpt_loss(&b, x, next);
    size_t extent = tdm_graph_grad_extent(g);
    float *grad = malloc(extent * sizeof(*grad)), *first = malloc(b.param_bytes);
    memcpy(grad, b.grads, extent * sizeof(*grad));
    memcpy(first, b.params, b.param_bytes);
    for (size_t i = 0; i < tdm_graph_param_count(g); i++) {
        const tdm_param_info *p = tdm_graph_param_at(g, i);
        double length = 0, loss[2];
        for (size_t k = p->offset; k < p->offset + p->elements; k++)
            length += (double)grad[k] * (double)grad[k];
        length = sqrt(length);
        CHECK(length > 0);
        double step = 1e-3 / length; /* the loss should change by about this much */
        if (step > 0.05) step = 0.05;
        for (int side = 0; side < 2; side++) {
            for (size_t k = p->offset; k < p->offset + p->elements; k++)
                b.params[k] = first[k] + (float)((side ? 1 : -1) * step * (double)grad[k] / length);
            loss[side] = gpt_loss(&b, x, next);
        }
        memcpy(b.params, first, b.param_bytes);
        CHECK_NEAR((loss[1] - loss[0]) / (2 * step) / length, 1.0, 0.02);
    }
    free(grad);
    free(first);
    bench_close(&b);
    tdm_graph_destroy(g);
}

static void gpt_drops_out_in_training_only(void)
{
    for (int training = 0; training < 2; training++) {
        tdm_job job = gpt_job();
        job.model.dropout = 0.1;
        tdm_model_options options = gpt_options(&job, 2, training);
        tdm_graph *g = NULL;
        CHECK_INT(tdm_model_build(&options, &g, NULL), TDM_OK);
        int count = 0;
        for (size_t i = 0; i < tdm_graph_node_count(g); i++) {
            tdm_node_info info = tdm_graph_node_at(g, i);
            count += !info.backward && strcmp(info.op, "dropout") == 0;
        }
        CHECK_INT(count, training ? 1 + 2 * GPT_L : 0); /* attention consists of several products */
        tdm_graph_destroy(g);
    }
}

static void gpt_refuse(const tdm_model_options *options, const char *part)
{
    tdm_error err = {0};
    tdm_graph *graph = NULL;
    CHECK_INT(tdm_model_build(options, &graph, &err), TDM_ERR_JOB_INVALID);
    CHECK_HAS(err.message, part);
    CHECK(!graph);
}

static void gpt_refusals(void)
{
    tdm_job job = gpt_job();
    job.model.heads = 3;
    tdm_model_options o = gpt_options(&job, 2, true);
    gpt_refuse(&o, "2 layers of width 20 with 3 heads");
    job.model.heads = 0;
    gpt_refuse(&o, "with 0 heads");
    job = gpt_job();
    job.model.vocabulary = GPT_V - 1;
    gpt_refuse(&o, "the data has 11 different tokens, but model.vocabulary is 10");
    job = gpt_job();
    o.sample_shape = tdm_shape_1(GPT_T + 1);
    gpt_refuse(&o, "a sample has 8 tokens, but model.context is 7");
    o.sample_shape = tdm_shape_2(GPT_T, 2);
    gpt_refuse(&o, "takes windows of tokens, but a sample has shape [7, 2]");
}

/* ---- the decoder ----------------------------------------------------------------------------- */

/* The logits of the graph for each window of tokens, [T, V]. */
static void graph_logits(const tdm_model_options *options, float *params, const int32_t *tokens,
                         float *out)
{
    tdm_graph *g = NULL;
    CHECK_INT(tdm_model_build(options, &g, NULL), TDM_OK);
    bench b;
    if (g && bench_open(&b, g, &(tdm_plan_options){.forward_only = true})) {
        memcpy(b.params, params, tdm_graph_param_extent(g) * sizeof(float));
        tdm_tensor x = tdm_plan_input(b.plan, TDM_MODEL_INPUT);
        memcpy(x.data, tokens, tdm_tensor_bytes(&x));
        bench_run(&b);
        tdm_tensor logits = tdm_plan_output(b.plan, TDM_MODEL_LOGITS);
        memcpy(out, logits.data, tdm_tensor_bytes(&logits));
        bench_close(&b);
    }
    tdm_graph_destroy(g);
}

static float *random_params(const tdm_model_options *options)
{
    tdm_graph *g = NULL;
    CHECK_INT(tdm_model_build(options, &g, NULL), TDM_OK);
    size_t extent = tdm_graph_param_extent(g);
    float *params = calloc(extent, sizeof(float));
    tdm_rng rng = bench_rng(8, 1);
    for (size_t i = 0; i < extent; i++) params[i] = 0.5f * bench_random(&rng);
    tdm_graph_destroy(g);
    return params;
}

static void decoder_gives_the_logits_of_the_graph(void)
{
    tdm_job job = gpt_job();
    job.model.vocabulary = GPT_V + 4; /* spare tokens have logits as well */
    tdm_model_options options = gpt_options(&job, 1, false);
    enum { V = GPT_V + 4 };
    float *params = random_params(&options), expected[GPT_T * V];
    int32_t tokens[2 * GPT_T];
    tdm_rng rng = bench_rng(8, 2);
    for (int i = 0; i < 2 * GPT_T; i++) tokens[i] = (int32_t)tdm_rng_below(&rng, V);
    tdm_decoder *d = NULL;
    CHECK_INT(tdm_decoder_create(&options, params, &d, NULL), TDM_OK);
    CHECK_INT(tdm_decoder_vocabulary(d), V);
    CHECK_INT(tdm_decoder_context(d), GPT_T);
    graph_logits(&options, params, tokens, expected);
    for (int t = 0; t < GPT_T; t++) {
        const float *logits = tdm_decoder_read(d, tokens + t, 1);
        for (int v = 0; v < V; v++) CHECK_NEAR(logits[v], expected[t * V + v], 1e-4);
    }
    /* Full: it continues with the later half, tokens 4 to 6 at positions 0 to 2, and the new one. */
    const float *logits = tdm_decoder_read(d, tokens + GPT_T, 1);
    graph_logits(&options, params, tokens + GPT_T - GPT_T / 2, expected);
    for (int v = 0; v < V; v++) CHECK_NEAR(logits[v], expected[GPT_T / 2 * V + v], 1e-4);
    /* All tokens at once, after a reset, give the same bits. */
    float first[V];
    memcpy(first, logits, sizeof(first));
    tdm_decoder_reset(d);
    logits = tdm_decoder_read(d, tokens, GPT_T + 1);
    CHECK(memcmp(first, logits, sizeof(first)) == 0);
    tdm_decoder_destroy(d);
    free(params);
}

static void decoder_with_the_shortest_context(void)
{
    tdm_job job = gpt_job();
    job.model.context = 1;
    tdm_model_options options = gpt_options(&job, 1, false);
    float *params = random_params(&options), expected[GPT_V];
    tdm_decoder *d = NULL;
    CHECK_INT(tdm_decoder_create(&options, params, &d, NULL), TDM_OK);
    for (int32_t token = 0; token < 3; token++) {
        const float *logits = tdm_decoder_read(d, &token, 1);
        graph_logits(&options, params, &token, expected);
        for (int v = 0; v < GPT_V; v++) CHECK_NEAR(logits[v], expected[v], 1e-4);
    }
    tdm_decoder_destroy(d);
    free(params);
}

static void decoder_is_for_models_of_tokens(void)
{
    tdm_job job = {.model = {.kind = TDM_JOB_MODEL_MLP}};
    tdm_model_options options = {.job = &job, .sample_shape = tdm_shape_1(3), .class_count = 2};
    tdm_decoder *d = NULL;
    tdm_error err = {0};
    CHECK_INT(tdm_decoder_create(&options, NULL, &d, &err), TDM_ERR_UNSUPPORTED);
    CHECK_HAS(err.message, "model.kind: gpt");
    CHECK(!d);
}

enum { LOOPS_N = 11, LOOPS_K = 53, LOOPS_STRIDE = 61 };

typedef struct loops_numbers {
    float w[LOOPS_N * LOOPS_STRIDE], x[LOOPS_K], bias[LOOPS_N];
} loops_numbers;

/* The results of the loops of one level. */
typedef struct loops_results {
    float product[LOOPS_N], scores[LOOPS_N], mix[LOOPS_K], softmax[LOOPS_K], activate[LOOPS_K];
} loops_results;

static loops_results loops_run(const tdm__decode_loops *loops, const loops_numbers *n)
{
    loops_results r;
    loops->product(n->w, n->x, n->bias, LOOPS_N, LOOPS_K, r.product);
    loops->scores(n->x, n->w, LOOPS_K, LOOPS_STRIDE, LOOPS_N, 0.5f, r.scores);
    loops->mix(n->bias, n->w, LOOPS_K, LOOPS_STRIDE, LOOPS_N, r.mix);
    memcpy(r.softmax, n->x, sizeof(r.softmax));
    loops->softmax(r.softmax, LOOPS_K);
    memcpy(r.activate, n->x, sizeof(r.activate));
    loops->activate(r.activate, LOOPS_K);
    return r;
}

/* Against sums in double precision. */
static void loops_check(const loops_numbers *n, const loops_results *r)
{
    double total = 0;
    for (int i = 0; i < LOOPS_N; i++) {
        double product = (double)n->bias[i], score = 0;
        for (int k = 0; k < LOOPS_K; k++) {
            product += (double)n->w[i * LOOPS_K + k] * (double)n->x[k];
            score += (double)n->w[i * LOOPS_STRIDE + k] * (double)n->x[k];
        }
        CHECK_NEAR(r->product[i], product, 1e-5);
        CHECK_NEAR(r->scores[i], 0.5 * score, 1e-5);
    }
    for (int k = 0; k < LOOPS_K; k++) total += exp((double)n->x[k]);
    for (int k = 0; k < LOOPS_K; k++) {
        double sum = 0, x = (double)n->x[k];
        for (int i = 0; i < LOOPS_N; i++)
            sum += (double)n->bias[i] * (double)n->w[i * LOOPS_STRIDE + k];
        CHECK_NEAR(r->mix[k], sum, 1e-5);
        CHECK_NEAR(r->softmax[k], exp(x) / total, 1e-6);
        CHECK_NEAR(r->activate[k],
                   0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))), 1e-6);
    }
}

/* The loops of each level are correct, for lengths that are not multiples of a vector, and have the same
 * bits. */
static void decoder_loops_of_all_levels(void)
{
#if defined(__x86_64__)
    static const tdm__decode_loops *const all[] = {&tdm__decode_loops_2, &tdm__decode_loops_3,
                                                   &tdm__decode_loops_4};
    enum { LEVELS = 3, FIRST = 2 };
#else
    static const tdm__decode_loops *const all[] = {&tdm__decode_loops_0};
    enum { LEVELS = 1, FIRST = 0 };
#endif
    loops_numbers n;
    loops_results first = {0};
    tdm_rng rng = bench_rng(3, 3);
    for (int i = 0; i < LOOPS_N * LOOPS_STRIDE; i++) n.w[i] = bench_random(&rng);
    for (int i = 0; i < LOOPS_K; i++) n.x[i] = bench_random(&rng);
    for (int i = 0; i < LOOPS_N; i++) n.bias[i] = bench_random(&rng);
    for (int level = 0; level < LEVELS && FIRST + level <= tdm_kernel_cpu_level(); level++) {
        loops_results r = loops_run(all[level], &n);
        loops_check(&n, &r);
        if (level == 0) first = r;
        CHECK(memcmp(&r, &first, sizeof(r)) == 0);
    }
}

/* ---- choosing -------------------------------------------------------------------------------- */

static int32_t choose(const float *logits, int64_t count, double temperature, int64_t top_k,
                      double top_p, double draw)
{
    tdm_choice scratch[8];
    tdm_choice_options options = {.temperature = temperature, .top_k = top_k, .top_p = top_p};
    return tdm_choose_token(logits, count, &options, draw, scratch);
}

static void choices_follow_the_request(void)
{
    /* Probabilities 0.1, 0.4, 0.2, 0.3 at temperature 1. */
    const float logits[] = {logf(0.1f), logf(0.4f), logf(0.2f), logf(0.3f)};
    for (double draw = 0; draw < 1; draw += 0.01) {
        CHECK_INT(choose(logits, 4, 0, 0, 1, draw), 1);
        CHECK_INT(choose(logits, 4, 1, 1, 1, draw), 1);
        CHECK_INT(choose(logits, 4, 1, 0, 0.3, draw), 1);
        CHECK_INT(choose(logits, 4, 1e-6, 0, 1, draw), 1);
        int32_t token = choose(logits, 4, 1, 0, 1, draw + 0.005);
        CHECK_INT(token, draw < 0.395 ? 1 : draw < 0.695 ? 3 : draw < 0.895 ? 2 : 0);
        token = choose(logits, 4, 1, 2, 1, draw + 0.005); /* 0.4 and 0.3 of 0.7 */
        CHECK_INT(token, draw + 0.005 < 0.4 / 0.7 ? 1 : 3);
        token = choose(logits, 4, 1, 0, 0.75, draw + 0.005); /* 0.4, 0.3 and 0.2 of 0.9 */
        CHECK_INT(token, draw + 0.005 < 4.0 / 9 ? 1 : draw + 0.005 < 7.0 / 9 ? 3 : 2);
    }
    const float equal[] = {1, 1, 1};
    CHECK_INT(choose(equal, 3, 1, 0, 1, 0.5), 1);
    CHECK_INT(choose(equal, 3, 0, 0, 1, 0.5), 0);
    const float one[] = {NAN, 2, -INFINITY};
    CHECK_INT(choose(one, 3, 1, 0, 1, 0.999), 1);
    const float infinite[] = {0, INFINITY};
    CHECK_INT(choose(infinite, 2, 1, 0, 1, 0.1), 1);
    const float none[] = {NAN, NAN};
    CHECK(choose(none, 2, 1, 0, 1, 0.5) >= 0);
}

static const check_test nn_gpt_tests[] = {
    CHECK_TEST(gpt_has_these_parameters),
    CHECK_TEST(gpt_presets_have_the_published_sizes),
    CHECK_TEST(gpt_presets_are_defaults),
    CHECK_TEST(gpt_matches_its_parameter_names),
    CHECK_TEST(gpt_has_the_gradient_of_its_loss),
    CHECK_TEST(gpt_drops_out_in_training_only),
    CHECK_TEST(gpt_refusals),
    CHECK_TEST(decoder_gives_the_logits_of_the_graph),
    CHECK_TEST(decoder_with_the_shortest_context),
    CHECK_TEST(decoder_is_for_models_of_tokens),
    CHECK_TEST(decoder_loops_of_all_levels),
    CHECK_TEST(choices_follow_the_request),
};
CHECK_SUITE(nn_gpt, nn_gpt_tests);
