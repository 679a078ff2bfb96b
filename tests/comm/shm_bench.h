/*
 * shm_bench.h: random traffic over a transport, for the tests of shm and of the composite.
 *
 * Every rank sends `messages` messages to every other rank. The size, the content, the location of the buffers,
 * and whether the receiver takes or drops a message are functions of (seed, from, to, number), so that both
 * sides know what to expect; the order of sends and takes is random. A sender overwrites its buffer as soon as
 * sent() is called, so that a late read is detected. A shared word tells the ranks that another one is dead.
 */
#ifndef TANDEM_TESTS_SHM_BENCH_H
#define TANDEM_TESTS_SHM_BENCH_H

#include "base/base.h"
#include "host_bench.h"
#include "transport/shm.h"

#include <sys/mman.h>

enum { MAX_FLIGHT = 12, MAX_PENDING = 64, STUCK_S = 25 };

/* Shared by the processes of a test, besides the memory of the host. */
typedef struct traffic_shared {
    _Atomic int done_count;
    _Atomic int dead; /* rank + 1 of the rank that was killed; 0: none */
    _Atomic int word[8];
} traffic_shared;

typedef struct traffic {
    tdm__transport *transport;
    tdm__host *host; /* for buffers in shared memory; may be NULL */
    traffic_shared *shared;
    tdm_rng rng;
    int rank, size, messages;
    uint64_t seed, max_bytes;
    int next[HOST_BENCH_MAX_RANKS]; /* by peer: the next message to send */
    int left_to_send, in_flight, taking;
    /* by peer: number of messages from it that have not ended */
    int left_from[HOST_BENCH_MAX_RANKS];
    /* by peer: number of sends and takes without a callback so far */
    int under_way[HOST_BENCH_MAX_RANKS];
    bool may_die; /* a rank may be killed */
    bool lost[HOST_BENCH_MAX_RANKS];
    bool forgotten[HOST_BENCH_MAX_RANKS];
    struct waiting {
        tdm__arrival *arrival;
        int from, number;
    } pending[MAX_PENDING * HOST_BENCH_MAX_RANKS];
    int pending_count;
} traffic;

typedef struct parcel {
    traffic *t;
    int from, to, number;
    uint64_t bytes;
    uint8_t *data;
    uint64_t offset; /* in the host's memory; 0: on the heap */
} parcel;

tdm__transport_events traffic_events(traffic *t);

/* The address of the transport is set later: the transport is created with these events. */
void traffic_init(traffic *t, int rank, int size, int messages, uint64_t seed);

bool traffic_is_over(const traffic *t);

/* Runs until this rank has ended its traffic, and then until the others have. */
void traffic_run(traffic *t);

#endif
