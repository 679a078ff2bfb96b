/*
 * lanes_bench.h: executes the lanes of a batch: each has a separate plan and memory, and runs up to its next
 * sum over lanes. When all lanes have reached it, every lane gets the sum, added by a binary tree over their
 * index. The k-th sum of one lane corresponds to the k-th of every other.
 */
#ifndef TANDEM_TESTS_KERNEL_LANES_BENCH_H
#define TANDEM_TESTS_KERNEL_LANES_BENCH_H

#include "graph/graph.h"
#include "graph_bench.h"

enum { MAX_LANES = 8 };

typedef struct lanes_bench {
    int count;
    tdm_graph *graphs[MAX_LANES]; /* owned */
    bench lanes[MAX_LANES];
    int64_t first_rows[MAX_LANES]; /* of the batch */
    size_t sums;                   /* number of sums that the last run exchanged */
} lanes_bench;

/* Takes the graph, also if no plan can be created for it. */
void lanes_bench_add(lanes_bench *b, tdm_graph *graph, int64_t first_row);

void lanes_bench_close(lanes_bench *b);

void lanes_bench_run(lanes_bench *b);

/* The sum over the lanes of one number of the block of gradients. */
double lanes_bench_grad(const lanes_bench *b, size_t index);

double lanes_bench_loss(const lanes_bench *b);

#endif
