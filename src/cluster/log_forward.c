/*
 * log_forward.c: one log for all hosts: lines of other hosts go through the store to where rank 0 is.
 *
 * A worker that is not on rank 0's host writes its lines into a pipe of its host, each with one write, so
 * that they stay whole; a full pipe keeps nobody waiting. The agent takes them out, adds its own, and puts
 * batches of them into the store; the agent on rank 0's host appends them to the run's log and removes
 * them. There are few such lines: other ranks than the first log warnings and errors alone.
 *
 * Everything is bounded: the pipe, what an agent keeps in memory, and what it has in the store, hence its
 * rate. What there was no room for is counted, and a line says how many. The keys lie beside the session's
 * folder, not in it: members wake up for every change in there.
 *
 * Invariant: a batch is removed after it was appended, so a crash may repeat lines, and never loses any that
 * were in the store. Whatever comes out of store or pipe is looked at before it goes into the log.
 */
#include "cluster/log_forward.h"

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

/* ---- the pipe -------------------------------------------------------------------------------------- */

/* Open for both directions, so that it keeps what is in it while nobody else has it open, and nobody gets a
 * signal for writing to it. */
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

/* Batches of an agent that had this name before may still be in the store: by the time in their numbers ours
 * are later ones. */
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

/* ---- lines that wait ------------------------------------------------------------------------------- */

static bool is_line(const char *text, size_t length)
{
    const tdm_json *object = NULL;
    if (length < 2 || length > TDM_LINE_BYTES || text[0] != '{') return false;
    tdm_arena *arena = tdm_arena_create("line");
    bool good = arena && tdm_json_parse(text, length, arena, &object, NULL) == TDM_OK &&
                object->type == TDM_JSON_OBJECT;
    tdm_arena_destroy(arena);
    return good;
}

static void cut_front(tdm_str *str, size_t bytes)
{
    if (bytes == 0) return;
    str->length -= bytes;
    memmove(str->data, str->data + bytes, str->length);
    str->data[str->length] = '\0';
}

/* Lets go of all that waits. What may be in the store of it stays there under a number that is not used again. */
static void forget_whole(tdm__log_forward *lines)
{
    if (lines->tried > 0) lines->next++;
    lines->tried = 0;
    tdm_str_release(&lines->whole);
}

static void add_line(tdm__log_forward *lines, const char *text, size_t length)
{
    tdm_str_add_bytes(&lines->whole, text, length);
    tdm_str_add_char(&lines->whole, '\n');
    if (tdm_str_ok(&lines->whole)) return;
    forget_whole(lines);
    lines->dropped++;
}

void tdm__log_forward_add(tdm__log_forward *lines, const char *text, size_t length)
{
    if (lines->whole.length + length + 1 <= MAX_WAITING)
        add_line(lines, text, length);
    else
        lines->dropped++;
}

/* The good ones of these lines; how many bytes were whole lines. */
static size_t add_lines(tdm__log_forward *lines, const char *text, size_t length)
{
    size_t done = 0;
    for (const char *end; (end = memchr(text + done, '\n', length - done));) {
        size_t bytes = (size_t)(end - text) - done;
        if (is_line(text + done, bytes)) tdm__log_forward_add(lines, text + done, bytes);
        done += bytes + 1;
    }
    return done;
}

/* No more than the pipe can hold at a time, so that workers that never stop do not keep us. */
void tdm__log_forward_drain(tdm__log_forward *lines)
{
    char bytes[4096];
    size_t read_bytes = 0;
    ssize_t got;
    while (lines->pipe >= 0 && read_bytes < PIPE_READ &&
           (got = read(lines->pipe, bytes, sizeof bytes)) > 0) {
        read_bytes += (size_t)got;
        tdm_str_add_bytes(&lines->part, bytes, (size_t)got);
        if (!tdm_str_ok(&lines->part)) {
            tdm_str_release(&lines->part);
            continue;
        }
        cut_front(&lines->part, add_lines(lines, lines->part.data, lines->part.length));
        if (lines->part.length > TDM_LINE_BYTES) tdm_str_clear(&lines->part); /* not one of ours */
    }
}

/* For this line there is room beyond the bound, once. */
void tdm__log_forward_report_dropped(tdm__log_forward *lines, const char *host)
{
    if (lines->dropped == 0 || lines->whole.length > MAX_WAITING) return;
    char message[160];
    snprintf(message, sizeof message,
             "%" PRIu64 " lines of host %s are missing here: there was no room for them",
             lines->dropped, host);
    tdm_str text = TDM_STR_INIT;
    tdm_json_writer w = tdm_json_writer_init(&text, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_double(&w, "time", tdm_clock_unix_s());
    tdm_json_put_string(&w, "level", tdm_log_level_name(TDM_LOG_WARN));
    tdm_json_put_string(&w, "host", host);
    tdm_json_put_string(&w, "room", "agent");
    tdm_json_put_string(&w, "message", message);
    tdm_json_object_end(&w);
    lines->dropped = 0;
    if (tdm_str_ok(&text)) add_line(lines, text.data, text.length);
    tdm_str_release(&text);
}

/* ---- the log --------------------------------------------------------------------------------------- */

/* False: nothing was written. A disk that is full is the workers' business to report; what it cut short is
 * taken back, unless others have put lines behind it meanwhile. */
static bool append(const char *run, const char *text, size_t length)
{
    char path[4096 + 16];
    struct stat before, after;
    snprintf(path, sizeof path, "%s/log.jsonl", run);
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
    (void)append(run, lines->whole.data, lines->whole.length);
    forget_whole(lines);
}

/* ---- the store ------------------------------------------------------------------------------------- */

/* No session has such a name, so this is beside all of them. */
static const char *key_of(char key[TDM_KV_KEY_BYTES], const char *session, const char *rest)
{
    snprintf(key, TDM_KV_KEY_BYTES, "tandem/%s+lines/%s", session, rest);
    return key;
}

static const char *batch_key(char key[TDM_KV_KEY_BYTES], const char *session, const char *agent,
                             uint64_t number)
{
    char rest[TDM_KV_KEY_BYTES / 2];
    snprintf(rest, sizeof rest, "%.90s/%020" PRIu64, agent, number);
    return key_of(key, session, rest);
}

/* Whether one more may be put there. */
static bool has_room(tdm__log_forward *lines, tdm_kv *kv, const char *session, const char *agent)
{
    char key[TDM_KV_KEY_BYTES];
    if (lines->next - lines->first < MAX_BATCHES) return true;
    tdm_kv_item item;
    tdm_arena *arena = tdm_arena_create("batch");
    tdm_status status = arena ? tdm_kv_get(kv, batch_key(key, session, agent, lines->first), arena,
                                           &item, NULL)
                              : TDM_ERR_NO_MEMORY;
    tdm_arena_destroy(arena);
    if (status == TDM_ERR_NOT_FOUND) lines->first++; /* they are taken in their order */
    return status == TDM_ERR_NOT_FOUND;
}

/* The bytes of the first lines that fit. */
static size_t batch_bytes(const tdm_str *whole)
{
    if (whole->length <= MAX_BATCH) return whole->length;
    const char *end = memrchr(whole->data, '\n', MAX_BATCH);
    return end ? (size_t)(end - whole->data) + 1 : whole->length;
}

/* A put that timed out may have had its effect: then the key is there the next time, and that is fine. Hence
 * the next time means the same bytes, however many lines have come since. */
void tdm__log_forward_send(tdm__log_forward *lines, tdm_kv *kv, const char *session,
                           const char *agent)
{
    char key[TDM_KV_KEY_BYTES];
    while (lines->whole.length > 0 && has_room(lines, kv, session, agent)) {
        size_t bytes = lines->tried > 0 ? lines->tried : batch_bytes(&lines->whole);
        tdm_str value = TDM_STR_INIT;
        tdm_str_add_bytes(&value, lines->whole.data, bytes);
        tdm_status status = tdm_str_ok(&value)
                                ? tdm_kv_swap(kv, batch_key(key, session, agent, lines->next), 0,
                                              tdm_str_text(&value), 0, NULL, NULL)
                                : TDM_ERR_NO_MEMORY;
        tdm_str_release(&value);
        lines->tried = bytes;
        if (status != TDM_OK && status != TDM_ERR_EXISTS) return;
        lines->tried = 0;
        lines->next++;
        cut_front(&lines->whole, bytes);
    }
}

void tdm__log_forward_collect(tdm_kv *kv, const char *session, const char *run)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_kv_item *items;
    size_t count = 0;
    tdm_arena *arena = tdm_arena_create("lines");
    if (!arena ||
        tdm_kv_list(kv, key_of(key, session, ""), arena, &items, &count, NULL, NULL) != TDM_OK)
        count = 0;
    for (size_t i = 0; i < count; i++) {
        tdm__log_forward batch = {.pipe = -1};
        (void)add_lines(&batch, items[i].value, strlen(items[i].value));
        bool done = batch.whole.length == 0 || append(run, batch.whole.data, batch.whole.length);
        tdm__log_forward_release(&batch);
        if (!done || tdm_kv_remove(kv, items[i].key, NULL) != TDM_OK) break;
    }
    tdm_arena_destroy(arena);
}

void tdm__log_forward_forget(tdm_kv *kv, const char *session)
{
    char key[TDM_KV_KEY_BYTES];
    (void)tdm_kv_remove(kv, key_of(key, session, ""), NULL);
}
