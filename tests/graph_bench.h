/*
 * graph_bench.h: a graph on the bench: a plan with its three blocks of memory, bound and filled.
 *
 * The arena is filled with NaN before every run, so that a kernel that reads what nobody wrote
 * spoils the result. A run may write over its inputs, so bench_fill() must come before every run;
 * what it fills in is a function of the seed and of the names' places in the graph.
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

/* Uniform in [-1, 1), and never so close to zero that a kink could be in reach. */
float bench_random(tdm_rng *rng);

tdm_rng bench_rng(uint64_t seed, uint32_t what);

void bench_fill_params(bench *b, uint64_t seed);

/* Fills all inputs: f32 with random numbers, i32 with classes below `class_count`. */
void bench_fill(bench *b, uint64_t seed, uint64_t class_count);

/* false (and a failed check) when the plan cannot be made. */
bool bench_open(bench *b, const tdm_graph *graph, const tdm_plan_options *options);

void bench_close(bench *b);

void bench_run(bench *b);

#endif
