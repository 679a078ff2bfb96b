/*
 * server.h: the protocol of the parameter server, as pure state machines.
 *
 * A group of servers holds sparse tables that are divided into shards by the hash of the key. Each shard is
 * replicated by a chain of servers: updates enter at the head and are passed on in order; an update that the tail
 * has applied is committed, and the head acknowledges it. The tail answers pulls. The configuration (config.c) says
 * which servers form which chain. It is one value in the store, changed by compare-and-swap only.
 *
 * A node is the replica side of one process (node.c, shard.c), a caller is the client side (caller.c). Neither
 * waits, reads a clock or uses a socket: messages, configurations and the time come in by calls, and messages go out
 * by callbacks. So the processes (process.c, client.c) and the simulator of the tests run the same code.
 *
 * Invariants:
 *  1. What a member of a chain has applied contains what its successor has applied, in the same order.
 *  2. Only a node with a valid lease, whose own entry in its newest configuration has that lease, does anything.
 *     A configuration removes a server from a chain only if this lease has ended.
 *  3. Versions of a shard count its log entries from 1. A client's operations are numbered from 1 for each shard;
 *     the registry of the shard, which is replicated, has the last number that was applied.
 *  4. The pages of a state are a function of its log, so replicas with the same version have the same bits.
 */
#ifndef TANDEM_SERVER_SERVER_H
#define TANDEM_SERVER_SERVER_H

#include "boot/control_channel.h"

#include <tandem/server.h>

enum {
    TDM__SERVER_MAX_SERVERS = 64,
    TDM__SERVER_MAX_CHAIN = TDM_SERVER_MAX_REPLICATION +
                            1, /* one more while a member is replaced */
    TDM__SERVER_ADDRESS_BYTES = 96,
    TDM__SERVER_MAX_CLIENTS = 4096,   /* of a shard, those that left in the last hour included */
    TDM__SERVER_MAX_OP = 48 << 20,    /* bytes of an operation */
    TDM__SERVER_COPY_BYTES = 1 << 20, /* of a part of a copy */
    TDM__SERVER_COPY_WINDOW = 4       /* parts that are sent before the first is confirmed */
};
/* A tail keeps at most this much for a server that joins; beyond it, commits wait for that server. */
#define TDM__SERVER_MAX_KEPT ((size_t)256 << 20)

/* ---- configuration (config.c) ------------------------------------------------------------------ */

typedef struct tdm__server_entry {
    uint64_t id;    /* random; a process that is started again has another one */
    uint64_t lease; /* with which it is in force; 0: it was expelled */
    bool is_leaving;
    char address[TDM__SERVER_ADDRESS_BYTES];
} tdm__server_entry;

typedef struct tdm__server_chain {
    uint64_t epoch; /* counts the changes of this chain; 0: it has never had members */
    uint32_t member_count;
    uint64_t members[TDM__SERVER_MAX_CHAIN]; /* from head to tail */
    uint64_t joining;                        /* is copied to, after the tail; 0: none */
    uint64_t join_epoch;                     /* the epoch of the configuration that added it */
} tdm__server_chain;

typedef struct tdm__server_config {
    uint64_t epoch;
    tdm_server_group group;
    uint32_t server_count;
    tdm__server_entry servers[TDM__SERVER_MAX_SERVERS];
    tdm__server_chain chains[TDM_SERVER_MAX_SHARDS]; /* group.shards of them */
} tdm__server_config;

/* Copies what is used. */
void tdm__server_config_copy(tdm__server_config *to, const tdm__server_config *from);
const tdm__server_entry *tdm__server_config_find(const tdm__server_config *config, uint64_t id);
void tdm__server_config_write(const tdm__server_config *config, tdm_str *out);
/* TDM_ERR_FORMAT with what is wrong; the value comes from the store, so nothing in it is trusted. */
tdm_status tdm__server_config_read(const char *text, tdm__server_config *out, tdm_error *err);
/* TDM_ERR_INVALID with the setting, its value and what is allowed. Fills in defaults. */
tdm_status tdm__server_group_check(tdm_server_group *group, tdm_error *err);
/* TDM_ERR_PEER_MISMATCH with the first setting that differs. */
tdm_status tdm__server_group_match(const tdm_server_group *group, const tdm_server_group *mine,
                                   tdm_error *err);

/* A record of the store: a server with a lease that has not expired. */
typedef struct tdm__server_record {
    uint64_t id, lease;
} tdm__server_record;

/* What a server wants from the next configuration. */
typedef struct tdm__server_claim {
    uint32_t shard;
    uint64_t epoch, joining; /* of the chain: this server has everything that the chain committed */
} tdm__server_claim;

typedef struct tdm__server_request {
    tdm__server_entry self;
    const tdm__server_claim *claims;
    size_t claim_count;
    uint64_t accused; /* a server that does not answer this one: it is expelled; 0: none */
    bool returns;     /* this server was expelled, and the others had time to remove it */
    /* Servers that were expelled so long ago that they know it. */
    const uint64_t *gone;
    size_t gone_count;
} tdm__server_request;

/* The next configuration, as a function of the current one, the records and the request. False: nothing changes. */
bool tdm__server_plan(const tdm__server_config *config, const tdm__server_record *records,
                      size_t record_count, const tdm__server_request *request,
                      tdm__server_config *next);

/* What a server knows between two looks at the store (agent.c). */
typedef struct tdm__server_agent {
    tdm__server_entry self;
    double lease_s;
    tdm__server_claim claims[TDM_SERVER_MAX_SHARDS]; /* by shard; epoch 0: none */
    uint64_t accused;
    struct {
        uint64_t id;
        double seen_s;
    } expelled[TDM__SERVER_MAX_SERVERS];
    size_t expelled_count;
} tdm__server_agent;

void tdm__server_agent_claim(tdm__server_agent *agent, const tdm__server_claim *claim);
/* tdm__server_plan with what this server knows; claims and the accusation are used up. */
bool tdm__server_agent_plan(tdm__server_agent *agent, const tdm__server_config *config,
                            const tdm__server_record *records, size_t record_count, double now_s,
                            tdm__server_config *next);

/* ---- messages and operations (wire.c) ---------------------------------------------------------- */

typedef enum tdm__server_kind {
    TDM__SERVER_OP = 1, /* client to head: an operation; `request` is its number */
    TDM__SERVER_DONE,   /* head to client: all operations up to `request` are committed */
    TDM__SERVER_PULL,   /* client to tail: keys; `clock` and `version`: what it must contain */
    TDM__SERVER_ROWS,   /* tail to client: rows of the pull `request`, at `version` */
    TDM__SERVER_NOTE,   /* server to client: why `request` waits or fails; `bytes` is a text */
    TDM__SERVER_LINK,   /* predecessor to successor: begins to pass on updates */
    TDM__SERVER_LINKED, /* its answer: `version` is applied; `flag`: the state is complete */
    TDM__SERVER_UPDATE, /* predecessor to successor: log entry `version` */
    TDM__SERVER_ACK,    /* successor to predecessor: everything up to `version` is committed */
    TDM__SERVER_COPY,   /* tail to joining server: part `request` of a copy; `flag`: the last one */
    TDM__SERVER_COPIED, /* its answer: part `request` is loaded */
    TDM__SERVER_MISS,   /* successor to predecessor: an update was lost; it should begin again */
    TDM__SERVER_NAME,   /* first message of a connection: `client` is the id of the sender */
    TDM__SERVER_KINDS
} tdm__server_kind;

typedef struct tdm__server_message {
    uint8_t kind;
    bool flag;
    uint16_t status;
    uint32_t shard;
    uint64_t epoch;   /* of the chain; DONE: the version at which they are committed */
    uint64_t link;    /* of the two neighbours; DONE: number of failed operations of the client */
    uint64_t version; /* DONE: the number of the last failed operation */
    uint64_t client, request, clock;
    const uint8_t *bytes; /* borrowed */
    size_t byte_count;
} tdm__server_message;

enum { TDM__SERVER_HEAD = 56 };
void tdm__server_message_write(const tdm__server_message *message, uint8_t head[TDM__SERVER_HEAD]);
/* False: the bytes are not a message. */
bool tdm__server_message_read(const uint8_t *bytes, size_t count, tdm__server_message *out);

typedef enum tdm__server_op_kind {
    TDM__SERVER_OP_PUSH = 1,
    TDM__SERVER_OP_ROUND,  /* the pushes of all workers of a round, in the order of the workers */
    TDM__SERVER_OP_JOIN,   /* a client begins; `worker` is -1 for one that only pulls */
    TDM__SERVER_OP_LEAVE,  /* a client ends, or is lost */
    TDM__SERVER_OP_FORGET, /* removes a client that left long ago from the registry */
    TDM__SERVER_OP_NOTHING /* a push that failed or came too late: only its number counts */
} tdm__server_op_kind;

/*
 * An operation: a head, then for ROUND `part_count` parts, then the keys, then the gradients [count, width].
 * In memory as on the wire (little-endian), aligned to 8 bytes.
 */
typedef struct tdm__server_op {
    uint32_t kind;
    int32_t worker;
    uint64_t client, number;
    uint64_t
        clock; /* PUSH and ROUND: the number of the worker's round, from 1; JOIN: when the client began */
    double lr;
    uint32_t count, part_count;
    uint32_t status; /* NOTHING: why the push failed; 0: it came too late */
    uint32_t unused;
} tdm__server_op;

typedef struct tdm__server_part {
    uint64_t client, number;
    int32_t worker;
    uint32_t count;
} tdm__server_part;

/* A parsed operation; borrowed from its bytes. */
typedef struct tdm__server_op_view {
    tdm__server_op head;
    const tdm__server_part *parts;
    const uint64_t *keys;
    const float *grads;
} tdm__server_op_view;

size_t tdm__server_op_bytes(const tdm__server_op *head, uint32_t width);
/* A blob for the operation, with its head; parts, keys and gradients are for the caller to write. NULL: no
 * memory. */
tdm__blob *tdm__server_op_make(const tdm__server_op *head, uint32_t width,
                               tdm__server_op_view *out);
/* False: the bytes are not an operation. They must be aligned to 8 bytes. */
bool tdm__server_op_read(const uint8_t *bytes, size_t count, uint32_t width,
                         tdm__server_op_view *out);

/* The shard of a key. Part of the format of a group: it must not change. */
uint32_t tdm__server_shard_of(uint64_t key, uint32_t shard_count);

/* ---- the state of a shard ------------------------------------------------------------------------ */

/* What a shard stores; a table (state.c), or a model of one in the simulator. */
typedef struct tdm__server_state_ops {
    void *(*create)(void *user, const tdm_server_group *group, uint32_t shard, tdm_error *err);
    void (*destroy)(void *state);
    /* Whether a push can be applied. Called by the head only, with what all replicas have. */
    tdm_status (*check)(void *state, const tdm__server_op_view *op, tdm_error *err);
    tdm_status (*apply)(void *state, const tdm__server_op_view *op, uint64_t version,
                        tdm_error *err);
    tdm_status (*pull)(void *state, const uint64_t *keys, uint32_t count, float *out);
    /* The whole state as parts, each a blob. The caller releases them and frees the array. */
    tdm_status (*save)(void *state, tdm__blob ***out, size_t *out_count, tdm_error *err);
    tdm_status (*load)(void *state, const uint8_t *bytes, size_t count, tdm_error *err);
} tdm__server_state_ops;

extern const tdm__server_state_ops tdm__server_table_state; /* state.c */

/* ---- registry of clients (registry.c) ------------------------------------------------------------ */

typedef enum tdm__server_left {
    TDM__SERVER_HERE = 0,
    TDM__SERVER_LOST, /* without a connection for some time; it may come back */
    TDM__SERVER_LEFT  /* for good, or another client has taken its place */
} tdm__server_left;

typedef struct tdm__server_client {
    uint64_t id, number, version; /* last operation, and the log entry that has it */
    uint64_t clock, began;
    uint64_t failed_count, failed_number;
    uint32_t failed_status;
    int32_t worker;
    uint32_t left; /* a tdm__server_left */
    uint32_t unused;
} tdm__server_client;

typedef struct tdm__server_registry {
    tdm__server_client *clients; /* by id */
    double *lost_s; /* of the head: when it noticed that a client is gone; 0: it is not */
    size_t count, capacity;
    uint64_t round;     /* sync: the last applied one */
    uint64_t top_clock; /* the highest clock of all workers so far */
} tdm__server_registry;

void tdm__server_registry_release(tdm__server_registry *registry);
tdm__server_client *tdm__server_registry_find(const tdm__server_registry *registry, uint64_t id);
/* Applies an operation at `version`. False: out of memory. */
bool tdm__server_registry_apply(tdm__server_registry *registry, int mode,
                                const tdm__server_op_view *op, uint64_t version);
/* The lowest clock of active workers but one, and that worker; `otherwise` and -1 if there is none. */
uint64_t tdm__server_registry_clock(const tdm__server_registry *registry, uint64_t except,
                                    uint64_t otherwise, int32_t *out_worker);
tdm__blob *tdm__server_registry_save(const tdm__server_registry *registry);
bool tdm__server_registry_load(tdm__server_registry *registry, const uint8_t *bytes, size_t count);

/* ---- node (node.c, shard.c, shard_chain.c, shard_client.c) ---------------------------------------- */

typedef struct tdm__server_node tdm__server_node;

/* Tests break the protocol in one place, to prove that their checker notices. */
typedef enum tdm__server_mutation {
    TDM__SERVER_MUTATION_NONE = 0,
    TDM__SERVER_MUTATION_ACK_EARLY, /* the head acknowledges what it has applied alone */
    TDM__SERVER_MUTATION_NO_DEDUP,  /* a repeated operation is applied again */
    TDM__SERVER_MUTATION_NO_LEASE,  /* a node answers without a valid lease */
    TDM__SERVER_MUTATION_NO_RESEND, /* a new successor does not get what the last one had not confirmed */
    TDM__SERVER_MUTATION_SKIP_COPY, /* a joining server is made a member before it has everything */
    TDM__SERVER_MUTATION_COUNT
} tdm__server_mutation;

typedef struct tdm__server_node_options {
    uint64_t id;
    const tdm__server_state_ops *state;
    void *state_user;
    double relink_s; /* without an answer of its successor, a node begins again after this time */
    double accuse_s; /* and asks to expel it after this time */
    double worker_s; /* a worker without a connection is lost after this time */
    double forget_s; /* a client that left is removed from the registry */
    tdm__server_mutation mutation;
    void *user;
    /* Sends a message; it may be lost. The message and its bytes are borrowed. */
    void (*send)(void *user, uint64_t to, const tdm__server_message *message);
    /* The server that joins has everything: the configuration should make it a member. */
    void (*claim)(void *user, const tdm__server_claim *claim);
    void (*accuse)(void *user, uint64_t server, uint32_t shard);
    /* The node cannot apply what its predecessor has applied: it must end. */
    void (*failed)(void *user, const tdm_error *err);
    bool (*is_connected)(void *user, uint64_t client);
} tdm__server_node_options;

tdm__server_node *tdm__server_node_create(const tdm__server_node_options *options);
void tdm__server_node_destroy(tdm__server_node *node);
/* A configuration that was read after the lease had been renewed: until `valid_s` no other server takes the place of
 * this one. An older configuration than the last one is ignored. */
void tdm__server_node_config(tdm__server_node *node, const tdm__server_config *config,
                             uint64_t lease, double valid_s, double now_s);
void tdm__server_node_message(tdm__server_node *node, uint64_t from,
                              const tdm__server_message *message, double now_s);
/* The connection to another server was lost and may have lost messages. */
void tdm__server_node_lost(tdm__server_node *node, uint64_t server, double now_s);
void tdm__server_node_tick(tdm__server_node *node, double now_s);
bool tdm__server_node_is_valid(const tdm__server_node *node, double now_s);
/* For tests and status: what a shard has; NULL if the node does not have it. */
typedef struct tdm__server_shard_info {
    bool is_member, is_complete;
    uint64_t epoch, applied, committed;
    void *state;
    const tdm__server_registry *registry;
} tdm__server_shard_info;
bool tdm__server_node_shard(const tdm__server_node *node, uint32_t shard,
                            tdm__server_shard_info *out);

/* ---- caller (caller.c) --------------------------------------------------------------------------- */

typedef struct tdm__server_caller tdm__server_caller;

typedef struct tdm__server_caller_options {
    uint64_t id;
    int32_t worker;
    uint64_t began;  /* of several clients of one worker, the highest counts */
    double resend_s; /* without an answer, a request is sent again after this time */
    void *user;
    void (*send)(void *user, uint64_t to, const tdm__server_message *message);
    /* The answer to a pull; valid during the call. */
    void (*rows)(void *user, const tdm__server_message *message);
    /* All operations of a shard up to `number` are committed. May be NULL. */
    void (*done)(void *user, uint32_t shard, uint64_t number);
} tdm__server_caller_options;

tdm__server_caller *tdm__server_caller_create(const tdm__server_caller_options *options,
                                              const tdm__server_config *config);
void tdm__server_caller_destroy(tdm__server_caller *caller);
void tdm__server_caller_config(tdm__server_caller *caller, const tdm__server_config *config,
                               double now_s);
/* Adds an operation without `client` and `number`, which are filled in; takes one user of the blob. Returns its
 * number; 0: out of memory. */
uint64_t tdm__server_caller_add(tdm__server_caller *caller, uint32_t shard, tdm__blob *op,
                                double now_s);
/* Asks for rows; there is at most one pull of a shard at a time. `request` identifies the answer. */
bool tdm__server_caller_pull(tdm__server_caller *caller, uint32_t shard, uint64_t clock,
                             const uint64_t *keys, uint32_t count, double now_s);
/* Ends a pull without an answer. */
void tdm__server_caller_forget(tdm__server_caller *caller, uint32_t shard);
void tdm__server_caller_message(tdm__server_caller *caller, uint64_t from,
                                const tdm__server_message *message, double now_s);
void tdm__server_caller_lost(tdm__server_caller *caller, uint64_t server, double now_s);
void tdm__server_caller_tick(tdm__server_caller *caller, double now_s);

typedef struct tdm__server_caller_shard {
    uint64_t added, done; /* numbers of operations */
    uint64_t version;     /* the newest that an answer had */
    uint64_t clock;       /* of the server when it admitted the client */
    uint64_t failed_count, failed_number;
    uint32_t failed_status;
    bool is_pulling;
    uint64_t waits_for; /* the server that was asked last; 0: none can be asked */
    char note[256];     /* the last NOTE of a server; empty: none */
    size_t waiting_bytes;
} tdm__server_caller_shard;
void tdm__server_caller_clear_note(tdm__server_caller *caller, uint32_t shard);
tdm__server_caller_shard tdm__server_caller_at(const tdm__server_caller *caller, uint32_t shard);

#endif
