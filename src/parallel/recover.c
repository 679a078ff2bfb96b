/*
 * recover.c: continues from the state that an earlier epoch left in the shared memory of the nodes.
 *
 * First the nodes compare how far they are. If a rank of any node had begun the update of a step, all
 * ranks had the sums for it (undo_log.h), so each node completes that update: inconsistent pieces are rolled back
 * from their undo records, and the missing updates are done by the first rank of the node, with the sums
 * in shared memory. If no rank had begun, nothing was changed.
 *
 * Then every node gets the pieces it lacks. A node holds the pieces whose marks show that the last update
 * reached them here. If the state is sharded over nodes, ownership changes with the number of ranks, so
 * pieces are sent from a node that holds them to those that need them now (recover_reshard.c). If no node holds
 * a piece any more, the state is lost, and the caller continues from a checkpoint.
 *
 * A node that was disconnected while the others continued has an old state, which may be further than theirs if they
 * had to go back. It must not be used: the epoch of a state (its lineage) shows which states are valid.
 *
 * Numbers here: `steps` counts finished steps; a mark is steps + 1, so that 0 means no mark.
 */
#include "parallel/recover.h"
#include "base/base.h"
#include "comm/comm.h"
#include "os/os.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- the state of a node --------------------------------------------------------------------- */

/* The record of the update that completed step number `steps`; NULL: this node has none. */
static const tdm__begun *record_find(const tdm__undo_log *j, uint64_t steps)
{
    for (int i = 0; i < TDM__UNDO_MAX_SLOTS; i++) {
        const tdm__undo_slot *slot = &j->undo_header->slots[i];
        if (atomic_load(&slot->process) != 0 && atomic_load(&slot->began) == steps && steps > 0)
            return &slot->begun;
    }
    return NULL;
}

/* The record of an update after `steps` steps that was begun; NULL: this node has none. */
static const tdm__begun *record_find_next(const tdm__undo_log *j, uint64_t steps)
{
    for (int i = 0; i < TDM__UNDO_MAX_SLOTS; i++) {
        const tdm__undo_slot *slot = &j->undo_header->slots[i];
        if (atomic_load(&slot->process) != 0 && atomic_load(&slot->began) > steps)
            return &slot->begun;
    }
    return NULL;
}

static void standing_read(const tdm_params *store, tdm__standing *out)
{
    const tdm__undo_log *j = store->undo_log;
    uint64_t state = atomic_load(&j->undo_header->state);
    tdm__undo_snapshot snapshot;
    tdm__undo_snapshot_load(j, &snapshot);
    *out = (tdm__standing){.snapshot_order = snapshot.order,
                           .process = (int64_t)getpid(),
                           .lineage = atomic_load(&j->undo_header->lineage)};
    if (state == 0) return;
    out->has_state = 1;
    out->steps = state - 1;
    out->changed = atomic_load(&j->undo_header->last_update);
    /* last_update is stored before state; the process may have died in between. */
    if (out->changed > out->steps) out->steps = out->changed;
    out->from = out->steps;
    const tdm__begun *next = record_find_next(j, out->steps);
    if (next) {
        out->steps = next->step + 1;
        out->changed = out->steps;
    }
    out->has_record = record_find(j, out->changed) != NULL;
}

static tdm_status standing_gather(const tdm_params *store, void *all, size_t bytes, tdm_error *err)
{
    const tdm__layout *l = store->layout;
    if (!l->world) return TDM_OK;
    return tdm_group_all_gather(l->world, NULL, all, (size_t)l->size * bytes, TDM_DTYPE_U8, err);
}

static tdm_status world_broadcast(const tdm_params *store, void *data, size_t bytes, int place,
                                  tdm_error *err)
{
    if (!store->layout->world) return TDM_OK;
    return tdm_group_broadcast(store->layout->world, data, bytes, TDM_DTYPE_U8, place, err);
}

static tdm_status epoch_fence(const tdm_params *store, const tdm__standing *all, tdm_error *err)
{
    const tdm__layout *l = store->layout;
    int first = l->first_of_node[l->node], count = l->first_of_node[l->node + 1] - first;
    if (!store->leads) return TDM_OK;
    int64_t *processes = calloc((size_t)count, sizeof(*processes));
    if (!processes) return tdm_fail_oom(err, "for a recovery");
    for (int i = 0; i < count; i++) processes[i] = all[first + i].process;
    tdm_status status = tdm__undo_fence(store->undo_log, processes, count, err);
    free(processes);
    return status;
}

/* ---- completing an update -------------------------------------------------------------------- */

typedef struct finisher {
    tdm_params *store;
    tdm__undo_log *undo_log;
    const tdm__begun *begun;
    float *placed[TDM__UNDO_MAX_SLOTS]; /* sums of each slot, for TDM__SUMS_PLACED; NULL: none */
    tdm__tree tree;                     /* for TDM__SUMS_TREE */
    float *home;
    float *scratch;
    int done;
} finisher;

/* The sum of `count` elements that a slot had to update; NULL: no lane had rows. */
static float *finisher_sum(const finisher *f, uint32_t slot, size_t begin, size_t count, bool stays)
{
    if (f->begun->kind == TDM__SUMS_PLACED)
        return slot < TDM__UNDO_MAX_SLOTS && f->placed[slot] ? f->placed[slot] + begin : NULL;
    if (f->tree.held[1]) return f->tree.held[1] + begin;
    if (!tdm__tree_sum(&f->tree, 1, begin, count, f->scratch, f->scratch + TDM__CELL)) return NULL;
    if (!stays) return f->scratch;
    return memcpy(f->home + begin, f->scratch, count * sizeof(float));
}

static bool finisher_is_due(const finisher *f, const tdm__mark *mark, uint64_t reached)
{
    return atomic_load(&mark->epoch) == f->begun->epoch && reached != f->begun->step + 2;
}

static void finisher_do_statistic(void *user, const tdm_param_info *p, size_t index, size_t begin,
                                  size_t count)
{
    finisher *f = user;
    const tdm__mark *mark = &f->undo_log->cells[index];
    if (!finisher_is_due(f, mark, atomic_load(&mark->updated))) return;
    f->done++;
    if (f->undo_log->is_derived) {
        tdm__undo_record_commit(f->undo_log, tdm_kernel_thread(), TDM__UNDO_STATISTIC, index,
                                f->begun->step);
        return;
    }
    const float *observed = finisher_sum(f, atomic_load(&mark->slot), begin, count, false);
    tdm__follow(f->undo_log, f->store->blocks[TDM_BLOCK_PARAMS].data + begin, observed, p, index,
                begin, count, f->begun->step);
}

static tdm_status finisher_do_updates(finisher *f, tdm_error *err)
{
    tdm_optimiser *optimiser = f->store->optimiser;
    bool measured = tdm_optimiser_must_measure(optimiser);
    bool applies = tdm_optimiser_must_apply(optimiser);
    for (size_t i = 0; i < f->undo_log->piece_count; i++) {
        const tdm__mark *mark = &f->undo_log->marks[i];
        if (!finisher_is_due(f, mark, atomic_load(&mark->updated))) continue;
        if (f->undo_log->is_derived) {
            tdm__undo_record_commit(f->undo_log, tdm_kernel_thread(), TDM__UNDO_UPDATE, i,
                                    f->begun->step);
            f->done++;
            continue;
        }
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(optimiser, i);
        bool placed = f->begun->kind == TDM__SUMS_PLACED;
        float *grad = measured && !placed ? f->home + piece->begin
                                          : finisher_sum(f, atomic_load(&mark->slot), piece->begin,
                                                         piece->count, applies);
        if (!grad)
            return tdm_fail(err, TDM_ERR_INTERNAL,
                            "the gradient sums of step %llu are not in this host's memory",
                            (unsigned long long)f->begun->step + 1);
        tdm__update_piece(f->undo_log, optimiser, i, f->begun->step, grad, f->begun->grad_norm,
                          NULL);
        f->done++;
    }
    return TDM_OK;
}

/* ---- updates in order ------------------------------------------------------------------------- */

/* An update of a step that has several (update_order.c). */
typedef struct ordered {
    finisher *f;
    const tdm__begun_update *update;
    uint64_t step;
    const float *grads;
} ordered;

static bool ordered_is_due(const ordered *o, const tdm__mark *mark)
{
    return atomic_load(&mark->epoch) == o->f->begun->epoch &&
           atomic_load(&mark->updated) < o->step + 2;
}

static void ordered_do_statistic(void *user, const tdm_param_info *p, size_t index, size_t begin,
                                 size_t count)
{
    const ordered *o = user;
    if (!ordered_is_due(o, &o->f->undo_log->cells[index])) return;
    tdm__follow(o->f->undo_log, o->f->store->blocks[TDM_BLOCK_PARAMS].data + begin,
                o->grads + begin, p, index, begin, count, o->step);
    o->f->done++;
}

/* Copies a piece for the replicas that read the model after this update, if it has seen no later one: then its copy was
 * made by the process that updated it. */
static void ordered_copy_piece(const ordered *o, const tdm_optim_piece *piece)
{
    const tdm__replicas *replicas = o->f->store->replicas;
    const float *model = o->f->store->blocks[TDM_BLOCK_PARAMS].data;
    for (int64_t r = 0; r < replicas->count; r++)
        if (o->update->entry.readers >> r & 1)
            memcpy(tdm__replica_array(replicas, r, 1 - replicas->current[r], 0) + piece->begin,
                   model + piece->begin, piece->count * sizeof(float));
}

static tdm_status ordered_run(const ordered *o, double compensation, tdm_error *err)
{
    finisher *f = o->f;
    tdm__undo_log *undo_log = f->undo_log;
    tdm_optimiser *optimiser = f->store->optimiser;
    const tdm__replicas *replicas = f->store->replicas;
    int64_t worker = o->update->entry.worker;
    tdm__delay delay = {(float)compensation,
                        tdm__replica_array(replicas, worker, replicas->current[worker], 0)};
    tdm_optimiser_begin(optimiser, o->step, o->update->lr);
    for (size_t i = 0; i < undo_log->piece_count; i++) {
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(optimiser, i);
        if (ordered_is_due(o, &undo_log->marks[i])) {
            if (!o->grads)
                return tdm_fail(err, TDM_ERR_INTERNAL,
                                "the gradient of step %llu is not in this host's memory",
                                (unsigned long long)o->step + 1);
            tdm__update_piece(undo_log, optimiser, i, o->step,
                              (float *)(uintptr_t)o->grads + piece->begin, o->update->grad_norm,
                              compensation > 0 ? &delay : NULL);
            f->done++;
        }
        if (atomic_load(&undo_log->marks[i].updated) == o->step + 2) ordered_copy_piece(o, piece);
    }
    tdm__statistic_visit(f->store->graph, (tdm__cells){0, f->store->layout->trained_cells},
                         ordered_do_statistic, (void *)(uintptr_t)o);
    return TDM_OK;
}

/* Makes the missing updates of all pieces, and completes the versions of the replicas. */
static tdm_status finisher_do_ordered(finisher *f, tdm_error *err)
{
    tdm__replicas *replicas = f->store->replicas;
    const tdm__begun *begun = f->begun;
    uint64_t changed = 0;
    if (!replicas || !replicas->is_ordered || begun->update_count > TDM_ORDER_MAX_WORKERS)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "the record of the last step in this host's shared memory is damaged");
    tdm__replicas_attach(replicas, begun->first + 1);
    for (uint32_t i = 0; i < begun->update_count; i++) {
        const tdm__begun_update *update = &begun->updates[i];
        if (update->entry.worker >= replicas->count)
            return tdm_fail(err, TDM_ERR_FORMAT,
                            "the record of the last step in this host's shared memory is damaged");
        ordered o = {.f = f,
                     .update = update,
                     .step = begun->first + i,
                     .grads = f->tree.held[replicas->count + update->entry.worker]};
        TDM_TRY(ordered_run(&o, begun->compensation, err));
        changed |= UINT64_C(1) << update->entry.worker | update->entry.readers;
    }
    for (int64_t r = 0; r < replicas->count; r++)
        if (changed >> r & 1) tdm__replica_write_end(replicas, r, begun->step);
    return TDM_OK;
}

/* ---- sums over all pieces ------------------------------------------------------------------------ */

/* Norms of whole parameters need the sums of all pieces, on whichever node they were updated. */
static tdm_status finisher_do_applies(finisher *f, bool here, tdm_error *err)
{
    const tdm_params *store = f->store;
    tdm_optimiser *optimiser = store->optimiser;
    size_t count = f->undo_log->piece_count * TDM_OPTIM_SUMS;
    double *sums = tdm_optimiser_piece_sums(optimiser);
    bool shared = store->layout->node_count > 1 && !store->layout->common;
    memset(sums, 0, count * sizeof(*sums));
    for (size_t i = 0; i < f->undo_log->piece_count && here && (store->leads || !shared); i++)
        if (atomic_load(&f->undo_log->marks[i].epoch) == f->begun->epoch)
            memcpy(sums + i * TDM_OPTIM_SUMS, f->undo_log->marks[i].sums,
                   sizeof(f->undo_log->marks[i].sums));
    if (shared)
        TDM_TRY(tdm_group_all_reduce(store->layout->world, NULL, sums, count, TDM_DTYPE_F64,
                                     TDM_REDUCE_SUM, err));
    for (size_t i = 0; i < f->undo_log->piece_count && here && store->leads; i++) {
        const tdm__mark *mark = &f->undo_log->marks[i];
        if (!finisher_is_due(f, mark, atomic_load(&mark->applied))) continue;
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(optimiser, i);
        double of_param[TDM_OPTIM_SUMS];
        bool placed = f->begun->kind == TDM__SUMS_PLACED;
        float *grad = placed ? finisher_sum(f, atomic_load(&mark->slot), piece->begin, piece->count,
                                            true)
                             : f->home + piece->begin;
        tdm_optimiser_sums(optimiser, piece->param_index, of_param);
        tdm__apply_piece(f->undo_log, optimiser, i, f->begun->step, grad, of_param);
        f->done++;
    }
    return TDM_OK;
}

/* Maps the sums of all slots: the gradient of an inconsistent piece must be mapped to roll it back. */
static tdm_status finisher_map_placed(finisher *f, tdm_error *err)
{
    for (int slot = 0; slot < TDM__UNDO_MAX_SLOTS; slot++)
        TDM_TRY(tdm__region_find(f->undo_log->memory, "sums", slot, NULL, &f->placed[slot], err));
    return TDM_OK;
}

static tdm_status finisher_find_sums(finisher *f, int64_t lane_count, tdm_error *err)
{
    size_t levels = 2;
    while ((INT64_C(1) << levels) < lane_count) levels++;
    f->tree = (tdm__tree){lane_count, calloc(2 * (size_t)lane_count, sizeof(float *))};
    f->scratch = aligned_alloc(64, (levels + 2) * TDM__CELL * sizeof(float));
    if (!f->tree.held || !f->scratch) return tdm_fail_oom(err, "for a recovery");
    if (f->begun->kind == TDM__SUMS_PLACED) return finisher_map_placed(f, err);
    TDM_TRY(tdm__common_parts_load(f->undo_log, &f->tree, f->begun, err));
    for (int64_t n = 1; n < 2 * lane_count && !f->home; n++) f->home = f->tree.held[n];
    return TDM_OK;
}

/* By the first rank of a node that took part in that step. */
static tdm_status finisher_run(finisher *f, int64_t lane_count, tdm_error *err)
{
    TDM_TRY(finisher_find_sums(f, lane_count, err));
    TDM_TRY(tdm__undo_write_begin(f->undo_log, err)); /* rollback writes as well */
    tdm_status status = TDM_OK;
    for (int i = 0; i < TDM__UNDO_MAX_SLOTS && status == TDM_OK; i++)
        if (atomic_load(&f->undo_log->undo_header->slots[i].process) != 0)
            status = tdm__undo_rollback(f->undo_log, i, err);
    if (status == TDM_OK && f->begun->update_count > 0) {
        status = finisher_do_ordered(f, err);
    } else if (status == TDM_OK) {
        tdm__cells all = {0, f->store->layout->trained_cells};
        tdm__statistic_visit(f->store->graph, all, finisher_do_statistic, f);
        status = finisher_do_updates(f, err);
    }
    tdm__undo_write_end(f->undo_log);
    return status;
}

static tdm_status update_complete(tdm_params *store, const tdm__begun *begun, bool here,
                                  int64_t lane_count, int *done, tdm_error *err)
{
    finisher f = {.store = store, .undo_log = store->undo_log, .begun = begun};
    tdm_kernel_mode before = tdm_kernel_enter(1); /* rounding as in training */
    tdm_optimiser_begin(store->optimiser, begun->step, begun->lr);
    tdm_status status = here && store->leads ? finisher_run(&f, lane_count, err) : TDM_OK;
    status = tdm_comm_agree(store->layout->comm, status, NULL, err);
    if (status == TDM_OK && tdm_optimiser_must_apply(store->optimiser)) {
        status = store->leads ? tdm__undo_write_begin(store->undo_log, err) : TDM_OK;
        if (status == TDM_OK) status = finisher_do_applies(&f, here, err);
        tdm__undo_write_end(store->undo_log);
        status = tdm_comm_agree(store->layout->comm, status, NULL, err);
    }
    tdm_kernel_leave(&before);
    *done = f.done;
    free(f.tree.held);
    free(f.scratch);
    return status;
}

/* ---- valid states ---------------------------------------------------------------------------- */

/* Invalidates the state of this node, so that it is not used later. Leaves the write section
 * open. */
static tdm_status state_invalidate(const tdm_params *store, tdm_error *err)
{
    tdm__undo_log *undo_log = store->undo_log;
    tdm__undo_header *undo_header = undo_log->undo_header;
    TDM_TRY(tdm__undo_write_begin(undo_log, err));
    /* First: a process that dies below must not leave a valid state. */
    atomic_store(&undo_header->state, 0);
    for (int i = 0; i < TDM__UNDO_MAX_SLOTS; i++) {
        atomic_store(&undo_header->slots[i].began, 0);
        undo_header->slots[i].snapshots[0].order = undo_header->slots[i].snapshots[1].order = 0;
    }
    tdm__undo_barrier();
    tdm__replicas_invalidate(store->replicas);
    return TDM_OK;
}

/* Removes states that are not of the lineage, unless there are no others. */
static tdm_status standing_drop_old(tdm_params *store, tdm__standing *all, uint32_t lineage,
                                    bool *is_old, tdm_error *err)
{
    const tdm__layout *l = store->layout;
    bool has_new = false, has_any = false, forgets = false;
    for (int i = 0; i < l->size; i++) {
        has_any = has_any || all[i].has_state;
        has_new = has_new || (all[i].has_state && all[i].lineage >= lineage);
    }
    *is_old = has_any && !has_new;
    for (int i = 0; i < l->size && has_new; i++) {
        if (all[i].lineage >= lineage) continue;
        forgets = forgets || i == l->place;
        all[i] = (tdm__standing){.process = all[i].process, .lineage = all[i].lineage};
    }
    tdm_status status = forgets && store->leads ? state_invalidate(store, err) : TDM_OK;
    if (forgets && store->leads) tdm__undo_write_end(store->undo_log);
    return tdm_comm_agree(store->layout->comm, status, NULL, err);
}

/* ---- the complete recovery ------------------------------------------------------------------- */

static void goal_choose(const tdm__layout *l, const tdm__standing *all, tdm__goal *goal)
{
    *goal = (tdm__goal){.record_place = -1, .snapshot_offset = 0};
    for (int i = 0; i < l->size; i++) {
        if (!all[i].has_state) continue;
        if (!goal->found || all[i].steps > goal->steps) {
            goal->steps = all[i].steps;
            goal->changed = all[i].changed;
            goal->from = all[i].from;
        }
        goal->found = true;
    }
    for (int i = 0; i < l->size; i++) {
        if (all[i].snapshot_order > all[goal->snapshot_offset].snapshot_order)
            goal->snapshot_offset = i;
        if (goal->record_place < 0 && goal->found && all[i].has_record &&
            all[i].changed == goal->changed)
            goal->record_place = i;
    }
}

bool tdm__goal_in_reach(const tdm__goal *goal, const tdm__standing *node)
{
    if (!goal->found || !node->has_state) return false;
    return node->steps == goal->steps ||
           (node->steps == goal->from && goal->changed == goal->steps);
}

static tdm_status snapshot_broadcast(tdm_params *store, const tdm__goal *goal, tdm_recovery *out,
                                     tdm_error *err)
{
    tdm__undo_snapshot snapshot = {0};
    if (store->layout->place == goal->snapshot_offset)
        tdm__undo_snapshot_load(store->undo_log, &snapshot);
    TDM_TRY(world_broadcast(store, &snapshot, sizeof(snapshot), goal->snapshot_offset, err));
    out->snapshot_order = snapshot.order;
    memcpy(out->snapshot, snapshot.data, sizeof(out->snapshot));
    return TDM_OK;
}

static tdm_status goal_reach(tdm_params *store, const tdm__standing *all, const tdm__goal *goal,
                             int64_t lane_count, tdm_recovery *out, tdm_error *err)
{
    const tdm__layout *l = store->layout;
    bool here = tdm__goal_in_reach(goal, &all[l->place]);
    if (goal->record_place >= 0) {
        tdm__begun begun = {0};
        const tdm__begun *own = record_find(store->undo_log, goal->changed);
        if (l->place == goal->record_place && own) begun = *own;
        TDM_TRY(world_broadcast(store, &begun, sizeof(begun), goal->record_place, err));
        TDM_TRY(update_complete(store, &begun, here, lane_count, &out->recovered_pieces, err));
        out->finished = goal->changed == goal->steps;
        out->lr = begun.lr;
        out->result = (tdm_step_result){.loss = begun.loss,
                                        .grad_norm = begun.grad_norm,
                                        .finite = true,
                                        .divergence = begun.divergence,
                                        .requests = begun.requests,
                                        .tally = begun.tally,
                                        .straggler = -1};
        if (out->finished && begun.update_count <= TDM_ORDER_MAX_WORKERS) {
            out->update_count = begun.update_count;
            for (uint32_t i = 0; i < begun.update_count; i++)
                out->updates[i] = begun.updates[i].entry;
        }
    }

    TDM_TRY(tdm__recover_reshard(store, all, goal, &out->found, err));
    out->step = goal->steps;
    if (!out->found || !store->leads) return TDM_OK;
    TDM_TRY(tdm__undo_write_begin(store->undo_log, err));
    atomic_store(&store->undo_log->undo_header->last_update, goal->changed);
    atomic_store(&store->undo_log->undo_header->state, goal->steps + 1);
    atomic_store(&store->undo_log->undo_header->lineage, store->undo_log->epoch);
    tdm__undo_write_end(store->undo_log);
    return TDM_OK;
}

static tdm_status params_recover(tdm_params *store, tdm__standing *all, int64_t lane_count,
                                 uint32_t lineage, tdm_recovery *out, tdm_error *err)
{
    const tdm__layout *l = store->layout;
    tdm__goal goal;
    all[l->place].process = (int64_t)getpid();
    tdm__undo_test_point(store->undo_log, "recover", 0, 0);
    TDM_TRY(standing_gather(store, all, sizeof(*all), err));
    TDM_TRY(tdm_comm_agree(store->layout->comm, epoch_fence(store, all, err), NULL, err));
    standing_read(store, &all[l->place]); /* no process writes any more */
    TDM_TRY(standing_gather(store, all, sizeof(*all), err));

    TDM_TRY(standing_drop_old(store, all, lineage, &out->is_old, err));
    goal_choose(l, all, &goal);
    tdm__undo_test_point(store->undo_log, "recover", goal.steps, 1);
    if (goal.found) TDM_TRY(goal_reach(store, all, &goal, lane_count, out, err));
    tdm__undo_test_point(store->undo_log, "recover", goal.steps, 2);

    TDM_TRY(snapshot_broadcast(store, &goal, out, err));
    tdm__undo_slot_claim(store->undo_log);
    if (!out->found) return tdm_params_unset(store, err);
    return l->world ? tdm_group_barrier(l->world, err) : TDM_OK;
}

tdm_status tdm_params_recover(tdm_params *store, int64_t lane_count, uint32_t lineage,
                              tdm_recovery *out, tdm_error *err)
{
    *out = (tdm_recovery){.found = false};
    if (!store->memory.outlives) return TDM_OK;
    tdm__standing *all = calloc((size_t)store->layout->size, sizeof(*all));
    tdm_status status = all ? TDM_OK : tdm_fail_oom(err, "for a recovery");
    if (status == TDM_OK) status = tdm__undo_slot_register(store->undo_log, err);
    status = tdm_comm_agree(store->layout->comm, status, NULL, err);
    if (status == TDM_OK && all) status = params_recover(store, all, lane_count, lineage, out, err);
    free(all);
    return status;
}

/* ---- setting the state ----------------------------------------------------------------------- */

void tdm__numbers_clear(float *numbers, size_t count)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)numbers;
    uintptr_t end = begin + count * sizeof(float);
    uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
    if (first >= last || madvise((char *)numbers + (first - begin), last - first, MADV_REMOVE) != 0)
        first = last = end; /* clear all of it with memset */
    memset(numbers, 0, first - begin);
    memset((char *)numbers + (last - begin), 0, end - last);
}

static tdm_status params_unset(const tdm_params *store, tdm_error *err)
{
    tdm__undo_log *undo_log = store->undo_log;
    TDM_TRY(state_invalidate(store, err));
    for (int b = TDM_BLOCK_STATE; b < TDM__MAX_BLOCKS; b++)
        if (store->blocks[b].data) /* a new start expects zeros */
            tdm__numbers_clear(store->blocks[b].data, store->layout->elements);
    tdm__replicas_clear(store->replicas);
    tdm__undo_test_point(undo_log, "unset", 0, 0);
    tdm__undo_write_end(undo_log);
    return TDM_OK;
}

tdm_status tdm_params_unset(tdm_params *store, tdm_error *err)
{
    if (!store->memory.outlives) return TDM_OK;
    tdm__replicas_attach(store->replicas, 0);
    return tdm_comm_agree(store->layout->comm, store->leads ? params_unset(store, err) : TDM_OK,
                          NULL, err);
}

static tdm_status params_set(tdm_params *store, uint64_t step, tdm_error *err)
{
    TDM_TRY(tdm__undo_write_begin(store->undo_log, err));
    tdm__recover_mark_all(store, step);
    tdm__replicas_mark(store, step + 1);
    atomic_store(&store->undo_log->undo_header->last_update, step);
    atomic_store(&store->undo_log->undo_header->state, step + 1);
    atomic_store(&store->undo_log->undo_header->lineage, store->undo_log->epoch);
    tdm__undo_write_end(store->undo_log);
    return TDM_OK;
}

tdm_status tdm_params_set(tdm_params *store, uint64_t step, tdm_error *err)
{
    if (!store->memory.outlives) return TDM_OK;
    return tdm_comm_agree(store->layout->comm, store->leads ? params_set(store, step, err) : TDM_OK,
                          NULL, err);
}
