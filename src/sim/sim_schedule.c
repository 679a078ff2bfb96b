/*
 * sim_schedule.c: the scheduler: chooses the next event and the rank that runs.
 *
 * Virtual time stops while a rank runs, and jumps to the next event when it waits. A rank has about
 * one timer in the heap, however often it waits: one that fires too early is set again. The run is
 * over when every rank has returned, crashed or hangs: nothing more can happen to it, or max_s has
 * passed. `hash` covers every event taken from the heap.
 */
#include "base/base.h"
#include "sim/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the hash -------------------------------------------------------------------------------- */

static void sim_hash_event(tdm__sim *sim, const tdm__sim_event *event)
{
    uint64_t bits;
    memcpy(&bits, &event->time_s, sizeof(bits));
    uint64_t hash = tdm_hash64_add(sim->result.hash, bits);
    hash = tdm_hash64_add(hash, ((uint64_t)event->kind << 32) + (uint32_t)event->rank);
    hash = tdm_hash64_add(hash, (uint32_t)event->other);
    if (event->message) {
        uint64_t words[sizeof(tdm__head) / sizeof(uint64_t)];
        memcpy(words, &event->message->head, sizeof(words));
        for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
            hash = tdm_hash64_add(hash, words[i]);
    }
    if (event->news)
        hash = tdm_hash64_add(hash, ((uint64_t)event->news->news.kind << 48) ^
                                        ((uint64_t)event->news->news.status << 32) ^
                                        event->news->news.group);
    sim->result.hash = hash;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static void rank_set_timer(tdm__sim_rank *rank)
{
    if (!(rank->wake_s < rank->timer_s)) return;
    rank->timer_s = rank->wake_s;
    tdm__sim_post(
        rank->sim,
        (tdm__sim_event){.time_s = rank->wake_s, .kind = TDM__SIM_TIMER, .rank = rank->rank});
}

void tdm__sim_wait(tdm__sim_rank *rank, double wake_s)
{
    rank->state = TDM__SIM_WAITS;
    rank->wake_s = wake_s;
    rank_set_timer(rank);
    tdm__fiber_leave(&rank->sim->fibers, rank->rank);
}

static void rank_queue_resume(tdm__sim_rank *rank, double time_s)
{
    if (rank->resume_queued) return;
    rank->resume_queued = true;
    tdm__sim_post(rank->sim,
                  (tdm__sim_event){.time_s = time_s, .kind = TDM__SIM_RESUME, .rank = rank->rank});
}

void tdm__sim_wake(tdm__sim_rank *rank)
{
    rank->woken = true;
    if (rank->state == TDM__SIM_WAITS) rank_queue_resume(rank, rank->sim->now_s);
}

static void rank_entry(void *argument)
{
    tdm__sim_rank *rank = argument;
    rank->sim->body(rank);
    rank->state = TDM__SIM_FINISHED;
    tdm__fiber_end(&rank->sim->fibers, rank->rank);
}

static void rank_resume(tdm__sim_rank *rank)
{
    tdm__sim *sim = rank->sim;
    double awake_s = rank->closing ? sim->now_s : tdm__sim_awake_s(sim, rank->rank, sim->now_s);
    if (awake_s > sim->now_s) {
        if (isfinite(awake_s)) rank_queue_resume(rank, awake_s);
        return;
    }
    rank->state = TDM__SIM_RUNS;
    tdm__fiber_enter(&sim->fibers, rank->rank);
    if (rank->state != TDM__SIM_FINISHED) return;
    sim->result.finished_count++;
    sim->open_count--;
}

static void rank_stop_forever(tdm__sim *sim, const tdm_sim_fault *fault)
{
    tdm__sim_rank *rank = &sim->ranks[fault->rank];
    if (rank->closing || rank->state == TDM__SIM_FINISHED || rank->state == TDM__SIM_CRASHED)
        return;
    rank->state = TDM__SIM_CRASHED;
    rank->stopped_s = sim->now_s;
    sim->result.crashed_count++;
    sim->open_count--;
    if (fault->kind == TDM_SIM_CRASH) tdm__sim_tell_lost(sim, fault->rank);
}

static void rank_on_timer(tdm__sim_rank *rank, double time_s)
{
    if (!(rank->timer_s < time_s)) rank->timer_s = INFINITY;
    if (rank->state != TDM__SIM_WAITS) return;
    if (rank->sim->now_s < rank->wake_s)
        rank_set_timer(rank);
    else if (!rank->resume_queued)
        rank_resume(rank);
}

static void sim_run_event(tdm__sim *sim, const tdm__sim_event *event)
{
    switch (event->kind) {
    case TDM__SIM_TIMER: rank_on_timer(&sim->ranks[event->rank], event->time_s); break;
    case TDM__SIM_RESUME:
        sim->ranks[event->rank].resume_queued = false;
        if (sim->ranks[event->rank].state == TDM__SIM_WAITS) rank_resume(&sim->ranks[event->rank]);
        break;
    case TDM__SIM_CRASH_NOW: rank_stop_forever(sim, &sim->options.faults[event->other]); break;
    case TDM__SIM_NEWS_TO:
    case TDM__SIM_NEWS_ALL:
    case TDM__SIM_MEET: tdm__sim_control_event(sim, event); break;
    default: tdm__sim_message_event(sim, event); break;
    }
}

tdm_status tdm__sim_loop(tdm__sim *sim, tdm_error *err)
{
    for (int i = 0; i < sim->options.fault_count; i++) {
        const tdm_sim_fault *fault = &sim->options.faults[i];
        if (fault->kind == TDM_SIM_CRASH || (fault->kind == TDM_SIM_STALL && fault->until_s <= 0.0))
            tdm__sim_post(sim, (tdm__sim_event){.time_s = fault->at_s,
                                                .kind = TDM__SIM_CRASH_NOW,
                                                .rank = fault->rank,
                                                .other = i});
    }

    for (int i = 0; i < sim->options.size; i++) {
        sim->ranks[i].state = TDM__SIM_WAITS; /* until it starts */
        sim->ranks[i].wake_s = INFINITY;
        tdm__fiber_set(&sim->fibers, i, rank_entry, &sim->ranks[i]);
        rank_queue_resume(&sim->ranks[i], 0.0);
    }

    tdm__sim_event event;
    while (sim->open_count > 0 && !sim->no_memory && tdm__sim_next(sim, &event)) {
        if (event.time_s > sim->options.max_s) {
            tdm__sim_event_release(&event);
            break;
        }
        sim->now_s = event.time_s;
        sim->result.event_count++;
        sim_hash_event(sim, &event);
        sim_run_event(sim, &event);
        tdm__sim_event_release(&event);
        tdm__sim_free_spent(sim);
    }

    sim->result.virtual_s = sim->now_s;
    sim->result.hung_count = sim->open_count;
    if (sim->no_memory)
        return tdm_fail_oom(err, "for %d ranks and their messages", sim->options.size);
    return TDM_OK;
}

/* ---- creation and options -------------------------------------------------------------------- */

static void option_set_default(double *value, double otherwise)
{
    if (*value == 0.0) *value = otherwise;
}

static bool option_is_valid(double value)
{
    return value >= 0.0 && isfinite(value);
}

static tdm_status fault_check(const tdm_sim_options *o, int index, tdm_error *err)
{
    const tdm_sim_fault *fault = &o->faults[index];
    bool pair = fault->kind == TDM_SIM_CUT || fault->kind == TDM_SIM_VANISH;
    if (fault->kind < TDM_SIM_CRASH || fault->kind > TDM_SIM_VANISH)
        return tdm_fail(err, TDM_ERR_INVALID, "sim: fault %d has an unknown kind (%d)", index,
                        (int)fault->kind);
    if (fault->rank < 0 || fault->rank >= o->size ||
        (pair && (fault->other < 0 || fault->other >= o->size)))
        return tdm_fail(err, TDM_ERR_RANGE, "sim: fault %d names rank %d in a world of %d", index,
                        pair ? fault->other : fault->rank, o->size);
    if (!option_is_valid(fault->at_s) || !option_is_valid(fault->until_s) ||
        !option_is_valid(fault->factor))
        return tdm_fail(err, TDM_ERR_RANGE,
                        "sim: times and factors of fault %d must be finite and not negative",
                        index);
    return TDM_OK;
}

static tdm_status options_check(tdm_sim_options *o, tdm_error *err)
{
    if (o->size < 1 || o->size > TDM_MAX_RANKS)
        return tdm_fail(err, TDM_ERR_RANGE, "sim: %d ranks; expected 1 to %d", o->size,
                        TDM_MAX_RANKS);
    double *times[] = {&o->latency_s, &o->jitter_s,   &o->bandwidth, &o->resend_s,
                       &o->detect_s,  &o->deadline_s, &o->max_s};
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
        if (!option_is_valid(*times[i]))
            return tdm_fail(err, TDM_ERR_RANGE,
                            "sim: times and bandwidth must be finite and not negative");
    if (!(o->loss >= 0.0 && o->loss < 1.0))
        return tdm_fail(err, TDM_ERR_RANGE, "sim: loss is %g; it must be at least 0 and below 1",
                        o->loss);
    option_set_default(&o->latency_s, 20e-6);
    option_set_default(&o->bandwidth, 10e9);
    option_set_default(&o->resend_s, 0.2);
    option_set_default(&o->detect_s, 0.01);
    option_set_default(&o->deadline_s, 30.0);
    option_set_default(&o->max_s, 3600.0);
    if (o->ranks_per_host <= 0) o->ranks_per_host = 1;
    if (o->stack_bytes == 0) o->stack_bytes = 256 * 1024;
    if (o->fault_count < 0 || (o->fault_count > 0 && !o->faults))
        return tdm_fail(err, TDM_ERR_INVALID, "sim: fault_count is %d, but faults is NULL",
                        o->fault_count);
    for (int i = 0; i < o->fault_count; i++) TDM_TRY(fault_check(o, i, err));
    return TDM_OK;
}

tdm_status tdm__sim_init(tdm__sim *sim, const tdm_sim_options *options, tdm_error *err)
{
    *sim = (tdm__sim){.options = *options};
    TDM_TRY(options_check(&sim->options, err));
    size_t size = (size_t)sim->options.size;
    sim->open_count = sim->options.size;
    sim->rng = tdm_rng_at(
        (tdm_rng_address){.seed = sim->options.seed, .stream = TDM_RNG_STREAM_USER});
    sim->world = tdm_rng_u32(&sim->rng);

    sim->ranks = calloc(size, sizeof(*sim->ranks));
    sim->vanished = calloc((size_t)sim->options.fault_count + 1, sizeof(*sim->vanished));
    sim->meeting = calloc(size, sizeof(*sim->meeting));
    sim->meeting_bytes = calloc(size, sizeof(*sim->meeting_bytes));
    sim->met = calloc(size, sizeof(*sim->met));
    sim->met_bytes = calloc(size, sizeof(*sim->met_bytes));
    if (!sim->ranks || !sim->vanished || !sim->meeting || !sim->meeting_bytes || !sim->met ||
        !sim->met_bytes) {
        tdm__sim_release(sim);
        return tdm_fail_oom(err, "for %zu ranks", size);
    }

    tdm_status status = tdm__fibers_init(&sim->fibers, sim->options.size, sim->options.stack_bytes,
                                         err);
    if (status != TDM_OK) {
        tdm__sim_release(sim);
        return status;
    }

    for (int i = 0; i < sim->options.size; i++) {
        tdm__sim_rank *rank = &sim->ranks[i];
        rank->sim = sim;
        rank->rank = i;
        rank->timer_s = INFINITY;
        rank->inbox_end = &rank->inbox;
        rank->letters_end = &rank->letters;
    }
    return TDM_OK;
}

void tdm__sim_release(tdm__sim *sim)
{
    for (int i = 0; sim->ranks && i < sim->options.size; i++) {
        tdm__sim_rank *rank = &sim->ranks[i];
        if (!rank->sim) continue;
        if (rank->state != TDM__SIM_FINISHED) {
            rank->dead = true;
            if (sim->bury) sim->bury(rank);
        }
        tdm__sim_transport_clear(rank);
        tdm__sim_control_clear(rank);
    }
    for (int i = 0; i < sim->options.size && sim->meeting && sim->met; i++) {
        free(sim->meeting[i]);
        free(sim->met[i]);
    }
    tdm__sim_heap_release(sim);
    tdm__sim_free_spent(sim);
    tdm__fibers_release(&sim->fibers);
    free(sim->ranks);
    free(sim->vanished);
    free(sim->meeting);
    free(sim->meeting_bytes);
    free(sim->met);
    free(sim->met_bytes);
}
