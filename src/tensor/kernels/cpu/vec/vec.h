/*
 * vec.h: what the vector kernels share.
 *
 * How this folder is compiled, and why names end in a level: tensor/level.h.
 *
 * Vectors are GCC's: `vf` holds TDM__WIDTH floats, and arithmetic on it needs no intrinsics.
 * Reductions keep one partial sum for each vector place and add those in a fixed order at the end:
 * the same bits in every run on machines of one level.
 */
#ifndef TANDEM_TENSOR_KERNELS_CPU_VEC_VEC_H
#define TANDEM_TENSOR_KERNELS_CPU_VEC_VEC_H

#include "tensor/kernels/backends.h"
#include "tensor/level.h"

#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

typedef float vf __attribute__((vector_size(4 * TDM__WIDTH), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * TDM__WIDTH), aligned(4), may_alias));

/* Halves of a `vf`, in double precision: for sums. And unsigned words. */
typedef double vd __attribute__((vector_size(4 * TDM__WIDTH), aligned(4), may_alias));
typedef uint64_t vul __attribute__((vector_size(4 * TDM__WIDTH), aligned(4), may_alias));

static inline vf vf_set(float x)
{
    return x - (vf){0}; /* x + 0 would turn -0 into +0 */
}

static inline vf vf_load(const float *from)
{
    return *(const vf *)from;
}

static inline void vf_store(float *to, vf x)
{
    *(vf *)to = x;
}

/*
 * a b + c, in one rounding where the level has that. Which products and sums the compiler fuses by
 * itself may differ between two copies of one loop; so files in which an element's bits must not
 * depend on its place (CMakeLists.txt names them) are compiled without that, and say it here.
 */
static inline vf vf_fma(vf a, vf b, vf c)
{
#if TDM__LEVEL >= 4
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif TDM__LEVEL == 3
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* Fewer than a vector: `count` of 1 to WIDTH - 1 numbers, the other places hold `rest`. Nothing
 * beyond them is read or written. */
static inline vf vf_load_part(const float *from, int64_t count, float rest)
{
#if TDM__LEVEL >= 4
    return (vf)_mm512_mask_loadu_ps((__m512)vf_set(rest), (__mmask16)((1u << count) - 1), from);
#else
    vf x = vf_set(rest);
    for (int64_t i = 0; i < count; i++) x[i] = from[i];
    return x;
#endif
}

static inline void vf_store_part(float *to, int64_t count, vf x)
{
#if TDM__LEVEL >= 4
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << count) - 1), (__m512)x);
#else
    for (int64_t i = 0; i < count; i++) to[i] = x[i];
#endif
}

/* A vector of `left` numbers or, if there are as many, of WIDTH: the body of every loop, so that an
 * element goes through the same instructions wherever it lies. */
static inline vf vf_load_up_to(const float *from, int64_t left, float rest)
{
    return left >= TDM__WIDTH ? vf_load(from) : vf_load_part(from, left, rest);
}

static inline void vf_store_up_to(float *to, int64_t left, vf x)
{
    if (left >= TDM__WIDTH)
        vf_store(to, x);
    else
        vf_store_part(to, left, x);
}

/* Adds the places of x to two vectors of doubles, and those up in a fixed order. */
typedef struct vsum {
    vd low, high;
} vsum;

/* The places of x in double precision: the lower half of them and the upper. */
static inline vsum vsum_of(vf x)
{
    typedef float half __attribute__((vector_size(2 * TDM__WIDTH)));
    half part[2];
    memcpy(part, &x, sizeof(part));
    return (vsum){__builtin_convertvector(part[0], vd), __builtin_convertvector(part[1], vd)};
}

static inline void vsum_add(vsum *sum, vf x)
{
    vsum wide = vsum_of(x);
    sum->low += wide.low;
    sum->high += wide.high;
}

static inline void vsum_add_product(vsum *sum, vf x, vf y)
{
    vsum a = vsum_of(x), b = vsum_of(y);
    sum->low += a.low * b.low;
    sum->high += a.high * b.high;
}

static inline double vsum_total(const vsum *sum)
{
    vd both = sum->low + sum->high;
    double total = 0;
    for (int i = 0; i < TDM__WIDTH / 2; i++) total += both[i];
    return total;
}

/* The rows and columns of [..., C]. */
static inline int64_t tdm__vec_columns(const tdm_tensor *t)
{
    return t->shape.rank > 0 ? t->shape.dim[t->shape.rank - 1] : 1;
}

static inline int64_t tdm__vec_rows(const tdm_tensor *t)
{
    int64_t rows = 1;
    for (int i = 0; i + 1 < t->shape.rank; i++) rows *= t->shape.dim[i];
    return rows;
}

/*
 * Threads. Work is `count` units (elements, rows, columns) of `unit_cost` numbers each; `run` does
 * those in [begin, end). Where to cut is nobody's business: a unit's bits must not depend on it.
 * Below TDM__VEC_ALONE numbers, waking another thread costs more than it saves.
 */
enum { TDM__VEC_ALONE = 65536, TDM__VEC_GRAIN = 16384 };

typedef tdm_kernel_range_fn tdm__vec_range_fn;

static inline void tdm__vec_split(int64_t count, int64_t unit_cost, tdm__vec_range_fn run,
                                  const void *args)
{
#ifdef _OPENMP
    if (count > 1 && count * unit_cost > TDM__VEC_ALONE && omp_get_max_threads() > 1) {
        int64_t grain = unit_cost < TDM__VEC_GRAIN ? TDM__VEC_GRAIN / unit_cost : 1;
        int64_t piece_count = (count + grain - 1) / grain;
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < piece_count; i++) {
            int64_t begin = i * grain, end = begin + grain;
            run(args, begin, end < count ? end : count);
        }
        return;
    }
#endif
    (void)unit_cost;
    run(args, 0, count);
}

/* The families of this folder; table.c lists them. */
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_basic);
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_pool);
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_batch_norm);
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_cast);
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_norm), TDM__AT_LEVEL(tdm__vec_attention);
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_sums);
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_classes);
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_loss);
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_embedding);
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_dropout);
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_copy);

#endif
