/*
 * simulator.h: a world of many ranks in one process, with one seed, in virtual time.
 *
 * Every rank is a coroutine that runs an ordinary function on an ordinary tdm_comm; engine, groups
 * and collectives are the real ones, only transport and control are simulated. Virtual time
 * advances when all ranks wait, so a deadline of 30 s costs nothing. All random choices come from
 * the seed: the same options give the same run, event by event, which `hash` proves. Latency,
 * bandwidth, jitter, loss, crashes, slow ranks and partitions are set by options or chosen at
 * random. Tests link the simulator; it is not part of libtandem.so.
 */
#ifndef TANDEM_SIM_SIMULATOR_H
#define TANDEM_SIM_SIMULATOR_H

#include <tandem/comm.h>

typedef enum tdm_sim_fault_kind {
    TDM_SIM_CRASH = 1, /* `rank` stops for good; the others are notified after detect_s */
    TDM_SIM_STALL,     /* `rank` stops until `until_s`; the others are not notified */
    TDM_SIM_SLOW,      /* `rank` takes `factor` times as long for everything until `until_s` */
    TDM_SIM_PARTITION, /* ranks below `rank` and the others cannot communicate until `until_s` */
    TDM_SIM_CUT,       /* the link between `rank` and `other` delivers nothing until `until_s` */
    TDM_SIM_DELAY,     /* messages to or from `rank` take `factor` seconds longer until `until_s` */
    TDM_SIM_VANISH     /* the next message from `rank` to `other` never arrives */
} tdm_sim_fault_kind;

typedef struct tdm_sim_fault {
    tdm_sim_fault_kind kind;
    double at_s, until_s; /* until_s 0: forever */
    int rank, other;
    double factor;
} tdm_sim_fault;

/* Zero means the default in parentheses. */
typedef struct tdm_sim_options {
    uint64_t seed;
    int size;
    int ranks_per_host; /* topology seen by collectives (1) */
    double latency_s;   /* (20e-6) */
    double jitter_s;    /* uniform in [0, jitter_s], for each message (0) */
    double bandwidth;   /* outgoing bytes per second of each rank (10e9) */
    double loss;        /* probability that a packet is lost and resent after `resend_s` (0) */
    double resend_s;    /* (0.2) */
    double detect_s;    /* from a crash to the notification of the others (0.01) */
    double deadline_s;  /* of calls (30) */
    double max_s;       /* virtual time after which a run counts as hung (3600) */
    size_t stack_bytes; /* of each rank's coroutine (256 KB) */
    const tdm_sim_fault *faults;
    int fault_count;
} tdm_sim_options;

typedef struct tdm_sim_result {
    double virtual_s;
    uint64_t message_count, event_count;
    uint64_t hash;      /* over every event in order */
    int finished_count; /* ranks whose function returned */
    int crashed_count;  /* stopped for good, by a crash or an endless stall */
    int hung_count;     /* ranks that neither returned nor crashed within max_s: a defect */
} tdm_sim_result;

typedef void (*tdm_sim_fn)(tdm_comm *comm, void *user);

/* Runs `fn` once for each rank, concurrently, until all have returned, crashed or hung. */
tdm_status tdm_sim_run(const tdm_sim_options *options, tdm_sim_fn fn, void *user,
                       tdm_sim_result *out, tdm_error *err);

/* For use in `fn`: this rank's virtual clock. */
double tdm_sim_now_s(const tdm_comm *comm);
/* For use in `fn`: spends virtual time computing. */
void tdm_sim_compute(tdm_comm *comm, double seconds);

#endif
