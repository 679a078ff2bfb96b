/*
 * graph_bench.h: a plan with its three blocks of memory, bound and filled, for tests of graphs.
 *
 * The arena is filled with NaN before every run, so that a kernel that reads uninitialised memory gives a wrong
 * result. A run may overwrite its inputs, so bench_fill() must be called before every run; the values are a
 * function of the seed and of the position of a name in the graph.
 */
#ifndef TANDEM_TESTS_GRAPH_BENCH_H
#define TANDEM_TESTS_GRAPH_BENCH_H

#include "base/base.h"
#include "check.h"
#include "graph/internal.h"

#include <stdlib.h>

typedef struct bench {
    const tdm_graph *graph; /* borrowed */
    tdm_plan *plan;
    float *arena, *params, *grads;
    size_t arena_bytes, param_bytes, grad_bytes;
} bench;

void *bench_alloc(size_t bytes);

/* Uniform in [-1, 1), with a minimum distance from zero, so that no kink is near. */
float bench_random(tdm_rng *rng);

tdm_rng bench_rng(uint64_t seed, uint32_t what);

void bench_fill_params(bench *b, uint64_t seed);

/* Fills all inputs: f32 with random numbers, i32 with classes below `class_count`. */
void bench_fill(bench *b, uint64_t seed, uint64_t class_count);

/* false (and a failed check) if the plan cannot be created */
bool bench_open(bench *b, const tdm_graph *graph, const tdm_plan_options *options);

void bench_close(bench *b);

void bench_run(bench *b);

#endif
