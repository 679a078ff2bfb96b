/*
 * path.c: directories, and paths as text.
 *
 * Path functions work on the text only, except tdm_path_absolute, which reads the current directory.
 * They never resolve "..", because a symbolic link before it would change its meaning. Results are
 * allocated in the caller's arena; NULL means that memory ran out.
 */
#include "os/internal.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool tdm_path_is_file(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

bool tdm_path_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

bool tdm_path_is_dir(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* ---- directories --------------------------------------------------------------------------------- */

static tdm_status make_one(const char *path, tdm_error *err)
{
    if (mkdir(path, 0777) == 0) return TDM_OK;
    int kept = errno;
    if (tdm_path_is_dir(path)) return TDM_OK; /* errno may also be EROFS or EACCES */
    if (kept == EEXIST) {
        return tdm_fail(err, TDM_ERR_EXISTS,
                        "cannot create directory %s: a file with this name exists", path);
    }
    errno = kept;
    return tdm_os_fail(err, "cannot create directory", path);
}

tdm_status tdm_dir_make(const char *path, tdm_error *err)
{
    if (!*path)
        return tdm_fail(err, TDM_ERR_INVALID, "cannot create a directory with an empty name");
    char *prefix = strdup(path);
    if (!prefix)
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "cannot create directory %s: out of memory", path);
    tdm_status status = TDM_OK;
    for (char *p = prefix + 1; status == TDM_OK && *p; p++) {
        if (*p != '/' || p[-1] == '/') continue;
        *p = '\0';
        status = make_one(prefix, err);
        *p = '/';
    }
    if (status == TDM_OK) status = make_one(prefix, err);
    free(prefix);
    return status;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

typedef struct name_list {
    const char **names; /* from malloc; the texts are in the arena */
    size_t count;
    size_t capacity;
} name_list;

static bool name_list_add(name_list *list, tdm_arena *arena, const char *name)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 64;
        const char **larger = realloc(list->names, capacity * sizeof(*larger));
        if (!larger) return false;
        list->names = larger;
        list->capacity = capacity;
    }
    const char *copy = tdm_arena_strdup(arena, name);
    if (!copy) return false;
    list->names[list->count++] = copy;
    return true;
}

static tdm_status list_entries(DIR *dir, const char *path, tdm_arena *arena, name_list *list,
                               tdm_error *err)
{
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (!entry && errno) return tdm_os_fail(err, "cannot list directory", path);
        if (!entry) return TDM_OK;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (!name_list_add(list, arena, entry->d_name)) {
            return tdm_fail(err, TDM_ERR_NO_MEMORY, "cannot list directory %s: out of memory",
                            path);
        }
    }
}

tdm_status tdm_dir_list(const char *path, tdm_arena *arena, const char *const **out_names,
                        size_t *out_count, tdm_error *err)
{
    DIR *dir = tdm__os_test_file_fails(TDM_FAULT_OPEN) ? NULL : opendir(path);
    if (!dir) return tdm_os_fail(err, "cannot open directory", path);
    name_list list = {0};
    tdm_status status = list_entries(dir, path, arena, &list, err);
    if (status != TDM_OK) goto release;
    const char **names = tdm_arena_array(arena, list.count + 1, sizeof(*names));
    if (!names) {
        status = tdm_fail(err, TDM_ERR_NO_MEMORY, "cannot list directory %s: out of memory", path);
        goto release;
    }
    if (list.count > 0) {
        qsort(list.names, list.count, sizeof(*list.names), compare_names);
        memcpy(names, list.names, list.count * sizeof(*names));
    }
    *out_names = names;
    *out_count = list.count;

release:
    free(list.names);
    closedir(dir);
    return status;
}

/* ---- names ----------------------------------------------------------------------------------- */

char *tdm_path_join(tdm_arena *arena, const char *dir, const char *path)
{
    if (path[0] == '/' || !dir || !*dir) return tdm_arena_strdup(arena, path);
    if (!*path) return tdm_arena_strdup(arena, dir);
    bool slash = dir[strlen(dir) - 1] == '/';
    return tdm_arena_printf(arena, "%s%s%s", dir, slash ? "" : "/", path);
}

char *tdm_path_absolute(tdm_arena *arena, const char *path)
{
    if (path[0] == '/') return tdm_arena_strdup(arena, path);
    while (path[0] == '.' && path[1] == '/') {
        path += 2;
        while (*path == '/') path++;
    }
    if (strcmp(path, ".") == 0) path = "";
    char *here = getcwd(NULL, 0);
    if (!here) return NULL;
    char *joined = tdm_path_join(arena, here, path);
    free(here);
    return joined;
}

/* The last component: its start, and its length without slashes that follow. */
static const char *last_component(const char *path, size_t *out_length)
{
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/') end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/') start--;
    *out_length = end - start;
    return path + start;
}

char *tdm_path_dirname(tdm_arena *arena, const char *path)
{
    size_t length;
    size_t end = (size_t)(last_component(path, &length) - path);
    if (end == 0) return tdm_arena_strdup(arena, path[0] == '/' ? "/" : ".");
    while (end > 1 && path[end - 1] == '/') end--;
    return tdm_arena_strndup(arena, path, end);
}

char *tdm_path_stem(tdm_arena *arena, const char *path)
{
    size_t length;
    const char *name = last_component(path, &length);
    for (size_t i = length; i > 1; i--) { /* a leading dot does not begin an extension */
        if (name[i - 1] != '.') continue;
        length = i - 1;
        break;
    }
    return tdm_arena_strndup(arena, name, length);
}
