/*
 * endpoint.h: the address of a socket, as ranks send it to each other; and the size of a world's key.
 */
#ifndef TANDEM_NET_ENDPOINT_H
#define TANDEM_NET_ENDPOINT_H

#include <stdint.h>

enum { TDM__WORLD_KEY = 32 }; /* bytes */

/* An IPv4 or IPv6 address. Its bytes on the wire are those in memory (little-endian). */
typedef struct tdm__endpoint {
    uint16_t family; /* 4 or 6; 0: a UNIX socket, which has no address */
    uint16_t port;
    uint8_t bytes[16];
    uint32_t scope; /* of a link-local address: the number of the network device on this host */
} tdm__endpoint;

#endif
