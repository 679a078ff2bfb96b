/* checkpoint.h: what the parts of `tandem checkpoint` share. */
#ifndef TANDEM_CLI_CHECKPOINT_H
#define TANDEM_CLI_CHECKPOINT_H

#include "cli.h"

#include <tandem/checkpoint.h>

/* The folder with the checkpoints of RUN, which may be that folder itself. NULL (and a message) when
 * there is none. */
const char *cli_checkpoint_folder(const char *run, tdm_arena *arena);
/* Calls `read` with the file that FILE, RUN (its newest good one) or RUN:STEP stands for; again, when a
 * training prunes the one of RUN before `read` has opened it. Complains when that fails. An exit code:
 * CLI_USAGE when there is nothing of that name. */
int cli_checkpoint_read(const char *name, tdm_arena *arena, tdm_checkpoint_read_fn read,
                        void *user);

int cli_checkpoint_list(const cli_args *args, tdm_arena *arena);
int cli_checkpoint_verify(const cli_args *args, tdm_arena *arena);
int cli_checkpoint_prune(const cli_args *args, tdm_arena *arena);
int cli_checkpoint_copy(const cli_args *args, tdm_arena *arena);
int cli_checkpoint_diff(const cli_args *args, tdm_arena *arena);
int cli_checkpoint_now(const cli_args *args, tdm_arena *arena);

#endif
