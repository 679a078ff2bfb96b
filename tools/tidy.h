/*
 * tidy.h: what clang-tidy's analyser cannot see, because it looks at one source at a time: that the
 * functions which report a failure never return TDM_OK. `tools/lint tidy` includes this before every
 * source but those that define these functions; no compiler ever sees it.
 */
#include "base/base.h"
#include "os/os.h"

#define tdm_fail(err, status, ...) ((void)(tdm_fail)(err, status, __VA_ARGS__), (status))
#define tdm_fail_oom(err, ...) ((void)(tdm_fail_oom)(err, __VA_ARGS__), TDM_ERR_NO_MEMORY)
#define tdm_vfail(err, status, ...) ((void)(tdm_vfail)(err, status, __VA_ARGS__), (status))
#define tdm_error_context(err, status, ...)                                                        \
    ((void)(tdm_error_context)(err, status, __VA_ARGS__), (status))
#define tdm_os_fail(err, doing, path) ((void)(tdm_os_fail)(err, doing, path), TDM_ERR_IO)
