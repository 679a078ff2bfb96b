/*
 * parallel.h: lanes, the ranks that execute them, and where the numbers of a model lie meanwhile.
 *
 * A step's batch is cut into `lane_count` contiguous slices, the lanes. A lane's gradient is a
 * function of its samples alone; lanes are added by a fixed binary tree over their index, node =
 * left + right. Ranks do not own data: they execute lanes, and any rank may execute any of them. So
 * the trained parameters depend on the number of lanes, which the job fixes, and not on the number of
 * ranks, on which of them executes what, or on how the state is spread over them.
 *
 * A lane without rows (the last batch of an epoch may have fewer rows than there are lanes) takes
 * no part: the node above it is its sibling.
 *
 * Ranks are the members of a world (comm.h), or a single process without one. Everything here that
 * takes a comm is collective: all ranks call the same functions in the same order. When a rank fails,
 * the others get a status of the peer group from the call they are in, or from the next.
 *
 * A node is a set of ranks that see the same memory (tdm_comm_node_of): those of one host, mostly. They
 * have one copy of the parameters, and update it together, each a share of it.
 */
#ifndef TANDEM_PARALLEL_H
#define TANDEM_PARALLEL_H

#include <tandem/base.h>
#include <tandem/comm.h>
#include <tandem/nn.h>
#include <tandem/optim.h>
#include <tandem/os.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TDM_MAX_LANES = 65536 };

/*
 * The job's parallel.lanes, or what `auto` makes of it: a power of two that depends on the job alone.
 * That is the largest up to 8 with which a lane has 64 rows of features, 32 images (for models with
 * convolutions; 64 for ResNets) or 256 tokens; two lanes when each has a quarter of that, but for
 * ResNets; else one.
 */
TDM_API int64_t tdm_lanes_of(const tdm_job *job);

typedef struct tdm_slice {
    int64_t first;
    int64_t count;
} tdm_slice;

/* Rows of lane `lane`, when `row_count` rows are cut into `lane_count` slices. Sizes differ by one
 * at most; the larger ones are spread evenly, and the first slice is one of them. */
TDM_API tdm_slice tdm_lane_slice(int64_t row_count, int64_t lane_count, int64_t lane);

/* The most gradient buffers that a rank holds at once while it executes this block of lanes. */
TDM_API int tdm_lane_buffers(int64_t lane_count, tdm_slice lanes);

/* ---- placement ------------------------------------------------------------------------------- */

/*
 * Which rank executes which lanes: rank i those of [first[i], first[i + 1]); `first` has rank_count +
 * 1 entries. Every rank gets one lane at least; rank_count must be at most lane_count. `weights`, one
 * for each rank, say how fast they are; NULL: all alike. The lanes come as close to the weights as
 * whole lanes can: the time of the slowest rank, lanes / weight, is the least possible. With equal
 * weights counts differ by one at most. Pure.
 */
TDM_API void tdm_place_lanes(int64_t lane_count, int rank_count, const double *weights,
                             int64_t *first);

/*
 * Feedback: every step each rank's seconds per lane are observed; tdm_balance_observe says true, and
 * changes `first`, when lanes should move: when the step would be faster by enough, and has been so for
 * some steps, so that noise moves nothing. All ranks observe the same numbers, and so decide the same.
 * No allocation.
 */
typedef struct tdm_balance tdm_balance;
TDM_API tdm_balance *tdm_balance_create(int64_t lane_count, int rank_count); /* NULL: no memory */
TDM_API void tdm_balance_destroy(tdm_balance *balance);
/* seconds[i]: what rank i took for its lanes of this step, waits left out. */
TDM_API bool tdm_balance_observe(tdm_balance *balance, const double *seconds, int64_t *first);
/* The rank that takes longer for a lane than the others by half, and has for some steps; -1: none.
 * *factor is how many times as long as the median. */
TDM_API int tdm_balance_straggler(const tdm_balance *balance, double *factor);

/* How large buckets should be for gradients of so many bytes, when parallel.bucket leaves it open: where
 * gradients travel between nodes it is measured, for a second or so. All ranks get the same. Collective. */
TDM_API tdm_status tdm_bucket_choose(tdm_comm *comm, uint64_t grad_bytes, size_t *out,
                                     tdm_error *err);

/* ---- the store: where parameters and state lie ------------------------------------------------ */

/*
 * Blocks of f32 in the layout of a graph: the parameters (with statistics and buffers behind), the
 * optimiser's states, and the average of the weights. How much of a block a rank holds goes by
 * parallel.zero:
 *   0  every node has all blocks whole; its ranks have them in common
 *   1  the parameters are whole in every node; of states and average each rank has its share
 *   2  the same (gradients are the team's matter)
 *   3  of all blocks each rank has its share; where there is one node it is as with 2
 * A share is a set of cells; a cell is TDM_OPTIM_PIECE_ELEMENTS elements, from a multiple of that on.
 */
typedef struct tdm_params tdm_params;

enum { TDM_BLOCK_PARAMS = 0, TDM_BLOCK_EMA = 1, TDM_BLOCK_STATE = 2 /* + index of the state */ };

typedef struct tdm_params_options {
    const tdm_graph *graph;   /* for the layout; borrowed */
    tdm_optimiser *optimiser; /* gets bound to the blocks; NULL: there are parameters only */
    bool has_ema;
    tdm_comm *comm; /* NULL: a single process */
    int zero;
    const char *offload; /* a folder for a file with the states; NULL: memory */
    size_t bucket_bytes; /* in which shares are cut, gathered and reduced; 0: 4 MB */
    /* Where blocks outlive the processes of this node (os.h), and this process's place there, which no
     * other living one has. NULL: they do not. With a folder for offloading it is not used. */
    tdm_shm *shm;
    int slot;
    uint32_t epoch;   /* of the membership; 0: the comm's */
    int thread_count; /* of this rank's updates; 0: 1 */
} tdm_params_options;

/* All blocks are zero at first. Collective. */
TDM_API tdm_status tdm_params_create(const tdm_params_options *options, tdm_params **out,
                                     tdm_error *err);
TDM_API void tdm_params_destroy(tdm_params *store); /* before the comm is closed */

/* Where a block lies, in the layout of the graph; NULL when there is none. Where it is not whole, only
 * this rank's share may be touched. */
TDM_API float *tdm_params_block(const tdm_params *store, int block);
TDM_API bool tdm_params_is_whole(const tdm_params *store, int block);

/* Collective: elements [first, first + count) of a block, wherever they are, into rank 0's `out`
 * (others pass NULL), or from rank 0's `in` to wherever they belong. After writes, and before anybody
 * reads by tdm_params_block or trains, tdm_params_settle. */
TDM_API tdm_status tdm_params_read(tdm_params *store, int block, size_t first, size_t count,
                                   float *out, tdm_error *err);
TDM_API tdm_status tdm_params_write(tdm_params *store, int block, size_t first, size_t count,
                                    const float *in, tdm_error *err);
/* Collective: brings everything about that was written, or updated by steps; then all ranks agree. */
TDM_API tdm_status tdm_params_settle(tdm_params *store, tdm_error *err);

/* Whether any number of a block of this rank's share (or of its part of a whole one) is not finite;
 * all ranks get the same answer: the first such element, or SIZE_MAX. Collective. */
TDM_API tdm_status tdm_params_find_bad(tdm_params *store, int block, size_t *out, tdm_error *err);

/* What this rank maps, for `inspect` and for tests: bytes of its own, and of the node in common. */
typedef struct tdm_params_info {
    int node_count, node_size; /* of this rank's node */
    uint64_t private_bytes, common_bytes, file_bytes;
    size_t bucket_count;
} tdm_params_info;
TDM_API tdm_params_info tdm_params_info_of(const tdm_params *store);

/*
 * Parameters for plans. A feed sees to it that what a step of a plan reads is there. Where a block is
 * whole that is nothing; where it is shared out, buckets are gathered shortly before they are read, the
 * next ones already while the current ones are used, and their memory is used again after that.
 * All ranks run the same sequence: each calls tdm_prefetch_begin, then tdm_prefetch_reach for its parts in
 * order of steps, to the end; or tdm_prefetch_pass, when it has nothing to run but others have.
 */
typedef struct tdm_prefetch tdm_prefetch;

/* For plans that differ in the number of rows only. `block`: PARAMS or EMA. Plans are borrowed, and get
 * bound to the feed's memory (TDM_SPACE_PARAMS). Collective. */
TDM_API tdm_status tdm_prefetch_create(tdm_params *store, int block, tdm_plan *const *plans,
                                       int plan_count, tdm_prefetch **out, tdm_error *err);
TDM_API void tdm_prefetch_destroy(tdm_prefetch *feed);
TDM_API tdm_status tdm_prefetch_begin(tdm_prefetch *feed, int plan, tdm_error *err);
/* Everything that steps from `step` on read is there, up to *until (excluded, and larger than step). */
TDM_API tdm_status tdm_prefetch_reach(tdm_prefetch *feed, size_t step, size_t *until,
                                      tdm_error *err);
TDM_API tdm_status tdm_prefetch_pass(tdm_prefetch *feed, tdm_error *err);
/* Runs a plan from its beginning to its end. */
TDM_API tdm_status tdm_prefetch_run(tdm_prefetch *feed, int plan, const tdm_step_key *key,
                                    tdm_error *err);
TDM_API uint64_t tdm_prefetch_bytes(const tdm_prefetch *feed); /* of memory for gathered buckets */

/* ---- the team: ranks that train --------------------------------------------------------------- */

typedef struct tdm_team tdm_team;

/* Puts rows [first, first + count) of the step's batch into x (f32 features, or i32 tokens) and
 * classes. Must not allocate or fail. */
typedef void (*tdm_lane_fill_fn)(void *user, int64_t first, int64_t count, void *x,
                                 int32_t *classes);

enum { TDM_TEAM_MAX_BATCHES = 2 };

/* Plans and memory for activations, which teams of one model can hand on to each other: making them takes
 * much longer than making a team. */
typedef struct tdm_plan_cache tdm_plan_cache;
TDM_API tdm_plan_cache *tdm_plan_cache_create(void); /* empty; NULL: no memory */
TDM_API void tdm_plan_cache_destroy(tdm_plan_cache *plan_cache);

typedef struct tdm_team_options {
    tdm_model_options model; /* batch, training and loss_scale are set by the team */
    tdm_params *store;       /* with an optimiser; borrowed */
    tdm_optimiser *optimiser;
    tdm_comm *comm; /* the store's */
    int64_t lane_count;
    int64_t batches[TDM_TEAM_MAX_BATCHES]; /* the sizes of batch that will come; 0: none */
    uint64_t seed;
    tdm_lane_fill_fn fill;
    void *user;
    tdm_plan_cache *
        plan_cache; /* of a team of before, or empty; one team at a time. NULL: the team has its own */
} tdm_team_options;

/* parallel.* of the model's job say how: zero, reduce, balance, bucket, overlap. There must be as many
 * lanes as ranks, or more (TDM_ERR_JOB_INVALID). Collective. */
TDM_API tdm_status tdm_team_create(const tdm_team_options *options, tdm_team **out, tdm_error *err);
TDM_API void tdm_team_destroy(tdm_team *team);

typedef struct tdm_step_result {
    double loss;      /* the mean over the batch, before the update */
    double grad_norm; /* of the whole gradient, before it was clipped; 0 when nobody asks for it */
    /* Whether the loss, every number of the gradient, as summed over the lanes, and all that the
     * lanes observed for statistics are finite, and the gradient is below 2^63, so that its squares
     * are finite as well. When not, nothing was changed. */
    bool finite;
    unsigned requests;  /* of all ranks, or-ed */
    uint64_t tally;     /* of all ranks, added up */
    bool moved;         /* lanes were placed anew */
    int straggler;      /* world rank, see tdm_balance_straggler; -1: none */
    double slow_factor; /* of it */
} tdm_step_result;

/*
 * One training step: all lanes forward and backward, the tree of gradients, the update with the
 * learning rate `lr`. `batch` is one of options.batches; `step` counts from 0. `wish` is any set of
 * bits, or-ed over the ranks, by which they agree on what to do after the step (to stop, say). All
 * ranks get the same result. Collective; allocates nothing.
 */
typedef struct tdm_step_input {
    uint64_t step;
    int64_t batch;
    double lr;
    unsigned request;
    const uint64_t *tally; /* looked at when this rank's lanes have run; NULL: 0 */
    /* Called on this rank when its part of the update is about to begin; no block changes before. NULL:
     * nobody is. */
    void (*before_update)(void *user);
    void *user;
} tdm_step_input;
TDM_API tdm_status tdm_team_step(tdm_team *team, const tdm_step_input *in, tdm_step_result *out,
                                 tdm_error *err);

/* What makes a step's numbers bad: NaN, infinite, or too large to be squared. */
typedef enum tdm_bad_kind {
    TDM_BAD_NOWHERE = 0, /* the replay was fine: the machine computed otherwise before */
    TDM_BAD_PARAM,       /* a parameter, statistic or buffer was bad before the step */
    TDM_BAD_DATA,        /* a sample is */
    TDM_BAD_OP,          /* an op made it from good numbers */
    TDM_BAD_SUM,         /* each lane's gradient is good; added up they overflow */
    TDM_BAD_LARGE        /* the gradient is finite, but so large that its square is not */
} tdm_bad_kind;

typedef struct tdm_bad_number {
    tdm_bad_kind kind;
    const char *name; /* of the parameter, statistic or buffer, or of the op: "h.3.attention" */
    /* DATA and OP: */
    bool is_nan;
    int64_t lane;
    tdm_slice rows;    /* the lane's, of the batch */
    int64_t bad_rows;  /* how many of them have bad numbers there; 0: that cannot be told */
    int64_t first_row; /* of these, in the batch */
    const char *op;    /* OP: its kind: "attention" */
    bool backward;     /* OP */
} tdm_bad_number;

/*
 * Looks for what made the last step's result not finite, before anything else is done with the team:
 * every rank runs all lanes again, in order, and tells of the first lane that is bad the first op with a
 * bad number among its outputs. The same kernels see the same numbers, so all ranks find the same.
 * Names live as long as the team. Changes and allocates nothing. Collective.
 */
TDM_API tdm_status tdm_team_replay(tdm_team *team, tdm_bad_number *out, tdm_error *err);

/*
 * A look at a step without an update, in a single process: every lane in order, then the sum.
 * `visit`, for each lane with rows, and at last with lane -1 for the whole: its loss and its gradient,
 * tdm_graph_grad_extent floats, valid during the call. (For `tandem replay`.)
 */
typedef void (*tdm_lane_visit_fn)(void *user, int64_t lane, tdm_slice rows, double loss,
                                  const float *grad);
TDM_API tdm_status tdm_team_look(tdm_team *team, const tdm_step_input *in, tdm_lane_visit_fn visit,
                                 void *user, tdm_error *err);
/* From now on such looks also show what each op of a lane has made, when it has run (`graph` is the
 * lane's, to which event->node refers). NULL: no longer. */
typedef void (*tdm_lane_watch_fn)(void *user, int64_t lane, const tdm_graph *graph,
                                  const tdm_plan_event *event);
TDM_API void tdm_team_watch(tdm_team *team, tdm_lane_watch_fn watch, void *user);

typedef struct tdm_team_info {
    int rank_count;
    int64_t lane_count;
    size_t arena_bytes;     /* of this rank */
    size_t grad_bytes;      /* of this rank's gradient buffers */
    size_t bucket_bytes;    /* in which gradients travel; 0: they do not */
    uint64_t flops_per_row; /* forward and backward */
} tdm_team_info;
TDM_API tdm_team_info tdm_team_info_of(const tdm_team *team);

/* What ranks did so far; all ranks know it of all. Call between steps only. */
typedef struct tdm_team_rank {
    int host;              /* tdm_comm_host_of */
    int64_t lanes;         /* that it executes in a step now */
    uint64_t lanes_done;   /* in all */
    uint64_t rows_done;    /* in all */
    double lane_seconds;   /* spent in lanes, waits left out */
    double update_seconds; /* spent in adding up and updating, waits left out */
    double wait_seconds;   /* spent waiting for others */
} tdm_team_rank;
TDM_API void tdm_team_rank_of(const tdm_team *team, int rank, tdm_team_rank *out);

/* ---- after a failure -------------------------------------------------------------------------- */

/*
 * With a vault, the state after the last step outlives any process of the node, and ranks of a later world
 * (an epoch) go on from there. Beside the blocks, ranks remember a memo: a small record of the caller's,
 * which must say all that it takes to go on. `order` grows.
 */
enum { TDM_SNAPSHOT_BYTES = 1024 };
TDM_API void tdm_params_snapshot_save(tdm_params *store, const void *memo, size_t bytes,
                                      uint64_t order);

typedef struct tdm_recovery {
    bool found;    /* the state is here, whole, wherever it is needed; else blocks hold anything */
    bool is_old;   /* it is not of the lineage: later steps were done, and are lost */
    uint64_t step; /* it is that after so many steps */
    bool finished; /* its last step was finished now, or its result may not be known to all: */
    double lr;     /* with what it was done */
    tdm_step_result result;
    uint64_t snapshot_order; /* of the latest memo; 0: there is none */
    unsigned char memo[TDM_SNAPSHOT_BYTES];
    int mended; /* pieces that were made whole, or done for those that are gone, on this node */
} tdm_recovery;

/*
 * To be called on a new store with a vault, before anything else is done with it, teams included. Keeps
 * ranks of earlier epochs from writing, finishes the update that was under way if anybody had begun it,
 * and brings the state to nodes that lack it. A node's state counts when it is of epoch `lineage`, or of a
 * later one; an older one only where no such state is left (`is_old`). The same on all ranks, as is all of
 * `out` but `mended`. Collective.
 */
TDM_API tdm_status tdm_params_recover(tdm_params *store, int64_t lane_count, uint32_t lineage,
                                      tdm_recovery *out, tdm_error *err);
/* Before and after all blocks are set by tdm_params_write: from now on they are nothing; they are the state
 * after so many steps. Nothing without a vault. Collective. */
TDM_API tdm_status tdm_params_unset(tdm_params *store, tdm_error *err);
TDM_API tdm_status tdm_params_set(tdm_params *store, uint64_t step, tdm_error *err);

/* ---- predictions ------------------------------------------------------------------------------ */

/*
 * What the ranks of one node would map for a training, without making any of it. Ranks are spread
 * evenly over the nodes, and the node is one with the most of them. Bytes are those that are touched:
 * reserved address space that stays empty does not count.
 */
typedef struct tdm_ranks_memory_options {
    const tdm_graph *graph; /* of a lane */
    const tdm_plan *plan;   /* of it */
    const tdm_job *job;     /* parallel.* but for zero, and optim.ema */
    int state_count;        /* of the optimiser, as blocks of the parameters' size */
    int rank_count, node_count;
    int64_t lane_count;
    int zero;
} tdm_ranks_memory_options;

/* Of all ranks of the node together. */
typedef struct tdm_ranks_memory {
    int node_ranks;
    uint64_t parameter_bytes; /* with statistics and buffers, and where buckets are gathered */
    uint64_t gradient_bytes;
    uint64_t state_bytes;   /* with the average of the weights */
    uint64_t file_bytes;    /* of that, in files (parallel.offload) */
    int gradient_buffers;   /* whole ones */
    int lanes_side_by_side; /* the most that a rank runs at once: so many arenas it has */
} tdm_ranks_memory;
TDM_API tdm_status tdm_ranks_memory_of(const tdm_ranks_memory_options *options,
                                       tdm_ranks_memory *out, tdm_error *err);

#ifdef __cplusplus
}
#endif
#endif
