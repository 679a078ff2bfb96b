/*
 * control_test.c: how ranks find each other, with real processes.
 *
 * Each test forks the ranks of a world, which join, exchange, die, stop or are refused as it says. A
 * rank checks what it sees itself; its exit status says whether all of it was right. Strangers knock
 * at the hub's door meanwhile. The process that forks never opens a world, so it has no threads.
 */
#include "check.h"

#include "comm/boot.h"
#include "comm/boot_socket.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOW = 1 };
#else
enum { SLOW = 0 };
#endif

enum { RANKS_MOST = 16, RANK_S = 60 };

/* ---- processes ------------------------------------------------------------------------------------------ */

/* What ranks and the test tell each other. */
typedef struct board {
    _Atomic int joined, may_go, saw;
    _Atomic int pids[RANKS_MOST];
    _Atomic int warnings;
    char warning[400];
    char report[1000];
    double seen_s[RANKS_MOST]; /* when the news came */
} board;

static board *shared;

typedef struct world {
    int size;
    const char *rendezvous;
    const char *secret, *job;
    double join_s;
    int victim; /* who is killed or stopped; -1: nobody */
    int (*rank)(const struct world *world, int rank);
    int pids[RANKS_MOST];
} world;

static void pause_s(double seconds)
{
    nanosleep(&(struct timespec){.tv_sec = (time_t)seconds,
                                 .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)},
              NULL);
}

/* False when it did not become true in time. */
static bool await(const _Atomic int *value, int least, double seconds)
{
    double until_s = tdm_clock_s() + seconds;
    while (*value < least && tdm_clock_s() < until_s) pause_s(0.001);
    return *value >= least;
}

static void on_log(const tdm_log_record *record, void *user)
{
    (void)user;
    if (record->level < TDM_LOG_WARN) return;
    if (shared->warnings++ == 0)
        snprintf(shared->warning, sizeof shared->warning, "%s", record->message);
}

static int start_one(const world *w, int rank)
{
    fflush(NULL);
    int pid = fork();
    if (pid != 0) return pid;
    alarm(RANK_S);
    check_failures = 0;
    tdm_log_add_sink(on_log, NULL, TDM_LOG_WARN);
    int code = w->rank(w, rank);
    fflush(NULL);
    _exit(check_failures ? 99 : code);
}

static void start(world *w)
{
    memset(shared, 0, sizeof *shared);
    for (int i = 0; i < w->size; i++) shared->pids[i] = w->pids[i] = start_one(w, i);
}

/* The exit status of a rank; 1000 + signal when one ended it. */
static int finish_one(int pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void finish(const world *w)
{
    for (int i = 0; i < w->size; i++)
        CHECK_INT(finish_one(w->pids[i]), i == w->victim ? 1000 + SIGKILL : 0);
}

static tdm_comm_options options_of(const world *w, int rank)
{
    return (tdm_comm_options){.rendezvous = w->rendezvous,
                              .secret = w->secret,
                              .job = w->job,
                              .has_place = true,
                              .rank = rank,
                              .size = w->size,
                              .deadline_s = 20,
                              .join_s = w->join_s > 0 ? w->join_s : 20};
}

static tdm__control *join(const world *w, int rank)
{
    tdm_comm_options options = options_of(w, rank);
    tdm__control *control = NULL;
    tdm_error err = {0};
    tdm_status status = tdm__control_open(&options, &control, &err);
    CHECK_INT(status, TDM_OK);
    if (status != TDM_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, err.message);
        _exit(98);
    }
    CHECK_INT(control->rank, rank);
    CHECK_INT(control->size, w->size);
    shared->joined++;
    return control;
}

static int count_in(const char *dir)
{
    int count = 0;
    DIR *folder = opendir(dir);
    while (folder && readdir(folder)) count++;
    if (folder) closedir(folder);
    return count;
}

/* Names that no other run of this test uses, and a port that is free now. */
static const char *unix_name(void)
{
    static char text[64];
    static int number;
    snprintf(text, sizeof text, "unix:tandem-control-test-%ld-%d", (long)getpid(), number++);
    return text;
}

static const char *tcp_name(int family)
{
    static char text[64];
    struct sockaddr_storage any;
    socklen_t bytes = tdm__socket_any(family, NULL, &any);
    int fd = tdm__socket_listen((struct sockaddr *)&any, bytes);
    snprintf(text, sizeof text, family == AF_INET6 ? "[::1]:%d" : "127.0.0.1:%d",
             tdm__socket_port(fd));
    if (fd >= 0) close(fd);
    return text;
}

static const char *file_name(void)
{
    static char text[128];
    static int number;
    const char *dir = getenv("TMPDIR");
    snprintf(text, sizeof text, "%s/tandem-control-test-%ld-%d", dir ? dir : "/tmp", (long)getpid(),
             number++);
    return text;
}

/* ---- joining and exchanging ----------------------------------------------------------------------------- */

/* Block `rank` of round `round`: its length and its bytes are known to all. */
static size_t fill(uint8_t *out, int rank, int round, size_t most)
{
    size_t bytes = ((size_t)rank * 7919 + (size_t)round * 104729) % most;
    if ((rank + round) % 5 == 0) bytes = 0;
    for (size_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)(i * 31 + (size_t)rank * 7 + (size_t)round);
    return bytes;
}

static void exchange_round(tdm__control *control, int round, size_t most)
{
    uint8_t *mine = malloc(most + 1), *theirs = malloc(most + 1);
    size_t bytes = fill(mine, control->rank, round, most);
    uint8_t **all = NULL;
    size_t *sizes = NULL;
    tdm_error err = {0};
    tdm_status status = control->ops->exchange(control, mine, bytes, &all, &sizes, &err);
    CHECK_TEXT(err.message, "");
    for (int i = 0; status == TDM_OK && i < control->size; i++) {
        bytes = fill(theirs, i, round, most);
        CHECK_INT(sizes[i], bytes);
        CHECK(sizes[i] != bytes || memcmp(all[i], theirs, bytes) == 0);
        CHECK_INT((uintptr_t)all[i] % 16, 0);
    }
    free(all);
    free(sizes);
    free(mine);
    free(theirs);
}

static int rank_that_exchanges(const world *w, int rank)
{
    int fds = count_in("/proc/self/fd"), threads = count_in("/proc/self/task");
    tdm__control *control = join(w, rank);
    for (int i = 0; i < w->size; i++) CHECK_INT(control->host_of[i], 0);
    CHECK(w->size == 1 || count_in("/proc/self/task") > threads);
    for (int round = 0; round < 30; round++) exchange_round(control, round, 3000);
    exchange_round(control, 30, (size_t)4 << 20);
    exchange_round(control, 31, 1);
    control->ops->close(control);
    CHECK_INT(count_in("/proc/self/fd"), fds);
    CHECK_INT(count_in("/proc/self/task"), threads);
    return 0;
}

static void run_world(int size, const char *rendezvous)
{
    world w = {.size = size, .rendezvous = rendezvous, .victim = -1, .rank = rank_that_exchanges};
    start(&w);
    finish(&w);
    CHECK_INT(shared->warnings, 0);
}

static void worlds_join_and_exchange(void)
{
    static const int sizes[] = {1, 2, 5, 16};
    run_world(1, NULL);
    for (int i = 0; i < 4; i++) {
        run_world(sizes[i], unix_name());
        run_world(sizes[i], tcp_name(AF_INET));
        const char *path = file_name();
        run_world(sizes[i], path);
        CHECK(access(path, F_OK) != 0);
        if (SLOW && i == 2) break;
    }
    run_world(3, tcp_name(AF_INET6));
}

/* ---- death ---------------------------------------------------------------------------------------------- */

typedef struct listener {
    pthread_mutex_t lock;
    int lost, left, broken;
    tdm__news last;
    char text[1000];
    double at_s;
} listener;

static void on_news(void *user, const tdm__news *news)
{
    listener *l = user;
    pthread_mutex_lock(&l->lock);
    l->last = *news;
    l->at_s = tdm_clock_s();
    snprintf(l->text, sizeof l->text, "%s", news->text);
    l->lost += news->kind == TDM__NEWS_LOST;
    l->left += news->kind == TDM__NEWS_LEFT;
    l->broken += news->kind == TDM__NEWS_BROKEN;
    pthread_mutex_unlock(&l->lock);
}

static void on_describe(void *user, char *out, size_t bytes)
{
    (void)user;
    snprintf(out, bytes, "counts sheep");
}

static void listen_to(tdm__control *control, listener *l)
{
    *l = (listener){.lock = PTHREAD_MUTEX_INITIALIZER};
    tdm__control_events events = {.user = l, .news = on_news, .describe = on_describe};
    tdm__control_listen(control, &events);
}

/* Waits for one piece of news; a copy of what was heard last. */
static listener await_news(listener *l, int count, double seconds)
{
    double until_s = tdm_clock_s() + seconds;
    for (;;) {
        pthread_mutex_lock(&l->lock);
        listener copy = *l;
        pthread_mutex_unlock(&l->lock);
        if (copy.lost + copy.left + copy.broken >= count || tdm_clock_s() > until_s) return copy;
        pause_s(0.002);
    }
}

static int rank_that_mourns(const world *w, int rank)
{
    tdm__control *control = join(w, rank);
    listener l;
    listen_to(control, &l);
    if (rank == w->victim)
        for (;;) pause_s(1);
    listener heard = await_news(&l, 1, 20);
    CHECK_INT(heard.lost, 1);
    CHECK_INT(heard.last.rank, w->victim);
    CHECK_HAS(heard.text, "it exited or was killed");
    shared->seen_s[rank] = heard.at_s;
    shared->saw++;
    uint8_t **all = NULL;
    size_t *sizes = NULL;
    tdm_error err = {0};
    CHECK_INT(control->ops->exchange(control, "x", 1, &all, &sizes, &err), TDM_ERR_PEER_FAILED);
    CHECK_HAS(err.message, "lost");
    await(&shared->saw, w->size - 1, 20);
    control->ops->close(control);
    return 0;
}

static void death_is_told_to_all(void)
{
    for (int victim = 0; victim < 4; victim++) {
        world w = {.size = 4,
                   .rendezvous = victim % 2 ? tcp_name(AF_INET) : unix_name(),
                   .victim = victim,
                   .rank = rank_that_mourns};
        start(&w);
        CHECK(await(&shared->joined, 4, 20));
        pause_s(0.05);
        double killed_s = tdm_clock_s();
        kill(w.pids[victim], SIGKILL);
        finish(&w);
        for (int i = 0; i < 4; i++)
            if (i != victim) CHECK(shared->seen_s[i] - killed_s < (SLOW ? 5 : 1));
    }
}

static const check_test tests[] = {
    CHECK_TEST(worlds_join_and_exchange),
    CHECK_TEST(death_is_told_to_all),
};

int main(int argc, char **argv)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
