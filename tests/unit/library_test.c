/*
 * library_test.c: models from shared objects: the graphs that they build, when they are unloaded, and the
 * message for each kind of error. The libraries are the files of tests/library and that of the example; this
 * program is linked with libtandem.so like any other, because they look for Tandem's functions there.
 */
#include "graph/graph.h"
#include <tandem/library.h>
#include <tandem/os.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

enum { FEATURES = 6, CLASSES = 3, ROWS = 4 };

/* A job for tests/library/NAME.so with up to two options, in order of name. */
typedef struct trial {
    char path[512];
    tdm_job_option options[2];
    tdm_job job;
} trial;

static void trial_of(trial *t, const char *path, const char *name, const char *value)
{
    snprintf(t->path, sizeof(t->path), "%s", path);
    t->options[0] = (tdm_job_option){name, value};
    t->job = (tdm_job){.model = {.kind = TDM_JOB_MODEL_LIBRARY,
                                 .library = t->path,
                                 .options = {t->options, name ? 1 : 0}}};
}

static void trial_of_test(trial *t, const char *library, const char *name, const char *value)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s.so", LIBRARY_DIR, library);
    trial_of(t, path, name, value);
}

static tdm_model_options options_of(const tdm_job *job, int64_t batch, bool training)
{
    return (tdm_model_options){.job = job,
                               .sample_shape = tdm_shape_1(FEATURES),
                               .class_count = CLASSES,
                               .batch = batch,
                               .training = training,
                               .loss_scale = 1.0 / (double)batch};
}

static tdm_graph *build(const trial *t, int64_t batch, bool training)
{
    tdm_error err = {0};
    tdm_graph *graph = NULL;
    tdm_model_options o = options_of(&t->job, batch, training);
    CHECK_INT(tdm_model_build(&o, &graph, &err), TDM_OK);
    CHECK_TEXT(err.message, "");
    return graph;
}

static bool is_loaded(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (handle) dlclose(handle);
    return handle != NULL;
}

/* The message must have both parts, and nothing may stay loaded. */
static void refuses(const trial *t, bool training, tdm_status status, const char *part,
                    const char *other)
{
    tdm_error err = {0};
    tdm_graph *graph = NULL;
    tdm_model_options o = options_of(&t->job, ROWS, training);
    CHECK_INT(tdm_model_build(&o, &graph, &err), status);
    CHECK(graph == NULL);
    CHECK_HAS(err.message, part);
    CHECK_HAS(err.message, other);
    CHECK(!is_loaded(t->path));
}

/* ---- a model that is fine -------------------------------------------------------------------- */

static void builds_the_same_parameters_each_time(void)
{
    trial t;
    trial_of_test(&t, "trial", "gain", "2");
    tdm_graph *training = build(&t, 5, true), *one = build(&t, 1, false);
    if (!training || !one) return;
    CHECK_INT(tdm_graph_param_count(training), 5);
    CHECK_INT(tdm_graph_param_extent(training), tdm_graph_param_extent(one));
    const tdm_param_info *weight = tdm_graph_param_at(training, 3);
    CHECK_TEXT(weight->name, "weight");
    CHECK_INT(weight->shape.dim[0], CLASSES);
    CHECK_INT(weight->shape.dim[1], FEATURES);
    CHECK_NEAR(weight->init.scale, 0.2, 1e-12);
    CHECK(!tdm_model_takes_tokens(&t.job));
    CHECK_INT(tdm_model_check(&t.job, NULL), TDM_OK);
    tdm_graph_destroy(training);
    tdm_graph_destroy(one);
}

static void reads_options_of_each_type(void)
{
    trial t;
    trial_of_test(&t, "trial", "bias", "false");
    tdm_graph *graph = build(&t, 2, true);
    if (graph) CHECK_INT(tdm_graph_param_count(graph), 4);
    tdm_graph_destroy(graph);
    trial_of_test(&t, "trial", "gain", "1.5e0");
    graph = build(&t, 2, true);
    if (graph) CHECK_NEAR(tdm_graph_param_at(graph, 3)->init.scale, 0.15, 1e-12);
    tdm_graph_destroy(graph);
    trial_of_test(&t, "trial", "mistake", "scope"); /* a scope that was not ended is ended */
    graph = build(&t, 2, false);
    if (graph) {
        size_t last = tdm_graph_node_count(graph) - 1;
        CHECK_TEXT(tdm_graph_node_at(graph, last).name, "softmax");
    }
    tdm_graph_destroy(graph);
}

static void takes_tokens(void)
{
    trial t;
    trial_of_test(&t, "tokens", "rows", "5");
    CHECK(tdm_model_takes_tokens(&t.job));
    tdm_graph *graph = build(&t, 2, true); /* two spare tokens */
    if (graph) CHECK_INT(tdm_graph_param_at(graph, 0)->shape.dim[0], 5);
    tdm_graph_destroy(graph);
    trial_of_test(&t, "tokens", "rows", "2");
    refuses(&t, true, TDM_ERR_INVALID, "returned f32 [4, 6, 2]", "must be f32 [4, 6, 3]");
}

/* A library that was compiled when some inline functions were exported still loads. */
static void loads_an_old_library(void)
{
    trial t;
    trial_of_test(&t, "old_symbols", "mistake", "nothing");
    tdm_graph *graph = build(&t, 5, true);
    CHECK(graph != NULL);
    if (graph)
        CHECK_INT(tdm_graph_param_at(graph, tdm_graph_param_count(graph) - 1)->shape.dim[0],
                  CLASSES);
    tdm_graph_destroy(graph);
}

/* ---- how long it stays ----------------------------------------------------------------------- */

static bool copy_file(const char *from, const char *to)
{
    tdm_file_bytes bytes;
    if (tdm_file_read(from, 0, &bytes, NULL) != TDM_OK) return false;
    bool ok = tdm_file_replace(to, bytes.data, bytes.count, NULL) == TDM_OK;
    tdm_file_bytes_release(&bytes);
    return ok;
}

/* The loss of a plan whose inputs are the same each time. */
static float loss_of(tdm_plan *plan)
{
    float *x = tdm_plan_input(plan, TDM_MODEL_INPUT).data;
    int32_t *classes = tdm_plan_input(plan, TDM_MODEL_CLASSES).data;
    for (int i = 0; i < ROWS * FEATURES; i++) x[i] = sinf((float)i * 1.7f) * 1.5f;
    for (int i = 0; i < ROWS; i++) classes[i] = i % CLASSES;
    tdm_plan_run(plan, &(tdm_step_key){.seed = 1});
    return *(const float *)tdm_plan_output(plan, TDM_MODEL_LOSS).data;
}

typedef struct runner {
    tdm_graph *graph;
    tdm_plan *plan;
    tdm_pages arena, numbers;
    float *params, *grads;
} runner;

static bool runner_init(runner *r, const trial *t)
{
    *r = (runner){.graph = build(t, ROWS, true)};
    if (!r->graph || tdm_plan_create(r->graph, NULL, &r->plan, NULL) != TDM_OK) return false;
    size_t extent = tdm_graph_param_extent(r->graph);
    if (tdm_pages_map(tdm_plan_arena_bytes(r->plan), false, &r->arena, NULL) != TDM_OK ||
        tdm_pages_map(2 * extent * sizeof(float), false, &r->numbers, NULL) != TDM_OK)
        return false;
    r->params = r->numbers.data;
    r->grads = r->params + extent;
    tdm_model_init(r->graph, 1, r->params);
    tdm_plan_bind(r->plan, TDM_SPACE_ARENA, r->arena.data);
    tdm_plan_bind(r->plan, TDM_SPACE_PARAMS, r->params);
    tdm_plan_bind(r->plan, TDM_SPACE_GRADS, r->grads);
    return true;
}

static void runner_release(runner *r)
{
    tdm_plan_destroy(r->plan);
    tdm_graph_destroy(r->graph);
    tdm_pages_unmap(&r->arena);
    tdm_pages_unmap(&r->numbers);
}

static void stays_as_long_as_its_graphs(void)
{
    char path[] = "/tmp/tandem-library-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && copy_file(EXAMPLE, path));
    close(fd);
    trial t;
    trial_of(&t, path, "width", "8");
    runner r;
    CHECK(runner_init(&r, &t));
    tdm_graph *other = build(&t, 1, false);
    CHECK_INT(unlink(path), 0);
    tdm_graph_destroy(other);
    CHECK(is_loaded(path));
    if (r.plan) CHECK(isfinite(loss_of(r.plan)));
    runner_release(&r);
    CHECK(!is_loaded(path));
    refuses(&t, true, TDM_ERR_NOT_FOUND, path, "is missing; restore it");
}

/* The new op of the example in a whole model: its gradient against differences. */
static void the_example_has_the_right_gradient(void)
{
    trial t;
    trial_of(&t, EXAMPLE, "width", "5");
    runner r;
    CHECK(runner_init(&r, &t));
    if (!r.plan) return;
    const float h = 1.0f / 64;
    int checked = 0, large = 0;
    for (size_t i = 0; i < tdm_graph_trained_extent(r.graph); i += 7) {
        loss_of(r.plan);
        float grad = r.grads[i], kept = r.params[i];
        r.params[i] = kept + h;
        float above = loss_of(r.plan);
        r.params[i] = kept - h;
        float below = loss_of(r.plan);
        r.params[i] = kept;
        CHECK_NEAR(grad, (above - below) / (2 * h), 1e-3 + 0.01 * fabsf(grad));
        checked++;
        large += fabsf(grad) > 0.01f;
    }
    CHECK(checked > 20);
    CHECK(large > 10); /* otherwise the check above proves nothing */
    uint64_t flops = 0;
    for (size_t i = 0; i < tdm_graph_node_count(r.graph); i++)
        if (strcmp(tdm_graph_node_at(r.graph, i).op, "mish") == 0)
            flops += tdm_graph_node_at(r.graph, i).flops;
    CHECK_INT(flops, 32 * ROWS * (2 * 10 + 5)); /* two blocks, and the end */
    runner_release(&r);
}

/* ---- what is wrong with it ------------------------------------------------------------------- */

static void reports_problems_of_the_file(void)
{
    trial t;
    char path[] = "/tmp/tandem-library-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, "not code\n", 9) == 9);
    close(fd);
    trial_of(&t, path, NULL, NULL);
    refuses(&t, true, TDM_ERR_FORMAT, path, "cannot load it as a shared object");
    CHECK(!tdm_model_takes_tokens(&t.job));
    CHECK_INT(tdm_model_check(&t.job, NULL), TDM_ERR_FORMAT);
    CHECK_INT(unlink(path), 0);
    trial_of(&t, "/no/such/model.so", NULL, NULL);
    refuses(&t, true, TDM_ERR_NOT_FOUND, "/no/such/model.so", "restore it");
    t.job.model.library = NULL;
    refuses(&t, true, TDM_ERR_JOB_INVALID, "model.kind is library", "model.library is not set");
    trial_of_test(&t, "no_entry", NULL, NULL);
    refuses(&t, true, TDM_ERR_FORMAT, "no_entry.so", "exports no function tdm_library_entry");
    trial_of_test(&t, "no_table", NULL, NULL);
    refuses(&t, true, TDM_ERR_FORMAT, "no_table.so", "returns no table");
    trial_of_test(&t, "half_table", NULL, NULL);
    refuses(&t, true, TDM_ERR_FORMAT, "half_table.so", "needs a name, build");
    trial_of_test(&t, "other_abi", NULL, NULL);
    refuses(&t, true, TDM_ERR_UNSUPPORTED, "compiled for version 2", "compile it again");
}

static void reports_a_replaced_file(void)
{
    trial t;
    char hex[TDM_SHA256_HEX];
    tdm_file_bytes bytes;
    trial_of_test(&t, "trial", NULL, NULL);
    CHECK_INT(tdm_file_read(t.path, 0, &bytes, NULL), TDM_OK);
    CHECK_INT(tdm_sha256_of(bytes.data, bytes.count, hex), TDM_OK);
    tdm_file_bytes_release(&bytes);
    t.job.model.library_sha256 = hex;
    CHECK_INT(tdm_model_check(&t.job, NULL), TDM_OK);
    hex[0] = hex[0] == '0' ? '1' : '0';
    refuses(&t, true, TDM_ERR_JOB_MISMATCH, "not the file that the model was trained with", hex);
}

static void reports_problems_of_the_options(void)
{
    static const struct {
        const char *library, *name, *value, *part, *other;
    } rows[] = {
        {"trial", "gian", "1", "unknown option 'gian'; did you mean 'gain'?",
         "the model trial takes mistake, gain, extra, bias"},
        {"trial", "zzzzzzzzz", "1", "unknown option 'zzzzzzzzz'; the model trial", "extra"},
        {"trial", "gain", "2.5", "'gain' expects a number from 0.5 to 2", "got '2.5'"},
        {"trial", "gain", "much", "'gain' expects a number", "got 'much'"},
        {"trial", "extra", "1.5", "'extra' expects a whole number, got '1.5'", "trial.so"},
        {"trial", "bias", "yes", "'bias' expects true or false", "got 'yes'"},
        {"tokens", NULL, NULL, "the model bigram needs 'rows', a whole number from 2 to 1000",
         "tokens.so"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        trial t;
        trial_of_test(&t, rows[i].library, rows[i].name, rows[i].value);
        refuses(&t, true, TDM_ERR_JOB_INVALID, rows[i].part, rows[i].other);
        CHECK_INT(tdm_model_check(&t.job, NULL), TDM_ERR_JOB_INVALID);
    }
}

static void reports_problems_of_the_model(void)
{
    static const struct {
        const char *name, *value, *part, *other;
    } rows[] = {
        {"mistake", "refuse", "trial.so: the model trial: ", "it does not like batches of 4"},
        {"mistake", "none", "build() returned no value", "trial.so"},
        {"extra", "1", "returned f32 [4, 4]", "must be f32 [4, 3]"},
        {"mistake", "unknown", "reads an option 'no'", "table does not have"},
        {"mistake", "type", "reads an option 'gain'", "with this type"},
        {"mistake", "training", "in training with 4 rows it creates different parameters",
         "'more'"},
        {"mistake", "batch", "in training with 4 rows it creates different parameters",
         "options->batch"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        trial t;
        trial_of_test(&t, "trial", rows[i].name, rows[i].value);
        refuses(&t, true, TDM_ERR_INVALID, rows[i].part, rows[i].other);
    }
}

/* ---- what graphs keep ------------------------------------------------------------------------ */

static void note(void *what)
{
    ++*(int *)what;
}

static void graphs_keep_what_they_are_given(void)
{
    int released[2] = {0};
    tdm_graph *graph = tdm_graph_create();
    int *numbers = tdm_graph_memory(graph, 3 * sizeof(*numbers));
    CHECK(numbers && numbers[0] == 0 && numbers[2] == 0);
    CHECK_INT(tdm_graph_keep(graph, note, &released[0], NULL), TDM_OK);
    CHECK_INT(tdm_graph_keep(graph, note, &released[1], NULL), TDM_OK);
    tdm_graph_refuse(graph, "broken");
    CHECK(tdm_graph_memory(graph, 1) == NULL);
    CHECK_INT(released[0] + released[1], 0);
    tdm_graph_destroy(graph);
    CHECK(released[0] == 1 && released[1] == 1);
}

/* The release functions may be the library's own, which must still be loaded when they are called. */
static void a_library_outlives_what_it_has_kept(void)
{
    trial t;
    trial_of_test(&t, "trial", "mistake", "keep");
    tdm_graph *graph = build(&t, 2, true);
    if (!graph) return;
    CHECK(getenv("TRIAL_KEEPS") != NULL); /* by the graph with which the first was compared */
    unsetenv("TRIAL_KEEPS");
    CHECK(is_loaded(t.path));
    tdm_graph_destroy(graph);
    CHECK(getenv("TRIAL_KEEPS") != NULL);
    CHECK(!is_loaded(t.path));
    unsetenv("TRIAL_KEEPS");
}

static const check_test tests[] = {
    CHECK_TEST(builds_the_same_parameters_each_time),
    CHECK_TEST(reads_options_of_each_type),
    CHECK_TEST(takes_tokens),
    CHECK_TEST(loads_an_old_library),
    CHECK_TEST(stays_as_long_as_its_graphs),
    CHECK_TEST(the_example_has_the_right_gradient),
    CHECK_TEST(reports_problems_of_the_file),
    CHECK_TEST(reports_a_replaced_file),
    CHECK_TEST(reports_problems_of_the_options),
    CHECK_TEST(reports_problems_of_the_model),
    CHECK_TEST(graphs_keep_what_they_are_given),
    CHECK_TEST(a_library_outlives_what_it_has_kept),
};

CHECK_MAIN(tests)
