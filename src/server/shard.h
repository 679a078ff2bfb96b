/*
 * shard.h: one shard on one node. Shared by shard.c (roles, log, commits), shard_chain.c (predecessor and successor)
 * and shard_client.c (operations and pulls).
 */
#ifndef TANDEM_SERVER_SHARD_H
#define TANDEM_SERVER_SHARD_H

#include "server/server.h"

/* The log entries that a successor may still need: `first` is the version of the oldest one. */
typedef struct tdm__server_log {
    tdm__blob **entries; /* a ring */
    size_t start, count, capacity;
    uint64_t first;
    size_t bytes;
} tdm__server_log;

/*
 * The connection to the successor, or to the server that joins:
 *
 *      NONE --- a configuration names one ---> ASKED --- LINKED, its state fits ------------> FLOWING
 *                                              |  ^                                            ^
 *                                              |  | no answer for relink_s, connection lost    | all parts
 *                                              |  +------- COPYING and FLOWING as well         | confirmed
 *                                              +-- LINKED, it needs a copy --> COPYING --------+
 */
typedef enum tdm__server_down_state {
    TDM__SERVER_DOWN_NONE = 0,
    TDM__SERVER_DOWN_ASKED,
    TDM__SERVER_DOWN_COPYING,
    TDM__SERVER_DOWN_FLOWING
} tdm__server_down_state;

typedef struct tdm__server_down {
    tdm__server_down_state state;
    uint64_t id, link;
    bool is_joining;
    bool is_kept;  /* joining: it has a copy, or gets one, so that the log after `acked` is kept */
    bool is_ready; /* joining: nothing is committed without it any more */
    uint64_t acked, sent;
    double asked_s, heard_s;
    tdm__blob **parts; /* of a copy */
    size_t part_count, part_sent, part_done;
    uint64_t copy_version;
} tdm__server_down;

typedef struct tdm__server_up {
    uint64_t id, link; /* 0: none */
    bool has_missed;   /* it waits for a new LINK */
    size_t next_part;
} tdm__server_up;

/* A pull that waits for a slower worker; or rows that wait until their version is committed. */
typedef struct tdm__server_waiting {
    struct tdm__server_waiting *next;
    uint64_t client;
    tdm__server_message message;
    uint8_t bytes[];
} tdm__server_waiting;

typedef struct tdm__server_shard {
    tdm__server_node *node;
    uint32_t number;
    tdm__server_chain chain; /* as of the newest configuration */
    bool is_member, is_head, is_tail, is_joining;
    bool is_complete;    /* the state is that of version `applied` */
    uint64_t state_join; /* the join_epoch for which the state was copied */
    void *state;
    tdm__server_registry registry;
    tdm__server_log log;
    uint64_t applied, committed;
    tdm__server_up up;
    tdm__server_down down;
    tdm__server_message early; /* a LINK of a configuration that this node does not have yet */
    uint64_t early_from;       /* 0: none */
    tdm__server_waiting *waiting, *held;
    tdm__blob **round; /* sync, head: pushes of the next round, by worker */
    double noted_s;
} tdm__server_shard;

struct tdm__server_node {
    tdm__server_node_options options;
    tdm__server_config config; /* epoch 0: none yet */
    bool is_entered;           /* the configuration has the lease of this node */
    double valid_s;
    bool has_missed; /* messages, while it was not valid */
    uint64_t link_count;
    tdm__server_shard *shards;
    bool has_failed;
    float *rows; /* scratch of pulls */
    size_t row_capacity;
};

/* node.c */
void tdm__server_node_fail(tdm__server_node *node, const tdm_error *err);
void tdm__server_send(tdm__server_shard *shard, uint64_t to, tdm__server_message message);

/* shard.c */
void tdm__server_shard_release(tdm__server_shard *shard);
void tdm__server_shard_adopt(tdm__server_shard *shard, const tdm__server_chain *chain,
                             double now_s);
/* Applies an operation as the next version and passes it on; takes the blob. False: the node has failed. */
bool tdm__server_shard_append(tdm__server_shard *shard, tdm__blob *op, double now_s);
void tdm__server_shard_commit(tdm__server_shard *shard, double now_s);
void tdm__server_shard_forget_state(tdm__server_shard *shard);
void tdm__server_log_clear(tdm__server_log *log, uint64_t first);
tdm__blob *tdm__server_log_at(const tdm__server_log *log, uint64_t version);

/* shard_chain.c */
void tdm__server_down_begin(tdm__server_shard *shard, double now_s);
void tdm__server_down_clear(tdm__server_shard *shard);
void tdm__server_down_flow(tdm__server_shard *shard);
void tdm__server_down_tick(tdm__server_shard *shard, double now_s);
void tdm__server_up_miss(tdm__server_shard *shard);
void tdm__server_shard_neighbour(tdm__server_shard *shard, uint64_t from,
                                 const tdm__server_message *message, double now_s);

/* shard_client.c */
void tdm__server_shard_op(tdm__server_shard *shard, uint64_t from,
                          const tdm__server_message *message, double now_s);
void tdm__server_shard_pull(tdm__server_shard *shard, uint64_t from,
                            const tdm__server_message *message);
/* Tells the clients of log entry `version`, which is committed. */
void tdm__server_shard_done(tdm__server_shard *shard, uint64_t version);
/* Answers pulls that need not wait any more. */
void tdm__server_shard_serve(tdm__server_shard *shard);
void tdm__server_shard_drop_clients(tdm__server_shard *shard);
void tdm__server_shard_client_tick(tdm__server_shard *shard, double now_s);

#endif
