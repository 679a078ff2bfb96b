/*
 * cpu.c: the CPUs that this process may use.
 *
 * A process may be restricted to some CPUs of a machine: the affinity mask selects CPUs, and the quota of
 * a cgroup limits CPU time. The usable count is the smaller of both, rounded up, and at least one.
 */
#include "os/internal.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define MAX_CPU_SET 65536

static int affinity_count(void)
{
    for (int cpus = 1024; cpus <= MAX_CPU_SET; cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC(cpus);
        if (!set) return 0;
        size_t bytes = CPU_ALLOC_SIZE(cpus);
        int result = sched_getaffinity(0, bytes, set);
        int count = result == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (result == 0 || errno != EINVAL) return count;
    }
    return 0;
}

/* Microseconds of CPU time per period; false if it is not limited. */
static bool read_quota(const tdm__cgroup_level *level, uint64_t *out_quota, uint64_t *out_period)
{
    char path[4200];
    char text[64];
    if (level->version == 2) { /* "max 100000" or "150000 100000" */
        snprintf(path, sizeof(path), "%s/cpu.max", level->directory);
        if (!tdm__proc_read(path, text, sizeof(text))) return false;
        const char *space = strchr(text, ' ');
        return space && tdm__proc_number(text, "", out_quota) &&
               tdm__proc_number(space + 1, "", out_period);
    }
    snprintf(path, sizeof(path), "%s/cpu.cfs_quota_us", level->directory); /* "-1" for none */
    if (!tdm__proc_read(path, text, sizeof(text)) || !tdm__proc_number(text, "", out_quota)) {
        return false;
    }
    snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", level->directory);
    return tdm__proc_read(path, text, sizeof(text)) && tdm__proc_number(text, "", out_period);
}

static void note_quota(const tdm__cgroup_level *level, void *user)
{
    int *min = user;
    uint64_t quota = 0;
    uint64_t period = 0;
    if (!read_quota(level, &quota, &period) || quota == 0 || period == 0) return;
    uint64_t cpus = quota / period + (quota % period != 0);
    if (cpus < (uint64_t)*min) *min = (int)cpus;
}

/* The text after "model name : " of the first processor. */
static void read_model(char *out, size_t out_bytes)
{
    char text[8192];
    snprintf(out, out_bytes, "unknown");
    if (!tdm__proc_read("/proc/cpuinfo", text, sizeof(text))) return;
    const char *line = strstr(text, "model name");
    if (!line) line = strstr(text, "Model\t"); /* the name of the field in some ARM kernels */
    const char *colon = line ? strchr(line, ':') : NULL;
    if (!colon) return;
    colon += 1 + strspn(colon + 1, " \t");
    size_t length = strcspn(colon, "\n");
    if (length > 0) snprintf(out, out_bytes, "%.*s", (int)length, colon);
}

void tdm_os_cpu_info(tdm_cpu_info *out)
{
    *out = (tdm_cpu_info){0};
    struct utsname name;
    if (uname(&name) == 0) {
        snprintf(out->architecture, sizeof(out->architecture), "%.15s", name.machine);
    }
    read_model(out->model, sizeof(out->model));
    tdm__cpu_features(out);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    out->online_count = online > 0 && online <= MAX_CPU_SET ? (int)online : 1;
    int usable = affinity_count();
    if (usable <= 0) usable = out->online_count;
    tdm__cgroup_walk("cpu", note_quota, &usable);
    out->usable_count = usable;
}
