/*
 * checkpoint_fixture.h: what the tests of the checkpoint room stand on: a temporary directory, files
 * made by hand, and a small training state.
 */
#ifndef TANDEM_TESTS_CHECKPOINT_FIXTURE_H
#define TANDEM_TESTS_CHECKPOINT_FIXTURE_H

#include "check.h"

#include <tandem/checkpoint.h>
#include <tandem/os.h>

#include <stdio.h>
#include <stdlib.h>

static char directory[64];

static inline const char *in_directory(const char *name)
{
    static char path[4][512];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof(path[turn]), "%s/%s", directory, name);
    return path[turn];
}

/* With CHECKPOINT_IN_MEMORY it is no disk's, where there is such a place: for tests that sync a lot. */
static void directory_make(void)
{
    bool in_memory = false;
#ifdef CHECKPOINT_IN_MEMORY
    in_memory = tdm_path_is_dir("/dev/shm");
#endif
    snprintf(directory, sizeof(directory), "%s/tandem-checkpoint-XXXXXX",
             in_memory ? "/dev/shm" : "/tmp");
    CHECK(mkdtemp(directory) != NULL);
}

static void directory_remove(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", directory);
    CHECK_INT(system(command), 0);
}

static inline bool same_bytes(const void *a, const void *b, size_t count)
{
    return memcmp(a, b, count) == 0;
}

static int directory_entries(void)
{
    tdm_arena *arena = tdm_arena_create("test");
    const char *const *names = NULL;
    size_t count = 0;
    CHECK_INT(tdm_dir_list(directory, arena, &names, &count, NULL), TDM_OK);
    tdm_arena_destroy(arena);
    return (int)count;
}

/* Builds a file from a header and a number of data bytes, 0, 1, 2, ...; on the heap, so that the
 * sanitiser sees every byte read past its end. Freed by the caller. */
static inline uint8_t *build(const char *header, size_t data_bytes, size_t *out_count)
{
    uint64_t length = strlen(header);
    uint8_t *bytes = malloc(8 + length + data_bytes);
    memcpy(bytes, &length, 8);
    for (size_t i = 0; i < length; i++) bytes[8 + i] = (uint8_t)header[i];
    for (size_t i = 0; i < data_bytes; i++) bytes[8 + length + i] = (uint8_t)i;
    *out_count = 8 + length + data_bytes;
    return bytes;
}

typedef struct sample_state {
    float weight[2][300];
    float bias[7];
    int64_t count[1];
    tdm_named_tensor tensors[4];
    const char *classes[3];
    tdm_checkpoint_content content;
} sample_state;

static void fill_state(sample_state *s, uint64_t step)
{
    for (int i = 0; i < 600; i++) s->weight[i / 300][i % 300] = (float)i * 0.5f + (float)step;
    for (int i = 0; i < 7; i++) s->bias[i] = -(float)i;
    s->count[0] = (int64_t)step;
    s->tensors[0] = (tdm_named_tensor){"w", {TDM_DTYPE_F32, tdm_shape_2(2, 300), s->weight}};
    s->tensors[1] = (tdm_named_tensor){"bias", {TDM_DTYPE_F32, tdm_shape_1(7), s->bias}};
    s->tensors[2] = (tdm_named_tensor){"adam.count", {TDM_DTYPE_I64, tdm_shape_0(), s->count}};
    s->tensors[3] = (tdm_named_tensor){"none", {TDM_DTYPE_F32, tdm_shape_1(0), NULL}};
    s->classes[0] = "cat";
    s->classes[1] = "d\"o\ng";
    s->classes[2] = "caf\xc3\xa9";
    s->content = (tdm_checkpoint_content){
        .tensors = s->tensors,
        .tensor_count = 4,
        .position = {.step = step, .epoch = 2, .position = 77, .samples = step * 64, .seed = 42},
        .job_hash = "0123abcd",
        .data_hash = "feed",
        .job_yaml = "model:\n  kind: mlp\n# \xe2\x9c\x93\n",
        .class_names = s->classes,
        .class_count = 3,
        .sample_shape = {.rank = 3, .dim = {1, 28, 28}},
    };
}

#endif
