/*
 * random_graph.h: random training graphs: some tens of ops over small matrices, with values that are never
 * used, used once or often, views of views, and parameters in all roles. The same seed gives the same graph,
 * value by value.
 */
#ifndef TANDEM_TESTS_KERNEL_RANDOM_GRAPH_H
#define TANDEM_TESTS_KERNEL_RANDOM_GRAPH_H

#include "base/base.h"
#include "graph/internal.h"

#include <stdio.h>

enum { RANDOM_GRAPH_POOL = 64, RANDOM_GRAPH_CLASSES = 4 };

typedef struct random_graph {
    tdm_graph *graph;
    tdm_rng rng;
    tdm_value pool[RANDOM_GRAPH_POOL]; /* matrices, all of them */
    size_t pool_count;
    int name_count;
} random_graph;

/* A graph with gradients and some outputs, or NULL (with the reason in `err`). */
tdm_graph *random_graph_make(uint64_t seed, tdm_error *err);

#endif
