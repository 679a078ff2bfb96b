/*
 * duplex.c: what TCP over the loopback device carries in both directions at once: the bound of an all-reduce of
 * two ranks, which send and receive as many bytes as the buffer has. bench/comm runs it.
 *
 *   duplex SECONDS BYTES...
 *
 * Two processes, one connection, non-blocking, calls of at most 4 MB. Prints JSON: of each size, the median.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CALL = 4 << 20, MAX_ROUNDS = 1000 };

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sends and receives `bytes`. */
static void exchange(int fd, const char *from, char *into, size_t bytes)
{
    size_t sent = 0, got = 0;
    while (sent < bytes || got < bytes) {
        ssize_t gone = -1, came = -1;
        size_t left = bytes - sent < MAX_CALL ? bytes - sent : MAX_CALL;
        if (left > 0) gone = send(fd, from + sent, left, MSG_DONTWAIT | MSG_NOSIGNAL);
        left = bytes - got < MAX_CALL ? bytes - got : MAX_CALL;
        if (left > 0) came = recv(fd, into + got, left, MSG_DONTWAIT);
        if (gone > 0) sent += (size_t)gone;
        if (came > 0) got += (size_t)came;
        if (came == 0 || (came < 0 && left > 0 && errno != EAGAIN)) exit(1);
        struct pollfd wait = {.fd = fd, .events = (short)(POLLIN | (sent < bytes ? POLLOUT : 0))};
        if (gone <= 0 && came <= 0) poll(&wait, 1, 1000);
    }
}

static double measure(int fd, size_t bytes, double seconds)
{
    static double times[MAX_ROUNDS];
    char *from = malloc(bytes), *into = malloc(bytes);
    if (!from || !into) exit(1);
    memset(from, 1, bytes);
    memset(into, 2, bytes);
    exchange(fd, from, into, bytes);
    int rounds = 0;
    char go = 1;
    for (double end_s = now_s() + seconds; go && rounds < MAX_ROUNDS;) {
        double begin_s = now_s();
        exchange(fd, from, into, bytes);
        times[rounds++] = now_s() - begin_s;
        char mine = now_s() < end_s, other = 0; /* both stop together */
        exchange(fd, &mine, &other, 1);
        go = mine && other;
    }
    free(from);
    free(into);
    qsort(times, (size_t)rounds, sizeof(times[0]), by_value);
    return times[rounds / 2];
}

static int connect_pair(int listener, const struct sockaddr_in *address, pid_t child)
{
    int fd = child == 0 ? socket(AF_INET, SOCK_STREAM, 0) : accept(listener, NULL, NULL);
    int one = 1;
    if (child == 0 && connect(fd, (const struct sockaddr *)address, sizeof(*address)) != 0) exit(1);
    if (fd < 0) exit(1);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return fd;
}

int main(int argc, char **argv)
{
    if (argc < 3) return 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        listen(listener, 1) != 0 || getsockname(listener, (struct sockaddr *)&address, &bytes) != 0)
        return 1;
    pid_t child = fork();
    int fd = connect_pair(listener, &address, child);
    if (child > 0) printf("{\"rows\": [");
    for (int i = 2; i < argc; i++) {
        size_t size = (size_t)atoll(argv[i]);
        double seconds = measure(fd, size, atof(argv[1]));
        if (child > 0)
            printf("%s{\"bytes\": %zu, \"seconds\": %.9f}", i > 2 ? ", " : "", size, seconds);
    }
    if (child > 0) printf("]}\n");
    int status = 0;
    if (child > 0) waitpid(child, &status, 0);
    return status != 0;
}
