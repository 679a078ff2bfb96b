/*
 * layers.h: shared by the two files of the layer-list model: layers.c processes the list, and
 * layer_kinds.c implements each kind of layer.
 */
#ifndef TANDEM_NN_MODELS_LAYERS_H
#define TANDEM_NN_MODELS_LAYERS_H

#include "nn/internal.h"

/* State shared by all layers of one model. */
typedef struct tdm__stack {
    tdm_graph *graph;
    const tdm_model_options *options;
    bool tokens;
    int64_t class_count; /* for tokens: the vocabulary size */
    tdm_value table;     /* of a tied embedding; none otherwise */
} tdm__stack;

/* The position of a layer, and what follows it. */
typedef struct tdm__site {
    const char *name;          /* "3.residual.0.conv": prefix of its parameters */
    const char *place;         /* "layers[3].residual[0] conv": for messages */
    tdm_activation activation; /* of the next layer, applied by this one */
    bool before_rectifier;     /* the next activation is relu, gelu or silu */
} tdm__site;

/* Adds one layer other than residual and repeat. Errors are stored in the graph; the result is then
 * none. */
tdm_value tdm__layer_add(tdm__stack *stack, const tdm__site *site, const tdm_job_layer *layer,
                         tdm_value x);
/* The activation of a kind of layer; none for all others. */
tdm_activation tdm__layer_activation(int kind);
/* A linear map, without bias, from x to the shape of `like`: NAME.weight. With `norm` a batch norm
 * follows: NAME.norm.weight and so on. */
tdm_value tdm__layer_project(tdm__stack *stack, const tdm__site *site, bool norm, tdm_value x,
                             tdm_value like);
/* Stores an error, prefixed by the layer's position. Returns none. */
tdm_value tdm__layer_refuse(const tdm__stack *stack, const tdm__site *site, const char *fmt, ...)
    TDM_PRINTF(3, 4);
/* The shape of one sample of x, as "[8, 8, 3]". */
const char *tdm__sample_text(const tdm__stack *stack, tdm_value x, char text[128]);

#endif
