/*
 * data_test.c: files that the module data accepts, files that it rejects with their messages, and the order of
 * samples. Files are built in memory. This file tests IDX, gzip, files on disk and queries of samples;
 * data_csv_cases.c and data_order_cases.c have the rest.
 */
#include "base/base.h"
#include "data/data.h"
#include "unit/data_cases.h"
#include "unit/data_helpers.h"

#include <tandem/os.h>
#include <unistd.h>

/* ---- IDX ------------------------------------------------------------------------------------- */

static void idx_images_and_labels(void)
{
    idx_file images = idx_build(8, 3, DIMS(3, 2, 2),
                                "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\xff", 12);
    idx_file labels = idx_build(8, 1, DIMS(3), "\x02\x00\x04", 3);
    tdm_dataset *d = idx_parse(&images, &labels, NULL);
    const tdm_dataset_info *info = tdm_dataset_info_of(d);
    CHECK_INT(info->sample_count, 3);
    CHECK_INT(info->feature_count, 4);
    CHECK_INT(info->sample_shape.rank, 2);
    CHECK_INT(info->sample_shape.dim[1], 2);
    CHECK_INT(info->storage, TDM_DTYPE_U8);
    CHECK_INT(info->class_count, 5);
    CHECK_TEXT(info->class_names[4], "4");
    CHECK(feature(d, 2, 3) == 255.0f && feature(d, 1, 0) == 4.0f);
    CHECK_INT(class_of(d, 2), 4);
    CHECK_NEAR(tdm_dataset_largest(d), 255.0, 0);
    tdm_dataset_destroy(d);

    d = idx_parse(&images, NULL, NULL);
    CHECK_INT(tdm_dataset_info_of(d)->class_count, 0);
    CHECK_INT(class_of(d, 0), -1);
    tdm_dataset_destroy(d);

    /* The classes of a training set are kept, in their order. */
    const char *const given[] = {"0", "2", "4", "9"};
    d = idx_parse(&images, &labels, &(tdm_data_options){.class_names = given, .class_count = 4});
    CHECK_INT(tdm_dataset_info_of(d)->class_count, 4);
    CHECK_INT(class_of(d, 0), 1);
    CHECK_INT(class_of(d, 2), 2);
    tdm_dataset_destroy(d);
    refuse(images.bytes, images.count, labels.bytes, labels.count,
           &(tdm_data_options){.class_names = given, .class_count = 2, .labels_path = "lab"},
           TDM_ERR_FORMAT, "lab: sample 2 (from 0): the label 4 is not one of the 2 classes");
}

static void idx_types(void)
{
    static const struct {
        int type;
        const char *bytes;
        size_t count;
        double values[2];
    } cases[] = {
        {0x09, "\x80\x7f", 2, {-128, 127}},
        {0x0b, "\x80\x00\x01\x02", 4, {-32768, 258}},
        {0x0c, "\xff\xff\xff\xff\x00\x01\x00\x00", 8, {-1, 65536}},
        {0x0d, "\x3f\x80\x00\x00\xc0\x20\x00\x00", 8, {1, -2.5}},
        {0x0e, "\x3f\xf0\x00\x00\x00\x00\x00\x00\xc0\x04\x00\x00\x00\x00\x00\x00", 16, {1, -2.5}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        idx_file file = idx_build(cases[i].type, 2, DIMS(1, 2), cases[i].bytes, cases[i].count);
        tdm_dataset *d = idx_parse(&file, NULL, NULL);
        CHECK_INT(tdm_dataset_info_of(d)->storage, TDM_DTYPE_F32);
        CHECK_NEAR(feature(d, 0, 0), cases[i].values[0], 0);
        CHECK_NEAR(feature(d, 0, 1), cases[i].values[1], 0);
        tdm_dataset_destroy(d);
    }
    idx_file images = idx_build(8, 2, DIMS(2, 1), "\x01\x02", 2);
    idx_file labels = idx_build(0x0c, 1, DIMS(2), "\x00\x00\x01\x00\x00\x00\x00\x07", 8);
    tdm_dataset *d = idx_parse(&images, &labels, NULL);
    CHECK_INT(tdm_dataset_info_of(d)->class_count, 257);
    CHECK_INT(class_of(d, 0), 256);
    tdm_dataset_destroy(d);
}

static void refuse_idx(const idx_file *images, const idx_file *labels, const char *part)
{
    refuse(images->bytes, images->count, labels ? labels->bytes : NULL, labels ? labels->count : 0,
           &(tdm_data_options){.format = TDM_DATA_FORMAT_IDX, .labels_path = labels ? "lab" : NULL},
           TDM_ERR_FORMAT, part);
}

static void idx_bad_headers(void)
{
    uint8_t some[16] = {0};
    idx_file file = {.bytes = {0, 0, 8}, .count = 3};
    refuse_idx(&file, NULL, "3 bytes are too few for IDX");
    file = idx_build(0x0a, 2, DIMS(1, 2), some, 2);
    refuse_idx(&file, NULL, "byte 2: unknown IDX type 0x0a");
    file = idx_build(8, 0, NULL, some, 1);
    refuse_idx(&file, NULL, "byte 3: 0 dimensions");
    file = idx_build(8, 8, DIMS(1, 1, 1, 1, 1, 1, 1, 1), some, 1);
    refuse_idx(&file, NULL, "byte 3: 8 dimensions");
    file = idx_build(8, 3, DIMS(1, 2, 3), some, 0);
    file.count = 12; /* the header has three dimensions, the file two */
    refuse_idx(&file, NULL, "a header of 3 dimensions takes 16 bytes, and it has 12");
    file = idx_build(8, 3, DIMS(2, 0, 2), some, 0);
    refuse_idx(&file, NULL, "dimension 2 of 3 is 0");
    file = idx_build(8, 2, DIMS(2, 4), some, 7);
    refuse_idx(&file, NULL,
               "[2, 4] of 1 bytes each, 20 bytes in all, but the file has 19; it is truncated");
    file = idx_build(8, 2, DIMS(2, 4), some, 9);
    refuse_idx(&file, NULL, "20 bytes in all, but the file has 21; it is too long");
    file = idx_build(0x0c, 2, DIMS(2, 2), some, 4);
    refuse_idx(&file, NULL, "28 bytes in all, but the file has 16");
    file = idx_build(8, 3, DIMS(0xffffffff, 0xffffffff, 0xffffffff), some, 8);
    refuse_idx(&file, NULL, "larger than any file");
    file = idx_build(0x0e, 2, DIMS(0x80000000, 0x80000000), some, 8); /* 2^62 times 8 wraps to 0 */
    refuse_idx(&file, NULL, "larger than any file");
    file = idx_build(8, 2, DIMS(0x10000, 0x10000), some, 8); /* the product wraps in 32 bits */
    refuse_idx(&file, NULL, "4294967308 bytes in all");
    file = idx_build(8, 1, DIMS(4), some, 4);
    refuse_idx(&file, NULL, "are images and labels swapped?");
    file = idx_build(0x0d, 2, DIMS(2, 1), "\x3f\x80\x00\x00\x7f\xc0\x00\x00", 8);
    refuse_idx(&file, NULL, "sample 1, feature 0 (both from 0): nan is not a finite number");
    file = idx_build(0x0e, 2, DIMS(1, 1), "\x7f\xe0\x00\x00\x00\x00\x00\x00", 8);
    refuse_idx(&file, NULL, "is too large for a 32-bit float");
}

static void idx_bad_labels(void)
{
    idx_file images = idx_build(8, 2, DIMS(2, 1), "\x01\x02", 2);
    idx_file labels = idx_build(8, 1, DIMS(3), "\x01\x02\x03", 3);
    refuse_idx(&images, &labels, "lab: 3 labels, but t.csv has 2 samples");
    refuse_idx(&images, &images, "lab: a file of labels has one dimension, and this has [2, 1]");
    labels = idx_build(0x0d, 1, DIMS(2), "\0\0\0\0\0\0\0\0", 8);
    refuse_idx(&images, &labels, "lab: the labels are floating-point");
    labels = idx_build(0x09, 1, DIMS(2), "\x01\xff", 2);
    refuse_idx(&images, &labels, "lab: sample 1 (from 0): the label -1 is outside 0 to 65535");
    labels = idx_build(0x0c, 1, DIMS(2), "\x00\x01\x00\x00\x00\x00\x00\x00", 8);
    refuse_idx(&images, &labels, "lab: sample 0 (from 0): the label 65536 is outside");
    labels = idx_build(8, 1, DIMS(2), "\x01", 1);
    refuse_idx(&images, &labels, "lab: the header says [2] of 1 bytes each");
    labels.count = 0;
    refuse_idx(&images, &labels, "lab: the file is empty");
}

/* ---- gzip ------------------------------------------------------------------------------------ */

static void gzip_members(void)
{
    size_t first_count;
    size_t second_count;
    uint8_t *first = gzip_bytes("1,2,a\n3,", 8, &first_count);
    uint8_t *second = gzip_bytes("4,b\n", 4, &second_count);
    uint8_t both[512] = {0};
    memcpy(both, first, first_count);
    memcpy(both + first_count, second, second_count);
    size_t count = first_count + second_count;
    for (size_t padding = 0; padding <= 32; padding += 32) {
        tdm_dataset *d = parse_bytes(both, count + padding, NULL);
        CHECK_INT(tdm_dataset_info_of(d)->sample_count, 2);
        CHECK(feature(d, 1, 1) == 4.0f);
        tdm_dataset_destroy(d);
    }
    for (size_t cut = 2; cut < count; cut++) {
        if (cut == first_count) continue; /* a complete file */
        refuse(both, cut, NULL, 0, NULL, TDM_ERR_FORMAT, "t.csv: the gzip file is truncated after");
    }
    both[count] = 'x';
    refuse(both, count + 3, NULL, 0, NULL, TDM_ERR_FORMAT,
           "3 bytes follow the end of the gzip data");
    both[count] = 0;
    both[first_count - 6] ^= 1; /* in the checksum */
    refuse(both, count, NULL, 0, NULL, TDM_ERR_FORMAT, "incorrect data check");
    both[first_count - 6] ^= 1;
    both[3] = 0xff;
    refuse(both, count, NULL, 0, NULL, TDM_ERR_FORMAT, "damaged near byte");
    free(first);
    free(second);
}

static void gzip_limits(void)
{
    tdm_str text = TDM_STR_INIT;
    for (int i = 0; i < 100000; i++) tdm_str_add(&text, "1,a\n");
    size_t count;
    uint8_t *packed = gzip_bytes(tdm_str_text(&text), text.length, &count);
    tdm_data_options exact = {.limit_bytes = text.length};
    tdm_dataset *d = parse_bytes(packed, count, &exact);
    CHECK_INT(tdm_dataset_info_of(d)->sample_count, 100000);
    tdm_dataset_destroy(d);
    tdm_data_options less = {.limit_bytes = text.length - 1};
    refuse(packed, count, NULL, 0, &less, TDM_ERR_RANGE,
           "decompresses to more than the limit of 399999 bytes");
    size_t twice_count;
    uint8_t *twice = gzip_bytes(packed, count, &twice_count);
    refuse(twice, twice_count, NULL, 0, NULL, TDM_ERR_FORMAT, "compressed by gzip twice");
    free(twice);
    free(packed);
    packed = gzip_bytes("", 0, &count);
    refuse(packed, count, NULL, 0, NULL, TDM_ERR_FORMAT, "empty after decompression");
    free(packed);
    tdm_str_release(&text);
}

/* ---- load ------------------------------------------------------------------------------------ */

static void load_from_files(void)
{
    const char *images_path = check_path("images.gz");
    const char *labels_path = check_path("labels");
    idx_file images = idx_build(8, 3, DIMS(2, 1, 1), "\x01\x02", 2);
    idx_file labels = idx_build(8, 1, DIMS(2), "\x00\x01", 2);
    size_t count;
    uint8_t *packed = gzip_bytes(images.bytes, images.count, &count);
    CHECK_INT(tdm_file_replace(images_path, packed, count, NULL), TDM_OK);
    CHECK_INT(tdm_file_replace(labels_path, labels.bytes, labels.count, NULL), TDM_OK);
    free(packed);

    tdm_error err = {0};
    tdm_dataset *d = NULL;
    tdm_data_options options = {.labels_path = labels_path};
    CHECK_INT(tdm_dataset_load(images_path, &options, &d, &err), TDM_OK);
    CHECK_INT(class_of(d, 1), 1);
    CHECK_TEXT(tdm_dataset_info_of(d)->path, images_path);
    tdm_dataset_destroy(d);

    options.labels_path = images_path;
    CHECK_INT(tdm_dataset_load(labels_path, &options, &d, &err), TDM_ERR_FORMAT);
    CHECK_HAS(err.message, "swapped");
    CHECK_INT(tdm_file_replace(labels_path, "", 0, NULL), TDM_OK);
    options.labels_path = labels_path;
    CHECK_INT(tdm_dataset_load(images_path, &options, &d, &err), TDM_ERR_FORMAT);
    CHECK_HAS(err.message, "labels: the file is empty");
    CHECK_INT(tdm_dataset_load(labels_path, NULL, &d, &err), TDM_ERR_FORMAT);
    CHECK_HAS(err.message, "labels: the file is empty");
    unlink(labels_path);
    CHECK_INT(tdm_dataset_load(images_path, &options, &d, &err), TDM_ERR_NOT_FOUND);
    CHECK_HAS(err.message, labels_path);
    unlink(images_path);
    CHECK_INT(tdm_dataset_load(images_path, NULL, &d, &err), TDM_ERR_NOT_FOUND);
    CHECK_HAS(err.message, images_path);
}

/* ---- samples --------------------------------------------------------------------------------- */

static void random_round_trips(void)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 11, .stream = TDM_RNG_STREAM_USER});
    for (int round = 0; round < 60; round++) {
        int64_t rows = 1 + (int64_t)tdm_rng_below(&rng, 40);
        int64_t columns = 1 + (int64_t)tdm_rng_below(&rng, 9);
        int64_t label = (int64_t)tdm_rng_below(&rng, (uint64_t)columns + 1);
        bool crlf = tdm_rng_below(&rng, 2);
        float values[400];
        int classes[64];
        tdm_str text = TDM_STR_INIT;
        for (int64_t i = 0; i < rows; i++) {
            classes[i] = (int)tdm_rng_below(&rng, 12);
            for (int64_t j = 0; j <= columns; j++) {
                if (j > 0) tdm_str_add_char(&text, ',');
                if (j == label) {
                    tdm_str_addf(&text, classes[i] % 2 ? "%d" : "\"%d\"", classes[i]);
                    continue;
                }
                float *value = &values[i * columns + j - (j > label)];
                *value = (float)(tdm_rng_normal(&rng) * pow(10, (int)tdm_rng_below(&rng, 12) - 6));
                tdm_str_addf(&text, "%.9g", (double)*value);
            }
            tdm_str_add(&text, crlf ? "\r\n" : "\n");
        }
        char label_text[16];
        snprintf(label_text, sizeof(label_text), "%d", (int)label + 1);
        tdm_dataset *d = parse_text(tdm_str_text(&text), &(tdm_data_options){.label = label_text});
        const tdm_dataset_info *info = tdm_dataset_info_of(d);
        CHECK_INT(info->sample_count, rows);
        CHECK_INT(info->feature_count, columns);
        for (int64_t i = 0; i < rows; i++) {
            float row[16];
            int32_t number;
            tdm_dataset_gather(d, &i, 1, row, &number);
            CHECK(memcmp(row, values + i * columns, (size_t)columns * sizeof(*row)) == 0);
            CHECK_INT(atoi(info->class_names[number]), classes[i]);
        }
        tdm_dataset_destroy(d);
        tdm_str_release(&text);
    }
}

static void moments_and_largest(void)
{
    tdm_dataset *d = parse_text("1,1000000001,a\n3,1000000001,a\n-5,1000000001,b\n", NULL);
    double mean[2];
    double deviation[2];
    tdm_dataset_moments(d, mean, deviation);
    CHECK_NEAR(mean[0], -1.0 / 3.0, 1e-15);
    CHECK_NEAR(deviation[0], sqrt(104.0 / 9.0), 1e-14);
    CHECK_NEAR(mean[1], 1e9, 0); /* as f32 */
    CHECK_NEAR(deviation[1], 0, 0);
    CHECK_NEAR(tdm_dataset_largest(d), 1e9, 0);
    tdm_dataset_destroy(d);
}

static void hash_identifies_the_samples(void)
{
    /* The same samples from bytes and from text: rows of two dimensions with one number each differ from a
     * table only in how they are stored. */
    idx_file images = idx_build(8, 2, DIMS(3, 2), "\x01\x02\x03\x04\x05\x06", 6);
    idx_file labels = idx_build(8, 1, DIMS(3), "\x00\x01\x00", 3);
    tdm_dataset *a = idx_parse(&images, &labels, NULL);
    tdm_dataset *b = parse_text("x,y,class\n1,2,0\n3,4,1\n5,6,0\n", NULL);
    char first[TDM_SHA256_HEX];
    char second[TDM_SHA256_HEX];
    CHECK_INT(tdm_dataset_hash(a, first), TDM_OK);
    CHECK_INT(tdm_dataset_hash(b, second), TDM_OK);
    CHECK_TEXT(first, second);
    CHECK_TEXT(first, "fe890b47f769fbe22923c06bff5cce42e9bc194186ef51cb46292b481767d74d");
    tdm_dataset_destroy(a);
    tdm_dataset_destroy(b);
    static const char *const others[] = {"1,2,0\n3,4,1\n5,7,0\n", "1,2,0\n3,4,1\n5,6,1\n",
                                         "1,2,0\n3,4,2\n5,6,0\n", "1,2,0\n3,4,1\n",
                                         "5,6,0\n3,4,1\n1,2,0\n"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        tdm_dataset *d = parse_text(others[i], NULL);
        CHECK_INT(tdm_dataset_hash(d, second), TDM_OK);
        CHECK(strcmp(first, second) != 0);
        tdm_dataset_destroy(d);
    }
}

static const check_test tests[] = {
    CHECK_TEST(idx_images_and_labels), CHECK_TEST(idx_types),
    CHECK_TEST(idx_bad_headers),       CHECK_TEST(idx_bad_labels),
    CHECK_TEST(gzip_members),          CHECK_TEST(gzip_limits),
    CHECK_TEST(load_from_files),       CHECK_TEST(random_round_trips),
    CHECK_TEST(moments_and_largest),   CHECK_TEST(hash_identifies_the_samples),
};

static CHECK_SUITE(data_files, tests);

CHECK_MAIN_SUITES(&data_files, &data_csv, &data_text, &data_order, &data_sparse)
