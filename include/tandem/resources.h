/*
 * resources.h: what a job needs before it can run: its data, and memory. Both are checked here, before training
 * starts.
 */
#ifndef TANDEM_RESOURCES_H
#define TANDEM_RESOURCES_H

#include <tandem/base.h>
#include <tandem/data.h>
#include <tandem/graph.h>
#include <tandem/job.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- data ------------------------------------------------------------------------------------ */

/* The data of a job, read and split. `test` is NULL when the job has none. */
typedef struct tdm_job_data {
    /* the data set that train and test are parts of, if it was split; else NULL */
    tdm_dataset *whole;
    tdm_dataset *train;
    tdm_dataset *test;
} tdm_job_data;

TDM_API tdm_status tdm_job_data_load(const tdm_job *job, tdm_job_data *out, tdm_error *err);
TDM_API void tdm_job_data_release(tdm_job_data *data);

/* ---- memory ---------------------------------------------------------------------------------- */

/* The ranks to estimate for, spread evenly over the hosts. 0 ranks: as many as tdm_train would start;
 * 0 hosts: one. */
typedef struct tdm_memory_world {
    int rank_count, host_count;
    int thread_count; /* of each rank; 0: its share of the CPUs of this host */
} tdm_memory_world;

/* Memory of one rank for one value of parallel.zero. Memory shared by the ranks of a host is divided
 * equally between them. */
typedef struct tdm_memory_stage {
    uint64_t parameter_bytes; /* with buffers and memory for gathered parameters */
    uint64_t gradient_bytes;
    uint64_t optimiser_bytes; /* with the average of the weights; without what is in files */
    uint64_t activation_bytes;
    uint64_t total_bytes; /* with evaluation and data */
    /* parameters, gradients and state by the published formula: see docs/memory.md */
    uint64_t formula_bytes;
} tdm_memory_stage;

enum { TDM_ZERO_STAGES = 4 };

/* What a job needs in memory while it trains, without the program itself. Bytes are those of one host, one
 * with the most ranks, unless a field says otherwise. Planned as for training, but nothing is mapped. */
typedef struct tdm_memory_estimate {
    int worker_count; /* on all hosts */
    int host_count;
    int host_workers;
    int thread_count; /* of each worker */
    int64_t batch;    /* rows of a step */
    int64_t lane_count;
    int64_t lane_rows;        /* of the largest lane */
    uint64_t parameter_bytes; /* trained; one copy for all workers, unless it is sharded */
    uint64_t buffer_bytes;    /* not trained */
    int gradient_buffers;     /* complete ones */
    uint64_t gradient_bytes;
    int optimiser_numbers; /* per parameter, including the average of the weights */
    uint64_t optimiser_bytes;
    uint64_t arena_bytes;      /* activations of each worker */
    uint64_t unshared_bytes;   /* arena_bytes if no buffer were reused */
    uint64_t activation_bytes; /* of all workers of the host */
    uint64_t evaluation_bytes; /* for each worker */
    uint64_t data_bytes;       /* for each worker */
    /* A sparse table: the expected number of rows, over all hosts, when all samples have been trained; the table; and
     * the rows and gradients of a batch, and the order of the rows while they are saved. */
    uint64_t table_rows, table_bytes, table_work_bytes;
    uint64_t file_bytes; /* the part of optimiser_bytes that is in files; not in the total */
    uint64_t total_bytes;
    uint64_t forward_flops; /* of the largest lane, like the next two */
    uint64_t backward_flops;
    uint64_t recomputed_flops;                /* part of backward_flops, see memory.recompute */
    tdm_memory_stage stages[TDM_ZERO_STAGES]; /* of one rank, by parallel.zero */
} tdm_memory_estimate;

/* `world` NULL: all fields 0. Needs the data for shapes and counts. TDM_ERR_JOB_INVALID: more ranks than
 * lanes. */
TDM_API tdm_status tdm_memory_estimate_of(const tdm_job *job, const tdm_job_data *data,
                                          const tdm_memory_world *world, tdm_memory_estimate *out,
                                          tdm_error *err);
/* The graph and the plan of the largest lane, for which the estimate was made. */
TDM_API tdm_status tdm_memory_plan(const tdm_job *job, const tdm_job_data *data,
                                   const tdm_memory_estimate *estimate, tdm_graph **out_graph,
                                   tdm_plan **out_plan, tdm_error *err);
/* The memory the job may use: memory.limit, or 95 % of what is available on the machine and in the process's
 * control group, whichever is less. UINT64_MAX: unknown, treated as no limit. */
TDM_API uint64_t tdm_memory_budget(const tdm_job *job);

#ifdef __cplusplus
}
#endif
#endif
