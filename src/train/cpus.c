/*
 * cpus.c: how the ranks of a host share its CPUs, and a comparison of their numerics.
 *
 * Each rank sends its CPU set to the others. A CPU that several ranks of a host may use is divided between
 * them: so pinned ranks have their own CPUs, unpinned ranks have equal shares, and mixtures are handled
 * correctly. With compute.threads: auto the number of threads is the share, rounded down. The number of
 * threads does not affect the result, so ranks may differ. Results of vendor kernels depend on the CPU and
 * the library, so ranks that use them must not differ in these: they are compared here.
 */
#include "base/base.h"
#include "comm/comm.h"
#include "os/os.h"
#include "tensor/tensor.h"
#include "train/internal.h"

#include "tensor/kernel.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* The CPUs of a rank, as exchanged. */
typedef struct cpus {
    tdm_cpu_set place; /* all zero: unknown */
    int32_t usable_count;
    int32_t thread_count; /* set by the job; 0: auto */
} cpus;

static cpus cpus_here(const tdm_job *job)
{
    cpus own = {.thread_count = (int32_t)job->compute.threads};
    tdm_cpu_info info;
    tdm_os_cpu_info(&info);
    own.usable_count = info.usable_count > 0 ? info.usable_count : 1;
    if (!tdm_os_cpu_set_here(&own.place)) memset(&own.place, 0, sizeof(own.place));
    own.place.memory_node = 0; /* irrelevant here */
    return own;
}

static bool cpus_may_use(const cpus *c, int cpu)
{
    return c->place.processors[cpu / 64] >> (cpu % 64) & 1;
}

/* The share of a rank in the CPUs of its host. */
static double cpus_share(const cpus *all, int size, int rank, tdm_comm *comm)
{
    int near_count = 0, mask_count = 0;
    double share = 0;
    for (int i = 0; i < size; i++)
        near_count += !comm || tdm_comm_host_of(comm, i) == tdm_comm_host_of(comm, rank);
    for (int cpu = 0; cpu < TDM_PLACE_MAX_CPUS; cpu++) {
        int users = 0;
        if (!cpus_may_use(&all[rank], cpu)) continue;
        for (int i = 0; i < size; i++)
            users += cpus_may_use(&all[i], cpu) &&
                     (!comm || tdm_comm_host_of(comm, i) == tdm_comm_host_of(comm, rank));
        share += 1.0 / users;
        mask_count++;
    }
    /* A quota applies to all of them together. */
    double equal = (double)all[rank].usable_count / near_count;
    return mask_count == 0 || (all[rank].usable_count < mask_count && equal < share) ? equal
                                                                                     : share;
}

/* Rounds down; the epsilon is for sums such as three thirds. */
static int cpus_thread_count(const cpus *c, double share)
{
    if (c->thread_count > 0) return c->thread_count;
    int threads = (int)(share + 1e-6);
    return threads < 1 ? 1 : threads < TDM_MAX_THREADS ? threads : TDM_MAX_THREADS;
}

/* The number of CPUs that the ranks of a host can use together, and the number of these ranks. */
static int host_cpus(const cpus *all, int size, int host, tdm_comm *comm, int *worker_count)
{
    uint64_t together[TDM_PLACE_MAX_CPUS / 64] = {0};
    int count = 0, quota = INT32_MAX;
    *worker_count = 0;
    for (int i = 0; i < size; i++) {
        if (comm && tdm_comm_host_of(comm, i) != host) continue;
        int own = 0;
        for (int w = 0; w < TDM_PLACE_MAX_CPUS / 64; w++) {
            together[w] |= all[i].place.processors[w];
            own += __builtin_popcountll(all[i].place.processors[w]);
        }
        if (all[i].usable_count < own || own == 0) quota = all[i].usable_count;
        (*worker_count)++;
    }
    for (int w = 0; w < TDM_PLACE_MAX_CPUS / 64; w++) count += __builtin_popcountll(together[w]);
    return count > 0 && count < quota ? count : quota;
}

/* Warns about the first such host, on rank 0; not with one thread per rank, which the user chose. */
static void cpus_warn_if_shared(const cpus *all, int size, int thread_count, tdm_comm *comm)
{
    for (int i = 0, last = -1; i < size && thread_count > 1; i++) {
        int host = comm ? tdm_comm_host_of(comm, i) : 0, worker_count;
        if (host <= last) continue; /* hosts are numbered by their lowest rank */
        last = host;
        int count = host_cpus(all, size, host, comm, &worker_count);
        if (worker_count * thread_count <= count) continue;
        tdm_log(TDM_LOG_WARN, "train",
                "%d worker%s with %d threads each share the %d CPU%s of a host and take turns; "
                "compute.threads: auto uses as many threads as there are CPUs",
                worker_count, worker_count == 1 ? "" : "s", thread_count, count,
                count == 1 ? "" : "s");
        return;
    }
}

tdm_status tdm__share_cpus(tdm_comm *comm, const tdm_job *job, bool logs, int *threads,
                           tdm_error *err)
{
    int size = tdm__size_of(comm), rank = tdm__rank_of(comm);
    tdm_arena *arena = tdm_arena_create("CPUs");
    cpus *all = arena ? tdm_arena_array(arena, (size_t)size, sizeof(*all)) : NULL;
    tdm_status status = all ? TDM_OK : tdm_fail_oom(err, "in training");
    status = tdm_comm_agree(comm, status, NULL, err);
    assert(status != TDM_OK || all); /* the ranks agree only if all have memory */
    if (status == TDM_OK) {
        all[rank] = cpus_here(job);
        if (size > 1)
            status = tdm_group_all_gather(tdm_comm_world(comm), NULL, all,
                                          (size_t)size * sizeof(*all), TDM_DTYPE_U8, err);
    }
    if (status == TDM_OK) {
        double share = cpus_share(all, size, rank, comm);
        *threads = cpus_thread_count(&all[rank], share);
        tdm_kernel_crowded_set(*threads > share + 1e-6);
        if (logs && rank == 0) cpus_warn_if_shared(all, size, (int)job->compute.threads, comm);
    }
    tdm_arena_destroy(arena);
    return status;
}

/* ---- numerics --------------------------------------------------------------------------------- */

const char *tdm__numerics_of(const tdm_job *job, char buffer[TDM_NUMERICS_BYTES])
{
    return tdm_numerics_text(job->compute.numerics == TDM_JOB_NUMERICS_VENDOR, buffer);
}

/* The error of the rank that differs from rank 0. */
static tdm_status numerics_fail(const char *first, const tdm__host_name *names, int rank,
                                const tdm_job *job, tdm_error *err)
{
    char own[TDM_NUMERICS_BYTES];
    bool is_vendor = job->compute.numerics == TDM_JOB_NUMERICS_VENDOR;
    return tdm_fail(
        err, TDM_ERR_JOB_MISMATCH,
        "host %s computes with numerics '%s', but rank 0 on host %s with '%s': together "
        "they would give a result that neither gives alone; %s",
        names[rank].text, tdm__numerics_of(job, own), names[0].text, first,
        is_vendor ? "start all with TANDEM_ISA=v3 and the same oneDNN, or set "
                    "compute.numerics: portable"
                  : "install the same version of tandem on all hosts");
}

tdm_status tdm__same_numerics(tdm_comm *comm, const tdm_job *job, tdm_error *err)
{
    char text[TDM_NUMERICS_BYTES] = "";
    int differs = -1, size = tdm__size_of(comm);
    if (size == 1) return TDM_OK;
    tdm__numerics_of(job, text);
    TDM_TRY(tdm__same_text(comm, text, sizeof(text), &differs, err));
    if (differs < 0) return TDM_OK;
    tdm_arena *arena = tdm_arena_create("hosts");
    tdm__host_name *names = arena ? tdm_arena_array(arena, (size_t)size, sizeof(*names)) : NULL;
    tdm_status status = names ? TDM_OK : tdm_fail_oom(err, "in training");
    status = tdm_comm_agree(comm, status, NULL, err);
    if (status == TDM_OK) status = tdm__host_names(comm, names, err);
    if (status == TDM_OK && differs == tdm__rank_of(comm))
        status = numerics_fail(text, names, differs, job, err);
    tdm_arena_destroy(arena);
    return tdm_comm_agree(comm, status, NULL, err);
}

void tdm__warn_of_numerics(const char *path, const char *there, const tdm_job *job,
                           const char *follows)
{
    char here[TDM_NUMERICS_BYTES];
    tdm__numerics_of(job, here);
    if (there && strcmp(here, there) == 0) return;
    tdm_log(TDM_LOG_WARN, "train",
            "%s was computed with numerics '%s', but this program uses '%s': %s", path,
            there ? there : "before version 1", here, follows);
}
