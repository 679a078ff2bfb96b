/* loops.c: what other rooms need done to long rows of numbers; see tdm_kernel_add_into. */
#include "tensor/kernels/cpu/vec/vec.h"

static void add_into(float *a, const float *b, size_t count)
{
    int64_t n = (int64_t)count;
    for (int64_t i = 0; i < n; i += TDM__WIDTH)
        vf_store_up_to(a + i, n - i,
                       vf_load_up_to(a + i, n - i, 0) + vf_load_up_to(b + i, n - i, 0));
}

static void control(uint64_t word)
{
#ifdef _OPENMP
    if (omp_get_max_threads() > 1) {
#pragma omp parallel
        tdm__control_set(word);
    }
#endif
    tdm__control_set(word);
}

static void spread(int64_t count, int64_t unit_cost, tdm_kernel_range_fn run, const void *args)
{
    tdm__vec_split(count, unit_cost, run, args);
}

const tdm__vec_loops TDM__AT_LEVEL(tdm__vec_loops) = {
    .add_into = add_into, .control = control, .spread = spread};
