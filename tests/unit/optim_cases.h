/*
 * optim_cases.h: the suites of optim_test.c.
 */
#ifndef TANDEM_TESTS_UNIT_OPTIM_CASES_H
#define TANDEM_TESTS_UNIT_OPTIM_CASES_H

#include "check.h"

extern const check_suite optim_optimiser;
extern const check_suite optim_schedule;

#endif
