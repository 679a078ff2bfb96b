/* registry.c: the visible list of compute backends, in order of preference. */
#include "tensor/kernel.h"
#include "tensor/kernels/backends.h"

/* Declared here because clang without its own OpenMP has no omp.h; GCC's runtime, which oneDNN is
 * linked with, provides them. */
extern int omp_get_max_threads(void);
extern void omp_set_num_threads(int count);

static const tdm_kernel_backend_ops *const backends[] = {
    &tdm__kernels_onednn,
    &tdm__kernels_ref,
};

size_t tdm_kernel_backend_count(void)
{
    return sizeof(backends) / sizeof(backends[0]);
}

const tdm_kernel_backend_ops *tdm_kernel_backend_at(size_t index)
{
    return backends[index];
}

const tdm_kernel *tdm_kernel_find(const tdm_kernel_backend_ops *backend, tdm_op_kind op,
                                  tdm_dtype dtype)
{
    for (size_t i = 0; i < backend->kernel_count; i++)
        if (backend->kernels[i].op == op && backend->kernels[i].dtype == dtype)
            return &backend->kernels[i];
    return NULL;
}

int tdm_kernel_threads_set(int thread_count)
{
    /* oneDNN is threaded by OpenMP, whose thread count is a property of the calling thread. */
    int before = omp_get_max_threads();
    omp_set_num_threads(thread_count);
    return before;
}
