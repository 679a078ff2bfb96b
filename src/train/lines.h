/*
 * lines.h: a file of numbered lines in the run directory, which rank 0 writes while training continues.
 *
 * The ledger (ledger.h) and the order of asynchronous updates (order_file.h) are such files. Each line has a number;
 * numbers increase. The line of a number is appended once. A file that is opened to continue after a number loses all
 * later lines, so a run that goes back repeats them.
 *
 * A new rank 0 opens the file again, which replaces it: a fenced process of an old epoch writes to the old, unlinked
 * file. Lines that a full disk rejected are only in the memory of rank 0. Every rank can therefore keep the last lines
 * (a ring of `recent` lines), and the next rank 0 writes those that are missing in the file.
 */
#ifndef TANDEM_TRAIN_LINES_H
#define TANDEM_TRAIN_LINES_H

#include <tandem/text.h>
#include <tandem/train.h>

#include <sys/types.h>

enum {
    TDM__LINE_BYTES = 512,    /* maximum of a line, with its newline */
    TDM__LINE_RECORD = 64,    /* maximum size of a record */
    TDM__LINES_RECENT = 65536 /* entries of a ring */
};

/* What the lines of a file are: records of a fixed size in memory. */
typedef struct tdm__lines_format {
    const char *name; /* of the file */
    size_t record_bytes;
    uint64_t (*number)(const void *record); /* from 1 */
    /* Writes the text of a line with its newline; returns its length. */
    int (*show)(const void *record, char out[TDM__LINE_BYTES]);
    /* Parses a line without its newline; false if it is invalid. `arena` is for parsing. */
    bool (*read)(const char *text, size_t length, tdm_arena *arena, void *record);
} tdm__lines_format;

typedef struct tdm__lines {
    const tdm__lines_format *format;
    int fd;               /* -1: not open */
    uint64_t last_number; /* of the last line that was put, or is in the file */
    bool complete;        /* this process has lost no line */
    char *waiting;        /* records not known to be on the disk, in order */
    size_t waiting_count, waiting_room;
    size_t written_count; /* the first of these, which are in the file */
    off_t synced_bytes;   /* size of the synced part of the file */
    bool must_rewind;     /* the file after synced_bytes may be damaged */
    bool sync_failed;     /* of the last sync */
    bool is_behind;       /* a line could not be written or synced, and this was logged */
    char path[TDM_PATH_BYTES];
} tdm__lines;

/* Opens the file of a run to continue after `number`, or creates it. Later lines, a truncated line and invalid lines are
 * removed. `out->last_number` is that of the last line in the file, which may be smaller. Reads and rewrites the whole
 * file. */
tdm_status tdm__lines_open(const char *run, const tdm__lines_format *format, uint64_t number,
                           tdm__lines *out, tdm_error *err);
/* Appends a complete line or nothing. A number that is already there is ignored. A line that the disk rejects is kept in
 * memory with those after it, and retried with every later line and every sync; training continues. Lines whose sync
 * fails are written again. */
void tdm__lines_put(tdm__lines *lines, const void *record);
/* Keeps a record in the ring; `recent` NULL: does nothing. */
void tdm__lines_remember(const tdm__lines_format *format, void *recent, const void *record);
/* Appends the missing lines up to `number`, as far as the ring `recent` has them. May be NULL. */
void tdm__lines_fill(tdm__lines *lines, const void *recent, uint64_t number);
/* Syncs the file; called before a checkpoint. */
void tdm__lines_sync(tdm__lines *lines);
void tdm__lines_close(tdm__lines *lines);

#endif
