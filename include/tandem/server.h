/*
 * server.h: a replicated parameter server for sparse tables.
 *
 * A group of servers holds the rows of a sparse table by 64-bit keys, and updates them with an optimiser.
 * Clients push gradients of rows and pull rows. Rows are created on first use. Keys are divided into shards; each
 * shard is replicated on `replication` servers (chain replication). A push that a client has waited for
 * (tdm_server_client_flush) survives the death of any `replication` - 1 servers, and is applied exactly once. A pull
 * sees one version of each shard.
 *
 * Servers and clients find each other through the store, by the name of the group: docs/server.md. Servers are
 * started with `tandem server`, or by tdm_server_run.
 *
 * Threading: a client is used by one thread at a time. Every call that waits has a deadline.
 */
#ifndef TANDEM_SERVER_H
#define TANDEM_SERVER_H

#include <tandem/base.h>
#include <tandem/text.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TDM_SERVER_MAX_SHARDS = 256,
    TDM_SERVER_MAX_REPLICATION = 8,
    TDM_SERVER_MAX_WORKERS = 1024,
    TDM_SERVER_MAX_WIDTH = 4096,
    TDM_SERVER_NAME_BYTES = 64
};

typedef enum tdm_server_mode {
    TDM_SERVER_ASYNC = 0, /* a push is applied when it arrives */
    TDM_SERVER_SYNC =
        1, /* the pushes of all workers of a round are applied together, in their order */
    TDM_SERVER_STALE = 2 /* a worker that is more than `bound` rounds ahead waits in its pull */
} tdm_server_mode;

typedef enum tdm_server_optim {
    TDM_SERVER_SGD = 0,
    TDM_SERVER_ADAGRAD = 1,
    TDM_SERVER_FTRL = 2,
    TDM_SERVER_ADAM = 3
} tdm_server_optim;

/* The settings of a group. All its servers must have the same ones; the first server stores them. Zero means the
 * default in brackets, if there is one. docs/sparse.md describes the methods. */
typedef struct tdm_server_group {
    uint32_t shards;      /* (8) */
    uint32_t replication; /* copies of each shard (1) */
    int mode;             /* tdm_server_mode */
    uint32_t bound;       /* STALE: rounds */
    uint32_t workers;     /* SYNC: the number of workers */
    uint32_t width;       /* numbers in a row */
    int optim;            /* tdm_server_optim */
    uint64_t seed;        /* of initial values */
    double init_scale;    /* initial values are uniform in [-init_scale, init_scale) (0: zero) */
    double weight_decay, l1, l2;
    uint64_t limit_bytes; /* of the rows of one shard on one server (4 GiB) */
} tdm_server_group;

/* How processes reach the group. NULL and zero mean none, or the default in brackets. */
typedef struct tdm_server_place {
    const char *name;  /* of the group: letters, digits, '.', '_', '-' */
    const char *store; /* as in tdm_kv_options; (the local store of the user) */
    const char *user, *password, *ca, *certificate, *key; /* of etcd */
    const char *
        secret; /* (TANDEM_SECRET, TANDEM_SECRET_FILE, or for a local store a file that the first server
                           writes) */
} tdm_server_place;

/* ---- servers --------------------------------------------------------------------------------- */

typedef struct tdm_server_options {
    tdm_server_place place;
    tdm_server_group group;
    /* HOST:PORT for the others (port 0: any). NULL with a local store: a UNIX socket of this user. */
    const char *listen;
    /* All servers of the group are gone, and it begins again with empty shards. TDM_ERR_EXISTS if one is
     * running. */
    bool restarts;
    /* Called about every 20 ms; true: the server leaves. Others take over what it has first, if they are
     * enough, for at most 30 s. NULL: the server never leaves by itself. */
    bool (*should_stop)(void *user);
    /* Called once, when the server has its place in the group. May be NULL. */
    void (*on_ready)(void *user, const char *address);
    void *user;
} tdm_server_options;

/* Runs a server of the group in this thread and one more, until it leaves or fails. TDM_ERR_PEER_MISMATCH: the group
 * has other settings. */
TDM_API tdm_status tdm_server_run(const tdm_server_options *options, tdm_error *err);

/* The state of a group as text: its servers, and the chain of each shard. TDM_ERR_NOT_FOUND: it does not exist. */
TDM_API tdm_status tdm_server_describe(const tdm_server_place *place, tdm_str *out, tdm_error *err);

/* ---- clients --------------------------------------------------------------------------------- */

typedef struct tdm_server_client tdm_server_client;

enum { TDM_SERVER_MAX_BATCH = 1 << 20 }; /* keys of one call */

typedef struct tdm_server_client_options {
    tdm_server_place place; /* borrowed during tdm_server_client_open only */
    /* The number of this worker from 0: SYNC applies in its order, and of two clients with one number the later one
     * replaces the other. -1: the client only pulls. */
    int worker;
    double timeout_s; /* of each call (30) */
    /* STALE: rows that the client keeps; a pull copies those that are within the bound. 0: none. */
    uint32_t cache_rows;
} tdm_server_client_options;

/* Connects to the group, and waits for it if it does not exist yet. */
TDM_API tdm_status tdm_server_client_open(const tdm_server_client_options *options,
                                          tdm_server_client **out, tdm_error *err);
/* Flushes and leaves the group; the client is released in any case. NULL is allowed. */
TDM_API tdm_status tdm_server_client_close(tdm_server_client *client, tdm_error *err);
/* The settings of the group; borrowed. */
TDM_API const tdm_server_group *tdm_server_client_group(const tdm_server_client *client);

/*
 * Pushes gradients [count, width] for keys, and returns when they are queued. The next calls send them; flush waits
 * until the servers have them. With SYNC and STALE each push is a round of this worker. An error can belong to an
 * earlier push: it names the shard and the reason. TDM_ERR_TIMEOUT names the server that did not answer.
 */
TDM_API tdm_status tdm_server_client_push(tdm_server_client *client, const uint64_t *keys,
                                          const float *grads, int64_t count, double lr,
                                          tdm_error *err);
/* Copies the rows of keys to `out` [count, width]; of each shard they have one version, which `out_versions` [shards]
 * gets (may be NULL). It contains all pushes of this client that were flushed. */
TDM_API tdm_status tdm_server_client_pull(tdm_server_client *client, const uint64_t *keys,
                                          int64_t count, float *out, uint64_t *out_versions,
                                          tdm_error *err);
/* Waits until all pushes of this client are stored on all servers of their chains. */
TDM_API tdm_status tdm_server_client_flush(tdm_server_client *client, tdm_error *err);

#ifdef __cplusplus
}
#endif
#endif
