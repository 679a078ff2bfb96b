/*
 * team_bench.h: a team on the bench: a small model with made-up rows, and all that a team borrows.
 *
 * A row's numbers are a function of the step and of its place in the batch, so every team of one
 * shape sees the same data, whoever fills it in. The bench itself allocates only when it is opened.
 */
#ifndef TANDEM_TESTS_TEAM_BENCH_H
#define TANDEM_TESTS_TEAM_BENCH_H

#include "check.h"

#include <tandem/os.h>
#include <tandem/parallel.h>

#include <stdlib.h>

enum { TEAM_BENCH_FEATURES = 7, TEAM_BENCH_CLASSES = 4 };

/* What a test chooses; zero means the default. */
typedef struct team_shape {
    int64_t lanes;
    int workers;
    int64_t batches[TDM_TEAM_MAX_BATCHES];
    int optim;   /* tdm_job_optim */
    int backend; /* tdm_job_backend */
    double dropout;
    int64_t width; /* of the hidden layer; 0: 19 */
    bool poison;   /* a NaN in the last row of every batch */
    float huge;    /* where not 0: the first feature of the last row, or with huge_rows of all */
    bool huge_rows;
    double clip_value;
    double clip_norm;
    double ema;
} team_shape;

typedef struct team_bench {
    team_shape shape;
    tdm_job job;
    int64_t hidden[2];
    tdm_graph *graph; /* of one row, for the layout */
    tdm_pages pages;
    float *params;
    float *states[TDM_OPTIM_MAX_STATES];
    float *ema;
    tdm_optimiser *optimiser;
    size_t param_extent, trained_extent;
    tdm_team *team;
    uint64_t step; /* of the batch that is filled in */
    int64_t batch;
} team_bench;

static inline void team_bench_row(const team_bench *b, int64_t row, float *x, int32_t *class_of)
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

static inline void team_bench_fill(void *user, int worker, int64_t first, int64_t count,
                                   void *inputs, int32_t *classes)
{
    const team_bench *b = user;
    float *x = inputs;
    (void)worker;
    for (int64_t i = 0; i < count; i++)
        team_bench_row(b, first + i, x + i * TEAM_BENCH_FEATURES, &classes[i]);
}

static inline tdm_model_options team_bench_model(const team_bench *b)
{
    return (tdm_model_options){.job = &b->job,
                               .sample_shape = tdm_shape_1(TEAM_BENCH_FEATURES),
                               .class_count = TEAM_BENCH_CLASSES};
}

static inline void team_bench_optim(const team_shape *shape, tdm_job *job)
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

/* The optimiser for the bench's model, on its blocks. */
static inline bool team_bench_optimiser(team_bench *b)
{
    tdm_optim_param params[16];
    size_t count = 0;
    for (size_t i = 0; i < tdm_graph_param_count(b->graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(b->graph, i);
        if (p->trained) params[count++] = (tdm_optim_param){p->name, p->offset, p->elements};
    }
    CHECK_INT(tdm_optimiser_create(&b->job, params, count, &b->optimiser, NULL), TDM_OK);
    if (!b->optimiser) return false;
    tdm_optim_blocks blocks = {.params = b->params, .ema = b->shape.ema > 0 ? b->ema : NULL};
    for (int i = 0; i < TDM_OPTIM_MAX_STATES; i++) blocks.states[i] = b->states[i];
    tdm_optimiser_bind(b->optimiser, &blocks);
    return true;
}

static inline tdm_team_options team_bench_options(team_bench *b)
{
    tdm_team_options o = {.model = team_bench_model(b),
                          .worker_count = b->shape.workers,
                          .lane_count = b->shape.lanes,
                          .optimiser = b->optimiser,
                          .params = b->params,
                          .seed = 5,
                          .fill = team_bench_fill,
                          .user = b};
    for (int i = 0; i < TDM_TEAM_MAX_BATCHES; i++) o.batches[i] = b->shape.batches[i];
    return o;
}

/* Everything but the team. */
static inline bool team_bench_prepare(team_bench *b, const team_shape *shape)
{
    *b = (team_bench){.shape = *shape};
    b->hidden[0] = shape->width > 0 ? shape->width : 19;
    b->hidden[1] = 5;
    b->job.model.hidden.values = b->hidden;
    b->job.model.hidden.count = 2;
    b->job.model.dropout = shape->dropout;
    b->job.compute.backend = shape->backend;
    team_bench_optim(shape, &b->job);
    tdm_model_options m = team_bench_model(b);
    m.batch = 1;
    CHECK_INT(tdm_model_build(&m, &b->graph, NULL), TDM_OK);
    if (!b->graph) return false;
    b->param_extent = tdm_graph_param_extent(b->graph);
    b->trained_extent = tdm_graph_trained_extent(b->graph);
    size_t block = (b->param_extent + 15) / 16 * 16;
    CHECK_INT(
        tdm_pages_map((2 + TDM_OPTIM_MAX_STATES) * block * sizeof(float), false, &b->pages, NULL),
        TDM_OK);
    b->params = b->pages.data;
    if (!b->params) return false;
    for (int i = 0; i < TDM_OPTIM_MAX_STATES; i++)
        b->states[i] = b->params + (size_t)(i + 1) * block;
    b->ema = b->params + (size_t)(TDM_OPTIM_MAX_STATES + 1) * block;
    tdm_model_init(b->graph, 3, b->params);
    memcpy(b->ema, b->params, b->param_extent * sizeof(float));
    return team_bench_optimiser(b);
}

static inline bool team_bench_open(team_bench *b, const team_shape *shape)
{
    if (!team_bench_prepare(b, shape)) return false;
    tdm_team_options o = team_bench_options(b);
    tdm_error err = {0};
    CHECK_INT(tdm_team_create(&o, &b->team, &err), TDM_OK);
    if (!b->team) fprintf(stderr, "  %s\n", err.message);
    return b->team != NULL;
}

static inline void team_bench_close(team_bench *b)
{
    tdm_team_destroy(b->team);
    tdm_optimiser_destroy(b->optimiser);
    tdm_graph_destroy(b->graph);
    tdm_pages_unmap(&b->pages);
}

static inline tdm_step_result team_bench_step(team_bench *b, uint64_t step, int64_t batch)
{
    b->step = step;
    b->batch = batch;
    return tdm_team_step(b->team, step, batch, b->job.optim.lr);
}

#endif
