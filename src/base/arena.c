/*
 * arena.c -- bump allocation in chunks that grow geometrically.
 */
#include "base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct arena_chunk {
    struct arena_chunk *next;
    size_t used, size;
    _Alignas(16) unsigned char bytes[];
};

enum { FIRST_CHUNK = 4096, ALIGN = 16 };

void *arena_alloc(struct arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX / 4)
        return NULL;
    bytes = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    struct arena_chunk *chunk = arena->chunks;
    if (chunk == NULL || chunk->size - chunk->used < bytes) {
        size_t size = chunk == NULL ? FIRST_CHUNK : 2 * chunk->size;
        if (size < bytes)
            size = bytes;
        struct arena_chunk *fresh = malloc(sizeof *fresh + size);
        if (fresh == NULL)
            return NULL;
        *fresh = (struct arena_chunk){.next = chunk, .size = size};
        arena->chunks = chunk = fresh;
    }
    void *out = chunk->bytes + chunk->used;
    chunk->used += bytes;
    return out;
}

void *arena_zeros(struct arena *arena, size_t count, size_t elem_bytes)
{
    if (elem_bytes != 0 && count > SIZE_MAX / 4 / elem_bytes)
        return NULL;
    void *out = arena_alloc(arena, count * elem_bytes);
    if (out != NULL)
        memset(out, 0, count * elem_bytes);
    return out;
}

char *arena_copy_string(struct arena *arena, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *out = arena_alloc(arena, bytes);
    if (out != NULL)
        memcpy(out, text, bytes);
    return out;
}

char *arena_format(struct arena *arena, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *out = length < 0 ? NULL : arena_alloc(arena, (size_t)length + 1);
    if (out != NULL)
        vsnprintf(out, (size_t)length + 1, format, again);
    va_end(again);
    return out;
}

void arena_free(struct arena *arena)
{
    while (arena->chunks != NULL) {
        struct arena_chunk *next = arena->chunks->next;
        free(arena->chunks);
        arena->chunks = next;
    }
}

int array_grow(void **array, int *capacity, int need, size_t elem_bytes)
{
    if (need <= *capacity)
        return 1;
    int fresh = *capacity < 16 ? 16 : *capacity;
    while (fresh < need)
        fresh = fresh > INT32_MAX / 2 ? need : fresh * 2;
    void *grown = realloc(*array, (size_t)fresh * elem_bytes);
    if (grown == NULL)
        return 0;
    *array = grown;
    *capacity = fresh;
    return 1;
}
