/*
 * cluster.h: starting the processes of a world.
 *
 * A launcher starts N copies of a program on this host, each with its place in the environment
 * (TANDEM_RANK, TANDEM_SIZE, TANDEM_LOCAL_RANK, TANDEM_LOCAL_SIZE, TANDEM_RENDEZVOUS, TANDEM_SECRET,
 * TANDEM_RUN, and TANDEM_TRANSPORT, TANDEM_JOB where they are set), watches them, passes signals on,
 * and ends them all when one fails. The ranks die with their launcher, however it ends.
 *
 * Each rank is in a process group of its own, so that Ctrl-C at a terminal reaches the launcher alone,
 * which passes it on once, and so that a rank that is a script takes what it started with it. Hence no
 * rank can read from a terminal: their input is empty, but for the first one's, when this process's
 * own is a file or a pipe.
 */
#ifndef TANDEM_CLUSTER_H
#define TANDEM_CLUSTER_H

#include <tandem/base.h>
#include <tandem/text.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TDM_LAUNCH_MOST = 4096 }; /* processes of one launcher */

/* Zero means the default in brackets. */
typedef struct tdm_launch_options {
    const char *const
        *program;         /* its path or name (looked up in PATH) and arguments; NULL at the end */
    int count;            /* how many to start here (the processors this process may use) */
    int first_rank, size; /* of the whole world, when other hosts start some too (0, count) */
    const char *rendezvous; /* HOST:PORT or a file (a socket of this launcher's own) */
    const char *secret;     /* (with a rendezvous TANDEM_SECRET of this process; else drawn anew) */
    const char *transport, *job;
    const char
        *run;       /* the run's folder, for traces (a temporary one, removed when all goes well) */
    bool label;     /* "[3] " in front of every line that a rank writes; past 1 MB a line is cut */
    bool pin;       /* each rank to an equal share of the processors, where there are enough */
    double grace_s; /* from asking the others to end to killing them (5) */
} tdm_launch_options;

typedef struct tdm_launch_result {
    int failed_rank;       /* that failed first; -1: none */
    int exit_code;         /* of it; 128 + signal when a signal ended it */
    int ended_signal;      /* which, or 0 */
    bool interrupted;      /* this launcher was asked to end */
    int output_errno;      /* with labels: why some of what ranks wrote was lost; 0: nothing was */
    char how[128];         /* "rank 2 was killed by signal 9 (Killed)"; empty when none failed */
    char run[512];         /* the folder with the traces, when it was kept; else empty */
    bool run_is_temporary; /* it was made for this launch alone */
} tdm_launch_result;

/*
 * Returns when all have ended. When one fails (by a code other than 0, or a signal), the others have
 * half a second to report what they saw, are asked to end by SIGTERM, and killed after grace_s.
 * SIGINT, SIGTERM and SIGHUP, unless they are ignored, are passed on the first time; the second one
 * kills. A program that cannot be run is an error that names it; nothing is left running then.
 *
 * To be called from a thread that lives on while the ranks do; the signals are taken from that thread,
 * so other threads should block them.
 */
TDM_API tdm_status tdm_launch(const tdm_launch_options *options, tdm_launch_result *out,
                              tdm_error *err);
/* Removes the folder with the traces when it is a temporary one that was kept: for failures that have
 * nothing to do with who waited for whom. */
TDM_API void tdm_launch_forget(tdm_launch_result *result);

#ifdef __cplusplus
}
#endif
#endif
