/*
 * encode.c: a gradient to a payload.
 *
 * The tensors are encoded one after the other, each by all threads, so the section of a tensor begins where that of
 * the tensor before it ends. With feedback, the numbers to be sent are computed in the new residual's place, from
 * which what is sent is then subtracted; without it, they are in the gradient.
 */
#include "codec/internal.h"

#include <math.h>
#include <string.h>

/* How the numbers of a tensor are chosen while they are computed. */
typedef enum work_search {
    WORK_SEARCH_NONE,   /* later */
    WORK_SEARCH_COLLECT /* those from `limit` on */
} work_search;

/* One tensor; pointers are to its first number. */
typedef struct work {
    tdm_codec *codec;
    const tdm_codec_key *key;
    size_t tensor, elements;
    tdm__codec_step step;
    bool has_step;      /* the numbers to be sent are not simply the gradient */
    const float *x;     /* the numbers to be sent */
    float *residual;    /* NULL without feedback; the same array as x */
    float *velocity;    /* NULL without momentum */
    work_search search; /* and its limit */
    uint32_t limit;
    tdm_rng rng;        /* for stochastic rounding */
    const float *value; /* numbers that range_values encodes */
    size_t kept;
    uint8_t *out;
} work;

static bool work_has_bad(const work *w, size_t elements)
{
    bool has = false;
    for (size_t p = 0; p < tdm__codec_pieces_of(elements); p++) has |= w->codec->pieces[p].is_bad;
    return has;
}

static tdm_status work_fail(const work *w, tdm_error *err)
{
    return tdm_fail(err, TDM_ERR_DIVERGED,
                    "codec: the gradient of tensor '%s', or its sum with the residual, has a "
                    "number that is not finite; use a smaller learning rate or clip the gradient",
                    w->codec->tensors[w->tensor].name);
}

/* ---- clipping --------------------------------------------------------------------------------- */

static void range_squares(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    for (int64_t p = begin; p < end; p++) {
        size_t first = (size_t)p * TDM__CODEC_PIECE;
        size_t count = tdm__codec_min(w->elements - first, TDM__CODEC_PIECE);
        w->codec->pieces[p].squares = w->codec->loops->sum_squares(w->x + first, count);
    }
}

tdm_status tdm__codec_clip(tdm_codec *codec, const float *grad, float *factor, tdm_error *err)
{
    double limit = codec->options.clip_norm, squares = 0;
    *factor = 1;
    if (!(limit > 0)) return TDM_OK;
    for (size_t i = 0; i < codec->count; i++) {
        const tdm_codec_tensor *t = &codec->tensors[i];
        work w = {.codec = codec, .tensor = i, .elements = t->elements, .x = grad + t->offset};
        tdm__codec_spread(t->elements, range_squares, &w);
        for (size_t p = 0; p < tdm__codec_pieces_of(t->elements); p++)
            squares += codec->pieces[p].squares;
        if (!isfinite(squares)) return work_fail(&w, err);
    }
    double norm = sqrt(squares);
    if (norm > limit) *factor = (float)(limit / norm);
    return TDM_OK;
}

/* ---- all numbers of a tensor ------------------------------------------------------------------ */

static void range_dense(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    for (int64_t p = begin; p < end; p++) {
        size_t first = (size_t)p * TDM__CODEC_PIECE;
        size_t last = tdm__codec_min(first + TDM__CODEC_PIECE, w->elements);
        bool is_bad = false;
        for (; first < last; first += TDM_CODEC_CHUNK) {
            size_t stop = tdm__codec_min(first + TDM_CODEC_CHUNK, last);
            if (w->has_step) w->codec->loops->accumulate(&w->step, first, stop);
            is_bad |= !tdm__codec_put_chunk(w->codec, w->x + first, first, w->elements, &w->rng,
                                            w->out, w->residual ? w->residual + first : NULL);
        }
        w->codec->pieces[p].is_bad = is_bad;
    }
}

/* A small tensor, as f32: by one thread. */
static tdm_status work_put_f32(const work *w, size_t *bytes, tdm_error *err)
{
    const tdm__codec_loops *loops = w->codec->loops;
    if (w->has_step) loops->accumulate(&w->step, 0, w->elements);
    if (!loops->is_finite(w->x, w->elements)) return work_fail(w, err);
    *bytes = w->elements * sizeof(float);
    memcpy(w->out, w->x, *bytes);
    if (w->residual) memset(w->residual, 0, *bytes);
    return TDM_OK;
}

static tdm_status work_put_dense(const work *w, size_t *bytes, tdm_error *err)
{
    tdm__codec_spread(w->elements, range_dense, w);
    if (work_has_bad(w, w->elements)) return work_fail(w, err);
    if (w->velocity && w->codec->options.mask)
        memset(w->velocity, 0, w->elements * sizeof(*w->velocity));
    *bytes = tdm__codec_value_bytes(w->codec, w->elements);
    return TDM_OK;
}

/* ---- some numbers of a tensor ----------------------------------------------------------------- */

/* Computes the numbers, checks them, and collects large ones. */
static void range_step(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    const tdm__codec_loops *loops = w->codec->loops;
    for (int64_t p = begin; p < end; p++) {
        size_t first = (size_t)p * TDM__CODEC_PIECE, count = 0;
        size_t last = tdm__codec_min(first + TDM__CODEC_PIECE, w->elements);
        uint32_t *index = w->codec->index + first;
        bool is_bad = false;
        for (; first < last; first += TDM_CODEC_CHUNK) {
            size_t stop = tdm__codec_min(first + TDM_CODEC_CHUNK, last);
            if (w->has_step) loops->accumulate(&w->step, first, stop);
            is_bad |= !loops->is_finite(w->x + first, stop - first);
            if (w->search == WORK_SEARCH_COLLECT)
                count += loops->collect(w->x + first, stop - first, w->limit, (uint32_t)first,
                                        index + count);
        }
        w->codec->pieces[p].is_bad = is_bad;
        w->codec->pieces[p].count = count;
    }
}

static void range_collect(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    for (int64_t p = begin; p < end; p++) {
        size_t first = (size_t)p * TDM__CODEC_PIECE;
        size_t count = tdm__codec_min(w->elements - first, TDM__CODEC_PIECE);
        w->codec->pieces[p].count = w->codec->loops->collect(
            w->x + first, count, w->limit, (uint32_t)first, w->codec->index + first);
    }
}

/* The bits of the magnitude that is to be sent for number i; only the sample uses it. */
static uint32_t step_magnitude(const work *w, size_t i)
{
    const tdm__codec_step *s = &w->step;
    float x = s->clip * s->grad[i];
    if (s->velocity) {
        float v = s->nesterov ? s->momentum * (s->velocity[i] + x)
                              : s->momentum * s->velocity[i] + x;
        x = s->nesterov ? v + x : v;
    }
    if (s->residual) x = s->residual[i] + x;
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits & TDM__CODEC_MAGNITUDE;
}

/*
 * A limit that probably at least `kept` magnitudes reach, and few more: from a sample of about 1 in 64 numbers, at
 * irregular distances. The rank in the sample is higher than the proportional one by 4 standard deviations. False: the
 * tensor is too small, or too much of it is sent.
 */
static bool work_sample(work *w)
{
    enum { FRACTION = 64, LEAST = 1024 };
    size_t n = w->elements, count = n / FRACTION;
    if (n < 4 * LEAST) return false;
    count = count < LEAST ? LEAST : tdm__codec_min(count, TDM__CODEC_SAMPLES);
    double rank = (double)count * (double)w->kept / (double)n;
    rank += 4 * sqrt(rank) + 8;
    if (rank >= (double)count) return false;
    size_t stride = n / count, larger;
    for (size_t i = 0; i < count; i++)
        w->codec->sample[i] = step_magnitude(w, i * stride + tdm_mix64(i) % stride);
    w->limit = tdm__codec_nth(w->codec->histogram, w->codec->sample, count, (size_t)rank, &larger);
    return true;
}

/* The indices of the `kept` largest magnitudes, in codec->index. */
static tdm_status work_find_largest(work *w, tdm_error *err)
{
    tdm_codec *codec = w->codec;
    bool is_sampled = codec->options.sparsify == TDM_CODEC_SPARSIFY_TOPK_SAMPLED && work_sample(w);
    size_t found = 0;
    w->search = is_sampled ? WORK_SEARCH_COLLECT : WORK_SEARCH_NONE;
    tdm__codec_spread(w->elements, range_step, w);
    if (work_has_bad(w, w->elements)) return work_fail(w, err);
    if (is_sampled) found = tdm__codec_join(codec, w->elements);
    if (found < w->kept) {
        w->limit = tdm__codec_limit(codec, w->x, w->elements, w->kept);
        tdm__codec_spread(w->elements, range_collect, w);
        found = tdm__codec_join(codec, w->elements);
    }
    tdm__codec_cut(codec, w->x, found, w->kept);
    return TDM_OK;
}

/* The indices of the numbers to be sent, in codec->index; their number in w->kept. */
static tdm_status work_select(work *w, tdm_error *err)
{
    tdm_codec *codec = w->codec;
    if (codec->options.sparsify == TDM_CODEC_SPARSIFY_THRESHOLD) {
        float threshold = (float)codec->options.threshold;
        memcpy(&w->limit, &threshold, sizeof(w->limit));
        w->search = WORK_SEARCH_COLLECT;
    } else if (codec->options.sparsify != TDM_CODEC_SPARSIFY_RANDOMK) {
        return work_find_largest(w, err);
    }
    tdm__codec_spread(w->elements, range_step, w);
    if (work_has_bad(w, w->elements)) return work_fail(w, err);
    if (w->search == WORK_SEARCH_COLLECT) {
        w->kept = tdm__codec_join(codec, w->elements);
        return TDM_OK;
    }
    tdm_rng rng = tdm_rng_at(tdm__codec_address(w->key->seed, w->key->step, w->key->replica,
                                                w->tensor, TDM__CODEC_PURPOSE_SELECT));
    for (size_t i = 0; i < w->kept; i++)
        codec->index[i] = tdm__codec_random_index(&rng, i, w->kept, w->elements);
    return TDM_OK;
}

static void range_values(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    for (int64_t p = begin; p < end; p++) {
        size_t first = (size_t)p * TDM__CODEC_PIECE;
        size_t last = tdm__codec_min(first + TDM__CODEC_PIECE, w->kept);
        bool is_bad = false;
        for (; first < last; first += TDM_CODEC_CHUNK)
            is_bad |= !tdm__codec_put_chunk(w->codec, w->codec->value + first, first, w->kept,
                                            &w->rng, w->out, w->codec->value + first);
        w->codec->pieces[p].is_bad = is_bad;
    }
}

/* Encodes the selected numbers at w->out, and leaves in codec->value what is lost of each. */
static tdm_status work_put_values(work *w, tdm_error *err)
{
    tdm_codec *codec = w->codec;
    for (size_t i = 0; i < w->kept; i++) codec->value[i] = w->x[codec->index[i]];
    /* Without feedback the numbers that are sent represent the others: the mean is the gradient. */
    if (codec->options.sparsify == TDM_CODEC_SPARSIFY_RANDOMK && !w->residual)
        codec->loops->scale(codec->value, w->kept, (float)((double)w->elements / (double)w->kept));
    tdm__codec_spread(w->kept, range_values, w);
    return work_has_bad(w, w->kept) ? work_fail(w, err) : TDM_OK;
}

static void work_update_states(const work *w)
{
    const uint32_t *index = w->codec->index;
    for (size_t i = 0; w->residual && i < w->kept; i++) w->residual[index[i]] = w->codec->value[i];
    for (size_t i = 0; w->velocity && w->codec->options.mask && i < w->kept; i++)
        w->velocity[index[i]] = 0;
}

/* A section: the number of numbers, their values, their indices. */
static tdm_status work_put_sparse(work *w, tdm__codec_form *form, size_t *bytes, tdm_error *err)
{
    tdm_codec *codec = w->codec;
    uint8_t *section = w->out;
    TDM_TRY(work_select(w, err));
    w->out = section + sizeof(tdm__codec_sparse);
    TDM_TRY(work_put_values(w, err));
    work_update_states(w);

    uint8_t *indices = w->out + tdm__codec_value_bytes(codec, w->kept);
    tdm__codec_sparse head = {.kept = w->kept};
    size_t bitmap_bytes = tdm__codec_bitmap_bytes(w->elements);
    if (codec->options.sparsify == TDM_CODEC_SPARSIFY_RANDOMK) {
        *form = TDM__CODEC_FORM_RANDOM;
    } else if ((head.index_bytes = tdm__codec_gap_bytes(codec->index, w->kept)) <= bitmap_bytes) {
        *form = TDM__CODEC_FORM_GAPS;
        tdm__codec_put_gaps(codec->index, w->kept, indices);
    } else {
        *form = TDM__CODEC_FORM_BITMAP;
        head.index_bytes = bitmap_bytes;
        tdm__codec_put_bitmap(codec->index, w->kept, w->elements, indices);
    }
    memcpy(section, &head, sizeof(head));
    *bytes = (size_t)(indices - section) + head.index_bytes;
    w->out = section;
    return TDM_OK;
}

/* ---- tensors ---------------------------------------------------------------------------------- */

typedef struct blocks {
    float *grad;
    const float *const *before;
    float *const *after;
    float clip;
} blocks;

static work work_of(tdm_codec *codec, const tdm_codec_key *key, size_t tensor, const blocks *b)
{
    const tdm_codec_options *o = &codec->options;
    size_t at = codec->tensors[tensor].offset;
    work w = {.codec = codec,
              .key = key,
              .tensor = tensor,
              .elements = codec->tensors[tensor].elements,
              .has_step = o->feedback || b->clip < 1,
              .step = {.grad = b->grad + at,
                       .clip = b->clip,
                       .momentum = (float)o->momentum,
                       .nesterov = o->nesterov,
                       .value = b->grad + at}};
    if (o->feedback) {
        w.step.residual = b->before[0] + at;
        w.residual = w.step.value = b->after[0] + at;
    }
    if (o->momentum > 0) {
        w.step.velocity = b->before[1] + at;
        w.velocity = w.step.velocity_out = b->after[1] + at;
    }
    w.x = w.step.value;
    w.rng = tdm_rng_at(
        tdm__codec_address(key->seed, key->step, key->replica, tensor, TDM__CODEC_PURPOSE_ROUND));
    return w;
}

/* Encodes a tensor at w->out: its form and its bytes, without padding. */
static tdm_status work_put(work *w, tdm__codec_form *form, size_t *bytes, tdm_error *err)
{
    const tdm_codec_options *o = &w->codec->options;
    double ratio = w->key->ratio > 0 ? w->key->ratio : o->ratio;
    bool has_ratio = o->sparsify != TDM_CODEC_SPARSIFY_NONE &&
                     o->sparsify != TDM_CODEC_SPARSIFY_THRESHOLD;
    *form = TDM__CODEC_FORM_F32;
    *bytes = 0;
    if (w->elements == 0) return TDM_OK;
    if (w->elements < o->min_elements) return work_put_f32(w, bytes, err);
    w->kept = has_ratio ? tdm__codec_kept(ratio, w->elements) : w->elements;
    if (o->sparsify != TDM_CODEC_SPARSIFY_THRESHOLD && w->kept == w->elements) {
        *form = TDM__CODEC_FORM_DENSE;
        return work_put_dense(w, bytes, err);
    }
    return work_put_sparse(w, form, bytes, err);
}

static tdm_status encode_all(tdm_codec *codec, const tdm_codec_key *key, blocks *b,
                             uint8_t *payload, size_t *bytes, tdm_error *err)
{
    size_t at = sizeof(tdm__codec_head) + codec->count * sizeof(uint64_t);
    tdm__codec_head head = {.magic = TDM__CODEC_MAGIC,
                            .version = TDM__CODEC_VERSION,
                            .quantise = (uint8_t)codec->options.quantise,
                            .levels = codec->options.quantise == TDM_CODEC_QUANTISE_QSGD
                                          ? (uint8_t)codec->options.levels
                                          : 0,
                            .tensor_count = (uint32_t)codec->count,
                            .replica = key->replica,
                            .seed = key->seed,
                            .step = key->step};
    memcpy(payload, &head, sizeof(head));
    TDM_TRY(tdm__codec_clip(codec, b->grad, &b->clip, err));
    for (size_t i = 0; i < codec->count; i++) {
        tdm__codec_form form;
        size_t length;
        work w = work_of(codec, key, i, b);
        w.out = payload + at;
        TDM_TRY(work_put(&w, &form, &length, err));
        uint64_t word = (uint64_t)form << TDM__CODEC_FORM_SHIFT | length;
        memcpy(payload + sizeof(head) + i * sizeof(word), &word, sizeof(word));
        memset(w.out + length, 0, tdm_align_up(length, TDM__CODEC_PAD) - length);
        at += tdm_align_up(length, TDM__CODEC_PAD);
    }
    *bytes = at;
    return TDM_OK;
}

tdm_status tdm_codec_encode(tdm_codec *codec, const tdm_codec_key *key, float *grad,
                            const float *const *before, float *const *after, void *payload,
                            size_t *bytes, tdm_error *err)
{
    if (codec->options.rank > 0)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "codec: PowerSGD has no payload; use the functions tdm_codec_lowrank_*");
    if (!(key->ratio >= 0 && key->ratio <= 1))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "codec: the ratio of step %llu is %g; give a number in (0, 1], or 0 for "
                        "that of the options",
                        (unsigned long long)key->step, key->ratio);
    if ((uintptr_t)payload % TDM__CODEC_PAD != 0)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "codec: the payload's address is not a multiple of %d", TDM__CODEC_PAD);
    blocks b = {.grad = grad, .before = before, .after = after};
    tdm_kernel_mode mode = tdm__codec_enter();
    tdm_status status = encode_all(codec, key, &b, payload, bytes, err);
    tdm_kernel_leave(&mode);
    return status;
}
