/*
 * sim_model.c: the state of a shard in the simulator: the list of its pushes.
 */
#include "server/sim_world.h"

#include <stdlib.h>

uint64_t sim_model_hash(const sim_model *m)
{
    uint64_t hash = TDM_HASH64_INIT;
    for (size_t i = 0; i < m->count; i++) hash = tdm_hash64_add(hash, m->pushes[i]);
    return hash;
}

static void model_add(sim_model *m, uint64_t client, uint64_t number, uint64_t clock)
{
    if (m->count == m->capacity) {
        m->capacity = m->capacity ? 2 * m->capacity : 64;
        m->pushes = realloc(m->pushes, m->capacity * sizeof(*m->pushes));
        m->clocks = realloc(m->clocks, m->capacity * sizeof(*m->clocks));
        if (!m->pushes || !m->clocks) abort();
    }
    m->pushes[m->count] = client << 32 | number;
    m->clocks[m->count++] = clock;
}

static void *model_create(void *user, const tdm_server_group *group, uint32_t shard, tdm_error *err)
{
    (void)user, (void)group, (void)shard, (void)err;
    return calloc(1, sizeof(sim_model));
}

static void model_destroy(void *state)
{
    sim_model *m = state;
    free(m->pushes);
    free(m->clocks);
    free(m);
}

static tdm_status model_check(void *state, const tdm__server_op_view *op, tdm_error *err)
{
    (void)state;
    if (op->head.lr >= 0) return TDM_OK;
    return tdm_fail(err, TDM_ERR_INVALID, "a negative rate");
}

static tdm_status model_apply(void *state, const tdm__server_op_view *op, uint64_t version,
                              tdm_error *err)
{
    (void)version, (void)err;
    for (uint32_t i = 0; i < op->head.part_count; i++)
        model_add(state, op->parts[i].client, op->parts[i].number, op->head.clock);
    if (op->head.part_count == 0)
        model_add(state, op->head.client, op->head.number, op->head.clock);
    return TDM_OK;
}

static tdm_status model_pull(void *state, const uint64_t *keys, uint32_t count, float *out)
{
    const sim_model *m = state;
    uint64_t hash = sim_model_hash(m);
    (void)keys;
    for (uint32_t i = 0; i < count; i++, out += SIM_WIDTH) {
        out[0] = (float)(hash & 0xfffff);
        out[1] = (float)(hash >> 20 & 0xfffff);
        out[2] = (float)(hash >> 40 & 0xfffff);
        out[3] = (float)m->count;
    }
    return TDM_OK;
}

enum { PART_PUSHES = 5 };

static tdm_status model_save(void *state, tdm__blob ***out, size_t *out_count, tdm_error *err)
{
    const sim_model *m = state;
    (void)err;
    size_t parts = m->count / PART_PUSHES + 1;
    tdm__blob **blobs = calloc(parts, sizeof(tdm__blob *));
    if (!blobs) abort();
    for (size_t i = 0; i < parts; i++) {
        size_t first = i * PART_PUSHES, count = m->count - first;
        if (count > PART_PUSHES) count = PART_PUSHES;
        blobs[i] = malloc(sizeof(**blobs) + 2 * PART_PUSHES * sizeof(uint64_t));
        if (!blobs[i]) abort();
        blobs[i]->users = 1;
        blobs[i]->bytes = 2 * count * sizeof(uint64_t);
        if (count == 0) continue;
        memcpy(blobs[i]->data, m->pushes + first, count * sizeof(uint64_t));
        memcpy(blobs[i]->data + count * sizeof(uint64_t), m->clocks + first,
               count * sizeof(uint64_t));
    }
    *out = blobs;
    *out_count = parts;
    return TDM_OK;
}

static tdm_status model_load(void *state, const uint8_t *bytes, size_t count, tdm_error *err)
{
    uint64_t push, clock;
    size_t pushes = count / (2 * sizeof(uint64_t));
    (void)err;
    for (size_t i = 0; i < pushes; i++) {
        memcpy(&push, bytes + i * sizeof(push), sizeof(push));
        memcpy(&clock, bytes + (pushes + i) * sizeof(clock), sizeof(clock));
        model_add(state, push >> 32, push & 0xffffffff, clock);
    }
    return TDM_OK;
}

const tdm__server_state_ops sim_model_ops = {.create = model_create,
                                             .destroy = model_destroy,
                                             .check = model_check,
                                             .apply = model_apply,
                                             .pull = model_pull,
                                             .save = model_save,
                                             .load = model_load};
