/*
 * state_io.c: initialises, restores and saves the state of a training run.
 *
 * Only rank 0 reads and writes files and computes initial values; the parameter store moves them to their
 * owners and back. They pass through one window of a megabyte on rank 0, so that no
 * rank ever holds more than its share, and no model is in memory twice. A block that is complete on rank
 * 0 is saved directly. The file is the same, byte for byte, however the state was
 * sharded.
 *
 * All ranks execute the same collective calls, whatever happens on rank 0: operations that can fail there are done
 * before the first call, or (disk errors) are recorded until after the last; then all ranks agree on the result.
 */
#include "base/base.h"
#include "data/data.h"
#include "nn/nn.h"
#include "train/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW_ELEMENTS = 1 << 18 };

/* ---- writing to the parameter store ----------------------------------------------------------- */

/* Computes values [first, first + count) of a parameter for a block. */
typedef void (*numbers_fn)(const void *source, int block, size_t param, size_t first, size_t count,
                           float *out);

static size_t min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void fill_window(const tdm__state *s, int block, size_t first, size_t count,
                        numbers_fn numbers, const void *source, float *out)
{
    memset(out, 0, count * sizeof(float));
    for (size_t i = 0; i < tdm_graph_param_count(s->graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(s->graph, i);
        size_t begin = p->offset > first ? p->offset : first;
        size_t end = min(p->offset + p->elements, first + count);
        if (begin < end)
            numbers(source, block, i, begin - p->offset, end - begin, out + (begin - first));
    }
}

/* Writes blocks [first_block, end_block), at a distance of `stride`, from a source, which rank 0 has; other ranks have no window. Collective. */
static tdm_status state_write_blocks(tdm__state *s, int first_block, int end_block, int stride,
                                     numbers_fn numbers, const void *source, float *window,
                                     tdm_error *err)
{
    for (int block = first_block; block < end_block; block += stride) {
        if (!tdm_params_block(s->store, block)) continue;
        size_t elements = block < TDM_BLOCK_STATE     ? tdm_graph_param_extent(s->graph)
                          : block < TDM_BLOCK_REPLICA ? tdm_graph_trained_extent(s->graph)
                                                      : tdm_graph_grad_extent(s->graph);
        for (size_t first = 0; first < elements; first += WINDOW_ELEMENTS) {
            size_t count = min(elements - first, WINDOW_ELEMENTS);
            if (window) fill_window(s, block, first, count, numbers, source, window);
            TDM_TRY(tdm_params_write(s->store, block, first, count, window, err));
        }
    }
    return tdm_params_settle(s->store, err);
}

static tdm_status window_create(float **out, tdm_error *err)
{
    *out = malloc(WINDOW_ELEMENTS * sizeof(float));
    return *out ? TDM_OK : tdm_fail_oom(err, "in training");
}

/* Distributes rank 0's small tensors. Collective. */
static tdm_status state_broadcast_small(tdm__state *s, tdm_error *err)
{
    struct {
        tdm_plateau plateau, early_stop;
        tdm__skips skips;
        double rounds, period, choice;
        uint64_t from_file_count;
    } all = {s->plateau, s->early_stop, s->skips,          s->rounds,
             s->period,  s->choice,     s->from_file_count};
    if (tdm__size_of(s->comm) == 1) return TDM_OK;
    TDM_TRY(tdm_group_broadcast(tdm_comm_world(s->comm), &all, sizeof(all), TDM_DTYPE_U8, 0, err));
    s->plateau = all.plateau;
    s->early_stop = all.early_stop;
    s->skips = all.skips;
    s->rounds = all.rounds;
    s->period = all.period;
    s->choice = all.choice;
    s->from_file_count = (size_t)all.from_file_count;
    if (s->weights)
        return tdm_group_broadcast(tdm_comm_world(s->comm), s->weights, (size_t)s->replica_count,
                                   TDM_DTYPE_F64, 0, err);
    return TDM_OK;
}

/* Writes the push-sum weights, which all ranks have, behind the models of the replicas. Collective. */
static tdm_status state_write_weights(tdm__state *s, tdm_error *err)
{
    for (int64_t r = 0; s->weights && r < s->replica_count; r++) {
        float weight = (float)s->weights[r];
        int block = TDM_BLOCK_REPLICA + (int)r * s->replica_arrays;
        TDM_TRY(tdm_params_write(s->store, block, tdm_graph_param_extent(s->graph), 1,
                                 tdm__rank_of(s->comm) == 0 ? &weight : NULL, err));
    }
    return s->weights ? tdm_params_settle(s->store, err) : TDM_OK;
}

/* ---- tensors from files ---------------------------------------------------------------------- */

/* Checks that a tensor of a file matches one of the state. `misfit` is the status for another shape. */
static tdm_status tensor_check_fits(const tdm_named_tensor *from, const tdm_tensor *to,
                                    const char *file, tdm_status misfit, tdm_error *err)
{
    char have[128], want[128];
    float none[1] = {0};
    if (!tdm_shape_equal(&from->tensor.shape, &to->shape))
        return tdm_fail(err, misfit, "%s: tensor '%s' has shape %s; this model has %s", file,
                        from->name, tdm_shape_text(&from->tensor.shape, have),
                        tdm_shape_text(&to->shape, want));
    if (to->dtype == TDM_DTYPE_F64 && from->tensor.dtype != TDM_DTYPE_F64)
        return tdm_fail(err, TDM_ERR_FORMAT, "%s: tensor '%s' is of type %s; it must be f64", file,
                        from->name, tdm_dtype_name(from->tensor.dtype));
    if (to->dtype == TDM_DTYPE_F32 && !tdm_tensor_to_f32(from->tensor.dtype, none, 0, none))
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "%s: tensor '%s' is of type %s; parameters need a floating type", file,
                        from->name, tdm_dtype_name(from->tensor.dtype));
    return TDM_OK;
}

static void tensor_copy_part(const tdm_tensor *from, size_t first, size_t count, float *out)
{
    const char *at = (const char *)from->data + first * tdm_dtype_bytes(from->dtype);
    tdm_tensor_to_f32(from->dtype, at, (int64_t)count, out);
}

/* ---- initial values -------------------------------------------------------------------------- */

/* Sources of initial values: a file, the data, or the seed. */
typedef struct beginning {
    const tdm__state *state;
    uint64_t seed;
    tdm_safetensors *file;         /* NULL: none */
    const tdm_named_tensor **from; /* the file's tensor for each parameter; NULL: none */
    float *norms[2]; /* for TDM_MODEL_SHIFT and TDM_MODEL_SCALE; NULL: from the seed */
} beginning;

static const char *const norm_names[2] = {TDM_MODEL_SHIFT, TDM_MODEL_SCALE};

static void beginning_numbers(const void *source, int block, size_t param, size_t first,
                              size_t count, float *out)
{
    const beginning *b = source;
    const char *name = tdm_graph_param_at(b->state->graph, param)->name;
    (void)block; /* the average starts with the weights */
    if (b->from[param]) {
        tensor_copy_part(&b->from[param]->tensor, first, count, out);
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (!b->norms[i] || strcmp(name, norm_names[i]) != 0) continue;
        memcpy(out, b->norms[i] + first, count * sizeof(float));
        return;
    }
    tdm_model_init_part(b->state->graph, b->seed, param, first, count, out);
}

static tdm_status beginning_normalise(beginning *b, const tdm_job *job, const tdm_dataset *train,
                                      tdm_error *err)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(train);
    size_t F = (size_t)info->feature_count;
    int how = job->data.normalise;
    if (how == TDM_JOB_NORMALISE_NONE || info->kind != TDM_DATA_KIND_TABLE) return TDM_OK;
    float *scale = calloc(F + 1, sizeof(*scale));
    b->norms[1] = scale;
    if (!scale) return tdm_fail_oom(err, "for the normalisation");
    if (how == TDM_JOB_NORMALISE_SCALE ||
        (how == TDM_JOB_NORMALISE_AUTO && info->storage == TDM_DTYPE_U8)) {
        double largest = info->storage == TDM_DTYPE_U8 ? 255.0 : tdm_dataset_largest(train);
        for (size_t i = 0; i < F; i++) scale[i] = largest > 0 ? (float)(1.0 / largest) : 1.0f;
        return TDM_OK;
    }
    float *shift = calloc(F + 1, sizeof(*shift));
    double *moments = calloc(2 * F + 1, sizeof(*moments));
    b->norms[0] = shift;
    if (shift && moments) tdm_dataset_moments(train, moments, moments + F);
    for (size_t i = 0; shift && moments && i < F; i++) {
        double mean = moments[i], deviation = moments[F + i];
        /* A column that is constant in training has no information: it is disabled. */
        bool varies = deviation > 1e-9 * (fabs(mean) + 1.0);
        shift[i] = (float)mean;
        scale[i] = varies ? (float)(1.0 / deviation) : 0.0f;
    }
    bool done = shift && moments;
    free(moments);
    return done ? TDM_OK : tdm_fail_oom(err, "for the normalisation");
}

static tdm_status beginning_read_file(beginning *b, const char *path, size_t *found, tdm_error *err)
{
    const tdm_graph *graph = b->state->graph;
    TDM_TRY(tdm_safetensors_open(path, &b->file, err));
    *found = 0;
    for (size_t i = 0; i < tdm_graph_param_count(graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(graph, i);
        const tdm_tensor to = {.dtype = TDM_DTYPE_F32, .shape = p->shape};
        b->from[i] = tdm_safetensors_find(b->file, p->name);
        if (!b->from[i]) continue;
        TDM_TRY(tensor_check_fits(b->from[i], &to, path, TDM_ERR_JOB_INVALID, err));
        ++*found;
    }
    if (*found > 0) return TDM_OK;
    return tdm_fail(err, TDM_ERR_JOB_INVALID,
                    "%s: none of its %zu tensors has the name of a parameter of this model (the "
                    "first parameter is '%s'); compare both with 'tandem inspect'",
                    path, tdm_safetensors_count(b->file), tdm_graph_param_at(graph, 0)->name);
}

static tdm_status beginning_prepare(tdm__state *s, const tdm_job *job, const tdm_dataset *train,
                                    beginning *b, float **window, tdm_error *err)
{
    b->from = calloc(tdm_graph_param_count(s->graph) + 1, sizeof(void *));
    if (!b->from) return tdm_fail_oom(err, "in training");
    TDM_TRY(beginning_normalise(b, job, train, err));
    if (job->model.init_from)
        TDM_TRY(beginning_read_file(b, job->model.init_from, &s->from_file_count, err));
    return window_create(window, err);
}

tdm_status tdm__state_begin(tdm__state *state, const tdm_job *job, const tdm_dataset *train,
                            tdm_error *err)
{
    tdm_error local;
    if (!err) err = &local;
    beginning b = {.state = state, .seed = (uint64_t)job->seed};
    float *window = NULL;
    tdm_status status = TDM_OK;
    if (tdm__rank_of(state->comm) == 0)
        status = beginning_prepare(state, job, train, &b, &window, err);
    status = tdm_comm_agree(state->comm, status, NULL, err);
    if (status == TDM_OK)
        status = state_write_blocks(state, TDM_BLOCK_PARAMS, TDM_BLOCK_EMA + 1, 1,
                                    beginning_numbers, &b, window, err);
    for (int64_t r = 0; state->weights && r < state->replica_count; r++) state->weights[r] = 1;
    /* All replicas have read the initial model, or begin with it. */
    if (status == TDM_OK && (state->is_ordered || state->is_gossip))
        status = state_write_blocks(state, TDM_BLOCK_REPLICA, tdm__state_blocks(state),
                                    state->replica_arrays, beginning_numbers, &b, window, err);
    if (status == TDM_OK) status = state_broadcast_small(state, err);
    if (status == TDM_OK) status = state_write_weights(state, err);
    free(window);
    free(b.from);
    free(b.norms[0]);
    free(b.norms[1]);
    tdm_safetensors_destroy(b.file);
    return status;
}

/* ---- restore --------------------------------------------------------------------------------- */

/* The checkpoint's tensor for each parameter of each block; NULL if there is none. */
typedef struct restoring {
    const tdm_named_tensor ***from; /* by block and parameter */
    const tdm_named_tensor *factor; /* NULL: none */
    tdm_tensor table[TDM_SPARSE_MAX_PARTS];
    float *window;
} restoring;

static void restored_numbers(const void *source, int block, size_t param, size_t first,
                             size_t count, float *out)
{
    const restoring *r = source;
    const tdm_named_tensor *from = r->from[block] ? r->from[block][param] : NULL;
    /* Statistics and buffers are in the checkpoint only once. */
    if (!from && block == TDM_BLOCK_EMA) from = r->from[TDM_BLOCK_PARAMS][param];
    if (from) tensor_copy_part(&from->tensor, first, count, out);
}

/* The tensor of a checkpoint from which `name` is restored; NULL: none. */
static const tdm_named_tensor *checkpoint_find_source(const tdm_checkpoint *checkpoint,
                                                      const char *name, bool averaged)
{
    char average[512];
    if (averaged && snprintf(average, sizeof(average), "ema.%s", name) < (int)sizeof(average)) {
        const tdm_named_tensor *found = tdm_checkpoint_find(checkpoint, average);
        if (found) return found; /* buffers have none */
    }
    return tdm_checkpoint_find(checkpoint, name);
}

/* Whether a run may resume from a checkpoint without this tensor: it affects when the run ends, but no
 * values. */
static bool tensor_is_optional(const char *name)
{
    return strcmp(name, TDM__EARLY_STOP_NAME) == 0 || strcmp(name, TDM__SKIPS_NAME) == 0;
}

static tdm_status restoring_prepare(tdm__state *s, const tdm_checkpoint *checkpoint, bool averaged,
                                    restoring *r, tdm_error *err)
{
    int blocks = tdm__state_blocks(s), parts = 0;
    r->from = calloc((size_t)blocks, sizeof(*r->from));
    if (!r->from) return tdm_fail_oom(err, "in training");
    for (int block = 0; block < blocks; block++) {
        r->from[block] = calloc(tdm_graph_param_count(s->graph) + 1, sizeof(void *));
        if (!r->from[block]) return tdm_fail_oom(err, "in training");
    }
    for (size_t i = 0; i < s->tensor_count; i++) {
        const tdm__state_item *item = &s->items[i];
        const tdm_named_tensor *from = checkpoint_find_source(checkpoint, item->named.name,
                                                              averaged);
        if (!from && tensor_is_optional(item->named.name)) continue;
        if (!from)
            return tdm_fail(err, TDM_ERR_JOB_MISMATCH,
                            "the checkpoint has no tensor '%s', which this job's model needs",
                            item->named.name);
        if (item->block == TDM__BLOCK_TABLE) { /* items are sorted by name, as the parts are */
            r->table[parts++] = from->tensor;
            continue;
        }
        TDM_TRY(tensor_check_fits(from, &item->named.tensor, "the checkpoint", TDM_ERR_JOB_MISMATCH,
                                  err));
        if (item->block == TDM__BLOCK_NONE)
            memcpy(item->named.tensor.data, from->tensor.data,
                   tdm_tensor_bytes(&item->named.tensor));
        else if (item->param == SIZE_MAX)
            r->factor = from;
        else
            r->from[item->block][item->param] = from;
    }
    return window_create(&r->window, err);
}

/* Gives all replicas the factors of PowerSGD. Collective. */
static tdm_status state_restore_factor(tdm__state *s, const restoring *r, tdm_error *err)
{
    size_t behind = tdm_graph_param_extent(s->graph);
    for (int64_t replica = 0; replica < s->replica_count; replica++)
        for (size_t first = 0; first < s->factor_elements; first += WINDOW_ELEMENTS) {
            size_t count = min(s->factor_elements - first, WINDOW_ELEMENTS);
            if (r->window) tensor_copy_part(&r->factor->tensor, first, count, r->window);
            TDM_TRY(tdm_params_write(s->store, tdm__state_residual(s, replica), behind + first,
                                     count, r->window, err));
        }
    return tdm_params_settle(s->store, err);
}

tdm_status tdm__state_restore(tdm__state *state, const tdm_checkpoint *checkpoint, bool averaged,
                              tdm_error *err)
{
    tdm_error local;
    if (!err) err = &local;
    restoring r = {.window = NULL};
    tdm_status status = TDM_OK;
    if (tdm__rank_of(state->comm) == 0)
        status = restoring_prepare(state, checkpoint, averaged, &r, err);
    status = tdm_comm_agree(state->comm, status, NULL, err);
    if (status == TDM_OK)
        status = state_write_blocks(state, 0, tdm__state_blocks(state), 1, restored_numbers, &r,
                                    r.window, err);
    if (status == TDM_OK && state->factor_elements > 0)
        status = state_restore_factor(state, &r, err);
    if (status == TDM_OK && state->sparse) status = tdm_sparse_load(state->sparse, r.table, err);
    if (status == TDM_OK) status = state_broadcast_small(state, err);
    if (status == TDM_OK) status = state_write_weights(state, err);
    free(r.window);
    for (int block = 0; r.from && block < tdm__state_blocks(state); block++) free(r.from[block]);
    free(r.from);
    return status;
}

/* ---- save ------------------------------------------------------------------------------------ */

/* Receives the bytes of a state in canonical order, on rank 0. Uses either the writer or the hasher. */
typedef struct sink {
    tdm_checkpoint_writer *writer; /* NULL: only hashed */
    tdm_state_hasher *hasher;
    float *window;
    tdm_status status; /* of the first failed push */
    tdm_error *err;
} sink;

static void sink_push(sink *out, const void *bytes, size_t count)
{
    if (out->status != TDM_OK) return;
    out->status = out->writer ? tdm_checkpoint_writer_push(out->writer, bytes, count, out->err)
                              : tdm_state_hasher_push(out->hasher, bytes, count, out->err);
}

static void sink_put(void *user, const void *bytes, size_t count)
{
    sink_push(user, bytes, count);
}

/* Sorts the rows of the sparse table, and gives its tensors their shapes. Collective. */
static tdm_status state_sort_table(tdm__state *s, tdm_error *err)
{
    tdm_sparse_part parts[TDM_SPARSE_MAX_PARTS];
    if (!s->sparse) return TDM_OK;
    TDM_TRY(tdm_sparse_sort(s->sparse, err));
    (void)tdm_sparse_parts_of(s->sparse, parts);
    for (size_t i = 0; i < s->tensor_count; i++) {
        if (s->items[i].block != TDM__BLOCK_TABLE) continue;
        s->items[i].named.tensor = parts[s->items[i].param].view;
        s->tensors[i] = s->items[i].named;
    }
    return TDM_OK;
}

/* Sends all tensors to rank 0, window by window. Collective; an error of the sink does not
 * end it. */
static tdm_status state_push_tensors(tdm__state *s, sink *out, tdm_error *err)
{
    bool mine = tdm__rank_of(s->comm) == 0;
    for (size_t i = 0; i < s->tensor_count; i++) {
        const tdm__state_item *item = &s->items[i];
        if (item->block == TDM__BLOCK_NONE) {
            if (mine)
                sink_push(out, item->named.tensor.data, tdm_tensor_bytes(&item->named.tensor));
            continue;
        }
        if (item->block == TDM__BLOCK_TABLE) {
            TDM_TRY(tdm_sparse_send(s->sparse, (int)item->param, sink_put, out, err));
            continue;
        }
        if (tdm_params_is_whole(s->store, item->block)) {
            const float *block = tdm_params_block(s->store, item->block);
            if (mine) sink_push(out, block + item->first, item->elements * sizeof(float));
            continue;
        }
        for (size_t first = 0; first < item->elements; first += WINDOW_ELEMENTS) {
            size_t count = min(item->elements - first, WINDOW_ELEMENTS);
            TDM_TRY(tdm_params_read(s->store, item->block, item->first + first, count, out->window,
                                    err));
            if (mine) sink_push(out, out->window, count * sizeof(float));
        }
    }
    return TDM_OK;
}

static tdm_status sink_open(tdm__state *s, const char *path, const tdm_checkpoint_content *content,
                            sink *out, tdm_error *err)
{
    bool whole = true;
    for (int block = 0; block < tdm__state_blocks(s); block++)
        if (tdm_params_block(s->store, block) && !tdm_params_is_whole(s->store, block))
            whole = false;
    if (!whole) TDM_TRY(window_create(&out->window, err));
    if (path) {
        TDM_TRY(tdm_checkpoint_writer_create(path, content, &out->writer, err));
        tdm_checkpoint_writer_gate(out->writer, s->gate);
        return TDM_OK;
    }
    return tdm_state_hasher_create(&content->position, content->tensors, content->tensor_count,
                                   &out->hasher, err);
}

static tdm_status sink_finish(sink *out, char hash[TDM_SHA256_HEX], tdm_error *err)
{
    if (out->status != TDM_OK) return out->status;
    if (!out->writer) return tdm_state_hasher_finish(out->hasher, hash, err);
    tdm_checkpoint_writer *writer = out->writer;
    out->writer = NULL;
    return tdm_checkpoint_writer_commit(writer, hash, err);
}

/* Writes a checkpoint, or with `path` NULL computes the hash only. */
static tdm_status state_write(tdm__state *s, const char *path, tdm_checkpoint_content content,
                              char hash[TDM_SHA256_HEX], tdm_error *err)
{
    bool mine = tdm__rank_of(s->comm) == 0;
    sink out = {.err = err};
    content.tensors = s->tensors; /* sorted by name, as they are pushed */
    content.tensor_count = s->tensor_count;
    tdm_status status = tdm_params_settle(s->store, err);
    if (status == TDM_OK) status = state_sort_table(s, err);
    if (status == TDM_OK) {
        if (mine) status = sink_open(s, path, &content, &out, err);
        status = tdm_comm_agree(s->comm, status, NULL, err);
    }
    if (status == TDM_OK) status = state_push_tensors(s, &out, err);
    if (status == TDM_OK) {
        if (mine) status = sink_finish(&out, hash, err);
        status = tdm_comm_agree(s->comm, status, NULL, err);
    }
    tdm_checkpoint_writer_abandon(out.writer);
    tdm_state_hasher_destroy(out.hasher);
    free(out.window);
    if (s->sparse) tdm_sparse_unsort(s->sparse);
    if (status != TDM_OK || tdm__size_of(s->comm) == 1) return status;
    return tdm_group_broadcast(tdm_comm_world(s->comm), hash, TDM_SHA256_HEX, TDM_DTYPE_U8, 0, err);
}

tdm_status tdm__state_save(tdm__state *state, const char *path,
                           const tdm_checkpoint_content *content, char hash[TDM_SHA256_HEX],
                           tdm_error *err)
{
    tdm_error local;
    return state_write(state, path, *content, hash, err ? err : &local);
}

tdm_status tdm__state_hash(tdm__state *state, const tdm_position *position,
                           char hash[TDM_SHA256_HEX], tdm_error *err)
{
    tdm_error local;
    tdm_checkpoint_content content = {.position = *position};
    return state_write(state, NULL, content, hash, err ? err : &local);
}
