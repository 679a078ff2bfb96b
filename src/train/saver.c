/*
 * saver.c: saves that all ranks begin together, and end by themselves. (saver_job.c does the work.)
 *
 * Invariants: all ranks make the same collective calls, whatever goes wrong at one of them; a copy is
 * complete on every rank before any rank's next step, and so before the state changes; nobody resets the
 * board while a thread of any rank may look at it, because all have joined theirs before the barrier that
 * precedes it.
 *
 * Chunks of the state are shared out over the writers in contiguous runs of about equal bytes.
 */
#include "train/saver.h"

#include "train/saver_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY_SHARE 0.8           /* of what is available: a copy may take so much */
#define MIN_ROOM ((size_t)2 << 20) /* smaller copies need no memory beforehand */

struct tdm__saver {
    tdm__saver_options options;
    tdm__state *state;
    tdm_comm *comm; /* NULL: a single process */
    int rank;
    tdm_arena *arena;
    tdm_state_chunk *chunks;
    size_t chunk_count;
    uint64_t bytes;           /* of all of them */
    bool whole;               /* this node has the whole state, and so has every other */
    bool in_files;            /* part of it lies in files */
    int *writers;             /* ranks of rank 0's node */
    int writer_count;         /* of them */
    int writer_index;         /* this rank's; -1: it has none */
    tdm__saver_board *board;  /* NULL: this rank writes nothing */
    bool own_board;           /* ordinary memory */
    tdm__saver_job *job;      /* in work; NULL: none is */
    tdm__snapshot_pool *room; /* for copies */
    bool own_room;            /* not the caller's */
    double hold_s;            /* that training waited for its copy */
    tdm__saved results[2];    /* that poll has not given yet, oldest first */
    int result_count;
    bool waits; /* training waits for the save in work */
};

/* ---- life ------------------------------------------------------------------------------------ */

static bool is_whole(const tdm__state *state)
{
    for (int block = 0; block < TDM_BLOCK_STATE + TDM_OPTIM_MAX_STATES; block++)
        if (tdm_params_block(state->store, block) && !tdm_params_is_whole(state->store, block))
            return false;
    return true;
}

/* Who writes: the ranks that see rank 0's memory, where that has the whole state; else rank 0. */
static tdm_status find_writers(tdm__saver *s, tdm_error *err)
{
    int size = tdm__size_of(s->comm);
    s->writers = tdm_arena_array(s->arena, (size_t)size, sizeof(*s->writers));
    if (!s->writers) return tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
    s->writer_index = -1;
    for (int i = 0; i < size; i++) {
        bool sees = i == 0 ||
                    (s->whole && tdm_comm_node_of(s->comm, i) == tdm_comm_node_of(s->comm, 0));
        if (!sees) continue;
        if (i == s->rank) s->writer_index = s->writer_count;
        s->writers[s->writer_count++] = i;
    }
    return TDM_OK;
}

/* This rank's run of chunks, when so many write. */
static tdm_extent share_of(const tdm__saver *s, int index, int count)
{
    tdm_extent share = {.first = s->chunk_count};
    uint64_t before = 0;
    for (size_t i = 0; i < s->chunk_count; before += s->chunks[i++].bytes) {
        /* by the chunk's first byte: in 1/count-ths of all of them */
        uint64_t owner = (uint64_t)((double)before * count / (double)s->bytes);
        if (owner >= (uint64_t)count) owner = (uint64_t)count - 1;
        if (owner != (uint64_t)index) continue;
        if (share.count++ == 0) share.first = i;
    }
    return share;
}

static bool copy_fits(const tdm__saver *s)
{
    tdm_memory_info memory;
    tdm_os_memory_info(&memory);
    uint64_t max = memory.available_bytes;
    return max == 0 || (double)s->bytes < MEMORY_SHARE * (double)max;
}

/* Memory for copies, if there will be any. */
static tdm_status make_room(tdm__saver *s, tdm_error *err)
{
    s->room = s->options.room ? s->options.room : tdm__snapshot_pool_create();
    s->own_room = !s->options.room;
    if (!s->room) return tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
    bool copies = s->options.background && s->options.expected && s->whole && !s->in_files;
    if (!copies || s->writer_index < 0 || !copy_fits(s)) return TDM_OK;
    tdm_extent share = share_of(s, s->writer_index, s->writer_count);
    size_t bytes = TDM_FILE_ALIGN; /* pieces of different types may lie apart, at other places */
    for (size_t i = 0; i < share.count; i++) {
        const tdm_state_chunk *chunk = &s->chunks[share.first + i];
        if (i > 0 && chunk->place != chunk[-1].place + chunk[-1].bytes) bytes += TDM_FILE_ALIGN;
        bytes += chunk->bytes;
    }
    if (bytes >= MIN_ROOM) tdm__snapshot_pool_prepare(s->room, bytes);
    return TDM_OK;
}

static tdm_status prepare(tdm__saver *s, tdm_error *err)
{
    tdm__state *state = s->state;
    s->arena = tdm_arena_create("saver");
    if (!s->arena) return tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
    s->whole = is_whole(state);
    s->in_files = tdm_params_info_of(state->store).file_bytes > 0;
    TDM_TRY(find_writers(s, err));
    TDM_TRY(tdm_state_chunks(state->tensors, state->tensor_count, s->arena, &s->chunks,
                             &s->chunk_count, err));
    for (size_t i = 0; i < s->chunk_count; i++) s->bytes += s->chunks[i].bytes;
    TDM_TRY(make_room(s, err));
    if (s->writer_index != 0) return TDM_OK;
    size_t bytes = sizeof(tdm__saver_board) + s->chunk_count * TDM_SHA256_HEX;
    if (s->writer_count > 1) {
        void *memory = NULL;
        TDM_TRY(tdm_comm_shared(s->comm, bytes, &memory, err));
        s->board = memory; /* goes with the comm: others may look at it until then */
        return TDM_OK;
    }
    s->board = calloc(1, bytes);
    s->own_board = true;
    return s->board ? TDM_OK : tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
}

/* The other writers learn where the board is. Collective. */
static tdm_status share_board(tdm__saver *s, tdm_error *err)
{
    if (s->writer_count == 1) return TDM_OK;
    uint64_t place = s->rank == 0 ? tdm_comm_shared_place(s->comm, s->board) : 0;
    TDM_TRY(
        tdm_group_broadcast(tdm_comm_world(s->comm), &place, sizeof(place), TDM_DTYPE_U8, 0, err));
    if (s->rank != 0 && s->writer_index >= 0) s->board = tdm_comm_shared_at(s->comm, place);
    bool found = s->board || s->writer_index < 0;
    tdm_status status = found ? TDM_OK
                              : tdm_fail(err, TDM_ERR_INTERNAL,
                                         "the memory that rank 0 shares is not to be found");
    return tdm__agree(s->comm, status, NULL, err);
}

tdm_status tdm__saver_create(const tdm__saver_options *options, tdm__saver **out, tdm_error *err)
{
    tdm_error local;
    if (!err) err = &local;
    tdm_comm *comm = options->state->comm;
    tdm__saver *s = calloc(1, sizeof(*s));
    tdm_status status = s ? TDM_OK : tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
    if (s) {
        s->options = *options;
        s->state = options->state;
        s->comm = comm;
        s->rank = tdm__rank_of(comm);
        status = prepare(s, err);
    }
    status = tdm__agree(comm, status, NULL, err);
    if (status == TDM_OK && s) status = share_board(s, err);
    if (status != TDM_OK) {
        tdm__saver_destroy(s);
        return status;
    }
    *out = s;
    return TDM_OK;
}

void tdm__saver_destroy(tdm__saver *saver)
{
    if (!saver) return;
    tdm__saver_abandon(saver);
    if (saver->own_board) free(saver->board);
    if (saver->own_room) tdm__snapshot_pool_destroy(saver->room);
    tdm_arena_destroy(saver->arena);
    free(saver);
}

void tdm__saver_abandon(tdm__saver *saver)
{
    tdm__saver_job_abandon(saver->job);
    saver->job = NULL;
    saver->hold_s = 0;
}

/* ---- results ----------------------------------------------------------------------------------- */

static void keep_result(tdm__saver *s, const tdm__saved *saved)
{
    if (s->result_count == 2) { /* nobody asks: the newest matters */
        s->results[0] = s->results[1];
        s->result_count = 1;
    }
    s->results[s->result_count++] = *saved;
}

/* The job is at its end. */
static void end_job(tdm__saver *s)
{
    tdm__saver_job *job = s->job;
    if (!job) return;
    tdm__saver_job_join(job);
    job->saved.stall_s += s->hold_s;
    s->hold_s = 0;
    if (s->rank == 0) keep_result(s, &job->saved);
    if (job->copy.data) tdm__snapshot_pool_give(s->room, &job->copy);
    s->job = NULL;
    tdm__saver_job_abandon(job);
}

void tdm__saver_hold(tdm__saver *saver)
{
    if (!saver->job || !saver->job->copies) return;
    double begin = tdm_clock_s();
    tdm__saver_job_hold(saver->job);
    saver->hold_s += tdm_clock_s() - begin;
}

bool tdm__saver_busy(const tdm__saver *saver)
{
    return saver->job != NULL;
}

bool tdm__saver_poll(tdm__saver *saver, tdm__saved *out)
{
    if (saver->job && tdm__saver_job_ended(saver->job)) end_job(saver);
    if (saver->result_count == 0) return false;
    *out = saver->results[0];
    saver->results[0] = saver->results[1];
    saver->result_count--;
    return true;
}

tdm_status tdm__saver_finish(tdm__saver *saver, bool *has, tdm__saved *out, tdm_error *err)
{
    struct {
        bool has;
        tdm__saved saved;
    } news = {.has = false};
    end_job(saver);
    if (saver->result_count > 0 && saver->rank == 0) {
        news.has = true;
        news.saved = saver->results[saver->result_count - 1];
    }
    saver->result_count = 0;
    if (tdm__size_of(saver->comm) > 1)
        TDM_TRY(tdm_group_broadcast(tdm_comm_world(saver->comm), &news, sizeof(news), TDM_DTYPE_U8,
                                    0, err));
    *has = news.has;
    if (news.has) *out = news.saved;
    return TDM_OK;
}

/* ---- a copy of the state ------------------------------------------------------------------------ */

/* Who writes, and from where: the copy when nobody lacks memory, else the state itself. */
typedef struct manner {
    int writers; /* 1 when some rank cannot open rank 0's file */
    bool copies;
    bool lazy; /* behind training, which every rank of the node holds until it is done */
} manner;

/* Where the bytes of a chunk lie. */
static const char *source_of(const tdm__saver *s, const tdm_state_chunk *chunk)
{
    const tdm__state_item *item = &s->state->items[chunk->tensor];
    if (item->block == TDM__BLOCK_NONE)
        return (const char *)item->named.tensor.data + chunk->offset;
    const tdm_param_info *p = tdm_graph_param_at(s->state->graph, item->param);
    const float *block = tdm_params_block(s->state->store, item->block);
    return (const char *)(block + p->offset) + chunk->offset;
}

/* For a copy behind training: what is small is copied now, since training may change it at any time. */
static tdm_status prepare_lazy_copy(tdm__saver *s, tdm__saver_job *job, tdm_extent share,
                                    tdm_error *err)
{
    job->floats = tdm_arena_array(job->arena, share.count + 1, sizeof(*job->floats));
    job->names = tdm_arena_array(job->arena, share.count + 1, sizeof(*job->names));
    bool missing = !job->floats || !job->names;
    for (size_t i = 0; i < share.count && !missing; i++) {
        const tdm__state_item *item = &s->state->items[s->chunks[share.first + i].tensor];
        tdm__saver_piece *piece = &job->pieces[i];
        job->floats[i] = item->block != TDM__BLOCK_NONE;
        job->names[i] = tdm_arena_strdup(job->arena, item->named.name);
        missing = !job->names[i];
        if (job->floats[i]) continue;
        void *now = tdm_arena_alloc(job->arena, piece->count, 0);
        missing = missing || !now;
        if (now) memcpy(now, piece->bytes, piece->count);
        piece->bytes = now;
    }
    job->copies = !missing;
    return missing ? tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory") : TDM_OK;
}

/* Where in the copy the pieces go: at the same place of a block as in the file, so that they can be written
 * past the page cache. Its bytes in all. */
static size_t lay_out_copy(tdm__saver_piece *pieces, size_t count)
{
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        at += (size_t)((pieces[i].place - at) % TDM_FILE_ALIGN);
        pieces[i].copy_at = at;
        at += pieces[i].count;
    }
    return at;
}

/* The pieces of this rank's job, copied where there is room for it. *bad: the first tensor with a number
 * that is not finite, or -1; a copy behind training looks for that itself. */
static tdm_status take_pieces(tdm__saver *s, tdm__saver_job *job, tdm_extent share,
                              const manner *how, uint64_t data_at, int64_t *bad, tdm_error *err)
{
    bool lazy = how->copies && how->lazy;
    *bad = -1;
    job->pieces = tdm_arena_array(job->arena, share.count + 1, sizeof(*job->pieces));
    if (!job->pieces) return tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
    for (size_t i = 0; i < share.count; i++) {
        const tdm_state_chunk *chunk = &s->chunks[share.first + i];
        job->pieces[i] = (tdm__saver_piece){.chunk = share.first + i,
                                            .bytes = source_of(s, chunk),
                                            .count = chunk->bytes,
                                            .place = data_at + chunk->place};
    }
    job->piece_count = share.count;
    size_t bytes = lay_out_copy(job->pieces, share.count);
    if (how->copies && bytes > 0) TDM_TRY(tdm__snapshot_pool_take(s->room, bytes, &job->copy, err));
    if (lazy) return prepare_lazy_copy(s, job, share, err);
    for (size_t i = 0; i < share.count; i++) {
        tdm__saver_piece *piece = &job->pieces[i];
        size_t tensor = s->chunks[piece->chunk].tensor;
        if (job->copy.data)
            piece->bytes = memcpy((char *)job->copy.data + piece->copy_at, piece->bytes,
                                  piece->count);
        bool is_float = s->state->items[tensor].block != TDM__BLOCK_NONE;
        if (is_float && *bad < 0 && tdm__has_bad_numbers(piece->bytes, piece->count))
            *bad = (int64_t)tensor;
    }
    return TDM_OK;
}

/* ---- beginning ----------------------------------------------------------------------------------- */

static char *copy_text(tdm_arena *arena, const char *text, bool *missing)
{
    char *copy = text ? tdm_arena_strdup(arena, text) : NULL;
    if (text && !copy) *missing = true;
    return copy;
}

/* All that the file says, as it is now: the job may outlive what it was made from. */
static tdm_status copy_content(tdm__saver *s, tdm__saver_job *job,
                               const tdm_checkpoint_content *from, tdm_error *err)
{
    tdm_arena *arena = job->arena;
    tdm_checkpoint_content *c = &job->content;
    bool missing = false;
    *c = *from;
    c->job_hash = copy_text(arena, from->job_hash, &missing);
    c->data_hash = copy_text(arena, from->data_hash, &missing);
    c->numerics = copy_text(arena, from->numerics, &missing);
    c->job_yaml = copy_text(arena, from->job_yaml, &missing);
    const char **names = tdm_arena_array(arena, (size_t)from->class_count + 1, sizeof(*names));
    tdm_named_tensor *tensors = tdm_arena_array(arena, s->state->tensor_count + 1,
                                                sizeof(*tensors));
    if (!names || !tensors) return tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
    for (int64_t i = 0; i < from->class_count; i++)
        names[i] = copy_text(arena, from->class_names[i], &missing);
    for (size_t i = 0; i < s->state->tensor_count; i++) {
        tensors[i] = s->state->tensors[i];
        tensors[i].tensor.data = NULL;
        tensors[i].name = copy_text(arena, s->state->tensors[i].name, &missing);
    }
    c->class_names = names;
    c->tensors = tensors;
    c->tensor_count = s->state->tensor_count;
    return missing ? tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory") : TDM_OK;
}

/* What the disk must have room for: a packed file and the plain one are there together for a while. */
static uint64_t file_bytes_of(const tdm__saver *s, const tdm__save *what)
{
    const char *dot = strrchr(what->path, '.');
    bool packs = dot && strcmp(dot, ".zst") == 0;
    return packs ? 2 * s->bytes : s->bytes;
}

/* For a save that has failed outside of a job. Rank 0. */
static void make_room_for(const tdm__saver *s, const tdm__save *what, tdm__saved *saved)
{
    tdm_arena *arena = tdm_arena_create("room");
    const char *dir = arena ? tdm_path_dirname(arena, what->path) : NULL;
    if (dir)
        tdm__saver_free_space(
            &(tdm__saver_shortage){dir, &s->options.retention, file_bytes_of(s, what)},
            &s->options.gate, saved);
    tdm_arena_destroy(arena);
}

static tdm_status join_file(tdm__saver_job *job, const tdm_checkpoint_invitation *invitation,
                            tdm_error *err)
{
    TDM_TRY(tdm_file_writer_join(invitation->temporary, &job->part, err));
    if (invitation->is_read_back) tdm_file_writer_cache(job->part);
    return TDM_OK;
}

/* Rank 0: the file, with room for all that is to come. */
static tdm_status open_file(tdm__saver *s, tdm__saver_job *job, const tdm__save *what,
                            tdm_checkpoint_invitation *invitation, tdm_error *err)
{
    TDM_TRY(copy_content(s, job, what->content, err));
    int *writers = tdm_arena_array(job->arena, (size_t)s->writer_count, sizeof(*writers));
    job->dir = tdm_path_dirname(job->arena, what->path);
    if (!writers || !job->dir) return tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
    memcpy(writers, s->writers, (size_t)s->writer_count * sizeof(*writers));
    job->writers = writers;
    job->chunk_count = s->chunk_count;
    job->retention = s->options.retention;
    job->file_bytes = file_bytes_of(s, what);
    job->metrics = what->metrics;
    job->outer = s->options.gate;
    TDM_TRY(tdm_checkpoint_writer_create(what->path, &job->content, &job->writer, err));
    TDM_TRY(tdm_checkpoint_writer_invite(job->writer, invitation, err));
    return join_file(job, invitation, err);
}

/* What rank 0 tells all ranks at the beginning. */
typedef struct opening {
    tdm_error error; /* status TDM_OK: there is a file */
    tdm_checkpoint_invitation invitation;
    uint64_t step;
} opening;

/* All ranks vote; what anybody is against is off. Collective. */
static tdm_status vote(tdm__saver *s, int64_t *votes, size_t count, tdm_error *err)
{
    if (tdm__size_of(s->comm) == 1) return TDM_OK;
    return tdm_group_all_reduce(tdm_comm_world(s->comm), NULL, votes, count, TDM_DTYPE_I64,
                                TDM_REDUCE_MIN, err);
}

/* A result that all ranks have: training waited for it, or there was nothing to wait for. */
static void keep_failure(tdm__saver *s, const tdm__save *what, const opening *open)
{
    tdm__saved saved = {.status = open->error.status, .step = open->step};
    snprintf(saved.message, sizeof(saved.message), "%s", open->error.message);
    if (s->rank == 0) {
        snprintf(saved.path, sizeof(saved.path), "%s", what->path);
        make_room_for(s, what, &saved);
    }
    keep_result(s, &saved);
}

static tdm_status agree_on_manner(tdm__saver *s, tdm__saver_job *job, const opening *open,
                                  manner *out, tdm_error *err)
{
    tdm_status joined = TDM_OK;
    if (s->writer_index > 0) joined = join_file(job, &open->invitation, &(tdm_error){0});
    enum { JOINED, COPIES, VOTES };
    int64_t votes[VOTES] = {
        [JOINED] = joined == TDM_OK,
        [COPIES] = s->options.background && !s->waits && !s->in_files && copy_fits(s),
    };
    TDM_TRY(vote(s, votes, VOTES, err));
    *out = (manner){.writers = votes[JOINED] ? s->writer_count : 1, .copies = votes[COPIES] != 0};
    /* Who does not write has no part in the save, and would not wait for the others' copies. */
    out->lazy = s->options.lazy && out->writers == s->writer_count;
    return TDM_OK;
}

/* Fills the job, and sees to it that all ranks have done so. *bad as in take_pieces, the same for all. */
static tdm_status fill_job(tdm__saver *s, tdm__saver_job *job, const opening *open, manner *how,
                           int64_t *bad, tdm_error *err)
{
    tdm_extent share = {0};
    bool writes = s->writer_index >= 0 && s->writer_index < how->writers;
    if (writes) share = share_of(s, s->writer_index, how->writers);
    tdm_error why = {0};
    tdm_status status = take_pieces(s, job, share, how, open->invitation.data_at, bad, &why);
    enum { COPIED, GOOD, VOTES };
    int64_t votes[VOTES] = {[COPIED] = status == TDM_OK, [GOOD] = *bad < 0 ? INT64_MAX : *bad};
    TDM_TRY(vote(s, votes, VOTES, err));
    if (!votes[COPIED] && how->copies) { /* somebody has no memory for it, after all */
        tdm_pages_unmap(&job->copy);
        job->names = NULL;
        job->copies = how->copies = false;
        return fill_job(s, job, open, how, bad, err);
    }
    *bad = votes[GOOD] == INT64_MAX ? -1 : votes[GOOD];
    return tdm__agree(s->comm, status, NULL, &why) == TDM_OK
               ? TDM_OK
               : tdm_fail(err, why.status, "%s", why.message);
}

static tdm_status run_job(tdm__saver *s, tdm__saver_job *job, const manner *how, tdm_error *err)
{
    bool writes = s->writer_index >= 0 && s->writer_index < how->writers;
    job->yields = how->copies;
    s->job = job;
    if (!writes) {
        s->job = NULL;
        tdm__saver_job_abandon(job);
    } else if (how->copies) {
        tdm__saver_job_start(job);
    } else {
        tdm__saver_job_run(job);
    }
    if (how->copies) return TDM_OK;
    bool has;
    tdm__saved saved = {.status = TDM_OK};
    TDM_TRY(tdm__saver_finish(s, &has, &saved, err));
    saved.stall_s = saved.seconds;
    if (has) keep_result(s, &saved);
    return TDM_OK;
}

/* Where ranks of several hosts have parts of the state. */
static tdm_status save_in_windows(tdm__saver *s, const tdm__save *what, tdm_error *err)
{
    double begin = tdm_clock_s();
    tdm_error why = {0};
    tdm__saved saved = {.status = TDM_OK};
    tdm_checkpoint_content content = {0};
    if (s->rank == 0) {
        content = *what->content;
        snprintf(saved.path, sizeof(saved.path), "%s", what->path);
    }
    saved.step = content.position.step;
    s->state->gate = s->options.gate.may_commit ? &s->options.gate : NULL;
    saved.status = tdm__state_save(s->state, what->path, &content, saved.state_hash, &why);
    s->state->gate = NULL;
    if (tdm__is_peer_status(saved.status) && saved.status != TDM_ERR_PEER_FENCED)
        return tdm_fail(err, saved.status, "%s", why.message);
    if (saved.status != TDM_OK) snprintf(saved.message, sizeof(saved.message), "%s", why.message);
    saved.seconds = saved.stall_s = tdm_clock_s() - begin;
    if (saved.status == TDM_OK && s->rank == 0) {
        tdm_arena *arena = tdm_arena_create("retention");
        const char *dir = arena ? tdm_path_dirname(arena, what->path) : NULL;
        tdm_status status = dir ? tdm_checkpoint_note(dir, saved.step, &what->metrics, &why)
                                : tdm_fail(&why, TDM_ERR_NO_MEMORY, "train: no memory");
        if (status == TDM_OK)
            status = tdm_checkpoint_retain(dir, &s->options.retention, saved.step, &why);
        if (status != TDM_OK) snprintf(saved.message, sizeof(saved.message), "%s", why.message);
        tdm_arena_destroy(arena);
    } else if (s->rank == 0) {
        make_room_for(s, what, &saved);
    }
    keep_result(s, &saved);
    return TDM_OK;
}

/* Rank 0 makes the file, and all ranks hear of it. Collective. */
static tdm_status open_together(tdm__saver *s, tdm__saver_job *job, const tdm__save *what,
                                opening *out, tdm_error *err)
{
    memset(out, 0, sizeof(*out));
    if (s->rank == 0) {
        out->step = what->content->position.step;
        out->error.status = job ? open_file(s, job, what, &out->invitation, &out->error)
                                : tdm_fail(&out->error, TDM_ERR_NO_MEMORY, "train: no memory");
    }
    if (tdm__size_of(s->comm) > 1)
        TDM_TRY(
            tdm_group_broadcast(tdm_comm_world(s->comm), out, sizeof(*out), TDM_DTYPE_U8, 0, err));
    out->invitation.temporary[sizeof(out->invitation.temporary) - 1] = '\0';
    out->error.message[sizeof(out->error.message) - 1] = '\0';
    return TDM_OK;
}

/* Takes the job when it runs, or has no use any more; *taken says so. */
static tdm_status begin(tdm__saver *s, tdm__saver_job *job, const tdm__save *what,
                        const opening *open, const char **bad, bool *taken, tdm_error *err)
{
    manner how;
    int64_t bad_tensor = -1;
    job->board = s->board;
    job->comm = s->comm;
    job->rank = s->rank;
    job->writer_index = s->writer_index;
    job->saved.step = open->step;
    if (s->rank == 0) snprintf(job->saved.path, sizeof(job->saved.path), "%s", what->path);
    TDM_TRY(agree_on_manner(s, job, open, &how, err));
    job->writer_count = how.writers;
    TDM_TRY(fill_job(s, job, open, &how, &bad_tensor, err));
    *taken = true;
    if (bad_tensor >= 0) {
        *bad = s->state->tensors[bad_tensor].name;
        tdm__saver_job_abandon(job);
        return TDM_OK;
    }
    job->saved.stall_s = tdm_clock_s() - job->begin_s;
    return run_job(s, job, &how, err);
}

tdm_status tdm__saver_begin(tdm__saver *saver, const tdm__save *what, const char **bad,
                            tdm_error *err)
{
    saver->waits = what->waits;
    tdm_error local;
    if (!err) err = &local;
    *bad = NULL;
    end_job(saver);
    if (!saver->whole) {
        TDM_TRY(tdm__state_find_bad(saver->state, bad, err));
        return *bad ? TDM_OK : save_in_windows(saver, what, err);
    }
    /* Everything is where it belongs, and no rank's thread looks at the board any more. */
    TDM_TRY(tdm_params_settle(saver->state->store, err));
    if (saver->rank == 0) {
        atomic_store(&saver->board->done, 0);
        atomic_store(&saver->board->copied, 0);
        atomic_store(&saver->board->failed, 0);
        atomic_store(&saver->board->has_reason, 0);
    }
    tdm__saver_job *job = tdm__saver_job_create();
    opening open;
    tdm_status status = open_together(saver, job, what, &open, err);
    if (status == TDM_OK && open.error.status == TDM_OK)
        status = tdm__agree(saver->comm,
                            job ? TDM_OK : tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory"),
                            NULL, err);
    if (status != TDM_OK || open.error.status != TDM_OK || !job) {
        if (status == TDM_OK) keep_failure(saver, what, &open);
        tdm__saver_job_abandon(job);
        return status;
    }
    bool taken = false;
    status = begin(saver, job, what, &open, bad, &taken, err);
    if (!taken) tdm__saver_job_abandon(job);
    return status;
}
