/*
 * buffer.c -- growable arrays of bytes and of token ids.
 */
#include "token/buffer.h"

#include <stdlib.h>
#include <string.h>

static bool reserve(void **data, size_t n, size_t *capacity, size_t n_more, size_t elem_bytes)
{
    if (*capacity - n >= n_more)
        return true;
    size_t need = n + n_more, larger = *capacity + *capacity / 2 + 64;
    if (need < n || larger < need)
        larger = need;
    if (need < n || larger > SIZE_MAX / elem_bytes)
        return false;
    void *grown = realloc(*data, larger * elem_bytes);
    if (grown == NULL)
        return false;
    *data = grown;
    *capacity = larger;
    return true;
}

bool buffer_reserve(struct buffer *buffer, size_t n_more)
{
    void *data = buffer->data;
    bool done = reserve(&data, buffer->n, &buffer->capacity, n_more, 1);
    buffer->data = data;
    return done;
}

bool buffer_add(struct buffer *buffer, const char *bytes, size_t n)
{
    if (n == 0)
        return true;
    if (!buffer_reserve(buffer, n))
        return false;
    memcpy(buffer->data + buffer->n, bytes, n);
    buffer->n += n;
    return true;
}

bool token_ids_reserve(struct token_ids *ids, size_t n_more)
{
    void *data = ids->data;
    bool done = reserve(&data, ids->n, &ids->capacity, n_more, sizeof *ids->data);
    ids->data = data;
    return done;
}
