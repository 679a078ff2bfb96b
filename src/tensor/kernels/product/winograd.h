/*
 * winograd.h: convolutions of 3 x 3 windows with stride 1, by Winograd's method.
 *
 * Tiles of an image and the windows are transformed so that the convolution is an element-wise
 * product; products over channels are matrix products, one for each element. Forward uses tiles of
 * 2 x 2 results, F(2 x 2, 3 x 3): 16 products instead of 36, and as exact as the direct method.
 * Gradients use tiles of 4 x 4, which need a quarter of the multiplications and lose one digit,
 * about 5e-6 of the largest number: F(4 x 4, 3 x 3) for grad_x, and F(3 x 3, 4 x 4), in which the
 * tiles of dy are the windows, for grad_w.
 *
 * The order of operations is part of every result: the transforms as written in vec/winograd.c, the
 * products of forward and grad_x by the rules of product.h, and those of grad_w as chains over
 * segments of at most TDM__WINOGRAD_TILES tiles, whose sums are added in order.
 */
#ifndef TANDEM_TENSOR_KERNELS_PRODUCT_WINOGRAD_H
#define TANDEM_TENSOR_KERNELS_PRODUCT_WINOGRAD_H

#include "tensor/kernels/product/product.h"

enum { TDM__WINOGRAD_TILES = 48, TDM__WINOGRAD_CHANNELS = 16 };

/* A convolution from images [B, H, W, C] to results [B, out_H, out_W, O]; both numbers of channels
 * are multiples of TDM__WINOGRAD_CHANNELS. */
typedef struct tdm__winograd {
    int64_t B, H, W, C, O, out_H, out_W, pad_top, pad_left;
    int64_t tile;                 /* results of a tile in each direction: 2 or 4 */
    int64_t tile_rows, tile_cols; /* of one image */
    bool back;                    /* weights are [C, 3, 3, O], to be rotated by 180 degrees: for
                                   * grad_x */
    const float *image, *weights; /* weights [O, 3, 3, C] */
    const float *bias;            /* NULL: none */
    tdm_activation activation;
    float *result;
} tdm__winograd;

typedef struct tdm__vec_winograd {
    size_t (*scratch_bytes)(const tdm__winograd *w);
    void (*run)(const tdm__winograd *w, void *scratch);
    /* Here `result` is dy, which is read, and d_weights [O, 3, 3, C] is written. */
    size_t (*grad_w_scratch_bytes)(const tdm__winograd *w);
    void (*grad_w)(const tdm__winograd *w, float *d_weights, void *scratch);
} tdm__vec_winograd;

extern const tdm__vec_winograd tdm__vec_winograd_0, tdm__vec_winograd_2, tdm__vec_winograd_3,
    tdm__vec_winograd_4;
const tdm__vec_winograd *tdm__winograd_here(void); /* at the level in use */

#endif
