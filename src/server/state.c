/*
 * state.c: the state of a shard as a sparse table.
 *
 * The table's own limit is above the group's, because replicas with the same rows may differ by some blocks. The limit
 * of the group is checked by the head before an operation enters the log, from the number of rows only.
 */
#include "base/base.h"
#include "server/server.h"
#include "table/table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define LIMIT_SLACK (UINT64_C(64) << 20)

_Static_assert(TDM_SERVER_SGD == (int)TDM_TABLE_OPTIM_SGD &&
                   TDM_SERVER_ADAGRAD == (int)TDM_TABLE_OPTIM_ADAGRAD &&
                   TDM_SERVER_FTRL == (int)TDM_TABLE_OPTIM_FTRL &&
                   TDM_SERVER_ADAM == (int)TDM_TABLE_OPTIM_ADAM,
               "the methods of a table");

typedef struct table_state {
    tdm_table *table;
    uint32_t shard;
    uint64_t limit_bytes;
    char name[32];
} table_state;

static void *table_state_create(void *user, const tdm_server_group *group, uint32_t shard,
                                tdm_error *err)
{
    (void)user;
    table_state *state = calloc(1, sizeof(*state));
    if (!state) {
        tdm_fail_oom(err, "for a shard");
        return NULL;
    }
    state->shard = shard;
    state->limit_bytes = group->limit_bytes;
    (void)snprintf(state->name, sizeof(state->name), "shard %u", shard);
    /* The number of the table is the same in all shards: a row does not depend on the number of shards. */
    const tdm_table_options options = {
        .name = state->name,
        .seed = group->seed,
        .width = group->width,
        .optim = group->optim,
        .init = group->init_scale > 0 ? TDM_TABLE_INIT_UNIFORM : TDM_TABLE_INIT_ZERO,
        .init_scale = group->init_scale,
        .weight_decay = group->weight_decay,
        .l1 = group->l1,
        .l2 = group->l2,
        .limit_bytes = group->limit_bytes + group->limit_bytes / 4 + LIMIT_SLACK};
    if (tdm_table_create(&options, &state->table, err) == TDM_OK) return state;
    free(state);
    return NULL;
}

static void table_state_destroy(void *given)
{
    table_state *state = given;
    tdm_table_destroy(state->table);
    free(state);
}

static tdm_status check_space(const table_state *state, const tdm__server_op_view *op,
                              tdm_error *err)
{
    const tdm_table_options *options = tdm_table_options_of(state->table);
    uint64_t rows = tdm_table_stats_of(state->table).row_count, more = 0;
    if (tdm_table_predict(options, rows + op->head.count, 0) <= state->limit_bytes) return TDM_OK;
    for (uint32_t i = 0; i < op->head.count; i++) more += !tdm_table_has(state->table, op->keys[i]);
    uint64_t bytes = tdm_table_predict(options, rows + more, 0);
    char has[32], limit[32];
    if (more == 0 || bytes <= state->limit_bytes) return TDM_OK;
    return tdm_fail(
        err, TDM_ERR_NO_SPACE,
        "shard %u is full: with %llu new rows it would have %s, more than its limit of %s; "
        "raise the limit of the group (--limit), or use more shards and servers",
        state->shard, (unsigned long long)more, tdm_text_bytes(bytes, has),
        tdm_text_bytes(state->limit_bytes, limit));
}

static tdm_status table_state_check(void *given, const tdm__server_op_view *op, tdm_error *err)
{
    const table_state *state = given;
    const tdm_table_options *options = tdm_table_options_of(state->table);
    bool is_ftrl = options->optim == TDM_TABLE_OPTIM_FTRL;
    size_t width = (size_t)options->width, numbers = op->head.count * width;
    if (!(op->head.lr >= 0) || (is_ftrl && !(op->head.lr > 0)))
        return tdm_fail(err, TDM_ERR_INVALID, "shard %u: lr is %g; it must be finite and %s",
                        state->shard, op->head.lr,
                        is_ftrl ? "greater than 0 for FTRL" : "at least 0");
    /* A sum is finite only if all numbers are, or if it overflows: then they are looked at. */
    float sum = 0;
    for (size_t i = 0; i < numbers; i++) sum += op->grads[i] * 0.0f;
    for (size_t i = 0; !isfinite(sum) && i < numbers; i++)
        if (!isfinite(op->grads[i]))
            return tdm_fail(err, TDM_ERR_DIVERGED,
                            "shard %u: the gradient of key %llu is not finite; nothing was applied",
                            state->shard, (unsigned long long)op->keys[i / width]);
    return check_space(state, op, err);
}

static tdm_status table_state_apply(void *given, const tdm__server_op_view *op, uint64_t version,
                                    tdm_error *err)
{
    const table_state *state = given;
    const tdm_table_step step = {.lr = op->head.lr, .step = (uint32_t)version};
    return tdm_table_push(state->table, &step, op->keys, op->grads, op->head.count, err);
}

static tdm_status table_state_pull(void *given, const uint64_t *keys, uint32_t count, float *out)
{
    const table_state *state = given;
    tdm_table_pull(state->table, keys, count, out);
    return TDM_OK;
}

/* ---- copies ----------------------------------------------------------------------------------------- */

/* A part is the number of its rows, then the arrays of tdm_table_rows, one after the other. */
static size_t part_bytes(const tdm_table_options *options, uint64_t count)
{
    size_t states = (size_t)tdm_table_state_count(options->optim);
    return sizeof(uint64_t) +
           (size_t)count *
               (sizeof(uint64_t) + (1 + states) * (size_t)options->width * sizeof(float) +
                2 * sizeof(uint32_t));
}

static tdm_table_rows part_rows(uint8_t *bytes, const tdm_table_options *options, uint64_t count)
{
    size_t numbers = (size_t)count * (size_t)options->width;
    size_t states = (size_t)tdm_table_state_count(options->optim);
    tdm_table_rows rows = {.keys = (uint64_t *)(void *)(bytes + sizeof(uint64_t))};
    rows.params = (float *)(void *)(rows.keys + count);
    rows.states = rows.params + numbers;
    rows.updates = (uint32_t *)(void *)(rows.states + states * numbers);
    rows.last_steps = rows.updates + count;
    if (states == 0) rows.states = NULL;
    return rows;
}

static tdm_status save_parts(const tdm_table_order *order, const tdm_table_options *options,
                             uint64_t row_count, tdm__blob **parts, size_t part_count,
                             tdm_error *err)
{
    uint64_t each = (row_count + part_count - 1) / part_count, first = 0;
    for (size_t i = 0; i < part_count; i++, first += each) {
        uint64_t count = first < row_count ? row_count - first : 0;
        if (count > each) count = each;
        size_t bytes = part_bytes(options, count);
        parts[i] = malloc(sizeof(**parts) + bytes);
        if (!parts[i]) return tdm_fail_oom(err, "for the copy of a shard");
        parts[i]->users = 1;
        parts[i]->bytes = bytes;
        memcpy(parts[i]->data, &count, sizeof(count));
        tdm_table_rows rows = part_rows(parts[i]->data, options, count);
        if (count > 0) tdm_table_export(order, first, count, &rows);
    }
    return TDM_OK;
}

static tdm_status table_state_save(void *given, tdm__blob ***out, size_t *out_count, tdm_error *err)
{
    const table_state *state = given;
    const tdm_table_options *options = tdm_table_options_of(state->table);
    uint64_t row_count = tdm_table_stats_of(state->table).row_count;
    size_t part_count = part_bytes(options, row_count) / TDM__SERVER_COPY_BYTES + 1;
    tdm_table_order *order = NULL;
    tdm__blob **parts = calloc(part_count, sizeof(tdm__blob *));
    if (!parts) return tdm_fail_oom(err, "for the copy of a shard");
    tdm_status status = tdm_table_order_create(state->table, &order, err);
    if (status == TDM_OK) status = save_parts(order, options, row_count, parts, part_count, err);
    tdm_table_order_destroy(order);
    if (status == TDM_OK) {
        *out = parts;
        *out_count = part_count;
        return TDM_OK;
    }
    for (size_t i = 0; i < part_count; i++) tdm__blob_release(parts[i]);
    free(parts);
    return status;
}

static tdm_status table_state_load(void *given, const uint8_t *bytes, size_t count, tdm_error *err)
{
    const table_state *state = given;
    const tdm_table_options *options = tdm_table_options_of(state->table);
    uint64_t row_count = 0;
    if (count >= sizeof(row_count)) memcpy(&row_count, bytes, sizeof(row_count));
    if (count < sizeof(row_count) || row_count > TDM__SERVER_MAX_OP ||
        count != part_bytes(options, row_count))
        return tdm_fail(err, TDM_ERR_FORMAT, "a copy of shard %u is invalid", state->shard);
    if (row_count == 0) return TDM_OK;
    uint8_t *copy = malloc(count); /* aligned */
    if (!copy) return tdm_fail_oom(err, "for the copy of a shard");
    memcpy(copy, bytes, count);
    const tdm_table_rows rows = part_rows(copy, options, row_count);
    tdm_status status = tdm_table_import(state->table, &rows, row_count, err);
    free(copy);
    return status;
}

const tdm__server_state_ops tdm__server_table_state = {.create = table_state_create,
                                                       .destroy = table_state_destroy,
                                                       .check = table_state_check,
                                                       .apply = table_state_apply,
                                                       .pull = table_state_pull,
                                                       .save = table_state_save,
                                                       .load = table_state_load};
