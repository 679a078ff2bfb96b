/*
 * cli.h: declarations shared by the commands of the `tandem` binary.
 *
 * A command is one file, cli/cmd_NAME.c, which exports one table: its name, a summary, its usage, its
 * options, its help text and its function. The parsing of options, the help on the terminal, the manual
 * page and the shell completions are generated from these tables.
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
    CLI_FAILED = 1,   /* the command failed */
    CLI_USAGE = 2,    /* the command line or the job file is invalid; nothing was started */
    CLI_DIVERGED = 3, /* a number of the model is not finite */
    CLI_MISMATCH = 4, /* --resume: the run belongs to another job or other data */
    CLI_BUSY = 5,     /* another process is training the run */
    CLI_PEER = 6,     /* another rank failed or did not respond in time */
    CLI_INTERRUPTED = 130
};

enum { CLI_MAX_OPTIONS = 20, CLI_MAX_SETS = 64, CLI_MAX_ARGUMENTS = 1024 };

typedef struct cli_option {
    const char *name;  /* long name, without dashes; NULL ends the list */
    char letter;       /* short name, or 0 */
    const char *value; /* placeholder of its value ("N", "FILE"); NULL: it has none */
    const char *help;
    bool repeats;
} cli_option;

typedef struct cli_args cli_args;

typedef struct cli_command {
    const char *name;
    const char *summary;            /* one line, no full stop */
    const char *const *usage;       /* "tandem train JOB [options]", NULL-terminated */
    const char *help;               /* paragraphs, wrapped at 80 columns */
    const char *const *examples;    /* command, description, command, ...; NULL-terminated */
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
    cli_agent, cli_server, cli_trace, cli_bench, cli_doctor, cli_version, cli_help;
/* All commands, in the order of the help; NULL-terminated. */
const cli_command *const *cli_commands(void);
const cli_command *cli_find_command(const char *name);
/* Prints an error with a suggestion; returns the exit code. */
int cli_unknown_command(const char *name);

/* ---- options (options.c) ---------------------------------------------------------------------- */

/* False after an error, which has been printed. */
bool cli_parse(const cli_command *command, int argc, char **argv, cli_args *out);
bool cli_has(const cli_args *args, const char *option);
/* Replaces the value of an option; it is borrowed. NULL: as if the option had not been given. */
void cli_set_value(cli_args *args, const char *option, const char *value);
const char *cli_value(const cli_args *args, const char *option); /* NULL when not given */
/* Parses the value as a whole number in [min, max]; false, after an error message, if it is not one.
 * `out` is unchanged if the option was not given. */
bool cli_int(const cli_args *args, const char *option, int64_t min, int64_t max, int64_t *out);
/* Like cli_int, for a decimal number. */
bool cli_real(const cli_args *args, const char *option, double min, double max, double *out);
/* The value of '--transport', NULL if it was not given. False, after an error message, if it is not a
 * transport. */
bool cli_transport(const cli_args *args, const char **out);
bool cli_json(const cli_args *args);

/* Options of several commands. */
#define CLI_OPTION_ALLOW_LIBRARY                                                                   \
    {                                                                                              \
        .name = "allow-library", .value = "FILE",                                                  \
        .help =                                                                                    \
            "For a model from a shared object (model.kind: library): load this file. Its SHA-256 " \
            "must match the checkpoint. The file is code that runs with your permissions. The "    \
            "option is not needed for a run whose job.yaml names the library."                     \
    }
#define CLI_OPTION_JSON                                                                            \
    {                                                                                              \
        .name = "json", .help = "Print JSON."                                                      \
    }
#define CLI_OPTION_SET                                                                              \
    {                                                                                               \
        .name = "set", .letter = 's', .value = "KEY=VALUE", .repeats = true,                        \
        .help =                                                                                     \
            "Override a key of the job, as in --set train.batch=128. It can be repeated; the last " \
            "one wins. Paths are relative to the current directory."                                \
    }

/* ---- output (print.c) ------------------------------------------------------------------------- */

/* Which messages are printed. Of messages that all ranks would print, only one rank prints each. */
typedef enum cli_words { CLI_SAY_ALL, CLI_SAY_ERRORS, CLI_SAY_NOTHING } cli_words;
void cli_hush(cli_words words);
/* Copies all further output to this descriptor; -1: to none. */
void cli_copy_to(int fd);
/* "tandem: MESSAGE" on stderr, in red on a terminal. */
void cli_error(const char *fmt, ...) TDM_PRINTF(1, 2);
void cli_warn(const char *fmt, ...) TDM_PRINTF(1, 2);
/* Prints the error and returns the matching exit code. */
int cli_fail(const tdm_error *err);
/* Writes the text to stdout, checks for errors, and releases it; returns an exit code. */
int cli_print(tdm_str *text);
/* Whether to use colours on this stream: it is a terminal, and NO_COLOR is not set. */
bool cli_colour(FILE *stream);
/* Wraps `text` at 80 columns, each line indented; paragraphs are separated by "\n\n". */
void cli_wrap(tdm_str *out, const char *text, int indent);

/* `path` relative to the current directory if it is below that; otherwise `path` itself. */
const char *cli_short_path(const char *path);

/* Loads a job with the command's --set options. On problems it prints them, sets *code to the exit code
 * and returns NULL. */
tdm_job_document *cli_load_job(const cli_args *args, const char *path, int *code);
extern char **cli_argv; /* of the whole program */

/* ---- help (help.c) ---------------------------------------------------------------------------- */

void cli_help_command(const cli_command *command, tdm_str *out);
void cli_help_all(tdm_str *out);

#endif
