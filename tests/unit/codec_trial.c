/* codec_trial.c: see codec_trial.h. */
#include "codec_trial.h"

#include <stdlib.h>

const codec_combination codec_combinations[] = {
    {"none", {0}},
    {"bf16", {.quantise = TDM_CODEC_QUANTISE_BF16}},
    {"f16", {.quantise = TDM_CODEC_QUANTISE_F16, .feedback = true}},
    {"int8", {.quantise = TDM_CODEC_QUANTISE_INT8}},
    {"int8 feedback", {.quantise = TDM_CODEC_QUANTISE_INT8, .feedback = true}},
    {"int4 feedback", {.quantise = TDM_CODEC_QUANTISE_INT4, .feedback = true}},
    {"qsgd 1", {.quantise = TDM_CODEC_QUANTISE_QSGD, .levels = 1, .feedback = true}},
    {"qsgd 64", {.quantise = TDM_CODEC_QUANTISE_QSGD, .levels = 64}},
    {"sign", {.quantise = TDM_CODEC_QUANTISE_SIGN}},
    {"sign feedback", {.quantise = TDM_CODEC_QUANTISE_SIGN, .feedback = true}},
    {"top-k", {.sparsify = TDM_CODEC_SPARSIFY_TOPK, .ratio = 0.01}},
    {"top-k feedback", {.sparsify = TDM_CODEC_SPARSIFY_TOPK, .ratio = 0.1, .feedback = true}},
    {"sampled",
     {.sparsify = TDM_CODEC_SPARSIFY_TOPK_SAMPLED,
      .ratio = 0.02,
      .feedback = true,
      .min_elements = 1024}},
    {"sampled int8",
     {.sparsify = TDM_CODEC_SPARSIFY_TOPK_SAMPLED,
      .ratio = 0.3,
      .quantise = TDM_CODEC_QUANTISE_INT8,
      .feedback = true}},
    {"random-k", {.sparsify = TDM_CODEC_SPARSIFY_RANDOMK, .ratio = 0.05}},
    {"random-k sign",
     {.sparsify = TDM_CODEC_SPARSIFY_RANDOMK,
      .ratio = 0.2,
      .quantise = TDM_CODEC_QUANTISE_SIGN,
      .feedback = true}},
    {"threshold bf16",
     {.sparsify = TDM_CODEC_SPARSIFY_THRESHOLD,
      .threshold = 2,
      .quantise = TDM_CODEC_QUANTISE_BF16,
      .feedback = true}},
    {"DGC",
     {.sparsify = TDM_CODEC_SPARSIFY_TOPK_SAMPLED,
      .ratio = 0.01,
      .feedback = true,
      .momentum = 0.9,
      .mask = true,
      .clip_norm = 10,
      .min_elements = 1024}},
    {"DGC nesterov int4",
     {.sparsify = TDM_CODEC_SPARSIFY_TOPK,
      .ratio = 0.05,
      .quantise = TDM_CODEC_QUANTISE_INT4,
      .feedback = true,
      .momentum = 0.5,
      .nesterov = true}},
    {"clipped int8", {.quantise = TDM_CODEC_QUANTISE_INT8, .clip_norm = 3}},
};
const size_t codec_combination_count = sizeof(codec_combinations) / sizeof(codec_combinations[0]);

void codec_trial_random(float *x, size_t count, uint32_t sequence)
{
    tdm_kernel_normal(
        (tdm_rng_address){.seed = 7, .stream = TDM_RNG_STREAM_USER, .sub_stream = sequence}, 1, 0,
        x, count);
}

static float *trial_block(const codec_trial *t, uint32_t sequence)
{
    float *block = malloc((t->extent + 1) * sizeof(*block));
    REQUIRE(block);
    for (size_t i = 0; i < t->extent; i++) block[i] = CODEC_TRIAL_GUARD;
    for (size_t i = 0; i < t->count; i++)
        codec_trial_random(block + t->tensors[i].offset, t->tensors[i].elements,
                           sequence * 16 + (uint32_t)i);
    return block;
}

void codec_trial_init(codec_trial *t, const tdm_codec_options *options, const size_t *sizes)
{
    tdm_error err;
    *t = (codec_trial){.key = {.seed = 3, .step = 11, .replica = 2}};
    for (; sizes[t->count] != SIZE_MAX; t->count++) {
        t->tensors[t->count] = (tdm_codec_tensor){
            .name = "t", .offset = t->extent, .elements = sizes[t->count]};
        t->extent += sizes[t->count] + CODEC_TRIAL_GAP;
    }
    if (tdm_codec_create(options, t->tensors, t->count, &t->codec, &err) != TDM_OK)
        CHECK_TEXT(err.message, "");
    REQUIRE(t->codec);
    t->source = trial_block(t, 0);
    t->grad = trial_block(t, 0);
    t->out = trial_block(t, 0);
    for (int k = 0; k < TDM_CODEC_MAX_STATES; k++) {
        t->before[k] = trial_block(t, (uint32_t)k + 1);
        t->after[k] = trial_block(t, (uint32_t)k + 1);
    }
    t->payload = malloc(tdm_codec_max_bytes(t->codec) + 8);
    REQUIRE(t->payload);
}

void codec_trial_release(codec_trial *t)
{
    tdm_codec_destroy(t->codec);
    free(t->source);
    free(t->grad);
    free(t->out);
    for (int k = 0; k < TDM_CODEC_MAX_STATES; k++) {
        free(t->before[k]);
        free(t->after[k]);
    }
    free(t->payload);
}

tdm_status codec_trial_encode(codec_trial *t, tdm_error *err)
{
    const float *before[TDM_CODEC_MAX_STATES] = {t->before[0], t->before[1]};
    memcpy(t->grad, t->source, t->extent * sizeof(*t->grad));
    return tdm_codec_encode(t->codec, &t->key, t->grad, before, t->after, t->payload, &t->bytes,
                            err);
}

void codec_trial_pass(codec_trial *t)
{
    tdm_error err = {0};
    if (codec_trial_encode(t, &err) != TDM_OK) CHECK_TEXT(err.message, "");
    CHECK(t->bytes <= tdm_codec_max_bytes_at(t->codec, t->key.ratio));
    CHECK(tdm_codec_max_bytes_at(t->codec, t->key.ratio) <= tdm_codec_max_bytes(t->codec));
    for (size_t i = 0; i < t->extent; i++) t->out[i] = CODEC_TRIAL_GUARD;
    if (tdm_codec_decode(t->codec, t->payload, t->bytes, t->out, &err) != TDM_OK)
        CHECK_TEXT(err.message, "");
}

uint64_t codec_trial_hash(const codec_trial *t)
{
    uint64_t hash = tdm_hash64(t->payload, t->bytes);
    for (int k = 0; k < tdm_codec_state_count(t->codec); k++)
        hash = tdm_hash64_add(hash, tdm_hash64(t->after[k], t->extent * sizeof(float)));
    return tdm_hash64_add(hash, tdm_hash64(t->out, t->extent * sizeof(float)));
}

uint32_t codec_trial_magnitude(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits & TDM__CODEC_MAGNITUDE;
}
