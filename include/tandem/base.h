/*
 * base.h: the base of all other modules.
 *
 * Status codes and error texts, the log, arenas, counter-based random numbers, SHA-256 and the
 * monotonic clock. Nothing here depends on tensors, jobs or files.
 *
 * Errors: a fallible function returns a tdm_status, zero for success, and takes a `tdm_error *err`
 * as its last argument, which may be NULL. On failure it contains one message: what went wrong, where,
 * and what to do. Outputs are written only on success.
 *
 * Threading: all functions may be called from any thread; an object belongs to one thread at a
 * time unless its comment says otherwise. The log's sinks are the library's only mutable globals.
 */
#ifndef TANDEM_BASE_H
#define TANDEM_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TDM_API __attribute__((visibility("default")))
#define TDM_PRINTF(fmt_index, args_index) __attribute__((format(printf, fmt_index, args_index)))
#else
#define TDM_API
#define TDM_PRINTF(fmt_index, args_index)
#endif

#define TDM_VERSION_MAJOR 0
#define TDM_VERSION_MINOR 1
#define TDM_VERSION_PATCH 0
#define TDM_VERSION "0.1.0"

/* The version of the linked library, which may differ from that of the header. */
TDM_API const char *tdm_version(void);

/* For the name and version of an external library, such as "OpenSSL 3.0.17". */
#define TDM_LIBRARY_BYTES 64

/* ---- status ---------------------------------------------------------------------------------- */

/*
 * The scope of an error, which determines the recovery: only the call that failed, the peer, the whole
 * host, or the job.
 */
typedef enum tdm_status_group {
    TDM_STATUS_GROUP_NONE = 0,
    TDM_STATUS_GROUP_OPERATION = 1,
    TDM_STATUS_GROUP_PEER = 2,
    TDM_STATUS_GROUP_HOST = 3,
    TDM_STATUS_GROUP_JOB = 4
} tdm_status_group;

/* The hundreds are the group. Values are stable: programs may store them. */
typedef enum tdm_status {
    TDM_OK = 0,
    TDM_ERR_INVALID = 101,
    TDM_ERR_NOT_FOUND = 102,
    TDM_ERR_EXISTS = 103,
    TDM_ERR_FORMAT = 104,
    TDM_ERR_RANGE = 105,
    TDM_ERR_UNSUPPORTED = 106,
    TDM_ERR_IO = 107,
    TDM_ERR_CHECKSUM = 108,
    TDM_ERR_TIMEOUT = 109,
    TDM_ERR_BUSY = 110,
    TDM_ERR_INTERRUPTED = 111,
    TDM_ERR_PEER_FAILED = 201,
    TDM_ERR_PEER_MISMATCH = 202,
    TDM_ERR_PEER_TIMEOUT = 203,
    TDM_ERR_PEER_REFUSED = 204,
    TDM_ERR_PEER_LEFT = 205,
    TDM_ERR_PEER_FENCED = 206,
    TDM_ERR_NO_MEMORY = 301,
    TDM_ERR_NO_SPACE = 302,
    TDM_ERR_SYSTEM = 303,
    TDM_ERR_JOB_INVALID = 401,
    TDM_ERR_JOB_MISMATCH = 402,
    TDM_ERR_DIVERGED = 403,
    TDM_ERR_INTERNAL = 499
} tdm_status;

TDM_API tdm_status_group tdm_status_group_of(tdm_status status);
/* "format" for TDM_ERR_FORMAT; "unknown" for a value outside the table. Never NULL. */
TDM_API const char *tdm_status_name(tdm_status status);
/* One sentence of description. Never NULL. */
TDM_API const char *tdm_status_text(tdm_status status);

typedef struct tdm_error {
    tdm_status status;
    char message[1000];
} tdm_error;

/*
 * Fills `err` (if it is not NULL) and returns `status`, so that a failure is one line:
 *     return tdm_fail(err, TDM_ERR_RANGE, "%s: %d is more than %d", name, value, limit);
 */
TDM_API tdm_status tdm_fail(tdm_error *err, tdm_status status, const char *fmt, ...)
    TDM_PRINTF(3, 4);
/* Prefixes the message with "text: ". Returns the status of `err` (or `status`). */
TDM_API tdm_status tdm_error_context(tdm_error *err, tdm_status status, const char *fmt, ...)
    TDM_PRINTF(3, 4);

/* Returns an error to the caller. */
#define TDM_TRY(expr)                                                                              \
    do {                                                                                           \
        tdm_status tdm_try_status_ = (expr);                                                       \
        if (tdm_try_status_ != TDM_OK) return tdm_try_status_;                                     \
    } while (0)

/* ---- log ------------------------------------------------------------------------------------- */

typedef enum tdm_log_level {
    TDM_LOG_DEBUG = 0,
    TDM_LOG_INFO = 1,
    TDM_LOG_WARN = 2,
    TDM_LOG_ERROR = 3
} tdm_log_level;

typedef struct tdm_log_record {
    tdm_log_level level;
    const char *room;    /* the module: "data", "train", ... */
    const char *message; /* one line, no newline */
    double unix_time_s;  /* wall clock, for display */
} tdm_log_record;

typedef void (*tdm_log_fn)(const tdm_log_record *record, void *user);

enum { TDM_LOG_MAX_SINKS = 8 };

/*
 * Adds a sink for log records of at least level `min`; without a sink they are dropped. Calls are
 * serialised over all sinks. `fn` must not log, nor add or remove sinks. TDM_ERR_RANGE if there are
 * already TDM_LOG_MAX_SINKS.
 */
TDM_API tdm_status tdm_log_add_sink(tdm_log_fn fn, void *user, tdm_log_level min);
/* Removes the sink that was added with these arguments; after the return it is not called again. */
TDM_API void tdm_log_remove_sink(tdm_log_fn fn, void *user);
TDM_API void tdm_log(tdm_log_level level, const char *room, const char *fmt, ...) TDM_PRINTF(3, 4);
TDM_API const char *tdm_log_level_name(tdm_log_level level);

/* ---- arena ----------------------------------------------------------------------------------- */

/*
 * Memory with one named lifetime: allocate in pieces, free everything at once. Allocations are zeroed.
 * Not thread-safe.
 */
typedef struct tdm_arena tdm_arena;

/* `life_time` names the arena in messages ("plan", "job"); it is borrowed. NULL if out of memory. */
TDM_API tdm_arena *tdm_arena_create(const char *life_time);
TDM_API void tdm_arena_destroy(tdm_arena *arena); /* NULL is allowed */
TDM_API void tdm_arena_reset(tdm_arena *arena);   /* frees the allocations, keeps the arena */
/* `align` is a power of two, 0 for 16. NULL when out of memory or on overflow. */
TDM_API void *tdm_arena_alloc(tdm_arena *arena, size_t bytes, size_t align);
/* count * size with an overflow check. */
static inline void *tdm_arena_array(tdm_arena *arena, size_t count, size_t size)
{
    return size != 0 && count > SIZE_MAX / size ? NULL : tdm_arena_alloc(arena, count * size, 0);
}
TDM_API char *tdm_arena_strndup(tdm_arena *arena, const char *text, size_t length);
static inline char *tdm_arena_strdup(tdm_arena *arena, const char *text)
{
    return tdm_arena_strndup(arena, text, strlen(text));
}
TDM_API char *tdm_arena_printf(tdm_arena *arena, const char *fmt, ...) TDM_PRINTF(2, 3);

/* ---- hashing --------------------------------------------------------------------------------- */

#define TDM_SHA256_HEX 65 /* 64 digits and the terminator */

TDM_API tdm_status tdm_sha256_of(const void *bytes, size_t count, char hex[TDM_SHA256_HEX]);

/* ---- clock ----------------------------------------------------------------------------------- */

TDM_API double tdm_clock_s(void);    /* monotonic */
TDM_API uint64_t tdm_clock_ns(void); /* monotonic */

#ifdef __cplusplus
}
#endif
#endif
