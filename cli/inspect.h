/* inspect.h: the parts of `tandem inspect`. Each prints its results and returns an exit code. */
#ifndef TANDEM_CLI_INSPECT_H
#define TANDEM_CLI_INSPECT_H

#include "cli.h"

/* Prints the ops of a job's model and the memory that training needs. */
int inspect_job(const cli_args *args, const char *path);

#endif
