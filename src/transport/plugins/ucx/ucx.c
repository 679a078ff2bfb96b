/*
 * ucx.c: the UCX transport: settings, creation, sleep and ops table.
 *
 * UCX finds the networks of a machine by itself and uses the best of them. The settings here are
 * those that our use of it needs, and only if the user's environment (UCX_...) does not set them:
 *
 *  - thresholds and segment sizes for large messages over TCP (measured by `tandem bench`);
 *  - no cache of registered memory: our shared memory frees pages by punching holes, which UCX's
 *    cache does not notice, and a network card would then write to freed pages;
 *  - over TCP, payloads pass through UCX's buffers: any process that reaches the port could write
 *    directly into the receiver's memory, and a forgotten peer could continue to do so; and UCX
 *    1.13 aborts the program if a peer dies during a zero-copy send (it ends the send twice, and
 *    asserts);
 *  - over TCP between hosts, messages of up to 2 MB are sent eagerly. With a rendezvous, the answer
 *    of a receiver queues behind everything that it sends itself on the same connection, so that of
 *    two ranks that send to each other only one does at a time (`bench/comm --only wire` shows the
 *    difference). The receiver keeps payloads that it does not expect yet, bounded by the engine,
 *    at the cost of one copy;
 *  - no output on the terminal. (transport/plugin.c handles what UCX does while it is loaded.)
 *
 * Settings of UCX's own transports (TCP_...) can be set only through the environment, which is
 * therefore changed while UCX reads it; no other thread should read it meanwhile.
 *
 * In a world of several hosts the loopback device is excluded: in containers and network namespaces
 * of one machine UCX would use it to reach the other host.
 */
#include "transport/plugins/ucx/ucx.h"
#include "base/timing.h"

#include "transport/plugin.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <ucs/config/global_opts.h>
#include <unistd.h>

/* For this long after the last activity, wait() returns at once. */

static const tdm__transport_ops transport_ucx;

typedef struct setting {
    const char *name, *value;
} setting;

static const setting settings[] = {
    {"RCACHE_ENABLE", "n"}, {"TCP_PUT_ENABLE", "n"},     {"ZCOPY_THRESH", "inf"},
    {"RNDV_THRESH", "32K"}, {"TCP_TX_SEG_SIZE", "256K"}, {"TCP_RX_SEG_SIZE", "256K"},
};
enum { SETTINGS = sizeof(settings) / sizeof(settings[0]) };

/* ---- settings -------------------------------------------------------------------------------- */

/* Whether the user's environment has the setting UCX_NAME. */
static bool env_has_setting(const char *name)
{
    char variable[64];
    snprintf(variable, sizeof(variable), "UCX_%s", name);
    return getenv(variable) != NULL;
}

static bool options_has_several_hosts(const tdm__transport_options *options)
{
    for (int i = 1; options->host_of && i < options->size; i++)
        if (options->host_of[i] != options->host_of[0]) return true;
    return false;
}

/* The network devices that are up, without loopback: "eth0,eth1". False: there are none. */
static bool network_devices_list(char *out, size_t bytes)
{
    struct ifaddrs *list = NULL;
    out[0] = '\0';
    if (getifaddrs(&list) != 0) return false;
    size_t used = 0;
    for (struct ifaddrs *i = list; i; i = i->ifa_next) {
        if (!(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK) || !i->ifa_addr) continue;
        if (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6) continue;
        char padded[IF_NAMESIZE + 2], all[512];
        snprintf(padded, sizeof(padded), ",%s,", i->ifa_name);
        snprintf(all, sizeof(all), ",%s,", out);
        size_t length = strlen(i->ifa_name);
        if (strstr(all, padded) || used + length + 2 > bytes || used + length + 4 > sizeof(all))
            continue;
        used += (size_t)snprintf(out + used, bytes - used, "%s%s", used ? "," : "", i->ifa_name);
    }
    freeifaddrs(list);
    return used > 0;
}

/* Whether this machine has RDMA network cards: for them, a rendezvous is better. */
static bool host_has_rdma(void)
{
    DIR *directory = opendir("/sys/class/infiniband");
    bool found = false;
    for (struct dirent *entry; directory && !found && (entry = readdir(directory));)
        found = entry->d_name[0] != '.';
    if (directory) closedir(directory);
    return found;
}

/* Whether messages of moderate size are sent eagerly to other hosts. Must be called while our own
 * settings are not in the environment. */
static bool options_sends_eagerly(const tdm__transport_options *options)
{
    return options_has_several_hosts(options) && !env_has_setting("RNDV_THRESH") &&
           !host_has_rdma();
}

/* `tls`: the UCX transports to allow; NULL: UCX's or the user's choice. */
static ucs_status_t ucx_configure(const tdm__transport_options *options, const char *tls,
                                  ucp_config_t **out)
{
    if (!env_has_setting("LOG_LEVEL")) ucs_global_opts_set_value("LOG_LEVEL", "fatal");
    ucp_config_t *config;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK) return status;
    char names[400];
    if (!env_has_setting("NET_DEVICES") && options_has_several_hosts(options) &&
        network_devices_list(names, sizeof(names)))
        ucp_config_modify(config, "NET_DEVICES", names);
    if (tls) ucp_config_modify(config, "TLS", tls);
    *out = config;
    return UCS_OK;
}

/* Sets our settings in the environment unless the user has set them; `set` records which. */
static void environment_set(bool set[SETTINGS])
{
    char variable[64];
    for (int i = 0; i < SETTINGS; i++) {
        snprintf(variable, sizeof(variable), "UCX_%s", settings[i].name);
        set[i] = !getenv(variable) && setenv(variable, settings[i].value, 0) == 0;
    }
}

static void environment_put_back(const bool set[SETTINGS])
{
    char variable[64];
    for (int i = 0; i < SETTINGS; i++) {
        snprintf(variable, sizeof(variable), "UCX_%s", settings[i].name);
        if (set[i]) unsetenv(variable);
    }
}

/* ---- creation and destruction ---------------------------------------------------------------- */

static ucs_status_t ucx_make_worker(tdm__ucx *u, const tdm__transport_options *options,
                                    const char *tls)
{
    ucp_config_t *config;
    ucs_status_t status = ucx_configure(options, tls, &config);
    if (status != UCS_OK) return status;
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .estimated_num_eps = (size_t)options->size,
    };
    status = ucp_init(&params, config, &u->context);
    ucp_config_release(config);
    if (status != UCS_OK) return status;
    ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    return ucp_worker_create(u->context, &worker, &u->worker);
}

/* Creates the worker and its handlers. */
static ucs_status_t ucx_start(tdm__ucx *u, const tdm__transport_options *options)
{
    bool set[SETTINGS];
    environment_set(set);
    ucs_status_t status = ucx_make_worker(u, options, NULL);
    bool is_short = status == UCS_ERR_NO_MEMORY || status == UCS_ERR_NO_RESOURCE;
    if (is_short && !env_has_setting("TLS")) {
        /* Usually /dev/shm is small, as in containers. UCX works without it. */
        if (u->context) ucp_cleanup(u->context);
        u->context = NULL;
        tdm_log(TDM_LOG_INFO, "comm",
                "ucx: /dev/shm has too little space; UCX does not use its transport 'posix'");
        status = ucx_make_worker(u, options, "^posix");
    }
    environment_put_back(set);
    if (status == UCS_OK) status = tdm__ucx_listen(u);
    if (status == UCS_OK) status = ucp_worker_get_efd(u->worker, &u->event_fd);
    return status;
}

static void ucx_destroy(tdm__transport *transport)
{
    tdm__ucx *u = (tdm__ucx *)transport;
    if (!u) return;
    tdm__ucx_pump_stop(u);
    if (u->unmet) {
        /* UCX 1.13 aborts the process if connections are closed while they are being made
         * (assertions in wireup_ep.c, ucp_request.c and tcp_ep.c). So their memory and descriptors
         * are not released. */
        tdm_log(TDM_LOG_INFO, "comm",
                "UCX cannot close connections that are being made: they stay open "
                "until this process ends");
        return;
    }

    if (u->worker) {
        tdm__ucx_release_arrivals(u);
        tdm__ucx_leave(u);
        if (u->address) ucp_worker_release_address(u->worker, u->address);
        ucp_worker_destroy(u->worker);
        tdm__ucx_release_operations(u);
    }
    if (u->context) ucp_cleanup(u->context);

    const int fds[] = {u->wake_fd, u->stop_fd, u->poll_fd};
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        if (fds[i] >= 0) close(fds[i]);

    for (int i = 0; u->peers && i < u->size; i++) {
        free(u->peers[i].address);
        free(u->peers[i].eps);
    }
    free(u->peers);
    pthread_mutex_destroy(&u->lock);
    free(u);
}

static void ucx_mark_broken(tdm__transport *transport)
{
    ((tdm__ucx *)transport)->is_broken = true;
}

/* UCX aborts the process if it runs out of descriptors: it needs some to start, and up to two per
 * connection; a world of moderate size makes all connections at once. */
static bool ucx_has_descriptors(const tdm__ucx *u)
{
    enum { STARTING = 26, MAX_PEERS = 128 };
    int peers = u->size <= MAX_PEERS ? u->size - 1 : MAX_PEERS;
    int wanted = STARTING + 2 * u->streams * peers, count = 0;
    int *taken = malloc((size_t)wanted * sizeof(*taken));
    if (!taken) return false;
    while (count < wanted && (taken[count] = fcntl(u->wake_fd, F_DUPFD_CLOEXEC, 0)) >= 0) count++;
    bool enough = count == wanted;
    while (count > 0) close(taken[--count]);
    free(taken);
    return enough;
}

static tdm__ucx *ucx_allocate(const tdm__transport_options *options)
{
    tdm__ucx *u = calloc(1, sizeof(*u));
    if (!u) return NULL;
    u->transport.ops = &transport_ucx;
    u->rank = options->rank;
    u->size = options->size;
    u->streams = options->streams > 0 ? options->streams : 1;
    u->world = options->world;
    u->events = options->events;
    u->cancellation = options->cancellation;
    u->card = (tdm__head){.world = u->world, .source = (uint32_t)u->rank, .kind = TDM_CALL_BARRIER};
    tdm__head_seal(&u->card);
    u->spins = options->spins;
    pthread_mutex_init(&u->lock, NULL);
    u->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    u->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    u->poll_fd = epoll_create1(EPOLL_CLOEXEC);
    u->peers = calloc((size_t)options->size, sizeof(*u->peers));
    for (int i = 0; u->peers && i < u->size; i++) u->peers[i].ucx = u;
    if (u->wake_fd >= 0 && u->stop_fd >= 0 && u->poll_fd >= 0 && u->peers) return u;
    ucx_destroy(&u->transport);
    return NULL;
}

static bool ucx_watch_fd(const tdm__ucx *u, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(u->poll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

static tdm_status ucx_create(const tdm__transport_options *options, tdm__transport **out,
                             uint8_t address[TDM__MAX_ADDRESS], size_t *address_bytes,
                             tdm_error *err)
{
    tdm__ucx *u = ucx_allocate(options);
    if (!u) return tdm_fail(err, TDM_ERR_NO_MEMORY, "ucx: out of memory or descriptors");

    tdm_status status = TDM_OK;
    size_t bytes = 0;
    ucs_status_t said = UCS_OK;
    bool enough = ucx_has_descriptors(u);
    if (enough) said = ucx_start(u, options);
    if (enough && said == UCS_OK) said = ucp_worker_get_address(u->worker, &u->address, &bytes);

    if (!enough)
        status = tdm_fail(err, TDM_ERR_SYSTEM,
                          "ucx: too few file descriptors to start UCX; raise the limit on "
                          "open files (ulimit -n)");
    else if (said != UCS_OK)
        status = tdm_fail(err, TDM_ERR_SYSTEM,
                          "ucx: cannot start UCX: %s%s; set UCX_LOG_LEVEL=info for details",
                          ucs_status_string(said),
                          said == UCS_ERR_NO_MEMORY || said == UCS_ERR_NO_RESOURCE
                              ? "; if /dev/shm is full or small, enlarge it"
                              : "");
    else if (bytes > TDM__MAX_ADDRESS)
        status = tdm_fail(err, TDM_ERR_RANGE,
                          "ucx: the address of this rank has %zu bytes, more than %d; name fewer "
                          "devices in UCX_NET_DEVICES",
                          bytes, TDM__MAX_ADDRESS);
    else if (!ucx_watch_fd(u, u->event_fd) || !ucx_watch_fd(u, u->wake_fd) ||
             !tdm__ucx_pump_start(u))
        status = tdm_fail(err, TDM_ERR_SYSTEM, "ucx: cannot create a thread or descriptor: %s",
                          strerror(errno));

    if (status != TDM_OK) {
        ucx_destroy(&u->transport);
        return status;
    }

    bool unasked = options->host_of && options_sends_eagerly(options);
    for (int i = 0; i < u->size; i++)
        u->peers[i].is_eager = unasked && options->host_of[i] != options->host_of[u->rank];
    memcpy(address, u->address, bytes);
    *address_bytes = bytes;
    *out = &u->transport;
    return TDM_OK;
}

static tdm_status ucx_connect(tdm__transport *transport, const uint8_t *const *addresses,
                              const size_t *address_bytes, tdm_error *err)
{
    tdm__ucx *u = (tdm__ucx *)transport;
    for (int i = 0; i < u->size; i++) {
        if (address_bytes[i] == 0) continue;
        u->peers[i].address = malloc(address_bytes[i]);
        if (!u->peers[i].address)
            return tdm_fail(err, TDM_ERR_NO_MEMORY, "ucx: out of memory for the ranks' addresses");
        memcpy(u->peers[i].address, addresses[i], address_bytes[i]);
    }
    tdm_status status = tdm__ucx_meet(u, err);
    u->cancellation = (tdm__cancellation){0};
    return status;
}

/* ---- progress and sleep ---------------------------------------------------------------------- */

static int ucx_progress(tdm__transport *transport)
{
    tdm__ucx *u = (tdm__ucx *)transport;
    enum { MAX_TURNS = 16 }; /* the engine has other work as well */
    int turns = 0;
    tdm__ucx_called(u);
    pthread_mutex_lock(&u->lock);
    while (turns < MAX_TURNS && tdm__ucx_turn(u) > 0) turns++;
    pthread_mutex_unlock(&u->lock);
    int count = tdm__ucx_deliver(u);
    if (turns > 0 || count > 0)
        atomic_store_explicit(&u->active_ns, tdm_clock_ns(), memory_order_relaxed);
    return count;
}

static int ucx_arm(tdm__transport *transport)
{
    tdm__ucx *u = (tdm__ucx *)transport;
    tdm__ucx_called(u);
    pthread_mutex_lock(&u->lock);
    bool queued = u->ended_first || u->unheard || u->lost;
    bool armed = !queued && ucp_worker_arm(u->worker) == UCS_OK;
    pthread_mutex_unlock(&u->lock);
    uint64_t rung; /* earlier signals are in the queues by now, or were for the last wait */
    if (read(u->wake_fd, &rung, sizeof(rung)) > 0) armed = false;
    return armed ? u->poll_fd : -1;
}

static void ucx_wait(tdm__transport *transport, double timeout_s)
{
    tdm__ucx *u = (tdm__ucx *)transport;
    uint64_t active_ns = atomic_load_explicit(&u->active_ns, memory_order_relaxed);
    if (u->spins && tdm_clock_ns() - active_ns < TDM__TIMING_TRANSPORT_SPIN_NS) return;
    if (timeout_s <= 0) return;
    atomic_fetch_add_explicit(&u->waiting, 1, memory_order_relaxed);
    if (ucx_arm(transport) >= 0) {
        struct pollfd fd = {.fd = u->poll_fd, .events = POLLIN};
        if (timeout_s > 3600) timeout_s = 3600;
        struct timespec limit = {.tv_sec = (time_t)timeout_s};
        limit.tv_nsec = (long)((timeout_s - (double)limit.tv_sec) * 1e9);
        ppoll(&fd, 1, &limit, NULL);
    }
    atomic_fetch_sub_explicit(&u->waiting, 1, memory_order_relaxed);
}

static void ucx_wake(tdm__transport *transport)
{
    tdm__ucx *u = (tdm__ucx *)transport;
    int before = errno;
    uint64_t one = 1;
    if (write(u->wake_fd, &one, sizeof(one)) < 0) errno = before; /* full: already signalled */
    errno = before;
}

static bool ucx_usable(char why[160], char library[TDM_LIBRARY_BYTES])
{
    unsigned major, minor, patch;
    ucp_get_version(&major, &minor, &patch);
    snprintf(library, TDM_LIBRARY_BYTES, "UCX %u.%u.%u", major, minor, patch);
    why[0] = '\0';
    return true;
}

static const tdm__transport_ops transport_ucx = {
    .name = "ucx",
    .about = "UCX: TCP, RDMA and other networks between hosts",
    .usable = ucx_usable,
    .create = ucx_create,
    .connect = ucx_connect,
    .destroy = ucx_destroy,
    .mark_broken = ucx_mark_broken,
    .send = tdm__ucx_send,
    .take = tdm__ucx_take,
    .drop = tdm__ucx_drop,
    .forget = tdm__ucx_forget,
    .progress = ucx_progress,
    .wait = ucx_wait,
    .wake = ucx_wake,
    .arm = ucx_arm,
};

const tdm__module tdm_comm_module = {
    .abi = TDM__MODULE_ABI,
    .ops_bytes = sizeof(tdm__transport_ops),
    .version = TDM_VERSION,
    .ops = &transport_ucx,
};
