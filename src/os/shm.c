/*
 * shm.c: memory of a host that outlives the processes that use it.
 *
 * A memfd that grows with its regions and never shrinks: a limit on the size of files (ulimit -f) counts
 * for it, too. Its first pages hold a table of regions; each has a name and a stretch of pages of the
 * file. Stretches are never handed out twice, because a process of old may still have one mapped: a
 * region that is dropped gives its memory back by a hole, and its place in the file stays empty for good.
 *
 * Invariants: the table changes under a lock in the file (a robust mutex: when its holder dies the next
 * one gets it, and an entry that was not finished has no name yet, so it does not exist; when its holder
 * is stopped it is ended first). Regions are mapped at most once by a process, and unmapped by close alone.
 */
#include "os/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_S 20.0 /* to wait for the lock in all: it is held for a moment each time */

enum { TABLE_BYTES = 1 << 18, MAGIC = 0x564d4454 };
#define MAX_SHM_BYTES (UINT64_C(1) << 46) /* that the file can have in the end */

typedef struct region {
    char name[TDM_SHM_NAME_BYTES]; /* empty: free */
    uint64_t first, bytes;         /* in the file; bytes as asked for */
} region;

typedef struct table {
    _Atomic uint32_t magic; /* last thing written when it is made */
    tdm__shared_lock lock;
    uint64_t next; /* the first byte of the file that no region had so far */
    uint64_t id;   /* drawn when it was made; never 0 */
    region regions[TDM_SHM_MAX_REGIONS];
} table;
_Static_assert(sizeof(table) <= TABLE_BYTES, "the table must fit in front of the regions");

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
                    "memory that outlives its processes: %s: %s%s", what, strerror(errno),
                    errno == EFBIG ? "; the limit on the size of files counts for this memory, "
                                     "too: raise it (ulimit -f)"
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
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory for a vault");
    }
    shm->fd = fd;
    pthread_mutex_init(&shm->lock, NULL);
    void *memory = mmap(NULL, TABLE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    shm->table = memory == MAP_FAILED ? NULL : memory;
    if (!shm->table) {
        tdm_status status = system_error(err, "mapping its table");
        tdm_shm_close(shm);
        return status;
    }
    *out = shm;
    return TDM_OK;
}

tdm_status tdm_shm_create(tdm_shm **out, tdm_error *err)
{
    int fd = memfd_create("tandem-vault", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return system_error(err, "memfd_create");
    if (ftruncate(fd, TABLE_BYTES) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        tdm_status status = system_error(err, "making room");
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
    if (tdm_os_random(&t->id, sizeof t->id, NULL) != TDM_OK)
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
                        "descriptor %d is not the memory of this host's workers", fd);
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (own < 0) return system_error(err, "taking over its descriptor");
    TDM_TRY(open_fd(own, out, err));
    if (atomic_load(&(*out)->table->magic) == MAGIC) return TDM_OK;
    tdm_shm_close(*out);
    return tdm_fail(err, TDM_ERR_FORMAT, "descriptor %d has no table of regions", fd);
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

static region *find(table *t, const char *name)
{
    for (size_t i = 0; i < TDM_SHM_MAX_REGIONS; i++)
        if (strcmp(t->regions[i].name, name) == 0) return &t->regions[i];
    return NULL;
}

static tdm_status make(const tdm_shm *shm, const char *name, size_t bytes, region **out,
                       tdm_error *err)
{
    table *t = shm->table;
    region *r = find(t, "");
    if (!r || MAX_SHM_BYTES - t->next < whole_pages(bytes))
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "no room for region '%s' in this host's memory",
                        name);
    /* Where a process died between this and the next store, the file is as long already. */
    struct stat about;
    off_t end = (off_t)(t->next + whole_pages(bytes));
    if (fstat(shm->fd, &about) != 0) return system_error(err, "looking at it");
    if (about.st_size < end && ftruncate(shm->fd, end) != 0)
        return system_error(err, "making room");
    r->first = t->next;
    r->bytes = bytes;
    t->next += whole_pages(bytes);
    memcpy(r->name + 1, name + 1, strlen(name));
    /* The first letter comes last: only now there is such a region. */
    atomic_signal_fence(memory_order_seq_cst);
    tdm_os_test_point(&(tdm_test_point){"vault", 0, -1, 0});
    r->name[0] = name[0];
    *out = r;
    return TDM_OK;
}

/* Under the vault's own lock. */
static tdm_status map(tdm_shm *shm, uint64_t first, size_t bytes, void **out, tdm_error *err)
{
    for (size_t i = 0; i < shm->map_count; i++)
        if (shm->maps[i].first == first) {
            *out = shm->maps[i].data;
            return TDM_OK;
        }
    if (shm->map_count == TDM_SHM_MAX_REGIONS)
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "too many regions of this host's memory");
    bytes = whole_pages(bytes);
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, shm->fd,
                      (off_t)first);
    if (data == MAP_FAILED) return system_error(err, "mapping a region");
    (void)madvise(data, bytes, MADV_HUGEPAGE); /* where the system has them for shared memory */
    shm->maps[shm->map_count++] = (mapped){first, bytes, data};
    *out = data;
    return TDM_OK;
}

tdm_status tdm_shm_region_take(tdm_shm *shm, const char *name, size_t bytes, bool *is_new,
                               void **out, tdm_error *err)
{
    if (!*name || strlen(name) >= TDM_SHM_NAME_BYTES || bytes == 0)
        return tdm_fail(err, TDM_ERR_INVALID, "'%s', of %zu bytes, is no region", name, bytes);
    tdm_status status = TDM_OK;
    TDM_TRY(lock_table(shm, err));
    region *r = find(shm->table, name);
    if (is_new) *is_new = !r;
    if (r && r->bytes != bytes)
        status = tdm_fail(err, TDM_ERR_EXISTS, "region '%s' has %llu bytes, not %zu", name,
                          (unsigned long long)r->bytes, bytes);
    else if (!r)
        status = make(shm, name, bytes, &r, err);
    uint64_t first = status == TDM_OK ? r->first : 0;
    tdm__shared_lock_give(&shm->table->lock);
    TDM_TRY(status);
    pthread_mutex_lock(&shm->lock);
    status = map(shm, first, bytes, out, err);
    pthread_mutex_unlock(&shm->lock);
    return status;
}

tdm_status tdm_shm_region_find(tdm_shm *shm, const char *name, size_t *bytes, void **out,
                               tdm_error *err)
{
    TDM_TRY(lock_table(shm, err));
    const region *r = *name ? find(shm->table, name) : NULL;
    uint64_t first = r ? r->first : 0;
    size_t size = r ? (size_t)r->bytes : 0;
    tdm__shared_lock_give(&shm->table->lock);
    if (size == 0) return tdm_fail(err, TDM_ERR_NOT_FOUND, "there is no region '%s'", name);
    if (bytes) *bytes = size;
    pthread_mutex_lock(&shm->lock);
    tdm_status status = map(shm, first, size, out, err);
    pthread_mutex_unlock(&shm->lock);
    return status;
}

void tdm_shm_region_drop(tdm_shm *shm, const char *name)
{
    if (lock_table(shm, NULL) != TDM_OK) return; /* it stays, without harm */
    region *r = find(shm->table, name);
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
