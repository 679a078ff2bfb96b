/*
 * generate.c: generates text with a token model: encodes the prompt, then chooses token after token.
 */
#include "base/base.h"
#include "data/data.h"
#include "eval/eval.h"
#include "nn/nn.h"

#include <stdlib.h>
#include <string.h>

typedef struct prompt {
    int32_t *tokens;
    int64_t count;
} prompt;

/* The token before the text without a prompt: a line break, or the first token if the vocabulary
 * does not contain one. */
static int32_t prompt_default_token(const tdm_generate_options *o)
{
    for (int64_t i = 0; i < o->character_count; i++)
        if (strcmp(o->characters[i], "\n") == 0) return (int32_t)i;
    return 0;
}

static tdm_status prompt_encode(const tdm_generate_options *o, prompt *out, tdm_error *err)
{
    size_t length = o->prompt ? strlen(o->prompt) : 0;
    out->tokens = calloc(length + 1, sizeof(*out->tokens));
    if (!out->tokens) return tdm_fail_oom(err, "for the prompt");
    if (length == 0) {
        out->tokens[0] = prompt_default_token(o);
        out->count = 1;
        return TDM_OK;
    }

    tdm_vocabulary *vocabulary;
    TDM_TRY(tdm_vocabulary_create(o->characters, o->character_count, &vocabulary, err));
    tdm_status status = tdm_vocabulary_encode(vocabulary, "the prompt", o->prompt, length,
                                              out->tokens, &out->count, err);
    tdm_vocabulary_destroy(vocabulary);
    return status;
}

/* A number in [0, 1) for the token at `index`. */
static double choice_draw(uint64_t seed, int64_t index)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){
        .seed = seed, .stream = TDM_RNG_STREAM_GENERATE, .step = (uint64_t)index});
    return (double)(tdm_rng_u64(&rng) >> 11) * 0x1p-53;
}

static tdm_status tokens_generate(tdm_decoder *decoder, const tdm_generate_options *o,
                                  const prompt *p, tdm_choice *scratch, tdm_generate_fn fn,
                                  void *user, tdm_error *err)
{
    int64_t context = tdm_decoder_context(decoder);
    int64_t skipped = p->count > context ? p->count - context : 0;
    const float *logits = tdm_decoder_read(decoder, p->tokens + skipped, p->count - skipped);
    for (int64_t i = 0; i < o->token_count; i++) {
        /* Tokens beyond the characters, of a larger model.vocabulary, have no text. */
        int32_t token = tdm_choose_token(logits, o->character_count, &o->choice,
                                         choice_draw(o->seed, i), scratch);
        TDM_TRY(fn(o->characters[token], user, err));
        if (i + 1 < o->token_count) logits = tdm_decoder_read(decoder, &token, 1);
    }
    return TDM_OK;
}

tdm_status tdm_generate(tdm_decoder *decoder, const tdm_generate_options *options,
                        tdm_generate_fn fn, void *user, tdm_error *err)
{
    prompt p = {0};
    tdm_choice *scratch = calloc((size_t)options->character_count, sizeof(*scratch));
    tdm_status status = scratch ? prompt_encode(options, &p, err)
                                : tdm_fail_oom(err, "for the choice of tokens");
    if (status == TDM_OK) status = tokens_generate(decoder, options, &p, scratch, fn, user, err);
    free(p.tokens);
    free(scratch);
    return status;
}
