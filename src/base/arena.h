/*
 * arena.h -- host memory that is freed all at once: for names, and the scratch memory of passes.
 *
 * An allocation that fails returns NULL and leaves the arena usable.  This is not the arena of a
 * plan, which holds the tensors: that is one allocation per run, see exec/.
 */
#ifndef SNUG_BASE_ARENA_H
#define SNUG_BASE_ARENA_H

#include <stddef.h>

struct arena_chunk;
struct arena {
    struct arena_chunk *chunks; /* newest first; NULL is an empty arena */
};

void *arena_alloc(struct arena *arena, size_t bytes); /* 16-byte aligned, not cleared */
void *arena_zeros(struct arena *arena, size_t count, size_t elem_bytes);
char *arena_copy_string(struct arena *arena, const char *text);
char *arena_format(struct arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void arena_free(struct arena *arena); /* frees everything; the arena is empty again */

/* Grows a malloc'ed array to at least `need` elements.  Returns 0 if out of memory. */
int array_grow(void **array, int *capacity, int need, size_t elem_bytes);

#endif
