/*
 * disk_probe.c: asks a disk for its room, from a thread of its own, for a network file system may hang.
 *
 * A thread that asks such a disk cannot be waited for, nor ended. So each question has a detached thread, which
 * puts the answer where the next look finds it. While a question is out no other is asked, hence there is one
 * such thread at most, however long it takes; after ten seconds the disk counts as silent.
 *
 * Invariant: `path` is the thread's while a question is out, and all else the lock's. A gauge has its owner and
 * its thread as holders, and goes with the last of them.
 */
#include "cluster/disk_probe.h"
#include "os/thread.h"

#include <tandem/base.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const double silent_s = 10; /* without an answer */
static const double silence_limit_s =
    .02; /* most disks have answered by then, and the look is up to date */

struct tdm__disk_probe {
    int (*ask)(const char *path, struct statvfs *out);
    char path[4096];
    pthread_mutex_t lock;
    pthread_cond_t answered;
    int holders;
    bool is_out;    /* a question */
    double since_s; /* it is */
    tdm__disk_space room;
};

tdm__disk_probe *tdm__disk_probe_create(int (*ask)(const char *path, struct statvfs *out))
{
    tdm__disk_probe *g = calloc(1, sizeof *g);
    pthread_condattr_t monotonic;
    if (!g) return NULL;
    g->ask = ask;
    g->holders = 1;
    pthread_mutex_init(&g->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&g->answered, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return g;
}

/* With the lock held, which it lets go of. */
static void let_go(tdm__disk_probe *g)
{
    bool is_last = --g->holders == 0;
    pthread_mutex_unlock(&g->lock);
    if (!is_last) return;
    pthread_cond_destroy(&g->answered);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

void tdm__disk_probe_release(tdm__disk_probe *g)
{
    if (!g) return;
    pthread_mutex_lock(&g->lock);
    let_go(g);
}

static void *ask_disk(void *user)
{
    tdm__disk_probe *g = user;
    struct statvfs disk;
    tdm__disk_space room = {0};
    if (g->ask(g->path, &disk) == 0) { /* otherwise this host does not see it */
        room.free_bytes = (uint64_t)disk.f_bavail * disk.f_frsize;
        room.bytes = (uint64_t)disk.f_blocks * disk.f_frsize;
    }
    pthread_mutex_lock(&g->lock);
    g->room = room;
    g->is_out = false;
    pthread_cond_signal(&g->answered);
    let_go(g);
    return NULL;
}

static bool start_thread(tdm__disk_probe *g)
{
    pthread_t thread;
    if (tdm__thread_start(&thread, ask_disk, g, NULL) != TDM_OK) return false;
    pthread_detach(thread);
    return true;
}

/* With the lock held. */
static void put_question(tdm__disk_probe *g, const char *path, double now_s)
{
    snprintf(g->path, sizeof g->path, "%s", path);
    g->since_s = now_s;
    g->is_out = true;
    g->holders++;
    if (!start_thread(g)) {
        g->holders--;
        g->is_out = false;
        g->room = (tdm__disk_space){0};
    }
    double until_s = tdm_clock_s() + silence_limit_s;
    struct timespec until = tdm_clock_timespec(until_s);
    while (g->is_out && pthread_cond_timedwait(&g->answered, &g->lock, &until) == 0) continue;
}

void tdm__disk_probe_read(tdm__disk_probe *g, const char *path, double now_s, tdm__disk_space *out)
{
    pthread_mutex_lock(&g->lock);
    if (!g->is_out) put_question(g, path, now_s);
    *out = g->room;
    if (g->is_out && now_s - g->since_s > silent_s) *out = (tdm__disk_space){.is_silent = true};
    pthread_mutex_unlock(&g->lock);
}
