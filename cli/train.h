/* train.h: the parts of `tandem train`: one rank's own training, the launcher, the closing words. */
#ifndef TANDEM_CLI_TRAIN_H
#define TANDEM_CLI_TRAIN_H

#include "cli.h"

#include <tandem/comm.h>
#include <tandem/train.h>

/* What carries the job's bytes: NULL where the environment (TANDEM_TRANSPORT) says it. */
const char *train_transport(const tdm_job *job);

/* ---- the launcher (train_launch.c) ------------------------------------------------------------ */

/* Starts `count` ranks of this very command on this host, waits for their end, and gives the exit code
 * of it all. */
int train_launch(const cli_args *args, const tdm_job *job, int count);
/* Whether this process is a rank that train_launch has started. */
bool train_was_launched(void);

/* ---- the closing words (train_summary.c) ------------------------------------------------------ */

/* What ranks did, as it was at the end. */
typedef struct train_ranks {
    tdm_train_rank *items; /* NULL: a single process, or nothing was trained */
    int count;
} train_ranks;

void train_ranks_copy(const tdm_train_status *status, train_ranks *out);
void train_ranks_release(train_ranks *ranks);

void train_summary_json(const tdm_train_result *result, const train_ranks *ranks, tdm_str *out);
void train_summary_text(const cli_args *args, const tdm_train_result *result,
                        const train_ranks *ranks, tdm_str *out);
/* "to go on  tandem train ...": the same command again, with --resume. */
void train_way_on(const cli_args *args, const char *run_path, tdm_str *out);

#endif
