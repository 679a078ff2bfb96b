/*
 * open.h: what open.c and registry.c share.
 */
#ifndef TANDEM_COMM_OPEN_H
#define TANDEM_COMM_OPEN_H

#include "comm/transport.h"

/* The transport of this name: built in, or a module that is opened now. */
tdm_status tdm__transport_find(const char *name, const tdm__transport_ops **out, tdm_error *err);

#endif
