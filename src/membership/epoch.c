/*
 * epoch.c: decides from one view of the store what a member does next. Only `history` and the view
 * change.
 *
 * All members decide by the same rules, possibly from views of different revisions, so several
 * members may propose an epoch, even one that has died since. The compare-and-swap of the key
 * "epoch" accepts the first proposal; all others read the store again.
 *
 * States of the current epoch (tdm__view_state):
 *
 *             first proposal                 a member died, left or reported
 *      NONE -----------------> INTACT -----------------------------------------> BROKEN
 *                                ^                                                 |
 *                                +-------------------------------------------------+
 *                                  next proposal, with the next number
 *
 * Decisions (tdm__epoch_decide). A verdict in the store ends the run for all members (END).
 *
 *      this member                         NONE           INTACT               BROKEN
 *      ---------------------------------   ------------   ------------------   -----------------
 *      in the epoch, has not entered it                   ENTER                SKIP
 *      in the epoch, has left it                          WAIT for the view    propose
 *      never in an epoch                   propose        WAIT for a place     propose
 *      never in one, asked to leave        propose        DISMISSED            propose
 *      excluded, or was in an earlier one  FENCED, or DISMISSED or REFUSED if that is why
 *      dead, as its agent has reported     FENCED         FENCED               FENCED
 *
 * "Propose" (decide_proposal) is WAIT until the proposal is due, PROPOSE when it is this member's
 * turn, and GIVE_UP when there have been fewer members than the minimum for too long.
 *
 * When members have left a broken epoch, the first reporter proposes the next one as soon as the
 * others have reported or are given up. The second reporter proposes if the first has not done so
 * after some time, and so on. A member that is alive and has not reported is "missing". The first
 * case that applies decides when the missing members are given up (reports_due_s). The last three
 * cases are those of one member; of several members, the longest time counts. report_s is an
 * option, 2 s.
 *
 *   case                                           given up                     reason
 *   --------------------------------------------   --------------------------   -----------------
 *   nothing has failed, or no reporter has the     30 report_s after the        they may write a
 *   state                                          epoch broke                  checkpoint
 *   no reporter reaches any of them, and the       0.4 s after the failure      reports on their
 *   reporters would win a partition                                             way arrive
 *   they outnumber the reporters                   report_s after the failure   the reporters may
 *                                                                               be cut off
 *   its host seems to have ended: a connection     0.4 s after the failure      all processes
 *   was closed without a BYE, no member there                                   ended at once
 *   has reported, its agent has not reported the
 *   end of one, and all there are unreachable
 *   the same, but not all there are missed yet     1 s after the failure        they may be alive
 *   any other                                      report_s after the failure   it is interrupted
 *
 * While a missing member on this host makes progress and is reachable, this time is extended up to
 * 60 s after the epoch broke, because a busy host makes members slow. A network partition that
 * closes connections looks like a host that has ended; then either half may continue.
 *
 * Members without the run's state (new ones, and those whose first `enter` has not succeeded)
 * continue by themselves, from the memory of their hosts or the newest checkpoint, only if all
 * other members are dead or did not respond for longer than a member stays in an epoch without the
 * store. So an outage of the store does not take the state from members that have it.
 *
 * The store lists the shm_ids with the newest state: those of the members of the last epoch that
 * began. The memory of a host outlives its workers. If no member of the proposal has such a memory,
 * but an agent is about to restart workers on one, the proposal waits for them. Otherwise the epoch
 * begins with an older state, and the steps after that state are lost.
 */
#include "base/timing.h"
#include "membership/member.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char tdm__asked_to_leave[] = "asked to leave";

void tdm__epoch_history_init(tdm__epoch_history *history)
{
    *history = (tdm__epoch_history){.broken_s = -1,
                                    .failed_s = -1,
                                    .alone_s = -1,
                                    .enough_s = -1,
                                    .short_s = -1,
                                    .due_s = -1,
                                    .away_s = -1};
}

/* Time of the first view with this condition; -1 while it does not hold. */
static double condition_since(double *begun_s, bool is_so, double now_s)
{
    if (!is_so)
        *begun_s = -1;
    else if (*begun_s < 0)
        *begun_s = now_s;
    return *begun_s;
}

static tdm__decision plan_wait(tdm__epoch_plan *plan, double until_s, const char *what)
{
    plan->until_s = until_s;
    plan->what = what;
    return TDM__DECISION_WAIT;
}

static bool member_reports(const tdm__view_member *m)
{
    return m->rank >= 0 && tdm__view_alive(m) && m->has_reported;
}

/* ---- members of the next epoch --------------------------------------------------------------- */

static int member_compare_age(const void *a, const void *b)
{
    const tdm__view_member *x = *(tdm__view_member *const *)a, *y = *(tdm__view_member *const *)b;
    if (x->born != y->born) return x->born < y->born ? -1 : 1;
    return strcmp(x->id, y->id);
}

static int member_compare_slot(const void *a, const void *b)
{
    const tdm__view_member *x = *(tdm__view_member *const *)a, *y = *(tdm__view_member *const *)b;
    if (x->slot != y->slot) return x->slot < y->slot ? -1 : 1;
    return member_compare_age(a, b);
}

static bool names_contain(const char *const *names, int count, const char *id)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], id) == 0) return true;
    return false;
}

static bool member_is_holder(const tdm__view *view, const tdm__view_member *m)
{
    for (int i = 0; i < view->holder_count; i++)
        if (m->shm_id != 0 && view->holders[i].shm_id == m->shm_id) return true;
    return false;
}

/* Whether a member of the epoch is excluded because its host is refused. The same proposal does not
 * add other members of that host: its agent withdraws them. */
static bool host_is_refused(const tdm__view *view, const char *host)
{
    for (int i = 0; i < view->size; i++)
        if (view->members[i].is_refused && strcmp(view->members[i].host, host) == 0) return true;
    return false;
}

/* Members whose memory has the newest state come first: training cannot continue without it. */
static int newcomers_list(tdm__view *view, tdm__view_member **out)
{
    int count = 0, first = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = view->size; i < view->count && count < TDM__MAX_EPOCH; i++) {
            tdm__view_member *m = &view->members[i];
            if (member_is_holder(view, m) == (pass == 0) && tdm__view_is_newcomer(view, m) &&
                !host_is_refused(view, m->host))
                out[count++] = m;
        }
        qsort(out + first, (size_t)(count - first), sizeof(tdm__view_member *), member_compare_age);
        first = count;
    }
    return count;
}

/* Moves the newcomers of `host`, sorted by slot, to the end of the plan. */
static void plan_add_host(tdm__epoch_plan *plan, tdm__view_member **newcomers, int count,
                          const char *host)
{
    int first = plan->next_count;
    for (int i = 0; i < count; i++) {
        if (!newcomers[i] || strcmp(newcomers[i]->host, host) != 0) continue;
        plan->next[plan->next_count++] = newcomers[i];
        newcomers[i] = NULL;
    }
    qsort(plan->next + first, (size_t)(plan->next_count - first), sizeof(tdm__view_member *),
          member_compare_slot);
}

/* Adds the oldest newcomers, up to `room`, host by host: first those of hosts that are in the
 * plan. */
static void plan_add_newcomers(tdm__view *view, int room, tdm__epoch_plan *plan)
{
    tdm__view_member *newcomers[TDM__MAX_EPOCH];
    int count = newcomers_list(view, newcomers);
    if (count > room) count = room;
    int stay = plan->next_count;
    for (int i = 0; i < stay; i++) plan_add_host(plan, newcomers, count, plan->next[i]->host);
    for (int i = 0; i < count; i++)
        if (newcomers[i]) plan_add_host(plan, newcomers, count, newcomers[i]->host);
}

/* Why this member and one that stays refuse a connection, from their reports; NULL: they do not. */
static const char *member_refusal(const tdm__view_member *m, tdm__view_member *const *reporters,
                                  const bool *keep, int count)
{
    for (int i = 0; i < count; i++) {
        const tdm__view_member *one = reporters[i];
        if (!keep[i]) continue;
        if (names_contain(m->refused, m->refused_count, one->id)) return m->refusal;
        if (names_contain(one->refused, one->refused_count, m->id)) return one->refusal;
    }
    return NULL;
}

/* Excludes permanently the members that are refused by those that stay, together with the other
 * members of their hosts: they have the same certificate. A member that has the state is excluded
 * like one that is cut off: its agent may restart it. The epoch has the full reason once, because
 * its text is limited. */
static void reporters_exclude_refused(tdm__view_member *const *reporters, bool *keep, int count)
{
    const char *said = NULL;
    for (int i = 0; i < count; i++) {
        tdm__view_member *m = reporters[i];
        const char *why = keep[i] || m->has_state ? NULL
                                                  : member_refusal(m, reporters, keep, count);
        if (!why) continue;
        m->is_refused = true;
        m->left_why = said ? "the others refuse a connection with it" : why;
        said = why;
        for (int k = 0; k < count; k++) {
            tdm__view_member *mate = reporters[k];
            if (mate->has_state || strcmp(mate->host, m->host) != 0) continue;
            keep[k] = false;
            if (!mate->is_refused) mate->left_why = "the others refuse a connection with its host";
            mate->is_refused = true;
        }
    }
}

/* Adds the members of the epoch that stay, in its order; sets left_why of the others. */
static void plan_add_survivors(tdm__view *view, bool check_cuts, tdm__epoch_plan *plan)
{
    tdm__view_member *reporters[TDM__MAX_EPOCH] = {NULL};
    bool keep[TDM__MAX_EPOCH];
    int count = 0;
    for (int i = 0; i < view->size; i++) {
        tdm__view_member *m = &view->members[i];
        if (member_reports(m))
            reporters[count++] = m;
        else
            m->left_why = m->is_dead       ? m->dead_why
                          : !m->has_record ? "no heartbeat"
                                           : "it did not report in time";
    }
    tdm__epoch_reach(reporters, count, keep);
    reporters_exclude_refused(reporters, keep, count);
    for (int i = 0; i < count; i++) {
        tdm__view_member *m = reporters[i];
        if (keep[i] || (!check_cuts && !m->is_refused))
            plan->next[plan->next_count++] = m;
        else if (!m->is_refused)
            m->left_why = "it is cut off from the other members";
    }
}

static int plan_count_with_state(const tdm__epoch_plan *plan)
{
    int count = 0;
    for (int i = 0; i < plan->next_count; i++) count += plan->next[i]->has_state;
    return count;
}

/* Removes the members that were asked to leave, the last ranks first, as long as the minimum and at
 * least one member with the state stay: newcomers do not have the state yet. */
static void plan_remove_leavers(tdm__epoch_plan *plan, int min, int newcomers)
{
    for (int i = plan->next_count - 1; i >= 0; i--) {
        tdm__view_member *m = plan->next[i];
        if (m->has_state && plan_count_with_state(plan) < 2) continue;
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
    plan_add_survivors(view, check_cuts, plan);
    plan_remove_leavers(plan, rules->min, newcomers);
    while (plan->next_count > max)
        plan->next[--plan->next_count]->left_why = "there are more members than elastic.max";
    plan_add_newcomers(view, max - plan->next_count, plan);
}

/* ---- time and proposer ----------------------------------------------------------------------- */

/* When the first epoch may be proposed: at once if all started members are ready, and at once if
 * there are too few, because decide_proposal handles that; otherwise the others get some time to
 * start. */
static double first_epoch_due_s(tdm__view *view, const tdm__epoch_rules *rules,
                                tdm__epoch_history *history, double now_s)
{
    int count = 0, expected = view->expected;
    tdm__view_newcomers(view, 0, &count);
    if (rules->max > 0 && expected > rules->max) expected = rules->max;
    double enough_s = condition_since(&history->enough_s, count >= rules->min, now_s);
    bool is_complete = expected > 0 && count >= expected;
    return is_complete || enough_s < 0 ? now_s : enough_s + rules->settle_s;
}

static bool member_is_missing(const tdm__view_member *m)
{
    return tdm__view_alive(m) && !m->has_reported;
}

/* What the reports say about a member that has not reported. */
typedef struct evidence {
    bool is_reached;     /* a reporter has not lost it */
    bool is_unreachable; /* a reporter has lost it, and not because it was refused */
    bool is_closed;      /* its connection to a reporter was closed without a BYE */
} evidence;

static evidence reports_about(const tdm__view *view, const tdm__view_member *m)
{
    evidence e = {0};
    for (int i = 0; i < view->size; i++) {
        const tdm__view_member *one = &view->members[i];
        if (!member_reports(one)) continue;
        bool is_lost = names_contain(one->lost, one->lost_count, m->id);
        bool is_closed = names_contain(one->closed, one->closed_count, m->id);
        bool is_refused = names_contain(one->refused, one->refused_count, m->id);
        e.is_reached |= !is_lost;
        e.is_unreachable |= is_closed || (is_lost && !is_refused);
        e.is_closed |= is_closed;
    }
    return e;
}

/* How long to wait for the missing members of this host: see the table at the top. */
static double host_report_s(const tdm__view *view, const char *host, double report_s)
{
    bool has_closed = false, all_unreachable = true;
    for (int i = 0; i < view->size; i++) {
        const tdm__view_member *m = &view->members[i];
        if (strcmp(m->host, host) != 0) continue;
        if (m->has_reported || m->is_dead) return report_s; /* it, or its agent, works */
        evidence e = reports_about(view, m);
        has_closed |= e.is_closed;
        all_unreachable &= e.is_unreachable || !member_is_missing(m);
    }
    if (!has_closed) return report_s;
    return fmin(report_s, all_unreachable ? TDM__TIMING_MEMBERSHIP_REPORT_LOST_S
                                          : TDM__TIMING_MEMBERSHIP_REPORT_HOST_ENDED_S);
}

/* When the members that have not reported are given up: see the table at the top. */
static double reports_due_s(const tdm__view *view, const tdm__epoch_rules *rules,
                            tdm__epoch_history *history, double now_s)
{
    /* What is known about the members of the broken epoch. */
    int reporters = 0, missing = 0;
    bool has_failed = false, has_state = false, is_silent = false;
    bool first_reports = false, any_reached = false, any_busy = false;
    double longest_s = 0;
    for (int i = 0; i < view->size; i++) {
        const tdm__view_member *m = &view->members[i];
        has_failed |= !tdm__view_alive(m) || (m->has_reported && !m->is_regroup);
        is_silent |= !m->has_record && !m->is_dead;
        if (!tdm__view_alive(m)) continue;
        if (reporters + missing == 0) first_reports = m->has_reported;
        reporters += m->has_reported;
        missing += !m->has_reported;
        has_state |= m->has_reported && m->has_state;
        if (m->has_reported) continue;
        evidence e = reports_about(view, m);
        any_reached |= e.is_reached;
        any_busy |= m->is_busy && !e.is_unreachable;
        longest_s = fmax(longest_s, host_report_s(view, m->host, rules->report_s));
    }
    double broken_s = condition_since(&history->broken_s, true, now_s);
    double failed_s = condition_since(&history->failed_s, has_failed, now_s);
    double alone_s = condition_since(&history->alone_s, missing == 0 && !has_state, now_s);

    /* Nobody is missing. A member that is silent may still have the state. */
    if (missing == 0) return alone_s >= 0 && is_silent ? alone_s + rules->silence_s : now_s;

    /* The lines of the table. In a partition the larger side continues, or the one with the first
     * rank. */
    bool reporters_win = reporters > missing || (reporters == missing && first_reports);
    double due_s = 0;
    if (!has_failed || !has_state)
        due_s = broken_s + TDM__TIMING_MEMBERSHIP_REGROUP_REPORTS * rules->report_s;
    else if (!any_reached && reporters_win)
        due_s = failed_s + fmin(TDM__TIMING_MEMBERSHIP_REPORT_LOST_S, rules->report_s);
    else if (missing > reporters)
        due_s = failed_s + rules->report_s;
    else
        due_s = failed_s + longest_s;
    if (any_busy)
        due_s = fmax(due_s, fmin(now_s + TDM__TIMING_MEMBERSHIP_BUSY_CHECK_S,
                                 broken_s + TDM__TIMING_MEMBERSHIP_REPORT_BUSY_S));
    return due_s;
}

/* Number of members that propose before this one. */
static int proposer_turn(tdm__view *view, const char *id)
{
    tdm__view_member *newcomers[TDM__MAX_EPOCH];
    int turn = 0;
    for (int i = 0; i < view->size; i++) {
        if (strcmp(view->members[i].id, id) == 0) return turn;
        turn += member_reports(&view->members[i]);
    }
    int count = newcomers_list(view, newcomers);
    for (int i = 0; i < count && strcmp(newcomers[i]->id, id) != 0; i++) turn++;
    return turn;
}

static bool plan_has_shm(const tdm__epoch_plan *plan, uint64_t shm_id)
{
    for (int i = 0; i < plan->next_count; i++)
        if (plan->next[i]->shm_id == shm_id) return true;
    return false;
}

/* Whether the agent of a holder is about to start workers that use its memory. With `is_sure` there
 * must be evidence: the agent announces the start, it has reported the end of a worker, or a new
 * worker has a record. A host that failed as a whole gives no such evidence, although the record of
 * its agent remains for some time. */
static bool holder_is_starting(const tdm__view *view, const tdm__view_member *holder, bool is_sure)
{
    const tdm__view_host *record = NULL;
    for (int i = 0; i < view->host_count && !record; i++)
        if (view->hosts[i].shm_id == holder->shm_id) record = &view->hosts[i];
    if (!record || record->workers + record->starting == 0) return false;
    if (record->starting > 0 || !is_sure) return true;
    for (int i = 0; i < view->count; i++) {
        const tdm__view_member *m = &view->members[i];
        bool is_new = m->rank < 0 && m->has_record && !m->is_excluded;
        if (strcmp(m->host, holder->host) == 0 && (m->is_dead || is_new)) return true;
    }
    return false;
}

/* A missing host that may return and without which the newest state is lost; NULL: none. */
static const char *plan_missing_host(const tdm__view *view, const tdm__epoch_rules *rules,
                                     const tdm__epoch_plan *plan)
{
    const char *missing = NULL;
    int present = 0;
    for (int i = 0; i < view->holder_count; i++) {
        const tdm__view_member *holder = &view->holders[i];
        if (holder->shm_id == 0 || plan_has_shm(plan, holder->shm_id))
            present++;
        else if (holder_is_starting(view, holder, rules->needs_all))
            missing = holder->host;
    }
    bool is_enough = rules->needs_all ? present == view->holder_count : present > 0;
    return is_enough ? NULL : missing;
}

static tdm__decision decide_proposal(tdm__view *view, const tdm__epoch_rules *rules,
                                     tdm__epoch_history *history, double now_s,
                                     tdm__epoch_plan *plan)
{
    bool is_first = view->number == 0;
    double proposal_s = is_first ? first_epoch_due_s(view, rules, history, now_s)
                                 : reports_due_s(view, rules, history, now_s);
    if (now_s < proposal_s)
        return plan_wait(plan, proposal_s,
                         is_first ? "the others to start" : "the others to leave the epoch");

    /* One member is enough to stop the run: it does one step, writes a checkpoint and ends. */
    int min = view->should_stop ? 1 : rules->min;
    plan_compose(view, rules, true, plan);
    bool is_short = plan->next_count < min || plan->next_count == 0;
    /* Below the minimum because of a network partition. It may have healed; only an epoch can find
     * out. */
    bool is_long = is_short && history->short_s >= 0 &&
                   now_s - history->short_s >= TDM__TIMING_MEMBERSHIP_PARTITION_S;
    if (is_long) plan_compose(view, rules, false, plan);
    is_short = plan->next_count < min || plan->next_count == 0;
    double short_s = condition_since(&history->short_s, is_short, now_s);
    double due_s = condition_since(&history->due_s, !is_short, now_s);
    if (is_short) {
        plan->available = plan->next_count;
        if (now_s - short_s >= rules->wait_s) return TDM__DECISION_GIVE_UP;
        double again_s = short_s + TDM__TIMING_MEMBERSHIP_PARTITION_S;
        return plan_wait(plan, now_s < again_s ? again_s : short_s + rules->wait_s, "more members");
    }

    const char *missing_host = plan_missing_host(view, rules, plan);
    double away_s = condition_since(&history->away_s, missing_host != NULL, now_s);
    if (missing_host && now_s - away_s < TDM__TIMING_MEMBERSHIP_HOLDER_S) {
        plan->missing_host = missing_host;
        return plan_wait(plan, away_s + TDM__TIMING_MEMBERSHIP_HOLDER_S,
                         "a host with the newest state");
    }

    int turn = proposer_turn(view, rules->id);
    double my_turn_s = due_s + turn * TDM__TIMING_MEMBERSHIP_PROPOSER_S;
    if (now_s >= my_turn_s) return TDM__DECISION_PROPOSE;
    return plan_wait(plan, my_turn_s, "the next epoch");
}

tdm__decision tdm__epoch_decide(tdm__view *view, const tdm__epoch_rules *rules,
                                tdm__epoch_history *history, double now_s, tdm__epoch_plan *plan)
{
    tdm__view_member *me = tdm__view_find(view, rules->id);
    tdm__view_state state = tdm__view_epoch_state(view);
    bool is_in = me && me->rank >= 0;
    *plan = (tdm__epoch_plan){.until_s = now_s};
    if (history->number != view->number) {
        uint32_t left = history->left;
        bool took_part = history->took_part;
        tdm__epoch_history_init(history);
        history->left = left;
        history->took_part = took_part;
        history->number = view->number;
    }

    if (view->has_verdict) return TDM__DECISION_END;
    if (me && me->is_dead) return TDM__DECISION_FENCED;
    if (is_in && history->left < view->number)
        return state == TDM__VIEW_BROKEN ? TDM__DECISION_SKIP : TDM__DECISION_ENTER;
    if (!is_in && (history->took_part || (me && me->is_excluded))) {
        bool was_asked = me && me->left_why && strcmp(me->left_why, tdm__asked_to_leave) == 0;
        if (me && me->is_refused) return TDM__DECISION_REFUSED;
        return was_asked ? TDM__DECISION_DISMISSED : TDM__DECISION_FENCED;
    }
    if (me && !is_in && me->should_leave && state == TDM__VIEW_INTACT)
        return TDM__DECISION_DISMISSED;
    if (!me || !me->has_record)
        return plan_wait(plan, now_s + TDM__TIMING_MEMBERSHIP_OWN_RECORD_S, "its own record");
    if (state == TDM__VIEW_INTACT) return plan_wait(plan, INFINITY, "a place in the next epoch");
    return decide_proposal(view, rules, history, now_s, plan);
}
