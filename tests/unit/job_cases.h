/*
 * job_cases.h: shared by the files of unit_job: the suites, the tables of invalid jobs, and helpers that parse
 * a job.
 */
#ifndef TANDEM_TESTS_UNIT_JOB_CASES_H
#define TANDEM_TESTS_UNIT_JOB_CASES_H

#include "check.h"
#include "job/job.h"

#include <stddef.h>

#define SMALLEST "data: {train: x.csv}\n"

extern const check_suite job_round_trip, job_hash, job_layers, job_library;

/* ---- tables ------------------------------------------------------------------------------------ */

#define JOB(text) (text), sizeof(text) - 1
#define SET(...)                                                                                   \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define NO_SET                                                                                     \
    {                                                                                              \
        NULL                                                                                       \
    }

/* A file /jobs/job.yaml, its overrides, and all its problems in order, one per line. Whether the files that
 * it names exist is not checked. */
typedef struct bad_job {
    const char *bytes;
    size_t count;
    const char *overrides[4]; /* up to the first NULL */
    const char *problems;
} bad_job;

extern const bad_job bad_jobs[], bad_layers[];
extern const size_t bad_job_count, bad_layer_count;

/* ---- helpers ----------------------------------------------------------------------------------- */

tdm_job_document *parse_bytes(const char *bytes, size_t count, const char *const *overrides);

/* A document that must be valid; problems are shown as a failed check. */
tdm_job_document *parse_good(const char *yaml, const char *const *overrides);

/* The problems of a document, one per line. */
void list_problems(const tdm_job_document *document, tdm_str *out);

/* Up to four overrides as a list that ends with NULL. The next call overwrites it. */
const char *const *set_list(const char *a, const char *b, const char *c, const char *d);

/* The YAML text of the job must be equal to this text. */
void check_shows(const tdm_job *job, const char *expected);

/* The text must be read as the same job; for YAML, the job must also give the same text. */
void check_round_trip(const tdm_job *job, const char *text, bool is_yaml);

bool is_same_list(const tdm_job_layer_list *a, const tdm_job_layer_list *b);

#endif
