/*
 * libsvm.c: reads sparse samples from libsvm files.
 *
 * A line is a sample: a label, then the features that are not zero, as index:value with increasing indices. A '#'
 * begins a comment, up to the end of the line. Blank lines are skipped. The key of a feature is its index, counted
 * from 0, in field 0.
 */
#include "base/base.h"
#include "data/formats/sparse_rows.h"

#include <string.h>

typedef struct libsvm_reader {
    tdm__lines lines;
    tdm__sparse_rows rows;
    uint64_t first_index; /* 0 or 1 */
} libsvm_reader;

static inline bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* The end of the word that begins at `p`. */
static const char *word_end(const char *p, const char *end)
{
    while (p < end && !is_blank(*p)) p++;
    return p;
}

static tdm_status libsvm_fail_word(const libsvm_reader *reader, const char *at, const char *end,
                                   tdm_error *err)
{
    char shown[TDM__SHOW_BYTES];
    tdm__text_show(at, (size_t)(end - at), shown);
    if (end - at >= 4 && memcmp(at, "qid:", 4) == 0)
        return tdm__lines_fail(&reader->lines, at, err,
                               "'%s' is the query of a ranking task, which is not supported; "
                               "remove it",
                               shown);
    return tdm__lines_fail(&reader->lines, at, err,
                           "'%s' is not a feature; write index:value, with blanks between features",
                           shown);
}

static tdm_status libsvm_fail_value(const libsvm_reader *reader, const char *at, const char *end,
                                    tdm__number_result why, tdm_error *err)
{
    static const char *const reasons[] = {
        [TDM__NUMBER_OK] = "is a number",
        [TDM__NUMBER_EMPTY] = "is empty, not a number",
        [TDM__NUMBER_NOT_A_NUMBER] = "is not a number",
        [TDM__NUMBER_NOT_FINITE] = "is not a finite number",
        [TDM__NUMBER_TOO_LARGE] = "is too large for a 32-bit float",
        [TDM__NUMBER_TOO_LONG] = "has too many digits; a number may have 255 characters",
    };
    char shown[TDM__SHOW_BYTES];
    return tdm__lines_fail(&reader->lines, at, err, "the value '%s' %s",
                           tdm__text_show(at, (size_t)(end - at), shown), reasons[why]);
}

/* Reads "index:value". `previous` is the key before it in the sample, or -1. */
static tdm_status libsvm_feature(libsvm_reader *reader, const char *at, const char *end,
                                 int64_t *previous, tdm_error *err)
{
    const char *p = at;
    uint64_t index = 0;
    while (p < end && *p >= '0' && *p <= '9' && p - at < 12)
        index = index * 10 + (uint64_t)(*p++ - '0');
    if (p == at || p == end || *p != ':') return libsvm_fail_word(reader, at, end, err);
    if (index < reader->first_index)
        return tdm__lines_fail(&reader->lines, at, err,
                               "index 0, but indices are counted from 1; if they are counted from "
                               "0 in this file, set first_index_is_0");
    index -= reader->first_index;
    if (index > UINT32_MAX)
        return tdm__lines_fail(&reader->lines, at, err,
                               "the index exceeds the limit of %llu; map the features to smaller "
                               "numbers",
                               (unsigned long long)UINT32_MAX + reader->first_index);
    if ((int64_t)index <= *previous)
        return tdm__lines_fail(&reader->lines, at, err,
                               "index %llu follows index %llu; each feature may occur once in a "
                               "sample, in increasing order: sort them",
                               (unsigned long long)index + reader->first_index,
                               (unsigned long long)*previous + reader->first_index);
    double value;
    tdm__number_result result = tdm__number_parse(p + 1, (size_t)(end - p - 1), &value);
    if (result != TDM__NUMBER_OK) return libsvm_fail_value(reader, p + 1, end, result, err);
    if (!tdm__sparse_rows_add(&reader->rows, index, (float)value))
        return tdm__lines_fail(&reader->lines, at, err, "more features than the size allows");
    *previous = (int64_t)index;
    return TDM_OK;
}

static tdm_status libsvm_label(libsvm_reader *reader, const char *at, const char *end,
                               tdm_error *err)
{
    size_t length = (size_t)(end - at);
    if (memchr(at, ':', length))
        return tdm__lines_fail(&reader->lines, at, err,
                               "the label is missing; a line begins with the class of the sample");
    if (memchr(at, ',', length))
        return tdm__lines_fail(&reader->lines, at, err,
                               "several labels in one sample are not supported; write one class");
    return tdm__sparse_rows_label(&reader->rows, &reader->lines, at, length, err);
}

static tdm_status libsvm_line(libsvm_reader *reader, tdm_error *err)
{
    const char *p = reader->lines.text, *end = p + reader->lines.length;
    const char *comment = memchr(p, '#', reader->lines.length);
    if (comment) end = comment;
    while (p < end && is_blank(*p)) p++;
    if (p == end) return TDM_OK;
    const char *stop = word_end(p, end);
    TDM_TRY(libsvm_label(reader, p, stop, err));
    int64_t previous = -1;
    for (p = stop;; p = stop) {
        while (p < end && is_blank(*p)) p++;
        if (p == end) break;
        stop = word_end(p, end);
        TDM_TRY(libsvm_feature(reader, p, stop, &previous, err));
    }
    return tdm__sparse_rows_end(&reader->rows, err);
}

/* An upper bound of the features: each has a colon, and at least "1:1" and a blank. */
static size_t feature_limit(const tdm__data_source *source)
{
    const char *p = (const char *)source->bytes, *end = p + source->count;
    size_t colons = 0;
    while ((p = memchr(p, ':', (size_t)(end - p)))) colons++, p++;
    size_t most = source->count / 4 + 1;
    return colons < most ? colons : most;
}

static tdm_status libsvm_read(const tdm__data_source *source, const tdm_data_options *options,
                              tdm_dataset *dataset, tdm_error *err)
{
    TDM_TRY(tdm__sparse_check_labels(source, "libsvm", err));
    if (options->label && strcmp(options->label, "none") == 0)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s: a libsvm file has a label at the beginning of each line, so the label "
                        "cannot be none",
                        source->name);
    libsvm_reader reader = {.first_index = options->first_index_is_0 ? 0 : 1};
    TDM_TRY(tdm__lines_init(&reader.lines, source, err));
    tdm_status status = tdm__sparse_rows_init(&reader.rows, source, options, dataset,
                                              tdm__lines_count(source), feature_limit(source), true,
                                              err);
    bool found = true;
    while (status == TDM_OK && found) {
        status = tdm__lines_next(&reader.lines, &found, err);
        if (status == TDM_OK && found) status = libsvm_line(&reader, err);
    }
    if (status == TDM_OK) status = tdm__sparse_rows_finish(&reader.rows, err);
    tdm__sparse_rows_release(&reader.rows);
    return status;
}

static bool libsvm_sniff(const tdm__data_source *source)
{
    return !memchr(source->bytes, 0, source->count < 4096 ? source->count : 4096);
}

const tdm_data_format_ops tdm__data_format_libsvm = {
    .name = "libsvm",
    .format = TDM_DATA_FORMAT_LIBSVM,
    .kind = TDM_DATA_KIND_SPARSE,
    .sniff = libsvm_sniff,
    .read = libsvm_read,
};
