/*
 * job_hash_cases.c: which keys change the hash of a job, and the difference of two jobs.
 */
#include "job/internal.h"
#include "unit/job_cases.h"

/* ---- hash and difference --------------------------------------------------------------------- */

static void hash_of(const char *override, char hex[TDM_SHA256_HEX])
{
    tdm_job_document *document = parse_good(SMALLEST, set_list(override, NULL, NULL, NULL));
    hex[0] = '\0';
    if (document) CHECK_INT(tdm_job_hash(tdm_job_document_job(document), hex, NULL), TDM_OK);
    tdm_job_document_destroy(document);
}

static void test_hash(void)
{
    static const char *const same[] = {
        "name=other",
        "data.train=/else/where",
        "data.test=t",
        "train.epochs=99",
        "train.steps=5",
        "eval.batch=7",
        "checkpoint.keep=1",
        "run.dir=/tmp",
        "optim.lr=0.0010",
        "eval.every_epochs=never",
        "seed=1",
        "run.log_every_steps=3",
        "memory.recompute=full",
        "memory.limit=1GB",
        "comm.transport=shm",
        "compute.threads=1",
        "compute.threads=7",
        "parallel.zero=3",
        "parallel.offload=x",
        "parallel.balance=feedback",
        "parallel.weights=[1]",
        "parallel.bucket=1MB",
        "parallel.overlap=false",
        "checkpoint.every_epochs=2",
        "checkpoint.every_steps=2",
        "eval.weights=raw",
        "eval.every_steps=2",
        "train.label_smoothing=0",
        "train.l1=0",
        "train.l2=0",
    };
    static const char *const different[] = {
        "seed=2",
        "model.hidden=[128,1]",
        "model.hidden=[1281]",
        "model.activation=tanh",
        "model.dropout=.1",
        "model.init_from=w",
        "data.train_labels=l",
        "data.test_fraction=.1",
        "data.format=csv",
        "data.header=no",
        "data.label=first",
        "data.delimiter=;",
        "data.normalise=none",
        "data.shuffle=no",
        "data.last_batch=drop",
        "train.batch=33",
        "train.label_smoothing=.1",
        "train.l1=.1",
        "train.l2=.1",
        "optim.kind=sgd",
        "optim.lr=.002",
        "optim.momentum=.8",
        "optim.beta1=.8",
        "optim.beta2=.9",
        "optim.eps=1e-7",
        "optim.weight_decay=0",
        "optim.alpha=0.9",
        "optim.groups=[{match: a}]",
        "optim.groups=[{match: b}]",
        "optim.groups=[{match: b, weight_decay: 0}]",
        "optim.clip_norm=1",
        "optim.clip_value=1",
        "optim.ema=0.9",
        "layers=[relu]",
        "layers=[tanh]",
        "layers=[linear: 7]",
        "layers=[linear: {features: 7, bias: false}]",
        "layers=[linear: 7, relu]",
        "layers=[residual: [linear: 7, relu]]",
        "layers=[residual: [linear: 7], relu]",
        "layers=[]",
        "schedule.kind=exponential",
        "schedule.kind=cosine",
        "schedule.warmup=1",
        "schedule.steps=100",
        "schedule.floor=1",
        "schedule.gamma=.5",
        "schedule.every_steps=7",
        "schedule.milestones=[1]",
        "schedule.peak_at=.5",
        "schedule.start_divisor=2",
        "schedule.end_divisor=2",
        "schedule.anneal=linear",
        "schedule.metric=test_accuracy",
        "schedule.patience=1",
        "schedule.threshold=0",
        "schedule.cooldown=1",
        "parallel.lanes=4",
        "parallel.reduce=ring",
        "parallel.reduce=central",
        "parallel.sync_batchnorm=true",
        "compute.backend=ref",
        "compute.numerics=vendor",
        "compute.precision=bf16",
    };
    enum { different_count = sizeof(different) / sizeof(different[0]) };
    char base[TDM_SHA256_HEX], hex[different_count][TDM_SHA256_HEX];
    hash_of(NULL, base);
    /* Recorded, so that a change to the table that changes hashes is detected. */
    CHECK_TEXT(base, "5ce422ab0503c373ad0c2cb7f9b61d226bdf6bcbd89a00b3195aa9028abe64e4");
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        hash_of(same[i], hex[0]);
        CHECK_TEXT(hex[0], base);
    }
    for (size_t i = 0; i < different_count; i++) {
        hash_of(different[i], hex[i]);
        CHECK(strcmp(hex[i], base) != 0);
        for (size_t k = 0; k < i; k++) CHECK(strcmp(hex[i], hex[k]) != 0);
    }
}

static bool same_hash(const char *base, const char *const *a, const char *const *b)
{
    char hex[2][TDM_SHA256_HEX] = {"", ""};
    for (int i = 0; i < 2; i++) {
        tdm_job_document *document = parse_good(base, i == 0 ? a : b);
        if (document) CHECK_INT(tdm_job_hash(tdm_job_document_job(document), hex[i], NULL), TDM_OK);
        tdm_job_document_destroy(document);
    }
    return strcmp(hex[0], hex[1]) == 0;
}

/* Keys that affect bits only with certain values of other keys. */
static void test_hash_of_schedules(void)
{
#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})
    static const char tested[] = "data: {train: x.csv, test: y.csv}\n";
    static const char *const as_long[] = {"schedule.kind=cosine", "schedule.kind=linear",
                                          "schedule.kind=one_cycle"};
    for (size_t i = 0; i < 3; i++) {
        CHECK(!same_hash(SMALLEST, LIST(as_long[i]), LIST(as_long[i], "train.epochs=11")));
        CHECK(!same_hash(SMALLEST, LIST(as_long[i]), LIST(as_long[i], "train.steps=11")));
        CHECK(same_hash(SMALLEST, LIST(as_long[i], "schedule.steps=9"),
                        LIST(as_long[i], "schedule.steps=9", "train.epochs=11")));
        CHECK(same_hash(SMALLEST, LIST(as_long[i]), LIST(as_long[i], "eval.batch=3")));
    }
    /* A period of local steps that the end of the run cuts short is another one in a longer run. */
    CHECK(same_hash(SMALLEST, LIST("sync.kind=local", "train.steps=16"),
                    LIST("sync.kind=local", "train.steps=24")));
    CHECK(!same_hash(SMALLEST, LIST("sync.kind=local", "train.steps=20"),
                     LIST("sync.kind=local", "train.steps=24")));
    CHECK(!same_hash(SMALLEST, LIST("sync.kind=local", "sync.start_step=3", "train.steps=16"),
                     LIST("sync.kind=local", "sync.start_step=3", "train.steps=19")));
    CHECK(
        !same_hash(SMALLEST, LIST("sync.kind=local"), LIST("sync.kind=local", "train.epochs=11")));
    CHECK(same_hash(SMALLEST, LIST("sync.kind=local", "sync.period=1"),
                    LIST("sync.kind=local", "sync.period=1", "train.epochs=11")));
    CHECK(same_hash(SMALLEST, LIST("schedule.kind=inverse_sqrt"),
                    LIST("schedule.kind=inverse_sqrt", "train.epochs=11")));
    static const char *const evals[] = {"eval.batch=3", "eval.every_epochs=2", "eval.weights=raw",
                                        "eval.every_steps=5"};
    for (size_t i = 0; i < 4; i++) {
        const char *plateau = "schedule.kind=reduce_on_plateau";
        CHECK(!same_hash(tested, LIST(plateau), LIST(plateau, evals[i])));
        CHECK(same_hash(tested, LIST(plateau), LIST(plateau, "train.epochs=11")));
        CHECK(same_hash(tested, LIST("seed=3"), LIST("seed=3", evals[i])));
    }
    CHECK(same_hash(tested, LIST("seed=1"), LIST("train.early_stop={patience: 3}")));
    CHECK(same_hash(tested, LIST("seed=1"), LIST("train.bad_numbers=skip")));
}

/* A vendor's products are divided differently for each number of threads. */
static void test_hash_of_threads(void)
{
    const char *vendor = "compute.numerics=vendor";
    CHECK(same_hash(SMALLEST, LIST("compute.threads=2"), LIST("compute.threads=3")));
    CHECK(!same_hash(SMALLEST, LIST(vendor), LIST(vendor, "compute.threads=2")));
    CHECK(
        !same_hash(SMALLEST, LIST(vendor, "compute.threads=3"), LIST(vendor, "compute.threads=2")));
#undef LIST
}

/* Keys of a sparse table affect only the jobs whose model and method use them. */
static void test_hash_of_tables(void)
{
#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})
    static const char lr[] = "data: {train: x, format: criteo}\nmodel: {kind: lr}\n";
    static const char fm[] = "data: {train: x, format: criteo}\nmodel: {kind: fm}\n";
    static const char *const keys[] = {
        "table.optim=adam",  "table.lr=2",  "table.weight_decay=1", "table.hash_bits=20",
        "table.admission=2", "table.dim=3", "table.init_scale=2",   "table.l1=1"};
    enum { FOR_ALL = 5, FOR_FM = 7, COUNT = 8 };
    for (size_t i = 0; i < COUNT; i++) {
        CHECK(same_hash(SMALLEST, LIST("seed=1"), LIST(keys[i])));
        CHECK_INT(same_hash(lr, LIST("seed=1"), LIST(keys[i])), i >= FOR_ALL);
        CHECK_INT(same_hash(fm, LIST("seed=1"), LIST(keys[i])), i >= FOR_FM);
    }
    const char *ftrl = "table.optim=ftrl";
    CHECK(!same_hash(lr, LIST(ftrl), LIST(ftrl, "table.l1=1")));
    CHECK(same_hash(lr, LIST(ftrl), LIST(ftrl, "table.weight_decay=1")));
    CHECK(same_hash(lr, LIST("seed=1"), LIST("table.limit=1GiB")));
    CHECK(same_hash(fm, LIST("seed=1"), LIST("model.bottom=[2]")));
#undef LIST
}

static void test_diff(void)
{
    tdm_job_document *here = parse_good(SMALLEST, NULL);
    tdm_job_document *there = parse_good(
        SMALLEST, set_list("train.batch=64", "data.label=\"a b\"", "name=x", "model.init_from=w"));
    tdm_str text = TDM_STR_INIT;
    CHECK_INT(tdm_job_diff(tdm_job_document_job(here), tdm_job_document_job(here), &text), 0);
    CHECK_TEXT(tdm_str_text(&text), "");
    CHECK_INT(tdm_job_diff(tdm_job_document_job(here), tdm_job_document_job(there), &text), 3);
    CHECK_TEXT(tdm_str_text(&text), "model.init_from: not given here, given there\n"
                                    "data.label: last here, \"a b\" there\n"
                                    "train.batch: 32 here, 64 there\n");
    tdm_str_release(&text);
    tdm_job_document_destroy(here);
    tdm_job_document_destroy(there);
}

static const check_test job_hash_tests[] = {
    CHECK_TEST(test_hash),
    CHECK_TEST(test_hash_of_schedules),
    CHECK_TEST(test_hash_of_threads),
    CHECK_TEST(test_hash_of_tables),
    CHECK_TEST(test_diff),
};
CHECK_SUITE(job_hash, job_hash_tests);
