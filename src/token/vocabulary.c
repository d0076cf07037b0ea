/*
 * vocabulary.c -- the pieces of a tokenizer: one block of bytes, and a hash table of ids.
 */
#include "token/vocabulary.h"

#include <stdlib.h>
#include <string.h>

/* Eight bytes at a time, each mixed by a multiplication. */
uint64_t token_hash(const char *bytes, size_t n)
{
    uint64_t hash = 0x9E3779B97F4A7C15u ^ n;
    while (n >= 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        hash = (hash ^ word) * 0xD6E8FEB86659FD93u;
        hash ^= hash >> 32;
        bytes += 8, n -= 8;
    }
    uint64_t word = 0;
    memcpy(&word, bytes, n);
    hash = (hash ^ word) * 0xD6E8FEB86659FD93u;
    return hash ^ hash >> 32;
}

static bool is_piece(const struct vocabulary *v, int32_t id, const char *bytes, size_t n)
{
    const struct vocabulary_piece *piece = &v->pieces[id];
    return piece->n == n && (n == 0 || memcmp(v->bytes.data + piece->at, bytes, n) == 0);
}

/* The slot of these bytes, or the empty one where they belong. */
static size_t slot_of(const struct vocabulary *v, const char *bytes, size_t n)
{
    size_t slot = token_hash(bytes, n) & (v->table_size - 1);
    while (v->table[slot] != NO_TOKEN && !is_piece(v, v->table[slot], bytes, n))
        slot = (slot + 1) & (v->table_size - 1);
    return slot;
}

static bool grow_table(struct vocabulary *v)
{
    if (v->table_size > 2 * v->n_found + 2)
        return true;
    size_t size = v->table_size == 0 ? 1024 : 2 * v->table_size;
    int32_t *table = malloc(size * sizeof *table), *before = v->table;
    size_t size_before = v->table_size;
    if (table == NULL)
        return false;
    for (size_t i = 0; i < size; i++)
        table[i] = NO_TOKEN;
    v->table = table;
    v->table_size = size;
    for (size_t i = 0; i < size_before; i++)
        if (before[i] != NO_TOKEN) {
            const struct vocabulary_piece *piece = &v->pieces[before[i]];
            v->table[slot_of(v, v->bytes.data + piece->at, piece->n)] = before[i];
        }
    free(before);
    return true;
}

static bool grow_pieces(struct vocabulary *v, int32_t id)
{
    if (id >= v->capacity) {
        int64_t larger = (int64_t)id + id / 2 + 1024;
        struct vocabulary_piece *grown = realloc(v->pieces, (size_t)larger * sizeof *grown);
        if (larger > INT32_MAX || grown == NULL) {
            v->pieces = grown == NULL ? v->pieces : grown;
            return false;
        }
        v->pieces = grown;
        v->capacity = (int32_t)larger;
    }
    for (; v->n_ids <= id; v->n_ids++)
        v->pieces[v->n_ids] = (struct vocabulary_piece){0};
    return true;
}

bool vocabulary_add(struct vocabulary *v, int32_t id, const char *bytes, size_t n, bool is_hidden)
{
    if (v->bytes.n + n > UINT32_MAX || !grow_pieces(v, id) || !grow_table(v))
        return false;
    struct vocabulary_piece piece = {
        .at = (uint32_t)v->bytes.n, .n = (uint32_t)n, .exists = true, .is_hidden = is_hidden};
    if (!buffer_add(&v->bytes, bytes, n))
        return false;
    v->pieces[id] = piece;
    if (is_hidden)
        return true;
    size_t slot = slot_of(v, bytes, n);
    v->n_found += v->table[slot] == NO_TOKEN;
    v->table[slot] = id;
    return true;
}

int32_t vocabulary_find(const struct vocabulary *v, const char *bytes, size_t n)
{
    return v->table_size == 0 ? NO_TOKEN : v->table[slot_of(v, bytes, n)];
}

const char *vocabulary_piece(const struct vocabulary *v, int32_t id, size_t *n)
{
    *n = 0;
    if (id < 0 || id >= v->n_ids || !v->pieces[id].exists)
        return NULL;
    *n = v->pieces[id].n;
    return v->bytes.n == 0 ? "" : v->bytes.data + v->pieces[id].at;
}

void vocabulary_free(struct vocabulary *v)
{
    free(v->bytes.data);
    free(v->pieces);
    free(v->table);
    *v = (struct vocabulary){0};
}
