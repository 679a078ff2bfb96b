/*
 * trace_signal.c: a rank's last events, written down when a signal asks for them.
 *
 * A thread of its own waits for the signal and does the work: nothing is done in a handler that a
 * handler must not do. For that the signal must be blocked in every other thread, of which we know only
 * the one that calls us. So a handler is installed too: a thread that it interrupts blocks the signal
 * for itself from then on (in the mask that it returns to) and sends the signal to the process again;
 * after at most one such round for each thread it reaches ours. No state is shared with the handler.
 * Hence the signal is for the process (kill), not for one of its threads.
 *
 * A handler that the program had is called afterwards, from our thread, and is back at the end. One comm
 * of a process should ask for a signal: of several, one gets it.
 */
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
    struct sigaction before; /* the program's own */
    pthread_t opener, thread;
    bool was_blocked; /* in the opener */
    atomic_bool ends;
};

static const struct {
    const char *name;
    int number;
} names[] = {{"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"QUIT", SIGQUIT}, {"HUP", SIGHUP}};
enum { NAME_COUNT = sizeof names / sizeof names[0] };

/* Others cannot be waited for, or mean that the program is broken, or have a meaning of their own. */
static bool fits(long number)
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
    if (!*text || *end || !fits(number))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "\"%s\" is no signal to dump a trace on: USR1, USR2, QUIT, HUP or the "
                        "number of one of these or of a real-time signal",
                        text);
    *out = (int)number;
    return TDM_OK;
}

/* Not our thread: sends it on, and blocks it here from now on. */
static void send_on(int signal_number, siginfo_t *info, void *context)
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

static void dump(const tdm__dumper *d)
{
    char last[512];
    tdm_error err;
    tdm_log(TDM_LOG_INFO, "trace", "asked for by signal %d: this rank %s", d->signal_number,
            tdm__recorder_last(d->recorder, last, sizeof last));
    tdm__recorder_log(d->recorder, TDM_LOG_INFO);
    if (tdm__recorder_dump(d->recorder, d->dir, &err) != TDM_OK)
        tdm_log(TDM_LOG_WARN, "trace", "%s", err.message);
    else
        tdm_log(TDM_LOG_INFO, "trace", "'tandem trace %s' shows all of it", d->dir);
}

static void call_before(const tdm__dumper *d, siginfo_t *info)
{
    const struct sigaction *before = &d->before;
    if (before->sa_flags & SA_SIGINFO) {
        if (before->sa_sigaction != send_on) before->sa_sigaction(d->signal_number, info, NULL);
    } else if (before->sa_handler != SIG_DFL && before->sa_handler != SIG_IGN) {
        before->sa_handler(d->signal_number);
    }
}

static void *wait_for_signals(void *user)
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
        dump(d);
        call_before(d, &info);
    }
}

static tdm_status start(tdm__dumper *d, tdm_error *err)
{
    sigset_t one, before;
    sigemptyset(&one);
    sigaddset(&one, d->signal_number);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    TDM_TRY(tdm__thread_start(&d->thread, wait_for_signals, d, err));
    d->opener = pthread_self();
    d->was_blocked = sigismember(&before, d->signal_number) == 1;
    pthread_sigmask(SIG_BLOCK, &one, NULL);
    struct sigaction action = {.sa_sigaction = send_on, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(d->signal_number, &action, &d->before);
    return TDM_OK;
}

tdm_status tdm__dumper_create(const tdm__recorder *recorder, int signal_number, const char *dir,
                              tdm__dumper **out, tdm_error *err)
{
    if (!fits(signal_number))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%d is no signal to dump the trace on: SIGUSR1, SIGUSR2, SIGQUIT, SIGHUP "
                        "or a real-time signal",
                        signal_number);
    tdm__dumper *d = calloc(1, sizeof *d);
    char *copy = strdup(dir ? dir : ".");
    if (!d || !copy) {
        free(d);
        free(copy);
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory to dump traces with");
    }
    d->recorder = recorder;
    d->signal_number = signal_number;
    d->dir = copy;
    tdm_status status = start(d, err);
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
        now.sa_sigaction == send_on)
        sigaction(d->signal_number, &d->before, NULL);
    if (!d->was_blocked && pthread_equal(d->opener, pthread_self())) {
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, d->signal_number);
        const struct timespec no_time = {0};
        sigtimedwait(&one, NULL, &no_time); /* one that came too late shall not hit the program */
        pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    }
    free(d->dir);
    free(d);
}
