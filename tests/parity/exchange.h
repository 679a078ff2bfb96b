/*
 * exchange.h: how the programs of the parity tests hand tensors to Python, and a graph with its
 * plan and memory to take them from.
 *
 * The numbers of a tensor go to a file with their bytes in memory, little-endian; standard output has
 * one JSON object a line for each case, in which a tensor is {"at": its first byte in the file,
 * "dtype", "shape"}. exchange.py reads both. Whatever goes wrong ends the program: a case that is
 * missing is a test that failed.
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
    bool has_item; /* in the JSON object that is open: a comma must come first */
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

/* Zeroed, with one float at least. */
float *lab_block(size_t float_count);

lab lab_open(const tdm_graph *graph, const char *backend);

void lab_close(lab *l);

/* The part of a block that belongs to each parameter, under the parameter's name; of the gradients
 * those of trained parameters and what statistics have observed. */
void put_block(exchange *x, const char *group, const lab *l, float *block);

#endif
