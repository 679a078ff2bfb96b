/*
 * system.h: what this build of Tandem and this machine offer, for diagnostics such as `tandem doctor`.
 */
#ifndef TANDEM_SYSTEM_H
#define TANDEM_SYSTEM_H

#include <tandem/base.h>
#include <tandem/os.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tdm_system_info {
    tdm_cpu_info cpu;
    tdm_memory_info memory;
    tdm_topology_info topology;
    /* The instructions that the kernels use: "x86-64-v3", "armv8-a". TANDEM_ISA lowers it. */
    const char *kernel_level;
} tdm_system_info;
/* Facts that cannot be determined are zero or empty. */
TDM_API void tdm_system_info_get(tdm_system_info *out);

typedef enum tdm_system_part_kind {
    TDM_SYSTEM_PART_LIBRARY = 0, /* an external library */
    TDM_SYSTEM_PART_TRANSPORT,   /* messages between ranks */
    TDM_SYSTEM_PART_STORE        /* the key-value store of a session */
} tdm_system_part_kind;

typedef struct tdm_system_part {
    tdm_system_part_kind kind;
    const char *name;                /* "gzip", "tcp", "etcd" */
    const char *about;               /* one line; empty for a library */
    bool usable;                     /* on this machine, with this build */
    char why[160];                   /* if not usable: what is missing */
    char library[TDM_LIBRARY_BYTES]; /* "zlib 1.2.13"; empty if it uses none */
} tdm_system_part;
/* Iterates over the parts, grouped by kind. Returns false past the end. */
TDM_API bool tdm_system_part_at(size_t index, tdm_system_part *out);

#ifdef __cplusplus
}
#endif
#endif
