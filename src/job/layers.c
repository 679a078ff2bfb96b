/*
 * layers.c: the list of layers of a job, from YAML nodes to structs.
 *
 * An entry is a name ('relu'), a name with settings ('conv: {channels: 8}'), or a name with the
 * value of its first setting ('linear: 64'). The last two forms become the same mapping before the
 * settings are checked, like those of every other mapping. A layer that contains layers has a nested
 * list. Depth and number are bounded; repeated layers count once per repetition. Checks that need
 * the shapes of the data are in src/nn; checks of a single layer are here, and report its position.
 */
#include <string.h>

#include "job/internal.h"
#include "job/job.h"

bool tdm_job_takes_tokens(const tdm_job *job)
{
    if (job->model.kind == TDM_JOB_MODEL_GPT) return true;
    return job->model.kind == TDM_JOB_MODEL_LAYERS && job->layers.count > 0 &&
           job->layers.items[0].kind == TDM_JOB_LAYER_EMBEDDING;
}

const char *tdm_job_layer_name(int kind)
{
    return tdm__key_leaf(&tdm__layer_keys[kind]);
}

/* ---- names ----------------------------------------------------------------------------------- */

static const char *kind_name(size_t index, const void *user)
{
    (void)user;
    return tdm_job_layer_name((int)index);
}

static int find_kind(const char *name)
{
    for (int i = 0; i < TDM_JOB_LAYER_KIND_COUNT; i++)
        if (strcmp(kind_name((size_t)i, NULL), name) == 0) return i;
    return -1;
}

static const char *suggest_kind(const char *name)
{
    if (!name[0] || strlen(name) > 64) return NULL;
    for (size_t i = 0; i < TDM_JOB_LAYER_KIND_COUNT; i++)
        if (tdm__has_word(tdm__layer_keys[i].also_called, name)) return kind_name(i, NULL);
    return tdm_text_nearest(name, TDM_JOB_LAYER_KIND_COUNT, kind_name, NULL);
}

static void report_unknown(tdm__loader *loader, const char *name, tdm__job_position place)
{
    const char *near = tdm__problem_list_full(&loader->problems) ? NULL : suggest_kind(name);
    tdm__clip clip = tdm__clip_text(name);
    if (near) {
        tdm__problem_add(&loader->problems, place, "unknown layer '%s'; did you mean '%s'?",
                         clip.text, near);
    } else {
        tdm__problem_add(&loader->problems, place,
                         "unknown layer '%s'; 'tandem job keys layers' lists them all", clip.text);
    }
}

/* ---- one layer ------------------------------------------------------------------------------- */

/* The name and the settings of an entry; `settings` is the unchecked node, or NULL. */
typedef struct named {
    const char *name;
    tdm__job_position place; /* of the name */
    const tdm__yaml_node *settings;
} named;

static bool read_entry(tdm__loader *loader, const tdm__yaml_node *node, named *out)
{
    if (node->broken) return false;
    const tdm__yaml_node *first = node->first;
    if (node->kind == TDM__YAML_SCALAR && !tdm__yaml_is_null(node)) {
        *out = (named){.name = node->text, .place = node->place};
        return true;
    }
    if (node->kind == TDM__YAML_MAP && first && !first->next) {
        *out = (named){.name = first->key, .place = first->key_place};
        if (!tdm__yaml_is_null(first)) out->settings = first;
        return !first->broken;
    }
    if (node->kind == TDM__YAML_MAP && first) {
        tdm__problem_add(
            &loader->problems, first->next->key_place,
            "an entry of 'layers' is one layer, but this one has a second key after '%s'; start "
            "another entry with '- ', and put settings in braces, as in 'conv: {channels: 8}'",
            tdm__clip_text(first->key).text);
    } else {
        tdm__problem_add(&loader->problems, node->place,
                         "an entry of 'layers' must be the name of a layer, such as 'relu', or a "
                         "name with settings, such as 'linear: 64'; got %s",
                         node->kind == TDM__YAML_LIST  ? "a list"
                         : node->kind == TDM__YAML_MAP ? "an empty mapping"
                                                       : "nothing");
    }
    return false;
}

/* The settings as a mapping, for every form of an entry; NULL after a problem. */
static const tdm__yaml_node *settings_of(tdm__loader *loader, const tdm_job_key *key,
                                         const named *e)
{
    if (e->settings && e->settings->kind == TDM__YAML_MAP) return e->settings;
    bool takes_value = key->field_count > 0 && key->fields[0].required;
    if (e->settings && !takes_value) {
        tdm_str wanted = TDM_STR_INIT;
        tdm__key_wants(key, &wanted);
        tdm__problem_add(
            &loader->problems, e->settings->place, "'%s' takes %s, got %s%s%s", key->path,
            tdm_str_text(&wanted), e->settings->kind == TDM__YAML_LIST ? "a list" : "'",
            e->settings->kind == TDM__YAML_LIST ? "" : tdm__clip_text(e->settings->text).text,
            e->settings->kind == TDM__YAML_LIST ? "" : "'");
        if (!tdm_str_ok(&wanted)) loader->problems.no_memory = true;
        tdm_str_release(&wanted);
        return NULL;
    }
    tdm__yaml_node *map = tdm_arena_array(loader->scratch, 2, sizeof(*map));
    if (!map) {
        loader->problems.no_memory = true;
        return NULL;
    }
    map[0] = (tdm__yaml_node){.kind = TDM__YAML_MAP, .place = e->place};
    if (!e->settings) return map;
    map[1] = *e->settings;
    map[1].key = tdm__key_leaf(&key->fields[0]);
    map[1].next = NULL;
    map[0].first = &map[1];
    return map;
}

/* What is wrong with the combination of a layer's settings; NULL: nothing. */
static const char *layer_find_conflict(const tdm_job_layer *layer)
{
    switch ((tdm_job_layer_kind)layer->kind) {
    case TDM_JOB_LAYER_CONV:
    case TDM_JOB_LAYER_CONV1D:
        if (layer->padding == TDM_JOB_PADDING_SAME && layer->kernel % 2 == 0)
            return "padding same requires an odd kernel; set padding to a number";
        if (layer->size != TDM_JOB_SIZE_CLASSES && layer->size % layer->groups != 0)
            return "channels must be a multiple of groups";
        return NULL;
    case TDM_JOB_LAYER_MAX_POOL:
    case TDM_JOB_LAYER_AVERAGE_POOL:
        return layer->padding > layer->kernel / 2 ? "padding exceeds half of kernel" : NULL;
    case TDM_JOB_LAYER_RESIDUAL:
    case TDM_JOB_LAYER_REPEAT: return layer->layers.count == 0 ? "it contains no layer" : NULL;
    default: return NULL;
    }
}

static bool read_layer(tdm__loader *loader, const tdm__yaml_node *node, bool from_override,
                       bool is_first, tdm_job_layer *out)
{
    named e;
    if (!read_entry(loader, node, &e)) return false;
    int kind = find_kind(e.name);
    if (kind < 0) {
        report_unknown(loader, e.name, e.place);
        return false;
    }
    const tdm_job_key *key = &tdm__layer_keys[kind];
    const tdm__yaml_node *settings = settings_of(loader, key, &e);
    out->kind = kind;
    if (!settings || !tdm__map_fill(loader, key, settings, from_override, out)) return false;
    const char *wrong = layer_find_conflict(out);
    if (kind == TDM_JOB_LAYER_EMBEDDING && !is_first)
        wrong = "it reads tokens, so it must be the first layer";
    if (wrong) tdm__problem_add(&loader->problems, e.place, "'%s': %s", key->path, wrong);
    return !wrong;
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* The number of layers in a list, including nested and repeated ones; at most one above the limit. */
static int64_t count_layers(const tdm_job_layer_list *list)
{
    int64_t count = 0;
    for (size_t i = 0; i < list->count && count <= TDM__MAX_LAYERS; i++) {
        const tdm_job_layer *layer = &list->items[i];
        int64_t times = layer->kind == TDM_JOB_LAYER_REPEAT ? layer->times : 1;
        count += 1 + times * count_layers(&layer->layers);
    }
    return count <= TDM__MAX_LAYERS ? count : TDM__MAX_LAYERS + 1;
}

static bool is_bounded(tdm__loader *loader, const tdm_job_key *key, const tdm__yaml_node *node,
                       size_t *count)
{
    *count = 0;
    for (const tdm__yaml_node *entry = node->first; entry; entry = entry->next) (*count)++;
    if (*count > key->max_count) {
        tdm__problem_add(&loader->problems, node->place, "'%s' takes at most %zu layers, got %zu",
                         key->path, key->max_count, *count);
        return false;
    }
    if (loader->layer_depth <= TDM__LAYER_DEPTH) return true;
    tdm__problem_add(&loader->problems, node->place,
                     "layers are nested more than %d levels deep; flatten the list",
                     TDM__LAYER_DEPTH);
    return false;
}

bool tdm__layers_store(tdm__loader *loader, const tdm_job_key *key, const tdm__yaml_node *node,
                       bool from_override, tdm_job_layer_list *field)
{
    size_t count, at = 0;
    if (!is_bounded(loader, key, node, &count)) return false;
    tdm_job_layer *items = tdm_arena_array(loader->arena, count > 0 ? count : 1, sizeof(*items));
    if (!items) {
        loader->problems.no_memory = true;
        return false;
    }
    bool is_top = loader->layer_depth == 0, ok = true;
    loader->layer_depth++;
    for (const tdm__yaml_node *entry = node->first; entry; entry = entry->next, at++)
        if (!read_layer(loader, entry, from_override, is_top && at == 0, &items[at])) ok = false;
    loader->layer_depth--;
    tdm_job_layer_list list = {.items = items, .count = count};
    if (ok && is_top && count_layers(&list) > TDM__MAX_LAYERS) {
        tdm__problem_add(
            &loader->problems, node->place,
            "'%s' has more than %d layers in total, including repetitions; remove some", key->path,
            TDM__MAX_LAYERS);
        ok = false;
    }
    if (ok) *field = list;
    return ok;
}
