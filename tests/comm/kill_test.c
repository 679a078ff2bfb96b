/*
 * kill_test.c: real processes of one host, which are killed or stopped in the middle of traffic.
 *
 *     kill_test TRANSPORT TRIALS [SEED [stop]]
 *     kill_test --rank PIPE                  (started by itself)
 *
 * In each trial a few ranks run random collectives without end. A random one of them gets SIGKILL or SIGSTOP
 * (with `stop` always SIGSTOP) at a random moment; kill_world.h checks what the others report. Afterwards
 * nothing may be left: no process, no named socket, no file.
 */
#include "base/base.h"
#include "kill_world.h"
#include "transport/registry.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKERS = 3 };

/* ---- what is left -------------------------------------------------------------------------------- */

/* Names that ranks of this test have given to their sockets. */
static int sockets_left(void)
{
    char line[512], name[32];
    int count = 0;
    snprintf(name, sizeof(name), "tandem-kill-%d-", (int)getpid());
    FILE *file = fopen("/proc/net/unix", "r");
    if (!file) return 0;
    while (fgets(line, sizeof(line), file)) count += strstr(line, name) != NULL;
    fclose(file);
    return count;
}

/* Every WORKERS-th trial, from number `worker` on. */
static int run_trials(const char *transport, int trials, uint64_t first, int worker,
                      bool always_stop)
{
    double slowest_kill_s = 0, slowest_stop_s = 0;
    int count = 0, second_count = 0;
    for (int i = worker; i < trials; i += WORKERS, count++) {
        char place[64];
        uint64_t seed = first + (uint64_t)i;
        snprintf(place, sizeof(place), "unix:tandem-kill-%d-%llu", (int)getpid(),
                 (unsigned long long)seed);
        trial t = {.transport = transport, .rendezvous = place, .seed = seed};
        tdm_rng rng = tdm_rng_at(
            (tdm_rng_address){.seed = t.seed, .stream = TDM_RNG_STREAM_USER + 1});
        t.size = 2 + (int)tdm_rng_below(&rng, MAX_RANKS - 1);
        t.victim = (int)tdm_rng_below(&rng, (uint64_t)t.size);
        t.stop = tdm_rng_below(&rng, 15) == 0 || always_stop;
        t.deadline_s = t.stop ? stop_deadline_s : kill_deadline_s;
        t.delay_us = (useconds_t)tdm_rng_below(&rng, 60000);
        if (!run_trial(&t)) return 1;
        second_count += t.second_count;
        double *slowest = t.stop ? &slowest_stop_s : &slowest_kill_s;
        if (t.slowest_s[0] > *slowest) *slowest = t.slowest_s[0];
    }
    if (second_count > second_most(count)) {
        fprintf(stderr, "FAIL: in %d trials %d survivors did not name the victim\n", count,
                second_count);
        return 1;
    }
    if (sockets_left()) {
        fprintf(stderr, "FAIL: %d sockets are left\n", sockets_left());
        return 1;
    }
    printf(
        "%s: %d trials; the slowest survivor had its error %.0f ms after a kill, %.0f ms after a "
        "stop\n",
        transport, count, slowest_kill_s * 1e3, slowest_stop_s * 1e3);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--rank") == 0) return be_a_rank(atoi(argv[2]));
    if (argc < 3) return 2;
    signal(SIGPIPE, SIG_IGN);
    tdm_transport_info info;
    for (size_t i = 0; tdm_transport_at(i, &info); i++)
        if (strcmp(info.name, argv[1]) == 0 && !info.usable) {
            printf("SKIPPED: %s cannot be used here: %s\n", argv[1], info.why);
            return 77;
        }
    int trials = atoi(argv[2]);
    uint64_t first = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    bool always_stop = argc > 4 && strcmp(argv[4], "stop") == 0;
    /* A trial mostly waits, so several run concurrently. */
    pid_t workers[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = fork();
        if (workers[i] == 0) _exit(run_trials(argv[1], trials, first, i, always_stop));
    }
    int failed = 0;
    for (int i = 0; i < WORKERS; i++) {
        int state = 0;
        failed |= waitpid(workers[i], &state, 0) != workers[i] || state != 0;
    }
    return failed;
}
