/*
 * options.c: a mapping with arbitrary names: the settings of a model from a library.
 *
 * Names and values are kept as texts; the library interprets them. They are sorted by name, so that
 * equal jobs have equal texts. A value that looks like a number or a boolean is shown without
 * quotes; parsing it gives the same text. A single option can be set on the command line, in
 * addition to those in the file.
 */
#include <stdlib.h>
#include <string.h>

#include <tandem/os.h>

#include "job/internal.h"

/* ---- reading --------------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const tdm_job_option *)a)->name, ((const tdm_job_option *)b)->name);
}

/* Reports what is wrong with one entry; true when nothing is. */
static bool check_entry(tdm__loader *loader, const tdm_job_key *key, const tdm__yaml_node *entry)
{
    tdm__problem_list *problems = &loader->problems;
    if (entry->broken) return false;
    if (!tdm__name_is_valid(entry->key)) {
        tdm__problem_add(problems, entry->key_place,
                         "'%s': '%s' is not a valid option name; use 1 to 64 letters, digits, '.', "
                         "'_' or '-', not beginning with '.' or '-'",
                         key->path, tdm__clip_text(entry->key).text);
        return false;
    }
    if (entry->kind != TDM__YAML_SCALAR) {
        tdm__problem_add(problems, entry->place,
                         "'%s.%s' expects a single value, such as 64 or relu, got a %s", key->path,
                         entry->key, entry->kind == TDM__YAML_LIST ? "list" : "mapping");
        return false;
    }
    if (tdm__yaml_is_null(entry)) {
        tdm__problem_add(problems, entry->key_place,
                         "'%s.%s' has no value; give one, or leave it out", key->path, entry->key);
        return false;
    }
    if (strlen(entry->text) > TDM__JOB_STRING_BYTES) {
        tdm__problem_add(problems, entry->place, "'%s.%s' takes at most %d bytes, got %zu",
                         key->path, entry->key, TDM__JOB_STRING_BYTES, strlen(entry->text));
        return false;
    }
    return true;
}

static bool report_duplicate(tdm__loader *loader, const tdm_job_key *key,
                             const tdm__yaml_node *first)
{
    for (const tdm__yaml_node *a = first; a; a = a->next) {
        for (const tdm__yaml_node *b = first; b != a; b = b->next) {
            if (strcmp(a->key, b->key) != 0) continue;
            tdm__problem_add(&loader->problems, a->key_place,
                             "'%s.%s' is given twice, first at line %d, column %d; remove one",
                             key->path, tdm__clip_text(a->key).text, b->key_place.line,
                             b->key_place.column);
            return true;
        }
    }
    return false;
}

bool tdm__options_store(tdm__loader *loader, const tdm_job_key *key, const tdm__yaml_node *node,
                        void *field)
{
    size_t count = 0, at = 0;
    for (const tdm__yaml_node *entry = node->first; entry; entry = entry->next) count++;
    if (count > key->max_count) {
        tdm__problem_add(&loader->problems, node->place, "'%s' takes at most %zu entries, got %zu",
                         key->path, key->max_count, count);
        return false;
    }
    if (report_duplicate(loader, key, node->first)) return false;
    tdm_job_option *items = tdm_arena_array(loader->arena, count > 0 ? count : 1, sizeof(*items));
    bool ok = items != NULL, has_memory = items != NULL;
    for (const tdm__yaml_node *entry = node->first; entry && has_memory; entry = entry->next) {
        if (!check_entry(loader, key, entry)) {
            ok = false;
            continue;
        }
        items[at].name = tdm_arena_strdup(loader->arena, entry->key);
        items[at].value = tdm_arena_strdup(loader->arena, entry->text);
        has_memory = items[at].name && items[at].value;
        at++;
    }
    if (!has_memory) loader->problems.no_memory = true;
    if (!ok || !has_memory) return false;
    qsort(items, count, sizeof(*items), compare_names);
    *(tdm_job_option_list *)field = (tdm_job_option_list){.items = items, .count = count};
    return true;
}

/* ---- from the command line ------------------------------------------------------------------- */

/* A copy of the mapping in which `entry` replaces the entry of the same name, or is appended. */
static const tdm__yaml_node *with_entry(tdm__loader *loader, const tdm__yaml_node *node,
                                        const tdm__yaml_node *entry)
{
    tdm__yaml_node *map = tdm_arena_alloc(loader->scratch, sizeof(*map), 0);
    tdm__yaml_node *added = tdm_arena_alloc(loader->scratch, sizeof(*added), 0);
    if (!map || !added) return NULL;
    *map = (tdm__yaml_node){.kind = TDM__YAML_MAP, .place = entry->place};
    tdm__yaml_node **link = &map->first;
    if (node && node->kind == TDM__YAML_MAP) *map = *node;
    map->first = NULL;
    for (const tdm__yaml_node *old = node ? node->first : NULL; old; old = old->next) {
        if (strcmp(old->key, entry->key) == 0) continue;
        tdm__yaml_node *copy = tdm_arena_alloc(loader->scratch, sizeof(*copy), 0);
        if (!copy) return NULL;
        *copy = *old;
        copy->next = NULL;
        *link = copy;
        link = &copy->next;
    }
    *added = *entry;
    *link = added;
    return map;
}

bool tdm__options_override(tdm__loader *loader, const char *path, const char *value)
{
    for (size_t i = 0; i < tdm_job_key_count(); i++) {
        const tdm_job_key *key = tdm_job_key_at(i);
        size_t length = strlen(key->path);
        if (key->type != TDM_JOB_KEY_OPTIONS || strncmp(path, key->path, length) != 0 ||
            path[length] != '.')
            continue;
        tdm__job_slot *slot = &loader->slots[i];
        const tdm__yaml_node *read = tdm__node_from_text(loader, key, value);
        if (!read) return true; /* reported */
        tdm__yaml_node entry = *read;
        entry.key = tdm_arena_strdup(loader->scratch, path + length + 1);
        entry.key_place = (tdm__job_position){.file = TDM__JOB_OVERRIDE_FILE};
        entry.next = NULL;
        const tdm__yaml_node *map = entry.key ? with_entry(loader, slot->node, &entry) : NULL;
        if (!map) loader->problems.no_memory = true;
        if (map && !slot->node) slot->place = entry.key_place;
        if (map) slot->node = map;
        return true;
    }
    return false;
}

/* ---- the hash of the library ----------------------------------------------------------------- */

/* The code of the model affects the trained bits as much as any key, so its hash is a key as well. */
void tdm__library_identify(tdm__loader *loader)
{
    tdm_job *job = loader->job;
    const tdm__job_slot *slot = &loader->slots[tdm__key_find("model.library")];
    const tdm__job_slot *given = &loader->slots[tdm__key_find("model.library_sha256")];
    if (!slot->ok || !given->ok || !job->model.library || loader->no_file_checks) return;
    tdm_file_bytes bytes;
    tdm_error err;
    if (tdm_file_read(job->model.library, 0, &bytes, &err) != TDM_OK) {
        tdm__problem_add(&loader->problems, slot->place, "'model.library': %s", err.message);
        return;
    }
    char hex[TDM_SHA256_HEX];
    tdm_status status = tdm_sha256_of(bytes.data, bytes.count, hex);
    tdm_file_bytes_release(&bytes);
    const char *kept = status == TDM_OK ? tdm_arena_strdup(loader->arena, hex) : NULL;
    if (!kept) {
        loader->problems.no_memory = true;
    } else if (!job->model.library_sha256) {
        job->model.library_sha256 = kept;
    } else if (strcmp(job->model.library_sha256, hex) != 0) {
        loader->other_library = true;
        tdm__problem_add(&loader->problems, given->place,
                         "'model.library_sha256': %s has changed: its SHA-256 is %s, expected %s; "
                         "restore the file, or remove this key and start a new run",
                         job->model.library, hex, tdm__clip_text(job->model.library_sha256).text);
    }
}
