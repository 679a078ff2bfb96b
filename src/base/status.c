/*
 * status.c: the one table of status codes, and the making of error messages.
 *
 * A code, its name and its text stand in one row; nothing else in the library repeats them. The
 * group of a code is its hundreds, so the table cannot disagree with it.
 */
#include <tandem/base.h>

#include <stdio.h>
#include <string.h>

typedef struct status_row {
    tdm_status status;
    const char *name;
    const char *text;
} status_row;

static const status_row rows[] = {
    {TDM_OK, "ok", "success"},
    {TDM_ERR_INVALID, "invalid", "an argument does not make sense"},
    {TDM_ERR_NOT_FOUND, "not-found", "what was asked for is not there"},
    {TDM_ERR_EXISTS, "exists", "it is there already"},
    {TDM_ERR_FORMAT, "format", "the bytes do not follow their format"},
    {TDM_ERR_RANGE, "range", "a number or a size is out of its range"},
    {TDM_ERR_UNSUPPORTED, "unsupported", "this build or this version cannot do that"},
    {TDM_ERR_IO, "io", "reading or writing failed"},
    {TDM_ERR_CHECKSUM, "checksum", "the bytes are not those that were written"},
    {TDM_ERR_TIMEOUT, "timeout", "it took longer than its deadline"},
    {TDM_ERR_BUSY, "busy", "somebody else is using it"},
    {TDM_ERR_INTERRUPTED, "interrupted", "it was asked to stop"},
    {TDM_ERR_PEER_FAILED, "peer-failed", "a worker of this job has failed"},
    {TDM_ERR_PEER_MISMATCH, "peer-mismatch", "two workers called different things"},
    {TDM_ERR_PEER_TIMEOUT, "peer-timeout", "a worker did not come within the deadline"},
    {TDM_ERR_PEER_REFUSED, "peer-refused", "the other workers did not let this one in"},
    {TDM_ERR_PEER_LEFT, "peer-left", "a worker has left the world in good order"},
    {TDM_ERR_PEER_FENCED, "peer-fenced", "the others go on without this worker"},
    {TDM_ERR_NO_MEMORY, "no-memory", "this host has no memory left"},
    {TDM_ERR_NO_SPACE, "no-space", "this host's disk is full"},
    {TDM_ERR_SYSTEM, "system", "the operating system refused"},
    {TDM_ERR_JOB_INVALID, "job-invalid", "the job file is not right"},
    {TDM_ERR_JOB_MISMATCH, "job-mismatch", "the job is not the one this state belongs to"},
    {TDM_ERR_DIVERGED, "diverged", "the numbers of the model are no longer finite"},
    {TDM_ERR_INTERNAL, "internal", "a defect of tandem itself; please report it"},
};

enum { ROW_COUNT = sizeof(rows) / sizeof(rows[0]) };

static const status_row *find_row(tdm_status status)
{
    for (size_t i = 0; i < ROW_COUNT; i++)
        if (rows[i].status == status) return &rows[i];
    return NULL;
}

const char *tdm_version(void)
{
    return TDM_VERSION;
}

tdm_status_group tdm_status_group_of(tdm_status status)
{
    return find_row(status) ? (tdm_status_group)((int)status / 100) : TDM_STATUS_GROUP_NONE;
}

const char *tdm_status_name(tdm_status status)
{
    const status_row *row = find_row(status);
    return row ? row->name : "unknown";
}

const char *tdm_status_text(tdm_status status)
{
    const status_row *row = find_row(status);
    return row ? row->text : "a status outside the table";
}

int tdm_status_at(size_t index)
{
    return index < ROW_COUNT ? (int)rows[index].status : -1;
}

tdm_status tdm_vfail(tdm_error *err, tdm_status status, const char *fmt, va_list args)
{
    if (err) {
        /* The arguments may point into err->message itself, so format beside it. */
        char text[sizeof(err->message)];
        vsnprintf(text, sizeof(text), fmt, args);
        memcpy(err->message, text, sizeof(text));
        err->status = status;
    }
    return status;
}

tdm_status tdm_fail(tdm_error *err, tdm_status status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    tdm_vfail(err, status, fmt, args);
    va_end(args);
    return status;
}

tdm_status tdm_error_context(tdm_error *err, tdm_status status, const char *fmt, ...)
{
    if (!err) return status;
    char where[sizeof(err->message)];
    va_list args;
    va_start(args, fmt);
    vsnprintf(where, sizeof(where), fmt, args);
    va_end(args);
    return tdm_fail(err, status, "%s: %s", where, err->message);
}
