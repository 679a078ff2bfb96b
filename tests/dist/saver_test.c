/*
 * saver_test.c: checkpoints that are written while training continues, in worlds of real processes.
 *
 * The file is that of a single process, byte for byte, for any writer of each part; the state may change as
 * soon as begin has returned. Disks that fail, gates that refuse, ranks that cannot access the directory, ranks
 * that die during a save, and saves that are abandoned leave only the last good file.
 *
 *     saver_test                 all tests
 *     saver_test --rank TASK     is a rank of a world, started by the test
 *
 * The model has more numbers than one chunk, and names whose order is not that of the file. The test is linked
 * with the internal libraries of the modules, because the saver is not part of the public interface.
 */
#include "dist/world.h"
#include "os/os.h"
#include "train/saver_job.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/stat.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOW = 1, WIDTH_1 = 300, WIDTH_2 = 300 };
#else
enum { SLOW = 0, WIDTH_1 = 700, WIDTH_2 = 900 };
#endif

enum { MAX_PATH = 300, STEP = 7, FEATURES = 5 };

static const char job_text[] = "name: s\n"
                               "data: {train: %s/data.csv}\n"
                               "layers:\n"
                               "  - linear: %d\n"
                               "  - batch_norm\n"
                               "  - relu\n"
                               "  - linear: %d\n"
                               "train: {batch: 24, steps: 6, bad_numbers: skip}\n"
                               "optim: {kind: adamw, ema: 0.9}\n"
                               "parallel: {zero: %d}\n";

/* ---- a state ---------------------------------------------------------------------------------- */

typedef struct fixture {
    tdm_comm *comm;
    tdm_job_document *document;
    tdm__state state;
    tdm__saver *saver;
    const char *directory;
    char path[MAX_PATH];
    tdm_checkpoint_content content;
    atomic_int asked; /* number of calls of the gate */
    tdm_status answer;
} fixture;

static int number_in_environment(const char *name)
{
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

static tdm_status may_commit(void *user, tdm_error *err)
{
    fixture *f = user;
    atomic_fetch_add(&f->asked, 1);
    if (f->answer == TDM_OK) return TDM_OK;
    return tdm_fail(err, f->answer, "the gate says no");
}

/* A different number for every element of every block. */
static void fill_blocks(tdm__state *state, float scale)
{
    enum { WINDOW = 10000 };
    static float window[WINDOW];
    for (int block = 0; block < TDM_BLOCK_STATE + TDM_OPTIM_MAX_STATES; block++) {
        if (!tdm_params_block(state->store, block)) continue;
        size_t elements = block < TDM_BLOCK_STATE ? tdm_graph_param_extent(state->graph)
                                                  : tdm_graph_trained_extent(state->graph);
        for (size_t first = 0; first < elements; first += WINDOW) {
            size_t count = elements - first < WINDOW ? elements - first : WINDOW;
            for (size_t i = 0; i < count; i++)
                window[i] = scale * (float)((first + i) * 7 + (size_t)block);
            const float *in = tdm__rank_of(state->comm) == 0 ? window : NULL;
            CHECK_INT(tdm_params_write(state->store, block, first, count, in, NULL), TDM_OK);
        }
    }
    state->skips = (tdm__skips){.in_a_row = 1, .in_all = 2};
    CHECK_INT(tdm_params_settle(state->store, NULL), TDM_OK);
}

/* How a save is made. */
typedef enum way { FOREGROUND, BACKGROUND, LAZY } way;

static bool set_up(fixture *f, tdm_comm *comm, int zero, way how)
{
    char text[1024];
    tdm_error err = {0};
    int length = snprintf(text, sizeof(text), job_text, getenv("SAVER_DATA"), WIDTH_1, WIDTH_2,
                          zero);
    *f = (fixture){.comm = comm, .directory = getenv("SAVER_DIRECTORY")};
    tdm_status status = tdm_job_parse(text, (size_t)length, "job", NULL, NULL, &f->document, &err);
    CHECK_INT(status, TDM_OK);
    if (status != TDM_OK) fprintf(stderr, "%s\n", err.message);
    if (status != TDM_OK) return false;
    tdm_model_options model = {.job = tdm_job_document_job(f->document),
                               .sample_shape = tdm_shape_1(FEATURES),
                               .class_count = 3};
    CHECK_INT(tdm__state_init(&model, TDM__STATE_FOR_TRAINING, comm, &f->state, &err), TDM_OK);
    if (!f->state.store) fprintf(stderr, "%s\n", err.message);
    if (!f->state.store) return false;
    fill_blocks(&f->state, 0.5f);
    snprintf(f->path, sizeof(f->path), "%s/step-%012d.safetensors", f->directory, STEP);
    f->content = (tdm_checkpoint_content){.position = {.step = STEP, .samples = 100, .seed = 1},
                                          .job_hash = "abc",
                                          .job_yaml = "name: s\n",
                                          .sample_shape = tdm_shape_1(FEATURES)};
    tdm__saver_options options = {.state = &f->state,
                                  .background = how != FOREGROUND,
                                  .lazy = how == LAZY,
                                  .gate = {may_commit, f},
                                  .retention = {.keep = 2}};
    CHECK_INT(tdm__saver_create(&options, &f->saver, &err), TDM_OK);
    return f->saver != NULL;
}

static void tear_down(fixture *f)
{
    tdm__saver_destroy(f->saver);
    tdm__state_release(&f->state);
    tdm_job_document_destroy(f->document);
}

static tdm_status try_to_begin(fixture *f, tdm_error *err)
{
    const char *bad = NULL;
    tdm__save what = {.path = f->path, .content = &f->content, .metrics = {NAN, NAN}};
    tdm_status status = tdm__saver_begin(f->saver, &what, &bad, err);
    CHECK(bad == NULL);
    return status;
}

static void begin(fixture *f)
{
    tdm_error err = {0};
    tdm_status status = try_to_begin(f, &err);
    CHECK_INT(status, TDM_OK);
    if (status != TDM_OK) fprintf(stderr, "begin: %s\n", err.message);
}

static tdm__saved finish(fixture *f)
{
    bool has = false;
    tdm__saved saved = {.status = TDM_ERR_INTERNAL};
    CHECK_INT(tdm__saver_finish(f->saver, &has, &saved, NULL), TDM_OK);
    CHECK(has);
    return saved;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static void task_save(tdm_comm *comm, way how)
{
    fixture f;
    if (!set_up(&f, comm, number_in_environment("SAVER_ZERO"), how)) return;
    begin(&f);
    f.state.skips = (tdm__skips){0}; /* small tensors may change at once */
    if (how == LAZY) tdm__saver_hold(f.saver);
    if (how != FOREGROUND && tdm_params_is_whole(f.state.store, TDM_BLOCK_EMA))
        fill_blocks(&f.state, -3.0f); /* training continues */
    tdm__saved saved = finish(&f);
    CHECK_INT(saved.status, TDM_OK);
    if (saved.status != TDM_OK) fprintf(stderr, "%s\n", saved.message);
    CHECK_INT(saved.step, tdm__rank_of(comm) == 0 ? STEP : saved.step);
    CHECK_INT(strlen(saved.state_hash), TDM_SHA256_HEX - 1);
    if (tdm__rank_of(comm) == 0) CHECK_INT(f.asked, 1);
    tear_down(&f);
}

/* Results one after the other by poll, and a checkpoint that is due while another one is being written. */
static void task_poll(tdm_comm *comm, way how)
{
    fixture f;
    if (!set_up(&f, comm, 0, how)) return;
    tdm__saved saved;
    CHECK(!tdm__saver_poll(f.saver, &saved));
    for (int i = 0; i < 4; i++) {
        f.content.position.step = (uint64_t)STEP + (uint64_t)i;
        snprintf(f.path, sizeof(f.path), "%s/step-%012d.safetensors", f.directory, STEP + i);
        begin(&f);
    }
    int results = 0;
    bool leads = tdm__rank_of(comm) == 0;
    double until = tdm_clock_s() + 60;
    while (tdm__saver_busy(f.saver) && tdm_clock_s() < until) {
        while (tdm__saver_poll(f.saver, &saved)) results++;
        usleep(1000);
    }
    while (tdm__saver_poll(f.saver, &saved)) results++;
    CHECK(!tdm__saver_busy(f.saver));
    if (leads) { /* at most two are kept if no result is read */
        CHECK(results >= 2);
        CHECK_INT(saved.step, STEP + 3);
        CHECK_INT(saved.status, TDM_OK);
        tdm_checkpoint_entry *entries = NULL;
        size_t count = 0;
        tdm_arena *arena = tdm_arena_create("test");
        CHECK_INT(tdm_checkpoint_list(f.directory, arena, &entries, &count, NULL), TDM_OK);
        CHECK_INT(count, 2); /* according to the rules */
        tdm_arena_destroy(arena);
    }
    tear_down(&f);
}

static int files_in(const char *directory, bool with_hidden)
{
    tdm_arena *arena = tdm_arena_create("test");
    const char *const *names = NULL;
    size_t count = 0;
    int found = 0;
    CHECK_INT(tdm_dir_list(directory, arena, &names, &count, NULL), TDM_OK);
    for (size_t i = 0; i < count; i++) found += with_hidden || names[i][0] != '.';
    tdm_arena_destroy(arena);
    return found;
}

/* A rank that cannot join leaves its part to rank 0, which copies that part as well. The rank continues
 * training as soon as the others do, and nothing that it changes then is written to the file. */
static void leave_part_to_rank_0(fixture *f, const char *expected)
{
    int rank = tdm__rank_of(f->comm), size = tdm__size_of(f->comm);
    if (rank == size - 1) tdm_os_test_fail_files(TDM_FAULT_OPEN, 1, EACCES);
    begin(f);
    tdm__saver_hold(f->saver);
    for (int block = 0; size > 1 && rank == size - 1 && block < TDM_BLOCK_STATE; block++) {
        float *numbers = tdm_params_block(f->state.store, block);
        for (size_t i = tdm_graph_param_extent(f->state.graph); i > 0; i--) numbers[i - 1] = -1;
    }
    tdm__saved saved = finish(f);
    tdm_os_test_fail_files(0, 0, 0);
    CHECK_INT(saved.status, size > 1 ? TDM_OK : TDM_ERR_IO);
    if (size > 1) CHECK_TEXT(saved.state_hash, expected);
    fill_blocks(&f->state, 0.5f);
}

/* Failures in which no rank dies: after each of them all ranks continue. */
static void task_trouble(tdm_comm *comm, way how)
{
    fixture f;
    if (!set_up(&f, comm, 0, how)) return;
    int rank = tdm__rank_of(comm), size = tdm__size_of(comm);
    begin(&f);
    tdm__saved saved = finish(&f), good = saved;
    CHECK_INT(good.status, TDM_OK);
    f.answer = TDM_ERR_PEER_FENCED;
    begin(&f);
    saved = finish(&f);
    CHECK_INT(saved.status, TDM_ERR_PEER_FENCED);
    CHECK_HAS(saved.message, "the gate says no");
    f.answer = TDM_OK;
    for (int victim = 0; victim < size; victim++) {
        if (rank == victim) tdm_os_test_fail_files(TDM_FAULT_WRITE, 1, ENOSPC);
        begin(&f);
        saved = finish(&f);
        tdm_os_test_fail_files(0, 0, 0);
        CHECK_INT(saved.status, TDM_ERR_NO_SPACE);
        CHECK_HAS(saved.message, "No space left");
    }
    leave_part_to_rank_0(&f, good.state_hash);
    char was[MAX_PATH];
    memcpy(was, f.path, sizeof(was));
    snprintf(f.path, sizeof(f.path), "%s/none/step-%012d.safetensors", f.directory, STEP);
    begin(&f);
    CHECK_INT(finish(&f).status, TDM_ERR_NOT_FOUND);
    memcpy(f.path, was, sizeof(was));
    /* A number that is not finite, in the part of any rank. */
    const char *bad = NULL;
    if (rank == size - 1) tdm_params_block(f.state.store, TDM_BLOCK_EMA)[3] = NAN;
    tdm__save what = {.path = f.path, .content = &f.content, .metrics = {NAN, NAN}};
    CHECK_INT(tdm__saver_begin(f.saver, &what, &bad, NULL), TDM_OK);
    if (how == LAZY) {
        saved = finish(&f);
        CHECK_INT(saved.status, TDM_ERR_DIVERGED);
        CHECK_HAS(saved.message, "'ema.");
    } else {
        CHECK(bad != NULL);
        if (bad) CHECK_HAS(bad, "ema.");
        CHECK(!tdm__saver_busy(f.saver));
    }
    if (rank == 0) CHECK_INT(files_in(f.directory, true), 1);
    tear_down(&f);
}

/* Abandoned at once, repeatedly: no file appears, and nothing is left after a while. */
static void task_abandon(tdm_comm *comm, way how)
{
    fixture f;
    if (!set_up(&f, comm, 0, how)) return;
    f.answer = TDM_ERR_PEER_FENCED; /* so that even a fast disk does not complete a file */
    for (int i = 0; i < 5; i++) {
        begin(&f);
        tdm__saver_abandon(f.saver);
        CHECK(!tdm__saver_busy(f.saver));
        tdm__saved saved;
        CHECK(!tdm__saver_poll(f.saver, &saved));
        if (comm) CHECK_INT(tdm_group_barrier(tdm_comm_world(comm), NULL), TDM_OK);
    }
    CHECK_INT(files_in(f.directory, false), 0);
    double until = tdm_clock_s() + 60;
    while (tdm__rank_of(comm) == 0 && files_in(f.directory, true) > 0 && tdm_clock_s() < until)
        usleep(1000);
    CHECK_INT(tdm__rank_of(comm) == 0 ? files_in(f.directory, true) : 0, 0);
    if (comm) CHECK_INT(tdm_group_barrier(tdm_comm_world(comm), NULL), TDM_OK);
    tear_down(&f);
}

/* Rank 0's save ends by itself, with an error about the death, and without a file. */
static void outlive(fixture *f)
{
    tdm__saved saved = {.status = TDM_OK};
    double until = tdm_clock_s() + 60;
    bool has = false;
    tdm__saver_hold(f->saver); /* no rank waits for the dead one */
    while (!(has = tdm__saver_poll(f->saver, &saved)) && tdm_clock_s() < until) usleep(1000);
    CHECK(has);
    CHECK(tdm_status_group_of(saved.status) == TDM_STATUS_GROUP_PEER);
    CHECK_INT(files_in(f->directory, true), 0);
}

/* It died before rank 0 began: begin returns the error at once. */
static void give_up(fixture *f, tdm_status status)
{
    double until = tdm_clock_s() + 60;
    CHECK(tdm_status_group_of(status) == TDM_STATUS_GROUP_PEER);
    tdm__saver_abandon(f->saver);
    while (files_in(f->directory, true) > 0 && tdm_clock_s() < until) usleep(1000);
    CHECK_INT(files_in(f->directory, true), 0);
}

/* The last rank dies in the middle of writing its part, concurrently with its training. */
static void task_death(tdm_comm *comm, way how)
{
    fixture f;
    if (tdm__rank_of(comm) == tdm__size_of(comm) - 1) {
        char request[64];
        snprintf(request, sizeof(request), "%s:part=1:rank=%d",
                 how == LAZY ? "snapshot" : "checkpoint", tdm__rank_of(comm));
        setenv("TANDEM_TEST_KILL", request, 1);
    }
    if (!set_up(&f, comm, 0, how)) return;
    tdm_status status = try_to_begin(&f, NULL);
    if (tdm__rank_of(comm) != 0)
        sleep(60); /* until it dies, or rank 0 has detected the death */
    else if (status == TDM_OK)
        outlive(&f);
    else
        give_up(&f, status);
    tear_down(&f);
}

static void rank_task(tdm_comm *comm, const char *what)
{
    way how = number_in_environment("SAVER_WAY");
    if (strcmp(what, "save") == 0) task_save(comm, how);
    if (strcmp(what, "poll") == 0) task_poll(comm, how);
    if (strcmp(what, "trouble") == 0) task_trouble(comm, how);
    if (strcmp(what, "abandon") == 0) task_abandon(comm, how);
    if (strcmp(what, "death") == 0) task_death(comm, how);
}

/* ---- the test -------------------------------------------------------------------------------- */

static const char *directory;

static void make_directory(void)
{
    directory = check_dir();
    setenv("SAVER_DATA", directory, 1);
    check_write("data.csv", "1,2,3,4,5,0\n"); /* named by the job; never read */
}

/* A world with a separate directory. */
static const char *in_world(const char *task, way how, const char *hosts, int zero)
{
    static char path[MAX_PATH];
    static int number;
    char text[16];
    snprintf(path, sizeof(path), "%s/%d", directory, number++);
    CHECK_INT(mkdir(path, 0755), 0);
    snprintf(text, sizeof(text), "%d", zero);
    setenv("SAVER_ZERO", text, 1);
    setenv("SAVER_DIRECTORY", path, 1);
    setenv("SAVER_WAY", (const char *[]){"0", "1", "2"}[how], 1);
    int victim = strcmp(task, "death") == 0 ? (int)strlen(hosts) : 0;
    world_run(&(world){.what = task, .hosts = hosts, .victim = victim});
    return path;
}

static void hash_of(const char *where, char hex[TDM_SHA256_HEX])
{
    char path[MAX_PATH + 64];
    tdm_file_bytes bytes = {0};
    snprintf(path, sizeof(path), "%s/step-%012d.safetensors", where, STEP);
    CHECK_INT(tdm_file_read(path, 0, &bytes, NULL), TDM_OK);
    CHECK_INT(tdm_sha256_of(bytes.data, bytes.count, hex), TDM_OK);
    tdm_file_bytes_release(&bytes);
    tdm_checkpoint *checkpoint = NULL;
    CHECK_INT(tdm_checkpoint_open(path, &checkpoint, NULL), TDM_OK);
    tdm_checkpoint_destroy(checkpoint);
    CHECK_INT(files_in(where, true), 1);
}

static void test_same_bytes(void)
{
    char one[TDM_SHA256_HEX], other[TDM_SHA256_HEX];
    hash_of(in_world("save", FOREGROUND, "a", 0), one);
    static const struct {
        way how;
        const char *hosts;
        int zero;
        bool slow;
    } cases[] = {
        {BACKGROUND, "a", 0, true},     {BACKGROUND, "aa", 0, true},  {LAZY, "aaaa", 3, false},
        {BACKGROUND, "aaaa", 3, false}, {FOREGROUND, "aaa", 1, true}, {LAZY, "ab", 0, true},
        {BACKGROUND, "aab", 1, false},  {LAZY, "aab", 3, true},       {LAZY, "a", 0, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (SLOW && cases[i].slow) continue;
        hash_of(in_world("save", cases[i].how, cases[i].hosts, cases[i].zero), other);
        CHECK_TEXT(one, other);
    }
}

static void test_poll(void)
{
    in_world("poll", BACKGROUND, "aa", 0);
    in_world("poll", LAZY, "aa", 0);
}

static void test_trouble(void)
{
    in_world("trouble", BACKGROUND, "a", 0);
    in_world("trouble", LAZY, "aaa", 0);
    if (!SLOW) in_world("trouble", BACKGROUND, "aaa", 0);
}

static void test_abandon(void)
{
    in_world("abandon", LAZY, "a", 0);
    in_world("abandon", LAZY, "aaa", 0);
    if (!SLOW) in_world("abandon", BACKGROUND, "aaa", 0);
}

static void test_death(void)
{
    in_world("death", BACKGROUND, "aa", 0);
    in_world("death", LAZY, "aa", 0);
}

/* A writer fails before the copy is made: the state may be freed then, so it must not be read any more. Here
 * its memory is not readable: an access would end the test. */
static void test_cut_short(void)
{
    enum { PIECES = 3, BYTES = 4096 };
    tdm__saver_board *board = calloc(1, sizeof(*board) + (size_t)PIECES * TDM_SHA256_HEX);
    char *gone = mmap(NULL, (size_t)PIECES * BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    tdm__saver_job *job = tdm__saver_job_create();
    CHECK(board && gone != MAP_FAILED && job);
    if (!board || gone == MAP_FAILED || !job) return;
    board->failed = 1;
    CHECK_INT(tdm_pages_map((size_t)PIECES * BYTES, false, &job->copy, NULL), TDM_OK);
    job->pieces = tdm_arena_array(job->arena, PIECES, sizeof(*job->pieces));
    job->floats = tdm_arena_array(job->arena, PIECES, sizeof(*job->floats));
    job->names = tdm_arena_array(job->arena, PIECES, sizeof(*job->names));
    job->piece_count = PIECES;
    for (size_t i = 0; i < PIECES; i++)
        job->pieces[i] = (tdm__saver_piece){
            .chunk = i, .bytes = gone + i * BYTES, .count = BYTES, .copy_at = i * BYTES};
    job->board = board;
    job->writer_count = 2;
    job->writer_index = 1;
    job->rank = 1;
    job->phase = TDM__SAVER_COPYING;
    job->must_hold = true;
    tdm__saver_job_run(job);
    CHECK(tdm__saver_job_ended(job));
    CHECK_INT(board->done, 0);
    CHECK_INT(board->copied, 1);
    tdm__saver_job_abandon(job);
    CHECK_INT(munmap(gone, (size_t)PIECES * BYTES), 0);
    free(board);
}

/* A rank whose part is written at once must still wait in hold: another writer may not have copied the state
 * yet. */
static void test_ended_before_the_copies(void)
{
    tdm__saver_board *board = calloc(1, sizeof(*board));
    tdm__saver_job *job = tdm__saver_job_create();
    CHECK(board && job);
    if (!board || !job) return;
    job->board = board;
    job->writer_count = 2;
    job->phase = TDM__SAVER_COPYING;
    job->must_hold = true;
    tdm__saver_job_run(job);
    CHECK_INT(board->copied, 1);
    CHECK(!tdm__saver_job_ended(job));
    board->copied = 2;
    CHECK(tdm__saver_job_ended(job));
    board->copied = 1;
    job->must_hold = false; /* as after tdm__saver_hold */
    CHECK(tdm__saver_job_ended(job));
    tdm__saver_job_abandon(job);
    free(board);
}

/* Memory that was prepared is complete, and belongs to one user only: less than a slice, some slices and a
 * part, more than was prepared, and memory that another save has returned. */
static void test_room(void)
{
    static const size_t prepared[] = {3, 33, 33}, taken[] = {3, 33, 50};
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++) {
        size_t bytes = (taken[i] << 20) - 5;
        tdm_pages pages = {0}, other = {0};
        tdm__snapshot_pool *room = tdm__snapshot_pool_create();
        CHECK(room != NULL);
        if (!room) return;
        tdm__snapshot_pool_prepare(room, (prepared[i] << 20) - 5);
        CHECK_INT(tdm__snapshot_pool_take(room, bytes, &pages, NULL), TDM_OK);
        CHECK(pages.data && pages.bytes >= bytes);
        if (!pages.data) return;
        tdm__snapshot_pool_prepare(room, bytes); /* for the next one, while this one is in use */
        memset(pages.data, 'a', pages.bytes);
        CHECK_INT(tdm__snapshot_pool_take(room, bytes, &other, NULL), TDM_OK);
        CHECK(other.data && other.data != pages.data);
        CHECK(memchr(pages.data, 0, pages.bytes) == NULL);
        void *given = pages.data;
        tdm__snapshot_pool_give(room, &pages);
        CHECK(!pages.data);
        CHECK_INT(tdm__snapshot_pool_take(room, bytes, &pages, NULL), TDM_OK);
        CHECK(pages.data == given);
        tdm_pages_unmap(&pages);
        tdm_pages_unmap(&other);
        tdm__snapshot_pool_prepare(room, bytes);
        tdm__snapshot_pool_destroy(room); /* the thread may be running */
    }
}

static const check_test tests[] = {
    CHECK_TEST(test_same_bytes),
    CHECK_TEST(test_poll),
    CHECK_TEST(test_trouble),
    CHECK_TEST(test_abandon),
    CHECK_TEST(test_death),
    CHECK_TEST(test_cut_short),
    CHECK_TEST(test_ended_before_the_copies),
    CHECK_TEST(test_room),
};

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--rank") == 0) return world_be_a_rank(rank_task, argv[2]);
    make_directory();
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
