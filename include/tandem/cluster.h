/*
 * cluster.h: starting the processes of a world, and those of a session, which may come and go.
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
#include <tandem/comm.h>
#include <tandem/kv.h>
#include <tandem/os.h>
#include <tandem/text.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TDM_MAX_LAUNCH = 4096 }; /* processes of one launcher */

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
 * two seconds to report what they saw, are asked to end by SIGTERM, and killed after grace_s.
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

/* ---- sessions ----------------------------------------------------------------------------------- */

/*
 * A session is one life of a run whose members may come and go (elastic.h). On each host an agent starts
 * its workers, watches them, and starts them again; a launcher starts the agents and waits for the end.
 * Nobody's death ends the session but that of all workers.
 *
 * What a session has on a host lies in the runtime folder of the user: $TANDEM_RUNTIME, or
 * $XDG_RUNTIME_DIR/tandem, or /tmp/tandem-UID, which nobody else can look into:
 *     SESSION.lock    locked, shared, by every process of the session; nobody has it: the session is over
 *     SESSION.url     where its store is
 *     SESSION.store   the store, where it is a local one
 *     SESSION.yaml    its job
 *     SESSION.logs/   what workers print until there is a run
 */
enum { TDM_SESSION_BYTES = 48 };

/* Makes the folder. TDM_ERR_INVALID when it belongs to somebody else, or others can look into it. */
TDM_API tdm_status tdm_runtime_dir(tdm_arena *arena, const char **out, tdm_error *err);

/* Texts come from an arena. */
typedef struct tdm_session_place {
    const char *session;
    const char *store;  /* its URL */
    const char *job;    /* a file */
    const char *logs;   /* a folder */
    const char *secret; /* a file; there where the launcher is */
} tdm_session_place;

/* Those with processes on this host. What others have left is removed. */
TDM_API tdm_status tdm_session_list(tdm_arena *arena, tdm_session_place **out, size_t *out_count,
                                    tdm_error *err);

typedef struct tdm_session_member {
    const char *id, *host, *phase;
    const char *run; /* NULL: it does not know yet */
    int slot;
    int64_t pid;
    int64_t agent;  /* that started it; 0: not known */
    bool is_orphan; /* that agent is gone */
    int rank;       /* in the epoch that counts; -1: none */
    uint64_t step, steps;
    double speed; /* samples a second, of all ranks */
} tdm_session_member;

typedef struct tdm_session_host {
    const char *name;
    int64_t pid; /* of its agent */
    int workers;
    int starting; /* workers that will be started again in a while */
    int processors;
    double load;
    uint64_t memory_free_bytes, memory_bytes;
    uint64_t disk_free_bytes, disk_bytes; /* where the run is; 0: it does not see that */
    const char *trouble;                  /* what is wrong with the host; NULL: nothing */
} tdm_session_host;

/* What the store says about a session. */
typedef struct tdm_session_view {
    const char *session;
    const char *name;         /* of the job */
    const char *run;          /* folder; NULL: none yet */
    const char *dir;          /* in which it was started */
    const char *const *words; /* of a worker's command line, behind the job; NULL at the end */
    int64_t launcher_pid;     /* on its host */
    double began_s;           /* unix */
    int expected, min, max;   /* workers; max 0: no limit */
    uint32_t epoch;           /* 0: none yet */
    int rank_count;
    uint64_t step, steps;
    double speed;
    const char *const *rank_ids; /* by rank */
    const char *const *rank_hosts;
    const char **leaver_ids; /* who was asked to leave, and may be gone already */
    size_t leaver_count;
    bool stopping, now; /* it was asked for; at once */
    bool ended;
    tdm_status status; /* with `ended` */
    const char *message;
    tdm_session_member *members; /* ranks in their order, then who waits */
    size_t member_count;
    tdm_session_host *hosts; /* that have an agent, one for each agent */
    size_t host_count;
} tdm_session_view;

/* TDM_ERR_NOT_FOUND: the store knows no such session. */
TDM_API tdm_status tdm_session_look(tdm_kv *kv, const char *session, tdm_arena *arena,
                                    tdm_session_view *out, tdm_error *err);
/* Names of the sessions in a store. */
TDM_API tdm_status tdm_session_names(tdm_kv *kv, tdm_arena *arena, const char *const **out,
                                     size_t *out_count, tdm_error *err);

/* Asks for something, as users do: "stop" ends with a checkpoint, "now" ends at once, "leave/ID". */
TDM_API tdm_status tdm_session_request(tdm_kv *kv, const char *session, const char *request,
                                       const char *why, tdm_error *err);
/*
 * A checkpoint after the step in progress, after which training goes on. Each wish has a name of its own,
 * drawn by ask_save; who trains answers all that it has seen (up to a revision) with what became of the
 * checkpoint. await_save waits for that: TDM_ERR_TIMEOUT when it did not come in time, TDM_ERR_NOT_FOUND
 * when the session has ended meanwhile. That the checkpoint failed is no error: see its status.
 */
enum { TDM_SAVE_REQUEST_BYTES = 17, TDM_SAVED_PATH_BYTES = 4096 };
typedef struct tdm_session_saved {
    tdm_status status; /* TDM_OK: it is on the disk */
    uint64_t step;
    char path[TDM_SAVED_PATH_BYTES];
    char message[1000]; /* why not */
} tdm_session_saved;
TDM_API tdm_status tdm_session_ask_save(tdm_kv *kv, const char *session, const char *why,
                                        char out_wish[TDM_SAVE_REQUEST_BYTES], tdm_error *err);
TDM_API tdm_status tdm_session_await_save(tdm_kv *kv, const char *session, const char *request,
                                          double seconds, tdm_session_saved *out, tdm_error *err);
TDM_API tdm_status tdm_session_answer_save(tdm_kv *kv, const char *session, uint64_t revision,
                                           const tdm_session_saved *saved, tdm_error *err);
/* Ends the session for all, unless it has ended already. */
TDM_API tdm_status tdm_session_end(tdm_kv *kv, const char *session, tdm_status status,
                                   const char *message, const char *by, tdm_error *err);

/* ---- workers ------------------------------------------------------------------------------------ */

/* How a worker ends, by its exit code; 1 to TDM_MAX_WORKER_ERROR: the job's, the user's or this host's
 * error, the same for any worker. */
enum {
    TDM_WORKER_DONE = 0,
    TDM_MAX_WORKER_ERROR = 5,
    TDM_WORKER_PEER = 6,   /* others failed: another try may help */
    TDM_WORKER_FENCED = 7, /* the others go on without it */
    TDM_WORKER_LEFT = 8,   /* it was asked to leave */
    TDM_WORKER_REFUSED =
        9, /* it does not fit the others (its certificate): another try does not help */
    TDM_WORKER_STOPPED = 130
};
enum { TDM_MAX_SLOTS = 4096 }; /* of living workers on a host */

/* A worker's side of what its agent gave it: this host's memory, its slot, its streams. */
typedef struct tdm_worker tdm_worker;
/* By the environment that an agent has set. TDM_ERR_NOT_FOUND: none has. */
TDM_API tdm_status tdm_worker_open(tdm_worker **out, tdm_error *err);
TDM_API void tdm_worker_close(tdm_worker *worker); /* NULL is fine */
TDM_API tdm_shm *tdm_worker_shm(const tdm_worker *worker);
/* Steps finished: for the agent to know where it died. Cheap. */
TDM_API void tdm_worker_tell(tdm_worker *worker, uint64_t step);
/* From now on its standard streams are those of the session's launcher; before they are its log. */
TDM_API void tdm_worker_speak(tdm_worker *worker);
/* Its log, from now on in this run, where its folder can be seen. */
TDM_API void tdm_worker_move_log(tdm_worker *worker, const char *run_path);
TDM_API int tdm_worker_log_fd(const tdm_worker *worker);
/* A pipe for lines that its agent brings into the run's log, wherever that is: JSON objects of at most
 * TDM_LINE_BYTES and a newline, each with one write; -1: there is none. It never waits. */
enum { TDM_LINE_BYTES = 4095 };
TDM_API int tdm_worker_log_forward_fd(const tdm_worker *worker);

/* ---- agents ------------------------------------------------------------------------------------- */

/* Zero means the default in brackets. */
typedef struct tdm_agent_options {
    tdm_kv_options kv;
    const char *session;
    const char *host;           /* by which members that share memory know each other */
    const char *const *program; /* a worker's command line */
    const char *dir;            /* in which it is executed (here, and where there is none) */
    const char *logs;           /* folder for what workers print */
    int count;                  /* workers (1) */
    bool pin;                   /* as for tdm_launch */
    bool guest;                 /* a signal makes its workers leave, while the others go on */
    int restarts;               /* of a worker within restart_window_s; -1: none (5) */
    double restart_window_s;    /* (300) */
    double grace_s;             /* from asking workers to end to killing them (25) */
    double backoff_s;           /* before the second restart; doubled for each further one (0.5) */
    const char *secret;         /* by which ranks know each other (none) */
    int hold_fd;                /* that workers shall have open, too; 0: none */
} tdm_agent_options;

typedef struct tdm_agent_result {
    bool has_verdict;
    tdm_status status; /* of the session, with a verdict */
    char message[1000];
    int exit_code; /* of the worker that says most about the session's end */
    int restarts;
} tdm_agent_result;

/* Returns when the session has ended and no worker of this agent is left, or there is nothing left to do
 * here. Signals as for tdm_launch: the first one asks the workers to end, the second kills. They may be
 * blocked before the call, so that none comes too early; workers begin with them unblocked. */
TDM_API tdm_status tdm_agent_run(const tdm_agent_options *options, tdm_agent_result *out,
                                 tdm_error *err);

/* ---- the launcher of a session ---------------------------------------------------------------------- */

typedef struct tdm_session_start {
    const char *host;   /* by which members that share memory know each other (this host's name) */
    const char *target; /* for ssh; NULL: this host, without ssh */
    int count;          /* workers */
} tdm_session_start;

typedef struct tdm_session_options {
    tdm_kv_options kv;         /* url NULL: a local store */
    const char *name;          /* of the job */
    const char *session;       /* a name that no other session has or had (drawn anew) */
    const char *job_text;      /* the whole job, as YAML */
    const char *tandem;        /* this program; its command `agent` is an agent */
    const char *remote_tandem; /* on other hosts ("tandem") */
    const char *const *words;  /* of a worker's command line, behind the job; NULL at the end */
    const tdm_session_start *starts;
    int start_count;
    int coming;   /* workers of agents that others start, on other hosts (none) */
    int min, max; /* max 0: no limit */
    double grace_s;
    /* Told when something is worth a line on a terminal; may be NULL. */
    void (*say)(void *user, const char *text);
    void *user;
} tdm_session_options;

typedef struct tdm_session_result {
    char session[TDM_SESSION_BYTES];
    tdm_status status; /* how it ended */
    char message[1000];
    bool stopped;    /* by a wish or a signal, perhaps at its very end: exit_code says so */
    bool agent_lost; /* an agent was killed, and could not say how its workers ended */
    int exit_code;   /* of the agent that says most; 0: none says more than `status` */
    char run[4096];  /* empty: there was none */
} tdm_session_result;

/* Starts the agents, and waits for the session's end. The agents outlive this process. */
TDM_API tdm_status tdm_session_launch(const tdm_session_options *options, tdm_session_result *out,
                                      tdm_error *err);

/* Holds the session on this host: makes its files where they are not there yet, and removes them with the
 * last holder. For agents; the descriptor is to be inherited by workers. */
typedef struct tdm_session_hold {
    int fd;
    tdm_arena *arena; /* of the place */
    tdm_session_place place;
} tdm_session_hold;
TDM_API tdm_status tdm_session_hold_init(const char *session, const char *store,
                                         const char *job_text, tdm_session_hold *out,
                                         tdm_error *err);
TDM_API void tdm_session_hold_release(tdm_session_hold *hold);

/*
 * The secret by which the workers of a session know each other: `given` if it is there, else from
 * TANDEM_SECRET, from the file that TANDEM_SECRET_FILE names, or from the session's file on this host.
 */
TDM_API tdm_status tdm_session_secret(const tdm_session_hold *hold, const char *given,
                                      char out[TDM_SECRET_BYTES], tdm_error *err);
/* The bytes of the line that ssh's input has in front of a job, and the secret in it; 0: there is none. */
TDM_API size_t tdm_session_secret_line(const char *text, char out[TDM_SECRET_BYTES]);
/* TDM_ERR_PEER_REFUSED: it is not the one that the session was started with. */
TDM_API tdm_status tdm_session_secret_check(tdm_kv *kv, const char *session, const char *secret,
                                            tdm_error *err);

/* ---- tasks that another launcher has placed ------------------------------------------------------------ */

/*
 * mpirun and srun start a task for each worker that a host shall have. In a session the first of them leads:
 * it starts the workers, by an agent, and the others wait for its end.
 */
typedef struct tdm_tasks_options {
    const char *name; /* that the tasks of this start have in common on this host, and no others */
    int count;        /* tasks of this host */
    bool (*should_stop)(void *user); /* asked while tasks look for each other; may be NULL */
    void *user;
} tdm_tasks_options;

/* For the first task of a host: meets the others, for ten seconds at most, and puts the calling thread (and
 * so what it starts) onto the processors of all of them. TDM_ERR_INTERRUPTED: should_stop said so. */
typedef struct tdm_tasks tdm_tasks;
TDM_API tdm_status tdm_tasks_lead(const tdm_tasks_options *options, tdm_tasks **out,
                                  tdm_error *err);
/* How many have not come in that time: their processors are not used. */
TDM_API int tdm_tasks_missing(const tdm_tasks *tasks);
/* Tells the others to end with this exit code. NULL is fine. */
TDM_API void tdm_tasks_end(tdm_tasks *tasks, int code);
/* For the others: waits for the leader's exit code. TDM_ERR_TIMEOUT: there is no leader; TDM_ERR_PEER_FAILED:
 * it was killed. Signals whose handlers return disturb it only before it has found the leader, by
 * should_stop: TDM_ERR_INTERRUPTED. */
TDM_API tdm_status tdm_tasks_follow(const tdm_tasks_options *options, int *out_code,
                                    tdm_error *err);

#ifdef __cplusplus
}
#endif
#endif
