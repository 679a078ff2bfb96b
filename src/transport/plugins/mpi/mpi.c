/*
 * mpi.c: the MPI transport: creation, sleep and ops table.
 *
 * For sites where programs are started by mpirun or srun and only MPI may use the network. MPI is
 * initialised here unless the program has done so, and finalised only in that case; messages use a
 * private communicator. The ranks must be those of MPI_COMM_WORLD.
 *
 * MPI does not report dead peers and has no descriptors to wait on: sleeping consists of short naps
 * that grow to a millisecond. After the loss of a peer MPI is not finalised, because that would
 * wait for it. MPI_Finalize waits for all ranks, so destroy() first checks, for a bounded time,
 * whether all are ready.
 */
#include "transport/plugins/mpi/mpi.h"
#include "base/timing.h"

#include "transport/plugin.h"
#include "transport/signals.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* ---- creation -------------------------------------------------------------------------------- */

static tdm_status mpi_initialise(tdm__mpi *m, tdm_error *err)
{
    int finalised = 0, initialised = 0, level = MPI_THREAD_SINGLE;
    MPI_Finalized(&finalised);
    if (finalised)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "mpi: MPI was already finalised in this process and cannot be restarted");
    MPI_Initialized(&initialised);
    if (initialised) {
        MPI_Query_thread(&level);
    } else {
        tdm__signals signals;
        tdm__signals_keep(&signals);
        int result = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
        tdm__signals_put_back(&signals);
        if (result != MPI_SUCCESS)
            return tdm_fail(err, TDM_ERR_SYSTEM, "mpi: MPI_Init_thread failed with %d", result);
        m->ours = true;
    }
    if (level < MPI_THREAD_SERIALIZED)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "mpi: MPI was initialised for a single thread; it must be initialised with "
                        "MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE");
    return TDM_OK;
}

/* Checks that rank and size equal MPI's. */
static tdm_status mpi_check_rank(const tdm__transport_options *options, tdm_error *err)
{
    int rank = -1, size = -1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != options->size)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "mpi: MPI started %d ranks, but this world has %d; start all of them "
                        "with one mpirun or srun",
                        size, options->size);
    if (rank != options->rank)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "mpi: this is rank %d in MPI but rank %d here; let mpirun set the ranks",
                        rank, options->rank);
    return TDM_OK;
}

/* Naps until the request has ended; false on timeout. */
static bool request_await(MPI_Request *request, double seconds)
{
    const struct timespec moment = {.tv_nsec = TDM__TIMING_MPI_NAP_NS};
    for (double end_s = tdm_clock_s() + seconds;; nanosleep(&moment, NULL)) {
        int done = 0;
        if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
        if (done) return true;
        if (tdm_clock_s() > end_s) return false;
    }
}

static tdm_status mpi_make_comm(tdm__mpi *m, tdm_error *err)
{
    MPI_Request request;
    if (MPI_Comm_idup(MPI_COMM_WORLD, &m->comm, &request) != MPI_SUCCESS ||
        !request_await(&request, TDM__TIMING_TRANSPORT_MEET_S)) {
        m->comm = MPI_COMM_NULL;
        m->peer_lost = true;
        return tdm_fail(err, TDM_ERR_PEER_TIMEOUT,
                        "mpi: not all ranks joined the creation of a communicator within %g s",
                        TDM__TIMING_TRANSPORT_MEET_S);
    }
    MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    int *max = NULL, known = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, (void *)&max, &known);
    m->max_tag = known && max ? *max : 32767; /* guaranteed by the standard */
    return TDM_OK;
}

/* ---- destruction ----------------------------------------------------------------------------- */

/* Whether all ranks are ready to finalise. */
static bool mpi_all_ready(tdm__mpi *m)
{
    MPI_Request request;
    return m->comm != MPI_COMM_NULL && !m->peer_lost &&
           MPI_Ibarrier(m->comm, &request) == MPI_SUCCESS &&
           request_await(&request, TDM__TIMING_MPI_FINALISE_S);
}

static void mpi_destroy(tdm__transport *transport)
{
    tdm__mpi *m = (tdm__mpi *)transport;
    if (!m) return;
    int initialised = 0, finalised = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    bool alive = initialised && !finalised;
    if (alive && m->count > 0) tdm__mpi_stop(m);
    if (alive && m->ours && mpi_all_ready(m)) {
        MPI_Comm_free(&m->comm);
        MPI_Finalize();
    } else if (alive && m->ours) {
        tdm_log(TDM_LOG_WARN, "comm", "MPI is not finalised: not all ranks reached MPI_Finalize");
    }
    if (m->wake_fd >= 0) close(m->wake_fd);
    free(m->peers);
    free(m);
}

static tdm_status mpi_create(const tdm__transport_options *options, tdm__transport **out,
                             uint8_t address[TDM__MAX_ADDRESS], size_t *address_bytes,
                             tdm_error *err)
{
    extern const tdm__transport_ops tdm__transport_mpi;
    tdm__mpi *m = calloc(1, sizeof(*m));
    if (!m) return tdm_fail(err, TDM_ERR_NO_MEMORY, "mpi: out of memory for the transport");
    m->transport.ops = &tdm__transport_mpi;
    m->rank = options->rank;
    m->size = options->size;
    m->world = options->world;
    m->events = options->events;
    m->comm = MPI_COMM_NULL;
    m->starved = -1;
    m->spins = options->spins;
    m->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    m->peers = calloc((size_t)options->size, sizeof(*m->peers));

    tdm_status status = TDM_OK;
    if (m->wake_fd < 0 || !m->peers)
        status = tdm_fail(err, TDM_ERR_NO_MEMORY, "mpi: out of memory or descriptors: %s",
                          strerror(errno));
    if (status == TDM_OK) status = mpi_initialise(m, err);
    if (status == TDM_OK) status = mpi_check_rank(options, err);
    if (status == TDM_OK) status = mpi_make_comm(m, err);
    if (status == TDM_OK) status = tdm__mpi_start(m, err);

    if (status != TDM_OK) {
        m->peer_lost = true; /* the other ranks may not have got this far: do not wait for them */
        mpi_destroy(&m->transport);
        return status;
    }

    /* MPI knows the addresses: this one only shows that the rank is reachable. */
    static const uint8_t name[] = {'m', 'p', 'i'};
    memcpy(address, name, sizeof(name));
    *address_bytes = sizeof(name);
    *out = &m->transport;
    return TDM_OK;
}

static tdm_status mpi_connect(tdm__transport *transport, const uint8_t *const *addresses,
                              const size_t *address_bytes, tdm_error *err)
{
    (void)transport, (void)addresses, (void)address_bytes, (void)err;
    return TDM_OK;
}

/* ---- sleep ----------------------------------------------------------------------------------- */

/* Naps for as long as the last activity is ago, within bounds. */
static void mpi_wait(tdm__transport *transport, double timeout_s)
{
    tdm__mpi *m = (tdm__mpi *)transport;
    uint64_t idle_ns = tdm_clock_ns() - atomic_load_explicit(&m->active_ns, memory_order_relaxed);
    if (timeout_s <= 0 || (m->spins && idle_ns < TDM__TIMING_TRANSPORT_SPIN_NS)) return;
    uint64_t nap_ns = idle_ns / 4 + 1000;
    const uint64_t max_nap_ns = (uint64_t)(TDM__TIMING_TRANSPORT_MAX_NAP_S * 1e9);
    if (nap_ns > max_nap_ns) nap_ns = max_nap_ns;
    if (timeout_s * 1e9 < (double)nap_ns) nap_ns = (uint64_t)(timeout_s * 1e9);
    struct pollfd fd = {.fd = m->wake_fd, .events = POLLIN};
    struct timespec limit = {.tv_nsec = (long)nap_ns};
    if (ppoll(&fd, 1, &limit, NULL) <= 0) return;
    uint64_t rung;
    if (read(m->wake_fd, &rung, sizeof(rung)) < 0) return; /* already read */
}

static void mpi_wake(tdm__transport *transport)
{
    tdm__mpi *m = (tdm__mpi *)transport;
    int before = errno;
    uint64_t one = 1;
    if (write(m->wake_fd, &one, sizeof(one)) < 0) errno = before; /* full: already signalled */
    errno = before;
}

static bool mpi_usable(char why[160], char library[TDM_LIBRARY_BYTES])
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = '\0';
    snprintf(library, TDM_LIBRARY_BYTES, "%.*s", TDM_LIBRARY_BYTES - 1, text);
    why[0] = '\0';
    return true;
}

extern const tdm__transport_ops tdm__transport_mpi;
const tdm__transport_ops tdm__transport_mpi = {
    .name = "mpi",
    .about = "MPI: for ranks started by mpirun or srun",
    .usable = mpi_usable,
    .create = mpi_create,
    .connect = mpi_connect,
    .destroy = mpi_destroy,
    .send = tdm__mpi_send,
    .take = tdm__mpi_take,
    .drop = tdm__mpi_drop,
    .forget = tdm__mpi_forget,
    .progress = tdm__mpi_progress,
    .wait = mpi_wait,
    .wake = mpi_wake,
};

const tdm__module tdm_comm_module = {
    .abi = TDM__MODULE_ABI,
    .ops_bytes = sizeof(tdm__transport_ops),
    .version = TDM_VERSION,
    .ops = &tdm__transport_mpi,
};
