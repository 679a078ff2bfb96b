/*
 * select.c: which numbers of a tensor are sent.
 *
 * The largest magnitudes are found in two stages. The first finds a limit that at least k magnitudes reach, and
 * collects the indices of those (vec/sums.c). The second sorts out the k largest of them exactly. The limit only
 * determines how much the second stage has to do, never its result: so it can come from a histogram of the whole
 * tensor or from a sample, and the sample's result is that of the histogram.
 */
#include "codec/internal.h"

#include <string.h>

enum { DIGIT_SHIFT = 20, LAST_BITS = 10 }; /* digits of 11, 10 and 10 bits */

/* ---- the limit -------------------------------------------------------------------------------- */

typedef struct slices {
    const float *x;
    size_t elements;
    uint32_t *histogram;
} slices;

/* Counts the upper 11 bits of the magnitudes, for each slice separately. */
static void range_histogram(const void *args, int64_t begin, int64_t end)
{
    const slices *s = args;
    for (int64_t slice = begin; slice < end; slice++) {
        uint32_t *bins = s->histogram + slice * TDM__CODEC_HISTOGRAM;
        size_t first = s->elements * (size_t)slice / TDM__CODEC_SLICES;
        size_t last = s->elements * ((size_t)slice + 1) / TDM__CODEC_SLICES;
        memset(bins, 0, TDM__CODEC_HISTOGRAM * sizeof(*bins));
        for (size_t i = first; i < last; i++) {
            uint32_t bits;
            memcpy(&bits, s->x + i, sizeof(bits));
            bins[(bits & TDM__CODEC_MAGNITUDE) >> DIGIT_SHIFT]++;
        }
    }
}

uint32_t tdm__codec_limit(tdm_codec *codec, const float *x, size_t elements, size_t kept)
{
    slices s = {.x = x, .elements = elements, .histogram = codec->histogram};
    tdm_kernel_spread(TDM__CODEC_SLICES, (int64_t)(elements / TDM__CODEC_SLICES + 1),
                      range_histogram, &s);
    size_t reached = 0;
    for (uint32_t bin = TDM__CODEC_HISTOGRAM; bin-- > 0;) {
        for (size_t slice = 0; slice < TDM__CODEC_SLICES; slice++)
            reached += s.histogram[slice * TDM__CODEC_HISTOGRAM + bin];
        if (reached >= kept) return bin << DIGIT_SHIFT;
    }
    return 0;
}

/* ---- exact selection -------------------------------------------------------------------------- */

/* Digit by digit, beginning with the highest: each histogram counts the numbers that agree with the digits found. */
uint32_t tdm__codec_nth(uint32_t *histogram, const uint32_t *bits, size_t count, size_t kept,
                        size_t *larger)
{
    uint32_t found = 0, known = 0;
    size_t left = kept;
    for (int shift = DIGIT_SHIFT; shift >= 0; shift -= LAST_BITS) {
        uint32_t digits = shift == DIGIT_SHIFT ? TDM__CODEC_HISTOGRAM : 1u << LAST_BITS;
        memset(histogram, 0, digits * sizeof(*histogram));
        for (size_t i = 0; i < count; i++)
            if ((bits[i] & known) == found) histogram[(bits[i] >> shift) & (digits - 1)]++;
        uint32_t digit = digits - 1;
        for (; digit > 0 && histogram[digit] < left; digit--) left -= histogram[digit];
        found |= digit << shift;
        known |= (digits - 1) << shift;
    }
    *larger = kept - left;
    return found;
}

size_t tdm__codec_join(tdm_codec *codec, size_t elements)
{
    size_t count = 0;
    for (size_t p = 0; p < tdm__codec_pieces_of(elements); p++) {
        size_t found = codec->pieces[p].count;
        memmove(codec->index + count, codec->index + p * TDM__CODEC_PIECE,
                found * sizeof(*codec->index));
        count += found;
    }
    return count;
}

void tdm__codec_cut(tdm_codec *codec, const float *x, size_t count, size_t kept)
{
    uint32_t *index = codec->index, *bits = (uint32_t *)(void *)codec->value;
    size_t larger, put = 0;
    if (count <= kept) return;
    for (size_t i = 0; i < count; i++) {
        memcpy(&bits[i], x + index[i], sizeof(*bits));
        bits[i] &= TDM__CODEC_MAGNITUDE;
    }
    uint32_t last = tdm__codec_nth(codec->histogram, bits, count, kept, &larger);
    size_t ties = kept - larger; /* those with the lowest indices */
    for (size_t i = 0; i < count; i++) {
        bool is_kept = bits[i] > last || (bits[i] == last && ties > 0);
        if (bits[i] == last && ties > 0) ties--;
        index[put] = index[i];
        put += is_kept;
    }
}

/* ---- random numbers --------------------------------------------------------------------------- */

uint32_t tdm__codec_random_index(tdm_rng *rng, size_t place, size_t kept, size_t elements)
{
    uint64_t first = (uint64_t)place * elements / kept;
    uint64_t size = (uint64_t)(place + 1) * elements / kept - first;
    return (uint32_t)(first + ((tdm_rng_u32(rng) * size) >> 32));
}
