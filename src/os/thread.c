/*
 * thread.c: starting threads, and their priority. See the header.
 */
#include "os/thread.h"

#include <signal.h>
#include <string.h>
#include <sys/resource.h>

tdm_status tdm__thread_start(pthread_t *out, void *(*run)(void *user), void *user, tdm_error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(out, NULL, run, user);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) return TDM_OK;
    return tdm_fail(err, TDM_ERR_SYSTEM, "cannot start a thread: %s", strerror(failed));
}

void tdm__thread_raise_priority(void)
{
    enum { NICE = -10 };
    (void)setpriority(PRIO_PROCESS, 0, NICE); /* 0: this thread */
}
