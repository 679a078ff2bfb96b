/*
 * cluster.h: starts the processes of a fixed world, and of a session whose processes can change.
 *
 * tdm_launch starts N copies of a program on this host. Each copy gets its rank and its connection
 * settings in the environment (TANDEM_RANK, TANDEM_SIZE, TANDEM_LOCAL_RANK, TANDEM_LOCAL_SIZE,
 * TANDEM_RENDEZVOUS, TANDEM_SECRET, TANDEM_RUN; TANDEM_TRANSPORT and TANDEM_JOB if they are set).
 * The launcher watches the copies, forwards signals and ends all of them when one fails. The ranks
 * die with their launcher, however it ends.
 *
 * Each rank runs in its own process group. Ctrl-C in a terminal therefore reaches only the
 * launcher, which forwards it once, and killing a rank that is a script also kills the processes it
 * started. As a consequence no rank can read from a terminal. The standard input of a rank is
 * empty, except for the first rank if the launcher's standard input is a file or a pipe.
 */
#ifndef TANDEM_CLUSTER_H
#define TANDEM_CLUSTER_H

#include <tandem/base.h>
#include <tandem/comm.h>
#include <tandem/kv.h>
#include <tandem/os.h>
#include <tandem/text.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TDM_MAX_LAUNCH = 4096 }; /* processes started by one launcher */

/* Zero means the default in brackets. */
typedef struct tdm_launch_options {
    const char *const *program; /* path or name (searched in PATH) and arguments; ends with NULL */
    int count;              /* number of processes to start (the CPUs that this process may use) */
    int first_rank, size;   /* of the whole world, if other hosts start ranks as well (0, count) */
    const char *rendezvous; /* HOST:PORT or a file (a socket of this launcher) */
    const char *secret; /* (with a rendezvous: TANDEM_SECRET of this process; otherwise random) */
    const char *transport, *job;
    const char *run; /* run directory, for traces (a temporary one, removed on success) */
    bool label;      /* prefix each output line of a rank with "[3] "; lines are cut at 1 MB */
    bool pin;        /* pin each rank to an equal share of the CPUs, if there are enough */
    double grace_s;  /* from SIGTERM to SIGKILL (5) */
} tdm_launch_options;

typedef struct tdm_launch_result {
    int failed_rank;       /* the rank that failed first; -1: none */
    int exit_code;         /* exit code of that rank; 128 + signal if it was killed */
    int ended_signal;      /* the signal that killed it, or 0 */
    bool interrupted;      /* the launcher received a signal to end */
    int output_errno;      /* with labels: errno if output of ranks was lost; otherwise 0 */
    char how[128];         /* "rank 2 was killed by signal 9 (Killed)"; empty if none failed */
    char run[512];         /* directory with the traces, if it was kept; otherwise empty */
    bool run_is_temporary; /* the directory was created for this launch */
} tdm_launch_result;

/*
 * Returns when all ranks have exited. When one fails (exit code other than 0, or a signal), the
 * others have two seconds to report errors; then they get SIGTERM, and SIGKILL after grace_s.
 * SIGINT, SIGTERM and SIGHUP, unless ignored, are forwarded the first time; the second one kills.
 * If the program cannot be executed, the call fails with an error that names it, and no process is
 * left running.
 *
 * Call it from a thread that lives at least as long as the ranks. The signals are received in that
 * thread, so other threads should block them.
 */
TDM_API tdm_status tdm_launch(const tdm_launch_options *options, tdm_launch_result *out,
                              tdm_error *err);
/* Removes the directory with the traces if it is temporary and was kept. For failures that traces
 * cannot explain. */
TDM_API void tdm_launch_forget(tdm_launch_result *result);

/* ---- sessions -------------------------------------------------------------------------------- */

/*
 * A session is one execution of a run whose members can change (elastic.h). An agent on each host
 * starts the workers, watches them and restarts them. A launcher starts the agents and waits for
 * the end. A session survives the death of any of its processes, as long as one worker is left.
 *
 * The files of a session are in the runtime directory of the user: $TANDEM_RUNTIME,
 * $XDG_RUNTIME_DIR/tandem or /tmp/tandem-UID, with mode 700:
 *     SESSION.lock    locked by every process of the session; unlocked: the session has ended
 *     SESSION.url     the address of its store
 *     SESSION.store   the store, if it is local
 *     SESSION.yaml    the job
 *     SESSION.logs/   output of workers before the run directory exists
 */
enum { TDM_SESSION_BYTES = 48 };

/* Creates the runtime directory. TDM_ERR_INVALID if it belongs to another user or others can access
 * it. */
TDM_API tdm_status tdm_runtime_dir(tdm_arena *arena, const char **out, tdm_error *err);

/* The strings are allocated from an arena. */
typedef struct tdm_session_place {
    const char *session;
    const char *store;  /* URL */
    const char *job;    /* path */
    const char *logs;   /* directory */
    const char *secret; /* path; exists on the launcher's host */
} tdm_session_place;

/* Lists the sessions with processes on this host. Removes the files of sessions that have ended. */
TDM_API tdm_status tdm_session_list(tdm_arena *arena, tdm_session_place **out, size_t *out_count,
                                    tdm_error *err);

typedef struct tdm_session_member {
    const char *id, *host, *phase;
    const char *run; /* NULL: not known yet */
    int slot;
    int64_t pid;
    int64_t agent;  /* process id of the agent that started it; 0: unknown */
    bool is_orphan; /* the agent that started it is gone */
    int rank;       /* in the current epoch; -1: none */
    uint64_t step, steps;
    double speed;        /* samples per second, of all ranks */
    uint64_t sent_bytes; /* by all replicas in a step, compressed; 0: nothing is compressed */
    double compression;  /* their size as f32, relative to that */
} tdm_session_member;

typedef struct tdm_session_host {
    const char *name;
    int64_t pid; /* of the agent */
    int workers;
    int starting; /* workers with a pending restart */
    int processors;
    double load;
    uint64_t memory_free_bytes, memory_bytes;
    uint64_t disk_free_bytes, disk_bytes; /* of the run directory's disk; 0: not visible there */
    const char *trouble;                  /* problem of the host; NULL: none */
} tdm_session_host;

/* The state of a session according to the store. */
typedef struct tdm_session_view {
    const char *session;
    const char *name;         /* of the job */
    const char *run;          /* run directory; NULL: none yet */
    const char *dir;          /* working directory of the launcher */
    const char *const *words; /* arguments of a worker after the job; ends with NULL */
    int64_t launcher_pid;     /* on the launcher's host */
    double began_s;           /* Unix time */
    int expected, min, max;   /* of workers; max 0: no limit */
    bool is_fixed;            /* see tdm_session_options */
    uint32_t epoch;           /* 0: no epoch yet */
    int rank_count;
    uint64_t step, steps;
    double speed;
    uint64_t sent_bytes; /* as that of a member */
    double compression;
    const char *const *rank_ids; /* by rank */
    const char *const *rank_hosts;
    const char **leaver_ids; /* members that were asked to leave; some may be gone already */
    size_t leaver_count;
    bool stopping, now; /* a stop was requested; an immediate stop */
    bool ended;
    tdm_status status; /* valid if `ended` */
    const char *message;
    tdm_session_member *members; /* ranks in order, then members that wait */
    size_t member_count;
    tdm_session_host *hosts; /* one entry for each agent */
    size_t host_count;
} tdm_session_view;

/* Reads a session from the store. TDM_ERR_NOT_FOUND: the store has no such session. */
TDM_API tdm_status tdm_session_look(tdm_kv *kv, const char *session, tdm_arena *arena,
                                    tdm_session_view *out, tdm_error *err);
/* Lists the sessions of a store. */
TDM_API tdm_status tdm_session_names(tdm_kv *kv, tdm_arena *arena, const char *const **out,
                                     size_t *out_count, tdm_error *err);

/* Writes a request of a user: "stop" ends with a checkpoint, "now" ends at once, "leave/ID" removes
 * a member. */
TDM_API tdm_status tdm_session_request(tdm_kv *kv, const char *session, const char *request,
                                       const char *why, tdm_error *err);
/*
 * Requests for a checkpoint after the current step; training continues. ask_save writes a request
 * with a random name. Rank 0 answers all requests up to a revision with the result of the
 * checkpoint. await_save waits for that result: TDM_ERR_TIMEOUT if none appears in time,
 * TDM_ERR_NOT_FOUND if the session ended meanwhile. A failed checkpoint is not an error of the
 * call: check `status`.
 */
enum { TDM_SAVE_REQUEST_BYTES = 17, TDM_SAVED_PATH_BYTES = 4096 };
typedef struct tdm_session_saved {
    tdm_status status; /* TDM_OK: it is on disk */
    uint64_t step;
    char path[TDM_SAVED_PATH_BYTES];
    char message[1000]; /* the error */
} tdm_session_saved;
TDM_API tdm_status tdm_session_ask_save(tdm_kv *kv, const char *session, const char *why,
                                        char out_request[TDM_SAVE_REQUEST_BYTES], tdm_error *err);
TDM_API tdm_status tdm_session_await_save(tdm_kv *kv, const char *session, const char *request,
                                          double seconds, tdm_session_saved *out, tdm_error *err);
/* Ends the session for all its processes, unless it has ended already. */
TDM_API tdm_status tdm_session_end(tdm_kv *kv, const char *session, tdm_status status,
                                   const char *message, const char *by, tdm_error *err);

/* ---- workers --------------------------------------------------------------------------------- */

/* Exit codes of a worker. 1 to TDM_MAX_WORKER_ERROR: an error of the job, the user or the host that
 * any worker would meet. */
enum {
    TDM_WORKER_DONE = 0,
    TDM_MAX_WORKER_ERROR = 5,
    TDM_WORKER_PEER = 6,   /* other members failed: a retry may help */
    TDM_WORKER_FENCED = 7, /* the other members continue without it */
    TDM_WORKER_LEFT = 8,   /* it was asked to leave */
    TDM_WORKER_REFUSED =
        9, /* it does not fit the others (its certificate): another try does not help */
    TDM_WORKER_STOPPED = 130
};
enum { TDM_MAX_SLOTS = 4096 }; /* running workers on a host */

/* What an agent passes to a worker: the shared memory segment of the host, the slot and the output
 * streams. */
typedef struct tdm_worker tdm_worker;
/* Reads the environment that an agent sets. TDM_ERR_NOT_FOUND: no agent started this process. */
TDM_API tdm_status tdm_worker_open(tdm_worker **out, tdm_error *err);
TDM_API void tdm_worker_close(tdm_worker *worker); /* NULL is fine */
TDM_API tdm_shm *tdm_worker_shm(const tdm_worker *worker);
/* Publishes the number of completed steps, so that the agent can report where a worker died.
 * Cheap. */
TDM_API void tdm_worker_tell(tdm_worker *worker, uint64_t step);
/* Connects standard output and standard error to those of the launcher. Until then they go to the
 * worker's log. */
TDM_API void tdm_worker_speak(tdm_worker *worker);
/* Moves the worker's log to this run directory, if this host can access it. */
TDM_API void tdm_worker_move_log(tdm_worker *worker, const char *run_path);
TDM_API int tdm_worker_log_fd(const tdm_worker *worker);
/* A pipe for lines that the agent forwards to the run's log on any host: JSON objects of at most
 * TDM_LINE_BYTES and a newline, each written with one write. Non-blocking. -1: none. */
enum { TDM_LINE_BYTES = 4095 };
TDM_API int tdm_worker_log_forward_fd(const tdm_worker *worker);

/* ---- agents ---------------------------------------------------------------------------------- */

/* Zero means the default in brackets. */
typedef struct tdm_agent_options {
    tdm_kv_options kv;
    const char *session;
    const char *host;           /* members with the same host name share memory */
    const char *const *program; /* command line of a worker */
    const char *dir; /* working directory of workers (the current one, also if it does not exist) */
    const char *logs;        /* directory for the output of workers */
    int count;               /* number of workers (1) */
    bool pin;                /* as in tdm_launch */
    bool guest;              /* a signal makes its workers leave; the other members continue */
    int restarts;            /* of a worker within restart_window_s; -1: no restart (5) */
    double restart_window_s; /* (300) */
    double grace_s;          /* from the request to end to SIGKILL (25) */
    double backoff_s;        /* before the second restart; doubles with each further one (0.5) */
    const char *secret;      /* shared secret of the ranks (none) */
    int hold_fd;             /* file descriptor that workers inherit; 0: none */
} tdm_agent_options;

typedef struct tdm_agent_result {
    bool has_verdict;
    tdm_status status; /* of the session, valid if has_verdict */
    char message[1000];
    int exit_code; /* of the worker whose exit best explains the end of the session */
    int restarts;
} tdm_agent_result;

/*
 * Runs an agent until the session has ended and none of its workers is left, or until it has
 * nothing left to do. Signals as in tdm_launch: the first one asks the workers to end, the second
 * kills them. They may be blocked before the call, so that none arrives too early; workers start
 * with them unblocked.
 */
TDM_API tdm_status tdm_agent_run(const tdm_agent_options *options, tdm_agent_result *out,
                                 tdm_error *err);

/* ---- launcher of a session ------------------------------------------------------------------- */

typedef struct tdm_session_start {
    const char *host;   /* members with the same host name share memory (this host's name) */
    const char *target; /* destination of ssh; NULL: this host, without ssh */
    int count;          /* number of workers */
} tdm_session_start;

typedef struct tdm_session_options {
    tdm_kv_options kv;         /* url NULL: create a local store */
    const char *name;          /* of the job */
    const char *session;       /* unique name (random) */
    const char *job_text;      /* the complete job as YAML */
    const char *tandem;        /* path of this program; its command `agent` runs an agent */
    const char *remote_tandem; /* path on other hosts ("tandem") */
    const char *const *words;  /* arguments of a worker after the job; ends with NULL */
    const tdm_session_start *starts;
    int start_count;
    int coming;   /* workers of agents that other launchers start on other hosts (0) */
    int min, max; /* max 0: no limit */
    /* Workers are not replaced: the session ends with TDM_ERR_PEER_FAILED when one dies. For min =
     * max = the number of workers. */
    bool is_fixed;
    double grace_s;
    /* Called with messages for the terminal; may be NULL. */
    void (*say)(void *user, const char *text);
    void *user;
} tdm_session_options;

typedef struct tdm_session_result {
    char session[TDM_SESSION_BYTES];
    tdm_status status; /* result of the session */
    char message[1000];
    bool stopped;    /* by a request or a signal, maybe just as it completed: see exit_code */
    bool agent_lost; /* an agent was killed and could not report how its workers ended */
    int exit_code;   /* of the agent whose exit best explains the end; 0: `status` is sufficient */
    char run[4096];  /* run directory; empty: none */
} tdm_session_result;

/* Starts the agents and waits for the end of the session. The agents outlive this process. */
TDM_API tdm_status tdm_session_launch(const tdm_session_options *options, tdm_session_result *out,
                                      tdm_error *err);

/* Holds the session's lock on this host. Creates the files of the session if they do not exist; the
 * last holder removes them. For agents; workers inherit the file descriptor. */
typedef struct tdm_session_hold {
    int fd;
    tdm_arena *arena; /* owns the strings of place */
    tdm_session_place place;
} tdm_session_hold;
TDM_API tdm_status tdm_session_hold_init(const char *session, const char *store,
                                         const char *job_text, tdm_session_hold *out,
                                         tdm_error *err);
TDM_API void tdm_session_hold_release(tdm_session_hold *hold);

/*
 * Finds the secret that authenticates the workers of a session: `given` if it is not NULL,
 * otherwise from TANDEM_SECRET, from the file named by TANDEM_SECRET_FILE, or from the session's
 * file on this host.
 */
TDM_API tdm_status tdm_session_secret(const tdm_session_hold *hold, const char *given,
                                      char out[TDM_SECRET_BYTES], tdm_error *err);
/* Parses the line with the secret that precedes the job on the standard input of an agent started
 * by ssh. Returns the length of the line; 0: there is none. */
TDM_API size_t tdm_session_secret_line(const char *text, char out[TDM_SECRET_BYTES]);
/* Compares the secret with the hash in the store. TDM_ERR_PEER_REFUSED: the session was started
 * with another secret. */
TDM_API tdm_status tdm_session_secret_check(tdm_kv *kv, const char *session, const char *secret,
                                            tdm_error *err);

/* ---- tasks started by mpirun or srun --------------------------------------------------------- */

/*
 * mpirun and srun start one task for each worker of a host. In a session, the first task of a host
 * is the leader: it runs an agent that starts all workers. The other tasks wait for the leader's
 * exit.
 */
typedef struct tdm_tasks_options {
    const char *name; /* common to the tasks of this launch on this host, and unique to them */
    int count;        /* number of tasks on this host */
    bool (*should_stop)(void *user); /* polled while the tasks find each other; may be NULL */
    void *user;
} tdm_tasks_options;

/* For the first task of a host. Waits up to ten seconds for the other tasks, then extends the CPU
 * affinity of the calling thread (and of processes it starts) to the CPUs of all tasks.
 * TDM_ERR_INTERRUPTED: should_stop returned true. */
typedef struct tdm_tasks tdm_tasks;
TDM_API tdm_status tdm_tasks_lead(const tdm_tasks_options *options, tdm_tasks **out,
                                  tdm_error *err);
/* The number of tasks that did not appear in that time. Their CPUs are not used. */
TDM_API int tdm_tasks_missing(const tdm_tasks *tasks);
/* Makes the other tasks exit with this code. NULL is fine. */
TDM_API void tdm_tasks_end(tdm_tasks *tasks, int code);
/* For the other tasks. Waits for the leader's exit code. TDM_ERR_TIMEOUT: a leader was not found.
 * TDM_ERR_PEER_FAILED: the leader was killed. TDM_ERR_INTERRUPTED: should_stop returned true before
 * the leader was found. Later, signals with a handler that returns have no effect. */
TDM_API tdm_status tdm_tasks_follow(const tdm_tasks_options *options, int *out_code,
                                    tdm_error *err);

#ifdef __cplusplus
}
#endif
#endif
