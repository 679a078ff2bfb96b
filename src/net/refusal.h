/*
 * refusal.h: how a rank that joins reports that it and another rank do not fit together: a certificate that
 * is not valid, another comm.security, another version (tdm_comm_options.on_refused).
 *
 * It is called by the thread that opens the world. A connection that breaks or comes too late is not a
 * refusal: the next attempt may succeed.
 */
#ifndef TANDEM_NET_REFUSAL_H
#define TANDEM_NET_REFUSAL_H

typedef struct tdm__refusal {
    void (*tell)(void *user, int rank, const char *why); /* may be NULL */
    void *user;
} tdm__refusal;

static inline void tdm__refusal_tell(const tdm__refusal *refusal, int rank, const char *why)
{
    if (refusal->tell) refusal->tell(refusal->user, rank, why);
}

#endif
