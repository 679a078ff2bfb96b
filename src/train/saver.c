/*
 * saver.c: checkpoints that all ranks begin together and complete independently. (saver_job.c writes them.)
 *
 * Invariants: all ranks make the same collective calls, whatever fails on one of them. A copy is
 * complete on every rank before the next update of any rank, and so before the state changes. The board is reset
 * only when no thread of any rank accesses it, because all ranks have joined their threads before the
 * preceding barrier.
 *
 * Chunks of the state are divided among the writers in contiguous runs of about equal size.
 */
#include "train/saver.h"
#include "base/base.h"
#include "os/os.h"

#include "train/saver_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY_SHARE 0.8                 /* maximum part of the available memory for a copy */
#define MIN_POOL_BYTES ((size_t)2 << 20) /* smaller copies are not allocated in advance */

struct tdm__saver {
    tdm__saver_options options;
    tdm__state *state;
    tdm_comm *comm; /* NULL: a single process */
    int rank;
    tdm_arena *arena;
    tdm_state_chunk *chunks;
    size_t chunk_count;
    uint64_t bytes;           /* of all of them */
    bool whole;               /* every node has the complete state */
    bool in_files;            /* part of the state is in files */
    int *writers;             /* ranks of rank 0's node */
    int writer_count;         /* number of writers */
    int writer_index;         /* of this rank; -1: it does not write */
    tdm__saver_board *board;  /* NULL: this rank does not write */
    tdm_shm *board_shm;       /* the segment of the board; NULL: private memory */
    tdm__saver_job *job;      /* in progress; NULL: none */
    tdm__snapshot_pool *pool; /* memory for copies */
    bool own_pool;            /* created by the saver */
    double hold_s;            /* time that training waited for the copy */
    tdm__saved results[2];    /* not yet returned by poll, oldest first */
    int result_count;
    bool waits; /* training waits for the save in progress */
};

/* ---- creation and destruction ----------------------------------------------------------------- */

static bool state_is_whole(const tdm__state *state)
{
    for (int block = 0; block < tdm__state_blocks(state); block++)
        if (tdm_params_block(state->store, block) && !tdm_params_is_whole(state->store, block))
            return false;
    return true;
}

/* Selects the writers: the ranks that share memory with rank 0 if that has the complete state; else rank 0. */
static tdm_status saver_find_writers(tdm__saver *s, tdm_error *err)
{
    int size = tdm__size_of(s->comm);
    s->writers = tdm_arena_array(s->arena, (size_t)size, sizeof(*s->writers));
    if (!s->writers) return tdm_fail_oom(err, "in training");
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

/* The run of chunks of writer `index` of `count`. */
static tdm_extent saver_chunks_of(const tdm__saver *s, int index, int count)
{
    tdm_extent share = {.first = s->chunk_count};
    uint64_t before = 0;
    for (size_t i = 0; i < s->chunk_count; before += s->chunks[i++].bytes) {
        /* by the position of the chunk's first byte */
        uint64_t owner = (uint64_t)((double)before * count / (double)s->bytes);
        if (owner >= (uint64_t)count) owner = (uint64_t)count - 1;
        if (owner != (uint64_t)index) continue;
        if (share.count++ == 0) share.first = i;
    }
    return share;
}

static bool saver_copy_fits(const tdm__saver *s)
{
    tdm_memory_info memory;
    tdm_os_memory_info(&memory);
    uint64_t max = memory.available_bytes;
    return max == 0 || (double)s->bytes < MEMORY_SHARE * (double)max;
}

/* Allocates memory for copies in advance if saves are expected. */
static tdm_status saver_prepare_pool(tdm__saver *s, tdm_error *err)
{
    s->pool = s->options.pool ? s->options.pool : tdm__snapshot_pool_create();
    s->own_pool = !s->options.pool;
    if (!s->pool) return tdm_fail_oom(err, "in training");
    bool copies = s->options.background && s->options.expected && s->whole && !s->in_files;
    if (!copies || s->writer_index < 0 || !saver_copy_fits(s)) return TDM_OK;
    tdm_extent share = saver_chunks_of(s, s->writer_index, s->writer_count);
    size_t bytes = TDM_FILE_ALIGN; /* pieces of different types may be apart, at other alignments */
    for (size_t i = 0; i < share.count; i++) {
        const tdm_state_chunk *chunk = &s->chunks[share.first + i];
        if (i > 0 && chunk->place != chunk[-1].place + chunk[-1].bytes) bytes += TDM_FILE_ALIGN;
        bytes += chunk->bytes;
    }
    if (bytes >= MIN_POOL_BYTES) tdm__snapshot_pool_prepare(s->pool, bytes);
    return TDM_OK;
}

/* The writers share the board: a region that the first of them creates. */
static tdm_status saver_make_board(tdm__saver *s, tdm_error *err)
{
    char name[TDM_SHM_NAME_BYTES];
    void *memory = NULL;
    size_t bytes = sizeof(tdm__saver_board) + s->chunk_count * TDM_SHA256_HEX;
    if (s->writer_count == 1 && s->writer_index == 0) {
        s->board = calloc(1, bytes);
        return s->board ? TDM_OK : tdm_fail_oom(err, "in training");
    }
    if (s->writer_index < 0) return TDM_OK;
    tdm_shm *shm = tdm_comm_shm(s->comm, err);
    if (!shm) return TDM_ERR_NO_MEMORY;
    snprintf(name, sizeof(name), "saver-board-%u", (unsigned)tdm_comm_shm_scope(s->comm));
    TDM_TRY(tdm_shm_region_take(shm, name, bytes, NULL, &memory, err));
    s->board = memory;
    s->board_shm = shm;
    return TDM_OK;
}

static tdm_status saver_prepare(tdm__saver *s, tdm_error *err)
{
    tdm__state *state = s->state;
    s->arena = tdm_arena_create("saver");
    if (!s->arena) return tdm_fail_oom(err, "in training");
    s->whole = state_is_whole(state) && !state->sparse; /* rows are on all ranks */
    s->in_files = tdm_params_info_of(state->store).file_bytes > 0;
    TDM_TRY(saver_find_writers(s, err));
    TDM_TRY(tdm_state_chunks(state->tensors, state->tensor_count, s->arena, &s->chunks,
                             &s->chunk_count, err));
    for (size_t i = 0; i < s->chunk_count; i++) s->bytes += s->chunks[i].bytes;
    TDM_TRY(saver_prepare_pool(s, err));
    return saver_make_board(s, err);
}

tdm_status tdm__saver_create(const tdm__saver_options *options, tdm__saver **out, tdm_error *err)
{
    tdm_error local;
    if (!err) err = &local;
    tdm_comm *comm = options->state->comm;
    tdm__saver *s = calloc(1, sizeof(*s));
    tdm_status status = s ? TDM_OK : tdm_fail_oom(err, "in training");
    if (s) {
        s->options = *options;
        s->state = options->state;
        s->comm = comm;
        s->rank = tdm__rank_of(comm);
        status = saver_prepare(s, err);
    }
    status = tdm_comm_agree(comm, status, NULL, err);
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
    if (saver->board_shm)
        tdm_shm_region_release(saver->board_shm, saver->board);
    else
        free(saver->board);
    if (saver->own_pool) tdm__snapshot_pool_destroy(saver->pool);
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

static void saver_keep_result(tdm__saver *s, const tdm__saved *saved)
{
    if (s->result_count == 2) { /* not polled: keep the newest */
        s->results[0] = s->results[1];
        s->result_count = 1;
    }
    s->results[s->result_count++] = *saved;
}

/* Joins the job and keeps its result. */
static void saver_end_job(tdm__saver *s)
{
    tdm__saver_job *job = s->job;
    if (!job) return;
    tdm__saver_job_join(job);
    job->saved.stall_s += s->hold_s;
    s->hold_s = 0;
    if (s->rank == 0) saver_keep_result(s, &job->saved);
    if (job->copy.data) tdm__snapshot_pool_give(s->pool, &job->copy);
    s->job = NULL;
    tdm__saver_job_abandon(job);
}

void tdm__saver_hold(tdm__saver *saver)
{
    if (!saver->job || !saver->job->must_hold) return;
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
    if (saver->job && tdm__saver_job_ended(saver->job)) saver_end_job(saver);
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
    saver_end_job(saver);
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

/* Number of writers, and whether they write from a copy (if all have memory for it) or from the state. */
typedef struct save_mode {
    int writers; /* 1 if some rank cannot open rank 0's file */
    bool copies;
    /* the copy is made during training; every rank of the node waits for it before its update */
    bool lazy;
} save_mode;

/* The address of the bytes of a chunk. */
static const char *chunk_source(const tdm__saver *s, const tdm_state_chunk *chunk)
{
    const tdm__state_item *item = &s->state->items[chunk->tensor];
    if (item->block == TDM__BLOCK_NONE)
        return (const char *)item->named.tensor.data + chunk->offset;
    const float *block = tdm_params_block(s->state->store, item->block);
    return (const char *)(block + item->first) + chunk->offset;
}

/* For a copy during training: copies small tensors now, because training may change them at any time. */
static tdm_status job_prepare_lazy_copy(tdm__saver *s, tdm__saver_job *job, tdm_extent share,
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
    job->must_hold = !missing;
    if (!missing) job->phase = TDM__SAVER_COPYING;
    return missing ? tdm_fail_oom(err, "in training") : TDM_OK;
}

/* Assigns positions in the copy: with the same alignment as in the file, so that pieces can be written with
 * direct I/O. Returns the total size. */
static size_t pieces_lay_out(tdm__saver_piece *pieces, size_t count)
{
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        at += (size_t)((pieces[i].place - at) % TDM_FILE_ALIGN);
        pieces[i].copy_at = at;
        at += pieces[i].count;
    }
    return at;
}

/* Collects the pieces of this rank, copied if `how` says so. *bad: the first tensor with a non-finite
 * value, or -1; a copy made during training checks that itself. */
static tdm_status job_collect_pieces(tdm__saver *s, tdm__saver_job *job, tdm_extent share,
                                     const save_mode *how, uint64_t data_at, int64_t *bad,
                                     tdm_error *err)
{
    bool lazy = how->copies && how->lazy;
    *bad = -1;
    job->pieces = tdm_arena_array(job->arena, share.count + 1, sizeof(*job->pieces));
    if (!job->pieces) return tdm_fail_oom(err, "in training");
    for (size_t i = 0; i < share.count; i++) {
        const tdm_state_chunk *chunk = &s->chunks[share.first + i];
        job->pieces[i] = (tdm__saver_piece){.chunk = share.first + i,
                                            .bytes = chunk_source(s, chunk),
                                            .count = chunk->bytes,
                                            .place = data_at + chunk->place};
    }
    job->piece_count = share.count;
    size_t bytes = pieces_lay_out(job->pieces, share.count);
    if (how->copies && bytes > 0) TDM_TRY(tdm__snapshot_pool_take(s->pool, bytes, &job->copy, err));
    if (lazy) return job_prepare_lazy_copy(s, job, share, err);
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

/* ---- beginning a save ---------------------------------------------------------------------------- */

static char *copy_text(tdm_arena *arena, const char *text, bool *missing)
{
    char *copy = text ? tdm_arena_strdup(arena, text) : NULL;
    if (text && !copy) *missing = true;
    return copy;
}

/* Copies the metadata of the file: the job may outlive its source. */
static tdm_status job_copy_content(tdm__saver *s, tdm__saver_job *job,
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
    if (!names || !tensors) return tdm_fail_oom(err, "in training");
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
    return missing ? tdm_fail_oom(err, "in training") : TDM_OK;
}

/* The disk space needed: a packed file and the plain one exist together for a while. */
static uint64_t file_bytes_of(const tdm__saver *s, const tdm__save *what)
{
    const char *dot = strrchr(what->path, '.');
    bool packs = dot && strcmp(dot, ".zst") == 0;
    return packs ? 2 * s->bytes : s->bytes;
}

/* Frees disk space after a save that failed before its job began. Rank 0. */
static void saver_free_disk_space(const tdm__saver *s, const tdm__save *what, tdm__saved *saved)
{
    tdm_arena *arena = tdm_arena_create("room");
    const char *dir = arena ? tdm_path_dirname(arena, what->path) : NULL;
    if (dir)
        tdm__saver_free_space(
            &(tdm__saver_shortage){dir, &s->options.retention, file_bytes_of(s, what)},
            &s->options.gate, saved);
    tdm_arena_destroy(arena);
}

static tdm_status job_join_file(tdm__saver_job *job, const tdm_checkpoint_invitation *invitation,
                                tdm_error *err)
{
    TDM_TRY(tdm_file_writer_join(invitation->temporary, &job->part, err));
    if (invitation->is_read_back) tdm_file_writer_cache(job->part);
    return TDM_OK;
}

/* Rank 0: creates the file, with space for all parts. */
static tdm_status job_create_file(tdm__saver *s, tdm__saver_job *job, const tdm__save *what,
                                  tdm_checkpoint_invitation *invitation, tdm_error *err)
{
    TDM_TRY(job_copy_content(s, job, what->content, err));
    int *writers = tdm_arena_array(job->arena, (size_t)s->writer_count, sizeof(*writers));
    job->dir = tdm_path_dirname(job->arena, what->path);
    if (!writers || !job->dir) return tdm_fail_oom(err, "in training");
    memcpy(writers, s->writers, (size_t)s->writer_count * sizeof(*writers));
    job->writers = writers;
    job->chunk_count = s->chunk_count;
    job->retention = s->options.retention;
    job->file_bytes = file_bytes_of(s, what);
    job->metrics = what->metrics;
    job->outer = s->options.gate;
    TDM_TRY(tdm_checkpoint_writer_create(what->path, &job->content, &job->writer, err));
    TDM_TRY(tdm_checkpoint_writer_invite(job->writer, invitation, err));
    return job_join_file(job, invitation, err);
}

/* Rank 0's broadcast at the beginning. */
typedef struct opening {
    tdm_error error; /* status TDM_OK: the file exists */
    tdm_checkpoint_invitation invitation;
    uint64_t step;
} opening;

/* Keeps a failure of the opening as result, on all ranks. */
static void saver_keep_failure(tdm__saver *s, const tdm__save *what, const opening *open)
{
    tdm__saved saved = {.status = open->error.status, .step = open->step};
    snprintf(saved.message, sizeof(saved.message), "%s", open->error.message);
    if (s->rank == 0) {
        snprintf(saved.path, sizeof(saved.path), "%s", what->path);
        saver_free_disk_space(s, what, &saved);
    }
    saver_keep_result(s, &saved);
}

static tdm_status saver_agree_on_mode(tdm__saver *s, tdm__saver_job *job, const opening *open,
                                      save_mode *out, tdm_error *err)
{
    enum { CANNOT_JOIN = 1, CANNOT_COPY = 2 };
    unsigned flags = 0;
    if (s->writer_index > 0 &&
        job_join_file(job, &open->invitation, &(tdm_error){.status = TDM_OK}) != TDM_OK)
        flags |= CANNOT_JOIN;
    if (!s->options.background || s->waits || s->in_files || !saver_copy_fits(s))
        flags |= CANNOT_COPY;
    TDM_TRY(tdm_comm_agree(s->comm, TDM_OK, &flags, err));
    *out = (save_mode){.writers = flags & CANNOT_JOIN ? 1 : s->writer_count,
                       .copies = !(flags & CANNOT_COPY)};
    /* Ranks that do not write take no part in the save and would not wait for the copies of others. */
    out->lazy = s->options.lazy && out->writers == s->writer_count;
    return TDM_OK;
}

/* Fills the jobs of all ranks. *bad as in job_collect_pieces, the same on all ranks. */
static tdm_status saver_fill_job(tdm__saver *s, tdm__saver_job *job, const opening *open,
                                 save_mode *how, int64_t *bad, tdm_error *err)
{
    tdm_extent share = {0};
    bool writes = s->writer_index >= 0 && s->writer_index < how->writers;
    if (writes) share = saver_chunks_of(s, s->writer_index, how->writers);
    enum { NOT_COPIED = 1, HAS_BAD = 2 };
    tdm_status status = job_collect_pieces(s, job, share, how, open->invitation.data_at, bad, err);
    unsigned flags = (status != TDM_OK ? NOT_COPIED : 0) | (*bad >= 0 ? HAS_BAD : 0);
    TDM_TRY(tdm_comm_agree(s->comm, how->copies ? TDM_OK : status, &flags, err));
    if (flags & NOT_COPIED) { /* a rank has not enough memory */
        tdm_pages_unmap(&job->copy);
        job->phase = TDM__SAVER_WRITING;
        job->must_hold = how->copies = false;
        return saver_fill_job(s, job, open, how, bad, err);
    }

    if (!(flags & HAS_BAD) || tdm__size_of(s->comm) == 1) return TDM_OK;
    int64_t first = *bad < 0 ? INT64_MAX : *bad;
    TDM_TRY(tdm_group_all_reduce(tdm_comm_world(s->comm), NULL, &first, 1, TDM_DTYPE_I64,
                                 TDM_REDUCE_MIN, err));
    *bad = first;
    return TDM_OK;
}

static tdm_status saver_run_job(tdm__saver *s, tdm__saver_job *job, const save_mode *how,
                                tdm_error *err)
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
    if (has) saver_keep_result(s, &saved);
    return TDM_OK;
}

/* Saves a state that is sharded over several hosts, through rank 0. */
static tdm_status saver_save_sharded(tdm__saver *s, const tdm__save *what, tdm_error *err)
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
    if (tdm_status_group_of(saved.status) == TDM_STATUS_GROUP_PEER &&
        saved.status != TDM_ERR_PEER_FENCED)
        return tdm_fail(err, saved.status, "%s", why.message);
    if (saved.status != TDM_OK) snprintf(saved.message, sizeof(saved.message), "%s", why.message);

    saved.seconds = saved.stall_s = tdm_clock_s() - begin;
    if (saved.status == TDM_OK && s->rank == 0) {
        tdm_arena *arena = tdm_arena_create("retention");
        const char *dir = arena ? tdm_path_dirname(arena, what->path) : NULL;
        tdm_status status = dir ? tdm_checkpoint_note(dir, saved.step, &what->metrics, &why)
                                : tdm_fail_oom(&why, "in training");
        if (status == TDM_OK)
            status = tdm_checkpoint_retain(dir, &s->options.retention, saved.step, &why);
        if (status != TDM_OK) snprintf(saved.message, sizeof(saved.message), "%s", why.message);
        tdm_arena_destroy(arena);
    } else if (s->rank == 0) {
        saver_free_disk_space(s, what, &saved);
    }

    saver_keep_result(s, &saved);
    return TDM_OK;
}

/* Rank 0 creates the file and broadcasts the result. Collective. */
static tdm_status saver_open_file(tdm__saver *s, tdm__saver_job *job, const tdm__save *what,
                                  opening *out, tdm_error *err)
{
    memset(out, 0, sizeof(*out));
    if (s->rank == 0) {
        out->step = what->content->position.step;
        out->error.status = job ? job_create_file(s, job, what, &out->invitation, &out->error)
                                : tdm_fail_oom(&out->error, "in training");
    }
    if (tdm__size_of(s->comm) > 1)
        TDM_TRY(
            tdm_group_broadcast(tdm_comm_world(s->comm), out, sizeof(*out), TDM_DTYPE_U8, 0, err));
    out->invitation.temporary[sizeof(out->invitation.temporary) - 1] = '\0';
    out->error.message[sizeof(out->error.message) - 1] = '\0';
    return TDM_OK;
}

/* Starts the job. *taken: the job is owned by the saver or already freed. */
static tdm_status saver_begin_job(tdm__saver *s, tdm__saver_job *job, const tdm__save *what,
                                  const opening *open, const char **bad, bool *taken,
                                  tdm_error *err)
{
    save_mode how;
    int64_t bad_tensor = -1;
    job->board = s->board;
    job->comm = s->comm;
    job->rank = s->rank;
    job->writer_index = s->writer_index;
    job->saved.step = open->step;
    if (s->rank == 0) snprintf(job->saved.path, sizeof(job->saved.path), "%s", what->path);
    TDM_TRY(saver_agree_on_mode(s, job, open, &how, err));
    job->writer_count = how.writers;
    TDM_TRY(saver_fill_job(s, job, open, &how, &bad_tensor, err));
    *taken = true;
    if (bad_tensor >= 0) {
        *bad = s->state->tensors[bad_tensor].name;
        tdm__saver_job_abandon(job);
        return TDM_OK;
    }
    job->saved.stall_s = tdm_clock_s() - job->begin_s;
    return saver_run_job(s, job, &how, err);
}

tdm_status tdm__saver_begin(tdm__saver *saver, const tdm__save *what, const char **bad,
                            tdm_error *err)
{
    saver->waits = what->waits;
    tdm_error local;
    if (!err) err = &local;
    *bad = NULL;
    saver_end_job(saver);
    if (!saver->whole) {
        TDM_TRY(tdm__state_find_bad(saver->state, bad, err));
        return *bad ? TDM_OK : saver_save_sharded(saver, what, err);
    }

    /* All data is in place, and no thread of any rank uses the board. */
    TDM_TRY(tdm_params_settle(saver->state->store, err));
    if (saver->rank == 0) {
        atomic_store(&saver->board->done, 0);
        atomic_store(&saver->board->copied, 0);
        atomic_store(&saver->board->failed, 0);
        atomic_store(&saver->board->has_reason, 0);
    }

    tdm__saver_job *job = tdm__saver_job_create();
    opening open;
    tdm_status status = saver_open_file(saver, job, what, &open, err);
    if (status == TDM_OK && open.error.status == TDM_OK)
        status = tdm_comm_agree(saver->comm, job ? TDM_OK : tdm_fail_oom(err, "in training"), NULL,
                                err);
    if (status != TDM_OK || open.error.status != TDM_OK || !job) {
        if (status == TDM_OK) saver_keep_failure(saver, what, &open);
        tdm__saver_job_abandon(job);
        return status;
    }

    bool taken = false;
    status = saver_begin_job(saver, job, what, &open, bad, &taken, err);
    if (!taken) tdm__saver_job_abandon(job);
    return status;
}
