/*
 * loops.c: clipping, sums of squares and averages, for all optimisers.
 *
 * A sum of squares has eight partial sums, in double precision, which are added in a fixed order:
 * so it can be vectorised and has the same bits at every level.
 */
#include "optim/vec/vec.h"

enum { PARTS = 8 };

static void loops_clamp(float *values, size_t count, float limit)
{
    for (size_t i = 0; i < count; i++) {
        float x = values[i];
        x = x > limit ? limit : x;
        values[i] = x < -limit ? -limit : x;
    }
}

static void loops_scale(float *values, size_t count, float factor)
{
    for (size_t i = 0; i < count; i++) values[i] *= factor;
}

static double sum_squares(const float *values, size_t count)
{
    double parts[PARTS] = {0};
    size_t whole = count / PARTS * PARTS;
    for (size_t i = 0; i < whole; i += PARTS)
        for (size_t k = 0; k < PARTS; k++)
            parts[k] += (double)values[i + k] * (double)values[i + k];
    for (size_t i = whole; i < count; i++)
        parts[i - whole] += (double)values[i] * (double)values[i];
    return ((parts[0] + parts[1]) + (parts[2] + parts[3])) +
           ((parts[4] + parts[5]) + (parts[6] + parts[7]));
}

static void loops_average(float *restrict ema, const float *restrict values, size_t count,
                          double decay)
{
    const float keep = (float)decay, fresh = (float)(1.0 - decay);
    for (size_t i = 0; i < count; i++) ema[i] = keep * ema[i] + fresh * values[i];
}

const tdm__optim_loops TDM__AT_LEVEL(tdm__optim_loops) = {.clamp = loops_clamp,
                                                          .scale = loops_scale,
                                                          .sum_squares = sum_squares,
                                                          .average = loops_average};
