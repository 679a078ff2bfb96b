/*
 * tcp.h: the TCP transport: messages between hosts, over connections that are authenticated with
 * the world's key and encrypted if they leave the host (see tcp_inner.h).
 */
#ifndef TANDEM_TRANSPORT_TCP_H
#define TANDEM_TRANSPORT_TCP_H

#include "transport/transport.h"

extern const tdm__transport_ops tdm__transport_tcp;

#endif
