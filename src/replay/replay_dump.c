/*
 * replay_dump.c: selects tensors of a replayed step by name and writes them to a file.
 *
 * A name is that of a tensor of the state ("fc1.weight", "optim.m.fc1.weight"), of a gradient
 * ("grad/fc1.weight", "lane.3/grad/fc1.weight") or of the output of an op of a lane ("lane.3/fc2.matmul").
 * Names are resolved before any work is done, so a wrong name fails immediately. Values are copied as soon
 * as they are computed, because a plan reuses its memory.
 */
#include "base/base.h"
#include "nn/nn.h"
#include "replay/replay.h"

#include <stdlib.h>
#include <string.h>

#define GRAD "grad/"
#define LANE "lane."
enum { MAX_NEAR = 5 };

/* ---- names ----------------------------------------------------------------------------------- */

/* Where names are looked up. */
typedef struct catalogue {
    tdm_arena *arena;
    const tdm__state *state;
    const tdm_graph *lane; /* of a lane of the step */
    const char **names;    /* all valid names; listed on demand */
    size_t count;
} catalogue;

static const char *name_at(size_t index, const void *user)
{
    return ((const catalogue *)user)->names[index];
}

static void catalogue_add(catalogue *c, const char *prefix, const char *name)
{
    const char *full = *prefix ? tdm_arena_printf(c->arena, "%s%s", prefix, name) : name;
    if (full) c->names[c->count++] = full;
}

/* Lists all names; those of lanes with the prefix "lane.L/". */
static bool catalogue_list(catalogue *c, const char *prefix)
{
    size_t params = tdm_graph_param_count(c->state->graph), ops = tdm_graph_node_count(c->lane);
    char *grad = tdm_arena_printf(c->arena, "%s" GRAD, prefix);
    c->count = 0;
    c->names = tdm_arena_array(c->arena, c->state->tensor_count + 2 * params + ops + 1,
                               sizeof(*c->names));
    if (!c->names || !grad) return false;
    for (size_t i = 0; i < c->state->tensor_count; i++)
        catalogue_add(c, "", c->state->tensors[i].name);
    for (size_t i = 0; i < params; i++) {
        const tdm_param_info *p = tdm_graph_param_at(c->state->graph, i);
        if (!p->trained) continue;
        catalogue_add(c, GRAD, p->name);
        if (*prefix) catalogue_add(c, grad, p->name);
    }
    for (size_t i = 0; i < ops; i++)
        catalogue_add(c, *prefix ? prefix : LANE "0/", tdm_graph_node_at(c->lane, i).name);
    return true;
}

/* The part after the last slash, up to its first dot: "fc1" of "lane.0/grad/fc1.weight". */
static void name_stem(const char *name, char out[64])
{
    const char *slash = strrchr(name, '/');
    const char *from = slash ? slash + 1 : name;
    size_t length = strcspn(from, ".:");
    if (length > 63) length = 63;
    memcpy(out, from, length);
    out[length] = '\0';
}

/* Appends the nearest name, then names that begin with this one, then some of the same layer. */
static void catalogue_add_similar(const catalogue *c, const char *name, tdm_str *out)
{
    char stem[64];
    int count = 0;
    name_stem(name, stem);
    const char *nearest = tdm_text_nearest(name, c->count, name_at, c);
    if (nearest) tdm_str_addf(out, "; did you mean '%s'?", nearest);
    for (int pass = 0; pass < 2 && *stem; pass++)
        for (size_t i = 0; i < c->count && count < MAX_NEAR; i++) {
            bool longer = strncmp(c->names[i], name, strlen(name)) == 0;
            if (c->names[i] == nearest || longer != (pass == 0)) continue;
            if (!longer && !strstr(c->names[i], stem)) continue;
            const char *begin = nearest ? " Similar names:" : "; similar names:";
            tdm_str_addf(out, "%s '%s'", count++ == 0 ? begin : ",", c->names[i]);
        }
}

static tdm_status fail_unknown(catalogue *c, const char *name, const char *prefix, tdm_error *err)
{
    tdm_str near = TDM_STR_INIT;
    if (catalogue_list(c, prefix)) catalogue_add_similar(c, name, &near);
    tdm_fail(
        err, TDM_ERR_NOT_FOUND, "replay: unknown tensor '%.200s'%s%s", name, tdm_str_text(&near),
        near.length > 0 ? ""
                        : "; valid are parameters (NAME), gradients (grad/NAME, lane.L/grad/NAME) "
                          "and ops (lane.L/OP); 'tandem inspect' lists the names");
    tdm_str_release(&near);
    return TDM_ERR_NOT_FOUND;
}

/* ---- resolving names --------------------------------------------------------------------------- */

static bool find_state(const catalogue *c, const char *name, tdm__dump *out)
{
    for (size_t i = 0; i < c->state->tensor_count; i++) {
        if (strcmp(c->state->tensors[i].name, name) != 0) continue;
        out->kind = TDM__DUMP_STATE;
        out->index = i;
        return true;
    }
    return false;
}

static bool find_grad(const catalogue *c, const char *name, tdm__dump *out)
{
    for (size_t i = 0; i < tdm_graph_param_count(c->state->graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(c->state->graph, i);
        if (!p->trained || strcmp(p->name, name) != 0) continue;
        out->kind = TDM__DUMP_GRAD;
        out->index = i;
        return true;
    }
    return false;
}

static bool find_op(const catalogue *c, const char *name, tdm__dump *out)
{
    const char *colon = strrchr(name, ':');
    size_t length = strlen(name);
    if (colon && colon[1] >= '0' && colon[1] <= '9' && colon[2] == '\0') {
        length = (size_t)(colon - name);
        out->output = colon[1] - '0';
    }
    for (size_t i = 0; i < tdm_graph_node_count(c->lane); i++) {
        const char *op = tdm_graph_node_at(c->lane, i).name;
        if (strlen(op) != length || strncmp(op, name, length) != 0) continue;
        out->kind = TDM__DUMP_OP;
        out->op = tdm_arena_strdup(c->arena,
                                   op); /* the graph is destroyed before the dump is written */
        return out->op != NULL;
    }
    return false;
}

/* Parses "lane.L/" at the beginning of a name: returns its length and sets the lane. 0: none. */
static size_t lane_prefix(const char *name, int64_t *lane)
{
    if (strncmp(name, LANE, strlen(LANE)) != 0) return 0;
    const char *digits = name + strlen(LANE);
    size_t count = strspn(digits, "0123456789");
    if (count == 0 || count > 9 || digits[count] != '/') return 0;
    *lane = strtoll(digits, NULL, 10);
    return strlen(LANE) + count + 1;
}

static tdm_status catalogue_look_up(catalogue *c, const char *name, int64_t lane_count,
                                    int64_t batch, tdm__dump *out, tdm_error *err)
{
    int64_t lane = -1;
    size_t skip = lane_prefix(name, &lane);
    const char *rest = name + skip;
    *out = (tdm__dump){.named = {.name = name}, .lane = lane};
    if (lane >= lane_count)
        return tdm_fail(err, TDM_ERR_RANGE,
                        "replay: '%.200s': the job has %lld lanes, from 0 to %lld", name,
                        (long long)lane_count, (long long)lane_count - 1);
    if (lane >= 0 && tdm_lane_slice(batch, lane_count, lane).count == 0)
        return tdm_fail(err, TDM_ERR_RANGE, "replay: '%.200s': this lane has no rows in this step",
                        name);
    if (lane < 0 && find_state(c, rest, out)) return TDM_OK;
    if (strncmp(rest, GRAD, strlen(GRAD)) == 0 && find_grad(c, rest + strlen(GRAD), out))
        return TDM_OK;
    if (lane >= 0 && find_op(c, rest, out)) return TDM_OK;
    char *prefix = tdm_arena_strndup(c->arena, name, skip);
    return fail_unknown(c, name, prefix ? prefix : "", err);
}

static tdm_status catalogue_look_up_all(catalogue *c, const tdm_replay_options *options,
                                        int64_t batch, int64_t lane_count, tdm__dumps *out,
                                        tdm_error *err)
{
    for (size_t i = 0; i < options->dump_count; i++) {
        const char *name = tdm_arena_strdup(c->arena, options->dumps[i]);
        if (!name) return tdm_fail_oom(err, "to replay a step");
        TDM_TRY(catalogue_look_up(c, name, lane_count, batch, &out->items[i], err));
    }
    out->count = options->dump_count;
    return TDM_OK;
}

tdm_status tdm__dumps_init(const tdm_replay_options *options, const tdm__train_schedule *schedule,
                           const tdm__state *state, const tdm_position *at, tdm_arena *arena,
                           tdm__dumps *out, tdm_error *err)
{
    *out = (tdm__dumps){.arena = arena};
    if (options->dump_count == 0) return TDM_OK;
    if (!options->dump_path)
        return tdm_fail(err, TDM_ERR_INVALID, "replay: no file is given for the dumped tensors");
    out->items = tdm_arena_array(arena, options->dump_count, sizeof(*out->items));
    if (!out->items) return tdm_fail_oom(err, "to replay a step");
    int64_t batch = tdm__train_schedule_batch(schedule, at), lanes = tdm_lanes_of(schedule->job);
    tdm_model_options model = tdm_model_of_lane(&schedule->model,
                                                tdm_lane_slice(batch, lanes, 0).count, batch);
    tdm_graph *graph = NULL;
    TDM_TRY(tdm_model_build(&model, &graph, err));
    catalogue c = {.arena = arena, .state = state, .lane = graph};
    tdm_status status = catalogue_look_up_all(&c, options, batch, lanes, out, err);
    tdm_graph_destroy(graph);
    return status;
}

/* ---- copying values ---------------------------------------------------------------------------- */

static void dump_copy(tdm__dumps *dumps, tdm__dump *dump, tdm_dtype dtype, tdm_shape shape,
                      const void *data)
{
    tdm_tensor *to = &dump->named.tensor;
    *to = (tdm_tensor){.dtype = dtype, .shape = shape};
    size_t bytes = tdm_tensor_bytes(to);
    to->data = tdm_arena_alloc(dumps->arena, bytes + 1, 64);
    if (to->data)
        memcpy(to->data, data, bytes);
    else
        dumps->failed = true;
}

void tdm__dumps_take_state(tdm__dumps *dumps, const tdm__state *state)
{
    for (size_t i = 0; i < dumps->count; i++) {
        tdm__dump *dump = &dumps->items[i];
        if (dump->kind != TDM__DUMP_STATE) continue;
        const tdm__state_item *item = &state->items[dump->index];
        const tdm_tensor *tensor = &item->named.tensor;
        const void *data = tensor->data;
        if (item->block != TDM__BLOCK_NONE)
            data = tdm_params_block(state->store, item->block) +
                   tdm_graph_param_at(state->graph, item->param)->offset;
        dump_copy(dumps, dump, tensor->dtype, tensor->shape, data);
    }
}

void tdm__dumps_take_grads(tdm__dumps *dumps, const tdm__state *state, int64_t lane,
                           const float *grads)
{
    for (size_t i = 0; i < dumps->count; i++) {
        tdm__dump *dump = &dumps->items[i];
        if (dump->kind != TDM__DUMP_GRAD || dump->lane != lane) continue;
        const tdm_param_info *p = tdm_graph_param_at(state->graph, dump->index);
        dump_copy(dumps, dump, TDM_DTYPE_F32, p->shape, grads + p->offset);
    }
}

void tdm__dumps_take_op(tdm__dumps *dumps, int64_t lane, const char *op, const tdm_tensor *outputs,
                        int output_count)
{
    for (size_t i = 0; i < dumps->count; i++) {
        tdm__dump *dump = &dumps->items[i];
        if (dump->kind != TDM__DUMP_OP || dump->lane != lane || dump->named.tensor.data) continue;
        if (dump->output >= output_count || strcmp(dump->op, op) != 0) continue;
        const tdm_tensor *from = &outputs[dump->output];
        if (from->dtype != TDM_DTYPE_NONE)
            dump_copy(dumps, dump, from->dtype, from->shape, from->data);
    }
}

bool tdm__dumps_want_ops(const tdm__dumps *dumps)
{
    for (size_t i = 0; i < dumps->count; i++)
        if (dumps->items[i].kind == TDM__DUMP_OP) return true;
    return false;
}

/* ---- writing the file -------------------------------------------------------------------------- */

tdm_status tdm__dumps_write(const tdm__dumps *dumps, const tdm_replay_options *options,
                            tdm_error *err)
{
    if (dumps->count == 0) return TDM_OK;
    if (dumps->failed) return tdm_fail_oom(err, "for the dumped tensors");
    tdm_named_tensor *tensors = tdm_arena_array(dumps->arena, dumps->count, sizeof(*tensors));
    char *step = tdm_arena_printf(dumps->arena, "%llu", (unsigned long long)options->step);
    if (!tensors || !step) return tdm_fail_oom(err, "to replay a step");
    for (size_t i = 0; i < dumps->count; i++) {
        tensors[i] = dumps->items[i].named;
        if (tensors[i].tensor.data) continue;
        return tdm_fail(err, TDM_ERR_NOT_FOUND,
                        "replay: '%.200s' was not computed: the plan fused it into another op, "
                        "or the op has fewer outputs; 'tandem inspect' shows the executed ops",
                        tensors[i].name);
    }
    const tdm_named_text texts[] = {{"run", options->run}, {"step", step}};
    return tdm_safetensors_write(options->dump_path, tensors, dumps->count, texts, 2, err);
}
