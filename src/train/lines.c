/*
 * lines.c: a file of numbered lines. See lines.h for its purpose.
 *
 * Invariants: the file contains complete lines, each written with one write(). Numbers increase from line to line. A
 * file that is opened contains no line past the number from which training continues. Lines are kept in memory until
 * they are synced; those that the disk rejects, or loses before a sync, are written again, so a temporary error leaves
 * no gap. A file that could not be written is never silently short: the gap remains in it, and its readers find it.
 */
#include "train/lines.h"
#include "base/base.h"
#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_WAITING = 1 << 20, SYNC_LINES = 1 << 14 };
#define LINES_LIMIT_BYTES (UINT64_C(4) << 30)

/* A buffer for a record of any format. */
typedef union record_buffer {
    unsigned char bytes[TDM__LINE_RECORD];
    uint64_t alignment;
} record_buffer;

/* ---- opening --------------------------------------------------------------------------------- */

/* Collects the valid lines up to `number`. */
static tdm_status lines_collect(const tdm__lines *lines, uint64_t number, tdm_str *kept,
                                uint64_t *last, tdm_error *err)
{
    const tdm__lines_format *format = lines->format;
    tdm_file_bytes old;
    TDM_TRY(tdm_file_read(lines->path, LINES_LIMIT_BYTES, &old, err));
    tdm_arena *arena = tdm_arena_create("lines");
    const char *at = (const char *)old.data, *end = at + old.count;
    while (arena && at && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        if (!newline) break; /* truncated by a kill */
        record_buffer record;
        if (format->read(at, (size_t)(newline - at), arena, &record) &&
            format->number(&record) <= number) {
            tdm_str_add_bytes(kept, at, (size_t)(newline - at) + 1);
            *last = format->number(&record);
        }
        tdm_arena_reset(arena);
        at = newline + 1;
    }
    bool enough = arena && tdm_str_ok(kept);
    tdm_arena_destroy(arena);
    tdm_file_bytes_release(&old);
    return enough ? TDM_OK : tdm_fail_oom(err, "for %s", lines->path);
}

tdm_status tdm__lines_open(const char *run, const tdm__lines_format *format, uint64_t number,
                           tdm__lines *out, tdm_error *err)
{
    tdm__lines lines = {.format = format, .fd = -1, .complete = true};
    int length = snprintf(lines.path, sizeof(lines.path), "%s/%s", run, format->name);
    if (length >= (int)sizeof(lines.path))
        return tdm_fail(err, TDM_ERR_RANGE, "%s: the path %s is too long", format->name, run);
    tdm_str kept = TDM_STR_INIT;
    tdm_status status = TDM_OK;
    if (tdm_path_is_file(lines.path))
        status = lines_collect(&lines, number, &kept, &lines.last_number, err);
    if (status == TDM_OK)
        status = tdm_file_replace(lines.path, tdm_str_text(&kept), kept.length, err);
    off_t kept_bytes = (off_t)kept.length;
    tdm_str_release(&kept);
    TDM_TRY(status);
    lines.fd = open(lines.path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (lines.fd < 0) return tdm_os_fail(err, "opening", lines.path);
    lines.synced_bytes = kept_bytes;
    *out = lines;
    return TDM_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void lines_note_loss(tdm__lines *lines, const char *why)
{
    if (!lines->complete) return; /* logged once: a full disk must not flood the log */
    lines->complete = false;
    tdm_log(TDM_LOG_WARN, "train", "%s is no longer complete: %s; training continues", lines->path,
            why);
}

/* Appends one line; returns errno or 0. Only rank 0 writes here, so a partial line is at the end of the file. */
static int line_write(tdm__lines *lines, const void *record)
{
    char text[TDM__LINE_BYTES];
    struct stat before;
    int length = lines->format->show(record, text);
    bool known = fstat(lines->fd, &before) == 0;
    ssize_t written = write(lines->fd, text, (size_t)length);
    if (written == length) return 0;
    int error_number = written < 0 ? errno : ENOSPC;
    if (written > 0 && (!known || ftruncate(lines->fd, before.st_size) != 0))
        lines->must_rewind = true;
    return error_number;
}

/* Truncates the file to the synced part if the rest may be damaged; returns errno or 0. */
static int lines_rewind(tdm__lines *lines)
{
    if (!lines->must_rewind) return 0;
    if (ftruncate(lines->fd, lines->synced_bytes) != 0) return errno;
    lines->must_rewind = false;
    lines->written_count = 0;
    return 0;
}

/* Logs once when lines cannot be written, and once when all are written again. */
static void lines_report_error(tdm__lines *lines, int error_number)
{
    if (error_number != 0 && !lines->is_behind)
        tdm_log(TDM_LOG_WARN, "train",
                "%s cannot be written: %s; its lines are kept in memory, and training continues",
                lines->path, strerror(error_number));
    if (error_number == 0 && lines->is_behind)
        tdm_log(TDM_LOG_INFO, "train", "%s is complete again", lines->path);
    lines->is_behind = error_number != 0;
}

/* Writes the waiting lines, as far as the disk accepts them. */
static void lines_flush(tdm__lines *lines)
{
    int error_number = lines_rewind(lines);
    while (lines->written_count < lines->waiting_count && error_number == 0) {
        error_number = line_write(lines, lines->waiting +
                                             lines->written_count * lines->format->record_bytes);
        lines->written_count += error_number == 0;
    }
    /* After a failed sync, only a successful one clears the error. */
    if (error_number != 0 || !lines->sync_failed) lines_report_error(lines, error_number);
}

/* False: no memory, or too many lines. */
static bool lines_enqueue(tdm__lines *lines, const void *record)
{
    size_t bytes = lines->format->record_bytes;
    if (lines->waiting_count == lines->waiting_room) {
        size_t room = 2 * lines->waiting_room + 16;
        char *more = NULL;
        if (room <= MAX_WAITING) more = realloc(lines->waiting, room * bytes);
        if (!more) return false;
        lines->waiting = more;
        lines->waiting_room = room;
    }
    memcpy(lines->waiting + lines->waiting_count++ * bytes, record, bytes);
    return true;
}

void tdm__lines_put(tdm__lines *lines, const void *record)
{
    if (lines->fd < 0 || lines->format->number(record) <= lines->last_number) return;
    if (!lines_enqueue(lines, record)) {
        lines_note_loss(lines, "too many of its lines are waiting in memory");
        return;
    }
    lines->last_number = lines->format->number(record);
    lines_flush(lines);
    if (lines->written_count > 0 && lines->written_count % SYNC_LINES == 0) tdm__lines_sync(lines);
}

void tdm__lines_remember(const tdm__lines_format *format, void *recent, const void *record)
{
    size_t index = (size_t)(format->number(record) % TDM__LINES_RECENT);
    if (recent) memcpy((char *)recent + index * format->record_bytes, record, format->record_bytes);
}

void tdm__lines_fill(tdm__lines *lines, const void *recent, uint64_t number)
{
    uint64_t first = lines->last_number + 1;
    if (!recent || lines->fd < 0) return;
    if (number >= TDM__LINES_RECENT && first < number - TDM__LINES_RECENT + 1)
        first = number - TDM__LINES_RECENT + 1;
    for (uint64_t n = first; n <= number; n++) {
        const char *record = (const char *)recent +
                             (size_t)(n % TDM__LINES_RECENT) * lines->format->record_bytes;
        if (lines->format->number(record) == n) tdm__lines_put(lines, record);
    }
}

void tdm__lines_sync(tdm__lines *lines)
{
    struct stat now;
    if (lines->fd < 0) return;
    lines_flush(lines);
    size_t synced = lines->written_count, bytes = lines->format->record_bytes;
    lines->sync_failed = fdatasync(lines->fd) != 0 || fstat(lines->fd, &now) != 0;
    if (lines->sync_failed) {
        /* The kernel may have dropped unwritten data: it is written again. */
        int error_number = errno;
        lines->must_rewind = true;
        lines_report_error(lines, error_number);
        return;
    }
    lines->synced_bytes = now.st_size;
    lines->waiting_count -= synced;
    lines->written_count = 0;
    if (synced > 0 && lines->waiting_count > 0)
        memmove(lines->waiting, lines->waiting + synced * bytes, lines->waiting_count * bytes);
    if (lines->waiting_count == 0) lines_report_error(lines, 0);
}

void tdm__lines_close(tdm__lines *lines)
{
    if (lines->fd >= 0) {
        tdm__lines_sync(lines);
        if (lines->waiting_count > 0) lines_note_loss(lines, "its last lines could not be written");
        close(lines->fd);
    }
    free(lines->waiting);
    *lines = (tdm__lines){.fd = -1};
}
