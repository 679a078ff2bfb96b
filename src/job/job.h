/*
 * job.h: the part of module job that only other modules use.
 *
 * <tandem/job.h> declares how a job file is read. This header adds comparison and display of single settings;
 * libtandem.so does not export it.
 */
#ifndef TANDEM_JOB_JOB_H
#define TANDEM_JOB_JOB_H

#include <tandem/job.h>

/* Whether the job's model is a token model, which is trained on a text: gpt, or layers that start
 * with embedding. For a model from a library use tdm_model_takes_tokens. */
bool tdm_job_takes_tokens(const tdm_job *job);
/* Whether replicas of the model are trained apart and averaged (sync.kind: local); whether they exchange models with
 * their neighbours instead (sync.kind: gossip); one of the two: replicas train separate models in rounds. */
bool tdm_job_is_local(const tdm_job *job);
bool tdm_job_is_gossip(const tdm_job *job);
bool tdm_job_trains_apart(const tdm_job *job);
/* Whether the period of local steps follows the divergence of the replicas; whether it changes at all. */
bool tdm_job_adapts_to_divergence(const tdm_job *job);
bool tdm_job_adapts_period(const tdm_job *job);
/* Whether updates are applied one by one, each from a gradient of an earlier model (sync.kind: server, not in mode
 * sync). */
bool tdm_job_is_async(const tdm_job *job);
/* Whether these updates are made in the order in which gradients are complete (sync.order: live). */
bool tdm_job_is_live(const tdm_job *job);
/* Whether the job has a stage of compression; whether it has logical replicas, for any of these reasons. */
bool tdm_job_compresses(const tdm_job *job);
bool tdm_job_factors(const tdm_job *job); /* by PowerSGD (compress.rank) */
bool tdm_job_has_replicas(const tdm_job *job);
/* Whether the job's model takes sparse samples, with a row of a table for each feature. */
bool tdm_job_takes_sparse(const tdm_job *job);

/*
 * The input of a model of sparse samples: for each sample the sums of the rows of its features, [columns] numbers:
 *
 *   wide      1                the sum of value * weight                        lr, fm, wide_deep
 *   sums      width            the sum of value * vector                        fm
 *   squares   width            the sum of (value * vector)^2                    fm
 *   numbers   number_count     the integers of the sample, as log(1 + n)        wide_deep, dlrm
 *   fields    field_count * width   for each field the sum of value * vector    wide_deep, dlrm
 *
 * A row of the table is [weight][vector], without the weight for dlrm, and without the vector for lr.
 */
typedef struct tdm_job_columns {
    int64_t row_width;                            /* numbers of a row of the table */
    int64_t weight;                               /* of these, the weight: 1 or 0 */
    int64_t dim;                                  /* of these, the vector */
    int64_t wide, sums, squares, numbers, fields; /* first columns; -1: none */
    int64_t number_count, field_count;
    int64_t first_field; /* of the data; lower fields are numbers */
    int64_t columns;
} tdm_job_columns;
tdm_job_columns tdm_job_columns_of(const tdm_job *job);
/* The name of a tdm_job_layer_kind in a job, such as "conv". */
const char *tdm_job_layer_name(int kind);
/* Lists in `out` the keys that affect bits and differ: "train.batch: 32 here, 64 there". Returns how
 * many there are. */
size_t tdm_job_diff(const tdm_job *here, const tdm_job *there, tdm_str *out);

/* ---- the table of keys ----------------------------------------------------------------------- */

/* Adds the value of a key as tdm_job_show prints it; "none" if the job does not have it. */
void tdm_job_value_show(const tdm_job *job, size_t index, tdm_str *out);

/* The YAML library and its version: "libyaml 0.2.5". Returns `buffer`. */
const char *tdm_job_library(char buffer[TDM_LIBRARY_BYTES]);

/* The reference of all keys that begin with `prefix` ("" for all), as plain text. Returns their
 * number. */
size_t tdm_job_keys_text(const char *prefix, tdm_str *out);
/* The reference of all keys as Markdown: docs/job-file.md. */
void tdm_job_keys_markdown(tdm_str *out);
/* Like tdm_job_keys_text, as a JSON array. */
size_t tdm_job_keys_json(const char *prefix, tdm_str *out);

#endif
