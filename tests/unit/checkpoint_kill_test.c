/*
 * checkpoint_kill_test.c: kills and faults while a checkpoint is written, at every kind of point. In every case
 * the newest good checkpoint can be loaded, with the right numbers, and the next save cleans up the directory.
 *
 * - A writer kills itself with SIGKILL at a random byte of its output, or before or after any fsync, rename or
 * unlink: this program defines write(), pwrite() and others, which replace those of the system.
 * - A writer is killed by another process at a random time.
 * - Each operation of a writer fails in turn, with each of several errors.
 *
 * Plain and compressed files; files written by one process and by several together.
 */
#include "base/base.h"
#include "check.h"
#include "checkpoint/checkpoint.h"
#include "os/os.h"
#include "unit/checkpoint_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { BYTE_KILLS = 40, TIMED_KILLS = 10 };
#else
enum { BYTE_KILLS = 480, TIMED_KILLS = 100 };
#endif

enum { TENSORS = 4, STEPS_KEPT = 2 };

/* ---- a process that ends at a byte ------------------------------------------------------------- */

static atomic_long bytes_left = -1;      /* until the process is killed; below zero: never */
static atomic_long operations_left = -1; /* the same with fsync, rename, unlink */

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* The number of bytes, of `count`, that may be written. */
static size_t allowance(size_t count)
{
    long left = atomic_load(&bytes_left);
    return left < 0 || (long)count <= left ? count : (size_t)left;
}

static void spend(size_t asked, ssize_t written)
{
    if (atomic_load(&bytes_left) < 0 || written < 0) return;
    if (atomic_fetch_sub(&bytes_left, written) - written <= 0 || written < (ssize_t)asked) die();
}

ssize_t write(int fd, const void *bytes, size_t count)
{
    size_t some = fd > 2 ? allowance(count) : count;
    ssize_t written = syscall(SYS_write, fd, bytes, some);
    if (fd > 2) spend(count, written);
    return written;
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset)
{
    size_t some = allowance(count);
    ssize_t written = syscall(SYS_pwrite64, fd, bytes, some, offset);
    spend(count, written);
    return written;
}

/* Even numbers kill before the operation, odd ones after it. */
static long operate(long number, long a, long b, long c, long d, long e)
{
    if (atomic_load(&operations_left) >= 0 && atomic_fetch_sub(&operations_left, 1) == 0) die();
    long result = syscall(number, a, b, c, d, e);
    if (atomic_load(&operations_left) >= 0 && atomic_fetch_sub(&operations_left, 1) == 0) die();
    return result;
}

int fsync(int fd)
{
    return (int)operate(SYS_fsync, fd, 0, 0, 0, 0);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return (int)operate(SYS_renameat2, from_fd, (long)from, to_fd, (long)to, 0);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    return (int)operate(SYS_renameat2, from_fd, (long)from, to_fd, (long)to, (long)flags);
}

int unlink(const char *path)
{
    return (int)operate(SYS_unlinkat, AT_FDCWD, (long)path, 0, 0, 0);
}

int unlinkat(int fd, const char *path, int flags)
{
    return (int)operate(SYS_unlinkat, fd, (long)path, flags, 0, 0);
}

/* ---- saving and looking ------------------------------------------------------------------------- */

static void path_of(uint64_t step, bool packed, char out[512])
{
    tdm_arena *arena = tdm_arena_create("test");
    const char *path = packed ? tdm_checkpoint_packed_path(arena, check_dir(), step)
                              : tdm_checkpoint_path(arena, check_dir(), step);
    snprintf(out, 512, "%s", path);
    tdm_arena_destroy(arena);
}

static tdm_status save(uint64_t step, bool packed, tdm_error *err)
{
    sample_state s;
    char path[512];
    fill_state(&s, step);
    path_of(step, packed, path);
    TDM_TRY(tdm_checkpoint_save(path, &s.content, err));
    tdm_checkpoint_metrics metrics = {.loss = 1.0 / (double)(step + 1), .accuracy = 0.5};
    tdm_checkpoint_retention rules = {.keep = STEPS_KEPT};
    TDM_TRY(tdm_checkpoint_note(check_dir(), step, &metrics, err));
    return tdm_checkpoint_retain(check_dir(), &rules, step, err);
}

/* The step of the newest good checkpoint, whose numbers are those of that step. */
static uint64_t check_newest(void)
{
    tdm_arena *arena = tdm_arena_create("test");
    tdm_error err;
    char *path = NULL;
    uint64_t step = UINT64_MAX;
    tdm_checkpoint *checkpoint = NULL;
    tdm_status status = tdm_checkpoint_newest(check_dir(), arena, &path, &err);
    CHECK_INT(status, TDM_OK);
    if (status != TDM_OK) fprintf(stderr, "%s\n", err.message);
    if (status == TDM_OK) CHECK_INT(tdm_checkpoint_open(path, &checkpoint, &err), TDM_OK);
    if (checkpoint) {
        step = tdm_checkpoint_content_of(checkpoint)->position.step;
        sample_state s;
        fill_state(&s, step);
        for (int i = 0; i < TENSORS; i++) {
            const tdm_named_tensor *found = tdm_checkpoint_find(checkpoint, s.tensors[i].name);
            size_t bytes = tdm_tensor_bytes(&s.tensors[i].tensor);
            CHECK(found != NULL);
            if (found && bytes > 0)
                CHECK(same_bytes(found->tensor.data, s.tensors[i].tensor.data, bytes));
        }
    }
    tdm_checkpoint_destroy(checkpoint);
    tdm_arena_destroy(arena);
    return step;
}

/* After a successful save of `step` the directory has no traces of failures. */
static void check_mended(uint64_t step)
{
    tdm_error err;
    CHECK_INT(save(step, false, &err), TDM_OK);
    CHECK_INT(check_newest(), step);
    CHECK(directory_entries() <= 2 * STEPS_KEPT + 1); /* plain and compressed, and the index */
    tdm_arena *arena = tdm_arena_create("test");
    const char *const *names = NULL;
    size_t count = 0;
    CHECK_INT(tdm_dir_list(check_dir(), arena, &names, &count, NULL), TDM_OK);
    for (size_t i = 0; i < count; i++) CHECK(names[i][0] != '.');
    tdm_arena_destroy(arena);
}

static bool packs(void)
{
    char library[TDM_LIBRARY_BYTES];
    return tdm_checkpoint_packs(library);
}

/* Runs `task` in a child, which must be killed or succeed; true if it was killed. */
static bool in_child(void (*task)(uint64_t step, bool packed), uint64_t step, bool packed,
                     unsigned kill_after_us)
{
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        check_failures = 0; /* of this process only */
        task(step, packed);
        _exit(check_failures > 0);
    }
    if (kill_after_us > 0) {
        usleep(kill_after_us);
        kill(pid, SIGKILL);
    }
    int state = 0;
    while (waitpid(pid, &state, 0) < 0 && errno == EINTR) continue;
    bool killed = WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL;
    CHECK(killed || state == 0);
    return killed;
}

static void save_once(uint64_t step, bool packed)
{
    tdm_error err;
    CHECK_INT(save(step, packed, &err), TDM_OK);
}

/* Another process may write half of the file: it joins the file, and sends its digests back through a pipe.
 * */
static void save_by_two(uint64_t step, bool packed)
{
    sample_state s;
    tdm_error err;
    char path[512];
    fill_state(&s, step);
    path_of(step, packed, path);
    tdm_arena *arena = tdm_arena_create("test");
    tdm_checkpoint_writer *writer = NULL;
    tdm_checkpoint_invitation invitation;
    tdm_state_chunk *chunks = NULL;
    size_t count = 0;
    char(*digests)[TDM_SHA256_HEX] = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK_INT(tdm_checkpoint_writer_create(path, &s.content, &writer, &err), TDM_OK);
    CHECK_INT(tdm_checkpoint_writer_invite(writer, &invitation, &err), TDM_OK);
    CHECK_INT(tdm_state_chunks(s.tensors, TENSORS, arena, &chunks, &count, &err), TDM_OK);
    pid_t other = fork();
    if (other == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    tdm_file_writer *part = NULL;
    tdm_status joined = tdm_file_writer_join(invitation.temporary, &part, &err);
    /* the first process and the file are gone already */
    if (other == 0 && joined != TDM_OK) _exit(1);
    CHECK_INT(joined, TDM_OK);
    for (size_t i = other == 0; i < count; i += 2) {
        const char *bytes = (const char *)s.tensors[chunks[i].tensor].tensor.data +
                            chunks[i].offset;
        CHECK_INT(tdm_sha256_of(bytes, chunks[i].bytes, digests[i]), TDM_OK);
        CHECK_INT(tdm_file_writer_write_at(part, invitation.data_at + chunks[i].place, bytes,
                                           chunks[i].bytes, &err),
                  TDM_OK);
    }
    tdm_file_writer_abandon(part);
    if (other == 0) _exit(0);
    int state = 0;
    CHECK_INT(waitpid(other, &state, 0), other);
    if (state != 0) die(); /* its half is missing: a real writer would be notified, and give up */
    for (size_t i = 0; i < count; i++)
        CHECK_INT(tdm_checkpoint_writer_accept(writer, i, digests[i], &err), TDM_OK);
    CHECK_INT(tdm_checkpoint_writer_commit(writer, NULL, &err), TDM_OK);
    tdm_arena_destroy(arena);
}

/* An empty directory, in memory, because the tests sync often. */
static void directory_make(void)
{
    check_dir_reset();
    check_memory_dir();
}

/* ---- kills -------------------------------------------------------------------------------------- */

static uint64_t newest_step; /* that is known to be valid */

/* After a kill, the state is either the previous or the new one. */
static void check_after_kill(uint64_t step)
{
    uint64_t found = check_newest();
    CHECK(found == newest_step || found == step);
    newest_step = found;
}

static void test_kills_at_bytes(void)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 5, .stream = TDM_RNG_STREAM_USER});
    int kills = 0;
    newest_step = 0;
    save_once(0, false);
    for (int i = 1; i <= BYTE_KILLS; i++) {
        bool packed = packs() && i % 4 == 0;
        void (*task)(uint64_t, bool) = i % 5 == 0 ? save_by_two : save_once;
        if (i % 3 == 0)
            atomic_store(&operations_left, (long)tdm_rng_below(&rng, 14));
        else /* a file has about 3,900 bytes, and the index follows */
            atomic_store(&bytes_left, (long)tdm_rng_below(&rng, 4100));
        bool killed = in_child(task, (uint64_t)i, packed, 0);
        atomic_store(&bytes_left, -1);
        atomic_store(&operations_left, -1);
        kills += killed;
        check_after_kill((uint64_t)i);
        if (!killed) CHECK_INT(newest_step, i);
        if (i % 10 != 0) continue;
        check_mended((uint64_t)i);
        newest_step = (uint64_t)i;
    }
    printf("     %d of %d writers were killed at a byte or an operation\n", kills, BYTE_KILLS);
    CHECK(kills > BYTE_KILLS * 3 / 4);
}

/* Saves until it is killed. */
static void save_for_ever(uint64_t step, bool packed)
{
    tdm_error err;
    for (;; step++) CHECK_INT(save(step, packed && step % 2, &err), TDM_OK);
}

static void test_kills_at_times(void)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 6, .stream = TDM_RNG_STREAM_USER});
    save_once(0, false);
    uint64_t step = 0;
    for (int i = 0; i < TIMED_KILLS; i++) {
        CHECK(
            in_child(save_for_ever, step + 1, packs(), 500 + (unsigned)tdm_rng_below(&rng, 9000)));
        uint64_t found = check_newest();
        CHECK(found >= step); /* never back */
        step = found;
    }
    check_mended(step + 1);
}

/* ---- faults ------------------------------------------------------------------------------------- */

/* Each operation fails in turn: the last good checkpoint can be loaded, and nothing is left behind. */
static void fail_each(unsigned mask, int error_number, bool packed)
{
    int failures = 0;
    for (int k = 1; k < 100; k++) {
        tdm_error err;
        CHECK_INT(save(1, false, &err), TDM_OK);
        tdm_os_test_fail_files(mask, k, error_number);
        tdm_status status = save(2, packed, &err);
        tdm_os_test_fail_files(0, 0, 0);
        uint64_t found = check_newest();
        /* The index is written last: if that fails, the checkpoint exists. */
        CHECK(found == 1 || found == 2);
        if (status == TDM_OK) CHECK_INT(found, 2);
        if (status != TDM_OK) CHECK_INT(status, tdm_os_errno_status(error_number));
        check_mended(3);
        directory_make();
        if (status == TDM_OK) break;
        failures++;
    }
    CHECK(failures > 0);
}

static void test_faults(void)
{
    static const int errors[] = {ENOSPC, EIO, EROFS};
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        fail_each(TDM_FAULT_ALL, errors[i], false);
        if (packs()) fail_each(TDM_FAULT_ALL, errors[i], true);
    }
    fail_each(TDM_FAULT_WRITE, EIO, false);
    fail_each(TDM_FAULT_FSYNC, EIO, false);
    fail_each(TDM_FAULT_RENAME, EIO, false);
}

/* A file that was damaged after it was written is skipped, for any kind of damage. */
static void test_damage_later(void)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 7, .stream = TDM_RNG_STREAM_USER});
    for (int i = 0; i < 60; i++) {
        bool packed = packs() && i % 2;
        char path[512];
        tdm_error err;
        CHECK_INT(save(1, false, &err), TDM_OK);
        CHECK_INT(save(2, packed, &err), TDM_OK);
        path_of(2, packed, path);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        off_t size = lseek(fd, 0, SEEK_END), at = (off_t)tdm_rng_below(&rng, (uint64_t)size);
        char byte = 0;
        CHECK_INT(pread(fd, &byte, 1, at), 1);
        if (i % 3 == 0) {
            CHECK_INT(ftruncate(fd, at), 0);
        } else {
            byte = (char)(byte ^ (1 << i % 8));
            CHECK_INT(pwrite(fd, &byte, 1, at), 1);
        }
        close(fd);
        CHECK_INT(check_newest(), 1);
        directory_make();
    }
}

static const check_test tests[] = {
    CHECK_TEST(test_kills_at_bytes),
    CHECK_TEST(test_kills_at_times),
    CHECK_TEST(test_faults),
    CHECK_TEST(test_damage_later),
};

CHECK_MAIN_AROUND(tests, directory_make, NULL)
