/*
 * bench.h: measures the training step of a job: its time, where the time goes, and how close that is to
 * the limits of the machine.
 *
 * All figures come from one session on the job's data: the step as training executes it, each op of a
 * lane, and three bounds: the fastest matrix product, the fastest pass over memory, and the matrix products of
 * the step alone. The efficiency of an op is the time that the bounds allow divided by the time it took.
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
    tdm_comm *comm; /* a world; all its ranks call this. NULL: a single process */
    double seconds; /* for each measurement; 0: 2 */
} tdm_bench_options;

typedef struct tdm_bench_op {
    const char *op;   /* "matmul" */
    const char *name; /* "fc1.matmul" */
    const char *kernel;
    bool backward;
    uint64_t flops;
    uint64_t bytes; /* of inputs and outputs */
    double seconds; /* median over the runs */
    double bound_s; /* minimum time on this machine */
} tdm_bench_op;

typedef struct tdm_bench {
    /* configuration */
    int rank_count, thread_count; /* threads per rank */
    int64_t batch, lane_count, lane_rows;
    uint64_t parameter_count;
    uint64_t flops;        /* per step */
    uint64_t update_bytes; /* read and written by the optimiser per step */
    int step_count;        /* timed steps */
    /* the step as training executes it */
    double step_s;       /* the median */
    double min_step_s;   /* the fastest */
    double start_s;      /* from the call to the first step: reading, planning, initialising */
    double first_step_s; /* touches all memory for the first time */
    double update_s; /* of step_s, outside this rank's lanes: waiting, gradient sum, optimiser */
    /* the machine, with the total number of threads of the step */
    double peak_flops;      /* per second, matrix product of 1024 x 1024 x 1024 */
    double peak_bf16_flops; /* per second, with bf16 inputs; 0: the job has none */
    /* per second, read and written, in a pass over memory larger than the caches */
    double peak_bytes;
    double products_s; /* the matrix products and convolutions of the step alone, in sequence */
    uint64_t peak_resident_bytes; /* of the rank with the most, shared memory included */
    /* the ops of one lane, in order, on this rank */
    tdm_bench_op *ops;
    size_t op_count;
    double lane_s;    /* their sum */
    tdm_graph *graph; /* owns the names */
} tdm_bench;

/* Trains for a while, in memory only; creates no run. Free the result with tdm_bench_release(). */
TDM_API tdm_status tdm_bench_step(const tdm_job *job, const tdm_bench_options *options,
                                  tdm_bench *out, tdm_error *err);
TDM_API void tdm_bench_release(tdm_bench *bench);

#ifdef __cplusplus
}
#endif
#endif
