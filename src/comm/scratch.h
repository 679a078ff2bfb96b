/*
 * scratch.h: large scratch buffers of programs, cached by the comm for later programs.
 *
 * The comm's lock protects the cache.
 */
#ifndef TANDEM_COMM_SCRATCH_H
#define TANDEM_COMM_SCRATCH_H

#include <tandem/comm.h>

typedef struct tdm__block tdm__block;

/* Takes a buffer of at least `bytes`, aligned to 64, not zeroed, and adds it to *list. NULL: out of
 * memory. */
void *tdm__scratch_take(tdm_comm *comm, tdm__block **list, size_t bytes);
/* Returns all buffers of a list, which is then empty. */
void tdm__scratch_give_back(tdm_comm *comm, tdm__block **list);
/* Frees all cached buffers. */
void tdm__scratch_free(tdm_comm *comm);

#endif
