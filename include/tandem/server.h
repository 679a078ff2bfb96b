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

#ifdef __cplusplus
}
#endif
#endif
