/*
 * lookup.c: finds keys by name, suggests a key for an unknown name, and describes what a key accepts.
 *
 * Suggestions are tried in order of likelihood: a typing error within the right group, the right
 * name in the wrong group, a name from other systems, and last a typing error in any group. If the
 * group does not exist, the whole path is compared first. If nothing is close enough, there is no
 * suggestion: a wrong one is worse than none.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "job/internal.h"

size_t tdm__key_find(const char *path)
{
    for (size_t i = 0; i < tdm_job_key_count(); i++) {
        if (strcmp(tdm_job_key_at(i)->path, path) == 0) return i;
    }
    return SIZE_MAX;
}

size_t tdm__group_find(const char *name)
{
    for (size_t i = 0; i < tdm__job_group_count(); i++) {
        if (strcmp(tdm__job_group_at(i)->name, name) == 0) return i;
    }
    return SIZE_MAX;
}

const char *tdm__key_leaf(const tdm_job_key *key)
{
    const char *dot = strrchr(key->path, '.');
    return dot ? dot + 1 : key->path;
}

/* ---- suggestions ----------------------------------------------------------------------------- */

/* The leaves of one group; at the top level, the names of the other groups as well. */
static const char *leaf_in_group(size_t index, const void *user)
{
    const tdm__job_group *group = user;
    if (index < tdm_job_key_count()) {
        const tdm_job_key *key = tdm_job_key_at(index);
        return tdm__job_group_has(group, key) ? tdm__key_leaf(key) : NULL;
    }
    const char *name = tdm__job_group_at(index - tdm_job_key_count())->name;
    return group->name[0] == '\0' && name[0] != '\0' ? name : NULL;
}

static const char *any_path(size_t index, const void *user)
{
    (void)user;
    return tdm_job_key_at(index)->path;
}

static const char *any_leaf(size_t index, const void *user)
{
    (void)user;
    return tdm__key_leaf(tdm_job_key_at(index));
}

static const char *path_of_leaf(const char *leaf)
{
    for (size_t i = 0; i < tdm_job_key_count(); i++) {
        if (strcmp(tdm__key_leaf(tdm_job_key_at(i)), leaf) == 0) return tdm_job_key_at(i)->path;
    }
    return NULL;
}

bool tdm__has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    if (length == 0) return false;
    for (const char *at = list; at && (at = strstr(at, word)); at++) {
        bool begins = at == list || at[-1] == ' ';
        if (begins && (at[length] == '\0' || at[length] == ' ')) return true;
    }
    return false;
}

/* The key with this name in other systems; keys of the group have precedence. */
static const char *path_also_called(const tdm__job_group *group, const char *leaf)
{
    const char *elsewhere = NULL;
    for (size_t i = 0; i < tdm_job_key_count(); i++) {
        const tdm_job_key *key = tdm_job_key_at(i);
        if (!key->also_called || !tdm__has_word(key->also_called, leaf)) continue;
        if (group && tdm__job_group_has(group, key)) return key->path;
        if (!elsewhere) elsewhere = key->path;
    }
    return elsewhere;
}

static const char *suggest_in_group(size_t group_index, const char *leaf)
{
    const tdm__job_group *group = tdm__job_group_at(group_index);
    const char *near = tdm_text_nearest(leaf, tdm_job_key_count() + tdm__job_group_count(),
                                        leaf_in_group, group);
    if (!near || group->name[0] == '\0') return near;
    for (size_t i = 0; i < tdm_job_key_count(); i++) {
        const tdm_job_key *key = tdm_job_key_at(i);
        if (tdm__job_group_has(group, key) && strcmp(tdm__key_leaf(key), near) == 0)
            return key->path;
    }
    return NULL;
}

enum { SHORT_LEAF = 4 };

const char *tdm__key_suggest(const char *group, const char *leaf)
{
    char path[160];
    if (strlen(group) > 64 || strlen(leaf) > 64 || leaf[0] == '\0') return NULL;
    snprintf(path, sizeof(path), "%s%s%s", group, group[0] ? "." : "", leaf);
    size_t group_index = tdm__group_find(group);
    /* A short name is close to many others. If it is a key of another group, suggest that: "lr" in
     * 'train' means 'optim.lr'. */
    const char *guess = strlen(leaf) < SHORT_LEAF ? path_of_leaf(leaf) : NULL;
    if (guess) return guess;
    if (group_index != SIZE_MAX) {
        guess = suggest_in_group(group_index, leaf);
    } else {
        guess = tdm_text_nearest(path, tdm_job_key_count(), any_path, NULL);
    }
    if (!guess) guess = path_of_leaf(leaf);
    if (!guess) guess = path_also_called(tdm__job_group_at(group_index), leaf);
    if (!guess) guess = tdm_text_nearest(path, tdm_job_key_count(), any_path, NULL);
    if (guess) return guess;
    const char *near = tdm_text_nearest(leaf, tdm_job_key_count(), any_leaf, NULL);
    return near ? path_of_leaf(near) : NULL;
}

/* ---- choices --------------------------------------------------------------------------------- */

bool tdm__choice_at(const char *choices, size_t index, char out[32])
{
    const char *at = choices;
    for (size_t i = 0; at && i < index; i++) {
        at = strstr(at, " | ");
        if (at) at += 3;
    }
    if (!at) return false;
    size_t length = strcspn(at, " ");
    if (length >= 32) return false;
    memcpy(out, at, length);
    out[length] = '\0';
    return true;
}

int tdm__choice_find(const char *choices, const char *word)
{
    char choice[32];
    for (size_t i = 0; tdm__choice_at(choices, i, choice); i++) {
        if (strcmp(choice, word) == 0) return (int)i;
    }
    return -1;
}

/* ---- what a key accepts ---------------------------------------------------------------------- */

static void add_number(tdm_str *out, double value)
{
    char buffer[32];
    if (value == TDM__MAX_JOB_INT) {
        tdm_str_add(out, "2^53");
    } else if (value == floor(value) && fabs(value) < TDM__MAX_JOB_INT) {
        tdm_str_addf(out, "%.0f", value);
    } else {
        tdm_str_add(out, tdm_text_double(value, buffer));
    }
}

void tdm__key_range(const tdm_job_key *key, tdm_str *out)
{
    bool endless = isinf(key->max);
    if (endless && key->min_open) {
        tdm_str_add(out, "above ");
        add_number(out, key->min);
    } else if (endless) {
        tdm_str_add(out, "of at least ");
        add_number(out, key->min);
    } else if (key->min_open) {
        tdm_str_add(out, "above ");
        add_number(out, key->min);
        tdm_str_add(out, key->max_open ? " and below " : " and at most ");
        add_number(out, key->max);
    } else {
        tdm_str_add(out, "from ");
        add_number(out, key->min);
        tdm_str_add(out, key->max_open ? " to below " : " to ");
        add_number(out, key->max);
    }
}

static void add_choices(const char *choices, tdm_str *out)
{
    char choice[32], following[32];
    for (size_t i = 0; tdm__choice_at(choices, i, choice); i++) {
        bool is_last = !tdm__choice_at(choices, i + 1, following);
        if (i > 0) tdm_str_add(out, is_last ? " or " : ", ");
        tdm_str_add(out, choice);
    }
}

static void add_string_form(const tdm_job_key *key, tdm_str *out)
{
    switch (key->form) {
    case TDM_JOB_FORM_NAME:
        tdm_str_add(out, "1 to 64 letters, digits, '.', '_' or '-', not beginning with '.' or '-'");
        break;
    case TDM_JOB_FORM_CHARACTER: tdm_str_add(out, "one ASCII character, or the word tab"); break;
    case TDM_JOB_FORM_SHA256: tdm_str_add(out, "64 hexadecimal digits"); break;
    case TDM_JOB_FORM_ANY:
    case TDM_JOB_FORM_LAYER:
    case TDM_JOB_FORM_POWER_OF_TWO:
    case TDM_JOB_FORM_SIZE: tdm_str_add(out, "a text"); break;
    }
}

static void add_int(const tdm_job_key *key, tdm_str *out)
{
    bool is_power = key->form == TDM_JOB_FORM_POWER_OF_TWO;
    if (key->form == TDM_JOB_FORM_SIZE) {
        tdm_str_add(out, "a number of bytes, such as 800MB or 2.5GiB");
    } else {
        tdm_str_add(out, is_power ? "a power of two " : "a whole number ");
        tdm__key_range(key, out);
    }
    if (key->word) tdm_str_addf(out, ", or the word %s", key->word);
}

/* "match, lr_scale and weight_decay". */
static void add_fields(const tdm_job_key *key, tdm_str *out)
{
    for (size_t i = 0; i < key->field_count; i++) {
        if (i > 0) tdm_str_add(out, i + 1 == key->field_count ? " and " : ", ");
        tdm_str_add(out, tdm__key_leaf(&key->fields[i]));
    }
}

static void add_map(const tdm_job_key *key, tdm_str *out)
{
    if (key->field_count == 0) {
        tdm_str_add(out, "no settings");
        return;
    }
    tdm_str_add(out, "a mapping with ");
    add_fields(key, out);
    if (key->form == TDM_JOB_FORM_LAYER && key->fields[0].required)
        tdm_str_addf(out, ", or %s alone", tdm__key_leaf(&key->fields[0]));
}

void tdm__key_wants(const tdm_job_key *key, tdm_str *out)
{
    switch (key->type) {
    case TDM_JOB_KEY_STRING: add_string_form(key, out); break;
    case TDM_JOB_KEY_PATH: tdm_str_add(out, "the path of a file"); break;
    case TDM_JOB_KEY_DIR: tdm_str_add(out, "the path of a directory"); break;
    case TDM_JOB_KEY_INT: add_int(key, out); break;
    case TDM_JOB_KEY_REAL:
        tdm_str_add(out, "a number ");
        tdm__key_range(key, out);
        break;
    case TDM_JOB_KEY_BOOL: tdm_str_add(out, "true or false"); break;
    case TDM_JOB_KEY_CHOICE: add_choices(key->choices, out); break;
    case TDM_JOB_KEY_INT_LIST:
        tdm_str_addf(out, "a list of at most %zu whole numbers ", key->max_count);
        tdm__key_range(key, out);
        break;
    case TDM_JOB_KEY_MAP: add_map(key, out); break;
    case TDM_JOB_KEY_LAYERS:
        tdm_str_addf(out, "a list of at most %zu layers", key->max_count);
        break;
    case TDM_JOB_KEY_MAP_LIST:
        tdm_str_addf(out, "a list of at most %zu mappings with ", key->max_count);
        add_fields(key, out);
        break;
    case TDM_JOB_KEY_OPTIONS:
        tdm_str_addf(out, "a mapping of at most %zu names to values, such as {width: 64}",
                     key->max_count);
        break;
    }
}
