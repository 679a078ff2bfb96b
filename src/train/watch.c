/*
 * watch.c: speed and waiting time of each rank.
 *
 * The team counts; this file computes rates: over a recent window, for the metrics and the progress line, and
 * over all steps of the last team, for the summary (after a change of membership, ranks are different
 * processes). A rank's samples per second are those of its lanes over the time of whole steps, so the sum over
 * the ranks is the total rate. All ranks see the same counts; only rank 0 logs them.
 */
#include "train/watch.h"
#include "base/base.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { RANKS_IN_METRICS = 64 }; /* a metrics line with more would be too long */

/* Thousands of worlds may use the same arena, so memory is allocated only when the number of ranks grows. */
static bool watch_reserve(tdm__watch *w, size_t count, tdm_arena *arena)
{
    if (count <= w->room) return true;
    size_t room = count > 2 * w->room ? count : 2 * w->room;
    w->ranks = tdm_arena_array(arena, room, sizeof(*w->ranks));
    w->before = tdm_arena_array(arena, room, sizeof(*w->before));
    w->first = tdm_arena_array(arena, room, sizeof(*w->first));
    w->names = tdm_arena_array(arena, room, sizeof(*w->names));
    bool good = w->ranks && w->before && w->first && w->names;
    w->room = good ? room : 0;
    return good;
}

tdm_status tdm__watch_init(tdm__watch *w, tdm_comm *comm, const tdm_team *team, tdm_arena *arena,
                           tdm_error *err)
{
    size_t count = (size_t)tdm__size_of(comm);
    bool good = watch_reserve(w, count, arena);
    w->team = team;
    w->count = (int)count;
    w->straggler = -1;
    w->slow_factor = w->window_begin_s = 0;
    w->has_rates = false;
    TDM_TRY(tdm_comm_agree(comm, good ? TDM_OK : tdm_fail_oom(err, "in training"), NULL, err));
    assert(w->ranks && w->before && w->first && w->names);
    memset(w->names, 0, count * sizeof(*w->names));
    memset(w->ranks, 0, count * sizeof(*w->ranks));
    TDM_TRY(tdm__host_names(comm, w->names, err));
    for (int i = 0; i < w->count; i++) {
        tdm_team_rank_of(team, i, &w->first[i]);
        w->before[i] = w->first[i];
        w->ranks[i].host = w->first[i].host;
        w->ranks[i].lanes = w->first[i].lanes;
        snprintf(w->ranks[i].host_name, sizeof(w->ranks[i].host_name), "%s", w->names[i].text);
    }
    return TDM_OK;
}

/* Rates from the difference of two counts over `seconds`. */
static void watch_rate(tdm_train_rank *out, const tdm_team_rank *now, const tdm_team_rank *since,
                       double seconds)
{
    double per_second = seconds > 0 ? 1 / seconds : 0;
    out->lanes = now->lanes;
    out->samples_per_s = (double)(now->rows_done - since->rows_done) * per_second;
    out->lane_share = (now->lane_seconds - since->lane_seconds) * per_second;
    out->update_share = (now->update_seconds - since->update_seconds) * per_second;
    /* The rank may have begun to wait before this rank's clock started. */
    out->wait_share = fmin((now->wait_seconds - since->wait_seconds) * per_second, 1);
}

/* Computes the rates since the window began. */
static void watch_update_rates(tdm__watch *w, double seconds)
{
    for (int i = 0; i < w->count; i++) {
        tdm_team_rank now;
        tdm_team_rank_of(w->team, i, &now);
        watch_rate(&w->ranks[i], &now, &w->before[i], seconds);
    }
    w->has_rates = true;
}

void tdm__watch_start(tdm__watch *w)
{
    for (int i = 0; i < w->count; i++) tdm_team_rank_of(w->team, i, &w->before[i]);
    w->window_begin_s = tdm_clock_s();
}

void tdm__watch_late(tdm__watch *w)
{
    double seconds = tdm_clock_s() - w->window_begin_s;
    if (seconds >= 0.1 || !w->has_rates) watch_update_rates(w, seconds);
    if (seconds >= 1) tdm__watch_start(w);
}

void tdm__watch_total(tdm__watch *w, double seconds)
{
    for (int i = 0; i < w->count; i++) {
        tdm_team_rank now;
        tdm_team_rank_of(w->team, i, &now);
        watch_rate(&w->ranks[i], &now, &w->first[i], seconds - w->first_seconds);
    }
}

void tdm__watch_put(const tdm__watch *w, tdm_json_writer *out)
{
    if (w->count < 2 || w->count > RANKS_IN_METRICS) return;
    tdm_json_key(out, "ranks");
    tdm_json_array_begin(out);
    for (int i = 0; i < w->count; i++) {
        tdm_json_object_begin(out);
        tdm_json_put_int(out, "lanes", w->ranks[i].lanes);
        tdm_json_put_double(out, "samples_per_s", round(w->ranks[i].samples_per_s));
        tdm_json_put_double(out, "waiting", round(1000 * w->ranks[i].wait_share) / 1000);
        tdm_json_object_end(out);
    }
    tdm_json_array_end(out);
}

/* Logs the number of lanes of each rank: "3, 3, 2". */
static void watch_log_lanes(tdm__watch *w, uint64_t step)
{
    char text[512];
    size_t length = 0;
    text[0] = '\0';
    for (int i = 0; i < w->count && length + 24 < sizeof(text); i++) {
        tdm_team_rank now;
        tdm_team_rank_of(w->team, i, &now);
        w->ranks[i].lanes = now.lanes;
        length += (size_t)snprintf(text + length, sizeof(text) - length, "%s%lld",
                                   i > 0 ? ", " : "", (long long)now.lanes);
    }
    tdm_log(TDM_LOG_INFO, "train", "step %llu: lanes have moved; lanes per rank: %s%s",
            (unsigned long long)step, text, length + 24 < sizeof(text) ? "" : ", ...");
}

void tdm__watch_record_step(tdm__watch *w, const tdm_step_result *result, uint64_t step, bool logs)
{
    w->slow_factor = result->slow_factor;
    if (result->moved && logs) watch_log_lanes(w, step);
    if (result->straggler == w->straggler) return;
    w->straggler = result->straggler;
    if (!logs) return;
    if (w->straggler >= 0)
        tdm_log(TDM_LOG_INFO, "train",
                "step %llu: rank %d on %s takes %.1f times as long per lane as the others",
                (unsigned long long)step, w->straggler, w->ranks[w->straggler].host_name,
                w->slow_factor);
    else
        tdm_log(TDM_LOG_INFO, "train", "step %llu: no rank is slower than the others any more",
                (unsigned long long)step);
}
