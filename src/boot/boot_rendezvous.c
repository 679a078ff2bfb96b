/*
 * boot_rendezvous.c: where ranks meet, and the sockets for it.
 *
 * HOST:PORT is TCP; with HOST:0 rank 0 chooses a port and publishes it. "unix:NAME" is an abstract UNIX
 * socket, for ranks of one host. A text with a slash, or without a colon, is the path of a file that all
 * ranks can see; rank 0 writes its addresses to it. TCP beyond the loopback of this host, where any process
 * can connect, needs a secret; a file contains one; a UNIX socket accepts only processes of the same user.
 * All sockets are non-blocking and closed on exec. Every attempt to connect has a deadline.
 */
#include "base/timing.h"
#include "boot/boot.h"
#include "net/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- parsing --------------------------------------------------------------------------------------- */

static tdm_status rendezvous_invalid(tdm_error *err, const char *text, const char *why)
{
    return tdm_fail(
        err, TDM_ERR_INVALID,
        "rendezvous \"%.200s\": %s; it is HOST:PORT, [IPv6 address]:PORT, unix:NAME, or "
        "the path of a file",
        text, why);
}

static tdm_status rendezvous_parse_tcp(tdm__rendezvous *meeting, const char *text, tdm_error *err)
{
    const char *begin = text, *end = strrchr(text, ':'), *port = end + 1;
    if (*text == '[') {
        begin++;
        end--;
        if (end <= begin || *end != ']')
            return rendezvous_invalid(err, text, "the bracket is not closed");
    } else if (memchr(text, ':', (size_t)(end - text))) {
        return rendezvous_invalid(err, text, "an IPv6 address must be in brackets");
    }
    size_t length = (size_t)(end - begin);
    if (length == 0) return rendezvous_invalid(err, text, "the host is missing");
    if (length >= sizeof(meeting->host))
        return rendezvous_invalid(err, text, "the host name is too long");
    size_t digits = strspn(port, "0123456789");
    long number = digits > 0 && digits < 6 && port[digits] == '\0' ? strtol(port, NULL, 10) : -1;
    if (number < 0 || number > 65535)
        return rendezvous_invalid(err, text, "the port must be a number from 1 to 65535");
    meeting->kind = TDM__MEET_TCP;
    memcpy(meeting->host, begin, length);
    meeting->host[length] = '\0';
    snprintf(meeting->port, sizeof(meeting->port), "%ld", number);
    return TDM_OK;
}

bool tdm__rendezvous_is_open(const tdm__rendezvous *meeting)
{
    if (meeting->kind == TDM__MEET_UNIX) return meeting->name[0] == '\0';
    return meeting->kind == TDM__MEET_TCP && strcmp(meeting->port, "0") == 0;
}

static bool host_is_loopback(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, host, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, host, &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
    return strcmp(host, "localhost") == 0;
}

tdm_status tdm__rendezvous_init(tdm__rendezvous *meeting, const char *text, const char *secret,
                                tdm_error *err)
{
    *meeting = (tdm__rendezvous){0};
    if (strlen(text) >= sizeof(meeting->text))
        return rendezvous_invalid(err, text, "it is too long");
    snprintf(meeting->text, sizeof(meeting->text), "%s", text);
    if (!secret) secret = "";
    if (strlen(secret) >= sizeof(meeting->secret))
        return tdm_fail(err, TDM_ERR_INVALID, "the secret has %zu bytes, more than %d",
                        strlen(secret), TDM_SECRET_BYTES - 1);
    snprintf(meeting->secret, sizeof(meeting->secret), "%s", secret);
    snprintf(meeting->key, sizeof(meeting->key), "%s", secret);
    if (*text == '\0') return rendezvous_invalid(err, text, "it is empty");
    if (strncmp(text, "unix:", 5) == 0) {
        meeting->kind = TDM__MEET_UNIX;
        if (strlen(text + 5) > sizeof(meeting->name) - 2)
            return rendezvous_invalid(err, text, "the socket name exceeds 106 bytes");
        snprintf(meeting->name, sizeof(meeting->name), "%s", text + 5);
        return TDM_OK;
    }
    if (strchr(text, '/') || !strchr(text, ':')) {
        meeting->kind = TDM__MEET_FILE;
        memcpy(meeting->path, meeting->text, sizeof(meeting->path));
        return TDM_OK;
    }
    TDM_TRY(rendezvous_parse_tcp(meeting, text, err));
    if (*secret == '\0' && !host_is_loopback(meeting->host))
        return tdm_fail(
            err, TDM_ERR_INVALID,
            "rendezvous %s can be reached from other machines: set TANDEM_SECRET to the "
            "same text on all ranks (for example from `openssl rand -hex 16`), so that no other "
            "process can join",
            text);
    return TDM_OK;
}

/* ---- addresses ------------------------------------------------------------------------------------- */

/* Numeric addresses are not looked up in DNS; "fe80::1%eth0" is numeric on hosts with that device. */
static tdm_status address_look_up(const char *host, const char *port, struct addrinfo **out,
                                  tdm_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    int bad_name = getaddrinfo(host, port, &hints, out);
    if (bad_name == EAI_NONAME && !strchr(host, ':')) {
        hints.ai_flags = 0;
        bad_name = getaddrinfo(host, port, &hints, out);
    }
    if (bad_name)
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "host %s: %s", host,
                        bad_name == EAI_SYSTEM ? strerror(errno) : gai_strerror(bad_name));
    return TDM_OK;
}

/* ---- rank 0 listens --------------------------------------------------------------------------------- */

/* Sets the port that the system chose. */
static void rendezvous_set_port(tdm__rendezvous *meeting, int fd)
{
    snprintf(meeting->port, sizeof(meeting->port), "%d", tdm__socket_port(fd));
    bool brackets = strchr(meeting->host, ':') != NULL;
    snprintf(meeting->text, sizeof(meeting->text), "%s%s%s:%s", brackets ? "[" : "", meeting->host,
             brackets ? "]" : "", meeting->port);
}

static tdm_status rendezvous_listen_tcp(tdm__rendezvous *meeting, double until_s, int *out_fd,
                                        tdm_error *err)
{
    struct addrinfo *list = NULL;
    TDM_TRY(address_look_up(meeting->host, meeting->port, &list, err));
    int fd = -1;
    double give_up_s = tdm_clock_s() +
                       TDM__TIMING_BOOT_LISTEN_S; /* an earlier world may still be ending */
    for (;;) {
        for (const struct addrinfo *at = list; at && fd < 0; at = at->ai_next) {
            fd = tdm__socket_listen(at->ai_addr, at->ai_addrlen);
            if (fd >= 0 || errno != EADDRNOTAVAIL) continue;
            /* Not a local address (inside a container, or behind NAT): listen on all addresses. */
            struct sockaddr_storage any;
            socklen_t bytes = tdm__socket_any(at->ai_family, at->ai_addr, &any);
            fd = tdm__socket_listen((struct sockaddr *)&any, bytes);
        }
        if (fd >= 0 || errno != EADDRINUSE || tdm_clock_s() > give_up_s ||
            tdm_clock_s() > until_s || tdm__cancellation_is_due(&meeting->cancellation))
            break;
        tdm_clock_sleep(TDM__TIMING_NET_RETRY_S);
    }
    int why = errno;
    freeaddrinfo(list);
    if (fd < 0)
        return tdm_fail(err, why == EADDRINUSE ? TDM_ERR_BUSY : TDM_ERR_SYSTEM,
                        "rank 0 cannot listen at %s: %s%s", meeting->text, strerror(why),
                        why == EADDRINUSE ? "; another world or program uses this port: choose "
                                            "another"
                                          : "");
    if (tdm__rendezvous_is_open(meeting)) rendezvous_set_port(meeting, fd);
    *out_fd = fd;
    return TDM_OK;
}

static tdm_status rendezvous_choose_name(tdm__rendezvous *meeting, tdm_error *err)
{
    uint64_t drawn = 0;
    TDM_TRY(tdm_os_random(&drawn, sizeof(drawn), err));
    snprintf(meeting->name, sizeof(meeting->name), "tandem-%016llx", (unsigned long long)drawn);
    snprintf(meeting->text, sizeof(meeting->text), "unix:%s", meeting->name);
    return TDM_OK;
}

static tdm_status rendezvous_listen_unix(tdm__rendezvous *meeting, int *out_fd, tdm_error *err)
{
    struct sockaddr_un address;
    if (tdm__rendezvous_is_open(meeting)) TDM_TRY(rendezvous_choose_name(meeting, err));
    socklen_t bytes = tdm__socket_abstract(meeting->name, &address);
    *out_fd = tdm__socket_listen((struct sockaddr *)&address, bytes);
    if (*out_fd >= 0) return TDM_OK;
    return tdm_fail(err, errno == EADDRINUSE ? TDM_ERR_BUSY : TDM_ERR_SYSTEM,
                    "rank 0 cannot listen at %s: %s%s", meeting->text, strerror(errno),
                    errno == EADDRINUSE ? "; a rank 0 with this name is already running" : "");
}

static bool address_is_link_local(const struct sockaddr *address)
{
    return address->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

/* Lists the addresses of this host that others may reach. Link-local ones come last: they work only for hosts
 * whose device has the same name. */
static void host_list_addresses(tdm__meeting_file *file)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0) return;
    const int max = (int)(sizeof(file->address) / sizeof(file->address[0]));
    for (int pass = 0; pass < 2; pass++) {
        for (const struct ifaddrs *at = all; at && file->address_count < max; at = at->ifa_next) {
            const struct sockaddr *address = at->ifa_addr;
            if (!address || !(at->ifa_flags & IFF_UP) || (at->ifa_flags & IFF_LOOPBACK)) continue;
            if (address_is_link_local(address) != (pass == 1)) continue;
            socklen_t bytes = address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                                             : sizeof(struct sockaddr_in);
            char *text = file->address[file->address_count];
            if ((address->sa_family == AF_INET || address->sa_family == AF_INET6) &&
                getnameinfo(address, bytes, text, sizeof(file->address[0]), NULL, 0,
                            NI_NUMERICHOST) == 0)
                file->address_count++;
        }
    }
    freeifaddrs(all);
}

static void host_hex(char out[TDM_SHA256_HEX], char name[64])
{
    uint8_t raw[TDM_SHA256_BYTES] = {0};
    tdm__host_identity(NULL, raw, name, NULL);
    tdm_hex(raw, sizeof(raw), out);
}

/* One attempt to connect to the rank 0 that a file names. -1: no process listens there. */
static int rendezvous_connect_file(const tdm__meeting_file *file, double until_s,
                                   const tdm__cancellation *cancellation, char *why,
                                   size_t why_bytes)
{
    char here[TDM_SHA256_HEX], name[64], port[8];
    host_hex(here, name);
    snprintf(port, sizeof(port), "%d", file->port);
    bool local = strcmp(here, file->host) == 0;
    snprintf(why, why_bytes, "it has no address");
    for (int i = local ? -1 : 0; i < file->address_count; i++) {
        const char *host = i < 0 ? "127.0.0.1" : file->address[i];
        struct addrinfo *list = NULL;
        if (address_look_up(host, port, &list, NULL) != TDM_OK) continue;
        int fd = tdm__socket_connect(list->ai_addr, list->ai_addrlen, until_s, cancellation);
        snprintf(why, why_bytes, "%s port %s: %s", host, port, strerror(errno));
        freeaddrinfo(list);
        if (fd >= 0) return fd;
    }
    return -1;
}

/* Whether the process at the other end sends a HELLO like a hub. */
static bool endpoint_says_hello(int fd, double until_s)
{
    uint8_t head[TDM__WIRE_HEAD], type = 0;
    size_t got = 0, body_bytes = 0;
    while (got < sizeof(head)) {
        double left = until_s - tdm_clock_s();
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (left <= 0 || poll(&wait, 1, (int)(left * 1000) + 1) <= 0) return false;
        ssize_t part = recv(fd, head + got, sizeof(head) - got, 0);
        if (part <= 0) return false;
        got += (size_t)part;
    }
    return tdm__wire_head(head, &type, &body_bytes) && type == TDM__FRAME_HELLO;
}

/* Checks whether an existing file belongs to an active world. */
static tdm_status rendezvous_check_file(const tdm__rendezvous *meeting, tdm_error *err)
{
    tdm__meeting_file old;
    uint64_t stamp = 0;
    tdm_status status = tdm__meeting_file_read(meeting->path, &old, &stamp, err);
    if (status == TDM_ERR_NOT_FOUND) return TDM_OK;
    if (status != TDM_OK) return status;
    char why[160];
    int fd = rendezvous_connect_file(&old, tdm_clock_s() + TDM__TIMING_BOOT_CONNECT_S,
                                     &meeting->cancellation, why, sizeof(why));
    explicit_bzero(old.secret, sizeof(old.secret));
    bool alive = fd >= 0 && endpoint_says_hello(fd, tdm_clock_s() + TDM__TIMING_NET_PROOF_S);
    if (fd >= 0) close(fd);
    if (alive)
        return tdm_fail(err, TDM_ERR_BUSY,
                        "rendezvous %s is in use by another world (rank 0 is process %ld on %s): "
                        "choose another file",
                        meeting->path, old.pid, old.host_name);
    tdm_log(TDM_LOG_INFO, "comm",
            "rendezvous %s belongs to a world that has ended (process %ld on %s)", meeting->path,
            old.pid, old.host_name);
    return TDM_OK;
}

void tdm__rendezvous_wipe(tdm__rendezvous *meeting)
{
    explicit_bzero(meeting->secret, sizeof(meeting->secret));
    explicit_bzero(meeting->key, sizeof(meeting->key));
}

static void rendezvous_set_key(tdm__rendezvous *meeting, const tdm__meeting_file *file)
{
    snprintf(meeting->key, sizeof(meeting->key), "%s:%s", file->secret, meeting->secret);
}

static tdm_status rendezvous_listen_file(tdm__rendezvous *meeting, int *out_fd, tdm_error *err)
{
    TDM_TRY(rendezvous_check_file(meeting, err));
    struct sockaddr_storage any;
    int fd = tdm__socket_listen((struct sockaddr *)&any, tdm__socket_any(AF_INET6, NULL, &any));
    if (fd < 0)
        fd = tdm__socket_listen((struct sockaddr *)&any, tdm__socket_any(AF_INET, NULL, &any));
    if (fd < 0)
        return tdm_fail(err, TDM_ERR_SYSTEM, "rank 0 cannot listen for the other ranks: %s",
                        strerror(errno));
    tdm__meeting_file file = {.pid = (long)getpid(), .port = tdm__socket_port(fd)};
    uint8_t raw[16];
    tdm_status status = tdm_os_random(raw, sizeof(raw), err);
    tdm_hex(raw, sizeof(raw), file.secret);
    host_hex(file.host, file.host_name);
    host_list_addresses(&file);
    if (status == TDM_OK)
        status = tdm__meeting_file_write(meeting->path, &file, &meeting->stamp, err);
    if (status == TDM_OK) rendezvous_set_key(meeting, &file);
    explicit_bzero(raw, sizeof(raw));
    explicit_bzero(file.secret, sizeof(file.secret));
    if (status != TDM_OK) {
        close(fd);
        return status;
    }
    *out_fd = fd;
    return TDM_OK;
}

tdm_status tdm__rendezvous_listen(tdm__rendezvous *meeting, double until_s, int *out_fd,
                                  tdm_error *err)
{
    switch (meeting->kind) {
    case TDM__MEET_UNIX: return rendezvous_listen_unix(meeting, out_fd, err);
    case TDM__MEET_FILE: return rendezvous_listen_file(meeting, out_fd, err);
    case TDM__MEET_TCP: break;
    }
    return rendezvous_listen_tcp(meeting, until_s, out_fd, err);
}

/* ---- other ranks connect ----------------------------------------------------------------------------- */

static tdm_status rendezvous_connect_tcp(const tdm__rendezvous *meeting, double until_s,
                                         int *out_fd, tdm_error *err)
{
    struct addrinfo *list = NULL;
    TDM_TRY(address_look_up(meeting->host, meeting->port, &list, err));
    int fd = -1;
    for (const struct addrinfo *at = list; at && fd < 0; at = at->ai_next)
        fd = tdm__socket_connect(at->ai_addr, at->ai_addrlen, until_s, &meeting->cancellation);
    int why = errno;
    freeaddrinfo(list);
    if (fd < 0)
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "no process listens at %s: %s", meeting->text,
                        strerror(why));
    *out_fd = fd;
    return TDM_OK;
}

static tdm_status rendezvous_connect_unix(const tdm__rendezvous *meeting, double until_s,
                                          int *out_fd, tdm_error *err)
{
    struct sockaddr_un address;
    socklen_t bytes = tdm__socket_abstract(meeting->name, &address);
    int fd = tdm__socket_connect((struct sockaddr *)&address, bytes, until_s,
                                 &meeting->cancellation);
    if (fd < 0)
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "no process listens at %s: %s", meeting->text,
                        strerror(errno));
    if (!tdm__socket_same_user(fd)) {
        close(fd);
        return tdm_fail(
            err, TDM_ERR_PEER_REFUSED,
            "the process that listens at %s belongs to another user: choose another name",
            meeting->text);
    }
    *out_fd = fd;
    return TDM_OK;
}

tdm_status tdm__rendezvous_connect(tdm__rendezvous *meeting, double until_s, int *out_fd,
                                   tdm_error *err)
{
    double soon_s = tdm_clock_s() + TDM__TIMING_BOOT_CONNECT_S;
    if (soon_s < until_s) until_s = soon_s;
    if (meeting->kind == TDM__MEET_TCP)
        return rendezvous_connect_tcp(meeting, until_s, out_fd, err);
    if (meeting->kind == TDM__MEET_UNIX)
        return rendezvous_connect_unix(meeting, until_s, out_fd, err);
    tdm__meeting_file file;
    TDM_TRY(tdm__meeting_file_read(meeting->path, &file, &meeting->stamp, err));
    char why[160];
    int fd = rendezvous_connect_file(&file, until_s, &meeting->cancellation, why, sizeof(why));
    if (fd >= 0) rendezvous_set_key(meeting, &file);
    explicit_bzero(file.secret, sizeof(file.secret));
    if (fd < 0)
        return tdm_fail(err, TDM_ERR_NOT_FOUND,
                        "%s names process %ld on %s, but no process listens there (%s): the file "
                        "may be of an earlier run",
                        meeting->path, file.pid, file.host_name, why);
    snprintf(meeting->host, sizeof(meeting->host), "%s",
             file.host_name); /* to check its certificate */
    *out_fd = fd;
    return TDM_OK;
}

bool tdm__rendezvous_changed(const tdm__rendezvous *meeting)
{
    tdm__meeting_file file;
    uint64_t stamp = 0;
    if (meeting->kind != TDM__MEET_FILE) return false;
    tdm_status status = tdm__meeting_file_read(meeting->path, &file, &stamp, NULL);
    explicit_bzero(&file, sizeof(file));
    return status != TDM_OK || stamp != meeting->stamp;
}

void tdm__rendezvous_remove(const tdm__rendezvous *meeting)
{
    if (meeting->kind == TDM__MEET_FILE && !tdm__rendezvous_changed(meeting)) unlink(meeting->path);
}
