/*
 * cancellation.h: a function that ends the waits of a rank which opens a world.
 *
 * The function is tdm_comm_options.should_give_up, combined with a check whether a rank of the world has
 * died. Every loop that waits while a world is opened sleeps in slices and calls the function between
 * them. Without a function, waits are never cancelled. Only the thread that opens the world calls it. The
 * function must not use that world.
 */
#ifndef TANDEM_NET_CANCELLATION_H
#define TANDEM_NET_CANCELLATION_H

#include "base/timing.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct tdm__cancellation {
    bool (*is_over)(void *user); /* NULL: the wait is never cancelled */
    void *user;
} tdm__cancellation;

/* Accepts NULL. */
static inline bool tdm__cancellation_is_due(const tdm__cancellation *cancellation)
{
    return cancellation && cancellation->is_over && cancellation->is_over(cancellation->user);
}

/* How much of `left_s` to sleep before the next call of is_over. */
static inline double tdm__cancellation_slice(const tdm__cancellation *cancellation, double left_s)
{
    bool polls = cancellation && cancellation->is_over;
    return polls && left_s > TDM__TIMING_NET_CANCELLATION_S ? TDM__TIMING_NET_CANCELLATION_S
                                                            : left_s;
}

#endif
