/* world.c: worlds of real processes: see world.h. */
#include "dist/world.h"

static pid_t world_start_rank(const world *w, int rank, int number)
{
    pid_t pid = world_fork(WORLD_ALARM_S);
    if (pid != 0) return pid;
    char meeting[64], host[32];
    snprintf(meeting, sizeof(meeting), "world-%d-%d", (int)getppid(), number);
    snprintf(host, sizeof(host), "world-host-%c", w->hosts[rank]);
    world_place_set(&(world_place){.meeting = meeting,
                                   .transport = w->transport,
                                   .host = host,
                                   .rank = rank,
                                   .size = (int)strlen(w->hosts),
                                   .deadline_s = w->deadline_s > 0 ? w->deadline_s : 60});
    world_exec("--rank", w->what, NULL);
}

bool world_has(const char *transport)
{
    tdm_transport_info info;
    for (size_t i = 0; tdm_transport_at(i, &info); i++)
        if (strcmp(info.name, transport) == 0) return info.usable;
    return false;
}

void world_run(const world *w)
{
    static int number;
    int size = (int)strlen(w->hosts);
    bool several = strspn(w->hosts, (char[]){w->hosts[0], 0}) < (size_t)size;
    const char *needed = w->transport ? w->transport : several ? "tcp" : NULL;
    if (needed && !world_has(needed)) {
        printf("     left out: hosts %s, without %s\n", w->hosts, needed);
        return;
    }
    pid_t pids[MAX_WORLD_RANKS];
    number++;
    for (int i = 0; i < size; i++) pids[i] = world_start_rank(w, i, number);
    for (int i = 0; i < size; i++) {
        int end = world_end(pids[i]);
        int expected = i + 1 == w->victim ? WORLD_SIGNALLED + SIGKILL : 0;
        CHECK_INT(end, expected);
        if (end != expected)
            fprintf(stderr, "%s, hosts %s: rank %d ended with %d\n", w->what, w->hosts, i, end);
    }
}

int world_be_a_rank(void (*task)(tdm_comm *comm, const char *what), const char *what)
{
    tdm_comm *comm = NULL;
    tdm_error err = {0};
    if (tdm_comm_open(NULL, &comm, &err) != TDM_OK) {
        fprintf(stderr, "FAIL: %s\n", err.message);
        return 1;
    }
    task(comm, what);
    CHECK(check_count > 0);
    tdm_comm_close(comm);
    return check_failures > 0;
}
