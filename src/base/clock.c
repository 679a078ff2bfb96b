/*
 * clock.c: time. The monotonic clock measures; the wall clock is for people only and never decides
 * anything.
 */
#include <tandem/base.h>

#include <time.h>

uint64_t tdm_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

double tdm_clock_s(void)
{
    return (double)tdm_clock_ns() * 1e-9;
}

double tdm_clock_unix_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
