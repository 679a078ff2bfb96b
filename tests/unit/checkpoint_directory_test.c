/*
 * checkpoint_directory_test.c: the directory of checkpoints: which are kept, by which rule; the index of test
 * results; compressed files, and invalid compressed data; hashes by chunks, over threads.
 */
#include "base/base.h"
#include "check.h"
#include "checkpoint/internal.h"
#include "os/os.h"
#include "unit/checkpoint_fixture.h"

#include <math.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

/* The directory of the checkpoints: that of the case, or one in it. */
static const char *directory;

/* In memory, because the tests sync often. */
static void directory_make(void)
{
    directory = check_memory_dir();
}

static void save_step(uint64_t step, bool packed)
{
    sample_state s;
    tdm_error err;
    tdm_arena *arena = tdm_arena_create("test");
    fill_state(&s, step);
    const char *path = packed ? tdm_checkpoint_packed_path(arena, directory, step)
                              : tdm_checkpoint_path(arena, directory, step);
    CHECK_INT(tdm_checkpoint_save(path, &s.content, &err), TDM_OK);
    tdm_arena_destroy(arena);
}

static void note(uint64_t step, double loss, double accuracy)
{
    tdm_error err;
    tdm_checkpoint_metrics metrics = {.loss = loss, .accuracy = accuracy};
    CHECK_INT(tdm_checkpoint_note(directory, step, &metrics, &err), TDM_OK);
}

/* The steps of the existing checkpoints, oldest first, as text. */
static const char *steps(void)
{
    static char text[256];
    tdm_arena *arena = tdm_arena_create("test");
    tdm_checkpoint_entry *entries = NULL;
    size_t count = 0;
    CHECK_INT(tdm_checkpoint_list(directory, arena, &entries, &count, NULL), TDM_OK);
    size_t at = 0;
    text[0] = '\0';
    for (size_t i = count; i > 0; i--)
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%llu%s", at ? " " : "",
                               (unsigned long long)entries[i - 1].step,
                               entries[i - 1].packed ? "z" : "");
    tdm_arena_destroy(arena);
    return text;
}

static bool packs(void)
{
    char library[TDM_LIBRARY_BYTES];
    return tdm_checkpoint_packs(library);
}

static void retain(tdm_checkpoint_retention rules, uint64_t good)
{
    tdm_error err;
    CHECK_INT(tdm_checkpoint_retain(directory, &rules, good, &err), TDM_OK);
}

static void test_rules(void)
{
    for (uint64_t i = 1; i <= 10; i++) save_step(i, false);
    note(3, 0.2, 0.9);
    note(5, 0.1, 0.7);
    note(6, 0.3, 0.95);
    note(8, NAN, NAN); /* was not measured: no line */
    retain((tdm_checkpoint_retention){.keep = 0}, 10);
    CHECK_TEXT(steps(), "1 2 3 4 5 6 7 8 9 10");
    retain((tdm_checkpoint_retention){.keep = 2, .keep_every = 4, .keep_best = 2}, 10);
    CHECK_TEXT(steps(), "3 4 5 8 9 10");
    retain((tdm_checkpoint_retention){.keep = 1, .keep_best = 1, .by_accuracy = true}, 8);
    CHECK_TEXT(steps(), "3 8 10"); /* 6 is gone; of the others 3 has the highest accuracy */
    retain((tdm_checkpoint_retention){.keep = 1}, 3);
    CHECK_TEXT(steps(), "3 10");
    CHECK_INT(tdm_checkpoint_prune(directory, 1, NULL), TDM_OK);
    CHECK_TEXT(steps(), "10");
    tdm_error err;
    tdm_checkpoint_retention negative = {.keep_best = -1};
    CHECK_INT(tdm_checkpoint_retain(directory, &negative, 10, &err), TDM_ERR_INVALID);
}

/* Equal values: the newer one is the better. */
static void test_ties(void)
{
    for (uint64_t i = 1; i <= 4; i++) save_step(i, false);
    for (uint64_t i = 1; i <= 4; i++) note(i, 0.5, 0.5);
    retain((tdm_checkpoint_retention){.keep = 1, .keep_best = 2}, 4);
    CHECK_TEXT(steps(), "3 4");
}

static int removed_for(tdm_checkpoint_retention rules, uint64_t bytes)
{
    tdm_error err;
    tdm_checkpoint_removed removed;
    CHECK_INT(tdm_checkpoint_free_space(directory, &rules, bytes, &removed, &err), TDM_OK);
    return removed.count;
}

static uint64_t bytes_of_newest(void)
{
    tdm_arena *arena = tdm_arena_create("test");
    tdm_checkpoint_entry *entries = NULL;
    size_t count = 0;
    CHECK_INT(tdm_checkpoint_list(directory, arena, &entries, &count, NULL), TDM_OK);
    uint64_t bytes = count > 0 ? entries[0].bytes : 0;
    tdm_arena_destroy(arena);
    return bytes;
}

/* The disk here is not full, so the test requests the number of bytes to free. */
static void test_room(void)
{
    for (uint64_t i = 1; i <= 8; i++) save_step(i, false);
    note(3, 0.2, 0.9);
    tdm_checkpoint_retention rules = {.keep = 8, .keep_every = 4, .keep_best = 1};
    CHECK_INT(removed_for((tdm_checkpoint_retention){.keep = 0, .keep_best = 1}, 1), 0);
    CHECK_INT(removed_for(rules, UINT64_MAX / 2), 0); /* all together would not be enough */
    CHECK_TEXT(steps(), "1 2 3 4 5 6 7 8");
    CHECK_INT(removed_for(rules, 1), 1); /* the oldest */
    CHECK_TEXT(steps(), "2 3 4 5 6 7 8");
    CHECK_INT(removed_for(rules, bytes_of_newest() + 1), 2); /* 3 is the best, 4 a multiple */
    CHECK_TEXT(steps(), "3 4 6 7 8");
    /* The newest valid checkpoint is kept, and so are those that cannot be read. */
    CHECK_INT(tdm_file_replace(check_path("step-000000000008.safetensors"), "x", 1, NULL), TDM_OK);
    CHECK_INT(removed_for(rules, 1), 1);
    CHECK_INT(removed_for(rules, 1), 0);
    CHECK_TEXT(steps(), "3 4 7 8");
}

static void write_text(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    CHECK_INT(tdm_file_replace(path, text, strlen(text), NULL), TDM_OK);
}

static double loss_of(uint64_t step)
{
    tdm_arena *arena = tdm_arena_create("test");
    tdm_checkpoint_entry *entries = NULL;
    size_t count = 0;
    double loss = NAN;
    CHECK_INT(tdm_checkpoint_list(directory, arena, &entries, &count, NULL), TDM_OK);
    for (size_t i = 0; i < count; i++)
        if (entries[i].step == step) loss = entries[i].metrics.loss;
    tdm_arena_destroy(arena);
    return loss;
}

/* An index that is missing or invalid is rebuilt from the metrics next to the directory. */
static void test_index(void)
{
    write_text("metrics.jsonl", "{\"step\":1,\"loss\":9}\n{\"step\":1,\"test_loss\":0.5,"
                                "\"test_accuracy\":0.25}\nnot json \"test_\n{\"step\":2,\"test_lo");
    char inner[80];
    snprintf(inner, sizeof(inner), "%s/c", directory);
    directory = inner;
    CHECK_INT(tdm_dir_make(directory, NULL), TDM_OK);
    save_step(1, false);
    save_step(2, false);
    CHECK(loss_of(1) == 0.5);
    CHECK(isnan(loss_of(2)));
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "{\"format\":\"other\",\"steps\":[{\"step\":1,\"test_loss\":7}]}",
        "{\"format\":\"tandem-checkpoints-1\"}",
        "{\"format\":\"tandem-checkpoints-1\",\"steps\":7}",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        write_text("index.json", bad[i]);
        CHECK(loss_of(1) == 0.5);
    }
    write_text("index.json", "{\"format\":\"tandem-checkpoints-1\",\"steps\":[{\"step\":-1},7,null,"
                             "{\"step\":2,\"test_loss\":\"x\",\"test_accuracy\":0.1}]}");
    CHECK(isnan(loss_of(1)));
    CHECK(isnan(loss_of(2)));
    note(2, 0.75, 0.5);
    CHECK(loss_of(2) == 0.75);
    note(2, 0.5, 0.5); /* measured again */
    CHECK(loss_of(2) == 0.5);
}

/* ---- packed files ------------------------------------------------------------------------------- */

static void test_names(void)
{
    uint64_t step = 0;
    CHECK(tdm_checkpoint_step_of("step-000000000012.safetensors", &step));
    CHECK(tdm_checkpoint_step_of("step-000000000013.safetensors.zst", &step));
    CHECK_INT(step, 13);
    CHECK(!tdm_checkpoint_step_of("step-000000000013.safetensors.zstd", &step));
    CHECK(!tdm_checkpoint_step_of("step-000000000013.zst", &step));
    CHECK(!tdm_checkpoint_step_of("step-13.safetensors.zst", &step));
    CHECK(!tdm_checkpoint_step_of(".step-000000000013.safetensors.zst.7.tmp", &step));
}

static void test_packed_directory(void)
{
    if (!packs()) return;
    save_step(1, false);
    save_step(2, true);
    save_step(3, true);
    save_step(3, false); /* both kinds of one step count as one */
    CHECK_TEXT(steps(), "1 2z 3z 3");
    write_text(".step-000000000004.safetensors.zst.999999999.tmp", "half");
    write_text(".step-000000000004.safetensors.999999999-3.tmp", "half");
    write_text(".step-000000000004.other.999999999.tmp", "somebody's");
    retain((tdm_checkpoint_retention){.keep = 2}, 3);
    CHECK_TEXT(steps(), "2z 3z 3");
    CHECK_INT(directory_entries(), 4);
    tdm_arena *arena = tdm_arena_create("test");
    tdm_error err;
    char *path = NULL;
    CHECK_INT(tdm_checkpoint_newest(directory, arena, &path, &err), TDM_OK);
    CHECK(path && strstr(path, "000003.safetensors") && !strstr(path, ".zst"));
    tdm_arena_destroy(arena);
}

/* A state of several frames: compressed, decompressed, with bytes removed or changed. */
static void test_packed_bytes(void)
{
    if (!packs()) return;
    enum { NUMBERS = 700000, TRIES = 60 };
    float *numbers = malloc(NUMBERS * sizeof(float));
    for (int i = 0; i < NUMBERS; i++) numbers[i] = (float)(i % 977) * 0.25f;
    tdm_named_tensor tensor = {"w", {TDM_DTYPE_F32, tdm_shape_1(NUMBERS), numbers}};
    tdm_error err;
    CHECK_INT(tdm_safetensors_write(check_path("t"), &tensor, 1, NULL, 0, &err), TDM_OK);
    CHECK_INT(tdm_safetensors_write(check_path("t.zst"), &tensor, 1, NULL, 0, &err), TDM_OK);
    tdm_file_bytes plain = {0}, packed = {0};
    CHECK_INT(tdm_file_read(check_path("t"), 0, &plain, &err), TDM_OK);
    CHECK_INT(tdm_file_read(check_path("t.zst"), 0, &packed, &err), TDM_OK);
    CHECK(packed.count < plain.count / 2);
    tdm_pages pages = {0};
    tdm__unpacking *u = NULL;
    CHECK_INT(tdm__unpack_open(packed.data, packed.count, "t", &u, &err), TDM_OK);
    CHECK_INT(tdm__unpack_size(u), plain.count);
    CHECK_INT(tdm__unpack_head(u, 100, &err), TDM_OK);
    CHECK(same_bytes(tdm__unpack_data(u), plain.data, 100));
    CHECK_INT(tdm__unpack_rest(u, &pages, &err), TDM_OK);
    CHECK(same_bytes(pages.data, plain.data, plain.count));
    tdm__unpack_close(u);
    tdm_pages_unmap(&pages);

    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 8, .stream = TDM_RNG_STREAM_USER});
    uint8_t *changed = malloc(packed.count);
    for (int i = 0; i < TRIES; i++) {
        memcpy(changed, packed.data, packed.count);
        size_t at = 4 + (size_t)tdm_rng_below(&rng, packed.count - 4), length = packed.count;
        if (i % 2)
            length = at;
        else
            changed[at] ^= (uint8_t)(1 + tdm_rng_below(&rng, 255));
        tdm_safetensors *file = NULL;
        tdm_status status = tdm_safetensors_parse(changed, length, "t", &file, &err);
        CHECK(status != TDM_OK); /* each frame has a checksum, and the tensors need all frames */
        if (status != TDM_OK) CHECK(strncmp(err.message, "t: ", 3) == 0);
        tdm_safetensors_destroy(file);
    }
    free(changed);
    free(numbers);
    tdm_file_bytes_release(&plain);
    tdm_file_bytes_release(&packed);
}

/* A few bytes that decompress to many: decompression stops when it is clear that this is not a checkpoint. */
static void test_packed_bomb(void)
{
    if (!packs()) return;
    enum { FRAMES = 4096 };
    /* A mebibyte of zeros: eight blocks of one byte, repeated. */
    static const uint8_t head[] = {0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0x00, 0x00, 0x10, 0x00};
    uint8_t frame[sizeof(head) + 8 * 4];
    memcpy(frame, head, sizeof(head));
    for (int i = 0; i < 8; i++) {
        uint32_t block = (uint32_t)(128 << 10) << 3 | 1 << 1 | (i == 7);
        uint8_t bytes[4] = {(uint8_t)block, (uint8_t)(block >> 8), (uint8_t)(block >> 16), 0};
        memcpy(frame + sizeof(head) + 4 * (size_t)i, bytes, 4);
    }
    uint8_t *bomb = malloc(FRAMES * sizeof(frame));
    for (size_t i = 0; i < FRAMES; i++) memcpy(bomb + i * sizeof(frame), frame, sizeof(frame));
    tdm_error err;
    tdm_safetensors *file = NULL;
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    CHECK_INT(tdm_safetensors_parse(bomb, FRAMES * sizeof(frame), "b", &file, &err),
              TDM_ERR_FORMAT);
    getrusage(RUSAGE_SELF, &after);
    CHECK_HAS(err.message, "does not begin with '{'");
    CHECK(after.ru_maxrss - before.ru_maxrss < 64 << 10); /* KiB, of the four million */
    free(bomb);
}

/* Generated frames: impossible sizes, and files of other programs. */
static void test_foreign_frames(void)
{
    if (!packs()) return;
    static const uint8_t claims_much[] = {0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0,
                                          0,    0,    0,    0,    0x40, 1, 0, 0};
    static const uint8_t claims_nothing[] = {0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58, 1, 0, 0};
    static const uint8_t only_magic[] = {0x28, 0xb5, 0x2f, 0xfd};
    /* One raw block of ten bytes, the smallest safetensors file, between two frames to be skipped. */
    static const uint8_t good[] = {0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x0a, 0x51, 0x00, 0x00, 2,
                                   0,    0,    0,    0,    0,    0,    0,    '{',  '}',  0x50,
                                   0x2a, 0x4d, 0x18, 2,    0,    0,    0,    7,    7};
    tdm_error err;
    tdm_safetensors *file = NULL;
    CHECK_INT(tdm_safetensors_parse(claims_much, sizeof(claims_much), "f", &file, &err),
              TDM_ERR_FORMAT);
    CHECK_HAS(err.message, "claims more");
    CHECK_INT(tdm_safetensors_parse(claims_nothing, sizeof(claims_nothing), "f", &file, &err),
              TDM_ERR_UNSUPPORTED);
    CHECK_HAS(err.message, "zstd -d");
    CHECK_INT(tdm_safetensors_parse(only_magic, sizeof(only_magic), "f", &file, &err),
              TDM_ERR_FORMAT);
    CHECK_INT(tdm_safetensors_parse(good, sizeof(good), "f", &file, &err), TDM_OK);
    CHECK_INT(file ? (int)tdm_safetensors_count(file) : -1, 0);
    tdm_safetensors_destroy(file);
}

/* ---- chunks ------------------------------------------------------------------------------------- */

typedef struct counts {
    atomic_int of[1000];
} counts;

static void count_one(void *user, size_t index)
{
    counts *c = user;
    atomic_fetch_add(&c->of[index], 1);
}

static void test_spread(void)
{
    static const size_t sizes[] = {0, 1, 2, 7, 1000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        counts c = {0};
        tdm__spread(sizes[i], i % 2 ? 0 : UINT64_C(1) << 40, count_one, &c);
        for (size_t k = 0; k < 1000; k++) CHECK_INT(atomic_load(&c.of[k]), k < sizes[i]);
    }
}

/* In one call, in pieces, and by digests in any order: the same hash. */
static void test_chunks(void)
{
    enum { BYTES = 2 * TDM_STATE_CHUNK_BYTES + 5, SMALL = 3 };
    uint8_t *bytes = malloc(BYTES), small[SMALL] = {1, 2, 3};
    for (size_t i = 0; i < BYTES; i++) bytes[i] = (uint8_t)(i * 31 >> 3);
    tdm_named_tensor tensors[] = {{"z", {TDM_DTYPE_U8, tdm_shape_1(SMALL), small}},
                                  {"b", {TDM_DTYPE_U8, tdm_shape_1(BYTES), bytes}},
                                  {"e", {TDM_DTYPE_U8, tdm_shape_1(0), NULL}}};
    tdm_position position = {.step = 9};
    tdm_error err;
    char whole[TDM_SHA256_HEX], other[TDM_SHA256_HEX], digest[TDM_SHA256_HEX];
    CHECK_INT(tdm_state_hash(&position, tensors, 3, whole, &err), TDM_OK);
    tdm_arena *arena = tdm_arena_create("test");
    tdm_state_chunk *chunks = NULL;
    size_t count = 0;
    CHECK_INT(tdm_state_chunks(tensors, 3, arena, &chunks, &count, &err), TDM_OK);
    CHECK_INT(count, 4);
    tdm_state_hasher *hasher = NULL;
    CHECK_INT(tdm_state_hasher_create(&position, tensors, 3, &hasher, &err), TDM_OK);
    for (size_t i = count; i > 0; i--) {
        const tdm_state_chunk *c = &chunks[i - 1];
        const uint8_t *at = (const uint8_t *)tensors[c->tensor].tensor.data + c->offset;
        CHECK_INT(tdm_state_hasher_finish(hasher, other, &err), TDM_ERR_INVALID);
        CHECK_INT(tdm_sha256_of(at, c->bytes, digest), TDM_OK);
        CHECK_INT(tdm_state_hasher_accept(hasher, i - 1, digest, &err), TDM_OK);
    }
    CHECK_INT(tdm_state_hasher_finish(hasher, other, &err), TDM_OK);
    CHECK_TEXT(whole, other);
    CHECK_INT(tdm_state_hasher_accept(hasher, count, digest, &err), TDM_ERR_INVALID);
    CHECK_INT(tdm_state_hasher_accept(hasher, 0, (char[TDM_SHA256_HEX]){"abc"}, &err),
              TDM_ERR_INVALID);
    tdm_state_hasher_destroy(hasher);
    bytes[BYTES - 1] ^= 1;
    CHECK_INT(tdm_state_hash(&position, tensors, 3, other, &err), TDM_OK);
    CHECK(strcmp(whole, other) != 0);
    tdm_arena_destroy(arena);
    free(bytes);
}

static const check_test tests[] = {
    CHECK_TEST(test_rules),        CHECK_TEST(test_ties),        CHECK_TEST(test_room),
    CHECK_TEST(test_index),        CHECK_TEST(test_names),       CHECK_TEST(test_packed_directory),
    CHECK_TEST(test_packed_bytes), CHECK_TEST(test_packed_bomb), CHECK_TEST(test_foreign_frames),
    CHECK_TEST(test_spread),       CHECK_TEST(test_chunks),
};

CHECK_MAIN_AROUND(tests, directory_make, NULL)
