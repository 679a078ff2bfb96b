/*
 * elastic_sim_world.c: the functions that the loop calls in a simulated schedule: barriers of
 * ranks, the memory of hosts, checkpoints; and the checks of the invariants.
 *
 * A step is like a real one. All ranks of the epoch wait at a barrier, each with its lanes. The
 * next state is a function of the previous one only. Then each rank updates its part of the memory
 * of its host; the host has the next state when all its ranks have done that. If an update of a
 * host had begun, the ranks of the next epoch complete it; otherwise the step is executed again.
 * Ranks of an epoch before the fence of a host change nothing there, and a rank in the middle of an
 * update is killed. Each rank notices separately that a barrier is complete, so any subset of the
 * ranks may have passed it at a fault.
 */
#include "elastic_sim.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define SILENCE_S 3.0 /* after this time, a rank that cannot be reached counts as lost */
#define STALL_S 8.0   /* the same for a rank that does not arrive at a barrier */
#define SAVE_EVERY 5

static uint64_t next_state(uint64_t state, int step)
{
    uint64_t z = state * UINT64_C(0xd1342543de82ef95) + (uint64_t)step + 1;
    return z ^ (z >> 29);
}

uint64_t sim_state_of(int step)
{
    uint64_t state = 1;
    for (int k = 0; k < step; k++) state = next_state(state, k);
    return state;
}

static host *host_of(const process *p)
{
    return &p->s->hosts[p->host];
}

static bool processes_are_cut(const process *p, const process *q)
{
    return p->side != q->side;
}

/* ---- barriers -------------------------------------------------------------------------------- */

static tdm_status fail_dead(tdm_error *err)
{
    return tdm_fail(err, TDM_ERR_IO, "this process is dead");
}

/* An error if rank `r`, which has not arrived, is lost; otherwise TDM_OK. */
static tdm_status rank_check_lost(process *p, int r, double waited_s, tdm_error *err)
{
    const process *q = &p->s->processes[p->world->processes[r]];
    if (processes_are_cut(p, q) && p->s->resets) {
        p->lost[r] = TDM_LOST_CLOSED;
        return tdm_fail(err, TDM_ERR_PEER_FAILED, "the connection with rank %d was reset", r);
    }
    if (processes_are_cut(p, q)) {
        if (waited_s < SILENCE_S) return TDM_OK;
        p->lost[r] = TDM_LOST_SILENT;
        return tdm_fail(err, TDM_ERR_PEER_FAILED, "rank %d is silent", r);
    }
    if (q->is_dead && p->s->now_s >= q->died_s) {
        p->lost[r] = TDM_LOST_CLOSED;
        return tdm_fail(err, TDM_ERR_PEER_FAILED, "rank %d has closed its connection", r);
    }
    if (p->world->left >> r & 1) return tdm_fail(err, TDM_ERR_PEER_LEFT, "rank %d has left", r);
    if (waited_s < STALL_S) return TDM_OK;
    p->lost[r] = TDM_LOST_SILENT;
    return tdm_fail(err, TDM_ERR_PEER_TIMEOUT, "rank %d has not arrived", r);
}

static tdm_status epoch_check(process *p, tdm_error *err)
{
    if (p->is_interrupted) return tdm_fail(err, TDM_ERR_PEER_FAILED, "interrupted");
    if (tdm_member_epoch_holds(p->member, p->world->number)) return TDM_OK;
    return tdm_fail(err, TDM_ERR_PEER_FAILED, "the epoch has ended");
}

/* Waits until all ranks have arrived. */
static tdm_status barrier_wait(process *p, const barrier *b, tdm_error *err)
{
    const world *w = p->world;
    double begun_s = p->s->now_s;
    for (;;) {
        if (p->is_dead) return fail_dead(err);
        bool is_complete = true;
        for (int r = 0; r < w->size; r++) {
            bool has_arrived = b->arrived >> r & 1;
            if (has_arrived && !processes_are_cut(p, &p->s->processes[w->processes[r]])) continue;
            is_complete = false;
            TDM_TRY(rank_check_lost(p, r, p->s->now_s - begun_s, err));
        }
        if (is_complete) return TDM_OK;
        TDM_TRY(epoch_check(p, err));
        sim_wait_for_world(p, 0.5);
    }
}

static tdm_status barrier_pass(process *p, barrier *b, tdm_error *err)
{
    b->arrived |= UINT64_C(1) << p->rank;
    sim_world_changed(p->s);
    return barrier_wait(p, b, err);
}

static barrier *barrier_next(process *p)
{
    if (p->barriers >= MAX_BARRIERS) {
        sim_fail(p->s, "an epoch has more barriers than a run");
        p->barriers = 0;
    }
    return &p->world->barriers[p->barriers++];
}

/* ---- enter ----------------------------------------------------------------------------------- */

static int process_find(const sim *s, const char *id)
{
    for (int i = 0; i < s->process_count; i++)
        if (strcmp(s->processes[i].id, id) == 0) return i;
    return -1;
}

/* The world of this epoch. All processes that enter it must have the same members. */
static world *world_of(process *p, const tdm_epoch *epoch)
{
    sim *s = p->s;
    world *w = NULL;
    for (int i = 0; i < s->world_count && !w; i++)
        if (s->worlds[i].number == epoch->number) w = &s->worlds[i];
    bool is_new = !w;
    if (is_new) {
        if (s->world_count == MAX_WORLDS) {
            sim_fail(s, "too many epochs");
            return NULL;
        }
        w = &s->worlds[s->world_count++];
        *w = (world){.number = epoch->number, .size = epoch->size};
    }
    if (epoch->size != w->size || epoch->size > s->max)
        sim_fail(s, "epoch %u has %d members and %d", epoch->number, w->size, epoch->size);
    for (int r = 0; r < epoch->size && r < w->size; r++) {
        int index = process_find(s, epoch->members[r].id);
        if (is_new) w->processes[r] = index;
        if (index < 0 || w->processes[r] != index)
            sim_fail(s, "epoch %u has different members for different ranks", epoch->number);
    }
    if (epoch->number > s->store.epoch) sim_fail(s, "epoch %u is not in the store", epoch->number);
    if (w->processes[epoch->rank] != p->index)
        sim_fail(s, "%s is not rank %d of its epoch", p->id, epoch->rank);
    return w;
}

static void state_check(sim *s, const host *h, const char *what)
{
    if (h->state != sim_state_of(h->step))
        sim_fail(s, "%s: the state of step %d is wrong", what, h->step);
}

static void host_commit(sim *s, host *h)
{
    h->step++;
    h->state = h->next;
    h->has_begun = false;
    h->done = 0;
    state_check(s, h, "commit");
}

/* No state may be lost that is in the memory of a host without faults. The death of workers is not
 * such a fault. */
static void rollback_check(sim *s, const world *w, int step)
{
    if (step >= s->committed) return;
    s->rollbacks++;
    for (int i = 0; i < s->host_count; i++) {
        const host *h = &s->hosts[i];
        if (h->is_empty || h->step < s->committed || h->faulted_s >= s->committed_s) continue;
        sim_fail(s, "epoch %u returns from step %d to %d, although host %d has the state",
                 w->number, s->committed, step, i);
    }
}

static uint32_t hosts_of(const sim *s, const world *w)
{
    uint32_t hosts = 0;
    for (int r = 0; r < w->size; r++) hosts |= 1U << s->processes[w->processes[r]].host;
    return hosts;
}

void sim_put_line(sim *s, int step)
{
    if (step > 0 && s->lines[step] == 0) s->lines[step] = 1;
}

/* Rank 0 of an epoch drops the ledger lines of later steps and adds the last one if it is
 * missing. */
static void ledger_repair(sim *s, const world *w, int step)
{
    for (int k = step + 1; k <= STEPS; k++) s->lines[k] = 0;
    for (int k = 1; k < step; k++)
        if (s->lines[k] != 1)
            sim_fail(s, "epoch %u begins after step %d, but the ledger has no line of step %d",
                     w->number, step, k);
    sim_put_line(s, step);
}

/* The first rank that passes the first barrier brings all hosts to one state. */
static void world_unify(sim *s, world *w)
{
    uint32_t hosts = hosts_of(s, w);
    for (int i = 0; i < s->process_count; i++) {
        process *q = &s->processes[i];
        if (!q->is_writing || q->is_dead || !(hosts >> q->host & 1)) continue;
        if (q->world == w) sim_fail(s, "%s writes before its epoch has begun", q->id);
        sim_log(s, "      kills %s in the middle of an update", q->id);
        sim_kill(q);
    }
    int step = s->checkpoint;
    bool has_new = false;
    for (int i = 0; i < s->host_count; i++)
        if (hosts >> i & 1 && !s->hosts[i].is_empty && s->hosts[i].lineage >= w->lineage)
            has_new = true;
    for (int i = 0; i < s->host_count; i++) {
        host *h = &s->hosts[i];
        if (!(hosts >> i & 1) || (has_new && h->lineage < w->lineage)) continue;
        if (h->has_begun) host_commit(s, h);
        if (!h->is_empty && h->step > step) step = h->step;
    }
    rollback_check(s, w, step);
    for (int i = 0; i < s->host_count; i++) {
        host *h = &s->hosts[i];
        if (!(hosts >> i & 1)) continue;
        h->step = step;
        h->state = sim_state_of(step);
        h->is_empty = h->has_begun = false;
        h->done = 0;
        h->lineage = w->number;
    }
    ledger_repair(s, w, step);
    w->step = step;
    w->is_one_state = true;
    sim_log(s, "      epoch %u continues from step %d", w->number, step);
}

static tdm_status world_enter(void *user, const tdm_epoch *epoch, tdm_error *err)
{
    process *p = user;
    char endpoint[TDM_ENDPOINT_BYTES];
    p->is_interrupted = false;
    p->barriers = 0;
    memset(p->lost, 0, sizeof(p->lost));
    if (p->is_dead) return fail_dead(err);
    p->world = world_of(p, epoch);
    if (!p->world) return tdm_fail(err, TDM_ERR_INTERNAL, "no world");
    p->rank = epoch->rank;
    if (p->rank == 0) p->world->lineage = epoch->lineage;
    sim_log(p->s, "      enters epoch %u as rank %d of %d", epoch->number, p->rank, epoch->size);
    host *h = host_of(p);
    if (h->fence > epoch->number)
        return tdm_fail(err, TDM_ERR_PEER_FENCED, "epoch %u is current", h->fence);
    h->fence = epoch->number;
    if (epoch->rank == 0)
        TDM_TRY(tdm_member_publish_endpoint(p->member, epoch->number, "here", err));
    else
        TDM_TRY(tdm_member_lookup_endpoint(p->member, epoch->number, 10, endpoint, err));
    if (p->is_dead) return fail_dead(err);
    TDM_TRY(barrier_pass(p, barrier_next(p), err));
    if (h->fence > epoch->number)
        return tdm_fail(err, TDM_ERR_PEER_FENCED, "epoch %u is current", h->fence);
    for (int i = 0; i < p->s->host_count; i++)
        if (hosts_of(p->s, p->world) >> i & 1 && p->s->hosts[i].fence != epoch->number)
            return tdm_fail(err, TDM_ERR_PEER_FAILED, "host %d has died or is in a later epoch", i);
    if (!p->world->is_one_state) world_unify(p->s, p->world);
    return TDM_OK;
}

/* ---- step ------------------------------------------------------------------------------------ */

static tdm_status step_compute(process *p, tdm_error *err)
{
    sim *s = p->s;
    double slow = s->now_s < p->slow_until_s ? p->slow : 1;
    double until_s = s->now_s + sim_between(s, 0.02, 0.25) * slow;
    while (s->now_s < until_s) {
        if (p->is_dead) return fail_dead(err);
        if (p->is_interrupted) return tdm_fail(err, TDM_ERR_PEER_FAILED, "interrupted");
        sim_wait_for_world(p, until_s - s->now_s);
    }
    return p->is_dead ? fail_dead(err) : TDM_OK;
}

/* Adds the lanes of this rank. All ranks must be at the same step and state. */
static tdm_status step_contribute(process *p, int step, unsigned request, barrier *b,
                                  tdm_error *err)
{
    const world *w = p->world;
    uint32_t lanes = 0;
    for (int lane = 0; lane < LANES; lane++)
        if (lane % w->size == p->rank) lanes |= 1U << lane;
    if (b->arrived == 0) {
        b->step = step;
        b->base = host_of(p)->state;
    }
    if (b->step != step || b->base != host_of(p)->state || (b->lanes & lanes))
        sim_fail(p->s, "%s contributes to step %d from another step or state", p->id, step);
    b->lanes |= lanes;
    b->requests |= request;
    TDM_TRY(barrier_pass(p, b, err));
    if (b->lanes != (1U << LANES) - 1) sim_fail(p->s, "step %d does not have all lanes", step);
    return TDM_OK;
}

static uint64_t ranks_on(const sim *s, const world *w, int host_index)
{
    uint64_t ranks = 0;
    for (int r = 0; r < w->size; r++)
        if (s->processes[w->processes[r]].host == host_index) ranks |= UINT64_C(1) << r;
    return ranks;
}

static void commit_record(sim *s, const world *w, int step)
{
    uint32_t hosts = hosts_of(s, w);
    for (int i = 0; i < s->host_count; i++)
        if (hosts >> i & 1 && (s->hosts[i].is_empty || s->hosts[i].step < step)) return;
    if (step <= s->committed) return;
    s->committed = step;
    s->committed_s = s->now_s;
}

/* Waits until all ranks of this host have updated their parts. */
static tdm_status host_wait(process *p, int step, uint64_t local, tdm_error *err)
{
    const host *h = host_of(p);
    double begun_s = p->s->now_s;
    for (;;) {
        if (p->is_dead) return fail_dead(err);
        if (h->fence != p->world->number)
            return tdm_fail(err, TDM_ERR_PEER_FENCED, "epoch %u is current", h->fence);
        if (h->step > step) return TDM_OK;
        for (int r = 0; r < p->world->size; r++)
            if (local >> r & 1 & ~(h->done >> r))
                TDM_TRY(rank_check_lost(p, r, p->s->now_s - begun_s, err));
        TDM_TRY(epoch_check(p, err));
        sim_wait_for_world(p, 0.5);
    }
}

/* Whether all ranks are in this epoch. Then the writers of earlier epochs have been killed. */
static bool epoch_has_begun(const sim *s, uint32_t number)
{
    for (int i = 0; i < s->world_count; i++)
        if (s->worlds[i].number == number) return s->worlds[i].is_one_state;
    return false;
}

/* Updates the part of this rank in the memory of its host. */
static tdm_status host_update(process *p, int step, uint64_t state, tdm_error *err)
{
    host *h = host_of(p);
    world *w = p->world;
    if (h->fence != w->number)
        return tdm_fail(err, TDM_ERR_PEER_FENCED, "epoch %u is current", h->fence);
    if (h->step != step || (h->has_begun && h->next != state))
        sim_fail(p->s, "%s updates a host at step %d to step %d", p->id, h->step, step + 1);
    p->is_writing = true;
    h->has_begun = true;
    h->next = state;
    if (p->write_fuse > 0 && --p->write_fuse == 0) {
        sim_log(p->s, "      is killed during an update");
        sim_kill(p);
    }
    sim_sleep(p, sim_between(p->s, 1e-4, 3e-3));
    if (p->is_dead) return fail_dead(err);
    p->is_writing = false;
    if (epoch_has_begun(p->s, h->fence) && h->fence != w->number)
        sim_fail(p->s, "%s of epoch %u has written in epoch %u", p->id, w->number, h->fence);
    h->done |= UINT64_C(1) << p->rank;
    uint64_t local = ranks_on(p->s, w, p->host);
    if (h->done == local) {
        host_commit(p->s, h);
        commit_record(p->s, w, step + 1);
        sim_world_changed(p->s);
        return TDM_OK;
    }
    return host_wait(p, step, local, err);
}

/* Rank 0 writes a checkpoint. With `must`, it retries until that succeeds. */
static tdm_status checkpoint_save(process *p, int step, bool must, barrier *b, tdm_error *err)
{
    while (p->rank == 0) {
        tdm_error why = {0};
        tdm_status status = tdm_member_confirm(p->member, p->world->number, &why);
        if (p->is_dead) return fail_dead(err);
        if (tdm_status_group_of(status) == TDM_STATUS_GROUP_PEER)
            return tdm_fail(err, status, "%s", why.message);
        if (status == TDM_OK) {
            sim_sleep(p, sim_between(p->s, 1e-3, 0.05));
            if (p->is_dead) return fail_dead(err);
            if (step > p->s->checkpoint) p->s->checkpoint = step;
            if (must) p->s->finished_step = step;
            b->is_saved = true;
        }
        if (status == TDM_OK || !must) break;
        if (p->is_interrupted || !tdm_member_epoch_holds(p->member, p->world->number))
            return tdm_fail(err, TDM_ERR_PEER_FAILED,
                            "the epoch has ended before the checkpoint was written");
        sim_sleep(p, 0.2);
    }
    return barrier_pass(p, b, err);
}

static tdm_status world_step(void *user, unsigned request, unsigned *requests, bool *done,
                             tdm_error *err)
{
    process *p = user;
    int k = p->world->step;
    for (int i = 1; i < p->barriers; i++) /* the barriers of steps show the step of this rank */
        if (p->world->barriers[i].lanes) k = p->world->barriers[i].step + 1;
    if (k >= STEPS) { /* an earlier epoch ended after the last step, before its checkpoint */
        *requests = request;
        *done = true;
        return checkpoint_save(p, k, true, barrier_next(p), err);
    }
    TDM_TRY(step_compute(p, err));
    barrier *b = barrier_next(p);
    if (host_of(p)->fence != p->world->number)
        return tdm_fail(err, TDM_ERR_PEER_FENCED, "another epoch is current");
    TDM_TRY(step_contribute(p, k, request, b, err));
    TDM_TRY(host_update(p, k, next_state(b->base, k), err));
    if (p->rank == 0) sim_put_line(p->s, k + 1);
    bool is_last = k + 1 >= STEPS || (b->requests & TDM_REQUEST_STOP);
    if (is_last || (k + 1) % SAVE_EVERY == 0)
        TDM_TRY(checkpoint_save(p, k + 1, is_last, barrier_next(p), err));
    *requests = b->requests;
    *done = is_last;
    return TDM_OK;
}

/* ---- leave and interrupt --------------------------------------------------------------------- */

static tdm_lost world_lost(void *user, int rank, char how[TDM_LOST_BYTES])
{
    const process *p = user;
    snprintf(how, TDM_LOST_BYTES, "simulated");
    return p->lost[rank];
}

static void world_leave(void *user)
{
    process *p = user;
    if (p->world && !p->is_dead) {
        p->world->left |= UINT64_C(1) << p->rank;
        sim_world_changed(p->s);
    }
    p->world = NULL;
}

static void world_interrupt(void *user, const char *why)
{
    process *p = user;
    p->is_interrupted = true;
    sim_log(p->s, "      is interrupted: %s", why);
    sim_world_changed(p->s);
}

const tdm_elastic_ops sim_ops = {.enter = world_enter,
                                 .step = world_step,
                                 .lost = world_lost,
                                 .leave = world_leave,
                                 .interrupt = world_interrupt};
