/*
 * retry.h: retries disk operations after growing pauses.
 *
 * A disk that is full, read-only or failing may be fixed while a run waits. Rank 0, the only writer to
 * the run directory, decides when the next attempt is due; the other ranks follow.
 */
#ifndef TANDEM_TRAIN_RETRY_H
#define TANDEM_TRAIN_RETRY_H

#include <tandem/base.h>

#include <stdbool.h>

/* Consecutive failures. All zero: the last attempt succeeded. */
typedef struct tdm__retry {
    unsigned failures;
    double first_s;  /* time of the first failure */
    double failed_s; /* time of the last failure */
    double next_s;   /* when the next attempt is due */
} tdm__retry;

/* Whether this status may be a temporary disk error. */
bool tdm__is_disk_status(tdm_status status);
/* Counts a failure: the next attempt is due after 0.5 s, then 1 s, 2 s and so on, at most 30 s. */
void tdm__retry_failed(tdm__retry *retry, double now_s);

typedef enum tdm__retry_choice {
    TDM__RETRY_WAIT,
    TDM__RETRY_NOW,
    TDM__RETRY_OVER /* the budget is spent, and an attempt after its end has failed */
} tdm__retry_choice;
/* What to do now, with a budget of `budget_s` since the first failure. The last attempt is at its end. */
tdm__retry_choice tdm__retry_choose(const tdm__retry *retry, double budget_s, double now_s);

#endif
