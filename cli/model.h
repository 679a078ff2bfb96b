/* model.h: what the commands that use a trained model share. */
#ifndef TANDEM_CLI_MODEL_H
#define TANDEM_CLI_MODEL_H

#include "cli.h"

#include <tandem/train.h>

/* Lets the library's warnings (a damaged checkpoint was passed over) reach the terminal. */
void cli_show_warnings(void);

/* Reads a file of samples for the model. A CSV may have the column of labels or not: the number of
 * columns tells. `labels` (may be NULL) is the file of labels beside an IDX file. */
tdm_status cli_load_samples(const tdm_model *model, const char *path, const char *labels,
                            tdm_dataset **out, tdm_error *err);

/* Whether a safetensors file says that it is a checkpoint of Tandem's. */
bool cli_is_checkpoint(const tdm_safetensors *file);

#endif
