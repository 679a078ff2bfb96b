/*
 * factors.h: PowerSGD (compress.rank) for what replicas contribute to a step (compress.c).
 *
 * A replica contributes two factors of each matrix instead of the matrix, and other tensors as they are. Both factors
 * are added by the tree over the replicas, and the second one depends on the sum of the first. So a step has two parts:
 * each replica is projected when its lanes have run; when those of all ranks have, the sums are computed, the states of
 * the replicas are written, and every rank multiplies those parts of the sum that it updates.
 *
 * The second factor of a step is the first guess of the next one. It is one state for all replicas. Every replica keeps
 * a copy behind the elements of its residual, so it survives and moves as the residual does.
 *
 * Invariant: between the two parts, the residual of the version that is not current is the matrix that was projected.
 */
#ifndef TANDEM_PARALLEL_FACTORS_H
#define TANDEM_PARALLEL_FACTORS_H

#include "codec/codec.h"
#include "parallel/internal.h"
#include "parallel/replicas.h"

typedef struct tdm__factors tdm__factors;

/* `array`: the index of the residual in the arrays of a replica. The codec is borrowed. */
tdm_status tdm__factors_create(tdm_team *team, tdm__replicas *replicas, tdm_codec *codec, int array,
                               tdm__factors **out, tdm_error *err);
void tdm__factors_destroy(tdm__factors *factors);

/* This rank begins a step. */
void tdm__factors_begin(tdm__factors *factors);
/* Projects the contribution of a replica, which is then scratch memory. TDM_ERR_DIVERGED: a number became infinite. In a
 * write section. */
tdm_status tdm__factors_project(tdm__factors *factors, int64_t replica, float *sum, tdm_error *err);
/* The contribution of this replica is not finite: so is the sum, on all ranks. */
void tdm__factors_fail(tdm__factors *factors, int64_t replica);
/* Adds the factors of all replicas, and writes the states of this rank's. Their sums are then in team->summed, or in
 * the buffers of the tree. Collective. */
tdm_status tdm__factors_finish(tdm__factors *factors, tdm_error *err);

#endif
