/*
 * processes.c: a set of child processes: start, signals, exits, and the end of all in stages.
 *
 *     NONE --ask, limit--> ASKED --grace period--> KILLED --no exit--> ABANDONED
 *       |                    |                       ^
 *       +-------kill---------+---------kill----------+
 *
 *     transition            function
 *     NONE -> ASKED         tdm__processes_ask (SIGTERM), tdm__processes_limit (no signal)
 *     ASKED -> KILLED       processes_on_time (after on_late), tdm__processes_kill
 *     NONE -> KILLED        tdm__processes_kill
 *     KILLED -> ABANDONED   processes_on_time
 *     ABANDONED -> KILLED   process_link, for a process that is added later
 *
 * Invariants: a process is in a set from its start until it has been waited for; each process of a
 * set in stage KILLED was sent SIGKILL. One thread, that of the loop.
 */
#include "launch/processes.h"
#include "base/base.h"
#include "base/timing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* ---- timer ----------------------------------------------------------------------------------- */

static void processes_on_time(tdm__loop_timer *timer)
{
    tdm__processes *set = timer->user;
    if (set->stage == TDM__END_KILLED) {
        set->stage = TDM__END_ABANDONED;
        return;
    }
    if (set->on_late) set->on_late(set->user);
    tdm__processes_kill(set);
}

static void processes_set_timer(tdm__processes *set, double delay_s)
{
    set->timer.on_time = processes_on_time;
    set->timer.user = set;
    tdm__loop_timer_set(set->loop, &set->timer, tdm_clock_s() + delay_s);
}

/* ---- members of a set ------------------------------------------------------------------------ */

/* A process of a set that was killed is killed as well. */
static void process_link(tdm__process *process, tdm__processes *set)
{
    process->set = set;
    process->prev = NULL;
    process->next = set->first;
    if (process->next) process->next->prev = process;
    set->first = process;
    set->count++;
    if (set->stage < TDM__END_KILLED) return;
    kill(-process->child.pid, SIGKILL);
    set->stage = TDM__END_KILLED;
    processes_set_timer(set, TDM__TIMING_LAUNCH_UNDEAD_S);
}

static void process_unlink(tdm__process *process)
{
    if (process->next) process->next->prev = process->prev;
    if (process->prev)
        process->prev->next = process->next;
    else
        process->set->first = process->next;
    process->set->count--;
}

void tdm__process_move(tdm__process *process, tdm__processes *to)
{
    process_unlink(process);
    process_link(process, to);
}

static void process_on_exit(tdm__loop_child *child, int wait_status)
{
    tdm__process *process = child->user;
    tdm__processes *set = process->set;
    pid_t pid = child->pid;
    process_unlink(process);
    child->pid = 0;
    if (set->count == 0) tdm__loop_timer_set(set->loop, &set->timer, INFINITY);
    set->on_exit(process, pid, wait_status, set->user);
}

tdm_status tdm__process_start(tdm__processes *set, tdm__process *process,
                              const tdm__spawn_options *options, tdm_error *err)
{
    tdm__spawn_options with_mask = *options;
    pid_t pid;
    if (!with_mask.mask) with_mask.mask = tdm__loop_mask_before(set->loop);
    TDM_TRY(tdm__spawn(&with_mask, &pid, err));
    process->child = (tdm__loop_child){.pid = pid,
                                       .leads_group = !options->own_session,
                                       .on_exit = process_on_exit,
                                       .user = process};
    tdm__loop_child_add(set->loop, &process->child);
    process_link(process, set);
    return TDM_OK;
}

/* ---- end ------------------------------------------------------------------------------------- */

void tdm__processes_signal(const tdm__processes *set, int signal_number)
{
    for (const tdm__process *p = set->first; p; p = p->next) kill(-p->child.pid, signal_number);
}

void tdm__processes_limit(tdm__processes *set)
{
    if (set->stage != TDM__END_NONE) return;
    set->stage = TDM__END_ASKED;
    processes_set_timer(set, set->grace_s);
}

void tdm__processes_ask(tdm__processes *set)
{
    tdm__processes_limit(set);
    tdm__processes_signal(set, SIGTERM);
}

void tdm__processes_kill(tdm__processes *set)
{
    if (set->stage >= TDM__END_KILLED) return;
    set->stage = TDM__END_KILLED;
    tdm__processes_signal(set, SIGKILL);
    processes_set_timer(set, TDM__TIMING_LAUNCH_UNDEAD_S);
}

/* ---- for all launchers ----------------------------------------------------------------------- */

const char *tdm__exit_text(int wait_status, char out[TDM__EXIT_TEXT_BYTES])
{
    if (WIFSIGNALED(wait_status))
        snprintf(out, TDM__EXIT_TEXT_BYTES, "killed by signal %d (%s)", WTERMSIG(wait_status),
                 strsignal(WTERMSIG(wait_status)));
    else
        snprintf(out, TDM__EXIT_TEXT_BYTES, "exit code %d", WEXITSTATUS(wait_status));
    return out;
}

tdm_status tdm__process_places(int count, tdm_cpu_set **out, tdm_error *err)
{
    char text[TDM_CPU_SET_TEXT_BYTES];
    tdm_cpu_set *places = calloc((size_t)count, sizeof(*places));
    if (!places) return tdm_fail_oom(err, "for the CPU sets of %d processes", count);
    if (!tdm_os_cpu_sets(count, places)) {
        tdm_log(TDM_LOG_INFO, "launch", "%d processes are not pinned: there are fewer CPUs", count);
        free(places);
        *out = NULL;
        return TDM_OK;
    }
    for (int i = 0; i < count; i++)
        tdm_log(TDM_LOG_INFO, "launch", "process %d on CPUs %s%s", i,
                tdm_os_cpu_set_text(&places[i], text),
                places[i].memory_node >= 0 ? " and their memory" : "");
    *out = places;
    return TDM_OK;
}
