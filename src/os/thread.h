/*
 * thread.h: threads of the library. They block all signals, which are left to the threads of the program.
 */
#ifndef TANDEM_OS_THREAD_H
#define TANDEM_OS_THREAD_H

#include <tandem/os.h>

#include <pthread.h>

/* Starts a thread in which all signals are blocked. */
tdm_status tdm__thread_start(pthread_t *out, void *(*run)(void *user), void *user, tdm_error *err);
/* For a thread that does little while many wait for it: it runs before threads that compute, where the system
 * permits it (root, or RLIMIT_NICE). */
void tdm__thread_raise_priority(void);

#endif
