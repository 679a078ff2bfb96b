/*
 * optim.h: optimisers and schedules: from gradients to new parameters.
 *
 * Three layers. An entry of the table (tdm_optim_ops) knows one method and works on a range of
 * numbers. An optimiser (tdm_optimiser) is such a method as a job sets it up for one model: with
 * groups of parameters, clipping and an average of the weights. A schedule gives the learning rate
 * of each step.
 *
 * The block of parameters is cut into pieces that lie within one tensor each. Whatever needs a sum
 * over many numbers (the norm of the gradient, the norms of LAMB) is summed within each piece in a
 * fixed order and then over the pieces in their order, in double precision. So the work on pieces
 * can be given to anybody, in any order, without changing a bit.
 */
#ifndef TANDEM_OPTIM_H
#define TANDEM_OPTIM_H

#include <tandem/base.h>
#include <tandem/job.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- methods --------------------------------------------------------------------------------- */

enum { TDM_OPTIM_MAX_STATES = 3, TDM_OPTIM_SUMS = 2 };

typedef struct tdm_optim_settings {
    double lr;
    double momentum;
    bool nesterov;
    double beta1;
    double beta2;
    double alpha;
    bool centred;
    double eps;
    double weight_decay;
} tdm_optim_settings;

/* A range of numbers: all arrays have `count` elements. A state that is not used may be NULL. */
typedef struct tdm_optim_range {
    size_t count;
    const float *grad;
    float *param;
    float *state[TDM_OPTIM_MAX_STATES];
    float *direction; /* for prepare() and apply(); it may be where `grad` is */
} tdm_optim_range;

/*
 * A method has either update(), which treats each number alone, or prepare() and apply(), between
 * which it sees sums over the whole tensor. `step` counts from 1. State begins at zero.
 */
typedef struct tdm_optim_ops {
    const char *name;
    int state_count;
    const char *state_names[TDM_OPTIM_MAX_STATES]; /* as they are named in checkpoints */
    /* Whether these settings need the state; NULL: every state is needed. */
    bool (*uses_state)(const tdm_optim_settings *settings, int state);
    void (*update)(const tdm_optim_settings *settings, uint64_t step, const tdm_optim_range *range);
    /* Changes the state, leaves the direction of the step, and gives the sums of this range. */
    void (*prepare)(const tdm_optim_settings *settings, uint64_t step, const tdm_optim_range *range,
                    double sums[TDM_OPTIM_SUMS]);
    /* Changes the parameters; `sums` are those of all ranges of the tensor together. */
    void (*apply)(const tdm_optim_settings *settings, const tdm_optim_range *range,
                  const double sums[TDM_OPTIM_SUMS]);
} tdm_optim_ops;

TDM_API const tdm_optim_ops *tdm_optim_find(int kind); /* a tdm_job_optim */
TDM_API tdm_optim_settings tdm_optim_settings_of(const tdm_job *job);
TDM_API bool tdm_optim_uses_state(const tdm_optim_ops *ops, const tdm_optim_settings *settings,
                                  int state);

/* ---- an optimiser for a model ---------------------------------------------------------------- */

/* A trained tensor and its place in the block of parameters. Offsets rise. */
typedef struct tdm_optim_param {
    const char *name;
    size_t offset;
    size_t elements;
} tdm_optim_param;

enum { TDM_OPTIM_PIECE_ELEMENTS = 4096 };

/* A part of one tensor, within one cell of the block's grid of TDM_OPTIM_PIECE_ELEMENTS. */
typedef struct tdm_optim_piece {
    size_t begin; /* in the block */
    size_t count;
    size_t param_index;
} tdm_optim_piece;

/* Blocks of one layout. `states` that are not used and `ema`, when the job keeps none, are NULL. */
typedef struct tdm_optim_blocks {
    float *params;
    float *states[TDM_OPTIM_MAX_STATES];
    float *ema;
} tdm_optim_blocks;

typedef struct tdm_optimiser tdm_optimiser;

/* Names are borrowed. TDM_ERR_JOB_INVALID when a group of optim.groups catches no parameter. */
TDM_API tdm_status tdm_optimiser_create(const tdm_job *job, const tdm_optim_param *params,
                                        size_t param_count, tdm_optimiser **out, tdm_error *err);
TDM_API void tdm_optimiser_destroy(tdm_optimiser *optimiser);
/* The blocks on which all that follows works; borrowed. */
TDM_API void tdm_optimiser_bind(tdm_optimiser *optimiser, const tdm_optim_blocks *blocks);

TDM_API const tdm_optim_ops *tdm_optimiser_ops(const tdm_optimiser *optimiser);
TDM_API bool tdm_optimiser_uses_state(const tdm_optimiser *optimiser, int state);
/* What optim.groups made of one parameter: its settings but for the schedule. */
TDM_API tdm_optim_settings tdm_optimiser_settings_at(const tdm_optimiser *optimiser,
                                                     size_t param_index);
TDM_API size_t tdm_optimiser_piece_count(const tdm_optimiser *optimiser);
TDM_API const tdm_optim_piece *tdm_optimiser_piece_at(const tdm_optimiser *optimiser, size_t index);

/*
 * A step goes over all pieces once, twice or three times. Within a pass any thread may do any
 * piece, each exactly once; a pass begins when the one before it is finished everywhere. begin()
 * comes before the first. `grad` is the piece's gradient, which the passes change in place: what
 * one leaves there must be there for the next. Nothing here allocates.
 */
TDM_API bool tdm_optimiser_must_measure(const tdm_optimiser *optimiser); /* has the first pass */
TDM_API bool tdm_optimiser_must_apply(const tdm_optimiser *optimiser);   /* has the last pass */
/* `step` counts from 0; `lr` is the learning rate of this step, before a group's lr_scale. */
TDM_API void tdm_optimiser_begin(tdm_optimiser *optimiser, uint64_t step, double lr);
TDM_API void tdm_optimiser_measure(tdm_optimiser *optimiser, size_t piece, float *grad);
/* What the first pass, and the one in the middle (TDM_OPTIM_SUMS numbers a piece), leave for each piece.
 * Who shares out pieces among processes brings the others' numbers here before they are added up. */
TDM_API double *tdm_optimiser_squares(tdm_optimiser *optimiser);
TDM_API double *tdm_optimiser_piece_sums(tdm_optimiser *optimiser);
/* The norm of the whole gradient: after the first pass, by anyone who wants to know. */
TDM_API double tdm_optimiser_grad_norm(const tdm_optimiser *optimiser);
/* `grad_norm` matters only when there was a first pass. */
TDM_API void tdm_optimiser_update(tdm_optimiser *optimiser, size_t piece, float *grad,
                                  double grad_norm);
TDM_API void tdm_optimiser_sums(const tdm_optimiser *optimiser, size_t param_index,
                                double sums[TDM_OPTIM_SUMS]);
/* `sums` are tdm_optimiser_sums() of the piece's parameter. */
TDM_API void tdm_optimiser_apply(tdm_optimiser *optimiser, size_t piece, float *grad,
                                 const double sums[TDM_OPTIM_SUMS]);

/* ---- schedules ------------------------------------------------------------------------------- */

/* How a metric has done over the evaluations so far. All zero at first; all numbers are doubles, so
 * that it can be kept as it is in a tensor of a checkpoint. */
typedef struct tdm_plateau {
    double has_best; /* 0 or 1 */
    double best;
    double bad;      /* evaluations in a row without improvement */
    double cooldown; /* evaluations for which badness does not count */
    double lr;       /* what is left of the learning rate; 0: all of it */
} tdm_plateau;

typedef struct tdm_schedule {
    int kind; /* tdm_job_schedule */
    double lr;
    double floor;
    double gamma;
    uint64_t steps; /* over which it runs, warm-up included */
    uint64_t warmup;
    uint64_t every_steps;
    tdm_job_int_list milestones; /* borrowed from the job */
    double peak_at, start_divisor, end_divisor;
    bool linear_anneal;
    bool higher_is_better;
    double cancellation, threshold, cooldown;
} tdm_schedule;

/* `step_count` is the length of the training, for schedules that run over all of it. */
TDM_API tdm_schedule tdm_schedule_of(const tdm_job *job, uint64_t step_count);
/* The learning rate of step `step`, counted from 0. A pure function: of the step, and for
 * reduce_on_plateau of what the evaluations have said (`plateau` may be NULL for all others). */
TDM_API double tdm_schedule_lr(const tdm_schedule *schedule, uint64_t step,
                               const tdm_plateau *plateau);
/* For reduce_on_plateau: an evaluation has given `value`. True when the learning rate is lower now. */
TDM_API bool tdm_schedule_observe(const tdm_schedule *schedule, double value, tdm_plateau *plateau);

/* Early stopping: an evaluation has given `value`; better by more than `min_delta` is better.
 * True when `patience` evaluations in a row were not better. */
TDM_API bool tdm_early_stop_observe(const tdm_job_early_stop *rule, double value,
                                    tdm_plateau *state);
TDM_API bool tdm_early_stop_is_due(const tdm_job_early_stop *rule, const tdm_plateau *state);

#ifdef __cplusplus
}
#endif
#endif
