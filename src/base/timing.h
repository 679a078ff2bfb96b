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

/* ---- parallel, train: recovery, checkpoints -------------------------------------------------------- */

#endif
