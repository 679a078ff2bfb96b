/*
 * shard_client.c: operations of clients at the head of a chain, and pulls at its tail.
 *
 * An operation is applied if its number is the next one of its client. A repeated one is answered, not applied. A push
 * that cannot be applied still takes its number, as an operation that does nothing, so that the client learns it even
 * from another head.
 */
#include "base/base.h"
#include "server/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOTE_S 0.5

static void shard_note(tdm__server_shard *shard, uint64_t client, uint64_t request,
                       tdm_status status, const char *text)
{
    tdm__server_send(shard, client,
                     (tdm__server_message){.kind = TDM__SERVER_NOTE,
                                           .status = (uint16_t)status,
                                           .request = request,
                                           .client = client,
                                           .bytes = (const uint8_t *)text,
                                           .byte_count = strlen(text)});
}

/* `number` and all before it are committed, at `version`. */
static void shard_send_done(tdm__server_shard *shard, const tdm__server_client *client,
                            uint64_t number, uint64_t version)
{
    tdm__server_send(shard, client->id,
                     (tdm__server_message){.kind = TDM__SERVER_DONE,
                                           .status = (uint16_t)client->failed_status,
                                           .client = client->id,
                                           .request = number,
                                           .link = client->failed_count,
                                           .version = client->failed_number,
                                           .epoch = version,
                                           .clock = client->clock});
}

void tdm__server_shard_done(tdm__server_shard *shard, uint64_t version)
{
    const tdm__blob *blob = tdm__server_log_at(&shard->log, version);
    tdm__server_op_view op;
    if (!blob ||
        !tdm__server_op_read(blob->data, blob->bytes, shard->node->config.group.width, &op))
        return;
    for (uint32_t i = 0; i < op.head.part_count; i++) {
        const tdm__server_client *client = tdm__server_registry_find(&shard->registry,
                                                                     op.parts[i].client);
        if (client) shard_send_done(shard, client, op.parts[i].number, version);
    }
    const tdm__server_client *client = tdm__server_registry_find(&shard->registry, op.head.client);
    if (client && op.head.part_count == 0 && op.head.number != 0)
        shard_send_done(shard, client, op.head.number, version);
}

/* ---- operations ---------------------------------------------------------------------------------------- */

static void shard_append_small(tdm__server_shard *shard, const tdm__server_op *head, double now_s)
{
    tdm__server_op_view view;
    tdm__blob *blob = tdm__server_op_make(head, shard->node->config.group.width, &view);
    if (blob) tdm__server_shard_append(shard, blob, now_s);
}

/* The push has a number, and does nothing. */
static void shard_append_nothing(tdm__server_shard *shard, const tdm__server_op *push,
                                 tdm_status status, double now_s)
{
    const tdm__server_op head = {.kind = TDM__SERVER_OP_NOTHING,
                                 .worker = -1,
                                 .client = push->client,
                                 .number = push->number,
                                 .clock = status == TDM_OK ? push->clock : 0,
                                 .status = (uint32_t)status};
    shard_append_small(shard, &head, now_s);
}

static tdm__server_op round_head(const tdm__server_shard *shard, int32_t worker)
{
    tdm__server_op head;
    memcpy(&head, shard->round[worker]->data, sizeof(head));
    return head;
}

/* Appends the pushes of all workers as one operation, if all are there. */
static void shard_try_round(tdm__server_shard *shard, double now_s)
{
    const tdm_server_group *group = &shard->node->config.group;
    tdm__server_op head = {.kind = TDM__SERVER_OP_ROUND,
                           .worker = -1,
                           .part_count = group->workers,
                           .clock = shard->registry.round + 1};
    uint64_t total = 0;
    for (uint32_t w = 0; w < group->workers; w++) {
        if (!shard->round[w]) return;
        const tdm__server_client *client = tdm__server_registry_find(
            &shard->registry, round_head(shard, (int32_t)w).client);
        if (!client || client->left == TDM__SERVER_LEFT) { /* another one has taken its place */
            tdm__blob_release(shard->round[w]);
            shard->round[w] = NULL;
            return;
        }
        total += round_head(shard, (int32_t)w).count;
    }
    head.lr = round_head(shard, 0).lr;
    head.count = (uint32_t)total;
    tdm__server_op_view out, one;
    tdm__blob *blob = total <= UINT32_MAX ? tdm__server_op_make(&head, group->width, &out) : NULL;
    tdm__server_part *parts = blob ? (tdm__server_part *)(uintptr_t)out.parts : NULL;
    uint64_t *keys = blob ? (uint64_t *)(uintptr_t)out.keys : NULL;
    float *grads = blob ? (float *)(uintptr_t)out.grads : NULL;
    tdm_error err = {.status = TDM_ERR_RANGE, .message = "the pushes of a round are too large"};
    for (uint32_t w = 0; blob && w < group->workers; w++) {
        const tdm__blob *push = shard->round[w];
        if (!tdm__server_op_read(push->data, push->bytes, group->width, &one)) continue;
        parts[w] = (tdm__server_part){.client = one.head.client,
                                      .number = one.head.number,
                                      .worker = (int32_t)w,
                                      .count = one.head.count};
        memcpy(keys, one.keys, one.head.count * sizeof(*keys));
        memcpy(grads, one.grads, (size_t)one.head.count * group->width * sizeof(*grads));
        keys += one.head.count;
        grads += (size_t)one.head.count * group->width;
    }
    tdm_status status = TDM_ERR_RANGE;
    if (blob) status = shard->node->options.state->check(shard->state, &out, &err);
    if (blob && status == TDM_OK) {
        tdm__server_shard_append(shard, blob, now_s);
    } else {
        tdm__blob_release(blob);
        for (uint32_t w = 0; w < group->workers; w++) {
            tdm__server_op push = round_head(shard, (int32_t)w);
            shard_note(shard, push.client, push.number, status, err.message);
            shard_append_nothing(shard, &push, status, now_s);
        }
    }
    for (uint32_t w = 0; w < group->workers; w++) {
        tdm__blob_release(shard->round[w]);
        shard->round[w] = NULL;
    }
}

/* Keeps the push until those of all workers are there. */
static void shard_hold_push(tdm__server_shard *shard, tdm__blob *blob,
                            const tdm__server_client *client, double now_s)
{
    tdm__server_op head;
    memcpy(&head, blob->data, sizeof(head));
    uint64_t round = shard->registry.round;
    uint32_t workers = shard->node->config.group.workers;
    if (head.clock <= round && client->worker >= 0) {
        shard_append_nothing(shard, &head, TDM_OK,
                             now_s); /* an earlier client of this worker did it */
    } else if (client->worker < 0 || client->worker >= (int32_t)workers ||
               head.clock != round + 1) {
        char text[160];
        snprintf(text, sizeof(text),
                 "worker %d pushes round %llu; shard %u expects round %llu of workers 0 to %u",
                 client->worker, (unsigned long long)head.clock, shard->number,
                 (unsigned long long)round + 1, workers - 1);
        shard_note(shard, head.client, head.number, TDM_ERR_INVALID, text);
        shard_append_nothing(shard, &head, TDM_ERR_INVALID, now_s);
    } else {
        if (!shard->round) shard->round = calloc(workers, sizeof(*shard->round));
        if (!shard->round) {
            tdm__blob_release(blob);
            return;
        }
        tdm__blob_release(shard->round[client->worker]);
        shard->round[client->worker] = blob;
        shard_try_round(shard, now_s);
        return;
    }
    tdm__blob_release(blob);
}

static void shard_push(tdm__server_shard *shard, tdm__blob *blob, const tdm__server_op_view *op,
                       const tdm__server_client *client, double now_s)
{
    tdm_error err = {.status = TDM_OK};
    tdm_status status = TDM_OK;
    if (client->left == TDM__SERVER_LEFT)
        status = tdm_fail(&err, TDM_ERR_PEER_FENCED,
                          "shard %u: another client has taken the place of worker %d",
                          shard->number, client->worker);
    else
        status = shard->node->options.state->check(shard->state, op, &err);
    if (status != TDM_OK) {
        shard_note(shard, client->id, op->head.number, status, err.message);
        shard_append_nothing(shard, &op->head, status, now_s);
        tdm__blob_release(blob);
    } else if (shard->node->config.group.mode == TDM_SERVER_SYNC) {
        shard_hold_push(shard, blob, client, now_s);
    } else {
        tdm__server_shard_append(shard, blob, now_s);
    }
}

/* A client that the registry does not have. */
static void shard_admit(tdm__server_shard *shard, tdm__blob *blob, const tdm__server_op *head,
                        double now_s)
{
    if (head->kind == TDM__SERVER_OP_JOIN && head->number == 1 &&
        shard->registry.count < TDM__SERVER_MAX_CLIENTS) {
        tdm__server_shard_append(shard, blob, now_s);
        return;
    }
    if (head->kind == TDM__SERVER_OP_JOIN)
        shard_note(shard, head->client, head->number, TDM_ERR_RANGE,
                   "the server has 4096 clients, those that left within the last hour included; "
                   "keep clients open instead of opening new ones");
    else
        shard_note(shard, head->client, head->number, TDM_ERR_NOT_FOUND,
                   "the server does not know this client any more; open a new one");
    tdm__blob_release(blob);
}

static double *shard_lost_at(tdm__server_shard *shard, const tdm__server_client *client)
{
    return &shard->registry.lost_s[client - shard->registry.clients];
}

void tdm__server_shard_op(tdm__server_shard *shard, uint64_t from, const tdm__server_message *m,
                          double now_s)
{
    if (!shard->is_head || from != m->client || m->byte_count < sizeof(tdm__server_op)) return;
    uint64_t number = 0;
    memcpy(&number, m->bytes + offsetof(tdm__server_op, number), sizeof(number));
    bool repeats = shard->node->options.mutation == TDM__SERVER_MUTATION_NO_DEDUP;
    const tdm__server_client *client = tdm__server_registry_find(&shard->registry, m->client);
    if (client) *shard_lost_at(shard, client) = 0;
    if (client && number <= client->number && !repeats) {
        if (client->version <= shard->committed)
            shard_send_done(shard, client, client->number, client->version);
        return;
    }
    if (client && number > client->number + 1) return;

    tdm__server_op_view op;
    tdm__blob *blob = malloc(sizeof(*blob) + m->byte_count);
    if (!blob) return; /* the client sends it again */
    blob->users = 1;
    blob->bytes = m->byte_count;
    memcpy(blob->data, m->bytes, m->byte_count);
    bool is_good = tdm__server_op_read(blob->data, blob->bytes, shard->node->config.group.width,
                                       &op) &&
                   op.head.client == m->client && op.head.number == m->request &&
                   op.head.number != 0 &&
                   (op.head.kind == TDM__SERVER_OP_PUSH || op.head.kind == TDM__SERVER_OP_JOIN ||
                    op.head.kind == TDM__SERVER_OP_LEAVE);
    if (!is_good) {
        shard_note(shard, m->client, m->request, TDM_ERR_FORMAT,
                   "the server received an invalid operation; client and server must run the same "
                   "version of tandem, with rows of the same width");
        tdm__blob_release(blob);
    } else if (!client) {
        shard_admit(shard, blob, &op.head, now_s);
    } else if (op.head.kind == TDM__SERVER_OP_PUSH) {
        shard_push(shard, blob, &op, client, now_s);
    } else {
        tdm__server_shard_append(shard, blob, now_s);
    }
}

/* ---- pulls ------------------------------------------------------------------------------------------- */

static bool pull_must_wait(const tdm__server_shard *shard, const tdm__server_message *m,
                           int32_t *out_worker, uint64_t *out_clock)
{
    const tdm_server_group *group = &shard->node->config.group;
    *out_worker = -1;
    *out_clock = shard->registry.round;
    if (group->mode == TDM_SERVER_SYNC) return m->clock > shard->registry.round;
    if (group->mode != TDM_SERVER_STALE) return false;
    *out_clock = tdm__server_registry_clock(&shard->registry, m->client, m->clock, out_worker);
    return *out_worker >= 0 && m->clock > *out_clock + group->bound;
}

static void waiting_add(tdm__server_waiting **list, uint64_t client, const tdm__server_message *m)
{
    while (*list) {
        if ((*list)->client == client) {
            tdm__server_waiting *old = *list;
            *list = old->next;
            free(old);
        } else {
            list = &(*list)->next;
        }
    }
    tdm__server_waiting *item = malloc(sizeof(*item) + m->byte_count);
    if (!item) return; /* the client asks again */
    item->next = NULL;
    item->client = client;
    item->message = *m;
    if (m->byte_count > 0) memcpy(item->bytes, m->bytes, m->byte_count);
    item->message.bytes = item->bytes;
    *list = item;
}

static void waiting_clear(tdm__server_waiting **list)
{
    while (*list) {
        tdm__server_waiting *item = *list;
        *list = item->next;
        free(item);
    }
}

static void pull_answer(tdm__server_shard *shard, uint64_t client, const tdm__server_message *m)
{
    tdm__server_node *node = shard->node;
    size_t count = m->byte_count / sizeof(uint64_t);
    size_t numbers = count * node->config.group.width;
    int32_t slowest = -1;
    tdm_error err = {.status = TDM_ERR_NO_MEMORY};
    if (numbers > node->row_capacity) {
        float *rows = realloc(node->rows, numbers * sizeof(*rows));
        if (!rows) {
            shard_note(shard, client, m->request, TDM_ERR_NO_MEMORY, "the server is out of memory");
            return;
        }
        node->rows = rows;
        node->row_capacity = numbers;
    }
    /* The keys may not be aligned. */
    const uint64_t *keys = (const uint64_t *)(const void *)m->bytes;
    uint64_t *copy = NULL;
    if ((uintptr_t)m->bytes % sizeof(uint64_t) != 0 && count > 0) {
        copy = malloc(m->byte_count);
        if (!copy) return;
        memcpy(copy, m->bytes, m->byte_count);
        keys = copy;
    }
    tdm_status status = node->options.state->pull(shard->state, keys, (uint32_t)count, node->rows);
    free(copy);
    if (status != TDM_OK) {
        shard_note(shard, client, m->request, status, err.message);
        return;
    }
    tdm__server_message answer = {
        .kind = TDM__SERVER_ROWS,
        .shard = shard->number,
        .client = client,
        .request = m->request,
        .version = shard->applied,
        .clock = tdm__server_registry_clock(&shard->registry, client, m->clock, &slowest),
        .bytes = (const uint8_t *)node->rows,
        .byte_count = numbers * sizeof(float)};
    if (shard->applied <= shard->committed)
        tdm__server_send(shard, client, answer);
    else
        waiting_add(&shard->held, client, &answer);
}

void tdm__server_shard_pull(tdm__server_shard *shard, uint64_t from, const tdm__server_message *m)
{
    int32_t slowest = -1;
    uint64_t clock = 0;
    uint32_t width = shard->node->config.group.width;
    if (!shard->is_tail || from != m->client || m->version > shard->applied) return;
    if (m->byte_count % sizeof(uint64_t) != 0 ||
        m->byte_count / sizeof(uint64_t) * width * sizeof(float) > TDM__SERVER_MAX_OP) {
        shard_note(shard, from, m->request, TDM_ERR_RANGE,
                   "too many keys in one pull; pull in several calls");
        return;
    }
    if (!pull_must_wait(shard, m, &slowest, &clock)) {
        pull_answer(shard, from, m);
        return;
    }
    char text[200];
    if (shard->node->config.group.mode == TDM_SERVER_SYNC)
        snprintf(text, sizeof(text), "round %llu is not complete: not all workers have pushed it",
                 (unsigned long long)clock + 1);
    else
        snprintf(text, sizeof(text),
                 "worker %d has pushed %llu rounds, this worker %llu, and the bound is %u", slowest,
                 (unsigned long long)clock, (unsigned long long)m->clock,
                 shard->node->config.group.bound);
    shard_note(shard, from, m->request, TDM_OK, text);
    waiting_add(&shard->waiting, from, m);
}

void tdm__server_shard_serve(tdm__server_shard *shard)
{
    int32_t slowest = -1;
    uint64_t clock = 0;
    for (tdm__server_waiting **at = &shard->held; *at;) {
        tdm__server_waiting *item = *at;
        if (item->message.version > shard->committed) {
            at = &item->next;
            continue;
        }
        *at = item->next;
        tdm__server_send(shard, item->client, item->message);
        free(item);
    }
    for (tdm__server_waiting **at = &shard->waiting; *at;) {
        tdm__server_waiting *item = *at;
        if (!shard->is_tail || pull_must_wait(shard, &item->message, &slowest, &clock)) {
            at = &item->next;
            continue;
        }
        *at = item->next;
        pull_answer(shard, item->client, &item->message);
        free(item);
    }
}

void tdm__server_shard_drop_clients(tdm__server_shard *shard)
{
    waiting_clear(&shard->waiting);
    waiting_clear(&shard->held);
    for (uint32_t w = 0; shard->round && w < shard->node->config.group.workers; w++) {
        tdm__blob_release(shard->round[w]);
        shard->round[w] = NULL;
    }
}

/* ---- time ----------------------------------------------------------------------------------------------- */

/* Tells those who have pushed a round whom it waits for. */
static void shard_note_round(tdm__server_shard *shard)
{
    tdm_str text = TDM_STR_INIT;
    uint32_t workers = shard->node->config.group.workers, missing = 0;
    for (uint32_t w = 0; w < workers; w++) {
        if (shard->round[w] || missing++ >= 8) continue;
        tdm_str_addf(&text, "%s%u", missing == 1 ? "the round waits for the push of worker " : ", ",
                     w);
    }
    for (uint32_t w = 0; missing < workers && tdm_str_ok(&text) && w < workers; w++) {
        if (!shard->round[w]) continue;
        tdm__server_op head = round_head(shard, (int32_t)w);
        shard_note(shard, head.client, head.number, TDM_OK, tdm_str_text(&text));
    }
    tdm_str_release(&text);
}

/* Ends clients that are gone, and forgets those that left long ago. One at a time: the registry changes. */
static void shard_end_clients(tdm__server_shard *shard, double now_s)
{
    const tdm__server_node_options *options = &shard->node->options;
    for (size_t i = 0; i < shard->registry.count; i++) {
        const tdm__server_client *client = &shard->registry.clients[i];
        double *lost_s = &shard->registry.lost_s[i];
        bool is_here = client->left != TDM__SERVER_LEFT &&
                       options->is_connected(options->user, client->id);
        if (is_here) *lost_s = 0;
        if (is_here) continue;
        if (!(*lost_s > 0)) *lost_s = now_s;
        double limit_s = client->left ? options->forget_s : options->worker_s;
        if (now_s - *lost_s <= limit_s) continue;
        *lost_s = now_s;
        const tdm__server_op head = {.kind = client->left ? TDM__SERVER_OP_FORGET
                                                          : TDM__SERVER_OP_LEAVE,
                                     .worker = -1,
                                     .client = client->id};
        shard_append_small(shard, &head, now_s);
        return;
    }
}

void tdm__server_shard_client_tick(tdm__server_shard *shard, double now_s)
{
    if (!shard->is_head) return;
    shard_end_clients(shard, now_s);
    if (!shard->round || now_s - shard->noted_s < NOTE_S) return;
    shard->noted_s = now_s;
    shard_note_round(shard);
}
