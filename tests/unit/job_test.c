/*
 * job_test.c: the job file. Invalid jobs are compared with exact messages (job_bad_jobs.c); valid ones are read
 * from YAML, from JSON and from overrides. The reference page in docs/ must equal the output of the table of
 * keys; after a change to the table, `unit_job --write-docs docs/job-file.md` writes it again.
 */
#include <stdlib.h>
#include <unistd.h>

#include <tandem/os.h>

#include "check.h"
#include "job/internal.h"
#include "job/job.h"
#include "unit/job_cases.h"

#define DOCS "docs/job-file.md"

/* ---- helpers --------------------------------------------------------------------------------- */

tdm_job_document *parse_bytes(const char *bytes, size_t count, const char *const *overrides)
{
    tdm_job_options options = {.overrides = overrides, .no_file_checks = true};
    while (overrides && overrides[options.override_count]) options.override_count++;
    tdm_job_document *document = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_job_parse(bytes, count, "job.yaml", "/jobs", &options, &document, &err);
    CHECK(document != NULL);
    if (!document) return NULL;
    bool is_valid = tdm_job_document_job(document) != NULL;
    CHECK_INT(status, is_valid ? TDM_OK : TDM_ERR_JOB_INVALID);
    CHECK_INT(tdm_job_document_problems(document).count > 0, !is_valid);
    return document;
}

void list_problems(const tdm_job_document *document, tdm_str *out)
{
    tdm_job_problems problems = tdm_job_document_problems(document);
    for (size_t i = 0; i < problems.count; i++) {
        tdm_job_problem_text(&problems.items[i], out);
        tdm_str_add_char(out, '\n');
    }
}

tdm_job_document *parse_good(const char *yaml, const char *const *overrides)
{
    tdm_job_document *document = parse_bytes(yaml, strlen(yaml), overrides);
    if (!document) return NULL;
    tdm_str problems = TDM_STR_INIT;
    list_problems(document, &problems);
    CHECK_TEXT(tdm_str_text(&problems), "");
    tdm_str_release(&problems);
    if (tdm_job_document_job(document)) return document;
    tdm_job_document_destroy(document);
    return NULL;
}

const char *const *set_list(const char *a, const char *b, const char *c, const char *d)
{
    static const char *list[5];
    list[0] = a;
    list[1] = b;
    list[2] = c;
    list[3] = d;
    return list;
}

void check_shows(const tdm_job *job, const char *expected)
{
    tdm_str text = TDM_STR_INIT;
    tdm_job_show(job, &text);
    CHECK_TEXT(tdm_str_text(&text), expected);
    tdm_str_release(&text);
}

/* ---- bad jobs -------------------------------------------------------------------------------- */

static void check_bad_jobs(const bad_job *jobs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const bad_job *bad = &jobs[i];
        tdm_job_document *document = parse_bytes(bad->bytes, bad->count, bad->overrides);
        if (!document) continue;
        tdm_str problems = TDM_STR_INIT;
        list_problems(document, &problems);
        CHECK_TEXT(tdm_str_text(&problems), bad->problems);
        CHECK(tdm_job_document_job(document) == NULL);
        tdm_str_release(&problems);
        tdm_job_document_destroy(document);
    }
}

static void test_bad_jobs(void)
{
    CHECK(bad_job_count >= 60);
    check_bad_jobs(bad_jobs, bad_job_count);
    check_bad_jobs(bad_layers, bad_layer_count);
}

static void test_problem_has_its_place(void)
{
    tdm_job_document *document = parse_bytes("seed: x\n", 8, NULL);
    tdm_job_problems problems = tdm_job_document_problems(document);
    CHECK_INT(problems.count, 2);
    CHECK_TEXT(problems.items[0].file, "job.yaml");
    CHECK_INT(problems.items[0].line, 1);
    CHECK_INT(problems.items[0].column, 7);
    CHECK_TEXT(problems.items[0].message, "'seed' expects a whole number, got 'x'");
    CHECK_INT(problems.items[1].line, 0);
    tdm_job_document_destroy(document);
}

static void test_error_is_the_first_problem(void)
{
    tdm_job_document *document = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_job_parse("seed: x\nname: /\n", 16, "a.yaml", NULL, NULL, &document,
                                      &err);
    CHECK_INT(status, TDM_ERR_JOB_INVALID);
    CHECK_INT(err.status, TDM_ERR_JOB_INVALID);
    CHECK_TEXT(err.message, "a.yaml:1:7: 'seed' expects a whole number, got 'x'");
    tdm_job_document_destroy(document);
    tdm_job_document_destroy(NULL);
}

static void test_too_large(void)
{
    size_t count = TDM__JOB_FILE_BYTES + 1;
    char *bytes = malloc(count);
    memset(bytes, '#', count);
    memcpy(bytes, SMALLEST, sizeof(SMALLEST) - 1); /* and the rest is a comment */
    tdm_job_document *document = parse_bytes(bytes, count, NULL);
    CHECK_TEXT(tdm_job_document_problems(document).items[0].message,
               "the file has 1048577 bytes; a job file has at most 1048576");
    tdm_job_document_destroy(document);
    document = parse_bytes(bytes, count - 1, NULL); /* just within the limit */
    CHECK(tdm_job_document_job(document) != NULL);
    tdm_job_document_destroy(document);
    free(bytes);
}

static void test_problems_are_bounded(void)
{
    tdm_str text = TDM_STR_INIT;
    tdm_str_add(&text, SMALLEST);
    for (int i = 0; i < 5000; i++) tdm_str_addf(&text, "key%d: 1\n", i);
    tdm_job_document *document = parse_bytes(text.data, text.length, NULL);
    tdm_job_problems problems = tdm_job_document_problems(document);
    CHECK_INT(problems.count, TDM__JOB_PROBLEMS + 1);
    CHECK_TEXT(problems.items[TDM__JOB_PROBLEMS].message,
               "4900 more problems are not listed; fix these first");
    tdm_job_document_destroy(document);
    tdm_str_release(&text);
}

static void test_depth_limit(void)
{
    for (int depth = 18; depth <= 21; depth++) { /* of lists, below the document's mapping */
        tdm_str text = TDM_STR_INIT;
        tdm_str_add(&text, SMALLEST "a: ");
        for (int i = 0; i < depth; i++) tdm_str_add_char(&text, '[');
        for (int i = 0; i < depth; i++) tdm_str_add_char(&text, ']');
        tdm_job_document *document = parse_bytes(text.data, text.length, NULL);
        const char *message = tdm_job_document_problems(document).items[0].message;
        CHECK_HAS(message, depth < 20 ? "unknown key 'a'" : "nested deeper than 20 levels");
        tdm_job_document_destroy(document);
        tdm_str_release(&text);
    }
}

/* ---- good jobs ------------------------------------------------------------------------------- */

static void test_defaults(void)
{
    char expected[16384], here[4096];
    CHECK(getcwd(here, sizeof(here)) != NULL);
    snprintf(
        expected, sizeof(expected),
        "name: job\nseed: 1\nstore: local\n"
        "model:\n  kind: mlp\n  hidden: [128]\n  bottom: [64]\n  channels: [32, 64]\n"
        "  depth: 18\n  stem: cifar\n  activation: relu\n  dropout: 0\n"
        "  preset: none\n  layers: 4\n  width: 128\n  heads: 4\n  context: 256\n  vocabulary: auto\n"
        "data:\n  train: /jobs/x.csv\n  test_fraction: 0\n  shape: []\n  format: auto\n  header: auto\n"
        "  label: last\n  delimiter: \",\"\n  normalise: auto\n  shuffle: true\n"
        "  last_batch: keep\n"
        "train:\n  batch: 32\n  epochs: 10\n  label_smoothing: 0\n  l1: 0\n  l2: 0\n"
        "  bad_numbers: stop\n  bad_numbers_most: 10\n"
        "optim:\n  kind: adamw\n  lr: 0.001\n  momentum: 0.9\n  nesterov: false\n"
        "  beta1: 0.9\n  beta2: 0.999\n  alpha: 0.99\n  centred: false\n  eps: 1e-08\n"
        "  weight_decay: 0.01\n  groups: []\n  clip_norm: 0\n  clip_value: 0\n  ema: 0\n"
        "schedule:\n  kind: constant\n  warmup: 0\n  steps: auto\n  floor: 0\n  gamma: 0.1\n"
        "  milestones: []\n  peak_at: 0.3\n  start_divisor: 25\n  end_divisor: 10000\n"
        "  anneal: cosine\n  metric: test_loss\n  patience: 10\n  threshold: 0.0001\n"
        "  cooldown: 0\n"
        "table:\n  dim: 16\n  optim: adagrad\n  lr: 0.05\n  l1: 0\n  l2: 0\n  beta: 1\n  weight_decay: 0\n"
        "  init_scale: 0.01\n  hash_bits: 63\n  admission: 1\n  limit: auto\n"
        "parallel:\n  lanes: auto\n  zero: 0\n  balance: off\n  weights: []\n  reduce: tree\n"
        "  bucket: auto\n  overlap: true\n  sync_batchnorm: false\n"
        "sync:\n  kind: all_reduce\n  replicas: auto\n  period: 8\n  adapt_lr: 0\n"
        "  adapt_divergence: 0\n  max_period: 1024\n  start_step: 0\n  outer: average\n  outer_lr: 0.7\n"
        "  outer_momentum: 0.9\n  graph: exponential\n  degree: 1\n  mode: sync\n"
        "  order: virtual\n  staleness: 4\n  speeds: []\n  jitter: 0.1\n"
        "  compensation: 0\n  staleness_lr: false\n"
        "compress:\n  sparsify: none\n  quantise: none\n  ratio: 0.01\n  threshold: 0.001\n"
        "  levels: 15\n  feedback: true\n  momentum: 0\n  mask: true\n  clip_norm: 0\n"
        "  warmup: 0\n  min_elements: 1024\n  rank: 0\n  min_rate: 2\n  start_step: 0\n  auto: false\n"
        "compute:\n  backend: auto\n  numerics: portable\n  threads: auto\n  precision: f32\n"
        "memory:\n  recompute: none\n  limit: auto\ncomm:\n  transport: auto\n  streams: 1\n  security: auto\n"
        "eval:\n  every_epochs: 1\n  every_steps: never\n  batch: 256\n  weights: auto\n"
        "checkpoint:\n  every_epochs: 1\n  every_steps: never\n  every_minutes: 0\n  keep: 3\n"
        "  keep_every: never\n  keep_best: 0\n  metric: test_loss\n  compress: none\n"
        "  background: true\n  retry_s: 300\n  ledger: false\n"
        "elastic:\n  min: 1\n  max: auto\n  wait: 600\n  heartbeat: 0\n  stall: 0\n"
        "  mirror: false\n  restarts: 5\n  restart_window: 300\n  grace: 25\n"
        "etcd:\n  endpoints: \"http://127.0.0.1:2379\"\n"
        "run:\n  dir: %s/runs\n  log_every_steps: 10\n",
        here);
    tdm_job_document *document = parse_good(SMALLEST, NULL);
    const tdm_job *job = tdm_job_document_job(document);
    check_shows(job, expected);
    CHECK(job->model.init_from == NULL);
    CHECK(job->data.train_labels == NULL && job->data.test == NULL);
    CHECK_INT(job->train.steps, 0);
    CHECK_INT(job->parallel.lanes, 0);
    tdm_job_document_destroy(document);
}

static void test_all_keys(void)
{
    tdm_job_document *document = parse_good(
        "# every key, none at its default except where the others forbid it\n"
        "name: my.job-2\nseed: 9007199254740992\n"
        "model: {kind: mlp, hidden: [1, 1048576], bottom: [], activation: sigmoid, dropout: .5,\n"
        "        layers: 1, width: 6, heads: 3, context: 5, vocabulary: 7,\n"
        "        init_from: ../w.safetensors}\n"
        "data:\n  train: sub/a b.gz\n  train_labels: ./l\n  test: /abs/t\n  test_labels: m\n"
        "  format: idx\n  header: no\n  label: 3\n  delimiter: tab\n  normalise: standard\n"
        "  shuffle: off\n  last_batch: drop\n"
        "train:\n  batch: 2147483647\n  steps: 7\n  label_smoothing: .1\n  l1: 1e-2\n  l2: 2\n"
        "  early_stop: {patience: 2, metric: test_accuracy}\n"
        "  bad_numbers: skip\n  bad_numbers_most: 1\n"
        "optim: {kind: sgd, lr: 1e-3, momentum: 0.5, nesterov: Yes, beta1: 0, beta2: 5E-1,\n"
        "        alpha: .5, centred: off, eps: 1, weight_decay: -0, clip_norm: 1, clip_value: 2,\n"
        "        ema: 0.5, groups: [{match: '*.bias', weight_decay: 0}, {match: x, lr_scale: 2}]}\n"
        "schedule:\n  kind: multi_step\n  warmup: 1\n  steps: 2\n  floor: 3\n  gamma: 4\n"
        "  every_steps: 5\n  milestones: [6, 7]\n  peak_at: .8\n  start_divisor: 9\n"
        "  end_divisor: 10\n  anneal: linear\n  metric: test_accuracy\n  patience: 11\n"
        "  threshold: 0.5\n  cooldown: 12\n"
        "table: {dim: 2, optim: ftrl, lr: 3, l1: 4, l2: 5, beta: 6, weight_decay: 7, init_scale: 8,\n"
        "    hash_bits: 9, admission: 10, limit: 1GiB}\n"
        "parallel: {lanes: 65536, zero: 3, offload: /off, balance: weights, weights: [2, 1],\n"
        "    reduce: ring, bucket: 1MiB, overlap: no, sync_batchnorm: yes}\n"
        "sync: {kind: server, mode: sync, replicas: 2, period: 3, adapt_lr: .5, max_period: 4,\n"
        "    adapt_divergence: .125,\n"
        "    start_step: 5, outer: sgd, outer_lr: 6, outer_momentum: .25, staleness: 4,\n"
        "    graph: torus, degree: 3,\n"
        "    speeds: [8, 9], jitter: .75, compensation: 10, staleness_lr: yes, order: recorded,\n"
        "    order_from: /order}\n"
        "compress: {sparsify: none, quantise: none, ratio: .5, threshold: 1, levels: 2,\n"
        "    feedback: no, momentum: .25, mask: no, clip_norm: 3, warmup: 4, min_elements: 5,\n"
        "    rank: 0, min_rate: 6, start_step: 7, auto: no}\n"
        "compute: {backend: ref, numerics: vendor, threads: 1024, precision: bf16}\n"
        "memory: {recompute: full, limit: 3GiB}\n"
        "comm: {transport: ucx, streams: 4, security: tls, tls_certificate: x, tls_key: y,\n"
        "    tls_authority: z}\n"
        "eval: {every_epochs: never, every_steps: 3, batch: 1, weights: raw}\nstore: etcd\n"
        "checkpoint: {every_epochs: never, every_steps: 5, every_minutes: .5, keep: all,\n"
        "    keep_every: 6, keep_best: 7, metric: test_accuracy, compress: zstd,\n"
        "    background: no, retry_s: 1.5, ledger: yes}\n"
        "elastic: {min: 2, max: 4, wait: 1, heartbeat: 2, stall: 3, mirror: yes, restarts: 0,\n"
        "    restart_window: 1, grace: 0}\n"
        "etcd: {endpoints: 'https://a:1', user: u, password_file: p, ca: c, certificate: d,\n"
        "    key: k}\nrun: {dir: /r, log_every_steps: 1}\n",
        NULL);
    check_shows(
        tdm_job_document_job(document),
        "name: my.job-2\nseed: 9007199254740992\nstore: etcd\n"
        "model:\n  kind: mlp\n  hidden: [1, 1048576]\n  bottom: []\n  channels: [32, 64]\n"
        "  depth: 18\n  stem: cifar\n  activation: sigmoid\n"
        "  dropout: 0.5\n  preset: none\n  layers: 1\n  width: 6\n  heads: 3\n"
        "  context: 5\n  vocabulary: 7\n  init_from: /jobs/../w.safetensors\n"
        "data:\n  train: \"/jobs/sub/a b.gz\"\n  train_labels: /jobs/l\n  test: /abs/t\n"
        "  test_labels: /jobs/m\n  shape: []\n  format: idx\n  header: no\n  label: \"3\"\n"
        "  delimiter: tab\n  normalise: standard\n  shuffle: false\n  last_batch: drop\n"
        "train:\n  batch: 2147483647\n  steps: 7\n  label_smoothing: 0.1\n  l1: 0.01\n  l2: 2\n"
        "  early_stop: {metric: test_accuracy, patience: 2, min_delta: 0}\n"
        "  bad_numbers: skip\n  bad_numbers_most: 1\n"
        "optim:\n  kind: sgd\n  lr: 0.001\n  momentum: 0.5\n  nesterov: true\n"
        "  beta1: 0\n  beta2: 0.5\n  alpha: 0.5\n  centred: false\n  eps: 1\n"
        "  weight_decay: 0\n"
        "  groups: [{match: \"*.bias\", lr_scale: 1, weight_decay: 0}, {match: x, lr_scale: 2}]"
        "\n  clip_norm: 1\n  clip_value: 2\n  ema: 0.5\n"
        "schedule:\n  kind: multi_step\n  warmup: 1\n  steps: 2\n  floor: 3\n  gamma: 4\n"
        "  every_steps: 5\n  milestones: [6, 7]\n  peak_at: 0.8\n  start_divisor: 9\n"
        "  end_divisor: 10\n  anneal: linear\n  metric: test_accuracy\n  patience: 11\n"
        "  threshold: 0.5\n  cooldown: 12\n"
        "table:\n  dim: 2\n  optim: ftrl\n  lr: 3\n  l1: 4\n  l2: 5\n  beta: 6\n  weight_decay: 7\n"
        "  init_scale: 8\n  hash_bits: 9\n  admission: 10\n  limit: 1073741824\n"
        "parallel:\n  lanes: 65536\n  zero: 3\n  offload: /off\n  balance: weights\n"
        "  weights: [2, 1]\n  reduce: ring\n  bucket: 1048576\n  overlap: false\n"
        "  sync_batchnorm: true\n"
        "sync:\n  kind: server\n  replicas: 2\n  period: 3\n  adapt_lr: 0.5\n"
        "  adapt_divergence: 0.125\n  max_period: 4\n"
        "  start_step: 5\n  outer: sgd\n  outer_lr: 6\n  outer_momentum: 0.25\n  graph: torus\n"
        "  degree: 3\n  mode: sync\n  order: recorded\n  order_from: /order\n"
        "  staleness: 4\n  speeds: [8, 9]\n  jitter: 0.75\n  compensation: 10\n"
        "  staleness_lr: true\n"
        "compress:\n  sparsify: none\n  quantise: none\n  ratio: 0.5\n  threshold: 1\n"
        "  levels: 2\n  feedback: false\n  momentum: 0.25\n  mask: false\n  clip_norm: 3\n"
        "  warmup: 4\n  min_elements: 5\n  rank: 0\n  min_rate: 6\n  start_step: 7\n  auto: false\n"
        "compute:\n  backend: ref\n  numerics: vendor\n  threads: 1024\n  precision: bf16\n"
        "memory:\n  recompute: full\n  limit: 3221225472\ncomm:\n  transport: ucx\n  streams: 4\n  security: tls\n  tls_certificate: /jobs/x\n"
        "  tls_key: /jobs/y\n  tls_authority: /jobs/z\n"
        "eval:\n  every_epochs: never\n  every_steps: 3\n  batch: 1\n  weights: raw\n"
        "checkpoint:\n  every_epochs: never\n  every_steps: 5\n  every_minutes: 0.5\n"
        "  keep: all\n  keep_every: 6\n  keep_best: 7\n  metric: test_accuracy\n"
        "  compress: zstd\n  background: false\n  retry_s: 1.5\n  ledger: true\n"
        "elastic:\n  min: 2\n  max: 4\n  wait: 1\n  heartbeat: 2\n  stall: 3\n"
        "  mirror: true\n  restarts: 0\n  restart_window: 1\n  grace: 0\n"
        "etcd:\n  endpoints: \"https://a:1\"\n  user: u\n  password_file: /jobs/p\n"
        "  ca: /jobs/c\n  certificate: /jobs/d\n  key: /jobs/k\n"
        "run:\n  dir: /r\n  log_every_steps: 1\n");
    CHECK_INT(tdm_job_document_job(document)->train.epochs, 0);
    tdm_job_document_destroy(document);
}

static void test_other_spellings(void)
{
    static const struct {
        const char *yaml;
        int header;
        const char *label;
        const char *delimiter;
    } cases[] = {
        {"data: {train: x, header: yes, label: no}", TDM_JOB_HEADER_YES, "no", ","},
        {"data: {train: x, header: True, label: 1.50}", TDM_JOB_HEADER_YES, "1.50", ","},
        {"data: {train: x, header: \"no\", label: 'null'}", TDM_JOB_HEADER_NO, "null", ","},
        {"data: {train: x, header: OFF, delimiter: \"\\t\"}", TDM_JOB_HEADER_NO, "last", "tab"},
        {"\xef\xbb\xbf"
         "data:\r\n  train: x\r\n  delimiter: ';'\r\n",
         TDM_JOB_HEADER_AUTO, "last", ";"},
        {"{\"data\": {\"train\": \"x\", \"label\": \"a\\/b\"}, \"model\": {}}", TDM_JOB_HEADER_AUTO,
         "a/b", ","},
        {"data:\n  train: x\n  label: |-\n    two\n    lines\nmodel:\ntrain: ~\n",
         TDM_JOB_HEADER_AUTO, "two\nlines", ","},
        {"%YAML 1.1\n---\ndata: {train: x, delimiter: \" \"}\n...\n", TDM_JOB_HEADER_AUTO, "last",
         " "},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tdm_job_document *document = parse_good(cases[i].yaml, NULL);
        if (!document) continue;
        const tdm_job *job = tdm_job_document_job(document);
        CHECK_INT(job->data.header, cases[i].header);
        CHECK_TEXT(job->data.label, cases[i].label);
        CHECK_TEXT(job->data.delimiter, cases[i].delimiter);
        tdm_job_document_destroy(document);
    }
}

static void test_name_from_file(void)
{
    static const char *const cases[][2] = {
        {"mnist.yaml", "mnist"}, {"/a/b/my job (2).yml", "my-job--2-"}, {".hidden.yaml", "hidden"},
        {"-.yaml", "job"},       {"\xc3\xa9t\xc3\xa9.y", "t--"},        {"a.b.yaml", "a.b"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tdm_job_options options = {.no_file_checks = true};
        tdm_job_document *document = NULL;
        CHECK_INT(
            tdm_job_parse(SMALLEST, strlen(SMALLEST), cases[i][0], "", &options, &document, NULL),
            TDM_OK);
        if (document) CHECK_TEXT(tdm_job_document_job(document)->name, cases[i][1]);
        tdm_job_document_destroy(document);
    }
}

/* ---- overrides ------------------------------------------------------------------------------- */

static void test_overrides(void)
{
    tdm_job_document *document = parse_good(
        "data: {train: x.csv, test: t.csv}\ntrain: {batch: abc, epochs: [7]}\n",
        set_list("train.batch=64", "train.batch= 128 ", "model.hidden=[64,32]", "train.steps=5"));
    const tdm_job *job = tdm_job_document_job(document);
    CHECK_INT(job->train.batch, 128);
    CHECK_INT(job->train.epochs, 0);
    CHECK_INT(job->train.steps, 5);
    CHECK_INT(job->model.hidden.count, 2);
    CHECK_INT(job->model.hidden.values[1], 32);
    CHECK_TEXT(job->data.test, "/jobs/t.csv");
    tdm_job_document_destroy(document);

    document = parse_good(SMALLEST, set_list("model.hidden=[]", "data.delimiter=|",
                                             "data.label=\"a\\tb\"", "name='x'"));
    job = tdm_job_document_job(document);
    CHECK_INT(job->model.hidden.count, 0);
    CHECK_TEXT(job->data.delimiter, "|");
    CHECK_TEXT(job->data.label, "a\tb");
    CHECK_TEXT(job->name, "x");
    tdm_job_document_destroy(document);
}

static void test_overrides_win_over_exclusion(void)
{
    tdm_job_document *document = parse_good(
        "data: {train: x, test: t, test_labels: l}\ntrain: {steps: 5}\n",
        set_list("data.test_fraction=0.25", "train.epochs=3", NULL, NULL));
    const tdm_job *job = tdm_job_document_job(document);
    CHECK(job->data.test == NULL && job->data.test_labels == NULL);
    CHECK_NEAR(job->data.test_fraction, 0.25, 0);
    CHECK_INT(job->train.epochs, 3);
    CHECK_INT(job->train.steps, 0);
    tdm_job_document_destroy(document);

    document = parse_good("data: {train: x, test_fraction: 0.5}\ntrain: {epochs: 5, steps: 6}\n",
                          set_list("data.test=t", "train.epochs=3", "train.steps=9", NULL));
    job = tdm_job_document_job(document);
    CHECK(job->data.test != NULL);
    CHECK_NEAR(job->data.test_fraction, 0, 0);
    CHECK_INT(job->train.epochs, 0);
    CHECK_INT(job->train.steps, 9);
    tdm_job_document_destroy(document);
}

static void test_overrides_clear(void)
{
    tdm_job_document *shaped = parse_good(
        "data: {train: x, shape: [4, 4]}\nmemory: {limit: 2.5GB}\n",
        set_list("data.shape=", NULL, NULL, NULL));
    CHECK_INT(tdm_job_document_job(shaped)->data.shape.count, 0);
    CHECK_INT(tdm_job_document_job(shaped)->memory.limit, 2500000000);
    tdm_job_document_destroy(shaped);
    tdm_job_document *document = parse_good(
        "data: {train: x, test: t, test_labels: l}\ntrain: {steps: 5}\n",
        set_list("data.test=", "train.steps=null", NULL, NULL));
    const tdm_job *job = tdm_job_document_job(document);
    CHECK(job->data.test == NULL && job->data.test_labels == NULL);
    CHECK_INT(job->train.epochs, 10);
    CHECK_INT(job->train.steps, 0);
    tdm_job_document_destroy(document);
}

static void test_override_paths_begin_here(void)
{
    char here[4096], expected[4200];
    CHECK(getcwd(here, sizeof(here)) != NULL);
    snprintf(expected, sizeof(expected), "%s/a=[b]", here);
    tdm_job_document *document = parse_good("run: {dir: ./out}\n",
                                            set_list("data.train=a=[b]", NULL, NULL, NULL));
    CHECK_TEXT(tdm_job_document_job(document)->data.train, expected);
    snprintf(expected, sizeof(expected), "%s/out", here);
    CHECK_TEXT(tdm_job_document_job(document)->run.dir, expected);
    tdm_job_document_destroy(document);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    CHECK_INT(tdm_file_replace(path, text, strlen(text), NULL), TDM_OK);
}

static void check_load(const char *dir, const char *yaml, const char *override,
                       const char *expected)
{
    char path[512], message[2048];
    write_file(dir, "job.yaml", yaml);
    snprintf(path, sizeof(path), "%s/job.yaml", dir);
    tdm_job_options options = {.overrides = &override, .override_count = override ? 1 : 0};
    tdm_job_document *document = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_job_load(path, &options, &document, &err);
    snprintf(message, sizeof(message), expected, path, dir);
    CHECK_TEXT(err.message, message);
    CHECK_INT(status, expected[0] ? TDM_ERR_JOB_INVALID : TDM_OK);
    tdm_job_document_destroy(document);
}

static void test_files(void)
{
    const char *dir = check_dir();
    char path[512];
    write_file(dir, "x.csv", "1,2\n");
    check_load(dir, SMALLEST, NULL, "");
    check_load(dir, "data: {train: y.csv}\n", NULL,
               "%1$s:1:15: 'data.train': file '%2$s/y.csv' does not exist; a path in a job file is "
               "relative to the directory of that file");
    check_load(dir, "data: {train: /no/y.csv}\n", NULL,
               "%1$s:1:15: 'data.train': file '/no/y.csv' does not exist; correct the path, or "
               "create the file");
    check_load(dir, "data: {train: ~/y.csv}\n", NULL,
               "%1$s:1:15: 'data.train': file '%2$s/~/y.csv' does not exist; '~' is not expanded: "
               "write out the home directory");
    check_load(dir, "data: {train: .}\n", NULL,
               "%1$s:1:15: 'data.train': '%2$s/.' is a directory; give a file");
    check_load(dir, SMALLEST, "data.train=/dev/null",
               "--set: 'data.train': '/dev/null' is a device, a pipe or a socket; give a regular "
               "file");
    check_load(dir, SMALLEST, "data.test=/no/t.csv",
               "--set: 'data.test': file '/no/t.csv' does not exist; correct the path, or create "
               "the file");
    snprintf(path, sizeof(path), "run.dir=%s/x.csv", dir);
    check_load(dir, SMALLEST, path, "--set: 'run.dir': '%2$s/x.csv' is a file, not a directory");
}

static void test_unreadable_file(void)
{
    tdm_job_document *document = NULL;
    tdm_error err = {0};
    CHECK_INT(tdm_job_load("/no/such/job.yaml", NULL, &document, &err), TDM_ERR_NOT_FOUND);
    CHECK(document == NULL);
    CHECK_HAS(err.message, "job file: ");
    CHECK_HAS(err.message, "/no/such/job.yaml");
}

static void test_json(void)
{
    tdm_job_document *document = parse_good(
        SMALLEST, set_list("train.steps=4", "model.hidden=[3,4]", NULL, NULL));
    tdm_arena *arena = tdm_arena_create("json");
    tdm_str text = TDM_STR_INIT;
    const tdm_json *root = NULL;
    uint64_t steps = 0;
    tdm_job_show_json(tdm_job_document_job(document), &text);
    CHECK_INT(tdm_json_parse(text.data, text.length, arena, &root, NULL), TDM_OK);
    const tdm_json *train = tdm_json_get(root, "train");
    CHECK(tdm_json_as_u64(tdm_json_get(train, "steps"), &steps) && steps == 4);
    CHECK(tdm_json_get(train, "epochs") == NULL);
    CHECK_INT(tdm_json_get(tdm_json_get(root, "model"), "hidden")->count, 2);
    CHECK_TEXT(tdm_json_as_string(tdm_json_get(tdm_json_get(root, "parallel"), "lanes")), "auto");
    tdm_str_release(&text);
    tdm_arena_destroy(arena);
    tdm_job_document_destroy(document);
}

/* ---- the table and the reference ------------------------------------------------------------- */

static void test_table(void)
{
    CHECK(tdm_job_key_at(tdm_job_key_count()) == NULL);
    for (size_t i = 0; i < tdm_job_key_count(); i++) {
        const tdm_job_key *key = tdm_job_key_at(i);
        CHECK_INT(tdm__key_find(key->path), i);
        CHECK(key->help && key->help[strlen(key->help) - 1] == '.');
        CHECK(key->offset < sizeof(tdm_job));
        CHECK((key->type == TDM_JOB_KEY_CHOICE) == (key->choices != NULL));
        size_t homes = 0;
        for (size_t g = 0; g < tdm__job_group_count(); g++)
            homes += tdm__job_group_has(tdm__job_group_at(g), key);
        CHECK_INT(homes, 1);
        for (size_t k = 0; k < i; k++) CHECK(tdm_job_key_at(k)->offset != key->offset);
        if (key->needs) CHECK(tdm__key_find(key->needs) != SIZE_MAX);
        if (!key->excludes) continue;
        const tdm_job_key *other = tdm_job_key_at(tdm__key_find(key->excludes));
        CHECK(other != NULL);
        if (other) CHECK_TEXT(other->excludes, key->path);
    }
}

static void test_keys_text(void)
{
    tdm_str text = TDM_STR_INIT;
    CHECK_INT(tdm_job_keys_text("no.such", &text), 0);
    CHECK_TEXT(tdm_str_text(&text), "");
    CHECK_INT(tdm_job_keys_text("train.s", &text), 1);
    CHECK_TEXT(tdm_str_text(&text),
               "train.steps\n"
               "    a whole number from 1 to 2^53; default: derived from 'train.epochs'\n"
               "    The number of steps to train, instead of a number of epochs. It cannot be\n"
               "    combined with 'train.epochs'.\n");
    tdm_str_clear(&text);
    CHECK_INT(tdm_job_keys_text("layers.dropout", &text), 1);
    CHECK_TEXT(tdm_str_text(&text),
               "layers.dropout\n"
               "    a mapping with rate, or rate alone; optional\n"
               "    Sets random numbers to zero during training and scales up the others.\n"
               "\n"
               "layers.dropout.rate\n"
               "    a number from 0 to below 1; required\n"
               "    The fraction of numbers that are set to zero.\n");
    tdm_str_clear(&text);
    CHECK_INT(tdm_job_keys_text("", &text), tdm_job_key_count());
    size_t longest = 0;
    for (const char *line = tdm_str_text(&text); *line; line += strcspn(line, "\n") + 1) {
        size_t length = strcspn(line, "\n");
        if (length > longest) longest = length;
    }
    CHECK(longest <= 80 && longest > 70);
    tdm_str_release(&text);
}

static void test_keys_json(void)
{
    tdm_str text = TDM_STR_INIT;
    tdm_arena *arena = tdm_arena_create("json");
    const tdm_json *root = NULL;
    CHECK_INT(tdm_job_keys_json("", &text), tdm_job_key_count());
    CHECK_INT(tdm_json_parse(text.data, text.length, arena, &root, NULL), TDM_OK);
    CHECK(root && root->count == tdm_job_key_count());
    if (root) CHECK_TEXT(tdm_json_as_string(tdm_json_get(root->first, "key")), "name");
    tdm_arena_destroy(arena);
    tdm_str_release(&text);
}

static void test_docs_are_current(void)
{
    tdm_str text = TDM_STR_INIT;
    tdm_file_bytes docs = {0};
    tdm_job_keys_markdown(&text);
    CHECK_INT(tdm_file_read(DOCS, 0, &docs, NULL), TDM_OK);
    bool is_current = docs.count == text.length && memcmp(docs.data, text.data, text.length) == 0;
    CHECK(is_current);
    if (!is_current) fprintf(stderr, "  run: unit_job --write-docs " DOCS "\n");
    for (size_t i = 0; i < tdm_job_key_count(); i++) {
        char cell[64];
        snprintf(cell, sizeof(cell), "| `%s` |", tdm_job_key_at(i)->path);
        CHECK_HAS(tdm_str_text(&text), cell);
    }
    tdm_file_bytes_release(&docs);
    tdm_str_release(&text);
}

static void test_example_in_docs(void)
{
    tdm_str text = TDM_STR_INIT;
    tdm_job_keys_markdown(&text);
    const char *begin = strstr(tdm_str_text(&text), "```yaml\n");
    const char *end = begin ? strstr(begin + 8, "```") : NULL;
    CHECK(end != NULL);
    if (end) {
        tdm_job_document *document = parse_bytes(begin + 8, (size_t)(end - begin - 8), NULL);
        const tdm_job *job = tdm_job_document_job(document);
        CHECK(job != NULL);
        if (job) CHECK_TEXT(job->data.label, "species");
        tdm_job_document_destroy(document);
    }
    tdm_str_release(&text);
}

static int write_docs(const char *path)
{
    tdm_str text = TDM_STR_INIT;
    tdm_error err = {0};
    tdm_job_keys_markdown(&text);
    tdm_status status = tdm_file_replace(path, text.data, text.length, &err);
    if (status != TDM_OK) fprintf(stderr, "%s\n", err.message);
    tdm_str_release(&text);
    return status != TDM_OK;
}

static const check_test job_rules_tests[] = {
    CHECK_TEST(test_bad_jobs),
    CHECK_TEST(test_problem_has_its_place),
    CHECK_TEST(test_error_is_the_first_problem),
    CHECK_TEST(test_too_large),
    CHECK_TEST(test_problems_are_bounded),
    CHECK_TEST(test_depth_limit),
    CHECK_TEST(test_defaults),
    CHECK_TEST(test_all_keys),
    CHECK_TEST(test_other_spellings),
    CHECK_TEST(test_name_from_file),
    CHECK_TEST(test_overrides),
    CHECK_TEST(test_overrides_win_over_exclusion),
    CHECK_TEST(test_overrides_clear),
    CHECK_TEST(test_override_paths_begin_here),
    CHECK_TEST(test_files),
    CHECK_TEST(test_unreadable_file),
    CHECK_TEST(test_json),
    CHECK_TEST(test_table),
    CHECK_TEST(test_keys_text),
    CHECK_TEST(test_keys_json),
    CHECK_TEST(test_docs_are_current),
    CHECK_TEST(test_example_in_docs),
};
static CHECK_SUITE(job_rules, job_rules_tests);

int main(int argc, char **argv)
{
    static const check_suite *const suites[] = {&job_rules, &job_round_trip, &job_hash, &job_layers,
                                                &job_library};
    if (argc == 3 && strcmp(argv[1], "--write-docs") == 0) return write_docs(argv[2]);
    return check_main_suites(argc, argv, suites, sizeof(suites) / sizeof(suites[0]));
}
