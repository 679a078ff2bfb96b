/*
 * options.c: parses GNU-style options according to a command's table: --name VALUE, --name=VALUE,
 * -n VALUE, -nVALUE, unique prefixes of long names, and "--" as the end of options; options and
 * arguments in any order.
 */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_BYTES = 64, KEYS_HINTED = 3 };

static int option_count(const cli_command *command)
{
    int count = 0;
    while (count < CLI_MAX_OPTIONS && command->options[count].name) count++;
    return count;
}

static const char *option_name(size_t index, const void *user)
{
    return ((const cli_command *)user)->options[index].name;
}

static bool has_set(const cli_command *command)
{
    for (int i = 0; i < option_count(command); i++)
        if (strcmp(command->options[i].name, "set") == 0) return true;
    return false;
}

/* Whether `word` is one of the words of `list`, which are separated by blanks. */
static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; at && length > 0 && (at = strstr(at, word)); at++) {
        bool begins = at == list || at[-1] == ' ';
        if (begins && (at[length] == '\0' || at[length] == ' ')) return true;
    }
    return false;
}

/* Whether `word` is the key, its part after the last dot, or its name in other systems. */
static bool key_is_called(const tdm_job_key *key, const char *word)
{
    const char *dot = strrchr(key->path, '.');
    return strcmp(key->path, word) == 0 || strcmp(dot ? dot + 1 : key->path, word) == 0 ||
           has_word(key->also_called, word);
}

/* For a job key that was given as an option, such as "--epochs 3". Adds "'--set train.epochs=3'" for
 * each key of that name; false if there is none. */
static bool add_keys_called(const char *name, const char *value, tdm_str *out)
{
    char word[OPTION_BYTES];
    int count = 0;
    snprintf(word, sizeof(word), "%s", name);
    for (char *at = word; *at; at++)
        if (*at == '-') *at = '_';
    for (size_t i = 0; i < tdm_job_key_count(); i++) {
        const tdm_job_key *key = tdm_job_key_at(i);
        if (!key_is_called(key, word) || ++count > KEYS_HINTED) continue;
        tdm_str_addf(out, "%s'--set %s=%s'", count > 1 ? " or " : "", key->path, value);
    }
    return count > 0;
}

/* `value` is the argument of the option, or NULL. */
static void report_unknown_option(const cli_command *command, const char *name, size_t length,
                                  const char *value)
{
    char word[OPTION_BYTES];
    tdm_str keys = TDM_STR_INIT;
    snprintf(word, sizeof(word), "%.*s", (int)length, name);
    const char *near = tdm_text_nearest(word, (size_t)option_count(command), option_name, command);
    if (has_set(command) && add_keys_called(word, value && *value ? value : "...", &keys))
        cli_error("%s: unknown option '--%s'; for the job key use %s", command->name, word,
                  tdm_str_text(&keys));
    else if (near)
        cli_error("%s: unknown option '--%s'; did you mean '--%s'?", command->name, word, near);
    else
        cli_error("%s: unknown option '--%s'; see 'tandem help %s'", command->name, word,
                  command->name);
    tdm_str_release(&keys);
}

/* The option with this long name or unique prefix; -1 after an error message, which may contain the
 * value. */
static int find_long(const cli_command *command, const char *name, size_t length, const char *value)
{
    int found = -1;
    for (int i = 0; i < option_count(command); i++) {
        const char *candidate = command->options[i].name;
        if (strncmp(candidate, name, length) != 0) continue;
        if (strlen(candidate) == length) return i;
        if (found >= 0) {
            cli_error("%s: '--%.*s' is ambiguous: '--%s' or '--%s'", command->name, (int)length,
                      name, command->options[found].name, candidate);
            return -1;
        }
        found = i;
    }
    if (found < 0 || length == 0) {
        report_unknown_option(command, name, length, value);
        return -1;
    }
    return found;
}

static bool option_store(cli_args *out, int index, const char *value)
{
    const cli_option *option = &out->command->options[index];
    if (option->value && !value) {
        cli_error("%s: '--%s' requires a value: --%s %s", out->command->name, option->name,
                  option->name, option->value);
        return false;
    }
    if (!option->value && value) {
        cli_error("%s: '--%s' takes no value", out->command->name, option->name);
        return false;
    }
    out->given[index]++;
    out->values[index] = value;
    if (!option->repeats) return true;
    if (out->set_count == CLI_MAX_SETS) {
        cli_error("%s: '--%s' is given more than %d times", out->command->name, option->name,
                  CLI_MAX_SETS);
        return false;
    }
    out->sets[out->set_count++] = value;
    return true;
}

/* `at` is the index of the option in argv; it is advanced if the next word is the value. */
static bool parse_long(cli_args *out, char **argv, int argc, int *at)
{
    const char *name = argv[*at] + 2, *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    const char *value = equals ? equals + 1 : NULL, *next = *at + 1 < argc ? argv[*at + 1] : NULL;
    bool is_value = next && (next[0] != '-' || (next[1] >= '0' && next[1] <= '9'));
    int index = find_long(out->command, name, length, value ? value : is_value ? next : NULL);
    if (index < 0) return false;
    if (!value && out->command->options[index].value && *at + 1 < argc) value = argv[++*at];
    return option_store(out, index, value);
}

static bool parse_short(cli_args *out, char **argv, int argc, int *at)
{
    for (const char *letter = argv[*at] + 1; *letter; letter++) {
        int index = -1;
        for (int i = 0; i < option_count(out->command); i++)
            if (out->command->options[i].letter == *letter) index = i;
        if (index < 0) {
            cli_error("%s: unknown option '-%c'; see 'tandem help %s'", out->command->name, *letter,
                      out->command->name);
            return false;
        }
        if (!out->command->options[index].value) {
            if (!option_store(out, index, NULL)) return false;
            continue;
        }
        const char *value = letter[1] ? letter + 1 : *at + 1 < argc ? argv[++*at] : NULL;
        return option_store(out, index, value);
    }
    return true;
}

static bool check_arguments(const cli_args *out, int count)
{
    const cli_command *command = out->command;
    if (count >= command->min_arguments && count <= command->max_arguments) return true;
    if (count < command->min_arguments)
        cli_error("%s: an argument is missing; usage: %s", command->name, command->usage[0]);
    else
        cli_error("%s: too many arguments; usage: %s", command->name, command->usage[0]);
    return false;
}

bool cli_parse(const cli_command *command, int argc, char **argv, cli_args *out)
{
    memset(out, 0, sizeof(*out));
    out->command = command;
    bool options_ended = false;
    int count = 0;
    for (int at = 0; at < argc; at++) {
        const char *word = argv[at];
        if (!options_ended && strcmp(word, "--") == 0) {
            options_ended = true;
        } else if (!options_ended && strncmp(word, "--", 2) == 0) {
            if (!parse_long(out, argv, argc, &at)) return false;
        } else if (!options_ended && word[0] == '-' && word[1]) {
            if (!parse_short(out, argv, argc, &at)) return false;
        } else if (count++ < CLI_MAX_ARGUMENTS) {
            out->arguments[out->argument_count++] = word;
        }
    }
    return check_arguments(out, count);
}

static int find_index(const cli_args *args, const char *option)
{
    for (int i = 0; i < option_count(args->command); i++)
        if (strcmp(args->command->options[i].name, option) == 0) return i;
    return -1;
}

bool cli_has(const cli_args *args, const char *option)
{
    int index = find_index(args, option);
    return index >= 0 && args->given[index] > 0;
}

const char *cli_value(const cli_args *args, const char *option)
{
    int index = find_index(args, option);
    return index >= 0 && args->given[index] > 0 ? args->values[index] : NULL;
}

void cli_set_value(cli_args *args, const char *option, const char *value)
{
    int index = find_index(args, option);
    if (index < 0) return;
    args->values[index] = value;
    args->given[index] = value ? 1 : 0;
}

bool cli_int(const cli_args *args, const char *option, int64_t min, int64_t max, int64_t *out)
{
    const char *text = cli_value(args, option);
    if (!text) return true;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (!*text || *end || errno || value < min || value > max) {
        cli_error("%s: '--%s' expects a whole number from %lld to %lld, not '%s'",
                  args->command->name, option, (long long)min, (long long)max, text);
        return false;
    }
    *out = value;
    return true;
}

bool cli_real(const cli_args *args, const char *option, double min, double max, double *out)
{
    const char *text = cli_value(args, option);
    if (!text) return true;
    char *end;
    double value = strtod(text, &end);
    if (!*text || *end || !(value >= min && value <= max)) {
        cli_error("%s: '--%s' expects a number from %g to %g, not '%s'", args->command->name,
                  option, min, max, text);
        return false;
    }
    *out = value;
    return true;
}

/* The transports that tdm_comm_open accepts. */
static const char *const transports[] = {"auto", "shm",     "tcp",     "ucx",
                                         "mpi",  "shm+tcp", "shm+ucx", "shm+mpi"};
enum { TRANSPORT_COUNT = sizeof(transports) / sizeof(transports[0]) };

static const char *transport_name(size_t index, const void *user)
{
    (void)user;
    return transports[index];
}

bool cli_transport(const cli_args *args, const char **out)
{
    const char *name = cli_value(args, "transport");
    for (int i = 0; name && i < TRANSPORT_COUNT; i++)
        if (strcmp(name, transports[i]) == 0) *out = name;
    if (!name || *out == name) return true;
    const char *near = tdm_text_nearest(name, TRANSPORT_COUNT, transport_name, NULL);
    cli_error("%s: unknown transport '%s'; use auto, shm, tcp, ucx, mpi, shm+tcp, shm+ucx or "
              "shm+mpi%s%s%s",
              args->command->name, name, near ? "; did you mean '" : "", near ? near : "",
              near ? "'?" : "");
    return false;
}

bool cli_json(const cli_args *args)
{
    return cli_has(args, "json");
}
