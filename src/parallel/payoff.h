/*
 * payoff.h: whether the compression of gradients pays on a link: a model of the time of a step's exchange, and the
 * choice of a method by it. Pure functions of measured numbers; measure.c measures them.
 *
 * The model counts the bytes that cross the link of a host, and the time of the codec. With N hosts and R replicas, of
 * E numbers each:
 *
 *   dense           an all-reduce sends 2 (N - 1) / N times the bytes of the numbers: 4 E as f32, 2 E as bf16
 *   payloads        all hosts receive the payloads of all replicas: (N - 1) / N times R payloads
 *   factors         two all-reduces of the factors
 *   codec           each rank encodes its replicas, and decodes its share of all payloads
 *
 * Latency is left out, and so is the computation during which a dense reduction continues (parallel.overlap).
 */
#ifndef TANDEM_PARALLEL_PAYOFF_H
#define TANDEM_PARALLEL_PAYOFF_H

#include <tandem/base.h>

/* How a class of tensors is sent. */
typedef enum tdm_payoff_method {
    TDM_PAYOFF_NONE = 0, /* as f32 */
    TDM_PAYOFF_BF16,
    TDM_PAYOFF_INT8,
    TDM_PAYOFF_TOPK, /* topk_sampled with the job's ratio */
    TDM_PAYOFF_OWN,  /* what the job's keys `compress` set */
    TDM_PAYOFF_METHODS
} tdm_payoff_method;

/* The cost of a method for one number. */
typedef struct tdm_payoff_rate {
    double bytes;              /* that a replica sends; 0: the method was not measured */
    double encode_s, decode_s; /* on one rank; decoding includes the addition */
    bool is_factors;           /* bytes are added, not gathered */
} tdm_payoff_rate;

typedef struct tdm_payoff {
    int hosts, ranks;
    int64_t replicas;
    double link; /* bytes per second of a host, in one direction */
    tdm_payoff_rate rates[TDM_PAYOFF_METHODS];
} tdm_payoff;

/* The classes of tensors. */
typedef struct tdm_payoff_classes {
    uint64_t large; /* numbers of the tensors from compress.min_elements on */
    uint64_t small; /* of the others, which are always sent as f32 */
} tdm_payoff_classes;

/* The seconds of a step's exchange of `elements` numbers by a method. TDM_PAYOFF_NONE: a dense all-reduce as f32. */
double tdm_payoff_seconds(const tdm_payoff *payoff, tdm_payoff_method method, uint64_t elements);
/* The same for a dense all-reduce as bf16, with which methods are compared. */
double tdm_payoff_dense_seconds(const tdm_payoff *payoff, uint64_t elements);
/* The bandwidth of the link, in bytes per second, below which the method takes less time than a dense all-reduce as
 * bf16; 0: it never does. */
double tdm_payoff_break_even(const tdm_payoff *payoff, tdm_payoff_method method);

/* The method for large tensors with the least time of all tensors together. TDM_PAYOFF_NONE, a dense all-reduce, unless
 * it saves at least a twentieth. Small tensors are sent with the payloads. */
tdm_payoff_method tdm_payoff_choose(const tdm_payoff *payoff, const tdm_payoff_classes *classes);
const char *tdm_payoff_method_name(tdm_payoff_method method); /* "int8"; never NULL */

#endif
