/*
 * graph_cases.h: the suites of graph_test.c, and leaves of graphs.
 */
#ifndef TANDEM_TESTS_UNIT_GRAPH_CASES_H
#define TANDEM_TESTS_UNIT_GRAPH_CASES_H

#include "check.h"
#include "graph/internal.h"

extern const check_suite graph_mistakes;

extern const tdm_init zero_init;

/* Leaves of 32-bit floats. */
tdm_value input(tdm_graph *g, const char *name, tdm_shape shape);
tdm_value param(tdm_graph *g, const char *name, tdm_shape shape);

#endif
