/*
 * control.h: how ranks find each other, and how news travels when calls do not.
 *
 * Every rank has one connection (TCP, or a UNIX socket on one host) to the hub, a thread in rank 0,
 * for as long as the world lives. Over it ranks join (with the job's secret, by challenge and answer),
 * exchange addresses, send a heartbeat with what they did last, and hear that somebody has died, left
 * or broken a group. The kernel closes a dead process's connection, so the hub knows at once, and so do
 * all others, whether they talk to it or not. When the hub dies, each rank sees its own connection end.
 *
 * The engine sees a table, because the simulator (sim.h) has its own.
 */
#ifndef TANDEM_BOOT_CONTROL_H
#define TANDEM_BOOT_CONTROL_H

#include "net/cancellation.h"
#include "net/endpoint.h"

#include <tandem/comm.h>

typedef struct tdm__control tdm__control;

typedef enum tdm__news_kind {
    TDM__NEWS_LOST = 1, /* `rank` is dead or cut off; `text` says how that was noticed */
    TDM__NEWS_LEFT,     /* `rank` has closed its comm */
    TDM__NEWS_BROKEN    /* `rank` broke group `group` (TDM__ALL_GROUPS: all) with status and text */
} tdm__news_kind;

#define TDM__ALL_GROUPS UINT32_MAX
#define TDM__MAX_SECONDS 1e8 /* of any wait: three years, which every clock can count */

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
    /* From the control thread, never while a call of ours is running on it. */
    void (*news)(void *user, const tdm__news *news);
    /* What this rank did last, in a line, for the heartbeat. From the control thread. */
    void (*describe)(void *user, char *out, size_t bytes);
} tdm__control_events;

typedef struct tdm__control_ops {
    /* From now on the events are called. Copies them. */
    void (*listen)(tdm__control *control, const tdm__control_events *events);
    /* Everybody's bytes to everybody, by rank: collective over the world, within the comm's deadline.
     * `*out_all` has `size` pointers, and the blocks (each 16-byte aligned) behind them in the same
     * piece of memory: free(*out_all) and free(*out_bytes) are the caller's. */
    tdm_status (*exchange)(tdm__control *control, const void *mine, size_t bytes,
                           uint8_t ***out_all, size_t **out_bytes, tdm_error *err);
    /* Tells all others that this rank broke a group. Never blocks for long; best effort. For
     * TDM__ALL_GROUPS it also hurries. */
    void (*broken)(tdm__control *control, uint32_t group, tdm_status status, const char *text);
    /* What these ranks did last and when they were last heard, as "rank 2 (alpha, process 123): ...;
     * rank 5: ...", from their heartbeats; before them, a few others of whom nothing is heard or for
     * whom those in question wait. Waits 0.3 s for the answer of a hub that has fallen silent, and at
     * most 3 s for that of one that beats. Where there is no hub any more, all news that came before
     * its end has been told when this returns, unless this rank hurries. */
    void (*report)(tdm__control *control, const int *ranks, int count, char *out, size_t bytes);
    /* Returns when all has been told that the hub knew when this was called, and whatever its connections
     * said by then; when there is no hub any more, all that it said; or at `until_s` of tdm_clock_s, or when
     * this rank hurries. For one who is about to blame a peer by what it sees itself. NULL in the
     * simulator. */
    void (*catch_up)(tdm__control *control, double until_s);
    /* From any thread: from now on no catch_up waits, also one that does now. For one who ends the world,
     * or its own part in it, and blames nobody any more. NULL in the simulator. */
    void (*hurry)(tdm__control *control);
    /* Whether this world cannot come to anything any more: a rank has died, or has revoked it. For waits
     * while it is opened; cheap. NULL in the simulator. */
    bool (*has_failed)(tdm__control *control, tdm_error *why);
    /* Says good-bye and frees it. */
    void (*close)(tdm__control *control);
} tdm__control_ops;

struct tdm__control {
    const tdm__control_ops *ops;
    int rank, size;
    uint32_t world; /* the number drawn for this world by rank 0 */
    uint8_t key[TDM__WORLD_KEY];
    tdm__endpoint here, rank_0;    /* as in tdm__transport_options */
    const char *const *host_names; /* by rank; NULL: the simulator's */
    tdm__cancellation
        cancellation; /* of exchanges while the world is opened; set back when it is */
    const int
        *host_of; /* by rank; hosts are numbered by their lowest rank. NULL: the simulator's */
};

/* What the environment says where the options say nothing (environment.c): place, transport,
 * rendezvous, secret, job, deadline, trace, tune; and the defaults of deadline_s, join_s and streams.
 * Without any place it is rank 0 of 1. Texts are borrowed from `given` and from the environment. */
tdm_status tdm__options_resolve(const tdm_comm_options *given, tdm_comm_options *out,
                                tdm_error *err);

/* Joins by options and environment (boot.c). The events begin only after tdm__control_listen. */
tdm_status tdm__control_open(const tdm_comm_options *options, tdm__control **out, tdm_error *err);
/* Who has died, where that is known, says more than who did not answer: of an error while the world is
 * opened. */
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
