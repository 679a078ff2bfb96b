/*
 * cancellation.h: ends the waits of a joining rank early: when its caller says so
 * (tdm_comm_options.should_give_up), or when a rank of the world has died meanwhile.
 *
 * Every loop that waits while a world is opened sleeps in slices and polls the function in between.
 * Without a function, waits are never cancelled. Only the thread that opens the world polls it, and the
 * function does not use that world.
 */
#ifndef TANDEM_NET_CANCELLATION_H
#define TANDEM_NET_CANCELLATION_H

#include <stdbool.h>
#include <stddef.h>

typedef struct tdm__cancellation {
    bool (*is_over)(void *user); /* NULL: never */
    void *user;
} tdm__cancellation;

#define TDM__CANCELLATION_SLICE_S 0.004 /* between two polls */

/* Accepts NULL. */
static inline bool tdm__cancellation_is_due(const tdm__cancellation *cancellation)
{
    return cancellation && cancellation->is_over && cancellation->is_over(cancellation->user);
}

/* How much of `left_s` to sleep before the next poll. */
static inline double tdm__cancellation_slice(const tdm__cancellation *cancellation, double left_s)
{
    bool asks = cancellation && cancellation->is_over;
    return asks && left_s > TDM__CANCELLATION_SLICE_S ? TDM__CANCELLATION_SLICE_S : left_s;
}

#endif
