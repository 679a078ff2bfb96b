/*
 * kernel_bench.c: see kernel_bench.h.
 */
#include "kernel/kernel_bench.h"

void *kernel_bench_alloc(size_t bytes)
{
    size_t whole = (bytes + 3 * KERNEL_BENCH_GUARD - 1) / KERNEL_BENCH_GUARD * KERNEL_BENCH_GUARD;
    char *block = aligned_alloc(KERNEL_BENCH_GUARD, whole);
    memset(block, 0xfe, whole);
    return block + KERNEL_BENCH_GUARD;
}

void kernel_bench_free(void *data)
{
    if (data) free((char *)data - KERNEL_BENCH_GUARD);
}

static bool kernel_bench_guards_hold(const void *data, size_t bytes)
{
    unsigned char expected[KERNEL_BENCH_GUARD];
    memset(expected, 0xfe, sizeof(expected));
    return memcmp((const char *)data - KERNEL_BENCH_GUARD, expected, sizeof(expected)) == 0 &&
           memcmp((const char *)data + bytes, expected, sizeof(expected)) == 0;
}

/* Uniform in [-1, 1), a function of the index of the operand. */
static void kernel_bench_fill(tdm_tensor *t, uint32_t what)
{
    tdm_rng rng = tdm_rng_at(
        (tdm_rng_address){.seed = 11, .stream = TDM_RNG_STREAM_USER, .sub_stream = what});
    for (int64_t i = 0; i < tdm_tensor_elements(t); i++)
        ((float *)t->data)[i] = 2.0f * tdm_rng_uniform(&rng) - 1.0f;
}

void kernel_bench_open(kernel_bench *b)
{
    for (int i = 0; i < TDM_OP_MAX_INPUTS; i++) {
        tdm_tensor *t = &b->call.in[i];
        if (!t->dtype) continue;
        t->data = kernel_bench_alloc(tdm_tensor_bytes(t));
        if (t->dtype == TDM_DTYPE_F32) kernel_bench_fill(t, (uint32_t)i);
    }
    for (int o = 0; o < TDM_OP_MAX_OUTPUTS; o++)
        if (b->call.out[o].dtype)
            b->call.out[o].data = kernel_bench_alloc(tdm_tensor_bytes(&b->call.out[o]));
}

void kernel_bench_close(kernel_bench *b)
{
    for (int i = 0; i < TDM_OP_MAX_INPUTS; i++) kernel_bench_free(b->call.in[i].data);
    for (int o = 0; o < TDM_OP_MAX_OUTPUTS; o++) kernel_bench_free(b->call.out[o].data);
}

uint64_t kernel_bench_hash(const tdm_tensor *t, int count)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < count; i++)
        for (size_t k = 0, bytes = tdm_tensor_bytes(&t[i]); k < bytes; k++)
            hash = (hash ^ ((const unsigned char *)t[i].data)[k]) * 0x100000001b3u;
    return hash;
}

void kernel_bench_run_prepared(kernel_bench *b, const tdm_kernel *kernel, void *backend,
                               tdm_kernel_call *call)
{
    uint64_t first = 0;
    uint64_t inputs = kernel_bench_hash(call->in, TDM_OP_MAX_INPUTS);
    for (int run = 0; run < 2; run++) {
        for (int o = 0; o < TDM_OP_MAX_OUTPUTS; o++)
            if (call->out[o].dtype)
                memset(call->out[o].data, 0xff, tdm_tensor_bytes(&call->out[o]));
        memset(call->scratch, 0xfe, call->scratch_bytes);
        kernel->run(backend, call, &b->key);
        uint64_t hash = kernel_bench_hash(call->out, TDM_OP_MAX_OUTPUTS);
        CHECK(run == 0 || hash == first);
        first = hash;
    }
    CHECK(kernel_bench_hash(call->in, TDM_OP_MAX_INPUTS) == inputs);
    CHECK(kernel_bench_guards_hold(call->scratch, call->scratch_bytes));
    for (int i = 0; i < TDM_OP_MAX_INPUTS; i++)
        if (call->in[i].dtype)
            CHECK(kernel_bench_guards_hold(call->in[i].data, tdm_tensor_bytes(&call->in[i])));
    for (int o = 0; o < TDM_OP_MAX_OUTPUTS; o++)
        if (call->out[o].dtype)
            CHECK(kernel_bench_guards_hold(call->out[o].data, tdm_tensor_bytes(&call->out[o])));
}

size_t kernel_bench_run(kernel_bench *b, const tdm_kernel_backend_ops *ops)
{
    tdm_error err = {0};
    const tdm_kernel *kernel = tdm_kernel_find(ops, b->op, b->call.out[0].dtype);
    tdm_kernel_call call = b->call;
    int before = tdm_kernel_threads_set(b->threads > 0 ? b->threads : 1);
    CHECK(kernel && !ops->open);
    for (int i = 0; i < TDM_OP_MAX_INPUTS; i++) call.in[i].data = NULL;
    for (int o = 0; o < TDM_OP_MAX_OUTPUTS; o++) call.out[o].data = NULL;
    if (kernel->prepare) CHECK_INT(kernel->prepare(NULL, &call, &err), TDM_OK);
    for (int i = 0; i < TDM_OP_MAX_INPUTS; i++) call.in[i].data = b->call.in[i].data;
    for (int o = 0; o < TDM_OP_MAX_OUTPUTS; o++) call.out[o].data = b->call.out[o].data;
    call.scratch = kernel_bench_alloc(call.scratch_bytes);
    kernel_bench_run_prepared(b, kernel, NULL, &call);
    kernel_bench_free(call.scratch);
    if (kernel->release) kernel->release(&call);
    tdm_kernel_threads_set(before);
    return call.scratch_bytes;
}

const tdm_kernel_backend_ops *kernel_bench_ref(void)
{
    return tdm_kernel_backend_at(tdm_kernel_backend_count() - 1);
}

const tdm_kernel_backend_ops *kernel_bench_cpu(size_t index)
{
    static const tdm_kernel_backend_ops *const levels[] = {
#if defined(__x86_64__)
        &tdm__kernels_cpu_4,
        &tdm__kernels_cpu_3,
        &tdm__kernels_cpu_2,
#else
        &tdm__kernels_cpu_0,
#endif
    };
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++)
        if (levels[i]->level <= tdm_kernel_level() && index-- == 0) return levels[i];
    return NULL;
}

double kernel_bench_apart(const float *a, const float *b, int64_t count)
{
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        double apart = fabs((double)a[i] - (double)b[i]);
        if (isnan(apart)) apart = isnan(a[i]) && isnan(b[i]) ? 0 : INFINITY;
        if (apart > worst) worst = apart;
    }
    return worst;
}

double kernel_bench_largest(const float *a, int64_t count)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs((double)a[i]));
    return largest;
}
