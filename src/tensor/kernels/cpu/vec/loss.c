/*
 * loss.c: the element-wise losses, penalties on weights, and their gradients.
 *
 * A sum is divided into pieces of PIECE numbers. Each piece is summed in double precision, with one
 * partial sum for each logical position (vec.h), and the pieces are added in order: the bits do not
 * depend on the number of threads. The last positions are padded with numbers whose loss is 0.
 * Gradients are one pass, in which a vector is read before it is written: they may overwrite x or
 * target.
 */
#include "tensor/kernels/cpu/vec/math.h"

#define TEMPLATE static inline __attribute__((always_inline))

enum { PIECE = 32768 };

typedef struct work {
    const float *x, *t;
    float *out;
    double *partial; /* of each piece */
    int64_t count;
    float delta;
    float factor; /* of gradients: the scale times d_loss */
} work;

/* The contribution of a vector of x and one of targets to the sum, and the slope by x. */
typedef void (*add_fn)(vsum_part *sum, vf x, vf t, float delta);
typedef vf (*slope_fn)(vf x, vf t, float delta);

/* ---- the functions ---------------------------------------------------------------------------- */

/* -1, 0 or 1; NaN stays NaN. */
static inline vf vec_sign(vf x)
{
    vf zero = vf_set(0);
    return vf_pick_less(zero, x, vf_set(1), vf_pick_less(x, zero, vf_set(-1), x));
}

/* ln(1 + e) for e in [0, 1]. 1 + e is rounded; the quotient compensates for that. */
static inline vf log_1_plus(vf e)
{
    vf u = 1.0f + e, one = vf_set(1);
    vf y = vlogf(u) * (e / vf_pick_less(one, u, u - 1.0f, one));
    return vf_pick_less(one, u, y, e); /* NaN stays */
}

static inline void add_mse(vsum_part *sum, vf x, vf t, float delta)
{
    (void)delta;
    vsum_add_product(sum, x - t, x - t);
}

static inline vf mse_slope(vf x, vf t, float delta)
{
    (void)delta;
    return 2.0f * (x - t);
}

static inline void add_l1(vsum_part *sum, vf x, vf t, float delta)
{
    (void)delta;
    vsum_add(sum, vf_abs(x - t));
}

static inline vf l1_slope(vf x, vf t, float delta)
{
    (void)delta;
    return vec_sign(x - t);
}

/* With c = min(off, delta), both branches are c (off - c / 2). */
static inline void add_huber(vsum_part *sum, vf x, vf t, float delta)
{
    vf off = vf_abs(x - t), near = vf_min(vf_set(delta), off);
    vsum_add_product(sum, near, off - 0.5f * near);
}

static inline vf huber_slope(vf x, vf t, float delta)
{
    return vf_min(vf_set(delta), vf_max(vf_set(-delta), x - t));
}

/* ln(1 + e^x) - t x, written so that no exponential overflows: max(x, 0) - t x + ln(1 + e^-|x|). */
static inline void add_bce_logits(vsum_part *sum, vf x, vf t, float delta)
{
    (void)delta;
    vsum_add_product(sum, vf_pick_less(x, vf_set(0), -t, 1.0f - t), x);
    vsum_add(sum, log_1_plus(vexpf(-vf_abs(x))));
}

static inline vf bce_logits_slope(vf x, vf t, float delta)
{
    (void)delta;
    return vsigmoidf(x) - t;
}

/* t (ln t - x); t ln t is 0 at t = 0. */
static inline void add_kl(vsum_part *sum, vf x, vf t, float delta)
{
    (void)delta;
    vf zero = vf_set(0), size = vf_abs(t);
    vf log_t = vf_pick_less(zero, size, vlogf(t), zero); /* 0 where t is 0, or NaN, which t
                                                          * preserves */
    vsum_add_product(sum, t, log_t - x);
}

static inline vf kl_slope(vf x, vf t, float delta)
{
    (void)x;
    (void)delta;
    return -t;
}

static inline void add_size(vsum_part *sum, vf x, vf t, float delta)
{
    (void)t;
    (void)delta;
    vsum_add(sum, vf_abs(x));
}

static inline void add_square(vsum_part *sum, vf x, vf t, float delta)
{
    (void)t;
    (void)delta;
    vsum_add_product(sum, x, x);
}

static inline vf size_slope(vf x, vf t, float delta)
{
    (void)t;
    (void)delta;
    return vec_sign(x);
}

static inline vf square_slope(vf x, vf t, float delta)
{
    (void)t;
    (void)delta;
    return x + x;
}

/* ---- whole tensors ---------------------------------------------------------------------------- */

/* A unit is a piece. x is padded with `rest`, the target with 0; a penalty has no target, and reads
 * w twice. */
TEMPLATE void sum_range(const void *args, int64_t begin, int64_t end, add_fn add, float rest)
{
    const work *w = args;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t first = unit * PIECE;
        int64_t count = w->count - first < PIECE ? w->count - first : PIECE;
        vsum sum = VSUM_ZERO;
        for (int64_t i = 0; i < count; i += TDM__PLACES)
            for (int p = 0; p < TDM__PARTS; p++) {
                int64_t at = i + p * TDM__WIDTH, left = count - at;
                add(&sum.part[p], vf_load_up_to(w->x + first + at, left, rest),
                    vf_load_up_to(w->t + first + at, left, 0), w->delta);
            }
        w->partial[unit] = vsum_total(&sum);
    }
}

/* A unit is a number. */
TEMPLATE void slope_range(const void *args, int64_t begin, int64_t end, slope_fn slope)
{
    const work *w = args;
    for (int64_t i = begin; i < end; i += TDM__WIDTH) {
        vf x = vf_load_up_to(w->x + i, end - i, 0), t = vf_load_up_to(w->t + i, end - i, 0);
        vf_store_up_to(w->out + i, end - i, w->factor * slope(x, t, w->delta));
    }
}

#define RANGES(name, add, slope, rest)                                                             \
    static void range_##name(const void *args, int64_t begin, int64_t end)                         \
    {                                                                                              \
        sum_range(args, begin, end, add, rest);                                                    \
    }                                                                                              \
    static void range_##name##_grad(const void *args, int64_t begin, int64_t end)                  \
    {                                                                                              \
        slope_range(args, begin, end, slope);                                                      \
    }

RANGES(mse, add_mse, mse_slope, 0)
RANGES(l1, add_l1, l1_slope, 0)
RANGES(huber, add_huber, huber_slope, 0)
RANGES(bce_logits, add_bce_logits, bce_logits_slope, -1e3f) /* e^-1000 is 0 */
RANGES(kl, add_kl, kl_slope, 0)
RANGES(size, add_size, size_slope, 0)
RANGES(square, add_square, square_slope, 0)

typedef struct ranges {
    tdm__vec_range_fn sum, grad;
} ranges;

static const ranges losses[] = {
    [TDM_LOSS_MSE] = {range_mse, range_mse_grad},
    [TDM_LOSS_L1] = {range_l1, range_l1_grad},
    [TDM_LOSS_HUBER] = {range_huber, range_huber_grad},
    [TDM_LOSS_BCE_LOGITS] = {range_bce_logits, range_bce_logits_grad},
    [TDM_LOSS_KL] = {range_kl, range_kl_grad},
};

static const ranges penalties[] = {
    [1] = {range_size, range_size_grad}, [2] = {range_square, range_square_grad}};

/* ---- the ops ---------------------------------------------------------------------------------- */

static int64_t pieces_of(const tdm_kernel_call *call)
{
    return (tdm_tensor_elements(&call->in[0]) + PIECE - 1) / PIECE;
}

static tdm_status prepare_sum(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    (void)backend;
    (void)err;
    call->scratch_bytes = (size_t)pieces_of(call) * sizeof(double);
    return TDM_OK;
}

/* x and target are inputs 0 and `target`. */
static work work_of(const tdm_kernel_call *call, int target)
{
    return (work){.x = call->in[0].data,
                  .t = call->in[target].data,
                  .out = call->out[0].data,
                  .partial = call->scratch,
                  .count = tdm_tensor_elements(&call->in[0]),
                  .delta = call->attrs.delta};
}

static void sum_up(const tdm_kernel_call *call, const work *w, tdm__vec_range_fn range)
{
    int64_t piece_count = pieces_of(call);
    double sum = 0;
    tdm__vec_split(piece_count, PIECE, range, w);
    for (int64_t i = 0; i < piece_count; i++) sum += w->partial[i];
    *w->out = (float)(sum * call->attrs.scale);
}

static void spread_slopes(const tdm_kernel_call *call, work *w, const tdm_tensor *d,
                          tdm__vec_range_fn range)
{
    w->factor = (float)(call->attrs.scale * (double)*(const float *)d->data);
    tdm__vec_split(w->count, 1, range, w);
}

static void run_loss(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    work w = work_of(call, 1);
    sum_up(call, &w, losses[call->attrs.loss].sum);
}

static void run_loss_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    work w = work_of(call, 1);
    spread_slopes(call, &w, &call->in[2], losses[call->attrs.loss].grad);
}

static void run_penalty(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    work w = work_of(call, 0);
    sum_up(call, &w, penalties[call->attrs.power].sum);
}

static void run_penalty_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    work w = work_of(call, 0);
    spread_slopes(call, &w, &call->in[1], penalties[call->attrs.power].grad);
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_LOSS, .dtype = TDM_DTYPE_F32, .prepare = prepare_sum, .run = run_loss},
    {.op = TDM_OP_LOSS_GRAD, .dtype = TDM_DTYPE_F32, .run = run_loss_grad},
    {.op = TDM_OP_PENALTY, .dtype = TDM_DTYPE_F32, .prepare = prepare_sum, .run = run_penalty},
    {.op = TDM_OP_PENALTY_GRAD, .dtype = TDM_DTYPE_F32, .run = run_penalty_grad},
};

const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_loss) = {kernels,
                                                        sizeof(kernels) / sizeof(kernels[0])};
