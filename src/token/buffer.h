/*
 * buffer.h -- growable arrays of bytes and of token ids.
 */
#ifndef SNUG_TOKEN_BUFFER_H
#define SNUG_TOKEN_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buffer { /* all zeros is empty; free(data) releases it */
    char *data;
    size_t n, capacity;
};

struct token_ids { /* likewise */
    int32_t *data;
    size_t n, capacity;
};

/* Each returns false if memory ran out; the contents stay. */
bool buffer_reserve(struct buffer *buffer, size_t n_more);
bool buffer_add(struct buffer *buffer, const char *bytes, size_t n);
bool token_ids_reserve(struct token_ids *ids, size_t n_more);
static inline bool token_ids_add(struct token_ids *ids, int32_t id)
{
    if (ids->n == ids->capacity && !token_ids_reserve(ids, 1))
        return false;
    ids->data[ids->n++] = id;
    return true;
}

#endif
