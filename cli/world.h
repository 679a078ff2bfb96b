/*
 * world.h: commands that are executed by several processes, the ranks of a world.
 *
 * `tandem bench` starts the ranks of a fixed world itself; `tandem train` starts a session
 * (elastic.h). A command that a launcher starts (`tandem bench`, `tandem run`, mpirun or srun) is a
 * rank. All ranks encounter the same errors, so only one of them prints.
 */
#ifndef TANDEM_CLI_WORLD_H
#define TANDEM_CLI_WORLD_H

#include "cli.h"

#include <tandem/comm.h>

/* The rank that a launcher has given to this process; the size is 0 without a launcher. False after
 * an error message. From then on a rank prints only if it is responsible for that. */
bool world_place(const cli_args *args, tdm_comm_place *out);
/* The number of ranks: that of the world, or `asked` by the command line (0: not given), or
 * `usual`. Returns 0 after an error message. */
int world_count(const cli_args *args, const tdm_job *job, const tdm_comm_place *place,
                int64_t asked, int64_t usual);

/* Joins the world as a rank and returns an exit code; prints a message on failure. From then on
 * only rank 0 prints. */
int world_join(const tdm_job *job, const tdm_comm_place *place, tdm_comm **out);
/* Whether this rank prints the error that ended the command: it is the first one that is alive. */
bool world_tells(tdm_comm *comm);
/* Prints the error if this rank is responsible for that; returns the exit code. */
int world_fail(const tdm_error *err, tdm_comm *comm);
/* Whether the status is about another rank and not about the job. */
bool world_is_peer(tdm_status status);

/* Starts `count` ranks of this command on this host, waits for their end, and returns the exit
 * code. */
int world_launch(const cli_args *args, const tdm_job *job, int count);
/* The command line of this command without -n: the path of this program and all words,
 * allocated in the arena; ends with NULL. Returns NULL after an error message. */
const char *const *world_words(const cli_args *args, tdm_arena *arena);

#endif
