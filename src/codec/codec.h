/*
 * codec.h: compression of gradients. Only other modules use it; libtandem.so does not export it.
 *
 * A codec compresses the gradient of one replica, a block of f32 that consists of tensors, into a payload of bytes.
 * The stages are: clipping, momentum correction, error feedback, sparsification, quantisation, and the coding of
 * indices. docs/compression.md has the formulas and the format of a payload. PowerSGD (`rank`) needs sums over the
 * replicas between its stages, so it has separate functions, below, and no payload.
 *
 * What a replica remembers from step to step (its states) belongs to the caller: arrays of the block's extent,
 * initially zero.
 *
 * Bits: a result depends on the options, the tensors, the key and the numbers only. It does not depend on the number
 * of threads, the instruction-set level, the compiler, or the floating-point mode of the caller: all functions run in
 * flush-to-zero mode, so f32 subnormal numbers count as 0.
 *
 * Threading: functions that take a `tdm_codec *` use its scratch memory: one thread at a time. Functions that take a
 * `const tdm_codec *` can be called by several threads at once. Both use the kernels' threads
 * (tdm_kernel_threads_set). Nothing here allocates except tdm_codec_create.
 */
#ifndef TANDEM_CODEC_CODEC_H
#define TANDEM_CODEC_CODEC_H

#include "base/base.h"

/* Which numbers of a tensor are sent. */
typedef enum tdm_codec_sparsify {
    TDM_CODEC_SPARSIFY_NONE = 0,
    TDM_CODEC_SPARSIFY_TOPK, /* the largest magnitudes; of equal ones those with lower indices */
    TDM_CODEC_SPARSIFY_TOPK_SAMPLED, /* exactly the same numbers, found faster from a sample */
    TDM_CODEC_SPARSIFY_RANDOMK,      /* one random number of each of k equal ranges */
    TDM_CODEC_SPARSIFY_THRESHOLD     /* all magnitudes from `threshold` on */
} tdm_codec_sparsify;

/* How a number is sent. */
typedef enum tdm_codec_quantise {
    TDM_CODEC_QUANTISE_NONE = 0, /* f32 */
    TDM_CODEC_QUANTISE_BF16,     /* nearest, ties to even; at most the largest finite number */
    TDM_CODEC_QUANTISE_F16,      /* likewise */
    TDM_CODEC_QUANTISE_INT8, /* 127 steps of each sign up to the chunk's largest magnitude; stochastic rounding */
    TDM_CODEC_QUANTISE_INT4, /* likewise with 7 steps */
    TDM_CODEC_QUANTISE_QSGD, /* likewise with `levels` steps up to the chunk's L2 norm */
    TDM_CODEC_QUANTISE_SIGN  /* the sign, times the chunk's mean magnitude */
} tdm_codec_quantise;

enum {
    TDM_CODEC_CHUNK = 1024, /* numbers that share a scale */
    TDM_CODEC_MAX_STATES = 2,
    TDM_CODEC_MAX_LEVELS = 127,
    TDM_CODEC_MAX_RANK = 256
};

/* Zero means off, or the default. */
typedef struct tdm_codec_options {
    tdm_codec_sparsify sparsify;
    double ratio; /* TOPK, TOPK_SAMPLED, RANDOMK: the fraction of a tensor that is sent, (0, 1] */
    double threshold; /* THRESHOLD: the smallest magnitude that is sent, positive */
    tdm_codec_quantise quantise;
    int levels;      /* QSGD: 1 to TDM_CODEC_MAX_LEVELS; up to 7 take 4 bits, more take 8 */
    bool feedback;   /* what is not sent is added to the next gradient */
    double momentum; /* momentum correction (DGC), [0, 1); needs feedback and sparsify */
    bool nesterov;   /* Nesterov's momentum */
    bool mask;       /* factor masking: the velocity of numbers that are sent becomes 0 */
    double
        clip_norm; /* largest L2 norm of a replica's gradient, before it is accumulated; 0: off */
    int rank;      /* PowerSGD, up to TDM_CODEC_MAX_RANK; 0: off. Excludes sparsify and quantise */
    double min_rate;     /* PowerSGD: matrices that shrink less stay dense; 0: 2 */
    size_t min_elements; /* smaller tensors are sent whole, as f32 */
} tdm_codec_options;

/* A tensor of the block. Offsets increase and tensors do not overlap; gaps are never read or written. */
typedef struct tdm_codec_tensor {
    const char *name; /* for messages; borrowed until the codec is destroyed */
    size_t offset;    /* in numbers */
    size_t elements;  /* below 2^32 */
    size_t rows;      /* PowerSGD: the first dimension of a matrix; 0 or 1: a vector */
} tdm_codec_tensor;

typedef struct tdm_codec tdm_codec;

/* Checks the options. TDM_ERR_INVALID names the option or the tensor that cannot be used, and why. */
tdm_status tdm_codec_create(const tdm_codec_options *options, const tdm_codec_tensor *tensors,
                            size_t count, tdm_codec **out, tdm_error *err);
void tdm_codec_destroy(tdm_codec *codec); /* NULL is allowed */

/* ---- states ----------------------------------------------------------------------------------- */

/* The arrays that each replica keeps: none without feedback, "residual" with it, and "velocity" with momentum. */
int tdm_codec_state_count(const tdm_codec *codec);
/* For checkpoints; `state` is below the count. */
const char *tdm_codec_state_name(const tdm_codec *codec, int state);

/* ---- payloads --------------------------------------------------------------------------------- */

/* Upper bound of the bytes of a payload, for any ratio; 0 if options.rank is set. Not less than
 * tdm_codec_max_bytes_at. */
size_t tdm_codec_max_bytes(const tdm_codec *codec);
/* The same if the ratio of the step is at most `ratio` (0: that of the options). */
size_t tdm_codec_max_bytes_at(const tdm_codec *codec, double ratio);

/* The address of the random numbers of a payload, and the settings of its step. */
typedef struct tdm_codec_key {
    uint64_t seed, step; /* 48 bits of the step are used */
    uint32_t replica;
    double ratio; /* the ratio of this step, for a warm-up; 0: that of the options */
} tdm_codec_key;

/*
 * Encodes the gradient of one replica, which is scratch memory afterwards. before[k] are the states before the step,
 * which are only read; after[k] are those after it. They may be the same arrays. `payload` is aligned to 8 bytes and
 * has tdm_codec_max_bytes_at(key->ratio) bytes; *bytes becomes the length that is used.
 *
 * TDM_ERR_DIVERGED if the gradient, or its sum with the residual, is not finite; the message names the tensor. After
 * an error, grad, after and the payload are undefined; so a caller that must be able to return to the states before
 * the step passes separate arrays.
 */
tdm_status tdm_codec_encode(tdm_codec *codec, const tdm_codec_key *key, float *grad,
                            const float *const *before, float *const *after, void *payload,
                            size_t *bytes, tdm_error *err);

/*
 * Writes every number of every tensor to `out`, a block: 0 for what was not sent. The payload may have any bytes, and
 * is aligned to 8 bytes: TDM_ERR_FORMAT says what is wrong with it and where. All numbers written are finite. After
 * an error, the tensors in `out` are undefined. Reads nothing but the payload and the codec, so several threads can
 * decode at once.
 */
tdm_status tdm_codec_decode(const tdm_codec *codec, const void *payload, size_t bytes, float *out,
                            tdm_error *err);
/* The same for the tensors [first, end) only; `out` is still the whole block. Other tensors' bytes are not checked,
 * except for their lengths. */
tdm_status tdm_codec_decode_tensors(const tdm_codec *codec, const void *payload, size_t bytes,
                                    size_t first, size_t end, float *out, tdm_error *err);

/* ---- PowerSGD --------------------------------------------------------------------------------- */

/*
 * A gradient matrix M of rows x cols is replaced by P Q^T, with P of rows x rank and Q of cols x rank. A step of R
 * replicas, each with the gradient G_i and the residual E_i:
 *
 *   1. tdm_codec_lowrank_start      once for all replicas   Q: the factor of the step before (or random numbers)
 *   2. tdm_codec_lowrank_project    each replica            M_i = G_i + E_i;  P_i = M_i Q
 *   3. (the caller)                                         P = sum of P_i
 *   4. tdm_codec_lowrank_orthogonalise  once                P: orthonormal columns
 *   5. tdm_codec_lowrank_back       each replica            Q_i = M_i^T P
 *   6. (the caller)                                         Q = sum of Q_i
 *   7. tdm_codec_lowrank_reconstruct  once                  out = P Q^T, the sum of the gradients
 *   8. tdm_codec_lowrank_residual   each replica            E_i = M_i - P Q^T / R
 *
 * P and Q are arrays of all matrices together, with the numbers of elements below. The array P also carries the
 * tensors that stay dense (vectors, small tensors, and matrices for which the factors save too little), so the
 * caller sums nothing else. Q is the state that the caller keeps from step to step (and in checkpoints): one for all
 * replicas, initially zeros.
 *
 * The sums may be weighted: with mean values instead of sums, `out` is the mean, and `weight` of step 8 is 1.
 */
size_t tdm_codec_lowrank_p_elements(const tdm_codec *codec); /* 0 without options.rank */
size_t tdm_codec_lowrank_q_elements(const tdm_codec *codec);
/* Whether a tensor is replaced by factors. */
bool tdm_codec_lowrank_has(const tdm_codec *codec, size_t tensor);

/* Replaces each column of Q that is zero, as all are initially, by random numbers of (seed, step). A second call
 * changes nothing. */
void tdm_codec_lowrank_start(const tdm_codec *codec, const tdm_codec_key *key, float *q);
/*
 * Clips the gradient, adds the residual before[0], and computes P. `m` is the block that receives M; it is needed
 * until step 8, and may be `grad` or after[0] of the residual. Errors: as tdm_codec_encode. `before` is not read
 * without feedback.
 */
tdm_status tdm_codec_lowrank_project(tdm_codec *codec, float *grad, const float *const *before,
                                     const float *q, float *m, float *p, tdm_error *err);
/* Gram-Schmidt in the order of the columns. A column that depends on those before it becomes 0, and so does its
 * column of Q, which the next step replaces by random numbers. Dense tensors in `p` stay. */
void tdm_codec_lowrank_orthogonalise(const tdm_codec *codec, float *p);
/* `q` must not be the array that the step began with if other replicas still need that. */
void tdm_codec_lowrank_back(const tdm_codec *codec, const float *m, const float *p, float *q);
/* Writes the numbers of the tensors in the range [begin, end) of the block `out`, and those of the rows that are partly
 * in it. (0, SIZE_MAX) is everything. */
void tdm_codec_lowrank_reconstruct(const tdm_codec *codec, const float *p, const float *q,
                                   size_t begin, size_t end, float *out);
/* The new residual of a replica: M - weight P Q^T, and 0 for dense tensors. `residual` may be `m`. */
void tdm_codec_lowrank_residual(const tdm_codec *codec, const float *m, const float *p,
                                const float *q, double weight, float *residual);

#endif
