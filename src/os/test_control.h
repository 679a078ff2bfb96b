/*
 * test_control.h: the one way for tests to interfere with a running Tandem. It is not part of the interface:
 * libtandem.so does not export it, and it can change at any time. CONTRIBUTING.md ("Test controls") lists it too.
 *
 *     control              set by                                effect
 *     file faults          tdm_os_test_fail_files                file operations fail with an errno of the test
 *     TANDEM_TEST_KILL     the environment                       the process kills or stops itself at a named point
 *     TANDEM_TEST_SLOW     the environment                       a rank computes more slowly
 *
 * Module os does not know what the points mean. Modules above choose their names, and pass step, rank and part
 * as plain numbers.
 */
#ifndef TANDEM_OS_TEST_CONTROL_H
#define TANDEM_OS_TEST_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

/* Kinds of file operations. */
enum {
    TDM_FAULT_OPEN = 1,
    TDM_FAULT_WRITE = 2,
    TDM_FAULT_FSYNC = 4,
    TDM_FAULT_RENAME = 8,
    TDM_FAULT_ALL = 15
};
/*
 * The `countdown`-th next file operation of the kinds in `mask` fails with `error_number`, and so do all later
 * ones, as on a full or broken disk. A countdown of 0 ends that. Holds for the whole process. Costs an operation
 * one atomic load while no fault is set.
 */
void tdm_os_test_fail_files(unsigned mask, long countdown, int error_number);
/* Whether an operation of this kind must fail now; sets errno. Module os asks before each operation. */
bool tdm__os_test_file_fails(unsigned kind);

/*
 * Points at which a process kills or stops itself. TANDEM_TEST_KILL contains one or more requests, separated by
 * commas:
 *     NAME[:step=S][:rank=R][:part=P][:signal=KILL|STOP][:file=PATH]
 * A process that reaches the point NAME with this step, rank and part sends itself SIGKILL (or SIGSTOP), without
 * any cleanup. Omitted conditions match everything. With a file, only the first process that can create it is
 * hit: the test can see that it happened, and a restarted process is not hit again.
 */
typedef struct tdm_test_point {
    const char *name;
    uint64_t step;
    int rank; /* -1: none */
    uint64_t part;
} tdm_test_point;
/* Reads the environment each time, and keeps nothing. */
void tdm_os_test_point(const tdm_test_point *at);
/* Whether the environment contains TANDEM_TEST_KILL. Callers with points in a hot loop ask once. */
bool tdm_os_test_has_points(void);

/* TANDEM_TEST_SLOW=RANK:FACTOR makes the computation of a rank take FACTOR times as long. Returns the factor for
 * this rank, above 1 and below 1000; 0 if it is not slowed down. */
double tdm_os_test_slow_factor(int rank);

#endif
