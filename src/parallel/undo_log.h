/*
 * undo_log.h: recovery metadata and undo log of a node, in shared memory.
 *
 * The blocks of a parameter store are in regions of shared memory (node_memory.h). In a session they survive the
 * processes that update them. A header region beside them records how far they are, so that later processes can continue: the number of steps done;
 * for each optimiser piece, the step that updated it last and the slot that had to; for each slot (the place of
 * a process on its host), whether it is in a write section, which step's update it has begun and with which
 * numbers, and a snapshot of the caller's state outside of the blocks.
 *
 * A piece is updated under an undo record: its old numbers are saved, the record is activated, the piece
 * is changed and marked, the record is deactivated. A process that dies in between leaves an active record, from
 * which the piece is rolled back.
 *
 * The update of step s begins only when every rank has all sums it needs in shared memory (after the exchange of
 * the step, and of norms if gradients are clipped). So, if any rank has begun, all nodes can
 * complete the update; otherwise no rank has changed anything.
 *
 * Fencing: the header has the epoch that may write. A rank first marks that it is in a write section, then
 * checks that the epoch is still its own. The first rank of a node in a later epoch changes the epoch, then
 * checks which slots are in a section, and kills the processes that should not be: they will not run again.
 */
#ifndef TANDEM_PARALLEL_UNDO_LOG_H
#define TANDEM_PARALLEL_UNDO_LOG_H

#include "optim/optim.h"
#include "parallel/node_memory.h"
#include "parallel/parallel.h"

#include <tandem/os.h>

#include <stdatomic.h>

enum { TDM__UNDO_MAX_SLOTS = 512, TDM__UNDO_BLOCKS = 2 + TDM_OPTIM_MAX_STATES };

/* Where the sums of a step are in shared memory. */
typedef enum tdm__sums_kind {
    TDM__SUMS_TREE =
        1, /* in the gradient buffers of all slots, to be added as their board entries say */
    TDM__SUMS_PLACED = 2 /* in the region of the slot that updates them */
} tdm__sums_kind;

/* Inputs of an update that was begun; the same on all ranks. */
typedef struct tdm__begun_update {
    tdm_order_entry entry;
    double lr, grad_norm;
} tdm__begun_update;

typedef struct tdm__begun {
    uint64_t step;  /* from 0; of several updates the last one */
    uint64_t first; /* the first one */
    uint32_t epoch;
    uint32_t kind; /* tdm__sums_kind */
    int64_t batch;
    double lr, grad_norm, loss, divergence;
    uint64_t tally;
    uint32_t requests;
    uint32_t update_count; /* of updates in order; 0: one of all lanes */
    double compensation;   /* of the delay of these updates */
    tdm__begun_update updates[TDM_ORDER_MAX_WORKERS];
} tdm__begun;

typedef struct tdm__undo_snapshot {
    uint64_t order; /* increases; 0: none */
    uint64_t bytes;
    unsigned char data[TDM_SNAPSHOT_BYTES];
} tdm__undo_snapshot;

typedef struct tdm__undo_slot {
    _Atomic uint32_t inside; /* epoch of its write section; 0: none */
    /* epoch while parameters from other nodes are being received; 0: none */
    _Atomic uint32_t gathering;
    _Atomic int32_t process;  /* 0: never used */
    _Atomic uint64_t started; /* start time of the process, to detect a reused process ID */
    _Atomic uint64_t began;   /* step + 1 of a valid `begun`; 0: none */
    tdm__begun begun;
    _Atomic uint32_t snapshot_turn; /* index of the valid snapshot */
    tdm__undo_snapshot snapshots[2];
} tdm__undo_slot;

typedef struct tdm__mark {
    _Atomic uint64_t updated; /* step + 2 of the last update of this piece here; 0: invalid */
    _Atomic uint64_t applied; /* likewise of the apply pass, for optimisers that have one */
    _Atomic uint32_t epoch;   /* in which `slot` has to update it */
    _Atomic uint32_t slot;
    double sums[TDM_OPTIM_SUMS]; /* of the update */
} tdm__mark;

/* In shared memory. */
typedef struct tdm__undo_header {
    _Atomic uint32_t epoch; /* that may write */
    _Atomic uint64_t state; /* number of steps done in the blocks, + 1; 0: the blocks are invalid */
    _Atomic uint64_t last_update; /* step + 1 of the last step that changed the blocks */
    _Atomic uint32_t lineage;     /* the epoch that last adopted this state here */
    tdm__undo_slot slots[TDM__UNDO_MAX_SLOTS];
} tdm__undo_header;

typedef enum tdm__undo_kind {
    TDM__UNDO_UPDATE = 1,
    TDM__UNDO_APPLY = 2,
    TDM__UNDO_STATISTIC = 3 /* index: see tdm__statistic_visit */
} tdm__undo_kind;

/* Record of one thread of a slot, in shared memory. */
typedef struct tdm__undo_record {
    _Atomic uint64_t active; /* kind of the piece being changed; 0: none */
    uint64_t index, begin, count, step;
    uint64_t grad_place; /* offset in shared memory; UINT64_MAX: the gradient is elsewhere */
    float grad[TDM_OPTIM_PIECE_ELEMENTS];
    float blocks[TDM__UNDO_BLOCKS][TDM_OPTIM_PIECE_ELEMENTS];
} tdm__undo_record;

/* This process's handle of the undo log. */
typedef struct tdm__undo_log {
    const tdm__node_memory *memory; /* of the parameter store */
    int slot;
    uint32_t epoch;
    int thread_count;
    bool takes_statistics; /* a step replaces the statistics, instead of following them */
    bool is_derived; /* steps do not change the blocks; their ranges are only marked as done */
    bool tested;     /* tests may kill this process: see tdm_os_test_point */
    tdm__undo_header *undo_header;
    size_t piece_count, cell_count;
    tdm__mark *marks;       /* piece_count entries */
    tdm__mark *cells;       /* cell_count entries: the same for ranges of statistics */
    tdm__undo_record *undo; /* thread_count entries, of this slot; NULL: changes are not recorded */
    float *blocks[TDM__UNDO_BLOCKS]; /* of the parameter store; NULL: none */
} tdm__undo_log;

/* Compiler barrier: no store may be reordered across it. That is sufficient here: a process that is killed has
 * executed all instructions up to some point and none after it, and its memory is only read after
 * the kernel has reported its end. Needed where plain stores follow an atomic store that they must not
 * overtake; in the other direction the atomic store itself orders them. */
static inline void tdm__undo_barrier(void)
{
    atomic_signal_fence(memory_order_seq_cst);
}

/* Takes the regions; the caller fills in `blocks`. If they do not survive the process, the epoch may write and the slot
 * belongs to this process at once, because there is nothing to recover; and changes of pieces are not recorded, because
 * that takes as long as the change itself. */
tdm_status tdm__undo_log_open(tdm__undo_log *undo_log, size_t piece_count, size_t cell_count,
                              tdm_error *err);
void tdm__undo_log_release(tdm__undo_log *undo_log);
/* The undo records of a slot; NULL: it has none. An error does not mean that it has none. */
tdm_status tdm__undo_records_of(const tdm__undo_log *undo_log, int slot, tdm__undo_record **out,
                                tdm_error *err);

/* A write section. TDM_ERR_PEER_FENCED: another epoch may write. `undo_log` NULL: a store without an optimiser, for
 * which nothing is recorded. */
tdm_status tdm__undo_write_begin(tdm__undo_log *undo_log, tdm_error *err);
void tdm__undo_write_end(tdm__undo_log *undo_log);
/* Between these calls, data received from other nodes may be written at any time. TDM_ERR_PEER_FENCED: another
 * epoch may write, so nothing may be received. */
tdm_status tdm__undo_gather_begin(tdm__undo_log *undo_log, tdm_error *err);
void tdm__undo_gather_end(tdm__undo_log *undo_log);
/* Records that this rank is about to update, with these inputs. In a write section. */
void tdm__undo_step_begin(tdm__undo_log *undo_log, const tdm__begun *begun);
/* Around the change of a piece, or of a range of statistics. `step` is the current step. */
typedef struct tdm__undo_change {
    tdm__undo_kind kind;
    uint64_t step;
    size_t index, begin, count;
    const float *grad; /* is restored as well; NULL: none */
} tdm__undo_change;
void tdm__undo_record_begin(tdm__undo_log *undo_log, int thread, const tdm__undo_change *change);
void tdm__undo_record_commit(tdm__undo_log *undo_log, int thread, tdm__undo_kind kind, size_t index,
                             uint64_t step);
/* Whether that was already done in this step. */
bool tdm__undo_is_done(const tdm__undo_log *undo_log, tdm__undo_kind kind, size_t index,
                       uint64_t step);
/* Ends the step: the state is that after step + 1 steps. In a write section. */
void tdm__undo_step_finish(tdm__undo_log *undo_log, uint64_t step, bool changed);
/* Rolls back the pieces that a slot's process left inconsistent. In a write section. */
tdm_status tdm__undo_rollback(tdm__undo_log *undo_log, int slot, tdm_error *err);
/* Saves a snapshot, unless another epoch may write. */
void tdm__undo_snapshot_save(tdm__undo_log *undo_log, const void *snapshot, size_t bytes,
                             uint64_t order);
/* The latest snapshot of all slots of this node; order 0: none. */
void tdm__undo_snapshot_load(const tdm__undo_log *undo_log, tdm__undo_snapshot *out);
/* Called by the first rank of a node when all ranks of the epoch have entered it: from now on only they may write.
 * Kills processes in a section that are not in `processes`, the ranks of the epoch on this node. */
tdm_status tdm__undo_fence(tdm__undo_log *undo_log, const int64_t *processes, int count,
                           tdm_error *err);
/* A point where a test may kill this process, identified by its slot. `step` is the current step. */
void tdm__undo_test_point(const tdm__undo_log *undo_log, const char *phase, uint64_t step,
                          uint64_t part);
/* Registers this process in its slot, so that it can be found and killed if it is stopped during the recovery. Data
 * of the slot's previous process is kept. Call before a fence. */
tdm_status tdm__undo_slot_register(tdm__undo_log *undo_log, tdm_error *err);
/* Takes over the slot; data of its previous process is discarded. */
void tdm__undo_slot_claim(tdm__undo_log *undo_log);

#endif
