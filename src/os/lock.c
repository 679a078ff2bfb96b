/*
 * lock.c: a lock in shared memory, for processes that may die or be stopped while they hold it. See the header.
 */
#include "os/lock.h"
#include "base/base.h"
#include "base/timing.h"
#include "os/os.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

tdm_status tdm__shared_lock_init(tdm__shared_lock *lock, tdm_error *err)
{
    pthread_mutexattr_t attributes;
    int failed = pthread_mutexattr_init(&attributes);
    if (!failed) {
        failed = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        if (!failed) failed = pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        if (!failed) failed = pthread_mutex_init(&lock->mutex, &attributes);
        pthread_mutexattr_destroy(&attributes);
    }
    atomic_store(&lock->holder, 0);
    atomic_store(&lock->holder_started, 0);
    if (!failed) return TDM_OK;
    return tdm_fail(err, TDM_ERR_SYSTEM, "cannot create a lock in shared memory: %s",
                    strerror(failed));
}

/* The start time of this process, read before it takes the lock: it may be stopped while it holds it. A process
 * that was forked after the last call has another id, so its start time is read again. */
static uint64_t owner_started(tdm__lock_owner *owner)
{
    if (atomic_load(&owner->process) != (int64_t)getpid()) {
        tdm_process_info info = {0};
        (void)tdm_os_process(getpid(), &info);
        atomic_store(&owner->started, info.started);
        atomic_store(&owner->process, (int64_t)getpid());
    }
    return atomic_load(&owner->started);
}

/* The thread sanitizer of GCC 12 does not know pthread_mutex_clocklock, nor that a robust mutex can be taken over
 * while a thread waits for it; under it, this polls. */
static int lock_wait(pthread_mutex_t *mutex, double until_s)
{
#ifdef __SANITIZE_THREAD__
    (void)until_s;
    tdm_clock_sleep(100e-6);
    return pthread_mutex_trylock(mutex);
#else
    struct timespec until = tdm_clock_timespec(until_s);
    return pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &until);
#endif
}

static void lock_kill_stopped_holder(const tdm__shared_lock *lock, const char *what)
{
    int64_t holder = atomic_load(&lock->holder);
    uint64_t started = atomic_load(&lock->holder_started);
    tdm_process_info info;
    if (holder == (int64_t)getpid() || !tdm_os_process(holder, &info) || !info.is_stopped) return;

    /* If it is still the holder, it was stopped while it held the lock. */
    if (atomic_load(&lock->holder) != holder || !tdm_os_end_stopped(holder, started)) return;
    tdm_log(TDM_LOG_WARN, "os",
            "killed process %lld, which was stopped while it held the lock of %s; the other "
            "processes need it",
            (long long)holder, what);
}

tdm_status tdm__shared_lock_take(tdm__shared_lock *lock, tdm__lock_owner *owner, double timeout_s,
                                 const char *what, tdm_error *err)
{
    uint64_t started = owner_started(owner);
    double began_s = tdm_clock_s();
    int result = pthread_mutex_trylock(&lock->mutex);
    while (result == EBUSY || result == ETIMEDOUT) {
        double now_s = tdm_clock_s(), end_s = began_s + timeout_s;
        if (now_s >= end_s)
            return tdm_fail(err, TDM_ERR_TIMEOUT,
                            "timed out after %g s waiting for the lock of %s (held by process "
                            "%lld)",
                            timeout_s, what, (long long)atomic_load(&lock->holder));
        if (now_s - began_s > TDM__TIMING_OS_STOPPED_HOLDER_S) lock_kill_stopped_holder(lock, what);
        double next_s = now_s + TDM__TIMING_OS_LOCK_CHECK_S;
        result = lock_wait(&lock->mutex, next_s < end_s ? next_s : end_s);
    }
    if (result == EOWNERDEAD) result = pthread_mutex_consistent(&lock->mutex);
    if (result != 0)
        return tdm_fail(err, TDM_ERR_FORMAT, "the lock of %s is damaged: %s", what,
                        strerror(result));
    atomic_store(&lock->holder_started, started);
    atomic_store(&lock->holder, (int64_t)getpid());
    return TDM_OK;
}

void tdm__shared_lock_give(tdm__shared_lock *lock)
{
    atomic_store(&lock->holder, 0);
    pthread_mutex_unlock(&lock->mutex);
}
