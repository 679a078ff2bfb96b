/*
 * agent_shm.c: finds the shared memory segment of a host on which the session already runs.
 *
 * The segment has no name. An agent that starts later (`tandem join`, or the successor of one that
 * died) opens it through /proc/PID/fd of a process of the session on this host and of the same
 * user. The store names candidate processes; the link in /proc shows whether one of them has a
 * segment.
 */
#include "base/base.h"
#include "cluster/agent.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The name of the segment in /proc/PID/fd. */
static const char shm_link[] = "/memfd:" TDM_SHM_SESSION_FILE;

/* Opens the segment of this process; -1: it has none. */
static int shm_of(int64_t pid)
{
    char path[64], target[128];
    snprintf(path, sizeof(path), "/proc/%lld/fd", (long long)pid);
    DIR *fds = pid > 0 ? opendir(path) : NULL;
    int found = -1;
    for (struct dirent *entry; fds && found < 0 && (entry = readdir(fds));) {
        ssize_t length = readlinkat(dirfd(fds), entry->d_name, target, sizeof(target) - 1);
        if (length < (ssize_t)strlen(shm_link)) continue;
        target[length] = '\0';
        if (strncmp(target, shm_link, strlen(shm_link)) == 0)
            found = openat(dirfd(fds), entry->d_name, O_RDWR | O_CLOEXEC);
    }
    if (fds) closedir(fds);
    return found;
}

static int shm_find(const tdm__agent *a, const tdm_session_view *view)
{
    int fd = -1;
    for (size_t i = 0; fd < 0 && i < view->member_count; i++)
        if (strcmp(view->members[i].host, a->options->host) == 0) fd = shm_of(view->members[i].pid);
    for (size_t i = 0; fd < 0 && i < view->host_count; i++)
        if (tdm__session_is_of_host(view->hosts[i].name, a->options->host))
            fd = shm_of(view->hosts[i].pid);
    return fd;
}

tdm_status tdm__agent_find_shm(tdm__agent *a, tdm_error *err)
{
    tdm_session_view view;
    tdm_arena *arena = tdm_arena_create("look");
    if (!arena) return tdm_fail_oom(err, "for the contents of the store");
    tdm_status status = tdm_session_look(a->kv, a->options->session, arena, &view, err);
    int fd = status == TDM_OK ? shm_find(a, &view) : -1;
    if (status == TDM_OK)
        status = fd >= 0 ? tdm_shm_attach(fd, &a->shm, err) : tdm_shm_create(&a->shm, err);
    if (fd >= 0) close(fd);
    tdm_arena_destroy(arena);
    return status;
}
