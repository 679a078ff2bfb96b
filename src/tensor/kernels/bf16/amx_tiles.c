/*
 * amx_tiles.c: the instructions of the matrix unit, and the order that it wants numbers in. Compiled
 * with these instructions allowed (CMakeLists.txt): nothing here may run where tdm__amx_here says no.
 *
 * All loads and stores of a block stay within its memory; what is beyond the edge of a matrix is zero in
 * the panels that come in, and left out by masks on the way out.
 */
#include "tensor/kernels/bf16/amx.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

typedef uint32_t row __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t half_row __attribute__((vector_size(32), aligned(2), may_alias));

enum { SIDE = 16, TILE_WORDS = SIDE * SIDE };

/* ---- tiles ----------------------------------------------------------------------------------- */

void tdm__amx_begin(void)
{
    struct {
        uint8_t palette, start_row, unused[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } __attribute__((aligned(64))) config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.bytes[i] = 64;
        config.rows[i] = SIDE;
    }
    /* GCC tells its optimiser of the first eight bytes only. */
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
}

void tdm__amx_end(void)
{
    _tile_release();
}

/* Tiles 0 to 3 are the sums, two by two; 4 and 5 rows of a, 6 and 7 columns of b. */
void tdm__amx_multiply(const uint16_t *a, int64_t stride, const uint32_t *pairs, int64_t steps,
                       bool begins, float *sum)
{
    const int64_t sum_bytes = TDM__AMX_BLOCK * 4, a_bytes = stride * 2;
    const uint16_t *lower = a + SIDE * stride;
    if (begins) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, sum, sum_bytes);
        _tile_loadd(1, sum + SIDE, sum_bytes);
        _tile_loadd(2, sum + SIDE * TDM__AMX_BLOCK, sum_bytes);
        _tile_loadd(3, sum + SIDE * TDM__AMX_BLOCK + SIDE, sum_bytes);
    }
    for (int64_t s = 0; s < steps; s++) {
        _tile_loadd(4, a + s * TDM__AMX_STEP, a_bytes);
        _tile_loadd(6, pairs + s * TDM__AMX_PAIRS, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, pairs + s * TDM__AMX_PAIRS + TILE_WORDS, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, lower + s * TDM__AMX_STEP, a_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sum, sum_bytes);
    _tile_stored(1, sum + SIDE, sum_bytes);
    _tile_stored(2, sum + SIDE * TDM__AMX_BLOCK, sum_bytes);
    _tile_stored(3, sum + SIDE * TDM__AMX_BLOCK + SIDE, sum_bytes);
}

/* ---- results --------------------------------------------------------------------------------- */

/* Which of 16 numbers lie before the edge, when `left` do. */
static __mmask16 mask_of(int64_t left)
{
    return left >= SIDE ? (__mmask16)0xffff : left <= 0 ? 0 : (__mmask16)((1u << left) - 1);
}

void tdm__amx_write(const float *sum, const float *bias, int64_t rows, int64_t cols, float *c,
                    int64_t stride)
{
    __mmask16 first = mask_of(cols), second = mask_of(cols - SIDE);
    __m512 left = _mm512_setzero_ps(), right = left;
    if (bias) {
        left = _mm512_maskz_loadu_ps(first, bias);
        right = _mm512_maskz_loadu_ps(second, bias + SIDE);
    }
    for (int64_t r = 0; r < rows; r++) {
        __m512 x = _mm512_loadu_ps(sum + r * TDM__AMX_BLOCK);
        __m512 y = _mm512_loadu_ps(sum + r * TDM__AMX_BLOCK + SIDE);
        if (bias) {
            x = _mm512_add_ps(x, left);
            y = _mm512_add_ps(y, right);
        }
        _mm512_mask_storeu_ps(c + r * stride, first, x);
        _mm512_mask_storeu_ps(c + r * stride + SIDE, second, y);
    }
}

void tdm__amx_fetch(const float *c, int64_t stride, int64_t rows, int64_t cols, float *sum)
{
    __mmask16 first = mask_of(cols), second = mask_of(cols - SIDE);
    for (int64_t r = 0; r < TDM__AMX_BLOCK; r++) {
        bool inside = r < rows;
        __m512 x = _mm512_maskz_loadu_ps(inside ? first : 0, c + r * stride);
        __m512 y = _mm512_maskz_loadu_ps(inside ? second : 0, c + r * stride + SIDE);
        _mm512_storeu_ps(sum + r * TDM__AMX_BLOCK, x);
        _mm512_storeu_ps(sum + r * TDM__AMX_BLOCK + SIDE, y);
    }
}

/* ---- order ----------------------------------------------------------------------------------- */

#define ZIP_LOW(a, b)                                                                              \
    __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define ZIP_HIGH(a, b)                                                                             \
    __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)

/* Row i and row i + 8 are shuffled as one does with cards; four times over that turns a square. */
static inline void shuffle_rows(const row from[SIDE], row to[SIDE])
{
    for (int i = 0; i < SIDE / 2; i++) {
        to[2 * i] = ZIP_LOW(from[i], from[i + SIDE / 2]);
        to[2 * i + 1] = ZIP_HIGH(from[i], from[i + SIDE / 2]);
    }
}

static inline void turn_square(row a[SIDE])
{
    row b[SIDE];
    shuffle_rows(a, b);
    shuffle_rows(b, a);
    shuffle_rows(a, b);
    shuffle_rows(b, a);
}

/* Numbers of two rows, in pairs. */
static inline row pair(const uint16_t *even, const uint16_t *odd)
{
    row low = __builtin_convertvector(*(const half_row *)even, row);
    row high = __builtin_convertvector(*(const half_row *)odd, row);
    return low | high << 16;
}

void tdm__amx_pair_columns(const uint16_t *from, int64_t stride, int64_t steps, uint32_t *pairs)
{
    for (int64_t s = 0; s < steps; s++)
        for (int part = 0; part < TDM__AMX_BLOCK / SIDE; part++) {
            const uint16_t *at = from + part * SIDE * stride + s * TDM__AMX_STEP;
            uint32_t *to = pairs + s * TDM__AMX_PAIRS + part * TILE_WORDS;
            row square[SIDE];
            for (int i = 0; i < SIDE; i++) square[i] = *(const row *)(at + i * stride);
            turn_square(square);
            for (int i = 0; i < SIDE; i++) *(row *)(to + i * SIDE) = square[i];
        }
}

void tdm__amx_pair_rows(const uint16_t *from, int64_t stride, int64_t blocks, uint32_t *pairs,
                        int64_t apart)
{
    for (int64_t b = 0; b < blocks; b++)
        for (int part = 0; part < TDM__AMX_BLOCK / SIDE; part++) {
            const uint16_t *at = from + b * TDM__AMX_BLOCK + part * SIDE;
            uint32_t *to = pairs + b * apart + part * TILE_WORDS;
            for (int i = 0; i < SIDE; i++)
                *(row *)(to + i * SIDE) = pair(at + 2 * i * stride, at + (2 * i + 1) * stride);
        }
}

void tdm__amx_turn(const uint16_t *from, int64_t stride, uint16_t *to, int64_t to_stride)
{
    for (int part = 0; part < TDM__AMX_BLOCK / SIDE; part++) {
        row square[SIDE];
        for (int i = 0; i < SIDE; i++)
            square[i] = pair(from + part * SIDE + 2 * i * stride,
                             from + part * SIDE + (2 * i + 1) * stride);
        turn_square(square);
        for (int i = 0; i < SIDE; i++) *(row *)(to + (part * SIDE + i) * to_stride) = square[i];
    }
}

#endif
