/*
 * cmd_run.c: `tandem run`: starts the ranks of a world on this host, and ends all of them when one
 * fails.
 */
#include "cli.h"

#include <tandem/cluster.h>
#include <tandem/comm.h>

#include <string.h>

/* Sets the job's hash, by which ranks of another job are rejected, and the job's transport. */
static int options_add_job(const cli_args *args, char hash[TDM_SHA256_HEX],
                           tdm_launch_options *options)
{
    const char *path = cli_value(args, "job");
    if (!path && cli_has(args, "set")) {
        cli_error("run: '--set' overrides a key of a job; give the job with '--job'");
        return CLI_USAGE;
    }
    if (!path) return CLI_OK;
    int code = CLI_OK;
    tdm_job_document *document = cli_load_job(args, path, &code);
    if (!document) return code;
    const tdm_job *job = tdm_job_document_job(document);
    tdm_error err;
    if (tdm_job_hash(job, hash, &err) != TDM_OK) code = cli_fail(&err);
    options->job = hash;
    if (!options->transport) options->transport = tdm_job_transport_name(job->comm.transport);
    tdm_job_document_destroy(document);
    return code;
}

static bool read_options(const cli_args *args, tdm_launch_options *options)
{
    int64_t count = 0, first = 0, size = 0;
    if (!cli_int(args, "ranks", 1, TDM_MAX_LAUNCH, &count) ||
        !cli_int(args, "first", 0, TDM_MAX_RANKS - 1, &first) ||
        !cli_int(args, "size", 1, TDM_MAX_RANKS, &size) ||
        !cli_real(args, "grace", 0.1, 3600, &options->grace_s))
        return false;
    options->program = args->arguments; /* NULL-terminated: the array has one more element */
    options->count = (int)count;
    options->first_rank = (int)first;
    options->size = (int)size;
    options->rendezvous = cli_value(args, "rendezvous");
    options->run = cli_value(args, "run");
    options->label = cli_has(args, "label");
    options->pin = cli_has(args, "pin");
    if (args->argument_count == CLI_MAX_ARGUMENTS) {
        cli_error("run: the program may have at most %d arguments", CLI_MAX_ARGUMENTS - 2);
        return false;
    }
    return cli_transport(args, &options->transport);
}

static int launch_report(const tdm_launch_result *result)
{
    if (result->output_errno)
        cli_error("cannot write the output: %s", strerror(result->output_errno));
    if (result->failed_rank < 0 && !result->interrupted)
        return result->output_errno ? CLI_FAILED : CLI_OK;
    if (result->failed_rank >= 0) cli_error("%s", result->how);
    if (result->run[0])
        cli_error("'tandem trace %s' shows the last events of each rank",
                  cli_short_path(result->run));
    if (result->interrupted) return CLI_INTERRUPTED;
    return result->exit_code;
}

static int run_run(const cli_args *args)
{
    tdm_launch_options options = {.program = NULL};
    tdm_launch_result result;
    tdm_error err;
    char hash[TDM_SHA256_HEX];
    if (!read_options(args, &options)) return CLI_USAGE;
    int code = options_add_job(args, hash, &options);
    if (code != CLI_OK) return code;
    if (tdm_launch(&options, &result, &err) == TDM_OK) return launch_report(&result);
    code = cli_fail(&err);
    return err.status == TDM_ERR_INVALID || err.status == TDM_ERR_RANGE ? CLI_USAGE : code;
}

static const char *const usage[] = {
    "tandem run [-n N] [--label] [--run DIR] [options] -- PROGRAM [ARGUMENTS]", NULL};
static const char *const examples[] = {
    "tandem run -n 4 --label -- ./hello",
    "four ranks on this host; each line of output begins with the rank",
    "tandem run -n 4 --run runs/try -- ./hello; tandem trace runs/try",
    "keep the traces of the ranks and show them",
    "TANDEM_SECRET=... tandem run -n 2 --first 2 --size 4 --rendezvous alpha:7000 -- ./hello",
    "ranks 2 and 3 of a world of four; ranks 0 and 1 start on host alpha",
    NULL};

const cli_command cli_run = {
    .name = "run",
    .summary = "Start a program as several ranks that communicate with each other",
    .usage = usage,
    .help =
        "Starts N processes of PROGRAM on this host. Each gets its rank, the number of ranks and the "
        "rendezvous in its environment (TANDEM_RANK, TANDEM_SIZE and others), which tdm_comm_open() "
        "reads. Everything after '--' belongs to the program.\n\n"
        "When a rank fails, the others have two seconds to report errors. Then they get SIGTERM, and "
        "after --grace seconds SIGKILL. Ctrl-C and SIGTERM are forwarded to all ranks; the second "
        "signal kills them. Every SIGUSR1 is forwarded as well: 'tandem train' then writes a "
        "checkpoint. The ranks die with this command, however it ends. Only the first rank has "
        "standard input, if that is a file or a pipe.\n\n"
        "The exit code is that of the rank that failed first, or 128 + N if signal N killed it.",
    .examples = examples,
    .min_arguments = 1,
    .max_arguments = CLI_MAX_ARGUMENTS - 1,
    .options =
        {{.name = "ranks",
          .letter = 'n',
          .value = "N",
          .help = "The number of ranks to start on this host. Default: one per CPU."},
         {.name = "transport",
          .value = "T",
          .help = "The transport between ranks: auto, shm, tcp, ucx, mpi, or shm+tcp, shm+ucx, "
                  "shm+mpi. Default: 'comm.transport' of the job, or auto without a job."},
         {.name = "rendezvous",
          .value = "R",
          .help =
              "The rendezvous of ranks on several hosts: HOST:PORT, where rank 0 will listen, or "
              "a file that all hosts can read. TANDEM_SECRET must be the same on all hosts."},
         {.name = "first", .value = "F", .help = "The first rank of this host. Default: 0."},
         {.name = "size",
          .value = "S",
          .help = "The number of ranks on all hosts together. Default: N."},
         {.name = "run",
          .value = "DIR",
          .help = "The directory for the traces of the ranks; it is created if needed. Default: a "
                  "temporary directory, which is kept if a rank fails."},
         {.name = "job",
          .value = "JOB",
          .help = "A job file: its hash becomes TANDEM_JOB, and ranks with another hash are "
                  "rejected."},
         {.name = "label", .help = "Prefix every line of output with the rank: [3] text."},
         {.name = "pin",
          .help =
              "Pin each rank to an equal share of the cores, consecutive ranks on the same NUMA "
              "node, with memory of that node, if there are enough cores."},
         {.name = "grace",
          .value = "SECONDS",
          .help = "The time between SIGTERM and SIGKILL. Default: 5."},
         CLI_OPTION_SET},
    .run = run_run,
};
