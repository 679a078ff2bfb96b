/*
 * engine.c: progress rounds, waiting, and the progress thread.
 *
 * A round advances the transport, then every pending call, the most urgent first, then the queued
 * sends. A waiting thread runs rounds until nothing changes and then sleeps in the transport
 * without the lock. Only one thread does that at a time (`polled`); the others sleep on `changed`
 * until a call ends or the polling thread leaves. The progress thread waits in the same way: it
 * runs rounds while there are calls started with tdm_call_start and no other thread runs rounds. A
 * message alone wakes no thread: at hundreds of messages per second, that would cost more than the
 * messages.
 */
#include "comm/engine.h"
#include "base/timing.h"
#include "comm/fail.h"
#include "comm/request.h"
#include "comm/transfer.h"
#include "os/thread.h"

#include <errno.h>
#include <signal.h>
#include <time.h>

double tdm__comm_now(tdm_comm *comm)
{
    const tdm__transport_ops *ops = comm->transport->ops;
    return ops->now_s ? ops->now_s(comm->transport) : tdm_clock_s();
}

bool tdm__engine_progress(tdm_comm *comm)
{
    bool changed = false;
    if (comm->transport->ops->progress(comm->transport) > 0) changed = true;
    if (comm->has_suspects) {
        tdm__engine_confirm_losses(comm);
        changed = true;
    }
    for (tdm_request *r = comm->pending, *next; r; r = next) {
        next = r->next;
        tdm__request_run(r, &changed);
    }
    if (tdm__transfers_dispatch(comm)) changed = true;
    return changed;
}

/* Sends pending notifications before a sleep on `changed`, which releases the lock without sending
 * them. True: the lock was released, so the caller must check its condition again. */
static bool engine_send_tells(tdm_comm *comm)
{
    if (!comm->tells) return false;
    tdm__comm_unlock(comm);
    tdm__comm_lock(comm);
    return true;
}

/* Sleeps until another thread's round may have changed something. */
static void engine_nap(tdm_comm *comm)
{
    if (engine_send_tells(comm)) return;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(TDM__TIMING_COMM_NAP_S * 1e9);
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    comm->waiters++;
    pthread_cond_timedwait(&comm->changed, &comm->lock, &until);
    comm->waiters--;
}

/* Records the rank that a call waits for, if it differs from the last record: a long wait consists
 * of many sleeps, and the ring buffer is short. Must be called before the sleep: the request may be
 * freed after it. */
static void request_record_wait(tdm_comm *comm, tdm_request *request)
{
    int missing = -1;
    if (tdm__request_missing(request, &missing, 1) == 0) missing = -1;
    if (request->waits_for == missing) return;
    tdm_trace_event event = {.kind = TDM_TRACE_RESUME,
                             .peer = request->waits_for,
                             .group = request->head.group,
                             .sequence = request->head.sequence,
                             .step = request->head.step,
                             .call = (uint8_t)request->call.kind,
                             .dtype = request->head.dtype};
    if (request->waits_for >= 0) tdm__record(comm->recorder, event);
    event.kind = TDM_TRACE_WAIT;
    event.peer = missing;
    if (missing >= 0) tdm__record(comm->recorder, event);
    request->waits_for = missing;
}

/* No progress is possible: sleeps until a message or the next timer. With `own` also until the
 * request ends: another thread's round may end it and consume the wake-up. */
static void engine_sleep(tdm_comm *comm, tdm_request *request, bool own)
{
    double next = tdm__engine_timers(comm);
    double now = tdm__comm_now(comm);
    if (next <= now) return;
    if (comm->polled) {
        engine_nap(comm);
        return;
    }
    request_record_wait(comm, request);
    comm->polled = true;
    comm->polled_for = own ? request : NULL;
    tdm__comm_unlock(comm);
    comm->transport->ops->wait(comm->transport, next - now);
    tdm__comm_lock(comm);
    comm->polled = false;
    comm->polled_for = NULL;
}

void tdm__engine_wait(tdm_comm *comm, tdm_request *request)
{
    int rounds = 0;
    while (request->state != TDM__REQUEST_DONE) {
        bool changed = tdm__engine_progress(comm);
        if (request->state == TDM__REQUEST_DONE) break;
        if (!changed)
            engine_sleep(comm, request, true);
        else if (++rounds % 64 == 0)
            tdm__engine_timers(comm); /* also if every round makes progress */
    }
    if (comm->waiters) pthread_cond_broadcast(&comm->changed);
}

/* ---- progress thread -------------------------------------------------------------------------- */

static tdm_request *comm_background_request(const tdm_comm *comm)
{
    for (tdm_request *r = comm->pending; r; r = r->next)
        if (r->background) return r;
    return NULL;
}

static void *engine_progress_thread(void *user)
{
    tdm_comm *comm = user;
    tdm__comm_lock(comm);
    while (!comm->closing) {
        tdm_request *request = comm_background_request(comm);
        if (!request) {
            if (engine_send_tells(comm)) continue;
            if (comm->waiters)
                pthread_cond_broadcast(&comm->changed); /* one of them runs the rounds */
            comm->waiters++;
            pthread_cond_wait(&comm->changed, &comm->lock);
            comm->waiters--;
        } else if (comm->polled) {
            engine_nap(comm);
        } else if (!tdm__engine_progress(comm)) {
            request = comm_background_request(comm);
            if (request) engine_sleep(comm, request, false);
        } else if (comm->waiters) {
            /* Lets the woken threads see that their call has ended. */
            tdm__comm_unlock(comm);
            tdm__comm_lock(comm);
        }
    }
    tdm__comm_unlock(comm);
    return NULL;
}

bool tdm__engine_background(tdm_comm *comm)
{
    if (comm->no_threads || comm->closing) return false;
    if (!comm->has_thread)
        comm->has_thread = tdm__thread_start(&comm->thread, engine_progress_thread, comm, NULL) ==
                           TDM_OK;
    pthread_cond_broadcast(&comm->changed);
    if (comm->polled) comm->transport->ops->wake(comm->transport);
    return comm->has_thread;
}

void tdm__engine_stop(tdm_comm *comm)
{
    tdm__comm_lock(comm);
    comm->closing = true;
    pthread_cond_broadcast(&comm->changed);
    comm->transport->ops->wake(comm->transport);
    bool has_thread = comm->has_thread;
    comm->has_thread = false;
    tdm__comm_unlock(comm);
    if (has_thread) pthread_join(comm->thread, NULL);
}

void tdm__engine_describe(void *user, char *out, size_t bytes)
{
    tdm_comm *comm = user;
    tdm__recorder_last(comm->recorder, out, bytes);
}
