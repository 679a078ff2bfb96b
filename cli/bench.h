/*
 * bench.h: what the files of `tandem bench allreduce` share.
 *
 * cmd_bench.c has the command's table; bench_allreduce.c its options, the start of the ranks and what
 * is printed; bench_measure.c the measuring, which runs on every rank.
 */
#ifndef TANDEM_CLI_BENCH_H
#define TANDEM_CLI_BENCH_H

#include "cli.h"

#include <tandem/comm.h>

enum { MAX_BENCH_SIZES = 32, MAX_BENCH_ROWS = 256 };

/* What to measure. All ranks have the same. */
typedef struct bench_plan {
    size_t bytes[MAX_BENCH_SIZES];
    int size_count;
    const char *transport; /* NULL: as the world likes */
    bool shared;           /* buffers from tdm_comm_shared */
    tdm_algorithm algorithm;
    tdm_dtype dtype;
    double seconds; /* for each line, about */
} bench_plan;

/* One line. */
typedef struct bench_row {
    tdm_call_kind kind;
    tdm_algorithm algorithm; /* that ran */
    size_t bytes;
    double seconds;     /* of one call: the median */
    double min_seconds; /* and the fastest */
    double cpu_s;       /* of all ranks together, for one call */
    double bound_s;     /* what memory allows; 0: not measured */
    bool chosen;        /* tuning: the fastest of its size */
} bench_row;

typedef struct bench_result {
    int rank, size;
    bool one_host;
    char transport[32];
    double waiting_cpu; /* processors that the other ranks keep busy while rank 0 sleeps */
    bench_row rows[MAX_BENCH_ROWS];
    int row_count;
} bench_result;

/* Joins the world, and measures all-reduces of all sizes; results are the same on all ranks, but for
 * the bound, which rank 0 measures. With `tune`: all kinds, by all algorithms that fit. */
tdm_status bench_measure(const bench_plan *plan, bool tune, bench_result *out, tdm_error *err);

int bench_allreduce(const cli_args *args);

#endif
