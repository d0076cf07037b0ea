/*
 * word_cache.h -- the ids of words that were encoded before.
 *
 * Most words of a text are repeated, and finding one is many times faster than merging it again.
 * Full, the cache is emptied.
 */
#ifndef SNUG_TOKEN_WORD_CACHE_H
#define SNUG_TOKEN_WORD_CACHE_H

#include "token/buffer.h"

struct word_cache_entry {
    uint64_t hash;
    uint32_t word_at, ids_at;
    uint16_t n_word, n_ids; /* n_word is 0 in an empty entry */
};

struct word_cache { /* all zeros is empty */
    struct word_cache_entry *entries;
    size_t n;
    struct buffer words;
    struct token_ids ids;
};

/* Finds a word; *n is the number of its ids.  NULL: it is not there. */
const int32_t *word_cache_find(const struct word_cache *cache, const char *word, size_t n_word,
                               uint64_t hash, size_t *n);
/* Adds a word that is not there.  Leaves out words that are too long, or for which there is no
 * memory. */
void word_cache_add(struct word_cache *cache, const char *word, size_t n_word, uint64_t hash,
                    const int32_t *ids, size_t n_ids);
void word_cache_free(struct word_cache *cache);

#endif
