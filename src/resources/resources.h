/*
 * resources.h: the part of module resources that only other modules use.
 *
 * <tandem/resources.h> declares the data of a job and the estimate of its memory. This header adds how many
 * workers and threads a job gets, and the check that its memory is available.
 */
#ifndef TANDEM_RESOURCES_RESOURCES_H
#define TANDEM_RESOURCES_RESOURCES_H

#include <tandem/comm.h>
#include <tandem/resources.h>

/* ---- data (job_data.c) ----------------------------------------------------------------------- */

/* How a job's data file is read; `labels_path` (may be NULL) is the file of labels of an IDX file. */
tdm_data_options tdm__job_data_options(const tdm_job *job, const char *labels_path);
/* The shape of a sample: data.shape if the job sets it (its element count must match the data set's samples),
 * else the shape in the data set. */
tdm_status tdm_job_sample_shape(const tdm_job *job, const tdm_dataset *dataset, tdm_shape *out,
                                tdm_error *err);

/* ---- workers and memory (memory.c) ------------------------------------------------------------ */

/* The number of workers if `worker_count` were requested; 0: chosen here. */
int tdm__workers_of(const tdm_job *job, int worker_count);
/* Threads per worker if this host has `host_workers`, before a world exists. */
int tdm__threads_guess(const tdm_job *job, int host_workers);
/* TDM_ERR_NO_MEMORY if the job with all ranks of this host does not fit; with `resumes`, suggestions do not
 * change the result. `threads`: per rank. `comm` NULL: a single process. */
tdm_status tdm__memory_check(const tdm_job *job, const tdm_job_data *data, tdm_comm *comm,
                             int threads, bool resumes, tdm_error *err);

#endif
