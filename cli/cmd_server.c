/*
 * cmd_server.c: `tandem server`: runs one server of a group of parameter servers, or shows the group.
 */
#include "cli.h"

#include <tandem/server.h>

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t stop_requested;

static void on_signal(int number)
{
    (void)number;
    stop_requested = 1;
}

static bool should_stop(void *user)
{
    (void)user;
    return stop_requested != 0;
}

static void on_ready(void *user, const char *address)
{
    printf("server of '%s' at %s\n", (const char *)user, address);
    fflush(stdout);
}

static void print_log(const tdm_log_record *record, void *user)
{
    (void)user;
    fprintf(stderr, "tandem: %s: %s\n", record->room, record->message);
}

/* The place of a value in a list of names; false, after an error message, if it is not there. */
static bool choose(const cli_args *args, const char *option, const char *const *names, int *out)
{
    const char *text = cli_value(args, option);
    if (!text) return true;
    for (int i = 0; names[i]; i++) {
        *out = i;
        if (strcmp(names[i], text) == 0) return true;
    }
    cli_error("server: --%s %s is not known; choose one of %s, %s, %s%s%s", option, text, names[0],
              names[1], names[2], names[3] ? ", " : "", names[3] ? names[3] : "");
    return false;
}

static bool take_group(const cli_args *args, tdm_server_group *group)
{
    static const char *const modes[] = {"async", "sync", "stale", NULL};
    static const char *const optims[] = {"sgd", "adagrad", "ftrl", "adam", NULL};
    int64_t shards = 0, replication = 0, bound = 0, workers = 0, width = 0, seed = 0, limit_mb = 0;
    if (!choose(args, "mode", modes, &group->mode) ||
        !choose(args, "optim", optims, &group->optim) ||
        !cli_int(args, "shards", 1, TDM_SERVER_MAX_SHARDS, &shards) ||
        !cli_int(args, "replication", 1, TDM_SERVER_MAX_REPLICATION, &replication) ||
        !cli_int(args, "bound", 0, 1000000, &bound) ||
        !cli_int(args, "workers", 1, TDM_SERVER_MAX_WORKERS, &workers) ||
        !cli_int(args, "width", 1, TDM_SERVER_MAX_WIDTH, &width) ||
        !cli_int(args, "seed", 0, INT64_MAX, &seed) ||
        !cli_int(args, "limit", 1, 1 << 20, &limit_mb) ||
        !cli_real(args, "init-scale", 0, 1e6, &group->init_scale) ||
        !cli_real(args, "weight-decay", 0, 1e6, &group->weight_decay) ||
        !cli_real(args, "l1", 0, 1e6, &group->l1) || !cli_real(args, "l2", 0, 1e6, &group->l2))
        return false;
    if (width == 0) {
        cli_error("server: give --width, the number of values in a row");
        return false;
    }
    group->shards = (uint32_t)shards;
    group->replication = (uint32_t)replication;
    group->bound = (uint32_t)bound;
    group->workers = (uint32_t)workers;
    group->width = (uint32_t)width;
    group->seed = (uint64_t)seed;
    group->limit_bytes = (uint64_t)limit_mb << 20;
    return true;
}

static int server_show(const tdm_server_place *place)
{
    tdm_str text = TDM_STR_INIT;
    tdm_error err;
    if (tdm_server_describe(place, &text, &err) == TDM_OK) return cli_print(&text);
    tdm_str_release(&text);
    return cli_fail(&err);
}

static int server_run(const cli_args *args)
{
    tdm_error err;
    const char *name = args->arguments[0];
    tdm_server_options options = {.place = {.name = name, .store = cli_value(args, "store")},
                                  .listen = cli_value(args, "listen"),
                                  .restarts = cli_has(args, "restart"),
                                  .should_stop = should_stop,
                                  .on_ready = on_ready,
                                  .user = (void *)(uintptr_t)name};
    if (cli_has(args, "show")) return server_show(&options.place);
    if (!take_group(args, &options.group)) return CLI_USAGE;
    const struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    (void)tdm_log_add_sink(print_log, NULL, TDM_LOG_WARN);
    tdm_status status = tdm_server_run(&options, &err);
    tdm_log_remove_sink(print_log, NULL);
    return status == TDM_OK ? CLI_OK : cli_fail(&err);
}

static const char *const usage[] = {"tandem server NAME --width N [options]",
                                    "tandem server NAME --show [--store URL]", NULL};
static const char *const examples[] = {
    "tandem server ctr --width 16 --optim adagrad --replication 2",
    "one server of the group 'ctr'; start at least two", "tandem server ctr --show",
    "its servers, and which of them have which shard", NULL};

const cli_command cli_server = {
    .name = "server",
    .summary = "Run a parameter server for sparse tables",
    .usage = usage,
    .help =
        "Runs one server of the group NAME until it gets SIGTERM or Ctrl-C; then other servers take "
        "over what it has, and it exits. The group begins when as many servers as --replication "
        "have been started. Servers can be added and killed at any time: rows that a client has "
        "flushed survive the death of all but one of the servers that have them.\n\n"
        "All servers of a group need the same options. Programs use the group with the functions of "
        "tandem/server.h. docs/server.md describes the modes and the limits.",
    .examples = examples,
    .min_arguments = 1,
    .max_arguments = 1,
    .options =
        {{.name = "width", .value = "N", .help = "The number of values in a row."},
         {.name = "shards",
          .value = "N",
          .help = "How many parts the keys are divided into. Default: 8."},
         {.name = "replication",
          .value = "N",
          .help = "How many servers have each row. Default: 1."},
         {.name = "mode",
          .value = "MODE",
          .help = "async: a push is applied when it arrives. sync: the pushes of all workers "
                  "of a round are applied together, in the order of the workers. stale: a "
                  "worker that is more than --bound rounds ahead waits. Default: async."},
         {.name = "bound", .value = "N", .help = "For stale: rounds. Default: 0."},
         {.name = "workers", .value = "N", .help = "For sync: the number of workers."},
         {.name = "optim", .value = "METHOD", .help = "sgd, adagrad, ftrl or adam. Default: sgd."},
         {.name = "seed", .value = "N", .help = "Of the initial values. Default: 0."},
         {.name = "init-scale",
          .value = "X",
          .help = "Initial values are uniform between -X and X. Default: 0."},
         {.name = "weight-decay", .value = "X", .help = "For sgd, adagrad and adam."},
         {.name = "l1", .value = "X", .help = "For ftrl."},
         {.name = "l2", .value = "X", .help = "For ftrl."},
         {.name = "limit",
          .value = "MIB",
          .help = "Memory of one shard on one server. A push beyond it fails. Default: "
                  "4096."},
         {.name = "listen",
          .value = "HOST:PORT",
          .help = "Address for the others; port 0 chooses one. Needed with etcd. Default: a "
                  "UNIX socket that only you can use."},
         {.name = "store",
          .value = "URL",
          .help = "Where servers and clients find each other: etcd:http://HOST:2379, or "
                  "local:PATH. Default: a file of yours on this host."},
         {.name = "restart",
          .help = "Begin again with empty shards, after all servers of the group have "
                  "died."},
         {.name = "show", .help = "Print the state of the group instead."}},
    .run = server_run,
};
