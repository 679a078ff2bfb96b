/* model.h: what the commands that use a trained model share. */
#ifndef TANDEM_CLI_MODEL_H
#define TANDEM_CLI_MODEL_H

#include "cli.h"

#include <tandem/train.h>

/* Lets the library's warnings (a damaged checkpoint was passed over) reach the terminal. */
void cli_show_warnings(void);

/* Checks of what the command line names, which complain and give CLI_USAGE when it is not there or another
 * kind of thing: a run or checkpoint to read, a run that has its job, a file of data. */
int cli_check_model(const char *path);
int cli_check_run(const char *command, const char *path);
int cli_check_data(const char *command, const char *path);

/* Reads a file of samples for the model. A CSV may have the column of labels or not: the number of
 * columns tells. `labels` (may be NULL) is the file of labels beside an IDX file. */
tdm_status cli_load_samples(const tdm_model *model, const char *path, const char *labels,
                            tdm_dataset **out, tdm_error *err);

/* Whether a safetensors file says that it is a checkpoint of Tandem's. */
bool cli_is_checkpoint(const tdm_safetensors *file);

#endif
