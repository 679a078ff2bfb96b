/*
 * eval.c: inference in batches, and the metrics of classification. A token model predicts a token at
 * each position of its window: a sample then has as many targets as it has tokens.
 *
 * A predictor has one plan, for its full batch. A last, shorter batch runs in the same plan: the input
 * of the unused rows is set to zero, because the plan may have overwritten it with bits that are not
 * valid tokens, and the results of these rows are ignored. Rows do not affect each other, so the
 * results are exact.
 *
 * With N ranks, rank b % N evaluates batch b, in round b / N. Every rank takes part in every round, also
 * without a batch, so that all ranks make the same collective calls. Each rank adds the results of its
 * batches to one record; the records are gathered and merged. Sums of losses are exact (exact_sum.h), so
 * metrics depend neither on the size of batches nor on N.
 */
#include "nn/nn.h"
#include <tandem/os.h>

#include "base/base.h"
#include "data/data.h"
#include "eval/eval.h"
#include "eval/exact_sum.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct tdm_predictor {
    tdm_graph *graph;
    tdm_plan *plan;
    tdm_pages arena;
    int64_t batch;
    int64_t class_count;
    int64_t target_count; /* of a sample */
    int64_t V;            /* logits of a target: class_count, or more */
    int64_t *indices;
    int32_t *classes; /* the true classes, if a data set is evaluated */
    void *x;
    size_t x_bytes; /* of a row; all bits 0 mean zero in f32 and in i32 */
    const float *logits;
    const float *probabilities;
    tdm_predictor_run_fn run; /* NULL: tdm_plan_run */
    void *run_user;
    tdm_predictor_fill_fn fill; /* NULL: tdm_dataset_gather */
    void *fill_user;
    float *scores; /* during an evaluation: of all samples, for the AUC; NULL: not wanted */
};

/* The results of batches. All fields are doubles, so that a record can be sent as an array; counts are exact. */
typedef struct record {
    tdm__exact_sum loss; /* of the targets whose loss is finite */
    double infinite, correct, bad;
} record;
enum { RECORD_NUMBERS = sizeof(record) / sizeof(double) };

void tdm_predictor_destroy(tdm_predictor *predictor)
{
    if (!predictor) return;
    tdm_plan_destroy(predictor->plan);
    tdm_graph_destroy(predictor->graph);
    tdm_pages_unmap(&predictor->arena);
    free(predictor->indices);
    free(predictor->classes);
    free(predictor);
}

static tdm_status predictor_prepare(tdm_predictor *p, const tdm_model_options *model, float *params,
                                    tdm_error *err)
{
    tdm_model_options m = *model;
    m.training = false;
    p->batch = m.batch;
    p->class_count = m.class_count;
    TDM_TRY(tdm_model_build(&m, &p->graph, err));
    tdm_plan_options options = tdm_model_plan_options(&m);
    options.forward_only = true;
    TDM_TRY(tdm_plan_create(p->graph, &options, &p->plan, err));
    TDM_TRY(tdm_pages_map(tdm_plan_arena_bytes(p->plan), false, &p->arena, err));
    tdm_plan_bind(p->plan, TDM_SPACE_ARENA, p->arena.data);
    if (params) tdm_plan_bind(p->plan, TDM_SPACE_PARAMS, params);
    tdm_tensor x = tdm_plan_input(p->plan, TDM_MODEL_INPUT);
    p->x = x.data;
    p->x_bytes = tdm_tensor_bytes(&x) / (size_t)p->batch;
    tdm_tensor logits = tdm_plan_output(p->plan, TDM_MODEL_LOGITS);
    p->logits = logits.data;
    p->V = logits.shape.dim[logits.shape.rank - 1];
    p->target_count = logits.shape.rank == 3 ? logits.shape.dim[1] : 1;
    p->probabilities = tdm_plan_output(p->plan, TDM_MODEL_PROBABILITIES).data;
    p->indices = calloc((size_t)p->batch, sizeof(*p->indices));
    p->classes = calloc((size_t)(p->batch * p->target_count), sizeof(*p->classes));
    if (!p->indices || !p->classes) return tdm_fail_oom(err, "to evaluate");
    return TDM_OK;
}

tdm_status tdm_predictor_create(const tdm_model_options *model, float *params, tdm_predictor **out,
                                tdm_error *err)
{
    if (model->batch < 1)
        return tdm_fail(err, TDM_ERR_INVALID, "eval: the batch must be at least 1");
    tdm_predictor *p = calloc(1, sizeof(*p));
    if (!p) return tdm_fail_oom(err, "to evaluate");
    tdm_status status = predictor_prepare(p, model, params, err);
    if (status != TDM_OK) {
        tdm_predictor_destroy(p);
        return status;
    }
    *out = p;
    return TDM_OK;
}

int64_t tdm_predictor_batch(const tdm_predictor *predictor)
{
    return predictor->batch;
}

int64_t tdm_predictor_class_count(const tdm_predictor *predictor)
{
    return predictor->class_count;
}

tdm_plan *tdm_predictor_plan(tdm_predictor *predictor)
{
    return predictor->plan;
}

void tdm_predictor_run_by(tdm_predictor *predictor, tdm_predictor_run_fn run, void *user)
{
    predictor->run = run;
    predictor->run_user = user;
}

void tdm_predictor_fill_by(tdm_predictor *predictor, tdm_predictor_fill_fn fill, void *user)
{
    predictor->fill = fill;
    predictor->fill_user = user;
}

static tdm_status run_batch(tdm_predictor *p, const tdm_dataset *dataset, int64_t first,
                            int64_t count, int32_t *classes, tdm_error *err)
{
    assert(count >= 0 && count <= p->batch);
    for (int64_t i = 0; i < count; i++) p->indices[i] = first + i;
    if (p->fill)
        TDM_TRY(p->fill(p->fill_user, dataset, p->indices, count, p->x, classes, err));
    else
        tdm_dataset_gather(dataset, p->indices, count, p->x, classes);
    memset((char *)p->x + (size_t)count * p->x_bytes, 0, (size_t)(p->batch - count) * p->x_bytes);
    if (p->run) return p->run(p->run_user, true, err);
    tdm_plan_run(p->plan, &(tdm_step_key){0});
    return TDM_OK;
}

void tdm_predictor_run(tdm_predictor *predictor, const tdm_dataset *dataset, int64_t first,
                       int64_t count, const float **out_logits, const float **out_probabilities)
{
    assert(!predictor->run);
    run_batch(predictor, dataset, first, count, NULL, NULL);
    if (out_logits) *out_logits = predictor->logits;
    if (out_probabilities) *out_probabilities = predictor->probabilities;
}

bool tdm_all_finite(const float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(values[i])) return false;
    return true;
}

/* Whether softmax gives valid probabilities. -infinity excludes a class, but not all of them. */
static bool has_softmax(const float *logits, int64_t count)
{
    bool any = false;
    for (int64_t i = 0; i < count; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY) return false;
        any = any || logits[i] != -INFINITY;
    }
    return any;
}

int64_t tdm_argmax(const float *values, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (values[i] > values[best]) best = i;
    return best;
}

/* -log softmax(logits)[chosen], in double precision. */
static double cross_entropy(const float *logits, int64_t count, int64_t chosen)
{
    double largest = (double)logits[tdm_argmax(logits, count)], sum = 0;
    for (int64_t i = 0; i < count; i++) sum += tdm_math_exp((double)logits[i] - largest);
    return tdm_math_log(sum) + largest - (double)logits[chosen];
}

/* ---- metrics --------------------------------------------------------------------------------- */

static int64_t batch_count(const tdm_predictor *p, const tdm_dataset *dataset)
{
    return (tdm_dataset_info_of(dataset)->sample_count + p->batch - 1) / p->batch;
}

static void record_loss(record *r, double loss)
{
    if (isfinite(loss))
        tdm__exact_add(&r->loss, loss);
    else
        r->infinite++;
}

/* Runs batch number `index`; adds its results to the record and, if that is not NULL, to `confusion`. */
static tdm_status measure_batch(tdm_predictor *p, const tdm_dataset *dataset, int64_t index,
                                record *r, int64_t *confusion, tdm_error *err)
{
    int64_t V = p->V, K = p->class_count, first = index * p->batch;
    int64_t count = tdm_dataset_info_of(dataset)->sample_count - first;
    if (count > p->batch) count = p->batch;
    TDM_TRY(run_batch(p, dataset, first, count, p->classes, err));
    for (int64_t i = 0; i < count * p->target_count; i++) {
        const float *logits = p->logits + i * V;
        if (!has_softmax(logits, V)) {
            r->bad++;
            continue;
        }
        if (p->scores) p->scores[first + i] = logits[1] - logits[0];
        int64_t truth = p->classes[i], guess = tdm_argmax(logits, V);
        r->correct += guess == truth;
        record_loss(r, cross_entropy(logits, V, truth));
        if (confusion && guess < K) confusion[truth * K + guess]++;
    }
    return TDM_OK;
}

static void record_merge(record *sum, const record *r)
{
    tdm__exact_merge(&sum->loss, &r->loss);
    sum->infinite += r->infinite;
    sum->correct += r->correct;
    sum->bad += r->bad;
}

typedef struct scored {
    float score;
    int32_t truth;
} scored;

static int compare_scores(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    return (x->score > y->score) - (x->score < y->score);
}

/* The pairs of a sample of each class in which that of the second class has the higher score, times two; a pair with
 * equal scores counts one. All numbers are whole, so no bit depends on the order of equal scores. */
static double count_pairs(const scored *all, int64_t count)
{
    uint64_t twice = 0, negatives = 0;
    for (int64_t begin = 0, end; begin < count; begin = end) {
        uint64_t positive = 0, negative = 0;
        for (end = begin; end < count && all[end].score == all[begin].score; end++)
            *(all[end].truth == 1 ? &positive : &negative) += 1;
        twice += positive * (2 * negatives + negative);
        negatives += negative;
    }
    return (double)twice;
}

static void add_auc(const tdm_predictor *p, const tdm_dataset *dataset, tdm_metrics *m)
{
    int64_t count = m->sample_count;
    double positives = 0;
    scored *all = p->scores && m->bad_count == 0 ? calloc((size_t)count + 1, sizeof(*all)) : NULL;
    if (!all) return;
    for (int64_t i = 0; i < count; i++) {
        all[i] = (scored){p->scores[i], tdm_dataset_class(dataset, i)};
        positives += all[i].truth == 1;
    }
    qsort(all, (size_t)count, sizeof(*all), compare_scores);
    double pairs = positives * ((double)count - positives);
    m->has_auc = pairs > 0;
    if (m->has_auc) m->auc = count_pairs(all, count) / (2 * pairs);
    free(all);
}

static tdm_metrics metrics_of(const tdm_predictor *p, const tdm_dataset *dataset, const record *sum)
{
    int64_t samples = tdm_dataset_info_of(dataset)->sample_count;
    int64_t targets = samples * p->target_count;
    double n = targets > 0 ? (double)targets : 1.0;
    double loss = sum->infinite > 0 ? (double)INFINITY : tdm__exact_total(&sum->loss) / n;
    return (tdm_metrics){.sample_count = samples,
                         .target_count = targets,
                         .loss = sum->bad > 0 ? (double)NAN : loss,
                         .accuracy = sum->correct / n,
                         .bad_count = (int64_t)sum->bad};
}

/* Only models of sparse samples have a fill function, and they have two classes. */
static void scores_begin(tdm_predictor *p, const tdm_dataset *dataset)
{
    size_t count = (size_t)tdm_dataset_info_of(dataset)->sample_count;
    if (p->fill && p->V == 2) p->scores = calloc(count + 1, sizeof(*p->scores));
}

static void scores_end(tdm_predictor *p)
{
    free(p->scores);
    p->scores = NULL;
}

tdm_metrics tdm_evaluate(tdm_predictor *predictor, const tdm_dataset *dataset, int64_t *confusion)
{
    int64_t K = predictor->class_count;
    record sum = {0};
    assert(!predictor->run);
    if (confusion) memset(confusion, 0, (size_t)(K * K) * sizeof(*confusion));
    scores_begin(predictor, dataset);
    for (int64_t b = 0; b < batch_count(predictor, dataset); b++)
        (void)measure_batch(predictor, dataset, b, &sum, confusion,
                            NULL); /* cannot fail: no run() */
    tdm_metrics out = metrics_of(predictor, dataset, &sum);
    add_auc(predictor, dataset, &out);
    scores_end(predictor);
    return out;
}

/* Executes the rounds of this rank: its batches, and in a round without one only run(), for its collectives. */
static tdm_status run_rounds(tdm_predictor *p, const tdm_dataset *dataset, int rank, int size,
                             int64_t rounds, record *own, tdm_error *err)
{
    int64_t batches = batch_count(p, dataset);
    for (int64_t round = 0; round < rounds; round++) {
        int64_t b = round * size + rank;
        if (b < batches) {
            TDM_TRY(measure_batch(p, dataset, b, own, NULL, err));
            continue;
        }
        if (p->fill) TDM_TRY(p->fill(p->fill_user, dataset, p->indices, 0, p->x, NULL, err));
        if (p->run) TDM_TRY(p->run(p->run_user, false, err));
    }
    return TDM_OK;
}

tdm_status tdm_evaluate_together(tdm_predictor *predictor, const tdm_dataset *dataset,
                                 tdm_comm *comm, tdm_metrics *out, tdm_error *err)
{
    int size = comm ? tdm_comm_size(comm) : 1, rank = comm ? tdm_comm_rank(comm) : 0;
    int64_t rounds = (batch_count(predictor, dataset) + size - 1) / size;
    size_t count = (size_t)size;
    record *records = calloc(count, sizeof(*records)), sum = {0};
    scores_begin(predictor, dataset);
    /* This rank then does not take part; the others detect that by its exit or by their deadline. */
    if (!records || (predictor->fill && !predictor->scores)) {
        free(records);
        scores_end(predictor);
        return tdm_fail_oom(err, "for %zu records", count);
    }
    tdm_status status = run_rounds(predictor, dataset, rank, size, rounds, &records[rank], err);
    if (status == TDM_OK && size > 1 && predictor->scores) /* each is zero on all ranks but one */
        status = tdm_group_all_reduce(tdm_comm_world(comm), NULL, predictor->scores,
                                      (size_t)tdm_dataset_info_of(dataset)->sample_count,
                                      TDM_DTYPE_F32, TDM_REDUCE_SUM, err);
    if (status == TDM_OK && size > 1)
        status = tdm_group_all_gather(tdm_comm_world(comm), NULL, records, count * RECORD_NUMBERS,
                                      TDM_DTYPE_F64, err);
    for (int r = 0; status == TDM_OK && r < size; r++) record_merge(&sum, &records[r]);
    if (status == TDM_OK) {
        *out = metrics_of(predictor, dataset, &sum);
        add_auc(predictor, dataset, out);
    }
    scores_end(predictor);
    free(records);
    return status;
}
