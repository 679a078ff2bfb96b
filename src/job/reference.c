/*
 * reference.c: the reference for all keys, as plain text, Markdown and JSON.
 *
 * The text about a key comes from its row; this file adds only the text around the tables.
 * docs/job-file.md is the output of tdm_job_keys_markdown, and a test compares them.
 */
#include "job/job.h"
#include <string.h>

#include "job/internal.h"

#define TEXT_COLUMNS 80

static bool key_matches(const tdm_job_key *key, const char *prefix)
{
    return strncmp(key->path, prefix, strlen(prefix)) == 0;
}

/* Whether `prefix` is below the key, as "layers.conv" is below "layers". */
static bool key_contains(const tdm_job_key *key, const char *prefix)
{
    size_t length = strlen(key->path);
    return strncmp(key->path, prefix, length) == 0 && prefix[length] == '.';
}

static void add_default(const tdm_job_key *key, tdm_str *out)
{
    if (key->required) {
        tdm_str_add(out, "required");
    } else if (key->fallback_note) {
        tdm_str_addf(out, "default: %s", key->fallback_note);
    } else if (key->fallback) {
        tdm_str_addf(out, "default: %s", key->fallback);
    } else {
        tdm_str_add(out, "optional");
    }
}

/* Adds the sentences about the keys that this key excludes or needs. */
static void add_relations(const tdm_job_key *key, tdm_str *out)
{
    if (key->excludes) tdm_str_addf(out, " It cannot be combined with '%s'.", key->excludes);
    if (key->needs) tdm_str_addf(out, " It requires '%s'.", key->needs);
}

/* ---- plain text ------------------------------------------------------------------------------ */

/* Wraps `text` into lines of at most TEXT_COLUMNS, each indented by `indent` spaces. */
static void add_wrapped(const char *text, size_t indent, tdm_str *out)
{
    size_t column = 0;
    while (*text) {
        size_t length = strcspn(text, " ");
        if (column > 0 && column + 1 + length > TEXT_COLUMNS) {
            tdm_str_add_char(out, '\n');
            column = 0;
        }
        if (column == 0) {
            for (size_t i = 0; i < indent; i++) tdm_str_add_char(out, ' ');
            column = indent;
        } else {
            tdm_str_add_char(out, ' ');
            column++;
        }
        tdm_str_add_bytes(out, text, length);
        column += length;
        text += length;
        while (*text == ' ') text++;
    }
    tdm_str_add_char(out, '\n');
}

/* Adds a key, followed by the keys of its mapping. */
static void add_key_text(const tdm_job_key *key, tdm_str *out)
{
    tdm_str line = TDM_STR_INIT;
    tdm__key_wants(key, &line);
    tdm_str_add(&line, "; ");
    add_default(key, &line);
    tdm_str_addf(out, "%s\n", key->path);
    add_wrapped(tdm_str_text(&line), 4, out);
    tdm_str_clear(&line);
    tdm_str_add(&line, key->help);
    add_relations(key, &line);
    add_wrapped(tdm_str_text(&line), 4, out);
    if (!tdm_str_ok(&line)) out->failed = true;
    tdm_str_release(&line);
    for (size_t i = 0; i < key->field_count; i++) {
        tdm_str_add_char(out, '\n');
        add_key_text(&key->fields[i], out);
    }
}

/* Adds the key if it matches the prefix; otherwise those keys of its mapping that do. Returns how
 * many were added. */
static size_t add_matching_text(const tdm_job_key *key, const char *prefix, tdm_str *out)
{
    size_t count = 0;
    if (key_matches(key, prefix)) {
        if (out->length > 0) tdm_str_add_char(out, '\n');
        add_key_text(key, out);
        return 1;
    }
    for (size_t i = 0; key_contains(key, prefix) && i < key->field_count; i++)
        count += add_matching_text(&key->fields[i], prefix, out);
    return count;
}

size_t tdm_job_keys_text(const char *prefix, tdm_str *out)
{
    size_t count = 0;
    for (size_t i = 0; i < tdm_job_key_count(); i++)
        count += add_matching_text(tdm_job_key_at(i), prefix, out);
    return count;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static const char *type_name(tdm_job_key_type type)
{
    static const char *const names[] = {
        [TDM_JOB_KEY_STRING] = "string",   [TDM_JOB_KEY_PATH] = "path",
        [TDM_JOB_KEY_DIR] = "dir",         [TDM_JOB_KEY_INT] = "int",
        [TDM_JOB_KEY_REAL] = "real",       [TDM_JOB_KEY_BOOL] = "bool",
        [TDM_JOB_KEY_CHOICE] = "choice",   [TDM_JOB_KEY_INT_LIST] = "int_list",
        [TDM_JOB_KEY_MAP] = "map",         [TDM_JOB_KEY_MAP_LIST] = "map_list",
        [TDM_JOB_KEY_OPTIONS] = "options", [TDM_JOB_KEY_LAYERS] = "layers",
    };
    return names[type];
}

static void put_key_json(const tdm_job_key *key, tdm_json_writer *w)
{
    tdm_str accepts = TDM_STR_INIT;
    tdm__key_wants(key, &accepts);
    tdm_json_object_begin(w);
    tdm_json_put_string(w, "key", key->path);
    tdm_json_put_string(w, "type", type_name(key->type));
    tdm_json_put_string(w, "accepts", tdm_str_text(&accepts));
    tdm_json_put_string(w, "default", key->fallback);
    tdm_json_put_bool(w, "required", key->required);
    tdm_json_put_bool(w, "decides_bits", key->decides_bits);
    if (key->decides_note) tdm_json_put_string(w, "decides_bits_only", key->decides_note);
    if (key->type == TDM_JOB_KEY_INT || key->type == TDM_JOB_KEY_REAL ||
        key->type == TDM_JOB_KEY_INT_LIST) {
        tdm_json_put_double(w, "least", key->min);
        tdm_json_put_bool(w, "least_excluded", key->min_open);
        tdm_json_put_double(w, "most", key->max); /* null: no limit */
        tdm_json_put_bool(w, "most_excluded", key->max_open);
    }
    if (key->word) tdm_json_put_string(w, "word", key->word);
    if (key->choices) {
        char choice[32];
        tdm_json_key(w, "choices");
        tdm_json_array_begin(w);
        for (size_t i = 0; tdm__choice_at(key->choices, i, choice); i++) tdm_json_string(w, choice);
        tdm_json_array_end(w);
    }
    if (key->excludes) tdm_json_put_string(w, "excludes", key->excludes);
    if (key->needs) tdm_json_put_string(w, "needs", key->needs);
    tdm_json_put_string(w, "help", key->help);
    if (key->field_count > 0) {
        tdm_json_key(w, "keys");
        tdm_json_array_begin(w);
        for (size_t i = 0; i < key->field_count; i++) put_key_json(&key->fields[i], w);
        tdm_json_array_end(w);
    }
    tdm_json_object_end(w);
    if (!tdm_str_ok(&accepts)) w->out->failed = true;
    tdm_str_release(&accepts);
}

static size_t put_matching_json(const tdm_job_key *key, const char *prefix, tdm_json_writer *w)
{
    size_t count = 0;
    if (key_matches(key, prefix)) {
        put_key_json(key, w);
        return 1;
    }
    for (size_t i = 0; key_contains(key, prefix) && i < key->field_count; i++)
        count += put_matching_json(&key->fields[i], prefix, w);
    return count;
}

size_t tdm_job_keys_json(const char *prefix, tdm_str *out)
{
    size_t count = 0;
    tdm_json_writer w = tdm_json_writer_init(out, 2);
    tdm_json_array_begin(&w);
    for (size_t i = 0; i < tdm_job_key_count(); i++)
        count += put_matching_json(tdm_job_key_at(i), prefix, &w);
    tdm_json_array_end(&w);
    tdm_str_add_char(out, '\n');
    return count;
}

/* ---- Markdown -------------------------------------------------------------------------------- */

static const char introduction[] =
    "<!-- Printed by `tandem job keys --markdown` from the table in src/job/keys.c; "
    "do not edit. -->\n"
    "# The job file\n"
    "\n"
    "A job file is a YAML file that describes a training run. Every key except `data.train` has a\n"
    "default, so that the smallest job is two lines. An example:\n"
    "\n"
    "```yaml\n"
    "name: irises\n"
    "seed: 7\n"
    "model:\n"
    "  hidden: [64, 32]      # two hidden layers\n"
    "  activation: tanh\n"
    "data:\n"
    "  train: data/iris.csv  # beside this file\n"
    "  label: species\n"
    "  test_fraction: 0.2\n"
    "train:\n"
    "  batch: 16\n"
    "  epochs: 50\n"
    "optim:\n"
    "  kind: sgd\n"
    "  lr: 0.05\n"
    "```\n"
    "\n"
    "`tandem job check FILE` reports all problems in a file at once, each with its line and column.\n"
    "`tandem job show FILE` prints the job with all defaults.\n"
    "\n"
    "## Rules\n"
    "\n"
    "- **Nesting.** Keys are nested in groups, as above. On this page, in messages and in `--set`\n"
    "  they are written with dots: `train.batch` is `batch:` below `train:`.\n"
    "- **Paths** in a job file are relative to the directory of that file. A path given by `--set`\n"
    "  is relative to the current directory; `run.dir` always is. `~` is not expanded.\n"
    "- **`--set KEY=VALUE`** overrides the value in the file, even if that is invalid. It can be\n"
    "  repeated; the last one wins. Lists are written `[64, 32]`, mappings `{patience: 3}`, a list\n"
    "  of mappings `[{match: \"*.bias\", weight_decay: 0}]`. An empty value clears an optional key:\n"
    "  `--set data.test=`. If two keys exclude each other, the one on the command line wins:\n"
    "  `--set train.steps=100` replaces `train.epochs` of the file.\n"
    "- **Numbers** are written in plain digits: `1000`, not `1e3`, `0x3e8` or `1_000`. Where\n"
    "  fractions are allowed, `0.001`, `.001` and `1e-3` are equivalent. A quoted value is a text,\n"
    "  never a number.\n"
    "- **Mappings** are written as nested keys or in braces. The keys of an entry of `optim.groups`\n"
    "  are listed here as `optim.groups.match` and so on.\n"
    "- **Layers.** An entry of `layers` is a name, a name with settings, or a name with the value of\n"
    "  its first setting if that is required: `relu`, `conv: {channels: 8, kernel: 5}`,\n"
    "  `linear: 64`. [models.md](models.md) describes the layers.\n"
    "- **Booleans** are `true` and `false`; `yes`, `no`, `on` and `off` mean the same.\n"
    "- **YAML** is restricted to one document in UTF-8 of at most 1 MiB, without anchors, aliases,\n"
    "  tags and merge keys.\n"
    "- **Bits.** A key marked *bits* affects the trained parameters: two jobs that agree on all of\n"
    "  these keys and on the data train the same bits on every machine. A run can be resumed only\n"
    "  with a job that agrees on them. Of a path, only its presence counts. Some keys affect the bits\n"
    "  only under the condition that follows the mark.\n";

/* Escapes the bars, which would end a table cell. */
static void add_cell(const char *text, tdm_str *out)
{
    for (; *text; text++) {
        if (*text == '|') tdm_str_add_char(out, '\\');
        tdm_str_add_char(out, *text);
    }
}

/* Help texts put keys and characters in single quotes, which become code: 'data.train' becomes
 * `data.train`. Apostrophes before an s stay. */
static void add_help_cell(const char *text, tdm_str *out)
{
    tdm_str code = TDM_STR_INIT;
    for (const char *at = text; *at; at++) {
        bool is_apostrophe = *at == '\'' && at > text && at[1] == 's' && at[-1] != ' ';
        tdm_str_add_char(&code, *at == '\'' && !is_apostrophe ? '`' : *at);
    }
    add_cell(tdm_str_text(&code), out);
    if (!tdm_str_ok(&code)) out->failed = true;
    tdm_str_release(&code);
}

static void add_key_row(const tdm_job_key *key, tdm_str *out)
{
    tdm_str text = TDM_STR_INIT;
    tdm_str_addf(out, "| `%s` | ", key->path);
    tdm__key_wants(key, &text);
    add_help_cell(tdm_str_text(&text), out);
    tdm_str_add(out, " | ");
    tdm_str_clear(&text);
    if (key->fallback && !key->fallback_note) {
        tdm_str_addf(out, "`%s`", key->fallback);
    } else if (key->fallback_note) {
        add_help_cell(key->fallback_note, out);
    } else {
        tdm_str_add(out, key->required ? "**required**" : "none");
    }
    tdm_str_add(out, " | ");
    tdm_str_add(&text, key->help);
    add_relations(key, &text);
    add_help_cell(tdm_str_text(&text), out);
    if (key->decides_bits) tdm_str_add(out, " *bits*");
    if (key->decides_note) tdm_str_addf(out, " %s", key->decides_note);
    tdm_str_add(out, " |\n");
    if (!tdm_str_ok(&text)) out->failed = true;
    tdm_str_release(&text);
    for (size_t i = 0; i < key->field_count; i++) add_key_row(&key->fields[i], out);
}

void tdm_job_keys_markdown(tdm_str *out)
{
    tdm_str_add(out, introduction);
    for (size_t g = 0; g < tdm__job_group_count(); g++) {
        const tdm__job_group *group = tdm__job_group_at(g);
        if (group->name[0]) {
            tdm_str_addf(out, "\n## `%s`\n\n%s\n\n", group->name, group->help);
        } else {
            tdm_str_addf(out, "\n## Top level\n\n%s\n\n", group->help);
        }
        tdm_str_add(out, "| key | value | default | meaning |\n|---|---|---|---|\n");
        for (size_t i = 0; i < tdm_job_key_count(); i++) {
            const tdm_job_key *key = tdm_job_key_at(i);
            if (tdm__job_group_has(group, key)) add_key_row(key, out);
        }
    }
}

size_t tdm_job_keys(tdm_job_keys_format format, const char *prefix, tdm_str *out)
{
    if (format == TDM_JOB_KEYS_TEXT) return tdm_job_keys_text(prefix, out);
    if (format == TDM_JOB_KEYS_JSON) return tdm_job_keys_json(prefix, out);
    tdm_job_keys_markdown(out);
    return tdm_job_key_count();
}
