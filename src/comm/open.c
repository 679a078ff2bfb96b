/*
 * open.c: opens a world from options: joins it, chooses transports by the ranks' hosts, connects.
 *
 * All ranks make the same choice, because it depends only on the hosts or on the user's setting; the
 * first exchange checks that all have the same setting. A rank that fails reports it in the exchange, so
 * that all ranks fail at once and name it, instead of waiting for it.
 *
 *   all ranks on one host          shm
 *   every rank on a host alone     tcp
 *   otherwise                      shm within hosts, tcp between them
 */
#include "base/base.h"
#include "comm/assemble.h"
#include "comm/choices.h"
#include "comm/engine.h"
#include "transport/alone.h"
#include "transport/registry.h"
#include "transport/shm.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The message that ranks exchange before and while they connect. */
typedef struct greeting {
    uint32_t status; /* a tdm_status: not OK if this rank failed; then `text` has the reason */
    uint32_t address_bytes;
    char transport[16];
    char text[400];
    uint8_t address[TDM__MAX_ADDRESS];
} greeting;

typedef struct opening {
    const tdm_comm_options *options; /* resolved */
    tdm__control *control;
    tdm__host *host;
    int *host_of;
    int local_count;
    const char *near, *far;         /* transports within and between hosts; NULL: none */
    char name[16];                  /* of both, such as "shm+tcp" */
    tdm__cancellation cancellation; /* checked in all waits: the caller's and the control's */
} opening;

/* ---- choice of transport ---------------------------------------------------------------------- */

static void opening_choose_auto(opening *o)
{
    bool several_hosts = false, neighbours = false;
    for (int i = 0; i < o->control->size; i++) {
        several_hosts = several_hosts || o->host_of[i] != o->host_of[0];
        for (int k = 0; k < i && !neighbours; k++) neighbours = o->host_of[k] == o->host_of[i];
    }
    o->near = neighbours || !several_hosts ? "shm" : NULL;
    o->far = several_hosts ? "tcp" : NULL;
}

static tdm_status opening_choose_transport(opening *o, tdm_error *err)
{
    const char *request = o->options->transport;
    bool one_host = true;
    for (int i = 0; i < o->control->size; i++)
        one_host = one_host && o->host_of[i] == o->host_of[0];
    if (!request || strcmp(request, "auto") == 0) {
        opening_choose_auto(o);
    } else if (strcmp(request, "shm") == 0) {
        o->near = "shm";
        if (!one_host)
            return tdm_fail(err, TDM_ERR_INVALID,
                            "the transport is set to shm, but the ranks run on several hosts; set "
                            "it to auto (shared memory within hosts, TCP between them)");
    } else if (strncmp(request, "shm+", 4) == 0) {
        const tdm__transport_ops *ops;
        TDM_TRY(tdm__transport_find(request + 4, &ops, err));
        o->near = "shm";
        o->far = one_host ? NULL : request + 4;
    } else {
        const tdm__transport_ops *ops;
        TDM_TRY(tdm__transport_find(request, &ops, err));
        o->far = ops->name;
    }
    snprintf(o->name, sizeof(o->name), "%s%s%s", o->near ? o->near : "",
             o->near && o->far ? "+" : "", o->far ? o->far : "");
    return TDM_OK;
}

/* ---- greetings -------------------------------------------------------------------------------- */

typedef struct greetings {
    uint8_t **all;
    size_t *bytes;
} greetings;

static void greetings_release(greetings *g)
{
    free(g->all);
    free(g->bytes);
}

static void greeting_set_error(greeting *mine, const tdm_error *error)
{
    mine->status = (uint32_t)error->status;
    mine->address_bytes = 0;
    snprintf(mine->text, sizeof(mine->text), "%.*s", (int)sizeof(mine->text) - 1, error->message);
}

static tdm_status greeting_check(int rank, const uint8_t *bytes, size_t count,
                                 const char *transport, tdm_error *err)
{
    const greeting *g = (const greeting *)bytes;
    size_t min = offsetof(greeting, address);
    if (count < min || g->address_bytes > TDM__MAX_ADDRESS || count < min + g->address_bytes)
        return tdm_fail(err, TDM_ERR_PEER_FAILED, "rank %d sent an invalid greeting of %zu bytes",
                        rank, count);
    if (g->status != TDM_OK)
        return tdm_fail(err, TDM_ERR_PEER_FAILED, "rank %d failed: %.*s", rank,
                        (int)sizeof(g->text) - 1, g->text);
    if (strncmp(g->transport, transport, sizeof(g->transport)) != 0)
        return tdm_fail(
            err, TDM_ERR_PEER_MISMATCH,
            "rank %d uses the transport %.15s, this rank uses %s; set the same on all ranks", rank,
            g->transport, transport);
    return TDM_OK;
}

/* Exchanges greetings with all ranks. On success `out` has `size` valid greetings. */
static tdm_status opening_greet(opening *o, greeting *mine, greetings *out, tdm_error *err)
{
    snprintf(mine->transport, sizeof(mine->transport), "%s", o->name);
    size_t bytes = offsetof(greeting, address) + mine->address_bytes;
    TDM_TRY(o->control->ops->exchange(o->control, mine, bytes, &out->all, &out->bytes, err));
    tdm_status status = TDM_OK;
    for (int i = 0; i < o->control->size && status == TDM_OK; i++)
        status = greeting_check(i, out->all[i], out->bytes[i], o->name, err);
    if (status != TDM_OK) greetings_release(out);
    return status;
}

/* ---- the host's memory ------------------------------------------------------------------------ */

static tdm_status opening_connect_host(opening *o, const greetings *g, const int *ranks,
                                       tdm_error *err)
{
    const uint8_t **addresses = calloc((size_t)o->local_count, sizeof(*addresses));
    size_t *bytes = calloc((size_t)o->local_count, sizeof(*bytes));
    tdm_status status = TDM_OK;
    if (!addresses || !bytes) status = tdm_fail_oom(err, "while opening a world");
    for (int i = 0; i < o->local_count && status == TDM_OK; i++) {
        const greeting *one = (const greeting *)g->all[ranks[i]];
        addresses[i] = one->address;
        bytes[i] = one->address_bytes;
    }
    if (status == TDM_OK) status = tdm__host_connect(o->host, addresses, bytes, err);
    free(addresses);
    free(bytes);
    return status;
}

/* Collective over the world, whether or not this rank shares its host with others. */
static tdm_status opening_open_host(opening *o, int *ranks, tdm_error *err)
{
    const int rank = o->control->rank;
    for (int i = 0; i < o->control->size; i++)
        if (o->host_of[i] == o->host_of[rank]) ranks[o->local_count++] = i;
    greeting mine = {.status = TDM_OK};
    if (o->near && o->local_count > 1) {
        tdm__host_options options = {.rank = rank,
                                     .ranks = ranks,
                                     .count = o->local_count,
                                     .world = o->control->world,
                                     .with_fds = o->far != NULL,
                                     .cancellation = o->cancellation};
        size_t bytes = 0;
        tdm_error error;
        if (tdm__host_create(&options, &o->host, mine.address, &bytes, &error) != TDM_OK)
            greeting_set_error(&mine, &error);
        else
            mine.address_bytes = (uint32_t)bytes;
    }
    greetings all;
    tdm_status status = opening_greet(o, &mine, &all, err);
    if (status == TDM_OK) {
        if (o->host) status = opening_connect_host(o, &all, ranks, err);
        greetings_release(&all);
    }
    if (status != TDM_OK && o->host) {
        tdm__host_destroy(o->host);
        o->host = NULL;
    }
    return status;
}

/* ---- transports ------------------------------------------------------------------------------- */

static tdm_status opening_connect_far(opening *o, tdm__transport *far, const greetings *g,
                                      tdm_error *err)
{
    size_t size = (size_t)o->control->size;
    const uint8_t **addresses = calloc(size, sizeof(*addresses));
    size_t *bytes = calloc(size, sizeof(*bytes));
    tdm_status status = TDM_OK;
    if (!addresses || !bytes) status = tdm_fail_oom(err, "while opening a world");
    for (size_t i = 0; i < size && status == TDM_OK; i++) {
        const greeting *one = (const greeting *)g->all[i];
        bool near = o->host && o->host_of[i] == o->host_of[o->control->rank];
        addresses[i] = one->address;
        bytes[i] =
            near ? 0
                 : one->address_bytes; /* ranks of this host are reached through shared memory */
    }
    if (status == TDM_OK) status = far->ops->connect(far, addresses, bytes, err);
    free(addresses);
    free(bytes);
    return status;
}

/* Collective over the world. */
static tdm_status opening_open_far(opening *o, const tdm__transport_options *options,
                                   tdm__transport **out, tdm_error *err)
{
    const tdm__transport_ops *ops = NULL;
    tdm__transport *far = NULL;
    greeting mine = {.status = TDM_OK};
    size_t bytes = 0;
    tdm_error error = {.status = TDM_ERR_INTERNAL};
    if (tdm__transport_find(o->far, &ops, &error) != TDM_OK ||
        ops->create(options, &far, mine.address, &bytes, &error) != TDM_OK)
        greeting_set_error(&mine, &error);
    else
        mine.address_bytes = (uint32_t)bytes;
    greetings all;
    tdm_status status = opening_greet(o, &mine, &all, err);
    if (status == TDM_OK) {
        status = far ? opening_connect_far(o, far, &all, err) : error.status;
        greetings_release(&all);
    }
    if (status != TDM_OK) {
        if (far) far->ops->destroy(far);
        return status;
    }
    *out = far;
    return TDM_OK;
}

/* Whether every rank of this host can have its own CPU. */
static bool opening_has_cpus(const opening *o)
{
    cpu_set_t set;
    int here = 0;
    for (int i = 0; i < o->control->size; i++)
        here += o->host_of[i] == o->host_of[o->control->rank];
    return sched_getaffinity(0, sizeof(set), &set) == 0 && here <= CPU_COUNT(&set);
}

static tdm_status opening_open_transport(opening *o, const tdm__transport_options *options,
                                         tdm__transport **out, tdm_error *err)
{
    tdm__transport *far = NULL, *near = NULL;
    if (o->control->size == 1) return tdm__alone_create(out, err);
    if (o->far) TDM_TRY(opening_open_far(o, options, &far, err));
    if (!o->host) {
        *out = far;
        return TDM_OK;
    }
    tdm_status status = tdm__shm_create(o->host, options, &near, err);
    if (status == TDM_OK && !far) {
        *out = near;
        return TDM_OK;
    }
    if (status == TDM_OK) return tdm__mixed_create(near, far, options, o->name, out, err);
    if (far) far->ops->destroy(far);
    return status;
}

static tdm_status opening_make_transport(void *context, const tdm__transport_events *events,
                                         tdm__transport **out, tdm_error *err)
{
    opening *o = context;
    tdm__transport_options options = {.rank = o->control->rank,
                                      .size = o->control->size,
                                      .host_of = o->host_of,
                                      .world = o->control->world,
                                      .security = o->options->security,
                                      .host_names = o->control->host_names,
                                      .here = o->control->here,
                                      .rank_0 = o->control->rank_0,
                                      .streams = o->options->streams,
                                      .spins = opening_has_cpus(o),
                                      .events = *events,
                                      .cancellation = o->cancellation,
                                      .refusal = {o->options->on_refused, o->options->user}};
    memcpy(options.key, o->control->key, sizeof(options.key));
    tdm_status status = opening_open_transport(o, &options, out, err);
    explicit_bzero(options.key, sizeof(options.key));
    return status;
}

/* ---- choices ---------------------------------------------------------------------------------- */

/* Distributes rank 0's table of choices to all ranks. */
static tdm_status opening_share_choices(const opening *o, tdm__choices *out, tdm_error *err)
{
    uint8_t *bytes = NULL;
    size_t count = 0;
    if (o->control->rank == 0) {
        tdm__choices own = {0};
        TDM_TRY(tdm__choices_find(o->options->tune, &own, err));
        count = tdm__choices_pack(&own, NULL);
        bytes = malloc(count ? count : 1);
        if (bytes) tdm__choices_pack(&own, bytes);
        tdm__choices_release(&own);
        if (!bytes) return tdm_fail_oom(err, "for a table of choices");
    }
    uint8_t **all;
    size_t *sizes;
    tdm_status status = o->control->ops->exchange(o->control, bytes, count, &all, &sizes, err);
    free(bytes);
    TDM_TRY(status);
    status = tdm__choices_unpack(all[0], sizes[0], out, err);
    free(all);
    free(sizes);
    return status;
}

/* ---- cancellation ----------------------------------------------------------------------------- */

/* Exchanges fail by themselves when a rank dies; all other waits poll this function. */
static bool opening_is_cancelled(void *user)
{
    const opening *o = user;
    return o->control->ops->has_failed(o->control, NULL) ||
           (o->options->should_give_up && o->options->should_give_up(o->options->user));
}

/* ---- opening ---------------------------------------------------------------------------------- */

/* The options' texts, owned; but for the secret, which is needed no longer than this call. */
static tdm_status options_copy_texts(tdm_comm_options *options, tdm_arena **out, tdm_error *err)
{
    tdm_arena *arena = tdm_arena_create("options of a comm");
    const char **texts[] = {&options->transport,
                            &options->rendezvous,
                            &options->job,
                            &options->trace,
                            &options->tune,
                            &options->host,
                            &options->security.certificate,
                            &options->security.private_key,
                            &options->security.authority};
    bool whole = arena != NULL;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]) && whole; i++)
        if (*texts[i]) {
            *texts[i] = tdm_arena_strdup(arena, *texts[i]);
            whole = *texts[i] != NULL;
        }
    if (!whole) {
        tdm_arena_destroy(arena);
        return tdm_fail_oom(err, "for the options of a comm");
    }
    *out = arena;
    return TDM_OK;
}

/* Everything that precedes the comm itself. On failure the caller closes the control. */
static tdm_status opening_prepare(opening *o, tdm__choices *choices, tdm_error *err)
{
    size_t bytes = (size_t)o->control->size * sizeof(int);
    o->host_of = malloc(bytes);
    int *ranks = malloc(bytes);
    tdm_status status = TDM_OK;
    if (!o->host_of || !ranks) {
        status = tdm_fail_oom(err, "for the ranks of a world");
    } else {
        memcpy(o->host_of, o->control->host_of, bytes);
        status = opening_choose_transport(o, err);
    }
    if (status == TDM_OK) status = opening_open_host(o, ranks, err);
    free(ranks);
    if (status == TDM_OK) status = opening_share_choices(o, choices, err);
    if (status == TDM_OK) return TDM_OK;
    if (o->host) tdm__host_destroy(o->host);
    free(o->host_of);
    return status;
}

tdm_status tdm_comm_open(const tdm_comm_options *given, tdm_comm **out, tdm_error *err)
{
    tdm_comm_options options;
    tdm_arena *texts = NULL;
    tdm_comm_options none = {0};
    TDM_TRY(tdm__options_resolve(given ? given : &none, &options, err));
    TDM_TRY(options_copy_texts(&options, &texts, err));
    opening o = {.options = &options};
    o.cancellation = (tdm__cancellation){opening_is_cancelled, &o};
    tdm__choices choices = {0};
    tdm_status status = tdm__control_open(&options, &o.control, err);
    if (status == TDM_OK) {
        tdm_error error = {0};
        status = opening_prepare(&o, &choices, &error);
        if (status != TDM_OK) {
            tdm__control_explain(o.control, &error);
            status = error.status;
            if (err) *err = error;
            o.control->ops->broken(o.control, TDM__ALL_GROUPS, TDM_ERR_PEER_FAILED, error.message);
            o.control->ops->close(o.control);
        }
    }
    if (status == TDM_OK) {
        tdm__comm_parts parts = {.control = o.control,
                                 .make = opening_make_transport,
                                 .context = &o,
                                 .host = o.host,
                                 .host_of = o.host_of,
                                 .shares_memory = o.near != NULL,
                                 .choices = choices,
                                 .cancellation = o.cancellation};
        status = tdm__comm_assemble(&options, &parts, out, err);
    }
    if (status != TDM_OK) {
        tdm_arena_destroy(texts);
        return status;
    }
    o.control->cancellation = (tdm__cancellation){0};
    (*out)->options.should_give_up = NULL; /* not used after opening */
    (*out)->options.on_listen = NULL;
    (*out)->options.secret = NULL;
    (*out)->options.on_refused = NULL;
    (*out)->texts = texts;
    return TDM_OK;
}
