/*
 * saver_job.c: a rank's part of a save: pieces are hashed and written; rank 0 puts the file together.
 *
 * Invariants: a digest is on the board before its chunk counts as done; rank 0 asks for its file's name
 * only when all chunks are done, on the disk, and the gate has said yes; after it was abandoned a job
 * neither asks nor names anything. A job does not try again: a disk that has failed once may forget
 * what was written before, so the temporary file goes, and the next save begins anew.
 *
 * With a copy behind training, the state is touched under the lock and before the board says so; a torn
 * copy fails the save before anybody goes on.
 *
 * Rank 0 waits for others only as long as they get on: a rank that is gone, or the world's end, ends it.
 */
#include "train/saver_job.h"
#include "os/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define STILL_S 300.0 /* without any chunk that is done: something hangs */

#define HOLD_S 60.0 /* for a copy of a part of the state: far more than it ever takes */

enum { NAP_NS = 500000, SHORT_NAP_NS = 20000, NICENESS = 10 };

enum { MAX_GROUP = 64, MAX_RUN = 16 }; /* pieces that are hashed together, and written at once */

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
    job->begin_s = tdm_clock_s();
    return job;
}

/* Gives back what is large, and the files; what was not committed is gone. */
static void tidy_up(tdm__saver_job *job)
{
    tdm_checkpoint_writer_abandon(job->writer);
    tdm_file_writer_abandon(job->part);
    tdm_pages_unmap(&job->copy);
    job->writer = NULL;
    job->part = NULL;
}

static void job_free(tdm__saver_job *job)
{
    tidy_up(job);
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

static bool is_abandoned(tdm__saver_job *job)
{
    pthread_mutex_lock(&job->lock);
    bool abandoned = !job->board;
    pthread_mutex_unlock(&job->lock);
    return abandoned;
}

/* Under the lock: neither abandoned, nor failed anywhere. Once false, it stays so for this job. */
static bool is_good(const tdm__saver_job *job)
{
    return job->board && atomic_load(&job->board->failed) == 0;
}

/* Tells the others why this rank's part will be missing. */
static void tell_failure(tdm__saver_job *job, const tdm_error *why)
{
    pthread_mutex_lock(&job->lock);
    int none = 0;
    if (job->board &&
        atomic_compare_exchange_strong(&job->board->failed, &none, job->writer_index + 1)) {
        job->board->reason = *why;
        atomic_store(&job->board->has_reason, 1);
    }
    pthread_mutex_unlock(&job->lock);
}

/* False: the save is over, by a failure somewhere or because it was abandoned. */
static bool tell_done(tdm__saver_job *job, size_t chunk, const char digest[TDM_SHA256_HEX])
{
    pthread_mutex_lock(&job->lock);
    bool goes_on = is_good(job);
    if (goes_on) {
        memcpy(job->board->digests[chunk], digest, TDM_SHA256_HEX);
        atomic_fetch_add(&job->board->done, 1);
    }
    pthread_mutex_unlock(&job->lock);
    return goes_on;
}

/* ---- this rank's part -------------------------------------------------------------------------- */

/* Pieces that lie behind each other, here and in the file, as many as are written in one go. */
static size_t run_of(const tdm__saver_piece *pieces, size_t count)
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

/* Hashes some pieces together, and writes them. */
static tdm_status put_group(tdm__saver_job *job, size_t first, size_t count, bool *goes_on,
                            tdm_error *err)
{
    tdm_sha256_part parts[MAX_GROUP];
    const tdm__saver_piece *pieces = &job->pieces[first];
    for (size_t i = 0; i < count; i++)
        parts[i] = (tdm_sha256_part){.bytes = pieces[i].bytes, .count = pieces[i].count};
    if (tdm_sha256_of_many(parts, count) != TDM_OK)
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "out of memory to hash a checkpoint");
    for (size_t i = 0, n; i < count && *goes_on; i += n) {
        size_t bytes = 0;
        n = run_of(&pieces[i], count - i);
        for (size_t k = i; k < i + n; k++) {
            tdm_os_test_point(
                &(tdm_test_point){"checkpoint", job->saved.step, job->rank, first + k});
            bytes += pieces[k].count;
        }
        TDM_TRY(tdm_file_writer_write_at(job->part, pieces[i].place, pieces[i].bytes, bytes, err));
        for (size_t k = i; k < i + n && *goes_on; k++)
            *goes_on = tell_done(job, pieces[k].chunk, parts[k].hex);
    }
    return TDM_OK;
}

/* ---- a copy behind training ---------------------------------------------------------------------- */

/* One piece, under the lock: whoever abandons the job may take the state away right after. */
static bool copy_piece(tdm__saver_job *job, tdm__saver_piece *piece, char *to)
{
    pthread_mutex_lock(&job->lock);
    bool goes_on = is_good(job);
    if (goes_on) memcpy(to, piece->bytes, piece->count);
    pthread_mutex_unlock(&job->lock);
    piece->bytes = to;
    return goes_on;
}

static void copy_pieces(tdm__saver_job *job)
{
    bool goes_on = true;
    size_t bad = SIZE_MAX;
    for (size_t i = 0; i < job->piece_count && goes_on; i++) {
        tdm_os_test_point(&(tdm_test_point){"snapshot", job->saved.step, job->rank, i});
        char *to = (char *)job->copy.data + job->pieces[i].copy_at;
        goes_on = copy_piece(job, &job->pieces[i], to);
        if (goes_on && bad == SIZE_MAX && job->floats[i] &&
            tdm__has_bad_numbers(to, job->pieces[i].count))
            bad = i;
    }
    if (goes_on && bad != SIZE_MAX) {
        tdm_error why;
        tdm_fail(&why, TDM_ERR_DIVERGED, "tensor '%.200s' holds a number that is not finite",
                 job->names[bad]);
        tell_failure(job, &why);
    }
    pthread_mutex_lock(&job->lock);
    if (job->board) atomic_fetch_add(&job->board->copied, 1);
    pthread_mutex_unlock(&job->lock);
}

/* Whether nobody needs the state any more, or the save has failed. Only the thread that may abandon the
 * job calls this: the board is there. */
static bool is_copied(const tdm__saver_job *job)
{
    return atomic_load(&job->board->copied) >= job->writer_count ||
           atomic_load(&job->board->failed) != 0;
}

void tdm__saver_job_hold(tdm__saver_job *job)
{
    tdm_error why = {.status = TDM_OK};
    double until = tdm_clock_s() + HOLD_S;
    if (!job->copies || !job->board) return;
    while (!is_copied(job)) {
        if (job->comm && tdm_group_check(tdm_comm_world(job->comm), &why) != TDM_OK) break;
        if (tdm_clock_s() > until) {
            tdm_fail(&why, TDM_ERR_TIMEOUT, "a rank has not copied its part of the state in %.0f s",
                     HOLD_S);
            break;
        }
        tdm_clock_sleep(SHORT_NAP_NS * 1e-9);
    }
    /* What is copied from now on may be torn: nobody gets to commit that. */
    if (why.status != TDM_OK) tell_failure(job, &why);
    job->copies = false;
}

/* A copy that was cut short leaves pieces that point into the state, which may be gone any time. What cuts it
 * short ends the save for good, so nobody comes by such a piece here. */
static void put_pieces(tdm__saver_job *job)
{
    pthread_mutex_lock(&job->lock);
    bool goes_on = is_good(job);
    pthread_mutex_unlock(&job->lock);
    for (size_t i = 0, n; i < job->piece_count && goes_on; i += n) {
        tdm_error why = {.status = TDM_OK};
        n = job->piece_count - i < MAX_GROUP ? job->piece_count - i : MAX_GROUP;
        if (put_group(job, i, n, &goes_on, &why) == TDM_OK) continue;
        tell_failure(job, &why);
        break;
    }
    tdm_file_writer_abandon(job->part); /* the file stays: it is rank 0's */
    job->part = NULL;
}

/* ---- rank 0 ------------------------------------------------------------------------------------ */

/* Under the lock: whether somebody will never be done. */
static tdm_status look_after_others(tdm__saver_job *job, tdm_error *err)
{
    if (!job->comm) return TDM_OK;
    for (int i = 0; i < job->writer_count; i++)
        if (tdm_comm_peer_state(job->comm, job->writers[i]) == TDM_PEER_LOST)
            return tdm_fail(err, TDM_ERR_PEER_FAILED,
                            "rank %d is gone, and its part of the checkpoint with it",
                            job->writers[i]);
    return tdm_group_check(tdm_comm_world(job->comm), err);
}

static tdm_status fail_of_others(const tdm__saver_job *job, tdm_error *err)
{
    const tdm__saver_board *board = job->board;
    int rank = job->writers[atomic_load(&board->failed) - 1];
    if (rank == job->rank) return tdm_fail(err, board->reason.status, "%s", board->reason.message);
    return tdm_fail(err, board->reason.status, "rank %d: %.900s", rank, board->reason.message);
}

/* Whether all chunks are done; with an error when that will never be. */
static tdm_status look_at_board(tdm__saver_job *job, size_t *done, tdm_error *err)
{
    tdm_status status = TDM_OK;
    pthread_mutex_lock(&job->lock);
    if (!job->board)
        status = tdm_fail(err, TDM_ERR_INTERRUPTED, "the save was called off");
    else if (atomic_load(&job->board->failed) != 0 && atomic_load(&job->board->has_reason))
        status = fail_of_others(job, err);
    else
        status = look_after_others(job, err);
    if (status == TDM_OK) *done = atomic_load(&job->board->done);
    pthread_mutex_unlock(&job->lock);
    return status;
}

static tdm_status await_all(tdm__saver_job *job, tdm_error *err)
{
    size_t seen = 0, done = 0;
    double since = tdm_clock_s();
    for (;;) {
        TDM_TRY(look_at_board(job, &done, err));
        if (done >= job->chunk_count) return TDM_OK;
        if (done != seen) since = tdm_clock_s();
        seen = done;
        if (tdm_clock_s() - since > STILL_S)
            return tdm_fail(err, TDM_ERR_TIMEOUT,
                            "%zu of %zu parts are written, and none was for %.0f seconds", done,
                            job->chunk_count, STILL_S);
        tdm_clock_sleep(NAP_NS * 1e-9);
    }
}

static tdm_status accept_all(tdm__saver_job *job, tdm_error *err)
{
    pthread_mutex_lock(&job->lock);
    tdm_status status = TDM_OK;
    if (!job->board) status = tdm_fail(err, TDM_ERR_INTERRUPTED, "the save was called off");
    for (size_t i = 0; i < job->chunk_count && status == TDM_OK; i++)
        status = tdm_checkpoint_writer_accept(job->writer, i, job->board->digests[i], err);
    pthread_mutex_unlock(&job->lock);
    return status;
}

/* The lock is held while others are asked, so that they are there as long as that takes. */
static tdm_status may_commit(void *user, tdm_error *err)
{
    tdm__saver_job *job = user;
    tdm_os_test_point(&(tdm_test_point){"commit", job->saved.step, job->rank, 0});
    pthread_mutex_lock(&job->lock);
    tdm_status status = TDM_OK;
    if (!job->board)
        status = tdm_fail(err, TDM_ERR_INTERRUPTED, "the save was called off");
    else if (job->outer.may_commit)
        status = job->outer.may_commit(job->outer.user, err);
    pthread_mutex_unlock(&job->lock);
    return status;
}

/* The new file is there for good: now old ones may go. */
static void retain(tdm__saver_job *job)
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
    /* Ranks that were replaced remove nothing. */
    if (gate->may_commit && gate->may_commit(gate->user, &why) != TDM_OK) return;
    /* What keeps it from that is not worth a word: the save itself has failed, and says why. */
    (void)tdm_checkpoint_free_space(shortage->dir, shortage->retention, shortage->bytes,
                                    &saved->removed, &why);
}

static void put_together(tdm__saver_job *job)
{
    tdm_error why = {.status = TDM_OK};
    tdm__saved *saved = &job->saved;
    job->gate = (tdm_commit_gate){.may_commit = may_commit, .user = job};
    saved->status = await_all(job, &why);
    if (saved->status == TDM_OK) saved->status = accept_all(job, &why);
    if (saved->status == TDM_OK) {
        tdm_checkpoint_writer_gate(job->writer, &job->gate);
        saved->status = tdm_checkpoint_writer_commit(job->writer, saved->state_hash, &why);
        job->writer = NULL;
    }
    if (saved->status != TDM_OK)
        snprintf(saved->message, sizeof(saved->message), "%s", why.message);
    else if (job->dir && !is_abandoned(job))
        retain(job);
    tdm_checkpoint_writer_abandon(job->writer);
    job->writer = NULL;
    if (saved->status != TDM_OK && job->dir)
        tdm__saver_free_space(&(tdm__saver_shortage){job->dir, &job->retention, job->file_bytes},
                              &job->gate, saved);
    saved->seconds = tdm_clock_s() - job->begin_s;
}

/* ---- life -------------------------------------------------------------------------------------- */

void tdm__saver_job_run(tdm__saver_job *job)
{
    if (job->names) copy_pieces(job);
    put_pieces(job);
    if (job->writer) put_together(job);
    pthread_mutex_lock(&job->lock);
    job->ended = true;
    pthread_mutex_unlock(&job->lock);
}

static void *work(void *argument)
{
    tdm__saver_job *job = argument;
    if (job->names) copy_pieces(job); /* others wait for that */
    if (job->yields) (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICENESS);
    put_pieces(job);
    if (job->writer) put_together(job);
    pthread_mutex_lock(&job->lock);
    job->ended = true;
    bool mine = job->detached;
    pthread_mutex_unlock(&job->lock);
    if (mine) job_free(job);
    return NULL;
}

void tdm__saver_job_start(tdm__saver_job *job)
{
    job->has_thread = tdm__thread_start(&job->thread, work, job, NULL) == TDM_OK;
    if (!job->has_thread) tdm__saver_job_run(job);
}

bool tdm__saver_job_ended(tdm__saver_job *job)
{
    pthread_mutex_lock(&job->lock);
    bool ended = job->ended;
    pthread_mutex_unlock(&job->lock);
    return ended;
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
    job->board = NULL;
    job->comm = NULL;
    bool runs = job->has_thread && !job->ended;
    job->detached = runs;
    if (runs) pthread_detach(job->thread);
    pthread_mutex_unlock(&job->lock);
    if (runs) return; /* the thread frees it */
    tdm__saver_job_join(job);
    job_free(job);
}
