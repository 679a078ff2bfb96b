/*
 * module.c: finds and opens the transports that are shared objects of their own (module.h).
 *
 * The place is taken from where this very code was loaded from, so a tree that was moved still finds
 * its parts, and nothing is looked for where others could have put it. A module is never closed:
 * libraries like UCX and MPI do not survive that.
 *
 * While it is loaded, before anybody could call it, UCX sets signal handlers, starts a thread and
 * patches mmap and its kin within the C library. How a program dies, and what its memory does, is not a
 * library's business: handlers are put back as they were, and the rest is switched off by the only way
 * there is, UCX's variables in the environment, for the moment of loading and unless the user has set
 * them. No other thread should read the environment in that moment.
 */
#include "transport/plugin.h"

#include "transport/signals.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What there is to know about a module before it is opened. */
typedef struct source {
    const char *name, *title;
    bool built;
    const char *build_package, *run_package; /* as Debian 12 calls them */
} source;

static const source sources[] = {
#ifdef TDM__WITH_UCX
    {"ucx", "UCX", true, "libucx-dev", "libucx0"},
#else
    {"ucx", "UCX", false, "libucx-dev", "libucx0"},
#endif
#ifdef TDM__WITH_MPI
    {"mpi", "MPI", true, "libopenmpi-dev", "openmpi-bin"},
#else
    {"mpi", "MPI", false, "libopenmpi-dev", "openmpi-bin"},
#endif
};

static const source *source_of(const char *name)
{
    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++)
        if (strcmp(sources[i].name, name) == 0) return &sources[i];
    return NULL;
}

/* The folder of the file that holds this code, with no slash at the end. */
static bool own_folder(char out[PATH_MAX])
{
    Dl_info info;
    if (!dladdr((const void *)&sources, &info) || !info.dli_fname) return false;
    const char *slash = strrchr(info.dli_fname, '/');
    int bytes = slash
                    ? snprintf(out, PATH_MAX, "%.*s", (int)(slash - info.dli_fname), info.dli_fname)
                    : snprintf(out, PATH_MAX, ".");
    return bytes >= 0 && bytes < PATH_MAX;
}

/* What UCX is told while it is loaded, where the user says nothing. */
static const char *const calm[][2] = {{"UCX_MEM_EVENTS", "n"},
                                      {"UCX_MEM_MMAP_HOOK_MODE", "none"},
                                      {"UCX_HANDLE_ERRORS", "none"},
                                      {"UCX_VFS_ENABLE", "n"}};
enum { CALM = sizeof(calm) / sizeof(calm[0]) };

/* dlopen, with every signal's handler and the environment kept as they are. */
static void *load(const char *path)
{
    bool set[CALM] = {false};
    for (int i = 0; i < CALM; i++)
        set[i] = !getenv(calm[i][0]) && setenv(calm[i][0], calm[i][1], 0) == 0;
    tdm__signals signals;
    tdm__signals_keep(&signals);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    tdm__signals_put_back(&signals);
    for (int i = 0; i < CALM; i++)
        if (set[i]) unsetenv(calm[i][0]);
    return handle;
}

static tdm_status check(const tdm__module *m, const char *name, const char *path, tdm_error *err)
{
    if (!m)
        return tdm_fail(err, TDM_ERR_FORMAT, "%s: it is no transport of Tandem's: it has no %s",
                        path, TDM__MODULE_SYMBOL);
    if (m->abi != TDM__MODULE_ABI || m->ops_bytes != sizeof(tdm__transport_ops) ||
        strcmp(m->version, TDM_VERSION) != 0)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: it belongs to another version of Tandem than %s; install both anew",
                        path, TDM_VERSION);
    if (!m->ops || !m->ops->name || strcmp(m->ops->name, name) != 0)
        return tdm_fail(err, TDM_ERR_FORMAT, "%s: it holds another transport than %s", path, name);
    return TDM_OK;
}

tdm_status tdm__module_open(const char *name, const char *path, const tdm__transport_ops **out,
                            tdm_error *err)
{
    const source *s = source_of(name);
    void *handle = load(path);
    if (!handle) {
        const char *why = dlerror();
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "transport %s: %s; on Debian, apt-get install %s brings what it needs",
                        name, why ? why : path, s ? s->run_package : "the library it stands on");
    }
    const tdm__module *m = dlsym(handle, TDM__MODULE_SYMBOL);
    tdm_status status = check(m, name, path, err);
    if (status == TDM_OK) *out = m->ops;
    dlclose(handle); /* it stays all the same: RTLD_NODELETE */
    return status;
}

tdm_status tdm__module_find(const char *name, const tdm__transport_ops **out, tdm_error *err)
{
    const source *s = source_of(name);
    if (!s)
        return tdm_fail(err, TDM_ERR_NOT_FOUND,
                        "there is no transport %s; ucx and mpi are in "
                        "modules",
                        name);
    if (!s->built)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "this Tandem was built without %s; install it (on Debian, apt-get install "
                        "%s) and build again",
                        s->title, s->build_package);
    char folder[PATH_MAX], path[PATH_MAX + 64];
    if (!own_folder(folder))
        return tdm_fail(err, TDM_ERR_NOT_FOUND,
                        "transport %s: the loader does not say where "
                        "libtandem.so lies",
                        name);
    static const char *const places[] = {"", "tandem/"};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        snprintf(path, sizeof(path), "%s/%slibtandem-%s.so", folder, places[i], name);
        if (access(path, F_OK) == 0) return tdm__module_open(name, path, out, err);
    }
    return tdm_fail(err, TDM_ERR_NOT_FOUND,
                    "transport %s: there is no libtandem-%s.so in %s or its folder tandem; install "
                    "Tandem anew",
                    name, name, folder);
}
