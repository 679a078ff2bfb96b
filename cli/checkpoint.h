/* checkpoint.h: declarations shared by the subcommands of `tandem checkpoint`. */
#ifndef TANDEM_CLI_CHECKPOINT_H
#define TANDEM_CLI_CHECKPOINT_H

#include "cli.h"

#include <tandem/checkpoint.h>

/* The directory with the checkpoints of RUN, which may be that directory itself. NULL, after an error
 * message, if there is none. */
const char *cli_checkpoint_dir(const char *run, tdm_arena *arena);
/* Calls `read` with the file of FILE, RUN (its newest valid checkpoint) or RUN:STEP. If a running training
 * prunes the file of RUN before `read` has opened it, calls `read` again with a newer one. Prints a message
 * on failure. Returns an exit code: CLI_USAGE if the name does not exist. */
int cli_checkpoint_read(const char *name, tdm_arena *arena, tdm_checkpoint_read_fn read,
                        void *user);

int cli_checkpoint_list(const cli_args *args, tdm_arena *arena);
int cli_checkpoint_verify(const cli_args *args, tdm_arena *arena);
int cli_checkpoint_prune(const cli_args *args, tdm_arena *arena);
int cli_checkpoint_copy(const cli_args *args, tdm_arena *arena);
int cli_checkpoint_diff(const cli_args *args, tdm_arena *arena);
int cli_checkpoint_now(const cli_args *args, tdm_arena *arena);

#endif
