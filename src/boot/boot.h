/*
 * boot.h: what the files that bring a rank into its world share.
 *
 * environment.c says where this process stands, boot_rendezvous.c how the hub is reached, boot_join.c
 * how a rank proves that it belongs, control_hub.c is the hub, control.c a rank's side of it, and
 * boot.c puts them together.
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
    TDM__MAX_KEY = 640,        /* bytes of a secret, with what a rendezvous file adds */
    TDM__MAX_RENDEZVOUS = 1024 /* bytes of a rendezvous as it is written */
};

/* ---- environment.c ----------------------------------------------------------------------------- */

/* Where to meet when nobody said it: from what the launcher set. NOT_FOUND, saying what to set, when
 * that is not enough. */
tdm_status tdm__rendezvous_guess(const tdm_comm_options *options, char out[TDM__MAX_RENDEZVOUS],
                                 tdm_error *err);
/* The first host of Slurm's "node[01-03,7],b": "node01". False when it makes no sense. */
bool tdm__slurm_first_host(const char *list, char *out, size_t bytes);
/* How many tasks this node (from 0) has by Slurm's "2(x3),1"; -1 when it does not say. */
int tdm__slurm_tasks_of(const char *list, long node);
/* The machine's identity: ranks with the same one can share memory. And its name. `given`, or
 * TANDEM_HOST, stands in for both; NULL: the machine's own. */
tdm_status tdm__host_identity(const char *given, uint8_t out[TDM_SHA256_BYTES], char name[64],
                              tdm_error *err);
/* Seconds of silence after which a rank is given up: TANDEM_SILENCE, or 5. */
double tdm__silence_s(void);
/* Whether a silence of a process of this host, which is too long for one that runs well, comes from a busy
 * host: the process lives, is not stopped, and makes progress. Not for ever: the most is many times
 * `least_s`, the shortest silence that is too long. */
bool tdm__silence_is_slowness(tdm_process_watch *watch, uint64_t pid, double silent_s,
                              double min_s);

/* ---- boot_rendezvous.c -------------------------------------------------------------------------- */

typedef enum tdm__meeting { TDM__MEET_TCP, TDM__MEET_UNIX, TDM__MEET_FILE } tdm__meeting;

typedef struct tdm__rendezvous {
    tdm__meeting kind;
    char text[TDM__MAX_RENDEZVOUS]; /* as it was given, for messages */
    char host[256], port[8];        /* TCP */
    char name[108];                 /* UNIX: of the abstract socket */
    char path[TDM__MAX_RENDEZVOUS]; /* FILE */
    char secret[TDM_SECRET_BYTES];  /* as it was given; may be empty */
    char key[TDM__MAX_KEY];         /* what proofs are made with */
    uint64_t stamp;                 /* FILE: a hash of the bytes that were written or read */
    tdm__cancellation cancellation; /* of waits below */
} tdm__rendezvous;

tdm_status tdm__rendezvous_init(tdm__rendezvous *meeting, const char *text, const char *secret,
                                tdm_error *err);
/* Overwrites its secret and its key, when nobody needs to prove anything any more. */
void tdm__rendezvous_wipe(tdm__rendezvous *meeting);
/* Whether it is HOST:0 or unix:, for rank 0 to choose a port or a name. */
bool tdm__rendezvous_is_open(const tdm__rendezvous *meeting);
/* Rank 0: a listening, non-blocking socket; writes the file where it is one. The port that was chosen
 * stands in `port` and `text` then. */
tdm_status tdm__rendezvous_listen(tdm__rendezvous *meeting, double until_s, int *out_fd,
                                  tdm_error *err);
/* The others: one attempt, of at most about two seconds. TDM_ERR_NOT_FOUND, with the reason, when it
 * makes sense to try again; any other status when it does not. */
tdm_status tdm__rendezvous_connect(tdm__rendezvous *meeting, double until_s, int *out_fd,
                                   tdm_error *err);
/* Whether the file says something else now than when it was read: a refusal may be out of date. */
bool tdm__rendezvous_changed(const tdm__rendezvous *meeting);
/* Rank 0: removes the file if it is still the one that was written. */
void tdm__rendezvous_remove(const tdm__rendezvous *meeting);

/* boot_file.c: the file. */
typedef struct tdm__meeting_file {
    char host[TDM_SHA256_HEX]; /* rank 0's machine */
    long pid;
    char host_name[64];
    char secret[40];
    char address[8][64]; /* without the port */
    int address_count;
    int port;
} tdm__meeting_file;
tdm_status tdm__meeting_file_write(const char *path, const tdm__meeting_file *file,
                                   uint64_t *out_stamp, tdm_error *err);
/* NOT_FOUND when there is none, or one that is still empty. */
tdm_status tdm__meeting_file_read(const char *path, tdm__meeting_file *out, uint64_t *out_stamp,
                                  tdm_error *err);
/* From memory, for the above and for the fuzzer. */
bool tdm__meeting_file_parse(const char *bytes, size_t count, tdm__meeting_file *out);

/* ---- boot_join.c -------------------------------------------------------------------------------- */

/* What a rank brings. */
typedef struct tdm__facts {
    int rank, size;
    uint32_t epoch;
    char job[512];
    uint8_t host[TDM_SHA256_BYTES];
    char host_name[64];
    double join_s, deadline_s, silence_s;
    tdm__cancellation cancellation; /* while it joins */
    tdm__refusal refusal;
    tdm_security security;
    tdm__tls_context *tls; /* NULL: nothing is encrypted */
} tdm__facts;

/* What it gets. `channel` is the caller's to release, `entries` (by rank) to free. */
typedef struct tdm__joined {
    tdm__channel channel;
    uint32_t world;
    uint8_t key[TDM__WORLD_KEY];
    tdm__endpoint here, rank_0; /* both ends of the connection */
    tdm__entry *entries;
} tdm__joined;

/* Joins: through `fd` (taken) when it is not -1, else by connecting until join_s is over. */
tdm_status tdm__join(const tdm__facts *facts, tdm__rendezvous *meeting, int fd, tdm__joined *out,
                     tdm_error *err);

/* The answer to a challenge, by one of the two sides; or the key of TLS, which both compute. */
typedef enum tdm__prover { TDM__PROVER_RANK, TDM__PROVER_HUB, TDM__PROVER_TLS } tdm__prover;
tdm_status tdm__prove(tdm__prover who, const char *key, const tdm__frame *prove,
                      const uint8_t hub_nonce[TDM__WIRE_NONCE], uint8_t out[TDM_SHA256_BYTES]);
/* Encrypts the channel, whose proofs were right, if its protection says so. */
tdm_status tdm__channel_secure(tdm__channel *channel, const tdm__facts *facts, const char *key,
                               const tdm__frame *prove, const uint8_t hub_nonce[TDM__WIRE_NONCE],
                               bool is_server, tdm_error *err);
/* In a time that does not depend on where they differ. */
bool tdm__proof_equal(const uint8_t *a, const uint8_t *b);

/* ---- control_hub.c ------------------------------------------------------------------------------ */

typedef struct tdm__hub tdm__hub;

typedef struct tdm__hub_options {
    const tdm__facts *facts; /* rank 0's, which the others' are compared with */
    const char *key;
    int listen_fd; /* taken; -1: nobody else can come */
    int inner_fd;  /* taken: the hub's end of rank 0's own connection */
    uint32_t world;
    uint8_t nonce[TDM__WIRE_NONCE]; /* that the world's key is derived from */
} tdm__hub_options;

tdm_status tdm__hub_create(const tdm__hub_options *options, tdm__hub **out, tdm_error *err);
/* Tells everybody, and frees it. At most about two seconds. */
void tdm__hub_destroy(tdm__hub *hub);

/* ---- control.c ---------------------------------------------------------------------------------- */

typedef struct tdm__control_parts {
    const tdm__facts *facts;        /* its tls is taken on success */
    tdm__joined *joined;            /* taken, whatever happens */
    tdm__hub *hub;                  /* rank 0: taken on success */
    const tdm__rendezvous *meeting; /* copied; NULL: none */
} tdm__control_parts;
tdm_status tdm__control_create(const tdm__control_parts *parts, tdm__control **out, tdm_error *err);

/* Seconds between two heartbeats in a world of this size. */
double tdm__beat_s(int size);

#endif
