/*
 * balance.c: moves lanes from slow ranks to fast ones, and finds a straggler.
 *
 * Each step is recorded as the cost of each rank: its seconds per lane, as a share of the sum over all ranks.
 * Shares do not change with the number of rows, so that a short batch gives the same values as a full one.
 * Medians over the last 8, 14 and 24 steps give the typical cost of a lane on each rank; a single disturbed step
 * does not change them.
 *
 * Lanes move if the step would be shorter by more than noise could explain: the limit is a multiple of
 * the measured spread of the medians, with a lower bound. So a rank at half
 * speed is detected after 8 to 14 steps, and a small difference after 24, or never if noise is greater.
 * After a move only steps with the new placement count. A move back to the previous placement doubles
 * the limit for a while, to prevent oscillation.
 *
 * Like placement.c, this uses only arithmetic that gives the same bits on every machine.
 */
#include "parallel/parallel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    WINDOW_STEPS = 24,
    REVERSAL_STEPS = 256, /* number of steps after which a reversal is forgotten */
    MAX_REVERSALS = 3,
    STRAGGLER_STEPS = 12
};
static const double min_gain = 0.05;   /* of the step time */
static const double alike_spreads = 3; /* costs within this many spreads count as equal */
static const double called_slow = 1.5, no_longer_slow = 1.3;

/* The median of n normal numbers has 1.2533 / sqrt(n) times their spread; their spread is 1.4826 times
 * the median of their distances from the median. */
static const double median_spread = 1.2533, spread_of_distance = 1.4826;

/* Number of steps of a test, and the minimum noise per step that it assumes. */
static const struct horizon {
    int steps;
    double noise;
} horizons[] = {{8, 0.10}, {14, 0.06}, {WINDOW_STEPS, 0.03}};

struct tdm_balance {
    int64_t lane_count;
    int rank_count;
    uint64_t steps;     /* recorded */
    uint64_t steps_now; /* of these, with the current placement */
    int reversals;
    uint64_t last_reversal; /* value of `steps` at that time */
    int straggler;
    double slow_factor;
    double *cost;       /* [rank][WINDOW_STEPS], a ring buffer */
    double *typical;    /* [rank]: median over the current horizon */
    double *scratch;    /* [rank] */
    int64_t *candidate; /* [rank + 1] */
    int64_t *previous;  /* [rank + 1]: the placement before the last move */
};

tdm_balance *tdm_balance_create(int64_t lane_count, int rank_count)
{
    size_t ranks = (size_t)rank_count;
    tdm_balance *b = calloc(1, sizeof(*b));
    if (!b) return NULL;
    *b = (tdm_balance){.lane_count = lane_count,
                       .rank_count = rank_count,
                       .straggler = -1,
                       .cost = calloc(ranks * WINDOW_STEPS, sizeof(double)),
                       .typical = calloc(ranks, sizeof(double)),
                       .scratch = calloc(ranks, sizeof(double)),
                       .candidate = calloc(ranks + 1, sizeof(int64_t)),
                       .previous = calloc(ranks + 1, sizeof(int64_t))};
    if (b->cost && b->typical && b->scratch && b->candidate && b->previous) return b;
    tdm_balance_destroy(b);
    return NULL;
}

void tdm_balance_destroy(tdm_balance *b)
{
    if (!b) return;
    free(b->cost);
    free(b->typical);
    free(b->scratch);
    free(b->candidate);
    free(b->previous);
    free(b);
}

/* ---- medians --------------------------------------------------------------------------------- */

static void swap(double *a, double *b)
{
    double t = *a;
    *a = *b;
    *b = t;
}

/* The k-th smallest number (from 0); reorders the numbers. */
static double select_kth(double *v, int count, int k)
{
    int low = 0, high = count - 1;
    while (low < high) {
        double pivot = v[low + (high - low) / 2];
        int i = low, j = high;
        while (i <= j) {
            while (v[i] < pivot) i++;
            while (v[j] > pivot) j--;
            if (i <= j) swap(&v[i++], &v[j--]);
        }
        if (k <= j)
            high = j;
        else if (k >= i)
            low = i;
        else
            break;
    }
    return v[k];
}

/* For an even count, the mean of the two middle numbers. */
static double median(double *v, int count)
{
    double upper = select_kth(v, count, count / 2);
    if (count % 2 == 1) return upper;
    return (upper + select_kth(v, count, count / 2 - 1)) / 2;
}

/* Copies the costs of a rank in the last `steps` steps. */
static void balance_last_costs(const tdm_balance *b, int rank, int steps, double *out)
{
    const double *ring = b->cost + (size_t)rank * WINDOW_STEPS;
    for (int i = 0; i < steps; i++) out[i] = ring[(b->steps - 1 - (uint64_t)i) % WINDOW_STEPS];
}

/* Fills `typical`; returns the greatest spread of a rank's costs, relative to its typical cost. */
static double balance_find_typical(tdm_balance *b, int steps)
{
    double last[WINDOW_STEPS], max = 0;
    for (int r = 0; r < b->rank_count; r++) {
        balance_last_costs(b, r, steps, last);
        double middle = median(last, steps);
        for (int i = 0; i < steps; i++) last[i] = fabs(last[i] - middle);
        double spread = spread_of_distance * median(last, steps) / middle;
        b->typical[r] = middle;
        if (spread > max) max = spread;
    }
    return max;
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* The step time of a placement, in the unit of typical costs. */
static double balance_step_time(const tdm_balance *b, const int64_t *first)
{
    double max = 0;
    for (int r = 0; r < b->rank_count; r++) {
        double time = (double)(first[r + 1] - first[r]) * b->typical[r];
        if (time > max) max = time;
    }
    return max;
}

/* The number of spreads by which a value must differ to be more than noise. It grows with the number of ranks,
 * because one of many ranks differs more often. Approximately 2 ln(ranks). */
static double balance_significance(int rank_count)
{
    double bits = 0;
    while (rank_count >>= 1) bits++;
    return sqrt(25 + 1.4 * bits);
}

/* Treats ranks that cannot be distinguished from the median as equal to it, so that noise does not
 * decide which of them get an additional lane. */
static void balance_level(tdm_balance *b, double band)
{
    memcpy(b->scratch, b->typical, (size_t)b->rank_count * sizeof(double));
    double middle = median(b->scratch, b->rank_count);
    for (int r = 0; r < b->rank_count; r++)
        if (fabs(b->typical[r] - middle) <= band * middle) b->typical[r] = middle;
}

/* Whether the last `h->steps` steps suggest moving lanes to `candidate`, which is filled in. */
static bool balance_suggests_move(tdm_balance *b, const struct horizon *h, const int64_t *first)
{
    double noise = balance_find_typical(b, h->steps);
    if (noise < h->noise) noise = h->noise;
    double spread = median_spread * noise / sqrt(h->steps); /* of a typical cost */
    double limit = balance_significance(b->rank_count) * spread * (1 + b->reversals);
    if (limit < min_gain) limit = min_gain;
    balance_level(b, alike_spreads * spread);
    for (int r = 0; r < b->rank_count; r++) b->scratch[r] = 1 / b->typical[r];
    tdm_place_lanes(b->lane_count, b->rank_count, b->scratch, b->candidate);
    return balance_step_time(b, b->candidate) < (1 - limit) * balance_step_time(b, first);
}

static void balance_move(tdm_balance *b, int64_t *first)
{
    size_t bytes = ((size_t)b->rank_count + 1) * sizeof(int64_t);
    if (memcmp(b->candidate, b->previous, bytes) == 0) {
        if (b->reversals < MAX_REVERSALS) b->reversals++;
        b->last_reversal = b->steps;
    }
    memcpy(b->previous, first, bytes);
    memcpy(first, b->candidate, bytes);
    b->steps_now = 0;
}

/* ---- the straggler --------------------------------------------------------------------------- */

/* Compares the rank with the greatest cost with the median of the others. */
static void balance_find_straggler(tdm_balance *b)
{
    int slowest = 0, others = 0;
    balance_find_typical(b, STRAGGLER_STEPS);
    for (int r = 1; r < b->rank_count; r++)
        if (b->typical[r] > b->typical[slowest]) slowest = r;
    for (int r = 0; r < b->rank_count; r++)
        if (r != slowest) b->scratch[others++] = b->typical[r];
    double factor = b->typical[slowest] / median(b->scratch, others);
    bool is_slow = factor >= (slowest == b->straggler ? no_longer_slow : called_slow);
    b->straggler = is_slow ? slowest : -1;
    b->slow_factor = is_slow ? factor : 1;
}

int tdm_balance_straggler(const tdm_balance *b, double *factor)
{
    if (factor) *factor = b->straggler >= 0 ? b->slow_factor : 1;
    return b->straggler;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Records a step. False: the step gives no information (a lane had no rows, or a clock did not advance). */
static bool balance_record(tdm_balance *b, const double *seconds, const int64_t *first)
{
    double sum = 0;
    for (int r = 0; r < b->rank_count; r++) {
        double per_lane = seconds[r] / (double)(first[r + 1] - first[r]);
        if (!(per_lane > 1e-12 && per_lane < 1e12)) return false;
        sum += per_lane;
        b->scratch[r] = per_lane;
    }
    for (int r = 0; r < b->rank_count; r++)
        b->cost[(size_t)r * WINDOW_STEPS + b->steps % WINDOW_STEPS] = b->scratch[r] / sum;
    b->steps++;
    b->steps_now++;
    return true;
}

bool tdm_balance_observe(tdm_balance *b, const double *seconds, int64_t *first)
{
    if (b->rank_count < 2 || !balance_record(b, seconds, first)) return false;
    if (b->steps >= STRAGGLER_STEPS) balance_find_straggler(b);
    if (b->reversals > 0 && b->steps - b->last_reversal >= REVERSAL_STEPS) {
        b->reversals--;
        b->last_reversal = b->steps;
    }
    for (size_t i = 0; i < sizeof(horizons) / sizeof(horizons[0]); i++) {
        if (b->steps_now < (uint64_t)horizons[i].steps) return false;
        if (!balance_suggests_move(b, &horizons[i], first)) continue;
        balance_move(b, first);
        return true;
    }
    return false;
}
