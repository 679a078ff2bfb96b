/*
 * memory.h: the location of every buffer of a plan.
 *
 * A storage is a piece of memory with a lifetime in node numbers; several values share one if one
 * is a view of the other or overwrites it in place. Storages of the arena are placed so that two
 * with overlapping lifetimes never overlap.
 */
#ifndef TANDEM_GRAPH_MEMORY_H
#define TANDEM_GRAPH_MEMORY_H

#include "graph/internal.h"

typedef struct tdm__storage {
    tdm_space space;
    size_t bytes;
    size_t offset; /* in its space, in bytes */
    int32_t first; /* the node that writes it first; -1: before the run */
    int32_t last;  /* the node that uses it last; INT32_MAX: after the run */
} tdm__storage;

typedef struct tdm__memory {
    tdm__storage *storages;
    size_t storage_count;
    int32_t *of_value;   /* value id -> storage, -1 for none */
    int32_t *of_scratch; /* node -> storage of its scratch, -1 for none */
    bool *in_place;      /* node -> whether an output overwrites an input */
    size_t arena_bytes;
    size_t unshared_bytes;
} tdm__memory;

/* `live[node]`: the node runs; scratch_bytes[node]: the scratch memory that its kernel needs. */
tdm_status tdm__memory_plan(const tdm_graph *graph, const bool *live, const size_t *scratch_bytes,
                            bool forward_only, tdm__memory *out, tdm_error *err);
void tdm__memory_release(tdm__memory *memory);

#endif
