/*
 * fuzz_job.c: any bytes as a job file.
 *
 * The parser must return a job or problems for any input. The text of an accepted job must parse to the
 * same job, with the same hash: a checkpoint stores that text. Bytes after a line "--set" are overrides, one
 * in each line, so that their code is covered as well.
 */
#include "job/job.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OVERRIDES 8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Aborts if `document` does not have a job. */
static const tdm_job *job_of(const tdm_job_document *document)
{
    const tdm_job *job = document ? tdm_job_document_job(document) : NULL;
    if (!job) abort();
    return job;
}

static void check_fixed_point(const tdm_job *job)
{
    tdm_job_options options = {.no_file_checks = true};
    tdm_str first = TDM_STR_INIT, second = TDM_STR_INIT, json = TDM_STR_INIT;
    tdm_job_document *again = NULL;
    char hash_first[TDM_SHA256_HEX], hash_second[TDM_SHA256_HEX];
    tdm_job_show(job, &first);
    tdm_job_show_json(job, &json);
    if (tdm_job_parse(first.data, first.length, "shown.yaml", "/", &options, &again, NULL)) abort();
    tdm_job_show(job_of(again), &second);
    if (strcmp(tdm_str_text(&first), tdm_str_text(&second)) != 0) abort();
    if (tdm_job_hash(job, hash_first, NULL) || tdm_job_hash(job_of(again), hash_second, NULL))
        abort();
    if (strcmp(hash_first, hash_second) != 0) abort();
    if (tdm_job_diff(job, job_of(again), &second) != 0) abort();
    tdm_job_document_destroy(again);
    tdm_str_release(&first);
    tdm_str_release(&second);
    tdm_str_release(&json);
}

static void check_problems(const tdm_job_document *document)
{
    tdm_job_problems problems = tdm_job_document_problems(document);
    if (problems.count == 0) abort();
    tdm_str text = TDM_STR_INIT;
    for (size_t i = 0; i < problems.count; i++) tdm_job_problem_text(&problems.items[i], &text);
    tdm_str_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char mark[] = "\n--set\n";
    const char *overrides[MAX_OVERRIDES];
    tdm_job_options options = {.overrides = overrides, .no_file_checks = true};
    const uint8_t *at = size > 0 ? memmem(data, size, mark, strlen(mark)) : NULL;
    size_t file_size = at ? (size_t)(at - data) : size;
    char *lines = NULL;
    if (at) {
        size_t skip = file_size + strlen(mark);
        lines = calloc(1, size - skip + 1);
        if (!lines) return 0;
        memcpy(lines, data + skip, size - skip);
        char *rest = lines;
        while (rest && options.override_count < MAX_OVERRIDES)
            overrides[options.override_count++] = strsep(&rest, "\n");
    }
    tdm_job_document *document = NULL;
    tdm_status status = tdm_job_parse((const char *)data, file_size, "fuzz.yaml", "/fuzz", &options,
                                      &document, NULL);
    if (status == TDM_OK) check_fixed_point(job_of(document));
    if (status == TDM_ERR_JOB_INVALID) check_problems(document);
    tdm_job_document_destroy(document);
    free(lines);
    return 0;
}
