/*
 * control_hub.h: structures of the hub, shared by its three files: control_hub.c (the loop and the
 * connections), control_hub_accept.c (admission of connections) and control_hub_members.c (messages from and
 * to members).
 *
 * Invariants:
 *  1. Only the hub's thread uses a hub; other threads only set `ending` and write to `wake_fd`.
 *  2. A connection is unproved until its proof is right and its JOIN is accepted; an unproved connection has
 *     a few seconds and a small frame limit. Unproved and refused connections together have MAX_GUESTS places
 *     (and one for each missing rank); if there are more, the oldest unproved one is closed.
 *  3. A connection that has ended is marked `over` and freed at the end of a turn of the loop, because events
 *     of the turn may still refer to it.
 *  4. All messages to a rank go through its connection, in order: the result of an exchange comes before the
 *     news that a rank left after it.
 */
#ifndef TANDEM_BOOT_CONTROL_HUB_H
#define TANDEM_BOOT_CONTROL_HUB_H

#include "boot/boot.h"

#include <stdatomic.h>

typedef enum tdm__hub_peer_state {
    TDM__HUB_PEER_UNPROVED = 0,
    TDM__HUB_PEER_MEMBER,
    TDM__HUB_PEER_LEAVING /* gets what is queued, then is closed; its input is ignored */
} tdm__hub_peer_state;

/* A connection. Its states are drawn in control_hub_accept.c. */
typedef struct tdm__hub_peer {
    tdm__channel channel;
    tdm__hub_peer_state state;
    bool inner;     /* of rank 0 */
    bool is_guest;  /* it has not become a member: see MAX_GUESTS */
    bool shut;      /* the hub has sent everything and shut its side down */
    bool over;      /* to be freed */
    bool dumb;      /* at the end: it was silent, so the hub does not wait for its answer */
    bool writable;  /* registered with epoll for writing */
    int rank;       /* of a member */
    double until_s; /* deadline of an unproved or leaving connection */
    uint8_t nonce[TDM__WIRE_NONCE];
    tdm__protection protection;
    bool proved; /* it has proved that it knows the secret */
    char address[96];
    struct tdm__hub_peer *next;
} tdm__hub_peer;

typedef enum tdm__member_state {
    TDM__MEMBER_ABSENT = 0,
    TDM__MEMBER_HERE,
    TDM__MEMBER_LEFT,
    TDM__MEMBER_LOST
} tdm__member_state;

/* A rank. Its states are drawn in control_hub_members.c. */
typedef struct tdm__member {
    tdm__member_state state;
    tdm__hub_peer *caller; /* HERE */
    uint64_t pid;
    tdm_process_watch process; /* of a rank on this host; set at its first long silence */
    uint8_t host[TDM_SHA256_BYTES];
    char host_name[64];
    bool came_and_went;        /* it joined and ended before the world started */
    double heard_s;            /* when it last sent anything */
    double longest_s;          /* the longest silence so far */
    char text[TDM__WIRE_TEXT]; /* its last heartbeat */
    char end[200];             /* LOST: how that was noticed */
    int waits_for;             /* first rank of its last question; -1: it has not asked */
    uint8_t *block;            /* its bytes in the current exchange */
    size_t block_bytes;
    bool has_block;
} tdm__member;

struct tdm__hub {
    tdm__facts facts;
    char key[TDM__MAX_KEY];
    uint32_t world;
    uint8_t nonce[TDM__WIRE_NONCE]; /* the key of the world is derived from it */
    int listen_fd, wake_fd, epoll_fd;
    pthread_t thread;
    atomic_bool ending;

    bool started; /* all ranks have joined */
    bool doomed;  /* not all ranks will join; reason in `refused` */
    bool ended;   /* the BYE is queued for all members */
    double join_until_s, end_until_s, beat_at_s, turn_s;
    double listen_again_s; /* when to accept connections again after a pause; 0: no pause */
    tdm__member *members;  /* by rank */
    int here_count;
    tdm__hub_peer *callers;
    int guest_count;
    int door_count; /* connections accepted since door_until_s - PAUSE_S */
    double door_until_s;
    bool dirty;     /* output is queued, or a connection is over */
    bool has_input; /* in a TLS buffer: see tdm__channel.has_more */
    bool told_of_garbage;
    int told_of_refused;
    char refused[256]; /* the last refused connection and the reason; empty: none */
    uint32_t exchange_number;
    int block_count;
};

/* control_hub.c */
void tdm__hub_send(tdm__hub *hub, tdm__hub_peer *caller, const tdm__frame *frame);
void tdm__hub_send_blob(tdm__hub *hub, tdm__hub_peer *caller, tdm__blob *blob);
/* Sends what is queued for the connection, then closes it. */
void tdm__hub_let_go(tdm__hub *hub, tdm__hub_peer *caller);
void tdm__hub_drop(tdm__hub *hub, tdm__hub_peer *caller);

/* control_hub_accept.c */
void tdm__hub_accept(tdm__hub *hub);
/* Adds a connection and sends HELLO. Takes `fd` on success; NULL: out of memory or a system error. */
tdm__hub_peer *tdm__hub_admit(tdm__hub *hub, int fd, const char *address);
/* Handles a frame of an unproved connection; tdm__hub_garbage handles input that is not a valid frame. */
void tdm__hub_serve_unproved(tdm__hub *hub, tdm__hub_peer *caller, const tdm__frame *frame);
void tdm__hub_garbage(tdm__hub *hub, tdm__hub_peer *caller);
/* Appends "rank 2 is missing, rank 5 is missing". */
void tdm__hub_missing(const tdm__hub *hub, tdm_str *out);
void tdm__hub_start(tdm__hub *hub);

/* control_hub_members.c */
void tdm__hub_member(tdm__hub *hub, tdm__hub_peer *caller, const tdm__frame *frame);
/* Marks a member as lost and tells all others. */
void tdm__hub_lost(tdm__hub *hub, int rank, tdm_peer_sign sign, const char *fmt, ...)
    TDM_PRINTF(4, 5);
/* Whether heartbeats of a member are overdue: it may be stopped. */
bool tdm__hub_is_silent(const tdm__hub *hub, int rank, double now_s);
/* Declares members lost that have been silent for too long. */
void tdm__hub_listen_for_silence(tdm__hub *hub, double now_s);

#endif
