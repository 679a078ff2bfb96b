/*
 * kernel_bench.h: one call of one kernel, directly from the table, with guards around everything.
 *
 * Describe the call with shapes, types and attributes; kernel_bench_open() gives every operand memory between
 * guards with a huge number: a write to a guard is detected, a read of one makes the result wrong.
 * kernel_bench_run() prepares (without data, as a plan does), runs twice with outputs full of NaN and scratch
 * full of the guard's number, and checks that both runs gave the same bits, that inputs are unchanged and that
 * the guards are intact.
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

/* A hash of all bytes of some operands, to detect changes. */
uint64_t kernel_bench_hash(const tdm_tensor *t, int count);

void kernel_bench_run_prepared(kernel_bench *b, const tdm_kernel *kernel, void *backend,
                               tdm_kernel_call *call);

/* By the kernel of this backend, which must have one that needs no open(). Returns the bytes of scratch that
 * it requested. */
size_t kernel_bench_run(kernel_bench *b, const tdm_kernel_backend_ops *ops);

const tdm_kernel_backend_ops *kernel_bench_ref(void);

/* The vector kernels of each level, best first: index 0, 1, ...; NULL past the last. Not from the registry,
 * which returns only the best level that this CPU can run. */
const tdm_kernel_backend_ops *kernel_bench_cpu(size_t index);

/* The largest difference of two arrays; NaN in only one of them counts as huge. */
double kernel_bench_apart(const float *a, const float *b, int64_t count);

double kernel_bench_largest(const float *a, int64_t count);

#endif
