/*
 * desk.c: the desk in a node's vault: marks, undo records, writing sections, memos. See desk.h.
 *
 * Everything here may be cut off by SIGKILL between any two instructions, by a process other than the one
 * that reads it later. Hence the order of stores: what a mark or a number speaks of is complete before it is
 * set, and nothing of it changes before the mark is gone. Each such order is in the code (an atomic store, or
 * tdm__desk_in_order), so none depends on what the compiler sees at a time.
 */
#include "parallel/desk.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KILL_S 5.0 /* for a process that was killed to be gone */

enum { NAP_NS = 200000 };

/* ---- regions --------------------------------------------------------------------------------- */

static size_t undo_bytes(const tdm__journal *j)
{
    return (size_t)j->thread_count * sizeof(tdm__undo);
}

static tdm_status take(tdm__journal *j, const char *name, size_t bytes, void *out, tdm_error *err)
{
    void *memory = NULL;
    TDM_TRY(tdm_vault_take(j->vault, name, bytes, NULL, &memory, err));
    memcpy(out, &memory, sizeof memory);
    return TDM_OK;
}

tdm_status tdm__journal_open_desk(tdm__journal *j, size_t piece_count, size_t cell_count,
                                  tdm_error *err)
{
    char name[TDM_VAULT_NAME_BYTES];
    if (j->slot < 0 || j->slot >= TDM__SLOTS_MOST)
        return tdm_fail(err, TDM_ERR_RANGE, "slot %d; a host has %d at most", j->slot,
                        TDM__SLOTS_MOST);
    j->piece_count = piece_count;
    j->cell_count = cell_count;
    j->tested = getenv("TANDEM_TEST_KILL") != NULL;
    snprintf(name, sizeof name, "undo-%d", j->slot);
    TDM_TRY(take(j, "desk", sizeof(tdm__desk), &j->desk, err));
    TDM_TRY(take(j, "marks", (piece_count + 1) * sizeof(tdm__mark), &j->marks, err));
    TDM_TRY(take(j, "cells", (cell_count + 1) * sizeof(*j->cells), &j->cells, err));
    return take(j, name, undo_bytes(j), &j->undo, err);
}

tdm_status tdm__journal_undo_of(const tdm__journal *j, int slot, tdm__undo **out, tdm_error *err)
{
    char name[TDM_VAULT_NAME_BYTES];
    void *memory;
    snprintf(name, sizeof name, "undo-%d", slot);
    size_t bytes;
    *out = NULL;
    tdm_status status = tdm_vault_find(j->vault, name, &bytes, &memory, err);
    if (status == TDM_ERR_NOT_FOUND) return TDM_OK;
    TDM_TRY(status);
    if (bytes == undo_bytes(j)) *out = memory;
    return TDM_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static tdm_status fail_fenced(const tdm__journal *j, tdm_error *err)
{
    return tdm_fail(
        err, TDM_ERR_PEER_FENCED,
        "this rank was replaced: the others have gone on from epoch %u to %u without it",
        (unsigned)j->epoch, (unsigned)atomic_load(&j->desk->epoch));
}

tdm_status tdm__journal_enter(tdm__journal *j, tdm_error *err)
{
    tdm__slot *slot = &j->desk->slots[j->slot];
    atomic_store(&slot->inside, j->epoch); /* first this, then the look: see desk.h */
    if (atomic_load(&j->desk->epoch) == j->epoch) return TDM_OK;
    atomic_store(&slot->inside, 0);
    return fail_fenced(j, err);
}

void tdm__journal_leave(tdm__journal *j)
{
    atomic_store(&j->desk->slots[j->slot].inside, 0);
}

tdm_status tdm__journal_gather(tdm__journal *j, tdm_error *err)
{
    atomic_store(&j->desk->slots[j->slot].gathering, j->epoch); /* then the look, as in enter */
    if (atomic_load(&j->desk->epoch) == j->epoch) return TDM_OK;
    tdm__journal_gathered(j);
    return fail_fenced(j, err);
}

void tdm__journal_gathered(tdm__journal *j)
{
    atomic_store(&j->desk->slots[j->slot].gathering, 0);
}

void tdm__journal_begin(tdm__journal *j, const tdm__begun *begun)
{
    tdm__slot *slot = &j->desk->slots[j->slot];
    atomic_store(&slot->began, 0);
    tdm__desk_in_order();
    slot->begun = *begun;
    slot->begun.epoch = j->epoch;
    atomic_store(&slot->began, begun->step + 1);
}

static _Atomic uint64_t *mark_of(const tdm__journal *j, tdm__journal_kind kind, size_t index)
{
    if (kind == TDM__JOURNAL_STATISTIC) return &j->cells[index].updated;
    return kind == TDM__JOURNAL_UPDATE ? &j->marks[index].updated : &j->marks[index].applied;
}

bool tdm__journal_is_done(const tdm__journal *j, tdm__journal_kind kind, size_t index,
                          uint64_t step)
{
    return atomic_load(mark_of(j, kind, index)) == step + 2;
}

void tdm__journal_open(tdm__journal *j, int thread, tdm__journal_kind kind, size_t index,
                       size_t begin, size_t count, const float *grad)
{
    tdm__undo *u = &j->undo[thread];
    size_t bytes = count * sizeof(float);
    u->index = index;
    u->begin = begin;
    u->count = count;
    u->grad_place = grad ? tdm_vault_place(j->vault, grad) : UINT64_MAX;
    if (u->grad_place != UINT64_MAX) memcpy(u->grad, grad, bytes);
    for (int b = 0; b < TDM__DESK_BLOCKS; b++) {
        if (!j->blocks[b] || (kind == TDM__JOURNAL_STATISTIC && b != TDM_BLOCK_PARAMS)) continue;
        memcpy(u->blocks[b], j->blocks[b] + begin, bytes);
    }
    atomic_store_explicit(&u->active, (uint64_t)kind, memory_order_release);
    tdm__desk_in_order(); /* only now may the piece change */
}

void tdm__journal_point(const tdm__journal *j, const char *phase, uint64_t step, uint64_t part)
{
    if (j->tested) tdm_os_test_point(&(tdm_test_point){phase, step + 1, j->slot, part});
}

void tdm__journal_close(tdm__journal *j, int thread, tdm__journal_kind kind, size_t index,
                        uint64_t step)
{
    tdm__undo *u = &j->undo[thread];
    tdm__journal_point(j, "torn", step, index);
    atomic_store_explicit(mark_of(j, kind, index), step + 2, memory_order_release);
    atomic_store_explicit(&u->active, 0, memory_order_release);
    tdm__desk_in_order(); /* only now may the record be used again */
    tdm__journal_point(j, "update", step, index);
}

void tdm__journal_finish(tdm__journal *j, uint64_t step, bool changed)
{
    if (changed) atomic_store(&j->desk->last_update, step + 1);
    atomic_store(&j->desk->state, step + 2);
}

static void mend(tdm__journal *j, tdm__undo *u, uint64_t step)
{
    tdm__journal_kind kind = (tdm__journal_kind)atomic_load(&u->active);
    size_t most = kind == TDM__JOURNAL_STATISTIC ? j->cell_count : j->piece_count;
    bool known = kind >= TDM__JOURNAL_UPDATE && kind <= TDM__JOURNAL_STATISTIC;
    if (known && u->index < most && u->count <= TDM_OPTIM_PIECE_ELEMENTS &&
        !tdm__journal_is_done(j, kind, u->index, step)) {
        size_t bytes = u->count * sizeof(float);
        float *grad = u->grad_place != UINT64_MAX ? tdm_vault_at(j->vault, u->grad_place) : NULL;
        if (grad) memcpy(grad, u->grad, bytes);
        for (int b = 0; b < TDM__DESK_BLOCKS; b++) {
            if (!j->blocks[b] || (kind == TDM__JOURNAL_STATISTIC && b != TDM_BLOCK_PARAMS))
                continue;
            memcpy(j->blocks[b] + u->begin, u->blocks[b], bytes);
        }
        tdm__journal_point(j, "mend", step, u->index);
    }
    atomic_store(&u->active, 0);
}

tdm_status tdm__journal_mend(tdm__journal *j, int slot, uint64_t step, tdm_error *err)
{
    tdm__undo *undo;
    TDM_TRY(tdm__journal_undo_of(j, slot, &undo, err));
    for (int t = 0; undo && t < j->thread_count; t++)
        if (atomic_load(&undo[t].active)) mend(j, &undo[t], step);
    return TDM_OK;
}

/* ---- memos ----------------------------------------------------------------------------------- */

void tdm__journal_remember(tdm__journal *j, const void *memo, size_t bytes, uint64_t order)
{
    tdm__slot *slot = &j->desk->slots[j->slot];
    if (tdm__journal_enter(j, NULL) != TDM_OK)
        return; /* others have gone on: it is not their past */
    uint32_t turn = 1 - (atomic_load(&slot->memo_turn) & 1);
    tdm__memo *m = &slot->memos[turn];
    if (bytes > sizeof m->data) bytes = sizeof m->data;
    memcpy(m->data, memo, bytes);
    m->bytes = bytes;
    m->order = order;
    atomic_store(&slot->memo_turn, turn);
    tdm__journal_leave(j);
}

void tdm__journal_recall(const tdm__journal *j, tdm__memo *out)
{
    out->order = 0;
    for (int i = 0; i < TDM__SLOTS_MOST; i++) {
        const tdm__slot *slot = &j->desk->slots[i];
        if (atomic_load(&slot->process) == 0) continue;
        const tdm__memo *m = &slot->memos[atomic_load(&slot->memo_turn) & 1];
        if (m->order > out->order && m->bytes <= sizeof m->data) *out = *m;
    }
}

/* ---- fencing --------------------------------------------------------------------------------- */

/* When a process started; 0: there is none, or it is dead and only not yet buried. */
static uint64_t start_of(int process)
{
    tdm_process_info info;
    return tdm_os_process(process, &info) && !info.is_dead ? info.started : 0;
}

void tdm__journal_sit_down(tdm__journal *j)
{
    tdm__slot *slot = &j->desk->slots[j->slot];
    int process = (int)getpid();
    atomic_store(&slot->inside, 0);
    atomic_store(&slot->gathering, 0);
    atomic_store(&slot->began, 0);
    atomic_store(&slot->started, start_of(process));
    atomic_store(&slot->process, process);
}

static bool is_one_of(const int64_t *processes, int count, int process)
{
    for (int i = 0; i < count; i++)
        if (processes[i] == process) return true;
    return false;
}

static tdm_status turn_out(tdm__slot *slot, int index, tdm_error *err)
{
    int process = atomic_load(&slot->process);
    double until_s = tdm_clock_s() + KILL_S;
    bool same = process > 0 && start_of(process) == atomic_load(&slot->started) &&
                start_of(process) != 0;
    if (same)
        tdm_log(TDM_LOG_WARN, "parallel",
                "slot %d: process %d stopped while it was writing: it is killed, and what it "
                "left is mended",
                index, process);
    while (same && process > 0 && start_of(process) == atomic_load(&slot->started)) {
        if (kill(process, SIGKILL) != 0 && errno != ESRCH)
            return tdm_fail(
                err, TDM_ERR_SYSTEM,
                "process %d of an earlier epoch cannot be kept from this host's memory: %s",
                process, strerror(errno));
        if (tdm_clock_s() > until_s)
            return tdm_fail(err, TDM_ERR_SYSTEM,
                            "process %d of an earlier epoch was killed, and is still there",
                            process);
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    atomic_store(&slot->inside, 0);
    atomic_store(&slot->gathering, 0);
    return TDM_OK;
}

tdm_status tdm__journal_arrive(tdm__journal *j, tdm_error *err)
{
    tdm__slot *slot = &j->desk->slots[j->slot];
    int process = (int)getpid();
    uint64_t started = start_of(process);
    if (atomic_load(&slot->process) == process && atomic_load(&slot->started) == started)
        return TDM_OK;
    if (atomic_load(&slot->inside) != 0 || atomic_load(&slot->gathering) != 0)
        TDM_TRY(turn_out(slot, j->slot, err));
    atomic_store(&slot->started, started);
    atomic_store(&slot->process, process);
    return TDM_OK;
}

tdm_status tdm__journal_fence(tdm__journal *j, const int64_t *processes, int count, tdm_error *err)
{
    uint32_t epoch = atomic_load(&j->desk->epoch);
    while (epoch < j->epoch && !atomic_compare_exchange_weak(&j->desk->epoch, &epoch, j->epoch)) {
    }
    if (epoch > j->epoch) return fail_fenced(j, err);
    for (int i = 0; i < TDM__SLOTS_MOST; i++) {
        tdm__slot *slot = &j->desk->slots[i];
        if (atomic_load(&slot->inside) == 0 && atomic_load(&slot->gathering) == 0) continue;
        /* Ranks of this epoch are here, and so in no section of another. */
        if (!is_one_of(processes, count, atomic_load(&slot->process)))
            TDM_TRY(turn_out(slot, i, err));
    }
    return TDM_OK;
}
