/*
 * open.h: what open.c and registry.c share.
 */
#ifndef TANDEM_TRANSPORT_REGISTRY_H
#define TANDEM_TRANSPORT_REGISTRY_H

#include "transport/transport.h"

/* The transport of this name: built in, or a module that is opened now. */
tdm_status tdm__transport_find(const char *name, const tdm__transport_ops **out, tdm_error *err);

#endif
