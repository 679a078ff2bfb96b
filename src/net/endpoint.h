/*
 * endpoint.h: an address of a socket as ranks tell it to each other, and the size of a world's key.
 */
#ifndef TANDEM_NET_ENDPOINT_H
#define TANDEM_NET_ENDPOINT_H

#include <stdint.h>

enum { TDM__WORLD_KEY = 32 }; /* bytes */

/* An address of the Internet. On the wire it has the same bytes as in memory, little-endian. */
typedef struct tdm__endpoint {
    uint16_t family; /* 4, 6; 0: none, the socket is a UNIX one */
    uint16_t port;
    uint8_t bytes[16];
    uint32_t scope; /* device number of a link-local address, on the host that reads this */
} tdm__endpoint;

#endif
