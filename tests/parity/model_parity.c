/*
 * model_parity.c: whole models, as this library trains them on one thread in one lane, for
 * model_parity.py to train again with PyTorch.
 *
 * Each case is a job. Handed over are its settings, the first weights, the batches (a few, which
 * come round again and again), loss and gradients of the first batch with the first weights, the
 * loss of each of the training's steps, the last weights, and loss and gradients with those: first
 * weights are small, and some of what a model does hardly shows in them.
 */
#include "parity/exchange.h"

#include <tandem/nn.h>
#include <tandem/optim.h>

enum { STEPS = 100, BATCHES = 5, MAX_PARAMS = 64 };

typedef struct model_case {
    const char *name;
    const char *job;
    tdm_shape sample_shape;
    int64_t class_count;
    int64_t batch;
} model_case;

#define COMMON "seed: 5\ndata: {train: t}\nparallel: {lanes: 1}\n"
static const model_case cases[] = {
    {"mlp relu",
     COMMON "model: {kind: mlp, hidden: [32, 24], activation: relu, dropout: 0}\n"
            "optim: {kind: adamw, lr: 0.003, weight_decay: 0.1}\n",
     {.rank = 1, .dim = {13}},
     7,
     16},
    {"mlp gelu",
     COMMON "model: {kind: mlp, hidden: [32, 24], activation: gelu, dropout: 0}\n"
            "optim: {kind: adamw, lr: 0.003, weight_decay: 0.1}\n",
     {.rank = 1, .dim = {13}},
     7,
     16},
    {"gpt",
     COMMON "model: {kind: gpt, layers: 2, width: 32, heads: 4, context: 16, vocabulary: 23,\n"
            "        dropout: 0}\n"
            "optim: {kind: adamw, lr: 0.003, beta2: 0.99, weight_decay: 0.1, clip_norm: 1}\n",
     {.rank = 1, .dim = {16}},
     23,
     8},
};

/* A model in training. */
typedef struct trainee {
    const tdm_job *job;
    int64_t class_count;
    lab lab;
    tdm_optimiser *optimiser;
    tdm_optim_param params[MAX_PARAMS];
    float *states[TDM_OPTIM_MAX_STATES];
} trainee;

/* Features are normal, tokens and classes even: a function of the batch's number alone. */
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
}

static void open_optimiser(trainee *t)
{
    tdm_error err = {0};
    size_t count = 0;
    for (size_t i = 0; i < tdm_graph_param_count(t->lab.graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(t->lab.graph, i);
        if (!p->trained) continue;
        if (count == MAX_PARAMS) give_up("more parameters than expected");
        t->params[count++] = (tdm_optim_param){p->name, p->offset, p->elements};
    }
    require(tdm_optimiser_create(t->job, t->params, count, &t->optimiser, &err), &err);
    tdm_optim_blocks blocks = {.params = t->lab.params};
    for (int s = 0; s < TDM_OPTIM_MAX_STATES; s++) {
        t->states[s] = lab_block(tdm_graph_param_extent(t->lab.graph));
        if (tdm_optimiser_uses_state(t->optimiser, s)) blocks.states[s] = t->states[s];
    }
    tdm_optimiser_bind(t->optimiser, &blocks);
}

static void print_settings(const model_case *c, const tdm_job *job)
{
    printf("{\"case\":\"%s\",\"layers\":%lld,\"heads\":%lld,\"lr\":%.17g,\"beta1\":%.17g,"
           "\"beta2\":%.17g,\"eps\":%.17g,\"weight_decay\":%.17g,\"clip_norm\":%.17g",
           c->name, (long long)job->model.layers, (long long)job->model.heads, job->optim.lr,
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

static void train(trainee *t, exchange *x)
{
    put_block(x, "first", &t->lab, t->lab.params);
    print_batches(t, x);
    printf(",\"losses\":[");
    for (uint64_t step = 0; step < STEPS; step++) {
        printf("%s%.9g", step > 0 ? "," : "", (double)run(t, step));
        update(t, step);
    }
    printf("]");
    put_block(x, "last", &t->lab, t->lab.params);
    printf(",\"last_loss\":%.9g", (double)run(t, 0));
    put_block(x, "last_grads", &t->lab, t->lab.grads);
    tdm_model_init(t->lab.graph, t->job->seed, t->lab.params);
    printf(",\"first_loss\":%.9g", (double)run(t, 0));
    put_block(x, "first_grads", &t->lab, t->lab.grads);
}

static void print_case(const model_case *c, exchange *x)
{
    tdm_error err = {0};
    tdm_job_document *document = NULL;
    require(tdm_job_parse(c->job, strlen(c->job), c->name, NULL,
                          &(tdm_job_options){.no_file_checks = true}, &document, &err),
            &err);
    trainee t = {.job = tdm_job_document_job(document), .class_count = c->class_count};
    tdm_model_options options = {.job = t.job,
                                 .sample_shape = c->sample_shape,
                                 .class_count = c->class_count,
                                 .batch = c->batch,
                                 .training = true,
                                 .loss_scale = 1.0 / (double)c->batch};
    tdm_graph *graph = NULL;
    require(tdm_model_build(&options, &graph, &err), &err);
    t.lab = lab_open(graph, NULL);
    tdm_model_init(graph, t.job->seed, t.lab.params);
    open_optimiser(&t);
    print_settings(c, t.job);
    train(&t, x);
    printf("}\n");
    tdm_optimiser_destroy(t.optimiser);
    for (int s = 0; s < TDM_OPTIM_MAX_STATES; s++) free(t.states[s]);
    lab_close(&t.lab);
    tdm_graph_destroy(graph);
    tdm_job_document_destroy(document);
}

int main(int argc, char **argv)
{
    if (argc != 2) give_up("usage: parity_model FILE");
    exchange x = {.file = fopen(argv[1], "wb")};
    if (!x.file) give_up("cannot open the file");
    for (size_t i = 0; i < COUNT_OF(cases); i++) print_case(&cases[i], &x);
    if (fclose(x.file) != 0) give_up("cannot write the tensors");
    return 0;
}
