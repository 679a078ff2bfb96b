/*
 * ledger.c: writes a run's ledger. See ledger.h for its purpose, ledger_check.c for its verification.
 *
 * Invariants: the file contains complete lines, each written with one write(). Steps increase by one from line
 * to line. A ledger that is opened contains no step past the one from which training continues. Lines are kept
 * in memory until they are synced; those that the disk rejects, or loses before a sync, are written again, so a
 * temporary error leaves no gap. A ledger that could not be written is never silently short: the gap remains in
 * it, and the check finds it.
 */
#include "train/ledger.h"
#include "base/base.h"
#include "os/os.h"

#include "train/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE_BYTES = 192, DIGEST_DIGITS = 16, MAX_WAITING = 1 << 20, SYNC_LINES = 1 << 14 };
#define LEDGER_LIMIT_BYTES (UINT64_C(4) << 30)

/* A multiply-xorshift finaliser after each of the two numbers makes it unlikely that another set of samples has
 * the same sum. */
static uint64_t hash_mix(uint64_t z)
{
    z ^= z >> 30;
    z *= UINT64_C(0xbf58476d1ce4e5b9);
    z ^= z >> 27;
    z *= UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t tdm__ledger_mix(uint64_t epoch, uint64_t index)
{
    return hash_mix(hash_mix(epoch + UINT64_C(0x9e3779b97f4a7c15)) + index);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static int line_text(const tdm__ledger_line *line, char out[LINE_BYTES])
{
    char steps[48] = "";
    if (line->steps > 1)
        snprintf(steps, sizeof(steps), "\"steps\":%llu,", (unsigned long long)line->steps);
    return snprintf(out, LINE_BYTES,
                    "{\"step\":%llu,%s\"epoch\":%llu,\"position\":%llu,\"count\":%llu,"
                    "\"digest\":\"%016llx\"}\n",
                    (unsigned long long)line->step, steps, (unsigned long long)line->epoch,
                    (unsigned long long)line->position, (unsigned long long)line->count,
                    (unsigned long long)line->digest);
}

static bool read_digest(const char *text, uint64_t *out)
{
    if (!text || strlen(text) != DIGEST_DIGITS) return false;
    uint64_t value = 0;
    for (const char *c = text; *c; c++) {
        static const char digits[] = "0123456789abcdef";
        const char *digit = strchr(digits, *c);
        if (!digit) return false;
        value = value << 4 | (uint64_t)(digit - digits);
    }
    *out = value;
    return true;
}

bool tdm__ledger_read(const char *text, size_t length, tdm_arena *arena, tdm__ledger_line *out)
{
    const tdm_json *object;
    tdm__ledger_line line;
    if (tdm_json_parse(text, length, arena, &object, NULL) != TDM_OK) return false;
    const tdm_json *steps = tdm_json_get(object, "steps");
    line.steps = 1;
    if (steps && (!tdm_json_as_u64(steps, &line.steps) || line.steps < 1)) return false;
    bool whole = tdm_json_as_u64(tdm_json_get(object, "step"), &line.step) && line.step > 0 &&
                 line.steps <= line.step &&
                 tdm_json_as_u64(tdm_json_get(object, "epoch"), &line.epoch) &&
                 tdm_json_as_u64(tdm_json_get(object, "position"), &line.position) &&
                 tdm_json_as_u64(tdm_json_get(object, "count"), &line.count) &&
                 read_digest(tdm_json_as_string(tdm_json_get(object, "digest")), &line.digest);
    if (whole) *out = line;
    return whole;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Collects the valid lines up to `step`. */
static tdm_status ledger_collect_lines(const char *path, uint64_t step, tdm_str *kept,
                                       uint64_t *last, tdm_error *err)
{
    tdm_file_bytes old;
    TDM_TRY(tdm_file_read(path, LEDGER_LIMIT_BYTES, &old, err));
    tdm_arena *arena = tdm_arena_create("ledger");
    const char *at = (const char *)old.data, *end = at + old.count;
    while (arena && at && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        if (!newline) break; /* truncated by a kill */
        tdm__ledger_line line;
        if (tdm__ledger_read(at, (size_t)(newline - at), arena, &line) && line.step <= step) {
            tdm_str_add_bytes(kept, at, (size_t)(newline - at) + 1);
            *last = line.step;
        }
        tdm_arena_reset(arena);
        at = newline + 1;
    }
    bool enough = arena && tdm_str_ok(kept);
    tdm_arena_destroy(arena);
    tdm_file_bytes_release(&old);
    return enough ? TDM_OK : tdm_fail_oom(err, "for %s", path);
}

tdm_status tdm__ledger_open(const char *run, uint64_t step, tdm__ledger *out, tdm_error *err)
{
    tdm__ledger ledger = {.fd = -1, .complete = true};
    int length = snprintf(ledger.path, sizeof(ledger.path), "%s/%s", run, TDM__LEDGER_NAME);
    if (length >= (int)sizeof(ledger.path))
        return tdm_fail(err, TDM_ERR_RANGE, "ledger: the path %s is too long", run);
    tdm_str kept = TDM_STR_INIT;
    tdm_status status = TDM_OK;
    if (tdm_path_is_file(ledger.path))
        status = ledger_collect_lines(ledger.path, step, &kept, &ledger.last_step, err);
    if (status == TDM_OK)
        status = tdm_file_replace(ledger.path, tdm_str_text(&kept), kept.length, err);
    off_t kept_bytes = (off_t)kept.length;
    tdm_str_release(&kept);
    TDM_TRY(status);
    ledger.fd = open(ledger.path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (ledger.fd < 0) return tdm_os_fail(err, "opening", ledger.path);
    ledger.synced_bytes = kept_bytes;
    *out = ledger;
    return TDM_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void ledger_note_loss(tdm__ledger *ledger, const char *why)
{
    if (!ledger->complete) return; /* logged once: a full disk must not flood the log */
    ledger->complete = false;
    tdm_log(TDM_LOG_WARN, "train", "%s is no longer complete: %s; training continues", ledger->path,
            why);
}

/* Appends one line; returns errno or 0. Only rank 0 writes here, so a partial line is at the end of the file. */
static int ledger_write_line(tdm__ledger *ledger, const tdm__ledger_line *line)
{
    char text[LINE_BYTES];
    struct stat before;
    int length = line_text(line, text);
    bool known = fstat(ledger->fd, &before) == 0;
    ssize_t written = write(ledger->fd, text, (size_t)length);
    if (written == length) return 0;
    int error_number = written < 0 ? errno : ENOSPC;
    if (written > 0 && (!known || ftruncate(ledger->fd, before.st_size) != 0))
        ledger->must_rewind = true;
    return error_number;
}

/* Truncates the file to the synced part if the rest may be damaged; returns errno or 0. */
static int ledger_rewind(tdm__ledger *ledger)
{
    if (!ledger->must_rewind) return 0;
    if (ftruncate(ledger->fd, ledger->synced_bytes) != 0) return errno;
    ledger->must_rewind = false;
    ledger->written_count = 0;
    return 0;
}

/* Logs once when lines cannot be written, and once when all are written again. */
static void ledger_report_error(tdm__ledger *ledger, int error_number)
{
    if (error_number != 0 && !ledger->is_behind)
        tdm_log(TDM_LOG_WARN, "train",
                "%s cannot be written: %s; its lines are kept in memory, and training continues",
                ledger->path, strerror(error_number));
    if (error_number == 0 && ledger->is_behind)
        tdm_log(TDM_LOG_INFO, "train", "%s is complete again", ledger->path);
    ledger->is_behind = error_number != 0;
}

/* Writes the waiting lines, as far as the disk accepts them. */
static void ledger_flush(tdm__ledger *ledger)
{
    int error_number = ledger_rewind(ledger);
    while (ledger->written_count < ledger->waiting_count && error_number == 0) {
        error_number = ledger_write_line(ledger, &ledger->waiting[ledger->written_count]);
        ledger->written_count += error_number == 0;
    }
    /* After a failed sync, only a successful one clears the error. */
    if (error_number != 0 || !ledger->sync_failed) ledger_report_error(ledger, error_number);
}

/* False: no memory, or too many lines. */
static bool ledger_enqueue(tdm__ledger *ledger, const tdm__ledger_line *line)
{
    if (ledger->waiting_count == ledger->waiting_room) {
        size_t room = 2 * ledger->waiting_room + 16;
        tdm__ledger_line *more = NULL;
        if (room <= MAX_WAITING) more = realloc(ledger->waiting, room * sizeof(*more));
        if (!more) return false;
        ledger->waiting = more;
        ledger->waiting_room = room;
    }
    ledger->waiting[ledger->waiting_count++] = *line;
    return true;
}

void tdm__ledger_put(tdm__ledger *ledger, const tdm__ledger_line *line)
{
    if (ledger->fd < 0 || line->step <= ledger->last_step) return;
    if (!ledger_enqueue(ledger, line)) {
        ledger_note_loss(ledger, "too many of its lines are waiting in memory");
        return;
    }
    ledger->last_step = line->step;
    ledger_flush(ledger);
    if (ledger->written_count > 0 && ledger->written_count % SYNC_LINES == 0)
        tdm__ledger_sync(ledger);
}

void tdm__ledger_fill(tdm__ledger *ledger, const tdm__ledger_recent *recent, uint64_t step)
{
    uint64_t first = ledger->last_step + 1;
    if (!recent || ledger->fd < 0) return;
    if (step >= TDM__LEDGER_RECENT && first < step - TDM__LEDGER_RECENT + 1)
        first = step - TDM__LEDGER_RECENT + 1;
    for (uint64_t s = first; s <= step; s++)
        if (recent[s % TDM__LEDGER_RECENT].step == s)
            tdm__ledger_put(ledger, &recent[s % TDM__LEDGER_RECENT]);
}

void tdm__ledger_sync(tdm__ledger *ledger)
{
    struct stat now;
    if (ledger->fd < 0) return;
    ledger_flush(ledger);
    size_t synced = ledger->written_count;
    ledger->sync_failed = fdatasync(ledger->fd) != 0 || fstat(ledger->fd, &now) != 0;
    if (ledger->sync_failed) {
        /* The kernel may have dropped unwritten data: it is written again. */
        int error_number = errno;
        ledger->must_rewind = true;
        ledger_report_error(ledger, error_number);
        return;
    }
    ledger->synced_bytes = now.st_size;
    ledger->waiting_count -= synced;
    ledger->written_count = 0;
    if (synced > 0 && ledger->waiting_count > 0)
        memmove(ledger->waiting, ledger->waiting + synced,
                ledger->waiting_count * sizeof(*ledger->waiting));
    if (ledger->waiting_count == 0) ledger_report_error(ledger, 0);
}

void tdm__ledger_close(tdm__ledger *ledger)
{
    if (ledger->fd >= 0) {
        tdm__ledger_sync(ledger);
        if (ledger->waiting_count > 0)
            ledger_note_loss(ledger, "its last lines could not be written");
        close(ledger->fd);
    }
    free(ledger->waiting);
    *ledger = (tdm__ledger){.fd = -1};
}
