/*
 * retry.c: pauses between attempts. (See retry.h.) No clock and no waiting here: the caller does both.
 */
#include "train/retry.h"
#include "base/timing.h"

bool tdm__is_disk_status(tdm_status status)
{
    switch (status) {
    case TDM_ERR_NO_SPACE:  /* a full disk, a quota */
    case TDM_ERR_IO:        /* a failing disk, one that is read-only */
    case TDM_ERR_RANGE:     /* a limit on the size of files */
    case TDM_ERR_NOT_FOUND: /* a file system that is not mounted */
    case TDM_ERR_TIMEOUT:   /* a file server that does not answer */
    case TDM_ERR_BUSY:
    case TDM_ERR_SYSTEM: /* too many open files */ return true;
    default: return false;
    }
}

void tdm__retry_failed(tdm__retry *retry, double now_s)
{
    double pause_s = TDM__TIMING_TRAIN_RETRY_MIN_S;
    if (retry->failures == 0) retry->first_s = now_s;
    for (unsigned i = 0; i < retry->failures && pause_s < TDM__TIMING_TRAIN_RETRY_MAX_S; i++)
        pause_s *= 2;
    retry->failures++;
    retry->failed_s = now_s;
    retry->next_s =
        now_s + (pause_s < TDM__TIMING_TRAIN_RETRY_MAX_S ? pause_s : TDM__TIMING_TRAIN_RETRY_MAX_S);
}

tdm__retry_choice tdm__retry_choose(const tdm__retry *retry, double budget_s, double now_s)
{
    double end_s = retry->first_s + budget_s;
    if (budget_s <= 0 || retry->failed_s >= end_s) return TDM__RETRY_OVER;
    double due_s = retry->next_s < end_s ? retry->next_s : end_s;
    return now_s >= due_s ? TDM__RETRY_NOW : TDM__RETRY_WAIT;
}
