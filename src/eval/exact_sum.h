/*
 * exact_sum.h: a sum of doubles that does not depend on the order.
 *
 * A number is split into whole multiples of 2^-96, 2^-64, ... 2^128, less than 2^32 of each, and these
 * are added. All operations are exact, so a sum does not depend on the order or the grouping of its
 * terms. Bits below 2^-96 (1.3e-29) are dropped first. Sums are exchanged as arrays of doubles.
 */
#ifndef TANDEM_EVAL_EXACT_SUM_H
#define TANDEM_EVAL_EXACT_SUM_H

enum { TDM__EXACT_LIMBS = 8 };

/* Zero-initialised: 0. All limbs are whole numbers; all but the last are in [0, 2^32). */
typedef struct tdm__exact_sum {
    double limb[TDM__EXACT_LIMBS];
} tdm__exact_sum;

/* x is finite and |x| < 2^160. */
void tdm__exact_add(tdm__exact_sum *sum, double x);
void tdm__exact_merge(tdm__exact_sum *sum, const tdm__exact_sum *other);
/* Rounded to a double. */
double tdm__exact_total(const tdm__exact_sum *sum);

#endif
