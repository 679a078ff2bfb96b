/*
 * elastic_sim_faults.c: processes of a simulated schedule, their agents, and the faults.
 *
 * In most cases, the agent of a host soon reports the death of a process. It starts another one,
 * with a new name, in its place, also after a process has left because it was fenced. Faults are
 * drawn from the seed: some schedules have none, others have many at once.
 */
#include "elastic_sim.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LEAVE_S 6.0 /* limit for a fenced process to leave */

static void watcher_main(void *argument)
{
    process *p = argument;
    while (!p->is_dead && !p->should_stop_watch) tdm__member_tick(p->member);
    p->watch_has_ended = true;
    if (p->waits_for_watch) p->s->list[2 * p->index].wake_s = p->s->now_s;
    sim_end(p, 1);
}

static void process_pause(void *user, double seconds)
{
    sim_sleep(user, seconds);
}

static tdm_status process_create(process *p)
{
    sim *s = p->s;
    char host_name[TDM_HOST_BYTES];
    snprintf(host_name, sizeof(host_name), "h%d", p->host);
    tdm_member_options options = {.session = SESSION,
                                  .id = p->id,
                                  .host = host_name,
                                  .slot = p->slot,
                                  .shm_id = s->hosts[p->host].shm_id,
                                  .min = s->min,
                                  .max = s->max,
                                  .lease_s = s->lease_s};
    tdm_status status = TDM_ERR_IO;
    while (status != TDM_OK && !p->is_dead) {
        tdm__member_parts parts = {.kv = sim_store_open(p),
                                   .watch_kv = sim_store_open(p),
                                   .confirm_kv = sim_store_open(p),
                                   .pause = process_pause,
                                   .user = p};
        status = tdm__member_create_with(&options, &parts, &p->member, &p->err);
        if (status == TDM_ERR_EXISTS) sim_fail(s, "%s: %s", p->id, p->err.message);
        if (status != TDM_OK) sim_sleep(p, 0.25);
    }
    return status;
}

static void host_faulted(sim *s, int host_index)
{
    s->hosts[host_index].faulted_s = s->now_s;
    s->last_fault_s = s->now_s;
}

/* A process that was in an epoch and is not in the current one must leave before the end of the
 * run, unless it could not read the store. */
static void process_check_fenced(process *p)
{
    sim *s = p->s;
    double since_s = fmax(s->store.epoch_s, fmax(p->stop_s, p->no_store_s));
    if (p->barriers == 0 || s->now_s - fmax(since_s, s->store.down_until_s) < LEAVE_S) return;
    const char *epoch = sim_store_get(s, PREFIX "epoch"), *left = strstr(epoch, "\"left\"");
    const char *me = strstr(epoch, p->id);
    if (!me || me > left) sim_fail(s, "%s was fenced but did not leave", p->id);
}

static void process_finish(process *p)
{
    sim *s = p->s;
    s->fenced += p->result.fenced;
    s->dismissed += p->result.dismissed;
    sim_log(s, "ends: %s%s%s", p->status == TDM_OK ? "success" : p->err.message,
            p->result.fenced ? ", fenced" : "", p->result.dismissed ? ", dismissed" : "");
    bool is_end = !p->result.fenced && !p->result.dismissed;
    if (is_end) process_check_fenced(p);
    if (p->result.dismissed)
        host_faulted(s, p->host); /* the state of this host may be lost, as requested */
    if (is_end && !s->has_verdict)
        sim_fail(s, "%s has ended (%s), but the run has no result", p->id,
                 p->status == TDM_OK ? "success" : p->err.message);
    if (p->result.fenced)
        sim_add_event(s, (event){.time_s = s->now_s + sim_between(s, 0.05, 1.0),
                                 .kind = EVENT_START,
                                 .a = p->host,
                                 .b = p->slot});
}

static void trainer_main(void *argument)
{
    process *p = argument;
    sim_sleep(p, sim_between(p->s, 1e-3, 0.1));
    if (process_create(p) == TDM_OK) {
        sim_begin(p, 1, watcher_main, p);
        sim_sleep(p, sim_between(p->s, 1e-3, 0.5)); /* loads its data */
        p->status = tdm_elastic_run(p->member, &sim_ops, p, &p->result, &p->err);
        if (!p->is_dead) process_finish(p);
        p->should_stop_watch = true;
        while (!p->watch_has_ended) {
            p->waits_for_watch = true;
            p->s->list[2 * p->index].wake_s = NEVER; /* the end of the watcher wakes it */
            tdm__fiber_leave(&p->s->fibers, 2 * p->index);
        }
    }
    tdm_member_destroy(p->member);
    p->member = NULL;
    p->has_ended = true;
    sim_end(p, 0);
}

/* ---- agents ---------------------------------------------------------------------------------- */

/* Writes the record of an agent, later if the store does not respond. */
static void agent_report_host(sim *s, int index)
{
    char key[TDM_KV_KEY_BYTES], value[100];
    int workers = 0, starting = 0;
    if (s->now_s < s->store.down_until_s) {
        sim_add_event(s, (event){.time_s = s->store.down_until_s + sim_between(s, 0, 1),
                                 .kind = EVENT_REPORT_HOST,
                                 .a = index});
        return;
    }
    for (int i = 0; i < s->process_count; i++) {
        const process *p = &s->processes[i];
        workers += p->host == index && !p->is_dead && !p->has_ended;
    }
    for (int i = 0; i < s->event_count; i++)
        starting += s->events[i].kind == EVENT_START && s->events[i].a == index;
    snprintf(key, sizeof(key), PREFIX "hosts/h%d", index);
    snprintf(value, sizeof(value), "{\"vault\":\"%llx\",\"workers\":%d,\"starting\":%d}",
             (unsigned long long)s->hosts[index].shm_id, workers, starting);
    sim_store_put(s, key, value);
}

static void agent_report_host_soon(sim *s, int index)
{
    sim_add_event(s, (event){.time_s = s->now_s + sim_between(s, 0.01, 1),
                             .kind = EVENT_REPORT_HOST,
                             .a = index});
}

process *sim_start(sim *s, int host_index, int slot)
{
    if (s->process_count == MAX_PROCESSES) {
        sim_fail(s, "too many processes");
        return NULL;
    }
    process *p = &s->processes[s->process_count];
    *p = (process){.s = s, .index = s->process_count++, .host = host_index, .slot = slot};
    snprintf(p->id, sizeof(p->id), "h%d.%d.%02d", host_index, slot, p->index);
    sim_log(s, "agent starts %s", p->id);
    sim_begin(p, 0, trainer_main, p);
    agent_report_host(s, host_index);
    return p;
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void process_kill(process *p)
{
    sim *s = p->s;
    if (p->is_dead || p->has_ended) return;
    p->is_dead = true;
    p->died_s = s->now_s + (sim_chance(s, 0.2) ? sim_between(s, 0.5, 5) : sim_between(s, 0, 0.02));
    s->kills++;
    s->last_fault_s = s->now_s; /* the memory of its host is not affected */
    sim_world_changed(s);
}

void sim_kill(process *p)
{
    sim *s = p->s;
    if (p->is_dead || p->has_ended) return;
    process_kill(p);
    if (sim_chance(s, 0.85))
        sim_add_event(s, (event){.time_s = s->now_s + sim_between(s, 1e-3, 0.05),
                                 .kind = EVENT_REPORT_DEAD,
                                 .a = p->index});
    sim_add_event(s, (event){.time_s = s->now_s + sim_between(s, 0.02, 1.5),
                             .kind = EVENT_START,
                             .a = p->host,
                             .b = p->slot});
    agent_report_host_soon(s, p->host);
}

static void host_kill(sim *s, int index, double length_s)
{
    sim_log(s, "FAULT: host %d dies", index);
    host_faulted(s, index);
    for (int i = 0; i < s->process_count; i++) {
        process *p = &s->processes[i];
        if (p->host != index || p->is_dead || p->has_ended) continue;
        process_kill(p);
        sim_add_event(s, (event){.time_s = s->now_s + length_s + sim_between(s, 0, 1),
                                 .kind = EVENT_START,
                                 .a = index,
                                 .b = p->slot});
    }
    s->hosts[index] = (host){
        .is_empty = true, .faulted_s = s->now_s, .shm_id = s->hosts[index].shm_id + MAX_HOSTS};
    double gone_s = sim_between(s, 0, 10);
    if (gone_s < length_s)
        sim_add_event(s, (event){.time_s = s->now_s + gone_s, .kind = EVENT_HOST_GONE, .a = index});
}

static process *process_pick(sim *s, int number)
{
    process *living[MAX_PROCESSES];
    int count = 0;
    for (int i = 0; i < s->process_count; i++)
        if (!s->processes[i].is_dead && !s->processes[i].has_ended)
            living[count++] = &s->processes[i];
    return count ? living[number % count] : NULL;
}

static void network_cut(sim *s, bool by_host)
{
    int sides[MAX_HOSTS];
    for (int i = 0; i < MAX_HOSTS; i++) sides[i] = sim_below(s, 2);
    s->resets = sim_chance(s, 0.3);
    for (int i = 0; i < s->process_count; i++) {
        process *p = &s->processes[i];
        p->side = by_host ? sides[p->host] : sim_below(s, 2);
        host_faulted(s, p->host);
    }
}

static void network_heal(sim *s)
{
    for (int i = 0; i < s->process_count; i++) s->processes[i].side = 0;
    for (int i = 0; i < s->host_count; i++) host_faulted(s, i);
    sim_world_changed(s);
}

static void agent_report_dead(sim *s, const event *e)
{
    char key[TDM_KV_KEY_BYTES], value[100];
    if (s->now_s < s->store.down_until_s) {
        event later = *e;
        later.time_s = s->store.down_until_s + 0.1;
        sim_add_event(s, later);
        return;
    }
    snprintf(key, sizeof(key), PREFIX "dead/%s", s->processes[e->a].id);
    snprintf(value, sizeof(value), "{\"why\":\"killed by signal 9\",\"at\":%.6f}", s->now_s);
    sim_store_put(s, key, value);
}

/* A fault of one process. */
static void process_fault(sim *s, const event *e)
{
    process *p = process_pick(s, e->a);
    char key[TDM_KV_KEY_BYTES];
    if (!p) return;
    sim_log(s, "FAULT: %d for %s, %.2f s", (int)e->kind, p->id, e->length_s);
    bool is_kill = e->kind == EVENT_KILL || e->kind == EVENT_KILL_AT_OP ||
                   e->kind == EVENT_KILL_IN_WRITE;
    if (e->kind != EVENT_LEAVE && !is_kill) host_faulted(s, p->host);
    switch (e->kind) {
    case EVENT_KILL: sim_kill(p); break;
    case EVENT_KILL_AT_OP: p->op_fuse = 1 + e->b; break;
    case EVENT_KILL_IN_WRITE: p->write_fuse = 1 + e->b % 3; break;
    case EVENT_STOP: p->stop_s = s->now_s + e->length_s; break;
    case EVENT_SLOW:
        p->slow = 2 + e->b % 20;
        p->slow_until_s = s->now_s + e->length_s;
        break;
    case EVENT_CUT_STORE: p->no_store_s = s->now_s + e->length_s; break;
    case EVENT_LEAVE:
        snprintf(key, sizeof(key), PREFIX "wishes/leave/%s", p->id);
        sim_store_put(s, key, "{}");
        break;
    default: break;
    }
}

void sim_execute(sim *s, const event *e)
{
    if (s->has_verdict && e->kind != EVENT_HEAL) return;
    s->last_fault_s = fmax(s->last_fault_s, s->now_s);
    switch (e->kind) {
    case EVENT_START: sim_start(s, e->a, e->b); break;
    case EVENT_REPORT_DEAD: agent_report_dead(s, e); break;
    case EVENT_REPORT_HOST: agent_report_host(s, e->a); break;
    case EVENT_HOST_GONE: {
        char key[TDM_KV_KEY_BYTES];
        snprintf(key, sizeof(key), PREFIX "hosts/h%d", e->a);
        sim_store_put(s, key, NULL);
        break;
    }
    case EVENT_KILL_HOST: host_kill(s, e->a % s->host_count, e->length_s); break;
    case EVENT_PARTITION:
        network_cut(s, e->a % 2 == 0);
        sim_log(s, "FAULT: network partition%s", s->resets ? ", with resets" : "");
        sim_add_event(s, (event){.time_s = s->now_s + e->length_s, .kind = EVENT_HEAL});
        break;
    case EVENT_HEAL:
        sim_log(s, "the network partition has healed");
        network_heal(s);
        break;
    case EVENT_STORE_DOWN:
        sim_log(s, "FAULT: the store does not respond for %.2f s", e->length_s);
        s->store.down_until_s = s->now_s + e->length_s;
        for (int i = 0; i < s->host_count; i++) host_faulted(s, i);
        break;
    case EVENT_JOIN: sim_start(s, e->a % s->host_count, 10 + e->b % 10); break;
    case EVENT_STOP_REQUEST:
        s->is_stopped = true;
        sim_store_put(s, PREFIX "wishes/stop", "{}");
        break;
    default: process_fault(s, e); break;
    }
}

void sim_draw_faults(sim *s)
{
    static const event_kind kinds[] = {
        EVENT_KILL,       EVENT_KILL,          EVENT_KILL_AT_OP, EVENT_KILL_AT_OP,
        EVENT_KILL_AT_OP, EVENT_KILL_IN_WRITE, EVENT_STOP,       EVENT_STOP,
        EVENT_SLOW,       EVENT_KILL_HOST,     EVENT_PARTITION,  EVENT_CUT_STORE,
        EVENT_STORE_DOWN, EVENT_JOIN,          EVENT_JOIN,       EVENT_LEAVE,
    };
    int count = sim_below(s, 8);
    double crowd_s = sim_chance(s, 0.3) ? sim_between(s, 0, 3)
                                        : -1; /* all at nearly the same time */
    for (int i = 0; i < count; i++) {
        event e = {
            .kind = kinds[sim_below(s, (int)(sizeof(kinds) / sizeof(kinds[0])))],
            .time_s = crowd_s >= 0 ? crowd_s + sim_between(s, 0, 0.05) : sim_between(s, 0, 5),
            .a = sim_below(s, 1000),
            .b = sim_below(s, 40),
            .length_s = sim_chance(s, 0.5) ? sim_between(s, 0.05, 2) : sim_between(s, 1, 14)};
        if (e.kind == EVENT_KILL_AT_OP && sim_chance(s, 0.5)) e.b = sim_below(s, 6);
        sim_add_event(s, e);
    }
    if (sim_chance(s, 0.05))
        sim_add_event(s, (event){.kind = EVENT_STOP_REQUEST, .time_s = sim_between(s, 0, 4)});
}
