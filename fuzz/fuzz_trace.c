/*
 * fuzz_trace.c: any bytes as a rank's trace.
 *
 * Nothing may crash, leak or read past the end. If the reader accepts the bytes, the result is
 * checked: a valid rank, terminated and printable texts, events of known kinds with a peer in the world. The
 * text of each event and the state derived from all events must be available whatever the events contain.
 * The header has a checksum that a fuzzer cannot guess, so it is corrected first for inputs that begin with
 * the magic bytes. Inputs are short; the rest of the ring is zeros.
 */
#include "trace/trace.h"
#include "trace/trace_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

__attribute__((noreturn)) static void broken(const char *what)
{
    fprintf(stderr, "fuzz_trace: %s\n", what);
    abort();
}

#define NEED(condition, what)                                                                      \
    do {                                                                                           \
        if (!(condition)) broken(what);                                                            \
    } while (0)

static void check_text(const char *text, size_t bytes)
{
    size_t length = strnlen(text, bytes);
    NEED(length < bytes, "a text does not end");
    for (size_t i = 0; i < length; i++) NEED(text[i] >= ' ' && text[i] <= '~', "odd text");
}

static void check_parsed(const tdm__trace_parsed *p)
{
    const tdm_trace_rank *r = &p->rank;
    NEED(r->rank >= 0 && r->rank < r->size && r->size <= TDM_MAX_RANKS, "a rank that cannot be");
    NEED(r->event_count <= TDM_TRACE_EVENTS, "too many events");
    check_text(r->host, sizeof(r->host));
    check_text(r->transport, sizeof(r->transport));
    check_text(p->boot, sizeof(p->boot));
    tdm__stand *stand = calloc(1, sizeof(*stand));
    NEED(stand, "no memory");
    tdm_str text = TDM_STR_INIT;
    for (size_t i = 0; i < r->event_count; i++) {
        const tdm_trace_event *e = &r->events[i];
        NEED(e->kind > TDM_TRACE_NONE && e->kind <= TDM_TRACE_MARK, "an unknown kind");
        NEED(e->peer >= -1 && e->peer < r->size, "a peer that cannot be");
        NEED(!(e->reserved[0] | e->reserved[1] | e->reserved[2]), "a stamp was left");
        tdm_str_clear(&text);
        tdm_trace_event_text(e, &text);
        NEED(text.length > 0, "an event without a text");
        tdm__stand_fold(stand, e);
    }
    NEED(stand->call_count <= TDM__STAND_CALLS && stand->wait_count <= TDM__STAND_WAITS,
         "more calls than there is room for");
    tdm_str_release(&text);
    free(stand);
}

static void parse(const void *bytes, size_t count)
{
    tdm_error err = {0};
    tdm__trace_parsed parsed;
    tdm_status status = tdm__trace_parse(bytes, count, "fuzz", &parsed, &err);
    if (status != TDM_OK) {
        NEED(err.status == status && strncmp(err.message, "fuzz: ", 6) == 0,
             "a failure without a message");
        return;
    }
    check_parsed(&parsed);
    free((void *)(uintptr_t)parsed.rank.events);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    parse(bytes, count);
    if (count < 8 || memcmp(bytes, TDM__TRACE_MAGIC, 8) != 0) return 0;
    tdm__trace_ring *ring = calloc(1, sizeof(*ring));
    NEED(ring, "no memory");
    size_t head = count < sizeof(tdm__trace_header) ? count : sizeof(tdm__trace_header);
    memcpy((void *)ring, bytes, head);
    size_t left = count - head;
    if (left > sizeof(ring->words)) left = sizeof(ring->words);
    memcpy((void *)ring->words, bytes + head, left);
    ring->header.check = tdm__trace_header_sum(&ring->header);
    parse(ring, sizeof(*ring));
    free(ring);
    return 0;
}
