/*
 * parallel.h: the number of lanes of a job, and of the ranks that can execute them.
 *
 * The batch of a step is divided into lanes, which any rank may execute. The trained parameters depend on the number
 * of lanes, and not on the number of ranks (docs/parallelism.md).
 */
#ifndef TANDEM_PARALLEL_H
#define TANDEM_PARALLEL_H

#include <tandem/base.h>
#include <tandem/job.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TDM_MAX_LANES = 65536 };

/*
 * The job's parallel.lanes, or the value of `auto`: a power of two that depends only on the job.
 * It is the largest, up to 8, for which a lane has 64 rows of features, 32 images (for models with
 * convolutions; 64 for ResNets) or 256 tokens. If no such number exists: two lanes if each has a quarter of that
 * (not for ResNets), else one.
 */
TDM_API int64_t tdm_lanes_of(const tdm_job *job);

/* The maximum number of ranks of a job: each executes at least one lane, or, if the job has logical replicas, at least
 * one replica. */
typedef struct tdm_rank_limit {
    int64_t count;
    const char *units; /* "lanes" or "replicas" */
    const char *key;   /* of the job, which sets it: "parallel.lanes" */
} tdm_rank_limit;
TDM_API tdm_rank_limit tdm_rank_limit_of(const tdm_job *job);

#ifdef __cplusplus
}
#endif
#endif
