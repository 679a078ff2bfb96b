/*
 * sim_order_test.c: seeded schedules of asynchronous updates on simulated hosts that crash, are cut off from each other,
 * stop and lose messages.
 *
 * Every rank is a host of a simulated world, with a separate store and team. A schedule trains a small model by rounds of
 * updates in order. When faults end a world, the ranks that are left start another one from the latest state that one of
 * them has, as a recovery does, with other faults. The reference is one process that makes the same updates one by one.
 *
 * In every schedule: the state of each rank that ends is exactly the reference after some number of updates, so none was
 * made in part, or twice; no rank that is left is behind a step that returned on any rank, so no acknowledged update is
 * lost as long as one rank is left; and the last world ends with the reference after all updates.
 *
 * A seed that fails is printed: --seed N repeats it. --count N and --from N set the number of seeds and the first one.
 * Each batch of schedules runs in a separate process, because a crashed rank never frees its memory.
 */
#include "base/base.h"
#include "check.h"
#include "optim/optim.h"
#include "parallel/parallel.h"
#include "parallel/params.h"
#include "parallel/replicas.h"
#include "sim/simulator.h"

#include <tandem/job.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SCHEDULES = 60 };
#else
enum { SCHEDULES = 2000 };
#endif
enum { UPDATES = 24, WORKERS = 4, BATCH = 4, FEATURES = 6, CLASSES = 3, MAX_PARAMS = 16 };
enum {
    MAX_FAULTS = 3,
    MAX_WORLDS = 12,
    BLOCKS = 3 + WORKERS,
    PER_PROCESS = 100,
    STACK_BYTES = 512 << 10
};

/* Parameters, states of the optimiser, and the models that the workers have read, after each number of updates. */
static float *reference[UPDATES + 1];
static size_t extent; /* elements of a block */

static const tdm_job *job;
static bool mutates; /* to show that a lost update is found */

typedef struct world {
    uint64_t from;    /* updates in the state at the beginning */
    uint64_t reached; /* the latest state of a rank that ended */
    uint64_t acknowledged;
    int ended, bad;
    char message[256];
} world;

typedef struct member {
    world *world;
    tdm_comm *comm;
    tdm_model_options model;
    tdm_graph *graph;
    tdm_optimiser *optimiser;
    tdm_params *store;
    tdm_team *team;
    tdm_order *order;
    tdm_order_entry entries[TDM_ORDER_MAX_WORKERS];
    uint64_t step, batch;
} member;

/* ---- a rank ------------------------------------------------------------------------------------- */

static void fill(void *user, int64_t first, int64_t count, void *x, int32_t *classes)
{
    const member *m = user;
    for (int64_t i = 0; i < count; i++) {
        tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 99,
                                                   .stream = TDM_RNG_STREAM_USER,
                                                   .step = m->batch,
                                                   .sample = (uint64_t)(first + i)});
        classes[i] = (int32_t)tdm_rng_below(&rng, CLASSES);
        for (int k = 0; k < FEATURES; k++)
            ((float *)x)[i * FEATURES + k] = tdm_rng_uniform(&rng) +
                                             (k == classes[i] ? 1.0f : 0.0f);
    }
}

static void begin_update(void *user, int64_t index, tdm_inner_step *out)
{
    member *m = user;
    m->batch = m->entries[index].batch;
    *out = (tdm_inner_step){.step = m->batch, .batch = BATCH, .lr = 0.05};
}

static int block_of(int index)
{
    return index == 0  ? TDM_BLOCK_PARAMS
           : index < 3 ? TDM_BLOCK_STATE + index - 1
                       : TDM_BLOCK_REPLICA + index - 3;
}

static tdm_status member_open(member *m, tdm_error *err)
{
    tdm_optim_param params[MAX_PARAMS];
    size_t count = 0;
    m->model = (tdm_model_options){
        .job = job, .sample_shape = tdm_shape_1(FEATURES), .class_count = CLASSES, .batch = 1};
    TDM_TRY(tdm_model_build(&m->model, &m->graph, err));
    for (size_t i = 0; i < tdm_graph_param_count(m->graph) && count < MAX_PARAMS; i++) {
        const tdm_param_info *p = tdm_graph_param_at(m->graph, i);
        if (p->trained) params[count++] = (tdm_optim_param){p->name, p->offset, p->elements};
    }
    TDM_TRY(tdm_optimiser_create(job, params, count, &m->optimiser, err));
    TDM_TRY(tdm_order_create(job, &m->order, err));
    tdm_params_options place = {.graph = m->graph,
                                .optimiser = m->optimiser,
                                .comm = m->comm,
                                .replica_count = WORKERS,
                                .replica_arrays = 1,
                                .is_ordered = true};
    TDM_TRY(tdm_params_create(&place, &m->store, err));
    extent = tdm_graph_param_extent(m->graph);
    bool is_first = !m->comm || tdm_comm_rank(m->comm) == 0;
    const float *from = reference[m->world->from];
    for (int b = 0; b < BLOCKS; b++)
        TDM_TRY(tdm_params_write(m->store, block_of(b), 0, extent,
                                 is_first ? from + (size_t)b * extent : NULL, err));
    TDM_TRY(tdm_params_settle(m->store, err));
    tdm_team_options options = {.model = m->model,
                                .store = m->store,
                                .optimiser = m->optimiser,
                                .comm = m->comm,
                                .lane_count = 2,
                                .batches = {BATCH},
                                .seed = 5,
                                .fill = fill,
                                .user = m};
    return tdm_team_create(&options, &m->team, err);
}

static void member_close(member *m)
{
    tdm_team_destroy(m->team);
    tdm_params_destroy(m->store);
    tdm_optimiser_destroy(m->optimiser);
    tdm_graph_destroy(m->graph);
    tdm_order_destroy(m->order);
}

/* One round of at most `max` updates. */
static tdm_status member_step(member *m, uint64_t max, tdm_error *err)
{
    uint64_t count = tdm_order_round(m->order, m->step, max);
    for (uint64_t i = 0; i < count; i++) m->entries[i] = tdm_order_at(m->order, m->step + i);
    tdm_step_input in = {.step = m->step,
                         .batch = BATCH,
                         .lr = 0.05,
                         .inner_count = (int64_t)count,
                         .inner = begin_update,
                         .user = m,
                         .order = m->entries};
    tdm_step_result result;
    TDM_TRY(tdm_team_step(m->team, &in, &result, err));
    m->step += count;
    if (m->step > m->world->acknowledged) m->world->acknowledged = m->step;
    return TDM_OK;
}

/* Whether this rank has the state after `step` updates. The models of workers may be in the version that a recovery would
 * choose. */
static bool member_has(const member *m, uint64_t step)
{
    const tdm__replicas *replicas = tdm__params_replicas(m->store);
    const float *want = reference[step];
    size_t trained = tdm_graph_grad_extent(m->graph) * sizeof(float);
    for (int b = 0; b < 3; b++)
        if (memcmp(tdm_params_block(m->store, block_of(b)), want + (size_t)b * extent, trained) !=
            0)
            return false;
    for (int w = 0; w < WORKERS; w++) {
        const float *model = want + (size_t)(3 + w) * extent;
        if (memcmp(tdm__replica_array(replicas, w, 0, 0), model, trained) != 0 &&
            memcmp(tdm__replica_array(replicas, w, 1, 0), model, trained) != 0)
            return false;
    }
    return true;
}

static void run_rank(tdm_comm *comm, void *user)
{
    world *w = user;
    member m = {.world = w, .comm = comm, .step = w->from};
    tdm_error err = {0};
    tdm_status status = member_open(&m, &err);
    bool is_set = status == TDM_OK;
    while (status == TDM_OK && m.step < UPDATES) status = member_step(&m, UPDATES - m.step, &err);
    if (status != TDM_OK && tdm_status_group_of(status) != TDM_STATUS_GROUP_PEER && !w->message[0])
        snprintf(w->message, sizeof(w->message), "rank %d: %.200s", comm ? tdm_comm_rank(comm) : 0,
                 err.message);
    uint64_t has = UPDATES + 1;
    for (uint64_t k = w->from; k <= UPDATES && is_set && has > UPDATES; k++)
        if (member_has(&m, k)) has = k;
    if (is_set) {
        w->ended++;
        w->bad += has > UPDATES || has < m.step;
        if (has <= UPDATES && has > w->reached) w->reached = has;
    }
    member_close(&m);
}

/* ---- the reference ------------------------------------------------------------------------------- */

static void reference_keep(const member *m, uint64_t step)
{
    reference[step] = calloc((size_t)BLOCKS * extent, sizeof(float));
    REQUIRE(reference[step] != NULL);
    for (int b = 0; b < BLOCKS; b++)
        memcpy(reference[step] + (size_t)b * extent, tdm_params_block(m->store, block_of(b)),
               extent * sizeof(float));
}

static void reference_make(void)
{
    static float first[BLOCKS * 4096];
    tdm_graph *graph = NULL;
    tdm_model_options model = {
        .job = job, .sample_shape = tdm_shape_1(FEATURES), .class_count = CLASSES, .batch = 1};
    CHECK_INT(tdm_model_build(&model, &graph, NULL), TDM_OK);
    extent = tdm_graph_param_extent(graph);
    REQUIRE(extent <= 4096);
    tdm_model_init(graph, 3, first);
    for (int w = 0; w < WORKERS; w++)
        memcpy(first + (size_t)(3 + w) * extent, first, extent * sizeof(float));
    tdm_graph_destroy(graph);
    world w = {.from = 0};
    member m = {.world = &w};
    tdm_error err = {0};
    reference[0] = first;
    CHECK_INT(member_open(&m, &err), TDM_OK);
    for (uint64_t step = 1; step <= UPDATES && err.status == TDM_OK; step++) {
        CHECK_INT(member_step(&m, 1, &err), TDM_OK); /* one by one */
        reference_keep(&m, step);
        CHECK(memcmp(reference[step], reference[step - 1], extent * sizeof(float)) != 0);
    }
    CHECK_TEXT(err.message, "");
    member_close(&m);
}

/* ---- schedules ----------------------------------------------------------------------------------- */

static double draw_real(tdm_rng *rng)
{
    return (double)tdm_rng_uniform(rng);
}

static void fault_draw(tdm_rng *rng, int size, tdm_sim_fault *out)
{
    int exponent = -(int)tdm_rng_below(rng, 12);
    *out = (tdm_sim_fault){
        .kind = (tdm_sim_fault_kind)(TDM_SIM_CRASH + (int)tdm_rng_below(rng, TDM_SIM_VANISH)),
        .rank = (int)tdm_rng_below(rng, (uint32_t)size),
        .other = (int)tdm_rng_below(rng, (uint32_t)size),
        .at_s = ldexp(0.008 * draw_real(rng), exponent / 4), /* a world takes some milliseconds */
        .factor = 1 + 20 * draw_real(rng)};
    if (tdm_rng_below(rng, 4) != 0) out->until_s = out->at_s + ldexp(4 * draw_real(rng), exponent);
    if (out->kind == TDM_SIM_DELAY) out->factor = 0.01 * draw_real(rng);
}

/* Runs a world of `size` ranks; false: a check failed. */
static bool world_run(tdm_rng *rng, int size, bool last, world *w, tdm_sim_result *result)
{
    tdm_sim_fault faults[MAX_FAULTS];
    tdm_error err = {0};
    tdm_sim_options options = {.seed = tdm_rng_u64(rng),
                               .size = size,
                               .jitter_s = 1e-4 * draw_real(rng),
                               .loss = tdm_rng_below(rng, 2) * 0.02,
                               .resend_s = 0.003,
                               .deadline_s = 2,
                               .stack_bytes = STACK_BYTES,
                               .faults = faults,
                               .fault_count = last ? 0 : 1 + (int)tdm_rng_below(rng, MAX_FAULTS)};
    for (int i = 0; i < options.fault_count; i++) fault_draw(rng, size, &faults[i]);
    if (tdm_sim_run(&options, run_rank, w, result, &err) != TDM_OK) {
        snprintf(w->message, sizeof(w->message), "%.250s", err.message);
        return false;
    }
    return w->message[0] == '\0' && w->bad == 0 && result->hung_count == 0;
}

typedef struct tally {
    uint64_t schedules, failed, worlds, crashes, resumed, lost;
} tally;

static bool schedule_run(uint64_t seed, tally *t)
{
    tdm_rng rng = tdm_rng_at(
        (tdm_rng_address){.seed = seed, .stream = TDM_RNG_STREAM_USER, .sub_stream = 7});
    uint64_t state = 0;
    int size = 2 + (int)tdm_rng_below(&rng, WORKERS - 1);
    for (int i = 0; state < UPDATES && i < MAX_WORLDS; i++) {
        world w = {.from = state, .reached = state, .acknowledged = state};
        tdm_sim_result result = {0};
        bool good = world_run(&rng, size, i + 1 == MAX_WORLDS, &w, &result);
        /* One rank that is left has every update that a step returned on any rank. */
        good = good && (w.ended == 0 || w.reached >= w.acknowledged);
        t->worlds++;
        t->crashes += (uint64_t)result.crashed_count;
        if (!good) {
            printf("seed %llu, world %d of %d ranks from update %llu: reached %llu, acknowledged "
                   "%llu, %d bad states, %d hung; %s\n",
                   (unsigned long long)seed, i, size, (unsigned long long)state,
                   (unsigned long long)w.reached, (unsigned long long)w.acknowledged, w.bad,
                   result.hung_count, w.message);
            return false;
        }
        t->resumed += w.ended > 0 && w.reached > state && w.reached < UPDATES;
        t->lost += w.ended == 0 && w.acknowledged > 0;
        state = w.ended > 0 ? w.reached : 0; /* without any rank: from the beginning */
        if (mutates && state > 1 && state < UPDATES) state--;
        if (mutates && state < w.acknowledged) return false;
        size = 1 + (int)tdm_rng_below(&rng, WORKERS);
    }
    return state == UPDATES;
}

/* In a separate process, which sends the tally. */
static tally batch_run(uint64_t from, uint64_t count)
{
    tally t = {0};
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        for (uint64_t seed = from; seed < from + count && t.failed < 10; seed++) {
            t.schedules++;
            t.failed += !schedule_run(seed, &t);
        }
        fflush(NULL);
        _exit(write(ends[1], &t, sizeof(t)) == (ssize_t)sizeof(t) ? 0 : 1);
    }
    close(ends[1]);
    CHECK_INT(read(ends[0], &t, sizeof(t)), sizeof(t));
    close(ends[0]);
    int how = 0;
    waitpid(pid, &how, 0);
    CHECK_INT(how, 0);
    return t;
}

static tally schedules_run(uint64_t from, uint64_t count)
{
    tally all = {0};
    for (uint64_t done = 0; done < count && all.failed == 0; done += PER_PROCESS) {
        uint64_t left = count - done;
        tally t = batch_run(from + done, left < PER_PROCESS ? left : PER_PROCESS);
        all.schedules += t.schedules;
        all.failed += t.failed;
        all.worlds += t.worlds;
        all.crashes += t.crashes;
        all.resumed += t.resumed;
        all.lost += t.lost;
    }
    return all;
}

int main(int argc, char **argv)
{
    static const char text[] =
        "seed: 5\ndata: {train: t}\nmodel: {kind: mlp, hidden: [8], dropout: 0.1}\n"
        "compute: {backend: ref}\ntrain: {batch: 4}\nparallel: {lanes: 2}\n"
        "optim: {kind: adamw, clip_norm: 1}\n"
        "sync: {kind: server, mode: async, replicas: 4, compensation: 0.04, jitter: 0.5}\n";
    uint64_t from = 1, count = SCHEDULES;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "0";
        if (strcmp(argv[i], "--seed") == 0) {
            from = strtoull(value, NULL, 10);
            count = 1;
        } else if (strcmp(argv[i], "--from") == 0) {
            from = strtoull(value, NULL, 10);
        } else if (strcmp(argv[i], "--count") == 0) {
            count = strtoull(value, NULL, 10);
        }
    }
    tdm_job_document *document = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_job_parse(text, strlen(text), "job", NULL,
                                      &(tdm_job_options){.no_file_checks = true}, &document, &err);
    if (status != TDM_OK || !tdm_job_document_job(document)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    job = tdm_job_document_job(document);
    reference_make();
    tally t = schedules_run(from, count);
    printf(
        "%llu schedules, %llu worlds, %llu crashes; %llu worlds left a state for the next one, %llu "
        "left none; %llu schedules failed\n",
        (unsigned long long)t.schedules, (unsigned long long)t.worlds,
        (unsigned long long)t.crashes, (unsigned long long)t.resumed, (unsigned long long)t.lost,
        (unsigned long long)t.failed);
    CHECK_INT(t.failed, 0);
    if (count >= 50) { /* the set must cover all cases */
        CHECK(t.crashes > count / 10);
        CHECK(t.resumed > count / 10);
        mutates = true; /* a recovery that goes one update too far back is found */
        CHECK(schedules_run(from, 50).failed > 0);
    }
    for (uint64_t k = 1; k <= UPDATES; k++) free(reference[k]);
    tdm_job_document_destroy(document);
    printf("%d checks, %d failed\n", check_count, check_failures);
    return check_failures > 0;
}
