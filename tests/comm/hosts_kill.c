/*
 * hosts_kill.c: kills and stops random ranks of several hosts, in the middle of traffic.
 *
 *     hosts_kill ADDRESS PORT KILLS STOPS SEED NAMESPACE...
 *     hosts_kill --rank PIPE                 (started by itself)
 *
 * Each network namespace is a host of two ranks; ADDRESS is that of the first one, and trial i uses port PORT +
 * i. The first victim of either kind is rank 0, which has the hub of the control connections; the others are
 * random. kill_world.h starts the ranks and checks what the survivors report. Prints the slowest survivor on
 * the victim's host and the slowest of the others. hosts_test.sh creates the namespaces.
 */
#include "base/base.h"
#include "kill_world.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS_PER_HOST = 2, MAX_HOSTS = MAX_RANKS / RANKS_PER_HOST };

typedef struct plan {
    const char *address;
    int port; /* of the next trial */
    uint64_t seed;
    int host_count;
    const char *const *spaces;
} plan;

static bool run_some(plan *p, int count, bool stop)
{
    double slowest_s[2] = {0, 0};
    int second_count = 0;
    for (int i = 0; i < count; i++) {
        char place[96];
        snprintf(place, sizeof(place), "%s:%d", p->address, p->port++);
        trial t = {.rendezvous = place,
                   .spaces = p->spaces,
                   .ranks_per_host = RANKS_PER_HOST,
                   .seed = p->seed++,
                   .size = p->host_count * RANKS_PER_HOST,
                   .stop = stop,
                   .deadline_s = stop ? stop_deadline_s : kill_deadline_s};
        tdm_rng rng = tdm_rng_at(
            (tdm_rng_address){.seed = t.seed, .stream = TDM_RNG_STREAM_USER + 1});
        t.victim = i == 0 ? 0 : (int)tdm_rng_below(&rng, (uint64_t)t.size);
        t.delay_us = (useconds_t)tdm_rng_below(&rng, 100000);
        if (!run_trial(&t)) return false;
        second_count += t.second_count;
        for (int k = 0; k < 2; k++)
            if (t.slowest_s[k] > slowest_s[k]) slowest_s[k] = t.slowest_s[k];
    }
    if (second_count > second_most(count)) {
        fprintf(stderr, "FAIL: %d survivors did not name the victim\n", second_count);
        return false;
    }
    printf("%d %s across hosts; the slowest survivor had its error after %.0f ms on the victim's "
           "host, %.0f ms on others\n",
           count, stop ? "stops" : "kills", slowest_s[0] * 1e3, slowest_s[1] * 1e3);
    fflush(stdout);
    return true;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--rank") == 0) return be_a_rank(atoi(argv[2]));
    if (argc < 8 || argc > 6 + MAX_HOSTS) return 2;
    signal(SIGPIPE, SIG_IGN);
    plan p = {.address = argv[1],
              .port = atoi(argv[2]),
              .seed = strtoull(argv[5], NULL, 10),
              .host_count = argc - 6,
              .spaces = (const char *const *)&argv[6]};
    return run_some(&p, atoi(argv[3]), false) && run_some(&p, atoi(argv[4]), true) ? 0 : 1;
}
