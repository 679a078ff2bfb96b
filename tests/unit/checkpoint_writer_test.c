/*
 * checkpoint_writer_test.c: checkpoints and state hashes that are written in pieces: the same file for any
 * division, and the same as in earlier versions; missing and excess bytes; a disk that fails at each operation;
 * and a writer that gives up.
 */
#include "base/base.h"
#include "check.h"
#include "checkpoint/checkpoint.h"
#include "os/os.h"
#include "unit/checkpoint_fixture.h"

#include <errno.h>

/* Of the sample state of step 120 with two more tensors, in the second version of the format, and in the
 * first. They never change. */
#define OLD_STATE "143e4b18b13c2ab4bb3cd07e3481c0cde92309e32e1b69cd08da1f3b2cf72770"
#define OLD_FILE "63985073e4b9e925cf41e65849886a001bed142ee63bfa4731642fbb80a5fde7"
#define FIRST_STATE "b538b716952c2d60274be259aa0376e213266beadf49fbb24e5b6e1f520a7b6c"
#define FIRST_FILE "9fd3002adcb01baa6b8d875d266336eb001b49d23e0f5318085594ec1ed2076d"

enum { TENSORS = 6 };

/* Tensors of element sizes 8, 4 and 1: their order in the file is not that of their names. */
typedef struct mixed_state {
    sample_state sample;
    double doubles[2];
    uint8_t bytes[3];
    tdm_named_tensor tensors[TENSORS];
    tdm_named_tensor bare[TENSORS]; /* without data */
} mixed_state;

static void fill_mixed(mixed_state *m)
{
    fill_state(&m->sample, 120);
    memcpy(m->tensors, m->sample.tensors, sizeof(m->sample.tensors));
    m->doubles[0] = 1.5;
    m->doubles[1] = -2;
    for (int i = 0; i < 3; i++) m->bytes[i] = (uint8_t)(i + 1);
    m->tensors[4] = (tdm_named_tensor){"schedule.plateau",
                                       {TDM_DTYPE_F64, tdm_shape_1(2), m->doubles}};
    m->tensors[5] = (tdm_named_tensor){"a.bytes", {TDM_DTYPE_U8, tdm_shape_1(3), m->bytes}};
    memcpy(m->bare, m->tensors, sizeof(m->bare));
    for (int i = 0; i < TENSORS; i++) m->bare[i].tensor.data = NULL;
    m->sample.content.tensors = m->tensors;
    m->sample.content.tensor_count = TENSORS;
}

/* All bytes of the state, in the order in which they are pushed. */
static uint8_t *line_up(const mixed_state *m, const size_t *order, size_t *count)
{
    size_t bytes = 0;
    for (int i = 0; i < TENSORS; i++) bytes += tdm_tensor_bytes(&m->tensors[i].tensor);
    uint8_t *out = malloc(bytes);
    size_t at = 0;
    for (int i = 0; i < TENSORS; i++) {
        const tdm_tensor *tensor = &m->tensors[order[i]].tensor;
        if (!tensor->data) continue;
        memcpy(out + at, tensor->data, tdm_tensor_bytes(tensor));
        at += tdm_tensor_bytes(tensor);
    }
    CHECK_INT(at, bytes);
    *count = bytes;
    return out;
}

static void hash_file(const char *path, char hex[TDM_SHA256_HEX])
{
    tdm_error err;
    tdm_file_bytes file = {0};
    CHECK_INT(tdm_file_read(path, 0, &file, &err), TDM_OK);
    CHECK_INT(tdm_sha256_of(file.data, file.count, hex), TDM_OK);
    tdm_file_bytes_release(&file);
}

/* Pushes all bytes but the last `missing`, in chunks of `chunk`. */
static tdm_status write_in_chunks(const char *path, const mixed_state *m, size_t chunk,
                                  size_t missing, char hash[TDM_SHA256_HEX], tdm_error *err)
{
    tdm_checkpoint_content content = m->sample.content;
    content.tensors = m->bare;
    tdm_checkpoint_writer *writer = NULL;
    TDM_TRY(tdm_checkpoint_writer_create(path, &content, &writer, err));
    size_t count = 0;
    uint8_t *bytes = line_up(m, tdm_checkpoint_writer_order(writer), &count);
    tdm_status status = TDM_OK;
    for (size_t at = 0; at + missing < count && status == TDM_OK;) {
        size_t left = count - missing - at;
        size_t some = chunk < left ? chunk : left;
        status = tdm_checkpoint_writer_push(writer, bytes + at, some, err);
        at += some;
    }
    free(bytes);
    return tdm_checkpoint_writer_commit(writer, hash, err);
}

static void test_old_bytes(void)
{
    tdm_error err;
    mixed_state m;
    fill_mixed(&m);
    char hex[TDM_SHA256_HEX];
    CHECK_INT(tdm_checkpoint_save(check_path("c"), &m.sample.content, &err), TDM_OK);
    hash_file(check_path("c"), hex);
    CHECK_TEXT(hex, OLD_FILE);
    CHECK_INT(tdm_state_hash(&m.sample.content.position, m.tensors, TENSORS, hex, &err), TDM_OK);
    CHECK_TEXT(hex, OLD_STATE);

    static const size_t chunks[] = {1, 2, 3, 7, 8, 64, 1000, 1201, 100000};
    for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
        const char *path = check_path("pieces");
        char state[TDM_SHA256_HEX] = "";
        CHECK_INT(write_in_chunks(path, &m, chunks[i], 0, state, &err), TDM_OK);
        CHECK_TEXT(state, OLD_STATE);
        hash_file(path, hex);
        CHECK_TEXT(hex, OLD_FILE);
        CHECK_INT(write_in_chunks(path, &m, chunks[i], 0, NULL, &err), TDM_OK);
    }
    CHECK_INT(directory_entries(), 2);
}

/* Writes the sample state in the first version of the format. */
static void write_first_format(const mixed_state *m, const char *path)
{
    tdm_error err;
    tdm_safetensors *file = NULL;
    CHECK_INT(tdm_checkpoint_save(check_path("new"), &m->sample.content, &err), TDM_OK);
    CHECK_INT(tdm_safetensors_open(check_path("new"), &file, &err), TDM_OK);
    tdm_named_text texts[16];
    size_t count = tdm_safetensors_metadata_count(file);
    char sum[TDM_SHA256_HEX];
    tdm_sha256 *hash = tdm_sha256_create();
    for (size_t i = 0; i < count; i++) {
        texts[i] = *tdm_safetensors_metadata_at(file, i);
        if (strcmp(texts[i].name, "format") == 0) texts[i].text = "tandem-checkpoint-1";
        if (strcmp(texts[i].name, "state") == 0) texts[i].text = FIRST_STATE;
        if (strcmp(texts[i].name, "sha256") == 0) {
            texts[i].text = sum;
            continue;
        }
        tdm_sha256_text(hash, texts[i].name);
        tdm_sha256_text(hash, texts[i].text);
    }
    tdm_sha256_finish(hash, sum);
    tdm_sha256_destroy(hash);
    CHECK_INT(tdm_safetensors_write(path, m->tensors, TENSORS, texts, count, &err), TDM_OK);
    tdm_safetensors_destroy(file);
}

static void test_first_format(void)
{
    tdm_error err;
    mixed_state m;
    fill_mixed(&m);
    char hex[TDM_SHA256_HEX];
    const char *path = check_path("first");
    write_first_format(&m, path);
    hash_file(path, hex);
    CHECK_TEXT(hex, FIRST_FILE);
    tdm_checkpoint *checkpoint = NULL;
    CHECK_INT(tdm_checkpoint_open(path, &checkpoint, &err), TDM_OK);
    const tdm_checkpoint_content *c = tdm_checkpoint_content_of(checkpoint);
    CHECK_INT(tdm_state_hash(&c->position, c->tensors, c->tensor_count, hex, &err), TDM_OK);
    CHECK_TEXT(hex, OLD_STATE);
    tdm_checkpoint_destroy(checkpoint);
    m.sample.weight[1][7] += 1;
    write_first_format(&m, path);
    CHECK_INT(tdm_checkpoint_open(path, &checkpoint, &err), TDM_ERR_CHECKSUM);
    CHECK_HAS(err.message, "state hash");
}

static void test_hasher(void)
{
    tdm_error err;
    mixed_state m;
    fill_mixed(&m);
    const tdm_position *position = &m.sample.content.position;
    tdm_state_hasher *hasher = NULL;
    CHECK_INT(tdm_state_hasher_create(position, m.bare, TENSORS, &hasher, &err), TDM_OK);
    size_t count = 0;
    uint8_t *bytes = line_up(&m, tdm_state_hasher_order(hasher), &count);
    CHECK_TEXT(m.bare[tdm_state_hasher_order(hasher)[0]].name, "a.bytes");
    char hex[TDM_SHA256_HEX] = "";
    CHECK_INT(tdm_state_hasher_push(hasher, bytes, count - 1, &err), TDM_OK);
    CHECK_INT(tdm_state_hasher_finish(hasher, hex, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "'w' lacks its last 1 byte");
    CHECK_INT(tdm_state_hasher_push(hasher, bytes + count - 1, 1, &err), TDM_OK);
    CHECK_INT(tdm_state_hasher_finish(hasher, hex, &err), TDM_OK);
    CHECK_TEXT(hex, OLD_STATE);
    tdm_state_hasher_destroy(hasher);

    CHECK_INT(tdm_state_hasher_create(position, m.bare, TENSORS, &hasher, &err), TDM_OK);
    CHECK_INT(tdm_state_hasher_push(hasher, bytes, count, &err), TDM_OK);
    CHECK_INT(tdm_state_hasher_push(hasher, bytes, 0, &err), TDM_OK);
    CHECK_INT(tdm_state_hasher_push(hasher, bytes, 1, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "1 bytes more");
    tdm_state_hasher_destroy(hasher);
    free(bytes);

    CHECK_INT(tdm_state_hash(position, m.bare, TENSORS, hex, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "has no data");
    m.bare[1].name = "w";
    CHECK_INT(tdm_state_hasher_create(position, m.bare, TENSORS, &hasher, &err), TDM_ERR_INVALID);
    CHECK_INT(tdm_state_hasher_create(position, NULL, 0, &hasher, &err), TDM_OK);
    CHECK_INT(tdm_state_hasher_finish(hasher, hex, &err), TDM_OK);
    char none[TDM_SHA256_HEX];
    CHECK_INT(tdm_state_hash(position, NULL, 0, none, &err), TDM_OK);
    CHECK_TEXT(hex, none);
    tdm_state_hasher_destroy(hasher);
}

static void test_wrong_bytes(void)
{
    tdm_error err;
    mixed_state m;
    fill_mixed(&m);
    const char *path = check_path("c");
    CHECK_INT(write_in_chunks(path, &m, 100, 1, NULL, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "checkpoint of step 120");
    CHECK_HAS(err.message, "lacks");
    CHECK_INT(directory_entries(), 0);

    tdm_checkpoint_content content = m.sample.content;
    content.tensors = m.bare;
    CHECK_INT(tdm_checkpoint_save(path, &content, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "has no data");
    tdm_checkpoint_writer *writer = NULL;
    CHECK_INT(tdm_checkpoint_writer_create(path, &content, &writer, &err), TDM_OK);
    size_t count = 0;
    uint8_t *bytes = line_up(&m, tdm_checkpoint_writer_order(writer), &count);
    CHECK_INT(tdm_checkpoint_writer_push(writer, bytes, count, &err), TDM_OK);
    CHECK_INT(tdm_checkpoint_writer_push(writer, bytes, 1, &err), TDM_ERR_INVALID);
    CHECK_INT(tdm_checkpoint_writer_push(writer, bytes, 0, &err), TDM_ERR_INVALID);
    err = (tdm_error){0};
    CHECK_INT(tdm_checkpoint_writer_commit(writer, NULL, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "more were pushed");
    CHECK_INT(directory_entries(), 0);

    CHECK_INT(tdm_checkpoint_writer_create(path, &content, &writer, &err), TDM_OK);
    CHECK_INT(tdm_checkpoint_writer_push(writer, bytes, count / 2, &err), TDM_OK);
    tdm_checkpoint_writer_abandon(writer);
    tdm_checkpoint_writer_abandon(NULL);
    CHECK_INT(directory_entries(), 0);
    free(bytes);

    content.job_yaml = NULL;
    CHECK_INT(tdm_checkpoint_writer_create(path, &content, &writer, &err), TDM_ERR_INVALID);
    content.job_yaml = "\xff";
    CHECK_INT(tdm_checkpoint_writer_create(path, &content, &writer, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "UTF-8");
    CHECK_INT(directory_entries(), 0);
}

/* Each operation fails in turn: the existing file must stay unchanged, and no other file may exist. */
static void test_faults(void)
{
    tdm_error err;
    mixed_state m;
    fill_mixed(&m);
    const char *path = check_path("c");
    CHECK_INT(tdm_checkpoint_save(path, &m.sample.content, &err), TDM_OK);
    m.sample.weight[0][0] = 99;
    int failures = 0;
    char hex[TDM_SHA256_HEX];
    for (int k = 1; k < 100; k++) {
        tdm_os_test_fail_files(TDM_FAULT_ALL, k, ENOSPC);
        tdm_status status = write_in_chunks(path, &m, 1000, 0, NULL, &err);
        tdm_os_test_fail_files(0, 0, 0);
        if (status == TDM_OK) break;
        failures++;
        CHECK_INT(status, TDM_ERR_NO_SPACE);
        CHECK_HAS(err.message, path);
        CHECK_HAS(err.message, "checkpoint of step 120");
        CHECK_INT(directory_entries(), 1);
        hash_file(path, hex);
        CHECK_TEXT(hex, OLD_FILE);
    }
    /* Two opens; a.bytes, adam.count, bias, schedule.plateau, w, the last of which is divided at the ends of
     * two chunks; the header; fsync, rename, fsync. */
    CHECK_INT(failures, 13);
    hash_file(path, hex);
    CHECK(strcmp(hex, OLD_FILE) != 0);
}

/* Before a case forks: its children use the directory as well. */
static void directory_make(void)
{
    check_dir();
}

static const check_test tests[] = {
    CHECK_TEST(test_old_bytes),   CHECK_TEST(test_first_format), CHECK_TEST(test_hasher),
    CHECK_TEST(test_wrong_bytes), CHECK_TEST(test_faults),
};

CHECK_MAIN_AROUND(tests, directory_make, NULL)
