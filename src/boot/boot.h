/*
 * boot.h: internal interface of src/boot, which connects a rank with its world.
 *
 * environment.c reads the rank from the launcher's variables, boot_rendezvous.c finds the hub, boot_join.c
 * joins it, control_hub.c is the hub, control.c its client, and boot.c combines them.
 */
#ifndef TANDEM_BOOT_BOOT_H
#define TANDEM_BOOT_BOOT_H

#include "base/base.h"
#include "boot/control.h"
#include "boot/control_channel.h"
#include "net/refusal.h"
#include "os/os.h"
#include "os/thread.h"

#include <pthread.h>

enum {
    TDM__MAX_KEY = 640,        /* bytes of a secret together with that of a rendezvous file */
    TDM__MAX_RENDEZVOUS = 1024 /* bytes of a rendezvous as text */
};

/* ---- environment.c ----------------------------------------------------------------------------- */

/* The rendezvous from the launcher's variables, if none is given. TDM_ERR_INVALID, with what to set: they are
 * not sufficient. */
tdm_status tdm__rendezvous_guess(const tdm_comm_options *options, char out[TDM__MAX_RENDEZVOUS],
                                 tdm_error *err);
/* The first host of Slurm's "node[01-03,7],b": "node01". False: the list is invalid. */
bool tdm__slurm_first_host(const char *list, char *out, size_t bytes);
/* The number of tasks on this node (from 0) in Slurm's list "2(x3),1"; -1: unknown. */
int tdm__slurm_tasks_of(const char *list, long node);
/* The identity of this host, and its name. Ranks with the same identity can share memory. `given` or TANDEM_HOST
 * replace both; NULL: use those of the system. */
tdm_status tdm__host_identity(const char *given, uint8_t out[TDM_SHA256_BYTES], char name[64],
                              tdm_error *err);
/* Seconds of silence after which a rank counts as lost: TANDEM_SILENCE, or TDM__TIMING_BOOT_SILENCE_S. */
double tdm__silence_s(void);
/* The silence after which a rank or the hub counts as lost: several times its longest silence so far, but not
 * less than `min_s` and not more than a multiple of it. */
double tdm__silence_max_s(double min_s, double longest_s, int size);
/* Whether a process of this host is silent for too long only because the host is busy: it is alive, not stopped
 * and makes progress. `min_s` is the shortest silence that is too long; beyond a multiple of it the result is
 * always false. */
bool tdm__silence_is_slowness(tdm_process_watch *watch, uint64_t pid, double silent_s,
                              double min_s);

/* ---- boot_rendezvous.c -------------------------------------------------------------------------- */

typedef enum tdm__meeting { TDM__MEET_TCP, TDM__MEET_UNIX, TDM__MEET_FILE } tdm__meeting;

typedef struct tdm__rendezvous {
    tdm__meeting kind;
    char text[TDM__MAX_RENDEZVOUS]; /* as given, for messages */
    char host[256], port[8];        /* TCP */
    char name[108];                 /* UNIX: name of the abstract socket */
    char path[TDM__MAX_RENDEZVOUS]; /* FILE */
    char secret[TDM_SECRET_BYTES];  /* as given; may be empty */
    char key[TDM__MAX_KEY];         /* the key of the proofs */
    uint64_t stamp;                 /* FILE: hash of the bytes written or read */
    tdm__cancellation cancellation; /* ends the waits below early */
} tdm__rendezvous;

tdm_status tdm__rendezvous_init(tdm__rendezvous *meeting, const char *text, const char *secret,
                                tdm_error *err);
/* Overwrites the secret and the key when no further proof is needed. */
void tdm__rendezvous_wipe(tdm__rendezvous *meeting);
/* Whether it is HOST:0 or "unix:": rank 0 chooses the port or the name. */
bool tdm__rendezvous_is_open(const tdm__rendezvous *meeting);
/* Rank 0: opens a listening, non-blocking socket, and writes the file of a FILE rendezvous. A chosen port is set
 * in `port` and `text`. */
tdm_status tdm__rendezvous_listen(tdm__rendezvous *meeting, double until_s, int *out_fd,
                                  tdm_error *err);
/* The other ranks: one attempt of at most about two seconds. TDM_ERR_NOT_FOUND: try again; any other error is
 * final. */
tdm_status tdm__rendezvous_connect(tdm__rendezvous *meeting, double until_s, int *out_fd,
                                   tdm_error *err);
/* Whether the file has changed since it was read: then a refusal may be outdated. */
bool tdm__rendezvous_changed(const tdm__rendezvous *meeting);
/* Rank 0: removes the file if it is still the one that was written. */
void tdm__rendezvous_remove(const tdm__rendezvous *meeting);

/* boot_file.c: the rendezvous file. */
typedef struct tdm__meeting_file {
    char host[TDM_SHA256_HEX]; /* identity of the host of rank 0 */
    long pid;
    char host_name[64];
    char secret[40];
    char address[8][64]; /* without the port */
    int address_count;
    int port;
} tdm__meeting_file;
tdm_status tdm__meeting_file_write(const char *path, const tdm__meeting_file *file,
                                   uint64_t *out_stamp, tdm_error *err);
/* TDM_ERR_NOT_FOUND: there is none, or it is still empty. */
tdm_status tdm__meeting_file_read(const char *path, tdm__meeting_file *out, uint64_t *out_stamp,
                                  tdm_error *err);
/* Parses the file from memory; also used by the fuzzer. */
bool tdm__meeting_file_parse(const char *bytes, size_t count, tdm__meeting_file *out);

/* ---- boot_join.c -------------------------------------------------------------------------------- */

/* What a rank sends when it joins, and the settings of joining. */
typedef struct tdm__facts {
    int rank, size;
    uint32_t epoch;
    char job[512];
    uint8_t host[TDM_SHA256_BYTES];
    char host_name[64];
    double join_s, deadline_s, silence_s;
    tdm__cancellation cancellation; /* of joining */
    tdm__refusal refusal;
    tdm_security security;
    tdm__tls_context *tls; /* NULL: no encryption */
} tdm__facts;

/* The result of joining. The caller releases `channel` and frees `entries` (by rank). */
typedef struct tdm__joined {
    tdm__channel channel;
    uint32_t world;
    uint8_t key[TDM__WORLD_KEY];
    tdm__endpoint here, rank_0; /* both ends of the connection */
    tdm__entry *entries;
} tdm__joined;

/* Joins through `fd` (taken) unless it is -1; otherwise tries to connect until join_s is over. */
tdm_status tdm__join(const tdm__facts *facts, tdm__rendezvous *meeting, int fd, tdm__joined *out,
                     tdm_error *err);

/* The response to a challenge, of one of the two sides; or the TLS key, which both compute. */
typedef enum tdm__prover { TDM__PROVER_RANK, TDM__PROVER_HUB, TDM__PROVER_TLS } tdm__prover;
tdm_status tdm__prove(tdm__prover who, const char *key, const tdm__frame *prove,
                      const uint8_t hub_nonce[TDM__WIRE_NONCE], uint8_t out[TDM_SHA256_BYTES]);
/* Encrypts a channel after the proofs, if its protection requires it. */
tdm_status tdm__channel_secure(tdm__channel *channel, const tdm__facts *facts, const char *key,
                               const tdm__frame *prove, const uint8_t hub_nonce[TDM__WIRE_NONCE],
                               bool is_server, tdm_error *err);
/* Compares in constant time. */
bool tdm__proof_equal(const uint8_t *a, const uint8_t *b);

/* ---- control_hub.c ------------------------------------------------------------------------------ */

typedef struct tdm__hub tdm__hub;

typedef struct tdm__hub_options {
    const tdm__facts *facts; /* of rank 0; those of the other ranks must match */
    const char *key;
    int listen_fd; /* taken; -1: no other rank can join */
    int inner_fd;  /* taken: the hub's end of the connection of rank 0 */
    uint32_t world;
    uint8_t nonce[TDM__WIRE_NONCE]; /* the key of the world is derived from it */
} tdm__hub_options;

tdm_status tdm__hub_create(const tdm__hub_options *options, tdm__hub **out, tdm_error *err);
/* Sends a BYE to all members and frees the hub. Takes a fraction of a second at most. */
void tdm__hub_destroy(tdm__hub *hub);

/* ---- control.c ---------------------------------------------------------------------------------- */

typedef struct tdm__control_parts {
    const tdm__facts *facts;        /* its tls is taken on success */
    tdm__joined *joined;            /* taken, also on failure */
    tdm__hub *hub;                  /* rank 0: taken on success */
    const tdm__rendezvous *meeting; /* copied; NULL: none */
} tdm__control_parts;
tdm_status tdm__control_create(const tdm__control_parts *parts, tdm__control **out, tdm_error *err);

/* Seconds between two heartbeats in a world of this size. */
double tdm__beat_s(int size);

#endif
