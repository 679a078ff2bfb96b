/*
 * topology.c: the topology of the CPUs, and their division among processes.
 *
 * The CPUs that this process may use (its affinity mask) are sorted by NUMA node, cache and core. Cores
 * come from hwloc; in a build without it, or if it fails, each CPU counts as a core, in order of number.
 * Shares are contiguous in that order, and consist of whole cores if there is one for each process.
 *
 * A share whose CPUs belong to one of several NUMA nodes prefers the memory of that node. The policy is
 * set by a plain system call, because only system calls are allowed between fork and exec; exec keeps it.
 */
#include "os/internal.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef TDM__WITH_HWLOC
#include <hwloc.h>
#endif

enum { WORD_BITS = 64, MAX_NODES = 1024 };

/* ---- sets of processors ---------------------------------------------------------------------- */

static bool set_has(const tdm_cpu_set *place, int processor)
{
    return place->processors[processor / WORD_BITS] >> (processor % WORD_BITS) & 1;
}

static void set_add(tdm_cpu_set *place, int processor)
{
    place->processors[processor / WORD_BITS] |= UINT64_C(1) << (processor % WORD_BITS);
}

bool tdm_os_cpu_set_here(tdm_cpu_set *out)
{
    *out = (tdm_cpu_set){.memory_node = -1};
    return sched_getaffinity(0, sizeof(out->processors), (cpu_set_t *)(void *)out->processors) == 0;
}

/* ---- the machine ------------------------------------------------------------------------------ */

/* A hardware thread that may be used. In an array of them, those of one core are adjacent. */
typedef struct unit {
    int processor;
    int core;        /* counted from 0, in order */
    int memory_node; /* -1: unknown */
} unit;

typedef struct machine {
    unit *units; /* TDM_PLACE_MAX_CPUS places */
    int unit_count;
    int core_count;
    int node_count;
    bool nodes[MAX_NODES];
} machine;

static void add_unit(machine *m, int processor, bool new_core, int memory_node)
{
    if (new_core) m->core_count++;
    if (memory_node >= MAX_NODES) memory_node = -1;
    if (memory_node >= 0 && !m->nodes[memory_node]) {
        m->nodes[memory_node] = true;
        m->node_count++;
    }
    m->units[m->unit_count++] = (unit){
        .processor = processor, .core = m->core_count - 1, .memory_node = memory_node};
}

#ifdef TDM__WITH_HWLOC
/* The node of a core; -1 when there are several, or none is known. */
static int node_of(hwloc_obj_t object)
{
    if (!object->nodeset || hwloc_bitmap_weight(object->nodeset) != 1) return -1;
    return hwloc_bitmap_first(object->nodeset);
}

/* The core of a hardware thread, or the thread itself if the system does not report cores. */
static hwloc_obj_t core_of(hwloc_topology_t topology, hwloc_obj_t thread)
{
    hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, thread);
    return core ? core : thread;
}

static void read_topology(hwloc_topology_t topology, const tdm_cpu_set *allowed, machine *m)
{
    hwloc_obj_t thread = NULL, last = NULL;
    while ((thread = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, thread))) {
        unsigned processor = thread->os_index;
        if (processor >= TDM_PLACE_MAX_CPUS || !set_has(allowed, (int)processor)) continue;
        if (m->unit_count == TDM_PLACE_MAX_CPUS) return;
        hwloc_obj_t core = core_of(topology, thread);
        add_unit(m, (int)processor, core != last, node_of(core));
        last = core;
    }
}

static void look_with_hwloc(const char *synthetic, const tdm_cpu_set *allowed, machine *m)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0) return;
    if ((!synthetic || hwloc_topology_set_synthetic(topology, synthetic) == 0) &&
        hwloc_topology_load(topology) == 0)
        read_topology(topology, allowed, m);
    hwloc_topology_destroy(topology);
}
#endif

static bool machine_init(machine *m, const char *synthetic, const tdm_cpu_set *allowed)
{
    *m = (machine){.units = calloc(TDM_PLACE_MAX_CPUS, sizeof(unit))};
    if (!m->units) return false;
#ifdef TDM__WITH_HWLOC
    look_with_hwloc(synthetic, allowed, m);
#else
    (void)synthetic;
#endif
    if (m->unit_count > 0) return true;
    for (int i = 0; i < TDM_PLACE_MAX_CPUS; i++)
        if (set_has(allowed, i)) add_unit(m, i, true, -1);
    return m->unit_count > 0;
}

void tdm__topology(const char *synthetic, const tdm_cpu_set *allowed, tdm_topology_info *out)
{
    machine m;
    *out = (tdm_topology_info){.core_count = 1, .processor_count = 1, .memory_node_count = 1};
    if (machine_init(&m, synthetic, allowed)) {
        out->core_count = m.core_count;
        out->processor_count = m.unit_count;
        if (m.node_count > 0) out->memory_node_count = m.node_count;
    }
    free(m.units);
#ifdef TDM__WITH_HWLOC
    unsigned version = hwloc_get_api_version();
    snprintf(out->library, sizeof(out->library), "hwloc %u.%u.%u", version >> 16,
             version >> 8 & 0xff, version & 0xff);
#endif
}

void tdm_os_topology_info(tdm_topology_info *out)
{
    tdm_cpu_set allowed;
    tdm_os_cpu_set_here(&allowed);
    tdm__topology(NULL, &allowed, out);
}

/* ---- shares ----------------------------------------------------------------------------------- */

bool tdm__places(const char *synthetic, const tdm_cpu_set *allowed, int count, tdm_cpu_set *out)
{
    machine m;
    bool enough = machine_init(&m, synthetic, allowed) && count > 0 && count <= m.unit_count;
    bool by_core = count <= m.core_count;
    int64_t parts = by_core ? m.core_count : m.unit_count;
    for (int i = 0; enough && i < count; i++) out[i] = (tdm_cpu_set){.memory_node = -1};
    for (int u = 0, before = -1; enough && u < m.unit_count; u++) {
        /* Share i begins at part parts * i / count, rounded down. */
        int64_t part = by_core ? m.units[u].core : u;
        int share = (int)(((part + 1) * count - 1) / parts);
        set_add(&out[share], m.units[u].processor);
        if (share != before)
            out[share].memory_node = m.node_count > 1 ? m.units[u].memory_node : -1;
        else if (out[share].memory_node != m.units[u].memory_node)
            out[share].memory_node = -1;
        before = share;
    }
    free(m.units);
    return enough;
}

bool tdm_os_cpu_sets(int count, tdm_cpu_set *out)
{
    tdm_cpu_set allowed;
    return tdm_os_cpu_set_here(&allowed) && tdm__places(NULL, &allowed, count, out);
}

bool tdm_os_cpu_set_apply(const tdm_cpu_set *place)
{
    const cpu_set_t *set = (const cpu_set_t *)(const void *)place->processors;
    if (sched_setaffinity(0, sizeof(place->processors), set) != 0) return false;
    int node = place->memory_node;
    if (node < 0 || node >= MAX_NODES) return true;
    unsigned long nodes[MAX_NODES / (8 * sizeof(unsigned long))] = {0};
    nodes[(size_t)node / (8 * sizeof(nodes[0]))] |= 1UL << (size_t)node % (8 * sizeof(nodes[0]));
    (void)syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes, (unsigned long)MAX_NODES);
    return true;
}

/* ---- words ------------------------------------------------------------------------------------ */

const char *tdm_os_cpu_set_text(const tdm_cpu_set *place, char buffer[TDM_CPU_SET_TEXT_BYTES])
{
    size_t used = 0;
    buffer[0] = '\0';
    for (int i = 0; i < TDM_PLACE_MAX_CPUS; i++) {
        if (!set_has(place, i)) continue;
        int end = i;
        while (end + 1 < TDM_PLACE_MAX_CPUS && set_has(place, end + 1)) end++;
        char run[32];
        const char *comma = used > 0 ? "," : "";
        int length = end > i ? snprintf(run, sizeof(run), "%s%d-%d", comma, i, end)
                             : snprintf(run, sizeof(run), "%s%d", comma, i);
        if (used + (size_t)length + sizeof("...") > TDM_CPU_SET_TEXT_BYTES) {
            memcpy(buffer + used, "...", sizeof("..."));
            break;
        }
        memcpy(buffer + used, run, (size_t)length + 1);
        used += (size_t)length;
        i = end;
    }
    return buffer;
}
