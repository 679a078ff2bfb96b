/*
 * internal.h: declarations shared by the files of the data module.
 *
 * A file is read in three steps: gzip.c decompresses it if necessary, registry.c finds the format
 * that recognises its first bytes, and the format's `read` fills a tdm_dataset. A format is one
 * file in formats/ that exports one tdm_data_format_ops table; its name appears nowhere else.
 *
 * A data set owns an arena (names) and two blocks (features, classes). A part made by
 * tdm_dataset_split owns only its list of rows, and borrows the rest.
 */
#ifndef TANDEM_DATA_INTERNAL_H
#define TANDEM_DATA_INTERNAL_H

#include "data/data.h"
#include <tandem/text.h>

#define TDM__DEFAULT_LIMIT_BYTES (UINT64_C(16) << 30)
#define TDM__MAX_CLASSES 65536

/* ---- the data set ---------------------------------------------------------------------------- */

struct tdm_dataset {
    tdm_dataset_info info;
    tdm_arena *arena;       /* names and, in a part, `rows` */
    const void *features;   /* [stored rows, feature_count] of info.storage */
    const int32_t *classes; /* [stored rows]; NULL without labels, and for tokens */
    int64_t stride;         /* tokens: from one window to the next */
    /* Sparse: parts of the block `features`. Entries [offsets[r], offsets[r + 1]) are those of stored row r. */
    const int64_t *offsets;
    const uint64_t *keys;
    const float *values;
    size_t block_bytes; /* sparse: of `features` */
    const int64_t
        *rows; /* [sample_count] in a part: the stored row of each sample; NULL: all, in order */
    void *owned_features; /* from malloc; NULL in a part */
    void *owned_classes;
};

/* The stored row of a sample. */
static inline int64_t tdm__dataset_row(const tdm_dataset *dataset, int64_t index)
{
    return dataset->rows ? dataset->rows[index] : index;
}

/* ---- formats --------------------------------------------------------------------------------- */

/* Decompressed bytes; everything is borrowed during the call. */
typedef struct tdm__data_source {
    const char *name; /* the file, in messages */
    const uint8_t *bytes;
    size_t count;
    const char *label_name;
    const uint8_t *label_bytes; /* NULL: no file of labels */
    size_t label_count;
} tdm__data_source;

typedef struct tdm_data_format_ops {
    const char *name;
    tdm_data_format format;
    tdm_data_kind kind;
    /* Whether the bytes or the name look like this format. Never reads beyond `count`. */
    bool (*sniff)(const tdm__data_source *source);
    /*
 * Fills the zeroed `dataset`, whose arena exists already, except info.path. After a failure it may
 * be incomplete: the caller destroys it.
 */
    tdm_status (*read)(const tdm__data_source *source, const tdm_data_options *options,
                       tdm_dataset *dataset, tdm_error *err);
} tdm_data_format_ops;

extern const tdm_data_format_ops tdm__data_format_csv;
extern const tdm_data_format_ops tdm__data_format_idx;
extern const tdm_data_format_ops tdm__data_format_text;
extern const tdm_data_format_ops tdm__data_format_libsvm;
extern const tdm_data_format_ops tdm__data_format_criteo;

/* The format that the options name; else the first of the right kind that recognises the bytes.
 * A kind with one format is not checked. */
tdm_status tdm__data_format_find(const tdm__data_source *source, const tdm_data_options *options,
                                 const tdm_data_format_ops **out, tdm_error *err);

/* ---- gzip ------------------------------------------------------------------------------------ */

bool tdm__gzip_sniff(const uint8_t *bytes, size_t count);
/* Decompresses all members into one block, which the caller frees. TDM_ERR_RANGE if there is
 * more than the limit. */
tdm_status tdm__gzip_unpack(const char *name, const uint8_t *bytes, size_t count,
                            uint64_t limit_bytes, uint8_t **out_bytes, size_t *out_count,
                            tdm_error *err);

/* ---- numbers and texts in files -------------------------------------------------------------- */

typedef enum tdm__number_result {
    TDM__NUMBER_OK,
    TDM__NUMBER_EMPTY,
    TDM__NUMBER_NOT_A_NUMBER,
    TDM__NUMBER_NOT_FINITE, /* "nan", "inf", "infinity" in any case */
    TDM__NUMBER_TOO_LARGE,  /* for f32 */
    TDM__NUMBER_TOO_LONG    /* more than 255 characters */
} tdm__number_result;

/*
 * Reads a decimal number that fills the text, independent of the locale. `*out` is written only on
 * success and is finite as f32.
 */
tdm__number_result tdm__number_parse(const char *text, size_t length, double *out);

bool tdm__utf8_ok(const char *text, size_t length);
/* A copy of the text for messages: without control characters, truncated if necessary. Returns
 * `buffer`. */
#define TDM__SHOW_BYTES 64
const char *tdm__text_show(const char *text, size_t length, char buffer[TDM__SHOW_BYTES]);

/* ---- classes --------------------------------------------------------------------------------- */

/*
 * Maps label texts to numbers. Either the classes are given (fixed), or each new text becomes a
 * class, in order of appearance until tdm__classes_sort() computes the final order.
 */
typedef struct tdm__classes {
    tdm_arena *arena; /* borrowed; contains the names */
    const char **names;
    int32_t count;
    int32_t capacity;
    int32_t *slots; /* hash table of class numbers; -1 is empty; a power of two */
    size_t slot_count;
    bool fixed;
} tdm__classes;

/* Takes the class names of the options, if any. Release it in every case, also after a failure. */
tdm_status tdm__classes_init(tdm__classes *classes, tdm_arena *arena,
                             const tdm_data_options *options, tdm_error *err);
void tdm__classes_release(tdm__classes *classes);
/*
 * Returns the number of a label. RANGE if there were more than TDM__MAX_CLASSES; NOT_FOUND if the
 * classes are fixed and it is not one of them. It writes no message, because the caller knows the
 * line.
 */
tdm_status tdm__classes_number(tdm__classes *classes, const char *text, size_t length,
                               int32_t *out);
/* Computes the final order: `numbers` [count] gets the new numbers, and the names are sorted. */
tdm_status tdm__classes_sort(tdm__classes *classes, int32_t *numbers, tdm_error *err);
/* "; did you mean 'setosa'?" if a class has a similar name; else "". Returns `buffer`. */
const char *tdm__classes_hint(const tdm__classes *classes, const char *text, size_t length,
                              char buffer[128]);

/* ---- characters ------------------------------------------------------------------------------ */

#define TDM__MAX_CODES 0x110000

/* Collects the different characters of a text, sorted by code point, as names in `arena`, and
 * counts all characters. TDM_ERR_FORMAT, with the byte, if the text is not UTF-8 or contains a
 * NUL. */
tdm_status tdm__characters_find(const tdm__data_source *source, tdm_arena *arena,
                                const char *const **out_names, int64_t *out_name_count,
                                int64_t *out_count, tdm_error *err);

/* Writes the tokens as `dtype`: U8, U16 or I32. `out` has room for one token for each byte. */
tdm_status tdm__vocabulary_encode(const tdm_vocabulary *vocabulary, const tdm__data_source *source,
                                  tdm_dtype dtype, void *out, int64_t *out_count, tdm_error *err);

/* The number of windows of `context` tokens, each followed by one more token, in `token_count`
 * tokens. */
int64_t tdm__window_count(int64_t token_count, int64_t context, int64_t stride);

/* ---- order ----------------------------------------------------------------------------------- */

#define TDM__PERMUTATION_MAX_ROUNDS 32

/* A permutation of 0 ... count-1, a function of (seed, stream, step), evaluated position by
 * position. */
typedef struct tdm__permutation {
    uint64_t count;
    uint64_t keys[TDM__PERMUTATION_MAX_ROUNDS];
    int round_count; /* even */
    int low_bits;
    uint64_t low_mask;
    uint64_t high_mask;
} tdm__permutation;

tdm__permutation tdm__permutation_init(uint64_t count, uint64_t seed, uint32_t stream,
                                       uint64_t step);
uint64_t tdm__permutation_at(const tdm__permutation *permutation, uint64_t position);

#endif
