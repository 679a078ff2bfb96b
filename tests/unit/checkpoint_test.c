/*
 * checkpoint_test.c: safetensors and checkpoints: well-formed files, many malformed headers, flipped bytes and
 * truncated files, a disk that fails at each operation, and a writer that is killed.
 */
#include "base/base.h"
#include "check.h"
#include "checkpoint/checkpoint.h"
#include "os/os.h"
#include "unit/checkpoint_fixture.h"
#include "unit/checkpoint_headers.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- safetensors ----------------------------------------------------------------------------- */

#define EVERY_COUNT 15

/* One tensor of every dtype, a scalar, and an empty one; names in no particular order. */
static size_t every_tensor(tdm_named_tensor out[EVERY_COUNT])
{
    static uint64_t data[EVERY_COUNT][8];
    size_t n = 0;
    for (int dtype = TDM_DTYPE_F32; dtype < TDM_DTYPE_COUNT; dtype++, n++) {
        out[n].name = tdm_dtype_name((tdm_dtype)dtype);
        out[n].tensor = (tdm_tensor){(tdm_dtype)dtype, tdm_shape_2(1, 3), data[n]};
    }
    out[n].name = "\xc3\xa9t\xc3\xa9 \"scalar\"\n";
    out[n].tensor = (tdm_tensor){TDM_DTYPE_F32, tdm_shape_0(), data[n]};
    n++;
    out[n].name = "";
    out[n].tensor = (tdm_tensor){TDM_DTYPE_I64, tdm_shape_3(4, 0, 2), NULL};
    n++;
    for (size_t i = 0; i < EVERY_COUNT; i++) {
        for (size_t j = 0; j < 8; j++) data[i][j] = 0x0101010101010101u * (i + 1) + j;
    }
    for (int j = 0; j < 3; j++) ((uint8_t *)data[TDM_DTYPE_BOOL - 1])[j] = j == 1;
    return n;
}

static void check_same_tensors(const tdm_safetensors *file, const tdm_named_tensor *expected,
                               size_t count)
{
    CHECK_INT(tdm_safetensors_count(file), count);
    for (size_t i = 0; i < count; i++) {
        const tdm_named_tensor *found = tdm_safetensors_find(file, expected[i].name);
        CHECK(found != NULL);
        if (!found) continue;
        CHECK_TEXT(found->name, expected[i].name);
        CHECK_INT(found->tensor.dtype, expected[i].tensor.dtype);
        CHECK(tdm_shape_equal(&found->tensor.shape, &expected[i].tensor.shape));
        size_t bytes = tdm_tensor_bytes(&expected[i].tensor);
        CHECK(bytes == 0 || memcmp(found->tensor.data, expected[i].tensor.data, bytes) == 0);
        CHECK_INT((uintptr_t)found->tensor.data % tdm_dtype_bytes(found->tensor.dtype), 0);
    }
    for (size_t i = 1; i < tdm_safetensors_count(file); i++) {
        CHECK(strcmp(tdm_safetensors_at(file, i - 1)->name, tdm_safetensors_at(file, i)->name) < 0);
    }
}

static void test_safetensors_round_trip(void)
{
    tdm_error err;
    tdm_named_tensor tensors[EVERY_COUNT];
    size_t count = every_tensor(tensors);
    CHECK_INT(count, EVERY_COUNT);
    const tdm_named_text metadata[] = {{"z", "last"}, {"a", "first\n\"\\\t\x01"}, {"", ""}};
    CHECK_INT(tdm_safetensors_write(check_path("f"), tensors, count, metadata, 3, &err), TDM_OK);
    tdm_safetensors *file = NULL;
    CHECK_INT(tdm_safetensors_open(check_path("f"), &file, &err), TDM_OK);
    check_same_tensors(file, tensors, count);
    CHECK_INT(tdm_safetensors_metadata_count(file), 3);
    CHECK_TEXT(tdm_safetensors_metadata_at(file, 0)->name, "");
    CHECK_TEXT(tdm_safetensors_metadata_at(file, 1)->name, "a");
    CHECK_TEXT(tdm_safetensors_metadata(file, "a"), "first\n\"\\\t\x01");
    CHECK_TEXT(tdm_safetensors_metadata(file, "z"), "last");
    CHECK(tdm_safetensors_metadata(file, "absent") == NULL);
    CHECK(tdm_safetensors_find(file, "absent") == NULL);
    CHECK(tdm_safetensors_at(file, count) == NULL);
    CHECK(tdm_safetensors_metadata_at(file, 3) == NULL);
    tdm_safetensors_destroy(file);
}

/* The same content in another order gives the same bytes, in the documented layout. */
static void test_safetensors_canonical(void)
{
    tdm_error err;
    tdm_named_tensor tensors[EVERY_COUNT];
    size_t count = every_tensor(tensors);
    const tdm_named_text texts[] = {{"b", "2"}, {"a", "1"}};
    const tdm_named_text turned[] = {{"a", "1"}, {"b", "2"}};
    CHECK_INT(tdm_safetensors_write(check_path("1"), tensors, count, texts, 2, &err), TDM_OK);
    for (size_t i = 0; i < count / 2; i++) {
        tdm_named_tensor kept = tensors[i];
        tensors[i] = tensors[count - 1 - i];
        tensors[count - 1 - i] = kept;
    }
    CHECK_INT(tdm_safetensors_write(check_path("2"), tensors, count, turned, 2, &err), TDM_OK);
    tdm_file_bytes one = {0};
    tdm_file_bytes two = {0};
    CHECK_INT(tdm_file_read(check_path("1"), 0, &one, &err), TDM_OK);
    CHECK_INT(tdm_file_read(check_path("2"), 0, &two, &err), TDM_OK);
    CHECK(one.count == two.count && memcmp(one.data, two.data, one.count) == 0);
    uint64_t header_bytes = 0;
    memcpy(&header_bytes, one.data, 8);
    CHECK_INT((8 + header_bytes) % 64, 0);
    CHECK_INT(one.data[8 + header_bytes - 1] == ' ' || one.data[8 + header_bytes - 1] == '}', 1);
    tdm_file_bytes_release(&one);
    tdm_file_bytes_release(&two);

    float x[2] = {1, 2};
    uint8_t y[3] = {7, 8, 9};
    const tdm_named_tensor small[] = {{"x", {TDM_DTYPE_F32, tdm_shape_1(2), x}},
                                      {"b", {TDM_DTYPE_U8, tdm_shape_1(3), y}}};
    CHECK_INT(tdm_safetensors_write(check_path("3"), small, 2, NULL, 0, &err), TDM_OK);
    CHECK_INT(tdm_file_read(check_path("3"), 0, &one, &err), TDM_OK);
    const char header[] = "{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]},"
                          "\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}  ";
    CHECK_INT(one.count, 128 + 11);
    CHECK_INT(one.data[0], 120);
    CHECK(memcmp(one.data + 8, header, sizeof(header) - 1) == 0);
    CHECK(same_bytes(one.data + 128, x, 8) && same_bytes(one.data + 136, y, 3));
    tdm_file_bytes_release(&one);
}

static void test_safetensors_write_refuses(void)
{
    tdm_error err;
    float x[4] = {0};
    const tdm_tensor good = {TDM_DTYPE_F32, tdm_shape_1(4), x};
    const char *path = check_path("f");
    const tdm_named_tensor same[] = {{"a", good}, {"b", good}, {"a", good}};
    CHECK_INT(tdm_safetensors_write(path, same, 3, NULL, 0, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "'a'");
    CHECK_HAS(err.message, path);
    const tdm_named_tensor bad[] = {
        {NULL, good},
        {"__metadata__", good},
        {"latin-1: \xe9", good},
        {"x", {TDM_DTYPE_NONE, tdm_shape_1(4), x}},
        {"x", {TDM_DTYPE_COUNT, tdm_shape_1(4), x}},
        {"x", {TDM_DTYPE_F32, tdm_shape_1(-1), x}},
        {"x", {TDM_DTYPE_F32, tdm_shape_2((int64_t)1 << 40, (int64_t)1 << 40), x}},
        {"x", {TDM_DTYPE_F32, tdm_shape_1((int64_t)1 << 62), x}},
        {"x", {TDM_DTYPE_F32, {.rank = 9}, x}},
        {"x", {TDM_DTYPE_F32, tdm_shape_1(4), NULL}},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        CHECK_INT(tdm_safetensors_write(path, &bad[i], 1, NULL, 0, &err), TDM_ERR_INVALID);
        CHECK_HAS(err.message, path);
    }
    const tdm_named_text texts[][2] = {{{"a", "1"}, {"a", "2"}},
                                       {{"a", "1"}, {"b", NULL}},
                                       {{NULL, "1"}, {"b", "2"}},
                                       {{"a", "\xff"}, {"b", "2"}},
                                       {{"a\xff", "1"}, {"b", "2"}}};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        CHECK_INT(tdm_safetensors_write(path, NULL, 0, texts[i], 2, &err), TDM_ERR_INVALID);
    }
    CHECK_INT(directory_entries(), 0);
    CHECK_INT(tdm_safetensors_write(check_path("absent/f"), NULL, 0, NULL, 0, &err),
              TDM_ERR_NOT_FOUND);

    CHECK_INT(tdm_safetensors_write(path, NULL, 0, NULL, 0, &err), TDM_OK); /* nothing is fine */
    tdm_safetensors *file = NULL;
    CHECK_INT(tdm_safetensors_open(path, &file, &err), TDM_OK);
    CHECK_INT(tdm_safetensors_count(file), 0);
    CHECK(tdm_safetensors_at(file, 0) == NULL && tdm_safetensors_find(file, "x") == NULL);
    tdm_safetensors_destroy(file);
}

static void test_safetensors_headers(void)
{
    for (size_t i = 0; i < header_case_count; i++) {
        const header_case *c = &header_cases[i];
        size_t count = 0;
        uint8_t *bytes = build(c->header, c->data_bytes, &count);
        tdm_safetensors *file = NULL;
        tdm_error err = {0};
        tdm_status status = tdm_safetensors_parse(bytes, count, "FILE", &file, &err);
        if (status != c->status) fprintf(stderr, "header %s: %s\n", c->header, err.message);
        CHECK_INT(status, c->status);
        if (c->status != TDM_OK) {
            CHECK_INT(err.status, c->status);
            CHECK_HAS(err.message, "FILE: ");
            CHECK_HAS(err.message, c->message);
            CHECK(file == NULL);
        }
        tdm_safetensors_destroy(file);
        CHECK(tdm_safetensors_parse(bytes, count, "FILE", &file, NULL) == c->status);
        if (c->status == TDM_OK) tdm_safetensors_destroy(file);
        free(bytes);
    }
}

static void test_safetensors_lengths(void)
{
    const uint64_t lengths[] = {1, 3, 100000000, 100000001, UINT64_MAX, UINT64_MAX - 7, 1u << 31};
    tdm_safetensors *file = NULL;
    tdm_error err;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        uint8_t *bytes = malloc(10);
        memcpy(bytes, &lengths[i], 8);
        bytes[8] = '{';
        bytes[9] = '}';
        CHECK_INT(tdm_safetensors_parse(bytes, 10, "FILE", &file, &err), TDM_ERR_FORMAT);
        free(bytes);
    }
    for (size_t count = 0; count < 8; count++) {
        uint8_t *bytes = calloc(1, count + 1);
        CHECK_INT(tdm_safetensors_parse(bytes, count, "FILE", &file, &err), TDM_ERR_FORMAT);
        CHECK_HAS(err.message, "8 bytes of length");
        free(bytes);
    }
    CHECK_INT(tdm_safetensors_open(check_path("absent"), &file, &err), TDM_ERR_NOT_FOUND);
    CHECK_INT(tdm_safetensors_open(check_dir(), &file, &err), TDM_ERR_INVALID);
    CHECK_INT(tdm_file_replace(check_path("empty"), "", 0, &err), TDM_OK);
    CHECK_INT(tdm_safetensors_open(check_path("empty"), &file, &err), TDM_ERR_FORMAT);
    CHECK(file == NULL);
}

/* Data at every offset in memory: unaligned data is copied, aligned data is not. */
static void test_safetensors_alignment(void)
{
    const char *header = "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                         "\"b\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[3,19]}}";
    size_t count = 0;
    uint8_t *bytes = build(header, 19, &count);
    int copies = 0;
    for (size_t shift = 0; shift < 16; shift++) {
        uint8_t *moved = malloc(count + shift);
        memcpy(moved + shift, bytes, count);
        tdm_safetensors *file = NULL;
        tdm_error err;
        CHECK_INT(tdm_safetensors_parse(moved + shift, count, "FILE", &file, &err), TDM_OK);
        const uint8_t *data = moved + shift + count - 19;
        const tdm_tensor *b = &tdm_safetensors_find(file, "b")->tensor;
        CHECK(tdm_safetensors_find(file, "a")->tensor.data == data);
        CHECK_INT((uintptr_t)b->data % 8, 0);
        CHECK(memcmp(b->data, data + 3, 16) == 0);
        CHECK_INT(b->data == data + 3, (uintptr_t)(data + 3) % 8 == 0);
        copies += b->data != data + 3;
        tdm_safetensors_destroy(file);
        free(moved);
    }
    CHECK_INT(copies, 14);
    free(bytes);
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static void test_checkpoint_round_trip(void)
{
    tdm_error err;
    sample_state s;
    fill_state(&s, 120);
    s.content.position.seed = UINT64_MAX; /* JSON numbers are exact here */
    s.content.position.samples = ((uint64_t)1 << 53) + 1;
    s.content.numerics = "portable 7";
    CHECK_INT(tdm_checkpoint_save(check_path("c"), &s.content, &err), TDM_OK);
    tdm_checkpoint *checkpoint = NULL;
    CHECK_INT(tdm_checkpoint_open(check_path("c"), &checkpoint, &err), TDM_OK);
    const tdm_checkpoint_content *c = tdm_checkpoint_content_of(checkpoint);
    CHECK(memcmp(&c->position, &s.content.position, sizeof(c->position)) == 0);
    CHECK_TEXT(c->job_hash, "0123abcd");
    CHECK_TEXT(c->data_hash, "feed");
    CHECK_TEXT(c->numerics, "portable 7");
    CHECK_TEXT(c->job_yaml, s.content.job_yaml);
    CHECK_INT(c->class_count, 3);
    for (int i = 0; i < 3; i++) CHECK_TEXT(c->class_names[i], s.classes[i]);
    CHECK(tdm_shape_equal(&c->sample_shape, &s.content.sample_shape));
    CHECK_INT(c->tensor_count, 4);
    CHECK_TEXT(c->tensors[0].name, "adam.count");
    CHECK_TEXT(c->tensors[3].name, "w");
    const tdm_named_tensor *w = tdm_checkpoint_find(checkpoint, "w");
    CHECK(w && same_bytes(w->tensor.data, s.weight, sizeof(s.weight)));
    CHECK(tdm_checkpoint_find(checkpoint, "x") == NULL);

    char saved[TDM_SHA256_HEX];
    char loaded[TDM_SHA256_HEX];
    CHECK_INT(tdm_state_hash(&s.content.position, s.tensors, 4, saved, &err), TDM_OK);
    CHECK_INT(tdm_state_hash(&c->position, c->tensors, c->tensor_count, loaded, &err), TDM_OK);
    CHECK_TEXT(loaded, saved);
    CHECK_INT(tdm_checkpoint_save(check_path("again"), c, &err), TDM_OK);
    tdm_checkpoint_destroy(checkpoint);

    tdm_file_bytes one = {0};
    tdm_file_bytes two = {0};
    CHECK_INT(tdm_file_read(check_path("c"), 0, &one, &err), TDM_OK);
    CHECK_INT(tdm_file_read(check_path("again"), 0, &two, &err), TDM_OK);
    CHECK(one.count == two.count && memcmp(one.data, two.data, one.count) == 0);
    tdm_file_bytes_release(&one);
    tdm_file_bytes_release(&two);

    tdm_checkpoint_content bare = {.job_yaml = "", .job_hash = ""}; /* the smallest one */
    CHECK_INT(tdm_checkpoint_save(check_path("bare"), &bare, &err), TDM_OK);
    CHECK_INT(tdm_checkpoint_open(check_path("bare"), &checkpoint, &err), TDM_OK);
    c = tdm_checkpoint_content_of(checkpoint);
    CHECK(c->data_hash == NULL && c->numerics == NULL && c->class_count == 0 &&
          c->sample_shape.rank == 0);
    CHECK_INT(c->tensor_count, 0);
    tdm_checkpoint_destroy(checkpoint);
}

static void test_checkpoint_save_refuses(void)
{
    tdm_error err;
    sample_state s;
    fill_state(&s, 3);
    const char *path = check_path("c");
    s.content.job_yaml = NULL;
    CHECK_INT(tdm_checkpoint_save(path, &s.content, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "step 3");
    fill_state(&s, 3);
    s.content.job_hash = NULL;
    CHECK_INT(tdm_checkpoint_save(path, &s.content, &err), TDM_ERR_INVALID);
    fill_state(&s, 3);
    s.content.class_count = -1;
    CHECK_INT(tdm_checkpoint_save(path, &s.content, &err), TDM_ERR_INVALID);
    fill_state(&s, 3);
    s.content.class_names = NULL;
    CHECK_INT(tdm_checkpoint_save(path, &s.content, &err), TDM_ERR_INVALID);
    fill_state(&s, 3);
    s.classes[1] = NULL;
    CHECK_INT(tdm_checkpoint_save(path, &s.content, &err), TDM_ERR_INVALID);
    fill_state(&s, 3);
    s.content.sample_shape.dim[0] = -5;
    CHECK_INT(tdm_checkpoint_save(path, &s.content, &err), TDM_ERR_INVALID);
    fill_state(&s, 3);
    s.tensors[1].name = "w";
    CHECK_INT(tdm_checkpoint_save(path, &s.content, &err), TDM_ERR_INVALID);
    CHECK_INT(directory_entries(), 0);
}

/* Every part of the state changes the hash; the order of the arguments does not. */
static void test_state_hash(void)
{
    sample_state s;
    char base[TDM_SHA256_HEX];
    char other[TDM_SHA256_HEX];
    fill_state(&s, 9);
    CHECK_INT(tdm_state_hash(&s.content.position, s.tensors, 4, base, NULL), TDM_OK);
    tdm_named_tensor turned[4] = {s.tensors[3], s.tensors[2], s.tensors[1], s.tensors[0]};
    CHECK_INT(tdm_state_hash(&s.content.position, turned, 4, other, NULL), TDM_OK);
    CHECK_TEXT(other, base);

    for (int field = 0; field < 5; field++) {
        uint64_t position[5];
        memcpy(position, &s.content.position, sizeof(position));
        position[field]++;
        CHECK_INT(tdm_state_hash((const tdm_position *)position, s.tensors, 4, other, NULL),
                  TDM_OK);
        CHECK(strcmp(other, base) != 0);
    }
    for (int change = 0; change < 5; change++) {
        fill_state(&s, 9);
        if (change == 0) s.tensors[0].name = "W";
        if (change == 1) s.tensors[0].tensor.dtype = TDM_DTYPE_I32;
        if (change == 2) s.tensors[0].tensor.shape = tdm_shape_2(300, 2);
        if (change == 3) s.tensors[3].tensor.shape = tdm_shape_2(0, 0);
        if (change == 4) s.weight[1][299] += 1;
        CHECK_INT(tdm_state_hash(&s.content.position, s.tensors, 4, other, NULL), TDM_OK);
        CHECK(strcmp(other, base) != 0);
    }
    fill_state(&s, 9);
    CHECK_INT(tdm_state_hash(&s.content.position, s.tensors, 3, other, NULL), TDM_OK);
    CHECK(strcmp(other, base) != 0);
    s.tensors[1].name = "w";
    CHECK_INT(tdm_state_hash(&s.content.position, s.tensors, 4, other, NULL), TDM_ERR_INVALID);
}

/*
 * Writes the texts of a checkpoint, with one of them replaced (NULL: left out), and with both hashes recomputed
 * if `resealed`: a deliberate forgery.
 */
static tdm_status open_forged(const char *name, const char *text, bool resealed, tdm_error *err)
{
    sample_state s;
    fill_state(&s, 5);
    const char *path = check_path("forged");
    CHECK_INT(tdm_checkpoint_save(path, &s.content, err), TDM_OK);
    tdm_safetensors *file = NULL;
    CHECK_INT(tdm_safetensors_open(path, &file, err), TDM_OK);
    tdm_named_text texts[10];
    size_t count = 0;
    for (size_t i = 0; i < tdm_safetensors_metadata_count(file); i++) {
        texts[count] = *tdm_safetensors_metadata_at(file, i);
        if (strcmp(texts[count].name, name) == 0) {
            if (!text) continue;
            texts[count].text = text;
        }
        count++;
    }
    char sha256[TDM_SHA256_HEX];
    tdm_sha256 *hash = tdm_sha256_create();
    for (size_t i = 0; i < count; i++) {
        if (strcmp(texts[i].name, "sha256") == 0) continue;
        tdm_sha256_text(hash, texts[i].name);
        tdm_sha256_text(hash, texts[i].text);
    }
    tdm_sha256_finish(hash, sha256);
    tdm_sha256_destroy(hash);
    for (size_t i = 0; i < count && resealed; i++) {
        if (strcmp(texts[i].name, "sha256") == 0) texts[i].text = sha256;
    }
    CHECK_INT(tdm_safetensors_write(path, s.tensors, 4, texts, count, err), TDM_OK);
    tdm_safetensors_destroy(file);
    tdm_checkpoint *checkpoint = NULL;
    tdm_status status = tdm_checkpoint_open(path, &checkpoint, err);
    tdm_checkpoint_destroy(checkpoint);
    return status;
}

static void test_checkpoint_open_refuses(void)
{
    static const struct {
        const char *name;
        const char *text;
        tdm_status status;
        const char *message;
    } cases[] = {
        {"absent", NULL, TDM_OK, NULL}, /* the forgery itself is well-formed */
        {"format", NULL, TDM_ERR_FORMAT, "not a checkpoint of Tandem"},
        {"format", "pt", TDM_ERR_FORMAT, "not a checkpoint of Tandem"},
        {"format", "tandem-checkpoint-3", TDM_ERR_UNSUPPORTED, "tandem-checkpoint-3"},
        {"sha256", NULL, TDM_ERR_FORMAT, "sha256"},
        {"state", NULL, TDM_ERR_FORMAT, "state"},
        {"state", "00", TDM_ERR_CHECKSUM, "expected 00"},
        {"position", NULL, TDM_ERR_FORMAT, "position"},
        {"position", "", TDM_ERR_FORMAT, "position"},
        {"position", "[]", TDM_ERR_FORMAT, "not an object"},
        {"position", "{\"step\":5,\"epoch\":2,\"position\":77,\"samples\":320}", TDM_ERR_FORMAT,
         "seed"},
        {"position", "{\"step\":-5,\"epoch\":2,\"position\":77,\"samples\":320,\"seed\":42}",
         TDM_ERR_FORMAT, "step"},
        {"position", "{\"step\":5.5,\"epoch\":2,\"position\":77,\"samples\":320,\"seed\":42}",
         TDM_ERR_FORMAT, "step"},
        {"position", "{\"step\":6,\"epoch\":2,\"position\":77,\"samples\":320,\"seed\":42}",
         TDM_ERR_CHECKSUM, "state hash"},
        {"job", NULL, TDM_ERR_FORMAT, "\"job\""},
        {"job_hash", NULL, TDM_ERR_FORMAT, "job_hash"},
        {"data_hash", NULL, TDM_OK, NULL},
        {"classes", NULL, TDM_ERR_FORMAT, "classes"},
        {"classes", "{}", TDM_ERR_FORMAT, "not a list"},
        {"classes", "[\"a\",1]", TDM_ERR_FORMAT, "item 1"},
        {"classes", "[\"a\\u0000b\"]", TDM_ERR_FORMAT, "item 0"},
        {"sample_shape", NULL, TDM_ERR_FORMAT, "sample_shape"},
        {"sample_shape", "3", TDM_ERR_FORMAT, "not a list"},
        {"sample_shape", "[-1]", TDM_ERR_FORMAT, "is not a size"},
        {"sample_shape", "[1,2,3,4,5,6,7,8,9]", TDM_ERR_FORMAT, "is not a size"},
        {"sample_shape", "[4294967296,4294967296]", TDM_ERR_FORMAT, "overflows"},
        {"sample_shape", "[9223372036854775808]", TDM_ERR_FORMAT, "is not a size"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tdm_error err = {0};
        tdm_status status = open_forged(cases[i].name, cases[i].text, true, &err);
        if (status != cases[i].status) {
            fprintf(stderr, "%s = %s: %s\n", cases[i].name,
                    cases[i].text ? cases[i].text : "(none)", err.message);
        }
        CHECK_INT(status, cases[i].status);
        if (cases[i].message) CHECK_HAS(err.message, cases[i].message);
        if (cases[i].message) CHECK_HAS(err.message, "forged: ");
    }
    tdm_error err;
    CHECK_INT(open_forged("job", "model: other\n", false, &err), TDM_ERR_CHECKSUM);
    CHECK_HAS(err.message, "resume from an older checkpoint");
    CHECK_INT(open_forged("job", "model: other\n", true, &err), TDM_OK);
}

/* Opens `bytes` as a checkpoint file. */
static tdm_status open_bytes(const uint8_t *bytes, size_t count)
{
    tdm_error err;
    tdm_checkpoint *checkpoint = NULL;
    const char *path = check_path("damaged");
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(bytes, 1, count, file) == count && fclose(file) == 0);
    tdm_status status = tdm_checkpoint_open(path, &checkpoint, &err);
    tdm_checkpoint_destroy(checkpoint);
    return status;
}

static void test_checkpoint_damage(void)
{
    tdm_error err;
    sample_state s;
    fill_state(&s, 120);
    CHECK_INT(tdm_checkpoint_save(check_path("c"), &s.content, &err), TDM_OK);
    tdm_file_bytes good = {0};
    CHECK_INT(tdm_file_read(check_path("c"), 0, &good, &err), TDM_OK);
    uint8_t *bytes = malloc(good.count + 1);
    memcpy(bytes, good.data, good.count);
    CHECK_INT(open_bytes(bytes, good.count), TDM_OK);

    uint64_t header_bytes = 0;
    memcpy(&header_bytes, bytes, 8);
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 1, .stream = TDM_RNG_STREAM_USER});
    for (int i = 0; i < 300; i++) {
        /* every other bit of the header, which is smaller and more sensitive */
        size_t at = (size_t)tdm_rng_below(&rng, i % 2 ? good.count : 8 + header_bytes);
        uint8_t flip = (uint8_t)(1 + tdm_rng_below(&rng, 255));
        bytes[at] ^= flip;
        tdm_status status = open_bytes(bytes, good.count);
        if (status == TDM_OK) fprintf(stderr, "byte %zu ^ %02x went unseen\n", at, flip);
        CHECK(status != TDM_OK);
        bytes[at] ^= flip;
    }
    for (int i = 0; i < 100; i++) {
        CHECK(open_bytes(bytes, (size_t)tdm_rng_below(&rng, good.count)) != TDM_OK);
    }
    bytes[good.count] = 0;
    CHECK(open_bytes(bytes, good.count + 1) != TDM_OK); /* one byte too many */
    bytes[good.count - 1] ^= 1;
    CHECK_INT(open_bytes(bytes, good.count), TDM_ERR_CHECKSUM);
    bytes[good.count - 1] ^= 1;
    CHECK_INT(open_bytes(bytes, good.count), TDM_OK); /* the flips were undone */
    free(bytes);
    tdm_file_bytes_release(&good);
}

/* ---- directories --------------------------------------------------------------------------------- */

static void save_step(uint64_t step)
{
    tdm_error err;
    sample_state s;
    fill_state(&s, step);
    tdm_arena *arena = tdm_arena_create("test");
    tdm_status status = tdm_checkpoint_save(tdm_checkpoint_path(arena, check_dir(), step),
                                            &s.content, &err);
    CHECK_INT(status, TDM_OK);
    tdm_arena_destroy(arena);
}

/* The step of the newest checkpoint that opens; -1 if there is none. */
static long long newest_step(void)
{
    tdm_error err;
    tdm_arena *arena = tdm_arena_create("test");
    char *path = NULL;
    tdm_checkpoint *checkpoint = NULL;
    long long step = -1;
    tdm_status status = tdm_checkpoint_newest(check_dir(), arena, &path, &err);
    if (status == TDM_OK) {
        CHECK_INT(tdm_checkpoint_open(path, &checkpoint, &err), TDM_OK);
        step = (long long)tdm_checkpoint_content_of(checkpoint)->position.step;
        CHECK_TEXT(path, tdm_checkpoint_path(arena, check_dir(), (uint64_t)step));
        tdm_checkpoint_destroy(checkpoint);
    } else {
        CHECK_INT(status, TDM_ERR_NOT_FOUND);
        CHECK_HAS(err.message, check_dir());
    }
    tdm_arena_destroy(arena);
    return step;
}

static void count_warnings(const tdm_log_record *record, void *user)
{
    if (record->level == TDM_LOG_WARN && strcmp(record->room, "checkpoint") == 0) (*(int *)user)++;
}

typedef struct read_calls {
    int count;
    uint64_t step;
    tdm_status status; /* of the first call */
} read_calls;

/* A reader whose first file is removed before it opens it. */
static tdm_status remove_and_miss(const char *path, void *user, tdm_error *err)
{
    read_calls *calls = user;
    CHECK(tdm_checkpoint_step_of(strrchr(path, '/') + 1, &calls->step));
    if (calls->count++ > 0) return TDM_OK;
    CHECK_INT(unlink(path), 0);
    return tdm_fail(err, calls->status, "%s: removed by the test", path);
}

static void test_newest(void)
{
    tdm_error err;
    int warnings = 0;
    CHECK_INT(tdm_log_add_sink(count_warnings, &warnings, TDM_LOG_WARN), TDM_OK);
    tdm_arena *arena = tdm_arena_create("test");
    char *path = NULL;
    CHECK_TEXT(tdm_checkpoint_path(arena, "runs", 120), "runs/step-000000000120.safetensors");
    CHECK_INT(tdm_checkpoint_newest(check_path("absent"), arena, &path, &err), TDM_ERR_NOT_FOUND);
    CHECK_INT(newest_step(), -1);
    save_step(0);
    CHECK_INT(newest_step(), 0);
    save_step(9);
    save_step(100);
    save_step(999999999999);
    save_step(1000000000000); /* one digit more than the others: numbers are compared, not texts */
    CHECK_INT(newest_step(), 1000000000000);

    static const char *const foreign[] = {
        "step-9999999999999.safetensors.bak", "step-.safetensors",
        "step-5000000000000x.safetensors",    "step-99999999999999999999999.safetensors",
        "step-0005000000000000.safetensors",  "step-7.safetensors",
        "step- 50000000000000.safetensors",   "notes"};
    for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++) {
        CHECK_INT(tdm_file_replace(check_path(foreign[i]), "x", 1, &err), TDM_OK);
    }
    CHECK_INT(newest_step(), 1000000000000);
    CHECK_INT(warnings, 0);

    CHECK_INT(
        tdm_file_replace(tdm_checkpoint_path(arena, check_dir(), 1000000000000), "x", 1, &err),
        TDM_OK);
    CHECK_INT(truncate(tdm_checkpoint_path(arena, check_dir(), 999999999999), 3000), 0);
    CHECK_INT(newest_step(), 100);
    CHECK_INT(warnings, 2);

    /* An error of the machine is not damage: no older checkpoint may be used instead. */
    tdm_os_test_fail_files(TDM_FAULT_OPEN, 2, EMFILE);
    CHECK_INT(tdm_checkpoint_newest(check_dir(), arena, &path, &err), TDM_ERR_SYSTEM);
    tdm_os_test_fail_files(0, 0, 0);

    /* A file that is listed and does not exist when it is opened: another process has pruned it. */
    CHECK_INT(symlink("nowhere", tdm_checkpoint_path(arena, check_dir(), 200)), 0);
    CHECK_INT(newest_step(), 100);
    CHECK_INT(unlink(tdm_checkpoint_path(arena, check_dir(), 200)), 0);
    read_calls calls = {.status = TDM_ERR_NOT_FOUND};
    CHECK_INT(tdm_checkpoint_read_newest(check_dir(), arena, remove_and_miss, &calls, &err),
              TDM_OK);
    CHECK_INT(calls.count, 2);
    CHECK_INT((long long)calls.step, 9);
    save_step(100);
    calls = (read_calls){.status = TDM_ERR_IO};
    CHECK_INT(tdm_checkpoint_read_newest(check_dir(), arena, remove_and_miss, &calls, &err),
              TDM_ERR_IO);
    CHECK_INT(calls.count, 1);
    save_step(100);

    for (uint64_t step = 0; step <= 100; step++) {
        char *other = tdm_checkpoint_path(arena, check_dir(), step);
        if (tdm_path_is_file(other)) CHECK_INT(truncate(other, 0), 0);
    }
    CHECK_INT(newest_step(), -1);
    CHECK_INT(tdm_checkpoint_newest(check_dir(), arena, &path, &err), TDM_ERR_NOT_FOUND);
    CHECK_HAS(err.message, "none of its 5 checkpoints");
    CHECK(path == NULL);
    tdm_log_remove_sink(count_warnings, &warnings);
    tdm_arena_destroy(arena);
}

static void touch(const char *fmt, long pid)
{
    char name[128];
    snprintf(name, sizeof(name), fmt, pid);
    FILE *file = fopen(check_path(name), "wb");
    CHECK(file && fclose(file) == 0);
}

static void test_prune(void)
{
    tdm_error err;
    for (uint64_t step = 1; step <= 5; step++) save_step(step * 10);
    touch("notes%ld", 0);
    touch("step-1.safetensors%ld", 0);
    CHECK_INT(tdm_checkpoint_prune(check_dir(), -1, &err), TDM_ERR_INVALID);
    CHECK_INT(tdm_checkpoint_prune(check_path("absent"), 1, &err), TDM_ERR_NOT_FOUND);
    CHECK_INT(tdm_checkpoint_prune(check_dir(), 0, &err), TDM_OK);
    CHECK_INT(tdm_checkpoint_prune(check_dir(), 5, &err), TDM_OK);
    CHECK_INT(tdm_checkpoint_prune(check_dir(), INT64_MAX, &err), TDM_OK);
    CHECK_INT(directory_entries(), 7);
    CHECK_INT(tdm_checkpoint_prune(check_dir(), 2, &err), TDM_OK);
    CHECK_INT(directory_entries(), 4);
    CHECK(tdm_path_is_file(check_path("step-000000000040.safetensors")));
    CHECK_INT(newest_step(), 50);

    pid_t gone = fork();
    if (gone == 0) _exit(0);
    CHECK(waitpid(gone, NULL, 0) == gone);
    touch(".step-000000000060.safetensors.%ld.tmp", (long)gone);
    touch(".step-000000000060.safetensors.%ld-12.tmp", (long)gone);
    pid_t ended = fork(); /* and was not waited for */
    if (ended == 0) _exit(0);
    waitid(P_PID, (id_t)ended, &(siginfo_t){0}, WEXITED | WNOWAIT);
    touch(".step-000000000060.safetensors.%ld.tmp", (long)ended);
    touch(".step-000000000060.safetensors.%ld.tmp", (long)getpid());
    CHECK_INT(directory_entries(), 8);
    CHECK_INT(tdm_checkpoint_prune(check_dir(), 2, &err), TDM_OK);
    CHECK_INT(directory_entries(), 4);

    /* it is alive and may be writing */
    touch(".step-000000000060.safetensors.%ld.tmp", (long)getppid());
    touch(".step-000000000060.safetensors.%ld.tmp", 0);
    touch(".step-000000000060.safetensors.x%ld.tmp", (long)gone);
    touch(".step-000000000060.safetensors.%ld.tmp.kept", (long)gone);
    touch(".other.safetensors.%ld.tmp", (long)gone);
    CHECK_INT(tdm_checkpoint_prune(check_dir(), 0, &err), TDM_OK);
    CHECK_INT(directory_entries(), 9);
}

/* Each operation of a save fails in turn: the previous checkpoint must still open, and no other file may
 * exist. */
static void test_save_with_faults(void)
{
    static const struct {
        int error_number;
        tdm_status status;
    } kinds[] = {{EIO, TDM_ERR_IO}, {ENOSPC, TDM_ERR_NO_SPACE}};
    for (size_t kind = 0; kind < 2; kind++) {
        for (int same_name = 0; same_name < 2; same_name++) {
            save_step(10);
            tdm_error err;
            sample_state s;
            fill_state(&s, same_name ? 10 : 20);
            if (same_name) s.weight[0][0] = 99; /* a different state under the old name */
            tdm_arena *arena = tdm_arena_create("test");
            const char *path = tdm_checkpoint_path(arena, check_dir(), s.content.position.step);
            int failures = 0;
            for (int k = 1; k < 100; k++) {
                tdm_os_test_fail_files(TDM_FAULT_ALL, k, kinds[kind].error_number);
                tdm_status status = tdm_checkpoint_save(path, &s.content, &err);
                tdm_os_test_fail_files(0, 0, 0);
                if (status == TDM_OK) break;
                failures++;
                CHECK_INT(status, kinds[kind].status);
                CHECK_HAS(err.message, path);
                CHECK_INT(directory_entries(), 1);
                CHECK_INT(newest_step(), 10);
                tdm_checkpoint *old = NULL;
                CHECK_INT(
                    tdm_checkpoint_open(tdm_checkpoint_path(arena, check_dir(), 10), &old, &err),
                    TDM_OK);
                CHECK_NEAR(*(float *)tdm_checkpoint_find(old, "w")->tensor.data, 10, 0);
                tdm_checkpoint_destroy(old);
            }
            CHECK_INT(failures, 9); /* two opens, header and three tensors, fsync, rename, fsync */
            CHECK_INT(newest_step(), same_name ? 10 : 20);
            CHECK_INT(directory_entries(), same_name ? 1 : 2);
            tdm_arena_destroy(arena);
            check_dir_reset();
        }
    }
}

/* The loop of the child: saves step after step, prunes, and never ends by itself. */
static void save_for_ever(uint64_t step)
{
    static float big[200000];
    sample_state s;
    for (;; step++) {
        fill_state(&s, step);
        for (size_t i = 0; i < 200000; i++) big[i] = (float)step + (float)i;
        s.tensors[0].tensor = (tdm_tensor){TDM_DTYPE_F32, tdm_shape_1(200000), big};
        tdm_arena *arena = tdm_arena_create("child");
        const char *path = tdm_checkpoint_path(arena, check_dir(), step);
        if (tdm_checkpoint_save(path, &s.content, NULL) != TDM_OK) _exit(1);
        if (tdm_checkpoint_prune(check_dir(), 3, NULL) != TDM_OK) _exit(2);
        tdm_arena_destroy(arena);
    }
}

static void test_kill_while_saving(void)
{
    tdm_error err;
    save_step(1);
    long long last = 1;
    int leftovers = 0;
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 2, .stream = TDM_RNG_STREAM_USER});
    /* On a busy machine or a slow disk a save takes longer than the usual time: then the time is extended. */
    for (int kills = 0; kills < 40 || (kills < 200 && (last == 1 || leftovers == 0)); kills++) {
        pid_t child = fork();
        if (child == 0) save_for_ever((uint64_t)last + 1);
        CHECK(child > 0);
        usleep((useconds_t)(500 + tdm_rng_below(&rng, 40000) * (1 + (uint64_t)kills / 40)));
        CHECK_INT(kill(child, SIGKILL), 0);
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

        long long newest = newest_step();
        CHECK(newest >= last);
        last = newest;
        int before = directory_entries();
        CHECK_INT(tdm_checkpoint_prune(check_dir(), 0, &err), TDM_OK);
        leftovers += before - directory_entries();
        CHECK_INT(tdm_checkpoint_prune(check_dir(), 3, &err), TDM_OK);
        CHECK_INT(directory_entries(), last < 3 ? last : 3);
        CHECK_INT(newest_step(), last);
    }
    printf("     %lld checkpoints saved, %d temporary files left by kills\n", last, leftovers);
    CHECK(last > 1);
    CHECK(leftovers > 0); /* otherwise no kill hit a save, and the test shows nothing */
}

/* Before a case forks: its children use the directory as well. */
static void directory_make(void)
{
    check_dir();
}

static const check_test tests[] = {
    CHECK_TEST(test_safetensors_round_trip),
    CHECK_TEST(test_safetensors_canonical),
    CHECK_TEST(test_safetensors_write_refuses),
    CHECK_TEST(test_safetensors_headers),
    CHECK_TEST(test_safetensors_lengths),
    CHECK_TEST(test_safetensors_alignment),
    CHECK_TEST(test_checkpoint_round_trip),
    CHECK_TEST(test_checkpoint_save_refuses),
    CHECK_TEST(test_state_hash),
    CHECK_TEST(test_checkpoint_open_refuses),
    CHECK_TEST(test_checkpoint_damage),
    CHECK_TEST(test_newest),
    CHECK_TEST(test_prune),
    CHECK_TEST(test_save_with_faults),
    CHECK_TEST(test_kill_while_saving),
};

CHECK_MAIN_AROUND(tests, directory_make, NULL)
