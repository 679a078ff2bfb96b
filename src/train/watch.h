/* watch.h: speed and waiting time of each rank. */
#ifndef TANDEM_TRAIN_WATCH_H
#define TANDEM_TRAIN_WATCH_H

#include "train/internal.h"

typedef struct tdm__watch {
    const tdm_team *team;
    int count;
    tdm_train_rank *ranks; /* at the last update */
    bool has_rates;
    double window_begin_s;
    tdm_team_rank *before; /* at the beginning of the window */
    tdm_team_rank *first;  /* at the beginning of this team */
    double first_seconds;  /* step time of earlier teams in this call */
    tdm__host_name *names;
    size_t room;   /* capacity of these four arrays, in ranks */
    int straggler; /* -1: none */
    double slow_factor;
} tdm__watch;

/* Initialises a zeroed watch, or one of an earlier team, whose memory is reused; memory comes from `arena`.
 * Collective. */
tdm_status tdm__watch_init(tdm__watch *w, tdm_comm *comm, const tdm_team *team, tdm_arena *arena,
                           tdm_error *err);
/* Begins the first window. */
void tdm__watch_start(tdm__watch *w);
/* Updates the recent rates, of up to about a second. */
void tdm__watch_late(tdm__watch *w);
/* Computes the rates over all steps of this team. `seconds`: total step time of the call, earlier teams
 * included. */
void tdm__watch_total(tdm__watch *w, double seconds);
/* Writes "ranks":[...] to a line of metrics; nothing for a single process. */
void tdm__watch_put(const tdm__watch *w, tdm_json_writer *out);
/* Records moved lanes and stragglers; with `logs`, logs them. */
void tdm__watch_record_step(tdm__watch *w, const tdm_step_result *result, uint64_t step, bool logs);

#endif
