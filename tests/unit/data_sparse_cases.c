/*
 * data_sparse_cases.c: sparse samples: libsvm files and files in the layout of Criteo, what is refused with line and
 * column, gathering, splitting, moving and hashing.
 */
#include "base/base.h"
#include "data/data.h"
#include "unit/data_cases.h"
#include "unit/data_helpers.h"

static const tdm_data_options libsvm = {.format = TDM_DATA_FORMAT_LIBSVM};
static const tdm_data_options criteo = {.format = TDM_DATA_FORMAT_CRITEO};

/* One sample as text: "CLASS key:value key:value". Returns a text that is valid until the next call. */
static const char *sample_text(const tdm_dataset *dataset, int64_t index)
{
    static char text[4096];
    const tdm_dataset_info *info = tdm_dataset_info_of(dataset);
    uint64_t *keys = malloc((size_t)info->feature_count * sizeof(*keys));
    float *values = malloc((size_t)info->feature_count * sizeof(*values));
    int64_t offsets[2];
    int32_t class_number = -2;
    tdm_dataset_gather_sparse(dataset, &index, 1, offsets, keys, values, &class_number);
    int used = snprintf(text, sizeof(text), "%s",
                        class_number < 0 ? "-" : info->class_names[class_number]);
    for (int64_t i = offsets[0]; i < offsets[1] && used < (int)sizeof(text) - 64; i++) {
        used += keys[i] >> 32
                    ? snprintf(text + used, 64, " %llu/%llx:%g", (unsigned long long)keys[i] >> 32,
                               (unsigned long long)(keys[i] & UINT32_MAX), (double)values[i])
                    : snprintf(text + used, 64, " %llu:%g", (unsigned long long)keys[i],
                               (double)values[i]);
    }
    free(values);
    free(keys);
    return text;
}

static void libsvm_is_read(void)
{
    tdm_dataset *d = parse_text("# a comment\n"
                                "+1 1:0.5 3:-2e3\t7:1 # the end\n"
                                "\n"
                                "-1\r\n"
                                "  -1 4294967296:1.25  \n"
                                "+1 2:0",
                                &libsvm);
    REQUIRE(d);
    const tdm_dataset_info *info = tdm_dataset_info_of(d);
    CHECK_INT(info->kind, TDM_DATA_KIND_SPARSE);
    CHECK_INT(info->sample_count, 4);
    CHECK_INT(info->feature_count, 3);
    CHECK_INT(info->entry_count, 5);
    CHECK_INT(info->class_count, 2);
    CHECK_INT(info->token_count, 0);
    CHECK_TEXT(sample_text(d, 0), "+1 0:0.5 2:-2000 6:1");
    CHECK_TEXT(sample_text(d, 1), "-1");
    CHECK_TEXT(sample_text(d, 2), "-1 4294967295:1.25");
    CHECK_TEXT(sample_text(d, 3), "+1 1:0");
    CHECK_INT(tdm_dataset_number(d, 3), 3);
    CHECK(!tdm_dataset_has_numeric_target(d));
    tdm_dataset_destroy(d);

    tdm_data_options from_0 = libsvm;
    from_0.first_index_is_0 = true;
    d = parse_text("\xef\xbb\xbf"
                   "a 0:1 4294967295:2\n",
                   &from_0);
    REQUIRE(d);
    CHECK_TEXT(sample_text(d, 0), "a 0:1 4294967295:2");
    tdm_dataset_destroy(d);

    /* The classes of a training set are kept, in their order. */
    const char *const given[] = {"2", "0", "1"};
    tdm_data_options test = libsvm;
    test.class_names = given;
    test.class_count = 3;
    d = parse_text("1 1:1\n2 1:1\n", &test);
    REQUIRE(d);
    CHECK_INT(tdm_dataset_info_of(d)->class_count, 3);
    CHECK_TEXT(sample_text(d, 0), "1 0:1");
    tdm_dataset_destroy(d);
    refuse_text("1 1:1\n3 1:1\n", &test, TDM_ERR_FORMAT,
                "t.csv: line 2, column 1: the label '3' is not one of the 3 classes");
}

static void libsvm_errors_have_line_and_column(void)
{
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"1 1:1\n1 2:x\n", "t.csv: line 2, column 5: the value 'x' is not a number"},
        {"1 1:1\n1 2:\n", "line 2, column 5: the value '' is empty"},
        {"1 1:nan\n", "line 1, column 5: the value 'nan' is not a finite number"},
        {"1 1:1e40\n", "line 1, column 5: the value '1e40' is too large"},
        {"1 0:1\n", "line 1, column 3: index 0, but indices are counted from 1; if they are "},
        {"1  3:1 3:2\n", "line 1, column 8: index 3 follows index 3; each feature may occur once"},
        {"1 3:1\t2:2\n", "line 1, column 7: index 2 follows index 3"},
        {"1 4294967297:1\n", "line 1, column 3: the index exceeds the limit of 4294967296"},
        {"1 99999999999999999999:1\n",
         "line 1, column 3: '99999999999999999999:1' is not a feature"},
        {"1 -1:1\n", "line 1, column 3: '-1:1' is not a feature; write index:value"},
        {"1 a:1\n", "line 1, column 3: 'a:1' is not a feature"},
        {"1 5\n", "line 1, column 3: '5' is not a feature"},
        {"1 :5\n", "line 1, column 3: ':5' is not a feature"},
        {"1 1:1,2:2\n", "line 1, column 5: the value '1,2:2' is not a number"},
        {"1 qid:3 1:1\n", "line 1, column 3: 'qid:3' is the query of a ranking task"},
        {"1,2 1:1\n", "line 1, column 1: several labels in one sample are not supported"},
        {"1:1 2:1\n", "line 1, column 1: the label is missing; a line begins with the class"},
        {"# only\n\n", "it has no samples, only blank lines or comments"},
        {"1\n2\n", "none of its 2 samples has a feature; is it another format?"},
        {"\xff 1:1\n", "line 1, column 1: the label '"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        refuse_text(rows[i].text, &libsvm, TDM_ERR_FORMAT, rows[i].part);
    refuse("1 1:1\n1 \0:1\n", 12, NULL, 0, &libsvm, TDM_ERR_FORMAT, "line 2, column 3: a NUL byte");
    refuse("\xff\xfe"
           "1\0",
           4, NULL, 0, &libsvm, TDM_ERR_FORMAT, "the text is UTF-16");
    refuse_text("", &libsvm, TDM_ERR_FORMAT, "the file is empty");
    tdm_data_options none = libsvm;
    none.label = "none";
    refuse_text("1 1:1\n", &none, TDM_ERR_INVALID, "the label cannot be none");
    refuse("1 1:1\n", 6, "1", 1, &libsvm, TDM_ERR_INVALID, "has its labels in the first column");
}

/* Builds a line of `cells` columns: the label, `text` in column `at`, and empty cells. */
static void line_of(char *out, size_t room, const char *label, int cells, int at, const char *text)
{
    size_t used = (size_t)snprintf(out, room, "%s", label);
    for (int column = 2; column <= cells; column++)
        used += (size_t)snprintf(out + used, room - used, "\t%s", column == at ? text : "");
    snprintf(out + used, room - used, "\n");
}

static void criteo_columns(void)
{
    char text[2000], line[500];
    line_of(text, sizeof(text), "1", 40, 2, "5");
    line_of(line, sizeof(line), "0", 40, 14, "-2147483648");
    strcat(text, line);
    line_of(line, sizeof(line), "0", 40, 15, "68fd1e64");
    strcat(text, line);
    line_of(line, sizeof(line), "1", 40, 40, "FF");
    strcat(text, line);
    line_of(line, sizeof(line), "1", 40, 0, "");
    strcat(text, line);
    for (int by_kind = 0; by_kind < 2; by_kind++) {
        tdm_data_options options = criteo;
        if (by_kind) options = (tdm_data_options){.kind = TDM_DATA_KIND_SPARSE};
        tdm_dataset *d = parse_text(text, &options);
        REQUIRE(d);
        CHECK_INT(tdm_dataset_info_of(d)->sample_count, 5);
        CHECK_INT(tdm_dataset_info_of(d)->entry_count, 4);
        CHECK_INT(tdm_dataset_info_of(d)->feature_count, 1);
        CHECK_TEXT(sample_text(d, 0), "1 1/0:5");
        CHECK_TEXT(sample_text(d, 1), "0 13/0:-2.14748e+09");
        CHECK_TEXT(sample_text(d, 2), "0 14/68fd1e64:1");
        CHECK_TEXT(sample_text(d, 3), "1 39/ff:1");
        CHECK_TEXT(sample_text(d, 4), "1");
        tdm_dataset_destroy(d);
    }

    tdm_data_options none = criteo;
    none.label = "none";
    line_of(text, sizeof(text), "7", 39, 39, "a0");
    tdm_dataset *d = parse_text(text, &none);
    REQUIRE(d);
    CHECK_INT(tdm_dataset_info_of(d)->class_count, 0);
    CHECK_TEXT(sample_text(d, 0), "- 1/0:7 39/a0:1");
    tdm_dataset_destroy(d);
    refuse_text(
        text, &criteo, TDM_ERR_FORMAT,
        "line 1 has 39 columns, expected 40, separated by tabs: the label, I1 to I13 and C1 "
        "to C26; if the file has no labels, set the label to none");
    line_of(text, sizeof(text), "7", 40, 39, "a0");
    refuse_text(text, &none, TDM_ERR_FORMAT, "line 1 has 40 columns, expected 39");
}

static void criteo_errors_have_line_and_column(void)
{
    static const struct {
        int at;
        const char *cell, *part;
    } rows[] = {
        {2, "x", "line 2, column 2 ('I1'): 'x' is not a decimal integer of 32 bits; leave"},
        {14, "1.5", "line 2, column 14 ('I13'): '1.5' is not a decimal integer"},
        {3, "2147483648", "line 2, column 3 ('I2'): '2147483648' is not"},
        {3, "-", "line 2, column 3 ('I2'): '-' is not"},
        {3, "99999999999999", "line 2, column 3 ('I2'): '99999999999999' is not"},
        {15, "0x12", "line 2, column 15 ('C1'): '0x12' is not a category of 1 to 8 hexadecimal"},
        {40, "123456789", "line 2, column 40 ('C26'): '123456789' is not a category"},
        {20, " ", "line 2, column 20 ('C6'): ' ' is not a category"},
    };
    char text[2000], line[500];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        line_of(text, sizeof(text), "1", 40, 2, "5");
        line_of(line, sizeof(line), "0", 40, rows[i].at, rows[i].cell);
        strcat(text, line);
        refuse_text(text, &criteo, TDM_ERR_FORMAT, rows[i].part);
    }
    line_of(text, sizeof(text), "", 40, 2, "5");
    refuse_text(text, &criteo, TDM_ERR_FORMAT, "line 1, column 1: the label is missing");
    refuse_text("1\t2\n", &criteo, TDM_ERR_FORMAT, "line 1 has 2 columns, expected 40");
    refuse_text("1,2,3\n", &criteo, TDM_ERR_FORMAT, "line 1 has 1 columns, expected 40");
    refuse_text("\n\r\n", &criteo, TDM_ERR_FORMAT, "it has no samples");
    line_of(text, sizeof(text), "1", 40, 0, "");
    refuse_text(text, &criteo, TDM_ERR_FORMAT, "none of its 1 samples has a feature");
    refuse("1\t\0", 3, NULL, 0, &criteo, TDM_ERR_FORMAT, "line 1, column 3: a NUL byte");
}

static void sparse_formats_must_be_named(void)
{
    static const tdm_data_options sparse = {.kind = TDM_DATA_KIND_SPARSE};
    tdm_dataset *d = parse_text("1 1:1\n", &sparse);
    REQUIRE(d);
    CHECK_INT(tdm_dataset_info_of(d)->entry_count, 1);
    tdm_dataset_destroy(d);
    d = parse_text("1,2\n", NULL);
    REQUIRE(d);
    CHECK_INT(tdm_dataset_info_of(d)->kind, TDM_DATA_KIND_TABLE);
    tdm_dataset_destroy(d);

    tdm_data_options table = libsvm;
    table.kind = TDM_DATA_KIND_TABLE;
    refuse_text(
        "1 1:1\n", &table, TDM_ERR_INVALID,
        "t.csv: the format libsvm has sparse samples, but a table of numbers is needed here");
}

static void gzip_is_unpacked(void)
{
    size_t count;
    uint8_t *packed = gzip_bytes("1 1:1\n0 2:1\n", 12, &count);
    tdm_dataset *d = parse_bytes(packed, count, &libsvm);
    REQUIRE(d);
    CHECK_INT(tdm_dataset_info_of(d)->sample_count, 2);
    tdm_dataset_destroy(d);
    free(packed);
}

/* Samples of 0 to 6 random features; a label that is the number of features. */
static tdm_dataset *random_set(int64_t count)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 8, .stream = TDM_RNG_STREAM_USER});
    tdm_str text = {0};
    for (int64_t i = 0; i < count; i++) {
        uint64_t features = tdm_rng_below(&rng, 7), index = 0;
        tdm_str_addf(&text, "%llu", (unsigned long long)features);
        for (uint64_t k = 0; k < features; k++) {
            index += 1 + tdm_rng_below(&rng, 1000);
            tdm_str_addf(&text, " %llu:%lld", (unsigned long long)index, (long long)i);
        }
        tdm_str_add(&text, "\n");
    }
    tdm_dataset *d = parse_bytes(text.data, text.length, &libsvm);
    tdm_str_release(&text);
    return d;
}

static void batches_are_gathered(void)
{
    enum { COUNT = 200 };
    tdm_dataset *d = random_set(COUNT);
    REQUIRE(d);
    int64_t indices[COUNT], offsets[COUNT + 1];
    int32_t classes[COUNT];
    uint64_t keys[COUNT * 6];
    float values[COUNT * 6];
    CHECK_INT(tdm_dataset_info_of(d)->feature_count, 6);
    for (int64_t i = 0; i < COUNT; i++) indices[i] = i * 7 % COUNT;
    int64_t count = tdm_dataset_gather_sparse(d, indices, COUNT, offsets, keys, values, classes);
    CHECK_INT(count, tdm_dataset_info_of(d)->entry_count);
    CHECK_INT(offsets[COUNT], count);
    bool is_equal = offsets[0] == 0;
    for (int64_t i = 0; i < COUNT; i++) {
        is_equal = is_equal && offsets[i + 1] - offsets[i] == classes[i];
        for (int64_t k = offsets[i]; k < offsets[i + 1]; k++)
            is_equal = is_equal && values[k] == (float)indices[i];
    }
    CHECK(is_equal);
    CHECK_INT(tdm_dataset_gather_sparse(d, indices, 0, offsets, keys, values, NULL), 0);
    tdm_dataset_destroy(d);
}

static void parts_have_all_samples_and_can_be_moved(void)
{
    tdm_dataset *d = random_set(100), *rest = NULL, *test = NULL;
    REQUIRE(d);
    REQUIRE(tdm_dataset_split(d, 0.3, 1, &rest, &test, NULL) == TDM_OK);
    const tdm_dataset_info *a = tdm_dataset_info_of(rest), *b = tdm_dataset_info_of(test);
    CHECK_INT(a->sample_count, 70);
    CHECK_INT(b->sample_count, 30);
    CHECK_INT(a->entry_count + b->entry_count, tdm_dataset_info_of(d)->entry_count);
    char first[3][TDM_SHA256_HEX], moved[3][TDM_SHA256_HEX];
    tdm_dataset *sets[3] = {rest, test, d};
    for (int i = 0; i < 3; i++) REQUIRE(tdm_dataset_hash(sets[i], first[i]) == TDM_OK);
    CHECK(strcmp(first[0], first[1]) != 0);
    size_t bytes;
    const void *block = tdm_dataset_block(d, &bytes);
    void *copy = malloc(bytes);
    memcpy(copy, block, bytes);
    for (int i = 0; i < 3; i++) tdm_dataset_move(sets[i], block, copy);
    for (int i = 0; i < 3; i++) {
        REQUIRE(tdm_dataset_hash(sets[i], moved[i]) == TDM_OK);
        CHECK_TEXT(moved[i], first[i]);
    }
    for (int i = 0; i < 3; i++) tdm_dataset_destroy(sets[i]);
    free(copy);
}

static void hash_is_of_the_content(void)
{
    static const char *const different[] = {"1 1:1 2:2\n2 3:3\n", "1 1:1\n2 2:2 3:3\n",
                                            "1 1:1 2:2\n2 4:3\n", "1 1:1 2:2\n2 3:4\n",
                                            "2 1:1 2:2\n1 3:3\n"};
    static const char *const equal = "# comment\n1  1:1.0 2:2e0\r\n\n2 3:3";
    char hex[6][TDM_SHA256_HEX];
    for (int i = 0; i < 6; i++) {
        tdm_dataset *d = parse_text(i < 5 ? different[i] : equal, &libsvm);
        REQUIRE(d);
        REQUIRE(tdm_dataset_hash(d, hex[i]) == TDM_OK);
        for (int k = 0; k < i && i < 5; k++) CHECK(strcmp(hex[i], hex[k]) != 0);
        tdm_dataset_destroy(d);
    }
    CHECK_TEXT(hex[5], hex[0]);
    CHECK_TEXT(hex[0], "d566738440f1b629f6f298efb165bbd7f95751380431477cc4c331da88c80708");
}

static const check_test tests[] = {
    CHECK_TEST(libsvm_is_read),
    CHECK_TEST(libsvm_errors_have_line_and_column),
    CHECK_TEST(criteo_columns),
    CHECK_TEST(criteo_errors_have_line_and_column),
    CHECK_TEST(sparse_formats_must_be_named),
    CHECK_TEST(gzip_is_unpacked),
    CHECK_TEST(batches_are_gathered),
    CHECK_TEST(parts_have_all_samples_and_can_be_moved),
    CHECK_TEST(hash_is_of_the_content),
};

CHECK_SUITE(data_sparse, tests);
