/*
 * cast.c: rounds f32 to bf16 by integer arithmetic, so the bits are those of tdm__bf16_of at every
 * level and index.
 */
#include "tensor/kernels/cpu/vec/vec.h"

typedef uint32_t vu __attribute__((vector_size(4 * TDM__WIDTH), aligned(4), may_alias));
typedef uint16_t vh __attribute__((vector_size(2 * TDM__WIDTH), aligned(2), may_alias));

typedef struct rounding {
    const float *from;
    uint16_t *to;
} rounding;

/* `yes` where the mask has all bits, `no` where it has none. */
static inline vu cast_choose(vu mask, vu yes, vu no)
{
    return (mask & yes) | (~mask & no);
}

static inline vh round_vector(vu x)
{
    vu magnitude = x & 0x7fffffffu, top = x >> 16;
    vu is_nan = (vu)(magnitude > 0x7f800000u), is_tiny = (vu)(magnitude < 0x00800000u);
    vu nearest = (x + 0x7fffu + (top & 1u)) >> 16;
    vu rest = cast_choose(is_tiny, top & 0x8000u, nearest);
    return __builtin_convertvector(cast_choose(is_nan, top | 0x40u, rest), vh);
}

static void range_round(const void *args, int64_t begin, int64_t end)
{
    const rounding *r = args;
    int64_t i = begin;
    for (; i + TDM__WIDTH <= end; i += TDM__WIDTH)
        *(vh *)(r->to + i) = round_vector((vu)vf_load(r->from + i));
    for (; i < end; i++) {
        uint32_t bits;
        memcpy(&bits, r->from + i, sizeof(bits));
        r->to[i] = tdm__bf16_of(bits);
    }
}

static void run_cast(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    rounding r = {.from = call->in[0].data, .to = call->out[0].data};
    tdm__vec_split(tdm_tensor_elements(&call->in[0]), 1, range_round, &r);
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_CAST, .dtype = TDM_DTYPE_BF16, .run = run_cast},
};

const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_cast) = {kernels,
                                                        sizeof(kernels) / sizeof(kernels[0])};
