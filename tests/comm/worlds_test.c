/*
 * worlds_test.c: one world after another, as an elastic run opens them: a new membership epoch each time, at
 * endpoints that rank 0 publishes, with members that are killed, stopped and replaced.
 *
 * A slot is a position for a process; in epoch N slot i is rank i. Ranks are processes that the test forks, and
 * that open worlds one after another; the board, which all of them share, has the endpoint of the current
 * epoch. The test replaces a rank that died in the next epoch. No wait is unlimited: the alarm of a rank ends
 * it.
 */
#include "check.h"
#include "comm/comm.h"
#include "comm/count_in.h"
#include "transport/registry.h"
#include "world.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOW = 1 };
#else
enum { SLOW = 0 };
#endif

enum { MAX_SLOTS = 4, MAX_EPOCHS = 256, RANK_S = 250, PROMPT_S = 15 };

typedef struct board {
    char door[MAX_EPOCHS][64];
    _Atomic int is_open[MAX_EPOCHS]; /* the endpoint of that epoch is known */
    _Atomic int epoch_of[MAX_SLOTS]; /* the epoch that a slot has entered */
    _Atomic int lives[MAX_SLOTS];    /* number of processes that a slot has had */
    _Atomic int asked;               /* number of calls of should_give_up */
    _Atomic int came, done;
    _Atomic int struck;          /* the process was killed or stopped, */
    _Atomic double struck_s;     /* at this time */
    double opened_s[MAX_EPOCHS]; /* how long it took slot 1 to open its world */
    _Atomic double slowest_close_s, slowest_notice_s;
} board;

static board *shared;

static bool await(const _Atomic int *value, int min, double seconds)
{
    double until_s = tdm_clock_s() + seconds;
    while (*value < min && tdm_clock_s() < until_s) check_sleep_s(0.0005);
    return *value >= min;
}

static void max_note(_Atomic double *max, double value)
{
    double before = *max;
    while (value > before && !atomic_compare_exchange_weak(max, &before, value)) continue;
}

/* ---- ranks -------------------------------------------------------------------------------------- */

typedef struct party {
    int size;
    int epochs;
    const char *transport;
    int (*rank)(const struct party *party, int slot, int first_epoch);
    int pids[MAX_SLOTS];
} party;

static int start_one(const party *p, int slot, int first_epoch)
{
    shared->lives[slot]++;
    int pid = world_fork(RANK_S);
    if (pid != 0) return pid;
    world_exit(p->rank(p, slot, first_epoch));
}

static void start(party *p)
{
    memset(shared, 0, sizeof(*shared));
    for (int i = 0; i < p->size; i++) p->pids[i] = start_one(p, i, 1);
}

typedef struct joiner {
    uint32_t epoch;
} joiner;

static void on_listen(void *user, const char *address)
{
    const joiner *j = user;
    snprintf(shared->door[j->epoch], sizeof(shared->door[0]), "%s", address);
    shared->is_open[j->epoch] = 1;
}

static bool goes_on(void *user)
{
    (void)user;
    return false;
}

/* Options for a rank of this epoch; waits for the endpoint, unless it is rank 0, which publishes it. */
static tdm_comm_options options_of(const party *p, int rank, joiner *j)
{
    if (rank > 0) CHECK(await(&shared->is_open[j->epoch], 1, 30));
    return (tdm_comm_options){.transport = p->transport ? p->transport : "shm",
                              .rendezvous = rank == 0 ? "127.0.0.1:0" : shared->door[j->epoch],
                              .job = "worlds",
                              .has_place = true,
                              .rank = rank,
                              .size = p->size,
                              .epoch = j->epoch,
                              .deadline_s = 20,
                              .join_s = 60,
                              .should_give_up = goes_on,
                              .on_listen = on_listen,
                              .user = j};
}

static tdm_status open_world(const party *p, int rank, uint32_t epoch, tdm_comm **out,
                             tdm_error *err)
{
    joiner j = {.epoch = epoch};
    tdm_comm_options options = options_of(p, rank, &j);
    return tdm_comm_open(&options, out, err);
}

static tdm_status add_up(tdm_comm *comm, tdm_error *err)
{
    float sum[64];
    for (int i = 0; i < 64; i++) sum[i] = 1.0f;
    tdm_status status = tdm_group_all_reduce(tdm_comm_world(comm), NULL, sum, 64, TDM_DTYPE_F32,
                                             TDM_REDUCE_SUM, err);
    if (status == TDM_OK) CHECK(sum[7] == (float)tdm_comm_size(comm));
    return status;
}

static bool is_of_peers(tdm_status status)
{
    return tdm_status_group_of(status) == TDM_STATUS_GROUP_PEER;
}

static void close_timed(tdm_comm *comm)
{
    double before_s = tdm_clock_s();
    tdm_comm_close(comm);
    max_note(&shared->slowest_close_s, tdm_clock_s() - before_s);
}

/* ---- epoch after epoch ---------------------------------------------------------------------------- */

static long resident_kb(void)
{
    long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file && fscanf(file, "%ld %ld", &size, &resident) != 2) resident = 0; // NOLINT
    if (file) fclose(file);
    return resident * 4;
}

/* In every seventh epoch, one of the members, in turn, dies in the middle of its work. */
static bool is_fatal(const party *p, int slot, int epoch)
{
    return epoch % 7 == 0 && epoch / 7 % p->size == slot;
}

static void work(const party *p, tdm_comm *comm, int slot, int epoch)
{
    tdm_error err = {0};
    bool somebody_dies = epoch % 7 == 0 && epoch < p->epochs;
    tdm_status status = TDM_OK;
    for (int i = 0; status == TDM_OK && (i < 3 || somebody_dies); i++) {
        if (i == 2 && somebody_dies && is_fatal(p, slot, epoch)) kill(getpid(), SIGKILL);
        status = add_up(comm, &err);
    }
    if (somebody_dies)
        CHECK(is_of_peers(status));
    else
        CHECK_INT(status, TDM_OK);
}

static int rank_of_many_epochs(const party *p, int slot, int first_epoch)
{
    int files = 0, threads = 0;
    long kb = 0;
    tdm_comm *old = NULL;
    for (int epoch = first_epoch; epoch <= p->epochs; epoch++) {
        shared->epoch_of[slot] = epoch;
        tdm_error err = {0};
        tdm_comm *comm = NULL;
        double before_s = tdm_clock_s();
        tdm_status status = open_world(p, slot, (uint32_t)epoch, &comm, &err);
        if (slot == 1) shared->opened_s[epoch] = tdm_clock_s() - before_s;
        CHECK_INT(status, TDM_OK);
        if (status != TDM_OK) {
            fprintf(stderr, "slot %d, epoch %d: %s\n", slot, epoch, err.message);
            return 98;
        }
        CHECK_INT(tdm_comm_epoch(comm), epoch);
        if (old) close_timed(old);
        old = NULL;
        work(p, comm, slot, epoch);
        if (epoch % 3 == 0)
            old = comm; /* is closed when the next one is open */
        else
            close_timed(comm);
        if (epoch == first_epoch + 10) {
            files = count_in("/proc/self/fd");
            threads = count_in("/proc/self/task");
            kb = resident_kb();
        }
        if (files && epoch % 3 != 0 && (epoch - first_epoch) % 3 == 1) {
            CHECK(count_left_in("/proc/self/fd", files) <= files);
            CHECK(count_left_in("/proc/self/task", threads) <= threads);
        }
    }
    if (old) close_timed(old);
    if (kb && !SLOW) CHECK(resident_kb() < kb + 4096);
    return 0;
}

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void epochs_follow_each_other(void)
{
    party p = {.size = 4, .epochs = SLOW ? 36 : 200, .rank = rank_of_many_epochs};
    start(&p);
    for (int running = p.size; running > 0;) {
        int status = 0, pid = waitpid(-1, &status, 0), slot = 0;
        if (pid < 0 && errno == EINTR) continue;
        while (slot < p.size && p.pids[slot] != pid) slot++;
        if (pid < 0 || slot == p.size) break;
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
            p.pids[slot] = start_one(&p, slot, shared->epoch_of[slot] + 1);
        } else {
            CHECK_INT(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
            running--;
            if (status != 0)
                for (int i = 0; i < p.size; i++) kill(p.pids[i], SIGTERM);
        }
    }
    int lives = 0;
    for (int i = 0; i < p.size; i++) lives += shared->lives[i];
    CHECK_INT(lives, p.size + (p.epochs - 1) / 7);
    qsort(shared->opened_s + 1, (size_t)p.epochs, sizeof(double), compare_times);
    printf("     %d worlds of 4: opened in %.1f ms (median), %.1f ms (most); closed in %.1f ms at "
           "most\n",
           p.epochs, shared->opened_s[1 + p.epochs / 2] * 1e3, shared->opened_s[p.epochs] * 1e3,
           shared->slowest_close_s * 1e3);
    CHECK(shared->slowest_close_s < PROMPT_S);
}

/* ---- giving up ------------------------------------------------------------------------------------ */

/* The rank kills itself when the callback is called for the n-th time; the callbacks of the others return
 * true a moment later, or are not set. */
typedef struct blow {
    joiner j; /* first: that of on_listen */
    bool is_victim;
    int signal, at;
    double told_s; /* after which the others are notified */
    int asked;
} blow;

static bool strikes(void *user)
{
    blow *b = user;
    if (!b->is_victim) {
        if (!shared->struck) return false;
        return tdm_clock_s() > shared->struck_s + b->told_s;
    }
    if (++b->asked == b->at) {
        shared->struck_s = tdm_clock_s();
        shared->struck = 1;
        kill(getpid(), b->signal);
    }
    return false;
}

static blow the_blow; /* of the trial; set before the ranks are forked */

static int rank_that_is_struck(const party *p, int slot, int first_epoch)
{
    blow b = the_blow;
    b.j.epoch = (uint32_t)first_epoch;
    b.is_victim = shared->came == slot; /* the test has chosen the victim */
    tdm_comm_options options = options_of(p, slot, &b.j);
    options.should_give_up = strikes;
    options.user = &b;
    tdm_comm *comm = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_comm_open(&options, &comm, &err);
    bool in_time = !shared->struck || tdm_clock_s() < shared->struck_s + PROMPT_S;
    if (status != TDM_OK) {
        CHECK(is_of_peers(status));
        if (!is_of_peers(status) || !in_time)
            fprintf(stderr, "slot %d: %s: %s\n", slot, tdm_status_name(status), err.message);
        CHECK(in_time);
    }
    tdm_comm_close(comm);
    return 0;
}

/* Ranks die or stop at every moment of joining; no rank waits for join_s, which is a minute. No rank notices
 * the death of one that has not met another rank yet: the others are told to give up. UCX 1.13 may end a process
 * by an assertion when a peer dies while they connect: in one of thirty trials. */
static void strike_joining(int signal, int first, int step, int trials, const char *transport)
{
    int struck = 0, aborted = 0;
    for (int i = 0; i < trials; i++) {
        party p = {.size = 3, .epochs = 1, .rank = rank_that_is_struck, .transport = transport};
        the_blow = (blow){.signal = signal, .at = first + step * (i / 3)};
        the_blow.told_s = signal == SIGSTOP || the_blow.at < 4 ? 0.1 : 2;
        memset(shared, 0, sizeof(*shared));
        int victim = i % 3;
        shared->came = victim;
        for (int k = 0; k < p.size; k++) p.pids[k] = start_one(&p, k, 1);
        for (int k = 0; k < p.size; k++) {
            int code = k == victim ? 0 : world_end(p.pids[k]);
            if (transport && code == 1000 + SIGABRT)
                aborted++;
            else
                CHECK_INT(code, 0);
        }
        struck += shared->struck;
        kill(p.pids[victim], SIGKILL);
        world_end(p.pids[victim]);
    }
    printf("     %d of %d struck while they joined; UCX ended %d others\n", struck, trials,
           aborted);
    CHECK(struck > 0);       /* on a fast machine many of the moments are after the opening */
    CHECK(aborted < trials); /* with twice as many survivors */
}

static void a_death_while_joining_is_noticed(void)
{
    strike_joining(SIGKILL, 1, 2, SLOW ? 6 : 12, NULL);
}

static void a_stopped_rank_does_not_block_a_rank_that_may_give_up(void)
{
    strike_joining(SIGSTOP, 1, 2, SLOW ? 3 : 9, NULL);
}

static void the_same_over_a_network(void)
{
    tdm_transport_info info;
    for (size_t i = 0; tdm_transport_at(i, &info); i++)
        if (strcmp(info.name, "ucx") == 0 && info.usable) {
            strike_joining(SIGKILL, 3, 4, SLOW ? 3 : 6, "ucx");
            strike_joining(SIGSTOP, 6, 1, 3, "ucx");
        }
}

static bool dies_in_a_while(void *user)
{
    const blow *b = user;
    if (b->is_victim && ++shared->asked == 100) kill(getpid(), SIGKILL);
    return false;
}

/* The last rank does not join; of the others, one dies while it waits for it. */
static int rank_that_waits_for_a_third(const party *p, int slot, int first_epoch)
{
    blow b = {.j.epoch = (uint32_t)first_epoch, .is_victim = slot == 1};
    tdm_comm_options options = options_of(p, slot, &b.j);
    options.should_give_up = dies_in_a_while;
    options.user = &b;
    tdm_comm *comm = NULL;
    tdm_error err = {0};
    double before_s = tdm_clock_s();
    CHECK_INT(tdm_comm_open(&options, &comm, &err), TDM_ERR_PEER_FAILED);
    CHECK_HAS(err.message, "rank 1 (");
    CHECK_HAS(err.message, "ended before all ranks had joined");
    CHECK(tdm_clock_s() - before_s < PROMPT_S);
    return 0;
}

static void a_rank_that_joined_and_died_is_not_awaited(void)
{
    party p = {.size = 3, .rank = rank_that_waits_for_a_third};
    memset(shared, 0, sizeof(*shared));
    int first = start_one(&p, 0, 1), second = start_one(&p, 1, 1);
    CHECK_INT(world_end(second), WORLD_SIGNALLED + SIGKILL);
    CHECK_INT(world_end(first), 0);
}

static bool gives_up_soon(void *user)
{
    (void)user;
    return ++shared->asked > 5;
}

/* No other rank joins. */
static int rank_that_waits_alone(const party *p, int slot, int first_epoch)
{
    (void)first_epoch;
    joiner j = {.epoch = 7};
    shared->is_open[7] = 1;
    snprintf(shared->door[7], sizeof(shared->door[7]), "127.0.0.1:1");
    tdm_comm_options options = options_of(p, slot, &j);
    options.should_give_up = gives_up_soon;
    tdm_comm *comm = NULL;
    tdm_error err = {0};
    double before_s = tdm_clock_s();
    CHECK_INT(tdm_comm_open(&options, &comm, &err), TDM_ERR_PEER_FAILED);
    CHECK_HAS(err.message, "epoch 7 has ended");
    CHECK(tdm_clock_s() - before_s < PROMPT_S);
    return 0;
}

static void a_rank_that_waits_alone_can_be_cancelled(void)
{
    for (int slot = 0; slot < 2; slot++) {
        party p = {.size = 2, .rank = rank_that_waits_alone};
        memset(shared, 0, sizeof(*shared));
        CHECK_INT(world_end(start_one(&p, slot, 1)), 0);
        CHECK(shared->asked > 5);
    }
}

/* ---- doors ---------------------------------------------------------------------------------------- */

/* A rank of epoch 4 connects to the endpoint of epoch 5; then the right one does. */
static int rank_of_an_old_epoch(const party *p, int slot, int first_epoch)
{
    (void)first_epoch;
    tdm_comm *comm = NULL;
    tdm_error err = {0};
    if (slot == 1) {
        joiner j = {.epoch = 5};
        tdm_comm_options options = options_of(p, slot, &j);
        options.epoch = 4;
        double before_s = tdm_clock_s();
        CHECK_INT(tdm_comm_open(&options, &comm, &err), TDM_ERR_PEER_REFUSED);
        CHECK_HAS(err.message, "is in epoch 4, rank 0 in epoch 5");
        CHECK(tdm_clock_s() - before_s < PROMPT_S);
    }
    CHECK_INT(open_world(p, slot, 5, &comm, &err), TDM_OK);
    if (!comm) return 1;
    CHECK_INT(add_up(comm, &err), TDM_OK);
    tdm_comm_close(comm);
    return 0;
}

static void old_epochs_are_refused(void)
{
    party p = {.size = 2, .rank = rank_of_an_old_epoch};
    start(&p);
    for (int i = 0; i < p.size; i++) CHECK_INT(world_end(p.pids[i]), 0);
    joiner j = {.epoch = 1};
    shared->is_open[1] = 1;
    snprintf(shared->door[1], sizeof(shared->door[1]), "127.0.0.1:0");
    tdm_comm_options options = options_of(&p, 1, &j);
    tdm_comm *comm = NULL;
    tdm_error err = {0};
    CHECK_INT(tdm_comm_open(&options, &comm, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "is for rank 0 only");
    options.rank = 0;
    options.on_listen = NULL;
    CHECK_INT(tdm_comm_open(&options, &comm, &err), TDM_ERR_INVALID);
}

/* ---- deaths and stops ------------------------------------------------------------------------------ */

/* Computes, and checks its world from time to time; reports how a peer was lost. */
static int rank_that_computes(const party *p, int slot, int first_epoch)
{
    tdm_comm *comm = NULL;
    tdm_error err = {0};
    CHECK_INT(open_world(p, slot, (uint32_t)first_epoch, &comm, &err), TDM_OK);
    if (!comm) return 1;
    CHECK_INT(add_up(comm, &err), TDM_OK);
    tdm_peer_loss loss = {0};
    CHECK(!tdm_comm_peer_loss(comm, (slot + 1) % p->size, &loss));
    CHECK(!tdm_comm_peer_loss(comm, p->size, &loss));
    shared->came++;
    double until_s = tdm_clock_s() + 30;
    while (tdm_group_check(tdm_comm_world(comm), &err) == TDM_OK && tdm_clock_s() < until_s)
        for (volatile int i = 0; i < 1000; i++) continue;
    CHECK_INT(tdm_group_check(tdm_comm_world(comm), &err), TDM_ERR_PEER_FAILED);
    max_note(&shared->slowest_notice_s, tdm_clock_s() - shared->struck_s);
    int victim = shared->struck - 1;
    char name[32];
    snprintf(name, sizeof(name), "rank %d ", victim);
    CHECK_HAS(err.message, name);
    CHECK_INT(tdm_comm_peer_state(comm, victim), TDM_PEER_LOST);
    CHECK(tdm_comm_peer_loss(comm, victim, &loss));
    CHECK_INT(loss.sign, TDM_SIGN_CLOSED);
    CHECK(loss.heard_s >= 0 && loss.heard_s < 20);
    CHECK(loss.what[0] != '\0');
    close_timed(comm);
    return 0;
}

static void a_death_is_noticed_while_all_compute(void)
{
    double slowest_s = 0;
    for (int i = 0; i < 3; i++) {
        party p = {.size = 3, .rank = rank_that_computes};
        start(&p);
        int victim = i % p.size;
        CHECK(await(&shared->came, p.size, 30));
        check_sleep_s(0.4); /* so that a heartbeat contains its last action */
        shared->struck_s = tdm_clock_s();
        shared->struck = victim + 1;
        kill(p.pids[victim], SIGKILL);
        for (int k = 0; k < p.size; k++)
            CHECK_INT(world_end(p.pids[k]), k == victim ? WORLD_SIGNALLED + SIGKILL : 0);
        if (shared->slowest_notice_s > slowest_s) slowest_s = shared->slowest_notice_s;
    }
    printf("     noticed by busy ranks %.1f ms after the kill at most\n", slowest_s * 1e3);
    CHECK(slowest_s < PROMPT_S);
}

/* Loses rank 0 in a call. Then rank 1 is killed; without a call and without rank 0, which reports deaths,
 * this rank still notices it. */
static int rank_that_loses_two(const party *p, int slot, int first_epoch)
{
    tdm_comm *comm = NULL;
    tdm_error err = {0};
    tdm_peer_loss loss = {0};
    CHECK_INT(open_world(p, slot, (uint32_t)first_epoch, &comm, &err), TDM_OK);
    if (!comm) return 1;
    CHECK_INT(add_up(comm, &err), TDM_OK);
    shared->came++;
    CHECK(await(&shared->struck, 1, 30));
    if (slot == 1) pause(); /* until it is killed */
    CHECK_INT(add_up(comm, &err), TDM_ERR_PEER_FAILED);
    CHECK(tdm_comm_peer_loss(comm, 0, &loss));
    CHECK(!tdm_comm_peer_loss(comm, 1, &loss));
    shared->done++;
    CHECK(await(&shared->struck, 2, 30));
    double until_s = tdm_clock_s() + PROMPT_S;
    while (!tdm_comm_peer_loss(comm, 1, &loss) && tdm_clock_s() < until_s) check_sleep_s(0.001);
    CHECK(tdm_comm_peer_loss(comm, 1, &loss));
    CHECK(loss.sign == TDM_SIGN_TRANSPORT || loss.sign == TDM_SIGN_CLOSED);
    close_timed(comm);
    return 0;
}

static void a_death_after_that_of_rank_0_is_noticed(void)
{
    party p = {.size = 4, .transport = "tcp", .rank = rank_that_loses_two};
    start(&p);
    CHECK(await(&shared->came, p.size, 30));
    kill(p.pids[0], SIGKILL);
    shared->struck = 1;
    CHECK(await(&shared->done, p.size - 2, 30));
    kill(p.pids[1], SIGKILL);
    shared->struck = 2;
    for (int k = 0; k < p.size; k++)
        CHECK_INT(world_end(p.pids[k]), k < 2 ? WORLD_SIGNALLED + SIGKILL : 0);
}

/* All but the stopped one time out and close their world; when it continues, it gets an error. */
static int rank_that_may_be_stopped(const party *p, int slot, int first_epoch)
{
    joiner j = {.epoch = (uint32_t)first_epoch};
    tdm_comm_options options = options_of(p, slot, &j);
    options.deadline_s = 0.5;
    tdm_comm *comm = NULL;
    tdm_error err = {0};
    CHECK_INT(tdm_comm_open(&options, &comm, &err), TDM_OK);
    if (!comm) return 1;
    shared->came++;
    tdm_status status = TDM_OK;
    while (status == TDM_OK) status = add_up(comm, &err);
    CHECK(is_of_peers(status));
    if (slot == shared->struck - 1 && shared->struck_s > 0) { /* it continues: the world is gone */
        CHECK(tdm_clock_s() < shared->struck_s + PROMPT_S);
        CHECK(is_of_peers(add_up(comm, &err)));
        CHECK(is_of_peers(tdm_group_check(tdm_comm_world(comm), &err)));
    }
    close_timed(comm);
    shared->done++;
    return 0;
}

static void a_stopped_rank_that_resumes_gets_an_error(void)
{
    double slowest_s = 0;
    for (int i = 0; i < (SLOW ? 2 : 3); i++) {
        party p = {.size = 3, .rank = rank_that_may_be_stopped};
        start(&p);
        int victim = i % p.size;
        CHECK(await(&shared->came, p.size, 30));
        check_sleep_s(0.01 * i);
        shared->struck = victim + 1;
        kill(p.pids[victim], SIGSTOP);
        CHECK(await(&shared->done, p.size - 1, 30));
        if (shared->slowest_close_s > slowest_s) slowest_s = shared->slowest_close_s;
        shared->struck_s = tdm_clock_s();
        kill(p.pids[victim], SIGCONT);
        for (int k = 0; k < p.size; k++) CHECK_INT(world_end(p.pids[k]), 0);
    }
    printf("     closed beside a stopped rank in %.1f ms at most\n", slowest_s * 1e3);
    CHECK(slowest_s < PROMPT_S);
}

static const check_test tests[] = {
    CHECK_TEST(epochs_follow_each_other),
    CHECK_TEST(a_death_while_joining_is_noticed),
    CHECK_TEST(a_stopped_rank_does_not_block_a_rank_that_may_give_up),
    CHECK_TEST(the_same_over_a_network),
    CHECK_TEST(a_rank_that_joined_and_died_is_not_awaited),
    CHECK_TEST(a_rank_that_waits_alone_can_be_cancelled),
    CHECK_TEST(old_epochs_are_refused),
    CHECK_TEST(a_death_is_noticed_while_all_compute),
    CHECK_TEST(a_death_after_that_of_rank_0_is_noticed),
    CHECK_TEST(a_stopped_rank_that_resumes_gets_an_error),
};

int main(int argc, char **argv)
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
