/*
 * team_bench.h: a team with a small model and generated rows, and everything that a team borrows, for tests and
 * benchmarks.
 *
 * The numbers of a row are a function of the step and of its position in the batch, so every team of one shape
 * gets the same data, whichever rank fills it in. The bench itself allocates only when it is opened.
 */
#ifndef TANDEM_TESTS_TEAM_BENCH_H
#define TANDEM_TESTS_TEAM_BENCH_H

#include "base/base.h"
#include "check.h"
#include "optim/optim.h"
#include "parallel/parallel.h"
#include "sim/simulator.h"

#include <tandem/os.h>

#include <stdlib.h>

enum { TEAM_BENCH_FEATURES = 7, TEAM_BENCH_CLASSES = 4 };

/* Options of a test; zero means the default. */
typedef struct team_shape {
    int64_t lanes;
    int zero;            /* parallel.zero */
    tdm_comm *comm;      /* NULL: a single process */
    int reduce, balance; /* tdm_job_reduce, tdm_job_balance */
    bool no_overlap;
    size_t bucket_bytes;
    int64_t batches[TDM_TEAM_MAX_BATCHES];
    int optim;   /* tdm_job_optim */
    int backend; /* tdm_job_backend */
    int numerics;
    int threads; /* 0: the default of a job */
    double dropout;
    int64_t width; /* of the hidden layer; 0: 19 */
    bool poison;   /* a NaN in the last row of every batch */
    /* if not 0: the first feature of the last row, or, with huge_rows, of all rows */
    float huge;
    bool huge_rows;
    double clip_value;
    double clip_norm;
    double ema;
    bool synced; /* a batch norm before the hidden layer, over all lanes */
} team_shape;

typedef struct team_bench {
    team_shape shape;
    tdm_job job;
    int64_t hidden[2];
    tdm_job_layer layers[3];
    tdm_graph *graph; /* of one row, for the layout */
    tdm_params *store;
    float *params;
    float *states[TDM_OPTIM_MAX_STATES];
    float *ema;
    tdm_optimiser *optimiser;
    size_t param_extent, trained_extent;
    tdm_team *team;
    uint64_t step; /* of the batch that is filled */
    int64_t batch;
} team_bench;

void team_bench_fill(void *user, int64_t first, int64_t count, void *inputs, int32_t *classes);

tdm_model_options team_bench_model(const team_bench *b);

tdm_team_options team_bench_options(team_bench *b);

/* Everything but the team. */
bool team_bench_prepare(team_bench *b, const team_shape *shape);

bool team_bench_open(team_bench *b, const team_shape *shape);

void team_bench_close(team_bench *b);

/* Calls `fn` on that many ranks, which run concurrently in a simulated world, each with separate memory; with
 * one rank without a world. */
void team_bench_on_ranks(int ranks, tdm_sim_fn fn, void *user);

/* Compares the numbers of two benches, if they are complete: parameters, states and averages. */
bool team_bench_same(const team_bench *a, const team_bench *b);

tdm_step_result team_bench_step(team_bench *b, uint64_t step, int64_t batch);

#endif
