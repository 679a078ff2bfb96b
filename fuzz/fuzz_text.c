/*
 * fuzz_text.c: texts made by a fuzzer.
 *
 * The first three bytes choose the context, the stride and the vocabulary, the rest is the file
 * (which may be gzip). A data set that is accepted must be consistent: every window can be gathered,
 * each of its tokens has a name, consecutive windows overlap with equal tokens, and the concatenated names
 * are the text.
 */
#include "data/data.h"
#include <stdlib.h>
#include <string.h>
#include <tandem/data.h>

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) abort();                                                                 \
    } while (0)

static void use(const tdm_dataset *dataset)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(dataset);
    int64_t T = info->feature_count;
    REQUIRE(info->kind == TDM_DATA_KIND_TOKENS && info->sample_count > 0 && T > 0);
    REQUIRE(info->token_count > T && info->class_count > 0);
    int32_t *tokens = malloc(2 * (size_t)T * sizeof(*tokens)), *next = tokens + T;
    REQUIRE(tokens);
    for (int64_t i = 0; i < info->sample_count; i++) {
        tdm_dataset_gather(dataset, &i, 1, tokens, next);
        for (int64_t t = 0; t < T; t++) {
            REQUIRE(tokens[t] >= 0 && tokens[t] < info->class_count);
            REQUIRE(next[t] >= 0 && next[t] < info->class_count);
            REQUIRE(t == 0 || next[t - 1] == tokens[t]);
            REQUIRE(info->class_names[tokens[t]][0]);
        }
    }
    free(tokens);
    char hex[TDM_SHA256_HEX];
    REQUIRE(tdm_dataset_hash(dataset, hex) == TDM_OK);
}

/* The text of the first window is the beginning of the file, and encoding it gives the same tokens. */
static void read_back(const tdm_dataset *dataset)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(dataset);
    int64_t T = info->feature_count, first = 0, count = -1;
    int32_t *tokens = malloc((size_t)T * sizeof(*tokens));
    char *text = calloc((size_t)T, 4);
    int32_t *again = malloc(4 * (size_t)T * sizeof(*again));
    tdm_vocabulary *vocabulary = NULL;
    REQUIRE(tokens && text && again);
    REQUIRE(tdm_vocabulary_create(info->class_names, info->class_count, &vocabulary, NULL) ==
            TDM_OK);
    tdm_dataset_gather(dataset, &first, 1, tokens, NULL);
    size_t length = 0;
    for (int64_t t = 0; t < T; t++) {
        const char *name = info->class_names[tokens[t]];
        memcpy(text + length, name, strlen(name));
        length += strlen(name);
    }
    /* A second mark, after the skipped one. */
    bool has_mark = length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0;
    REQUIRE(tdm_vocabulary_encode(vocabulary, "fuzz", text, length, again, &count, NULL) == TDM_OK);
    if (!has_mark) REQUIRE(count == T && memcmp(tokens, again, (size_t)T * sizeof(*tokens)) == 0);
    tdm_vocabulary_destroy(vocabulary);
    free(again);
    free(text);
    free(tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"\n", " ", "a", "b", "c", "\xc3\xa9"};
    if (size < 3) return 0;
    tdm_data_options options = {
        .format = TDM_DATA_FORMAT_TEXT,
        .context = 1 + data[0] % 64,
        .stride = data[1] % 9,
        .limit_bytes = 16 << 20,
        .class_names = data[2] & 1 ? names : NULL,
        .class_count = 6,
    };
    tdm_dataset *dataset = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_dataset_parse(data + 3, size - 3, NULL, 0, "fuzz", &options, &dataset,
                                          &err);
    if (status != TDM_OK) {
        REQUIRE(dataset == NULL && err.status == status && err.message[0]);
        return 0;
    }
    use(dataset);
    read_back(dataset);
    tdm_dataset *rest;
    tdm_dataset *test;
    if (tdm_dataset_split(dataset, (1 + data[2]) / 257.0, 1, &rest, &test, NULL) == TDM_OK) {
        use(rest);
        use(test);
        tdm_dataset_destroy(rest);
        tdm_dataset_destroy(test);
    }
    tdm_dataset_destroy(dataset);
    return 0;
}
