/*
 * internal.h: what the files of the data room share.
 *
 * A file goes through three steps: gzip.c unpacks it when it is packed, registry.c finds the format
 * that recognises its first bytes, and that format's `read` fills a tdm_dataset. A format is one
 * file in formats/ that exports one tdm_data_format_ops table; nothing else knows its name.
 *
 * A data set owns an arena (names) and two plain blocks (features, classes). A part made by
 * tdm_dataset_split owns only its list of rows, and borrows the rest.
 */
#ifndef TANDEM_DATA_INTERNAL_H
#define TANDEM_DATA_INTERNAL_H

#include <tandem/data.h>
#include <tandem/text.h>

#define TDM__DEFAULT_LIMIT_BYTES (UINT64_C(16) << 30)
#define TDM__MAX_CLASSES 65536

/* ---- the data set ---------------------------------------------------------------------------- */

struct tdm_dataset {
    tdm_dataset_info info;
    tdm_arena *arena;       /* names and, in a part, `rows` */
    const void *features;   /* [stored rows, feature_count] of info.storage */
    const int32_t *classes; /* [stored rows]; NULL when there are no labels, and for tokens */
    int64_t stride;         /* tokens: from one window to the next */
    const int64_t *rows;    /* [sample_count] in a part: which stored row; NULL: all, in order */
    void *owned_features;   /* from malloc; NULL in a part */
    void *owned_classes;
};

/* The stored row of a sample. */
static inline int64_t tdm__dataset_row(const tdm_dataset *dataset, int64_t index)
{
    return dataset->rows ? dataset->rows[index] : index;
}

/* ---- formats --------------------------------------------------------------------------------- */

/* Unpacked bytes; all borrowed for the time of the call. */
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
    /* Do the bytes, or the name, look like this format? Never reads past `count`. */
    bool (*sniff)(const tdm__data_source *source);
    /*
     * Fills the zeroed `dataset`, whose arena is there already, all but info.path. On failure it
     * may leave it half filled: the caller destroys it.
     */
    tdm_status (*read)(const tdm__data_source *source, const tdm_data_options *options,
                       tdm_dataset *dataset, tdm_error *err);
} tdm_data_format_ops;

extern const tdm_data_format_ops tdm__data_format_csv;
extern const tdm_data_format_ops tdm__data_format_idx;
extern const tdm_data_format_ops tdm__data_format_text;

/* The format that the options name, or else the first of the right kind that recognises the bytes;
 * a kind with one format needs no recognising. */
tdm_status tdm__data_format_find(const tdm__data_source *source, const tdm_data_options *options,
                                 const tdm_data_format_ops **out, tdm_error *err);

/* ---- gzip ------------------------------------------------------------------------------------ */

bool tdm__gzip_sniff(const uint8_t *bytes, size_t count);
/* Unpacks all members into one block, which the caller frees. More than the limit is RANGE. */
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
 * Reads a decimal number that fills the text; the process's locale plays no part. `*out` is
 * written only on OK, and fits into f32 without becoming infinite.
 */
tdm__number_result tdm__number_parse(const char *text, size_t length, double *out);

bool tdm__utf8_ok(const char *text, size_t length);
/* The text made fit for a message: no control characters, cut to fit. Returns `buffer`. */
#define TDM__SHOW_BYTES 64
const char *tdm__text_show(const char *text, size_t length, char buffer[TDM__SHOW_BYTES]);

/* ---- classes --------------------------------------------------------------------------------- */

/*
 * Numbers for label texts. Either the classes are given (fixed), or each new text becomes one, in
 * order of appearance until tdm__classes_sort() gives the final order.
 */
typedef struct tdm__classes {
    tdm_arena *arena; /* borrowed; the names live there */
    const char **names;
    int32_t count;
    int32_t capacity;
    int32_t *slots; /* hash table of class numbers; -1 is empty; a power of two */
    size_t slot_count;
    bool fixed;
} tdm__classes;

/* Takes the options' class names, if any. Release it in every case, after a failure too. */
tdm_status tdm__classes_init(tdm__classes *classes, tdm_arena *arena,
                             const tdm_data_options *options, tdm_error *err);
void tdm__classes_release(tdm__classes *classes);
/*
 * The number of this label. RANGE when there would be more than TDM__MAX_CLASSES; NOT_FOUND when
 * the classes are fixed and this is none. It fills no message: the caller knows the line.
 */
tdm_status tdm__classes_number(tdm__classes *classes, const char *text, size_t length,
                               int32_t *out);
/* The final order, written to `numbers` [count] as new numbers; names are put in that order. */
tdm_status tdm__classes_sort(tdm__classes *classes, int32_t *numbers, tdm_error *err);
/* "; perhaps 'setosa' is meant" when a class has nearly this name; else "". Returns `buffer`. */
const char *tdm__classes_hint(const tdm__classes *classes, const char *text, size_t length,
                              char buffer[128]);

/* ---- characters ------------------------------------------------------------------------------ */

#define TDM__MAX_CODES 0x110000

/* The different characters of a text, sorted by code point, as names in `arena`; also counts its
 * characters. A text that is not UTF-8, or has a NUL, is FORMAT and names the byte. */
tdm_status tdm__characters_find(const tdm__data_source *source, tdm_arena *arena,
                                const char *const **out_names, int64_t *out_name_count,
                                int64_t *out_count, tdm_error *err);

/* Tokens as `dtype`, U8 or U16 or I32; `out` has room for as many as there are bytes. */
tdm_status tdm__vocabulary_encode(const tdm_vocabulary *vocabulary, const tdm__data_source *source,
                                  tdm_dtype dtype, void *out, int64_t *out_count, tdm_error *err);

/* How many windows of `context` tokens, each with one token behind it, `token_count` hold. */
int64_t tdm__window_count(int64_t token_count, int64_t context, int64_t stride);

/* ---- order ----------------------------------------------------------------------------------- */

#define TDM__PERMUTATION_MAX_ROUNDS 32

/* A permutation of 0 ... count-1 chosen by (seed, stream, step), evaluated place by place. */
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
