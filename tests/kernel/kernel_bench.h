/*
 * kernel_bench.h: one call of one kernel, straight from the table, with everything between guards.
 *
 * Describe the call with shapes, types and attributes; kernel_bench_open() gives every operand memory
 * between guards of a huge number: a write over one is seen, a read of one spoils the result.
 * kernel_bench_run() prepares (without data, as a plan does), runs twice over outputs full of NaN
 * and scratch full of the guard, and checks that both runs gave the same bits, that inputs came back
 * untouched and that the guards hold.
 */
#ifndef TANDEM_TESTS_KERNEL_KERNEL_BENCH_H
#define TANDEM_TESTS_KERNEL_KERNEL_BENCH_H

#include "base/base.h"
#include "check.h"
#include "tensor/kernels/backends.h"

#include <stdlib.h>

enum { KERNEL_BENCH_GUARD = 64 }; /* bytes on either side; also the alignment */

typedef struct kernel_bench {
    tdm_op_kind op;
    tdm_kernel_call call; /* shapes, types and attributes by the caller */
    tdm_step_key key;
    int threads; /* 0: 1 */
} kernel_bench;

void *kernel_bench_alloc(size_t bytes);

void kernel_bench_free(void *data);

/* Memory for every operand that has a type; f32 inputs are filled with random numbers. */
void kernel_bench_open(kernel_bench *b);

void kernel_bench_close(kernel_bench *b);

/* A hash of all bytes of some operands, for "did anything change". */
uint64_t kernel_bench_hash(const tdm_tensor *t, int count);

void kernel_bench_run_prepared(kernel_bench *b, const tdm_kernel *kernel, void *backend,
                               tdm_kernel_call *call);

/* By the kernel of this backend, which must have one that needs no open(). Returns the bytes of
 * scratch it asked for. */
size_t kernel_bench_run(kernel_bench *b, const tdm_kernel_backend_ops *ops);

const tdm_kernel_backend_ops *kernel_bench_ref(void);

/* The vector kernels of one level after another, best first: index 0, 1, ...; NULL past the last. Not
 * by the registry, which offers only the best that this processor can run. */
const tdm_kernel_backend_ops *kernel_bench_cpu(size_t index);

/* The largest difference of two arrays; NaN in either, where the other has none, counts as huge. */
double kernel_bench_apart(const float *a, const float *b, int64_t count);

double kernel_bench_largest(const float *a, int64_t count);

#endif
