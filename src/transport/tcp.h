/*
 * tcp.h: the TCP transport: messages between hosts, over connections that prove the world's key and are
 * encrypted where they leave the host (tcp_inner.h says how).
 */
#ifndef TANDEM_TRANSPORT_TCP_H
#define TANDEM_TRANSPORT_TCP_H

#include "transport/transport.h"

extern const tdm__transport_ops tdm__transport_tcp;

#endif
