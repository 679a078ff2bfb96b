/*
 * agent_address.c: finds the address at which workers on other hosts reach those on this host.
 *
 * With a local store there are no other hosts. Otherwise it is the local address of the route to
 * the store, because all hosts reach the store's network. If the store is on this host, that can be
 * the loopback address, which other hosts cannot use; then it is the address of the first interface
 * that is up and not a loopback. TANDEM_ADDRESS in the agent's environment takes precedence.
 */
#include "cluster/agent.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool address_is_loopback(const struct sockaddr_in *address)
{
    return ntohl(address->sin_addr.s_addr) >> 24 == 127;
}

/* The local address from which a packet would be sent there. No packet is sent. */
static bool address_towards(const struct sockaddr *there, socklen_t bytes, struct sockaddr_in *out)
{
    socklen_t own_bytes = sizeof(*out);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool found = fd >= 0 && connect(fd, there, bytes) == 0 &&
                 getsockname(fd, (struct sockaddr *)out, &own_bytes) == 0;
    if (fd >= 0) close(fd);
    return found && !address_is_loopback(out);
}

/* Uses the first address of "etcd:http://HOST:PORT,...". */
static bool address_towards_store(const char *url, struct sockaddr_in *out)
{
    char host[256];
    const char *begin = strstr(url, "://");
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_DGRAM}, *list = NULL;
    if (!begin) return false;
    begin += 3;
    size_t length = strcspn(begin, ":/,");
    if (length == 0 || length >= sizeof(host)) return false;
    snprintf(host, sizeof(host), "%.*s", (int)length, begin);
    if (getaddrinfo(host, "2379", &hints, &list) != 0) return false;
    bool found = list && address_towards(list->ai_addr, list->ai_addrlen, out);
    freeaddrinfo(list);
    return found;
}

static bool address_of_first_interface(struct sockaddr_in *out)
{
    struct ifaddrs *list = NULL;
    bool found = false;
    if (getifaddrs(&list) != 0) return false;
    for (struct ifaddrs *i = list; i && !found; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP)) continue;
        memcpy(out, i->ifa_addr, sizeof(*out));
        found = !address_is_loopback(out);
    }
    freeifaddrs(list);
    return found;
}

void tdm__agent_find_address(tdm__agent *a)
{
    const char *set = getenv("TANDEM_ADDRESS"), *url = a->options->kv.url;
    struct sockaddr_in address = {0};
    if ((set && *set) || strncmp(url, "local:", 6) == 0) return;
    if (address_towards_store(url, &address) || address_of_first_interface(&address))
        (void)inet_ntop(AF_INET, &address.sin_addr, a->address, sizeof(a->address));
}
