/*
 * module.h: transports that live in shared objects of their own.
 *
 * What stands on a library that not every machine has (UCX, MPI) is not linked into libtandem.so but
 * lies beside it as libtandem-NAME.so and is opened when somebody asks for it. So `tandem` starts
 * quickly and runs where these libraries are missing. A module exports one constant, a tdm__module,
 * under the name TDM__MODULE_SYMBOL; nothing in it is used before it has been checked.
 */
#ifndef TANDEM_TRANSPORT_PLUGIN_H
#define TANDEM_TRANSPORT_PLUGIN_H

#include "transport/transport.h"

enum { TDM__MODULE_ABI = 3 }; /* one more with each change of transport.h */

typedef struct tdm__module {
    uint32_t abi;        /* TDM__MODULE_ABI; the first field for ever */
    uint32_t ops_bytes;  /* sizeof(tdm__transport_ops) */
    const char *version; /* TDM_VERSION */
    const tdm__transport_ops *ops;
} tdm__module;

#define TDM__MODULE_SYMBOL "tdm_comm_module"

/* What a module's one exported constant is declared with. */
extern TDM_API const tdm__module tdm_comm_module;

/*
 * The transport of this name, from the folder of the library itself (a build's) or its subfolder
 * `tandem` (an installation's). It stays open until the program ends. TDM_ERR_UNSUPPORTED when this
 * build has no such module, TDM_ERR_NOT_FOUND when its file is missing, TDM_ERR_FORMAT when it cannot
 * be loaded or is another build's; the message says what to install.
 */
tdm_status tdm__module_find(const char *name, const tdm__transport_ops **out, tdm_error *err);
/* The same from a given file. */
tdm_status tdm__module_open(const char *name, const char *path, const tdm__transport_ops **out,
                            tdm_error *err);

#endif
