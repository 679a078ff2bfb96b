/*
 * plugin.c: finds and opens transports in separate shared objects (plugin.h).
 *
 * Modules are searched relative to the file from which this code was loaded, so a moved
 * installation still finds its parts, and no other directory is searched. A module is never closed:
 * libraries like UCX and MPI do not support that.
 *
 * While UCX is loaded, before any call, it sets signal handlers, starts a thread and patches mmap
 * and related functions of the C library. A library should not change how a program handles signals
 * and memory: the handlers are restored, and the rest is disabled in the only possible way, by
 * UCX's environment variables, which are set during loading unless the user has set them. No other
 * thread should read the environment meanwhile.
 */
#include "transport/plugin.h"

#include "transport/signals.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What is known about a module before it is opened. */
typedef struct source {
    const char *name, *title;
    bool built;
    const char *build_package, *run_package; /* names in Debian 12 */
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

static const source *source_find(const char *name)
{
    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++)
        if (strcmp(sources[i].name, name) == 0) return &sources[i];
    return NULL;
}

/* The directory of the file that contains this code, without a trailing slash. */
static bool library_directory(char out[PATH_MAX])
{
    Dl_info info;
    if (!dladdr((const void *)&sources, &info) || !info.dli_fname) return false;
    const char *slash = strrchr(info.dli_fname, '/');
    int bytes = slash
                    ? snprintf(out, PATH_MAX, "%.*s", (int)(slash - info.dli_fname), info.dli_fname)
                    : snprintf(out, PATH_MAX, ".");
    return bytes >= 0 && bytes < PATH_MAX;
}

/* Variables set while UCX is loaded, unless the user has set them. */
static const char *const ucx_settings[][2] = {{"UCX_MEM_EVENTS", "n"},
                                              {"UCX_MEM_MMAP_HOOK_MODE", "none"},
                                              {"UCX_HANDLE_ERRORS", "none"},
                                              {"UCX_VFS_ENABLE", "n"}};
enum { UCX_SETTINGS = sizeof(ucx_settings) / sizeof(ucx_settings[0]) };

/* dlopen; restores all signal handlers and the environment afterwards. */
static void *module_load(const char *path)
{
    bool set[UCX_SETTINGS] = {false};
    for (int i = 0; i < UCX_SETTINGS; i++)
        set[i] = !getenv(ucx_settings[i][0]) &&
                 setenv(ucx_settings[i][0], ucx_settings[i][1], 0) == 0;
    tdm__signals signals;
    tdm__signals_keep(&signals);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    tdm__signals_put_back(&signals);
    for (int i = 0; i < UCX_SETTINGS; i++)
        if (set[i]) unsetenv(ucx_settings[i][0]);
    return handle;
}

static tdm_status module_check(const tdm__module *m, const char *name, const char *path,
                               tdm_error *err)
{
    if (!m)
        return tdm_fail(err, TDM_ERR_FORMAT, "%s is not a Tandem transport: it does not export %s",
                        path, TDM__MODULE_SYMBOL);
    if (m->abi != TDM__MODULE_ABI || m->ops_bytes != sizeof(tdm__transport_ops) ||
        strcmp(m->version, TDM_VERSION) != 0)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s belongs to another version of Tandem than %s; reinstall Tandem", path,
                        TDM_VERSION);
    if (!m->ops || !m->ops->name || strcmp(m->ops->name, name) != 0)
        return tdm_fail(err, TDM_ERR_FORMAT, "%s contains another transport than %s", path, name);
    return TDM_OK;
}

tdm_status tdm__module_open(const char *name, const char *path, const tdm__transport_ops **out,
                            tdm_error *err)
{
    const source *s = source_find(name);
    void *handle = module_load(path);
    if (!handle) {
        const char *why = dlerror();
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "cannot load transport %s: %s; on Debian, install what it needs with "
                        "apt-get install %s",
                        name, why ? why : path, s ? s->run_package : "its library");
    }
    const tdm__module *m = dlsym(handle, TDM__MODULE_SYMBOL);
    tdm_status status = module_check(m, name, path, err);
    if (status == TDM_OK) *out = m->ops;
    dlclose(handle); /* it stays loaded: RTLD_NODELETE */
    return status;
}

tdm_status tdm__module_find(const char *name, const tdm__transport_ops **out, tdm_error *err)
{
    const source *s = source_find(name);
    if (!s)
        return tdm_fail(err, TDM_ERR_NOT_FOUND,
                        "unknown transport %s; the plugins are "
                        "ucx and mpi",
                        name);
    if (!s->built)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "Tandem was built without %s; install it (on Debian, apt-get install "
                        "%s) and rebuild",
                        s->title, s->build_package);

    char directory[PATH_MAX], path[PATH_MAX + 64];
    if (!library_directory(directory))
        return tdm_fail(err, TDM_ERR_NOT_FOUND,
                        "cannot load transport %s: the loader does not report the path of "
                        "libtandem.so",
                        name);

    static const char *const places[] = {"", "tandem/"};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        snprintf(path, sizeof(path), "%s/%slibtandem-%s.so", directory, places[i], name);
        if (access(path, F_OK) == 0) return tdm__module_open(name, path, out, err);
    }
    return tdm_fail(
        err, TDM_ERR_NOT_FOUND,
        "cannot load transport %s: no libtandem-%s.so in %s or its subdirectory tandem; reinstall "
        "Tandem",
        name, name, directory);
}
