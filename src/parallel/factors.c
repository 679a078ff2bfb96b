/*
 * factors.c: PowerSGD for what replicas contribute to a step. See factors.h.
 *
 * Invariants: factors are added by the tree over the replicas, within a rank first, so their sums have the same bits on
 * all ranks and for any placement. A replica without rows is absent from the sums, keeps its residual, and gets the new
 * factor like the others.
 */
#include "parallel/factors.h"
#include "base/base.h"
#include "comm/comm.h"
#include "job/job.h"
#include "tensor/kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct tdm__factors {
    tdm_team *team;
    tdm__replicas *replicas;
    tdm_codec *codec;
    int array;
    size_t p_count, q_count;   /* elements */
    size_t p_stride, q_stride; /* of the replicas' factors */
    tdm_pages pages;
    float *p, *q; /* by replica: its factors; only those of this rank take memory */
    float *p_sum, *q_sum;
    float *q_before; /* of the step before */
    float **held;    /* by heap number: the sum of a node of the tree over the replicas */
    uint8_t *absent; /* by replica: without rows in this step */
};

/* ---- creation -------------------------------------------------------------------------------- */

static size_t factor_stride(size_t elements)
{
    return (elements + 15) / 16 * 16;
}

static tdm_status factors_make_memory(tdm__factors *f, tdm_error *err)
{
    size_t count = (size_t)f->replicas->count;
    f->p_count = tdm_codec_lowrank_p_elements(f->codec);
    f->q_count = tdm_codec_lowrank_q_elements(f->codec);
    f->p_stride = factor_stride(f->p_count);
    f->q_stride = factor_stride(f->q_count);
    f->held = calloc(2 * count, sizeof(*f->held));
    f->absent = calloc(count, sizeof(*f->absent));
    if (!f->held || !f->absent) return tdm_fail_oom(err, "for the factors of the gradients");
    size_t elements = (count + 1) * f->p_stride + (count + 2) * f->q_stride;
    TDM_TRY(tdm_pages_map(elements * sizeof(float), false, &f->pages, err));
    f->p = f->pages.data;
    f->q = f->p + count * f->p_stride;
    f->p_sum = f->q + count * f->q_stride;
    f->q_sum = f->p_sum + f->p_stride;
    f->q_before = f->q_sum + f->q_stride;
    return TDM_OK;
}

tdm_status tdm__factors_create(tdm_team *team, tdm__replicas *replicas, tdm_codec *codec, int array,
                               tdm__factors **out, tdm_error *err)
{
    tdm__factors *f = calloc(1, sizeof(*f));
    if (!f) return tdm_fail_oom(err, "for the factors of the gradients");
    f->team = team;
    f->replicas = replicas;
    f->codec = codec;
    f->array = array;
    tdm_status status = factors_make_memory(f, err);
    if (status != TDM_OK) {
        tdm__factors_destroy(f);
        return status;
    }
    *out = f;
    return TDM_OK;
}

void tdm__factors_destroy(tdm__factors *f)
{
    if (!f) return;
    tdm_pages_unmap(&f->pages);
    free(f->held);
    free(f->absent);
    free(f);
}

/* ---- the first part ---------------------------------------------------------------------------- */

/* The residual of a replica; `next`: of the version that this step writes. */
static float *residual_of(const tdm__factors *f, int64_t replica, bool next)
{
    int version = f->replicas->current[replica];
    return tdm__replica_array(f->replicas, replica, next ? 1 - version : version, f->array);
}

/* Where a replica keeps the factor. */
static float *factor_of(const tdm__factors *f, int64_t replica, bool next)
{
    return residual_of(f, replica, next) + f->team->layout->elements;
}

static bool replica_has_rows(const tdm_team *team, int64_t replica, int64_t lanes)
{
    for (int64_t l = replica * lanes; l < (replica + 1) * lanes; l++)
        if (tdm__team_rows(team, l).count > 0) return true;
    return false;
}

void tdm__factors_begin(tdm__factors *f)
{
    tdm_team *team = f->team;
    double begin = tdm_clock_s();
    int64_t count = f->replicas->count, lanes = team->options.lane_count / count;
    memset(f->held, 0, 2 * (size_t)count * sizeof(*f->held));
    for (int64_t r = 0; r < count; r++) /* after local steps every replica contributes */
        f->absent[r] = !tdm_job_is_local(team->job) && !replica_has_rows(team, r, lanes);
    memcpy(f->q_before, factor_of(f, f->replicas->first[team->place], false),
           f->q_count * sizeof(float));
    tdm_codec_key key = {.seed = team->options.seed, .step = team->in.step};
    tdm_codec_lowrank_start(f->codec, &key, f->q_before);
    team->codec_seconds += tdm_clock_s() - begin;
}

tdm_status tdm__factors_project(tdm__factors *f, int64_t replica, float *sum, tdm_error *err)
{
    double begin = tdm_clock_s();
    const float *before = residual_of(f, replica, false);
    float *p = f->p + (size_t)replica * f->p_stride;
    TDM_TRY(tdm_codec_lowrank_project(f->codec, sum, &before, f->q_before,
                                      residual_of(f, replica, true), p, err));
    f->held[f->replicas->count + replica] = p;
    f->team->payload_bytes += (f->p_count + f->q_count) * sizeof(float);
    f->team->codec_seconds += tdm_clock_s() - begin;
    return TDM_OK;
}

void tdm__factors_fail(tdm__factors *f, int64_t replica)
{
    float *p = f->p + (size_t)replica * f->p_stride;
    memset(p, 0, f->p_count * sizeof(*p));
    p[0] = NAN;
    f->held[f->replicas->count + replica] = p;
}

/* ---- sums over the replicas -------------------------------------------------------------------- */

/* Adds the factors below a node into the leftmost one; NULL: there are none. */
static float *node_fold(tdm__factors *f, int64_t node, size_t count)
{
    if (node >= f->replicas->count) return f->held[node];
    float *left = node_fold(f, 2 * node, count), *right = node_fold(f, 2 * node + 1, count);
    if (left && right) (void)tdm__add_range(left, right, count);
    return left ? left : right;
}

/* The sum over all replicas. *finite: all of its numbers are. */
static tdm_status factors_sum(tdm__factors *f, size_t count, float *out, bool *finite,
                              tdm_error *err)
{
    tdm_team *team = f->team;
    const tdm__replicas *replicas = f->replicas;
    int64_t nodes[TDM_MAX_LANE_PARTS];
    const void *parts[TDM_MAX_LANE_PARTS];
    tdm_lanes lanes = {replicas->count, replicas->first, f->absent};
    double begin = tdm_clock_s();
    int part_count = tdm_lane_nodes(&lanes, replicas->first[team->place],
                                    replicas->first[team->place + 1], nodes);
    for (int i = 0; i < part_count; i++) parts[i] = node_fold(f, nodes[i], count);
    team->codec_seconds += tdm_clock_s() - begin;
    begin = tdm_clock_s();
    if (team->size == 1) {
        if (part_count > 0) memcpy(out, parts[0], count * sizeof(*out));
    } else {
        tdm_call call = {.kind = TDM_CALL_ALL_REDUCE,
                         .dtype = TDM_DTYPE_F32,
                         .count = count,
                         .out = out,
                         .lanes = &lanes,
                         .parts = parts};
        TDM_TRY(tdm_call_run(team->group, &call, err));
    }
    team->wait_seconds += tdm_clock_s() - begin;
    *finite = true;
    for (size_t i = 0; i < count; i++) *finite = *finite && isfinite(out[i]);
    return TDM_OK;
}

/* ---- the second part --------------------------------------------------------------------------- */

/* Computes the second factor of each of this rank's replicas from the sum of the first ones. */
static void factors_project_back(tdm__factors *f)
{
    const tdm__replicas *replicas = f->replicas;
    int place = f->team->place;
    tdm_codec_lowrank_orthogonalise(f->codec, f->p_sum);
    for (int64_t r = replicas->first[place]; r < replicas->first[place + 1]; r++) {
        float *q = f->q + (size_t)r * f->q_stride;
        if (f->absent[r]) continue;
        tdm_codec_lowrank_back(f->codec, residual_of(f, r, true), f->p_sum, q);
        f->held[replicas->count + r] = q;
    }
}

/* Completes the versions of this rank's replicas that the first part has begun. */
static tdm_status factors_write_states(tdm__factors *f, tdm_error *err)
{
    tdm_team *team = f->team;
    const tdm__replicas *replicas = f->replicas;
    int64_t present = 0;
    for (int64_t r = 0; r < replicas->count; r++) present += !f->absent[r];
    for (int64_t r = replicas->first[team->place]; r < replicas->first[team->place + 1]; r++) {
        float *residual = residual_of(f, r, true);
        TDM_TRY(tdm__undo_write_begin(team->undo_log, err));
        if (!f->absent[r])
            tdm_codec_lowrank_residual(f->codec, residual, f->p_sum, f->q_sum,
                                       1.0 / (double)present, residual);
        memcpy(factor_of(f, r, true), f->q_sum, f->q_count * sizeof(float));
        tdm__team_point(team, "factor", (uint64_t)r);
        tdm__replica_write_end(replicas, r, team->in.step);
        tdm__undo_write_end(team->undo_log);
    }
    return TDM_OK;
}

/* Writes the numbers of [begin, end) of the sum over all replicas. */
static void factors_multiply(tdm__factors *f, bool finite, size_t begin, size_t end, float *out)
{
    if (finite)
        tdm_codec_lowrank_reconstruct(f->codec, f->p_sum, f->q_sum, begin, end, out);
    else
        out[begin] = NAN;
    if (!finite || !tdm__add_range(out + begin, NULL, end - begin))
        atomic_store(&f->team->overflow_risk, true);
}

/* With messages: the sums of the cells that this rank updates. */
static void factors_multiply_share(tdm__factors *f, bool finite)
{
    tdm_team *team = f->team;
    for (size_t i = 0; i < team->own_count; i++) {
        tdm_extent range = tdm__cells_extent(team->layout, team->own[i].cells);
        size_t end = range.first + range.count;
        if (end > team->trained_extent) end = team->trained_extent;
        if (range.first < end) factors_multiply(f, finite, range.first, end, team->summed);
    }
}

/* In shared memory: the part with the first lane is the sum over all replicas; to the others' parts it adds nothing. */
static void factors_multiply_parts(tdm__factors *f, bool finite)
{
    tdm_team *team = f->team;
    int64_t nodes[TDM_MAX_LANE_PARTS];
    tdm_lanes lanes = {team->options.lane_count, team->first, team->absent};
    int count = tdm_lane_nodes(&lanes, team->first[team->place], team->first[team->place + 1],
                               nodes);
    for (int i = 0; i < count; i++) {
        float *part = team->tree.held[nodes[i]];
        if (i == 0 && team->first[team->place] == 0)
            factors_multiply(f, finite, 0, team->trained_extent, part);
        else
            memset(part, 0, team->trained_extent * sizeof(*part));
    }
}

tdm_status tdm__factors_finish(tdm__factors *f, tdm_error *err)
{
    tdm_team *team = f->team;
    bool finite;
    TDM_TRY(factors_sum(f, f->p_count, f->p_sum, &finite, err));
    double begin = tdm_clock_s();
    if (finite) {
        factors_project_back(f);
        team->codec_seconds += tdm_clock_s() - begin;
        TDM_TRY(factors_sum(f, f->q_count, f->q_sum, &finite, err));
        begin = tdm_clock_s();
    }
    if (finite) TDM_TRY(factors_write_states(f, err));
    if (team->buckets)
        factors_multiply_share(f, finite);
    else
        factors_multiply_parts(f, finite);
    team->codec_seconds += tdm_clock_s() - begin;
    tdm__team_mark(team, "factors", begin);
    return TDM_OK;
}
