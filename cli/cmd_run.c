/*
 * cmd_run.c: `tandem run`: starts the ranks of a world on this host, and ends them all when one fails.
 */
#include "cli.h"

#include <tandem/cluster.h>
#include <tandem/comm.h>

#include <string.h>

/* The job's hash, by which ranks of another job are turned away, and the transport it asks for. */
static int use_job(const cli_args *args, char hash[TDM_SHA256_HEX], tdm_launch_options *options)
{
    const char *path = cli_value(args, "job");
    if (!path && cli_has(args, "set")) {
        cli_error("run: '--set' overrides a key of a job; name its file with '--job'");
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
    options->program = args->arguments; /* followed by NULL: there is always one place more */
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

static int report(const tdm_launch_result *result)
{
    if (result->output_errno)
        cli_error("the output cannot be written: %s", strerror(result->output_errno));
    if (result->failed_rank < 0 && !result->interrupted)
        return result->output_errno ? CLI_FAILED : CLI_OK;
    if (result->failed_rank >= 0) cli_error("%s", result->how);
    if (result->run[0])
        cli_error("'tandem trace %s' shows what each rank did last", cli_short_path(result->run));
    if (result->interrupted) return CLI_INTERRUPTED;
    return result->exit_code;
}

static int run(const cli_args *args)
{
    tdm_launch_options options = {.program = NULL};
    tdm_launch_result result;
    tdm_error err;
    char hash[TDM_SHA256_HEX];
    if (!read_options(args, &options)) return CLI_USAGE;
    int code = use_job(args, hash, &options);
    if (code != CLI_OK) return code;
    if (tdm_launch(&options, &result, &err) == TDM_OK) return report(&result);
    code = cli_fail(&err);
    return err.status == TDM_ERR_INVALID || err.status == TDM_ERR_RANGE ? CLI_USAGE : code;
}

static const char *const usage[] = {
    "tandem run [-n N] [--label] [--run DIR] [options] -- PROGRAM [ARGUMENTS]", NULL};
static const char *const examples[] = {
    "tandem run -n 4 --label -- ./hello",
    "four ranks on this host, each line with its rank",
    "tandem run -n 4 --run runs/try -- ./hello; tandem trace runs/try",
    "keep what each rank did last",
    "TANDEM_SECRET=... tandem run -n 2 --first 2 --size 4 --rendezvous alpha:7000 -- ./hello",
    "ranks 2 and 3 of a world of four; ranks 0 and 1 start on host alpha",
    NULL};

const cli_command cli_run = {
    .name = "run",
    .summary = "Start a program as many ranks that talk to each other",
    .usage = usage,
    .help =
        "Starts N processes of PROGRAM on this host, each with its rank, the world's size and the "
        "place to meet in its environment (TANDEM_RANK, TANDEM_SIZE and others), from which "
        "tdm_comm_open() takes them. What follows '--' belongs to the program.\n\n"
        "When a rank fails, the others have two seconds to report what they saw, are asked to "
        "end (SIGTERM), and are killed after the time of --grace. Ctrl-C and SIGTERM are passed "
        "on to all ranks; the second one kills them. SIGUSR1 is passed on as often as it comes: "
        "'tandem train' takes it as the wish for a checkpoint. The ranks die with this command, however it "
        "ends. They have no input, but for the first one, when it is a file or a pipe.\n\n"
        "The exit code is that of the rank that failed first, 128 + N when signal N killed it.",
    .examples = examples,
    .min_arguments = 1,
    .max_arguments = CLI_MAX_ARGUMENTS - 1,
    .options =
        {{.name = "ranks",
          .letter = 'n',
          .value = "N",
          .help = "How many to start here (as many as there are processors)."},
         {.name = "transport",
          .value = "T",
          .help = "What carries bytes between them: auto, shm, tcp, ucx, mpi, or shm+tcp, "
                  "shm+ucx, shm+mpi. "
                  "Without it the job's 'comm.transport' counts, and auto without a job."},
         {.name = "rendezvous",
          .value = "R",
          .help = "Where ranks of several hosts meet: HOST:PORT, where rank 0 will listen, "
                  "or a file that all can see. TANDEM_SECRET must be the same on all."},
         {.name = "first", .value = "F", .help = "The first rank of this host (0)."},
         {.name = "size", .value = "S", .help = "How many ranks the world has on all hosts (N)."},
         {.name = "run",
          .value = "DIR",
          .help = "The folder for the ranks' traces, made when needed. Without it a "
                  "temporary one, which is kept when a rank fails."},
         {.name = "job",
          .value = "JOB",
          .help = "A job file: its hash becomes TANDEM_JOB, and ranks with another one are "
                  "turned away."},
         {.name = "label",
          .help = "Put the rank in front of every line that the ranks write: [3] text."},
         {.name = "pin",
          .help = "Give each rank an equal share of the cores, neighbours on one NUMA node, and "
                  "memory of that node, where there are enough."},
         {.name = "grace",
          .value = "SECONDS",
          .help = "From asking ranks to end to killing them (5)."},
         CLI_OPTION_SET},
    .run = run,
};
