/*
 * epoch.c: what a member is to do next, decided from one look at the store. No side effects but in `memo`.
 *
 * Everybody decides by the same rules from what may be different moments, so several may propose, or one
 * that has since died: the swap of "epoch" takes the first proposal, and all others look again. The rules:
 * a member of the epoch that counts enters it; one that has left it waits until all others that live have
 * reported, or their time is up, and then the first of those that reported proposes the next one; the
 * second only steps in when the first has not, after some time, and so on. Who has no place in the epoch
 * that counts, but was once offered one, is fenced. Who was never offered one waits.
 *
 * The time to report is short after a failure, for the others were interrupted; and long when all left for
 * a regrouping, for they may be busy with what is due after the step that agreed on it. Those that do not
 * have the run's state (newcomers, also when they have a place but never came through enter) go on
 * alone, with what their hosts or the newest checkpoint have, only when all others are dead, or have been
 * silent for longer than anybody goes on without the store: a store that was away for a while takes no
 * state from those that have it.
 *
 * The store says which vault_ids hold the newest state: those of the members of the last epoch that began.
 * A host's memory outlives its workers, so where none of these takes part, but an agent is about to start
 * workers on one again, it is waited for. Otherwise the epoch begins with an older state, and the steps after that are lost.
 */
#include "membership/member.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOST_S 0.4 /* to report, for those that nobody can reach, or whose host is gone */
#define GONE_S 1.0 /* the same where of some of the host nobody has heard anything */

/* Times to report, in units of report_s, when nothing has failed, or when nobody has reported. */
#define UNHURRIED 30.0
/* The second proposer steps in so much later than the first, and so on. */
#define TURN_S 0.5
/* At most so long a member that makes progress is waited for; it is looked at so often. */
#define MAX_BUSY_S 60.0
#define BUSY_LOOK_S 0.25
/* So long those that are too few without the others believe that these are cut off. */
#define CUT_S 5.0
/* So long a host with the newest state is waited for: longer than an agent pauses between two starts. */
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

/* When this began: at the first look at which it was so. */
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

/* ---- who takes part -------------------------------------------------------------------------- */

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

/* Whether a member of the epoch is left out because its host does not fit. Others of that host are not taken in
 * by the same proposal: its agent withdraws them. */
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

/* Those of `host` among the newcomers, by slot, to the end of the list; each is taken out. */
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

/* The oldest newcomers for which there is room, host by host: those of hosts that are there first. */
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

/* The report that says that this member and one that stays refuse each other; NULL: there is none. */
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

/* Leaves out for good the members that do not fit those that stay, and with each the others of its host: they
 * have the same certificate. A member that has the state is left out like one that is cut off: its agent may
 * start it again. The epoch has the full reason once, because its text is limited. */
static void expel(tdm__view_member *const *reporters, bool *keep, int count)
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

/* Those of the epoch that stay, in its order; says of the others why they do not. */
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
    expel(reporters, keep, count);
    for (int i = 0; i < count; i++) {
        tdm__view_member *m = reporters[i];
        if (keep[i] || (!check_cuts && !m->is_refused))
            plan->next[plan->next_count++] = m;
        else if (!m->is_refused)
            m->left_why = "it is cut off from the other members";
    }
}

static int whole_of(const tdm__epoch_plan *plan)
{
    int count = 0;
    for (int i = 0; i < plan->next_count; i++) count += plan->next[i]->is_whole;
    return count;
}

/* Those that were asked to leave go, the last ranks first, as long as enough stay, and one at least of
 * those that have the state: newcomers have none yet. */
static void dismiss(tdm__epoch_plan *plan, int min, int newcomers)
{
    for (int i = plan->next_count - 1; i >= 0; i--) {
        tdm__view_member *m = plan->next[i];
        if (m->is_whole && whole_of(plan) < 2) continue;
        if (!m->should_leave || plan->next_count - 1 + newcomers < min) continue;
        m->left_why = tdm__asked_to_leave;
        plan->next_count--;
        memmove(plan->next + i, plan->next + i + 1,
                (size_t)(plan->next_count - i) * sizeof(tdm__view_member *));
    }
}

static void compose(tdm__view *view, const tdm__epoch_rules *rules, bool check_cuts,
                    tdm__epoch_plan *plan)
{
    int max = rules->max > 0 && rules->max < TDM__MAX_EPOCH ? rules->max : TDM__MAX_EPOCH;
    int newcomers = 0;
    plan->next_count = 0;
    tdm__view_newcomers(view, 0, &newcomers);
    add_survivors(view, check_cuts, plan);
    dismiss(plan, rules->min, newcomers);
    while (plan->next_count > max)
        plan->next[--plan->next_count]->left_why = "there are more members than elastic.max";
    add_newcomers(view, max - plan->next_count, plan);
}

/* ---- when, and by whom ----------------------------------------------------------------------- */

/* Whether the time has come to propose; if not, until when to wait. */
static bool is_first_due(tdm__view *view, const tdm__epoch_rules *rules, tdm__epoch_history *memo,
                         double now_s, tdm__epoch_plan *plan)
{
    int count = 0;
    tdm__view_newcomers(view, 0, &count);
    int expected = view->expected;
    if (rules->max > 0 && expected > rules->max) expected = rules->max;
    double enough_s = since(&memo->enough_s, count >= rules->min, now_s);
    if (expected > 0 && count >= expected) return true;
    if (enough_s < 0) return true; /* too few: that is said elsewhere */
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

/* Whether somebody who reported could not reach it. One that was reached and refused may still report. */
static bool is_named(const tdm__view *view, const tdm__view_member *m)
{
    for (int i = 0; i < view->size; i++) {
        const tdm__view_member *one = &view->members[i];
        if (is_reporter(one) && has_name(one->lost, one->lost_count, m->id) &&
            !has_name(one->refused, one->refused_count, m->id))
            return true;
    }
    return is_closed(view, m);
}

/* How long to wait for those of this host. All its processes seem to have ended at once when of one of them
 * a connection was closed without a good-bye, none of them has reported, and its agent, which would have said
 * of that one how it ended, has not. One that nobody has missed yet may live, and get more time for that. */
static double host_s(const tdm__view *view, const char *host, double report_s)
{
    bool has_closed = false, are_named = true;
    for (int i = 0; i < view->size; i++) {
        const tdm__view_member *m = &view->members[i];
        if (strcmp(m->host, host) != 0) continue;
        if (m->has_reported || m->is_dead) return report_s;
        has_closed = has_closed || is_closed(view, m);
        are_named = are_named && (!is_missing(m) || is_named(view, m));
    }
    if (!has_closed) return report_s;
    return fmin(are_named ? LOST_S : GONE_S, report_s);
}

/* How long to wait for those that have not reported: not for long where they are all of hosts that are gone,
 * and no more than those who have. The same if their network was cut, in a way that closes connections: then
 * either half may go on. */
static double gone_s(const tdm__view *view, double report_s)
{
    int reporters = 0, missing = 0;
    double longest_s = 0;
    for (int i = 0; i < view->size; i++) {
        const tdm__view_member *m = &view->members[i];
        reporters += is_reporter(m);
        missing += is_missing(m);
        if (is_missing(m)) longest_s = fmax(longest_s, host_s(view, m->host, report_s));
    }
    return reporters >= missing ? longest_s : report_s;
}

/* Whether those that have not reported are out of reach of all who have, and these would be chosen if it
 * were a cut: then there is little to wait for. */
static bool are_lost(const tdm__view *view)
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

/* Whether one that has not reported makes progress, as the kernel of this host says. One that others could
 * not reach has got its time in the call that found that out. */
static bool is_one_busy(const tdm__view *view)
{
    for (int i = 0; i < view->size; i++) {
        const tdm__view_member *m = &view->members[i];
        if (is_missing(m) && m->is_busy && !is_named(view, m)) return true;
    }
    return false;
}

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
        due_s = failed_s + (are_lost(view) ? fmin(LOST_S, report_s) : gone_s(view, report_s));
    }
    /* Slow ones are waited for, and looked at again and again: their host is busy. */
    if (is_one_busy(view)) due_s = fmax(due_s, fmin(now_s + BUSY_LOOK_S, broken_s + MAX_BUSY_S));
    if (!misses) due_s = alone_s >= 0 && is_silent ? alone_s + rules->silence_s : now_s;
    if (now_s >= due_s) return true;
    wait_until(plan, due_s, "the others to leave the epoch");
    return false;
}

/* How many would propose before this one. */
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

static bool takes_part(const tdm__epoch_plan *plan, uint64_t shm_id)
{
    for (int i = 0; i < plan->next_count; i++)
        if (plan->next[i]->shm_id == shm_id) return true;
    return false;
}

/* Whether the agent that keeps a memory is about to start workers on it. With `is_sure` it must have said so,
 * or told of the death of one, or one must be there that is not ready yet: a host that is gone as a whole tells
 * nothing, and its agent's record ends some time later. */
static bool is_starting(const tdm__view *view, const tdm__view_member *holder, bool is_sure)
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

/* A host without which the newest state is lost, though it may come back; NULL: there is none. */
static const char *host_away(const tdm__view *view, const tdm__epoch_rules *rules,
                             const tdm__epoch_plan *plan)
{
    const char *away = NULL;
    int here = 0;
    for (int i = 0; i < view->holder_count; i++) {
        const tdm__view_member *holder = &view->holders[i];
        if (holder->shm_id == 0 || takes_part(plan, holder->shm_id))
            here++;
        else if (is_starting(view, holder, rules->needs_all))
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
    /* Who shall stop needs no company: one step, a checkpoint, and that is the end. */
    int min = view->should_stop ? 1 : rules->min;
    compose(view, rules, true, plan);
    bool is_short = plan->next_count < min || plan->next_count == 0;
    /* Too few, because a network is cut: it may be whole again, which only an epoch finds out. */
    bool is_long = is_short && memo->short_s >= 0 && now_s - memo->short_s >= CUT_S;
    if (is_long) compose(view, rules, false, plan);
    is_short = plan->next_count < min || plan->next_count == 0;
    double short_s = since(&memo->short_s, is_short, now_s);
    double due_s = since(&memo->due_s, !is_short, now_s);
    if (is_short) {
        plan->here = plan->next_count;
        if (now_s - short_s >= rules->wait_s) return TDM__DECISION_GIVE_UP;
        double again_s = now_s < short_s + CUT_S ? short_s + CUT_S : short_s + rules->wait_s;
        return wait_until(plan, again_s, "more members");
    }
    const char *away = host_away(view, rules, plan);
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
    if (!me || !me->is_here) /* the watcher is about to put its record back */
        return wait_until(plan, now_s + TURN_S, "its own record");
    if (view->number > 0 && !is_broken)
        return wait_until(plan, now_s + UNHURRIED, "a place in the next epoch");
    return propose(view, rules, memo, now_s, plan);
}
