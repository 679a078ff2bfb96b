/*
 * levels_test.c: every vector kernel has the same bits at every level that this CPU has, on one, two and three
 * threads. All NaNs are equal.
 *
 * A case is one op with shapes and attributes. Its numbers are random, some of them extreme; the kernel of the
 * lowest level on one thread gives the expected result, whose hash is recorded here, so that compilers and
 * other architectures must give the same bits. An op that has a vector kernel and no case fails the test.
 * Optimisers are compared in unit.optim, the decoder's loops in unit.nn, the functions of math.h in
 * kernel.level_math.
 */
#include "base/base.h"
#include "check.h"
#include "tensor/kernels/backends.h"

#include <float.h>
#include <stdlib.h>

/* Kernels begin to use several threads at 65,536 numbers, some of which are read twice. */
enum { MAX_THREADS = 3, WORTH_THREADS = 30000 };

/* ---- levels ---------------------------------------------------------------------------------- */

typedef struct level {
    int number;
    const tdm_kernel_backend_ops *backend;
    const tdm__vec_loops *loops;
    const tdm__vec_random *random;
} level;

static const level levels[] = {
#if defined(__x86_64__)
    {2, &tdm__kernels_cpu_2, &tdm__vec_loops_2, &tdm__vec_random_2},
    {3, &tdm__kernels_cpu_3, &tdm__vec_loops_3, &tdm__vec_random_3},
    {4, &tdm__kernels_cpu_4, &tdm__vec_loops_4, &tdm__vec_random_4},
#else
    {0, &tdm__kernels_cpu_0, &tdm__vec_loops_0, &tdm__vec_random_0},
#endif
};
enum { LEVEL_COUNT = sizeof(levels) / sizeof(levels[0]) };

static int levels_here(void)
{
    int count = 0;
    while (count < LEVEL_COUNT && levels[count].number <= tdm_kernel_cpu_level()) count++;
    return count;
}

/* ---- numbers --------------------------------------------------------------------------------- */

typedef enum numbers {
    MILD,     /* about 1 */
    EXTREME,  /* some of them zero, tiny or huge */
    INFINITE, /* and some infinite or NaN */
    POSITIVE  /* variances, probabilities */
} numbers;

static void fill_floats(float *x, int64_t count, numbers kind, uint32_t which)
{
    static const float extremes[] = {
        0.0f,  -0.0f,  FLT_MIN, -FLT_MIN, 1e-40f, -1e-45f,   1e-20f,   -1e-20f,   1e15f, -1e15f,
        88.7f, -88.7f, -104.5f, 16.5f,    1e-37f, -1.5e-38f, INFINITY, -INFINITY, NAN};
    uint32_t extreme_count = sizeof(extremes) / sizeof(extremes[0]) - (kind == INFINITE ? 0 : 3);
    tdm_rng rng = tdm_rng_at(
        (tdm_rng_address){.seed = 21, .stream = TDM_RNG_STREAM_USER, .sub_stream = which});
    for (int64_t i = 0; i < count; i++) {
        x[i] = 4 * tdm_rng_uniform(&rng) - 2;
        if (kind == POSITIVE) x[i] = fabsf(x[i]) + 0.01f;
        uint32_t word = tdm_rng_u32(&rng);
        if ((kind == EXTREME || kind == INFINITE) && word % 16 == 0)
            x[i] = extremes[word / 16 % extreme_count];
    }
}

static bool same_floats(const float *a, const float *b, int64_t count, int64_t *where)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t x, y;
        memcpy(&x, a + i, sizeof(x));
        memcpy(&y, b + i, sizeof(y));
        bool both_nan = (x & 0x7fffffffu) > 0x7f800000u && (y & 0x7fffffffu) > 0x7f800000u;
        if (x == y || both_nan) continue;
        *where = i;
        return false;
    }
    return true;
}

/* Over all expected results of the tests so far; all NaNs are equal. */
#define HASH_START 0xcbf29ce484222325u
static uint64_t bits_hash = HASH_START;

static void hash_word(uint32_t word)
{
    bits_hash = (bits_hash ^ word) * 0x100000001b3u;
}

static void hash_floats(const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, x + i, sizeof(word));
        hash_word((word & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : word);
    }
}

/* Ends a test. A change of kernels that changes bits on purpose changes the hash as well. */
static void check_hash(uint64_t expected)
{
    if (bits_hash != expected)
        fprintf(stderr, "  the hash of all results is 0x%016llx\n", (unsigned long long)bits_hash);
    CHECK(bits_hash == expected);
    bits_hash = HASH_START;
}

/* ---- cases ----------------------------------------------------------------------------------- */

typedef struct levels_case {
    tdm_op_kind op;
    tdm_kernel_call call; /* types, shapes, attributes */
    numbers kinds[TDM_OP_MAX_INPUTS];
    int32_t bound; /* i32 inputs are in [0, bound) */
} levels_case;

static bool has_case[TDM_OP_COUNT];

static tdm_tensor f32(tdm_shape shape)
{
    return (tdm_tensor){.dtype = TDM_DTYPE_F32, .shape = shape};
}

static tdm_tensor of_dtype(tdm_dtype dtype, tdm_shape shape)
{
    return (tdm_tensor){.dtype = dtype, .shape = shape};
}

static void fill_input(const levels_case *c, int index, tdm_tensor *t)
{
    int64_t count = tdm_tensor_elements(t);
    if (t->dtype == TDM_DTYPE_F32) {
        fill_floats(t->data, count, c->kinds[index], (uint32_t)index);
        return;
    }
    tdm_rng rng = tdm_rng_at((tdm_rng_address){
        .seed = 22, .stream = TDM_RNG_STREAM_USER, .sub_stream = (uint32_t)index});
    for (int64_t i = 0; i < count; i++) {
        uint32_t word = tdm_rng_u32(&rng);
        if (t->dtype == TDM_DTYPE_BF16)
            ((uint16_t *)t->data)[i] = (uint16_t)(word % 3 ? 0x3f80 + (word >> 25)
                                                           : word % 2 << 15);
        else
            ((int32_t *)t->data)[i] = (int32_t)(word % (uint32_t)c->bound);
    }
}

/* Runs the case, whose inputs are filled; the caller provides the memory of outputs. */
static void run_case(const levels_case *c, const tdm_kernel *kernel, int threads,
                     void *const out[TDM_OP_MAX_OUTPUTS])
{
    tdm_kernel_call call = c->call;
    tdm_error err = {0};
    tdm_kernel_mode before = tdm_kernel_enter(threads);
    if (kernel->prepare) CHECK_INT(kernel->prepare(NULL, &call, &err), TDM_OK);
    call.scratch = aligned_alloc(64, (call.scratch_bytes + 64) / 64 * 64);
    memset(call.scratch, 0xff, call.scratch_bytes); /* NaN */
    for (int o = 0; o < TDM_OP_MAX_OUTPUTS; o++) call.out[o].data = out[o];
    kernel->run(NULL, &call, &(tdm_step_key){.seed = 3, .step = 4, .first_row = 5});
    if (kernel->release) kernel->release(&call);
    tdm_kernel_leave(&before);
    free(call.scratch);
}

static void check_output(const levels_case *c, int number, int threads, int o, const void *got,
                         const void *expected)
{
    const tdm_tensor *t = &c->call.out[o];
    int64_t where = 0;
    bool same = t->dtype == TDM_DTYPE_F32
                    ? same_floats(got, expected, tdm_tensor_elements(t), &where)
                    : memcmp(got, expected, tdm_tensor_bytes(t)) == 0;
    CHECK(same);
    if (same) return;
    char text[128];
    const float *a = got, *b = expected;
    bool is_float = t->dtype == TDM_DTYPE_F32;
    fprintf(stderr, "  op %d, level %d, %d threads, input %s, output %d[%lld]: %a, not %a\n",
            (int)c->op, number, threads, tdm_shape_text(&c->call.in[0].shape, text), o,
            (long long)where, is_float ? (double)a[where] : 0, is_float ? (double)b[where] : 0);
}

/* Fills the inputs; returns the number of threads with which the case should run. */
static int open_case(levels_case *c)
{
    int64_t max = tdm_tensor_elements(&c->call.out[0]);
    for (int i = 0; i < TDM_OP_MAX_INPUTS; i++) {
        tdm_tensor *t = &c->call.in[i];
        if (!t->dtype) continue;
        t->data = malloc(tdm_tensor_bytes(t) + 64);
        fill_input(c, i, t);
        if (tdm_tensor_elements(t) > max) max = tdm_tensor_elements(t);
    }
    return max > WORTH_THREADS ? MAX_THREADS : 1;
}

static void try_case(levels_case c)
{
    void *expected[TDM_OP_MAX_OUTPUTS] = {0}, *got[TDM_OP_MAX_OUTPUTS] = {0};
    bool first = true;
    int max_threads = open_case(&c);
    for (int o = 0; o < TDM_OP_MAX_OUTPUTS; o++) {
        if (!c.call.out[o].dtype) continue;
        expected[o] = malloc(tdm_tensor_bytes(&c.call.out[o]) + 64);
        got[o] = malloc(tdm_tensor_bytes(&c.call.out[o]) + 64);
    }
    for (int l = 0; l < levels_here(); l++)
        for (int threads = 1; threads <= max_threads; threads++) {
            const tdm_kernel *kernel = tdm_kernel_find(levels[l].backend, c.op,
                                                       c.call.out[0].dtype);
            CHECK(kernel != NULL);
            if (!kernel) continue;
            run_case(&c, kernel, threads, first ? expected : got);
            for (int o = 0; o < TDM_OP_MAX_OUTPUTS && !first; o++)
                if (c.call.out[o].dtype)
                    check_output(&c, levels[l].number, threads, o, got[o], expected[o]);
            first = false;
        }
    for (int i = 0; i < TDM_OP_MAX_INPUTS; i++) free(c.call.in[i].data);
    for (int o = 0; o < TDM_OP_MAX_OUTPUTS; o++) {
        const tdm_tensor *t = &c.call.out[o];
        if (t->dtype == TDM_DTYPE_F32) hash_floats(expected[o], tdm_tensor_elements(t));
        if (t->dtype && t->dtype != TDM_DTYPE_F32)
            for (size_t i = 0; i < tdm_tensor_bytes(t); i++)
                hash_word(((const unsigned char *)expected[o])[i]);
        free(expected[o]);
        free(got[o]);
    }
    has_case[c.op] = true;
}

/* With inputs of each kind in turn, all of them the same. */
static void try_kinds(levels_case c)
{
    for (int kind = MILD; kind <= INFINITE; kind++) {
        for (int i = 0; i < TDM_OP_MAX_INPUTS; i++) c.kinds[i] = (numbers)kind;
        try_case(c);
    }
}

static const int64_t sizes[] = {1, 3, 7, 15, 16, 17, 31, 33, 64, 100, 257};
enum { SIZE_COUNT = sizeof(sizes) / sizeof(sizes[0]) };
enum { LONG = 70001 }; /* large enough for several threads */

/* ---- element-wise ---------------------------------------------------------------------------- */

static levels_case plain_case(tdm_op_kind op, int in_count, tdm_shape shape)
{
    levels_case c = {.op = op, .call.attrs = {.scale = 0.3}};
    for (int i = 0; i < in_count; i++) c.call.in[i] = f32(shape);
    c.call.out[0] = f32(shape);
    return c;
}

static void elementwise(void)
{
    static const tdm_op_kind of_one[] = {TDM_OP_SCALE, TDM_OP_COPY, TDM_OP_LANE_SUM,
                                         TDM_OP_RELU,  TDM_OP_GELU, TDM_OP_GELU_TANH,
                                         TDM_OP_SILU,  TDM_OP_TANH, TDM_OP_SIGMOID};
    static const tdm_op_kind of_two[] = {TDM_OP_ADD,
                                         TDM_OP_MUL,
                                         TDM_OP_RELU_GRAD,
                                         TDM_OP_GELU_GRAD,
                                         TDM_OP_GELU_TANH_GRAD,
                                         TDM_OP_SILU_GRAD,
                                         TDM_OP_TANH_GRAD,
                                         TDM_OP_SIGMOID_GRAD};
    for (int s = 0; s <= SIZE_COUNT; s++) {
        tdm_shape shape = tdm_shape_1(s < SIZE_COUNT ? sizes[s] : LONG);
        for (size_t o = 0; o < sizeof(of_one) / sizeof(of_one[0]); o++)
            try_kinds(plain_case(of_one[o], 1, shape));
        for (size_t o = 0; o < sizeof(of_two) / sizeof(of_two[0]); o++)
            try_kinds(plain_case(of_two[o], 2, shape));
        levels_case bf16 = plain_case(TDM_OP_RELU_GRAD, 2, shape);
        bf16.call.in[1].dtype = TDM_DTYPE_BF16;
        try_kinds(bf16);
        levels_case cast = plain_case(TDM_OP_CAST, 1, shape);
        cast.call.out[0].dtype = TDM_DTYPE_BF16;
        try_case(cast);
        levels_case fill = plain_case(TDM_OP_FILL, 0, shape);
        try_case(fill);
    }
    check_hash(0xdfecc994566cd29d);
}

static void broadcasts(void)
{
    for (int s = 0; s < SIZE_COUNT; s++) {
        for (int o = 0; o < 2; o++) {
            levels_case c = plain_case(o ? TDM_OP_MUL : TDM_OP_ADD, 2, tdm_shape_3(3, 5, sizes[s]));
            c.call.in[1] = f32(tdm_shape_1(sizes[s]));
            try_kinds(c);
            c.call.in[1] = f32(tdm_shape_0());
            try_kinds(c);
        }
        levels_case c = plain_case(TDM_OP_NORMALISE, 3, tdm_shape_2(300, sizes[s]));
        c.call.in[1] = c.call.in[2] = f32(tdm_shape_1(sizes[s]));
        try_kinds(c);
        levels_case drop = plain_case(TDM_OP_DROPOUT, 1, tdm_shape_2(300, sizes[s]));
        drop.call.attrs.p = 0.3f;
        try_kinds(drop);
    }
    check_hash(0xabb9a2eb38cc9f07);
}

static void copies(void)
{
    for (int s = 0; s < SIZE_COUNT; s++) {
        levels_case turn = plain_case(TDM_OP_TRANSPOSE, 1, tdm_shape_3(5, sizes[s], 67));
        turn.call.attrs.perm[0] = 2;
        turn.call.attrs.perm[1] = 0;
        turn.call.attrs.perm[2] = 1;
        turn.call.out[0] = f32(tdm_shape_3(67, 5, sizes[s]));
        try_kinds(turn);
        levels_case join = plain_case(TDM_OP_CONCAT, 2, tdm_shape_3(5, sizes[s], 7));
        join.call.attrs.axis = 1;
        join.call.out[0] = f32(tdm_shape_3(5, 2 * sizes[s], 7));
        try_kinds(join);
        levels_case cut = plain_case(TDM_OP_SLICE, 1, tdm_shape_2(9, sizes[s] + 3));
        cut.call.attrs.axis = 1;
        cut.call.attrs.begin = 1;
        cut.call.attrs.end = 1 + sizes[s];
        cut.call.attrs.shape = cut.call.in[0].shape;
        cut.call.out[0] = f32(tdm_shape_2(9, sizes[s]));
        try_kinds(cut);
        levels_case back = cut;
        back.op = TDM_OP_SLICE_GRAD;
        back.call.in[0] = cut.call.out[0];
        back.call.out[0] = cut.call.in[0];
        try_kinds(back);
    }
    check_hash(0xe24dd5a32e76456e);
}

/* ---- reductions ------------------------------------------------------------------------------ */

static void sums(void)
{
    for (int s = 0; s < SIZE_COUNT; s++) {
        levels_case rows = plain_case(TDM_OP_SUM_ROWS, 1, tdm_shape_2(523, sizes[s]));
        rows.call.out[0] = f32(tdm_shape_1(sizes[s]));
        try_kinds(rows);
        for (int axis = -1; axis < 2; axis++) {
            tdm_shape whole = tdm_shape_2(271, sizes[s]);
            tdm_shape rest = axis < 0    ? tdm_shape_0()
                             : axis == 0 ? tdm_shape_1(sizes[s])
                                         : tdm_shape_1(271);
            levels_case c = plain_case(TDM_OP_REDUCE, 1, whole);
            c.call.attrs.axis = axis;
            c.call.attrs.shape = whole;
            c.call.out[0] = f32(rest);
            try_kinds(c);
            c.op = TDM_OP_REDUCE_GRAD;
            c.call.in[0] = f32(rest);
            c.call.out[0] = f32(whole);
            try_kinds(c);
        }
    }
    levels_case all = plain_case(TDM_OP_REDUCE, 1, tdm_shape_1(LONG));
    all.call.attrs.axis = -1;
    all.call.out[0] = f32(tdm_shape_0());
    try_kinds(all);
    check_hash(0xd6ed26e7074c0cc7);
}

static void classes(void)
{
    for (int s = 0; s < SIZE_COUNT; s++) {
        int64_t V = sizes[s], rows = 300;
        tdm_shape shape = tdm_shape_2(rows, V);
        try_kinds(plain_case(TDM_OP_SOFTMAX, 1, shape));
        try_kinds(plain_case(TDM_OP_SOFTMAX_GRAD, 2, shape));
        for (int smoothing = 0; smoothing < 2; smoothing++) {
            levels_case c = {.op = TDM_OP_CROSS_ENTROPY, .bound = (int32_t)V};
            c.call.attrs = (tdm_op_attrs){.scale = 0.01,
                                          .label_smoothing = smoothing ? 0.1f : 0,
                                          .has_ignore = smoothing,
                                          .ignore = V / 2};
            c.call.in[0] = f32(shape);
            c.call.in[1] = of_dtype(TDM_DTYPE_I32, tdm_shape_1(rows));
            c.call.out[0] = f32(tdm_shape_0());
            c.call.out[1] = f32(shape);
            try_kinds(c);
            c.op = TDM_OP_CROSS_ENTROPY_GRAD;
            c.call.in[2] = f32(tdm_shape_0());
            c.call.out[0] = f32(shape);
            c.call.out[1] = (tdm_tensor){0};
            try_kinds(c);
        }
    }
    check_hash(0xeb649e2f7d8f8cdf);
}

static void losses(void)
{
    for (int s = 0; s <= SIZE_COUNT; s++) {
        tdm_shape shape = tdm_shape_1(s < SIZE_COUNT ? sizes[s] : LONG);
        for (int loss = TDM_LOSS_MSE; loss <= TDM_LOSS_KL; loss++) {
            levels_case c = {.op = TDM_OP_LOSS};
            c.call.attrs = (tdm_op_attrs){.scale = 0.01, .loss = loss, .delta = 0.7f};
            c.call.in[0] = c.call.in[1] = f32(shape);
            c.call.out[0] = f32(tdm_shape_0());
            try_kinds(c);
            c.op = TDM_OP_LOSS_GRAD;
            c.call.in[2] = f32(tdm_shape_0());
            c.call.out[0] = f32(shape);
            try_kinds(c);
        }
        for (int power = 1; power <= 2; power++) {
            levels_case c = {.op = TDM_OP_PENALTY};
            c.call.attrs = (tdm_op_attrs){.scale = 0.01, .power = power};
            c.call.in[0] = f32(shape);
            c.call.out[0] = f32(tdm_shape_0());
            try_kinds(c);
            c.op = TDM_OP_PENALTY_GRAD;
            c.call.in[1] = f32(tdm_shape_0());
            c.call.out[0] = f32(shape);
            try_kinds(c);
        }
    }
    check_hash(0x858fa95dbaffe334);
}

/* ---- norms ----------------------------------------------------------------------------------- */

/* x [rows, C] and stats; `which` inputs are [C]. */
static void row_norms(void)
{
    for (int s = 0; s < SIZE_COUNT; s++) {
        int64_t C = sizes[s], rows = 300;
        tdm_tensor x = f32(tdm_shape_2(rows, C)), params = f32(tdm_shape_1(C));
        for (int rms = 0; rms < 2; rms++) {
            tdm_tensor stats = f32(rms ? tdm_shape_1(rows) : tdm_shape_2(rows, 2));
            levels_case c = {.op = rms ? TDM_OP_RMS_NORM : TDM_OP_LAYER_NORM};
            c.call.attrs.eps = 1e-5f;
            c.call.in[0] = c.call.out[0] = x;
            c.call.in[1] = params;
            if (!rms) c.call.in[2] = params;
            c.call.out[1] = stats;
            try_kinds(c);
            levels_case grad = {.op = rms ? TDM_OP_RMS_NORM_GRAD : TDM_OP_LAYER_NORM_GRAD};
            grad.call.in[0] = grad.call.in[1] = grad.call.out[0] = x;
            grad.call.in[2] = params;
            grad.call.in[3] = stats;
            try_kinds(grad);
            levels_case sum = {.op = rms ? TDM_OP_RMS_NORM_GRAD_PARAMS
                                         : TDM_OP_LAYER_NORM_GRAD_PARAMS};
            sum.call.in[0] = sum.call.in[1] = x;
            sum.call.in[2] = stats;
            sum.call.out[0] = params;
            if (!rms) sum.call.out[1] = params;
            try_kinds(sum);
        }
    }
    check_hash(0x92bdb3b15a2fba35);
}

static levels_case batch_case(tdm_op_kind op, int64_t C, const char *in, const char *out)
{
    levels_case c = {.op = op, .call.attrs = {.eps = 1e-5f, .scale = 1.0 / 300}};
    for (int i = 0; i < 2; i++)
        for (int k = 0; (i ? out : in)[k]; k++) {
            char kind = (i ? out : in)[k];
            tdm_shape shape = kind == 'x'   ? tdm_shape_2(300, C)
                              : kind == 's' ? tdm_shape_2(2, C)
                              : kind == 't' ? tdm_shape_2(3, C)
                                            : tdm_shape_1(C);
            *(i ? &c.call.out[k] : &c.call.in[k]) = f32(shape);
            if (i == 0 && (kind == 's' || kind == 'v')) c.kinds[k] = POSITIVE;
        }
    return c;
}

/* x: [rows, C], c: [C], v: [C] above 0, s: stats [2, C], t: shares [3, C]. */
static void batch_norms(void)
{
    static const struct {
        tdm_op_kind op;
        const char *in, *out;
    } ops[] = {
        {TDM_OP_BATCH_NORM, "xcc", "xs"},
        {TDM_OP_BATCH_NORM_GRAD, "xxcscc", "x"},
        {TDM_OP_BATCH_NORM_GRAD_PARAMS, "xxs", "cc"},
        {TDM_OP_BATCH_NORM_FIXED, "xcccv", "x"},
        {TDM_OP_BATCH_NORM_FIXED_GRAD, "xcv", "x"},
        {TDM_OP_BATCH_NORM_FIXED_GRAD_PARAMS, "xxcv", "cc"},
        {TDM_OP_BATCH_NORM_SHARE, "xc", "t"},
        {TDM_OP_BATCH_NORM_GIVEN, "xccs", "x"},
    };
    for (int s = 0; s < SIZE_COUNT; s++)
        for (size_t o = 0; o < sizeof(ops) / sizeof(ops[0]); o++) {
            levels_case c = batch_case(ops[o].op, sizes[s], ops[o].in, ops[o].out);
            try_case(c);
            c.kinds[0] = EXTREME;
            try_case(c);
            c.kinds[0] = INFINITE;
            try_case(c);
        }
    check_hash(0xffb6cc2f18301405);
}

/* ---- tables, images, sequences --------------------------------------------------------------- */

static void embeddings(void)
{
    for (int s = 0; s < SIZE_COUNT; s++) {
        tdm_tensor table = f32(tdm_shape_2(13, sizes[s])), rows = f32(tdm_shape_2(301, sizes[s]));
        levels_case c = {.op = TDM_OP_EMBEDDING, .bound = 13};
        c.call.in[0] = table;
        c.call.in[1] = of_dtype(TDM_DTYPE_I32, tdm_shape_1(301));
        c.call.out[0] = rows;
        try_kinds(c);
        c.op = TDM_OP_EMBEDDING_GRAD;
        c.call.attrs.shape = table.shape;
        c.call.in[0] = rows;
        c.call.out[0] = table;
        try_kinds(c);
        c.call.in[2] = table;
        try_kinds(c);
    }
    check_hash(0x5893fd349acc91ac);
}

static void pools(void)
{
    for (int s = 0; s < SIZE_COUNT; s++) {
        tdm_shape image = {4, {3, 9, 11, sizes[s]}}, small = {4, {3, 5, 6, sizes[s]}};
        for (int average = 0; average < 2; average++) {
            levels_case c = {.op = average ? TDM_OP_AVERAGE_POOL : TDM_OP_MAX_POOL, .bound = 9};
            for (int axis = 0; axis < 2; axis++) {
                c.call.attrs.window.kernel[axis] = 3;
                c.call.attrs.window.stride[axis] = 2;
                c.call.attrs.window.pad_before[axis] = c.call.attrs.window.pad_after[axis] = 1;
            }
            c.call.in[0] = f32(image);
            c.call.out[0] = f32(small);
            if (!average) c.call.out[1] = of_dtype(TDM_DTYPE_I32, small);
            try_kinds(c);
            c.op = average ? TDM_OP_AVERAGE_POOL_GRAD : TDM_OP_MAX_POOL_GRAD;
            c.call.attrs.shape = image;
            c.call.in[0] = f32(small);
            if (!average) c.call.in[1] = of_dtype(TDM_DTYPE_I32, small);
            c.call.out[0] = f32(image);
            c.call.out[1] = (tdm_tensor){0};
            try_kinds(c);
        }
    }
    check_hash(0x80cfdbced89c17e0);
}

static void attention_of(int64_t T, int64_t C, int heads, bool causal, float p, bool has_lengths)
{
    tdm_tensor qkv = f32(tdm_shape_3(3, T, 3 * C)), y = f32(tdm_shape_3(3, T, C));
    tdm_tensor lse = f32(tdm_shape_3(3, heads, T));
    levels_case c = {.op = TDM_OP_ATTENTION, .bound = (int32_t)T + 1};
    c.call.attrs = (tdm_op_attrs){.heads = heads, .causal = causal, .p = p, .sub_stream = 6};
    c.call.in[0] = qkv;
    if (has_lengths) c.call.in[1] = of_dtype(TDM_DTYPE_I32, tdm_shape_1(3));
    c.call.out[0] = y;
    c.call.out[1] = lse;
    try_kinds(c);
    levels_case grad = {.op = TDM_OP_ATTENTION_GRAD, .bound = c.bound};
    grad.call.attrs = c.call.attrs;
    grad.call.in[0] = grad.call.in[2] = y;
    grad.call.in[1] = qkv;
    grad.call.in[3] = lse;
    if (has_lengths) grad.call.in[4] = c.call.in[1];
    grad.call.out[0] = qkv;
    try_kinds(grad);
}

static void attentions(void)
{
    static const int64_t lengths[] = {1, 5, 17, 64, 67, 131};
    for (int form = 0; form < 8; form++) {
        bool causal = form & 1, short_rows = form & 4;
        float p = form & 2 ? 0.2f : 0;
        for (int t = 0; t < 6; t++) attention_of(lengths[t], 22, 2, causal, p, short_rows);
        attention_of(67, 6, 2, causal, p, short_rows);
        attention_of(67, 64, 1, causal, p, short_rows);
    }
    check_hash(0xcc03d6704df3aa3f);
}

/* ---- products, where the tables have them ---------------------------------------------------- */

static bool has_kernel(tdm_op_kind op)
{
    return tdm_kernel_find(levels[0].backend, op, TDM_DTYPE_F32) != NULL;
}

static void products(void)
{
    for (int s = 0; s < SIZE_COUNT && has_kernel(TDM_OP_MATMUL); s++)
        for (int form = 0; form < 4; form++) {
            int64_t M = sizes[s], K = sizes[SIZE_COUNT - 1 - s], N = 37;
            levels_case c = {.op = TDM_OP_MATMUL};
            c.call.attrs.trans_a = form & 1;
            c.call.attrs.trans_b = form & 2;
            c.call.attrs.activation = form ? TDM_ACTIVATION_GELU : TDM_ACTIVATION_NONE;
            c.call.in[0] = f32(form & 1 ? tdm_shape_2(K, M) : tdm_shape_2(M, K));
            c.call.in[1] = f32(form & 2 ? tdm_shape_2(N, K) : tdm_shape_2(K, N));
            if (form) c.call.in[2] = f32(tdm_shape_1(N));
            c.call.out[0] = f32(tdm_shape_2(M, N));
            try_kinds(c);
        }
    bits_hash = HASH_START; /* the tests of products check their bits */
}

static void convolutions(void)
{
    for (int s = 0; s < SIZE_COUNT && has_kernel(TDM_OP_CONV); s++) {
        tdm_tensor x = f32((tdm_shape){4, {2, 9, 11, sizes[s]}});
        tdm_tensor w = f32((tdm_shape){4, {19, 3, 3, sizes[s]}});
        tdm_tensor y = f32((tdm_shape){4, {2, 9, 11, 19}});
        levels_case c = {.op = TDM_OP_CONV};
        for (int axis = 0; axis < 2; axis++) {
            c.call.attrs.window.kernel[axis] = 3;
            c.call.attrs.window.stride[axis] = c.call.attrs.window.dilation[axis] = 1;
            c.call.attrs.window.pad_before[axis] = c.call.attrs.window.pad_after[axis] = 1;
        }
        c.call.attrs.window.groups = 1;
        c.call.in[0] = x;
        c.call.in[1] = w;
        c.call.in[2] = f32(tdm_shape_1(19));
        c.call.out[0] = y;
        try_kinds(c);
        c.op = TDM_OP_CONV_GRAD_X;
        c.call.in[0] = y;
        c.call.in[2] = (tdm_tensor){0};
        c.call.attrs.shape = x.shape;
        c.call.out[0] = x;
        try_kinds(c);
        c.op = TDM_OP_CONV_GRAD_W;
        c.call.in[1] = x;
        c.call.attrs.shape = w.shape;
        c.call.out[0] = w;
        try_kinds(c);
    }
    bits_hash = HASH_START; /* the tests of products check their bits */
}

/* ---- loops ----------------------------------------------------------------------------------- */

enum { LOOP_COUNT = 70013 };

typedef struct loop_results {
    float sum[LOOP_COUNT], wide[LOOP_COUNT], uniform[LOOP_COUNT], normal[LOOP_COUNT];
    float activated[TDM_ACTIVATION_SIGMOID + 1][LOOP_COUNT];
    bool in_safe_range[3];
} loop_results;

static void run_loops(const level *l, int threads, loop_results *r)
{
    static float other[LOOP_COUNT];
    static uint16_t bf16[LOOP_COUNT];
    tdm_rng_address address = {.seed = 9, .stream = TDM_RNG_STREAM_USER};
    tdm_kernel_mode before = tdm_kernel_enter(threads);
    fill_floats(r->sum, LOOP_COUNT, EXTREME, 1);
    fill_floats(other, LOOP_COUNT, EXTREME, 2);
    r->in_safe_range[0] = l->loops->in_safe_range(r->sum, LOOP_COUNT);
    r->in_safe_range[1] = l->loops->add_into(r->sum, other, LOOP_COUNT);
    r->in_safe_range[2] = l->loops->in_safe_range(r->sum, 37);
    for (int a = 0; a <= TDM_ACTIVATION_SIGMOID; a++) {
        fill_floats(r->activated[a], LOOP_COUNT, INFINITE, (uint32_t)a);
        l->loops->activate((tdm_activation)a, r->activated[a], LOOP_COUNT);
    }
    for (int i = 0; i < LOOP_COUNT; i++) bf16[i] = (uint16_t)(i * 40503u);
    l->loops->widen(bf16, r->wide, LOOP_COUNT);
    l->random->uniform(address, 0.1, 64, r->uniform, LOOP_COUNT);
    l->random->normal(address, 0.1, 64, r->normal, LOOP_COUNT);
    tdm_kernel_leave(&before);
}

static void loops(void)
{
    loop_results *expected = calloc(1, sizeof(*expected)), *got = calloc(1, sizeof(*got));
    int64_t where;
    run_loops(&levels[0], 1, expected);
    for (int l = 0; l < levels_here(); l++)
        for (int threads = 1; threads <= MAX_THREADS; threads++) {
            run_loops(&levels[l], threads, got);
            CHECK(same_floats(got->sum, expected->sum, (int64_t)(sizeof(*got) / sizeof(float)) - 1,
                              &where));
            CHECK(memcmp(got->in_safe_range, expected->in_safe_range, sizeof(got->in_safe_range)) ==
                  0);
        }
    hash_floats(expected->sum, (int64_t)(offsetof(loop_results, in_safe_range) / sizeof(float)));
    check_hash(0x711c5d53b0f55656);
    free(expected);
    free(got);
}

/* The last test: the earlier ones have recorded which ops they tested. */
static void every_op_has_a_case(void)
{
    for (int l = 0; l < levels_here(); l++)
        for (const tdm_kernel_family *const *f = levels[l].backend->families; *f; f++)
            for (size_t i = 0; i < (*f)->count; i++) {
                tdm_op_kind op = (*f)->kernels[i].op;
                if (!has_case[op]) fprintf(stderr, "  op %d has no case here\n", (int)op);
                CHECK(has_case[op]);
            }
}

int main(int argc, char **argv)
{
    static const check_test tests[] = {
        CHECK_TEST(elementwise),  CHECK_TEST(broadcasts),  CHECK_TEST(copies),
        CHECK_TEST(sums),         CHECK_TEST(classes),     CHECK_TEST(losses),
        CHECK_TEST(row_norms),    CHECK_TEST(batch_norms), CHECK_TEST(embeddings),
        CHECK_TEST(pools),        CHECK_TEST(attentions),  CHECK_TEST(products),
        CHECK_TEST(convolutions), CHECK_TEST(loops),       CHECK_TEST(every_op_has_a_case),
    };
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
