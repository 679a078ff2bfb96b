/*
 * shard.c: the roles of a node in the chain of a shard, its log, and what is committed.
 *
 * A version is committed when all members of the chain have applied it: the tail's are at once, the others learn it by
 * ACK. While a server joins, the tail commits alone until that server has everything; from then on it commits nothing
 * that the joining server has not applied, so the configuration can make that server the tail at any moment.
 */
#include "server/shard.h"
#include "base/base.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- log ------------------------------------------------------------------------------------------ */

tdm__blob *tdm__server_log_at(const tdm__server_log *log, uint64_t version)
{
    if (version < log->first || version - log->first >= log->count) return NULL;
    return log->entries[(log->start + (size_t)(version - log->first)) % log->capacity];
}

static bool log_add(tdm__server_log *log, tdm__blob *op)
{
    if (log->count == log->capacity) {
        size_t capacity = log->capacity ? 2 * log->capacity : 64;
        tdm__blob **entries = malloc(capacity * sizeof(*entries));
        if (!entries) return false;
        for (size_t i = 0; i < log->count; i++)
            entries[i] = log->entries[(log->start + i) % log->capacity];
        free(log->entries);
        log->entries = entries;
        log->capacity = capacity;
        log->start = 0;
    }
    log->entries[(log->start + log->count++) % log->capacity] = op;
    log->bytes += op->bytes;
    return true;
}

static void log_trim(tdm__server_log *log, uint64_t below)
{
    while (log->count > 0 && log->first < below) {
        tdm__blob *op = log->entries[log->start];
        log->bytes -= op->bytes;
        tdm__blob_release(op);
        log->start = (log->start + 1) % log->capacity;
        log->count--;
        log->first++;
    }
}

void tdm__server_log_clear(tdm__server_log *log, uint64_t first)
{
    log_trim(log, UINT64_MAX);
    log->first = first;
}

/* ---- commits --------------------------------------------------------------------------------------- */

static uint64_t shard_commit_target(const tdm__server_shard *shard)
{
    const tdm__server_down *down = &shard->down;
    bool waits = down->id != 0 && (!down->is_joining || down->is_ready ||
                                   (down->is_kept && shard->log.bytes > TDM__SERVER_MAX_KEPT));
    return waits && down->acked < shard->applied ? down->acked : shard->applied;
}

void tdm__server_shard_commit(tdm__server_shard *shard, double now_s)
{
    (void)now_s;
    tdm__server_down *down = &shard->down;
    uint64_t before = shard->committed, target = shard_commit_target(shard);
    if (target > shard->committed) shard->committed = target;
    for (uint64_t v = before + 1; shard->is_head && v <= shard->committed; v++)
        tdm__server_shard_done(shard, v);
    uint64_t keep = shard->committed;
    if (down->is_kept && down->acked < keep) keep = down->acked;
    log_trim(&shard->log, keep + 1);
    if (shard->committed > before && shard->up.id != 0)
        tdm__server_send(shard, shard->up.id,
                         (tdm__server_message){.kind = TDM__SERVER_ACK,
                                               .epoch = shard->chain.epoch,
                                               .link = shard->up.link,
                                               .version = shard->committed});
    if (shard->committed > before || shard->waiting) tdm__server_shard_serve(shard);
}

bool tdm__server_shard_append(tdm__server_shard *shard, tdm__blob *blob, double now_s)
{
    tdm__server_node *node = shard->node;
    const tdm_server_group *group = &node->config.group;
    tdm__server_op_view op;
    tdm_error err = {.status = TDM_ERR_FORMAT};
    uint64_t version = shard->applied + 1;
    tdm_status status = TDM_OK;
    if (!tdm__server_op_read(blob->data, blob->bytes, group->width, &op))
        status = tdm_fail(&err, TDM_ERR_FORMAT, "a server passed on an invalid operation");
    if (status == TDM_OK && op.head.count > 0)
        status = node->options.state->apply(shard->state, &op, version, &err);
    if (status == TDM_OK &&
        (!tdm__server_registry_apply(&shard->registry, group->mode, &op, version) ||
         !log_add(&shard->log, blob)))
        status = tdm_fail_oom(&err, "for shard %u", shard->number);
    if (status != TDM_OK) {
        tdm__blob_release(blob);
        tdm__server_node_fail(node, &err);
        return false;
    }
    if (shard->down.acked == shard->applied) shard->down.heard_s = now_s;
    shard->applied = version;
    tdm__server_down_flow(shard);
    if (node->options.mutation == TDM__SERVER_MUTATION_ACK_EARLY && shard->is_head)
        tdm__server_shard_done(shard, version);
    tdm__server_shard_commit(shard, now_s);
    return true;
}

/* ---- roles ------------------------------------------------------------------------------------------ */

void tdm__server_shard_forget_state(tdm__server_shard *shard)
{
    if (shard->state) shard->node->options.state->destroy(shard->state);
    shard->state = NULL;
    tdm__server_registry_release(&shard->registry);
    tdm__server_log_clear(&shard->log, 1);
    shard->is_complete = false;
    shard->state_join = 0;
    shard->applied = shard->committed = 0;
}

void tdm__server_shard_release(tdm__server_shard *shard)
{
    tdm__server_shard_drop_clients(shard);
    tdm__server_down_clear(shard);
    tdm__server_shard_forget_state(shard);
    free(shard->log.entries);
    free(shard->round);
    shard->log.entries = NULL;
    shard->round = NULL;
}

/* Members of the first configuration of a chain begin with an empty state. */
static bool shard_create_state(tdm__server_shard *shard)
{
    tdm__server_node *node = shard->node;
    tdm_error err = {.status = TDM_ERR_NO_MEMORY};
    if (shard->state) return true;
    shard->state = node->options.state->create(node->options.state_user, &node->config.group,
                                               shard->number, &err);
    if (!shard->state) tdm__server_node_fail(node, &err);
    return shard->state != NULL;
}

static uint64_t shard_successor(const tdm__server_shard *shard, uint32_t place, bool *is_joining)
{
    const tdm__server_chain *chain = &shard->chain;
    *is_joining = place + 1 == chain->member_count && chain->joining != 0;
    return *is_joining ? chain->joining
                       : (place + 1 < chain->member_count ? chain->members[place + 1] : 0);
}

static void shard_set_successor(tdm__server_shard *shard, uint32_t place, uint64_t old_join,
                                double now_s)
{
    bool is_joining = false;
    uint64_t id = shard_successor(shard, place, &is_joining);
    tdm__server_down *down = &shard->down;
    bool is_same = id != 0 && id == down->id;
    bool was_ready = is_same && down->is_joining && down->is_ready &&
                     (!is_joining || old_join == shard->chain.join_epoch);
    uint64_t acked = was_ready ? down->acked : 0;
    tdm__server_down_clear(shard);
    if (id == 0) return;
    down->id = id;
    down->is_joining = is_joining;
    down->is_ready = down->is_kept = was_ready && is_joining;
    /* What is committed here, a successor that is a member has. */
    down->acked = is_joining ? acked : shard->committed;
    down->heard_s = now_s;
    tdm__server_down_begin(shard, now_s);
}

void tdm__server_shard_adopt(tdm__server_shard *shard, const tdm__server_chain *chain, double now_s)
{
    if (chain->epoch == shard->chain.epoch) return;
    uint64_t id = shard->node->options.id, old_join = shard->chain.join_epoch;
    uint32_t place = 0;
    shard->chain = *chain;
    while (place < chain->member_count && chain->members[place] != id) place++;
    shard->is_member = place < chain->member_count;
    shard->is_joining = !shard->is_member && chain->joining == id;
    shard->is_head = shard->is_member && place == 0;
    shard->is_tail = shard->is_member && place + 1 == chain->member_count;
    shard->up = (tdm__server_up){0};
    tdm__server_shard_drop_clients(shard);
    if (!shard->is_member) tdm__server_down_clear(shard);
    if (!shard->is_member && (!shard->is_joining || shard->state_join != chain->join_epoch))
        tdm__server_shard_forget_state(shard);
    if (!shard->is_member && !shard->is_joining) return;
    if (!shard_create_state(shard)) return;
    if (shard->is_joining) {
        shard->state_join = chain->join_epoch;
    } else {
        shard->is_complete = true; /* else it would still be joining: it is a first member */
        shard_set_successor(shard, place, old_join, now_s);
        tdm__server_shard_commit(shard, now_s);
    }
    if (shard->early_from != 0 && shard->early.epoch == chain->epoch) {
        uint64_t from = shard->early_from;
        shard->early_from = 0;
        tdm__server_shard_neighbour(shard, from, &shard->early, now_s);
    }
}
