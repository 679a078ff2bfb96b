/*
 * host_bell.c: sleeping until another rank of the host rings the bell.
 *
 * The order of the steps makes it correct. A waiter arms its bell, looks for work, and sleeps if the bell
 * has not been rung since. A ringer makes its change, then reads the bell. With a full fence between the
 * two steps on both sides, either the waiter sees the change or the ringer sees the flag. Count and
 * flags are one word, which the futex compares as well, so a ring between the check and the sleep is
 * never lost. An unarmed bell costs the ringer one fence and one load.
 *
 * One thread at a time may wait with file descriptors; any number without. Any process can send to the
 * datagram socket: a wait then returns early, which callers must expect anyway.
 */
#include "base/base.h"
#include "shm/host_inner.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { FLAGS = TDM__BELL_ONE - 1, MAX_FDS = 16, MAX_DRAIN = 64 };

static long futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *until)
{
    return syscall(SYS_futex, word, op, value, until, NULL, FUTEX_BITSET_MATCH_ANY);
}

tdm_status tdm__host_open_bell(tdm__host *host, tdm_error *err)
{
    if (host->bell_fd >= 0) return TDM_OK;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return tdm_fail(err, TDM_ERR_SYSTEM, "cannot create a socket for wake-ups: %s",
                        strerror(errno));
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    tdm__host_cell *cell = &host->cells[host->index];
    size_t bytes = tdm__host_draw_name("bell", cell->name);
    memcpy(to.sun_path + 1, cell->name, bytes);
    if (bind(fd, (const struct sockaddr *)&to,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes)) != 0) {
        tdm_status status = tdm_fail(err, TDM_ERR_SYSTEM, "cannot name the socket for wake-ups: %s",
                                     strerror(errno));
        close(fd);
        return status;
    }
    host->bell_fd = fd;
    atomic_store_explicit(&cell->name_bytes, (uint32_t)bytes, memory_order_release);
    return TDM_OK;
}

/* Rings the bell of a rank that sleeps in poll(). Failures are ignored: a full queue is readable, and a
 * dead rank does not wait. Uses only async-signal-safe calls. */
static void bell_send_datagram(tdm__host *host, const tdm__host_cell *cell)
{
    uint32_t bytes = atomic_load_explicit(&cell->name_bytes, memory_order_acquire);
    if (bytes == 0 || bytes > TDM__MAX_HOST_NAME) return;
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    memcpy(to.sun_path + 1, cell->name, bytes);
    int saved = errno;
    (void)sendto(host->ring_fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)&to,
                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes));
    errno = saved;
}

void tdm__host_ring(tdm__host *host, int index)
{
    tdm__host_cell *cell = &host->cells[index];
    tdm__fence_on(&cell->bell);
    uint32_t word = atomic_load_explicit(&cell->bell, memory_order_relaxed);
    do {
        if (!(word & FLAGS)) return;
    } while (!atomic_compare_exchange_weak(&cell->bell, &word,
                                           (word & ~(uint32_t)FLAGS) + TDM__BELL_ONE));
    if (word & TDM__BELL_SLEEPING) futex(&cell->bell, FUTEX_WAKE, INT_MAX, NULL);
    if (word & TDM__BELL_POLLING) bell_send_datagram(host, cell);
}

uint32_t tdm__host_bell(const tdm__host *host)
{
    _Atomic uint32_t *bell = &host->cells[host->index].bell;
    uint32_t word = atomic_fetch_or(bell, TDM__BELL_ARMED);
    tdm__fence_on(bell);
    return word & ~(uint32_t)FLAGS;
}

bool tdm__host_rung(const tdm__host *host, uint32_t bell)
{
    uint32_t word = atomic_load_explicit(&host->cells[host->index].bell, memory_order_acquire);
    return (word & ~(uint32_t)FLAGS) != bell;
}

/* Sets a flag unless the bell has been rung; returns the word to sleep on. */
static bool bell_set_flag(tdm__host *host, uint32_t bell, uint32_t flag, uint32_t *out_word)
{
    _Atomic uint32_t *at = &host->cells[host->index].bell;
    uint32_t word = atomic_load_explicit(at, memory_order_acquire);
    do {
        if ((word & ~(uint32_t)FLAGS) != bell) return false;
        *out_word = word | flag;
    } while (!atomic_compare_exchange_weak(at, &word, *out_word));
    return true;
}

static void bell_wait_futex(tdm__host *host, uint32_t bell, double until_s)
{
    struct timespec until = tdm_clock_timespec(until_s);
    uint32_t word;
    while (bell_set_flag(host, bell, TDM__BELL_SLEEPING, &word)) {
        long failed = futex(&host->cells[host->index].bell, FUTEX_WAIT_BITSET, word, &until);
        if (failed && errno == ETIMEDOUT) return;
    }
}

static void bell_drain(int fd)
{
    char byte;
    for (int i = 0; i < MAX_DRAIN; i++)
        if (recv(fd, &byte, sizeof(byte), MSG_DONTWAIT) < 0) return;
}

int tdm__host_arm(tdm__host *host, uint32_t bell)
{
    uint32_t word;
    if (tdm__host_open_bell(host, NULL) != TDM_OK) return -1;
    bell_drain(host->bell_fd); /* drops older rings; a newer one also changed the count */
    return bell_set_flag(host, bell, TDM__BELL_POLLING, &word) ? host->bell_fd : -1;
}

static void bell_wait_poll(tdm__host *host, uint32_t bell, double until_s, const int *fds,
                           int fd_count)
{
    struct pollfd polls[MAX_FDS + 1] = {{.fd = host->bell_fd, .events = POLLIN}};
    for (int i = 0; i < fd_count; i++)
        polls[i + 1] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    uint32_t word;
    while (bell_set_flag(host, bell, TDM__BELL_POLLING, &word)) {
        double left_s = until_s - tdm_clock_s();
        struct timespec left = tdm_clock_timespec(left_s > 0 ? left_s : 0);
        int ready = ppoll(polls, (nfds_t)fd_count + 1, &left, NULL);
        if (ready < 0 && errno == EINTR) continue;
        if (ready > 0 && polls[0].revents) bell_drain(host->bell_fd);
        /* Ends if the bell was rung, one of the caller's descriptors is ready, or the time is over. An
         * old datagram alone does not end the wait. */
        if (ready != 1 || !polls[0].revents) return;
    }
}

void tdm__host_wait(tdm__host *host, uint32_t bell, double timeout_s, const int *fds, int fd_count)
{
    const double max_s = 3600;
    if (!(timeout_s > 0)) return;
    if (timeout_s > max_s) timeout_s = max_s;
    double until_s = tdm_clock_s() + timeout_s;
    if (fd_count > MAX_FDS) fd_count = MAX_FDS;
    if (fd_count > 0 && tdm__host_open_bell(host, NULL) == TDM_OK)
        bell_wait_poll(host, bell, until_s, fds, fd_count);
    else
        bell_wait_futex(host, bell, until_s);
}
