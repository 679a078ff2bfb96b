/*
 * store_exercise.h: the operations of a rank on a store, in any world, compared with plain copies.
 *
 * All ranks know all numbers: value(block, version, element) is a function. So rank 0 writes blocks, every rank
 * updates its share as a step would, and all check what they read: their memory, what rank 0 reads back, and
 * what plans compute from prefetched parameters, bit for bit like a plan on a plain copy.
 */
#ifndef TANDEM_TESTS_DIST_STORE_EXERCISE_H
#define TANDEM_TESTS_DIST_STORE_EXERCISE_H

#include "check.h"

#include "parallel/params.h"

#include <tandem/os.h>

enum { WIDTH = 72, LAYERS = 6, ROWS = 3, BUCKET_BYTES = 20000, BLOCKS = 4 };

typedef struct net {
    tdm_graph *graph;
    tdm_plan *train, *eval, *plain; /* the last one is bound to the copy */
    void *arena;
    float *grads[2]; /* of the run with prefetched parameters and of the plain one */
} net;

typedef struct bench {
    tdm_comm *comm;
    int rank, size;
    int zero;
    const char *offload;
    tdm_shm *shm;
    int slot;
    uint32_t epoch;
    net net;
    tdm_job job;
    tdm_optimiser *optimiser;
    tdm_params *store;
    tdm_prefetch *feed, *eval_feed, *ema_feed;
    float *copy, *got; /* of a block */
    size_t elements;
    int version;
} bench;

/* Whether `status` is TDM_OK; reports it otherwise. */
bool fine(const bench *b, tdm_status status, const tdm_error *err, const char *what);

/* Opens a store for a network of this size in the world of `b`; false after a failure. */
bool bench_open(bench *b, int64_t width, int layers, size_t bucket_bytes);
/* Opens the parameter store only: the part of bench_open() after the network exists. */
bool bench_store(bench *b, size_t bucket_bytes);
void bench_close(bench *b);

/* Writes version `version` of a block, in pieces, and reads it back; false after a failure. */
bool write_block(bench *b, int block, int version);
/* Whether the part of a block that this rank may access has this version. */
bool sees(bench *b, int block, int version);

/* A barrier of all ranks; false after a failure. */
bool meet(bench *b);

/* The whole exercise, in a world that is already open. `offload` NULL: the state is in memory. */
void exercise(tdm_comm *comm, int zero, const char *offload);

#endif
