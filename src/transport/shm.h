/*
 * shm.h: messages between the ranks of one host, and the composite of that and another transport.
 *
 * Unlike other transports this one is not made from addresses: the host (host.h), which has been made
 * and connected before, is where it lives. It borrows it.
 */
#ifndef TANDEM_TRANSPORT_SHM_H
#define TANDEM_TRANSPORT_SHM_H

#include "shm/host.h"
#include "transport/transport.h"

extern const tdm__transport_ops tdm__transport_shm;

tdm_status tdm__shm_create(tdm__host *host, const tdm__transport_options *options,
                           tdm__transport **out, tdm_error *err);
/* Its wait(), which file descriptors may end as well. */
void tdm__shm_wait(tdm__transport *shm, double timeout_s, const int *fds, int fd_count);
/* The spins that are sensible before a sleep: the host's. */
uint32_t tdm__shm_spins(const tdm__transport *shm);

/* This transport's arrivals are odd as numbers; every other's are addresses of something, and even. So
 * the composite knows whose an arrival is without a look inside. */
static inline bool tdm__shm_is_arrival(const tdm__arrival *arrival)
{
    return ((uintptr_t)arrival & 1) != 0;
}

/* mixed.c: `near_end` (made by tdm__shm_create) for the ranks of this host, `far_end` for the rest. Takes
 * both, also when it fails. Both must have been made with the same events. `name` is what it is
 * called, such as "shm+ucx"; borrowed. */
tdm_status tdm__mixed_create(tdm__transport *near_end, tdm__transport *far_end,
                             const tdm__transport_options *options, const char *name,
                             tdm__transport **out, tdm_error *err);

#endif
