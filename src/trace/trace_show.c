/*
 * trace_show.c: prints a trace as text or JSON: the last events of each rank, and the summary.
 */
#include "base/base.h"
#include "trace/trace.h"

#include <string.h>

typedef struct view {
    const tdm_trace *trace;
    int rank;    /* -1: all */
    size_t last; /* events of each */
} view;

static const char *rank_state(const tdm_trace_rank *r)
{
    if (r->closed) return "closed";
    if (r->running) return "running";
    return r->here ? "killed or crashed" : "on another machine, or before the last reboot";
}

static double event_age_s(const view *v, const tdm_trace_rank *r, const tdm_trace_event *e)
{
    int64_t moment = (int64_t)e->time_ns + r->unix_offset_ns;
    return (double)(tdm_trace_reference_ns(v->trace) - moment) * 1e-9;
}

static size_t rank_first_shown(const view *v, const tdm_trace_rank *r)
{
    return r->event_count > v->last ? r->event_count - v->last : 0;
}

static void text_rank(const view *v, const tdm_trace_rank *r, tdm_str *out)
{
    char events[32], lost[32];
    tdm_str_addf(out, "rank %d of %d", r->rank, r->size);
    if (r->host[0]) tdm_str_addf(out, " on %s", r->host);
    tdm_str_addf(out, ", process %lld", (long long)r->pid);
    if (r->transport[0]) tdm_str_addf(out, ", %s", r->transport);
    if (r->epoch > 0) tdm_str_addf(out, ", epoch %u", r->epoch);
    tdm_str_addf(out, ": %s; %s event%s", rank_state(r), tdm_text_count(r->event_count, events),
                 r->event_count == 1 ? "" : "s");
    if (r->lost_count > 0)
        tdm_str_addf(out, ", %s older ones overwritten", tdm_text_count(r->lost_count, lost));
    tdm_str_add_char(out, '\n');
    for (size_t i = rank_first_shown(v, r); i < r->event_count; i++) {
        tdm_str_addf(out, "%14.6f s ago  ", event_age_s(v, r, &r->events[i]));
        tdm_trace_event_text(&r->events[i], out);
        tdm_str_add_char(out, '\n');
    }
}

/* ---- JSON ------------------------------------------------------------------------------------------ */

/* Writes the name of a mark. It may have been cut within a character, so only printable ASCII is kept. */
static void json_mark(tdm_json_writer *w, const tdm_trace_event *e)
{
    char name[sizeof(e->text) + 1] = "";
    for (size_t i = 0; i < sizeof(e->text) && e->text[i]; i++)
        name[i] = e->text[i] > ' ' && e->text[i] < 0x7f ? e->text[i] : '?';
    tdm_json_put_string(w, "mark", name);
}

static void json_event(const view *v, const tdm_trace_rank *r, const tdm_trace_event *e,
                       tdm_json_writer *w)
{
    tdm_str text = TDM_STR_INIT;
    tdm_trace_event_text(e, &text);
    tdm_json_object_begin(w);
    tdm_json_put_double(w, "age_s", event_age_s(v, r, e));
    tdm_json_put_uint(w, "time_ns", e->time_ns);
    tdm_json_put_string(w, "kind", tdm_trace_kind_name(e->kind));
    if (e->call) {
        tdm_json_put_string(w, "call", tdm_call_kind_name(e->call));
        tdm_json_put_uint(w, "group", e->group);
        tdm_json_put_uint(w, "sequence", e->sequence);
        tdm_json_put_uint(w, "step", e->step);
    }
    if (e->peer >= 0) tdm_json_put_int(w, "peer", e->peer);
    if (e->bytes) tdm_json_put_uint(w, "bytes", e->bytes);
    if (e->detail) tdm_json_put_uint(w, "detail", e->detail);
    if (e->kind == TDM_TRACE_MARK) json_mark(w, e);
    if (e->status) tdm_json_put_string(w, "status", tdm_status_name((tdm_status)e->status));
    tdm_json_put_string(w, "text", tdm_str_text(&text));
    tdm_json_object_end(w);
    tdm_str_release(&text);
}

static void json_rank(const view *v, size_t index, tdm_json_writer *w)
{
    const tdm_trace_rank *r = tdm_trace_rank_at(v->trace, index);
    tdm_trace_stand stand;
    tdm_trace_stand_of(v->trace, index, &stand);
    tdm_json_object_begin(w);
    tdm_json_put_int(w, "rank", r->rank);
    tdm_json_put_int(w, "size", r->size);
    tdm_json_put_uint(w, "epoch", r->epoch);
    tdm_json_put_int(w, "pid", r->pid);
    tdm_json_put_string(w, "host", r->host);
    tdm_json_put_string(w, "transport", r->transport);
    tdm_json_put_bool(w, "closed", r->closed);
    tdm_json_put_bool(w, "running", r->running);
    tdm_json_put_string(w, "state", rank_state(r));
    tdm_json_put_uint(w, "lost_events", r->lost_count);
    tdm_json_put_bool(w, "in_call", stand.in_call);
    tdm_json_key(w, "waits_for");
    tdm_json_array_begin(w);
    for (int i = 0; i < stand.wait_count; i++) tdm_json_int(w, stand.waits_for[i]);
    tdm_json_array_end(w);
    tdm_json_key(w, "events");
    tdm_json_array_begin(w);
    for (size_t i = rank_first_shown(v, r); i < r->event_count; i++)
        json_event(v, r, &r->events[i], w);
    tdm_json_array_end(w);
    tdm_json_object_end(w);
}

static void json_summary(const tdm_trace *trace, tdm_json_writer *w)
{
    tdm_str text = TDM_STR_INIT;
    tdm_trace_summary(trace, &text);
    tdm_json_key(w, "summary");
    tdm_json_array_begin(w);
    char *line = text.data, *end;
    for (; line && (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        tdm_json_string(w, line);
    }
    tdm_json_array_end(w);
    if (!tdm_str_ok(&text)) w->out->failed = true;
    tdm_str_release(&text);
}

static void json_trace(const view *v, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_key(&w, "ranks");
    tdm_json_array_begin(&w);
    for (size_t i = 0; i < tdm_trace_rank_count(v->trace); i++)
        if (v->rank < 0 || tdm_trace_rank_at(v->trace, i)->rank == v->rank) json_rank(v, i, &w);
    tdm_json_array_end(&w);
    json_summary(v->trace, &w);
    tdm_json_object_end(&w);
    tdm_str_add_char(out, '\n');
}

/* ---- the call ------------------------------------------------------------------------------------- */

static bool view_has_rank(const view *v)
{
    for (size_t i = 0; i < tdm_trace_rank_count(v->trace); i++)
        if (tdm_trace_rank_at(v->trace, i)->rank == v->rank) return true;
    return false;
}

tdm_status tdm_trace_show(const tdm_trace *trace, const tdm_trace_show_options *options,
                          tdm_str *out, tdm_error *err)
{
    view v = {.trace = trace, .rank = options->rank, .last = options->last};
    if (v.rank >= 0 && !view_has_rank(&v))
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "no trace of rank %d", v.rank);

    if (options->json) {
        json_trace(&v, out);
        return TDM_OK;
    }
    for (size_t i = 0; i < tdm_trace_rank_count(trace); i++) {
        const tdm_trace_rank *r = tdm_trace_rank_at(trace, i);
        if (v.rank >= 0 && r->rank != v.rank) continue;
        text_rank(&v, r, out);
        tdm_str_add_char(out, '\n');
    }
    tdm_trace_summary(trace, out);
    return TDM_OK;
}
