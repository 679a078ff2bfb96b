/*
 * train_csv.c: a training loop of your own, on Tandem's public headers only.
 *
 *     train_csv DATA.csv [CHECKPOINT.safetensors [EPOCHS]]
 *
 * Reads a table whose last column is the class, keeps a fifth of it for testing, trains a network
 * with one hidden layer and prints how often it is right. With a second argument all there is to
 * know is saved there every fifth epoch, and the next start resumes from it: ten epochs and then ten
 * more give the same bits as twenty.
 *
 * `tandem train` does all of this, and much more; this program shows the pieces it is made of. Read
 * it from top to bottom: the model as a graph, the graph as a plan, the numbers it works on, a step,
 * the measure, the checkpoint, and the loop around them. It runs on one thread, and is repeatable.
 */
#include <tandem/base.h>
#include <tandem/checkpoint.h>
#include <tandem/data.h>
#include <tandem/eval.h>
#include <tandem/graph.h>
#include <tandem/nn.h>
#include <tandem/optim.h>
#include <tandem/os.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEED = 1, BATCH = 32, HIDDEN = 64, EPOCHS = 20, SAVE_EVERY = 5 };

static const double learning_rate = 0.003, dropout = 0.1;

/* ---- 1. the model: a graph of ops ------------------------------------------------------------ */

/* A mistake in here would be remembered, and told by tdm_graph_check(). */
static void describe(tdm_graph *g, const tdm_dataset_info *info, bool training)
{
    int64_t features = info->feature_count, classes = info->class_count;
    tdm_init uniform = {.kind = TDM_INIT_UNIFORM, .scale = 0.1}, zero = {.kind = TDM_INIT_ZERO};
    /* What comes with each run; what is saved but not trained; what is trained. */
    tdm_value x = tdm_graph_input(g, "x", TDM_DTYPE_F32, tdm_shape_2(BATCH, features));
    tdm_value shift = tdm_graph_buffer(g, "shift", tdm_shape_1(features), zero);
    tdm_value scale = tdm_graph_buffer(g, "scale", tdm_shape_1(features), zero);
    tdm_value w1 = tdm_graph_param(g, "w1", tdm_shape_2(HIDDEN, features), uniform);
    tdm_value b1 = tdm_graph_param(g, "b1", tdm_shape_1(HIDDEN), zero);
    tdm_value w2 = tdm_graph_param(g, "w2", tdm_shape_2(classes, HIDDEN), uniform);
    tdm_value b2 = tdm_graph_param(g, "b2", tdm_shape_1(classes), zero);

    tdm_value h = tdm_graph_normalise(g, x, shift, scale);
    h = tdm_graph_linear(g, h, w1, b1, TDM_ACTIVATION_RELU);
    if (training) h = tdm_graph_dropout(g, h, dropout);
    tdm_value logits = tdm_graph_linear(g, h, w2, b2, TDM_ACTIVATION_NONE);
    tdm_graph_output(g, "logits", logits);
    if (training) {
        tdm_value truth = tdm_graph_input(g, "classes", TDM_DTYPE_I32, tdm_shape_1(BATCH));
        tdm_value loss = tdm_graph_cross_entropy(g, logits, truth, 1.0 / BATCH);
        tdm_graph_output(g, "loss", loss);
        tdm_graph_backward(g, loss, NULL); /* tdm_graph_check() also reports a failure */
    }
}

/* ---- 2. the plan: a graph made ready to run -------------------------------------------------- */

typedef struct network {
    tdm_graph *graph;
    tdm_plan *plan;
    tdm_pages arena; /* of its activations */
} network;

static tdm_status network_init(network *n, const tdm_dataset_info *info, bool training,
                               tdm_error *err)
{
    n->graph = tdm_graph_create();
    if (!n->graph) return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory for the graph");
    describe(n->graph, info, training);
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

/* ---- 3. the numbers: parameters, gradients, optimiser ---------------------------------------- */

enum { STATE_COUNT = 2 }; /* AdamW's moving averages of the gradient and of its square */

/* Blocks of one layout, one behind the other. The graph says where in them each parameter lies. */
typedef struct numbers {
    tdm_pages pages;
    float *params, *grads, *states[STATE_COUNT];
} numbers;

static tdm_status numbers_init(numbers *m, const tdm_graph *graph, tdm_error *err)
{
    size_t params = tdm_graph_param_extent(graph), trained = tdm_graph_trained_extent(graph);
    size_t elements = params + (1 + STATE_COUNT) * trained;
    TDM_TRY(tdm_pages_map(elements * sizeof(float), false, &m->pages, err)); /* zeroed */
    m->params = m->pages.data;
    m->grads = m->params + params;
    for (int k = 0; k < STATE_COUNT; k++) m->states[k] = m->grads + (size_t)(k + 1) * trained;
    return TDM_OK;
}

/* All that the rest of the program works with. */
typedef struct trainer {
    const tdm_dataset *train, *test;
    network learner, tester; /* the same model with gradients, and without */
    numbers m;
    tdm_position position; /* how far it has come */
} trainer;

/* First values: random by the seed; and each column of the data gets the mean 0 and deviation 1. */
static tdm_status begin(trainer *t, tdm_error *err)
{
    const tdm_graph *graph = t->learner.graph;
    int64_t count = tdm_dataset_info_of(t->train)->feature_count;
    double *moments = calloc(2 * (size_t)count, sizeof(*moments));
    if (!moments) return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory for the moments");
    tdm_dataset_moments(t->train, moments, moments + count);
    tdm_model_init(graph, SEED, t->m.params);
    float *shift = tdm_model_param(graph, "shift", t->m.params).data;
    float *scale = tdm_model_param(graph, "scale", t->m.params).data;
    for (int64_t i = 0; i < count; i++) {
        shift[i] = (float)moments[i];
        scale[i] = moments[count + i] > 1e-6 ? (float)(1.0 / moments[count + i]) : 0.0f;
    }
    free(moments);
    t->position = (tdm_position){.seed = SEED};
    return TDM_OK;
}

/* ---- 4. a step, and an epoch of them --------------------------------------------------------- */

/* Fills the plan's inputs, runs forwards and backwards, and lets AdamW change the parameters. */
static double train_step(trainer *t, const int64_t indices[BATCH])
{
    const tdm_optim_settings settings = {
        .lr = learning_rate, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
    tdm_plan *plan = t->learner.plan;
    float *x = tdm_plan_input(plan, "x").data;
    int32_t *classes = tdm_plan_input(plan, "classes").data;
    tdm_dataset_gather(t->train, indices, BATCH, x, classes);
    tdm_plan_run(plan, &(tdm_step_key){.seed = SEED, .step = t->position.step}); /* for dropout */
    tdm_optim_range all = {.count = tdm_graph_trained_extent(t->learner.graph),
                           .grad = t->m.grads,
                           .param = t->m.params,
                           .state = {t->m.states[0], t->m.states[1]}};
    t->position.step++;
    t->position.samples += BATCH;
    tdm_optim_find(TDM_JOB_OPTIM_ADAMW)->update(&settings, t->position.step, &all);
    return (double)*(const float *)tdm_plan_output(plan, "loss").data;
}

/* One pass over the training set; the few samples behind the last full batch wait for the next
 * epoch, whose order is another. Returns the mean loss. */
static double train_epoch(trainer *t)
{
    uint64_t sample_count = (uint64_t)tdm_dataset_info_of(t->train)->sample_count;
    uint64_t batch_count = sample_count / BATCH;
    tdm_sampler sampler = {.seed = SEED, .sample_count = sample_count, .shuffle = true};
    double sum = 0;
    for (uint64_t b = 0; b < batch_count; b++) {
        int64_t indices[BATCH];
        for (uint64_t i = 0; i < BATCH; i++)
            indices[i] = (int64_t)tdm_sampler_at(&sampler, t->position.epoch, b * BATCH + i);
        sum += train_step(t, indices);
    }
    t->position.epoch++;
    return sum / (double)batch_count;
}

/* ---- 5. how good it is ----------------------------------------------------------------------- */

/* The share of samples whose most likely class is the true one. A last, shorter batch runs with old
 * rows behind it, which are not looked at. */
static double accuracy(const trainer *t)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(t->test);
    tdm_plan *plan = t->tester.plan;
    float *x = tdm_plan_input(plan, "x").data;
    const float *logits = tdm_plan_output(plan, "logits").data;
    int64_t right = 0;
    for (int64_t first = 0; first < info->sample_count; first += BATCH) {
        int64_t left = info->sample_count - first, count = left < BATCH ? left : BATCH;
        int64_t indices[BATCH];
        int32_t truth[BATCH];
        for (int64_t i = 0; i < count; i++) indices[i] = first + i;
        tdm_dataset_gather(t->test, indices, count, x, truth);
        tdm_plan_run(plan, &(tdm_step_key){0});
        for (int64_t i = 0; i < count; i++)
            right += tdm_argmax(logits + i * info->class_count, info->class_count) == truth[i];
    }
    return (double)right / (double)info->sample_count;
}

/* ---- 6. checkpoints: saving and resuming ------------------------------------------------------ */

enum { MAX_TENSORS = 32 };

/* Every tensor of the state with its name: "w1", "optim.m.w1", ... */
typedef struct inventory {
    tdm_named_tensor tensors[MAX_TENSORS];
    char names[MAX_TENSORS][64];
    size_t count;
} inventory;

static void inventory_add(inventory *list, const char *prefix, const tdm_param_info *param,
                          float *block)
{
    if (list->count == MAX_TENSORS) return; /* six parameters, two states of four: 14 */
    char *name = list->names[list->count];
    snprintf(name, sizeof(list->names[0]), "%s%s", prefix, param->name);
    tdm_tensor view = {
        .dtype = TDM_DTYPE_F32, .shape = param->shape, .data = block + param->offset};
    list->tensors[list->count++] = (tdm_named_tensor){name, view};
}

static void take_inventory(const trainer *t, inventory *list)
{
    list->count = 0;
    for (size_t i = 0; i < tdm_graph_param_count(t->learner.graph); i++) {
        const tdm_param_info *param = tdm_graph_param_at(t->learner.graph, i);
        inventory_add(list, "", param, t->m.params);
        if (!param->trained) continue;
        inventory_add(list, "optim.m.", param, t->m.states[0]);
        inventory_add(list, "optim.v.", param, t->m.states[1]);
    }
}

/* What makes a run this run and no other: what decides the result, in words, and the data. */
typedef struct identity {
    char settings[128];
    char settings_hash[TDM_SHA256_HEX];
    char data_hash[TDM_SHA256_HEX];
} identity;

static tdm_status identify(const trainer *t, identity *out, tdm_error *err)
{
    snprintf(out->settings, sizeof(out->settings),
             "program: train_csv\nhidden: %d\nbatch: %d\nlr: %g\ndropout: %g\n", HIDDEN, BATCH,
             learning_rate, dropout);
    tdm_status status = tdm_sha256_of(out->settings, strlen(out->settings), out->settings_hash);
    if (status == TDM_OK) status = tdm_dataset_hash(t->train, out->data_hash);
    return status == TDM_OK ? TDM_OK : tdm_fail(err, status, "no memory for a hash");
}

/* Replaces the file in one step: a kill at any moment leaves the old one or the new one. */
static tdm_status save(const trainer *t, const char *path, tdm_error *err)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(t->train);
    inventory list;
    identity id;
    take_inventory(t, &list);
    TDM_TRY(identify(t, &id, err));
    tdm_checkpoint_content content = {.tensors = list.tensors,
                                      .tensor_count = list.count,
                                      .position = t->position,
                                      .job_hash = id.settings_hash,
                                      .data_hash = id.data_hash,
                                      .job_yaml = id.settings,
                                      .class_names = info->class_names,
                                      .class_count = info->class_count,
                                      .sample_shape = info->sample_shape};
    return tdm_checkpoint_save(path, &content, err);
}

static tdm_status copy_tensor(const tdm_checkpoint *checkpoint, const tdm_named_tensor *to,
                              tdm_error *err)
{
    const tdm_named_tensor *from = tdm_checkpoint_find(checkpoint, to->name);
    if (!from || from->tensor.dtype != to->tensor.dtype ||
        !tdm_shape_equal(&from->tensor.shape, &to->tensor.shape))
        return tdm_fail(err, TDM_ERR_FORMAT, "it has no tensor '%s' of the right shape", to->name);
    memcpy(to->tensor.data, from->tensor.data, tdm_tensor_bytes(&to->tensor));
    return TDM_OK;
}

/* Everything as it was when it was saved. */
static tdm_status restore(trainer *t, const tdm_checkpoint *checkpoint, tdm_error *err)
{
    const tdm_checkpoint_content *content = tdm_checkpoint_content_of(checkpoint);
    inventory list;
    identity id;
    TDM_TRY(identify(t, &id, err));
    if (strcmp(content->job_hash, id.settings_hash) != 0)
        return tdm_fail(err, TDM_ERR_JOB_MISMATCH, "it was saved with other settings");
    if (!content->data_hash || strcmp(content->data_hash, id.data_hash) != 0)
        return tdm_fail(err, TDM_ERR_JOB_MISMATCH, "it was trained with other data");
    take_inventory(t, &list);
    for (size_t i = 0; i < list.count; i++) TDM_TRY(copy_tensor(checkpoint, &list.tensors[i], err));
    t->position = content->position;
    return TDM_OK;
}

static tdm_status resume(trainer *t, const char *path, tdm_error *err)
{
    tdm_checkpoint *checkpoint;
    TDM_TRY(tdm_checkpoint_open(path, &checkpoint, err)); /* checks the file's own hashes */
    tdm_status status = restore(t, checkpoint, err);
    tdm_checkpoint_destroy(checkpoint);
    if (status != TDM_OK) return tdm_error_context(err, status, "%s: cannot resume from it", path);
    printf("resuming from epoch %d\n", (int)t->position.epoch);
    return TDM_OK;
}

/* ---- 7. all of it ---------------------------------------------------------------------------- */

static tdm_status prepare(trainer *t, tdm_error *err)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(t->train);
    if (info->class_count < 2 || info->sample_count < BATCH)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s: this needs two classes or more, and %d training samples", info->path,
                        BATCH);
    TDM_TRY(network_init(&t->learner, info, true, err));
    TDM_TRY(network_init(&t->tester, info, false, err));
    TDM_TRY(numbers_init(&t->m, t->learner.graph, err));
    tdm_plan_bind(t->learner.plan, TDM_SPACE_PARAMS, t->m.params);
    tdm_plan_bind(t->learner.plan, TDM_SPACE_GRADS, t->m.grads);
    tdm_plan_bind(t->tester.plan, TDM_SPACE_PARAMS, t->m.params); /* the very same numbers */
    return TDM_OK;
}

static void release(trainer *t)
{
    tdm_pages_unmap(&t->m.pages);
    network_release(&t->tester);
    network_release(&t->learner);
}

static tdm_status run(trainer *t, const char *path, uint64_t epochs, tdm_error *err)
{
    bool was_saved = path && tdm_path_is_file(path);
    TDM_TRY(prepare(t, err));
    TDM_TRY(was_saved ? resume(t, path, err) : begin(t, err));
    while (t->position.epoch < epochs) {
        double loss = train_epoch(t);
        if (t->position.epoch % SAVE_EVERY != 0 && t->position.epoch != epochs) continue;
        printf("epoch %2d  loss %.4f  test accuracy %.2f %%\n", (int)t->position.epoch, loss,
               100 * accuracy(t));
        if (path) TDM_TRY(save(t, path, err));
    }
    return TDM_OK;
}

int main(int argc, char **argv)
{
    const char *path = argc > 2 ? argv[2] : NULL;
    int epochs = argc > 3 ? atoi(argv[3]) : EPOCHS;
    if (argc < 2 || argc > 4 || epochs < 1) {
        fprintf(stderr, "usage: train_csv DATA.csv [CHECKPOINT.safetensors [EPOCHS]]\n");
        return 2;
    }
    tdm_error err = {0};
    trainer t = {0};
    tdm_dataset *all = NULL, *train = NULL, *test = NULL;
    tdm_status status = tdm_dataset_load(argv[1], NULL, &all, &err);
    if (status == TDM_OK) status = tdm_dataset_split(all, 0.2, SEED, &train, &test, &err);
    t.train = train;
    t.test = test;
    if (status == TDM_OK) status = run(&t, path, (uint64_t)epochs, &err);
    release(&t);
    if (status != TDM_OK)
        fprintf(stderr, "train_csv: %s (%s)\n", err.message, tdm_status_name(status));
    tdm_dataset_destroy(test);
    tdm_dataset_destroy(train);
    tdm_dataset_destroy(all);
    return status == TDM_OK ? 0 : 1;
}
