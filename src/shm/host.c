/*
 * host.c: creates, maps and releases the shared memory segment of a host.
 *
 * The segment reserves address space: many times the machine's memory, so that fragmentation and the
 * windows of thousands of groups do not matter, and less if the process may not map that much. Its size
 * is sealed, so that no process can truncate it under the others. It is excluded from core files, which
 * would otherwise touch every page. The CPU masks and quotas in the ranks' cells decide whether to spin:
 * not when ranks share CPUs.
 */
#include "base/base.h"
#include "os/os.h"
#include "shm/host_inner.h"

#include <tandem/os.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define SEGMENT_MAGIC 0x74646d686f737431u
#define GIGABYTE (1ull << 30)
#define MIN_BYTES (64ull << 20)
#define MAX_BYTES (4ull << 40) /* pages have 31 bits in the table of blocks */

enum {
    SPINS = 2000,
    HUGE_PAGE = 2 << 20,
    MEMORIES =
        16 /* address space in multiples of the machine's memory; windows reserve much and touch little */
};

uint64_t tdm__host_round(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) & ~(to - 1);
}

static tdm__host_layout layout_compute(uint64_t count, uint64_t bytes)
{
    tdm__host_layout at;
    at.cells = tdm__host_round(sizeof(tdm__segment), TDM__HOST_PAGE);
    at.slots = tdm__host_round(at.cells + count * sizeof(tdm__host_cell), TDM__HOST_PAGE);
    at.records = tdm__host_round(at.slots + count * count * sizeof(uint64_t), TDM__HOST_PAGE);
    at.small = tdm__host_round(at.records + TDM__MAX_HOST_BLOCKS * sizeof(uint64_t),
                               TDM__HOST_PAGE);
    at.end = bytes;
    at.large = tdm__host_round(at.small + (bytes - at.small) / 4, HUGE_PAGE);
    return at;
}

/* Advises huge pages for large blocks, if the system allows them for shared memory. */
static void host_advise_huge_pages(const tdm__host *host)
{
    char text[128] = "";
    int fd = open("/sys/kernel/mm/transparent_hugepage/shmem_enabled", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t got = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    if (!strstr(text, "[advise]") && !strstr(text, "[always]") && !strstr(text, "[within_size]"))
        return;
    (void)madvise(host->base + host->at.large, host->at.end - host->at.large, MADV_HUGEPAGE);
}

tdm_status tdm__host_map(tdm__host *host, uint64_t bytes, tdm_error *err)
{
    tdm__host_layout at = layout_compute((uint64_t)host->count, MIN_BYTES);
    if (bytes > SIZE_MAX / 2 || bytes < at.small + MIN_BYTES / 2)
        return tdm_fail(err, TDM_ERR_RANGE, "invalid size of the shared memory segment: %llu bytes",
                        (unsigned long long)bytes);
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                      host->memory_fd, 0);
    if (base == MAP_FAILED)
        return tdm_fail(err, TDM_ERR_NO_MEMORY,
                        "cannot map %llu MB of address space for the ranks of this host: %s; check "
                        "`ulimit -v`",
                        (unsigned long long)(bytes >> 20), strerror(errno));
    (void)madvise(base, bytes, MADV_DONTDUMP);
    host->base = base;
    host->at = layout_compute((uint64_t)host->count, bytes);
    host->segment = base;
    host->cells = (tdm__host_cell *)(host->base + host->at.cells);
    host->slots = (_Atomic uint64_t *)(host->base + host->at.slots);
    host->records = (_Atomic uint64_t *)(host->base + host->at.records);
    host_advise_huge_pages(host);
    return TDM_OK;
}

/* The desired size of the segment. A file size limit applies, because exceeding it raises SIGXFSZ. */
static uint64_t segment_size_choose(void)
{
    tdm_memory_info info;
    tdm_os_memory_info(&info);
    uint64_t memory = info.total_bytes;
    if (info.limit_bytes && info.limit_bytes < memory) memory = info.limit_bytes;
    uint64_t bytes = tdm__host_round(memory * MEMORIES + 1, GIGABYTE);
    if (bytes > MAX_BYTES) bytes = MAX_BYTES;
    struct rlimit files;
    if (getrlimit(RLIMIT_FSIZE, &files) == 0 && files.rlim_cur != RLIM_INFINITY)
        while (bytes > files.rlim_cur && bytes > MIN_BYTES) bytes /= 2;
    return bytes;
}

/* Makes and maps the memory: the lowest rank's part. */
static tdm_status segment_create(tdm__host *host, tdm_error *err)
{
    host->memory_fd = memfd_create("tandem", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (host->memory_fd < 0)
        return tdm_fail(err, TDM_ERR_SYSTEM, "cannot create shared memory (memfd_create): %s",
                        strerror(errno));
    uint64_t bytes = segment_size_choose();
    for (;; bytes /= 2) {
        tdm_status status;
        if (ftruncate(host->memory_fd, (off_t)bytes) == 0)
            status = tdm__host_map(host, bytes, err);
        else
            status = tdm_fail(err, TDM_ERR_NO_MEMORY, "cannot create %llu MB of shared memory: %s",
                              (unsigned long long)(bytes >> 20), strerror(errno));
        if (status == TDM_OK) break;
        if (bytes / 2 < MIN_BYTES)
            return tdm_error_context(err, status, "this host's shared memory, at its minimum size");
    }
    if (fcntl(host->memory_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return tdm_fail(err, TDM_ERR_SYSTEM, "cannot seal the size of shared memory: %s",
                        strerror(errno));
    tdm__segment *segment = host->segment;
    assert(segment);
    TDM_TRY(tdm__shared_lock_init(&segment->lock, err));
    segment->bytes = bytes;
    segment->world = host->world;
    segment->count = (uint32_t)host->count;
    segment->magic = SEGMENT_MAGIC;
    return TDM_OK;
}

tdm_status tdm__host_enter(tdm__host *host, tdm_error *err)
{
    const tdm__segment *segment = host->segment;
    if (segment->magic != SEGMENT_MAGIC || segment->world != host->world ||
        segment->count != (uint32_t)host->count || segment->bytes != host->at.end)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "the shared memory of this host belongs to another world");
    tdm__host_cell *cell = &host->cells[host->index];
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0) CPU_SET(0, &set);
    int allowed = 0;
    for (int cpu = 0; cpu < TDM__HOST_MASK_WORDS * 64 && cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &set)) continue;
        cell->mask[cpu / 64] |= 1ull << (cpu % 64);
        allowed++;
    }
    tdm_cpu_info cpus;
    tdm_os_cpu_info(&cpus);
    cell->quota = cpus.usable_count > 0 && cpus.usable_count < allowed ? (uint32_t)cpus.usable_count
                                                                       : 0;
    host->ring_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (host->ring_fd < 0)
        return tdm_fail(err, TDM_ERR_SYSTEM, "cannot create a socket to wake other ranks: %s",
                        strerror(errno));
    if (host->with_fds) TDM_TRY(tdm__host_open_bell(host, err));
    atomic_store_explicit(&cell->ready, 1, memory_order_release);
    return TDM_OK;
}

/* Spins only if there is a CPU for each rank: otherwise spinning takes the CPU from another rank. */
static uint32_t host_count_spins(const tdm__host *host)
{
    uint64_t mask[TDM__HOST_MASK_WORDS] = {0};
    int min_quota = INT32_MAX;
    for (int i = 0; i < host->count; i++) {
        const tdm__host_cell *cell = &host->cells[i];
        if (!atomic_load_explicit(&cell->ready, memory_order_acquire)) return 0;
        for (int w = 0; w < TDM__HOST_MASK_WORDS; w++) mask[w] |= cell->mask[w];
        if (cell->quota && (int)cell->quota < min_quota) min_quota = (int)cell->quota;
    }
    int processors = 0;
    for (int w = 0; w < TDM__HOST_MASK_WORDS; w++) processors += __builtin_popcountll(mask[w]);
    if (processors > min_quota) processors = min_quota;
    return host->count > processors ? 0 : SPINS;
}

static tdm_status options_check(const tdm__host_options *options, int *out_index, tdm_error *err)
{
    if (options->count < 1 || options->count > TDM__MAX_HOST_RANKS)
        return tdm_fail(err, TDM_ERR_RANGE, "%d ranks on one host; expected 1 to %d",
                        options->count, TDM__MAX_HOST_RANKS);
    int index = -1;
    for (int i = 0; i < options->count; i++) {
        if (i > 0 && options->ranks[i] <= options->ranks[i - 1])
            return tdm_fail(err, TDM_ERR_INVALID,
                            "the ranks of this host are not in ascending order");
        if (options->ranks[i] == options->rank) index = i;
    }
    if (index < 0)
        return tdm_fail(err, TDM_ERR_INVALID, "rank %d is missing in the list of its host's ranks",
                        options->rank);
    *out_index = index;
    return TDM_OK;
}

tdm_status tdm__host_create(const tdm__host_options *options, tdm__host **out, uint8_t *address,
                            size_t *address_bytes, tdm_error *err)
{
    int index = 0;
    TDM_TRY(options_check(options, &index, err));
    tdm__host *host = calloc(1, sizeof(*host));
    int *ranks = calloc((size_t)options->count, sizeof(*ranks));
    if (!host || !ranks) {
        free(host);
        free(ranks);
        return tdm_fail_oom(err, "for the ranks of this host");
    }
    memcpy(ranks, options->ranks, (size_t)options->count * sizeof(*ranks));
    *host = (tdm__host){.index = index,
                        .count = options->count,
                        .ranks = ranks,
                        .world = options->world,
                        .with_fds = options->with_fds,
                        .cancellation = options->cancellation,
                        .memory_fd = -1,
                        .listen_fd = -1,
                        .bell_fd = -1,
                        .ring_fd = -1};
    size_t name_bytes = 0;
    if (index == 0) {
        tdm_status status = segment_create(host, err);
        if (status == TDM_OK) status = tdm_shm_create_for_node(&host->shm, err);
        if (status == TDM_OK && host->count > 1) status = tdm__host_listen(host, err);
        if (status != TDM_OK) {
            tdm__host_destroy(host);
            return status;
        }
        name_bytes = strlen(host->listen_name);
    }
    if (name_bytes) memcpy(address, host->listen_name, name_bytes);
    *address_bytes = name_bytes;
    *out = host;
    return TDM_OK;
}

tdm_status tdm__host_connect(tdm__host *host, const uint8_t *const *addresses,
                             const size_t *address_bytes, tdm_error *err)
{
    if (host->index == 0) {
        TDM_TRY(tdm__host_enter(host, err));
        if (host->count > 1) TDM_TRY(tdm__host_hand_out(host, err));
    } else {
        TDM_TRY(tdm__host_ask(host, addresses[0], address_bytes[0], err));
    }
    host->spins = host_count_spins(host);
    host->cancellation = (tdm__cancellation){0};
    return TDM_OK;
}

void tdm__host_destroy(tdm__host *host)
{
    if (!host) return;
    tdm_shm_close(host->shm);
    if (host->base) munmap(host->base, host->at.end);
    const int fds[] = {host->memory_fd, host->listen_fd, host->bell_fd, host->ring_fd};
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        if (fds[i] >= 0) close(fds[i]);
    free(host->ranks);
    free(host);
}

tdm_shm *tdm__host_shm(const tdm__host *host)
{
    return host->shm;
}

int tdm__host_index(const tdm__host *host)
{
    return host->index;
}

int tdm__host_count(const tdm__host *host)
{
    return host->count;
}

uint32_t tdm__host_spins(const tdm__host *host)
{
    return host->spins;
}
