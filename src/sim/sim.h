/*
 * sim.h: shared declarations of the simulator (simulator.h has its interface).
 *
 * There is one thread. Each rank is a coroutine (sim_fiber.c). The scheduler (sim_schedule.c) takes
 * the next event from a heap ordered by (time, number) and executes it, which may let a rank run
 * until it waits again. Ranks affect each other only through events: a message (sim_transport.c) or
 * news (sim_control.c) is put into the inbox of a rank, and the rank is woken. sim_network.c
 * computes delays and the effect of faults.
 *
 * Invariants:
 *  1. Nothing depends on the machine's clock, on addresses, or on any order except that of events;
 *     random values are drawn from the seed, in the order of events.
 *  2. A rank that crashed or hangs is never resumed. Its resources are released after the run, from
 *     outside: it is `dead` then, and its transport and control do nothing.
 *  3. A coroutine waits without the lock of its comm.
 */
#ifndef TANDEM_SIM_SIM_H
#define TANDEM_SIM_SIM_H

#include "base/base.h"
#include "boot/control.h"
#include "sim/simulator.h"
#include "transport/transport.h"

typedef struct tdm__sim tdm__sim;
typedef struct tdm__sim_rank tdm__sim_rank;

/* ---- coroutines (sim_fiber.c) ---------------------------------------------------------------- */

typedef struct tdm__fiber tdm__fiber;

/* `count` coroutines, each with a stack of `stack_bytes` and a guard page below it. Only the
 * touched parts of the stacks use memory. */
typedef struct tdm__fibers {
    uint8_t *region;
    size_t region_bytes, stack_bytes, pitch;
    tdm__fiber *list;
    int count;
} tdm__fibers;

tdm_status tdm__fibers_init(tdm__fibers *fibers, int count, size_t stack_bytes, tdm_error *err);
void tdm__fibers_release(tdm__fibers *fibers); /* also of coroutines that have not ended */
/* Sets the entry function of coroutine `index`; it must not return, but call tdm__fiber_end. */
void tdm__fiber_set(tdm__fibers *fibers, int index, void (*entry)(void *), void *argument);
/* From the scheduler: runs a coroutine until it leaves. */
void tdm__fiber_enter(tdm__fibers *fibers, int index);
/* From the coroutine: returns to the scheduler; continues when it is entered again. */
void tdm__fiber_leave(tdm__fibers *fibers, int index);
/* From the coroutine: returns to the scheduler for good. */
void tdm__fiber_end(tdm__fibers *fibers, int index);

/* ---- events ---------------------------------------------------------------------------------- */

typedef enum tdm__sim_event_kind {
    TDM__SIM_TIMER = 1, /* a wait of `rank` may have timed out */
    TDM__SIM_RESUME,    /* `rank` has something in its inbox */
    TDM__SIM_CRASH_NOW, /* fault number `rank` */
    TDM__SIM_ARRIVE,    /* the head of `message` arrives, with its payload if small */
    TDM__SIM_LEFT,      /* a small `message` has left the sender */
    TDM__SIM_GO,        /* receiver to sender of a large `message`: send the payload */
    TDM__SIM_DATA,      /* the payload of a large `message` */
    TDM__SIM_DROPPED,   /* receiver to sender: the payload is not needed */
    TDM__SIM_NEWS_TO,   /* `news` to `rank` */
    TDM__SIM_NEWS_ALL,  /* `news` to all ranks except its subject */
    TDM__SIM_CUT_OFF,   /* the transport of `rank` notices that `other` is gone */
    TDM__SIM_MEET       /* the exchange that `rank` is in is complete, or failed */
} tdm__sim_event_kind;

typedef struct tdm__sim_news tdm__sim_news;

typedef struct tdm__sim_event {
    double time_s;
    uint64_t number;
    tdm__sim_event_kind kind;
    int rank, other;
    tdm__arrival *message; /* holds a reference */
    tdm__sim_news *news;   /* holds a reference */
} tdm__sim_event;

/* News, shared by all recipients. */
struct tdm__sim_news {
    int references;
    tdm__news news; /* text points to `text` */
    char text[];
};

/* An entry in a rank's inbox. */
typedef enum tdm__sim_note_kind {
    TDM__SIM_NOTE_ARRIVED = 1,
    TDM__SIM_NOTE_RECEIVED,
    TDM__SIM_NOTE_SENT,
    TDM__SIM_NOTE_LOST
} tdm__sim_note_kind;

typedef struct tdm__sim_note {
    struct tdm__sim_note *next;
    tdm__sim_note_kind kind;
    tdm_status status;
    tdm__arrival *message; /* holds a reference; NULL for LOST */
    int peer;
} tdm__sim_note;

/* ---- messages -------------------------------------------------------------------------------- */

/* Payloads up to this size are sent with their head and copied when sent; larger ones stay at the
 * sender until the receiver requests them, and are copied from buffer to buffer. */
enum { TDM__SIM_EAGER_BYTES = 4096 };

struct tdm__arrival {
    tdm__sim *sim;
    int references;
    int source, target;
    bool eager;
    bool
        sender_ended; /* sent() was called or the sender is gone: `data` and `cookie` are invalid */
    bool receiver_ended; /* received() was called, or the message was dropped */
    double left_s;       /* when its last byte has left the sender */
    const void *data;
    void *cookie;
    void *into; /* set by take() */
    void *take_cookie;
    tdm__arrival *send_next, **send_link; /* in the sender's list until sender_ended; then in
                                             sim.spent */
    tdm__arrival *take_next, **take_link; /* in the receiver's list from take() to its end */
    tdm__head head;
    uint8_t payload[];
};

void tdm__sim_message_release(tdm__arrival *message);
void tdm__sim_free_spent(tdm__sim *sim);
void tdm__sim_news_release(tdm__sim_news *news);

/* ---- ranks ----------------------------------------------------------------------------------- */

typedef enum tdm__sim_state {
    TDM__SIM_RUNS = 0, /* or has not started */
    TDM__SIM_WAITS,    /* until wake_s, or until something is in the inbox */
    TDM__SIM_FINISHED,
    TDM__SIM_CRASHED, /* or stopped forever */
} tdm__sim_state;

typedef struct tdm__sim_transport {
    tdm__transport base;
    tdm__sim_rank *rank;
    tdm__transport_events events;
} tdm__sim_transport;

typedef struct tdm__sim_control {
    tdm__control base;
    tdm__sim_rank *rank;
    tdm__control_events events; /* news is NULL before listen() */
} tdm__sim_control;

struct tdm__sim_rank {
    tdm__sim *sim;
    int rank;
    tdm__sim_state state;
    bool dead;    /* see the invariants */
    bool closing; /* is closing its comm: faults no longer stop it */
    bool woken;   /* by wake() or the inbox, since its last wait started */
    bool resume_queued;
    bool no_transport, no_control; /* closed: its inbox gets nothing more */
    int look_count;                /* consecutive polls without a wait that found nothing */
    int wait_count;                /* consecutive waits that found nothing */
    double wake_s;                 /* deadline of its wait */
    double timer_s;                /* the earliest TIMER in the heap; infinity: none */
    double stopped_s;              /* when it crashed */
    double dead_s;                 /* its clock while it is dead */
    double out_s;                  /* when its outgoing link is free again */
    tdm_comm *comm;
    tdm__sim_transport *transport;
    tdm__sim_control *control;
    tdm__sim_note *inbox, **inbox_end;
    struct tdm__sim_datagram {
        struct tdm__sim_datagram *next;
        tdm__sim_news *news;
    } * letters, **letters_end;
    tdm__arrival *sending, *taking;
    uint8_t *forgotten; /* by rank; NULL: none */
    bool in_exchange, exchange_done;
    int exchange_missing; /* the rank that is missing */
    tdm_error error;      /* why it could not start */
};

struct tdm__sim {
    tdm_sim_options options;           /* defaults filled in */
    void (*body)(tdm__sim_rank *rank); /* what a coroutine runs */
    void (*bury)(tdm__sim_rank *rank); /* releases the resources of a dead rank */
    tdm_sim_fn fn;                     /* for the body */
    void *user;
    tdm__fibers fibers;
    tdm__sim_rank *ranks;
    double now_s;
    tdm__sim_event *heap;
    size_t heap_count, heap_capacity;
    uint64_t next_number;
    tdm_rng rng;
    tdm__arrival *spent; /* messages without references; freed after each event */
    bool *vanished;      /* by fault: it has dropped its message */
    bool no_memory;
    uint32_t world;
    int open_count; /* ranks that have neither finished nor crashed */
    tdm_sim_result result;
    uint8_t **meeting; /* exchange: the block of each rank; NULL: not there yet */
    size_t *meeting_bytes;
    int meeting_count;
    uint8_t **met; /* blocks of the last complete exchange */
    size_t *met_bytes;
};

extern const tdm__transport_ops tdm__transport_sim;
tdm_status tdm__sim_transport_make(void *rank, const tdm__transport_events *events,
                                   tdm__transport **out, tdm_error *err);
tdm_status tdm__sim_control_make(tdm__sim_rank *rank, tdm__control **out, tdm_error *err);

/* ---- the scheduler (sim_schedule.c, sim_heap.c) ---------------------------------------------- */

/* Checks and copies the options; the caller sets `body` and `bury`. */
tdm_status tdm__sim_init(tdm__sim *sim, const tdm_sim_options *options, tdm_error *err);
/* Runs all ranks to their end, and fills the result. */
tdm_status tdm__sim_loop(tdm__sim *sim, tdm_error *err);
void tdm__sim_release(tdm__sim *sim);

/* Queues an event; takes the references in it. */
void tdm__sim_post(tdm__sim *sim, tdm__sim_event event);
/* Takes the next event from the heap. False: there is none. */
bool tdm__sim_next(tdm__sim *sim, tdm__sim_event *out);
void tdm__sim_event_release(const tdm__sim_event *event);
void tdm__sim_heap_release(tdm__sim *sim);
/* From the coroutine of `rank`: waits until wake_s or until it is woken. */
void tdm__sim_wait(tdm__sim_rank *rank, double wake_s);
/* Ends such a wait, or the next one immediately. */
void tdm__sim_wake(tdm__sim_rank *rank);

/* Execute events; called by the scheduler. */
void tdm__sim_message_event(tdm__sim *sim, const tdm__sim_event *event);
void tdm__sim_control_event(tdm__sim *sim, const tdm__sim_event *event);
/* Delivers the news in the inbox to the comm; called by the coroutine, without the comm's lock. */
void tdm__sim_hear(tdm__sim_rank *rank);
/* Rank `who` has crashed: schedules the notification of the others. */
void tdm__sim_tell_lost(tdm__sim *sim, int who);
/* Clear the inbox and lists of a rank that is gone. */
void tdm__sim_transport_clear(tdm__sim_rank *rank);
void tdm__sim_control_clear(tdm__sim_rank *rank);

/* ---- the network (sim_network.c) ------------------------------------------------------------- */

/* When the network between two ranks is open, at or after `at_s`; infinity: never again. */
double tdm__sim_open_s(const tdm__sim *sim, int a, int b, double at_s);
/* The travel time of a message of `bytes` bytes that departs at `at_s`, with jitter and loss. */
double tdm__sim_flight_s(tdm__sim *sim, int from, int to, uint64_t bytes, double at_s);
/* Occupies a rank's outgoing link for `bytes` bytes; returns when the last of them has left. */
double tdm__sim_depart_s(tdm__sim *sim, int rank, uint64_t bytes);
/* The factor by which everything takes longer for a rank. */
double tdm__sim_slowness(const tdm__sim *sim, int rank, double at_s);
/* When a rank that is stalled at `at_s` resumes; at_s: it is not stalled. */
double tdm__sim_awake_s(const tdm__sim *sim, int rank, double at_s);
/* Whether a fault drops the next message between the two ranks; true once per fault. */
bool tdm__sim_vanishes(tdm__sim *sim, int from, int to);

#endif
