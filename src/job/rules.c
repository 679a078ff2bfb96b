/*
 * rules.c: checks of combinations of keys.
 *
 * Each rule is a row: the keys that it reads, a test on the job, and the message. A rule is applied
 * only if all its keys have checked values, so that one mistake is not reported twice. Pairs of keys
 * that exclude or need each other are columns of the table of keys instead.
 *
 * Keys that the job's model does not use are not errors, because a shown job contains all of them;
 * they cause a warning if they differ from the default.
 */
#include <stddef.h>
#include <string.h>

#include "job/internal.h"
#include "job/job.h"

enum { MAX_RULE_KEYS = 6 };

typedef struct rule {
    const char *keys
        [MAX_RULE_KEYS]; /* that it reads; the problem is reported at the first that was given */
    bool (*is_broken)(const tdm_job *job);
    const char *message;
} rule;

static bool train_labels_of_csv(const tdm_job *job)
{
    return job->data.format == TDM_JOB_FORMAT_CSV && job->data.train_labels;
}

static bool test_labels_of_csv(const tdm_job *job)
{
    return job->data.format == TDM_JOB_FORMAT_CSV && job->data.test_labels;
}

static bool idx_without_labels(const tdm_job *job)
{
    return job->data.format == TDM_JOB_FORMAT_IDX && !job->data.train_labels;
}

static bool only_train_has_labels(const tdm_job *job)
{
    if (job->data.format == TDM_JOB_FORMAT_CSV) return false; /* another rule reports it */
    return job->data.train_labels && job->data.test && !job->data.test_labels;
}

static bool only_test_has_labels(const tdm_job *job)
{
    if (job->data.format == TDM_JOB_FORMAT_CSV) return false;
    return job->data.test && job->data.test_labels && !job->data.train_labels;
}

static bool nesterov_of_adamw(const tdm_job *job)
{
    return job->optim.nesterov && job->optim.kind != TDM_JOB_OPTIM_SGD;
}

static bool nesterov_without_momentum(const tdm_job *job)
{
    return job->optim.nesterov && job->optim.kind == TDM_JOB_OPTIM_SGD && job->optim.momentum == 0;
}

static bool centred_of_another(const tdm_job *job)
{
    return job->optim.centred && job->optim.kind != TDM_JOB_OPTIM_RMSPROP;
}

static bool step_without_every_steps(const tdm_job *job)
{
    return job->schedule.kind == TDM_JOB_SCHEDULE_STEP && job->schedule.every_steps == 0;
}

static bool multi_step_without_milestones(const tdm_job *job)
{
    return job->schedule.kind == TDM_JOB_SCHEDULE_MULTI_STEP && job->schedule.milestones.count == 0;
}

static bool milestones_do_not_rise(const tdm_job *job)
{
    const tdm_job_int_list *list = &job->schedule.milestones;
    for (size_t i = 1; i < list->count; i++)
        if (list->values[i] <= list->values[i - 1]) return true;
    return false;
}

static bool plateau_that_never_lowers(const tdm_job *job)
{
    return tdm__schedule_evaluates(job) && job->schedule.gamma >= 1;
}

static bool is_never_measured(const tdm_job *job)
{
    bool is_due = job->eval.every_epochs > 0 || job->eval.every_steps > 0;
    return !is_due || (!job->data.test && job->data.test_fraction == 0);
}

static bool plateau_without_measure(const tdm_job *job)
{
    return tdm__schedule_evaluates(job) && is_never_measured(job);
}

static bool early_stop_without_measure(const tdm_job *job)
{
    return job->train.early_stop && is_never_measured(job);
}

static bool ema_that_is_not_kept(const tdm_job *job)
{
    return job->eval.weights == TDM_JOB_WEIGHTS_EMA && job->optim.ema == 0;
}

static bool layers_without_list(const tdm_job *job)
{
    return job->model.kind == TDM_JOB_MODEL_LAYERS && !job->layers.items;
}

static bool list_for_another(const tdm_job *job)
{
    return job->model.kind != TDM_JOB_MODEL_LAYERS && job->layers.items;
}

static bool text_for_another(const tdm_job *job)
{
    return job->data.format == TDM_JOB_FORMAT_TEXT && !tdm_job_takes_tokens(job) &&
           job->model.kind != TDM_JOB_MODEL_LIBRARY; /* the library itself checks it */
}

static bool tokens_without_text(const tdm_job *job)
{
    return tdm_job_takes_tokens(job) &&
           (job->data.format == TDM_JOB_FORMAT_CSV || job->data.format == TDM_JOB_FORMAT_IDX);
}

static bool format_is_sparse(const tdm_job *job)
{
    return job->data.format == TDM_JOB_FORMAT_LIBSVM || job->data.format == TDM_JOB_FORMAT_CRITEO;
}

static bool sparse_for_another(const tdm_job *job)
{
    return format_is_sparse(job) && !tdm_job_takes_sparse(job);
}

static bool sparse_model_of_others(const tdm_job *job)
{
    return tdm_job_takes_sparse(job) && !format_is_sparse(job);
}

static bool dlrm_without_fields(const tdm_job *job)
{
    return job->model.kind == TDM_JOB_MODEL_DLRM && job->data.format == TDM_JOB_FORMAT_LIBSVM;
}

static bool sparse_with_replicas(const tdm_job *job)
{
    return tdm_job_takes_sparse(job) && tdm_job_has_replicas(job);
}

static bool sparse_with_ema(const tdm_job *job)
{
    return tdm_job_takes_sparse(job) && job->optim.ema > 0;
}

static bool sparse_with_shape(const tdm_job *job)
{
    return tdm_job_takes_sparse(job) && job->data.shape.count > 0;
}

static bool sparse_with_normalise(const tdm_job *job)
{
    return tdm_job_takes_sparse(job) && job->data.normalise != TDM_JOB_NORMALISE_AUTO &&
           job->data.normalise != TDM_JOB_NORMALISE_NONE;
}

static bool sparse_with_file(const tdm_job *job)
{
    return tdm_job_takes_sparse(job) && job->model.init_from;
}

static bool sparse_with_offload(const tdm_job *job)
{
    return tdm_job_takes_sparse(job) && job->parallel.offload;
}

static bool labels_of_text(const tdm_job *job)
{
    return tdm_job_takes_tokens(job) && (job->data.train_labels || job->data.test_labels);
}

static bool width_is_no_multiple(const tdm_job *job)
{
    return job->model.kind == TDM_JOB_MODEL_GPT && job->model.width % job->model.heads != 0;
}

static bool preset_of_another(const tdm_job *job)
{
    return job->model.preset != TDM_JOB_PRESET_NONE && job->model.kind != TDM_JOB_MODEL_GPT;
}

static bool library_without_file(const tdm_job *job)
{
    return job->model.kind == TDM_JOB_MODEL_LIBRARY && !job->model.library;
}

static bool library_of_another(const tdm_job *job)
{
    return job->model.kind != TDM_JOB_MODEL_LIBRARY && job->model.library;
}

static bool options_of_another(const tdm_job *job)
{
    return job->model.kind != TDM_JOB_MODEL_LIBRARY && job->model.options.count > 0;
}

static bool more_lanes_than_samples(const tdm_job *job)
{
    return job->parallel.lanes > job->train.batch;
}

static bool more_replicas_than_lanes(const tdm_job *job)
{
    return tdm_job_has_replicas(job) && !tdm_job_is_async(job) && job->parallel.lanes > 0 &&
           job->sync.replicas > job->parallel.lanes;
}

static bool local_with_shards(const tdm_job *job)
{
    return tdm_job_is_local(job) && job->parallel.zero >= 2;
}

static bool async_with_shards(const tdm_job *job)
{
    return tdm_job_is_async(job) && job->parallel.zero >= 2;
}

static bool gossip_with_shards(const tdm_job *job)
{
    return tdm_job_is_gossip(job) && job->parallel.zero >= 1;
}

static bool gossip_with_compression(const tdm_job *job)
{
    return tdm_job_is_gossip(job) && tdm_job_compresses(job);
}

static bool gossip_alone(const tdm_job *job)
{
    return tdm_job_is_gossip(job) && job->sync.replicas == 1;
}

/* Replicas at a distance of a power of two; or all others. */
static bool more_neighbours_than_replicas(const tdm_job *job)
{
    int64_t replicas = job->sync.replicas, degree = job->sync.degree;
    if (!tdm_job_is_gossip(job) || replicas < 2) return false;
    if (job->sync.graph == TDM_JOB_GRAPH_RANDOM) return degree > replicas - 1;
    return job->sync.graph == TDM_JOB_GRAPH_EXPONENTIAL && (INT64_C(1) << degree) > replicas;
}

static bool compressed_with_shards(const tdm_job *job)
{
    return tdm_job_compresses(job) && job->parallel.zero >= 2;
}

static bool replicas_with_other_reduce(const tdm_job *job)
{
    return tdm_job_has_replicas(job) && job->parallel.reduce != TDM_JOB_REDUCE_TREE;
}

static bool replicas_with_sync_batchnorm(const tdm_job *job)
{
    return tdm_job_has_replicas(job) && job->parallel.sync_batchnorm;
}

static bool replicas_with_offload(const tdm_job *job)
{
    return tdm_job_has_replicas(job) && job->parallel.offload;
}

static bool more_workers_than_possible(const tdm_job *job)
{
    return tdm_job_is_async(job) && job->sync.replicas > 64;
}

static bool speeds_of_others(const tdm_job *job)
{
    return tdm_job_is_async(job) && job->sync.speeds.count > 0 && job->sync.replicas > 0 &&
           job->sync.speeds.count != (size_t)job->sync.replicas;
}

static bool recorded_without_file(const tdm_job *job)
{
    return tdm_job_is_async(job) && job->sync.order == TDM_JOB_ORDER_RECORDED &&
           !job->sync.order_from;
}

static bool file_without_recorded(const tdm_job *job)
{
    return job->sync.order_from && job->sync.order != TDM_JOB_ORDER_RECORDED;
}

/* The default of sync.staleness is in every shown job. */
static bool staleness_without_bound(const tdm_job *job)
{
    enum { DEFAULT_STALENESS = 4 };
    bool is_stale = tdm_job_is_async(job) && job->sync.mode == TDM_JOB_SERVER_STALE;
    return !is_stale && job->sync.staleness != DEFAULT_STALENESS;
}

static bool max_below_period(const tdm_job *job)
{
    return tdm_job_adapts_period(job) && job->sync.max_period < job->sync.period;
}

static bool adapts_twice(const tdm_job *job)
{
    return tdm_job_adapts_to_divergence(job) && job->sync.adapt_lr > 0;
}

static bool divergence_with_compression(const tdm_job *job)
{
    return tdm_job_adapts_to_divergence(job) && tdm_job_compresses(job);
}

static bool divergence_of_one(const tdm_job *job)
{
    return tdm_job_adapts_to_divergence(job) && job->sync.replicas == 1;
}

static bool live_with_ledger(const tdm_job *job)
{
    return tdm_job_is_live(job) && job->checkpoint.ledger;
}

static bool live_with_compression(const tdm_job *job)
{
    return tdm_job_is_live(job) && tdm_job_compresses(job);
}

static bool live_with_moves(const tdm_job *job)
{
    return tdm_job_is_live(job) && job->parallel.balance == TDM_JOB_BALANCE_FEEDBACK;
}

static bool async_with_lamb(const tdm_job *job)
{
    return tdm_job_is_async(job) && job->optim.kind == TDM_JOB_OPTIM_LAMB;
}

static bool async_with_skips(const tdm_job *job)
{
    return tdm_job_is_async(job) && job->train.bad_numbers == TDM_JOB_BAD_NUMBERS_SKIP;
}

static bool apart_with_ema(const tdm_job *job)
{
    return tdm_job_trains_apart(job) && job->optim.ema > 0;
}

static bool momentum_twice(const tdm_job *job)
{
    return tdm_job_compresses(job) && job->compress.momentum > 0 &&
           job->optim.kind == TDM_JOB_OPTIM_SGD && job->optim.momentum > 0;
}

static bool momentum_without_feedback(const tdm_job *job)
{
    return tdm_job_compresses(job) && job->compress.momentum > 0 && !job->compress.feedback;
}

static bool momentum_without_sparsify(const tdm_job *job)
{
    return job->compress.sparsify == TDM_JOB_SPARSIFY_NONE && job->compress.momentum > 0 &&
           tdm_job_compresses(job);
}

static bool factors_with_codec(const tdm_job *job)
{
    return tdm_job_factors(job) && (job->compress.sparsify != TDM_JOB_SPARSIFY_NONE ||
                                    job->compress.quantise != TDM_JOB_QUANTISE_NONE);
}

static bool factors_without_feedback(const tdm_job *job)
{
    return tdm_job_factors(job) && !job->compress.feedback;
}

static bool factors_in_order(const tdm_job *job)
{
    return tdm_job_factors(job) && tdm_job_is_async(job);
}

static bool auto_with_others(const tdm_job *job)
{
    return job->compress.automatic &&
           (job->compress.sparsify != TDM_JOB_SPARSIFY_NONE ||
            job->compress.quantise != TDM_JOB_QUANTISE_NONE || tdm_job_factors(job));
}

static bool auto_without_feedback(const tdm_job *job)
{
    return job->compress.automatic && !job->compress.feedback;
}

static bool auto_in_order(const tdm_job *job)
{
    return job->compress.automatic && tdm_job_is_async(job);
}

static const rule rules[] = {
    {
        .keys = {"compress.auto", "compress.sparsify", "compress.quantise", "compress.rank"},
        .is_broken = auto_with_others,
        .message = "'compress.auto' chooses a method, but the job sets one; remove it, or "
                   "'compress.sparsify', 'compress.quantise' and 'compress.rank'",
    },
    {
        .keys = {"compress.feedback", "compress.auto"},
        .is_broken = auto_without_feedback,
        .message = "'compress.auto' chooses among methods with error feedback; set "
                   "'compress.feedback' to true",
    },
    {
        .keys = {"compress.auto", "sync.kind", "sync.mode"},
        .is_broken = auto_in_order,
        .message = "'compress.auto' compares with an all_reduce, which 'sync.kind: server' does "
                   "not make; set 'compress.sparsify' or 'compress.quantise'",
    },
    {
        .keys = {"compress.rank", "compress.sparsify", "compress.quantise"},
        .is_broken = factors_with_codec,
        .message = "'compress.rank' (PowerSGD) sends sums of factors, which cannot be sparse or "
                   "quantised; remove it, or 'compress.sparsify' and 'compress.quantise'",
    },
    {
        .keys = {"compress.feedback", "compress.rank"},
        .is_broken = factors_without_feedback,
        .message = "'compress.rank' (PowerSGD) without error feedback would never send most "
                   "directions of a gradient; set 'compress.feedback' to true",
    },
    {
        .keys = {"compress.rank", "sync.kind", "sync.mode"},
        .is_broken = factors_in_order,
        .message = "'compress.rank' (PowerSGD) adds the gradients of all replicas, but "
                   "'sync.kind: server' applies them one by one; use 'compress.sparsify' or "
                   "'compress.quantise'",
    },
    {
        .keys = {"sync.replicas", "parallel.lanes", "sync.kind"},
        .is_broken = more_replicas_than_lanes,
        .message =
            "'sync.replicas' exceeds 'parallel.lanes', but each replica needs a lane; reduce "
            "it, or increase 'parallel.lanes'",
    },
    {
        .keys = {"sync.kind", "parallel.zero"},
        .is_broken = local_with_shards,
        .message =
            "'sync.kind: local' needs the whole model on each host; set 'parallel.zero' to 0 "
            "or 1",
    },
    {
        .keys = {"sync.kind", "sync.mode", "parallel.zero"},
        .is_broken = async_with_shards,
        .message = "'sync.kind: server' updates whole gradients in the memory of each host; set "
                   "'parallel.zero' to 0 or 1",
    },
    {
        .keys = {"sync.kind", "parallel.zero"},
        .is_broken = gossip_with_shards,
        .message =
            "'sync.kind: gossip' has no state in common that hosts could shard: each replica "
            "has its own; set 'parallel.zero' to 0",
    },
    {
        .keys = {"sync.kind", "compress.sparsify", "compress.quantise", "compress.rank",
                 "compress.auto"},
        .is_broken = gossip_with_compression,
        .message =
            "'compress' encodes what is added over all replicas, but with 'sync.kind: gossip' "
            "replicas send their models to neighbours; remove 'compress', or use 'sync.kind: "
            "local'",
    },
    {
        .keys = {"sync.replicas", "sync.kind"},
        .is_broken = gossip_alone,
        .message = "'sync.kind: gossip' needs at least two replicas; increase 'sync.replicas'",
    },
    {
        .keys = {"sync.degree", "sync.replicas", "sync.graph", "sync.kind"},
        .is_broken = more_neighbours_than_replicas,
        .message = "'sync.degree' exceeds the number of other replicas (with 'sync.graph: "
                   "exponential', of those at a distance of 1, 2, 4, ...); reduce it, or increase "
                   "'sync.replicas'",
    },
    {
        .keys = {"compress.sparsify", "compress.quantise", "compress.rank", "compress.auto",
                 "parallel.zero"},
        .is_broken = compressed_with_shards,
        .message = "'compress' needs whole gradients; set 'parallel.zero' to 0 or 1",
    },
    {
        .keys = {"parallel.reduce", "sync.kind", "compress.sparsify", "compress.quantise",
                 "compress.rank", "compress.auto"},
        .is_broken = replicas_with_other_reduce,
        .message = "replicas ('sync.kind' and 'compress') are added by the tree; set "
                   "'parallel.reduce' to tree",
    },
    {
        .keys = {"parallel.sync_batchnorm", "sync.kind", "compress.sparsify", "compress.quantise",
                 "compress.rank", "compress.auto"},
        .is_broken = replicas_with_sync_batchnorm,
        .message = "'parallel.sync_batchnorm' needs all lanes in step, but replicas ('sync.kind: "
                   "local' and 'compress') run one after the other; remove one of the two",
    },
    {
        .keys = {"parallel.offload", "sync.kind", "compress.sparsify", "compress.quantise",
                 "compress.rank", "compress.auto"},
        .is_broken = replicas_with_offload,
        .message = "the state of replicas ('sync.kind: local' and 'compress') is kept in memory; "
                   "remove 'parallel.offload'",
    },
    {
        .keys = {"sync.replicas", "sync.kind", "sync.mode"},
        .is_broken = more_workers_than_possible,
        .message = "'sync.kind: server' has at most 64 replicas; reduce 'sync.replicas'",
    },
    {
        .keys = {"sync.speeds", "sync.replicas", "sync.kind", "sync.mode"},
        .is_broken = speeds_of_others,
        .message = "'sync.speeds' needs one number for each of the 'sync.replicas'",
    },
    {
        .keys = {"sync.order", "sync.order_from", "sync.kind", "sync.mode"},
        .is_broken = recorded_without_file,
        .message = "'sync.order: recorded' requires 'sync.order_from', the run whose order of "
                   "updates is repeated",
    },
    {
        .keys = {"sync.order_from", "sync.order"},
        .is_broken = file_without_recorded,
        .message = "'sync.order_from' is for 'sync.order: recorded'; set that, or remove this key",
    },
    {
        .keys = {"sync.staleness", "sync.mode", "sync.kind"},
        .is_broken = staleness_without_bound,
        .message = "'sync.staleness' is the bound of 'sync.kind: server' with 'sync.mode: stale'; "
                   "set these two, or remove this key",
    },
    {
        .keys = {"sync.max_period", "sync.period", "sync.adapt_lr", "sync.adapt_divergence"},
        .is_broken = max_below_period,
        .message = "'sync.max_period' is less than 'sync.period'; increase it",
    },
    {
        .keys = {"sync.adapt_divergence", "sync.adapt_lr", "sync.kind"},
        .is_broken = adapts_twice,
        .message = "the period can follow 'sync.adapt_divergence' or 'sync.adapt_lr', not both; "
                   "remove one",
    },
    {
        .keys = {"sync.adapt_divergence", "compress.sparsify", "compress.quantise",
                 "compress.rank"},
        .is_broken = divergence_with_compression,
        .message =
            "'sync.adapt_divergence' compares the replicas with their mean, which 'compress' "
            "changes; remove one of the two",
    },
    {
        .keys = {"sync.adapt_divergence", "sync.replicas", "sync.kind"},
        .is_broken = divergence_of_one,
        .message = "'sync.adapt_divergence' needs at least two replicas; increase 'sync.replicas'",
    },
    {
        .keys = {"checkpoint.ledger", "sync.order", "sync.kind", "sync.mode"},
        .is_broken = live_with_ledger,
        .message = "'checkpoint.ledger' proves that batches are trained in order, but with "
                   "'sync.order: live' they are trained as they are complete; order.jsonl names "
                   "the batch of each update: set 'checkpoint.ledger' to false",
    },
    {
        .keys = {"sync.order", "compress.sparsify", "compress.quantise", "sync.mode"},
        .is_broken = live_with_compression,
        .message = "'sync.order: live' does not compress gradients; remove 'compress', or set "
                   "'sync.order' to virtual",
    },
    {
        .keys = {"parallel.balance", "sync.order", "sync.kind", "sync.mode"},
        .is_broken = live_with_moves,
        .message = "with 'sync.order: live' a slow rank delays no other one, and its replicas are "
                   "not moved; set 'parallel.balance' to off or weights",
    },
    {
        .keys = {"optim.kind", "sync.kind", "sync.mode"},
        .is_broken = async_with_lamb,
        .message =
            "lamb needs the norms of whole tensors after each update, which 'sync.kind: server' "
            "does not compute; choose another optimiser",
    },
    {
        .keys = {"train.bad_numbers", "sync.kind", "sync.mode"},
        .is_broken = async_with_skips,
        .message =
            "'sync.kind: server' cannot skip single updates; set 'train.bad_numbers' to stop",
    },
    {
        .keys = {"optim.ema", "sync.kind"},
        .is_broken = apart_with_ema,
        .message = "'optim.ema' averages the weights after every step, but with 'sync.kind: local' "
                   "and 'gossip' the model changes once per period; remove 'optim.ema'",
    },
    {
        .keys = {"compress.momentum", "optim.momentum", "optim.kind"},
        .is_broken = momentum_twice,
        .message = "'compress.momentum' replaces the momentum of the optimiser; set "
                   "'optim.momentum' to 0",
    },
    {
        .keys = {"compress.feedback", "compress.momentum"},
        .is_broken = momentum_without_feedback,
        .message = "'compress.momentum' needs error feedback; set 'compress.feedback' to true",
    },
    {
        .keys = {"compress.momentum", "compress.sparsify", "compress.quantise"},
        .is_broken = momentum_without_sparsify,
        .message = "'compress.momentum' accumulates elements that are not sent; set "
                   "'compress.sparsify', or remove this key",
    },
    {
        .keys = {"data.train_labels", "data.format"},
        .is_broken = train_labels_of_csv,
        .message = "'data.train_labels' is for IDX files; a CSV file has its labels in the column "
                   "'data.label': remove this key, or set 'data.format' to idx",
    },
    {
        .keys = {"data.test_labels", "data.format"},
        .is_broken = test_labels_of_csv,
        .message = "'data.test_labels' is for IDX files; a CSV file has its labels in the column "
                   "'data.label': remove this key, or set 'data.format' to idx",
    },
    {
        .keys = {"data.format", "data.train_labels"},
        .is_broken = idx_without_labels,
        .message = "IDX images have no labels; set 'data.train_labels' to the file of labels",
    },
    {
        .keys = {"data.test", "data.test_labels", "data.train_labels", "data.format"},
        .is_broken = only_train_has_labels,
        .message = "'data.train' has a file of labels, so 'data.test' needs one as well: set "
                   "'data.test_labels'",
    },
    {
        .keys = {"data.test_labels", "data.train_labels", "data.test", "data.format"},
        .is_broken = only_test_has_labels,
        .message = "'data.test' has a file of labels, so 'data.train' needs one as well: set "
                   "'data.train_labels'",
    },
    {
        .keys = {"optim.nesterov", "optim.kind"},
        .is_broken = nesterov_of_adamw,
        .message = "'optim.nesterov' is for sgd; set 'optim.kind' to sgd, or remove this key",
    },
    {
        .keys = {"optim.nesterov", "optim.momentum", "optim.kind"},
        .is_broken = nesterov_without_momentum,
        .message = "'optim.nesterov' requires momentum; set 'optim.momentum' above 0",
    },
    {
        .keys = {"optim.centred", "optim.kind"},
        .is_broken = centred_of_another,
        .message =
            "'optim.centred' is for rmsprop; set 'optim.kind' to rmsprop, or remove this key",
    },
    {
        .keys = {"schedule.kind", "schedule.every_steps"},
        .is_broken = step_without_every_steps,
        .message = "the schedule step requires 'schedule.every_steps', the number of steps between "
                   "changes of the learning rate",
    },
    {
        .keys = {"schedule.kind", "schedule.milestones"},
        .is_broken = multi_step_without_milestones,
        .message = "the schedule multi_step requires 'schedule.milestones', a list of the steps at "
                   "which the learning rate changes",
    },
    {
        .keys = {"schedule.milestones"},
        .is_broken = milestones_do_not_rise,
        .message = "'schedule.milestones' must be in increasing order",
    },
    {
        .keys = {"schedule.gamma", "schedule.kind"},
        .is_broken = plateau_that_never_lowers,
        .message = "the schedule reduce_on_plateau reduces the learning rate; set 'schedule.gamma' "
                   "below 1",
    },
    {
        .keys = {"schedule.kind", "data.test", "data.test_fraction", "eval.every_epochs"},
        .is_broken = plateau_without_measure,
        .message =
            "the schedule reduce_on_plateau requires evaluations on a test set; set 'data.test' or "
            "'data.test_fraction', and 'eval.every_epochs' or 'eval.every_steps' to a number",
    },
    {
        .keys = {"train.early_stop", "data.test", "data.test_fraction", "eval.every_epochs"},
        .is_broken = early_stop_without_measure,
        .message =
            "'train.early_stop' requires evaluations on a test set; set 'data.test' or "
            "'data.test_fraction', and 'eval.every_epochs' or 'eval.every_steps' to a number",
    },
    {
        .keys = {"eval.weights", "optim.ema"},
        .is_broken = ema_that_is_not_kept,
        .message =
            "'eval.weights' is ema, but the job computes no moving average; set 'optim.ema' above 0, "
            "such as 0.999",
    },
    {
        .keys = {"model.kind", "layers"},
        .is_broken = layers_without_list,
        .message = "the model layers requires a list of layers: add 'layers:' at the top level of "
                   "the job, next to 'model:'",
    },
    {
        .keys = {"layers", "model.kind"},
        .is_broken = list_for_another,
        .message = "'layers' is for the model layers: set 'model.kind' to layers or remove it, or "
                   "remove this key",
    },
    {
        .keys = {"data.format", "model.kind", "layers"},
        .is_broken = text_for_another,
        .message = "the format text is for models that predict the next token: set 'model.kind' to "
                   "gpt, or start 'layers' with embedding, or set 'data.format' to csv or idx",
    },
    {
        .keys = {"data.format", "model.kind", "layers"},
        .is_broken = tokens_without_text,
        .message =
            "a token model (gpt, or layers that start with embedding) is trained on a text: set "
            "'data.format' to text, or remove it",
    },
    {
        .keys = {"data.format", "model.kind"},
        .is_broken = sparse_for_another,
        .message = "the formats libsvm and criteo have sparse samples: set 'model.kind' to lr, fm, "
                   "wide_deep or dlrm, or convert the file to CSV and set 'data.format' to csv",
    },
    {
        .keys = {"model.kind", "data.format"},
        .is_broken = sparse_model_of_others,
        .message = "the models lr, fm, wide_deep and dlrm are trained on sparse samples: set "
                   "'data.format' to libsvm or criteo",
    },
    {
        .keys = {"model.kind", "data.format"},
        .is_broken = dlrm_without_fields,
        .message = "dlrm needs samples with several fields, but those of libsvm have one: choose "
                   "fm or wide_deep, or set 'data.format' to criteo",
    },
    {
        .keys = {"model.kind", "sync.kind", "compress.sparsify", "compress.quantise"},
        .is_broken = sparse_with_replicas,
        .message = "a sparse table is updated once in each step, so it cannot be used with "
                   "replicas ('sync.kind: local', the modes async and stale of 'sync.kind: "
                   "server', and 'compress'); remove these keys",
    },
    {
        .keys = {"optim.ema", "model.kind"},
        .is_broken = sparse_with_ema,
        .message = "the rows of a sparse table have no moving average; remove 'optim.ema'",
    },
    {
        .keys = {"data.shape", "model.kind"},
        .is_broken = sparse_with_shape,
        .message = "sparse samples have no shape; remove 'data.shape'",
    },
    {
        .keys = {"data.normalise", "model.kind"},
        .is_broken = sparse_with_normalise,
        .message = "values of sparse samples are not normalised (integers of criteo become "
                   "log(1 + n)); set 'data.normalise' to none",
    },
    {
        .keys = {"model.init_from", "model.kind"},
        .is_broken = sparse_with_file,
        .message = "a file in 'model.init_from' has no rows for a sparse table; remove this key",
    },
    {
        .keys = {"parallel.offload", "model.kind"},
        .is_broken = sparse_with_offload,
        .message = "the rows of a sparse table are kept in memory; remove 'parallel.offload'",
    },
    {
        .keys = {"data.train_labels", "data.test_labels", "model.kind", "layers"},
        .is_broken = labels_of_text,
        .message =
            "a token model has no labels: it predicts each character from the previous ones; "
            "remove this key",
    },
    {
        .keys = {"model.width", "model.heads", "model.kind"},
        .is_broken = width_is_no_multiple,
        .message = "'model.width' must be a multiple of 'model.heads'",
    },
    {
        .keys = {"model.preset", "model.kind"},
        .is_broken = preset_of_another,
        .message = "'model.preset' is for gpt; set 'model.kind' to gpt, or remove this key",
    },
    {
        .keys = {"model.kind", "model.library"},
        .is_broken = library_without_file,
        .message = "the model library requires 'model.library', the shared object with the model",
    },
    {
        .keys = {"model.library", "model.kind"},
        .is_broken = library_of_another,
        .message = "'model.library' is for models from a library: set 'model.kind' to library, or "
                   "remove this key",
    },
    {
        .keys = {"model.options", "model.kind"},
        .is_broken = options_of_another,
        .message = "'model.options' is for models from a library: set 'model.kind' to library, or "
                   "remove this key",
    },
    {
        .keys = {"parallel.lanes", "train.batch"},
        .is_broken = more_lanes_than_samples,
        .message = "'parallel.lanes' exceeds 'train.batch', so some lanes would have no samples; "
                   "reduce it, or increase 'train.batch'",
    },
};

void tdm__rules_check(tdm__loader *loader)
{
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        bool is_applicable = true;
        tdm__job_position place = {.file = loader->file};
        bool is_placed = false;
        for (size_t k = 0; k < MAX_RULE_KEYS && rules[i].keys[k]; k++) {
            const tdm__job_slot *slot = &loader->slots[tdm__key_find(rules[i].keys[k])];
            is_applicable = is_applicable && slot->ok;
            if (slot->node && !is_placed) {
                place = slot->place;
                is_placed = true;
            }
        }
        if (is_applicable && rules[i].is_broken(loader->job))
            tdm__problem_add(&loader->problems, place, "%s", rules[i].message);
    }
}

/* ---- keys without effect --------------------------------------------------------------------- */

static const struct {
    const char *key;
    const char *kinds; /* of models that use it */
} uses[] = {
    {"model.hidden", "mlp cnn wide_deep dlrm"},
    {"model.bottom", "dlrm"},
    {"model.channels", "cnn"},
    {"model.depth", "resnet"},
    {"model.stem", "resnet"},
    {"model.activation", "mlp cnn wide_deep dlrm"},
    {"model.dropout", "mlp cnn gpt wide_deep dlrm"},
    {"model.layers", "gpt"},
    {"model.width", "gpt"},
    {"model.heads", "gpt"},
    {"model.context", "gpt layers library"},
    {"model.vocabulary", "gpt layers library"},
};

/* Whether the key was set for this model. A default in a shown job was not, nor was a key of a file
 * whose model the command line has changed. */
static bool key_is_intended(tdm__loader *loader, size_t index, bool other_model)
{
    const tdm_job_key *key = tdm_job_key_at(index);
    const tdm__job_slot *slot = &loader->slots[index];
    if (!slot->node || !slot->ok) return false;
    if (slot->from_override) return true;
    if (other_model) return false;
    tdm_str shown = TDM_STR_INIT;
    tdm__value_show(key, loader->job, &shown);
    if (!tdm_str_ok(&shown)) loader->problems.no_memory = true;
    bool is_default = key->fallback && strcmp(tdm_str_text(&shown), key->fallback) == 0;
    tdm_str_release(&shown);
    return !is_default;
}

static void warn_of_weights(tdm__loader *loader)
{
    size_t index = tdm__key_find("parallel.weights");
    if (loader->job->parallel.balance == TDM_JOB_BALANCE_WEIGHTS ||
        loader->job->parallel.weights.count == 0 || !key_is_intended(loader, index, false))
        return;
    tdm__problem_add(&loader->warnings, loader->slots[index].place,
                     "'parallel.weights' has no effect unless 'parallel.balance' is weights");
}

static bool is_server(const tdm_job *job)
{
    return job->sync.kind == TDM_JOB_SYNC_SERVER;
}

/* Keys that only some strategies use. */
static const struct {
    const char *prefix, *except;
    bool (*is_used)(const tdm_job *job);
    const char *condition;
} sync_groups[] = {
    {"sync.",
     "sync.kind sync.replicas sync.period sync.graph sync.degree sync.mode sync.staleness "
     "sync.staleness_lr sync.speeds sync.jitter sync.compensation sync.order sync.order_from",
     tdm_job_is_local, "'sync.kind' is local"},
    {"sync.mode", "", is_server, "'sync.kind' is server"},
    {"sync.staleness_lr", "", tdm_job_is_async, "'sync.mode' is async or stale"},
    {"sync.speeds", "", tdm_job_is_async, "'sync.mode' is async or stale"},
    {"sync.jitter", "", tdm_job_is_async, "'sync.mode' is async or stale"},
    {"sync.order", "", tdm_job_is_async, "'sync.mode' is async or stale"},
    {"sync.compensation", "", tdm_job_is_async, "'sync.mode' is async or stale"},
    {"sync.replicas", "", tdm_job_has_replicas,
     "'sync.kind' is local or gossip, or the job compresses"},
    {"compress.",
     "compress.sparsify compress.quantise compress.rank compress.min_rate compress.auto",
     tdm_job_compresses,
     "'compress.sparsify', 'compress.quantise', 'compress.rank' or 'compress.auto' is set"},
    {"compress.min_rate", "", tdm_job_factors, "'compress.rank' is set"},
};

/* What a key of 'sync' or 'compress' needs that this job lacks, for "unless"; NULL: nothing. */
static const char *sync_key_lacks(const tdm_job_key *key, const tdm_job *job)
{
    bool is_one = false;
    for (size_t g = 0; g < sizeof(sync_groups) / sizeof(sync_groups[0]); g++) {
        if (strncmp(key->path, sync_groups[g].prefix, strlen(sync_groups[g].prefix)) != 0) continue;
        is_one = true;
        if (!tdm__has_word(sync_groups[g].except, key->path) && !sync_groups[g].is_used(job))
            return sync_groups[g].condition;
    }
    /* The table of keys says which settings of a strategy or a compression use the key: "if ..." */
    bool is_setting = !tdm__has_word(
        "sync.kind sync.staleness compress.sparsify compress.quantise compress.rank", key->path);
    bool is_unused = is_one && is_setting && key->decides_when && !key->decides_when(job) &&
                     strncmp(key->decides_note, "if ", 3) == 0;
    return is_unused ? key->decides_note + 3 : NULL;
}

static void warn_of_sync(tdm__loader *loader)
{
    for (size_t i = 0; i < tdm_job_key_count(); i++) {
        const tdm_job_key *key = tdm_job_key_at(i);
        const char *lacks = sync_key_lacks(key, loader->job);
        if (!lacks || !key_is_intended(loader, i, false)) continue;
        tdm__problem_add(&loader->warnings, loader->slots[i].place, "'%s' has no effect unless %s",
                         key->path, lacks);
    }
}

/* Keys of 'table' that the model, or its method, does not use: the table of keys says which do. */
static void warn_of_table(tdm__loader *loader)
{
    const tdm_job *job = loader->job;
    for (size_t i = 0; i < tdm_job_key_count(); i++) {
        const tdm_job_key *key = tdm_job_key_at(i);
        if (strncmp(key->path, "table.", strlen("table.")) != 0) continue;
        bool is_used = tdm_job_takes_sparse(job) && (!key->decides_when || key->decides_when(job));
        if (is_used || !key_is_intended(loader, i, false)) continue;
        tdm__problem_add(&loader->warnings, loader->slots[i].place, "'%s' has no effect unless %s",
                         key->path,
                         tdm_job_takes_sparse(job) ? key->decides_note + strlen("if ")
                                                   : "the model has a sparse table");
    }
}

void tdm__rules_warn(tdm__loader *loader)
{
    warn_of_table(loader);
    warn_of_weights(loader);
    warn_of_sync(loader);
    size_t kind_index = tdm__key_find("model.kind");
    const tdm__job_slot *kind_slot = &loader->slots[kind_index];
    char kind[32];
    if (!kind_slot->ok ||
        !tdm__choice_at(tdm_job_key_at(kind_index)->choices, (size_t)loader->job->model.kind, kind))
        return;
    bool other_model = kind_slot->from_override ||
                       loader->slots[tdm__key_find("layers")].from_override;
    for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); i++) {
        size_t index = tdm__key_find(uses[i].key);
        if (tdm__has_word(uses[i].kinds, kind) || !key_is_intended(loader, index, other_model))
            continue;
        tdm__problem_add(&loader->warnings, loader->slots[index].place,
                         "'%s' has no effect: the model %s does not use it (%s would)", uses[i].key,
                         kind, uses[i].kinds);
    }
}
