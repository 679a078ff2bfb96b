/*
 * show.c: prints a job as YAML and as JSON, hashes it, and compares two jobs.
 *
 * All four iterate over the table of keys, so that none can miss a key. The YAML is canonical: a
 * value has one spelling, and parsing the text gives the same job with the same text. Texts are
 * unquoted only if no YAML parser can read them as another type. Optional keys that were not given,
 * and keys that another key excludes, are omitted.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/base.h"
#include "job/internal.h"
#include "job/job.h"

static const void *field_of(const tdm_job_key *key, const void *base)
{
    return (const char *)base + key->offset;
}

static const char *text_of(const tdm_job_key *key, const void *base)
{
    return *(const char *const *)field_of(key, base);
}

/* The struct of a mapping, or NULL. */
static const void *map_of(const tdm_job_key *key, const void *base)
{
    const void *item;
    memcpy(&item, field_of(key, base), sizeof(item));
    return item;
}

static tdm__map_list map_list_of(const tdm_job_key *key, const void *base)
{
    tdm__map_list list;
    memcpy(&list, field_of(key, base), sizeof(list));
    return list;
}

static const tdm_job_option_list *options_of(const tdm_job_key *key, const void *base)
{
    return field_of(key, base);
}

static const tdm_job_layer_list *layers_of(const tdm_job_key *key, const void *base)
{
    return field_of(key, base);
}

bool tdm__value_is_set(const tdm_job_key *key, const void *base)
{
    double real;
    switch (key->type) {
    case TDM_JOB_KEY_STRING:
    case TDM_JOB_KEY_PATH:
    case TDM_JOB_KEY_DIR: return text_of(key, base) != NULL;
    case TDM_JOB_KEY_INT:
        return key->word || *(const int64_t *)field_of(key, base) != 0 || key->min == 0;
    case TDM_JOB_KEY_REAL:
        real = *(const double *)field_of(key, base);
        if (isnan(real)) return false;
        /* A fraction of 0 counts as not given if the key that excludes it was given. */
        if (!key->excludes || real != 0) return true;
        return !tdm__value_is_set(tdm_job_key_at(tdm__key_find(key->excludes)), base);
    case TDM_JOB_KEY_MAP: return map_of(key, base) != NULL;
    case TDM_JOB_KEY_OPTIONS: return options_of(key, base)->count > 0;
    case TDM_JOB_KEY_LAYERS: return layers_of(key, base)->items != NULL;
    case TDM_JOB_KEY_BOOL:
    case TDM_JOB_KEY_CHOICE:
    case TDM_JOB_KEY_INT_LIST:
    case TDM_JOB_KEY_MAP_LIST: return true;
    }
    return true;
}

/* ---- YAML ------------------------------------------------------------------------------------ */

static bool text_is_plain(const char *text)
{
    static const char first[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ/";
    static const char later[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ/"
                                "0123456789._-";
    static const char *const words[] = {"null", "true", "false", "yes", "no",
                                        "on",   "off",  "y",     "n"};
    if (!text[0] || !strchr(first, text[0]) || text[strspn(text, later)] != '\0') return false;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcasecmp(text, words[i]) == 0) return false;
    }
    return true;
}

static void add_escaped(uint32_t c, const char *bytes, size_t length, tdm_str *out)
{
    if (c == '"' || c == '\\') {
        tdm_str_addf(out, "\\%c", (char)c);
    } else if (c == '\n') {
        tdm_str_add(out, "\\n");
    } else if (c == '\t') {
        tdm_str_add(out, "\\t");
    } else if (tdm__yaml_is_printable(c)) {
        tdm_str_add_bytes(out, bytes, length);
    } else if (c < 0x100) {
        tdm_str_addf(out, "\\x%02X", (unsigned)c);
    } else {
        tdm_str_addf(out, "\\u%04X", (unsigned)c); /* all beyond 0xffff are printable */
    }
}

static void add_text(const char *text, tdm_str *out)
{
    if (text_is_plain(text)) {
        tdm_str_add(out, text);
        return;
    }
    tdm_str_add_char(out, '"');
    while (*text) {
        uint32_t character;
        size_t length = tdm__utf8_next(text, &character);
        add_escaped(character, text, length, out);
        text += length;
    }
    tdm_str_add_char(out, '"');
}

static void add_list(const tdm_job_int_list *list, tdm_str *out)
{
    tdm_str_add_char(out, '[');
    for (size_t i = 0; i < list->count; i++) {
        tdm_str_addf(out, "%s%lld", i > 0 ? ", " : "", (long long)list->values[i]);
    }
    tdm_str_add_char(out, ']');
}

/* "{match: a, lr_scale: 1}"; `item` is the struct. */
static void add_map(const tdm_job_key *key, const void *item, tdm_str *out)
{
    bool is_first = true;
    tdm_str_add_char(out, '{');
    for (size_t i = 0; i < key->field_count; i++) {
        if (!tdm__value_is_set(&key->fields[i], item)) continue;
        tdm_str_addf(out, "%s%s: ", is_first ? "" : ", ", tdm__key_leaf(&key->fields[i]));
        tdm__value_show(&key->fields[i], item, out);
        is_first = false;
    }
    tdm_str_add_char(out, '}');
}

static void add_map_list(const tdm_job_key *key, tdm__map_list list, tdm_str *out)
{
    tdm_str_add_char(out, '[');
    for (size_t i = 0; i < list.count; i++) {
        if (i > 0) tdm_str_add(out, ", ");
        add_map(key, (const char *)list.items + i * key->struct_bytes, out);
    }
    tdm_str_add_char(out, ']');
}

/* "{beta: 1.5, width: 64}". */
static void add_options(const tdm_job_option_list *list, tdm_str *out)
{
    tdm_str_add_char(out, '{');
    for (size_t i = 0; i < list->count; i++) {
        const tdm_job_option *option = &list->items[i];
        bool is_bare = tdm__text_is_real(option->value) || strcmp(option->value, "true") == 0 ||
                       strcmp(option->value, "false") == 0;
        if (i > 0) tdm_str_add(out, ", ");
        add_text(option->name, out);
        tdm_str_add(out, ": ");
        if (is_bare)
            tdm_str_add(out, option->value);
        else
            add_text(option->value, out);
    }
    tdm_str_add_char(out, '}');
}

/* "{linear: {features: 64, bias: true}}", or only "relu". */
static void add_layer(const tdm_job_layer *layer, tdm_str *out)
{
    const tdm_job_key *kind = &tdm__layer_keys[layer->kind];
    if (kind->field_count == 0) {
        tdm_str_add(out, tdm__key_leaf(kind));
        return;
    }
    tdm_str_addf(out, "{%s: ", tdm__key_leaf(kind));
    add_map(kind, layer, out);
    tdm_str_add_char(out, '}');
}

static void add_layers(const tdm_job_layer_list *list, tdm_str *out)
{
    tdm_str_add_char(out, '[');
    for (size_t i = 0; i < list->count; i++) {
        if (i > 0) tdm_str_add(out, ", ");
        add_layer(&list->items[i], out);
    }
    tdm_str_add_char(out, ']');
}

/* The readable form: one line for each layer, indented by `indent` spaces. */
static void add_layer_lines(const tdm_job_layer_list *list, int indent, tdm_str *out)
{
    for (size_t i = 0; i < list->count; i++) {
        const tdm_job_layer *layer = &list->items[i];
        const tdm_job_key *kind = &tdm__layer_keys[layer->kind];
        tdm_str_addf(out, "%*s- %s", indent, "", tdm__key_leaf(kind));
        if (!layer->layers.items) {
            if (kind->field_count > 0) tdm_str_add(out, ": ");
            if (kind->field_count > 0) add_map(kind, layer, out);
            tdm_str_add_char(out, '\n');
            continue;
        }
        tdm_str_add(out, ":\n");
        for (size_t k = 0; k < kind->field_count; k++) {
            const tdm_job_key *field = &kind->fields[k];
            tdm_str_addf(out, "%*s%s:", indent + 4, "", tdm__key_leaf(field));
            if (field->type == TDM_JOB_KEY_LAYERS) {
                tdm_str_add_char(out, '\n');
                add_layer_lines(&layer->layers, indent + 6, out);
                continue;
            }
            tdm_str_add_char(out, ' ');
            tdm__value_show(field, layer, out);
            tdm_str_add_char(out, '\n');
        }
    }
}

void tdm__value_show(const tdm_job_key *key, const void *base, tdm_str *out)
{
    const void *field = field_of(key, base);
    char buffer[32] = "";
    switch (key->type) {
    case TDM_JOB_KEY_STRING:
    case TDM_JOB_KEY_PATH:
    case TDM_JOB_KEY_DIR: add_text(text_of(key, base), out); break;
    case TDM_JOB_KEY_INT:
        if (key->word && *(const int64_t *)field == key->word_value) {
            tdm_str_add(out, key->word);
        } else {
            tdm_str_addf(out, "%lld", (long long)*(const int64_t *)field);
        }
        break;
    case TDM_JOB_KEY_REAL: tdm_str_add(out, tdm_text_double(*(const double *)field, buffer)); break;
    case TDM_JOB_KEY_BOOL: tdm_str_add(out, *(const bool *)field ? "true" : "false"); break;
    case TDM_JOB_KEY_CHOICE:
        tdm__choice_at(key->choices, (size_t) * (const int *)field, buffer);
        tdm_str_add(out, buffer);
        break;
    case TDM_JOB_KEY_INT_LIST: add_list(field, out); break;
    case TDM_JOB_KEY_MAP: add_map(key, map_of(key, base), out); break;
    case TDM_JOB_KEY_MAP_LIST: add_map_list(key, map_list_of(key, base), out); break;
    case TDM_JOB_KEY_OPTIONS: add_options(options_of(key, base), out); break;
    case TDM_JOB_KEY_LAYERS: add_layers(field, out); break;
    }
}

void tdm_job_value_show(const tdm_job *job, size_t index, tdm_str *out)
{
    const tdm_job_key *key = tdm_job_key_at(index);
    if (tdm__value_is_set(key, job))
        tdm__value_show(key, job, out);
    else
        tdm_str_add(out, "none");
}

void tdm_job_show(const tdm_job *job, tdm_str *out)
{
    for (size_t g = 0; g < tdm__job_group_count(); g++) {
        const tdm__job_group *group = tdm__job_group_at(g);
        bool is_top = group->name[0] == '\0';
        if (!is_top) tdm_str_addf(out, "%s:\n", group->name);
        for (size_t i = 0; i < tdm_job_key_count(); i++) {
            const tdm_job_key *key = tdm_job_key_at(i);
            if (!tdm__job_group_has(group, key) || !tdm__value_is_set(key, job)) continue;
            if (key->type == TDM_JOB_KEY_LAYERS && layers_of(key, job)->count > 0) {
                tdm_str_addf(out, "%s:\n", tdm__key_leaf(key));
                add_layer_lines(layers_of(key, job), 2, out);
                continue;
            }
            tdm_str_addf(out, "%s%s: ", is_top ? "" : "  ", tdm__key_leaf(key));
            tdm__value_show(key, job, out);
            tdm_str_add_char(out, '\n');
        }
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_json(const tdm_job_key *key, const void *base, tdm_json_writer *w);

static void put_json_map(const tdm_job_key *key, const void *item, tdm_json_writer *w)
{
    tdm_json_object_begin(w);
    for (size_t i = 0; i < key->field_count; i++)
        if (tdm__value_is_set(&key->fields[i], item)) put_json(&key->fields[i], item, w);
    tdm_json_object_end(w);
}

static void put_json_map_list(const tdm_job_key *key, tdm__map_list list, tdm_json_writer *w)
{
    tdm_json_array_begin(w);
    for (size_t i = 0; i < list.count; i++)
        put_json_map(key, (const char *)list.items + i * key->struct_bytes, w);
    tdm_json_array_end(w);
}

static void put_json_options(const tdm_job_option_list *list, tdm_json_writer *w)
{
    tdm_json_object_begin(w);
    for (size_t i = 0; i < list->count; i++)
        tdm_json_put_string(w, list->items[i].name, list->items[i].value);
    tdm_json_object_end(w);
}

static void put_json_layers(const tdm_job_layer_list *list, tdm_json_writer *w)
{
    tdm_json_array_begin(w);
    for (size_t i = 0; i < list->count; i++) {
        const tdm_job_key *kind = &tdm__layer_keys[list->items[i].kind];
        if (kind->field_count == 0) {
            tdm_json_string(w, tdm__key_leaf(kind));
            continue;
        }
        tdm_json_object_begin(w);
        tdm_json_key(w, tdm__key_leaf(kind));
        put_json_map(kind, &list->items[i], w);
        tdm_json_object_end(w);
    }
    tdm_json_array_end(w);
}

static void put_json(const tdm_job_key *key, const void *base, tdm_json_writer *w)
{
    const void *field = field_of(key, base);
    char buffer[32] = "";
    tdm_json_key(w, tdm__key_leaf(key));
    switch (key->type) {
    case TDM_JOB_KEY_STRING:
    case TDM_JOB_KEY_PATH:
    case TDM_JOB_KEY_DIR: tdm_json_string(w, text_of(key, base)); break;
    case TDM_JOB_KEY_INT:
        if (key->word && *(const int64_t *)field == key->word_value) {
            tdm_json_string(w, key->word);
        } else {
            tdm_json_int(w, *(const int64_t *)field);
        }
        break;
    case TDM_JOB_KEY_REAL: tdm_json_double(w, *(const double *)field); break;
    case TDM_JOB_KEY_BOOL: tdm_json_bool(w, *(const bool *)field); break;
    case TDM_JOB_KEY_CHOICE:
        tdm__choice_at(key->choices, (size_t) * (const int *)field, buffer);
        tdm_json_string(w, buffer);
        break;
    case TDM_JOB_KEY_INT_LIST:
        tdm_json_array_begin(w);
        for (size_t i = 0; i < ((const tdm_job_int_list *)field)->count; i++)
            tdm_json_int(w, ((const tdm_job_int_list *)field)->values[i]);
        tdm_json_array_end(w);
        break;
    case TDM_JOB_KEY_MAP: put_json_map(key, map_of(key, base), w); break;
    case TDM_JOB_KEY_MAP_LIST: put_json_map_list(key, map_list_of(key, base), w); break;
    case TDM_JOB_KEY_OPTIONS: put_json_options(options_of(key, base), w); break;
    case TDM_JOB_KEY_LAYERS: put_json_layers(field, w); break;
    }
}

void tdm_job_show_json(const tdm_job *job, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 2);
    tdm_json_object_begin(&w);
    for (size_t g = 0; g < tdm__job_group_count(); g++) {
        const tdm__job_group *group = tdm__job_group_at(g);
        bool is_top = group->name[0] == '\0';
        if (!is_top) tdm_json_key(&w, group->name);
        if (!is_top) tdm_json_object_begin(&w);
        for (size_t i = 0; i < tdm_job_key_count(); i++) {
            const tdm_job_key *key = tdm_job_key_at(i);
            if (tdm__job_group_has(group, key) && tdm__value_is_set(key, job))
                put_json(key, job, &w);
        }
        if (!is_top) tdm_json_object_end(&w);
    }
    tdm_json_object_end(&w);
    tdm_str_add_char(out, '\n');
}

/* ---- keys that affect the bits --------------------------------------------------------------- */

/* Adds the value of a key. For a path only its presence counts, because the same file may have
 * another path on another machine. */
static void add_hashed_value(const tdm_job_key *key, const tdm_job *job, tdm_str *out)
{
    bool is_set = tdm__value_is_set(key, job);
    if (key->type == TDM_JOB_KEY_PATH) {
        tdm_str_add(out, is_set ? "given" : "not given");
    } else if (is_set) {
        tdm__value_show(key, job, out);
    } else {
        tdm_str_add(out, "0");
    }
}

static bool key_decides_bits(const tdm_job_key *key, const tdm_job *job)
{
    return key->decides_bits && (!key->decides_when || key->decides_when(job));
}

tdm_status tdm_job_hash(const tdm_job *job, char hex[TDM_SHA256_HEX], tdm_error *err)
{
    tdm_str text = TDM_STR_INIT;
    tdm_str_add(&text, "tandem job 1\n");
    for (size_t i = 0; i < tdm_job_key_count(); i++) {
        const tdm_job_key *key = tdm_job_key_at(i);
        if (!key_decides_bits(key, job)) continue;
        tdm_str_addf(&text, "%s=", key->path);
        add_hashed_value(key, job, &text);
        tdm_str_add_char(&text, '\n');
    }
    tdm_status status = TDM_ERR_NO_MEMORY;
    if (tdm_str_ok(&text)) status = tdm_sha256_of(text.data, text.length, hex);
    tdm_str_release(&text);
    if (status != TDM_OK) return tdm_fail(err, status, "cannot hash the job: out of memory");
    return TDM_OK;
}

/* Whether layer `index` differs or exists in one list only. Writes its texts to `a` and `b`. */
static bool layer_differs(const tdm_job_layer_list *here, const tdm_job_layer_list *there,
                          size_t index, tdm_str *a, tdm_str *b)
{
    tdm_str_clear(a);
    tdm_str_clear(b);
    if (index < here->count) add_layer(&here->items[index], a);
    if (index < there->count) add_layer(&there->items[index], b);
    return strcmp(tdm_str_text(a), tdm_str_text(b)) != 0;
}

/* Adds only the first difference of two lists, because a list can be long. */
static void add_layers_diff(const char *path, const tdm_job_layer_list *here,
                            const tdm_job_layer_list *there, tdm_str *out)
{
    tdm_str a = TDM_STR_INIT, b = TDM_STR_INIT;
    size_t i = 0, max = here->count > there->count ? here->count : there->count;
    while (i < max && !layer_differs(here, there, i, &a, &b)) i++;
    if (i < here->count && i < there->count) {
        tdm_job_layer x = here->items[i], y = there->items[i];
        const tdm_job_layer_list inside[2] = {x.layers, y.layers};
        x.layers.count = y.layers.count = 0;
        const tdm_job_layer_list outer[2] = {{&x, 1}, {&y, 1}};
        if (!layer_differs(&outer[0], &outer[1], 0, &a, &b)) { /* the nested layers differ */
            tdm_str_clear(&b);
            tdm_str_addf(&b, "%s[%zu].%s", path, i, tdm_job_layer_name(x.kind));
            add_layers_diff(tdm_str_text(&b), &inside[0], &inside[1], out);
            tdm_str_release(&a);
            tdm_str_release(&b);
            return;
        }
        layer_differs(here, there, i, &a, &b);
    }
    tdm_str_addf(out, "%s[%zu]: %s here, %s there\n", path, i, a.length ? a.data : "nothing",
                 b.length ? b.data : "nothing");
    if (!tdm_str_ok(&a) || !tdm_str_ok(&b)) out->failed = true;
    tdm_str_release(&a);
    tdm_str_release(&b);
}

size_t tdm_job_diff(const tdm_job *here, const tdm_job *there, tdm_str *out)
{
    size_t count = 0;
    for (size_t i = 0; i < tdm_job_key_count(); i++) {
        const tdm_job_key *key = tdm_job_key_at(i);
        if (!key_decides_bits(key, here) && !key_decides_bits(key, there)) continue;
        tdm_str a = TDM_STR_INIT, b = TDM_STR_INIT;
        add_hashed_value(key, here, &a);
        add_hashed_value(key, there, &b);
        bool differs = strcmp(tdm_str_text(&a), tdm_str_text(&b)) != 0;
        if (differs && key->type == TDM_JOB_KEY_LAYERS) {
            add_layers_diff(key->path, layers_of(key, here), layers_of(key, there), out);
            count++;
        } else if (differs) {
            tdm_str_addf(out, "%s: %s here, %s there\n", key->path, tdm_str_text(&a),
                         tdm_str_text(&b));
            count++;
        }
        if (!tdm_str_ok(&a) || !tdm_str_ok(&b)) out->failed = true; /* incomplete comparison */
        tdm_str_release(&a);
        tdm_str_release(&b);
    }
    return count;
}
