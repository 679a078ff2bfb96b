/*
 * double_eval_image.h: convolutions, pools and batch norm in double precision, for double_eval.h and for
 * comparing kernels.
 *
 * Written from the definitions, with loops in another order than in `ref`: a convolution visits all triples of
 * a number of x, one of w and one of y that belong together, and a pool checks for every position of the image
 * whether it is in the window.
 */
#ifndef TANDEM_TESTS_KERNEL_DOUBLE_EVAL_IMAGE_H
#define TANDEM_TESTS_KERNEL_DOUBLE_EVAL_IMAGE_H

#include "kernel/double_eval.h"

typedef struct image_conv {
    const tdm_op_attrs *attrs;
    tdm_shape x, w, y;
    double *values[3]; /* of x, w and y */
    int target;        /* the one that accumulates the products of the other two */
} image_conv;

/* Adds to the target. */
void image_conv_visit(const image_conv *v);

/* ---- pools ----------------------------------------------------------------------------------- */

/* Output (b, oh, ow) of channel c. *gap: the difference between the largest and the second largest number. */
double image_pool(const tdm_op_attrs *a, const double *x, const tdm_shape *s, const int64_t at[4],
                  bool largest, double *gap);

/* ---- batch norm ------------------------------------------------------------------------------ */

bool double_eval_image(double_eval *e, const tdm__node *node);

#endif
