/*
 * test_control.c: the test controls of test_control.h.
 *
 * The file faults are the only mutable global of this module. They hold for the whole process by contract, and
 * consist of atomics.
 */
#include "os/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REQUEST_BYTES = 512 };

/* ---- file faults ----------------------------------------------------------------------------- */

static struct {
    atomic_uint mask; /* 0: no fault is set */
    atomic_long countdown;
    atomic_int error_number;
} fault;

void tdm_os_test_fail_files(unsigned mask, long countdown, int error_number)
{
    atomic_store(&fault.mask, 0);
    if (countdown <= 0) return;
    atomic_store(&fault.countdown, countdown);
    atomic_store(&fault.error_number, error_number);
    atomic_store(&fault.mask, mask);
}

bool tdm__os_test_file_fails(unsigned kind)
{
    if (!(atomic_load_explicit(&fault.mask, memory_order_acquire) & kind)) return false;
    if (atomic_fetch_sub(&fault.countdown, 1) > 1) return false;
    errno = atomic_load(&fault.error_number);
    return true;
}

/* ---- points ---------------------------------------------------------------------------------- */

/* The value of "NAME=value" in one part of a request; NULL if the part has another name. */
static const char *field_value(const char *field, const char *name)
{
    size_t length = strlen(name);
    return strncmp(field, name, length) == 0 && field[length] == '=' ? field + length + 1 : NULL;
}

static bool field_is_number(const char *text, uint64_t number)
{
    char *end;
    return strtoull(text, &end, 10) == number && end != text && *end == '\0';
}

/* Creates the file of a request, with the ID of this process. False if it exists. */
static bool request_file_create(const char *path)
{
    if (!path) return true;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) return false;
    char text[32];
    int length = snprintf(text, sizeof(text), "%lld\n", (long long)getpid());
    bool written = write(fd, text, (size_t)length) == length;
    close(fd);
    return written;
}

/* Whether a request applies to this point. Splits the text of the request; *number is its signal. */
static bool request_matches(char *request, const tdm_test_point *at, const char **file, int *number)
{
    char *rest = NULL;
    const char *field = strtok_r(request, ":", &rest), *value;
    bool meant = field && strcmp(field, at->name) == 0;
    while (meant && (field = strtok_r(NULL, ":", &rest)) != NULL) {
        if ((value = field_value(field, "step")) != NULL)
            meant = field_is_number(value, at->step);
        else if ((value = field_value(field, "rank")) != NULL)
            meant = at->rank >= 0 && field_is_number(value, (uint64_t)at->rank);
        else if ((value = field_value(field, "part")) != NULL)
            meant = field_is_number(value, at->part);
        else if ((value = field_value(field, "signal")) != NULL)
            *number = strcmp(value, "STOP") == 0 ? SIGSTOP : SIGKILL;
        else if ((value = field_value(field, "file")) != NULL)
            *file = value;
    }
    return meant;
}

void tdm_os_test_point(const tdm_test_point *at)
{
    const char *requests = getenv("TANDEM_TEST_KILL");
    while (requests && *requests) {
        char request[REQUEST_BYTES];
        size_t length = strcspn(requests, ",");
        const char *file = NULL;
        int number = SIGKILL;
        if (length < sizeof(request)) {
            memcpy(request, requests, length);
            request[length] = '\0';
            if (request_matches(request, at, &file, &number) && request_file_create(file))
                raise(number);
        }
        requests += length + (requests[length] == ',');
    }
}

bool tdm_os_test_has_points(void)
{
    return getenv("TANDEM_TEST_KILL") != NULL;
}

/* ---- speed ----------------------------------------------------------------------------------- */

double tdm_os_test_slow_factor(int rank)
{
    const char *text = getenv("TANDEM_TEST_SLOW");
    int slow_rank = -1;
    double factor = 0;
    if (!text || sscanf(text, "%d:%lf", &slow_rank, &factor) != 2) return 0;
    return slow_rank == rank && factor > 1 && factor < 1000 ? factor : 0;
}
