/*
 * wire.c: messages and operations as bytes.
 *
 *      message    kind 1 | flag 1 | status 2 | shard 4 | epoch 8 | link 8 | version 8 | client 8 | request 8 |
 *                 clock 8 | bytes
 *
 * All numbers are little-endian. An operation has the layout of its structs in memory: Tandem supports little-endian
 * machines only. Reading is strict, because a client can send anything after its proof. Pure functions.
 */
#include "base/base.h"
#include "server/server.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(tdm__server_op) == 56 && sizeof(tdm__server_part) == 24, "no padding");

static void put(uint8_t *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) out[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *bytes, int count)
{
    uint64_t value = 0;
    for (int i = 0; i < count; i++) value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

void tdm__server_message_write(const tdm__server_message *m, uint8_t head[TDM__SERVER_HEAD])
{
    put(head, m->kind, 1);
    put(head + 1, m->flag, 1);
    put(head + 2, m->status, 2);
    put(head + 4, m->shard, 4);
    put(head + 8, m->epoch, 8);
    put(head + 16, m->link, 8);
    put(head + 24, m->version, 8);
    put(head + 32, m->client, 8);
    put(head + 40, m->request, 8);
    put(head + 48, m->clock, 8);
}

bool tdm__server_message_read(const uint8_t *bytes, size_t count, tdm__server_message *out)
{
    if (count < TDM__SERVER_HEAD || bytes[0] == 0 || bytes[0] >= TDM__SERVER_KINDS || bytes[1] > 1)
        return false;
    *out = (tdm__server_message){.kind = bytes[0],
                                 .flag = bytes[1] == 1,
                                 .status = (uint16_t)get(bytes + 2, 2),
                                 .shard = (uint32_t)get(bytes + 4, 4),
                                 .epoch = get(bytes + 8, 8),
                                 .link = get(bytes + 16, 8),
                                 .version = get(bytes + 24, 8),
                                 .client = get(bytes + 32, 8),
                                 .request = get(bytes + 40, 8),
                                 .clock = get(bytes + 48, 8),
                                 .bytes = bytes + TDM__SERVER_HEAD,
                                 .byte_count = count - TDM__SERVER_HEAD};
    return true;
}

/* ---- operations ---------------------------------------------------------------------------------- */

size_t tdm__server_op_bytes(const tdm__server_op *head, uint32_t width)
{
    return sizeof(*head) + head->part_count * sizeof(tdm__server_part) +
           (size_t)head->count * (sizeof(uint64_t) + (size_t)width * sizeof(float));
}

static void op_view(const uint8_t *bytes, const tdm__server_op *head, tdm__server_op_view *out)
{
    const uint8_t *parts = bytes + sizeof(*head);
    const uint8_t *keys = parts + head->part_count * sizeof(tdm__server_part);
    out->head = *head;
    out->parts = (const tdm__server_part *)(const void *)parts;
    out->keys = (const uint64_t *)(const void *)keys;
    out->grads = (const float *)(const void *)(keys + head->count * sizeof(uint64_t));
}

tdm__blob *tdm__server_op_make(const tdm__server_op *head, uint32_t width, tdm__server_op_view *out)
{
    size_t bytes = tdm__server_op_bytes(head, width);
    if (bytes > TDM__SERVER_MAX_OP) return NULL;
    tdm__blob *blob = malloc(sizeof(*blob) + bytes);
    if (!blob) return NULL;
    blob->users = 1;
    blob->bytes = bytes;
    memcpy(blob->data, head, sizeof(*head));
    op_view(blob->data, head, out);
    return blob;
}

bool tdm__server_op_read(const uint8_t *bytes, size_t count, uint32_t width,
                         tdm__server_op_view *out)
{
    tdm__server_op head;
    if (count < sizeof(head) || count > TDM__SERVER_MAX_OP) return false;
    memcpy(&head, bytes, sizeof(head));
    bool has_keys = head.kind == TDM__SERVER_OP_PUSH || head.kind == TDM__SERVER_OP_ROUND;
    if (head.kind == 0 || head.kind > TDM__SERVER_OP_NOTHING || (!has_keys && head.count > 0) ||
        (head.kind != TDM__SERVER_OP_ROUND && head.part_count > 0) ||
        head.part_count > TDM_SERVER_MAX_WORKERS || head.worker < -1 ||
        head.worker >= TDM_SERVER_MAX_WORKERS || !isfinite(head.lr))
        return false;
    if (tdm__server_op_bytes(&head, width) != count) return false;
    op_view(bytes, &head, out);
    uint64_t total = 0;
    for (uint32_t i = 0; i < head.part_count; i++) total += out->parts[i].count;
    return head.kind != TDM__SERVER_OP_ROUND || total == head.count;
}

uint32_t tdm__server_shard_of(uint64_t key, uint32_t shard_count)
{
    uint64_t hash = tdm_mix64(key ^ UINT64_C(0x5bd1e9955bd1e995));
    return (uint32_t)((hash >> 32) * shard_count >> 32);
}
