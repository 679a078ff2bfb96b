/*
 * eval_test.c: inference over data sets and its metrics, against values computed by hand and against the
 * definitions in double precision.
 */
#include "base/base.h"
#include "check.h"
#include "eval/eval.h"
#include "eval/exact_sum.h"
#include "sim/simulator.h"

#include <tandem/os.h>

#include <stdlib.h>

/* A linear model of two features and three classes: logits = x W + b, set by the test. */
typedef struct fixture {
    tdm_job job;
    tdm_model_options model;
    tdm_graph *graph; /* for the layout of the parameters */
    tdm_pages pages;
    float *params;
    tdm_dataset *set;
} fixture;

static tdm_dataset *parse(const char *csv, const char *const *names, int64_t count)
{
    tdm_dataset *set = NULL;
    tdm_error err = {0};
    tdm_data_options options = {.class_names = names, .class_count = count};
    CHECK_INT(tdm_dataset_parse(csv, strlen(csv), NULL, 0, "test", &options, &set, &err), TDM_OK);
    if (!set) fprintf(stderr, "  %s\n", err.message);
    return set;
}

static bool fixture_open(fixture *f, const char *csv)
{
    static const char *const names[] = {"a", "b", "c"};
    *f = (fixture){.set = parse(csv, names, 3)};
    f->model = (tdm_model_options){
        .job = &f->job, .sample_shape = tdm_shape_1(2), .class_count = 3, .batch = 1};
    CHECK_INT(tdm_model_build(&f->model, &f->graph, NULL), TDM_OK);
    if (!f->graph || !f->set) return false;
    size_t bytes = tdm_graph_param_extent(f->graph) * sizeof(float);
    if (tdm_pages_map(bytes, false, &f->pages, NULL) != TDM_OK) return false;
    f->params = f->pages.data;
    tdm_model_init(f->graph, 1, f->params);
    return true;
}

static void fixture_close(fixture *f)
{
    tdm_dataset_destroy(f->set);
    tdm_graph_destroy(f->graph);
    tdm_pages_unmap(&f->pages);
}

/* The parameters of the only layer: the weights are the parameter of rank 2. */
static void set_layer(fixture *f, float weight, const float bias[3])
{
    for (size_t i = 0; i < tdm_graph_param_count(f->graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(f->graph, i);
        if (!p->trained) continue;
        float *numbers = f->params + p->offset;
        for (size_t k = 0; k < p->elements; k++) numbers[k] = p->shape.rank == 2 ? 0 : bias[k];
        if (p->shape.rank != 2) continue;
        /* Feature 0 selects class 0, feature 1 class 1, in either layout. */
        bool by_output = p->shape.dim[0] == 3;
        numbers[0] = weight;
        numbers[by_output ? 3 : 4] = weight;
    }
}

static tdm_predictor *predictor(const fixture *f, int64_t batch)
{
    tdm_predictor *p = NULL;
    tdm_model_options m = f->model;
    m.batch = batch;
    CHECK_INT(tdm_predictor_create(&m, f->params, &p, NULL), TDM_OK);
    return p;
}

/* ---- the largest ----------------------------------------------------------------------------- */

static void argmax_takes_the_first_of_equals(void)
{
    CHECK_INT(tdm_argmax((float[]){3}, 1), 0);
    CHECK_INT(tdm_argmax((float[]){1, 2, 3}, 3), 2);
    CHECK_INT(tdm_argmax((float[]){-5, -1, -3}, 3), 1);
    CHECK_INT(tdm_argmax((float[]){2, 7, 7, 7}, 4), 1);
    CHECK_INT(tdm_argmax((float[]){0, 0}, 2), 0);
    CHECK_INT(tdm_argmax((float[]){-INFINITY, INFINITY, 3}, 3), 1);
}

/* ---- inference ------------------------------------------------------------------------------- */

static const char four[] = "1,0,a\n0,1,b\n1,1,c\n2,0,b\n";

static void logits_and_probabilities_by_hand(void)
{
    fixture f;
    if (!fixture_open(&f, four)) return;
    set_layer(&f, 2.0f, (float[]){0.5f, 0, -1});
    tdm_predictor *p = predictor(&f, 3);
    if (!p) return;
    CHECK_INT(tdm_predictor_batch(p), 3);
    CHECK_INT(tdm_predictor_class_count(p), 3);
    static const float want[4][3] = {{2.5f, 0, -1}, {0.5f, 2, -1}, {2.5f, 2, -1}, {4.5f, 0, -1}};
    for (int64_t first = 0; first < 4; first++) {
        int64_t count = first + 3 <= 4 ? 3 : 4 - first;
        const float *logits = NULL, *probabilities = NULL;
        tdm_predictor_run(p, f.set, first, count, &logits, &probabilities);
        for (int64_t i = 0; i < count; i++) {
            double sum = 0;
            for (int k = 0; k < 3; k++) sum += exp((double)want[first + i][k]);
            for (int k = 0; k < 3; k++) {
                CHECK_NEAR(logits[i * 3 + k], want[first + i][k], 1e-6);
                CHECK_NEAR(probabilities[i * 3 + k], exp((double)want[first + i][k]) / sum, 1e-6);
            }
        }
    }
    tdm_predictor_run(p, f.set, 0, 1, NULL, NULL); /* both outputs are optional */
    tdm_predictor_destroy(p);
    fixture_close(&f);
}

static void metrics_by_hand(void)
{
    fixture f;
    if (!fixture_open(&f, four)) return;
    set_layer(&f, 2.0f, (float[]){0.5f, 0, -1});
    tdm_predictor *p = predictor(&f, 4);
    if (!p) return;
    int64_t confusion[9] = {7, 7, 7, 7, 7, 7, 7, 7, 7};
    tdm_metrics m = tdm_evaluate(p, f.set, confusion);
    CHECK_INT(m.sample_count, 4);
    CHECK_NEAR(m.accuracy, 0.5, 0);
    double loss = log(exp(2.5) + 1 + exp(-1)) - 2.5 + log(exp(0.5) + exp(2) + exp(-1)) - 2 +
                  log(exp(2.5) + exp(2) + exp(-1)) + 1 + log(exp(4.5) + 1 + exp(-1));
    CHECK_NEAR(m.loss, loss / 4, 1e-6);
    static const int64_t want[9] = {1, 0, 0, 1, 1, 0, 1, 0, 0}; /* [truth][guess] */
    for (int i = 0; i < 9; i++) CHECK_INT(confusion[i], want[i]);
    tdm_predictor_destroy(p);
    fixture_close(&f);
}

/* The parameters are borrowed: the next call uses their changed values. */
static void parameters_may_change_between_calls(void)
{
    fixture f;
    if (!fixture_open(&f, four)) return;
    set_layer(&f, 0, (float[]){0, 0, 1});
    tdm_predictor *p = predictor(&f, 2);
    if (!p) return;
    CHECK_NEAR(tdm_evaluate(p, f.set, NULL).accuracy, 0.25, 0);
    set_layer(&f, 0, (float[]){0, 1, 0});
    CHECK_NEAR(tdm_evaluate(p, f.set, NULL).accuracy, 0.5, 0);
    set_layer(&f, 0, (float[]){0, 0, 0});
    CHECK_NEAR(tdm_evaluate(p, f.set, NULL).loss, log(3), 1e-9);
    tdm_predictor_destroy(p);
    fixture_close(&f);
}

/* Logits so far apart that exp() of them would be infinite or zero. */
static void large_logits_have_a_finite_loss(void)
{
    fixture f;
    if (!fixture_open(&f, "1,0,b\n")) return;
    set_layer(&f, 1e5f, (float[]){0, 0, -1e5f});
    tdm_predictor *p = predictor(&f, 1);
    if (!p) return;
    CHECK_NEAR(tdm_evaluate(p, f.set, NULL).loss, 1e5, 1e-3);
    tdm_predictor_destroy(p);
    fixture_close(&f);
}

/* The second sample overflows to infinities of both signs. */
static void non_finite_numbers_are_reported(void)
{
    fixture f;
    int64_t confusion[9];
    if (!fixture_open(&f, "1,0,a\n3e38,1,b\n0,0,c\n")) return;
    set_layer(&f, 10, (float[]){0, 0, 0});
    tdm_predictor *p = predictor(&f, 2);
    if (!p) return;
    tdm_metrics m = tdm_evaluate(p, f.set, confusion);
    CHECK_INT(m.bad_count, 1);
    CHECK(isnan(m.loss));
    CHECK(m.accuracy < 1);
    int64_t counted = 0;
    for (int i = 0; i < 9; i++) counted += confusion[i];
    CHECK_INT(counted, 2);
    tdm_predictor_destroy(p);
    fixture_close(&f);
    CHECK(tdm_all_finite((float[]){0, -3e38f}, 2) && tdm_all_finite(NULL, 0));
    CHECK(!tdm_all_finite((float[]){0, NAN}, 2) && !tdm_all_finite((float[]){-INFINITY, 0}, 2));
}

/* A logit of -infinity excludes a class; only if no class is left is there no prediction. */
static void a_masked_class_is_not_a_bad_number(void)
{
    static const struct {
        const char *csv;
        float bias[3];
        int bad;
        double loss, accuracy;
    } rows[] = {
        {"1,0,a\n0,1,b\n", {0, 0, -INFINITY}, 0, 0.31326168751822, 1},
        {"1,0,b\n0,1,b\n", {-INFINITY, 0, -INFINITY}, 0, 0, 1},
        {"1,0,a\n0,1,c\n", {0, 0, -INFINITY}, 0, (double)INFINITY, 0.5},
        {"1,0,a\n0,1,b\n", {-INFINITY, -INFINITY, -INFINITY}, 2, (double)NAN, 0},
        {"1,0,a\n0,1,b\n", {0, 0, INFINITY}, 2, (double)NAN, 0},
        {"1,0,a\n0,1,b\n", {0, NAN, -INFINITY}, 2, (double)NAN, 0},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fixture f;
        if (!fixture_open(&f, rows[i].csv)) return;
        set_layer(&f, 1, rows[i].bias);
        tdm_predictor *p = predictor(&f, 2);
        if (!p) return;
        tdm_metrics m = tdm_evaluate(p, f.set, NULL);
        CHECK_INT(m.bad_count, rows[i].bad);
        CHECK_NEAR(m.accuracy, rows[i].accuracy, 0);
        CHECK(isnan(rows[i].loss) ? isnan(m.loss)
                                  : m.loss == rows[i].loss || fabs(m.loss - rows[i].loss) < 1e-6);
        tdm_predictor_destroy(p);
        fixture_close(&f);
    }
}

static void add_rows(tdm_str *csv, int count)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 8, .stream = TDM_RNG_STREAM_USER});
    for (int i = 0; i < count; i++)
        tdm_str_addf(csv, "%.4f,%.4f,%c\n", (double)tdm_rng_uniform(&rng),
                     (double)tdm_rng_uniform(&rng), "abc"[tdm_rng_below(&rng, 3)]);
}

/* Numbers of very different magnitudes, in other orders and groups: the same sum, and the correct one. */
static void exact_sums_do_not_depend_on_order(void)
{
    enum { COUNT = 1000 };
    double numbers[COUNT], first = 0;
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 8, .stream = TDM_RNG_STREAM_USER});
    for (int i = 0; i < COUNT; i++)
        numbers[i] = ldexp(tdm_rng_normal(&rng), (int)tdm_rng_below(&rng, 220) - 90);
    for (int round = 0; round < 20; round++) {
        tdm__exact_sum sum = {{0}}, other = {{0}};
        for (int i = 0; i < COUNT; i++) {
            uint64_t k = tdm_rng_below(&rng, (uint64_t)(COUNT - i));
            double x = numbers[k];
            numbers[k] = numbers[COUNT - 1 - i];
            numbers[COUNT - 1 - i] = x;
            tdm__exact_add(i % (round + 1) ? &sum : &other, x);
        }
        tdm__exact_merge(&sum, &other);
        if (round == 0) first = tdm__exact_total(&sum);
        CHECK(tdm__exact_total(&sum) == first);
        for (int i = 0; i < COUNT; i++) tdm__exact_add(&sum, -numbers[i]);
        CHECK(tdm__exact_total(&sum) == 0);
    }
    tdm__exact_sum small = {{0}};
    for (int i = 0; i < 10; i++) tdm__exact_add(&small, 0.1);
    CHECK(tdm__exact_total(&small) == 1.0); /* ten times 0.1, rounded once */
    tdm__exact_add(&small, 0x1p159);
    tdm__exact_add(&small, -0x1p159);
    CHECK(tdm__exact_total(&small) == 1.0);
}

static void the_size_of_batches_does_not_matter(void)
{
    static const int64_t batches[] = {1, 2, 7, 36, 37, 38, 100};
    tdm_str csv = TDM_STR_INIT;
    add_rows(&csv, 37);
    fixture f;
    if (!fixture_open(&f, tdm_str_text(&csv))) return;
    int64_t first_confusion[9] = {0};
    tdm_metrics first = {0};
    for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++) {
        int64_t confusion[9], sum = 0;
        tdm_predictor *p = predictor(&f, batches[i]);
        if (!p) continue;
        tdm_metrics m = tdm_evaluate(p, f.set, confusion);
        if (i == 0) {
            first = m;
            memcpy(first_confusion, confusion, sizeof(confusion));
        }
        for (int k = 0; k < 9; k++) sum += confusion[k];
        CHECK_INT(sum, 37);
        CHECK_INT(m.sample_count, 37);
        CHECK(m.accuracy > 0 && m.accuracy < 1); /* so that an error is detected */
        CHECK_NEAR(m.accuracy, first.accuracy, 0);
        CHECK_NEAR(m.loss, first.loss, 0);
        CHECK(memcmp(confusion, first_confusion, sizeof(confusion)) == 0);
        tdm_predictor_destroy(p);
    }
    tdm_str_release(&csv);
    fixture_close(&f);
}

/* ---- many ranks ------------------------------------------------------------------------------ */

enum { MAX_RANKS = 40 };

typedef struct shared_run {
    const fixture *f;
    tdm_predictor *predictors[MAX_RANKS];
    tdm_metrics metrics[MAX_RANKS];
    tdm_status status[MAX_RANKS];
    int runs[MAX_RANKS], passes[MAX_RANKS];
} shared_run;

typedef struct counted {
    shared_run *all;
    int rank;
    tdm_status fails_with;
} counted;

static tdm_status run_counted(void *user, bool has_rows, tdm_error *err)
{
    counted *c = user;
    (void)err;
    (has_rows ? c->all->runs : c->all->passes)[c->rank]++;
    if (has_rows) tdm_plan_run(tdm_predictor_plan(c->all->predictors[c->rank]), &(tdm_step_key){0});
    return c->fails_with;
}

static void evaluate_as_rank(tdm_comm *comm, void *user)
{
    shared_run *all = user;
    int rank = tdm_comm_rank(comm);
    counted c = {.all = all, .rank = rank};
    if (rank % 2 == 1) tdm_predictor_run_by(all->predictors[rank], run_counted, &c);
    all->status[rank] = tdm_evaluate_together(all->predictors[rank], all->f->set, comm,
                                              &all->metrics[rank], NULL);
}

static bool same_metrics(const tdm_metrics *a, const tdm_metrics *b)
{
    return a->sample_count == b->sample_count && a->target_count == b->target_count &&
           a->bad_count == b->bad_count && memcmp(&a->loss, &b->loss, sizeof(a->loss)) == 0 &&
           memcmp(&a->accuracy, &b->accuracy, sizeof(a->accuracy)) == 0;
}

/* All ranks get, bit for bit, the results of a single process; also those without a batch. */
static void evaluate_with(const fixture *f, int size, int64_t batch, const tdm_metrics *want)
{
    shared_run all = {.f = f};
    for (int i = 0; i < size; i++) {
        all.predictors[i] = predictor(f, batch);
        if (!all.predictors[i]) return;
        all.status[i] = TDM_ERR_INTERNAL;
    }
    tdm_sim_options options = {.seed = 3, .size = size, .stack_bytes = 2u << 20};
    CHECK_INT(tdm_sim_run(&options, evaluate_as_rank, &all, &(tdm_sim_result){0}, NULL), TDM_OK);
    int64_t batches = (want->sample_count + batch - 1) / batch;
    for (int i = 0; i < size; i++) {
        CHECK_INT(all.status[i], TDM_OK);
        CHECK(same_metrics(&all.metrics[i], want));
        if (i % 2 == 1) { /* every rank takes part in every round */
            CHECK_INT(all.runs[i] + all.passes[i], (batches + size - 1) / size);
            CHECK_INT(all.runs[i], (batches - i + size - 1) / size);
        }
        tdm_predictor_destroy(all.predictors[i]);
    }
}

static void the_number_of_ranks_does_not_matter(void)
{
    static const int sizes[] = {1, 2, 3, 5, 8, MAX_RANKS};
    static const int64_t batches[] = {1, 7, 37, 100};
    tdm_str csv = TDM_STR_INIT;
    add_rows(&csv, 37);
    fixture f;
    if (!fixture_open(&f, tdm_str_text(&csv))) return;
    for (size_t b = 0; b < sizeof(batches) / sizeof(batches[0]); b++) {
        tdm_predictor *alone = predictor(&f, batches[b]);
        if (!alone) return;
        tdm_metrics want = tdm_evaluate(alone, f.set, NULL), same;
        CHECK_INT(tdm_evaluate_together(alone, f.set, NULL, &same, NULL), TDM_OK);
        CHECK(same_metrics(&same, &want));
        CHECK(want.accuracy > 0 && want.accuracy < 1); /* so that an error is detected */
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
            evaluate_with(&f, sizes[i], batches[b], &want);
        tdm_predictor_destroy(alone);
    }
    tdm_str_release(&csv);
    fixture_close(&f);
}

static void a_run_that_fails_ends_the_evaluation(void)
{
    fixture f;
    if (!fixture_open(&f, four)) return;
    shared_run all = {.f = &f, .predictors = {predictor(&f, 1)}};
    counted c = {.all = &all, .fails_with = TDM_ERR_PEER_FAILED};
    tdm_metrics m = {.sample_count = -1};
    if (!all.predictors[0]) return;
    tdm_predictor_run_by(all.predictors[0], run_counted, &c);
    CHECK_INT(tdm_evaluate_together(all.predictors[0], f.set, NULL, &m, NULL), TDM_ERR_PEER_FAILED);
    CHECK_INT(all.runs[0], 1);
    CHECK_INT(m.sample_count, -1);
    tdm_predictor_destroy(all.predictors[0]);
    fixture_close(&f);
}

static void what_is_refused(void)
{
    fixture f;
    if (!fixture_open(&f, four)) return;
    tdm_predictor *p = NULL;
    tdm_error err = {0};
    tdm_model_options m = f.model;
    for (m.batch = 0; m.batch >= -1; m.batch--) {
        CHECK_INT(tdm_predictor_create(&m, f.params, &p, &err), TDM_ERR_INVALID);
        CHECK_HAS(err.message, "at least 1");
        CHECK(!p);
    }
    m.batch = INT64_MAX; /* more than any machine has */
    CHECK(tdm_predictor_create(&m, f.params, &p, &err) != TDM_OK);
    CHECK(!p);
    tdm_predictor_destroy(NULL);
    fixture_close(&f);
}

static const check_test tests[] = {
    CHECK_TEST(argmax_takes_the_first_of_equals),
    CHECK_TEST(logits_and_probabilities_by_hand),
    CHECK_TEST(metrics_by_hand),
    CHECK_TEST(parameters_may_change_between_calls),
    CHECK_TEST(large_logits_have_a_finite_loss),
    CHECK_TEST(non_finite_numbers_are_reported),
    CHECK_TEST(a_masked_class_is_not_a_bad_number),
    CHECK_TEST(exact_sums_do_not_depend_on_order),
    CHECK_TEST(the_size_of_batches_does_not_matter),
    CHECK_TEST(the_number_of_ranks_does_not_matter),
    CHECK_TEST(a_run_that_fails_ends_the_evaluation),
    CHECK_TEST(what_is_refused),
};

CHECK_MAIN(tests)
