/*
 * internal.h: what the files of the os room share: the fault hooks that every file operation asks
 * first, and a small reader for the kernel's own text files (/proc, /sys, control groups).
 */
#ifndef TANDEM_OS_INTERNAL_H
#define TANDEM_OS_INTERNAL_H

#include <tandem/os.h>

/* True when a test wants this operation to fail; errno then holds the reason. */
bool tdm__fault_hit(unsigned kind);

/* Closes `fd` if it is one, keeping errno as it was. */
void tdm__close_quietly(int fd);

/* Rounds up to whole pages, one at least. */
tdm_status tdm__page_round(size_t bytes, size_t *out, tdm_error *err);
/* That so many bytes could not be mapped, for the reason in errno. */
tdm_status tdm__map_fail(tdm_error *err, size_t bytes);

/*
 * Reads the beginning of a kernel text file into `buffer`, terminated. False when it is not there.
 * These reads are no subject of fault injection.
 */
bool tdm__proc_read(const char *path, char *buffer, size_t buffer_bytes);
/* The number after the line-leading `key` ("MemTotal:"); false when there is none. */
bool tdm__proc_number(const char *text, const char *key, uint64_t *out);

/*
 * Calls `visit` with the folder of this process's control group and each of its ancestors, for
 * version 2 and for the version 1 controller of that name. Limits of ancestors count too.
 */
typedef struct tdm__cgroup_level {
    const char *folder;
    int version; /* 1 or 2 */
} tdm__cgroup_level;
typedef void (*tdm__cgroup_fn)(const tdm__cgroup_level *level, void *user);
void tdm__cgroup_walk(const char *controller, tdm__cgroup_fn visit, void *user);

/* tdm_os_cpu_sets and tdm_os_topology_info for the processors in `allowed`; `machine` describes one that
 * does not exist, as hwloc's synthetic topologies do ("numa:2 core:4 pu:2"); NULL: this one. */
bool tdm__places(const char *machine, const tdm_cpu_set *allowed, int count, tdm_cpu_set *out);
void tdm__topology(const char *machine, const tdm_cpu_set *allowed, tdm_topology_info *out);

/* Fills level and features of the processor this runs on. */
void tdm__cpu_features(tdm_cpu_info *out);

#endif
