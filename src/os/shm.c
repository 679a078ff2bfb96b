/*
 * shm.c: shared memory segments of a host, with named regions.
 *
 * A segment is a memfd that grows with its regions and never shrinks. Its first pages are a table of regions; each
 * region has a name and a range of pages of the file:
 *
 *     offset 0             TABLE_BYTES                                              table.next
 *     +--------------------+-----------+--------+-------------------+- - - - - - - -+
 *     | magic, lock, next, | region    | gap to | region            | address space |
 *     | id, regions[]      | "undo-0"  | 2 MiB  | "block-0"         | not yet used  |
 *     +--------------------+-----------+--------+-------------------+- - - - - - - -+
 *                          ^                    ^
 *     regions[i].first ----+--------------------+        regions[i].bytes: as requested
 *
 * The file is sparse: a page uses memory from its first write on. Regions of at least 2 MiB begin at a multiple of
 * that, so that the kernel can back them with huge pages. An offset in the file identifies a byte in all processes;
 * their addresses differ. A limit on the size of files (ulimit -f) applies to a segment as well.
 *
 * A segment ends with the last process that has it open. In a session an agent keeps its descriptor, so that it
 * outlives the workers. The ranks of a fixed world receive the descriptor of their node through a UNIX socket
 * (shm/host_share.c). A private segment has the same table in memory of one process, and its regions are private
 * pages: for a process that shares memory with no other one.
 *
 * A region counts the processes that use it. The last one that releases it removes it, and returns its memory by
 * punching a hole. The range stays unused, because another process may still have it mapped. The regions of a session
 * are never released, so they outlive the processes that use them.
 *
 * Invariants: the table changes only under a lock in the file. The lock is a robust mutex: when its
 * holder dies, the next process gets it, and an unfinished entry has no name yet, so it does not exist. A holder
 * that is stopped is killed first. A process maps each region at most once.
 */
#include "base/base.h"
#include "base/timing.h"
#include "os/internal.h"
#include "os/lock.h"
#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TABLE_BYTES = 1 << 18, MAGIC = 0x564d4454, HUGE_PAGE_BYTES = 2 << 20 };
#define MAX_SHM_BYTES (UINT64_C(1) << 46) /* maximum size of the file */

typedef struct region {
    char name[TDM_SHM_NAME_BYTES]; /* empty: free */
    uint64_t first, bytes;         /* range in the file; bytes as requested */
    uint64_t users;                /* number of processes that took and did not release it */
} region;

typedef struct table {
    _Atomic uint32_t magic; /* written last when the table is created */
    tdm__shared_lock lock;
    uint64_t next; /* offset of the first byte that was never part of a region */
    uint64_t id;   /* random, set when the segment is created; never 0 */
    region regions[TDM_SHM_MAX_REGIONS];
} table;
_Static_assert(sizeof(table) <= TABLE_BYTES, "the table must fit before the regions");

typedef struct mapped {
    uint64_t first;
    size_t bytes; /* in whole pages */
    void *data;
    size_t users; /* number of times that this process took it */
} mapped;

struct tdm_shm {
    int fd; /* -1: a private segment */
    table *table;
    tdm__lock_owner owner;
    pthread_mutex_t lock; /* of the list */
    mapped maps[TDM_SHM_MAX_REGIONS];
    size_t map_count;
};

static size_t whole_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (page < 4096) page = 4096;
    return (bytes + page - 1) / page * page;
}

static tdm_status system_error(tdm_error *err, const char *what)
{
    return tdm_fail(err, errno == ENOMEM ? TDM_ERR_NO_MEMORY : TDM_ERR_SYSTEM,
                    "shared memory segment: cannot %s: %s%s", what, strerror(errno),
                    errno == EFBIG ? "; the limit on the file size applies to shared memory as "
                                     "well: increase it (ulimit -f)"
                                   : "");
}

static tdm_status lock_table(tdm_shm *shm, tdm_error *err)
{
    return tdm__shared_lock_take(&shm->table->lock, &shm->owner, TDM__TIMING_OS_SHM_LOCK_S,
                                 "the shared memory of this run", err);
}

/* Maps the table. Takes `fd`; -1: private memory. */
static tdm_status shm_open_table(int fd, tdm_shm **out, tdm_error *err)
{
    tdm_shm *shm = calloc(1, sizeof(*shm));
    if (!shm) {
        tdm__close_quietly(fd);
        return tdm_fail_oom(err, "for a shared memory segment");
    }
    shm->fd = fd;
    pthread_mutex_init(&shm->lock, NULL);

    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *memory = mmap(NULL, TABLE_BYTES, PROT_READ | PROT_WRITE, flags, fd, 0);
    shm->table = memory == MAP_FAILED ? NULL : memory;
    if (!shm->table) {
        tdm_status status = system_error(err, "map its table");
        tdm_shm_close(shm);
        return status;
    }
    *out = shm;
    return TDM_OK;
}

/* Opens a new segment. Takes `fd`; -1: a private segment. */
static tdm_status shm_create_table(int fd, tdm_shm **out, tdm_error *err)
{
    tdm_shm *shm = NULL;
    TDM_TRY(shm_open_table(fd, &shm, err));
    table *t = shm->table;
    tdm_status status = tdm__shared_lock_init(&t->lock, err);
    if (status != TDM_OK) {
        tdm_shm_close(shm);
        return status;
    }

    t->next = TABLE_BYTES;
    if (tdm_os_random(&t->id, sizeof(t->id), NULL) != TDM_OK)
        t->id = tdm_clock_ns() ^ (uint64_t)getpid() << 40;
    t->id |= 1;
    atomic_store(&t->magic, MAGIC);
    *out = shm;
    return TDM_OK;
}

static tdm_status shm_create_file(const char *file_name, tdm_shm **out, tdm_error *err)
{
    int fd = memfd_create(file_name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return system_error(err, "create it");
    if (ftruncate(fd, TABLE_BYTES) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        tdm_status status = system_error(err, "enlarge it");
        close(fd);
        return status;
    }
    return shm_create_table(fd, out, err);
}

tdm_status tdm_shm_create(tdm_shm **out, tdm_error *err)
{
    return shm_create_file(TDM_SHM_SESSION_FILE, out, err);
}

tdm_status tdm_shm_create_for_node(tdm_shm **out, tdm_error *err)
{
    return shm_create_file("tandem-node", out, err);
}

tdm_status tdm_shm_create_private(tdm_shm **out, tdm_error *err)
{
    return shm_create_table(-1, out, err);
}

tdm_status tdm_shm_attach(int fd, tdm_shm **out, tdm_error *err)
{
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0 || about.st_size < TABLE_BYTES)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "descriptor %d is not a shared memory segment of Tandem", fd);
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (own < 0) return system_error(err, "duplicate its descriptor");
    TDM_TRY(shm_open_table(own, out, err));
    if (atomic_load(&(*out)->table->magic) == MAGIC) return TDM_OK;
    tdm_shm_close(*out);
    return tdm_fail(err, TDM_ERR_FORMAT,
                    "descriptor %d is a shared memory segment without a table of regions", fd);
}

uint64_t tdm_shm_id(const tdm_shm *shm)
{
    return shm->table->id;
}

int tdm_shm_fd(const tdm_shm *shm)
{
    return shm->fd;
}

void tdm_shm_close(tdm_shm *shm)
{
    if (!shm) return;
    for (size_t i = 0; i < shm->map_count; i++) munmap(shm->maps[i].data, shm->maps[i].bytes);
    if (shm->table) munmap(shm->table, TABLE_BYTES);
    tdm__close_quietly(shm->fd);
    pthread_mutex_destroy(&shm->lock);
    free(shm);
}

/* ---- regions --------------------------------------------------------------------------------- */

static region *table_find(table *t, const char *name)
{
    for (size_t i = 0; i < TDM_SHM_MAX_REGIONS; i++)
        if (strcmp(t->regions[i].name, name) == 0) return &t->regions[i];
    return NULL;
}

static tdm_status region_create(const tdm_shm *shm, const char *name, size_t bytes, region **out,
                                tdm_error *err)
{
    table *t = shm->table;
    region *r = table_find(t, "");
    uint64_t first = t->next;
    if (bytes >= HUGE_PAGE_BYTES)
        first = (first + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if (!r || bytes > MAX_SHM_BYTES || MAX_SHM_BYTES - first < whole_pages(bytes))
        return tdm_fail(err, TDM_ERR_NO_MEMORY,
                        "no space for region '%s' in the shared memory segment", name);

    /* If a process died after ftruncate and before the stores below, the file is already long enough. */
    struct stat about = {.st_size = 0};
    off_t end = (off_t)(first + whole_pages(bytes));
    if (shm->fd >= 0 && fstat(shm->fd, &about) != 0) return system_error(err, "read its size");
    if (shm->fd >= 0 && about.st_size < end && ftruncate(shm->fd, end) != 0)
        return system_error(err, "enlarge it");
    r->first = first;
    r->bytes = bytes;
    r->users = 0;
    t->next = (uint64_t)end;
    memcpy(r->name + 1, name + 1, strlen(name));

    /* The first letter is written last: the region exists from then on. */
    atomic_signal_fence(memory_order_seq_cst);
    tdm_os_test_point(&(tdm_test_point){"shm", 0, -1, 0});
    r->name[0] = name[0];
    *out = r;
    return TDM_OK;
}

/* Maps a range of the segment. A large one begins at a multiple of a huge page, for which more address space is
 * reserved first and both ends are returned. */
static tdm_status range_map(const tdm_shm *shm, uint64_t first, size_t bytes, void **out,
                            tdm_error *err)
{
    int flags = MAP_NORESERVE | (shm->fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
    off_t at = shm->fd < 0 ? 0 : (off_t)first;
    char *hint = NULL;
    if (bytes >= HUGE_PAGE_BYTES && bytes <= SIZE_MAX - HUGE_PAGE_BYTES) {
        char *raw = mmap(NULL, bytes + HUGE_PAGE_BYTES, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (raw == MAP_FAILED) return tdm__map_fail(err, bytes);
        size_t head = (HUGE_PAGE_BYTES - (uintptr_t)raw % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
        if (head > 0) munmap(raw, head);
        if (head < HUGE_PAGE_BYTES) munmap(raw + head + bytes, HUGE_PAGE_BYTES - head);
        hint = raw + head;
        flags |= MAP_FIXED;
    }
    void *data = mmap(hint, bytes, PROT_READ | PROT_WRITE, flags, shm->fd, at);
    if (data == MAP_FAILED) {
        tdm_status status = tdm__map_fail(err, bytes);
        if (hint) munmap(hint, bytes);
        return status;
    }
    if (hint) (void)madvise(data, bytes, MADV_HUGEPAGE); /* if enabled for such memory */
    *out = data;
    return TDM_OK;
}

/* Maps a region once and counts its uses in this process. The caller holds the lock of the table, so that the region
 * is not removed meanwhile. */
static tdm_status region_map(tdm_shm *shm, region *r, void **out, tdm_error *err)
{
    tdm_status status = TDM_OK;
    pthread_mutex_lock(&shm->lock);
    mapped *m = shm->maps, *end = shm->maps + shm->map_count;
    while (m < end && m->first != r->first) m++;
    if (m == end && shm->map_count == TDM_SHM_MAX_REGIONS) {
        status = tdm_fail(err, TDM_ERR_NO_MEMORY, "too many regions in the shared memory segment");
    } else if (m == end) {
        void *data = NULL;
        size_t bytes = whole_pages(r->bytes);
        status = range_map(shm, r->first, bytes, &data, err);
        if (status == TDM_OK) {
            *m = (mapped){.first = r->first, .bytes = bytes, .data = data};
            shm->map_count++;
            r->users++;
        }
    }
    if (status == TDM_OK) {
        m->users++;
        *out = m->data;
    }
    pthread_mutex_unlock(&shm->lock);
    return status;
}

tdm_status tdm_shm_region_take(tdm_shm *shm, const char *name, size_t bytes, bool *is_new,
                               void **out, tdm_error *err)
{
    if (!*name || strlen(name) >= TDM_SHM_NAME_BYTES || bytes == 0)
        return tdm_fail(err, TDM_ERR_INVALID, "invalid region '%s' (%zu bytes)", name, bytes);
    tdm_status status = TDM_OK;
    TDM_TRY(lock_table(shm, err));
    region *r = table_find(shm->table, name);
    if (is_new) *is_new = !r;
    if (r && r->bytes != bytes)
        status = tdm_fail(err, TDM_ERR_EXISTS, "region '%s' has %llu bytes, not %zu", name,
                          (unsigned long long)r->bytes, bytes);
    else if (!r)
        status = region_create(shm, name, bytes, &r, err);
    if (status == TDM_OK) status = region_map(shm, r, out, err);
    tdm__shared_lock_give(&shm->table->lock);
    return status;
}

tdm_status tdm_shm_region_find(tdm_shm *shm, const char *name, size_t *bytes, void **out,
                               tdm_error *err)
{
    TDM_TRY(lock_table(shm, err));
    region *r = *name ? table_find(shm->table, name) : NULL;
    size_t size = r ? (size_t)r->bytes : 0;
    tdm_status status = r ? region_map(shm, r, out, err)
                          : tdm_fail(err, TDM_ERR_NOT_FOUND, "region '%s' does not exist", name);
    tdm__shared_lock_give(&shm->table->lock);
    if (status == TDM_OK && bytes) *bytes = size;
    return status;
}

void tdm_shm_region_release(tdm_shm *shm, const void *memory)
{
    if (!memory || lock_table(shm, NULL) != TDM_OK) return; /* a leftover region does no harm */
    pthread_mutex_lock(&shm->lock);
    mapped *m = shm->maps, *end = shm->maps + shm->map_count;
    while (m < end && m->data != memory) m++;
    if (m < end && --m->users == 0) {
        region *r = shm->table->regions;
        while (!r->name[0] || r->first != m->first) r++;
        if (--r->users == 0) {
            if (shm->fd >= 0)
                (void)fallocate(shm->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                (off_t)r->first, (off_t)m->bytes);
            r->name[0] = '\0';
        }
        munmap(m->data, m->bytes);
        *m = shm->maps[--shm->map_count];
    }
    pthread_mutex_unlock(&shm->lock);
    tdm__shared_lock_give(&shm->table->lock);
}

uint64_t tdm_shm_offset(const tdm_shm *shm, const void *memory)
{
    uint64_t offset = UINT64_MAX;
    tdm_shm *v = (tdm_shm *)(uintptr_t)shm; /* for its lock */
    pthread_mutex_lock(&v->lock);
    for (size_t i = 0; i < v->map_count; i++) {
        const char *data = v->maps[i].data, *at = memory;
        if (at >= data && at < data + v->maps[i].bytes)
            offset = v->maps[i].first + (uint64_t)(at - data);
    }
    pthread_mutex_unlock(&v->lock);
    return offset;
}

void *tdm_shm_at(const tdm_shm *shm, uint64_t offset)
{
    char *found = NULL;
    tdm_shm *v = (tdm_shm *)(uintptr_t)shm;
    pthread_mutex_lock(&v->lock);
    for (size_t i = 0; i < v->map_count; i++)
        if (offset >= v->maps[i].first && offset - v->maps[i].first < v->maps[i].bytes)
            found = (char *)v->maps[i].data + (offset - v->maps[i].first);
    pthread_mutex_unlock(&v->lock);
    return found;
}
