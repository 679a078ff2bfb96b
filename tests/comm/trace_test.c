/*
 * trace_test.c: the recorder's ring and its file: events are read back in order, also when the ring has wrapped
 * around, when many threads write, when the writer was killed, and when the file is damaged; and the output of
 * `tandem trace`.
 */
#include "base/base.h"
#include "check.h"
#include "trace/recorder.h"
#include "trace/trace.h"
#include "trace/trace_file.h"

#include <tandem/os.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { KILLS = 4, THREAD_EVENTS = 5000 };
#else
enum { KILLS = 20, THREAD_EVENTS = 50000 };
#endif
enum { THREADS = 4 };

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

/* All words of an event are computed from one number, so that a torn one is detected. */
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
    memcpy(e.text, &n, sizeof(n));
    return e;
}

static bool is_numbered(const tdm_trace_event *e)
{
    tdm_trace_event want = numbered(e->time_ns - 1);
    return memcmp(e, &want, sizeof(want)) == 0;
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
    const char *dir = check_dir();
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        tdm__recorder *recorder = make_recorder(dir, 2, 3);
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
    snprintf(path, sizeof(path), "%s/rank-00002.trace", dir);
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
}

static void *record_many(void *user)
{
    for (uint64_t n = 0; n < THREAD_EVENTS; n++) tdm__record(user, numbered(n));
    return NULL;
}

/* While four threads write, every event that is read is complete. Afterwards none is missing, except those
 * for which a thread was suspended in the middle of writing for a whole round of the ring: at most one for each
 * thread. */
static void test_many_threads(void)
{
    const char *dir = check_dir();
    tdm__recorder *recorder = make_recorder(dir, 0, 3);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, record_many, recorder), 0);
    size_t torn = 0;
    char last[256];
    for (int round = 0; round < 10; round++) {
        CHECK_INT(tdm__recorder_dump(recorder, dir, NULL), TDM_OK);
        tdm__recorder_last(recorder, last, sizeof(last));
    }
    char copies[96];
    snprintf(copies, sizeof(copies), "%s/copies", dir);
    for (int round = 0; round < 5; round++) {
        CHECK_INT(tdm__recorder_dump(recorder, copies, NULL), TDM_OK);
        char path[128];
        snprintf(path, sizeof(path), "%s/rank-00000.trace", copies);
        tdm__trace_parsed p = parse_file(path);
        for (size_t n = 0; n < p.rank.event_count; n++) torn += !is_numbered(&p.rank.events[n]);
        free((void *)(uintptr_t)p.rank.events);
        unlink(path);
    }
    rmdir(copies);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    CHECK_INT(torn, 0);
    tdm__trace_parsed p = parse_file(tdm__recorder_path(recorder));
    size_t known = p.rank.event_count + (size_t)p.rank.lost_count;
    CHECK(known <= THREADS * THREAD_EVENTS && known >= THREADS * THREAD_EVENTS - THREADS);
    for (size_t n = 0; n < p.rank.event_count; n++) torn += !is_numbered(&p.rank.events[n]);
    CHECK_INT(torn, 0);
    free((void *)(uintptr_t)p.rank.events);
    tdm__recorder_destroy(recorder);
}

static void test_killed_writer(void)
{
    const char *dir = check_dir();
    for (int kill_index = 0; kill_index < KILLS; kill_index++) {
        int ready[2];
        CHECK_INT(pipe(ready), 0);
        pid_t pid = fork();
        if (pid == 0) {
            tdm__recorder *recorder = make_recorder(dir, 1, 3);
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
        snprintf(path, sizeof(path), "%s/rank-00001.trace", dir);
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

static uint64_t still_clock(void *user)
{
    return *(uint64_t *)user;
}

static void test_last_act(void)
{
    uint64_t now = 5000000000u;
    tdm__recorder *recorder = NULL;
    tdm__recorder_options options = {.size = 8, .now_ns = still_clock, .user = &now};
    CHECK_INT(tdm__recorder_create(&options, &recorder, NULL), TDM_OK);
    CHECK(tdm__recorder_path(recorder) == NULL);
    char text[256];
    CHECK_TEXT(tdm__recorder_last(recorder, text, sizeof(text)), "has no events yet");
    tdm__record(recorder, (tdm_trace_event){.kind = TDM_TRACE_OPEN, .peer = -1});
    CHECK_TEXT(tdm__recorder_last(recorder, text, sizeof(text)),
               "is in no call; last: joined the world, 0.0 s ago");
    tdm__record(recorder, call_event(TDM_TRACE_BEGIN, 17, -1));
    tdm__record(recorder, call_event(TDM_TRACE_WAIT, 17, 2));
    tdm__record(recorder, call_event(TDM_TRACE_WAIT, 17, 3));
    tdm__record(recorder, call_event(TDM_TRACE_WAIT, 17, 5));
    tdm__record(recorder, call_event(TDM_TRACE_RESUME, 17, 3));
    now += 1200000000u;
    CHECK_TEXT(tdm__recorder_last(recorder, text, sizeof(text)),
               "began all_reduce #17 of world: f32, 4.00 MB, 1.2 s ago, waits for ranks 2 and 5");
    tdm__record(recorder, call_event(TDM_TRACE_BEGIN, 18, -1));
    tdm__record(recorder, call_event(TDM_TRACE_END, 17, -1));
    CHECK_TEXT(tdm__recorder_last(recorder, text, sizeof(text)),
               "began all_reduce #18 of world: f32, 4.00 MB, 0.0 s ago");
    tdm_trace_event failed = call_event(TDM_TRACE_END, 18, -1);
    failed.status = TDM_ERR_PEER_TIMEOUT;
    tdm__record(recorder, failed);
    CHECK_HAS(tdm__recorder_last(recorder, text, sizeof(text)),
              "is in no call; last: ended all_reduce #18 of world with ");
    char tiny[8];
    CHECK_TEXT(tdm__recorder_last(recorder, tiny, sizeof(tiny)), "is in n");
    tdm_str lines = TDM_STR_INIT;
    tdm__recorder_text(recorder, 2, &lines);
    CHECK_HAS(tdm_str_text(&lines), " s ago  ended all_reduce #17 of world\n");
    tdm_str_release(&lines);
    tdm__recorder_destroy(recorder);
}

static void test_no_directory_no_disk(void)
{
    tdm_error err = {0};
    tdm__recorder *recorder = NULL;
    tdm__recorder_options options = {.dir = "/proc/no/such", .rank = 0, .size = 1};
    CHECK(tdm__recorder_create(&options, &recorder, &err) != TDM_OK);
    CHECK(recorder == NULL);
    CHECK_HAS(err.message, "/proc/no");
}

/* ---- dumps on a signal ----------------------------------------------------------------------------- */

static atomic_int own_calls, dumps;
static atomic_bool spinners_end;

static void own_handler(int signal_number)
{
    (void)signal_number;
    atomic_fetch_add(&own_calls, 1);
}

static void count_dump(const tdm_log_record *record, void *user)
{
    (void)user;
    if (strstr(record->message, "shows all events")) atomic_fetch_add(&dumps, 1);
}

static void *spin(void *user)
{
    (void)user;
    while (!atomic_load(&spinners_end)) usleep(1000);
    return NULL;
}

static bool wait_for_count(atomic_int *count, int want)
{
    for (int i = 0; i < 5000 && atomic_load(count) < want; i++) usleep(1000);
    return atomic_load(count) == want;
}

/* Threads that existed before, and do not block the signal, neither consume it nor die of it; the program's
 * own handler is called as well, and is restored at the end. */
static void test_dump_on_signal(void)
{
    const char *dir = check_dir();
    struct sigaction own = {.sa_handler = own_handler}, before, after;
    CHECK_INT(sigaction(SIGUSR2, &own, &before), 0);
    CHECK_INT(tdm_log_add_sink(count_dump, NULL, TDM_LOG_INFO), TDM_OK);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK_INT(pthread_create(&threads[i], NULL, spin, NULL), 0);
    tdm__recorder *recorder = make_recorder(NULL, 1, 2);
    tdm__record(recorder, call_event(TDM_TRACE_BEGIN, 17, -1));
    tdm__dumper *dumper = NULL;
    int number = 0;
    CHECK_INT(tdm__dump_signal_read("SIGUSR2", &number, NULL), TDM_OK);
    CHECK_INT(number, SIGUSR2);
    CHECK_INT(tdm__dumper_create(recorder, number, dir, &dumper, NULL), TDM_OK);
    for (int round = 1; round <= 5; round++) {
        CHECK_INT(kill(getpid(), SIGUSR2), 0);
        CHECK(wait_for_count(&dumps, round));
        CHECK(wait_for_count(&own_calls, round));
    }
    tdm__dumper_destroy(dumper);
    char path[128];
    snprintf(path, sizeof(path), "%s/rank-00001.trace", dir);
    tdm__trace_parsed p = parse_file(path);
    CHECK_INT(p.rank.event_count, 1);
    free((void *)(uintptr_t)p.rank.events);
    CHECK_INT(sigaction(SIGUSR2, &before, &after), 0);
    CHECK(after.sa_handler == own_handler);
    atomic_store(&spinners_end, true);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    tdm_log_remove_sink(count_dump, NULL);
    tdm__recorder_destroy(recorder);
}

static void test_names_of_signals(void)
{
    static const char *const bad[] = {"",  "KILL", "9",  "USR3",
                                      "x", "-1",   "11", "99999999999999999999"};
    tdm_error err;
    int number = 0;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        CHECK_INT(tdm__dump_signal_read(bad[i], &number, &err), TDM_ERR_INVALID);
        CHECK_HAS(err.message, "USR1");
    }
    CHECK_INT(tdm__dump_signal_read("usr1", &number, &err), TDM_OK);
    CHECK_INT(number, SIGUSR1);
    char text[16];
    snprintf(text, sizeof(text), "%d", SIGUSR2);
    CHECK_INT(tdm__dump_signal_read(text, &number, &err), TDM_OK);
    CHECK_INT(number, SIGUSR2);
    /* It is not accepted as an option either: SIGKILL cannot be waited for, and would end the program at
     * close. */
    static const int odd[] = {-1, SIGKILL, SIGSTOP, SIGSEGV, SIGALRM, 1000};
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        tdm__dumper *dumper = NULL;
        CHECK_INT(tdm__dumper_create(NULL, odd[i], NULL, &dumper, &err), TDM_ERR_INVALID);
        CHECK_HAS(err.message, "SIGUSR1");
    }
}

/* ---- the reader ---------------------------------------------------------------------------------- */

static tdm_trace_event at(uint64_t time_ns, tdm_trace_event event)
{
    event.time_ns = time_ns;
    return event;
}

static tdm_trace_event message(tdm_trace_kind kind, uint32_t sequence, int peer, uint32_t step)
{
    tdm_trace_event e = call_event(kind, sequence, peer);
    e.step = step;
    e.bytes = 1000;
    return e;
}

/*
 * Three ranks, of which 0 and 1 wait in all_reduce #17: rank 0 for rank 1, rank 1 for rank 2; rank 2 has
 * completed #16 and then set a mark. The caller owns the recorders.
 */
static void write_world(const char *dir, tdm__recorder *r[3])
{
    uint64_t now = tdm_clock_ns() - 10000000000u;
    for (int i = 0; i < 3; i++) {
        r[i] = make_recorder(dir, i, 3);
        tdm_trace_event open = {.kind = TDM_TRACE_OPEN, .peer = -1};
        tdm__record(r[i], at(now, open));
        tdm__record(r[i], at(now + 1000, call_event(TDM_TRACE_BEGIN, 16, -1)));
        tdm__record(r[i], at(now + 2000, message(TDM_TRACE_SEND, 16, (i + 1) % 3, 4)));
        tdm__record(r[i], at(now + 5000, message(TDM_TRACE_RECEIVED, 16, (i + 2) % 3, 4)));
        tdm__record(r[i], at(now + 6000, call_event(TDM_TRACE_END, 16, -1)));
    }
    for (int i = 0; i < 2; i++) {
        tdm__record(r[i], at(now + 10000, call_event(TDM_TRACE_BEGIN, 17, -1)));
        tdm__record(r[i], at(now + 20000, call_event(TDM_TRACE_WAIT, 17, i + 1)));
    }
    tdm_trace_event mark = {
        .kind = TDM_TRACE_MARK, .peer = -1, .detail = 500, .text = "step \"5\" \xff"};
    tdm__record(r[2], at(now + 30000, mark));
}

/* The same by a process that was killed, after rank 2 had left normally. */
static void write_killed_world(const char *dir)
{
    pid_t pid = fork();
    if (pid == 0) {
        tdm__recorder *r[3];
        write_world(dir, r);
        tdm__recorder_destroy(r[2]);
        kill(getpid(), SIGKILL);
    }
    CHECK_INT(waitpid(pid, NULL, 0), pid);
}

static tdm_trace *open_trace(const char *dir)
{
    tdm_trace *trace = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_trace_open(dir, &trace, &err);
    if (status != TDM_OK) fprintf(stderr, "%s\n", err.message);
    CHECK_INT(status, TDM_OK);
    return trace;
}

static void test_blame(void)
{
    const char *dir = check_dir();
    write_killed_world(dir);
    tdm_trace *trace = open_trace(dir);
    CHECK_INT(tdm_trace_rank_count(trace), 3);
    CHECK(tdm_trace_rank_at(trace, 3) == NULL);
    CHECK(!tdm_trace_rank_at(trace, 0)->running && tdm_trace_rank_at(trace, 0)->here);
    CHECK(tdm_trace_rank_at(trace, 2)->closed);
    tdm_trace_stand stand;
    tdm_trace_stand_of(trace, 1, &stand);
    CHECK(stand.in_call);
    CHECK_INT(stand.call.sequence, 17);
    CHECK_INT(stand.wait_count, 1);
    CHECK_INT(stand.waits_for[0], 2);
    tdm_trace_close(trace);

    /* This process writes it and is alive: no rank is dead, and rank 2 is the missing one. */
    tdm__recorder *r[3];
    write_world(dir, r);
    trace = open_trace(dir);
    CHECK(tdm_trace_rank_at(trace, 0)->running);
    tdm_str text = TDM_STR_INIT;
    tdm_trace_summary(trace, &text);
    /* Ten seconds and a fraction: the duration of this test is not fixed. */
    CHECK_HAS(tdm_str_text(&text), "rank 1 waits for rank 2 in all_reduce #17 of world for 1");
    CHECK_HAS(tdm_str_text(&text),
              " s; rank 2 did not call it: last event: mark \"step \"5\" ?\" after 0.5 us, 1");
    CHECK_HAS(tdm_str_text(&text), "rank 0 waits for rank 1 in all_reduce #17 of world for 1");
    CHECK_HAS(tdm_str_text(&text), " s; rank 1 is also in it\n");
    CHECK_HAS(tdm_str_text(&text), "the culprit is rank 2 (process ");
    CHECK(!strstr(tdm_str_text(&text), "culprit is rank 1"));
    tdm_str_release(&text);
    tdm_trace_close(trace);
    for (int i = 0; i < 3; i++) tdm__recorder_destroy(r[i]);
}

static void test_blame_of_a_cycle(void)
{
    const char *dir = check_dir();
    tdm__recorder *r[2];
    for (int i = 0; i < 2; i++) {
        r[i] = make_recorder(dir, i, 2);
        tdm_trace_event begin = call_event(TDM_TRACE_BEGIN, 3, -1);
        begin.group = (uint32_t)i + 1;
        tdm_trace_event wait = call_event(TDM_TRACE_WAIT, 3, 1 - i);
        wait.group = (uint32_t)i + 1;
        tdm__record(r[i], begin);
        tdm__record(r[i], wait);
    }
    tdm_trace *trace = open_trace(dir);
    tdm_str text = TDM_STR_INIT;
    tdm_trace_summary(trace, &text);
    CHECK_HAS(tdm_str_text(&text), "deadlock: ranks 0 and 1 wait for each other\n");
    CHECK(!strstr(tdm_str_text(&text), "culprit"));
    tdm_str_release(&text);
    tdm_trace_close(trace);
    for (int i = 0; i < 2; i++) tdm__recorder_destroy(r[i]);
}

static tdm_trace_event pair_event(tdm_trace_kind kind, tdm_call_kind call, int peer, uint32_t tag)
{
    tdm_trace_event e = call_event(kind, 16, peer);
    e.call = (uint8_t)call;
    e.step = tag;
    return e;
}

/* Sends and receives are numbered separately from collectives, by peer, tag and direction. */
static void test_blame_of_a_message(void)
{
    const char *dir = check_dir();
    tdm__recorder *r[3];
    write_world(dir, r);
    /* All ranks have made #16 of the world; message #16 with tag 5 is another call. */
    tdm__record(r[0], call_event(TDM_TRACE_END, 17, -1));
    tdm__record(r[1], call_event(TDM_TRACE_END, 17, -1));
    tdm__record(r[0], pair_event(TDM_TRACE_BEGIN, TDM_CALL_RECV, 2, 5));
    tdm__record(r[0], pair_event(TDM_TRACE_BEGIN, TDM_CALL_SEND, 2, 5));
    tdm__record(r[0], pair_event(TDM_TRACE_END, TDM_CALL_SEND, 2, 5));
    tdm__record(r[2], pair_event(TDM_TRACE_BEGIN, TDM_CALL_SEND, 0, 6));
    tdm__record(r[2], pair_event(TDM_TRACE_END, TDM_CALL_SEND, 0, 6));
    tdm_trace *trace = open_trace(dir);
    tdm_str text = TDM_STR_INIT;
    tdm_trace_summary(trace, &text);
    CHECK_HAS(tdm_str_text(&text),
              "rank 0 waits for rank 2 in recv #16 from rank 2 with tag 5 of world for ");
    CHECK_HAS(
        tdm_str_text(&text),
        " s; rank 2 did not send it: last event: ended send #16 to rank 0 with tag 6 of world");
    CHECK_HAS(tdm_str_text(&text), "the culprit is rank 2 (");
    CHECK(!strstr(tdm_str_text(&text), "rank 1 waits"));
    tdm_trace_close(trace);

    tdm__record(r[2], pair_event(TDM_TRACE_BEGIN, TDM_CALL_SEND, 0, 5));
    trace = open_trace(dir);
    tdm_str_clear(&text);
    tdm_trace_summary(trace, &text);
    CHECK_HAS(tdm_str_text(&text), "rank 2 is also in it");
    tdm_str_release(&text);
    tdm_trace_close(trace);
    for (int i = 0; i < 3; i++) tdm__recorder_destroy(r[i]);
}

/* ---- the picture --------------------------------------------------------------------------------- */

static bool text_is(const tdm_json *object, const char *key, const char *want)
{
    const char *text = tdm_json_as_string(tdm_json_get(object, key));
    return text && strcmp(text, want) == 0;
}

/* The n-th event of this phase and name (NULL: any) of process `pid` (-1: any). */
static const tdm_json *find_event(const tdm_json *root, const char *phase, const char *name,
                                  int pid, int nth)
{
    const tdm_json *list = tdm_json_get(root, "traceEvents");
    for (const tdm_json *e = list ? list->first : NULL; e; e = e->next) {
        uint64_t process = 0;
        tdm_json_as_u64(tdm_json_get(e, "pid"), &process);
        if (text_is(e, "ph", phase) && (!name || text_is(e, "name", name)) &&
            (pid < 0 || process == (uint64_t)pid) && nth-- == 0)
            return e;
    }
    return NULL;
}

static double number_of(const tdm_json *object, const char *key)
{
    const tdm_json *value = tdm_json_get(object, key);
    return value && value->type == TDM_JSON_NUMBER ? value->number : -1.0;
}

static const tdm_json *picture(const char *dir, tdm_arena *arena)
{
    tdm_trace *trace = open_trace(dir);
    tdm_str text = TDM_STR_INIT;
    tdm_trace_chrome(trace, &text);
    CHECK(tdm_str_ok(&text));
    const tdm_json *root = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_json_parse(text.data, text.length, arena, &root, &err);
    if (status != TDM_OK) fprintf(stderr, "%s\n", err.message);
    CHECK_INT(status, TDM_OK);
    tdm_str_release(&text);
    tdm_trace_close(trace);
    return root;
}

static void test_picture(void)
{
    const char *dir = check_dir();
    tdm_arena *arena = tdm_arena_create("test");
    write_killed_world(dir);
    const tdm_json *root = picture(dir, arena);
    for (int rank = 0; rank < 3; rank++) {
        const tdm_json *name = find_event(root, "M", "process_name", rank, 0);
        char want[32];
        snprintf(want, sizeof(want), "rank %d (", rank);
        CHECK(name && strncmp(tdm_json_get(tdm_json_get(name, "args"), "name")->string, want,
                              strlen(want)) == 0);
        const tdm_json *call = find_event(root, "X", "all_reduce #16 of world", rank, 0);
        CHECK(call != NULL);
        CHECK_NEAR(number_of(call, "ts"), 1.0, 1e-6);
        CHECK_NEAR(number_of(call, "dur"), 5.0, 1e-6);
    }
    const tdm_json *pending = find_event(root, "X", "all_reduce #17 of world", 1, 0);
    const tdm_json *wait = find_event(root, "X", "waits for rank 2", 1, 0);
    CHECK(pending && wait);
    CHECK_INT(number_of(pending, "tid"), number_of(wait, "tid"));
    CHECK(number_of(wait, "ts") >= number_of(pending, "ts"));
    CHECK_NEAR(number_of(wait, "ts") + number_of(wait, "dur"),
               number_of(pending, "ts") + number_of(pending, "dur"), 1e-3);
    CHECK(find_event(root, "X", "step \"5\" ?", 2, 0) != NULL);
    int arrows = 0;
    for (const tdm_json *s; (s = find_event(root, "s", "message", -1, arrows)); arrows++) {
        const tdm_json *end = find_event(root, "f", "message", -1, arrows);
        CHECK(end != NULL);
        CHECK_INT(number_of(s, "id"), number_of(end, "id"));
        CHECK_INT(number_of(end, "pid"), ((int)number_of(s, "pid") + 1) % 3);
    }
    CHECK_INT(arrows, 3);
    CHECK(find_event(root, "f", "message", -1, 3) == NULL);
    tdm_arena_destroy(arena);
}

/* Calls that overlap have separate rows, and bars of waits never cross. */
static void test_picture_of_overlaps(void)
{
    const char *dir = check_dir();
    tdm_arena *arena = tdm_arena_create("test");
    tdm__recorder *r = make_recorder(dir, 0, 4);
    tdm__record(r, at(1000, call_event(TDM_TRACE_BEGIN, 1, -1)));
    tdm__record(r, at(2000, call_event(TDM_TRACE_BEGIN, 2, -1)));
    tdm__record(r, at(3000, call_event(TDM_TRACE_WAIT, 1, 1)));
    tdm__record(r, at(4000, call_event(TDM_TRACE_WAIT, 1, 2)));
    tdm__record(r, at(5000, call_event(TDM_TRACE_RESUME, 1, 1)));
    tdm__record(r, at(6000, call_event(TDM_TRACE_END, 1, -1)));
    tdm__record(r, at(7000, call_event(TDM_TRACE_BEGIN, 3, -1)));
    tdm__record(r, at(8000, call_event(TDM_TRACE_END, 2, -1)));
    tdm__record(r, at(9000, call_event(TDM_TRACE_END, 3, -1)));
    tdm__record(r, at(9500, message(TDM_TRACE_SEND, 3, 1, 0))); /* it was not received: no arrow */
    const tdm_json *root = picture(dir, arena);
    static const struct {
        const char *name;
        int row;
        double from, to;
    } bars[] = {{"all_reduce #1 of world", 0, 0, 5}, {"all_reduce #2 of world", 1, 1, 7},
                {"all_reduce #3 of world", 0, 6, 8}, {"waits for rank 1", 0, 2, 3},
                {"waits for ranks 1, 2", 0, 3, 4},   {"waits for rank 2", 0, 4, 5}};
    for (size_t i = 0; i < sizeof(bars) / sizeof(bars[0]); i++) {
        const tdm_json *bar = find_event(root, "X", bars[i].name, 0, 0);
        CHECK(bar != NULL);
        CHECK_INT(number_of(bar, "tid"), bars[i].row);
        CHECK_NEAR(number_of(bar, "ts"), bars[i].from, 1e-6);
        CHECK_NEAR(number_of(bar, "ts") + number_of(bar, "dur"), bars[i].to, 1e-6);
    }
    CHECK(find_event(root, "s", NULL, -1, 0) == NULL);
    tdm__recorder_destroy(r);
    tdm_arena_destroy(arena);
}

/* ---- damage -------------------------------------------------------------------------------------- */

static int warnings;

static void count_warning(const tdm_log_record *record, void *user)
{
    (void)user;
    if (strcmp(record->room, "trace") == 0) warnings++;
}

static void damage(const char *dir, int rank, long offset, uint8_t flip)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/rank-%05d.trace", dir, rank);
    FILE *file = fopen(path, "r+b");
    CHECK(file != NULL);
    fseek(file, offset, SEEK_SET);
    int byte = fgetc(file);
    fseek(file, offset, SEEK_SET);
    fputc(byte ^ flip, file);
    fclose(file);
}

static void test_damaged_files(void)
{
    const char *dir = check_dir();
    tdm_error err = {0};
    tdm_trace *trace = NULL;
    CHECK_INT(tdm_trace_open(dir, &trace, &err), TDM_ERR_NOT_FOUND);
    CHECK_HAS(err.message, "no trace files");
    write_killed_world(dir);
    CHECK_INT(tdm_log_add_sink(count_warning, NULL, TDM_LOG_WARN), TDM_OK);
    warnings = 0;
    damage(dir, 0, 24, 4);                                    /* the rank, in the header */
    damage(dir, 2, TDM__TRACE_HEADER_BYTES + 64 + 44, 1);     /* the kind of its second event */
    damage(dir, 2, TDM__TRACE_HEADER_BYTES + 64 * 2 + 42, 8); /* the stamp of its third */
    trace = open_trace(dir);
    CHECK_INT(warnings, 1);
    CHECK_INT(tdm_trace_rank_count(trace), 2);
    CHECK_INT(tdm_trace_rank_at(trace, 0)->rank, 1);
    CHECK_INT(tdm_trace_rank_at(trace, 1)->event_count, 5);
    tdm_trace_close(trace);

    char path[128];
    snprintf(path, sizeof(path), "%s/rank-00001.trace", dir);
    CHECK_INT(truncate(path, 5000), 0);
    trace = open_trace(dir);
    CHECK_INT(warnings, 3);
    CHECK_INT(tdm_trace_rank_count(trace), 1);
    tdm_trace_close(trace);
    snprintf(path, sizeof(path), "%s/rank-00002.trace", dir);
    CHECK_INT(truncate(path, 0), 0);
    CHECK(tdm_trace_open(dir, &trace, &err) != TDM_OK);
    CHECK_HAS(err.message, "none of its traces can be read");
    tdm_log_remove_sink(count_warning, NULL);
}

/* Files of an earlier world in the directory are not mixed with those of the newest one. */
static void test_worlds_are_not_mixed(void)
{
    const char *dir = check_dir();
    tdm__recorder_destroy(make_recorder(dir, 3, 4));
    usleep(2000);
    write_killed_world(dir);
    warnings = 0;
    CHECK_INT(tdm_log_add_sink(count_warning, NULL, TDM_LOG_WARN), TDM_OK);
    tdm_trace *trace = open_trace(dir);
    CHECK_INT(tdm_trace_rank_count(trace), 3);
    CHECK_INT(warnings, 1);
    tdm_log_remove_sink(count_warning, NULL);
    tdm_trace_close(trace);
}

/* Ranks of one machine are aligned by its monotonic clock, even if the wall clock was changed. */
static void test_clocks(void)
{
    const char *dir = check_dir();
    write_killed_world(dir);
    static const char other_boot[] = "00000000-0000-0000-0000-000000000001";
    for (int rank = 1; rank < 3; rank++) {
        char path[128];
        snprintf(path, sizeof(path), "%s/rank-%05d.trace", dir, rank);
        FILE *file = fopen(path, "r+b");
        CHECK(file != NULL);
        tdm__trace_header h;
        CHECK_INT(fread((void *)&h, sizeof(h), 1, file), 1);
        h.unix_ns += 7000000000u; /* the wall clock was set */
        if (rank == 2) memcpy(h.boot, other_boot, sizeof(other_boot));
        h.check = tdm__trace_header_sum(&h);
        rewind(file);
        CHECK_INT(fwrite((const void *)&h, sizeof(h), 1, file), 1);
        fclose(file);
    }
    tdm_trace *trace = open_trace(dir);
    int64_t offset = tdm_trace_rank_at(trace, 0)->unix_offset_ns;
    CHECK_INT(tdm_trace_rank_at(trace, 1)->unix_offset_ns, offset);
    CHECK_NEAR(tdm_trace_rank_at(trace, 2)->unix_offset_ns - offset, 7e9, 1e8);
    CHECK(!tdm_trace_rank_at(trace, 2)->here);
    tdm_trace_close(trace);
}

static const check_test tests[] = {
    CHECK_TEST(test_ring_goes_round),
    CHECK_TEST(test_many_threads),
    CHECK_TEST(test_killed_writer),
    CHECK_TEST(test_last_act),
    CHECK_TEST(test_no_directory_no_disk),
    CHECK_TEST(test_dump_on_signal),
    CHECK_TEST(test_names_of_signals),
    CHECK_TEST(test_blame),
    CHECK_TEST(test_blame_of_a_cycle),
    CHECK_TEST(test_blame_of_a_message),
    CHECK_TEST(test_picture),
    CHECK_TEST(test_picture_of_overlaps),
    CHECK_TEST(test_damaged_files),
    CHECK_TEST(test_worlds_are_not_mixed),
    CHECK_TEST(test_clocks),
};

/* `comm_trace --write DIR` leaves the traces of a world that was killed, for the test of the command line;
 * `--hang DIR` does the same and keeps running. */
int main(int argc, char **argv)
{
    if (argc == 3 && strncmp(argv[1], "--", 2) == 0) {
        tdm__recorder *r[3];
        write_world(argv[2], r);
        puts("ready");
        fflush(stdout);
        if (strcmp(argv[1], "--hang") == 0) sleep(60);
        _exit(0);
    }
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
