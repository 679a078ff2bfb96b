/*
 * saver_job.c: a rank's part of a save: hashes and writes its pieces; rank 0 completes the file.
 *
 * Invariants: a digest is on the board before its chunk counts as done. Rank 0 renames the file
 * only when all chunks are done and on the disk and the gate has allowed it. An abandoned job neither calls the
 * gate nor renames. A job does not retry: a disk that failed once may lose
 * earlier writes, so the temporary file is removed, and the next save starts again.
 *
 * The phases of a job are in saver_job.h. A copy made during training reads the state under the lock and before the board reports it as copied; an
 * inconsistent copy fails the save before training continues.
 *
 * Rank 0 waits for others only while they make progress; a lost rank or the end of the world ends the save.
 */
#include "train/saver_job.h"
#include "base/base.h"
#include "base/timing.h"
#include "os/os.h"
#include "os/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { NICENESS = 10 };

enum { MAX_GROUP = 64, MAX_RUN = 16 }; /* pieces hashed together, and written at once */

tdm__saver_job *tdm__saver_job_create(void)
{
    tdm__saver_job *job = calloc(1, sizeof(*job));
    if (!job) return NULL;
    job->arena = tdm_arena_create("save");
    if (!job->arena || pthread_mutex_init(&job->lock, NULL) != 0) {
        tdm_arena_destroy(job->arena);
        free(job);
        return NULL;
    }
    job->phase = TDM__SAVER_WRITING;
    job->begin_s = tdm_clock_s();
    return job;
}

/* Releases memory and files; an uncommitted file is removed. */
static void job_release(tdm__saver_job *job)
{
    tdm_checkpoint_writer_abandon(job->writer);
    tdm_file_writer_abandon(job->part);
    tdm_pages_unmap(&job->copy);
    job->writer = NULL;
    job->part = NULL;
}

static void job_free(tdm__saver_job *job)
{
    job_release(job);
    pthread_mutex_destroy(&job->lock);
    tdm_arena_destroy(job->arena);
    free(job);
}

bool tdm__has_bad_numbers(const void *bytes, size_t count)
{
    const float *numbers = bytes;
    uint32_t bad = 0;
    for (size_t i = 0; i < count / sizeof(float); i++) {
        uint32_t bits;
        memcpy(&bits, &numbers[i], sizeof(bits));
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return bad != 0;
}

/* ---- the board --------------------------------------------------------------------------------- */

static tdm__saver_phase job_phase(tdm__saver_job *job)
{
    pthread_mutex_lock(&job->lock);
    tdm__saver_phase phase = job->phase;
    pthread_mutex_unlock(&job->lock);
    return phase;
}

/* Under the lock: neither abandoned nor failed on any rank. Once false, it stays false for this job. */
static bool job_is_good(const tdm__saver_job *job)
{
    return job->phase != TDM__SAVER_ABANDONED && atomic_load(&job->board->failed) == 0;
}

/* Reports on the board why this rank's part is missing. */
static void job_report_failure(tdm__saver_job *job, const tdm_error *why)
{
    pthread_mutex_lock(&job->lock);
    int none = 0;
    if (job->phase != TDM__SAVER_ABANDONED &&
        atomic_compare_exchange_strong(&job->board->failed, &none, job->writer_index + 1)) {
        job->board->reason = *why;
        atomic_store(&job->board->has_reason, 1);
    }
    pthread_mutex_unlock(&job->lock);
}

/* False: the save has failed on some rank or was abandoned. */
static bool job_report_chunk(tdm__saver_job *job, size_t chunk, const char digest[TDM_SHA256_HEX])
{
    pthread_mutex_lock(&job->lock);
    bool continues = job_is_good(job);
    if (continues) {
        memcpy(job->board->digests[chunk], digest, TDM_SHA256_HEX);
        atomic_fetch_add(&job->board->done, 1);
    }
    pthread_mutex_unlock(&job->lock);
    return continues;
}

/* ---- this rank's part -------------------------------------------------------------------------- */

/* The number of adjacent pieces, in memory and in the file, that are written at once. */
static size_t pieces_adjacent(const tdm__saver_piece *pieces, size_t count)
{
    size_t n = 1;
    while (n < count && n < MAX_RUN) {
        const tdm__saver_piece *last = &pieces[n - 1], *next = &pieces[n];
        bool follows = next->place == last->place + last->count &&
                       next->bytes == (const char *)last->bytes + last->count;
        if (!follows) break;
        n++;
    }
    return n;
}

/* Hashes some pieces together and writes them. */
static tdm_status job_write_group(tdm__saver_job *job, size_t first, size_t count, bool *continues,
                                  tdm_error *err)
{
    tdm_sha256_part parts[MAX_GROUP];
    const tdm__saver_piece *pieces = &job->pieces[first];
    for (size_t i = 0; i < count; i++)
        parts[i] = (tdm_sha256_part){.bytes = pieces[i].bytes, .count = pieces[i].count};
    if (tdm_sha256_of_many(parts, count) != TDM_OK)
        return tdm_fail_oom(err, "to hash a checkpoint");
    for (size_t i = 0, n; i < count && *continues; i += n) {
        size_t bytes = 0;
        n = pieces_adjacent(&pieces[i], count - i);
        for (size_t k = i; k < i + n; k++) {
            tdm_os_test_point(
                &(tdm_test_point){"checkpoint", job->saved.step, job->rank, first + k});
            bytes += pieces[k].count;
        }
        TDM_TRY(tdm_file_writer_write_at(job->part, pieces[i].place, pieces[i].bytes, bytes, err));
        for (size_t k = i; k < i + n && *continues; k++)
            *continues = job_report_chunk(job, pieces[k].chunk, parts[k].hex);
    }
    return TDM_OK;
}

/* ---- copying during training --------------------------------------------------------------------- */

/* Copies one piece, under the lock: the thread that abandons the job may free the state right after. */
static bool job_copy_piece(tdm__saver_job *job, tdm__saver_piece *piece, char *to)
{
    pthread_mutex_lock(&job->lock);
    bool continues = job_is_good(job);
    if (continues) memcpy(to, piece->bytes, piece->count);
    pthread_mutex_unlock(&job->lock);
    piece->bytes = to;
    return continues;
}

static void job_copy_pieces(tdm__saver_job *job)
{
    bool continues = true;
    size_t bad = SIZE_MAX;
    for (size_t i = 0; i < job->piece_count && continues; i++) {
        tdm_os_test_point(&(tdm_test_point){"snapshot", job->saved.step, job->rank, i});
        char *to = (char *)job->copy.data + job->pieces[i].copy_at;
        continues = job_copy_piece(job, &job->pieces[i], to);
        if (continues && bad == SIZE_MAX && job->floats[i] &&
            tdm__has_bad_numbers(to, job->pieces[i].count))
            bad = i;
    }
    if (continues && bad != SIZE_MAX) {
        tdm_error why;
        tdm_fail(&why, TDM_ERR_DIVERGED, "tensor '%.200s' has a non-finite value", job->names[bad]);
        job_report_failure(job, &why);
    }
    pthread_mutex_lock(&job->lock);
    if (job->phase != TDM__SAVER_ABANDONED) {
        job->phase = TDM__SAVER_WRITING;
        atomic_fetch_add(&job->board->copied, 1);
    }
    pthread_mutex_unlock(&job->lock);
}

/* Whether all writers have copied the state, or the save has failed. Only called by the thread that may abandon
 * the job, so the board exists. */
static bool job_is_copied(const tdm__saver_job *job)
{
    return atomic_load(&job->board->copied) >= job->writer_count ||
           atomic_load(&job->board->failed) != 0;
}

void tdm__saver_job_hold(tdm__saver_job *job)
{
    tdm_error why = {.status = TDM_OK};
    double until = tdm_clock_s() + TDM__TIMING_TRAIN_SAVE_HOLD_S;
    if (!job->must_hold) return;
    while (!job_is_copied(job)) {
        if (job->comm && tdm_group_check(tdm_comm_world(job->comm), &why) != TDM_OK) break;
        if (tdm_clock_s() > until) {
            tdm_fail(&why, TDM_ERR_TIMEOUT, "a rank did not copy its part of the state in %.0f s",
                     TDM__TIMING_TRAIN_SAVE_HOLD_S);
            break;
        }
        tdm_clock_sleep(TDM__TIMING_TRAIN_SAVE_HOLD_CHECK_S);
    }
    /* Copies made from now on may be inconsistent and must not be committed. */
    if (why.status != TDM_OK) job_report_failure(job, &why);
    job->must_hold = false;
}

/* An interrupted copy leaves pieces that point into the state, which may be freed at any time. An interruption
 * also ends the save, so such pieces are not reached here. */
static void job_write_pieces(tdm__saver_job *job)
{
    pthread_mutex_lock(&job->lock);
    bool continues = job_is_good(job);
    pthread_mutex_unlock(&job->lock);
    for (size_t i = 0, n; i < job->piece_count && continues; i += n) {
        tdm_error why = {.status = TDM_OK};
        n = job->piece_count - i < MAX_GROUP ? job->piece_count - i : MAX_GROUP;
        if (job_write_group(job, i, n, &continues, &why) == TDM_OK) continue;
        job_report_failure(job, &why);
        break;
    }
    tdm_file_writer_abandon(job->part); /* the file remains: it belongs to rank 0 */
    job->part = NULL;
}

/* ---- rank 0 ------------------------------------------------------------------------------------ */

/* Under the lock: fails if a writer cannot complete its part. */
static tdm_status job_check_peers(tdm__saver_job *job, tdm_error *err)
{
    if (!job->comm) return TDM_OK;
    for (int i = 0; i < job->writer_count; i++)
        if (tdm_comm_peer_state(job->comm, job->writers[i]) == TDM_PEER_LOST)
            return tdm_fail(err, TDM_ERR_PEER_FAILED,
                            "rank %d is lost, and its part of the checkpoint with it",
                            job->writers[i]);
    return tdm_group_check(tdm_comm_world(job->comm), err);
}

static tdm_status job_fail_of_peer(const tdm__saver_job *job, tdm_error *err)
{
    const tdm__saver_board *board = job->board;
    int rank = job->writers[atomic_load(&board->failed) - 1];
    if (rank == job->rank) return tdm_fail(err, board->reason.status, "%s", board->reason.message);
    return tdm_fail(err, board->reason.status, "rank %d: %.900s", rank, board->reason.message);
}

/* Reads the number of completed chunks; fails if the rest cannot be completed. */
static tdm_status job_poll_board(tdm__saver_job *job, size_t *done, tdm_error *err)
{
    tdm_status status = TDM_OK;
    pthread_mutex_lock(&job->lock);
    if (job->phase == TDM__SAVER_ABANDONED)
        status = tdm_fail(err, TDM_ERR_INTERRUPTED, "the save was abandoned");
    else if (atomic_load(&job->board->failed) != 0 && atomic_load(&job->board->has_reason))
        status = job_fail_of_peer(job, err);
    else
        status = job_check_peers(job, err);
    if (status == TDM_OK) *done = atomic_load(&job->board->done);
    pthread_mutex_unlock(&job->lock);
    return status;
}

static tdm_status job_await_chunks(tdm__saver_job *job, tdm_error *err)
{
    size_t seen = 0, done = 0;
    double since = tdm_clock_s();
    for (;;) {
        TDM_TRY(job_poll_board(job, &done, err));
        if (done >= job->chunk_count) return TDM_OK;
        if (done != seen) since = tdm_clock_s();
        seen = done;
        if (tdm_clock_s() - since > TDM__TIMING_TRAIN_SAVE_PROGRESS_S)
            return tdm_fail(err, TDM_ERR_TIMEOUT,
                            "%zu of %zu parts are written, and none within %.0f seconds", done,
                            job->chunk_count, TDM__TIMING_TRAIN_SAVE_PROGRESS_S);
        tdm_clock_sleep(TDM__TIMING_TRAIN_SAVE_CHECK_S);
    }
}

static tdm_status job_accept_chunks(tdm__saver_job *job, tdm_error *err)
{
    pthread_mutex_lock(&job->lock);
    tdm_status status = TDM_OK;
    if (job->phase == TDM__SAVER_ABANDONED)
        status = tdm_fail(err, TDM_ERR_INTERRUPTED, "the save was abandoned");
    for (size_t i = 0; i < job->chunk_count && status == TDM_OK; i++)
        status = tdm_checkpoint_writer_accept(job->writer, i, job->board->digests[i], err);
    pthread_mutex_unlock(&job->lock);
    return status;
}

/* The lock is held during the call, so that the objects it uses exist until it returns. */
static tdm_status job_may_commit(void *user, tdm_error *err)
{
    tdm__saver_job *job = user;
    tdm_os_test_point(&(tdm_test_point){"commit", job->saved.step, job->rank, 0});
    pthread_mutex_lock(&job->lock);
    tdm_status status = TDM_OK;
    if (job->phase == TDM__SAVER_ABANDONED)
        status = tdm_fail(err, TDM_ERR_INTERRUPTED, "the save was abandoned");
    else if (job->outer.may_commit)
        status = job->outer.may_commit(job->outer.user, err);
    pthread_mutex_unlock(&job->lock);
    return status;
}

/* The new file is in place: removes old ones. */
static void job_apply_retention(tdm__saver_job *job)
{
    tdm_error why = {.status = TDM_OK};
    tdm_status status = tdm_checkpoint_note(job->dir, job->saved.step, &job->metrics, &why);
    if (status == TDM_OK)
        status = tdm_checkpoint_retain(job->dir, &job->retention, job->saved.step, &why);
    if (status == TDM_OK) return;
    snprintf(job->saved.message, sizeof(job->saved.message), "%s", why.message);
}

void tdm__saver_free_space(const tdm__saver_shortage *shortage, const tdm_commit_gate *gate,
                           tdm__saved *saved)
{
    tdm_error why = {.status = TDM_OK};
    if (saved->status != TDM_ERR_NO_SPACE) return;
    /* Fenced ranks remove nothing. */
    if (gate->may_commit && gate->may_commit(gate->user, &why) != TDM_OK) return;
    /* Errors are ignored: the save itself has failed and reports the reason. */
    (void)tdm_checkpoint_free_space(shortage->dir, shortage->retention, shortage->bytes,
                                    &saved->removed, &why);
}

static void job_complete_file(tdm__saver_job *job)
{
    tdm_error why = {.status = TDM_OK};
    tdm__saved *saved = &job->saved;
    job->gate = (tdm_commit_gate){.may_commit = job_may_commit, .user = job};
    saved->status = job_await_chunks(job, &why);
    if (saved->status == TDM_OK) saved->status = job_accept_chunks(job, &why);
    if (saved->status == TDM_OK) {
        tdm_checkpoint_writer_gate(job->writer, &job->gate);
        saved->status = tdm_checkpoint_writer_commit(job->writer, saved->state_hash, &why);
        job->writer = NULL;
    }
    if (saved->status != TDM_OK)
        snprintf(saved->message, sizeof(saved->message), "%s", why.message);
    else if (job->dir && job_phase(job) != TDM__SAVER_ABANDONED)
        job_apply_retention(job);
    tdm_checkpoint_writer_abandon(job->writer);
    job->writer = NULL;
    if (saved->status != TDM_OK && job->dir)
        tdm__saver_free_space(&(tdm__saver_shortage){job->dir, &job->retention, job->file_bytes},
                              &job->gate, saved);
    saved->seconds = tdm_clock_s() - job->begin_s;
}

/* ---- threads and destruction ------------------------------------------------------------------- */

/* Executes the whole job; false if it was abandoned meanwhile. With `yields`, this thread gets a lower priority than
 * training as soon as no rank waits for it. */
static bool job_work(tdm__saver_job *job, bool yields)
{
    if (job_phase(job) == TDM__SAVER_COPYING) job_copy_pieces(job);
    if (yields) (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICENESS);
    job_write_pieces(job);
    if (job->writer) job_complete_file(job);
    pthread_mutex_lock(&job->lock);
    bool has_owner = job->phase != TDM__SAVER_ABANDONED;
    if (has_owner) job->phase = TDM__SAVER_ENDED;
    pthread_mutex_unlock(&job->lock);
    return has_owner;
}

void tdm__saver_job_run(tdm__saver_job *job)
{
    (void)job_work(job, false);
}

static void *job_thread(void *argument)
{
    tdm__saver_job *job = argument;
    if (!job_work(job, job->yields)) job_free(job);
    return NULL;
}

void tdm__saver_job_start(tdm__saver_job *job)
{
    job->has_thread = tdm__thread_start(&job->thread, job_thread, job, NULL) == TDM_OK;
    if (!job->has_thread) tdm__saver_job_run(job);
}

bool tdm__saver_job_ended(tdm__saver_job *job)
{
    /* Until hold, the job remembers that the copies of other ranks may not be complete. */
    return job_phase(job) == TDM__SAVER_ENDED && (!job->must_hold || job_is_copied(job));
}

void tdm__saver_job_join(tdm__saver_job *job)
{
    if (job->has_thread) pthread_join(job->thread, NULL);
    job->has_thread = false;
}

void tdm__saver_job_abandon(tdm__saver_job *job)
{
    if (!job) return;
    pthread_mutex_lock(&job->lock);
    bool runs = job->has_thread && job->phase != TDM__SAVER_ENDED;
    job->phase = TDM__SAVER_ABANDONED;
    if (runs) pthread_detach(job->thread);
    pthread_mutex_unlock(&job->lock);
    if (runs) return; /* the thread frees the job */
    tdm__saver_job_join(job);
    job_free(job);
}
