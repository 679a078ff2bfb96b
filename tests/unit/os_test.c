/*
 * os_test.c: the module os with the real system: files in a temporary directory, real pipes, and atomic
 * replacements in which every single operation fails in turn.
 */
#include "check.h"
#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* The number of names in the directory, including hidden ones. */
static int directory_entries(void)
{
    tdm_arena *arena = tdm_arena_create("test");
    const char *const *names = NULL;
    size_t count = 0;
    CHECK_INT(tdm_dir_list(check_dir(), arena, &names, &count, NULL), TDM_OK);
    tdm_arena_destroy(arena);
    return (int)count;
}

static void check_content(const char *path, const char *expected)
{
    tdm_error err;
    tdm_file_bytes bytes = {0};
    CHECK_INT(tdm_file_read(path, 0, &bytes, &err), TDM_OK);
    CHECK_INT(bytes.count, strlen(expected));
    CHECK(bytes.count == strlen(expected) && memcmp(bytes.data, expected, bytes.count) == 0);
    tdm_file_bytes_release(&bytes);
    CHECK(bytes.data == NULL);
}

/* ---- reading --------------------------------------------------------------------------------- */

static void test_read_sizes(void)
{
    tdm_error err;
    const size_t sizes[] = {0, 1, 4095, 4096, 4097, 262143, 262144, 1000003};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint8_t *data = malloc(sizes[i] + 1);
        for (size_t j = 0; j < sizes[i]; j++) data[j] = (uint8_t)(j * 31 + i);
        const char *path = check_path("sized");
        CHECK_INT(tdm_file_replace(path, data, sizes[i], &err), TDM_OK);
        tdm_file_bytes bytes = {0};
        CHECK_INT(tdm_file_read(path, 0, &bytes, &err), TDM_OK);
        CHECK_INT(bytes.count, sizes[i]);
        CHECK(bytes.data != NULL && memcmp(bytes.data, data, sizes[i]) == 0);
        CHECK_INT(bytes.mapped, sizes[i] >= 262144);
        tdm_file_bytes_release(&bytes);

        if (sizes[i] > 1) {
            CHECK_INT(tdm_file_read(path, sizes[i], &bytes, &err), TDM_OK);
            tdm_file_bytes_release(&bytes);
            CHECK_INT(tdm_file_read(path, sizes[i] - 1, &bytes, &err), TDM_ERR_RANGE);
            CHECK_HAS(err.message, path);
            CHECK(bytes.data == NULL);
        }
        free(data);
    }
}

static void test_read_unknown_size(void)
{
    tdm_file_bytes bytes = {0};
    tdm_error err;
    CHECK_INT(tdm_file_read("/proc/self/status", 0, &bytes, &err), TDM_OK);
    CHECK(bytes.count > 100 && memcmp(bytes.data, "Name:", 5) == 0);
    tdm_file_bytes_release(&bytes);
    CHECK_INT(tdm_file_read("/proc/self/status", 100, &bytes, &err), TDM_ERR_RANGE);
}

static void test_read_refuses_other_than_files(void)
{
    tdm_error err;
    tdm_file_bytes bytes = {0};
    CHECK_INT(tdm_file_read(check_path("absent"), 0, &bytes, &err), TDM_ERR_NOT_FOUND);
    CHECK_HAS(err.message, "absent");
    CHECK_INT(tdm_file_read(check_dir(), 0, &bytes, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "a directory");
    CHECK_INT(mkfifo(check_path("pipe"), 0600), 0);
    CHECK_INT(tdm_file_read(check_path("pipe"), 0, &bytes, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "a pipe");
    CHECK_INT(tdm_file_read("/dev/zero", 0, &bytes, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "a device");

    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", check_dir());
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK_INT(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    CHECK_INT(tdm_file_read(check_path("socket"), 0, &bytes, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "a socket");
    close(fd);

    tdm_os_test_fail_files(TDM_FAULT_OPEN, 1, EIO);
    CHECK_INT(tdm_file_read("/proc/self/status", 0, &bytes, &err), TDM_ERR_IO);
    tdm_os_test_fail_files(0, 0, 0);
}

/* ---- replacing ------------------------------------------------------------------------------- */

static void test_replace(void)
{
    tdm_error err;
    const char *path = check_path("file");
    CHECK_INT(tdm_file_replace(path, "old", 3, &err), TDM_OK);
    check_content(path, "old");
    CHECK_INT(tdm_file_replace(path, "", 0, &err), TDM_OK);
    check_content(path, "");

    tdm_file_writer *writer = NULL;
    CHECK_INT(tdm_file_writer_create(path, &writer, &err), TDM_OK);
    CHECK_INT(tdm_file_writer_write(writer, "in ", 3, &err), TDM_OK);
    CHECK_INT(tdm_file_writer_write(writer, NULL, 0, &err), TDM_OK);
    CHECK_INT(tdm_file_writer_write(writer, "pieces", 6, &err), TDM_OK);
    check_content(path, ""); /* nothing is visible before the commit */
    CHECK_INT(directory_entries(), 2);
    CHECK_INT(tdm_file_writer_commit(writer, &err), TDM_OK);
    check_content(path, "in pieces");

    CHECK_INT(tdm_file_writer_create(path, &writer, &err), TDM_OK);
    CHECK_INT(tdm_file_writer_write_at(writer, 6, "last", 4, &err), TDM_OK);
    CHECK_INT(tdm_file_writer_write(writer, "fi", 2, &err), TDM_OK);
    CHECK_INT(tdm_file_writer_write_at(writer, 2, "rst.", 4, &err), TDM_OK);
    CHECK_INT(tdm_file_writer_write_at(writer, INT64_MAX, "x", 1, &err), TDM_ERR_RANGE);
    CHECK_INT(tdm_file_writer_write_at(writer, UINT64_MAX, "x", 1, &err), TDM_ERR_RANGE);
    CHECK_INT(tdm_file_writer_commit(writer, &err), TDM_OK);
    check_content(path, "first.last");
    CHECK_INT(tdm_file_replace(path, "in pieces", 9, &err), TDM_OK);

    CHECK_INT(tdm_file_writer_create(path, &writer, &err), TDM_OK);
    CHECK_INT(tdm_file_writer_write(writer, "never", 5, &err), TDM_OK);
    tdm_file_writer_abandon(writer);
    check_content(path, "in pieces");
    CHECK_INT(directory_entries(), 1);
}

/* Pieces that are large enough for direct I/O, at aligned and unaligned offsets, by two writers of one file:
 * the file is the same, whichever way each byte was written. */
static void test_large_pieces(void)
{
    enum { PIECE = 700001, PIECES = 6, HEAD = 1234 };
    tdm_error err;
    const char *path = check_path("file");
    tdm_file_writer *writer = NULL, *joined = NULL;
    tdm_file_bytes back;
    tdm_pages memory;
    tdm_arena *arena = tdm_arena_create("pieces");
    CHECK_INT(tdm_pages_map((size_t)PIECE * PIECES + TDM_FILE_ALIGN, false, &memory, &err), TDM_OK);
    for (int odd = 0; odd < 2; odd++) {
        uint8_t *bytes = (uint8_t *)memory.data + HEAD + odd; /* odd: nothing is aligned */
        for (size_t i = 0; i < (size_t)PIECE * PIECES; i++)
            bytes[i] = (uint8_t)(i * 2654435761u >> 13);
        CHECK_INT(tdm_file_writer_create(path, &writer, &err), TDM_OK);
        CHECK_INT(tdm_file_writer_join(tdm_file_writer_temporary(writer, arena), &joined, &err),
                  TDM_OK);
        for (int i = PIECES - 1; i >= 0; i--)
            CHECK_INT(tdm_file_writer_write_at(i % 2 ? joined : writer, HEAD + (uint64_t)i * PIECE,
                                               bytes + (size_t)i * PIECE, PIECE, &err),
                      TDM_OK);
        tdm_file_writer_abandon(joined);
        CHECK_INT(tdm_file_writer_commit(writer, &err), TDM_OK);
        CHECK_INT(tdm_file_read(path, 0, &back, &err), TDM_OK);
        CHECK_INT(back.count, HEAD + (size_t)PIECE * PIECES);
        CHECK(memcmp(back.data + HEAD, bytes, (size_t)PIECE * PIECES) == 0);
        tdm_file_bytes_release(&back);
    }
    tdm_arena_destroy(arena);
    tdm_pages_unmap(&memory);
}

/* Pages marked as unused can be written again; data stays until they are marked. */
static void test_pages_of_the_caller(void)
{
    tdm_error err;
    tdm_pages pages;
    CHECK_INT(tdm_pages_map(5000000, false, &pages, &err), TDM_OK);
    tdm_pages_populate(&pages);
    tdm_pages_free_lazily(&pages);
    memset(pages.data, 7, pages.bytes);
    const uint8_t *bytes = pages.data;
    CHECK(bytes[0] == 7 && bytes[pages.bytes - 1] == 7);
    tdm_pages_free_lazily(&pages);
    tdm_pages_unmap(&pages);
    tdm_pages_populate(&pages); /* nothing is fine */
    tdm_pages_free_lazily(&pages);
}

/* Two concurrent writers of one name: both files are complete, and the last commit determines the content. */
static void test_replace_twice_at_once(void)
{
    tdm_error err;
    const char *path = check_path("file");
    tdm_file_writer *first = NULL;
    tdm_file_writer *second = NULL;
    CHECK_INT(tdm_file_writer_create(path, &first, &err), TDM_OK);
    CHECK_INT(tdm_file_writer_create(path, &second, &err), TDM_OK);
    CHECK_INT(directory_entries(), 2);
    CHECK_INT(tdm_file_writer_write(first, "first", 5, &err), TDM_OK);
    CHECK_INT(tdm_file_writer_write(second, "second", 6, &err), TDM_OK);
    CHECK_INT(tdm_file_writer_commit(second, &err), TDM_OK);
    check_content(path, "second");
    CHECK_INT(tdm_file_writer_commit(first, &err), TDM_OK);
    check_content(path, "first");
    CHECK_INT(directory_entries(), 1);
}

static void test_replace_odd_names(void)
{
    tdm_error err;
    char name[256];
    memset(name, 'n', sizeof(name) - 1);
    name[255] = '\0'; /* the maximum length of a name */
    CHECK_INT(tdm_file_replace(check_path(name), "long", 4, &err), TDM_OK);
    check_content(check_path(name), "long");
    CHECK_INT(directory_entries(), 1);

    CHECK_INT(tdm_file_replace(check_dir(), "x", 1, &err), TDM_ERR_INVALID); /* a directory */
    CHECK(tdm_path_is_dir(check_dir()));
    CHECK_INT(tdm_file_replace(check_path(""), "x", 1, &err), TDM_ERR_INVALID);
    CHECK_INT(tdm_file_replace(check_path(".."), "x", 1, &err), TDM_ERR_INVALID);
    CHECK_INT(tdm_file_replace("", "x", 1, &err), TDM_ERR_INVALID);
    CHECK_INT(tdm_file_replace(check_path("absent/file"), "x", 1, &err), TDM_ERR_NOT_FOUND);
    CHECK_INT(directory_entries(), 1);

    CHECK_INT(tdm_file_replace(check_path("target"), "old", 3, &err), TDM_OK);
    /* a link is followed, and remains a link */
    CHECK_INT(symlink("target", check_path("link")), 0);
    CHECK_INT(tdm_file_replace(check_path("link"), "x", 1, &err), TDM_OK);
    check_content(check_path("target"), "x");
    struct stat info;
    CHECK(lstat(check_path("link"), &info) == 0 && S_ISLNK(info.st_mode));

    CHECK_INT(mkfifo(check_path("fifo"), 0600), 0); /* only regular files are replaced */
    CHECK_INT(tdm_file_replace(check_path("fifo"), "x", 1, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "a device, a pipe or a socket");
    CHECK(lstat(check_path("fifo"), &info) == 0 && S_ISFIFO(info.st_mode));
    CHECK_INT(unlink(check_path("fifo")), 0);

    char *here = getcwd(NULL, 0); /* a name without a directory is in the current directory */
    CHECK_INT(chdir(check_dir()), 0);
    CHECK_INT(tdm_file_replace("bare", "here", 4, &err), TDM_OK);
    CHECK_INT(chdir(here), 0);
    free(here);
    check_content(check_path("bare"), "here");
}

/*
 * For k = 1, 2, ... the k-th operation of a replacement fails, and all after it. For every k, the old file must
 * be complete (or absent, if there was none) and no temporary file may be left.
 */
static int replace_with_faults(bool exists, unsigned mask, int error_number, tdm_status expected)
{
    check_dir_reset();
    tdm_error err;
    const char *path = check_path("file");
    if (exists) CHECK_INT(tdm_file_replace(path, "old", 3, &err), TDM_OK);
    int failures = 0;
    for (int k = 1; k < 100; k++) {
        tdm_os_test_fail_files(mask, k, error_number);
        tdm_status status = tdm_file_replace(path, "new content", 11, &err);
        tdm_os_test_fail_files(0, 0, 0);
        if (status == TDM_OK) break;
        failures++;
        CHECK_INT(status, expected);
        CHECK_INT(err.status, expected);
        CHECK_HAS(err.message, path);
        CHECK_INT(directory_entries(), exists);
        if (exists) check_content(path, "old");
    }
    check_content(path, "new content");
    CHECK_INT(directory_entries(), 1);
    return failures;
}

static void test_replace_with_faults(void)
{
    /* directory open, temporary open, write, fsync, rename, fsync of the directory */
    CHECK_INT(replace_with_faults(true, TDM_FAULT_ALL, EIO, TDM_ERR_IO), 6);
    CHECK_INT(replace_with_faults(false, TDM_FAULT_ALL, EIO, TDM_ERR_IO), 6);
    CHECK_INT(replace_with_faults(true, TDM_FAULT_ALL, ENOSPC, TDM_ERR_NO_SPACE), 6);
    CHECK_INT(replace_with_faults(true, TDM_FAULT_OPEN, EMFILE, TDM_ERR_SYSTEM), 2);
    CHECK_INT(replace_with_faults(true, TDM_FAULT_WRITE, EDQUOT, TDM_ERR_NO_SPACE), 1);
    CHECK_INT(replace_with_faults(true, TDM_FAULT_FSYNC, EIO, TDM_ERR_IO), 2);
    CHECK_INT(replace_with_faults(true, TDM_FAULT_RENAME, EACCES, TDM_ERR_IO), 1);
}

/* The error of the system for a full device. */
static void test_replace_on_full_device(void)
{
    int fd = open("/dev/full", O_WRONLY);
    if (fd < 0) return;
    CHECK(write(fd, "x", 1) < 0);
    tdm_error err;
    CHECK_INT(tdm_os_fail(&err, "cannot write", "/dev/full"), TDM_ERR_NO_SPACE);
    CHECK_HAS(err.message, "cannot write /dev/full: No space left on device");
    close(fd);
}

/* A reader that polls continuously sees one of the two contents, never a mixture or a missing file. */
static void test_replace_is_atomic_for_readers(void)
{
    tdm_error err;
    const char *path = check_path("file");
    char text[2][4000];
    memset(text[0], 'a', sizeof(text[0]));
    memset(text[1], 'b', sizeof(text[1]));
    CHECK_INT(tdm_file_replace(path, text[0], sizeof(text[0]), &err), TDM_OK);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 1;; i++) {
            if (tdm_file_replace(path, text[i % 2], sizeof(text[0]), NULL) != TDM_OK) _exit(1);
        }
    }
    double begin = tdm_clock_s(), now = begin;
    int looks = 0; /* a good number, however little CPU time this process has */
    for (; now - begin < 0.3 || (looks <= 10 && now - begin < 30); now = tdm_clock_s()) {
        tdm_file_bytes bytes = {0};
        tdm_status status = tdm_file_read(path, 0, &bytes, &err);
        looks++;
        if (status != TDM_OK || bytes.count != sizeof(text[0]) ||
            (memcmp(bytes.data, text[0], bytes.count) != 0 &&
             memcmp(bytes.data, text[1], bytes.count) != 0)) {
            CHECK(!"a reader saw half a file");
            break;
        }
        tdm_file_bytes_release(&bytes);
    }
    CHECK(looks > 10);
    kill(child, SIGKILL);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
}

static void test_errno_status(void)
{
    CHECK_INT(tdm_os_errno_status(ENOENT), TDM_ERR_NOT_FOUND);
    CHECK_INT(tdm_os_errno_status(EEXIST), TDM_ERR_EXISTS);
    CHECK_INT(tdm_os_errno_status(ENOSPC), TDM_ERR_NO_SPACE);
    CHECK_INT(tdm_os_errno_status(EDQUOT), TDM_ERR_NO_SPACE);
    CHECK_INT(tdm_os_errno_status(ENOMEM), TDM_ERR_NO_MEMORY);
    CHECK_INT(tdm_os_errno_status(EIO), TDM_ERR_IO);
    CHECK_INT(tdm_os_errno_status(123456), TDM_ERR_IO);
}

/* ---- directories and names ----------------------------------------------------------------------- */

static void test_dirs(void)
{
    tdm_error err;
    CHECK_INT(tdm_dir_make(check_path("a//b/c/"), &err), TDM_OK);
    CHECK_INT(tdm_dir_make(check_path("a/b/c"), &err), TDM_OK);
    CHECK(tdm_path_is_dir(check_path("a/b/c")));
    CHECK(!tdm_path_is_file(check_path("a/b/c")));
    CHECK_INT(tdm_dir_make("/", &err), TDM_OK);
    CHECK_INT(tdm_dir_make("", &err), TDM_ERR_INVALID);
    CHECK_INT(tdm_file_replace(check_path("a/file"), "x", 1, &err), TDM_OK);
    CHECK(tdm_path_is_file(check_path("a/file")));
    CHECK_INT(tdm_dir_make(check_path("a/file"), &err), TDM_ERR_EXISTS);
    CHECK_HAS(err.message, "a file with this name exists");
    CHECK_INT(tdm_dir_make(check_path("a/file/below"), &err), TDM_ERR_EXISTS);
    CHECK_INT(tdm_dir_make(check_path("a/.hidden"), &err), TDM_OK);
    CHECK_INT(tdm_dir_make(check_path("a/Z"), &err), TDM_OK);

    tdm_arena *arena = tdm_arena_create("test");
    const char *const *names = NULL;
    size_t count = 0;
    CHECK_INT(tdm_dir_list(check_path("a"), arena, &names, &count, &err), TDM_OK);
    CHECK_INT(count, 4);
    CHECK_TEXT(names[0], ".hidden");
    CHECK_TEXT(names[1], "Z");
    CHECK_TEXT(names[2], "b");
    CHECK_TEXT(names[3], "file");
    CHECK_INT(tdm_dir_list(check_path("a/b/c"), arena, &names, &count, &err), TDM_OK);
    CHECK_INT(count, 0);
    CHECK_INT(tdm_dir_list(check_path("absent"), arena, &names, &count, &err), TDM_ERR_NOT_FOUND);
    CHECK_INT(tdm_dir_list(check_path("a/file"), arena, &names, &count, &err), TDM_ERR_NOT_FOUND);

    for (int i = 0; i < 200; i++) {
        char name[32];
        snprintf(name, sizeof(name), "a/b/c/%03d", 199 - i);
        CHECK_INT(tdm_file_replace(check_path(name), "", 0, &err), TDM_OK);
    }
    CHECK_INT(tdm_dir_list(check_path("a/b/c"), arena, &names, &count, &err), TDM_OK);
    CHECK_INT(count, 200);
    CHECK_TEXT(names[0], "000");
    CHECK_TEXT(names[199], "199");
    tdm_arena_destroy(arena);
}

static void test_paths(void)
{
    tdm_arena *a = tdm_arena_create("test");
    CHECK_TEXT(tdm_path_join(a, "dir", "file"), "dir/file");
    CHECK_TEXT(tdm_path_join(a, "dir/", "file"), "dir/file");
    CHECK_TEXT(tdm_path_join(a, "/", "file"), "/file");
    CHECK_TEXT(tdm_path_join(a, "dir", "/abs"), "/abs");
    CHECK_TEXT(tdm_path_join(a, NULL, "file"), "file");
    CHECK_TEXT(tdm_path_join(a, "", "file"), "file");
    CHECK_TEXT(tdm_path_join(a, "dir", ""), "dir");

    char *here = getcwd(NULL, 0);
    CHECK_TEXT(tdm_path_absolute(a, "/x/../y"), "/x/../y");
    CHECK_TEXT(tdm_path_absolute(a, "x"), tdm_path_join(a, here, "x"));
    CHECK_TEXT(tdm_path_absolute(a, ".//./x"), tdm_path_join(a, here, "x"));
    CHECK_TEXT(tdm_path_absolute(a, "."), here);
    free(here);

    static const char *const dirs[][2] = {{"a/b", "a"},  {"a", "."},         {"/a", "/"},
                                          {"a/b/", "a"}, {"/", "/"},         {"", "."},
                                          {"a//b", "a"}, {"/a/b/c", "/a/b"}, {"//", "/"}};
    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
        CHECK_TEXT(tdm_path_dirname(a, dirs[i][0]), dirs[i][1]);
    }
    static const char *const stems[][2] = {{"a/b.yaml", "b"},
                                           {"b.tar.gz", "b.tar"},
                                           {".hidden", ".hidden"},
                                           {"x/.hid.den", ".hid"},
                                           {"plain", "plain"},
                                           {"dir.d/", "dir"},
                                           {"/", ""},
                                           {"", ""},
                                           {"a.b/c", "c"},
                                           {"end.", "end"}};
    for (size_t i = 0; i < sizeof(stems) / sizeof(stems[0]); i++) {
        CHECK_TEXT(tdm_path_stem(a, stems[i][0]), stems[i][1]);
    }
    tdm_arena_destroy(a);
}

/* ---- memory and processors ------------------------------------------------------------------- */

static void test_pages(void)
{
    tdm_error err;
    const size_t sizes[] = {0, 1, 5000, (2u << 20) - 1, 2u << 20, (2u << 20) + 1, 9u << 20};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (int shared = 0; shared < 2; shared++) {
            tdm_pages pages = {0};
            CHECK_INT(tdm_pages_map(sizes[i], shared, &pages, &err), TDM_OK);
            CHECK(pages.bytes >= sizes[i] && pages.bytes > 0);
            CHECK_INT((uintptr_t)pages.data % (sizes[i] >= (2u << 20) ? 2u << 20 : 4096), 0);
            const uint8_t *bytes = pages.data;
            size_t dirty = 0;
            for (size_t j = 0; j < pages.bytes; j++) dirty += bytes[j] != 0;
            CHECK_INT(dirty, 0);
            memset(pages.data, 7, pages.bytes); /* the last byte is writable as well */
            tdm_pages_unmap(&pages);
            CHECK(pages.data == NULL);
            tdm_pages_unmap(&pages); /* a second call has no effect */
        }
    }
    tdm_pages pages = {0};
    CHECK_INT(tdm_pages_map(SIZE_MAX, false, &pages, &err), TDM_ERR_NO_MEMORY);
    CHECK_INT(tdm_pages_map((size_t)1 << 60, false, &pages, &err), TDM_ERR_NO_MEMORY);
    CHECK(pages.data == NULL);
}

/* The mapped pages of address space of this process. */
static long mapped_pages(void)
{
    char text[128] = "";
    int fd = open("/proc/self/statm", O_RDONLY);
    CHECK(fd >= 0 && read(fd, text, sizeof(text) - 1) > 0);
    close(fd);
    return strtol(text, NULL, 10);
}

/* The memory mapped for alignment is returned at both ends. */
static void test_pages_unmap_their_ends(void)
{
    tdm_pages pages = {0};
    long before = mapped_pages();
    CHECK_INT(tdm_pages_map(4u << 20, false, &pages, NULL), TDM_OK);
    CHECK_INT(mapped_pages() - before, (4 << 20) / sysconf(_SC_PAGESIZE));
    tdm_pages_unmap(&pages);
    CHECK_INT(mapped_pages(), before);
}

static void test_pages_shared_with_child(void)
{
    for (int shared = 0; shared < 2; shared++) {
        tdm_pages pages = {0};
        CHECK_INT(tdm_pages_map(100, shared, &pages, NULL), TDM_OK);
        volatile int *value = pages.data;
        pid_t child = fork();
        if (child == 0) {
            *value = 42;
            _exit(0);
        }
        CHECK(waitpid(child, NULL, 0) == child);
        CHECK_INT(*value, shared ? 42 : 0);
        tdm_pages_unmap(&pages);
    }
}

static void test_memory_info(void)
{
    tdm_memory_info info;
    tdm_os_memory_info(&info);
    CHECK(info.total_bytes > 64u << 20);
    CHECK(info.available_bytes > 0 && info.available_bytes <= info.total_bytes);
    CHECK(info.total_bytes <= (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));
    const char *thp = info.transparent_huge;
    CHECK(!*thp || !strcmp(thp, "always") || !strcmp(thp, "madvise") || !strcmp(thp, "never"));

    uint64_t before = tdm_os_resident_bytes();
    CHECK(before > 100000);
    tdm_pages pages = {0};
    CHECK_INT(tdm_pages_map(64u << 20, false, &pages, NULL), TDM_OK);
    memset(pages.data, 1, pages.bytes);
    CHECK(tdm_os_resident_bytes() >= before + (60u << 20));
    tdm_pages_unmap(&pages);
    CHECK(tdm_os_resident_bytes() < before + (30u << 20));
    CHECK(tdm_os_peak_resident_bytes() >= before + (60u << 20));
}

static void test_cpu_info(void)
{
    tdm_cpu_info info;
    tdm_os_cpu_info(&info);
    CHECK(info.online_count >= 1);
    CHECK(info.usable_count >= 1 && info.usable_count <= info.online_count);
    CHECK(info.model[0] && info.architecture[0] && info.level[0]);
#if defined(__x86_64__)
    CHECK_TEXT(info.architecture, "x86_64");
    CHECK(strncmp(info.level, "x86-64-v", 8) == 0);
    __builtin_cpu_init();
    CHECK_INT(strstr(info.features, "avx2") != NULL, __builtin_cpu_supports("avx2") != 0);
    CHECK_INT(strstr(info.features, "fma") != NULL, __builtin_cpu_supports("fma") != 0);
    CHECK_INT(strstr(info.features, "avx512f") != NULL, __builtin_cpu_supports("avx512f") != 0);
    CHECK_INT(strstr(info.features, "avx512_vnni") != NULL,
              __builtin_cpu_supports("avx512vnni") != 0);
    CHECK_INT(info.level[8] >= '3',
              __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
    CHECK_INT(info.level[8] >= '4', __builtin_cpu_supports("avx512bw") != 0);
#endif
    cpu_set_t all;
    CHECK_INT(sched_getaffinity(0, sizeof(all), &all), 0);
    int first = 0;
    while (!CPU_ISSET(first, &all)) first++;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    CHECK_INT(sched_setaffinity(0, sizeof(one), &one), 0);
    tdm_os_cpu_info(&info);
    CHECK_INT(info.usable_count, 1);
    CHECK_INT(sched_setaffinity(0, sizeof(all), &all), 0);
}

/* The signal that ended or stopped a child at this point with this request; 0: none did. */
static int signal_at(const char *request, tdm_test_point at)
{
    int status = 0;
    setenv("TANDEM_TEST_KILL", request, 1);
    pid_t child = fork();
    if (child == 0) {
        tdm_os_test_point(&at);
        _exit(0);
    }
    unsetenv("TANDEM_TEST_KILL");
    CHECK_INT(waitpid(child, &status, WUNTRACED), child);
    if (WIFSTOPPED(status)) {
        kill(child, SIGKILL);
        CHECK_INT(waitpid(child, NULL, 0), child);
        return WSTOPSIG(status);
    }
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void test_points_kill_where_they_should(void)
{
    tdm_test_point at = {.name = "update", .step = 7, .rank = 1, .part = 3};
    char request[300];
    CHECK_INT(signal_at("update", at), SIGKILL);
    CHECK_INT(signal_at("update:step=7:rank=1:part=3", at), SIGKILL);
    CHECK_INT(signal_at("update:step=7:signal=STOP", at), SIGSTOP);
    CHECK_INT(signal_at("reduce,update:rank=1", at), SIGKILL);
    CHECK_INT(signal_at("", at), 0);
    CHECK_INT(signal_at("reduce", at), 0);
    CHECK_INT(signal_at("update:step=8", at), 0);
    CHECK_INT(signal_at("update:rank=0", at), 0);
    CHECK_INT(signal_at("update:part=33", at), 0);
    CHECK_INT(signal_at("update:step=", at), 0);
    snprintf(request, sizeof(request), "update:file=%s/killed", check_dir());
    CHECK_INT(signal_at(request, at), SIGKILL);
    CHECK_INT(signal_at(request, at), 0); /* once */
    CHECK_INT(directory_entries(), 1);
}

/* Before a case forks: its children use the directory as well. */
static void directory_make(void)
{
    check_dir();
}

static const check_test tests[] = {
    CHECK_TEST(test_points_kill_where_they_should),
    CHECK_TEST(test_read_sizes),
    CHECK_TEST(test_read_unknown_size),
    CHECK_TEST(test_read_refuses_other_than_files),
    CHECK_TEST(test_replace),
    CHECK_TEST(test_large_pieces),
    CHECK_TEST(test_pages_of_the_caller),
    CHECK_TEST(test_replace_twice_at_once),
    CHECK_TEST(test_replace_odd_names),
    CHECK_TEST(test_replace_with_faults),
    CHECK_TEST(test_replace_on_full_device),
    CHECK_TEST(test_replace_is_atomic_for_readers),
    CHECK_TEST(test_errno_status),
    CHECK_TEST(test_dirs),
    CHECK_TEST(test_paths),
    CHECK_TEST(test_pages),
    CHECK_TEST(test_pages_unmap_their_ends),
    CHECK_TEST(test_pages_shared_with_child),
    CHECK_TEST(test_memory_info),
    CHECK_TEST(test_cpu_info),
};

CHECK_MAIN_AROUND(tests, directory_make, NULL)
