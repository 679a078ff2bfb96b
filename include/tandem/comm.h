/*
 * comm.h: communication between ranks: worlds, groups, collectives.
 *
 * A world is a fixed set of ranks of one membership epoch. Each rank is a process (or, under the
 * simulator of sim.h, a coroutine). A group is an ordered subset of the ranks. Every collective
 * runs on a group, and all members call the group's collectives in the same order. Calls are
 * numbered within their group, and each message carries (epoch, sequence, kind, bytes, dtype,
 * group). If two ranks make different calls, all members get TDM_ERR_PEER_MISMATCH, which names the
 * ranks and both calls.
 *
 * Sums are canonical: they follow a fixed binary tree over the lane indices, node = left + right,
 * so the bits do not depend on the number of ranks, the transport or the algorithm.
 *
 * No call waits forever. Each has a deadline; after it, TDM_ERR_PEER_TIMEOUT names the missing
 * ranks, the last event of each and its time. A dead peer ends every pending call of every group it
 * belongs to with TDM_ERR_PEER_FAILED. A call that ends with one of the TDM_ERR_PEER_* statuses
 * breaks its group: each later call on the group fails immediately with the text of the first
 * error.
 *
 * Threading: any thread may make calls on a comm; the caller must order the starts on one group.
 * Buffers belong to the call until it has ended, successfully or not.
 */
#ifndef TANDEM_COMM_H
#define TANDEM_COMM_H

#include <tandem/base.h>
#include <tandem/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tdm_comm tdm_comm;       /* this rank's handle of a world */
typedef struct tdm_group tdm_group;     /* an ordered subset of its ranks */
typedef struct tdm_request tdm_request; /* a call in progress */

/* ---- world ------------------------------------------------------------------------------------ */

enum { TDM_MAX_RANKS = 65536 };
enum { TDM_SECRET_BYTES = 512 }; /* size of a secret, including the terminator */

/* How connections between ranks are protected. All ranks must use the same mode. */
typedef enum tdm_security {
    TDM_SECURITY_AUTO = 0, /* PSK for connections between hosts, none within a host */
    TDM_SECURITY_OFF,      /* the secret is verified; the data is neither encrypted nor signed */
    TDM_SECURITY_PSK,      /* TLS 1.3 with a key derived from the secret */
    TDM_SECURITY_TLS       /* TLS 1.3 with certificates of one authority on both sides */
} tdm_security;

typedef struct tdm_comm_security {
    tdm_security mode;
    /* TDM_SECURITY_TLS: PEM files. The certificate must name the host (or its address). */
    const char *certificate, *private_key, *authority;
} tdm_comm_security;

/* A zero field means: the value from the environment (see tdm_comm_environment), or else the
 * default. */
typedef struct tdm_comm_options {
    const char *transport;  /* auto (depends on where the ranks run), shm, tcp, ucx, mpi */
    const char *rendezvous; /* HOST:PORT where rank 0 listens, or the path of a shared file */
    const char *secret;     /* a rank with a different secret is refused */
    tdm_comm_security security;
    const char *job; /* text that identifies the job, such as its hash; equal on all ranks */
    bool has_place;  /* use rank and size below; else they come from the environment */
    int rank, size;
    uint32_t epoch;    /* membership epoch; equal on all ranks */
    double deadline_s; /* default deadline of calls, up to 1e8; default 30 */
    double join_s;     /* how long to wait for all ranks to join, up to 1e8; default 60 */
    const char *trace; /* directory for the recorder's files (trace.h); NULL: memory only */
    int dump_signal;   /* signal that writes the last events to the log and a file (trace.h) */
    const char *tune;  /* file of measured choices (`tandem bench allreduce --tune`) */
    int streams; /* connections per pair of hosts, for transports that support it, up to 64; 1 */
    /* Called every few milliseconds while this rank joins. If it returns true, joining ends with
     * TDM_ERR_PEER_FAILED. May be NULL. */
    bool (*should_give_up)(void *user);
    /* Called on rank 0 with rendezvous HOST:0 once it listens, with HOST:PORT, before it waits for
     * the other ranks. May be NULL. */
    void (*on_listen)(void *user, const char *address);
    /* While this rank joins: a connection with `rank` was refused, by either side, for a reason that does not
     * pass (a certificate, comm.security, the version). The call fails then. May be NULL. */
    void (*on_refused)(void *user, int rank, const char *why);
    void *user;
    /* Identifies the host: ranks with the same text share memory. NULL: TANDEM_HOST, or the
     * machine's name and boot ID. */
    const char *host;
} tdm_comm_options;

/* Parses "auto", "off", "psk" or "tls"; returns false for anything else. */
TDM_API bool tdm_security_parse(const char *text, tdm_security *out);

/*
 * Rank and size of this process according to the environment: TANDEM_* (from `tandem run`), or the
 * variables of Open MPI, MPICH or Slurm. TDM_ERR_NOT_FOUND if none is set. `launcher` names the
 * program that set them.
 */
typedef struct tdm_comm_place {
    int rank, size;
    int local_rank, local_size; /* -1 if unknown */
    const char *launcher;       /* "tandem", "openmpi", "mpich", "slurm" */
} tdm_comm_place;
TDM_API tdm_status tdm_comm_environment(tdm_comm_place *out, tdm_error *err);
/* An ID shared by all processes of one start of mpirun or srun, and by no others: hexadecimal
 * digits. Returns false if the launcher provides none, and for `tandem run`. */
enum { TDM_LAUNCH_NAME_BYTES = 17 };
TDM_API bool tdm_comm_launch_name(const tdm_comm_place *place, char out[TDM_LAUNCH_NAME_BYTES]);

/*
 * Joins the world; returns when all ranks have joined. TDM_ERR_PEER_REFUSED, with the reason, if
 * rank 0 refuses this rank (different job, version, size, epoch or secret, or the rank is already
 * taken). TDM_ERR_PEER_TIMEOUT, with the missing ranks, if not all joined within join_s.
 */
TDM_API tdm_status tdm_comm_open(const tdm_comm_options *options, tdm_comm **out, tdm_error *err);
/* Tells the other ranks that this one leaves, ends the threads and frees everything. NULL is
 * allowed. In a child created by fork() this does nothing; the child must make no other call on the
 * comm. */
TDM_API void tdm_comm_close(tdm_comm *comm);

TDM_API int tdm_comm_rank(const tdm_comm *comm);
TDM_API int tdm_comm_size(const tdm_comm *comm);
/* The group of all ranks. Owned by the comm. */
TDM_API tdm_group *tdm_comm_world(tdm_comm *comm);

typedef struct tdm_comm_info {
    const char *transport; /* "shm", "tcp", "ucx", "mpi", "sim" or "shm+tcp"; owned by the comm */
    int host_index, host_count; /* hosts are ordered by their lowest rank */
    int local_rank, local_size; /* among the ranks of this host */
} tdm_comm_info;
TDM_API void tdm_comm_info_get(const tdm_comm *comm, tdm_comm_info *out);
/* The node of a rank: ranks with the same number share the memory of tdm_comm_shared. A node is a
 * host if the transport uses shared memory within hosts; else every rank is its own node. */
TDM_API int tdm_comm_node_of(const tdm_comm *comm, int rank);

/* The state of a rank. A death is detected in the background, even without traffic to the rank. */
typedef enum tdm_peer_state {
    TDM_PEER_WELL = 0,
    TDM_PEER_LEFT, /* closed its comm */
    TDM_PEER_LOST  /* died, or its connection broke */
} tdm_peer_state;
TDM_API tdm_peer_state tdm_comm_peer_state(tdm_comm *comm, int rank);

/* Breaks all groups on all ranks with TDM_ERR_PEER_FAILED and this text. */
TDM_API void tdm_comm_revoke(tdm_comm *comm, const char *why);

/*
 * Allocates zeroed memory that all ranks of this host can access, 64-byte aligned (4,096 if larger
 * than a page). Not collective: any rank may allocate any amount. Collectives reduce such buffers
 * in place, without a copy. If the rank is alone on its host, this is ordinary memory. Free it with
 * `tdm_comm_shared_free`; the rest is freed with the comm, and at the latest when the last rank of
 * the host ends, even if it crashes.
 */
TDM_API tdm_status tdm_comm_shared(tdm_comm *comm, size_t bytes, void **out, tdm_error *err);
TDM_API void tdm_comm_shared_free(tdm_comm *comm, void *memory);

/* ---- groups ----------------------------------------------------------------------------------- */

/*
 * Creates a group of these ranks of the world, in this order; the caller must be one of them.
 * Collective over the members: each calls it with the same list, in the same order relative to its
 * other groups. Any number of groups is allowed; a rank may be in many.
 */
TDM_API tdm_status tdm_group_create(tdm_comm *comm, const int *ranks, int count, tdm_group **out,
                                    tdm_error *err);
TDM_API void tdm_group_destroy(tdm_group *group); /* local; no call may be pending */
TDM_API int tdm_group_rank(const tdm_group *group);
TDM_API int tdm_group_size(const tdm_group *group);

/* ---- calls ------------------------------------------------------------------------------------ */

/* The maximum number of bytes of started calls that are processed, and thus in the transport's
 * buffers, at a time. Further calls are queued. */
enum { TDM_CALLS_ACTIVE_BYTES = 16 << 20 };

typedef enum tdm_call_kind {
    TDM_CALL_BARRIER = 1,
    TDM_CALL_BROADCAST,      /* root's `in` (or `out`) to every rank's `out` */
    TDM_CALL_REDUCE,         /* every rank's `in` to root's `out` */
    TDM_CALL_ALL_REDUCE,     /* every rank's `in` to every rank's `out` */
    TDM_CALL_REDUCE_SCATTER, /* `in` has count elements; `out` gets this rank's slice of the sum */
    TDM_CALL_ALL_GATHER,     /* `in` is this rank's slice; `out` has count elements */
    TDM_CALL_GATHER,         /* `in` is this rank's slice; root's `out` has count elements */
    TDM_CALL_SCATTER,        /* root's `in` has count elements; `out` gets this rank's slice */
    TDM_CALL_ALL_TO_ALL,     /* slice j of `in` goes to rank j; `out` has `size` blocks in the order
                              * of the senders, each as large as this rank's slice */
    TDM_CALL_SEND,           /* `in` to rank `root` of the group, matched by `tag` */
    TDM_CALL_RECV            /* from rank `root` of the group, into `out` */
} tdm_call_kind;
TDM_API const char *tdm_call_kind_name(tdm_call_kind kind); /* "all_reduce"; never NULL */

/* SUM, MIN and MAX: f32, f64, f16, bf16, i32, i64 (integers wrap around). In f16 and bf16 every
 * node of the tree is rounded to the type. Sums of floats treat subnormal numbers as zero, as
 * training does (f16 and bf16 are added in f32, so f32's range counts), for every algorithm. MIN
 * and MAX of floats propagate NaN. USER: any type. */
typedef enum tdm_reduce {
    TDM_REDUCE_SUM = 0,
    TDM_REDUCE_MIN,
    TDM_REDUCE_MAX,
    TDM_REDUCE_USER
} tdm_reduce;
TDM_API const char *tdm_reduce_name(tdm_reduce reduce);

/* into = into (+) from, for `count` elements; `into` is the left operand. Need not commute. May be
 * called from the progress thread, and for any part of the buffer. */
typedef void (*tdm_reduce_fn)(void *into, const void *from, size_t count, void *user);

/*
 * How the lanes of a reduction are distributed over the ranks. Rank i of the group has lanes
 * [first[i], first[i + 1]); `first` has size + 1 entries, from 0 to lane_count, non-decreasing; a
 * rank may have no lane. `lane_count` is a power of two. `absent`, if not NULL, has one byte for
 * each lane: an absent lane does not contribute, and the node above it equals its sibling. Equal on
 * all ranks. A rank adds the lanes of each complete subtree it owns locally, by the same tree, and
 * passes the sums as `parts`, in the order of tdm_lane_nodes. Without lanes, rank i has lane i and
 * passes `in`.
 */
typedef struct tdm_lanes {
    int64_t lane_count;
    const int64_t *first;
    const uint8_t *absent;
} tdm_lanes;

enum { TDM_MAX_LANE_PARTS = 64 };

typedef enum tdm_algorithm {
    TDM_ALGORITHM_AUTO = 0, /* selected by size and topology: see docs/communication.md */
    TDM_ALGORITHM_DIRECT,   /* each rank sends to every rank that needs its data */
    TDM_ALGORITHM_RING,     /* float sums are not canonical: used only on explicit request */
    TDM_ALGORITHM_DOUBLING, /* recursive doubling */
    TDM_ALGORITHM_TREE,
    TDM_ALGORITHM_HIERARCHY, /* inside hosts, between hosts, inside hosts */
    TDM_ALGORITHM_WINDOW     /* through shared memory of all members: one host only */
} tdm_algorithm;
TDM_API const char *tdm_algorithm_name(tdm_algorithm algorithm);
TDM_API tdm_status tdm_algorithm_find(const char *name, tdm_algorithm *out, tdm_error *err);

/* Fields that a kind does not use are ignored. All ranks must agree on all fields except the
 * buffers, priority and deadline. `in` and `out` are equal or do not overlap. */
typedef struct tdm_call {
    tdm_call_kind kind;
    tdm_dtype dtype;
    size_t count;   /* elements, over all slices */
    const void *in; /* NULL, or equal to `out`: in place, with slices at their offsets in `out` */
    void *out;
    tdm_reduce reduce;
    tdm_reduce_fn user_reduce; /* for TDM_REDUCE_USER */
    void *user;
    const tdm_lanes *lanes; /* of a reduction; borrowed until the call has ended */
    /* With lanes: the sums of this rank's nodes, `count` elements each; `in` is ignored. The slice
     * that a reduce_scatter returns is written to the start of `out`, which may be the slice's own
     * range in one of the parts. */
    const void *const *parts;
    /* Kinds with slices except all_to_all: slice i is elements [cuts[i], cuts[i + 1]); size + 1
     * entries, from 0 to count, non-decreasing. Borrowed until the call has ended. NULL:
     * tdm_group_slice. */
    const size_t *cuts;
    int root;     /* also the peer of SEND and RECV */
    uint32_t tag; /* of SEND and RECV */
    tdm_algorithm algorithm;
    int priority;      /* lower runs first; default 0 */
    double deadline_s; /* counted from the start; 0: the comm's default */
} tdm_call;

/* Slice `rank` of `count` elements divided among `size` ranks: sizes differ by at most one. */
typedef struct tdm_extent {
    size_t first, count;
} tdm_extent;
TDM_API tdm_extent tdm_group_slice(size_t count, int size, int rank);

/* Runs the call and waits for its end. */
TDM_API tdm_status tdm_call_run(tdm_group *group, const tdm_call *call, tdm_error *err);
/* Starts the call, which continues in the background. `call` may be freed; its buffers must stay
 * valid. */
TDM_API tdm_status tdm_call_start(tdm_group *group, const tdm_call *call, tdm_request **out,
                                  tdm_error *err);
/* Returns whether the call has ended. Makes some progress; never blocks. */
TDM_API bool tdm_request_test(tdm_request *request);
/* Waits for the end of the call, returns its status and frees the request. */
TDM_API tdm_status tdm_request_wait(tdm_request *request, tdm_error *err);

/* Shorthands for the common calls. If `in` is NULL or equal to `out`, the call works in place. */
static inline tdm_call tdm_call_of(tdm_call_kind kind, const void *in, void *out, size_t count,
                                   tdm_dtype dtype, int root)
{
    tdm_call call;
    memset(&call, 0, sizeof(call));
    call.kind = kind;
    call.in = in;
    call.out = out;
    call.count = count;
    call.dtype = dtype;
    call.root = root;
    return call;
}
static inline tdm_status tdm_group_barrier(tdm_group *group, tdm_error *err)
{
    tdm_call call = tdm_call_of(TDM_CALL_BARRIER, NULL, NULL, 0, TDM_DTYPE_NONE, 0);
    return tdm_call_run(group, &call, err);
}
static inline tdm_status tdm_group_broadcast(tdm_group *group, void *data, size_t count,
                                             tdm_dtype dtype, int root, tdm_error *err)
{
    tdm_call call = tdm_call_of(TDM_CALL_BROADCAST, NULL, data, count, dtype, root);
    return tdm_call_run(group, &call, err);
}
static inline tdm_status tdm_group_all_gather(tdm_group *group, const void *in, void *out,
                                              size_t count, tdm_dtype dtype, tdm_error *err)
{
    tdm_call call = tdm_call_of(TDM_CALL_ALL_GATHER, in, out, count, dtype, 0);
    return tdm_call_run(group, &call, err);
}
static inline tdm_status tdm_group_all_to_all(tdm_group *group, const void *in, void *out,
                                              size_t count, tdm_dtype dtype, tdm_error *err)
{
    tdm_call call = tdm_call_of(TDM_CALL_ALL_TO_ALL, in, out, count, dtype, 0);
    return tdm_call_run(group, &call, err);
}
static inline tdm_status tdm_group_gather(tdm_group *group, const void *in, void *out, size_t count,
                                          tdm_dtype dtype, int root, tdm_error *err)
{
    tdm_call call = tdm_call_of(TDM_CALL_GATHER, in, out, count, dtype, root);
    return tdm_call_run(group, &call, err);
}
static inline tdm_status tdm_group_scatter(tdm_group *group, const void *in, void *out,
                                           size_t count, tdm_dtype dtype, int root, tdm_error *err)
{
    tdm_call call = tdm_call_of(TDM_CALL_SCATTER, in, out, count, dtype, root);
    return tdm_call_run(group, &call, err);
}
static inline tdm_status tdm_group_all_reduce(tdm_group *group, const void *in, void *out,
                                              size_t count, tdm_dtype dtype, tdm_reduce reduce,
                                              tdm_error *err)
{
    tdm_call call = tdm_call_of(TDM_CALL_ALL_REDUCE, in, out, count, dtype, 0);
    call.reduce = reduce;
    return tdm_call_run(group, &call, err);
}
static inline tdm_status tdm_group_reduce_scatter(tdm_group *group, const void *in, void *out,
                                                  size_t count, tdm_dtype dtype, tdm_reduce reduce,
                                                  tdm_error *err)
{
    tdm_call call = tdm_call_of(TDM_CALL_REDUCE_SCATTER, in, out, count, dtype, 0);
    call.reduce = reduce;
    return tdm_call_run(group, &call, err);
}
static inline tdm_status tdm_group_reduce(tdm_group *group, const void *in, void *out, size_t count,
                                          tdm_dtype dtype, tdm_reduce reduce, int root,
                                          tdm_error *err)
{
    tdm_call call = tdm_call_of(TDM_CALL_REDUCE, in, out, count, dtype, root);
    call.reduce = reduce;
    return tdm_call_run(group, &call, err);
}
/* Messages between two ranks: `tag` distinguishes messages of the same pair. */
static inline tdm_status tdm_group_send(tdm_group *group, int to, uint32_t tag, const void *data,
                                        size_t bytes, tdm_error *err)
{
    tdm_call call = tdm_call_of(TDM_CALL_SEND, data, NULL, bytes, TDM_DTYPE_U8, to);
    call.tag = tag;
    return tdm_call_run(group, &call, err);
}
static inline tdm_status tdm_group_recv(tdm_group *group, int from, uint32_t tag, void *data,
                                        size_t bytes, tdm_error *err)
{
    tdm_call call = tdm_call_of(TDM_CALL_RECV, NULL, data, bytes, TDM_DTYPE_U8, from);
    call.tag = tag;
    return tdm_call_run(group, &call, err);
}

/* The algorithm that this call would use on this group: the requested one if it supports the call,
 * else the table's choice. The buffers are not accessed. */
TDM_API tdm_status tdm_call_algorithm(const tdm_group *group, const tdm_call *call,
                                      tdm_algorithm *out, tdm_error *err);

/* ---- measured choices ------------------------------------------------------------------------- */

/*
 * From `bytes` on, groups of at least `size` ranks use this algorithm for this kind of call. If
 * several rows apply, the one with the largest size is used, then the one with the most bytes, then
 * the first; a row whose algorithm does not support the call is skipped. The measurements of a
 * machine are kept in a file that tdm_comm_open reads; rank 0's file is used by all ranks.
 */
typedef struct tdm_tune_row {
    tdm_call_kind kind;
    bool one_host; /* all members on one host; else on several hosts */
    int size;
    uint64_t bytes;
    tdm_algorithm algorithm;
    uint32_t segment_bytes; /* 0: the algorithm's default */
} tdm_tune_row;

/*
 * The default path of that file: tandem/tune.json in the user's cache directory ($XDG_CACHE_HOME,
 * or ~/.cache). Returns false if neither is set, or if `out_bytes` is too small.
 */
TDM_API bool tdm_tune_path(char *out, size_t out_bytes);
/* Replaces the rows of the same kind, one_host and size, and keeps the others. The file is replaced
 * atomically; its directory is created if missing. */
TDM_API tdm_status tdm_tune_write(const char *path, const tdm_tune_row *rows, int count,
                                  tdm_error *err);

#ifdef __cplusplus
}
#endif
#endif
