/*
 * choose.c: selects a token from its logits.
 *
 * The tokens are sorted by probability; top_k and top_p truncate the list; one of the rest is drawn
 * in proportion to its probability. All of it is in double precision and a fixed order, so the
 * choice is a function of the logits and the random number only.
 */
#include "base/base.h"
#include "nn/nn.h"

#include <math.h>
#include <stdlib.h>

/* The more probable first; if two are equal, the lower token. */
static int choice_compare(const void *left, const void *right)
{
    const tdm_choice *a = left, *b = right;
    if (a->weight != b->weight) return a->weight > b->weight ? -1 : 1;
    return (a->token > b->token) - (a->token < b->token);
}

static int32_t most_probable(const float *logits, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best] || isnan(logits[best])) best = i;
    return (int32_t)best;
}

/* The number of sorted choices whose weight adds up to `share` of the total. */
static int64_t cut_by_share(const tdm_choice *choices, int64_t count, double share)
{
    double total = 0, sum = 0;
    for (int64_t i = 0; i < count; i++) total += choices[i].weight;
    for (int64_t i = 0; i < count; i++) {
        sum += choices[i].weight;
        if (sum >= share * total) return i + 1;
    }
    return count;
}

int32_t tdm_choose_token(const float *logits, int64_t count, const tdm_choice_options *options,
                         double draw, tdm_choice *scratch)
{
    int32_t best = most_probable(logits, count);
    if (options->temperature <= 0 || options->top_k == 1) return best;
    double largest = (double)logits[best], total = 0, sum = 0;
    for (int64_t i = 0; i < count; i++) {
        double weight = tdm_math_exp(((double)logits[i] - largest) / options->temperature);
        scratch[i] = (tdm_choice){.token = (int32_t)i, .weight = weight >= 0 ? weight : 0};
    }
    qsort(scratch, (size_t)count, sizeof(*scratch), choice_compare);
    if (options->top_k > 0 && options->top_k < count) count = options->top_k;
    if (options->top_p > 0 && options->top_p < 1)
        count = cut_by_share(scratch, count, options->top_p);
    for (int64_t i = 0; i < count; i++) total += scratch[i].weight;
    if (!isfinite(total) || !(total > 0)) return best;
    for (int64_t i = 0; i < count; i++) {
        sum += scratch[i].weight;
        if (draw * total < sum) return scratch[i].token;
    }
    return scratch[0].token; /* not reached: draw is below 1, and the last sum is the total */
}
