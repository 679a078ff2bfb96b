/*
 * shm.c: shared memory segments of a host that outlive the processes that use them.
 *
 * A segment is a memfd that grows with its regions and never shrinks; a limit on the size of files
 * (ulimit -f) applies to it as well. Its first pages are a table of regions; each region has a name and a
 * range of pages of the file. A range is never reused, because an old process may still have it mapped: a
 * region that is dropped returns its memory by punching a hole, and its range stays unused.
 *
 * Invariants: the table changes only under a lock in the file. The lock is a robust mutex: when its holder
 * dies, the next process gets it, and an unfinished entry has no name yet, so it does not exist. A holder
 * that is stopped is killed first. A process maps each region at most once and unmaps it only on close.
 */
#include "base/base.h"
#include "os/lock.h"
#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_S 20.0 /* to wait for the lock in all: it is held for a moment each time */

enum { TABLE_BYTES = 1 << 18, MAGIC = 0x564d4454 };
#define MAX_SHM_BYTES (UINT64_C(1) << 46) /* maximum size of the file */

typedef struct region {
    char name[TDM_SHM_NAME_BYTES]; /* empty: free */
    uint64_t first, bytes;         /* range in the file; bytes as requested */
} region;

typedef struct table {
    _Atomic uint32_t magic; /* last thing written when it is made */
    tdm__shared_lock lock;
    uint64_t next; /* the first byte of the file that no region had so far */
    uint64_t id;   /* drawn when it was made; never 0 */
    region regions[TDM_SHM_MAX_REGIONS];
} table;
_Static_assert(sizeof(table) <= TABLE_BYTES, "the table must fit before the regions");

typedef struct mapped {
    uint64_t first;
    size_t bytes; /* in whole pages */
    void *data;
} mapped;

struct tdm_shm {
    int fd;
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
    return tdm__shared_lock_take(&shm->table->lock, &shm->owner, LOCK_S,
                                 "the shared memory of this run", err);
}

static tdm_status open_fd(int fd, tdm_shm **out, tdm_error *err)
{
    tdm_shm *shm = calloc(1, sizeof(*shm));
    if (!shm) {
        close(fd);
        return tdm_fail_oom(err, "for a shared memory segment");
    }
    shm->fd = fd;
    pthread_mutex_init(&shm->lock, NULL);
    void *memory = mmap(NULL, TABLE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    shm->table = memory == MAP_FAILED ? NULL : memory;
    if (!shm->table) {
        tdm_status status = system_error(err, "map its table");
        tdm_shm_close(shm);
        return status;
    }
    *out = shm;
    return TDM_OK;
}

tdm_status tdm_shm_create(tdm_shm **out, tdm_error *err)
{
    int fd = memfd_create("tandem-vault", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return system_error(err, "create it");
    if (ftruncate(fd, TABLE_BYTES) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        tdm_status status = system_error(err, "enlarge it");
        close(fd);
        return status;
    }
    TDM_TRY(open_fd(fd, out, err));
    table *t = (*out)->table;
    tdm_status status = tdm__shared_lock_init(&t->lock, err);
    if (status != TDM_OK) {
        tdm_shm_close(*out);
        *out = NULL;
        return status;
    }
    t->next = TABLE_BYTES;
    if (tdm_os_random(&t->id, sizeof(t->id), NULL) != TDM_OK)
        t->id = tdm_clock_ns() ^ (uint64_t)getpid() << 40;
    t->id |= 1;
    atomic_store(&t->magic, MAGIC);
    return TDM_OK;
}

tdm_status tdm_shm_attach(int fd, tdm_shm **out, tdm_error *err)
{
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0 || about.st_size < TABLE_BYTES)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "descriptor %d is not a shared memory segment of Tandem", fd);
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (own < 0) return system_error(err, "duplicate its descriptor");
    TDM_TRY(open_fd(own, out, err));
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
    close(shm->fd);
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
    if (!r || MAX_SHM_BYTES - t->next < whole_pages(bytes))
        return tdm_fail(err, TDM_ERR_NO_MEMORY,
                        "no space for region '%s' in the shared memory segment", name);
    /* If a process died after ftruncate and before the stores below, the file is already long enough. */
    struct stat about;
    off_t end = (off_t)(t->next + whole_pages(bytes));
    if (fstat(shm->fd, &about) != 0) return system_error(err, "read its size");
    if (about.st_size < end && ftruncate(shm->fd, end) != 0) return system_error(err, "enlarge it");
    r->first = t->next;
    r->bytes = bytes;
    t->next += whole_pages(bytes);
    memcpy(r->name + 1, name + 1, strlen(name));
    /* The first letter is written last: the region exists from then on. */
    atomic_signal_fence(memory_order_seq_cst);
    tdm_os_test_point(&(tdm_test_point){"vault", 0, -1, 0});
    r->name[0] = name[0];
    *out = r;
    return TDM_OK;
}

/* Maps a region. The caller holds shm->lock. */
static tdm_status region_map(tdm_shm *shm, uint64_t first, size_t bytes, void **out, tdm_error *err)
{
    for (size_t i = 0; i < shm->map_count; i++)
        if (shm->maps[i].first == first) {
            *out = shm->maps[i].data;
            return TDM_OK;
        }
    if (shm->map_count == TDM_SHM_MAX_REGIONS)
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "too many regions in the shared memory segment");
    bytes = whole_pages(bytes);
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, shm->fd,
                      (off_t)first);
    if (data == MAP_FAILED) return system_error(err, "map a region");
    (void)madvise(data, bytes, MADV_HUGEPAGE); /* has an effect if enabled for shared memory */
    shm->maps[shm->map_count++] = (mapped){first, bytes, data};
    *out = data;
    return TDM_OK;
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
    uint64_t first = status == TDM_OK ? r->first : 0;
    tdm__shared_lock_give(&shm->table->lock);
    TDM_TRY(status);
    pthread_mutex_lock(&shm->lock);
    status = region_map(shm, first, bytes, out, err);
    pthread_mutex_unlock(&shm->lock);
    return status;
}

tdm_status tdm_shm_region_find(tdm_shm *shm, const char *name, size_t *bytes, void **out,
                               tdm_error *err)
{
    TDM_TRY(lock_table(shm, err));
    const region *r = *name ? table_find(shm->table, name) : NULL;
    uint64_t first = r ? r->first : 0;
    size_t size = r ? (size_t)r->bytes : 0;
    tdm__shared_lock_give(&shm->table->lock);
    if (size == 0) return tdm_fail(err, TDM_ERR_NOT_FOUND, "region '%s' does not exist", name);
    if (bytes) *bytes = size;
    pthread_mutex_lock(&shm->lock);
    tdm_status status = region_map(shm, first, size, out, err);
    pthread_mutex_unlock(&shm->lock);
    return status;
}

void tdm_shm_region_drop(tdm_shm *shm, const char *name)
{
    if (lock_table(shm, NULL) != TDM_OK) return; /* a leftover region does no harm */
    region *r = table_find(shm->table, name);
    if (r && *name) {
        (void)fallocate(shm->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)r->first,
                        (off_t)whole_pages(r->bytes));
        r->name[0] = '\0';
    }
    tdm__shared_lock_give(&shm->table->lock);
}

uint64_t tdm_shm_offset(const tdm_shm *shm, const void *memory)
{
    uint64_t place = UINT64_MAX;
    tdm_shm *v = (tdm_shm *)(uintptr_t)shm; /* for its lock */
    pthread_mutex_lock(&v->lock);
    for (size_t i = 0; i < v->map_count; i++) {
        const char *data = v->maps[i].data, *at = memory;
        if (at >= data && at < data + v->maps[i].bytes)
            place = v->maps[i].first + (uint64_t)(at - data);
    }
    pthread_mutex_unlock(&v->lock);
    return place;
}

void *tdm_shm_at(const tdm_shm *shm, uint64_t place)
{
    char *found = NULL;
    tdm_shm *v = (tdm_shm *)(uintptr_t)shm;
    pthread_mutex_lock(&v->lock);
    for (size_t i = 0; i < v->map_count; i++)
        if (place >= v->maps[i].first && place - v->maps[i].first < v->maps[i].bytes)
            found = (char *)v->maps[i].data + (place - v->maps[i].first);
    pthread_mutex_unlock(&v->lock);
    return found;
}
