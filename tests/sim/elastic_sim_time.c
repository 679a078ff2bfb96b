/*
 * elastic_sim_time.c: virtual time, coroutines, and random numbers of a simulated schedule.
 *
 * The scheduler always runs what is due first: a coroutine, an event of the schedule, or the end of
 * a lease. Every wait has some jitter, so the seed determines the order of coroutines that are due
 * at nearly the same time. A coroutine of a stopped process is due when the process continues.
 */
#include "elastic_sim.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define STACK_BYTES (512 * 1024)

uint64_t sim_draw(sim *s)
{
    uint64_t z = (s->draw += UINT64_C(0x9e3779b97f4a7c15)); /* splitmix64 */
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

int sim_below(sim *s, int bound)
{
    return bound > 0 ? (int)(sim_draw(s) % (uint64_t)bound) : 0;
}

double sim_between(sim *s, double low, double high)
{
    return low + (high - low) * (double)(sim_draw(s) >> 11) * 0x1p-53;
}

bool sim_chance(sim *s, double probability)
{
    return sim_between(s, 0, 1) < probability;
}

static void log_line(sim *s, const char *fmt, va_list args)
{
    char text[600];
    vsnprintf(text, sizeof(text), fmt, args);
    const char *name = s->current >= 0 ? s->list[s->current].p->id : "-";
    printf("%10.4f %-8s %s\n", s->now_s, name, text);
}

void sim_log(sim *s, const char *fmt, ...)
{
    if (!s->is_loud) return;
    va_list args;
    va_start(args, fmt);
    log_line(s, fmt, args);
    va_end(args);
}

void sim_fail(sim *s, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (!s->failure[0]) vsnprintf(s->failure, sizeof(s->failure), fmt, args);
    va_end(args);
    if (s->is_loud) printf("%10.4f FAILED: %s\n", s->now_s, s->failure);
}

tdm_status sim_time_init(sim *s)
{
    s->current = -1;
    for (int i = 0; i < MAX_FIBERS; i++) s->list[i].wake_s = NEVER;
    return tdm__fibers_init(&s->fibers, MAX_FIBERS, STACK_BYTES, NULL);
}

void sim_time_release(sim *s)
{
    tdm__fibers_release(&s->fibers);
}

void sim_begin(process *p, int which, void (*begin)(void *), void *argument)
{
    int index = 2 * p->index + which;
    tdm__fiber_set(&p->s->fibers, index, begin, argument);
    p->s->list[index] = (fiber){.p = p, .wake_s = p->s->now_s};
}

void sim_end(process *p, int which)
{
    int index = 2 * p->index + which;
    p->s->list[index].wake_s = NEVER;
    tdm__fiber_end(&p->s->fibers, index);
}

static void fiber_yield(sim *s, double until_s)
{
    int index = s->current;
    s->list[index].wake_s = until_s;
    tdm__fiber_leave(&s->fibers, index);
}

void sim_sleep(process *p, double seconds)
{
    if (!p->is_dead) fiber_yield(p->s, p->s->now_s + seconds);
}

void sim_wait_for_world(process *p, double seconds)
{
    if (p->is_dead) return;
    fiber *f = &p->s->list[p->s->current];
    f->waits_for_world = true;
    fiber_yield(p->s, p->s->now_s + seconds);
    f->waits_for_world = false;
}

void sim_world_changed(sim *s)
{
    for (int i = 0; i < 2 * s->process_count; i++) {
        fiber *f = &s->list[i];
        double soon_s = s->now_s + sim_between(s, 1e-5, 2e-3);
        if (f->waits_for_world && f->wake_s > soon_s) f->wake_s = soon_s;
    }
}

void sim_add_event(sim *s, event e)
{
    if (s->event_count < MAX_EVENTS)
        s->events[s->event_count++] = e;
    else
        sim_fail(s, "too many events for one schedule");
}

static double fiber_due_s(const sim *s, const fiber *f)
{
    if (f->wake_s >= NEVER) return NEVER;
    if (f->p->is_dead) return s->now_s;
    return fmax(f->wake_s, f->p->stop_s);
}

static void event_run(sim *s, int index)
{
    event e = s->events[index];
    s->events[index] = s->events[--s->event_count];
    s->now_s = fmax(s->now_s, e.time_s);
    sim_execute(s, &e);
}

void sim_loop(sim *s, double max_s)
{
    while (!s->failure[0]) {
        double first_s = NEVER;
        int fiber_index = -1, event_index = -1;
        for (int i = 0; i < 2 * s->process_count; i++) {
            double at_s = fiber_due_s(s, &s->list[i]);
            if (at_s < first_s) {
                first_s = at_s;
                fiber_index = i;
            }
        }
        if (fiber_index < 0 && s->has_verdict) return; /* all have ended */
        for (int i = 0; i < s->event_count; i++) {
            if (s->events[i].time_s < first_s) {
                first_s = s->events[i].time_s;
                event_index = i;
            }
        }
        double lease_s = sim_store_next_s(s);
        if (fmin(first_s, lease_s) >= NEVER) {
            sim_fail(s, "no process is left, but the run has not ended");
        } else if (fmin(first_s, lease_s) > max_s) {
            sim_fail(s, "the run has not ended after %.0f s", max_s);
        } else if (lease_s <= first_s) {
            s->now_s = fmax(s->now_s, lease_s);
            sim_store_expire(s);
        } else if (event_index >= 0) {
            event_run(s, event_index);
        } else {
            s->now_s = fmax(s->now_s, first_s);
            s->current = fiber_index;
            s->switches++;
            tdm__fiber_enter(&s->fibers, fiber_index);
            s->current = -1;
        }
    }
}
