/*
 * member.c: a member of a session: its record in the store, the endpoint of rank 0, and what the
 * member knows of its epoch without asking the store.
 *
 * The id of a member is never reused, so a record that has disappeared can be written again without
 * harm. An expired lease only makes the other members report; the epoch decides who is a member. A
 * member whose lease expired, or that was stopped for a while, therefore continues if it still is
 * in the current epoch.
 *
 * States of a member (tdm__member_state):
 *
 *                       enter
 *      OUTSIDE ---------------------> ACTIVE
 *       ^   ^                         |    |
 *       |   |         leave           |    | the epoch has ended
 *       |   +-------------------------+    |
 *       |             leave                v
 *       +----------------------------- BROKEN
 *
 *      transition           function                       reason
 *      ------------------   ----------------------------   -----------------------------------
 *      OUTSIDE -> ACTIVE    epoch_set_active (elastic.c)   before `enter` of the training loop
 *      ACTIVE -> BROKEN     member_interrupt (watcher)     a member is gone or has left,
 *                                                          another epoch is current, the run has
 *                                                          ended, or the store is silent
 *      ACTIVE -> OUTSIDE    epoch_set_active (elastic.c)   the last step, or a failed call
 *      BROKEN -> OUTSIDE    epoch_set_active (elastic.c)   the interrupted call has returned
 *
 * tdm_member_epoch_holds is true in ACTIVE only.
 *
 * Threading: `kv` belongs to the training thread, `watch_kv` to the watcher, `confirm_kv` to the
 * thread that holds confirm_lock. Shared fields are protected by `lock`, which is never held during
 * a call to the store or to the training loop: that calls tdm_member_epoch_holds under locks which
 * its function `interrupt` takes. interrupt_lock keeps an epoch from ending while it is interrupted.
 */
#include "membership/member.h"
#include "base/base.h"
#include "base/timing.h"
#include "os/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void tdm__member_key(const tdm_member *member, char out[TDM_KV_KEY_BYTES], const char *fmt, ...)
{
    va_list args;
    int used = snprintf(out, TDM_KV_KEY_BYTES, "%s", member->prefix);
    va_start(args, fmt);
    vsnprintf(out + used, (size_t)(TDM_KV_KEY_BYTES - used), fmt, args);
    va_end(args);
}

double tdm__member_silence_limit_s(const tdm_member *member)
{
    return fmax(member->heartbeats.fixed_s, TDM__TIMING_MEMBERSHIP_STORE_SILENCE_S);
}

void tdm__member_heard(tdm_member *member, double now_s)
{
    pthread_mutex_lock(&member->lock);
    if (now_s > member->heard_s) member->heard_s = now_s;
    pthread_mutex_unlock(&member->lock);
}

/* ---- the record ------------------------------------------------------------------------------ */

static void record_write(tdm_member *m, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_string(&w, "host", m->host);
    tdm_json_put_int(&w, "slot", m->slot);
    tdm_json_put_int(&w, "pid", getpid());
    pthread_mutex_lock(&m->lock);
    tdm_json_put_int(&w, "agent", m->agent);
    tdm_json_put_bool(&w, "orphan", m->is_orphan);
    tdm_json_put_uint(&w, "born", m->born);
    tdm_json_put_bool(&w, "ready", m->is_ready);
    tdm__put_shm_id(&w, m->shm_id);
    tdm_json_put_uint(&w, "epoch", m->epoch);
    tdm_json_put_string(&w, "phase", m->status_phase);
    tdm_json_put_uint(&w, "step", m->status.step);
    tdm_json_put_uint(&w, "steps", m->status.step_count);
    tdm_json_put_double(&w, "speed", m->status.samples_per_s);
    if (m->status.sent_bytes > 0) {
        tdm_json_put_uint(&w, "sent", m->status.sent_bytes);
        tdm_json_put_double(&w, "compression", m->status.compression);
    }
    tdm_json_put_string(&w, "run", m->status_run);
    tdm_json_put_double(&w, "lease_s", m->lease_asked_s);
    m->record_is_old = false;
    pthread_mutex_unlock(&m->lock);
    tdm_json_object_end(&w);
}

tdm_status tdm__member_put_record(tdm_member *member, tdm_kv *kv, uint64_t lease, tdm_error *err)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_str text = TDM_STR_INIT;
    record_write(member, &text);
    tdm__member_key(member, key, "members/%s", member->id);
    tdm_status status = tdm_str_ok(&text) ? tdm_kv_put(kv, key, tdm_str_text(&text), lease, err)
                                          : tdm_fail_oom(err, "for a member's record");
    tdm_str_release(&text);
    if (status != TDM_OK) {
        pthread_mutex_lock(&member->lock);
        member->record_is_old = true;
        pthread_mutex_unlock(&member->lock);
    }
    return status;
}

/* Takes over an existing record with this id if this process wrote it: an earlier attempt timed out
 * but took effect. */
static tdm_status record_take_over(tdm_member *m, const char *key, const char *text, uint64_t lease,
                                   uint64_t *born, tdm_error *err)
{
    tdm_arena *arena = tdm_arena_create("record");
    if (!arena) return tdm_fail_oom(err, "for a member's record");
    tdm_kv_item item = {0};
    const tdm_json *record = NULL;
    int64_t pid = 0;
    tdm_status status = tdm_kv_get(m->watch_kv, key, arena, &item, err);
    if (status == TDM_OK)
        status = tdm_json_parse(item.value, strlen(item.value), arena, &record, err);
    if (status == TDM_OK) {
        const char *host = tdm_json_as_string(tdm_json_get(record, "host"));
        const tdm_json *number = tdm_json_get(record, "pid");
        bool is_ours = host && strcmp(host, m->host) == 0 && number &&
                       tdm_json_as_i64(number, &pid) && pid == getpid();
        status = is_ours ? tdm_kv_put(m->watch_kv, key, text, lease, err)
                         : tdm_fail(err, TDM_ERR_EXISTS,
                                    "member \"%s\" already exists in session \"%s\"; member names "
                                    "must be unique",
                                    m->id, m->session);
        *born = item.revision;
    }
    tdm_arena_destroy(arena);
    return status;
}

/* Creates a lease, and the first record with it. */
static tdm_status member_register(tdm_member *m, tdm_error *err)
{
    char key[TDM_KV_KEY_BYTES];
    uint64_t lease = 0, born = 0;
    m->lease_asked_s = tdm__heartbeat_lease_s(&m->heartbeats);
    TDM_TRY(tdm_kv_lease(m->watch_kv, m->lease_asked_s, &lease, err));
    tdm_str text = TDM_STR_INIT;
    record_write(m, &text);
    tdm__member_key(m, key, "members/%s", m->id);
    tdm_status status = tdm_str_ok(&text) ? tdm_kv_swap(m->watch_kv, key, 0, tdm_str_text(&text),
                                                        lease, &born, err)
                                          : tdm_fail_oom(err, "for a member's record");
    if (status == TDM_ERR_EXISTS)
        status = record_take_over(m, key, tdm_str_text(&text), lease, &born, err);
    tdm_str_release(&text);
    if (status != TDM_OK) {
        tdm_kv_release(m->watch_kv, lease, NULL);
        return status;
    }
    m->lease = lease;
    m->born = born;
    m->record_is_old = true; /* the record does not have `born` yet */
    m->heard_s = tdm_kv_now(m->watch_kv);
    m->beat_s = m->heard_s;
    return TDM_OK;
}

/* ---- lifetime -------------------------------------------------------------------------------- */

static void member_sleep(void *user, double seconds)
{
    (void)user;
    tdm_clock_sleep(seconds);
}

static bool name_is_valid(const char *text, size_t bytes)
{
    return text && *text && strnlen(text, bytes) < bytes && !strchr(text, '/');
}

static tdm_status options_check(const tdm_member_options *o, tdm_error *err)
{
    if (!name_is_valid(o->session, TDM__SESSION_BYTES) ||
        !name_is_valid(o->id, TDM_MEMBER_ID_BYTES) || !name_is_valid(o->host, TDM_HOST_BYTES))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "a member needs a session, an id and a host, without slashes, shorter "
                        "than %d, %d and %d bytes",
                        TDM__SESSION_BYTES, TDM_MEMBER_ID_BYTES, TDM_HOST_BYTES);
    if (o->min < 0 || o->max < 0 || (o->max > 0 && o->max < o->min))
        return tdm_fail(err, TDM_ERR_RANGE, "the minimum of %d members exceeds the maximum of %d",
                        o->min, o->max);
    if (!(o->wait_s >= 0) || !(o->lease_s >= 0) || !(o->report_s >= 0))
        return tdm_fail(err, TDM_ERR_RANGE, "times of a member must not be negative");
    return TDM_OK;
}

static void member_release(tdm_member *m)
{
    tdm_kv_close(m->kv);
    tdm_kv_close(m->watch_kv);
    tdm_kv_close(m->confirm_kv);
    tdm_arena_destroy(m->watch_arena);
    pthread_mutex_destroy(&m->lock);
    pthread_mutex_destroy(&m->interrupt_lock);
    pthread_mutex_destroy(&m->confirm_lock);
    free(m);
}

tdm_status tdm__member_create_with(const tdm_member_options *options,
                                   const tdm__member_parts *parts, tdm_member **out, tdm_error *err)
{
    tdm_member *m = calloc(1, sizeof(*m));
    tdm_status status = options_check(options, err);
    if (status == TDM_OK && (!m || !(m->watch_arena = tdm_arena_create("view")))) {
        status = TDM_ERR_NO_MEMORY;
        tdm_fail(err, status, "no memory for a member");
    }
    if (status != TDM_OK) {
        tdm_kv_close(parts->kv);
        tdm_kv_close(parts->watch_kv);
        tdm_kv_close(parts->confirm_kv);
        if (m) tdm_arena_destroy(m->watch_arena);
        free(m);
        return status;
    }
    m->kv = parts->kv;
    m->watch_kv = parts->watch_kv;
    m->confirm_kv = parts->confirm_kv;
    m->pause = parts->pause ? parts->pause : member_sleep;
    m->pause_user = parts->user;
    pthread_mutex_init(&m->lock, NULL);
    pthread_mutex_init(&m->interrupt_lock, NULL);
    pthread_mutex_init(&m->confirm_lock, NULL);
    snprintf(m->session, sizeof(m->session), "%s", options->session);
    snprintf(m->id, sizeof(m->id), "%s", options->id);
    snprintf(m->host, sizeof(m->host), "%s", options->host);
    snprintf(m->prefix, sizeof(m->prefix), "tandem/%s/", options->session);
    m->slot = options->slot;
    m->agent = options->agent;
    m->min = options->min > 0 ? options->min : 1;
    m->max = options->max;
    m->needs_all_hosts = options->needs_all_hosts;
    m->is_begun = options->is_begun;
    m->shm_id = options->shm_id;
    m->wait_s = options->wait_s > 0 ? options->wait_s : TDM__TIMING_MEMBERSHIP_MIN_MEMBERS_S;
    m->report_s = options->report_s > 0 ? options->report_s : TDM__TIMING_MEMBERSHIP_REPORT_S;
    snprintf(m->status_phase, sizeof(m->status_phase), "starting");
    tdm__heartbeat_init(&m->heartbeats, options->lease_s);
    m->newcomers_s = m->verdict_s = -1;
    status = member_register(m, err);
    if (status != TDM_OK) {
        member_release(m);
        return status;
    }
    *out = m;
    return TDM_OK;
}

static void *watcher_main(void *user)
{
    tdm_member *m = user;
    for (;;) {
        pthread_mutex_lock(&m->lock);
        bool should_stop = m->should_stop;
        pthread_mutex_unlock(&m->lock);
        if (should_stop) return NULL;
        tdm__member_tick(m);
    }
}

/* Opens the three handles. Calls of the watcher have a shorter timeout, so that a heartbeat is not
 * late. */
static tdm_status parts_open(const tdm_member_options *options, tdm__member_parts *out,
                             tdm_error *err)
{
    tdm_kv_options quick = options->kv;
    if (!(quick.timeout_s > 0)) quick.timeout_s = TDM__TIMING_MEMBERSHIP_WATCH_CALL_S;
    quick.idle_s = options->lease_s > 0 ? options->lease_s : TDM__TIMING_KV_OWNER_IDLE_S;
    *out = (tdm__member_parts){0};
    tdm_status status = tdm_kv_open(&options->kv, &out->kv, err);
    if (status == TDM_OK) status = tdm_kv_open(&quick, &out->watch_kv, err);
    if (status == TDM_OK) status = tdm_kv_open(&options->kv, &out->confirm_kv, err);
    if (status != TDM_OK) {
        tdm_kv_close(out->kv);
        tdm_kv_close(out->watch_kv);
    }
    return status;
}

static bool status_is_temporary(tdm_status status)
{
    return status == TDM_ERR_TIMEOUT || status == TDM_ERR_IO || status == TDM_ERR_BUSY ||
           tdm_status_group_of(status) == TDM_STATUS_GROUP_PEER;
}

tdm_status tdm_member_create(const tdm_member_options *options, tdm_member **out, tdm_error *err)
{
    double until_s = tdm_clock_s() +
                     (options->wait_s > 0 ? options->wait_s : TDM__TIMING_MEMBERSHIP_MIN_MEMBERS_S);
    tdm_member *m = NULL;
    for (bool is_first = true;; is_first = false) {
        tdm__member_parts parts;
        tdm_error why = {0};
        tdm_status status = parts_open(options, &parts, &why);
        if (status == TDM_OK) status = tdm__member_create_with(options, &parts, &m, &why);
        if (status == TDM_OK) break;
        if (!status_is_temporary(status) || tdm_clock_s() > until_s)
            return tdm_fail(err, status, "%s", why.message);
        if (is_first) tdm_log(TDM_LOG_WARN, "cluster", "waiting for the store: %s", why.message);
        member_sleep(NULL, TDM__TIMING_MEMBERSHIP_REGISTER_RETRY_S);
    }
    tdm_status started = tdm__thread_start(&m->thread, watcher_main, m, err);
    if (started != TDM_OK) {
        tdm_member_destroy(m);
        return started;
    }
    m->has_thread = true;
    *out = m;
    return TDM_OK;
}

void tdm_member_destroy(tdm_member *member)
{
    if (!member) return;
    pthread_mutex_lock(&member->lock);
    member->should_stop = true;
    uint64_t lease = member->lease;
    pthread_mutex_unlock(&member->lock);
    if (member->has_thread) {
        tdm_kv_release(member->kv, lease, NULL); /* wakes the thread, which waits for a change */
        pthread_join(member->thread, NULL);      /* it may have replaced the lease meanwhile */
    }
    tdm_kv_release(member->watch_kv, member->lease, NULL);
    member_release(member);
}

const char *tdm_member_id(const tdm_member *member)
{
    return member->id;
}

tdm_status tdm_member_environment(tdm_member_options *out, tdm_error *err)
{
    const char *id = getenv("TANDEM_MEMBER"), *slot = getenv("TANDEM_SLOT");
    const char *agent = getenv("TANDEM_AGENT");
    if (!id || !*id)
        return tdm_fail(err, TDM_ERR_NOT_FOUND,
                        "TANDEM_MEMBER is not set: this process was not started by an agent");
    tdm_member_options options = {.id = id,
                                  .session = getenv("TANDEM_SESSION"),
                                  .host = getenv("TANDEM_HOST"),
                                  .kv.url = getenv("TANDEM_STORE")};
    char *end = NULL;
    errno = 0;
    long number = slot ? strtol(slot, &end, 10) : 0;
    if (!options.session || !options.host || !options.kv.url || errno != 0 ||
        (slot && (end == slot || *end)) || number < 0 || number > INT32_MAX)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "TANDEM_MEMBER is set, but TANDEM_SESSION, TANDEM_HOST, TANDEM_STORE and a "
                        "TANDEM_SLOT of 0 or above are not: start workers with 'tandem train'");
    options.slot = (int)number;
    options.agent = agent ? strtoll(agent, NULL, 10) : 0;
    *out = options;
    return TDM_OK;
}

void tdm_member_tell(tdm_member *member, const tdm_member_status *status)
{
    pthread_mutex_lock(&member->lock);
    bool is_new_phase = status->phase && strcmp(status->phase, member->status_phase) != 0;
    member->status = *status;
    member->status.run_path = member->status.phase = NULL;
    if (status->run_path)
        snprintf(member->status_run, sizeof(member->status_run), "%s", status->run_path);
    if (is_new_phase)
        snprintf(member->status_phase, sizeof(member->status_phase), "%s", status->phase);
    member->record_is_old = true;
    pthread_mutex_unlock(&member->lock);
}

/* ---- the epoch ------------------------------------------------------------------------------- */

uint64_t tdm_member_save_request(tdm_member *member)
{
    pthread_mutex_lock(&member->lock);
    uint64_t request = member->save_request;
    pthread_mutex_unlock(&member->lock);
    return request;
}

bool tdm_member_epoch_holds(const tdm_member *member, uint32_t epoch)
{
    tdm_member *m = (tdm_member *)member; /* only to lock it */
    double now_s = tdm_kv_now(m->watch_kv);
    pthread_mutex_lock(&m->lock);
    bool holds = m->state == TDM__MEMBER_ACTIVE && m->epoch == epoch && !m->should_stop &&
                 now_s - m->heard_s < tdm__member_silence_limit_s(m);
    pthread_mutex_unlock(&m->lock);
    return holds;
}

/* If the store cannot be reached, only this epoch ends, with TDM_ERR_PEER_FAILED: agreement on the
 * next epoch needs the store as well. */
tdm_status tdm_member_publish_endpoint(tdm_member *member, uint32_t epoch, const char *endpoint,
                                       tdm_error *err)
{
    char key[TDM_KV_KEY_BYTES];
    if (strnlen(endpoint, TDM_ENDPOINT_BYTES) >= TDM_ENDPOINT_BYTES)
        return tdm_fail(err, TDM_ERR_RANGE,
                        "the endpoint must be shorter than %d bytes: \"%.40s...\"",
                        TDM_ENDPOINT_BYTES, endpoint);
    tdm__member_key(member, key, "door/%010" PRIu32, epoch);
    for (;;) {
        tdm_error why = {0};
        tdm_status status = tdm_kv_put(member->kv, key, endpoint, 0, &why);
        if (status == TDM_OK) return TDM_OK;
        if (status == TDM_ERR_INVALID) return tdm_fail(err, status, "%s", why.message);
        if (!tdm_member_epoch_holds(member, epoch))
            return tdm_fail(err, TDM_ERR_PEER_FAILED,
                            "epoch %" PRIu32 " ended before rank 0 could publish its endpoint: %s",
                            epoch, why.message);
        member->pause(member->pause_user, TDM__TIMING_MEMBERSHIP_STORE_RETRY_S);
    }
}

tdm_status tdm_member_lookup_endpoint(tdm_member *member, uint32_t epoch, double seconds,
                                      char out[TDM_ENDPOINT_BYTES], tdm_error *err)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_arena *arena = tdm_arena_create("endpoint");
    if (!arena) return tdm_fail_oom(err, "to look up rank 0");
    tdm__member_key(member, key, "door/%010" PRIu32, epoch);
    double until_s = tdm_kv_now(member->kv) + seconds;
    tdm_status status = TDM_OK;
    for (uint64_t revision = 0;;) {
        tdm_kv_item *items = NULL;
        size_t count = 0;
        tdm_error why = {.message = "rank 0 has not published its endpoint"};
        tdm_status look = tdm_kv_list(member->kv, key, arena, &items, &count, &revision, &why);
        if (look == TDM_OK && count > 0 &&
            strnlen(items[0].value, TDM_ENDPOINT_BYTES) < TDM_ENDPOINT_BYTES) {
            snprintf(out, TDM_ENDPOINT_BYTES, "%s", items[0].value);
            break;
        }
        double now_s = tdm_kv_now(member->kv);
        if (!tdm_member_epoch_holds(member, epoch)) {
            status = tdm_fail(err, TDM_ERR_PEER_FAILED,
                              "epoch %" PRIu32 " ended before its ranks were connected", epoch);
            break;
        }
        if (now_s >= until_s) {
            status = tdm_fail(err, TDM_ERR_PEER_TIMEOUT,
                              "cannot find the endpoint of rank 0 of epoch %" PRIu32 " within "
                              "%.1f s: %s",
                              epoch, seconds, why.message);
            break;
        }
        double left_s = fmin(until_s - now_s, TDM__TIMING_MEMBERSHIP_ENDPOINT_CHECK_S);
        if (look != TDM_OK || tdm_kv_wait(member->kv, key, revision, left_s, NULL, NULL) != TDM_OK)
            member->pause(member->pause_user, fmin(left_s, TDM__TIMING_MEMBERSHIP_STORE_RETRY_S));
        tdm_arena_reset(arena);
    }
    tdm_arena_destroy(arena);
    return status;
}

tdm_status tdm_member_confirm(tdm_member *member, uint32_t epoch, tdm_error *err)
{
    tdm_arena *arena = tdm_arena_create("confirm");
    if (!arena) return tdm_fail_oom(err, "to ask the store");
    tdm__view view;
    pthread_mutex_lock(&member->confirm_lock);
    tdm_status status = tdm__view_read(member->confirm_kv, member->prefix, arena, &view, err);
    pthread_mutex_unlock(&member->confirm_lock);
    if (status == TDM_OK) {
        const tdm__view_member *me = tdm__view_find(&view, member->id);
        if (view.number != epoch || !me || me->rank < 0 || me->is_dead)
            status = tdm_fail(err, TDM_ERR_PEER_FENCED,
                              "epoch %" PRIu32 " is current, not %" PRIu32
                              ": member %s must not write any more",
                              view.number, epoch, member->id);
    }
    tdm_arena_destroy(arena);
    return status;
}
