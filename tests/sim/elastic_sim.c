/*
 * elastic_sim.c: runs random schedules of failures over the real code of members, epochs and the
 * loop.
 *
 *     sim_elastic [COUNT [FIRST]]    COUNT schedules, the first one with the seed FIRST
 *     sim_elastic --seed S           one schedule, with a log of its events
 *
 * Checks of every schedule:
 *  - The run succeeds, with all steps or, if a stop was requested, with the steps until then.
 *  - Every state of a host or checkpoint equals that of a run without failures.
 *  - No state is lost that is in the memory of a host without faults, whatever happens to its
 *    workers.
 *  - Every step has one line in the ledger.
 *  - The numbers of epochs increase by one, and an epoch has the same members for all of them.
 *  - Ranks of an old epoch change nothing.
 * A schedule that fails prints its seed.
 */
#include "elastic_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_S 400.0 /* of virtual time */

static void log_print(const tdm_log_record *record, void *user)
{
    sim *s = user;
    bool is_dead = s->current >= 0 && s->list[s->current].p->is_dead;
    if (!is_dead) sim_log(s, "%s: %s", tdm_log_level_name(record->level), record->message);
}

static void check_end(sim *s)
{
    if (s->failure[0]) return;
    if (s->verdict != TDM_OK)
        sim_fail(s, "the run has ended with status %d", (int)s->verdict);
    else if (!s->is_stopped && s->finished_step != STEPS)
        sim_fail(s, "the run has ended at step %d", s->finished_step);
    else if (s->checkpoint < s->finished_step)
        sim_fail(s, "the run has ended at step %d, but the checkpoint is of step %d",
                 s->finished_step, s->checkpoint);
    for (int k = 1; k <= s->finished_step && !s->failure[0]; k++)
        if (s->lines[k] != 1) sim_fail(s, "the ledger has no line of step %d", k);
    for (int i = 0; i < s->process_count; i++)
        if (!s->processes[i].has_ended && !s->failure[0])
            sim_fail(s, "%s has not ended with the run", s->processes[i].id);
}

/* Kills the processes that still run, and runs their coroutines to the end to free their memory. */
static void sim_kill_all(sim *s)
{
    s->is_loud = false;
    for (int round = 0; round < 100000; round++) {
        bool is_left = false;
        for (int i = 0; i < 2 * s->process_count; i++) {
            if (s->list[i].wake_s >= NEVER) continue;
            is_left = true;
            s->list[i].p->is_dead = true;
            s->current = i;
            tdm__fiber_enter(&s->fibers, i);
            s->current = -1;
        }
        if (!is_left) return;
    }
    fprintf(stderr, "seed %llu: a process does not end\n", (unsigned long long)s->seed);
    abort();
}

static void sim_set_up(sim *s)
{
    char about[64];
    s->host_count = 1 + sim_below(s, MAX_HOSTS);
    s->first_count = 2 + sim_below(s, 5);
    s->min = 1 + (s->first_count > 2 && sim_chance(s, 0.3));
    s->max = s->first_count + sim_below(s, 3);
    s->lease_s = sim_chance(s, 0.5) ? 0 : 2;
    for (int i = 0; i < s->host_count; i++)
        s->hosts[i] = (host){.is_empty = true, .faulted_s = -1, .shm_id = 1 + (uint64_t)i};
    snprintf(about, sizeof(about), "{\"expected\":%d}", s->first_count);
    sim_store_put(s, PREFIX "about", about);
    for (int i = 0; i < s->first_count; i++) sim_start(s, i % s->host_count, i / s->host_count);
    sim_draw_faults(s);
}

typedef struct totals {
    long epochs, kills, fenced, dismissed, rollbacks, switches;
    double virtual_s;
} totals;

/* Whether the schedule passed all checks. */
static bool run_schedule(uint64_t seed, bool is_loud, totals *t)
{
    sim *s = calloc(1, sizeof(*s));
    if (s) s->worlds = calloc(MAX_WORLDS, sizeof(*s->worlds));
    if (!s || !s->worlds || sim_time_init(s) != TDM_OK) {
        fprintf(stderr, "no memory for a schedule\n");
        exit(2);
    }
    s->seed = seed;
    s->draw = seed * UINT64_C(0x2545f4914f6cdd1d) + 1;
    s->is_loud = is_loud;
    if (is_loud) tdm_log_add_sink(log_print, s, TDM_LOG_DEBUG);
    sim_set_up(s);
    sim_loop(s, MAX_S);
    check_end(s);
    sim_kill_all(s);
    tdm_log_remove_sink(log_print, s);
    bool passed = !s->failure[0];
    if (!passed)
        fprintf(stderr, "seed %llu: %s\n    replay with: sim_elastic --seed %llu\n",
                (unsigned long long)seed, s->failure, (unsigned long long)seed);
    t->epochs += s->epochs;
    t->kills += s->kills;
    t->fenced += s->fenced;
    t->dismissed += s->dismissed;
    t->rollbacks += s->rollbacks;
    t->switches += s->switches;
    t->virtual_s += s->now_s;
    sim_store_release(s);
    sim_time_release(s);
    free(s->worlds);
    free(s);
    return passed;
}

int main(int argc, char **argv)
{
    totals t = {0};
    if (argc == 3 && strcmp(argv[1], "--seed") == 0)
        return run_schedule(strtoull(argv[2], NULL, 10), true, &t) ? 0 : 1;
    long count = argc > 1 ? strtol(argv[1], NULL, 10) : 400;
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    if (count < 1) {
        fprintf(stderr, "usage: sim_elastic [COUNT [FIRST]] | --seed S\n");
        return 2;
    }
    long failures = 0;
    for (long i = 0; i < count && failures < 20; i++)
        failures += !run_schedule(first + (uint64_t)i, false, &t);
    printf("%ld schedules, %ld failed: %ld epochs, %ld kills, %ld fenced, %ld dismissed, "
           "%ld went back, %.0f virtual seconds, %ld switches\n",
           count, failures, t.epochs, t.kills, t.fenced, t.dismissed, t.rollbacks, t.virtual_s,
           t.switches);
    bool has_failures = count < 100 || (t.kills > 0 && t.fenced > 0 && t.dismissed > 0);
    if (!has_failures) fprintf(stderr, "these schedules have too few failures to prove anything\n");
    return failures == 0 && has_failures ? 0 : 1;
}
