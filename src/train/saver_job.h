/*
 * saver_job.h: one save, as the thread of one rank does its part of it. (For saver.c.)
 *
 * A job owns all that its thread needs, but for two things that belong to the world: the board, by which
 * the ranks of a node tell each other what is done, and the comm. Both are touched under the job's lock,
 * and never again once it is abandoned: whoever abandons a job may close the world at once, and the
 * thread, which may be stuck in a slow disk, tidies up and frees the job later.
 */
#ifndef TANDEM_TRAIN_SAVER_JOB_H
#define TANDEM_TRAIN_SAVER_JOB_H

#include "train/saver.h"

#include <pthread.h>

/* In memory that all ranks of the node see. Zeroed before each save, when nobody is at work. */
typedef struct tdm__saver_board {
    atomic_size_t done;    /* chunks that are hashed and in the file */
    atomic_int copied;     /* writers that need the state no more */
    atomic_int failed;     /* the first writer that failed, + 1; 0: none did */
    atomic_int has_reason; /* `reason` can be read */
    tdm_error reason;      /* of that one */
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

typedef struct tdm__saver_job {
    pthread_mutex_t lock;
    tdm__saver_board *board; /* NULL: abandoned */
    tdm_comm *comm;          /* NULL: a single process */
    bool ended, detached;    /* under the lock */
    pthread_t thread;
    bool has_thread;
    bool yields; /* to those that train */

    tdm_arena *arena; /* of what is below */
    int rank, writer_index;
    int writer_count; /* of all that write */
    tdm__saver_piece *pieces;
    size_t piece_count;
    tdm_pages
        copy;     /* what the pieces point to; empty: they point to the state itself. Whoever joins
                     * the job may take it */
    bool copies;  /* the thread fills the copy first; the pieces point to the state until then */
    bool *floats; /* by piece: numbers that must be finite */
    char **names; /* of the pieces' tensors, for messages */
    tdm_file_writer *part; /* the temporary file */

    /* Rank 0: */
    tdm_checkpoint_writer *writer; /* NULL: another rank */
    tdm_checkpoint_content content;
    size_t chunk_count; /* of all ranks */
    const int *writers; /* the ranks that write */
    const char *dir;
    tdm_checkpoint_retention retention;
    uint64_t file_bytes; /* that the disk must have room for, about */
    tdm_checkpoint_metrics metrics;
    tdm_commit_gate gate, outer; /* this job's, and who is asked by it */
    double begin_s;
    tdm__saved saved;
} tdm__saver_job;

/* What matters to who makes room on a full disk. */
typedef struct tdm__saver_shortage {
    const char *dir; /* of checkpoints */
    const tdm_checkpoint_retention *retention;
    uint64_t bytes; /* of a checkpoint */
} tdm__saver_shortage;
/* After a save that has failed because the disk is full: removes old checkpoints if that helps. */
void tdm__saver_free_space(const tdm__saver_shortage *shortage, const tdm_commit_gate *gate,
                           tdm__saved *saved);

/* Whether any of these floats is infinite or NaN. */
bool tdm__has_bad_numbers(const void *bytes, size_t count);

/* NULL: no memory. */
tdm__saver_job *tdm__saver_job_create(void);
/* Does it all, in the calling thread. */
void tdm__saver_job_run(tdm__saver_job *job);
/* The same in a thread of its own; in the calling one where there is none to be had. */
void tdm__saver_job_start(tdm__saver_job *job);
bool tdm__saver_job_ended(tdm__saver_job *job);
/* Waits until no writer needs the state any more; what keeps that from happening fails the save. */
void tdm__saver_job_hold(tdm__saver_job *job);
/* Waits until it has ended; the job stays. */
void tdm__saver_job_join(tdm__saver_job *job);
/* Ends it in any case, now or later. The job is gone for the caller. NULL is fine. */
void tdm__saver_job_abandon(tdm__saver_job *job);

#endif
