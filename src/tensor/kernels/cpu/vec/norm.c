/*
 * norm.c: layer norm, RMS norm and their gradients, one row in registers and cache at a time.
 *
 * Sums over a row have one partial sum for each logical position (vec.h). The gradients of gamma
 * and beta are sums over rows: eight rows are first added to each other, in a fixed order, then to
 * the total, so that rounding errors grow with an eighth of the rows; threads divide them by
 * columns. The gradients of x may overwrite dy or x. ref/norm.c defines what is computed.
 */
#include "tensor/kernels/cpu/vec/math.h"

enum { GROUP = 8 };

/* ---- rows ------------------------------------------------------------------------------------- */

static void layer_norm_rows(const void *args, int64_t begin, int64_t end)
{
    const tdm_kernel_call *call = args;
    const float *gamma = call->in[1].data, *beta = call->in[2].data;
    int64_t C = tdm__vec_columns(&call->in[0]);
    for (int64_t r = begin; r < end; r++) {
        const float *x = (const float *)call->in[0].data + r * C;
        float *y = (float *)call->out[0].data + r * C;
        float *stats = (float *)call->out[1].data + r * 2;
        vf_places sum = {{{0}}}, squares = {{{0}}};
        for (int64_t i = 0; i < C; i += TDM__PLACES)
            for (int p = 0; p < TDM__PARTS; p++) {
                int64_t c = i + p * TDM__WIDTH;
                sum.part[p] += vf_load_up_to(x + c, C - c, 0);
            }
        float mean = vf_places_sum(&sum) / (float)C;
        for (int64_t i = 0; i < C; i += TDM__PLACES)
            for (int p = 0; p < TDM__PARTS; p++) {
                int64_t c = i + p * TDM__WIDTH;
                vf off = vf_load_up_to(x + c, C - c, mean) - mean;
                squares.part[p] = vf_fma(off, off, squares.part[p]);
            }
        float inverse = 1 / sqrtf(vf_places_sum(&squares) / (float)C + call->attrs.eps);
        for (int64_t c = 0; c < C; c += TDM__WIDTH) {
            vf n = (vf_load_up_to(x + c, C - c, 0) - mean) * inverse;
            vf_store_up_to(
                y + c, C - c,
                vf_fma(n, vf_load_up_to(gamma + c, C - c, 0), vf_load_up_to(beta + c, C - c, 0)));
        }
        stats[0] = mean;
        stats[1] = inverse;
    }
}

/* With n = (x - mean) inverse and g = dy gamma:  dx = inverse (g - mean of g - n mean of (g n)).
 * RMS norm is the same without the means. */
static inline void grad_row(const float *dy, const float *x, const float *gamma, int64_t C,
                            bool centred, float mean, float inverse, float *dx)
{
    vf_places sum = {{{0}}}, dot = {{{0}}};
    for (int64_t i = 0; i < C; i += TDM__PLACES)
        for (int p = 0; p < TDM__PARTS; p++) {
            int64_t c = i + p * TDM__WIDTH;
            vf g = vf_load_up_to(dy + c, C - c, 0) * vf_load_up_to(gamma + c, C - c, 0);
            vf n = (vf_load_up_to(x + c, C - c, 0) - mean) * inverse;
            if (centred) sum.part[p] += g;
            dot.part[p] = vf_fma(g, n, dot.part[p]);
        }
    float g_mean = centred ? vf_places_sum(&sum) / (float)C : 0;
    float gn_mean = vf_places_sum(&dot) / (float)C;
    for (int64_t c = 0; c < C; c += TDM__WIDTH) {
        vf g = vf_load_up_to(dy + c, C - c, 0) * vf_load_up_to(gamma + c, C - c, 0);
        vf n = (vf_load_up_to(x + c, C - c, 0) - mean) * inverse;
        vf_store_up_to(dx + c, C - c, inverse * vf_fma(-n, vf_set(gn_mean), g - g_mean));
    }
}

static void layer_norm_grad_rows(const void *args, int64_t begin, int64_t end)
{
    const tdm_kernel_call *call = args;
    int64_t C = tdm__vec_columns(&call->in[0]);
    for (int64_t r = begin; r < end; r++) {
        const float *stats = (const float *)call->in[3].data + r * 2;
        grad_row((const float *)call->in[0].data + r * C, (const float *)call->in[1].data + r * C,
                 call->in[2].data, C, true, stats[0], stats[1], (float *)call->out[0].data + r * C);
    }
}

static void rms_norm_rows(const void *args, int64_t begin, int64_t end)
{
    const tdm_kernel_call *call = args;
    const float *gamma = call->in[1].data;
    int64_t C = tdm__vec_columns(&call->in[0]);
    for (int64_t r = begin; r < end; r++) {
        const float *x = (const float *)call->in[0].data + r * C;
        float *y = (float *)call->out[0].data + r * C;
        vf_places squares = {{{0}}};
        for (int64_t i = 0; i < C; i += TDM__PLACES)
            for (int p = 0; p < TDM__PARTS; p++) {
                int64_t c = i + p * TDM__WIDTH;
                vf v = vf_load_up_to(x + c, C - c, 0);
                squares.part[p] = vf_fma(v, v, squares.part[p]);
            }
        float inverse = 1 / sqrtf(vf_places_sum(&squares) / (float)C + call->attrs.eps);
        for (int64_t c = 0; c < C; c += TDM__WIDTH)
            vf_store_up_to(y + c, C - c,
                           vf_load_up_to(x + c, C - c, 0) * inverse *
                               vf_load_up_to(gamma + c, C - c, 0));
        ((float *)call->out[1].data)[r] = inverse;
    }
}

static void rms_norm_grad_rows(const void *args, int64_t begin, int64_t end)
{
    const tdm_kernel_call *call = args;
    int64_t C = tdm__vec_columns(&call->in[0]);
    for (int64_t r = begin; r < end; r++)
        grad_row((const float *)call->in[0].data + r * C, (const float *)call->in[1].data + r * C,
                 call->in[2].data, C, false, 0, ((const float *)call->in[3].data)[r],
                 (float *)call->out[0].data + r * C);
}

/* ---- sums over the rows ----------------------------------------------------------------------- */

/* The contribution of a group of rows to one vector of columns, of which `left` are valid. */
static inline void add_group(const float *dy, const float *x, const float *mean,
                             const float *inverse, int64_t stat_stride, int64_t row, int64_t count,
                             int64_t left, vf *gamma, vf *beta)
{
    vf g = {0}, b = {0};
    for (int64_t r = 0; r < count; r++, dy += row, x += row) {
        vf d = vf_load_up_to(dy, left, 0), n = vf_load_up_to(x, left, 0);
        if (mean) n -= mean[r * stat_stride];
        g = vf_fma(d, n * inverse[r * stat_stride], g);
        b += d;
    }
    *gamma += g;
    *beta += b;
}

typedef struct param_sums {
    const float *dy, *x, *mean, *inverse; /* mean: NULL for RMS norm */
    int64_t stat_stride, rows, C;
    float *d_gamma, *d_beta; /* d_beta: NULL for RMS norm */
} param_sums;

/* Vectors [begin, end) of the columns. Rows are the outer loop: memory is read in order. */
static void sum_columns(const void *args, int64_t begin, int64_t end)
{
    const param_sums *p = args;
    int64_t first = begin * TDM__WIDTH, last = end * TDM__WIDTH < p->C ? end * TDM__WIDTH : p->C;
    for (int64_t r = 0; r < p->rows; r += GROUP) {
        int64_t count = p->rows - r < GROUP ? p->rows - r : GROUP;
        const float *mean = p->mean ? p->mean + r * p->stat_stride : NULL;
        const float *inverse = p->inverse + r * p->stat_stride;
        for (int64_t c = first; c < last; c += TDM__WIDTH) {
            int64_t left = p->C - c;
            vf gamma = {0}, beta = {0};
            if (r > 0) {
                gamma = vf_load_up_to(p->d_gamma + c, left, 0);
                if (p->d_beta) beta = vf_load_up_to(p->d_beta + c, left, 0);
            }
            const float *dy = p->dy + r * p->C + c, *x = p->x + r * p->C + c;
            if (count == GROUP && left >= TDM__WIDTH)
                add_group(dy, x, mean, inverse, p->stat_stride, p->C, GROUP, TDM__WIDTH, &gamma,
                          &beta);
            else
                add_group(dy, x, mean, inverse, p->stat_stride, p->C, count, left, &gamma, &beta);
            vf_store_up_to(p->d_gamma + c, left, gamma);
            if (p->d_beta) vf_store_up_to(p->d_beta + c, left, beta);
        }
    }
}

static void run_param_sums(const tdm_kernel_call *call, param_sums p)
{
    p.dy = call->in[0].data;
    p.x = call->in[1].data;
    p.rows = tdm__vec_rows(&call->in[0]);
    p.C = tdm__vec_columns(&call->in[0]);
    p.d_gamma = call->out[0].data;
    if (p.rows == 0) {
        memset(p.d_gamma, 0, (size_t)p.C * sizeof(float));
        if (p.d_beta) memset(p.d_beta, 0, (size_t)p.C * sizeof(float));
        return;
    }
    tdm__vec_split((p.C + TDM__WIDTH - 1) / TDM__WIDTH, p.rows * TDM__WIDTH, sum_columns, &p);
}

static void run_layer_norm_grad_params(void *backend, const tdm_kernel_call *call,
                                       const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *stats = call->in[2].data;
    run_param_sums(call, (param_sums){.mean = stats,
                                      .inverse = stats + 1,
                                      .stat_stride = 2,
                                      .d_beta = call->out[1].data});
}

static void run_rms_norm_grad_params(void *backend, const tdm_kernel_call *call,
                                     const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    run_param_sums(call, (param_sums){.inverse = call->in[2].data, .stat_stride = 1});
}

/* ---- the kernels ------------------------------------------------------------------------------ */

#define BY_ROWS(name)                                                                              \
    static void run_##name(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)    \
    {                                                                                              \
        (void)backend;                                                                             \
        (void)key;                                                                                 \
        tdm__vec_split(tdm__vec_rows(&call->in[0]), tdm__vec_columns(&call->in[0]), name##_rows,   \
                       call);                                                                      \
    }

BY_ROWS(layer_norm)
BY_ROWS(layer_norm_grad)
BY_ROWS(rms_norm)
BY_ROWS(rms_norm_grad)

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_LAYER_NORM, .dtype = TDM_DTYPE_F32, .run = run_layer_norm},
    {.op = TDM_OP_LAYER_NORM_GRAD, .dtype = TDM_DTYPE_F32, .run = run_layer_norm_grad},
    {.op = TDM_OP_LAYER_NORM_GRAD_PARAMS,
     .dtype = TDM_DTYPE_F32,
     .run = run_layer_norm_grad_params},
    {.op = TDM_OP_RMS_NORM, .dtype = TDM_DTYPE_F32, .run = run_rms_norm},
    {.op = TDM_OP_RMS_NORM_GRAD, .dtype = TDM_DTYPE_F32, .run = run_rms_norm_grad},
    {.op = TDM_OP_RMS_NORM_GRAD_PARAMS, .dtype = TDM_DTYPE_F32, .run = run_rms_norm_grad_params},
};

const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_norm) = {kernels,
                                                        sizeof(kernels) / sizeof(kernels[0])};
