/*
 * team_bench.c: see team_bench.h.
 */
#include "team_bench.h"

static void team_bench_row(const team_bench *b, int64_t row, float *x, int32_t *class_of)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){
        .seed = 99, .stream = TDM_RNG_STREAM_USER, .step = b->step, .sample = (uint64_t)row});
    *class_of = (int32_t)tdm_rng_below(&rng, TEAM_BENCH_CLASSES);
    for (int i = 0; i < TEAM_BENCH_FEATURES; i++)
        x[i] = tdm_rng_uniform(&rng) + (i == *class_of ? 1.0f : 0.0f);
    bool last = row == b->batch - 1;
    if (b->shape.poison && last) x[0] = NAN;
    if (b->shape.huge != 0 && (last || b->shape.huge_rows)) x[0] = b->shape.huge;
    if (b->shape.huge_rows) *class_of = 0;
}

void team_bench_fill(void *user, int64_t first, int64_t count, void *inputs, int32_t *classes)
{
    const team_bench *b = user;
    float *x = inputs;
    for (int64_t i = 0; i < count; i++)
        team_bench_row(b, first + i, x + i * TEAM_BENCH_FEATURES, &classes[i]);
}

tdm_model_options team_bench_model(const team_bench *b)
{
    return (tdm_model_options){.job = &b->job,
                               .sample_shape = tdm_shape_1(TEAM_BENCH_FEATURES),
                               .class_count = TEAM_BENCH_CLASSES};
}

static void team_bench_optim(const team_shape *shape, tdm_job *job)
{
    job->optim.kind = shape->optim;
    job->optim.lr = shape->optim == TDM_JOB_OPTIM_SGD ? 0.02 : 0.004;
    job->optim.momentum = 0.9;
    job->optim.nesterov = true;
    job->optim.beta1 = 0.9;
    job->optim.beta2 = 0.99;
    job->optim.alpha = 0.9;
    job->optim.eps = 1e-8;
    job->optim.weight_decay = 0.01;
    job->optim.clip_norm = shape->clip_norm;
    job->optim.clip_value = shape->clip_value;
    job->optim.ema = shape->ema;
}

/* The optimiser for the model of the bench, with its blocks. */
static bool team_bench_optimiser(team_bench *b)
{
    tdm_optim_param params[16];
    size_t count = 0;
    for (size_t i = 0; i < tdm_graph_param_count(b->graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(b->graph, i);
        if (p->trained) params[count++] = (tdm_optim_param){p->name, p->offset, p->elements};
    }
    CHECK_INT(tdm_optimiser_create(&b->job, params, count, &b->optimiser, NULL), TDM_OK);
    return b->optimiser != NULL;
}

/* The parameter store, with initial values. */
static bool team_bench_store(team_bench *b)
{
    tdm_params_options o = {.graph = b->graph,
                            .optimiser = b->optimiser,
                            .has_ema = b->shape.ema > 0,
                            .comm = b->shape.comm,
                            .zero = b->shape.zero,
                            .bucket_bytes = b->shape.bucket_bytes};
    tdm_error err = {0};
    CHECK_INT(tdm_params_create(&o, &b->store, &err), TDM_OK);
    if (!b->store) {
        fprintf(stderr, "  %s\n", err.message);
        return false;
    }
    b->params = tdm_params_block(b->store, TDM_BLOCK_PARAMS);
    b->ema = tdm_params_block(b->store, TDM_BLOCK_EMA);
    for (int i = 0; i < TDM_OPTIM_MAX_STATES; i++)
        b->states[i] = tdm_params_block(b->store, TDM_BLOCK_STATE + i);
    float *first = aligned_alloc(64, (b->param_extent + 16) / 16 * 64);
    if (!first) return false;
    bool root = !b->shape.comm || tdm_comm_rank(b->shape.comm) == 0;
    memset(first, 0, b->param_extent * sizeof(float));
    tdm_model_init(b->graph, 3, first);
    CHECK_INT(
        tdm_params_write(b->store, TDM_BLOCK_PARAMS, 0, b->param_extent, root ? first : NULL, NULL),
        TDM_OK);
    if (b->ema)
        CHECK_INT(tdm_params_write(b->store, TDM_BLOCK_EMA, 0, b->param_extent, root ? first : NULL,
                                   NULL),
                  TDM_OK);
    CHECK_INT(tdm_params_settle(b->store, NULL), TDM_OK);
    free(first);
    return true;
}

tdm_team_options team_bench_options(team_bench *b)
{
    tdm_team_options o = {.model = team_bench_model(b),
                          .store = b->store,
                          .optimiser = b->optimiser,
                          .comm = b->shape.comm,
                          .lane_count = b->shape.lanes,
                          .seed = 5,
                          .fill = team_bench_fill,
                          .user = b};
    for (int i = 0; i < TDM_TEAM_MAX_BATCHES; i++) o.batches[i] = b->shape.batches[i];
    return o;
}

/* Another model, whose lanes are summed in the middle of a pass, forward and backward. */
static void team_bench_sync(team_bench *b)
{
    b->layers[0] = (tdm_job_layer){.kind = TDM_JOB_LAYER_BATCH_NORM, .momentum = 0.1, .eps = 1e-5};
    b->layers[1] = (tdm_job_layer){
        .kind = TDM_JOB_LAYER_LINEAR, .size = b->hidden[0], .bias = true};
    b->layers[2] = (tdm_job_layer){.kind = TDM_JOB_LAYER_RELU};
    b->job.layers = (tdm_job_layer_list){b->layers, 3};
    b->job.model.kind = TDM_JOB_MODEL_LAYERS;
    b->job.parallel.sync_batchnorm = true;
}

bool team_bench_prepare(team_bench *b, const team_shape *shape)
{
    *b = (team_bench){.shape = *shape};
    b->hidden[0] = shape->width > 0 ? shape->width : 19;
    b->hidden[1] = 5;
    b->job.model.hidden.values = b->hidden;
    b->job.model.hidden.count = 2;
    b->job.model.dropout = shape->dropout;
    b->job.compute.backend = shape->backend;
    b->job.compute.numerics = shape->numerics;
    if (shape->threads > 0) b->job.compute.threads = shape->threads;
    b->job.parallel.zero = shape->zero;
    b->job.parallel.reduce = shape->reduce;
    b->job.parallel.balance = shape->balance;
    b->job.parallel.overlap = !shape->no_overlap;
    team_bench_optim(shape, &b->job);
    if (shape->synced) team_bench_sync(b);
    tdm_model_options m = team_bench_model(b);
    m.batch = 1;
    CHECK_INT(tdm_model_build(&m, &b->graph, NULL), TDM_OK);
    if (!b->graph) return false;
    b->param_extent = tdm_graph_param_extent(b->graph);
    b->trained_extent = tdm_graph_trained_extent(b->graph);
    return team_bench_optimiser(b) && team_bench_store(b);
}

bool team_bench_open(team_bench *b, const team_shape *shape)
{
    if (!team_bench_prepare(b, shape)) return false;
    tdm_team_options o = team_bench_options(b);
    tdm_error err = {0};
    CHECK_INT(tdm_team_create(&o, &b->team, &err), TDM_OK);
    if (!b->team) fprintf(stderr, "  %s\n", err.message);
    return b->team != NULL;
}

void team_bench_close(team_bench *b)
{
    tdm_team_destroy(b->team);
    tdm_params_destroy(b->store);
    tdm_optimiser_destroy(b->optimiser);
    tdm_graph_destroy(b->graph);
}

void team_bench_on_ranks(int ranks, tdm_sim_fn fn, void *user)
{
    if (ranks == 1) {
        fn(NULL, user);
        return;
    }
    tdm_sim_options o = {.seed = 7, .size = ranks, .stack_bytes = (size_t)2 << 20};
    tdm_sim_result r = {0};
    tdm_error err = {0};
    CHECK_INT(tdm_sim_run(&o, fn, user, &r, &err), TDM_OK);
    if (err.message[0]) fprintf(stderr, "  %s\n", err.message);
    CHECK_INT(r.finished_count, ranks);
}

bool team_bench_same(const team_bench *a, const team_bench *b)
{
    size_t bytes = a->trained_extent * sizeof(float);
    bool same = memcmp(a->params, b->params, a->param_extent * sizeof(float)) == 0 &&
                (!a->ema || memcmp(a->ema, b->ema, bytes) == 0);
    for (int i = 0; i < TDM_OPTIM_MAX_STATES; i++)
        same = same && (!a->states[i] || memcmp(a->states[i], b->states[i], bytes) == 0);
    return same;
}

tdm_step_result team_bench_step(team_bench *b, uint64_t step, int64_t batch)
{
    b->step = step;
    b->batch = batch;
    tdm_step_input in = {.step = step, .batch = batch, .lr = b->job.optim.lr};
    tdm_step_result r = {.loss = (double)NAN};
    tdm_error err = {0};
    CHECK_INT(tdm_team_step(b->team, &in, &r, &err), TDM_OK);
    if (err.message[0]) fprintf(stderr, "  %s\n", err.message);
    return r;
}
