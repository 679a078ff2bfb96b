/* registry.c: the list of compute backends, in order of preference. */
#include "tensor/kernel.h"
#include "tensor/kernels/backends.h"
#include "tensor/kernels/product/product.h"
#include "tensor/kernels/product/winograd.h"
#include "tensor/tensor.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const tdm_kernel_backend_ops *const backends[] = {
    &tdm__kernels_bf16,     &tdm__kernels_wide_vendor, &tdm__kernels_wide,
#ifdef TDM__WITH_ONEDNN
    &tdm__kernels_onednn,
#endif
    &tdm__kernels_winograd, &tdm__kernels_product,
#if defined(__x86_64__)
    &tdm__kernels_cpu_4,    &tdm__kernels_cpu_3,       &tdm__kernels_cpu_2,
#else
    &tdm__kernels_cpu_0,
#endif
    &tdm__kernels_ref,
};

enum { BACKEND_COUNT = sizeof(backends) / sizeof(backends[0]) };

#if defined(__x86_64__) && defined(__clang__) && __clang_major__ < 18
/* This clang supports features but not levels; the features it cannot query come with the
 * others. */
#define HAS_V2 (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt"))
#define HAS_V3                                                                                     \
    (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&                            \
     __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2"))
#define HAS_V4                                                                                     \
    (HAS_V3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&          \
     __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&                   \
     __builtin_cpu_supports("avx512vl"))
#elif defined(__x86_64__)
#define HAS_V2 __builtin_cpu_supports("x86-64-v2")
#define HAS_V3 __builtin_cpu_supports("x86-64-v3")
#define HAS_V4 __builtin_cpu_supports("x86-64-v4")
#else
#define HAS_V2 false
#define HAS_V3 false
#define HAS_V4 false
#endif

int tdm_kernel_cpu_level(void)
{
    return HAS_V4 ? 4 : HAS_V3 ? 3 : HAS_V2 ? 2 : 0;
}

/* The level set by TANDEM_ISA, at most `max`; `max` if it is unset or invalid. */
static int level_by_environment(int max)
{
    static const char *const names[] = {[2] = "v2", [3] = "v3", [4] = "v4"};
    const char *asked = getenv("TANDEM_ISA");
    if (!asked || !*asked) return max;
    for (int level = 2; level <= 4; level++) {
        if (strcmp(asked, names[level]) != 0) continue;
        if (level <= max) return level;
        tdm_log(TDM_LOG_WARN, "tensor",
                "TANDEM_ISA=%s: this CPU does not have the instructions of x86-64-%s, so kernels "
                "use %s",
                asked, asked, tdm_tensor_level_name(max));
        return max;
    }
    tdm_log(TDM_LOG_WARN, "tensor",
            "TANDEM_ISA=%s: not a level, so kernels use %s; set it to v2, v3 or v4 (x86-64), or "
            "unset it",
            asked, tdm_tensor_level_name(max));
    return max;
}

static atomic_int level_in_use; /* 0: not known yet, or a CPU without levels */

static void level_find(void)
{
    atomic_store(&level_in_use, level_by_environment(tdm_kernel_cpu_level()));
}

/* TANDEM_ISA is read once: the level of a process never changes. */
int tdm_kernel_level(void)
{
    static pthread_once_t level_once = PTHREAD_ONCE_INIT;
    int level = atomic_load_explicit(&level_in_use, memory_order_relaxed);
    if (level > 0) return level;
    pthread_once(&level_once, level_find);
    return atomic_load(&level_in_use);
}

const char *tdm_tensor_level_name(int level)
{
    switch (level) {
    case 2: return "x86-64-v2";
    case 3: return "x86-64-v3";
    case 4: return "x86-64-v4";
#if defined(__aarch64__)
    default: return "armv8-a";
#else
    default: return "portable C";
#endif
    }
}

int tdm_tensor_level(void)
{
    return tdm_kernel_level();
}

/* Of backends that are compiled for several levels, only that of the level in use. */
static bool backend_is_usable(const tdm_kernel_backend_ops *backend)
{
    return backend->level == 0 || backend->level == tdm_kernel_level();
}

size_t tdm_kernel_backend_count(void)
{
    size_t count = 0;
    for (size_t i = 0; i < BACKEND_COUNT; i++) count += backend_is_usable(backends[i]);
    return count;
}

const tdm_kernel_backend_ops *tdm_kernel_backend_at(size_t index)
{
    for (size_t i = 0; i < BACKEND_COUNT; i++)
        if (backend_is_usable(backends[i]) && index-- == 0) return backends[i];
    return NULL;
}

const tdm_kernel *tdm_kernel_find(const tdm_kernel_backend_ops *backend, tdm_op_kind op,
                                  tdm_dtype dtype)
{
    for (const tdm_kernel_family *const *f = backend->families; *f; f++)
        for (size_t i = 0; i < (*f)->count; i++)
            if ((*f)->kernels[i].op == op && (*f)->kernels[i].dtype == dtype)
                return &(*f)->kernels[i];
    return NULL;
}

/* The table of the level in use. */
#if defined(__x86_64__)
#define HERE(table)                                                                                \
    (tdm_kernel_level() >= 4 ? &table##_4 : tdm_kernel_level() == 3 ? &table##_3 : &table##_2)
#else
#define HERE(table) (&table##_0)
#endif

static const tdm__vec_loops *loops_here(void)
{
    return HERE(tdm__vec_loops);
}

bool tdm_kernel_add_into(float *a, const float *b, size_t count)
{
    return loops_here()->add_into(a, b, count);
}

bool tdm_kernel_in_safe_range(const float *a, size_t count)
{
    return loops_here()->in_safe_range(a, count);
}

const tdm__vec_product *tdm__product_here(void)
{
    return HERE(tdm__vec_product);
}

const tdm__vec_winograd *tdm__winograd_here(void)
{
    return HERE(tdm__vec_winograd);
}

void tdm_kernel_uniform(tdm_rng_address address, double scale, size_t first, float *out,
                        size_t count)
{
    HERE(tdm__vec_random)->uniform(address, scale, first, out, count);
}

void tdm_kernel_normal(tdm_rng_address address, double scale, size_t first, float *out,
                       size_t count)
{
    HERE(tdm__vec_random)->normal(address, scale, first, out, count);
}

void tdm__kernel_activate(tdm_activation activation, float *x, int64_t count)
{
    loops_here()->activate(activation, x, count);
}

void tdm__kernel_widen(const uint16_t *bf16, float *out, int64_t count)
{
    loops_here()->widen(bf16, out, count);
}

#ifndef TDM__WITH_ONEDNN
const char *tdm_tensor_library(char buffer[TDM_LIBRARY_BYTES])
{
    buffer[0] = '\0';
    return NULL;
}
#endif
