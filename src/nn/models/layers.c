/*
 * layers.c: the model that a job's list of layers describes.
 *
 * A sample passes through the layers of the list in order. Its initial shape is that of the data:
 * [F] numbers, [T, C] a sequence, [H, W, C] an image; two dimensions are an image of one channel if
 * the list has a convolution of images, and a sequence otherwise. If the list begins with an
 * embedding, it is a token model. A last linear layer, `head`, computes the logits, unless a layer
 * of the list has the size `classes`, or the embedding is tied: then its table is used.
 *
 * Parameters are named after the positions of their layers, counted from 0: 3.conv.weight,
 * 4.residual.0.linear.bias, and for the second round of a repetition 5.repeat.1.0.linear.weight. A
 * layer with weights includes the activation that follows it, as in the named models, so that a
 * list that describes one of these computes the same bits. Blocks for recomputation are the layers
 * with weights and the residual ones of the outermost list, and each round of a repetition.
 */
#include "nn/models/layers.h"
#include "job/job.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 96, PLACE_BYTES = 96 };

/* ---- searching lists -------------------------------------------------------------------------- */

static bool has_kind(const tdm_job_layer_list *list, int kind)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->items[i].kind == kind || has_kind(&list->items[i].layers, kind)) return true;
    return false;
}

static bool has_weights(const tdm_job_layer *layer)
{
    return layer->kind == TDM_JOB_LAYER_LINEAR || layer->kind == TDM_JOB_LAYER_CONV ||
           layer->kind == TDM_JOB_LAYER_CONV1D;
}

/* Whether a layer has the size `classes`. */
static bool has_classes(const tdm_job_layer_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        const tdm_job_layer *layer = &list->items[i];
        if (has_weights(layer) && layer->size == TDM_JOB_SIZE_CLASSES) return true;
        if (has_classes(&layer->layers)) return true;
    }
    return false;
}

/* Whether the output of layer `index` is rectified, with any norm or pool in between. */
static bool is_rectified(const tdm_job_layer_list *list, size_t index)
{
    for (size_t i = index + 1; i < list->count; i++) {
        switch ((tdm_job_layer_kind)list->items[i].kind) {
        case TDM_JOB_LAYER_RELU:
        case TDM_JOB_LAYER_GELU:
        case TDM_JOB_LAYER_GELU_TANH:
        case TDM_JOB_LAYER_SILU: return true;
        case TDM_JOB_LAYER_BATCH_NORM:
        case TDM_JOB_LAYER_LAYER_NORM:
        case TDM_JOB_LAYER_RMS_NORM:
        case TDM_JOB_LAYER_MAX_POOL:
        case TDM_JOB_LAYER_AVERAGE_POOL:
        case TDM_JOB_LAYER_DROPOUT: continue;
        default: return false;
        }
    }
    return false;
}

/* The activation of the next layer that layer `index` includes, or none. */
static tdm_activation taken_over(const tdm_job_layer_list *list, size_t index)
{
    if (!has_weights(&list->items[index]) || index + 1 >= list->count) return TDM_ACTIVATION_NONE;
    return tdm__layer_activation(list->items[index + 1].kind);
}

/* ---- building the layers ---------------------------------------------------------------------- */

/* Where a list may mark blocks: nowhere within a block. */
typedef enum marks { MARK_NOTHING, MARK_ROUNDS, MARK_ALL } marks;

/* The prefix of the names and positions of a list's layers: "3.residual." and
 * "layers[3].residual". */
typedef struct address {
    char name[NAME_BYTES];
    char place[PLACE_BYTES];
    marks marks;
} address;

static tdm_value layers_walk(tdm__stack *stack, const tdm_job_layer_list *list, const address *at,
                             tdm_value x);

static tdm_value layers_residual(tdm__stack *stack, const tdm__site *site,
                                 const tdm_job_layer *layer, const address *inside, tdm_value x)
{
    tdm_value y = layers_walk(stack, &layer->layers, inside, x);
    if (!y.id) return y;
    tdm_shape before = tdm_graph_shape(stack->graph, x), after = tdm_graph_shape(stack->graph, y);
    bool is_same = tdm_shape_equal(&before, &after);
    char a[128], b[128];
    if (layer->shortcut == TDM_JOB_SHORTCUT_IDENTITY && !is_same)
        return tdm__layer_refuse(stack, site,
                                 "the branch returns %s for an input of %s, so the two cannot be "
                                 "added; set shortcut to auto or projection",
                                 tdm__sample_text(stack, y, b), tdm__sample_text(stack, x, a));
    if (layer->shortcut == TDM_JOB_SHORTCUT_PROJECTION || !is_same)
        x = tdm__layer_project(stack, site, has_kind(&layer->layers, TDM_JOB_LAYER_BATCH_NORM), x,
                               y);
    tdm_graph_scope(stack->graph, site->name);
    return tdm_graph_add(stack->graph, y, x);
}

static tdm_value layers_repeat(tdm__stack *stack, const tdm_job_layer *layer, const address *inside,
                               tdm_value x)
{
    for (int64_t round = 0; round < layer->times && x.id; round++) {
        address at = *inside;
        size_t used = strlen(at.name);
        snprintf(at.name + used, sizeof(at.name) - used, "%lld.", (long long)round);
        if (at.marks != MARK_NOTHING) tdm_graph_block(stack->graph);
        x = layers_walk(stack, &layer->layers, &at, x);
    }
    return x;
}

static tdm_value add_layer(tdm__stack *stack, const tdm_job_layer_list *list, size_t index,
                           const address *at, tdm_value x)
{
    const tdm_job_layer *layer = &list->items[index];
    const char *kind = tdm_job_layer_name(layer->kind);
    char name[NAME_BYTES + 48], place[PLACE_BYTES + 48];
    snprintf(name, sizeof(name), "%s%zu.%s", at->name, index, kind);
    snprintf(place, sizeof(place), "%s[%zu] %s", at->place, index, kind);
    tdm__site site = {.name = name, .place = place};
    bool is_repeat = layer->kind == TDM_JOB_LAYER_REPEAT;
    if (at->marks == MARK_ALL && !is_repeat && (has_weights(layer) || layer->layers.items))
        tdm_graph_block(stack->graph);
    if (layer->layers.items) {
        address inside = {.marks = is_repeat && at->marks ? MARK_ROUNDS : MARK_NOTHING};
        snprintf(inside.name, sizeof(inside.name), "%.*s%zu.%s.", NAME_BYTES - 34, at->name, index,
                 kind);
        snprintf(inside.place, sizeof(inside.place), "%.*s[%zu].%s", PLACE_BYTES - 34, at->place,
                 index, kind);
        return is_repeat ? layers_repeat(stack, layer, &inside, x)
                         : layers_residual(stack, &site, layer, &inside, x);
    }
    site.before_rectifier = is_rectified(list, index);
    site.activation = taken_over(list, index);
    tdm_graph_scope(stack->graph, name);
    return tdm__layer_add(stack, &site, layer, x);
}

static tdm_value layers_walk(tdm__stack *stack, const tdm_job_layer_list *list, const address *at,
                             tdm_value x)
{
    for (size_t i = 0; i < list->count && x.id; i++) {
        bool is_done = i > 0 && taken_over(list, i - 1) != TDM_ACTIVATION_NONE;
        if (!is_done) x = add_layer(stack, list, i, at, x);
    }
    return x;
}

/* ---- first and last layer --------------------------------------------------------------------- */

/* Features [B, F] in the shape that a sample has. */
static tdm_value as_sample(const tdm__stack *stack, tdm_value x)
{
    const tdm_model_options *o = stack->options;
    const tdm_shape *s = &o->sample_shape;
    if (s->rank == 3)
        return tdm_graph_reshape(stack->graph, x,
                                 tdm_shape_4(o->batch, s->dim[0], s->dim[1], s->dim[2]));
    if (s->rank != 2) return x;
    return tdm_graph_reshape(stack->graph, x,
                             has_kind(&o->job->layers, TDM_JOB_LAYER_CONV)
                                 ? tdm_shape_4(o->batch, s->dim[0], s->dim[1], 1)
                                 : tdm_shape_3(o->batch, s->dim[0], s->dim[1]));
}

/* The last layer, unless the list contains it. */
static tdm_value layers_head(tdm__stack *stack, tdm_value x)
{
    tdm_graph_scope(stack->graph, "head");
    tdm_graph_block(stack->graph);
    tdm_shape shape = tdm_graph_shape(stack->graph, x);
    int64_t in = shape.dim[shape.rank - 1], out = stack->class_count;
    if (!stack->table.id) {
        tdm_init init = {.kind = TDM_INIT_UNIFORM, .scale = sqrt(6.0 / (double)(in + out))};
        return tdm__layer_linear(stack->graph, "head", x, out, init, TDM_ACTIVATION_NONE);
    }
    int64_t width = tdm_graph_shape(stack->graph, stack->table).dim[1];
    if (in != width)
        return tdm_graph_refuse(
            stack->graph,
            "layers: the embedding is tied and has %lld numbers per token, but the list ends with "
            "%lld; add a linear layer with the size of the embedding",
            (long long)width, (long long)in);
    return tdm_graph_linear(stack->graph, x, stack->table, TDM_VALUE_NONE, TDM_ACTIVATION_NONE);
}

static tdm_value layers_finish(tdm__stack *stack, tdm_value x)
{
    char text[128];
    bool has_head = has_classes(&stack->options->job->layers);
    tdm_shape shape = tdm_graph_shape(stack->graph, x);
    if (has_head && stack->table.id)
        return tdm_graph_refuse(
            stack->graph, "layers: the embedding is tied, so its table computes the logits; no "
                          "other layer can have the size classes");
    if (shape.rank != (stack->tokens ? 3 : 2))
        return tdm_graph_refuse(
            stack->graph,
            "layers: the list ends with shape %s for each sample instead of one row of numbers; "
            "end it with global_pool or flatten",
            tdm__sample_text(stack, x, text));
    if (has_head && shape.dim[shape.rank - 1] != stack->class_count)
        return tdm_graph_refuse(stack->graph,
                                "layers: a layer has the size classes, so the list must end with "
                                "one number for each of the %lld classes, but it ends with %s",
                                (long long)stack->class_count, tdm__sample_text(stack, x, text));
    return has_head ? x : layers_head(stack, x);
}

static tdm_value layers_build(tdm_graph *graph, const tdm_model_options *options, tdm_value x)
{
    tdm__stack stack = {.graph = graph,
                        .options = options,
                        .tokens = tdm_job_takes_tokens(options->job),
                        .class_count = options->class_count};
    if (stack.tokens) {
        if (!tdm__tokens_fit(graph, options, "layers")) return TDM_VALUE_NONE;
        stack.class_count = tdm__vocabulary_of(options);
    } else {
        tdm_graph_scope(graph, "input");
        x = as_sample(&stack, x);
    }
    x = layers_walk(&stack, &options->job->layers, &(address){.place = "layers", .marks = MARK_ALL},
                    x);
    if (x.id) x = layers_finish(&stack, x);
    tdm_graph_scope(graph, NULL);
    return x;
}

const tdm_model_ops tdm__model_layers = {.name = "layers", .build = layers_build};
