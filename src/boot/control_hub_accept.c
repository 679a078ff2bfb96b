/*
 * control_hub_accept.c: admission of connections to the hub.
 *
 * The hub sends HELLO to each connection, which has a few seconds to prove that it knows the secret and to
 * JOIN. A connection with a wrong proof learns only that. A rank whose facts differ (version, job, epoch and
 * so on) learns which, with both values; the hub logs it as well. A connection that does not speak the
 * protocol is closed; that is logged once. If too many connections are unproved, the oldest one is closed:
 * real ranks answer at once and try again.
 *
 * States of a connection (tdm__hub_peer_state):
 *
 *     UNPROVED ----- PROVE is right ----> PROVED ----- JOIN accepted ----> MEMBER
 *        |  |                              |  |                             |  |
 *        |  | refused                      |  | refused                     |  | BYE, or the hub ends
 *        |  v                              |  v                             |  v
 *        |  +------------------------------|--+-----------------------------|--+--> LEAVING
 *        |                                 |                                |         |  all sent
 *        | invalid frame, closed,          | invalid frame, closed,         | lost    v
 *        | too late, or place needed       | or too late                    |       SHUT
 *        v                                 v                                v         |
 *      OVER: freed at the end of the turn <---------- closed, or LEAVING_S is over ---+
 *
 *     -> UNPROVED              tdm__hub_admit
 *     UNPROVED -> PROVED       peer_check_proof
 *     PROVED -> MEMBER         tdm__hub_handle_joining
 *     -> LEAVING               tdm__hub_peer_leave, called by peer_refuse, member_left and hub_send_end
 *     LEAVING -> SHUT          peer_flush
 *     -> OVER                  tdm__hub_peer_drop, called by tdm__hub_lost for a member
 */
#include "base/timing.h"
#include "boot/control_hub.h"
#include "net/socket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    MAX_NON_MEMBERS = 64,
    MAX_ACCEPT = 16,
    ACCEPT_STARTED = 32,
    MAX_LOGGED = 100,
    MAX_PROTOCOL = 1000
};
#define PROTOCOL_TEXT                                                                              \
    "it uses protocol %u of the control connection, rank 0 protocol %d: run the same version of "  \
    "tandem everywhere"

tdm__hub_peer *tdm__hub_admit(tdm__hub *hub, int fd, const char *address)
{
    tdm__hub_peer *peer = calloc(1, sizeof(*peer));
    if (!peer) return NULL;
    tdm__frame hello = {.type = TDM__FRAME_HELLO, .protocol = TDM__WIRE_PROTOCOL};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};
    if (tdm_os_random(peer->nonce, sizeof(peer->nonce), NULL) != TDM_OK ||
        epoll_ctl(hub->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        free(peer);
        return NULL;
    }
    memcpy(hello.nonce, peer->nonce, sizeof(hello.nonce));
    hello.protection = peer->protection = tdm__protection_for(hub->facts.security, fd);
    tdm__channel_init(&peer->channel, fd, TDM__MAX_WIRE_PROVE);
    snprintf(peer->address, sizeof(peer->address), "%s", address);
    peer->until_s = tdm_clock_s() + TDM__TIMING_NET_PROOF_S;
    peer->next = hub->peers;
    hub->peers = peer;
    peer->rank = -1;
    hub->non_member_count++;
    tdm__hub_send(hub, peer, &hello);
    return peer;
}

static void hub_make_place(tdm__hub *hub)
{
    int missing = hub->state == TDM__HUB_STARTED ? 0 : hub->facts.size - hub->here_count;
    if (hub->non_member_count < MAX_NON_MEMBERS + missing) return;
    tdm__hub_peer *oldest = NULL; /* new connections are at the head of the list */
    for (tdm__hub_peer *at = hub->peers; at; at = at->next)
        if (at->rank < 0 && !at->is_own && at->state != TDM__HUB_PEER_PROVED &&
            at->state != TDM__HUB_PEER_OVER)
            oldest = at;
    if (oldest) tdm__hub_peer_drop(hub, oldest);
}

/* Refuses a connection. TDM_ERR_PEER_MISMATCH, after its proof: the rank does not fit, and another attempt
 * would not help. */
static void peer_refuse(tdm__hub *hub, tdm__hub_peer *peer, tdm_status status, const char *why)
{
    if (hub->refused_count < MAX_LOGGED)
        tdm_log(TDM_LOG_WARN, "comm", "refused a rank from %s: %s%s", peer->address, why,
                ++hub->refused_count < MAX_LOGGED ? "" : "; further ones are not logged");
    snprintf(hub->refused, sizeof(hub->refused), "a rank from %s was refused: %s", peer->address,
             why);
    tdm__frame frame = {.type = TDM__FRAME_REFUSED, .status = (uint32_t)status};
    snprintf(frame.text, sizeof(frame.text), "%s", why);
    tdm__hub_send(hub, peer, &frame);
    tdm__hub_peer_leave(hub, peer);
}

/* Stops accepting connections for a while. */
static void hub_pause_accepting(tdm__hub *hub)
{
    epoll_ctl(hub->epoll_fd, EPOLL_CTL_DEL, hub->listen_fd, NULL);
    hub->listen_again_s = tdm_clock_s() + TDM__TIMING_BOOT_ACCEPT_PAUSE_S;
}

void tdm__hub_accept(tdm__hub *hub)
{
    /* When all ranks have joined, no further connection is expected: a flood of them is accepted slowly and
     * waits in the kernel. */
    if (hub->state == TDM__HUB_STARTED && tdm_clock_s() > hub->accepted_until_s) {
        hub->accepted_until_s = tdm_clock_s() + TDM__TIMING_BOOT_ACCEPT_PAUSE_S;
        hub->accepted_count = 0;
    }
    for (int i = 0; i < MAX_ACCEPT; i++) {
        char address[96];
        int fd = tdm__socket_accept(hub->listen_fd, address, sizeof(address));
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
            snprintf(hub->refused, sizeof(hub->refused),
                     "rank 0 cannot accept another connection: %s; `ulimit -n` shows the limit on "
                     "open files",
                     strerror(errno));
            tdm_log(TDM_LOG_WARN, "comm", "%s", hub->refused);
            hub_pause_accepting(hub);
            return;
        }
        if (fd < 0) return; /* no more connections, or already closed */
        if (hub->state == TDM__HUB_STARTED && ++hub->accepted_count >= ACCEPT_STARTED) {
            hub_pause_accepting(hub);
            i = MAX_ACCEPT;
        }
        hub_make_place(hub);
        bool same_user = tdm__socket_same_user(fd);
        tdm__hub_peer *peer = tdm__hub_admit(hub, fd, address);
        if (!peer)
            close(fd);
        else if (!same_user)
            peer_refuse(hub, peer, TDM_ERR_PEER_REFUSED, "it belongs to another user");
    }
}

/* ---- checks ------------------------------------------------------------------------------------------ */

void tdm__hub_missing(const tdm__hub *hub, tdm_str *out)
{
    enum { MAX_NAMED = 20 };
    int missing = 0;
    for (int i = 0; i < hub->facts.size; i++) {
        if (hub->members[i].state == TDM__MEMBER_HERE) continue;
        if (missing++ >= MAX_NAMED) continue;
        tdm_str_addf(out, "%srank %d is missing%s", missing > 1 ? ", " : "", i,
                     hub->members[i].state == TDM__MEMBER_ENDED_EARLY
                         ? " (it joined, and ended before all ranks had joined)"
                         : "");
    }
    if (missing > MAX_NAMED) tdm_str_addf(out, " and %d more", missing - MAX_NAMED);
}

void tdm__hub_handle_invalid(tdm__hub *hub, tdm__hub_peer *peer)
{
    uint32_t protocol = 0;
    const tdm__channel *channel = &peer->channel;
    if (tdm__wire_protocol(channel->in + channel->in_first, channel->in_count, &protocol) &&
        protocol != TDM__WIRE_PROTOCOL && protocol < MAX_PROTOCOL) {
        char why[160];
        snprintf(why, sizeof(why), PROTOCOL_TEXT, protocol, TDM__WIRE_PROTOCOL);
        peer_refuse(hub, peer, TDM_ERR_PEER_REFUSED, why);
        return;
    }
    if (!hub->has_logged_invalid)
        tdm_log(TDM_LOG_WARN, "comm",
                "closed a connection from %s: it is not a rank of tandem; further ones are not "
                "logged",
                peer->address);
    hub->has_logged_invalid = true;
    tdm__hub_peer_drop(hub, peer);
}

/* Whether this rank can never join this world; `out` gets the reason. */
static bool join_is_mismatch(const tdm__hub *hub, const tdm__frame *join, char *out, size_t bytes)
{
    const tdm__facts *facts = &hub->facts;
    unsigned rank = join->rank;
    if (join->protocol != TDM__WIRE_PROTOCOL)
        snprintf(out, bytes, PROTOCOL_TEXT, join->protocol, TDM__WIRE_PROTOCOL);
    else if (strcmp(join->version, TDM_VERSION) != 0)
        snprintf(out, bytes, "rank %u runs tandem %s, rank 0 runs %s", rank, join->version,
                 TDM_VERSION);
    else if (strcmp(join->job, facts->job) != 0)
        snprintf(out, bytes, "rank %u has job \"%.128s\", rank 0 has job \"%.128s\"", rank,
                 join->job, facts->job);
    else
        return false;
    return true;
}

/* Whether this rank cannot join this world now, but perhaps later; `out` gets the reason. */
static bool join_has_no_place(const tdm__hub *hub, const tdm__hub_peer *peer,
                              const tdm__frame *join, char *out, size_t bytes)
{
    const tdm__facts *facts = &hub->facts;
    unsigned rank = join->rank;
    if (join->size != (uint32_t)facts->size)
        snprintf(out, bytes, "rank %u expects a world of %u ranks, rank 0 one of %d", rank,
                 join->size, facts->size);
    else if (join->epoch != facts->epoch)
        snprintf(out, bytes, "rank %u is in epoch %u, rank 0 in epoch %u", rank, join->epoch,
                 facts->epoch);
    else if (rank >= (uint32_t)facts->size)
        snprintf(out, bytes, "rank %u exceeds a world of %d ranks", rank, facts->size);
    else if (hub->state == TDM__HUB_GAVE_UP)
        snprintf(out, bytes, "rank %u connected after rank 0 had stopped waiting", rank);
    else if (hub->members[rank].state >= TDM__MEMBER_HERE || (rank == 0) != peer->is_own)
        snprintf(out, bytes, "rank %u has already joined: process %llu on %s", rank,
                 (unsigned long long)(rank == 0 ? (uint64_t)getpid() : hub->members[rank].pid),
                 rank == 0 ? facts->host_name : hub->members[rank].host_name);
    else
        return false;
    return true;
}

/* Checks the first frame of a connection: the proof that it knows the secret. Refuses it otherwise. */
static void peer_check_proof(tdm__hub *hub, tdm__hub_peer *peer, const tdm__frame *prove)
{
    char why[200] = "rank 0 has no memory left";
    uint8_t proof[TDM_SHA256_BYTES];
    tdm__frame accept = {.type = TDM__FRAME_ACCEPT};
    bool is_right = false;
    if (prove->protocol != TDM__WIRE_PROTOCOL)
        snprintf(why, sizeof(why), PROTOCOL_TEXT, prove->protocol, TDM__WIRE_PROTOCOL);
    else if (prove->protection != peer->protection)
        snprintf(why, sizeof(why),
                 "it wants the connection protected by %s, rank 0 by %s: set comm.security (or "
                 "TANDEM_SECURITY) to the same on all hosts",
                 tdm__protection_name(prove->protection), tdm__protection_name(peer->protection));
    else if (tdm__prove(TDM__PROVER_RANK, hub->key, prove, peer->nonce, proof) != TDM_OK)
        is_right = false;
    else if (!tdm__proof_equal(proof, prove->mac))
        snprintf(why, sizeof(why), "it has another secret");
    else
        is_right = tdm__prove(TDM__PROVER_HUB, hub->key, prove, peer->nonce, accept.mac) == TDM_OK;
    if (!is_right) {
        peer_refuse(hub, peer, TDM_ERR_PEER_REFUSED, why);
        return;
    }
    peer->state = TDM__HUB_PEER_PROVED;
    peer->channel.limit = TDM__MAX_WIRE_JOIN;
    tdm__hub_send(hub, peer, &accept);
    /* ACCEPT is sent unencrypted; everything after it is encrypted. */
    if (peer->state == TDM__HUB_PEER_OVER ||
        tdm__channel_flush(&peer->channel) != TDM__CHANNEL_OK ||
        tdm__channel_has_output(&peer->channel) ||
        tdm__channel_secure(&peer->channel, &hub->facts, hub->key, prove, peer->nonce, true,
                            NULL) != TDM_OK)
        tdm__hub_peer_drop(hub, peer);
}

/* With certificates: whether that of the rank names neither its host nor its address. */
static bool peer_is_misnamed(const tdm__hub_peer *peer, const tdm__frame *join, char *out,
                             size_t bytes)
{
    const tdm__tls *tls = peer->channel.stream.tls;
    char address[96], subject[160];
    tdm__socket_peer_address(peer->channel.stream.fd, address, sizeof(address));
    if (!tls || tdm__tls_is_named(tls, address) || tdm__tls_is_named(tls, join->host_name))
        return false;
    tdm__tls_subject(tls, subject, sizeof(subject));
    snprintf(
        out, bytes,
        "rank %u on host %s has a certificate of another name (%s); its subject alternative names "
        "must have the host's name or the address %s",
        join->rank, join->host_name, subject, address);
    return true;
}

void tdm__hub_handle_joining(tdm__hub *hub, tdm__hub_peer *peer, const tdm__frame *frame)
{
    if (peer->state == TDM__HUB_PEER_UNPROVED && frame->type == TDM__FRAME_PROVE) {
        peer_check_proof(hub, peer, frame);
        return;
    }
    if (peer->state != TDM__HUB_PEER_PROVED || frame->type != TDM__FRAME_JOIN) {
        tdm__hub_handle_invalid(hub, peer);
        return;
    }
    char why[512];
    bool is_final = join_is_mismatch(hub, frame, why, sizeof(why)) ||
                    peer_is_misnamed(peer, frame, why, sizeof(why));
    if (is_final || join_has_no_place(hub, peer, frame, why, sizeof(why))) {
        peer_refuse(hub, peer, is_final ? TDM_ERR_PEER_MISMATCH : TDM_ERR_PEER_REFUSED, why);
        return;
    }
    tdm__frame welcome = {.type = TDM__FRAME_WELCOME, .world = hub->world};
    memcpy(welcome.nonce, hub->nonce, sizeof(welcome.nonce));
    tdm__member *member = &hub->members[frame->rank];
    *member = (tdm__member){.state = TDM__MEMBER_HERE,
                            .peer = peer,
                            .pid = frame->pid,
                            .heard_s = tdm_clock_s(),
                            .waits_for = -1};
    memcpy(member->host, frame->host, sizeof(member->host));
    memcpy(member->host_name, frame->host_name, sizeof(member->host_name));
    peer->state = TDM__HUB_PEER_MEMBER;
    peer->rank = (int)frame->rank;
    peer->channel.limit = TDM__MAX_WIRE_BLOCK + 64;
    hub->non_member_count--;
    hub->here_count++;
    tdm__hub_send(hub, peer, &welcome);
    if (hub->here_count == hub->facts.size) tdm__hub_start(hub);
}

/* ---- start of the world ------------------------------------------------------------------------------- */

void tdm__hub_start(tdm__hub *hub)
{
    int size = hub->facts.size;
    tdm_str entries = TDM_STR_INIT;
    int *hosts = calloc((size_t)size, sizeof(*hosts)); /* the lowest rank of each host */
    int host_count = 0;
    for (int i = 0; hosts && i < size; i++) {
        const tdm__member *member = &hub->members[i];
        int host = 0;
        while (host < host_count &&
               memcmp(hub->members[hosts[host]].host, member->host, sizeof(member->host)) != 0)
            host++;
        if (host == host_count) hosts[host_count++] = i;
        tdm__entry entry = {.host = (uint32_t)host, .pid = member->pid};
        memcpy(entry.name, member->host_name, sizeof(entry.name));
        tdm__wire_entry_write(&entry, &entries);
    }
    tdm__frame frame = {.type = TDM__FRAME_START,
                        .count = (uint32_t)size,
                        .bytes = (const uint8_t *)entries.data,
                        .byte_count = entries.length};
    tdm__blob *blob = hosts && tdm_str_ok(&entries) ? tdm__blob_frame(&frame) : NULL;
    double now_s = tdm_clock_s();
    hub->state = TDM__HUB_STARTED;
    for (int i = 0; i < size; i++) {
        tdm__member *member = &hub->members[i];
        member->heard_s = now_s;
        if (member->state == TDM__MEMBER_HERE) tdm__hub_send_blob(hub, member->peer, blob);
    }
    tdm__blob_release(blob);
    tdm_str_release(&entries);
    free(hosts);
}
