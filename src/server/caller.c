/*
 * caller.c: the client side of the protocol: numbers operations, and sends them until they are done.
 *
 * Operations of a shard wait in a queue until the head has acknowledged them. They are sent in order, and again from
 * the first one when another server becomes the head, when the connection was lost, or when nothing is heard for a
 * while. A pull is sent to the tail, and again likewise. The caller never decides that something failed: its owner has
 * the deadline.
 */
#include "base/base.h"
#include "server/server.h"

#include <stdlib.h>

typedef struct caller_op {
    tdm__blob *blob;
    uint64_t number;
} caller_op;

typedef struct caller_shard {
    tdm__server_caller_shard about;
    caller_op *ops; /* a queue: [first, first + count) of a ring */
    size_t first, count, capacity;
    size_t sent;                /* of the queue, to `head` */
    uint64_t head, tail, epoch; /* of the chain, as of the last sending */
    double ops_sent_s, pull_sent_s;
    tdm__server_message pull;
    uint8_t *pull_keys;
} caller_shard;

struct tdm__server_caller {
    tdm__server_caller_options options;
    tdm__server_config config;
    uint64_t request_count;
    caller_shard *shards;
};

static void caller_join(tdm__server_caller *caller)
{
    for (uint32_t s = 0; s < caller->config.group.shards; s++) {
        tdm__server_op_view view;
        const tdm__server_op head = {.kind = TDM__SERVER_OP_JOIN,
                                     .worker = caller->options.worker,
                                     .clock = caller->options.began};
        tdm__blob *blob = tdm__server_op_make(&head, caller->config.group.width, &view);
        if (blob) tdm__server_caller_add(caller, s, blob, 0);
    }
}

tdm__server_caller *tdm__server_caller_create(const tdm__server_caller_options *options,
                                              const tdm__server_config *config)
{
    tdm__server_caller *caller = calloc(1, sizeof(*caller));
    if (!caller) return NULL;
    caller->options = *options;
    tdm__server_config_copy(&caller->config, config);
    caller->shards = calloc(config->group.shards, sizeof(*caller->shards));
    if (!caller->shards) {
        free(caller);
        return NULL;
    }
    caller_join(caller);
    return caller;
}

void tdm__server_caller_destroy(tdm__server_caller *caller)
{
    if (!caller) return;
    for (uint32_t s = 0; s < caller->config.group.shards; s++) {
        caller_shard *shard = &caller->shards[s];
        for (size_t i = 0; i < shard->count; i++)
            tdm__blob_release(shard->ops[(shard->first + i) % shard->capacity].blob);
        free(shard->ops);
        free(shard->pull_keys);
    }
    free(caller->shards);
    free(caller);
}

static uint64_t shard_head(const tdm__server_caller *caller, uint32_t shard)
{
    const tdm__server_chain *chain = &caller->config.chains[shard];
    return chain->member_count ? chain->members[0] : 0;
}

static uint64_t shard_tail(const tdm__server_caller *caller, uint32_t shard)
{
    const tdm__server_chain *chain = &caller->config.chains[shard];
    return chain->member_count ? chain->members[chain->member_count - 1] : 0;
}

/* Sends the operations of the queue that have not been sent to this head. */
static void caller_send_ops(tdm__server_caller *caller, uint32_t s, double now_s)
{
    caller_shard *shard = &caller->shards[s];
    shard->head = shard_head(caller, s);
    if (shard->head == 0) return;
    for (; shard->sent < shard->count; shard->sent++) {
        const caller_op *op = &shard->ops[(shard->first + shard->sent) % shard->capacity];
        const tdm__server_message message = {.kind = TDM__SERVER_OP,
                                             .shard = s,
                                             .client = caller->options.id,
                                             .request = op->number,
                                             .bytes = op->blob->data,
                                             .byte_count = op->blob->bytes};
        caller->options.send(caller->options.user, shard->head, &message);
        shard->about.waits_for = shard->head;
        shard->ops_sent_s = now_s;
    }
}

static void caller_send_pull(tdm__server_caller *caller, uint32_t s, double now_s)
{
    caller_shard *shard = &caller->shards[s];
    shard->tail = shard_tail(caller, s);
    shard->pull_sent_s = now_s;
    if (!shard->about.is_pulling || shard->tail == 0) return;
    shard->pull.version = shard->about.version;
    caller->options.send(caller->options.user, shard->tail, &shard->pull);
    shard->about.waits_for = shard->tail;
}

static void caller_repeat(tdm__server_caller *caller, uint32_t s, double now_s)
{
    caller->shards[s].sent = 0;
    caller_send_ops(caller, s, now_s);
    caller_send_pull(caller, s, now_s);
}

uint64_t tdm__server_caller_add(tdm__server_caller *caller, uint32_t s, tdm__blob *blob,
                                double now_s)
{
    caller_shard *shard = &caller->shards[s];
    if (shard->count == shard->capacity) {
        size_t capacity = shard->capacity ? 2 * shard->capacity : 16;
        caller_op *ops = malloc(capacity * sizeof(*ops));
        if (!ops) {
            tdm__blob_release(blob);
            return 0;
        }
        for (size_t i = 0; i < shard->count; i++)
            ops[i] = shard->ops[(shard->first + i) % shard->capacity];
        free(shard->ops);
        shard->ops = ops;
        shard->capacity = capacity;
        shard->first = 0;
    }
    tdm__server_op head;
    memcpy(&head, blob->data, sizeof(head));
    head.client = caller->options.id;
    head.number = ++shard->about.added;
    memcpy(blob->data, &head, sizeof(head));
    shard->ops[(shard->first + shard->count++) % shard->capacity] = (caller_op){
        .blob = blob, .number = head.number};
    shard->about.waiting_bytes += blob->bytes;
    caller_send_ops(caller, s, now_s);
    return head.number;
}

bool tdm__server_caller_pull(tdm__server_caller *caller, uint32_t s, uint64_t clock,
                             const uint64_t *keys, uint32_t count, double now_s)
{
    caller_shard *shard = &caller->shards[s];
    size_t bytes = count * sizeof(*keys);
    tdm__server_caller_forget(caller, s);
    shard->pull_keys = malloc(bytes + 1);
    if (!shard->pull_keys) return false;
    if (bytes > 0) memcpy(shard->pull_keys, keys, bytes);
    shard->pull = (tdm__server_message){.kind = TDM__SERVER_PULL,
                                        .shard = s,
                                        .client = caller->options.id,
                                        .request = ++caller->request_count,
                                        .clock = clock,
                                        .bytes = shard->pull_keys,
                                        .byte_count = bytes};
    shard->about.is_pulling = true;
    caller_send_pull(caller, s, now_s);
    return true;
}

void tdm__server_caller_forget(tdm__server_caller *caller, uint32_t s)
{
    caller_shard *shard = &caller->shards[s];
    shard->about.is_pulling = false;
    free(shard->pull_keys);
    shard->pull_keys = NULL;
}

void tdm__server_caller_config(tdm__server_caller *caller, const tdm__server_config *config,
                               double now_s)
{
    if (config->epoch <= caller->config.epoch) return;
    tdm__server_config_copy(&caller->config, config);
    for (uint32_t s = 0; s < config->group.shards; s++) {
        caller_shard *shard = &caller->shards[s];
        bool is_new = shard->epoch != config->chains[s].epoch;
        shard->epoch = config->chains[s].epoch;
        if (is_new) caller_repeat(caller, s, now_s);
    }
}

static void caller_done(tdm__server_caller *caller, uint32_t s, const tdm__server_message *m,
                        double now_s)
{
    caller_shard *shard = &caller->shards[s];
    tdm__server_caller_shard *about = &shard->about;
    if (m->request > about->added) return;
    while (shard->count > 0 && shard->ops[shard->first].number <= m->request) {
        tdm__blob *blob = shard->ops[shard->first].blob;
        about->waiting_bytes -= blob->bytes;
        tdm__blob_release(blob);
        shard->first = (shard->first + 1) % shard->capacity;
        shard->count--;
        if (shard->sent > 0) shard->sent--;
    }
    if (m->link > about->failed_count) {
        about->failed_count = m->link;
        about->failed_number = m->version;
        about->failed_status = m->status;
    }
    if (m->clock > about->clock) about->clock = m->clock;
    if (m->epoch > about->version) about->version = m->epoch; /* a pull must contain it */
    if (m->request <= about->done) return;
    about->done = m->request;
    shard->ops_sent_s = now_s; /* the head makes progress */
    if (about->failed_count == 0) about->note[0] = '\0';
    if (caller->options.done) caller->options.done(caller->options.user, s, m->request);
}

static void caller_rows(tdm__server_caller *caller, uint32_t s, const tdm__server_message *m)
{
    caller_shard *shard = &caller->shards[s];
    size_t expected = shard->pull.byte_count / sizeof(uint64_t) * caller->config.group.width *
                      sizeof(float);
    if (!shard->about.is_pulling || m->request != shard->pull.request ||
        m->byte_count != expected || m->version < shard->about.version)
        return;
    shard->about.version = m->version;
    caller->options.rows(caller->options.user, m);
    tdm__server_caller_forget(caller, s);
}

static void caller_note(caller_shard *shard, const tdm__server_message *m)
{
    size_t count = m->byte_count < sizeof(shard->about.note) ? m->byte_count
                                                             : sizeof(shard->about.note) - 1;
    tdm__wire_clean(m->bytes, count, shard->about.note);
    if (m->status == TDM_ERR_NOT_FOUND || m->status == TDM_ERR_RANGE || m->status == TDM_ERR_FORMAT)
        shard->about.failed_status = m->status; /* the operation is not in the log */
}

void tdm__server_caller_message(tdm__server_caller *caller, uint64_t from,
                                const tdm__server_message *m, double now_s)
{
    (void)from;
    if (m->shard >= caller->config.group.shards || m->client != caller->options.id) return;
    if (m->kind == TDM__SERVER_DONE) caller_done(caller, m->shard, m, now_s);
    if (m->kind == TDM__SERVER_ROWS) caller_rows(caller, m->shard, m);
    if (m->kind == TDM__SERVER_NOTE) caller_note(&caller->shards[m->shard], m);
}

void tdm__server_caller_clear_note(tdm__server_caller *caller, uint32_t s)
{
    caller->shards[s].about.note[0] = '\0';
}

void tdm__server_caller_lost(tdm__server_caller *caller, uint64_t server, double now_s)
{
    for (uint32_t s = 0; s < caller->config.group.shards; s++) {
        caller_shard *shard = &caller->shards[s];
        if (shard->head == server) {
            shard->sent = 0;
            caller_send_ops(caller, s, now_s);
        }
        if (shard->tail == server) caller_send_pull(caller, s, now_s);
    }
}

void tdm__server_caller_tick(tdm__server_caller *caller, double now_s)
{
    double limit_s = caller->options.resend_s;
    for (uint32_t s = 0; s < caller->config.group.shards; s++) {
        caller_shard *shard = &caller->shards[s];
        if (shard->count > 0 && now_s - shard->ops_sent_s > limit_s) {
            shard->sent = 0;
            caller_send_ops(caller, s, now_s);
        }
        if (shard->about.is_pulling && now_s - shard->pull_sent_s > limit_s)
            caller_send_pull(caller, s, now_s);
    }
}

tdm__server_caller_shard tdm__server_caller_at(const tdm__server_caller *caller, uint32_t s)
{
    return caller->shards[s].about;
}
