/*
 * host_inner.h: the layout of the segment, for host*.c and the shared-memory transport.
 *
 * From its start: a header with the allocator's lock, a cell for each rank, a slot for each ordered pair
 * of ranks (used by the transport), the table of blocks, then the blocks: small ones first, then large
 * ones, on huge pages if the system allows them for shared memory. All offsets follow from the number of
 * ranks and the size of the segment, which all ranks get when they map it; only the table of blocks
 * contains offsets.
 */
#ifndef TANDEM_SHM_HOST_INNER_H
#define TANDEM_SHM_HOST_INNER_H

#include "os/lock.h"
#include "shm/host.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    TDM__MAX_HOST_RANKS = 4096, /* on one host */
    TDM__MAX_HOST_BLOCKS = 65536,
    TDM__HOST_PAGE = 4096,
    TDM__HOST_MASK_WORDS = 16, /* CPUs 0 to 1,023 */
    TDM__MAX_HOST_NAME = 48    /* of an abstract socket */
};

/*
 * A bell is one word: a count in the upper bits and three flags. A rank that is about to look for work
 * sets ARMED; the ringer increments the count and clears the flags in one step, and wakes as they say.
 * So a late ringer cannot clear the flag of a newer wait without that wait noticing.
 */
enum {
    TDM__BELL_ARMED = 1,
    TDM__BELL_SLEEPING = 2, /* in the futex */
    TDM__BELL_POLLING = 4,  /* in poll(), with the datagram socket */
    TDM__BELL_ONE = 8
};

/* The state of a rank that the other ranks of the host can read. */
typedef struct tdm__host_cell {
    _Alignas(64) _Atomic uint32_t bell;
    _Alignas(64) _Atomic uint32_t ready; /* all below is written */
    uint32_t quota;                      /* CPUs granted by its control groups; 0: no limit */
    uint64_t mask[TDM__HOST_MASK_WORDS]; /* CPUs it may run on */
    _Atomic uint32_t name_bytes;         /* of its bell's socket; 0: none yet */
    char name[TDM__MAX_HOST_NAME];
} tdm__host_cell;

typedef struct tdm__segment {
    uint64_t magic;
    uint64_t bytes;
    uint32_t world, count;
    _Alignas(64) tdm__shared_lock lock; /* of the allocator */
    _Atomic uint32_t record_high;       /* records from here on were never used */
    _Atomic uint64_t cursor_page[2];    /* where the last small and the last large block ended */
} tdm__segment;

typedef struct tdm__host_layout {
    uint64_t cells, slots, records; /* offsets */
    uint64_t small, large, end;     /* start of small and of large blocks, and the end */
} tdm__host_layout;

struct tdm__host {
    int index, count; /* index among the host's ranks, and their number */
    int *ranks;
    uint32_t world;
    bool with_fds;
    tdm__cancellation cancellation;             /* checked while the memory is passed on */
    int memory_fd, listen_fd, bell_fd, ring_fd; /* -1: none */
    char listen_name[TDM__MAX_HOST_NAME];
    uint32_t spins;
    tdm__host_layout at;
    tdm_shm *shm;  /* the node's segment of named regions */
    uint8_t *base; /* of the mapping; NULL: not yet */
    tdm__segment *segment;
    tdm__lock_owner owner;
    tdm__host_cell *cells;
    _Atomic uint64_t *slots;   /* [from][to] */
    _Atomic uint64_t *records; /* of blocks */
};

/* host.c */
uint64_t tdm__host_round(uint64_t bytes,
                         uint64_t to); /* rounds up to a multiple of a power of two */
/* Maps `bytes` of memory_fd and sets the pointers to its parts. */
tdm_status tdm__host_map(tdm__host *host, uint64_t bytes, tdm_error *err);
/* Fills this rank's cell. */
tdm_status tdm__host_enter(tdm__host *host, tdm_error *err);

/* host_share.c: the lowest rank listens and passes the memory on; the other ranks request it. Both
 * sides return when all ranks have mapped it. */
tdm_status tdm__host_listen(tdm__host *host, tdm_error *err);
tdm_status tdm__host_hand_out(tdm__host *host, tdm_error *err);
tdm_status tdm__host_ask(tdm__host *host, const uint8_t *name, size_t name_bytes, tdm_error *err);
/* Generates a unique name for an abstract socket; returns its length. */
size_t tdm__host_draw_name(const char *what, char name[TDM__MAX_HOST_NAME]);

/* host_bell.c */
tdm_status tdm__host_open_bell(tdm__host *host, tdm_error *err);
/* Whether the bell was rung since it was read. */
bool tdm__host_rung(const tdm__host *host, uint32_t bell);
/* A file descriptor that becomes readable when the bell is rung; -1 if it was rung since it was read, or
 * if there is none. Older datagrams are dropped. */
int tdm__host_arm(tdm__host *host, uint32_t bell);

/* The word of an ordered pair of ranks, initially zero, in which the transport stores an offset. */
static inline _Atomic uint64_t *tdm__host_slot(const tdm__host *host, int from, int to)
{
    return &host->slots[(size_t)from * (size_t)host->count + (size_t)to];
}

/* A full fence between a change and reading a flag, or between setting a flag and checking for a change.
 * The thread sanitizer does not support fences: there, an exchange on the flag's word has the same
 * effect. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TDM__NO_FENCES 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define TDM__NO_FENCES 1
#endif
static inline void tdm__fence_on(_Atomic uint32_t *word)
{
#if defined(TDM__NO_FENCES)
    atomic_fetch_add(word, 0);
#else
    (void)word;
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

#endif
