/*
 * slots.c: one slot per key, filled from the file and then from the overrides.
 *
 * This stage determines which keys were given, and where; value.c checks the values. An override
 * replaces the slot before the value is checked, so an invalid value in the file is not an error if
 * it is overridden. An override also clears the slot of the key that it excludes, and a list of
 * layers and another model clear each other: the command line wins. Keys must be nested as in the
 * table; a dotted key in a file is reported with the nested form.
 */
#include <stdio.h>
#include <string.h>

#include "job/internal.h"

/* Replaces a value whose problem is already listed, so that it is neither missing nor reported again. */
static const tdm__yaml_node broken_node = {.text = "", .broken = true};

/* A key of the group, as an example for messages. */
static const char *group_first_key(const tdm__job_group *group)
{
    for (size_t i = 0; i < tdm_job_key_count(); i++) {
        if (tdm__job_group_has(group, tdm_job_key_at(i))) return tdm_job_key_at(i)->path;
    }
    return "";
}

/* ---- from the file --------------------------------------------------------------------------- */

static void report_duplicate(tdm__loader *loader, const char *path, tdm__job_position place,
                             tdm__job_position before)
{
    tdm__problem_add(&loader->problems, place,
                     "'%s' is given twice, first at line %d, column %d; remove one", path,
                     before.line, before.column);
}

static void report_unknown(tdm__loader *loader, const char *group, const char *leaf,
                           tdm__job_position place)
{
    if (tdm__problem_list_full(&loader->problems)) { /* no suggestion is needed */
        tdm__problem_add(&loader->problems, place, "unknown key");
        return;
    }
    tdm__clip clip = tdm__clip_text(leaf);
    const char *dot = group[0] ? "." : "";
    const char *guess = tdm__key_suggest(group, leaf);
    if (guess) {
        tdm__problem_add(&loader->problems, place, "unknown key '%s%s%s'; did you mean '%s'?",
                         group, dot, clip.text, guess);
    } else {
        tdm__problem_add(&loader->problems, place,
                         "unknown key '%s%s%s'; 'tandem job keys' lists them all", group, dot,
                         clip.text);
    }
}

/* Reports 'train.batch: 3' in a file. The meaning is clear, but a file has only one form. */
static bool report_dotted(tdm__loader *loader, const tdm__yaml_node *entry)
{
    size_t index = tdm__key_find(entry->key);
    if (index == SIZE_MAX || !strchr(entry->key, '.')) return false;
    const tdm_job_key *key = tdm_job_key_at(index);
    const char *leaf = tdm__key_leaf(key);
    tdm__problem_add(&loader->problems, entry->key_place,
                     "'%s' must be nested: write '%s:' indented below '%.*s:'", key->path, leaf,
                     (int)(leaf - key->path - 1), key->path);
    return true;
}

static void fill_key(tdm__loader *loader, size_t index, const tdm__yaml_node *entry)
{
    tdm__job_slot *slot = &loader->slots[index];
    if (slot->node) {
        report_duplicate(loader, tdm_job_key_at(index)->path, entry->key_place, slot->place);
        return;
    }
    slot->node = entry;
    slot->place = entry->key_place;
}

static void fill_group(tdm__loader *loader, size_t group_index, const tdm__yaml_node *node)
{
    const tdm__job_group *group = tdm__job_group_at(group_index);
    tdm__job_position *place = &loader->group_places[group_index];
    if (place->line > 0) {
        report_duplicate(loader, group->name, node->key_place, *place);
        return;
    }
    *place = node->key_place;
    if (node->broken || tdm__yaml_is_null(node)) return; /* 'train:' and nothing below it */
    if (node->kind == TDM__YAML_SCALAR) {
        tdm__problem_add(&loader->problems, node->place,
                         "'%s' is a group of keys, such as '%s'; got '%s'", group->name,
                         group_first_key(group), tdm__clip_text(node->text).text);
        return;
    }
    if (node->kind == TDM__YAML_LIST) {
        tdm__problem_add(&loader->problems, node->place,
                         "'%s' is a group of keys, such as '%s'; got a list", group->name,
                         group_first_key(group));
        return;
    }
    for (const tdm__yaml_node *entry = node->first; entry; entry = entry->next) {
        char path[128] = "";
        if (strlen(entry->key) < 64) {
            snprintf(path, sizeof(path), "%s.%s", group->name, entry->key);
        }
        size_t index = strchr(entry->key, '.') ? SIZE_MAX : tdm__key_find(path);
        if (index != SIZE_MAX) {
            fill_key(loader, index, entry);
        } else if (!report_dotted(loader, entry)) {
            report_unknown(loader, group->name, entry->key, entry->key_place);
        }
    }
}

static void report_root(tdm__loader *loader, const tdm__yaml_node *root)
{
    if (root->broken) return; /* reported */
    if (tdm__yaml_is_null(root)) {
        tdm__problem_add(&loader->problems, (tdm__job_position){.file = loader->file},
                         "the file is empty; a job needs at least 'data:' and, indented below it, "
                         "'train: FILE'");
    } else if (root->kind == TDM__YAML_SCALAR) {
        tdm__problem_add(&loader->problems, root->place,
                         "a job is a mapping of keys, such as 'seed: 1'; got '%s'",
                         tdm__clip_text(root->text).text);
    } else {
        tdm__problem_add(&loader->problems, root->place,
                         "a job is a mapping of keys, such as 'seed: 1'; got a list");
    }
}

bool tdm__slots_fill(tdm__loader *loader, const tdm__yaml_node *root)
{
    if (root->broken || root->kind != TDM__YAML_MAP) {
        report_root(loader, root);
        return false;
    }
    for (const tdm__yaml_node *entry = root->first; entry; entry = entry->next) {
        size_t group_index = entry->key[0] ? tdm__group_find(entry->key) : SIZE_MAX;
        size_t index = strchr(entry->key, '.') ? SIZE_MAX : tdm__key_find(entry->key);
        if (group_index != SIZE_MAX) {
            fill_group(loader, group_index, entry);
        } else if (index != SIZE_MAX) {
            fill_key(loader, index, entry);
        } else if (!report_dotted(loader, entry)) {
            report_unknown(loader, "", entry->key, entry->key_place);
        }
    }
    return true;
}

/* ---- from the command line ------------------------------------------------------------------- */

/* Parses the value as YAML. The first problem in it is reported with the name of the key. */
static const tdm__yaml_node *read_yaml_value(tdm__loader *loader, const tdm_job_key *key,
                                             const char *value, size_t length)
{
    tdm__problem_list found = {.arena = loader->scratch};
    const tdm__yaml_node *node = tdm__yaml_read(value, length, TDM__JOB_OVERRIDE_FILE,
                                                loader->scratch, &found);
    if (found.no_memory) loader->problems.no_memory = true;
    if (found.count == 0) return node;
    tdm__problem_add(&loader->problems, (tdm__job_position){.file = TDM__JOB_OVERRIDE_FILE},
                     "'%s': cannot read '%s': %s", key->path, tdm__clip_text(value).text,
                     found.items[0].message);
    return NULL;
}

static bool is_list(const tdm_job_key *key)
{
    return key->type == TDM_JOB_KEY_INT_LIST || key->type == TDM_JOB_KEY_MAP_LIST ||
           key->type == TDM_JOB_KEY_LAYERS;
}

/* Whether the value is a blank for a key that accepts any character: '--set data.delimiter=" "'. */
static bool is_blank_character(const tdm_job_key *key, const char *value)
{
    return key->form == TDM_JOB_FORM_CHARACTER && *value && strchr(" \t~", *value) && !value[1];
}

/* Quoted values, lists and mappings are parsed as YAML; all other values are taken literally, so
 * that '--set data.delimiter=|' and paths with special characters need no further quotes. */
const tdm__yaml_node *tdm__node_from_text(tdm__loader *loader, const tdm_job_key *key,
                                          const char *value)
{
    bool is_blank = is_blank_character(key, value);
    while (*value == ' ' && !is_blank) value++;
    size_t length = strlen(value);
    while (length > 0 && value[length - 1] == ' ' && !is_blank) length--;
    bool is_yaml = value[0] == '"' || value[0] == '\'' || (value[0] == '[' && is_list(key)) ||
                   (value[0] == '{' &&
                    (key->type == TDM_JOB_KEY_MAP || key->type == TDM_JOB_KEY_OPTIONS));
    if (is_yaml) return read_yaml_value(loader, key, value, length);
    tdm__yaml_node *node = tdm_arena_alloc(loader->scratch, sizeof(*node), 0);
    char *text = tdm_arena_strndup(loader->scratch, value, length);
    if (!node || !text) {
        loader->problems.no_memory = true;
        return NULL;
    }
    *node = (tdm__yaml_node){.kind = TDM__YAML_SCALAR,
                             .place = {.file = TDM__JOB_OVERRIDE_FILE},
                             .text = text,
                             .plain = !is_blank};
    return node;
}

static void clear_slot(tdm__loader *loader, size_t index)
{
    const char *path = tdm_job_key_at(index)->path;
    loader->slots[index] = (tdm__job_slot){0};
    /* Keys of the file that need this key are cleared with it. */
    for (size_t i = 0; i < tdm_job_key_count(); i++) {
        const char *needs = tdm_job_key_at(i)->needs;
        if (needs && strcmp(needs, path) == 0 && !loader->slots[i].from_override)
            loader->slots[i] = (tdm__job_slot){0};
    }
}

/* A list of layers is a model, so it and the name of another model exclude each other. */
static void clear_other_model(tdm__loader *loader, size_t index, const tdm__yaml_node *node)
{
    size_t kind = tdm__key_find("model.kind"), layers = tdm__key_find("layers");
    if (index == layers) clear_slot(loader, kind);
    bool is_layers = node->kind == TDM__YAML_SCALAR && strcmp(node->text, "layers") == 0;
    if (index == kind && !is_layers) clear_slot(loader, layers);
}

static void override_slot(tdm__loader *loader, size_t index, const char *value)
{
    const tdm_job_key *key = tdm_job_key_at(index);
    tdm__job_position place = {.file = TDM__JOB_OVERRIDE_FILE};
    const tdm__yaml_node *node = tdm__node_from_text(loader, key, value);
    if (!node) node = &broken_node; /* reported */
    bool can_be_empty = !key->fallback || strcmp(key->fallback, "[]") == 0;
    bool is_optional = can_be_empty && !key->required;
    if (is_optional && !node->broken && tdm__yaml_is_null(node)) {
        clear_slot(loader, index);
        return;
    }
    if (key->excludes) clear_slot(loader, tdm__key_find(key->excludes));
    if (!node->broken) clear_other_model(loader, index, node);
    loader->slots[index] = (tdm__job_slot){.node = node, .place = place, .from_override = true};
}

/* Reports an override of a key inside a mapping. It cannot be set alone, because the other keys of
 * the mapping would be undefined. */
static bool report_inner(tdm__loader *loader, const char *path)
{
    for (size_t i = 0; i < tdm_job_key_count(); i++) {
        const tdm_job_key *key = tdm_job_key_at(i);
        size_t length = strlen(key->path);
        if (key->field_count == 0 || strncmp(path, key->path, length) != 0 || path[length] != '.')
            continue;
        tdm__problem_add(&loader->problems, (tdm__job_position){.file = TDM__JOB_OVERRIDE_FILE},
                         "'%s' is part of '%s', which must be set as a whole: '%s=%s{%s: ...}%s'",
                         tdm__clip_text(path).text, key->path, key->path, is_list(key) ? "[" : "",
                         tdm__key_leaf(&key->fields[0]), is_list(key) ? "]" : "");
        return true;
    }
    return false;
}

void tdm__slots_override(tdm__loader *loader, const char *override)
{
    tdm__job_position place = {.file = TDM__JOB_OVERRIDE_FILE};
    size_t length = strlen(override);
    if (tdm__utf8_check(override, length) != length) {
        tdm__problem_add(&loader->problems, place,
                         "an override contains bytes that are not printable UTF-8");
        return;
    }
    const char *equals = strchr(override, '=');
    if (!equals || equals == override) {
        tdm__problem_add(&loader->problems, place,
                         "an override is written key=value, such as train.batch=64; got '%s'",
                         tdm__clip_text(override).text);
        return;
    }
    char path[128] = "";
    size_t path_length = (size_t)(equals - override);
    memcpy(path, override, path_length < sizeof(path) ? path_length : sizeof(path) - 1);
    size_t index = tdm__key_find(path);
    if (index != SIZE_MAX) {
        override_slot(loader, index, equals + 1);
        return;
    }
    size_t group_index = tdm__group_find(path);
    if (group_index != SIZE_MAX) {
        tdm__problem_add(&loader->problems, place,
                         "'%s' is a group of keys; set one of them, such as '%s'", path,
                         group_first_key(tdm__job_group_at(group_index)));
        return;
    }
    if (tdm__options_override(loader, path, equals + 1)) return;
    if (report_inner(loader, path)) return;
    char *dot = strchr(path, '.');
    if (dot) *dot = '\0';
    report_unknown(loader, dot ? path : "", dot ? dot + 1 : path, place);
}

/* ---- pairs ----------------------------------------------------------------------------------- */

static bool is_later(tdm__job_position a, tdm__job_position b)
{
    return a.line != b.line ? a.line > b.line : a.column > b.column;
}

void tdm__slots_check_pairs(tdm__loader *loader)
{
    for (size_t i = 0; i < tdm_job_key_count(); i++) {
        const tdm_job_key *key = tdm_job_key_at(i);
        const tdm__job_slot *slot = &loader->slots[i];
        if (!slot->node) continue;
        if (key->needs && !loader->slots[tdm__key_find(key->needs)].node) {
            tdm__problem_add(&loader->problems, slot->place,
                             "'%s' requires '%s'; add it, or remove this key", key->path,
                             key->needs);
        }
        /* Both rows name each other; the later one in the file reports. Two overrides cannot
         * conflict here, because each clears the other slot. */
        if (!key->excludes) continue;
        const tdm__job_slot *other = &loader->slots[tdm__key_find(key->excludes)];
        if (other->node && is_later(slot->place, other->place)) {
            tdm__problem_add(&loader->problems, slot->place,
                             "'%s' conflicts with '%s' (line %d, column %d); remove one of them",
                             key->path, key->excludes, other->place.line, other->place.column);
        }
    }
}
