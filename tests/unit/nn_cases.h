/*
 * nn_cases.h: the suites of nn_test.c.
 */
#ifndef TANDEM_TESTS_UNIT_NN_CASES_H
#define TANDEM_TESTS_UNIT_NN_CASES_H

#include "check.h"

extern const check_suite nn_gpt;
extern const check_suite nn_layers;

#endif
