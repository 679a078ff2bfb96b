/*
 * log_forward.c: one log for all hosts: log lines of other hosts are sent through the store to the
 * host of rank 0.
 *
 * A worker on another host than rank 0 writes its lines to a pipe of its host, each with one write,
 * so that lines stay intact; the pipe is non-blocking. The agent reads the pipe, adds its own lines
 * and puts batches of them into the store. The agent on rank 0's host appends them to the run's log
 * and removes them. There are few such lines: ranks other than rank 0 log only warnings and errors.
 *
 * Everything is bounded: the pipe, the lines in an agent's memory, its batches in the store, and so
 * its rate. Dropped lines are counted, and a line reports their number. The keys are next to the
 * session's prefix, not below it, because members wake up for every change below it.
 *
 * Invariant: a batch is removed after it was appended, so a crash may repeat lines, but never loses
 * lines that were in the store. Data from the store or the pipe is checked before it is written to
 * the log.
 */
#include "cluster/log_forward.h"
#include "base/base.h"
#include "kv/kv.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MAX_WAITING = 1 << 16, /* bytes in an agent's memory */
    MAX_BATCH = 8 << 10,   /* bytes of a value in the store */
    MAX_BATCHES = 2,       /* of an agent in the store */
    PIPE_READ = 1 << 16
};

/* ---- pipe ------------------------------------------------------------------------------------ */

/* Opened for reading and writing, so that the pipe keeps its contents while no other process has it
 * open, and a writer never gets SIGPIPE. */
int tdm__log_forward_open(const char *path)
{
    struct stat about;
    if (!path || !*path) return -1;
    if (mkfifo(path, 0600) != 0 && errno != EEXIST) return -1;
    int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && fstat(fd, &about) == 0 && S_ISFIFO(about.st_mode)) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* Batches of an earlier agent with this name may still be in the store: numbers start at the
 * current time, so ours are higher. */
void tdm__log_forward_init(tdm__log_forward *lines, const char *path)
{
    uint64_t now_ms = (uint64_t)(tdm_clock_unix_s() * 1e3);
    *lines = (tdm__log_forward){
        .pipe = tdm__log_forward_open(path), .first = now_ms, .next = now_ms};
}

void tdm__log_forward_release(tdm__log_forward *lines)
{
    if (lines->pipe >= 0) close(lines->pipe);
    tdm_str_release(&lines->part);
    tdm_str_release(&lines->whole);
    lines->pipe = -1;
}

/* ---- waiting lines --------------------------------------------------------------------------- */

static bool line_is_valid(const char *text, size_t length)
{
    const tdm_json *object = NULL;
    if (length < 2 || length > TDM_LINE_BYTES || text[0] != '{') return false;
    tdm_arena *arena = tdm_arena_create("line");
    bool good = arena && tdm_json_parse(text, length, arena, &object, NULL) == TDM_OK &&
                object->type == TDM_JSON_OBJECT;
    tdm_arena_destroy(arena);
    return good;
}

static void lines_cut_front(tdm_str *str, size_t bytes)
{
    if (bytes == 0) return;
    str->length -= bytes;
    memmove(str->data, str->data + bytes, str->length);
    str->data[str->length] = '\0';
}

/* Drops all waiting lines. A batch that may be in the store stays there; its number is not used
 * again. */
static void lines_drop_all(tdm__log_forward *lines)
{
    if (lines->tried > 0) lines->next++;
    lines->tried = 0;
    tdm_str_release(&lines->whole);
}

static void lines_add(tdm__log_forward *lines, const char *text, size_t length, size_t max_bytes)
{
    if (lines->whole.length + length + 1 > max_bytes) {
        lines->dropped++;
        return;
    }
    tdm_str_add_bytes(&lines->whole, text, length);
    tdm_str_add_char(&lines->whole, '\n');
    if (tdm_str_ok(&lines->whole)) return;
    lines_drop_all(lines);
    lines->dropped++;
}

void tdm__log_forward_add(tdm__log_forward *lines, const char *text, size_t length)
{
    lines_add(lines, text, length, MAX_WAITING);
}

static void lines_add_record(tdm__log_forward *lines, const tdm_log_record *record,
                             const char *host, size_t max_bytes)
{
    tdm_str text = TDM_STR_INIT;
    tdm_json_writer w = tdm_json_writer_init(&text, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_double(&w, "time", record->unix_time_s);
    tdm_json_put_string(&w, "level", tdm_log_level_name(record->level));
    tdm_json_put_string(&w, "host", host);
    tdm_json_put_string(&w, "room", record->room);
    tdm_json_put_string(&w, "message", record->message);
    tdm_json_object_end(&w);
    if (tdm_str_ok(&text)) lines_add(lines, text.data, text.length, max_bytes);
    tdm_str_release(&text);
}

void tdm__log_forward_add_record(tdm__log_forward *lines, const tdm_log_record *record,
                                 const char *host)
{
    lines_add_record(lines, record, host, MAX_WAITING);
}

/* Adds the valid lines of the text. Returns the number of bytes in complete lines. */
static size_t lines_add_text(tdm__log_forward *lines, const char *text, size_t length)
{
    size_t done = 0;
    for (const char *end; (end = memchr(text + done, '\n', length - done));) {
        size_t bytes = (size_t)(end - text) - done;
        if (line_is_valid(text + done, bytes)) tdm__log_forward_add(lines, text + done, bytes);
        done += bytes + 1;
    }
    return done;
}

/* Reads at most the capacity of the pipe, so that workers that write continuously do not block the
 * agent. */
void tdm__log_forward_drain(tdm__log_forward *lines)
{
    char bytes[4096];
    size_t read_bytes = 0;
    ssize_t got;
    while (lines->pipe >= 0 && read_bytes < PIPE_READ &&
           (got = read(lines->pipe, bytes, sizeof(bytes))) > 0) {
        read_bytes += (size_t)got;
        tdm_str_add_bytes(&lines->part, bytes, (size_t)got);
        if (!tdm_str_ok(&lines->part)) {
            tdm_str_release(&lines->part);
            continue;
        }
        lines_cut_front(&lines->part, lines_add_text(lines, lines->part.data, lines->part.length));
        if (lines->part.length > TDM_LINE_BYTES)
            tdm_str_clear(&lines->part); /* not written by a worker */
    }
}

/* This line may exceed the limit. */
void tdm__log_forward_report_dropped(tdm__log_forward *lines, const char *host)
{
    char message[160];
    if (lines->dropped == 0 || lines->whole.length > MAX_WAITING) return;
    snprintf(message, sizeof(message),
             "%" PRIu64 " log lines of host %s were dropped: the buffer was full", lines->dropped,
             host);
    const tdm_log_record record = {.unix_time_s = tdm_clock_unix_s(),
                                   .level = TDM_LOG_WARN,
                                   .room = "agent",
                                   .message = message};
    lines->dropped = 0;
    lines_add_record(lines, &record, host, SIZE_MAX);
}

/* ---- run log --------------------------------------------------------------------------------- */

/* False: nothing was written. Workers report a full disk. A line that was written partially is
 * truncated, unless other processes have appended lines after it. */
static bool log_append(const char *run, const char *text, size_t length)
{
    char path[4096 + 16];
    struct stat before, after;
    snprintf(path, sizeof(path), "%s/log.jsonl", run);
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return false;
    ssize_t put = fstat(fd, &before) == 0 ? write(fd, text, length) : -1;
    bool is_cut = put > 0 && (size_t)put < length && fstat(fd, &after) == 0 &&
                  after.st_size == before.st_size + put;
    if (is_cut && ftruncate(fd, before.st_size) == 0) put = 0;
    close(fd);
    return put > 0;
}

void tdm__log_forward_write(tdm__log_forward *lines, const char *run)
{
    if (lines->whole.length == 0) return;
    (void)log_append(run, lines->whole.data, lines->whole.length);
    lines_drop_all(lines);
}

/* ---- store ----------------------------------------------------------------------------------- */

/* The key of a batch, or the prefix of all batches if `agent` is NULL. Session names have no '+',
 * so it is not below the prefix of a session. */
static const char *batch_key(char key[TDM_KV_KEY_BYTES], const char *session, const char *agent,
                             uint64_t number)
{
    int length = snprintf(key, TDM_KV_KEY_BYTES, "tandem/%s+lines/", session);
    if (agent && length > 0 && length < TDM_KV_KEY_BYTES)
        snprintf(key + length, (size_t)(TDM_KV_KEY_BYTES - length), "%.90s/%020" PRIu64, agent,
                 number);
    return key;
}

/* Whether the store can take one more batch of this agent. */
static bool batch_has_space(tdm__log_forward *lines, tdm_kv *kv, const char *session,
                            const char *agent)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_kv_item item;
    if (lines->next - lines->first < MAX_BATCHES) return true;
    batch_key(key, session, agent, lines->first);
    tdm_arena *arena = tdm_arena_create("batch");
    bool is_collected = arena && tdm_kv_get(kv, key, arena, &item, NULL) == TDM_ERR_NOT_FOUND;
    tdm_arena_destroy(arena);
    if (is_collected) lines->first++; /* batches are collected in order */
    return is_collected;
}

/* A put that timed out may have taken effect: then the key exists at the next attempt, which is not
 * an error. The next attempt must therefore send the same bytes, even if lines were added. */
void tdm__log_forward_send(tdm__log_forward *lines, tdm_kv *kv, const char *session,
                           const char *agent)
{
    char key[TDM_KV_KEY_BYTES];
    while (lines->whole.length > 0 && batch_has_space(lines, kv, session, agent)) {
        size_t bytes = lines->tried > 0 ? lines->tried : lines->whole.length;
        if (bytes > MAX_BATCH) { /* the first lines that fit, or one that is longer */
            const char *end = memrchr(lines->whole.data, '\n', MAX_BATCH);
            if (end) bytes = (size_t)(end - lines->whole.data) + 1;
        }

        tdm_str value = TDM_STR_INIT;
        tdm_str_add_bytes(&value, lines->whole.data, bytes);
        batch_key(key, session, agent, lines->next);
        tdm_status status = tdm_str_ok(&value)
                                ? tdm_kv_swap(kv, key, 0, tdm_str_text(&value), 0, NULL, NULL)
                                : TDM_ERR_NO_MEMORY;
        tdm_str_release(&value);
        lines->tried = bytes;
        if (status != TDM_OK && status != TDM_ERR_EXISTS) return;

        lines->tried = 0;
        lines->next++;
        lines_cut_front(&lines->whole, bytes);
    }
}

void tdm__log_forward_collect(tdm_kv *kv, const char *session, const char *run)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_kv_item *items;
    size_t count = 0;
    tdm_arena *arena = tdm_arena_create("lines");
    if (!arena || tdm_kv_list(kv, batch_key(key, session, NULL, 0), arena, &items, &count, NULL,
                              NULL) != TDM_OK)
        count = 0;
    for (size_t i = 0; i < count; i++) {
        tdm__log_forward batch = {.pipe = -1};
        (void)lines_add_text(&batch, items[i].value, strlen(items[i].value));
        bool done = batch.whole.length == 0 ||
                    log_append(run, batch.whole.data, batch.whole.length);
        tdm__log_forward_release(&batch);
        if (!done || tdm_kv_remove(kv, items[i].key, NULL) != TDM_OK) break;
    }
    tdm_arena_destroy(arena);
}

void tdm__log_forward_forget(tdm_kv *kv, const char *session)
{
    char key[TDM_KV_KEY_BYTES];
    (void)tdm_kv_remove(kv, batch_key(key, session, NULL, 0), NULL);
}
