/*
 * double_eval.h: the forward half of a graph in double precision, written from the definitions of
 * the ops and sharing nothing with the kernels but the random numbers of dropout. Slow and obvious.
 *
 * With it a finite difference is good to nine digits or more, so that gradients in f32 can be held
 * to what f32 can give. `kink` is the smallest distance from zero of any number that went into a
 * relu: a difference over a step larger than that would mean nothing.
 */
#ifndef TANDEM_TESTS_KERNEL_DOUBLE_EVAL_H
#define TANDEM_TESTS_KERNEL_DOUBLE_EVAL_H

#include "base/base.h"
#include "graph/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct double_eval double_eval;

/* Evaluates a node that this file does not know; false when it does not know it either. */
typedef bool (*double_eval_more_fn)(double_eval *e, const tdm__node *node);

struct double_eval {
    const tdm_graph *graph;
    const tdm_step_key *key;
    double **values;          /* by id; of inputs and parameters filled by the caller */
    int32_t **classes;        /* by id; of i32 inputs, likewise */
    double_eval_more_fn more; /* asked first; may be NULL */
    double kink;
};

size_t double_eval_count(const double_eval *e, int32_t id);

double_eval double_eval_create(const tdm_graph *graph, const tdm_step_key *key);

void double_eval_release(double_eval *e);

/* What an op that carries an activation does to one of its results. */
double double_eval_fused(double_eval *e, const tdm_op_attrs *attrs, double x);

/* Runs the forward nodes; returns the first number of value `id`. */
double double_eval_run(double_eval *e, int32_t id);

#endif
