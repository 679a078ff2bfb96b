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
/* How long a process may be stopped while it holds a lock in shared memory. Then a process that waits kills it,
 * because all processes of the host need the lock. Each holder needs it for microseconds. */
#define TDM__TIMING_OS_STOPPED_HOLDER_S 1.0
/* Time between two checks whether the holder of a lock in shared memory is stopped. */
#define TDM__TIMING_OS_LOCK_CHECK_S 0.25
/* Limit for the lock of a shared memory segment: many times the two above, so it passes only on a broken host. */
#define TDM__TIMING_OS_SHM_LOCK_S 20.0

/* ---- net, shm: connections of one host and of several ---------------------------------------------- */

/* Between two calls of should_give_up while a world is opened: an epoch that ends should not wait for its ranks. */
#define TDM__TIMING_NET_CANCELLATION_S 0.004
/* Between two attempts to listen at, or connect to, an address that is not ready: the other side needs some
 * milliseconds to start, and a shorter pause would only use CPU. */
#define TDM__TIMING_NET_RETRY_S 0.05
/* How long an accepted connection may take until it has proved that it knows the secret: real ranks answer at
 * once, even on a slow network; others should not occupy a place for long. */
#define TDM__TIMING_NET_PROOF_S 5.0
/* Limit for all ranks of a host to request its shared memory, and for each answer. The ranks have found each other just
 * before, so they differ by the time to map memory, and by the delays of a busy host. */
#define TDM__TIMING_SHM_JOIN_S 20.0
/* Limit for the first message of a new connection: an unauthenticated process must not occupy it for long. */
#define TDM__TIMING_SHM_HELLO_S 3.0
/* Time between two attempts to connect while the queue of the first rank's socket is full. */
#define TDM__TIMING_SHM_CONNECT_RETRY_S 0.001
/* Limit for the lock of the table of blocks, which a rank holds for microseconds: far more than the time after which
 * a stopped holder is killed (TDM__TIMING_OS_STOPPED_HOLDER_S). */
#define TDM__TIMING_SHM_LOCK_S 10.0

/* ---- boot: rendezvous and control connections ------------------------------------------------------ */

/* Defaults of tdm_comm_options: how long a rank waits for the others to join, for example behind a batch system
 * that starts hosts one after the other, and for the other ranks in a call. */
#define TDM__TIMING_BOOT_JOIN_S 60.0
#define TDM__TIMING_BOOT_DEADLINE_S 30.0
/* One attempt to connect to rank 0: longer than a lost SYN on a good network (1 s). */
#define TDM__TIMING_BOOT_CONNECT_S 2.0
/* Pauses between attempts to join grow from the first to the second: rank 0 of the same start is ready within
 * milliseconds, one that a batch system starts later may take minutes. */
#define TDM__TIMING_BOOT_MIN_RETRY_S 0.005
#define TDM__TIMING_BOOT_MAX_RETRY_S 0.2
/* How long rank 0 retries to listen at a port in use: an earlier world may still be ending. */
#define TDM__TIMING_BOOT_LISTEN_S 3.0
/* How long a rank waits for each frame of the handshake: twice TDM__TIMING_NET_PROOF_S, so that a busy hub closes
 * the connection first and gives the reason. */
#define TDM__TIMING_BOOT_HANDSHAKE_S 10.0
/* How much longer than join_s a rank waits: the hub reports the timeout and the missing ranks. */
#define TDM__TIMING_BOOT_REPORT_S 1.0
/* Pause in accepting connections, if the process has no descriptors left or too many unexpected connections
 * arrive after the start. */
#define TDM__TIMING_BOOT_ACCEPT_PAUSE_S 0.25
/* How long the hub keeps a refused or leaving connection that the other side does not close. */
#define TDM__TIMING_BOOT_LEAVING_S 2.0

/* Interval of heartbeats; in worlds above 1024 ranks it grows with the size, so the hub gets at most 4096 a
 * second. */
#define TDM__TIMING_BOOT_BEAT_S 0.25
/* A rank is quiet (it is named in reports) after this number of intervals without a heartbeat. */
#define TDM__TIMING_BOOT_QUIET_BEATS 1.3
/* Default of TANDEM_SILENCE. A rank is lost after this silence, or after SILENCE_FACTOR times its longest
 * silence so far, because a busy host delays heartbeats; at most MAX_SILENCE_FACTOR times this silence. */
#define TDM__TIMING_BOOT_SILENCE_S 5.0
#define TDM__TIMING_BOOT_SILENCE_FACTOR 4.0
#define TDM__TIMING_BOOT_MAX_SILENCE_FACTOR 10.0
/* Minimum silence, in heartbeat intervals, of worlds above 1024 ranks. */
#define TDM__TIMING_BOOT_SILENCE_BEATS 20
/* A process of this host that is alive and not stopped gets more time, in units of the silence: while it uses
 * CPU (it is lost after IDLE_FACTOR without any), up to SLOW_FACTOR. */
#define TDM__TIMING_BOOT_IDLE_FACTOR 6
#define TDM__TIMING_BOOT_SLOW_FACTOR 24
/* A turn of a thread that is later than this means that its own process was stopped, so the others were not
 * silent. Longer than any delay by the scheduler on a busy host. */
#define TDM__TIMING_BOOT_STALL_S 1.0
/* How long the hub waits for the reason why a rank lost its connection to another one: longer than the reports
 * of a death, of a departure or of a revoked world take, also with a lost packet. */
#define TDM__TIMING_BOOT_SUSPECT_S 1.0

/* How long to wait for an answer of the hub, which needs microseconds: ANSWER_S if it is silent, that is, after
 * ANSWER_BEATS intervals without a heartbeat; up to MAX_ANSWER_S if it sends heartbeats, because it is only
 * busy. Also the limit for the delivery of news that came before the end of the connection. */
#define TDM__TIMING_BOOT_ANSWER_S 0.3
#define TDM__TIMING_BOOT_ANSWER_BEATS 3
#define TDM__TIMING_BOOT_MAX_ANSWER_S 3.0
/* How long both sides wait for the other one to close the connection after a BYE: a rank that ends should not be
 * delayed by a peer that is stopped. */
#define TDM__TIMING_BOOT_BYE_S 0.25

/* ---- transport, comm: messages and collective operations ------------------------------------------- */

/* How long the ranks may take to connect with each other: a busy host needs long for many links. */
#define TDM__TIMING_TRANSPORT_MEET_S 20.0
/* How long a rank that leaves waits until its last messages are sent and its peers answer; and after an error,
 * when peers may be dead and recovery waits: over TCP, and over UCX, whose peers answer later. */
#define TDM__TIMING_TRANSPORT_LEAVE_S 1.0
#define TDM__TIMING_TRANSPORT_LEAVE_BROKEN_S 0.1
#define TDM__TIMING_UCX_LEAVE_BROKEN_S 0.25
/* A wait spins for this time after the last activity, if each rank has a CPU: longer than the answer of a peer
 * takes, shorter than what a sleep and a wake-up cost twice. */
#define TDM__TIMING_TRANSPORT_SPIN_NS 30000
/* Sleeps of transports that cannot wake a thread grow from the first to the second while nothing happens: a
 * sleep costs that latency, a poll costs CPU. */
#define TDM__TIMING_TRANSPORT_MIN_NAP_S 20e-6
#define TDM__TIMING_TRANSPORT_MAX_NAP_S 1e-3
/* The progress thread of UCX takes over when the engine has not called for AWAY_NS. It naps while the engine is
 * active, and sleeps with UCX's events otherwise, with a limit in case an event is lost. */
#define TDM__TIMING_UCX_AWAY_NS 1000000
#define TDM__TIMING_UCX_NAP_MS 4
#define TDM__TIMING_UCX_SLEEP_MS 1000
/* Between two tests of an MPI request that a rank waits for while it starts, forgets a peer or ends. */
#define TDM__TIMING_MPI_NAP_NS 100000
/* How long the ranks wait for each other before MPI_Finalize, which would wait forever for a rank that hangs. */
#define TDM__TIMING_MPI_FINALISE_S 60.0

/* How long the transfers of a failed call, or with a lost peer, may take to end by themselves before their peers
 * are dropped: other ranks notice the failure within milliseconds, and their transfers end then. */
#define TDM__TIMING_COMM_CLEANUP_S 0.2
/* After this wait, the ranks that a call waits for get a notice with its head, which finds calls that do not
 * match. Long enough that calls of a usual training step send none. */
#define TDM__TIMING_COMM_NOTICE_S 0.25
/* How long messages of a rank that has left may still arrive: the control connection may be faster. */
#define TDM__TIMING_COMM_LEFT_S 2.0
/* Maximum sleep of threads that wait for another thread's round, which may end without a signal for them. */
#define TDM__TIMING_COMM_NAP_S 0.05
/* After this time without a completed send, more bytes may be in flight to a peer: a message that is never
 * received must not delay the others. */
#define TDM__TIMING_COMM_STALL_S 0.05

/* ---- kv: the store of a session -------------------------------------------------------------------- */

/* Limit of a call if the caller sets none. It is half of STORE_SILENCE_S (membership), so that a member can lose
 * one call and repeat it before it leaves its epoch. Programs that a user waits for use
 * TDM_KV_PROBE_S (2 s) to open a store. */
#define TDM__TIMING_KV_CALL_S 5.0
/* Longest lease, wait and limit that a caller may ask for: a year. Larger values are mistakes, and
 * the conversion to nanoseconds must not overflow. */
#define TDM__TIMING_KV_MAX_S 31536000.0
/* A process keeps its leases, although it does not renew them, while it lives and has made progress
 * within this time (tdm_kv_options.idle_s of agents, launchers and members). A busy host can keep a
 * process from the CPU for seconds; a process that hangs must lose its leases in the end. It equals
 * MAX_LEASE_S. */
#define TDM__TIMING_KV_OWNER_IDLE_S 30.0

/* Local store: a waiting process checks the store this often although no change woke it, because a
 * process can be killed between a change and the wake-up call. It costs ten short locks per second
 * and process. */
#define TDM__TIMING_KV_LOCAL_CHECK_S 0.1
/* Local store: how often the time of the file is updated. Programs that remove old files from /tmp
 * wait for days. */
#define TDM__TIMING_KV_LOCAL_TOUCH_S 600.0
/* Local store: pause between two attempts to lock the file while another process creates it, which
 * takes some milliseconds. */
#define TDM__TIMING_KV_LOCAL_CREATE_RETRY_S 0.002

/* etcd: minimum time for one server to respond before the next one is tried. A healthy server
 * responds within milliseconds; an election of a new leader takes about a second. Two servers fit
 * into WATCH_CALL_S (membership). */
#define TDM__TIMING_KV_ETCD_SERVER_S 1.0
/* etcd: pause after all servers failed once, so that a cluster that is starting is not flooded with
 * requests. */
#define TDM__TIMING_KV_ETCD_ROUND_S 0.1
/* etcd: minimum time for the first event after a watch was created, even if the caller does not
 * want to wait: etcd sends the events of past changes right after the confirmation. */
#define TDM__TIMING_KV_ETCD_FIRST_EVENT_S 0.05
/* etcd: longest wait inside libcurl before the deadline of the call is checked again. */
#define TDM__TIMING_KV_ETCD_POLL_S 1.0

/* ---- membership: leases, members, epochs ----------------------------------------------------------- */

/* Heartbeats: a member renews its lease this often. A user's lease is renewed four times in its
 * length, and at least once per MAX_HEARTBEAT_S. */
#define TDM__TIMING_MEMBERSHIP_HEARTBEAT_S 0.25
#define TDM__TIMING_MEMBERSHIP_MAX_HEARTBEAT_S 1.0
/* Length of a lease before its owner has measured its heartbeats: twelve heartbeats, for a slow
 * start. */
#define TDM__TIMING_MEMBERSHIP_FIRST_LEASE_S 3.0
/* Bounds of the adaptive lease. The lower one is four heartbeats. The upper one limits how long a
 * member that is silent can block the others, even on a very busy host. */
#define TDM__TIMING_MEMBERSHIP_MIN_LEASE_S 1.0
#define TDM__TIMING_MEMBERSHIP_MAX_LEASE_S 30.0
/* Limit of a call of the watcher. It is shorter than TDM__TIMING_KV_CALL_S, because no heartbeat is
 * sent while a call waits, and long enough to try two etcd servers. */
#define TDM__TIMING_MEMBERSHIP_WATCH_CALL_S 2.0
/* How often the status of a member (step, speed) is written for users; each write wakes all
 * watchers. */
#define TDM__TIMING_MEMBERSHIP_STATUS_S 1.0

/* A member leaves its epoch if the store has not responded for this time, or for its lease if that
 * is longer. The others may have replaced it by then. Steps do not need the store, so a restart of
 * etcd must not end an epoch. */
#define TDM__TIMING_MEMBERSHIP_STORE_SILENCE_S 10.0
/* Members without the state wait this much longer for members whose lease has expired: those leave
 * after STORE_SILENCE_S, and notice it within one WATCH_CALL_S. */
#define TDM__TIMING_MEMBERSHIP_STORE_SILENCE_MARGIN_S 2.0
/* Pause before a call to the store that failed is repeated. */
#define TDM__TIMING_MEMBERSHIP_STORE_RETRY_S 0.1
/* Pause between two attempts to register a member while the store cannot be reached. */
#define TDM__TIMING_MEMBERSHIP_REGISTER_RETRY_S 0.25
/* How often a member that waits for the endpoint of rank 0 checks that its epoch is still current.
 * The endpoint itself wakes it. */
#define TDM__TIMING_MEMBERSHIP_ENDPOINT_CHECK_S 0.25
/* Longest time between two views while the members agree on an epoch. Changes in the store wake the
 * member, so this is only for changes that were missed. */
#define TDM__TIMING_MEMBERSHIP_VIEW_S 5.0

/* Default of elastic.wait: how long a run waits for its minimum of members before it is aborted. A
 * cluster needs minutes to replace a host. */
#define TDM__TIMING_MEMBERSHIP_MIN_MEMBERS_S 600.0
/* Fewer members than the minimum are logged after this time: members of one start are not equally
 * fast. */
#define TDM__TIMING_MEMBERSHIP_MIN_MEMBERS_LOG_S 1.0
/* How long the first epoch is delayed for the other started members once the minimum is ready:
 * loading the data takes a few seconds, and an epoch that begins without them is soon replaced. */
#define TDM__TIMING_MEMBERSHIP_FIRST_EPOCH_S 5.0
/* New members are admitted together: when no further one has become ready for JOIN_SETTLE_S, or the
 * epoch is JOIN_MAX_S old. An epoch lasts at least EPOCH_MIN_S before new members end it, so that
 * training proceeds even if a new one comes every second. */
#define TDM__TIMING_MEMBERSHIP_JOIN_SETTLE_S 0.3
#define TDM__TIMING_MEMBERSHIP_JOIN_MAX_S 2.0
#define TDM__TIMING_MEMBERSHIP_EPOCH_MIN_S 1.0

/* After a failure, how long the members that have left an epoch wait for the reports of the others;
 * epoch.c has a table of the cases. REPORT_S is the default of report_s: an interrupted member
 * leaves within milliseconds, but a pass of a large model cannot be interrupted in the middle of an
 * op. */
#define TDM__TIMING_MEMBERSHIP_REPORT_S 2.0
/* The same for members that no reporter can reach: a report that is on its way arrives within
 * REPORT_LOST_S. */
#define TDM__TIMING_MEMBERSHIP_REPORT_LOST_S 0.4
/* The same for a host that seems to have ended, if some of its members have not been missed yet: a
 * rank notices a closed connection only when it uses it. */
#define TDM__TIMING_MEMBERSHIP_REPORT_HOST_ENDED_S 1.0
/* Without a failure the others may still write a checkpoint: this many times report_s (60 s). */
#define TDM__TIMING_MEMBERSHIP_REGROUP_REPORTS 30.0
/* Longest wait for a member of this host that makes progress, and the interval of asking the kernel
 * about it. As long as a regrouping, because both wait for work that cannot be interrupted. */
#define TDM__TIMING_MEMBERSHIP_REPORT_BUSY_S 60.0
#define TDM__TIMING_MEMBERSHIP_BUSY_CHECK_S 0.25
/* How often the connections to other hosts are checked after an epoch has failed, while one host
 * seems to be ending: the kernel closes the connections of processes that end together within some
 * milliseconds. */
#define TDM__TIMING_MEMBERSHIP_LOST_CHECK_S 0.005

/* Each further reporter proposes the next epoch this much later than the one before, if there is
 * none until then. It is longer than a round trip to the store, so that normally only one
 * proposes. */
#define TDM__TIMING_MEMBERSHIP_PROPOSER_S 0.5
/* How long a member waits for its own record, which its watcher writes again in the next round
 * (HEARTBEAT_S). */
#define TDM__TIMING_MEMBERSHIP_OWN_RECORD_S 0.5
/* Members that are fewer than the minimum because of a network partition try again with all
 * reporters after this time: only an epoch can tell whether the partition has healed. It equals the
 * silence that comm needs to detect a broken connection (TANDEM_SILENCE). */
#define TDM__TIMING_MEMBERSHIP_PARTITION_S 5.0
/* Longest wait for a host that has the newest state in memory while its agent restarts the workers:
 * an agent pauses for up to 30 s between two starts, and a worker needs some seconds to load its
 * data. */
#define TDM__TIMING_MEMBERSHIP_HOLDER_S 45.0
/* First pause after several consecutive epochs failed before their first step; it doubles with each
 * further failure, up to a quarter of report_s. */
#define TDM__TIMING_MEMBERSHIP_BACK_OFF_S 0.01

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

/* ---- server: parameter servers ---------------------------------------------------------------------- */

/* Lease of a server in a local store: a dead server is replaced when it has ended, and clients should not wait for
 * longer than a second. In etcd: whole seconds, and one is often too short for its own elections. */
#define TDM__TIMING_SERVER_LEASE_LOCAL_S 0.6
#define TDM__TIMING_SERVER_LEASE_FAR_S 2.0
/* A lease is renewed after this part of its length, so several attempts may fail. */
#define TDM__TIMING_SERVER_RENEWALS 0.2
/* Limit of a call of the store: longer than a lease, because a server without a store stops to answer anyway. */
#define TDM__TIMING_SERVER_STORE_S 2.0
/* Pause after a failed call of the store. */
#define TDM__TIMING_SERVER_STORE_RETRY_S 0.05
/* A server begins again with its successor after this silence, while it owes an answer; asks to expel it after the
 * second time, which is longer than the load of a part of a copy takes. */
#define TDM__TIMING_SERVER_RELINK_S 1.0
#define TDM__TIMING_SERVER_ACCUSE_S 5.0
/* A worker without a connection does not delay the others (stale) after this time: it may just have been started
 * again. */
#define TDM__TIMING_SERVER_WORKER_S 10.0
/* A client that has left is forgotten after this time: longer than the deadline of any call (1,800 s), so no late
 * repetition of a push is taken for a new one. */
#define TDM__TIMING_SERVER_FORGET_S 3600.0
/* How long all servers of a shard may be gone before that is worth a warning: a lapsed lease comes back sooner. */
#define TDM__TIMING_SERVER_LOST_S 5.0
/* How long a server that leaves waits for others to take over what it has. */
#define TDM__TIMING_SERVER_LEAVE_S 30.0
/* Limit to connect, and the pause after a failed attempt. */
#define TDM__TIMING_SERVER_CONNECT_S 1.0
#define TDM__TIMING_SERVER_RECONNECT_S 0.05
/* Client: default deadline of calls; a request is sent again after RESEND_S without an answer (the connection may have
 * been refused); while it waits, it reads the configuration this often. */
#define TDM__TIMING_SERVER_CALL_S 30.0
#define TDM__TIMING_SERVER_RESEND_S 0.3
#define TDM__TIMING_SERVER_LOOK_LOCAL_S 0.02
#define TDM__TIMING_SERVER_LOOK_FAR_S 0.2

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

/* With sync.order live, how long a rank without a complete gradient waits before it asks the others: a sixteenth of the
 * time of a gradient, within these limits. A gradient of another rank waits for that long at most; asking costs a small
 * exchange. */
#define TDM__TIMING_PARALLEL_LIVE_MIN_S 100e-6
#define TDM__TIMING_PARALLEL_LIVE_MAX_S 5e-3

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

/* Limit for another process to copy the data into shared memory: a constant, and a part for each byte, for a slow
 * machine (100 MB/s). Then this process keeps its own copy. */
#define TDM__TIMING_TRAIN_DATA_COPY_S 10.0
#define TDM__TIMING_TRAIN_DATA_COPY_BYTE_S 10e-9
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
