/*
 * cmd_predict.c: `tandem predict`: predicts the class of each sample of a file.
 *
 * Lines are written batch by batch, so the output may be larger than memory. An output file is replaced
 * when it is complete; on an error it stays unchanged. Numbers have six digits in CSV and all digits in
 * JSON.
 */
#include "model.h"

#include <tandem/eval.h>
#include <tandem/os.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct ranked {
    int64_t class_index;
    float probability;
} ranked;

typedef struct prediction {
    const tdm_checkpoint_content *content;
    const tdm_dataset *set;
    tdm_predictor *predictor;
    int64_t top;
    bool json;
    bool has_truth;
    const char *output;      /* NULL: stdout */
    tdm_file_writer *writer; /* NULL: stdout */
    ranked *ranks;           /* [top] */
    float *features;         /* of one sample, like the next: a buffer for tdm_dataset_gather */
    uint64_t *keys;          /* sparse samples only */
    int64_t correct;
    int64_t bad_count; /* samples with non-finite probabilities */
    int64_t first_bad;
    tdm_str text;
} prediction;

/* ---- lines ----------------------------------------------------------------------------------- */

/* Stores the `top` most probable classes in order; of equal ones the lower index comes first. */
static void rank_classes(const float *probabilities, int64_t count, int64_t top, ranked *out)
{
    int64_t used = 0;
    for (int64_t i = 0; i < count; i++) {
        float p = probabilities[i];
        if (used == top && !(p > out[top - 1].probability)) continue;
        int64_t at = used < top ? used++ : top - 1;
        for (; at > 0 && p > out[at - 1].probability; at--) out[at] = out[at - 1];
        out[at] = (ranked){.class_index = i, .probability = p};
    }
}

static void add_csv_text(tdm_str *out, const char *text)
{
    if (!strpbrk(text, ",\"\r\n") && text[0] != ' ' && text[0] != '\0') {
        tdm_str_add(out, text);
        return;
    }
    tdm_str_add_char(out, '"');
    for (; *text; text++) {
        if (*text == '"') tdm_str_add_char(out, '"');
        tdm_str_add_char(out, *text);
    }
    tdm_str_add_char(out, '"');
}

static void add_csv_header(prediction *p)
{
    tdm_str_add(&p->text, "sample,class,probability");
    for (int64_t k = 2; k <= p->top; k++)
        tdm_str_addf(&p->text, ",class_%lld,probability_%lld", (long long)k, (long long)k);
    tdm_str_add(&p->text, p->has_truth ? ",truth\n" : "\n");
}

/* A sample without a prediction has empty cells. */
static void add_csv_line(prediction *p, int64_t sample, const char *truth)
{
    tdm_str_addf(&p->text, "%lld", (long long)sample);
    for (int64_t k = 0; k < p->top; k++) {
        tdm_str_add_char(&p->text, ',');
        if (p->ranks[k].class_index >= 0)
            add_csv_text(&p->text, p->content->class_names[p->ranks[k].class_index]);
        tdm_str_add_char(&p->text, ',');
        if (p->ranks[k].class_index >= 0)
            tdm_str_addf(&p->text, "%.6g", (double)p->ranks[k].probability);
    }
    if (truth) {
        tdm_str_add_char(&p->text, ',');
        add_csv_text(&p->text, truth);
    }
    tdm_str_add_char(&p->text, '\n');
}

static void put_ranked(tdm_json_writer *w, const prediction *p, int64_t k)
{
    int64_t index = p->ranks[k].class_index;
    tdm_json_put_string(w, "class", index >= 0 ? p->content->class_names[index] : NULL);
    tdm_json_put_double(w, "probability", (double)p->ranks[k].probability);
}

static void add_json_line(prediction *p, int64_t sample, const char *truth)
{
    tdm_json_writer w = tdm_json_writer_init(&p->text, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_int(&w, "sample", sample);
    put_ranked(&w, p, 0);
    if (truth) tdm_json_put_string(&w, "truth", truth);
    if (p->top > 1) {
        tdm_json_key(&w, "top");
        tdm_json_array_begin(&w);
        for (int64_t k = 0; k < p->top; k++) {
            tdm_json_object_begin(&w);
            put_ranked(&w, p, k);
            tdm_json_object_end(&w);
        }
        tdm_json_array_end(&w);
    }
    tdm_json_object_end(&w);
    tdm_str_add_char(&p->text, '\n');
}

/* ---- batches --------------------------------------------------------------------------------- */

static tdm_status prediction_flush(prediction *p, tdm_error *err)
{
    if (!tdm_str_ok(&p->text)) return tdm_fail(err, TDM_ERR_NO_MEMORY, "predict: out of memory");
    if (p->text.length == 0) return TDM_OK;
    tdm_status status = TDM_OK;
    if (p->writer) {
        status = tdm_file_writer_write(p->writer, p->text.data, p->text.length, err);
    } else if (fwrite(p->text.data, 1, p->text.length, stdout) != p->text.length ||
               fflush(stdout) != 0) {
        status = tdm_fail(err, errno == EPIPE ? TDM_ERR_INTERRUPTED : TDM_ERR_IO,
                          "cannot write the output: %s", strerror(errno));
    }
    tdm_str_clear(&p->text);
    return status;
}

/* Probabilities with a NaN have no ranking, and the sample has no prediction. */
static void rank_none(prediction *p, int64_t sample)
{
    for (int64_t k = 0; k < p->top; k++)
        p->ranks[k] = (ranked){.class_index = -1, .probability = NAN};
    if (p->bad_count++ == 0) p->first_bad = sample;
}

static int32_t truth_of(const prediction *p, int64_t sample)
{
    int32_t truth = -1;
    int64_t offsets[2];
    if (p->keys)
        (void)tdm_dataset_gather_sparse(p->set, &sample, 1, offsets, p->keys, p->features, &truth);
    else
        tdm_dataset_gather(p->set, &sample, 1, p->features, &truth);
    return truth;
}

static tdm_status predict_batch(prediction *p, int64_t first, int64_t count, tdm_error *err)
{
    const float *probabilities;
    int64_t V = p->content->class_count;
    tdm_predictor_run(p->predictor, p->set, first, count, NULL, &probabilities);
    for (int64_t i = 0; i < count; i++) {
        int64_t sample = first + i;
        int32_t truth = -1;
        if (tdm_all_finite(probabilities + i * V, V))
            rank_classes(probabilities + i * V, V, p->top, p->ranks);
        else
            rank_none(p, sample);
        if (p->has_truth) truth = truth_of(p, sample);
        p->correct += truth >= 0 && p->ranks[0].class_index == truth;
        const char *name = truth >= 0 ? p->content->class_names[truth] : NULL;
        if (p->json)
            add_json_line(p, sample, name);
        else
            add_csv_line(p, sample, name);
    }
    return prediction_flush(p, err);
}

static tdm_status predict_all(prediction *p, tdm_error *err)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(p->set);
    int64_t batch = tdm_predictor_batch(p->predictor);
    p->ranks = calloc((size_t)p->top, sizeof(*p->ranks));
    bool is_sparse = info->kind == TDM_DATA_KIND_SPARSE;
    size_t features = (size_t)info->feature_count + 1;
    p->features = calloc(features, sizeof(*p->features));
    if (is_sparse) p->keys = calloc(features, sizeof(*p->keys));
    if (!p->ranks || !p->features || (is_sparse && !p->keys))
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "predict: out of memory");
    if (p->output) TDM_TRY(tdm_file_writer_create(p->output, &p->writer, err));
    if (!p->json) add_csv_header(p);
    for (int64_t first = 0; first < info->sample_count; first += batch) {
        int64_t left = info->sample_count - first;
        TDM_TRY(predict_batch(p, first, left < batch ? left : batch, err));
    }
    if (!p->writer) return TDM_OK;
    tdm_file_writer *writer = p->writer;
    p->writer = NULL; /* commit ends it even on failure */
    return tdm_file_writer_commit(writer, err);
}

static void prediction_release(prediction *p)
{
    if (p->writer) tdm_file_writer_abandon(p->writer);
    free(p->ranks);
    free(p->features);
    free(p->keys);
    tdm_str_release(&p->text);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Prints a summary to stdout, which is unused if the output is a file. */
static int print_summary(const prediction *p)
{
    char count[32];
    int64_t n = tdm_dataset_info_of(p->set)->sample_count;
    tdm_str out = TDM_STR_INIT;
    tdm_str_addf(&out, "%s: %s predictions", p->output, tdm_text_count((uint64_t)n, count));
    if (p->has_truth)
        tdm_str_addf(&out, ", %.2f %% correct", 100.0 * (double)p->correct / (double)n);
    tdm_str_add_char(&out, '\n');
    return cli_print(&out);
}

static int predict_set(const cli_args *args, tdm_model *model, const tdm_dataset *set,
                       int64_t batch, int64_t top)
{
    prediction p = {.content = tdm_model_content(model),
                    .set = set,
                    .top = top,
                    .json = cli_json(args),
                    .has_truth = tdm_dataset_info_of(set)->class_count > 0,
                    .output = cli_value(args, "output")};
    tdm_error err = {0};
    tdm_status status = tdm_model_predictor(model, batch, &p.predictor, &err);
    if (status == TDM_OK) status = predict_all(&p, &err);
    int code = CLI_OK;
    if (status == TDM_ERR_INTERRUPTED)
        code = CLI_FAILED; /* the reader has closed the pipe, like `head`: no message */
    else if (status != TDM_OK)
        code = cli_fail(&err);
    else if (p.output && !p.json)
        code = print_summary(&p);
    if (status == TDM_OK && p.bad_count > 0)
        cli_warn(
            "%s: the model output is NaN or infinity for %lld samples, the first of which is "
            "sample %lld, so they have no class; check for numbers that are much larger than in "
            "the training data",
            tdm_dataset_info_of(set)->path, (long long)p.bad_count, (long long)p.first_bad);
    prediction_release(&p);
    tdm_predictor_destroy(p.predictor);
    return code;
}

static int predict_run(const cli_args *args)
{
    int64_t batch = 0, top = 1;
    if (!cli_int(args, "batch", 1, 1 << 20, &batch)) return CLI_USAGE;
    if (!cli_int(args, "top", 1, 65536, &top)) return CLI_USAGE;
    int named = cli_check_model(args->arguments[0]);
    const char *files[] = {args->arguments[1], cli_value(args, "labels")};
    for (int i = 0; i < 2 && named == CLI_OK; i++)
        if (files[i]) named = cli_check_data("predict", files[i]);
    if (named != CLI_OK) return named;
    cli_show_warnings();
    tdm_model *model = NULL;
    tdm_dataset *set = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_model_open(args->arguments[0], cli_value(args, "allow-library"), &model,
                                       &err);
    if (status == TDM_OK && tdm_model_takes_tokens(tdm_model_job(model)))
        status = tdm_fail(&err, TDM_ERR_JOB_INVALID,
                          "predict: this model generates text and does not classify samples; use "
                          "'tandem generate', or 'tandem eval' for its accuracy");
    if (status == TDM_OK && top > tdm_model_content(model)->class_count)
        status = tdm_fail(&err, TDM_ERR_JOB_INVALID,
                          "predict: --top %lld exceeds the number of classes, %lld", (long long)top,
                          (long long)tdm_model_content(model)->class_count);
    if (status == TDM_OK)
        status = cli_load_samples(model, args->arguments[1], cli_value(args, "labels"), &set, &err);
    int code = status == TDM_OK ? predict_set(args, model, set, batch, top) : cli_fail(&err);
    tdm_dataset_destroy(set);
    tdm_model_close(model);
    return code;
}

static const char *const usage[] = {"tandem predict RUN|CHECKPOINT FILE [options]", NULL};
static const char *const examples[] = {"tandem predict runs/digits-1 new.csv",
                                       "print the class of each sample and its probability",
                                       "tandem predict runs/digits-1 new.csv --top 3 --json",
                                       "the three most probable classes, as JSON",
                                       "tandem predict runs/digits-1 new.csv -o predictions.csv",
                                       "write to a file",
                                       NULL};

const cli_command cli_predict = {
    .name = "predict",
    .summary = "Predict the class of each sample in a file",
    .usage = usage,
    .help =
        "Prints CSV with a header: sample (its number in the file, from 0), class, probability, "
        "and truth if the file has labels. With --json it prints one JSON object per line.\n\n"
        "The file is read like the training data of the job. The column of labels of a CSV file is "
        "optional: a file with as many columns as a sample has numbers has none. For a run, the "
        "newest valid checkpoint is used.\n\n"
        "If the model output is NaN or infinity, no class is predicted: the cells are empty, in JSON "
        "null, and a warning contains the number of such samples.",
    .examples = examples,
    .min_arguments = 2,
    .max_arguments = 2,
    .options = {{.name = "labels",
                 .value = "FILE",
                 .help = "IDX: the file of labels of FILE, for the column truth."},
                {.name = "top",
                 .letter = 'k',
                 .value = "K",
                 .help = "Print the K most probable classes: further columns class_2, "
                         "probability_2, ..., or a list \"top\" in JSON. Default: 1."},
                {.name = "output",
                 .letter = 'o',
                 .value = "FILE",
                 .help =
                     "Write to this file instead. It is replaced when the output is complete, and "
                     "stays unchanged on an error."},
                {.name = "batch",
                 .letter = 'b',
                 .value = "N",
                 .help = "The number of samples per batch. Default: eval.batch of the job."},
                CLI_OPTION_ALLOW_LIBRARY,
                {.name = "json", .help = "Print one JSON object per line."}},
    .run = predict_run,
};
