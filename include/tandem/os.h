/*
 * os.h: the machine below: files, shared objects, memory, processors.
 *
 * Files are read whole or replaced atomically, never edited in place: a reader sees the old bytes
 * or the new ones, and a kill at any instant leaves one of the two. Each failure names the path and
 * the system's reason; a full disk is TDM_ERR_NO_SPACE, so that a caller can tell it from a broken
 * one.
 */
#ifndef TANDEM_OS_H
#define TANDEM_OS_H

#include <tandem/base.h>
#include <tandem/text.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- files ----------------------------------------------------------------------------------- */

/* What errno means as a status: ENOENT is NOT_FOUND, ENOSPC and EDQUOT are NO_SPACE, ... */
TDM_API tdm_status tdm_os_errno_status(int error_number);
/* Fills `err` with "DOING PATH: reason" from errno and returns the matching status. */
TDM_API tdm_status tdm_os_fail(tdm_error *err, const char *doing, const char *path);
/* Bytes that nobody can guess, for keys and names. */
TDM_API tdm_status tdm_os_random(void *out, size_t bytes, tdm_error *err);

/* A whole file in memory, mapped read-only where possible. Regular files only. */
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
 * Atomic replacement: open a temporary file beside `path`, write in pieces, then commit (fsync,
 * rename, fsync of the folder) or abandon (the temporary file is removed). After a failed write or
 * commit the old file is untouched. A link is followed; a device, pipe or socket is refused. A leftover temporary name ends in ".tmp" and begins with a dot.
 */
typedef struct tdm_file_writer tdm_file_writer;
TDM_API tdm_status tdm_file_writer_create(const char *path, tdm_file_writer **out, tdm_error *err);
TDM_API tdm_status tdm_file_writer_write(tdm_file_writer *writer, const void *bytes, size_t count,
                                         tdm_error *err);
/* The same at a place of the file, which may lie beyond what was written so far; the place of
 * tdm_file_writer_write stays where it is. Large pieces cost least where `bytes` and `offset` leave the
 * same rest when divided by TDM_FILE_ALIGN: these need not go through the page cache. */
enum { TDM_FILE_ALIGN = 4096 };
TDM_API tdm_status tdm_file_writer_write_at(tdm_file_writer *writer, uint64_t offset,
                                            const void *bytes, size_t count, tdm_error *err);
/* What is written will be read again soon: all of it goes through the page cache. */
TDM_API void tdm_file_writer_cache(tdm_file_writer *writer);
/* Both end the writer; it must not be used afterwards, whatever commit returned. */
TDM_API tdm_status tdm_file_writer_commit(tdm_file_writer *writer, tdm_error *err);
TDM_API void tdm_file_writer_abandon(tdm_file_writer *writer);

/* What was written so far is on the disk; commit has less to do then. */
TDM_API tdm_status tdm_file_writer_sync(tdm_file_writer *writer, tdm_error *err);
/*
 * Several processes may write one file, each its parts, by tdm_file_writer_write_at: one creates the
 * writer and tells the others the absolute path of the temporary file; they join it there. Abandon, the
 * only end for a writer that joined, leaves the file alone. Whoever created it commits when all are done:
 * its sync covers their bytes, too.
 */
TDM_API char *tdm_file_writer_temporary(const tdm_file_writer *writer, tdm_arena *arena);
TDM_API tdm_status tdm_file_writer_join(const char *temporary, tdm_file_writer **out,
                                        tdm_error *err);

TDM_API tdm_status tdm_file_replace(const char *path, const void *bytes, size_t count,
                                    tdm_error *err);

/* Makes a folder and its parents; success when it is there already. */
TDM_API tdm_status tdm_dir_make(const char *path, tdm_error *err);
/* Sorted names in a folder, without "." and "..", from `arena`. */
TDM_API tdm_status tdm_dir_list(const char *path, tdm_arena *arena, const char *const **out_names,
                                size_t *out_count, tdm_error *err);
TDM_API bool tdm_path_is_file(const char *path);
TDM_API bool tdm_path_is_dir(const char *path);
/* Is there anything of that name: a file, a folder, a device? */
TDM_API bool tdm_path_exists(const char *path);
/* `path` as it stands when absolute, else joined to `dir` (NULL: the current folder). */
TDM_API char *tdm_path_join(tdm_arena *arena, const char *dir, const char *path);
TDM_API char *tdm_path_absolute(tdm_arena *arena, const char *path);
TDM_API char *tdm_path_dirname(tdm_arena *arena, const char *path);
/* The last component without its extension. */
TDM_API char *tdm_path_stem(tdm_arena *arena, const char *path);

/*
 * Fault injection for tests: the `countdown`-th next file operation of the kinds in `mask` fails
 * with `error_number` (as if the system had said so), and so do all after it until it is cleared
 * with countdown 0. Process-wide; costs one atomic load per operation when unset.
 */
enum {
    TDM_FAULT_OPEN = 1,
    TDM_FAULT_WRITE = 2,
    TDM_FAULT_FSYNC = 4,
    TDM_FAULT_RENAME = 8,
    TDM_FAULT_ALL = 15
};
TDM_API void tdm_os_fault_set(unsigned mask, long countdown, int error_number);

/*
 * A place at which a test may kill or stop this process: see src/os/test_point.c for how
 * TANDEM_TEST_KILL says where. Costs one look at the environment when unset.
 */
typedef struct tdm_test_point {
    const char *phase; /* "forward", "backward", "reduce", "update", "publish", "checkpoint", ... */
    uint64_t step;     /* in progress, from 1 */
    int rank;
    uint64_t part; /* of the phase: how much of it is done */
} tdm_test_point;
TDM_API void tdm_os_test_point(const tdm_test_point *at);

/* ---- code ------------------------------------------------------------------------------------ */

/* A shared object: code in a file, loaded while the program runs. */
typedef struct tdm_shared_object {
    void *handle;
} tdm_shared_object;
/* Loads it, or counts one more user of what is loaded already. TDM_ERR_FORMAT, with the loader's
 * reason, when it is none, or needs what is not there. */
TDM_API tdm_status tdm_shared_object_open(const char *path, tdm_shared_object *out, tdm_error *err);
/* What it exports under this name, a function or a variable; NULL when there is none. */
TDM_API void *tdm_shared_object_find(const tdm_shared_object *object, const char *name);
/* With the last user the code is gone. */
TDM_API void tdm_shared_object_close(tdm_shared_object *object);

/* ---- memory ---------------------------------------------------------------------------------- */

/*
 * Zeroed pages straight from the system, backed by huge pages where the kernel offers them. With
 * `shared` they stay common to processes forked later. For buffers that live as long as a plan.
 */
typedef struct tdm_pages {
    void *data;
    size_t bytes; /* as mapped: rounded up */
} tdm_pages;
TDM_API tdm_status tdm_pages_map(size_t bytes, bool shared, tdm_pages *out, tdm_error *err);
TDM_API void tdm_pages_unmap(tdm_pages *pages);
/* Private pages that are used now and then. populate: takes memory for all of them, so that no later write
 * waits for it; what they held is lost. lend: what they hold has no use any more; the system takes their
 * memory when somebody else needs it, and otherwise it is still there for the next write. */
TDM_API void tdm_pages_populate(const tdm_pages *pages);
TDM_API void tdm_pages_free_lazily(const tdm_pages *pages);

/* Zeroed address space in which memory is used only where something was written, page by page: for
 * large blocks of which a process fills a part. Given back by tdm_pages_unmap. */
TDM_API tdm_status tdm_pages_reserve(size_t bytes, tdm_pages *out, tdm_error *err);

/*
 * Address space that lies on less memory than it is long: it is cut into stretches, and each
 * stretch is laid over one of a few slots. Stretches of one slot show the same bytes. So a large
 * block keeps its layout while only a part of it is filled at a time. Page by page: offsets and
 * sizes are multiples of 4,096 (of the page size, where that is larger).
 */
typedef struct tdm_overlay {
    void *data;
    size_t bytes;
    int fd;            /* of the memory */
    size_t slot_bytes; /* of all slots */
} tdm_overlay;
/* `slot_bytes` of memory in all; nothing is laid over it yet, and the address space must not be
 * touched where nothing is. */
TDM_API tdm_status tdm_overlay_map(size_t bytes, size_t slot_bytes, tdm_overlay *out,
                                   tdm_error *err);
/* Lays [at, at + bytes) of the address space over [slot_at, slot_at + bytes) of the memory. */
TDM_API tdm_status tdm_overlay_lay(tdm_overlay *overlay, size_t at, size_t bytes, size_t slot_at,
                                   tdm_error *err);
TDM_API void tdm_overlay_unmap(tdm_overlay *overlay);

/* A new file of so many zero bytes, mapped for reading and writing, common to all processes that map
 * it; what was at `path` is replaced. Disk space is taken at once (TDM_ERR_NO_SPACE), so that no write
 * to it can fail later. */
TDM_API tdm_status tdm_file_map_create(const char *path, size_t bytes, tdm_pages *out,
                                       tdm_error *err);
/* The same, but disk space is taken for these parts alone, in bytes; elsewhere it must not be touched. */
typedef struct tdm_file_part {
    size_t first, count;
} tdm_file_part;
TDM_API tdm_status tdm_file_map_create_parts(const char *path, size_t bytes,
                                             const tdm_file_part *parts, size_t part_count,
                                             tdm_pages *out, tdm_error *err);
/* Maps one that another process has made. All of them are given back by tdm_pages_unmap. The file stays
 * until somebody removes it; that may be as soon as all have mapped it. */
TDM_API tdm_status tdm_file_map_open(const char *path, size_t bytes, tdm_pages *out,
                                     tdm_error *err);

/*
 * A vault: memory of a host that outlives the processes that use it. It is one file without a name, in
 * which regions have names; whoever has its descriptor finds them, after any death. It goes with the
 * last process that has it open. Regions are found and made under a lock that a dead holder does not
 * block; one that is stopped while it has it is killed after a second, and who has waited for twenty gets
 * TDM_ERR_PEER_TIMEOUT. Threading: any thread.
 */
typedef struct tdm_shm tdm_shm;
TDM_API tdm_status tdm_shm_create(tdm_shm **out, tdm_error *err);
/* By a descriptor that a parent left open, or that came through a socket; it is duplicated. */
TDM_API tdm_status tdm_shm_attach(int fd, tdm_shm **out, tdm_error *err);
/* To be handed on; stays the vault's. */
TDM_API int tdm_shm_fd(const tdm_shm *shm);
/* Tells this memory from all others: the same in every process that has it. */
TDM_API uint64_t tdm_shm_id(const tdm_shm *shm);
TDM_API void tdm_shm_close(tdm_shm *shm); /* what it gave is no longer mapped; NULL is fine */
enum { TDM_SHM_NAME_BYTES = 48, TDM_SHM_MAX_REGIONS = 2048 };
/* The region of this name, mapped once in this process, from a page's beginning on. Without one it is
 * made, zeroed, and *is_new set; memory is used only where something is written. TDM_ERR_EXISTS when
 * there is one of another size. */
TDM_API tdm_status tdm_shm_region_take(tdm_shm *shm, const char *name, size_t bytes, bool *is_new,
                                       void **out, tdm_error *err);
/* The same of one that is there, whatever its size; TDM_ERR_NOT_FOUND when none is. */
TDM_API tdm_status tdm_shm_region_find(tdm_shm *shm, const char *name, size_t *bytes, void **out,
                                       tdm_error *err);
/* A place in the vault that means the same to all who have it, and back (its region must have been taken
 * by this process). UINT64_MAX and NULL: it is not in the vault, or not mapped here. */
TDM_API uint64_t tdm_shm_offset(const tdm_shm *shm, const void *memory);
TDM_API void *tdm_shm_at(const tdm_shm *shm, uint64_t place);
/* The region is no more, for anybody; its memory goes back to the system at once. */
TDM_API void tdm_shm_region_drop(tdm_shm *shm, const char *name);

/* ---- other processes ------------------------------------------------------------------------- */

typedef struct tdm_process_info {
    uint64_t started;   /* in the system's ticks: tells it from a later one with its number */
    bool is_stopped;    /* by a signal, or a debugger */
    bool is_dead;       /* and only not yet waited for */
    uint64_t cpu_ticks; /* that all its threads have used */
} tdm_process_info;
/* False: there is none, or the system does not tell. */
TDM_API bool tdm_os_process(int64_t process, tdm_process_info *out);
/* Kills that process if it is stopped, and the one that started then; whether it was. */
TDM_API bool tdm_os_end_stopped(int64_t process, uint64_t started);

/* What was seen of a process at earlier looks; for one thread at a time. It may be in shared memory: each
 * member is written by a single store. */
typedef struct tdm_process_watch {
    int64_t process;
    uint64_t started;
    uint64_t cpu_ticks;
    double progress_s; /* when it was seen to make progress last, by tdm_clock_s */
} tdm_process_watch;
/* Begins to watch it; one that is not there never lives. */
TDM_API void tdm_process_watch_init(int64_t process, tdm_process_watch *out);
/* Whether it lives, is not stopped, and has made progress within the last `idle_s`: it has used CPU time
 * since an earlier look, or one of its threads waits for a CPU. So a process that is only slow, because
 * the host is busy, is told from one that is stopped or hangs. */
TDM_API bool tdm_process_lives(tdm_process_watch *watch, double idle_s);

/* ---- memory of the machine ------------------------------------------------------------------- */

typedef struct tdm_memory_info {
    uint64_t total_bytes;
    uint64_t available_bytes;
    uint64_t limit_bytes;         /* of this process's control group; 0 when there is none */
    uint64_t huge_page_bytes;     /* 0 when unknown */
    uint64_t huge_pages_reserved; /* hugetlbfs */
    char transparent_huge[16];    /* "always", "madvise", "never" or "" */
} tdm_memory_info;
TDM_API void tdm_os_memory_info(tdm_memory_info *out);
/* Resident bytes of this process, now and at most so far. */
TDM_API uint64_t tdm_os_resident_bytes(void);
TDM_API uint64_t tdm_os_peak_resident_bytes(void);
/* The same, but a page that several processes share counts in equal parts for each of them. */
TDM_API uint64_t tdm_os_proportional_bytes(void);

/* ---- processors ------------------------------------------------------------------------------ */

typedef struct tdm_cpu_info {
    char model[128];
    char architecture[16]; /* "x86_64", "aarch64" */
    char level[16];        /* "x86-64-v3", "armv8-a" */
    char features[256];    /* those that matter here, separated by spaces */
    int online_count;      /* processors the machine has */
    int usable_count;      /* processors this process may run on, control groups included */
} tdm_cpu_info;
TDM_API void tdm_os_cpu_info(tdm_cpu_info *out);

/* Cores, threads and NUMA nodes that this process may use. Without hwloc every processor counts as a
 * core, and all memory as one node. */
typedef struct tdm_topology_info {
    int core_count;
    int processor_count; /* hardware threads */
    int memory_node_count;
    char library[TDM_LIBRARY_BYTES]; /* "hwloc 2.9.0"; empty: there is none in this build */
} tdm_topology_info;
TDM_API void tdm_os_topology_info(tdm_topology_info *out);

enum { TDM_PLACE_MAX_CPUS = 4096, TDM_CPU_SET_TEXT_BYTES = 64 };

/* Where one of several processes of this machine runs. */
typedef struct tdm_cpu_set {
    uint64_t processors[TDM_PLACE_MAX_CPUS / 64]; /* a bit for each that it may use */
    int memory_node; /* from which it takes memory as long as there is some; -1: anywhere */
} tdm_cpu_set;
/*
 * Shares what this process may use among `count` processes: equal shares of whole cores, neighbours
 * next to each other and so on one NUMA node where that is possible; single hardware threads when there
 * are not enough cores. False, and `out` is left alone, when there are not enough of these either.
 */
TDM_API bool tdm_os_cpu_sets(int count, tdm_cpu_set *out);
/* What the calling thread may use now, memory anywhere; false when the system does not tell. */
TDM_API bool tdm_os_cpu_set_here(tdm_cpu_set *out);
/* Puts the calling thread there, and what it starts later. System calls only: may stand between fork
 * and exec. False, with errno, when the system refuses the processors; memory is a preference. */
TDM_API bool tdm_os_cpu_set_apply(const tdm_cpu_set *place);
/* The processors: "0-3,8". What does not fit into the buffer ends with "...". */
TDM_API const char *tdm_os_cpu_set_text(const tdm_cpu_set *place,
                                        char buffer[TDM_CPU_SET_TEXT_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
