/*
 * epoch.c: decides from one view of the store what a member does next. Only `memo` and the view change.
 *
 * All members decide by the same rules, possibly from views of different revisions, so several may propose,
 * or one that has died since. The compare-and-swap of "epoch" accepts the first proposal; all others read
 * the store again. The rules:
 *  - A member of the current epoch enters it.
 *  - A member that has left it waits until all other living members have reported or their time has
 *    expired. Then the first reporter proposes the next epoch; the second one proposes if the first has not
 *    done so after some time, and so on.
 *  - A member that is not in the current epoch, but took part before or was excluded, is fenced.
 *  - A member that was never in an epoch waits for a place.
 *
 * The time to report is short after a failure, because the other members were interrupted. It is long for a
 * regrouping, because they may still do the work that follows the last step, such as a checkpoint. Members
 * without the run's state (new ones, and those whose first `enter` has not succeeded) continue by
 * themselves, from the memory of their hosts or the newest checkpoint, only if all other members are dead
 * or did not respond for longer than a member stays in an epoch without the store. So an outage of the
 * store does not take the state from members that have it.
 *
 * The store lists the shm_ids with the newest state: those of the members of the last epoch that began. The
 * memory of a host outlives its workers. If no member of the proposal has such a memory, but an agent is about
 * to restart workers on one, the proposal waits for them. Otherwise the epoch begins with an older state,
 * and the steps after that state are lost.
 */
#include "membership/member.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOST_S 0.4 /* time to report for members that no other can reach, or whose host is gone */
#define GONE_S 1.0 /* the same if no member has lost some of the members on that host */

/* Time to report, in units of report_s, if nothing has failed or no member has reported. */
#define UNHURRIED 30.0
/* Each further proposer waits this much longer than the one before. */
#define TURN_S 0.5
/* Maximum wait for a member that makes progress, and the interval of checking it. */
#define MAX_BUSY_S 60.0
#define BUSY_LOOK_S 0.25
/* How long members that are below the minimum exclude unreachable members, before they try with them. */
#define CUT_S 5.0
/* Maximum wait for a host with the newest state: longer than an agent pauses between two starts. */
#define AWAY_S 45.0

const char tdm__asked_to_leave[] = "asked to leave";

void tdm__epoch_history_init(tdm__epoch_history *memo)
{
    *memo = (tdm__epoch_history){.broken_s = -1,
                                 .failed_s = -1,
                                 .alone_s = -1,
                                 .enough_s = -1,
                                 .short_s = -1,
                                 .due_s = -1,
                                 .away_s = -1};
}

/* Time of the first view with this condition; -1 while it does not hold. */
static double since(double *begun_s, bool is_so, double now_s)
{
    if (!is_so)
        *begun_s = -1;
    else if (*begun_s < 0)
        *begun_s = now_s;
    return *begun_s;
}

static tdm__decision wait_until(tdm__epoch_plan *plan, double until_s, const char *what)
{
    plan->until_s = until_s;
    plan->what = what;
    return TDM__DECISION_WAIT;
}

static bool is_reporter(const tdm__view_member *m)
{
    return m->rank >= 0 && tdm__view_alive(m) && m->has_reported;
}

static bool is_failure(const tdm__view *view)
{
    for (int i = 0; i < view->size; i++) {
        const tdm__view_member *m = &view->members[i];
        if (!tdm__view_alive(m) || (m->has_reported && !m->is_regroup)) return true;
    }
    return false;
}

/* ---- members of the next epoch --------------------------------------------------------------- */

static int by_age(const void *a, const void *b)
{
    const tdm__view_member *x = *(tdm__view_member *const *)a, *y = *(tdm__view_member *const *)b;
    if (x->born != y->born) return x->born < y->born ? -1 : 1;
    return strcmp(x->id, y->id);
}

static int by_slot(const void *a, const void *b)
{
    const tdm__view_member *x = *(tdm__view_member *const *)a, *y = *(tdm__view_member *const *)b;
    if (x->slot != y->slot) return x->slot < y->slot ? -1 : 1;
    return by_age(a, b);
}

static bool has_name(const char *const *names, int count, const char *id)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], id) == 0) return true;
    return false;
}

static bool is_holder(const tdm__view *view, const tdm__view_member *m)
{
    for (int i = 0; i < view->holder_count; i++)
        if (m->shm_id != 0 && view->holders[i].shm_id == m->shm_id) return true;
    return false;
}

/* Whether a member of the epoch is excluded because its host is refused. The same proposal does not add other
 * members of that host: its agent withdraws them. */
static bool is_host_refused(const tdm__view *view, const char *host)
{
    for (int i = 0; i < view->size; i++)
        if (view->members[i].is_refused && strcmp(view->members[i].host, host) == 0) return true;
    return false;
}

/* Members whose memory has the newest state come first: training cannot continue without it. */
static int newcomers_by_age(tdm__view *view, tdm__view_member **out)
{
    int count = 0, first = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = view->size; i < view->count && count < TDM__MAX_EPOCH; i++) {
            tdm__view_member *m = &view->members[i];
            if (is_holder(view, m) == (pass == 0) && tdm__view_is_newcomer(view, m) &&
                !is_host_refused(view, m->host))
                out[count++] = m;
        }
        qsort(out + first, (size_t)(count - first), sizeof(tdm__view_member *), by_age);
        first = count;
    }
    return count;
}

/* Moves the newcomers of `host`, sorted by slot, to the end of the plan. */
static void add_host(tdm__epoch_plan *plan, tdm__view_member **newcomers, int count,
                     const char *host)
{
    int first = plan->next_count;
    for (int i = 0; i < count; i++) {
        if (!newcomers[i] || strcmp(newcomers[i]->host, host) != 0) continue;
        plan->next[plan->next_count++] = newcomers[i];
        newcomers[i] = NULL;
    }
    qsort(plan->next + first, (size_t)(plan->next_count - first), sizeof(tdm__view_member *),
          by_slot);
}

/* Adds the oldest newcomers, up to `room`, host by host: first those of hosts that are in the plan. */
static void add_newcomers(tdm__view *view, int room, tdm__epoch_plan *plan)
{
    tdm__view_member *newcomers[TDM__MAX_EPOCH];
    int count = newcomers_by_age(view, newcomers);
    if (count > room) count = room;
    int stay = plan->next_count;
    for (int i = 0; i < stay; i++) add_host(plan, newcomers, count, plan->next[i]->host);
    for (int i = 0; i < count; i++)
        if (newcomers[i]) add_host(plan, newcomers, count, newcomers[i]->host);
}

/* Why this member and one that stays refuse a connection, from their reports; NULL: they do not. */
static const char *refusal_of(const tdm__view_member *m, tdm__view_member *const *reporters,
                              const bool *keep, int count)
{
    for (int i = 0; i < count; i++) {
        const tdm__view_member *one = reporters[i];
        if (!keep[i]) continue;
        if (has_name(m->refused, m->refused_count, one->id)) return m->refusal;
        if (has_name(one->refused, one->refused_count, m->id)) return one->refusal;
    }
    return NULL;
}

/* Excludes permanently the members that are refused by those that stay, together with the other members of their
 * hosts: they have the same certificate. A member that has the state is excluded like one that is cut off: its
 * agent may restart it. The epoch has the full reason once, because its text is limited. */
static void exclude_refused(tdm__view_member *const *reporters, bool *keep, int count)
{
    const char *said = NULL;
    for (int i = 0; i < count; i++) {
        tdm__view_member *m = reporters[i];
        const char *why = keep[i] || m->is_whole ? NULL : refusal_of(m, reporters, keep, count);
        if (!why) continue;
        m->is_refused = true;
        m->left_why = said ? "the others refuse a connection with it" : why;
        said = why;
        for (int k = 0; k < count; k++) {
            tdm__view_member *mate = reporters[k];
            if (mate->is_whole || strcmp(mate->host, m->host) != 0) continue;
            keep[k] = false;
            if (!mate->is_refused) mate->left_why = "the others refuse a connection with its host";
            mate->is_refused = true;
        }
    }
}

/* Adds the members of the epoch that stay, in its order; sets left_why of the others. */
static void add_survivors(tdm__view *view, bool check_cuts, tdm__epoch_plan *plan)
{
    tdm__view_member *reporters[TDM__MAX_EPOCH] = {NULL};
    bool keep[TDM__MAX_EPOCH];
    int count = 0;
    for (int i = 0; i < view->size; i++) {
        tdm__view_member *m = &view->members[i];
        if (is_reporter(m))
            reporters[count++] = m;
        else
            m->left_why = m->is_dead    ? m->dead_why
                          : !m->is_here ? "no heartbeat"
                                        : "it did not report in time";
    }
    tdm__epoch_reach(reporters, count, keep);
    exclude_refused(reporters, keep, count);
    for (int i = 0; i < count; i++) {
        tdm__view_member *m = reporters[i];
        if (keep[i] || (!check_cuts && !m->is_refused))
            plan->next[plan->next_count++] = m;
        else if (!m->is_refused)
            m->left_why = "it is cut off from the other members";
    }
}

static int count_whole(const tdm__epoch_plan *plan)
{
    int count = 0;
    for (int i = 0; i < plan->next_count; i++) count += plan->next[i]->is_whole;
    return count;
}

/* Removes the members that were asked to leave, the last ranks first, as long as the minimum and at least one
 * member with the state stay: newcomers do not have the state yet. */
static void remove_leavers(tdm__epoch_plan *plan, int min, int newcomers)
{
    for (int i = plan->next_count - 1; i >= 0; i--) {
        tdm__view_member *m = plan->next[i];
        if (m->is_whole && count_whole(plan) < 2) continue;
        if (!m->should_leave || plan->next_count - 1 + newcomers < min) continue;
        m->left_why = tdm__asked_to_leave;
        plan->next_count--;
        memmove(plan->next + i, plan->next + i + 1,
                (size_t)(plan->next_count - i) * sizeof(tdm__view_member *));
    }
}

static void plan_compose(tdm__view *view, const tdm__epoch_rules *rules, bool check_cuts,
                         tdm__epoch_plan *plan)
{
    int max = rules->max > 0 && rules->max < TDM__MAX_EPOCH ? rules->max : TDM__MAX_EPOCH;
    int newcomers = 0;
    plan->next_count = 0;
    tdm__view_newcomers(view, 0, &newcomers);
    add_survivors(view, check_cuts, plan);
    remove_leavers(plan, rules->min, newcomers);
    while (plan->next_count > max)
        plan->next[--plan->next_count]->left_why = "there are more members than elastic.max";
    add_newcomers(view, max - plan->next_count, plan);
}

/* ---- time and proposer ----------------------------------------------------------------------- */

/* Whether the first epoch may be proposed now; if not, the plan says until when to wait. */
static bool is_first_due(tdm__view *view, const tdm__epoch_rules *rules, tdm__epoch_history *memo,
                         double now_s, tdm__epoch_plan *plan)
{
    int count = 0;
    tdm__view_newcomers(view, 0, &count);
    int expected = view->expected;
    if (rules->max > 0 && expected > rules->max) expected = rules->max;
    double enough_s = since(&memo->enough_s, count >= rules->min, now_s);
    if (expected > 0 && count >= expected) return true;
    if (enough_s < 0) return true; /* below the minimum: propose() reports it */
    if (now_s - enough_s >= rules->settle_s) return true;
    wait_until(plan, enough_s + rules->settle_s, "the others to start");
    return false;
}

static bool is_missing(const tdm__view_member *m)
{
    return tdm__view_alive(m) && !m->has_reported;
}

static bool is_closed(const tdm__view *view, const tdm__view_member *m)
{
    for (int i = 0; i < view->size; i++) {
        const tdm__view_member *one = &view->members[i];
        if (is_reporter(one) && has_name(one->closed, one->closed_count, m->id)) return true;
    }
    return false;
}

/* Whether a reporter could not reach it. A member that was reached and refused may still report. */
static bool is_unreachable(const tdm__view *view, const tdm__view_member *m)
{
    for (int i = 0; i < view->size; i++) {
        const tdm__view_member *one = &view->members[i];
        if (is_reporter(one) && has_name(one->lost, one->lost_count, m->id) &&
            !has_name(one->refused, one->refused_count, m->id))
            return true;
    }
    return is_closed(view, m);
}

/* How long to wait for the members of this host. Its processes seem to have ended all at once if the connection
 * of one was closed without a BYE, none of them has reported, and its agent has not reported the end of one. A
 * member that no reporter has lost yet may be alive, so it gets more time. */
static double host_report_s(const tdm__view *view, const char *host, double report_s)
{
    bool has_closed = false, all_unreachable = true;
    for (int i = 0; i < view->size; i++) {
        const tdm__view_member *m = &view->members[i];
        if (strcmp(m->host, host) != 0) continue;
        if (m->has_reported || m->is_dead) return report_s;
        has_closed = has_closed || is_closed(view, m);
        all_unreachable = all_unreachable && (!is_missing(m) || is_unreachable(view, m));
    }
    if (!has_closed) return report_s;
    return fmin(all_unreachable ? LOST_S : GONE_S, report_s);
}

/* How long to wait for the members that have not reported: a short time if all of them are on hosts that are
 * gone and they do not outnumber the reporters. A network partition that closes connections looks the same; then
 * either half may continue. */
static double missing_report_s(const tdm__view *view, double report_s)
{
    int reporters = 0, missing = 0;
    double longest_s = 0;
    for (int i = 0; i < view->size; i++) {
        const tdm__view_member *m = &view->members[i];
        reporters += is_reporter(m);
        missing += is_missing(m);
        if (is_missing(m)) longest_s = fmax(longest_s, host_report_s(view, m->host, report_s));
    }
    return reporters >= missing ? longest_s : report_s;
}

/* Whether no reporter can reach any member that has not reported, and the reporters would be chosen if it were a
 * network partition: then a short wait is enough. */
static bool missing_are_lost(const tdm__view *view)
{
    int reporters = 0, missing = 0, lowest = -1;
    for (int i = 0; i < view->size; i++) {
        const tdm__view_member *m = &view->members[i];
        bool reports = is_reporter(m), misses = is_missing(m);
        if ((reports || misses) && lowest < 0) lowest = reports;
        reporters += reports;
        missing += misses;
        for (int k = 0; k < view->size && misses; k++) {
            const tdm__view_member *one = &view->members[k];
            if (is_reporter(one) && !has_name(one->lost, one->lost_count, m->id)) return false;
        }
    }
    return reporters > missing || (reporters == missing && lowest == 1);
}

/* Whether a member that has not reported makes progress, according to the kernel of this host. A member that
 * another one could not reach had its time in the call that failed. */
static bool missing_is_busy(const tdm__view *view)
{
    for (int i = 0; i < view->size; i++) {
        const tdm__view_member *m = &view->members[i];
        if (is_missing(m) && m->is_busy && !is_unreachable(view, m)) return true;
    }
    return false;
}

/* Whether the next epoch may be proposed now; if not, the plan says until when to wait. */
static bool is_next_due(tdm__view *view, const tdm__epoch_rules *rules, tdm__epoch_history *memo,
                        double now_s, tdm__epoch_plan *plan)
{
    bool has_failed = is_failure(view), has_state = false, misses = false;
    bool is_silent = false;
    double broken_s = since(&memo->broken_s, true, now_s);
    double failed_s = since(&memo->failed_s, has_failed, now_s);
    for (int i = 0; i < view->size; i++) {
        tdm__view_member *m = &view->members[i];
        has_state |= is_reporter(m) && m->is_whole;
        misses |= is_missing(m);
        is_silent |= !m->is_here && !m->is_dead;
    }
    double alone_s = since(&memo->alone_s, !misses && !has_state, now_s);
    double due_s = broken_s + UNHURRIED * rules->report_s;
    if (has_failed && has_state) {
        double report_s = rules->report_s;
        due_s = failed_s + (missing_are_lost(view) ? fmin(LOST_S, report_s)
                                                   : missing_report_s(view, report_s));
    }
    /* A busy host makes members slow: wait for them, and check them repeatedly. */
    if (missing_is_busy(view))
        due_s = fmax(due_s, fmin(now_s + BUSY_LOOK_S, broken_s + MAX_BUSY_S));
    if (!misses) due_s = alone_s >= 0 && is_silent ? alone_s + rules->silence_s : now_s;
    if (now_s >= due_s) return true;
    wait_until(plan, due_s, "the others to leave the epoch");
    return false;
}

/* Number of members that propose before this one. */
static int turn_of(tdm__view *view, const char *id)
{
    tdm__view_member *newcomers[TDM__MAX_EPOCH];
    int turn = 0;
    for (int i = 0; i < view->size; i++) {
        if (strcmp(view->members[i].id, id) == 0) return turn;
        turn += is_reporter(&view->members[i]);
    }
    int count = newcomers_by_age(view, newcomers);
    for (int i = 0; i < count && strcmp(newcomers[i]->id, id) != 0; i++) turn++;
    return turn;
}

static bool plan_has_shm(const tdm__epoch_plan *plan, uint64_t shm_id)
{
    for (int i = 0; i < plan->next_count; i++)
        if (plan->next[i]->shm_id == shm_id) return true;
    return false;
}

/* Whether the agent of a holder is about to start workers that use its memory. With `is_sure` there must be
 * evidence: the agent announces the start, it has reported the end of a worker, or a new worker has a record. A
 * host that failed as a whole gives no such evidence, although the record of its agent remains for some time. */
static bool holder_is_starting(const tdm__view *view, const tdm__view_member *holder, bool is_sure)
{
    const tdm__view_host *record = NULL;
    for (int i = 0; i < view->host_count && !record; i++)
        if (view->hosts[i].shm_id == holder->shm_id) record = &view->hosts[i];
    if (!record || record->workers + record->starting == 0) return false;
    if (record->starting > 0 || !is_sure) return true;
    for (int i = 0; i < view->count; i++) {
        const tdm__view_member *m = &view->members[i];
        bool is_new = m->rank < 0 && m->is_here && !m->is_left_out;
        if (strcmp(m->host, holder->host) == 0 && (m->is_dead || is_new)) return true;
    }
    return false;
}

/* A missing host that may return and without which the newest state is lost; NULL: none. */
static const char *missing_holder(const tdm__view *view, const tdm__epoch_rules *rules,
                                  const tdm__epoch_plan *plan)
{
    const char *away = NULL;
    int here = 0;
    for (int i = 0; i < view->holder_count; i++) {
        const tdm__view_member *holder = &view->holders[i];
        if (holder->shm_id == 0 || plan_has_shm(plan, holder->shm_id))
            here++;
        else if (holder_is_starting(view, holder, rules->needs_all))
            away = holder->host;
    }
    bool is_enough = rules->needs_all ? here == view->holder_count : here > 0;
    return is_enough ? NULL : away;
}

static tdm__decision propose(tdm__view *view, const tdm__epoch_rules *rules,
                             tdm__epoch_history *memo, double now_s, tdm__epoch_plan *plan)
{
    bool is_due = view->number == 0 ? is_first_due(view, rules, memo, now_s, plan)
                                    : is_next_due(view, rules, memo, now_s, plan);
    if (!is_due) return TDM__DECISION_WAIT;
    /* One member is enough to stop the run: it does one step, writes a checkpoint and ends. */
    int min = view->should_stop ? 1 : rules->min;
    plan_compose(view, rules, true, plan);
    bool is_short = plan->next_count < min || plan->next_count == 0;
    /* Below the minimum because of a network partition. It may have healed; only an epoch can find out. */
    bool is_long = is_short && memo->short_s >= 0 && now_s - memo->short_s >= CUT_S;
    if (is_long) plan_compose(view, rules, false, plan);
    is_short = plan->next_count < min || plan->next_count == 0;
    double short_s = since(&memo->short_s, is_short, now_s);
    double due_s = since(&memo->due_s, !is_short, now_s);
    if (is_short) {
        plan->here = plan->next_count;
        if (now_s - short_s >= rules->wait_s) return TDM__DECISION_GIVE_UP;
        double again_s = now_s < short_s + CUT_S ? short_s + CUT_S : short_s + rules->wait_s;
        return wait_until(plan, again_s, "more members");
    }
    const char *away = missing_holder(view, rules, plan);
    double away_s = since(&memo->away_s, away != NULL, now_s);
    if (away && now_s - away_s < AWAY_S) {
        plan->away = away;
        return wait_until(plan, away_s + AWAY_S, "a host with the newest state");
    }
    double my_turn_s = due_s + turn_of(view, rules->id) * TURN_S;
    if (now_s >= my_turn_s) return TDM__DECISION_PROPOSE;
    return wait_until(plan, my_turn_s, "the next epoch");
}

tdm__decision tdm__epoch_decide(tdm__view *view, const tdm__epoch_rules *rules,
                                tdm__epoch_history *memo, double now_s, tdm__epoch_plan *plan)
{
    tdm__view_member *me = tdm__view_find(view, rules->id);
    *plan = (tdm__epoch_plan){.until_s = now_s};
    if (memo->number != view->number) {
        uint32_t left = memo->left;
        bool took_part = memo->took_part;
        tdm__epoch_history_init(memo);
        memo->left = left;
        memo->took_part = took_part;
        memo->number = view->number;
    }
    if (view->has_verdict) return TDM__DECISION_END;
    if (me && me->is_dead) return TDM__DECISION_FENCED;
    bool is_in = me && me->rank >= 0;
    bool is_broken = view->number > 0 && tdm__view_is_broken(view);
    if (is_in && memo->left < view->number)
        return is_broken ? TDM__DECISION_SKIP : TDM__DECISION_ENTER;
    if (!is_in && (memo->took_part || (me && me->is_left_out))) {
        bool was_asked = me && me->left_why && strcmp(me->left_why, tdm__asked_to_leave) == 0;
        if (me && me->is_refused) return TDM__DECISION_REFUSED;
        return was_asked ? TDM__DECISION_DISMISSED : TDM__DECISION_FENCED;
    }
    if (me && !is_in && me->should_leave && tdm__view_can_spare(view))
        return TDM__DECISION_DISMISSED;
    if (!me || !me->is_here) /* the watcher will write its record again */
        return wait_until(plan, now_s + TURN_S, "its own record");
    if (view->number > 0 && !is_broken)
        return wait_until(plan, now_s + UNHURRIED, "a place in the next epoch");
    return propose(view, rules, memo, now_s, plan);
}
