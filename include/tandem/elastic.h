/*
 * elastic.h: membership of a session: how a worker process becomes a member.
 *
 * A session is one execution of a run, from `tandem train` to its end. Its members are worker
 * processes, each with a unique name that is never reused. They communicate through the store
 * (kv.h), below "tandem/SESSION/":
 *     about            the session: job, run directory, limits, start time (JSON)
 *     hosts/HOST       record of an agent, on its lease: address, health
 *     members/ID       record of a worker, on its lease: host, process, phase, step, speed
 *     dead/ID          a worker is known to be dead (written by its agent), with the reason
 *     reports/N/ID     a member has left epoch N: the reason, and the members it could not reach
 *     epoch            the current epoch: its number and members, in order of rank
 *     state            the last epoch that began with one state, and the hosts that have it
 *     door/N           endpoint of rank 0 in epoch N
 *     wishes/...       requests of users: stop, leave, save
 *     saved            result of the last requested checkpoint
 *     verdict          result of the run; after this nothing is started
 * `epoch` is changed only by compare-and-swap, so there is one sequence of epochs, no matter which
 * member proposes them.
 *
 * All values are JSON objects, except door/N, which is the address. These fields are read by
 * processes other than their writer; values may have more fields:
 *     about            expected: number of workers started at the beginning
 *     hosts/HOST       vault (id of its shared memory segment), workers, starting (numbers)
 *     members/ID       host, slot, pid, agent (process that started it), orphan (that agent is
 *                      gone), born (revision of its first record), ready (waits to join, or is a
 *                      member), vault (as above), epoch (its last one; 0: none), phase, step, steps,
 *                      speed, sent and compression (with compress), run, lease_s
 *     dead/ID          why ("killed by signal 9"), at (tdm_kv_now of its host when the death was
 *                      detected)
 *     reports/N/ID     why, regroup (true: nothing failed), whole (it has the state),
 *                      lost: [ID, ...], the members that it could not reach,
 *                      closed: [ID, ...], the lost ones whose connection was closed without a BYE,
 *                      refused: [ID, ...], those to which no connection is possible (certificates),
 *                      refusal: why
 *     epoch            number, members: [{id, host, pid}, ...], left: [{id, why, refused}, ...], by
 *     state            epoch, holders: [{host, vault}, ...], the hosts with the newest state
 *     wishes/stop, wishes/leave/ID, wishes/save/DRAWN   why (optional)
 *     saved            step, path, status (a number; 0: it is on disk), message
 *     verdict          status (a number; 0: success), message, by
 *
 * When a member fails, the others leave the epoch and report. The reporter with the lowest rank
 * waits until every member that is not known to be dead has reported, or its time is up. It then
 * proposes the next epoch: the reporters that reach each other, and members that wait to join, up
 * to the maximum. If the network is partitioned, the larger side continues; of equal sides, the one
 * with the lowest rank. A member that finds an epoch without itself is fenced: it leaves and writes
 * nothing. A member that cannot reach the store for the length of its lease, and for at least 10 s,
 * leaves as well.
 */
#ifndef TANDEM_ELASTIC_H
#define TANDEM_ELASTIC_H

#include <tandem/base.h>
#include <tandem/kv.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TDM_MAX_EPOCH_RANKS = 512 }; /* members of an epoch */
enum {
    TDM_MEMBER_ID_BYTES = 64,
    TDM_HOST_BYTES = 64,
    TDM_ENDPOINT_BYTES = 256,
    TDM_LOST_BYTES = 512
};

typedef struct tdm_member tdm_member;

/* Zero means the default in brackets. */
typedef struct tdm_member_options {
    tdm_kv_options kv;
    const char *session;
    const char *id;   /* never reused: "HOST.SLOT.RANDOM" */
    const char *host; /* members with the same host name share memory */
    int slot;         /* on its host */
    int64_t agent;    /* the process that started it and watches it; 0: none */
    int min, max;     /* members of an epoch (1, no limit) */
    double wait_s;    /* time to wait for the minimum before the run is aborted (600) */
    double lease_s; /* time without a heartbeat until a member counts as gone (adaptive: 1 to 30) */
    double report_s;      /* time for the others to report after an epoch has failed (2) */
    uint64_t shm_id;      /* the shared memory segment with its part of the state (tdm_shm_id) */
    bool needs_all_hosts; /* each host holds a part of the state that no other host has */
    bool is_begun; /* a launcher wrote the session to the store: if missing there, it ended */
} tdm_member_options;

/* Reads TANDEM_MEMBER and the related environment variables, which an agent sets. TDM_ERR_NOT_FOUND
 * if they are not set. The strings live as long as the environment. */
TDM_API tdm_status tdm_member_environment(tdm_member_options *out, tdm_error *err);

/* Registers a member that waits to join. A thread renews its lease, watches the other members and
 * publishes the status from `tdm_member_tell`. */
TDM_API tdm_status tdm_member_create(const tdm_member_options *options, tdm_member **out,
                                     tdm_error *err);
/* Removes the member's record from the store. */
TDM_API void tdm_member_destroy(tdm_member *member);
TDM_API const char *tdm_member_id(const tdm_member *member);

#ifdef __cplusplus
}
#endif
#endif
