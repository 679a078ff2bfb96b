/*
 * internal.h: declarations shared by the files of the os module: rounding to pages, and a
 * reader for text files of the kernel (/proc, /sys, cgroups).
 */
#ifndef TANDEM_OS_INTERNAL_H
#define TANDEM_OS_INTERNAL_H

#include "os/os.h"

/* Closes `fd` if it is valid, without changing errno. */
void tdm__close_quietly(int fd);

/* Rounds up to whole pages, at least one. */
tdm_status tdm__page_round(size_t bytes, size_t *out, tdm_error *err);
/* Reports that `bytes` could not be mapped, with the reason in errno. */
tdm_status tdm__map_fail(tdm_error *err, size_t bytes);

/*
 * Reads the beginning of a text file of the kernel into `buffer`, terminated. False if it does not
 * exist. Fault injection does not apply.
 */
bool tdm__proc_read(const char *path, char *buffer, size_t buffer_bytes);
/* The number after `key` ("MemTotal:") at the start of a line; false if there is none. */
bool tdm__proc_number(const char *text, const char *key, uint64_t *out);

/*
 * Calls `visit` with the directory of this process's cgroup and of each of its ancestors, whose limits
 * apply as well, for version 2 and for the version 1 controller of that name.
 */
typedef struct tdm__cgroup_level {
    const char *directory;
    int version; /* 1 or 2 */
} tdm__cgroup_level;
typedef void (*tdm__cgroup_fn)(const tdm__cgroup_level *level, void *user);
void tdm__cgroup_walk(const char *controller, tdm__cgroup_fn visit, void *user);

/* tdm_os_cpu_sets and tdm_os_topology_info for the CPUs in `allowed`. `machine` is a synthetic topology of
 * hwloc ("numa:2 core:4 pu:2"); NULL: this machine. */
bool tdm__places(const char *machine, const tdm_cpu_set *allowed, int count, tdm_cpu_set *out);
void tdm__topology(const char *machine, const tdm_cpu_set *allowed, tdm_topology_info *out);

/* Fills level and features of the CPU. */
void tdm__cpu_features(tdm_cpu_info *out);

#endif
