/*
 * layers.h: how the two files of the model layers share their work: layers.c walks the list, and
 * layer_kinds.c knows what each kind of layer computes.
 */
#ifndef TANDEM_NN_MODELS_LAYERS_H
#define TANDEM_NN_MODELS_LAYERS_H

#include "nn/internal.h"

/* What all layers of one model have in common. */
typedef struct tdm__stack {
    tdm_graph *graph;
    const tdm_model_options *options;
    bool tokens;
    int64_t class_count; /* of tokens: the vocabulary */
    tdm_value table;     /* of a tied embedding; none otherwise */
} tdm__stack;

/* Where a layer stands, and what comes behind it. */
typedef struct tdm__site {
    const char *name;          /* "3.residual.0.conv": its parameters begin with it */
    const char *place;         /* "layers[3].residual[0] conv": for messages */
    tdm_activation activation; /* of the next layer, taken over from it */
    bool before_rectifier;     /* relu, gelu or silu is the next that matters */
} tdm__site;

/* Adds one layer other than residual and repeat. Mistakes stay in the graph, and give none. */
tdm_value tdm__layer_add(tdm__stack *stack, const tdm__site *site, const tdm_job_layer *layer,
                         tdm_value x);
/* What a kind of layer is as an activation; none for all others. */
tdm_activation tdm__layer_activation(int kind);
/* A linear map, without bias, from x to the shape that `like` has: NAME.weight. With `norm` a batch
 * norm follows: NAME.norm.weight and so on. */
tdm_value tdm__layer_project(tdm__stack *stack, const tdm__site *site, bool norm, tdm_value x,
                             tdm_value like);
/* Remembers a mistake, with the place in front. Returns none. */
tdm_value tdm__layer_refuse(const tdm__stack *stack, const tdm__site *site, const char *fmt, ...)
    TDM_PRINTF(3, 4);
/* The shape of one sample of x, as "[8, 8, 3]". */
const char *tdm__sample_text(const tdm__stack *stack, tdm_value x, char text[128]);

#endif
