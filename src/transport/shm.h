/*
 * shm.h: messages between the ranks of one host, and the combination with another transport.
 *
 * Unlike other transports this one is not created from addresses: it uses the host's memory
 * (host.h), which must be connected already. It borrows the host.
 */
#ifndef TANDEM_TRANSPORT_SHM_H
#define TANDEM_TRANSPORT_SHM_H

#include "shm/host.h"
#include "transport/transport.h"

extern const tdm__transport_ops tdm__transport_shm;

tdm_status tdm__shm_create(tdm__host *host, const tdm__transport_options *options,
                           tdm__transport **out, tdm_error *err);
/* Its wait(), which can also end when file descriptors are ready. */
void tdm__shm_wait(tdm__transport *shm, double timeout_s, const int *fds, int fd_count);
/* How many times to spin before sleeping: the host's value. */
uint32_t tdm__shm_spins(const tdm__transport *shm);

/* Arrivals of this transport are odd numbers; those of other transports are addresses and even. So
 * the combined transport can tell them apart without looking inside. */
static inline bool tdm__shm_is_arrival(const tdm__arrival *arrival)
{
    return ((uintptr_t)arrival & 1) != 0;
}

/* mixed.c: `near_end` (from tdm__shm_create) for the ranks of this host, `far_end` for the rest.
 * Takes both, also on failure. Both must have been created with the same events. `name`: of the
 * combination, such as "shm+ucx"; copied. */
tdm_status tdm__mixed_create(tdm__transport *near_end, tdm__transport *far_end,
                             const tdm__transport_options *options, const char *name,
                             tdm__transport **out, tdm_error *err);

#endif
