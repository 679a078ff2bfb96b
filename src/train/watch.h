/* watch.h: what each rank does: how fast it is, and how long it waits. */
#ifndef TANDEM_TRAIN_WATCH_H
#define TANDEM_TRAIN_WATCH_H

#include "train/internal.h"

typedef struct tdm__watch {
    const tdm_team *team;
    int count;
    tdm_train_rank *ranks; /* as they were looked at last */
    bool has_rates;
    double window_begin_s;
    tdm_team_rank *before; /* at the beginning of the window */
    tdm_team_rank *first;  /* at the beginning of this team */
    double first_seconds;  /* that the call's steps had taken by then */
    tdm__host_name *names;
    size_t room;   /* ranks that these four have room for */
    int straggler; /* -1: none */
    double slow_factor;
} tdm__watch;

/* On a watch of zeros, or on one that watched another team: then it keeps its memory, which comes from
 * `arena`. Collective. */
tdm_status tdm__watch_init(tdm__watch *w, tdm_comm *comm, const tdm_team *team, tdm_arena *arena,
                           tdm_error *err);
/* Begins the first window. */
void tdm__watch_start(tdm__watch *w);
/* Looks at the rates of late: of up to about a second. */
void tdm__watch_late(tdm__watch *w);
/* The rates of all steps of this team; the call's steps, those of earlier teams included, took so many
 * seconds. */
void tdm__watch_total(tdm__watch *w, double seconds);
/* "ranks":[...] for a line of metrics; nothing for a single process. */
void tdm__watch_put(const tdm__watch *w, tdm_json_writer *out);
/* Takes note of lanes that moved and of a straggler; with `says`, in the log. */
void tdm__watch_handle_failure(tdm__watch *w, const tdm_step_result *result, uint64_t step,
                               bool says);

#endif
