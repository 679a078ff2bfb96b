/*
 * trace_file.c: shared by recorder and reader of a trace file: its checksum, complete events, and
 * the parsing of untrusted bytes.
 *
 * Invariants of the output of tdm__trace_parse: rank below size, size at most TDM_MAX_RANKS, texts
 * of printable ASCII, times and offsets small enough that their sums cannot overflow, events of a
 * known kind whose peer is a rank of the world or -1.
 */
#include "trace/trace_file.h"
#include "base/base.h"

#include <tandem/os.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TIME_BITS = 62 }; /* 146 years in nanoseconds: the sum of two fits into int64_t */

uint64_t tdm__trace_header_sum(const tdm__trace_header *header)
{
    return tdm_hash64(header, offsetof(tdm__trace_header, check));
}

bool tdm__trace_copy(const tdm__trace_ring *ring, uint64_t number, tdm_trace_event *out)
{
    const _Atomic uint64_t *words = ring->words[number % TDM_TRACE_EVENTS];
    uint64_t copy[TDM__TRACE_WORDS];
    uint64_t seal = atomic_load_explicit(&words[TDM__TRACE_SEAL], memory_order_acquire);
    if (tdm__trace_stamp_of(seal) != tdm__trace_stamp(number)) return false;
    for (int i = 0; i < TDM__TRACE_WORDS; i++)
        copy[i] = atomic_load_explicit(&words[i], memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&words[TDM__TRACE_SEAL], memory_order_relaxed) != seal) return false;
    copy[TDM__TRACE_SEAL] = seal & ~((uint64_t)TDM__TRACE_STAMPS << TDM__TRACE_STAMP_AT);
    memcpy(out, copy, sizeof(copy));
    return true;
}

static size_t file_read_text(const char *path, char *out, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, out, bytes - 1);
    if (fd >= 0) close(fd);
    out[got > 0 ? got : 0] = '\0';
    return got > 0 ? (size_t)got : 0;
}

void tdm__trace_boot(char out[40])
{
    memset(out, 0, 40);
    file_read_text("/proc/sys/kernel/random/boot_id", out, 40);
    out[strcspn(out, "\n")] = '\0';
}

uint64_t tdm__trace_pid_start(int64_t pid)
{
    char path[64], text[1024];
    if (pid == 0)
        snprintf(path, sizeof(path), "/proc/self/stat");
    else
        snprintf(path, sizeof(path), "/proc/%lld/stat", (long long)pid);
    if (file_read_text(path, text, sizeof(text)) == 0) return 0;
    const char *at = strrchr(text, ')'); /* the name may contain anything; numbers follow it */
    if (!at || at[1] != ' ' || at[2] == 'Z') return 0; /* a zombie is not running */
    at++;
    for (int field = 3; field < 22 && at; field++) at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

/* ---- parsing ---------------------------------------------------------------------------------- */

static void header_copy_text(char *out, const char *in, size_t bytes)
{
    size_t i = 0;
    for (; i + 1 < bytes && in[i]; i++) out[i] = in[i] >= ' ' && in[i] <= '~' ? in[i] : '?';
    memset(out + i, 0, bytes - i);
}

static tdm_status header_check(const tdm__trace_header *h, size_t count, const char *name,
                               tdm_error *err)
{
    if (count < sizeof(*h) || memcmp(h->magic, TDM__TRACE_MAGIC, sizeof(h->magic)) != 0)
        return tdm_fail(err, TDM_ERR_FORMAT, "%s: not a Tandem trace", name);
    if (h->version != TDM__TRACE_VERSION)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: the trace has version %u; this program reads version %d", name,
                        h->version, TDM__TRACE_VERSION);
    if (h->check != tdm__trace_header_sum(h))
        return tdm_fail(err, TDM_ERR_CHECKSUM, "%s: the trace's header is damaged", name);
    if (h->header_bytes != TDM__TRACE_HEADER_BYTES || h->event_bytes != sizeof(tdm_trace_event) ||
        h->event_count != TDM_TRACE_EVENTS)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: the trace has %u events of %u bytes, not %d of %zu", name,
                        h->event_count, h->event_bytes, TDM_TRACE_EVENTS, sizeof(tdm_trace_event));
    if (count < sizeof(tdm__trace_ring))
        return tdm_fail(err, TDM_ERR_FORMAT, "%s: the trace is truncated after %zu of %zu bytes",
                        name, count, sizeof(tdm__trace_ring));
    if (h->size < 1 || h->size > TDM_MAX_RANKS || h->rank < 0 || h->rank >= h->size)
        return tdm_fail(err, TDM_ERR_RANGE, "%s: the trace has an invalid rank %d of %d", name,
                        h->rank, h->size);
    if (h->clock_ns >> TIME_BITS || h->unix_ns >> TIME_BITS || h->pid < 0)
        return tdm_fail(err, TDM_ERR_RANGE,
                        "%s: the trace has invalid clocks or an invalid process ID", name);
    return TDM_OK;
}

static bool event_is_sane(const tdm_trace_event *e, int size)
{
    return e->kind > TDM_TRACE_NONE && e->kind <= TDM_TRACE_MARK && e->call <= TDM_CALL_RECV &&
           e->peer >= -1 && e->peer < size && e->time_ns >> TIME_BITS == 0;
}

static size_t trace_copy_events(const tdm__trace_ring *ring, int size, tdm_trace_event *out)
{
    uint64_t head = atomic_load_explicit(&ring->header.head, memory_order_relaxed);
    size_t count = 0, left = head < TDM_TRACE_EVENTS ? (size_t)head : TDM_TRACE_EVENTS;
    for (uint64_t number = head - left; left > 0; number++, left--)
        if (tdm__trace_copy(ring, number, &out[count]) && event_is_sane(&out[count], size)) count++;
    return count;
}

tdm_status tdm__trace_parse(const void *bytes, size_t count, const char *name,
                            tdm__trace_parsed *out, tdm_error *err)
{
    tdm__trace_ring *ring = calloc(1, sizeof(*ring)); /* aligned, and long enough */
    tdm_trace_event *events = calloc(TDM_TRACE_EVENTS, sizeof(*events));
    tdm_status status = TDM_ERR_NO_MEMORY;
    if (!ring || !events) {
        tdm_fail(err, status, "%s: no memory to read the trace", name);
    } else {
        memcpy((void *)ring, bytes, count < sizeof(*ring) ? count : sizeof(*ring));
        status = header_check(&ring->header, count, name, err);
    }

    if (status == TDM_OK) {
        const tdm__trace_header *h = &ring->header;
        uint64_t head = atomic_load_explicit(&h->head, memory_order_relaxed);
        *out = (tdm__trace_parsed){
            .pid_start = h->pid_start,
            .start_ns = h->unix_ns,
            .rank = {.rank = h->rank,
                     .size = h->size,
                     .epoch = h->epoch,
                     .pid = h->pid,
                     .unix_offset_ns = (int64_t)h->unix_ns - (int64_t)h->clock_ns,
                     .closed = atomic_load_explicit(&h->closed, memory_order_relaxed) == 1,
                     .lost_count = head > TDM_TRACE_EVENTS ? head - TDM_TRACE_EVENTS : 0,
                     .event_count = trace_copy_events(ring, h->size, events),
                     .events = events}};
        header_copy_text(out->rank.host, h->host, sizeof(h->host));
        header_copy_text(out->rank.transport, h->transport, sizeof(h->transport));
        header_copy_text(out->boot, h->boot, sizeof(h->boot));
    } else {
        free(events);
    }

    free(ring);
    return status;
}
