/*
 * codec_payload_cases.c: damaged payloads, and parts of one.
 */
#include "codec_trial.h"

#include <math.h>
#include <stdlib.h>

static const size_t sizes[] = {300, 0, 1, 1025, 64, SIZE_MAX};

/* Decodes a copy of exactly these bytes; what is accepted has finite numbers only. */
static tdm_status decode_exact(codec_trial *t, const uint8_t *payload, size_t bytes, tdm_error *err)
{
    void *exact = malloc(bytes > 0 ? bytes : 1);
    REQUIRE(exact);
    memcpy(exact, payload, bytes);
    tdm_status status = tdm_codec_decode(t->codec, exact, bytes, t->out, err);
    free(exact);
    for (size_t i = 0; i < t->count && status == TDM_OK; i++)
        for (size_t j = 0; j < t->tensors[i].elements; j++)
            CHECK(isfinite(t->out[t->tensors[i].offset + j]));
    return status;
}

static void every_length_is_checked(void)
{
    for (size_t c = 0; c < codec_combination_count; c++) {
        codec_trial t;
        tdm_error err = {0};
        codec_trial_init(&t, &codec_combinations[c].options, sizes);
        codec_trial_pass(&t);
        for (size_t bytes = 0; bytes < t.bytes; bytes++)
            CHECK_INT(decode_exact(&t, t.payload, bytes, &err), TDM_ERR_FORMAT);
        memset(t.payload + t.bytes, 0, 8);
        CHECK_INT(decode_exact(&t, t.payload, t.bytes + 8, &err), TDM_ERR_FORMAT);
        CHECK_HAS(err.message, "8 bytes after its last tensor");
        codec_trial_release(&t);
    }
}

/* A damaged byte is reported, or changes numbers; memory outside is never touched (the sanitizers check that). */
static void damaged_bytes_do_no_harm(void)
{
    for (size_t c = 0; c < codec_combination_count; c++) {
        codec_trial t;
        tdm_error err = {0};
        codec_trial_init(&t, &codec_combinations[c].options, sizes);
        codec_trial_pass(&t);
        for (size_t i = 0; i < t.bytes; i++)
            for (int bit = 0; bit < 8; bit += 1 + (i > 400)) {
                t.payload[i] ^= (uint8_t)(1 << bit);
                tdm_status status = decode_exact(&t, t.payload, t.bytes, &err);
                CHECK(status == TDM_OK || status == TDM_ERR_FORMAT);
                t.payload[i] ^= (uint8_t)(1 << bit);
            }
        codec_trial_release(&t);
    }
}

static void word_set(codec_trial *t, size_t tensor, uint64_t word)
{
    memcpy(t->payload + sizeof(tdm__codec_head) + tensor * sizeof(word), &word, sizeof(word));
}

/* Writes one section by hand. */
static tdm_status decode_section(codec_trial *t, uint64_t form, const void *section, size_t bytes,
                                 tdm_error *err)
{
    size_t at = sizeof(tdm__codec_head) + sizeof(uint64_t);
    word_set(t, 0, form << TDM__CODEC_FORM_SHIFT | bytes);
    memset(t->payload + at, 0, tdm_align_up(bytes, 8));
    memcpy(t->payload + at, section, bytes);
    return decode_exact(t, t->payload, at + tdm_align_up(bytes, 8), err);
}

typedef struct sparse_section {
    tdm__codec_sparse head;
    float values[3];
    uint8_t indices[12];
} sparse_section;

static void sections_are_checked(void)
{
    static const size_t one[] = {20, SIZE_MAX};
    static const struct {
        uint64_t form;
        sparse_section section;
        size_t cut; /* bytes less than the section has */
        const char *text;
    } cases[] = {
        {2, {{3, 3}, {1, 2, 3}, {0, 0, 17}}, 9, NULL},
        {2, {{3, 3}, {1, 2, 3}, {0, 0, 18}}, 9, "an index is missing, or beyond the tensor"},
        {2, {{3, 3}, {1, 2, NAN}, {0, 0, 17}}, 9, "not finite"},
        {2, {{3, 3}, {1, 2, 3}, {0, 0, 0x80}}, 9, "an index is missing"},
        {2, {{3, 6}, {1, 2, 3}, {0x80, 0x80, 0x80, 0x80, 0x80, 0x80}}, 6, "an index is missing"},
        {2, {{3, 6}, {1, 2, 3}, {0xff, 0xff, 0xff, 0xff, 0x7f, 0}}, 6, "an index is missing"},
        {2, {{3, 4}, {1, 2, 3}, {0, 0, 0, 0}}, 8, "more indices than numbers"},
        {2, {{3, 4}, {1, 2, 3}, {0, 0, 0, 0}}, 7, "does not match the number"},
        {2, {{21, 3}, {1, 2, 3}, {0}}, 9, "the number of numbers is wrong"},
        {2, {{UINT64_MAX, 3}, {1, 2, 3}, {0}}, 9, "the number of numbers is wrong"},
        {2, {{3, UINT64_MAX}, {1, 2, 3}, {0}}, 9, "does not match the number"},
        {2, {{0, 0}, {0}, {0}}, 24, NULL},
        {2, {{0, 0}, {0}, {0}}, 32, "it is too short"},
        {3, {{3, 3}, {1, 2, 3}, {7, 0, 0}}, 9, NULL},
        {3, {{3, 3}, {1, 2, 3}, {0, 0, 14}}, 9, NULL},
        {3, {{3, 3}, {1, 2, 3}, {0, 0, 28}}, 9, "an index is missing, or beyond"},
        {3, {{3, 3}, {1, 2, 3}, {3, 0, 0}}, 9, "an index is missing"},
        {3, {{3, 3}, {1, 2, 3}, {15, 0, 0}}, 9, "more indices"},
        {3, {{3, 3}, {1, 2, 3}, {7, 0, 64}}, 9, "more indices"},
        {3, {{3, 2}, {1, 2, 3}, {7, 0}}, 10, "the length of the indices is wrong"},
        {4, {{3, 0}, {1, 2, 3}, {0}}, 12, NULL},
        {4, {{3, 1}, {1, 2, 3}, {0}}, 11, "the length of the indices is wrong"},
        {4, {{0, 0}, {0}, {0}}, 24, "the number of numbers is wrong"},
        {5, {{3, 3}, {1, 2, 3}, {0}}, 9, "an unknown form"},
        {0, {{3, 3}, {1, 2, 3}, {0}}, 9, "the length of the f32 numbers"},
        {1, {{3, 3}, {1, 2, 3}, {0}}, 9, "the length of the quantised numbers"},
    };
    codec_trial t;
    codec_trial_init(&t, &(tdm_codec_options){0}, one);
    codec_trial_pass(&t);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tdm_error err = {0};
        size_t bytes = sizeof(tdm__codec_sparse) + sizeof(cases[i].section.values) +
                       sizeof(cases[i].section.indices) - cases[i].cut;
        tdm_status status = decode_section(&t, cases[i].form, &cases[i].section, bytes, &err);
        CHECK_INT(status, cases[i].text ? TDM_ERR_FORMAT : TDM_OK);
        if (cases[i].text) CHECK_HAS(err.message, cases[i].text);
    }
    codec_trial_release(&t);
}

static void heads_are_checked(void)
{
    static const struct {
        size_t at;
        const char *text;
    } bytes[] = {{0, "does not begin with 'TMDC'"},
                 {4, "has version"},
                 {6, "quantised by method"},
                 {7, "levels"},
                 {8, "tensors, expected 5"}};
    codec_trial t;
    codec_trial_init(&t, &codec_combinations[3].options, sizes);
    codec_trial_pass(&t);
    for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++) {
        tdm_error err = {0};
        t.payload[bytes[i].at] ^= 0x55;
        CHECK_INT(decode_exact(&t, t.payload, t.bytes, &err), TDM_ERR_FORMAT);
        CHECK_HAS(err.message, bytes[i].text);
        t.payload[bytes[i].at] ^= 0x55;
    }
    tdm_error err = {0};
    uint64_t word;
    memcpy(&word, t.payload + sizeof(tdm__codec_head), sizeof(word));
    word_set(&t, 0, word | UINT64_C(0x00ffffffffffffff));
    CHECK_INT(decode_exact(&t, t.payload, t.bytes, &err), TDM_ERR_FORMAT);
    CHECK_HAS(err.message, "beyond the end of the payload");
    word_set(&t, 0, word);
    CHECK_INT(tdm_codec_decode(t.codec, t.payload + 1, t.bytes, t.out, &err), TDM_ERR_INVALID);
    CHECK_INT(tdm_codec_decode_tensors(t.codec, t.payload, t.bytes, 2, 1, t.out, &err),
              TDM_ERR_INVALID);
    CHECK_INT(tdm_codec_decode_tensors(t.codec, t.payload, t.bytes, 0, 6, t.out, &err),
              TDM_ERR_INVALID);
    CHECK_INT(decode_exact(&t, t.payload, t.bytes, &err), TDM_OK);
    codec_trial_release(&t);
}

static void parts_make_up_the_whole(void)
{
    for (size_t c = 0; c < codec_combination_count; c++) {
        codec_trial t;
        codec_trial_init(&t, &codec_combinations[c].options, sizes);
        codec_trial_pass(&t);
        uint64_t whole = tdm_hash64(t.out, t.extent * sizeof(float));
        for (size_t i = 0; i < t.extent; i++) t.out[i] = CODEC_TRIAL_GUARD;
        for (size_t first = 0; first < t.count; first += 2) {
            size_t end = tdm__codec_min(first + 2, t.count);
            CHECK_INT(
                tdm_codec_decode_tensors(t.codec, t.payload, t.bytes, first, end, t.out, NULL),
                TDM_OK);
            if (end < t.count) CHECK(t.out[t.tensors[t.count - 1].offset] == CODEC_TRIAL_GUARD);
        }
        CHECK(tdm_hash64(t.out, t.extent * sizeof(float)) == whole);
        codec_trial_release(&t);
    }
}

static void a_codec_without_tensors_works(void)
{
    static const size_t none[] = {SIZE_MAX};
    codec_trial t;
    codec_trial_init(&t, &codec_combinations[5].options, none);
    codec_trial_pass(&t);
    CHECK_INT(t.bytes, sizeof(tdm__codec_head));
    codec_trial_release(&t);
}

static const check_test tests[] = {
    CHECK_TEST(every_length_is_checked), CHECK_TEST(damaged_bytes_do_no_harm),
    CHECK_TEST(sections_are_checked),    CHECK_TEST(heads_are_checked),
    CHECK_TEST(parts_make_up_the_whole), CHECK_TEST(a_codec_without_tensors_works),
};
CHECK_SUITE(codec_payload, tests);
