/*
 * desk.h: what a node's vault says about the state in it.
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

enum { TDM__SLOTS_MOST = 512, TDM__DESK_BLOCKS = 2 + TDM_OPTIM_MAX_STATES };

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
    uint32_t wishes;
    uint32_t reserved;
} tdm__begun;

typedef struct tdm__memo {
    uint64_t order; /* later ones are larger; 0: none */
    uint64_t bytes;
    unsigned char data[TDM_MEMO_BYTES];
} tdm__memo;

typedef struct tdm__slot {
    _Atomic uint32_t inside;    /* the epoch of the writing section it is in; 0: none */
    _Atomic uint32_t gathering; /* the same while parameters from other nodes are on their way */
    _Atomic int32_t process;    /* 0: nobody yet */
    _Atomic uint64_t started;   /* when that process did, which tells it from a later one */
    _Atomic uint64_t began;     /* `begun` holds: its step + 1; 0: none */
    tdm__begun begun;
    _Atomic uint32_t memo_turn; /* which of the two holds */
    tdm__memo memos[2];
} tdm__slot;

typedef struct tdm__mark {
    _Atomic uint64_t
        updated; /* of the last update of this piece here: step + 2; 0: it holds nothing */
    _Atomic uint64_t applied; /* the same of the pass after it, where there is one */
    _Atomic uint32_t epoch;   /* in which `slot` has to update it */
    _Atomic uint32_t slot;
    double sums[TDM_OPTIM_SUMS]; /* of the update */
} tdm__mark;

/* In the vault. */
typedef struct tdm__desk {
    _Atomic uint32_t epoch; /* that may write */
    _Atomic uint64_t state; /* the blocks are those after so many steps, + 1; 0: they are nothing */
    _Atomic uint64_t last_update; /* step + 1 of the last step that changed them */
    _Atomic uint32_t lineage;     /* the epoch that began with them here */
    tdm__slot slots[TDM__SLOTS_MOST];
} tdm__desk;

typedef enum tdm__journal_kind {
    TDM__JOURNAL_UPDATE = 1,
    TDM__JOURNAL_APPLY = 2,
    TDM__JOURNAL_STATISTIC = 3 /* index: see tdm__statistic_visit */
} tdm__journal_kind;

/* Of one thread of a slot, in the vault. */
typedef struct tdm__undo {
    _Atomic uint64_t active; /* 0: nothing is torn; else kind */
    uint64_t index, begin, count;
    uint64_t grad_place; /* in the vault; UINT64_MAX: not there */
    float grad[TDM_OPTIM_PIECE_ELEMENTS];
    float blocks[TDM__DESK_BLOCKS][TDM_OPTIM_PIECE_ELEMENTS];
} tdm__undo;

/* This process's hold on them. */
typedef struct tdm__journal {
    tdm_vault *vault;
    int slot;
    uint32_t epoch;
    int thread_count;
    bool tested; /* tests may kill this process at some point: see tdm_os_test_point */
    tdm__desk *desk;
    size_t piece_count, cell_count;
    tdm__mark *marks;                /* piece_count */
    tdm__mark *cells;                /* cell_count: the same for stretches of statistics */
    tdm__undo *undo;                 /* thread_count, of this slot */
    float *blocks[TDM__DESK_BLOCKS]; /* of the store; NULL: there is none */
} tdm__journal;

/* What is stored before this is stored before what is stored after it, as far as the compiler goes. That is
 * enough here: a process that is killed has done all up to some instruction and nothing behind it, and who
 * reads what it left has first heard from the system that it is gone. Needed where plain stores follow an
 * atomic one that they must not overtake; the other way round the atomic store itself sees to it. */
static inline void tdm__desk_in_order(void)
{
    atomic_signal_fence(memory_order_seq_cst);
}

/* Takes the regions; `blocks` are the caller's to fill in. */
tdm_status tdm__journal_open_desk(tdm__journal *journal, size_t piece_count, size_t cell_count,
                                  tdm_error *err);
/* The undo records of a slot; NULL: it never had any. An error is none of that: it may have. */
tdm_status tdm__journal_undo_of(const tdm__journal *journal, int slot, tdm__undo **out,
                                tdm_error *err);

/* A writing section. TDM_ERR_PEER_FENCED: another epoch counts. */
tdm_status tdm__journal_enter(tdm__journal *journal, tdm_error *err);
void tdm__journal_leave(tdm__journal *journal);
/* What others send may be written at any time from now on; no longer. TDM_ERR_PEER_FENCED from the first, and
 * nothing may be: another epoch counts. */
tdm_status tdm__journal_gather(tdm__journal *journal, tdm_error *err);
void tdm__journal_gathered(tdm__journal *journal);
/* This rank is about to update, with these numbers. Inside of a writing section. */
void tdm__journal_begin(tdm__journal *journal, const tdm__begun *begun);
/* Around the change of a piece, or of a stretch of a cell's statistics. `step` is the one in progress. */
void tdm__journal_open(tdm__journal *journal, int thread, tdm__journal_kind kind, size_t index,
                       size_t begin, size_t count, const float *grad);
void tdm__journal_close(tdm__journal *journal, int thread, tdm__journal_kind kind, size_t index,
                        uint64_t step);
/* Whether that was done in this step already. */
bool tdm__journal_is_done(const tdm__journal *journal, tdm__journal_kind kind, size_t index,
                          uint64_t step);
/* The step is over: the state is that after step + 1 steps. Inside of a writing section. */
void tdm__journal_finish(tdm__journal *journal, uint64_t step, bool changed);
/* Makes whole what a slot's process left torn. Inside of a writing section. */
tdm_status tdm__journal_mend(tdm__journal *journal, int slot, uint64_t step, tdm_error *err);
/* Remembers, unless another epoch counts. */
void tdm__journal_remember(tdm__journal *journal, const void *memo, size_t bytes, uint64_t order);
/* The latest memo of all slots of this node; order 0: there is none. */
void tdm__journal_recall(const tdm__journal *journal, tdm__memo *out);
/* The first rank of a node, once all ranks of the epoch are in it: from now on only they may write. Kills
 * who is inside of a section and not one of these processes, which are the epoch's ranks here. */
tdm_status tdm__journal_fence(tdm__journal *journal, const int64_t *processes, int count,
                              tdm_error *err);
/* Here a test may kill this process, which counts as rank by its slot. `step` is the one in progress. */
void tdm__journal_point(const tdm__journal *journal, const char *phase, uint64_t step,
                        uint64_t part);
/* This process can be found by its slot from now on, so that it is killed, too, should it be stopped while it
 * mends; what its forerunner left there stays. Before a fence. */
tdm_status tdm__journal_arrive(tdm__journal *journal, tdm_error *err);
/* This process takes its slot; what its forerunner left there is forgotten. */
void tdm__journal_sit_down(tdm__journal *journal);

#endif
