/*
 * value.c: checks a YAML node and stores its value in the job.
 *
 * Every type has one function, which reports the expected and the actual value at the position of
 * the value. Numbers are parsed strictly: plain digits, no 0x10, no 1_000, no 1e3 for a whole
 * number, neither nan nor infinity; a quoted number is a text. Texts are taken literally, without
 * YAML's type rules, so that a column may be called 'no' or '5'.
 */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <tandem/os.h>

#include "job/internal.h"

/* What a value is checked against, and where it is stored. */
typedef struct target {
    tdm__loader *loader;
    const tdm_job_key *key;
    void *field;
    bool from_override;
} target;

/* Releases the text of a message, and records if memory ran out while it was built. */
static void release_wanted(tdm__loader *loader, tdm_str *wanted)
{
    if (!tdm_str_ok(wanted)) loader->problems.no_memory = true;
    tdm_str_release(wanted);
}

static void report_wrong(const target *t, const tdm__yaml_node *node, const char *wanted,
                         const char *hint)
{
    tdm__problem_list *problems = &t->loader->problems;
    if (node->kind != TDM__YAML_SCALAR) {
        tdm__problem_add(problems, node->place, "'%s' expects %s, got a %s", t->key->path, wanted,
                         node->kind == TDM__YAML_LIST ? "list" : "mapping");
    } else {
        tdm__problem_add(problems, node->place, "'%s' expects %s, got '%s'%s", t->key->path, wanted,
                         tdm__clip_text(node->text).text, hint);
    }
}

/* "... expects a power of two from 1 to 64, or the word auto, got '3'". */
static void report_range(const target *t, const tdm__yaml_node *node)
{
    tdm_str wanted = TDM_STR_INIT;
    if (t->key->type == TDM_JOB_KEY_INT_LIST) {
        tdm_str_add(&wanted, "whole numbers ");
        tdm__key_range(t->key, &wanted);
    } else {
        tdm__key_wants(t->key, &wanted);
    }
    report_wrong(t, node, tdm_str_text(&wanted), "");
    release_wanted(t->loader, &wanted);
}

static void report_empty(tdm__loader *loader, const tdm_job_key *key, tdm__job_position place)
{
    tdm_str wanted = TDM_STR_INIT;
    tdm__key_wants(key, &wanted);
    tdm__problem_add(&loader->problems, place, "'%s' has no value; give %s%s", key->path,
                     tdm_str_text(&wanted), key->required ? "" : ", or remove the key");
    release_wanted(loader, &wanted);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static size_t count_digits(const char *text)
{
    return strspn(text, "0123456789");
}

/* For reals only: a whole number near 2^53 would be rounded. */
static bool real_in_range(const tdm_job_key *key, double value)
{
    if (key->min_open ? value <= key->min : value < key->min) return false;
    return key->max_open ? value < key->max : value <= key->max;
}

/* How to correct a scalar that resembles a whole number; "" if it does not. */
static const char *int_hint(const tdm__yaml_node *node)
{
    const char *text = node->text;
    if (!node->plain) return count_digits(text) > 0 ? "; remove the quotes" : "";
    if (*text == '+' || *text == '-') text++;
    return count_digits(text) > 0 ? "; write it in plain digits, such as 1000" : "";
}

/* The number of bytes of a unit such as "MB"; 0 if it is not a unit. */
static int64_t unit_bytes(const char *text)
{
    static const struct {
        const char *name;
        int64_t bytes;
    } units[] = {
        {"B", 1},
        {"kB", 1000},
        {"KB", 1000},
        {"MB", 1000000},
        {"GB", 1000000000},
        {"TB", 1000000000000},
        {"KiB", (int64_t)1 << 10},
        {"MiB", (int64_t)1 << 20},
        {"GiB", (int64_t)1 << 30},
        {"TiB", (int64_t)1 << 40},
    };
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (strcmp(text, units[i].name) == 0) return units[i].bytes;
    return 0;
}

/* Parses "2GB" or "2.5GB": digits, up to six decimals, and a unit, which is optional without
 * decimals. Fractions of a byte are dropped. */
static bool parse_size(const char *text, int64_t *out)
{
    size_t whole = count_digits(text), part = 0;
    const char *unit_text = text + whole;
    int64_t behind = 0, scale = 1, value;
    if (*unit_text == '.') {
        part = count_digits(++unit_text);
        if (part == 0 || part > 6) return false;
        for (size_t i = 0; i < part; i++, scale *= 10) behind = behind * 10 + (*unit_text++ - '0');
    }
    int64_t unit = *unit_text == '\0' ? 1 : unit_bytes(unit_text);
    if (whole == 0 || whole > 18 || unit == 0 || (part > 0 && unit == 1)) return false;
    if (text[0] == '0' && (whole > 1 || part == 0)) return false;
    if (__builtin_mul_overflow(strtoll(text, NULL, 10), unit, &value)) return false;
    return !__builtin_add_overflow(value, behind * unit / scale, out) && *out > 0;
}

static bool read_size(const target *t, const tdm__yaml_node *node, int64_t *out)
{
    int64_t value;
    if (!node->plain || !parse_size(node->text, &value) || value > (int64_t)t->key->max) {
        report_range(t, node);
        return false;
    }
    *out = value;
    return true;
}

static bool read_int(const target *t, const tdm__yaml_node *node, int64_t *out)
{
    const tdm_job_key *key = t->key;
    if (node->kind == TDM__YAML_LIST && key->not_list) {
        tdm__problem_add(&t->loader->problems, node->place,
                         "'%s' expects a whole number, got a list; %s", key->path, key->not_list);
        return false;
    }
    if (node->kind != TDM__YAML_SCALAR) {
        report_wrong(t, node, "a whole number", "");
        return false;
    }
    if (key->word && strcmp(node->text, key->word) == 0) {
        *out = key->word_value;
        return true;
    }
    if (key->form == TDM_JOB_FORM_SIZE) return read_size(t, node, out);
    const char *digits = node->text + (node->text[0] == '-' ? 1 : 0);
    size_t count = count_digits(digits);
    bool is_int = node->plain && count > 0 && digits[count] == '\0';
    if (is_int && digits[0] == '0' && count > 1) is_int = false; /* octal in some formats */
    if (!is_int) {
        tdm_str wanted = TDM_STR_INIT;
        tdm_str_add(&wanted, "a whole number");
        if (key->word) tdm_str_addf(&wanted, " or the word %s", key->word);
        report_wrong(t, node, tdm_str_text(&wanted), int_hint(node));
        release_wanted(t->loader, &wanted);
        return false;
    }
    /* Eighteen digits fit into 64 bits; longer numbers exceed 2^53. */
    long long value = count <= 18 ? strtoll(node->text, NULL, 10) : INT64_MAX;
    bool is_good = count <= 18 && value >= (long long)key->min && value <= (long long)key->max;
    if (key->form == TDM_JOB_FORM_POWER_OF_TWO && (value & (value - 1)) != 0) is_good = false;
    if (!is_good) {
        report_range(t, node);
        return false;
    }
    *out = value;
    return true;
}

static bool store_int(const target *t, const tdm__yaml_node *node)
{
    return read_int(t, node, t->field);
}

static bool store_int_list(const target *t, const tdm__yaml_node *node)
{
    tdm__problem_list *problems = &t->loader->problems;
    if (node->kind != TDM__YAML_LIST) {
        report_wrong(t, node, "a list of whole numbers, such as [128, 64]", "");
        return false;
    }
    size_t count = 0;
    for (const tdm__yaml_node *item = node->first; item; item = item->next) count++;
    if (count > t->key->max_count) {
        tdm__problem_add(problems, node->place, "'%s' takes at most %zu numbers, got %zu",
                         t->key->path, t->key->max_count, count);
        return false;
    }
    int64_t *values = tdm_arena_array(t->loader->arena, count > 0 ? count : 1, sizeof(*values));
    if (!values) {
        problems->no_memory = true;
        return false;
    }
    bool ok = true;
    size_t at = 0;
    for (const tdm__yaml_node *item = node->first; item; item = item->next) {
        bool item_ok = !item->broken && read_int(t, item, &values[at++]);
        ok = ok && item_ok;
    }
    if (!ok) return false;
    *(tdm_job_int_list *)t->field = (tdm_job_int_list){.values = values, .count = count};
    return true;
}

/* [-] digits [. digits] [e [+-] digits], with digits on at least one side of the point. */
bool tdm__text_is_real(const char *text)
{
    if (*text == '-') text++;
    size_t whole = count_digits(text), fraction = 0;
    text += whole;
    if (*text == '.') {
        fraction = count_digits(text + 1);
        text += 1 + fraction;
    }
    if (whole + fraction == 0) return false;
    if (*text == 'e' || *text == 'E') {
        text++;
        if (*text == '+' || *text == '-') text++;
        size_t exponent = count_digits(text);
        if (exponent == 0) return false;
        text += exponent;
    }
    return *text == '\0';
}

static const char *real_hint(const tdm__yaml_node *node)
{
    static const char *const words[] = {".nan", "nan", ".inf", "inf", "infinity"};
    const char *text = node->text;
    if (!node->plain) return tdm__text_is_real(text) ? "; remove the quotes" : "";
    if (*text == '+' || *text == '-') text++;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcasecmp(text, words[i]) == 0) return "; it must be finite";
    }
    return count_digits(text) > 0 ? "; write it like 0.001 or 1e-3" : "";
}

/* Parses with a decimal point, independently of the locale. */
static bool parse_real(const char *text, double *out)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain) return false;
    *out = strtod_l(text, NULL, plain);
    freelocale(plain);
    return true;
}

static bool store_real(const target *t, const tdm__yaml_node *node)
{
    double value = 0;
    if (node->kind != TDM__YAML_SCALAR || !node->plain || !tdm__text_is_real(node->text)) {
        report_wrong(t, node, "a number", node->kind == TDM__YAML_SCALAR ? real_hint(node) : "");
        return false;
    }
    if (!parse_real(node->text, &value)) {
        t->loader->problems.no_memory = true;
        return false;
    }
    if (isinf(value)) {
        report_wrong(t, node, "a number", "; it must be finite");
        return false;
    }
    if (!real_in_range(t->key, value)) {
        report_range(t, node);
        return false;
    }
    *(double *)t->field = value == 0 ? 0 : value; /* -0 is 0, so that equal jobs look equal */
    return true;
}

/* ---- words ----------------------------------------------------------------------------------- */

/* Parses the booleans of YAML 1.1: 1, 0, or -1 for other words. */
static int parse_bool(const char *text)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcasecmp(text, words[i]) == 0) return (int)(i % 2);
    }
    return -1;
}

typedef struct choice_words {
    char words[16][32];
    size_t count;
} choice_words;

static const char *choice_candidate(size_t index, const void *user)
{
    return ((const choice_words *)user)->words[index];
}

/* Reports an unknown word, with a suggestion: 'relu' for 'Relu' and 'rleu'. */
static void report_choice(const target *t, const tdm__yaml_node *node, const char *choices)
{
    tdm_str wanted = TDM_STR_INIT;
    tdm__key_wants(t->key, &wanted);
    char lower[48] = "", hint[80] = "";
    if (node->kind == TDM__YAML_SCALAR && strlen(node->text) < sizeof(lower)) {
        for (size_t i = 0; node->text[i]; i++) {
            char c = node->text[i];
            lower[i] = c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
        }
        choice_words known = {.count = 0};
        while (known.count < 16 && tdm__choice_at(choices, known.count, known.words[known.count]))
            known.count++;
        const char *near = lower[0] ? tdm_text_nearest(lower, known.count, choice_candidate, &known)
                                    : NULL;
        if (near) snprintf(hint, sizeof(hint), "; did you mean '%s'?", near);
    }
    report_wrong(t, node, tdm_str_text(&wanted), hint);
    release_wanted(t->loader, &wanted);
}

static bool store_bool(const target *t, const tdm__yaml_node *node)
{
    int truth = node->kind == TDM__YAML_SCALAR ? parse_bool(node->text) : -1;
    if (truth < 0) {
        report_choice(t, node, "true | false");
        return false;
    }
    if (!node->plain) {
        report_wrong(t, node, "true or false", "; remove the quotes");
        return false;
    }
    *(bool *)t->field = truth == 1;
    return true;
}

static bool store_choice(const target *t, const tdm__yaml_node *node)
{
    const char *choices = t->key->choices;
    int choice = node->kind == TDM__YAML_SCALAR ? tdm__choice_find(choices, node->text) : -1;
    if (choice < 0 && node->kind == TDM__YAML_SCALAR && node->plain) {
        /* Other YAML tools rewrite 'yes' as 'true': accept both if yes and no are choices. */
        int truth = parse_bool(node->text);
        if (truth >= 0) choice = tdm__choice_find(choices, truth == 1 ? "yes" : "no");
    }
    if (choice < 0) {
        report_choice(t, node, choices);
        return false;
    }
    *(int *)t->field = choice;
    return true;
}

/* ---- texts ----------------------------------------------------------------------------------- */

bool tdm__name_is_valid(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789._-";
    size_t length = strlen(name);
    if (length < 1 || length > 64 || name[0] == '.' || name[0] == '-') return false;
    return strspn(name, letters) == length;
}

static bool store_text(const target *t, const char *text)
{
    const char *copy = text ? tdm_arena_strdup(t->loader->arena, text) : NULL;
    if (!copy) {
        t->loader->problems.no_memory = true;
        return false;
    }
    *(const char **)t->field = copy;
    return true;
}

static bool has_form(tdm_job_key_form form, const char *text)
{
    if (form == TDM_JOB_FORM_NAME) return tdm__name_is_valid(text);
    if (form == TDM_JOB_FORM_SHA256)
        return strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64;
    if (form != TDM_JOB_FORM_CHARACTER) return true;
    unsigned char first = (unsigned char)text[0];
    return strcmp(text, "tab") == 0 || (first > 0x1f && first < 0x7f && text[1] == '\0');
}

static bool store_string(const target *t, const tdm__yaml_node *node)
{
    tdm__problem_list *problems = &t->loader->problems;
    if (node->kind != TDM__YAML_SCALAR) {
        report_range(t, node);
        return false;
    }
    const char *text = node->text;
    size_t length = strlen(text);
    bool is_tab = strcmp(text, "\t") == 0 || strcmp(text, "\\t") == 0;
    if (t->key->form == TDM_JOB_FORM_CHARACTER && is_tab) text = "tab";
    if (!has_form(t->key->form, text)) {
        report_range(t, node);
        return false;
    }
    if (length == 0 || length > TDM__JOB_STRING_BYTES) {
        tdm__problem_add(problems, node->place, "'%s' takes 1 to %d bytes, got %zu", t->key->path,
                         TDM__JOB_STRING_BYTES, length);
        return false;
    }
    return store_text(t, text);
}

static void report_missing_file(const target *t, const tdm__yaml_node *node, const char *path)
{
    const char *hint = t->from_override
                           ? "a path given by --set is relative to the current directory"
                           : "a path in a job file is relative to the directory of that file";
    if (node->text[0] == '~') hint = "'~' is not expanded: write out the home directory";
    if (node->text[0] == '/') hint = "correct the path, or create the file";
    if (tdm_path_is_dir(path)) {
        tdm__problem_add(&t->loader->problems, node->place,
                         "'%s': '%s' is a directory; give a file", t->key->path, path);
    } else if (tdm_path_exists(path)) {
        tdm__problem_add(&t->loader->problems, node->place,
                         "'%s': '%s' is a device, a pipe or a socket; give a regular file",
                         t->key->path, path);
    } else {
        tdm__problem_add(&t->loader->problems, node->place, "'%s': file '%s' does not exist; %s",
                         t->key->path, path, hint);
    }
}

static char *path_resolve(const target *t, const char *path)
{
    bool from_here = t->from_override || t->key->type == TDM_JOB_KEY_DIR;
    while (path[0] == '.' && path[1] == '/') {
        path += 2;
        while (*path == '/') path++;
    }
    if (from_here) return tdm_path_absolute(t->loader->scratch, *path ? path : ".");
    return tdm_path_join(t->loader->scratch, t->loader->dir, path);
}

static bool store_path(const target *t, const tdm__yaml_node *node)
{
    tdm__loader *loader = t->loader;
    if (node->kind != TDM__YAML_SCALAR) {
        report_range(t, node);
        return false;
    }
    if (node->text[0] == '\0') {
        report_empty(loader, t->key, node->place);
        return false;
    }
    char *path = path_resolve(t, node->text);
    if (!path) {
        loader->problems.no_memory = true;
        return false;
    }
    size_t length = strlen(path);
    if (length > TDM__JOB_PATH_BYTES) {
        tdm__problem_add(&loader->problems, node->place,
                         "'%s' is a path of %zu bytes; the maximum is %d", t->key->path, length,
                         TDM__JOB_PATH_BYTES);
        return false;
    }
    if (!tdm__utf8_is_valid(path)) { /* the directory's name: the text itself was checked */
        tdm__problem_add(&loader->problems, node->place,
                         "'%s' is in a directory whose name is not UTF-8; rename the directory",
                         t->key->path);
        return false;
    }
    if (!loader->no_file_checks && t->key->type == TDM_JOB_KEY_PATH && !tdm_path_is_file(path) &&
        !(t->key->or_directory && tdm_path_is_dir(path))) {
        report_missing_file(t, node, path);
        return false;
    }
    if (!loader->no_file_checks && t->key->type == TDM_JOB_KEY_DIR && tdm_path_is_file(path)) {
        tdm__problem_add(&loader->problems, node->place, "'%s': '%s' is a file, not a directory",
                         t->key->path, path);
        return false;
    }
    return store_text(t, path);
}

/* ---- mappings -------------------------------------------------------------------------------- */

static bool store_map(const target *t, const tdm__yaml_node *node)
{
    if (node->kind == TDM__YAML_MAP)
        return tdm__map_store(t->loader, t->key, node, t->from_override, t->field);
    report_range(t, node);
    return false;
}

static bool store_map_list(const target *t, const tdm__yaml_node *node)
{
    if (node->kind == TDM__YAML_LIST)
        return tdm__map_list_store(t->loader, t->key, node, t->from_override, t->field);
    report_range(t, node);
    return false;
}

static bool store_options(const target *t, const tdm__yaml_node *node)
{
    if (node->kind == TDM__YAML_MAP) return tdm__options_store(t->loader, t->key, node, t->field);
    report_range(t, node);
    return false;
}

static bool store_layers(const target *t, const tdm__yaml_node *node)
{
    if (node->kind == TDM__YAML_LIST)
        return tdm__layers_store(t->loader, t->key, node, t->from_override, t->field);
    report_range(t, node);
    return false;
}

/* ---- all types ------------------------------------------------------------------------------- */

bool tdm__value_store(tdm__loader *loader, const tdm_job_key *key, const tdm__job_slot *slot,
                      void *base)
{
    static bool (*const stores[])(const target *, const tdm__yaml_node *) = {
        [TDM_JOB_KEY_STRING] = store_string,   [TDM_JOB_KEY_PATH] = store_path,
        [TDM_JOB_KEY_DIR] = store_path,        [TDM_JOB_KEY_INT] = store_int,
        [TDM_JOB_KEY_REAL] = store_real,       [TDM_JOB_KEY_BOOL] = store_bool,
        [TDM_JOB_KEY_CHOICE] = store_choice,   [TDM_JOB_KEY_INT_LIST] = store_int_list,
        [TDM_JOB_KEY_MAP] = store_map,         [TDM_JOB_KEY_MAP_LIST] = store_map_list,
        [TDM_JOB_KEY_OPTIONS] = store_options, [TDM_JOB_KEY_LAYERS] = store_layers,
    };
    const tdm__yaml_node *node = slot->node;
    if (node->broken) return false;
    if (tdm__yaml_is_null(node)) {
        report_empty(loader, key, slot->place);
        return false;
    }
    target t = {.loader = loader,
                .key = key,
                .field = (char *)base + key->offset,
                .from_override = slot->from_override};
    return stores[key->type](&t, node);
}
