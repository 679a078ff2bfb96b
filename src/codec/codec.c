/* codec.c: the options of a codec, and its memory. */
#include "codec/internal.h"

#include <math.h>
#include <stdlib.h>

const tdm__codec_loops *tdm__codec_loops_at(int level)
{
#if defined(__x86_64__)
    return level >= 4   ? &tdm__codec_loops_4
           : level == 3 ? &tdm__codec_loops_3
                        : &tdm__codec_loops_2;
#else
    (void)level;
    return &tdm__codec_loops_0;
#endif
}

tdm_kernel_mode tdm__codec_enter(void)
{
    int thread_count = tdm_kernel_threads_set(1);
    tdm_kernel_mode before = tdm_kernel_enter(thread_count);
    before.thread_count = thread_count;
    return before;
}

void tdm__codec_spread(size_t elements, tdm_kernel_range_fn run, const void *args)
{
    tdm_kernel_spread((int64_t)tdm__codec_pieces_of(elements),
                      (int64_t)tdm__codec_min(elements, TDM__CODEC_PIECE), run, args);
}

tdm_rng_address tdm__codec_address(uint64_t seed, uint64_t step, uint32_t replica, size_t tensor,
                                   tdm__codec_purpose purpose)
{
    return (tdm_rng_address){.seed = seed,
                             .stream = TDM_RNG_STREAM_CODEC,
                             .sub_stream = (uint32_t)(tensor * TDM__CODEC_PURPOSES + purpose),
                             .step = step,
                             .sample = replica};
}

size_t tdm__codec_kept(double ratio, size_t elements)
{
    size_t kept = (size_t)(ratio * (double)elements + 0.5);
    return kept < 1 ? 1 : tdm__codec_min(kept, elements);
}

/* ---- options ---------------------------------------------------------------------------------- */

static bool options_have_ratio(const tdm_codec_options *o)
{
    return o->sparsify == TDM_CODEC_SPARSIFY_TOPK ||
           o->sparsify == TDM_CODEC_SPARSIFY_TOPK_SAMPLED ||
           o->sparsify == TDM_CODEC_SPARSIFY_RANDOMK;
}

static tdm_status options_check_momentum(const tdm_codec_options *o, tdm_error *err)
{
    if (!(o->momentum >= 0 && o->momentum < 1))
        return tdm_fail(err, TDM_ERR_INVALID, "codec: momentum is %g; give a number in [0, 1)",
                        o->momentum);
    if (o->momentum > 0 && (!o->feedback || o->sparsify == TDM_CODEC_SPARSIFY_NONE))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "codec: momentum needs feedback and sparsify, because it corrects the "
                        "delay of numbers that are not sent; set both, or no momentum");
    if ((o->nesterov || o->mask) && !(o->momentum > 0))
        return tdm_fail(err, TDM_ERR_INVALID, "codec: %s needs momentum above 0",
                        o->nesterov ? "nesterov" : "mask");
    if (!(o->clip_norm >= 0 && isfinite(o->clip_norm)))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "codec: clip_norm is %g; give a positive number, or 0 for no clipping",
                        o->clip_norm);
    return TDM_OK;
}

static tdm_status options_check_rank(const tdm_codec_options *o, tdm_error *err)
{
    if (o->rank < 0 || o->rank > TDM_CODEC_MAX_RANK)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "codec: rank is %d; give 1 to %d, or 0 for no PowerSGD", o->rank,
                        TDM_CODEC_MAX_RANK);
    if (o->rank > 0 &&
        (o->sparsify != TDM_CODEC_SPARSIFY_NONE || o->quantise != TDM_CODEC_QUANTISE_NONE))
        return tdm_fail(
            err, TDM_ERR_INVALID,
            "codec: rank (PowerSGD) excludes sparsify and quantise; choose one of them");
    if (!(o->min_rate >= 0 && isfinite(o->min_rate)))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "codec: min_rate is %g; give a positive number, or 0 for the default",
                        o->min_rate);
    return TDM_OK;
}

static tdm_status options_check(const tdm_codec_options *o, tdm_error *err)
{
    if ((int)o->sparsify < 0 || o->sparsify > TDM_CODEC_SPARSIFY_THRESHOLD)
        return tdm_fail(err, TDM_ERR_INVALID, "codec: %d is not a tdm_codec_sparsify",
                        (int)o->sparsify);
    if ((int)o->quantise < 0 || o->quantise > TDM_CODEC_QUANTISE_SIGN)
        return tdm_fail(err, TDM_ERR_INVALID, "codec: %d is not a tdm_codec_quantise",
                        (int)o->quantise);
    if (options_have_ratio(o) && !(o->ratio > 0 && o->ratio <= 1))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "codec: ratio is %g; give the fraction of numbers to send, in (0, 1]",
                        o->ratio);
    if (o->sparsify == TDM_CODEC_SPARSIFY_THRESHOLD &&
        !(o->threshold > 0 && isfinite((float)o->threshold) && (float)o->threshold > 0))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "codec: threshold is %g; give a positive number in the range of f32",
                        o->threshold);
    if (o->quantise == TDM_CODEC_QUANTISE_QSGD &&
        (o->levels < 1 || o->levels > TDM_CODEC_MAX_LEVELS))
        return tdm_fail(err, TDM_ERR_INVALID, "codec: levels is %d; give 1 to %d", o->levels,
                        TDM_CODEC_MAX_LEVELS);
    TDM_TRY(options_check_momentum(o, err));
    TDM_TRY(options_check_rank(o, err));
    if (o->feedback && o->sparsify == TDM_CODEC_SPARSIFY_NONE &&
        o->quantise == TDM_CODEC_QUANTISE_NONE && o->rank == 0)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "codec: feedback without sparsify, quantise and rank has nothing to "
                        "return, because nothing is lost; set one of them, or no feedback");
    return TDM_OK;
}

static tdm_status tensors_check(const tdm_codec_tensor *tensors, size_t count, tdm_error *err)
{
    size_t end = 0;
    if (count > UINT32_MAX / TDM__CODEC_PURPOSES)
        return tdm_fail(err, TDM_ERR_INVALID, "codec: %zu tensors are too many", count);
    for (size_t i = 0; i < count; i++) {
        const tdm_codec_tensor *t = &tensors[i];
        if (t->elements > UINT32_MAX)
            return tdm_fail(err, TDM_ERR_INVALID,
                            "codec: tensor '%s' has %zu elements; the largest number is %u",
                            t->name, t->elements, UINT32_MAX);
        if (t->offset < end || t->offset > SIZE_MAX / sizeof(float) - t->elements)
            return tdm_fail(err, TDM_ERR_INVALID,
                            "codec: tensor '%s' begins at %zu, before the end of the tensor "
                            "before it (%zu), or ends beyond the address space",
                            t->name, t->offset, end);
        if (t->rows > 1 && t->elements % t->rows != 0)
            return tdm_fail(err, TDM_ERR_INVALID,
                            "codec: tensor '%s' has %zu elements, which %zu rows do not divide",
                            t->name, t->elements, t->rows);
        end = t->offset + t->elements;
    }
    return TDM_OK;
}

/* ---- PowerSGD: which tensors become factors, and where they are -------------------------------- */

static bool matrix_pays(const tdm_codec_options *o, size_t rows, size_t cols, size_t elements)
{
    double rate = o->min_rate > 0 ? o->min_rate : 2;
    double factors = (double)o->rank * ((double)rows + (double)cols);
    return rows > 1 && cols > 1 && (size_t)o->rank <= tdm__codec_min(rows, cols) &&
           elements >= o->min_elements && factors * rate < (double)elements;
}

static tdm_status matrices_plan(tdm_codec *codec, tdm_error *err)
{
    size_t rank = (size_t)codec->options.rank, dense = 0, found = 0;
    for (size_t i = 0; i < codec->count; i++) {
        const tdm_codec_tensor *t = &codec->tensors[i];
        tdm__codec_matrix *m = &codec->matrices[i];
        m->rows = t->rows;
        m->cols = t->rows > 0 ? t->elements / t->rows : 0;
        m->is_lowrank = matrix_pays(&codec->options, m->rows, m->cols, t->elements);
        if (!m->is_lowrank) continue;
        m->p = codec->p_elements;
        m->q = codec->q_elements;
        codec->p_elements += rank * m->rows;
        codec->q_elements += rank * m->cols;
        found++;
    }
    if (found == 0 && codec->count > 0)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "codec: rank %zu makes none of %zu tensors smaller; a matrix needs more "
                        "than %g rank (rows + columns) elements: use a lower rank or min_rate",
                        rank, codec->count,
                        codec->options.min_rate > 0 ? codec->options.min_rate : 2.0);
    for (size_t i = 0; i < codec->count; i++) {
        if (codec->matrices[i].is_lowrank) continue;
        codec->matrices[i].p = codec->p_elements + dense;
        dense += codec->tensors[i].elements;
    }
    codec->p_elements += dense;
    return TDM_OK;
}

/* ---- life-time -------------------------------------------------------------------------------- */

static tdm_status codec_fill(tdm_codec *codec, const tdm_codec_tensor *tensors, tdm_error *err)
{
    size_t pieces, count = codec->count;
    for (size_t i = 0; i < count; i++)
        if (tensors[i].elements > codec->max_elements) codec->max_elements = tensors[i].elements;
    pieces = tdm__codec_pieces_of(codec->max_elements);
    codec->arena = tdm_arena_create("codec");
    if (!codec->arena) return tdm_fail_oom(err, "for a codec");
    codec->tensors = tdm_arena_array(codec->arena, count + 1, sizeof(*tensors));
    codec->matrices = tdm_arena_array(codec->arena, count + 1, sizeof(*codec->matrices));
    codec->pieces = tdm_arena_array(codec->arena, pieces + 1, sizeof(*codec->pieces));
    codec->histogram = tdm_arena_array(codec->arena, TDM__CODEC_SLICES * TDM__CODEC_HISTOGRAM,
                                       sizeof(uint32_t));
    codec->sample = tdm_arena_array(codec->arena, TDM__CODEC_SAMPLES, sizeof(uint32_t));
    if (!codec->tensors || !codec->matrices || !codec->pieces || !codec->histogram ||
        !codec->sample)
        return tdm_fail_oom(err, "for a codec of %zu tensors", count);
    for (size_t i = 0; i < count; i++) codec->tensors[i] = tensors[i];
    if (codec->options.rank > 0) return matrices_plan(codec, err);
    if (codec->options.sparsify == TDM_CODEC_SPARSIFY_NONE) return TDM_OK;
    /* Not of the arena, which would clear it: only what is used shall take memory. */
    codec->index = malloc((codec->max_elements + 1) * sizeof(*codec->index));
    codec->value = malloc((codec->max_elements + 1) * sizeof(*codec->value));
    if (!codec->index || !codec->value)
        return tdm_fail_oom(err, "for a codec of %zu elements", codec->max_elements);
    return TDM_OK;
}

tdm_status tdm_codec_create(const tdm_codec_options *options, const tdm_codec_tensor *tensors,
                            size_t count, tdm_codec **out, tdm_error *err)
{
    TDM_TRY(options_check(options, err));
    TDM_TRY(tensors_check(tensors, count, err));
    tdm_codec *codec = calloc(1, sizeof(*codec));
    if (!codec) return tdm_fail_oom(err, "for a codec");
    codec->options = *options;
    codec->count = count;
    codec->loops = tdm__codec_loops_at(tdm_kernel_level());
    tdm_status status = codec_fill(codec, tensors, err);
    if (status != TDM_OK) {
        tdm_codec_destroy(codec);
        return status;
    }
    *out = codec;
    return TDM_OK;
}

void tdm_codec_destroy(tdm_codec *codec)
{
    if (!codec) return;
    free(codec->index);
    free(codec->value);
    tdm_arena_destroy(codec->arena);
    free(codec);
}

int tdm_codec_state_count(const tdm_codec *codec)
{
    return !codec->options.feedback ? 0 : codec->options.momentum > 0 ? 2 : 1;
}

const char *tdm_codec_state_name(const tdm_codec *codec, int state)
{
    (void)codec;
    return state == 0 ? "residual" : "velocity";
}

/* ---- sizes ------------------------------------------------------------------------------------ */

static size_t section_max_bytes(const tdm_codec *codec, size_t elements, double ratio)
{
    const tdm_codec_options *o = &codec->options;
    if (elements == 0) return 0;
    if (elements < o->min_elements) return elements * sizeof(float);
    if (o->sparsify == TDM_CODEC_SPARSIFY_NONE) return tdm__codec_value_bytes(codec, elements);
    size_t kept = options_have_ratio(o) ? tdm__codec_kept(ratio, elements) : elements;
    return sizeof(tdm__codec_sparse) + tdm__codec_value_bytes(codec, kept) +
           tdm__codec_bitmap_bytes(elements);
}

size_t tdm_codec_max_bytes_at(const tdm_codec *codec, double ratio)
{
    if (codec->options.rank > 0) return 0;
    if (!(ratio > 0 && ratio <= 1)) ratio = ratio > 1 ? 1 : codec->options.ratio;
    size_t bytes = sizeof(tdm__codec_head) + codec->count * sizeof(uint64_t);
    for (size_t i = 0; i < codec->count; i++)
        bytes += tdm_align_up(section_max_bytes(codec, codec->tensors[i].elements, ratio),
                              TDM__CODEC_PAD);
    return bytes;
}

size_t tdm_codec_max_bytes(const tdm_codec *codec)
{
    return tdm_codec_max_bytes_at(codec, 1);
}
