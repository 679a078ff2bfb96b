/*
 * winograd.c: the transforms around the products of Winograd's method F(2 x 2, 3 x 3).
 *
 * A tile of 4 x 4 numbers and a window of 3 x 3 are each brought into a form of 4 x 4 in which the
 * convolution is a product place by place, and what comes out of that back into 2 x 2 results. All
 * constants are 0, 1 and 1/2, so next to nothing is lost. Each of the 16 places is a matrix of its
 * own, with the channels side by side, so the loops below run along the channels.
 */
#include "tensor/kernels/cpu/vec/vec.h"

enum { PLACES = 16 };

/* Of one window: g [3][3][C] -> U[place][C], places `stride` numbers apart. */
static void transform_window(const float *restrict g, int64_t C, float *restrict u, int64_t stride)
{
    for (int64_t c = 0; c < C; c++) {
        float rows[4][3];
        for (int k = 0; k < 3; k++) {
            float a = g[k * C + c], b = g[(3 + k) * C + c], d = g[(6 + k) * C + c];
            rows[0][k] = a;
            rows[1][k] = 0.5f * ((a + d) + b);
            rows[2][k] = 0.5f * ((a + d) - b);
            rows[3][k] = d;
        }
        for (int r = 0; r < 4; r++) {
            float a = rows[r][0], b = rows[r][1], d = rows[r][2];
            u[(4 * r + 0) * stride + c] = a;
            u[(4 * r + 1) * stride + c] = 0.5f * ((a + d) + b);
            u[(4 * r + 2) * stride + c] = 0.5f * ((a + d) - b);
            u[(4 * r + 3) * stride + c] = d;
        }
    }
}

/* Of one tile: 16 pointers to C numbers each -> V[place][C]. */
static void transform_tile(const float *const at[PLACES], int64_t C, float *restrict v,
                           int64_t stride)
{
    for (int64_t c = 0; c < C; c += TDM__WIDTH) {
        vf d[4][4], t[4][4];
        for (int i = 0; i < PLACES; i++) d[i / 4][i % 4] = vf_load(at[i] + c);
        for (int k = 0; k < 4; k++) {
            t[0][k] = d[0][k] - d[2][k];
            t[1][k] = d[1][k] + d[2][k];
            t[2][k] = d[2][k] - d[1][k];
            t[3][k] = d[1][k] - d[3][k];
        }
        for (int r = 0; r < 4; r++) {
            float *to = v + 4 * r * stride + c;
            vf_store(to, t[r][0] - t[r][2]);
            vf_store(to + stride, t[r][1] + t[r][2]);
            vf_store(to + 2 * stride, t[r][2] - t[r][1]);
            vf_store(to + 3 * stride, t[r][1] - t[r][3]);
        }
    }
}

/* Of one tile: M[place][O] -> 4 pointers to O results each, NULL where there is none. */
static void transform_back(const float *restrict m, int64_t stride, const float *bias, int64_t O,
                           float *const to[4])
{
    for (int64_t o = 0; o < O; o += TDM__WIDTH) {
        vf p[4][4], t[2][4], add = bias ? vf_load(bias + o) : vf_set(0);
        for (int i = 0; i < PLACES; i++) p[i / 4][i % 4] = vf_load(m + i * stride + o);
        for (int k = 0; k < 4; k++) {
            t[0][k] = (p[0][k] + p[1][k]) + p[2][k];
            t[1][k] = (p[1][k] - p[2][k]) - p[3][k];
        }
        for (int r = 0; r < 2; r++) {
            if (to[2 * r]) vf_store(to[2 * r] + o, ((t[r][0] + t[r][1]) + t[r][2]) + add);
            if (to[2 * r + 1]) vf_store(to[2 * r + 1] + o, ((t[r][1] - t[r][2]) - t[r][3]) + add);
        }
    }
}

static void range_windows(const void *args, int64_t begin, int64_t end)
{
    const tdm__winograd *w = args;
    for (int64_t o = begin; o < end; o++)
        transform_window(w->weights + o * 9 * w->C, w->C, w->u + o * w->C, w->O * w->C);
}

static void range_tiles(const void *args, int64_t begin, int64_t end)
{
    const tdm__winograd *w = args;
    const float *at[PLACES];
    for (int64_t i = begin; i < end; i++) {
        int64_t tile = w->first_tile + i, row = tile / w->tile_cols;
        int64_t image = row / w->tile_rows;
        int64_t y0 = 2 * (row % w->tile_rows) - w->pad_top;
        int64_t x0 = 2 * (tile % w->tile_cols) - w->pad_left;
        for (int p = 0; p < PLACES; p++) {
            int64_t y = y0 + p / 4, x = x0 + p % 4;
            bool inside = y >= 0 && y < w->H && x >= 0 && x < w->W;
            at[p] = inside ? w->image + ((image * w->H + y) * w->W + x) * w->C : w->zeros;
        }
        transform_tile(at, w->C, w->v + i * w->C, w->tile_count * w->C);
    }
}

static void range_results(const void *args, int64_t begin, int64_t end)
{
    const tdm__winograd *w = args;
    for (int64_t i = begin; i < end; i++) {
        int64_t tile = w->first_tile + i, row = tile / w->tile_cols;
        int64_t image = row / w->tile_rows;
        int64_t y0 = 2 * (row % w->tile_rows), x0 = 2 * (tile % w->tile_cols);
        float *to[4];
        for (int p = 0; p < 4; p++) {
            int64_t y = y0 + p / 2, x = x0 + p % 2;
            bool inside = y < w->out_H && x < w->out_W;
            to[p] = inside ? w->result + ((image * w->out_H + y) * w->out_W + x) * w->O : NULL;
        }
        transform_back(w->m + i * w->O, w->tile_count * w->O, w->bias, w->O, to);
    }
}

static void windows(const tdm__winograd *w)
{
    tdm__vec_split(w->O, 25 * w->C, range_windows, w);
}

static void tiles(const tdm__winograd *w)
{
    tdm__vec_split(w->tile_count, 32 * w->C, range_tiles, w);
}

static void results(const tdm__winograd *w)
{
    tdm__vec_split(w->tile_count, 20 * w->O, range_results, w);
}

const tdm__vec_winograd TDM__AT_LEVEL(tdm__vec_winograd) = {
    .windows = windows, .tiles = tiles, .results = results};
