/*
 * session_launch.c: starts the agents of a session and waits for its end.
 *
 * Agents run in their own sessions (setsid), so that Ctrl-C reaches only the launcher. Agents on
 * other hosts are started by ssh, with the job as input. The launcher reads the result from the
 * store several times a second. The first signal becomes a request to stop, the second one a
 * request to stop at once. Both reach all hosts through the store, and agents of this host also by
 * a signal. If the launcher dies, agents and workers continue.
 *
 *     TRAINING <--> UNKNOWN      TRAINING   the session has agents or workers
 *        ^  \          |         UNKNOWN    the store cannot be read, for two minutes at most
 *        |   v         |         ALONE      agents and workers are gone, the result is missing
 *      ALONE <---------+         ENDED      the result is known; agents exit
 *     any -> ENDED
 *
 *     transition                            function
 *     between TRAINING, UNKNOWN and ALONE   launcher_observe
 *     any -> ENDED                          launcher_take_verdict
 *     any -> return                         launcher_is_done
 *
 * Invariant: it returns when there is a result and its agents have exited (or have had their time
 * for that), or when neither agents nor workers are left.
 */
#include "base/base.h"
#include "base/timing.h"
#include "cluster/log_forward.h"
#include "cluster/session.h"
#include "kv/kv.h"
#include "launch/processes.h"

#include <tandem/elastic.h>
#include <tandem/os.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NAME_BYTES = 5, MAX_DRAWS = 16, MAX_SSH_WORDS = 32 };
enum { NO_PROGRAM = 126, SSH_FAILED = 255 }; /* exit codes of a shell (also 127) and of ssh */
static const char ssh_usual[] = "ssh -o BatchMode=yes";

typedef enum launcher_state {
    LAUNCHER_TRAINING,
    LAUNCHER_UNKNOWN,
    LAUNCHER_ALONE,
    LAUNCHER_ENDED,
} launcher_state;

typedef struct started_agent {
    tdm__process process; /* first */
    int index;            /* in the options' starts */
    bool is_local;
    bool was_killed; /* by a signal */
    bool was_seen;   /* its record was seen in the store */
} started_agent;

typedef struct launcher {
    const tdm_session_options *options;
    tdm_arena *arena;
    tdm_session_hold hold;
    tdm_kv *kv;
    tdm_kv_options kv_options;
    uint64_t lease;
    char dir[PATH_MAX];

    tdm__loop *loop;
    tdm__processes running;
    started_agent *agents;
    tdm__loop_timer look_timer, beat_timer;
    int signal_count;

    launcher_state state;
    double state_s;              /* since when it is in this state */
    double end_at_s;             /* it waits no longer than this; INFINITY: no limit yet */
    bool has_members, has_hosts; /* in the store, at the last look */
    bool has_seen_hosts;         /* a host was in the store at any time */
    double unknown_since_s;      /* the store cannot be read; INFINITY: it can */
    char secret[TDM_SECRET_BYTES];
    tdm_session_result result;
} launcher;

static void launcher_say(const launcher *l, const char *fmt, ...) TDM_PRINTF(2, 3);
static void launcher_say(const launcher *l, const char *fmt, ...)
{
    char text[1200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (l->options->say) l->options->say(l->options->user, text);
}

/* ---- session --------------------------------------------------------------------------------- */

static tdm_status launcher_hold(launcher *l, tdm_error *err)
{
    return tdm_session_hold_init(l->result.session, l->options->kv.url, l->options->job_text,
                                 &l->hold, err);
}

/* Chooses a unique session name and creates its files. */
static tdm_status launcher_begin(launcher *l, tdm_error *err)
{
    tdm_session_place *stale;
    size_t count;
    TDM_TRY(tdm_session_list(l->arena, &stale, &count, err)); /* removes stale files */
    tdm_status status = TDM_ERR_BUSY;
    if (l->options->session) {
        snprintf(l->result.session, sizeof(l->result.session), "%s", l->options->session);
        return launcher_hold(l, err);
    }
    for (int i = 0; i < MAX_DRAWS && status == TDM_ERR_BUSY; i++) {
        uint8_t drawn[NAME_BYTES];
        char name[2 * NAME_BYTES + 1];
        TDM_TRY(tdm_os_random(drawn, sizeof(drawn), err));
        tdm_hex(drawn, sizeof(drawn), name);
        snprintf(l->result.session, sizeof(l->result.session), "%.24s-%s", l->options->name, name);
        if (!tdm__session_name_is_good(l->result.session, TDM_SESSION_BYTES))
            snprintf(l->result.session, sizeof(l->result.session), "s-%s", name);
        status = launcher_hold(l, err);
    }
    return status;
}

static void session_describe(const launcher *l, tdm_str *out)
{
    const tdm_session_options *o = l->options;
    int expected = o->coming;
    for (int i = 0; i < o->start_count; i++) expected += o->starts[i].count;
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_string(&w, "name", o->name);
    tdm_json_put_string(&w, "dir", l->dir);
    tdm_json_put_int(&w, "expected", expected);
    tdm_json_put_int(&w, "min", o->min);
    tdm_json_put_int(&w, "max", o->max);
    if (o->is_fixed) tdm_json_put_int(&w, "fixed", 1);
    tdm_json_put_double(&w, "began", tdm_clock_unix_s());
    tdm_json_put_int(&w, "launcher", (int64_t)getpid());
    tdm_json_key(&w, "words");
    tdm_json_array_begin(&w);
    for (const char *const *word = o->words; word && *word; word++) tdm_json_string(&w, *word);
    tdm_json_array_end(&w);
    tdm_json_object_end(&w);
}

static tdm_status store_put(launcher *l, const char *name, const char *value, uint64_t lease,
                            tdm_error *err)
{
    char key[TDM_KV_KEY_BYTES];
    return tdm_kv_put(l->kv, tdm__session_key(key, l->result.session, "%s", name), value, lease,
                      err);
}

/* A given name may already be in the store: then that session is not touched. */
static tdm_status session_check_name(launcher *l, tdm_error *err)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_kv_item item;
    if (!l->options->session) return TDM_OK;
    tdm_status status = tdm_kv_get(l->kv, tdm__session_key(key, l->result.session, "about"),
                                   l->arena, &item, err);
    if (status == TDM_ERR_NOT_FOUND) {
        tdm__session_begin(l->kv, l->result.session);
        return TDM_OK;
    }
    if (status == TDM_OK)
        status = tdm_fail(err, TDM_ERR_BUSY,
                          "the store already has a session %s; 'tandem stop %s' ends it",
                          l->result.session, l->result.session);
    tdm_kv_close(l->kv);
    l->kv = NULL;
    return status;
}

/* Anyone who can write to the store can stop the run or prevent it from continuing. */
static void store_warn(const launcher *l)
{
    const tdm_kv_options *kv = &l->kv_options;
    bool is_plain = strstr(kv->url, "http://") != NULL;
    bool has_user = kv->user || kv->certificate;
    if (strncmp(kv->url, "etcd:", 5) != 0 || (!is_plain && has_user)) return;
    launcher_say(
        l,
        "etcd is used %s%s%s: anyone who can reach it can stop or disturb this run, but not join "
        "it or read its parameters; use https:// endpoints and etcd.user",
        is_plain ? "without TLS" : "", is_plain && !has_user ? " and " : "",
        has_user ? "" : "without a user");
}

static tdm_status store_fill(launcher *l, tdm_error *err)
{
    tdm_str about = TDM_STR_INIT;
    if (!getcwd(l->dir, sizeof(l->dir)))
        return tdm_os_fail(err, "cannot find", "the current directory");
    l->kv_options = l->options->kv;
    l->kv_options.url = l->hold.place.store;
    l->kv_options.idle_s = TDM__TIMING_KV_OWNER_IDLE_S;
    l->kv_options.probe_s = TDM_KV_PROBE_S;
    TDM_TRY(tdm_kv_open(&l->kv_options, &l->kv, err));
    TDM_TRY(session_check_name(l, err));
    store_warn(l);
    TDM_TRY(tdm__session_secret_begin(&l->hold, l->secret, err));
    TDM_TRY(tdm_kv_lease(l->kv, TDM__TIMING_SESSION_LEASE_S, &l->lease, err));
    TDM_TRY(store_put(l, "launcher", "{}", l->lease, err));
    TDM_TRY(tdm__session_secret_publish(l->kv, l->result.session, l->secret, err));
    if (strlen(l->options->job_text) < TDM_KV_VALUE_BYTES)
        TDM_TRY(store_put(l, "job", l->options->job_text, 0, err));
    session_describe(l, &about);
    tdm_status status = store_put(l, "about", tdm_str_text(&about), 0, err);
    tdm_str_release(&about);
    return status;
}

/* ---- agents ---------------------------------------------------------------------------------- */

/* The arguments of an agent. */
static const char **agent_words(launcher *l, const tdm_session_start *start, const char *host,
                                const char *job)
{
    size_t more = 0;
    while (l->options->words && l->options->words[more]) more++;
    const char **words = tdm_arena_array(l->arena, 20 + more, sizeof(*words));
    const char *count = tdm_arena_printf(l->arena, "%d", start->count);
    const char *remote = l->options->remote_tandem ? l->options->remote_tandem : "tandem";
    if (!words || !count) return NULL;
    const char *first[] = {start->target ? remote : l->options->tandem,
                           "agent",
                           "--session",
                           l->result.session,
                           "--store",
                           l->hold.place.store,
                           "--host",
                           host,
                           "--workers",
                           count,
                           "--dir",
                           l->dir,
                           "--job",
                           job,
                           "--"};
    size_t n = sizeof(first) / sizeof(first[0]);
    memcpy(words, first, sizeof(first));
    for (size_t i = 0; i < more; i++) words[n++] = l->options->words[i];
    return words;
}

/* Quotes the arguments for a shell. */
static char *shell_text(tdm_arena *arena, const char *const *words)
{
    tdm_str text = TDM_STR_INIT;
    tdm_str_add(&text, "exec");
    for (; *words; words++) {
        tdm_str_add(&text, " '");
        for (const char *c = *words; *c; c++) {
            if (*c == '\'')
                tdm_str_add(&text, "'\\''");
            else
                tdm_str_add_char(&text, *c);
        }
        tdm_str_add_char(&text, '\'');
    }
    char *copy = tdm_str_ok(&text) ? tdm_arena_strdup(arena, tdm_str_text(&text)) : NULL;
    tdm_str_release(&text);
    return copy;
}

static const char *ssh_text(void)
{
    const char *set = getenv("TANDEM_SSH");
    return set && *set ? set : ssh_usual;
}

/* ssh, or the command in TANDEM_SSH split at spaces; then the host and the command. */
static const char **ssh_words(launcher *l, const char *host, const char *command)
{
    char *text = tdm_arena_strdup(l->arena, ssh_text());
    const char **words = tdm_arena_array(l->arena, MAX_SSH_WORDS + 3, sizeof(*words));
    int n = 0;
    char *rest = NULL;
    if (!text || !words || !command) return NULL;
    for (char *word = strtok_r(text, " ", &rest); word && n < MAX_SSH_WORDS;
         word = strtok_r(NULL, " ", &rest))
        words[n++] = word;
    words[n++] = host;
    words[n] = command;
    return words;
}

static const char *host_here(tdm_arena *arena)
{
    char name[TDM_HOST_BYTES] = "";
    if (gethostname(name, sizeof(name) - 1) != 0) name[0] = '\0';
    return tdm_arena_strdup(arena, tdm__session_name_is_good(name, sizeof(name)) ? name : "here");
}

/* The standard input of an agent on another host: the secret, then the job. In memory, so that the
 * secret is not in a file. */
static tdm_status agent_open_input(const launcher *l, int *out, tdm_error *err)
{
    tdm_str text = TDM_STR_INIT;
    tdm__session_secret_write(l->secret, &text);
    tdm_str_add(&text, l->options->job_text);
    int fd = memfd_create("tandem-job", MFD_CLOEXEC);
    bool is_written = fd >= 0 && tdm_str_ok(&text) &&
                      write(fd, text.data, text.length) == (ssize_t)text.length &&
                      lseek(fd, 0, SEEK_SET) == 0;
    tdm_str_wipe(&text);
    if (is_written) {
        *out = fd;
        return TDM_OK;
    }
    tdm_status status = tdm_os_fail(err, "cannot write", "the job for an agent");
    if (fd >= 0) close(fd);
    return status;
}

static const int session_signals[] = {SIGINT, SIGTERM, SIGUSR1};

static tdm_status agent_start(launcher *l, int index, char *const *environment, tdm_error *err)
{
    const tdm_session_start *start = &l->options->starts[index];
    const char *host = start->host ? start->host : host_here(l->arena);
    const char **words = host ? agent_words(l, start, host, start->target ? "-" : l->hold.place.job)
                              : NULL;
    if (words && start->target) words = ssh_words(l, start->target, shell_text(l->arena, words));
    if (!words) return tdm_fail_oom(err, "for an agent's command line");
    int input = -1;
    if (start->target) TDM_TRY(agent_open_input(l, &input, err));
    /* A signal forwarded to an agent of this host stays pending until the agent handles it: see
     * tdm_agent_run. */
    sigset_t mask = *tdm__loop_mask_before(l->loop);
    for (size_t i = 0; i < sizeof(session_signals) / sizeof(session_signals[0]); i++) {
        if (start->target)
            sigdelset(&mask, session_signals[i]);
        else
            sigaddset(&mask, session_signals[i]);
    }
    tdm__spawn_options options = {.program = words,
                                  .environment = environment,
                                  .mask = &mask,
                                  .own_session = true,
                                  .input = input,
                                  .output = {-1, -1}};
    l->agents[index].index = index;
    l->agents[index].is_local = !start->target;
    tdm_status status = tdm__process_start(&l->running, &l->agents[index].process, &options, err);
    if (input >= 0) close(input);
    return status;
}

static tdm_status agents_start(launcher *l, tdm_error *err)
{
    tdm__environment env;
    tdm__environment_init(&env, NULL);
    tdm_status status = env.failed ? tdm_fail_oom(err, "for the environment of an agent") : TDM_OK;
    for (int i = 0; i < l->options->start_count && status == TDM_OK; i++)
        status = agent_start(l, i, env.items, err);
    tdm__environment_release(&env);
    return status;
}

/* ---- end ------------------------------------------------------------------------------------- */

static void agents_mark_seen(launcher *l, const tdm_session_view *view)
{
    for (int i = 0; i < l->options->start_count; i++)
        for (size_t k = 0; k < view->host_count && !l->agents[i].was_seen; k++)
            l->agents[i].was_seen = l->options->starts[i].host &&
                                    strcmp(l->options->starts[i].host, view->hosts[k].name) == 0;
}

static void launcher_take_verdict(launcher *l, tdm_status status, const char *message, double now_s)
{
    if (l->state == LAUNCHER_ENDED) return;
    l->state = LAUNCHER_ENDED;
    l->result.status = status;
    snprintf(l->result.message, sizeof(l->result.message), "%s", message);
    l->end_at_s = fmin(l->end_at_s, now_s + l->options->grace_s + TDM__TIMING_SESSION_AGENT_EXIT_S);
}

/* The session is not in the store: it has ended, possibly while this host was cut off, and was
 * removed. Returns false if the store did not have its result. */
static bool launcher_look_up_ended(launcher *l, double now_s)
{
    tdm_status status;
    char message[1000];
    tdm_status got = tdm__session_ended(l->kv, l->result.session, &status, message, NULL);
    if (got != TDM_OK && got != TDM_ERR_NOT_FOUND) return false;
    l->has_members = l->has_hosts = false;
    if (got == TDM_OK) launcher_take_verdict(l, status, message, now_s);
    return true;
}

static void launcher_read_store(launcher *l)
{
    const double now_s = tdm_clock_s();
    tdm_session_view view;
    tdm_arena *arena = tdm_arena_create("look");
    tdm_status status = arena ? tdm_session_look(l->kv, l->result.session, arena, &view, NULL)
                              : TDM_ERR_NO_MEMORY;
    bool is_known = status == TDM_OK;
    if (status == TDM_OK) {
        if (view.run) snprintf(l->result.run, sizeof(l->result.run), "%s", view.run);
        l->result.stopped = l->result.stopped || view.stopping;
        l->has_members = view.member_count > 0;
        l->has_hosts = view.host_count > 0;
        l->has_seen_hosts = l->has_seen_hosts || l->has_hosts;
        agents_mark_seen(l, &view);
        if (view.ended) launcher_take_verdict(l, view.status, view.message, now_s);
    } else if (status == TDM_ERR_NOT_FOUND) {
        is_known = launcher_look_up_ended(l, now_s);
    }
    l->unknown_since_s = is_known ? INFINITY : fmin(l->unknown_since_s, now_s);
    tdm_arena_destroy(arena);
}

static void launcher_on_look(tdm__loop_timer *timer)
{
    launcher *l = timer->user;
    bool is_local = strncmp(l->kv_options.url, "local:", 6) == 0;
    launcher_read_store(l);
    tdm__loop_timer_set(l->loop, timer,
                        tdm_clock_s() + (is_local ? TDM__TIMING_SESSION_LOOK_LOCAL_S
                                                  : TDM__TIMING_SESSION_LOOK_FAR_S));
}

/* Prints advice on an agent that ssh could not start, or whose connection broke. */
static void agent_report_ssh_failure(launcher *l, int index, int code)
{
    const char *target = l->options->starts[index].target;
    const char *program = l->options->remote_tandem ? l->options->remote_tandem : "tandem";
    launcher_read_store(l); /* whether its record was seen, and whether there is a result */
    if (code == SSH_FAILED && l->agents[index].was_seen) l->result.agent_lost = true;
    if (l->state == LAUNCHER_ENDED) return;
    if (code != SSH_FAILED)
        launcher_say(
            l,
            "%s cannot run '%s' (exit code %d): install tandem there, or set its path with "
            "--remote-tandem; training runs without the workers of this host",
            target, program, code);
    else if (l->agents[index].was_seen)
        launcher_say(
            l,
            "the ssh connection to %s was closed: it broke, or the agent there was killed; "
            "workers there continue, and their output is in the run directory; 'tandem ps -l' "
            "shows whether %s has an agent: without one, workers that die there are not restarted",
            target, target);
    else
        launcher_say(
            l,
            "cannot reach %s by ssh, training runs without its workers; '%s %s true' must succeed "
            "without a prompt: check the output of ssh, the key in that user's authorized_keys, "
            "and the host's key in known_hosts",
            target, ssh_text(), target);
}

/* The exit of an agent matters while the result is unknown, or if its worker could not report its
 * error. */
static void agent_on_exit(tdm__process *process, pid_t pid, int wait_status, void *user)
{
    launcher *l = user;
    started_agent *agent = (started_agent *)process;
    const tdm_session_start *start = &l->options->starts[agent->index];
    char how[TDM__EXIT_TEXT_BYTES];
    int code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 0;
    (void)pid;
    agent->was_killed = !WIFEXITED(wait_status);
    l->result.agent_lost = l->result.agent_lost || agent->was_killed;
    tdm__loop_timer_set(l->loop, &l->look_timer, tdm_clock_s());

    if (agent->was_killed)
        launcher_say(l,
                     "the agent of %s was %s: training continues, but workers that die there are "
                     "not restarted",
                     start->target ? start->target : "this host", tdm__exit_text(wait_status, how));
    else if (!agent->is_local &&
             (code == SSH_FAILED || code == NO_PROGRAM || code == NO_PROGRAM + 1))
        agent_report_ssh_failure(l, agent->index, code);

    tdm__exit_code_take(&l->result.exit_code, code);
}

/* ---- wait ------------------------------------------------------------------------------------ */

static void launcher_request_save(launcher *l)
{
    tdm_error err = {0};
    if (tdm_session_ask_save(l->kv, l->result.session, strsignal(SIGUSR1), NULL, &err) == TDM_OK)
        launcher_say(l, "a checkpoint will be written after this step; training continues");
    else
        launcher_say(l, "cannot write the checkpoint request to the store: %s", err.message);
}

static void launcher_on_signal(int number, void *user)
{
    launcher *l = user;
    if (number == SIGUSR1) {
        launcher_request_save(l);
        return;
    }
    const bool is_first = l->signal_count++ == 0;
    l->result.stopped = true;
    if (is_first) launcher_say(l, "stopping after this step (Ctrl-C again to stop at once) ...");
    (void)tdm_session_request(l->kv, l->result.session, is_first ? "stop" : "now",
                              strsignal(number), NULL);
    for (int i = 0; i < l->options->start_count; i++) /* makes them read the store */
        if (l->agents[i].is_local && l->agents[i].process.child.pid > 0)
            kill(l->agents[i].process.child.pid, SIGTERM);
    l->end_at_s = fmin(l->end_at_s, tdm_clock_s() + TDM__TIMING_SESSION_AGENT_EXIT_S +
                                        (is_first ? l->options->grace_s : 0));
}

static void launcher_on_beat(tdm__loop_timer *timer)
{
    launcher *l = timer->user;
    if (tdm_kv_keep(l->kv, l->lease, NULL) == TDM_ERR_NOT_FOUND &&
        tdm_kv_lease(l->kv, TDM__TIMING_SESSION_LEASE_S, &l->lease, NULL) == TDM_OK)
        (void)store_put(l, "launcher", "{}", l->lease, NULL);
    tdm__loop_timer_set(l->loop, timer, tdm_clock_s() + TDM__TIMING_SESSION_BEAT_S);
}

/* Whether all agents and workers are gone, including those of other launchers. */
static bool session_all_gone(const launcher *l)
{
    return l->running.count == 0 && !l->has_members && !(l->options->coming > 0 && l->has_hosts);
}

/* A host that is cut off learns the result when it reaches the store again, so the launcher waits
 * for that if training had begun. */
static void launcher_observe(launcher *l, double now_s)
{
    launcher_state state = session_all_gone(l) ? LAUNCHER_ALONE : LAUNCHER_TRAINING;
    if (l->state == LAUNCHER_ENDED) return;
    if (l->has_seen_hosts && now_s >= l->unknown_since_s &&
        now_s - l->unknown_since_s < TDM__TIMING_SESSION_UNKNOWN_S)
        state = LAUNCHER_UNKNOWN;
    if (state != l->state) l->state_s = now_s;
    l->state = state;
}

/* Whether the launcher can stop waiting. */
static bool launcher_is_done(const launcher *l, double now_s)
{
    if (now_s >= l->end_at_s) return true;
    if (l->state == LAUNCHER_ENDED) /* workers of other agents may still be in the store */
        return l->running.count == 0 &&
               ((!l->result.agent_lost && l->options->coming == 0) || session_all_gone(l));
    if (l->state != LAUNCHER_ALONE) return false;

    /* An agent that exited has waited for its workers; one that was killed has not. */
    bool was_killed = false;
    for (int i = 0; i < l->options->start_count; i++)
        was_killed = was_killed || l->agents[i].was_killed;
    return now_s - l->state_s >=
           (was_killed ? TDM__TIMING_SESSION_ALONE_S : TDM__TIMING_SESSION_ALONE_SHORT_S);
}

static void launcher_wait(launcher *l)
{
    tdm__loop_timer_set(l->loop, &l->look_timer, tdm_clock_s());
    tdm__loop_timer_set(l->loop, &l->beat_timer, tdm_clock_s());
    while (tdm__loop_turn(l->loop, TDM__TIMING_SESSION_LOOK_LOCAL_S, NULL) == TDM_OK) {
        const double now_s = tdm_clock_s();
        launcher_observe(l, now_s);
        if (launcher_is_done(l, now_s)) return;
    }
}

/* ---- launch ---------------------------------------------------------------------------------- */

/* Determines the result if none is in the store. */
static void launcher_conclude(launcher *l)
{
    if (l->state == LAUNCHER_ENDED) return;
    if (l->running.count > 0 || l->has_members) {
        l->result.status = TDM_ERR_TIMEOUT;
        snprintf(l->result.message, sizeof(l->result.message),
                 "the workers are still running; 'tandem ps' shows them");
    } else if (l->result.exit_code == 0) {
        l->result.status = TDM_ERR_PEER_FAILED;
        bool was_seen = l->has_seen_hosts;
        for (int i = 0; i < l->options->start_count; i++)
            was_seen = was_seen || l->agents[i].was_seen || l->agents[i].is_local;
        snprintf(l->result.message, sizeof(l->result.message), "%s",
                 was_seen
                     ? "all agents and workers are gone, and none reported how training ended; "
                       "checkpoints that were written are valid"
                     : "no host could start an agent: nothing was trained");
    }
}

/* Waits for workers that are about to exit and still hold the session: without an agent nothing
 * would remove its files until the next command that reads them. */
static void launcher_await_orphans(const launcher *l)
{
    double until_s = tdm_clock_s() + TDM__TIMING_SESSION_ALONE_S;
    for (; tdm_clock_s() < until_s; tdm_clock_sleep(TDM__TIMING_SESSION_ORPHAN_CHECK_S))
        if (flock(l->hold.fd, LOCK_EX | LOCK_NB) == 0) return;
}

static void launcher_release(launcher *l)
{
    bool is_last = session_all_gone(l);
    if (l->kv && is_last) {
        /* Collects log lines that arrived after the last round of rank 0's agent. */
        if (l->result.run[0]) tdm__log_forward_collect(l->kv, l->result.session, l->result.run);
        tdm__log_forward_forget(l->kv, l->result.session);
        tdm__session_forget(l->kv, l->result.session);
    }
    if (l->kv && l->lease) (void)tdm_kv_release(l->kv, l->lease, NULL);
    tdm_kv_close(l->kv);
    if (l->hold.arena && l->result.agent_lost && is_last) launcher_await_orphans(l);
    if (l->hold.arena) tdm_session_hold_release(&l->hold);
    tdm__loop_destroy(l->loop);
    free(l->agents);
    explicit_bzero(l->secret, sizeof(l->secret));
    tdm_arena_destroy(l->arena);
}

static tdm_status launcher_run(launcher *l, tdm_error *err)
{
    l->arena = tdm_arena_create("session");
    l->agents = calloc((size_t)l->options->start_count + 1, sizeof(*l->agents));
    if (!l->arena || !l->agents) return tdm_fail_oom(err, "for a session");
    TDM_TRY(launcher_begin(l, err));
    TDM_TRY(store_fill(l, err));
    TDM_TRY(tdm__loop_create(&l->loop, err));
    TDM_TRY(tdm__loop_signals(l->loop, session_signals,
                              sizeof(session_signals) / sizeof(session_signals[0]),
                              launcher_on_signal, l, err));
    l->running = (tdm__processes){.loop = l->loop, .on_exit = agent_on_exit, .user = l};

    tdm_status status = agents_start(l, err);
    if (status != TDM_OK && l->running.count > 0) /* do not leave the other agents running */
        (void)tdm_session_end(l->kv, l->result.session, status, err->message, "launcher", NULL);
    if (l->running.count > 0) launcher_wait(l);
    return status;
}

tdm_status tdm_session_launch(const tdm_session_options *options, tdm_session_result *out,
                              tdm_error *err)
{
    tdm_error own = {0};
    launcher l = {.options = options,
                  .hold = {.fd = -1},
                  .look_timer = {.on_time = launcher_on_look, .user = &l},
                  .beat_timer = {.on_time = launcher_on_beat, .user = &l},
                  .end_at_s = INFINITY,
                  .unknown_since_s = INFINITY};
    tdm_status status = launcher_run(&l, err ? err : &own);
    launcher_conclude(&l);
    launcher_release(&l);
    if (status == TDM_OK) *out = l.result;
    return status;
}
