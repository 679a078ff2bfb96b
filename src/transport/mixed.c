/*
 * mixed.c: two transports combined: shared memory for the ranks of this host, another for the rest.
 *
 * Both were created with the same events, so their callbacks go directly to the engine; only calls
 * of the engine are dispatched, by the peer's host or, for arrivals, by their owner.
 *
 * Waiting: on the host's bell, or on the descriptor of the far transport as well. A transport
 * without a descriptor is polled: first at once, then after sleeps that grow to a millisecond while
 * nothing happens.
 */
#include "base/base.h"
#include "base/timing.h"
#include "transport/shm.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct mixed {
    tdm__transport base;
    tdm__transport_ops ops; /* a copy, with the combined name */
    char name[32];          /* a copy, because the caller's may be freed earlier */
    tdm__transport *near_end, *far_end;
    bool *is_near; /* by rank */
    int size;
    _Atomic uint32_t idle; /* consecutive waits since the last activity */
} mixed;

static tdm__transport *mixed_transport_of(const mixed *m, int peer)
{
    return peer >= 0 && peer < m->size && m->is_near[peer] ? m->near_end : m->far_end;
}

static tdm__transport *mixed_owner_of(const mixed *m, const tdm__arrival *arrival)
{
    return tdm__shm_is_arrival(arrival) ? m->near_end : m->far_end;
}

static void mixed_send(tdm__transport *transport, int peer, const tdm__head *head, const void *data,
                       void *cookie)
{
    tdm__transport *to = mixed_transport_of((mixed *)transport, peer);
    to->ops->send(to, peer, head, data, cookie);
}

static void mixed_take(tdm__transport *transport, tdm__arrival *arrival, void *into, void *cookie)
{
    tdm__transport *owner = mixed_owner_of((mixed *)transport, arrival);
    owner->ops->take(owner, arrival, into, cookie);
}

static void mixed_drop(tdm__transport *transport, tdm__arrival *arrival)
{
    tdm__transport *owner = mixed_owner_of((mixed *)transport, arrival);
    owner->ops->drop(owner, arrival);
}

static void mixed_forget(tdm__transport *transport, int peer)
{
    tdm__transport *to = mixed_transport_of((mixed *)transport, peer);
    to->ops->forget(to, peer);
}

static int mixed_progress(tdm__transport *transport)
{
    mixed *m = (mixed *)transport;
    int near_count = m->near_end->ops->progress(m->near_end);
    int far_count = m->far_end->ops->progress(m->far_end);
    if (near_count + far_count > 0) atomic_store_explicit(&m->idle, 0, memory_order_relaxed);
    return near_count + far_count;
}

static void mixed_wait(tdm__transport *transport, double timeout_s)
{
    mixed *m = (mixed *)transport;
    if (m->far_end->ops->arm) {
        int fd = m->far_end->ops->arm(m->far_end);
        if (fd >= 0) tdm__shm_wait(m->near_end, timeout_s, &fd, 1);
        return;
    }
    uint32_t idle = atomic_fetch_add_explicit(&m->idle, 1, memory_order_relaxed);
    if (idle < tdm__shm_spins(m->near_end) / 16) return; /* polling costs more than a spin */
    uint32_t growth = 1 + idle / 16;
    double nap_s = TDM__TIMING_TRANSPORT_MIN_NAP_S * growth;
    if (nap_s > TDM__TIMING_TRANSPORT_MAX_NAP_S) nap_s = TDM__TIMING_TRANSPORT_MAX_NAP_S;
    tdm__shm_wait(m->near_end, nap_s < timeout_s ? nap_s : timeout_s, NULL, 0);
}

static void mixed_wake(tdm__transport *transport)
{
    mixed *m = (mixed *)transport;
    m->near_end->ops->wake(m->near_end);
}

static void mixed_mark_broken(tdm__transport *transport)
{
    mixed *m = (mixed *)transport;
    if (m->near_end->ops->mark_broken) m->near_end->ops->mark_broken(m->near_end);
    if (m->far_end->ops->mark_broken) m->far_end->ops->mark_broken(m->far_end);
}

static void mixed_destroy(tdm__transport *transport)
{
    mixed *m = (mixed *)transport;
    m->far_end->ops->destroy(m->far_end);
    m->near_end->ops->destroy(m->near_end);
    free(m->is_near);
    free(m);
}

static const tdm__transport_ops table = {
    .about = "shared memory within a host, another transport between hosts",
    .destroy = mixed_destroy,
    .mark_broken = mixed_mark_broken,
    .send = mixed_send,
    .take = mixed_take,
    .drop = mixed_drop,
    .forget = mixed_forget,
    .progress = mixed_progress,
    .wait = mixed_wait,
    .wake = mixed_wake,
};

tdm_status tdm__mixed_create(tdm__transport *near_end, tdm__transport *far_end,
                             const tdm__transport_options *options, const char *name,
                             tdm__transport **out, tdm_error *err)
{
    mixed *m = calloc(1, sizeof(*m));
    bool *is_near = calloc((size_t)options->size, sizeof(*is_near));
    if (!m || !is_near) {
        free(m);
        free(is_near);
        far_end->ops->destroy(far_end);
        near_end->ops->destroy(near_end);
        return tdm_fail_oom(err, "for a pair of transports");
    }
    for (int i = 0; i < options->size; i++)
        is_near[i] = options->host_of[i] == options->host_of[options->rank];
    m->ops = table;
    snprintf(m->name, sizeof(m->name), "%s", name);
    m->ops.name = m->name;
    m->ops.now_s = far_end->ops->now_s;
    m->base.ops = &m->ops;
    m->base.round_trip_s = far_end->round_trip_s;
    m->near_end = near_end;
    m->far_end = far_end;
    m->is_near = is_near;
    m->size = options->size;
    *out = &m->base;
    return TDM_OK;
}
