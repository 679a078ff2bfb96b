/*
 * member_lease.c: how long a member may be silent before it counts as gone.
 *
 * Where the user has not said, it goes by how regular the signs of life have been: six times the mean
 * distance between two of them and eight times their mean deviation from it, as smoothed values of the
 * last few. So a busy host, or a slow store, gets more time by itself, and a quiet one is found out soon.
 * It begins with three seconds, and stays between one and thirty.
 */
#include "cluster/member.h"

#include <math.h>

#define BEAT_S 0.25
#define BEGIN_S 3.0
#define LEAST_S 1.0
#define MOST_S 30.0
#define MEANS 6.0
#define DEVIATIONS 8.0

void tdm__pulse_init(tdm__pulse *pulse, double fixed_s)
{
    *pulse = (tdm__pulse){.fixed_s = fixed_s > 0 ? fixed_s : 0,
                          .mean_s = BEAT_S,
                          .deviation_s = (BEGIN_S - MEANS * BEAT_S) / DEVIATIONS,
                          .last_s = -1};
}

void tdm__pulse_beat(tdm__pulse *pulse, double now_s)
{
    if (pulse->last_s >= 0) {
        double interval_s = fmin(fmax(now_s - pulse->last_s, 0), MOST_S);
        double off_s = fabs(interval_s - pulse->mean_s);
        pulse->mean_s += (interval_s - pulse->mean_s) / 8;
        pulse->deviation_s += (off_s - pulse->deviation_s) / 8;
        pulse->count++;
    }
    pulse->last_s = now_s;
}

double tdm__pulse_lease_s(const tdm__pulse *pulse)
{
    if (pulse->fixed_s > 0) return pulse->fixed_s;
    double lease_s = MEANS * pulse->mean_s + DEVIATIONS * pulse->deviation_s;
    return fmin(fmax(lease_s, LEAST_S), MOST_S);
}

double tdm__pulse_interval_s(const tdm__pulse *pulse)
{
    return pulse->fixed_s > 0 ? fmin(pulse->fixed_s / 4, 1.0) : BEAT_S;
}
