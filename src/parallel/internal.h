/*
 * internal.h: what the files of the team share: the tree over lanes, and the team itself.
 *
 * A node of the tree is (level, index): level 0 are the lanes; node (k, i) covers lanes [i 2^k,
 * (i + 1) 2^k). Nodes are numbered as in a heap: the root is 1, the children of n are 2n and 2n + 1,
 * lane l is lane_count + l.
 *
 * Files: lanes.c (slices, the tree), team.c (creation, the step), run.c (a rank executes its lanes),
 * common.c (sums where all gradients lie in common memory), buckets.c (sums by messages), update.c
 * (the optimiser's passes), blame.c and look.c (a step once more, to be looked at).
 */
#ifndef TANDEM_PARALLEL_INTERNAL_H
#define TANDEM_PARALLEL_INTERNAL_H

#include "parallel/params.h"
#include "parallel/undo_log.h"

#include <tandem/os.h>
#include <tandem/parallel.h>

#include <stdatomic.h>

/* The magnitude from which a gradient, summed over the lanes, counts as bad. */
#define TDM__GRADIENT_BOUND 0x1p63f

/* ---- the tree (lanes.c) ---------------------------------------------------------------------- */

typedef struct tdm__tree {
    int64_t lane_count;
    float *
        *held; /* by heap number: the buffer that holds this node's sum; NULL: add its children */
} tdm__tree;

/* The sum of node `node` over elements [begin, begin + count), into `out`. Returns false, and leaves
 * `out` alone, when no lane below it had rows. `scratch` has `count` floats for each level. */
bool tdm__tree_sum(const tdm__tree *tree, int64_t node, size_t begin, size_t count, float *out,
                   float *scratch);

/* ---- the team -------------------------------------------------------------------------------- */

enum { TDM__PLANS_PER_BATCH = 2, TDM__MAX_GRAPHS = TDM_TEAM_MAX_BATCHES * TDM__PLANS_PER_BATCH };

/* What it takes to run a lane of a batch: the slice sizes of a batch differ by one at most. */
typedef struct tdm__lane_graph {
    int64_t batch;
    int64_t rows;
    tdm_graph *graph;
} tdm__lane_graph;

/* What a rank tells the others after its lanes. */
typedef struct tdm__step_report {
    double lane_seconds;                 /* of this step */
    double update_seconds, wait_seconds; /* of the step before */
    uint64_t lanes, rows;                /* of this step */
    uint64_t tally;
    uint32_t request;
    uint32_t in_safe_range; /* whether all numbers that it brings are */
} tdm__step_report;

/* A whole sub-tree of lanes that a rank has added up. */
typedef struct tdm__part {
    int64_t node;
    float *grads;
    double loss;
} tdm__part;

/* Two buffers of the tree that become one, the left. */
typedef struct tdm__add {
    float *left, *right;
} tdm__add;

/* A lane that is executed now. */
typedef struct tdm__lane_run {
    int64_t lane;
    tdm_slice rows;
    tdm_plan *plan;
    int graph; /* index in graphs */
    float *grads;
    tdm__add adds[40]; /* in order */
    int add_count;
    float *sum;    /* where they end up */
    bool is_final; /* it is a part that this rank brings, complete */
    tdm_step_key key;
} tdm__lane_run;

/* Where lanes meet in the middle of a pass: ops that add over all lanes. */
typedef struct tdm__meeting {
    size_t count; /* of such ops */
    size_t
        *steps[TDM__MAX_GRAPHS]; /* count each: their steps in the plans of a graph; NULL: none */
    size_t *elements;            /* count: of their numbers */
    size_t row_elements;         /* the most of these */
    tdm__tree tree;              /* of what lanes bring */
    float *rows;                 /* TDM_MAX_LANE_PARTS: sums of this rank's parts */
    float *sum;                  /* of all */
    float *levels;               /* for each level of the tree */
} tdm__meeting;

/* What a team hands on to the next one: the fields of the same names. */
struct tdm_plan_cache {
    tdm__lane_graph graphs[TDM__MAX_GRAPHS];
    int graph_count;
    int max_made;
    int thread_count; /* that the plans are for */
    tdm_plan **plans;
    tdm_pages *arenas;
};

typedef struct tdm__common tdm__common;   /* sums in common memory (common.c) */
typedef struct tdm__buckets tdm__buckets; /* sums by messages (buckets.c) */

struct tdm_team {
    tdm_team_options options;
    const tdm_job *job;
    const tdm__layout *layout;
    tdm__undo_log *undo_log; /* the store's; NULL: without a vault */
    int size, place;
    tdm__lane_graph graphs[TDM__MAX_GRAPHS];
    int graph_count;
    size_t trained_extent;
    size_t grad_extent;  /* with the statistics behind */
    size_t block_extent; /* the same, in whole cells */
    int thread_count;
    /* Lanes. One is executed at a time, or, when some op adds over lanes, all of a rank's at once. */
    bool side_by_side;
    int max_run;        /* lanes at a time */
    int max_made;       /* for so many there are plans and arenas */
    tdm_plan **plans;   /* made_most x graph_count */
    tdm_pages *arenas;  /* made_most */
    tdm__lane_run *run; /* run_most */
    tdm__meeting meeting;
    tdm_group *group; /* of all ranks, by place, for what the team itself says; NULL: one rank */
    tdm_prefetch *feed;
    int64_t *first; /* size + 1: who executes what */
    int64_t *next_first;
    double *weights, *seconds;
    tdm_balance *balance;
    uint8_t *absent; /* by lane: without rows in this step */
    /* Gradients. */
    tdm_pages grad_pages; /* when they are nobody else's business */
    float *grads;         /* buffer_count x block_extent */
    int buffer_count;
    float **free_grads; /* a stack of buffers not in use */
    int free_count;
    tdm__tree tree;   /* this rank's nodes while lanes run; then, in common memory, everybody's */
    double *losses;   /* by heap number, of the nodes in the tree */
    bool *has_loss;   /* by heap number */
    tdm__part *parts; /* that this rank brings */
    int part_count;
    atomic_bool immodest; /* a number of this step's parts is */
    tdm__common *common;
    tdm__buckets *buckets;
    float *scratch; /* for each thread: a cell for the sum and for each level of the tree */
    size_t scratch_elements; /* of each thread */
    /* What this rank updates. */
    struct tdm__own {
        tdm__cells cells;
        size_t first_piece, end_piece;
    } * own;
    size_t own_count;
    float *summed; /* messages: where sums of its own cells lie, by global index; else NULL */
    /* The step in progress. */
    tdm_step_input in;
    size_t bad_element;      /* of the last step's gradient; SIZE_MAX: none, or nobody has looked */
    tdm__step_report *notes; /* by place */
    double lane_seconds, update_seconds, wait_seconds;
    double slow_factor;      /* of a rank that tests slow down; 0: none */
    bool tested;             /* tests may kill this process at some point: see tdm_os_test_point */
    tdm_team_rank *ranks;    /* by world rank */
    tdm_lane_visit_fn visit; /* who looks at lanes; NULL: nobody */
    void *visitor;
    tdm_lane_watch_fn watch; /* who looks at their ops meanwhile; NULL: nobody */
    void *watcher;
};

/* In the recorder's trace: something of this rank that began then has ended now. */
void tdm__team_mark(const tdm_team *team, const char *name, double begin_s);

/* ---- executing lanes (run.c) ----------------------------------------------------------------- */

int tdm__team_find_graph(const tdm_team *team, int64_t batch, int64_t rows);
/* Runs this rank's lanes of the step in progress. Afterwards `parts` are there and, with messages,
 * their reduction is under way. */
tdm_status tdm__team_run_lanes(tdm_team *team, tdm_error *err);
/* Sets up `run[index]` for a lane with rows, with `grads` for its gradient. */
void tdm__team_set_up(tdm_team *team, int index, int64_t lane, float *grads);
/* Any graph of the batch in progress: all have the same buckets and meetings, in the same order. */
int tdm__team_graph_of_batch(const tdm_team *team);
/* Whether lanes that run a graph meet for the k-th time before step `end`. */
static inline bool tdm__meeting_is_before(const tdm__meeting *m, int graph, size_t k, size_t end)
{
    return k < m->count && m->steps[graph] && m->steps[graph][k] < end;
}
/* run[0 .. count) meet at their k-th sum over lanes, with those of all other ranks. */
tdm_status tdm__team_meet_at_sum(tdm_team *team, int count, size_t k, tdm_error *err);
/* Adds b, where it is not NULL, to a. True when all numbers of a are then modest. */
bool tdm__add_range(float *a, const float *b, size_t count);
/* Of the nodes that have a loss, by the tree; false when none has. */
bool tdm__tree_loss(const tdm_team *team, int64_t node, double *out);

/* ---- sums in common memory (common.c) --------------------------------------------------------- */

/* Gradient buffers that neighbours see, and the board on which ranks leave their notes. Collective. */
tdm_status tdm__common_create(tdm_team *team, tdm_error *err);
void tdm__common_destroy(tdm_team *team);
/* Fills the tree with the buffers that hold the parts of a step that ranks of this node have begun to update
 * with. */
tdm_status tdm__common_snapshot_load(const tdm__undo_log *undo_log, const tdm__tree *tree,
                                     const tdm__begun *begun, tdm_error *err);
/* Shows this rank's parts and note to the others, waits for theirs, and fills the team's tree, losses
 * and notes with everybody's. */
tdm_status tdm__common_meet(tdm_team *team, const tdm__step_report *mine, tdm_error *err);

#define TDM__SUMS_NAME "sums-%d" /* the region for a slot's sums, of block_extent floats */

/* ---- sums by messages (buckets.c) ------------------------------------------------------------- */

tdm_status tdm__buckets_create(tdm_team *team, tdm_error *err);
void tdm__buckets_destroy(tdm_team *team);
/* Where the last lane's gradient goes, when it must not be a whole buffer; NULL: any buffer. */
float *tdm__buckets_last_grads(const tdm_team *team);
/* The step at which a run must pause next, from `step` on: SIZE_MAX, or larger than `step`. */
size_t tdm__buckets_next(const tdm_team *team, int graph, size_t step);
/* Before steps [begin, end) of the last pass run: memory that they write must be free. */
tdm_status tdm__buckets_before(tdm_team *team, int graph, size_t end, tdm_error *err);
/* Steps up to `end` have run in the `count` lanes of this pass. Adds what is complete, and, in the last pass,
 * starts its reduction. */
tdm_status tdm__buckets_after(tdm_team *team, int graph, int count, size_t end, bool last,
                              tdm_error *err);
/* A new pass over the plan. */
void tdm__buckets_begin(tdm_team *team);
/* This rank has no more lanes: what was not started is started now. */
tdm_status tdm__buckets_finish_lanes(tdm_team *team, tdm_error *err);
/* Waits for all sums; exchanges notes and losses. Where `summed` points to they are then. */
tdm_status tdm__buckets_meet(tdm_team *team, const tdm__step_report *mine, tdm_error *err);
/* By first use in the next forward pass. */
const size_t *tdm__buckets_order(const tdm_team *team);
uint64_t tdm__buckets_bytes(const tdm_team *team); /* of memory, besides whole buffers */
size_t tdm__buckets_size(const tdm_team *team);    /* of a bucket, in bytes */

/* ---- the update (update.c) -------------------------------------------------------------------- */

tdm_status tdm__update_create(tdm_team *team, tdm_error *err);
/* The first number of the whole gradient, statistics included, that is bad; SIZE_MAX: none is. All
 * ranks say the same. */
tdm_status tdm__update_find_bad(tdm_team *team, size_t *out, tdm_error *err);
/* All passes of the optimiser over this rank's pieces, and its statistics. */
tdm_status tdm__update_run(tdm_team *team, tdm_step_result *result, tdm_error *err);

/* One piece, under the journal when there is one. */
void tdm__update_piece(tdm__undo_log *undo_log, tdm_optimiser *optimiser, size_t index,
                       uint64_t step, float *grad, double grad_norm);
void tdm__apply_piece(tdm__undo_log *undo_log, tdm_optimiser *optimiser, size_t index,
                      uint64_t step, float *grad, const double *sums);
void tdm__follow(tdm__undo_log *undo_log, float *value, const float *observed,
                 const tdm_param_info *p, size_t index, size_t begin, size_t count, uint64_t step);

/* ---- tests (team.c) --------------------------------------------------------------------------- */

/* Here a test may kill this rank, in the step in progress. */
void tdm__team_point(const tdm_team *team, const char *phase, uint64_t part);

/* ---- bad numbers (blame.c) ------------------------------------------------------------------- */

/* Looks for the first bad number of a lane that is set up. */
typedef struct tdm__watcher {
    const tdm_graph *graph;
    const tdm__lane_run *lane;
    int64_t token_count; /* of the lane; 0 where samples are not tokens */
    int64_t event;       /* how many ops have run; lanes of a batch run the same ones */
    int64_t found_at;    /* after how many it was found; 0: in the data */
    size_t node;         /* the op that ran last, up to the one with the bad number */
    tdm_bad_number found;
    bool has_found;
} tdm__watcher;

void tdm__watcher_begin(tdm__watcher *w, const tdm_graph *graph, const tdm__lane_run *lane);
void tdm__watcher_run(tdm__watcher *w, size_t begin, size_t end);
/* What lanes have brought to the op that ran last was added up to this. */
void tdm__watcher_see_sum(tdm__watcher *w, const tdm_tensor *sum);
/* Says of what `found` tells of (a tensor of the op that ran last) that it was found. */
void tdm__watcher_blame(tdm__watcher *w);
/* Whether the lane's loss or gradient is bad in the end, and `found` says where that began. */
bool tdm__watcher_has_found(const tdm__watcher *w);

#endif
