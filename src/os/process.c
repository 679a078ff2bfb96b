/*
 * process.c: what the system says of another process, and how one that is stopped is ended.
 *
 * A process is known by its number and by when it started: numbers come back, pairs do not. Locks in shared
 * memory are passed on when their holder dies, but not when it is stopped (SIGSTOP, a debugger); whoever
 * waits for such a lock ends its holder. One that runs, however slowly, is left alone.
 */
#include "os/internal.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

bool tdm_os_process(int64_t process, tdm_process_info *out)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)process);
    if (process <= 0 || !tdm__proc_read(path, text, sizeof text)) return false;
    /* The name, in brackets, may hold anything; the state is field 3, the start field 22. */
    const char *at = strrchr(text, ')');
    if (!at || at[1] != ' ') return false;
    char state = at[2];
    for (int field = 2; field < 22; field++) {
        at = strchr(at + 1, ' ');
        if (!at) return false;
    }
    char *end = NULL;
    uint64_t started = strtoull(at + 1, &end, 10);
    if (end == at + 1) return false;
    *out = (tdm_process_info){.started = started,
                              .is_stopped = state == 'T' || state == 't',
                              .is_dead = state == 'Z' || state == 'X'};
    return true;
}

bool tdm_os_end_stopped(int64_t process, uint64_t started)
{
    tdm_process_info info;
    if (process <= 1 || process == getpid()) return false;
    /* The descriptor means one process for good, unlike its number: look only once it is there. */
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)process, 0);
    if (fd < 0) return false;
    bool ended = tdm_os_process(process, &info) && info.started == started && info.is_stopped &&
                 syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0) == 0;
    close(fd);
    return ended;
}
