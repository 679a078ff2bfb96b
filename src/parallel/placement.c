/*
 * placement.c: which rank executes how many lanes.
 *
 * With a limit of t on lanes / weight, rank i can take floor(t x weight), and takes one in any case.
 * The least t with which all lanes find a place is searched for by halving, in doubles, until there
 * is none between two neighbours: the lower one is too small, the upper one large enough. What the
 * lower one leaves over is given, in order of the ranks, to those who can take one more at the upper
 * one. No choice of whole lanes has a shorter time, and with equal weights the first ranks have one
 * lane more than the others.
 *
 * Only sums, products and comparisons are used, which give the same bits on every machine: ranks of
 * different hosts must come to the same placement.
 */
#include <tandem/parallel.h>

#include <assert.h>

/* The slowest rank that is taken seriously, against the fastest; it will get one lane, probably. */
static const double min_weight = 1e-6;

static double weight_of(const double *weights, int rank, double max)
{
    if (!weights) return 1;
    double w = weights[rank] / max;
    if (!(w >= min_weight)) return min_weight; /* NaN comes here, too */
    return w < 1 ? w : 1;
}

static double most_of(const double *weights, int rank_count)
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
static int64_t lanes_within(const scale *s, int rank, double limit)
{
    double lanes = limit * weight_of(s->weights, rank, s->max);
    if (lanes >= (double)s->lane_count) return s->lane_count;
    return lanes >= 1 ? (int64_t)lanes : 1;
}

static bool all_fit(const scale *s, double limit)
{
    int64_t sum = 0;
    for (int i = 0; i < s->rank_count; i++) {
        sum += lanes_within(s, i, limit);
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
               .max = most_of(weights, rank_count)};
    if (s.max <= 0) s.weights = NULL; /* they say nothing */
    /* One lane each is too little, unless it is just right; the fastest can take all. */
    double low = 0, high = (double)lane_count;
    while (rank_count < lane_count) {
        double middle = low + (high - low) / 2;
        if (middle <= low || middle >= high) break;
        *(all_fit(&s, middle) ? &high : &low) = middle;
    }
    int64_t left = lane_count;
    for (int i = 0; i < rank_count; i++) left -= lanes_within(&s, i, low);
    first[0] = 0;
    for (int i = 0; i < rank_count; i++) {
        int64_t lanes = lanes_within(&s, i, low), more = lanes_within(&s, i, high) - lanes;
        if (more > left) more = left;
        left -= more;
        first[i + 1] = first[i] + lanes + more;
    }
    assert(left == 0);
}
