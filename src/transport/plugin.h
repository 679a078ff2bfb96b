/*
 * plugin.h: transports in separate shared objects.
 *
 * A transport that needs a library that not every machine has (UCX, MPI) is not linked into
 * libtandem.so. It is a file libtandem-NAME.so next to it, which is opened on first use. So
 * `tandem` starts quickly and runs without these libraries. A module exports one constant, a
 * tdm__module, under the name TDM__MODULE_SYMBOL; it is validated before anything in it is used.
 */
#ifndef TANDEM_TRANSPORT_PLUGIN_H
#define TANDEM_TRANSPORT_PLUGIN_H

#include "transport/transport.h"

enum { TDM__MODULE_ABI = 3 }; /* incremented with each change of transport.h */

typedef struct tdm__module {
    uint32_t abi;        /* TDM__MODULE_ABI; always the first field */
    uint32_t ops_bytes;  /* sizeof(tdm__transport_ops) */
    const char *version; /* TDM_VERSION */
    const tdm__transport_ops *ops;
} tdm__module;

#define TDM__MODULE_SYMBOL "tdm_comm_module"

/* The one constant that a module exports. */
extern TDM_API const tdm__module tdm_comm_module;

/*
 * Opens a transport by name, from the directory of the library (in a build tree) or its
 * subdirectory `tandem` (installed). It stays open until the program ends. TDM_ERR_UNSUPPORTED if
 * this build has no such module, TDM_ERR_NOT_FOUND if its file is missing, TDM_ERR_FORMAT if it
 * cannot be loaded or belongs to another build; the message names what to install.
 */
tdm_status tdm__module_find(const char *name, const tdm__transport_ops **out, tdm_error *err);
/* The same from a given file. */
tdm_status tdm__module_open(const char *name, const char *path, const tdm__transport_ops **out,
                            tdm_error *err);

#endif
