/*
 * parallel.h: lanes, the ranks that execute them, and the memory of parameters and optimiser state.
 *
 * The batch of a step is divided into `lane_count` contiguous slices, the lanes. A lane's gradient is a
 * function of its samples and the parameters only. Lanes are summed by a fixed binary tree over their index, node =
 * left + right. Ranks do not own data: they execute lanes, and any rank may execute any lane. So the
 * trained parameters depend on the number of lanes, which the job sets, and not on the number of ranks,
 * on the placement of lanes, or on how the state is distributed.
 *
 * A lane without rows (the last batch of a data epoch may have fewer rows than lanes) is left out: the
 * parent of such a lane in the tree is its sibling.
 *
 * Ranks are the members of a world (comm.h), or a single process without one. Everything here that
 * takes a comm is collective: all ranks call the same functions in the same order. When a rank fails,
 * the others get a status of the peer group from the current call or the next one.
 *
 * A node is a set of ranks with common shared memory (tdm_comm_node_of), normally those of one host. They have
 * one copy of the parameters and update it together, each rank its share.
 *
 * Modules above use this header; programs have <tandem/parallel.h>. libtandem.so does not export it.
 */
#ifndef TANDEM_PARALLEL_PARALLEL_H
#define TANDEM_PARALLEL_PARALLEL_H

#include "graph/graph.h"
#include "optim/optim.h"
#include "parallel/payoff.h"

#include <tandem/base.h>
#include <tandem/comm.h>
#include <tandem/nn.h>
#include <tandem/os.h>
#include <tandem/parallel.h>

typedef struct tdm_slice {
    int64_t first;
    int64_t count;
} tdm_slice;

/* Rows of lane `lane` when `row_count` rows are divided into `lane_count` slices. Sizes differ by at most
 * one; the larger slices are spread evenly, and the first slice is one of them. */
tdm_slice tdm_lane_slice(int64_t row_count, int64_t lane_count, int64_t lane);

/* Maximum number of gradient buffers that a rank holds while it executes this block of lanes. */
int tdm_lane_buffers(int64_t lane_count, tdm_slice lanes);

/* ---- placement ------------------------------------------------------------------------------- */

/*
 * Assigns lanes to ranks: rank i executes [first[i], first[i + 1]); `first` has rank_count + 1
 * entries. Every rank gets at least one lane; rank_count must be at most lane_count. `weights` has the
 * relative speed of each rank; NULL: equal. The assignment minimises the time of the slowest rank,
 * lanes / weight. With equal weights the counts differ by at most one. Pure function.
 */
void tdm_place_lanes(int64_t lane_count, int rank_count, const double *weights, int64_t *first);

/*
 * Dynamic placement: every step, tdm_balance_observe gets each rank's time. It returns true and changes
 * `first` when moving lanes would make steps faster by a minimum amount and has done so for several steps, so
 * noise moves nothing. All ranks observe the same numbers and so decide alike. No allocation.
 */
typedef struct tdm_balance tdm_balance;
tdm_balance *tdm_balance_create(int64_t lane_count, int rank_count); /* NULL: no memory */
void tdm_balance_destroy(tdm_balance *balance);
/* seconds[i]: time of rank i for its lanes of this step, without waits. */
bool tdm_balance_observe(tdm_balance *balance, const double *seconds, int64_t *first);
/* The rank that has needed at least 1.5 times as long per lane as the others for several steps; -1: none.
 * *factor is its time relative to the median. */
int tdm_balance_straggler(const tdm_balance *balance, double *factor);

/* Chooses the bucket size for `grad_bytes` of gradients if parallel.bucket is auto. Where gradients
 * are sent between nodes this is measured, which takes about a second. All ranks get the same. Collective. */
tdm_status tdm_bucket_choose(tdm_comm *comm, uint64_t grad_bytes, size_t *out, tdm_error *err);

/* ---- the parameter store: memory of parameters and state -------------------------------------- */

/*
 * Blocks of f32 in the layout of a graph: the parameters (followed by statistics and buffers), the
 * optimiser's states, and the average of the weights. parallel.zero sets how much of a block a rank holds:
 *   0  every node has all blocks complete; its ranks share them
 *   1  parameters are complete on every node; each rank has its share of states and average
 *   2  as 1 (gradients are handled by the team)
 *   3  each rank has its share of all blocks; with one node as 2
 * A share is a set of cells; a cell is TDM_OPTIM_PIECE_ELEMENTS elements, aligned to that number.
 */
typedef struct tdm_params tdm_params;

enum {
    TDM_BLOCK_PARAMS = 0,
    TDM_BLOCK_EMA = 1,
    TDM_BLOCK_STATE = 2, /* + index of the state */
    /* + replica x arrays + array: see tdm_params_options.replica_count */
    TDM_BLOCK_REPLICA = TDM_BLOCK_STATE + TDM_OPTIM_MAX_STATES
};

/* The number of logical replicas of a job: sync.replicas, or the value of `auto`, which depends only on the job. 0: the
 * job has none (sync.kind is all_reduce, and it does not compress). */
int64_t tdm_replicas_of(const tdm_job *job);
/* The number of leaves of the tree: that of lanes; with sync.kind server each replica executes all lanes of a batch. */
int64_t tdm_tree_lanes_of(const tdm_job *job);
/* The arrays that each replica keeps for the job's compression: their number, and their names in checkpoints. */
enum { TDM_MAX_COMPRESS_ARRAYS = 2 };
int tdm_compress_arrays(const tdm_job *job, const char *names[TDM_MAX_COMPRESS_ARRAYS]);
/* The sizes of what a replica sends; 0: it does not send this. */
typedef struct tdm_compress_sizes {
    size_t payload_bytes; /* at most, after the warm-up of the ratio */
    size_t first_factor,
        second_factor; /* PowerSGD, in elements; with the tensors that stay dense */
} tdm_compress_sizes;
/* TDM_ERR_JOB_INVALID: the settings do not fit the model, such as a rank with which no matrix becomes smaller. */
tdm_status tdm_compress_sizes_of(const tdm_job *job, const tdm_graph *graph,
                                 tdm_compress_sizes *out, tdm_error *err);

typedef struct tdm_params_options {
    const tdm_graph *graph;   /* defines the layout; borrowed */
    tdm_optimiser *optimiser; /* is bound to the blocks; NULL: parameters only */
    bool has_ema;
    tdm_comm *comm; /* NULL: a single process */
    int zero;
    const char *offload; /* a directory for a file with the states; NULL: in memory */
    size_t bucket_bytes; /* unit of sharding, gathering and reduction; 0: 4 MB */
    /* The segment in which the blocks survive the processes of this node (os.h), and the slot of this process,
     * unique among living processes. NULL: memory that ends with the ranks. Not used with `offload`. */
    tdm_shm *shm;
    int slot;
    uint32_t epoch;   /* membership epoch; 0: the comm's */
    int thread_count; /* maximum for this rank's updates; 0: any number */
    /* Logical replicas, and the number of arrays of each, initially zero. A replica is executed by one rank, in whose
     * node's memory its arrays are. */
    int64_t replica_count;
    int replica_arrays;
    size_t replica_tail; /* elements behind those of the graph, in each array */
    /* The statistics of a step replace those of the model; else the model's follow them with their momentum. */
    bool takes_statistics;
    /* The first array of a replica is the model that it has read, and an update changes the arrays of single replicas
     * only (sync.kind server). Ranks must share the memory of one node. */
    bool is_ordered;
    /* The first array of a replica is its model, and the element behind it (replica_tail is 1) its push-sum weight. The
     * parameter block is their mean, which tdm_team_average computes; steps do not change it (sync.kind gossip). */
    bool is_gossip;
} tdm_params_options;

/* All blocks are initially zero. Collective. */
tdm_status tdm_params_create(const tdm_params_options *options, tdm_params **out, tdm_error *err);
void tdm_params_destroy(tdm_params *store); /* before the comm is closed */

/* Address of a block, in the layout of the graph; NULL if it does not exist. If the block is sharded, only
 * this rank's share may be accessed. */
float *tdm_params_block(const tdm_params *store, int block);
bool tdm_params_is_whole(const tdm_params *store, int block);

/* Collective: copies elements [first, first + count) of a block from their owners to rank 0's `out`
 * (other ranks pass NULL), or from rank 0's `in` to their owners. After writes, call tdm_params_settle before
 * reading through tdm_params_block or training. */
tdm_status tdm_params_read(tdm_params *store, int block, size_t first, size_t count, float *out,
                           tdm_error *err);
tdm_status tdm_params_write(tdm_params *store, int block, size_t first, size_t count,
                            const float *in, tdm_error *err);
/* Collective: distributes everything written or updated by steps, and waits for all ranks. */
tdm_status tdm_params_settle(tdm_params *store, tdm_error *err);

/* Finds the first non-finite number in a block, in this rank's share or its part of a complete block. All
 * ranks get the same index, or SIZE_MAX if all are finite. Collective. */
tdm_status tdm_params_find_bad(tdm_params *store, int block, size_t *out, tdm_error *err);

/* Memory this rank maps, for `inspect` and tests: private, and common to the node. */
typedef struct tdm_params_info {
    int node_count, node_size; /* of this rank's node */
    uint64_t private_bytes, common_bytes, file_bytes;
    size_t bucket_count;
} tdm_params_info;
tdm_params_info tdm_params_info_of(const tdm_params *store);

/*
 * Provides parameters to plans. It ensures that the parameters a plan step reads are present. For a complete
 * block nothing is to be done. For a sharded block, buckets are gathered shortly before they are read, the next
 * ones while the current ones are in use, and their memory is reused afterwards.
 * All ranks execute the same sequence: each calls tdm_prefetch_begin, then tdm_prefetch_reach for its parts in
 * step order to the end; or tdm_prefetch_pass if it has nothing to run while other ranks do.
 */
typedef struct tdm_prefetch tdm_prefetch;

/* For plans that differ only in the number of rows. `block`: PARAMS or EMA. Plans are borrowed, and are
 * bound to the memory of the prefetch (TDM_SPACE_PARAMS). Collective. */
tdm_status tdm_prefetch_create(tdm_params *store, int block, tdm_plan *const *plans, int plan_count,
                               tdm_prefetch **out, tdm_error *err);
void tdm_prefetch_destroy(tdm_prefetch *prefetch);
tdm_status tdm_prefetch_begin(tdm_prefetch *prefetch, int plan, tdm_error *err);
/* Returns when everything that plan steps [step, *until) read is present; *until > step. */
tdm_status tdm_prefetch_reach(tdm_prefetch *prefetch, size_t step, size_t *until, tdm_error *err);
tdm_status tdm_prefetch_pass(tdm_prefetch *prefetch, tdm_error *err);
/* Runs a plan from its beginning to its end. */
tdm_status tdm_prefetch_run(tdm_prefetch *prefetch, int plan, const tdm_step_key *key,
                            tdm_error *err);
uint64_t tdm_prefetch_bytes(const tdm_prefetch *prefetch); /* memory for gathered buckets */

/* ---- the team: the ranks that train a model --------------------------------------------------- */

typedef struct tdm_team tdm_team;

/* Writes rows [first, first + count) of the step's batch to x (f32 features or i32 tokens) and
 * classes. Must not allocate or fail. */
typedef void (*tdm_lane_fill_fn)(void *user, int64_t first, int64_t count, void *x,
                                 int32_t *classes);

/* Gets the gradient of the input of rows [first, first + count), for models that output it (TDM_MODEL_INPUT_GRADIENT).
 * Called for the lanes of a rank in their order, after each has run. False: it is not in the safe range, so the step
 * counts as not finite. */
typedef bool (*tdm_lane_take_fn)(void *user, int64_t first, int64_t count, const float *d_x);

enum { TDM_TEAM_MAX_BATCHES = 2 };

/* Compiled plans and activation memory, reusable by later teams of the same model: creating them takes much
 * longer than creating a team. */
typedef struct tdm_plan_cache tdm_plan_cache;
tdm_plan_cache *tdm_plan_cache_create(void); /* empty; NULL: no memory */
void tdm_plan_cache_destroy(tdm_plan_cache *plan_cache);

typedef struct tdm_team_options {
    tdm_model_options model; /* batch, training and loss_scale are set by the team */
    tdm_params *store;       /* has an optimiser; borrowed */
    tdm_optimiser *optimiser;
    tdm_comm *comm; /* that of the parameter store */
    /* sync.kind local and gossip: that of the replicas; `optimiser` is the outer one */
    tdm_optimiser *inner;
    int64_t lane_count;
    int64_t batches[TDM_TEAM_MAX_BATCHES]; /* batch sizes that will be used; 0: unused entry */
    uint64_t seed;
    tdm_lane_fill_fn fill;
    tdm_lane_take_fn take; /* NULL: not wanted */
    void *user;
    /* of an earlier team, or empty; used by one team at a time. NULL: private */
    tdm_plan_cache *plan_cache;
} tdm_team_options;

/* parallel.* of the model's job apply: zero, reduce, balance, bucket, overlap. TDM_ERR_JOB_INVALID: fewer
 * lanes than ranks. Collective. */
tdm_status tdm_team_create(const tdm_team_options *options, tdm_team **out, tdm_error *err);
void tdm_team_destroy(tdm_team *team);

typedef struct tdm_step_result {
    double loss;      /* the mean over the batch, before the update */
    double grad_norm; /* of the whole gradient, before clipping; 0 if it is not needed */
    /* True if the loss, the gradient summed over the lanes and all statistics that the lanes observed are
     * finite, and the gradient is below 2^63, so that its squares are finite as well. If false, nothing
     * was changed. */
    bool finite;
    unsigned requests;  /* of all ranks, or-ed */
    uint64_t tally;     /* sum over all ranks */
    bool moved;         /* the placement of lanes changed */
    int straggler;      /* world rank, see tdm_balance_straggler; -1: none */
    double slow_factor; /* relative time of the straggler */
    /* With compression: the size of what all replicas sent, and the time that the rank needed that took longest. */
    uint64_t payload_bytes;
    uint64_t dense_bytes; /* the same as f32 */
    double codec_seconds;
    /* With sync.adapt_divergence: the root of the mean squared distance of the replicas from their mean, divided by the
     * norm of the model before the step. */
    double divergence;
} tdm_step_result;

/*
 * Executes one training step: forward and backward of all lanes, the gradient tree, the update with
 * learning rate `lr`. `batch` is one of options.batches; `step` counts from 0. `request` is any set of
 * bits, or-ed over the ranks, by which they agree on what to do after the step (for example to stop). All
 * ranks get the same result. Collective; allocates nothing.
 */
/* An update of sync.kind server, modes async and stale. */
enum { TDM_ORDER_MAX_WORKERS = 64 };
typedef struct tdm_order_entry {
    uint32_t worker;    /* the replica */
    uint32_t staleness; /* number of updates since the worker read the model */
    uint64_t
        readers; /* bit w: worker w reads the model right after this update, and begins its next gradient */
    uint64_t batch; /* the step, from 0, whose samples the gradient is of */
} tdm_order_entry;

typedef struct tdm_inner_step {
    uint64_t step;
    int64_t batch;
    double lr;
} tdm_inner_step;

/* A round of sync.order live: the team decides the updates, and fills in `entries`. */
struct tdm_order_state;
typedef struct tdm_live_round {
    const struct tdm_order_state *state; /* before the round; the same on all ranks */
    uint64_t max;                        /* number of updates, at least 1 */
    uint64_t count;
    tdm_order_entry *entries; /* TDM_ORDER_MAX_WORKERS; those of the round */
    /* Makes the team's fill function refer to a batch, and sets its number of rows. Called, like the fill function, by
     * another thread, at any time until the team is destroyed. */
    void (*batch)(void *user, uint64_t batch, tdm_inner_step *out);
    void *user;
} tdm_live_round;

typedef struct tdm_step_input {
    uint64_t step; /* sync.kind local: of the round, see `inner` */
    int64_t batch;
    double lr;
    unsigned request;
    const uint64_t *tally; /* read after this rank's lanes have run; NULL: 0 */
    /* Called on this rank when its part of the update is about to begin; no block changes before that. May be
     * NULL. */
    void (*before_update)(void *user);
    void *user;
    /*
     * sync.kind local and gossip: a call is a round of `inner_count` steps, which each replica executes alone. With
     * local, one update of the model by the outer optimiser with `lr` follows. `inner` gives the settings of inner step `index` and makes
     * the team's fill function refer to its batch. It is called before each inner step of each replica. `batch` is that
     * of the first one. The result has the mean loss of the round.
     */
    int64_t inner_count;
    void (*inner)(void *user, int64_t index, tdm_inner_step *out);
    /*
     * sync.kind server: a call makes inner_count updates, from `step` on, one after the other: entry i of `order` is
     * that of update step + i, whose settings `inner` gives. The workers of all of them have read the model before
     * `step`, so their gradients are computed side by side. NULL: not used.
     */
    const tdm_order_entry *order;
    /* sync.order live: instead of `order` and inner_count. Before before_update is called, the round is decided. */
    tdm_live_round *live;
} tdm_step_input;
tdm_status tdm_team_step(tdm_team *team, const tdm_step_input *in, tdm_step_result *out,
                         tdm_error *err);

/*
 * sync.kind gossip: writes the mean of the replicas' models to the parameter block, unless it is there already.
 * *distance: the root of the mean squared distance of the replicas from it; weights[r]: the push-sum weight of a replica.
 * No other strategy changes anything, or writes to these. Collective.
 */
tdm_status tdm_team_average(tdm_team *team, double *distance, double *weights, tdm_error *err);

/* The origin of a step's non-finite values: NaN, infinite, or too large to be squared. */
typedef enum tdm_bad_kind {
    TDM_BAD_NOWHERE = 0, /* the replay found none: the first execution computed something else */
    TDM_BAD_PARAM,       /* a parameter, statistic or buffer was not finite before the step */
    TDM_BAD_DATA,        /* a sample is not finite */
    TDM_BAD_OP,          /* an op produced it from finite inputs */
    TDM_BAD_SUM,         /* each lane's gradient is finite; their sum overflows */
    TDM_BAD_LARGE        /* the gradient is finite, but its square is not */
} tdm_bad_kind;

typedef struct tdm_bad_number {
    tdm_bad_kind kind;
    const char *name; /* of the parameter, statistic or buffer, or of the op: "h.3.attention" */
    /* DATA and OP: */
    bool is_nan;
    int64_t lane;
    tdm_slice rows;    /* of the lane, in the batch */
    int64_t bad_rows;  /* number of rows with non-finite values there; 0: unknown */
    int64_t first_row; /* the first of bad_rows, in the batch */
    const char *op;    /* OP: its kind: "attention" */
    bool backward;     /* OP */
} tdm_bad_number;

/*
 * Finds the origin of the non-finite values of the last step; must be the next call on the team after it.
 * Every rank runs all lanes again, in order, and reports the first op with a non-finite output in the first
 * such lane. The same kernels get the same inputs, so all ranks find the same op.
 * Names live as long as the team. Changes nothing and allocates nothing. Collective.
 */
tdm_status tdm_team_replay(tdm_team *team, tdm_bad_number *out, tdm_error *err);

/*
 * Executes a step without an update, in a single process: every lane in order, then the sum. Calls
 * `visit` for each lane with rows, and finally with lane -1 for the sum, with the loss and the gradient
 * (tdm_graph_grad_extent floats, valid during the call). Used by `tandem replay`.
 */
typedef void (*tdm_lane_visit_fn)(void *user, int64_t lane, tdm_slice rows, double loss,
                                  const float *grad);
tdm_status tdm_team_look(tdm_team *team, const tdm_step_input *in, tdm_lane_visit_fn visit,
                         void *user, tdm_error *err);
/* Makes tdm_team_look also call `watch` with the outputs of each op of a lane after it has run. `graph` is
 * the lane's graph, to which event->node refers. NULL: stop. */
typedef void (*tdm_lane_watch_fn)(void *user, int64_t lane, const tdm_graph *graph,
                                  const tdm_plan_event *event);
void tdm_team_watch(tdm_team *team, tdm_lane_watch_fn watch, void *user);

/* The classes of the trained tensors of a graph. */
tdm_payoff_classes tdm_payoff_classes_of(const tdm_job *job, const tdm_graph *graph);
/* Measures, in less than a second, the link between the hosts, and the cost of the job's compression; of a job without
 * compression, of all methods except TDM_PAYOFF_OWN. All ranks get the same numbers. Collective. */
tdm_status tdm_team_measure(tdm_team *team, tdm_payoff *out, tdm_error *err);
/* With compress.auto: sets the method of all steps, before the first one. Collective. */
tdm_status tdm_team_compress(tdm_team *team, tdm_payoff_method method, tdm_error *err);

typedef struct tdm_team_info {
    int rank_count;
    int64_t lane_count;
    size_t arena_bytes;     /* of this rank */
    size_t grad_bytes;      /* of this rank's gradient buffers */
    size_t bucket_bytes;    /* size of gradient messages; 0: gradients are not sent */
    uint64_t flops_per_row; /* forward and backward */
} tdm_team_info;
tdm_team_info tdm_team_info_of(const tdm_team *team);
/* The rows of a batch that this rank executes in the next step. */
tdm_slice tdm_team_rows_of(const tdm_team *team, int64_t batch);

/* Statistics of a rank, known on all ranks. Call between steps only. */
typedef struct tdm_team_rank {
    int host;              /* tdm_comm_host_of */
    int64_t lanes;         /* per step, at present */
    uint64_t lanes_done;   /* total */
    uint64_t rows_done;    /* total */
    double lane_seconds;   /* executing lanes, without waits */
    double update_seconds; /* summing and updating, without waits */
    double wait_seconds;   /* waiting for other ranks */
} tdm_team_rank;
void tdm_team_rank_of(const tdm_team *team, int rank, tdm_team_rank *out);

/* ---- the order of asynchronous updates ---------------------------------------------------------- */

/*
 * sync.kind server, modes async and stale. Workers are logical replicas. A worker reads the model and computes a
 * gradient, which then updates the model that other workers have changed meanwhile. The order is data: an entry for each
 * update says which worker makes it and which workers read the model after it, and any number of ranks can execute it.
 *
 * sync.order says where the order comes from. virtual draws it from a logical clock: the time of a gradient is a function
 * of the seed, the worker and the number of its gradient. recorded repeats entries that another run has recorded. live
 * makes an update when its gradient is complete.
 *
 * The gradient of update u is that of batch u if the order is virtual. In a live order the update is not known when a
 * gradient begins: then workers take the next batch when they read the model.
 */

/* What the workers do after some updates. Plain numbers only, so that it can be sent. */
typedef struct tdm_order_state {
    uint64_t next;       /* the number of updates so far */
    uint64_t next_batch; /* of the next worker that reads the model */
    uint64_t
        rules; /* bit 0: batches have followed updates, bit 1: readings; at least one of them is set */
    int64_t worker_count;
    int64_t bound; /* sync.staleness; -1: none */
    struct tdm_order_worker {
        uint64_t count;   /* of its updates so far */
        uint64_t read_at; /* number of updates in the model that it has read */
        uint64_t waits;   /* 1: it has read no model since its last update */
        uint64_t batch;   /* that it took when it read the model */
    } workers[TDM_ORDER_MAX_WORKERS];
} tdm_order_state;

/* Before the first update: all workers have read the initial model. TDM_ERR_JOB_INVALID: too many workers. */
tdm_status tdm_order_state_init(const tdm_job *job, tdm_order_state *out, tdm_error *err);
/* Whether the bound allows a worker that waits to read the model now. */
bool tdm_order_may_read(const tdm_order_state *state, int64_t worker);
/* Makes one update. TDM_ERR_FORMAT: the entry contradicts those before it, or the bound; `state` is unchanged. */
tdm_status tdm_order_follow(tdm_order_state *state, const tdm_order_entry *entry, tdm_error *err);

typedef struct tdm_order tdm_order;

/* TDM_ERR_JOB_INVALID: sync.speeds does not have one number for each worker. */
tdm_status tdm_order_create(const tdm_job *job, tdm_order **out, tdm_error *err);
void tdm_order_destroy(tdm_order *order);
/* With sync.order recorded: appends the next entry of the recorded order. Fails as tdm_order_follow. */
tdm_status tdm_order_add(tdm_order *order, const tdm_order_entry *entry, tdm_error *err);
/* The update `step`, from 0; of a recorded order one that was added. A virtual order costs as many steps as there are
 * since the last call; from the first one, if it is far behind. */
tdm_order_entry tdm_order_at(tdm_order *order, uint64_t step);
/* Whether update u has the gradient of batch u, as far as the order is known. */
bool tdm_order_has_batches_in_order(const tdm_order *order);
/* The number of updates from `step` on, at most `max`, whose workers have read the model before `step`: their gradients
 * can be computed at the same time. */
uint64_t tdm_order_round(tdm_order *order, uint64_t step, uint64_t max);

/* ---- the graph of gossip -------------------------------------------------------------------------- */

/*
 * sync.kind gossip: which replicas send their models to which in a round. A replica keeps one share of its model and
 * sends an equal one to each target, so the matrix of the shares has columns with the sum 1: no mass is lost (push-sum).
 * A function of the job and the round, so all ranks have the same graph.
 */
enum { TDM_GOSSIP_MAX_TARGETS = 32 };
typedef struct tdm_gossip_graph {
    int kind; /* tdm_job_graph */
    int64_t replica_count;
    int target_count; /* of each replica, in each round */
    uint64_t seed;
} tdm_gossip_graph;

/* TDM_ERR_JOB_INVALID: fewer than two replicas, or fewer than the degree needs. */
tdm_status tdm_gossip_graph_init(const tdm_job *job, tdm_gossip_graph *out, tdm_error *err);
/* The targets of a replica, without itself, all different: target_count numbers. */
void tdm_gossip_targets(const tdm_gossip_graph *graph, uint64_t round, int64_t replica,
                        int64_t *out);
/* The part of its model that a replica keeps, and that it sends to each target. */
static inline float tdm_gossip_share(const tdm_gossip_graph *graph)
{
    return 1.0f / (float)(graph->target_count + 1);
}

/* ---- after a failure -------------------------------------------------------------------------- */

/*
 * With shared memory, the state after the last step survives every process of the node, and the ranks of a later
 * world (membership epoch) continue from it. Beside the blocks, ranks save a snapshot: a small record of the
 * caller with everything it needs to continue. `order` must increase.
 */
enum { TDM_SNAPSHOT_BYTES = 1024 };
void tdm_params_snapshot_save(tdm_params *store, const void *snapshot, size_t bytes,
                              uint64_t order);

typedef struct tdm_recovery {
    /* the complete state is available where needed; if false, the contents of the blocks are
     * undefined */
    bool found;
    bool is_old;   /* the state is older than the lineage: later steps were done and are lost */
    uint64_t step; /* number of steps done in the state */
    /* the last step was completed by the recovery, or some ranks may not have its result */
    bool finished;
    double lr; /* learning rate of that step */
    tdm_step_result result;
    /* sync.kind server: the last updates, of which the first one is that of step `step` - update_count */
    uint32_t update_count;
    tdm_order_entry updates[TDM_ORDER_MAX_WORKERS];
    uint64_t snapshot_order; /* of the latest snapshot; 0: none */
    unsigned char snapshot[TDM_SNAPSHOT_BYTES];
    int recovered_pieces; /* optimiser pieces rolled back or completed for lost ranks, on this node */
} tdm_recovery;

/*
 * Must be the first call on a new parameter store with shared memory, before a team is created. Fences ranks of
 * earlier membership epochs, completes an update that had begun, and copies the state to nodes that lack it. A
 * node's state is used if it is of epoch `lineage` or later; an older one only if no such state is left
 * (`is_old`). All of `out` except `recovered_pieces` is the same on all ranks. Collective.
 */
tdm_status tdm_params_recover(tdm_params *store, int64_t lane_count, uint32_t lineage,
                              tdm_recovery *out, tdm_error *err);
/* To replace all blocks with tdm_params_write: tdm_params_unset marks them invalid, tdm_params_set marks them
 * as the state after `step` steps. No effect without shared memory. Collective. */
tdm_status tdm_params_unset(tdm_params *store, tdm_error *err);
tdm_status tdm_params_set(tdm_params *store, uint64_t step, tdm_error *err);

/* ---- predictions ------------------------------------------------------------------------------ */

/*
 * Predicts the memory that the ranks of one node would map for a training run, without mapping it. Ranks are
 * spread evenly over the nodes; the node is one with the most ranks. Bytes count touched memory only, not
 * reserved address space.
 */
typedef struct tdm_ranks_memory_options {
    const tdm_graph *graph; /* of one lane */
    const tdm_plan *plan;   /* of that graph */
    const tdm_job *job;     /* parallel.* except zero, and optim.ema */
    int state_count;        /* of the optimiser, in blocks of the size of the parameters */
    int rank_count, node_count;
    int64_t lane_count;
    int zero;
} tdm_ranks_memory_options;

/* Sums over all ranks of the node. */
typedef struct tdm_ranks_memory {
    int node_ranks;
    uint64_t parameter_bytes; /* with statistics and buffers, and memory for gathered buckets */
    uint64_t gradient_bytes;
    uint64_t state_bytes; /* with the average of the weights */
    uint64_t file_bytes;  /* the part of state_bytes in files (parallel.offload) */
    int gradient_buffers; /* complete ones */
    int lanes_side_by_side; /* maximum number of lanes a rank runs concurrently; it has as many arenas */
} tdm_ranks_memory;
tdm_status tdm_ranks_memory_of(const tdm_ranks_memory_options *options, tdm_ranks_memory *out,
                               tdm_error *err);

#endif
