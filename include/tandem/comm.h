/*
 * comm.h: ranks that talk: a world, groups, collectives, and errors in place of hangs.
 *
 * A world is a fixed set of ranks of one membership epoch, each a process (or, under the simulator of
 * sim.h, a coroutine). A group is an ordered subset of them. Every collective runs on a group, and the
 * members call a group's collectives in the same order. Calls are numbered within their group, and
 * each carries (epoch, sequence, kind, bytes, dtype, group): when two ranks call different things, all
 * members get TDM_ERR_PEER_MISMATCH, with the ranks and both calls named.
 *
 * Sums are canonical: they follow a fixed binary tree over the index of lanes, node = left + right, so
 * the bits do not depend on the number of ranks, the transport or the algorithm.
 *
 * Nothing waits for ever: every call has a deadline, after which TDM_ERR_PEER_TIMEOUT names the ranks
 * that are missing, what each did last, and when. A dead peer ends every pending call of every group it
 * belongs to with TDM_ERR_PEER_FAILED. A group on which a call has ended with a status of the peer
 * group is broken: each later call on it fails at once, with the first error's text.
 *
 * Threading: calls on one comm may come from any thread; starts on one group must be ordered by the
 * caller. Buffers belong to the call until it has ended, with success or not.
 */
#ifndef TANDEM_COMM_H
#define TANDEM_COMM_H

#include <tandem/base.h>
#include <tandem/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tdm_comm tdm_comm;       /* this rank's place in a world */
typedef struct tdm_group tdm_group;     /* an ordered subset of its ranks */
typedef struct tdm_request tdm_request; /* a call that was started */

/* ---- the world ------------------------------------------------------------------------------- */

enum { TDM_MAX_RANKS = 65536 };
enum { TDM_SECRET_BYTES = 512 }; /* of a secret, terminator included */

/* How connections between ranks are protected. All ranks must be set to the same. */
typedef enum tdm_security {
    TDM_SECURITY_AUTO = 0, /* as PSK for connections that leave the host, none within it */
    TDM_SECURITY_OFF,      /* the secret is proved; what follows is neither encrypted nor signed */
    TDM_SECURITY_PSK,      /* TLS 1.3 by a key that is derived from the secret */
    TDM_SECURITY_TLS       /* TLS 1.3 by certificates of one authority, on both sides */
} tdm_security;

typedef struct tdm_comm_security {
    tdm_security mode;
    /* TDM_SECURITY_TLS: PEM files. The certificate must name the host (or its address). */
    const char *certificate, *private_key, *authority;
} tdm_comm_security;

/* Zero means: from the environment (see tdm_comm_environment), or else the default. */
typedef struct tdm_comm_options {
    const char *transport;  /* auto (by where the ranks run), shm, tcp, ucx, mpi */
    const char *rendezvous; /* HOST:PORT where rank 0 listens, or the path of a file all can see */
    const char *secret;     /* a rank with another one is turned away */
    tdm_comm_security security;
    const char *job; /* any text that names the job, such as its hash; all must bring the same */
    bool has_place;  /* rank and size below are meant; else they come from the environment */
    int rank, size;
    uint32_t epoch;    /* of the membership; all must bring the same */
    double deadline_s; /* of calls that set none, up to 1e8; 30 */
    double join_s;     /* how long to wait for all ranks to come, up to 1e8; 60 */
    const char *trace; /* a folder for the recorder's files (trace.h); none: memory alone */
    int dump_signal;   /* on which the last events go to the log and to a file (trace.h); none */
    const char *tune;  /* a file of measured choices (`tandem bench allreduce --tune`) */
    int streams; /* connections for each pair of hosts, where the transport has several, up to 64; 1 */
    /* While this rank joins: it gives up, with TDM_ERR_PEER_FAILED, as soon as this says so. Asked every
     * few milliseconds; may be NULL. */
    bool (*should_give_up)(void *user);
    /* Rank 0, with a rendezvous HOST:0: called once it listens, with HOST:PORT, before it waits for
     * others. May be NULL. */
    void (*on_listen)(void *user, const char *address);
    /* While this rank joins: a connection with `rank` was refused, by either side, for a reason that does not
     * pass (a certificate, comm.security, the version). The call fails then. May be NULL. */
    void (*on_refused)(void *user, int rank, const char *why);
    void *user;
    /* By which ranks that share memory know each other, in place of the machine's name and boot number
     * (also TANDEM_HOST); NULL: these. */
    const char *host;
} tdm_comm_options;

/* "auto", "off", "psk" or "tls"; false for anything else. */
TDM_API bool tdm_security_parse(const char *text, tdm_security *out);

/*
 * What the environment says of this process's place: TANDEM_* (from `tandem run`), or Open MPI's,
 * MPICH's and Slurm's variables. TDM_ERR_NOT_FOUND when nothing does. `launcher` names who set it.
 */
typedef struct tdm_comm_place {
    int rank, size;
    int local_rank, local_size; /* -1 when not known */
    const char *launcher;       /* "tandem", "openmpi", "mpich", "slurm" */
} tdm_comm_place;
TDM_API tdm_status tdm_comm_environment(tdm_comm_place *out, tdm_error *err);
/* A name that all processes of this start by mpirun or srun have in common, and no others: hexadecimal
 * digits. False where nothing tells, and for `tandem run`. */
enum { TDM_LAUNCH_NAME_BYTES = 17 };
TDM_API bool tdm_comm_launch_name(const tdm_comm_place *place, char out[TDM_LAUNCH_NAME_BYTES]);

/*
 * Joins the world; returns when all ranks have come. TDM_ERR_PEER_REFUSED, with the reason, when rank
 * 0 turns this one away (wrong job, version, size, epoch or secret, or the rank is there already);
 * TDM_ERR_PEER_TIMEOUT, naming who is missing, when not all came within join_s.
 */
TDM_API tdm_status tdm_comm_open(const tdm_comm_options *options, tdm_comm **out, tdm_error *err);
/* Says good-bye to the others, ends the threads and frees everything. NULL is fine. A child by fork() has
 * no place in the world: this does nothing there, and it must call nothing else on the comm. */
TDM_API void tdm_comm_close(tdm_comm *comm);

TDM_API int tdm_comm_rank(const tdm_comm *comm);
TDM_API int tdm_comm_size(const tdm_comm *comm);
TDM_API uint32_t tdm_comm_epoch(const tdm_comm *comm);
/* The group of all ranks. Lives as long as the comm. */
TDM_API tdm_group *tdm_comm_world(tdm_comm *comm);

typedef struct tdm_comm_info {
    const char
        *transport; /* "shm", "tcp", "ucx", "mpi", "sim" or "shm+tcp"; lives as long as comm */
    int host_index, host_count; /* hosts are numbered by their lowest rank */
    int local_rank, local_size; /* among the ranks of this host */
} tdm_comm_info;
TDM_API void tdm_comm_info_get(const tdm_comm *comm, tdm_comm_info *out);
/* The host of a rank, as in tdm_comm_info. */
TDM_API int tdm_comm_host_of(const tdm_comm *comm, int rank);
/* The memory that a rank sees: ranks with the same number share what tdm_comm_shared gives. They are
 * those of a host where shared memory carries bytes within hosts; else every rank is alone. */
TDM_API int tdm_comm_node_of(const tdm_comm *comm, int rank);

/* Within how many seconds a call ends that sets no deadline of its own. */
TDM_API double tdm_comm_deadline_s(const tdm_comm *comm);

/* How a rank is known to be: its death is noticed in the background, also when nobody talks to it. */
typedef enum tdm_peer_state {
    TDM_PEER_WELL = 0,
    TDM_PEER_LEFT, /* closed its comm */
    TDM_PEER_LOST  /* died, or its connection did */
} tdm_peer_state;
TDM_API tdm_peer_state tdm_comm_peer_state(tdm_comm *comm, int rank);

/* How a rank was noticed to be gone. */
typedef enum tdm_peer_sign {
    TDM_SIGN_NONE = 0,
    TDM_SIGN_CLOSED,    /* its connection was closed, without a good-bye */
    TDM_SIGN_TRANSPORT, /* the transport could not reach it */
    TDM_SIGN_SILENCE,   /* it did not answer within a deadline */
    TDM_SIGN_TOLD       /* somebody else said so */
} tdm_peer_sign;
typedef struct tdm_peer_loss {
    tdm_peer_sign sign;
    double heard_s; /* seconds between its last sign of life and the notice */
    char what[160]; /* it did last, as far as is known */
} tdm_peer_loss;
/* Of a rank that is TDM_PEER_LOST; false for others. */
TDM_API bool tdm_comm_peer_loss(tdm_comm *comm, int rank, tdm_peer_loss *out);

/* Breaks all groups, here and on every other rank, with TDM_ERR_PEER_FAILED and this text. */
TDM_API void tdm_comm_revoke(tdm_comm *comm, const char *why);

/*
 * Memory that all ranks of this host see, zeroed, 64-byte aligned (4,096 from a page up). Any rank may
 * take as much as it likes, alone; what lies in it is reduced where it lies, without a copy. Without
 * neighbours on the host it is ordinary memory. `tdm_comm_shared_free` gives it back; what is not
 * freed goes with the comm, and with the last rank of the host in any case, however it ends.
 */
TDM_API tdm_status tdm_comm_shared(tdm_comm *comm, size_t bytes, void **out, tdm_error *err);
TDM_API void tdm_comm_shared_free(tdm_comm *comm, void *memory);
/* A name for a place in such memory that means the same to all ranks of the node, though addresses
 * differ, and back. UINT64_MAX: not such memory; NULL: no such place. */
TDM_API uint64_t tdm_comm_shared_place(const tdm_comm *comm, const void *memory);
TDM_API void *tdm_comm_shared_at(const tdm_comm *comm, uint64_t place);

/* ---- groups ---------------------------------------------------------------------------------- */

/*
 * A group of these ranks of the world, in this order, which must include the caller. Collective over
 * its members: each calls it with the same list, in the same order relative to other groups that it
 * makes. Any number of groups; a rank may be in many.
 */
TDM_API tdm_status tdm_group_create(tdm_comm *comm, const int *ranks, int count, tdm_group **out,
                                    tdm_error *err);
TDM_API void tdm_group_destroy(tdm_group *group); /* local; no call may be pending */
TDM_API int tdm_group_rank(const tdm_group *group);
TDM_API int tdm_group_size(const tdm_group *group);
TDM_API int tdm_group_world_rank(const tdm_group *group, int rank); /* of a member */
/* TDM_OK, or why every call on this group fails now. */
TDM_API tdm_status tdm_group_check(const tdm_group *group, tdm_error *err);

/* ---- calls ----------------------------------------------------------------------------------- */

/* Of the calls that were started, those of so many bytes together are in work at a time, and so in the
 * transport's buffers; the others wait for their turn. */
enum { TDM_CALLS_ACTIVE_BYTES = 16 << 20 };

typedef enum tdm_call_kind {
    TDM_CALL_BARRIER = 1,
    TDM_CALL_BROADCAST,      /* root's `in` (or `out`) to everybody's `out` */
    TDM_CALL_REDUCE,         /* everybody's `in` to root's `out` */
    TDM_CALL_ALL_REDUCE,     /* everybody's `in` to everybody's `out` */
    TDM_CALL_REDUCE_SCATTER, /* `in` has count elements; `out` gets this rank's slice of the sum */
    TDM_CALL_ALL_GATHER,     /* `in` is this rank's slice; `out` has count elements */
    TDM_CALL_GATHER,         /* `in` is this rank's slice; root's `out` has count elements */
    TDM_CALL_SCATTER,        /* root's `in` has count elements; `out` gets this rank's slice */
    TDM_CALL_ALL_TO_ALL, /* slice j of `in` goes to rank j; `out` has `size` blocks, by sender, each
                                as large as this rank's slice */
    TDM_CALL_SEND,       /* `in` to rank `root` of the group, matched by `tag` */
    TDM_CALL_RECV        /* from rank `root` of the group, into `out` */
} tdm_call_kind;
TDM_API const char *tdm_call_kind_name(tdm_call_kind kind); /* "all_reduce"; never NULL */

/* SUM, MIN and MAX: f32, f64, f16, bf16, i32, i64 (whole numbers wrap around). In f16 and bf16 every
 * node of the tree is rounded to the type. Sums of floats take numbers below the normal range (f32's
 * for f16 and bf16, which are added in it) for zero, as training does, whoever adds. MIN and MAX of
 * floats: NaN wins. USER: any type. */
typedef enum tdm_reduce {
    TDM_REDUCE_SUM = 0,
    TDM_REDUCE_MIN,
    TDM_REDUCE_MAX,
    TDM_REDUCE_USER
} tdm_reduce;
TDM_API const char *tdm_reduce_name(tdm_reduce reduce);

/* into = into (+) from, for `count` elements; `into` is the left side. Need not commute. May be called
 * from the progress thread, and for any piece of the buffer. */
typedef void (*tdm_reduce_fn)(void *into, const void *from, size_t count, void *user);

/*
 * How the numbers of a reduction are spread over the ranks. Rank i of the group holds lanes
 * [first[i], first[i + 1]); `first` has size + 1 entries, from 0 to lane_count, none decreasing; a rank
 * may have none. `lane_count` is a power of two. `absent`, when not NULL, has a byte for each lane: a
 * lane that is absent takes no part, and the node above it is its sibling. All ranks bring the same.
 * A rank adds the lanes of each whole sub-tree it holds by itself, by the same tree, and brings the
 * sums as parts, in the order of tdm_lane_nodes. Without lanes, rank i holds lane i and brings `in`.
 */
typedef struct tdm_lanes {
    int64_t lane_count;
    const int64_t *first;
    const uint8_t *absent;
} tdm_lanes;

enum { TDM_MAX_LANE_PARTS = 64 };
/* The largest whole sub-trees of lanes [first, last), from left to right, as heap numbers (root 1,
 * children 2n and 2n + 1, lane l is lane_count + l), without those whose lanes are all absent. Returns
 * their number, at most TDM_MAX_LANE_PARTS. */
TDM_API int tdm_lane_nodes(const tdm_lanes *lanes, int64_t first, int64_t last, int64_t *out);

typedef enum tdm_algorithm {
    TDM_ALGORITHM_AUTO = 0, /* by size and topology: see docs/communication.md */
    TDM_ALGORITHM_DIRECT,   /* everybody sends to everybody that needs it */
    TDM_ALGORITHM_RING, /* floats added by a ring are not canonical: only when it is asked for by name */
    TDM_ALGORITHM_DOUBLING, /* recursive doubling */
    TDM_ALGORITHM_TREE,
    TDM_ALGORITHM_HIERARCHY, /* inside hosts, between hosts, inside hosts */
    TDM_ALGORITHM_WINDOW     /* through memory that all members see: one host only */
} tdm_algorithm;
TDM_API const char *tdm_algorithm_name(tdm_algorithm algorithm);
TDM_API tdm_status tdm_algorithm_find(const char *name, tdm_algorithm *out, tdm_error *err);

/* Fields that a kind has no use for are ignored. Ranks must agree on all but the buffers, priority and
 * deadline. `in` and `out` are the same, or do not overlap. */
typedef struct tdm_call {
    tdm_call_kind kind;
    tdm_dtype dtype;
    size_t count;   /* elements, over all slices */
    const void *in; /* NULL, or equal to `out`: in place; then slices lie at their place in `out` */
    void *out;
    tdm_reduce reduce;
    tdm_reduce_fn user_reduce; /* REDUCE_USER */
    void *user;
    const tdm_lanes *lanes; /* reductions; borrowed until the call has ended */
    /* With lanes: the sums of this rank's nodes, `count` elements each; `in` is not looked at then. The
     * slice that a reduce_scatter gives goes to the start of `out`, which may be the slice's own place
     * in one of the parts. */
    const void *const *parts;
    /* Kinds with slices, but for all_to_all: slice i is elements [cuts[i], cuts[i + 1]); size + 1
     * entries, from 0 to count, none decreasing. Borrowed until the call has ended. NULL:
     * tdm_group_slice. */
    const size_t *cuts;
    int root;     /* also the other side of SEND and RECV */
    uint32_t tag; /* SEND, RECV */
    tdm_algorithm algorithm;
    int priority;      /* lower goes first; 0 */
    double deadline_s; /* 0: the comm's; counted from the start */
} tdm_call;

/* Slice `rank` of `count` elements cut for `size` ranks: sizes differ by one at most. */
typedef struct tdm_extent {
    size_t first, count;
} tdm_extent;
TDM_API tdm_extent tdm_group_slice(size_t count, int size, int rank);

/* Runs it to its end. */
TDM_API tdm_status tdm_call_run(tdm_group *group, const tdm_call *call, tdm_error *err);
/* Starts it. The call goes on in the background; `call` itself may be forgotten, its buffers not. */
TDM_API tdm_status tdm_call_start(tdm_group *group, const tdm_call *call, tdm_request **out,
                                  tdm_error *err);
/* Whether it has ended. Moves things on a little; never waits. */
TDM_API bool tdm_request_test(tdm_request *request);
/* Waits for its end, gives its status, and frees the request. */
TDM_API tdm_status tdm_request_wait(tdm_request *request, tdm_error *err);

/* The usual calls, each one line. `in` may be NULL or equal to `out`: in place. */
TDM_API tdm_status tdm_group_barrier(tdm_group *group, tdm_error *err);
TDM_API tdm_status tdm_group_broadcast(tdm_group *group, void *data, size_t count, tdm_dtype dtype,
                                       int root, tdm_error *err);
TDM_API tdm_status tdm_group_all_reduce(tdm_group *group, const void *in, void *out, size_t count,
                                        tdm_dtype dtype, tdm_reduce reduce, tdm_error *err);
TDM_API tdm_status tdm_group_reduce(tdm_group *group, const void *in, void *out, size_t count,
                                    tdm_dtype dtype, tdm_reduce reduce, int root, tdm_error *err);
TDM_API tdm_status tdm_group_reduce_scatter(tdm_group *group, const void *in, void *out,
                                            size_t count, tdm_dtype dtype, tdm_reduce reduce,
                                            tdm_error *err);
TDM_API tdm_status tdm_group_all_gather(tdm_group *group, const void *in, void *out, size_t count,
                                        tdm_dtype dtype, tdm_error *err);
TDM_API tdm_status tdm_group_gather(tdm_group *group, const void *in, void *out, size_t count,
                                    tdm_dtype dtype, int root, tdm_error *err);
TDM_API tdm_status tdm_group_scatter(tdm_group *group, const void *in, void *out, size_t count,
                                     tdm_dtype dtype, int root, tdm_error *err);
TDM_API tdm_status tdm_group_all_to_all(tdm_group *group, const void *in, void *out, size_t count,
                                        tdm_dtype dtype, tdm_error *err);
TDM_API tdm_status tdm_group_send(tdm_group *group, int to, uint32_t tag, const void *data,
                                  size_t bytes, tdm_error *err);
TDM_API tdm_status tdm_group_recv(tdm_group *group, int from, uint32_t tag, void *data,
                                  size_t bytes, tdm_error *err);

/* The algorithm that a call on this group would run by: the one it asks for when that fits, else the
 * table's. The buffers are not looked at. */
TDM_API tdm_status tdm_call_algorithm(const tdm_group *group, const tdm_call *call,
                                      tdm_algorithm *out, tdm_error *err);

/* ---- measured choices -------------------------------------------------------------------------- */

/*
 * From `bytes` on, groups of `size` ranks and more take this algorithm for this kind of call. Of several
 * rows that speak of a call, the one with the largest size counts, then the one with the most bytes,
 * then the first; one whose algorithm cannot do the call is passed over. What is
 * measured on a machine stays in a file, which tdm_comm_open reads again: rank 0's counts for all.
 */
typedef struct tdm_tune_row {
    tdm_call_kind kind;
    bool one_host; /* all members on one host; else on several */
    int size;
    uint64_t bytes;
    tdm_algorithm algorithm;
    uint32_t segment_bytes; /* 0: the algorithm's own */
} tdm_tune_row;

/*
 * The usual place of that file: tandem/tune.json in the user's cache folder ($XDG_CACHE_HOME, or
 * ~/.cache). False when neither is set, or `out_bytes` are too few.
 */
TDM_API bool tdm_tune_path(char *out, size_t out_bytes);
/* Puts these rows in place of those of the same kind, one_host and size, and keeps the others. The
 * file is replaced atomically, and its folder made when it is missing. */
TDM_API tdm_status tdm_tune_write(const char *path, const tdm_tune_row *rows, int count,
                                  tdm_error *err);

/*
 * What memory allows: the time in which as many threads of this process as there would be ranks do
 * the work of an all-reduce of f32 on warm buffers, each adding its share of the same bytes and
 * copying the rest. The fastest of the passes that fit into `seconds`, of three at least. Others that
 * use the machine meanwhile are measured, too.
 */
TDM_API tdm_status tdm_comm_memory_bound(size_t bytes, int thread_count, double seconds,
                                         double *out_s, tdm_error *err);

/* ---- what is built in ------------------------------------------------------------------------ */

/* Walks the transports: name and one line about it, and whether it can be used here (else `why` says
 * what is missing). False past the end. For `tandem doctor`. */
typedef struct tdm_transport_info {
    const char *name;
    const char *about;
    bool usable;
    char why[160];
    char library[TDM_LIBRARY_BYTES]; /* "UCX 1.13.1"; empty when it stands on none */
} tdm_transport_info;
TDM_API bool tdm_transport_at(size_t index, tdm_transport_info *out);

#ifdef __cplusplus
}
#endif
#endif
