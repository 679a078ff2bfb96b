/*
 * program.c: functions that write the program of a segment.
 *
 * A program's list and its trees grow by doubling in the program's arena; the old memory stays
 * there until the arena is reset, which at most doubles the memory used. The functions return no
 * error: if memory runs out they set no_memory, the rest of the program is then invalid and the
 * engine ends the call. Messages of 0 bytes are sent (a barrier consists of them); copies of 0
 * bytes and sums of 0 elements are omitted.
 */
#include "comm/program.h"
#include "comm/group.h"
#include "comm/request.h"
#include "comm/scratch.h"

#include <string.h>

enum { FIRST_CAPACITY = 16 };

/* Makes room for one more item in a list of `count` items of `size` bytes. NULL (and no_memory):
 * out of memory. */
static void *program_grow_list(tdm__program *p, void *list, int count, int *capacity, size_t size)
{
    if (count < *capacity) return list;
    int wanted = *capacity ? 2 * *capacity : FIRST_CAPACITY;
    void *grown = tdm_arena_array(p->arena, (size_t)wanted, size);
    if (!grown) {
        p->no_memory = true;
        return NULL;
    }
    if (count) memcpy(grown, list, (size_t)count * size);
    *capacity = wanted;
    return grown;
}

static void program_append(tdm__program *p, tdm__instruction instruction)
{
    tdm__instruction *list = program_grow_list(p, p->list, p->count, &p->capacity,
                                               sizeof(instruction));
    if (!list) return;
    p->list = list;
    list[p->count++] = instruction;
}

void tdm__program_send(tdm__program *p, int peer, uint32_t step, const void *from, size_t bytes)
{
    program_append(
        p, (tdm__instruction){
               .op = TDM__OP_SEND, .peer = peer, .step = step, .from = from, .bytes = bytes});
}

void tdm__program_recv(tdm__program *p, int peer, uint32_t step, void *to, size_t bytes)
{
    program_append(p,
                   (tdm__instruction){
                       .op = TDM__OP_RECV, .peer = peer, .step = step, .to = to, .bytes = bytes});
}

void tdm__program_join(tdm__program *p)
{
    program_append(p, (tdm__instruction){.op = TDM__OP_JOIN});
}

void tdm__program_copy(tdm__program *p, void *to, const void *from, size_t bytes, bool stream)
{
    if (bytes == 0 || to == from) return;
    program_append(
        p, (tdm__instruction){
               .op = TDM__OP_COPY, .stream = stream, .from = from, .to = to, .bytes = bytes});
}

void tdm__program_pair(tdm__program *p, void *to, const void *left, const void *right, size_t bytes)
{
    if (bytes == 0) return;
    program_append(p,
                   (tdm__instruction){
                       .op = TDM__OP_PAIR, .from = left, .other = right, .to = to, .bytes = bytes});
}

void tdm__program_tree(tdm__program *p, const tdm__tree_plan *plan, const void *const *sources,
                       void *const *destinations, int destination_count, size_t count, int stream)
{
    if (count == 0) return;
    tdm__tree_call *trees = program_grow_list(p, p->trees, p->tree_count, &p->tree_capacity,
                                              sizeof(tdm__tree_call));
    const void **own_sources = tdm_arena_array(p->arena, (size_t)plan->leaf_count, sizeof(void *));
    void **own_destinations = tdm_arena_array(p->arena, (size_t)destination_count, sizeof(void *));
    if (!trees || !own_sources || !own_destinations) {
        p->no_memory = true;
        return;
    }
    if (plan->leaf_count) memcpy(own_sources, sources, (size_t)plan->leaf_count * sizeof(void *));
    memcpy(own_destinations, destinations, (size_t)destination_count * sizeof(void *));
    p->trees = trees;
    trees[p->tree_count] = (tdm__tree_call){.plan = plan,
                                            .sources = own_sources,
                                            .destinations = own_destinations,
                                            .destination_count = destination_count,
                                            .count = count};
    program_append(
        p, (tdm__instruction){.op = TDM__OP_TREE, .stream = stream, .tree = p->tree_count++});
}

void tdm__program_post(tdm__program *p, uint32_t value)
{
    program_append(p, (tdm__instruction){.op = TDM__OP_POST, .value = value});
}

void tdm__program_await(tdm__program *p, int local_member, uint32_t value)
{
    program_append(p,
                   (tdm__instruction){.op = TDM__OP_AWAIT, .peer = local_member, .value = value});
}

void tdm__program_call(tdm__program *p, void (*function)(tdm_request *, int))
{
    program_append(p, (tdm__instruction){.op = TDM__OP_CALL, .function = function});
}

void *tdm__program_scratch(tdm__program *p, size_t bytes)
{
    enum { CACHE_LINE = 64, LARGE_BYTES = 32 * 1024 };
    void *memory = bytes < LARGE_BYTES
                       ? tdm_arena_alloc(p->arena, bytes, CACHE_LINE)
                       : tdm__scratch_take(p->request->group->comm, &p->blocks, bytes);
    if (!memory) p->no_memory = true;
    return memory;
}

void tdm__program_restart(tdm__program *p)
{
    tdm_arena_reset(p->arena);
    tdm__scratch_give_back(p->request->group->comm, &p->blocks);
    p->list = NULL;
    p->trees = NULL;
    p->count = p->capacity = p->tree_count = p->tree_capacity = p->at = 0;
}
