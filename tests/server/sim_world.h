/*
 * sim_world.h: a group of servers with its clients and its store in one process, in virtual time.
 *
 * The servers and clients are the real state machines of src/server; the network, the store and the processes are
 * simulated. Every choice comes from the seed, so a schedule that fails can be run again. A shard's state is the list
 * of its pushes, so the checker sees what was applied, in which order and how often.
 */
#ifndef TANDEM_TESTS_SERVER_SIM_WORLD_H
#define TANDEM_TESTS_SERVER_SIM_WORLD_H

#include "base/base.h"
#include "server/server.h"

enum {
    SIM_WIDTH = 4,
    SIM_SERVERS = 5,
    SIM_CLIENTS = 3,
    SIM_SHARDS = 2,
    SIM_NODES = SIM_SERVERS + SIM_CLIENTS
};

/* sim_model.c */
typedef struct sim_model {
    uint64_t *pushes; /* client << 32 | number */
    uint64_t *clocks;
    size_t count, capacity;
} sim_model;
uint64_t sim_model_hash(const sim_model *m);
extern const tdm__server_state_ops sim_model_ops;

/* What a schedule did, and what was wrong. */
typedef struct sim_result {
    uint64_t acked, pulled, kills, configs, copies, events;
    double virtual_s;
    char problem[200]; /* empty: none */
} sim_result;

void sim_run(uint64_t seed, tdm__server_mutation mutation, sim_result *out);

#endif
