/*
 * bench_bound.h: the limit that memory bandwidth sets to an all-reduce on one host.
 */
#ifndef TANDEM_CLI_BENCH_BOUND_H
#define TANDEM_CLI_BENCH_BOUND_H

#include <tandem/base.h>

/*
 * Measures the time in which `thread_count` threads of this process do the work of an all-reduce of
 * f32 on warm buffers, each adding its share of the same bytes and copying the rest. Returns the
 * fastest of the passes that fit into `seconds`, of at least three. Other load on the machine affects
 * the result.
 */
tdm_status bench_memory_bound(size_t bytes, int thread_count, double seconds, double *out_s,
                              tdm_error *err);

#endif
