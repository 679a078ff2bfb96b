/*
 * member_lease.c: how long a member may be silent before it counts as gone.
 *
 * Unless the user sets it, the time is adaptive: six times the mean interval between heartbeats
 * plus eight times its mean deviation, as exponentially smoothed values. A busy host or a slow
 * store gets more time, and failures on a quiet one are detected early. It starts at three seconds
 * and stays between one and thirty.
 */
#include "base/timing.h"
#include "membership/member.h"

#include <math.h>

/* A lease covers this many mean intervals and mean deviations of them. */
#define MEANS 6.0
#define DEVIATIONS 8.0

void tdm__heartbeat_init(tdm__heartbeat_stats *heartbeats, double fixed_s)
{
    *heartbeats = (tdm__heartbeat_stats){
        .fixed_s = fixed_s > 0 ? fixed_s : 0,
        .mean_s = TDM__TIMING_MEMBERSHIP_HEARTBEAT_S,
        .deviation_s = (TDM__TIMING_MEMBERSHIP_FIRST_LEASE_S -
                        MEANS * TDM__TIMING_MEMBERSHIP_HEARTBEAT_S) /
                       DEVIATIONS,
        .last_s = -1};
}

void tdm__heartbeat_add(tdm__heartbeat_stats *heartbeats, double now_s)
{
    if (heartbeats->last_s >= 0) {
        double interval_s = fmin(fmax(now_s - heartbeats->last_s, 0),
                                 TDM__TIMING_MEMBERSHIP_MAX_LEASE_S);
        double off_s = fabs(interval_s - heartbeats->mean_s);
        heartbeats->mean_s += (interval_s - heartbeats->mean_s) / 8;
        heartbeats->deviation_s += (off_s - heartbeats->deviation_s) / 8;
        heartbeats->count++;
    }
    heartbeats->last_s = now_s;
}

double tdm__heartbeat_lease_s(const tdm__heartbeat_stats *heartbeats)
{
    if (heartbeats->fixed_s > 0) return heartbeats->fixed_s;
    double lease_s = MEANS * heartbeats->mean_s + DEVIATIONS * heartbeats->deviation_s;
    return fmin(fmax(lease_s, TDM__TIMING_MEMBERSHIP_MIN_LEASE_S),
                TDM__TIMING_MEMBERSHIP_MAX_LEASE_S);
}

double tdm__heartbeat_interval_s(const tdm__heartbeat_stats *heartbeats)
{
    if (heartbeats->fixed_s > 0)
        return fmin(heartbeats->fixed_s / 4, TDM__TIMING_MEMBERSHIP_MAX_HEARTBEAT_S);
    return TDM__TIMING_MEMBERSHIP_HEARTBEAT_S;
}
