/*
 * assemble.h: creates a comm from a control connection, a transport and the host's shared memory.
 *
 * open.c makes the real ones, the simulator its own.
 */
#ifndef TANDEM_COMM_ASSEMBLE_H
#define TANDEM_COMM_ASSEMBLE_H

#include "boot/control.h"
#include "comm/choices.h"
#include "shm/host.h"
#include "transport/transport.h"

/* A transport needs the comm as target of its events when it is created, hence the callback `make`,
 * which is called once the comm exists. */
typedef struct tdm__comm_parts {
    tdm__control *control; /* taken */
    tdm_status (*make)(void *context, const tdm__transport_events *events, tdm__transport **out,
                       tdm_error *err);
    void *context;                  /* argument of make */
    tdm__host *host;                /* taken; NULL: none */
    tdm__choices choices;           /* rank 0's; taken */
    int *host_of;                   /* by rank; taken, allocated by malloc */
    bool shares_memory;             /* as in tdm_comm */
    bool no_threads;                /* single-threaded: no progress thread, no control thread */
    tdm__cancellation cancellation; /* until the comm is complete */
} tdm__comm_parts;

tdm_status tdm__comm_assemble(const tdm_comm_options *options, const tdm__comm_parts *parts,
                              tdm_comm **out, tdm_error *err);

#endif
