/*
 * shard_chain.c: what neighbours in a chain send each other.
 *
 * A predecessor begins with LINK, and gets LINKED with what its successor has. Then it sends UPDATEs from there on, or
 * first a copy of the state if the successor joins. All further messages carry the epoch of the chain and the number
 * of the link; those of another epoch or link are ignored. So lost, late and repeated messages do no harm: when the
 * connection is lost, or nothing is heard for a while, a new LINK begins.
 */
#include "base/base.h"
#include "server/shard.h"

#include <stdlib.h>

/* ---- successor --------------------------------------------------------------------------------------- */

static void down_drop_copy(tdm__server_down *down)
{
    for (size_t i = 0; i < down->part_count; i++) tdm__blob_release(down->parts[i]);
    free(down->parts);
    down->parts = NULL;
    down->part_count = down->part_sent = down->part_done = 0;
}

void tdm__server_down_clear(tdm__server_shard *shard)
{
    down_drop_copy(&shard->down);
    shard->down = (tdm__server_down){0};
}

static tdm__server_message down_message(const tdm__server_shard *shard, tdm__server_kind kind)
{
    return (tdm__server_message){
        .kind = (uint8_t)kind, .epoch = shard->chain.epoch, .link = shard->down.link};
}

void tdm__server_down_begin(tdm__server_shard *shard, double now_s)
{
    tdm__server_down *down = &shard->down;
    if (down->id == 0) return;
    down_drop_copy(down);
    if (down->is_joining && !down->is_ready && down->state == TDM__SERVER_DOWN_COPYING)
        down->is_kept = false;
    down->state = TDM__SERVER_DOWN_ASKED;
    down->link = ++shard->node->link_count;
    down->asked_s = now_s;
    tdm__server_send(shard, down->id, down_message(shard, TDM__SERVER_LINK));
}

/* Sends the log entries that the successor does not have. */
void tdm__server_down_flow(tdm__server_shard *shard)
{
    tdm__server_down *down = &shard->down;
    while (down->state == TDM__SERVER_DOWN_FLOWING && down->sent < shard->applied) {
        const tdm__blob *op = tdm__server_log_at(&shard->log, down->sent + 1);
        if (!op) return;
        tdm__server_message message = down_message(shard, TDM__SERVER_UPDATE);
        message.version = ++down->sent;
        message.bytes = op->data;
        message.byte_count = op->bytes;
        tdm__server_send(shard, down->id, message);
    }
}

static void down_send_parts(tdm__server_shard *shard)
{
    tdm__server_down *down = &shard->down;
    while (down->part_sent < down->part_count &&
           down->part_sent < down->part_done + TDM__SERVER_COPY_WINDOW) {
        const tdm__blob *part = down->parts[down->part_sent];
        tdm__server_message message = down_message(shard, TDM__SERVER_COPY);
        message.version = down->copy_version;
        message.request = down->part_sent++;
        message.flag = down->part_sent == down->part_count;
        message.bytes = part->data;
        message.byte_count = part->bytes;
        tdm__server_send(shard, down->id, message);
    }
}

/* The first part is the registry of clients. */
static void down_begin_copy(tdm__server_shard *shard)
{
    tdm__server_node *node = shard->node;
    tdm__server_down *down = &shard->down;
    tdm_error err = {.status = TDM_ERR_NO_MEMORY};
    tdm__blob **saved = NULL;
    size_t count = 0;
    down_drop_copy(down);
    down->parts = NULL;
    tdm_status status = node->options.state->save(shard->state, &saved, &count, &err);
    tdm__blob **parts = status == TDM_OK ? malloc((count + 1) * sizeof(*parts)) : NULL;
    tdm__blob *first = parts ? tdm__server_registry_save(&shard->registry) : NULL;
    if (!first) { /* out of memory: tried again at the next LINK */
        for (size_t i = 0; i < count; i++) tdm__blob_release(saved[i]);
        free(saved);
        free(parts);
        tdm_log(TDM_LOG_WARN, "server", "cannot copy shard %u: out of memory", shard->number);
        down->state = TDM__SERVER_DOWN_ASKED;
        return;
    }
    parts[0] = first;
    for (size_t i = 0; i < count; i++) parts[i + 1] = saved[i];
    free(saved);
    down->parts = parts;
    down->part_count = count + 1;
    down->copy_version = down->acked = down->sent = shard->applied;
    down->is_kept = true;
    down->state = TDM__SERVER_DOWN_COPYING;
    down_send_parts(shard);
}

/* The joining server has everything: from now on nothing is committed without it. */
static void down_check_ready(tdm__server_shard *shard)
{
    tdm__server_down *down = &shard->down;
    bool skips = shard->node->options.mutation == TDM__SERVER_MUTATION_SKIP_COPY;
    if (!down->is_joining || down->state == TDM__SERVER_DOWN_ASKED) return;
    if (!skips && (down->state != TDM__SERVER_DOWN_FLOWING || down->acked < shard->committed))
        return;
    if (!skips) down->is_ready = true;
    const tdm__server_claim claim = {
        .shard = shard->number, .epoch = shard->chain.epoch, .joining = down->id};
    shard->node->options.claim(shard->node->options.user, &claim);
}

static void down_linked(tdm__server_shard *shard, const tdm__server_message *m)
{
    tdm__server_down *down = &shard->down;
    if (down->state != TDM__SERVER_DOWN_ASKED) return;
    uint64_t version = m->version;
    bool fits = m->flag && version + 1 >= shard->log.first && version <= shard->applied;
    if (!fits && down->is_joining) {
        down->is_ready = false;
        down_begin_copy(shard);
        down_check_ready(shard);
        return;
    }
    if (!fits) return; /* a member always fits; if not, it has failed and will be removed */
    down->state = TDM__SERVER_DOWN_FLOWING;
    if (shard->node->options.mutation == TDM__SERVER_MUTATION_NO_RESEND && !down->is_joining)
        version = shard->applied;
    down->sent = version;
    if (down->is_joining && version > down->acked) down->acked = version;
    if (down->is_joining) down->is_kept = true;
    tdm__server_down_flow(shard);
    down_check_ready(shard);
}

static void down_message_of(tdm__server_shard *shard, const tdm__server_message *m, double now_s)
{
    tdm__server_down *down = &shard->down;
    down->heard_s = now_s;
    if (m->kind == TDM__SERVER_MISS) {
        tdm__server_down_begin(shard, now_s);
    } else if (m->kind == TDM__SERVER_LINKED) {
        down_linked(shard, m);
    } else if (m->kind == TDM__SERVER_ACK && down->state == TDM__SERVER_DOWN_FLOWING) {
        if (m->version > down->acked && m->version <= shard->applied) down->acked = m->version;
        down_check_ready(shard);
    } else if (m->kind == TDM__SERVER_COPIED && down->state == TDM__SERVER_DOWN_COPYING) {
        if (m->request >= down->part_done && m->request < down->part_sent)
            down->part_done = (size_t)m->request + 1;
        if (down->part_done == down->part_count) {
            down_drop_copy(down);
            down->state = TDM__SERVER_DOWN_FLOWING;
            tdm__server_down_flow(shard);
            down_check_ready(shard);
        } else {
            down_send_parts(shard);
        }
    }
    tdm__server_shard_commit(shard, now_s);
}

void tdm__server_down_tick(tdm__server_shard *shard, double now_s)
{
    tdm__server_down *down = &shard->down;
    const tdm__server_node_options *options = &shard->node->options;
    if (down->id == 0) return;
    bool is_owed = down->state != TDM__SERVER_DOWN_FLOWING || down->acked < shard->applied;
    if (is_owed && now_s - down->heard_s > options->accuse_s) {
        down->heard_s = now_s;
        options->accuse(options->user, down->id, shard->number);
    }
    double last_s = down->heard_s > down->asked_s ? down->heard_s : down->asked_s;
    if (is_owed && now_s - last_s > options->relink_s)
        tdm__server_down_begin(shard, now_s);
    else if (down->is_ready)
        down_check_ready(shard); /* repeats the claim */
}

/* ---- predecessor --------------------------------------------------------------------------------------- */

static uint64_t shard_predecessor(const tdm__server_shard *shard)
{
    const tdm__server_chain *chain = &shard->chain;
    uint64_t id = shard->node->options.id;
    if (shard->is_joining) return chain->member_count ? chain->members[chain->member_count - 1] : 0;
    for (uint32_t i = 1; i < chain->member_count; i++)
        if (chain->members[i] == id) return chain->members[i - 1];
    return 0;
}

static void up_answer(tdm__server_shard *shard, tdm__server_kind kind, uint64_t version,
                      uint64_t request)
{
    tdm__server_send(shard, shard->up.id,
                     (tdm__server_message){.kind = (uint8_t)kind,
                                           .flag = shard->is_complete,
                                           .epoch = shard->chain.epoch,
                                           .link = shard->up.link,
                                           .version = version,
                                           .request = request});
}

static void up_link(tdm__server_shard *shard, uint64_t from, const tdm__server_message *m)
{
    if (m->epoch > shard->chain.epoch) {
        shard->early = *m;
        shard->early.bytes = NULL;
        shard->early.byte_count = 0;
        shard->early_from = from;
        return;
    }
    if (m->epoch != shard->chain.epoch || from != shard_predecessor(shard) ||
        m->link <= shard->up.link)
        return;
    shard->up = (tdm__server_up){.id = from, .link = m->link};
    up_answer(shard, TDM__SERVER_LINKED, shard->applied, 0);
    if (shard->is_complete) up_answer(shard, TDM__SERVER_ACK, shard->committed, 0);
}

/* Messages of the predecessor were lost: it should begin again. */
void tdm__server_up_miss(tdm__server_shard *shard)
{
    if (shard->up.id == 0 || shard->up.has_missed) return;
    shard->up.has_missed = true;
    tdm__server_send(shard, shard->up.id,
                     (tdm__server_message){.kind = TDM__SERVER_MISS,
                                           .epoch = shard->chain.epoch,
                                           .link = shard->up.link});
}

static void up_update(tdm__server_shard *shard, const tdm__server_message *m, double now_s)
{
    if (!shard->is_complete) return;
    if (m->version <= shard->applied) {
        up_answer(shard, TDM__SERVER_ACK, shard->committed, 0);
        return;
    }
    if (m->version != shard->applied + 1) {
        if (shard->node->options.mutation != TDM__SERVER_MUTATION_NO_RESEND) {
            tdm__server_up_miss(shard);
            return;
        }
        shard->applied = m->version - 1;
        tdm__server_log_clear(&shard->log, m->version);
    }
    tdm__blob *op = malloc(sizeof(*op) + m->byte_count);
    if (!op) {
        tdm_error err;
        tdm_fail_oom(&err, "for an update of shard %u", shard->number);
        tdm__server_node_fail(shard->node, &err);
        return;
    }
    op->users = 1;
    op->bytes = m->byte_count;
    if (m->byte_count > 0) memcpy(op->data, m->bytes, m->byte_count);
    tdm__server_shard_append(shard, op, now_s);
}

static void up_copy(tdm__server_shard *shard, const tdm__server_message *m, double now_s)
{
    tdm__server_node *node = shard->node;
    tdm_error err = {.status = TDM_ERR_FORMAT};
    if (!shard->is_joining || m->request != shard->up.next_part) return;
    if (m->request == 0) { /* whatever was copied before is incomplete */
        uint64_t join = shard->state_join;
        tdm__server_shard_forget_state(shard);
        shard->state_join = join;
        shard->state = node->options.state->create(node->options.state_user, &node->config.group,
                                                   shard->number, &err);
        if (!shard->state) {
            tdm__server_node_fail(node, &err);
            return;
        }
    }
    bool is_good = m->request == 0
                       ? tdm__server_registry_load(&shard->registry, m->bytes, m->byte_count)
                       : node->options.state->load(shard->state, m->bytes, m->byte_count, &err) ==
                             TDM_OK;
    if (!is_good) {
        if (m->request == 0) tdm_fail(&err, TDM_ERR_FORMAT, "a copy of a registry is invalid");
        tdm__server_node_fail(node, &err);
        return;
    }
    shard->up.next_part++;
    if (m->flag) {
        shard->is_complete = true;
        shard->applied = shard->committed = m->version;
        tdm__server_log_clear(&shard->log, m->version + 1);
    }
    up_answer(shard, TDM__SERVER_COPIED, 0, m->request);
    tdm__server_shard_commit(shard, now_s);
}

void tdm__server_shard_neighbour(tdm__server_shard *shard, uint64_t from,
                                 const tdm__server_message *m, double now_s)
{
    if (m->kind == TDM__SERVER_LINK) {
        up_link(shard, from, m);
        return;
    }
    if (m->epoch != shard->chain.epoch) return;
    bool is_down = m->kind == TDM__SERVER_LINKED || m->kind == TDM__SERVER_ACK ||
                   m->kind == TDM__SERVER_COPIED || m->kind == TDM__SERVER_MISS;
    if (is_down) {
        if (from == shard->down.id && m->link == shard->down.link && shard->is_member)
            down_message_of(shard, m, now_s);
        return;
    }
    if (from != shard->up.id || m->link != shard->up.link) return;
    if (m->kind == TDM__SERVER_UPDATE) up_update(shard, m, now_s);
    if (m->kind == TDM__SERVER_COPY) up_copy(shard, m, now_s);
}
