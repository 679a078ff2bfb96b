/*
 * maps.c: mappings with a fixed set of keys, alone or in a list.
 *
 * The row of such a key refers to a small table of keys whose fields are in a struct; a mapping
 * becomes one struct in the job's arena. value.c checks the values against the rows of the small
 * table. This file handles unknown, duplicate and missing keys, and defaults. An optional number
 * without a default that was not given is NAN.
 */
#include <math.h>
#include <string.h>

#include "job/internal.h"

enum { MAX_FIELDS = 16 };

static const char *field_leaf(size_t index, const void *user)
{
    return tdm__key_leaf(&((const tdm_job_key *)user)->fields[index]);
}

static size_t find_field(const tdm_job_key *key, const char *leaf)
{
    for (size_t i = 0; i < key->field_count; i++)
        if (strcmp(tdm__key_leaf(&key->fields[i]), leaf) == 0) return i;
    return SIZE_MAX;
}

/* The key that the user probably meant by `leaf`, or NULL. */
static const char *field_suggest(const tdm_job_key *key, const char *leaf)
{
    if (strlen(leaf) > 64 || !leaf[0]) return NULL;
    for (size_t i = 0; i < key->field_count; i++) {
        const char *names = key->fields[i].also_called;
        if (names && tdm__has_word(names, leaf)) return tdm__key_leaf(&key->fields[i]);
    }
    return tdm_text_nearest(leaf, key->field_count, field_leaf, key);
}

static void report_unknown(tdm__loader *loader, const tdm_job_key *key, const tdm__yaml_node *entry)
{
    const char *near = field_suggest(key, entry->key);
    if (near) {
        tdm__problem_add(&loader->problems, entry->key_place,
                         "unknown key '%s.%s'; did you mean '%s.%s'?", key->path,
                         tdm__clip_text(entry->key).text, key->path, near);
        return;
    }
    tdm_str wanted = TDM_STR_INIT;
    tdm__key_wants(key, &wanted);
    tdm__problem_add(&loader->problems, entry->key_place, "unknown key '%s.%s'; '%s' takes %s",
                     key->path, tdm__clip_text(entry->key).text, key->path, tdm_str_text(&wanted));
    if (!tdm_str_ok(&wanted)) loader->problems.no_memory = true;
    tdm_str_release(&wanted);
}

/* Stores the default of a key that was not given. */
static bool field_store_default(tdm__loader *loader, const tdm_job_key *field,
                                tdm__job_position place, void *item)
{
    if (field->required) {
        tdm_str wanted = TDM_STR_INIT;
        tdm__key_wants(field, &wanted);
        tdm__problem_add(&loader->problems, place, "'%s' is missing; give %s", field->path,
                         tdm_str_text(&wanted));
        if (!tdm_str_ok(&wanted)) loader->problems.no_memory = true;
        tdm_str_release(&wanted);
        return false;
    }
    if (!field->fallback) {
        if (field->type == TDM_JOB_KEY_REAL) *(double *)((char *)item + field->offset) = NAN;
        return true;
    }
    tdm__job_slot fallback = {.node = tdm__node_from_text(loader, field, field->fallback),
                              .place = place};
    return fallback.node && tdm__value_store(loader, field, &fallback, item);
}

bool tdm__map_fill(tdm__loader *loader, const tdm_job_key *key, const tdm__yaml_node *map,
                   bool from_override, void *item)
{
    const tdm__yaml_node *given[MAX_FIELDS] = {NULL};
    bool ok = true;
    for (const tdm__yaml_node *entry = map->first; entry; entry = entry->next) {
        size_t index = find_field(key, entry->key);
        if (index == SIZE_MAX) {
            report_unknown(loader, key, entry);
            ok = false;
        } else if (given[index]) {
            tdm__problem_add(&loader->problems, entry->key_place,
                             "'%s' is given twice, first at line %d, column %d; remove one",
                             key->fields[index].path, given[index]->key_place.line,
                             given[index]->key_place.column);
            ok = false;
        } else {
            given[index] = entry;
        }
    }
    for (size_t i = 0; i < key->field_count; i++) {
        const tdm_job_key *field = &key->fields[i];
        tdm__job_slot slot = {.node = given[i], .from_override = from_override};
        if (given[i]) slot.place = given[i]->key_place;
        bool stored = given[i] ? tdm__value_store(loader, field, &slot, item)
                               : field_store_default(loader, field, map->place, item);
        ok = ok && stored;
    }
    return ok;
}

static void *map_alloc(tdm__loader *loader, const tdm_job_key *key, size_t count)
{
    void *items = tdm_arena_array(loader->arena, count > 0 ? count : 1, key->struct_bytes);
    if (!items || key->field_count > MAX_FIELDS) {
        loader->problems.no_memory = true;
        return NULL;
    }
    return items;
}

bool tdm__map_store(tdm__loader *loader, const tdm_job_key *key, const tdm__yaml_node *node,
                    bool from_override, void *field)
{
    void *item = map_alloc(loader, key, 1);
    if (!item || !tdm__map_fill(loader, key, node, from_override, item)) return false;
    memcpy(field, &item, sizeof(item));
    return true;
}

static void report_entry(tdm__loader *loader, const tdm_job_key *key, const tdm__yaml_node *entry)
{
    const char *first = tdm__key_leaf(&key->fields[0]);
    if (entry->kind == TDM__YAML_LIST) {
        tdm__problem_add(&loader->problems, entry->place,
                         "'%s': each entry is a mapping, such as {%s: ...}, got a list", key->path,
                         first);
    } else {
        tdm__problem_add(&loader->problems, entry->place,
                         "'%s': each entry is a mapping, such as {%s: ...}, got '%s'", key->path,
                         first, tdm__clip_text(entry->text).text);
    }
}

bool tdm__map_list_store(tdm__loader *loader, const tdm_job_key *key, const tdm__yaml_node *node,
                         bool from_override, void *field)
{
    size_t count = 0;
    for (const tdm__yaml_node *entry = node->first; entry; entry = entry->next) count++;
    if (count > key->max_count) {
        tdm__problem_add(&loader->problems, node->place, "'%s' takes at most %zu entries, got %zu",
                         key->path, key->max_count, count);
        return false;
    }
    char *items = map_alloc(loader, key, count);
    bool ok = items != NULL;
    size_t at = 0;
    for (const tdm__yaml_node *entry = node->first; entry && items; entry = entry->next, at++) {
        if (entry->broken) {
            ok = false;
        } else if (entry->kind != TDM__YAML_MAP) {
            report_entry(loader, key, entry);
            ok = false;
        } else if (!tdm__map_fill(loader, key, entry, from_override,
                                  items + at * key->struct_bytes)) {
            ok = false;
        }
    }
    tdm__map_list list = {.items = items, .count = count};
    if (ok) memcpy(field, &list, sizeof(list));
    return ok;
}
