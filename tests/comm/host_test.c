/*
 * host_test.c: the shared memory of a host, with real processes: blocks that are allocated and freed at random,
 * bells that are rung while their owner is about to sleep, ranks that are killed while they hold the lock,
 * unauthenticated peers on the socket, and leftovers (there must be none).
 */
#include "base/base.h"
#include "comm/count_in.h"
#include "host_bench.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>

#define MB ((size_t)1 << 20)

/* A host of one rank, in this process. */
static tdm__host *alone(void)
{
    int rank = 0;
    uint8_t address[HOST_BENCH_MAX_ADDRESS];
    size_t bytes = 0;
    tdm__host *host = NULL;
    tdm_error err = {0};
    tdm__host_options options = {.ranks = &rank, .count = 1, .world = HOST_BENCH_WORLD};
    CHECK_INT(tdm__host_create(&options, &host, address, &bytes, &err), TDM_OK);
    const uint8_t *addresses[] = {address};
    CHECK_INT(tdm__host_connect(host, addresses, &bytes, &err), TDM_OK);
    return host;
}

static int64_t resident_kb(const tdm__host *host)
{
    struct stat about;
    CHECK(fstat(host->memory_fd, &about) == 0);
    return (int64_t)about.st_blocks / 2;
}

static bool is_zero(const uint8_t *bytes, size_t count)
{
    return count == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0);
}

static void blocks_are_zero_and_reused(void)
{
    int fds = count_in("/proc/self/fd");
    tdm__host *host = alone();
    int64_t before_kb = resident_kb(host);
    const size_t sizes[] = {0, 1, 64, 4095, 4096, 4097, 3 * MB, 4 * MB, 33 * MB + 5};
    for (int round = 0; round < 2; round++) {
        uint64_t offsets[9];
        for (int i = 0; i < 9; i++) {
            CHECK_INT(tdm__host_alloc(host, sizes[i], &offsets[i], NULL), TDM_OK);
            uint8_t *at = tdm__host_at(host, offsets[i]);
            CHECK_INT(offsets[i] % 4096, 0);
            CHECK(is_zero(at, sizes[i]));
            memset(at, 0xa5, sizes[i]);
            for (int j = 0; j < i; j++)
                CHECK(offsets[j] + sizes[j] <= offsets[i] || offsets[i] + sizes[i] <= offsets[j]);
            CHECK_INT(tdm__host_offset(host, at, sizes[i]), offsets[i]);
        }
        CHECK(resident_kb(host) >= before_kb + 40 * 1024);
        for (int i = 0; i < 9; i++) tdm__host_free(host, offsets[i]);
        CHECK(resident_kb(host) < before_kb + 256);
        tdm__host_free(host, offsets[3]); /* not allocated: one log line, and no other effect */
    }
    int local = 0;
    CHECK(tdm__host_offset(host, &local, sizeof(local)) == UINT64_MAX);
    CHECK(tdm__host_offset(host, host->base + host->at.end - 4, 5) == UINT64_MAX);
    CHECK_INT(tdm__host_offset(host, host->base + host->at.end - 4, 4), host->at.end - 4);
    tdm__host_destroy(host);
    CHECK_INT(count_in("/proc/self/fd"), fds);
}

static void too_much_is_an_error(void)
{
    tdm__host *host = alone();
    tdm_error err = {0};
    uint64_t offset = 77;
    CHECK_INT(tdm__host_alloc(host, SIZE_MAX, &offset, &err), TDM_ERR_NO_MEMORY);
    CHECK_HAS(err.message, "MB of address space");
    CHECK_INT(tdm__host_alloc(host, host->at.end - 4096, &offset, &err), TDM_ERR_NO_MEMORY);
    CHECK_HAS(err.message, "MB left");
    CHECK_INT(offset, 77);

    /* Exhausts the address space with blocks that are never written, then frees all of it. */
    size_t block = host->at.end / 64;
    uint64_t offsets[64];
    int count = 0;
    while (count < 64 && tdm__host_alloc(host, block, &offsets[count], &err) == TDM_OK) count++;
    CHECK(count >= 60 && count < 64);
    CHECK_HAS(err.message, "has no space for");
    for (int i = 0; i < count; i += 2) tdm__host_free(host, offsets[i]);
    for (int i = 0; i < count; i += 2)
        CHECK_INT(tdm__host_alloc(host, block, &offsets[i], &err), TDM_OK);
    for (int i = 0; i < count; i++) tdm__host_free(host, offsets[i]);

    /* The same for the table, with the smallest blocks. */
    uint64_t *many = calloc(TDM__MAX_HOST_BLOCKS, sizeof(*many));
    int max = HOST_BENCH_SCALE(20000, 3000);
    for (int i = 0; i < max; i++) CHECK(tdm__host_alloc(host, 1, &many[i], &err) == TDM_OK);
    for (int i = 0; i < max; i++) tdm__host_free(host, many[i]);
    for (uint32_t i = 0; i < TDM__MAX_HOST_BLOCKS; i++) CHECK(host->records[i] == 0);
    /* A full table: filled directly, because allocating each entry would take too long. */
    for (uint32_t i = 0; i < TDM__MAX_HOST_BLOCKS; i++)
        host->records[i] = (host->at.small / 4096 + i) << 32 | 1;
    host->segment->record_high = TDM__MAX_HOST_BLOCKS;
    CHECK_INT(tdm__host_alloc(host, 1, &offset, &err), TDM_ERR_NO_MEMORY);
    CHECK_HAS(err.message, "65536 blocks");
    free(many);
    tdm__host_destroy(host);
}

static void bad_options_are_refused(void)
{
    const int two[] = {3, 3}, ranks[] = {1, 2};
    uint8_t address[HOST_BENCH_MAX_ADDRESS];
    size_t bytes;
    tdm__host *host = NULL;
    tdm__host_options options = {.rank = 3, .ranks = two, .count = 2};
    CHECK_INT(tdm__host_create(&options, &host, address, &bytes, NULL), TDM_ERR_INVALID);
    options = (tdm__host_options){.rank = 3, .ranks = ranks, .count = 2};
    CHECK_INT(tdm__host_create(&options, &host, address, &bytes, NULL), TDM_ERR_INVALID);
    options.count = 0;
    CHECK_INT(tdm__host_create(&options, &host, address, &bytes, NULL), TDM_ERR_RANGE);
    CHECK(host == NULL);
}

/* With little address space the segment is smaller, and still usable. */
static void small_address_space(void)
{
    if (HOST_BENCH_SANITIZED) return;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        check_failures = 0;
        struct rlimit limit = {.rlim_cur = 1ull << 30, .rlim_max = 1ull << 30};
        CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
        tdm__host *host = alone();
        CHECK(host && host->at.end < 1ull << 30);
        uint64_t offset;
        CHECK_INT(tdm__host_alloc(host, 20 * MB, &offset, NULL), TDM_OK);
        tdm__host_destroy(host);
        exit(check_failures != 0);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_INT(status, 0);
}

/* ---- several processes ------------------------------------------------------------------------- */

/* Waits until all processes have arrived. Counts in the slots of rank 0, so that no arrival is lost. */
static void meet(host_bench *b, uint64_t round)
{
    _Atomic uint64_t *come = tdm__host_slot(b->host, 0, 0);
    if (atomic_fetch_add(come, 1) + 1 == round * (uint64_t)b->size)
        for (int i = 0; i < b->size; i++) tdm__host_ring(b->host, i);
    for (;;) {
        uint32_t bell = tdm__host_bell(b->host);
        if (atomic_load(come) >= round * (uint64_t)b->size) return;
        tdm__host_wait(b->host, bell, 60, NULL, 0);
    }
}

static void random_blocks(host_bench *b)
{
    enum { HELD = 24 };
    uint64_t held[HELD] = {0};
    size_t sizes[HELD];
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 5, .stream = (uint32_t)b->rank});
    int rounds = HOST_BENCH_SCALE(4000, 300);
    for (int round = 0; round < rounds; round++) {
        int at = (int)tdm_rng_below(&rng, HELD);
        if (held[at]) {
            uint8_t *bytes = tdm__host_at(b->host, held[at]);
            for (size_t i = 0; i < sizes[at]; i += 509) CHECK(bytes[i] == (uint8_t)(b->rank + 1));
            tdm__host_free(b->host, held[at]);
            held[at] = 0;
            continue;
        }
        sizes[at] = 1 + tdm_rng_below(&rng, round % 50 == 0 ? 5 * MB : 40000);
        CHECK_INT(tdm__host_alloc(b->host, sizes[at], &held[at], NULL), TDM_OK);
        uint8_t *bytes = tdm__host_at(b->host, held[at]);
        for (size_t i = 0; i < sizes[at]; i += 509) {
            CHECK(bytes[i] == 0);
            bytes[i] = (uint8_t)(b->rank + 1);
        }
    }
    for (int at = 0; at < HELD; at++)
        if (held[at]) tdm__host_free(b->host, held[at]);
    meet(b, 1);
    for (uint32_t i = 0; i < b->host->segment->record_high; i++) CHECK(b->host->records[i] == 0);
    CHECK(resident_kb(b->host) < 1024);
}

static void blocks_by_many(void)
{
    host_bench_run(&(host_bench_options){.size = 4, .body = random_blocks});
    host_bench_run(&(host_bench_options){.size = 2, .body = random_blocks});
}

/* Pairs play ping-pong: the slot [even][odd] contains whose turn it is. */
static void ping_pong(host_bench *b)
{
    int partner = b->rank ^ 1;
    _Atomic uint64_t *turn = tdm__host_slot(b->host, b->rank & ~1, b->rank | 1);
    const uint64_t rounds = *(const uint64_t *)b->context;
    for (uint64_t at = (uint64_t)(b->rank & 1); at < rounds; at += 2) {
        while (atomic_load_explicit(turn, memory_order_acquire) != at) {
            uint32_t bell = tdm__host_bell(b->host);
            if (atomic_load_explicit(turn, memory_order_acquire) == at) break;
            double begin_s = tdm_clock_s();
            tdm__host_wait(b->host, bell, 20, NULL, 0);
            bool lost = tdm_clock_s() - begin_s > 19 && atomic_load(turn) == at;
            CHECK(!lost);
            if (lost) return;
        }
        atomic_store_explicit(turn, at + 1, memory_order_release);
        tdm__host_ring(b->host, partner);
    }
}

static void no_ring_is_lost(void)
{
    /* one pair or two pairs: a million handshakes */
    uint64_t rounds = HOST_BENCH_SCALE(500000, 4000);
    host_bench_run(&(host_bench_options){.size = 4, .body = ping_pong, .context = &rounds});
    rounds = HOST_BENCH_SCALE(100000, 2000);
    host_bench_run(&(host_bench_options){.size = 2, .body = ping_pong, .context = &rounds});
    rounds = HOST_BENCH_SCALE(20000, 1000);
    host_bench_run(&(host_bench_options){.size = 8, .body = ping_pong, .context = &rounds});
}

/* The same with a bell in poll(): the pipe never becomes readable. */
static void ping_pong_poll(host_bench *b)
{
    int quiet[2];
    CHECK(pipe2(quiet, O_CLOEXEC) == 0);
    int partner = b->rank ^ 1;
    _Atomic uint64_t *turn = tdm__host_slot(b->host, b->rank & ~1, b->rank | 1);
    const uint64_t rounds = HOST_BENCH_SCALE(40000, 1000);
    for (uint64_t at = (uint64_t)(b->rank & 1); at < rounds; at += 2) {
        for (;;) {
            uint32_t bell = tdm__host_bell(b->host);
            if (atomic_load_explicit(turn, memory_order_acquire) == at) break;
            double begin_s = tdm_clock_s();
            /* Half of the waits are without file descriptors: both kinds may be mixed. */
            tdm__host_wait(b->host, bell, 20, quiet, at % 4 < 2 ? 1 : 0);
            bool lost = tdm_clock_s() - begin_s > 19 && atomic_load(turn) == at;
            CHECK(!lost);
            if (lost) goto out;
        }
        atomic_store_explicit(turn, at + 1, memory_order_release);
        tdm__host_ring(b->host, partner);
    }
out:
    close(quiet[0]);
    close(quiet[1]);
}

static void waits_with_fds(host_bench *b)
{
    ping_pong_poll(b);
    meet(b, 1);
    /* A readable descriptor ends it, and so does the timeout. */
    int talk[2];
    CHECK(pipe2(talk, O_CLOEXEC) == 0);
    double begin_s = tdm_clock_s();
    uint32_t bell = tdm__host_bell(b->host);
    tdm__host_wait(b->host, bell, 0.05, talk, 1);
    /* Unless the ring of the last one, for the barrier, arrived only now. */
    CHECK(tdm__host_rung(b->host, bell) || tdm_clock_s() - begin_s >= 0.049);
    CHECK(write(talk[1], "x", 1) == 1);
    begin_s = tdm_clock_s();
    tdm__host_wait(b->host, tdm__host_bell(b->host), 30, talk, 1);
    CHECK(tdm_clock_s() - begin_s < 20);
    /* A descriptor that was armed becomes readable when the bell is rung. */
    bell = tdm__host_bell(b->host);
    CHECK_INT(tdm__host_arm(b->host, bell), b->host->bell_fd);
    tdm__host_ring(b->host, b->rank);
    char byte;
    CHECK(recv(b->host->bell_fd, &byte, 1, MSG_DONTWAIT) == 1);
    CHECK(tdm__host_rung(b->host, bell));
    CHECK_INT(tdm__host_arm(b->host, bell), -1);
    begin_s = tdm_clock_s();
    tdm__host_wait(b->host, bell, 30, talk, 1);
    CHECK(tdm_clock_s() - begin_s < 20);
    close(talk[0]);
    close(talk[1]);
}

static void bells_in_poll(void)
{
    host_bench_run(&(host_bench_options){.size = 4, .with_fds = true, .body = waits_with_fds});
    host_bench_run(&(host_bench_options){.size = 2, .with_fds = false, .body = waits_with_fds});
}

static void timeouts(void)
{
    tdm__host *host = alone();
    uint32_t bell = tdm__host_bell(host);
    double begin_s = tdm_clock_s();
    tdm__host_wait(host, bell, 0.05, NULL, 0);
    double took_s = tdm_clock_s() - begin_s;
    CHECK(took_s >= 0.049);
    CHECK(took_s < 20);
    tdm__host_ring(host, 0); /* before the wait: the wait must not sleep */
    begin_s = tdm_clock_s();
    tdm__host_wait(host, bell, 30, NULL, 0);
    tdm__host_wait(host, tdm__host_bell(host), 0, NULL, 0);
    tdm__host_wait(host, tdm__host_bell(host), -1, NULL, 0);
    tdm__host_wait(host, tdm__host_bell(host), (double)NAN, NULL, 0);
    CHECK(tdm_clock_s() - begin_s < 20);
    tdm__host_destroy(host);
}

/* ---- death ------------------------------------------------------------------------------------- */

static void dies_with_the_lock(host_bench *b)
{
    if (b->rank == 1) {
        pthread_mutex_lock(&b->host->segment->lock.mutex);
        atomic_store(tdm__host_slot(b->host, 1, 1), 1);
        tdm__host_ring(b->host, 0);
        tdm__host_ring(b->host, 2);
        kill(getpid(), SIGKILL);
    }
    for (;;) {
        uint32_t bell = tdm__host_bell(b->host);
        if (atomic_load(tdm__host_slot(b->host, 1, 1))) break;
        tdm__host_wait(b->host, bell, 20, NULL, 0);
    }
    uint64_t offsets[50];
    for (int i = 0; i < 50; i++)
        CHECK_INT(tdm__host_alloc(b->host, 5000, &offsets[i], NULL), TDM_OK);
    for (int i = 0; i < 50; i++) tdm__host_free(b->host, offsets[i]);
}

static void the_lock_of_a_dead_holder_is_taken(void)
{
    int ends[3];
    host_bench_run(&(host_bench_options){.size = 3, .body = dies_with_the_lock, .out_ends = ends});
    CHECK_INT(ends[0], HOST_BENCH_ENDED_WELL);
    CHECK_INT(ends[1], HOST_BENCH_KILLED);
    CHECK_INT(ends[2], HOST_BENCH_ENDED_WELL);
}

/* Rank 0 allocates, checks and frees; its neighbours do the same until they are killed meanwhile. */
static void killed_at_random(host_bench *b)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 9, .stream = (uint32_t)b->rank});
    if (b->rank > 0) {
        struct timespec when = {.tv_nsec = (long)(1000000 + tdm_rng_below(&rng, 40000000))};
        pid_t me = getpid();
        if (fork() == 0) {
            nanosleep(&when, NULL);
            kill(me, SIGKILL);
            _exit(0);
        }
    }
    double until_s = tdm_clock_s() + (b->rank > 0 ? 60 : 0.4);
    while (tdm_clock_s() < until_s) {
        uint64_t offset;
        CHECK_INT(tdm__host_alloc(b->host, 1 + tdm_rng_below(&rng, 20000), &offset, NULL), TDM_OK);
        uint8_t *at = tdm__host_at(b->host, offset);
        CHECK(*at == 0);
        *at = 1;
        tdm__host_free(b->host, offset);
    }
}

static void blocks_outlive_killed_ranks(void)
{
    for (int round = 0; round < HOST_BENCH_SCALE(6, 2); round++) {
        int ends[5];
        host_bench_run(
            &(host_bench_options){.size = 5, .body = killed_at_random, .out_ends = ends});
        CHECK_INT(ends[0], HOST_BENCH_ENDED_WELL);
        for (int i = 1; i < 5; i++) CHECK_INT(ends[i], HOST_BENCH_KILLED);
    }
}

/* ---- strangers --------------------------------------------------------------------------------- */

static int connect_to(const char *name, size_t bytes)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    memcpy(to.sun_path + 1, name, bytes);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (const struct sockaddr *)&to,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes)) == 0)
        return fd;
    close(fd);
    return -1;
}

enum { STRANGERS = 6 };

static void strangers_come(const char *name, size_t bytes, void *context)
{
    int *fds = context;
    for (int i = 0; i < STRANGERS; i++) {
        fds[i] = connect_to(name, bytes);
        CHECK(fds[i] >= 0);
        char garbage[4096];
        memset(garbage, 0x41 + i, sizeof(garbage));
        if (i % 3 == 1) CHECK(send(fds[i], garbage, sizeof(garbage), MSG_NOSIGNAL) > 0);
        if (i % 3 == 2) CHECK(send(fds[i], garbage, 3, MSG_NOSIGNAL) == 3);
    }
    if (geteuid() != 0) return;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        /* A process of another user. Its connection ends without a byte, or arrives after the socket was
         * closed. */
        if (setuid(65534) != 0) _exit(1);
        int fd = connect_to(name, bytes);
        char byte;
        _exit(fd < 0 || recv(fd, &byte, 1, 0) <= 0 ? 0 : 1);
    }
    fds[STRANGERS] = pid;
}

static void unauthenticated_connections_are_refused(void)
{
    int fds[STRANGERS + 1] = {0};
    host_bench_run(&(host_bench_options){
        .size = 3, .body = random_blocks, .meanwhile = strangers_come, .context = fds});
    for (int i = 0; i < STRANGERS; i++) {
        char bytes[64];
        CHECK(recv(fds[i], bytes, sizeof(bytes), 0) <= 0); /* closed, without a byte */
        close(fds[i]);
    }
    if (fds[STRANGERS] > 0) {
        int status = -1;
        CHECK(waitpid(fds[STRANGERS], &status, 0) == fds[STRANGERS]);
        CHECK_INT(status, 0);
    }
}

static void nothing(host_bench *b)
{
    CHECK(tdm__host_count(b->host) == b->size && tdm__host_index(b->host) == b->rank);
}

static void little_room_for_two(int rank, void *context)
{
    (void)context;
    struct rlimit limit = {.rlim_cur = 200 * MB, .rlim_max = 200 * MB};
    if (rank == 2) CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

static void dies_before_it_asks(int rank, void *context)
{
    (void)context;
    if (rank == 0) exit(HOST_BENCH_ENDED_BADLY);
}

/* If one rank cannot map the memory, all ranks get the error with the number of that rank. */
static void one_cannot_map(int *ends, tdm_error *errors)
{
    host_bench_run(&(host_bench_options){.size = 3,
                                         .body = nothing,
                                         .before = little_room_for_two,
                                         .out_ends = ends,
                                         .out_errors = errors});
    for (int i = 0; i < 3; i++) CHECK_INT(ends[i], HOST_BENCH_NOT_CONNECTED);
    CHECK_INT(errors[0].status, TDM_ERR_PEER_FAILED);
    CHECK_HAS(errors[0].message, "rank 2 could not map");
    CHECK_INT(errors[1].status, TDM_ERR_PEER_FAILED);
    CHECK_INT(errors[2].status, TDM_ERR_NO_MEMORY);
    CHECK_HAS(errors[2].message, "ulimit -v");
}

static void all_or_none(void)
{
    tdm_error *errors = mmap(NULL, 3 * sizeof(*errors), PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int ends[3];
    if (!HOST_BENCH_SANITIZED) one_cannot_map(ends, errors);
    host_bench_run(&(host_bench_options){.size = 3,
                                         .body = nothing,
                                         .before = dies_before_it_asks,
                                         .out_ends = ends,
                                         .out_errors = errors});
    CHECK_INT(ends[1], HOST_BENCH_NOT_CONNECTED);
    CHECK_INT(ends[2], HOST_BENCH_NOT_CONNECTED);
    CHECK_HAS(errors[1].message, "rank 0");
    munmap(errors, 3 * sizeof(*errors));
}

static void how_long_to_spin(host_bench *b)
{
    int usable = 0;
    for (int w = 0; w < TDM__HOST_MASK_WORDS; w++)
        usable += __builtin_popcountll(b->host->cells[b->rank].mask[w]);
    CHECK(usable > 0);
    if (b->size > usable) CHECK_INT(tdm__host_spins(b->host), 0);
}

static void spinning(void)
{
    host_bench_run(&(host_bench_options){.size = 16, .body = how_long_to_spin});
    host_bench_run(&(host_bench_options){.size = 1, .body = how_long_to_spin});
}

static const check_test tests[] = {
    CHECK_TEST(blocks_are_zero_and_reused),
    CHECK_TEST(too_much_is_an_error),
    CHECK_TEST(bad_options_are_refused),
    CHECK_TEST(small_address_space),
    CHECK_TEST(blocks_by_many),
    CHECK_TEST(no_ring_is_lost),
    CHECK_TEST(bells_in_poll),
    CHECK_TEST(timeouts),
    CHECK_TEST(the_lock_of_a_dead_holder_is_taken),
    CHECK_TEST(blocks_outlive_killed_ranks),
    CHECK_TEST(unauthenticated_connections_are_refused),
    CHECK_TEST(all_or_none),
    CHECK_TEST(spinning),
};

CHECK_MAIN(tests)
