/*
 * text.c: reads a text character by character, for models that predict the next one.
 *
 * The whole file is one row of tokens. A token is the index of a character in the vocabulary, which
 * is the sorted set of characters of the training file, or given. Samples are windows of this row,
 * so nothing is stored twice: a character takes one or two bytes. Nothing is changed: line breaks,
 * spaces and control characters are characters like all others.
 */
#include "base/base.h"
#include "data/data.h"
#include "data/internal.h"

#include <stdlib.h>
#include <string.h>

#define MAX_CONTEXT (1 << 24)

static tdm_status copy_names(const tdm_data_options *options, tdm_dataset *dataset, tdm_error *err)
{
    tdm_dataset_info *info = &dataset->info;
    if (options->class_count < 1 || options->class_count > TDM__MAX_CLASSES)
        return tdm_fail(err, TDM_ERR_INVALID, "a vocabulary has 1 to %d characters, not %lld",
                        TDM__MAX_CLASSES, (long long)options->class_count);
    const char **names = tdm_arena_array(dataset->arena, (size_t)options->class_count,
                                         sizeof(*names));
    for (int64_t i = 0; names && i < options->class_count; i++) {
        const char *given = options->class_names[i];
        names[i] = tdm_arena_strdup(dataset->arena, given ? given : "");
        if (!names[i]) names = NULL;
    }
    if (!names) return tdm_fail_oom(err, "for the vocabulary");
    info->class_names = names;
    info->class_count = options->class_count;
    return TDM_OK;
}

/* Stores the tokens; `info` has the names already. */
static tdm_status read_tokens(const tdm__data_source *source, tdm_dataset *dataset, tdm_error *err)
{
    tdm_dataset_info *info = &dataset->info;
    tdm_vocabulary *vocabulary = NULL;
    tdm_status status = tdm_vocabulary_create(info->class_names, info->class_count, &vocabulary,
                                              err);
    if (status != TDM_OK) return tdm_error_context(err, status, "%s", source->name);
    info->storage = info->class_count <= 256 ? TDM_DTYPE_U8 : TDM_DTYPE_U16;
    size_t size = tdm_dtype_bytes(info->storage);
    /* A character has at least one byte and the source is in memory, so this cannot overflow
     * with 64-bit addresses. */
    dataset->owned_features = malloc(source->count * size);
    if (!dataset->owned_features)
        status = tdm_fail(err, TDM_ERR_NO_MEMORY, "%s: no memory for %zu tokens", source->name,
                          source->count);
    dataset->features = dataset->owned_features;
    if (status == TDM_OK)
        status = tdm__vocabulary_encode(vocabulary, source, info->storage, dataset->owned_features,
                                        &info->token_count, err);
    tdm_vocabulary_destroy(vocabulary);
    return status;
}

static tdm_status cut_windows(const tdm__data_source *source, const tdm_data_options *options,
                              tdm_dataset *dataset, tdm_error *err)
{
    tdm_dataset_info *info = &dataset->info;
    int64_t T = options->context ? options->context : TDM_DATA_DEFAULT_CONTEXT;
    int64_t stride = options->stride ? options->stride : 1;
    if (T < 1 || T > MAX_CONTEXT || stride < 1)
        return tdm_fail(
            err, TDM_ERR_INVALID,
            "%s: windows of %lld tokens, %lld apart: a window has 1 to %d, and the next "
            "is 1 or more away",
            source->name, (long long)T, (long long)stride, MAX_CONTEXT);
    if (info->token_count <= T)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: %lld characters are not enough: a sample is a window of %lld and "
                        "the next one; use a longer text, or a smaller model.context",
                        source->name, (long long)info->token_count, (long long)T);
    info->feature_count = T;
    info->sample_shape = tdm_shape_1(T);
    info->sample_count = tdm__window_count(info->token_count, T, stride);
    dataset->stride = stride;
    return TDM_OK;
}

static tdm_status text_read(const tdm__data_source *source, const tdm_data_options *options,
                            tdm_dataset *dataset, tdm_error *err)
{
    tdm_dataset_info *info = &dataset->info;
    if (source->label_bytes)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s: a text has no file of labels, because its classes are the next "
                        "characters; remove the file",
                        source->label_name);
    if (options->class_names) {
        tdm_status status = copy_names(options, dataset, err);
        if (status != TDM_OK) return tdm_error_context(err, status, "%s", source->name);
    } else {
        TDM_TRY(tdm__characters_find(source, dataset->arena, &info->class_names, &info->class_count,
                                     &info->token_count, err));
        if (info->token_count == 0)
            return tdm_fail(err, TDM_ERR_FORMAT, "%s: the text is empty", source->name);
    }
    TDM_TRY(read_tokens(source, dataset, err));
    return cut_windows(source, options, dataset, err);
}

/* Any text can be tokens; only the file name shows that it is meant as such. */
static bool text_sniff(const tdm__data_source *source)
{
    static const char *const endings[] = {".txt", ".txt.gz"};
    size_t length = strlen(source->name);
    for (int i = 0; i < 2; i++) {
        size_t ending = strlen(endings[i]);
        if (length >= ending && strcmp(source->name + length - ending, endings[i]) == 0)
            return true;
    }
    return false;
}

const tdm_data_format_ops tdm__data_format_text = {
    .name = "text",
    .format = TDM_DATA_FORMAT_TEXT,
    .kind = TDM_DATA_KIND_TOKENS,
    .sniff = text_sniff,
    .read = text_read,
};
