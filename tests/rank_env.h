/*
 * rank_env.h: the environment in which a test starts a rank of a world of its own.
 */
#ifndef TANDEM_TESTS_RANK_ENV_H
#define TANDEM_TESTS_RANK_ENV_H

#include <stdio.h>
#include <stdlib.h>

typedef struct rank_env {
    const char *meeting;   /* a name that only the ranks of this world have */
    const char *transport; /* NULL: by where the ranks are */
    int rank, size;
    int deadline_s;
} rank_env;

/* For the process that calls it, which then becomes the rank. */
static inline void rank_env_set(const rank_env *e)
{
    char text[96];
    snprintf(text, sizeof(text), "unix:tandem-%s", e->meeting);
    setenv("TANDEM_RENDEZVOUS", text, 1);
    setenv("TANDEM_SECRET", "a secret of the tests", 1);
    if (e->transport) setenv("TANDEM_TRANSPORT", e->transport, 1);
    snprintf(text, sizeof(text), "%d", e->deadline_s);
    setenv("TANDEM_DEADLINE", text, 1);
    snprintf(text, sizeof(text), "%d", e->rank);
    setenv("TANDEM_RANK", text, 1);
    snprintf(text, sizeof(text), "%d", e->size);
    setenv("TANDEM_SIZE", text, 1);
}

#endif
