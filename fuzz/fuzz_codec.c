/*
 * fuzz_codec.c: any bytes as the payload of a compressed gradient.
 *
 * The first byte selects the options of the codec; the rest is the payload. What is accepted must consist of finite
 * numbers, must be the same when it is decoded tensor by tensor, and must not touch the numbers between tensors. So
 * that the fuzzer gets past the head, every payload is also decoded with a correct one.
 */
#include "codec/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

#define NEED(condition, what)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "fuzz_codec: %s\n", what);                                             \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static const tdm_codec_tensor tensors[] = {
    {"a", 0, 1025, 0}, {"b", 1030, 0, 0}, {"c", 1031, 1, 0}, {"d", 1040, 2100, 0}};
enum { TENSORS = 4, EXTENT = 3144 };

static const tdm_codec_options options[] = {
    {0},
    {.quantise = TDM_CODEC_QUANTISE_BF16},
    {.quantise = TDM_CODEC_QUANTISE_F16},
    {.quantise = TDM_CODEC_QUANTISE_INT8},
    {.quantise = TDM_CODEC_QUANTISE_INT4},
    {.quantise = TDM_CODEC_QUANTISE_QSGD, .levels = 20},
    {.quantise = TDM_CODEC_QUANTISE_SIGN},
    {.quantise = TDM_CODEC_QUANTISE_INT8, .min_elements = 100},
};
enum { OPTIONS = sizeof(options) / sizeof(options[0]) };

static void decode_all(const tdm_codec *codec, const void *payload, size_t bytes)
{
    static float whole[EXTENT], parts[EXTENT];
    tdm_error err = {0};
    for (size_t i = 0; i < EXTENT; i++) whole[i] = parts[i] = 77;
    if (tdm_codec_decode(codec, payload, bytes, whole, &err) != TDM_OK) {
        NEED(err.status == TDM_ERR_FORMAT && err.message[0] != '\0', "an error without a reason");
        return;
    }
    for (size_t i = 0; i < EXTENT; i++) NEED(isfinite(whole[i]), "a number is not finite");
    for (size_t i = 0; i < TENSORS; i++) {
        size_t end = tensors[i].offset + tensors[i].elements;
        NEED(end == EXTENT || whole[end] == 77, "a number after a tensor was written");
        NEED(tdm_codec_decode_tensors(codec, payload, bytes, i, i + 1, parts, &err) == TDM_OK,
             "the whole is accepted, but not a part");
    }
    for (size_t i = 0; i < EXTENT; i++)
        NEED(whole[i] == parts[i], "the parts differ from the whole");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    tdm_codec *codec;
    if (count < 1) return 0;
    const tdm_codec_options *o = &options[bytes[0] % OPTIONS];
    void *payload = malloc(count); /* exactly the size, so that a sanitizer sees a read past it */
    NEED(payload, "out of memory");
    NEED(tdm_codec_create(o, tensors, TENSORS, &codec, NULL) == TDM_OK, "options are refused");
    memcpy(payload, bytes + 1, count - 1);
    decode_all(codec, payload, count - 1);
    tdm__codec_head head = {.magic = TDM__CODEC_MAGIC,
                            .version = TDM__CODEC_VERSION,
                            .quantise = (uint8_t)o->quantise,
                            .levels = o->quantise == TDM_CODEC_QUANTISE_QSGD ? (uint8_t)o->levels
                                                                             : 0,
                            .tensor_count = TENSORS};
    if (count - 1 >= sizeof(head)) {
        memcpy(payload, &head, sizeof(head));
        decode_all(codec, payload, count - 1);
    }
    tdm_codec_destroy(codec);
    free(payload);
    return 0;
}
