/*
 * peer_loss.h: what is known about a lost rank: how the loss was detected, and what the rank did last.
 */
#ifndef TANDEM_BOOT_PEER_LOSS_H
#define TANDEM_BOOT_PEER_LOSS_H

/* How the loss of a rank was detected. */
typedef enum tdm_peer_sign {
    TDM_SIGN_NONE = 0,
    TDM_SIGN_CLOSED,    /* its connection was closed without a goodbye message */
    TDM_SIGN_TRANSPORT, /* the transport could not reach it */
    TDM_SIGN_SILENCE,   /* it did not answer within a deadline */
    TDM_SIGN_TOLD       /* another rank reported it */
} tdm_peer_sign;
typedef struct tdm_peer_loss {
    tdm_peer_sign sign;
    double heard_s; /* seconds between its last message and the detection */
    char what[160]; /* its last known activity */
} tdm_peer_loss;

#endif
