/*
 * os.h: the operating system: files, shared objects, memory, processes, CPUs.
 *
 * Files are read whole or replaced atomically, never edited in place: a reader sees either the old or
 * the new bytes, and so does a reader after a kill at any time. Error messages contain the path and the
 * system's reason; a full disk is TDM_ERR_NO_SPACE, so that the caller can distinguish it from a broken
 * disk.
 */
#ifndef TANDEM_OS_H
#define TANDEM_OS_H

#include <tandem/base.h>
#include <tandem/text.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- files ----------------------------------------------------------------------------------- */

/* A whole file in memory, mapped read-only if possible. Regular files only. */
typedef struct tdm_file_bytes {
    const uint8_t *data;
    size_t count;
    bool mapped;
} tdm_file_bytes;

/* `limit_bytes` 0: none. A larger file is TDM_ERR_RANGE. */
TDM_API tdm_status tdm_file_read(const char *path, uint64_t limit_bytes, tdm_file_bytes *out,
                                 tdm_error *err);
TDM_API void tdm_file_bytes_release(tdm_file_bytes *bytes);

/*
 * Atomic replacement: opens a temporary file in the directory of `path`; the caller writes in pieces,
 * then commits (fsync, rename, fsync of the directory) or abandons (the temporary file is removed).
 * After a failed write or commit the old file is unchanged. A link is followed; a device, pipe or
 * socket is rejected. The name of a temporary file begins with a dot and ends in ".tmp".
 */
typedef struct tdm_file_writer tdm_file_writer;
TDM_API tdm_status tdm_file_writer_create(const char *path, tdm_file_writer **out, tdm_error *err);
TDM_API tdm_status tdm_file_writer_write(tdm_file_writer *writer, const void *bytes, size_t count,
                                         tdm_error *err);
/* Commit and abandon end the writer; it must not be used afterwards, even if commit failed. */
TDM_API tdm_status tdm_file_writer_commit(tdm_file_writer *writer, tdm_error *err);
TDM_API void tdm_file_writer_abandon(tdm_file_writer *writer);

TDM_API tdm_status tdm_file_replace(const char *path, const void *bytes, size_t count,
                                    tdm_error *err);

/* The sorted names in a directory, without "." and "..", allocated in `arena`. */
TDM_API tdm_status tdm_dir_list(const char *path, tdm_arena *arena, const char *const **out_names,
                                size_t *out_count, tdm_error *err);
TDM_API bool tdm_path_is_file(const char *path);
TDM_API bool tdm_path_is_dir(const char *path);
/* Whether anything with this name exists: a file, a directory, a device. */
TDM_API bool tdm_path_exists(const char *path);
/* `path` itself if it is absolute, otherwise joined to `dir` (NULL: the current directory). */
TDM_API char *tdm_path_join(tdm_arena *arena, const char *dir, const char *path);
TDM_API char *tdm_path_absolute(tdm_arena *arena, const char *path);

/* ---- memory ---------------------------------------------------------------------------------- */

/*
 * Zeroed pages from the system, backed by huge pages if the kernel offers them. With `shared`, forked
 * processes share them. For buffers that live as long as a plan.
 */
typedef struct tdm_pages {
    void *data;
    size_t bytes; /* rounded up to pages */
} tdm_pages;
TDM_API tdm_status tdm_pages_map(size_t bytes, bool shared, tdm_pages *out, tdm_error *err);
TDM_API void tdm_pages_unmap(tdm_pages *pages);

/*
 * A shared memory segment of a host that outlives the processes that use it. It is a file without a name
 * that contains named regions; a process with its descriptor finds them, after any crash. It ends with
 * the last process that has it open. Regions are found and created under a lock that a dead holder does
 * not block; a holder that is stopped is killed after a second, and a process that has waited for twenty
 * seconds gets TDM_ERR_PEER_TIMEOUT. Threading: any thread.
 */
typedef struct tdm_shm tdm_shm;
TDM_API tdm_status tdm_shm_create(tdm_shm **out, tdm_error *err);
/* A random id of the segment, the same in every process. */
TDM_API uint64_t tdm_shm_id(const tdm_shm *shm);
TDM_API void tdm_shm_close(tdm_shm *shm); /* unmaps all regions; NULL is allowed */
enum { TDM_SHM_NAME_BYTES = 48, TDM_SHM_MAX_REGIONS = 2048 };

/* ---- memory of the machine ------------------------------------------------------------------- */

typedef struct tdm_memory_info {
    uint64_t total_bytes;
    uint64_t available_bytes;
    uint64_t limit_bytes;         /* of this process's cgroup; 0: none */
    uint64_t huge_page_bytes;     /* 0: unknown */
    uint64_t huge_pages_reserved; /* hugetlbfs */
    char transparent_huge[16];    /* "always", "madvise", "never" or "" */
} tdm_memory_info;

/* ---- CPUs ------------------------------------------------------------------------------------ */

typedef struct tdm_cpu_info {
    char model[128];
    char architecture[16]; /* "x86_64", "aarch64" */
    char level[16];        /* "x86-64-v3", "armv8-a" */
    char features[256];    /* relevant ones, separated by spaces */
    int online_count;      /* CPUs of the machine */
    int usable_count;      /* CPUs that this process may use, by affinity and cgroups */
} tdm_cpu_info;

/* Cores, hardware threads and NUMA nodes that this process may use. Without hwloc, every hardware thread
 * counts as a core, and all memory as one node. */
typedef struct tdm_topology_info {
    int core_count;
    int processor_count; /* hardware threads */
    int memory_node_count;
    char library[TDM_LIBRARY_BYTES]; /* "hwloc 2.9.0"; empty: not in this build */
} tdm_topology_info;

#ifdef __cplusplus
}
#endif
#endif
