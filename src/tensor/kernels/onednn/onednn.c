/*
 * onednn.c: the oneDNN backend, which generates code for the CPU at run time. matmul.c has its
 * matrix products, conv.c its convolutions.
 *
 * One engine and one stream for each plan. oneDNN itself makes a few small allocations inside
 * execute (it copies its argument list); nothing else here does.
 */
#include "tensor/kernels/onednn/onednn.h"
#include "base/base.h"
#include "tensor/tensor.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* From GCC's OpenMP runtime, which oneDNN uses; declared here so that no OpenMP header is
 * needed. */
extern void omp_set_num_threads(int count);
extern void GOMP_parallel(void (*run)(void *), void *data, unsigned thread_count, unsigned flags);

/* Of a result, for each thread: a quarter to a half of a core's L2 cache. */
enum { PIECE_BYTES = 512 << 10 };

const char *tdm_tensor_library(char buffer[TDM_LIBRARY_BYTES])
{
    const dnnl_version_t *version = dnnl_version();
    snprintf(buffer, TDM_LIBRARY_BYTES, "oneDNN %d.%d.%d", version->major, version->minor,
             version->patch);
    return buffer;
}

tdm_status tdm__onednn_check(dnnl_status_t status, const char *what, tdm_error *err)
{
    if (status == dnnl_success) return TDM_OK;
    tdm_status kind = status == dnnl_out_of_memory   ? TDM_ERR_NO_MEMORY
                      : status == dnnl_unimplemented ? TDM_ERR_UNSUPPORTED
                                                     : TDM_ERR_INTERNAL;
    return tdm_fail(err, kind, "oneDNN: %s failed with status %d", what, (int)status);
}

/* ---- threads ---------------------------------------------------------------------------------- */

void tdm__onednn_threads_set(int thread_count)
{
    omp_set_num_threads(thread_count > 1 ? thread_count : 1); /* a property of the calling thread */
}

static void control_set_here(void *data)
{
    tdm__control_set((uint64_t)(uintptr_t)data);
}

void tdm__onednn_control_set(uint64_t word)
{
    GOMP_parallel(control_set_here, (void *)(uintptr_t)word, 0, 0);
}

/* ---- engines ---------------------------------------------------------------------------------- */

/* TANDEM_ISA limits oneDNN to the level of the other kernels. This is possible until its first
 * use. */
static void hold_to_level(void)
{
    int level = tdm_kernel_level();
    if (level == tdm_kernel_cpu_level()) return;
    dnnl_status_t status = dnnl_set_max_cpu_isa(level >= 4   ? dnnl_cpu_isa_avx512_core
                                                : level == 3 ? dnnl_cpu_isa_avx2
                                                             : dnnl_cpu_isa_sse41);
    if (status != dnnl_success)
        tdm_log(TDM_LOG_WARN, "tensor", "TANDEM_ISA: cannot limit oneDNN to %s (status %d)",
                tdm_tensor_level_name(level), (int)status);
}

void tdm__onednn_close(void *backend)
{
    tdm__onednn *b = backend;
    if (!b) return;
    if (b->stream) dnnl_stream_destroy(b->stream);
    if (b->engine) dnnl_engine_destroy(b->engine);
    free(b);
}

tdm_status tdm__onednn_open(void **out, tdm_error *err)
{
    static pthread_once_t onednn_isa_once = PTHREAD_ONCE_INIT;
    pthread_once(&onednn_isa_once, hold_to_level);
    tdm__onednn *b = calloc(1, sizeof(*b));
    if (!b) return tdm_fail_oom(err, "for an engine");
    tdm_status status = tdm__onednn_check(dnnl_engine_create(&b->engine, dnnl_cpu, 0),
                                          "making an engine", err);
    if (status == TDM_OK)
        status = tdm__onednn_check(
            dnnl_stream_create(&b->stream, b->engine, dnnl_stream_default_flags), "making a stream",
            err);
    if (status != TDM_OK) {
        tdm__onednn_close(b);
        return status;
    }
    *out = b;
    return TDM_OK;
}

tdm_status tdm__onednn_user_scratchpad(dnnl_primitive_attr_t *out, tdm_error *err)
{
    TDM_TRY(tdm__onednn_check(dnnl_primitive_attr_create(out), "making attributes", err));
    dnnl_status_t status = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
    if (status != dnnl_success) dnnl_primitive_attr_destroy(*out);
    return tdm__onednn_check(status, "choosing whose scratchpad", err);
}

/* Everything was validated in prepare(): a failure here is a bug. */
tdm_status tdm__onednn_reorder(tdm__onednn *b, const dnnl_memory_desc_t *from,
                               const dnnl_memory_desc_t *to, dnnl_primitive_t *out,
                               size_t *pad_bytes, tdm_error *err)
{
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t desc;
    TDM_TRY(tdm__onednn_user_scratchpad(&attr, err));
    dnnl_status_t made = dnnl_reorder_primitive_desc_create(&desc, from, b->engine, to, b->engine,
                                                            attr);
    dnnl_primitive_attr_destroy(attr);
    TDM_TRY(tdm__onednn_check(made, "choosing a way to reorder", err));
    size_t bytes = dnnl_memory_desc_get_size(
        dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
    made = dnnl_primitive_create(out, desc);
    dnnl_primitive_desc_destroy(desc);
    TDM_TRY(tdm__onednn_check(made, "compiling a reorder", err));
    if (bytes > *pad_bytes) *pad_bytes = bytes;
    return TDM_OK;
}

void tdm__onednn_execute(const tdm__onednn *b, dnnl_primitive_t primitive, int arg_count,
                         const dnnl_exec_arg_t *args)
{
    dnnl_status_t status = dnnl_primitive_execute(primitive, b->stream, arg_count, args);
    assert(status == dnnl_success);
    (void)status;
}

int64_t tdm__onednn_piece(int64_t count, int64_t unit_bytes)
{
    int64_t units = (int64_t)PIECE_BYTES * tdm__kernel_threads() / unit_bytes;
    return units < 1 ? 1 : units < count ? units : count;
}

/* The list of kernels that use oneDNN. */
static const tdm_kernel_family *const families[] = {&tdm__onednn_matmul, &tdm__onednn_conv, NULL};

const tdm_kernel_backend_ops tdm__kernels_onednn = {
    .name = "onednn",
    .vendor = true,
    .open = tdm__onednn_open,
    .close = tdm__onednn_close,
    .families = families,
};
