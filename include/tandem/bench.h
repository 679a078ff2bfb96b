/*
 * bench.h: how long a job's training step takes, where the time goes, and how far that is from what
 * the machine can do.
 *
 * All figures are taken in one sitting on the job's own data: the step as training executes it, each
 * op of a lane, and three bounds: the fastest matrix product, the fastest pass over memory, and the
 * step's own matrix products with nothing around them. The share of an op is the time that the
 * bounds allow it, divided by the time it took.
 */
#ifndef TANDEM_BENCH_H
#define TANDEM_BENCH_H

#include <tandem/base.h>
#include <tandem/comm.h>
#include <tandem/graph.h>
#include <tandem/job.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tdm_bench_options {
    tdm_comm *comm; /* a world, of which all ranks call this; NULL: a single process */
    double seconds; /* to spend on each of the measurements; 0: 2 */
} tdm_bench_options;

typedef struct tdm_bench_op {
    const char *op;   /* "matmul" */
    const char *name; /* "fc1.matmul" */
    const char *kernel;
    bool backward;
    uint64_t flops;
    uint64_t bytes; /* of inputs and outputs */
    double seconds; /* the median over the runs */
    double bound_s; /* what the machine would need at best */
} tdm_bench_op;

typedef struct tdm_bench {
    /* what was measured */
    int rank_count, thread_count; /* threads of each rank */
    int64_t batch, lane_count, lane_rows;
    uint64_t parameter_count;
    uint64_t flops;        /* of a step */
    uint64_t update_bytes; /* that the optimiser reads and writes in a step */
    int step_count;        /* that were timed */
    /* the step, as training executes it */
    double step_s;       /* the median */
    double min_step_s;   /* the fastest */
    double start_s;      /* from the call to the first step: reading, planning, first values */
    double first_step_s; /* the first one, which touches all memory for the first time */
    double update_s; /* of that, outside this rank's lanes: waiting, sum of gradients, optimiser */
    /* the machine, with as many threads as the step used in all */
    double peak_flops;      /* a second, by a matrix product of 1024 x 1024 x 1024 */
    double peak_bf16_flops; /* likewise of numbers in bf16; 0 when the job has none */
    double
        peak_bytes; /* a second, read and written, by a pass over memory that caches do not hold */
    double products_s; /* the step's matrix products and convolutions alone, one after another */
    uint64_t peak_resident_bytes; /* of the rank that has most, with what it shares with others */
    /* the ops of one lane, in order, on this rank */
    tdm_bench_op *ops;
    size_t op_count;
    double lane_s;    /* their sum */
    tdm_graph *graph; /* that the names belong to */
} tdm_bench;

/* Trains for a while, in memory only: no run is made. tdm_bench_release() frees what it holds. */
TDM_API tdm_status tdm_bench_step(const tdm_job *job, const tdm_bench_options *options,
                                  tdm_bench *out, tdm_error *err);
TDM_API void tdm_bench_release(tdm_bench *bench);

#ifdef __cplusplus
}
#endif
#endif
