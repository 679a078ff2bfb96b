/*
 * tensor_test.c: types, shapes, conversions, and the table of kernels. There are so few 16-bit floats that
 * every one of them is compared with the value of its definition, computed in double precision.
 */
#include <tandem/tensor.h>

#include "check.h"
#include "tensor/kernel.h"

#include <stdlib.h>

static void dtypes(void)
{
    static const struct {
        tdm_dtype dtype;
        const char *name;
        size_t bytes;
    } rows[] = {
        {TDM_DTYPE_NONE, "none", 0}, {TDM_DTYPE_F32, "f32", 4},   {TDM_DTYPE_F64, "f64", 8},
        {TDM_DTYPE_F16, "f16", 2},   {TDM_DTYPE_BF16, "bf16", 2}, {TDM_DTYPE_I8, "i8", 1},
        {TDM_DTYPE_I16, "i16", 2},   {TDM_DTYPE_I32, "i32", 4},   {TDM_DTYPE_I64, "i64", 8},
        {TDM_DTYPE_U8, "u8", 1},     {TDM_DTYPE_U16, "u16", 2},   {TDM_DTYPE_U32, "u32", 4},
        {TDM_DTYPE_U64, "u64", 8},   {TDM_DTYPE_BOOL, "bool", 1},
    };
    CHECK_INT(sizeof(rows) / sizeof(rows[0]), TDM_DTYPE_COUNT);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        CHECK_TEXT(tdm_dtype_name(rows[i].dtype), rows[i].name);
        CHECK_INT(tdm_dtype_bytes(rows[i].dtype), rows[i].bytes);
    }
    const int unknown[] = {TDM_DTYPE_COUNT, TDM_DTYPE_COUNT + 1, 1000};
    for (size_t i = 0; i < 3; i++) {
        CHECK_TEXT(tdm_dtype_name((tdm_dtype)unknown[i]), "none");
        CHECK_INT(tdm_dtype_bytes((tdm_dtype)unknown[i]), 0);
    }
}

static int64_t elements(tdm_shape shape)
{
    return tdm_shape_elements(&shape);
}

static void shape_elements(void)
{
    CHECK_INT(elements(tdm_shape_0()), 1);
    CHECK_INT(elements(tdm_shape_1(5)), 5);
    CHECK_INT(elements(tdm_shape_2(64, 784)), 64 * 784);
    CHECK_INT(elements(tdm_shape_3(2, 3, 4)), 24);
    CHECK_INT(elements(tdm_shape_4(2, 3, 4, 5)), 120);
    CHECK_INT(elements(tdm_shape_2(7, 0)), 0);
    CHECK_INT(elements(tdm_shape_2(0, INT64_MAX)), 0);
    CHECK_INT(elements(tdm_shape_1(INT64_MAX)), INT64_MAX);
    CHECK_INT(elements(tdm_shape_2(1, INT64_MAX)), INT64_MAX);
}

static void shape_elements_refused(void)
{
    CHECK_INT(elements(tdm_shape_1(-1)), -1);
    CHECK_INT(elements(tdm_shape_2(0, -1)), -1);
    CHECK_INT(elements(tdm_shape_2(-2, -3)), -1);
    CHECK_INT(elements(tdm_shape_1(INT64_MIN)), -1);
    CHECK_INT(elements(tdm_shape_2(2, INT64_MAX)), -1);
    CHECK_INT(elements(tdm_shape_2((int64_t)1 << 32, (int64_t)1 << 31)), -1);
    CHECK_INT(elements(tdm_shape_2((int64_t)1 << 31, (int64_t)1 << 31)), (int64_t)1 << 62);
    CHECK_INT(elements(tdm_shape_4(1 << 16, 1 << 16, 1 << 16, 1 << 16)), -1);
    CHECK_INT(elements((tdm_shape){.rank = -1}), -1);
    CHECK_INT(elements((tdm_shape){.rank = TDM_MAX_DIMS + 1}), -1);
}

static void shape_equal(void)
{
    tdm_shape a = tdm_shape_2(3, 4), b = tdm_shape_2(3, 4), c = tdm_shape_2(4, 3);
    tdm_shape d = tdm_shape_3(3, 4, 1), e = tdm_shape_0(), f = tdm_shape_0();
    CHECK(tdm_shape_equal(&a, &b));
    CHECK(!tdm_shape_equal(&a, &c));
    CHECK(!tdm_shape_equal(&a, &d));
    CHECK(tdm_shape_equal(&e, &f));
    CHECK(!tdm_shape_equal(&e, &a));
    b.dim[2] = 9; /* beyond the rank: ignored */
    CHECK(tdm_shape_equal(&a, &b));
}

static void shape_text(void)
{
    struct {
        char text[128];
        char guard[64];
    } b;
    memset(&b, 'x', sizeof(b));
    tdm_shape scalar = tdm_shape_0(), matrix = tdm_shape_2(64, 784), odd = tdm_shape_3(-1, 0, 7);
    CHECK_TEXT(tdm_shape_text(&scalar, b.text), "[]");
    CHECK_TEXT(tdm_shape_text(&matrix, b.text), "[64, 784]");
    CHECK_TEXT(tdm_shape_text(&odd, b.text), "[-1, 0, 7]");
    CHECK(tdm_shape_text(&matrix, b.text) == b.text);
    tdm_shape eight = {.rank = 8, .dim = {1, 2, 3, 4, 5, 6, 7, 8}};
    CHECK_TEXT(tdm_shape_text(&eight, b.text), "[1, 2, 3, 4, 5, 6, 7, 8]");

    /* The longest numbers: truncated, for any length of the preceding ones. */
    for (int64_t first = 1; first < INT64_MAX / 10; first *= 10) {
        tdm_shape longest = {.rank = 8};
        for (int i = 0; i < 8; i++) longest.dim[i] = INT64_MIN;
        longest.dim[0] = first;
        tdm_shape_text(&longest, b.text);
        CHECK(strnlen(b.text, sizeof(b.text)) < sizeof(b.text));
        CHECK_HAS(b.text, ", -9223372036854775808, ...]");
    }
    for (size_t i = 0; i < sizeof(b.guard); i++) CHECK_INT(b.guard[i], 'x');

    /* An invalid rank must not cause an access past the array. */
    struct {
        tdm_shape shape;
        int64_t beyond[8];
    } bad = {.shape = {.rank = 16, .dim = {1, 1, 1, 1, 1, 1, 1, 1}}, .beyond = {7, 7, 7, 7}};
    CHECK_TEXT(tdm_shape_text(&bad.shape, b.text), "[1, 1, 1, 1, 1, 1, 1, 1]");
}

static void tensor_bytes(void)
{
    tdm_tensor t = {.dtype = TDM_DTYPE_F32, .shape = tdm_shape_2(3, 5)};
    CHECK_INT(tdm_tensor_elements(&t), 15);
    CHECK_INT(tdm_tensor_bytes(&t), 60);
    t.dtype = TDM_DTYPE_I8;
    CHECK_INT(tdm_tensor_bytes(&t), 15);
    t.dtype = TDM_DTYPE_NONE;
    CHECK_INT(tdm_tensor_bytes(&t), 0);
    t = (tdm_tensor){.dtype = TDM_DTYPE_F64, .shape = tdm_shape_1(INT64_MAX)};
    CHECK_INT(tdm_tensor_bytes(&t), 0);
    t.dtype = TDM_DTYPE_I8;
    CHECK_INT(tdm_tensor_bytes(&t), INT64_MAX);
    t.shape = tdm_shape_2(-1, 4);
    CHECK_INT(tdm_tensor_elements(&t), -1);
    CHECK_INT(tdm_tensor_bytes(&t), 0);
}

/* ---- conversion ------------------------------------------------------------------------------ */

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* The value of a small float by its definition; the caller handles NaN and infinity. */
static double small_float(unsigned bits, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    int mantissa = (int)bits & ((1 << mantissa_bits) - 1);
    double sign = bits >> (exponent_bits + mantissa_bits) ? -1.0 : 1.0;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

static void all_of_16_bits(tdm_dtype dtype, int exponent_bits, int mantissa_bits)
{
    enum { COUNT = 65536 };
    uint16_t *source = malloc(COUNT * sizeof(*source));
    float *out = malloc(COUNT * sizeof(*out));
    for (int i = 0; i < COUNT; i++) source[i] = (uint16_t)i;
    CHECK(tdm_tensor_to_f32(dtype, source, COUNT, out));
    int wrong = 0, nans = 0, infinities = 0;
    for (int i = 0; i < COUNT; i++) {
        bool special = (i >> mantissa_bits & ((1 << exponent_bits) - 1)) ==
                       (1 << exponent_bits) - 1;
        bool zero_mantissa = (i & ((1 << mantissa_bits) - 1)) == 0;
        bool negative = i & 0x8000;
        bool right;
        if (special && !zero_mantissa) {
            right = isnan(out[i]) && !signbit(out[i]) == !negative;
            nans++;
        } else if (special) {
            right = isinf(out[i]) && (out[i] < 0) == negative;
            infinities++;
        } else {
            double expected = small_float((unsigned)i, exponent_bits, mantissa_bits);
            right = bits_of(out[i]) == bits_of((float)expected) && (double)out[i] == expected;
        }
        if (!right && wrong++ < 5)
            fprintf(stderr, "  %s 0x%04x becomes %a\n", tdm_dtype_name(dtype), (unsigned)i,
                    (double)out[i]);
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(infinities, 2);
    CHECK_INT(nans, 2 * ((1 << mantissa_bits) - 1));
    free(source);
    free(out);
}

static void all_f16(void)
{
    all_of_16_bits(TDM_DTYPE_F16, 5, 10);
}

static void all_bf16(void)
{
    all_of_16_bits(TDM_DTYPE_BF16, 8, 7);
}

static void f64_rounds_to_nearest(void)
{
    static const struct {
        double from;
        float to;
    } rows[] = {
        {0.0, 0.0f},
        {-0.0, -0.0f},
        {1.0, 1.0f},
        {0.1, 0.1f},
        {1.0 + 0x1p-24, 1.0f},                      /* a tie: to even, downwards */
        {1.0 + 0x3p-24, 1.0f + 0x1p-22f},           /* a tie: to even, upwards */
        {1.0 + 0x1p-24 + 0x1p-50, 1.0f + 0x1p-23f}, /* just above the tie */
        {0x1p-149, 0x1p-149f},                      /* the smallest subnormal */
        {0x1p-150, 0.0f},                           /* half of it: a tie, to even */
        {0x1.8p-150, 0x1p-149f},
        {0x1.fffffep127, 0x1.fffffep127f},
        {1e300, INFINITY},
        {-1e300, -INFINITY},
        {INFINITY, INFINITY},
    };
    enum { COUNT = sizeof(rows) / sizeof(rows[0]) };
    unsigned char source[COUNT * 8 + 1]; /* at an odd address: data in files may be unaligned */
    float out[COUNT];
    for (size_t i = 0; i < COUNT; i++) memcpy(source + 1 + 8 * i, &rows[i].from, 8);
    CHECK(tdm_tensor_to_f32(TDM_DTYPE_F64, source + 1, COUNT, out));
    for (size_t i = 0; i < COUNT; i++) CHECK_INT(bits_of(out[i]), bits_of(rows[i].to));
    double nan_in = NAN;
    CHECK(tdm_tensor_to_f32(TDM_DTYPE_F64, &nan_in, 1, out));
    CHECK(isnan(out[0]));
}

static void other_conversions(void)
{
    const float source[3] = {1.5f, -0.0f, INFINITY};
    float out[3] = {9, 9, 9};
    CHECK(tdm_tensor_to_f32(TDM_DTYPE_F32, source, 3, out));
    for (int i = 0; i < 3; i++) CHECK_INT(bits_of(out[i]), bits_of(source[i]));
    out[0] = 9;
    CHECK(tdm_tensor_to_f32(TDM_DTYPE_F16, source, 0, out));
    CHECK(out[0] == 9);
    for (int dtype = TDM_DTYPE_NONE; dtype <= TDM_DTYPE_COUNT; dtype++) {
        bool floating = dtype >= TDM_DTYPE_F32 && dtype <= TDM_DTYPE_BF16;
        CHECK_INT(tdm_tensor_to_f32((tdm_dtype)dtype, source, 0, out), floating);
    }
    uint16_t unaligned_source[2];
    unsigned char *odd = (unsigned char *)unaligned_source + 1;
    odd[0] = 0x00, odd[1] = 0xc0; /* f16 -2, little-endian */
    CHECK(tdm_tensor_to_f32(TDM_DTYPE_F16, odd, 1, out));
    CHECK(out[0] == -2.0f);
}

/* ---- the table of kernels -------------------------------------------------------------------- */

static void ref_has_every_op(void)
{
    size_t count = tdm_kernel_backend_count();
    CHECK(count >= 1);
    const tdm_kernel_backend_ops *ref = tdm_kernel_backend_at(count - 1);
    CHECK_TEXT(ref->name, "ref");
    for (int op = TDM_OP_NONE + 1; op < TDM_OP_COUNT; op++) {
        tdm_dtype made = op == TDM_OP_CAST ? TDM_DTYPE_BF16 : TDM_DTYPE_F32;
        const tdm_kernel *kernel = tdm_kernel_find(ref, (tdm_op_kind)op, made);
        if (op == TDM_OP_RESHAPE) {
            CHECK(!kernel); /* a view, never run */
            continue;
        }
        CHECK(kernel && kernel->run && kernel->op == (tdm_op_kind)op);
    }
    CHECK(!tdm_kernel_find(ref, TDM_OP_MATMUL, TDM_DTYPE_F64));
    CHECK(!tdm_kernel_find(ref, TDM_OP_NONE, TDM_DTYPE_F32));
    CHECK(!tdm_kernel_find(ref, TDM_OP_COUNT, TDM_DTYPE_F32));
}

static void backends_have_names_and_ends(void)
{
    for (size_t b = 0; b < tdm_kernel_backend_count(); b++) {
        const tdm_kernel_backend_ops *backend = tdm_kernel_backend_at(b);
        CHECK(backend->name && *backend->name);
        CHECK(!backend->open == !backend->close);
        for (size_t other = 0; other < b; other++)
            CHECK(!check_text_equal(backend->name, tdm_kernel_backend_at(other)->name));
        for (const tdm_kernel_family *const *f = backend->families; *f; f++)
            for (size_t k = 0; k < (*f)->count; k++) {
                const tdm_kernel *row = &(*f)->kernels[k];
                /* none hides another one */
                CHECK(tdm_kernel_find(backend, row->op, row->dtype) == row);
            }
    }
}

static void threads_set_returns_the_one_before(void)
{
    int at_first = tdm_kernel_threads_set(3);
    CHECK(at_first >= 1);
    CHECK_INT(tdm_kernel_threads_set(1), 3);
    CHECK_INT(tdm_kernel_threads_set(at_first), 1);
}

/* The smallest numbers above zero are unchanged outside, and zero inside. */
static void tiny_numbers_are_zero_inside(void)
{
    volatile float small = 1e-37f, factor = 0.01f, product;
    for (int threads = 1; threads <= 2; threads++) {
        tdm_kernel_mode before = tdm_kernel_enter(threads), within;
        product = small * factor;
        CHECK(product == 0.0f);
        within = tdm_kernel_enter(1); /* and a second time, as in nested calls of plans in a team */
        CHECK_INT(within.thread_count, threads);
        tdm_kernel_leave(&within);
        product = small * factor;
        CHECK(product == 0.0f);
        tdm_kernel_leave(&before);
        product = small * factor;
        CHECK(product > 0.0f);
    }
}

static const check_test tests[] = {
    CHECK_TEST(dtypes),
    CHECK_TEST(shape_elements),
    CHECK_TEST(shape_elements_refused),
    CHECK_TEST(shape_equal),
    CHECK_TEST(shape_text),
    CHECK_TEST(tensor_bytes),
    CHECK_TEST(all_f16),
    CHECK_TEST(all_bf16),
    CHECK_TEST(f64_rounds_to_nearest),
    CHECK_TEST(other_conversions),
    CHECK_TEST(ref_has_every_op),
    CHECK_TEST(backends_have_names_and_ends),
    CHECK_TEST(threads_set_returns_the_one_before),
    CHECK_TEST(tiny_numbers_are_zero_inside),
};
CHECK_MAIN(tests)
