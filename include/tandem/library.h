/*
 * library.h: custom models, in a shared object that a job names.
 *
 * The file exports one function, tdm_library_entry(), which returns a table: the model's name, its
 * options, and the function that adds its ops to a graph. Ops can be built-in (graph.h) or custom
 * (tdm_graph_custom). In the job:
 *
 *     model: {kind: library, library: own_model.so, options: {width: 64}}
 *
 * Everything else works as for built-in models: workers, evaluation, checkpoints, resuming. Tandem adds
 * inputs, normalisation and loss around the model.
 *
 * The code runs in the process, on the thread that builds the graph; ops run concurrently on all
 * workers. Neither may write to shared data. The file stays loaded until the last graph built with it is
 * destroyed.
 */
#ifndef TANDEM_LIBRARY_H
#define TANDEM_LIBRARY_H

#include <tandem/base.h>
#include <tandem/graph.h>
#include <tandem/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Increased with every change that a compiled library depends on: structs and functions of this header,
 * graph.h, tensor.h and tdm_model_options. */
enum { TDM_LIBRARY_ABI = 1 };

typedef enum tdm_library_type {
    TDM_LIBRARY_TYPE_INT,
    TDM_LIBRARY_TYPE_REAL,
    TDM_LIBRARY_TYPE_BOOL, /* true or false */
    TDM_LIBRARY_TYPE_TEXT
} tdm_library_type;

/* An option of the model: one row of its table. */
typedef struct tdm_library_option {
    const char *name;
    tdm_library_type type;
    const char *fallback; /* default value, as written in a job; NULL: required */
    double min, max;      /* for numbers: inclusive range; both 0: any */
} tdm_library_option;

typedef struct tdm_model_library {
    int abi; /* TDM_LIBRARY_ABI; the first field in every version */
    const char *name;
    bool takes_tokens; /* input is text, in windows of model.context tokens, instead of features */
    /*
     * Builds the graph from x to logits. Features: x is f32 [batch, features], normalised; logits [batch,
     * class_count]. Tokens: x is i32 [batch, T]; logits [batch, T, V], V at least class_count.
     * Called for each number of rows, for training and for inference. It must create the same parameters
     * each time, which is checked. Report unsupported options with tdm_graph_refuse.
     */
    tdm_value (*build)(tdm_graph *graph, const tdm_model_options *options, tdm_value x);
    const tdm_library_option *options; /* NULL when option_count is 0 */
    size_t option_count;
} tdm_model_library;

/* Defined by the shared object. The table is constant and stays valid while the code is loaded. */
TDM_API const tdm_model_library *tdm_library_entry(void);
#define TDM_LIBRARY_ENTRY "tdm_library_entry"

/*
 * For build(): the value of an option, from the job or the table's default. The job's values were checked
 * against the table before. Requesting an option that the table does not have, or with another type, is an error of
 * the library, which the graph records. Strings live as long as the job and the library.
 */
TDM_API int64_t tdm_library_int(tdm_graph *graph, const tdm_model_options *options,
                                const char *name);
TDM_API double tdm_library_real(tdm_graph *graph, const tdm_model_options *options,
                                const char *name);
TDM_API bool tdm_library_bool(tdm_graph *graph, const tdm_model_options *options, const char *name);
TDM_API const char *tdm_library_text(tdm_graph *graph, const tdm_model_options *options,
                                     const char *name); /* "" after an error */

#ifdef __cplusplus
}
#endif
#endif
