/*
 * keys.h: short forms for the rows of the table of keys, for the files keys*.c.
 *
 * A row is a tdm_job_key with designated fields. KEY gives its path, its type and its place in tdm_job, RANGE its
 * limits. `.decides_bits = true` marks a key that affects the trained bits; BITS_IF one that does so in some jobs.
 */
#ifndef TANDEM_SRC_JOB_KEYS_H
#define TANDEM_SRC_JOB_KEYS_H

#include "job/internal.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define KEY(name, kind, member) KEY_IN(tdm_job, name, kind, member)
/* A key in a struct other than tdm_job: of a layer, or of an entry of a list. */
#define KEY_IN(object, name, kind, member)                                                         \
    .path = name, .type = TDM_JOB_KEY_##kind, .offset = offsetof(object, member)
#define RANGE(lowest, highest) .min = lowest, .max = highest
#define BITS_IF(condition, note)                                                                   \
    .decides_bits = true, .decides_when = condition, .decides_note = note

#endif
