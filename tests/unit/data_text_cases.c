/*
 * data_text_cases.c: texts as data: their characters, their windows, the split, and errors.
 */

#include "data/data.h"
#include "unit/data_cases.h"
#include "unit/data_helpers.h"

static tdm_data_options text_options(int64_t context, int64_t stride)
{
    return (tdm_data_options){.format = TDM_DATA_FORMAT_TEXT, .context = context, .stride = stride};
}

/* The window of a sample and the following token of each of its tokens, as characters. */
static void check_window(const tdm_dataset *d, int64_t sample, const char *window, const char *next)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(d);
    int32_t x[16], classes[16];
    char text[2][80] = {"", ""};
    tdm_dataset_gather(d, &sample, 1, x, classes);
    for (int64_t t = 0; t < info->feature_count; t++) {
        strcat(text[0], info->class_names[x[t]]);
        strcat(text[1], info->class_names[classes[t]]);
    }
    CHECK_TEXT(text[0], window);
    CHECK_TEXT(text[1], next);
}

static void text_plain(void)
{
    tdm_data_options options = text_options(3, 0);
    tdm_dataset *d = parse_text("hello\nworld", &options);
    const tdm_dataset_info *info = tdm_dataset_info_of(d);
    static const char *const names[] = {"\n", "d", "e", "h", "l", "o", "r", "w"};
    CHECK_INT(info->kind, TDM_DATA_KIND_TOKENS);
    CHECK_INT(info->token_count, 11);
    CHECK_INT(info->sample_count, 8); /* 11 - 3: a token follows each window */
    CHECK_INT(info->feature_count, 3);
    CHECK_INT(info->sample_shape.rank, 1);
    CHECK_INT(info->sample_shape.dim[0], 3);
    CHECK_INT(info->storage, TDM_DTYPE_U8);
    CHECK_INT(info->class_count, 8);
    for (int i = 0; i < 8 && i < info->class_count; i++) CHECK_TEXT(info->class_names[i], names[i]);
    check_window(d, 0, "hel", "ell");
    check_window(d, 7, "orl", "rld");
    int64_t two[] = {1, 0};
    int32_t x[6];
    tdm_dataset_gather(d, two, 2, x, NULL); /* classes are optional */
    CHECK_INT(x[0], 2);
    CHECK_INT(x[3], 3);
    tdm_dataset_destroy(d);
}

static void text_windows_apart(void)
{
    tdm_data_options options = text_options(3, 3);
    tdm_dataset *d = parse_text("abcdefg", &options);
    CHECK_INT(tdm_dataset_info_of(d)->sample_count, 2);
    check_window(d, 0, "abc", "bcd");
    check_window(d, 1, "def", "efg");
    tdm_dataset_destroy(d);
    d = parse_text("abcdef", &options); /* no token follows the f of "def" */
    CHECK_INT(tdm_dataset_info_of(d)->sample_count, 1);
    tdm_dataset_destroy(d);
}

static void text_beyond_ascii(void)
{
    tdm_data_options options = text_options(2, 0);
    tdm_dataset *d = parse_text("\xef\xbb\xbf\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"
                                "a\xc3\xa9",
                                &options);
    const tdm_dataset_info *info = tdm_dataset_info_of(d);
    CHECK_INT(info->token_count, 5); /* without the byte order mark */
    CHECK_INT(info->class_count, 4);
    CHECK_TEXT(info->class_names[0], "a"); /* by code point */
    CHECK_TEXT(info->class_names[1], "\xc3\xa9");
    CHECK_TEXT(info->class_names[2], "\xe2\x82\xac");
    CHECK_TEXT(info->class_names[3], "\xf0\x9f\x98\x80");
    check_window(d, 1, "\xe2\x82\xac\xf0\x9f\x98\x80",
                 "\xf0\x9f\x98\x80"
                 "a");
    tdm_dataset_destroy(d);
}

static size_t put_character(char *out, uint32_t code)
{
    out[0] = (char)(0xe0 | code >> 12);
    out[1] = (char)(0x80 | (code >> 6 & 0x3f));
    out[2] = (char)(0x80 | (code & 0x3f));
    return 3;
}

static void text_many_characters(void)
{
    /* 300 different ones need two bytes each. */
    char text[3 * 300 + 1];
    size_t length = 0;
    for (uint32_t i = 0; i < 300; i++) length += put_character(text + length, 0x4e00 + 299 - i);
    tdm_data_options options = text_options(4, 0);
    tdm_dataset *d = parse_bytes(text, length, &options);
    const tdm_dataset_info *info = tdm_dataset_info_of(d);
    CHECK_INT(info->storage, TDM_DTYPE_U16);
    CHECK_INT(info->class_count, 300);
    int64_t sample = 0;
    int32_t x[4], next[4];
    tdm_dataset_gather(d, &sample, 1, x, next);
    CHECK_INT(x[0], 299);
    CHECK_INT(next[3], 295);
    tdm_dataset_destroy(d);
    /* More than 65,536 are too many. */
    char *large = malloc(4 * 70000);
    length = 0;
    for (uint32_t i = 0; i < 70000; i++) {
        uint32_t code = 0x10000 + i;
        large[length++] = (char)(0xf0 | code >> 18);
        large[length++] = (char)(0x80 | (code >> 12 & 0x3f));
        large[length++] = (char)(0x80 | (code >> 6 & 0x3f));
        large[length++] = (char)(0x80 | (code & 0x3f));
    }
    refuse(large, length, NULL, 0, &options, TDM_ERR_RANGE,
           "it has 70000 different characters; a vocabulary has at most 65536");
    free(large);
}

static void text_with_a_given_vocabulary(void)
{
    static const char *const names[] = {"c", "b", "a", "\n"};
    tdm_data_options options = text_options(2, 2);
    options.class_names = names;
    options.class_count = 4;
    tdm_dataset *d = parse_text("aabbc", &options);
    CHECK_INT(tdm_dataset_info_of(d)->class_count, 4);
    check_window(d, 1, "bb", "bc"); /* the given order is kept */
    tdm_dataset_destroy(d);
    refuse_text(
        "aab\nab\xc3\xa9\n", &options, TDM_ERR_FORMAT,
        "t.csv: line 2: the character '\xc3\xa9' (U+00E9) is not one of the 4 in the vocabulary");
    static const char *const words[] = {"c", "bb"};
    options.class_names = words;
    options.class_count = 2;
    refuse_text("cc", &options, TDM_ERR_INVALID, "the name of token 1, 'bb', is not one character");
    static const char *const twice[] = {"c", "c"};
    options.class_names = twice;
    refuse_text("cc", &options, TDM_ERR_INVALID, "contains the character U+0063 twice");
}

static void text_refusals(void)
{
    static const struct {
        const char *text;
        size_t count;
        const char *part;
    } rows[] = {
        {"ab\ncd\xff", 6, "line 2, byte 5 (from 0): 0xff is not UTF-8"},
        {"ab\xc3", 3, "line 1, byte 2 (from 0): 0xc3 is not UTF-8"},
        {"ab\xed\xa0\x80", 5, "byte 2 (from 0): 0xed is not UTF-8"},
        {"\xc0\x80", 2, "byte 0 (from 0): 0xc0"},
        {"ab\0c", 4, "line 1, byte 2 (from 0): a NUL byte"},
        {"abc", 3, "3 characters are not enough: a sample is a window of 3 and the next one"},
        {"\xef\xbb\xbf", 3, "the text is empty"},
    };
    tdm_data_options options = text_options(3, 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        refuse(rows[i].text, rows[i].count, NULL, 0, &options, TDM_ERR_FORMAT, rows[i].part);
    refuse("abcde", 5, "x", 1, &options, TDM_ERR_INVALID, "a text has no file of labels");
    options.context = -1;
    refuse_text("abcde", &options, TDM_ERR_INVALID, "windows of -1 tokens");
    options = text_options(2, -2);
    refuse_text("abcde", &options, TDM_ERR_INVALID, "-2 apart");
}

static int kind_of(const char *name, const char *text, int kind)
{
    tdm_dataset *d = NULL;
    tdm_data_options options = {.kind = kind, .context = 2};
    CHECK_INT(tdm_dataset_parse(text, strlen(text), NULL, 0, name, &options, &d, NULL), TDM_OK);
    int found = d ? (int)tdm_dataset_info_of(d)->kind : -1;
    tdm_dataset_destroy(d);
    return found;
}

static void text_is_recognised_by_name_or_request(void)
{
    const char *text = "1,2,a\n3,4,b\n";
    CHECK_INT(kind_of("x.csv", text, TDM_DATA_KIND_ANY), TDM_DATA_KIND_TABLE);
    CHECK_INT(kind_of("x.txt", text, TDM_DATA_KIND_ANY), TDM_DATA_KIND_TOKENS);
    CHECK_INT(kind_of("x.txt.gz", text, TDM_DATA_KIND_ANY), TDM_DATA_KIND_TOKENS);
    CHECK_INT(kind_of(".txt", text, TDM_DATA_KIND_ANY), TDM_DATA_KIND_TOKENS);
    CHECK_INT(kind_of("txt", text, TDM_DATA_KIND_ANY), TDM_DATA_KIND_TABLE);
    CHECK_INT(kind_of("x.txt", text, TDM_DATA_KIND_TABLE), TDM_DATA_KIND_TABLE);
    CHECK_INT(kind_of("x.csv", text, TDM_DATA_KIND_TOKENS), TDM_DATA_KIND_TOKENS);
}

/* The last part is the test set, its windows do not overlap, and no training window reaches into it. */
static void text_split(void)
{
    char text[101];
    for (int i = 0; i < 100; i++) text[i] = (char)('!' + i % 90);
    text[100] = 0;
    tdm_data_options options = text_options(4, 0);
    tdm_dataset *d = parse_text(text, &options), *rest = NULL, *test = NULL;
    CHECK_INT(tdm_dataset_split(d, 0.2, 7, &rest, &test, NULL), TDM_OK);
    const tdm_dataset_info *a = tdm_dataset_info_of(rest), *b = tdm_dataset_info_of(test);
    CHECK_INT(a->token_count, 80);
    CHECK_INT(a->sample_count, 76);
    CHECK_INT(b->token_count, 20);
    CHECK_INT(b->sample_count, 4); /* the fifth would need a 21st token */
    CHECK_INT(b->class_count, 90); /* the vocabulary is that of the whole */
    int64_t last = 75;
    int32_t x[4], next[4];
    tdm_dataset_gather(rest, &last, 1, x, next);
    CHECK_INT(next[3], 79);
    last = 3;
    tdm_dataset_gather(test, &last, 1, x, next);
    CHECK_INT(x[0], 2); /* token 80 + 3 * 4 = 92, which is 2 again */
    CHECK_INT(next[3], 6);
    char whole[TDM_SHA256_HEX], one[TDM_SHA256_HEX], two[TDM_SHA256_HEX];
    CHECK_INT(tdm_dataset_hash(d, whole), TDM_OK);
    CHECK_INT(tdm_dataset_hash(rest, one), TDM_OK);
    CHECK_INT(tdm_dataset_hash(test, two), TDM_OK);
    CHECK(strcmp(whole, one) != 0 && strcmp(one, two) != 0);
    tdm_dataset_destroy(rest);
    tdm_dataset_destroy(test);
    tdm_error err = {0};
    rest = test = NULL;
    CHECK_INT(tdm_dataset_split(d, 0.04, 7, &rest, &test, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "its 100 tokens cannot be split into 96 and 4");
    CHECK_INT(tdm_dataset_split(d, 0.96, 7, &rest, &test, &err), TDM_ERR_INVALID);
    CHECK(!rest && !test);
    tdm_dataset_destroy(d);
}

static void text_hash(void)
{
    static const struct {
        const char *text;
        int64_t context, stride;
    } rows[] = {
        {"abcabc", 2, 0}, {"abcabd", 2, 0}, {"abcabc", 3, 0}, {"abcabc", 2, 2}, {"xyzxyz", 2, 0}};
    char hex[5][TDM_SHA256_HEX];
    for (int i = 0; i < 5; i++) {
        tdm_data_options options = text_options(rows[i].context, rows[i].stride);
        tdm_dataset *d = parse_text(rows[i].text, &options);
        CHECK_INT(tdm_dataset_hash(d, hex[i]), TDM_OK);
        tdm_dataset_destroy(d);
        for (int k = 0; k < i; k++) CHECK(strcmp(hex[i], hex[k]) != 0);
    }
    tdm_data_options options = text_options(2, 0);
    size_t packed_count;
    uint8_t *packed = gzip_bytes("abcabc", 6, &packed_count);
    tdm_dataset *d = parse_bytes(packed, packed_count, &options);
    CHECK_INT(tdm_dataset_hash(d, hex[1]), TDM_OK);
    CHECK_TEXT(hex[1], hex[0]); /* the division into files does not matter */
    tdm_dataset_destroy(d);
    free(packed);
}

static void vocabulary_encodes(void)
{
    static const char *const names[] = {"a", "\xc3\xa9", "z"};
    tdm_vocabulary *v = NULL;
    CHECK_INT(tdm_vocabulary_create(names, 3, &v, NULL), TDM_OK);
    CHECK_INT(tdm_vocabulary_count(v), 3);
    int32_t tokens[8];
    int64_t count = -1;
    CHECK_INT(tdm_vocabulary_encode(v, "it",
                                    "z\xc3\xa9"
                                    "a",
                                    4, tokens, &count, NULL),
              TDM_OK);
    CHECK_INT(count, 3);
    CHECK(tokens[0] == 2 && tokens[1] == 1 && tokens[2] == 0);
    tdm_error err = {0};
    CHECK_INT(tdm_vocabulary_encode(v, "it", "ab", 2, tokens, &count, &err), TDM_ERR_FORMAT);
    CHECK_HAS(err.message, "it: line 1: the character 'b' (U+0062)");
    CHECK_INT(tdm_vocabulary_encode(v, "it", "a\x80", 2, tokens, &count, &err), TDM_ERR_FORMAT);
    CHECK_HAS(err.message, "it: line 1, byte 1");
    CHECK_INT(tdm_vocabulary_encode(v, "it", "", 0, tokens, &count, NULL), TDM_OK);
    CHECK_INT(count, 0);
    tdm_vocabulary_destroy(v);
    CHECK_INT(tdm_vocabulary_create(names, 0, &v, &err), TDM_ERR_INVALID);
}

static const check_test data_text_tests[] = {
    CHECK_TEST(text_plain),
    CHECK_TEST(text_windows_apart),
    CHECK_TEST(text_beyond_ascii),
    CHECK_TEST(text_many_characters),
    CHECK_TEST(text_with_a_given_vocabulary),
    CHECK_TEST(text_refusals),
    CHECK_TEST(text_is_recognised_by_name_or_request),
    CHECK_TEST(text_split),
    CHECK_TEST(text_hash),
    CHECK_TEST(vocabulary_encodes),
};
CHECK_SUITE(data_text, data_text_tests);
