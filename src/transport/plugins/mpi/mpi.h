/*
 * mpi.h: shared declarations of the MPI transport.
 *
 * A message is an envelope (a head and a number) that includes payloads of up to a few KB; a larger
 * payload follows separately, with a tag derived from the number, and is received when the engine
 * takes it, directly into its buffer. A pool of persistent receives waits for envelopes; everything
 * in progress is one flat array of MPI requests for MPI_Testsome.
 *
 * One thread at a time uses MPI, under the engine's lock: MPI_THREAD_SERIALIZED is enough.
 */
#ifndef TANDEM_TRANSPORT_PLUGINS_MPI_MPI_H
#define TANDEM_TRANSPORT_PLUGINS_MPI_MPI_H

#include "transport/transport.h"

#include <mpi.h>
#include <stdatomic.h>

enum {
    TDM__MPI_INLINE = 8192,  /* payload bytes included in an envelope */
    TDM__MPI_POOL = 32,      /* envelopes that can arrive between two calls of progress */
    TDM__MPI_TAG = 1,        /* of envelopes; the tags above it are for payloads */
    TDM__MPI_PIECE = 1 << 30 /* MPI counts in ints: larger payloads are sent in pieces */
};

typedef struct tdm__mpi_envelope {
    tdm__head head;
    uint32_t number; /* of the payload that follows; 0: included */
    uint32_t zero;
    uint8_t payload[TDM__MPI_INLINE];
} tdm__mpi_envelope;

typedef enum tdm__mpi_state { TDM__MPI_WELL = 0, TDM__MPI_FORGOTTEN } tdm__mpi_state;

typedef struct tdm__mpi_peer {
    tdm__mpi_state state;
    uint32_t next_number;
} tdm__mpi_peer;

typedef enum tdm__mpi_kind { TDM__MPI_SEND, TDM__MPI_TAKE, TDM__MPI_DROP } tdm__mpi_kind;

/* A send, a take, or the reception of a dropped payload; it ends with its last request. */
typedef struct tdm__mpi_operation {
    tdm__mpi_kind kind;
    int peer;
    int requests; /* requests that have not ended */
    tdm_status status;
    void *cookie;
    void *scratch;               /* DROP: buffer for the bytes; owned */
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
    bool ours;      /* this transport initialised MPI */
    int starved;    /* a peer whose envelope was dropped for lack of memory; -1: none */
    bool peer_lost; /* a peer was forgotten: MPI cannot be finalised */
    bool started;   /* the receives of the pool are active */
    int max_tag;
    int wake_fd;
    bool spins;
    _Atomic uint64_t active_ns;
    tdm__mpi_peer *peers;
    tdm__mpi_envelope pool[TDM__MPI_POOL];
    /* Parallel arrays: the first TDM__MPI_POOL requests are the pool's, the others belong to
     * operations. */
    MPI_Request *requests;
    tdm__mpi_operation **owners;
    int *indices; /* result of MPI_Testsome */
    MPI_Status *statuses;
    int count, capacity;
    tdm__mpi_operation *ended_first, *ended_last;
    tdm__arrival *arrivals_first, *arrivals_last, *unheard;
} tdm__mpi;

/* messages.c */
tdm_status tdm__mpi_start(tdm__mpi *m, tdm_error *err); /* starts the receives of the pool */
void tdm__mpi_stop(tdm__mpi *m);                        /* stops them and frees what is left */
void tdm__mpi_send(tdm__transport *transport, int peer, const tdm__head *head, const void *data,
                   void *cookie);
void tdm__mpi_take(tdm__transport *transport, tdm__arrival *arrival, void *into, void *cookie);
void tdm__mpi_drop(tdm__transport *transport, tdm__arrival *arrival);
void tdm__mpi_forget(tdm__transport *transport, int peer);
int tdm__mpi_progress(tdm__transport *transport);

#endif
