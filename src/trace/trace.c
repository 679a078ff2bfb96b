/*
 * trace.c: reads the traces of a directory and aligns their clocks.
 *
 * A file may be written while it is read, so it is read twice: an event that differs between the
 * two copies was being written and is skipped; one that is equal in both, with the right stamp, is
 * complete (its writer sets the busy bit before it changes the first word). Files are read, not
 * mapped: a file that is truncated meanwhile is an error, not a SIGBUS.
 *
 * Ranks of one boot of one machine share its monotonic clock, so they use one offset to the wall
 * clock and their relative order is exact. Between machines the wall clocks are compared.
 */
#include "trace/trace.h"
#include "base/base.h"
#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static ssize_t trace_read_whole(int fd, void *out, size_t bytes)
{
    size_t count = 0;
    while (count < bytes) {
        ssize_t got = pread(fd, (uint8_t *)out + count, bytes - count, (off_t)count);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        count += (size_t)got;
    }
    return (ssize_t)count;
}

/* Marks events that differ in the second copy as busy. */
static void trace_compare_copies(tdm__trace_ring *first, const tdm__trace_ring *second)
{
    for (size_t i = 0; i < TDM_TRACE_EVENTS; i++)
        if (memcmp((const void *)first->words[i], (const void *)second->words[i],
                   sizeof(first->words[i])) != 0)
            memset((void *)first->words[i], 0xff, sizeof(first->words[i]));
}

static tdm_status trace_read_copies(int fd, const char *path, tdm__trace_ring copies[2],
                                    tdm__trace_parsed *out, tdm_error *err)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return tdm_os_fail(err, "cannot read", path);
    if (!S_ISREG(info.st_mode))
        return tdm_fail(err, TDM_ERR_FORMAT, "%s: not a regular file", path);
    ssize_t count = 0;
    for (int i = 0; i < 2 && count >= 0; i++)
        count = trace_read_whole(fd, &copies[i], sizeof(copies[i]));
    if (count < 0) return tdm_os_fail(err, "cannot read", path);
    trace_compare_copies(&copies[0], &copies[1]);
    return tdm__trace_parse(&copies[0], (size_t)count, path, out, err);
}

static tdm_status trace_read_file(const char *path, tdm__trace_parsed *out, tdm_error *err)
{
    tdm__trace_ring *copies = calloc(2, sizeof(*copies));
    if (!copies) return tdm_fail_oom(err, "to read the trace (%s)", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    tdm_status status = fd < 0 ? tdm_os_fail(err, "cannot open", path)
                               : trace_read_copies(fd, path, copies, out, err);
    if (fd >= 0) close(fd);
    free(copies);
    return status;
}

static bool name_is_trace(const char *name)
{
    size_t length = strlen(name), end = strlen(".trace");
    return strncmp(name, "rank-", 5) == 0 && length > end &&
           strcmp(name + length - end, ".trace") == 0;
}

static size_t trace_count_names(const char *const *names, size_t count)
{
    size_t traces = 0;
    for (size_t i = 0; i < count; i++) traces += name_is_trace(names[i]);
    return traces;
}

/* Lists the traces in `dir` or, if it has none, in its subdirectory. */
static tdm_status trace_list_files(const char *dir, tdm_arena *arena, const char **out_dir,
                                   const char *const **out_names, size_t *out_count, tdm_error *err)
{
    TDM_TRY(tdm_dir_list(dir, arena, out_names, out_count, err));
    *out_dir = dir;
    if (trace_count_names(*out_names, *out_count) > 0) return TDM_OK;
    const char *below = tdm_path_join(arena, dir, "trace");
    if (!below) return tdm_fail_oom(err, "for the names in %s", dir);
    if (tdm_path_is_dir(below)) {
        TDM_TRY(tdm_dir_list(below, arena, out_names, out_count, err));
        *out_dir = below;
    }
    if (trace_count_names(*out_names, *out_count) > 0) return TDM_OK;
    return tdm_fail(err, TDM_ERR_NOT_FOUND,
                    "%s: no trace files (rank-NNNNN.trace) in this directory or in its "
                    "subdirectory 'trace'; 'tandem run --run DIRECTORY -- PROGRAM' writes them",
                    dir);
}

static tdm_status trace_read_all(const char *dir, const char *const *names, size_t count,
                                 tdm_arena *arena, tdm_trace *trace, tdm_error *err)
{
    trace->parts = calloc(trace_count_names(names, count), sizeof(*trace->parts));
    if (!trace->parts) return tdm_fail_oom(err, "for traces (%s)", dir);
    tdm_error why = {0};
    for (size_t i = 0; i < count; i++) {
        if (!name_is_trace(names[i])) continue;
        const char *path = tdm_path_join(arena, dir, names[i]);
        if (!path) return tdm_fail_oom(err, "for names (%s)", dir);
        if (trace_read_file(path, &trace->parts[trace->count], &why) == TDM_OK)
            trace->count++;
        else if (why.status == TDM_ERR_NO_MEMORY)
            return tdm_fail(err, why.status, "%s", why.message);
        else
            tdm_log(TDM_LOG_WARN, "trace", "%s; skipped", why.message);
    }
    if (trace->count > 0) return TDM_OK;
    return tdm_fail(err, why.status, "%s: none of its traces can be read: %s", dir, why.message);
}

static int rank_compare(const void *left, const void *right)
{
    const tdm_trace_rank *a = &((const tdm__trace_parsed *)left)->rank;
    const tdm_trace_rank *b = &((const tdm__trace_parsed *)right)->rank;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    return a->epoch > b->epoch ? -1 : a->epoch < b->epoch;
}

/* Keeps the parts of the newest world, one for each rank. */
static void trace_keep_newest_world(tdm_trace *trace, const char *dir)
{
    const tdm__trace_parsed *newest = &trace->parts[0];
    for (size_t i = 1; i < trace->count; i++)
        if (trace->parts[i].start_ns > newest->start_ns) newest = &trace->parts[i];
    uint32_t epoch = newest->rank.epoch;
    int size = newest->rank.size;
    size_t kept = 0;
    for (size_t i = 0; i < trace->count; i++) {
        tdm__trace_parsed *part = &trace->parts[i];
        const tdm_trace_rank *r = &part->rank;
        bool twice = kept > 0 && trace->parts[kept - 1].rank.rank == r->rank;
        if (r->epoch == epoch && r->size == size && !twice) {
            trace->parts[kept++] = *part;
            continue;
        }
        tdm_log(TDM_LOG_WARN, "trace",
                "%s: rank %d of %d, epoch %u, belongs to a different world than the newest trace "
                "there (size %d, epoch %u); skipped",
                dir, r->rank, r->size, r->epoch, size, epoch);
        free((void *)(uintptr_t)r->events);
    }
    trace->count = kept;
}

static void trace_align_clocks(tdm_trace *trace)
{
    for (size_t i = 1; i < trace->count; i++)
        for (size_t j = 0; j < i; j++) {
            if (!trace->parts[i].boot[0] || strcmp(trace->parts[i].boot, trace->parts[j].boot) != 0)
                continue;
            trace->parts[i].rank.unix_offset_ns = trace->parts[j].rank.unix_offset_ns;
            break;
        }
}

/* Determines which ranks are running, and the time relative to which ages are printed. */
static void trace_check_processes(tdm_trace *trace)
{
    char boot[40];
    tdm__trace_boot(boot);
    int64_t newest = INT64_MIN;
    bool any = false, running = false;
    for (size_t i = 0; i < trace->count; i++) {
        tdm__trace_parsed *part = &trace->parts[i];
        tdm_trace_rank *r = &part->rank;
        r->here = boot[0] && strcmp(boot, part->boot) == 0;
        r->running = r->here && !r->closed && part->pid_start != 0 && r->pid > 0 &&
                     tdm__trace_pid_start(r->pid) == part->pid_start;
        if (r->running && !running) {
            running = any = true;
            newest = tdm__trace_moment_ns(r, tdm_clock_ns());
        }
        for (size_t e = 0; e < r->event_count; e++) {
            int64_t moment = tdm__trace_moment_ns(r, r->events[e].time_ns);
            if (!any || moment > newest) newest = moment;
            any = true;
        }
    }
    trace->reference_ns = any ? newest : 0;
}

tdm_status tdm_trace_open(const char *dir, tdm_trace **out, tdm_error *err)
{
    tdm_arena *arena = tdm_arena_create("trace");
    tdm_trace *trace = calloc(1, sizeof(*trace));
    tdm_status status;
    const char *const *names = NULL;
    const char *found = NULL;
    size_t count = 0;
    if (!arena || !trace)
        status = tdm_fail_oom(err, "for the trace (%s)", dir);
    else
        status = trace_list_files(dir, arena, &found, &names, &count, err);
    if (status == TDM_OK) status = trace_read_all(found, names, count, arena, trace, err);
    if (status == TDM_OK) {
        qsort(trace->parts, trace->count, sizeof(*trace->parts), rank_compare);
        trace_keep_newest_world(trace, found);
        trace_align_clocks(trace);
        trace_check_processes(trace);
        *out = trace;
    } else {
        tdm_trace_close(trace);
    }
    tdm_arena_destroy(arena);
    return status;
}

void tdm_trace_close(tdm_trace *trace)
{
    if (!trace) return;
    for (size_t i = 0; i < trace->count; i++) free((void *)(uintptr_t)trace->parts[i].rank.events);
    free(trace->parts);
    free(trace);
}

size_t tdm_trace_rank_count(const tdm_trace *trace)
{
    return trace->count;
}

const tdm_trace_rank *tdm_trace_rank_at(const tdm_trace *trace, size_t index)
{
    return index < trace->count ? &trace->parts[index].rank : NULL;
}

int64_t tdm_trace_reference_ns(const tdm_trace *trace)
{
    return trace->reference_ns;
}

const tdm_trace_rank *tdm__trace_find(const tdm_trace *trace, int rank, size_t *index)
{
    size_t low = 0, high = trace->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (trace->parts[middle].rank.rank < rank)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == trace->count || trace->parts[low].rank.rank != rank) return NULL;
    if (index) *index = low;
    return &trace->parts[low].rank;
}
