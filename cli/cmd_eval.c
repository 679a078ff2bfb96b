/*
 * cmd_eval.c: `tandem eval`: evaluates a trained model on the job's test data or on a file.
 *
 * The test data of a job that splits its file is found by the same split, so the model is never
 * evaluated on its training samples. If the file has changed since, that cannot be guaranteed, and a
 * warning is printed.
 */
#include "model.h"
#include "table.h"

#include <tandem/eval.h>

#include <stdlib.h>
#include <string.h>

enum {
    MATRIX_MAX_CLASSES = 4096, /* 128 MiB; with more classes only the totals are counted */
    TABLE_MAX_CLASSES = 20,
    CONFUSIONS_SHOWN = 10,
    NAME_MAX_COLUMNS = 40
};

typedef struct evaluation {
    const tdm_model *model;
    const char *data_path;
    tdm_metrics metrics;
    int64_t V;
    int64_t *confusion; /* [truth][prediction]; NULL: too many classes */
    const char *const *names;
} evaluation;

typedef struct class_row {
    int64_t index;
    int64_t samples;   /* of this class */
    int64_t predicted; /* as this class */
    int64_t correct;
} class_row;

typedef struct confusion {
    int64_t truth, prediction, count;
} confusion;

/* ---- the data -------------------------------------------------------------------------------- */

typedef struct test_data {
    tdm_job_data job_data;
    tdm_dataset *file;
    const tdm_dataset *set; /* one of the above */
} test_data;

static tdm_status check_classes(const tdm_checkpoint_content *content, const tdm_dataset_info *info,
                                tdm_error *err)
{
    bool same = info->class_count == content->class_count;
    for (int64_t i = 0; same && i < info->class_count; i++)
        same = strcmp(info->class_names[i], content->class_names[i]) == 0;
    if (same) return TDM_OK;
    return tdm_fail(
        err, TDM_ERR_JOB_MISMATCH,
        "%s: the file has changed: its classes are not those of the model; give the test "
        "data with --data",
        info->path);
}

/* Loads the part of the training file that was held out. */
static tdm_status load_held_out_data(const tdm_model *model, test_data *out, tdm_error *err)
{
    const tdm_checkpoint_content *content = tdm_model_content(model);
    TDM_TRY(tdm_job_data_load(tdm_model_job(model), &out->job_data, err));
    const tdm_dataset_info *info = tdm_dataset_info_of(out->job_data.test);
    int64_t features = tdm_shape_elements(&content->sample_shape);
    if (info->feature_count != features && info->kind != TDM_DATA_KIND_SPARSE)
        return tdm_fail(err, TDM_ERR_JOB_MISMATCH,
                        "%s: the file has changed: it has %lld numbers per sample, but the model "
                        "expects %lld; give the test data with --data",
                        info->path, (long long)info->feature_count, (long long)features);
    TDM_TRY(check_classes(content, info, err));
    char hash[TDM_SHA256_HEX];
    tdm_status status = tdm_dataset_hash(out->job_data.train, hash);
    if (status != TDM_OK) return tdm_fail(err, status, "%s: out of memory", info->path);
    if (content->data_hash && strcmp(hash, content->data_hash) != 0)
        cli_warn("%s has changed since the model was trained, so some of the test samples may have "
                 "been training samples",
                 info->path);
    out->set = out->job_data.test;
    return TDM_OK;
}

static tdm_status load_data(const cli_args *args, const tdm_model *model, test_data *out,
                            tdm_error *err)
{
    const tdm_job *job = tdm_model_job(model);
    const char *path = cli_value(args, "data"), *labels = cli_value(args, "labels");
    if (!path && job->data.test_fraction > 0) return load_held_out_data(model, out, err);
    if (!path) {
        path = job->data.test;
        labels = job->data.test_labels;
    }
    if (!path)
        return tdm_fail(err, TDM_ERR_JOB_INVALID,
                        "eval: the model's job has no test data (data.test or data.test_fraction); "
                        "give a file with --data FILE");
    TDM_TRY(cli_load_samples(model, path, labels, &out->file, err));
    if (tdm_dataset_info_of(out->file)->class_count == 0)
        return tdm_fail(
            err, TDM_ERR_JOB_INVALID,
            "%s: the data has no labels; a CSV file needs a column of labels, an IDX file a file of "
            "labels (--labels FILE); 'tandem predict' works without labels",
            path);
    out->set = out->file;
    return TDM_OK;
}

static void release_data(test_data *data)
{
    tdm_job_data_release(&data->job_data);
    tdm_dataset_destroy(data->file);
}

/* ---- counting -------------------------------------------------------------------------------- */

static class_row row_of(const evaluation *e, int64_t index)
{
    class_row row = {.index = index, .correct = e->confusion[index * e->V + index]};
    for (int64_t i = 0; i < e->V; i++) {
        row.samples += e->confusion[index * e->V + i];
        row.predicted += e->confusion[i * e->V + index];
    }
    return row;
}

/* In [0, 1]; -1 if `whole` is 0. */
static double count_ratio(int64_t part, int64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : -1.0;
}

static int compare_numbers(double a, double b)
{
    return (a > b) - (a < b);
}

/* Sorts by lowest recall, then by most samples; classes without samples are last. */
static int worst_first(const void *a, const void *b)
{
    const class_row *x = a, *y = b;
    if ((x->samples == 0) != (y->samples == 0)) return x->samples == 0 ? 1 : -1;
    int order = compare_numbers(count_ratio(x->correct, x->samples),
                                count_ratio(y->correct, y->samples));
    if (order == 0) order = compare_numbers((double)y->samples, (double)x->samples);
    return order ? order : compare_numbers((double)x->index, (double)y->index);
}

static int most_first(const void *a, const void *b)
{
    const confusion *x = a, *y = b;
    if (x->count != y->count) return x->count > y->count ? -1 : 1;
    if (x->truth != y->truth) return x->truth < y->truth ? -1 : 1;
    return (x->prediction > y->prediction) - (x->prediction < y->prediction);
}

/* Stores the CONFUSIONS_SHOWN most frequent confusions in `top`, in order; returns the number of all. */
static size_t find_confusions(const evaluation *e, confusion top[CONFUSIONS_SHOWN], int *out_count)
{
    size_t kinds = 0;
    int count = 0;
    for (int64_t t = 0; t < e->V; t++) {
        for (int64_t p = 0; p < e->V; p++) {
            confusion c = {.truth = t, .prediction = p, .count = e->confusion[t * e->V + p]};
            if (t == p || c.count == 0) continue;
            kinds++;
            if (count == CONFUSIONS_SHOWN && most_first(&c, &top[count - 1]) > 0) continue;
            int at = count < CONFUSIONS_SHOWN ? count++ : count - 1;
            for (; at > 0 && most_first(&c, &top[at - 1]) < 0; at--) top[at] = top[at - 1];
            top[at] = c;
        }
    }
    *out_count = count;
    return kinds;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void percent_cell(cli_table *table, double value)
{
    if (value < 0)
        cli_table_cell(table, "-");
    else
        cli_table_cell(table, "%.2f %%", 100 * value);
}

static void add_class_table(const evaluation *e, bool all, tdm_str *out)
{
    static const cli_column columns[] = {{.title = "class", .max = NAME_MAX_COLUMNS},
                                         {.title = "samples", .right = true},
                                         {.title = "precision", .right = true},
                                         {.title = "recall", .right = true}};
    class_row *rows = calloc((size_t)e->V, sizeof(*rows));
    if (!rows) {
        out->failed = true;
        return;
    }
    int64_t shown = all || e->V <= TABLE_MAX_CLASSES ? e->V : TABLE_MAX_CLASSES;
    for (int64_t i = 0; i < e->V; i++) rows[i] = row_of(e, i);
    if (shown < e->V) qsort(rows, (size_t)e->V, sizeof(*rows), worst_first);
    cli_table table;
    char text[32];
    cli_table_init(&table, columns, 4);
    for (int64_t i = 0; i < shown; i++) {
        cli_table_cell(&table, "%s", e->names[rows[i].index]);
        cli_table_cell(&table, "%s", tdm_text_count((uint64_t)rows[i].samples, text));
        percent_cell(&table, count_ratio(rows[i].correct, rows[i].predicted));
        percent_cell(&table, count_ratio(rows[i].correct, rows[i].samples));
    }
    tdm_str_add_char(out, '\n');
    cli_table_print(&table, 0, out);
    if (shown < e->V)
        tdm_str_addf(out, "(the %lld classes of %lld with the lowest recall; --all shows all)\n",
                     (long long)shown, (long long)e->V);
    free(rows);
}

static void add_confusions(const evaluation *e, tdm_str *out)
{
    static const cli_column columns[] = {{.title = "truth", .max = NAME_MAX_COLUMNS},
                                         {.title = "predicted", .max = NAME_MAX_COLUMNS},
                                         {.title = "samples", .right = true}};
    confusion top[CONFUSIONS_SHOWN];
    int count;
    size_t kinds = find_confusions(e, top, &count);
    if (count == 0) return;
    cli_table table;
    char text[32];
    cli_table_init(&table, columns, 3);
    for (int i = 0; i < count; i++) {
        cli_table_cell(&table, "%s", e->names[top[i].truth]);
        cli_table_cell(&table, "%s", e->names[top[i].prediction]);
        cli_table_cell(&table, "%s", tdm_text_count((uint64_t)top[i].count, text));
    }
    tdm_str_add(out, "\nmost frequent confusions\n");
    cli_table_print(&table, 0, out);
    if ((size_t)count < kinds)
        tdm_str_addf(out, "(%d of %zu pairs; --json prints all)\n", count, kinds);
}

static void add_text(const evaluation *e, bool all, tdm_str *out)
{
    char samples[32];
    tdm_str_addf(out, "checkpoint  %s\ndata        %s\nsamples     %s\n", tdm_model_path(e->model),
                 e->data_path, tdm_text_count((uint64_t)e->metrics.sample_count, samples));
    if (tdm_model_takes_tokens(tdm_model_job(e->model)))
        tdm_str_addf(out, "tokens      %s\n",
                     tdm_text_count((uint64_t)e->metrics.target_count, samples));
    tdm_str_addf(out, "loss        %.6f\naccuracy    %.2f %%\n", e->metrics.loss,
                 100 * e->metrics.accuracy);
    if (e->metrics.has_auc) tdm_str_addf(out, "AUC         %.4f\n", e->metrics.auc);
    if (!e->confusion) {
        tdm_str_addf(out, "(no counts per class: there are more than %d classes, namely %lld)\n",
                     MATRIX_MAX_CLASSES, (long long)e->V);
        return;
    }
    add_class_table(e, all, out);
    add_confusions(e, out);
}

static void put_ratio(tdm_json_writer *w, const char *key, double value)
{
    tdm_json_key(w, key);
    if (value < 0)
        tdm_json_string(w, NULL);
    else
        tdm_json_double(w, value);
}

static void add_json_classes(const evaluation *e, tdm_json_writer *w)
{
    tdm_json_key(w, "classes");
    tdm_json_array_begin(w);
    for (int64_t i = 0; i < e->V; i++) {
        class_row row = row_of(e, i);
        tdm_json_object_begin(w);
        tdm_json_put_string(w, "class", e->names[i]);
        tdm_json_put_int(w, "samples", row.samples);
        put_ratio(w, "precision", count_ratio(row.correct, row.predicted));
        put_ratio(w, "recall", count_ratio(row.correct, row.samples));
        tdm_json_object_end(w);
    }
    tdm_json_array_end(w);
    tdm_json_key(w, "confusion");
    tdm_json_array_begin(w);
    for (int64_t t = 0; t < e->V; t++) {
        tdm_json_array_begin(w);
        for (int64_t p = 0; p < e->V; p++) tdm_json_int(w, e->confusion[t * e->V + p]);
        tdm_json_array_end(w);
    }
    tdm_json_array_end(w);
}

static void add_json(const evaluation *e, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_string(&w, "checkpoint", tdm_model_path(e->model));
    tdm_json_put_uint(&w, "step", tdm_model_content(e->model)->position.step);
    tdm_json_put_string(&w, "data", e->data_path);
    tdm_json_put_int(&w, "samples", e->metrics.sample_count);
    if (tdm_model_takes_tokens(tdm_model_job(e->model)))
        tdm_json_put_int(&w, "tokens", e->metrics.target_count);
    tdm_json_put_double(&w, "loss", e->metrics.loss);
    tdm_json_put_double(&w, "accuracy", e->metrics.accuracy);
    if (e->metrics.has_auc) tdm_json_put_double(&w, "auc", e->metrics.auc);
    if (e->metrics.bad_count > 0) tdm_json_put_int(&w, "not_finite", e->metrics.bad_count);
    if (e->confusion) add_json_classes(e, &w);
    tdm_json_object_end(&w);
    tdm_str_add_char(out, '\n');
}

/* ---- running --------------------------------------------------------------------------------- */

static int eval_dataset(const cli_args *args, const tdm_model *model, tdm_predictor *predictor,
                        const tdm_dataset *set)
{
    evaluation e = {.model = model,
                    .data_path = tdm_dataset_info_of(set)->path,
                    .V = tdm_predictor_class_count(predictor),
                    .names = tdm_model_content(model)->class_names};
    if (e.V <= MATRIX_MAX_CLASSES) {
        e.confusion = calloc((size_t)(e.V * e.V), sizeof(*e.confusion));
        if (!e.confusion) {
            cli_error("eval: out of memory for the confusion matrix");
            return CLI_FAILED;
        }
    }
    e.metrics = tdm_evaluate(predictor, set, e.confusion);
    if (e.metrics.bad_count > 0)
        cli_warn(
            "%s: the model output is NaN or infinity for %lld of %lld %s; they count as wrong, "
            "are not part of the tables, and the loss is not defined; check for numbers that are much "
            "larger than in the training data",
            e.data_path, (long long)e.metrics.bad_count, (long long)e.metrics.target_count,
            tdm_model_takes_tokens(tdm_model_job(model)) ? "tokens" : "samples");
    tdm_str out = TDM_STR_INIT;
    if (cli_json(args))
        add_json(&e, &out);
    else
        add_text(&e, cli_has(args, "all"), &out);
    free(e.confusion);
    return cli_print(&out);
}

static int eval_run(const cli_args *args)
{
    int64_t batch = 0;
    if (!cli_int(args, "batch", 1, 1 << 20, &batch)) return CLI_USAGE;
    if (cli_has(args, "labels") && !cli_has(args, "data")) {
        cli_error("eval: '--labels' requires '--data', the file of samples");
        return CLI_USAGE;
    }
    int named = cli_check_model(args->arguments[0]);
    const char *files[] = {cli_value(args, "data"), cli_value(args, "labels")};
    for (int i = 0; i < 2 && named == CLI_OK; i++)
        if (files[i]) named = cli_check_data("eval", files[i]);
    if (named != CLI_OK) return named;
    cli_show_warnings();
    tdm_model *model = NULL;
    tdm_predictor *predictor = NULL;
    test_data data = {.set = NULL};
    tdm_error err = {0};
    tdm_status status = tdm_model_open(args->arguments[0], cli_value(args, "allow-library"), &model,
                                       &err);
    if (status == TDM_OK) status = load_data(args, model, &data, &err);
    if (status == TDM_OK) status = tdm_model_predictor(model, batch, &predictor, &err);
    int code = status == TDM_OK ? eval_dataset(args, model, predictor, data.set) : cli_fail(&err);
    tdm_predictor_destroy(predictor);
    release_data(&data);
    tdm_model_close(model);
    return code;
}

static const char *const usage[] = {"tandem eval RUN|CHECKPOINT [options]", NULL};
static const char *const examples[] = {
    "tandem eval runs/digits-1", "on the test data of the run's job",
    "tandem eval runs/digits-1 --data new.csv", "on another file with labels", NULL};

const cli_command cli_eval = {
    .name = "eval",
    .summary = "Evaluate a trained model on test data",
    .usage = usage,
    .help =
        "Prints the number of samples, the loss (mean cross entropy) and the accuracy; then for "
        "each class the number of samples, the precision (the fraction of its predictions that are "
        "correct) and the recall (the fraction of its samples that are found); then the most frequent "
        "confusions. For a run, the newest valid checkpoint is used.\n\n"
        "Without --data, the test data of the model's job is used, with the same split of the "
        "training file. For a text, every token is predicted, and loss, accuracy and counts are over "
        "tokens. --json prints the complete confusion matrix, with a row for each true class and a "
        "column for each predicted class.",
    .examples = examples,
    .min_arguments = 1,
    .max_arguments = 1,
    .options = {{.name = "data",
                 .letter = 'd',
                 .value = "FILE",
                 .help =
                     "Evaluate on this file. It is read like the data of the job, and its labels "
                     "must be classes of the model."},
                {.name = "labels", .value = "FILE", .help = "IDX: the file of labels of --data."},
                {.name = "batch",
                 .letter = 'b',
                 .value = "N",
                 .help = "The number of samples per batch. Default: eval.batch of the job."},
                CLI_OPTION_ALLOW_LIBRARY,
                {.name = "all",
                 .letter = 'a',
                 .help = "Show all classes, not only the 20 with the lowest recall."},
                CLI_OPTION_JSON},
    .run = eval_run,
};
