/*
 * help.c: help on the terminal, the manual page and shell completions, generated from the tables of
 * the commands.
 */
#include "cli.h"

#include <string.h>

static const struct {
    int code;
    const char *text;
} exit_codes[] = {
    {CLI_OK, "success"},
    {CLI_FAILED, "the command failed"},
    {CLI_USAGE,
     "the command line or the job file is invalid, or a named file does not exist; nothing "
     "was started"},
    {CLI_DIVERGED, "training diverged: a number of the model is not finite"},
    {CLI_MISMATCH, "the run belongs to another job, or its data or its library has changed"},
    {CLI_BUSY, "another process is training the run"},
    {CLI_PEER, "another rank failed or did not respond in time"},
    {CLI_INTERRUPTED, "interrupted (Ctrl-C); after the first Ctrl-C, a checkpoint was written"},
};
enum { EXIT_CODE_COUNT = sizeof(exit_codes) / sizeof(exit_codes[0]) };

static void add_options(const cli_command *command, tdm_str *out)
{
    for (const cli_option *o = command->options; o->name; o++) {
        tdm_str head = TDM_STR_INIT;
        if (o->letter)
            tdm_str_addf(&head, "  -%c, --%s", o->letter, o->name);
        else
            tdm_str_addf(&head, "      --%s", o->name);
        if (o->value) tdm_str_addf(&head, " %s", o->value);
        tdm_str_addf(out, "%s\n", tdm_str_text(&head));
        cli_wrap(out, o->help, 10);
        tdm_str_release(&head);
    }
    tdm_str_add(out, "  -h, --help\n          Show this help.\n");
}

void cli_help_command(const cli_command *command, tdm_str *out)
{
    tdm_str_addf(out, "tandem %s: %s\n\nUsage:\n", command->name, command->summary);
    for (const char *const *u = command->usage; *u; u++) tdm_str_addf(out, "  %s\n", *u);
    tdm_str_add_char(out, '\n');
    cli_wrap(out, command->help, 0);
    tdm_str_add(out, "\nOptions:\n");
    add_options(command, out);
    if (!command->examples) return;
    tdm_str_add(out, "\nExamples:\n");
    for (const char *const *e = command->examples; e[0] && e[1]; e += 2)
        tdm_str_addf(out, "  %s\n      %s\n", e[0], e[1]);
}

void cli_help_all(tdm_str *out)
{
    tdm_str_add(out,
                "Tandem trains deep-learning models: describe a job once, run it on any number "
                "of\nworkers, get the same bits.\n\nUsage:\n  tandem COMMAND [arguments]\n\n"
                "Commands:\n");
    for (const cli_command *const *c = cli_commands(); *c; c++)
        tdm_str_addf(out, "  %-10s %s\n", (*c)->name, (*c)->summary);
    tdm_str_add(out,
                "\n'tandem help COMMAND' describes a command; 'tandem job keys' lists the keys of "
                "job files.\n\nExit codes:\n");
    for (int i = 0; i < EXIT_CODE_COUNT; i++)
        tdm_str_addf(out, "  %3d  %s\n", exit_codes[i].code, exit_codes[i].text);
}

/* ---- the manual page ------------------------------------------------------------------------- */

/* Adds text with troff's special characters escaped. */
static void add_roff(tdm_str *out, const char *text)
{
    bool line_start = true;
    for (const char *p = text; *p; p++) {
        if (line_start && (*p == '.' || *p == '\'')) tdm_str_add(out, "\\&");
        if (*p == '\\')
            tdm_str_add(out, "\\e");
        else if (*p == '-')
            tdm_str_add(out, "\\-");
        else if (*p == '\n' && p[1] == '\n')
            tdm_str_add(out, "\n.PP"), (void)0;
        else
            tdm_str_add_char(out, *p);
        line_start = *p == '\n';
    }
    tdm_str_add_char(out, '\n');
}

static void man_command(const cli_command *c, tdm_str *out)
{
    tdm_str_addf(out, ".SS tandem %s\n", c->name);
    for (const char *const *u = c->usage; *u; u++) {
        tdm_str_add(out, ".B ");
        add_roff(out, *u);
        tdm_str_add(out, ".br\n");
    }
    tdm_str_add(out, ".PP\n");
    add_roff(out, c->help);
    for (const cli_option *o = c->options; o->name; o++) {
        tdm_str_add(out, ".TP\n.B ");
        tdm_str line = TDM_STR_INIT;
        if (o->letter) tdm_str_addf(&line, "-%c, ", o->letter);
        tdm_str_addf(&line, "--%s%s%s", o->name, o->value ? " " : "", o->value ? o->value : "");
        add_roff(out, tdm_str_text(&line));
        tdm_str_release(&line);
        add_roff(out, o->help);
    }
}

static void man_page(tdm_str *out)
{
    tdm_str_addf(out, ".TH TANDEM 1 \"\" \"tandem %s\" \"User Commands\"\n", tdm_version());
    tdm_str_add(out, ".SH NAME\ntandem \\- distributed training of deep\\-learning models\n"
                     ".SH SYNOPSIS\n.B tandem\n.I COMMAND\n[arguments]\n.SH DESCRIPTION\n");
    add_roff(out,
             "Tandem trains deep-learning models: describe a job once in a YAML file, run it on "
             "any number of workers, get the same bits.");
    tdm_str_add(out, ".SH COMMANDS\n");
    for (const cli_command *const *c = cli_commands(); *c; c++) man_command(*c, out);
    tdm_str_add(out, ".SH EXIT STATUS\n");
    for (int i = 0; i < EXIT_CODE_COUNT; i++) {
        tdm_str_addf(out, ".TP\n.B %d\n", exit_codes[i].code);
        add_roff(out, exit_codes[i].text);
    }
    tdm_str_add(out,
                ".SH ENVIRONMENT\n.TP\n.B NO_COLOR\nIf set and not empty, no colours are "
                "used.\n.SH FILES\n.TP\n.I runs/NAME\\-NUMBER/\nThe directory of a run: job.yaml, "
                "log.jsonl, metrics.jsonl, checkpoints/.\n");
}

/* ---- completions ----------------------------------------------------------------------------- */

static void command_words(const cli_command *c, tdm_str *out)
{
    if (c->subcommands)
        for (const char *const *s = c->subcommands; *s; s++) tdm_str_addf(out, "%s ", *s);
    for (const cli_option *o = c->options; o->name; o++) tdm_str_addf(out, "--%s ", o->name);
    tdm_str_add(out, "--help");
}

static void completion_bash(tdm_str *out)
{
    tdm_str_add(out, "# bash completion for tandem\n_tandem() {\n"
                     "    local cur=${COMP_WORDS[COMP_CWORD]} words=\n"
                     "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        words=\"");
    for (const cli_command *const *c = cli_commands(); *c; c++)
        tdm_str_addf(out, "%s ", (*c)->name);
    tdm_str_add(out, "\"\n    else\n        case ${COMP_WORDS[1]} in\n");
    for (const cli_command *const *c = cli_commands(); *c; c++) {
        tdm_str_addf(out, "        %s) words=\"", (*c)->name);
        command_words(*c, out);
        tdm_str_add(out, "\" ;;\n");
    }
    tdm_str_add(out, "        esac\n    fi\n"
                     "    if [[ $cur == -* || $COMP_CWORD -eq 1 ]]; then\n"
                     "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
                     "    elif [[ $COMP_CWORD -eq 2 && ${words%% *} != -* ]]; then\n"
                     "        mapfile -t COMPREPLY < <(compgen -W \"${words%%--*}\" -- \"$cur\")\n"
                     "    else\n"
                     "        mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
                     "    fi\n}\ncomplete -o filenames -F _tandem tandem\n");
}

static void completion_zsh(tdm_str *out)
{
    tdm_str_add(out, "#compdef tandem\n_tandem() {\n    local -a commands\n    commands=(\n");
    for (const cli_command *const *c = cli_commands(); *c; c++)
        tdm_str_addf(out, "        '%s:%s'\n", (*c)->name, (*c)->summary);
    tdm_str_add(out, "    )\n    if (( CURRENT == 2 )); then\n        _describe command commands\n"
                     "        return\n    fi\n    case $words[2] in\n");
    for (const cli_command *const *c = cli_commands(); *c; c++) {
        tdm_str_addf(out, "    %s) compadd -- ", (*c)->name);
        command_words(*c, out);
        tdm_str_add(out, " ;;\n");
    }
    tdm_str_add(out, "    esac\n    _files\n}\n_tandem \"$@\"\n");
}

static void completion_fish(tdm_str *out)
{
    for (const cli_command *const *c = cli_commands(); *c; c++) {
        tdm_str_addf(out, "complete -c tandem -n __fish_use_subcommand -a %s -d '%s'\n", (*c)->name,
                     (*c)->summary);
        for (const cli_option *o = (*c)->options; o->name; o++) {
            tdm_str_addf(out, "complete -c tandem -n '__fish_seen_subcommand_from %s' -l %s",
                         (*c)->name, o->name);
            if (o->letter) tdm_str_addf(out, " -s %c", o->letter);
            tdm_str_add(out, o->value ? " -r\n" : "\n");
        }
    }
}

static int run_help(const cli_args *args)
{
    tdm_str out = TDM_STR_INIT;
    const char *shell = cli_value(args, "completion");
    if (cli_has(args, "man")) {
        man_page(&out);
    } else if (shell) {
        if (strcmp(shell, "bash") == 0)
            completion_bash(&out);
        else if (strcmp(shell, "zsh") == 0)
            completion_zsh(&out);
        else if (strcmp(shell, "fish") == 0)
            completion_fish(&out);
        else {
            cli_error("help: '--completion' supports bash, zsh and fish, not '%s'", shell);
            return CLI_USAGE;
        }
    } else if (args->argument_count == 0) {
        cli_help_all(&out);
    } else {
        const cli_command *command = cli_find_command(args->arguments[0]);
        if (!command) return cli_unknown_command(args->arguments[0]);
        cli_help_command(command, &out);
    }
    return cli_print(&out);
}

static const char *const usage[] = {"tandem help [COMMAND]", "tandem help --man",
                                    "tandem help --completion SHELL", NULL};

const cli_command cli_help = {
    .name = "help",
    .summary = "Show help on tandem or on one command",
    .usage = usage,
    .help = "Without COMMAND it lists all commands and the exit codes.",
    .max_arguments = 1,
    .options = {{.name = "man", .help = "Print the manual page, as troff."},
                {.name = "completion",
                 .value = "SHELL",
                 .help = "Print the completion script for bash, zsh or fish."}},
    .run = run_help,
};
