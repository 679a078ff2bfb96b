/*
 * transfer.h: messages in progress between the programs of this rank and the transport.
 *
 * A transfer is one message: a send that is queued or has been passed to the transport, or a receive
 * that is expected or has been passed to the transport. transfer.c queues sends by urgency, bounds
 * the bytes in flight to each peer, and matches receives with messages (match.h). All functions are
 * called with the comm's lock held.
 */
#ifndef TANDEM_COMM_TRANSFER_H
#define TANDEM_COMM_TRANSFER_H

#include "comm/program.h"
#include "transport/transport.h"

/* The step of a notice: "I wait for you in this call". A notice has no payload. */
enum { TDM__NOTICE_STEP = -1 };

typedef struct tdm__transfer {
    struct tdm__transfer *next, *previous; /* in the comm's list, or in the free list */
    tdm_request *request;                  /* NULL: a notice, for which no call waits */
    tdm__program *program;
    int peer; /* rank in the world */
    bool receive;
    bool handed; /* passed to the transport */
    const void *data;
    tdm__head head;
} tdm__transfer;

/* Start the transfer of a SEND or RECV instruction. */
void tdm__transfer_send(tdm__program *program, const tdm__instruction *instruction);
void tdm__transfer_recv(tdm__program *program, const tdm__instruction *instruction);
/* Sends a notice of this call to a rank of the world. */
void tdm__transfer_notice(tdm_request *request, int peer);

/* Passes queued sends to the transport. Returns whether it passed any. */
bool tdm__transfers_dispatch(tdm_comm *comm);
/* Checks whether queued sends are stalled. Returns when to check again, `never` if none is queued.
 * If they are, allows more bytes in flight for the next round and sets *round. */
double tdm__transfers_stalled(tdm_comm *comm, double now, double never, bool *round);
/* Compares the messages that have already arrived for this call with the call. */
void tdm__transfers_check(tdm_request *request);
/* Drops the call's transfers that the transport does not have. */
void tdm__transfers_cancel(tdm_request *request);
/* Drops messages that have arrived for this group (NULL: for any) and will not be received. */
void tdm__transfers_drop(tdm_comm *comm, const uint32_t *group);
/* Frees all transfers, when the comm is closed. */
void tdm__transfers_free(tdm_comm *comm);

/* The callbacks for the comm's transport. */
tdm__transport_events tdm__transfer_events(tdm_comm *comm);

#endif
