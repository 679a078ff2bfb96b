/*
 * data.h: data sets, and the order in which their samples are seen.
 *
 * A data set is a table in memory: `sample_count` rows of `feature_count` numbers, and a class for
 * each row; or a text: a row of tokens, whose samples are windows of `feature_count` tokens, and
 * whose classes are the tokens that follow; or sparse: each sample is a list of entries, and an entry
 * is the 64-bit key of a feature with its value. Files are read as hostile input: every length is checked
 * before it is used, and an error names the file and the line or byte. gzip is recognised by its first
 * bytes, whatever the name.
 *
 * The order of samples is a function of (seed, epoch, position) alone: a keyed permutation that is
 * evaluated position by position and holds no state, so any position of any epoch can be computed
 * by any worker.
 */
#ifndef TANDEM_DATA_H
#define TANDEM_DATA_H

#include <tandem/base.h>
#include <tandem/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tdm_data_format {
    TDM_DATA_FORMAT_AUTO,
    TDM_DATA_FORMAT_CSV,
    TDM_DATA_FORMAT_IDX,
    TDM_DATA_FORMAT_TEXT,
    TDM_DATA_FORMAT_LIBSVM,
    TDM_DATA_FORMAT_CRITEO
} tdm_data_format;
typedef enum tdm_data_header {
    TDM_DATA_HEADER_AUTO,
    TDM_DATA_HEADER_YES,
    TDM_DATA_HEADER_NO
} tdm_data_header;

/* The kind of a data set's samples. ANY is valid in options only. */
typedef enum tdm_data_kind {
    TDM_DATA_KIND_ANY = 0,
    TDM_DATA_KIND_TABLE,
    TDM_DATA_KIND_TOKENS,
    TDM_DATA_KIND_SPARSE
} tdm_data_kind;

enum { TDM_DATA_DEFAULT_CONTEXT = 256 };

/* How to read a file. Zero means the default everywhere. */
typedef struct tdm_data_options {
    const char *labels_path; /* IDX: the file of labels for the images; NULL for none */
    int format;              /* tdm_data_format; AUTO looks at the bytes and for ".txt" */
    int kind;              /* tdm_data_kind: AUTO takes formats of this kind only; with ANY, formats
                                of sparse samples must be named */
    int header;            /* tdm_data_header; AUTO: a header when a cell of row 1 that should be a
                                number is not */
    const char *label;     /* CSV: column name, number from 1, "first", "last" (default), "none";
                                Criteo: "none" for a file without labels */
    bool first_index_is_0; /* libsvm: indices count from 0; by default from 1 */
    char delimiter;        /* CSV; 0: ',' */
    uint64_t limit_bytes;  /* of the unpacked file; 0: 16 GiB. Protects against gzip bombs. */
    /* The classes of the training set, so that a test file maps to the same numbers; a label (in a
     * text: a character) outside them is an error. NULL: the classes are those found in the file,
     * sorted (as numbers when all are numbers, else by bytes; characters by code point). IDX classes
     * are "0" ... "max". */
    const char *const *class_names;
    int64_t class_count;
    /* CSV: the number of features of a sample, if it is known (the model determines it). A file
     * with exactly as many columns has no label column, whatever `label` says; a file with
     * neither that number of columns nor one more is an error. 0: not known. */
    int64_t feature_count;
    int64_t context; /* text: tokens in a window; 0: TDM_DATA_DEFAULT_CONTEXT */
    int64_t stride;  /* text: tokens from one window to the next; 0: 1, so that they overlap */
} tdm_data_options;

typedef struct tdm_dataset tdm_dataset;

typedef struct tdm_dataset_info {
    tdm_data_kind kind; /* TABLE, TOKENS or SPARSE */
    int64_t sample_count;
    int64_t
        feature_count; /* TOKENS: the tokens of a window; SPARSE: the most entries of a sample */
    tdm_shape sample_shape; /* [28, 28] for images, [feature_count] for tables and windows */
    int64_t token_count;    /* TOKENS: of the whole text; else 0 */
    int64_t entry_count;    /* SPARSE: of all samples; else 0 */
    int64_t class_count;    /* 0: no labels; TOKENS: the size of the vocabulary */
    const char *const *class_names;
    const char *const *feature_names; /* NULL when the file names none */
    tdm_dtype storage; /* F32 or U8, for tokens U8 or U16: the type of the features in memory */
    const char *path;  /* as given; borrowed names live as long as the data set */
} tdm_dataset_info;

TDM_API tdm_status tdm_dataset_load(const char *path, const tdm_data_options *options,
                                    tdm_dataset **out, tdm_error *err);
/* The same from bytes in memory (which may be gzip); `name` is used as the file name in
 * messages. */
TDM_API tdm_status tdm_dataset_parse(const void *bytes, size_t count, const void *label_bytes,
                                     size_t label_count, const char *name,
                                     const tdm_data_options *options, tdm_dataset **out,
                                     tdm_error *err);
TDM_API void tdm_dataset_destroy(tdm_dataset *dataset);
TDM_API const tdm_dataset_info *tdm_dataset_info_of(const tdm_dataset *dataset);

/*
 * Splits off about `fraction` of the samples, selected by `seed`: out_test gets them, out_rest the
 * others, both in file order. Of a text, out_test gets the last `fraction` of the tokens, in
 * windows that do not overlap, and no window of out_rest overlaps it. Both share the memory of
 * `dataset`, which must outlive them.
 */
TDM_API tdm_status tdm_dataset_split(const tdm_dataset *dataset, double fraction, uint64_t seed,
                                     tdm_dataset **out_rest, tdm_dataset **out_test,
                                     tdm_error *err);

/*
 * Copies the samples `indices[0..count)` into `features` [count, feature_count] and their classes
 * into `classes` (may be NULL). Of a table, features are f32 and classes [count], -1 each in a set
 * without labels. Of tokens, both are i32 [count, feature_count]: a window, and the window that
 * begins one token later. Sparse samples have another function. Indices must be in range. Allocates nothing; many threads may call it on
 * one data set at once.
 */
TDM_API void tdm_dataset_gather(const tdm_dataset *dataset, const int64_t *indices, int64_t count,
                                void *features, int32_t *classes);

/*
 * The same for sparse samples: entries [offsets[i], offsets[i + 1]) of `keys` and `values` are those of sample i, in
 * the order of the file; `offsets` has count + 1 numbers. `keys` and `values` have room for count * feature_count.
 * Returns the number of entries. The upper 32 bits of a key are its field, the lower ones the feature in the field:
 * docs/data.md has the keys of each format.
 */
TDM_API int64_t tdm_dataset_gather_sparse(const tdm_dataset *dataset, const int64_t *indices,
                                          int64_t count, int64_t *offsets, uint64_t *keys,
                                          float *values, int32_t *classes);

/* Per feature: the mean and the standard deviation (population), over all samples in order, summed
 * in double precision. Arrays of feature_count. For tables only. */
TDM_API void tdm_dataset_moments(const tdm_dataset *dataset, double *mean, double *deviation);
/* SHA-256 over shapes, class names, features and classes: the content of the samples, not their
 * location. */
TDM_API tdm_status tdm_dataset_hash(const tdm_dataset *dataset, char hex[TDM_SHA256_HEX]);

/* ---- order ----------------------------------------------------------------------------------- */

typedef struct tdm_sampler {
    uint64_t seed;
    uint64_t sample_count;
    bool shuffle; /* false: file order in every epoch */
} tdm_sampler;

/* The sample at `position` (< sample_count) of `epoch`: a bijection for each epoch. */
TDM_API uint64_t tdm_sampler_at(const tdm_sampler *sampler, uint64_t epoch, uint64_t position);

#ifdef __cplusplus
}
#endif
#endif
