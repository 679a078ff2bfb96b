/*
 * amx.c: products of bf16 by AMX tiles. Compiled with AMX enabled (CMakeLists.txt): nothing here
 * may run on a CPU without it.
 *
 * A tile is a register of 16 rows of 64 bytes. One instruction multiplies a tile of 16 x 32 bf16
 * numbers by one of 32 x 16 and adds the 16 x 16 results, in f32, to a third. It ignores the
 * floating-point control word: it always rounds to nearest and flushes to zero.
 */
#include "tensor/kernels/bf16/bf16.h"

#if defined(__x86_64__)

#include <immintrin.h>

enum { SIDE = 16, TILE_WORDS = SIDE * SIDE };

static void amx_begin(void)
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
    /* GCC's optimiser assumes that only the first eight bytes are read. */
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
}

static void amx_end(void)
{
    _tile_release();
}

/* Tiles 0 to 3 are the sums, two by two; 4 and 5 are rows of a, 6 and 7 columns of b. */
static void amx_multiply(const uint16_t *panel, int64_t stride, const uint32_t *pairs,
                         int64_t steps, bool begins, float *sum)
{
    const int64_t sum_bytes = TDM__BF16_BLOCK * 4, a_bytes = stride * 2;
    const uint16_t *lower = panel + SIDE * stride;
    if (begins) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, sum, sum_bytes);
        _tile_loadd(1, sum + SIDE, sum_bytes);
        _tile_loadd(2, sum + SIDE * TDM__BF16_BLOCK, sum_bytes);
        _tile_loadd(3, sum + SIDE * TDM__BF16_BLOCK + SIDE, sum_bytes);
    }
    for (int64_t s = 0; s < steps; s++) {
        _tile_loadd(4, panel + s * TDM__BF16_STEP, a_bytes);
        _tile_loadd(6, pairs + s * TDM__BF16_PAIRS, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, pairs + s * TDM__BF16_PAIRS + TILE_WORDS, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, lower + s * TDM__BF16_STEP, a_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sum, sum_bytes);
    _tile_stored(1, sum + SIDE, sum_bytes);
    _tile_stored(2, sum + SIDE * TDM__BF16_BLOCK, sum_bytes);
    _tile_stored(3, sum + SIDE * TDM__BF16_BLOCK + SIDE, sum_bytes);
}

const tdm__bf16_tiles tdm__bf16_amx = {
    .begin = amx_begin, .end = amx_end, .multiply = amx_multiply};

#endif
