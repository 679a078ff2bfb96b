/*
 * disk_probe.h: the room on a disk that may not answer.
 */
#ifndef TANDEM_CLUSTER_GAUGE_H
#define TANDEM_CLUSTER_GAUGE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/statvfs.h>

typedef struct tdm__disk_probe tdm__disk_probe;

typedef struct tdm__disk_space {
    uint64_t free_bytes, bytes; /* 0: not known */
    bool is_silent;             /* it has been asked, and has not answered for long */
} tdm__disk_space;

/* `ask` is statvfs, or what stands for it in a test; it is called from another thread. NULL: no memory. */
tdm__disk_probe *tdm__disk_probe_create(int (*ask)(const char *path, struct statvfs *out));
/* Also while a question is out: then whoever asks it frees what is left. NULL is fine. */
void tdm__disk_probe_release(tdm__disk_probe *disk_probe);
/* The room where `path` is, as far as it is known now, without waiting for the disk for more than some
 * milliseconds. `now_s` is a time of tdm_clock_s(). */
void tdm__disk_probe_read(tdm__disk_probe *disk_probe, const char *path, double now_s,
                          tdm__disk_space *out);

#endif
