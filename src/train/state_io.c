/*
 * state_io.c: how the numbers of a training begin, are restored and saved.
 *
 * Rank 0 alone reads and writes files, and makes the first values; the store brings numbers to where
 * they belong, and from there. They pass through one window of a megabyte at rank 0, so that no
 * rank ever holds what is not its share, and nothing holds a model twice. Where a block is whole at rank
 * 0, it is saved from where it lies. What is written is the same, byte for byte, however the numbers
 * were spread.
 *
 * All ranks take the same steps, whatever happens at rank 0: what can fail there is tried before the
 * first of them, or (a disk) remembered until after the last; then all agree on the outcome.
 */
#include "train/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW_ELEMENTS = 1 << 18, MAX_BLOCKS = TDM_BLOCK_STATE + TDM_OPTIM_MAX_STATES };

/* ---- into the store -------------------------------------------------------------------------- */

/* Numbers [first, first + count) of a parameter for a block. */
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

/* All blocks from a source, which rank 0 has; others have no window. Collective. */
static tdm_status write_blocks(tdm__state *s, unsigned blocks, numbers_fn numbers,
                               const void *source, float *window, tdm_error *err)
{
    for (int block = 0; block < MAX_BLOCKS; block++) {
        if (!(blocks >> block & 1) || !tdm_params_block(s->store, block)) continue;
        size_t elements = block < TDM_BLOCK_STATE ? tdm_graph_param_extent(s->graph)
                                                  : tdm_graph_trained_extent(s->graph);
        for (size_t first = 0; first < elements; first += WINDOW_ELEMENTS) {
            size_t count = min(elements - first, WINDOW_ELEMENTS);
            if (window) fill_window(s, block, first, count, numbers, source, window);
            TDM_TRY(tdm_params_write(s->store, block, first, count, window, err));
        }
    }
    return tdm_params_settle(s->store, err);
}

static tdm_status make_window(float **out, tdm_error *err)
{
    *out = malloc(WINDOW_ELEMENTS * sizeof(float));
    return *out ? TDM_OK : tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
}

/* The small things that every rank has, as rank 0 has them. Collective. */
static tdm_status spread_small(tdm__state *s, tdm_error *err)
{
    struct {
        tdm_plateau plateau, early_stop;
        tdm__skips skips;
        uint64_t from_file_count;
    } all = {s->plateau, s->early_stop, s->skips, s->from_file_count};
    if (tdm__size_of(s->comm) == 1) return TDM_OK;
    TDM_TRY(tdm_group_broadcast(tdm_comm_world(s->comm), &all, sizeof(all), TDM_DTYPE_U8, 0, err));
    s->plateau = all.plateau;
    s->early_stop = all.early_stop;
    s->skips = all.skips;
    s->from_file_count = (size_t)all.from_file_count;
    return TDM_OK;
}

/* ---- tensors from files ---------------------------------------------------------------------- */

/* Whether a tensor of a file can become one of the state. `misfit` is the status for another shape. */
static tdm_status check_fits(const tdm_named_tensor *from, const tdm_tensor *to, const char *file,
                             tdm_status misfit, tdm_error *err)
{
    char have[128], want[128];
    float none[1] = {0};
    if (!tdm_shape_equal(&from->tensor.shape, &to->shape))
        return tdm_fail(err, misfit, "%s: tensor '%s' has shape %s; this model's has %s", file,
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

static void copy_part(const tdm_tensor *from, size_t first, size_t count, float *out)
{
    const char *at = (const char *)from->data + first * tdm_dtype_bytes(from->dtype);
    tdm_tensor_to_f32(from->dtype, at, (int64_t)count, out);
}

/* ---- first values ---------------------------------------------------------------------------- */

/* From where they come: a file, the data, or the seed. */
typedef struct beginning {
    const tdm__state *state;
    uint64_t seed;
    tdm_safetensors *file;         /* NULL: none */
    const tdm_named_tensor **from; /* the file's tensor of each parameter; NULL: it has none */
    float *norms[2]; /* in place of TDM_MODEL_SHIFT and TDM_MODEL_SCALE; NULL: by the seed */
} beginning;

static const char *const norm_names[2] = {TDM_MODEL_SHIFT, TDM_MODEL_SCALE};

static void first_numbers(const void *source, int block, size_t param, size_t first, size_t count,
                          float *out)
{
    const beginning *b = source;
    const char *name = tdm_graph_param_at(b->state->graph, param)->name;
    (void)block; /* the average begins where the weights do */
    if (b->from[param]) {
        copy_part(&b->from[param]->tensor, first, count, out);
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (!b->norms[i] || strcmp(name, norm_names[i]) != 0) continue;
        memcpy(out, b->norms[i] + first, count * sizeof(float));
        return;
    }
    tdm_model_init_part(b->state->graph, b->seed, param, first, count, out);
}

static tdm_status find_normalisation(beginning *b, const tdm_job *job, const tdm_dataset *train,
                                     tdm_error *err)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(train);
    size_t F = (size_t)info->feature_count;
    int how = job->data.normalise;
    if (how == TDM_JOB_NORMALISE_NONE || info->kind == TDM_DATA_KIND_TOKENS) return TDM_OK;
    float *scale = calloc(F + 1, sizeof(*scale));
    b->norms[1] = scale;
    if (!scale) return tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory for the normalisation");
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
        /* A column that never varies in training can tell nothing: it is switched off. */
        bool varies = deviation > 1e-9 * (fabs(mean) + 1.0);
        shift[i] = (float)mean;
        scale[i] = varies ? (float)(1.0 / deviation) : 0.0f;
    }
    bool done = shift && moments;
    free(moments);
    return done ? TDM_OK
                : tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory for the normalisation");
}

static tdm_status find_in_file(beginning *b, const char *path, size_t *found, tdm_error *err)
{
    const tdm_graph *graph = b->state->graph;
    TDM_TRY(tdm_safetensors_open(path, &b->file, err));
    *found = 0;
    for (size_t i = 0; i < tdm_graph_param_count(graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(graph, i);
        const tdm_tensor to = {.dtype = TDM_DTYPE_F32, .shape = p->shape};
        b->from[i] = tdm_safetensors_find(b->file, p->name);
        if (!b->from[i]) continue;
        TDM_TRY(check_fits(b->from[i], &to, path, TDM_ERR_JOB_INVALID, err));
        ++*found;
    }
    if (*found > 0) return TDM_OK;
    return tdm_fail(err, TDM_ERR_JOB_INVALID,
                    "%s: none of its %zu tensors has the name of a parameter of this model (the "
                    "first is '%s'); see 'tandem inspect' for both",
                    path, tdm_safetensors_count(b->file), tdm_graph_param_at(graph, 0)->name);
}

static tdm_status prepare_beginning(tdm__state *s, const tdm_job *job, const tdm_dataset *train,
                                    beginning *b, float **window, tdm_error *err)
{
    b->from = calloc(tdm_graph_param_count(s->graph) + 1, sizeof(void *));
    if (!b->from) return tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
    TDM_TRY(find_normalisation(b, job, train, err));
    if (job->model.init_from)
        TDM_TRY(find_in_file(b, job->model.init_from, &s->from_file_count, err));
    return make_window(window, err);
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
        status = prepare_beginning(state, job, train, &b, &window, err);
    status = tdm__agree(state->comm, status, NULL, err);
    if (status == TDM_OK)
        status = write_blocks(state, 1u << TDM_BLOCK_PARAMS | 1u << TDM_BLOCK_EMA, first_numbers,
                              &b, window, err);
    if (status == TDM_OK) status = spread_small(state, err);
    free(window);
    free(b.from);
    free(b.norms[0]);
    free(b.norms[1]);
    tdm_safetensors_destroy(b.file);
    return status;
}

/* ---- restore --------------------------------------------------------------------------------- */

/* The tensor of the checkpoint for each parameter of each block; NULL where a block has none. */
typedef struct restoring {
    const tdm_named_tensor **from[MAX_BLOCKS];
    float *window;
} restoring;

static void restored_numbers(const void *source, int block, size_t param, size_t first,
                             size_t count, float *out)
{
    const restoring *r = source;
    const tdm_named_tensor *from = r->from[block][param];
    /* Statistics and buffers stand in the checkpoint once. */
    if (!from && block == TDM_BLOCK_EMA) from = r->from[TDM_BLOCK_PARAMS][param];
    if (from) copy_part(&from->tensor, first, count, out);
}

/* The tensor of a checkpoint from which `name` is restored; NULL when it has none. */
static const tdm_named_tensor *find_source(const tdm_checkpoint *checkpoint, const char *name,
                                           bool averaged)
{
    char average[512];
    if (averaged && snprintf(average, sizeof(average), "ema.%s", name) < (int)sizeof(average)) {
        const tdm_named_tensor *found = tdm_checkpoint_find(checkpoint, average);
        if (found) return found; /* buffers have none */
    }
    return tdm_checkpoint_find(checkpoint, name);
}

/* Whether a run may go on from a checkpoint without this tensor: it decides where the run ends, but
 * no bits. */
static bool begins_anew(const char *name)
{
    return strcmp(name, TDM__EARLY_STOP_NAME) == 0 || strcmp(name, TDM__SKIPS_NAME) == 0;
}

static tdm_status prepare_restoring(tdm__state *s, const tdm_checkpoint *checkpoint, bool averaged,
                                    restoring *r, tdm_error *err)
{
    for (int block = 0; block < MAX_BLOCKS; block++) {
        r->from[block] = calloc(tdm_graph_param_count(s->graph) + 1, sizeof(void *));
        if (!r->from[block]) return tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
    }
    for (size_t i = 0; i < s->tensor_count; i++) {
        const tdm__state_item *item = &s->items[i];
        const tdm_named_tensor *from = find_source(checkpoint, item->named.name, averaged);
        if (!from && begins_anew(item->named.name)) continue;
        if (!from)
            return tdm_fail(err, TDM_ERR_JOB_MISMATCH,
                            "the checkpoint has no tensor '%s', which this job's model needs",
                            item->named.name);
        TDM_TRY(check_fits(from, &item->named.tensor, "the checkpoint", TDM_ERR_JOB_MISMATCH, err));
        if (item->block == TDM__BLOCK_NONE)
            memcpy(item->named.tensor.data, from->tensor.data,
                   tdm_tensor_bytes(&item->named.tensor));
        else
            r->from[item->block][item->param] = from;
    }
    return make_window(&r->window, err);
}

tdm_status tdm__state_restore(tdm__state *state, const tdm_checkpoint *checkpoint, bool averaged,
                              tdm_error *err)
{
    tdm_error local;
    if (!err) err = &local;
    restoring r = {.window = NULL};
    tdm_status status = TDM_OK;
    if (tdm__rank_of(state->comm) == 0)
        status = prepare_restoring(state, checkpoint, averaged, &r, err);
    status = tdm__agree(state->comm, status, NULL, err);
    if (status == TDM_OK)
        status = write_blocks(state, (1u << MAX_BLOCKS) - 1, restored_numbers, &r, r.window, err);
    if (status == TDM_OK) status = spread_small(state, err);
    free(r.window);
    for (int block = 0; block < MAX_BLOCKS; block++) free(r.from[block]);
    return status;
}

/* ---- save ------------------------------------------------------------------------------------ */

/* Where the bytes of a state go, in canonical order, at rank 0. Both have what the other has not. */
typedef struct sink {
    tdm_checkpoint_writer *writer; /* NULL: only hashed */
    tdm_state_hasher *hasher;
    float *window;
    tdm_status status; /* of the push that failed */
    tdm_error *err;
} sink;

static void push(sink *out, const void *bytes, size_t count)
{
    if (out->status != TDM_OK) return;
    out->status = out->writer ? tdm_checkpoint_writer_push(out->writer, bytes, count, out->err)
                              : tdm_state_hasher_push(out->hasher, bytes, count, out->err);
}

/* Brings all tensors to rank 0, window by window. Collective; what goes wrong with the sink does not
 * end it. */
static tdm_status push_tensors(tdm__state *s, sink *out, tdm_error *err)
{
    bool mine = tdm__rank_of(s->comm) == 0;
    for (size_t i = 0; i < s->tensor_count; i++) {
        const tdm__state_item *item = &s->items[i];
        if (item->block == TDM__BLOCK_NONE) {
            if (mine) push(out, item->named.tensor.data, tdm_tensor_bytes(&item->named.tensor));
            continue;
        }
        const tdm_param_info *p = tdm_graph_param_at(s->graph, item->param);
        if (tdm_params_is_whole(s->store, item->block)) {
            const float *block = tdm_params_block(s->store, item->block);
            if (mine) push(out, block + p->offset, p->elements * sizeof(float));
            continue;
        }
        for (size_t first = 0; first < p->elements; first += WINDOW_ELEMENTS) {
            size_t count = min(p->elements - first, WINDOW_ELEMENTS);
            TDM_TRY(
                tdm_params_read(s->store, item->block, p->offset + first, count, out->window, err));
            if (mine) push(out, out->window, count * sizeof(float));
        }
    }
    return TDM_OK;
}

static tdm_status open_sink(tdm__state *s, const char *path, const tdm_checkpoint_content *content,
                            sink *out, tdm_error *err)
{
    bool whole = true;
    for (int block = 0; block < MAX_BLOCKS; block++)
        if (tdm_params_block(s->store, block) && !tdm_params_is_whole(s->store, block))
            whole = false;
    if (!whole) TDM_TRY(make_window(&out->window, err));
    if (path) {
        TDM_TRY(tdm_checkpoint_writer_create(path, content, &out->writer, err));
        tdm_checkpoint_writer_gate(out->writer, s->gate);
        return TDM_OK;
    }
    return tdm_state_hasher_create(&content->position, content->tensors, content->tensor_count,
                                   &out->hasher, err);
}

static tdm_status finish_sink(sink *out, char hash[TDM_SHA256_HEX], tdm_error *err)
{
    if (out->status != TDM_OK) return out->status;
    if (!out->writer) return tdm_state_hasher_finish(out->hasher, hash, err);
    tdm_checkpoint_writer *writer = out->writer;
    out->writer = NULL;
    return tdm_checkpoint_writer_commit(writer, hash, err);
}

/* `path` NULL: only the hash. */
static tdm_status put_out(tdm__state *s, const char *path, tdm_checkpoint_content content,
                          char hash[TDM_SHA256_HEX], tdm_error *err)
{
    bool mine = tdm__rank_of(s->comm) == 0;
    sink out = {.err = err};
    content.tensors = s->tensors; /* in order of name, as they are pushed */
    content.tensor_count = s->tensor_count;
    tdm_status status = tdm_params_settle(s->store, err);
    if (status == TDM_OK) {
        if (mine) status = open_sink(s, path, &content, &out, err);
        status = tdm__agree(s->comm, status, NULL, err);
    }
    if (status == TDM_OK) status = push_tensors(s, &out, err);
    if (status == TDM_OK) {
        if (mine) status = finish_sink(&out, hash, err);
        status = tdm__agree(s->comm, status, NULL, err);
    }
    tdm_checkpoint_writer_abandon(out.writer);
    tdm_state_hasher_destroy(out.hasher);
    free(out.window);
    if (status != TDM_OK || tdm__size_of(s->comm) == 1) return status;
    return tdm_group_broadcast(tdm_comm_world(s->comm), hash, TDM_SHA256_HEX, TDM_DTYPE_U8, 0, err);
}

tdm_status tdm__state_save(tdm__state *state, const char *path,
                           const tdm_checkpoint_content *content, char hash[TDM_SHA256_HEX],
                           tdm_error *err)
{
    tdm_error local;
    return put_out(state, path, *content, hash, err ? err : &local);
}

tdm_status tdm__state_hash(tdm__state *state, const tdm_position *position,
                           char hash[TDM_SHA256_HEX], tdm_error *err)
{
    tdm_error local;
    tdm_checkpoint_content content = {.position = *position};
    return put_out(state, NULL, content, hash, err ? err : &local);
}
