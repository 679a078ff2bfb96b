/*
 * data.h: the part of module data that only other modules use.
 *
 * <tandem/data.h> declares how data sets are opened. This header adds access to a set's memory, so that ranks of
 * a host can share it; libtandem.so does not export it.
 */
#ifndef TANDEM_DATA_DATA_H
#define TANDEM_DATA_DATA_H

#include <tandem/data.h>

/* Whether the labels look like the target of a regression, not like classes: all are numbers, and they are
 * fractions, or many for the number of samples. */
bool tdm_dataset_has_numeric_target(const tdm_dataset *dataset);

/* The features as they lie in memory, and how many bytes they are. Not for parts, whose features lie
 * within those of what they were split from. */
const void *tdm_dataset_block(const tdm_dataset *dataset, size_t *bytes);
/* Somebody has copied the block that begins at `from` to `to`, and keeps it there as long as the data
 * set lives: features are read there from now on, and a block of its own at `from` is freed. Parts
 * are moved before what they were split from. */
void tdm_dataset_move(tdm_dataset *dataset, const void *from, const void *to);

/* The number, from 0, that a sample has in its file: another than its index in a part that a split
 * made. Windows of tokens are counted within their part. */
int64_t tdm_dataset_number(const tdm_dataset *dataset, int64_t index);

/* The largest absolute value of any feature of any sample; 0 for an empty set. For tables only. */
double tdm_dataset_largest(const tdm_dataset *dataset);

/* ---- characters ------------------------------------------------------------------------------ */

int64_t tdm_vocabulary_count(const tdm_vocabulary *vocabulary);

#endif
