/*
 * checkpoint_fixture.c: see checkpoint_fixture.h.
 */
#include "unit/checkpoint_fixture.h"

bool same_bytes(const void *a, const void *b, size_t count)
{
    return memcmp(a, b, count) == 0;
}

int directory_entries(void)
{
    tdm_arena *arena = tdm_arena_create("test");
    const char *const *names = NULL;
    size_t count = 0;
    CHECK_INT(tdm_dir_list(check_dir(), arena, &names, &count, NULL), TDM_OK);
    tdm_arena_destroy(arena);
    return (int)count;
}

uint8_t *build(const char *header, size_t data_bytes, size_t *out_count)
{
    uint64_t length = strlen(header);
    uint8_t *bytes = malloc(8 + length + data_bytes);
    memcpy(bytes, &length, 8);
    for (size_t i = 0; i < length; i++) bytes[8 + i] = (uint8_t)header[i];
    for (size_t i = 0; i < data_bytes; i++) bytes[8 + length + i] = (uint8_t)i;
    *out_count = 8 + length + data_bytes;
    return bytes;
}

void fill_state(sample_state *s, uint64_t step)
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
