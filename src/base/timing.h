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

/* Limit for all ranks of a host to request its shared memory, and for each answer. The ranks have found each other just
 * before, so they differ by the time to map memory, and by the delays of a busy host. */
#define TDM__TIMING_SHM_JOIN_S 20.0
/* Limit for the first message of a new connection: the process may be a stranger, and must not keep a place. */
#define TDM__TIMING_SHM_HELLO_S 3.0
/* Time between two attempts to connect while the queue of the first rank's socket is full. */
#define TDM__TIMING_SHM_CONNECT_RETRY_S 0.001
/* Limit for the lock of the table of blocks, which a rank holds for microseconds: far more than the time after which
 * a stopped holder is killed (TDM__TIMING_OS_STOPPED_HOLDER_S). */
#define TDM__TIMING_SHM_LOCK_S 10.0

/* ---- boot: rendezvous and control connections ------------------------------------------------------ */

/* ---- transport, comm: messages and collective operations ------------------------------------------- */

/* ---- kv: the store of a session -------------------------------------------------------------------- */

/* ---- membership: leases, members, epochs ----------------------------------------------------------- */

/* ---- launch, cluster: processes, agents, sessions -------------------------------------------------- */

/* ---- parallel, train: recovery, checkpoints -------------------------------------------------------- */

/* Limit for a process of an earlier epoch to end after SIGKILL; the kernel may first have to free its memory. */
#define TDM__TIMING_PARALLEL_EVICT_S 5.0
/* Time between two checks whether it has ended: short, because the recovery waits. */
#define TDM__TIMING_PARALLEL_EVICT_CHECK_S 200e-6
/* Time between two checks whether the first rank of the node has received a bucket: a part of the time of a message
 * between hosts. Before the first sleep a rank yields its CPU some thousand times. */
#define TDM__TIMING_PARALLEL_BUCKET_CHECK_S 50e-6
/* Time between two checks, while a rank waits for a bucket, whether that rank still lives: costs a lock each time. */
#define TDM__TIMING_PARALLEL_LEADER_CHECK_S 0.01

/* Limit for all members of a membership epoch to connect to its endpoint. It covers the start of a process on a busy
 * host; a member that dies meanwhile is noticed by the membership, which ends the wait. */
#define TDM__TIMING_TRAIN_WORLD_JOIN_S 30.0
/* Requests to save that come within this time are one request: launchers signal the ranks one after the other. */
#define TDM__TIMING_TRAIN_SAME_REQUEST_S 1.0
/* The delay before a failed checkpoint is retried: doubles from the minimum to the maximum, because a full disk is
 * often freed soon, and otherwise only after a person was told. */
#define TDM__TIMING_TRAIN_RETRY_MIN_S 0.5
#define TDM__TIMING_TRAIN_RETRY_MAX_S 30.0
/* While all ranks wait for the next attempt: time between two checks whether a stop was requested. */
#define TDM__TIMING_TRAIN_RETRY_CHECK_S 0.1
/* The lock of a run directory is tried several times at this interval: `tandem runs` holds it for a moment. */
#define TDM__TIMING_TRAIN_RUN_LOCK_RETRY_S 0.01

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
