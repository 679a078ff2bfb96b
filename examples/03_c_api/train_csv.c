/*
 * train_csv.c: a training loop of your own, on Tandem's public headers only.
 *
 *     train_csv DATA.csv [MODEL.safetensors]
 *
 * Reads a table whose last column is the class, keeps a fifth of it for testing, trains a network
 * with one hidden layer and prints how often it is right. With a second argument the parameters are
 * saved there. `tandem train` does all of this, and much more; this program shows the pieces it is
 * made of: data set, sampler, graph, plan, optimiser. It runs on one thread, and is repeatable: the
 * same file gives the same bits.
 */
#include <tandem/base.h>
#include <tandem/checkpoint.h>
#include <tandem/data.h>
#include <tandem/eval.h>
#include <tandem/graph.h>
#include <tandem/nn.h>
#include <tandem/optim.h>
#include <tandem/os.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum { SEED = 1, BATCH = 32, HIDDEN = 64, EPOCHS = 20, PARAM_COUNT = 6 };

/* A graph made ready to run, with the memory for its activations. */
typedef struct network {
    tdm_graph *graph;
    tdm_plan *plan;
    tdm_pages arena;
} network;

/* Parameters, gradients and the optimiser's two states, one behind the other in one block. */
typedef struct numbers {
    tdm_pages pages;
    float *params, *grads, *states[2];
} numbers;

/* The model as a list of ops. A mistake in it would be remembered, and told by tdm_graph_check(). */
static tdm_graph *describe(const tdm_dataset_info *info, bool training)
{
    tdm_graph *g = tdm_graph_create();
    if (!g) return NULL;
    int64_t features = info->feature_count, classes = info->class_count;
    tdm_init uniform = {.kind = TDM_INIT_UNIFORM, .scale = 0.1}, zero = {.kind = TDM_INIT_ZERO};
    tdm_value x = tdm_graph_input(g, "x", TDM_DTYPE_F32, tdm_shape_2(BATCH, features));
    tdm_value shift = tdm_graph_buffer(g, "shift", tdm_shape_1(features), zero);
    tdm_value scale = tdm_graph_buffer(g, "scale", tdm_shape_1(features), zero);
    tdm_value w1 = tdm_graph_param(g, "w1", tdm_shape_2(features, HIDDEN), uniform);
    tdm_value b1 = tdm_graph_param(g, "b1", tdm_shape_1(HIDDEN), zero);
    tdm_value w2 = tdm_graph_param(g, "w2", tdm_shape_2(HIDDEN, classes), uniform);
    tdm_value b2 = tdm_graph_param(g, "b2", tdm_shape_1(classes), zero);

    tdm_value h = tdm_graph_normalise(g, x, shift, scale);
    h = tdm_graph_relu(g, tdm_graph_matmul(g, h, w1, &(tdm_matmul_options){.bias = b1}));
    tdm_value logits = tdm_graph_matmul(g, h, w2, &(tdm_matmul_options){.bias = b2});
    tdm_graph_output(g, "logits", logits);
    if (training) {
        tdm_value truth = tdm_graph_input(g, "classes", TDM_DTYPE_I32, tdm_shape_1(BATCH));
        tdm_value loss = tdm_graph_cross_entropy(g, logits, truth, 1.0 / BATCH);
        tdm_graph_output(g, "loss", loss);
        tdm_graph_backward(g, loss, NULL); /* a failure is told by tdm_graph_check(), too */
    }
    return g;
}

static tdm_status network_init(network *n, const tdm_dataset_info *info, bool training,
                               tdm_error *err)
{
    n->graph = describe(info, training);
    if (!n->graph) return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory for the graph");
    TDM_TRY(tdm_graph_check(n->graph, err));
    TDM_TRY(tdm_plan_create(n->graph, NULL, &n->plan, err));
    TDM_TRY(tdm_pages_map(tdm_plan_arena_bytes(n->plan), false, &n->arena, err));
    tdm_plan_bind(n->plan, TDM_SPACE_ARENA, n->arena.data);
    return TDM_OK;
}

static void network_release(network *n)
{
    tdm_plan_destroy(n->plan);
    tdm_graph_destroy(n->graph);
    tdm_pages_unmap(&n->arena);
}

static tdm_status numbers_init(numbers *m, const tdm_graph *graph, tdm_error *err)
{
    size_t params = tdm_graph_param_extent(graph), trained = tdm_graph_trained_extent(graph);
    TDM_TRY(tdm_pages_map((params + 3 * trained) * sizeof(float), false, &m->pages, err));
    m->params = m->pages.data;
    m->grads = m->params + params;
    m->states[0] = m->grads + trained;
    m->states[1] = m->states[0] + trained;
    tdm_model_init(graph, SEED, m->params);
    return TDM_OK;
}

/* Each column of the training set gets the mean 0 and the deviation 1. */
static tdm_status normalise_by(const tdm_dataset *train, const tdm_graph *graph, float *params,
                               tdm_error *err)
{
    int64_t count = tdm_dataset_info_of(train)->feature_count;
    double *moments = calloc(2 * (size_t)count, sizeof(*moments));
    if (!moments) return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory for the moments");
    tdm_dataset_moments(train, moments, moments + count);
    float *shift = tdm_model_param(graph, "shift", params).data;
    float *scale = tdm_model_param(graph, "scale", params).data;
    for (int64_t i = 0; i < count; i++) {
        shift[i] = (float)moments[i];
        scale[i] = moments[count + i] > 1e-6 ? (float)(1.0 / moments[count + i]) : 0.0f;
    }
    free(moments);
    return TDM_OK;
}

/* One pass over the training set; the few samples behind the last full batch wait for the next
 * epoch, whose order is another. Returns the mean loss. */
static double train_epoch(network *n, const numbers *m, const tdm_dataset *train, uint64_t epoch)
{
    const tdm_optim_ops *adamw = tdm_optim_find(TDM_JOB_OPTIM_ADAMW);
    const tdm_optim_settings settings = {
        .lr = 0.003, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
    uint64_t sample_count = (uint64_t)tdm_dataset_info_of(train)->sample_count;
    uint64_t batch_count = sample_count / BATCH;
    tdm_sampler sampler = {.seed = SEED, .sample_count = sample_count, .shuffle = true};
    float *x = tdm_plan_input(n->plan, "x").data;
    int32_t *classes = tdm_plan_input(n->plan, "classes").data;
    const float *loss = tdm_plan_output(n->plan, "loss").data;
    double sum = 0;
    for (uint64_t b = 0; b < batch_count; b++) {
        int64_t indices[BATCH];
        for (int i = 0; i < BATCH; i++)
            indices[i] = (int64_t)tdm_sampler_at(&sampler, epoch, b * BATCH + (uint64_t)i);
        tdm_dataset_gather(train, indices, BATCH, x, classes);
        uint64_t step = epoch * batch_count + b;
        tdm_plan_run(n->plan, &(tdm_step_key){.seed = SEED, .step = step});
        tdm_optim_range all = {.count = tdm_graph_trained_extent(n->graph),
                               .grad = m->grads,
                               .param = m->params,
                               .state = {m->states[0], m->states[1]}};
        adamw->update(&settings, step + 1, &all);
        sum += (double)*loss;
    }
    return sum / (double)batch_count;
}

/* The share of samples whose most likely class is the true one. A last, shorter batch runs with old
 * rows behind it, which are not looked at. */
static double accuracy(network *n, const tdm_dataset *set)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(set);
    float *x = tdm_plan_input(n->plan, "x").data;
    const float *logits = tdm_plan_output(n->plan, "logits").data;
    int64_t right = 0;
    for (int64_t first = 0; first < info->sample_count; first += BATCH) {
        int64_t left = info->sample_count - first, count = left < BATCH ? left : BATCH;
        int64_t indices[BATCH];
        int32_t truth[BATCH];
        for (int64_t i = 0; i < count; i++) indices[i] = first + i;
        tdm_dataset_gather(set, indices, count, x, truth);
        tdm_plan_run(n->plan, &(tdm_step_key){0});
        for (int64_t i = 0; i < count; i++)
            right += tdm_argmax(logits + i * info->class_count, info->class_count) == truth[i];
    }
    return (double)right / (double)info->sample_count;
}

static tdm_status save(const char *path, const tdm_graph *graph, float *params, tdm_error *err)
{
    tdm_named_tensor tensors[PARAM_COUNT];
    assert(tdm_graph_param_count(graph) == PARAM_COUNT);
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        const char *name = tdm_graph_param_at(graph, i)->name;
        tensors[i] = (tdm_named_tensor){name, tdm_model_param(graph, name, params)};
    }
    TDM_TRY(tdm_safetensors_write(path, tensors, PARAM_COUNT, NULL, 0, err));
    printf("saved %d tensors to %s\n", PARAM_COUNT, path);
    return TDM_OK;
}

static tdm_status train_and_test(const tdm_dataset *train, const tdm_dataset *test,
                                 const char *model_path, tdm_error *err)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(train);
    if (info->class_count < 2 || info->sample_count < BATCH)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s: this needs two classes or more, and %d training samples", info->path,
                        BATCH);
    network learner = {0}, tester = {0};
    numbers m = {0};
    tdm_status status = network_init(&learner, info, true, err);
    if (status == TDM_OK) status = network_init(&tester, info, false, err);
    if (status == TDM_OK) status = numbers_init(&m, learner.graph, err);
    if (status == TDM_OK) status = normalise_by(train, learner.graph, m.params, err);
    if (status == TDM_OK) {
        tdm_plan_bind(learner.plan, TDM_SPACE_PARAMS, m.params);
        tdm_plan_bind(learner.plan, TDM_SPACE_GRADS, m.grads);
        tdm_plan_bind(tester.plan, TDM_SPACE_PARAMS, m.params); /* the very same numbers */
        for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
            double loss = train_epoch(&learner, &m, train, epoch);
            if ((epoch + 1) % 5 == 0)
                printf("epoch %2d  loss %.4f  test accuracy %.2f %%\n", (int)epoch + 1, loss,
                       100 * accuracy(&tester, test));
        }
        if (model_path) status = save(model_path, learner.graph, m.params, err);
    }
    tdm_pages_unmap(&m.pages);
    network_release(&tester);
    network_release(&learner);
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: train_csv DATA.csv [MODEL.safetensors]\n");
        return 2;
    }
    tdm_error err = {0};
    tdm_dataset *all = NULL, *train = NULL, *test = NULL;
    tdm_status status = tdm_dataset_load(argv[1], NULL, &all, &err);
    if (status == TDM_OK) status = tdm_dataset_split(all, 0.2, SEED, &train, &test, &err);
    if (status == TDM_OK) status = train_and_test(train, test, argc == 3 ? argv[2] : NULL, &err);
    if (status != TDM_OK)
        fprintf(stderr, "train_csv: %s (%s)\n", err.message, tdm_status_name(status));
    tdm_dataset_destroy(test);
    tdm_dataset_destroy(train);
    tdm_dataset_destroy(all);
    return status == TDM_OK ? 0 : 1;
}
