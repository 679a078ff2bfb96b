/*
 * arena.c: memory with one lifetime.
 *
 * A list of chunks; allocations are taken from the newest one and never freed separately. An allocation
 * larger than a chunk gets a separate chunk. Invariants: chunks are zeroed when created and a byte is
 * allocated once, so allocations are always zeroed; sizes are checked for overflow before they are added.
 */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 64 * 1024, DEFAULT_ALIGN = 16 };

typedef struct chunk {
    struct chunk *older;
    size_t capacity;
    size_t used;
    unsigned char bytes[];
} chunk;

struct tdm_arena {
    const char *life_time;
    chunk *newest;
    size_t handed_out;
};

tdm_arena *tdm_arena_create(const char *life_time)
{
    tdm_arena *arena = calloc(1, sizeof(*arena));
    if (arena) arena->life_time = life_time;
    return arena;
}

void tdm_arena_reset(tdm_arena *arena)
{
    chunk *c = arena->newest;
    while (c) {
        chunk *older = c->older;
        free(c);
        c = older;
    }
    arena->newest = NULL;
    arena->handed_out = 0;
}

void tdm_arena_destroy(tdm_arena *arena)
{
    if (!arena) return;
    tdm_arena_reset(arena);
    free(arena);
}

/* Cuts a piece from `c`, or returns NULL when it does not fit. */
static void *chunk_cut(chunk *c, size_t bytes, size_t align)
{
    uintptr_t base = (uintptr_t)c->bytes;
    uintptr_t start = tdm_align_up(base + c->used, align);
    size_t offset = (size_t)(start - base);
    if (offset > c->capacity || bytes > c->capacity - offset) return NULL;
    c->used = offset + bytes;
    return c->bytes + offset;
}

void *tdm_arena_alloc(tdm_arena *arena, size_t bytes, size_t align)
{
    if (align == 0) align = DEFAULT_ALIGN;
    if (bytes == 0) bytes = 1;
    if (bytes > SIZE_MAX / 2 || align > SIZE_MAX / 4) return NULL;
    void *piece = arena->newest ? chunk_cut(arena->newest, bytes, align) : NULL;
    if (!piece) {
        size_t capacity = bytes + align;
        if (capacity < CHUNK_BYTES) capacity = CHUNK_BYTES;
        chunk *fresh = calloc(1, sizeof(*fresh) + capacity);
        if (!fresh) return NULL;
        fresh->capacity = capacity;
        fresh->older = arena->newest;
        arena->newest = fresh;
        piece = chunk_cut(fresh, bytes, align);
    }
    arena->handed_out += bytes;
    return piece;
}

char *tdm_arena_strndup(tdm_arena *arena, const char *text, size_t length)
{
    if (length == SIZE_MAX) return NULL;
    char *copy = tdm_arena_alloc(arena, length + 1, 1);
    if (copy && length > 0) memcpy(copy, text, length);
    return copy;
}

char *tdm_arena_printf(tdm_arena *arena, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (length < 0) return NULL;
    char *text = tdm_arena_alloc(arena, (size_t)length + 1, 1);
    if (!text) return NULL;
    va_start(args, fmt);
    vsnprintf(text, (size_t)length + 1, fmt, args);
    va_end(args);
    return text;
}

size_t tdm_arena_bytes(const tdm_arena *arena)
{
    return arena->handed_out;
}
