/*
 * retry.h: what a disk has refused is tried again, after pauses that grow.
 *
 * A disk that is full, read-only or failing may be mended while a run waits. Rank 0, which alone writes to
 * the run's folder, says when the next try is due; the other ranks follow it.
 */
#ifndef TANDEM_TRAIN_RETRY_H
#define TANDEM_TRAIN_RETRY_H

#include <tandem/base.h>

#include <stdbool.h>

/* Tries that have failed in a row. All zero: the last one succeeded. */
typedef struct tdm__retry {
    unsigned failures;
    double first_s;  /* when the first of them failed */
    double failed_s; /* when the last of them failed */
    double next_s;   /* when the next try is due */
} tdm__retry;

/* Whether a disk may refuse something with this status now, and accept it later. */
bool tdm__is_disk_status(tdm_status status);
/* Counts a failure: the next try is due after 0.5 s, then 1 s, 2 s and so on, 30 s at most. */
void tdm__retry_failed(tdm__retry *retry, double now_s);

typedef enum tdm__retry_choice {
    TDM__RETRY_WAIT,
    TDM__RETRY_NOW,
    TDM__RETRY_OVER /* the budget is spent, and a try after its end has failed */
} tdm__retry_choice;
/* What to do now, with a budget of so many seconds since the first failure. The last try is at its end. */
tdm__retry_choice tdm__retry_choose(const tdm__retry *retry, double budget_s, double now_s);

#endif
