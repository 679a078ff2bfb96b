/*
 * tokens.c: a library with a token model, which predicts the next token from the last one alone, by a table of
 * V x V logits. Its option `rows` is required; there may be more rows than tokens.
 */
#include <tandem/library.h>

static tdm_value build(tdm_graph *graph, const tdm_model_options *options, tdm_value x)
{
    int64_t rows = tdm_library_int(graph, options, "rows");
    tdm_value table = tdm_graph_param(graph, "table", tdm_shape_2(rows, rows),
                                      (tdm_init){TDM_INIT_ZERO, 0});
    return tdm_graph_embedding(graph, table, x);
}

static const tdm_library_option options[] = {
    {.name = "rows", .type = TDM_LIBRARY_TYPE_INT, .min = 2, .max = 1000},
};

static const tdm_model_library library = {.abi = TDM_LIBRARY_ABI,
                                          .name = "bigram",
                                          .takes_tokens = true,
                                          .build = build,
                                          .options = options,
                                          .option_count = 1};

const tdm_model_library *tdm_library_entry(void)
{
    return &library;
}
