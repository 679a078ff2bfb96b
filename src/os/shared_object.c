/*
 * shared_object.c: shared objects that are loaded at run time.
 *
 * Opening a file twice increments the reference count of the same code, which stays loaded until the last
 * close, so no list of open objects is needed. All symbols are resolved when it is opened, so a missing
 * one is reported immediately and not inside a step. Its symbols are local and cannot replace others.
 */
#include "base/base.h"
#include "os/os.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The text of dlerror() without the path at its start, which the message already contains. */
static const char *loader_reason(const char *path)
{
    const char *text = dlerror();
    if (!text) return "the loader gives no reason";
    size_t length = strlen(path);
    if (strncmp(text, path, length) == 0 && strncmp(text + length, ": ", 2) == 0)
        return text + length + 2;
    return text;
}

tdm_status tdm_shared_object_open(const char *path, tdm_shared_object *out, tdm_error *err)
{
    if (!tdm_path_is_file(path))
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s: the file does not exist", path);
    tdm_arena *arena = tdm_arena_create("a path");
    /* dlopen would search for a name without a directory in the system's library directories. */
    const char *place = arena ? tdm_path_absolute(arena, path) : NULL;
    void *handle = place ? dlopen(place, RTLD_NOW | RTLD_LOCAL) : NULL;
    tdm_status status = TDM_OK;
    if (!place)
        status = tdm_fail_oom(err, "for %s", path);
    else if (!handle)
        status = tdm_fail(err, TDM_ERR_FORMAT, "%s: cannot load it as a shared object: %s", path,
                          loader_reason(place));
    tdm_arena_destroy(arena);
    if (status == TDM_OK) out->handle = handle;
    return status;
}

void *tdm_shared_object_find(const tdm_shared_object *object, const char *name)
{
    return object->handle ? dlsym(object->handle, name) : NULL;
}

void tdm_shared_object_close(tdm_shared_object *object)
{
    if (object->handle) dlclose(object->handle);
    object->handle = NULL;
}
