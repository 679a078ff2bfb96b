/*
 * train_order.c: the order of asynchronous updates in training (sync.kind server): where it comes from, and its record
 * in the run directory (order_file.h).
 *
 * Rank 0 writes the lines of a round before the round changes the model. A rank that dies in between leaves lines of
 * updates that were never made; the next rank 0 removes them when it opens the file. If rank 0 dies before it wrote the
 * lines of a round that other ranks have begun, the next rank 0 has their entries from the recovery.
 */
#include "base/base.h"
#include "job/job.h"
#include "train/trainer.h"

#include <stdlib.h>

tdm_status tdm__order_prepare(tdm__trainer *t, tdm_error *err)
{
    if (!tdm_job_is_async(t->job)) return TDM_OK;
    TDM_TRY(tdm_order_create(t->job, &t->order, err));
    if (t->options->member && tdm_job_is_live(t->job)) {
        t->order_recent = calloc(TDM__LINES_RECENT, sizeof(*t->order_recent));
        if (!t->order_recent) return tdm_fail_oom(err, "for the order of updates");
    }
    if (t->job->sync.order != TDM_JOB_ORDER_RECORDED) return TDM_OK;
    TDM_TRY(tdm__order_load(t->job->sync.order_from, tdm_replicas_of(t->job),
                            t->schedule.step_count, t->order, t->order_hash, err));
    if (!t->job->checkpoint.ledger || tdm_order_has_batches_in_order(t->order)) return TDM_OK;
    return tdm_fail(
        err, TDM_ERR_JOB_INVALID,
        "the order of %s is that of a live run, which does not train batches in order, so "
        "a ledger cannot prove it; set checkpoint.ledger to false",
        t->job->sync.order_from);
}

void tdm__order_release(tdm__trainer *t)
{
    tdm__lines_close(&t->order_file);
    free(t->order_recent);
    tdm_order_destroy(t->order);
}

tdm_status tdm__order_compare(tdm__trainer *t, tdm_error *err)
{
    int differs;
    if (!t->order || t->job->sync.order != TDM_JOB_ORDER_RECORDED) return TDM_OK;
    TDM_TRY(tdm__same_text(t->comm, t->order_hash, TDM_SHA256_HEX, &differs, err));
    if (differs < 0) return TDM_OK;
    tdm_fail(err, TDM_ERR_JOB_MISMATCH,
             "rank %d read a different order from %s than rank 0; put the same file on all hosts",
             differs, t->job->sync.order_from);
    return tdm_comm_agree(t->comm, TDM_ERR_JOB_MISMATCH, NULL, err);
}

/* ---- the file --------------------------------------------------------------------------------- */

static void order_put(tdm__trainer *t, uint64_t update, const tdm_order_entry *entry)
{
    tdm__order_line line = {
        .update = update, .of = (uint64_t)tdm_replicas_of(t->job), .entry = *entry};
    tdm__lines_remember(&tdm__order_format, t->order_recent, &line);
    if (t->leads) tdm__lines_put(&t->order_file, &line);
}

void tdm__order_put_round(tdm__trainer *t)
{
    if (!t->order) return;
    if (tdm_job_is_live(t->job)) t->round_steps = t->live.count;
    for (uint64_t i = 0; i < t->round_steps; i++)
        order_put(t, t->position.step + i + 1, &t->order_entries[i]);
}

/* Checks the entries of the run's own file. */
typedef struct order_check {
    tdm_order *recorded; /* NULL: the entries are not compared */
    tdm_order_state state;
} order_check;

static tdm_status check_entry(void *user, const tdm_order_entry *entry, tdm_error *err)
{
    order_check *c = user;
    uint64_t update = c->state.next;
    TDM_TRY(tdm_order_follow(&c->state, entry, err));
    if (!c->recorded) return TDM_OK;
    tdm_order_entry want = tdm_order_at(c->recorded, update);
    if (want.worker == entry->worker && want.readers == entry->readers &&
        want.batch == entry->batch)
        return TDM_OK;
    return tdm_fail(err, TDM_ERR_JOB_MISMATCH,
                    "this run has made update %llu in another order than that of sync.order_from; "
                    "use the file with which the run began",
                    (unsigned long long)update + 1);
}

/* The number of updates, up to `step`, that are in the file without a gap. */
static tdm_status order_check_file(tdm__trainer *t, const char *path, uint64_t step, order_check *c,
                                   uint64_t *count, tdm_error *err)
{
    *count = 0;
    if (!tdm_path_is_file(path)) return TDM_OK;
    tdm_status status = tdm__order_read(path, tdm_replicas_of(t->job), step, check_entry, c, count,
                                        err);
    return status == TDM_ERR_FORMAT && !tdm_job_is_live(t->job) ? TDM_OK : status;
}

/* An entry that the file lacks. A virtual or recorded order has it; a live one has it in the memory of this host. */
static bool order_find(const tdm__trainer *t, uint64_t step, uint64_t end,
                       const tdm_recovery *recovery, tdm_order_entry *out)
{
    uint64_t recovered = recovery ? recovery->update_count : 0;
    if (!tdm_job_is_live(t->job)) {
        *out = tdm_order_at(t->order, step);
        return true;
    }
    if (step + recovered >= end) {
        *out = recovery->updates[step + recovered - end];
        return true;
    }
    const tdm__order_line *line = t->order_recent ? &t->order_recent[(step + 1) % TDM__LINES_RECENT]
                                                  : NULL;
    if (!line || line->update != step + 1) return false;
    *out = line->entry;
    return true;
}

tdm_status tdm__order_open(tdm__trainer *t, uint64_t step, const tdm_recovery *recovery,
                           tdm_error *err)
{
    bool is_recorded = t->job->sync.order == TDM_JOB_ORDER_RECORDED;
    order_check c = {.recorded = is_recorded ? t->order : NULL};
    uint64_t count = 0;
    if (!t->leads || !t->order) return TDM_OK;
    tdm__lines_close(&t->order_file);
    char *path = tdm_path_join(t->arena, t->run.path, TDM__ORDER_NAME);
    if (!path) return tdm_fail_oom(err, "for the order of updates");
    TDM_TRY(tdm_order_state_init(t->job, &c.state, err));
    TDM_TRY(order_check_file(t, path, step, &c, &count, err));
    TDM_TRY(tdm__lines_open(t->run.path, &tdm__order_format, count, &t->order_file, err));
    for (uint64_t s = count; s < step; s++) {
        tdm_order_entry entry;
        if (!order_find(t, s, step, recovery, &entry))
            return tdm_fail(err, TDM_ERR_FORMAT,
                            "%s ends after update %llu, but the state is that after update %llu, "
                            "and a live order cannot be computed again; start a new run",
                            path, (unsigned long long)count, (unsigned long long)step);
        if (tdm_job_is_live(t->job)) TDM_TRY(tdm_order_follow(&c.state, &entry, err));
        order_put(t, s + 1, &entry);
    }
    t->order_state = c.state;
    return TDM_OK;
}

tdm_status tdm__order_share(tdm__trainer *t, tdm_error *err)
{
    if (!tdm_job_is_live(t->job) || !t->comm) return TDM_OK;
    return tdm_group_broadcast(tdm_comm_world(t->comm), &t->order_state, sizeof(t->order_state),
                               TDM_DTYPE_U8, 0, err);
}
