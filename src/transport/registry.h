/*
 * registry.h: finds transports by name, and lists them.
 */
#ifndef TANDEM_TRANSPORT_REGISTRY_H
#define TANDEM_TRANSPORT_REGISTRY_H

#include "transport/transport.h"

/* Finds a transport by name: built in, or in a module, which is opened now. */
tdm_status tdm__transport_find(const char *name, const tdm__transport_ops **out, tdm_error *err);

/* Iterates over the transports: name, description, and whether the transport is usable here (else
 * `why` names what is missing). Returns false past the end. For `tandem doctor`. */
typedef struct tdm_transport_info {
    const char *name;
    const char *about;
    bool usable;
    char why[160];
    char library[TDM_LIBRARY_BYTES]; /* "UCX 1.13.1"; empty if it uses no library */
} tdm_transport_info;
bool tdm_transport_at(size_t index, tdm_transport_info *out);

#endif
