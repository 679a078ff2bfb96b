/* control_world.c: worlds of real processes: see control_world.h. */
#include "control_world.h"

board *shared;

void pause_s(double seconds)
{
    check_sleep_s(seconds);
}

bool await(const _Atomic int *value, int min, double seconds)
{
    double until_s = tdm_clock_s() + seconds;
    while (*value < min && tdm_clock_s() < until_s) pause_s(0.001);
    return *value >= min;
}

static void on_log(const tdm_log_record *record, void *user)
{
    (void)user;
    if (record->level < TDM_LOG_WARN) return;
    if (shared->warners++ == 0)
        snprintf(shared->warning, sizeof(shared->warning), "%s", record->message);
    shared->warnings++;
}

void forget_warnings(void)
{
    shared->warnings = shared->warners = 0;
}

int start_one(const world *w, int rank)
{
    int pid = world_fork(RANK_S);
    if (pid != 0) return pid;
    tdm_log_add_sink(on_log, NULL, TDM_LOG_WARN);
    world_exit(w->rank(w, rank));
}

void start(world *w)
{
    memset(shared, 0, sizeof(*shared));
    for (int i = 0; i < w->size; i++) shared->pids[i] = w->pids[i] = start_one(w, i);
}

int finish_one(int pid)
{
    return world_end(pid);
}

void finish(const world *w)
{
    for (int i = 0; i < w->size; i++)
        CHECK_INT(finish_one(w->pids[i]), i == w->victim ? WORLD_SIGNALLED + SIGKILL : 0);
}

tdm_comm_options options_of(const world *w, int rank)
{
    return (tdm_comm_options){.rendezvous = w->rendezvous,
                              .secret = w->secret,
                              .job = w->job,
                              .has_place = true,
                              .rank = rank,
                              .size = w->size,
                              .security.mode = w->security,
                              .deadline_s = 20,
                              .join_s = w->join_s > 0 ? w->join_s : 20};
}

tdm__control *join(const world *w, int rank)
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

const char *unix_name(void)
{
    static char text[64];
    static int number;
    snprintf(text, sizeof(text), "unix:tandem-control-test-%ld-%d", (long)getpid(), number++);
    return text;
}

/* The kernel assigns ports from 32768 on to clients: one of those might be in use before rank 0 listens. */
const char *tcp_name(int family)
{
    enum { FIRST = 12000, COUNT = 20000, EACH = 64, TRIES = 1000 };
    static char text[64];
    static int number;
    int port = 0;
    for (int i = 0, fd = -1; i < TRIES && fd < 0; i++) {
        struct sockaddr_storage like = {0}, any;
        port = FIRST + (int)(((long)getpid() * EACH + number++) % COUNT);
        ((struct sockaddr_in *)&like)->sin_port = htons((uint16_t)port); /* free in both families */
        socklen_t bytes = tdm__socket_any(family, (struct sockaddr *)&like, &any);
        fd = tdm__socket_listen((struct sockaddr *)&any, bytes);
        if (fd >= 0) close(fd);
    }
    snprintf(text, sizeof(text), family == AF_INET6 ? "[::1]:%d" : "127.0.0.1:%d", port);
    return text;
}

const char *file_name(void)
{
    static char text[128];
    static int number;
    const char *dir = getenv("TMPDIR");
    snprintf(text, sizeof(text), "%s/tandem-control-test-%ld-%d", dir ? dir : "/tmp",
             (long)getpid(), number++);
    return text;
}

void run_at_once(void (*const *tests)(void), int count)
{
    int pids[MAX_RANKS];
    for (int i = 0; i < count; i++) {
        pids[i] = world_fork(2 * RANK_S);
        if (pids[i] != 0) continue;
        shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                      0);
        if (shared == MAP_FAILED) _exit(1);
        tests[i]();
        world_exit(0);
    }
    for (int i = 0; i < count; i++) CHECK_INT(finish_one(pids[i]), 0);
}

int world_main(int argc, char **argv, const check_test *tests, size_t count)
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared == MAP_FAILED ? 1 : check_main(argc, argv, tests, count);
}
