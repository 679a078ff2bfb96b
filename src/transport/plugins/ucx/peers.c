/*
 * peers.c: endpoints of UCX: made, lost, forgotten, closed.
 *
 * A peer has `streams` endpoints, each a connection of its own; messages go over them in turn. All are
 * in UCX's mode for peer failure, so a connection that ends calls on_error, ends the requests of that
 * endpoint, and is told to the engine once. forget() closes a peer's endpoints by force, which ends
 * whatever was under way with it, and waits for that, for a bounded time.
 *
 * In worlds of moderate size all ranks connect with each other when the world is made, and wait until a
 * hello has come over every connection; in larger ones a connection is made when it is first used. (So
 * a firewall is found out at once; and UCX 1.13 may stop the program when a peer dies while messages
 * wait for its connection to be made.)
 *
 * Who leaves says good-bye over each connection and waits for the answers, so that all that it has sent
 * has come; a flush would not do, for UCX 1.13 does not survive all of its own over TCP. A peer that has
 * said good-bye is not lost when its connections end: what becomes of calls that need it is decided by
 * the news of the control connection.
 */
#include "transport/plugins/ucx/ucx.h"

#include <poll.h>
#include <stdlib.h>

static const double max_close_s = 1.0; /* forget() and each half of leave() take this at most */
static const double hurry_s = 0.25;    /* for good-byes when the world is broken */
static const double max_meet_s = 20.0;
static const int max_eager_ranks = 128; /* larger worlds connect when they need to */

void tdm__ucx_lose(tdm__ucx_peer *peer, ucs_status_t why)
{
    if (peer->state != TDM__UCX_WELL) return;
    peer->state = TDM__UCX_LOST;
    peer->why = why;
    if (peer->loss_queued || peer->ucx->goodbye) return;
    peer->loss_queued = true;
    peer->next_lost = peer->ucx->lost;
    peer->ucx->lost = peer;
}

static void on_error(void *user, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    tdm__ucx_lose(user, status);
}

static ucs_status_t endpoint_make(tdm__ucx_peer *peer, ucp_ep_h *out)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const ucp_address_t *)peer->address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_error, .arg = peer},
    };
    return ucp_ep_create(peer->ucx->worker, &params, out);
}

ucp_ep_h tdm__ucx_endpoint(tdm__ucx_peer *peer)
{
    if (!peer->address) {
        tdm__ucx_lose(peer, UCS_ERR_UNREACHABLE);
        return NULL;
    }
    if (!peer->eps) peer->eps = calloc((size_t)peer->ucx->streams, sizeof(*peer->eps));
    if (!peer->eps) {
        tdm__ucx_lose(peer, UCS_ERR_NO_MEMORY);
        return NULL;
    }
    ucp_ep_h *ep = &peer->eps[peer->next_stream];
    peer->next_stream = (peer->next_stream + 1) % peer->ucx->streams;
    if (*ep) return *ep;
    ucs_status_t status = endpoint_make(peer, ep);
    if (status == UCS_OK) return *ep;
    *ep = NULL;
    tdm__ucx_lose(peer, status);
    return NULL;
}

static void on_own_request(void *request, ucs_status_t status, void *user)
{
    (void)status;
    tdm__ucx *u = user;
    u->awaited--;
    ucp_request_free(request);
}

/* Counts a request of our own for as long as it takes. */
static void await(tdm__ucx *u, ucs_status_ptr_t answer)
{
    if (answer && !UCS_PTR_IS_ERR(answer)) u->awaited++;
}

static const ucp_request_param_t own_request = {
    .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                    UCP_OP_ATTR_FIELD_FLAGS,
    .cb.send = on_own_request,
};

/* Begins to close all endpoints of a peer by force: whatever is under way with it ends. */
static void endpoints_close(tdm__ucx_peer *peer)
{
    ucp_request_param_t param = own_request;
    param.user_data = peer->ucx;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    for (int i = 0; peer->eps && i < peer->ucx->streams; i++) {
        ucp_ep_h ep = peer->eps[i];
        peer->eps[i] = NULL;
        if (ep) await(peer->ucx, ucp_ep_close_nbx(ep, &param));
    }
}

/* A turn, or a short sleep without the lock when there is nothing to do; false: the time is over. */
static bool turn_until(tdm__ucx *u, double end_s)
{
    if (tdm__ucx_turn(u) > 0) return true;
    pthread_mutex_unlock(&u->lock);
    struct pollfd fd = {.fd = u->event_fd, .events = POLLIN};
    poll(&fd, 1, 1);
    pthread_mutex_lock(&u->lock);
    return tdm_clock_s() < end_s;
}

/* Moves on until our own requests have ended and the peer (NULL: none) has nothing under way. */
static bool settle(tdm__ucx *u, const tdm__ucx_peer *peer)
{
    double end_s = tdm_clock_s() + max_close_s;
    while (u->awaited > 0 || (peer && peer->pending > 0))
        if (!turn_until(u, end_s)) return false;
    return true;
}

void tdm__ucx_forget(tdm__transport *transport, int peer)
{
    tdm__ucx *u = (tdm__ucx *)transport;
    tdm__ucx_peer *p = &u->peers[peer];
    tdm__ucx_called(u);
    pthread_mutex_lock(&u->lock);
    bool settled = true;
    if (p->state != TDM__UCX_FORGOTTEN) {
        p->state = TDM__UCX_FORGOTTEN;
        endpoints_close(p);
        settled = settle(u, p);
    }
    pthread_mutex_unlock(&u->lock);
    if (!settled)
        tdm_log(TDM_LOG_WARN, "comm", "UCX has not let go of rank %d within %g s", peer,
                max_close_s);
    tdm__ucx_deliver(u);
}

/* ---- cards ----------------------------------------------------------------------------------- */

static void send_card(tdm__ucx_peer *peer, int stream, unsigned id)
{
    tdm__ucx *u = peer->ucx;
    ucp_request_param_t param = own_request;
    param.user_data = u;
    param.flags = UCP_AM_SEND_FLAG_EAGER;
    if (peer->eps && peer->eps[stream])
        await(u,
              ucp_am_send_nbx(peer->eps[stream], id, &u->card, sizeof(u->card), NULL, 0, &param));
}

void tdm__ucx_answer(tdm__ucx *u)
{
    for (int i = 0; i < u->size && u->owed > 0; i++)
        for (tdm__ucx_peer *peer = &u->peers[i]; peer->owed > 0; u->owed--)
            send_card(peer, --peer->owed, TDM__UCX_GODSPEED);
}

/* The first peer that has not said hello over all its streams; -1: none. */
static int not_met(const tdm__ucx *u)
{
    for (int i = 0; i < u->size; i++)
        if (i != u->rank && u->peers[i].address && u->peers[i].hellos < u->streams) return i;
    return -1;
}

static tdm_status meet(tdm__ucx *u, tdm_error *err)
{
    for (int i = 0; i < u->size; i++) {
        tdm__ucx_peer *peer = &u->peers[i];
        if (i == u->rank || !peer->address) continue;
        for (int k = 0; k < u->streams; k++) tdm__ucx_endpoint(peer);
        for (int k = 0; k < u->streams; k++) send_card(peer, k, TDM__UCX_HELLO);
    }
    double end_s = tdm_clock_s() + max_meet_s;
    for (int i; (i = not_met(u)) >= 0;) {
        bool in_time = turn_until(u, end_s);
        if (tdm__cancellation_is_due(&u->cancellation))
            return tdm_fail(err, TDM_ERR_PEER_FAILED,
                            "ucx: rank %d no longer waits for a connection with rank %d", u->rank,
                            i);
        if (u->peers[i].state == TDM__UCX_LOST)
            return tdm_fail(err, TDM_ERR_PEER_FAILED,
                            "ucx: no connection with rank %d: %s; UCX_NET_DEVICES names the "
                            "network devices to use",
                            i, ucs_status_string(u->peers[i].why));
        if (!in_time)
            return tdm_fail(err, TDM_ERR_PEER_TIMEOUT,
                            "ucx: no connection with rank %d within %g s; is there a firewall "
                            "between the hosts? UCX_TCP_PORT_RANGE and UCX_NET_DEVICES say which "
                            "ports and devices to use",
                            i, max_meet_s);
    }
    return TDM_OK;
}

tdm_status tdm__ucx_meet(tdm__ucx *u, tdm_error *err)
{
    if (u->size > max_eager_ranks) return TDM_OK;
    pthread_mutex_lock(&u->lock);
    tdm_status status = meet(u, err);
    u->unmet = status != TDM_OK;
    pthread_mutex_unlock(&u->lock);
    return status;
}

/* Whether a peer that is well has not answered all our good-byes. */
static bool awaits_answer(const tdm__ucx *u)
{
    for (int i = 0; i < u->size; i++) {
        const tdm__ucx_peer *p = &u->peers[i];
        int said = 0;
        for (int k = 0; p->eps && k < u->streams; k++) said += p->eps[k] != NULL;
        if (p->state == TDM__UCX_WELL && p->godspeeds < said) return true;
    }
    return false;
}

void tdm__ucx_leave(tdm__ucx *u)
{
    pthread_mutex_lock(&u->lock);
    u->goodbye = true;
    for (int i = 0; i < u->size; i++)
        for (int k = 0; k < u->streams && u->peers[i].state == TDM__UCX_WELL; k++)
            send_card(&u->peers[i], k, TDM__UCX_GOODBYE);
    bool answered = true;
    double end_s = tdm_clock_s() + (u->hurried ? hurry_s : max_close_s);
    while (answered && awaits_answer(u)) answered = turn_until(u, end_s);
    for (int i = 0; i < u->size; i++) endpoints_close(&u->peers[i]);
    bool closed = settle(u, NULL);
    pthread_mutex_unlock(&u->lock);
    if ((!answered && !u->hurried) || !closed)
        tdm_log(TDM_LOG_WARN, "comm", "not all peers have answered this rank's good-bye");
}
