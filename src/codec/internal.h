/*
 * internal.h: what the files of module codec share: the codec itself, the loops that are compiled for each level,
 * and the parts of a payload.
 *
 * A tensor is processed in pieces of TDM__CODEC_PIECE numbers, which threads share, and a piece in chunks of
 * TDM_CODEC_CHUNK numbers. All stages of a chunk follow each other while it is in the L1 cache, so that memory is
 * read and written once.
 */
#ifndef TANDEM_CODEC_INTERNAL_H
#define TANDEM_CODEC_INTERNAL_H

#include "codec/codec.h"
#include "tensor/kernel.h"

enum {
    TDM__CODEC_PIECE = 32 * TDM_CODEC_CHUNK,
    TDM__CODEC_SLICES = 16,         /* of a tensor, each with a histogram */
    TDM__CODEC_HISTOGRAM = 1 << 11, /* bins, for 11 of the 31 bits of a magnitude */
    TDM__CODEC_SAMPLES = 1 << 15    /* the largest sample */
};

/* The bits of an f32 without its sign; as integers they are ordered like the magnitudes. */
#define TDM__CODEC_MAGNITUDE 0x7fffffffu
#define TDM__CODEC_INFINITY 0x7f800000u

/* ---- loops ------------------------------------------------------------------------------------ */

/* Numbers of a replica before a step and after it. Pointers are NULL for what the options do not have. */
typedef struct tdm__codec_step {
    const float *grad, *residual, *velocity;
    float *value;        /* what is to be sent, all stages before the sparsification applied */
    float *velocity_out; /* may be `velocity`; and value may be `residual` or `grad` */
    float clip, momentum;
    bool nesterov;
} tdm__codec_step;

/* Codes of a chunk: number = code scale, |code| <= levels. */
typedef struct tdm__codec_grid {
    float scale, inverse;
    int levels;
} tdm__codec_grid;

/* Whole loops over arrays, in one thread. `rest` receives what is lost, x minus the decoded number; it may be x, or
 * NULL. */
typedef struct tdm__codec_loops {
    void (*accumulate)(const tdm__codec_step *step, size_t begin, size_t end);
    bool (*is_finite)(const float *x, size_t count);
    uint32_t (*largest)(const float *x, size_t count); /* the bits of the largest magnitude */
    double (*sum_magnitudes)(const float *x, size_t count);
    double (*sum_squares)(const float *x, size_t count);
    void (*scale)(float *x, size_t count, float factor);
    /* The indices of magnitudes from the bits `limit` on, plus `first`; returns their number. */
    size_t (*collect)(const float *x, size_t count, uint32_t limit, uint32_t first, uint32_t *out);

    void (*to_bf16)(const float *x, size_t count, uint16_t *out, float *rest);
    void (*of_bf16)(const uint16_t *codes, size_t count, float *out);
    void (*to_f16)(const float *x, size_t count, uint16_t *out, float *rest);
    void (*of_f16)(const uint16_t *codes, size_t count, float *out);
    /* Stochastic rounding; `first` is the index of the first random word, a multiple of TDM_CODEC_CHUNK. */
    void (*to_grid)(const float *x, size_t count, const tdm__codec_grid *grid, const tdm_rng *rng,
                    size_t first, int8_t *codes, float *rest);
    void (*of_grid)(const int8_t *codes, size_t count, float scale, float *out);
    void (*pack)(const int8_t *codes, size_t count, uint8_t *out); /* two codes to a byte */
    void (*unpack)(const uint8_t *bytes, size_t count, int8_t *codes);
    void (*to_signs)(const float *x, size_t count, float scale, uint8_t *out, float *rest);
    void (*of_signs)(const uint8_t *bits, size_t count, float scale, float *out);

    /* Sums over numbers in f32 with 16 partial sums (docs/numerics.md), and in f64. */
    float (*dot)(const float *a, const float *b, size_t count);
    double (*dot_wide)(const float *a, const float *b, size_t count);
    /* a -= factor b; out[j] += sum over rows of a[row] m[row][j], in the order of the rows. */
    void (*subtract)(float *a, float factor, const float *b, size_t count);
    void (*add_rows)(const float *m, size_t stride, const float *a, size_t rows, float *out,
                     size_t count);
    /* out[j] = sum over i of a[i a_stride] q[i q_stride + j], in increasing i. */
    void (*mix)(const float *a, size_t a_stride, const float *q, size_t q_stride, int rank,
                float *out, size_t count);
    /* out = m - weight x; out may be m. */
    void (*rest_of)(const float *m, float weight, const float *x, float *out, size_t count);
} tdm__codec_loops;

extern const tdm__codec_loops tdm__codec_loops_0, tdm__codec_loops_2, tdm__codec_loops_3,
    tdm__codec_loops_4;

/* The loops for CPUs of `level`; the tests compare all of them. */
const tdm__codec_loops *tdm__codec_loops_at(int level);

/* ---- the codec -------------------------------------------------------------------------------- */

/* What a piece of a tensor reported. */
typedef struct tdm__codec_piece {
    double squares;
    size_t count; /* numbers that were collected */
    bool is_bad;  /* has a number that is not finite */
} tdm__codec_piece;

typedef struct tdm__codec_matrix {
    bool is_lowrank;
    size_t rows, cols;
    size_t p, q; /* offsets in P and in Q; a dense tensor has `p` only */
} tdm__codec_matrix;

struct tdm_codec {
    tdm_codec_options options;
    tdm_codec_tensor *tensors;
    size_t count, max_elements;
    const tdm__codec_loops *loops;
    tdm_arena *arena;
    /* Scratch for the tensor in work. `index` and `value` have room for all numbers of the largest tensor, but only
     * the part that is used takes memory. */
    tdm__codec_piece *pieces;
    uint32_t *index;
    float *value;
    uint32_t *histogram; /* TDM__CODEC_SLICES of them */
    uint32_t *sample;
    /* PowerSGD. */
    tdm__codec_matrix *matrices;
    size_t p_elements, q_elements;
};

/* Enters flush-to-zero mode with the number of threads of the caller; tdm_kernel_leave returns to the mode before. */
tdm_kernel_mode tdm__codec_enter(void);

/* The number of pieces of a tensor. */
static inline size_t tdm__codec_pieces_of(size_t elements)
{
    return (elements + TDM__CODEC_PIECE - 1) / TDM__CODEC_PIECE;
}

static inline size_t tdm__codec_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Calls run(args, begin, end) for ranges of the pieces of a tensor. */
void tdm__codec_spread(size_t elements, tdm_kernel_range_fn run, const void *args);

/* Random numbers of a tensor, one stream for all of them: see docs/ARCHITECTURE.md. */
typedef enum tdm__codec_purpose {
    TDM__CODEC_PURPOSE_ROUND = 0,
    TDM__CODEC_PURPOSE_SELECT = 1,
    TDM__CODEC_PURPOSE_FACTOR = 2,
    TDM__CODEC_PURPOSES = 4
} tdm__codec_purpose;
tdm_rng_address tdm__codec_address(uint64_t seed, uint64_t step, uint32_t replica, size_t tensor,
                                   tdm__codec_purpose purpose);

/* The factor of clip_norm for a gradient. TDM_ERR_DIVERGED if its norm is not finite. */
tdm_status tdm__codec_clip(tdm_codec *codec, const float *grad, float *factor, tdm_error *err);

/* How many numbers of a tensor are sent with a ratio: ratio elements, rounded, at least 1. */
size_t tdm__codec_kept(double ratio, size_t elements);

/* ---- selection -------------------------------------------------------------------------------- */

/* Bits that at least `kept` magnitudes of x reach: the lower edge of a bin. */
uint32_t tdm__codec_limit(tdm_codec *codec, const float *x, size_t elements, size_t kept);
/* The bits of the magnitude of rank `kept` (from 1) among `bits`, and how many are larger. */
uint32_t tdm__codec_nth(uint32_t *histogram, const uint32_t *bits, size_t count, size_t kept,
                        size_t *larger);
/* Joins the indices that the pieces have collected into one list; returns its length. */
size_t tdm__codec_join(tdm_codec *codec, size_t elements);
/* Reduces a list of `count` indices to those of the `kept` largest magnitudes. */
void tdm__codec_cut(tdm_codec *codec, const float *x, size_t count, size_t kept);
/* The next index of RANDOMK: `elements` are divided into `kept` ranges; this is one of range `place`. */
uint32_t tdm__codec_random_index(tdm_rng *rng, size_t place, size_t kept, size_t elements);

/* ---- values ----------------------------------------------------------------------------------- */

/* The bytes of `count` numbers as the options quantise them: scales, then codes. */
size_t tdm__codec_value_bytes(const tdm_codec *codec, size_t count);
/* Encodes the chunk that begins at number `first` of `count`; all are in `out`. False: not finite. */
bool tdm__codec_put_chunk(const tdm_codec *codec, const float *x, size_t first, size_t count,
                          const tdm_rng *rng, uint8_t *out, float *rest);
/* Decodes it. False: a number is not finite. */
bool tdm__codec_get_chunk(const tdm_codec *codec, const uint8_t *from, size_t first, size_t count,
                          float *out);

/* ---- the format of a payload ------------------------------------------------------------------ */

/*
 * All numbers are little-endian. A payload is a head, a word for each tensor, and the sections of the tensors, each
 * padded with zeros to 8 bytes. A word has the form of the section in its upper 8 bits and the length of the section
 * in the others. docs/compression.md has the sections.
 */
enum {
    TDM__CODEC_MAGIC = 0x43444d54,
    TDM__CODEC_VERSION = 1,
    TDM__CODEC_FORM_SHIFT = 56,
    TDM__CODEC_PAD = 8
};

typedef struct tdm__codec_head {
    uint32_t magic; /* "TMDC" */
    uint16_t version;
    uint8_t quantise, levels;
    uint32_t tensor_count;
    uint32_t replica;
    uint64_t seed, step;
} tdm__codec_head;
_Static_assert(sizeof(tdm__codec_head) == 32, "the head has no padding");

typedef enum tdm__codec_form {
    TDM__CODEC_FORM_F32 = 0,    /* all numbers, as f32 */
    TDM__CODEC_FORM_DENSE = 1,  /* all numbers, quantised */
    TDM__CODEC_FORM_GAPS = 2,   /* some numbers; the distances of their indices */
    TDM__CODEC_FORM_BITMAP = 3, /* some numbers; a bit for each number of the tensor */
    TDM__CODEC_FORM_RANDOM = 4  /* some numbers; the indices follow from the head */
} tdm__codec_form;

/* Before the values of some numbers: their number, and the bytes of the indices after the values. */
typedef struct tdm__codec_sparse {
    uint64_t kept, index_bytes;
} tdm__codec_sparse;

static inline size_t tdm__codec_bitmap_bytes(size_t elements)
{
    return (elements + 7) / 8;
}

/* Bytes of the indices of a list in the form GAPS, and the writers of both forms. */
size_t tdm__codec_gap_bytes(const uint32_t *index, size_t count);
void tdm__codec_put_gaps(const uint32_t *index, size_t count, uint8_t *out);
void tdm__codec_put_bitmap(const uint32_t *index, size_t count, size_t elements, uint8_t *out);

#endif
