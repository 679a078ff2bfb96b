/*
 * cmd_ps.c: `tandem ps`: the active runs, on this host or in a store; or one of them, for which it can
 * wait, and the process of one of its ranks.
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

/* ---- what it comes to -------------------------------------------------------------------------------- */

/* Ranks that show signs of life; before the first epoch: workers that wait for it. */
static int present(const tdm_session_view *view)
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
    if (present(view) < view->min) return "waiting";
    return view->member_count > 0 && view->members[0].rank == 0 ? view->members[0].phase
                                                                : "recovering";
}

static void add(tdm_str *out, const char *fmt, ...) TDM_PRINTF(2, 3);
static void add(tdm_str *out, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (out->length > 0) tdm_str_add(out, "; ");
    tdm_str_addv(out, fmt, args);
    va_end(args);
}

/* Of the ranks: who is missing, and whether somebody comes in their place. */
static void add_ranks(const tdm_session_view *view, tdm_str *out)
{
    int here = present(view), lost = view->epoch == 0 ? 0 : view->rank_count - here, coming = 0;
    for (size_t i = 0; i < view->host_count; i++) coming += view->hosts[i].starting;
    if (here < view->min)
        add(out, "%d of at least %d ranks", here, view->min);
    else if (lost > 0)
        add(out, "%d of %d ranks silent", lost, view->rank_count);
    else if (view->epoch > 0 && view->rank_count < view->expected)
        add(out, "%d of %d ranks", view->rank_count, view->expected);
    if (coming > 0) add(out, "%d to be started again", coming);
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
            add(out, "agent of %s gone, its workers go on", view->members[i].host);
    for (size_t i = 0; i < view->host_count; i++)
        if (view->hosts[i].trouble) add(out, "%s: %s", view->hosts[i].name, view->hosts[i].trouble);
}

/* The most important thing first; "good" when there is none. */
static const char *health_of(const session_ref *ref, tdm_arena *arena)
{
    const tdm_session_view *view = &ref->view;
    tdm_str text = TDM_STR_INIT;
    if (ref->why_unknown)
        add(&text, "%s", ref->why_unknown);
    else if (view->ended && view->status != TDM_OK)
        add(&text, "%s", view->message);
    if (!view->ended && !ref->why_unknown) {
        add_ranks(view, &text);
        add_hosts(view, &text);
    }
    const char *health = text.length > 0 ? tdm_arena_strdup(arena, tdm_str_text(&text)) : "good";
    tdm_str_release(&text);
    return health ? health : "?";
}

/* Hosts with ranks. */
static int host_count(const tdm_session_view *view)
{
    int count = 0;
    for (size_t i = 0; i < view->member_count; i++) count += is_first_of_host(view, i);
    return count;
}

/* ---- for programs ------------------------------------------------------------------------------------ */

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

/* ---- for people -------------------------------------------------------------------------------------- */

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
    cli_table_init(&table, columns, sizeof columns / sizeof columns[0]);
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

/* A rank of the epoch that shows no sign of life. */
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
        tdm_str_addf(out, "  host %s: agent %lld, %d worker%s, load %.2f on %d processor%s",
                     h->name, (long long)h->pid, h->workers, h->workers == 1 ? "" : "s", h->load,
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
    cli_table_init(&table, columns, sizeof columns / sizeof columns[0]);
    size_t next =
        0; /* members are in the order of their ranks, and those without one behind them */
    for (int rank = 0; rank < view->rank_count; rank++) {
        if (next < view->member_count && view->members[next].rank == rank)
            add_member(&table, &view->members[next++]);
        else
            add_missing(&table, view, rank);
    }
    for (; next < view->member_count; next++) add_member(&table, &view->members[next]);
    cli_table_print(&table, 2, out);
    show_hosts(view, out);
}

/* ---- one run ----------------------------------------------------------------------------------------- */

typedef struct ps_wish {
    const char *word; /* RUN; NULL: all */
    int64_t rank;     /* whose process number is wanted; -1: none */
    double wait_s;    /* for the run, and for the rank */
} ps_wish;

static const tdm_session_member *member_of_rank(const tdm_session_view *view, int64_t rank)
{
    for (size_t i = 0; i < view->member_count; i++)
        if (view->members[i].rank == rank) return &view->members[i];
    return NULL;
}

/* The sessions that are meant, moved to the front; of one that has ended there is nothing to see. */
static size_t choose(const ps_wish *request, session_ref *refs, size_t count)
{
    size_t chosen = 0;
    if (!request->word) return count;
    for (size_t i = 0; i < count; i++)
        if (!refs[i].view.ended && session_is_meant(&refs[i].view, request->word))
            refs[chosen++] = refs[i];
    return chosen;
}

/* Whether what was asked for is there: the run, and its rank. */
static bool is_there(const ps_wish *request, const session_ref *refs, size_t count)
{
    if (!request->word) return true;
    if (request->rank < 0 || count != 1) return count > 0;
    return member_of_rank(&refs[0].view, request->rank) != NULL;
}

/* Whether RUN is the number of a process that does not exist: it will not begin a run any more. */
static bool names_dead_process(const ps_wish *request)
{
    char *end;
    if (!request->word || !*request->word || strlen(request->word) > 9) return false;
    long pid = strtol(request->word, &end, 10);
    return !*end && pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

/* Looks until what was asked for is there, or the time is over. The arena is made anew for each look. */
static int look(const cli_args *args, const ps_wish *request, tdm_arena **arena, session_ref **refs,
                size_t *count)
{
    double until_s = tdm_clock_s() + request->wait_s;
    for (;;) {
        bool is_last = tdm_clock_s() >= until_s || names_dead_process(request);
        tdm_arena_destroy(*arena);
        *arena = tdm_arena_create("command");
        int code = *arena ? session_scan(args, *arena, refs, count) : CLI_FAILED;
        if (code != CLI_OK) return code;
        *count = choose(request, *refs, *count);
        if (is_last || is_there(request, *refs, *count)) return CLI_OK;
        (void)poll(NULL, 0, LOOK_MS);
    }
}

/* The process of a rank, alone on its line, for kill and the like. */
static int show_pid(const ps_wish *request, const session_ref *refs, size_t count, tdm_str *out)
{
    if (count > 1) {
        cli_error("ps: %zu running sessions are called '%s'; name the session: 'tandem ps' lists "
                  "them",
                  count, request->word);
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

static bool read_wish(const cli_args *args, ps_wish *out)
{
    *out = (ps_wish){.word = args->argument_count > 0 ? args->arguments[0] : NULL, .rank = -1};
    if (!cli_int(args, "pid", 0, TDM_MAX_RANKS - 1, &out->rank)) return false;
    if (!cli_real(args, "wait", 0, 1e6, &out->wait_s)) return false;
    if (!out->word && (cli_has(args, "pid") || cli_has(args, "wait"))) {
        cli_error("ps: '--%s' is about one run; usage: %s", cli_has(args, "pid") ? "pid" : "wait",
                  args->command->usage[1]);
        return false;
    }
    return true;
}

static int run(const cli_args *args)
{
    ps_wish request;
    tdm_arena *arena = NULL;
    session_ref *refs = NULL;
    size_t count = 0;
    tdm_str out = TDM_STR_INIT;
    if (!read_wish(args, &request)) return CLI_USAGE;
    int code = look(args, &request, &arena, &refs, &count);
    if (code == CLI_OK && request.word && count == 0) {
        cli_error("ps: no run '%s' is going on; 'tandem ps' lists those that are", request.word);
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
    if (code == CLI_OK && count == 0 && !cli_json(args)) tdm_str_add(&out, "no run is going on\n");
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
                                       "all runs of that store, rank by rank",
                                       "kill -9 $(tandem ps digits-1 --pid 2)",
                                       "kills the worker that is rank 2 of that run",
                                       NULL};

const cli_command cli_ps = {
    .name = "ps",
    .summary = "Show the runs that are going on",
    .usage = usage,
    .help =
        "A line for each run with workers on this host, or for each one in a store: its state, the "
        "epoch (each change of its ranks begins a new one), ranks, hosts, step, speed, and what "
        "is wrong with it, if anything is. Runs started with -n 1 or 'tandem run' have no session, "
        "and are not shown.\n\n"
        "RUN names one run: its name, its folder, the job's name, the session, or the process of the "
        "'tandem train' that began it ($! in a shell).",
    .examples = examples,
    .max_arguments = 1,
    .options = {{.name = "wait",
                 .value = "S",
                 .help =
                     "Wait up to S seconds until RUN is there, and with --pid that rank of it."},
                {.name = "pid",
                 .value = "RANK",
                 .help = "Print the process number of this rank alone, for kill and the like."},
                {.name = "long", .letter = 'l', .help = "Each rank, and each host's agent, too."},
                SESSION_OPTION_STORE,
                SESSION_OPTION_JOB,
                CLI_OPTION_JSON},
    .run = run,
};
