/* inspect.h: the parts of `tandem inspect`. Each prints what it found and returns an exit code. */
#ifndef TANDEM_CLI_INSPECT_H
#define TANDEM_CLI_INSPECT_H

#include "cli.h"

/* What a job's model computes and how much memory its training takes. */
int inspect_job(const cli_args *args, const char *path);

#endif
