/*
 * internal.h: shared by the files of the team: the tree over lanes, and the team itself.
 *
 * A node of the tree is (level, index): level 0 are the lanes; node (k, i) covers lanes [i 2^k,
 * (i + 1) 2^k). Nodes are numbered as in a heap: the root is 1, the children of n are 2n and 2n + 1,
 * lane l is lane_count + l.
 *
 * Files: lanes.c (slices, the tree), team.c (creation, the step), run.c (a rank executes its lanes),
 * common.c (sums if all gradients are in shared memory), buckets.c (sums by messages), update.c
 * (the passes of the optimiser), replica_run.c (replicas with state, instead of lanes alone), live.c (their gradients, by another thread), blame.c and look.c (a
 * step executed again for inspection).
 */
#ifndef TANDEM_PARALLEL_INTERNAL_H
#define TANDEM_PARALLEL_INTERNAL_H

#include "optim/optim.h"
#include "parallel/parallel.h"
#include "parallel/params.h"
#include "parallel/undo_log.h"

#include <tandem/os.h>

#include <stdatomic.h>

/* Magnitude from which a gradient, summed over the lanes, counts as non-finite. */
#define TDM__GRADIENT_BOUND 0x1p63f

/* ---- the tree (lanes.c) ---------------------------------------------------------------------- */

typedef struct tdm__tree {
    int64_t lane_count;
    float **held; /* by heap number: the buffer with this node's sum; NULL: add its children */
} tdm__tree;

/* Computes the sum of node `node` over elements [begin, begin + count) into `out`. Returns false, without
 * changing `out`, if no lane below it had rows. `scratch` has `count` floats per level. */
bool tdm__tree_sum(const tdm__tree *tree, int64_t node, size_t begin, size_t count, float *out,
                   float *scratch);

/* ---- the team -------------------------------------------------------------------------------- */

enum { TDM__PLANS_PER_BATCH = 2, TDM__MAX_GRAPHS = TDM_TEAM_MAX_BATCHES * TDM__PLANS_PER_BATCH };

/* The graph of a lane of a batch: the slice sizes of a batch differ by at most one. */
typedef struct tdm__lane_graph {
    int64_t batch;
    int64_t rows;
    tdm_graph *graph;
} tdm__lane_graph;

/* Sent by each rank to the others after its lanes. */
typedef struct tdm__step_report {
    double lane_seconds;                 /* of this step */
    double update_seconds, wait_seconds; /* of the step before */
    uint64_t lanes, rows;                /* of this step */
    uint64_t payload_bytes;              /* of this rank's replicas, compressed */
    uint64_t dense_bytes;                /* the same as f32 */
    double codec_seconds;
    uint64_t change; /* of this rank's replicas: see tdm__replicas_change */
    uint64_t tally;
    uint32_t request;
    uint32_t in_safe_range; /* all numbers of its parts are below 2^47 */
    uint32_t is_taken;      /* no lane's input has a gradient beyond that; see tdm_lane_take_fn */
} tdm__step_report;

/* A complete sub-tree of lanes that a rank has summed. */
typedef struct tdm__part {
    int64_t node;
    float *grads;
    double loss;
} tdm__part;

/* Two buffers of the tree whose sum replaces the left one. */
typedef struct tdm__add {
    float *left, *right;
} tdm__add;

/* A lane that is being executed. */
typedef struct tdm__lane_run {
    int64_t lane;
    tdm_slice rows;
    tdm_plan *plan;
    int graph; /* index in graphs */
    float *grads;
    tdm__add adds[40]; /* in order */
    int add_count;
    float *sum;    /* buffer with the final sum */
    bool is_final; /* the sum is a complete part of this rank */
    tdm_step_key key;
} tdm__lane_run;

/* Ops that sum over all lanes in the middle of a pass. */
typedef struct tdm__meeting {
    size_t count; /* number of such ops */
    /* count each: their steps in the plans of a graph; NULL: none */
    size_t *steps[TDM__MAX_GRAPHS];
    size_t *elements;    /* count entries: number of values of each */
    size_t row_elements; /* maximum of these */
    tdm__tree tree;      /* of the values of the lanes */
    float *rows;         /* TDM_MAX_LANE_PARTS: sums of this rank's parts */
    float *sum;          /* over all lanes */
    float *levels;       /* one per level of the tree */
} tdm__meeting;

/* Passed from a team to the next one: the fields of the same names. */
struct tdm_plan_cache {
    tdm__lane_graph graphs[TDM__MAX_GRAPHS];
    int graph_count;
    int max_made;
    int thread_count; /* of the plans */
    tdm_plan **plans;
    tdm_pages *arenas;
};

typedef struct tdm__replica_run tdm__replica_run; /* replicas of this rank (replica_run.c) */
typedef struct tdm__live tdm__live;               /* the thread of gradients (live.c) */
typedef struct tdm__common tdm__common;           /* sums in shared memory (common.c) */
typedef struct tdm__buckets tdm__buckets;         /* sums by messages (buckets.c) */

struct tdm_team {
    tdm_team_options options;
    const tdm_job *job;
    const tdm__layout *layout;
    tdm__undo_log *undo_log; /* of the parameter store */
    int size, place;
    tdm__lane_graph graphs[TDM__MAX_GRAPHS];
    int graph_count;
    size_t trained_extent;
    size_t grad_extent;  /* including the statistics behind */
    size_t block_extent; /* likewise, rounded up to whole cells */
    int thread_count;
    int64_t
        slice_count; /* number of slices of a batch: lane_count, or with in.order, those of a replica */
    /* Lanes. One is executed at a time, or, if an op sums over lanes, all lanes of a rank concurrently. */
    bool side_by_side;
    int max_run;        /* concurrent lanes */
    int max_made;       /* number of plans and arenas */
    tdm_plan **plans;   /* max_made x graph_count */
    tdm_pages *arenas;  /* max_made */
    tdm__lane_run *run; /* max_run */
    tdm__meeting meeting;
    tdm__replica_run *replicas; /* NULL: the job has none */
    tdm__live *live;            /* NULL: gradients are computed in the step */
    const atomic_bool *cancel;  /* if true, lanes end with an error; NULL: never */
    int64_t lowest_node; /* nodes of the tree above this level are not added yet; 1: all are */
    tdm_group *group;    /* all ranks, by place, for messages of the team; NULL: one rank */
    tdm_prefetch *prefetch;
    int64_t *first;      /* size + 1: the placement of lanes */
    int64_t unit_lanes;  /* lanes are placed in units: of this number, 1 or those of a replica */
    int64_t *next_first; /* in units */
    double *weights, *seconds;
    tdm_balance *balance;
    tdm_job_balance balance_kind;
    uint8_t *absent; /* by lane: without rows in this step */
    /* Gradients. */
    float *grads; /* buffer_count x block_extent */
    int buffer_count;
    float **free_grads; /* stack of unused buffers */
    int free_count;
    /* this rank's nodes while lanes run; then, in shared memory, those of all ranks */
    tdm__tree tree;
    double *losses;   /* by heap number, of the nodes in the tree */
    bool *has_loss;   /* by heap number */
    tdm__part *parts; /* of this rank */
    int part_count;
    bool is_taken;             /* all calls of options.take returned true in this step */
    atomic_bool overflow_risk; /* a number of this step's parts is 2^47 or larger */
    tdm__common *common;
    tdm__buckets *buckets;
    float *scratch;          /* per thread: a cell for the sum and for each level of the tree */
    size_t scratch_elements; /* per thread */
    /* The share that this rank updates. */
    struct tdm__own {
        tdm__cells cells;
        size_t first_piece, end_piece;
    } * own;
    size_t own_count;
    float *summed; /* with messages: sums of this rank's cells, by global index; else NULL */
    /* The current step. */
    tdm_step_input in;
    uint64_t key_step;              /* of random numbers: in.step, or that of an inner step */
    uint64_t lanes_done, rows_done; /* by this rank in this step */
    uint64_t payload_bytes, dense_bytes;
    double codec_seconds;
    size_t bad_element;      /* in the last step's gradient; SIZE_MAX: none, or not searched */
    tdm__step_report *notes; /* by place */
    double lane_seconds, update_seconds, wait_seconds;
    double slow_factor;      /* artificial slowdown of this rank in tests; 0: none */
    bool tested;             /* tests may kill this process: see tdm_os_test_point */
    tdm_team_rank *ranks;    /* by world rank */
    tdm_lane_visit_fn visit; /* called for each lane; may be NULL */
    void *visitor;
    tdm_lane_watch_fn watch; /* called for each op; may be NULL */
    void *watcher;
};

/* Records in the trace an activity of this rank that began at `begin_s` and ends now. */
void tdm__team_mark(const tdm_team *team, const char *name, double begin_s);

/* ---- executing lanes (run.c) ----------------------------------------------------------------- */

/* For replica_run.c: plans the additions of a lane or of a complete replica, and executes them. */
float *tdm__team_take_buffer(tdm_team *team, bool last);
void tdm__lane_plan_adds(tdm_team *team, tdm__lane_run *r, bool last);
void tdm__lane_add_all(tdm_team *team, const tdm__lane_run *r);
void tdm__lane_free_buffers(tdm_team *team, const tdm__lane_run *r);
void tdm__node_complete(tdm_team *team, tdm__lane_run *r, int64_t node);
/* Runs run[0 .. count) from beginning to end; `last`: this rank has no lanes after them. */
tdm_status tdm__lanes_pass(tdm_team *team, int count, bool last, tdm_error *err);
int tdm__team_find_graph(const tdm_team *team, int64_t batch, int64_t rows);
/* Runs this rank's lanes of the current step. Afterwards `parts` are complete and, with messages,
 * their reduction is in progress. */
tdm_status tdm__team_run_lanes(tdm_team *team, tdm_error *err);
/* The rows of a lane in the current batch. */
tdm_slice tdm__team_rows(const tdm_team *team, int64_t lane);
/* Sets up `run[index]` for a lane with rows, with `grads` for its gradient. */
void tdm__team_set_up(tdm_team *team, int index, int64_t lane, float *grads);
/* Any graph of the current batch: all have the same buckets and sums over lanes, in the same order. */
int tdm__team_graph_of_batch(const tdm_team *team);
/* Whether the k-th sum over lanes of a graph is before step `end`. */
static inline bool tdm__meeting_is_before(const tdm__meeting *m, int graph, size_t k, size_t end)
{
    return k < m->count && m->steps[graph] && m->steps[graph][k] < end;
}
/* Computes the k-th sum over lanes for run[0 .. count), with all other ranks. */
tdm_status tdm__team_meet_at_sum(tdm_team *team, int count, size_t k, tdm_error *err);
/* Adds b, if not NULL, to a. True if all numbers of a are then below 2^47. */
bool tdm__add_range(float *a, const float *b, size_t count);
/* Sums the losses of the nodes by the tree; false if none has a loss. */
bool tdm__tree_loss(const tdm_team *team, int64_t node, double *out);

/* ---- replicas (replica_run.c) ------------------------------------------------------------------ */

tdm_status tdm__replica_run_create(tdm_team *team, tdm_error *err);
void tdm__replica_run_destroy(tdm_team *team);
/* Executes the replicas with the lanes [first, end). */
tdm_status tdm__replicas_execute(tdm_team *team, int64_t first, int64_t end, tdm_error *err);
/* The step is complete, with its changes. */
void tdm__replicas_commit(tdm_team *team);
/* The sum over this rank's replicas of their squared changes in this step, relative to the squared norm of the model, as
 * a fixed-point number, so that the sum over all ranks does not depend on their number. 0 without sync.adapt_divergence. */
uint64_t tdm__replicas_change(const tdm_team *team);
/* The divergence of the replicas in this step (tdm_step_result), after reports have been exchanged. grad_norm: that of
 * the sum of their contributions. */
double tdm__replicas_divergence(const tdm_team *team, double grad_norm);
/* Gives the plans the parameters of the model, if they have those of a replica. */
void tdm__replicas_use_model(tdm_team *team);

/* ---- sums in shared memory (common.c) --------------------------------------------------------- */

/* Creates gradient buffers that the ranks of the node share, and the board for their reports. Collective. */
tdm_status tdm__common_create(tdm_team *team, tdm_error *err);
void tdm__common_destroy(tdm_team *team);
/* Fills the tree with the buffers that hold the parts of a step whose update ranks of this node have
 * begun. */
tdm_status tdm__common_parts_load(const tdm__undo_log *undo_log, const tdm__tree *tree,
                                  const tdm__begun *begun, tdm_error *err);
/* Publishes this rank's parts and report, waits for those of the others, and fills the team's tree, losses
 * and reports. */
tdm_status tdm__common_meet(tdm_team *team, const tdm__step_report *mine, tdm_error *err);

/* ---- sums by messages (buckets.c) ------------------------------------------------------------- */

tdm_status tdm__buckets_create(tdm_team *team, tdm_error *err);
void tdm__buckets_destroy(tdm_team *team);
/* The buffer for the last lane's gradient, if it must not be a complete one; NULL: any buffer. */
float *tdm__buckets_last_grads(const tdm_team *team);
/* The next step at which a run must pause after `step`; SIZE_MAX: none. */
size_t tdm__buckets_next(const tdm_team *team, int graph, size_t step);
/* Before steps [begin, end) of the last pass run: waits until the memory they write is free. */
tdm_status tdm__buckets_before(tdm_team *team, int graph, size_t end, tdm_error *err);
/* Steps up to `end` have run in the `count` lanes of this pass. Adds complete buckets and, in the last pass,
 * starts their reduction. */
tdm_status tdm__buckets_after(tdm_team *team, int graph, int count, size_t end, bool last,
                              tdm_error *err);
/* Begins a new pass over the plan. */
void tdm__buckets_begin(tdm_team *team);
/* The sums of this step are computed in another way: no reduction is started. */
void tdm__buckets_skip(tdm_team *team);
/* This rank has no more lanes: starts the remaining reductions. */
tdm_status tdm__buckets_finish_lanes(tdm_team *team, tdm_error *err);
/* Waits for all sums, which are then in `summed`; exchanges reports and losses. */
tdm_status tdm__buckets_meet(tdm_team *team, const tdm__step_report *mine, tdm_error *err);
/* Buckets by first use in the next forward pass. */
const size_t *tdm__buckets_order(const tdm_team *team);
uint64_t tdm__buckets_bytes(const tdm_team *team); /* memory in addition to complete buffers */
size_t tdm__buckets_size(const tdm_team *team);    /* of a bucket, in bytes */

/* ---- the update (update.c) -------------------------------------------------------------------- */

tdm_status tdm__update_create(tdm_team *team, tdm_error *err);
/* The first non-finite number of the whole gradient, statistics included; SIZE_MAX: none. The same on all
 * ranks. */
tdm_status tdm__update_find_bad(tdm_team *team, size_t *out, tdm_error *err);
/* All passes of the optimiser over this rank's pieces and statistics. */
tdm_status tdm__update_run(tdm_team *team, tdm_step_result *result, tdm_error *err);

/* Instead of that, if steps do not change the blocks (undo_log.h): the step has happened. */
tdm_status tdm__update_mark(tdm_team *team, const tdm_step_result *result, tdm_error *err);

/* The delay of a gradient: the model that it was computed from. */
typedef struct tdm__delay {
    float scale; /* of the compensation */
    const float *read;
} tdm__delay;
/* Updates one piece, under an undo record. `delay` NULL: no compensation. */
void tdm__update_piece(tdm__undo_log *undo_log, tdm_optimiser *optimiser, size_t index,
                       uint64_t step, float *grad, double grad_norm, const tdm__delay *delay);
/* Exchanges the contributions of pieces to a sum, if each rank has only its own. */
tdm_status tdm__update_exchange(tdm_team *team, double *numbers, size_t count, tdm_error *err);
/* Lowers *bad to the first index with a magnitude of at least `bound`, or NaN. */
void tdm__nonfinite_find(atomic_size_t *bad, const float *numbers, size_t begin, size_t count,
                         float bound);

/* ---- updates in order (update_order.c) ---------------------------------------------------------- */

/* For a step with `in.order`, instead of the two functions above. */
tdm_status tdm__order_find_bad(tdm_team *team, size_t *out, tdm_error *err);
tdm_status tdm__order_update_run(tdm_team *team, tdm_step_result *result, tdm_error *err);
/* The replicas whose arrays the updates change: bit r. */
uint64_t tdm__order_changed(const tdm_order_entry *order, int64_t count);
void tdm__apply_piece(tdm__undo_log *undo_log, tdm_optimiser *optimiser, size_t index,
                      uint64_t step, float *grad, const double *sums);
void tdm__follow(tdm__undo_log *undo_log, float *value, const float *observed,
                 const tdm_param_info *p, size_t index, size_t begin, size_t count, uint64_t step);

/* ---- live updates (live.c) ---------------------------------------------------------------------- */

/* Starts the thread if the job has sync.order live. */
tdm_status tdm__live_create(tdm_team *team, tdm_error *err);
void tdm__live_destroy(tdm_team *team);
/* The number of gradient buffers of the thread, the first ones of this rank. */
int tdm__live_buffers(const tdm_team *team);
/* Decides the updates of the step, at least one, and makes this rank's gradients its parts. Collective. */
tdm_status tdm__live_round(tdm_team *team, tdm_error *err);
/* The updates are complete on all ranks: releases their gradients. */
void tdm__live_finish(tdm_team *team);

/* ---- tests (team.c) --------------------------------------------------------------------------- */

/* A point in the current step where a test may kill this rank. */
void tdm__team_point(const tdm_team *team, const char *phase, uint64_t part);

/* ---- non-finite values (blame.c) --------------------------------------------------------------- */

/* Finds the first non-finite value of a lane that is set up. */
typedef struct tdm__watcher {
    const tdm_graph *graph;
    const tdm__lane_run *lane;
    int64_t token_count; /* of the lane; 0 if samples are not tokens */
    int64_t event;       /* number of executed ops; lanes of a batch run the same ones */
    int64_t found_at;    /* value of `event` when it was found; 0: in the data */
    size_t node;         /* the last executed op, up to the one with the non-finite value */
    tdm_bad_number found;
    bool has_found;
} tdm__watcher;

void tdm__watcher_begin(tdm__watcher *w, const tdm_graph *graph, const tdm__lane_run *lane);
void tdm__watcher_run(tdm__watcher *w, size_t begin, size_t end);
/* Checks the sum over lanes of the last executed op. */
void tdm__watcher_see_sum(tdm__watcher *w, const tdm_tensor *sum);
/* Completes `found`, a tensor of the last executed op, as the origin. */
void tdm__watcher_blame(tdm__watcher *w);
/* Whether the lane's loss or gradient is non-finite at the end, and `found` is its origin. */
bool tdm__watcher_has_found(const tdm__watcher *w);

#endif
