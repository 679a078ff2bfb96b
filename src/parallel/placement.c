/*
 * placement.c: assigns lanes to ranks.
 *
 * With a limit of t on lanes / weight, rank i can take floor(t x weight) lanes, and at least one.
 * The smallest t for which all lanes can be assigned is found by bisection, in doubles, until
 * two neighbours remain: the lower one is too small, the upper one large enough. The lanes that
 * the lower one leaves over are given, in order of the ranks, to those that can take one more at the upper
 * one. No assignment of whole lanes has a shorter time, and with equal weights the first ranks have one
 * lane more than the others.
 *
 * Only sums, products and comparisons are used, which give the same bits on every machine: ranks of
 * different hosts must compute the same placement.
 */
#include "parallel/parallel.h"

#include <assert.h>

/* Minimum weight relative to the fastest rank; such a rank normally gets one lane. */
static const double min_weight = 1e-6;

static double rank_weight(const double *weights, int rank, double max)
{
    if (!weights) return 1;
    double w = weights[rank] / max;
    if (!(w >= min_weight)) return min_weight; /* NaN as well */
    return w < 1 ? w : 1;
}

static double weights_max(const double *weights, int rank_count)
{
    double max = 0;
    for (int i = 0; weights && i < rank_count; i++)
        if (weights[i] > max && weights[i] <= 1e300) max = weights[i];
    return max;
}

typedef struct scale {
    int64_t lane_count;
    int rank_count;
    const double *weights;
    double max;
} scale;

/* Lanes that a rank takes with this limit. */
static int64_t rank_lanes_within(const scale *s, int rank, double limit)
{
    double lanes = limit * rank_weight(s->weights, rank, s->max);
    if (lanes >= (double)s->lane_count) return s->lane_count;
    return lanes >= 1 ? (int64_t)lanes : 1;
}

static bool lanes_fit(const scale *s, double limit)
{
    int64_t sum = 0;
    for (int i = 0; i < s->rank_count; i++) {
        sum += rank_lanes_within(s, i, limit);
        if (sum >= s->lane_count) return true;
    }
    return false;
}

void tdm_place_lanes(int64_t lane_count, int rank_count, const double *weights, int64_t *first)
{
    assert(rank_count >= 1 && rank_count <= lane_count && lane_count <= TDM_MAX_LANES);
    scale s = {.lane_count = lane_count,
               .rank_count = rank_count,
               .weights = weights,
               .max = weights_max(weights, rank_count)};
    if (s.max <= 0) s.weights = NULL; /* the weights are unusable */
    /* The lower bound gives each rank one lane; at the upper bound the fastest rank can take all. */
    double low = 0, high = (double)lane_count;
    while (rank_count < lane_count) {
        double middle = low + (high - low) / 2;
        if (middle <= low || middle >= high) break;
        *(lanes_fit(&s, middle) ? &high : &low) = middle;
    }
    int64_t left = lane_count;
    for (int i = 0; i < rank_count; i++) left -= rank_lanes_within(&s, i, low);
    first[0] = 0;
    for (int i = 0; i < rank_count; i++) {
        int64_t lanes = rank_lanes_within(&s, i, low),
                more = rank_lanes_within(&s, i, high) - lanes;
        if (more > left) more = left;
        left -= more;
        first[i + 1] = first[i] + lanes + more;
    }
    assert(left == 0);
}
