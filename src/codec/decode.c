/*
 * decode.c: a payload to a gradient. The payload comes from outside: every length and every index is checked before
 * it is used.
 */
#include "codec/internal.h"

#include <stdatomic.h>
#include <string.h>

/* One section, and the tensor that it fills. */
typedef struct section {
    const tdm_codec *codec;
    const tdm__codec_head *head;
    size_t tensor, elements;
    tdm__codec_form form;
    const uint8_t *from;
    size_t bytes;
    float *out;
    atomic_bool *is_bad; /* has a number that is not finite */
} section;

static tdm_status section_fail(const section *s, tdm_error *err, const char *what)
{
    return tdm_fail(err, TDM_ERR_FORMAT,
                    "codec: tensor '%s' of the payload of replica %u in step %llu: %s; the sender "
                    "has other options, or the payload is damaged",
                    s->codec->tensors[s->tensor].name, s->head->replica,
                    (unsigned long long)s->head->step, what);
}

/* ---- all numbers ------------------------------------------------------------------------------ */

static void range_dense(const void *args, int64_t begin, int64_t end)
{
    const section *s = args;
    for (int64_t p = begin; p < end; p++) {
        size_t first = (size_t)p * TDM__CODEC_PIECE;
        size_t last = tdm__codec_min(first + TDM__CODEC_PIECE, s->elements);
        for (; first < last; first += TDM_CODEC_CHUNK)
            if (!tdm__codec_get_chunk(s->codec, s->from, first, s->elements, s->out + first))
                atomic_store_explicit(s->is_bad, true, memory_order_relaxed);
    }
}

static tdm_status section_get_f32(const section *s, tdm_error *err)
{
    if (s->bytes != s->elements * sizeof(float))
        return section_fail(s, err, "the length of the f32 numbers is wrong");
    if (s->bytes > 0) memcpy(s->out, s->from, s->bytes);
    if (!s->codec->loops->is_finite(s->out, s->elements))
        return section_fail(s, err, "a number is not finite");
    return TDM_OK;
}

static tdm_status section_get_dense(const section *s, tdm_error *err)
{
    if (s->bytes != tdm__codec_value_bytes(s->codec, s->elements))
        return section_fail(s, err, "the length of the quantised numbers is wrong");
    tdm__codec_spread(s->elements, range_dense, s);
    if (atomic_load(s->is_bad)) return section_fail(s, err, "a number or a scale is not finite");
    return TDM_OK;
}

/* ---- some numbers ----------------------------------------------------------------------------- */

/* Reads the indices of a section one by one. */
typedef struct indices {
    tdm__codec_form form;
    const uint8_t *at, *end;
    size_t elements, kept, place; /* `place`: how many were read */
    uint64_t next;                /* GAPS, BITMAP: the index after the last one */
    tdm_rng rng;                  /* RANDOM */
} indices;

static bool indices_next_gap(indices *in, uint64_t *index)
{
    uint64_t gap = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        if (in->at == in->end) return false;
        uint8_t byte = *in->at++;
        gap |= (uint64_t)(byte & 0x7f) << shift;
        if (byte & 0x80) continue;
        *index = in->next + gap;
        in->next = *index + 1;
        return *index < in->elements;
    }
    return false;
}

static bool indices_next_bit(indices *in, uint64_t *index)
{
    for (uint64_t i = in->next; i < in->elements;) {
        uint32_t rest = (uint32_t)in->at[i / 8] >> (i % 8);
        if (rest == 0) {
            i = (i / 8 + 1) * 8;
            continue;
        }
        i += (uint64_t)__builtin_ctz(rest);
        *index = i;
        in->next = i + 1;
        return i < in->elements;
    }
    return false;
}

static bool indices_next(indices *in, uint64_t *index)
{
    if (in->form == TDM__CODEC_FORM_GAPS) return indices_next_gap(in, index);
    if (in->form == TDM__CODEC_FORM_BITMAP) return indices_next_bit(in, index);
    *index = tdm__codec_random_index(&in->rng, in->place++, in->kept, in->elements);
    return true;
}

/* Whether exactly these indices were there. */
static bool indices_are_over(indices *in)
{
    uint64_t index;
    if (in->form == TDM__CODEC_FORM_GAPS) return in->at == in->end;
    if (in->form == TDM__CODEC_FORM_RANDOM) return true;
    if (indices_next_bit(in, &index)) return false;
    size_t used = in->elements % 8; /* no bits beyond the tensor */
    return used == 0 || in->at[in->elements / 8] >> used == 0;
}

static void range_zero(const void *args, int64_t begin, int64_t end)
{
    const section *s = args;
    size_t first = (size_t)begin * TDM__CODEC_PIECE;
    size_t last = tdm__codec_min((size_t)end * TDM__CODEC_PIECE, s->elements);
    memset(s->out + first, 0, (last - first) * sizeof(*s->out));
}

static tdm_status section_scatter(const section *s, const uint8_t *values, indices *in,
                                  tdm_error *err)
{
    float chunk[TDM_CODEC_CHUNK];
    for (size_t first = 0; first < in->kept; first += TDM_CODEC_CHUNK) {
        size_t count = tdm__codec_min(in->kept - first, TDM_CODEC_CHUNK);
        if (!tdm__codec_get_chunk(s->codec, values, first, in->kept, chunk))
            return section_fail(s, err, "a number or a scale is not finite");
        for (size_t i = 0; i < count; i++) {
            uint64_t index;
            if (!indices_next(in, &index))
                return section_fail(s, err, "an index is missing, or beyond the tensor");
            s->out[index] = chunk[i];
        }
    }
    if (!indices_are_over(in)) return section_fail(s, err, "there are more indices than numbers");
    return TDM_OK;
}

static tdm_status section_get_sparse(const section *s, tdm_error *err)
{
    tdm__codec_sparse head;
    if (s->bytes < sizeof(head)) return section_fail(s, err, "it is too short");
    memcpy(&head, s->from, sizeof(head));
    if (head.kept > s->elements || (head.kept == 0 && s->form == TDM__CODEC_FORM_RANDOM))
        return section_fail(s, err, "the number of numbers is wrong");
    size_t value_bytes = tdm__codec_value_bytes(s->codec, (size_t)head.kept);
    size_t room = s->bytes - sizeof(head);
    if (room < value_bytes || room - value_bytes != head.index_bytes)
        return section_fail(s, err, "its length does not match the number of numbers");
    if ((s->form == TDM__CODEC_FORM_BITMAP &&
         head.index_bytes != tdm__codec_bitmap_bytes(s->elements)) ||
        (s->form == TDM__CODEC_FORM_RANDOM && head.index_bytes != 0))
        return section_fail(s, err, "the length of the indices is wrong");

    const uint8_t *values = s->from + sizeof(head), *at = values + value_bytes;
    indices in = {.form = s->form,
                  .at = at,
                  .end = at + head.index_bytes,
                  .elements = s->elements,
                  .kept = (size_t)head.kept};
    if (s->form == TDM__CODEC_FORM_RANDOM)
        in.rng = tdm_rng_at(tdm__codec_address(s->head->seed, s->head->step, s->head->replica,
                                               s->tensor, TDM__CODEC_PURPOSE_SELECT));
    tdm__codec_spread(s->elements, range_zero, s);
    return section_scatter(s, values, &in, err);
}

static tdm_status section_get(const section *s, tdm_error *err)
{
    switch (s->form) {
    case TDM__CODEC_FORM_F32: return section_get_f32(s, err);
    case TDM__CODEC_FORM_DENSE: return section_get_dense(s, err);
    case TDM__CODEC_FORM_GAPS:
    case TDM__CODEC_FORM_BITMAP:
    case TDM__CODEC_FORM_RANDOM: return section_get_sparse(s, err);
    }
    return section_fail(s, err, "it has an unknown form");
}

/* ---- the payload ------------------------------------------------------------------------------ */

static tdm_status head_check(const tdm_codec *codec, const void *payload, size_t bytes,
                             tdm__codec_head *head, tdm_error *err)
{
    uint8_t levels = codec->options.quantise == TDM_CODEC_QUANTISE_QSGD
                         ? (uint8_t)codec->options.levels
                         : 0;
    if (bytes < sizeof(*head))
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "codec: a payload of %zu bytes is shorter than its head of %zu bytes",
                        bytes, sizeof(*head));
    memcpy(head, payload, sizeof(*head));
    if (head->magic != TDM__CODEC_MAGIC)
        return tdm_fail(err, TDM_ERR_FORMAT, "codec: the payload does not begin with 'TMDC'");
    if (head->version != TDM__CODEC_VERSION)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "codec: the payload has version %u, expected %d; use the same version of "
                        "Tandem everywhere",
                        head->version, TDM__CODEC_VERSION);
    if (head->quantise != (uint8_t)codec->options.quantise || head->levels != levels)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "codec: the payload is quantised by method %u with %u levels, expected %d "
                        "with %u; use the same options everywhere",
                        head->quantise, head->levels, (int)codec->options.quantise, levels);
    if (head->tensor_count != codec->count ||
        (bytes - sizeof(*head)) / sizeof(uint64_t) < codec->count)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "codec: the payload of %zu bytes has %u tensors, expected %zu; use the "
                        "same model everywhere",
                        bytes, head->tensor_count, codec->count);
    return TDM_OK;
}

/* Reads word i, and moves *at over its section. */
static tdm_status word_read(const section *s, const uint8_t *payload, size_t bytes, size_t *at,
                            uint64_t *length, tdm_error *err)
{
    uint64_t word;
    memcpy(&word, payload + sizeof(tdm__codec_head) + s->tensor * sizeof(word), sizeof(word));
    *length = word & ((UINT64_C(1) << TDM__CODEC_FORM_SHIFT) - 1);
    if (*length > bytes - *at || tdm_align_up((size_t)*length, TDM__CODEC_PAD) > bytes - *at)
        return section_fail(s, err, "it extends beyond the end of the payload");
    *at += tdm_align_up((size_t)*length, TDM__CODEC_PAD);
    return TDM_OK;
}

static tdm_status decode_range(const tdm_codec *codec, const uint8_t *payload, size_t bytes,
                               size_t first, size_t end, float *out, tdm_error *err)
{
    tdm__codec_head head;
    atomic_bool is_bad = false;
    TDM_TRY(head_check(codec, payload, bytes, &head, err));
    size_t at = sizeof(head) + codec->count * sizeof(uint64_t);
    for (size_t i = 0; i < codec->count; i++) {
        const tdm_codec_tensor *t = &codec->tensors[i];
        uint64_t length;
        section s = {.codec = codec,
                     .head = &head,
                     .tensor = i,
                     .elements = t->elements,
                     .form = payload[sizeof(head) + i * sizeof(length) + sizeof(length) - 1],
                     .from = payload + at,
                     .out = out + t->offset,
                     .is_bad = &is_bad};
        TDM_TRY(word_read(&s, payload, bytes, &at, &length, err));
        s.bytes = (size_t)length;
        if (i >= first && i < end) TDM_TRY(section_get(&s, err));
    }
    if (at != bytes)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "codec: the payload has %zu bytes after its last tensor; it is damaged",
                        bytes - at);
    return TDM_OK;
}

tdm_status tdm_codec_decode_tensors(const tdm_codec *codec, const void *payload, size_t bytes,
                                    size_t first, size_t end, float *out, tdm_error *err)
{
    if (codec->options.rank > 0)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "codec: PowerSGD has no payload; use the functions tdm_codec_lowrank_*");
    if (first > end || end > codec->count)
        return tdm_fail(err, TDM_ERR_INVALID, "codec: there are %zu tensors, not [%zu, %zu)",
                        codec->count, first, end);
    if ((uintptr_t)payload % TDM__CODEC_PAD != 0)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "codec: the payload's address is not a multiple of %d", TDM__CODEC_PAD);
    tdm_kernel_mode mode = tdm__codec_enter();
    tdm_status status = decode_range(codec, payload, bytes, first, end, out, err);
    tdm_kernel_leave(&mode);
    return status;
}

tdm_status tdm_codec_decode(const tdm_codec *codec, const void *payload, size_t bytes, float *out,
                            tdm_error *err)
{
    return tdm_codec_decode_tensors(codec, payload, bytes, 0, codec->count, out, err);
}
