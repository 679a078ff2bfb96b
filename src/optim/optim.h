/*
 * optim.h: the part of module optim that only other modules use.
 *
 * <tandem/optim.h> declares the table of methods. This header adds the other two layers: an optimiser
 * (tdm_optimiser) is a method as configured by a job for one model, with groups of parameters, clipping and an
 * average of the weights; a schedule returns the learning rate of each step. libtandem.so does not export it.
 *
 * The block of parameters is divided into pieces, each within one tensor. Sums over many numbers (the norm of the
 * gradient, the norms of LAMB) are computed within each piece in a fixed order and then over the pieces in their
 * order, in double precision. So pieces can be processed by any thread or rank, in any order, without changing a
 * bit.
 */
#ifndef TANDEM_OPTIM_OPTIM_H
#define TANDEM_OPTIM_OPTIM_H

#include <tandem/optim.h>

/* ---- methods ---------------------------------------------------------------------------------- */

tdm_optim_settings tdm_optim_settings_of(const tdm_job *job);
bool tdm_optim_uses_state(const tdm_optim_ops *ops, const tdm_optim_settings *settings, int state);

/* ---- an optimiser for a model ----------------------------------------------------------------- */

/* A trained tensor and its offset in the block of parameters. Offsets increase. */
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

/* Blocks of one layout. Unused `states`, and `ema` if the job keeps no average, are NULL. */
typedef struct tdm_optim_blocks {
    float *params;
    float *states[TDM_OPTIM_MAX_STATES];
    float *ema;
} tdm_optim_blocks;

typedef struct tdm_optimiser tdm_optimiser;

/* Names are borrowed. TDM_ERR_JOB_INVALID if a group of optim.groups matches no parameter. */
tdm_status tdm_optimiser_create(const tdm_job *job, const tdm_optim_param *params,
                                size_t param_count, tdm_optimiser **out, tdm_error *err);
void tdm_optimiser_destroy(tdm_optimiser *optimiser);
/* Sets the blocks on which the functions below work; borrowed. */
void tdm_optimiser_bind(tdm_optimiser *optimiser, const tdm_optim_blocks *blocks);

const tdm_optim_ops *tdm_optimiser_ops(const tdm_optimiser *optimiser);
bool tdm_optimiser_uses_state(const tdm_optimiser *optimiser, int state);
/* The settings of one parameter according to optim.groups, without the schedule. */
tdm_optim_settings tdm_optimiser_settings_at(const tdm_optimiser *optimiser, size_t param_index);
size_t tdm_optimiser_piece_count(const tdm_optimiser *optimiser);
const tdm_optim_piece *tdm_optimiser_piece_at(const tdm_optimiser *optimiser, size_t index);

/*
 * A step processes all pieces in one, two or three passes. Within a pass any thread may process any
 * piece, each exactly once; a pass begins when the previous one is finished everywhere. begin()
 * comes before the first. `grad` is the piece's gradient, which the passes modify in place: it must
 * be kept from one pass to the next. Nothing here allocates.
 */
bool tdm_optimiser_must_measure(const tdm_optimiser *optimiser); /* has the first pass */
bool tdm_optimiser_must_apply(const tdm_optimiser *optimiser);   /* has the last pass */
/* `step` counts from 0; `lr` is the learning rate of this step, before a group's lr_scale. */
void tdm_optimiser_begin(tdm_optimiser *optimiser, uint64_t step, double lr);
void tdm_optimiser_measure(tdm_optimiser *optimiser, size_t piece, float *grad);
/* The results of the first pass, and of the middle one (TDM_OPTIM_SUMS numbers per piece), for each
 * piece. If pieces are distributed over processes, the other processes' numbers must be copied here
 * before they are summed. */
double *tdm_optimiser_squares(tdm_optimiser *optimiser);
double *tdm_optimiser_piece_sums(tdm_optimiser *optimiser);
/* The norm of the whole gradient, after the first pass. */
double tdm_optimiser_grad_norm(const tdm_optimiser *optimiser);
/* `grad_norm` is used only if there was a first pass. */
void tdm_optimiser_update(tdm_optimiser *optimiser, size_t piece, float *grad, double grad_norm);
void tdm_optimiser_sums(const tdm_optimiser *optimiser, size_t param_index,
                        double sums[TDM_OPTIM_SUMS]);
/* `sums` are tdm_optimiser_sums() of the piece's parameter. */
void tdm_optimiser_apply(tdm_optimiser *optimiser, size_t piece, float *grad,
                         const double sums[TDM_OPTIM_SUMS]);

/* ---- schedules -------------------------------------------------------------------------------- */

/* The history of a metric over the evaluations so far. Initially zero; all fields are doubles, so
 * that it can be stored in a tensor of a checkpoint. */
typedef struct tdm_plateau {
    double has_best; /* 0 or 1 */
    double best;
    double bad;      /* consecutive evaluations without improvement */
    double cooldown; /* evaluations that are not counted as bad */
    double lr;       /* factor of the learning rate; 0: 1 */
} tdm_plateau;

typedef struct tdm_schedule {
    int kind; /* tdm_job_schedule */
    double lr;
    double floor;
    double gamma;
    uint64_t steps; /* number of steps, including warm-up */
    uint64_t warmup;
    uint64_t every_steps;
    tdm_job_int_list milestones; /* borrowed from the job */
    double peak_at, start_divisor, end_divisor;
    bool linear_anneal;
    bool higher_is_better;
    double patience, threshold, cooldown;
} tdm_schedule;

/* `step_count` is the total number of steps, for schedules that cover the whole run. */
tdm_schedule tdm_schedule_of(const tdm_job *job, uint64_t step_count);
/* The learning rate of step `step`, counted from 0. A pure function of the step and, for
 * reduce_on_plateau, of the evaluations (`plateau` may be NULL for all others). */
double tdm_schedule_lr(const tdm_schedule *schedule, uint64_t step, const tdm_plateau *plateau);
/* For reduce_on_plateau: records the result of an evaluation. True if the learning rate was
 * reduced. */
bool tdm_schedule_observe(const tdm_schedule *schedule, double value, tdm_plateau *plateau);

/* Early stopping: records the result of an evaluation; an improvement must exceed `min_delta`. True
 * after `patience` consecutive evaluations without improvement. */
bool tdm_early_stop_observe(const tdm_job_early_stop *rule, double value, tdm_plateau *state);
bool tdm_early_stop_is_due(const tdm_job_early_stop *rule, const tdm_plateau *state);

#endif
