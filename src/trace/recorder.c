/*
 * recorder.c: writes events into the ring buffer of trace_file.h, and describes the newest ones as
 * text.
 *
 * The file of a ring is created under a temporary name, with all its blocks allocated (a full disk
 * must be an error here, not a SIGBUS later) and its header filled, and is then renamed: a reader
 * sees a complete header or no file. The kernel writes the pages back at its own time: a killed
 * process loses nothing, but after a power failure the trace is lost.
 *
 * Threading: any thread may call tdm__record and the reading functions at any time between create
 * and destroy.
 */
#include "trace/recorder.h"
#include "base/base.h"
#include "os/os.h"
#include "trace/trace.h"

#include "trace/trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct tdm__recorder {
    tdm__trace_ring *ring;
    char *path; /* NULL: anonymous memory */
    uint64_t (*now_ns)(void *user);
    void *user;
};

static uint64_t now_ns(const tdm__recorder *r)
{
    return r->now_ns ? r->now_ns(r->user) : tdm_clock_ns();
}

static void recorder_fill_header(tdm__trace_header *h, const tdm__recorder_options *options)
{
    memcpy(h->magic, TDM__TRACE_MAGIC, sizeof(h->magic));
    h->version = TDM__TRACE_VERSION;
    h->header_bytes = TDM__TRACE_HEADER_BYTES;
    h->event_bytes = sizeof(tdm_trace_event);
    h->event_count = TDM_TRACE_EVENTS;
    h->rank = options->rank;
    h->size = options->size;
    h->epoch = options->epoch;
    h->pid = (int64_t)getpid();
    h->pid_start = tdm__trace_pid_start(0);
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    h->clock_ns = tdm_clock_ns();
    h->unix_ns = (uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec;
    if (gethostname(h->host, sizeof(h->host)) != 0) h->host[0] = '\0';
    h->host[sizeof(h->host) - 1] = '\0';
    snprintf(h->transport, sizeof(h->transport), "%s",
             options->transport ? options->transport : "");
    tdm__trace_boot(h->boot);
    h->check = tdm__trace_header_sum(h);
}

static char *recorder_file_path(const char *dir, int rank)
{
    char *path = NULL;
    return asprintf(&path, "%s/rank-%05d.trace", dir, rank) < 0 ? NULL : path;
}

/* Creates the file `part` with the size of a ring, and maps it. */
static tdm_status recorder_map_part(const char *part, tdm__trace_ring **out, tdm_error *err)
{
    int fd = open(part, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) return tdm_os_fail(err, "cannot create the trace", part);
    int code = posix_fallocate(fd, 0, sizeof(tdm__trace_ring));
    void *memory = MAP_FAILED;
    if (code == 0)
        memory = mmap(NULL, sizeof(tdm__trace_ring), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        if (code != 0) errno = code;
        tdm_status status = tdm_os_fail(err, "cannot allocate disk space for the trace", part);
        close(fd);
        unlink(part);
        return status;
    }
    close(fd);
    *out = memory;
    return TDM_OK;
}

static tdm_status recorder_map_file(const tdm__recorder_options *options, tdm__recorder *r,
                                    tdm_error *err)
{
    TDM_TRY(tdm_dir_make(options->dir, err));
    char *part = NULL;
    r->path = recorder_file_path(options->dir, options->rank);
    if (!r->path ||
        asprintf(&part, "%s/.rank-%05d.%ld.tmp", options->dir, options->rank, (long)getpid()) < 0)
        return tdm_fail_oom(err, "for the trace of rank %d", options->rank);
    tdm_status status = recorder_map_part(part, &r->ring, err);
    if (status == TDM_OK) {
        recorder_fill_header(&r->ring->header, options);
        if (rename(part, r->path) != 0) {
            status = tdm_os_fail(err, "cannot rename the trace", r->path);
            unlink(part);
        }
    }
    free(part);
    return status;
}

static tdm_status recorder_map_memory(const tdm__recorder_options *options, tdm__recorder *r,
                                      tdm_error *err)
{
    void *memory = mmap(NULL, sizeof(tdm__trace_ring), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return tdm_fail_oom(err, "for the events of rank %d", options->rank);
    r->ring = memory;
    recorder_fill_header(&r->ring->header, options);
    return TDM_OK;
}

static void recorder_release(tdm__recorder *r)
{
    if (r->ring) munmap(r->ring, sizeof(tdm__trace_ring));
    free(r->path);
    free(r);
}

tdm_status tdm__recorder_create(const tdm__recorder_options *options, tdm__recorder **out,
                                tdm_error *err)
{
    tdm__recorder *r = calloc(1, sizeof(*r));
    if (!r) return tdm_fail_oom(err, "for the recorder");
    r->now_ns = options->now_ns;
    r->user = options->user;
    tdm_status status = options->dir ? recorder_map_file(options, r, err)
                                     : recorder_map_memory(options, r, err);
    if (status != TDM_OK) {
        recorder_release(r);
        return status;
    }
    *out = r;
    return TDM_OK;
}

void tdm__recorder_destroy(tdm__recorder *recorder)
{
    if (!recorder) return;
    atomic_store_explicit(&recorder->ring->header.closed, 1, memory_order_release);
    recorder_release(recorder);
}

const char *tdm__recorder_path(const tdm__recorder *recorder)
{
    return recorder->path;
}

/* Sets the slot's busy bit; false if it is set already, or if the slot has an event of a later
 * round. */
static bool recorder_take_slot(_Atomic uint64_t *seal, uint32_t stamp)
{
    uint64_t before = atomic_load_explicit(seal, memory_order_relaxed);
    uint32_t there = tdm__trace_stamp_of(before);
    if (there & TDM__TRACE_BUSY) return false;
    uint32_t ahead = (there - stamp) & TDM__TRACE_ROUNDS;
    if (there != 0 && ahead < TDM__TRACE_ROUNDS / 2) return false;
    uint64_t busy = (uint64_t)(stamp | TDM__TRACE_BUSY) << TDM__TRACE_STAMP_AT;
    return atomic_compare_exchange_strong_explicit(seal, &before, busy, memory_order_acquire,
                                                   memory_order_relaxed);
}

void tdm__record(tdm__recorder *recorder, tdm_trace_event event)
{
    tdm__trace_ring *ring = recorder->ring;
    if (event.time_ns == 0) event.time_ns = now_ns(recorder);
    uint64_t number = atomic_fetch_add_explicit(&ring->header.head, 1, memory_order_relaxed);
    uint32_t stamp = tdm__trace_stamp(number);
    _Atomic uint64_t *words = ring->words[number % TDM_TRACE_EVENTS];
    if (!recorder_take_slot(&words[TDM__TRACE_SEAL], stamp)) return;
    memset(event.reserved, 0, sizeof(event.reserved));
    uint64_t copy[TDM__TRACE_WORDS];
    memcpy(copy, &event, sizeof(copy));
    atomic_thread_fence(memory_order_release); /* the busy bit becomes visible before any word */
    for (int i = 0; i < TDM__TRACE_WORDS; i++)
        if (i != TDM__TRACE_SEAL) atomic_store_explicit(&words[i], copy[i], memory_order_relaxed);
    uint64_t seal = copy[TDM__TRACE_SEAL] | (uint64_t)stamp << TDM__TRACE_STAMP_AT;
    atomic_store_explicit(&words[TDM__TRACE_SEAL], seal, memory_order_release);
}

/* ---- text ------------------------------------------------------------------------------------- */

/* The number of the oldest event to read; *head is the number after the newest. */
static uint64_t ring_oldest(const tdm__recorder *r, size_t max, uint64_t *head)
{
    *head = atomic_load_explicit(&r->ring->header.head, memory_order_acquire);
    return *head > max ? *head - max : 0;
}

static void recorder_add_ago(tdm_str *out, uint64_t now, uint64_t then)
{
    tdm_str_addf(out, "%.1f s ago", now > then ? (double)(now - then) * 1e-9 : 0.0);
}

static void recorder_add_waits(tdm_str *out, const tdm__stand *stand, const tdm_trace_event *call)
{
    int peers[TDM__STAND_WAITS], count = 0;
    for (int i = 0; i < stand->wait_count; i++)
        if (tdm__trace_same_call(&stand->waits[i], call) && stand->waits[i].peer >= 0)
            peers[count++] = stand->waits[i].peer;
    for (int i = 0; i < count; i++)
        tdm_str_addf(out, "%s%d",
                     i > 0        ? i + 1 == count ? " and " : ", "
                     : count == 1 ? ", waits for rank "
                                  : ", waits for ranks ",
                     peers[i]);
}

static void recorder_describe(const tdm__stand *stand, uint64_t now, tdm_str *out)
{
    if (stand->call_count > 0) {
        const tdm_trace_event *call = &stand->calls[0];
        tdm_trace_event_text(call, out);
        tdm_str_add(out, ", ");
        recorder_add_ago(out, now, call->time_ns);
        recorder_add_waits(out, stand, call);
        if (stand->call_count > 1)
            tdm_str_addf(out, "; %d more calls are pending", stand->call_count - 1);
    } else if (stand->last.kind == TDM_TRACE_NONE) {
        tdm_str_add(out, "has no events yet");
    } else {
        const tdm_trace_event *last = stand->ended.kind != TDM_TRACE_NONE ? &stand->ended
                                                                          : &stand->last;
        tdm_str_add(out, "is in no call; last: ");
        tdm_trace_event_text(last, out);
        tdm_str_add(out, ", ");
        recorder_add_ago(out, now, last->time_ns);
    }
}

const char *tdm__recorder_last(const tdm__recorder *recorder, char *out, size_t bytes)
{
    if (bytes == 0) return out;
    out[0] = '\0';
    tdm__stand *stand = calloc(1, sizeof(*stand));
    if (!stand) return out;
    uint64_t head, number = ring_oldest(recorder, TDM_TRACE_EVENTS, &head);
    tdm_trace_event event;
    for (; number < head; number++)
        if (tdm__trace_copy(recorder->ring, number, &event)) tdm__stand_fold(stand, &event);
    tdm_str text = TDM_STR_INIT;
    recorder_describe(stand, now_ns(recorder), &text);
    snprintf(out, bytes, "%s", tdm_str_text(&text));
    tdm_str_release(&text);
    free(stand);
    return out;
}

void tdm__recorder_text(const tdm__recorder *recorder, size_t max, tdm_str *out)
{
    uint64_t now = now_ns(recorder), head;
    if (max > TDM_TRACE_EVENTS) max = TDM_TRACE_EVENTS;
    tdm_trace_event event;
    for (uint64_t number = ring_oldest(recorder, max, &head); number < head; number++) {
        if (!tdm__trace_copy(recorder->ring, number, &event)) continue;
        uint64_t age = now > event.time_ns ? now - event.time_ns : 0;
        tdm_str_addf(out, "%12.6f s ago  ", (double)age * 1e-9);
        tdm_trace_event_text(&event, out);
        tdm_str_add_char(out, '\n');
    }
}

/* ---- writing to a file ------------------------------------------------------------------------ */

static bool recorder_same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* A copy of the ring in which every event is complete or marked as busy. */
static tdm__trace_ring *recorder_copy_ring(const tdm__trace_ring *ring)
{
    tdm__trace_ring *copy = calloc(1, sizeof(*copy));
    if (!copy) return NULL;
    memcpy(copy->page, ring->page, offsetof(tdm__trace_header, head));
    uint64_t head = atomic_load_explicit(&ring->header.head, memory_order_acquire);
    atomic_store_explicit(&copy->header.head, head, memory_order_relaxed);
    atomic_store_explicit(&copy->header.closed,
                          atomic_load_explicit(&ring->header.closed, memory_order_relaxed),
                          memory_order_relaxed);
    tdm_trace_event event;
    for (uint64_t n = head > TDM_TRACE_EVENTS ? head - TDM_TRACE_EVENTS : 0; n < head; n++) {
        if (!tdm__trace_copy(ring, n, &event)) continue;
        uint32_t stamp = tdm__trace_stamp(n);
        for (int i = 0; i < 3; i++) event.reserved[i] = (uint8_t)(stamp >> 8 * i);
        memcpy((void *)copy->words[n % TDM_TRACE_EVENTS], &event, sizeof(event));
    }
    return copy;
}

tdm_status tdm__recorder_dump(const tdm__recorder *recorder, const char *dir, tdm_error *err)
{
    const tdm__trace_ring *ring = recorder->ring;
    TDM_TRY(tdm_dir_make(dir, err));
    char *path = recorder_file_path(dir, ring->header.rank);
    if (!path) return tdm_fail_oom(err, "for a path below %s", dir);
    tdm_status status = TDM_OK;
    if (recorder->path && recorder_same_file(path, recorder->path)) {
        if (msync(recorder->ring, sizeof(*ring), MS_ASYNC) != 0)
            status = tdm_os_fail(err, "cannot flush", path);
    } else {
        tdm__trace_ring *copy = recorder_copy_ring(ring);
        status = copy ? tdm_file_replace(path, copy, sizeof(*copy), err)
                      : tdm_fail_oom(err, "to copy the trace to %s", dir);
        free(copy);
    }
    free(path);
    return status;
}
