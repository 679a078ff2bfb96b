/*
 * zipf.h: draws from a Zipf distribution, with rejection inversion (Hörmann and Derflinger, 1996).
 */
#ifndef TANDEM_BENCH_ZIPF_H
#define TANDEM_BENCH_ZIPF_H

#include <math.h>
#include <stdint.h>

typedef struct zipf {
    double count, s, area_first, area_last, shift;
} zipf;

static inline double zipf_area(const zipf *z, double x)
{
    return z->s == 1 ? log(x) : (pow(x, 1 - z->s) - 1) / (1 - z->s);
}

static inline double zipf_area_inverse(const zipf *z, double area)
{
    return z->s == 1 ? exp(area) : pow(1 + area * (1 - z->s), 1 / (1 - z->s));
}

static inline zipf zipf_of(uint64_t count, double s)
{
    zipf z = {.count = (double)count, .s = s};
    z.area_first = zipf_area(&z, 1.5) - 1;
    z.area_last = zipf_area(&z, z.count + 0.5);
    z.shift = 2 - zipf_area_inverse(&z, zipf_area(&z, 2.5) - pow(2, -s));
    return z;
}

/* A rank from 1 to the count. `next` returns random words. */
static inline uint64_t zipf_draw(const zipf *z, uint64_t (*next)(void *user), void *user)
{
    for (;;) {
        double uniform = (double)(next(user) >> 11) * 0x1p-53;
        double area = z->area_last + uniform * (z->area_first - z->area_last);
        double x = zipf_area_inverse(z, area), rank = floor(x + 0.5);
        if (rank < 1) rank = 1;
        if (rank > z->count) rank = z->count;
        if (rank - x <= z->shift || area >= zipf_area(z, rank + 0.5) - pow(rank, -z->s))
            return (uint64_t)rank;
    }
}

#endif
