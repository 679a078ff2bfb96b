/*
 * process.c: the state of other processes, and the end of a stopped one.
 *
 * A process is identified by its id and its start time: ids are reused, pairs are not. Locks in shared
 * memory are released when their holder dies, but not when it is stopped (SIGSTOP, a debugger); a process
 * that waits for such a lock kills its holder. A holder that runs, however slowly, is not killed.
 *
 * Progress is CPU time, or a runnable thread: on a busy host a thread may wait for a CPU for seconds. The
 * kernel reports CPU time per process and states per thread.
 */
#include "os/internal.h"

#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

bool tdm_os_process(int64_t process, tdm_process_info *out)
{
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%lld/stat", (long long)process);
    if (process <= 0 || !tdm__proc_read(path, text, sizeof(text))) return false;
    /* The name, in brackets, may contain any character. The state is field 3, CPU time is in fields 14 and 15,
     * the start time is field 22. */
    const char *at = strrchr(text, ')');
    if (!at || at[1] != ' ') return false;
    char state = at[2], *end = NULL;
    uint64_t cpu_ticks = 0;
    for (int field = 2; field < 22; field++) {
        at = strchr(at + 1, ' ');
        if (!at) return false;
        if (field + 1 == 14 || field + 1 == 15) cpu_ticks += strtoull(at + 1, &end, 10);
    }
    uint64_t started = strtoull(at + 1, &end, 10);
    if (end == at + 1) return false;
    *out = (tdm_process_info){.started = started,
                              .is_stopped = state == 'T' || state == 't',
                              .is_dead = state == 'Z' || state == 'X',
                              .cpu_ticks = cpu_ticks};
    return true;
}

bool tdm_os_end_stopped(int64_t process, uint64_t started)
{
    tdm_process_info info;
    if (process <= 1 || process == getpid()) return false;
    /* A pidfd always refers to the same process, but an id can be reused. So open the pidfd first, then check
     * the start time. */
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)process, 0);
    if (fd < 0) return false;
    bool ended = tdm_os_process(process, &info) && info.started == started && info.is_stopped &&
                 syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0) == 0;
    close(fd);
    return ended;
}

/* Whether one of its threads runs, or waits for a CPU. */
static bool process_is_runnable(int64_t process)
{
    char path[PATH_MAX], text[1024];
    snprintf(path, sizeof(path), "/proc/%lld/task", (long long)process);
    DIR *threads = opendir(path);
    if (!threads) return false;
    bool is_runnable = false;
    for (struct dirent *entry; !is_runnable && (entry = readdir(threads));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof(path), "/proc/%lld/task/%s/stat", (long long)process, entry->d_name);
        const char *at = tdm__proc_read(path, text, sizeof(text)) ? strrchr(text, ')') : NULL;
        is_runnable = at && at[1] == ' ' && at[2] == 'R';
    }
    closedir(threads);
    return is_runnable;
}

void tdm_process_watch_init(int64_t process, tdm_process_watch *out)
{
    tdm_process_info info = {0};
    bool is_there = tdm_os_process(process, &info);
    *out = (tdm_process_watch){.process = is_there ? process : 0,
                               .started = info.started,
                               .cpu_ticks = info.cpu_ticks,
                               .progress_s = tdm_clock_s()};
}

bool tdm_process_lives(tdm_process_watch *watch, double idle_s)
{
    tdm_process_info info;
    if (!tdm_os_process(watch->process, &info) || info.started != watch->started) return false;
    if (info.is_dead || info.is_stopped) return false;
    double now_s = tdm_clock_s();
    if (info.cpu_ticks != watch->cpu_ticks || process_is_runnable(watch->process)) {
        watch->cpu_ticks = info.cpu_ticks;
        watch->progress_s = now_s;
    }
    return now_s - watch->progress_s < idle_s;
}
