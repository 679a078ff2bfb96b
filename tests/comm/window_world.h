/*
 * window_world.h: members of a group as threads, for tests of windows.
 *
 * Each thread has a separate comm, group and tdm__host (so it has the same memory at another address, like a
 * process), and executes its programs by a small interpreter instead of the engine. Ranks may be spread over
 * several hosts: each host has separate memory, and messages between ranks go through a list. A trial is one
 * call, compared bit for bit with a plain reference.
 */
#ifndef TANDEM_TESTS_COMM_WINDOW_WORLD_H
#define TANDEM_TESTS_COMM_WINDOW_WORLD_H

#include "check.h"
#include "comm/algorithm.h"
#include "comm/engine.h"
#include "comm/fail.h"
#include "comm/group.h"
#include "comm/match.h"
#include "comm/request.h"
#include "comm/transfer.h"
#include "comm/window.h"

#include <stdlib.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SCALED(full, small) (small)
#else
#define SCALED(full, small) (full)
#endif

enum { MAX_MEMBERS = 16, WORLD = 0x51, MAX_ADDRESS = 4096, MAX_LANES = 64 };
#define PATIENCE_S 60.0

/* ---- a world of threads ------------------------------------------------------------------------- */

typedef struct member {
    int rank, size;
    tdm__host *host;
    tdm_comm comm;
    tdm_group group;
    tdm__transport transport;
    tdm__control control;
    int *host_of, *ranks, *local_of;
    int pending; /* messages of the program that runs */
    int failures;
    struct world *world;
} member;

/* A message of which at least one side has begun. */
typedef struct mail {
    struct mail *next;
    int from, to;
    uint32_t sequence, step;
    size_t bytes;
    const void *data;
    void *into;
    bool sent, awaited;
    int *sender, *receiver; /* the number of their pending messages */
} mail;

typedef struct world {
    int size;
    int host_of[MAX_MEMBERS];
    const tdm__algorithm_ops *algorithm;
    pthread_mutex_t mail_lock;
    mail *mails;
    uint64_t bytes_between_hosts;
    member members[MAX_MEMBERS];
    uint8_t addresses[MAX_MEMBERS][MAX_ADDRESS];
    size_t address_bytes[MAX_MEMBERS];
    _Atomic uint64_t window_offsets[MAX_MEMBERS]; /* by host, plus 1 */
    _Atomic int set_up; /* a barrier of the members, for tests that need one */
    void (*body)(member *m);
} world;

/* Failures are counted in each thread separately. */
#define MEMBER_CHECK(m, condition)                                                                 \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            if ((m)->failures++ < 5)                                                               \
                fprintf(stderr, "%s:%d: rank %d of %d: not true: %s\n", __FILE__, __LINE__,        \
                        (m)->rank, (m)->size, #condition);                                         \
        }                                                                                          \
    } while (0)

/* Runs `body` once for each rank, concurrently; `host_of` NULL: all on one host. */
void run_world_on(int size, const int *host_of, const tdm__algorithm_ops *algorithm,
                  void (*body)(member *m));

void run_world(int size, void (*body)(member *m));

/* ---- messages ------------------------------------------------------------------------------------ */

/* ---- a small engine ----------------------------------------------------------------------------- */

/* Runs a call as a program. Returns the group's status. */
tdm_status run_call(member *m, const tdm_call *call);

/* ---- numbers and references ---------------------------------------------------------------------- */

uint32_t scramble(uint32_t x);

/* ---- one call, checked --------------------------------------------------------------------------- */

typedef enum places {
    OUTSIDE, /* all buffers outside the memory of the host: staged */
    INSIDE,  /* all inside: direct */
    MIXED,   /* those of rank 1 outside, the others inside: staged, with one more post */
    PLACES
} places;

typedef struct trial {
    tdm_call call;
    places where;
    bool in_place;
    const tdm_lanes *lanes;
    const size_t *cuts;
} trial;

typedef struct buffers {
    void *memory[MAX_LANES + 1];
    uint64_t offsets[MAX_LANES + 1]; /* UINT64_MAX: from malloc */
    int count;
} buffers;

/* The expected element `e` of this rank's `out`; false: it must be unchanged. */
bool expected(const member *m, const tdm_call *call, const tdm__leaves *leaves, int64_t lane_count,
              size_t e, uint8_t out[8]);

void run_trial(member *m, trial t);

/* Slices of any lengths, also empty ones, with and without lanes: for the kinds from reduce_scatter to
 * `last`, with buffers in the first `place_count` places. */
void run_cuts(member *m, tdm_call_kind last, int place_count);

#endif
