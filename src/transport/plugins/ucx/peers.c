/*
 * peers.c: UCX endpoints: creation, loss, forgetting, closing.
 *
 * A peer has `streams` endpoints, each with its own connection; messages use them in turn. All use
 * UCX's peer failure mode: a connection that ends calls on_error, ends the requests of that
 * endpoint, and is reported to the engine once. forget() closes a peer's endpoints by force, which
 * ends all operations with it, and waits for that, for a bounded time.
 *
 * In worlds of moderate size all ranks connect with each other when the world is opened, and wait
 * until a hello has arrived over every connection; in larger ones a connection is made on first
 * use. (So a firewall is noticed at once; and UCX 1.13 may abort the program if a peer dies while
 * messages wait for its connection.)
 *
 * A rank that leaves sends a good-bye over each connection and waits for the answers, so that
 * everything it has sent has arrived; a flush is not an option, because UCX 1.13 can crash in its
 * own flushes over TCP. A peer that has sent a good-bye is not lost when its connections end: the
 * control connection decides what happens to calls that need it.
 */
#include "base/timing.h"
#include "transport/plugins/ucx/ucx.h"

#include <poll.h>
#include <stdlib.h>

static const int max_eager_ranks = 128; /* larger worlds connect on first use */

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

static void endpoint_on_error(void *user, ucp_ep_h ep, ucs_status_t status)
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
        .err_handler = {.cb = endpoint_on_error, .arg = peer},
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

static void request_on_end(void *request, ucs_status_t status, void *user)
{
    (void)status;
    tdm__ucx *u = user;
    u->awaited--;
    ucp_request_free(request);
}

/* Counts a request of this side until it ends. */
static void request_await(tdm__ucx *u, ucs_status_ptr_t answer)
{
    if (answer && !UCS_PTR_IS_ERR(answer)) u->awaited++;
}

static const ucp_request_param_t own_request = {
    .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                    UCP_OP_ATTR_FIELD_FLAGS,
    .cb.send = request_on_end,
};

/* Starts to close all endpoints of a peer by force: all operations with it end. */
static void endpoints_close(tdm__ucx_peer *peer)
{
    ucp_request_param_t param = own_request;
    param.user_data = peer->ucx;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    for (int i = 0; peer->eps && i < peer->ucx->streams; i++) {
        ucp_ep_h ep = peer->eps[i];
        peer->eps[i] = NULL;
        if (ep) request_await(peer->ucx, ucp_ep_close_nbx(ep, &param));
    }
}

/* Makes progress, or sleeps shortly without the lock if there is nothing to do; false on timeout.
 * */
static bool ucx_progress_until(tdm__ucx *u, double end_s)
{
    if (tdm__ucx_turn(u) > 0) return true;
    pthread_mutex_unlock(&u->lock);
    struct pollfd fd = {.fd = u->event_fd, .events = POLLIN};
    poll(&fd, 1, 1);
    pthread_mutex_lock(&u->lock);
    return tdm_clock_s() < end_s;
}

/* Makes progress until our own requests have ended and the peer (NULL: none) has no operations. */
static bool ucx_settle(tdm__ucx *u, const tdm__ucx_peer *peer)
{
    double end_s = tdm_clock_s() + TDM__TIMING_TRANSPORT_LEAVE_S;
    while (u->awaited > 0 || (peer && peer->pending > 0))
        if (!ucx_progress_until(u, end_s)) return false;
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
        settled = ucx_settle(u, p);
    }
    pthread_mutex_unlock(&u->lock);
    if (!settled)
        tdm_log(TDM_LOG_WARN, "comm", "UCX did not close its connections to rank %d within %g s",
                peer, TDM__TIMING_TRANSPORT_LEAVE_S);
    tdm__ucx_deliver(u);
}

/* ---- hello and good-bye cards ---------------------------------------------------------------- */

static void peer_send_card(tdm__ucx_peer *peer, int stream, unsigned id)
{
    tdm__ucx *u = peer->ucx;
    ucp_request_param_t param = own_request;
    param.user_data = u;
    param.flags = UCP_AM_SEND_FLAG_EAGER;
    if (peer->eps && peer->eps[stream])
        request_await(
            u, ucp_am_send_nbx(peer->eps[stream], id, &u->card, sizeof(u->card), NULL, 0, &param));
}

void tdm__ucx_answer(tdm__ucx *u)
{
    for (int i = 0; i < u->size && u->owed > 0; i++)
        for (tdm__ucx_peer *peer = &u->peers[i]; peer->owed > 0; u->owed--)
            peer_send_card(peer, --peer->owed, TDM__UCX_GODSPEED);
}

/* The first peer whose hello has not arrived over all its streams; -1: none. */
static int ucx_first_unmet(const tdm__ucx *u)
{
    for (int i = 0; i < u->size; i++)
        if (i != u->rank && u->peers[i].address && u->peers[i].hellos < u->streams) return i;
    return -1;
}

static tdm_status ucx_meet(tdm__ucx *u, tdm_error *err)
{
    for (int i = 0; i < u->size; i++) {
        tdm__ucx_peer *peer = &u->peers[i];
        if (i == u->rank || !peer->address) continue;
        for (int k = 0; k < u->streams; k++) tdm__ucx_endpoint(peer);
        for (int k = 0; k < u->streams; k++) peer_send_card(peer, k, TDM__UCX_HELLO);
    }

    double end_s = tdm_clock_s() + TDM__TIMING_TRANSPORT_MEET_S;
    for (int i; (i = ucx_first_unmet(u)) >= 0;) {
        bool in_time = ucx_progress_until(u, end_s);
        if (tdm__cancellation_is_due(&u->cancellation))
            return tdm_fail(err, TDM_ERR_PEER_FAILED,
                            "ucx: rank %d stopped waiting for a connection to rank %d", u->rank, i);
        if (u->peers[i].state == TDM__UCX_LOST)
            return tdm_fail(err, TDM_ERR_PEER_FAILED,
                            "ucx: cannot connect to rank %d: %s; set UCX_NET_DEVICES to the "
                            "network devices to use",
                            i, ucs_status_string(u->peers[i].why));
        if (!in_time)
            return tdm_fail(
                err, TDM_ERR_PEER_TIMEOUT,
                "ucx: no connection to rank %d within %g s; check for a firewall "
                "between the hosts, and set UCX_TCP_PORT_RANGE and UCX_NET_DEVICES to the "
                "ports and devices to use",
                i, TDM__TIMING_TRANSPORT_MEET_S);
    }
    return TDM_OK;
}

tdm_status tdm__ucx_meet(tdm__ucx *u, tdm_error *err)
{
    if (u->size > max_eager_ranks) return TDM_OK;
    pthread_mutex_lock(&u->lock);
    tdm_status status = ucx_meet(u, err);
    u->unmet = status != TDM_OK;
    pthread_mutex_unlock(&u->lock);
    return status;
}

/* Whether a healthy peer has not answered all our good-byes. */
static bool ucx_awaits_answer(const tdm__ucx *u)
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
            peer_send_card(&u->peers[i], k, TDM__UCX_GOODBYE);
    bool answered = true;
    double end_s = tdm_clock_s() +
                   (u->is_broken ? TDM__TIMING_UCX_LEAVE_BROKEN_S : TDM__TIMING_TRANSPORT_LEAVE_S);
    while (answered && ucx_awaits_answer(u)) answered = ucx_progress_until(u, end_s);
    for (int i = 0; i < u->size; i++) endpoints_close(&u->peers[i]);
    bool closed = ucx_settle(u, NULL);
    pthread_mutex_unlock(&u->lock);
    if ((!answered && !u->is_broken) || !closed)
        tdm_log(TDM_LOG_WARN, "comm", "not all peers answered this rank's good-bye");
}
