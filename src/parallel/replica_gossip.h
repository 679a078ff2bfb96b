/*
 * replica_gossip.h: shared by the files of sync.kind gossip: replica_gossip.c (the exchange, and what a replica trains)
 * and replica_mean.c (the mean of all replicas, which is the model that is evaluated and saved).
 */
#ifndef TANDEM_PARALLEL_REPLICA_GOSSIP_H
#define TANDEM_PARALLEL_REPLICA_GOSSIP_H

#include "parallel/replica_run.h"

/* A model that this rank sends to a rank of another node. */
typedef struct tdm__gossip_send {
    int64_t replica;
    int place;
} tdm__gossip_send;

struct tdm__gossip {
    tdm_gossip_graph graph;
    tdm_group *group; /* of all ranks, for models between nodes; NULL: there is one node */
    /* The edges of the current round. */
    int64_t *targets; /* target_count for each replica */
    size_t *first;    /* by replica, in `sources` */
    int64_t *sources;
    int *places;     /* by replica: its home */
    int *stamps;     /* by replica: the last place + 1 for which it is in `sends` */
    float **remote;  /* by replica: its window, if it is received; else NULL */
    tdm_pages pages; /* of these windows */
    size_t window;   /* elements of a message */
    tdm__gossip_send *sends;
    size_t send_count;
    tdm_request **requests;
    size_t request_count;
    /* The mean. */
    tdm_pages mean_pages;
    float *mean;      /* a window of it */
    float *parts;     /* windows of this rank's parts of the sum */
    double *partial;  /* by replica and cell of the window: squared distances */
    double *gathered; /* by replica: squared distance, then weight */
    bool mean_is_current;
    double distance;
};

/* ---- the mean (replica_mean.c) ----------------------------------------------------------------- */

tdm_status tdm__gossip_mean_create(tdm_team *team, tdm_error *err);
void tdm__gossip_mean_destroy(tdm__gossip *gossip);

#endif
