/*
 * job_library_cases.c: jobs whose model is a library: its options from the file and the command line,
 * and the hash of its file.
 */
#include <stdlib.h>
#include <unistd.h>

#include <tandem/job.h>
#include <tandem/os.h>

#include "unit/job_cases.h"

#define LIBRARY_JOB "data: {train: x.csv}\nmodel: {kind: library, library: m.so, options: "

/* The job with these options and overrides, as one key of it is shown. */
static tdm_job_document *library_job(const char *options, const char *set, const char *other)
{
    char yaml[256];
    const char *sets[] = {set, other};
    tdm_job_document *document = NULL;
    tdm_job_options load = {.overrides = sets,
                            .override_count = (set ? 1 : 0) + (other ? 1 : 0),
                            .no_file_checks = true};
    tdm_error err = {0};
    snprintf(yaml, sizeof(yaml), LIBRARY_JOB "%s}\n", options);
    CHECK_INT(tdm_job_parse(yaml, strlen(yaml), "job.yaml", "/jobs", &load, &document, &err),
              TDM_OK);
    CHECK_TEXT(err.message, "");
    return document;
}

static void check_options(const char *options, const char *set, const char *other,
                          const char *shown)
{
    tdm_job_document *document = library_job(options, set, other);
    const tdm_job *job = document ? tdm_job_document_job(document) : NULL;
    tdm_str text = TDM_STR_INIT;
    if (job) tdm_job_show(job, &text);
    CHECK_HAS(tdm_str_text(&text), shown);
    if (job) CHECK_TEXT(job->model.library, "/jobs/m.so");
    tdm_str_release(&text);
    tdm_job_document_destroy(document);
}

static void test_library_options(void)
{
    check_options("{b: 2, a: 1.50, c: true}", NULL, NULL, "  options: {a: 1.50, b: 2, c: true}\n");
    check_options("{a: \"2\", b: \"a b\", null: 'null', c: yes}", NULL, NULL,
                  "  options: {a: 2, b: \"a b\", c: \"yes\", \"null\": \"null\"}\n");
    check_options("{a: 1}", "model.options.a=3", "model.options.b=x", "options: {a: 3, b: x}\n");
    check_options("{a: 1}", "model.options={c: 4}", "model.options.d=5", "options: {c: 4, d: 5}\n");
    check_options("7", "model.options.a=1", NULL, "  options: {a: 1}\n");
}

static void library_hash(const char *options, const char *set, char hex[TDM_SHA256_HEX])
{
    tdm_job_document *document = library_job(options, set, NULL);
    hex[0] = '\0';
    if (document) CHECK_INT(tdm_job_hash(tdm_job_document_job(document), hex, NULL), TDM_OK);
    tdm_job_document_destroy(document);
}

#define DIGITS_16 "0123456789abcdef"
#define DIGITS_64 DIGITS_16 DIGITS_16 DIGITS_16 DIGITS_16

static void test_library_hash(void)
{
    char base[TDM_SHA256_HEX], same[TDM_SHA256_HEX], other[TDM_SHA256_HEX];
    library_hash("{a: 1, b: 2}", NULL, base);
    library_hash("{b: '2', a: 1}", "model.library=/elsewhere/n.so", same);
    CHECK_TEXT(same, base); /* neither the order nor the location matters */
    library_hash("{a: 1, b: 3}", NULL, other);
    CHECK(strcmp(other, base) != 0);
    library_hash("{a: 1, b: 2}", "model.library_sha256=" DIGITS_64, other);
    CHECK(strcmp(other, base) != 0);
}

/* If the file exists, its hash becomes part of the job; with another file the job is an error. */
static void test_library_file(void)
{
    static const char abc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    char path[] = "/tmp/tandem-job-XXXXXX", yaml[512];
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, "abc", 3) == 3);
    close(fd);
    tdm_job_document *document = NULL;
    tdm_error err = {0};
    snprintf(yaml, sizeof(yaml), "data: {train: %s}\nmodel: {kind: library, library: %s}\n", path,
             path);
    CHECK_INT(tdm_job_parse(yaml, strlen(yaml), "job.yaml", "/", NULL, &document, &err), TDM_OK);
    if (tdm_job_document_job(document))
        CHECK_TEXT(tdm_job_document_job(document)->model.library_sha256, abc);
    tdm_job_document_destroy(document);
    const char *set = "model.library_sha256=" DIGITS_64;
    tdm_job_options options = {.overrides = &set, .override_count = 1};
    CHECK_INT(tdm_job_parse(yaml, strlen(yaml), "job.yaml", "/", &options, &document, &err),
              TDM_ERR_JOB_MISMATCH);
    CHECK_HAS(err.message, "has changed: its SHA-256 is ba7816bf");
    CHECK_HAS(err.message, "start a new run");
    tdm_job_document_destroy(document);
    CHECK_INT(unlink(path), 0);
}

static const check_test job_library_tests[] = {
    CHECK_TEST(test_library_options),
    CHECK_TEST(test_library_hash),
    CHECK_TEST(test_library_file),
};
CHECK_SUITE(job_library, job_library_tests);
