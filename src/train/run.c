/*
 * run.c: the run directory: its name, lock, log and metrics.
 *
 * Invariants: a number is used by one run only, because mkdir() fails for the second one. The lock is
 * an flock() on the file "lock", so a killed process leaves none behind. Each line is written completely, with
 * one write(); a line that was truncated by a kill is removed on resume.
 *
 * Rank 0 owns the directory. Other ranks only add their warnings and errors to the log: to the same file
 * on rank 0's host, where appending is atomic; on other hosts to a separate file beside it, if the
 * directory is visible there, and to their agent, which forwards the lines to rank 0's log.
 */
#include "base/base.h"
#include "base/timing.h"
#include "os/os.h"
#include "train/internal.h"
#include "train/ledger.h"
#include "train/order_file.h"

#include <tandem/cluster.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define METRICS_NAME "metrics.jsonl"
#define LOG_NAME "log.jsonl"
#define LINES_LIMIT_BYTES (UINT64_C(4) << 30)

enum { LOCK_TRIES = 5, LOCK_MODE = 0600 };

/* Appends a complete line or nothing: a line that a full disk truncated is removed. A failure is only recorded,
 * because this also runs inside the log sink, where logging is impossible. */
static void write_line(int fd, tdm_str *line, atomic_int *error_number)
{
    struct stat before;
    tdm_str_add_char(line, '\n');
    if (!tdm_str_ok(line)) {
        atomic_store(error_number, ENOMEM);
        return;
    }
    bool known = fstat(fd, &before) == 0 && S_ISREG(before.st_mode);
    ssize_t written = write(fd, line->data, line->length);
    if (written == (ssize_t)line->length) return;
    atomic_store(error_number, written < 0 ? errno : ENOSPC);
    if (written <= 0 || !known) return;
    struct stat after; /* other ranks may have appended lines meanwhile: those are kept */
    bool is_last = fstat(fd, &after) == 0 && after.st_size == before.st_size + written;
    if (is_last && ftruncate(fd, before.st_size) != 0) atomic_store(error_number, errno);
}

/* Formats a log line with at most `max` bytes of the message. */
static void log_line_format(const tdm__run *run, const tdm_log_record *record, int max,
                            tdm_str *out)
{
    char message[2048];
    snprintf(message, sizeof(message), "%.*s", max, record->message);
    tdm_str_clear(out);
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_double(&w, "time", record->unix_time_s);
    tdm_json_put_string(&w, "level", tdm_log_level_name(record->level));
    tdm_json_put_int(&w, "rank", run->rank);
    tdm_json_put_uint(&w, "step", atomic_load_explicit(&run->step, memory_order_relaxed));
    tdm_json_put_string(&w, "host", run->host);
    tdm_json_put_string(&w, "room", record->room);
    tdm_json_put_string(&w, "message", message);
    tdm_json_object_end(&w);
}

/* Writes a complete line to the agent, or nothing; never blocks. */
static bool agent_write_line(tdm__run *run, tdm_str *line)
{
    tdm_str_add_char(line, '\n');
    return tdm_str_ok(line) && write(run->lines_fd, line->data, line->length) > 0;
}

static void agent_forward(tdm__run *run, const tdm_log_record *record)
{
    tdm_str *line = &run->log_line;
    if (run->lines_missing > 0) {
        char text[96];
        snprintf(text, sizeof(text), "%llu lines of rank %d were dropped: its agent was too slow",
                 (unsigned long long)run->lines_missing, run->rank);
        tdm_log_record gap = *record;
        gap.room = "train";
        gap.message = text;
        log_line_format(run, &gap, (int)sizeof(text), line);
        if (agent_write_line(run, line)) run->lines_missing = 0;
    }
    log_line_format(run, record, 2047, line);
    if (line->length > TDM_LINE_BYTES) log_line_format(run, record, 300, line);
    if (!agent_write_line(run, line)) run->lines_missing++;
}

/* The log sink: one JSON object per line. */
static void log_sink(const tdm_log_record *record, void *user)
{
    tdm__run *run = user;
    if (run->lines_fd >= 0) agent_forward(run, record);
    if (run->log_fd < 0) return;
    log_line_format(run, record, 2047, &run->log_line);
    write_line(run->log_fd, &run->log_line, &run->write_error);
}

/* The level of the log file. Debug lines only on demand: they are about fifty per lost worker. */
static tdm_log_level log_file_level(void)
{
    const char *asked = getenv("TANDEM_LOG_LEVEL");
    return asked && strcmp(asked, "debug") == 0 ? TDM_LOG_DEBUG : TDM_LOG_INFO;
}

static int file_open_append(tdm__run *run, const char *name)
{
    char *path = tdm_path_join(run->arena, run->path, name);
    const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW;
    return path ? open(path, flags, 0644) : -1;
}

/* `joins`: other members of the same session may have the run open as well. */
static tdm_status run_lock(tdm__run *run, bool joins, tdm_error *err)
{
    char *path = tdm_path_join(run->arena, run->path, "lock");
    if (!path) return tdm_fail_oom(err, "for the run directory");
    run->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, LOCK_MODE);
    if (run->lock_fd < 0) return tdm_os_fail(err, "opening", path);
    /* A user who can open the file can lock it, so only its owner may open it. (Files of earlier versions.) */
    (void)fchmod(run->lock_fd, LOCK_MODE);
    for (int tries = 0; tries < LOCK_TRIES; tries++) { /* a reader holds it for a moment */
        if (flock(run->lock_fd, (joins ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0) return TDM_OK;
        if (errno != EWOULDBLOCK) return tdm_os_fail(err, "locking", path);
        tdm_clock_sleep(TDM__TIMING_TRAIN_RUN_LOCK_RETRY_S);
    }
    return tdm_fail(err, TDM_ERR_BUSY,
                    "%s: another process is training in this run; wait for it or stop it",
                    run->path);
}

static tdm_status run_open_files(tdm__run *run, bool joins, tdm_error *err)
{
    TDM_TRY(run_lock(run, joins, err));
    run->checkpoint_dir = tdm_path_join(run->arena, run->path, "checkpoints");
    if (!run->checkpoint_dir) return tdm_fail_oom(err, "for the run directory");
    TDM_TRY(tdm_dir_make(run->checkpoint_dir, err));
    run->log_fd = file_open_append(run, LOG_NAME);
    run->metrics_fd = run->log_fd >= 0 ? file_open_append(run, METRICS_NAME) : -1;
    if (run->metrics_fd < 0) return tdm_os_fail(err, "opening the log and metrics in", run->path);
    return tdm_log_add_sink(log_sink, run, log_file_level());
}

void tdm__run_release(tdm__run *run)
{
    tdm_log_remove_sink(log_sink, run);
    if (run->log_fd >= 0) close(run->log_fd);
    if (run->metrics_fd >= 0) close(run->metrics_fd);
    if (run->lock_fd >= 0) close(run->lock_fd);
    tdm_str_release(&run->line);
    tdm_str_release(&run->log_line);
    tdm_arena_destroy(run->arena);
    *run = (tdm__run){.lock_fd = -1, .log_fd = -1, .metrics_fd = -1, .lines_fd = -1};
}

/* N of "NAME-N", or 0. */
static uint64_t run_number_of(const char *entry, const char *name)
{
    size_t length = strlen(name);
    if (strncmp(entry, name, length) != 0 || entry[length] != '-') return 0;
    const char *digits = entry + length + 1;
    if (strspn(digits, "0123456789") != strlen(digits) || strlen(digits) > 15) return 0;
    return strtoull(digits, NULL, 10);
}

static tdm_status run_make_dir(tdm__run *run, const tdm_job *job, tdm_error *err)
{
    const char *const *entries;
    size_t count;
    TDM_TRY(tdm_dir_make(job->run.dir, err));
    TDM_TRY(tdm_dir_list(job->run.dir, run->arena, &entries, &count, err));
    uint64_t number = 1;
    for (size_t i = 0; i < count; i++)
        if (run_number_of(entries[i], job->name) >= number)
            number = run_number_of(entries[i], job->name) + 1;
    for (int tries = 0; tries < 1000; tries++, number++) {
        char *path = tdm_arena_printf(run->arena, "%s/%s-%llu", job->run.dir, job->name,
                                      (unsigned long long)number);
        if (!path) return tdm_fail_oom(err, "for the run directory");
        run->path = path;
        if (mkdir(path, 0777) == 0) return TDM_OK;
        if (errno != EEXIST) return tdm_os_fail(err, "making", path);
    }
    return tdm_fail(err, TDM_ERR_EXISTS,
                    "%s: no free number for a run named '%s'; give it another name", job->run.dir,
                    job->name);
}

static tdm_status run_init(tdm__run *run, tdm_error *err)
{
    const char *host = getenv("TANDEM_HOST"); /* the agent's name for it */
    *run = (tdm__run){.lock_fd = -1, .log_fd = -1, .metrics_fd = -1, .lines_fd = -1};
    if (host && *host)
        snprintf(run->host, sizeof(run->host), "%.63s", host);
    else if (gethostname(run->host, sizeof(run->host) - 1) != 0)
        run->host[0] = '\0';
    run->arena = tdm_arena_create("run");
    return run->arena ? TDM_OK : tdm_fail_oom(err, "for the run directory");
}

tdm_status tdm__run_write_job(tdm__run *run, const tdm_job *job, tdm_error *err)
{
    char *path = tdm_path_join(run->arena, run->path, "job.yaml");
    tdm_str text = TDM_STR_INIT;
    tdm_job_show(job, &text);
    tdm_status status = path && tdm_str_ok(&text)
                            ? tdm_file_replace(path, text.data, text.length, err)
                            : tdm_fail_oom(err, "for the run directory");
    tdm_str_release(&text);
    return status;
}

/* Removes the files of a run that could not be created completely. */
static void run_remove(tdm__run *run)
{
    static const char *const names[] = {"job.yaml", "log.jsonl", METRICS_NAME, "lock",
                                        "checkpoints"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char *path = tdm_path_join(run->arena, run->path, names[i]);
        if (path) remove(path);
    }
    remove(run->path);
}

tdm_status tdm__run_create(const tdm_job *job, tdm__run *out, tdm_error *err)
{
    TDM_TRY(run_init(out, err));
    tdm_status status = run_make_dir(out, job, err);
    bool made = status == TDM_OK;
    if (status == TDM_OK) status = tdm__run_write_job(out, job, err);
    if (status == TDM_OK) status = run_open_files(out, false, err);
    if (status != TDM_OK && made) run_remove(out);
    if (status != TDM_OK) tdm__run_release(out);
    return status;
}

void tdm__run_share(tdm__run *run)
{
    tdm_error why;
    if (run->lock_fd >= 0)
        (void)flock(run->lock_fd, LOCK_SH | LOCK_NB);
    else if (tdm_path_is_dir(run->path))
        (void)run_lock(run, true, &why); /* if this fails, the locks of the other ranks suffice */
}

/* ---- other ranks ------------------------------------------------------------------------------- */

tdm_status tdm__run_attach(const char *path, int rank, bool same_host, int lines_fd, tdm__run *out,
                           tdm_error *err)
{
    TDM_TRY(run_init(out, err));
    out->rank = rank;
    out->is_near = same_host;
    if (!same_host && lines_fd > 0) out->lines_fd = lines_fd;
    out->path = tdm_arena_strdup(out->arena, path);
    char name[64];
    if (same_host)
        snprintf(name, sizeof(name), LOG_NAME);
    else
        snprintf(name, sizeof(name), "log-rank-%d.jsonl", rank);
    out->checkpoint_dir = out->path ? tdm_path_join(out->arena, path, "checkpoints") : NULL;
    tdm_status status = out->checkpoint_dir ? TDM_OK : tdm_fail_oom(err, "for the run directory");
    /* A rank trains even if its host does not see the directory. */
    if (status == TDM_OK) out->log_fd = file_open_append(out, name);
    if (status == TDM_OK && (out->log_fd >= 0 || out->lines_fd >= 0))
        status = tdm_log_add_sink(log_sink, out, TDM_LOG_WARN);
    if (status != TDM_OK) tdm__run_release(out);
    return status;
}

/* ---- metrics --------------------------------------------------------------------------------- */

/* Whether a line of the log is a JSON object. */
static bool line_is_whole(const char *line, size_t length, uint64_t step)
{
    (void)step;
    tdm_arena *arena = tdm_arena_create("line");
    const tdm_json *object;
    bool whole = arena && tdm_json_parse(line, length, arena, &object, NULL) == TDM_OK;
    tdm_arena_destroy(arena);
    return whole;
}

/* Whether a line of metrics belongs to the first `step` steps. */
static bool line_belongs(const char *line, size_t length, uint64_t step)
{
    tdm_arena *arena = tdm_arena_create("line");
    const tdm_json *object;
    uint64_t line_step;
    bool belongs = arena && tdm_json_parse(line, length, arena, &object, NULL) == TDM_OK &&
                   tdm_json_as_u64(tdm_json_get(object, "step"), &line_step) && line_step <= step;
    tdm_arena_destroy(arena);
    return belongs;
}

/* Replaces a file of lines by the lines that `keep` selects. A last line without newline was truncated by a
 * kill and is removed. With `always` the file is replaced even if all lines stay, so that a fenced rank 0
 * of an old epoch writes to the old, unlinked file. */
static tdm_status file_filter_lines(tdm__run *run, const char *name, uint64_t step,
                                    bool (*keep)(const char *line, size_t length, uint64_t step),
                                    bool always, int *fd, tdm_error *err)
{
    char *path = tdm_path_join(run->arena, run->path, name);
    if (!path) return tdm_fail_oom(err, "for the run directory");
    if (!tdm_path_is_file(path))
        return TDM_OK; /* the user redirected it, for example to a device */
    tdm_file_bytes old;
    TDM_TRY(tdm_file_read(path, LINES_LIMIT_BYTES, &old, err));
    tdm_str kept = TDM_STR_INIT;
    const char *at = (const char *)old.data, *end = at + old.count;
    while (at && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        if (!newline) break;
        if (keep(at, (size_t)(newline - at), step))
            tdm_str_add_bytes(&kept, at, (size_t)(newline - at) + 1);
        at = newline + 1;
    }
    tdm_status status = TDM_OK;
    if (!tdm_str_ok(&kept)) status = tdm_fail_oom(err, "for %s", path);
    if (status == TDM_OK && (always || kept.length != old.count)) {
        status = tdm_file_replace(path, tdm_str_text(&kept), kept.length, err);
        if (status == TDM_OK) { /* reopen the new file */
            close(*fd);
            *fd = file_open_append(run, name);
            if (*fd < 0) status = tdm_os_fail(err, "opening", path);
        }
    }
    tdm_file_bytes_release(&old);
    tdm_str_release(&kept);
    return status;
}

/* Removes truncated lines from the log. Must run before another process has the file open, because it is replaced. */
static tdm_status log_remove_truncated(tdm__run *run, tdm_error *err)
{
    tdm_log_remove_sink(log_sink, run);
    tdm_status status = file_filter_lines(run, LOG_NAME, 0, line_is_whole, false, &run->log_fd,
                                          err);
    if (tdm_log_add_sink(log_sink, run, log_file_level()) != TDM_OK && status == TDM_OK)
        status = tdm_fail(err, TDM_ERR_RANGE, "run: too many log sinks");
    return status;
}

/* Refuses a file of the run that is a symbolic link: training would write to its target. */
static tdm_status refuse_link(tdm__run *run, const char *dir, const char *name, tdm_error *err)
{
    struct stat about;
    char *path = tdm_path_join(run->arena, dir, name);
    if (!path) return tdm_fail_oom(err, "for the run directory");
    if (lstat(path, &about) != 0 || !S_ISLNK(about.st_mode)) return TDM_OK;
    return tdm_fail(err, TDM_ERR_INVALID,
                    "%s is a symbolic link: training would write to its target; "
                    "remove the link, or put the file itself there",
                    path);
}

/* Checks a run before it is resumed: another user may have placed links in it. */
static tdm_status refuse_links(tdm__run *run, tdm_error *err)
{
    static const char *const names[] = {"job.yaml",       LOG_NAME,        METRICS_NAME,
                                        TDM__LEDGER_NAME, TDM__ORDER_NAME, "lock"};
    const char *const *entries = NULL;
    size_t count = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        TDM_TRY(refuse_link(run, run->path, names[i], err));
    char *dir = tdm_path_join(run->arena, run->path, "checkpoints");
    if (!dir) return tdm_fail_oom(err, "for the run directory");
    if (tdm_path_is_dir(dir)) TDM_TRY(tdm_dir_list(dir, run->arena, &entries, &count, err));
    for (size_t i = 0; i < count; i++) TDM_TRY(refuse_link(run, dir, entries[i], err));
    return TDM_OK;
}

tdm_status tdm__run_open(const char *path, bool joins, tdm__run *out, tdm_error *err)
{
    if (!tdm_path_is_dir(path))
        return tdm_fail(err, TDM_ERR_NOT_FOUND,
                        "%s: there is no such run; give a run directory, such as runs/digits-1",
                        path);
    TDM_TRY(run_init(out, err));
    tdm_status status = TDM_OK;
    out->path = tdm_arena_strdup(out->arena, path);
    if (!out->path) status = tdm_fail_oom(err, "for the run directory");
    char *job = status == TDM_OK ? tdm_path_join(out->arena, path, "job.yaml") : NULL;
    if (status == TDM_OK && (!job || !tdm_path_is_file(job)))
        status = tdm_fail(err, TDM_ERR_NOT_FOUND, "%s: not a run: it has no job.yaml", path);
    if (status == TDM_OK) status = refuse_links(out, err);
    if (status == TDM_OK) status = run_open_files(out, joins, err);
    if (status == TDM_OK && !joins) status = log_remove_truncated(out, err);
    if (status != TDM_OK) tdm__run_release(out);
    return status;
}

tdm_status tdm__run_rewind(tdm__run *run, uint64_t step, tdm_error *err)
{
    return file_filter_lines(run, METRICS_NAME, step, line_belongs, true, &run->metrics_fd, err);
}

void tdm__run_put_metrics(tdm__run *run)
{
    write_line(run->metrics_fd, &run->line, &run->write_error);
    int error_number = atomic_load(&run->write_error);
    if (error_number == 0 || run->write_error_said) return;
    run->write_error_said = true; /* only once: a full disk must not flood the log */
    tdm_log(TDM_LOG_WARN, "train",
            "%s: log and metrics are no longer complete: %s; training continues", run->path,
            strerror(error_number));
}

tdm_status tdm__run_set_aside(tdm__run *run, uint64_t step, tdm_error *err)
{
    const char *const *names;
    size_t count;
    TDM_TRY(tdm_dir_list(run->checkpoint_dir, run->arena, &names, &count, err));
    for (size_t i = 0; i < count; i++) {
        uint64_t its_step;
        if (!tdm_checkpoint_step_of(names[i], &its_step) || its_step <= step) continue;
        char *from = tdm_path_join(run->arena, run->checkpoint_dir, names[i]);
        char *to = from ? tdm_arena_printf(run->arena, "%s.damaged", from) : NULL;
        if (!to) return tdm_fail_oom(err, "for the run directory");
        if (rename(from, to) != 0) return tdm_os_fail(err, "renaming", from);
        tdm_log(TDM_LOG_INFO, "train", "%s was renamed to %s.damaged", from, names[i]);
    }
    return TDM_OK;
}

/* The directory with the checkpoints of a run; *out is NULL if `path` is a checkpoint file. */
static tdm_status checkpoint_dir_of(const char *path, tdm_arena *arena, char **out, tdm_error *err)
{
    *out = NULL;
    if (tdm_path_is_file(path)) {
        if (tdm_safetensors_looks_like(path)) return TDM_OK;
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s: neither a run nor a checkpoint; give a run directory, such as "
                        "runs/digits-1, or a .safetensors file in its checkpoints",
                        path);
    }
    if (!tdm_path_is_dir(path))
        return tdm_fail(err, TDM_ERR_NOT_FOUND,
                        "%s: there is no such run or checkpoint; give a run directory, such as "
                        "runs/digits-1, or a .safetensors file in its checkpoints",
                        path);
    char *dir = tdm_path_join(arena, path, "checkpoints");
    if (!dir) return tdm_fail_oom(err, "for the run directory");
    if (!tdm_path_is_dir(dir))
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s: not a run: it has no directory 'checkpoints'",
                        path);
    *out = dir;
    return TDM_OK;
}

tdm_status tdm_run_check(const char *path, tdm_error *err)
{
    char *dir;
    tdm_arena *arena = tdm_arena_create("run");
    if (!arena) return tdm_fail_oom(err, "for the run directory");
    tdm_status status = checkpoint_dir_of(path, arena, &dir, err);
    tdm_arena_destroy(arena);
    return status;
}

/* Whether a process trains in the run: it holds the lock. */
static bool is_training(const char *path, tdm_arena *arena)
{
    char *lock = tdm_path_join(arena, path, "lock");
    int fd = lock ? open(lock, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return false;
    bool held = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd); /* releases the lock as well */
    return held;
}

/* The error for a run without a checkpoint. `is_ours`: this process holds its lock. */
static tdm_status fail_no_checkpoint(const char *path, bool is_ours, tdm_arena *arena,
                                     tdm_error *err)
{
    if (!is_ours && is_training(path, arena))
        return tdm_fail(err, TDM_ERR_NOT_FOUND,
                        "%s: has no checkpoint yet: it is training now; wait for its first one, "
                        "or request one with 'tandem checkpoint now'",
                        path);
    return tdm_fail(err, TDM_ERR_NOT_FOUND,
                    "%s: has no checkpoint: the run was stopped before its first one, so start a "
                    "new run",
                    path);
}

static bool checkpoint_dir_is_empty(const char *dir, tdm_arena *arena)
{
    tdm_checkpoint_entry *entries;
    size_t count = 0;
    return tdm_checkpoint_list(dir, arena, &entries, &count, NULL) == TDM_OK && count == 0;
}

tdm_status tdm_run_find(const tdm_job *job, tdm_arena *arena, char **out_path, tdm_error *err)
{
    const char *const *entries = NULL;
    size_t count = 0;
    uint64_t newest = 0;
    if (tdm_path_is_dir(job->run.dir))
        TDM_TRY(tdm_dir_list(job->run.dir, arena, &entries, &count, err));
    for (size_t i = 0; i < count; i++) {
        char *dir = tdm_arena_printf(arena, "%s/%s/checkpoints", job->run.dir, entries[i]);
        if (!dir) return tdm_fail_oom(err, "for the run directory");
        uint64_t number = run_number_of(entries[i], job->name);
        if (number > newest && tdm_path_is_dir(dir) && !checkpoint_dir_is_empty(dir, arena))
            newest = number;
    }
    if (newest == 0)
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s: there is no run of job '%s' with a checkpoint",
                        job->run.dir, job->name);
    *out_path = tdm_arena_printf(arena, "%s/%s-%llu", job->run.dir, job->name,
                                 (unsigned long long)newest);
    return *out_path ? TDM_OK : tdm_fail_oom(err, "for the run directory");
}

tdm_status tdm__run_newest(const char *path, bool is_ours, tdm_arena *arena, char **out_path,
                           tdm_error *err)
{
    char *dir;
    TDM_TRY(checkpoint_dir_of(path, arena, &dir, err));
    if (!dir) {
        *out_path = tdm_arena_strdup(arena, path);
        return *out_path ? TDM_OK : tdm_fail_oom(err, "for the run directory");
    }
    tdm_status status = tdm_checkpoint_newest(dir, arena, out_path, err);
    bool has_none = status == TDM_ERR_NOT_FOUND && checkpoint_dir_is_empty(dir, arena);
    return has_none ? fail_no_checkpoint(path, is_ours, arena, err) : status;
}

tdm_status tdm_run_checkpoint(const char *path, tdm_arena *arena, char **out_path, tdm_error *err)
{
    return tdm__run_newest(path, false, arena, out_path, err);
}

tdm_status tdm_run_read(const char *path, tdm_arena *arena, tdm_checkpoint_read_fn read, void *user,
                        tdm_error *err)
{
    char *dir;
    TDM_TRY(checkpoint_dir_of(path, arena, &dir, err));
    if (!dir) return read(path, user, err);
    tdm_status status = tdm_checkpoint_read_newest(dir, arena, read, user, err);
    bool has_none = status == TDM_ERR_NOT_FOUND && checkpoint_dir_is_empty(dir, arena);
    return has_none ? fail_no_checkpoint(path, false, arena, err) : status;
}
