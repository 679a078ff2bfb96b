/*
 * sim_fiber.c: coroutines: their stacks, and switches between them and the scheduler.
 *
 * All stacks are in one mapping, each with a guard page below it, so that an overflow faults
 * instead of overwriting another stack. A coroutine is started with ucontext. After that, switches
 * use _setjmp and _longjmp, because swapcontext enters the kernel each time; builds with a
 * sanitizer always use swapcontext and notify the sanitizer of each switch. A coroutine that never
 * ends is freed with its stack.
 */
#include "base/base.h"
#include "sim/sim.h"

#include <setjmp.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__has_feature)
#define HAS(feature) __has_feature(feature)
#else
#define HAS(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || HAS(address_sanitizer)
#define FOR_ASAN 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define FOR_ASAN 0
#endif
#if defined(__SANITIZE_THREAD__) || HAS(thread_sanitizer)
#define FOR_TSAN 1
#include <sanitizer/tsan_interface.h>
#else
#define FOR_TSAN 0
#endif
#define SWAP_CONTEXTS (FOR_ASAN || FOR_TSAN)

struct tdm__fiber {
    void (*entry)(void *);
    void *argument;
    uint8_t *stack;
    size_t stack_bytes;
    bool begun;
#if SWAP_CONTEXTS
    ucontext_t self, scheduler;
    void *fake_stack, *scheduler_fake_stack; /* for the address sanitizer */
    const void *scheduler_stack;
    size_t scheduler_stack_bytes;
    void *thread, *scheduler_thread; /* for the thread sanitizer */
#else
    jmp_buf self, scheduler;
#endif
};

tdm_status tdm__fibers_init(tdm__fibers *fibers, int count, size_t stack_bytes, tdm_error *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t bytes = (stack_bytes + page - 1) / page * page;
    *fibers = (tdm__fibers){.stack_bytes = bytes, .pitch = bytes + page, .count = count};
    fibers->region_bytes = fibers->pitch * (size_t)count;
    fibers->list = calloc((size_t)count, sizeof(*fibers->list));
    if (!fibers->list) return tdm_fail_oom(err, "for %d coroutines", count);

    void *region = mmap(NULL, fibers->region_bytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) {
        free(fibers->list);
        return tdm_fail(err, TDM_ERR_NO_MEMORY,
                        "sim: no address space for %d stacks of %zu bytes: reduce stack_bytes",
                        count, bytes);
    }
    fibers->region = region;

    for (int i = 0; i < count; i++) {
        tdm__fiber *fiber = &fibers->list[i];
        fiber->stack = fibers->region + (size_t)i * fibers->pitch + page;
        fiber->stack_bytes = bytes;
        if (mprotect(fiber->stack, bytes, PROT_READ | PROT_WRITE) != 0) {
            tdm__fibers_release(fibers);
            return tdm_fail(err, TDM_ERR_NO_MEMORY,
                            "sim: the system allows only %d stacks (vm.max_map_count)", i);
        }
    }
    return TDM_OK;
}

void tdm__fibers_release(tdm__fibers *fibers)
{
#if FOR_TSAN
    for (int i = 0; i < fibers->count; i++)
        if (fibers->list[i].thread) __tsan_destroy_fiber(fibers->list[i].thread);
#endif
#if FOR_ASAN
    if (fibers->region) __asan_unpoison_memory_region(fibers->region, fibers->region_bytes);
#endif
    if (fibers->region) munmap(fibers->region, fibers->region_bytes);
    free(fibers->list);
    *fibers = (tdm__fibers){0};
}

void tdm__fiber_set(tdm__fibers *fibers, int index, void (*entry)(void *), void *argument)
{
    fibers->list[index].entry = entry;
    fibers->list[index].argument = argument;
}

/* makecontext passes ints only. */
static void fiber_main(unsigned high, unsigned low)
{
    uintptr_t address = ((uintptr_t)high << 16 << 16) | (uintptr_t)low;
    tdm__fiber *fiber = (tdm__fiber *)address;
#if FOR_ASAN
    __sanitizer_finish_switch_fiber(NULL, &fiber->scheduler_stack, &fiber->scheduler_stack_bytes);
#endif
    fiber->entry(fiber->argument);
}

static void fiber_prepare(tdm__fiber *fiber, ucontext_t *context)
{
    uintptr_t address = (uintptr_t)fiber;
    getcontext(context);
    context->uc_stack.ss_sp = fiber->stack;
    context->uc_stack.ss_size = fiber->stack_bytes;
    context->uc_link = NULL;
    makecontext(context, (void (*)(void))fiber_main, 2, (unsigned)(address >> 16 >> 16),
                (unsigned)address);
    fiber->begun = true;
}

#if SWAP_CONTEXTS

void tdm__fiber_enter(tdm__fibers *fibers, int index)
{
    tdm__fiber *fiber = &fibers->list[index];
    if (!fiber->begun) fiber_prepare(fiber, &fiber->self);
#if FOR_TSAN
    if (!fiber->thread) fiber->thread = __tsan_create_fiber(0);
    fiber->scheduler_thread = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber->thread, 0);
#endif
#if FOR_ASAN
    __sanitizer_start_switch_fiber(&fiber->scheduler_fake_stack, fiber->stack, fiber->stack_bytes);
#endif
    swapcontext(&fiber->scheduler, &fiber->self);
#if FOR_ASAN
    __sanitizer_finish_switch_fiber(fiber->scheduler_fake_stack, NULL, NULL);
#endif
}

static void fiber_switch_back(tdm__fiber *fiber, bool ends)
{
#if FOR_TSAN
    __tsan_switch_to_fiber(fiber->scheduler_thread, 0);
#endif
#if FOR_ASAN
    __sanitizer_start_switch_fiber(ends ? NULL : &fiber->fake_stack, fiber->scheduler_stack,
                                   fiber->scheduler_stack_bytes);
#endif
    (void)ends;
    swapcontext(&fiber->self, &fiber->scheduler);
#if FOR_ASAN
    __sanitizer_finish_switch_fiber(fiber->fake_stack, &fiber->scheduler_stack,
                                    &fiber->scheduler_stack_bytes);
#endif
}

#else

void tdm__fiber_enter(tdm__fibers *fibers, int index)
{
    tdm__fiber *fiber = &fibers->list[index];
    if (_setjmp(fiber->scheduler) != 0) return;
    if (fiber->begun) _longjmp(fiber->self, 1);
    ucontext_t context;
    fiber_prepare(fiber, &context);
    setcontext(&context);
    abort(); /* setcontext fails only for an invalid argument */
}

static void fiber_switch_back(tdm__fiber *fiber, bool ends)
{
    (void)ends;
    if (_setjmp(fiber->self) == 0) _longjmp(fiber->scheduler, 1);
}

#endif

void tdm__fiber_leave(tdm__fibers *fibers, int index)
{
    fiber_switch_back(&fibers->list[index], false);
}

void tdm__fiber_end(tdm__fibers *fibers, int index)
{
    fiber_switch_back(&fibers->list[index], true);
    abort(); /* never entered again */
}
