/*
 * disk_probe.h: the free space of a disk that may hang.
 */
#ifndef TANDEM_CLUSTER_GAUGE_H
#define TANDEM_CLUSTER_GAUGE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/statvfs.h>

typedef struct tdm__disk_probe tdm__disk_probe;

typedef struct tdm__disk_space {
    uint64_t free_bytes, bytes; /* 0: not known */
    bool is_silent;             /* a query has had no result for a long time */
} tdm__disk_space;

/* `ask` is statvfs, or its replacement in a test; it is called from another thread. NULL: no
 * memory. */
tdm__disk_probe *tdm__disk_probe_create(int (*ask)(const char *path, struct statvfs *out));
/* May be called while a query runs; its thread then frees the probe. NULL is fine. */
void tdm__disk_probe_release(tdm__disk_probe *disk_probe);
/* Returns the last known free space of the file system of `path`, and waits at most some
 * milliseconds for the disk. `now_s` is a time of tdm_clock_s(). */
void tdm__disk_probe_read(tdm__disk_probe *disk_probe, const char *path, double now_s,
                          tdm__disk_space *out);

#endif
