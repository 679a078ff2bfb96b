/*
 * main.c: finds the command and runs it. Handles `tandem --help`, `tandem --version` and
 * `tandem COMMAND --help`.
 */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>

static const cli_command *const commands[] = {
    &cli_train,  &cli_eval,       &cli_predict, &cli_generate, &cli_inspect, &cli_replay,
    &cli_ledger, &cli_checkpoint, &cli_hash,    &cli_job,      &cli_run,     &cli_ps,
    &cli_stop,   &cli_join,       &cli_leave,   &cli_agent,    &cli_server,  &cli_trace,
    &cli_bench,  &cli_doctor,     &cli_version, &cli_help,     NULL,
};

const cli_command *const *cli_commands(void)
{
    return commands;
}

const cli_command *cli_find_command(const char *name)
{
    for (const cli_command *const *c = commands; *c; c++)
        if (strcmp((*c)->name, name) == 0) return *c;
    return NULL;
}

static const char *command_name(size_t index, const void *user)
{
    (void)user;
    return commands[index]->name;
}

int cli_unknown_command(const char *name)
{
    size_t count = sizeof(commands) / sizeof(commands[0]) - 1;
    const char *near = tdm_text_nearest(name, count, command_name, NULL);
    if (near)
        cli_error("'%s' is not a command; did you mean '%s'?", name, near);
    else
        cli_error("'%s' is not a command; 'tandem help' lists all commands", name);
    return CLI_USAGE;
}

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    return false;
}

/*
 * If a standard stream is closed, the next opened file would get its descriptor, and messages would be
 * written to that file. So the descriptor is occupied, with an access mode that makes every use of it
 * fail.
 */
static void occupy_standard_streams(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) == -1 && errno == EBADF)
            if (open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) return;
}

int main(int argc, char **argv)
{
    cli_argv = argv;
    occupy_standard_streams();
    signal(SIGPIPE, SIG_IGN); /* `tandem ... | head` gets an error from write instead */
    signal(SIGXFSZ, SIG_IGN); /* the same for a limit on the file size (ulimit -f) */
    signal(SIGCHLD, SIG_DFL); /* if it is ignored, exit codes of child processes are lost */
    const char *name = argc > 1 ? argv[1] : "help";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) name = "help";
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) name = "version";
    const cli_command *command = cli_find_command(name);
    if (!command) return cli_unknown_command(name);
    if (argc > 2 && asks_for_help(argc - 2, argv + 2)) {
        tdm_str text = TDM_STR_INIT;
        cli_help_command(command, &text);
        return cli_print(&text);
    }
    cli_args args;
    if (!cli_parse(command, argc - 2, argv + 2, &args)) return CLI_USAGE;
    int code = command->run(&args);
    if (argc == 1) return CLI_USAGE; /* `tandem` without a command prints the help */
    return code;
}
