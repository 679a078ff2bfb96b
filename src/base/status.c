/*
 * status.c: the table of status codes, and the construction of error messages.
 *
 * A code, its name and its text are one row; nothing else in the library repeats them. The group of a
 * code is its hundreds digit, so the table cannot disagree with it.
 */
#include "base/base.h"

#include <stdio.h>
#include <string.h>

typedef struct status_row {
    tdm_status status;
    const char *name;
    const char *text;
} status_row;

static const status_row rows[] = {
    {TDM_OK, "ok", "success"},
    {TDM_ERR_INVALID, "invalid", "an argument is invalid"},
    {TDM_ERR_NOT_FOUND, "not-found", "the requested object does not exist"},
    {TDM_ERR_EXISTS, "exists", "the object already exists"},
    {TDM_ERR_FORMAT, "format", "the data has an invalid format"},
    {TDM_ERR_RANGE, "range", "a number or a size is out of range"},
    {TDM_ERR_UNSUPPORTED, "unsupported", "this build or version does not support the operation"},
    {TDM_ERR_IO, "io", "reading or writing failed"},
    {TDM_ERR_CHECKSUM, "checksum", "the data does not match its checksum"},
    {TDM_ERR_TIMEOUT, "timeout", "the deadline was exceeded"},
    {TDM_ERR_BUSY, "busy", "another process is using the object"},
    {TDM_ERR_INTERRUPTED, "interrupted", "the operation was interrupted"},
    {TDM_ERR_PEER_FAILED, "peer-failed", "a worker of this job has failed"},
    {TDM_ERR_PEER_MISMATCH, "peer-mismatch", "two workers made different calls"},
    {TDM_ERR_PEER_TIMEOUT, "peer-timeout", "a worker exceeded the deadline"},
    {TDM_ERR_PEER_REFUSED, "peer-refused", "the other workers rejected this worker"},
    {TDM_ERR_PEER_LEFT, "peer-left", "a worker has left the world"},
    {TDM_ERR_PEER_FENCED, "peer-fenced", "this worker was fenced out"},
    {TDM_ERR_NO_MEMORY, "no-memory", "this host is out of memory"},
    {TDM_ERR_NO_SPACE, "no-space", "the disk of this host is full"},
    {TDM_ERR_SYSTEM, "system", "a system call failed"},
    {TDM_ERR_JOB_INVALID, "job-invalid", "the job file is invalid"},
    {TDM_ERR_JOB_MISMATCH, "job-mismatch", "the state belongs to another job"},
    {TDM_ERR_DIVERGED, "diverged", "a number of the model is not finite"},
    {TDM_ERR_INTERNAL, "internal", "an internal error of tandem; please report it"},
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

tdm_status tdm_fail_oom(tdm_error *err, const char *fmt, ...)
{
    char what[sizeof(err->message)];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    return tdm_fail(err, TDM_ERR_NO_MEMORY, "out of memory %s", what);
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
