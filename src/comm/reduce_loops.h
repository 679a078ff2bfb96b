/*
 * reduce_loops.h: the loops of reduce.h, compiled once for each instruction-set level (see
 * tensor/level.h). All levels compute the same bits.
 *
 * Pointers may have any alignment. `out` may be `left` or `right`; otherwise they do not overlap.
 * Streaming loops write whole vectors past the cache to an aligned `out` (TDM__STREAM_ALIGN); a
 * fence() after the last one orders their stores before later ones.
 */
#ifndef TANDEM_COMM_REDUCE_LOOPS_H
#define TANDEM_COMM_REDUCE_LOOPS_H

#include "comm/reduce.h"

enum {
    TDM__STREAM_ALIGN = 64, /* bytes: a cache line, and the widest vector */
    TDM__REDUCE_TYPES = 6   /* types with loops: see tdm__reduce_type */
};

typedef void (*tdm__reduce_loop)(void *out, const void *left, const void *right, size_t count);

typedef struct tdm__reduce_loops {
    int level;
    /* By tdm__reduce_type, then by tdm_reduce (not USER), then by whether `out` is streamed to. */
    tdm__reduce_loop pairs[TDM__REDUCE_TYPES][TDM_REDUCE_USER][2];
    /* Copies past the cache; `out` is aligned, the two do not overlap. */
    void (*stream)(void *out, const void *in, size_t bytes);
    void (*fence)(void);
} tdm__reduce_loops;

extern const tdm__reduce_loops tdm__reduce_loops_0, tdm__reduce_loops_2, tdm__reduce_loops_3,
    tdm__reduce_loops_4;

/* The loops for CPUs of `level`; the tests run all of them. */
const tdm__reduce_loops *tdm__reduce_loops_at(int level);

/* The index of a type with loops; -1 for others. */
int tdm__reduce_type(tdm_dtype dtype);

/* As tdm__reduce_pair and tdm__tree_run, with the given loops. */
void tdm__reduce_pair_by(const tdm__reduce_loops *loops, const tdm__reducer *reducer, void *out,
                         const void *left, const void *right, size_t count);
void tdm__tree_run_by(const tdm__reduce_loops *loops, const tdm__tree_plan *plan,
                      const tdm__reducer *reducer, const void *const *sources,
                      void *const *destinations, int destination_count, size_t count, int stream);
void tdm__copy_by(const tdm__reduce_loops *loops, void *out, const void *in, size_t bytes,
                  bool stream);

#endif
