/*
 * host.h: the memory that the ranks of one host share.
 *
 * The lowest rank of a host creates one memfd, large and sparse (pages are allocated when they are
 * touched), and passes it to the other ranks of the host over a UNIX socket; all map it completely. It
 * contains a cell for each rank (doorbell, state), the rings for messages within the host, and an
 * allocator for blocks (windows of groups, buffers of tdm_comm_shared). A block is identified by its offset, which
 * is the same in all processes; addresses differ. The segment has no name in any file system and is
 * freed with its last user, however that process ends.
 *
 * Waiting: a rank without work spins for a moment (not at all if there are more ranks than CPUs), sets
 * its `sleeping` flag and sleeps in the kernel. A rank that changes something another one may wait for
 * checks the flag and rings its bell. Bells are futexes; a rank that also waits for file descriptors
 * (UCX) waits in poll(), and its bell is a datagram socket.
 *
 * Death: locks in the segment are held for a few instructions only and record their holder, so that the
 * lock of a dead process is taken over.
 */
#ifndef TANDEM_SHM_HOST_H
#define TANDEM_SHM_HOST_H

#include "net/cancellation.h"
#include "os/os.h"

#include <tandem/comm.h>

typedef struct tdm__host tdm__host;

typedef struct tdm__host_options {
    int rank;         /* in the world */
    const int *ranks; /* of this host, ascending; includes rank */
    int count;
    uint32_t world;
    bool with_fds;                  /* waits must also end when file descriptors are ready */
    tdm__cancellation cancellation; /* of tdm__host_connect */
} tdm__host_options;

/* Like a transport, in two halves: create makes the segment (lowest rank) or a socket; connect, after
 * the addresses were exchanged, maps it. Addresses are indexed like options.ranks. */
tdm_status tdm__host_create(const tdm__host_options *options, tdm__host **out, uint8_t *address,
                            size_t *address_bytes, tdm_error *err);
tdm_status tdm__host_connect(tdm__host *host, const uint8_t *const *addresses,
                             const size_t *address_bytes, tdm_error *err);
void tdm__host_destroy(tdm__host *host);

/* The segment with the named regions of this node's ranks (os.h); owned by the host. */
tdm_shm *tdm__host_shm(const tdm__host *host);
int tdm__host_index(const tdm__host *host); /* this rank's index among the host's ranks */
int tdm__host_count(const tdm__host *host);

/* Allocates a zeroed block. TDM_ERR_NO_MEMORY, with sizes, if the segment or the machine is full. */
tdm_status tdm__host_alloc(tdm__host *host, size_t bytes, uint64_t *out_offset, tdm_error *err);
void tdm__host_free(tdm__host *host, uint64_t offset); /* returns the pages to the system */
void *tdm__host_at(const tdm__host *host, uint64_t offset);
/* The offset of memory within the segment; UINT64_MAX if not all of `bytes` bytes are in it. */
uint64_t tdm__host_offset(const tdm__host *host, const void *memory, size_t bytes);

/* Wakes rank `index`. Call after changing what it may wait for; cheap if it does not sleep. */
void tdm__host_ring(tdm__host *host, int index);
/* Sleeps until the bell was rung since it was read, until `timeout_s`, or until one of `fds` (may be
 * none) is ready. Sequence: read `tdm__host_bell`, look for work, then wait with the value read. */
uint32_t tdm__host_bell(const tdm__host *host);
void tdm__host_wait(tdm__host *host, uint32_t bell, double timeout_s, const int *fds, int fd_count);
/* How many times to spin before sleeping: 0 if there are more ranks than CPUs. */
uint32_t tdm__host_spins(const tdm__host *host);
static inline void tdm__relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
