/*
 * trace_text.c: describes events as text, and computes the state of a rank: its unfinished calls
 * and the ranks they wait for. Pure functions of the events; the recorder uses them on its own ring
 * for heartbeats and errors, the reader on the rings of all ranks.
 */
#include "base/base.h"
#include "trace/trace.h"

#include <string.h>

static const char *const kind_names[] = {
    [TDM_TRACE_NONE] = "none",   [TDM_TRACE_OPEN] = "open",         [TDM_TRACE_CLOSE] = "close",
    [TDM_TRACE_GROUP] = "group", [TDM_TRACE_BEGIN] = "begin",       [TDM_TRACE_END] = "end",
    [TDM_TRACE_WAIT] = "wait",   [TDM_TRACE_RESUME] = "resume",     [TDM_TRACE_SEND] = "send",
    [TDM_TRACE_SENT] = "sent",   [TDM_TRACE_RECEIVED] = "received", [TDM_TRACE_COMPUTE] = "compute",
    [TDM_TRACE_LOST] = "lost",   [TDM_TRACE_BROKEN] = "broken",     [TDM_TRACE_MARK] = "mark",
};

const char *tdm_trace_kind_name(tdm_trace_kind kind)
{
    size_t index = (size_t)kind;
    return index < sizeof(kind_names) / sizeof(kind_names[0]) ? kind_names[index] : "unknown";
}

static void text_add_group(const tdm_trace_event *e, tdm_str *out)
{
    if (e->group == 0)
        tdm_str_add(out, "world");
    else
        tdm_str_addf(out, "group %08x", e->group);
}

void tdm__trace_call_text(const tdm_trace_event *event, tdm_str *out)
{
    const tdm_trace_event *e = event;
    if (tdm__trace_is_pair(e)) {
        bool receives = tdm__trace_receives(e);
        tdm_str_addf(out, "%s #%u ", tdm_call_kind_name(receives ? TDM_CALL_RECV : TDM_CALL_SEND),
                     e->sequence);
        if (e->peer >= 0) tdm_str_addf(out, "%s rank %d ", receives ? "from" : "to", e->peer);
        tdm_str_addf(out, "with tag %u of ", e->step);
    } else {
        tdm_str_addf(out, "%s #%u of ", e->call ? tdm_call_kind_name(e->call) : "call",
                     e->sequence);
    }
    text_add_group(e, out);
}

static void text_add_amount(const tdm_trace_event *e, tdm_str *out)
{
    char bytes[32];
    if (e->dtype) tdm_str_addf(out, "%s, ", tdm_dtype_name(e->dtype));
    tdm_str_add(out, tdm_text_bytes(e->bytes, bytes));
}

void tdm__trace_mark_name(const tdm_trace_event *e, tdm_str *out)
{
    size_t left = strnlen(e->text, sizeof(e->text));
    for (const char *p = e->text; left > 0;) {
        uint32_t c = 0;
        size_t length = tdm_text_utf8(p, left, &c);
        if (length == 0 || c < ' ' || (c >= 0x7f && c < 0xa0)) {
            tdm_str_add_char(out, '?');
            length = length ? length : 1;
        } else {
            tdm_str_add_bytes(out, p, length);
        }
        p += length;
        left -= length;
    }
}

static void text_add_status(const tdm_trace_event *e, tdm_str *out)
{
    if (e->status != TDM_OK) tdm_str_addf(out, " with %s", tdm_status_name((tdm_status)e->status));
}

static void text_add_message(const char *verb, const char *way, const tdm_trace_event *e,
                             tdm_str *out)
{
    char bytes[32];
    tdm_str_addf(out, "%s %s %s rank %d, ", verb, tdm_text_bytes(e->bytes, bytes), way, e->peer);
    if (!tdm__trace_is_pair(e)) tdm_str_addf(out, "step %u of ", e->step);
    tdm__trace_call_text(e, out);
}

static void text_add_duration(uint64_t ns, tdm_str *out)
{
    if (ns < 1000000)
        tdm_str_addf(out, "%.1f us", (double)ns * 1e-3);
    else
        tdm_str_addf(out, "%.1f ms", (double)ns * 1e-6);
}

static void text_add_work(const tdm_trace_event *e, tdm_str *out)
{
    char bytes[32];
    if (e->kind == TDM_TRACE_COMPUTE) {
        tdm_str_addf(out, "added %s in ", tdm_text_bytes(e->bytes, bytes));
        text_add_duration(e->detail, out);
        tdm_str_add(out, ", ");
        tdm__trace_call_text(e, out);
        return;
    }
    tdm_str_add(out, "mark \"");
    tdm__trace_mark_name(e, out);
    tdm_str_add_char(out, '"');
    if (e->detail > 0) {
        tdm_str_add(out, " after ");
        text_add_duration(e->detail, out);
    }
}

void tdm_trace_event_text(const tdm_trace_event *event, tdm_str *out)
{
    const tdm_trace_event *e = event;
    switch (e->kind) {
    case TDM_TRACE_OPEN: tdm_str_add(out, "joined the world"); break;
    case TDM_TRACE_CLOSE: tdm_str_add(out, "left the world"); break;
    case TDM_TRACE_GROUP:
        tdm_str_add(out, "created ");
        text_add_group(e, out);
        tdm_str_addf(out, " of %llu ranks", (unsigned long long)e->bytes);
        break;
    case TDM_TRACE_BEGIN:
        tdm_str_add(out, "began ");
        tdm__trace_call_text(e, out);
        tdm_str_add(out, ": ");
        text_add_amount(e, out);
        break;
    case TDM_TRACE_END:
        tdm_str_add(out, "ended ");
        tdm__trace_call_text(e, out);
        text_add_status(e, out);
        break;
    case TDM_TRACE_WAIT:
    case TDM_TRACE_RESUME:
        if (e->peer < 0)
            tdm_str_add(out, e->kind == TDM_TRACE_WAIT ? "waits in " : "no longer waits in ");
        else
            tdm_str_addf(out, "%s rank %d in ",
                         e->kind == TDM_TRACE_WAIT ? "waits for" : "no longer waits for", e->peer);
        tdm__trace_call_text(e, out);
        break;
    case TDM_TRACE_SEND: text_add_message("sends", "to", e, out); break;
    case TDM_TRACE_SENT: text_add_message("sent", "to", e, out); break;
    case TDM_TRACE_RECEIVED: text_add_message("received", "from", e, out); break;
    case TDM_TRACE_COMPUTE:
    case TDM_TRACE_MARK: text_add_work(e, out); break;
    case TDM_TRACE_LOST: tdm_str_addf(out, "detected the death of rank %d", e->peer); break;
    case TDM_TRACE_BROKEN:
        tdm_str_add(out, "broken: ");
        text_add_group(e, out);
        text_add_status(e, out);
        break;
    default: tdm_str_addf(out, "event of kind %d", e->kind); break;
    }
}

/* ---- state of a rank -------------------------------------------------------------------------- */

bool tdm__trace_same_call(const tdm_trace_event *a, const tdm_trace_event *b)
{
    if (a->group != b->group || a->sequence != b->sequence) return false;
    if (!tdm__trace_is_pair(a) || !tdm__trace_is_pair(b))
        return tdm__trace_is_pair(a) == tdm__trace_is_pair(b);
    return a->step == b->step && tdm__trace_receives(a) == tdm__trace_receives(b) &&
           (a->peer == b->peer || a->peer < 0 || b->peer < 0);
}

/* Removes the waits of e's call: all of them, or those for e's peer. */
static void stand_drop_waits(tdm__stand *stand, const tdm_trace_event *e, bool all)
{
    int kept = 0;
    for (int i = 0; i < stand->wait_count; i++) {
        const tdm_trace_event *w = &stand->waits[i];
        bool drop = tdm__trace_same_call(w, e) && (all || e->peer < 0 || w->peer == e->peer);
        if (!drop) stand->waits[kept++] = *w;
    }
    stand->wait_count = kept;
}

static void stand_drop_call(tdm__stand *stand, const tdm_trace_event *e)
{
    int kept = 0;
    for (int i = 0; i < stand->call_count; i++)
        if (!tdm__trace_same_call(&stand->calls[i], e)) stand->calls[kept++] = stand->calls[i];
    stand->call_count = kept;
    stand_drop_waits(stand, e, true);
}

void tdm__stand_fold(tdm__stand *stand, const tdm_trace_event *event)
{
    stand->last = *event;
    switch (event->kind) {
    case TDM_TRACE_BEGIN:
        stand_drop_call(stand, event);
        if (stand->call_count < TDM__STAND_CALLS) stand->calls[stand->call_count++] = *event;
        break;
    case TDM_TRACE_END:
        stand_drop_call(stand, event);
        stand->ended = *event;
        break;
    case TDM_TRACE_WAIT:
        stand_drop_waits(stand, event, false);
        if (stand->wait_count < TDM__STAND_WAITS) stand->waits[stand->wait_count++] = *event;
        break;
    case TDM_TRACE_RESUME: stand_drop_waits(stand, event, false); break;
    default: break;
    }
}
