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

/* The event loop checks its children this often, in case the kernel delivered SIGCHLD to a thread that does not block
 * it. An exit is then noticed this late; a check is one system call for each child. */
#define TDM__TIMING_OS_CHILD_CHECK_S 0.1

/* ---- net, shm: connections of one host and of several ---------------------------------------------- */

/* ---- boot: rendezvous and control connections ------------------------------------------------------ */

/* ---- transport, comm: messages and collective operations ------------------------------------------- */

/* ---- kv: the store of a session -------------------------------------------------------------------- */

/* ---- membership: leases, members, epochs ----------------------------------------------------------- */

/* ---- launch, cluster: processes, agents, sessions -------------------------------------------------- */

/* tdm_launch: after the first failure, the other ranks report which rank they lost. On a busy host this takes longer
 * than the failure detector of boot, which notices a closed connection at once. */
#define TDM__TIMING_LAUNCH_REPORT_S 2.0

/* tdm_launch: from SIGTERM to SIGKILL, unless the caller sets it. Less than the 10 s after which service managers kill
 * the launcher itself. */
#define TDM__TIMING_LAUNCH_GRACE_S 5.0

/* tdm_launch: processes that a rank started may write after its exit. */
#define TDM__TIMING_LAUNCH_DRAIN_S 1.0

/* From SIGKILL until a launcher or an agent gives up: a process that waits for a disk is killed when the disk responds;
 * releasing a large memory takes seconds. */
#define TDM__TIMING_LAUNCH_UNDEAD_S 20.0

/* Tasks of mpirun or srun: the first task of a host waits this long for the others, which are started at the same time;
 * then it continues without their CPUs. Until then it checks regularly whether it was told to stop. */
#define TDM__TIMING_TASKS_MEET_S 10.0
#define TDM__TIMING_TASKS_STOP_CHECK_S 0.1

/* Tasks of mpirun or srun: how long a task looks for the first one, as long as ranks look for rank 0, and the pauses
 * between attempts, which double. */
#define TDM__TIMING_TASKS_FIND_S 60.0
#define TDM__TIMING_TASKS_MIN_PAUSE_S 0.005
#define TDM__TIMING_TASKS_MAX_PAUSE_S 0.2

/* Agent: how often it reads the store. A local store costs microseconds. A look at etcd is a request from each host. */
#define TDM__TIMING_AGENT_LOOK_LOCAL_S 0.2
#define TDM__TIMING_AGENT_LOOK_FAR_S 1.0

/* Agent: the lease of its record, and how often it is kept: several attempts may fail. */
#define TDM__TIMING_AGENT_LEASE_S 10.0
#define TDM__TIMING_AGENT_BEAT_S 1.0

/* Agent: a worker that an epoch has excluded notices it within this time (membership reads the store more often) and
 * exits by itself; otherwise it is replaced while it still runs. */
#define TDM__TIMING_AGENT_FENCED_S 0.5

/* Agent: a rank without a record in the store is replaced after this time. A worker needs less to renew its record when
 * the store was away. */
#define TDM__TIMING_AGENT_SILENCE_S 5.0

/* Agent: signals within this time count as one request: a batch system also sends its signal to the launcher, which
 * forwards it. A second request to the launcher reaches the agent through the store. */
#define TDM__TIMING_AGENT_SAME_SIGNAL_S 1.0

/* Agent: too few workers for this long are worth a warning; usually they start within a second. */
#define TDM__TIMING_AGENT_SHORT_S 3.0

/* Agent: the longest delay before a restart. It doubles with each restart (0.5, 1, 2, ...). */
#define TDM__TIMING_AGENT_MAX_BACKOFF_S 30.0

/* Agent: before its exit, the agent of rank 0's host waits this long for the last log lines of other hosts, and checks
 * this often whether their agents have gone. */
#define TDM__TIMING_AGENT_LAST_LINES_S 2.0
#define TDM__TIMING_AGENT_LAST_LINES_CHECK_S 0.05

/* Agent: a query of the free disk space is waited for this long, which is enough for most disks; a later result is used
 * at the next read. A disk that has not responded for the second time is reported as silent. */
#define TDM__TIMING_DISK_PROBE_WAIT_S 0.02
#define TDM__TIMING_DISK_PROBE_SILENT_S 10.0

/* Session's launcher: how often it reads the store. A user waits for its exit, so it reads a local store twice as often
 * as an agent. */
#define TDM__TIMING_SESSION_LOOK_LOCAL_S 0.1
#define TDM__TIMING_SESSION_LOOK_FAR_S 1.0

/* Session's launcher: the lease of its key, which tells agents that a process will remove the session, and how often it
 * is kept. */
#define TDM__TIMING_SESSION_LEASE_S 10.0
#define TDM__TIMING_SESSION_BEAT_S 2.0

/* Session's launcher: how long it waits for a result when agents and workers are gone. Workers of an agent that was
 * killed may still write it. Agents that exited have waited
 * for their workers. */
#define TDM__TIMING_SESSION_ALONE_S 5.0
#define TDM__TIMING_SESSION_ALONE_SHORT_S 0.5
#define TDM__TIMING_SESSION_ORPHAN_CHECK_S 0.01

/* Session's launcher: time for agents to exit after their own grace period (elastic.grace). It covers
 * TDM__TIMING_LAUNCH_UNDEAD_S, after which an agent gives up on a process. */
#define TDM__TIMING_SESSION_AGENT_EXIT_S 20.0

/* Session's launcher: for how long it waits for a store that it cannot reach. */
#define TDM__TIMING_SESSION_UNKNOWN_S 120.0

/* Session: its result is kept in the store after the session was removed, for hosts that were cut off: longer than any
 * expected outage of a network. */
#define TDM__TIMING_SESSION_RESULT_S (24.0 * 3600)

/* Session: the pause before another attempt to lock its file, while another process removes the files of an earlier
 * session of this name. That takes a millisecond. */
#define TDM__TIMING_SESSION_LOCK_PAUSE_S 0.005

/* Session: a command that waits for a checkpoint reads the store at least this often, in case a notification is
 * lost. */
#define TDM__TIMING_SESSION_SAVE_LOOK_S 5.0

/* ---- parallel, train: recovery, checkpoints -------------------------------------------------------- */

#endif
