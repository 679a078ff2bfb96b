/*
 * world.h: commands that are executed by many processes, ranks of a world.
 *
 * The same command may be typed by a person, and is then the launcher of its own ranks; or be started
 * by a launcher (its own, `tandem run`, mpirun or srun), and is then the rank that it was made. All
 * ranks meet the same errors, so one of them talks.
 */
#ifndef TANDEM_CLI_WORLD_H
#define TANDEM_CLI_WORLD_H

#include "cli.h"

#include <tandem/comm.h>

/* The place that a launcher has given to this process; its size is 0 when none has. False after a
 * complaint. A process with a place talks, from then on, only when it is the one to do so. */
bool world_place(const cli_args *args, tdm_comm_place *out);
/* How many ranks there will be to execute the job's lanes: those of the world, or as many as the
 * command line says (0: nothing), or `usual`. 0 after a complaint. */
int world_count(const cli_args *args, const tdm_job *job, const tdm_comm_place *place,
                int64_t asked, int64_t usual);

/* Joins the world as a rank; an exit code after a complaint. Rank 0 does the talking from then on. */
int world_join(const tdm_job *job, const tdm_comm_place *place, tdm_comm **out);
/* Whether this rank prints the error that ended it all: the first that is still there. */
bool world_tells(tdm_comm *comm);
/* Prints the error if it is for this rank to tell, and gives the exit code. */
int world_fail(const tdm_error *err, tdm_comm *comm);
/* Whether it is about another rank, which is no fault of the job's. */
bool world_is_peer(tdm_status status);

/* Starts `count` ranks of this very command on this host, waits for their end, and gives the exit code
 * of it all. */
int world_launch(const cli_args *args, const tdm_job *job, int count);
/* This command once more, but for -n, which a world knows: the path of this program, and all words,
 * with NULL at the end; memory is the arena's. NULL after a complaint. */
const char *const *world_words(const cli_args *args, tdm_arena *arena);

#endif
