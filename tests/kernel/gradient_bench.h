/*
 * gradient_bench.h: compares a gradient with central differences.
 *
 * A case builds a graph with parameters and one scalar loss and passes it to compare(). The plan computes loss
 * and gradients in f32, by `ref` and by the best kernels; double_eval.h computes the loss in double precision,
 * and every number of every parameter is changed up and down by a small step. The differences are accurate to
 * about 1e-9, so the comparison allows only the rounding of f32 arithmetic. Whole-number inputs are drawn below
 * CLASS_COUNT.
 */
#ifndef TANDEM_TESTS_KERNEL_GRADIENT_BENCH_H
#define TANDEM_TESTS_KERNEL_GRADIENT_BENCH_H

#include "graph_bench.h"
#include "kernel/double_eval.h"

enum { CLASS_COUNT = 3 };

static const tdm_init unused_init = {.kind = TDM_INIT_ZERO};

tdm_value param(tdm_graph *g, const char *name, int64_t rows, int64_t cols);

/* A scalar from any value: its numbers, each times a fixed random weight, summed. */
tdm_value weighted_sum(tdm_graph *g, const char *weights_name, tdm_value x);

/* Takes the graph: adds gradients, compares, destroys. `more` evaluates ops that double_eval.h does not
 * support; it may be NULL. */
void compare_with(tdm_graph *g, tdm_value loss, double_eval_more_fn more);

void compare(tdm_graph *g, tdm_value loss);

#endif
