/*
 * replica_run.h: shared by the files that execute the replicas of a rank.
 *
 * Files: replica_run.c (creation, the lanes of a replica, its contribution), replica_local.c (sync.kind local),
 * replica_order.c (sync.kind server), replica_gossip.c and replica_mean.c (sync.kind gossip).
 */
#ifndef TANDEM_PARALLEL_REPLICA_RUN_H
#define TANDEM_PARALLEL_REPLICA_RUN_H

#include "parallel/compress.h"
#include "parallel/internal.h"
#include "parallel/replicas.h"

#include <tandem/os.h>

typedef struct tdm__gossip tdm__gossip; /* replica_gossip.h */

struct tdm__replica_run {
    tdm__replicas *replicas;
    int64_t lanes; /* of a replica */
    bool trains;   /* each replica trains a separate model */
    bool is_ordered;
    uint64_t changed; /* ordered: the replicas that this step changes, bit r */
    tdm_optimiser *inner;
    tdm_pages pages;
    float *model; /* the copy that a replica trains; NULL: none */
    float *states[TDM_OPTIM_MAX_STATES];
    int state_arrays
        [TDM_OPTIM_MAX_STATES]; /* the array of each state; -1: the optimiser does not use it */
    /* sync.adapt_divergence: squares by cell, else NULL; the squared norm of the model before the step; and the changes
     * of this rank's replicas. */
    double *squares;
    double model_square;
    uint64_t change;
    double *losses;          /* by lane, over the inner steps */
    tdm__compress *compress; /* NULL: contributions are not compressed */
    tdm__gossip *gossip;     /* NULL: another strategy */
};

/* Executes the lanes of a replica; *out is the sum of their gradients, NULL if none has rows. */
tdm_status tdm__replica_run_lanes(tdm_team *team, int64_t replica, float **out, tdm_error *err);
/* Whether all numbers of a contribution are finite, so that it can be encoded. */
bool tdm__replica_is_finite(const tdm_team *team, const float *sum);

/* ---- local steps (replica_local.c) ---------------------------------------------------------- */

/* Trains the replica for the steps of the round. *finite: no gradient had a non-finite number. */
tdm_status tdm__replica_train(tdm_team *team, int64_t replica, bool *finite, tdm_error *err);
/* With sync.adapt_divergence: this rank begins a round. */
tdm_status tdm__replicas_measure_begin(tdm_team *team, tdm_error *err);
/* The contribution of the replica after its steps, in a gradient buffer. */
float *tdm__replica_difference(tdm_team *team, bool finite);

/* ---- sync.kind gossip (replica_gossip.c) -------------------------------------------------------- */

tdm_status tdm__gossip_create(tdm_team *team, tdm_error *err);
void tdm__gossip_destroy(tdm__gossip *gossip);
/* For the replicas [first, end) of this rank: adds the shares of their sources, in the version that is not current.
 * Collective. */
tdm_status tdm__gossip_mix(tdm_team *team, int64_t first, int64_t end, tdm_error *err);
/* Copies the model of a replica, after that, to where it is trained; and adds what its steps have changed. The second
 * one in a write section; `finite`: no gradient had a non-finite number. */
void tdm__gossip_load(tdm_team *team, int64_t replica);
void tdm__gossip_save(tdm_team *team, int64_t replica, bool finite);
/* The push-sum weight in an array. */
float tdm__gossip_weight(const tdm_team *team, const float *array);
/* The mean has to be computed again. */
void tdm__gossip_forget_mean(tdm__gossip *gossip);
/* Memory of a rank for models that it receives from other nodes, in bytes. */
size_t tdm__gossip_remote_bytes(int64_t replica_count, size_t elements);

/* ---- sync.kind server (replica_order.c) --------------------------------------------------------- */

/* Loads the model that a replica has read. */
void tdm__replica_load_read(tdm_team *team, int64_t replica);
/* Computes the gradients of this rank's updates of the step. */
tdm_status tdm__replicas_execute_ordered(tdm_team *team, tdm_error *err);

#endif
