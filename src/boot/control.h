/*
 * control.h: the control connection: how ranks find each other, and how they learn of failures.
 *
 * Every rank has one connection (TCP, or a UNIX socket on one host) to the hub, a thread of rank 0, for the
 * lifetime of the world. Over it ranks join (they prove that they know the job's secret by challenge and
 * response), exchange addresses, send heartbeats with their last action, and learn that a rank has died,
 * left or broken a group. The kernel closes the connection of a dead process, so the hub and then all ranks
 * learn of it at once, whether they communicate with it or not. When the hub dies, each rank sees its own
 * connection end.
 *
 * The engine uses a table of operations, because the simulator (src/sim) implements them as well.
 */
#ifndef TANDEM_BOOT_CONTROL_H
#define TANDEM_BOOT_CONTROL_H

#include "boot/peer_loss.h"
#include "net/cancellation.h"
#include "net/endpoint.h"

#include <tandem/comm.h>

typedef struct tdm__control tdm__control;

typedef enum tdm__news_kind {
    TDM__NEWS_LOST = 1, /* `rank` is dead or cut off; `text`: how that was noticed */
    TDM__NEWS_LEFT,     /* `rank` has closed its comm */
    TDM__NEWS_BROKEN,   /* `rank` broke group `group` (TDM__ALL_GROUPS: all) with status and text */
    TDM__NEWS_CONFIRMED /* the answer to `suspect`: no other reason was reported */
} tdm__news_kind;

#define TDM__ALL_GROUPS UINT32_MAX
#define TDM__MAX_SECONDS 1e8 /* maximum of any wait: three years */

typedef struct tdm__news {
    tdm__news_kind kind;
    int rank;
    uint32_t group;
    tdm_status status;
    const char *text;
    const tdm_peer_loss *loss; /* LOST: how it was noticed; NULL: not known */
} tdm__news;

typedef struct tdm__control_events {
    void *user;
    /* Called by the notifier thread, without a lock held. */
    void (*news)(void *user, const tdm__news *news);
    /* Describes in one line what this rank did last, for the heartbeat. Called by the notifier thread. */
    void (*describe)(void *user, char *out, size_t bytes);
} tdm__control_events;

typedef struct tdm__control_ops {
    /* Starts to call the events. Copies them. */
    void (*listen)(tdm__control *control, const tdm__control_events *events);
    /* All-gather of the bytes of all ranks: collective over the world, within the comm's deadline.
     * `*out_all` has `size` pointers, followed by the blocks (each 16-byte aligned) in the same
     * allocation. The caller frees *out_all and *out_bytes. */
    tdm_status (*exchange)(tdm__control *control, const void *mine, size_t bytes,
                           uint8_t ***out_all, size_t **out_bytes, tdm_error *err);
    /* Tells all other ranks that this rank broke a group. Does not wait; best effort. */
    void (*broken)(tdm__control *control, uint32_t group, tdm_status status, const char *text);
    /* Describes what these ranks did last and when they last sent anything, as "rank 2 (alpha, process
     * 123): ...; rank 5: ...", from their heartbeats. A few other ranks come first: those that are silent,
     * and those that the given ranks wait for. Waits 0.3 s for the answer of a hub that is silent, and at
     * most 3 s for one that sends heartbeats. If the connection is cut, all news that arrived before has
     * been delivered when this returns, unless the control is being closed. */
    void (*report)(tdm__control *control, const int *ranks, int count, char *out, size_t bytes);
    /* Reports to the hub that the connection of the transport to `rank` has ended. Does not wait. The hub
     * decides: if `rank` has died or left, or another rank has ended the world, the news of that comes first.
     * Then, or if no such news arrived for a second, TDM__NEWS_CONFIRMED comes, once for each report; also if
     * the hub has ended. NULL in the simulator. */
    void (*suspect)(tdm__control *control, int rank);
    /* Whether this world has failed: a rank has died, or has revoked it. For waits while the world is
     * opened; cheap. NULL in the simulator. */
    bool (*has_failed)(tdm__control *control, tdm_error *why);
    /* Sends a BYE and frees the control. */
    void (*close)(tdm__control *control);
} tdm__control_ops;

struct tdm__control {
    const tdm__control_ops *ops;
    int rank, size;
    uint32_t world; /* a random number that rank 0 chose for this world */
    uint8_t key[TDM__WORLD_KEY];
    tdm__endpoint here, rank_0;     /* as in tdm__transport_options */
    const char *const *host_names;  /* by rank; NULL in the simulator */
    tdm__cancellation cancellation; /* of exchanges while the world is opened; reset after that */
    const int
        *host_of; /* by rank; hosts are numbered by their lowest rank. NULL in the simulator */
};

/* Completes the options from the environment (environment.c): rank and size, transport, rendezvous, secret,
 * job, deadline, trace, tune; and the defaults of deadline_s, join_s and streams. Without a rank, it is rank 0
 * of 1. Texts are borrowed from `given` and from the environment. */
tdm_status tdm__options_resolve(const tdm_comm_options *given, tdm_comm_options *out,
                                tdm_error *err);

/* Joins the world (boot.c). Events are called only after tdm__control_listen. */
tdm_status tdm__control_open(const tdm_comm_options *options, tdm__control **out, tdm_error *err);
/* While the world is opened: replaces a peer error by the failure that caused it, if that is known. A rank that
 * died explains more than a rank that did not answer. */
static inline void tdm__control_explain(tdm__control *control, tdm_error *error)
{
    tdm_error why;
    if (tdm_status_group_of(error->status) == TDM_STATUS_GROUP_PEER && control->ops->has_failed &&
        control->ops->has_failed(control, &why))
        *error = why;
}
static inline void tdm__control_listen(tdm__control *control, const tdm__control_events *events)
{
    control->ops->listen(control, events);
}

#endif
