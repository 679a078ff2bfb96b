/*
 * alone.c: the transport of a world of one rank: it sends nothing, but its wait can be woken.
 */
#include "transport/alone.h"
#include "base/base.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef struct alone {
    tdm__transport base;
    int bell;
} alone;

static bool alone_usable(char why[160], char library[TDM_LIBRARY_BYTES])
{
    why[0] = library[0] = 0;
    return true;
}

static void alone_destroy(tdm__transport *transport)
{
    alone *a = (alone *)transport;
    close(a->bell);
    free(a);
}

static int alone_progress(tdm__transport *transport)
{
    (void)transport;
    return 0;
}

static void alone_forget(tdm__transport *transport, int peer)
{
    (void)transport;
    (void)peer;
}

static void alone_wait(tdm__transport *transport, double timeout_s)
{
    alone *a = (alone *)transport;
    struct pollfd fd = {.fd = a->bell, .events = POLLIN};
    double ms = timeout_s * 1e3;
    if (poll(&fd, 1, ms > 60e3 ? 60000 : (int)ms + 1) > 0) {
        uint64_t count;
        (void)!read(a->bell, &count, sizeof(count));
    }
}

static void alone_wake(tdm__transport *transport)
{
    alone *a = (alone *)transport;
    int saved = errno;
    (void)!write(a->bell, &(uint64_t){1}, sizeof(uint64_t));
    errno = saved;
}

static const tdm__transport_ops ops = {
    .name = "alone",
    .about = "a world of one rank",
    .usable = alone_usable,
    .destroy = alone_destroy,
    .forget = alone_forget,
    .progress = alone_progress,
    .wait = alone_wait,
    .wake = alone_wake,
};

tdm_status tdm__alone_create(tdm__transport **out, tdm_error *err)
{
    alone *a = calloc(1, sizeof(*a));
    if (!a) return tdm_fail_oom(err, "for a transport");
    a->base.ops = &ops;
    a->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (a->bell < 0) {
        free(a);
        return tdm_fail(err, TDM_ERR_SYSTEM, "out of file descriptors for a transport");
    }
    *out = &a->base;
    return TDM_OK;
}
