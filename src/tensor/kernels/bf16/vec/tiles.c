/*
 * tiles.c: blocks of products of bf16 by vector instructions, in the order that bf16.h defines; and
 * the packing, which AMX tiles need as well.
 *
 * A block is computed step by step: BLOCK columns of b are widened to f32 into a buffer in the L1
 * cache, as rows of even k and rows of odd k; then TILE_ROWS rows of a at a time are processed with
 * both chains of TILE_VECS vectors in registers, and their sum is added to the block.
 *
 * Fused multiply-add: levels 3 and 4 have the instruction, which flushes as AMX does. Elsewhere
 * (level 2, and ARM, which decides before rounding whether a result is subnormal) a product and a
 * sum give the same bits as long as the product of two numbers is itself an f32: its 16 bits always
 * fit, so it is sufficient that its exponent does. So the range of the exponents of both factors is
 * computed for every step. Then a subnormal result is exact, and flushed in the same way
 * everywhere. If exponents leave the range, exact_fma computes each number in double precision.
 * That is slow, and needed only if two factors multiply to less than 2^-126 or more than 2^128.
 *
 * Requires the control word to flush to zero (product.c sets it), and -ffp-contract=off.
 */
#include "tensor/kernels/bf16/bf16.h"
#include "tensor/kernels/cpu/vec/vec.h"

#include <math.h>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

typedef uint32_t vu __attribute__((vector_size(4 * TDM__WIDTH), aligned(4), may_alias));
typedef uint16_t vh __attribute__((vector_size(2 * TDM__WIDTH), aligned(2), may_alias));

enum {
    SIDE = 16,
    TILE_WORDS = SIDE * SIDE,
    STEP_PAIRS = TDM__BF16_STEP / 2,
    BLOCK = TDM__BF16_BLOCK,
    /* As many chains as fit into registers beside the vectors of b and a number of a. */
    TILE_ROWS = TDM__LEVEL >= 4 ? 6 : 3,
    TILE_VECS = 2,
    TILE_COLS = TILE_VECS * TDM__WIDTH,
    HAS_EXACT_FMA = TDM__LEVEL >= 3
};

/* ---- ranges of exponents ---------------------------------------------------------------------- */

/* The minimum and the maximum biased exponent of normal numbers; infinities and NaN count as
 * large. */
typedef struct range {
    vu min, max;
} range;

static inline vu vu_choose(vu mask, vu yes, vu no)
{
    return (mask & yes) | (~mask & no);
}

static inline void range_add(range *r, vu bits)
{
    vu exponent = bits >> 23 & 0xffu, is_zero = (vu)(exponent == 0);
    vu large = exponent | (is_zero & 0xffu);
    r->min = vu_choose((vu)(large < r->min), large, r->min);
    r->max = vu_choose((vu)(exponent > r->max), exponent, r->max);
}

static range range_empty(void)
{
    return (range){.min = (vu){0} + 0xffu};
}

static void range_limits(const range *r, uint32_t limits[2])
{
    limits[0] = r->min[0];
    limits[1] = r->max[0];
    for (int i = 1; i < TDM__WIDTH; i++) {
        if (r->min[i] < limits[0]) limits[0] = r->min[i];
        if (r->max[i] > limits[1]) limits[1] = r->max[i];
    }
}

/* Whether all products of numbers of two such ranges are at least 2^-126 and below 2^128. Their
 * exponents are biased by 127 each: a product is from 2^(a + b - 254) to below 2^(a + b - 252). */
static bool products_are_exact(const uint32_t a[2], const uint32_t b[2])
{
    return a[0] + b[0] >= 254 - 126 && a[1] + b[1] <= 252 + 128;
}

/* ---- multiply --------------------------------------------------------------------------------- */

/* a b + c if a b is exact: see above. */
static inline vf chain_fma(vf a, vf b, vf c)
{
#if TDM__LEVEL >= 3
    return vf_fma(a, b, c);
#elif defined(__aarch64__)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* `rows` rows of a step, TILE_COLS columns; `rows` is a constant where this is called. */
static inline __attribute__((always_inline)) void step_tile(const int rows, const float *a,
                                                            const float *b, int64_t pairs,
                                                            float *sum)
{
    vf even[TILE_ROWS][TILE_VECS], odd[TILE_ROWS][TILE_VECS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < TILE_VECS; v++) even[r][v] = odd[r][v] = (vf){0};
    for (int64_t p = 0; p < pairs; p++, a += 2, b += 2 * BLOCK) {
        vf right[TILE_VECS];
#pragma GCC unroll 2
        for (int v = 0; v < TILE_VECS; v++) right[v] = vf_load(b + v * TDM__WIDTH);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int v = 0; v < TILE_VECS; v++)
                even[r][v] = chain_fma(vf_set(a[r * TDM__BF16_STEP]), right[v], even[r][v]);
#pragma GCC unroll 2
        for (int v = 0; v < TILE_VECS; v++) right[v] = vf_load(b + BLOCK + v * TDM__WIDTH);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int v = 0; v < TILE_VECS; v++)
                odd[r][v] = chain_fma(vf_set(a[r * TDM__BF16_STEP + 1]), right[v], odd[r][v]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < TILE_VECS; v++) {
            float *to = sum + r * BLOCK + v * TDM__WIDTH;
            vf_store(to, vf_load(to) + (even[r][v] + odd[r][v]));
        }
}

static void step_rows(const float *a, const float *b, int64_t pairs, int64_t rows, float *sum)
{
    for (; rows >= TILE_ROWS; rows -= TILE_ROWS) {
        step_tile(TILE_ROWS, a, b, pairs, sum);
        a += TILE_ROWS * TDM__BF16_STEP;
        sum += TILE_ROWS * BLOCK;
    }
    switch (rows) {
    case 1: step_tile(1, a, b, pairs, sum); break;
    case 2: step_tile(2, a, b, pairs, sum); break;
#if TDM__LEVEL >= 4
    case 3: step_tile(3, a, b, pairs, sum); break;
    case 4: step_tile(4, a, b, pairs, sum); break;
    case 5: step_tile(5, a, b, pairs, sum); break;
#endif
    default: break;
    }
}

/* x, or zero of its sign if it is subnormal, independent of the control word. */
static float tile_flushed(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if ((bits & 0x7f800000u) == 0) bits &= 0x80000000u;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/*
 * a b + c with one rounding to f32, for normal numbers, zeros, infinities and NaN. The product is
 * exact in double precision. If the sum is not, its last bit is made odd (Boldo and Melquiond,
 * "Emulation of FMA and correctly rounded sums", 2008): so the second rounding, to f32, is that of
 * the exact value. A result that rounds to 2^-126 in 24 bits is kept, a smaller one is zero.
 */
static float exact_fma(float a, float b, float c)
{
    double product = (double)a * (double)b, addend = (double)c, sum = product + addend;
    double back = sum - product, lost = (product - (sum - back)) + (addend - back);
    if (lost != 0 && isfinite(sum)) {
        uint64_t bits;
        memcpy(&bits, &sum, sizeof(bits));
        if ((bits & 1) == 0) bits += (lost > 0) == (sum > 0) ? 1 : UINT64_MAX;
        memcpy(&sum, &bits, sizeof(sum));
    }
    double magnitude = fabs(sum);
    if (magnitude >= 0x1p-126 || isnan(sum)) return (float)sum;
    float small = magnitude >= 0x1p-126 - 0x1p-151 ? 0x1p-126f : 0.0f;
    return signbit(sum) ? -small : small;
}

static void step_exact(const float *a, const float *b, int64_t pairs, int64_t rows, int64_t cols,
                       float *sum)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < cols; n++) {
            float chain[2] = {0, 0};
            for (int64_t k = 0; k < 2 * pairs; k++)
                chain[k & 1] = exact_fma(tile_flushed(a[r * TDM__BF16_STEP + k]),
                                         tile_flushed(b[k * BLOCK + n]), chain[k & 1]);
            sum[r * BLOCK + n] += chain[0] + chain[1];
        }
}

/* The pairs of one step into rows of BLOCK floats: of k 0, of k 1, ... */
static void widen_step(const uint32_t *pairs, int64_t count, float *b, uint32_t limits[2])
{
    range r = range_empty();
    for (int64_t p = 0; p < count; p++)
        for (int64_t n = 0; n < BLOCK; n += TDM__WIDTH) {
            vu x = *(const vu *)(pairs + n / SIDE * TILE_WORDS + p * SIDE + n % SIDE);
            vu even = x << 16, odd = x & 0xffff0000u;
            vf_store(b + 2 * p * BLOCK + n, (vf)even);
            vf_store(b + (2 * p + 1) * BLOCK + n, (vf)odd);
            if (!HAS_EXACT_FMA) {
                range_add(&r, even);
                range_add(&r, odd);
            }
        }
    range_limits(&r, limits);
}

static void block_multiply(const float *wide, const uint32_t *pairs, int64_t length, bool begins,
                           int64_t rows, int64_t cols, float *sum)
{
    float b[TDM__BF16_STEP * BLOCK] __attribute__((aligned(64)));
    if (begins) memset(sum, 0, (size_t)(rows * BLOCK) * sizeof(*sum));
    for (; length > 0; length -= TDM__BF16_STEP) {
        /* A zero turns a chain that is -0 into +0 and changes nothing else, and a second zero has
         * no effect: one pair of zeros is sufficient for the rest of an incomplete step. */
        int64_t count = (length + 1) / 2 + 1;
        if (count > STEP_PAIRS) count = STEP_PAIRS;
        uint32_t limits[2][2];
        memcpy(limits[0], wide + BLOCK * TDM__BF16_STEP, sizeof(limits[0]));
        widen_step(pairs, count, b, limits[1]);
        if (HAS_EXACT_FMA || products_are_exact(limits[0], limits[1])) {
            for (int64_t n = 0; n < cols; n += TILE_COLS)
                step_rows(wide, b + n, count, rows, sum + n);
        } else {
            step_exact(wide, b, count, rows, cols, sum);
        }
        wide += TDM__BF16_WIDE_STEP;
        pairs += TDM__BF16_PAIRS;
    }
}

static void panel_widen(const uint16_t *panel, int64_t stride, int64_t steps, float *wide)
{
    for (int64_t s = 0; s < steps; s++, panel += TDM__BF16_STEP, wide += TDM__BF16_WIDE_STEP) {
        range all = range_empty();
        uint32_t limits[2];
        for (int64_t r = 0; r < BLOCK; r++)
            for (int64_t k = 0; k < TDM__BF16_STEP; k += TDM__WIDTH) {
                const vh *from = (const vh *)(panel + r * stride + k);
                vu x = __builtin_convertvector(*from, vu) << 16;
                vf_store(wide + r * TDM__BF16_STEP + k, (vf)x);
                if (!HAS_EXACT_FMA) range_add(&all, x);
            }
        range_limits(&all, limits);
        memcpy(wide + BLOCK * TDM__BF16_STEP, limits, sizeof(limits));
    }
}

/* ---- results ---------------------------------------------------------------------------------- */

/* Whole rows: `cols` and whether there is a bias are constants where this is called. */
static inline __attribute__((always_inline)) void write_rows(const float *sum, const float *bias,
                                                             int64_t rows, int64_t cols, float *c,
                                                             int64_t stride)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < cols; n += TDM__WIDTH) {
            vf x = vf_load(sum + r * BLOCK + n);
            if (bias) x += vf_load_up_to(bias + n, cols - n, 0);
            vf_store_up_to(c + r * stride + n, cols - n, x);
        }
}

static void block_write(const float *sum, const float *bias, int64_t rows, int64_t cols, float *c,
                        int64_t stride)
{
    if (cols != BLOCK)
        write_rows(sum, bias, rows, cols, c, stride);
    else if (bias)
        write_rows(sum, bias, rows, BLOCK, c, stride);
    else
        write_rows(sum, NULL, rows, BLOCK, c, stride);
}

static void block_fetch(const float *c, int64_t stride, int64_t rows, int64_t cols, float *sum)
{
    for (int64_t r = 0; r < BLOCK; r++)
        for (int64_t n = 0; n < BLOCK; n += TDM__WIDTH) {
            vf x = {0};
            if (r < rows && n < cols) x = vf_load_up_to(c + r * stride + n, cols - n, 0);
            vf_store(sum + r * BLOCK + n, x);
        }
}

/* ---- transposition ---------------------------------------------------------------------------- */

/* A square of SIDE x SIDE words is transposed in vectors of 16 words if the level has them,
 * otherwise by squares of 4 x 4. */
#if TDM__LEVEL >= 4
typedef uint32_t row __attribute__((vector_size(64), aligned(4), may_alias));

#define ZIP_LOW(a, b)                                                                              \
    __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define ZIP_HIGH(a, b)                                                                             \
    __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)

/* Interleaves rows i and i + 8; four such steps transpose a square. */
static inline void shuffle_rows(const row from[SIDE], row to[SIDE])
{
    for (int i = 0; i < SIDE / 2; i++) {
        to[2 * i] = ZIP_LOW(from[i], from[i + SIDE / 2]);
        to[2 * i + 1] = ZIP_HIGH(from[i], from[i + SIDE / 2]);
    }
}

static inline void turn_rows(row a[SIDE], uint32_t *to, int64_t to_stride)
{
    row b[SIDE];
    shuffle_rows(a, b);
    shuffle_rows(b, a);
    shuffle_rows(a, b);
    shuffle_rows(b, a);
    for (int i = 0; i < SIDE; i++) *(row *)(to + i * to_stride) = a[i];
}

static inline void turn_square(const uint32_t *from, int64_t stride, uint32_t *to,
                               int64_t to_stride)
{
    row a[SIDE];
    for (int i = 0; i < SIDE; i++) a[i] = *(const row *)(from + i * stride);
    turn_rows(a, to, to_stride);
}
#else
typedef uint32_t row __attribute__((vector_size(16), aligned(4), may_alias));

static inline void turn_square(const uint32_t *from, int64_t stride, uint32_t *to,
                               int64_t to_stride)
{
    for (int i = 0; i < SIDE; i += 4)
        for (int k = 0; k < SIDE; k += 4) {
            const uint32_t *at = from + i * stride + k;
            row a = *(const row *)at, b = *(const row *)(at + stride);
            row c = *(const row *)(at + 2 * stride), d = *(const row *)(at + 3 * stride);
            row ac_low = __builtin_shufflevector(a, c, 0, 4, 1, 5);
            row ac_high = __builtin_shufflevector(a, c, 2, 6, 3, 7);
            row bd_low = __builtin_shufflevector(b, d, 0, 4, 1, 5);
            row bd_high = __builtin_shufflevector(b, d, 2, 6, 3, 7);
            uint32_t *out = to + k * to_stride + i;
            *(row *)out = __builtin_shufflevector(ac_low, bd_low, 0, 4, 1, 5);
            *(row *)(out + to_stride) = __builtin_shufflevector(ac_low, bd_low, 2, 6, 3, 7);
            *(row *)(out + 2 * to_stride) = __builtin_shufflevector(ac_high, bd_high, 0, 4, 1, 5);
            *(row *)(out + 3 * to_stride) = __builtin_shufflevector(ac_high, bd_high, 2, 6, 3, 7);
        }
}
#endif

/* SIDE numbers of two rows, in pairs. */
static inline void pair_numbers(const uint16_t *even, const uint16_t *odd, uint32_t *to)
{
    for (int i = 0; i < SIDE; i += TDM__WIDTH) {
        vu low = __builtin_convertvector(*(const vh *)(even + i), vu);
        vu high = __builtin_convertvector(*(const vh *)(odd + i), vu);
        *(vu *)(to + i) = low | high << 16;
    }
}

static void pair_columns(const uint16_t *from, int64_t stride, int64_t steps, uint32_t *pairs)
{
    for (int64_t s = 0; s < steps; s++)
        for (int part = 0; part < BLOCK / SIDE; part++) {
            const uint16_t *at = from + part * SIDE * stride + s * TDM__BF16_STEP;
            /* Rows of numbers are rows of pairs; the stride is a multiple of STEP. */
            turn_square((const uint32_t *)at, stride / 2,
                        pairs + s * TDM__BF16_PAIRS + part * TILE_WORDS, SIDE);
        }
}

static void pair_rows(const uint16_t *from, int64_t stride, int64_t blocks, uint32_t *pairs,
                      int64_t apart)
{
    for (int64_t b = 0; b < blocks; b++)
        for (int part = 0; part < BLOCK / SIDE; part++) {
            const uint16_t *at = from + b * BLOCK + part * SIDE;
            uint32_t *to = pairs + b * apart + part * TILE_WORDS;
            for (int i = 0; i < SIDE; i++)
                pair_numbers(at + 2 * i * stride, at + (2 * i + 1) * stride, to + i * SIDE);
        }
}

static void block_turn(const uint16_t *from, int64_t stride, uint16_t *to, int64_t to_stride)
{
    for (int part = 0; part < BLOCK / SIDE; part++) {
        const uint16_t *at = from + part * SIDE;
        uint32_t *out = (uint32_t *)(to + part * SIDE * to_stride);
#if TDM__LEVEL >= 4
        row square[SIDE]; /* stays in registers */
        for (int i = 0; i < SIDE; i++)
            pair_numbers(at + 2 * i * stride, at + (2 * i + 1) * stride, (uint32_t *)&square[i]);
        turn_rows(square, out, to_stride / 2);
#else
        uint32_t square[TILE_WORDS];
        for (int i = 0; i < SIDE; i++)
            pair_numbers(at + 2 * i * stride, at + (2 * i + 1) * stride, square + i * SIDE);
        turn_square(square, SIDE, out, to_stride / 2);
#endif
    }
}

const tdm__bf16_vec TDM__AT_LEVEL(tdm__bf16_vec) = {
    .pair_columns = pair_columns,
    .pair_rows = pair_rows,
    .turn = block_turn,
    .widen = panel_widen,
    .multiply = block_multiply,
    .write = block_write,
    .fetch = block_fetch,
};
