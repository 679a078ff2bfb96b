/*
 * epoch_describe.c: formats an epoch as JSON for the store and as text for the log.
 *
 * The list of excluded members ("left") is copied from epoch to epoch as long as their records
 * exist. From this list they detect that they are fenced, and the others that they are not new
 * members.
 */
#include "membership/member.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool plan_has_member(const tdm__epoch_plan *plan, const tdm__view_member *m)
{
    for (int i = 0; i < plan->next_count; i++)
        if (plan->next[i] == m) return true;
    return false;
}

void tdm__epoch_text(const tdm__view *view, const tdm__epoch_plan *plan, const char *by,
                     tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_uint(&w, "number", (uint64_t)view->number + 1);
    tdm_json_key(&w, "members");
    tdm_json_array_begin(&w);
    for (int i = 0; i < plan->next_count; i++) {
        tdm_json_object_begin(&w);
        tdm_json_put_string(&w, "id", plan->next[i]->id);
        tdm_json_put_string(&w, "host", plan->next[i]->host);
        tdm_json_put_int(&w, "pid", plan->next[i]->pid);
        tdm_json_object_end(&w);
    }
    tdm_json_array_end(&w);
    tdm_json_key(&w, "left");
    tdm_json_array_begin(&w);
    for (int i = 0; i < view->count; i++) {
        const tdm__view_member *m = &view->members[i];
        bool was_there = m->rank >= 0 || (m->is_excluded && m->has_record);
        if (!was_there || plan_has_member(plan, m)) continue;
        tdm_json_object_begin(&w);
        tdm_json_put_string(&w, "id", m->id);
        tdm_json_put_string(&w, "why", m->left_why ? m->left_why : "");
        if (m->is_refused) tdm_json_put_bool(&w, "refused", true);
        tdm_json_object_end(&w);
    }
    tdm_json_array_end(&w);
    tdm_json_put_string(&w, "by", by);
    tdm_json_object_end(&w);
}

const char *tdm__epoch_name(const tdm__view_member *m, char buffer[256])
{
    char rank[32] = "", process[48] = "";
    if (m->rank >= 0) snprintf(rank, sizeof(rank), "rank %d ", m->rank);
    if (m->pid > 0) snprintf(process, sizeof(process), ", process %" PRId64, m->pid);
    snprintf(buffer, 256, "%s(member %s, host %s%s)", rank, m->id, m->host, process);
    return buffer;
}

void tdm__epoch_describe(const tdm__view *view, const tdm__epoch_plan *plan, double took_s,
                         tdm_str *out)
{
    char name[256];
    tdm_str_addf(out, "epoch %" PRIu32 ": training %s with %d rank%s", view->number + 1,
                 view->number > 0 ? "continues" : "begins", plan->next_count,
                 plan->next_count == 1 ? "" : "s");
    if (view->number > 0) tdm_str_addf(out, ", previously %d", view->size);
    const char *between = "; left: ";
    for (int i = 0; i < view->size; i++) {
        const tdm__view_member *m = &view->members[i];
        if (plan_has_member(plan, m)) continue;
        tdm_str_addf(out, "%s%s: %s", between, tdm__epoch_name(m, name),
                     m->left_why ? m->left_why : "unknown reason");
        between = ", ";
    }
    between = "; joined: ";
    for (int i = 0; view->number > 0 && i < plan->next_count; i++) {
        if (plan->next[i]->rank >= 0) continue;
        tdm_str_addf(out, "%s%s as rank %d", between, tdm__epoch_name(plan->next[i], name), i);
        between = ", ";
    }
    if (took_s >= 0) tdm_str_addf(out, "; agreed within %.0f ms", took_s * 1e3);
}
