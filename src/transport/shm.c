/*
 * shm.c: the transport between the ranks of one host.
 *
 * Each ordered pair of ranks has a ring pair (shm_ring.h), created on first use. Progress means:
 * read what each peer has sent, then write what fits. If there is nothing to do, the bell is armed
 * and everything is checked once more, here and by the engine, so that a wait sleeps only if
 * nothing can have been missed.
 *
 * This transport cannot notice the death of a peer; the engine reports it with forget(). Each side
 * then marks its rings as closed, so that a peer that is still alive neither waits for us nor uses
 * what it copies from our memory.
 */
#include "transport/shm.h"
#include "base/base.h"
#include "transport/shm_inner.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LOOK_SPINS = 64 }; /* spins between two checks of file descriptors, which cost more */

/* ---- peers ----------------------------------------------------------------------------------- */

void tdm__shm_ring_bell(tdm__shm *s, tdm__shm_peer *peer)
{
    if (!peer->rung) return;
    peer->rung = false;
    tdm__host_ring(s->host, peer->place);
}

/* Marks the rings of this peer as closed, before any of our buffers is reused. */
static void peer_close_rings(tdm__shm *s, tdm__shm_peer *peer)
{
    if (peer->out.ring) atomic_store(&peer->out.ring->writer_closed, 1);
    if (peer->in.ring || tdm__shm_ring_find(s->host, peer->place, s->own, &peer->in))
        atomic_store(&peer->in.ring->reader_closed, 1);
    tdm__host_ring(s->host, peer->place);
}

/* Ends everything with this peer; returns whether anything was in progress. */
static bool peer_end(tdm__shm *s, tdm__shm_peer *peer)
{
    if (peer->gone) return false;
    peer->gone = true;
    peer_close_rings(s, peer);
    bool sends = tdm__shm_end_sends(s, peer);
    bool takes = tdm__shm_end_takes(s, peer);
    return sends || takes;
}

void tdm__shm_lose(tdm__shm *s, tdm__shm_peer *peer, bool always, const char *how)
{
    if (peer->gone) return;
    if (!peer_end(s, peer) && !always) return;
    s->callbacks++;
    s->events.lost(s->events.user, peer->rank, how);
}

static void shm_forget(tdm__transport *transport, int rank)
{
    tdm__shm *s = (tdm__shm *)transport;
    int place = rank >= 0 && rank < s->size ? s->place_of[rank] : -1;
    if (place >= 0) peer_end(s, &s->peers[place]);
}

/* ---- progress -------------------------------------------------------------------------------- */

static void shm_poll_peers(tdm__shm *s)
{
    for (int i = 0; i < s->count; i++) {
        tdm__shm_peer *peer = &s->peers[i];
        if (peer->gone) continue;
        tdm__shm_read(s, peer);
        tdm__shm_flush(s, peer);
        tdm__shm_ring_bell(s, peer);
    }
}

static int shm_progress(tdm__transport *transport)
{
    tdm__shm *s = (tdm__shm *)transport;
    uint64_t callbacks = s->callbacks, moves = s->moves;
    atomic_store_explicit(&s->busy, false, memory_order_relaxed);
    shm_poll_peers(s);
    uint32_t bell = atomic_load_explicit(&s->bell, memory_order_relaxed);
    if (s->callbacks == callbacks && s->moves == moves && tdm__host_rung(s->host, bell)) {
        /* Nothing to do: from now on peers that change something ring the bell. Then check again.
         * */
        atomic_store(&s->bell, tdm__host_bell(s->host));
        shm_poll_peers(s);
    }
    return (int)(s->callbacks - callbacks);
}

static bool fds_any_readable(const int *fds, int fd_count)
{
    for (int i = 0; i < fd_count; i++)
        if (poll(&(struct pollfd){.fd = fds[i], .events = POLLIN}, 1, 0) > 0) return true;
    return false;
}

void tdm__shm_wait(tdm__transport *transport, double timeout_s, const int *fds, int fd_count)
{
    tdm__shm *s = (tdm__shm *)transport;
    uint32_t bell = atomic_load(&s->bell);
    bool ready = atomic_load(&s->busy) || timeout_s <= 0;
    uint32_t spins = tdm__host_spins(s->host);
    for (uint32_t i = 1; i <= spins && !ready; i++) {
        ready = tdm__host_rung(s->host, bell) ||
                (fd_count > 0 && i % LOOK_SPINS == 0 && fds_any_readable(fds, fd_count));
        tdm__relax();
    }
    if (!ready && !atomic_load(&s->woken)) tdm__host_wait(s->host, bell, timeout_s, fds, fd_count);
    atomic_store(&s->woken, false);
}

static void shm_wait(tdm__transport *transport, double timeout_s)
{
    tdm__shm_wait(transport, timeout_s, NULL, 0);
}

/* The flag ends the next wait, the bell the current one. */
static void shm_wake(tdm__transport *transport)
{
    tdm__shm *s = (tdm__shm *)transport;
    atomic_store(&s->woken, true);
    tdm__host_ring(s->host, s->own);
}

static int shm_arm(tdm__transport *transport)
{
    tdm__shm *s = (tdm__shm *)transport;
    if (atomic_load(&s->busy) || atomic_exchange(&s->woken, false)) return -1;
    return tdm__host_arm(s->host, atomic_load(&s->bell));
}

uint32_t tdm__shm_spins(const tdm__transport *transport)
{
    return tdm__host_spins(((const tdm__shm *)transport)->host);
}

/* ---- creation and destruction ---------------------------------------------------------------- */

static bool shm_usable(char why[160], char library[TDM_LIBRARY_BYTES])
{
    why[0] = '\0';
    library[0] = '\0';
    int fd = memfd_create("tandem", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        snprintf(why, 160, "cannot create shared memory (memfd_create): %s", strerror(errno));
        return false;
    }
    close(fd);
    return true;
}

/* Closes the rings, so that peers with pending messages from us learn that these will not arrive.
 * */
static void shm_destroy(tdm__transport *transport)
{
    tdm__shm *s = (tdm__shm *)transport;
    for (int i = 0; s->peers && i < s->count; i++) {
        tdm__shm_peer *peer = &s->peers[i];
        if (!peer->gone && (tdm__shm_has_sends(s, peer) || peer->takes.first || peer->copies.first))
            peer_close_rings(s, peer);
    }
    tdm__shm_free_sends(s);
    tdm__shm_free_takes(s);
    free(s->peers);
    free(s->place_of);
    free(s);
}

tdm_status tdm__shm_create(tdm__host *host, const tdm__transport_options *options,
                           tdm__transport **out, tdm_error *err)
{
    int count = tdm__host_count(host), own = tdm__host_index(host);
    tdm__shm *s = calloc(1, sizeof(*s));
    int *place_of = calloc((size_t)options->size, sizeof(*place_of));
    tdm__shm_peer *peers = calloc((size_t)count, sizeof(*peers));
    if (!s || !place_of || !peers) {
        free(s);
        free(place_of);
        free(peers);
        return tdm_fail_oom(err, "for the transport shm");
    }

    for (int i = 0; i < options->size; i++) place_of[i] = -1;
    for (int i = 0; i < count; i++) {
        int rank = host->ranks[i];
        peers[i] = (tdm__shm_peer){.place = i, .rank = rank};
        if (rank < options->size) place_of[rank] = i;
    }

    *s = (tdm__shm){.base = {.ops = &tdm__transport_shm},
                    .host = host,
                    .events = options->events,
                    .world = options->world,
                    .size = options->size,
                    .count = count,
                    .own = own,
                    .place_of = place_of,
                    .peers = peers};
    atomic_store(&s->bell, tdm__host_bell(host));
    *out = &s->base;
    return TDM_OK;
}

const tdm__transport_ops tdm__transport_shm = {
    .name = "shm",
    .about = "shared memory of the ranks of one host",
    .usable = shm_usable,
    .within_host_only = true,
    .destroy = shm_destroy,
    .send = tdm__shm_send,
    .take = tdm__shm_take,
    .drop = tdm__shm_drop,
    .forget = shm_forget,
    .progress = shm_progress,
    .wait = shm_wait,
    .wake = shm_wake,
    .arm = shm_arm,
};
