/*
 * alloc_count.h: counts the allocations of the whole process, and separates those that oneDNN makes inside
 * dnnl_primitive_execute.
 *
 * Include it in exactly one .c file of a test executable, which must be linked with dl: it defines malloc and
 * its family over glibc's, and dnnl_primitive_execute over oneDNN's. Under AddressSanitizer and
 * ThreadSanitizer, which have their own malloc, it uses their hooks instead; then alloc_count_begin() must be
 * called once before the numbers are valid. ThreadSanitizer does not call its hook for aligned memory: there,
 * ALLOC_COUNT_SEES_ALIGNED is 0.
 *
 * All threads are always counted; a test takes two snapshots and subtracts. Memory is counted as the size that
 * the allocator really reserved, so that freed bytes equal allocated bytes.
 */
#ifndef TANDEM_TESTS_ALLOC_COUNT_H
#define TANDEM_TESTS_ALLOC_COUNT_H

#include <dlfcn.h>
#include <dnnl.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ALLOC_COUNT_ASAN 1
#elif __has_feature(thread_sanitizer)
#define ALLOC_COUNT_TSAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define ALLOC_COUNT_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define ALLOC_COUNT_TSAN 1
#endif

#if defined(ALLOC_COUNT_ASAN) || defined(ALLOC_COUNT_TSAN)
#define ALLOC_COUNT_BY_HOOKS 1
#endif
#if defined(ALLOC_COUNT_TSAN)
#define ALLOC_COUNT_SEES_ALIGNED 0
#else
#define ALLOC_COUNT_SEES_ALIGNED 1
#endif

/* Exported, so that libraries call these functions, although everything else is built with hidden symbols. */
#define ALLOC_COUNT_VISIBLE __attribute__((visibility("default")))

/* Outside of dnnl_primitive_execute, and inside it. */
typedef enum alloc_count_place { ALLOC_COUNT_OUTSIDE, ALLOC_COUNT_INSIDE } alloc_count_place;

typedef struct alloc_count {
    uint64_t allocations[2]; /* by place */
    uint64_t frees[2];
    int64_t live_bytes[2];   /* allocated less freed, which may be negative */
    uint64_t products;       /* calls of dnnl_primitive_execute */
    uint64_t leaky_products; /* those that changed the number of allocated bytes */
} alloc_count;

static _Atomic uint64_t alloc_count_allocations[2];
static _Atomic uint64_t alloc_count_frees[2];
static _Atomic int64_t alloc_count_live_bytes[2];
static _Atomic uint64_t alloc_count_products;
static _Atomic uint64_t alloc_count_leaky_products;
static _Thread_local alloc_count_place alloc_count_here;
/* of the dnnl_primitive_execute call of this thread */
static _Thread_local int64_t alloc_count_product_bytes;

static inline void alloc_count_allocated(size_t bytes)
{
    atomic_fetch_add(&alloc_count_allocations[alloc_count_here], 1);
    atomic_fetch_add(&alloc_count_live_bytes[alloc_count_here], (int64_t)bytes);
    alloc_count_product_bytes += (int64_t)bytes;
}

static inline void alloc_count_freed(size_t bytes)
{
    atomic_fetch_add(&alloc_count_frees[alloc_count_here], 1);
    atomic_fetch_sub(&alloc_count_live_bytes[alloc_count_here], (int64_t)bytes);
    alloc_count_product_bytes -= (int64_t)bytes;
}

static inline alloc_count alloc_count_now(void)
{
    alloc_count now = {.products = alloc_count_products,
                       .leaky_products = alloc_count_leaky_products};
    for (int place = 0; place < 2; place++) {
        now.allocations[place] = alloc_count_allocations[place];
        now.frees[place] = alloc_count_frees[place];
        now.live_bytes[place] = alloc_count_live_bytes[place];
    }
    return now;
}

/* The difference of two snapshots. */
static inline alloc_count alloc_count_between(const alloc_count *from, const alloc_count *to)
{
    alloc_count d = {.products = to->products - from->products,
                     .leaky_products = to->leaky_products - from->leaky_products};
    for (int place = 0; place < 2; place++) {
        d.allocations[place] = to->allocations[place] - from->allocations[place];
        d.frees[place] = to->frees[place] - from->frees[place];
        d.live_bytes[place] = to->live_bytes[place] - from->live_bytes[place];
    }
    return d;
}

/* ---- the allocator --------------------------------------------------------------------------- */

#ifdef ALLOC_COUNT_BY_HOOKS

int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));
size_t __sanitizer_get_allocated_size(const volatile void *pointer);

static void alloc_count_on_malloc(const volatile void *pointer, size_t bytes)
{
    (void)bytes;
    if (pointer) alloc_count_allocated(__sanitizer_get_allocated_size(pointer));
}

static void alloc_count_on_free(const volatile void *pointer)
{
    if (pointer) alloc_count_freed(__sanitizer_get_allocated_size(pointer));
}

/* Returns false if the hooks cannot be set. */
static inline bool alloc_count_begin(void)
{
    return __sanitizer_install_malloc_and_free_hooks(alloc_count_on_malloc, alloc_count_on_free) >
           0;
}

#else

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *pointer, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);
void __libc_free(void *pointer);

static inline void *alloc_count_new(void *pointer)
{
    if (pointer) alloc_count_allocated(malloc_usable_size(pointer));
    return pointer;
}

ALLOC_COUNT_VISIBLE void *malloc(size_t bytes)
{
    return alloc_count_new(__libc_malloc(bytes));
}

ALLOC_COUNT_VISIBLE void *calloc(size_t count, size_t size)
{
    return alloc_count_new(__libc_calloc(count, size));
}

ALLOC_COUNT_VISIBLE void *realloc(void *pointer, size_t bytes)
{
    size_t before = pointer ? malloc_usable_size(pointer) : 0;
    void *moved = __libc_realloc(pointer, bytes);
    bool released = pointer && (moved || bytes == 0);
    if (released) alloc_count_freed(before);
    return alloc_count_new(moved);
}

ALLOC_COUNT_VISIBLE void *memalign(size_t align, size_t bytes)
{
    return alloc_count_new(__libc_memalign(align, bytes));
}

ALLOC_COUNT_VISIBLE void *aligned_alloc(size_t align, size_t bytes)
{
    return alloc_count_new(__libc_memalign(align, bytes));
}

ALLOC_COUNT_VISIBLE int posix_memalign(void **out, size_t align, size_t bytes)
{
    if (align < sizeof(void *) || (align & (align - 1)) != 0) return EINVAL;
    void *pointer = alloc_count_new(__libc_memalign(align, bytes));
    if (!pointer) return ENOMEM;
    *out = pointer;
    return 0;
}

ALLOC_COUNT_VISIBLE void free(void *pointer)
{
    if (pointer) alloc_count_freed(malloc_usable_size(pointer));
    __libc_free(pointer);
}

static inline bool alloc_count_begin(void)
{
    return true;
}

#endif

/* ---- oneDNN ---------------------------------------------------------------------------------- */

typedef dnnl_status_t (*alloc_count_execute_fn)(const_dnnl_primitive_t, dnnl_stream_t, int,
                                                const dnnl_exec_arg_t *);

ALLOC_COUNT_VISIBLE dnnl_status_t dnnl_primitive_execute(const_dnnl_primitive_t primitive,
                                                         dnnl_stream_t stream, int arg_count,
                                                         const dnnl_exec_arg_t *args)
{
    static _Atomic(alloc_count_execute_fn) original;
    alloc_count_execute_fn execute = original;
    if (!execute) { /* in the first run, which warms up */
        void *symbol = dlsym(RTLD_NEXT, "dnnl_primitive_execute");
        if (!symbol) abort();
        memcpy(&execute, &symbol, sizeof(execute));
        original = execute;
    }
    alloc_count_here = ALLOC_COUNT_INSIDE;
    alloc_count_product_bytes = 0;
    dnnl_status_t status = execute(primitive, stream, arg_count, args);
    alloc_count_here = ALLOC_COUNT_OUTSIDE;
    atomic_fetch_add(&alloc_count_products, 1);
    if (alloc_count_product_bytes != 0) atomic_fetch_add(&alloc_count_leaky_products, 1);
    return status;
}

#endif
