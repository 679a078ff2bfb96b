/* train.h: the summary that `tandem train` prints at the end. */
#ifndef TANDEM_CLI_TRAIN_H
#define TANDEM_CLI_TRAIN_H

#include "cli.h"

#include <tandem/train.h>

/* Statistics of the ranks at the end. */
typedef struct train_ranks {
    tdm_train_rank *items; /* NULL: a single process, or no step was trained */
    int count;
} train_ranks;

void train_ranks_copy(const tdm_train_status *status, train_ranks *out);
void train_ranks_release(train_ranks *ranks);

void train_summary_json(const tdm_train_result *result, const train_ranks *ranks, tdm_str *out);
void train_summary_text(const cli_args *args, const tdm_train_result *result,
                        const train_ranks *ranks, tdm_str *out);
/* "to resume  tandem train ...": the same command with --resume. */
void train_way_on(const cli_args *args, const char *run_path, tdm_str *out);

#endif
