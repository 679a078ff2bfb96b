/*
 * trace_chrome.c: writes a trace as JSON for chrome://tracing and Perfetto.
 *
 * Each rank is a process. Overlapping calls get separate rows, the lowest free one; the bar of a
 * call contains bars for its waits. If a call waits for several ranks, a bar lasts as long as the
 * set of these ranks is unchanged, so bars never cross. Additions and marks have their own rows. A
 * message is an arrow from the sender's call to the receiver's; the two ends are matched by (group,
 * sequence, step, sender, receiver), in order of time if a key is used again, and an end without
 * its counterpart is not drawn. Times are microseconds since the oldest event.
 */
#include "trace/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 64, MAX_WAITS = 64, ROW_ADDS = 1000, ROW_MARKS = 2000 };

typedef struct row {
    bool used;
    tdm_trace_event call; /* its BEGIN, or the first known event of it */
    int64_t begin_ns;
    int waits[MAX_WAITS];
    int wait_count;
    int64_t wait_ns; /* since when this set of waits is unchanged */
} row;

typedef struct end_point { /* one end of an arrow */
    uint32_t group, sequence, step;
    int from, to;
    int64_t at_ns;
    int row;
    bool arrival;
} end_point;

typedef struct drawing {
    const tdm_trace *trace;
    tdm_json_writer w;
    int64_t zero_ns, end_ns;
    const tdm_trace_rank *rank; /* the rank whose events are being drawn */
    int64_t first_ns;           /* its oldest event */
    bool row_named[MAX_ROWS], adds_named, marks_named;
    row rows[MAX_ROWS];
    end_point *ends;
    size_t end_count, end_capacity;
} drawing;

static void drawing_begin_event(drawing *d, const char *phase, const char *name, int rank,
                                int thread)
{
    tdm_json_object_begin(&d->w);
    tdm_json_put_string(&d->w, "ph", phase);
    tdm_json_put_string(&d->w, "name", name);
    tdm_json_put_int(&d->w, "pid", rank);
    tdm_json_put_int(&d->w, "tid", thread);
}

static void drawing_put_time(drawing *d, const char *key, int64_t ns)
{
    tdm_json_put_double(&d->w, key, (double)(ns > 0 ? ns : 0) / 1000.0);
}

static void drawing_meta(drawing *d, const char *what, int thread, const char *name)
{
    drawing_begin_event(d, "M", what, d->rank->rank, thread);
    tdm_json_key(&d->w, "args");
    tdm_json_object_begin(&d->w);
    tdm_json_put_string(&d->w, "name", name);
    tdm_json_object_end(&d->w);
    tdm_json_object_end(&d->w);
}

static void drawing_name_row(drawing *d, int thread, bool *named, const char *name)
{
    if (*named) return;
    *named = true;
    drawing_meta(d, "thread_name", thread, name);
}

/* Begins a bar; "args" follow. */
static void drawing_begin_bar(drawing *d, const char *name, int thread, int64_t from_ns,
                              int64_t to_ns)
{
    drawing_begin_event(d, "X", name, d->rank->rank, thread);
    drawing_put_time(d, "ts", from_ns - d->zero_ns);
    drawing_put_time(d, "dur", to_ns - from_ns);
}

static void drawing_put_waits(drawing *d, row *r, int thread, int64_t until_ns)
{
    if (r->wait_count == 0 || until_ns <= r->wait_ns) return;
    tdm_str name = TDM_STR_INIT;
    tdm_str_add(&name, r->wait_count == 1 ? "waits for rank " : "waits for ranks ");
    for (int i = 0; i < r->wait_count; i++)
        tdm_str_addf(&name, "%s%d", i > 0 ? ", " : "", r->waits[i]);
    drawing_begin_bar(d, tdm_str_text(&name), thread, r->wait_ns, until_ns);
    tdm_json_put_string(&d->w, "cat", "wait");
    tdm_json_object_end(&d->w);
    tdm_str_release(&name);
}

static void drawing_put_call(drawing *d, row *r, int thread, int64_t until_ns, const char *how)
{
    drawing_put_waits(d, r, thread, until_ns);
    tdm_str name = TDM_STR_INIT;
    tdm__trace_call_text(&r->call, &name);
    drawing_begin_bar(d, tdm_str_text(&name), thread, r->begin_ns, until_ns);
    tdm_json_put_string(&d->w, "cat", "call");
    tdm_json_key(&d->w, "args");
    tdm_json_object_begin(&d->w);
    tdm_json_put_uint(&d->w, "bytes", r->call.bytes);
    tdm_json_put_uint(&d->w, "group", r->call.group);
    tdm_json_put_uint(&d->w, "sequence", r->call.sequence);
    tdm_json_put_string(&d->w, "dtype", tdm_dtype_name(r->call.dtype));
    tdm_json_put_string(&d->w, "ended", how);
    tdm_json_object_end(&d->w);
    tdm_json_object_end(&d->w);
    tdm_str_release(&name);
    r->used = false;
    r->wait_count = 0;
}

/* The row of an event's call, allocated if it has none yet; -1 if all are taken. */
static int drawing_row_of(drawing *d, const tdm_trace_event *e, int64_t at_ns)
{
    int spare = -1;
    for (int i = 0; i < MAX_ROWS; i++) {
        const row *r = &d->rows[i];
        if (r->used && tdm__trace_same_call(&r->call, e)) return i;
        if (!r->used && spare < 0) spare = i;
    }
    if (spare < 0) return -1;
    char name[32];
    snprintf(name, sizeof(name), spare == 0 ? "calls" : "calls, row %d", spare + 1);
    drawing_name_row(d, spare, &d->row_named[spare], name);
    d->rows[spare] = (row){.used = true, .call = *e, .begin_ns = at_ns};
    if (e->kind != TDM_TRACE_BEGIN) d->rows[spare].call.bytes = 0;
    return spare;
}

static void drawing_change_waits(drawing *d, int index, const tdm_trace_event *e, int64_t at_ns)
{
    row *r = &d->rows[index];
    int place = 0;
    while (place < r->wait_count && r->waits[place] != e->peer) place++;
    bool there = place < r->wait_count, add = e->kind == TDM_TRACE_WAIT;
    if (add == there && !(e->peer < 0 && !add)) return;
    if (add && r->wait_count == MAX_WAITS) return;
    drawing_put_waits(d, r, index, at_ns);
    r->wait_ns = at_ns;
    if (add)
        r->waits[r->wait_count++] = e->peer;
    else if (e->peer < 0)
        r->wait_count = 0;
    else
        r->waits[place] = r->waits[--r->wait_count];
}

static void drawing_add_end_point(drawing *d, const tdm_trace_event *e, int64_t at_ns, int index)
{
    if (e->peer < 0) return;
    if (d->end_count == d->end_capacity) {
        size_t capacity = d->end_capacity ? d->end_capacity * 2 : 1024;
        end_point *ends = realloc(d->ends, capacity * sizeof(*ends));
        if (!ends) {
            d->w.out->failed = true;
            return;
        }
        d->ends = ends;
        d->end_capacity = capacity;
    }
    bool arrival = e->kind == TDM_TRACE_RECEIVED;
    d->ends[d->end_count++] = (end_point){.group = e->group,
                                          .sequence = e->sequence,
                                          .step = e->step,
                                          .from = arrival ? e->peer : d->rank->rank,
                                          .to = arrival ? d->rank->rank : e->peer,
                                          .at_ns = at_ns,
                                          .row = index,
                                          .arrival = arrival};
}

static void drawing_put_work(drawing *d, const tdm_trace_event *e, int64_t at_ns)
{
    int64_t long_ns = e->detail < (uint64_t)(at_ns - d->zero_ns) ? (int64_t)e->detail
                                                                 : at_ns - d->zero_ns;
    bool adds = e->kind == TDM_TRACE_COMPUTE;
    int thread = adds ? ROW_ADDS : ROW_MARKS;
    drawing_name_row(d, thread, adds ? &d->adds_named : &d->marks_named,
                     adds ? "additions" : "marks");
    tdm_str name = TDM_STR_INIT;
    if (e->kind == TDM_TRACE_MARK)
        tdm__trace_mark_name(e, &name); /* equal for all of a kind, so that viewers can aggregate
                                         * them */
    else
        tdm_trace_event_text(e, &name);
    if (long_ns > 0) {
        drawing_begin_bar(d, tdm_str_text(&name), thread, at_ns - long_ns, at_ns);
    } else {
        drawing_begin_event(d, "i", tdm_str_text(&name), d->rank->rank, thread);
        drawing_put_time(d, "ts", at_ns - d->zero_ns);
        tdm_json_put_string(&d->w, "s", "t");
    }
    tdm_json_put_string(&d->w, "cat", adds ? "compute" : "mark");
    tdm_json_object_end(&d->w);
    tdm_str_release(&name);
}

static void drawing_put_event(drawing *d, const tdm_trace_event *e)
{
    int64_t at_ns = tdm__trace_moment_ns(d->rank, e->time_ns);
    int index;
    switch (e->kind) {
    case TDM_TRACE_BEGIN: drawing_row_of(d, e, at_ns); break;
    case TDM_TRACE_END:
        index = drawing_row_of(d, e, d->first_ns);
        if (index >= 0)
            drawing_put_call(d, &d->rows[index], index, at_ns,
                             tdm_status_name((tdm_status)e->status));
        break;
    case TDM_TRACE_WAIT:
    case TDM_TRACE_RESUME:
        index = drawing_row_of(d, e, d->first_ns);
        if (index >= 0) drawing_change_waits(d, index, e, at_ns);
        break;
    case TDM_TRACE_SEND:
    case TDM_TRACE_RECEIVED:
        index = drawing_row_of(d, e, d->first_ns);
        if (index >= 0) drawing_add_end_point(d, e, at_ns, index);
        break;
    case TDM_TRACE_SENT: break;
    default: drawing_put_work(d, e, at_ns); break;
    }
}

static void drawing_put_rank(drawing *d, const tdm_trace_rank *rank)
{
    d->rank = rank;
    memset(d->rows, 0, sizeof(d->rows));
    memset(d->row_named, 0, sizeof(d->row_named));
    d->adds_named = d->marks_named = false;
    char name[192];
    snprintf(name, sizeof(name), "rank %d (%s, process %lld, %s)", rank->rank, rank->host,
             (long long)rank->pid, rank->transport);
    drawing_meta(d, "process_name", 0, name);
    drawing_begin_event(d, "M", "process_sort_index", rank->rank, 0);
    tdm_json_key(&d->w, "args");
    tdm_json_object_begin(&d->w);
    tdm_json_put_int(&d->w, "sort_index", rank->rank);
    tdm_json_object_end(&d->w);
    tdm_json_object_end(&d->w);
    if (rank->event_count == 0) return;
    d->first_ns = tdm__trace_moment_ns(rank, rank->events[0].time_ns);
    for (size_t i = 0; i < rank->event_count; i++) drawing_put_event(d, &rank->events[i]);
    for (int i = 0; i < MAX_ROWS; i++)
        if (d->rows[i].used) drawing_put_call(d, &d->rows[i], i, d->end_ns, "not");
}

/* ---- arrows ----------------------------------------------------------------------------------- */

static int compare_u64(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int compare_key(const end_point *a, const end_point *b)
{
    int order = compare_u64(a->group, b->group);
    if (order == 0) order = compare_u64(a->sequence, b->sequence);
    if (order == 0) order = compare_u64(a->step, b->step);
    if (order == 0) order = compare_u64((uint64_t)a->from, (uint64_t)b->from);
    if (order == 0) order = compare_u64((uint64_t)a->to, (uint64_t)b->to);
    return order;
}

static int compare_ends(const void *left, const void *right)
{
    const end_point *a = left, *b = right;
    int order = compare_key(a, b);
    if (order == 0) order = (int)a->arrival - (int)b->arrival;
    if (order == 0) order = a->at_ns < b->at_ns ? -1 : a->at_ns > b->at_ns;
    return order;
}

static void drawing_put_end(drawing *d, const end_point *e, uint64_t id)
{
    drawing_begin_event(d, e->arrival ? "f" : "s", "message", e->arrival ? e->to : e->from, e->row);
    drawing_put_time(d, "ts", e->at_ns - d->zero_ns);
    tdm_json_put_string(&d->w, "cat", "message");
    tdm_json_put_uint(&d->w, "id", id);
    if (e->arrival) tdm_json_put_string(&d->w, "bp", "e");
    tdm_json_object_end(&d->w);
}

/* Sorts the ends so that those of one key are adjacent: first all departures, then all arrivals, by
 * time. */
static void drawing_put_arrows(drawing *d)
{
    if (d->end_count == 0) return;
    qsort(d->ends, d->end_count, sizeof(*d->ends), compare_ends);
    uint64_t id = 0;
    for (size_t first = 0, last; first < d->end_count; first = last) {
        size_t arrivals = first;
        for (last = first; last < d->end_count; last++) {
            if (compare_key(&d->ends[first], &d->ends[last]) != 0) break;
            if (!d->ends[last].arrival) arrivals = last + 1;
        }
        size_t pairs = arrivals - first < last - arrivals ? arrivals - first : last - arrivals;
        for (size_t i = 0; i < pairs; i++) {
            id++;
            drawing_put_end(d, &d->ends[first + i], id);
            drawing_put_end(d, &d->ends[arrivals + i], id);
        }
    }
}

static void drawing_measure(drawing *d)
{
    bool any = false;
    for (size_t i = 0; i < d->trace->count; i++) {
        const tdm_trace_rank *r = tdm_trace_rank_at(d->trace, i);
        for (size_t e = 0; e < r->event_count; e++) {
            int64_t at = tdm__trace_moment_ns(r, r->events[e].time_ns);
            if (!any || at < d->zero_ns) d->zero_ns = at;
            if (!any || at > d->end_ns) d->end_ns = at;
            any = true;
        }
    }
}

void tdm_trace_chrome(const tdm_trace *trace, tdm_str *out)
{
    drawing *d = calloc(1, sizeof(*d));
    if (!d) {
        out->failed = true;
        return;
    }
    d->trace = trace;
    d->w = tdm_json_writer_init(out, 0);
    drawing_measure(d);
    tdm_json_object_begin(&d->w);
    tdm_json_put_string(&d->w, "displayTimeUnit", "ms");
    tdm_json_key(&d->w, "traceEvents");
    tdm_json_array_begin(&d->w);
    for (size_t i = 0; i < trace->count; i++) drawing_put_rank(d, tdm_trace_rank_at(trace, i));
    drawing_put_arrows(d);
    tdm_json_array_end(&d->w);
    tdm_json_object_end(&d->w);
    free(d->ends);
    free(d);
}
