/*
 * os.h: the part of module os that only other modules use.
 *
 * <tandem/os.h> declares what programs may call. This header adds errors from errno, parts of files, shared
 * memory segments, pages, processes, CPU sets and the test hooks; libtandem.so does not export it.
 */
#ifndef TANDEM_OS_OS_H
#define TANDEM_OS_OS_H

#include "os/test_control.h"

#include <tandem/os.h>

/* ---- files ----------------------------------------------------------------------------------- */

/* The status for a value of errno: ENOENT is NOT_FOUND, ENOSPC and EDQUOT are NO_SPACE, ... */
tdm_status tdm_os_errno_status(int error_number);
/* Fills `err` with "DOING PATH: reason" from errno and returns the matching status. */
tdm_status tdm_os_fail(tdm_error *err, const char *doing, const char *path);
/* Cryptographically secure random bytes, for keys and names. */
tdm_status tdm_os_random(void *out, size_t bytes, tdm_error *err);

/* Writes at an offset, which may be beyond the current end; the position of tdm_file_writer_write does
 * not change. Large pieces are cheapest if `bytes` and `offset` are equal modulo TDM_FILE_ALIGN: these
 * can bypass the page cache. */
enum { TDM_FILE_ALIGN = 4096 };
tdm_status tdm_file_writer_write_at(tdm_file_writer *writer, uint64_t offset, const void *bytes,
                                    size_t count, tdm_error *err);
/* Disables direct I/O for this writer: the file will be read soon and should be in the page cache. */
void tdm_file_writer_cache(tdm_file_writer *writer);

/* Writes everything so far to the disk, which makes a later commit faster. */
tdm_status tdm_file_writer_sync(tdm_file_writer *writer, tdm_error *err);
/*
 * Several processes may write parts of one file with tdm_file_writer_write_at: one creates the writer
 * and passes the absolute path of the temporary file to the others, which join it. A writer that joined
 * can only be abandoned, which does not remove the file. The creator commits when all are done; its sync
 * includes their bytes.
 */
char *tdm_file_writer_temporary(const tdm_file_writer *writer, tdm_arena *arena);
tdm_status tdm_file_writer_join(const char *temporary, tdm_file_writer **out, tdm_error *err);

/* Creates a directory and its parents; succeeds if it already exists. */
tdm_status tdm_dir_make(const char *path, tdm_error *err);
char *tdm_path_dirname(tdm_arena *arena, const char *path);
/* The last component without its extension. */
char *tdm_path_stem(tdm_arena *arena, const char *path);

/* ---- code ------------------------------------------------------------------------------------ */

/* A shared object that is loaded at run time. */
typedef struct tdm_shared_object {
    void *handle;
} tdm_shared_object;
/* Loads a shared object, or increments its reference count if it is loaded. TDM_ERR_FORMAT, with the
 * loader's reason, if it is not a shared object or a dependency is missing. */
tdm_status tdm_shared_object_open(const char *path, tdm_shared_object *out, tdm_error *err);
/* The exported function or variable with this name; NULL if there is none. */
void *tdm_shared_object_find(const tdm_shared_object *object, const char *name);
/* Unloads the code with the last reference. */
void tdm_shared_object_close(tdm_shared_object *object);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Allocates memory for all private pages, so that no later write has a page fault; their contents are
 * lost. */
void tdm_pages_populate(const tdm_pages *pages);
/* Marks the contents of private pages as unused. The system takes the memory if it needs it; otherwise it
 * is still allocated at the next write. */
void tdm_pages_free_lazily(const tdm_pages *pages);

/* Zeroed address space that uses memory only for written pages: for large blocks of which a process fills
 * a part. Released by tdm_pages_unmap. */
tdm_status tdm_pages_reserve(size_t bytes, tdm_pages *out, tdm_error *err);
/* Backs reserved address space from byte `from` on by huge pages, if the kernel offers them: for blocks that
 * are filled from their beginning. One written byte there can cost a whole huge page. */
void tdm_pages_prefer_huge(const tdm_pages *pages, size_t from);

/*
 * Address space that is backed by less memory than its size: it is divided into ranges, and each range
 * is mapped to one of a few slots. Ranges with the same slot share its bytes. So a large block keeps its
 * layout while only a part of it is used at a time. Offsets and sizes are multiples of 4,096 (of the
 * page size, if that is larger).
 */
typedef struct tdm_overlay {
    void *data;
    size_t bytes;
    int fd;            /* of the memory */
    size_t slot_bytes; /* total size of the slots */
} tdm_overlay;
/* Reserves the address space and `slot_bytes` of memory. No range is mapped yet; unmapped addresses must
 * not be accessed. */
tdm_status tdm_overlay_map(size_t bytes, size_t slot_bytes, tdm_overlay *out, tdm_error *err);
/* Maps [at, at + bytes) of the address space to [slot_at, slot_at + bytes) of the memory. */
tdm_status tdm_overlay_lay(tdm_overlay *overlay, size_t at, size_t bytes, size_t slot_at,
                           tdm_error *err);
void tdm_overlay_unmap(tdm_overlay *overlay);

/* Creates a file of `bytes` zeros, mapped for reading and writing, and shared with all processes that map
 * it; an existing file is replaced. Disk space is allocated immediately (TDM_ERR_NO_SPACE), so that no
 * later write can fail. */
tdm_status tdm_file_map_create(const char *path, size_t bytes, tdm_pages *out, tdm_error *err);
typedef struct tdm_file_part {
    size_t first, count; /* bytes */
} tdm_file_part;
/* Like tdm_file_map_create, but allocates disk space for these parts only; other bytes must not be
 * accessed. */
tdm_status tdm_file_map_create_parts(const char *path, size_t bytes, const tdm_file_part *parts,
                                     size_t part_count, tdm_pages *out, tdm_error *err);
/* Maps a file that another process has created. Mappings are released by tdm_pages_unmap. The file exists
 * until it is removed, which is allowed as soon as all processes have mapped it. */
tdm_status tdm_file_map_open(const char *path, size_t bytes, tdm_pages *out, tdm_error *err);

/* The name of the file of a session's segment: a new agent finds it in /proc/PID/fd of a worker. */
#define TDM_SHM_SESSION_FILE "tandem-session"
/* A segment for the ranks of a node in one world. */
tdm_status tdm_shm_create_for_node(tdm_shm **out, tdm_error *err);
/* A segment of this process only: its regions are private pages, and it has no descriptor. */
tdm_status tdm_shm_create_private(tdm_shm **out, tdm_error *err);
/* Attaches by a descriptor that was inherited or received through a socket; it is duplicated. */
tdm_status tdm_shm_attach(int fd, tdm_shm **out, tdm_error *err);
/* The descriptor, for other processes; it is still owned by `shm`. */
int tdm_shm_fd(const tdm_shm *shm);
/* The region with this name, page-aligned and mapped once in this process. If it does not exist it is
 * created with zeros, and *is_new set; memory is used only for written pages. TDM_ERR_EXISTS if the region
 * has another size. */
tdm_status tdm_shm_region_take(tdm_shm *shm, const char *name, size_t bytes, bool *is_new,
                               void **out, tdm_error *err);
/* Takes an existing region of any size; TDM_ERR_NOT_FOUND if it does not exist. */
tdm_status tdm_shm_region_find(tdm_shm *shm, const char *name, size_t *bytes, void **out,
                               tdm_error *err);
/* Releases memory that `take` or `find` returned, once for each such call. The last release of the last process
 * removes the region and returns its memory to the system. NULL is allowed. */
void tdm_shm_region_release(tdm_shm *shm, const void *memory);
/* The offset of an address in the segment, which is valid in all processes; UINT64_MAX if the address is
 * not in a region that this process has mapped. */
uint64_t tdm_shm_offset(const tdm_shm *shm, const void *memory);
/* The address of an offset; NULL if this process has not mapped its region. */
void *tdm_shm_at(const tdm_shm *shm, uint64_t offset);

/* ---- other processes ------------------------------------------------------------------------- */

typedef struct tdm_process_info {
    uint64_t started; /* in system ticks: distinguishes it from a later process with the same id */
    bool is_stopped;  /* by a signal or a debugger */
    bool is_dead;     /* a zombie */
    uint64_t cpu_ticks; /* CPU time of all its threads */
} tdm_process_info;
/* Reads the state of a process. False: it does not exist, or the state is not available. */
bool tdm_os_process(int64_t process, tdm_process_info *out);
/* Kills the process if it is stopped and has this start time; returns whether it did. */
bool tdm_os_end_stopped(int64_t process, uint64_t started);

/* Observations of a process; for one thread at a time. It may be in shared memory: each member is written
 * by a single store. */
typedef struct tdm_process_watch {
    int64_t process;
    uint64_t started;
    uint64_t cpu_ticks;
    double progress_s; /* time of the last observed progress, by tdm_clock_s */
} tdm_process_watch;
/* Starts to watch a process; one that does not exist is never alive. */
void tdm_process_watch_init(int64_t process, tdm_process_watch *out);
/* Whether the process is alive, not stopped, and has made progress within the last `idle_s`: it has used
 * CPU time since an earlier call, or one of its threads waits for a CPU. This distinguishes a process that
 * is slow on a busy host from one that is stopped or hangs. */
bool tdm_process_lives(tdm_process_watch *watch, double idle_s);

/* ---- memory of the machine ------------------------------------------------------------------- */

void tdm_os_memory_info(tdm_memory_info *out);
/* Resident bytes of this process, now and at its peak. */
uint64_t tdm_os_resident_bytes(void);
uint64_t tdm_os_peak_resident_bytes(void);
/* Resident bytes now, where a page that n processes share counts 1/n. */
uint64_t tdm_os_proportional_bytes(void);

/* ---- CPUs ------------------------------------------------------------------------------------ */

void tdm_os_cpu_info(tdm_cpu_info *out);
void tdm_os_topology_info(tdm_topology_info *out);
enum { TDM_PLACE_MAX_CPUS = 4096, TDM_CPU_SET_TEXT_BYTES = 64 };

/* The CPUs and the memory of one of several processes of this machine. */
typedef struct tdm_cpu_set {
    uint64_t processors[TDM_PLACE_MAX_CPUS / 64]; /* a bit for each CPU that it may use */
    int memory_node;                              /* preferred NUMA node; -1: none */
} tdm_cpu_set;
/*
 * Divides the CPUs of this process among `count` processes: equal shares of whole cores, adjacent
 * processes on the same NUMA node if possible; single hardware threads if there are not enough cores.
 * False, with `out` unchanged, if there are not enough hardware threads either.
 */
bool tdm_os_cpu_sets(int count, tdm_cpu_set *out);
/* The CPUs that the calling thread may use now, without a preferred node; false if not available. */
bool tdm_os_cpu_set_here(tdm_cpu_set *out);
/* Applies the set to the calling thread and to threads and processes that it starts later. Uses system
 * calls only, so it may be called between fork and exec. False, with errno, if the system rejects the
 * CPUs; the node is a preference. */
bool tdm_os_cpu_set_apply(const tdm_cpu_set *place);
/* The CPUs as text: "0-3,8". Text that does not fit into the buffer ends with "...". */
const char *tdm_os_cpu_set_text(const tdm_cpu_set *place, char buffer[TDM_CPU_SET_TEXT_BYTES]);

#endif
