/*
 * state.c: the state that training changes: its tensors, their names and their location.
 *
 * A parameter store (parallel.h) holds the parameters (followed by statistics and buffers), each of the
 * optimiser's states and the average of the weights, all in the layout of the graph, sharded over the
 * ranks as the job says. Names in checkpoints: a parameter has its own, a state of it is
 * "optim.STATE.PARAMETER", its average "ema.PARAMETER". Progress of the metrics is stored in small tensors of
 * doubles, "schedule.plateau" and "train.early_stop"; skipped steps are counted in
 * "train.bad_numbers". With logical replicas (sync.kind: local), the states of the outer optimiser are
 * "outer.STATE.PARAMETER", those of replica R "replica.R.optim.STATE.PARAMETER", "replica.R.residual.PARAMETER" and "replica.R.velocity.PARAMETER", the models that
 * they have read (sync.kind: server), or train by themselves (gossip), "replica.R.model.PARAMETER", and the rounds are
 * counted in "sync.rounds". Every rank has these small tensors, with the same values, as the push-sum weights of gossip,
 * "sync.weights". The factors of PowerSGD, of which each replica has the same copy, are saved once, as
 * "compress.factor". (state_io.c initialises, restores and saves the state.)
 */
#include "base/base.h"
#include "job/job.h"
#include "train/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PLATEAU_NUMBERS = sizeof(tdm_plateau) / sizeof(double) };
enum { SKIPS_NUMBERS = sizeof(tdm__skips) / sizeof(double) };

/* ---- names ----------------------------------------------------------------------------------- */

static tdm_status state_add_item(tdm__state *s, const char *name, tdm_tensor view, int block,
                                 size_t param, tdm_error *err)
{
    if (!name) return tdm_fail_oom(err, "in training");
    tdm__state_item *item = &s->items[s->tensor_count++];
    *item = (tdm__state_item){.named = {name, view}, .block = block, .param = param};
    if (block < 0) return TDM_OK; /* not in the parameter store */
    item->first = tdm_graph_param_at(s->graph, param)->offset;
    item->elements = tdm_graph_param_at(s->graph, param)->elements;
    return TDM_OK;
}

/* The factors of PowerSGD, from the first replica. */
static void state_add_factor(tdm__state *s)
{
    const tdm_tensor view = {.dtype = TDM_DTYPE_F32,
                             .shape = tdm_shape_1((int64_t)s->factor_elements)};
    s->items[s->tensor_count++] = (tdm__state_item){.named = {TDM__FACTOR_NAME, view},
                                                    .block = tdm__state_residual(s, 0),
                                                    .param = SIZE_MAX,
                                                    .first = tdm_graph_param_extent(s->graph),
                                                    .elements = s->factor_elements};
}

/* The tensors of a parameter in the arrays of the replicas. */
static tdm_status state_add_replicas(tdm__state *s, size_t index, const tdm_tensor *view,
                                     tdm_error *err)
{
    const tdm_param_info *p = tdm_graph_param_at(s->graph, index);
    for (int64_t r = 0; r < s->replica_count; r++) {
        int array = 0, block = TDM_BLOCK_REPLICA + (int)r * s->replica_arrays;
        if (s->is_ordered || s->is_gossip) {
            const char *name = tdm_arena_printf(s->arena, "replica.%lld.model.%s", (long long)r,
                                                p->name);
            TDM_TRY(state_add_item(s, name, *view, block + array++, index, err));
        }
        for (int k = 0; k < TDM_OPTIM_MAX_STATES && s->inner && p->trained; k++) {
            if (!tdm_optimiser_uses_state(s->inner, k)) continue;
            const char *name = tdm_arena_printf(s->arena, "replica.%lld.optim.%s.%s", (long long)r,
                                                tdm_optimiser_ops(s->inner)->state_names[k],
                                                p->name);
            TDM_TRY(state_add_item(s, name, *view, block + array++, index, err));
        }
        for (int k = 0; k < s->compress_arrays; k++) {
            const char *name = tdm_arena_printf(s->arena, "replica.%lld.%s.%s", (long long)r,
                                                s->compress_names[k], p->name);
            TDM_TRY(state_add_item(s, name, *view, block + array++, index, err));
        }
    }
    return TDM_OK;
}

static tdm_status state_add_param(tdm__state *s, size_t index, bool has_ema, tdm_error *err)
{
    const tdm_param_info *p = tdm_graph_param_at(s->graph, index);
    const tdm_tensor view = {.dtype = TDM_DTYPE_F32, .shape = p->shape};
    TDM_TRY(state_add_item(s, p->name, view, TDM_BLOCK_PARAMS, index, err));
    bool changes = p->offset < tdm_graph_grad_extent(s->graph); /* a parameter or a statistic */
    if (s->optimiser && s->is_gossip && !p->trained && changes)
        return state_add_replicas(s, index, &view, err);
    if (!p->trained || !s->optimiser) return TDM_OK;
    for (int k = 0; k < TDM_OPTIM_MAX_STATES; k++) {
        if (!tdm_optimiser_uses_state(s->optimiser, k)) continue;
        const char *state = tdm_optimiser_ops(s->optimiser)->state_names[k];
        const char *name = tdm_arena_printf(s->arena, "%s.%s.%s", s->inner ? "outer" : "optim",
                                            state, p->name);
        TDM_TRY(state_add_item(s, name, view, TDM_BLOCK_STATE + k, index, err));
    }
    TDM_TRY(state_add_replicas(s, index, &view, err));
    if (!has_ema) return TDM_OK;
    const char *name = tdm_arena_printf(s->arena, "ema.%s", p->name);
    return state_add_item(s, name, view, TDM_BLOCK_EMA, index, err);
}

static tdm_status state_add_small(tdm__state *s, const char *name, int64_t numbers, void *data,
                                  tdm_error *err)
{
    tdm_tensor view = {.dtype = TDM_DTYPE_F64, .shape = tdm_shape_1(numbers), .data = data};
    return state_add_item(s, name, view, TDM__BLOCK_NONE, 0, err);
}

/* The tensors of the sparse table, without rows: tdm__state_sort_table sets their shapes. */
static tdm_status state_add_table(tdm__state *s, const tdm_job *job, tdm_error *err)
{
    tdm_sparse_part parts[TDM_SPARSE_MAX_PARTS];
    tdm_sparse *sparse = NULL;
    if (!tdm_job_takes_sparse(job)) return TDM_OK;
    TDM_TRY(tdm_sparse_create(job, NULL, &sparse, err));
    int count = tdm_sparse_parts_of(sparse, parts);
    tdm_sparse_destroy(sparse);
    for (int i = 0; i < count; i++)
        TDM_TRY(state_add_item(s, parts[i].name, parts[i].view, TDM__BLOCK_TABLE, (size_t)i, err));
    return TDM_OK;
}

static int compare_items(const void *a, const void *b)
{
    const tdm__state_item *x = a, *y = b;
    return strcmp(x->named.name, y->named.name);
}

static tdm_status state_add_items(tdm__state *s, const tdm_job *job, bool has_ema, tdm_error *err)
{
    size_t params = tdm_graph_param_count(s->graph);
    size_t replica_arrays = (size_t)s->replica_count * (size_t)s->replica_arrays;
    size_t max = params * (2 + TDM_OPTIM_MAX_STATES + replica_arrays) + 8 + TDM_SPARSE_MAX_PARTS;
    s->items = tdm_arena_array(s->arena, max, sizeof(*s->items));
    s->tensors = tdm_arena_array(s->arena, max, sizeof(*s->tensors));
    if (!s->items || !s->tensors) return tdm_fail_oom(err, "in training");
    for (size_t i = 0; i < params; i++) TDM_TRY(state_add_param(s, i, has_ema, err));
    if (s->optimiser && job->schedule.kind == TDM_JOB_SCHEDULE_REDUCE_ON_PLATEAU)
        TDM_TRY(state_add_small(s, TDM__PLATEAU_NAME, PLATEAU_NUMBERS, &s->plateau, err));
    if (s->optimiser && job->train.early_stop)
        TDM_TRY(state_add_small(s, TDM__EARLY_STOP_NAME, PLATEAU_NUMBERS, &s->early_stop, err));
    if (s->optimiser && job->train.bad_numbers == TDM_JOB_BAD_NUMBERS_SKIP)
        TDM_TRY(state_add_small(s, TDM__SKIPS_NAME, SKIPS_NUMBERS, &s->skips, err));
    if (s->inner) TDM_TRY(state_add_small(s, TDM__ROUNDS_NAME, 1, &s->rounds, err));
    if (s->inner && tdm_job_adapts_to_divergence(job))
        TDM_TRY(state_add_small(s, TDM__PERIOD_NAME, 1, &s->period, err));
    if (s->weights)
        TDM_TRY(state_add_small(s, TDM__WEIGHTS_NAME, s->replica_count, s->weights, err));
    if (s->optimiser && job->compress.automatic)
        TDM_TRY(state_add_small(s, TDM__CHOICE_NAME, 1, &s->choice, err));
    if (s->factor_elements > 0) state_add_factor(s);
    TDM_TRY(state_add_table(s, job, err));
    qsort(s->items, s->tensor_count, sizeof(*s->items), compare_items);
    for (size_t i = 0; i < s->tensor_count; i++) s->tensors[i] = s->items[i].named;
    return TDM_OK;
}

/* ---- creation and destruction ----------------------------------------------------------------- */

#define NO_BOUND 1e300

/* The settings of the outer optimiser, as those of a job's optimiser. */
static void outer_job(tdm_job *job)
{
    bool averages = tdm_job_is_gossip(job) || job->sync.outer == TDM_JOB_OUTER_AVERAGE;
    memset(&job->optim, 0, sizeof(job->optim));
    job->optim.kind = TDM_JOB_OPTIM_SGD;
    job->optim.lr = averages ? 1 : job->sync.outer_lr;
    job->optim.momentum = averages ? 0 : job->sync.outer_momentum;
    /* Its norm is measured, but not bounded. */
    job->optim.clip_norm = tdm_job_adapts_to_divergence(job) ? NO_BOUND : 0;
    job->optim.nesterov = job->sync.outer == TDM_JOB_OUTER_NESTEROV && job->optim.momentum > 0;
}

static tdm_status state_make_optimiser(tdm__state *s, const tdm_job *job, tdm_error *err)
{
    size_t count = tdm_graph_param_count(s->graph), trained = 0;
    tdm_optim_param *params = tdm_arena_array(s->arena, count + 1, sizeof(*params));
    if (!params) return tdm_fail_oom(err, "in training");
    for (size_t i = 0; i < count; i++) {
        const tdm_param_info *p = tdm_graph_param_at(s->graph, i);
        if (p->trained)
            params[trained++] = (tdm_optim_param){
                .name = p->name, .offset = p->offset, .elements = p->elements};
    }
    if (!tdm_job_trains_apart(job))
        return tdm_optimiser_create(job, params, trained, &s->optimiser, err);
    TDM_TRY(tdm_optimiser_create(job, params, trained, &s->inner, err));
    tdm_job outer = *job;
    outer_job(&outer);
    return tdm_optimiser_create(&outer, params, trained, &s->optimiser, err);
}

/* Counts what each replica keeps. */
static tdm_status state_count_replicas(tdm__state *s, const tdm_job *job, tdm_error *err)
{
    tdm_compress_sizes sizes;
    TDM_TRY(tdm_compress_sizes_of(job, s->graph, &sizes, err));
    s->factor_elements = sizes.second_factor;
    s->replica_count = tdm_replicas_of(job);
    s->is_ordered = tdm_job_is_async(job);
    s->is_gossip = tdm_job_is_gossip(job);
    s->replica_arrays = s->is_ordered || s->is_gossip;
    for (int k = 0; k < TDM_OPTIM_MAX_STATES && s->inner; k++)
        s->replica_arrays += tdm_optimiser_uses_state(s->inner, k);
    s->compress_arrays = tdm_compress_arrays(job, s->compress_names);
    s->replica_arrays += s->compress_arrays;
    if (!s->is_gossip) return TDM_OK;
    s->weights = tdm_arena_array(s->arena, (size_t)s->replica_count, sizeof(*s->weights));
    return s->weights ? TDM_OK : tdm_fail_oom(err, "in training");
}

/* The part that each rank executes alone. */
static tdm_status state_prepare(tdm__state *s, const tdm_model_options *model, tdm__state_use use,
                                tdm_error *err)
{
    tdm_model_options one_row = *model;
    one_row.batch = 1;
    one_row.training = false;
    s->arena = tdm_arena_create("training state");
    if (!s->arena) return tdm_fail_oom(err, "for the state");
    TDM_TRY(tdm_model_build(&one_row, &s->graph, err));
    if (use == TDM__STATE_FOR_TRAINING) {
        TDM_TRY(state_make_optimiser(s, model->job, err));
        TDM_TRY(state_count_replicas(s, model->job, err));
    }
    s->has_ema = s->optimiser && model->job->optim.ema > 0;
    TDM_TRY(state_add_items(s, model->job, s->has_ema, err));
    size_t statistics = tdm_graph_grad_extent(s->graph) - tdm_graph_trained_extent(s->graph);
    if (!s->has_ema || statistics == 0) return TDM_OK;
    s->statistics = tdm_arena_array(s->arena, statistics, sizeof(float));
    return s->statistics ? TDM_OK : tdm_fail_oom(err, "in training");
}

/* Measured once: members of later epochs get the value from the others. */
static tdm_status state_choose_bucket(tdm__state *s, const tdm_job *job, tdm_error *err)
{
    int64_t known = job->parallel.bucket > 0 ? job->parallel.bucket : (int64_t)s->bucket;
    if (tdm__size_of(s->comm) > 1)
        TDM_TRY(tdm_group_all_reduce(tdm_comm_world(s->comm), NULL, &known, 1, TDM_DTYPE_I64,
                                     TDM_REDUCE_MAX, err));
    s->bucket = (size_t)known;
    if (known > 0) return TDM_OK;
    return tdm_bucket_choose(s->comm, tdm_graph_grad_extent(s->graph) * sizeof(float), &s->bucket,
                             err);
}

/* With elastic.mirror every host keeps the complete state, as with parallel.zero: 0. */
static bool state_is_mirrored(const tdm__state *s, const tdm_job *job)
{
    tdm_comm_info info = {.host_count = 1};
    if (s->comm) tdm_comm_info_get(s->comm, &info);
    return job->elastic.mirror && info.host_count > 1;
}

/* Undo records per slot: the threads of any process that may use it. */
static int undo_records(const tdm_job *job)
{
    if (job->compute.threads > 0) return (int)job->compute.threads;
    long configured = sysconf(_SC_NPROCESSORS_CONF);
    return configured > 0 && configured <= TDM_MAX_THREADS ? (int)configured : TDM_MAX_THREADS;
}

tdm_status tdm__state_enter(tdm__state *s, const tdm_job *job, tdm_comm *comm,
                            const tdm__home *home, tdm_error *err)
{
    s->comm = comm;
    TDM_TRY(state_choose_bucket(s, job, err));
    tdm_params_options options = {.graph = s->graph,
                                  .optimiser = s->optimiser,
                                  .has_ema = s->has_ema,
                                  .comm = s->comm,
                                  .zero = state_is_mirrored(s, job) ? 0 : (int)job->parallel.zero,
                                  .offload = s->optimiser ? job->parallel.offload : NULL,
                                  .bucket_bytes = s->bucket,
                                  .shm = home ? home->shm : NULL,
                                  .slot = home ? home->slot : 0,
                                  .epoch = home ? home->epoch : 0,
                                  .thread_count = undo_records(job),
                                  .replica_count = s->replica_count,
                                  .replica_arrays = s->replica_arrays,
                                  .replica_tail = s->is_gossip ? 1 : s->factor_elements,
                                  .takes_statistics = s->inner != NULL,
                                  .is_ordered = s->is_ordered,
                                  .is_gossip = s->is_gossip};
    TDM_TRY(tdm_params_create(&options, &s->store, err));
    s->params = tdm_params_block(s->store, TDM_BLOCK_PARAMS);
    if (!tdm_job_takes_sparse(job)) return TDM_OK;
    tdm_status status = tdm_sparse_create(job, comm, &s->sparse, err);
    return tdm_comm_agree(comm, status, NULL, err);
}

void tdm__state_leave(tdm__state *s)
{
    tdm_sparse_destroy(s->sparse);
    tdm_params_destroy(s->store);
    s->sparse = NULL;
    s->store = NULL;
    s->params = NULL;
    s->comm = NULL;
}

tdm_status tdm__state_prepare(const tdm_model_options *model, tdm__state_use use, tdm__state *out,
                              tdm_error *err)
{
    *out = (tdm__state){0};
    return state_prepare(out, model, use, err);
}

tdm_status tdm__state_init(const tdm_model_options *model, tdm__state_use use, tdm_comm *comm,
                           tdm__state *out, tdm_error *err)
{
    tdm_error local;
    if (!err) err = &local;
    tdm_status status = tdm__state_prepare(model, use, out, err);
    status = tdm_comm_agree(comm, status, NULL, err);
    if (status == TDM_OK) status = tdm__state_enter(out, model->job, comm, NULL, err);
    if (status != TDM_OK) tdm__state_release(out);
    return status;
}

void tdm__state_release(tdm__state *state)
{
    tdm_sparse_destroy(state->sparse);
    tdm_params_destroy(state->store);
    tdm_optimiser_destroy(state->optimiser);
    tdm_optimiser_destroy(state->inner);
    tdm_graph_destroy(state->graph);
    tdm_arena_destroy(state->arena);
    *state = (tdm__state){0};
}

/* ---- averages -------------------------------------------------------------------------------- */

bool tdm__job_averages(const tdm_job *job)
{
    return job->optim.ema > 0 && job->eval.weights != TDM_JOB_WEIGHTS_RAW;
}

int tdm__state_measured(const tdm__state *state, const tdm_job *job)
{
    return state->has_ema && tdm__job_averages(job) ? TDM_BLOCK_EMA : TDM_BLOCK_PARAMS;
}

tdm_status tdm__state_measure(tdm__state *state, const tdm_job *job, tdm_error *err)
{
    size_t first = tdm_graph_trained_extent(state->graph);
    size_t count = tdm_graph_grad_extent(state->graph) - first;
    if (tdm__state_measured(state, job) != TDM_BLOCK_EMA || count == 0) return TDM_OK;
    TDM_TRY(tdm_params_read(state->store, TDM_BLOCK_PARAMS, first, count, state->statistics, err));
    TDM_TRY(tdm_params_write(state->store, TDM_BLOCK_EMA, first, count, state->statistics, err));
    return tdm_params_settle(state->store, err);
}

/* ---- non-finite values ----------------------------------------------------------------------- */

int tdm__state_blocks(const tdm__state *state)
{
    return TDM_BLOCK_REPLICA + (int)state->replica_count * state->replica_arrays;
}

int tdm__state_residual(const tdm__state *state, int64_t replica)
{
    return TDM_BLOCK_REPLICA + (int)(replica + 1) * state->replica_arrays - state->compress_arrays;
}

/* The name of the tensor that contains an element of a block. */
static const char *state_name_at(const tdm__state *s, int block, size_t element)
{
    if (element >= tdm_graph_param_extent(s->graph))
        return s->is_gossip ? TDM__WEIGHTS_NAME : TDM__FACTOR_NAME;
    for (size_t i = 0; i < tdm_graph_param_count(s->graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(s->graph, i);
        if (element < p->offset || element - p->offset >= p->elements) continue;
        for (size_t k = 0; k < s->tensor_count; k++)
            if (s->items[k].block == block && s->items[k].param == i) return s->tensors[k].name;
        return p->name; /* a statistic beside the average */
    }
    return "a gap between parameters";
}

tdm_status tdm__state_find_bad(tdm__state *state, const char **out, tdm_error *err)
{
    *out = NULL;
    for (int block = 0; block < tdm__state_blocks(state); block++) {
        size_t element;
        if (!tdm_params_block(state->store, block)) continue;
        TDM_TRY(tdm_params_find_bad(state->store, block, &element, err));
        if (element == SIZE_MAX) continue;
        *out = state_name_at(state, block, element);
        return TDM_OK;
    }
    return TDM_OK;
}
