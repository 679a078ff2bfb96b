/*
 * parallel.h: lanes, and a team of workers that executes them.
 *
 * A step's batch is cut into `lane_count` contiguous slices, the lanes. A lane's gradient is a
 * function of its samples alone; lanes are added by a fixed binary tree over their index, node =
 * left + right. Workers do not own data: they execute lanes, and any worker may execute any of
 * them. So the trained parameters depend on the number of lanes, which the job fixes, and not on
 * the number of workers.
 *
 * A lane without rows (the last batch of an epoch may have fewer rows than there are lanes) takes
 * no part: the node above it is its sibling.
 *
 * Workers here are threads of one process. They share the parameters; each has its own activations
 * and as many gradient buffers as its lanes need.
 */
#ifndef TANDEM_PARALLEL_H
#define TANDEM_PARALLEL_H

#include <tandem/base.h>
#include <tandem/nn.h>
#include <tandem/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TDM_LANES_MOST = 65536 };

/* The job's parallel.lanes, or what `auto` makes of it: a power of two that depends on the job alone. */
TDM_API int64_t tdm_lanes_of(const tdm_job *job);

typedef struct tdm_slice {
    int64_t first;
    int64_t count;
} tdm_slice;

/* Rows of lane `lane`, when `row_count` rows are cut into `lane_count` slices. Sizes differ by one
 * at most. The same function gives worker w of n its lanes. */
TDM_API tdm_slice tdm_lane_slice(int64_t row_count, int64_t lane_count, int64_t lane);

/* The most gradient buffers that a worker holds at once while it executes this block of lanes. */
TDM_API int tdm_lane_buffers(int64_t lane_count, tdm_slice lanes);

typedef struct tdm_team tdm_team;

/* Puts rows [first, first + count) of the step's batch into x (f32 features, or i32 tokens) and
 * classes. Called by all workers side by side; must not allocate or fail. */
typedef void (*tdm_lane_fill_fn)(void *user, int worker, int64_t first, int64_t count, void *x,
                                 int32_t *classes);

enum { TDM_TEAM_MAX_BATCHES = 2 };

typedef struct tdm_team_options {
    tdm_model_options model; /* batch, training and loss_scale are set by the team */
    int worker_count;
    int64_t lane_count;
    int64_t batches[TDM_TEAM_MAX_BATCHES]; /* the sizes of batch that will come; 0: none */
    tdm_optimiser *optimiser;              /* bound to `params` and its states; borrowed */
    float *params; /* tdm_graph_param_extent floats, 64-byte aligned; borrowed */
    uint64_t seed;
    tdm_lane_fill_fn fill;
    void *user;
} tdm_team_options;

/* Starts the workers. worker_count must be between 1 and lane_count. */
TDM_API tdm_status tdm_team_create(const tdm_team_options *options, tdm_team **out, tdm_error *err);
TDM_API void tdm_team_destroy(tdm_team *team);

typedef struct tdm_step_result {
    double loss;      /* the mean over the batch, before the update */
    double grad_norm; /* of the whole gradient, before it was clipped; 0 when nobody asks for it */
    /* Whether the loss, every number of the gradient, as summed over the lanes, and all that the
     * lanes observed for statistics are finite, and the gradient is below 2^63, so that its squares
     * are finite as well. When not, nothing was changed. */
    bool finite;
} tdm_step_result;

/*
 * One training step: all lanes forward and backward, the tree of gradients, the update with the
 * learning rate `lr`. `batch` is one of options.batches; `step` counts from 0. The calling thread
 * works as worker 0. Allocates nothing.
 */
TDM_API tdm_step_result tdm_team_step(tdm_team *team, uint64_t step, int64_t batch, double lr);

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
 * runs its lanes again, in order, on the calling thread, and tells of the first lane that is bad the
 * first op with a bad number among its outputs. The same kernels see the same numbers, so it finds
 * the same for any number of workers. Names live as long as the team. Changes and allocates nothing.
 */
TDM_API void tdm_team_replay(tdm_team *team, tdm_bad_number *out);

typedef struct tdm_team_info {
    int worker_count;
    int64_t lane_count;
    size_t arena_bytes;     /* of each worker */
    size_t grad_bytes;      /* of all gradient buffers */
    uint64_t flops_per_row; /* forward and backward */
} tdm_team_info;
TDM_API tdm_team_info tdm_team_info_of(const tdm_team *team);
/* Lanes executed and seconds spent in them by a worker so far. Call between steps only. */
TDM_API void tdm_team_worker(const tdm_team *team, int worker, uint64_t *lanes, double *seconds);

#ifdef __cplusplus
}
#endif
#endif
