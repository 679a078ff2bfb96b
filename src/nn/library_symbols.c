/*
 * library_symbols.c: symbols for model libraries that were compiled by older headers.
 *
 * These functions are inline in the headers now. A library that was compiled before calls them as functions of
 * libtandem.so, and a run names its library by its hash, so it cannot be compiled again for that run. They are not
 * declared in any header: new code cannot use them. Each does what the inline function of its name does, without
 * calling it: where the compiler does not inline it, both would have the same symbol.
 */
#include "base/base.h"

#include <tandem/graph.h>
#include <tandem/tensor.h>

#include <string.h>

/* SYMBOL(TYPE, NAME, (PARAMETERS), EXPRESSION): the symbol NAME, under another name in C. */
#define SYMBOL(type, name, parameters, expression)                                                 \
    TDM_API type tdm__old_##name parameters __asm__(#name);                                        \
    type tdm__old_##name parameters                                                                \
    {                                                                                              \
        return expression;                                                                         \
    }
#define ACTIVATION(name, kind)                                                                     \
    SYMBOL(tdm_value, name, (tdm_graph * graph, tdm_value x), tdm_graph_activation(graph, x, kind))
#define POOL(name, kind)                                                                           \
    SYMBOL(tdm_value, name, (tdm_graph * graph, tdm_value x, const tdm_pool_options *options),     \
           tdm_graph_pool(graph, x, kind, options))
#define LOSS(name, kind)                                                                           \
    SYMBOL(tdm_value, name, (tdm_graph * graph, tdm_value x, tdm_value target, double scale),      \
           tdm_graph_element_loss(graph, kind, x, target, 0, scale))
#define SHAPE(rank, ...)                                                                           \
    (tdm_shape)                                                                                    \
    {                                                                                              \
        rank,                                                                                      \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

/* clang-format off */
SYMBOL(tdm_shape, tdm_shape_0, (void), SHAPE(0, 0))
SYMBOL(tdm_shape, tdm_shape_1, (int64_t a), SHAPE(1, a))
SYMBOL(tdm_shape, tdm_shape_2, (int64_t a, int64_t b), SHAPE(2, a, b))
SYMBOL(tdm_shape, tdm_shape_3, (int64_t a, int64_t b, int64_t c), SHAPE(3, a, b, c))
SYMBOL(tdm_shape, tdm_shape_4, (int64_t a, int64_t b, int64_t c, int64_t d), SHAPE(4, a, b, c, d))
SYMBOL(int64_t, tdm_tensor_elements, (const tdm_tensor *tensor), tdm_shape_elements(&tensor->shape))
SYMBOL(char *, tdm_arena_strdup, (tdm_arena *arena, const char *text), tdm_arena_strndup(arena, text, strlen(text)))
SYMBOL(void *, tdm_arena_array, (tdm_arena *arena, size_t count, size_t size),
       size != 0 && count > SIZE_MAX / size ? NULL : tdm_arena_alloc(arena, count * size, 0))

ACTIVATION(tdm_graph_relu, TDM_ACTIVATION_RELU)
ACTIVATION(tdm_graph_gelu, TDM_ACTIVATION_GELU)
ACTIVATION(tdm_graph_gelu_tanh, TDM_ACTIVATION_GELU_TANH)
ACTIVATION(tdm_graph_silu, TDM_ACTIVATION_SILU)
ACTIVATION(tdm_graph_tanh, TDM_ACTIVATION_TANH)
ACTIVATION(tdm_graph_sigmoid, TDM_ACTIVATION_SIGMOID)
POOL(tdm_graph_max_pool, TDM_POOL_MAX)
POOL(tdm_graph_average_pool, TDM_POOL_AVERAGE)
LOSS(tdm_graph_mse, TDM_LOSS_MSE)
LOSS(tdm_graph_l1, TDM_LOSS_L1)
LOSS(tdm_graph_bce_logits, TDM_LOSS_BCE_LOGITS)
LOSS(tdm_graph_kl, TDM_LOSS_KL)
SYMBOL(tdm_value, tdm_graph_huber,
       (tdm_graph *graph, tdm_value x, tdm_value target, double delta, double scale),
       tdm_graph_element_loss(graph, TDM_LOSS_HUBER, x, target, delta, scale))
SYMBOL(tdm_value, tdm_graph_cross_entropy,
       (tdm_graph *graph, tdm_value logits, tdm_value classes, double scale),
       tdm_graph_cross_entropy_with(graph, logits, classes, &(tdm_cross_entropy_options){scale, 0, false, 0}))
/* clang-format on */
