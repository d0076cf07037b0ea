/*
 * vocabulary.h -- the pieces of a tokenizer: bytes <-> ids.
 */
#ifndef SNUG_TOKEN_VOCABULARY_H
#define SNUG_TOKEN_VOCABULARY_H

#include "token/buffer.h"

enum { NO_TOKEN = -1 };

struct vocabulary_piece {
    uint32_t at, n;         /* in `bytes` */
    bool exists, is_hidden; /* hidden: has bytes, but vocabulary_find does not return it */
    bool is_added;          /* an added token */
};

struct vocabulary { /* all zeros is empty */
    struct buffer bytes;
    struct vocabulary_piece *pieces; /* by id */
    int32_t n_ids, capacity;         /* n_ids: the largest id + 1 */
    int32_t *table;                  /* hash table of ids, or NO_TOKEN */
    size_t table_size, n_found;
};

uint64_t token_hash(const char *bytes, size_t n);

/* Adds a piece or replaces that of an id.  false: out of memory. */
bool vocabulary_add(struct vocabulary *v, int32_t id, const char *bytes, size_t n, bool is_hidden);
int32_t vocabulary_find(const struct vocabulary *v, const char *bytes, size_t n); /* or NO_TOKEN */
/* The bytes of an id, NULL if there is no such id. */
const char *vocabulary_piece(const struct vocabulary *v, int32_t id, size_t *n);
void vocabulary_free(struct vocabulary *v);

#endif
