/*
 * sim_heap.c: future events: a binary heap ordered by (time, number).
 *
 * Numbers are assigned in the order of posting, so the order of events is total and the same in
 * every run. A lack of memory is recorded and ends the run.
 */
#include "sim/sim.h"

#include <stdlib.h>

static bool event_precedes(const tdm__sim_event *a, const tdm__sim_event *b)
{
    if (a->time_s < b->time_s) return true;
    if (b->time_s < a->time_s) return false;
    return a->number < b->number;
}

void tdm__sim_event_release(const tdm__sim_event *event)
{
    if (event->message) tdm__sim_message_release(event->message);
    if (event->news) tdm__sim_news_release(event->news);
}

void tdm__sim_post(tdm__sim *sim, tdm__sim_event event)
{
    if (sim->heap_count == sim->heap_capacity) {
        size_t capacity = sim->heap_capacity ? 2 * sim->heap_capacity : 256;
        tdm__sim_event *heap = realloc(sim->heap, capacity * sizeof(*heap));
        if (!heap) {
            sim->no_memory = true;
            tdm__sim_event_release(&event);
            return;
        }
        sim->heap = heap;
        sim->heap_capacity = capacity;
    }
    event.number = sim->next_number++;
    size_t at = sim->heap_count++;
    while (at > 0) {
        size_t above = (at - 1) / 2;
        if (!event_precedes(&event, &sim->heap[above])) break;
        sim->heap[at] = sim->heap[above];
        at = above;
    }
    sim->heap[at] = event;
}

bool tdm__sim_next(tdm__sim *sim, tdm__sim_event *out)
{
    if (sim->heap_count == 0) return false;
    *out = sim->heap[0];
    tdm__sim_event last = sim->heap[--sim->heap_count];
    size_t at = 0;
    for (;;) {
        size_t below = 2 * at + 1;
        if (below >= sim->heap_count) break;
        if (below + 1 < sim->heap_count && event_precedes(&sim->heap[below + 1], &sim->heap[below]))
            below++;
        if (!event_precedes(&sim->heap[below], &last)) break;
        sim->heap[at] = sim->heap[below];
        at = below;
    }
    if (sim->heap_count > 0) sim->heap[at] = last;
    return true;
}

void tdm__sim_heap_release(tdm__sim *sim)
{
    for (size_t i = 0; i < sim->heap_count; i++) tdm__sim_event_release(&sim->heap[i]);
    free(sim->heap);
    sim->heap = NULL;
    sim->heap_count = sim->heap_capacity = 0;
}
