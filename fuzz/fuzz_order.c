/*
 * fuzz_order.c: any bytes as a file of the order of updates.
 *
 * Nothing may crash, leak or read past the end. A line that the reader accepts comes back the same after it was written;
 * a file that it accepts is an order in which every update has a model that its worker has read.
 */
#include "base/base.h"
#include "train/order_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

#define NEED(condition, what)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "fuzz_order: %s\n", what);                                             \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static void check_line(const char *text, size_t length, tdm_arena *arena, tdm_order_state *state)
{
    tdm__order_line line = {0}, back;
    char again[TDM__LINE_BYTES];
    if (!tdm__order_line_read(text, length, arena, &line)) return;
    NEED(line.entry.worker < line.of && line.of <= TDM_ORDER_MAX_WORKERS, "a worker too many");
    int bytes = tdm__order_format.show(&line, again);
    NEED(bytes > 0 && bytes < TDM__LINE_BYTES, "a line that is too long");
    NEED(tdm__order_line_read(again, (size_t)bytes - 1, arena, &back), "a line that is not read");
    NEED(memcmp(&line, &back, sizeof(line)) == 0, "another line came back");

    tdm_order_state before = *state;
    tdm_error err = {0};
    if (tdm_order_follow(state, &line.entry, &err) != TDM_OK) {
        NEED(err.message[0], "a failure without a message");
        NEED(memcmp(&before, state, sizeof(before)) == 0, "a failure that changed the state");
        return;
    }
    NEED(state->next == before.next + 1, "not one update more");
    NEED(!before.workers[line.entry.worker].waits, "an update without a model");
    bool any = false;
    for (int64_t w = 0; w < state->worker_count; w++) any = any || !state->workers[w].waits;
    NEED(any, "no worker is left");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    tdm_arena *arena = tdm_arena_create("fuzz");
    tdm_order_state state = {.worker_count = count > 0 ? 1 + bytes[0] % TDM_ORDER_MAX_WORKERS : 4,
                             .bound = count > 1 ? (int64_t)(bytes[1] % 8) - 1 : -1,
                             .rules = 3};
    const char *at = (const char *)bytes, *end = at + count;
    while (arena && count > 0 && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((newline ? newline : end) - at);
        check_line(at, length, arena, &state);
        tdm_arena_reset(arena);
        at += length + 1;
    }
    tdm_arena_destroy(arena);
    return 0;
}
