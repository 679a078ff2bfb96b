/*
 * bench.h: declarations shared by the files of `tandem bench allreduce`.
 *
 * cmd_bench.c has the table of the command; bench_allreduce.c the options, the start of the ranks and the
 * output; bench_measure.c the measurement, which runs on every rank.
 */
#ifndef TANDEM_CLI_BENCH_H
#define TANDEM_CLI_BENCH_H

#include "cli.h"

#include <tandem/comm.h>

enum { MAX_BENCH_SIZES = 32, MAX_BENCH_ROWS = 256 };

/* What to measure; the same on all ranks. */
typedef struct bench_plan {
    size_t bytes[MAX_BENCH_SIZES];
    int size_count;
    const char *transport; /* NULL: the default */
    bool shared;           /* buffers from tdm_comm_shared */
    tdm_algorithm algorithm;
    tdm_dtype dtype;
    double seconds; /* approximate duration per line */
} bench_plan;

/* One line. */
typedef struct bench_row {
    tdm_call_kind kind;
    tdm_algorithm algorithm; /* that ran */
    size_t bytes;
    double seconds;     /* median time of one call */
    double min_seconds; /* fastest call */
    double cpu_s;       /* CPU time of one call, over all ranks */
    double bound_s;     /* lower bound by memory bandwidth; 0: not measured */
    bool chosen;        /* tuning: the fastest of its size */
} bench_row;

typedef struct bench_result {
    int rank, size;
    bool one_host;
    char transport[32];
    double waiting_cpu; /* CPUs that the other ranks use while rank 0 sleeps */
    bench_row rows[MAX_BENCH_ROWS];
    int row_count;
} bench_result;

/* Joins the world and measures all-reduces of all sizes. The results are the same on all ranks, except
 * the bound, which only rank 0 measures. With `tune`: all kinds, with all applicable algorithms. */
tdm_status bench_measure(const bench_plan *plan, bool tune, bench_result *out, tdm_error *err);

int bench_allreduce(const cli_args *args);

#endif
