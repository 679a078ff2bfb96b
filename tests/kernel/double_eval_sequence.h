/*
 * double_eval_sequence.h: norms over the last dimension and attention in double precision, for double_eval.h.
 *
 * Written from the definitions: attention creates its complete matrix of weights, and finds each random number
 * by its position in the sequence of the row.
 */
#ifndef TANDEM_TESTS_KERNEL_DOUBLE_EVAL_SEQUENCE_H
#define TANDEM_TESTS_KERNEL_DOUBLE_EVAL_SEQUENCE_H

#include "kernel/double_eval.h"

bool double_eval_sequence(double_eval *e, const tdm__node *node);

#endif
