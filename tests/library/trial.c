/*
 * trial.c: a library whose model makes the mistake that its option names, or none.
 *
 * It is a linear classifier with an additional buffer that is not used. The mistake `keep` is not one: the
 * graph owns an object of the library, whose release is reported through the environment.
 */
#include <tandem/library.h>

#include <stdlib.h>
#include <string.h>

static void release(void *name)
{
    setenv(name, "released", 1);
}

static bool is(const char *mistake, const char *name)
{
    return strcmp(mistake, name) == 0;
}

static tdm_value build(tdm_graph *graph, const tdm_model_options *options, tdm_value x)
{
    const char *mistake = tdm_library_text(graph, options, "mistake");
    double gain = tdm_library_real(graph, options, "gain");
    int64_t extra = tdm_library_int(graph, options, "extra");
    bool with_bias = tdm_library_bool(graph, options, "bias");
    const tdm_init zero = {TDM_INIT_ZERO, 0}, uniform = {TDM_INIT_UNIFORM, 0.1 * gain};
    int64_t in = tdm_graph_shape(graph, x).dim[1], out = options->class_count + extra;
    if (is(mistake, "refuse"))
        return tdm_graph_refuse(graph, "it does not like batches of %lld",
                                (long long)options->batch);
    if (is(mistake, "none")) return TDM_VALUE_NONE;
    if (is(mistake, "unknown")) return (tdm_value){(int32_t)tdm_library_int(graph, options, "no")};
    if (is(mistake, "type")) return (tdm_value){(int32_t)tdm_library_int(graph, options, "gain")};
    if (is(mistake, "training") && options->training)
        tdm_graph_param(graph, "more", tdm_shape_1(1000), zero);
    if (is(mistake, "batch") && options->batch == 1)
        tdm_graph_param(graph, "more", tdm_shape_1(1000), zero);
    static char name[] = "TRIAL_KEEPS";
    if (is(mistake, "keep") && tdm_graph_keep(graph, release, name, NULL) != TDM_OK)
        return TDM_VALUE_NONE;
    if (is(mistake, "scope")) tdm_graph_scope(graph, "left.open");
    tdm_graph_buffer(graph, "buffer", tdm_shape_1(3), zero);
    tdm_value weight = tdm_graph_param(graph, "weight", tdm_shape_2(out, in), uniform);
    tdm_value bias = TDM_VALUE_NONE;
    if (with_bias) bias = tdm_graph_param(graph, "bias", tdm_shape_1(out), zero);
    return tdm_graph_linear(graph, x, weight, bias, TDM_ACTIVATION_NONE);
}

static const tdm_library_option options[] = {
    {.name = "mistake", .type = TDM_LIBRARY_TYPE_TEXT, .fallback = "nothing"},
    {.name = "gain", .type = TDM_LIBRARY_TYPE_REAL, .fallback = "1", .min = 0.5, .max = 2},
    {.name = "extra", .type = TDM_LIBRARY_TYPE_INT, .fallback = "0"},
    {.name = "bias", .type = TDM_LIBRARY_TYPE_BOOL, .fallback = "true"},
};

static const tdm_model_library library = {
    .abi = TDM_LIBRARY_ABI,
    .name = "trial",
    .build = build,
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
};

const tdm_model_library *tdm_library_entry(void)
{
    return &library;
}
