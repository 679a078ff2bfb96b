/*
 * math_test.c: the functions of base/math.c: against the C library's in a wider type, at the limits of their
 * ranges, and with the same bits on every machine, with and without flush-to-zero mode.
 */

#include "base/base.h"
#include "check.h"

#include <float.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum { SAMPLES = 300000 };

/* The difference in units in the last place of the expected value. */
static double units_apart(double got, long double expected)
{
    double near = fabs((double)expected);
    return (double)(fabsl((long double)got - expected) / (nextafter(near, INFINITY) - near));
}

static tdm_rng numbers(uint32_t which)
{
    return tdm_rng_at(
        (tdm_rng_address){.seed = 5, .stream = TDM_RNG_STREAM_USER, .sub_stream = which});
}

/* Uniform in [-1, 1). */
static double draw(tdm_rng *rng)
{
    return (double)(int64_t)tdm_rng_u64(rng) * 0x1p-63;
}

static void exp_and_log_are_near(void)
{
    tdm_rng rng = numbers(1);
    double exp_worst = 0, log_worst = 0;
    for (int i = 0; i < SAMPLES; i++) {
        double wide = draw(&rng) * 708, small = ldexp(draw(&rng), -(i % 60));
        exp_worst = fmax(exp_worst, units_apart(tdm_math_exp(wide), expl((long double)wide)));
        exp_worst = fmax(exp_worst, units_apart(tdm_math_exp(small), expl((long double)small)));
        double any = exp(wide), near_one = 1 + 0.5 * small;
        log_worst = fmax(log_worst, units_apart(tdm_math_log(any), logl((long double)any)));
        if (near_one != 1)
            log_worst = fmax(log_worst,
                             units_apart(tdm_math_log(near_one), logl((long double)near_one)));
    }
    printf("     exp within %.2f ulp, log within %.2f\n", exp_worst, log_worst);
    CHECK(exp_worst < 1);
    CHECK(log_worst < 1);
}

static void sin_and_cos_are_near(void)
{
    tdm_rng rng = numbers(2);
    double worst = 0;
    for (int i = 0; i < SAMPLES; i++) {
        double x = draw(&rng) * (i % 2 ? 7 : TDM_MATH_MAX_ANGLE);
        worst = fmax(worst, units_apart(tdm_math_sin(x), sinl((long double)x)));
        worst = fmax(worst, units_apart(tdm_math_cos(x), cosl((long double)x)));
    }
    printf("     sin and cos within %.2f ulp\n", worst);
    CHECK(worst < 1);
}

static void powers_are_near(void)
{
    tdm_rng rng = numbers(3);
    double worst = 0;
    for (int i = 0; i < SAMPLES; i++) {
        double base = i % 3 ? 1 - 0.1 * fabs(draw(&rng)) : 3 * fabs(draw(&rng));
        uint64_t exponent = tdm_rng_below(&rng, i % 3 ? 3000 : 100);
        long double expected = powl((long double)base, (long double)exponent);
        if (expected < 0x1p-490L || expected > 0x1p490L) continue;
        worst = fmax(worst, units_apart(tdm_math_power(base, exponent), expected));
    }
    printf("     powers within %.3f ulp\n", worst);
    CHECK(worst < 0.51);
}

static void edges(void)
{
    CHECK(tdm_math_exp(0) == 1);
    CHECK(tdm_math_exp(-INFINITY) == 0 && tdm_math_exp(-800) == 0);
    CHECK(tdm_math_exp(INFINITY) == INFINITY && tdm_math_exp(710) == INFINITY);
    CHECK(isfinite(tdm_math_exp(709.78)) && tdm_math_exp(-708.39) >= DBL_MIN);
    CHECK(isnan(tdm_math_exp(NAN)) && isnan(tdm_math_log(NAN)) && isnan(tdm_math_log(-1)));
    CHECK(tdm_math_log(1) == 0);
    CHECK(tdm_math_log(0) == -INFINITY && tdm_math_log(0x1p-1070) == -INFINITY);
    CHECK(tdm_math_log(INFINITY) == INFINITY);
    CHECK(tdm_math_cos(0) == 1 && tdm_math_sin(0) == 0 && tdm_math_cos(M_PI) == -1);
    CHECK(isnan(tdm_math_cos(NAN)) && isnan(tdm_math_sin(2 * TDM_MATH_MAX_ANGLE)));
    CHECK(tdm_math_power(0.9, 0) == 1 && tdm_math_power(0.9, 1) == 0.9);
    CHECK(tdm_math_power(2, 1000) == 0x1p1000 && tdm_math_power(3, 10000) == INFINITY);
    CHECK(tdm_math_power(0.5, 1022) == DBL_MIN && tdm_math_power(0.5, 1023) == 0);
    CHECK(tdm_math_power(0, 3) == 0 && tdm_math_power(-3, 3) == -27);
    CHECK(isnan(tdm_math_power(NAN, 2)));
}

/* A hash of all results, over wide ranges. */
static void hash_bits(char hex[TDM_SHA256_HEX])
{
    static double results[5 * SAMPLES / 10];
    tdm_rng rng = numbers(4);
    for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i += 5) {
        double x = draw(&rng);
        results[i] = tdm_math_exp(740 * x);
        results[i + 1] = tdm_math_log(ldexp(fabs(x), (int)(i % 2000) - 1000));
        results[i + 2] = tdm_math_sin(50 * x);
        results[i + 3] = tdm_math_cos(50 * x);
        results[i + 4] = tdm_math_power(1 + 0.01 * x, (uint64_t)i);
    }
    CHECK(tdm_sha256_of(results, sizeof(results), hex) == TDM_OK);
}

static const char expected_bits[] =
    "a786a6ea7e7d97a7c10ac3330d132cef460f77b20e23d3d6bdde95766adca4a6";

static void the_same_bits_on_every_machine(void)
{
    char hex[TDM_SHA256_HEX];
    hash_bits(hex);
    CHECK_TEXT(hex, expected_bits);
#if defined(__x86_64__)
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040); /* flush to zero, subnormal numbers are zero */
    hash_bits(hex);
    _mm_setcsr(before);
    CHECK_TEXT(hex, expected_bits);
#endif
}

int main(int argc, char **argv)
{
    static const check_test tests[] = {
        CHECK_TEST(exp_and_log_are_near),
        CHECK_TEST(sin_and_cos_are_near),
        CHECK_TEST(powers_are_near),
        CHECK_TEST(edges),
        CHECK_TEST(the_same_bits_on_every_machine),
    };
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
