/*
 * registry.c: the clients of a shard, and what each has done last.
 *
 * The registry is part of the replicated state: it changes only by operations of the log, and a copy of a shard
 * contains it. So any member of the chain can tell, after any failure, whether an operation was applied. Sorted by the
 * id of the client.
 */
#include "server/server.h"

#include <stdlib.h>
#include <string.h>

void tdm__server_registry_release(tdm__server_registry *registry)
{
    free(registry->clients);
    free(registry->lost_s);
    *registry = (tdm__server_registry){0};
}

static size_t registry_place(const tdm__server_registry *registry, uint64_t id)
{
    size_t low = 0, high = registry->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (registry->clients[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

tdm__server_client *tdm__server_registry_find(const tdm__server_registry *registry, uint64_t id)
{
    size_t at = registry_place(registry, id);
    return at < registry->count && registry->clients[at].id == id ? &registry->clients[at] : NULL;
}

static bool registry_reserve(tdm__server_registry *registry, size_t count)
{
    if (count <= registry->capacity) return true;
    size_t capacity = registry->capacity ? registry->capacity : 8;
    while (capacity < count) capacity *= 2;
    tdm__server_client *clients = realloc(registry->clients, capacity * sizeof(*clients));
    if (clients) registry->clients = clients;
    double *lost_s = clients ? realloc(registry->lost_s, capacity * sizeof(*lost_s)) : NULL;
    if (!lost_s) return false;
    registry->lost_s = lost_s;
    registry->capacity = capacity;
    return true;
}

static tdm__server_client *registry_add(tdm__server_registry *registry, uint64_t id)
{
    size_t at = registry_place(registry, id), count = registry->count;
    if (at < count && registry->clients[at].id == id) return &registry->clients[at];
    if (!registry_reserve(registry, count + 1)) return NULL;
    memmove(registry->clients + at + 1, registry->clients + at,
            (count - at) * sizeof(*registry->clients));
    memmove(registry->lost_s + at + 1, registry->lost_s + at,
            (count - at) * sizeof(*registry->lost_s));
    registry->clients[at] = (tdm__server_client){.id = id, .worker = -1};
    registry->lost_s[at] = 0;
    registry->count++;
    return &registry->clients[at];
}

static void registry_remove(tdm__server_registry *registry, uint64_t id)
{
    size_t at = registry_place(registry, id);
    if (at == registry->count || registry->clients[at].id != id) return;
    registry->count--;
    memmove(registry->clients + at, registry->clients + at + 1,
            (registry->count - at) * sizeof(*registry->clients));
    memmove(registry->lost_s + at, registry->lost_s + at + 1,
            (registry->count - at) * sizeof(*registry->lost_s));
}

uint64_t tdm__server_registry_clock(const tdm__server_registry *registry, uint64_t except,
                                    uint64_t otherwise, int32_t *out_worker)
{
    uint64_t least = otherwise;
    *out_worker = -1;
    for (size_t i = 0; i < registry->count; i++) {
        const tdm__server_client *client = &registry->clients[i];
        if (client->worker < 0 || client->left != TDM__SERVER_HERE || client->id == except)
            continue;
        if (*out_worker >= 0 && client->clock >= least) continue;
        least = client->clock;
        *out_worker = client->worker;
    }
    return least;
}

static void client_step(tdm__server_registry *registry, tdm__server_client *client, uint64_t number,
                        uint64_t clock, uint64_t version)
{
    client->number = number;
    client->version = version;
    if (client->left == TDM__SERVER_LOST) client->left = TDM__SERVER_HERE;
    if (clock > client->clock) client->clock = clock;
    if (client->clock > registry->top_clock) registry->top_clock = client->clock;
}

/* Of several clients with the number of a worker, the one that began last takes its place; the others have ended or
 * will be ignored. */
static void registry_join(tdm__server_registry *registry, tdm__server_client *client, int mode,
                          const tdm__server_op *join)
{
    int32_t slowest = -1, worker = join->worker;
    client->began = join->clock;
    for (size_t i = 0; worker >= 0 && i < registry->count; i++) {
        tdm__server_client *other = &registry->clients[i];
        if (other->worker != worker || other->id == client->id) continue;
        if (other->began < client->began)
            other->left = TDM__SERVER_LEFT;
        else
            client->left = TDM__SERVER_LEFT;
    }
    client->clock = registry->round;
    if (mode != TDM_SERVER_SYNC)
        client->clock = tdm__server_registry_clock(registry, client->id, registry->top_clock,
                                                   &slowest);
    client->worker = worker;
}

bool tdm__server_registry_apply(tdm__server_registry *registry, int mode,
                                const tdm__server_op_view *op, uint64_t version)
{
    const tdm__server_op *head = &op->head;
    if (head->kind == TDM__SERVER_OP_FORGET) {
        registry_remove(registry, head->client);
        return true;
    }
    if (head->kind == TDM__SERVER_OP_ROUND) {
        for (uint32_t i = 0; i < head->part_count; i++) {
            tdm__server_client *client = tdm__server_registry_find(registry, op->parts[i].client);
            if (client) client_step(registry, client, op->parts[i].number, head->clock, version);
        }
        registry->round = head->clock;
        return true;
    }
    tdm__server_client *client = head->kind == TDM__SERVER_OP_JOIN
                                     ? registry_add(registry, head->client)
                                     : tdm__server_registry_find(registry, head->client);
    if (!client) return head->kind != TDM__SERVER_OP_JOIN;
    if (head->kind == TDM__SERVER_OP_JOIN) registry_join(registry, client, mode, head);
    if (head->kind == TDM__SERVER_OP_NOTHING && head->status != 0) {
        client->failed_count++;
        client->failed_number = head->number;
        client->failed_status = head->status;
    }
    uint64_t number = head->number ? head->number : client->number; /* 0: by the head itself */
    bool has_clock = head->kind == TDM__SERVER_OP_PUSH || head->kind == TDM__SERVER_OP_NOTHING;
    client_step(registry, client, number, has_clock ? head->clock : 0, version);
    if (head->kind == TDM__SERVER_OP_LEAVE && client->left == TDM__SERVER_HERE)
        client->left = head->number ? TDM__SERVER_LEFT : TDM__SERVER_LOST;
    return true;
}

/* ---- copies ---------------------------------------------------------------------------------------- */

typedef struct registry_head {
    uint64_t count, round, top_clock;
} registry_head;

tdm__blob *tdm__server_registry_save(const tdm__server_registry *registry)
{
    registry_head head = {registry->count, registry->round, registry->top_clock};
    size_t bytes = registry->count * sizeof(*registry->clients);
    tdm__blob *blob = malloc(sizeof(*blob) + sizeof(head) + bytes);
    if (!blob) return NULL;
    blob->users = 1;
    blob->bytes = sizeof(head) + bytes;
    memcpy(blob->data, &head, sizeof(head));
    if (bytes > 0) memcpy(blob->data + sizeof(head), registry->clients, bytes);
    return blob;
}

bool tdm__server_registry_load(tdm__server_registry *registry, const uint8_t *bytes, size_t count)
{
    registry_head head;
    if (count < sizeof(head)) return false;
    memcpy(&head, bytes, sizeof(head));
    if (head.count > TDM__SERVER_MAX_CLIENTS ||
        count != sizeof(head) + head.count * sizeof(*registry->clients))
        return false;
    tdm__server_registry loaded = {0};
    if (!registry_reserve(&loaded, (size_t)head.count + 1)) {
        tdm__server_registry_release(&loaded);
        return false;
    }
    memcpy(loaded.clients, bytes + sizeof(head), count - sizeof(head));
    memset(loaded.lost_s, 0, loaded.capacity * sizeof(*loaded.lost_s));
    loaded.count = (size_t)head.count;
    loaded.round = head.round;
    loaded.top_clock = head.top_clock;
    tdm__server_registry_release(registry);
    *registry = loaded;
    return true;
}
