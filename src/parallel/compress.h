/*
 * compress.h: compression of what replicas contribute to a step (replica_run.c), by the job's keys `compress`.
 *
 * A replica encodes its contribution with its states (residual, velocity) into a payload. What the other replicas add
 * is the decoded payload, wherever they are: so a result does not depend on how replicas are placed on ranks and hosts.
 * If all ranks are on one node, a rank decodes its own payloads in place, and sums are added in shared memory as
 * without compression. Otherwise the ranks exchange the payloads, and each rank decodes those parts of all of them that
 * it updates, and adds them by the tree. With PowerSGD there are no payloads, but sums of factors (factors.h).
 */
#ifndef TANDEM_PARALLEL_COMPRESS_H
#define TANDEM_PARALLEL_COMPRESS_H

#include "codec/codec.h"
#include "parallel/internal.h"
#include "parallel/replicas.h"

typedef struct tdm__compress tdm__compress;

/* The settings of a method. Those of TDM_PAYOFF_OWN are the job's. */
tdm_codec_options tdm__compress_options(const tdm_job *job, tdm_payoff_method method);

/* `first_array`: the index of the first array of a replica that belongs to the codec. *out is NULL if the job does not
 * compress. */
tdm_status tdm__compress_create(tdm_team *team, tdm__replicas *replicas, int first_array,
                                tdm__compress **out, tdm_error *err);
void tdm__compress_destroy(tdm__compress *compress);
/* With compress.auto: sets the method, once, before the first step. Until then, and with TDM_PAYOFF_NONE, no step
 * compresses. */
tdm_status tdm__compress_choose(tdm__compress *compress, tdm_payoff_method method, tdm_error *err);

/* Whether this step compresses (compress.start_step); one that does not keeps the states as they are. */
bool tdm__compress_is_active(const tdm__compress *compress);
/* Whether the states after the step, and what replicas contribute, are known only after tdm__compress_exchange, which is
 * then called in any case. Until then, contributions are undefined except for their statistics, and the versions of the
 * replicas stay incomplete. */
bool tdm__compress_sums_first(const tdm__compress *compress);
/* This rank begins a step. */
void tdm__compress_begin(tdm__compress *compress);
/* Encodes the contribution of a replica, which is finite, and writes the states of the version that is not current; NULL:
 * the replica contributes nothing, and its states stay. Without messages, `sum` becomes the decoded contribution.
 * TDM_ERR_DIVERGED: a number became infinite. In a write section. */
tdm_status tdm__compress_encode(tdm__compress *compress, int64_t replica, float *sum,
                                tdm_error *err);
/* The contribution of this replica has a number that is not finite: so has the sum, on all ranks. */
void tdm__compress_fail(tdm__compress *compress, int64_t replica);
/* With messages: exchanges the payloads of this step, and writes the sums of what this rank updates to team->summed. With
 * tdm__compress_sums_first also without messages. Collective. */
tdm_status tdm__compress_exchange(tdm__compress *compress, tdm_error *err);

#endif
