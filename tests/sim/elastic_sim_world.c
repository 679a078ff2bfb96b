/*
 * elastic_sim_world.c: what the loop calls in a simulated schedule: ranks that meet, the memory of hosts,
 * checkpoints; and the checks of what must hold.
 *
 * A step is as the real one is: all ranks of the epoch meet, each with its lanes; what comes of it is a
 * function of the state before and of nothing else; then each rank changes its part of its host's memory,
 * and the host has the next state once all its ranks have done so. A host on which anybody had begun to
 * change it is brought forward by whoever enters the next epoch; otherwise the step is done again. Ranks of
 * an older epoch than a host's fence change nothing there, and one that is found in the middle of a change
 * is killed. Each rank sees a meeting complete for itself, at its own time, so any subset of them may have
 * gone on when a fault strikes.
 */
#include "elastic_sim.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define SILENCE_S 3.0 /* until a rank that cannot be reached is given up */
#define STALL_S 8.0   /* or one that does not come */
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

static bool is_cut(const process *p, const process *q)
{
    return p->side != q->side;
}

/* ---- ranks that meet ---------------------------------------------------------------------------- */

static tdm_status dead(tdm_error *err)
{
    return tdm_fail(err, TDM_ERR_IO, "this process is dead");
}

/* Why rank `r` has not come and will not, if that is so. */
static tdm_status missing(process *p, int r, double waited_s, tdm_error *err)
{
    const process *q = &p->s->processes[p->world->processes[r]];
    if (is_cut(p, q) && p->s->resets) {
        p->lost[r] = TDM_LOST_CLOSED;
        return tdm_fail(err, TDM_ERR_PEER_FAILED, "the connection with rank %d was reset", r);
    }
    if (is_cut(p, q)) {
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
    return tdm_fail(err, TDM_ERR_PEER_TIMEOUT, "rank %d did not come", r);
}

static tdm_status check_epoch(process *p, tdm_error *err)
{
    if (p->is_interrupted) return tdm_fail(err, TDM_ERR_PEER_FAILED, "interrupted");
    if (tdm_member_epoch_holds(p->member, p->world->number)) return TDM_OK;
    return tdm_fail(err, TDM_ERR_PEER_FAILED, "the epoch does not hold any more");
}

/* Waits until all ranks are in *there. */
static tdm_status wait_for_ranks(process *p, const uint64_t *there, tdm_error *err)
{
    const world *w = p->world;
    double begun_s = p->s->now_s;
    for (;;) {
        if (p->is_dead) return dead(err);
        bool is_complete = true;
        for (int r = 0; r < w->size; r++) {
            bool is_there = *there >> r & 1;
            if (is_there && !is_cut(p, &p->s->processes[w->processes[r]])) continue;
            is_complete = false;
            TDM_TRY(missing(p, r, p->s->now_s - begun_s, err));
        }
        if (is_complete) return TDM_OK;
        TDM_TRY(check_epoch(p, err));
        sim_wait_for_world(p, 0.5);
    }
}

static tdm_status meet(process *p, meeting *m, tdm_error *err)
{
    m->arrived |= UINT64_C(1) << p->rank;
    sim_world_changed(p->s);
    return wait_for_ranks(p, &m->arrived, err);
}

static meeting *next_meeting(process *p)
{
    if (p->meetings >= MAX_MEETINGS) {
        sim_fail(p->s, "more meetings than a run has");
        p->meetings = 0;
    }
    return &p->world->meetings[p->meetings++];
}

/* ---- enter -------------------------------------------------------------------------------------- */

static int process_named(const sim *s, const char *id)
{
    for (int i = 0; i < s->process_count; i++)
        if (strcmp(s->processes[i].id, id) == 0) return i;
    return -1;
}

/* All who enter an epoch of this number must mean the same one. */
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
        int index = process_named(s, epoch->members[r].id);
        if (is_new) w->processes[r] = index;
        if (index < 0 || w->processes[r] != index)
            sim_fail(s, "epoch %u is not the same for all", epoch->number);
    }
    if (epoch->number > s->store.epoch) sim_fail(s, "epoch %u is not in the store", epoch->number);
    if (w->processes[epoch->rank] != p->index)
        sim_fail(s, "%s is not rank %d of its epoch", p->id, epoch->rank);
    return w;
}

static void check_state(sim *s, const host *h, const char *what)
{
    if (h->state != sim_state_of(h->step))
        sim_fail(s, "%s: step %d has a state of its own", what, h->step);
}

static void commit(sim *s, host *h)
{
    h->step++;
    h->state = h->next;
    h->has_begun = false;
    h->done = 0;
    check_state(s, h, "commit");
}

/* Nothing may be lost that a host still has whose agent lives and could be reached: its workers may die as
 * they like. */
static void check_loss(sim *s, const world *w, int step)
{
    if (step >= s->committed) return;
    s->going_back++;
    for (int i = 0; i < s->host_count; i++) {
        const host *h = &s->hosts[i];
        if (h->is_empty || h->step < s->committed || h->faulted_s >= s->committed_s) continue;
        sim_fail(s, "epoch %u goes back from step %d to %d, though host %d has all of it",
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

/* The ledger as the next leader finds it: later lines are dropped, and only the last one may be missing. */
static void mend_lines(sim *s, const world *w, int step)
{
    for (int k = step + 1; k <= STEPS; k++) s->lines[k] = 0;
    for (int k = 1; k < step; k++)
        if (s->lines[k] != 1)
            sim_fail(s, "epoch %u begins after step %d, and the ledger has no line of step %d",
                     w->number, step, k);
    sim_put_line(s, step);
}

/* The first who sees that all have come brings them to one state. */
static void bring_together(sim *s, world *w)
{
    uint32_t hosts = hosts_of(s, w);
    for (int i = 0; i < s->process_count; i++) {
        process *q = &s->processes[i];
        if (!q->is_writing || q->is_dead || !(hosts >> q->host & 1)) continue;
        if (q->world == w) sim_fail(s, "%s writes before its epoch has begun", q->id);
        sim_say(s, "      kills %s, which is in the middle of an update", q->id);
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
        if (h->has_begun) commit(s, h);
        if (!h->is_empty && h->step > step) step = h->step;
    }
    check_loss(s, w, step);
    for (int i = 0; i < s->host_count; i++) {
        host *h = &s->hosts[i];
        if (!(hosts >> i & 1)) continue;
        h->step = step;
        h->state = sim_state_of(step);
        h->is_empty = h->has_begun = false;
        h->done = 0;
        h->lineage = w->number;
    }
    mend_lines(s, w, step);
    w->step = step;
    w->is_one_state = true;
    sim_say(s, "      epoch %u goes on from step %d", w->number, step);
}

static tdm_status enter(void *user, const tdm_epoch *epoch, tdm_error *err)
{
    process *p = user;
    char door[TDM_ENDPOINT_BYTES];
    p->is_interrupted = false;
    p->meetings = 0;
    memset(p->lost, 0, sizeof(p->lost));
    if (p->is_dead) return dead(err);
    p->world = world_of(p, epoch);
    if (!p->world) return tdm_fail(err, TDM_ERR_INTERNAL, "no world");
    p->rank = epoch->rank;
    if (p->rank == 0) p->world->lineage = epoch->lineage;
    sim_say(p->s, "      enters epoch %u as rank %d of %d", epoch->number, p->rank, epoch->size);
    host *h = host_of(p);
    if (h->fence > epoch->number)
        return tdm_fail(err, TDM_ERR_PEER_FENCED, "epoch %u is here", h->fence);
    h->fence = epoch->number;
    if (epoch->rank == 0)
        TDM_TRY(tdm_member_publish_endpoint(p->member, epoch->number, "here", err));
    else
        TDM_TRY(tdm_member_lookup_endpoint(p->member, epoch->number, 10, door, err));
    if (p->is_dead) return dead(err);
    TDM_TRY(meet(p, next_meeting(p), err));
    if (h->fence > epoch->number)
        return tdm_fail(err, TDM_ERR_PEER_FENCED, "epoch %u is here", h->fence);
    for (int i = 0; i < p->s->host_count; i++)
        if (hosts_of(p->s, p->world) >> i & 1 && p->s->hosts[i].fence != epoch->number)
            return tdm_fail(err, TDM_ERR_PEER_FAILED, "host %d has died or gone on", i);
    if (!p->world->is_one_state) bring_together(p->s, p->world);
    return TDM_OK;
}

/* ---- step --------------------------------------------------------------------------------------- */

static tdm_status compute(process *p, tdm_error *err)
{
    sim *s = p->s;
    double slow = s->now_s < p->slow_until_s ? p->slow : 1;
    double until_s = s->now_s + sim_between(s, 0.02, 0.25) * slow;
    while (s->now_s < until_s) {
        if (p->is_dead) return dead(err);
        if (p->is_interrupted) return tdm_fail(err, TDM_ERR_PEER_FAILED, "interrupted");
        sim_wait_for_world(p, until_s - s->now_s);
    }
    return p->is_dead ? dead(err) : TDM_OK;
}

/* Everybody's lanes, of the same step from the same state. */
static tdm_status contribute(process *p, int step, unsigned request, meeting *m, tdm_error *err)
{
    const world *w = p->world;
    uint32_t lanes = 0;
    for (int lane = 0; lane < LANES; lane++)
        if (lane % w->size == p->rank) lanes |= 1U << lane;
    if (m->arrived == 0) {
        m->step = step;
        m->base = host_of(p)->state;
    }
    if (m->step != step || m->base != host_of(p)->state || (m->lanes & lanes))
        sim_fail(p->s, "%s contributes to step %d what does not belong there", p->id, step);
    m->lanes |= lanes;
    m->requests |= request;
    TDM_TRY(meet(p, m, err));
    if (m->lanes != (1U << LANES) - 1) sim_fail(p->s, "step %d without all lanes", step);
    return TDM_OK;
}

static uint64_t ranks_on(const sim *s, const world *w, int host_index)
{
    uint64_t ranks = 0;
    for (int r = 0; r < w->size; r++)
        if (s->processes[w->processes[r]].host == host_index) ranks |= UINT64_C(1) << r;
    return ranks;
}

static void note_commit(sim *s, const world *w, int step)
{
    uint32_t hosts = hosts_of(s, w);
    for (int i = 0; i < s->host_count; i++)
        if (hosts >> i & 1 && (s->hosts[i].is_empty || s->hosts[i].step < step)) return;
    if (step <= s->committed) return;
    s->committed = step;
    s->committed_s = s->now_s;
}

/* Until all ranks of this host have done their parts. */
static tdm_status wait_for_host(process *p, int step, uint64_t local, tdm_error *err)
{
    const host *h = host_of(p);
    double begun_s = p->s->now_s;
    for (;;) {
        if (p->is_dead) return dead(err);
        if (h->fence != p->world->number)
            return tdm_fail(err, TDM_ERR_PEER_FENCED, "epoch %u is here", h->fence);
        if (h->step > step) return TDM_OK;
        for (int r = 0; r < p->world->size; r++)
            if (local >> r & 1 & ~(h->done >> r))
                TDM_TRY(missing(p, r, p->s->now_s - begun_s, err));
        TDM_TRY(check_epoch(p, err));
        sim_wait_for_world(p, 0.5);
    }
}

/* Whether all are in an epoch, and the writers of the one before have been killed. */
static bool has_begun_with(const sim *s, uint32_t number)
{
    for (int i = 0; i < s->world_count; i++)
        if (s->worlds[i].number == number) return s->worlds[i].is_one_state;
    return false;
}

/* This rank's part of its host's memory. */
static tdm_status update(process *p, int step, uint64_t state, tdm_error *err)
{
    host *h = host_of(p);
    world *w = p->world;
    if (h->fence != w->number)
        return tdm_fail(err, TDM_ERR_PEER_FENCED, "epoch %u is here", h->fence);
    if (h->step != step || (h->has_begun && h->next != state))
        sim_fail(p->s, "%s changes step %d into %d", p->id, h->step, step + 1);
    p->is_writing = true;
    h->has_begun = true;
    h->next = state;
    if (p->write_fuse > 0 && --p->write_fuse == 0) {
        sim_say(p->s, "      is killed in an update");
        sim_kill(p);
    }
    sim_sleep(p, sim_between(p->s, 1e-4, 3e-3));
    if (p->is_dead) return dead(err);
    p->is_writing = false;
    if (has_begun_with(p->s, h->fence) && h->fence != w->number)
        sim_fail(p->s, "%s of epoch %u has written in epoch %u", p->id, w->number, h->fence);
    h->done |= UINT64_C(1) << p->rank;
    uint64_t local = ranks_on(p->s, w, p->host);
    if (h->done == local) {
        commit(p->s, h);
        note_commit(p->s, w, step + 1);
        sim_world_changed(p->s);
        return TDM_OK;
    }
    return wait_for_host(p, step, local, err);
}

/* Rank 0 saves; all know whether it did. */
static tdm_status save(process *p, int step, bool must, meeting *m, tdm_error *err)
{
    while (p->rank == 0) {
        tdm_error why = {0};
        tdm_status status = tdm_member_confirm(p->member, p->world->number, &why);
        if (p->is_dead) return dead(err);
        if (tdm_status_group_of(status) == TDM_STATUS_GROUP_PEER)
            return tdm_fail(err, status, "%s", why.message);
        if (status == TDM_OK) {
            sim_sleep(p, sim_between(p->s, 1e-3, 0.05));
            if (p->is_dead) return dead(err);
            if (step > p->s->checkpoint) p->s->checkpoint = step;
            if (must) p->s->finished_step = step;
            m->is_saved = true;
        }
        if (status == TDM_OK || !must) break;
        if (p->is_interrupted || !tdm_member_epoch_holds(p->member, p->world->number))
            return tdm_fail(err, TDM_ERR_PEER_FAILED, "the epoch is over before it is saved");
        sim_sleep(p, 0.2);
    }
    return meet(p, m, err);
}

static tdm_status step(void *user, unsigned request, unsigned *requests, bool *done, tdm_error *err)
{
    process *p = user;
    int k = p->world->step;
    for (int i = 1; i < p->meetings; i++) /* those of steps: where this rank is */
        if (p->world->meetings[i].lanes) k = p->world->meetings[i].step + 1;
    if (k >= STEPS) { /* the last epoch ended between the last step and its checkpoint */
        *requests = request;
        *done = true;
        return save(p, k, true, next_meeting(p), err);
    }
    TDM_TRY(compute(p, err));
    meeting *m = next_meeting(p);
    if (host_of(p)->fence != p->world->number)
        return tdm_fail(err, TDM_ERR_PEER_FENCED, "another epoch is here");
    TDM_TRY(contribute(p, k, request, m, err));
    TDM_TRY(update(p, k, next_state(m->base, k), err));
    if (p->rank == 0) sim_put_line(p->s, k + 1);
    bool is_last = k + 1 >= STEPS || (m->requests & TDM_REQUEST_STOP);
    if (is_last || (k + 1) % SAVE_EVERY == 0)
        TDM_TRY(save(p, k + 1, is_last, next_meeting(p), err));
    *requests = m->requests;
    *done = is_last;
    return TDM_OK;
}

/* ---- the rest ----------------------------------------------------------------------------------- */

static tdm_lost lost(void *user, int rank, char how[TDM_LOST_BYTES])
{
    const process *p = user;
    snprintf(how, TDM_LOST_BYTES, "simulated");
    return p->lost[rank];
}

static void leave(void *user)
{
    process *p = user;
    if (p->world && !p->is_dead) {
        p->world->left |= UINT64_C(1) << p->rank;
        sim_world_changed(p->s);
    }
    p->world = NULL;
}

static void interrupt(void *user, const char *why)
{
    process *p = user;
    p->is_interrupted = true;
    sim_say(p->s, "      is interrupted: %s", why);
    sim_world_changed(p->s);
}

const tdm_elastic_ops sim_ops = {
    .enter = enter, .step = step, .lost = lost, .leave = leave, .interrupt = interrupt};
