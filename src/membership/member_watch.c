/*
 * member_watch.c: one round of a member's watcher: a heartbeat, a read of the store, a wait.
 *
 * The watcher makes no decisions. It tells the training thread, through `interrupt`, that its epoch
 * has ended: because a member is gone or has left, because another epoch is current, or because the
 * store has not responded for too long. It also sets the requests for the next step. Each loss is
 * logged once, by the lowest remaining rank; the other ranks log it at debug level.
 *
 * New members are admitted together: regrouping is requested when no further one has appeared for a
 * moment, or the first one has waited long enough, and never soon after the last change. Rank 0
 * also removes the keys of earlier epochs from the store.
 */
#include "base/timing.h"
#include "membership/member.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_SWEEP = 8 }; /* keys removed in one round */

/* ---- heartbeats ------------------------------------------------------------------------------ */

/* Replaces a lease that has expired or whose length must change. */
static tdm_status lease_replace(tdm_member *m, tdm_error *err)
{
    uint64_t lease = 0, old = m->lease;
    double lease_s = tdm__heartbeat_lease_s(&m->heartbeats);
    TDM_TRY(tdm_kv_lease(m->watch_kv, lease_s, &lease, err));
    pthread_mutex_lock(&m->lock);
    m->lease = lease;
    m->lease_asked_s = lease_s;
    pthread_mutex_unlock(&m->lock);
    TDM_TRY(tdm__member_put_record(m, m->watch_kv, lease, err));
    tdm_kv_release(m->watch_kv, old, NULL);
    return TDM_OK;
}

static tdm_status lease_keep(tdm_member *m, tdm_error *err)
{
    double asked_s = tdm_kv_now(m->watch_kv);
    tdm_status status = tdm_kv_keep(m->watch_kv, m->lease, err);
    double wanted_s = tdm__heartbeat_lease_s(&m->heartbeats);
    bool is_far_off = m->heartbeats.fixed_s == 0 && m->heartbeats.count >= 8 &&
                      (wanted_s > 1.25 * m->lease_asked_s || wanted_s < 0.6 * m->lease_asked_s);
    if (status == TDM_ERR_NOT_FOUND || (status == TDM_OK && is_far_off))
        status = lease_replace(m, err);
    TDM_TRY(status);
    tdm__heartbeat_add(&m->heartbeats, tdm_kv_now(m->watch_kv));
    tdm__member_heard(m, asked_s);
    pthread_mutex_lock(&m->lock);
    bool is_orphan = m->agent > 0 && getppid() != (pid_t)m->agent;
    bool is_changed = is_orphan != m->is_orphan;
    m->is_orphan = is_orphan;
    bool is_old = m->record_is_old;
    pthread_mutex_unlock(&m->lock);
    if (is_changed || (is_old && asked_s - m->record_s >= TDM__TIMING_MEMBERSHIP_STATUS_S)) {
        TDM_TRY(tdm__member_put_record(m, m->watch_kv, m->lease, err));
        m->record_s = asked_s;
    }
    return TDM_OK;
}

/* ---- evaluating the view --------------------------------------------------------------------- */

static void member_interrupt(tdm_member *m, uint32_t epoch, const char *why)
{
    pthread_mutex_lock(&m->interrupt_lock);
    pthread_mutex_lock(&m->lock);
    bool is_active = m->state == TDM__MEMBER_ACTIVE && m->epoch == epoch;
    if (is_active) {
        m->state = TDM__MEMBER_BROKEN;
        snprintf(m->why, sizeof(m->why), "%s", why);
    }
    pthread_mutex_unlock(&m->lock);
    if (is_active && m->ops) m->ops->interrupt(m->user, m->why);
    pthread_mutex_unlock(&m->interrupt_lock);
}

/* The lowest remaining rank logs a loss for the user; the others log it at debug level. */
static tdm_log_level loss_log_level(const tdm__view *view, const char *id)
{
    for (int i = 0; i < view->size; i++)
        if (tdm__view_alive(&view->members[i]))
            return strcmp(view->members[i].id, id) == 0 ? TDM_LOG_WARN : TDM_LOG_DEBUG;
    return TDM_LOG_WARN;
}

static void loss_log(tdm_member *m, const tdm__view *view, const tdm__view_member *lost,
                     char why[400])
{
    char name[256], took[64] = "";
    tdm__epoch_name(lost, name);
    if (lost->is_dead) {
        double took_s = tdm_kv_now(m->watch_kv) - lost->dead_at;
        bool is_comparable = strcmp(lost->host, m->host) == 0 && lost->dead_at > 0 && took_s >= 0;
        if (is_comparable) snprintf(took, sizeof(took), " after %.0f ms", took_s * 1e3);
        snprintf(why, 400, "%s is gone: %s (reported by its agent%s)", name, lost->dead_why, took);
    } else {
        double silent_s = m->leases_epoch == view->number ? m->leases_s[lost->rank] : 0;
        if (silent_s > 0) snprintf(took, sizeof(took), " for %.1f s", silent_s);
        snprintf(why, 400, "%s is gone: no heartbeat%s (its lease in the store has expired)", name,
                 took);
    }
    tdm_log(loss_log_level(view, m->id), "cluster", "%s", why);
}

/* The first reason in the store why the epoch has ended. */
static bool epoch_has_ended(tdm_member *m, const tdm__view *view, uint32_t active, char why[400])
{
    if (view->number < active) return false; /* an outdated read */
    if (view->number > active) {
        snprintf(why, 400, "epoch %" PRIu32 " is current, not %" PRIu32, view->number, active);
        return true;
    }
    double now_s = tdm_kv_now(m->watch_kv);
    if (view->has_verdict) {
        if (m->verdict_s < 0) m->verdict_s = now_s;
        snprintf(why, 400, "the run has ended: %.300s", view->verdict_text);
        /* After a success, this member normally ends by itself: give it some time. */
        return view->verdict != TDM_OK || now_s - m->verdict_s > m->report_s;
    }
    for (int i = 0; i < view->size; i++) {
        const tdm__view_member *one = &view->members[i];
        if (strcmp(one->id, m->id) == 0 && !one->is_dead) continue;
        if (tdm__view_alive(one)) continue;
        loss_log(m, view, one, why);
        return true;
    }
    for (int i = 0; i < view->size; i++) {
        const tdm__view_member *one = &view->members[i];
        if (!one->has_reported || one->is_regroup || strcmp(one->id, m->id) == 0) continue;
        snprintf(why, 400, "rank %d has left the epoch: %.300s", i, one->report_why);
        return true;
    }
    return false;
}

/* The requests for the next step. */
static unsigned member_requests(tdm_member *m, const tdm__view *view)
{
    double now_s = tdm_kv_now(m->watch_kv);
    int count = 0;
    bool has_newcomers = tdm__view_newcomers(view, m->max, &count);
    if (view->number != m->seen_epoch) {
        m->seen_epoch = view->number;
        m->epoch_seen_s = now_s;
        m->newcomers_s = -1;
        m->newcomer_count = 0;
    }
    if (count > m->newcomer_count) m->newcomers_s = now_s; /* time of the last new member */
    m->newcomer_count = count;

    unsigned request = view->should_stop ? TDM_REQUEST_STOP : 0;
    if (tdm__view_leavers(view, m->min)) request |= TDM_REQUEST_REGROUP;
    double age_s = now_s - m->epoch_seen_s;
    bool has_settled = now_s - m->newcomers_s >= TDM__TIMING_MEMBERSHIP_JOIN_SETTLE_S ||
                       age_s >= TDM__TIMING_MEMBERSHIP_JOIN_MAX_S;
    if (has_newcomers && age_s >= TDM__TIMING_MEMBERSHIP_EPOCH_MIN_S && has_settled)
        request |= TDM_REQUEST_REGROUP;
    return request;
}

/* ---- cleaning up the store ------------------------------------------------------------------- */

/* Whether the key is not needed any more: it belongs to an earlier epoch, or to a member that has
 * neither a record nor a place in the epoch. */
static bool key_is_obsolete(const tdm__view *view, const char *key)
{
    char *end = NULL;
    if (strncmp(key, "door/", 5) == 0) return strtoull(key + 5, &end, 10) < view->number;
    if (strncmp(key, "reports/", 8) == 0) return strtoull(key + 8, &end, 10) < view->number;
    const char *id = strncmp(key, "dead/", 5) == 0            ? key + 5
                     : strncmp(key, "wishes/leave/", 13) == 0 ? key + 13
                                                              : NULL;
    if (!id) return false;
    const tdm__view_member *m = tdm__view_find(view, id);
    return !m || (m->rank < 0 && !m->has_record);
}

/* Removal is by prefix: a key that is a prefix of other keys is removed after them. */
static bool key_is_prefix_of_next(const tdm__view *view, size_t i)
{
    return i + 1 < view->item_count &&
           strncmp(view->items[i + 1].key, view->items[i].key, strlen(view->items[i].key)) == 0;
}

static void store_sweep(tdm_member *m, const tdm__view *view)
{
    if (tdm__view_epoch_state(view) != TDM__VIEW_INTACT || strcmp(view->members[0].id, m->id) != 0)
        return;
    size_t skip = strlen(m->prefix);
    int removed = 0;
    for (size_t i = 0; i < view->item_count && removed < MAX_SWEEP; i++) {
        if (!key_is_obsolete(view, view->items[i].key + skip) || key_is_prefix_of_next(view, i))
            continue;
        if (tdm_kv_remove(m->watch_kv, view->items[i].key, NULL) != TDM_OK) return;
        removed++;
    }
}

/* ---- watcher round --------------------------------------------------------------------------- */

/* Remembers the lease lengths: a record disappears with its lease, and the length is needed
 * then. */
static void view_remember_leases(tdm_member *m, const tdm__view *view)
{
    if (m->leases_epoch != view->number) memset(m->leases_s, 0, sizeof(m->leases_s));
    m->leases_epoch = view->number;
    for (int i = 0; i < view->size; i++)
        if (view->members[i].has_record) m->leases_s[i] = view->members[i].lease_s;
}

static tdm_status member_read_view(tdm_member *m, tdm__view *view, tdm_error *err)
{
    double asked_s = tdm_kv_now(m->watch_kv);
    tdm_arena_reset(m->watch_arena);
    TDM_TRY(tdm__view_read(m->watch_kv, m->prefix, m->watch_arena, view, err));
    tdm__member_heard(m, asked_s);
    view_remember_leases(m, view);
    const tdm__view_member *me = tdm__view_find(view, m->id);
    unsigned request = member_requests(m, view);
    pthread_mutex_lock(&m->lock);
    m->request = request;
    m->save_request = view->save_request;
    uint32_t active = m->state == TDM__MEMBER_ACTIVE ? m->epoch : 0;
    if (!me || !me->has_record) {
        m->record_is_old = true;
        m->beat_s = asked_s;
        m->record_s = asked_s - TDM__TIMING_MEMBERSHIP_STATUS_S;
    }
    pthread_mutex_unlock(&m->lock);
    char why[400];
    if (active && epoch_has_ended(m, view, active, why)) member_interrupt(m, active, why);
    return TDM_OK;
}

static void member_handle_silence(tdm_member *m, const tdm_error *err)
{
    double now_s = tdm_kv_now(m->watch_kv);
    pthread_mutex_lock(&m->lock);
    double silent_s = now_s - m->heard_s;
    uint32_t epoch = m->epoch;
    pthread_mutex_unlock(&m->lock);
    if (!m->store_is_silent)
        tdm_log(TDM_LOG_WARN, "cluster",
                "member %s: the store does not respond; training continues for now: %s", m->id,
                err->message);
    m->store_is_silent = true;
    if (silent_s < tdm__member_silence_limit_s(m)) return;
    char why[400];
    snprintf(why, sizeof(why), "the store has not responded for %.1f s: %.300s", silent_s,
             err->message);
    member_interrupt(m, epoch, why);
}

void tdm__member_tick(tdm_member *member)
{
    tdm_error err = {0};
    tdm__view view = {0};
    tdm_status status = TDM_OK;
    bool is_beat = tdm_kv_now(member->watch_kv) >= member->beat_s;
    if (is_beat) {
        status = lease_keep(member, &err);
        if (status == TDM_OK)
            member->beat_s = tdm_kv_now(member->watch_kv) +
                             tdm__heartbeat_interval_s(&member->heartbeats);
    }
    if (status == TDM_OK) status = member_read_view(member, &view, &err);
    if (status == TDM_OK) {
        if (member->store_is_silent)
            tdm_log(TDM_LOG_INFO, "cluster", "member %s: the store responds again", member->id);
        member->store_is_silent = false;
        if (is_beat) store_sweep(member, &view);
        double left_s = member->beat_s - tdm_kv_now(member->watch_kv);
        status = tdm_kv_wait(member->watch_kv, member->prefix, view.revision,
                             left_s > 0 ? left_s : 0, NULL, &err);
    }
    if (status == TDM_OK) return;
    member_handle_silence(member, &err);
    member->pause(member->pause_user, TDM__TIMING_MEMBERSHIP_STORE_RETRY_S);
}
