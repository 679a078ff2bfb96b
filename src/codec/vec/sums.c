/*
 * sums.c: the stages before the quantisation: momentum and error feedback, sums of a chunk, and the search for large
 * magnitudes.
 */
#include "codec/vec/vec.h"

/* ---- momentum correction and error feedback --------------------------------------------------- */

static void accumulate_plain(const tdm__codec_step *s, int64_t begin, int64_t end)
{
    const float *residual = s->residual;
    vf clip = vf_set(s->clip);
    for (int64_t i = begin; i < end; i += TDM__WIDTH) {
        vf x = clip * vf_load_up_to(s->grad + i, end - i, 0);
        if (residual) x = vf_load_up_to(residual + i, end - i, 0) + x;
        vf_store_up_to(s->value + i, end - i, x);
    }
}

static void accumulate_momentum(const tdm__codec_step *s, int64_t begin, int64_t end)
{
    vf clip = vf_set(s->clip), momentum = vf_set(s->momentum);
    for (int64_t i = begin; i < end; i += TDM__WIDTH) {
        int64_t left = end - i;
        vf g = clip * vf_load_up_to(s->grad + i, left, 0);
        vf v = vf_load_up_to(s->velocity + i, left, 0);
        vf u = vf_load_up_to(s->residual + i, left, 0);
        v = s->nesterov ? momentum * (v + g) : momentum * v + g;
        u = u + v;
        if (s->nesterov) u = u + g;
        vf_store_up_to(s->velocity_out + i, left, v);
        vf_store_up_to(s->value + i, left, u);
    }
}

void TDM__CODEC_LOOP(accumulate)(const tdm__codec_step *step, size_t begin, size_t end)
{
    if (step->velocity)
        accumulate_momentum(step, (int64_t)begin, (int64_t)end);
    else
        accumulate_plain(step, (int64_t)begin, (int64_t)end);
}

/* ---- sums ------------------------------------------------------------------------------------- */

/* Adding this to the bits of a magnitude sets the highest bit for infinities and NaN. */
#define TO_HIGHEST_BIT (0x80000000u - TDM__CODEC_INFINITY)

bool TDM__CODEC_LOOP(is_finite)(const float *x, size_t count)
{
    int64_t n = (int64_t)count;
    vu seen = {0};
    for (int64_t i = 0; i < n; i += TDM__WIDTH)
        seen |= ((vu)vf_load_up_to(x + i, n - i, 0) & TDM__CODEC_MAGNITUDE) + TO_HIGHEST_BIT;
    uint32_t all = 0;
    for (int i = 0; i < TDM__WIDTH; i++) all |= seen[i];
    return (all & 0x80000000u) == 0;
}

uint32_t TDM__CODEC_LOOP(largest)(const float *x, size_t count)
{
    int64_t n = (int64_t)count;
    vi most = {0};
    for (int64_t i = 0; i < n; i += TDM__WIDTH) {
        vi bits = (vi)vf_load_up_to(x + i, n - i, 0) & (int32_t)TDM__CODEC_MAGNITUDE;
        vi larger = bits > most;
        most = (larger & bits) | (~larger & most);
    }
    int32_t all = 0;
    for (int i = 0; i < TDM__WIDTH; i++) all = most[i] > all ? most[i] : all;
    return (uint32_t)all;
}

double TDM__CODEC_LOOP(sum_magnitudes)(const float *x, size_t count)
{
    int64_t n = (int64_t)count;
    vsum sum = VSUM_ZERO;
    for (int64_t i = 0; i < n; i += TDM__PLACES)
        for (int p = 0; p < TDM__PARTS; p++) {
            int64_t at = i + p * TDM__WIDTH;
            vi bits = (vi)vf_load_up_to(x + at, n - at, 0) & (int32_t)TDM__CODEC_MAGNITUDE;
            vsum_add(&sum.part[p], (vf)bits);
        }
    return vsum_total(&sum);
}

double TDM__CODEC_LOOP(dot_wide)(const float *a, const float *b, size_t count)
{
    int64_t n = (int64_t)count;
    vsum sum = VSUM_ZERO;
    for (int64_t i = 0; i < n; i += TDM__PLACES)
        for (int p = 0; p < TDM__PARTS; p++) {
            int64_t at = i + p * TDM__WIDTH;
            vsum_add_product(&sum.part[p], vf_load_up_to(a + at, n - at, 0),
                             vf_load_up_to(b + at, n - at, 0));
        }
    return vsum_total(&sum);
}

double TDM__CODEC_LOOP(sum_squares)(const float *x, size_t count)
{
    return TDM__CODEC_LOOP(dot_wide)(x, x, count);
}

void TDM__CODEC_LOOP(scale)(float *x, size_t count, float factor)
{
    int64_t n = (int64_t)count;
    for (int64_t i = 0; i < n; i += TDM__WIDTH)
        vf_store_up_to(x + i, n - i, vf_load_up_to(x + i, n - i, 0) * factor);
}

/* ---- large magnitudes ------------------------------------------------------------------------- */

#if TDM__LEVEL >= 2
/* A bit for each element whose magnitude has bits above `below`. */
static inline uint32_t vf_reaches(vf x, vi below)
{
    vi bits = (vi)x & (int32_t)TDM__CODEC_MAGNITUDE;
#if TDM__LEVEL >= 4
    return _mm512_cmpgt_epi32_mask((__m512i)bits, (__m512i)below);
#elif TDM__LEVEL == 3
    return (uint32_t)_mm256_movemask_ps((__m256)(bits > below));
#else
    return (uint32_t)_mm_movemask_ps((__m128)(bits > below));
#endif
}
#endif

size_t TDM__CODEC_LOOP(collect)(const float *x, size_t count, uint32_t limit, uint32_t first,
                                uint32_t *out)
{
    size_t found = 0, i = 0;
#if TDM__LEVEL >= 2
    vi below = (int32_t)(limit - 1) + (vi){0};
    for (; i + TDM__WIDTH <= count; i += TDM__WIDTH) {
        uint32_t mask = vf_reaches(vf_load(x + i), below);
        for (; mask != 0; mask &= mask - 1)
            out[found++] = first + (uint32_t)i + (uint32_t)__builtin_ctz(mask);
    }
#endif
    for (; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof(bits));
        if ((bits & TDM__CODEC_MAGNITUDE) >= limit) out[found++] = first + (uint32_t)i;
    }
    return found;
}
