/*
 * control_hub.h: the hub's own structures, shared by its three files: control_hub.c (the loop and the
 * connections), hub_door (control_hub_accept.c: who comes in), and control_hub_members.c (what members
 * say, and what they are told).
 *
 * Invariants:
 *  1. One thread touches a hub; others only set `ending` and write to `wake_fd`.
 *  2. A connection is a stranger's until its proof is right and its facts fit; a stranger has a few
 *     seconds and small frames. Strangers, and those who were turned away and are about to close, have
 *     GUESTS_MOST places (and one for each missing rank): of more the oldest goes.
 *  3. A connection that is over is marked `over` and freed at the end of a turn of the loop, never
 *     while events of the turn may still name it.
 *  4. Everything that a rank is told goes through its own connection, in order: the result of an
 *     exchange before the news that somebody left after it.
 */
#ifndef TANDEM_BOOT_CONTROL_HUB_H
#define TANDEM_BOOT_CONTROL_HUB_H

#include "boot/boot.h"

#include <stdatomic.h>

typedef enum tdm__hub_peer_state {
    TDM__HUB_PEER_UNPROVED = 0,
    TDM__HUB_PEER_MEMBER,
    TDM__HUB_PEER_LEAVING /* gets what is queued, then the end; what it says is not heard */
} tdm__hub_peer_state;

/* A connection. */
typedef struct tdm__hub_peer {
    tdm__channel channel;
    tdm__hub_peer_state state;
    bool inner; /* rank 0's own */
    bool
        is_guest; /* it has not become a member: at most GUESTS_MOST (and the missing ranks) have a place */
    bool shut;      /* our side has said all */
    bool over;      /* to be freed */
    bool dumb;      /* at the end: it was silent, and its answer is not waited for */
    bool writable;  /* we asked to be told when it can be written to */
    int rank;       /* of a member */
    double until_s; /* of strangers and leaving ones */
    uint8_t nonce[TDM__WIRE_NONCE];
    tdm__protection protection;
    bool proved; /* it knows the secret */
    char address[96];
    struct tdm__hub_peer *next;
} tdm__hub_peer;

typedef enum tdm__member_state {
    TDM__MEMBER_ABSENT = 0,
    TDM__MEMBER_HERE,
    TDM__MEMBER_LEFT,
    TDM__MEMBER_LOST
} tdm__member_state;

/* A rank. */
typedef struct tdm__member {
    tdm__member_state state;
    tdm__hub_peer *caller; /* HERE */
    uint64_t pid;
    tdm_process_watch process; /* of a rank of this host; begun at its first long silence */
    uint8_t host[TDM_SHA256_BYTES];
    char host_name[64];
    bool came_and_went;        /* before the world began */
    double heard_s;            /* when anything came from it */
    double longest_s;          /* the longest silence so far */
    char text[TDM__WIRE_TEXT]; /* its last heartbeat */
    char end[200];             /* LOST: how */
    int waits_for;             /* the first rank that it asked about last; -1: it has not asked */
    uint8_t *block;            /* its bytes in the exchange that is going on */
    size_t block_bytes;
    bool has_block;
} tdm__member;

struct tdm__hub {
    tdm__facts facts;
    char key[TDM__MAX_KEY];
    uint32_t world;
    uint8_t nonce[TDM__WIRE_NONCE]; /* that the world's key is derived from */
    int listen_fd, wake_fd, epoll_fd;
    pthread_t thread;
    atomic_bool ending;

    bool started; /* all have come */
    bool doomed;  /* not all will come: `refused` says why */
    bool ended;   /* the end has been said */
    double join_until_s, end_until_s, beat_at_s, turn_s;
    double listen_again_s; /* when to accept again after the door was closed; 0: now */
    tdm__member *members;  /* by rank */
    int here_count;
    tdm__hub_peer *callers;
    int guest_count;
    int door_count; /* connections that came since door_until_s - PAUSE_S */
    double door_until_s;
    bool dirty;     /* something is queued, or somebody is over */
    bool has_input; /* in a buffer of TLS: see tdm__channel.has_more */
    bool told_of_garbage;
    int told_of_refused;
    char refused[256]; /* the last one that was not let in, and why; empty: none */
    uint32_t exchange_number;
    int block_count;
};

/* control_hub.c */
void tdm__hub_send(tdm__hub *hub, tdm__hub_peer *caller, const tdm__frame *frame);
void tdm__hub_send_blob(tdm__hub *hub, tdm__hub_peer *caller, tdm__blob *blob);
/* Lets it have what is queued for it, and then the end. */
void tdm__hub_let_go(tdm__hub *hub, tdm__hub_peer *caller);
void tdm__hub_drop(tdm__hub *hub, tdm__hub_peer *caller);

/* control_hub_accept.c */
void tdm__hub_accept(tdm__hub *hub);
/* Says hello to a connection (fd is taken); NULL when that cannot be. */
tdm__hub_peer *tdm__hub_admit(tdm__hub *hub, int fd, const char *address);
/* What a stranger said; `garbage` when it was no frame. */
void tdm__hub_serve_unproved(tdm__hub *hub, tdm__hub_peer *caller, const tdm__frame *frame);
void tdm__hub_garbage(tdm__hub *hub, tdm__hub_peer *caller);
/* "rank 2 and rank 5" have not come. */
void tdm__hub_missing(const tdm__hub *hub, tdm_str *out);
void tdm__hub_start(tdm__hub *hub);

/* control_hub_members.c */
void tdm__hub_member(tdm__hub *hub, tdm__hub_peer *caller, const tdm__frame *frame);
/* A member is dead: tells all others. */
void tdm__hub_lost(tdm__hub *hub, int rank, tdm_peer_sign sign, const char *fmt, ...)
    TDM_PRINTF(4, 5);
/* Whether heartbeats of a member have not come: it may be stopped. */
bool tdm__hub_is_silent(const tdm__hub *hub, int rank, double now_s);
/* Looks for members that have been silent for too long. */
void tdm__hub_listen_for_silence(tdm__hub *hub, double now_s);

#endif
