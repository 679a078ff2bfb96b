/*
 * proc.c: text files of the kernel, and the cgroups of this process.
 *
 * A file that is missing or has an unexpected format means "unknown" and is never an error. A limit
 * applies to a group and its descendants, so the walk visits every ancestor. In a container the path in
 * /proc may not exist below the mount point; then only the upper levels are visited.
 */
#include "os/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool tdm__proc_read(const char *path, char *buffer, size_t buffer_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    size_t count = 0;
    while (count + 1 < buffer_bytes) {
        ssize_t got = read(fd, buffer + count, buffer_bytes - 1 - count);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        count += (size_t)got;
    }
    close(fd);
    buffer[count] = '\0';
    return count > 0;
}

bool tdm__proc_number(const char *text, const char *key, uint64_t *out)
{
    size_t key_length = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (strncmp(line, key, key_length) != 0) continue;
        const char *digits = line + key_length + strspn(line + key_length, " \t");
        if (*digits < '0' || *digits > '9') return false;
        errno = 0;
        unsigned long long value = strtoull(digits, NULL, 10);
        if (errno) return false;
        *out = value;
        return true;
    }
    return false;
}

/* Whether `list` ("cpu,cpuacct") contains `word`. */
static bool list_has(const char *list, size_t length, const char *word)
{
    size_t word_length = strlen(word);
    for (size_t at = 0; at < length;) {
        size_t end = at;
        while (end < length && list[end] != ',') end++;
        if (end - at == word_length && memcmp(list + at, word, word_length) == 0) return true;
        at = end + 1;
    }
    return false;
}

static void walk_up(const char *root, const char *group, int version, tdm__cgroup_fn visit,
                    void *user)
{
    char directory[4096];
    int written = snprintf(directory, sizeof(directory), "%s%s", root, group);
    if (written < 0 || (size_t)written >= sizeof(directory)) return;
    size_t root_length = strlen(root);
    for (;;) {
        size_t length = strlen(directory);
        while (length > root_length && directory[length - 1] == '/') directory[--length] = '\0';
        visit(&(tdm__cgroup_level){.directory = directory, .version = version}, user);
        if (length <= root_length) return;
        *strrchr(directory, '/') = '\0';
    }
}

void tdm__cgroup_walk(const char *controller, tdm__cgroup_fn visit, void *user)
{
    char text[8192];
    if (!tdm__proc_read("/proc/self/cgroup", text, sizeof(text))) return;
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));) {
        /* "0::/path" for version 2, "4:cpu,cpuacct:/path" for version 1 */
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group || group[1] != '/') continue;
        controllers++;
        size_t length = (size_t)(group - controllers);
        group++;
        if (length == 0) {
            walk_up("/sys/fs/cgroup", group, 2, visit, user);
            walk_up("/sys/fs/cgroup/unified", group, 2, visit, user); /* where both are mounted */
        } else if (list_has(controllers, length, controller)) {
            char root[300];
            snprintf(root, sizeof(root), "/sys/fs/cgroup/%s", controller);
            walk_up(root, group, 1, visit, user);
        }
    }
}
