/*
 * test_point.c: points in the program at which a test may kill or stop the process.
 *
 * TANDEM_TEST_KILL contains one or more requests, separated by commas:
 *     PHASE[:step=S][:rank=R][:part=P][:signal=KILL|STOP][:file=PATH]
 * A process that reaches the phase in that step, as that rank, with that part of the phase done, sends
 * itself SIGKILL (or SIGSTOP), without any cleanup. Omitted conditions match everything. With a file, the
 * first process that can create it is hit, and only that one: a test can see that it happened, and a
 * restarted process is not hit again.
 *
 * The environment is read each time, so there is no state; without the variable that costs one lookup.
 */
#include "os/internal.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WISH_BYTES = 512 };

/* The value behind "NAME=" in this part of a wish, or NULL. */
static const char *value_of(const char *field, const char *name)
{
    size_t length = strlen(name);
    return strncmp(field, name, length) == 0 && field[length] == '=' ? field + length + 1 : NULL;
}

static bool is_number(const char *text, uint64_t number)
{
    char *end;
    return strtoull(text, &end, 10) == number && end != text && *end == '\0';
}

static bool claim(const char *path)
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

/* Whether a wish, which is cut into pieces on the way, means this place; *number is its signal. */
static bool matches(char *request, const tdm_test_point *at, const char **file, int *number)
{
    char *rest = NULL;
    const char *field = strtok_r(request, ":", &rest), *value;
    bool meant = field && strcmp(field, at->phase) == 0;
    while (meant && (field = strtok_r(NULL, ":", &rest)) != NULL) {
        if ((value = value_of(field, "step")) != NULL)
            meant = is_number(value, at->step);
        else if ((value = value_of(field, "rank")) != NULL)
            meant = at->rank >= 0 && is_number(value, (uint64_t)at->rank);
        else if ((value = value_of(field, "part")) != NULL)
            meant = is_number(value, at->part);
        else if ((value = value_of(field, "signal")) != NULL)
            *number = strcmp(value, "STOP") == 0 ? SIGSTOP : SIGKILL;
        else if ((value = value_of(field, "file")) != NULL)
            *file = value;
    }
    return meant;
}

void tdm_os_test_point(const tdm_test_point *at)
{
    const char *requests = getenv("TANDEM_TEST_KILL");
    while (requests && *requests) {
        char request[WISH_BYTES];
        size_t length = strcspn(requests, ",");
        const char *file = NULL;
        int number = SIGKILL;
        if (length < sizeof(request)) {
            memcpy(request, requests, length);
            request[length] = '\0';
            if (matches(request, at, &file, &number) && claim(file)) raise(number);
        }
        requests += length + (requests[length] == ',');
    }
}
