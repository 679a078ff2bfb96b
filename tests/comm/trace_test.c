/*
 * trace_test.c: the recorder's ring and its file: what was recorded is read back, in order, also when
 * the ring went round, when many threads write, when the writer was killed, and when the file is
 * damaged; and what `tandem trace` makes of it.
 */
#include "check.h"
#include "comm/recorder.h"
#include "comm/trace_file.h"

#include <tandem/os.h>

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { KILLS = 4, THREAD_EVENTS = 5000 };
#else
enum { KILLS = 20, THREAD_EVENTS = 50000 };
#endif
enum { THREADS = 4 };

/* A folder of its own for each test, removed with all that is in it. */
typedef struct folder {
    char path[64];
} folder;

static folder make_folder(void)
{
    folder f;
    snprintf(f.path, sizeof f.path, "/tmp/tandem-trace-XXXXXX");
    CHECK(mkdtemp(f.path) != NULL);
    return f;
}

static void remove_folder(const folder *f)
{
    tdm_arena *arena = tdm_arena_create("test");
    const char *const *names;
    size_t count = 0;
    CHECK_INT(tdm_dir_list(f->path, arena, &names, &count, NULL), TDM_OK);
    for (size_t i = 0; i < count; i++) {
        char *path = tdm_path_join(arena, f->path, names[i]);
        CHECK_INT(unlink(path), 0);
    }
    CHECK_INT(rmdir(f->path), 0);
    tdm_arena_destroy(arena);
}

static tdm__recorder *make_recorder(const char *dir, int rank, int size)
{
    tdm_error err = {0};
    tdm__recorder *recorder = NULL;
    tdm__recorder_options options = {
        .dir = dir, .rank = rank, .size = size, .epoch = 7, .transport = "shm"};
    tdm_status status = tdm__recorder_create(&options, &recorder, &err);
    if (status != TDM_OK) fprintf(stderr, "%s\n", err.message);
    CHECK_INT(status, TDM_OK);
    return recorder;
}

/* All words of an event follow from one number, so that a torn one is noticed. */
static tdm_trace_event numbered(uint64_t n)
{
    tdm_trace_event e = {.time_ns = n + 1,
                         .bytes = n * 3,
                         .detail = n * 5,
                         .group = (uint32_t)n,
                         .sequence = (uint32_t)n * 7u,
                         .peer = (int32_t)(n % 3),
                         .kind = TDM_TRACE_SEND,
                         .call = TDM_CALL_ALL_REDUCE,
                         .dtype = 1,
                         .step = (uint32_t)n * 11u};
    memcpy(e.text, &n, sizeof n);
    return e;
}

static bool is_numbered(const tdm_trace_event *e)
{
    tdm_trace_event want = numbered(e->time_ns - 1);
    return memcmp(e, &want, sizeof want) == 0;
}

static tdm__trace_parsed parse_file(const char *path)
{
    tdm__trace_parsed parsed = {.boot = ""};
    tdm_file_bytes bytes;
    tdm_error err = {0};
    CHECK_INT(tdm_file_read(path, 0, &bytes, &err), TDM_OK);
    CHECK_INT(tdm__trace_parse(bytes.data, bytes.count, path, &parsed, &err), TDM_OK);
    tdm_file_bytes_release(&bytes);
    return parsed;
}

static void test_ring_goes_round(void)
{
    static const size_t counts[] = {0, 1, 4095, 4096, 4097, 3 * 4096 + 5};
    folder f = make_folder();
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        tdm__recorder *recorder = make_recorder(f.path, 2, 3);
        for (size_t n = 0; n < counts[i]; n++) tdm__record(recorder, numbered(n));
        tdm__trace_parsed p = parse_file(tdm__recorder_path(recorder));
        size_t want = counts[i] < TDM_TRACE_EVENTS ? counts[i] : TDM_TRACE_EVENTS;
        CHECK_INT(p.rank.event_count, want);
        CHECK_INT(p.rank.lost_count, counts[i] - want);
        CHECK(!p.rank.closed);
        size_t good = 0;
        for (size_t n = 0; n < p.rank.event_count; n++)
            good += is_numbered(&p.rank.events[n]) &&
                    p.rank.events[n].time_ns == counts[i] - want + n + 1;
        CHECK_INT(good, want);
        free((void *)(uintptr_t)p.rank.events);
        tdm__recorder_destroy(recorder);
    }
    char path[128];
    snprintf(path, sizeof path, "%s/rank-00002.trace", f.path);
    tdm__trace_parsed p = parse_file(path);
    CHECK(p.rank.closed);
    CHECK_INT(p.rank.rank, 2);
    CHECK_INT(p.rank.size, 3);
    CHECK_INT(p.rank.epoch, 7);
    CHECK_INT(p.rank.pid, getpid());
    CHECK_TEXT(p.rank.transport, "shm");
    double offset_s = (double)p.rank.unix_offset_ns * 1e-9;
    CHECK_NEAR(offset_s, tdm_clock_unix_s() - tdm_clock_s(), 1.0);
    free((void *)(uintptr_t)p.rank.events);
    remove_folder(&f);
}

static void *record_many(void *user)
{
    for (uint64_t n = 0; n < THREAD_EVENTS; n++) tdm__record(user, numbered(n));
    return NULL;
}

/* While four threads write, every event that is read is whole; and at rest none is missing. */
static void test_many_threads(void)
{
    folder f = make_folder();
    tdm__recorder *recorder = make_recorder(f.path, 0, 3);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, record_many, recorder), 0);
    size_t torn = 0;
    char last[256];
    for (int round = 0; round < 10; round++) {
        CHECK_INT(tdm__recorder_dump(recorder, f.path, NULL), TDM_OK);
        tdm__recorder_last(recorder, last, sizeof last);
    }
    char copies[96];
    snprintf(copies, sizeof copies, "%s/copies", f.path);
    for (int round = 0; round < 5; round++) {
        CHECK_INT(tdm__recorder_dump(recorder, copies, NULL), TDM_OK);
        char path[128];
        snprintf(path, sizeof path, "%s/rank-00000.trace", copies);
        tdm__trace_parsed p = parse_file(path);
        for (size_t n = 0; n < p.rank.event_count; n++) torn += !is_numbered(&p.rank.events[n]);
        free((void *)(uintptr_t)p.rank.events);
        unlink(path);
    }
    rmdir(copies);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    CHECK_INT(torn, 0);
    tdm__trace_parsed p = parse_file(tdm__recorder_path(recorder));
    CHECK_INT(p.rank.event_count + p.rank.lost_count, THREADS * THREAD_EVENTS);
    for (size_t n = 0; n < p.rank.event_count; n++) torn += !is_numbered(&p.rank.events[n]);
    CHECK_INT(torn, 0);
    free((void *)(uintptr_t)p.rank.events);
    tdm__recorder_destroy(recorder);
    remove_folder(&f);
}

static void test_killed_writer(void)
{
    folder f = make_folder();
    for (int kill_index = 0; kill_index < KILLS; kill_index++) {
        int ready[2];
        CHECK_INT(pipe(ready), 0);
        pid_t pid = fork();
        if (pid == 0) {
            tdm__recorder *recorder = make_recorder(f.path, 1, 3);
            for (uint64_t n = 0;; n++) {
                tdm__record(recorder, numbered(n));
                if (n == 100 && write(ready[1], "x", 1) != 1) _exit(1);
            }
        }
        close(ready[1]);
        char byte;
        CHECK_INT(read(ready[0], &byte, 1), 1);
        close(ready[0]);
        usleep((useconds_t)(kill_index * 97 % 1000));
        kill(pid, SIGKILL);
        CHECK_INT(waitpid(pid, NULL, 0), pid);
        char path[128];
        snprintf(path, sizeof path, "%s/rank-00001.trace", f.path);
        tdm__trace_parsed p = parse_file(path);
        uint64_t begun = p.rank.event_count + p.rank.lost_count;
        CHECK(begun > 100);
        CHECK(p.rank.event_count >= 100);
        CHECK(!p.rank.closed);
        CHECK_INT(p.rank.pid, pid);
        CHECK(tdm__trace_pid_start(pid) != p.pid_start);
        size_t good = 0;
        for (size_t n = 0; n < p.rank.event_count; n++)
            good += is_numbered(&p.rank.events[n]) &&
                    (n == 0 || p.rank.events[n].time_ns == p.rank.events[n - 1].time_ns + 1);
        CHECK_INT(good, p.rank.event_count);
        free((void *)(uintptr_t)p.rank.events);
    }
    remove_folder(&f);
}

static tdm_trace_event call_event(tdm_trace_kind kind, uint32_t sequence, int peer)
{
    return (tdm_trace_event){.kind = (uint8_t)kind,
                             .call = TDM_CALL_ALL_REDUCE,
                             .sequence = sequence,
                             .peer = peer,
                             .dtype = TDM_DTYPE_F32,
                             .bytes = 4000000};
}

static void test_last_act(void)
{
    tdm__recorder *recorder = make_recorder(NULL, 0, 8);
    CHECK(tdm__recorder_path(recorder) == NULL);
    char text[256];
    CHECK_TEXT(tdm__recorder_last(recorder, text, sizeof text), "has done nothing yet");
    tdm__record(recorder, (tdm_trace_event){.kind = TDM_TRACE_OPEN, .peer = -1});
    CHECK_TEXT(tdm__recorder_last(recorder, text, sizeof text),
               "is in no call; last: joined the world, 0.0 s ago");
    tdm__record(recorder, call_event(TDM_TRACE_BEGIN, 17, -1));
    tdm__record(recorder, call_event(TDM_TRACE_WAIT, 17, 2));
    tdm__record(recorder, call_event(TDM_TRACE_WAIT, 17, 3));
    tdm__record(recorder, call_event(TDM_TRACE_WAIT, 17, 5));
    tdm__record(recorder, call_event(TDM_TRACE_RESUME, 17, 3));
    CHECK_TEXT(tdm__recorder_last(recorder, text, sizeof text),
               "began all_reduce #17 of world: f32, 4.00 MB, 0.0 s ago, waits for ranks 2 and 5");
    tdm__record(recorder, call_event(TDM_TRACE_BEGIN, 18, -1));
    tdm__record(recorder, call_event(TDM_TRACE_END, 17, -1));
    CHECK_TEXT(tdm__recorder_last(recorder, text, sizeof text),
               "began all_reduce #18 of world: f32, 4.00 MB, 0.0 s ago");
    tdm_trace_event failed = call_event(TDM_TRACE_END, 18, -1);
    failed.status = TDM_ERR_PEER_TIMEOUT;
    tdm__record(recorder, failed);
    CHECK_HAS(tdm__recorder_last(recorder, text, sizeof text),
              "is in no call; last: ended all_reduce #18 of world with ");
    char tiny[8];
    CHECK_TEXT(tdm__recorder_last(recorder, tiny, sizeof tiny), "is in n");
    tdm_str lines = TDM_STR_INIT;
    tdm__recorder_text(recorder, 2, &lines);
    CHECK_HAS(tdm_str_text(&lines), " s ago  ended all_reduce #17 of world\n");
    tdm_str_release(&lines);
    tdm__recorder_destroy(recorder);
}

static void test_no_folder_no_disk(void)
{
    tdm_error err = {0};
    tdm__recorder *recorder = NULL;
    tdm__recorder_options options = {.dir = "/proc/no/such", .rank = 0, .size = 1};
    CHECK(tdm__recorder_create(&options, &recorder, &err) != TDM_OK);
    CHECK(recorder == NULL);
    CHECK_HAS(err.message, "/proc/no");
}

static const check_test tests[] = {
    CHECK_TEST(test_ring_goes_round),   CHECK_TEST(test_many_threads),
    CHECK_TEST(test_killed_writer),     CHECK_TEST(test_last_act),
    CHECK_TEST(test_no_folder_no_disk),
};
CHECK_MAIN(tests)
