/*
 * log.c: the way of the library's words to whoever wants them.
 *
 * The sink is the library's one mutable global. Calls of it are serialised by a lock, so a sink
 * needs none of its own. Messages below the sink's level cost one atomic load.
 */
#include <tandem/base.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

enum { LEVEL_SILENT = 100 };

static struct {
    pthread_mutex_t lock;
    atomic_int least;
    tdm_log_fn fn;
    void *user;
} sink = {.lock = PTHREAD_MUTEX_INITIALIZER, .least = LEVEL_SILENT};

void tdm_log_set_sink(tdm_log_fn fn, void *user, tdm_log_level least)
{
    pthread_mutex_lock(&sink.lock);
    sink.fn = fn;
    sink.user = user;
    atomic_store(&sink.least, fn ? (int)least : LEVEL_SILENT);
    pthread_mutex_unlock(&sink.lock);
}

void tdm_log(tdm_log_level level, const char *room, const char *fmt, ...)
{
    if ((int)level < atomic_load_explicit(&sink.least, memory_order_relaxed)) return;
    char text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    tdm_log_record record = {
        .level = level, .room = room, .message = text, .unix_time_s = tdm_clock_unix_s()};
    pthread_mutex_lock(&sink.lock);
    if (sink.fn) sink.fn(&record, sink.user);
    pthread_mutex_unlock(&sink.lock);
}

const char *tdm_log_level_name(tdm_log_level level)
{
    switch (level) {
    case TDM_LOG_DEBUG: return "debug";
    case TDM_LOG_INFO: return "info";
    case TDM_LOG_WARN: return "warn";
    case TDM_LOG_ERROR: return "error";
    }
    return "unknown";
}
