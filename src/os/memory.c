/*
 * memory.c: the memory of the machine, and the memory use of this process.
 *
 * The values are for messages and plans: unknown values are 0 or empty, never an error.
 */
#include "os/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* In version 1 a number near 2^63 means "no limit". */
#define NO_LIMIT_BYTES ((uint64_t)1 << 60)

static void note_limit(const tdm__cgroup_level *level, void *user)
{
    uint64_t *min = user;
    char path[4200];
    char text[64];
    snprintf(path, sizeof(path), "%s/%s", level->directory,
             level->version == 2 ? "memory.max" : "memory.limit_in_bytes");
    uint64_t limit = 0;
    if (!tdm__proc_read(path, text, sizeof(text)) || !tdm__proc_number(text, "", &limit)) return;
    if (limit == 0 || limit >= NO_LIMIT_BYTES) return;
    if (*min == 0 || limit < *min) *min = limit;
}

/* "always [madvise] never": the word in brackets. */
static void read_transparent_huge(char out[16])
{
    char text[128];
    if (!tdm__proc_read("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof(text))) return;
    const char *open = strchr(text, '[');
    const char *close = open ? strchr(open, ']') : NULL;
    if (!close || close - open > 15) return;
    memcpy(out, open + 1, (size_t)(close - open - 1));
    out[close - open - 1] = '\0';
}

void tdm_os_memory_info(tdm_memory_info *out)
{
    *out = (tdm_memory_info){0};
    char text[8192];
    uint64_t kib = 0;
    if (tdm__proc_read("/proc/meminfo", text, sizeof(text))) {
        if (tdm__proc_number(text, "MemTotal:", &kib)) out->total_bytes = kib * 1024;
        if (tdm__proc_number(text, "MemAvailable:", &kib)) out->available_bytes = kib * 1024;
        if (tdm__proc_number(text, "Hugepagesize:", &kib)) out->huge_page_bytes = kib * 1024;
        (void)tdm__proc_number(text, "HugePages_Total:", &out->huge_pages_reserved);
    }
    if (out->huge_page_bytes == 0 &&
        tdm__proc_read("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", text, sizeof(text))) {
        (void)tdm__proc_number(text, "", &out->huge_page_bytes);
    }
    tdm__cgroup_walk("memory", note_limit, &out->limit_bytes);
    read_transparent_huge(out->transparent_huge);
}

uint64_t tdm_os_resident_bytes(void)
{
    char text[256];
    if (!tdm__proc_read("/proc/self/statm", text, sizeof(text))) return 0;
    char *end = NULL;
    (void)strtoull(text, &end, 10); /* the first field is the whole address space */
    return strtoull(end, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t tdm_os_peak_resident_bytes(void)
{
    char text[8192];
    uint64_t kib = 0;
    if (tdm__proc_read("/proc/self/status", text, sizeof(text)) &&
        tdm__proc_number(text, "VmHWM:", &kib)) {
        return kib * 1024;
    }
    struct rusage usage; /* less exact: it may include the program before exec */
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss * 1024 : 0;
}

uint64_t tdm_os_proportional_bytes(void)
{
    char text[4096];
    uint64_t kib = 0;
    if (!tdm__proc_read("/proc/self/smaps_rollup", text, sizeof(text))) return 0;
    return tdm__proc_number(text, "Pss:", &kib) ? kib * 1024 : 0;
}
