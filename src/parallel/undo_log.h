/*
 * undo_log.h: what a node's vault says about the state in it.
 *
 * With a vault (os.h) the blocks of a store outlive the processes that update them. The desk, a region
 * beside them, says how far they are, so that whoever comes next can go on: after which step the state is;
 * for each piece of the optimiser, the step that updated it last and who had to; for each slot (a place for
 * a process on its host) whether it is writing now, which step's update it has begun and with which numbers,
 * and what it remembers of the run beside the blocks (a memo).
 *
 * A piece is updated under an undo record: its old numbers are saved, the record is made active, the piece
 * is changed and marked, the record is put down. Who dies in between leaves an active record, from which the
 * piece is made whole again.
 *
 * An update of step s begins only when every rank has all sums it needs in its vault (the meeting of the
 * step, and the exchange of norms where gradients are clipped). So, when any rank has begun, all nodes can
 * finish it, and otherwise none has changed anything.
 *
 * Fencing: the desk names the epoch that may write. A rank says that it is inside of a writing section, then
 * looks whether the epoch is still its own. The first rank of a node in a later epoch changes the epoch, then
 * looks who is inside, and kills who should not be: that one will not run again.
 */
#ifndef TANDEM_PARALLEL_DESK_H
#define TANDEM_PARALLEL_DESK_H

#include <tandem/optim.h>
#include <tandem/os.h>
#include <tandem/parallel.h>

#include <stdatomic.h>

enum { TDM__UNDO_MAX_SLOTS = 512, TDM__UNDO_BLOCKS = 2 + TDM_OPTIM_MAX_STATES };

/* How the sums of a step lie in the vault. */
typedef enum tdm__sums_kind {
    TDM__SUMS_TREE = 1,  /* in the gradient buffers of all slots, to be added as their cards say */
    TDM__SUMS_PLACED = 2 /* in the region of the slot that updates them */
} tdm__sums_kind;

/* With what an update was begun; the same on all ranks. */
typedef struct tdm__begun {
    uint64_t step; /* from 0 */
    uint32_t epoch;
    uint32_t kind; /* tdm__sums_kind */
    int64_t batch;
    double lr, grad_norm, loss;
    uint64_t tally;
    uint32_t requests;
    uint32_t reserved;
} tdm__begun;

typedef struct tdm__undo_snapshot {
    uint64_t order; /* later ones are larger; 0: none */
    uint64_t bytes;
    unsigned char data[TDM_SNAPSHOT_BYTES];
} tdm__undo_snapshot;

typedef struct tdm__undo_slot {
    _Atomic uint32_t inside;    /* the epoch of the writing section it is in; 0: none */
    _Atomic uint32_t gathering; /* the same while parameters from other nodes are on their way */
    _Atomic int32_t process;    /* 0: nobody yet */
    _Atomic uint64_t started;   /* when that process did, which tells it from a later one */
    _Atomic uint64_t began;     /* `begun` holds: its step + 1; 0: none */
    tdm__begun begun;
    _Atomic uint32_t snapshot_turn; /* which of the two holds */
    tdm__undo_snapshot snapshots[2];
} tdm__undo_slot;

typedef struct tdm__mark {
    _Atomic uint64_t
        updated; /* of the last update of this piece here: step + 2; 0: it holds nothing */
    _Atomic uint64_t applied; /* the same of the pass after it, where there is one */
    _Atomic uint32_t epoch;   /* in which `slot` has to update it */
    _Atomic uint32_t slot;
    double sums[TDM_OPTIM_SUMS]; /* of the update */
} tdm__mark;

/* In the vault. */
typedef struct tdm__undo_header {
    _Atomic uint32_t epoch; /* that may write */
    _Atomic uint64_t state; /* the blocks are those after so many steps, + 1; 0: they are nothing */
    _Atomic uint64_t last_update; /* step + 1 of the last step that changed them */
    _Atomic uint32_t lineage;     /* the epoch that began with them here */
    tdm__undo_slot slots[TDM__UNDO_MAX_SLOTS];
} tdm__undo_header;

typedef enum tdm__undo_kind {
    TDM__UNDO_UPDATE = 1,
    TDM__UNDO_APPLY = 2,
    TDM__UNDO_STATISTIC = 3 /* index: see tdm__statistic_visit */
} tdm__undo_kind;

/* Of one thread of a slot, in the vault. */
typedef struct tdm__undo_record {
    _Atomic uint64_t active; /* 0: nothing is torn; else kind */
    uint64_t index, begin, count;
    uint64_t grad_place; /* in the vault; UINT64_MAX: not there */
    float grad[TDM_OPTIM_PIECE_ELEMENTS];
    float blocks[TDM__UNDO_BLOCKS][TDM_OPTIM_PIECE_ELEMENTS];
} tdm__undo_record;

/* This process's hold on them. */
typedef struct tdm__undo_log {
    tdm_shm *shm;
    int slot;
    uint32_t epoch;
    int thread_count;
    bool tested; /* tests may kill this process at some point: see tdm_os_test_point */
    tdm__undo_header *undo_header;
    size_t piece_count, cell_count;
    tdm__mark *marks;                /* piece_count */
    tdm__mark *cells;                /* cell_count: the same for stretches of statistics */
    tdm__undo_record *undo;          /* thread_count, of this slot */
    float *blocks[TDM__UNDO_BLOCKS]; /* of the store; NULL: there is none */
} tdm__undo_log;

/* What is stored before this is stored before what is stored after it, as far as the compiler goes. That is
 * enough here: a process that is killed has done all up to some instruction and nothing behind it, and who
 * reads what it left has first heard from the system that it is gone. Needed where plain stores follow an
 * atomic one that they must not overtake; the other way round the atomic store itself sees to it. */
static inline void tdm__undo_barrier(void)
{
    atomic_signal_fence(memory_order_seq_cst);
}

/* Takes the regions; `blocks` are the caller's to fill in. */
tdm_status tdm__undo_log_open(tdm__undo_log *undo_log, size_t piece_count, size_t cell_count,
                              tdm_error *err);
/* The undo records of a slot; NULL: it never had any. An error is none of that: it may have. */
tdm_status tdm__undo_records_of(const tdm__undo_log *undo_log, int slot, tdm__undo_record **out,
                                tdm_error *err);

/* A writing section. TDM_ERR_PEER_FENCED: another epoch counts. */
tdm_status tdm__undo_write_begin(tdm__undo_log *undo_log, tdm_error *err);
void tdm__undo_write_end(tdm__undo_log *undo_log);
/* What others send may be written at any time from now on; no longer. TDM_ERR_PEER_FENCED from the first, and
 * nothing may be: another epoch counts. */
tdm_status tdm__undo_gather_begin(tdm__undo_log *undo_log, tdm_error *err);
void tdm__undo_gather_end(tdm__undo_log *undo_log);
/* This rank is about to update, with these numbers. Inside of a writing section. */
void tdm__undo_step_begin(tdm__undo_log *undo_log, const tdm__begun *begun);
/* Around the change of a piece, or of a stretch of a cell's statistics. `step` is the one in progress. */
void tdm__undo_record_begin(tdm__undo_log *undo_log, int thread, tdm__undo_kind kind, size_t index,
                            size_t begin, size_t count, const float *grad);
void tdm__undo_record_commit(tdm__undo_log *undo_log, int thread, tdm__undo_kind kind, size_t index,
                             uint64_t step);
/* Whether that was done in this step already. */
bool tdm__undo_is_done(const tdm__undo_log *undo_log, tdm__undo_kind kind, size_t index,
                       uint64_t step);
/* The step is over: the state is that after step + 1 steps. Inside of a writing section. */
void tdm__undo_step_finish(tdm__undo_log *undo_log, uint64_t step, bool changed);
/* Makes whole what a slot's process left torn. Inside of a writing section. */
tdm_status tdm__undo_rollback(tdm__undo_log *undo_log, int slot, uint64_t step, tdm_error *err);
/* Remembers, unless another epoch counts. */
void tdm__undo_snapshot_save(tdm__undo_log *undo_log, const void *memo, size_t bytes,
                             uint64_t order);
/* The latest memo of all slots of this node; order 0: there is none. */
void tdm__undo_snapshot_load(const tdm__undo_log *undo_log, tdm__undo_snapshot *out);
/* The first rank of a node, once all ranks of the epoch are in it: from now on only they may write. Kills
 * who is inside of a section and not one of these processes, which are the epoch's ranks here. */
tdm_status tdm__undo_fence(tdm__undo_log *undo_log, const int64_t *processes, int count,
                           tdm_error *err);
/* Here a test may kill this process, which counts as rank by its slot. `step` is the one in progress. */
void tdm__undo_test_point(const tdm__undo_log *undo_log, const char *phase, uint64_t step,
                          uint64_t part);
/* This process can be found by its slot from now on, so that it is killed, too, should it be stopped while it
 * mends; what its forerunner left there stays. Before a fence. */
tdm_status tdm__undo_slot_register(tdm__undo_log *undo_log, tdm_error *err);
/* This process takes its slot; what its forerunner left there is forgotten. */
void tdm__undo_slot_claim(tdm__undo_log *undo_log);

#endif
