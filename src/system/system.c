/*
 * system.c: describes this build and this machine, from what each module knows about itself.
 */
#include "base/base.h"
#include "checkpoint/checkpoint.h"
#include "data/data.h"
#include "job/job.h"
#include "kv/kv.h"
#include "os/os.h"
#include "tensor/tensor.h"
#include "transport/registry.h"

#include <tandem/system.h>

#include <stdio.h>

void tdm_system_info_get(tdm_system_info *out)
{
    *out = (tdm_system_info){.kernel_level = tdm_tensor_level_name(tdm_tensor_level())};
    tdm_os_cpu_info(&out->cpu);
    tdm_os_memory_info(&out->memory);
    tdm_os_topology_info(&out->topology);
}

static const char *zstd_library(char buffer[TDM_LIBRARY_BYTES])
{
    return tdm_checkpoint_packs(buffer) ? buffer : NULL;
}

/* Returns NULL if this build does not have the library. */
typedef const char *(*library_fn)(char buffer[TDM_LIBRARY_BYTES]);

static const struct {
    const char *name;
    library_fn library;
    const char *missing; /* what the build without it lacks */
} libraries[] = {
    {"vendor kernels", tdm_tensor_library,
     "compute.numerics: vendor requires a build with oneDNN (libdnnl-dev)"},
    {"job files", tdm_job_library, ""},
    {"hashes", tdm_base_library, ""},
    {"gzip", tdm_data_library, ""},
    {"packing", zstd_library, "checkpoint.compress: zstd requires a build with libzstd-dev"},
};
enum { LIBRARY_COUNT = sizeof(libraries) / sizeof(libraries[0]) };

static void part_of_library(size_t index, tdm_system_part *out)
{
    char text[TDM_LIBRARY_BYTES];
    const char *library = libraries[index].library(text);
    *out = (tdm_system_part){.kind = TDM_SYSTEM_PART_LIBRARY,
                             .name = libraries[index].name,
                             .about = "",
                             .usable = library != NULL};
    snprintf(out->library, sizeof(out->library), "%s", library ? library : "");
    snprintf(out->why, sizeof(out->why), "%s", library ? "" : libraries[index].missing);
}

bool tdm_system_part_at(size_t index, tdm_system_part *out)
{
    if (index < LIBRARY_COUNT) {
        part_of_library(index, out);
        return true;
    }
    index -= LIBRARY_COUNT;

    size_t transports = 0;
    tdm_transport_info transport;
    while (tdm_transport_at(transports, &transport)) {
        if (transports++ != index) continue;
        *out = (tdm_system_part){.kind = TDM_SYSTEM_PART_TRANSPORT,
                                 .name = transport.name,
                                 .about = transport.about,
                                 .usable = transport.usable};
        snprintf(out->why, sizeof(out->why), "%s", transport.why);
        snprintf(out->library, sizeof(out->library), "%s", transport.library);
        return true;
    }
    index -= transports;

    tdm_kv_info store;
    if (!tdm_kv_at(index, &store)) return false;
    *out = (tdm_system_part){.kind = TDM_SYSTEM_PART_STORE,
                             .name = store.name,
                             .about = store.about,
                             .usable = store.usable};
    snprintf(out->why, sizeof(out->why), "%s", store.why);
    snprintf(out->library, sizeof(out->library), "%s", store.library);
    return true;
}
