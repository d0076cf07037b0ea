/*
 * arena.h -- host memory that is freed all at once.
 *
 * Programs, plans and the scratch of passes are built from arenas: allocate forward, never free
 * one piece, drop the whole.  An allocation that fails returns NULL and leaves the arena usable.
 * (The bytes that tensors live in are not here: they are one block per run, see exec/.)
 */
#ifndef SNUG_BASE_ARENA_H
#define SNUG_BASE_ARENA_H

#include <stddef.h>

struct arena_chunk;
struct arena {
    struct arena_chunk *chunks; /* newest first; all zeros is an empty arena */
};

void *arena_alloc(struct arena *arena, size_t bytes); /* 16-byte aligned, not cleared */
void *arena_zeros(struct arena *arena, size_t count, size_t elem_bytes);
char *arena_copy_string(struct arena *arena, const char *text);
char *arena_format(struct arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void arena_free(struct arena *arena); /* frees everything; the arena is empty again */

/* Grows a malloc'ed array to hold at least `need` elements; false leaves it as it was. */
int array_grow(void **array, int *capacity, int need, size_t elem_bytes);

#endif
