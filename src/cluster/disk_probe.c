/*
 * disk_probe.c: queries the free space of a disk in a separate thread, because a network file
 * system can hang.
 *
 * A thread that is blocked by such a disk cannot be joined or cancelled. Each query therefore runs
 * in a detached thread, which stores the result for the next read. Only one query runs at a time,
 * so there is at most one such thread. After ten seconds without a result the disk counts as
 * silent.
 *
 * Invariant: the thread owns `path` while a query runs; the lock protects everything else. The
 * owner and the thread each hold a reference, and the last one frees the probe.
 */
#include "cluster/disk_probe.h"
#include "base/base.h"
#include "base/timing.h"
#include "os/thread.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct tdm__disk_probe {
    int (*ask)(const char *path, struct statvfs *out);
    char path[4096];
    pthread_mutex_t lock;
    pthread_cond_t answered;
    int holders;
    bool is_out;    /* a query runs */
    double since_s; /* start of that query */
    tdm__disk_space room;
};

tdm__disk_probe *tdm__disk_probe_create(int (*ask)(const char *path, struct statvfs *out))
{
    tdm__disk_probe *g = calloc(1, sizeof(*g));
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

/* Drops one reference. Called with the lock held; unlocks it. */
static void probe_unref(tdm__disk_probe *g)
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
    probe_unref(g);
}

static void *probe_thread(void *user)
{
    tdm__disk_probe *g = user;
    struct statvfs disk;
    tdm__disk_space room = {0};
    if (g->ask(g->path, &disk) == 0) { /* otherwise this host cannot access the path */
        room.free_bytes = (uint64_t)disk.f_bavail * disk.f_frsize;
        room.bytes = (uint64_t)disk.f_blocks * disk.f_frsize;
    }
    pthread_mutex_lock(&g->lock);
    g->room = room;
    g->is_out = false;
    pthread_cond_signal(&g->answered);
    probe_unref(g);
    return NULL;
}

static bool probe_start_thread(tdm__disk_probe *g)
{
    pthread_t thread;
    if (tdm__thread_start(&thread, probe_thread, g, NULL) != TDM_OK) return false;
    pthread_detach(thread);
    return true;
}

/* Starts a query. Called with the lock held. */
static void probe_start_query(tdm__disk_probe *g, const char *path, double now_s)
{
    snprintf(g->path, sizeof(g->path), "%s", path);
    g->since_s = now_s;
    g->is_out = true;
    g->holders++;
    if (!probe_start_thread(g)) {
        g->holders--;
        g->is_out = false;
        g->room = (tdm__disk_space){0};
    }
    double until_s = tdm_clock_s() + TDM__TIMING_DISK_PROBE_WAIT_S;
    struct timespec until = tdm_clock_timespec(until_s);
    while (g->is_out && pthread_cond_timedwait(&g->answered, &g->lock, &until) == 0) continue;
}

void tdm__disk_probe_read(tdm__disk_probe *g, const char *path, double now_s, tdm__disk_space *out)
{
    pthread_mutex_lock(&g->lock);
    if (!g->is_out) probe_start_query(g, path, now_s);
    *out = g->room;
    if (g->is_out && now_s - g->since_s > TDM__TIMING_DISK_PROBE_SILENT_S)
        *out = (tdm__disk_space){.is_silent = true};
    pthread_mutex_unlock(&g->lock);
}
