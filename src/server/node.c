/*
 * node.c: the server side of the protocol in one process: its lease, and which shard gets a message.
 */
#include "base/base.h"
#include "server/shard.h"

#include <stdlib.h>

tdm__server_node *tdm__server_node_create(const tdm__server_node_options *options)
{
    tdm__server_node *node = calloc(1, sizeof(*node));
    if (node) node->options = *options;
    return node;
}

void tdm__server_node_destroy(tdm__server_node *node)
{
    if (!node) return;
    for (uint32_t s = 0; node->shards && s < node->config.group.shards; s++)
        tdm__server_shard_release(&node->shards[s]);
    free(node->shards);
    free(node->rows);
    free(node);
}

void tdm__server_node_fail(tdm__server_node *node, const tdm_error *err)
{
    if (node->has_failed) return;
    node->has_failed = true;
    node->options.failed(node->options.user, err);
}

void tdm__server_send(tdm__server_shard *shard, uint64_t to, tdm__server_message message)
{
    message.shard = shard->number;
    shard->node->options.send(shard->node->options.user, to, &message);
}

bool tdm__server_node_is_valid(const tdm__server_node *node, double now_s)
{
    if (node->has_failed || node->config.epoch == 0) return false;
    if (node->options.mutation == TDM__SERVER_MUTATION_NO_LEASE) return true;
    return node->is_entered && now_s < node->valid_s;
}

static bool node_has_shards(tdm__server_node *node, const tdm__server_config *config)
{
    if (node->shards) return true;
    node->shards = calloc(config->group.shards, sizeof(*node->shards));
    for (uint32_t s = 0; node->shards && s < config->group.shards; s++) {
        node->shards[s].node = node;
        node->shards[s].number = s;
        node->shards[s].log.first = 1;
    }
    if (node->shards) return true;
    tdm_error err;
    tdm_fail_oom(&err, "for the shards of a server");
    tdm__server_node_fail(node, &err);
    return false;
}

void tdm__server_node_config(tdm__server_node *node, const tdm__server_config *config,
                             uint64_t lease, double valid_s, double now_s)
{
    if (node->has_failed || config->epoch < node->config.epoch) return;
    const tdm__server_entry *self = tdm__server_config_find(config, node->options.id);
    node->is_entered = self && self->lease == lease && lease != 0;
    node->valid_s = valid_s;
    bool is_newer = config->epoch > node->config.epoch;
    if (is_newer) tdm__server_config_copy(&node->config, config);
    /* While it is not valid, a node changes no role: what it learns now, it adopts when it is. */
    if (!tdm__server_node_is_valid(node, now_s) || !node_has_shards(node, config)) return;
    for (uint32_t s = 0; s < node->config.group.shards && !node->has_failed; s++)
        tdm__server_shard_adopt(&node->shards[s], &node->config.chains[s], now_s);
    for (uint32_t s = 0; node->has_missed && s < node->config.group.shards; s++) {
        tdm__server_shard *shard = &node->shards[s];
        if (shard->is_member && shard->down.id != 0) tdm__server_down_begin(shard, now_s);
        if (shard->is_member || shard->is_joining) tdm__server_up_miss(shard);
    }
    node->has_missed = false;
}

void tdm__server_node_message(tdm__server_node *node, uint64_t from, const tdm__server_message *m,
                              double now_s)
{
    if (!tdm__server_node_is_valid(node, now_s)) node->has_missed = true;
    if (!tdm__server_node_is_valid(node, now_s) || !node->shards ||
        m->shard >= node->config.group.shards)
        return;
    tdm__server_shard *shard = &node->shards[m->shard];
    switch (m->kind) {
    case TDM__SERVER_OP: tdm__server_shard_op(shard, from, m, now_s); break;
    case TDM__SERVER_PULL: tdm__server_shard_pull(shard, from, m); break;
    case TDM__SERVER_LINK:
    case TDM__SERVER_LINKED:
    case TDM__SERVER_UPDATE:
    case TDM__SERVER_ACK:
    case TDM__SERVER_COPY:
    case TDM__SERVER_COPIED:
    case TDM__SERVER_MISS: tdm__server_shard_neighbour(shard, from, m, now_s); break;
    default: break; /* for clients */
    }
}

void tdm__server_node_lost(tdm__server_node *node, uint64_t server, double now_s)
{
    if (!tdm__server_node_is_valid(node, now_s) || !node->shards) return;
    for (uint32_t s = 0; s < node->config.group.shards; s++)
        if (node->shards[s].is_member && node->shards[s].down.id == server)
            tdm__server_down_begin(&node->shards[s], now_s);
}

void tdm__server_node_tick(tdm__server_node *node, double now_s)
{
    if (!tdm__server_node_is_valid(node, now_s) || !node->shards) return;
    for (uint32_t s = 0; s < node->config.group.shards && !node->has_failed; s++) {
        tdm__server_shard *shard = &node->shards[s];
        if (!shard->is_member) continue;
        tdm__server_down_tick(shard, now_s);
        tdm__server_shard_client_tick(shard, now_s);
    }
}

bool tdm__server_node_shard(const tdm__server_node *node, uint32_t number,
                            tdm__server_shard_info *out)
{
    if (!node->shards || number >= node->config.group.shards) return false;
    const tdm__server_shard *shard = &node->shards[number];
    *out = (tdm__server_shard_info){.is_member = shard->is_member,
                                    .is_complete = shard->is_complete,
                                    .epoch = shard->chain.epoch,
                                    .applied = shard->applied,
                                    .committed = shard->committed,
                                    .state = shard->state,
                                    .registry = &shard->registry};
    return shard->is_member || shard->is_joining;
}
