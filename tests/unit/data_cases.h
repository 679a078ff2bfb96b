/*
 * data_cases.h: the suites of data_test.c.
 */
#ifndef TANDEM_TESTS_UNIT_DATA_CASES_H
#define TANDEM_TESTS_UNIT_DATA_CASES_H

#include "check.h"

extern const check_suite data_csv;
extern const check_suite data_text;
extern const check_suite data_order;
extern const check_suite data_sparse;

#endif
