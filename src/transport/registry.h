/*
 * registry.h: the list of transports.
 */
#ifndef TANDEM_TRANSPORT_REGISTRY_H
#define TANDEM_TRANSPORT_REGISTRY_H

#include "transport/transport.h"

/* Finds a transport by name: built in, or in a module, which is opened now. */
tdm_status tdm__transport_find(const char *name, const tdm__transport_ops **out, tdm_error *err);

#endif
