/*
 * misuse_test.c: real ranks that leave early, are late, disagree, stop, or make extreme requests.
 *
 *     misuse_test [NAME]
 *     misuse_test --rank NAME                (started by itself)
 *
 * Each scene is a small world of processes. A rank checks its observations itself and reports them by its exit
 * status; the parent starts the ranks, waits, and kills those that do not end in time: most scenes test that no
 * rank waits forever. Times are checked only if the difference is many seconds. TANDEM_TRANSPORT sets the
 * transport; without it, that for one host.
 */
#include "check.h"
#include "comm/comm.h"
#include "world.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOW = 1 };
#else
enum { SLOW = 0 };
#endif

/* SCENE_S: far more than a scene takes beside forty other processes. PROMPT_S: for events that do not need a
 * deadline, which is 30 s. */
enum { MAX_RANKS = 8, SCENE_S = 200, PROMPT_S = 15 };

/* Wakes `count` ranks of a scene through a pipe that all of them share, without the library. */
static void give_word(int count)
{
    const char *pipe_fd = getenv("MISUSE_WRITE");
    for (int i = 0; i < count; i++) CHECK(pipe_fd && write(atoi(pipe_fd), "x", 1) == 1);
}

/* False: no byte arrived in time. */
static bool await_word(double seconds)
{
    const char *pipe_fd = getenv("MISUSE_READ");
    char byte;
    struct pollfd wait = {.fd = pipe_fd ? atoi(pipe_fd) : -1, .events = POLLIN};
    return poll(&wait, 1, (int)(seconds * 1e3)) > 0 && read(wait.fd, &byte, 1) == 1;
}

/* Waits until `count` bytes were written, and reads none, so that several ranks can wait for the same ones. */
static bool await_words(int count, double seconds)
{
    const char *pipe_fd = getenv("MISUSE_READ");
    double until_s = tdm_clock_s() + seconds;
    int written = 0;
    while (pipe_fd && ioctl(atoi(pipe_fd), FIONREAD, &written) == 0 && written < count &&
           tdm_clock_s() < until_s)
        check_sleep_s(0.001);
    return written >= count;
}

/* False: it did not become true in time. */
static bool await_state(tdm_comm *comm, int rank, tdm_peer_state state)
{
    double until_s = tdm_clock_s() + PROMPT_S;
    while (tdm_comm_peer_state(comm, rank) != state && tdm_clock_s() < until_s)
        check_sleep_s(0.005);
    return tdm_comm_peer_state(comm, rank) == state;
}

static tdm_comm *enter(void)
{
    tdm_comm *comm = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_comm_open(NULL, &comm, &err);
    if (status == TDM_OK) return comm;
    fprintf(stderr, "the world was not made: %s\n", err.message);
    exit(1);
}

static void check_error(const tdm_error *err, const char *part)
{
    CHECK_HAS(err->message, part);
}

/* ---- scenes -------------------------------------------------------------------------------------- */

/* Every value of a tag is available to programs; messages with one tag keep their order, messages with
 * different tags need not. */
static void tags(tdm_comm *comm, int rank)
{
    static const uint32_t tag[] = {0, 7, 0xfffffffdu, 0xfffffffeu, UINT32_MAX};
    enum { TAGS = 5, EACH = 3 };
    tdm_group *world = tdm_comm_world(comm);
    tdm_error err = {0};
    for (int i = 0; i < TAGS * EACH; i++) {
        /* One rank sends tag by tag, the other receives the last tag first. */
        int which = rank == 0 ? i / EACH : TAGS - 1 - i / EACH;
        int32_t value = rank == 0 ? 100 * which + i % EACH : -1;
        tdm_call call = {.kind = rank == 0 ? TDM_CALL_SEND : TDM_CALL_RECV,
                         .dtype = TDM_DTYPE_I32,
                         .count = 1,
                         .in = &value,
                         .out = &value,
                         .root = 1 - rank,
                         .tag = tag[which],
                         .deadline_s = 20};
        tdm_status status = tdm_call_run(world, &call, &err);
        CHECK_INT(status, TDM_OK);
        if (status != TDM_OK) fprintf(stderr, "%s\n", err.message);
        CHECK_INT(value, 100 * which + i % EACH);
    }
}

/* Invalid cuts are an error of this rank only, and do not break the group. */
static void wrong_cuts(tdm_comm *comm, int rank)
{
    static const struct {
        size_t cuts[3];
        const char *text;
    } wrong[] = {{{1, 4, 10}, "elements 1 to 10, not 0 to 10"},
                 {{0, 4, 9}, "elements 0 to 9, not 0 to 10"},
                 {{0, 11, 10}, "slice 1 begins at element 11, but slice 2 at element 10"}};
    tdm_group *world = tdm_comm_world(comm);
    tdm_error err = {0};
    float data[10] = {0}, part[10] = {1};
    int64_t first[] = {0, 1, 2};
    tdm_lanes lanes = {.lane_count = 2, .first = first};
    for (int kind = TDM_CALL_REDUCE_SCATTER; kind <= TDM_CALL_SCATTER; kind++)
        for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
            tdm_call call = {.kind = (tdm_call_kind)kind,
                             .dtype = TDM_DTYPE_F32,
                             .count = 10,
                             .out = data,
                             .cuts = wrong[i].cuts};
            CHECK_INT(tdm_call_run(world, &call, &err), TDM_ERR_INVALID);
            check_error(&err, wrong[i].text);
        }
    const size_t cuts[] = {0, 3, 10};
    const void *parts[] = {part};
    tdm_call call = {.kind = TDM_CALL_REDUCE_SCATTER,
                     .dtype = TDM_DTYPE_F32,
                     .count = 10,
                     .out = part + 1, /* neither at its offset nor elsewhere */
                     .lanes = &lanes,
                     .parts = parts,
                     .cuts = cuts};
    CHECK_INT(tdm_call_run(world, &call, &err), TDM_ERR_INVALID);
    check_error(&err, "`out` overlaps part 0");
    call.out = part + cuts[rank];
    CHECK_INT(tdm_call_run(world, &call, &err), TDM_OK);
    CHECK(part[cuts[rank]] == (rank == 0 ? 2.0f : 0.0f));
}

/* Ranks with different cuts get an error. */
static void other_cuts(tdm_comm *comm, int rank)
{
    const size_t cuts[] = {0, rank == 0 ? 5 : 6, 100000};
    float *data = calloc(100000, sizeof(*data));
    tdm_error err = {0};
    tdm_call call = {.kind = TDM_CALL_ALL_GATHER,
                     .dtype = TDM_DTYPE_F32,
                     .count = 100000,
                     .out = data,
                     .cuts = cuts,
                     .deadline_s = 20};
    CHECK_INT(tdm_call_run(tdm_comm_world(comm), &call, &err), TDM_ERR_PEER_MISMATCH);
    check_error(&err, ", layout ");
    free(data);
}

/* A program that gives every message a different tag. */
static void many_tags(tdm_comm *comm, int rank)
{
    const uint32_t count = SLOW ? 5000 : 60000;
    tdm_group *world = tdm_comm_world(comm);
    tdm_error err = {0};
    tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < count && status == TDM_OK; i++) {
        uint32_t value = i;
        status = rank == 0 ? tdm_group_send(world, 1, i, &value, sizeof(value), &err)
                           : tdm_group_recv(world, 0, i, &value, sizeof(value), &err);
        CHECK(value == i);
    }
    CHECK_INT(status, TDM_OK);
    CHECK((double)clock() / CLOCKS_PER_SEC <
          20); /* of CPU time: other processes may use most of the CPU */
}

/* Rank 0 closes while rank 1 has not received what it sends. No rank has failed: ranks 1 and 2 continue. */
static void close_with_pending(tdm_comm *comm, int rank)
{
    static float big[1 << 20];
    tdm_group *world = tdm_comm_world(comm);
    tdm_error err = {0};
    int32_t value = rank;
    CHECK_INT(tdm_group_barrier(world, &err), TDM_OK);
    if (rank == 0) {
        tdm_call call = {
            .kind = TDM_CALL_SEND, .dtype = TDM_DTYPE_F32, .count = 1 << 20, .in = big, .root = 1};
        tdm_request *request = NULL;
        CHECK_INT(tdm_call_start(world, &call, &request, &err), TDM_OK);
        check_sleep_s(0.3);
        return;
    }
    CHECK(await_state(comm, 0, TDM_PEER_LEFT));
    check_sleep_s(0.5); /* what its end breaks is broken by then */
    tdm_status status = rank == 1 ? tdm_group_send(world, 2, 5, &value, sizeof(value), &err)
                                  : tdm_group_recv(world, 1, 5, &value, sizeof(value), &err);
    CHECK_INT(status, TDM_OK);
    if (status != TDM_OK) fprintf(stderr, "rank %d: %s\n", rank, err.message);
    CHECK_INT(tdm_comm_peer_state(comm, 0), TDM_PEER_LEFT);
    /* without a hub, departures are not reported */
    CHECK_INT(tdm_comm_peer_state(comm, 3 - rank), TDM_PEER_WELL);
}

/* Rank 1 computes for longer than rank 0 waits for it in one group. That group is broken; rank 1 does not
 * count as dead, and the world continues. */
static void busy_peer(tdm_comm *comm, int rank)
{
    static float big[1 << 20];
    tdm_group *world = tdm_comm_world(comm), *pair = NULL;
    tdm_error err = {0};
    if (rank < 2) {
        CHECK_INT(tdm_group_create(comm, (int[]){0, 1}, 2, &pair, &err), TDM_OK);
        CHECK_INT(tdm_group_barrier(pair, &err), TDM_OK);
    }
    if (rank == 0) {
        tdm_call call = {.kind = TDM_CALL_SEND,
                         .dtype = TDM_DTYPE_F32,
                         .count = 1 << 20,
                         .in = big,
                         .root = 1,
                         .deadline_s = 0.5};
        CHECK_INT(tdm_call_run(pair, &call, &err), TDM_ERR_PEER_TIMEOUT);
        give_word(1);
    }
    if (rank == 1) CHECK(await_word(30));
    tdm_status status = tdm_group_barrier(world, &err);
    CHECK_INT(status, TDM_OK);
    if (status != TDM_OK) fprintf(stderr, "rank %d: %s\n", rank, err.message);
    if (rank != 1) return;
    double until_s = tdm_clock_s() + PROMPT_S; /* the notification may arrive after the barrier */
    while (tdm_group_check(pair, &err) == TDM_OK && tdm_clock_s() < until_s) check_sleep_s(0.005);
    CHECK_INT(tdm_group_check(pair, &err), TDM_ERR_PEER_TIMEOUT);
}

/* Rank 0 creates a group, times out and gives up before rank 1 has created it: rank 1 gets the error as soon
 * as it does, and does not count as dead because it did not answer. */
static void late_group(tdm_comm *comm, int rank)
{
    static float big[1 << 20];
    tdm_group *world = tdm_comm_world(comm), *pair = NULL;
    tdm_error err = {0};
    if (rank == 1) CHECK(await_word(30));
    tdm_status status = rank < 2 ? tdm_group_create(comm, (int[]){0, 1}, 2, &pair, &err) : TDM_OK;
    if (status == TDM_OK && rank < 2) {
        double begin_s = tdm_clock_s();
        tdm_call call = {.kind = rank == 0 ? TDM_CALL_SEND : TDM_CALL_RECV,
                         .dtype = TDM_DTYPE_F32,
                         .count = 1 << 20,
                         .in = big,
                         .out = big,
                         .root = 1 - rank,
                         .deadline_s = rank == 0 ? 1 : 20};
        status = tdm_call_run(pair, &call, &err);
        if (rank == 1) CHECK(tdm_clock_s() - begin_s < PROMPT_S);
    }
    if (rank == 0) give_word(1);
    if (rank < 2) CHECK_INT(status, TDM_ERR_PEER_TIMEOUT);
    if (rank < 2) check_error(&err, "rank 1");
    status = tdm_group_barrier(world, &err);
    CHECK_INT(status, TDM_OK);
    if (status != TDM_OK) fprintf(stderr, "rank %d: %s\n", rank, err.message);
}

/* A rank that has finished leaves. What the others do without it does not affect it. */
static void left_third(tdm_comm *comm, int rank)
{
    tdm_group *world = tdm_comm_world(comm);
    tdm_error err = {0};
    int32_t value = rank, sum = -1;
    if (rank == 2) {
        CHECK_INT(tdm_group_reduce(world, &value, &sum, 1, TDM_DTYPE_I32, TDM_REDUCE_SUM, 0, &err),
                  TDM_OK);
        return;
    }
    if (rank == 1) check_sleep_s(4);
    tdm_status status = tdm_group_reduce(world, &value, &sum, 1, TDM_DTYPE_I32, TDM_REDUCE_SUM, 0,
                                         &err);
    CHECK_INT(status, TDM_OK);
    if (status != TDM_OK) fprintf(stderr, "rank %d: %s\n", rank, err.message);
    if (rank == 0) CHECK_INT(sum, 3);
    if (rank == 1) check_sleep_s(3);
    status = rank == 0 ? tdm_group_recv(world, 1, 3, &value, sizeof(value), &err)
                       : tdm_group_send(world, 0, 3, &value, sizeof(value), &err);
    CHECK_INT(status, TDM_OK);
    if (status != TDM_OK) fprintf(stderr, "rank %d: %s\n", rank, err.message);
}

/* A call that needs data from a rank that has left ends soon, not at the deadline. */
static void left_needed(tdm_comm *comm, int rank)
{
    tdm_error err = {0};
    if (rank == 1) return;
    check_sleep_s(1);
    double begin_s = tdm_clock_s();
    CHECK_INT(tdm_group_barrier(tdm_comm_world(comm), &err), TDM_ERR_PEER_LEFT);
    CHECK(tdm_clock_s() - begin_s < PROMPT_S);
    check_error(&err, "rank 1");
}

/* Ranks 0 and 1 disagree in calls that they have started and do not wait for. Rank 2, which waits for another
 * call of that group, is notified at once. */
static void told_from_behind(tdm_comm *comm, int rank)
{
    tdm_group *world = tdm_comm_world(comm);
    tdm_error err = {0};
    static float data[100000];
    CHECK_INT(tdm_group_barrier(world, &err), TDM_OK);
    double begin_s = tdm_clock_s();
    if (rank == 2) {
        give_word(1); /* rank 2 has left the barrier, which would fail as well */
        tdm_call call = {.kind = TDM_CALL_RECV,
                         .dtype = TDM_DTYPE_F32,
                         .count = 1,
                         .out = data,
                         .root = 0,
                         .deadline_s = 30};
        CHECK_INT(tdm_call_run(world, &call, &err), TDM_ERR_PEER_MISMATCH);
        CHECK(tdm_clock_s() - begin_s < PROMPT_S);
        give_word(1);
        return;
    }
    CHECK(await_words(1, 25));
    tdm_call call = {.kind = rank == 0 ? TDM_CALL_ALL_REDUCE : TDM_CALL_BROADCAST,
                     .dtype = TDM_DTYPE_F32,
                     .count = 100000,
                     .out = data,
                     .root = 1 - rank,
                     .algorithm = TDM_ALGORITHM_DIRECT,
                     .deadline_s = 30};
    tdm_request *request = NULL;
    CHECK_INT(tdm_call_start(world, &call, &request, &err), TDM_OK);
    CHECK(await_words(2, 25));
    CHECK_INT(tdm_request_wait(request, &err), TDM_ERR_PEER_MISMATCH);
}

/* Concurrent sums in these groups: on a busy machine each wait for the other rank takes long. */
static tdm_status sum_in_groups(tdm_group **groups, int count, tdm_error *err)
{
    enum { MAX = 100 };
    int64_t ones[MAX];
    tdm_request *requests[MAX] = {NULL};
    tdm_status status = TDM_OK;
    for (int i = 0; i < count && status == TDM_OK; i++) {
        ones[i] = 1;
        tdm_call call = {.kind = TDM_CALL_ALL_REDUCE,
                         .dtype = TDM_DTYPE_I64,
                         .count = 1,
                         .out = &ones[i],
                         .reduce = TDM_REDUCE_SUM};
        status = tdm_call_start(groups[i], &call, &requests[i], err);
    }
    for (int i = 0; i < count; i++) {
        tdm_status one = requests[i] ? tdm_request_wait(requests[i], err) : TDM_OK;
        if (status == TDM_OK) status = one;
        if (status == TDM_OK) CHECK_INT(ones[i], 2);
    }
    return status;
}

/* Many groups, all in use; then half of them are destroyed and created again. */
static void many_groups(tdm_comm *comm, int rank)
{
    enum { MAX = 2000, AT_ONCE = 100 };
    static tdm_group *groups[MAX];
    const int count = SLOW ? 200 : MAX;
    tdm_error err = {0};
    (void)rank;
    tdm_status status = TDM_OK;
    for (int turn = 0; turn < 2 && status == TDM_OK; turn++) {
        for (int i = 0; i < count && status == TDM_OK; i += 1 + turn) {
            if (groups[i]) tdm_group_destroy(groups[i]);
            groups[i] = NULL;
            status = tdm_group_create(comm, i % 2 ? (int[]){0, 1} : (int[]){1, 0}, 2, &groups[i],
                                      &err);
        }
        for (int i = 0; i < count && status == TDM_OK; i += AT_ONCE)
            status = sum_in_groups(groups + i, AT_ONCE, &err);
    }
    CHECK_INT(status, TDM_OK);
    if (status != TDM_OK) fprintf(stderr, "%s\n", err.message);
    CHECK((double)clock() / CLOCKS_PER_SEC < 40); /* of CPU time */
}

/* More calls in flight than the window has slots, waited for from the last to the first. */
static void many_in_flight(tdm_comm *comm, int rank)
{
    enum { MAX = 300, EACH = 3000 };
    static float data[MAX][EACH];
    static tdm_request *requests[MAX];
    tdm_error err = {0};
    tdm_group *world = tdm_comm_world(comm);
    for (int turn = 0; turn < (SLOW ? 1 : 4); turn++) {
        for (int i = 0; i < MAX; i++) {
            for (int k = 0; k < EACH; k++) data[i][k] = (float)(rank + i);
            tdm_call call = {.kind = TDM_CALL_ALL_REDUCE,
                             .dtype = TDM_DTYPE_F32,
                             .count = i % 3 ? EACH : 10,
                             .out = data[i],
                             .priority = i % 5};
            CHECK_INT(tdm_call_start(world, &call, &requests[i], &err), TDM_OK);
        }
        for (int i = MAX - 1; i >= 0; i--) {
            tdm_status status = tdm_request_wait(requests[i], &err);
            CHECK_INT(status, TDM_OK);
            if (status != TDM_OK) fprintf(stderr, "%s\n", err.message);
            CHECK(data[i][9] == (float)(3 * i + 3));
        }
    }
}

/* One rank uses shared memory, the other messages, because their sizes differ; then one requests another
 * algorithm; then they differ in the root of a call that needs no answer. */
static void disagree(tdm_comm *comm, int rank)
{
    static float data[300000];
    tdm_error err = {0};
    const tdm_call calls[][2] = {
        {{.kind = TDM_CALL_ALL_REDUCE, .count = 10},
         {.kind = TDM_CALL_ALL_REDUCE, .count = 300000, .algorithm = TDM_ALGORITHM_RING}},
        {{.kind = TDM_CALL_BARRIER}, {.kind = TDM_CALL_BARRIER, .algorithm = TDM_ALGORITHM_TREE}},
        {{.kind = TDM_CALL_BROADCAST, .count = 10, .root = 0},
         {.kind = TDM_CALL_BROADCAST, .count = 10, .root = 1, .algorithm = TDM_ALGORITHM_DIRECT}},
        {{.kind = TDM_CALL_ALL_GATHER, .count = 10, .algorithm = TDM_ALGORITHM_RING},
         {.kind = TDM_CALL_ALL_GATHER, .count = 11, .algorithm = TDM_ALGORITHM_DIRECT}},
        {{.kind = TDM_CALL_REDUCE, .count = 10, .root = 1}, {.kind = TDM_CALL_BARRIER}},
        {{.kind = TDM_CALL_BROADCAST, .count = 10, .root = 0},
         {.kind = TDM_CALL_BROADCAST, .count = 10, .root = 1}},
        {{.kind = TDM_CALL_REDUCE, .count = 10, .root = 1},
         {.kind = TDM_CALL_REDUCE, .count = 10, .root = 0}},
        {{.kind = TDM_CALL_GATHER, .count = 9000, .root = 1},
         {.kind = TDM_CALL_GATHER, .count = 9000, .root = 0}},
        {{.kind = TDM_CALL_SEND, .count = 10, .root = 1}, {.kind = TDM_CALL_RECV, .count = 11}},
        {{.kind = TDM_CALL_SEND, .count = 30000, .root = 1},
         {.kind = TDM_CALL_RECV, .count = 30001}},
    };
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        tdm_group *group = NULL;
        tdm_status status = tdm_group_create(comm, (int[]){0, 1}, 2, &group, &err);
        CHECK_INT(status, TDM_OK);
        if (status != TDM_OK) return;
        tdm_call call = calls[i][rank];
        call.dtype = TDM_DTYPE_F32;
        call.out = data;
        call.in = call.kind == TDM_CALL_SEND ? data : NULL;
        call.deadline_s = 30;
        double begin_s = tdm_clock_s();
        /* A call that needs no data from the other rank may end well before that rank makes it. */
        while (status == TDM_OK && tdm_clock_s() - begin_s < PROMPT_S)
            status = tdm_call_run(group, &call, &err);
        CHECK_INT(status, TDM_ERR_PEER_MISMATCH);
        if (status != TDM_ERR_PEER_MISMATCH) fprintf(stderr, "case %zu: %s\n", i, err.message);
        CHECK(tdm_clock_s() - begin_s < PROMPT_S);
        check_error(&err, "rank 0 called");
        check_error(&err, "rank 1 called");
        begin_s = tdm_clock_s();
        CHECK_INT(tdm_group_barrier(group, &err), TDM_ERR_PEER_MISMATCH);
        CHECK(tdm_clock_s() - begin_s < PROMPT_S);
        tdm_group_destroy(group);
    }
}

/* ---- ranks that stop ------------------------------------------------------------------------------- */

/* The hub is stopped: no process answers queries, forwards news, or handles departures. */
static void hub_stops(tdm_comm *comm, int rank)
{
    static float big[1 << 20];
    tdm_group *world = tdm_comm_world(comm);
    tdm_error err = {0};
    CHECK_INT(tdm_group_barrier(world, &err), TDM_OK);
    if (rank == 0) raise(SIGSTOP);
    double begin_s = tdm_clock_s();
    tdm_call call = {.kind = rank == 1 ? TDM_CALL_SEND : TDM_CALL_RECV,
                     .dtype = TDM_DTYPE_F32,
                     .count = 1 << 20,
                     .in = big,
                     .out = big,
                     .root = 0,
                     .deadline_s = 1};
    tdm_status status = tdm_call_run(world, &call, &err);
    CHECK(tdm_status_group_of(status) == TDM_STATUS_GROUP_PEER);
    check_error(&err, "rank 0");
    CHECK(tdm_clock_s() - begin_s < PROMPT_S);
    begin_s = tdm_clock_s();
    tdm_comm_close(comm);
    CHECK(tdm_clock_s() - begin_s < PROMPT_S);
    _exit(check_failures ? 1 : 0);
}

/* A member is stopped while a group is created, and while others close with pending calls. */
static void member_stops(tdm_comm *comm, int rank)
{
    static float big[1 << 20];
    tdm_group *world = tdm_comm_world(comm), *group = NULL;
    tdm_error err = {0};
    CHECK_INT(tdm_group_barrier(world, &err), TDM_OK);
    if (rank == 1) raise(SIGSTOP);
    tdm_call call = {
        .kind = TDM_CALL_SEND, .dtype = TDM_DTYPE_F32, .count = 1 << 20, .in = big, .root = 1};
    tdm_request *request = NULL;
    CHECK_INT(tdm_call_start(world, &call, &request, &err), TDM_OK);
    double begin_s = tdm_clock_s();
    tdm_status status = tdm_group_create(comm, (int[]){1, 0, 2}, 3, &group, &err);
    if (status == TDM_OK) status = tdm_group_barrier(group, &err); /* it had no hub to ask */
    CHECK(tdm_status_group_of(status) == TDM_STATUS_GROUP_PEER);
    check_error(&err, "rank 1");
    CHECK(tdm_clock_s() - begin_s < PROMPT_S);
    begin_s = tdm_clock_s();
    tdm_comm_close(comm);
    CHECK(tdm_clock_s() - begin_s < PROMPT_S);
    _exit(check_failures ? 1 : 0);
}

/* ---- threads -------------------------------------------------------------------------------------- */

typedef struct worker {
    tdm_comm *comm;
    tdm_group *group;
    int number, rank;
    bool ok;
} worker;

static tdm_status work_once(const worker *w, int i, float *data, tdm_error *err)
{
    size_t count = i % 7 == 0 ? 20000 : i % 3 ? 16 : 2000;
    for (size_t k = 0; k < count; k++) data[k] = (float)(w->rank + i);
    tdm_call call = {.kind = TDM_CALL_ALL_REDUCE,
                     .dtype = TDM_DTYPE_F32,
                     .count = count,
                     .out = data,
                     .algorithm = (w->number + i) % 4 == 0 ? TDM_ALGORITHM_DIRECT
                                                           : TDM_ALGORITHM_AUTO,
                     .priority = w->number};
    tdm_status status = TDM_OK;
    if ((i + w->number) % 2) {
        status = tdm_call_run(w->group, &call, err);
    } else {
        tdm_request *request = NULL;
        TDM_TRY(tdm_call_start(w->group, &call, &request, err));
        for (int k = 0; k < i % 5 && !tdm_request_test(request); k++) continue;
        status = tdm_request_wait(request, err);
    }
    if (status == TDM_OK && data[count - 1] != (float)(2 * i + 1)) {
        fprintf(stderr, "thread %d, call %d: %g\n", w->number, i, (double)data[count - 1]);
        return TDM_ERR_FORMAT;
    }
    return status;
}

static void *work(void *user)
{
    worker *w = user;
    static _Thread_local float data[20000];
    tdm_error err = {0};
    w->ok = true;
    for (int i = 0; i < (SLOW ? 60 : 1000) && w->ok; i++) {
        tdm_status status = work_once(w, i, data, &err);
        w->ok = status == TDM_OK && tdm_comm_world(w->comm) != NULL;
        if (!w->ok) fprintf(stderr, "thread %d, call %d: %s\n", w->number, i, err.message);
        if (i % 50 == 49) { /* groups are created and destroyed meanwhile */
            tdm_group_destroy(w->group);
            int order[2] = {w->number % 2, 1 - w->number % 2};
            w->ok = tdm_group_create(w->comm, order, 2, &w->group, &err) == TDM_OK;
        }
    }
    return NULL;
}

/* Two threads of each rank, each with a separate group, start, test, run and wait concurrently. (The order of
 * groups with the same ranks is up to the threads, so each has the ranks in another order.) */
static void threads(tdm_comm *comm, int rank)
{
    enum { THREADS = 2 };
    worker workers[THREADS] = {{0}};
    pthread_t handles[THREADS];
    tdm_error err = {0};
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){.comm = comm, .number = i, .rank = rank};
        int order[2] = {i % 2, 1 - i % 2};
        CHECK_INT(tdm_group_create(comm, order, 2, &workers[i].group, &err), TDM_OK);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&handles[i], NULL, work, &workers[i]) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(handles[i], NULL);
    for (int i = 0; i < THREADS; i++) CHECK(workers[i].ok);
}

typedef struct pusher {
    tdm_group *group;
    float *data;
    size_t count;
    atomic_bool has_asked; /* the other thread, for long enough */
    bool ok;
} pusher;

static void *push(void *user)
{
    pusher *p = user;
    tdm_error err = {0};
    p->ok = true;
    for (bool end = false; !end && p->ok;) { /* until the threads of both ranks have called it */
        p->data[0] = atomic_load(&p->has_asked) ? 1 : 0;
        p->ok = tdm_group_all_reduce(p->group, NULL, p->data, p->count, TDM_DTYPE_F32,
                                     TDM_REDUCE_SUM, &err) == TDM_OK;
        end = p->data[0] == 2;
    }
    return NULL;
}

/* While one thread transfers much data, another makes calls that never wait. */
static void not_held_up(tdm_comm *comm, int rank)
{
    pusher p = {.group = tdm_comm_world(comm), .count = SLOW ? 1 << 20 : 16 << 20};
    p.data = calloc(p.count, sizeof(*p.data));
    if (!p.data) return;
    pthread_t handle;
    CHECK(pthread_create(&handle, NULL, push, &p) == 0);
    int asked = 0;
    for (double begin_s = tdm_clock_s(); tdm_clock_s() - begin_s < 2; asked++) {
        CHECK_INT(tdm_comm_peer_state(comm, 1 - rank), TDM_PEER_WELL);
        check_sleep_s(0.001);
    }
    atomic_store(&p.has_asked, true);
    pthread_join(handle, NULL);
    CHECK(p.ok);
    tdm_error err = {0}; /* no rank leaves while the other still makes calls */
    CHECK_INT(tdm_group_barrier(p.group, &err), TDM_OK);
    printf("asked %d times in 2 s\n", asked);
    free(p.data);
}

/* A child from fork() closes its parent's comm, as a clean-up at exit would: it neither hangs nor affects the
 * world. */
static void forks(tdm_comm *comm, int rank)
{
    (void)rank;
    pid_t child = fork();
    if (child == 0) {
        tdm_comm_close(comm);
        _exit(0);
    }
    int state = 0;
    pid_t got = 0;
    for (int i = 0; i < 2000 && (got = waitpid(child, &state, WNOHANG)) == 0; i++)
        check_sleep_s(0.01);
    CHECK_INT(got, child);
    CHECK_INT(state, 0);
    if (got != child) kill(child, SIGKILL);
    tdm_error err = {0};
    CHECK_INT(tdm_group_barrier(tdm_comm_world(comm), &err), TDM_OK);
}

/* The first error writes the preceding events to the log, once: one line at level info, the rest at level
 * debug. */
typedef struct words {
    pthread_mutex_t lock;
    int broken, calls, shown;
} words;

static void note_words(const tdm_log_record *record, void *user)
{
    words *w = user;
    pthread_mutex_lock(&w->lock);
    bool is_trace = strcmp(record->room, "trace") == 0, is_detail = record->level == TDM_LOG_DEBUG;
    if (is_trace && is_detail && strstr(record->message, "broken: ")) w->broken++;
    if (is_trace && is_detail && strstr(record->message, "barrier #0")) w->calls++;
    if (is_trace && !is_detail) w->shown++;
    pthread_mutex_unlock(&w->lock);
}

/* Whether everything has been written: another thread may have noticed the error first, and still write. */
static bool is_written(words *w)
{
    pthread_mutex_lock(&w->lock);
    bool is = w->broken > 0 && w->calls > 0;
    pthread_mutex_unlock(&w->lock);
    return is;
}

static void error_dumps(tdm_comm *comm, int rank)
{
    words w = {.lock = PTHREAD_MUTEX_INITIALIZER};
    tdm_error err = {0};
    tdm_group *world = tdm_comm_world(comm), *other = NULL;
    CHECK_INT(tdm_log_add_sink(note_words, &w, TDM_LOG_DEBUG), TDM_OK);
    CHECK_INT(tdm_group_create(comm, (int[]){0, 1}, 2, &other, &err), TDM_OK);
    CHECK_INT(tdm_group_barrier(world, &err), TDM_OK);
    CHECK_INT(w.broken, 0);
    for (int i = 0; i < 2; i++) {
        float x = 0;
        tdm_group *group = i == 0 ? world : other;
        tdm_status status = rank == 0 ? tdm_group_barrier(group, &err)
                                      : tdm_group_broadcast(group, &x, 1, TDM_DTYPE_F32, 0, &err);
        CHECK_INT(status, TDM_ERR_PEER_MISMATCH);
    }
    double until_s = tdm_clock_s() + PROMPT_S;
    while (!is_written(&w) && tdm_clock_s() < until_s) check_sleep_s(0.005);
    check_sleep_s(0.1); /* nor is it written a second time */
    tdm_log_remove_sink(note_words, &w);
    CHECK_INT(w.broken, 1);
    CHECK_INT(w.shown, 1);
    CHECK(w.calls > 0);
    tdm_group_destroy(other);
}

/* ---- processes ------------------------------------------------------------------------------------ */

typedef struct scene {
    const char *name;
    int size;
    void (*play)(tdm_comm *comm, int rank);
    int stops; /* a rank that stops, and is killed when the others have ended; -1: none */
} scene;

static const scene scenes[] = {
    {"wrong_cuts", 2, wrong_cuts, -1},
    {"other_cuts", 2, other_cuts, -1},
    {"tags", 2, tags, -1},
    {"many_tags", 2, many_tags, -1},
    {"close_with_pending", 3, close_with_pending, -1},
    {"busy_peer", 3, busy_peer, -1},
    {"late_group", 3, late_group, -1},
    {"left_third", 3, left_third, -1},
    {"left_needed", 2, left_needed, -1},
    {"told_from_behind", 3, told_from_behind, -1},
    {"many_groups", 2, many_groups, -1},
    {"many_in_flight", 3, many_in_flight, -1},
    {"disagree", 2, disagree, -1},
    {"hub_stops", 3, hub_stops, 0},
    {"member_stops", 3, member_stops, 1},
    {"threads", 2, threads, -1},
    {"not_held_up", 2, not_held_up, -1},
    {"forks", 2, forks, -1},
    {"error_dumps", 2, error_dumps, -1},
};
enum { SCENES = sizeof(scenes) / sizeof(scenes[0]) };

static int be_a_rank(const char *name)
{
    for (int i = 0; i < SCENES; i++) {
        if (strcmp(scenes[i].name, name) != 0) continue;
        tdm_comm *comm = enter();
        scenes[i].play(comm, tdm_comm_rank(comm));
        tdm_comm_close(comm);
        return check_failures ? 1 : 0;
    }
    return 2;
}

static pid_t start_rank(const scene *s, int rank, const int *pipe_fds)
{
    pid_t pid = world_fork(2 * SCENE_S);
    if (pid != 0) return pid;
    char text[64];
    snprintf(text, sizeof(text), "%d", pipe_fds[0]);
    setenv("MISUSE_READ", text, 1);
    snprintf(text, sizeof(text), "%d", pipe_fds[1]);
    setenv("MISUSE_WRITE", text, 1);
    snprintf(text, sizeof(text), "misuse-%d-%s", (int)getppid(), s->name);
    world_place_set(&(world_place){
        .meeting = text, .rank = rank, .size = s->size, .deadline_s = s->stops >= 0 ? 3 : 0});
    world_exec("--rank", s->name, NULL);
}

/* Whether the rank has ended with 0 by then. */
static bool ended_well(pid_t pid, double until_s, int rank)
{
    int end = world_end_within(pid, until_s - tdm_clock_s());
    if (end != 0) fprintf(stderr, "rank %d ended with %d\n", rank, end);
    return end == 0;
}

static bool play(const scene *s)
{
    pid_t pids[MAX_RANKS];
    int pipe_fds[2];
    double begin_s = tdm_clock_s();
    if (pipe(pipe_fds) != 0) return false;
    for (int i = 0; i < s->size; i++) pids[i] = start_rank(s, i, pipe_fds);
    bool well = true;
    for (int i = 0; i < s->size; i++)
        if (i != s->stops) well = ended_well(pids[i], begin_s + SCENE_S * (1 + SLOW), i) && well;
    if (s->stops >= 0) {
        kill(pids[s->stops], SIGKILL);
        waitpid(pids[s->stops], NULL, 0);
    }
    printf("%s: %s (%.1f s)\n", s->name, well ? "ok" : "FAILED", tdm_clock_s() - begin_s);
    fflush(stdout);
    return well;
}

/* Several at a time: most of them sleep most of the time. */
int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--rank") == 0) return be_a_rank(argv[2]);
    enum { AT_ONCE = 4 };
    int running = 0, failed = 0;
    for (int i = 0; i < SCENES || running > 0;) {
        if (i < SCENES && running < AT_ONCE) {
            const scene *s = &scenes[i++];
            if (argc > 1 && !strstr(s->name, argv[1])) continue;
            pid_t pid = fork();
            if (pid == 0) _exit(play(s) ? 0 : 1);
            failed += pid < 0;
            running += pid > 0;
            continue;
        }
        int state = 0;
        if (wait(&state) < 0) break;
        running--;
        failed += !WIFEXITED(state) || WEXITSTATUS(state) != 0;
    }
    return failed ? 1 : 0;
}
