/*
 * exchange.h: how the programs of the parity tests pass tensors to Python, and a graph with its plan and memory
 * from which they are taken.
 *
 * The numbers of a tensor are written to a file as their bytes in memory, little-endian; standard output has
 * one JSON object per line for each case, in which a tensor is {"at": its first byte in the file, "dtype",
 * "shape"}. exchange.py reads both. Any error ends the program: a missing case is a failed test.
 */
#ifndef TANDEM_TESTS_PARITY_EXCHANGE_H
#define TANDEM_TESTS_PARITY_EXCHANGE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tandem/graph.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

typedef struct exchange {
    FILE *file;
    size_t at;     /* bytes written */
    bool has_item; /* in the open JSON object: a comma is needed first */
} exchange;

void give_up(const char *what);

void require(tdm_status status, const tdm_error *err);

/* `,"name":{`, for tensors to follow; end_group() closes it. */
void begin_group(exchange *x, const char *name);

void end_group(exchange *x);

void put_tensor(exchange *x, const char *name, const tdm_tensor *t);

/* ---- a graph, ready to run ------------------------------------------------------------------- */

typedef struct lab {
    const tdm_graph *graph; /* borrowed */
    tdm_plan *plan;
    float *arena, *params, *grads;
} lab;

/* Zeroed, at least one float. */
float *lab_block(size_t float_count);

lab lab_open(const tdm_graph *graph, const char *backend);

void lab_close(lab *l);

/* The range of a block that belongs to each parameter, under the parameter's name; of the gradients those of
 * trained parameters and the observed statistics. */
void put_block(exchange *x, const char *group, const lab *l, float *block);

#endif
