/*
 * train_test.c: training through the C API: the order of events, stopping at every step and resuming, disks
 * that fail at every operation, and models opened from the written files.
 *
 * The log is recorded, so that a test can check messages. Everything is written below one temporary directory,
 * which is removed at the end.
 */
#include "base/base.h"
#include "check.h"
#include "data/data.h"
#include "os/os.h"
#include "train/internal.h"

#include <tandem/inference.h>
#include <tandem/train.h>

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SAMPLES = 60, STEPS = 12, MAX_EVENTS = 200 };

static const char *directory;

/* 48 of 60 samples are trained, in batches of 14: 14 14 14 6, three times. */
static const char job_text[] =
    "name: unit\nseed: 3\n"
    "data: {train: data.csv, test_fraction: 0.2}\n"
    "model: {hidden: [8], dropout: 0.1}\n"
    "train: {batch: 14, epochs: 3}\n"
    "parallel: {lanes: 4}\n"
    "checkpoint: {every_steps: 3, every_epochs: never, keep: 2, background: no,\n"
    "    retry_s: 0}\n"
    "run: {log_every_steps: 1}\n";

static tdm_job_document *load(const char *const *overrides, size_t count)
{
    char dir[64];
    snprintf(dir, sizeof(dir), "run.dir=%s/runs", directory);
    const char *sets[8] = {dir};
    for (size_t i = 0; i < count; i++) sets[1 + i] = overrides[i];
    tdm_job_options options = {.overrides = sets, .override_count = 1 + count};
    tdm_job_document *document = NULL;
    tdm_error err = {0};
    CHECK_INT(
        tdm_job_parse(job_text, strlen(job_text), "job.yaml", directory, &options, &document, &err),
        TDM_OK);
    if (err.message[0]) fprintf(stderr, "  %s\n", err.message);
    return document;
}

/* ---- a listener ------------------------------------------------------------------------------ */

typedef struct listener {
    tdm_train_event events[MAX_EVENTS];
    uint64_t steps[MAX_EVENTS];
    int count;
    bool in_order;        /* steps never go back, numbers fit together */
    uint64_t stop_at;     /* step; UINT64_MAX: never */
    uint64_t fault_from;  /* step after which file operations fail */
    uint64_t fault_until; /* and step after which they work again */
    int mend_looks; /* number of calls of should_stop after the last step, until the disk works again; 0: never */
    int warnings, errors;
    char last_warning[1000];
} listener;

static listener listening(void)
{
    return (listener){.in_order = true,
                      .stop_at = UINT64_MAX,
                      .fault_from = UINT64_MAX,
                      .fault_until = UINT64_MAX};
}

static void on_event(const tdm_train_status *s, void *user)
{
    listener *l = user;
    if (l->count > 0 && s->step < l->steps[l->count - 1]) l->in_order = false;
    if (s->step > s->step_count || !s->run_path || s->train_count != SAMPLES - s->test_count)
        l->in_order = false;
    if (s->event == TDM_TRAIN_EVENT_CHECKPOINT && !tdm_path_is_file(s->checkpoint_path))
        l->in_order = false;
    if (s->event == TDM_TRAIN_EVENT_EVAL && (!s->has_test || s->test.sample_count != s->test_count))
        l->in_order = false;
    if (l->count < MAX_EVENTS) {
        l->events[l->count] = s->event;
        l->steps[l->count++] = s->step;
    }
    if (s->event != TDM_TRAIN_EVENT_STEP) return;
    if (s->step == l->fault_from) tdm_os_test_fail_files(TDM_FAULT_ALL, 1, ENOSPC);
    if (s->step == l->fault_until) tdm_os_test_fail_files(0, 0, 0);
}

static bool should_stop(void *user)
{
    listener *l = user;
    bool is_last = l->count > 0 && l->steps[l->count - 1] == STEPS;
    if (is_last && l->mend_looks > 0 && --l->mend_looks == 0) tdm_os_test_fail_files(0, 0, 0);
    return l->count > 0 && l->steps[l->count - 1] >= l->stop_at;
}

static void on_log(const tdm_log_record *record, void *user)
{
    listener *l = user;
    if (record->level == TDM_LOG_WARN) {
        l->warnings++;
        snprintf(l->last_warning, sizeof(l->last_warning), "%s", record->message);
    }
    l->errors += record->level == TDM_LOG_ERROR;
}

static tdm_status train(const tdm_job *job, const char *resume, listener *l, tdm_train_result *out,
                        tdm_error *err)
{
    tdm_train_options options = {
        .resume = resume, .on_event = on_event, .should_stop = should_stop, .user = l};
    CHECK_INT(tdm_log_add_sink(on_log, l, TDM_LOG_WARN), TDM_OK);
    tdm_status status = tdm_train(job, &options, out, err);
    tdm_log_remove_sink(on_log, l);
    return status;
}

/* The state at the end of an undisturbed run. */
static const char *whole_hash(const tdm_job *job)
{
    static char hash[TDM_SHA256_HEX];
    tdm_train_result r;
    if (!hash[0] && tdm_train(job, NULL, &r, NULL) == TDM_OK)
        memcpy(hash, r.state_hash, sizeof(hash));
    return hash;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void events_arrive_in_order(void)
{
    tdm_job_document *document = load(NULL, 0);
    listener l = listening();
    tdm_train_result r;
    tdm_error err = {0};
    CHECK_INT(train(tdm_job_document_job(document), NULL, &l, &r, &err), TDM_OK);
    CHECK(l.in_order);
    /* S: start, s: step, e: evaluation, c: checkpoint, E: end. */
    static const char letters[] = "SsecE";
    char order[MAX_EVENTS + 1] = {0};
    for (int i = 0; i < l.count; i++) order[i] = letters[l.events[i]];
    CHECK_TEXT(order, "Ssss"
                      "cses"
                      "sc"
                      "sse"
                      "sc"
                      "sss"
                      "ecE");
    CHECK_INT(r.steps, STEPS);
    CHECK_INT(r.samples, 3 * 48);
    CHECK(!r.interrupted && !r.nothing_to_do && r.has_test);
    CHECK(r.seconds > 0);
    CHECK(isfinite(r.loss));
    CHECK_INT(r.test.sample_count, 12);
    CHECK_TEXT(r.state_hash, whole_hash(tdm_job_document_job(document)));
    CHECK_INT(l.warnings + l.errors, 0);
    tdm_job_document_destroy(document);
}

static void nothing_needs_to_be_asked_for(void)
{
    tdm_job_document *document = load(NULL, 0);
    tdm_train_result r;
    CHECK_INT(tdm_train(tdm_job_document_job(document), NULL, &r, NULL), TDM_OK);
    CHECK_TEXT(r.state_hash, whole_hash(tdm_job_document_job(document)));
    tdm_job_document_destroy(document);
}

/* ---- stopping -------------------------------------------------------------------------------- */

static void every_step_is_a_place_to_stop(void)
{
    tdm_job_document *document = load(NULL, 0);
    const tdm_job *job = tdm_job_document_job(document);
    for (uint64_t stop = 0; stop < STEPS; stop++) {
        listener l = listening();
        l.stop_at = stop;
        tdm_train_result r;
        tdm_error err = {0};
        CHECK_INT(train(job, NULL, &l, &r, &err), TDM_OK);
        CHECK(r.interrupted);
        CHECK_INT(r.steps, stop);
        CHECK(tdm_path_is_file(r.checkpoint_path));
        char path[TDM_PATH_BYTES];
        snprintf(path, sizeof(path), "%s", r.run_path);
        l = listening();
        l.stop_at = stop + 2; /* and once more during training */
        CHECK_INT(train(job, path, &l, &r, &err), TDM_OK);
        l = listening();
        CHECK_INT(train(job, path, &l, &r, &err), TDM_OK);
        CHECK(!r.interrupted);
        CHECK_TEXT(r.state_hash, whole_hash(job));
        CHECK_TEXT(r.run_path, path);
        CHECK_INT(l.warnings + l.errors, 0);
    }
    tdm_job_document_destroy(document);
}

/* The newest checkpoint of a run, as another version of the program would have written it. */
static void forge_numerics(const char *path, const char *numerics, const char *job_hash)
{
    tdm_checkpoint *checkpoint = NULL;
    tdm_error err = {0};
    char forged[TDM_PATH_BYTES + 8];
    snprintf(forged, sizeof(forged), "%s.forged", path);
    CHECK_INT(tdm_checkpoint_open(path, &checkpoint, &err), TDM_OK);
    tdm_checkpoint_content content = *tdm_checkpoint_content_of(checkpoint);
    CHECK_TEXT(content.numerics, "portable 1");
    content.numerics = numerics;
    if (job_hash) content.job_hash = job_hash;
    CHECK_INT(tdm_checkpoint_save(forged, &content, &err), TDM_OK);
    tdm_checkpoint_destroy(checkpoint);
    CHECK_INT(rename(forged, path), 0);
}

/* Resuming from a checkpoint of another version is logged once. A checkpoint from before versions, when jobs
 * had other hashes, can be resumed as well; with a version, another hash means another job. */
static void other_versions_are_reported(void)
{
    static const struct {
        const char *numerics, *job_hash;
        tdm_status expected;
    } cases[] = {{"portable 99", NULL, TDM_OK},
                 {NULL, NULL, TDM_OK},
                 {NULL, "0123", TDM_OK},
                 {"portable 1", "0123", TDM_ERR_JOB_MISMATCH}};
    tdm_job_document *document = load(NULL, 0);
    const tdm_job *job = tdm_job_document_job(document);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        listener l = listening();
        l.stop_at = 5;
        tdm_train_result r, again;
        tdm_error err = {0};
        tdm_model *model = NULL;
        CHECK_INT(train(job, NULL, &l, &r, &err), TDM_OK);
        forge_numerics(r.checkpoint_path, cases[i].numerics, cases[i].job_hash);
        l = listening();
        CHECK_INT(tdm_log_add_sink(on_log, &l, TDM_LOG_WARN), TDM_OK);
        CHECK_INT(tdm_model_open(r.run_path, NULL, &model, &err), TDM_OK);
        tdm_log_remove_sink(on_log, &l);
        tdm_model_close(model);
        bool told = cases[i].expected == TDM_OK;
        CHECK_INT(l.warnings, told);
        if (told) CHECK_HAS(l.last_warning, "results may differ in their last digits");
        l = listening();
        CHECK_INT(train(job, r.run_path, &l, &again, &err), cases[i].expected);
        CHECK_INT(l.warnings, told);
        if (!told) {
            CHECK_INT(unlink(r.checkpoint_path), 0); /* other tests resume from this run */
            continue;
        }
        CHECK_TEXT(again.state_hash, whole_hash(job)); /* the arithmetic has not really changed */
        CHECK_HAS(l.last_warning,
                  "but this program uses 'portable 1': training continues, but not with the");
        CHECK_HAS(l.last_warning, cases[i].numerics ? "'portable 99'" : "'before version 1'");
    }
    tdm_job_document_destroy(document);
}

static void a_finished_run_has_nothing_to_do(void)
{
    tdm_job_document *document = load(NULL, 0);
    const tdm_job *job = tdm_job_document_job(document);
    tdm_train_result r, again;
    tdm_error err = {0};
    listener l = listening();
    CHECK_INT(train(job, NULL, &l, &r, &err), TDM_OK);
    l = listening();
    CHECK_INT(train(job, r.run_path, &l, &again, &err), TDM_OK);
    CHECK(again.nothing_to_do);
    CHECK_INT(again.samples, 0);
    CHECK_INT(again.steps, STEPS);
    CHECK_TEXT(again.state_hash, r.state_hash);
    CHECK_NEAR(again.test.loss, r.test.loss, 0);
    tdm_job_document_destroy(document);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refusals_leave_the_result_alone(void)
{
    tdm_job_document *document = load(NULL, 0);
    tdm_job_document *other = load((const char *[]){"optim.lr=0.5"}, 1);
    const tdm_job *job = tdm_job_document_job(document);
    tdm_train_result r, untouched, poison;
    unsigned char *before = (unsigned char *)&poison, *after = (unsigned char *)&untouched;
    memset(before, 0x5a, sizeof(poison));
    memset(after, 0x5a, sizeof(untouched));
    tdm_error err = {0};
    listener l = listening();
    CHECK_INT(train(job, NULL, &l, &r, &err), TDM_OK);
    CHECK_INT(train(tdm_job_document_job(other), r.run_path, &l, &untouched, &err),
              TDM_ERR_JOB_MISMATCH);
    CHECK_HAS(err.message, "optim.lr");
    CHECK_INT(train(job, directory, &l, &untouched, &err), TDM_ERR_NOT_FOUND);
    CHECK_HAS(err.message, "job.yaml");
    CHECK_INT(train(job, "/no/such/run", &l, &untouched, &err), TDM_ERR_NOT_FOUND);
    CHECK(memcmp(after, before, sizeof(poison)) == 0);
    tdm_job_document_destroy(other);
    tdm_job_document_destroy(document);
}

/* ---- failing disks --------------------------------------------------------------------------- */

/* Checkpoints are due at steps 3 and 6; the disk is full from step 2 to step 7. */
static void checkpoints_on_the_way_may_fail(void)
{
    tdm_job_document *document = load(NULL, 0);
    listener l = listening();
    l.fault_from = 2;
    l.fault_until = 7;
    tdm_train_result r;
    tdm_error err = {0};
    CHECK_INT(train(tdm_job_document_job(document), NULL, &l, &r, &err), TDM_OK);
    CHECK_INT(l.warnings, 1); /* for both: it is logged once, until it works again */
    CHECK_HAS(l.last_warning, "step 3: no checkpoint");
    CHECK_HAS(l.last_warning, "training continues");
    CHECK_INT(l.errors, 0);
    CHECK_TEXT(r.state_hash, whole_hash(tdm_job_document_job(document)));
    tdm_job_document_destroy(document);
}

/* The result of a checkpoint that failed does not count for the final one: the stop saves again, and fails
 * finally. */
static void a_stop_after_a_failed_checkpoint_fails(void)
{
    tdm_job_document *document = load(NULL, 0);
    const tdm_job *job = tdm_job_document_job(document);
    listener l = listening();
    l.fault_from = 5;
    l.stop_at = 6;
    tdm_train_result r;
    tdm_error err = {0};
    CHECK_INT(train(job, NULL, &l, &r, &err), TDM_ERR_NO_SPACE);
    tdm_os_test_fail_files(0, 0, 0);
    CHECK_INT(l.warnings, 1);
    CHECK_INT(l.errors, 1);
    tdm_job_document_destroy(document);
}

/* The disk is full when the last checkpoint is due, and has space again during a retry. */
static void the_last_checkpoint_is_tried_again(void)
{
    static const char *const sets[] = {"checkpoint.retry_s=600"};
    tdm_job_document *document = load(sets, 1);
    const tdm_job *job = tdm_job_document_job(document);
    listener l = listening();
    l.fault_from = STEPS;
    l.mend_looks = 7;
    tdm_train_result r;
    tdm_error err = {0};
    CHECK_INT(train(job, NULL, &l, &r, &err), TDM_OK);
    CHECK_INT(l.warnings, 1); /* however often it failed */
    CHECK_HAS(l.last_warning, "the last checkpoint cannot be written");
    CHECK_HAS(l.last_warning, "No space left on device");
    CHECK_HAS(l.last_warning, "checkpoint.retry_s");
    CHECK_INT(l.errors, 0);
    CHECK_INT(l.mend_looks, 0);
    CHECK_TEXT(r.state_hash, whole_hash(job));
    tdm_job_document_destroy(document);
}

/* A disk that stays full: the error names that reason when the time is over. */
static void the_last_checkpoint_is_given_up(void)
{
    static const char *const sets[] = {"checkpoint.retry_s=0.7"};
    tdm_job_document *document = load(sets, 1);
    listener l = listening();
    l.fault_from = STEPS;
    tdm_train_result r;
    tdm_error err = {0};
    CHECK_INT(train(tdm_job_document_job(document), NULL, &l, &r, &err), TDM_ERR_NO_SPACE);
    tdm_os_test_fail_files(0, 0, 0);
    CHECK_HAS(err.message, "No space left on device");
    CHECK_HAS(err.message, " times"); /* it was retried */
    CHECK_INT(l.errors, 1);
    tdm_job_document_destroy(document);
}

/* Whether the newest run resumes and ends with the right state; true if no checkpoint exists. */
static bool run_resumes(const tdm_job *job, const char *run)
{
    tdm_arena *arena = tdm_arena_create("test");
    char *path = NULL;
    bool fine = true;
    listener l = listening();
    tdm_train_result r;
    if (tdm_run_checkpoint(run, arena, &path, NULL) == TDM_OK)
        fine = train(job, run, &l, &r, NULL) == TDM_OK &&
               strcmp(r.state_hash, whole_hash(job)) == 0;
    tdm_arena_destroy(arena);
    return fine;
}

/* The n-th file operation and all after it fail, for every n until a run succeeds. */
static void every_operation_may_fail(void)
{
    static const int numbers[] = {ENOSPC, EIO};
    tdm_job_document *document = load(NULL, 0);
    const tdm_job *job = tdm_job_document_job(document);
    whole_hash(job);
    for (size_t e = 0; e < 2; e++) {
        tdm_status want = numbers[e] == ENOSPC ? TDM_ERR_NO_SPACE : TDM_ERR_IO;
        int countdown = 1, failed = 0;
        /* All of them for a full disk; some for a broken one, which uses the same code. */
        int stride = e == 0 ? 1 : 7;
        for (tdm_status status = want; status != TDM_OK && countdown < 500; countdown += stride) {
            listener l = listening();
            tdm_train_result r = {.steps = 77};
            tdm_error err = {0};
            tdm_os_test_fail_files(TDM_FAULT_ALL, countdown, numbers[e]);
            status = train(job, NULL, &l, &r, &err);
            tdm_os_test_fail_files(0, 0, 0);
            if (status == TDM_OK) break;
            failed++;
            CHECK_INT(status, want);
            CHECK(err.message[0] != '\0');
            CHECK_INT(r.steps, 77);
            CHECK(l.errors <= 1);
        }
        CHECK(failed * stride >=
              20); /* four operations for job.yaml and for each of four checkpoints */
        CHECK(countdown < 500);
    }
    for (int number = 1; number < 200; number++) { /* the runs that were left can be resumed */
        char run[128];
        snprintf(run, sizeof(run), "%s/runs/unit-%d", directory, number);
        if (tdm_path_is_dir(run)) CHECK(run_resumes(job, run));
    }
    tdm_job_document_destroy(document);
}

/* ---- data in shared memory -------------------------------------------------------------------- */

static pid_t dead_process(void)
{
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    CHECK_INT(waitpid(pid, NULL, 0), pid);
    return pid;
}

/* A process has created the region of the data, and died before it copied the data or before it wrote its id.
 * */
static void data_is_shared_after_a_death(void)
{
    static const char hash[] = "0123456789abcdef0123456789abcdef";
    tdm_job_document *document = load(NULL, 0);
    for (int named = 0; named < 2; named++) {
        tdm_job_data data = {0};
        tdm_shm *shm = NULL;
        size_t bytes = 0;
        void *region = NULL;
        CHECK_INT(tdm_job_data_load(tdm_job_document_job(document), &data, NULL), TDM_OK);
        CHECK_INT(tdm_shm_create(&shm, NULL), TDM_OK);
        (void)tdm_dataset_block(data.whole ? data.whole : data.train, &bytes);
        CHECK_INT(tdm_shm_region_take(
                      shm, data.whole ? "data-0123456789abcdef" : "data-train-0123456789abcdef",
                      64 + bytes, NULL, &region, NULL),
                  TDM_OK);
        int64_t process = named ? dead_process() : 0;
        memcpy((char *)region + 8, &process, sizeof(process));

        double begin_s = tdm_clock_s();
        tdm__data_share(&data, hash, shm);
        CHECK(tdm_clock_s() - begin_s < 5);
        CHECK(tdm_dataset_block(data.whole ? data.whole : data.train, &bytes) ==
              (char *)region + 64);
        tdm_job_data_release(&data);
        tdm_shm_close(shm);
    }
    tdm_job_document_destroy(document);
}

/* ---- models ---------------------------------------------------------------------------------- */

static void check_model(const char *path, const tdm_job *job, const tdm_train_result *r)
{
    tdm_model *model = NULL;
    tdm_error err = {0};
    CHECK_INT(tdm_model_open(path, NULL, &model, &err), TDM_OK);
    if (!model) return;
    CHECK_TEXT(tdm_model_path(model), r->checkpoint_path);
    CHECK_INT(tdm_model_content(model)->position.step, STEPS);
    CHECK_INT(tdm_model_content(model)->class_count, 3);
    CHECK_INT(tdm_model_job(model)->seed, job->seed);
    CHECK_INT(tdm_model_data_options(model).class_count, 3);
    tdm_job_data data = {0};
    CHECK_INT(tdm_job_data_load(job, &data, NULL), TDM_OK);
    for (int64_t batch = 0; batch <= 5; batch += 5) {
        tdm_predictor *predictor = NULL;
        CHECK_INT(tdm_model_predictor(model, batch, &predictor, NULL), TDM_OK);
        if (!predictor) continue;
        CHECK_INT(tdm_predictor_batch(predictor), batch > 0 ? batch : job->eval.batch);
        tdm_metrics m = tdm_evaluate(predictor, data.test, NULL);
        CHECK_NEAR(m.accuracy, r->test.accuracy, 0);
        CHECK_NEAR(m.loss, r->test.loss, 1e-6);
        tdm_predictor_destroy(predictor);
    }
    tdm_job_data_release(&data);
    tdm_model_close(model);
}

static void models_open_from_what_was_written(void)
{
    tdm_job_document *document = load(NULL, 0);
    const tdm_job *job = tdm_job_document_job(document);
    listener l = listening();
    tdm_train_result r;
    tdm_error err = {0};
    CHECK_INT(train(job, NULL, &l, &r, &err), TDM_OK);
    check_model(r.run_path, job, &r);
    check_model(r.checkpoint_path, job, &r);
    tdm_model *model = NULL;
    CHECK_INT(tdm_model_open(directory, NULL, &model, &err), TDM_ERR_NOT_FOUND);
    CHECK_INT(tdm_model_open("/no/such", NULL, &model, &err), TDM_ERR_NOT_FOUND);
    CHECK(!model);
    tdm_model_close(NULL);
    tdm_job_document_destroy(document);
}

/* Starting from the parameters of another run, by model.init_from. */
static void parameters_are_read_from_a_file(void)
{
    tdm_job_document *document = load(NULL, 0);
    listener l = listening();
    tdm_train_result r, fresh, tuned;
    tdm_error err = {0};
    CHECK_INT(train(tdm_job_document_job(document), NULL, &l, &r, &err), TDM_OK);
    char from[TDM_PATH_BYTES + 64];
    snprintf(from, sizeof(from), "model.init_from=%s", r.checkpoint_path);
    const char *sets[] = {"optim.lr=1e-30", "train.steps=1", from};
    tdm_job_document *plain = load(sets, 2), *second = load(sets, 3);
    CHECK_INT(train(tdm_job_document_job(plain), NULL, &l, &fresh, &err), TDM_OK);
    CHECK_INT(train(tdm_job_document_job(second), NULL, &l, &tuned, &err), TDM_OK);
    CHECK_NEAR(tuned.test.loss, r.test.loss, 1e-4); /* as good as the run it started from */
    CHECK(fabs(fresh.test.loss - r.test.loss) > 1e-3);
    tdm_job_document_destroy(second);
    tdm_job_document_destroy(plain);
    tdm_job_document_destroy(document);
}

/* A checkpoint with valid hashes whose position no run of this job reaches. */
static void forged_positions_are_refused(void)
{
    tdm_job_document *document = load(NULL, 0);
    const tdm_job *job = tdm_job_document_job(document);
    static const tdm_position forged[] = {
        {.step = 9, .epoch = 2, .position = 1, .samples = 97, .seed = 3},
        {.step = 9, .epoch = 2, .position = 48, .samples = 144, .seed = 3},
        {.step = 9, .epoch = 2, .position = UINT64_MAX - 13, .samples = 110, .seed = 3},
        {.step = 10, .epoch = 2, .position = 14, .samples = 110, .seed = 3},
        {.step = 9, .epoch = 2, .position = 14, .samples = 111, .seed = 3},
        {.step = 9, .epoch = UINT64_MAX / 2, .position = 14, .samples = 110, .seed = 3},
        {.step = 9, .epoch = 2, .position = 14, .samples = 110, .seed = 4},
        {.step = 9, .epoch = 2, .position = 14, .samples = 110, .seed = 3}, /* the right one */
    };
    size_t count = sizeof(forged) / sizeof(forged[0]);
    for (size_t i = 0; i < count; i++) {
        listener l = listening();
        l.stop_at = 9;
        tdm_train_result r, again;
        tdm_error err = {0};
        CHECK_INT(train(job, NULL, &l, &r, &err), TDM_OK);
        tdm_checkpoint *checkpoint = NULL;
        CHECK_INT(tdm_checkpoint_open(r.checkpoint_path, &checkpoint, &err), TDM_OK);
        tdm_checkpoint_content content = *tdm_checkpoint_content_of(checkpoint);
        content.position = forged[i];
        CHECK_INT(tdm_checkpoint_save(r.checkpoint_path, &content, &err), TDM_OK);
        tdm_checkpoint_destroy(checkpoint);
        l = listening();
        bool right = i + 1 == count;
        CHECK_INT(train(job, r.run_path, &l, &again, &err), right ? TDM_OK : TDM_ERR_FORMAT);
        if (!right) CHECK_HAS(err.message, "is impossible in this job");
        if (right) CHECK_TEXT(again.state_hash, whole_hash(job));
    }
    tdm_job_document_destroy(document);
}

/* ---- requests ------------------------------------------------------------------------------ */

/* A request for a checkpoint shortly after a scheduled one. */
typedef struct asker {
    uint64_t step,
        saved[2]; /* the last step; the steps of the first two checkpoints, 0: none yet */
    bool has_asked;
} asker;

static void hear(const tdm_train_status *s, void *user)
{
    asker *a = user;
    a->step = s->step;
    if (s->event == TDM_TRAIN_EVENT_CHECKPOINT && a->saved[1] == 0)
        a->saved[a->saved[0] != 0] = s->step;
}

static bool ask(void *user)
{
    asker *a = user;
    bool asks = a->saved[0] != 0 && !a->has_asked;
    a->has_asked = a->has_asked || asks;
    return asks;
}

/* Without an answer it ends with a checkpoint some steps later. */
static bool has_heard_enough(void *user)
{
    const asker *a = user;
    return a->saved[1] != 0 || (a->saved[0] != 0 && a->step >= a->saved[0] + 20);
}

static void a_request_right_after_a_due_checkpoint_counts(void)
{
    static const char *const sets[] = {"checkpoint.every_minutes=0.001",
                                       "checkpoint.every_steps=never", "train.epochs=1000000",
                                       "eval.every_epochs=never", "run.log_every_steps=1000"};
    tdm_job_document *document = load(sets, sizeof(sets) / sizeof(sets[0]));
    asker a = {0};
    tdm_train_options options = {
        .on_event = hear, .should_stop = has_heard_enough, .should_save = ask, .user = &a};
    tdm_train_result r;
    CHECK_INT(tdm_train(tdm_job_document_job(document), &options, &r, NULL), TDM_OK);
    CHECK(a.has_asked);
    CHECK_INT(a.saved[1], a.saved[0] + 1);
    tdm_job_document_destroy(document);
}

static const check_test tests[] = {
    CHECK_TEST(events_arrive_in_order),
    CHECK_TEST(nothing_needs_to_be_asked_for),
    CHECK_TEST(every_step_is_a_place_to_stop),
    CHECK_TEST(other_versions_are_reported),
    CHECK_TEST(a_finished_run_has_nothing_to_do),
    CHECK_TEST(refusals_leave_the_result_alone),
    CHECK_TEST(checkpoints_on_the_way_may_fail),
    CHECK_TEST(a_stop_after_a_failed_checkpoint_fails),
    CHECK_TEST(the_last_checkpoint_is_tried_again),
    CHECK_TEST(the_last_checkpoint_is_given_up),
    CHECK_TEST(every_operation_may_fail),
    CHECK_TEST(data_is_shared_after_a_death),
    CHECK_TEST(models_open_from_what_was_written),
    CHECK_TEST(parameters_are_read_from_a_file),
    CHECK_TEST(forged_positions_are_refused),
    CHECK_TEST(a_request_right_after_a_due_checkpoint_counts),
};

static bool write_data(void)
{
    char path[64];
    snprintf(path, sizeof(path), "%s/data.csv", directory);
    FILE *file = fopen(path, "w");
    if (!file) return false;
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 4, .stream = TDM_RNG_STREAM_USER});
    for (int i = 0; i < SAMPLES; i++) {
        for (int k = 0; k < 4; k++)
            fprintf(file, "%.3f,", (double)tdm_rng_uniform(&rng) + (k == i % 3 ? 0.7 : 0));
        fprintf(file, "%d\n", i % 3);
    }
    return fclose(file) == 0;
}

int main(int argc, char **argv)
{
    directory = check_dir();
    if (!write_data()) {
        perror(directory);
        return 1;
    }
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
