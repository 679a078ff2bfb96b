/*
 * mpi.h: what the files of the MPI transport share.
 *
 * A message is an envelope (our head, and a number) with a payload of up to a few KB in it; a larger
 * payload follows by itself, under a tag made of the number, and is received when the engine takes it,
 * straight into its buffer. Envelopes are awaited by a pool of persistent receives; whatever is under
 * way is one flat array of MPI requests, on which MPI_Testsome is called.
 *
 * MPI is used by one thread at a time, under the engine's lock: MPI_THREAD_SERIALIZED is enough.
 */
#ifndef TANDEM_TRANSPORT_PLUGINS_MPI_MPI_H
#define TANDEM_TRANSPORT_PLUGINS_MPI_MPI_H

#include "transport/transport.h"

#include <mpi.h>
#include <stdatomic.h>

enum {
    TDM__MPI_INLINE = 8192,  /* bytes of payload that go with the envelope */
    TDM__MPI_POOL = 32,      /* envelopes that can come before we look */
    TDM__MPI_TAG = 1,        /* of envelopes; the tags above it are for payloads */
    TDM__MPI_PIECE = 1 << 30 /* MPI counts in ints: larger payloads go in pieces */
};

typedef struct tdm__mpi_envelope {
    tdm__head head;
    uint32_t number; /* of the payload that follows; 0: it is in here */
    uint32_t zero;
    uint8_t payload[TDM__MPI_INLINE];
} tdm__mpi_envelope;

typedef enum tdm__mpi_state { TDM__MPI_WELL = 0, TDM__MPI_FORGOTTEN } tdm__mpi_state;

typedef struct tdm__mpi_peer {
    tdm__mpi_state state;
    uint32_t next_number;
} tdm__mpi_peer;

typedef enum tdm__mpi_kind { TDM__MPI_SEND, TDM__MPI_TAKE, TDM__MPI_DROP } tdm__mpi_kind;

/* A send, a take, or the reception of what was dropped; it has ended with its last request. */
typedef struct tdm__mpi_operation {
    tdm__mpi_kind kind;
    int peer;
    int requests; /* that have not ended */
    tdm_status status;
    void *cookie;
    void *scratch;               /* DROP: where the bytes go; freed with it */
    tdm__mpi_envelope *envelope; /* SEND */
    struct tdm__mpi_operation *next;
} tdm__mpi_operation;

struct tdm__arrival {
    int peer;
    uint32_t number;
    tdm__head head;
    struct tdm__arrival *previous, *next;
    uint8_t payload[];
};

typedef struct tdm__mpi {
    tdm__transport transport;
    int rank, size;
    uint32_t world;
    tdm__transport_events events;
    MPI_Comm comm;
    bool ours;      /* we have initialised MPI */
    int starved;    /* a peer whose envelope could not be kept for want of memory; -1: none */
    bool peer_lost; /* somebody was forgotten: MPI cannot be ended in good order */
    bool started;   /* the pool awaits envelopes */
    int max_tag;
    int wake_fd;
    bool spins;
    _Atomic uint64_t active_ns;
    tdm__mpi_peer *peers;
    tdm__mpi_envelope pool[TDM__MPI_POOL];
    /* By request: the first TDM__MPI_POOL are the pool's, the others belong to operations. */
    MPI_Request *requests;
    tdm__mpi_operation **owners;
    int *indices; /* MPI_Testsome's answer */
    MPI_Status *statuses;
    int count, capacity;
    tdm__mpi_operation *ended_first, *ended_last;
    tdm__arrival *arrivals_first, *arrivals_last, *unheard;
} tdm__mpi;

/* messages.c */
tdm_status tdm__mpi_start(tdm__mpi *m, tdm_error *err); /* begins to await envelopes */
void tdm__mpi_stop(tdm__mpi *m);                        /* and frees all that is left */
void tdm__mpi_send(tdm__transport *transport, int peer, const tdm__head *head, const void *data,
                   void *cookie);
void tdm__mpi_take(tdm__transport *transport, tdm__arrival *arrival, void *into, void *cookie);
void tdm__mpi_drop(tdm__transport *transport, tdm__arrival *arrival);
void tdm__mpi_forget(tdm__transport *transport, int peer);
int tdm__mpi_progress(tdm__transport *transport);

#endif
