/*
 * count_in.h: the number of files or threads of a process, for tests of leftovers.
 *
 * A descriptor is gone as soon as it is closed. The kernel still lists a thread for a moment after it has ended
 * and was joined, on a busy machine for longer. So the functions wait until the number is low enough.
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

/* The same, once it is at most `most`, or after a long time. */
static inline int count_left_in(const char *dir, int max)
{
    double until_s = tdm_clock_s() + 20;
    while (count_in(dir) > max && tdm_clock_s() < until_s) usleep(1000);
    return count_in(dir);
}

#endif
