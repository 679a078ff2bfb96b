/*
 * elastic.c: the loop of a member: it takes part in one epoch after another until the run ends.
 *
 * The member reads the store, decides (epoch.c) and acts on the decision until it is in the current
 * epoch. It takes part (enter, then steps). When the epoch has failed or is to change, it leaves,
 * reports that and agrees on the next epoch. Each round begins with a new view of the store, so a
 * call that timed out after it took effect is noticed. The first verdict in the store ends the run
 * for all members and is final.
 *
 * States of the loop (loop_state):
 *
 *                       in the current epoch
 *      start ---> AGREE ---------------------> TAKE_PART
 *                 ^ | ^                          |    |
 *                 | | |   the epoch has ended    |    |
 *                 +-+ +--------------------------+    |
 *          try again|                                 |
 *                   +------------> END <--------------+
 *
 *      transition            function          reason
 *      -------------------   ---------------   ---------------------------------------------------
 *      AGREE -> AGREE        epoch_agree       waited, proposed an epoch, reported that it skipped
 *                                              one, or the store must be asked again
 *      AGREE -> TAKE_PART    epoch_agree       this member is in the current epoch
 *      AGREE -> END          epoch_agree       there is a verdict; this member is fenced, dismissed
 *                                              or refused; too few members; the store is lost
 *      TAKE_PART -> AGREE    epoch_take_part   the epoch has failed, or its members regroup
 *      TAKE_PART -> END      epoch_take_part   the run is done or has failed, more epochs than
 *                                              allowed have failed, or the store is lost
 *
 * Invariants: `enter` is called only for the epoch that was current in the last view and contains
 * this member; a report is written only after `leave`; no epoch is entered twice.
 */
#include "base/base.h"
#include "base/timing.h"
#include "membership/member.h"
#include "os/os.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BACK_OFF_AFTER = 3, /* consecutive epochs without a completed step */
    MAX_FAILURES = 100, /* the same */
    MAX_REFUSALS = 3,   /* consecutive refused connections before the first step of a session */
    LOST_CHECKS = 4     /* checks for lost members while a host seems to be ending */
};

typedef enum loop_state {
    LOOP_AGREE,     /* reads the store and decides */
    LOOP_TAKE_PART, /* is in the epoch that was agreed on */
    LOOP_END        /* the result is in run.status */
} loop_state;

typedef struct run {
    tdm_member *m;
    const tdm_elastic_ops *ops;
    void *user;
    tdm_elastic_result result;
    tdm_status status; /* the result of the loop */
    tdm_error *err;
    tdm_arena *arena; /* of one view */
    tdm__epoch_history history;
    tdm__epoch_rules rules;
    tdm_epoch epoch;
    tdm_epoch_member members[TDM__MAX_EPOCH]; /* of `epoch` */
    uint64_t shm_ids[TDM__MAX_EPOCH];         /* of `members`; 0: unknown */
    double left_s;                            /* when the last epoch was left; -1: not yet */
    int failures;                             /* consecutive epochs without a completed step */
    bool has_failed;                          /* the last epoch ended by a failure */
    bool logged_short, logged_missing_host;
    char refusal[TDM_LOST_BYTES]; /* of a connection in the last epoch: why; empty: none */
    uint64_t state_revision;      /* of the key "state" when the epoch was read */
    bool has_state;               /* `enter` has succeeded, so this member has the run's state */
    uint32_t watched;             /* the epoch whose processes are watched; 0: none */
    tdm_process_watch watches[TDM__MAX_EPOCH]; /* of its processes on this host, by rank */
} run;

static loop_state run_end(run *r, tdm_status status)
{
    r->status = status;
    return LOOP_END;
}

/* The run may continue, but without this member. */
static loop_state run_leave(run *r)
{
    r->result.fenced = true;
    return run_end(r, TDM_OK);
}

/* ---- writes that are retried ----------------------------------------------------------------- */

/* Whether the store has not responded for the allowed time. Calls through `kv` count as well as
 * those of the watcher. */
static bool store_is_lost(run *r)
{
    tdm_member *m = r->m;
    double now_s = tdm_kv_now(m->kv);
    pthread_mutex_lock(&m->lock);
    double heard_s = m->heard_s;
    pthread_mutex_unlock(&m->lock);
    return now_s - heard_s >= tdm__member_silence_limit_s(m);
}

static loop_state store_retry_or_leave(run *r, const tdm_error *why)
{
    if (!store_is_lost(r)) {
        r->m->pause(r->m->pause_user, TDM__TIMING_MEMBERSHIP_STORE_RETRY_S);
        return LOOP_AGREE;
    }
    tdm_log(TDM_LOG_WARN, "cluster", "member %s leaves because it cannot reach the store: %s",
            r->m->id, why->message);
    return run_leave(r);
}

/* Writes a key that no other process writes; repeats it until it succeeds or the store is lost. */
static loop_state store_put(run *r, const char *key, const char *value)
{
    for (;;) {
        tdm_error why = {0};
        double asked_s = tdm_kv_now(r->m->kv);
        tdm_status status = tdm_kv_put(r->m->kv, key, value, 0, &why);
        if (status == TDM_OK) {
            tdm__member_heard(r->m, asked_s);
            return LOOP_AGREE;
        }
        if (store_retry_or_leave(r, &why) == LOOP_END) return LOOP_END;
    }
}

/* Writes the verdict unless there is one already. If that fails, the other members notice that this
 * member is gone and decide without it. */
static void verdict_put(run *r, tdm_status status, const char *message)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_str text = TDM_STR_INIT;
    tdm_json_writer w = tdm_json_writer_init(&text, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_uint(&w, "status", (uint64_t)status);
    tdm_json_put_string(&w, "message", message);
    tdm_json_put_string(&w, "by", r->m->id);
    tdm_json_object_end(&w);
    tdm__member_key(r->m, key, "verdict");
    tdm_status put = TDM_ERR_NO_MEMORY;
    tdm_error why = {.message = "no memory"};
    while (tdm_str_ok(&text)) {
        put = tdm_kv_swap(r->m->kv, key, 0, tdm_str_text(&text), 0, NULL, &why);
        if (put == TDM_OK || put == TDM_ERR_EXISTS || store_is_lost(r)) break;
        r->m->pause(r->m->pause_user, TDM__TIMING_MEMBERSHIP_STORE_RETRY_S);
    }
    if (put != TDM_OK && put != TDM_ERR_EXISTS)
        tdm_log(TDM_LOG_WARN, "cluster",
                "member %s cannot write the end of the run to the store: %s", r->m->id,
                why.message);
    tdm_str_release(&text);
}

/* Ends the run for all members with this error. */
static loop_state run_fail(run *r, tdm_status status, const char *message)
{
    verdict_put(r, status, message);
    return run_end(r, tdm_fail(r->err, status, "%s", message));
}

/* ---- leaving an epoch ------------------------------------------------------------------------ */

/* A list of the members whose loss is of this kind; TDM_LOST_NONE: of any kind. */
static void report_add_losses(const run *r, const tdm_lost *losses, tdm_lost kind, const char *key,
                              tdm_json_writer *w)
{
    tdm_json_key(w, key);
    tdm_json_array_begin(w);
    for (int i = 0; losses && i < r->epoch.size; i++)
        if (losses[i] != TDM_LOST_NONE && (kind == TDM_LOST_NONE || losses[i] == kind))
            tdm_json_string(w, r->members[i].id);
    tdm_json_array_end(w);
}

static loop_state epoch_report(run *r, const char *why, bool is_regroup, const tdm_lost *losses)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_str text = TDM_STR_INIT;
    tdm_json_writer w = tdm_json_writer_init(&text, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_string(&w, "why", why);
    tdm_json_put_bool(&w, "regroup", is_regroup);
    tdm_json_put_bool(&w, "whole", r->has_state);
    report_add_losses(r, losses, TDM_LOST_NONE, "lost", &w);
    report_add_losses(r, losses, TDM_LOST_CLOSED, "closed", &w);
    report_add_losses(r, losses, TDM_LOST_REFUSED, "refused", &w);
    tdm_json_put_string(&w, "refusal", r->refusal);
    tdm_json_object_end(&w);
    tdm__member_key(r->m, key, "reports/%" PRIu32 "/%s", r->history.left, r->m->id);
    loop_state out = LOOP_END;
    if (tdm_str_ok(&text))
        out = store_put(r, key, tdm_str_text(&text));
    else
        run_end(r, tdm_fail_oom(r->err, "for a report"));
    tdm_str_release(&text);
    return out;
}

/* Slows down when consecutive epochs fail before their first step, and gives up after
 * MAX_FAILURES. */
static loop_state epoch_back_off(run *r, tdm_status status, const char *why)
{
    /* A host is set up differently from the others. Before the first step of a session, the user
     * should know that before training begins. */
    if (status == TDM_ERR_PEER_REFUSED && r->failures >= MAX_REFUSALS && r->epoch.lineage == 0)
        return run_fail(r, status, why);
    if (r->failures > MAX_FAILURES) {
        r->status = tdm_fail(
            r->err, TDM_ERR_PEER_FAILED,
            "%d consecutive epochs failed before their first step; the last one: %s", r->failures,
            why);
        verdict_put(r, r->status, why);
        return LOOP_END;
    }
    int more = r->failures - BACK_OFF_AFTER;
    if (more > 0) {
        double pause_s = TDM__TIMING_MEMBERSHIP_BACK_OFF_S * (double)(1 << (more < 10 ? more : 10));
        r->m->pause(r->m->pause_user, fmin(pause_s, r->m->report_s / 4));
    }
    return LOOP_AGREE;
}

/* ---- an epoch -------------------------------------------------------------------------------- */

/* Tells the watcher which epoch to interrupt. */
static void epoch_set_active(run *r, bool is_active)
{
    tdm_member *m = r->m;
    pthread_mutex_lock(&m->interrupt_lock);
    pthread_mutex_lock(&m->lock);
    m->state = is_active ? TDM__MEMBER_ACTIVE : TDM__MEMBER_OUTSIDE;
    m->ops = is_active ? r->ops : NULL;
    m->user = is_active ? r->user : NULL;
    if (is_active) {
        m->epoch = r->epoch.number;
        m->record_is_old = true;
    }
    pthread_mutex_unlock(&m->lock);
    pthread_mutex_unlock(&m->interrupt_lock);
}

/* Whether some, but not all members of another host have closed their connections: its other
 * processes may be ending as well. */
static bool losses_are_partial(const run *r, const tdm_lost *losses)
{
    for (int i = 0; i < r->epoch.size; i++) {
        const char *host = r->members[i].host;
        if (losses[i] != TDM_LOST_CLOSED || strcmp(host, r->members[r->epoch.rank].host) == 0)
            continue;
        for (int k = 0; k < r->epoch.size; k++)
            if (losses[k] == TDM_LOST_NONE && strcmp(host, r->members[k].host) == 0) return true;
    }
    return false;
}

/* Collects which members this one cannot reach, and logs them. */
static void epoch_find_losses(run *r, tdm_lost *losses)
{
    char how[TDM_LOST_BYTES];
    if (!r->ops->lost) return;
    for (int check = 0; check < LOST_CHECKS; check++) {
        for (int i = 0; i < r->epoch.size; i++)
            if (i != r->epoch.rank) losses[i] = r->ops->lost(r->user, i, how);
        if (!losses_are_partial(r, losses)) break;
        r->m->pause(r->m->pause_user, TDM__TIMING_MEMBERSHIP_LOST_CHECK_S);
    }
    for (int i = 0; i < r->epoch.size; i++) {
        how[0] = '\0';
        if (i != r->epoch.rank) losses[i] = r->ops->lost(r->user, i, how);
        /* Before there is a state, a refusal does not exclude a member: see epoch_back_off. */
        if (losses[i] == TDM_LOST_REFUSED && r->epoch.lineage == 0) losses[i] = TDM_LOST_NONE;
        if (losses[i] == TDM_LOST_NONE) continue;
        how[sizeof(how) - 1] = '\0';
        if (losses[i] == TDM_LOST_REFUSED) memcpy(r->refusal, how, sizeof(r->refusal));
        tdm_log(TDM_LOG_WARN, "cluster",
                "rank %d (member %s, host %s) is unreachable from rank %d: %s", i, r->members[i].id,
                r->members[i].host, r->epoch.rank, how);
    }
}

static bool epoch_is_interrupted(run *r)
{
    pthread_mutex_lock(&r->m->lock);
    bool is_broken = r->m->state == TDM__MEMBER_BROKEN;
    pthread_mutex_unlock(&r->m->lock);
    return is_broken;
}

/* Whether this status ends only the epoch, not the run. */
static bool status_ends_epoch(run *r, tdm_status status)
{
    if (status == TDM_ERR_INTERRUPTED) return epoch_is_interrupted(r);
    return tdm_status_group_of(status) == TDM_STATUS_GROUP_PEER && status != TDM_ERR_PEER_MISMATCH;
}

/* Formats the epoch and the hosts of its members, each with the shared memory that keeps the
 * state. */
static void holders_write(const run *r, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_uint(&w, "epoch", r->epoch.number);
    tdm_json_key(&w, "holders");
    tdm_json_array_begin(&w);
    for (int i = 0; i < r->epoch.size; i++) {
        bool is_listed = false;
        for (int k = 0; k < i && !is_listed; k++) is_listed = r->shm_ids[k] == r->shm_ids[i];
        if (is_listed) continue;
        tdm_json_object_begin(&w);
        tdm_json_put_string(&w, "host", r->members[i].host);
        tdm__put_shm_id(&w, r->shm_ids[i]);
        tdm_json_object_end(&w);
    }
    tdm_json_array_end(&w);
    tdm_json_object_end(&w);
}

/* One attempt to replace the key "state". An earlier attempt that timed out may have replaced it
 * already. TDM_ERR_PEER_FENCED: a later epoch has replaced it. */
static tdm_status holders_swap(const run *r, const char *key, const char *text, tdm_error *why)
{
    tdm_kv_item item;
    tdm_status status = tdm_kv_swap(r->m->kv, key, r->state_revision, text, 0, NULL, why);
    if (status != TDM_ERR_EXISTS) return status;
    TDM_TRY(tdm_kv_get(r->m->kv, key, r->arena, &item, why));
    if (strcmp(item.value, text) == 0) return TDM_OK;
    return tdm_fail(why, TDM_ERR_PEER_FENCED, "another epoch holds the state");
}

/* Rank 0 records that all members of the epoch have the state. It does so before its first step, so
 * the store has the holders of every completed step. */
static tdm_status holders_record(run *r, tdm_error *why)
{
    char key[TDM_KV_KEY_BYTES], reason[300];
    tdm_str text = TDM_STR_INIT;
    holders_write(r, &text);
    tdm__member_key(r->m, key, "state");
    tdm_status status = TDM_OK;
    if (!tdm_str_ok(&text)) {
        tdm_str_release(&text);
        return tdm_fail_oom(why, "for the list of hosts with the state");
    }
    for (;;) {
        status = holders_swap(r, key, tdm_str_text(&text), why);
        if (status == TDM_OK || status == TDM_ERR_PEER_FENCED) break;
        if (epoch_is_interrupted(r) || store_is_lost(r)) break;
        r->m->pause(r->m->pause_user, TDM__TIMING_MEMBERSHIP_STORE_RETRY_S);
    }
    tdm_str_release(&text);
    if (status == TDM_OK || status == TDM_ERR_NO_MEMORY || status == TDM_ERR_PEER_FENCED)
        return status;
    snprintf(reason, sizeof(reason), "%.250s", why->message);
    return tdm_fail(why, TDM_ERR_PEER_TIMEOUT,
                    "cannot write the list of hosts with the state to the store: %s", reason);
}

/* Runs the epoch from enter to its last step. TDM_OK: the run is done, or the members regroup. */
static tdm_status epoch_run(run *r, bool *done, bool *regroup, tdm_error *why)
{
    double begin_s = tdm_kv_now(r->m->kv), entered_s = begin_s;
    bool is_first = r->left_s >= 0 && r->epoch.rank == 0; /* the first step after a change */
    tdm_status status = r->ops->enter(r->user, &r->epoch, why);
    if (status == TDM_OK && r->epoch.rank == 0) status = holders_record(r, why);
    if (status == TDM_OK) {
        r->has_state = true;
        entered_s = tdm_kv_now(r->m->kv);
    }
    while (status == TDM_OK && !*done && !*regroup) {
        pthread_mutex_lock(&r->m->lock);
        unsigned request = r->m->request, requests = 0;
        /* `enter` does not notice an interrupt that came just before it. */
        if (r->m->state == TDM__MEMBER_BROKEN)
            status = tdm_fail(why, TDM_ERR_PEER_FAILED, "%s", r->m->why);
        pthread_mutex_unlock(&r->m->lock);
        if (status != TDM_OK) break;
        status = r->ops->step(r->user, request, &requests, done, why);
        if (status != TDM_OK) break;
        r->failures = 0;
        if (is_first)
            tdm_log(TDM_LOG_INFO, "cluster",
                    "epoch %" PRIu32 " completed its first step %.0f ms after rank 0 left the "
                    "previous epoch (entering took %.0f ms, the step %.0f ms)",
                    r->epoch.number, 1e3 * (tdm_kv_now(r->m->kv) - r->left_s),
                    1e3 * (entered_s - begin_s), 1e3 * (tdm_kv_now(r->m->kv) - entered_s));
        is_first = false;
        *regroup = (requests & TDM_REQUEST_REGROUP) != 0;
    }
    return status;
}

/* Takes part in the current epoch until it ends, and reports that. */
static loop_state epoch_take_part(run *r)
{
    bool done = false, regroup = false;
    tdm_lost losses[TDM__MAX_EPOCH] = {TDM_LOST_NONE};
    tdm_error why = {0};
    r->history.took_part = true;
    r->logged_short = r->logged_missing_host = false;
    r->history.left = r->epoch.number;
    r->result.epochs++;
    if (r->has_failed) r->result.recoveries++;
    r->has_failed = false;
    r->refusal[0] = '\0';

    epoch_set_active(r, true);
    tdm_status status = epoch_run(r, &done, &regroup, &why);
    bool is_epoch_end = status != TDM_OK && status_ends_epoch(r, status);
    if (is_epoch_end) epoch_find_losses(r, losses);
    epoch_set_active(r, false);
    r->left_s = tdm_kv_now(r->m->kv);
    r->ops->leave(r->user);

    if (status == TDM_OK && done) {
        verdict_put(r, TDM_OK, "the run has ended");
        return run_end(r, TDM_OK);
    }
    if (status != TDM_OK && !is_epoch_end) return run_fail(r, status, why.message);
    if (status == TDM_OK) return epoch_report(r, "regrouping", true, NULL);

    r->has_failed = true;
    r->failures++;
    tdm_log(TDM_LOG_INFO, "cluster",
            "rank %d leaves epoch %" PRIu32 ": %s (world closed within %.0f ms)", r->epoch.rank,
            r->epoch.number, why.message, 1e3 * (tdm_kv_now(r->m->kv) - r->left_s));
    loop_state out = epoch_back_off(r, status, why.message);
    return out == LOOP_END ? out : epoch_report(r, why.message, false, losses);
}

/* ---- agreement ------------------------------------------------------------------------------- */

static loop_state epoch_propose(run *r, const tdm__view *view, const tdm__epoch_plan *plan)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_str text = TDM_STR_INIT, line = TDM_STR_INIT;
    tdm_error why = {0};
    tdm__member_key(r->m, key, "epoch");
    tdm__epoch_text(view, plan, r->m->id, &text);
    double took_s = r->left_s < 0 ? -1 : tdm_kv_now(r->m->kv) - r->left_s;
    tdm__epoch_describe(view, plan, took_s, &line);
    tdm_status status = tdm_str_ok(&text) ? tdm_kv_swap(r->m->kv, key, view->epoch_revision,
                                                        tdm_str_text(&text), 0, NULL, &why)
                                          : TDM_ERR_NO_MEMORY;
    bool is_loss = false;
    for (int i = 0; i < view->size; i++) is_loss |= !tdm__view_alive(&view->members[i]);
    if (status == TDM_OK)
        tdm_log(is_loss ? TDM_LOG_WARN : TDM_LOG_INFO, "cluster", "%s", tdm_str_text(&line));
    tdm_str_release(&text);
    tdm_str_release(&line);
    if (status == TDM_OK || status == TDM_ERR_EXISTS) return LOOP_AGREE;
    if (status == TDM_ERR_INVALID || status == TDM_ERR_NO_MEMORY) {
        verdict_put(r, status, why.message);
        return run_end(r, tdm_fail(r->err, status, "cannot start an epoch of %d members: %s",
                                   plan->next_count, why.message));
    }
    return store_retry_or_leave(r, &why);
}

static loop_state run_give_up(run *r, const tdm__epoch_plan *plan)
{
    char text[200];
    snprintf(text, sizeof(text),
             "only %d of at least %d members joined within %.0f s (elastic.min, elastic.wait)",
             plan->available, r->m->min, r->m->wait_s);
    return run_fail(r, TDM_ERR_TIMEOUT, text);
}

static loop_state store_wait(run *r, const tdm__view *view, const tdm__epoch_plan *plan)
{
    tdm_error why = {0};
    bool is_short = r->history.short_s >= 0 && tdm_kv_now(r->m->kv) - r->history.short_s >=
                                                   TDM__TIMING_MEMBERSHIP_MIN_MEMBERS_LOG_S;
    if (is_short && !r->logged_short)
        tdm_log(TDM_LOG_WARN, "cluster",
                "%d of at least %d members have joined; waiting up to %.0f s for more",
                plan->available, r->m->min, r->m->wait_s);
    r->logged_short = is_short;
    if (plan->missing_host && !r->logged_missing_host)
        tdm_log(TDM_LOG_WARN, "cluster",
                "host %s has the newest state in memory and is about to restart its workers: "
                "waiting for them",
                plan->missing_host);
    r->logged_missing_host = plan->missing_host != NULL;
    double left_s = plan->until_s - tdm_kv_now(r->m->kv);
    if (r->history.short_s >= 0 && !is_short)
        left_s = fmin(left_s, TDM__TIMING_MEMBERSHIP_MIN_MEMBERS_LOG_S);
    left_s = fmin(fmax(left_s, 0), TDM__TIMING_MEMBERSHIP_VIEW_S);
    tdm_status status = tdm_kv_wait(r->m->kv, r->m->prefix, view->revision, left_s, NULL, &why);
    return status == TDM_OK ? LOOP_AGREE : store_retry_or_leave(r, &why);
}

static void run_set_epoch(run *r, const tdm__view *view)
{
    r->epoch = (tdm_epoch){.number = view->number,
                           .lineage = view->state_epoch,
                           .size = view->size,
                           .members = r->members};
    r->state_revision = view->state_revision;
    for (int i = 0; i < view->size; i++) {
        const tdm__view_member *m = &view->members[i];
        snprintf(r->members[i].id, sizeof(r->members[i].id), "%s", m->id);
        snprintf(r->members[i].host, sizeof(r->members[i].host), "%s", m->host);
        r->shm_ids[i] = m->shm_id;
        if (strcmp(m->id, r->m->id) == 0) r->epoch.rank = i;
    }
}

/* Sets is_busy of the members on this host that have not left the epoch and make progress,
 * according to the kernel. */
static void view_mark_busy(run *r, tdm__view *view)
{
    if (!r->m->has_thread || tdm__view_epoch_state(view) != TDM__VIEW_BROKEN) return;
    bool is_new = r->watched != view->number;
    r->watched = view->number;
    for (int i = 0; i < view->size; i++) {
        tdm__view_member *m = &view->members[i];
        if (is_new) r->watches[i] = (tdm_process_watch){.process = 0};
        if (m->has_reported || !tdm__view_alive(m) || strcmp(m->host, r->m->host) != 0) continue;
        if (r->watches[i].process == 0) tdm_process_watch_init(m->pid, &r->watches[i]);
        m->is_busy = tdm_process_lives(&r->watches[i], r->m->report_s);
    }
}

/* Reads the store once and acts on the decision. */
static loop_state epoch_agree(run *r)
{
    tdm__view view;
    tdm__epoch_plan plan;
    tdm_error why = {0};
    tdm_arena_reset(r->arena);
    double asked_s = tdm_kv_now(r->m->kv);
    tdm_status status = tdm__view_read(r->m->kv, r->m->prefix, r->arena, &view, &why);
    if (status == TDM_ERR_FORMAT || status == TDM_ERR_NO_MEMORY)
        return run_end(r, tdm_fail(r->err, status, "%s", why.message));
    if (status != TDM_OK) return store_retry_or_leave(r, &why);
    tdm__member_heard(r->m, asked_s);
    if (r->m->is_begun && !view.has_about) {
        /* The session ended and was removed from the store while this member was stopped or cut
         * off. If it stayed, it would start a second run. */
        tdm_log(TDM_LOG_INFO, "cluster", "member %s leaves: the session ended without it",
                r->m->id);
        return run_leave(r);
    }

    view_mark_busy(r, &view);
    switch (tdm__epoch_decide(&view, &r->rules, &r->history, tdm_kv_now(r->m->kv), &plan)) {
    case TDM__DECISION_WAIT: return store_wait(r, &view, &plan);
    case TDM__DECISION_PROPOSE: return epoch_propose(r, &view, &plan);
    case TDM__DECISION_ENTER: run_set_epoch(r, &view); return LOOP_TAKE_PART;
    case TDM__DECISION_SKIP:
        run_set_epoch(r, &view);
        r->history.left = view.number;
        return epoch_report(r, "the epoch ended before this member entered it", false, NULL);
    case TDM__DECISION_END:
        if (view.verdict == TDM_OK) return run_end(r, TDM_OK);
        return run_end(r, tdm_fail(r->err, view.verdict, "%s", view.verdict_text));
    case TDM__DECISION_DISMISSED: r->result.dismissed = true; return run_end(r, TDM_OK);
    case TDM__DECISION_GIVE_UP: return run_give_up(r, &plan);
    case TDM__DECISION_REFUSED:
        return run_end(
            r, tdm_fail(r->err, TDM_ERR_PEER_REFUSED, "the run continues without this worker: %s",
                        *r->refusal ? r->refusal : tdm__view_find(&view, r->m->id)->left_why));
    case TDM__DECISION_FENCED: break;
    }
    tdm_log(TDM_LOG_INFO, "cluster", "member %s leaves: it is not a member of epoch %" PRIu32,
            r->m->id, view.number);
    return run_leave(r);
}

tdm_status tdm_elastic_run(tdm_member *member, const tdm_elastic_ops *ops, void *user,
                           tdm_elastic_result *out, tdm_error *err)
{
    run *r = calloc(1, sizeof(*r));
    tdm_arena *arena = tdm_arena_create("view");
    if (!r || !arena) {
        tdm_arena_destroy(arena);
        free(r);
        return tdm_fail_oom(err, "to take part in a run");
    }
    r->m = member;
    r->ops = ops;
    r->user = user;
    r->err = err;
    r->arena = arena;
    r->left_s = -1;
    tdm__epoch_history_init(&r->history);
    r->rules = (tdm__epoch_rules){.id = member->id,
                                  .min = member->min,
                                  .max = member->max,
                                  .wait_s = member->wait_s,
                                  .report_s = member->report_s,
                                  .settle_s = TDM__TIMING_MEMBERSHIP_FIRST_EPOCH_S,
                                  .needs_all = member->needs_all_hosts,
                                  .silence_s = tdm__member_silence_limit_s(member) +
                                               TDM__TIMING_MEMBERSHIP_STORE_SILENCE_MARGIN_S};

    /* The other members see the record now, not after the next round of the watcher, which writes
     * it again. */
    pthread_mutex_lock(&member->lock);
    member->is_ready = true;
    uint64_t lease = member->lease;
    pthread_mutex_unlock(&member->lock);
    tdm__member_put_record(member, member->kv, lease, NULL);
    pthread_mutex_lock(&member->lock);
    member->record_is_old = true;
    pthread_mutex_unlock(&member->lock);

    loop_state state = LOOP_AGREE;
    while (state != LOOP_END) state = state == LOOP_TAKE_PART ? epoch_take_part(r) : epoch_agree(r);

    tdm_status status = r->status;
    if (status == TDM_OK) *out = r->result;
    tdm_arena_destroy(arena);
    free(r);
    return status;
}
