/*
 * fuzz_head.c: any 64 bytes as the head of a message.
 *
 * The first five bytes are the world's number and its size; heads follow. A head that is accepted must
 * belong to this world and come from an existing rank, all its values must have names, and sealing it again
 * must not change it. Every head is also sealed and checked again, so that the fuzzer gets past the
 * checksum; and once more with one bit inverted, which must be detected.
 */
#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

__attribute__((noreturn)) static void broken(const char *what)
{
    fprintf(stderr, "fuzz_head: %s\n", what);
    abort();
}

#define NEED(condition, what)                                                                      \
    do {                                                                                           \
        if (!(condition)) broken(what);                                                            \
    } while (0)

static void check_head(const tdm__head *head, uint32_t world, int size)
{
    if (!tdm__head_check(head, world, size)) return;
    NEED(head->world == world && head->source < (uint32_t)size, "a stranger's head");
    NEED(strcmp(tdm_call_kind_name((tdm_call_kind)head->kind), "unknown") != 0, "no such call");
    NEED(head->dtype < TDM_DTYPE_COUNT && head->reduce <= TDM_REDUCE_USER, "no such type or sum");
    NEED(head->bytes <= INT64_MAX, "a length that cannot be");
    tdm__head again = *head;
    tdm__head_seal(&again);
    NEED(memcmp(&again, head, sizeof(again)) == 0, "sealing it anew changes it");
    for (size_t bit = 0; bit < 8 * sizeof(again); bit++) {
        uint8_t *byte = (uint8_t *)&again + bit / 8;
        *byte ^= (uint8_t)(1u << (bit % 8));
        NEED(!tdm__head_check(&again, world, size), "a turned bit is not noticed");
        *byte ^= (uint8_t)(1u << (bit % 8));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count < 5) return 0;
    uint32_t world;
    memcpy(&world, bytes, sizeof(world));
    int size = bytes[4] + 1;
    for (size_t at = 5; at + sizeof(tdm__head) <= count; at += sizeof(tdm__head)) {
        tdm__head head;
        memcpy(&head, bytes + at, sizeof(head));
        check_head(&head, world, size);
        tdm__head_seal(&head);
        check_head(&head, world, size);
    }
    return 0;
}
