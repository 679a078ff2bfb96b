/*
 * library.h: a model of one's own, in a shared object that a job names.
 *
 * The file exports one function, tdm_library_entry(), which returns a table: what the model is
 * called, which options it takes, and the function that adds its ops to a graph, built-in ones
 * (graph.h) or new ones (tdm_graph_custom). A job says
 *
 *     model: {kind: library, library: own_model.so, options: {width: 64}}
 *
 * and everything else is as for the models that Tandem has: workers, evaluation, checkpoints,
 * resuming. Inputs, normalisation and loss are put around the model by Tandem.
 *
 * The code runs inside the process, on the thread that builds the graph; ops run on all workers side
 * by side. So neither may write to anything that is shared. The file stays loaded until the last
 * graph that was built with it is destroyed.
 */
#ifndef TANDEM_LIBRARY_H
#define TANDEM_LIBRARY_H

#include <tandem/base.h>
#include <tandem/graph.h>
#include <tandem/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever something changes that a compiled library relies on: the structs and functions of
 * this header, graph.h, tensor.h and tdm_model_options. */
enum { TDM_LIBRARY_ABI = 1 };

typedef enum tdm_library_type {
    TDM_LIBRARY_TYPE_INT,
    TDM_LIBRARY_TYPE_REAL,
    TDM_LIBRARY_TYPE_BOOL, /* true or false */
    TDM_LIBRARY_TYPE_TEXT
} tdm_library_type;

/* An option that the model takes, as a row of its table. */
typedef struct tdm_library_option {
    const char *name;
    tdm_library_type type;
    const char *fallback; /* as a job would have it; NULL: the job must give one */
    double min, max;      /* numbers: the range, both ends included; both 0: any */
} tdm_library_option;

typedef struct tdm_model_library {
    int abi; /* TDM_LIBRARY_ABI; first in every version */
    const char *name;
    bool takes_tokens; /* a text, in windows of model.context tokens, in place of features */
    /*
     * From x to logits. Features: x is f32 [batch, features], normalised; logits [batch,
     * class_count]. Tokens: x is i32 [batch, T]; logits [batch, T, V], V at least class_count.
     * It is called for each number of rows, in training and not, and must make the same parameters
     * each time, which is checked. What it cannot do it says by tdm_graph_refuse.
     */
    tdm_value (*build)(tdm_graph *graph, const tdm_model_options *options, tdm_value x);
    const tdm_library_option *options; /* NULL when option_count is 0 */
    size_t option_count;
} tdm_model_library;

/* What the shared object defines; the table is constant and lives as long as the code. */
TDM_API const tdm_model_library *tdm_library_entry(void);
#define TDM_LIBRARY_ENTRY "tdm_library_entry"

/*
 * For build(): the value of an option, from the job or the table. The job's values were held against
 * the table before; asking for what the table does not have, or has with another type, is a mistake
 * of the library, which the graph remembers. Texts live as long as the job and the library.
 */
TDM_API int64_t tdm_library_int(tdm_graph *graph, const tdm_model_options *options,
                                const char *name);
TDM_API double tdm_library_real(tdm_graph *graph, const tdm_model_options *options,
                                const char *name);
TDM_API bool tdm_library_bool(tdm_graph *graph, const tdm_model_options *options, const char *name);
TDM_API const char *tdm_library_text(tdm_graph *graph, const tdm_model_options *options,
                                     const char *name); /* "" after a mistake */

#ifdef __cplusplus
}
#endif
#endif
