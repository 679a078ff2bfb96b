/*
 * eval.c: inference in batches, and the metrics of classification. A model of tokens classifies each
 * place of its window: a sample then has as many targets as it has tokens.
 *
 * A predictor has one plan for its full batch; a last, shorter batch runs in the same plan with the
 * spare rows zeroed (a run leaves anything there, and not anything is a token), and only the rows
 * asked for are looked at. Rows do not influence each other, so that is exact.
 */
#include <tandem/eval.h>
#include <tandem/os.h>

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
    int32_t *classes; /* the truth, when a data set is evaluated */
    void *x;
    size_t x_bytes; /* of a row; f32 and i32 have zero in common */
    const float *logits;
    const float *probabilities;
};

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

static tdm_status prepare(tdm_predictor *p, const tdm_model_options *model, float *params,
                          tdm_error *err)
{
    tdm_model_options m = *model;
    m.training = false;
    p->batch = m.batch;
    p->class_count = m.class_count;
    TDM_TRY(tdm_model_build(&m, &p->graph, err));
    tdm_plan_options options = tdm_model_plan_options(m.job);
    options.threads = 1;
    options.forward_only = true;
    TDM_TRY(tdm_plan_create(p->graph, &options, &p->plan, err));
    TDM_TRY(tdm_pages_map(tdm_plan_arena_bytes(p->plan), false, &p->arena, err));
    tdm_plan_bind(p->plan, TDM_SPACE_ARENA, p->arena.data);
    tdm_plan_bind(p->plan, TDM_SPACE_PARAMS, params);
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
    if (!p->indices || !p->classes) return tdm_fail(err, TDM_ERR_NO_MEMORY, "eval: no memory");
    return TDM_OK;
}

tdm_status tdm_predictor_create(const tdm_model_options *model, float *params, tdm_predictor **out,
                                tdm_error *err)
{
    if (model->batch < 1)
        return tdm_fail(err, TDM_ERR_INVALID, "eval: the batch must be at least 1");
    tdm_predictor *p = calloc(1, sizeof(*p));
    if (!p) return tdm_fail(err, TDM_ERR_NO_MEMORY, "eval: no memory");
    tdm_status status = prepare(p, model, params, err);
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

static void run_batch(tdm_predictor *p, const tdm_dataset *dataset, int64_t first, int64_t count,
                      int32_t *classes)
{
    assert(count >= 0 && count <= p->batch);
    for (int64_t i = 0; i < count; i++) p->indices[i] = first + i;
    tdm_dataset_gather(dataset, p->indices, count, p->x, classes);
    memset((char *)p->x + (size_t)count * p->x_bytes, 0, (size_t)(p->batch - count) * p->x_bytes);
    tdm_plan_run(p->plan, &(tdm_step_key){0});
}

void tdm_predictor_run(tdm_predictor *predictor, const tdm_dataset *dataset, int64_t first,
                       int64_t count, const float **out_logits, const float **out_probabilities)
{
    run_batch(predictor, dataset, first, count, NULL);
    if (out_logits) *out_logits = predictor->logits;
    if (out_probabilities) *out_probabilities = predictor->probabilities;
}

bool tdm_all_finite(const float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(values[i])) return false;
    return true;
}

/* Whether softmax makes probabilities of them. A class that is masked has -infinity, and none. */
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
    for (int64_t i = 0; i < count; i++) sum += exp((double)logits[i] - largest);
    return log(sum) + largest - (double)logits[chosen];
}

tdm_metrics tdm_evaluate(tdm_predictor *predictor, const tdm_dataset *dataset, int64_t *confusion)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(dataset);
    int64_t V = predictor->V, K = predictor->class_count, correct = 0, bad = 0;
    double loss = 0;
    if (confusion) memset(confusion, 0, (size_t)(K * K) * sizeof(*confusion));
    for (int64_t first = 0; first < info->sample_count; first += predictor->batch) {
        int64_t count = info->sample_count - first;
        if (count > predictor->batch) count = predictor->batch;
        run_batch(predictor, dataset, first, count, predictor->classes);
        for (int64_t i = 0; i < count * predictor->target_count; i++) {
            const float *logits = predictor->logits + i * V;
            if (!has_softmax(logits, V)) {
                bad++;
                continue;
            }
            int64_t truth = predictor->classes[i], guess = tdm_argmax(logits, V);
            correct += guess == truth;
            loss += cross_entropy(logits, V, truth);
            if (confusion && guess < K) confusion[truth * K + guess]++;
        }
    }
    int64_t targets = info->sample_count * predictor->target_count;
    double n = targets > 0 ? (double)targets : 1.0;
    return (tdm_metrics){.sample_count = info->sample_count,
                         .target_count = targets,
                         .loss = bad > 0 ? (double)NAN : loss / n,
                         .accuracy = (double)correct / n,
                         .bad_count = bad};
}
