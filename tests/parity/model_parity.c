/*
 * model_parity.c: whole models, as this library trains them on one thread in one lane, for
 * model_parity.py to train again with PyTorch.
 *
 * `parity_model FILE CASE` trains. Each case is a job. Handed over are its settings, the first
 * weights, those that training starts from, the last, and for each of them loss, gradients and the
 * running statistics that follow from the first batch (first weights are small, and some of what a
 * model does hardly shows in them); the batches (a few, which come round again and again), and the
 * loss of each of the training's steps.
 *
 * `parity_model FILE CASE WEIGHTS` goes the other way: it takes weights that PyTorch has trained
 * (all tensors one after the other, in our order and layout) and hands over what the model for
 * inference says to the first batch.
 */
#include "base/base.h"
#include "optim/optim.h"
#include "parity/exchange.h"

#include <tandem/nn.h>

enum { STEPS = 100, BATCHES = 5, MAX_PARAMS = 64 };

typedef struct model_case {
    const char *name;
    const char *job;
    tdm_shape sample_shape;
    int64_t class_count;
    int64_t batch;
    /* Training begins with inactive residual branches: the last norm of each has weight 0 (torchvision's
     * zero_init_residual). If all of them are active, each of the early steps multiplies a rounding difference
     * by up to ten, also between PyTorch's single and double precision: no two programs agree for 100 steps. */
    bool zero_residual;
} model_case;

#define COMMON "seed: 5\ndata: {train: t}\nparallel: {lanes: 1}\n"
static const model_case cases[] = {
    {.name = "mlp relu",
     .job = COMMON "model: {kind: mlp, hidden: [32, 24], activation: relu, dropout: 0}\n"
                   "optim: {kind: adamw, lr: 0.003, weight_decay: 0.1}\n",
     .sample_shape = {.rank = 1, .dim = {13}},
     .class_count = 7,
     .batch = 16},
    {.name = "mlp gelu",
     .job = COMMON "model: {kind: mlp, hidden: [32, 24], activation: gelu, dropout: 0}\n"
                   "optim: {kind: adamw, lr: 0.003, weight_decay: 0.1}\n",
     .sample_shape = {.rank = 1, .dim = {13}},
     .class_count = 7,
     .batch = 16},
    {.name = "gpt",
     .job = COMMON "model: {kind: gpt, layers: 2, width: 32, heads: 4, context: 16,\n"
                   "        vocabulary: 23, dropout: 0}\n"
                   "optim: {kind: adamw, lr: 0.003, beta2: 0.99, weight_decay: 0.1,\n"
                   "        clip_norm: 1}\n",
     .sample_shape = {.rank = 1, .dim = {16}},
     .class_count = 23,
     .batch = 8},
    {.name = "cnn",
     .job = COMMON "model: {kind: cnn, channels: [8, 16], hidden: [32], activation: relu,\n"
                   "        dropout: 0}\n"
                   "optim: {kind: sgd, lr: 0.003, momentum: 0.9, weight_decay: 0.0005}\n",
     .sample_shape = {.rank = 3, .dim = {16, 16, 3}},
     .class_count = 10,
     .batch = 16},
    {.name = "resnet18",
     .job = COMMON "model: {kind: resnet, depth: 18, stem: cifar}\n"
                   "optim: {kind: sgd, lr: 0.001, momentum: 0.9, weight_decay: 0.0005}\n",
     .sample_shape = {.rank = 3, .dim = {16, 16, 3}},
     .class_count = 10,
     .batch = 8,
     .zero_residual = true},
};

/* A model, and the state of its training. */
typedef struct trainee {
    tdm_job_document *document;
    const tdm_job *job;
    int64_t class_count;
    tdm_graph *graph;
    lab lab;
    tdm_optimiser *optimiser;
    tdm_optim_param params[MAX_PARAMS];
    float *states[TDM_OPTIM_MAX_STATES];
} trainee;

/* Features are normal, tokens and classes uniform: a function of the batch's number alone. */
static void fill(const trainee *t, const char *input, uint64_t batch)
{
    tdm_tensor in = tdm_plan_input(t->lab.plan, input);
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 11,
                                               .stream = TDM_RNG_STREAM_USER,
                                               .sub_stream = (uint32_t)input[0],
                                               .step = batch});
    for (int64_t i = 0; i < tdm_tensor_elements(&in); i++) {
        if (in.dtype == TDM_DTYPE_F32)
            ((float *)in.data)[i] = (float)tdm_rng_normal(&rng);
        else
            ((int32_t *)in.data)[i] = (int32_t)tdm_rng_below(&rng, (uint64_t)t->class_count);
    }
}

static float run(const trainee *t, uint64_t step)
{
    fill(t, TDM_MODEL_INPUT, step % BATCHES);
    fill(t, TDM_MODEL_CLASSES, step % BATCHES);
    tdm_plan_run(t->lab.plan, &(tdm_step_key){.seed = t->job->seed, .step = step});
    return *(const float *)tdm_plan_output(t->lab.plan, TDM_MODEL_LOSS).data;
}

/* The value of a statistic after a step: the rule of tdm_graph_statistic. */
static void follow_statistics(const trainee *t)
{
    for (size_t i = 0; i < tdm_graph_param_count(t->graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(t->graph, i);
        float momentum = (float)p->momentum;
        if (!p->statistic) continue;
        for (size_t k = p->offset; k < p->offset + p->elements; k++)
            t->lab.params[k] = (1 - momentum) * t->lab.params[k] + momentum * t->lab.grads[k];
    }
}

static void update(trainee *t, uint64_t step)
{
    tdm_optimiser *o = t->optimiser;
    size_t count = tdm_optimiser_piece_count(o);
    double norm = 0;
    tdm_optimiser_begin(o, step, t->job->optim.lr);
    if (tdm_optimiser_must_measure(o)) {
        for (size_t i = 0; i < count; i++)
            tdm_optimiser_measure(o, i, t->lab.grads + tdm_optimiser_piece_at(o, i)->begin);
        norm = tdm_optimiser_grad_norm(o);
    }
    for (size_t i = 0; i < count; i++)
        tdm_optimiser_update(o, i, t->lab.grads + tdm_optimiser_piece_at(o, i)->begin, norm);
    follow_statistics(t);
}

static void open_optimiser(trainee *t)
{
    tdm_error err = {0};
    size_t count = 0;
    for (size_t i = 0; i < tdm_graph_param_count(t->graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(t->graph, i);
        if (!p->trained) continue;
        if (count == MAX_PARAMS) give_up("more parameters than expected");
        t->params[count++] = (tdm_optim_param){p->name, p->offset, p->elements};
    }
    require(tdm_optimiser_create(t->job, t->params, count, &t->optimiser, &err), &err);
    tdm_optim_blocks blocks = {.params = t->lab.params};
    for (int s = 0; s < TDM_OPTIM_MAX_STATES; s++) {
        t->states[s] = lab_block(tdm_graph_param_extent(t->graph));
        if (tdm_optimiser_uses_state(t->optimiser, s)) blocks.states[s] = t->states[s];
    }
    tdm_optimiser_bind(t->optimiser, &blocks);
}

static void print_settings(const model_case *c, const tdm_job *job)
{
    printf("{\"case\":\"%s\",\"layers\":%lld,\"heads\":%lld,\"image\":[%lld,%lld,%lld]", c->name,
           (long long)job->model.layers, (long long)job->model.heads,
           (long long)c->sample_shape.dim[0], (long long)c->sample_shape.dim[1],
           (long long)c->sample_shape.dim[2]);
    printf(",\"optimiser\":\"%s\",\"lr\":%.17g,\"momentum\":%.17g,\"beta1\":%.17g,"
           "\"beta2\":%.17g,\"eps\":%.17g,\"weight_decay\":%.17g,\"clip_norm\":%.17g",
           tdm_optim_find(job->optim.kind)->name, job->optim.lr, job->optim.momentum,
           job->optim.beta1, job->optim.beta2, job->optim.eps, job->optim.weight_decay,
           job->optim.clip_norm);
}

static void print_batches(const trainee *t, exchange *x)
{
    static const char *const inputs[] = {TDM_MODEL_INPUT, TDM_MODEL_CLASSES};
    printf(",\"batches\":[");
    for (uint64_t batch = 0; batch < BATCHES; batch++) {
        printf("%s{", batch > 0 ? "," : "");
        x->has_item = false;
        for (int i = 0; i < 2; i++) {
            fill(t, inputs[i], batch);
            tdm_tensor in = tdm_plan_input(t->lab.plan, inputs[i]);
            put_tensor(x, inputs[i], &in);
        }
        printf("}");
    }
    printf("]");
}

/* Loss, gradients and statistics of the first batch with the current weights. */
static void print_step(const trainee *t, exchange *x, const char *when)
{
    char group[32];
    printf(",\"%s_loss\":%.9g", when, (double)run(t, 0));
    snprintf(group, sizeof(group), "%s_grads", when);
    put_block(x, group, &t->lab, t->lab.grads);
    follow_statistics(t);
    snprintf(group, sizeof(group), "%s_after", when);
    put_block(x, group, &t->lab, t->lab.params);
}

static void first_weights(const trainee *t, bool without_residuals)
{
    tdm_model_init(t->graph, t->job->seed, t->lab.params);
    for (size_t i = 0; i < tdm_graph_param_count(t->graph) && without_residuals; i++) {
        const tdm_param_info *p = tdm_graph_param_at(t->graph, i);
        if (strstr(p->name, ".bn2.weight"))
            memset(t->lab.params + p->offset, 0, p->elements * sizeof(float));
    }
}

static void train(trainee *t, const model_case *c, exchange *x)
{
    first_weights(t, false);
    put_block(x, "first", &t->lab, t->lab.params);
    print_step(t, x, "first");
    first_weights(t, c->zero_residual);
    put_block(x, "start", &t->lab, t->lab.params);
    print_step(t, x, "start");
    first_weights(t, c->zero_residual);
    print_batches(t, x);
    printf(",\"losses\":[");
    for (uint64_t step = 0; step < STEPS; step++) {
        printf("%s%.9g", step > 0 ? "," : "", (double)run(t, step));
        update(t, step);
    }
    printf("]");
    put_block(x, "last", &t->lab, t->lab.params);
    print_step(t, x, "last");
}

static trainee open_trainee(const model_case *c, bool training)
{
    tdm_error err = {0};
    trainee t = {.class_count = c->class_count};
    require(tdm_job_parse(c->job, strlen(c->job), c->name, NULL,
                          &(tdm_job_options){.no_file_checks = true}, &t.document, &err),
            &err);
    t.job = tdm_job_document_job(t.document);
    tdm_model_options options = {.job = t.job,
                                 .sample_shape = c->sample_shape,
                                 .class_count = c->class_count,
                                 .batch = c->batch,
                                 .training = training,
                                 .loss_scale = 1.0 / (double)c->batch};
    require(tdm_model_build(&options, &t.graph, &err), &err);
    t.lab = lab_open(t.graph, NULL);
    return t;
}

static void close_trainee(trainee *t)
{
    tdm_optimiser_destroy(t->optimiser);
    for (int s = 0; s < TDM_OPTIM_MAX_STATES; s++) free(t->states[s]);
    lab_close(&t->lab);
    tdm_graph_destroy(t->graph);
    tdm_job_document_destroy(t->document);
}

static void print_training(const model_case *c, exchange *x)
{
    trainee t = open_trainee(c, true);
    open_optimiser(&t);
    print_settings(c, t.job);
    train(&t, c, x);
    printf("}\n");
    close_trainee(&t);
}

static void read_weights(const trainee *t, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) give_up("cannot open the weights");
    for (size_t i = 0; i < tdm_graph_param_count(t->graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(t->graph, i);
        if (fread(t->lab.params + p->offset, sizeof(float), p->elements, file) != p->elements)
            give_up("the weights end early");
    }
    if (fgetc(file) != EOF) give_up("there are more weights than the model has");
    fclose(file);
}

static void print_inference(const model_case *c, const char *weights, exchange *x)
{
    trainee t = open_trainee(c, false);
    read_weights(&t, weights);
    fill(&t, TDM_MODEL_INPUT, 0);
    tdm_plan_run(t.lab.plan, &(tdm_step_key){.seed = t.job->seed});
    printf("{\"case\":\"%s\"", c->name);
    begin_group(x, "outputs");
    tdm_tensor logits = tdm_plan_output(t.lab.plan, TDM_MODEL_LOGITS);
    put_tensor(x, "logits", &logits);
    end_group(x);
    printf("}\n");
    close_trainee(&t);
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 4) give_up("usage: parity_model FILE CASE [WEIGHTS]");
    exchange x = {.file = fopen(argv[1], "wb")};
    if (!x.file) give_up("cannot open the file");
    const model_case *c = NULL;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        if (strcmp(cases[i].name, argv[2]) == 0) c = &cases[i];
    if (!c) give_up("unknown case");
    if (argc == 3)
        print_training(c, &x);
    else
        print_inference(c, argv[3], &x);
    if (fclose(x.file) != 0) give_up("cannot write the tensors");
    return 0;
}
