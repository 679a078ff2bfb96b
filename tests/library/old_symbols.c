/*
 * old_symbols.c: a model that calls the functions that are inline now, like a library compiled with older
 * headers. The headers define other functions with these names, so each is declared here under its symbol.
 */
#include <tandem/library.h>

#include <stdint.h>

#define OLD(type, name, parameters) type old_##name parameters __asm__(#name)
OLD(tdm_shape, tdm_shape_0, (void));
OLD(tdm_shape, tdm_shape_1, (int64_t a));
OLD(tdm_shape, tdm_shape_2, (int64_t a, int64_t b));
OLD(tdm_shape, tdm_shape_3, (int64_t a, int64_t b, int64_t c));
OLD(tdm_shape, tdm_shape_4, (int64_t a, int64_t b, int64_t c, int64_t d));
OLD(int64_t, tdm_tensor_elements, (const tdm_tensor *tensor));
OLD(char *, tdm_arena_strdup, (tdm_arena * arena, const char *text));
OLD(void *, tdm_arena_array, (tdm_arena * arena, size_t count, size_t size));
OLD(tdm_value, tdm_graph_relu, (tdm_graph * graph, tdm_value x));
OLD(tdm_value, tdm_graph_gelu, (tdm_graph * graph, tdm_value x));
OLD(tdm_value, tdm_graph_gelu_tanh, (tdm_graph * graph, tdm_value x));
OLD(tdm_value, tdm_graph_silu, (tdm_graph * graph, tdm_value x));
OLD(tdm_value, tdm_graph_tanh, (tdm_graph * graph, tdm_value x));
OLD(tdm_value, tdm_graph_sigmoid, (tdm_graph * graph, tdm_value x));
OLD(tdm_value, tdm_graph_max_pool, (tdm_graph * graph, tdm_value x, const tdm_pool_options *o));
OLD(tdm_value, tdm_graph_average_pool, (tdm_graph * graph, tdm_value x, const tdm_pool_options *o));
OLD(tdm_value, tdm_graph_mse, (tdm_graph * graph, tdm_value x, tdm_value target, double scale));
OLD(tdm_value, tdm_graph_l1, (tdm_graph * graph, tdm_value x, tdm_value target, double scale));
OLD(tdm_value, tdm_graph_bce_logits,
    (tdm_graph * graph, tdm_value x, tdm_value target, double scale));
OLD(tdm_value, tdm_graph_kl, (tdm_graph * graph, tdm_value x, tdm_value target, double scale));
OLD(tdm_value, tdm_graph_huber,
    (tdm_graph * graph, tdm_value x, tdm_value target, double delta, double scale));
OLD(tdm_value, tdm_graph_cross_entropy,
    (tdm_graph * graph, tdm_value logits, tdm_value classes, double scale));

/* Whether the shapes, the tensor and the arena have the expected values. */
static bool helpers_work(void)
{
    tdm_tensor tensor = {.shape = old_tdm_shape_4(2, 3, 4, 5)};
    tdm_arena *arena = tdm_arena_create("test");
    const char *copy = arena ? old_tdm_arena_strdup(arena, "text") : NULL;
    bool works = copy && copy[0] == 't' && copy[4] == '\0' && old_tdm_arena_array(arena, 3, 8) &&
                 !old_tdm_arena_array(arena, SIZE_MAX, 8);
    tdm_arena_destroy(arena);
    return works && old_tdm_tensor_elements(&tensor) == 120 && old_tdm_shape_0().rank == 0 &&
           old_tdm_shape_3(7, 8, 9).dim[2] == 9;
}

static tdm_value add(tdm_graph *graph, tdm_value sum, tdm_value y)
{
    return tdm_graph_add(graph, sum, y);
}

/* The loader must find these as well; a classifier does not call them. */
static void *const unused[] = {
    (void *)old_tdm_graph_max_pool, (void *)old_tdm_graph_average_pool, (void *)old_tdm_graph_mse,
    (void *)old_tdm_graph_l1,       (void *)old_tdm_graph_bce_logits,   (void *)old_tdm_graph_kl,
    (void *)old_tdm_graph_huber,    (void *)old_tdm_graph_cross_entropy};

static tdm_value build(tdm_graph *graph, const tdm_model_options *options, tdm_value x)
{
    const tdm_init uniform = {TDM_INIT_UNIFORM, 0.1};
    int64_t in = tdm_graph_shape(graph, x).dim[1], out = options->class_count;
    for (size_t i = 0; i < sizeof(unused) / sizeof(unused[0]); i++)
        if (!unused[i]) return TDM_VALUE_NONE;
    if (!helpers_work()) return TDM_VALUE_NONE;
    tdm_value weight = tdm_graph_param(graph, "weight", old_tdm_shape_2(out, in), uniform);
    tdm_value bias = tdm_graph_param(graph, "bias", old_tdm_shape_1(out), uniform);
    tdm_value y = tdm_graph_linear(graph, x, weight, bias, TDM_ACTIVATION_NONE);
    tdm_value sum = old_tdm_graph_relu(graph, y);
    sum = add(graph, sum, old_tdm_graph_gelu(graph, y));
    sum = add(graph, sum, old_tdm_graph_gelu_tanh(graph, y));
    sum = add(graph, sum, old_tdm_graph_silu(graph, y));
    sum = add(graph, sum, old_tdm_graph_tanh(graph, y));
    return add(graph, sum, old_tdm_graph_sigmoid(graph, y));
}

static const tdm_library_option options[] = {
    {.name = "mistake", .type = TDM_LIBRARY_TYPE_TEXT, .fallback = "nothing"}};
static const tdm_model_library library = {.abi = TDM_LIBRARY_ABI,
                                          .name = "old_symbols",
                                          .build = build,
                                          .options = options,
                                          .option_count = 1};

const tdm_model_library *tdm_library_entry(void)
{
    return &library;
}
