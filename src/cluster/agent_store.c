/*
 * agent_store.c: what an agent writes to the store and reads from it.
 *
 * Its record has a lease; a lease that expired while the store could not be reached is replaced.
 * When the store does not respond, the agent does not touch its workers: each worker detects by
 * itself when it must leave. The outage is logged once, and its end once.
 */
#include "base/base.h"
#include "base/timing.h"
#include "cluster/agent.h"
#include "kv/kv.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TAIL_BYTES = 2048 };

/* ---- record ---------------------------------------------------------------------------------- */

static void store_report_status(tdm__agent *a, tdm_status status, const tdm_error *err)
{
    bool failed = status != TDM_OK && status != TDM_ERR_NOT_FOUND && status != TDM_ERR_EXISTS;
    if (failed && !a->store_failed)
        tdm_log(TDM_LOG_WARN, "agent",
                "the agent of host %s cannot reach the store: %s; its workers continue as long as "
                "they can reach it",
                a->options->host, err->message);
    if (!failed && a->store_failed)
        tdm_log(TDM_LOG_INFO, "agent", "the agent of host %s can reach the store again",
                a->options->host);
    a->store_failed = failed;
}

static void record_describe(const tdm__agent *a, tdm_str *out)
{
    const tdm__health *health = &a->health;
    double load[1] = {0};
    if (getloadavg(load, 1) != 1) load[0] = 0;
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_string(&w, "address", a->address[0] ? a->address : a->options->host);
    tdm_json_put_int(&w, "pid", (int64_t)getpid());
    tdm__put_shm_id(&w, tdm_shm_id(a->shm));
    tdm_json_put_int(&w, "workers", a->workers.count);
    tdm_json_put_int(&w, "starting", tdm__agent_plans(a));
    tdm_json_put_int(&w, "restarts", a->result.restarts);
    tdm_json_put_int(&w, "processors", sysconf(_SC_NPROCESSORS_ONLN));
    tdm_json_put_double(&w, "load", load[0]);
    tdm_json_put_uint(&w, "memory_free", health->memory_free);
    tdm_json_put_uint(&w, "memory", health->memory);
    if (health->disk > 0) tdm_json_put_uint(&w, "disk_free", health->disk_free);
    if (health->disk > 0) tdm_json_put_uint(&w, "disk", health->disk);
    if (health->trouble[0]) tdm_json_put_string(&w, "trouble", health->trouble);
    tdm_json_put_double(&w, "beat", tdm_clock_unix_s());
    tdm_json_object_end(&w);
}

static tdm_status record_put(tdm__agent *a, tdm_error *err)
{
    tdm_str text = TDM_STR_INIT;
    record_describe(a, &text);
    tdm_status status = tdm_kv_put(a->kv, a->host_key, tdm_str_text(&text), a->lease, err);
    tdm_str_release(&text);
    return status;
}

/* Another agent of this host may already use the plain host name. */
tdm_status tdm__agent_enter(tdm__agent *a, tdm_error *err)
{
    const char *session = a->options->session;
    TDM_TRY(tdm_kv_lease(a->kv, TDM__TIMING_AGENT_LEASE_S, &a->lease, err));
    tdm__session_key(a->host_key, session, "hosts/%s", a->options->host);
    tdm_status status = tdm_kv_swap(a->kv, a->host_key, 0, "{}", a->lease, NULL, err);
    if (status == TDM_ERR_EXISTS)
        tdm__session_key(a->host_key, session, "hosts/%s+%ld", a->options->host, (long)getpid());
    else if (status != TDM_OK)
        return status;
    return record_put(a, err);
}

void tdm__agent_beat(tdm__agent *a)
{
    tdm_error err = {0};
    tdm__agent_check_health(a);
    tdm_status status = tdm_kv_keep(a->kv, a->lease, &err);
    if (status == TDM_ERR_NOT_FOUND)
        status = tdm_kv_lease(a->kv, TDM__TIMING_AGENT_LEASE_S, &a->lease, &err);
    if (status == TDM_OK) status = record_put(a, &err);
    store_report_status(a, status, &err);
    tdm__loop_timer_set(a->loop, &a->beat_timer, tdm_clock_s() + TDM__TIMING_AGENT_BEAT_S);
}

void tdm__agent_put_dead(tdm__agent *a, const char *id, const char *why, uint64_t step)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_error err = {0};
    tdm_str text = TDM_STR_INIT;
    tdm_json_writer w = tdm_json_writer_init(&text, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_string(&w, "why", why);
    tdm_json_put_double(&w, "at", tdm_kv_now(a->kv));
    tdm_json_put_uint(&w, "step", step); /* the last step that it completed */
    tdm_json_object_end(&w);
    store_report_status(a,
                        tdm_kv_put(a->kv, tdm__session_key(key, a->options->session, "dead/%s", id),
                                   tdm_str_text(&text), 0, &err),
                        &err);
    tdm_str_release(&text);
}

void tdm__agent_end_session(tdm__agent *a, tdm_status status, const char *message)
{
    tdm_error err = {0};
    store_report_status(
        a, tdm_session_end(a->kv, a->options->session, status, message, a->options->host, &err),
        &err);
    a->phase = TDM__AGENT_OVER; /* even if the store cannot be reached: nothing else can be tried */
    tdm__agent_look_soon(a);
}

/* The last process of a session removes it from the store: no agent is left, and no launcher to
 * read the result. */
static void session_remove_if_last(tdm__agent *a)
{
    static const char *const others[] = {"hosts/", "members/", "launcher"};
    char key[TDM_KV_KEY_BYTES];
    tdm_kv_item *items;
    size_t count = 0;
    tdm_arena *arena = tdm_arena_create("others");
    bool is_last = arena && a->phase == TDM__AGENT_OVER;
    for (size_t i = 0; is_last && i < sizeof(others) / sizeof(others[0]); i++)
        is_last = tdm_kv_list(a->kv, tdm__session_key(key, a->options->session, "%s", others[i]),
                              arena, &items, &count, NULL, NULL) == TDM_OK &&
                  count == 0;
    if (is_last) {
        tdm__session_forget(a->kv, a->options->session);
        tdm__log_forward_forget(a->kv, a->options->session);
    }
    tdm_arena_destroy(arena);
}

/* Removes the record by its lease alone: the key as prefix would also remove hosts whose names
 * begin with ours. */
void tdm__agent_leave(tdm__agent *a)
{
    if (!a->kv) return;
    if (a->host_key[0]) tdm__agent_log_end(a);
    if (a->lease) (void)tdm_kv_release(a->kv, a->lease, NULL);
    if (a->host_key[0]) session_remove_if_last(a);
    tdm_kv_close(a->kv);
}

/* ---- logs ------------------------------------------------------------------------------------ */

/* The last non-empty line of a file. */
static bool log_last_line(const char *path, char *out, size_t bytes)
{
    char text[TAIL_BYTES + 1];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return false;
    off_t end = lseek(fd, 0, SEEK_END);
    ssize_t got = pread(fd, text, TAIL_BYTES, end > TAIL_BYTES ? end - TAIL_BYTES : 0);
    close(fd);
    while (got > 0 && (text[got - 1] == '\n' || text[got - 1] == '\r')) got--;
    if (got <= 0) return false;
    text[got] = '\0';
    const char *line = memrchr(text, '\n', (size_t)got);
    snprintf(out, bytes, "%s", line ? line + 1 : text);
    return true;
}

void tdm__agent_last_line(const tdm__agent *a, int slot, char *out, size_t bytes)
{
    char path[sizeof(a->run) + 128];
    out[0] = '\0';
    snprintf(path, sizeof(path), "%s/%s.%d.log", a->options->logs, a->options->host, slot);
    if (log_last_line(path, out, bytes) || !a->run[0]) return;
    snprintf(path, sizeof(path), "%s/logs/%s.%d.log", a->run, a->options->host, slot);
    (void)log_last_line(path, out, bytes);
}

void tdm__agent_look_soon(tdm__agent *a)
{
    tdm__loop_timer_set(a->loop, &a->look_timer, tdm_clock_s());
}

bool tdm__agent_look(tdm__agent *a, tdm_arena *arena, tdm_session_view *out)
{
    tdm_error err = {0};
    tdm_status status = tdm_session_look(a->kv, a->options->session, arena, out, &err);
    store_report_status(a, status, &err);
    a->is_forgotten = status == TDM_ERR_NOT_FOUND && a->has_seen;
    a->has_seen = a->has_seen || status == TDM_OK;
    if (status == TDM_OK && out->run) snprintf(a->run, sizeof(a->run), "%s", out->run);
    if (status == TDM_OK) tdm__agent_log_look(a, out);
    return status == TDM_OK;
}
