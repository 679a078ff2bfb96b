/*
 * sim_step_test.c: training steps on a simulated world of very many ranks, with the bits of one rank.
 *
 * Every rank has a separate store and team over the simulator's comm, and is a node alone: all gradients and
 * parameters are sent. The batch of a step has one row for each lane. The reference is one process with the
 * same lanes: rank 0 collects all parameters and states, which must be equal bit for bit, as must the loss of
 * every step on every rank. Simulated ranks are coroutines with small stacks, so the reference kernels compute.
 */
#include "base/base.h"
#include "check.h"
#include "optim/optim.h"
#include "parallel/parallel.h"
#include "sim/simulator.h"

#include <tandem/job.h>

#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MANY = 64 };
#else
enum { MANY = 1024 };
#endif

enum { STEPS = 2, FEATURES = 24, CLASSES = 8, MAX_PARAMS = 64, STACK_BYTES = 512 << 10 };

/* Shared by all ranks of a world: they run in one process. */
typedef struct world {
    const tdm_job *job;
    int64_t lanes;
    int64_t batches[2]; /* rows of steps, in turn */
    bool images;        /* the samples */
    /* The results. */
    float *blocks; /* rank 0: parameters and states, one after the other; taken by the caller */
    size_t floats;
    double losses[STEPS]; /* of rank 0 */
    int finished;         /* number of ranks that ended with the losses of rank 0 */
    char message[256];    /* the first error */
} world;

/* The objects of one rank. */
typedef struct member {
    world *world;
    tdm_comm *comm; /* NULL: a single process */
    tdm_model_options model;
    tdm_graph *graph;
    tdm_optimiser *optimiser;
    tdm_params *store;
    tdm_team *team;
    uint64_t step;
} member;

static void fill(void *user, int64_t first, int64_t count, void *x, int32_t *classes)
{
    const member *m = user;
    for (int64_t i = 0; i < count; i++) {
        tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 99,
                                                   .stream = TDM_RNG_STREAM_USER,
                                                   .step = m->step,
                                                   .sample = (uint64_t)(first + i)});
        classes[i] = (int32_t)tdm_rng_below(&rng, CLASSES);
        for (int k = 0; k < FEATURES; k++)
            ((float *)x)[i * FEATURES + k] = tdm_rng_uniform(&rng) +
                                             (k == classes[i] ? 1.0f : 0.0f);
    }
}

static tdm_status make_optimiser(member *m, tdm_error *err)
{
    tdm_optim_param params[MAX_PARAMS];
    size_t count = 0;
    for (size_t i = 0; i < tdm_graph_param_count(m->graph) && count < MAX_PARAMS; i++) {
        const tdm_param_info *p = tdm_graph_param_at(m->graph, i);
        if (p->trained) params[count++] = (tdm_optim_param){p->name, p->offset, p->elements};
    }
    return tdm_optimiser_create(m->world->job, params, count, &m->optimiser, err);
}

static bool is_first(const member *m)
{
    return !m->comm || tdm_comm_rank(m->comm) == 0;
}

/* The initial values, from rank 0 to their owners. */
static tdm_status spread_first_values(member *m, tdm_error *err)
{
    size_t extent = tdm_graph_param_extent(m->graph);
    float *values = is_first(m) ? calloc(extent, sizeof(float)) : NULL;
    if (is_first(m) && !values) return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory");
    if (values) tdm_model_init(m->graph, 3, values);
    tdm_status status = tdm_params_write(m->store, TDM_BLOCK_PARAMS, 0, extent, values, err);
    if (status == TDM_OK) status = tdm_params_settle(m->store, err);
    free(values);
    return status;
}

static tdm_status open_member(member *m, tdm_error *err)
{
    const tdm_job *job = m->world->job;
    m->model = (tdm_model_options){
        .job = job, .sample_shape = tdm_shape_1(FEATURES), .class_count = CLASSES, .batch = 1};
    if (m->world->images) m->model.sample_shape = tdm_shape_3(1, 4, FEATURES / 4);
    TDM_TRY(tdm_model_build(&m->model, &m->graph, err));
    TDM_TRY(make_optimiser(m, err));
    tdm_params_options place = {.graph = m->graph,
                                .optimiser = m->optimiser,
                                .comm = m->comm,
                                .zero = (int)job->parallel.zero,
                                .bucket_bytes = (size_t)job->parallel.bucket};
    TDM_TRY(tdm_params_create(&place, &m->store, err));
    TDM_TRY(spread_first_values(m, err));
    tdm_team_options options = {.model = m->model,
                                .store = m->store,
                                .optimiser = m->optimiser,
                                .comm = m->comm,
                                .lane_count = m->world->lanes,
                                .batches = {m->world->batches[0], m->world->batches[1]},
                                .seed = 5,
                                .fill = fill,
                                .user = m};
    return tdm_team_create(&options, &m->team, err);
}

static void close_member(member *m)
{
    tdm_team_destroy(m->team);
    tdm_params_destroy(m->store);
    tdm_optimiser_destroy(m->optimiser);
    tdm_graph_destroy(m->graph);
}

/* Parameters and states of the whole model, to rank 0. */
static tdm_status gather(member *m, tdm_error *err)
{
    size_t extent = tdm_graph_param_extent(m->graph), count = 1;
    int blocks[1 + TDM_OPTIM_MAX_STATES] = {TDM_BLOCK_PARAMS};
    for (int s = 0; s < TDM_OPTIM_MAX_STATES; s++)
        if (tdm_optimiser_uses_state(m->optimiser, s)) blocks[count++] = TDM_BLOCK_STATE + s;
    float *out = is_first(m) ? calloc(count * extent, sizeof(float)) : NULL;
    if (is_first(m) && !out) return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory");
    tdm_status status = TDM_OK;
    for (size_t i = 0; i < count && status == TDM_OK; i++)
        status = tdm_params_read(m->store, blocks[i], 0, extent, out ? out + i * extent : NULL,
                                 err);
    if (!out) return status;
    m->world->blocks = out;
    m->world->floats = count * extent;
    return status;
}

static tdm_status train(member *m, tdm_error *err)
{
    world *w = m->world;
    double losses[STEPS];
    TDM_TRY(open_member(m, err));
    for (m->step = 0; m->step < STEPS; m->step++) {
        tdm_step_input in = {
            .step = m->step, .batch = w->batches[m->step % 2], .lr = w->job->optim.lr};
        tdm_step_result result;
        TDM_TRY(tdm_team_step(m->team, &in, &result, err));
        losses[m->step] = result.finite ? result.loss : -1;
    }
    TDM_TRY(tdm_params_settle(m->store, err));
    TDM_TRY(gather(m, err));
    /* Whichever rank ends first stores its losses; the others compare theirs. */
    if (w->finished == 0) memcpy(w->losses, losses, sizeof(losses));
    w->finished += memcmp(w->losses, losses, sizeof(losses)) == 0;
    return TDM_OK;
}

static void run_rank(tdm_comm *comm, void *user)
{
    member m = {.world = user, .comm = comm};
    tdm_error err = {0};
    if (train(&m, &err) != TDM_OK && m.world->message[0] == '\0')
        snprintf(m.world->message, sizeof(m.world->message), "rank %d: %.200s",
                 comm ? tdm_comm_rank(comm) : 0, err.message);
    close_member(&m);
}

/* ---- worlds ------------------------------------------------------------------------------------ */

typedef struct setting {
    int size;
    int64_t lanes;
    int zero;
    const char *bucket;
    const char *more;     /* keys of the job */
    const char *model;    /* NULL: a small MLP */
    int64_t first, other; /* rows of batches, in turn; 0: one for each lane */
    bool images;
} setting;

static tdm_job_document *read_job(const setting *s)
{
    static const char small[] = "model: {kind: mlp, hidden: [256, 24], dropout: 0.1}\n";
    char text[1024];
    snprintf(text, sizeof(text),
             "seed: 5\ndata: {train: t}\n%scompute: {backend: ref}\ntrain: {batch: %lld}\n"
             "parallel: {lanes: %lld, zero: %d, bucket: %s}\n%s",
             s->model ? s->model : small, (long long)s->lanes, (long long)s->lanes, s->zero,
             s->bucket, s->more);
    tdm_job_document *document = NULL;
    tdm_error err = {0};
    CHECK_INT(tdm_job_parse(text, strlen(text), "job", NULL,
                            &(tdm_job_options){.no_file_checks = true}, &document, &err),
              TDM_OK);
    CHECK_TEXT(err.message, "");
    return document;
}

/* The same training by one process, and by a world. */
static void check_setting(const setting *s)
{
    tdm_job_document *document = read_job(s);
    if (!document || !tdm_job_document_job(document)) return;
    world one = {.job = tdm_job_document_job(document), .lanes = s->lanes, .images = s->images};
    one.batches[0] = s->first > 0 ? s->first : s->lanes;
    one.batches[1] = s->other > 0 ? s->other : s->lanes;
    world many = one;
    run_rank(NULL, &one);
    CHECK_TEXT(one.message, "");
    tdm_sim_options options = {
        .seed = 7, .size = s->size, .jitter_s = 1e-5, .stack_bytes = STACK_BYTES};
    tdm_sim_result result = {0};
    tdm_error err = {0};
    CHECK_INT(tdm_sim_run(&options, run_rank, &many, &result, &err), TDM_OK);
    CHECK_TEXT(err.message, "");
    CHECK_TEXT(many.message, "");
    CHECK_INT(many.finished, s->size);
    CHECK(many.losses[0] > 0 && memcmp(one.losses, many.losses, sizeof(one.losses)) == 0);
    CHECK(many.losses[1] != many.losses[0]);
    CHECK_INT(many.floats, one.floats);
    if (one.blocks && many.blocks && one.floats == many.floats)
        CHECK(memcmp(one.blocks, many.blocks, one.floats * sizeof(float)) == 0);
    if (check_failures > 0)
        fprintf(stderr, "  %d ranks, %lld lanes, zero %d\n", s->size, (long long)s->lanes, s->zero);
    free(one.blocks);
    free(many.blocks);
    tdm_job_document_destroy(document);
}

static void test_a_step_on_very_many_ranks(void)
{
    check_setting(
        &(setting){.size = MANY, .lanes = MANY, .bucket = "auto", .more = "optim: {lr: 0.01}\n"});
}

static void test_every_stage(void)
{
    static const char clipped[] = "optim: {kind: lamb, lr: 0.01, clip_norm: 0.1}\n";
    for (int zero = 0; zero <= 3; zero++) {
        check_setting(
            &(setting){.size = 3, .lanes = 16, .zero = zero, .bucket = "16KB", .more = clipped});
        check_setting(
            &(setting){.size = 24, .lanes = 32, .zero = zero, .bucket = "16KB", .more = clipped});
    }
}

/* Ranks with more lanes than others, with fewer, and with none: no rank may wait for a call that another
 * makes only later. The model is deep, so that its gradients and gathered parameters exceed their slots. */
static void test_uneven_ranks(void)
{
    static const char deep[] =
        "model: {kind: mlp, hidden: [64, 64, 64, 64, 64, 64, 64, 64, 64, 64, "
        "64, 64, 64, 64, 64, 64]}\n";
    for (int zero = 1; zero <= 3; zero++)
        for (int overlap = 0; overlap <= 1; overlap++)
            for (int size = 3; size <= 5; size++) {
                check_setting(&(setting){.size = size,
                                         .lanes = 8,
                                         .zero = zero,
                                         .bucket = overlap ? "16KB" : "16KB, overlap: no",
                                         .more = "optim: {lr: 0.01}\n",
                                         .model = deep,
                                         .first = 17,
                                         .other = 2});
            }
}

/* The same if lanes are summed in the middle of a pass, forward and backward, and with statistics. */
static void test_uneven_ranks_that_meet(void)
{
    static const char norms[] =
        "layers: [linear: 64, batch_norm, relu, linear: 64, batch_norm, relu, "
        "linear: 64, batch_norm, relu, linear: 64, batch_norm, relu, "
        "linear: 64, batch_norm, relu, linear: 64, batch_norm, relu]\n";
    for (int zero = 0; zero <= 3; zero++)
        for (int size = 3; size <= 5; size += 2)
            check_setting(&(setting){.size = size,
                                     .lanes = 8,
                                     .zero = zero,
                                     .bucket = "16KB, sync_batchnorm: yes",
                                     .more = "optim: {lr: 0.01}\n",
                                     .model = norms,
                                     .first = 17,
                                     .other = 2});
}

/* The last batch is a single row: its lane is the only one with a sum. */
static void test_a_lane_without_a_sibling(void)
{
    static const char norms[] =
        "layers: [conv: {channels: 4}, batch_norm, relu, conv: {channels: 4}, "
        "batch_norm, relu, flatten]\n";
    for (int zero = 0; zero <= 3; zero += 3)
        check_setting(&(setting){.size = 3,
                                 .lanes = 8,
                                 .zero = zero,
                                 .bucket = "16KB, sync_batchnorm: yes",
                                 .more = "optim: {lr: 0.01}\n",
                                 .model = norms,
                                 .first = 17,
                                 .other = 1,
                                 .images = true});
}

static const check_test tests[] = {
    CHECK_TEST(test_a_lane_without_a_sibling),
    CHECK_TEST(test_uneven_ranks),
    CHECK_TEST(test_uneven_ranks_that_meet),
    CHECK_TEST(test_a_step_on_very_many_ranks),
    CHECK_TEST(test_every_stage),
};
CHECK_MAIN(tests)
