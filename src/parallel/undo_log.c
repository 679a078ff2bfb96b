/*
 * undo_log.c: marks, undo records, write sections and snapshots in shared memory. See undo_log.h.
 *
 * SIGKILL may end a process between any two instructions here, and another process reads its memory
 * later. Hence the order of stores: the data that a mark or a number describes is complete before it is
 * set, and does not change before the mark is cleared. Each such order is explicit in the code (an atomic store, or
 * tdm__undo_barrier), so none depends on the optimisations of the compiler.
 */
#include "parallel/undo_log.h"
#include "base/base.h"
#include "base/timing.h"
#include "os/os.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- regions --------------------------------------------------------------------------------- */

static size_t undo_bytes(const tdm__undo_log *j)
{
    return (size_t)j->thread_count * sizeof(tdm__undo_record);
}

tdm_status tdm__undo_log_open(tdm__undo_log *j, size_t piece_count, size_t cell_count,
                              tdm_error *err)
{
    const tdm__node_memory *m = j->memory;
    if (j->slot < 0 || j->slot >= TDM__UNDO_MAX_SLOTS)
        return tdm_fail(err, TDM_ERR_RANGE, "slot %d is out of range; a host has at most %d",
                        j->slot, TDM__UNDO_MAX_SLOTS);
    j->piece_count = piece_count;
    j->cell_count = cell_count;
    j->tested = tdm_os_test_has_points();
    TDM_TRY(tdm__region_take(m, "undo-header", -1, sizeof(tdm__undo_header), TDM__REGION_SPARSE,
                             &j->undo_header, err));
    TDM_TRY(tdm__region_take(m, "piece-marks", -1, (piece_count + 1) * sizeof(tdm__mark),
                             TDM__REGION_FULL, &j->marks, err));
    TDM_TRY(tdm__region_take(m, "statistic-marks", -1, (cell_count + 1) * sizeof(tdm__mark),
                             TDM__REGION_FULL, &j->cells, err));
    if (m->outlives)
        return tdm__region_take(m, "undo-records", j->slot, undo_bytes(j), TDM__REGION_SPARSE,
                                &j->undo, err);
    atomic_store(&j->undo_header->epoch, j->epoch);
    tdm__undo_slot_claim(j);
    return TDM_OK;
}

void tdm__undo_log_release(tdm__undo_log *j)
{
    tdm__region_release(j->memory, j->undo_header);
    tdm__region_release(j->memory, j->marks);
    tdm__region_release(j->memory, j->cells);
    tdm__region_release(j->memory, j->undo);
}

tdm_status tdm__undo_records_of(const tdm__undo_log *j, int slot, tdm__undo_record **out,
                                tdm_error *err)
{
    tdm__undo_record *records = NULL;
    size_t bytes = 0;
    TDM_TRY(tdm__region_find(j->memory, "undo-records", slot, &bytes, &records, err));
    *out = bytes == undo_bytes(j) ? records : NULL;
    return TDM_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static tdm_status fail_fenced(const tdm__undo_log *j, tdm_error *err)
{
    return tdm_fail(
        err, TDM_ERR_PEER_FENCED,
        "this rank was fenced: the other ranks continued from epoch %u to %u without it",
        (unsigned)j->epoch, (unsigned)atomic_load(&j->undo_header->epoch));
}

tdm_status tdm__undo_write_begin(tdm__undo_log *j, tdm_error *err)
{
    if (!j) return TDM_OK;
    tdm__undo_slot *slot = &j->undo_header->slots[j->slot];
    atomic_store(&slot->inside, j->epoch); /* before the check: see undo_log.h */
    if (atomic_load(&j->undo_header->epoch) == j->epoch) return TDM_OK;
    atomic_store(&slot->inside, 0);
    return fail_fenced(j, err);
}

void tdm__undo_write_end(tdm__undo_log *j)
{
    if (j) atomic_store(&j->undo_header->slots[j->slot].inside, 0);
}

tdm_status tdm__undo_gather_begin(tdm__undo_log *j, tdm_error *err)
{
    atomic_store(&j->undo_header->slots[j->slot].gathering,
                 j->epoch); /* before the check, as above */
    if (atomic_load(&j->undo_header->epoch) == j->epoch) return TDM_OK;
    tdm__undo_gather_end(j);
    return fail_fenced(j, err);
}

void tdm__undo_gather_end(tdm__undo_log *j)
{
    atomic_store(&j->undo_header->slots[j->slot].gathering, 0);
}

void tdm__undo_step_begin(tdm__undo_log *j, const tdm__begun *begun)
{
    tdm__undo_slot *slot = &j->undo_header->slots[j->slot];
    atomic_store(&slot->began, 0);
    tdm__undo_barrier();
    slot->begun = *begun;
    slot->begun.epoch = j->epoch;
    atomic_store(&slot->began, begun->step + 1);
}

static _Atomic uint64_t *mark_of(const tdm__undo_log *j, tdm__undo_kind kind, size_t index)
{
    if (kind == TDM__UNDO_STATISTIC) return &j->cells[index].updated;
    return kind == TDM__UNDO_UPDATE ? &j->marks[index].updated : &j->marks[index].applied;
}

bool tdm__undo_is_done(const tdm__undo_log *j, tdm__undo_kind kind, size_t index, uint64_t step)
{
    return atomic_load(mark_of(j, kind, index)) == step + 2;
}

void tdm__undo_record_begin(tdm__undo_log *j, int thread, const tdm__undo_change *change)
{
    if (!j->undo) return;
    tdm__undo_record *u = &j->undo[thread];
    size_t bytes = change->count * sizeof(float);
    u->index = change->index;
    u->begin = change->begin;
    u->count = change->count;
    u->step = change->step;
    u->grad_place = change->grad ? tdm_shm_offset(j->memory->shm, change->grad) : UINT64_MAX;
    if (u->grad_place != UINT64_MAX) memcpy(u->grad, change->grad, bytes);
    for (int b = 0; b < TDM__UNDO_BLOCKS; b++) {
        if (!j->blocks[b] || (change->kind == TDM__UNDO_STATISTIC && b != TDM_BLOCK_PARAMS))
            continue;
        memcpy(u->blocks[b], j->blocks[b] + change->begin, bytes);
    }
    atomic_store_explicit(&u->active, (uint64_t)change->kind, memory_order_release);
    tdm__undo_barrier(); /* the piece may change only after this */
}

void tdm__undo_test_point(const tdm__undo_log *j, const char *phase, uint64_t step, uint64_t part)
{
    if (j->tested) tdm_os_test_point(&(tdm_test_point){phase, step + 1, j->slot, part});
}

void tdm__undo_record_commit(tdm__undo_log *j, int thread, tdm__undo_kind kind, size_t index,
                             uint64_t step)
{
    if (!j->undo) return;
    tdm__undo_record *u = &j->undo[thread];
    tdm__undo_test_point(j, "torn", step, index);
    atomic_store_explicit(mark_of(j, kind, index), step + 2, memory_order_release);
    atomic_store_explicit(&u->active, 0, memory_order_release);
    tdm__undo_barrier(); /* the record may be reused only after this */
    tdm__undo_test_point(j, "update", step, index);
}

void tdm__undo_step_finish(tdm__undo_log *j, uint64_t step, bool changed)
{
    if (changed) atomic_store(&j->undo_header->last_update, step + 1);
    atomic_store(&j->undo_header->state, step + 2);
}

static void record_rollback(tdm__undo_log *j, tdm__undo_record *u)
{
    tdm__undo_kind kind = (tdm__undo_kind)atomic_load(&u->active);
    size_t max = kind == TDM__UNDO_STATISTIC ? j->cell_count : j->piece_count;
    bool known = kind >= TDM__UNDO_UPDATE && kind <= TDM__UNDO_STATISTIC;
    if (known && u->index < max && u->count <= TDM_OPTIM_PIECE_ELEMENTS &&
        !tdm__undo_is_done(j, kind, u->index, u->step)) {
        size_t bytes = u->count * sizeof(float);
        float *grad = u->grad_place != UINT64_MAX ? tdm_shm_at(j->memory->shm, u->grad_place)
                                                  : NULL;
        if (grad) memcpy(grad, u->grad, bytes);
        for (int b = 0; b < TDM__UNDO_BLOCKS; b++) {
            if (!j->blocks[b] || (kind == TDM__UNDO_STATISTIC && b != TDM_BLOCK_PARAMS)) continue;
            memcpy(j->blocks[b] + u->begin, u->blocks[b], bytes);
        }
        tdm__undo_test_point(j, "mend", u->step, u->index);
    }
    atomic_store(&u->active, 0);
}

tdm_status tdm__undo_rollback(tdm__undo_log *j, int slot, tdm_error *err)
{
    tdm__undo_record *undo;
    TDM_TRY(tdm__undo_records_of(j, slot, &undo, err));
    for (int t = 0; undo && t < j->thread_count; t++)
        if (atomic_load(&undo[t].active)) record_rollback(j, &undo[t]);
    return TDM_OK;
}

/* ---- snapshots ------------------------------------------------------------------------------- */

void tdm__undo_snapshot_save(tdm__undo_log *j, const void *snapshot, size_t bytes, uint64_t order)
{
    tdm__undo_slot *slot = &j->undo_header->slots[j->slot];
    if (tdm__undo_write_begin(j, NULL) != TDM_OK)
        return; /* fenced: the snapshot is not part of the run any more */
    uint32_t turn = 1 - (atomic_load(&slot->snapshot_turn) & 1);
    tdm__undo_snapshot *m = &slot->snapshots[turn];
    if (bytes > sizeof(m->data)) bytes = sizeof(m->data);
    memcpy(m->data, snapshot, bytes);
    m->bytes = bytes;
    m->order = order;
    atomic_store(&slot->snapshot_turn, turn);
    tdm__undo_write_end(j);
}

void tdm__undo_snapshot_load(const tdm__undo_log *j, tdm__undo_snapshot *out)
{
    out->order = 0;
    for (int i = 0; i < TDM__UNDO_MAX_SLOTS; i++) {
        const tdm__undo_slot *slot = &j->undo_header->slots[i];
        if (atomic_load(&slot->process) == 0) continue;
        const tdm__undo_snapshot *m = &slot->snapshots[atomic_load(&slot->snapshot_turn) & 1];
        if (m->order > out->order && m->bytes <= sizeof(m->data)) *out = *m;
    }
}

/* ---- fencing --------------------------------------------------------------------------------- */

/* The start time of a process; 0: it does not exist or is a zombie. */
static uint64_t process_start_time(int process)
{
    tdm_process_info info;
    return tdm_os_process(process, &info) && !info.is_dead ? info.started : 0;
}

void tdm__undo_slot_claim(tdm__undo_log *j)
{
    tdm__undo_slot *slot = &j->undo_header->slots[j->slot];
    int process = (int)getpid();
    atomic_store(&slot->inside, 0);
    atomic_store(&slot->gathering, 0);
    atomic_store(&slot->began, 0);
    atomic_store(&slot->started, process_start_time(process));
    atomic_store(&slot->process, process);
}

static bool process_is_in(const int64_t *processes, int count, int process)
{
    for (int i = 0; i < count; i++)
        if (processes[i] == process) return true;
    return false;
}

static tdm_status evict_writer(tdm__undo_slot *slot, int index, tdm_error *err)
{
    int process = atomic_load(&slot->process);
    double until_s = tdm_clock_s() + TDM__TIMING_PARALLEL_EVICT_S;
    bool same = process > 0 && process_start_time(process) == atomic_load(&slot->started) &&
                process_start_time(process) != 0;
    if (same)
        tdm_log(TDM_LOG_WARN, "parallel",
                "slot %d: process %d stopped while it was writing; killing it and rolling "
                "back its changes",
                index, process);
    while (same && process > 0 && process_start_time(process) == atomic_load(&slot->started)) {
        if (kill(process, SIGKILL) != 0 && errno != ESRCH)
            return tdm_fail(
                err, TDM_ERR_SYSTEM,
                "process %d of an earlier epoch cannot be killed to protect this host's memory: %s",
                process, strerror(errno));
        if (tdm_clock_s() > until_s)
            return tdm_fail(err, TDM_ERR_SYSTEM,
                            "process %d of an earlier epoch was killed but has not ended", process);
        tdm_clock_sleep(TDM__TIMING_PARALLEL_EVICT_CHECK_S);
    }
    atomic_store(&slot->inside, 0);
    atomic_store(&slot->gathering, 0);
    return TDM_OK;
}

tdm_status tdm__undo_slot_register(tdm__undo_log *j, tdm_error *err)
{
    tdm__undo_slot *slot = &j->undo_header->slots[j->slot];
    int process = (int)getpid();
    uint64_t started = process_start_time(process);
    if (atomic_load(&slot->process) == process && atomic_load(&slot->started) == started)
        return TDM_OK;
    if (atomic_load(&slot->inside) != 0 || atomic_load(&slot->gathering) != 0)
        TDM_TRY(evict_writer(slot, j->slot, err));
    atomic_store(&slot->started, started);
    atomic_store(&slot->process, process);
    return TDM_OK;
}

tdm_status tdm__undo_fence(tdm__undo_log *j, const int64_t *processes, int count, tdm_error *err)
{
    uint32_t epoch = atomic_load(&j->undo_header->epoch);
    while (epoch < j->epoch &&
           !atomic_compare_exchange_weak(&j->undo_header->epoch, &epoch, j->epoch)) {
    }
    if (epoch > j->epoch) return fail_fenced(j, err);
    for (int i = 0; i < TDM__UNDO_MAX_SLOTS; i++) {
        tdm__undo_slot *slot = &j->undo_header->slots[i];
        if (atomic_load(&slot->inside) == 0 && atomic_load(&slot->gathering) == 0) continue;
        /* Ranks of this epoch are here, so they are not in a section of another epoch. */
        if (!process_is_in(processes, count, atomic_load(&slot->process)))
            TDM_TRY(evict_writer(slot, i, err));
    }
    return TDM_OK;
}
