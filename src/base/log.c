/*
 * log.c: passes log records to the sinks.
 *
 * The list of sinks is the library's only mutable global. A lock serialises the calls of the sinks, so
 * a sink needs no lock. A record without a sink costs one atomic load.
 */
#include "base/base.h"
#include <tandem/base.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

enum { LEVEL_SILENT = 100 };

typedef struct sink {
    tdm_log_fn fn;
    void *user;
    int min;
} sink;

static struct {
    pthread_mutex_t lock;
    atomic_int min; /* of all sinks */
    int count;
    sink sinks[TDM_LOG_MAX_SINKS];
} hub = {.lock = PTHREAD_MUTEX_INITIALIZER, .min = LEVEL_SILENT};

/* With the lock held. */
static void min_find(void)
{
    int min = LEVEL_SILENT;
    for (int i = 0; i < hub.count; i++)
        if (hub.sinks[i].min < min) min = hub.sinks[i].min;
    atomic_store(&hub.min, min);
}

tdm_status tdm_log_add_sink(tdm_log_fn fn, void *user, tdm_log_level min)
{
    tdm_status status = TDM_ERR_RANGE;
    pthread_mutex_lock(&hub.lock);
    if (hub.count < TDM_LOG_MAX_SINKS) {
        hub.sinks[hub.count++] = (sink){fn, user, (int)min};
        min_find();
        status = TDM_OK;
    }
    pthread_mutex_unlock(&hub.lock);
    return status;
}

void tdm_log_remove_sink(tdm_log_fn fn, void *user)
{
    pthread_mutex_lock(&hub.lock);
    int kept = 0;
    for (int i = 0; i < hub.count; i++)
        if (hub.sinks[i].fn != fn || hub.sinks[i].user != user) hub.sinks[kept++] = hub.sinks[i];
    hub.count = kept;
    min_find();
    pthread_mutex_unlock(&hub.lock);
}

void tdm_log(tdm_log_level level, const char *room, const char *fmt, ...)
{
    if ((int)level < atomic_load_explicit(&hub.min, memory_order_relaxed)) return;
    char text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    tdm_log_record record = {
        .level = level, .room = room, .message = text, .unix_time_s = tdm_clock_unix_s()};
    pthread_mutex_lock(&hub.lock);
    for (int i = 0; i < hub.count; i++)
        if ((int)level >= hub.sinks[i].min) hub.sinks[i].fn(&record, hub.sinks[i].user);
    pthread_mutex_unlock(&hub.lock);
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
