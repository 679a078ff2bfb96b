/*
 * classes.c: maps label texts to class numbers.
 *
 * Labels are looked up in an open-addressing hash table that is at most half full. The final order
 * does not depend on the order of the file: numeric if every label is a number, else by bytes. So
 * two files with the same labels have the same classes. Labels are compared as texts: "1" and "1.0"
 * are two classes, next to each other. With given classes (those of a training set) nothing is
 * added and the given order is kept.
 */
#include "base/base.h"
#include "data/data.h"
#include "data/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 64

/* Returns the slot with this text, or the empty slot where it belongs. */
static size_t slot_of(const tdm__classes *classes, const char *text, size_t length)
{
    size_t mask = classes->slot_count - 1;
    size_t slot = (size_t)tdm_mix64(tdm_hash64(text, length)) & mask;
    while (classes->slots[slot] >= 0) {
        const char *name = classes->names[classes->slots[slot]];
        if (strncmp(name, text, length) == 0 && name[length] == 0) break;
        slot = (slot + 1) & mask;
    }
    return slot;
}

static bool make_room(tdm__classes *classes, int32_t capacity)
{
    const char **names = realloc(classes->names, (size_t)capacity * sizeof(*names));
    if (!names) return false;
    classes->names = names;
    size_t slot_count = (size_t)capacity * 2; /* capacities are powers of two */
    int32_t *slots = malloc(slot_count * sizeof(*slots));
    if (!slots) return false;
    free(classes->slots);
    classes->slots = slots;
    classes->slot_count = slot_count;
    classes->capacity = capacity;
    for (size_t i = 0; i < slot_count; i++) slots[i] = -1;
    for (int32_t i = 0; i < classes->count; i++)
        slots[slot_of(classes, classes->names[i], strlen(classes->names[i]))] = i;
    return true;
}

static tdm_status class_add(tdm__classes *classes, size_t slot, const char *text, size_t length)
{
    if (classes->count == TDM__MAX_CLASSES) return TDM_ERR_RANGE;
    if (classes->count == classes->capacity) {
        if (!make_room(classes, classes->capacity * 2)) return TDM_ERR_NO_MEMORY;
        slot = slot_of(classes, text, length);
    }
    const char *name = tdm_arena_strndup(classes->arena, text, length);
    if (!name) return TDM_ERR_NO_MEMORY;
    classes->names[classes->count] = name;
    classes->slots[slot] = classes->count++;
    return TDM_OK;
}

tdm_status tdm__classes_init(tdm__classes *classes, tdm_arena *arena,
                             const tdm_data_options *options, tdm_error *err)
{
    *classes = (tdm__classes){.arena = arena};
    if (!make_room(classes, FIRST_CAPACITY)) return tdm_fail_oom(err, "for the classes");
    if (!options->class_names) return TDM_OK;
    if (options->class_count <= 0 || options->class_count > TDM__MAX_CLASSES)
        return tdm_fail(err, TDM_ERR_INVALID, "class_count is %lld; it must be 1 to %d",
                        (long long)options->class_count, TDM__MAX_CLASSES);
    for (int64_t i = 0; i < options->class_count; i++) {
        const char *name = options->class_names[i];
        if (!name)
            return tdm_fail(err, TDM_ERR_INVALID, "class name %lld is missing", (long long)i);
        size_t slot = slot_of(classes, name, strlen(name));
        if (classes->slots[slot] >= 0)
            return tdm_fail(err, TDM_ERR_INVALID, "the class name '%s' is given twice", name);
        tdm_status status = class_add(classes, slot, name, strlen(name));
        if (status != TDM_OK) return tdm_fail(err, status, "no memory for the classes");
    }
    classes->fixed = true;
    return TDM_OK;
}

void tdm__classes_release(tdm__classes *classes)
{
    free(classes->names);
    free(classes->slots);
    *classes = (tdm__classes){0};
}

tdm_status tdm__classes_number(tdm__classes *classes, const char *text, size_t length, int32_t *out)
{
    size_t slot = slot_of(classes, text, length);
    if (classes->slots[slot] < 0) {
        if (classes->fixed) return TDM_ERR_NOT_FOUND;
        TDM_TRY(class_add(classes, slot, text, length));
        *out = classes->count - 1;
        return TDM_OK;
    }
    *out = classes->slots[slot];
    return TDM_OK;
}

/* ---- order ----------------------------------------------------------------------------------- */

typedef struct entry {
    const char *name;
    double value;
    int32_t number;
} entry;

static int compare_bytes(const void *left, const void *right)
{
    return strcmp(((const entry *)left)->name, ((const entry *)right)->name);
}

static int compare_values(const void *left, const void *right)
{
    double a = ((const entry *)left)->value;
    double b = ((const entry *)right)->value;
    return a < b ? -1 : a > b ? 1 : compare_bytes(left, right);
}

tdm_status tdm__classes_sort(tdm__classes *classes, int32_t *numbers, tdm_error *err)
{
    size_t count = (size_t)classes->count;
    if (classes->fixed) {
        for (size_t i = 0; i < count; i++) numbers[i] = (int32_t)i;
        return TDM_OK;
    }
    entry *entries = malloc((count ? count : 1) * sizeof(*entries));
    if (!entries) return tdm_fail_oom(err, "to sort %zu classes", count);
    bool all_numbers = true;
    for (size_t i = 0; i < count; i++) {
        const char *name = classes->names[i];
        entries[i] = (entry){.name = name, .number = (int32_t)i};
        if (tdm__number_parse(name, strlen(name), &entries[i].value) != TDM__NUMBER_OK)
            all_numbers = false;
    }
    qsort(entries, count, sizeof(*entries), all_numbers ? compare_values : compare_bytes);
    for (size_t i = 0; i < count; i++) {
        classes->names[i] = entries[i].name;
        numbers[entries[i].number] = (int32_t)i;
    }
    free(entries);
    /* Updates the table, so that look-ups return the final numbers from now on. */
    for (size_t i = 0; i < classes->slot_count; i++)
        if (classes->slots[i] >= 0) classes->slots[i] = numbers[classes->slots[i]];
    return TDM_OK;
}

/* ---- numbers for classes --------------------------------------------------------------------- */

enum { FRACTIONS_FEW = 10, NUMBERS_FEW = 20, SAMPLES_OF_A_CLASS = 10 };

bool tdm_dataset_has_numeric_target(const tdm_dataset *dataset)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(dataset);
    if (info->kind != TDM_DATA_KIND_TABLE || info->class_count <= FRACTIONS_FEW) return false;
    bool has_fraction = false;
    for (int64_t i = 0; i < info->class_count; i++) {
        double value;
        const char *name = info->class_names[i];
        if (tdm__number_parse(name, strlen(name), &value) != TDM__NUMBER_OK) return false;
        if (value != floor(value)) has_fraction = true;
    }
    bool is_sparse = info->class_count > NUMBERS_FEW &&
                     info->sample_count / SAMPLES_OF_A_CLASS < info->class_count;
    return has_fraction || is_sparse;
}

/* ---- hints ----------------------------------------------------------------------------------- */

static const char *class_candidate(size_t index, const void *user)
{
    return ((const tdm__classes *)user)->names[index];
}

const char *tdm__classes_hint(const tdm__classes *classes, const char *text, size_t length,
                              char buffer[128])
{
    char word[TDM__SHOW_BYTES];
    char shown[TDM__SHOW_BYTES];
    buffer[0] = 0;
    const char *nearest = tdm_text_nearest(tdm__text_show(text, length, word),
                                           (size_t)classes->count, class_candidate, classes);
    if (nearest)
        snprintf(buffer, 128, "; did you mean '%s'?",
                 tdm__text_show(nearest, strlen(nearest), shown));
    return buffer;
}
