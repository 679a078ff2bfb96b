/*
 * saver_job.h: one save: the part of one rank, executed by a thread. (For saver.c.)
 *
 * A job owns everything its thread needs, except for two objects of the world: the board, through which
 * the ranks of a node report progress, and the comm. Both are accessed under the job's lock,
 * and never after the job was abandoned: the caller may then close the world at once, while the
 * thread, which may be blocked by a slow disk, cleans up and frees the job later.
 *
 * The phases of a job:
 *
 *     tdm__saver_job_create
 *            |
 *            v
 *      +-----------+  copied  +-----------+   ended   +---------+   abandon
 *      |  COPYING  |--------->|  WRITING  |---------->|  ENDED  |------------> freed
 *      +-----------+          +-----------+           +---------+
 *            | abandon              | abandon
 *            v                      v
 *      +----------------------------------+   ended
 *      |            ABANDONED             |----------------------------------> freed
 *      +----------------------------------+
 *
 *   transition  function                  what happens
 *   create      tdm__saver_job_create     nothing runs; without a copy the job begins in WRITING
 *   copied      job_copy_pieces           the pieces point to the copy; the state may change when all writers are here
 *   ended       job_work                  the part is written; on rank 0 the file is in place or has failed
 *   abandon     tdm__saver_job_abandon    the world ends. A thread that runs frees the job, otherwise the caller
 */
#ifndef TANDEM_TRAIN_SAVER_JOB_H
#define TANDEM_TRAIN_SAVER_JOB_H

#include "train/saver.h"

#include <pthread.h>

/* In memory shared by all ranks of the node. Zeroed before each save, when no thread uses it. */
typedef struct tdm__saver_board {
    atomic_size_t done;    /* chunks that are hashed and written */
    atomic_int copied;     /* writers that do not need the state any more */
    atomic_int failed;     /* index + 1 of the first writer that failed; 0: none */
    atomic_int has_reason; /* `reason` is valid */
    tdm_error reason;      /* of the failed writer */
    char digests[][TDM_SHA256_HEX];
} tdm__saver_board;

/* A chunk that this rank writes. */
typedef struct tdm__saver_piece {
    size_t chunk;
    const void *bytes;
    size_t count;
    uint64_t place; /* in the file */
    size_t copy_at; /* in the copy, if there is one */
} tdm__saver_piece;

typedef enum tdm__saver_phase {
    TDM__SAVER_COPYING,  /* the pieces point to the state */
    TDM__SAVER_WRITING,  /* the pieces point to a copy, or training waits for the end of the save */
    TDM__SAVER_ENDED,    /* `saved` is the result */
    TDM__SAVER_ABANDONED /* neither the board nor the comm may be accessed */
} tdm__saver_phase;

typedef struct tdm__saver_job {
    pthread_mutex_t lock;
    tdm__saver_phase phase; /* under the lock */
    tdm__saver_board *board;
    tdm_comm *comm; /* NULL: a single process */
    pthread_t thread;
    bool has_thread;
    bool yields; /* runs with lower priority than training */

    tdm_arena *arena; /* owns the following */
    int rank, writer_index;
    int writer_count; /* number of all writers */
    tdm__saver_piece *pieces;
    size_t piece_count;
    /* memory that the pieces point to; empty: they point to the state itself. It may be taken
     * after the job was joined */
    tdm_pages copy;
    bool must_hold;        /* training has to call hold before its next change of the state */
    bool *floats;          /* by piece: the values must be finite */
    char **names;          /* tensor names of the pieces, for messages */
    tdm_file_writer *part; /* the temporary file */

    /* Rank 0: */
    tdm_checkpoint_writer *writer; /* NULL on other ranks */
    tdm_checkpoint_content content;
    size_t chunk_count; /* of all ranks */
    const int *writers; /* the ranks that write */
    const char *dir;
    tdm_checkpoint_retention retention;
    uint64_t file_bytes; /* approximate disk space needed */
    tdm_checkpoint_metrics metrics;
    tdm_commit_gate gate, outer; /* of this job, and the one it calls */
    double begin_s;
    tdm__saved saved;
} tdm__saver_job;

/* Parameters for freeing space on a full disk. */
typedef struct tdm__saver_shortage {
    const char *dir; /* of checkpoints */
    const tdm_checkpoint_retention *retention;
    uint64_t bytes; /* of a checkpoint */
} tdm__saver_shortage;
/* After a save that failed because the disk is full: removes old checkpoints if that helps. */
void tdm__saver_free_space(const tdm__saver_shortage *shortage, const tdm_commit_gate *gate,
                           tdm__saved *saved);

/* Whether any of these floats is infinite or NaN. */
bool tdm__has_bad_numbers(const void *bytes, size_t count);

/* NULL: no memory. */
tdm__saver_job *tdm__saver_job_create(void);
/* Executes the job in the calling thread. */
void tdm__saver_job_run(tdm__saver_job *job);
/* Executes the job in a new thread; in the calling one if none can be created. */
void tdm__saver_job_start(tdm__saver_job *job);
/* Whether the job has ended and need not be held any more: a part can be written before the other writers have copied
 * theirs. */
bool tdm__saver_job_ended(tdm__saver_job *job);
/* Waits until no writer needs the state any more; if that cannot happen, the save fails. */
void tdm__saver_job_hold(tdm__saver_job *job);
/* Waits until the job has ended; does not free it. */
void tdm__saver_job_join(tdm__saver_job *job);
/* Ends and frees the job, now or later; the caller must not use it any more. May be NULL. */
void tdm__saver_job_abandon(tdm__saver_job *job);

#endif
