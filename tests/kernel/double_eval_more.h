/*
 * double_eval_more.h: the ops on shapes, element-wise ops, losses and embeddings in double
 * precision, for double_eval.h. Written from the definitions: every number is looked up by its
 * indices, and a cross entropy is the sum over an explicit distribution of targets.
 */
#ifndef TANDEM_TESTS_KERNEL_DOUBLE_EVAL_MORE_H
#define TANDEM_TESTS_KERNEL_DOUBLE_EVAL_MORE_H

#include "kernel/double_eval.h"

bool double_eval_more(double_eval *e, const tdm__node *node);

#endif
