/*
 * double_eval.h: the forward half of a graph in double precision, written from the definitions of the ops. It
 * shares nothing with the kernels except the random numbers of dropout. Slow and simple.
 *
 * With it a finite difference is accurate to nine digits or more, so gradients in f32 can be checked to the
 * precision of f32. `kink` is the smallest distance from zero of any input of a relu: a difference over a
 * larger step would be meaningless.
 */
#ifndef TANDEM_TESTS_KERNEL_DOUBLE_EVAL_H
#define TANDEM_TESTS_KERNEL_DOUBLE_EVAL_H

#include "base/base.h"
#include "graph/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct double_eval double_eval;

/* Evaluates a node that this file does not support; false if it does not support it either. */
typedef bool (*double_eval_more_fn)(double_eval *e, const tdm__node *node);

struct double_eval {
    const tdm_graph *graph;
    const tdm_step_key *key;
    double **values;          /* by id; of inputs and parameters filled by the caller */
    int32_t **classes;        /* by id; of i32 inputs, likewise */
    double_eval_more_fn more; /* called first; may be NULL */
    double kink;
};

size_t double_eval_count(const double_eval *e, int32_t id);

double_eval double_eval_create(const tdm_graph *graph, const tdm_step_key *key);

void double_eval_release(double_eval *e);

/* The activation of an op, applied to one of its results. */
double double_eval_fused(double_eval *e, const tdm_op_attrs *attrs, double x);

/* Runs the forward nodes; returns the first number of value `id`. */
double double_eval_run(double_eval *e, int32_t id);

#endif
