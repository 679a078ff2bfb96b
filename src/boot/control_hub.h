/*
 * control_hub.h: structures of the hub, shared by its three files: control_hub.c (the loop and the
 * connections), control_hub_accept.c (admission of connections) and control_hub_members.c (messages from and
 * to members).
 *
 * Invariants:
 *  1. Only the hub's thread uses a hub; other threads only set `should_end` and write to `wake_fd`.
 *  2. A connection that is not a member yet has a few seconds and a small frame limit. All connections that
 *     never became members together have MAX_NON_MEMBERS places (and one for each missing rank); if there are
 *     more, the oldest unproved one is closed.
 *  3. A connection that has ended gets the state OVER and is freed at the end of a turn of the loop, because
 *     events of the turn may still refer to it.
 *  4. All messages to a rank go through its connection, in order: the result of an exchange comes before the
 *     news that a rank left after it.
 */
#ifndef TANDEM_BOOT_CONTROL_HUB_H
#define TANDEM_BOOT_CONTROL_HUB_H

#include "boot/boot.h"

#include <stdatomic.h>

typedef enum tdm__hub_peer_state {
    TDM__HUB_PEER_UNPROVED = 0,
    TDM__HUB_PEER_PROVED, /* it has proved that it knows the secret; its JOIN is missing */
    TDM__HUB_PEER_MEMBER,
    TDM__HUB_PEER_LEAVING, /* gets what is queued; its input is ignored */
    TDM__HUB_PEER_SHUT,    /* everything is sent; the hub waits until the other side closes it */
    TDM__HUB_PEER_OVER     /* to be freed */
} tdm__hub_peer_state;

/* A connection. Its states are drawn in control_hub_accept.c. */
typedef struct tdm__hub_peer {
    tdm__channel channel;
    tdm__hub_peer_state state;
    int rank;       /* of one that is or was a member; -1: never a member */
    bool is_own;    /* the connection of rank 0 itself */
    bool is_silent; /* when the hub ended, it was silent: the hub does not wait for its answer */
    bool writable;  /* registered with epoll for writing */
    double until_s; /* deadline of an unproved or leaving connection */
    uint8_t nonce[TDM__WIRE_NONCE];
    tdm__protection protection;
    char address[96];
    struct tdm__hub_peer *next;
} tdm__hub_peer;

typedef enum tdm__member_state {
    TDM__MEMBER_ABSENT = 0,
    TDM__MEMBER_ENDED_EARLY, /* it joined and ended before the world started; it may join again */
    TDM__MEMBER_HERE,
    TDM__MEMBER_LEFT,
    TDM__MEMBER_LOST
} tdm__member_state;

/* A rank. Its states are drawn in control_hub_members.c. */
typedef struct tdm__member {
    tdm__member_state state;
    tdm__hub_peer *peer; /* HERE */
    uint64_t pid;
    tdm_process_watch process; /* of a rank on this host; set at its first long silence */
    uint8_t host[TDM_SHA256_BYTES];
    char host_name[64];
    double heard_s;            /* when it last sent anything */
    double longest_s;          /* the longest silence so far */
    char text[TDM__WIRE_TEXT]; /* its last heartbeat */
    char end[200];             /* LOST: how that was noticed */
    int waits_for;             /* first rank of its last question; -1: it has not asked */
    uint8_t *block;            /* its bytes in the current exchange */
    size_t block_bytes;
    bool has_block;
} tdm__member;

/* A rank has lost its connection to another one, and waits for the hub's decision. */
typedef struct tdm__suspicion {
    int asker, rank;
    double until_s; /* the latest time of the answer */
    struct tdm__suspicion *next;
} tdm__suspicion;

typedef enum tdm__hub_state {
    TDM__HUB_JOINING = 0,
    TDM__HUB_STARTED, /* all ranks have joined */
    TDM__HUB_GAVE_UP, /* not all ranks have joined in time, or one cannot join any more */
    TDM__HUB_ENDED    /* the BYE is queued for all members */
} tdm__hub_state;

struct tdm__hub {
    tdm__facts facts;
    char key[TDM__MAX_KEY];
    uint32_t world;
    uint8_t nonce[TDM__WIRE_NONCE]; /* the key of the world is derived from it */
    int listen_fd, wake_fd, epoll_fd;
    pthread_t thread;
    atomic_bool should_end; /* set by tdm__hub_destroy */

    tdm__hub_state state;
    double join_until_s, end_until_s, beat_at_s, turn_s;
    double listen_again_s; /* when to accept connections again after a pause; 0: no pause */
    tdm__member *members;  /* by rank */
    int here_count;
    tdm__hub_peer *peers;
    int non_member_count; /* connections that never became members */
    int accepted_count;   /* connections accepted in the current interval, after the start */
    double accepted_until_s;
    bool dirty;     /* output is queued, or a connection is over */
    bool has_input; /* in a TLS buffer: see tdm__channel.has_more */
    bool has_logged_invalid;
    int refused_count; /* refused connections that were logged */
    char refused[256]; /* the last refused connection and the reason; empty: none */
    char fatal[256];   /* why not all ranks will join; empty: they may */
    tdm__suspicion *suspicions;
    uint32_t exchange_number;
    int block_count;
};

/* control_hub.c */
void tdm__hub_send(tdm__hub *hub, tdm__hub_peer *peer, const tdm__frame *frame);
void tdm__hub_send_blob(tdm__hub *hub, tdm__hub_peer *peer, tdm__blob *blob);
/* Sends what is queued for the connection, then closes it. */
void tdm__hub_peer_leave(tdm__hub *hub, tdm__hub_peer *peer);
void tdm__hub_peer_drop(tdm__hub *hub, tdm__hub_peer *peer);

/* control_hub_accept.c */
void tdm__hub_accept(tdm__hub *hub);
/* Adds a connection and sends HELLO. Takes `fd` on success; NULL: out of memory or a system error. */
tdm__hub_peer *tdm__hub_admit(tdm__hub *hub, int fd, const char *address);
/* Handles a frame of a connection that is not a member; tdm__hub_handle_invalid handles input that is not a
 * valid frame. */
void tdm__hub_handle_joining(tdm__hub *hub, tdm__hub_peer *peer, const tdm__frame *frame);
void tdm__hub_handle_invalid(tdm__hub *hub, tdm__hub_peer *peer);
/* Appends "rank 2 is missing, rank 5 is missing". */
void tdm__hub_missing(const tdm__hub *hub, tdm_str *out);
void tdm__hub_start(tdm__hub *hub);

/* control_hub_members.c */
/* Handles a frame of a member. */
void tdm__hub_handle_member(tdm__hub *hub, tdm__hub_peer *peer, const tdm__frame *frame);
/* Marks a member as lost and tells all others. */
void tdm__hub_lost(tdm__hub *hub, int rank, tdm_peer_sign sign, const char *fmt, ...)
    TDM_PRINTF(4, 5);
/* Whether heartbeats of a member are overdue: it may be stopped. */
bool tdm__hub_is_silent(const tdm__hub *hub, int rank, double now_s);
/* Declares members lost that have been silent for too long. */
void tdm__hub_check_silence(tdm__hub *hub, double now_s);
/* Answers the suspicions that are decided. */
void tdm__hub_answer_suspicions(tdm__hub *hub, double now_s);

#endif
