/*
 * data.h: the part of module data that only other modules use.
 *
 * <tandem/data.h> declares how data sets are opened. This header adds access to a set's memory, so that ranks of
 * a host can share it; libtandem.so does not export it.
 */
#ifndef TANDEM_DATA_DATA_H
#define TANDEM_DATA_DATA_H

#include <tandem/data.h>

/* Whether the labels look like the target of a regression instead of classes: all are numbers,
 * and they are fractions, or there are many compared with the samples. */
bool tdm_dataset_has_numeric_target(const tdm_dataset *dataset);

/* The features in memory, and their size in bytes. Not for parts: their features are inside
 * those of the original data set. */
const void *tdm_dataset_block(const tdm_dataset *dataset, size_t *bytes);
/* Tells the data set that the block at `from` was copied to `to`, where it stays as long as the
 * data set exists. From then on features are read there; if the data set owned the block at
 * `from`, it frees it. Parts must be moved before the original data set. */
void tdm_dataset_move(tdm_dataset *dataset, const void *from, const void *to);

/* The number of a sample in its file, from 0; in a part made by a split, it differs from its
 * index. Windows of tokens are counted within their part. */
int64_t tdm_dataset_number(const tdm_dataset *dataset, int64_t index);

/* The entries of a sparse sample, in the order of the file; borrowed. Returns their number. */
int64_t tdm_dataset_entries(const tdm_dataset *dataset, int64_t index, const uint64_t **keys,
                            const float **values);
/* The class of a sample; -1 in a set without labels. Not for tokens. */
int32_t tdm_dataset_class(const tdm_dataset *dataset, int64_t index);

/* The largest absolute value of any feature of any sample; 0 for an empty set. For tables only. */
double tdm_dataset_largest(const tdm_dataset *dataset);

/* ---- characters ------------------------------------------------------------------------------ */

/*
 * A vocabulary of characters (UTF-8 code points): maps each of them to its token. Read-only after
 * its creation; any number of threads may use it.
 */
typedef struct tdm_vocabulary tdm_vocabulary;

/* Creates a vocabulary from the class names of a text, in their order; each must be one
 * character. */
tdm_status tdm_vocabulary_create(const char *const *characters, int64_t count, tdm_vocabulary **out,
                                 tdm_error *err);
void tdm_vocabulary_destroy(tdm_vocabulary *vocabulary);
/* Writes the tokens of a text to `out`, which has room for `length` of them, and their number to
 * *out_count. Invalid UTF-8 and unknown characters are errors, whose messages begin with `name`
 * and contain the position. */
tdm_status tdm_vocabulary_encode(const tdm_vocabulary *vocabulary, const char *name,
                                 const char *text, size_t length, int32_t *out, int64_t *out_count,
                                 tdm_error *err);
int64_t tdm_vocabulary_count(const tdm_vocabulary *vocabulary);

/* The library that decompresses gzip: "zlib 1.2.13". Returns `buffer`. */
const char *tdm_data_library(char buffer[TDM_LIBRARY_BYTES]);

#endif
