/*
 * program_world.h: executes the programs of all ranks of a group in memory, for tests of algorithms.
 *
 * Every rank has a separate group, request and programs, written by the algorithm under test. An interpreter
 * executes one instruction of a random program, or delivers one random message, until all have ended. The bytes
 * of a message are read and written at any moment between its start and the JOINs on both sides, in any order.
 * The interpreter detects programs that wait forever, messages that are not received, step numbers used twice
 * and sizes that differ, and counts messages, bytes and steps (the longest chain of messages, each begun after
 * the one before it).
 */
#ifndef TANDEM_TESTS_COMM_PROGRAM_WORLD_H
#define TANDEM_TESTS_COMM_PROGRAM_WORLD_H

#include "base/base.h"
#include "check.h"
#include "comm/algorithms/build.h"
#include "comm/engine.h"
#include "comm/group.h"
#include "comm/request.h"
#include "comm/scratch.h"
#include "comm/transfer.h"

#include <stdlib.h>

typedef struct world_message {
    struct world_message *next; /* of its bucket */
    int from, to;
    uint32_t step;
    const void *data;
    void *into;
    size_t bytes;
    tdm__program *sender, *receiver;
    int depth;
} world_message;

enum { WORLD_BUCKETS = 4096 };

typedef struct world {
    int size;
    tdm_comm comm;
    tdm__choice row; /* the only row of the table, which sets the segment size; or zero */
    tdm_group *groups;
    tdm_request *requests;
    /* by rank and program: number of messages in sequence so far */
    int (*depths)[TDM__MAX_FLIGHT];
    int (*arriving)[TDM__MAX_FLIGHT]; /* depth after the next JOIN */
    tdm_arena *arena;
    tdm_rng rng;
    world_message *buckets[WORLD_BUCKETS];
    world_message **ready; /* both sides have begun */
    int ready_count, ready_capacity;
    int open_messages; /* one side is missing, or the data has not been copied */
    /* The results. */
    uint64_t *bytes;    /* by rank: number sent */
    uint64_t *messages; /* by rank: sent */
    int steps;
    bool failed;
} world;

#define WORLD_CHECK(w, condition)                                                                  \
    do {                                                                                           \
        int world_failures_ = check_failures;                                                      \
        CHECK(condition);                                                                          \
        if (check_failures != world_failures_) (w)->failed = true;                                 \
    } while (0)

void world_init(world *w, int size, uint64_t seed);

void world_release(world *w);

/* Calls are cut into segments of about that many bytes, according to a row of the table. */
void world_segments(world *w, tdm_call_kind kind, tdm_algorithm algorithm, uint32_t segment_bytes);

/* The calls of all requests are set: executes them to their end. */
void world_run(world *w, const tdm__algorithm_ops *algorithm);

#endif
