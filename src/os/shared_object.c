/*
 * shared_object.c: code from files, opened while the program runs.
 *
 * Opening a file twice gives the same code with a count; it stays in memory until the last of its
 * openers has closed it, so each user opens and closes for itself and nobody needs a list. All names
 * are resolved when it is opened, not when they are first called: what is missing is told at once,
 * and nothing can fail inside a step. Its own names stay its own, and cannot replace anybody's.
 */
#include <tandem/os.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The loader's words begin with the path, which the message has already. */
static const char *reason(const char *path)
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
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s: there is no such file", path);
    tdm_arena *arena = tdm_arena_create("a path");
    /* A name without a folder would be looked for among the system's libraries. */
    const char *place = arena ? tdm_path_absolute(arena, path) : NULL;
    void *handle = place ? dlopen(place, RTLD_NOW | RTLD_LOCAL) : NULL;
    tdm_status status = TDM_OK;
    if (!place)
        status = tdm_fail(err, TDM_ERR_NO_MEMORY, "%s: no memory to open it", path);
    else if (!handle)
        status = tdm_fail(err, TDM_ERR_FORMAT, "%s: it cannot be loaded as a shared object: %s",
                          path, reason(place));
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
