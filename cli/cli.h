/*
 * cli.h: what the commands of the `tandem` binary share.
 *
 * A command is one file, cli/cmd_NAME.c, that exports one table: its name, one line about it, its
 * usage, its options, its text of help, its function. From these tables come the parsing of
 * options, the help on the terminal, the manual page and the shell completions.
 */
#ifndef TANDEM_CLI_CLI_H
#define TANDEM_CLI_CLI_H

#include <tandem/base.h>
#include <tandem/job.h>
#include <tandem/text.h>

#include <stdio.h>

/* Exit codes, documented in `tandem help` and the manual page. */
enum {
    CLI_OK = 0,
    CLI_FAILED = 1,   /* it was tried and did not work */
    CLI_USAGE = 2,    /* the command line or the job file is wrong; nothing was started */
    CLI_DIVERGED = 3, /* the model's numbers are no longer finite */
    CLI_MISMATCH = 4, /* --resume: the run belongs to another job or other data */
    CLI_BUSY = 5,     /* another process is using the run */
    CLI_PEER = 6,     /* another rank failed, or did not answer in time */
    CLI_INTERRUPTED = 130
};

enum { CLI_MAX_OPTIONS = 16, CLI_MAX_SETS = 64, CLI_MAX_ARGUMENTS = 1024 };

typedef struct cli_option {
    const char *name;  /* long name, without dashes; NULL ends the list */
    char letter;       /* short name, or 0 */
    const char *value; /* what it takes ("N", "FILE"); NULL: a switch */
    const char *help;
    bool repeats;
} cli_option;

typedef struct cli_args cli_args;

typedef struct cli_command {
    const char *name;
    const char *summary;            /* one line, no full stop */
    const char *const *usage;       /* "tandem train JOB [options]", NULL-terminated */
    const char *help;               /* paragraphs, wrapped at 80 columns */
    const char *const *examples;    /* command, what it does, command, ...; NULL-terminated */
    const char *const *subcommands; /* for completion; NULL for none */
    int min_arguments, max_arguments;
    cli_option options[CLI_MAX_OPTIONS];
    int (*run)(const cli_args *args);
} cli_command;

struct cli_args {
    const cli_command *command;
    const char *arguments[CLI_MAX_ARGUMENTS];
    int argument_count;
    /* By place in command->options: how often it was given, and the (last) value. */
    int given[CLI_MAX_OPTIONS];
    const char *values[CLI_MAX_OPTIONS];
    const char *sets[CLI_MAX_SETS]; /* the values of --set, in order */
    int set_count;
};

/* ---- commands (main.c lists them) ------------------------------------------------------------- */

extern const cli_command cli_train, cli_eval, cli_predict, cli_generate, cli_inspect, cli_hash,
    cli_replay, cli_ledger, cli_checkpoint, cli_job, cli_run, cli_ps, cli_stop, cli_join, cli_leave,
    cli_agent, cli_trace, cli_bench, cli_doctor, cli_version, cli_help;
/* All of them, in the order of the help; NULL-terminated. */
const cli_command *const *cli_commands(void);
const cli_command *cli_find_command(const char *name);
/* Complains, with the command that was likely meant; gives the exit code. */
int cli_unknown_command(const char *name);

/* ---- options (options.c) ---------------------------------------------------------------------- */

/* False after a mistake, which has been printed. */
bool cli_parse(const cli_command *command, int argc, char **argv, cli_args *out);
bool cli_has(const cli_args *args, const char *option);
/* Gives the option another value, which is borrowed; NULL: as if it had not been given. */
void cli_set_value(cli_args *args, const char *option, const char *value);
const char *cli_value(const cli_args *args, const char *option); /* NULL when not given */
/* The value as a whole number in [least, most]; false (and a message) when it is none. `out` is
 * left alone when the option was not given. */
bool cli_int(const cli_args *args, const char *option, int64_t min, int64_t max, int64_t *out);
/* The same with a decimal number. */
bool cli_real(const cli_args *args, const char *option, double min, double max, double *out);
/* The value of '--transport', NULL when it was not given. False (and a message) when no world can
 * have it. */
bool cli_transport(const cli_args *args, const char **out);
bool cli_json(const cli_args *args);

/* Rows that several commands have. */
#define CLI_OPTION_ALLOW_LIBRARY                                                                   \
    {                                                                                              \
        .name = "allow-library", .value = "FILE",                                                  \
        .help =                                                                                    \
            "For a model from a shared object (model.kind: library): load this file. Its SHA-256 " \
            "must be the one in the checkpoint. The file is code and runs with your rights. For "  \
            "a run whose own job.yaml names the library, the option is not needed."                \
    }
#define CLI_OPTION_JSON                                                                            \
    {                                                                                              \
        .name = "json", .help = "Print JSON, for programs."                                        \
    }
#define CLI_OPTION_SET                                                                             \
    {                                                                                              \
        .name = "set", .letter = 's', .value = "KEY=VALUE", .repeats = true,                       \
        .help =                                                                                    \
            "Override a key of the job, as in --set train.batch=128. May be repeated; the last "   \
            "one wins. Paths are relative to the current folder."                                  \
    }

/* ---- words (print.c) -------------------------------------------------------------------------- */

/* How much of all this is printed. A rank leaves the words that all ranks would say to one of them. */
typedef enum cli_words { CLI_SAY_ALL, CLI_SAY_ERRORS, CLI_SAY_NOTHING } cli_words;
void cli_hush(cli_words words);
/* What is printed from now on goes to this descriptor, too; -1: nowhere else. */
void cli_copy_to(int fd);
/* "tandem: MESSAGE" on stderr, in red on a terminal. */
void cli_error(const char *fmt, ...) TDM_PRINTF(1, 2);
void cli_warn(const char *fmt, ...) TDM_PRINTF(1, 2);
/* Prints the error and gives the exit code that fits it. */
int cli_fail(const tdm_error *err);
/* Writes all of it to stdout, checks that it got there, releases `text`; returns an exit code. */
int cli_print(tdm_str *text);
/* Whether to use colours on this stream: a terminal, and NO_COLOR not set. */
bool cli_colour(FILE *stream);
/* Wraps `text` at 80 columns, each line indented; paragraphs are separated by "\n\n". */
void cli_wrap(tdm_str *out, const char *text, int indent);

/* The part of `path` below the current folder, when it lies there; else `path` itself. */
const char *cli_short_path(const char *path);

/* Loads a job with the command's --set, and prints all problems when there are any. NULL then, and
 * *code has the exit code. */
tdm_job_document *cli_load_job(const cli_args *args, const char *path, int *code);
extern char **cli_argv; /* of the whole program */

/* ---- help (help.c) ---------------------------------------------------------------------------- */

void cli_help_command(const cli_command *command, tdm_str *out);
void cli_help_all(tdm_str *out);

#endif
