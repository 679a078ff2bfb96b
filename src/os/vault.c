/*
 * vault.c: memory of a host that outlives the processes that use it.
 *
 * A memfd, sparse and never shrunk. Its first pages hold a table of regions; each has a name and a
 * stretch of pages of the file. Stretches are never handed out twice, because a process of old may still
 * have one mapped: a region that is dropped gives its memory back by a hole, and its place in the file
 * stays empty for good.
 *
 * Invariants: the table changes under a lock in the file (a robust mutex: when its holder dies the next
 * one gets it, and an entry that was not finished has no name yet, so it does not exist). Regions are
 * mapped at most once by a process, and unmapped by close alone.
 */
#include <tandem/os.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TABLE_BYTES = 1 << 18, MAGIC = 0x564d4454 };
#define VAULT_BYTES ((off_t)1 << 46)

typedef struct region {
    char name[TDM_VAULT_NAME_BYTES]; /* empty: free */
    uint64_t first, bytes;           /* in the file; bytes as asked for */
} region;

typedef struct table {
    _Atomic uint32_t magic; /* last thing written when it is made */
    pthread_mutex_t lock;
    uint64_t next; /* the first byte of the file that no region had so far */
    region regions[TDM_VAULT_REGIONS_MOST];
} table;
_Static_assert(sizeof(table) <= TABLE_BYTES, "the table must fit in front of the regions");

typedef struct mapped {
    uint64_t first;
    size_t bytes; /* in whole pages */
    void *data;
} mapped;

struct tdm_vault {
    int fd;
    table *table;
    pthread_mutex_t lock; /* of the list */
    mapped maps[TDM_VAULT_REGIONS_MOST];
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
                    "memory that outlives its processes: %s: %s", what, strerror(errno));
}

static void lock_table(table *t)
{
    if (pthread_mutex_lock(&t->lock) == EOWNERDEAD) pthread_mutex_consistent(&t->lock);
}

static tdm_status open_fd(int fd, tdm_vault **out, tdm_error *err)
{
    tdm_vault *vault = calloc(1, sizeof(*vault));
    if (!vault) {
        close(fd);
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory for a vault");
    }
    vault->fd = fd;
    pthread_mutex_init(&vault->lock, NULL);
    void *memory = mmap(NULL, TABLE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    vault->table = memory == MAP_FAILED ? NULL : memory;
    if (!vault->table) {
        tdm_status status = system_error(err, "mapping its table");
        tdm_vault_close(vault);
        return status;
    }
    *out = vault;
    return TDM_OK;
}

tdm_status tdm_vault_create(tdm_vault **out, tdm_error *err)
{
    int fd = memfd_create("tandem-vault", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return system_error(err, "memfd_create");
    if (ftruncate(fd, VAULT_BYTES) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        tdm_status status = system_error(err, "making room");
        close(fd);
        return status;
    }
    TDM_TRY(open_fd(fd, out, err));
    table *t = (*out)->table;
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&t->lock, &shared);
    pthread_mutexattr_destroy(&shared);
    t->next = TABLE_BYTES;
    atomic_store(&t->magic, MAGIC);
    return TDM_OK;
}

tdm_status tdm_vault_attach(int fd, tdm_vault **out, tdm_error *err)
{
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0 || about.st_size != VAULT_BYTES)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "descriptor %d is not the memory of this host's workers", fd);
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (own < 0) return system_error(err, "taking over its descriptor");
    TDM_TRY(open_fd(own, out, err));
    if (atomic_load(&(*out)->table->magic) == MAGIC) return TDM_OK;
    tdm_vault_close(*out);
    return tdm_fail(err, TDM_ERR_FORMAT, "descriptor %d has no table of regions", fd);
}

int tdm_vault_fd(const tdm_vault *vault)
{
    return vault->fd;
}

void tdm_vault_close(tdm_vault *vault)
{
    if (!vault) return;
    for (size_t i = 0; i < vault->map_count; i++) munmap(vault->maps[i].data, vault->maps[i].bytes);
    if (vault->table) munmap(vault->table, TABLE_BYTES);
    close(vault->fd);
    pthread_mutex_destroy(&vault->lock);
    free(vault);
}

/* ---- regions --------------------------------------------------------------------------------- */

static region *find(table *t, const char *name)
{
    for (size_t i = 0; i < TDM_VAULT_REGIONS_MOST; i++)
        if (strcmp(t->regions[i].name, name) == 0) return &t->regions[i];
    return NULL;
}

static tdm_status make(table *t, const char *name, size_t bytes, region **out, tdm_error *err)
{
    region *r = find(t, "");
    if (!r || (uint64_t)VAULT_BYTES - t->next < whole_pages(bytes))
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "no room for region '%s' in this host's memory",
                        name);
    r->first = t->next;
    r->bytes = bytes;
    t->next += whole_pages(bytes);
    memcpy(r->name + 1, name + 1, strlen(name));
    /* The first letter comes last: only now there is such a region. */
    atomic_signal_fence(memory_order_seq_cst);
    r->name[0] = name[0];
    *out = r;
    return TDM_OK;
}

/* Under the vault's own lock. */
static tdm_status map(tdm_vault *vault, uint64_t first, size_t bytes, void **out, tdm_error *err)
{
    for (size_t i = 0; i < vault->map_count; i++)
        if (vault->maps[i].first == first) {
            *out = vault->maps[i].data;
            return TDM_OK;
        }
    if (vault->map_count == TDM_VAULT_REGIONS_MOST)
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "too many regions of this host's memory");
    bytes = whole_pages(bytes);
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, vault->fd,
                      (off_t)first);
    if (data == MAP_FAILED) return system_error(err, "mapping a region");
    (void)madvise(data, bytes, MADV_HUGEPAGE); /* where the system has them for shared memory */
    vault->maps[vault->map_count++] = (mapped){first, bytes, data};
    *out = data;
    return TDM_OK;
}

tdm_status tdm_vault_take(tdm_vault *vault, const char *name, size_t bytes, bool *is_new,
                          void **out, tdm_error *err)
{
    if (!*name || strlen(name) >= TDM_VAULT_NAME_BYTES || bytes == 0)
        return tdm_fail(err, TDM_ERR_INVALID, "'%s', of %zu bytes, is no region", name, bytes);
    tdm_status status = TDM_OK;
    lock_table(vault->table);
    region *r = find(vault->table, name);
    if (is_new) *is_new = !r;
    if (r && r->bytes != bytes)
        status = tdm_fail(err, TDM_ERR_EXISTS, "region '%s' has %llu bytes, not %zu", name,
                          (unsigned long long)r->bytes, bytes);
    else if (!r)
        status = make(vault->table, name, bytes, &r, err);
    uint64_t first = status == TDM_OK ? r->first : 0;
    pthread_mutex_unlock(&vault->table->lock);
    TDM_TRY(status);
    pthread_mutex_lock(&vault->lock);
    status = map(vault, first, bytes, out, err);
    pthread_mutex_unlock(&vault->lock);
    return status;
}

tdm_status tdm_vault_find(tdm_vault *vault, const char *name, size_t *bytes, void **out,
                          tdm_error *err)
{
    lock_table(vault->table);
    const region *r = *name ? find(vault->table, name) : NULL;
    uint64_t first = r ? r->first : 0;
    size_t size = r ? (size_t)r->bytes : 0;
    pthread_mutex_unlock(&vault->table->lock);
    if (size == 0) return tdm_fail(err, TDM_ERR_NOT_FOUND, "there is no region '%s'", name);
    if (bytes) *bytes = size;
    pthread_mutex_lock(&vault->lock);
    tdm_status status = map(vault, first, size, out, err);
    pthread_mutex_unlock(&vault->lock);
    return status;
}

void tdm_vault_drop(tdm_vault *vault, const char *name)
{
    lock_table(vault->table);
    region *r = find(vault->table, name);
    if (r && *name) {
        (void)fallocate(vault->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)r->first,
                        (off_t)whole_pages(r->bytes));
        r->name[0] = '\0';
    }
    pthread_mutex_unlock(&vault->table->lock);
}

uint64_t tdm_vault_place(const tdm_vault *vault, const void *memory)
{
    uint64_t place = UINT64_MAX;
    tdm_vault *v = (tdm_vault *)(uintptr_t)vault; /* for its lock */
    pthread_mutex_lock(&v->lock);
    for (size_t i = 0; i < v->map_count; i++) {
        const char *data = v->maps[i].data, *at = memory;
        if (at >= data && at < data + v->maps[i].bytes)
            place = v->maps[i].first + (uint64_t)(at - data);
    }
    pthread_mutex_unlock(&v->lock);
    return place;
}

void *tdm_vault_at(const tdm_vault *vault, uint64_t place)
{
    char *found = NULL;
    tdm_vault *v = (tdm_vault *)(uintptr_t)vault;
    pthread_mutex_lock(&v->lock);
    for (size_t i = 0; i < v->map_count; i++)
        if (place >= v->maps[i].first && place - v->maps[i].first < v->maps[i].bytes)
            found = (char *)v->maps[i].data + (place - v->maps[i].first);
    pthread_mutex_unlock(&v->lock);
    return found;
}
