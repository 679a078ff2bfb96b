/*
 * host.h: the memory that the ranks of one host share.
 *
 * The lowest rank of a host makes one memfd, large and sparse (address space, not memory: pages exist
 * once they are touched), and hands it to its neighbours over a UNIX socket; all map it whole. In it
 * lie: a cell for each rank (doorbell, state), the rings for messages within the host, and an
 * allocator for blocks (windows of groups, tdm_comm_shared). A block is named by its offset, which
 * means the same to all; addresses differ. The segment has no name in any file system and is gone with
 * its last user, however that ends.
 *
 * Waiting: a rank that finds nothing to do spins for a moment (not at all when there are more ranks
 * than processors), sets its `sleeping` flag and sleeps in the kernel; whoever changes something that
 * it may wait for looks at the flag and rings its bell. Bells are futexes; when the rank also waits for
 * file descriptors (UCX), it waits in poll() and its bell is a datagram socket.
 *
 * Death: memory has no owner that could be waited for. Locks in the segment are held for a few
 * instructions only, and record their holder, so that a dead one's is taken over.
 */
#ifndef TANDEM_SHM_HOST_H
#define TANDEM_SHM_HOST_H

#include "net/cancellation.h"

#include <tandem/comm.h>

typedef struct tdm__host tdm__host;

typedef struct tdm__host_options {
    int rank;         /* in the world */
    const int *ranks; /* of this host, ascending; includes rank */
    int count;
    uint32_t world;
    bool with_fds;                  /* waits must also end by file descriptors */
    tdm__cancellation cancellation; /* of tdm__host_connect */
} tdm__host_options;

/* Two halves, like a transport: the first makes the segment (lowest rank) or a socket, the second,
 * after the addresses were exchanged, maps it. Addresses by place in options.ranks. */
tdm_status tdm__host_create(const tdm__host_options *options, tdm__host **out, uint8_t *address,
                            size_t *address_bytes, tdm_error *err);
tdm_status tdm__host_connect(tdm__host *host, const uint8_t *const *addresses,
                             const size_t *address_bytes, tdm_error *err);
void tdm__host_destroy(tdm__host *host);

int tdm__host_index(const tdm__host *host); /* this rank's place among the host's ranks */
int tdm__host_count(const tdm__host *host);

/* Blocks. Zeroed. TDM_ERR_NO_MEMORY with sizes when the segment, or the machine, has no more. */
tdm_status tdm__host_alloc(tdm__host *host, size_t bytes, uint64_t *out_offset, tdm_error *err);
void tdm__host_free(tdm__host *host, uint64_t offset); /* the pages go back to the system */
void *tdm__host_at(const tdm__host *host, uint64_t offset);
/* The offset of memory within the segment, or UINT64_MAX when `bytes` bytes there are not all in it. */
uint64_t tdm__host_offset(const tdm__host *host, const void *memory, size_t bytes);

/* Whether a place of that offset lies in a block that is taken now. */
bool tdm__host_is_taken(const tdm__host *host, uint64_t offset);

/* Bells. ring() after having changed what `index` may wait for; cheap when nobody sleeps. */
void tdm__host_ring(tdm__host *host, int index);
/* Sleeps until rung since the last look, or `timeout_s`; `fds` (may be 0) also end it. Sequence: read
 * `tdm__host_bell` first, look for work, then wait with what was read. */
uint32_t tdm__host_bell(const tdm__host *host);
void tdm__host_wait(tdm__host *host, uint32_t bell, double timeout_s, const int *fds, int fd_count);
/* How long it is sensible to spin before sleeping: 0 when there are more ranks than processors. */
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
