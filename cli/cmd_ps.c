/*
 * cmd_ps.c: `tandem ps`: lists the active runs on this host or in a store. It can also wait for one run,
 * and print the process id of one of its ranks.
 */
#include "session.h"
#include "table.h"

#include <tandem/comm.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { LOOK_MS = 50 };

/* ---- state and health ------------------------------------------------------------------------------- */

/* The number of live ranks; before the first epoch, of waiting workers. */
static int count_live_ranks(const tdm_session_view *view)
{
    int alive = 0;
    for (size_t i = 0; i < view->member_count; i++)
        alive += view->epoch == 0 || view->members[i].rank >= 0;
    return alive;
}

static const char *state_of(const session_ref *ref)
{
    const tdm_session_view *view = &ref->view;
    if (ref->why_unknown) return "unknown";
    if (view->ended) return view->status == TDM_OK ? "ended" : "failed";
    if (view->stopping) return "stopping";
    if (view->epoch == 0) return "starting";
    if (count_live_ranks(view) < view->min) return "waiting";
    return view->member_count > 0 && view->members[0].rank == 0 ? view->members[0].phase
                                                                : "recovering";
}

/* Adds a part of the health text, separated by a semicolon. */
static void add_health(tdm_str *out, const char *fmt, ...) TDM_PRINTF(2, 3);
static void add_health(tdm_str *out, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (out->length > 0) tdm_str_add(out, "; ");
    tdm_str_addv(out, fmt, args);
    va_end(args);
}

/* Adds which ranks are missing, and how many workers are being restarted. */
static void add_ranks(const tdm_session_view *view, tdm_str *out)
{
    int here = count_live_ranks(view), lost = view->epoch == 0 ? 0 : view->rank_count - here,
        coming = 0;
    for (size_t i = 0; i < view->host_count; i++) coming += view->hosts[i].starting;
    if (here < view->min)
        add_health(out, "%d of %d required ranks", here, view->min);
    else if (lost > 0)
        add_health(out, "%d of %d ranks not responding", lost, view->rank_count);
    else if (view->epoch > 0 && view->rank_count < view->expected)
        add_health(out, "%d of %d ranks", view->rank_count, view->expected);
    if (coming > 0) add_health(out, "%d restarting", coming);
}

static bool has_agent(const tdm_session_view *view, const char *host)
{
    size_t length = strlen(host);
    for (size_t i = 0; i < view->host_count; i++) {
        const char *name = view->hosts[i].name;
        if (strncmp(name, host, length) == 0 && (!name[length] || name[length] == '+')) return true;
    }
    return false;
}

static bool is_first_of_host(const tdm_session_view *view, size_t member)
{
    for (size_t i = 0; i < member; i++)
        if (strcmp(view->members[i].host, view->members[member].host) == 0) return false;
    return true;
}

static void add_hosts(const tdm_session_view *view, tdm_str *out)
{
    for (size_t i = 0; i < view->member_count; i++)
        if (is_first_of_host(view, i) && !has_agent(view, view->members[i].host))
            add_health(out, "agent of %s is dead, its workers continue", view->members[i].host);
    for (size_t i = 0; i < view->host_count; i++)
        if (view->hosts[i].trouble)
            add_health(out, "%s: %s", view->hosts[i].name, view->hosts[i].trouble);
}

/* All problems, the most important one first; "good" if there is none. */
static const char *health_of(const session_ref *ref, tdm_arena *arena)
{
    const tdm_session_view *view = &ref->view;
    tdm_str text = TDM_STR_INIT;
    if (ref->why_unknown)
        add_health(&text, "%s", ref->why_unknown);
    else if (view->ended && view->status != TDM_OK)
        add_health(&text, "%s", view->message);
    if (!view->ended && !ref->why_unknown) {
        add_ranks(view, &text);
        add_hosts(view, &text);
    }
    const char *health = text.length > 0 ? tdm_arena_strdup(arena, tdm_str_text(&text)) : "good";
    tdm_str_release(&text);
    return health ? health : "?";
}

/* The number of hosts with ranks. */
static int host_count(const tdm_session_view *view)
{
    int count = 0;
    for (size_t i = 0; i < view->member_count; i++) count += is_first_of_host(view, i);
    return count;
}

/* ---- JSON ------------------------------------------------------------------------------------------- */

static void put_members(tdm_json_writer *w, const tdm_session_view *view)
{
    tdm_json_key(w, "members");
    tdm_json_array_begin(w);
    for (size_t i = 0; i < view->member_count; i++) {
        const tdm_session_member *m = &view->members[i];
        tdm_json_object_begin(w);
        tdm_json_put_string(w, "id", m->id);
        if (m->rank >= 0) tdm_json_put_int(w, "rank", m->rank);
        tdm_json_put_string(w, "host", m->host);
        tdm_json_put_int(w, "slot", m->slot);
        tdm_json_put_int(w, "pid", m->pid);
        tdm_json_put_string(w, "phase", m->phase);
        tdm_json_put_uint(w, "step", m->step);
        tdm_json_object_end(w);
    }
    tdm_json_array_end(w);
}

static void put_hosts(tdm_json_writer *w, const tdm_session_view *view)
{
    tdm_json_key(w, "hosts");
    tdm_json_array_begin(w);
    for (size_t i = 0; i < view->host_count; i++) {
        const tdm_session_host *h = &view->hosts[i];
        tdm_json_object_begin(w);
        tdm_json_put_string(w, "host", h->name);
        tdm_json_put_int(w, "agent_pid", h->pid);
        tdm_json_put_int(w, "workers", h->workers);
        tdm_json_put_double(w, "load", h->load);
        tdm_json_put_int(w, "processors", h->processors);
        tdm_json_put_uint(w, "memory_free", h->memory_free_bytes);
        tdm_json_put_uint(w, "memory", h->memory_bytes);
        if (h->disk_bytes > 0) tdm_json_put_uint(w, "disk_free", h->disk_free_bytes);
        if (h->disk_bytes > 0) tdm_json_put_uint(w, "disk", h->disk_bytes);
        tdm_json_put_int(w, "starting", h->starting);
        if (h->trouble) tdm_json_put_string(w, "trouble", h->trouble);
        tdm_json_object_end(w);
    }
    tdm_json_array_end(w);
}

static void put_session(tdm_json_writer *w, const session_ref *ref, tdm_arena *arena)
{
    const tdm_session_view *view = &ref->view;
    tdm_json_object_begin(w);
    tdm_json_put_string(w, "session", view->session);
    tdm_json_put_string(w, "name", view->name);
    tdm_json_put_string(w, "run", view->run);
    tdm_json_put_string(w, "store", ref->kv.url);
    tdm_json_put_string(w, "state", state_of(ref));
    tdm_json_put_string(w, "health", health_of(ref, arena));
    tdm_json_put_double(w, "began", view->began_s);
    tdm_json_put_uint(w, "epoch", view->epoch);
    tdm_json_put_int(w, "ranks", view->rank_count);
    tdm_json_put_int(w, "expected", view->expected);
    tdm_json_put_int(w, "min", view->min);
    if (view->max > 0) tdm_json_put_int(w, "max", view->max);
    tdm_json_put_uint(w, "step", view->step);
    tdm_json_put_uint(w, "steps", view->steps);
    tdm_json_put_double(w, "samples_per_s", view->speed);
    if (view->sent_bytes > 0) {
        tdm_json_put_uint(w, "sent_bytes", view->sent_bytes);
        tdm_json_put_double(w, "compression", view->compression);
    }
    put_members(w, view);
    put_hosts(w, view);
    tdm_json_object_end(w);
}

static void show_json(const session_ref *refs, size_t count, tdm_arena *arena, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_array_begin(&w);
    for (size_t i = 0; i < count; i++) put_session(&w, &refs[i], arena);
    tdm_json_array_end(&w);
    tdm_str_add_char(out, '\n');
}

/* ---- text ------------------------------------------------------------------------------------------- */

static void add_step(cli_table *table, uint64_t step, uint64_t steps)
{
    if (steps > 0)
        cli_table_cell(table, "%llu/%llu", (unsigned long long)step, (unsigned long long)steps);
    else
        cli_table_cell(table, "-");
}

static void show_table(const session_ref *refs, size_t count, tdm_arena *arena, tdm_str *out)
{
    static const cli_column columns[] = {{.title = "run", .max = 28},
                                         {.title = "session", .max = 47},
                                         {.title = "state"},
                                         {.title = "epoch", .right = true},
                                         {.title = "ranks", .right = true},
                                         {.title = "hosts", .right = true},
                                         {.title = "step", .right = true},
                                         {.title = "samples/s", .right = true},
                                         {.title = "health", .max = 100}};
    cli_table table;
    cli_table_init(&table, columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; i < count; i++) {
        const tdm_session_view *view = &refs[i].view;
        cli_table_cell(&table, "%s", session_title(view));
        cli_table_cell(&table, "%s", view->session);
        cli_table_cell(&table, "%s", state_of(&refs[i]));
        cli_table_cell(&table, "%u", view->epoch);
        cli_table_cell(&table, "%d", view->rank_count);
        cli_table_cell(&table, "%d", host_count(view));
        add_step(&table, view->step, view->steps);
        if (view->speed > 0)
            cli_table_cell(&table, "%.0f", view->speed);
        else
            cli_table_cell(&table, "-");
        cli_table_cell(&table, "%s", health_of(&refs[i], arena));
    }
    cli_table_print(&table, 0, out);
}

static void add_member(cli_table *table, const tdm_session_member *m)
{
    if (m->rank >= 0)
        cli_table_cell(table, "%d", m->rank);
    else
        cli_table_cell(table, "-");
    cli_table_cell(table, "%s", m->host);
    cli_table_cell(table, "%d", m->slot);
    cli_table_cell(table, "%lld", (long long)m->pid);
    cli_table_cell(table, "%s", m->phase);
    add_step(table, m->step, m->steps);
    cli_table_cell(table, "%s", m->id);
}

/* Adds a rank of the epoch that does not respond. */
static void add_missing(cli_table *table, const tdm_session_view *view, int rank)
{
    cli_table_cell(table, "%d", rank);
    cli_table_cell(table, "%s", view->rank_hosts[rank]);
    cli_table_cell(table, "-");
    cli_table_cell(table, "-");
    cli_table_cell(table, "silent");
    cli_table_cell(table, "-");
    cli_table_cell(table, "%s", view->rank_ids[rank]);
}

static void show_hosts(const tdm_session_view *view, tdm_str *out)
{
    for (size_t i = 0; i < view->host_count; i++) {
        const tdm_session_host *h = &view->hosts[i];
        char some[32], all[32];
        tdm_str_addf(out, "  host %s: agent %lld, %d worker%s, load %.2f on %d CPU%s", h->name,
                     (long long)h->pid, h->workers, h->workers == 1 ? "" : "s", h->load,
                     h->processors, h->processors == 1 ? "" : "s");
        tdm_str_addf(out, ", memory %s of %s free", tdm_text_bytes(h->memory_free_bytes, some),
                     tdm_text_bytes(h->memory_bytes, all));
        if (h->disk_bytes > 0)
            tdm_str_addf(out, ", disk of the run %s of %s free",
                         tdm_text_bytes(h->disk_free_bytes, some),
                         tdm_text_bytes(h->disk_bytes, all));
        tdm_str_addf(out, "%s%s\n", h->trouble ? "; " : "", h->trouble ? h->trouble : "");
    }
}

static void show_ranks(const tdm_session_view *view, tdm_str *out)
{
    static const cli_column columns[] = {{.title = "rank", .right = true},
                                         {.title = "host", .max = 30},
                                         {.title = "slot", .right = true},
                                         {.title = "process", .right = true},
                                         {.title = "phase"},
                                         {.title = "step", .right = true},
                                         {.title = "member", .max = 63}};
    cli_table table;
    cli_table_init(&table, columns, sizeof(columns) / sizeof(columns[0]));
    size_t next = 0; /* members are sorted by rank; those without a rank are last */
    for (int rank = 0; rank < view->rank_count; rank++) {
        if (next < view->member_count && view->members[next].rank == rank)
            add_member(&table, &view->members[next++]);
        else
            add_missing(&table, view, rank);
    }
    for (; next < view->member_count; next++) add_member(&table, &view->members[next]);
    cli_table_print(&table, 2, out);
    if (view->sent_bytes > 0) {
        char sent[32];
        tdm_str_addf(out, "  replicas send %s in a step, %.3g times less than as f32\n",
                     tdm_text_bytes(view->sent_bytes, sent), view->compression);
    }
    show_hosts(view, out);
}

/* ---- one run ----------------------------------------------------------------------------------------- */

typedef struct ps_request {
    const char *word; /* RUN; NULL: all */
    int64_t rank;     /* whose process id is requested; -1: none */
    double wait_s;    /* timeout for the run and the rank */
} ps_request;

static const tdm_session_member *member_of_rank(const tdm_session_view *view, int64_t rank)
{
    for (size_t i = 0; i < view->member_count; i++)
        if (view->members[i].rank == rank) return &view->members[i];
    return NULL;
}

/* Moves the requested sessions that have not ended to the front and returns their number. */
static size_t ps_select(const ps_request *request, session_ref *refs, size_t count)
{
    size_t chosen = 0;
    if (!request->word) return count;
    for (size_t i = 0; i < count; i++)
        if (!refs[i].view.ended && session_is_meant(&refs[i].view, request->word))
            refs[chosen++] = refs[i];
    return chosen;
}

/* Whether the requested run and rank exist. */
static bool ps_is_found(const ps_request *request, const session_ref *refs, size_t count)
{
    if (!request->word) return true;
    if (request->rank < 0 || count != 1) return count > 0;
    return member_of_rank(&refs[0].view, request->rank) != NULL;
}

/* Whether RUN is the id of a process that does not exist and therefore cannot start a run. */
static bool names_dead_process(const ps_request *request)
{
    char *end;
    if (!request->word || !*request->word || strlen(request->word) > 9) return false;
    long pid = strtol(request->word, &end, 10);
    return !*end && pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

/* Polls until the requested run and rank exist, or the timeout has passed. Each poll has a new arena. */
static int ps_poll(const cli_args *args, const ps_request *request, tdm_arena **arena,
                   session_ref **refs, size_t *count)
{
    double until_s = tdm_clock_s() + request->wait_s;
    for (;;) {
        bool is_last = tdm_clock_s() >= until_s || names_dead_process(request);
        tdm_arena_destroy(*arena);
        *arena = tdm_arena_create("command");
        int code = *arena ? session_scan(args, *arena, refs, count) : CLI_FAILED;
        if (code != CLI_OK) return code;
        *count = ps_select(request, *refs, *count);
        if (is_last || ps_is_found(request, *refs, *count)) return CLI_OK;
        (void)poll(NULL, 0, LOOK_MS);
    }
}

/* Prints only the process id of a rank, for use with kill. */
static int show_pid(const ps_request *request, const session_ref *refs, size_t count, tdm_str *out)
{
    if (count > 1) {
        cli_error(
            "ps: '%s' matches %zu active sessions; give the name of the session, which 'tandem "
            "ps' lists",
            request->word, count);
        return CLI_USAGE;
    }
    const tdm_session_member *m = member_of_rank(&refs[0].view, request->rank);
    if (!m) {
        cli_error("ps: the run '%s' has no rank %lld now; 'tandem ps -l' lists its ranks",
                  request->word, (long long)request->rank);
        return CLI_FAILED;
    }
    tdm_str_addf(out, "%lld\n", (long long)m->pid);
    return CLI_OK;
}

static bool read_request(const cli_args *args, ps_request *out)
{
    *out = (ps_request){.word = args->argument_count > 0 ? args->arguments[0] : NULL, .rank = -1};
    if (!cli_int(args, "pid", 0, TDM_MAX_RANKS - 1, &out->rank)) return false;
    if (!cli_real(args, "wait", 0, 1e6, &out->wait_s)) return false;
    if (!out->word && (cli_has(args, "pid") || cli_has(args, "wait"))) {
        cli_error("ps: '--%s' requires RUN; usage: %s", cli_has(args, "pid") ? "pid" : "wait",
                  args->command->usage[1]);
        return false;
    }
    return true;
}

static int ps_run(const cli_args *args)
{
    ps_request request;
    tdm_arena *arena = NULL;
    session_ref *refs = NULL;
    size_t count = 0;
    tdm_str out = TDM_STR_INIT;
    if (!read_request(args, &request)) return CLI_USAGE;
    int code = ps_poll(args, &request, &arena, &refs, &count);
    if (code == CLI_OK && request.word && count == 0) {
        cli_error("ps: no active run '%s'; 'tandem ps' lists the active runs", request.word);
        code = CLI_USAGE;
    }
    if (code == CLI_OK && request.rank >= 0) {
        code = show_pid(&request, refs, count, &out);
    } else if (code == CLI_OK && cli_json(args)) {
        show_json(refs, count, arena, &out);
    } else if (code == CLI_OK && !cli_has(args, "long")) {
        show_table(refs, count, arena, &out);
    } else if (code == CLI_OK) {
        for (size_t i = 0; i < count; i++) {
            show_table(&refs[i], 1, arena, &out);
            if (!refs[i].why_unknown) show_ranks(&refs[i].view, &out);
            if (i + 1 < count) tdm_str_add_char(&out, '\n');
        }
    }
    if (code == CLI_OK && count == 0 && !cli_json(args)) tdm_str_add(&out, "no active run\n");
    if (code == CLI_OK)
        code = cli_print(&out);
    else
        tdm_str_release(&out);
    tdm_arena_destroy(arena);
    return code;
}

static const char *const usage[] = {"tandem ps [RUN] [-l] [--store URL] [--json]",
                                    "tandem ps RUN [--wait S] [--pid RANK] [--store URL]", NULL};
static const char *const examples[] = {"tandem ps",
                                       "runs with workers on this host",
                                       "tandem ps -l --store etcd:http://alpha:2379",
                                       "all runs in that store, with their ranks",
                                       "kill -9 $(tandem ps digits-1 --pid 2)",
                                       "kill the worker with rank 2 of that run",
                                       NULL};

const cli_command cli_ps = {
    .name = "ps",
    .summary = "List the active runs",
    .usage = usage,
    .help =
        "Prints one line for each run with workers on this host, or for each run in a store: its "
        "state, the membership epoch (each change of its ranks starts a new one), ranks, hosts, step, "
        "speed, and its problems, if there are any. Runs started with -n 1 or 'tandem run' have no "
        "session and are not shown.\n\n"
        "RUN selects one run: its name, its directory, the name of the job, the session, or the "
        "process id of the 'tandem train' that started it ($! in a shell).",
    .examples = examples,
    .max_arguments = 1,
    .options =
        {{.name = "wait",
          .value = "S",
          .help = "Wait up to S seconds until RUN is active; with --pid, until it has that rank."},
         {.name = "pid",
          .value = "RANK",
          .help = "Print only the process id of this rank, for use with kill."},
         {.name = "long",
          .letter = 'l',
          .help = "Show the ranks and the agents of the hosts as well."},
         SESSION_OPTION_STORE,
         SESSION_OPTION_JOB,
         CLI_OPTION_JSON},
    .run = ps_run,
};
