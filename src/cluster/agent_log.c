/*
 * agent_log.c: brings the log lines of an agent and its workers into the run's log.
 *
 * On the host of rank 0 they are appended directly. Other hosts send them through the store, at the
 * rate at which the first agent of rank 0's host takes them out (log_forward.c). While the host of
 * rank 0 is unknown, lines wait, up to a limit.
 */
#include "base/base.h"
#include "base/timing.h"
#include "cluster/agent.h"
#include "kv/kv.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The name of this agent in the store. */
static const char *agent_name(const tdm__agent *a)
{
    return strrchr(a->host_key, '/') + 1;
}

/* A disk that hangs would block the agent: lines wait for it, up to their limit. */
static bool agent_can_write(const tdm__agent *a)
{
    return a->knows_lead && a->is_lead && a->run[0] && !a->health.disk_is_silent;
}

static void agent_move_lines(tdm__agent *a)
{
    if (a->is_first) tdm__log_forward_drain(&a->lines);
    tdm__log_forward_report_dropped(&a->lines, a->options->host);
    if (agent_can_write(a)) {
        tdm__log_forward_write(&a->lines, a->run);
        if (a->is_first && !a->store_failed)
            tdm__log_forward_collect(a->kv, a->options->session, a->run);
    } else if (a->knows_lead && !a->is_lead && !a->store_failed) {
        tdm__log_forward_send(&a->lines, a->kv, a->options->session, agent_name(a));
    }
}

void tdm__agent_log_look(tdm__agent *a, const tdm_session_view *view)
{
    a->is_first = false;
    for (size_t i = 0; i < view->host_count; i++) {
        if (!tdm__session_is_of_host(view->hosts[i].name, a->options->host)) continue;
        a->is_first = strcmp(view->hosts[i].name, agent_name(a)) == 0;
        break;
    }
    if (view->rank_count > 0) {
        a->knows_lead = true;
        a->is_lead = strcmp(view->rank_hosts[0], a->options->host) == 0;
    }
    agent_move_lines(a);
}

/* Whether agents of other hosts are still registered. */
static bool agent_has_others(tdm__agent *a)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_kv_item *items;
    size_t count = 0;
    bool found = false;
    tdm_arena *arena = tdm_arena_create("others");
    if (!arena || tdm_kv_list(a->kv, tdm__session_key(key, a->options->session, "hosts/"), arena,
                              &items, &count, NULL, NULL) != TDM_OK)
        count = 0;
    for (size_t i = 0; i < count; i++)
        found = found || !tdm__session_is_of_host(strrchr(items[i].key, '/') + 1, a->options->host);
    tdm_arena_destroy(arena);
    return found;
}

void tdm__agent_log_end(tdm__agent *a)
{
    bool waits = a->phase == TDM__AGENT_OVER && a->is_first && !a->store_failed &&
                 agent_can_write(a);
    for (double until_s = tdm_clock_s() + TDM__TIMING_AGENT_LAST_LINES_S;
         waits && tdm_clock_s() < until_s;) {
        if (!agent_has_others(a)) break;
        tdm_clock_sleep(TDM__TIMING_AGENT_LAST_LINES_CHECK_S);
    }
    agent_move_lines(a);
}

void tdm__agent_log(const tdm_log_record *record, void *user)
{
    tdm__agent *a = user;
    tdm__log_forward_add_record(&a->lines, record, a->options->host);
    if (agent_can_write(a)) tdm__log_forward_write(&a->lines, a->run);
}
