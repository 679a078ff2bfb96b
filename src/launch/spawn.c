/*
 * spawn.c: starts one process: environment, fork, exec.
 *
 * Everything that needs memory is done before fork; between fork and exec the child makes only
 * system calls. A child that must die with its parent requests SIGKILL on the parent's death, then
 * checks that the parent still exists: it may have died before the request. A pipe with
 * close-on-exec reports the start of the program: bytes in it are the errno of the failed call.
 */
#include "launch/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* ---- environment ----------------------------------------------------------------------------- */

static void environment_put(tdm__environment *env, char *text)
{
    if (text && env->count + 1 >= env->room) {
        size_t room = env->room * 2 + 64;
        char **items = realloc(env->items, room * sizeof(*items));
        if (items) {
            env->items = items;
            env->room = room;
        } else {
            free(text);
            text = NULL;
        }
    }
    env->failed = env->failed || !text;
    if (!text) return;
    env->items[env->count++] = text;
    env->items[env->count] = NULL;
}

static bool environment_is_replaced(const char *entry, const char *const *names)
{
    for (; names && *names; names++) {
        size_t length = strlen(*names);
        if (strncmp(entry, *names, length) == 0 && entry[length] == '=') return true;
    }
    return false;
}

void tdm__environment_init(tdm__environment *env, const char *const *without)
{
    *env = (tdm__environment){.items = NULL};
    for (char **entry = environ; entry && *entry; entry++)
        if (!environment_is_replaced(*entry, without)) environment_put(env, strdup(*entry));
}

void tdm__environment_add(tdm__environment *env, const char *name, const char *fmt, ...)
{
    tdm_str text = TDM_STR_INIT;
    va_list args;
    va_start(args, fmt);
    tdm_str_addf(&text, "%s=", name);
    tdm_str_addv(&text, fmt, args);
    va_end(args);
    environment_put(env, tdm_str_ok(&text) ? strdup(tdm_str_text(&text)) : NULL);
    tdm_str_wipe(&text);
}

void tdm__environment_release(tdm__environment *env)
{
    for (size_t i = 0; i < env->count; i++) {
        explicit_bzero(env->items[i], strlen(env->items[i])); /* one may be a secret */
        free(env->items[i]);
    }
    free(env->items);
    *env = (tdm__environment){.items = NULL};
}

/* ---- child ----------------------------------------------------------------------------------- */

static bool child_take_input(const tdm__spawn_options *o)
{
    if (o->keeps_input) return true;
    int input = o->input >= 0 ? o->input : open("/dev/null", O_RDONLY);
    if (input < 0 || dup2(input, STDIN_FILENO) < 0) return false;
    if (input != STDIN_FILENO && o->input < 0) close(input);
    return true;
}

static bool child_set_up(const tdm__spawn_options *o)
{
    if (o->own_session ? setsid() < 0 : setpgid(0, 0) != 0) return false;
    if (o->dies_with > 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return false;
        if (getppid() != o->dies_with) _exit(1); /* the parent died before the request */
    }
    if (o->dir && chdir(o->dir) != 0) return false;
    if (o->place && !tdm_os_cpu_set_apply(o->place)) return false;
    if (!child_take_input(o)) return false;
    for (int i = 0; i < 2; i++)
        if (o->output[i] >= 0 && dup2(o->output[i], STDOUT_FILENO + i) < 0) return false;
    for (int i = 0; i < o->kept_count; i++)
        if (fcntl(o->kept[i], F_SETFD, 0) != 0) return false;
    return signal(SIGPIPE, SIG_DFL) != SIG_ERR && signal(SIGXFSZ, SIG_DFL) != SIG_ERR &&
           sigprocmask(SIG_SETMASK, o->mask, NULL) == 0;
}

__attribute__((noreturn)) static void child_become(const tdm__spawn_options *o, int report)
{
    if (child_set_up(o))
        execvpe(o->program[0], (char *const *)(uintptr_t)o->program, o->environment);
    int error_number = errno;
    ssize_t written = write(report, &error_number, sizeof(error_number));
    _exit(written == sizeof(error_number) ? 127 : 126);
}

/* ---- parent ---------------------------------------------------------------------------------- */

/* The errno of the child, or 0 if its program runs. */
static int spawn_read_report(int fd)
{
    int error_number = 0;
    ssize_t got;
    do {
        got = read(fd, &error_number, sizeof(error_number));
    } while (got < 0 && errno == EINTR);
    return got == sizeof(error_number) ? error_number : 0;
}

static tdm_status spawn_fail(const char *program, int error_number, tdm_error *err)
{
    const char *hint = "";
    if (error_number == ENOENT)
        hint = strchr(program, '/') ? ""
                                    : " in PATH; for a program in the current directory "
                                      "write ./NAME";
    else if (error_number == EACCES)
        hint = "; is it an executable program?";
    return tdm_fail(err, tdm_os_errno_status(error_number), "cannot run %s: %s%s", program,
                    strerror(error_number), hint);
}

tdm_status tdm__spawn(const tdm__spawn_options *options, pid_t *out, tdm_error *err)
{
    int report[2];
    if (pipe2(report, O_CLOEXEC) != 0) return tdm_os_fail(err, "cannot create", "a pipe");
    pid_t pid = fork();
    if (pid == 0) child_become(options, report[1]);
    close(report[1]);
    if (pid < 0) {
        close(report[0]);
        return tdm_os_fail(err, "cannot fork for", options->program[0]);
    }
    /* Also done in the child: complete before either continues. */
    if (!options->own_session) setpgid(pid, pid);
    int error_number = spawn_read_report(report[0]);
    close(report[0]);
    if (error_number != 0) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) continue;
        return spawn_fail(options->program[0], error_number, err);
    }
    *out = pid;
    return TDM_OK;
}
