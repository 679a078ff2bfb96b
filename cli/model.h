/* model.h: declarations shared by the commands that use a trained model. */
#ifndef TANDEM_CLI_MODEL_H
#define TANDEM_CLI_MODEL_H

#include "cli.h"

#include <tandem/inference.h>
#include <tandem/train.h>

/* Prints the library's warnings on the terminal (such as a damaged checkpoint that was skipped). */
void cli_show_warnings(void);

/* Check a path on the command line; print a message and return CLI_USAGE if it does not exist or is not
 * of the expected kind. */
int cli_check_model(const char *path);                     /* a run or a checkpoint */
int cli_check_run(const char *command, const char *path);  /* a run directory with its job */
int cli_check_data(const char *command, const char *path); /* a data file */

/* Loads a file of samples for the model. The column of labels of a CSV file is optional; the number of
 * columns shows whether it exists. `labels` (may be NULL) is the file of labels of an IDX file. */
tdm_status cli_load_samples(const tdm_model *model, const char *path, const char *labels,
                            tdm_dataset **out, tdm_error *err);

/* Whether the metadata of a safetensors file identify it as a checkpoint of Tandem. */
bool cli_is_checkpoint(const tdm_safetensors *file);

#endif
