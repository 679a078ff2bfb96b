/*
 * checkpoint_job.c: parses the job that a checkpoint contains.
 *
 * The files that the job names may have moved since. They are not needed to read it, so they are not checked.
 */
#include "train/internal.h"

#include <string.h>

static tdm_status checkpoint_parse_job(const tdm_checkpoint *checkpoint, const char *path,
                                       const tdm_job_options *options, tdm_job_document **out,
                                       tdm_error *err)
{
    const char *yaml = tdm_checkpoint_content_of(checkpoint)->job_yaml;
    tdm_job_document *document = NULL;
    tdm_status status = tdm_job_parse(yaml, strlen(yaml), path, NULL, options, &document, err);
    if (status != TDM_OK) {
        tdm_job_document_destroy(document);
        return tdm_error_context(err, status, "the job inside the checkpoint");
    }
    *out = document;
    return TDM_OK;
}

tdm_status tdm__checkpoint_job(const tdm_checkpoint *checkpoint, const char *path,
                               tdm_job_document **out, tdm_error *err)
{
    tdm_job_options options = {.no_file_checks = true};
    return checkpoint_parse_job(checkpoint, path, &options, out, err);
}

tdm_status tdm__checkpoint_job_with(const tdm_checkpoint *checkpoint, const char *path,
                                    const char *override, tdm_job_document **out, tdm_error *err)
{
    tdm_job_options options = {.overrides = &override, .override_count = 1, .no_file_checks = true};
    return checkpoint_parse_job(checkpoint, path, &options, out, err);
}
