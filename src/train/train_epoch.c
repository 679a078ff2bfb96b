/*
 * train_epoch.c: the training loop, over membership epochs.
 *
 * A worker takes part in a sequence of membership epochs (elastic.h). In a session, members come and go, and the
 * membership module decides when an epoch begins and ends. A single process, and ranks whose launcher cannot
 * replace them (mpirun with the transport mpi, `tandem run`, a program that passes its own comm), have one epoch:
 * the same code with a comm that is already open, without shared memory that outlives the processes, and with
 * the loss of a rank as an error.
 *
 * In each epoch of a session a worker opens the epoch's world,
 * attaches a parameter store to the shared memory of its host, and finds the state together with the other ranks:
 * in memory, where an interrupted update is completed first (tdm_params_recover); else in the newest
 * checkpoint of the run; else nowhere, and training starts from the initial values. Then it trains step by step,
 * until the run ends or a member is lost.
 *
 * State of a rank outside the parameter store (position, evaluation results, the last ledger line) is
 * saved as a snapshot in shared memory after each step, and again when the work due after the step is
 * done. The next epoch continues from the latest snapshot: metrics, evaluation and checkpoint of the step are
 * repeated if no rank completed them; lines already written to files are removed first.
 *
 * Invariants: position and blocks match: a snapshot is of the state's step, or of the step before it, and
 * then the step's record in shared memory has its result. Only rank 0 of the current epoch makes changes
 * visible on disk, and it asks the store for confirmation before that.
 */
#include "base/base.h"
#include "base/timing.h"
#include "job/job.h"
#include "kv/kv.h"
#include "membership/membership.h"
#include "nn/nn.h"
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIN_DEADLINE_S = 30, DEADLINE_STEPS = 20 };

/* Saved in shared memory beside the blocks. Plain numbers only. */
typedef struct trainer_snapshot {
    tdm_position position;
    tdm_plateau plateau, early_stop;
    tdm__skips skips;
    double rounds, choice;
    double loss, grad_norm, smooth_loss, lr, consensus, divergence, period;
    tdm_metrics test;
    tdm__ledger_line line;
    tdm__traffic traffic;
    double step_seconds; /* of this session, for the summary, like the next two */
    uint64_t first_sample, first_step;
    uint32_t has_test, ended_early, after_done, step_skipped;
} trainer_snapshot;
_Static_assert(sizeof(trainer_snapshot) <= TDM_SNAPSHOT_BYTES, "a snapshot must fit");

static void snapshot_save(tdm__trainer *t)
{
    const tdm_train_status *s = &t->status;
    trainer_snapshot m = {.position = t->position,
                          .plateau = t->state.plateau,
                          .early_stop = t->state.early_stop,
                          .skips = t->state.skips,
                          .rounds = t->state.rounds,
                          .choice = t->state.choice,
                          .loss = s->loss,
                          .grad_norm = s->grad_norm,
                          .smooth_loss = s->smooth_loss,
                          .lr = s->lr,
                          .consensus = s->consensus,
                          .divergence = s->divergence,
                          .period = t->state.period,
                          .test = s->test,
                          .line = t->ledger.line,
                          .traffic = t->traffic,
                          .step_seconds = t->clock.step_seconds,
                          .first_sample = t->clock.first_sample,
                          .first_step = t->clock.first_step,
                          .has_test = s->has_test,
                          .ended_early = t->ended_early,
                          .after_done = t->phase != TDM__TRAIN_STEPPED,
                          .step_skipped = s->step_skipped};
    tdm_params_snapshot_save(t->state.store, &m, sizeof(m),
                             2 * tdm__updates_of(t) + 1 + m.after_done);
}

static void snapshot_load(tdm__trainer *t, const trainer_snapshot *m)
{
    tdm_train_status *s = &t->status;
    t->position = m->position;
    t->state.plateau = m->plateau;
    t->state.early_stop = m->early_stop;
    t->state.skips = m->skips;
    t->state.rounds = m->rounds;
    t->state.choice = m->choice;
    s->loss = m->loss;
    s->grad_norm = m->grad_norm;
    s->smooth_loss = m->smooth_loss;
    s->lr = m->lr;
    s->consensus = m->consensus;
    s->divergence = m->divergence;
    t->state.period = m->period;
    s->test = m->test;
    s->has_test = m->has_test != 0;
    s->step_skipped = m->step_skipped != 0;
    s->skipped = tdm__skipped_of(t);
    t->ledger.line = m->line;
    t->traffic = m->traffic;
    if (m->line.step > 0) tdm__lines_remember(&tdm__ledger_format, t->ledger.recent, &m->line);
    if (!t->session.has_entered) { /* this process joined after the session began */
        t->clock.step_seconds = m->step_seconds;
        t->clock.first_sample = m->first_sample;
        t->clock.first_step = m->first_step;
    }
    t->ended_early = m->ended_early != 0;
    if (!m->after_done)
        t->phase = TDM__TRAIN_STEPPED;
    else if (t->phase == TDM__TRAIN_STEPPED)
        t->phase = TDM__TRAIN_SETTLED;
}

/* ---- the world of an epoch ------------------------------------------------------------------- */

static bool should_give_up(void *user)
{
    tdm__trainer *t = user;
    return !tdm_member_epoch_holds(t->options->member, t->session.epoch);
}

static void note_refused(void *user, int rank, const char *why)
{
    tdm__trainer *t = user;
    t->session.refused_rank = rank;
    snprintf(t->session.refused_why, sizeof(t->session.refused_why), "%.*s", TDM_LOST_BYTES - 1,
             why);
}

static void endpoint_publish(void *user, const char *address)
{
    tdm__trainer *t = user;
    tdm_error why = {0};
    if (tdm_member_publish_endpoint(t->options->member, t->session.epoch, address, &why) != TDM_OK)
        tdm_log(TDM_LOG_WARN, "train", "epoch %u: %s", (unsigned)t->session.epoch, why.message);
}

/* How long ranks wait for each other: many times the longest step. */
static double deadline_of(const tdm__trainer *t)
{
    if (t->job->elastic.stall > 0) return t->job->elastic.stall;
    double by_step = DEADLINE_STEPS * t->clock.longest_step_s;
    return by_step > MIN_DEADLINE_S ? by_step : MIN_DEADLINE_S;
}

/* Ranks of one host meet at a UNIX socket, which other users and hosts cannot reach. */
static bool is_one_host(const tdm_epoch *epoch)
{
    for (int i = 1; i < epoch->size; i++)
        if (strcmp(epoch->members[i].host, epoch->members[0].host) != 0) return false;
    return true;
}

/* At this address, with a port that the system chooses. */
static void endpoint_name(const char *address, char out[TDM_ENDPOINT_BYTES])
{
    bool is_v6 = strchr(address, ':') && *address != '[';
    snprintf(out, TDM_ENDPOINT_BYTES, is_v6 ? "[%s]:0" : "%s:0", address);
}

/* Whether this worker joins a run that others have trained. */
static bool is_newcomer(const tdm__trainer *t, const tdm_epoch *epoch)
{
    return epoch->lineage > 0 && epoch->rank > 0 && !t->session.has_entered;
}

/* This host is not set up as the others are (its certificate's file, for example): the others continue without
 * it, instead of ending the run. */
static tdm_status refuse_itself(tdm__trainer *t, tdm_error *err)
{
    note_refused(t, 0, err ? err->message : "");
    return tdm_fail(err, TDM_ERR_PEER_REFUSED, "this host cannot take part: %s",
                    t->session.refused_why);
}

static tdm_status world_open(tdm__trainer *t, const tdm_epoch *epoch, tdm_error *err)
{
    const char *address = getenv("TANDEM_ADDRESS");
    char endpoint[TDM_ENDPOINT_BYTES];
    t->session.refused_rank = -1;
    if (epoch->size == 1) return TDM_OK;
    if (is_one_host(epoch))
        snprintf(endpoint, sizeof(endpoint), "unix:");
    else
        endpoint_name(address && *address ? address : "127.0.0.1", endpoint);
    if (epoch->rank > 0)
        TDM_TRY(tdm_member_lookup_endpoint(t->options->member, epoch->number,
                                           TDM__TIMING_TRAIN_WORLD_JOIN_S, endpoint, err));

    tdm_comm_options o = {.rendezvous = endpoint,
                          .job = t->schedule.job_hash,
                          .has_place = true,
                          .rank = epoch->rank,
                          .size = epoch->size,
                          .epoch = epoch->number,
                          .deadline_s = deadline_of(t),
                          .join_s = TDM__TIMING_TRAIN_WORLD_JOIN_S,
                          .host = epoch->members[epoch->rank].host,
                          .should_give_up = should_give_up,
                          .on_listen = endpoint_publish,
                          .on_refused = note_refused,
                          .user = t};
    tdm_comm *comm = NULL;
    tdm_train_comm(t->job, &o);
    tdm_status status = tdm_comm_open(&o, &comm, err);
    if (status == TDM_ERR_INVALID && is_newcomer(t, epoch)) status = refuse_itself(t, err);
    TDM_TRY(status);
    pthread_mutex_lock(&t->session.comm_lock);
    t->comm = comm;
    bool late = t->session.is_interrupted;
    pthread_mutex_unlock(&t->session.comm_lock);
    return late ? tdm_fail(err, TDM_ERR_PEER_FAILED, "the epoch ended before its world was open")
                : TDM_OK;
}

static void world_interrupt(void *user, const char *why)
{
    tdm__trainer *t = user;
    pthread_mutex_lock(&t->session.comm_lock);
    t->session.is_interrupted = true;
    if (t->comm) tdm_comm_revoke(t->comm, why);
    pthread_mutex_unlock(&t->session.comm_lock);
}

static void world_leave(void *user)
{
    tdm__trainer *t = user;
    tdm__saver_destroy(t->saves.saver); /* a checkpoint in progress is discarded */
    t->saves.saver = NULL;
    t->requests.serving = 0; /* the next epoch answers the request */
    tdm_prefetch_destroy(t->prefetch);
    tdm_team_destroy(t->team);
    t->prefetch = NULL;
    t->team = NULL;
    t->watch.has_rates = false;
    tdm__state_leave(&t->state);
    pthread_mutex_lock(&t->session.comm_lock);
    tdm_comm *comm = t->comm;
    t->comm = NULL;
    t->session.is_interrupted =
        false; /* not in epoch_enter: an interrupt for the next epoch may come before that */
    pthread_mutex_unlock(&t->session.comm_lock);
    tdm_comm_close(comm);
}

/* Reports progress for `tandem ps`. */
static void member_report(const tdm__trainer *t, const char *phase)
{
    bool moves = strcmp(phase, "training") == 0 || strcmp(phase, "saving") == 0;
    tdm_member_status s = {.step = t->position.step,
                           .step_count = t->schedule.step_count,
                           .samples_per_s = moves ? t->status.samples_per_s : 0,
                           .sent_bytes = t->traffic.sent_bytes,
                           .compression = tdm__traffic_ratio(&t->traffic),
                           .run_path = t->session.run_path,
                           .phase = phase};
    if (t->options->member) tdm_member_tell(t->options->member, &s);
}

/* Reports "recovering": no rank trains until the next epoch. */
static void epoch_leave(void *user)
{
    tdm__trainer *t = user;
    world_leave(t);
    if (t->phase != TDM__TRAIN_ENDED) member_report(t, "recovering");
}

static tdm_lost peer_lost_how(void *user, int rank, char how[TDM_LOST_BYTES])
{
    static const char *const signs[] = {
        [TDM_SIGN_NONE] = "",
        [TDM_SIGN_CLOSED] = "its connection was closed",
        [TDM_SIGN_TRANSPORT] = "it cannot be reached",
        [TDM_SIGN_SILENCE] = "it did not answer",
        [TDM_SIGN_TOLD] = "",
    };
    tdm__trainer *t = user;
    tdm_peer_loss loss;
    if (rank == t->session.refused_rank) {
        memcpy(how, t->session.refused_why, TDM_LOST_BYTES);
        return TDM_LOST_REFUSED;
    }
    if (!t->comm || rank == tdm_comm_rank(t->comm) || !tdm_comm_peer_loss(t->comm, rank, &loss))
        return TDM_LOST_NONE;
    if (loss.sign == TDM_SIGN_NONE || loss.sign == TDM_SIGN_TOLD) return TDM_LOST_NONE;
    size_t length = (size_t)snprintf(how, TDM_LOST_BYTES, "%s", signs[loss.sign]);
    if (loss.heard_s > 0) /* the transport alone does not know it */
        snprintf(how + length, TDM_LOST_BYTES - length, ", %.0f ms after its last sign of life",
                 1000 * loss.heard_s);
    return loss.sign == TDM_SIGN_CLOSED ? TDM_LOST_CLOSED : TDM_LOST_SILENT;
}

/* ---- where the state is ---------------------------------------------------------------------- */

/* A store that does not respond ends the epoch, not the run. */
static tdm_status store_error(tdm_status status, tdm_error *err)
{
    if (status == TDM_OK || tdm_status_group_of(status) == TDM_STATUS_GROUP_PEER) return status;
    char text[512];
    snprintf(text, sizeof(text), "%.400s", err ? err->message : tdm_status_text(status));
    return tdm_fail(err, TDM_ERR_PEER_TIMEOUT, "the store does not answer: %s", text);
}

static void name_run_key(const tdm__trainer *t, char out[TDM_KV_KEY_BYTES])
{
    snprintf(out, TDM_KV_KEY_BYTES, "tandem/%s/run", t->options->membership->session);
}

/* Looks up the session's run, which the first rank 0 wrote to the store. */
static tdm_status run_lookup(tdm__trainer *t, tdm_error *err)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_kv_item item;
    if (t->session.run_path[0] || !t->session.kv) return TDM_OK;
    name_run_key(t, key);
    tdm_status status = tdm_kv_get(t->session.kv, key, t->arena, &item, err);
    if (status == TDM_ERR_NOT_FOUND) return TDM_OK;
    if (status == TDM_OK)
        snprintf(t->session.run_path, sizeof(t->session.run_path), "%s", item.value);
    return store_error(status, err);
}

static tdm_status run_publish(tdm__trainer *t, tdm_error *err)
{
    char key[TDM_KV_KEY_BYTES];
    if (!t->session.kv) return TDM_OK;
    name_run_key(t, key);
    return store_error(tdm_kv_put(t->session.kv, key, t->session.run_path, 0, err), err);
}

/* Prefers a checkpoint of a later step to an old state. The same on all ranks. */
static tdm_status state_compare_disk(tdm__trainer *t, tdm_recovery *r, tdm_error *err)
{
    char *path;
    uint8_t is_older = 0;
    if (!r->found || !r->is_old) return TDM_OK;
    trainer_snapshot m;
    memcpy(&m, r->snapshot, sizeof(m));
    if (t->leads && tdm__run_newest(t->run.path, true, t->arena, &path, NULL) == TDM_OK) {
        const char *slash = strrchr(path, '/');
        uint64_t step = 0;
        is_older = tdm_checkpoint_step_of(slash ? slash + 1 : path, &step) &&
                   step > (t->state.inner ? m.position.step : r->step);
    }
    if (t->comm)
        TDM_TRY(tdm_group_broadcast(tdm_comm_world(t->comm), &is_older, 1, TDM_DTYPE_U8, 0, err));
    r->found = !is_older;
    return TDM_OK;
}

/* Continues from memory if possible; returns whether. The same on all ranks. */
static bool state_from_memory(tdm__trainer *t, const tdm_recovery *r)
{
    trainer_snapshot m;
    memcpy(&m, r->snapshot, sizeof(m));
    uint64_t updates = t->state.inner ? (uint64_t)m.rounds : m.position.step;
    bool same = updates == r->step;
    uint64_t done = r->step > updates ? r->step - updates : 0; /* since the snapshot */
    bool before = done > 0 && done <= (t->order ? r->update_count : 1) && m.after_done &&
                  r->finished;
    if (t->state.sparse) return false; /* the rows ended with the ranks */
    if (!r->found || r->snapshot_order == 0 || (!same && !before)) return false;
    snapshot_load(t, &m);
    if (!before) return true;
    for (uint64_t i = 0; t->order && i < done; i++)
        t->order_entries[i] = r->updates[r->update_count - done + i];
    tdm__count_step(t, &r->result, t->order ? done : tdm__round_steps(t));
    return true;
}

static tdm_status has_checkpoint(tdm__trainer *t, bool *out, tdm_error *err)
{
    char *path;
    uint8_t has = t->options->resume &&
                  !t->session.has_entered; /* else it is an error, which rank 0 reports */
    tdm_status status = TDM_OK;
    if (t->leads && !has) {
        status = tdm__run_newest(t->run.path, true, t->arena, &path, err);
        has = status == TDM_OK;
        if (status == TDM_ERR_NOT_FOUND && !t->options->resume) status = TDM_OK;
    }
    TDM_TRY(tdm_comm_agree(t->comm, status, NULL, err));
    if (t->comm)
        TDM_TRY(tdm_group_broadcast(tdm_comm_world(t->comm), &has, 1, TDM_DTYPE_U8, 0, err));
    *out = has != 0;
    return TDM_OK;
}

/* Continues from the newest checkpoint, or from the initial values. */
static tdm_status state_from_disk(tdm__trainer *t, tdm_error *err)
{
    bool has = false;
    TDM_TRY(tdm_params_unset(t->state.store, err));
    TDM_TRY(has_checkpoint(t, &has, err));
    t->position = (tdm_position){.seed = (uint64_t)t->job->seed};
    t->state.plateau = t->state.early_stop = (tdm_plateau){0};
    t->state.skips = (tdm__skips){0};
    t->state.rounds = 0;
    t->state.period = (double)t->job->sync.period;
    t->traffic = (tdm__traffic){0};
    if (has)
        TDM_TRY(tdm__restore(t, t->session.run_path, err));
    else
        TDM_TRY(tdm__state_begin(&t->state, t->job, t->schedule.data.train, err));
    t->ended_early = t->job->train.early_stop &&
                     tdm_early_stop_is_due(t->job->train.early_stop, &t->state.early_stop);
    t->status.loss = t->status.smooth_loss = (double)NAN;
    t->status.skipped = tdm__skipped_of(t);
    t->phase = has ? TDM__TRAIN_RESTORED : TDM__TRAIN_SETTLED;
    return tdm_params_set(t->state.store, tdm__updates_of(t), err);
}

/* Warns about completed steps without a ledger line. */
static void ledger_warn_of_gap(const tdm__trainer *t, uint64_t step)
{
    uint64_t last = t->ledger.file.last_number;
    if (t->ledger.file.fd < 0 || last == 0 || last >= step) return;
    tdm__say(t, TDM_LOG_WARN, "the ledger has no lines for steps %llu to %llu",
             (unsigned long long)last + 1, (unsigned long long)step);
}

/* Rank 0 takes over the files. The previous rank 0 may have died between a step and its lines, while other
 * ranks had finished the step, so the lines of the last step are written again. If the state is from the disk,
 * metrics and checkpoints of later steps are removed. Each call repeats all of it: an earlier one may have failed. */
static tdm_status run_files_repair(tdm__trainer *t, bool from_memory, tdm_error *err)
{
    uint64_t step = t->position.step, before = tdm__position_before(t).step;
    if (!t->leads) return TDM_OK;
    TDM_TRY(tdm__run_rewind(&t->run, from_memory ? before : step, err));
    if (!from_memory && t->phase == TDM__TRAIN_RESTORED) {
        TDM_TRY(tdm__run_set_aside(&t->run, step, err));
        TDM_TRY(tdm__run_write_job(&t->run, t->job, err));
    }
    TDM_TRY(tdm__open_ledger(t, step, err));
    TDM_TRY(tdm__order_open(t, step, from_memory ? &t->recovery : NULL, err));
    if (step > 0) tdm__lines_fill(&t->ledger.file, t->ledger.recent, from_memory ? before : step);
    ledger_warn_of_gap(t, from_memory ? before : step);
    if (!from_memory || step == 0) return TDM_OK;
    tdm__lines_put(&t->ledger.file, &t->ledger.line);
    if (t->phase != TDM__TRAIN_STEPPED) tdm__put_log_lines(t);
    return TDM_OK;
}

/* ---- the run directory ------------------------------------------------------------------------ */

/* Work of rank 0 in the run directory before an epoch can begin. */
typedef struct run_work {
    tdm_status (*work)(tdm__trainer *t, bool from_memory, tdm_error *err);
    bool from_memory;
    bool is_begun; /* rank 0: the run exists; else nothing can be lost, and ranks do not wait */
} run_work;

static tdm_status run_join(tdm__trainer *t, bool from_memory, tdm_error *err)
{
    (void)from_memory;
    return t->session.run_path[0] ? tdm__lead_run(t, t->session.run_path, true, err)
                                  : TDM_OK; /* a new run: later */
}

/* Result of rank 0's attempt, and whether ranks may wait and retry. */
typedef struct try_result {
    int32_t status;
    int32_t may_wait;
} try_result;

static tdm_status run_work_try(tdm__trainer *t, const run_work *what, try_result *out,
                               tdm_error *why, tdm_error *err)
{
    *out = (try_result){.status = TDM_OK};
    if (t->leads) {
        tdm_status status = what->work(t, what->from_memory, why);
        out->status = (int32_t)status;
        out->may_wait = what->is_begun && t->job->checkpoint.retry_s > 0 &&
                        tdm__is_disk_status(status);
    }
    if (!t->comm) return TDM_OK;
    return tdm_group_broadcast(tdm_comm_world(t->comm), out, sizeof(*out), TDM_DTYPE_U8, 0, err);
}

static void say_waiting(tdm__trainer *t, const tdm_error *why)
{
    if (!t->leads) return;
    t->status.run_path = t->session.run_path; /* the run itself may not be open */
    tdm__tell(t, TDM_TRAIN_EVENT_WAIT);
    tdm__say(t, TDM_LOG_WARN,
             "%s cannot be written to: %s; training waits for up to %.0f s "
             "(checkpoint.retry_s); fix the problem meanwhile",
             t->session.run_path, why->message, t->job->checkpoint.retry_s);
}

/* Does the work, and retries it while the disk fails. During a session a disk error must not end the run,
 * because the state may be in memory only: all ranks wait for the disk, as at the end of a run. Collective. */
static tdm_status run_work_do(tdm__trainer *t, const run_work *what, tdm_error *err)
{
    tdm__retry retry = {0};
    tdm_error why = {.status = TDM_OK};
    try_result result;
    bool again = true;
    while (again) {
        TDM_TRY(run_work_try(t, what, &result, &why, err));
        if (!result.may_wait) break;
        if (retry.failures == 0) say_waiting(t, &why);
        tdm__retry_failed(&retry, tdm_clock_s());
        TDM_TRY(tdm__retry_await(t, &retry, (tdm_status)result.status, &again, err));
    }
    if (result.status == TDM_OK && retry.failures > 0)
        tdm__say(t, TDM_LOG_INFO, "%s can be written to again, after %.1f s", t->session.run_path,
                 tdm_clock_s() - retry.first_s);
    tdm_status own = t->leads ? (tdm_status)result.status : TDM_OK;
    if (own != TDM_OK) tdm_fail(err, own, "%s", why.message);
    return tdm_comm_agree(t->comm, own, NULL, err);
}

/* The last step that a lost worker of the session is known to have completed. */
static uint64_t last_known_step(const tdm__trainer *t)
{
    char prefix[TDM_KV_KEY_BYTES];
    tdm_kv_item *items = NULL;
    size_t count = 0;
    uint64_t last = 0;
    tdm_arena *arena = tdm_arena_create("dead");
    snprintf(prefix, sizeof(prefix), "tandem/%s/dead/", t->options->membership->session);
    if (arena && tdm_kv_list(t->session.kv, prefix, arena, &items, &count, NULL, NULL) != TDM_OK)
        count = 0;
    for (size_t i = 0; i < count; i++) {
        const tdm_json *record = NULL;
        uint64_t step = 0;
        const char *text = items[i].value;
        if (tdm_json_parse(text, strlen(text), arena, &record, NULL) == TDM_OK &&
            tdm_json_as_u64(tdm_json_get(record, "step"), &step) && step > last)
            last = step;
    }
    tdm_arena_destroy(arena);
    return last;
}

/* Logs how many steps are trained again. */
static void say_going_back(const tdm__trainer *t, bool from_memory)
{
    uint64_t last = t->leads && t->session.kv ? last_known_step(t) : 0, step = t->position.step;
    char again[96] = "the steps after it are trained again";
    if (last > step)
        snprintf(again, sizeof(again), "%llu step%s, up to step %llu, %s trained again",
                 (unsigned long long)(last - step), last - step == 1 ? "" : "s",
                 (unsigned long long)last, last - step == 1 ? "is" : "are");
    tdm__say(t, TDM_LOG_WARN,
             "epoch %u: no host has the %s in memory: training goes back to step %llu%s; %s",
             (unsigned)t->session.epoch,
             t->state.sparse ? "complete sparse table"
             : from_memory   ? "newest state"
                             : "state",
             (unsigned long long)step, from_memory ? ", which an earlier epoch left in memory" : "",
             again);
}

static void say_recovery(const tdm__trainer *t, const tdm_recovery *r, bool from_memory,
                         double begin_s)
{
    if (t->state.sparse && last_known_step(t) <= t->position.step)
        tdm__say(t, TDM_LOG_INFO,
                 "epoch %u: resumed after step %llu with %d rank%s, with the rows of the newest "
                 "checkpoint",
                 (unsigned)t->session.epoch, (unsigned long long)t->position.step,
                 t->status.rank_count, t->status.rank_count == 1 ? "" : "s");
    else if (from_memory && !r->is_old)
        tdm__say(t, TDM_LOG_INFO,
                 "epoch %u: resumed after step %llu with %d rank%s, from memory (%d pieces "
                 "recovered), %.0f ms after the epoch began",
                 (unsigned)t->session.epoch, (unsigned long long)t->position.step,
                 t->status.rank_count, t->status.rank_count == 1 ? "" : "s", r->recovered_pieces,
                 1000 * (tdm_clock_s() - begin_s));
    else
        say_going_back(t, from_memory);
}

/* ---- entering an epoch ----------------------------------------------------------------------- */

/* What one epoch leaves for the next. */
static tdm_status trainer_prepare_for_epochs(tdm__trainer *t, tdm_error *err)
{
    bool has_ledger = t->job->checkpoint.ledger;
    t->plan_cache = tdm_plan_cache_create();
    if (has_ledger) t->ledger.recent = calloc(TDM__LINES_RECENT, sizeof(*t->ledger.recent));
    if (!t->plan_cache || (has_ledger && !t->ledger.recent))
        return tdm_fail_oom(err, "in training");
    return TDM_OK;
}

/* Prepares the process, once, before its first epoch. */
static tdm_status trainer_prepare(tdm__trainer *t, tdm_error *err)
{
    TDM_TRY(tdm__begin_alone(t, err));
    TDM_TRY(tdm__train_schedule_init(t->job, &t->schedule, err));
    tdm_shm *shm = t->options->shm;
    if (!shm && tdm__shares_node(t->comm)) shm = tdm_comm_shm(t->comm, NULL);
    if (shm) tdm__data_share(&t->schedule.data, t->schedule.data_hash, shm);
    tdm__note_data(t);
    if (t->options->member) TDM_TRY(trainer_prepare_for_epochs(t, err));
    TDM_TRY(tdm__state_prepare(&t->schedule.model, TDM__STATE_FOR_TRAINING, &t->state, err));
    TDM_TRY(tdm__order_prepare(t, err));
    const tdm_member_options *m = t->options->membership;
    return m ? tdm_kv_open(&m->kv, &t->session.kv, err) : TDM_OK;
}

/* Distributes rank 0's lineage. */
static tdm_status share_lineage(const tdm__trainer *t, uint32_t *lineage, tdm_error *err)
{
    if (!t->comm) return TDM_OK;
    return tdm_group_broadcast(tdm_comm_world(t->comm), lineage, sizeof(*lineage), TDM_DTYPE_U8, 0,
                               err);
}

static tdm_status epoch_begin(tdm__trainer *t, uint32_t lineage, double begin_s, tdm_error *err)
{
    const char *resume = t->options->resume;
    const tdm_member_options *m = t->options->membership;
    tdm__home home = {t->options->shm, m ? m->slot : 0, t->session.epoch};
    TDM_TRY(tdm__same_settings(t->comm, t->job, resume != NULL, err));
    TDM_TRY(tdm__train_schedule_compare(&t->schedule, t->comm, err));
    TDM_TRY(tdm__order_compare(t, err));
    TDM_TRY(tdm__same_numerics(t->comm, t->job, err));
    TDM_TRY(
        tdm__share_cpus(t->comm, t->job, t->session.epoch == 1, &t->schedule.model.threads, err));
    /* New members check their memory; all ranks take part in the result. */
    tdm_status fits = t->session.has_entered
                          ? TDM_OK
                          : tdm__memory_check(t->job, &t->schedule.data, t->comm,
                                              tdm_model_threads(&t->schedule.model), resume != NULL,
                                              err);
    TDM_TRY(tdm_comm_agree(t->comm, fits, NULL, err));

    TDM_TRY(tdm__state_enter(&t->state, t->job, t->comm, &home, err));
    tdm_recovery recovery;
    TDM_TRY(share_lineage(t, &lineage, err));
    TDM_TRY(tdm_params_recover(t->state.store, tdm_tree_lanes_of(t->job), lineage, &recovery, err));
    if (t->state.sparse)
        tdm_sparse_set_threads(t->state.sparse, tdm_model_threads(&t->schedule.model));
    TDM_TRY(tdm__make_team(t, err));
    TDM_TRY(tdm__make_predictor(t, err));
    TDM_TRY(tdm__make_saver(t, err));

    TDM_TRY(tdm_comm_agree(t->comm, t->leads ? run_lookup(t, err) : TDM_OK, NULL, err));
    bool joins = t->session.run_path[0] != '\0';
    run_work open = {.work = run_join, .is_begun = joins};
    run_work repair = {.work = run_files_repair};
    TDM_TRY(run_work_do(t, &open, err));
    TDM_TRY(tdm__open_run(t, joins ? t->session.run_path : resume, joins, err));
    if (t->options->member) tdm__run_share(&t->run);
    TDM_TRY(tdm_comm_agree(t->comm, t->leads ? run_publish(t, err) : TDM_OK, NULL, err));

    TDM_TRY(state_compare_disk(t, &recovery, err));
    bool from_memory = state_from_memory(t, &recovery);
    if (!from_memory) TDM_TRY(state_from_disk(t, err));
    repair.is_begun = joins;
    repair.from_memory = from_memory;
    t->recovery = recovery;
    TDM_TRY(run_work_do(t, &repair, err));
    TDM_TRY(tdm__order_share(t, err));

    bool first = t->session.epoch == 1 || (!from_memory && !joins);
    if (!t->session.has_entered && !from_memory) {
        t->clock.first_sample = t->position.samples;
        t->clock.first_step = t->position.step;
    }
    TDM_TRY(tdm__prepare_compression(t, first && t->position.step == 0, err));
    snapshot_save(t);
    if (first)
        tdm__say_start(t);
    else
        say_recovery(t, &recovery, from_memory, begin_s);
    tdm__start_clock(t);
    if (first) tdm__tell(t, TDM_TRAIN_EVENT_START);
    t->session.has_entered = true;
    return TDM_OK;
}

static tdm_status epoch_enter(void *user, const tdm_epoch *epoch, tdm_error *err)
{
    tdm__trainer *t = user;
    double begin_s = tdm_clock_s();
    t->session.epoch = epoch->number;
    t->leads = epoch->rank == 0;
    t->status.rank = epoch->rank;
    t->status.rank_count = epoch->size;
    t->watch.straggler = -1;
    TDM_TRY(world_open(t, epoch, err));
    tdm_status status = epoch_begin(t, epoch->lineage, begin_s, err);
    if (status != TDM_OK) tdm__call_off(t->comm, err);
    return status;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static tdm_status run_finish(tdm__trainer *t, bool stopped, tdm_error *err)
{
    tdm_train_result *out = t->result;
    member_report(t, "saving");
    out->interrupted = stopped;
    out->nothing_to_do = t->phase == TDM__TRAIN_RESTORED;
    if (out->nothing_to_do && t->predictor) TDM_TRY(tdm__measure_test(t, err));
    if (!out->nothing_to_do) TDM_TRY(tdm__save_end(t, err));
    TDM_TRY(tdm__sum_up(t, out, err));
    tdm__say_end(t, out);
    t->phase = TDM__TRAIN_ENDED;
    member_report(t, "ended");
    return TDM_OK;
}

static bool is_at_end(const tdm__trainer *t)
{
    return t->position.step >= t->schedule.step_count || t->ended_early;
}

static tdm_status epoch_train_step(tdm__trainer *t, unsigned request, unsigned *requests,
                                   bool *done, tdm_error *err)
{
    double begin = tdm_clock_s();
    *requests = 0;
    if (t->phase != TDM__TRAIN_STEPPED && !is_at_end(t)) {
        TDM_TRY(tdm__one_step(t, request | tdm__requests_of(t), requests, err));
        snapshot_save(t);
    }
    if (t->phase == TDM__TRAIN_STEPPED) {
        TDM_TRY(tdm__after_step(t, *requests, err));
        snapshot_save(t);
    }
    member_report(t, "training");
    double took = tdm_clock_s() - begin;
    if (took > t->clock.longest_step_s) t->clock.longest_step_s = took;
    /* A single rank has nothing to agree on: a request that came during this step stops it here. */
    if (!t->comm) *requests |= tdm__requests_of(t) & TDM_REQUEST_STOP;
    bool stops = (*requests & TDM_REQUEST_STOP) != 0;
    *done = is_at_end(t) || stops;
    if (*done) return run_finish(t, stops && !is_at_end(t), err);
    if (!(*requests & TDM_REQUEST_REGROUP)) return TDM_OK;
    /* The rows of a sparse table end with this world: the next one reads them from a checkpoint. */
    if (t->state.sparse && !(t->saves.has_begun && t->saves.begun_step == t->position.step))
        TDM_TRY(tdm__save_begin(t, err));
    /* Complete the checkpoint in progress: the next world does not take it over. */
    return tdm__save_finish(t, err);
}

static tdm_status epoch_step(void *user, unsigned request, unsigned *requests, bool *done,
                             tdm_error *err)
{
    tdm__trainer *t = user;
    tdm_status status = epoch_train_step(t, request, requests, done, err);
    if (status != TDM_OK) tdm__call_off(t->comm, err);
    return status;
}

/* ---- one epoch, or several --------------------------------------------------------------------- */

/* Trains in a world whose ranks do not change: alone, or with the comm of the caller. */
static tdm_status train_fixed_world(tdm__trainer *t, tdm_error *err)
{
    double begin_s = tdm_clock_s();
    bool done = false;
    t->session.epoch = 1;
    t->status.rank = tdm__rank_of(t->comm);
    t->status.rank_count = tdm__size_of(t->comm);
    t->watch.straggler = -1;
    TDM_TRY(tdm_comm_agree(t->comm, trainer_prepare(t, err), NULL, err));
    TDM_TRY(epoch_begin(t, 0, begin_s, err));

    /* A stop that was requested during the preparation counts before the first step. */
    unsigned requests = is_at_end(t) ? 0 : tdm__requests_of(t);
    TDM_TRY(tdm_comm_agree(t->comm, TDM_OK, &requests, err));
    if (requests & TDM_REQUEST_STOP) {
        t->phase = TDM__TRAIN_SETTLED; /* the summary is that of an interrupted run */
        return run_finish(t, true, err);
    }
    unsigned request = requests;
    while (!done) {
        TDM_TRY(epoch_train_step(t, request, &requests, &done, err));
        request = 0;
    }
    return TDM_OK;
}

static tdm_status train_session(tdm__trainer *t, tdm_error *err)
{
    static const tdm_elastic_ops ops = {.enter = epoch_enter,
                                        .step = epoch_step,
                                        .lost = peer_lost_how,
                                        .leave = epoch_leave,
                                        .interrupt = world_interrupt};
    tdm_elastic_result result = {0};
    t->comm = NULL;
    pthread_mutex_init(&t->session.comm_lock, NULL);

    tdm_status status = trainer_prepare(t, err);
    if (status == TDM_OK) status = tdm_elastic_run(t->options->member, &ops, t, &result, err);
    t->result->recoveries = result.recoveries;
    world_leave(t);
    tdm_kv_close(t->session.kv);
    pthread_mutex_destroy(&t->session.comm_lock);

    if (status != TDM_OK) return status;
    if (result.fenced)
        return tdm_fail(err, TDM_ERR_PEER_FENCED,
                        "this worker was fenced: the other members continued without it");
    if (result.dismissed || !t->result->run_path[0])
        return tdm_fail(err, TDM_ERR_PEER_LEFT, "this worker %s",
                        result.dismissed ? "was asked to leave" : "was not needed");
    return TDM_OK;
}

tdm_status tdm__train_epochs(tdm__trainer *t, tdm_train_result *out, tdm_error *err)
{
    t->result = out;
    return t->options->member ? train_session(t, err) : train_fixed_world(t, err);
}
