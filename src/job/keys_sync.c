/*
 * keys_sync.c: rows of the table of keys for synchronisation ('sync') and compression ('compress').
 * keys.c describes the table. Each of these keys affects the trained bits of the jobs that use it, and is
 * not part of the hash of other jobs.
 */
#include "job/job.h"
#include "job/keys.h"

#include <math.h>

bool tdm_job_is_local(const tdm_job *job)
{
    return job->sync.kind == TDM_JOB_SYNC_LOCAL;
}

bool tdm_job_is_gossip(const tdm_job *job)
{
    return job->sync.kind == TDM_JOB_SYNC_GOSSIP;
}

bool tdm_job_trains_apart(const tdm_job *job)
{
    return tdm_job_is_local(job) || tdm_job_is_gossip(job);
}

bool tdm_job_is_async(const tdm_job *job)
{
    return job->sync.kind == TDM_JOB_SYNC_SERVER && job->sync.mode != TDM_JOB_SERVER_SYNC;
}

bool tdm_job_is_live(const tdm_job *job)
{
    return tdm_job_is_async(job) && job->sync.order == TDM_JOB_ORDER_LIVE;
}

static bool has_other_order(const tdm_job *job)
{
    return tdm_job_is_async(job) && job->sync.order != TDM_JOB_ORDER_VIRTUAL;
}

static bool is_stale(const tdm_job *job)
{
    return tdm_job_is_async(job) && job->sync.mode == TDM_JOB_SERVER_STALE;
}

bool tdm_job_compresses(const tdm_job *job)
{
    return job->compress.sparsify != TDM_JOB_SPARSIFY_NONE ||
           job->compress.quantise != TDM_JOB_QUANTISE_NONE || tdm_job_factors(job) ||
           job->compress.automatic;
}

bool tdm_job_factors(const tdm_job *job)
{
    return job->compress.rank > 0;
}

static bool has_strategy(const tdm_job *job)
{
    return tdm_job_trains_apart(job) || tdm_job_is_async(job);
}

bool tdm_job_has_replicas(const tdm_job *job)
{
    return has_strategy(job) || tdm_job_compresses(job);
}

static bool has_outer_optimiser(const tdm_job *job)
{
    return tdm_job_is_local(job) && job->sync.outer != TDM_JOB_OUTER_AVERAGE;
}

bool tdm_job_adapts_to_divergence(const tdm_job *job)
{
    return tdm_job_is_local(job) && job->sync.adapt_divergence > 0;
}

bool tdm_job_adapts_period(const tdm_job *job)
{
    return tdm_job_adapts_to_divergence(job) || (tdm_job_is_local(job) && job->sync.adapt_lr > 0);
}

static bool has_degree(const tdm_job *job)
{
    return tdm_job_is_gossip(job) && (job->sync.graph == TDM_JOB_GRAPH_EXPONENTIAL ||
                                      job->sync.graph == TDM_JOB_GRAPH_RANDOM);
}

static bool keeps_ratio(const tdm_job *job)
{
    int kind = job->compress.sparsify;
    return kind == TDM_JOB_SPARSIFY_TOPK || kind == TDM_JOB_SPARSIFY_TOPK_SAMPLED ||
           kind == TDM_JOB_SPARSIFY_RANDOMK || job->compress.automatic;
}

static bool chooses(const tdm_job *job)
{
    return job->compress.automatic;
}

static bool has_threshold(const tdm_job *job)
{
    return job->compress.sparsify == TDM_JOB_SPARSIFY_THRESHOLD;
}

static bool begins_later(const tdm_job *job)
{
    return tdm_job_compresses(job) && job->compress.start_step > 0;
}

static bool is_qsgd(const tdm_job *job)
{
    return job->compress.quantise == TDM_JOB_QUANTISE_QSGD;
}

static bool has_velocity(const tdm_job *job)
{
    return tdm_job_compresses(job) && job->compress.momentum > 0;
}

bool tdm__period_can_be_cut(const tdm_job *job)
{
    int64_t period = job->sync.period, steps = job->train.steps;
    int64_t start = tdm_job_is_local(job) ? job->sync.start_step : 0;
    if (!tdm_job_trains_apart(job) || (period == 1 && !tdm_job_adapts_period(job))) return false;
    if (steps == 0 || tdm_job_adapts_period(job))
        return true; /* the number of steps depends on the data */
    return steps > start && (steps - start) % period != 0;
}

#define IF_LOCAL BITS_IF(tdm_job_is_local, "if 'sync.kind' is local")
#define IF_APART BITS_IF(tdm_job_trains_apart, "if 'sync.kind' is local or gossip")
#define IF_GOSSIP BITS_IF(tdm_job_is_gossip, "if 'sync.kind' is gossip")
#define IF_ASYNC BITS_IF(tdm_job_is_async, "if 'sync.kind' is server and 'sync.mode' not sync")
#define IF_COMPRESSED BITS_IF(tdm_job_compresses, "if the job compresses")

const tdm_job_key tdm__sync_keys[] = {
    {
        KEY("sync.kind", CHOICE, sync.kind),
        .fallback = "all_reduce",
        BITS_IF(has_strategy, "unless it is all_reduce, or server with 'sync.mode: sync'"),
        .choices = "all_reduce | local | server | gossip",
        .also_called =
            "strategy algorithm synchronization local_sgd diloco parameter_server push_sum sgp "
            "decentralized",
        .help = "How workers combine their results. all_reduce adds the gradients of all lanes in "
                "each step. local trains several replicas of the model independently for "
                "'sync.period' steps and then averages them, which needs far less communication "
                "(local SGD; with 'sync.outer: nesterov', DiLoCo). server applies the gradients of "
                "single workers one after the other, as a parameter server does ('sync.mode'). "
                "gossip has no common model: each replica trains its own and sends shares of it to "
                "its neighbours in 'sync.graph' (stochastic gradient push).",
    },
    {
        KEY("sync.replicas", INT, sync.replicas),
        .fallback = "auto",
        BITS_IF(tdm_job_has_replicas, "if the job has replicas"),
        RANGE(1, 65536),
        .form = TDM_JOB_FORM_POWER_OF_TWO,
        .word = "auto",
        .also_called = "num_replicas model_replicas",
        .help =
            "The number of logical replicas: of models with 'sync.kind: local' and 'gossip', of "
            "workers with 'sync.kind: server', of the residuals and momentums of 'compress'. Each replica has an "
            "equal share of the lanes; with 'sync.kind: server' it uses all of them, and at most 64 "
            "replicas are possible. Workers execute replicas, so there can be at most as many "
            "workers as replicas, and the trained bits depend on the number of replicas, never on "
            "the number of workers. auto is the number of lanes, at most 4.",
    },
    {
        KEY("sync.period", INT, sync.period),
        .fallback = "8",
        IF_APART,
        RANGE(1, 1000000),
        .also_called = "local_steps inner_steps sync_every h",
        .help =
            "With 'sync.kind: local' and 'gossip': the number of steps that each replica trains "
            "between two averages, or exchanges with its neighbours. Lines of metrics, "
            "evaluations, checkpoints and stops follow such a round of steps, so they can be "
            "later than the job asks, by less than a period; set 'elastic.grace' to more than "
            "the time of a period. At the end of the run the last period can be shorter.",
    },
    {
        KEY("sync.adapt_lr", REAL, sync.adapt_lr),
        .fallback = "0",
        IF_LOCAL,
        RANGE(0, INFINITY),
        .also_called = "alpha qsr",
        .help = "With 'sync.kind: local': the period grows as the learning rate falls. It is "
                "(adapt_lr / learning rate) squared, rounded down, but at least 'sync.period' and "
                "at most 'sync.max_period' (the quadratic synchronisation rule). 0 keeps the "
                "period fixed.",
    },
    {
        KEY("sync.adapt_divergence", REAL, sync.adapt_divergence),
        .fallback = "0",
        BITS_IF(tdm_job_adapts_to_divergence, "if it is above 0"),
        RANGE(0, 1),
        .also_called = "target_divergence adacomm",
        .help = "With 'sync.kind: local': the period follows the divergence of the replicas, which "
                "is the root of the mean squared distance from their mean, divided by the norm of "
                "the model. After each average, the period becomes longer if the divergence was "
                "below this number and shorter if it was above, at most by a factor of 2, starting "
                "with 'sync.period' and between 1 and 'sync.max_period'. 0 disables it.",
    },
    {
        KEY("sync.max_period", INT, sync.max_period),
        .fallback = "1024",
        BITS_IF(tdm_job_adapts_period, "if 'sync.adapt_lr' or 'sync.adapt_divergence' is above 0"),
        RANGE(1, 1000000),
        .help = "With 'sync.adapt_lr' and 'sync.adapt_divergence': the maximum period.",
    },
    {
        KEY("sync.start_step", INT, sync.start_step),
        .fallback = "0",
        IF_LOCAL,
        RANGE(0, TDM__MAX_JOB_INT),
        .also_called = "post_local start_localsgd_iter warmup_steps",
        .help = "With 'sync.kind: local': before this step the replicas are averaged after every "
                "step (post-local SGD). Early in training, replicas drift apart fastest.",
    },
    {
        KEY("sync.outer", CHOICE, sync.outer),
        .fallback = "average",
        IF_LOCAL,
        .choices = "average | sgd | nesterov",
        .also_called = "outer_optimizer",
        .help = "With 'sync.kind: local': what an average does to the model. average replaces the "
                "model by the mean of the replicas. sgd and nesterov use the difference between "
                "the model and that mean as a gradient, with 'sync.outer_lr' and "
                "'sync.outer_momentum'.",
    },
    {
        KEY("sync.outer_lr", REAL, sync.outer_lr),
        .fallback = "0.7",
        BITS_IF(has_outer_optimiser, "if 'sync.outer' is sgd or nesterov"),
        RANGE(0, INFINITY),
        .min_open = true,
        .help = "The learning rate of the outer optimiser ('sync.outer').",
    },
    {
        KEY("sync.outer_momentum", REAL, sync.outer_momentum),
        .fallback = "0.9",
        BITS_IF(has_outer_optimiser, "if 'sync.outer' is sgd or nesterov"),
        RANGE(0, 1),
        .max_open = true,
        .help = "The momentum of the outer optimiser ('sync.outer').",
    },
    {
        KEY("sync.graph", CHOICE, sync.graph),
        .fallback = "exponential",
        IF_GOSSIP,
        .choices = "ring | torus | exponential | random",
        .also_called = "topology neighbors peers",
        .help =
            "With 'sync.kind: gossip': which replicas send their models to which. ring: to the "
            "replicas before and after, in a circle. torus: to the four neighbours in a grid that "
            "is closed at its edges. exponential: to replicas at distances of 1, 2, 4, ..., "
            "'sync.degree' of these in each round, one after the other. random: to 'sync.degree' "
            "replicas that are drawn anew in each round.",
    },
    {
        KEY("sync.degree", INT, sync.degree),
        .fallback = "1",
        BITS_IF(has_degree, "if 'sync.graph' is exponential or random"),
        RANGE(1, 32),
        .also_called = "neighbours_per_itr fanout",
        .help = "With 'sync.graph: exponential' and 'random': the number of replicas to which each "
                "replica sends its model in a round.",
    },
    {
        KEY("sync.mode", CHOICE, sync.mode),
        .fallback = "sync",
        IF_ASYNC,
        .choices = "sync | async | stale",
        .also_called = "consistency",
        .help =
            "With 'sync.kind: server': sync waits for all workers in each step, and gives the "
            "bits of all_reduce. async applies each gradient as it comes: a worker takes a batch, "
            "reads the model, and its gradient updates a model that other workers have changed "
            "meanwhile. stale bounds that difference by 'sync.staleness'. 'sync.order' sets in "
            "which order the updates are made.",
    },
    {
        KEY("sync.order", CHOICE, sync.order),
        .fallback = "virtual",
        BITS_IF(has_other_order, "unless it is virtual"),
        .choices = "virtual | recorded | live",
        .also_called = "update_order schedule_of_updates",
        .help =
            "With 'sync.mode: async' and 'stale': the order of the updates. virtual draws it from "
            "a logical clock with the job's seed ('sync.speeds', 'sync.jitter'), so the result is "
            "the same on any number of ranks. recorded repeats the order of another run "
            "('sync.order_from') bit for bit. live applies each gradient as soon as it is "
            "complete, so a slow worker delays no other one; the result then depends on timing, "
            "and only its recorded order gives the same bits again. Every run records its order in "
            "the file order.jsonl of its directory.",
    },
    {
        KEY("sync.order_from", PATH, sync.order_from),
        .or_directory = true,
        .also_called = "order_file replay_order",
        .help = "With 'sync.order: recorded': the run whose order is repeated, or a copy of its "
                "order.jsonl. It must have the same number of replicas, and at least as many "
                "updates as this run makes.",
    },
    {
        KEY("sync.staleness", INT, sync.staleness),
        .fallback = "4",
        BITS_IF(is_stale, "if 'sync.mode' is stale"),
        RANGE(0, 1000000),
        .also_called = "bound staleness_bound",
        .help =
            "With 'sync.mode: stale': how many more gradients a worker may have computed than the "
            "slowest one when it begins the next (stale synchronous parallel).",
    },
    {
        KEY("sync.speeds", INT_LIST, sync.speeds),
        .fallback = "[]",
        IF_ASYNC,
        RANGE(1, 1000000),
        .max_count = 64,
        .also_called = "worker_speeds",
        .help =
            "With 'sync.mode: async' and 'stale': the relative speed of each replica in the logical "
            "clock, such as [100, 100, 25] for a third worker that takes four times as long. "
            "[] makes them equal.",
    },
    {
        KEY("sync.jitter", REAL, sync.jitter),
        .fallback = "0.1",
        IF_ASYNC,
        RANGE(0, 1),
        .max_open = true,
        .help =
            "With 'sync.mode: async' and 'stale': how much the time of a gradient varies in the "
            "logical clock: evenly between 1 - jitter and 1 + jitter of its mean.",
    },
    {
        KEY("sync.compensation", REAL, sync.compensation),
        .fallback = "0",
        IF_ASYNC,
        RANGE(0, INFINITY),
        .also_called = "delay_compensation dc_asgd lambda",
        .help =
            "With 'sync.mode: async' and 'stale': corrects a gradient g for the delay by adding "
            "compensation x g x g x (the model now - the model that the worker read) to it "
            "(DC-ASGD). 0 disables it.",
    },
    {
        KEY("sync.staleness_lr", BOOL, sync.staleness_lr),
        .fallback = "false",
        IF_ASYNC,
        .help =
            "With 'sync.mode: async' and 'stale': whether the learning rate of an update is divided "
            "by its staleness, the number of updates since the worker read the model.",
    },
    {
        KEY("compress.sparsify", CHOICE, compress.sparsify),
        .fallback = "none",
        IF_COMPRESSED,
        .choices = "none | topk | topk_sampled | randomk | threshold",
        .also_called = "top_k sparsification kind",
        .help =
            "Which elements of a gradient (with 'sync.kind: local', of the change of a replica) "
            "are sent. topk sends the fraction 'compress.ratio' with the largest magnitudes of "
            "each tensor; topk_sampled estimates their threshold from a sample, which is "
            "faster; randomk sends a random fraction; threshold sends elements of at least "
            "'compress.threshold'.",
    },
    {
        KEY("compress.quantise", CHOICE, compress.quantise),
        .fallback = "none",
        IF_COMPRESSED,
        .choices = "none | bf16 | f16 | int8 | int4 | qsgd | sign",
        .also_called = "quantize quantization dtype",
        .help =
            "How the elements that are sent are represented. bf16 and f16 round to 16 bits; int8 "
            "and int4 round stochastically, with a scale for each chunk; qsgd rounds "
            "stochastically to 'compress.levels' fractions of a chunk's norm; sign sends one "
            "bit and a mean magnitude for each chunk (1-bit SGD).",
    },
    {
        KEY("compress.ratio", REAL, compress.ratio),
        .fallback = "0.01",
        BITS_IF(
            keeps_ratio,
            "if 'compress.sparsify' is topk, topk_sampled or randomk, or 'compress.auto' is true"),
        RANGE(0, 1),
        .min_open = true,
        .also_called = "k density compress_ratio sparsity",
        .help =
            "The fraction of the elements of a tensor that topk, topk_sampled and randomk send.",
    },
    {
        KEY("compress.threshold", REAL, compress.threshold),
        .fallback = "0.001",
        BITS_IF(has_threshold, "if 'compress.sparsify' is threshold"),
        RANGE(1e-37, 1e38),
        .help = "The magnitude from which 'compress.sparsify: threshold' sends an element.",
    },
    {
        KEY("compress.levels", INT, compress.levels),
        .fallback = "15",
        BITS_IF(is_qsgd, "if 'compress.quantise' is qsgd"),
        RANGE(1, 127),
        .help = "The number of levels of 'compress.quantise: qsgd', without the sign.",
    },
    {
        KEY("compress.feedback", BOOL, compress.feedback),
        .fallback = "true",
        IF_COMPRESSED,
        .also_called = "error_feedback memory residual",
        .help =
            "Whether a replica adds what it did not send to its next gradient (error feedback). "
            "It needs memory of the size of the model for each replica. Without it, most "
            "compressions do not converge to the same loss.",
    },
    {
        KEY("compress.momentum", REAL, compress.momentum),
        .fallback = "0",
        IF_COMPRESSED,
        RANGE(0, 1),
        .max_open = true,
        .also_called = "dgc_momentum momentum_correction",
        .help = "Momentum that each replica applies before the compression (momentum correction of "
                "DGC), instead of the optimiser's momentum. 0 disables it.",
    },
    {
        KEY("compress.mask", BOOL, compress.mask),
        .fallback = "true",
        BITS_IF(has_velocity, "if 'compress.momentum' is above 0"),
        .also_called = "factor_masking momentum_masking",
        .help = "With 'compress.momentum': whether the momentum of the elements that were sent is "
                "cleared (factor masking of DGC).",
    },
    {
        KEY("compress.clip_norm", REAL, compress.clip_norm),
        .fallback = "0",
        IF_COMPRESSED,
        RANGE(0, INFINITY),
        .also_called = "local_clipping",
        .help = "The maximum norm of a replica's gradient before it is accumulated (local clipping "
                "of DGC). 0 disables it.",
    },
    {
        KEY("compress.warmup", INT, compress.warmup),
        .fallback = "0",
        BITS_IF(
            keeps_ratio,
            "if 'compress.sparsify' is topk, topk_sampled or randomk, or 'compress.auto' is true"),
        RANGE(0, TDM__MAX_JOB_INT),
        .also_called = "warmup_steps rampup_step",
        .help =
            "The number of steps (with 'sync.kind: local', of averages) over which the fraction "
            "that is sent falls exponentially from a quarter to 'compress.ratio'.",
    },
    {
        KEY("compress.min_elements", INT, compress.min_elements),
        .fallback = "1024",
        IF_COMPRESSED,
        RANGE(1, TDM__MAX_JOB_INT),
        .help = "Tensors with fewer elements are sent as they are.",
    },
    {
        KEY("compress.rank", INT, compress.rank),
        .fallback = "0",
        BITS_IF(tdm_job_factors, "if it is above 0"),
        RANGE(0, 256),
        .also_called = "powersgd matrix_approximation_rank low_rank",
        .help =
            "PowerSGD: the gradient of each matrix is replaced by the product of two factors with "
            "this number of columns. Replicas add the factors, so the product is that of their "
            "sum. It excludes 'compress.sparsify', 'compress.quantise' and 'compress.momentum', "
            "and needs 'compress.feedback'. 0 disables it.",
    },
    {
        KEY("compress.min_rate", REAL, compress.min_rate),
        .fallback = "2",
        BITS_IF(tdm_job_factors, "if 'compress.rank' is above 0"),
        RANGE(1, INFINITY),
        .also_called = "min_compression_rate",
        .help = "With 'compress.rank': a matrix is sent as it is unless its factors are this many "
                "times smaller.",
    },
    {
        KEY("compress.start_step", INT, compress.start_step),
        .fallback = "0",
        BITS_IF(begins_later, "if it is above 0 and the job compresses"),
        RANGE(0, TDM__MAX_JOB_INT),
        .also_called = "start_powerSGD_iter start_compression",
        .help = "Before this step (with 'sync.kind: local', before this average) nothing is "
                "compressed. Early in training gradients change fastest.",
    },
    {
        KEY("compress.auto", BOOL, compress.automatic),
        .fallback = "false",
        BITS_IF(chooses, "if it is true"),
        .also_called = "automatic auto_compress",
        .help =
            "Chooses how tensors with at least 'compress.min_elements' elements are sent: not "
            "compressed, as bf16, as int8, or by topk_sampled with 'compress.ratio', each with "
            "error feedback. Before the first step of a run, the link between the hosts and the "
            "codec are measured for less than a second, and the method with the least time is "
            "used; the log names it. The choice is a part of the state: checkpoints have it, and "
            "a run that is resumed on other hosts keeps it.",
    },
};

const size_t tdm__sync_key_count = COUNT(tdm__sync_keys);
