/* exact_sum.c: sums of doubles in fixed point, with 32 bits in each limb; see exact_sum.h. */
#include "eval/exact_sum.h"

#include <assert.h>
#include <math.h>

#define LIMB_RANGE 0x1p32

static const double units[TDM__EXACT_LIMBS] = {0x1p-96, 0x1p-64, 0x1p-32, 0x1p0,
                                               0x1p32,  0x1p64,  0x1p96,  0x1p128};

/* Carries: brings every limb except the last into its range, so that equal sums have equal limbs. */
static void exact_sum_carry(tdm__exact_sum *sum)
{
    for (int i = 0; i + 1 < TDM__EXACT_LIMBS; i++) {
        double over = floor(sum->limb[i] / LIMB_RANGE);
        sum->limb[i] -= over * LIMB_RANGE;
        sum->limb[i + 1] += over;
    }
}

void tdm__exact_add(tdm__exact_sum *sum, double x)
{
    assert(fabs(x) < 0x1p160);
    for (int i = TDM__EXACT_LIMBS - 1; i >= 0; i--) {
        double whole = trunc(x / units[i]);
        sum->limb[i] += whole;
        x -= whole * units[i];
    }
    exact_sum_carry(sum);
}

void tdm__exact_merge(tdm__exact_sum *sum, const tdm__exact_sum *other)
{
    for (int i = 0; i < TDM__EXACT_LIMBS; i++) sum->limb[i] += other->limb[i];
    exact_sum_carry(sum);
}

double tdm__exact_total(const tdm__exact_sum *sum)
{
    double total = 0;
    for (int i = 0; i < TDM__EXACT_LIMBS; i++) total += sum->limb[i] * units[i];
    return total;
}
