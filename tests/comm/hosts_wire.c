/*
 * hosts_wire.c: a connection between two network namespaces that is slow and loses packets.
 *
 *     hosts_wire NAMESPACE_A NAME_A NAMESPACE_B NAME_B DELAY_MS LOSS_PER_MILLE
 *
 * Creates a TAP device of that name in each namespace and forwards frames between them, each after DELAY_MS,
 * except LOSS_PER_MILLE of them, drawn from a fixed seed. For kernels without netem. Prints "ready" when both
 * devices exist, and runs until it is killed; the devices end with it.
 */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { MAX_FRAME = 2048, MAX_FRAMES = 4096 };

typedef struct frame {
    double at_s; /* when it is forwarded */
    int to;      /* 0 or 1 */
    size_t bytes;
    uint8_t data[MAX_FRAME];
} frame;

/* In the order of arrival, which is the order of departure, because all have the same delay. */
typedef struct queue {
    frame *frames;
    size_t first, count;
} queue;

static int open_tap(const char *space, const char *name)
{
    char path[128];
    snprintf(path, sizeof(path), "/run/netns/%s", space);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) return -1;
    close(fd);
    fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
    return fd >= 0 && ioctl(fd, TUNSETIFF, &request) == 0 ? fd : -1;
}

static void take(int fd, int to, queue *q, double delay_s, unsigned loss, tdm_rng *rng)
{
    while (q->count < MAX_FRAMES) {
        frame *f = &q->frames[(q->first + q->count) % MAX_FRAMES];
        ssize_t got = read(fd, f->data, sizeof(f->data));
        if (got <= 0) return;
        if (tdm_rng_below(rng, 1000) < loss) continue;
        f->bytes = (size_t)got;
        f->to = to;
        f->at_s = tdm_clock_s() + delay_s;
        q->count++;
    }
}

int main(int argc, char **argv)
{
    if (argc != 7) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int taps[2] = {open_tap(argv[1], argv[2]), open_tap(argv[3], argv[4])};
    double delay_s = strtod(argv[5], NULL) / 1000;
    unsigned loss = (unsigned)strtoul(argv[6], NULL, 10);
    queue q = {.frames = malloc(MAX_FRAMES * sizeof(*q.frames))};
    if (taps[0] < 0 || taps[1] < 0 || !q.frames) {
        fprintf(stderr, "hosts_wire: cannot make its devices: %s\n", strerror(errno));
        return 1;
    }
    printf("ready\n");
    fflush(stdout);
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 1, .stream = TDM_RNG_STREAM_USER});
    for (;;) {
        while (q.count > 0 && q.frames[q.first].at_s <= tdm_clock_s()) {
            frame *f = &q.frames[q.first];
            if (write(taps[f->to], f->data, f->bytes) < 0 && errno == EBADF) return 1;
            q.first = (q.first + 1) % MAX_FRAMES;
            q.count--;
        }
        struct pollfd wait[2] = {{.fd = taps[0], .events = POLLIN},
                                 {.fd = taps[1], .events = POLLIN}};
        double left_s = q.count > 0 ? q.frames[q.first].at_s - tdm_clock_s() : 1;
        struct timespec left = {.tv_sec = left_s >= 1,
                                .tv_nsec = left_s > 0 && left_s < 1 ? (long)(left_s * 1e9) : 0};
        if (ppoll(wait, q.count < MAX_FRAMES ? 2 : 0, &left, NULL) < 0 && errno != EINTR) return 1;
        take(taps[0], 1, &q, delay_s, loss, &rng);
        take(taps[1], 0, &q, delay_s, loss, &rng);
    }
}
