/*
 * os_maps_test.c: special kinds of address space: reserved, mapped to slots, and backed by files; the bytes
 * that the system counts for a process that shares pages with others; shared memory that outlives the processes
 * that use it, also if one of them is killed or stopped while it changes the table.
 */
#include "check.h"
#include "os/os.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void test_reserve_takes_memory_where_it_is_written(void)
{
    tdm_pages pages = {0};
    size_t bytes = (size_t)64 << 30; /* more than most machines have */
    tdm_status status = tdm_pages_reserve(bytes, &pages, NULL);
    if (status != TDM_OK) bytes = (size_t)1 << 30; /* if address space is limited */
    if (status != TDM_OK) CHECK_INT(tdm_pages_reserve(bytes, &pages, NULL), TDM_OK);
    CHECK(pages.bytes >= bytes);
    uint64_t before = tdm_os_resident_bytes();
    uint8_t *data = pages.data;
    for (size_t i = 0; i < 64; i++) {
        uint8_t *at = data + i * (bytes / 64);
        CHECK_INT(at[100], 0);
        at[100] = 9;
        CHECK_INT(at[100], 9);
    }
    CHECK(tdm_os_resident_bytes() - before < (8u << 20)); /* huge pages would take 128 MB */
    data[bytes - 1] = 1;
    tdm_pages_unmap(&pages);
    CHECK(pages.data == NULL);
    tdm_error err;
    CHECK_INT(tdm_pages_reserve(SIZE_MAX, &pages, &err), TDM_ERR_NO_MEMORY);
    CHECK_INT(tdm_pages_reserve((size_t)1 << 60, &pages, &err), TDM_ERR_NO_MEMORY);
}

static void test_overlay_shows_slots(void)
{
    size_t page = page_bytes();
    tdm_overlay o = {0};
    CHECK_INT(tdm_overlay_map(10 * page, 3 * page, &o, NULL), TDM_OK);
    static const size_t slot_of[] = {0, 1, 2, 1, 0, 2, 2, 0, 1, 0};
    for (size_t i = 0; i < 10; i++)
        CHECK_INT(tdm_overlay_lay(&o, i * page, page, slot_of[i] * page, NULL), TDM_OK);
    uint8_t *data = o.data;
    for (size_t i = 0; i < 10; i++) {
        data[i * page + 5] = (uint8_t)(i + 1);
        for (size_t j = 0; j < 10; j++)
            if (slot_of[i] == slot_of[j]) CHECK_INT(data[j * page + 5], i + 1);
    }
    CHECK_INT(tdm_overlay_lay(&o, 0, page, 2 * page, NULL), TDM_OK); /* again: to another slot */
    CHECK_INT(data[5], data[2 * page + 5]);
    CHECK_INT(tdm_overlay_lay(&o, 4 * page, 0, 0, NULL), TDM_OK);
    tdm_error err;
    CHECK_INT(tdm_overlay_lay(&o, 1, page, 0, &err), TDM_ERR_RANGE);
    CHECK_INT(tdm_overlay_lay(&o, 0, page, 1, &err), TDM_ERR_RANGE);
    CHECK_INT(tdm_overlay_lay(&o, 0, page / 2, 0, &err), TDM_ERR_RANGE);
    CHECK_INT(tdm_overlay_lay(&o, 9 * page, 2 * page, 0, &err), TDM_ERR_RANGE);
    CHECK_INT(tdm_overlay_lay(&o, 0, 2 * page, 2 * page, &err), TDM_ERR_RANGE);
    CHECK_INT(tdm_overlay_lay(&o, 11 * page, page, 0, &err), TDM_ERR_RANGE);
    CHECK_INT(tdm_overlay_lay(&o, 0, SIZE_MAX - page + 1, 0, &err), TDM_ERR_RANGE);
    tdm_overlay_unmap(&o);
    CHECK(o.data == NULL);
    tdm_overlay_unmap(&o); /* a second call has no effect */
}

static void test_file_map(void)
{
    const char *path = check_path("numbers");
    CHECK_INT(tdm_file_replace(path, "old", 3, NULL), TDM_OK);
    tdm_pages a = {0}, b = {0};
    size_t bytes = 3 * page_bytes() + 1;
    CHECK_INT(tdm_file_map_create(path, bytes, &a, NULL), TDM_OK);
    CHECK(a.bytes == 4 * page_bytes());
    struct stat info;
    CHECK_INT(stat(path, &info), 0);
    /* disk space is allocated, not only promised */
    CHECK(info.st_blocks * 512 >= (int64_t)a.bytes);
    CHECK_INT(tdm_file_map_open(path, bytes, &b, NULL), TDM_OK);
    CHECK_INT(unlink(path), 0);
    uint8_t *one = a.data, *other = b.data;
    size_t dirty = 0;
    for (size_t i = 0; i < a.bytes; i++) dirty += one[i] != 0;
    CHECK_INT(dirty, 0);
    one[bytes - 1] = 77;
    CHECK_INT(other[bytes - 1], 77);
    tdm_pages_unmap(&a);
    CHECK_INT(other[bytes - 1], 77);
    tdm_pages_unmap(&b);
}

static void test_file_map_in_parts(void)
{
    const char *path = check_path("parts");
    size_t mb = (size_t)1 << 20;
    tdm_pages map = {0};
    const tdm_file_part parts[] = {{mb, mb}, {40 * mb, 2 * mb}, {50 * mb, 0}};
    CHECK_INT(tdm_file_map_create_parts(path, 64 * mb, parts, 3, &map, NULL), TDM_OK);
    CHECK_INT(map.bytes, 64 * mb);
    struct stat info;
    CHECK_INT(stat(path, &info), 0);
    CHECK(info.st_blocks * 512 >= (int64_t)(3 * mb) && info.st_blocks * 512 < (int64_t)(5 * mb));
    ((uint8_t *)map.data)[mb] = 1;
    ((uint8_t *)map.data)[42 * mb - 1] = 2;
    tdm_pages_unmap(&map);
    tdm_error err;
    const tdm_file_part beyond = {63 * mb, 2 * mb};
    CHECK_INT(tdm_file_map_create_parts(path, 64 * mb, &beyond, 1, &map, &err), TDM_ERR_RANGE);
    CHECK(!tdm_path_exists(path));
}

static void test_file_map_failures(void)
{
    const char *path = check_path("full");
    tdm_error err;
    tdm_pages map = {0};
    tdm_os_test_fail_files(TDM_FAULT_WRITE, 1, ENOSPC);
    CHECK_INT(tdm_file_map_create(path, 10000, &map, &err), TDM_ERR_NO_SPACE);
    CHECK_HAS(err.message, path);
    tdm_os_test_fail_files(TDM_FAULT_OPEN, 1, EACCES);
    CHECK(tdm_file_map_create(path, 10000, &map, &err) != TDM_OK);
    CHECK(tdm_file_map_open(path, 10000, &map, &err) != TDM_OK);
    tdm_os_test_fail_files(0, 0, 0);
    CHECK(!tdm_path_exists(path)); /* a failure leaves nothing behind */
    CHECK(tdm_file_map_create(path, (size_t)1 << 55, &map, &err) != TDM_OK);
    CHECK(!tdm_path_exists(path));
    CHECK_INT(tdm_file_map_open(path, 10000, &map, &err), TDM_ERR_NOT_FOUND);
    CHECK_INT(tdm_file_replace(path, "short", 5, NULL), TDM_OK);
    CHECK_INT(tdm_file_map_open(path, 10000, &map, &err), TDM_ERR_FORMAT);
    CHECK(tdm_file_map_create(check_dir(), 10000, &map, &err) !=
          TDM_OK); /* an existing directory is not replaced */
    CHECK(tdm_path_is_dir(check_dir()) && map.data == NULL);
    unlink(path);
}

/* A page of two processes counts half for each. */
static void test_proportional_bytes(void)
{
    tdm_pages pages = {0};
    size_t bytes = 32u << 20;
    uint64_t before = tdm_os_proportional_bytes();
    if (before == 0) return; /* an old kernel */
    CHECK(before <= tdm_os_resident_bytes() + (1u << 20));
    CHECK_INT(tdm_pages_map(bytes, true, &pages, NULL), TDM_OK);
    memset(pages.data, 1, bytes);
    CHECK(tdm_os_proportional_bytes() >= before + bytes * 9 / 10);
    int pipes[2], done[2];
    CHECK(pipe(pipes) == 0 && pipe(done) == 0);
    pid_t child = fork();
    if (child == 0) {
        memset(pages.data, 2, bytes);
        char byte = 0;
        if (write(pipes[1], &byte, 1) != 1 || read(done[0], &byte, 1) != 1) _exit(1);
        _exit(0);
    }
    char byte = 0;
    CHECK_INT(read(pipes[0], &byte, 1), 1);
    CHECK(tdm_os_proportional_bytes() < before + bytes * 7 / 10);
    CHECK_INT(write(done[1], &byte, 1), 1);
    CHECK(waitpid(child, NULL, 0) == child);
    for (int i = 0; i < 2; i++) {
        close(pipes[i]);
        close(done[i]);
    }
    tdm_pages_unmap(&pages);
}

/* A process that is killed, or stopped permanently, immediately before its region has a name: the other
 * processes continue. */
static void shm_after(const char *request)
{
    tdm_shm *shm = NULL;
    tdm_error err = {0};
    void *first = NULL, *memory = NULL;
    int state = 0;
    bool is_new = false;
    CHECK_INT(tdm_shm_create(&shm, &err), TDM_OK);
    CHECK_INT(tdm_shm_region_take(shm, "first", 5000, &is_new, &first, &err), TDM_OK);
    CHECK(is_new);
    memcpy(first, "here", 5);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv("TANDEM_TEST_KILL", request, 1);
        (void)tdm_shm_region_take(shm, "second", 100, NULL, &memory, NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &state, WUNTRACED) == child);
    CHECK(WIFSTOPPED(state) || WIFSIGNALED(state));
    alarm(60);
    CHECK_INT(tdm_shm_region_find(shm, "second", NULL, &memory, &err), TDM_ERR_NOT_FOUND);
    if (WIFSTOPPED(state)) CHECK(waitpid(child, &state, 0) == child);
    CHECK(WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL);
    CHECK_INT(tdm_shm_region_take(shm, "second", 200, &is_new, &memory, &err), TDM_OK);
    CHECK(is_new);
    CHECK_INT(tdm_shm_region_find(shm, "first", NULL, &memory, &err), TDM_OK);
    CHECK(memory == first && memcmp(memory, "here", 5) == 0);
    alarm(0);
    tdm_shm_close(shm);
}

static void test_shm_outlives_its_users(void)
{
    shm_after("shm");
    shm_after("shm:signal=STOP");
}

/* A region is removed with its last user, and its name can be used again. */
static void regions_come_and_go(tdm_shm *shm)
{
    tdm_error err = {0};
    void *small = NULL, *large = NULL, *again = NULL;
    bool is_new = false;
    size_t bytes = 0, large_bytes = (size_t)5 << 20;
    CHECK_INT(tdm_shm_region_take(shm, "small", 100, NULL, &small, &err), TDM_OK);
    CHECK_INT(tdm_shm_region_take(shm, "large", large_bytes, NULL, &large, &err), TDM_OK);
    CHECK_INT((uintptr_t)large % (2 << 20), 0);
    CHECK_INT(tdm_shm_offset(shm, large) % (2 << 20), 0);
    memset(large, 1, large_bytes);
    CHECK(tdm_shm_at(shm, tdm_shm_offset(shm, (char *)large + 7)) == (char *)large + 7);

    /* Two uses in one process: the first release does not remove it. */
    CHECK_INT(tdm_shm_region_find(shm, "large", &bytes, &again, &err), TDM_OK);
    CHECK(again == large && bytes == large_bytes);
    tdm_shm_region_release(shm, again);
    CHECK(*(char *)large == 1);
    uint64_t offset = tdm_shm_offset(shm, large);
    tdm_shm_region_release(shm, large);
    CHECK(!tdm_shm_at(shm, offset));
    CHECK_INT(tdm_shm_region_find(shm, "large", NULL, &again, &err), TDM_ERR_NOT_FOUND);
    CHECK_INT(tdm_shm_region_take(shm, "large", 50, &is_new, &again, &err), TDM_OK);
    CHECK(is_new && *(char *)again == 0);
    CHECK_INT(tdm_shm_region_take(shm, "small", 101, NULL, &again, &err), TDM_ERR_EXISTS);
    tdm_shm_region_release(shm, NULL);
}

static void test_shm_regions_end_with_their_last_user(void)
{
    tdm_shm *shm = NULL, *other = NULL;
    tdm_error err = {0};
    void *memory = NULL, *theirs = NULL;
    CHECK_INT(tdm_shm_create_private(&shm, &err), TDM_OK);
    CHECK_INT(tdm_shm_fd(shm), -1);
    regions_come_and_go(shm);
    tdm_shm_close(shm);

    CHECK_INT(tdm_shm_create_for_node(&shm, &err), TDM_OK);
    regions_come_and_go(shm);
    /* Another user keeps it. */
    CHECK_INT(tdm_shm_attach(tdm_shm_fd(shm), &other, &err), TDM_OK);
    CHECK_INT(tdm_shm_region_take(shm, "both", 8, NULL, &memory, &err), TDM_OK);
    CHECK_INT(tdm_shm_region_find(other, "both", NULL, &theirs, &err), TDM_OK);
    strcpy(memory, "kept");
    tdm_shm_region_release(shm, memory);
    CHECK_TEXT(theirs, "kept");
    tdm_shm_region_release(other, theirs);
    CHECK_INT(tdm_shm_region_find(other, "both", NULL, &theirs, &err), TDM_ERR_NOT_FOUND);
    tdm_shm_close(other);
    tdm_shm_close(shm);
}

/* Before a case forks: its children use the directory as well. */
static void directory_make(void)
{
    check_dir();
}

static const check_test tests[] = {
    CHECK_TEST(test_reserve_takes_memory_where_it_is_written),
    CHECK_TEST(test_overlay_shows_slots),
    CHECK_TEST(test_file_map),
    CHECK_TEST(test_file_map_in_parts),
    CHECK_TEST(test_file_map_failures),
    CHECK_TEST(test_proportional_bytes),
    CHECK_TEST(test_shm_outlives_its_users),
    CHECK_TEST(test_shm_regions_end_with_their_last_user),
};

CHECK_MAIN_AROUND(tests, directory_make, NULL)
