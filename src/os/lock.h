/*
 * lock.h: a lock in shared memory, for processes that may die or be stopped while they hold it.
 *
 * When a holder dies, the next process gets the lock. It continues with what the dead holder has written so far,
 * so what the lock protects must be valid after every store. A holder that is stopped (SIGSTOP, a debugger) for more
 * than a second while another process waits is killed, so that one process cannot block all others of a run.
 */
#ifndef TANDEM_OS_LOCK_H
#define TANDEM_OS_LOCK_H

#include <tandem/os.h>

#include <pthread.h>
#include <stdatomic.h>

/* In shared memory. */
typedef struct tdm__shared_lock {
    pthread_mutex_t mutex;           /* robust */
    _Atomic int64_t holder;          /* id of the process that holds it; 0: none is known */
    _Atomic uint64_t holder_started; /* start time of that process: process ids are reused */
} tdm__shared_lock;

/* The id and the start time that this process stores in a lock. In private memory; initially zero. */
typedef struct tdm__lock_owner {
    _Atomic int64_t process;
    _Atomic uint64_t started;
} tdm__lock_owner;

tdm_status tdm__shared_lock_init(tdm__shared_lock *lock, tdm_error *err);
/* `what` names what the lock protects, for messages. TDM_ERR_TIMEOUT: another process held the lock for the
 * whole time. TDM_ERR_FORMAT: the lock is damaged. */
tdm_status tdm__shared_lock_take(tdm__shared_lock *lock, tdm__lock_owner *owner, double timeout_s,
                                 const char *what, tdm_error *err);
void tdm__shared_lock_give(tdm__shared_lock *lock);

#endif
