/*
 * math.c: exp, log, sin, cos and whole powers in double precision, with the same bits everywhere.
 *
 * The C library's functions differ in their last bits between libraries, versions and CPUs. These are
 * sequences of additions, multiplications and divisions, each rounded separately, so a result is a
 * function of its argument alone. Polynomials are those of Sun's freely distributable library
 * (fdlibm). Errors are below 1 unit in the last place, and below 0.51 for powers in [2^-500, 2^500].
 *
 * Numbers below the normal range (2.2e-308) count as zero, as an argument of log and as a result, so
 * that it does not matter whether the floating-point unit flushes them.
 */
#include "base/base.h"

#include <math.h>
#include <string.h>

#define TO_WHOLE 0x1.8p52 /* adding it rounds to a whole number */

static const double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static double from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* 2^n for n in [-1022, 1023]. */
static double power_of_two(int64_t n)
{
    return from_bits((uint64_t)(n + 1023) << 52);
}

/* e^x = 2^k e^r with |r| <= ln(2) / 2, and e^r = 1 + 2 r / (R - r) with R = r + r^2 / 6 - ... */
double tdm_math_exp(double x)
{
    if (isnan(x)) return x;
    if (x > 709.782712893384) return (double)INFINITY;
    if (x < -708.3964185322641) return 0;
    double k = (x * 1.44269504088896338700e+00 + TO_WHOLE) - TO_WHOLE;
    double high = x - k * ln2_high, low = k * ln2_low, r = high - low, t = r * r;
    double p = 4.13813679705723846039e-08;
    p = p * t + -1.65339022054652515390e-06;
    p = p * t + 6.61375632143793436117e-05;
    p = p * t + -2.77777777770155933842e-03;
    p = p * t + 1.66666666666666019037e-01;
    double c = r - t * p;
    double y = 1.0 - ((low - (r * c) / (2.0 - c)) - high);
    int64_t n = (int64_t)k; /* up to 1024: in two steps */
    return y * power_of_two(n / 2) * power_of_two(n - n / 2);
}

/* ln x = k ln 2 + ln m, m in [sqrt(1/2), sqrt(2)), and ln m = 2 artanh s, s = (m - 1) / (m + 1). */
double tdm_math_log(double x)
{
    if (isnan(x)) return x;
    if (fabs(x) < 0x1p-1022) return -(double)INFINITY;
    if (x < 0) return (double)NAN;
    if (isinf(x)) return x;
    uint64_t bits = bits_of(x);
    int64_t exponent = (int64_t)(bits >> 52) - 1023;
    double m = from_bits((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent++;
    }
    double k = (double)exponent, f = m - 1.0, s = f / (2.0 + f), z = s * s, w = z * z;
    double even = 1.531383769920937332e-01;
    even = even * w + 2.222219843214978396e-01;
    even = even * w + 3.999999999940941908e-01;
    double odd = 1.479819860511658591e-01;
    odd = odd * w + 1.818357216161805012e-01;
    odd = odd * w + 2.857142874366239149e-01;
    odd = odd * w + 6.666666666666735130e-01;
    double series = z * odd + w * even, half_square = 0.5 * f * f;
    return k * ln2_high - ((half_square - (s * (half_square + series) + k * ln2_low)) - f);
}

/* ---- angles ---------------------------------------------------------------------------------- */

/* The sine of high + low, which is at most pi / 4. */
static double sine_near_zero(double high, double low)
{
    double z = high * high, v = z * high;
    double r = 1.58969099521155010221e-10;
    r = r * z + -2.50507602534068634195e-08;
    r = r * z + 2.75573137070700676789e-06;
    r = r * z + -1.98412698298579493134e-04;
    r = r * z + 8.33333333332248946124e-03;
    return high - ((z * (0.5 * low - v * r) - low) - v * -1.66666666666666324348e-01);
}

static double cosine_near_zero(double high, double low)
{
    double z = high * high;
    double r = -1.13596475577881948265e-11;
    r = r * z + 2.08757232129817482790e-09;
    r = r * z + -2.75573143513906633035e-07;
    r = r * z + 2.48015872894767294178e-05;
    r = r * z + -1.38888888888741095749e-03;
    r = r * z + 4.16666666666666019037e-02;
    double half = 0.5 * z, w = 1.0 - half;
    return w + (((1.0 - w) - half) + (z * (z * r) - high * low));
}

/* x - n * pi / 2 as the sum of two numbers, for the nearest whole n, which is returned. pi / 2 is split into
 * three parts; the first two have 33 bits, so that their products with n are exact. */
static int64_t quarter_turns(double x, double *high, double *low)
{
    double n = (x * 6.36619772367581382433e-01 + TO_WHOLE) - TO_WHOLE;
    double first = x - n * 1.57079632673412561417e+00;
    double second = n * 6.07710050630396597660e-11, rest = first - second;
    double third = n * 2.02226624879595063154e-21 - ((first - rest) - second);
    *high = rest - third;
    *low = (rest - *high) - third;
    return (int64_t)n;
}

double tdm_math_sin(double x)
{
    double high, low;
    if (!(fabs(x) <= TDM_MATH_MAX_ANGLE)) return (double)NAN;
    int64_t n = quarter_turns(x, &high, &low);
    double y = n & 1 ? cosine_near_zero(high, low) : sine_near_zero(high, low);
    return n & 2 ? -y : y;
}

double tdm_math_cos(double x)
{
    double high, low;
    if (!(fabs(x) <= TDM_MATH_MAX_ANGLE)) return (double)NAN;
    int64_t n = quarter_turns(x, &high, &low);
    double y = n & 1 ? sine_near_zero(high, low) : cosine_near_zero(high, low);
    return (n + 1) & 2 ? -y : y;
}

/* ---- whole powers ---------------------------------------------------------------------------- */

/* A sum of two numbers, the second at most half a unit in the last place of the first. */
typedef struct double_double {
    double high, low;
} double_double;

/* Half of the bits of x, so that products of halves are exact (Veltkamp). */
static double upper_half(double x)
{
    double t = x * 0x1.0000002p27; /* 2^27 + 1 */
    return t - (t - x);
}

/* Outside of [2^-500, 2^500] the lower parts could leave the range; there, one number is kept. */
static double_double wide_multiply(double_double a, double_double b)
{
    double p = a.high * b.high, size = fabs(p);
    if (!(size >= 0x1p-500 && size <= 0x1p500)) return (double_double){size < 0x1p-1022 ? 0 : p, 0};
    double a1 = upper_half(a.high), a2 = a.high - a1, b1 = upper_half(b.high), b2 = b.high - b1;
    double error = ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2; /* of p: exact (Dekker) */
    double low = error + (a.high * b.low + a.low * b.high), high = p + low;
    return (double_double){high, low - (high - p)};
}

double tdm_math_power(double base, uint64_t exponent)
{
    double_double power = {1, 0}, square = {base, 0};
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) power = wide_multiply(power, square);
        if (exponent > 1) square = wide_multiply(square, square);
    }
    return power.high + power.low;
}
