/*
 * boot.c: connects this rank with its world.
 *
 * Options and environment are resolved. Rank 0 creates the hub and joins it through a socket pair within the
 * process, by the same protocol as all other ranks; the others connect to it. If a part fails, everything is
 * undone in reverse, and ranks that wait for rank 0 are told.
 */
#include "boot/boot.h"
#include "net/socket.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static tdm_status facts_init(const tdm_comm_options *options, tdm__facts *out, tdm_error *err)
{
    *out = (tdm__facts){.rank = options->rank,
                        .size = options->size,
                        .epoch = options->epoch,
                        .join_s = options->join_s,
                        .deadline_s = options->deadline_s,
                        .silence_s = tdm__silence_s(),
                        .security = options->security.mode,
                        .cancellation = {options->should_give_up, options->user},
                        .refusal = {options->on_refused, options->user}};
    const char *job = options->job ? options->job : "";
    if (strlen(job) >= sizeof(out->job))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "the job name has %zu bytes, more than %zu: use a hash of it", strlen(job),
                        sizeof(out->job) - 1);
    /* As the other side reads it, so that both compare the same text. */
    tdm__wire_clean((const uint8_t *)job, strlen(job), out->job);
    return tdm__host_identity(options->host, out->host, out->host_name, err);
}

/* Raises the limit on open files: a hub has a connection for each rank. */
static void hub_raise_file_limit(int size)
{
    struct rlimit limit;
    rlim_t need = (rlim_t)size + 256;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= need) return;
    limit.rlim_cur = limit.rlim_max < need ? limit.rlim_max : need;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* Rank 0: creates the hub, and one end of a connection to it. */
static tdm_status hub_open(const tdm_comm_options *asked, const tdm__facts *facts,
                           tdm__rendezvous *meeting, tdm__hub **out, int *out_fd,
                           tdm__endpoint *out_address, tdm_error *err)
{
    int pair[2];
    tdm__hub_options options = {.facts = facts, .key = "", .listen_fd = -1};
    TDM_TRY(tdm_os_random(&options.world, sizeof(options.world), err));
    TDM_TRY(tdm_os_random(options.nonce, sizeof(options.nonce), err));
    hub_raise_file_limit(facts->size);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0)
        return tdm_fail(err, TDM_ERR_SYSTEM, "cannot create a socket pair");
    options.inner_fd = pair[0];
    tdm_status status = TDM_OK;
    if (meeting) {
        status = tdm__rendezvous_listen(meeting, tdm_clock_s() + facts->join_s, &options.listen_fd,
                                        err);
        options.key = meeting->key;
        if (status == TDM_OK) *out_address = tdm__socket_here(options.listen_fd);
    }
    if (status != TDM_OK) {
        close(pair[0]);
        close(pair[1]);
        return status;
    }
    status = tdm__hub_create(&options, out, err);
    if (status != TDM_OK) {
        close(pair[1]);
        if (meeting) tdm__rendezvous_remove(meeting);
        return status;
    }
    *out_fd = pair[1];
    if (meeting && asked->on_listen) asked->on_listen(asked->user, meeting->text);
    return TDM_OK;
}

static tdm_status world_join(const tdm_comm_options *asked, const tdm__facts *facts,
                             tdm__rendezvous *meeting, tdm__control **out, tdm_error *err)
{
    tdm__hub *hub = NULL;
    int fd = -1;
    tdm__endpoint listens = {0};
    if (facts->rank == 0) TDM_TRY(hub_open(asked, facts, meeting, &hub, &fd, &listens, err));
    tdm__joined joined;
    tdm_status status = tdm__join(facts, meeting, fd, &joined, err);
    if (status == TDM_OK) {
        if (hub) joined.here = joined.rank_0 = listens;
        tdm__control_parts parts = {
            .facts = facts, .joined = &joined, .hub = hub, .meeting = hub ? meeting : NULL};
        status = tdm__control_create(&parts, out, err);
    }
    explicit_bzero(joined.key, sizeof(joined.key));
    if (status != TDM_OK && hub) {
        tdm__hub_destroy(hub);
        if (meeting) tdm__rendezvous_remove(meeting);
    }
    return status;
}

tdm_status tdm__control_open(const tdm_comm_options *options, tdm__control **out, tdm_error *err)
{
    tdm_comm_options resolved;
    tdm__facts facts;
    char guess[TDM__MAX_RENDEZVOUS];
    TDM_TRY(tdm__options_resolve(options, &resolved, err));
    TDM_TRY(facts_init(&resolved, &facts, err));
    if (!resolved.rendezvous && facts.size == 1)
        return world_join(&resolved, &facts, NULL, out, err);
    if (!resolved.rendezvous) {
        TDM_TRY(tdm__rendezvous_guess(&resolved, guess, err));
        resolved.rendezvous = guess;
    }
    tdm__rendezvous *meeting = malloc(sizeof(*meeting));
    if (!meeting) return tdm_fail_oom(err, "to join the world");
    tdm_status status = tdm__rendezvous_init(meeting, resolved.rendezvous, resolved.secret, err);
    meeting->cancellation = facts.cancellation;
    if (status == TDM_OK && tdm__rendezvous_is_open(meeting) &&
        (facts.rank != 0 || (facts.size > 1 && !resolved.on_listen)))
        status = tdm_fail(err, TDM_ERR_INVALID,
                          "rendezvous \"%s\": port 0, or a UNIX socket without a name, is for "
                          "rank 0 only, which must publish the chosen one; set a port from 1 to "
                          "65535, or a name",
                          resolved.rendezvous);
    if (status == TDM_OK && resolved.security.mode != TDM_SECURITY_OFF)
        status = tdm__tls_context_create(&resolved.security, &facts.tls, err);
    if (status == TDM_OK) status = world_join(&resolved, &facts, meeting, out, err);
    if (status != TDM_OK) tdm__tls_context_destroy(facts.tls); /* otherwise the control owns it */
    tdm__rendezvous_wipe(meeting);
    free(meeting);
    return status;
}
