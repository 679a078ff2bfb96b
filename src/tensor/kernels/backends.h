/* backends.h: the tables that the backend directories export to registry.c. */
#ifndef TANDEM_TENSOR_KERNELS_BACKENDS_H
#define TANDEM_TENSOR_KERNELS_BACKENDS_H

#include "tensor/kernel.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

extern const tdm_kernel_backend_ops tdm__kernels_ref;
extern const tdm_kernel_backend_ops tdm__kernels_onednn;
/* Products and convolutions of f32 with a defined order of operations: product/. */
extern const tdm_kernel_backend_ops tdm__kernels_product, tdm__kernels_winograd;
/* Products of bf16: in a defined order (bf16/bf16.h), and the remaining shapes, computed as f32. */
extern const tdm_kernel_backend_ops tdm__kernels_bf16, tdm__kernels_wide, tdm__kernels_wide_vendor;
/* One for each compiled level: see cpu/vec/vec.h. */
extern const tdm_kernel_backend_ops tdm__kernels_cpu_0, tdm__kernels_cpu_2, tdm__kernels_cpu_3,
    tdm__kernels_cpu_4;

/* In the control word: subnormal numbers are zero, as inputs (x86-64's DAZ) and as results. */
#if defined(__x86_64__)
#define TDM__CONTROL_FLUSH UINT64_C(0x8040) /* in MXCSR */
#else
#define TDM__CONTROL_FLUSH (UINT64_C(1) << 24) /* in FPCR, which has one bit for both */
#endif

/* The floating-point control word of this thread. */
static inline uint64_t tdm__control_word(void)
{
#if defined(__x86_64__)
    return _mm_getcsr();
#elif defined(__aarch64__)
    uint64_t word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
#else
    return 0;
#endif
}

static inline void tdm__control_set(uint64_t word)
{
#if defined(__x86_64__)
    _mm_setcsr((unsigned)word);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(word));
#else
    (void)word;
#endif
}

/*
 * Rounds the bits of an f32 to the nearest bf16, ties to even. Overflow gives infinity. NaN stays
 * NaN, made quiet; f32 subnormal numbers become 0 of their sign, as in all kernels. CPU
 * instructions for bf16 do the same.
 */
static inline uint16_t tdm__bf16_of(uint32_t f32)
{
    uint32_t magnitude = f32 & 0x7fffffffu, top = f32 >> 16;
    if (magnitude > 0x7f800000u) return (uint16_t)(top | 0x40u);
    if (magnitude < 0x00800000u) return (uint16_t)(top & 0x8000u);
    return (uint16_t)((f32 + 0x7fffu + (top & 1u)) >> 16);
}

/* Loops that other modules and backends use, at the same levels. */
typedef struct tdm__vec_loops {
    bool (*add_into)(float *a, const float *b, size_t count);
    bool (*in_safe_range)(const float *a, size_t count);
    void (*activate)(tdm_activation activation, float *x, int64_t count);
    void (*widen)(const uint16_t *bf16, float *out, int64_t count);
} tdm__vec_loops;

typedef struct tdm__vec_random {
    void (*uniform)(tdm_rng_address address, double scale, size_t first, float *out, size_t count);
    void (*normal)(tdm_rng_address address, double scale, size_t first, float *out, size_t count);
} tdm__vec_random;

extern const tdm__vec_random tdm__vec_random_0, tdm__vec_random_2, tdm__vec_random_3,
    tdm__vec_random_4;
extern const tdm__vec_loops tdm__vec_loops_0, tdm__vec_loops_2, tdm__vec_loops_3, tdm__vec_loops_4;

/* x[i] = f(x[i]) by the vector code of this CPU's level, on the threads that kernels may use here:
 * for kernels of other backends, on numbers that they have just written. The bits are those of the
 * activation's own op. */
void tdm__kernel_activate(tdm_activation activation, float *x, int64_t count);
/* bf16 to f32, which is exact; on the same threads. */
void tdm__kernel_widen(const uint16_t *bf16, float *out, int64_t count);
/* The number of threads that kernels called from this thread may use. */
int tdm__kernel_threads(void);

/*
 * Threads. Work is `count` units (elements, rows, columns) of `unit_cost` numbers each. threads.c
 * decides where to divide it: the bits of a unit must not depend on it. Below TDM__THREADS_ALONE
 * numbers, waking another thread costs more than it saves.
 */
enum { TDM__THREADS_ALONE = 65536, TDM__THREADS_GRAIN = 16384 };

static inline bool tdm__threads_pays(int64_t count, int64_t unit_cost)
{
    return count > 1 && count * unit_cost > TDM__THREADS_ALONE && tdm__kernel_threads() > 1;
}

/* The number of units in a piece. */
static inline int64_t tdm__threads_grain(int64_t unit_cost)
{
    return unit_cost < TDM__THREADS_GRAIN ? TDM__THREADS_GRAIN / (unit_cost > 0 ? unit_cost : 1)
                                          : 1;
}

/* Calls `run` for pieces of `grain` units each, on the threads that kernels may use here; when
 * called inside a piece, for all of them at once on the calling thread. */
void tdm__threads_spread(int64_t count, int64_t grain, tdm_kernel_range_fn run, const void *args);

#ifdef TDM__WITH_ONEDNN
/* oneDNN uses libgomp's threads: sets their number and their floating-point control word. */
void tdm__onednn_threads_set(int thread_count);
void tdm__onednn_control_set(uint64_t word);
#endif

#endif
