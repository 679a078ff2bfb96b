/*
 * timing.h: the time constants of the communication, membership and training modules, with their reasons.
 *
 * One table, so that the relations between them are visible: a change of one often needs a change of another.
 * Times that a user can set (elastic.*, deadlines, retry times) are job keys and are not listed here. Names are
 * TDM__TIMING_, the module, what is waited for, and the unit. Sections are in the order of the modules, lowest first.
 */
#ifndef TANDEM_BASE_TIMING_H
#define TANDEM_BASE_TIMING_H

/* ---- os: locks and processes --------------------------------------------------------------------- */

/* How long a process may be stopped while it holds a lock in shared memory. Then a process that waits kills it,
 * because all processes of the host need the lock. Each holder needs it for microseconds. */
#define TDM__TIMING_OS_STOPPED_HOLDER_S 1.0
/* Time between two checks whether the holder of a lock in shared memory is stopped. */
#define TDM__TIMING_OS_LOCK_CHECK_S 0.25
/* Limit for the lock of a shared memory segment: many times the two above, so it passes only on a broken host. */
#define TDM__TIMING_OS_SHM_LOCK_S 20.0

/* ---- net, shm: connections of one host and of several ---------------------------------------------- */

/* ---- boot: rendezvous and control connections ------------------------------------------------------ */

/* ---- transport, comm: messages and collective operations ------------------------------------------- */

/* ---- kv: the store of a session -------------------------------------------------------------------- */

/* ---- membership: leases, members, epochs ----------------------------------------------------------- */

/* ---- launch, cluster: processes, agents, sessions -------------------------------------------------- */

/* ---- parallel, train: recovery, checkpoints -------------------------------------------------------- */

/* Limit for another process to copy the data into shared memory, which takes less than a second for each gigabyte. Then
 * this process keeps its own copy. */
#define TDM__TIMING_TRAIN_DATA_COPY_S 10.0
/* Time between two checks whether that copy is complete: short, because all processes of a node wait for it. */
#define TDM__TIMING_TRAIN_DATA_COPY_CHECK_S 0.001

/* Limit for all writers of a checkpoint to copy the state: training waits for it, and a copy takes less than a
 * second for each gigabyte. */
#define TDM__TIMING_TRAIN_SAVE_HOLD_S 60.0
/* Time between two checks whether they have: as short as a sleep can be, because training waits. */
#define TDM__TIMING_TRAIN_SAVE_HOLD_CHECK_S 20e-6
/* A checkpoint of which no part was written for this long has failed: a disk can block that long under load. */
#define TDM__TIMING_TRAIN_SAVE_PROGRESS_S 300.0
/* Time between two checks of rank 0's thread whether all parts are written. Nothing waits for this thread. */
#define TDM__TIMING_TRAIN_SAVE_CHECK_S 500e-6

#endif
