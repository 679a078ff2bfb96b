/*
 * sim_script.h: a random program of collectives, and its expected results.
 *
 * A script is a list of groups and calls, derived from a seed; every rank executes its part. The input of each
 * rank is a function of (seed, call, lane or rank, element), and the expected result is computed here in the
 * simplest way: whole vectors, and sums by a traversal of the tree of lanes. tdm__reduce_pair, which has a
 * separate test, adds two elements of f16 and bf16; the order of additions is computed here.
 */
#ifndef TANDEM_TESTS_SIM_SCRIPT_H
#define TANDEM_TESTS_SIM_SCRIPT_H

#include "base/base.h"
#include "comm/comm.h"
#include "comm/reduce.h"
#include "sim/simulator.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SCRIPT_RANKS = 12, MAX_SCRIPT_GROUPS = 4, MAX_SCRIPT_CALLS = 8, MAX_SCRIPT_LANES = 32 };

/* All kinds of comm.h, and a ring of sends and receives in place of SEND. */
enum { SCRIPT_RING = TDM_CALL_SEND };

typedef struct script_group {
    int ranks[MAX_SCRIPT_RANKS];
    int size;
} script_group;

typedef struct script_call {
    tdm_call_kind kind;
    int group;
    tdm_dtype dtype;
    size_t count;
    tdm_reduce reduce;
    int root;
    tdm_algorithm algorithm;
    bool has_lanes, in_place, async;
    double pause_s;  /* maximum computation of a rank before it */
    int wait_before; /* async: the wait for it is before this call, or at the end */
    tdm_lanes lanes;
    int64_t first[MAX_SCRIPT_RANKS + 1];
    uint8_t absent[MAX_SCRIPT_LANES];
    uint8_t *expected; /* whole, for reductions */
} script_call;

typedef struct script {
    uint64_t seed;
    int size;
    script_group groups[MAX_SCRIPT_GROUPS]; /* 0: the world */
    int group_count;
    script_call calls[MAX_SCRIPT_CALLS];
    int call_count;
    tdm_arena *arena;
} script;

/* ---- what ranks bring -------------------------------------------------------------------------- */

uint64_t script_mix(uint64_t x);

/* ---- adding, the plain way --------------------------------------------------------------------- */

#define SCRIPT_COMBINE(type, plus)                                                                 \
    do {                                                                                           \
        type *l = left;                                                                            \
        const type *r = right;                                                                     \
        for (size_t i = 0; i < call->count; i++)                                                   \
            l[i] = call->reduce == TDM_REDUCE_SUM   ? (type)(plus)                                 \
                   : call->reduce == TDM_REDUCE_MIN ? (l[i] < r[i] ? l[i] : r[i])                  \
                                                    : (l[i] > r[i] ? l[i] : r[i]);                 \
    } while (0)

/* ---- one rank's part in a call ----------------------------------------------------------------- */

typedef struct script_part {
    tdm_call call;
    uint8_t *out;      /* where the result is written; NULL: this rank gets none */
    uint8_t *expected; /* the expected result */
    size_t out_bytes;
    const void *parts[TDM_MAX_LANE_PARTS];
} script_part;

uint8_t *script_bytes(const script *s, size_t bytes);

/* Elements [first, first + count) of the input of `who`, in newly allocated memory. */
uint8_t *script_piece(const script *s, int index, int64_t who, tdm_extent extent);

/* The call as member `rank` of its group makes it. Not for rings. */
void script_part_make(script *s, int index, int rank, script_part *part);

bool script_part_right(const script_part *part);

/* ---- drawing ----------------------------------------------------------------------------------- */

int script_below(tdm_rng *rng, int bound);

bool script_chance(tdm_rng *rng, int percent);

void script_draw(tdm_rng *rng, script *s, uint64_t seed, int size);

/* The index of this rank in a group, or -1. */
int script_member(const script_group *group, int rank);

#endif
