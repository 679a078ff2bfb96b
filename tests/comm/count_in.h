/*
 * count_in.h: how many files or threads a process has, for tests of what is left behind.
 *
 * A descriptor is gone when it is closed; a thread that has ended and was joined is listed by the kernel
 * for a moment more, and for longer on a busy machine. So what must have gone is waited for.
 */
#ifndef TANDEM_TESTS_COUNT_IN_H
#define TANDEM_TESTS_COUNT_IN_H

#include <tandem/base.h>

#include <dirent.h>
#include <unistd.h>

/* Entries of a directory such as /proc/self/fd. */
static inline int count_in(const char *dir)
{
    int count = 0;
    DIR *directory = opendir(dir);
    while (directory && readdir(directory)) count++;
    if (directory) closedir(directory);
    return count;
}

/* The same, once there are no more than `most`, or after a long time. */
static inline int count_left_in(const char *dir, int max)
{
    double until_s = tdm_clock_s() + 20;
    while (count_in(dir) > max && tdm_clock_s() < until_s) usleep(1000);
    return count_in(dir);
}

#endif
