/*
 * agent_health.c: monitors the memory of the host and the free space on the disk of the run
 * directory.
 *
 * A resource that is nearly used up is shown in the agent's record (`tandem ps`) and in the log:
 * one line when it becomes low and one when it has recovered. The thresholds differ, so that a
 * fluctuating value does not fill the log. The agent takes no action: training continues, and
 * workers report what they cannot write.
 *
 * A separate thread queries the disk (disk_probe.c), so that a disk that hangs does not block the
 * agent. A disk that does not respond is reported as well.
 */
#include "cluster/agent.h"

#include <stdio.h>
#include <string.h>

#define GB UINT64_C(1000000000)
enum { DISK_PERCENT = 5, MEMORY_PERCENT = 3 };
static const uint64_t disk_low = 2 * GB, memory_low = GB / 2;

/* Low is below `low` bytes, or below `percent` of the total if that is less. Recovery requires 1.5
 * times as much. */
static bool health_is_low(uint64_t free_bytes, uint64_t bytes, uint64_t low, uint64_t percent,
                          bool was)
{
    uint64_t share = bytes / 100 * percent, min = share < low ? share : low;
    return bytes > 0 && free_bytes < (was ? min + min / 2 : min);
}

static void health_measure(tdm__agent *a, tdm__health *h)
{
    tdm_memory_info memory;
    tdm__disk_space disk = {0};
    tdm_os_memory_info(&memory);
    h->memory_free = memory.available_bytes;
    h->memory = memory.available_bytes > 0 ? memory.total_bytes : 0;
    if (!a->disk_probe) a->disk_probe = tdm__disk_probe_create(statvfs);
    if (a->disk_probe && a->run[0])
        tdm__disk_probe_read(a->disk_probe, a->run, tdm_clock_s(), &disk);
    h->disk_free = disk.free_bytes;
    h->disk = disk.bytes;
    h->disk_is_silent = disk.is_silent;
}

static void health_add_trouble(tdm__health *h, const char *what, uint64_t free_bytes,
                               uint64_t bytes)
{
    char some[32], all[32];
    size_t at = strlen(h->trouble);
    snprintf(h->trouble + at, sizeof(h->trouble) - at, "%s%s nearly full: %s of %s free",
             at > 0 ? ", " : "", what, tdm_text_bytes(free_bytes, some),
             tdm_text_bytes(bytes, all));
}

void tdm__agent_check_health(tdm__agent *a)
{
    tdm__health *h = &a->health;
    bool memory_was = h->memory_is_low, disk_was = h->disk_is_low, silent_was = h->disk_is_silent;
    health_measure(a, h);
    h->memory_is_low = health_is_low(h->memory_free, h->memory, memory_low, MEMORY_PERCENT,
                                     memory_was);
    h->disk_is_low = health_is_low(h->disk_free, h->disk, disk_low, DISK_PERCENT, disk_was);
    snprintf(h->trouble, sizeof(h->trouble), "%s",
             h->disk_is_silent ? "the disk does not respond" : "");
    if (h->disk_is_low) health_add_trouble(h, "disk", h->disk_free, h->disk);
    if (h->memory_is_low) health_add_trouble(h, "memory", h->memory_free, h->memory);
    bool is_worse = (h->memory_is_low && !memory_was) || (h->disk_is_low && !disk_was) ||
                    (h->disk_is_silent && !silent_was);
    bool names_run = h->disk_is_low || h->disk_is_silent;
    bool is_over = !h->trouble[0] && (memory_was || disk_was);
    if (is_worse)
        tdm_log(TDM_LOG_WARN, "agent", "host %s: %s%s%s", a->options->host, h->trouble,
                names_run ? "; run directory " : "", names_run ? a->run : "");
    if (silent_was && !h->disk_is_silent)
        tdm_log(TDM_LOG_INFO, "agent", "host %s: the disk of the run directory responds again",
                a->options->host);
    if (is_over)
        tdm_log(TDM_LOG_INFO, "agent", "host %s has enough free disk space and memory again",
                a->options->host);
}
