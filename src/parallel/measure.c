/*
 * measure.c: measures the link between hosts and the cost of compression, for payoff.h.
 *
 * All ranks measure at the same time, as they compress at the same time, and use the values of the slowest one: so all
 * get the same numbers. The first ranks of the nodes measure the link with growing all-gathers, until one takes long
 * enough to be exact.
 */
#include "base/base.h"
#include "codec/codec.h"
#include "comm/comm.h"
#include "job/job.h"
#include "parallel/compress.h"
#include "parallel/internal.h"
#include "parallel/replica_run.h"
#include "tensor/kernel.h"

#include <stdlib.h>
#include <string.h>

enum {
    TRIAL_ROWS = 1024, /* larger than caches, as gradients are */
    TRIAL_ELEMENTS = TRIAL_ROWS * TRIAL_ROWS,
    TRIAL_RUNS = 2, /* the fastest counts: the first one also touches memory */
    LINK_FIRST_BYTES = 256 << 10,
    LINK_MAX_BYTES = 16 << 20
};

static const double link_enough_s = 0.08;

/* ---- the codec --------------------------------------------------------------------------------- */

typedef struct trial {
    tdm_codec *codec;
    size_t p_count, q_count;
    float *grad, *values, *states[2][TDM_CODEC_MAX_STATES], *out;
    float *p, *q;
    void *payload;
} trial;

static void trial_release(trial *t)
{
    tdm_codec_destroy(t->codec);
    free(t->grad);
    free(t->values);
    free(t->out);
    free(t->p);
    free(t->q);
    free(t->payload);
    for (int v = 0; v < 2; v++)
        for (int k = 0; k < TDM_CODEC_MAX_STATES; k++) free(t->states[v][k]);
}

static float *trial_block(size_t elements, bool *missing)
{
    size_t bytes = (elements * sizeof(float) + 63) / 64 * 64 + 64;
    float *block = aligned_alloc(64, bytes);
    if (block)
        memset(block, 0, bytes);
    else
        *missing = true;
    return block;
}

static tdm_status trial_prepare(trial *t, tdm_codec_options options, tdm_error *err)
{
    static const tdm_codec_tensor tensor = {"trial", 0, TRIAL_ELEMENTS, TRIAL_ROWS};
    bool missing = false;
    options.min_elements = 1;
    options.min_rate = 1e-9; /* factors of any rank */
    if (options.rank > TRIAL_ROWS) options.rank = TRIAL_ROWS;
    TDM_TRY(tdm_codec_create(&options, &tensor, 1, &t->codec, err));
    t->p_count = tdm_codec_lowrank_p_elements(t->codec);
    t->q_count = tdm_codec_lowrank_q_elements(t->codec);
    t->grad = trial_block(TRIAL_ELEMENTS, &missing);
    t->values = trial_block(TRIAL_ELEMENTS, &missing);
    t->out = trial_block(TRIAL_ELEMENTS, &missing);
    t->p = trial_block(t->p_count, &missing);
    t->q = trial_block(t->q_count, &missing);
    t->payload = trial_block(tdm_codec_max_bytes(t->codec) / sizeof(float) + 1, &missing);
    for (int v = 0; v < 2; v++)
        for (int k = 0; k < TDM_CODEC_MAX_STATES; k++)
            t->states[v][k] = trial_block(TRIAL_ELEMENTS, &missing);
    if (missing) return tdm_fail_oom(err, "to measure the compression");
    const tdm_rng_address address = {.stream = TDM_RNG_STREAM_CODEC};
    tdm_kernel_normal(address, 1, 0, t->values, TRIAL_ELEMENTS);
    return TDM_OK;
}

/* Encodes and decodes once, in the two halves of PowerSGD or as a payload. */
static tdm_status trial_run(trial *t, tdm_payoff_rate *out, tdm_error *err)
{
    const tdm_codec_key key = {.seed = 1};
    const float *const *before = (const float *const *)t->states[0];
    size_t bytes = (t->p_count + t->q_count) * sizeof(float);
    memcpy(t->grad, t->values, TRIAL_ELEMENTS * sizeof(float));
    double begin = tdm_clock_s();
    if (t->p_count > 0) {
        tdm_codec_lowrank_start(t->codec, &key, t->q);
        TDM_TRY(
            tdm_codec_lowrank_project(t->codec, t->grad, before, t->q, t->states[1][0], t->p, err));
        tdm_codec_lowrank_orthogonalise(t->codec, t->p);
        tdm_codec_lowrank_back(t->codec, t->states[1][0], t->p, t->q);
        tdm_codec_lowrank_residual(t->codec, t->states[1][0], t->p, t->q, 1, t->states[1][0]);
    } else {
        TDM_TRY(tdm_codec_encode(t->codec, &key, t->grad, before, t->states[1], t->payload, &bytes,
                                 err));
    }
    double middle = tdm_clock_s();
    if (t->p_count > 0) {
        tdm_codec_lowrank_reconstruct(t->codec, t->p, t->q, 0, SIZE_MAX, t->out);
    } else {
        TDM_TRY(tdm_codec_decode(t->codec, t->payload, bytes, t->out, err));
        (void)tdm__add_range(t->out, t->values, TRIAL_ELEMENTS);
    }
    double end = tdm_clock_s();
    *out = (tdm_payoff_rate){.bytes = (double)bytes / TRIAL_ELEMENTS,
                             .encode_s = (middle - begin) / TRIAL_ELEMENTS,
                             .decode_s = (end - middle) / TRIAL_ELEMENTS,
                             .is_factors = t->p_count > 0};
    return TDM_OK;
}

static tdm_status method_measure(const tdm_job *job, tdm_payoff_method method, tdm_payoff_rate *out,
                                 tdm_error *err)
{
    trial t = {0};
    tdm_status status = trial_prepare(&t, tdm__compress_options(job, method), err);
    for (int run = 0; run < TRIAL_RUNS && status == TDM_OK; run++) {
        tdm_payoff_rate rate = {0};
        status = trial_run(&t, &rate, err);
        if (run == 0) *out = rate;
        if (rate.encode_s < out->encode_s) out->encode_s = rate.encode_s;
        if (rate.decode_s < out->decode_s) out->decode_s = rate.decode_s;
    }
    trial_release(&t);
    return status;
}

/* ---- the link ---------------------------------------------------------------------------------- */

/* By the first ranks of all nodes. */
static tdm_status link_measure(tdm_group *leaders, int nodes, double *out, tdm_error *err)
{
    tdm_pages pages;
    TDM_TRY(tdm_pages_map(LINK_MAX_BYTES, false, &pages, err));
    tdm_status status = TDM_OK;
    double seconds = 0;
    for (size_t bytes = LINK_FIRST_BYTES; /* the first one also opens connections */
         bytes <= LINK_MAX_BYTES && seconds < link_enough_s && status == TDM_OK; bytes *= 2) {
        status = tdm_group_barrier(leaders, err);
        double begin = tdm_clock_s();
        if (status == TDM_OK)
            status = tdm_group_all_gather(leaders, NULL, pages.data, bytes, TDM_DTYPE_U8, err);
        seconds = tdm_clock_s() - begin;
        if (status == TDM_OK)
            status = tdm_group_all_reduce(leaders, NULL, &seconds, 1, TDM_DTYPE_F64, TDM_REDUCE_MAX,
                                          err);
        *out = (double)(nodes - 1) / (double)nodes * (double)bytes / (seconds > 0 ? seconds : 1e-9);
    }
    tdm_pages_unmap(&pages);
    return status;
}

/* ---- all of it --------------------------------------------------------------------------------- */

/* The values of the slowest rank. */
static tdm_status rates_agree(const tdm_team *team, tdm_payoff *p, tdm_error *err)
{
    double all[1 + 2 * TDM_PAYOFF_METHODS] = {p->link};
    for (int m = 0; m < TDM_PAYOFF_METHODS; m++) {
        all[1 + 2 * m] = p->rates[m].encode_s;
        all[2 + 2 * m] = p->rates[m].decode_s;
    }
    if (team->group)
        TDM_TRY(tdm_group_all_reduce(team->group, NULL, all, sizeof(all) / sizeof(all[0]),
                                     TDM_DTYPE_F64, TDM_REDUCE_MAX, err));
    p->link = all[0]; /* only the first ranks of nodes have measured it, and these agree */
    for (int m = 0; m < TDM_PAYOFF_METHODS; m++) {
        p->rates[m].encode_s = all[1 + 2 * m];
        p->rates[m].decode_s = all[2 + 2 * m];
    }
    return TDM_OK;
}

tdm_payoff_classes tdm_payoff_classes_of(const tdm_job *job, const tdm_graph *graph)
{
    tdm_payoff_classes classes = {0};
    for (size_t i = 0; i < tdm_graph_param_count(graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(graph, i);
        if (!p->trained) continue;
        if (p->elements >= (size_t)job->compress.min_elements)
            classes.large += p->elements;
        else
            classes.small += p->elements;
    }
    return classes;
}

tdm_status tdm_team_measure(tdm_team *team, tdm_payoff *out, tdm_error *err)
{
    tdm_job job = *team->job;
    bool has_own = tdm_job_compresses(&job) && !job.compress.automatic;
    if (!has_own) job.compress.automatic = true; /* to have replicas */
    tdm_payoff p = {
        .hosts = team->layout->node_count, .ranks = team->size, .replicas = tdm_replicas_of(&job)};
    tdm_kernel_mode before = tdm_kernel_enter(team->thread_count);
    tdm_status status = TDM_OK;
    for (int m = TDM_PAYOFF_BF16; m < TDM_PAYOFF_METHODS && status == TDM_OK; m++)
        if ((m == TDM_PAYOFF_OWN) == has_own)
            status = method_measure(&job, (tdm_payoff_method)m, &p.rates[m], err);
    tdm_kernel_leave(&before);
    TDM_TRY(tdm_comm_agree(team->options.comm, status, NULL, err));
    if (team->layout->leaders)
        TDM_TRY(link_measure(team->layout->leaders, team->layout->node_count, &p.link, err));
    TDM_TRY(rates_agree(team, &p, err));
    *out = p;
    return TDM_OK;
}

tdm_status tdm_team_compress(tdm_team *team, tdm_payoff_method method, tdm_error *err)
{
    if (!team->replicas || !team->replicas->compress) return TDM_OK;
    tdm_status status = tdm__compress_choose(team->replicas->compress, method, err);
    return tdm_comm_agree(team->options.comm, status, NULL, err);
}
