/*
 * compress.c: compression of the contributions of replicas, and the exchange of payloads. See compress.h.
 *
 * Invariants: payloads are exchanged in the order of the replicas, each aligned to PAYLOAD_ALIGN. Every rank adds the
 * decoded contributions of a piece by the tree over the replicas, so sums have the same bits on all nodes.
 */
#include "parallel/compress.h"
#include "base/base.h"
#include "comm/comm.h"
#include "job/job.h"
#include "parallel/factors.h"
#include "tensor/kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PAYLOAD_ALIGN = 64 };
#define PAYLOAD_NONFINITE UINT64_MAX /* instead of a size */

struct tdm__compress {
    tdm_team *team;
    tdm__replicas *replicas;
    tdm_codec *codec;
    tdm__factors *factors; /* NULL: contributions are payloads */
    int first_array, array_count;
    int64_t warmup;
    double ratio;
    size_t max_bytes;  /* of a payload */
    tdm_pages sent;    /* payloads of this rank */
    size_t sent_bytes; /* in this step */
    uint64_t *sizes;   /* by replica: of its payload; 0: none */
    bool is_finite;    /* all contributions of this step are */
    /* With messages: */
    tdm_pages received; /* payloads of all replicas */
    tdm_pages decoded;  /* one block for each replica; only the parts that this rank updates */
    tdm__tree tree;     /* over the replicas */
    bool *is_own;       /* by tensor: this rank updates a part of it */
    size_t *cuts;       /* size + 1 */
    size_t tensor_count;
    tdm_codec_tensor *tensors;
};

/* ---- settings -------------------------------------------------------------------------------- */

static tdm_codec_options options_of(const tdm_job *job)
{
    static const tdm_codec_sparsify sparsify[] = {
        [TDM_JOB_SPARSIFY_NONE] = TDM_CODEC_SPARSIFY_NONE,
        [TDM_JOB_SPARSIFY_TOPK] = TDM_CODEC_SPARSIFY_TOPK,
        [TDM_JOB_SPARSIFY_TOPK_SAMPLED] = TDM_CODEC_SPARSIFY_TOPK_SAMPLED,
        [TDM_JOB_SPARSIFY_RANDOMK] = TDM_CODEC_SPARSIFY_RANDOMK,
        [TDM_JOB_SPARSIFY_THRESHOLD] = TDM_CODEC_SPARSIFY_THRESHOLD,
    };
    static const tdm_codec_quantise quantise[] = {
        [TDM_JOB_QUANTISE_NONE] = TDM_CODEC_QUANTISE_NONE,
        [TDM_JOB_QUANTISE_BF16] = TDM_CODEC_QUANTISE_BF16,
        [TDM_JOB_QUANTISE_F16] = TDM_CODEC_QUANTISE_F16,
        [TDM_JOB_QUANTISE_INT8] = TDM_CODEC_QUANTISE_INT8,
        [TDM_JOB_QUANTISE_INT4] = TDM_CODEC_QUANTISE_INT4,
        [TDM_JOB_QUANTISE_QSGD] = TDM_CODEC_QUANTISE_QSGD,
        [TDM_JOB_QUANTISE_SIGN] = TDM_CODEC_QUANTISE_SIGN,
    };
    return (tdm_codec_options){.sparsify = sparsify[job->compress.sparsify],
                               .ratio = job->compress.ratio,
                               .threshold = job->compress.threshold,
                               .quantise = quantise[job->compress.quantise],
                               .levels = (int)job->compress.levels,
                               .feedback = job->compress.feedback,
                               .momentum = job->compress.momentum,
                               .mask = job->compress.mask && job->compress.momentum > 0,
                               .clip_norm = job->compress.clip_norm,
                               .rank = (int)job->compress.rank,
                               .min_rate = tdm_job_factors(job) ? job->compress.min_rate : 0,
                               .min_elements = (size_t)job->compress.min_elements};
}

tdm_codec_options tdm__compress_options(const tdm_job *job, tdm_payoff_method method)
{
    tdm_codec_options options = {.feedback = true,
                                 .min_elements = (size_t)job->compress.min_elements};
    switch (method) {
    case TDM_PAYOFF_BF16: options.quantise = TDM_CODEC_QUANTISE_BF16; break;
    case TDM_PAYOFF_INT8: options.quantise = TDM_CODEC_QUANTISE_INT8; break;
    case TDM_PAYOFF_TOPK:
        options.sparsify = TDM_CODEC_SPARSIFY_TOPK_SAMPLED;
        options.ratio = job->compress.ratio;
        break;
    case TDM_PAYOFF_OWN: return options_of(job);
    default: return (tdm_codec_options){0};
    }
    return options;
}

int tdm_compress_arrays(const tdm_job *job, const char *names[TDM_MAX_COMPRESS_ARRAYS])
{
    int count = 0;
    if (!tdm_job_compresses(job) || !job->compress.feedback) return 0;
    names[count++] = "residual";
    if (job->compress.momentum > 0) names[count++] = "velocity";
    return count;
}

/* The fraction that is sent in a step: from a quarter to compress.ratio, exponentially. */
static double compress_ratio_at(const tdm__compress *compress, uint64_t step)
{
    const double from = 0.25;
    if (step >= (uint64_t)compress->warmup || compress->ratio >= from) return compress->ratio;
    double share = (double)step / (double)compress->warmup;
    return from * tdm_math_exp(share * tdm_math_log(compress->ratio / from));
}

/* ---- creation -------------------------------------------------------------------------------- */

/* The codec of a job, by a method, for the trained tensors of a graph. */
static tdm_status codec_of(const tdm_job *job, tdm_payoff_method method, const tdm_graph *graph,
                           tdm_codec **out, tdm_codec_tensor **tensors, size_t *tensor_count,
                           tdm_error *err)
{
    size_t params = tdm_graph_param_count(graph), count = 0;
    tdm_codec_options options = tdm__compress_options(job, method);
    *tensors = calloc(params + 1, sizeof(**tensors));
    if (!*tensors) return tdm_fail_oom(err, "for the compression");
    for (size_t i = 0; i < params; i++) {
        const tdm_param_info *p = tdm_graph_param_at(graph, i);
        if (!p->trained) continue;
        (*tensors)[count++] = (tdm_codec_tensor){.name = p->name,
                                                 .offset = p->offset,
                                                 .elements = p->elements,
                                                 .rows = p->shape.rank > 1 ? (size_t)p->shape.dim[0]
                                                                           : 0};
    }
    *tensor_count = count;
    tdm_error why = {0};
    tdm_status status = tdm_codec_create(&options, *tensors, count, out, &why);
    if (status == TDM_ERR_INVALID)
        return tdm_fail(err, TDM_ERR_JOB_INVALID, "%s: %s",
                        tdm_job_factors(job) ? "compress.rank" : "compress", why.message);
    if (status != TDM_OK && err) *err = why;
    return status;
}

tdm_status tdm_compress_sizes_of(const tdm_job *job, const tdm_graph *graph,
                                 tdm_compress_sizes *out, tdm_error *err)
{
    tdm_codec *codec = NULL;
    tdm_codec_tensor *tensors = NULL;
    size_t count;
    *out = (tdm_compress_sizes){0};
    if (!tdm_job_compresses(job)) return TDM_OK;
    /* Of the methods of compress.auto, bf16 has the largest payload. */
    tdm_payoff_method method = job->compress.automatic ? TDM_PAYOFF_BF16 : TDM_PAYOFF_OWN;
    tdm_status status = codec_of(job, method, graph, &codec, &tensors, &count, err);
    if (status == TDM_OK)
        *out = (tdm_compress_sizes){.payload_bytes = tdm_codec_max_bytes_at(codec, 0),
                                    .first_factor = tdm_codec_lowrank_p_elements(codec),
                                    .second_factor = tdm_codec_lowrank_q_elements(codec)};
    tdm_codec_destroy(codec);
    free(tensors);
    return status;
}

static tdm_status compress_make_memory(tdm__compress *compress, tdm_error *err)
{
    const tdm_team *team = compress->team;
    size_t count = (size_t)compress->replicas->count;
    size_t mine = (size_t)(compress->replicas->first[team->place + 1] -
                           compress->replicas->first[team->place]);
    bool by_messages = team->size > 1 && team->layout->node_count > 1;
    compress->max_bytes = (tdm_codec_max_bytes(compress->codec) + PAYLOAD_ALIGN - 1) /
                          PAYLOAD_ALIGN * PAYLOAD_ALIGN;
    compress->sizes = calloc(count, sizeof(*compress->sizes));
    if (!compress->sizes) return tdm_fail_oom(err, "for the compression");
    TDM_TRY(
        tdm_pages_map((by_messages ? mine : 1) * compress->max_bytes, false, &compress->sent, err));
    if (!by_messages) return TDM_OK;

    TDM_TRY(tdm_pages_map(count * compress->max_bytes, false, &compress->received, err));
    TDM_TRY(
        tdm_pages_map(count * team->block_extent * sizeof(float), false, &compress->decoded, err));
    compress->tree = (tdm__tree){(int64_t)count, calloc(2 * count, sizeof(float *))};
    compress->is_own = calloc(compress->tensor_count + 1, sizeof(*compress->is_own));
    compress->cuts = calloc((size_t)team->size + 1, sizeof(*compress->cuts));
    if (!compress->tree.held || !compress->is_own || !compress->cuts)
        return tdm_fail_oom(err, "for the compression");
    return TDM_OK;
}

static tdm_status compress_make_codec(tdm__compress *compress, tdm_payoff_method method,
                                      tdm_error *err)
{
    tdm_team *team = compress->team;
    TDM_TRY(codec_of(team->job, method, team->graphs[0].graph, &compress->codec, &compress->tensors,
                     &compress->tensor_count, err));
    if (!tdm_job_factors(team->job)) return compress_make_memory(compress, err);
    return tdm__factors_create(team, compress->replicas, compress->codec, compress->first_array,
                               &compress->factors, err);
}

tdm_status tdm__compress_choose(tdm__compress *compress, tdm_payoff_method method, tdm_error *err)
{
    if (method == TDM_PAYOFF_NONE || compress->codec) return TDM_OK;
    return compress_make_codec(compress, method, err);
}

tdm_status tdm__compress_create(tdm_team *team, tdm__replicas *replicas, int first_array,
                                tdm__compress **out, tdm_error *err)
{
    *out = NULL;
    if (!tdm_job_compresses(team->job)) return TDM_OK;
    tdm__compress *compress = calloc(1, sizeof(*compress));
    if (!compress) return tdm_fail_oom(err, "for the compression");
    compress->team = team;
    compress->replicas = replicas;
    const char *names[TDM_MAX_COMPRESS_ARRAYS];
    compress->first_array = first_array;
    compress->array_count = tdm_compress_arrays(team->job, names);
    compress->warmup = team->job->compress.warmup;
    compress->ratio = team->job->compress.ratio;
    tdm_status status = TDM_OK;
    if (!team->job->compress.automatic) status = compress_make_codec(compress, TDM_PAYOFF_OWN, err);
    if (status != TDM_OK) {
        tdm__compress_destroy(compress);
        return status;
    }
    *out = compress;
    return TDM_OK;
}

void tdm__compress_destroy(tdm__compress *compress)
{
    if (!compress) return;
    tdm__factors_destroy(compress->factors);
    tdm_codec_destroy(compress->codec);
    tdm_pages_unmap(&compress->sent);
    tdm_pages_unmap(&compress->received);
    tdm_pages_unmap(&compress->decoded);
    free(compress->sizes);
    free(compress->tree.held);
    free(compress->is_own);
    free(compress->cuts);
    free(compress->tensors);
    free(compress);
}

/* ---- encoding -------------------------------------------------------------------------------- */

bool tdm__compress_is_active(const tdm__compress *compress)
{
    const tdm_team *team = compress->team;
    return compress->codec && !team->visit &&
           team->in.step >= (uint64_t)team->job->compress.start_step;
}

bool tdm__compress_sums_first(const tdm__compress *compress)
{
    return compress->factors && tdm__compress_is_active(compress);
}

void tdm__compress_begin(tdm__compress *compress)
{
    if (compress->factors) {
        if (tdm__compress_is_active(compress)) tdm__factors_begin(compress->factors);
        return;
    }
    compress->sent_bytes = 0;
    compress->is_finite = true;
    if (compress->sizes)
        memset(compress->sizes, 0, (size_t)compress->replicas->count * sizeof(*compress->sizes));
}

/* The states of a replica in a version. */
static void replica_states(const tdm__compress *compress, int64_t replica, int version,
                           float *out[TDM_CODEC_MAX_STATES])
{
    for (int k = 0; k < compress->array_count; k++)
        out[k] = tdm__replica_array(compress->replicas, replica, version,
                                    compress->first_array + k);
}

tdm_status tdm__compress_encode(tdm__compress *compress, int64_t replica, float *sum,
                                tdm_error *err)
{
    tdm_team *team = compress->team;
    int version = compress->replicas->current[replica];
    bool by_messages = compress->received.data != NULL;
    float *before[TDM_CODEC_MAX_STATES], *after[TDM_CODEC_MAX_STATES];
    double begin = tdm_clock_s();
    size_t bytes = 0;
    replica_states(compress, replica, version, before);
    replica_states(compress, replica, 1 - version, after);
    if (!sum || !tdm__compress_is_active(compress)) {
        for (int k = 0; k < compress->array_count; k++)
            memcpy(after[k], before[k], compress->replicas->elements * sizeof(float));
        return TDM_OK;
    }
    for (size_t i = 0; i < compress->tensor_count; i++)
        team->dense_bytes += compress->tensors[i].elements * sizeof(float);
    if (compress->factors) return tdm__factors_project(compress->factors, replica, sum, err);

    char *payload = (char *)compress->sent.data + compress->sent_bytes;
    /* Of several updates in order, each has its own step: how they are divided into steps affects no bit. */
    uint64_t step = team->in.order ? team->key_step : team->in.step;
    tdm_codec_key key = {.seed = team->options.seed,
                         .step = step,
                         .replica = (uint32_t)replica,
                         .ratio = compress_ratio_at(compress, step)};
    TDM_TRY(tdm_codec_encode(compress->codec, &key, sum, (const float *const *)before, after,
                             payload, &bytes, err));
    compress->sizes[replica] = bytes;
    team->payload_bytes += bytes;
    if (by_messages)
        compress->sent_bytes += (bytes + PAYLOAD_ALIGN - 1) / PAYLOAD_ALIGN * PAYLOAD_ALIGN;
    else
        TDM_TRY(tdm_codec_decode(compress->codec, payload, bytes, sum, err));
    team->codec_seconds += tdm_clock_s() - begin;
    return TDM_OK;
}

void tdm__compress_fail(tdm__compress *compress, int64_t replica)
{
    if (compress->factors)
        tdm__factors_fail(compress->factors, replica);
    else if (compress->sizes)
        compress->sizes[replica] = PAYLOAD_NONFINITE;
}

/* ---- the exchange ----------------------------------------------------------------------------- */

static size_t payload_room(uint64_t bytes)
{
    return (size_t)(bytes + PAYLOAD_ALIGN - 1) / PAYLOAD_ALIGN * PAYLOAD_ALIGN;
}

/* All ranks get the sizes of all payloads, then the payloads. */
static tdm_status payloads_gather(tdm__compress *compress, tdm_error *err)
{
    const tdm_team *team = compress->team;
    const tdm__replicas *replicas = compress->replicas;
    for (int i = 0; i <= team->size; i++) compress->cuts[i] = (size_t)replicas->first[i];
    tdm_call sizes = {.kind = TDM_CALL_ALL_GATHER,
                      .dtype = TDM_DTYPE_I64,
                      .count = (size_t)replicas->count,
                      .in = compress->sizes + replicas->first[team->place],
                      .out = compress->sizes,
                      .cuts = compress->cuts};
    TDM_TRY(tdm_call_run(team->group, &sizes, err));

    size_t at = 0;
    for (int i = 0; i < team->size; i++) {
        compress->cuts[i] = at;
        for (int64_t r = replicas->first[i]; r < replicas->first[i + 1]; r++) {
            if (compress->sizes[r] == PAYLOAD_NONFINITE) {
                compress->is_finite = false;
                compress->sizes[r] = 0;
            }
            if (compress->sizes[r] > compress->max_bytes)
                return tdm_fail(err, TDM_ERR_FORMAT,
                                "the payload of replica %lld has %llu bytes, but at most %zu are "
                                "possible",
                                (long long)r, (unsigned long long)compress->sizes[r],
                                compress->max_bytes);
            at += payload_room(compress->sizes[r]);
        }
    }
    compress->cuts[team->size] = at;
    tdm_call payloads = {.kind = TDM_CALL_ALL_GATHER,
                         .dtype = TDM_DTYPE_U8,
                         .count = at,
                         .in = compress->sent.data,
                         .out = compress->received.data,
                         .cuts = compress->cuts};
    return at > 0 ? tdm_call_run(team->group, &payloads, err) : TDM_OK;
}

/* Finds the tensors that have elements in the cells that this rank updates: most of them, even if it updates a part of
 * each bucket (parallel.zero: 1). Shares and tensors are in the order of the block. */
static void tensors_find_own(tdm__compress *compress)
{
    const tdm_team *team = compress->team;
    size_t k = 0;
    for (size_t i = 0; i < compress->tensor_count; i++) {
        const tdm_codec_tensor *t = &compress->tensors[i];
        while (k < team->own_count && team->own[k].cells.end * TDM__CELL <= t->offset) k++;
        compress->is_own[i] = k < team->own_count &&
                              team->own[k].cells.first * TDM__CELL < t->offset + t->elements;
    }
}

/* Decodes the tensors that this rank updates from the payload of a replica, each of them once. */
static tdm_status payload_decode(const tdm__compress *compress, const char *payload, size_t bytes,
                                 float *out, tdm_error *err)
{
    for (size_t i = 0, end; i < compress->tensor_count; i = end) {
        for (end = i; end < compress->tensor_count && compress->is_own[end]; end++) {
        }
        if (end > i)
            TDM_TRY(tdm_codec_decode_tensors(compress->codec, payload, bytes, i, end, out, err));
        while (end < compress->tensor_count && !compress->is_own[end]) end++;
    }
    return TDM_OK;
}

static tdm_status payloads_decode(tdm__compress *compress, tdm_error *err)
{
    const tdm_team *team = compress->team;
    size_t at = 0;
    tensors_find_own(compress);
    for (int64_t r = 0; r < compress->replicas->count; r++) {
        const char *payload = (const char *)compress->received.data + at;
        float *out = (float *)compress->decoded.data + (size_t)r * team->block_extent;
        size_t bytes = (size_t)compress->sizes[r];
        at += payload_room(bytes);
        compress->tree.held[compress->replicas->count + r] = bytes > 0 ? out : NULL;
        if (bytes > 0) TDM_TRY(payload_decode(compress, payload, bytes, out, err));
    }
    return TDM_OK;
}

typedef struct share_sum {
    const tdm__compress *compress;
    size_t first, end; /* elements */
} share_sum;

static void share_sum_range(const void *args, int64_t begin, int64_t end)
{
    const share_sum *s = args;
    const tdm_team *team = s->compress->team;
    float *scratch = team->scratch + (size_t)tdm_kernel_thread() * team->scratch_elements;
    for (int64_t cell = begin; cell < end; cell++) {
        size_t at = s->first + (size_t)cell * TDM__CELL;
        size_t count = s->end - at < TDM__CELL ? s->end - at : TDM__CELL;
        if (!tdm__tree_sum(&s->compress->tree, 1, at, count, team->summed + at, scratch))
            memset(team->summed + at, 0, count * sizeof(float));
    }
}

/* Adds the decoded contributions of the cells that this rank updates. */
static void compress_sum_share(const tdm__compress *compress, tdm__cells cells)
{
    tdm_team *team = compress->team;
    tdm_extent range = tdm__cells_extent(team->layout, cells);
    share_sum s = {compress, range.first, range.first + range.count};
    if (s.end > team->trained_extent) s.end = team->trained_extent;
    if (s.first >= s.end) return;
    tdm_kernel_spread((int64_t)((s.end - s.first + TDM__CELL - 1) / TDM__CELL), TDM__CELL,
                      share_sum_range, &s);
    if (!compress->is_finite) team->summed[s.first] = NAN;
    if (!tdm__add_range(team->summed + s.first, NULL, s.end - s.first))
        atomic_store(&team->overflow_risk, true);
}

/* Statistics are not compressed: they are few. */
static tdm_status compress_sum_statistics(tdm__compress *compress, tdm_error *err)
{
    tdm_team *team = compress->team;
    size_t count = team->grad_extent - team->trained_extent;
    int64_t nodes[TDM_MAX_LANE_PARTS];
    const void *parts[TDM_MAX_LANE_PARTS];
    tdm_lanes lanes = {team->options.lane_count, team->first, team->absent};
    if (count == 0) return TDM_OK;
    int part_count = tdm_lane_nodes(&lanes, team->first[team->place], team->first[team->place + 1],
                                    nodes);
    for (int i = 0; i < part_count; i++)
        parts[i] = team->tree.held[nodes[i]] + team->trained_extent;
    tdm_call call = {.kind = TDM_CALL_ALL_REDUCE,
                     .dtype = TDM_DTYPE_F32,
                     .count = count,
                     .out = team->summed + team->trained_extent,
                     .lanes = &lanes,
                     .parts = parts};
    return tdm_call_run(team->group, &call, err);
}

tdm_status tdm__compress_exchange(tdm__compress *compress, tdm_error *err)
{
    tdm_team *team = compress->team;
    TDM_TRY(tdm__params_serve(team->options.store, err)); /* this rank may have had no rows */
    double begin = tdm_clock_s();
    if (compress->factors) {
        if (team->buckets) TDM_TRY(compress_sum_statistics(compress, err));
        team->wait_seconds += tdm_clock_s() - begin;
        return tdm__factors_finish(compress->factors, err);
    }
    TDM_TRY(payloads_gather(compress, err));
    TDM_TRY(compress_sum_statistics(compress, err));
    team->wait_seconds += tdm_clock_s() - begin;
    tdm__team_mark(team, "payloads", begin);
    begin = tdm_clock_s();
    TDM_TRY(payloads_decode(compress, err));
    for (size_t i = 0; i < team->own_count; i++) compress_sum_share(compress, team->own[i].cells);
    team->codec_seconds += tdm_clock_s() - begin;
    return TDM_OK;
}
