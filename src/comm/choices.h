/*
 * choices.h: the table that selects the algorithm of a call by its kind, its bytes and its group.
 *
 * choose.c has the built-in rows and selects; choices.c reads measured rows from a file and
 * serialises tables; tune.c writes the file. All ranks use rank 0's table, which is distributed
 * when the world is opened, so all make the same choice.
 */
#ifndef TANDEM_COMM_CHOICES_H
#define TANDEM_COMM_CHOICES_H

#include "comm/algorithm.h"

/* Where the members of a group are. If no row of the group's own place applies to a call, the rows
 * for several hosts are used. */
typedef enum tdm__group_place {
    TDM__GROUP_PLACE_HOSTS = 0, /* on several hosts */
    TDM__GROUP_PLACE_HOST,      /* all on one host */
    TDM__GROUP_PLACE_CROWDED    /* on several hosts, at least one of which has several members */
} tdm__group_place;

/* One row of the table: from `bytes` on, groups like this use this algorithm. */
typedef struct tdm__choice {
    uint8_t kind;   /* a tdm_call_kind */
    uint8_t place;  /* a tdm__group_place */
    uint16_t size;  /* minimum group size */
    uint64_t bytes; /* minimum bytes of the call */
    uint8_t algorithm;
    uint32_t segment_bytes; /* 0: the algorithm's default */
} tdm__choice;

typedef struct tdm__choices {
    tdm__choice *rows;
    int count;
    bool mixed_host; /* the table may choose an algorithm other than WINDOW within a host */
} tdm__choices;

/*
 * Loads the built-in table (`path` NULL), or the built-in table with the rows for the same kinds,
 * places and sizes replaced by those of a file written by tdm_tune_write (choices.c). The file is
 * JSON:
 *     {"tandem_tune": 1, "choices": [
 *       {"kind": "all_reduce", "one_host": true, "size": 2, "bytes": 0, "algorithm": "window",
 *        "segment_bytes": 0}, ...]}
 * A version other than 1, a missing key or an unknown name is TDM_ERR_FORMAT; additional keys are
 * ignored.
 */
tdm_status tdm__choices_load(const char *path, tdm__choices *out, tdm_error *err);
/* As tdm__choices_load with the file `path`, or with the file in the default place (tdm_tune_path)
 * if `path` is NULL and it exists. A default file that cannot be used is ignored with a warning
 * (tune.c). */
tdm_status tdm__choices_find(const char *path, tdm__choices *out, tdm_error *err);
/* Reads the rows of a file, without the built-in ones. */
tdm_status tdm__choices_read(const char *path, tdm__choices *out, tdm_error *err);
void tdm__choices_release(tdm__choices *choices);

/* Serialises a table, so that rank 0 can send its own to all: returns the number of bytes, which
 * are written unless `out` is NULL. The second function parses and validates such bytes. */
size_t tdm__choices_pack(const tdm__choices *choices, uint8_t *out);
tdm_status tdm__choices_unpack(const uint8_t *bytes, size_t count, tdm__choices *out,
                               tdm_error *err);

/* The built-in rows (choose.c). */
extern const tdm__choice tdm__choices_builtin[];
extern const int tdm__choices_builtin_count;

/* The algorithm for a call: the requested one if it supports the call; else the table's choice;
 * else any that supports the call. */
tdm_status tdm__choose(const tdm_group *group, const tdm_call *call, const tdm__algorithm_ops **out,
                       tdm_error *err);
/* The segment size in the table for this call and algorithm; 0: none. */
size_t tdm__choices_segment(const tdm_group *group, const tdm_call *call, tdm_algorithm algorithm);

#endif
