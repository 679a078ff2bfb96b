/*
 * refusal.h: a callback that reports that two ranks cannot work together (tdm_comm_options.on_refused).
 *
 * The reasons are an invalid certificate, different values of comm.security, or different versions. The
 * thread that opens the world calls it. A broken or late connection is not a refusal, because the next
 * attempt may succeed.
 */
#ifndef TANDEM_NET_REFUSAL_H
#define TANDEM_NET_REFUSAL_H

typedef struct tdm__refusal {
    void (*tell)(void *user, int rank, const char *why); /* NULL: not reported */
    void *user;
} tdm__refusal;

static inline void tdm__refusal_tell(const tdm__refusal *refusal, int rank, const char *why)
{
    if (refusal->tell) refusal->tell(refusal->user, rank, why);
}

#endif
