/*
 * clock.c: time. The monotonic clock is for measurements; the wall clock is for display only.
 */
#include "base/base.h"

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

struct timespec tdm_clock_timespec(double seconds)
{
    time_t whole = (time_t)seconds;
    return (struct timespec){.tv_sec = whole, .tv_nsec = (long)((seconds - (double)whole) * 1e9)};
}

void tdm_clock_sleep(double seconds)
{
    if (!(seconds > 0)) return;
    struct timespec span = tdm_clock_timespec(seconds);
    nanosleep(&span, NULL);
}
