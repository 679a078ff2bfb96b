/*
 * trace_file.h: the format of a rank's trace file: one page of header, then the ring buffer.
 *
 *   0                                                4,096     4,160     4,224
 *   +-------------------------+--------------+---------+---------+---------+- - -+-------------+
 *   | fixed part: magic, rank,| head, closed |         | event 0 | event 1 |     | event 4,095 |
 *   | clocks, host, checksum  | (a cache line|         |         |         |     |             |
 *   |                         |  for itself) |         | 64 B    |         |     |             |
 *   +-------------------------+--------------+---------+---------+---------+- - -+-------------+
 *   |<- tdm__trace_header, then zeros to the page ->|  |<- the ring buffer
 *
 * The fixed part of the header is written before the file gets its name. The variable part has the
 * number of events ever begun (`head`), and whether the rank closed its comm. Event number n is in
 * slot n modulo the ring's size. An event is 8 words of 8 bytes; word 5 is its seal:
 *
 *   byte 40  41             44             48
 *        +---+--------------+--------------+
 *        |dty| stamp        | step         |    stamp: 23 bits of the round (n divided by the ring's
 *        |pe | (`reserved`) |              |    size, plus one); the highest bit: busy
 *        +---+--------------+--------------+
 *
 * A writer takes a slot by setting the busy bit, fills the other words, and stores the seal with
 * the bit cleared.
 *
 * Invariant: an event whose seal has the stamp of its number, and has not changed while it was
 * copied, is complete. All others are skipped: a killed writer leaves at most one for each of its
 * threads.
 */
#ifndef TANDEM_TRACE_TRACE_FILE_H
#define TANDEM_TRACE_TRACE_FILE_H

#include <tandem/trace.h>

#include <stdatomic.h>

#define TDM__TRACE_MAGIC "TDMTRACE"
enum {
    TDM__TRACE_VERSION = 1,
    TDM__TRACE_HEADER_BYTES = 4096,
    TDM__TRACE_WORDS = 8,     /* of an event */
    TDM__TRACE_SEAL = 5,      /* the word that holds the stamp */
    TDM__TRACE_STAMP_AT = 8,  /* the stamp's lowest bit in the seal */
    TDM__TRACE_BUSY = 1 << 23 /* in the stamp: being written */
};
#define TDM__TRACE_STAMPS 0xffffffu /* the bits of a stamp */
#define TDM__TRACE_ROUNDS 0x7fffffu /* the bits of a stamp that count rounds */

typedef struct tdm__trace_header {
    char magic[8];
    uint32_t version, header_bytes, event_bytes, event_count;
    int32_t rank, size;
    uint32_t epoch;
    uint32_t unused;
    int64_t pid;
    uint64_t pid_start;         /* in clock ticks since boot: process IDs are reused */
    uint64_t clock_ns, unix_ns; /* both clocks at one moment */
    char host[64];
    char transport[16];
    char boot[40]; /* the machine's boot ID: ranks of one boot share a clock */
    uint64_t check;
    /* The variable part. */
    _Alignas(64) _Atomic uint64_t head; /* number of events ever begun */
    _Atomic uint32_t closed;
} tdm__trace_header;

/* The complete file, as mapped. */
typedef struct tdm__trace_ring {
    union {
        tdm__trace_header header;
        uint8_t page[TDM__TRACE_HEADER_BYTES];
    };
    _Atomic uint64_t words[TDM_TRACE_EVENTS][TDM__TRACE_WORDS];
} tdm__trace_ring;
_Static_assert(sizeof(tdm_trace_event) == TDM__TRACE_WORDS * 8, "an event has 64 bytes");
_Static_assert(offsetof(tdm_trace_event, dtype) == TDM__TRACE_SEAL * 8, "the offset of the seal");
_Static_assert(offsetof(tdm_trace_event, reserved) == TDM__TRACE_SEAL * 8 + 1,
               "the offset of the stamp");
_Static_assert(sizeof(tdm__trace_ring) ==
                   TDM__TRACE_HEADER_BYTES + TDM_TRACE_EVENTS * sizeof(tdm_trace_event),
               "no padding in the file");

/* The checksum of the fixed part. */
uint64_t tdm__trace_header_sum(const tdm__trace_header *header);
/* The stamp of event number `number` when it is complete. */
static inline uint32_t tdm__trace_stamp(uint64_t number)
{
    return (uint32_t)(number / TDM_TRACE_EVENTS + 1) & TDM__TRACE_ROUNDS;
}
static inline uint32_t tdm__trace_stamp_of(uint64_t seal)
{
    return (uint32_t)(seal >> TDM__TRACE_STAMP_AT) & TDM__TRACE_STAMPS;
}

/* Copies event `number` of a ring that may be written concurrently. False if it is not complete. */
bool tdm__trace_copy(const tdm__trace_ring *ring, uint64_t number, tdm_trace_event *out);
/* The boot ID of this machine, and when process `pid` (0: this one) started; "" and 0 if they are
 * unknown, or the process does not exist. */
void tdm__trace_boot(char out[40]);
uint64_t tdm__trace_pid_start(int64_t pid);

/*
 * Parses a complete file in memory, which does not change; `name` is used in messages. The events
 * are allocated by malloc and owned by the caller. The bytes are untrusted: TDM_ERR_FORMAT
 * describes what is wrong. `unix_offset_ns`, `host` and so on are as in the header; invalid events
 * are skipped.
 */
typedef struct tdm__trace_parsed {
    tdm_trace_rank rank;
    char boot[40];
    uint64_t start_ns; /* wall-clock time of its creation */
    uint64_t pid_start;
} tdm__trace_parsed;
tdm_status tdm__trace_parse(const void *bytes, size_t count, const char *name,
                            tdm__trace_parsed *out, tdm_error *err);

/*
 * Whether two events of one rank belong to the same call. Collectives are numbered in their group;
 * sends and receives separately, by peer, tag (their step) and direction.
 */
bool tdm__trace_same_call(const tdm_trace_event *a, const tdm_trace_event *b);
static inline bool tdm__trace_is_pair(const tdm_trace_event *event)
{
    return event->call >= TDM_CALL_SEND;
}
static inline bool tdm__trace_receives(const tdm_trace_event *event)
{
    return event->call == TDM_CALL_RECV || event->kind == TDM_TRACE_RECEIVED;
}

/* "all_reduce #17 of world": the call of an event. */
void tdm__trace_call_text(const tdm_trace_event *event, tdm_str *out);

/* The state of a rank, computed from its events: fold them in one by one, the oldest first. */
enum { TDM__STAND_CALLS = 64, TDM__STAND_WAITS = 64 };
typedef struct tdm__stand {
    int call_count; /* unfinished calls, oldest first; if there are more, the oldest are kept */
    tdm_trace_event calls[TDM__STAND_CALLS];
    int wait_count;
    tdm_trace_event waits[TDM__STAND_WAITS]; /* WAIT events without their RESUME */
    tdm_trace_event last;                    /* the newest event; kind NONE: there is none */
    tdm_trace_event ended;                   /* the newest END */
} tdm__stand;
/* Updates the state by an event; `stand` is initially zero. */
void tdm__stand_fold(tdm__stand *stand, const tdm_trace_event *event);

#endif
