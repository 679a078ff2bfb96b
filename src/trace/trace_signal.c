/*
 * trace_signal.c: writes a rank's last events when a signal arrives.
 *
 * A separate thread waits for the signal and does the work, because a handler may do very little.
 * For that, the signal must be blocked in all other threads, but only the calling thread is known
 * here. So a handler is installed as well: it blocks the signal in the thread that it interrupts
 * (in the mask to which that thread returns) and sends the signal to the process again. After at
 * most one such round for each thread, the signal reaches ours. The handler shares no state. Hence
 * the signal must be sent to the process (kill), not to one of its threads.
 *
 * A previous handler of the program is called afterwards, from our thread, and is restored at the
 * end. Only one comm of a process should use a signal: if there are several, one of them gets it.
 */
#include "base/base.h"
#include "os/thread.h"
#include "trace/recorder.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { LINES_SHOWN = 64 };

struct tdm__dumper {
    const tdm__recorder *recorder;
    int signal_number;
    char *dir;
    struct sigaction before; /* the program's handler */
    pthread_t opener, thread;
    bool was_blocked; /* in the thread that opened it */
    atomic_bool ends;
};

static const struct {
    const char *name;
    int number;
} names[] = {{"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"QUIT", SIGQUIT}, {"HUP", SIGHUP}};
enum { NAME_COUNT = sizeof(names) / sizeof(names[0]) };

/* Other signals cannot be blocked, indicate a crash, or have a defined meaning. */
static bool signal_fits(long number)
{
    for (size_t i = 0; i < NAME_COUNT; i++)
        if (number == names[i].number) return true;
    return number >= SIGRTMIN && number <= SIGRTMAX;
}

tdm_status tdm__dump_signal_read(const char *text, int *out, tdm_error *err)
{
    const char *name = strncasecmp(text, "SIG", 3) == 0 ? text + 3 : text;
    for (size_t i = 0; i < NAME_COUNT; i++)
        if (strcasecmp(name, names[i].name) == 0) {
            *out = names[i].number;
            return TDM_OK;
        }
    char *end = NULL;
    long number = strtol(text, &end, 10);
    if (!*text || *end || !signal_fits(number))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "\"%s\" is not a valid signal for dumping a trace: use USR1, USR2, QUIT, "
                        "HUP, or the number of one of these or of a real-time signal",
                        text);
    *out = (int)number;
    return TDM_OK;
}

/* Runs in another thread: blocks the signal there and sends it to the process again. */
static void signal_send_on(int signal_number, siginfo_t *info, void *context)
{
    (void)info;
    int kept = errno;
    ucontext_t *returns_to = context;
    sigaddset(&returns_to->uc_sigmask, signal_number);
    kill(getpid(), signal_number); /* the signal is blocked in this handler */
    errno = kept;
}

void tdm__recorder_log(const tdm__recorder *recorder, tdm_log_level level)
{
    tdm_str text = TDM_STR_INIT;
    tdm__recorder_text(recorder, LINES_SHOWN, &text);
    char *line = text.data, *end;
    for (; line && (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        tdm_log(level, "trace", "%s", line);
    }
    tdm_str_release(&text);
}

static void dumper_dump(const tdm__dumper *d)
{
    char last[512];
    tdm_error err;
    tdm_log(TDM_LOG_INFO, "trace", "on signal %d: this rank %s", d->signal_number,
            tdm__recorder_last(d->recorder, last, sizeof(last)));
    tdm__recorder_log(d->recorder, TDM_LOG_INFO);
    if (tdm__recorder_dump(d->recorder, d->dir, &err) != TDM_OK)
        tdm_log(TDM_LOG_WARN, "trace", "%s", err.message);
    else
        tdm_log(TDM_LOG_INFO, "trace", "'tandem trace %s' shows all events", d->dir);
}

static void signal_call_previous(const tdm__dumper *d, siginfo_t *info)
{
    const struct sigaction *before = &d->before;
    if (before->sa_flags & SA_SIGINFO) {
        if (before->sa_sigaction != signal_send_on)
            before->sa_sigaction(d->signal_number, info, NULL);
    } else if (before->sa_handler != SIG_DFL && before->sa_handler != SIG_IGN) {
        before->sa_handler(d->signal_number);
    }
}

static void *dumper_wait(void *user)
{
    tdm__dumper *d = user;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, d->signal_number);
    for (;;) {
        siginfo_t info;
        int got = sigwaitinfo(&set, &info);
        if (atomic_load(&d->ends)) return NULL;
        if (got != d->signal_number) continue;
        dumper_dump(d);
        signal_call_previous(d, &info);
    }
}

static tdm_status dumper_start(tdm__dumper *d, tdm_error *err)
{
    sigset_t one, before;
    sigemptyset(&one);
    sigaddset(&one, d->signal_number);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    TDM_TRY(tdm__thread_start(&d->thread, dumper_wait, d, err));
    d->opener = pthread_self();
    d->was_blocked = sigismember(&before, d->signal_number) == 1;
    pthread_sigmask(SIG_BLOCK, &one, NULL);
    struct sigaction action = {.sa_sigaction = signal_send_on, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(d->signal_number, &action, &d->before);
    return TDM_OK;
}

tdm_status tdm__dumper_create(const tdm__recorder *recorder, int signal_number, const char *dir,
                              tdm__dumper **out, tdm_error *err)
{
    if (!signal_fits(signal_number))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%d is not a valid signal for dumping the trace: use SIGUSR1, SIGUSR2, "
                        "SIGQUIT, SIGHUP or a real-time signal",
                        signal_number);
    tdm__dumper *d = calloc(1, sizeof(*d));
    char *copy = strdup(dir ? dir : ".");
    if (!d || !copy) {
        free(d);
        free(copy);
        return tdm_fail_oom(err, "for the thread that dumps traces");
    }
    d->recorder = recorder;
    d->signal_number = signal_number;
    d->dir = copy;
    tdm_status status = dumper_start(d, err);
    if (status != TDM_OK) {
        free(d->dir);
        free(d);
        return status;
    }
    *out = d;
    return TDM_OK;
}

void tdm__dumper_destroy(tdm__dumper *dumper)
{
    if (!dumper) return;
    tdm__dumper *d = dumper;
    atomic_store(&d->ends, true);
    pthread_kill(d->thread, d->signal_number);
    pthread_join(d->thread, NULL);
    struct sigaction now;
    if (sigaction(d->signal_number, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) &&
        now.sa_sigaction == signal_send_on)
        sigaction(d->signal_number, &d->before, NULL);
    if (!d->was_blocked && pthread_equal(d->opener, pthread_self())) {
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, d->signal_number);
        const struct timespec no_time = {0};
        sigtimedwait(&one, NULL, &no_time); /* a signal that arrived late must not reach the
                                             * program */
        pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    }
    free(d->dir);
    free(d);
}
